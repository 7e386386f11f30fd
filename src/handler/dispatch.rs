//! Makes the payload of a new job of one of the app's classes, and finds its queue and its lock.
//!
//! The manifest records the facts that PHP would ask the class for. If a fact is
//! missing, only PHP can push the job, and the error names the fact. This module
//! pushes nothing.
//!
//! # Source
//!
//! `Illuminate\Foundation\Bus\PendingDispatch`, `Illuminate\Bus\UniqueLock`; docs/protocol/commands.md 11.2.

use std::sync::Arc;
use std::time::Duration;

use crate::app::{Answers, Facts, Made, Manifest, Missing};
use crate::cache::{name, random_owner};
use crate::connection::LockPlace;
use crate::payload::{
    BuildError, DelayError, HorizonFields, Inherited, JobId, JobUuid, NewPayload, Version,
};
use crate::php::{self, EditError, ObjectText, Value};
use crate::queue::{Claim, Connections, Destination, Push, Queue, QueueName};
use crate::shown::with_causes;
use crate::time::UnixSeconds;

use super::{Hooks, Services};

/// Why artisand cannot push a job that PHP could.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DraftError {
    /// Facts about the app's classes are missing.
    #[error("nothing is known of the app's classes: write a manifest with `artisand manifest`")]
    NoManifest,
    /// The app's queue connections are unknown.
    #[error("nothing is known of the app's queue connections")]
    NoConnections,
    /// The job's queue connection cannot be used.
    #[error("it goes to the queue connection `{name}`: {why}")]
    Connection {
        /// Name of the connection.
        name: String,
        /// Why artisand cannot use it.
        why: String,
    },
    /// The command cannot be read.
    #[error(transparent)]
    Command(#[from] php::Error),
    /// Only PHP knows a fact of the class.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The time at which the job is due cannot be computed.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The payload cannot be made.
    #[error(transparent)]
    Payload(#[from] BuildError),
    /// The job must be encrypted, and the key is unknown.
    #[error("{0} is to be encrypted, and the app's key is not known")]
    NoKey(String),
    /// The job's lock cannot be taken.
    #[error("the lock of the unique job {class} cannot be taken: {why}")]
    Lock {
        /// The class of the job.
        class: String,
        /// Why not.
        why: String,
    },
    /// The owner of the lock cannot be written into the command.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// A payload hook of the app adds to payloads.
    #[error("{hook} adds to payloads (`Queue::createPayloadUsing`), and {why}")]
    Hook {
        /// The class that has the hook.
        hook: String,
        /// Why it is not known what it adds.
        why: String,
    },
}

/// A job with all facts that a payload needs.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Draft {
    pub(crate) command: Vec<u8>,
    pub(crate) facts: Facts,
    pub(crate) now: UnixSeconds,
    pub(crate) horizon: Option<HorizonFields>,
}

/// A job that is ready to be pushed.
pub(crate) struct ReadyJob {
    pub(crate) payload: Vec<u8>,
    pub(crate) uuid: JobUuid,
    /// The id that the driver gives the job; its uuid where the driver puts none into payloads.
    pub(crate) id: JobId,
    pub(crate) due: Option<UnixSeconds>,
}

impl Draft {
    pub(crate) fn of(
        services: &Services,
        command: Vec<u8>,
        answers: &Answers,
        now: UnixSeconds,
    ) -> Result<Self, DraftError> {
        let value = Value::from_bytes(&command)?;
        let made = Made {
            value,
            bytes: command,
        };
        Self::of_made(services, made, answers, now)
    }

    pub(crate) fn of_made(
        services: &Services,
        made: Made,
        answers: &Answers,
        now: UnixSeconds,
    ) -> Result<Self, DraftError> {
        let manifest = manifest(services)?;
        let Made { value, bytes } = made;
        let facts = manifest.facts_with(&value, answers, now)?;
        refuse_hooks(services)?;
        if facts.is_encrypted && services.encrypter.is_none() {
            return Err(DraftError::NoKey(facts.class.to_string()));
        }
        let horizon = services
            .has_horizon
            .then(|| manifest.horizon(&value, answers));
        Ok(Self {
            command: bytes,
            facts,
            now,
            horizon: horizon.transpose()?,
        })
    }

    /// Makes the payload for this queue, with what the app's payload hooks add; `inherited` is what it
    /// inherits from the job that is being run.
    pub(crate) async fn finish(
        self,
        services: &Services,
        inherited: &Inherited,
        (connection, queue): (&str, &QueueName),
    ) -> Result<ReadyJob, DraftError> {
        let (payload, mut ready) = self.build(services, inherited, connection)?;
        let made = (payload, ready.payload);
        ready.payload = hooked(services, made, inherited, (connection, queue)).await?;
        Ok(ready)
    }

    /// Says whether artisand can push the job whatever PHP answers.
    pub(crate) fn check(self, services: &Services, connection: &str) -> Result<(), DraftError> {
        if let (Some(hook), Hooks::Ask(_)) = (first_hook(services), &services.hooks) {
            return Err(hook_error(hook, "PHP may not answer"));
        }
        self.build(services, &Inherited::default(), connection)
            .map(drop)
    }

    /// Makes the payload, without what payload hooks add.
    fn build(
        self,
        services: &Services,
        inherited: &Inherited,
        connection: &str,
    ) -> Result<(NewPayload, ReadyJob), DraftError> {
        let zone = &services.timezone;
        let command = match &services.encrypter {
            Some(encrypter) if self.facts.is_encrypted => {
                encrypter.encrypt_command(&self.command).into_bytes()
            }
            _ => self.command,
        };
        let delay = self.facts.delay.as_ref();
        let due = delay.map(|delay| delay.available_at(self.now, zone));
        let mut payload = NewPayload {
            extra: inherited.fields(),
            horizon: self.horizon,
            ..self.facts.payload(command, self.now, zone)?
        };
        let id = services.add_driver_fields(connection, &mut payload);
        let ready = ReadyJob {
            payload: payload.to_bytes(services.version)?,
            uuid: payload.uuid.clone(),
            id,
            due: due.transpose()?,
        };
        Ok((payload, ready))
    }
}

/// Says whether the app has payload hooks that only PHP can run.
pub(crate) fn refuse_hooks(services: &Services) -> Result<(), DraftError> {
    match (first_hook(services), &services.hooks) {
        (Some(hook), Hooks::OnlyPhp) => Err(hook_error(hook, "only PHP can run it")),
        _ => Ok(()),
    }
}

/// The bytes of a payload, with what the app's payload hooks add.
pub(crate) async fn hooked(
    services: &Services,
    (mut payload, bytes): (NewPayload, Vec<u8>),
    inherited: &Inherited,
    (connection, queue): (&str, &QueueName),
) -> Result<Vec<u8>, DraftError> {
    let (Some(hook), Hooks::Ask(hooks)) = (first_hook(services), &services.hooks) else {
        return Ok(bytes);
    };
    let text = str::from_utf8(&bytes).expect("payloads are JSON");
    let fields = hooks.fields(text, connection, queue).await;
    let fields = fields.map_err(|why| hook_error(hook, &why))?;
    payload.extra = inherited.fields_and(fields);
    Ok(payload.to_bytes(services.version)?)
}

fn first_hook(services: &Services) -> Option<&String> {
    services.manifest.as_deref()?.payload_hooks.first()
}

fn hook_error(hook: &str, why: &str) -> DraftError {
    DraftError::Hook {
        hook: hook.to_owned(),
        why: why.to_owned(),
    }
}

/// A job with the place where it goes.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PushPlan {
    pub(crate) draft: Draft,
    pub(crate) connection: String,
    pub(crate) queue: QueueName,
}

/// A lock that a new job holds.
#[derive(Debug)]
pub(crate) struct Lock {
    pub(crate) store: String,
    pub(crate) name: String,
    pub(crate) owner: String,
    pub(crate) ttl: Duration,
    pub(crate) site: LockSite,
}

/// Where a lock is kept, which decides how it is taken.
#[derive(Debug)]
pub(crate) enum LockSite {
    /// On the queue's own server under this key: taken in one step with the push.
    OnQueue(LockPlace),
    /// In another store: taken by itself.
    Elsewhere,
    /// In the memory of each process: the lock is always free.
    Nowhere,
}

/// A job that can be pushed once its lock is taken.
#[derive(Debug)]
pub(crate) struct Ready {
    pub(crate) connection: String,
    pub(crate) uuid: JobUuid,
    pub(crate) id: JobId,
    /// It takes a lock of the queue's own server.
    pub(crate) push: Push,
    /// The lock of another store.
    pub(crate) lock: Option<Lock>,
}

impl PushPlan {
    /// Finds the place of a job; the names that are given here win.
    pub(crate) fn of(
        services: &Services,
        draft: Draft,
        connection: Option<&str>,
        queue: Option<&str>,
    ) -> Result<Self, DraftError> {
        let facts = &draft.facts;
        let connection = connection.or(facts.connection.as_deref());
        let (connection, destination) = destination(services, connection)?;
        let queue = queue.or(facts.queue.as_deref());
        let queue = queue.unwrap_or(destination.default_queue.as_str());
        let keeps_order = matches!(queue.rsplit_once('.'), Some((_, "fifo")))
            && (destination.queues.as_ref()).is_ok_and(|queues| queues.abilities().driver == "sqs");
        if keeps_order {
            manifest(services)?.refuse_own_groups(facts)?;
        }
        Ok(Self {
            queue: queue.into(),
            connection: connection.to_owned(),
            draft,
        })
    }

    /// Tries all that could fail when the job is pushed, but for the push.
    pub(crate) fn check(&self, services: &Services) -> Result<(), DraftError> {
        let (name, destination) = destination(services, Some(&self.connection))?;
        queues(name, destination)?;
        let mut tried = self.clone();
        tried.lock(services, |_| false)?;
        let inherited = Inherited::default();
        tried.draft.build(services, &inherited, name).map(drop)
    }

    /// The lock that the job needs, if it is unique; its owner is written into the job from now on.
    pub(crate) fn lock(
        &mut self,
        services: &Services,
        can_claim: impl Fn(&LockPlace) -> bool,
    ) -> Result<Option<Lock>, DraftError> {
        let facts = &self.draft.facts;
        let Some(unique) = &facts.unique else {
            return Ok(None);
        };
        let class = facts.class.as_str();
        let no = |why: String| DraftError::Lock {
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
        let ttl = crate::time::seconds(unique.seconds);
        let site = match cache.lock_place(&name) {
            Some(place) if can_claim(&place) => LockSite::OnQueue(place),
            _ if cache.is_shared() => LockSite::Elsewhere,
            _ => LockSite::Nowhere,
        };
        let owner = random_owner();
        if facts.is_queueable && services.version.is_at_least(13, 24) {
            let owner = Value::from(&*owner).to_bytes();
            let command = ObjectText::parse(&self.draft.command).map_err(EditError::from)?;
            self.draft.command = command.with(&[("uniqueLockOwner", &owner)])?;
        }
        Ok(Some(Lock {
            store,
            name,
            owner,
            ttl,
            site,
        }))
    }

    /// Makes the payload; `inherited` is what it inherits from the job that dispatches this one.
    pub(crate) async fn finish(
        self,
        services: &Services,
        inherited: Inherited,
        lock: Option<Lock>,
    ) -> Result<Ready, DraftError> {
        let inherited = with_lock(services.version, inherited, lock.as_ref());
        let to = (&*self.connection, &self.queue);
        let ready = self.draft.finish(services, &inherited, to).await?;
        let (claim, lock) = match lock {
            Some(Lock {
                owner,
                ttl,
                site: LockSite::OnQueue(place),
                ..
            }) => (Some(Claim { place, owner, ttl }), None),
            lock => (
                None,
                lock.filter(|lock| matches!(lock.site, LockSite::Elsewhere)),
            ),
        };
        Ok(Ready {
            connection: self.connection,
            uuid: ready.uuid,
            id: ready.id,
            push: Push {
                queue: self.queue,
                payload: ready.payload,
                due: ready.due,
                claim,
            },
            lock,
        })
    }
}

/// What a new job inherits from the dispatching one, plus the keys that locate its lock.
fn with_lock(version: Version, inherited: Inherited, lock: Option<&Lock>) -> Inherited {
    let Some(lock) = lock.filter(|_| version.is_at_least(11, 39)) else {
        return inherited;
    };
    let context = inherited.context.as_deref().cloned().unwrap_or_default();
    let mut context = context
        .with_hidden("laravel_unique_job_cache_store", &(&*lock.store).into())
        .with_hidden("laravel_unique_job_key", &(&*lock.name).into());
    if version.is_at_least(13, 24) {
        context = context.with_hidden("laravel_unique_job_lock_owner", &(&*lock.owner).into());
    }
    Inherited {
        context: Some(Arc::new(context)),
        ..inherited
    }
}

pub(crate) fn manifest(services: &Services) -> Result<&Manifest, DraftError> {
    let manifest = services.manifest.as_deref();
    manifest.ok_or(DraftError::NoManifest)
}

/// The queue connection of this name, or the app's default one.
pub(crate) fn destination<'a>(
    services: &'a Services,
    name: Option<&'a str>,
) -> Result<(&'a str, &'a Destination), DraftError> {
    let connections = services.connections.as_ref();
    let connections: &Connections = connections.ok_or(DraftError::NoConnections)?;
    let name = name.unwrap_or(connections.default_name().as_str());
    match connections.get(name) {
        Some(destination) => Ok((name, destination)),
        None => Err(DraftError::Connection {
            name: name.to_owned(),
            why: "there is none of this name".to_owned(),
        }),
    }
}

/// The queues of a connection, if artisand can use it.
pub(crate) fn queues<'a>(
    name: &str,
    destination: &'a Destination,
) -> Result<&'a Arc<dyn Queue>, DraftError> {
    let queues = destination.queues.as_ref();
    queues.map_err(|why| DraftError::Connection {
        name: name.to_owned(),
        why: why.clone(),
    })
}
