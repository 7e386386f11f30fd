//! Decides where a job goes: to a handler here, to PHP, to another queue, or to the policy for unmapped jobs.
//!
//! The answer travels with the job until it is settled: its parsed payload, and for a job that runs here the
//! handler, its middleware, and what its end will bring about. Once the job's task has begun, nothing parses,
//! decrypts or routes it again.
//!
//! artisand does not run a job that has a mapping if it could not handle the job's end, or if only PHP has a
//! middleware of the job. Such a job counts as unmapped, and a [`Refusal`] says why.

use std::collections::HashSet;
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio_util::sync::CancellationToken;

use crate::handler::{Handler, JobContext, JobInfo, Pipeline, panic_text};
use crate::middleware::in_payload;
use crate::payload::{Command, JobUuid, Kind, Payload, Target};
use crate::php::{self, ClassName};
use crate::queue::QueueName;
use crate::routing::{Mode, OnMismatch, Route, UnmappedPolicy};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;
use crate::worker::completion::Completion;
use crate::worker::completion::refusal::Refusal;
use crate::worker::stats::MappingStats;
use crate::worker::triaged::{Bypass, BypassReason, Candidate, Routed, TriageResult, Triaged};

/// Everything that decides where a job goes and what its end brings about.
pub(crate) struct Triage {
    pub(super) app: Arc<AppContext>,
    pub(super) stats: MappingStats,
    /// Classes whose payloads named one class outside and held another inside: the prefilter skips them.
    inspect_always: Mutex<HashSet<Box<str>>>,
    /// What was already logged about classes whose jobs are not run here.
    reported: Mutex<HashSet<Box<str>>>,
}

impl Triage {
    pub(super) fn new(app: Arc<AppContext>) -> Self {
        Self {
            stats: MappingStats::new(&app.router),
            app,
            inspect_always: Mutex::default(),
            reported: Mutex::default(),
        }
    }

    /// Reads a payload and decides where its job goes. The reason why a mapped job is not run here is logged once.
    ///
    /// # Errors
    ///
    /// The payload cannot be decoded.
    pub(super) fn triage(&self, payload: &[u8], queue: &QueueName) -> TriageResult {
        let candidate = self.of(Payload::parse(payload)?, queue);
        let payload = &*candidate.payload;
        match &candidate.triaged {
            Triaged::Unmapped(Some(refusal)) => self.warn_of_refusal(payload, refusal),
            Triaged::Bypass(bypass) => {
                if let BypassReason::Mismatch(why) = &bypass.reason {
                    self.warn_of_mismatch(payload, why);
                }
            }
            _ => {}
        }
        Ok(candidate)
    }

    /// Decides where the job of a payload goes. Decrypts its command if a handler is to run it.
    pub(super) fn of(&self, mut payload: Payload, queue: &QueueName) -> Candidate {
        let found = self.route(&mut payload);
        let payload = Arc::new(payload);
        let triaged = match found {
            Ok(RouteFound::Mapped(route)) => self.admit(&payload, queue, route),
            Ok(RouteFound::Elsewhere(triaged)) => Ok(triaged),
            Err(refusal) => Err(refusal),
        };
        let triaged = triaged.unwrap_or_else(|refusal| Triaged::Unmapped(Some(refusal)));
        Candidate { payload, triaged }
    }

    fn route(&self, payload: &mut Payload) -> Result<RouteFound, Refusal> {
        let router = &self.app.router;
        // What the class outside an encrypted command has led to.
        let mut outside = None;
        if payload.is_encrypted() {
            // The class outside says whether decrypting is worthwhile. For a wrapper it does not say what is
            // wrapped: the displayed name is the app's choice.
            match Target::of(payload) {
                Ok(target) => match router.route(&target) {
                    route @ Route::Handler { .. } => outside = Some((target, route)),
                    elsewhere => return Ok(elsewhere.into()),
                },
                Err(_) if self.may_be_mapped(payload) => {}
                Err(_) => return Ok(Route::Unmapped.into()),
            }
            self.decrypt(payload)?;
        }
        let (Ok(target), Ok(_)) = (Target::of(payload), Command::of(payload)) else {
            return Ok(Route::Unmapped.into());
        };
        Ok(match outside {
            Some((named, route)) if named == target => route,
            _ => router.route(&target),
        }
        .into())
    }

    /// Whether a job that has a handler goes to it.
    fn admit(
        &self,
        payload: &Arc<Payload>,
        queue: &QueueName,
        route: MappedRoute,
    ) -> Result<Triaged, Refusal> {
        let MappedRoute {
            mapping,
            handler,
            pipeline,
        } = route;
        let bypass = |handler, pipeline, reason| {
            Ok(Triaged::Bypass(Box::new(Bypass {
                mapping,
                handler,
                pipeline,
                reason,
            })))
        };
        if let Some(reason) = self.left_to_others(payload, mapping) {
            return bypass(handler, pipeline, reason);
        }
        let (around, mut completion) = self.fit(payload, queue, mapping, &pipeline)?;
        if let Some(why) = self.mismatch(payload, queue, mapping, &*handler) {
            return bypass(handler, pipeline, BypassReason::Mismatch(why));
        }
        completion.telling = self.app.router.telling(Some(mapping));
        Ok(Triaged::Run(Box::new(Routed {
            mapping,
            handler,
            pipeline: around,
            completion,
        })))
    }

    /// The middleware of a job and what its end will bring about.
    ///
    /// # Errors
    ///
    /// It cannot be run here.
    pub(super) fn fit(
        &self,
        payload: &Payload,
        queue: &QueueName,
        mapping: usize,
        pipeline: &Pipeline,
    ) -> Result<(Pipeline, Completion), Refusal> {
        let completion = Completion::of(&self.app, payload, queue, Some(mapping))?;
        self.check_counting(payload)?;
        let around = self.around(payload, mapping, pipeline)?;
        Ok((around, completion))
    }

    /// Refuses a job that limits its exceptions if they could not be added to those that PHP has counted.
    fn check_counting(&self, payload: &Payload) -> Result<(), Refusal> {
        let (Some(_), Some(stores)) = (payload.limits.max_exceptions, &self.app.services.stores)
        else {
            return Ok(());
        };
        let why = match stores.get(stores.default_name()) {
            Ok(cache) if cache.is_shared() => return Ok(()),
            Ok(_) => "no other process sees it; use redis, database or file".to_owned(),
            Err(error) => with_causes(&error),
        };
        Err(Refusal::new(format!(
            "it has `maxExceptions`, which are counted in the default cache store: {why}"
        )))
    }

    /// The mapping's pipeline plus the middleware that the job's own bytes ask for.
    fn around(
        &self,
        payload: &Payload,
        mapping: usize,
        pipeline: &Pipeline,
    ) -> Result<Pipeline, Refusal> {
        let command = Command::of(payload).map_err(|error| Refusal::new(with_causes(&error)))?;
        let Some(command) = command else {
            return Ok(pipeline.clone());
        };
        let debounce = self.app.router.debounce(mapping);
        in_payload(&command, pipeline, debounce, &self.app.services)
            .map_err(|why| Refusal::new(why.to_string()))
    }

    /// Why a job does not fit its handler's input; `None` if it fits or its mapping does not send such jobs to
    /// PHP.
    fn mismatch(
        &self,
        payload: &Arc<Payload>,
        queue: &QueueName,
        mapping: usize,
        handler: &dyn Handler,
    ) -> Option<String> {
        let falls_back = self.app.router.mapping(mapping)?.on_mismatch == OnMismatch::Php;
        if !falls_back {
            return None;
        }
        self.check_input(payload, queue, handler).err()
    }

    /// Reads the input of a job as its handler would.
    ///
    /// # Errors
    ///
    /// The input does not fit; the text says why.
    pub(super) fn check_input(
        &self,
        payload: &Arc<Payload>,
        queue: &QueueName,
        handler: &dyn Handler,
    ) -> Result<(), String> {
        let info = JobInfo {
            connection: self.app.connection.clone(),
            queue: queue.clone(),
            attempts: payload.attempts.unwrap_or(0).saturating_add(1),
            payload: Arc::clone(payload),
            // The payload is checked before the pop, too.
            body: Arc::default(),
            reserved: Arc::default(),
            trace: None,
        };
        let services = Arc::clone(&self.app.services);
        let context = JobContext::new(Arc::new(info), CancellationToken::new(), services);
        check_input(handler, &context)
    }

    /// Why a mapping leaves a job to PHP that it could run.
    fn left_to_others(&self, payload: &Payload, position: usize) -> Option<BypassReason> {
        let mapping = self.app.router.mapping(position)?;
        if mapping.mode == Mode::Shadow {
            return Some(BypassReason::Shadow);
        }
        let is_left_out = mapping.canary.is_some_and(|canary| !canary.takes(payload))
            || self.stats.is_stopped(position);
        is_left_out.then_some(BypassReason::Canary)
    }

    /// Whether the content of an encrypted wrapper may have a mapping.
    fn may_be_mapped(&self, payload: &Payload) -> bool {
        let class = payload.command_name().and_then(ClassName::new);
        class.is_some_and(|class| self.app.router.maps(Kind::of_class(&class)))
    }

    /// Replaces the encrypted command of a payload by the plain one.
    fn decrypt(&self, payload: &mut Payload) -> Result<(), Refusal> {
        let Some(encrypter) = &self.app.services.encrypter else {
            let why = self.app.services.encrypter_missing.as_deref();
            let why = why.unwrap_or("the worker was not given the app's key");
            return Err(Refusal::unread(why.to_owned()));
        };
        payload.decrypt(encrypter).map_err(|error| {
            let remedy = if self.app.services.version.is_at_least(11, 0) {
                "if APP_KEY was changed, put the old key into APP_PREVIOUS_KEYS".to_owned()
            } else {
                let version = self.app.services.version;
                format!(
                    "Laravel {version} reads the current key only: if APP_KEY was changed, change it back until such jobs are done"
                )
            };
            Refusal::unread(format!("{}; {remedy}", with_causes(&error)))
        })
    }

    /// Whether handlers here leave unmapped jobs in the queue.
    pub(super) fn leaves_unmapped(&self) -> bool {
        matches!(
            self.app.router.unmapped(),
            UnmappedPolicy::Leave | UnmappedPolicy::Php
        )
    }

    /// Whether any mapping has a limit of its own.
    pub(super) fn has_limited_mappings(&self) -> bool {
        let mut mappings = self.app.router.mappings();
        mappings.any(|mapping| mapping.concurrency.is_some())
    }

    /// Whether a mapping has a limit of its own.
    pub(super) fn is_limited(&self, mapping: usize) -> bool {
        let mapping = self.app.router.mapping(mapping);
        mapping.is_some_and(|mapping| mapping.concurrency.is_some())
    }

    /// The prefilter of a selecting pop: a payload that holds one of these texts surely is for a handler here.
    pub(super) fn needles(&self) -> Vec<Vec<u8>> {
        let inspect_always = lock(&self.inspect_always);
        let classes = self.app.router.unlimited_classes();
        classes
            .iter()
            .filter(|class| !inspect_always.contains(class.as_str()))
            .map(|class| needle(class))
            .collect()
    }

    /// Notes a job that the prefilter took although it is not for a handler here: it names one class outside and
    /// holds another inside.
    pub(super) fn inspect_from_now_on(&self, payload: &[u8]) {
        let mut classes = self.app.router.unlimited_classes();
        classes.retain(|class| memchr::memmem::find(payload, &needle(class)).is_some());
        for class in classes {
            tracing::warn!(
                class,
                "a reserved job of this class cannot run here: its jobs are now read before they are reserved"
            );
            lock(&self.inspect_always).insert(class.into());
        }
    }

    /// Logs once for each class and reason why jobs are not run here.
    fn warn_of_refusal(&self, payload: &Payload, refusal: &Refusal) {
        let class = payload.command_name().unwrap_or_default();
        // A wrapper's class would not identify the job.
        let is_wrapper =
            ClassName::new(class).is_some_and(|class| Kind::of_class(&class) != Kind::Job);
        let class = &*if is_wrapper {
            payload.shown_name()
        } else {
            crate::shown::name(class)
        };
        if self.report_once(&format!("{class}: {refusal}")) {
            tracing::warn!(
                job.class = class,
                why = refusal.to_string(),
                "jobs of a class have a handler and cannot be run here: they count as unmapped"
            );
        }
    }

    /// Logs once for each class that a job does not fit; later reasons are not logged.
    fn warn_of_mismatch(&self, payload: &Payload, why: &str) {
        let class = &*payload.shown_name();
        if self.report_once(&format!("{class} does not fit")) {
            tracing::warn!(
                job.uuid = payload.uuid.as_ref().map(JobUuid::bounded),
                job.class = class,
                why,
                "a job does not fit its handler's input and goes the way of unmapped jobs (`on_mismatch`); \
                 logged once for each class"
            );
        }
    }

    /// Remembers a log line about a class; true if it is new.
    fn report_once(&self, class_and_why: &str) -> bool {
        /// Limits the memory: names come from payloads, which are not trusted.
        const MOST: usize = 1000;
        let mut reported = lock(&self.reported);
        reported.len() < MOST && reported.insert(class_and_why.into())
    }
}

/// Reads the input of a job as its handler would; a panic of the app's code counts as an error.
///
/// # Errors
///
/// The input does not fit; the text says why.
pub(super) fn check_input(handler: &dyn Handler, context: &JobContext) -> Result<(), String> {
    let check = AssertUnwindSafe(|| handler.check(context));
    match std::panic::catch_unwind(check) {
        Ok(read) => read.map_err(|error| with_causes(&*error)),
        Err(panic) => Err(format!("reading it panicked: {}", panic_text(&*panic))),
    }
}

/// What the mappings say about a target.
enum RouteFound {
    Mapped(MappedRoute),
    Elsewhere(Triaged),
}

/// The mapping that runs jobs of a target.
struct MappedRoute {
    mapping: usize,
    handler: Arc<dyn Handler>,
    pipeline: Pipeline,
}

impl From<Route> for RouteFound {
    fn from(route: Route) -> Self {
        match route {
            Route::Handler {
                mapping,
                handler,
                pipeline,
            } => Self::Mapped(MappedRoute {
                mapping,
                handler,
                pipeline,
            }),
            Route::Forward(to) => Self::Elsewhere(Triaged::Forward(to)),
            Route::Unmapped => Self::Elsewhere(Triaged::Unmapped(None)),
        }
    }
}

/// The text that Laravel writes into a payload of this class with a plain command.
fn needle(class: &str) -> Vec<u8> {
    let class = serde_json::to_string(class).expect("text is always JSON");
    let object = php::OBJECT;
    format!("\"commandName\":{class},\"command\":\"{object}").into_bytes()
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests;
