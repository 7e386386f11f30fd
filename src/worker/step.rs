//! The step to the next job of a chain: its payload, where it goes, and the lock it may need.
//!
//! Whatever PHP would ask the next job's class is in the manifest, or PHP is
//! to take the step ([`NotHere`]).
//!
//! # Source
//!
//! `Illuminate\Bus\Queueable::dispatchNextJobInChain` and
//! `Illuminate\Foundation\Bus\PendingDispatch`; docs/protocol/commands.md 11.2.

use std::time::Duration;

use super::attempt::with_causes;
use super::follow_up::FollowUp;
use super::job::Shared;
use super::unique;
use crate::app::Unique;
use crate::cache::{Cache, name, random_owner};
use crate::handler::DispatchError;
use crate::handler::dispatch::{self, Draft};
use crate::payload::{Chain, ChainError, LogContext, StepKind};
use crate::php::{EditError, ObjectText, Value};
use crate::queue::{Claim, Effect, Push, QueueName};

/// The job that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) uuid: Option<&'a str>,
    /// Jobs that are dispatched by a job have its log context.
    pub(super) context: Option<&'a LogContext>,
}

/// Why only PHP can take a step.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotHere {
    /// The job cannot be pushed from here.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// It is no job that can be pushed from here.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The chain cannot be read or changed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The command cannot be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// Its lock cannot be taken.
    #[error("the lock of the unique job {class} cannot be taken: {why}")]
    Lock {
        /// Its class.
        class: String,
        /// Why not.
        why: String,
    },
}

/// A step that can be taken.
struct Planned {
    draft: Draft,
    connection: String,
    /// Whether that is the connection of the job that has ended.
    is_here: bool,
    queue: QueueName,
}

/// Says whether the next step can be taken here.
pub(super) fn check(shared: &Shared, chain: &Chain) -> Result<(), NotHere> {
    plan(shared, chain).map(drop)
}

fn plan(shared: &Shared, chain: &Chain) -> Result<Planned, NotHere> {
    let services = &shared.services;
    let manifest = dispatch::manifest(services)?;
    let class = chain.next_class()?;
    let default = |property: &str| manifest.default(class.as_ref()?, property);
    let step = chain
        .next(default)?
        .ok_or(NotHere::Kind("the end of the chain"))?;
    match step.kind {
        StepKind::Object => {}
        StepKind::Closure => return Err(NotHere::Kind("a closure")),
        StepKind::Batch => return Err(NotHere::Kind("a batch")),
    }
    let draft = Draft::of(services, step.command, shared.clock.now())?;
    let facts = &draft.facts;
    if !facts.is_queued {
        return Err(NotHere::Kind("a job that is not queued"));
    }
    let (name, destination) = dispatch::destination(services, facts.connection.as_deref())?;
    let is_here = name == shared.connection.as_str();
    if !is_here {
        dispatch::queues(name, destination)?;
    }
    let queue = facts.queue.as_deref();
    let queue = queue.unwrap_or(destination.default_queue.as_str());
    Ok(Planned {
        queue: manifest.forwarded_queue(queue, name).into(),
        connection: name.to_owned(),
        is_here,
        draft,
    })
}

/// A lock that the next job holds.
struct Lock {
    store: String,
    name: String,
    owner: String,
    /// How it is taken in one step with the push; `None` if it is held already.
    claim: Option<Claim>,
}

/// Takes the next step; no effect at all means that the chain ends, since the lock of the next job is taken.
pub(super) async fn take(
    shared: &Shared,
    chain: &Chain,
    place: &Place<'_>,
) -> Result<Vec<Effect>, NotHere> {
    let planned = plan(shared, chain)?;
    let lock = match planned.lock(shared, place).await? {
        Locked::NotUnique => None,
        Locked::Taken => {
            tracing::info!(
                job.uuid = place.uuid,
                next = planned.draft.facts.class.as_str(),
                "a chain ends: its next job is unique, and another one is queued"
            );
            return Ok(Vec::new());
        }
        Locked::Ours(lock) => Some(lock),
    };
    let held = lock.as_ref().filter(|lock| lock.claim.is_none());
    let held = held.map(|lock| (lock.store.clone(), lock.name.clone(), lock.owner.clone()));
    let owned = planned.owned(shared, lock.as_ref());
    let effect = owned.and_then(|planned| planned.effect(shared, lock, place));
    if let (Err(_), Some((store, name, owner)), Some(stores)) =
        (&effect, held, &shared.services.stores)
        && let Ok(cache) = stores.get(&store)
        && let Err(error) = unique::free(&cache, &name, Some(&owner)).await
    {
        // PHP takes the step, and would find the lock taken.
        tracing::error!(
            error = with_causes(&error),
            lock = name,
            "a lock taken for the next step of a chain could not be freed"
        );
    }
    effect.map(|effect| vec![effect])
}

/// Frees the lock that a run before this one took for the next step, in another store, before it died.
///
/// The job has failed for good, and nobody will push that step.
pub(super) fn give_up(shared: &Shared, chain: &Chain, uuid: &str) -> Option<Effect> {
    let planned = plan(shared, chain).ok()?;
    let unique = planned.draft.facts.unique.as_ref()?;
    let stores = shared.services.stores.as_ref()?;
    let store = stores.default_name().to_owned();
    let cache = stores.get(&store).ok()?;
    let name = planned.lock_name(shared, unique);
    if planned.claims_with_push(shared, &cache, &name).is_some() || !cache.is_shared() {
        return None;
    }
    let owner = Some(owner_of(uuid, &name));
    Some(FollowUp::Unlock { store, name, owner }.effect())
}

/// Whether the next job may be pushed.
enum Locked {
    /// It needs no lock.
    NotUnique,
    /// Another job has it.
    Taken,
    /// It is ours, or will be in one step with the push.
    Ours(Lock),
}

impl Planned {
    fn lock_name(&self, shared: &Shared, unique: &Unique) -> String {
        let display_name = unique.display_name.as_deref();
        let (version, class) = (shared.services.version, self.draft.facts.class.as_str());
        name::unique_lock(version, class, display_name, &unique.id)
    }

    /// The lock's whole key, if it can be taken in one step with the push.
    fn claims_with_push(&self, shared: &Shared, cache: &Cache, name: &str) -> Option<String> {
        let (redis, key) = cache.redis_lock(name)?;
        (self.is_here && (shared.is_on_queue)(redis)).then_some(key)
    }

    async fn lock(&self, shared: &Shared, place: &Place<'_>) -> Result<Locked, NotHere> {
        let services = &shared.services;
        let Some(unique) = &self.draft.facts.unique else {
            return Ok(Locked::NotUnique);
        };
        let class = self.draft.facts.class.as_str();
        let no = |why: String| NotHere::Lock {
            class: class.to_owned(),
            why,
        };
        let stores = services.stores.as_ref();
        let stores = stores.ok_or_else(|| no("nothing is known of the app's cache".to_owned()))?;
        let store = stores.default_name().to_owned();
        let cache = stores
            .get(&store)
            .map_err(|error| no(with_causes(&error)))?;
        let name = self.lock_name(shared, unique);
        let ttl = Duration::from_secs(u64::try_from(unique.seconds).unwrap_or(0));
        if let Some(key) = self.claims_with_push(shared, &cache, &name) {
            let owner = random_owner();
            let claim = Some(Claim {
                key,
                owner: owner.clone(),
                ttl,
            });
            return Ok(Locked::Ours(Lock {
                store,
                name,
                owner,
                claim,
            }));
        }
        // Taken before the push: if this process dies in between, the job that has ended runs again, and knows its lock.
        let owner = place
            .uuid
            .map_or_else(random_owner, |uuid| owner_of(uuid, &name));
        let lock = cache.lock(&*name, &*owner, ttl);
        let failed = |error: crate::cache::Error| no(with_causes(&error));
        let is_ours = lock.acquire().await.map_err(failed)?
            || lock.current_owner().await.map_err(failed)?.as_deref() == Some(&*owner);
        if !is_ours {
            return Ok(Locked::Taken);
        }
        Ok(Locked::Ours(Lock {
            store,
            name,
            owner,
            claim: None,
        }))
    }

    /// The same with the owner of its lock in the object, since Laravel 13.24.
    fn owned(mut self, shared: &Shared, lock: Option<&Lock>) -> Result<Self, NotHere> {
        if let Some(lock) = lock
            && self.draft.facts.is_queueable
            && shared.services.version.is_at_least(13, 24)
        {
            let owner = Value::from(&*lock.owner).to_bytes();
            let command = ObjectText::parse(&self.draft.command).map_err(EditError::from)?;
            self.draft.command = command.with(&[("uniqueLockOwner", &owner)])?;
        }
        Ok(self)
    }

    fn effect(
        self,
        shared: &Shared,
        lock: Option<Lock>,
        place: &Place<'_>,
    ) -> Result<Effect, NotHere> {
        let services = &shared.services;
        let context = context(services.version, place.context, lock.as_ref());
        let drafted = self.draft.finish(services, context.as_ref())?;
        if self.is_here {
            return Ok(Effect::Push(Push {
                queue: self.queue,
                payload: drafted.payload,
                due: drafted.due,
                claim: lock.and_then(|lock| lock.claim),
            }));
        }
        let push = FollowUp::Push {
            connection: self.connection,
            queue: self.queue.to_string(),
            payload: String::from_utf8(drafted.payload).expect("payloads are JSON"),
            due: drafted.due.map(|due| due.0),
            id: drafted.id.to_string(),
        };
        Ok(push.effect())
    }
}

/// An owner that the same step of the same job has again.
fn owner_of(uuid: &str, name: &str) -> String {
    name::md5(&format!("{uuid}{name}"))[..16].to_owned()
}

/// The context of the next job: that of the job that dispatches it, and what says where its lock is.
fn context(
    version: crate::payload::Version,
    of_job: Option<&LogContext>,
    lock: Option<&Lock>,
) -> Option<LogContext> {
    let Some(lock) = lock.filter(|_| version.is_at_least(11, 39)) else {
        return of_job.cloned();
    };
    let context = of_job.cloned().unwrap_or_default();
    let mut context = context
        .with_hidden("laravel_unique_job_cache_store", &(&*lock.store).into())
        .with_hidden("laravel_unique_job_key", &(&*lock.name).into());
    if version.is_at_least(13, 24) {
        context = context.with_hidden("laravel_unique_job_lock_owner", &(&*lock.owner).into());
    }
    Some(context)
}
