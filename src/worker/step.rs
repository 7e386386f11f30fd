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
use crate::app::{Facts, Manifest, Missing};
use crate::cache::{name, random_owner};
use crate::payload::{
    BuildError, Chain, ChainError, DelayError, LogContext, NewData, NewPayload, StepKind,
    random_id, random_uuid,
};
use crate::php::{EditError, ObjectText, Value};
use crate::queue::{Claim, Effect, Push, QueueName};
use crate::time::UnixSeconds;

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
    /// Nothing is known of the app's classes.
    #[error("nothing is known of the app's classes: write a manifest with `artisand manifest`")]
    NoManifest,
    /// Nothing is known of the app's queue connections.
    #[error("nothing is known of the app's queue connections")]
    NoConnections,
    /// It is no job that can be pushed from here.
    #[error("it is {0}")]
    Kind(&'static str),
    /// The connection it goes to.
    #[error("it goes to the queue connection `{name}`: {why}")]
    Connection {
        /// Name of the connection.
        name: String,
        /// Why it cannot be used from here.
        why: String,
    },
    /// The chain cannot be read or changed.
    #[error(transparent)]
    Chain(#[from] ChainError),
    /// The command cannot be read.
    #[error(transparent)]
    Command(#[from] crate::php::Error),
    /// The command cannot be changed.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A fact of the class that only PHP knows.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// When the job is to be run cannot be told.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The payload cannot be made.
    #[error(transparent)]
    Payload(#[from] BuildError),
    /// It is to be encrypted, and the key is not known.
    #[error("{0} is to be encrypted, and the app's key is not known")]
    NoKey(String),
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
    command: Vec<u8>,
    facts: Facts,
    connection: String,
    /// Whether that is the connection of the job that has ended.
    is_here: bool,
    queue: QueueName,
    now: UnixSeconds,
}

/// Says whether the next step can be taken here.
pub(super) fn check(shared: &Shared, chain: &Chain) -> Result<(), NotHere> {
    plan(shared, chain).map(drop)
}

fn plan(shared: &Shared, chain: &Chain) -> Result<Planned, NotHere> {
    let services = &shared.services;
    let manifest: &Manifest = services.manifest.as_ref().ok_or(NotHere::NoManifest)?;
    let connections = services
        .connections
        .as_ref()
        .ok_or(NotHere::NoConnections)?;
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
    let now = shared.clock.now();
    let facts = manifest.facts(&Value::from_bytes(&step.command)?, now)?;
    if !facts.is_queued {
        return Err(NotHere::Kind("a job that is not queued"));
    }
    let name = facts.connection.as_deref();
    let name = name.unwrap_or(connections.default_name().as_str());
    let unusable = |why: String| NotHere::Connection {
        name: name.to_owned(),
        why,
    };
    let destination = connections.get(name);
    let destination =
        destination.ok_or_else(|| unusable("there is none of this name".to_owned()))?;
    let is_here = name == shared.connection.as_str();
    if let (false, Err(why)) = (is_here, &destination.queues) {
        return Err(unusable(why.clone()));
    }
    if facts.is_encrypted && services.encrypter.is_none() {
        return Err(NotHere::NoKey(facts.class.to_string()));
    }
    let queue = facts.queue.as_deref();
    let queue = queue.unwrap_or(destination.default_queue.as_str());
    Ok(Planned {
        queue: manifest.forwarded_queue(queue, name).into(),
        connection: name.to_owned(),
        command: step.command,
        is_here,
        facts,
        now,
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
    let mut planned = plan(shared, chain)?;
    let lock = match planned.lock(shared, place).await? {
        Locked::NotUnique => None,
        Locked::Taken => {
            tracing::info!(
                job.uuid = place.uuid,
                next = planned.facts.class.as_str(),
                "a chain ends: its next job is unique, and another one is queued"
            );
            return Ok(Vec::new());
        }
        Locked::Ours(lock) => Some(lock),
    };
    if let Some(lock) = &lock
        && planned.facts.is_queueable
        && shared.services.version.is_at_least(13, 24)
    {
        let owner = Value::from(&*lock.owner).to_bytes();
        let edited = ObjectText::parse(&planned.command)?.with(&[("uniqueLockOwner", &owner)])?;
        planned.command = edited;
    }
    planned
        .effect(shared, lock, place)
        .map(|effect| vec![effect])
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
    async fn lock(&self, shared: &Shared, place: &Place<'_>) -> Result<Locked, NotHere> {
        let services = &shared.services;
        let Some(unique) = &self.facts.unique else {
            return Ok(Locked::NotUnique);
        };
        let class = self.facts.class.as_str();
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
        if let Some((redis, key)) = cache.redis_lock(&name)
            && self.is_here
            && (shared.is_on_queue)(redis)
        {
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

    fn effect(
        self,
        shared: &Shared,
        lock: Option<Lock>,
        place: &Place<'_>,
    ) -> Result<Effect, NotHere> {
        let services = &shared.services;
        let zone = &services.timezone;
        let delay = self.facts.delay.as_ref();
        let due = delay.map(|delay| delay.available_at(self.now, zone));
        let seconds = delay.map(|delay| delay.seconds(self.now, zone));
        let command = match &services.encrypter {
            Some(encrypter) if self.facts.is_encrypted => {
                encrypter.encrypt_command(&self.command).into_bytes()
            }
            _ => self.command,
        };
        let context = context(services.version, place.context, lock.as_ref());
        let id = random_id();
        let payload = NewPayload {
            uuid: random_uuid(),
            display_name: self.facts.display_name,
            envelope: self.facts.envelope,
            data: NewData::Command {
                class: self.facts.class.as_str().into(),
                command,
                batch_id: self.facts.batch_id,
            },
            created_at: self.now,
            extra: context
                .and_then(|context| context.to_field())
                .into_iter()
                .collect(),
            id: Some(id.clone()),
            delay: seconds.transpose()?,
        };
        let payload = payload.to_bytes(services.version)?;
        let due = due.transpose()?;
        if self.is_here {
            return Ok(Effect::Push(Push {
                queue: self.queue,
                payload,
                due,
                claim: lock.and_then(|lock| lock.claim),
            }));
        }
        let push = FollowUp::Push {
            connection: self.connection,
            queue: self.queue.to_string(),
            payload: String::from_utf8(payload).expect("payloads are JSON"),
            due: due.map(|due| due.0),
            id: id.to_string(),
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
