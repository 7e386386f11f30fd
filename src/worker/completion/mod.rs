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

mod batch;
mod chain;
mod for_php;
pub(crate) mod refusal;
mod steps;
pub(crate) mod unique;

use crate::app::Class;
use crate::batch::JobOutcome;
use crate::handler::dispatch::PushPlan;
use crate::handler::{ChainEdit, FailureText, JobInfo};
use crate::payload::{Chain, Command, Payload, Version};
use crate::php::PropertyScan;
use crate::queue::{Effect, QueueName};
use crate::routing::Telling;
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;
use crate::worker::completion::refusal::Refusal;
use crate::worker::completion::unique::{Unique, UntilProcessing};

/// What the end of one job brings about.
#[derive(Debug, Default)]
pub(crate) struct Completion {
    unique: Option<Unique>,
    batch: Option<Box<str>>,
    /// Whether the batch counts the job only if it fails.
    is_success_uncounted: bool,
    chain: Option<Box<Chain>>,
    /// Whether the job is encrypted, so that what PHP gets must be encrypted too.
    is_secret: bool,
    /// A queue that PHP workers serve.
    php_queue: Option<QueueName>,
    /// What PHP is told if the job fails for good.
    pub(crate) telling: Telling,
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

/// Whether a command may carry a chain; `false` is certain.
fn has_chain(command: &[u8]) -> bool {
    static CHAINED: PropertyScan = PropertyScan::of_any_visibility("chained");
    static CALLBACKS: PropertyScan = PropertyScan::of_any_visibility("chainCatchCallbacks");
    // Up to Laravel 9.3 every job has the property, mostly empty.
    CHAINED.may_hold_something(command)
        || CALLBACKS.may_be_array(command)
        || CHAINED.may_be_escaped(command)
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
        // A job without a mapping is about to fail; if nothing says that it is unique, it has no lock.
        let is_never_unique = mapping.is_none_or(|position| {
            let mapping = app.router.mapping(position);
            mapping.is_some_and(|mapping| mapping.is_never_unique)
        });
        let Ok(Some(command)) = Command::of(payload) else {
            return Ok(Self::default());
        };
        let batch = command.batch_id();
        let batch = batch.map_err(|error| Refusal::new(with_causes(&error)))?;
        let facts = (batch.as_ref()).and_then(|_| services.class(command.class()));
        let batch = batch.filter(|_| !facts.is_some_and(Class::is_never_batched));
        let chain = chain(&command, services.version)?;
        let found = Self {
            unique: Unique::of(services, payload, &command, is_never_unique)
                .map_err(Refusal::new)?,
            batch: batch.map(Into::into),
            is_success_uncounted: facts.is_some_and(Class::is_success_uncounted),
            is_secret: payload.was_encrypted(),
            php_queue: app.php_queue(queue),
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
        Self {
            unique: unique.or_else(|| Unique::from_raw_json(services, &info.body)),
            batch: services.batch_id(&info.payload).map(Into::into),
            php_queue: app.php_queue(&info.queue),
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
        then: Vec<PushPlan>,
    ) -> Result<Vec<Effect>, String> {
        let chain = self.chain_after(app, info, edits)?;
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !unique.until_processing
        {
            effects.extend(Box::pin(unique.free(app, &info.queue)).await);
        }
        if let Some(chain) = &chain {
            effects.extend(Box::pin(self.step(app, info, chain)).await?);
        }
        for job in then {
            let pushed = chain::effect(app, &info.queue, job, info.inherited());
            effects.push(
                Box::pin(pushed)
                    .await
                    .map_err(|error| with_causes(&error))?,
            );
        }
        if !self.is_success_uncounted {
            effects.extend(self.count(app, info, JobOutcome::Succeeded, None));
        }
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
            effects.extend(Box::pin(unique.free(app, &info.queue)).await);
        }
        let outcome = JobOutcome::Failed;
        effects.extend(self.count(app, info, outcome, Some(&failure.message)));
        let callbacks = self.chain.as_deref().and_then(Chain::catch_callbacks);
        if let Some(callbacks) = callbacks {
            let hand_over = self.hand_over(app, &info.payload);
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

    /// What follows a job that was deleted because one of its models is gone.
    ///
    /// Since Laravel 12.51 the batch counts the job as done; before, the batch waits for it forever. A lock that
    /// `until` has freed may be that of another job by now: Laravel frees it once, too.
    pub(crate) async fn on_missing_model(
        &self,
        app: &AppContext,
        info: &JobInfo,
        until: Option<&UntilProcessing>,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !until.is_some_and(UntilProcessing::is_freed)
        {
            effects.extend(Box::pin(unique.free(app, &info.queue)).await);
        }
        if app.services.version.is_at_least(12, 51) {
            effects.extend(self.count(app, info, JobOutcome::Succeeded, None));
        }
        effects
    }

    /// What follows a job that deleted itself and then threw: its chain ends, its batch waits.
    ///
    /// Laravel leaves the lock until it expires; artisand frees it, because nothing else would. Not one that `until`
    /// has freed, or leaves alone: another job may have it.
    pub(crate) async fn on_deletion(
        &self,
        app: &AppContext,
        queue: &QueueName,
        until: Option<&UntilProcessing>,
    ) -> Vec<Effect> {
        let is_held = |unique: &&Unique| {
            !unique.until_processing || until.is_some_and(|until| !until.is_freed())
        };
        match self.unique.as_ref().filter(is_held) {
            Some(unique) => Box::pin(unique.free(app, queue))
                .await
                .into_iter()
                .collect(),
            None => Vec::new(),
        }
    }

    /// The lock, if it is freed as soon as the job runs.
    pub(crate) fn lock_until_processing(&self) -> Option<&Unique> {
        self.unique
            .as_ref()
            .filter(|unique| unique.until_processing)
    }
}

#[cfg(test)]
impl Completion {
    /// The completion of a job that has this lock, and nothing else.
    pub(crate) fn with_lock(unique: Unique) -> Self {
        Self {
            unique: Some(unique),
            ..Self::default()
        }
    }
}

#[cfg(test)]
mod tests;
