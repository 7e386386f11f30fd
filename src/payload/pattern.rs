//! Patterns that decide which jobs a mapping matches: a kind of target, and patterns for its names.

use std::fmt;

use regex::Regex;

use super::{Kind, Target};
use crate::php::ClassName;

/// A name as a mapping writes it: exact, with `*` and `?`, or `/regex/`.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// One class; case does not matter, as in PHP.
    Exact(Box<str>),
    /// One name; case matters.
    Name(Box<str>),
    /// Any other pattern, as a regular expression on the whole name.
    Regex {
        /// As written in the mapping, for messages.
        written: Box<str>,
        /// The compiled expression.
        regex: Regex,
    },
}

/// `*` as a regular expression, for classes.
const ANY_CLASS: &str = "(?is)^.*$";
/// `*` as a regular expression, for names.
const ANY_NAME: &str = "(?s)^.*$";

/// A pattern that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("`{pattern}` is not a pattern: {problem}")]
pub struct PatternError {
    /// The pattern as written.
    pub pattern: String,
    /// Why it is not valid.
    pub problem: String,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(name) | Self::Name(name) => f.write_str(name),
            Self::Regex { written, .. } => f.write_str(written),
        }
    }
}

impl Pattern {
    /// Reads a pattern of a class, as a mapping writes it.
    ///
    /// # Errors
    ///
    /// A regular expression between slashes that does not compile.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        Self::read(text, true)
    }

    /// Reads a pattern of a name in which case matters.
    ///
    /// # Errors
    ///
    /// A regular expression between slashes that does not compile.
    pub fn parse_name(text: &str) -> Result<Self, PatternError> {
        Self::read(text, false)
    }

    fn read(text: &str, is_class: bool) -> Result<Self, PatternError> {
        let wrong = |problem: &str| PatternError {
            pattern: text.to_owned(),
            problem: problem.to_owned(),
        };
        let compiled = |regex: &str| match Regex::new(regex) {
            Ok(regex) => Ok(Self::Regex {
                written: text.into(),
                regex,
            }),
            // Its text draws the place in several lines, and says in the last one what is wrong.
            Err(source) => {
                let text = source.to_string();
                let said = text.lines().next_back().unwrap_or_default();
                Err(wrong(said.trim_start_matches("error: ")))
            }
        };
        if text.is_empty() {
            return Err(wrong("it is empty: `*` names everything"));
        }
        if let Some(rest) = text.strip_prefix('/') {
            let inner = rest
                .strip_suffix('/')
                .ok_or_else(|| wrong("the closing `/` is missing"))?;
            return compiled(inner);
        }
        // PHP source often has a leading backslash; names are compared without it.
        let name = text.strip_prefix('\\').unwrap_or(text);
        if !name.contains(['*', '?']) {
            return Ok(if is_class {
                Self::Exact(name.into())
            } else {
                Self::Name(name.into())
            });
        }
        let start = if is_class { "(?is)^" } else { "(?s)^" };
        let body = name.chars().fold(String::from(start), |mut regex, c| {
            match c {
                '*' => regex.push_str(".*"),
                '?' => regex.push('.'),
                c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
            regex
        });
        compiled(&(body + "$"))
    }

    /// True if the pattern names this class.
    pub fn matches(&self, class: &str) -> bool {
        match self {
            Self::Exact(name) => name.eq_ignore_ascii_case(class),
            Self::Name(name) => **name == *class,
            Self::Regex { regex, .. } => regex.is_match(class),
        }
    }

    /// True if this pattern certainly matches every name that `other` matches.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Regex { regex: all, .. }, Self::Regex { regex: some, .. }) => {
                all.as_str() == some.as_str() || matches!(all.as_str(), ANY_CLASS | ANY_NAME)
            }
            (_, Self::Exact(name) | Self::Name(name)) => self.matches(name),
            (Self::Exact(_) | Self::Name(_), Self::Regex { .. }) => false,
        }
    }
}

/// The jobs that a mapping matches.
///
/// PHP finds classes and methods case-insensitively, so these patterns match like
/// that. Names of commands and channels are matched exactly.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum TargetPattern {
    /// Jobs of these classes.
    Job(Pattern),
    /// Queued listeners.
    Listener {
        /// Listener class.
        class: Pattern,
        /// Method of the listener; any method if `None`.
        method: Option<Pattern>,
        /// Class of the event; if `None`, any event, including events that are only a name.
        event: Option<Pattern>,
    },
    /// Queued notifications.
    Notification {
        /// Notification class.
        class: Pattern,
        /// Channel, by name or class; any channel if `None`.
        channel: Option<Box<str>>,
    },
    /// Queued mailables of these classes.
    Mailable(Pattern),
    /// Broadcasts of these events.
    Broadcast(Pattern),
    /// Queued artisan commands of these names.
    Command(Pattern),
    /// String jobs.
    String {
        /// The part before `@`.
        class: Pattern,
        /// The part after `@`.
        method: Pattern,
    },
}

impl From<Pattern> for TargetPattern {
    fn from(class: Pattern) -> Self {
        Self::Job(class)
    }
}

/// A target pattern that is not valid.
#[derive(Debug, thiserror::Error)]
pub enum TargetPatternError {
    /// One of its patterns cannot be read.
    #[error(transparent)]
    Pattern(#[from] PatternError),
    /// The job class is one of Laravel's wrappers.
    #[error(
        "`{class}` is Laravel's wrapper around a {kind}; write `{kind} = '..'` with the name of what is in it"
    )]
    Wrapper {
        /// The class as written.
        class: String,
        /// The kind of object that it wraps.
        kind: Kind,
    },
    /// Only PHP can run this job class.
    #[error(
        "`{class}` is PHP code that only PHP can run; [unmapped] says what becomes of such jobs"
    )]
    OnlyPhp {
        /// The class as written.
        class: String,
    },
}

impl TargetPattern {
    /// Jobs of a class, as `job = ..` writes it.
    ///
    /// # Errors
    ///
    /// A bad pattern, or a class of Laravel that is a wrapper around something else.
    pub fn job(text: &str) -> Result<Self, TargetPatternError> {
        let class = Pattern::parse(text)?;
        if let Pattern::Exact(name) = &class
            && let Some(name) = ClassName::new(name.clone())
        {
            match Kind::of_class(&name) {
                Kind::Job => {}
                Kind::Closure | Kind::Batch => {
                    let class = name.as_str().to_owned();
                    return Err(TargetPatternError::OnlyPhp { class });
                }
                kind => {
                    let class = name.as_str().to_owned();
                    return Err(TargetPatternError::Wrapper { class, kind });
                }
            }
        }
        Ok(Self::Job(class))
    }

    /// Listeners of a class, as `listener = ..` writes it: `Class`, or `Class@method`.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn listener(text: &str, event: Option<&str>) -> Result<Self, TargetPatternError> {
        let (class, method) = class_and_method(text);
        Ok(Self::Listener {
            class: Pattern::parse(class)?,
            method: method.map(Pattern::parse).transpose()?,
            event: event.map(Pattern::parse).transpose()?,
        })
    }

    /// Notifications of a class, on one channel or on all.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn notification(text: &str, channel: Option<&str>) -> Result<Self, TargetPatternError> {
        Ok(Self::Notification {
            class: Pattern::parse(text)?,
            channel: channel.map(|name| name.strip_prefix('\\').unwrap_or(name).into()),
        })
    }

    /// Mailables of a class.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn mailable(text: &str) -> Result<Self, TargetPatternError> {
        Ok(Self::Mailable(Pattern::parse(text)?))
    }

    /// Broadcasts of an event class.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn broadcast(text: &str) -> Result<Self, TargetPatternError> {
        Ok(Self::Broadcast(Pattern::parse(text)?))
    }

    /// Artisan commands of a name.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn command(text: &str) -> Result<Self, TargetPatternError> {
        Ok(Self::Command(Pattern::parse_name(text)?))
    }

    /// String jobs, as `string = ..` writes them: `Class@method`; without a method that is `fire`, as in Laravel.
    ///
    /// # Errors
    ///
    /// A bad pattern.
    pub fn string(text: &str) -> Result<Self, TargetPatternError> {
        let (class, method) = class_and_method(text);
        Ok(Self::String {
            class: Pattern::parse(class)?,
            method: Pattern::parse(method.unwrap_or("fire"))?,
        })
    }

    /// The kind of targets that this pattern matches.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Job(_) => Kind::Job,
            Self::Listener { .. } => Kind::Listener,
            Self::Notification { .. } => Kind::Notification,
            Self::Mailable(_) => Kind::Mailable,
            Self::Broadcast(_) => Kind::Broadcast,
            Self::Command(_) => Kind::Command,
            Self::String { .. } => Kind::String,
        }
    }

    /// The pattern for the class or the command name.
    pub fn name(&self) -> &Pattern {
        match self {
            Self::Job(name)
            | Self::Listener { class: name, .. }
            | Self::Notification { class: name, .. }
            | Self::Mailable(name)
            | Self::Broadcast(name)
            | Self::Command(name)
            | Self::String { class: name, .. } => name,
        }
    }

    /// True if this pattern matches jobs of this class.
    pub fn matches_job(&self, class: &str) -> bool {
        matches!(self, Self::Job(pattern) if pattern.matches(class))
    }

    /// True if this pattern matches this target.
    pub fn matches(&self, target: &Target) -> bool {
        match (self, target) {
            (Self::Job(pattern), Target::Job { class })
            | (Self::Mailable(pattern), Target::Mailable { class })
            | (Self::Broadcast(pattern), Target::Broadcast { class }) => {
                pattern.matches(class.as_str())
            }
            // Names in payloads may have a leading backslash here and below, which PHP ignores, too.
            (Self::Command(pattern), Target::Command { name, .. }) => {
                pattern.matches(name.trim_start_matches('\\'))
            }
            (
                Self::Listener {
                    class,
                    method,
                    event,
                },
                Target::Listener {
                    class: of_class,
                    method: of_method,
                    event: of_event,
                },
            ) => {
                let is_event = |event: &Pattern| {
                    let of_event = of_event.as_ref();
                    of_event.is_some_and(|of_event| event.matches(of_event.as_str()))
                };
                class.matches(of_class.as_str())
                    && method
                        .as_ref()
                        .is_none_or(|method| method.matches(of_method))
                    && event.as_ref().is_none_or(is_event)
            }
            (
                Self::Notification { class, channel },
                Target::Notification {
                    class: of_class,
                    channel: of_channel,
                },
            ) => {
                let is_channel = |channel: &str| {
                    let of_channel = of_channel.as_deref();
                    of_channel.is_some_and(|of_channel| is_same_channel(channel, of_channel))
                };
                class.matches(of_class.as_str()) && channel.as_deref().is_none_or(is_channel)
            }
            (
                Self::String { class, method },
                Target::String {
                    class: of_class,
                    method: of_method,
                },
            ) => class.matches(of_class.trim_start_matches('\\')) && method.matches(of_method),
            _ => false,
        }
    }

    /// True if some target certainly matches both patterns, though neither covers the other.
    ///
    /// `false` may be wrong, as with [`covers`](Self::covers).
    pub fn overlaps(&self, other: &Self) -> bool {
        if self.kind() != other.kind() || self.covers(other) || other.covers(self) {
            return false;
        }
        let meets = |one: &Pattern, other: &Pattern| one.covers(other) || other.covers(one);
        let meets_optional = |one: Option<&Pattern>, other: Option<&Pattern>| match (one, other) {
            (Some(one), Some(other)) => meets(one, other),
            _ => true,
        };
        let rest = match (self, other) {
            (
                Self::Listener { method, event, .. },
                Self::Listener {
                    method: of_method,
                    event: of_event,
                    ..
                },
            ) => {
                meets_optional(method.as_ref(), of_method.as_ref())
                    && meets_optional(event.as_ref(), of_event.as_ref())
            }
            (
                Self::Notification { channel, .. },
                Self::Notification {
                    channel: of_channel,
                    ..
                },
            ) => match (channel, of_channel) {
                (Some(channel), Some(of_channel)) => is_same_channel(channel, of_channel),
                _ => true,
            },
            (
                Self::String { method, .. },
                Self::String {
                    method: of_method, ..
                },
            ) => meets(method, of_method),
            _ => true,
        };
        rest && meets(self.name(), other.name())
    }

    /// True if this pattern certainly matches every target that `other` matches.
    ///
    /// `false` may be wrong: regular expressions are not compared with each other.
    pub fn covers(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Job(all), Self::Job(some))
            | (Self::Mailable(all), Self::Mailable(some))
            | (Self::Broadcast(all), Self::Broadcast(some))
            | (Self::Command(all), Self::Command(some)) => all.covers(some),
            (
                Self::Listener {
                    class,
                    method,
                    event,
                },
                Self::Listener {
                    class: of_class,
                    method: of_method,
                    event: of_event,
                },
            ) => {
                class.covers(of_class)
                    && covers_optional(method.as_ref(), of_method.as_ref())
                    && covers_optional(event.as_ref(), of_event.as_ref())
            }
            (
                Self::Notification { class, channel },
                Self::Notification {
                    class: of_class,
                    channel: of_channel,
                },
            ) => {
                let is_channel = match (channel, of_channel) {
                    (None, _) => true,
                    (Some(_), None) => false,
                    (Some(channel), Some(of_channel)) => is_same_channel(channel, of_channel),
                };
                class.covers(of_class) && is_channel
            }
            (
                Self::String { class, method },
                Self::String {
                    class: of_class,
                    method: of_method,
                },
            ) => class.covers(of_class) && method.covers(of_method),
            _ => false,
        }
    }
}

impl fmt::Display for TargetPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job(class) => class.fmt(f),
            Self::Listener {
                class,
                method,
                event,
            } => {
                write!(f, "listener {class}")?;
                if let Some(method) = method {
                    write!(f, "@{method}")?;
                }
                match event {
                    Some(event) => write!(f, " of {event}"),
                    None => Ok(()),
                }
            }
            Self::Notification { class, channel } => match channel {
                Some(channel) => write!(f, "notification {class} by {channel}"),
                None => write!(f, "notification {class}"),
            },
            Self::Mailable(class) => write!(f, "mailable {class}"),
            Self::Broadcast(class) => write!(f, "broadcast {class}"),
            Self::Command(name) => write!(f, "command {name}"),
            Self::String { class, method } => write!(f, "string {class}@{method}"),
        }
    }
}

fn covers_optional(all: Option<&Pattern>, some: Option<&Pattern>) -> bool {
    match (all, some) {
        (None, _) => true,
        (Some(_), None) => false,
        (Some(all), Some(some)) => all.covers(some),
    }
}

/// Whether two texts name one channel: names compare exactly, classes case-insensitively as in PHP.
fn is_same_channel(one: &str, other: &str) -> bool {
    let other = other.trim_start_matches('\\');
    one == other || (one.contains('\\') && one.eq_ignore_ascii_case(other))
}

/// Splits `Class@method`; a `/regex/` may itself contain an `@`.
fn class_and_method(text: &str) -> (&str, Option<&str>) {
    let at = match text.strip_prefix('/') {
        Some(rest) => rest.find("/@").map(|at| at + 2),
        None => text.find('@'),
    };
    match at {
        Some(at) => (&text[..at], Some(&text[at + 1..])),
        None => (text, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_name_classes() {
        #[rustfmt::skip]
        let rows = [
            (r"App\Jobs\X", r"App\Jobs\X", true),
            (r"\App\Jobs\X", r"app\jobs\x", true),
            (r"App\Jobs\X", r"App\Jobs\XY", false),
            (r"App\Jobs\*", r"App\Jobs\Deep\X", true),
            (r"App\Jobs\*", r"Apps\Jobs\X", false),
            (r"*\Touch*", r"App\Jobs\TouchUser", true),
            (r"App\Jobs\V?", r"App\Jobs\V2", true),
            (r"App\Jobs\V?", r"App\Jobs\V22", false),
            (r"/^App\\(Jobs|Work)\\/", r"App\Work\X", true),
            ("*", "", true),
        ];
        for (pattern, class, expected) in rows {
            assert_eq!(
                Pattern::parse(pattern).unwrap().matches(class),
                expected,
                "{pattern} {class}"
            );
        }
        for wrong in ["/(/", "/x", ""] {
            assert!(Pattern::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn patterns_are_printed_as_they_are_written() {
        for written in [
            r"App\Jobs\X",
            "App*",
            r"App\Jobs\V?",
            r"/^App\\(Jobs|Work)\\/",
        ] {
            assert_eq!(Pattern::parse(written).unwrap().to_string(), written);
            assert_eq!(Pattern::parse_name(written).unwrap().to_string(), written);
        }
    }

    fn class(name: &str) -> ClassName {
        ClassName::new(name).unwrap()
    }

    fn listener(name: &str, method: &str, event: Option<&str>) -> Target {
        Target::Listener {
            class: class(name),
            method: method.into(),
            event: event.map(class),
        }
    }

    fn notification(name: &str, channel: Option<&str>) -> Target {
        Target::Notification {
            class: class(name),
            channel: channel.map(Into::into),
        }
    }

    fn string(class: &str, method: &str) -> Target {
        Target::String {
            class: class.into(),
            method: method.into(),
        }
    }

    #[test]
    fn each_kind_of_target_is_named_by_its_own_patterns() {
        use TargetPattern as P;
        let command = |name: &str| Target::Command {
            name: name.into(),
            line: None,
        };
        let mailable = Target::Mailable { class: class("A") };
        let broadcast = Target::Broadcast { class: class("A") };
        let job = Target::Job { class: class("A") };
        #[rustfmt::skip]
        let rows = [
            (P::job("*").unwrap(), job.clone(), true),
            (P::job("*").unwrap(), mailable.clone(), false),
            (P::mailable("a").unwrap(), mailable.clone(), true),
            (P::mailable("A").unwrap(), broadcast.clone(), false),
            (P::broadcast("/^A$/").unwrap(), broadcast, true),
            (P::broadcast("B").unwrap(), mailable, false),
            (P::listener("L", None).unwrap(), listener("l", "any", None), true),
            (P::listener(r"\L@Handle", None).unwrap(), listener("l", "handle", Some("E")), true),
            (P::listener("L@on*", None).unwrap(), listener("L", "onPaid", Some("E")), true),
            (P::listener("L@handle", None).unwrap(), listener("L", "onPaid", Some("E")), false),
            (P::listener("/^L@?$/@handle", None).unwrap(), listener("L", "handle", None), true),
            (P::listener("L", Some("E*")).unwrap(), listener("L", "handle", Some("Ev")), true),
            (P::listener("L", Some("E*")).unwrap(), listener("L", "handle", None), false),
            (P::notification("N", None).unwrap(), notification("N", None), true),
            (P::notification("N", Some("mail")).unwrap(), notification("N", Some("mail")), true),
            (P::notification("N", Some("mail")).unwrap(), notification("N", Some("Mail")), false),
            (P::notification("N", Some("mail")).unwrap(), notification("N", None), false),
            (P::notification("*", Some(r"\App\Sms")).unwrap(), notification("N", Some(r"App\SMS")), true),
            (P::notification("*", Some("App\\Sms")).unwrap(), notification("N", Some(r"\App\Sms")), true),
            (P::command("mail:send").unwrap(), command("mail:send"), true),
            (P::command("mail:send").unwrap(), command("mail:Send"), false),
            (P::command(r"\App\Send").unwrap(), command(r"\App\Send"), true),
            (P::command("mail:*").unwrap(), command("mail:send"), true),
            (P::command("mail:*").unwrap(), command("Mail:send"), false),
            (P::string("S").unwrap(), string("S", "fire"), true),
            (P::string("S").unwrap(), string("S", "other"), false),
            (P::string("S@*").unwrap(), string("s", "Other"), true),
            (P::string("S@Other").unwrap(), string(r"\S", "other"), true),
            (P::string("*").unwrap(), job, false),
            (P::job("*").unwrap(), Target::Closure, false),
        ];
        for (pattern, target, expected) in rows {
            assert_eq!(pattern.matches(&target), expected, "{pattern} {target:?}");
        }
    }

    #[test]
    fn a_pattern_may_cover_all_of_another() {
        use TargetPattern as P;
        let listener = |text, event| P::listener(text, event).unwrap();
        let notification = |text, channel| P::notification(text, channel).unwrap();
        #[rustfmt::skip]
        let rows = [
            (P::job("A*").unwrap(), P::job("AB").unwrap(), true),
            (P::job("A*").unwrap(), P::job("A*").unwrap(), true),
            (P::job("*").unwrap(), P::job("/x/").unwrap(), true),
            (P::job("A*").unwrap(), P::job("AB*").unwrap(), false),
            (P::job("*").unwrap(), P::mailable("A").unwrap(), false),
            (listener("L", None), listener("L@handle", Some("E")), true),
            (listener("L", Some("E")), listener("L", None), false),
            (listener("L@handle", None), listener("L", None), false),
            (notification("N", None), notification("N", Some("mail")), true),
            (notification("N", Some("mail")), notification("N", None), false),
            (notification("N", Some("mail")), notification("N", Some("sms")), false),
            (P::string("S@*").unwrap(), P::string("S").unwrap(), true),
        ];
        for (one, other, expected) in rows {
            assert_eq!(one.covers(&other), expected, "{one}, {other}");
        }
        let overlap = [
            (listener("L@handle", None), listener("L", Some("E")), true),
            (listener("L@a", None), listener("L@b", Some("E")), false),
            (listener("L", None), listener("L@b", Some("E")), false),
            (
                notification("A*", Some("mail")),
                notification("AB", None),
                true,
            ),
            (
                notification("A*", Some("mail")),
                notification("AB", Some("sms")),
                false,
            ),
            (P::job("A").unwrap(), P::job("B").unwrap(), false),
        ];
        for (one, other, expected) in overlap {
            assert_eq!(one.overlaps(&other), expected, "{one}, {other}");
        }
    }

    #[test]
    fn laravels_wrappers_are_no_job_classes() {
        let error = |text: &str| TargetPattern::job(text).unwrap_err().to_string();
        let listener = error(r"\illuminate\Events\CallQueuedListener");
        assert!(listener.contains("write `listener = '..'`"), "{listener}");
        let closure = error(r"Illuminate\Queue\CallQueuedClosure");
        assert!(closure.contains("only PHP can run"), "{closure}");
        assert!(TargetPattern::job(r"Illuminate\Foundation\Other").is_ok());
    }
}
