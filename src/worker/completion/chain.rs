//! The step to the next job of a chain: its payload, where it goes, and the lock it may need.
//!
//! The manifest has what PHP would ask the next job's class. Without that, PHP has to take the step ([`NotHere`]).
//!
//! # Source
//!
//! `Illuminate\Bus\Queueable::dispatchNextJobInChain` and
//! `Illuminate\Foundation\Bus\PendingDispatch`; docs/protocol/commands.md 11.2.

use std::time::Duration;

use crate::cache::{name, random_owner};
use crate::connection::LockPlace;
use crate::handler::DispatchError;
use crate::handler::dispatch::{self, Draft};
use crate::outbox::follow_up::{FollowUp, Outgoing, Wanted};
use crate::payload::{Chain, ChainError, LogContext, StepKind};
use crate::php::{EditError, ObjectText, Value};
use crate::queue::{Claim, Effect, Push, QueueName};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;

/// The job that has ended.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place<'a> {
    pub(crate) uuid: Option<&'a str>,
    /// Its log context; jobs that it dispatches inherit it.
    pub(crate) context: Option<&'a LogContext>,
}

/// Why only PHP can take a step.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotHere {
    /// The job cannot be pushed by artisand.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The next step is a kind that artisand cannot push.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The chain cannot be read or changed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The command cannot be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The lock of the next job cannot be taken.
    #[error("the lock of the unique job {class} cannot be taken: {why}")]
    Lock {
        /// The class of the job.
        class: String,
        /// Why not.
        why: String,
    },
}

/// A step that artisand can take.
struct Planned {
    draft: Draft,
    connection: String,
    /// Whether that is the connection of the ended job.
    is_here: bool,
    queue: QueueName,
}

/// Says whether artisand can take the next step.
pub(crate) fn check(app: &AppContext, chain: &Chain) -> Result<(), NotHere> {
    let planned = plan(app, chain)?;
    // Try everything now that could fail at the end of the job: then it would be too late to refuse the job.
    planned.lock(app)?;
    Ok(planned.draft.check(&app.services)?)
}

fn plan(app: &AppContext, chain: &Chain) -> Result<Planned, NotHere> {
    let services = &app.services;
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
    let draft = Draft::of(services, step.command, app.clock.now())?;
    let facts = &draft.facts;
    if !facts.is_queued {
        return Err(NotHere::Kind("a job that is not queued"));
    }
    let (name, destination) = dispatch::destination(services, facts.connection.as_deref())?;
    let is_here = name == app.connection.as_str();
    if !is_here {
        dispatch::queues(name, destination)?;
    }
    let queue = facts.queue.as_deref();
    let queue = queue.unwrap_or(destination.default_queue.as_str());
    Ok(Planned {
        queue: queue.into(),
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
    ttl: Duration,
    kept: Kept,
}

/// Where a lock is kept, which decides how it is taken.
enum Kept {
    /// On the queue's own server under this key: taken in one step with the push.
    OnQueue(LockPlace),
    /// In another store: taken after the end of the job, once the job's own lock is free.
    Elsewhere,
    /// In the memory of each process: the lock is always free.
    Nowhere,
}

/// Takes the next step. The push, and the lock it may need, happen together with the job's end or after it.
pub(crate) async fn take(
    app: &AppContext,
    chain: &Chain,
    place: &Place<'_>,
) -> Result<Effect, NotHere> {
    let mut planned = plan(app, chain)?;
    let lock = planned.lock(app)?;
    if let Some(lock) = &lock
        && planned.draft.facts.is_queueable
        && app.services.version.is_at_least(13, 24)
    {
        let owner = Value::from(&*lock.owner).to_bytes();
        let command = ObjectText::parse(&planned.draft.command).map_err(EditError::from)?;
        planned.draft.command = command.with(&[("uniqueLockOwner", &owner)])?;
    }
    planned.effect(app, lock, place).await
}

impl Planned {
    /// The lock that the next job needs, if it is unique.
    fn lock(&self, app: &AppContext) -> Result<Option<Lock>, NotHere> {
        let services = &app.services;
        let Some(unique) = &self.draft.facts.unique else {
            return Ok(None);
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
        let display_name = unique.display_name.as_deref();
        let name = name::unique_lock(services.version, class, display_name, &unique.id);
        let ttl = Duration::from_secs(u64::try_from(unique.seconds).unwrap_or(0));
        let kept = match cache.lock_place(&name) {
            Some(place) if self.is_here && app.ledger.holds(&place) => Kept::OnQueue(place),
            _ if cache.is_shared() => Kept::Elsewhere,
            _ => Kept::Nowhere,
        };
        Ok(Some(Lock {
            store,
            name,
            owner: random_owner(),
            ttl,
            kept,
        }))
    }

    async fn effect(
        self,
        app: &AppContext,
        lock: Option<Lock>,
        place: &Place<'_>,
    ) -> Result<Effect, NotHere> {
        let services = &app.services;
        let context = context(services.version, place.context, lock.as_ref());
        let to = (&*self.connection, &self.queue);
        let drafted = self.draft.finish(services, context.as_ref(), to).await?;
        let (claim, wanted) = match lock {
            Some(Lock {
                owner,
                ttl,
                kept: Kept::OnQueue(place),
                ..
            }) => (Some(Claim { place, owner, ttl }), None),
            Some(Lock {
                store,
                name,
                owner,
                ttl,
                kept: Kept::Elsewhere,
            }) => {
                let seconds = ttl.as_secs();
                let wanted = Wanted {
                    store,
                    name,
                    owner,
                    seconds,
                };
                (None, Some(wanted))
            }
            _ => (None, None),
        };
        if self.is_here && wanted.is_none() {
            return Ok(Effect::Push(Push {
                queue: self.queue,
                payload: drafted.payload,
                due: drafted.due,
                claim,
            }));
        }
        let push = FollowUp::Push(Outgoing {
            connection: self.connection,
            queue: self.queue.to_string(),
            payload: String::from_utf8(drafted.payload).expect("payloads are JSON"),
            due: drafted.due.map(|due| due.0),
            id: drafted.id.to_string(),
            lock: wanted,
        });
        Ok(push.effect())
    }
}

/// The context of the next job: that of the dispatching job, plus the keys that locate its lock.
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
