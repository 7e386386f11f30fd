//! What the end of a job brings about: its lock is freed, its chain goes on, its batch counts.
//!
//! Laravel does these one after the other and deletes the job at the end; a
//! crash in between doubles what was done. Here all of it is one list of
//! [`Effect`]s that happen in one step with the deletion. What is elsewhere (a
//! lock in another store, the counters of a batch, a queue on another server)
//! leaves a record in that step, and [`follow_up`](super::follow_up) does it
//! right after.
//!
//! What must be known for that is found out before the job is run: a job whose
//! end could not be seen to is not taken ([`Refusal`]).
//!
//! # Source
//!
//! `Illuminate\Queue\CallQueuedHandler::call`, `failed`;
//! docs/protocol/payload.md 11 and 12.

use super::attempt::with_causes;
use super::follow_up::{Count, FollowUp, NO_PHP_QUEUE, random_token};
use super::php::HandOver;
use super::step::{self, Place};
use super::triage::{Refusal, Triage};
use super::unique::Unique;
use crate::batch::{Ended, JobOutcome};
use crate::handler::{ChainEdit, FailureText, JobInfo, UnmappedPolicy};
use crate::payload::{Chain, Command, JobUuid, Payload, Version};
use crate::queue::{Effect, Push, QueueName};

/// What the end of one job brings about.
#[derive(Debug, Default)]
pub(super) struct Completion {
    unique: Option<Unique>,
    batch: Option<Box<str>>,
    chain: Option<Chain>,
    /// Whether PHP may not see the job's text in the clear either.
    is_secret: bool,
    /// Queue that PHP serves.
    php_queue: Option<QueueName>,
}

/// A queue that PHP serves, for closures that follow a job of this queue.
fn php_queue(triage: &Triage, queue: &QueueName) -> Option<QueueName> {
    let named = triage.services.php_queue.clone();
    named.or_else(|| match triage.router.unmapped() {
        UnmappedPolicy::Forward(to) => Some(to.clone()),
        // PHP workers take from the same queue what is not mapped.
        UnmappedPolicy::Leave | UnmappedPolicy::Php => Some(queue.clone()),
        UnmappedPolicy::Fail => None,
    })
}

/// The chain of a job; `None` if nothing follows, whether it succeeds or fails.
fn chain(command: &Command, version: Version) -> Result<Option<Chain>, Refusal> {
    if !has_chain(command.as_bytes()) {
        return Ok(None);
    }
    let chain = Chain::read(command.as_bytes(), version);
    let chain = chain.map_err(|error| Refusal::new(with_causes(&error)))?;
    let is_needed = !chain.is_empty() || chain.catch_callbacks().is_some();
    Ok(is_needed.then_some(chain))
}

/// Whether a command may carry a chain; false is certain.
fn has_chain(command: &[u8]) -> bool {
    const EMPTY: &[u8] = b"s:7:\"chained\";a:0:{}";
    // Up to 9.3 every job has the property, mostly empty.
    let chained = memchr::memmem::find_iter(command, b"chained\"").count();
    let empty = memchr::memmem::find_iter(command, EMPTY).count();
    chained > empty
        || memchr::memmem::find(command, b"chainCatchCallbacks\";a:").is_some()
        || memchr::memmem::find(command, b"S:7:").is_some()
}

impl Completion {
    /// Finds out what the end of a job will bring about.
    pub(super) fn of(
        triage: &Triage,
        payload: &Payload,
        queue: &QueueName,
    ) -> Result<Self, Refusal> {
        let services = &triage.services;
        let Ok(Some(command)) = Command::of(payload) else {
            return Ok(Self::default());
        };
        let batch = command.batch_id();
        let batch = batch.map_err(|error| Refusal::new(with_causes(&error)))?;
        let chain = chain(&command, services.version)?;
        let found = Self {
            unique: Unique::of(services, payload, &command).map_err(Refusal::new)?,
            batch: batch.map(Into::into),
            is_secret: payload.was_encrypted(),
            php_queue: php_queue(triage, queue),
            chain,
        };
        found.check(triage, payload)?;
        Ok(found)
    }

    /// What follows a job that is not run and fails: its lock is freed and its batch counts, as far as they can be told.
    pub(super) fn of_refused(triage: &Triage, info: &JobInfo) -> Self {
        let services = &triage.services;
        let command = Command::of(&info.payload).ok().flatten();
        let unique = command.as_ref().and_then(|command| {
            let unique = Unique::of(services, &info.payload, command);
            unique.ok().flatten()
        });
        let batch = command.and_then(|command| command.batch_id().ok().flatten());
        Self {
            unique: unique.or_else(|| Unique::rescued(services, &info.body)),
            batch: batch.map(Into::into),
            ..Self::default()
        }
    }

    fn check(&self, triage: &Triage, payload: &Payload) -> Result<(), Refusal> {
        if self.batch.is_some() && payload.uuid.is_none() {
            return Err(Refusal::new("a job of a batch has no uuid"));
        }
        if self.batch.is_none() && self.chain.is_none() {
            return Ok(());
        }
        let Err(why) = self.can_hand_over(triage) else {
            return Ok(());
        };
        // Callbacks are PHP's; a step of a chain is, too, unless everything about the next class is known.
        let has_callbacks = |chain: &Chain| chain.catch_callbacks().is_some();
        if self.batch.is_some() || self.chain.as_ref().is_some_and(has_callbacks) {
            return Err(Refusal::new(format!(
                "it is in a batch, or in a chain with catch callbacks, which PHP has to run: {why}"
            )));
        }
        let Some(chain) = &self.chain else {
            return Ok(());
        };
        match step::check(triage, chain) {
            Ok(()) => Ok(()),
            Err(missing) => Err(Refusal::new(format!(
                "the next step of its chain needs PHP ({missing}): {why}"
            ))),
        }
    }

    fn hand_over<'a>(&self, triage: &'a Triage, name: &'a str) -> HandOver<'a> {
        HandOver {
            services: &triage.services,
            now: triage.clock.now(),
            name,
            is_secret: self.is_secret,
        }
    }

    fn can_hand_over(&self, triage: &Triage) -> Result<(), String> {
        if self.php_queue.is_none() {
            return Err(NO_PHP_QUEUE.to_owned());
        }
        // The same for every job.
        let checked = triage.can_sign.get_or_init(|| {
            let checked = self.hand_over(triage, "").check();
            checked.map_err(|error| with_causes(&error))
        });
        checked.clone()
    }

    /// What follows a job that ended well: it was run, or left out on purpose.
    ///
    /// In Laravel's order: lock, chain, batch.
    ///
    /// # Errors
    ///
    /// The next step of the chain cannot be taken, which in Laravel is an exception of the job.
    pub(super) async fn on_success(
        &self,
        triage: &Triage,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Vec<Effect>, String> {
        let chain = self.chain_after(triage, info, edits)?;
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !unique.until_processing
        {
            effects.extend(unique.free(triage).await);
        }
        if let Some(chain) = &chain {
            effects.extend(self.step(triage, info, chain)?);
        }
        effects.extend(self.count(triage, info, JobOutcome::Succeeded, None));
        Ok(effects)
    }

    /// What follows a job that failed for good.
    pub(super) async fn on_failure(
        &self,
        triage: &Triage,
        info: &JobInfo,
        failure: &FailureText,
    ) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique
            && !unique.until_processing
        {
            effects.extend(unique.free(triage).await);
        }
        let outcome = JobOutcome::Failed;
        effects.extend(self.count(triage, info, outcome, Some(&failure.message)));
        let callbacks = self.chain.as_ref().and_then(Chain::catch_callbacks);
        if let Some(callbacks) = callbacks {
            let payload = {
                let context = info.payload.context.as_deref();
                self.hand_over(triage, info.payload.resolve_name()).catches(
                    callbacks,
                    &failure.message,
                    context,
                )
            };
            effects.extend(self.push_to_php(payload, "the catch callbacks of a chain", info));
        }
        effects
    }

    /// What follows a job that was deleted because a model of it is gone.
    ///
    /// Since Laravel 12.51 its batch counts it as done; before, it waits for it for ever.
    pub(super) async fn on_missing_model(&self, triage: &Triage, info: &JobInfo) -> Vec<Effect> {
        let mut effects = Vec::new();
        if let Some(unique) = &self.unique {
            effects.extend(unique.free(triage).await);
        }
        if triage.services.version.is_at_least(12, 51) {
            effects.extend(self.count(triage, info, JobOutcome::Succeeded, None));
        }
        effects
    }

    /// What follows a job that deleted itself and then threw: its chain ends, its batch waits.
    ///
    /// Laravel leaves the lock until it ends by itself; nobody would free it.
    pub(super) async fn on_deletion(&self, triage: &Triage) -> Vec<Effect> {
        match &self.unique {
            Some(unique) => unique.free(triage).await.into_iter().collect(),
            None => Vec::new(),
        }
    }

    /// The lock that is free as soon as the job is run.
    pub(super) fn lock_until_processing(&self) -> Option<&Unique> {
        self.unique
            .as_ref()
            .filter(|unique| unique.until_processing)
    }

    /// Says why jobs that a handler adds to the chain could not follow.
    pub(super) fn check_edits(
        &self,
        triage: &Triage,
        info: &JobInfo,
        edits: &[ChainEdit],
    ) -> Result<(), String> {
        if edits.is_empty() {
            return Ok(());
        }
        let chain = self.edited(triage, info, edits.to_vec())?;
        match (step::check(triage, &chain), self.can_hand_over(triage)) {
            (Err(missing), Err(why)) => Err(format!(
                "the job added to the chain needs PHP ({missing}): {why}"
            )),
            _ => Ok(()),
        }
    }

    /// What is to follow the job; `None` at the end of the chain.
    fn chain_after(
        &self,
        triage: &Triage,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Option<Chain>, String> {
        let chain = if edits.is_empty() {
            self.chain.clone()
        } else {
            Some(self.edited(triage, info, edits)?)
        };
        Ok(chain.filter(|chain| !chain.is_empty()))
    }

    /// The next step of the chain.
    ///
    /// # Errors
    ///
    /// Neither we nor PHP can take it.
    fn step(&self, triage: &Triage, info: &JobInfo, chain: &Chain) -> Result<Vec<Effect>, String> {
        let place = Place {
            uuid: info.payload.uuid.as_ref().map(JobUuid::as_str),
            context: info.payload.context.as_deref(),
        };
        match step::take(triage, chain, &place) {
            Ok(effect) => Ok(vec![effect]),
            Err(missing) => {
                tracing::debug!(
                    job.uuid = place.uuid,
                    missing = missing.to_string(),
                    "the next step of a chain is left to PHP"
                );
                let payload = self.can_hand_over(triage).and_then(|()| {
                    let hand_over = self.hand_over(triage, info.payload.resolve_name());
                    let payload = hand_over.goes_on(chain, place.context);
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

    /// The chain with what the handler added to it.
    fn edited(
        &self,
        triage: &Triage,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Chain, String> {
        let read = || {
            let command = Command::of(&info.payload).ok().flatten();
            let bytes = command.as_ref().map_or(&b"N;"[..], Command::as_bytes);
            Chain::read(bytes, triage.services.version)
        };
        let chain = self.chain.clone().map_or_else(read, Ok);
        let edited = chain.and_then(|mut chain| {
            // Of several put before the rest, the last comes first: each call does so.
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

    /// The record that lets the batch count the job.
    fn count(
        &self,
        triage: &Triage,
        info: &JobInfo,
        outcome: JobOutcome,
        message: Option<&str>,
    ) -> Option<Effect> {
        let batch = self.batch.as_deref()?;
        let uuid = info.payload.uuid.as_ref()?.as_str();
        if triage.services.batches.is_none() {
            // Where they are only PHP knows: it counts every job.
            let hand_over = self.hand_over(triage, info.payload.resolve_name());
            let payload = match outcome {
                JobOutcome::Succeeded => hand_over.counts_success(batch, uuid, None),
                JobOutcome::Failed => {
                    hand_over.counts_failure(batch, uuid, message.unwrap_or_default())
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
        };
        Some(FollowUp::Count(count).effect())
    }

    fn push_to_php(
        &self,
        payload: Result<Vec<u8>, super::php::HandOverError>,
        what: &'static str,
        info: &JobInfo,
    ) -> Option<Effect> {
        let payload = payload.map_err(|error| with_causes(&error));
        let queue = self.php_queue.clone();
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
                // Checked before the job was taken.
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
