//! Queues: take jobs, and give them back in every way Laravel knows.
//!
//! A [`ReservedJob`] is bytes. The driver finds it again only by the exact member that was reserved, so those
//! bytes are kept until the job is settled and nothing is encoded anew. The holder of a reserved job settles it
//! with [`Queue::settle`].

use std::fmt;
use std::num::NonZeroUsize;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;

mod abilities;
mod beanstalkd;
mod connections;
mod database;
mod effect;
mod failover;
#[cfg(test)]
pub(crate) mod faulty;
mod heads;
mod in_order;
mod keys;
mod ledger;
mod memory;
mod name;
mod nothing;
mod redis;
mod refusal;
mod spool;
mod sqs;
mod surely;

pub use abilities::{Abilities, Ability};
#[cfg(feature = "internals")]
pub use beanstalkd::Reply as BeanstalkdReply;
pub use beanstalkd::{BeanstalkdOptions, BeanstalkdQueue};
pub use connections::{Connections, Destination};
pub use database::{DatabaseQueue, DatabaseQueueOptions};
pub use effect::Push;
pub use effect::{Claim, Effect, Unlock};
pub use failover::{FailoverQueue, Inner};
pub use heads::Heads;
pub use in_order::InOrder;
pub use keys::{Keys, Tagging};
pub use ledger::{Driver, Ledger};
pub use memory::MemoryQueue;
pub use name::{ConnectionName, QueueName};
pub use nothing::NoQueue;
pub(crate) use redis::{QueuesByPrefix, queues_by_prefix};
pub use redis::{RedisQueue, RedisQueueOptions};
pub use refusal::QueueRefusal;
pub use spool::Spool;
pub use sqs::{Overflow, PayloadStore, SqsKey, SqsOptions, StoreProblem};
#[cfg(feature = "sqs")]
pub use sqs::{SHORTEST_VISIBILITY, SqsQueue};
pub(crate) use surely::push_surely;

use crate::connection::{LockPlace, Transaction};
use crate::time::UnixSeconds;

/// A job that was popped and not yet settled.
#[derive(Clone, PartialEq, Eq)]
pub struct ReservedJob {
    /// Queue the job was popped from.
    pub queue: QueueName,
    /// The job's bytes as they stood in the queue: decoded, run, and recorded if it fails.
    pub payload: Arc<[u8]>,
    /// Number of this attempt, from 1.
    pub attempts: u32,
    /// When any worker may take the job unless the reservation is renewed, counted from before the pop was sent;
    /// `None` for never.
    pub lease: Option<UnixSeconds>,
    /// The number that the pop's [`ChooseFn`] gave this job; `None` if it was not asked.
    pub choice: Option<usize>,
    /// The driver's key to find the job again. Redis: the payload as it was reserved, which PHP shows its jobs.
    pub ticket: Arc<[u8]>,
    /// What its server calls the job, where the end of a job is not one step.
    pub delivery: Option<Delivery>,
}

impl ReservedJob {
    /// [`attempts`](Self::attempts) of a job whose queue cannot count any further.
    pub const UNCOUNTABLE: u32 = u32::MAX;
}

impl fmt::Debug for ReservedJob {
    /// Shows the length of the payload and not its content: payloads stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedJob")
            .field("queue", &self.queue)
            .field("attempts", &self.attempts)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}

/// Hears of jobs that came to a queue. Called on the task that brought them there: return quickly and never block.
pub trait PushListener: Send + Sync + fmt::Debug + 'static {
    /// Called once for each job, after it was pushed.
    fn pushed(&self, connection: &ConnectionName, queue: &QueueName, payload: &[u8]);

    /// Called once for each job whose reservation ran out and that a pop has moved back to its queue, with its bytes
    /// while it was reserved. Only queues on Redis know.
    fn migrated(&self, reserved: &[u8]) {
        let _ = reserved;
    }
}

impl PushListener for Vec<Arc<dyn PushListener>> {
    fn pushed(&self, connection: &ConnectionName, queue: &QueueName, payload: &[u8]) {
        for listener in self {
            listener.pushed(connection, queue, payload);
        }
    }

    fn migrated(&self, reserved: &[u8]) {
        for listener in self {
            listener.migrated(reserved);
        }
    }
}

/// Hears how long the server took. Called on the calling task: return quickly and never block.
pub trait CallListener: Send + Sync + fmt::Debug + 'static {
    /// Called once for each pop, settlement and renewal; `call` names which.
    fn answered(&self, call: &'static str, took: Duration, has_failed: bool);
}

/// What becomes of a payload that a pop meets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Choice {
    /// It is taken; the caller recognizes the job by the number.
    Take(usize),
    /// It stays, and the next pop may take it.
    NotNow,
    /// It stays, and pops for this executor need not ask again in the same second.
    Never,
}

/// Decides whether to take a payload.
pub type ChooseFn<'a> = &'a mut (dyn FnMut(&QueueName, &[u8]) -> Choice + Send + Sync);

/// Takes some of the jobs and leaves the rest where they are, in order.
pub struct Selection<'a> {
    /// Texts that mark payloads to take: a payload that holds one of them is taken without asking `choose`. The
    /// caller checks what it gets.
    pub needles: &'a [Vec<u8>],
    /// Decides about other payloads, within a bounded window into each queue. A job that it takes has a slot.
    pub choose: ChooseFn<'a>,
    /// What earlier pops for the same executor have learnt.
    pub heads: &'a mut Heads,
}

/// What to pop.
pub struct PopRequest<'a> {
    /// Queues in order: a later queue is looked at only if those before it are empty.
    pub queues: &'a [QueueName],
    /// Most jobs to reserve.
    pub max: NonZeroUsize,
    /// The current second, from the client's clock as in Laravel.
    pub now: UnixSeconds,
    /// Queues from which [`Queue::wait_for_push`] took a notification since the last pop.
    pub woken: &'a [QueueName],
    /// Which jobs to take; `None` for all.
    pub selection: Option<Selection<'a>>,
    /// Whether the caller goes away if there is no job: a server whose answers may overlook jobs then looks longer.
    pub thorough: bool,
}

impl fmt::Debug for Selection<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Selection")
            .field("needles", &self.needles.len())
            .finish_non_exhaustive()
    }
}

impl fmt::Debug for PopRequest<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PopRequest")
            .field("queues", &self.queues)
            .field("max", &self.max)
            .field("now", &self.now)
            .field("woken", &self.woken)
            .field("selects", &self.selection.is_some())
            .finish()
    }
}

/// What a pop found.
#[derive(Debug, Default)]
pub struct Popped {
    /// Reserved jobs, in the order they stood.
    pub jobs: Vec<ReservedJob>,
    /// Payloads that could not be decoded and went to quarantine, by queue.
    pub quarantined: Vec<(QueueName, usize)>,
    /// The next second at which a delayed job or a reservation is due on a queue that was looked at.
    pub next_due: Option<UnixSeconds>,
    /// Jobs moved because they were due.
    pub migrated: u64,
    /// Whether the pop ended before it had looked at all queues, though it could take more jobs: the next pop is due at
    /// once.
    pub is_cut: bool,
}

/// What happens to a reserved job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// The job is done: its reservation is removed.
    Delete,
    /// The job becomes due at this second, with its attempt counted.
    Release(UnixSeconds),
    /// The job becomes due at this second as it was before the pop: its attempt does not count.
    ReleaseUncounted(UnixSeconds),
    /// The job stays reserved until this second, then any worker may run it; Laravel leaves a job so after a
    /// timeout.
    LeaveUntil(UnixSeconds),
    /// The job goes back to the head of its queue as it was before the pop.
    PutBack,
    /// The job goes to the end of another queue as it was before the pop.
    Forward(QueueName),
    /// The job's payload cannot be decoded: it goes to the queue's quarantine as it was before the pop.
    Quarantine,
    /// The reservation is removed and all effects of the job's end are applied, in one step or not at all.
    Finish(Vec<Effect>),
}

/// Whether this worker still had the reservation of a job when it was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It had the reservation, and the settlement is done.
    Done,
    /// The reservation was gone: it had ended and another worker has the job, or the queue was cleared. Nothing
    /// was changed.
    Gone,
}

/// Some of several jobs could not be settled.
#[derive(Debug, thiserror::Error)]
#[error("{} of {} jobs could not be settled", .settled.iter().filter(|settled| settled.is_none()).count(), .settled.len())]
pub struct Unsettled {
    /// The result for each job, in order; `None` if it is unknown whether the job is settled.
    pub settled: Vec<Option<Settled>>,
    /// One of the problems; one with an unknown outcome, if there is any.
    pub source: Error,
}

/// Whether a reservation could be renewed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// The reservation lasts until this second.
    Until(UnixSeconds),
    /// The reservation had ended, and any worker may have the job now, or the queue was cleared.
    Lost,
}

/// A place where a queue keeps jobs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// The list, oldest first.
    Pending,
    /// Jobs that are not yet due, the next one first.
    Delayed,
    /// Jobs that are being run, or were left by a worker that is gone.
    Reserved,
    /// Payloads that could not be decoded.
    Quarantine,
}

/// What happens to a payload in quarantine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes to the end of its queue.
    Requeue,
    /// It is deleted.
    Delete,
}

/// A row of a table of jobs, with its columns.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct JobRow {
    /// The table, with the prefix of the app's database connection.
    pub table: String,
    /// Column `queue`.
    pub queue: String,
    /// Column `payload`.
    pub payload: String,
    /// Column `attempts`.
    pub attempts: u32,
    /// Column `reserved_at`.
    pub reserved_at: Option<UnixSeconds>,
    /// Column `available_at`.
    pub available_at: UnixSeconds,
    /// Column `created_at`.
    pub created_at: UnixSeconds,
}

/// Why a job could not be pushed on a connection of the caller.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InsideError {
    /// The connection is none of the database that holds the queues.
    #[error("the job's queue is {0}, so it cannot be pushed in this transaction")]
    Elsewhere(&'static str),
    /// The payload is not UTF-8.
    #[error("the payload is not UTF-8 text, which is all that a database keeps")]
    NotText,
    /// The job's lock cannot be taken.
    #[error("the lock of the job cannot be taken")]
    Lock(#[source] crate::connection::Error),
    /// The server refused a statement.
    #[error("the database refused a statement of the push")]
    Sql(#[from] crate::connection::SqlError),
}

/// Jobs to push once: a repeated push of the same identity does nothing.
#[derive(Debug, Clone, Copy)]
pub struct Once<'a> {
    /// The identity of the push.
    pub id: &'a str,
    /// How long the push is remembered.
    pub remembered: Duration,
    /// What is remembered of it, such as the job's uuid; nothing of jobs whose lock was taken.
    pub note: &'a str,
}

/// What a push did that happens once.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PushedOnce {
    /// The jobs are pushed, but for those whose lock was taken.
    Now {
        /// Number of jobs whose lock was taken.
        locked: usize,
    },
    /// They were pushed before.
    Before {
        /// What was noted then.
        note: String,
    },
}

/// Number of jobs of a queue in each place.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Sizes {
    /// In the list.
    pub pending: u64,
    /// Not yet due.
    pub delayed: u64,
    /// Being run, or left by a worker that died.
    pub reserved: u64,
    /// In quarantine.
    pub quarantined: u64,
}

/// Jobs that the next pop of a queue moves to its list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Due {
    /// Delayed jobs that are due.
    pub delayed: u64,
    /// Jobs whose reservation has ended.
    pub reserved: u64,
}

/// An error from a queue connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not run one of the queue scripts or commands.
    #[error("could not run {script} on queue `{queue}`")]
    Script {
        /// Name of the script under `src/queue/scripts/`, or of the command.
        script: &'static str,
        /// The queue that the script ran for; the first of several.
        queue: QueueName,
        /// What the connection reported.
        source: crate::connection::Error,
    },
    /// The database did not make a step, such as a pop.
    #[error("could not {what} queue `{queue}`")]
    Sql {
        /// What was to be done.
        what: &'static str,
        /// The queue it was for; the first of several.
        queue: QueueName,
        /// Whether it may be done: the reply of the commit was lost.
        is_unknown: bool,
        /// What the connection reported.
        source: crate::connection::Error,
    },
    /// A script answered with something it never returns.
    #[error("{script} on queue `{queue}` returned something else than it should")]
    Reply {
        /// Name of the script.
        script: &'static str,
        /// The queue that the script ran for.
        queue: QueueName,
    },
    /// The store of payloads that are too long for a message could not take one, or was away.
    #[error("the cache store with the long payloads of queue `{queue}` cannot be used")]
    Overflow {
        /// The queue that the call was for.
        queue: QueueName,
        /// What the store reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// An earlier try, whose reply was lost, may have been carried out; this is the error of the last one.
    #[error("an earlier try may have been carried out")]
    Doubtful {
        /// The error of the last try.
        source: Box<Self>,
    },
    /// The server refused, or cannot do what was asked.
    #[error("the call for queue `{queue}` was refused")]
    Refused {
        /// The queue that the call was for.
        queue: QueueName,
        /// Why.
        source: QueueRefusal,
    },
}

impl Error {
    /// True if the connection is gone and a new one may help.
    pub fn is_lost_connection(&self) -> bool {
        match self {
            Self::Script { source, .. } | Self::Sql { source, .. } => source.is_lost_connection(),
            Self::Doubtful { source } => source.is_lost_connection(),
            _ => false,
        }
    }

    /// True if there was no connection to send anything by.
    pub(crate) fn is_unsent(&self) -> bool {
        match self {
            Self::Script { source, .. } | Self::Sql { source, .. } => source.is_unsent(),
            _ => false,
        }
    }

    /// True if it is unknown whether the server carried out the command: it may have, and its reply was lost.
    pub fn is_of_unknown_outcome(&self) -> bool {
        match self {
            Self::Script { source, .. } => source.is_of_unknown_outcome(),
            Self::Sql { is_unknown, .. } => *is_unknown,
            // The script did something, but its reply could not be read.
            Self::Reply { .. } | Self::Doubtful { .. } => true,
            Self::Refused { .. } | Self::Overflow { .. } => false,
        }
    }

    /// The same for a call of which an earlier try may have been carried out.
    pub(crate) fn doubtful(self) -> Self {
        if self.is_of_unknown_outcome() {
            return self;
        }
        Self::Doubtful {
            source: Box::new(self),
        }
    }

    /// The same, if a part of the call or an earlier try of it may have been carried out.
    pub(crate) fn doubtful_if(self, is_begun: bool) -> Self {
        if is_begun { self.doubtful() } else { self }
    }

    /// Whether a [`push_once`](Queue::push_once) that ended so may be made again without doubling a job.
    pub(crate) fn allows_another_push(&self, abilities: &Abilities) -> bool {
        abilities.has(Ability::RemembersPushes) || !self.is_of_unknown_outcome()
    }

    /// True if a key has the wrong type, or the server can never do this: nothing was done, and a retry does not help.
    pub fn is_wrong_kind(&self) -> bool {
        // The wording in effects.lua.
        const SAID: &str = "a key is a ";
        if let Self::Refused { source, .. } = self {
            return source.is_final();
        }
        let Self::Script { source, .. } = self else {
            return false;
        };
        matches!(source, crate::connection::Error::Command { source, .. } if source.to_string().contains(SAID))
    }
}

/// A job as its server knows it, through all of its deliveries.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivery {
    /// What the server calls the job.
    pub id: String,
    /// When the job was pushed, to a second or two; only where the server may give the same name to a later job.
    pub pushed: Option<UnixSeconds>,
    /// What the server wants to be told with each request about this delivery, where that is not the job's name.
    pub receipt: Option<String>,
}

/// The first job that waits in a queue; `None` if there is none, or the driver shows none.
///
/// # Errors
///
/// As of [`Queue::look`].
pub(crate) async fn first_waiting(
    queue: &dyn Queue,
    name: &QueueName,
) -> Result<Option<Vec<u8>>, Error> {
    if !queue.abilities().has(Ability::Shows) {
        return Ok(None);
    }
    let head = queue.look(name, Place::Pending, 0, 1).await?;
    Ok(head.into_iter().next())
}

/// The number of an attempt from a payload's PHP integer; values below 1 count as 1.
fn number_of_attempts(attempts: i64) -> u32 {
    u32::try_from(attempts.max(1)).unwrap_or(u32::MAX)
}

/// The result of a call to a server, when it is there.
pub type Answer<'a, T, E = Error> = Pin<Box<dyn Future<Output = Result<T, E>> + Send + 'a>>;

/// A queue connection: everything that can be done with the jobs of its queues.
///
/// Futures are boxed, so that a worker runs on any driver: a call is one allocation for many jobs.
///
/// Every driver passes the clauses of `tests/it/contract.rs` that its `Abilities` promise.
pub trait Queue: Send + Sync + fmt::Debug + 'static {
    /// What the driver can do; constant.
    fn abilities(&self) -> &Abilities;

    /// Asks the server for a sign of life.
    ///
    /// # Errors
    ///
    /// The connection cannot be opened, or the server refuses to serve.
    fn ping(&self) -> Answer<'_, (), crate::connection::Error>;

    /// Opens connections on this runtime from now on, which then reads replies for all callers. Only the first runtime
    /// that is given counts. A driver whose callers share no connection need not do anything.
    fn open_on(&self, _: &Handle) {}

    /// Reserves up to `max` of the oldest pending jobs; returns at once, possibly without any.
    ///
    /// Before that, jobs that are due are moved to the end of their list:
    /// delayed ones, then those whose reservation has ended, a bounded number
    /// at a time. Each job reserved has its `attempts` counted up and is
    /// reserved until *now + `retry_after`*. If this process dies, any worker
    /// that looks at the queue after that moment gets the job again.
    ///
    /// # Errors
    ///
    /// The jobs are then either untouched or reserved; they are never gone.
    ///
    /// # Cancel safety
    ///
    /// Not cancel safe: a dropped future may leave jobs reserved until
    /// `retry_after` has passed. Do not put this call in a `select!` arm.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\RedisQueue::pop`, `migrate`, `retrieveNextJob`.
    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped>;

    /// Settles jobs, each in its own way, and says for each whether it was still reserved.
    ///
    /// May be called again with the same jobs after an error: a job that was settled before is then reported as
    /// [`Settled::Gone`] and not settled twice.
    ///
    /// A job that was put back, or released uncounted, looks the same once another worker has popped it again.
    /// Settle it again only if it is certain that the first settlement did not happen.
    ///
    /// # Errors
    ///
    /// Each of the jobs is then either settled or unchanged; [`Unsettled`] says which are certainly settled.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves each job either settled or unchanged.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\RedisQueue::deleteReserved`, `deleteAndRelease`.
    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled>;

    /// Says of reserved jobs that they had ended before they were delivered again: they are deleted next, and the app
    /// may have pushed them anew meanwhile. Only SQS needs to know.
    fn had_ended(&self, jobs: &[ReservedJob]) {
        let _ = jobs;
    }

    /// Moves the end of reservations to *now + `retry_after`* and says for each whether it was still held;
    /// reservations that are gone stay gone. That of a job that is being settled may stay as it is, and count as held.
    ///
    /// # Errors
    ///
    /// Some of the reservations may then be renewed.
    fn renew<'a>(&'a self, jobs: &'a [Arc<ReservedJob>], now: UnixSeconds)
    -> Answer<'a, Vec<Held>>;

    /// Waits until a job is pushed to one of the queues, at most for `timeout`; returns the queue.
    ///
    /// Only where the driver announces pushes (`Ability::AnnouncesPushes`); otherwise waiting is useless. A
    /// notification is a hint, not a job. Waiting removes it from the server: pass the queue on as `woken` with the
    /// next pop.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may lose a notification, which delays a worker by one poll interval.
    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>>;

    /// Ends all waits; says whether they have left jobs, which the next pop takes.
    ///
    /// For a worker that stops, where waiting takes jobs.
    fn end_waits(&self) -> Answer<'_, bool> {
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Whether a queue can be popped while reservations of another one cannot be renewed: a pop must not take the jobs
    /// of the other for abandoned.
    fn are_apart(&self, one: &QueueName, other: &QueueName) -> bool {
        let _ = (one, other);
        false
    }

    /// The name that PHP has for a queue in records of its jobs.
    fn recorded(&self, queue: &QueueName) -> QueueName {
        queue.clone()
    }

    /// Adds payloads to the end of a queue, byte for byte.
    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()>;

    /// Adds a payload that becomes due at a given second.
    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()>;

    /// Pushes jobs, unless jobs of this identity were pushed before: in one step, on Redis in one for each 100,000.
    ///
    /// Jobs for queues in different slots of a cluster are pushed in steps of their own.
    ///
    /// # Errors
    ///
    /// Each step is then made or not, and the call may be repeated: it makes those that are missing.
    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce>;

    /// The connection and its queue to which a push of this queue goes at this moment, if this is a connection that
    /// tries several in order. A caller that has noted it pushes there and nowhere else, however often it has to begin
    /// anew.
    ///
    /// # Errors
    ///
    /// None of them answers.
    fn choose<'a>(
        &'a self,
        queue: &'a QueueName,
    ) -> Answer<'a, Option<(ConnectionName, QueueName)>, crate::connection::Error> {
        let _ = queue;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Pushes jobs within a transaction, if it is one of the database that holds the queues; false if it is not, and
    /// nothing was pushed.
    ///
    /// # Errors
    ///
    /// The transaction can then only be rolled back.
    fn push_within<'a>(
        &'a self,
        transaction: &'a mut Transaction,
        pushes: &'a [Push],
    ) -> Answer<'a, bool> {
        let _ = (transaction, pushes);
        Box::pin(std::future::ready(Ok(false)))
    }

    /// Pushes a job on a connection of the caller, in whose transaction that is; false if the lock of the job is taken.
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    fn push_inside<'a>(
        &'a self,
        connection: &'a mut dyn crate::connection::SqlConnection,
        push: &'a Push,
    ) -> Answer<'a, bool, InsideError> {
        let _ = (connection, push);
        Box::pin(std::future::ready(Err(InsideError::Elsewhere(
            "not in a database",
        ))))
    }

    /// The row that stands for a job; `None` if the queues are in no database.
    fn row(&self, push: &Push) -> Option<JobRow> {
        let _ = push;
        None
    }

    /// Whether a lock kept in this place can be taken in one step with a push to this queue.
    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool;

    /// Whether [`push_once`](Self::push_once) has pushed to this queue for this identity and the server still
    /// remembers it.
    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool>;

    /// Whether this end of a job leaves something that a follow-up has to do, beside the records that it names: its
    /// server cannot do that in one step with the end.
    fn puts_off(&self, job: &ReservedJob, settlement: &Settlement) -> bool {
        let _ = job;
        matches!(settlement, Settlement::Finish(effects)
            if !self.abilities().has(Ability::FinishesInOneStep)
                && effects.iter().any(|effect| matches!(effect, Effect::Push(_))))
    }

    /// Tells a listener of all jobs that this process pushes from now on; the first listener stays. A driver that
    /// does not know how tells nothing.
    fn tell_pushes(&self, listener: Arc<dyn PushListener>) {
        drop(listener);
    }

    /// Tells the listener of pushes of jobs that are here after all: the reply to their push was lost. A connection that
    /// tries several in order does not know which has them, and tells nothing.
    fn tell_late(&self, pushes: &[Push]) {
        let _ = pushes;
    }

    /// Tells a listener how long pops, settlements and renewals take from now on; the first listener stays. A driver
    /// without a server tells nothing.
    fn tell_calls(&self, listener: Arc<dyn CallListener>) {
        drop(listener);
    }

    /// Moves jobs of a queue that are due to the end of its list, as a pop does, and reserves none; says how many.
    ///
    /// One call moves a bounded number, so call it until it moves none. A driver that finds due jobs where they are
    /// (without `Ability::Migrates`) has nothing to move.
    ///
    /// # Errors
    ///
    /// Each job is then where it was or in the list; it may be called again.
    fn migrate<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        let _ = (queue, now);
        Box::pin(std::future::ready(Ok(Due::default())))
    }

    /// Counts the jobs of a queue that are due; nothing is migrated.
    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due>;

    /// The second at which the first of a queue's pending jobs was due, where the driver keeps that beside the payloads.
    fn first_due<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Option<UnixSeconds>> {
        let _ = queue;
        Box::pin(std::future::ready(Ok(None)))
    }

    /// Counts the jobs of a queue. Nothing is migrated: a due delayed job counts as delayed.
    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes>;

    /// Some payloads of a queue, unchanged, from position `from` on; no job moves.
    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>>;

    /// Deletes the jobs of a queue and returns how many; the quarantine stays, and so do jobs whose reservation has not
    /// ended: the workers that run them have to find them to end them. SQS deletes these, too.
    fn clear<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, u64>;

    /// Names of the queues that hold jobs now, in any place.
    fn queues(&self) -> Answer<'_, Vec<QueueName>>;

    /// Names of the queues that have a quarantine.
    fn quarantines(&self) -> Answer<'_, Vec<QueueName>>;

    /// Takes payloads out of a quarantine; returns how many were found.
    ///
    /// # Errors
    ///
    /// Each payload is then where it was or where it was to go.
    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64>;
}
