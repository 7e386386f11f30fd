//! Pushes jobs to other connections, and jobs that need a lock kept elsewhere.

use std::time::Duration;

use tokio::time::Instant;

use super::follow_ups::{FollowUpRelay, Logged, PAGE, Problem, Pushing};
use super::lease::FencingToken;
use crate::cache::Lock;
use crate::outbox::follow_up::{FollowUp, LockRequest, RemotePush, random_token};
use crate::payload::{FailedJob, Payload};
use crate::queue::{Ability, Effect, Error, Once, Push, Queue, QueueName, Spool};
use crate::shown::with_causes;
use crate::time::UnixSeconds;

/// What is done, for messages.
const TAKE: &str = "take a lock";

/// Whether the server will never take the job.
fn is_refused_for_ever(error: &Error) -> bool {
    matches!(error, Error::Refused { .. }) && error.is_wrong_kind()
}

/// How long another connection remembers a push; a record may stay in the list for that long.
const REMEMBERED: Duration = Duration::from_secs(86_400);

/// How long another list may take to free a lock that a job of this one needs. If the worker of that queue has died,
/// its lease ends after 10 seconds, and other workers look at the list every 30 seconds; a failover takes 15 or so.
pub(super) const UNTIL_FREED: Duration = Duration::from_secs(60);

/// How long a lock lives at first.
///
/// The request for it may be held up on its way until another worker has pushed the job, and the job has run: nothing
/// would free a lock that is taken then. It gets its real lifetime once its worker has the answer and still has the
/// lease: a lease without a break shows that no other worker has pushed the job.
const AT_FIRST: Duration = Duration::from_secs(60);

/// How far a list is searched for a record that frees a lock.
const MOST_LOOKED_AT: usize = 10_000;

impl FollowUpRelay {
    /// Takes the lock that a job needs, and pushes the job if it goes to another connection.
    pub(super) async fn push(
        &self,
        hold: &FencingToken,
        push: &RemotePush,
        said: &mut Logged,
    ) -> Result<Pushing, Problem> {
        let what = "push a job";
        let problem = |error: String| (what, error);
        let is_own = push.connection == self.connection.as_str();
        let to = QueueName::from(push.queue.as_str());
        let ends_in_one_step = (self.queue.abilities()).has(Ability::FinishesInOneStep);
        let elsewhere = match is_own {
            true if ends_in_one_step && hold.ledger().pushes_here(&to) => None,
            true => Some(&*self.queue),
            false => Some(self.queues(&push.connection).map_err(problem)?),
        };
        let failed = |error: crate::queue::Error| problem(with_causes(&error));
        let away = |error: crate::connection::Error| problem(with_causes(&error));
        if let Some(queues) = elsewhere
            && let Some(chosen) = queues.choose(&to).await.map_err(away)?
            && self.queues(chosen.0.as_str()).is_ok()
        {
            return Ok(Pushing::There(RemotePush {
                connection: chosen.0.to_string(),
                queue: chosen.1.to_string(),
                ..push.clone()
            }));
        }
        let is_held =
            |lock: &LockRequest| said.held.contains(&(lock.store.clone(), lock.name.clone()));
        if push.lock.as_ref().is_some_and(is_held) {
            return Ok(Pushing::Waits);
        }
        // With a lock: the job may have run and freed it, and if taken again now, nothing would free it. In one step
        // with the end of this record: a worker of another connection to the same server may have pushed the job.
        if push.lock.is_some() || elsewhere.is_none() {
            let there = elsewhere.unwrap_or(&*self.queue);
            if there.was_pushed(&to, &push.id).await.map_err(failed)? {
                return Ok(Pushing::Pushed);
            }
        }
        if let Some(lock) = &push.lock
            && let Some(instead) = self.lock(hold, push, lock, said).await?
        {
            return Ok(instead);
        }
        let payload = push.payload();
        let payload = payload.ok_or_else(|| problem("its record has no payload".to_owned()))?;
        let job = Push {
            queue: to,
            payload,
            due: push.due.map(UnixSeconds),
            claim: None,
        };
        let Some(queues) = elsewhere else {
            return Ok(Pushing::Here(vec![Effect::Push(job)]));
        };
        let once = Once {
            id: &push.id,
            remembered: REMEMBERED,
            note: "1",
        };
        let pushed = queues.push_once(&[job], once).await;
        if let Err(error) = &pushed
            && !error.allows_another_push(queues.abilities())
        {
            tracing::warn!(
                connection = push.connection,
                queue = push.queue,
                "the reply to the push of a job was lost: it is pushed again, and may be there twice"
            );
        }
        match pushed {
            Ok(_) => Ok(Pushing::Pushed),
            Err(error) if is_refused_for_ever(&error) => {
                let mut effects = vec![Effect::Record(self.refused(push, &error))];
                // No job will free the lock. The record that frees it is left in one step with the end of this one:
                // freed sooner, another job could take it before this one is tried again, which then would be dropped.
                effects.extend(push.lock.as_ref().map(LockRequest::unlock));
                Ok(Pushing::Here(effects))
            }
            Err(error) => Err(failed(error)),
        }
    }

    /// Takes the lock of a job; what becomes of the push if that is not possible.
    async fn lock(
        &self,
        hold: &FencingToken,
        push: &RemotePush,
        lock: &LockRequest,
        said: &mut Logged,
    ) -> Result<Option<Pushing>, Problem> {
        if !hold.renew().await {
            return Ok(Some(Pushing::Lost));
        }
        let lives = crate::time::seconds(lock.seconds);
        let at_first = match lock.seconds {
            0 => AT_FIRST,
            _ => lives.min(AT_FIRST),
        };
        if !self.take(lock, at_first).await? {
            if self.may_be_freed(push, said) || self.is_to_be_freed(hold, lock).await? {
                return Ok(Some(Pushing::Waits));
            }
            tracing::info!(
                lock = lock.name,
                "a chain ends: its next job is unique, and its lock cannot be taken, as when another one is queued"
            );
            return Ok(Some(Pushing::Pushed));
        }
        said.refused.remove(&push.id);
        if !hold.renew().await {
            return Ok(Some(Pushing::Lost));
        }
        let is_kept = self.handle(lock, lives)?.refresh().await;
        let is_kept = is_kept.map_err(|error| (TAKE, with_causes(&error)))?;
        // It may have run out, or another worker has pushed the job meanwhile.
        Ok((!is_kept).then_some(Pushing::Waits))
    }

    /// Whether a record further on in the list frees this lock. Of the records that are read together, those come
    /// first.
    async fn is_to_be_freed(
        &self,
        hold: &FencingToken,
        lock: &LockRequest,
    ) -> Result<bool, Problem> {
        for from in (0..MOST_LOOKED_AT).step_by(PAGE) {
            let records = hold.ledger().read(Spool::FollowUps, from, PAGE).await;
            let records = records.map_err(|error| (TAKE, with_causes(&error)))?;
            if records.is_empty() {
                break;
            }
            let frees = |record: &Vec<u8>| match serde_json::from_slice(record) {
                Ok(FollowUp::Unlock { store, name, .. }) => {
                    store == lock.store && name == lock.name
                }
                _ => false,
            };
            if records.iter().any(frees) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether the lock of a job may be about to be freed by a record in the list of another queue, which is done apart
    /// from this one.
    fn may_be_freed(&self, push: &RemotePush, said: &mut Logged) -> bool {
        let has_parts = (self.queues.iter()).any(|queue| self.ledger.part(queue).is_some());
        let since = said.refused.entry(push.id.clone());
        has_parts && since.or_insert_with(Instant::now).elapsed() < UNTIL_FREED
    }

    /// The record of a job that its queue does not take, for the app's failed jobs: there it is seen, and can be
    /// retried.
    fn refused(&self, push: &RemotePush, error: &Error) -> FailedJob {
        let error = with_causes(error);
        tracing::error!(
            connection = push.connection,
            queue = push.queue,
            error,
            "a job that follows another one cannot be pushed: it becomes a failed job"
        );
        let payload = push.payload().and_then(|bytes| Payload::parse(&bytes).ok());
        let uuid = payload.and_then(|payload| payload.uuid);
        FailedJob {
            token: uuid.is_none().then(random_token),
            uuid: uuid.map(|uuid| uuid.to_string()),
            connection: push.connection.clone(),
            queue: push.queue.clone(),
            payload: push.payload.clone(),
            // As PHP prints an exception.
            exception: format!(
                "Artisand\\PushRefused: {error} in artisand:0\nStack trace:\n#0 {{main}}"
            ),
            failed_at: self.clock.now().0,
        }
    }

    /// The queues of another connection.
    fn queues(&self, connection: &str) -> Result<&dyn Queue, String> {
        let connections = self.services.connections.as_ref();
        let found = connections.and_then(|connections| connections.get(connection));
        let Some(destination) = found else {
            return Err(format!("there is no queue connection `{connection}`"));
        };
        let queues = destination.queues.as_ref();
        let problem = |problem: &String| format!("connection `{connection}`: {problem}");
        queues.map(|queues| &**queues).map_err(problem)
    }

    /// The lock with this lifetime; zero for as long as the store keeps such locks.
    fn handle(&self, lock: &LockRequest, lives: Duration) -> Result<Lock, Problem> {
        let cache = self.cache(&lock.store, TAKE)?;
        Ok(cache.lock(&*lock.name, &*lock.owner, lives))
    }

    /// Takes a lock for this long; true also if this owner already holds it.
    async fn take(&self, lock: &LockRequest, lives: Duration) -> Result<bool, Problem> {
        let failed = |error: crate::cache::Error| (TAKE, with_causes(&error));
        let handle = self.handle(lock, lives)?;
        match handle.acquire().await {
            Ok(true) => return Ok(true),
            Ok(false) => {}
            // As in Laravel, whose insert fails: such a lock is never taken.
            Err(error) if error.is_long_key() => {
                tracing::error!(
                    lock = lock.name,
                    error = with_causes(&error),
                    "the lock of a unique job cannot be taken: the job is not pushed"
                );
                return Ok(false);
            }
            Err(error) => return Err(failed(error)),
        }
        let owner = handle.current_owner().await.map_err(failed)?;
        Ok(owner.as_deref() == Some(&*lock.owner))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection;
    use crate::queue::QueueRefusal;

    #[test]
    fn only_a_driver_that_will_never_take_a_job_makes_it_a_failed_one() {
        let refused = |source| Error::Refused {
            queue: "q".into(),
            source,
        };
        // A push to a key of another type is tried again: the key may be removed.
        let wrong_kind = Error::Script {
            script: "push",
            queue: "q".into(),
            source: connection::Error::Command {
                address: "test".into(),
                source: std::io::Error::other("a key is a hash, not a list").into(),
            },
        };
        assert!(wrong_kind.is_wrong_kind());
        let draining = QueueRefusal::Draining {
            tube: "q".to_owned(),
            size: 2,
        };
        let rows = [
            (refused(QueueRefusal::Nowhere), true),
            (refused(draining), false),
            (wrong_kind, false),
        ];
        for (error, expected) in rows {
            assert_eq!(is_refused_for_ever(&error), expected, "{error:?}");
        }
    }
}
