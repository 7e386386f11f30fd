//! Pushes payloads that are made, and says what became of them.

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use jiff::tz::TimeZone;

use super::app::App;
use super::error::DispatchError;
use crate::cache;
use crate::handler::dispatch::{self as draft, Lock, Ready};
use crate::payload::{JobId, JobUuid, random_id};
use crate::php::{ClassName, Object, Value};
use crate::queue::{Ability, ConnectionName, Once, PushedOnce, Queue, QueueName, push_surely};

/// What became of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Dispatched {
    /// It is on its queue.
    Queued {
        /// `uuid` of the job.
        uuid: JobUuid,
        /// `id` of the job.
        id: JobId,
        /// The queue connection.
        connection: ConnectionName,
        /// The queue.
        queue: QueueName,
    },
    /// A unique job of the same id waits already, so this one was not pushed.
    Unique,
}

/// A job whose payload is made.
#[derive(Debug)]
#[must_use = "nothing is dispatched before it is pushed"]
pub struct Prepared {
    pub(super) app: Arc<App>,
    pub(super) ready: Ready,
    pub(super) once: Option<String>,
}

/// How long a key of `once` is remembered.
const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// How long the identity of a push is remembered that a lost connection may interrupt: longer than the push is tried,
/// which is five times at most, each with half a minute for the reply.
pub(super) const A_WHILE: Duration = Duration::from_secs(300);

impl Prepared {
    /// The uuid of the job.
    pub fn uuid(&self) -> &JobUuid {
        &self.ready.uuid
    }

    /// The id of the job.
    pub fn id(&self) -> &JobId {
        &self.ready.id
    }

    /// The queue that it goes to.
    pub fn queue(&self) -> &QueueName {
        &self.ready.push.queue
    }

    /// The payload, as it will be in the queue.
    pub fn payload(&self) -> &[u8] {
        &self.ready.push.payload
    }

    /// Pushes the job; a unique one takes its lock first.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Refused`], [`DispatchError::Unknown`].
    ///
    /// # Cancel safety
    ///
    /// Once it has begun, the push of a unique job goes on even if the future is dropped: a lock is never left without
    /// its job.
    pub async fn push(mut self) -> Result<Dispatched, DispatchError> {
        let Some(lock) = self.ready.lock.take() else {
            return Ok(self.push_to(self.queues()?).await?.0);
        };
        let pushed = tokio::spawn(async move { self.push_with(&lock).await }).await;
        pushed.map_err(|error| DispatchError::Unknown(error.into()))?
    }

    pub(super) fn queues(&self) -> Result<&dyn Queue, DispatchError> {
        let services = &self.app.services;
        let (name, destination) = draft::destination(services, Some(&self.ready.connection))?;
        Ok(&**draft::queues(name, destination)?)
    }

    /// Pushes a job whose lock is kept in another store than the queue.
    async fn push_with(&self, lock: &Lock) -> Result<Dispatched, DispatchError> {
        let queues = self.queues()?;
        if !self.acquire(lock).await? {
            return Ok(Dispatched::Unique);
        }
        match self.push_to(queues).await {
            Ok((dispatched, is_new)) => {
                if !is_new {
                    // That job has freed its own lock: none would free this one.
                    self.free(lock).await;
                }
                Ok(dispatched)
            }
            Err(error) => {
                if matches!(error, DispatchError::Refused(_)) {
                    // Nothing was pushed: the next one has to get the lock.
                    self.free(lock).await;
                }
                Err(error)
            }
        }
    }

    /// Pushes the job; false if another one was pushed under its key before.
    async fn push_to(&self, queues: &dyn Queue) -> Result<(Dispatched, bool), DispatchError> {
        let push = &self.ready.push;
        if self.once.is_none() && push.claim.is_none() {
            let payload = std::slice::from_ref(&push.payload);
            match push.due {
                Some(due) => queues.later(&push.queue, due, &push.payload).await?,
                None => queues.push(&push.queue, payload).await?,
            }
            return Ok((self.queued(self.ready.uuid.clone()), true));
        }
        let abilities = queues.abilities();
        if self.once.is_some() && !abilities.has(Ability::RemembersPushes) {
            let why = format!(
                "`once` cannot be kept: {} does not recognize a job that is pushed again",
                abilities.driver
            );
            return Err(DispatchError::Refused(why.into()));
        }
        let id = match &self.once {
            Some(key) => format!("once:{key}"),
            None => random_id().to_string(),
        };
        let remembered = if self.once.is_some() { DAY } else { A_WHILE };
        let once = Once {
            id: &id,
            remembered,
            note: self.ready.uuid.as_str(),
        };
        match push_surely(queues, std::slice::from_ref(push), once).await? {
            PushedOnce::Now { locked: 0 } => Ok((self.queued(self.ready.uuid.clone()), true)),
            PushedOnce::Now { .. } => Ok((Dispatched::Unique, true)),
            PushedOnce::Before { note } if !note.is_empty() => {
                // After a lost reply, it is this push that is recognized.
                let is_this_one = *note == *self.ready.uuid.as_str();
                Ok((self.queued(JobUuid::from(&*note)), is_this_one))
            }
            PushedOnce::Before { .. } => Ok((Dispatched::Unique, false)),
        }
    }
    pub(super) fn queued(&self, uuid: JobUuid) -> Dispatched {
        Dispatched::Queued {
            uuid,
            id: self.ready.id.clone(),
            connection: (&*self.ready.connection).into(),
            queue: self.ready.push.queue.clone(),
        }
    }

    /// The lock of another store; `None` if nothing is known of it, which the plan has ruled out.
    fn handle(&self, lock: &Lock) -> Result<Option<cache::Lock>, DispatchError> {
        let Some(stores) = &self.app.services.stores else {
            return Ok(None);
        };
        let cache = stores.get(&lock.store);
        let cache = cache.map_err(|error| DispatchError::Refused(error.into()))?;
        Ok(Some(cache.lock(&*lock.name, &*lock.owner, lock.ttl)))
    }

    pub(super) async fn acquire(&self, lock: &Lock) -> Result<bool, DispatchError> {
        match self.handle(lock)? {
            Some(handle) => {
                let acquired = handle.acquire().await;
                if acquired.is_err() {
                    // It may be taken: maybe only the answer was lost.
                    self.free(lock).await;
                }
                acquired.map_err(|error| DispatchError::Refused(error.into()))
            }
            None => Ok(true),
        }
    }

    /// Frees the lock of a job that was not pushed; if that fails, the lock runs out.
    pub(super) async fn free(&self, lock: &Lock) {
        if let Ok(Some(handle)) = self.handle(lock) {
            let _ = handle.release().await;
        }
    }
}

/// Unix seconds; times before 1970 are 0, which is due.
pub(super) fn seconds(time: SystemTime) -> i64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    i64::try_from(since.as_secs()).unwrap_or(i64::MAX)
}

/// The object that Laravel's date class serializes to.
pub(super) fn carbon(time: SystemTime, zone: &str) -> Value {
    let class = ClassName::new("Illuminate\\Support\\Carbon").expect("a class name");
    let at = Timestamp::try_from(time).unwrap_or(Timestamp::UNIX_EPOCH);
    let (zone, name) = match TimeZone::get(zone) {
        Ok(found) => (found, zone),
        Err(_) => (TimeZone::UTC, "UTC"),
    };
    let date = at
        .to_zoned(zone)
        .strftime("%Y-%m-%d %H:%M:%S%.6f")
        .to_string();
    let object = Object::new(class).public("date", &*date);
    let object = object.public("timezone_type", 3).public("timezone", name);
    Value::Object(object)
}
