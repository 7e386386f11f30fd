//! Handlers by name, mappings by class, and the routing of jobs to handlers.

use std::collections::{BTreeSet, HashMap};
use std::fmt::{self, Write as _};
use std::num::NonZeroUsize;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::Deserialize;

use super::builtin::{Discard, Log};
use super::canary::Canary;
use super::dispatched::DispatchedType;
use crate::handler::{Handler, Missing, Pipeline, Services, panic_text};
#[cfg(feature = "http")]
use crate::handler::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
use crate::middleware::Debounce;
use crate::payload::{Kind, Target};
use crate::payload::{Pattern, TargetPattern};
use crate::php::ClassName;
use crate::process::{Environment, Exec, ExecOptions, Persistent, PersistentOptions};
use crate::queue::QueueName;

/// Handlers by the names that mappings use. `discard` and `log` are always registered.
#[derive(Clone)]
pub struct Registry {
    handlers: HashMap<String, Arc<dyn Handler>>,
    dispatches: Vec<DispatchedType>,
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
            dispatches: Vec::new(),
        }
        .with("discard", Discard)
        .with("log", Log)
    }

    /// Adds a handler, replacing one of the same name.
    #[must_use]
    pub fn with(mut self, name: impl Into<String>, handler: impl Handler) -> Self {
        self.handlers.insert(name.into(), Arc::new(handler));
        self
    }

    /// Says that handlers dispatch structs of this type ([`JobContext::then`](crate::JobContext::then)): a worker does
    /// not start if they do not fit their class, and `doctor` says so.
    #[must_use]
    pub fn dispatches<'de, T: Deserialize<'de>>(mut self) -> Self {
        self.dispatches.push(DispatchedType::of::<T>());
        self
    }

    /// The types that handlers dispatch.
    pub(crate) fn dispatched_types(&self) -> &[DispatchedType] {
        &self.dispatches
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

/// The handler of a mapping, before names are looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum HandlerChoice {
    /// A handler from the registry.
    Named(String),
    /// A new program for each job.
    Exec(ExecOptions),
    /// Long-lived programs that run one job after the other.
    Persistent(PersistentOptions),
    /// A URL to which jobs are posted.
    #[cfg(feature = "http")]
    Http(HttpOptions),
    /// Jobs move to another queue.
    Forward(QueueName),
}

/// What runs a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Runner {
    /// A handler of this process.
    Rust,
    /// A program.
    Exec,
    /// A server that jobs are posted to.
    Http,
    /// A PHP process with the app.
    Php,
    /// Nothing: the job failed before it ran.
    None,
}

impl Runner {
    /// A word for figures and records.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Rust => "rust",
            Self::Exec => "exec",
            Self::Http => "http",
            Self::Php => "php",
            Self::None => "none",
        }
    }
}

impl HandlerChoice {
    /// What runs the jobs.
    pub(crate) fn runner(&self) -> Runner {
        match self {
            Self::Named(_) => Runner::Rust,
            Self::Exec(_) | Self::Persistent(_) => Runner::Exec,
            #[cfg(feature = "http")]
            Self::Http(_) => Runner::Http,
            Self::Forward(_) => Runner::None,
        }
    }

    /// Variables of this process that the mapping names; most are secrets.
    pub(crate) fn variables(&self) -> Vec<String> {
        let passed = |environment: &Environment| {
            let passed = environment.pass.iter().flatten();
            passed.cloned().collect()
        };
        match self {
            Self::Named(_) | Self::Forward(_) => Vec::new(),
            Self::Exec(options) => passed(&options.environment),
            Self::Persistent(options) => passed(&options.environment),
            #[cfg(feature = "http")]
            Self::Http(options) => {
                let secret = match &options.secret {
                    Some(SecretSource::Env(variable)) => Some(variable),
                    Some(SecretSource::File(_)) | None => None,
                };
                let headers = options.headers_env.values();
                headers.chain(secret).cloned().collect()
            }
        }
    }

    /// Withholds from the mapping's programs the variables that other mappings name.
    fn withhold(&mut self, variables: &BTreeSet<String>) {
        if let Some(environment) = self.environment() {
            environment.others.clone_from(variables);
        }
    }

    /// What the mapping's programs get; `None` if it has none.
    pub(crate) fn environment(&mut self) -> Option<&mut Environment> {
        match self {
            Self::Exec(options) => Some(&mut options.environment),
            Self::Persistent(options) => Some(&mut options.environment),
            _ => None,
        }
    }
}

impl fmt::Display for HandlerChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Named(name) => write!(f, "handler `{name}`"),
            Self::Exec(options) => write!(f, "exec {}", options.command.join(" ")),
            Self::Persistent(options) => {
                write!(f, "persistent exec {}", options.command.join(" "))
            }
            #[cfg(feature = "http")]
            Self::Http(options) => write!(f, "http {}", options.shown_url()),
            Self::Forward(queue) => write!(f, "forwarded to `{queue}`"),
        }
    }
}

/// One mapping of `artisand.toml`.
#[derive(Debug, Clone)]
pub struct Mapping {
    /// The jobs that the mapping matches.
    pub target: TargetPattern,
    /// The handler that runs them.
    pub handler: HandlerChoice,
    /// Most of these jobs at once, in addition to the worker's own limit.
    pub concurrency: Option<NonZeroUsize>,
    /// Middleware that runs inside the handler's own.
    pub middleware: Pipeline,
    /// The id by which debounced jobs replace each other.
    pub debounce: Option<Debounce>,
    /// The share of jobs that the handler runs, all if `None`. The rest is treated as unmapped.
    pub canary: Option<Canary>,
    /// Whether the handler runs jobs, or only observes jobs that PHP runs.
    pub mode: Mode,
    /// What happens to a job whose payload does not fit the handler's input.
    pub on_mismatch: OnMismatch,
    /// Where `failed()` of its jobs' classes runs.
    pub failed: FailedHook,
    /// Laravel's events that PHP raises for its jobs; `None` for those of the router.
    pub events: Option<PhpEvents>,
    /// Whether its classes are not unique, where nothing else says it: no lock is freed then.
    pub is_never_unique: bool,
}

/// Where `failed()` of a class runs when a job has failed in a handler.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum FailedHook {
    /// In PHP, unless the handler has a hook of its own.
    #[default]
    Php,
    /// Nowhere but in the handler's hook.
    Rust,
}

/// Which of Laravel's queue events PHP raises for jobs that run in handlers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PhpEvents {
    /// None.
    #[default]
    None,
    /// `JobFailed`.
    Failures,
    /// All that Laravel's worker raises for a job.
    All,
}

/// What PHP is told of a job that runs, or fails, here.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Telling {
    /// `failed()` of its class is called.
    pub(crate) calls_failed: bool,
    /// `JobFailed` is raised.
    pub(crate) raises_event: bool,
    /// All other events are raised, too.
    pub(crate) raises_all: bool,
}

/// What happens to a job whose payload does not fit the handler's input.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum OnMismatch {
    /// The attempt ends with an exception, as if the handler had thrown it.
    #[default]
    Exception,
    /// The job is treated as unmapped, and no attempt begins.
    Php,
}

/// How a mapping's handler treats jobs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Mode {
    /// The handler runs them.
    #[default]
    Run,
    /// Jobs are treated as unmapped; their input is read, and compared if the handler supports that.
    Shadow,
}

impl Mapping {
    /// Sends jobs to a handler, without any other setting.
    pub fn new(target: impl Into<TargetPattern>, handler: HandlerChoice) -> Self {
        Self {
            target: target.into(),
            handler,
            concurrency: None,
            middleware: Pipeline::default(),
            debounce: None,
            canary: None,
            mode: Mode::Run,
            failed: FailedHook::Php,
            events: None,
            on_mismatch: OnMismatch::Exception,
            is_never_unique: false,
        }
    }

    /// Whether some or all of its jobs may be treated as unmapped.
    pub(crate) fn is_partial(&self) -> bool {
        self.canary.is_some() || self.mode == Mode::Shadow || self.on_mismatch == OnMismatch::Php
    }
}

/// A mapping that is not valid.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MappingError {
    /// The name is not registered.
    #[error("no handler `{name}` (there are: {known})")]
    UnknownHandler {
        /// The name as written.
        name: String,
        /// The registered names.
        known: String,
    },
    /// The name belonged to a built-in handler that no longer exists.
    #[error(
        "no handler `broadcast`: only PHP broadcasts events. Delete this mapping to leave its jobs to PHP (`policy = \"php\"` under [unmapped]), or name a handler of your own"
    )]
    NoBroadcaster,
    /// `exec` names no program.
    #[error("`exec` names no program")]
    NoProgram,
    /// The URL cannot be used.
    #[cfg(feature = "http")]
    #[error(transparent)]
    Http(#[from] HttpSetupError),
    /// Middleware on jobs that are forwarded, so that no handler runs here.
    #[error(
        "jobs that are forwarded are not run here: `middleware` and `debounce` are for the worker that runs them"
    )]
    NothingToRun,
    /// `canary` leaves jobs to an unmapped policy of `fail`, so that no process runs them.
    #[error(
        "`canary` leaves the rest of its jobs to the policy for unmapped jobs, which is `fail`: use `php`, `leave` or `forward`"
    )]
    CanaryFails,
    /// `on_mismatch` leaves jobs to an unmapped policy of `fail`, so that no process runs them.
    #[error(
        "`on_mismatch = \"php\"` leaves jobs that do not fit to the policy for unmapped jobs, which is `fail`: use `php`, `leave` or `forward`"
    )]
    MismatchFails,
    /// Shadow mode with an unmapped policy under which no job passes through this worker.
    #[error(
        "`mode = \"shadow\"` looks at jobs on their way to PHP, and the policy for unmapped jobs is `{policy}`: use `php` or `forward`"
    )]
    NoShadow {
        /// The policy.
        policy: &'static str,
    },
    /// A key for jobs that run here, on a mapping that forwards its jobs.
    #[error("`{key}` is for a handler that runs jobs here, and these are forwarded")]
    Forwarded {
        /// The key.
        key: &'static str,
    },
    /// `canary` together with shadow mode, in which the handler runs no job.
    #[error(
        "`canary` and `mode = \"shadow\"` do not go together: the handler runs none of its jobs"
    )]
    CanaryInShadow,
    /// A middleware needs a service of the app that is missing.
    #[error("its middleware cannot work")]
    Middleware(#[source] Missing),
}

/// What happens to jobs that no mapping matches; they are never lost.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum UnmappedPolicy {
    /// The worker's own PHP processes run them (`process::pool`).
    Php,
    /// The jobs stay in the queue, in order, for PHP workers.
    #[default]
    Leave,
    /// They move unchanged to another queue.
    Forward(QueueName),
    /// The jobs are recorded as failed.
    Fail,
}

/// The destination of a job.
#[derive(Clone)]
pub enum Route {
    /// A handler runs it.
    Handler {
        /// Position of the mapping.
        mapping: usize,
        /// The handler.
        handler: Arc<dyn Handler>,
        /// The middleware around the handler.
        pipeline: Pipeline,
    },
    /// The job moves to the end of another queue.
    Forward(QueueName),
    /// No mapping matches: the policy for unmapped jobs applies.
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

/// Mappings with their handlers resolved: the first matching mapping wins.
pub struct Router {
    mappings: Vec<(Mapping, Route)>,
    /// The policy for jobs that no mapping matches.
    unmapped: UnmappedPolicy,
    /// Laravel's events that PHP raises for jobs whose mapping does not say it.
    events: PhpEvents,
    /// Cached routes of job classes; there are few classes.
    known: RwLock<HashMap<Box<str>, Route>>,
    /// Cached routes of other targets, by everything that patterns look at.
    known_others: RwLock<HashMap<Box<str>, Route>>,
}

fn no_handler(name: &str, registry: &Registry) -> MappingError {
    if name == "broadcast" {
        return MappingError::NoBroadcaster;
    }
    MappingError::UnknownHandler {
        name: name.to_owned(),
        known: registry.names().join(", "),
    }
}

/// How long handlers may take to stop what they keep running.
const STOPPING: Duration = Duration::from_secs(5);

/// The HTTP client that all mappings share, made on first use.
#[cfg(feature = "http")]
#[derive(Default)]
struct Clients(Option<HttpClient>);

#[cfg(feature = "http")]
impl Clients {
    fn handler(&mut self, options: &HttpOptions) -> Result<Http, HttpSetupError> {
        let client = match &self.0 {
            Some(client) => client,
            None => self.0.insert(HttpClient::new()?),
        };
        Http::new(options, client)
    }
}

/// Resolves the handler of the mapping at this position.
fn route(
    position: usize,
    mapping: &Mapping,
    registry: &Registry,
    #[cfg(feature = "http")] clients: &mut Clients,
) -> Result<Route, MappingError> {
    let handler: Arc<dyn Handler> = match &mapping.handler {
        HandlerChoice::Named(name) => {
            let handler = registry
                .get(name)
                .ok_or_else(|| no_handler(name, registry))?;
            Arc::clone(handler)
        }
        HandlerChoice::Exec(options) => {
            Arc::new(Exec::new(options).ok_or(MappingError::NoProgram)?)
        }
        HandlerChoice::Persistent(options) => {
            Arc::new(Persistent::new(options).ok_or(MappingError::NoProgram)?)
        }
        #[cfg(feature = "http")]
        HandlerChoice::Http(options) => Arc::new(clients.handler(options)?),
        HandlerChoice::Forward(_)
            if !mapping.middleware.is_empty() || mapping.debounce.is_some() =>
        {
            return Err(MappingError::NothingToRun);
        }
        HandlerChoice::Forward(queue) => return Ok(Route::Forward(queue.clone())),
    };
    let own = handler.middleware();
    let pipeline = own.iter().chain(mapping.middleware.iter());
    Ok(Route::Handler {
        mapping: position,
        pipeline: pipeline.cloned().collect(),
        handler,
    })
}

/// Most targets cached: names come from payloads, which are not trusted.
const MAX_KNOWN: usize = 4096;
/// Longest name cached.
const MAX_NAME: usize = 1024;

impl fmt::Debug for Router {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Router")
            .field("mappings", &self.mappings)
            .field("unmapped", &self.unmapped)
            .finish_non_exhaustive()
    }
}

impl Router {
    /// Resolves the handlers of all mappings.
    ///
    /// # Errors
    ///
    /// The position of the mapping and the problem.
    pub fn new(
        mappings: Vec<Mapping>,
        unmapped: UnmappedPolicy,
        registry: &Registry,
    ) -> Result<Self, (usize, MappingError)> {
        let mut routed = Vec::with_capacity(mappings.len());
        let variables = mappings
            .iter()
            .flat_map(|mapping| mapping.handler.variables());
        let variables: BTreeSet<String> = variables.collect();
        #[cfg(feature = "http")]
        let mut clients = Clients::default();
        for (position, mut mapping) in mappings.into_iter().enumerate() {
            check_part(&mapping, &unmapped).map_err(|error| (position, error))?;
            mapping.handler.withhold(&variables);
            if let HandlerChoice::Persistent(PersistentOptions {
                processes: Some(processes),
                ..
            }) = &mapping.handler
            {
                // Limit concurrency to the number of programs: another worker may have one free for the job.
                let own = mapping.concurrency.unwrap_or(*processes);
                mapping.concurrency = Some(own.min(*processes));
            }
            let route = route(
                position,
                &mapping,
                registry,
                #[cfg(feature = "http")]
                &mut clients,
            );
            let route = route.map_err(|error| (position, error))?;
            routed.push((mapping, route));
        }
        Ok(Self {
            mappings: routed,
            unmapped,
            events: PhpEvents::None,
            known: RwLock::default(),
            known_others: RwLock::default(),
        })
    }

    /// Lets PHP raise these of Laravel's events for jobs whose mapping does not say it.
    #[must_use]
    pub fn with_events(mut self, events: PhpEvents) -> Self {
        self.events = events;
        self
    }

    /// Whether PHP calls `failed()` of this class when one of its jobs has failed here.
    #[cfg(feature = "cli")]
    pub(crate) fn calls_failed(&self, class: &str) -> bool {
        let mut mappings = self.mappings.iter();
        let found = mappings.position(|(mapping, _)| mapping.target.matches_job(class));
        self.telling(found).calls_failed
    }

    /// What PHP is told of a failed job of this mapping, or of none.
    pub(crate) fn telling(&self, mapping: Option<usize>) -> Telling {
        let found = mapping.and_then(|position| self.mappings.get(position));
        let events = found.and_then(|(mapping, _)| mapping.events);
        let calls_failed = found.is_none_or(|(mapping, route)| {
            let has_hook =
                matches!(route, Route::Handler { handler, .. } if handler.has_failed_hook());
            mapping.failed == FailedHook::Php && !has_hook
        });
        let events = events.unwrap_or(self.events);
        Telling {
            calls_failed,
            raises_event: events != PhpEvents::None,
            raises_all: events == PhpEvents::All,
        }
    }

    /// Whether PHP raises all events for the jobs of any mapping, or of none.
    pub fn raises_all(&self) -> bool {
        let mut mappings = self.mappings.iter();
        self.events == PhpEvents::All
            || mappings.any(|(mapping, _)| mapping.events == Some(PhpEvents::All))
    }

    /// Checks that the middleware of every mapping has the services of the app that it needs.
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
                Some(_) => services.middleware.cache().map(drop),
                None => Ok(()),
            };
            let checked = pipeline.check(services).and_then(|()| debounce());
            checked.map_err(|missing| (position, MappingError::Middleware(missing)))?;
        }
        Ok(())
    }

    /// Stops what handlers keep running; the worker calls it when none of its jobs runs any more.
    pub(crate) async fn stop(&self) {
        let stopping = self.mappings.iter().filter_map(|(_, route)| match route {
            Route::Handler { handler, .. } => Some(async move {
                let stopping = AssertUnwindSafe(async { handler.stop().await }).catch_unwind();
                match tokio::time::timeout(STOPPING, stopping).await {
                    Ok(Ok(())) => {}
                    Ok(Err(panic)) => {
                        tracing::error!(error = panic_text(&*panic), "a handler did not stop");
                    }
                    Err(_) => tracing::error!("a handler did not stop in time"),
                }
            }),
            _ => None,
        });
        futures_util::future::join_all(stopping).await;
    }

    /// Whether a handler runs jobs of this class.
    pub fn runs(&self, class: &str) -> bool {
        self.has_middleware(class).is_some()
    }

    /// Whether middleware runs around jobs of this class, from code or mapping; `None` if no handler runs them.
    ///
    /// Listeners, notifications and mailables carry their class's middleware in
    /// the payload, so they are not looked up here.
    pub fn has_middleware(&self, class: &str) -> Option<bool> {
        let found = self
            .mappings
            .iter()
            .find(|(mapping, _)| mapping.target.matches_job(class));
        match found {
            Some((_, Route::Handler { pipeline, .. })) => Some(!pipeline.is_empty()),
            _ => None,
        }
    }

    /// Whether a mapping matches targets of this kind.
    pub fn maps(&self, kind: Kind) -> bool {
        self.mappings().any(|mapping| mapping.target.kind() == kind)
    }

    /// The mappings, in order.
    pub fn mappings(&self) -> impl ExactSizeIterator<Item = &Mapping> {
        self.mappings.iter().map(|(mapping, _)| mapping)
    }

    /// The mapping at a position.
    pub(crate) fn mapping(&self, position: usize) -> Option<&Mapping> {
        self.mappings.get(position).map(|(mapping, _)| mapping)
    }

    /// The id by which debounced jobs of a mapping replace each other.
    pub(crate) fn debounce(&self, mapping: usize) -> Option<&Debounce> {
        self.mappings.get(mapping)?.0.debounce.as_ref()
    }

    /// The queues to which jobs are forwarded.
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

    /// The policy for jobs that no mapping matches.
    pub fn unmapped(&self) -> &UnmappedPolicy {
        &self.unmapped
    }

    /// The destination of a job with this target.
    pub fn route(&self, target: &Target) -> Route {
        if let Target::Job { class } = target {
            // Look up without copying: most jobs take this path.
            return self.remembered(&self.known, class.as_str(), target);
        }
        if !self.maps(target.kind()) {
            return Route::Unmapped;
        }
        self.remembered(&self.known_others, &memory_key(target), target)
    }

    fn remembered(
        &self,
        known: &RwLock<HashMap<Box<str>, Route>>,
        key: &str,
        target: &Target,
    ) -> Route {
        let seen = known.read().unwrap_or_else(PoisonError::into_inner);
        if let Some(route) = seen.get(key) {
            return route.clone();
        }
        drop(seen);
        let found = self
            .mappings
            .iter()
            .find(|(mapping, _)| mapping.target.matches(target));
        let route = found.map_or(Route::Unmapped, |(_, route)| route.clone());
        if key.len() <= MAX_NAME {
            let mut known = known.write().unwrap_or_else(PoisonError::into_inner);
            if known.len() < MAX_KNOWN {
                known.insert(key.into(), route.clone());
            }
        }
        route
    }

    /// Job classes that are always taken without limit: classes of exact mappings, and classes seen before.
    ///
    /// Wrapper classes are not listed: the wrapped object has to be looked at.
    pub fn unlimited_classes(&self) -> Vec<String> {
        let is_unlimited = |route: &Route| match route {
            Route::Handler { mapping, .. } => {
                let mapping = &self.mappings[*mapping].0;
                mapping.concurrency.is_none() && !mapping.is_partial()
            }
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
            if let TargetPattern::Job(Pattern::Exact(class)) = &mapping.target
                && is_unlimited(route)
                && self.mappings[..position]
                    .iter()
                    .all(|(before, _)| !before.target.matches_job(class))
            {
                classes.push(class.to_string());
            }
        }
        let is_job = |class: &String| {
            let class = ClassName::new(class.as_str());
            class.is_some_and(|class| Kind::of_class(&class) == Kind::Job)
        };
        classes.retain(is_job);
        classes.sort();
        classes.dedup();
        classes
    }
}

/// Checks that jobs that a mapping does not run have a process that runs them.
fn check_part(mapping: &Mapping, unmapped: &UnmappedPolicy) -> Result<(), MappingError> {
    let is_shadow = mapping.mode == Mode::Shadow;
    let falls_back = mapping.on_mismatch == OnMismatch::Php;
    let is_forwarded = matches!(mapping.handler, HandlerChoice::Forward(_));
    match (mapping.canary, unmapped) {
        (Some(_), _) if is_shadow => Err(MappingError::CanaryInShadow),
        (Some(_), _) if is_forwarded => Err(MappingError::Forwarded { key: "canary" }),
        (_, _) if is_shadow && is_forwarded => Err(MappingError::Forwarded { key: "mode" }),
        (_, _) if falls_back && is_forwarded => Err(MappingError::Forwarded { key: "on_mismatch" }),
        (Some(_), UnmappedPolicy::Fail) => Err(MappingError::CanaryFails),
        (_, UnmappedPolicy::Fail) if falls_back => Err(MappingError::MismatchFails),
        (_, UnmappedPolicy::Fail) if is_shadow => Err(MappingError::NoShadow { policy: "fail" }),
        (_, UnmappedPolicy::Leave) if is_shadow => Err(MappingError::NoShadow { policy: "leave" }),
        _ => Ok(()),
    }
}

/// Everything of a target that patterns look at, as one text.
fn memory_key(target: &Target) -> String {
    let parts: [Option<&str>; 3] = match target {
        Target::Listener {
            class,
            method,
            event,
        } => [
            Some(class.as_str()),
            Some(method),
            event.as_ref().map(ClassName::as_str),
        ],
        Target::Notification { class, channel } => [Some(class.as_str()), channel.as_deref(), None],
        Target::String { class, method } => [Some(class), Some(method), None],
        other => [Some(other.name()), None, None],
    };
    // Prefix each part with its length: parts come from payloads, and may hold any character.
    let mut key = target.kind().to_string();
    for part in parts {
        match part {
            Some(part) => {
                let _ = write!(key, " {}:{part}", part.len());
            }
            None => key.push_str(" -"),
        }
    }
    key
}

#[cfg(test)]
mod tests {
    use super::*;

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
        let mut programs = mapping("X", "", 8);
        programs.handler = HandlerChoice::Persistent(PersistentOptions {
            command: vec!["x".into()],
            processes: NonZeroUsize::new(2),
            ..PersistentOptions::default()
        });
        let router = Router::new(vec![programs], UnmappedPolicy::Leave, &Registry::new()).unwrap();
        let concurrency = router.mappings().map(|mapping| mapping.concurrency);
        assert_eq!(concurrency.collect::<Vec<_>>(), [NonZeroUsize::new(2)]);
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

    #[test]
    fn the_first_mapping_wins_over_all_kinds() {
        let mapping =
            |target: TargetPattern| Mapping::new(target, HandlerChoice::Named("log".into()));
        let mappings = vec![
            mapping(TargetPattern::listener("L@handle", Some("E")).unwrap()),
            mapping(TargetPattern::job("*").unwrap()),
            mapping(TargetPattern::listener("L", None).unwrap()),
            mapping(TargetPattern::notification("N", Some("mail")).unwrap()),
            mapping(TargetPattern::notification("N", None).unwrap()),
        ];
        let router = Router::new(mappings, UnmappedPolicy::Leave, &Registry::new()).unwrap();
        let class = |name: &str| ClassName::new(name).unwrap();
        let listener = |method: &str, event: Option<&str>| Target::Listener {
            class: class("L"),
            method: method.into(),
            event: event.map(class),
        };
        let notification = |channel: &str| Target::Notification {
            class: class("N"),
            channel: Some(channel.into()),
        };
        #[rustfmt::skip]
        let rows = [
            (listener("handle", Some("E")), Some(0)),
            (listener("handle", Some("F")), Some(2)),
            (listener("handle", None), Some(2)),
            (listener("other", Some("E")), Some(2)),
            (notification("mail"), Some(3)),
            (notification("sms"), Some(4)),
            (Target::Job { class: class("L") }, Some(1)),
            (Target::Mailable { class: class("L") }, None),
            (Target::Closure, None),
        ];
        // The second lookup of each target comes from the cache.
        for (target, expected) in rows.iter().chain(&rows) {
            let found = match router.route(target) {
                Route::Handler { mapping, .. } => Some(mapping),
                _ => None,
            };
            assert_eq!(found, *expected, "{target:?}");
        }
        assert!(router.runs("L") && router.maps(Kind::Listener) && !router.maps(Kind::Mailable));
    }

    #[test]
    fn a_mapping_says_which_events_php_raises_or_else_the_router_does() {
        use PhpEvents::{All, Failures, None};
        // Of the mapping, of the router => `JobFailed` is raised, and all others are; any mapping wants them all.
        let rows = [
            (Option::None, None, (false, false), false),
            (Option::None, Failures, (true, false), false),
            (Option::None, All, (true, true), true),
            (Some(None), All, (false, false), true),
            (Some(Failures), None, (true, false), false),
            (Some(All), Failures, (true, true), true),
        ];
        for (events, of_router, expected, any) in rows {
            let mapping = Mapping {
                events,
                ..Mapping::new(
                    Pattern::parse("A").unwrap(),
                    HandlerChoice::Named("log".into()),
                )
            };
            let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &Registry::new());
            let router = router.unwrap().with_events(of_router);
            let telling = router.telling(Some(0));
            let told = (telling.raises_event, telling.raises_all);
            assert_eq!(told, expected, "{events:?} {of_router:?}");
            assert_eq!(router.raises_all(), any, "{events:?} {of_router:?}");
        }
    }

    #[test]
    fn a_wrappers_class_says_nothing_about_what_is_in_it() {
        let any = Pattern::parse(r"Illuminate\Events\CallQueuedListener").unwrap();
        let mapping = Mapping::new(any, HandlerChoice::Named("log".into()));
        let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &Registry::new()).unwrap();
        assert_eq!(router.unlimited_classes(), [] as [&str; 0]);
    }
}
