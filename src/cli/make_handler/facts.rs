//! Facts from the manifest about a class: the kind of its jobs, and what PHP does around them.

use std::fmt::Write as _;

use heck::ToSnakeCase as _;

use super::names::toml_pattern;
use super::render::FileHeader;
use crate::app::{Class, Manifest};
use crate::payload::{Kind, Target};
use crate::php::ClassName;

impl FileHeader {
    /// The facts about a class without any job of it.
    pub(super) fn of_class(
        name: &str,
        class: &Class,
        wanted: &str,
        manifest: &Manifest,
    ) -> Option<Self> {
        let own = ClassName::new(name)?;
        let mut mapping = String::new();
        let mut sources = "the manifest alone: no job of the class was found".to_owned();
        let channel = None;
        let target = match &*class.kind {
            "job" => Target::Job { class: own },
            "notification" => Target::Notification {
                class: own,
                channel,
            },
            "mailable" => Target::Mailable { class: own },
            "broadcast" => Target::Broadcast { class: own },
            "listener" => {
                let method = method_of(class, wanted);
                let events = events_of(class, method, manifest);
                let patterns: Vec<String> = events
                    .iter()
                    .map(|event| toml_pattern(event.as_str()))
                    .collect();
                if let [event, more @ ..] = &*patterns {
                    let _ = writeln!(mapping, "event = {event}");
                    for event in more {
                        let _ = writeln!(
                            mapping,
                            "# {event} needs a mapping and a handler of its own."
                        );
                    }
                } else {
                    sources += ".\nWhat is in its event only a job can tell";
                }
                Target::Listener {
                    class: own,
                    method: method.into(),
                    event: events.into_iter().next(),
                }
            }
            _ => return None,
        };
        Some(Self {
            target,
            mapping,
            sources,
            notes: String::new(),
        })
    }

    /// Lists what PHP does around the class's jobs, and the lines of the mapping that do the same.
    pub(super) fn tell_around(&mut self, class: &Class) {
        let kind = self.target.kind();
        let has_middleware = class.middleware.method;
        let travels = matches!(kind, Kind::Listener | Kind::Notification | Kind::Mailable);
        if has_middleware && !travels {
            self.mapping += "# What `middleware()` returns is not in the jobs, but here; fill in the capitals:\n\
                # middleware = [\n";
            for name in &class.middleware.named {
                let _ = writeln!(self.mapping, "#     {},", middleware(name));
            }
            self.mapping += "# ]\n";
        }
        let debounce = class.limits.get("debounceFor");
        if debounce.is_some_and(|limit| !limit.is_null()) {
            self.mapping += "# The `debounceId` of its jobs:\n# debounce = \"{PROPERTY}\"\n";
        }
        let lock = if class.unique_via {
            "A unique lock in a store that `uniqueVia()` chooses: its jobs count as unmapped."
        } else {
            "A unique lock, which is freed as in PHP."
        };
        #[rustfmt::skip]
        let notes = [
            (has_middleware && travels, "`middleware()`: what it returns is in each job and counts, without a line in the mapping."),
            (class.has_failed(), "`failed()`, which PHP runs when a job has failed here, unless the handler has a hook (`on_failed`)."),
            (class.is_unique(), lock),
            (class.is_encrypted(), "Encryption: the worker needs the app's key (`APP_KEY`)."),
            (class.is_batchable(), "Batches: its jobs count in theirs, which `context.batch().await?` gives."),
        ];
        for (_, note) in notes.iter().filter(|(is_so, _)| *is_so) {
            let _ = writeln!(self.notes, "* {note}");
        }
    }
}

/// The method of a listener: the named one, or the first if none is `handle`; empty for `handle`.
fn method_of<'c>(class: &'c Class, wanted: &'c str) -> &'c str {
    let mut methods = class.listens.iter().map(|listens| &*listens.method);
    match wanted.split_once('@') {
        Some((_, method)) => method,
        None if methods.clone().any(|method| method == "handle") => "",
        None => methods.next().unwrap_or_default(),
    }
}

/// Events that a listener's method accepts and that the manifest contains.
fn events_of(class: &Class, method: &str, manifest: &Manifest) -> Vec<ClassName> {
    let method = if method.is_empty() { "handle" } else { method };
    let is_it = |other: &str| other.eq_ignore_ascii_case(method);
    let mut names: Vec<&str> = Vec::new();
    for listens in class
        .listens
        .iter()
        .filter(|listens| is_it(&listens.method))
    {
        names.push(&listens.event);
    }
    if let Some(Some(declared)) = class.handle.first().filter(|_| is_it("handle")) {
        names.extend(declared.split('|'));
    }
    let mut events = Vec::new();
    for event in names.into_iter().filter_map(ClassName::new) {
        if manifest.class(&event).is_some() && !events.contains(&event) {
            events.push(event);
        }
    }
    events
}

/// One of Laravel's middleware as a mapping writes it, with blanks to fill in as capitals.
fn middleware(class: &str) -> String {
    let key = class.to_snake_case();
    let value = match &*key {
        "skip_if_batch_cancelled" => return format!("\"{key}\""),
        "fail_on_exception" => "['CLASS']",
        "release" => "{ when = \"{PROPERTY}\" }",
        "skip" => "\"{PROPERTY}\"",
        "without_overlapping" => "{ key = \"{PROPERTY}\" }",
        key if key.starts_with("throttles") => "{ max = 10, decay = 600 }",
        _ => "\"LIMITER\"",
    };
    format!("{{ {key} = {value} }}")
}
