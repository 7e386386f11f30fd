//! What the end of a job brings about: its lock is freed, its chain continues, its batch counts it.
//!
//! Laravel does these one after the other and deletes the job at the end; a crash in between repeats what was
//! done. Here they are one list of [`Effect`]s that happen in one step with the deletion. For work elsewhere (a
//! lock in another store, the counters of a batch, a queue on another server) that step leaves a record, and
//! [`follow_ups`](crate::outbox::follow_ups) does the work right after.
//!
//! The necessary facts are determined before the job runs: a job whose end artisand could not handle is not taken
//! ([`Refusal`]).
//!
//! # Source
//!
//! `Illuminate\Queue\CallQueuedHandler::call`, `failed`;
//! docs/protocol/payload.md 11 and 12.

mod chain;
pub(crate) mod unique;

use std::fmt;

use std::sync::LazyLock;

use memchr::memmem::Finder;

use crate::app::Class;
use crate::batch::{Ended, JobOutcome};
use crate::handler::dispatch::Planned;
use crate::handler::{ChainEdit, FailureText, JobInfo};
use crate::outbox::follow_up::{Count, FollowUp, NO_PHP_QUEUE, random_token};
use crate::outbox::hand_over::{FailureForPhp, HandOver, HandOverError};
use crate::payload::{Chain, Command, JobUuid, Kind, Payload, Version};
use crate::php::ClassName;
use crate::queue::{Effect, Push, QueueName};
use crate::routing::{Telling, UnmappedPolicy};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;
use crate::worker::completion::chain::Place;
use crate::worker::completion::unique::Unique;

/// What the end of one job brings about.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    unique: Option<Unique>,
    batch: Option<Box<str>>,
    chain: Option<Box<Chain>>,
    /// Whether the job is encrypted, so that what PHP gets must be encrypted too.
    is_secret: bool,
    /// A queue that PHP workers serve.
    php_queue: Option<QueueName>,
    /// What PHP is told if the job fails for good.
    pub(crate) telling: Telling,
}

/// Why artisand does not run a job that has a mapping.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Refusal {
    why: String,
    /// Whether the job could not be decrypted.
    is_unread: bool,
}

impl Refusal {
    /// The refusal of a job that can be read.
    pub(crate) fn new(why: impl Into<String>) -> Self {
        Self {
            why: why.into(),
            is_unread: false,
        }
    }

    /// The refusal of a job that cannot be decrypted.
    pub(crate) fn unread(why: String) -> Self {
        Self {
            why,
            is_unread: true,
        }
    }

    /// The failure message for a job of this name.
    pub(crate) fn of(&self, name: &str) -> String {
        let how = if self.is_unread {
            "is encrypted and cannot be read"
        } else {
            "cannot be run here"
        };
        format!("{name} {how}: {self}")
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.why)
    }
}

/// A queue that PHP workers serve, for closures that follow a job of this queue.
fn php_queue(app: &AppContext, queue: &QueueName) -> Option<QueueName> {
    let named = app.services.php_queue.clone();
    named.or_else(|| match app.router.unmapped() {
        UnmappedPolicy::Forward(to) => Some(to.clone()),
        // PHP workers take unmapped jobs from the same queue.
        UnmappedPolicy::Leave | UnmappedPolicy::Php => Some(queue.clone()),
        UnmappedPolicy::Fail => None,
    })
}

/// The chain of a job; `None` if nothing follows, neither after success nor after failure.
fn chain(command: &Command, version: Version) -> Result<Option<Chain>, Refusal> {
    if !has_chain(command.as_bytes()) {
        return Ok(None);
    }
    let chain = Chain::read(command.as_bytes(), version);
    let chain = chain.map_err(|error| Refusal::new(with_causes(&error)))?;
    let is_needed = !chain.is_empty() || chain.catch_callbacks().is_some();
    Ok(is_needed.then_some(chain))
}

/// Whether the class of a job has a method `failed`; `None` if the class is not known.
fn has_failed_method(app: &AppContext, payload: &Payload) -> Option<bool> {
    let manifest = app.services.manifest.as_ref()?;
    let command = payload.command_name().and_then(ClassName::new);
    // Of a wrapper the class inside is asked, whose name the job shows.
    let command = command.filter(|class| Kind::of_class(class) == Kind::Job);
    let class = command.or_else(|| ClassName::new(payload.resolve_name()))?;
    manifest.class(&class).map(Class::has_failed)
}

/// Whether a command may carry a chain; `false` is certain.
fn has_chain(command: &[u8]) -> bool {
    const EMPTY: &[u8] = b"s:7:\"chained\";a:0:{}";
    // Made once: making a searcher takes longer than searching a command.
    static CHAIN: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("chain"));
    static ESCAPED: LazyLock<Finder<'_>> = LazyLock::new(|| Finder::new("S:7:"));
    if CHAIN.find(command).is_none() {
        return ESCAPED.find(command).is_some();
    }
    // Up to Laravel 9.3 every job has the property, mostly empty.
    let chained = memchr::memmem::find_iter(command, b"chained\"").count();
    let empty = memchr::memmem::find_iter(command, EMPTY).count();
    chained > empty
        || memchr::memmem::find(command, b"chainCatchCallbacks\";a:").is_some()
        || ESCAPED.find(command).is_some()
}

/// What follows a failure.
pub(crate) struct OfFailure {
    pub(crate) effects: Vec<Effect>,
    /// Whether one of them lets PHP raise `JobFailed`.
    pub(crate) is_event_raised: bool,
}

impl Completion {
    /// Determines what the end of a job will bring about; the mapping is that of a job that runs here.
    pub(crate) fn of(
        app: &AppContext,
        payload: &Payload,
        queue: &QueueName,
        mapping: Option<usize>,
    ) -> Result<Self, Refusal> {
        let services = &app.services;
        // What does not run here has no lock but one that is known: it fails in any case.
        let is_never_unique = mapping.is_none_or(|position| {
            let mapping = app.router.mapping(position);
            mapping.is_some_and(|mapping| mapping.is_never_unique)
        });
        let Ok(Some(command)) = Command::of(payload) else {
            return Ok(Self::default());
        };
        let batch = command.batch_id();
        let batch = batch.map_err(|error| Refusal::new(with_causes(&error)))?;
        let chain = chain(&command, services.version)?;
        let found = Self {
            unique: Unique::of(services, payload, &command, is_never_unique)
                .map_err(Refusal::new)?,
            batch: batch.map(Into::into),
            is_secret: payload.was_encrypted(),
            php_queue: php_queue(app, queue),
            chain: chain.map(Box::new),
            telling: Telling::default(),
        };
        found.check(app, payload)?;
        Ok(found)
    }

    /// What follows a job that fails without running: its lock is freed and its batch counts it, as far as they
    /// are known.
    pub(crate) fn of_refused(app: &AppContext, info: &JobInfo) -> Self {
        let services = &app.services;
        let command = Command::of(&info.payload).ok().flatten();
        let unique = command.as_ref().and_then(|command| {
            let unique = Unique::of(services, &info.payload, command, false);
            unique.ok().flatten()
        });
        let batch = command.and_then(|command| command.batch_id().ok().flatten());
        Self {
            unique: unique.or_else(|| Unique::rescued(services, &info.body)),
            batch: batch.map(Into::into),
            ..Self::default()
        }
    }

    fn check(&self, app: &AppContext, payload: &Payload) -> Result<(), Refusal> {
        if self.batch.is_some() && payload.uuid.is_none() {
            return Err(Refusal::new("a job of a batch has no uuid"));
        }
        if self.batch.is_none() && self.chain.is_none() {
            return Ok(());
        }
        let Err(why) = self.can_hand_over(app) else {
            return Ok(());
        };
        // Callbacks are PHP code. A step of a chain also needs PHP unless everything about the next class is
        // known.
        let has_callbacks = |chain: &Chain| chain.catch_callbacks().is_some();
        if self.batch.is_some() || self.chain.as_deref().is_some_and(has_callbacks) {
            return Err(Refusal::new(format!(
                "it is in a batch, or in a chain with catch callbacks, which PHP has to run: {why}"
            )));
        }
        let Some(chain) = &self.chain else {
            return Ok(());
        };
        match chain::check(app, chain) {
            Ok(()) => Ok(()),
            Err(missing) => Err(Refusal::new(format!(
                "the next step of its chain needs PHP ({missing}): {why}"
            ))),
        }
    }

    fn hand_over<'a>(&self, app: &'a AppContext, name: &'a str) -> HandOver<'a> {
        HandOver {
            services: &app.services,
            connection: app.connection.as_str(),
            now: app.clock.now(),
            name,
            is_secret: self.is_secret,
            may_be_doubled: !app.ends_in_one_step,
        }
    }

    fn can_hand_over(&self, app: &AppContext) -> Result<(), String> {
        if self.php_queue.is_none() {
            return Err(NO_PHP_QUEUE.to_owned());
        }
        self.can_sign(app)
    }

    fn can_sign(&self, app: &AppContext) -> Result<(), String> {
        // The result is the same for every job.
        let checked = app.can_sign.get_or_init(|| {
            let checked = self.hand_over(app, "").check();
            checked.map_err(|error| with_causes(&error))
        });
        checked.clone()
    }

    /// What follows a job that ended well: it ran, or was skipped on purpose.
    ///
    /// In Laravel's order: lock, chain, batch.
    ///
    /// # Errors
    ///
    /// The next step of the chain cannot be taken, which in Laravel is an exception of the job.
    pub(crate) async fn on_success(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
        then: Vec<Planned>,
    ) -> Result<Vec<Effect>, String> {
        let chain = self.chain_after(app, info, edits)?;
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !unique.until_processing
        {
            effects.extend(Box::pin(unique.free(app)).await);
        }
        if let Some(chain) = &chain {
            effects.extend(Box::pin(self.step(app, info, chain)).await?);
        }
        for job in then {
            let pushed = chain::effect(app, job, info.inherited());
            effects.push(
                Box::pin(pushed)
                    .await
                    .map_err(|error| with_causes(&error))?,
            );
        }
        effects.extend(self.count(app, info, JobOutcome::Succeeded, None));
        Ok(effects)
    }

    /// What follows a job that failed for good.
    pub(crate) async fn on_failure(
        &self,
        app: &AppContext,
        info: &JobInfo,
        failure: &FailureText,
    ) -> OfFailure {
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !unique.until_processing
        {
            effects.extend(Box::pin(unique.free(app)).await);
        }
        let outcome = JobOutcome::Failed;
        effects.extend(self.count(app, info, outcome, Some(&failure.message)));
        let callbacks = self.chain.as_deref().and_then(Chain::catch_callbacks);
        if let Some(callbacks) = callbacks {
            let hand_over = self.hand_over(app, info.payload.resolve_name());
            let payload = hand_over.catches(callbacks, &failure.message, &info.inherited());
            effects.extend(self.push_to_php(payload, "the catch callbacks of a chain", info));
        }
        let told = self.tell_failure(app, info, failure);
        let is_event_raised = told.is_some() && self.telling.raises_event;
        effects.extend(told);
        OfFailure {
            effects,
            is_event_raised,
        }
    }

    /// Lets PHP call `failed()` of the job's class and raise Laravel's event, if there is a reason to.
    fn tell_failure(
        &self,
        app: &AppContext,
        info: &JobInfo,
        failure: &FailureText,
    ) -> Option<Effect> {
        let queue = php_queue(app, &info.queue);
        // Of a class that is not known PHP finds it out, if it is told of the failure anyway.
        let has_failed =
            || has_failed_method(app, &info.payload).unwrap_or(self.telling.raises_event);
        let calls_failed = self.telling.calls_failed && has_failed();
        if !calls_failed && !self.telling.raises_event {
            return None;
        }
        // What is missing was said at the start.
        let queue = queue.filter(|_| self.can_sign(app).is_ok())?;
        let told = FailureForPhp {
            job: info,
            failure,
            calls_failed,
            raises_event: self.telling.raises_event,
        };
        let name = info.payload.resolve_name();
        let hand_over = HandOver {
            is_secret: self.is_secret
                || info.payload.was_encrypted()
                || info.payload.is_encrypted(),
            ..self.hand_over(app, name)
        };
        let payload = hand_over.tells_failure(&told);
        Self::push_to(Some(queue), payload, "the failure of a job", info)
    }

    /// What follows a job that was deleted because one of its models is gone.
    ///
    /// Since Laravel 12.51 the batch counts the job as done; before, the batch waits for it forever.
    pub(crate) async fn on_missing_model(&self, app: &AppContext, info: &JobInfo) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique {
            effects.extend(Box::pin(unique.free(app)).await);
        }
        if app.services.version.is_at_least(12, 51) {
            effects.extend(self.count(app, info, JobOutcome::Succeeded, None));
        }
        effects
    }

    /// What follows a job that deleted itself and then threw: its chain ends, its batch waits.
    ///
    /// Laravel leaves the lock until it expires; artisand frees it, because nothing else would.
    pub(crate) async fn on_deletion(&self, app: &AppContext) -> Vec<Effect> {
        match &self.unique {
            Some(unique) => Box::pin(unique.free(app)).await.into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The lock, if it is freed as soon as the job runs.
    pub(crate) fn lock_until_processing(&self) -> Option<&Unique> {
        self.unique
            .as_ref()
            .filter(|unique| unique.until_processing)
    }

    /// Says why jobs that a handler adds to the chain could not follow.
    pub(crate) fn check_edits(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: &[ChainEdit],
    ) -> Result<(), String> {
        if edits.is_empty() {
            return Ok(());
        }
        let chain = self.edited(app, info, edits.to_vec())?;
        match (chain::check(app, &chain), self.can_hand_over(app)) {
            (Err(missing), Err(why)) => Err(format!(
                "the job added to the chain needs PHP ({missing}): {why}"
            )),
            _ => Ok(()),
        }
    }

    /// The chain after the job; `None` at its end.
    fn chain_after(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Option<Chain>, String> {
        let chain = if edits.is_empty() {
            self.chain.as_deref().cloned()
        } else {
            Some(self.edited(app, info, edits)?)
        };
        Ok(chain.filter(|chain| !chain.is_empty()))
    }

    /// The next step of the chain.
    ///
    /// # Errors
    ///
    /// Neither artisand nor PHP can take it.
    async fn step(
        &self,
        app: &AppContext,
        info: &JobInfo,
        chain: &Chain,
    ) -> Result<Vec<Effect>, String> {
        let place = Place {
            uuid: info.payload.uuid.as_ref().map(JobUuid::as_str),
            inherited: info.inherited(),
        };
        match chain::take(app, chain, &place).await {
            Ok(effect) => Ok(vec![effect]),
            Err(missing) => {
                tracing::debug!(
                    job.uuid = place.uuid,
                    missing = missing.to_string(),
                    "the next step of a chain is left to PHP"
                );
                let payload = self.can_hand_over(app).and_then(|()| {
                    let hand_over = self.hand_over(app, info.payload.resolve_name());
                    let payload = hand_over.goes_on(chain, &place.inherited);
                    payload.map_err(|error| with_causes(&error))
                });
                let payload = payload.map_err(|why| {
                    format!("the next step of its chain needs PHP ({missing}): {why}")
                })?;
                let queue = self.php_queue.clone().into_iter();
                let push = |queue| {
                    Effect::Push(Push {
                        queue,
                        payload: payload.clone(),
                        due: None,
                        claim: None,
                    })
                };
                Ok(queue.map(push).collect())
            }
        }
    }

    /// The chain with the jobs that the handler added.
    fn edited(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Chain, String> {
        let read = || {
            let command = Command::of(&info.payload).ok().flatten();
            let bytes = command.as_ref().map_or(&b"N;"[..], Command::as_bytes);
            Chain::read(bytes, app.services.version)
        };
        let chain = self.chain.as_deref().cloned().map_or_else(read, Ok);
        let edited = chain.and_then(|mut chain| {
            // Each call puts its job in front, so the last of several comes first.
            for edit in edits {
                match edit {
                    ChainEdit::Prepend(command) => chain.prepend(command)?,
                    ChainEdit::Append(command) => chain.append(command)?,
                }
            }
            Ok(chain)
        });
        edited.map_err(|error| with_causes(&error))
    }

    /// The record that makes the batch count the job.
    fn count(
        &self,
        app: &AppContext,
        info: &JobInfo,
        outcome: JobOutcome,
        message: Option<&str>,
    ) -> Option<Effect> {
        let batch = self.batch.as_deref()?;
        let uuid = info.payload.uuid.as_ref()?.as_str();
        let trace = info.trace.as_ref().map(|trace| trace.to_map());
        if app.services.batches.is_none() {
            // Only PHP knows where the batches are, so it counts every job.
            let hand_over = self.hand_over(app, info.payload.resolve_name());
            let payload = match outcome {
                JobOutcome::Succeeded => {
                    hand_over.counts_success(batch, uuid, None, trace.as_ref())
                }
                JobOutcome::Failed => {
                    let message = message.unwrap_or_default();
                    hand_over.counts_failure(batch, uuid, message, trace.as_ref())
                }
            };
            return self.push_to_php(payload, "a job of a batch", info);
        }
        let count = Count {
            batch: batch.to_owned(),
            ended: Ended {
                uuid: uuid.to_owned(),
                outcome,
                token: random_token(),
            },
            queue: self.php_queue.as_ref().map(ToString::to_string),
            message: message.map(str::to_owned),
            name: Some(info.payload.resolve_name().to_owned()),
            trace,
        };
        Some(FollowUp::Count(count).effect())
    }

    fn push_to_php(
        &self,
        payload: Result<Vec<u8>, HandOverError>,
        what: &'static str,
        info: &JobInfo,
    ) -> Option<Effect> {
        Self::push_to(self.php_queue.clone(), payload, what, info)
    }

    fn push_to(
        queue: Option<QueueName>,
        payload: Result<Vec<u8>, HandOverError>,
        what: &'static str,
        info: &JobInfo,
    ) -> Option<Effect> {
        let payload = payload.map_err(|error| with_causes(&error));
        match payload
            .and_then(|payload| queue.map(|queue| (queue, payload)).ok_or_else(String::new))
        {
            Ok((queue, payload)) => Some(Effect::Push(Push {
                queue,
                payload,
                due: None,
                claim: None,
            })),
            Err(error) => {
                // Cannot happen in practice: this was checked before the job was taken.
                tracing::error!(
                    job.uuid = info.payload.uuid.as_ref().map(JobUuid::as_str),
                    error,
                    what,
                    "could not hand something to PHP"
                );
                None
            }
        }
    }
}
