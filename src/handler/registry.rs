//! Which handler runs which job: handlers by name, mappings by class.

use std::collections::HashMap;
use std::fmt;
use std::num::NonZeroUsize;
use std::sync::{Arc, PoisonError, RwLock};

use regex::Regex;

use super::{Debounce, Discard, Exec, Handler, Log, Missing, Pipeline, Services};
use crate::payload::{Kind, Target};
use crate::queue::QueueName;

/// Handlers by the names that mappings use. `log` and `discard` are always there.
#[derive(Clone)]
pub struct Registry {
    handlers: HashMap<String, Arc<dyn Handler>>,
}

impl Default for Registry {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.names()).finish()
    }
}

impl Registry {
    /// A registry with the built-in handlers only.
    pub fn new() -> Self {
        Self {
            handlers: HashMap::new(),
        }
        .with("log", Log)
        .with("discard", Discard)
    }

    /// Adds a handler; one of the same name is replaced.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.insert(name.into(), Arc::new(handler));
        self
    }

    /// The handler of this name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Handler>> {
        self.handlers.get(name)
    }

    /// All names, sorted.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<&str> = self.handlers.keys().map(String::as_str).collect();
        names.sort_unstable();
        names
    }
}

/// A class as a mapping names it: exact, with `*` and `?`, or `/regex/`.
#[derive(Debug, Clone)]
pub enum Pattern {
    /// One class; case does not matter, as in PHP.
    Exact(Box<str>),
    /// Everything else, as a regular expression on the whole name.
    Regex(Regex),
}

/// A pattern that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error("`{pattern}` is not a pattern: {problem}")]
pub struct PatternError {
    /// The pattern as written.
    pub pattern: String,
    /// What is wrong with it.
    pub problem: String,
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact(class) => f.write_str(class),
            Self::Regex(regex) => write!(f, "/{regex}/"),
        }
    }
}

impl Pattern {
    /// Reads a pattern as a mapping writes it.
    ///
    /// # Errors
    ///
    /// A regular expression between slashes that does not compile.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let wrong = |problem: &str| PatternError {
            pattern: text.to_owned(),
            problem: problem.to_owned(),
        };
        let error = |source: regex::Error| wrong(&source.to_string());
        if text.is_empty() {
            return Err(wrong("it is empty: `*` names every class"));
        }
        if let Some(rest) = text.strip_prefix('/') {
            let inner = rest
                .strip_suffix('/')
                .ok_or_else(|| wrong("the closing `/` is missing"))?;
            return Regex::new(inner).map(Self::Regex).map_err(error);
        }
        // A leading backslash is a habit from PHP source; names on the wire have none.
        let text = text.strip_prefix('\\').unwrap_or(text);
        if !text.contains(['*', '?']) {
            return Ok(Self::Exact(text.into()));
        }
        let body = text.chars().fold(String::from("(?is)^"), |mut regex, c| {
            match c {
                '*' => regex.push_str(".*"),
                '?' => regex.push('.'),
                c => regex.push_str(&regex::escape(c.encode_utf8(&mut [0; 4]))),
            }
            regex
        });
        Regex::new(&(body + "$")).map(Self::Regex).map_err(error)
    }

    /// True if the pattern names this class.
    pub fn matches(&self, class: &str) -> bool {
        match self {
            Self::Exact(name) => name.eq_ignore_ascii_case(class),
            Self::Regex(regex) => regex.is_match(class),
        }
    }
}

/// What a mapping does with its jobs, before names were looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerChoice {
    /// A handler of the registry.
    Named(String),
    /// A program and its arguments.
    Exec(Vec<String>),
    /// Moved to another queue.
    Forward(QueueName),
}

/// One mapping of `artisand.toml`.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// Which job classes.
    pub job: Pattern,
    /// What runs them.
    pub handler: HandlerChoice,
    /// Most of these running at once, beside the worker's own limit.
    pub concurrency: Option<NonZeroUsize>,
    /// Middleware inside that of the handler.
    pub middleware: Pipeline,
    /// By what debounced jobs replace each other.
    pub debounce: Option<Debounce>,
}

impl Mapping {
    /// Sends jobs to a handler and nothing else.
    pub fn new(job: Pattern, handler: HandlerChoice) -> Self {
        Self {
            job,
            handler,
            concurrency: None,
            middleware: Pipeline::default(),
            debounce: None,
        }
    }
}

/// A mapping that cannot be carried out.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The name is not registered.
    #[error("no handler `{name}` (there are: {known})")]
    UnknownHandler {
        /// The name as written.
        name: String,
        /// The names there are.
        known: String,
    },
    /// `exec` without a program.
    #[error("`exec` names no program")]
    NoProgram,
    /// Middleware around nothing.
    #[error(
        "jobs that are forwarded are not run here: `middleware` and `debounce` are for the worker that runs them"
    )]
    NothingToRun,
    /// A middleware needs something of the app that is not there.
    #[error("its middleware cannot work")]
    Middleware(#[source] Missing),
}

/// What becomes of jobs that no mapping matches; never lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UnmappedPolicy {
    /// PHP processes of ours run them ([`pool`](super::pool)).
    Php,
    /// They stay in the queue, in order, for PHP workers.
    #[default]
    Leave,
    /// They move to another queue, as they were.
    Forward(QueueName),
    /// They are recorded as failed.
    Fail,
}

/// Where a job goes.
#[derive(Clone)]
pub enum Route {
    /// To this handler.
    Handler {
        /// Position of the mapping.
        mapping: usize,
        /// The handler.
        handler: Arc<dyn Handler>,
        /// What is around it.
        pipeline: Pipeline,
    },
    /// To the end of another queue.
    Forward(QueueName),
    /// Nobody is responsible: the policy for unmapped jobs holds.
    Unmapped,
}

impl fmt::Debug for Route {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Handler { mapping, .. } => write!(f, "Handler(mapping {mapping})"),
            Self::Forward(queue) => write!(f, "Forward({queue})"),
            Self::Unmapped => f.write_str("Unmapped"),
        }
    }
}

/// Mappings with their handlers found: the first that matches wins.
pub struct Router {
    mappings: Vec<(Mapping, Route)>,
    /// What to do with the rest.
    unmapped: UnmappedPolicy,
    /// Routes of classes seen before; classes are few.
    known: RwLock<HashMap<Box<str>, Route>>,
}

/// Most classes remembered: names come from payloads, which are not trusted.
const MAX_KNOWN: usize = 4096;

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("mappings", &self.mappings)
            .field("unmapped", &self.unmapped)
            .finish_non_exhaustive()
    }
}

impl Router {
    /// Looks up the handlers of all mappings.
    ///
    /// # Errors
    ///
    /// The position of the mapping and what is wrong with it.
    pub fn new(
        mappings: Vec<Mapping>,
        unmapped: UnmappedPolicy,
        registry: &Registry,
    ) -> Result<Self, (usize, MappingError)> {
        let mut routed = Vec::with_capacity(mappings.len());
        for (position, mapping) in mappings.into_iter().enumerate() {
            let run = |handler: Arc<dyn Handler>| {
                let own = handler.middleware();
                let pipeline = own.iter().chain(mapping.middleware.iter());
                Route::Handler {
                    mapping: position,
                    pipeline: pipeline.cloned().collect(),
                    handler,
                }
            };
            let route = match &mapping.handler {
                HandlerChoice::Named(name) => {
                    let Some(handler) = registry.get(name) else {
                        let known = registry.names().join(", ");
                        return Err((
                            position,
                            MappingError::UnknownHandler {
                                name: name.clone(),
                                known,
                            },
                        ));
                    };
                    run(Arc::clone(handler))
                }
                HandlerChoice::Exec(command) => {
                    let Some((program, args)) = command
                        .split_first()
                        .filter(|(program, _)| !program.is_empty())
                    else {
                        return Err((position, MappingError::NoProgram));
                    };
                    run(Arc::new(Exec::new(program, args.iter().cloned())))
                }
                HandlerChoice::Forward(_)
                    if !mapping.middleware.is_empty() || mapping.debounce.is_some() =>
                {
                    return Err((position, MappingError::NothingToRun));
                }
                HandlerChoice::Forward(queue) => Route::Forward(queue.clone()),
            };
            routed.push((mapping, route));
        }
        Ok(Self {
            mappings: routed,
            unmapped,
            known: RwLock::default(),
        })
    }

    /// Says of which mapping the middleware needs something of the app that is not there.
    ///
    /// # Errors
    ///
    /// The position of the mapping and what is missing.
    pub fn check(&self, services: &Services) -> Result<(), (usize, MappingError)> {
        for (position, (mapping, route)) in self.mappings.iter().enumerate() {
            let Route::Handler { pipeline, .. } = route else {
                continue;
            };
            let debounce = || match mapping.debounce {
                Some(_) => services.cache().map(drop),
                None => Ok(()),
            };
            let checked = pipeline.check(services).and_then(|()| debounce());
            checked.map_err(|missing| (position, MappingError::Middleware(missing)))?;
        }
        Ok(())
    }

    /// Whether a handler runs jobs of this class.
    pub fn runs(&self, class: &str) -> bool {
        self.has_middleware(class).is_some()
    }

    /// Whether there is middleware around the jobs of this class, by code or mapping; `None` if no handler runs them.
    pub fn has_middleware(&self, class: &str) -> Option<bool> {
        let found = self
            .mappings
            .iter()
            .find(|(mapping, _)| mapping.job.matches(class));
        match found {
            Some((_, Route::Handler { pipeline, .. })) => Some(!pipeline.is_empty()),
            _ => None,
        }
    }

    /// The mappings, in order.
    pub fn mappings(&self) -> impl ExactSizeIterator<Item = &Mapping> {
        self.mappings.iter().map(|(mapping, _)| mapping)
    }

    /// By what debounced jobs of a mapping replace each other.
    pub(crate) fn debounce(&self, mapping: usize) -> Option<&Debounce> {
        self.mappings.get(mapping)?.0.debounce.as_ref()
    }

    /// Queues that jobs are forwarded to.
    pub fn forward_targets(&self) -> impl Iterator<Item = &QueueName> {
        let mapped = self.mappings.iter().filter_map(|(_, route)| match route {
            Route::Forward(queue) => Some(queue),
            _ => None,
        });
        let unmapped = match &self.unmapped {
            UnmappedPolicy::Forward(queue) => Some(queue),
            UnmappedPolicy::Php | UnmappedPolicy::Leave | UnmappedPolicy::Fail => None,
        };
        mapped.chain(unmapped)
    }

    /// What becomes of jobs that no mapping matches.
    pub fn unmapped(&self) -> &UnmappedPolicy {
        &self.unmapped
    }

    /// Where a job of this target goes.
    pub fn route(&self, target: &Target) -> Route {
        // Mappings of this version name job classes; every other kind is somebody else's.
        if target.kind() != Kind::Job {
            return Route::Unmapped;
        }
        let class = target.name();
        if let Some(route) = self
            .known
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(class)
        {
            return route.clone();
        }
        let found = self
            .mappings
            .iter()
            .find(|(mapping, _)| mapping.job.matches(class));
        let route = found.map_or(Route::Unmapped, |(_, route)| route.clone());
        let mut known = self.known.write().unwrap_or_else(PoisonError::into_inner);
        if known.len() < MAX_KNOWN {
            known.insert(class.into(), route.clone());
        }
        route
    }

    /// Classes known to be taken without limit: those of exact mappings, and those seen.
    pub fn unlimited_classes(&self) -> Vec<String> {
        let is_unlimited = |route: &Route| match route {
            Route::Handler { mapping, .. } => self.mappings[*mapping].0.concurrency.is_none(),
            Route::Forward(_) => true,
            Route::Unmapped => false,
        };
        let known = self.known.read().unwrap_or_else(PoisonError::into_inner);
        let mut classes: Vec<String> = known
            .iter()
            .filter(|(_, route)| is_unlimited(route))
            .map(|(class, _)| class.to_string())
            .collect();
        drop(known);
        for (position, (mapping, route)) in self.mappings.iter().enumerate() {
            if let Pattern::Exact(class) = &mapping.job
                && is_unlimited(route)
                && self.mappings[..position]
                    .iter()
                    .all(|(before, _)| !before.job.matches(class))
            {
                classes.push(class.to_string());
            }
        }
        classes.sort();
        classes.dedup();
        classes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::php::ClassName;

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
    fn the_first_mapping_that_matches_wins() {
        let mapping = |job: &str, handler: &str, concurrency| Mapping {
            concurrency: NonZeroUsize::new(concurrency),
            ..Mapping::new(
                Pattern::parse(job).unwrap(),
                HandlerChoice::Named(handler.into()),
            )
        };
        let mappings = vec![
            mapping(r"A\B", "log", 0),
            mapping(r"A\*", "discard", 2),
            mapping(r"A\C", "log", 0),
            mapping(r"D", "log", 0),
        ];
        let router = Router::new(mappings, UnmappedPolicy::Leave, &Registry::new()).unwrap();
        let route = |class: &str| match router.route(&Target::Job {
            class: ClassName::new(class).unwrap(),
        }) {
            Route::Handler { mapping, .. } => Some(mapping),
            _ => None,
        };
        assert_eq!(
            [route(r"A\B"), route(r"a\c"), route("E"), route("E")],
            [Some(0), Some(1), None, None]
        );
        assert!(matches!(router.route(&Target::Closure), Route::Unmapped));
        assert_eq!(router.unlimited_classes(), [r"A\B", "D"]);
        let unknown = Router::new(
            vec![mapping("X", "nope", 0)],
            UnmappedPolicy::Leave,
            &Registry::new(),
        );
        assert_eq!(
            unknown.unwrap_err().1.to_string(),
            "no handler `nope` (there are: discard, log)"
        );
    }
}
