//! Queues: taking jobs, and giving them back in every way Laravel knows.
//!
//! A [`ReservedJob`] is bytes. It is found again only by the exact member that
//! was reserved, so those bytes are kept until the job is settled and nothing
//! is ever encoded anew. Whoever holds one settles it with [`Queue::settle`].

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

mod connections;
mod effect;
mod keys;
mod memory;
mod redis;

pub use connections::{Connections, Destination};
pub use effect::{Claim, Effect, Push, Spool, Unlock};
pub use keys::Keys;
pub use memory::MemoryQueue;
pub use redis::{RedisQueue, RedisQueueOptions};

use crate::connection::Redis;
use crate::payload::text_newtype;
use crate::time::UnixSeconds;

text_newtype! {
    /// Name of a queue, verbatim: no trimming, no folding of case, colons allowed.
    QueueName
}

text_newtype! {
    /// Name of a queue connection (`queue.connections.NAME`).
    ConnectionName
}

/// A job that was popped and not yet settled.
#[derive(Clone, PartialEq, Eq)]
pub struct ReservedJob {
    /// Queue the job was popped from.
    pub queue: QueueName,
    /// The job's bytes as they stood in the queue: decoded, run, and recorded if it fails.
    pub payload: Arc<[u8]>,
    /// Number of this attempt, from 1.
    pub attempts: u32,
    /// When any worker may have the job unless the reservation is renewed, counted from before the pop was sent;
    /// `None` for never.
    pub lease: Option<UnixSeconds>,
    /// What the pop's [`Choose`] answered for it; `None` if it was not asked.
    pub choice: Option<usize>,
    /// By what the driver finds the job again; nothing else reads it. Redis: the payload as it was reserved.
    pub ticket: Arc<[u8]>,
}

impl fmt::Debug for ReservedJob {
    /// Says how long the payload is and not what it says: payloads stay out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReservedJob")
            .field("queue", &self.queue)
            .field("attempts", &self.attempts)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .finish_non_exhaustive()
    }
}

/// Says of a payload whether it is to be taken: a number by which the caller knows the job again, or `None` to leave it.
pub type Choose<'a> = &'a mut (dyn FnMut(&QueueName, &[u8]) -> Option<usize> + Send + Sync);

/// Takes some of the jobs and leaves the rest where they are, in order.
pub struct Selection<'a> {
    /// Texts of which a payload surely to be taken holds one: a run of such payloads at the head of a queue is taken
    /// without being shown to the caller first. The caller checks what it gets.
    pub needles: &'a [Vec<u8>],
    /// Decides on the others, within a bounded window into each queue. A job that is taken has a slot.
    pub choose: Choose<'a>,
}

/// What to pop.
pub struct PopRequest<'a> {
    /// Queues, the first one first: a later queue is looked at only when those before it are empty.
    pub queues: &'a [QueueName],
    /// Most jobs to reserve.
    pub max: NonZeroUsize,
    /// The current second, from the client's clock as in Laravel.
    pub now: UnixSeconds,
    /// Queues from which [`Queue::wait_for_push`] took a notification since the last pop.
    pub woken: &'a [QueueName],
    /// Which jobs to take; all that come if none.
    pub selection: Option<Selection<'a>>,
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
    pub migrated: usize,
}

/// What becomes of a reserved job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Settlement {
    /// It is done: the reservation goes.
    Delete,
    /// It becomes due at this second, with its attempt counted.
    Release(UnixSeconds),
    /// It becomes due at this second as it was before the pop: its attempt does not count.
    ReleaseUncounted(UnixSeconds),
    /// It stays reserved until this second, then anybody may run it: what Laravel leaves behind after a timeout.
    LeaveUntil(UnixSeconds),
    /// It goes back to the head of its queue as it was before the pop.
    PutBack,
    /// It goes to the end of another queue as it was before the pop.
    Forward(QueueName),
    /// Its payload cannot be decoded: it goes to the queue's quarantine as it was before the pop.
    Quarantine,
    /// The reservation goes, together with all that the end of the job brings about; in one step, or not at all.
    Finish(Vec<Effect>),
}

/// Whether a job was still ours when it was settled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settled {
    /// It was, and what was asked for is done.
    Done,
    /// Its reservation was gone: it had ended and somebody else has the job, or the queue was cleared. Nothing was
    /// changed.
    Gone,
}

/// Some of several jobs could not be settled.
#[derive(Debug, thiserror::Error)]
#[error("{} of {} jobs could not be settled", .settled.iter().filter(|settled| settled.is_none()).count(), .settled.len())]
pub struct Unsettled {
    /// Of each job, in their order, whether it was still ours; `None` where it is not known to be settled.
    pub settled: Vec<Option<Settled>>,
    /// A problem; one of unknown outcome, if there is any.
    pub source: Error,
}

/// A place where jobs of a queue are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// In the list, the oldest first.
    Pending,
    /// Until they are due, the next first.
    Delayed,
    /// Being run, or left by a worker that is gone.
    Reserved,
}

/// Number of jobs of a queue, by where they are.
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

/// An error from a queue connection.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server could not run one of the queue scripts or commands.
    #[error("could not run {script} on queue `{queue}`")]
    Script {
        /// Name of the script under `src/queue/scripts/`, or of the command.
        script: &'static str,
        /// The queue it was run for; the first of several.
        queue: QueueName,
        /// What the connection reported.
        source: crate::connection::Error,
    },
    /// A script answered with something it never returns.
    #[error("{script} on queue `{queue}` returned something else than it should")]
    Reply {
        /// Name of the script.
        script: &'static str,
        /// The queue it was run for.
        queue: QueueName,
    },
}

impl Error {
    /// True if the connection is gone and a new one may help.
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, Self::Script { source, .. } if source.is_lost_connection())
    }

    /// True if it is not known whether the server did what it was told: it may have, and its word was lost.
    pub fn is_of_unknown_outcome(&self) -> bool {
        let Self::Script { source, .. } = self else {
            // It did something, and what it said of that is not understood.
            return true;
        };
        matches!(source, crate::connection::Error::Command { source, .. }
            if source.is_io_error() || source.is_timeout() || source.is_connection_dropped())
    }

    /// True if a key is of another kind than it should be: nothing was done, and trying again does not help.
    pub fn is_wrong_kind(&self) -> bool {
        // The words of effects.lua.
        const SAID: &str = "a key is a ";
        let Self::Script { source, .. } = self else {
            return false;
        };
        matches!(source, crate::connection::Error::Command { source, .. } if source.to_string().contains(SAID))
    }
}

/// The number of an attempt from what a payload says: a PHP integer, of which none below 1 means anything.
fn number_of_attempts(attempts: i64) -> u32 {
    u32::try_from(attempts.max(1)).unwrap_or(u32::MAX)
}

/// A queue connection: everything that can be done with the jobs of its queues.
///
/// Every driver passes the clauses of `tests/it/contract.rs`.
pub trait Queue: Send + Sync + 'static {
    /// Reserves up to `max` of the oldest pending jobs; returns at once, maybe empty-handed.
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
    fn pop(&self, request: PopRequest<'_>) -> impl Future<Output = Result<Popped, Error>> + Send;

    /// Settles jobs, each in its own way, and says of each whether it was still ours.
    ///
    /// May be called again with the same jobs after an error: what was done
    /// before is then reported as [`Settled::Gone`] and not done twice.
    ///
    /// One that is put back, or released uncounted, looks as before once it is popped again: only if that is known
    /// not to have happened may it be settled again.
    ///
    /// # Errors
    ///
    /// Each of the jobs is then either settled or as it was; [`Unsettled`] says which are settled for sure.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves each job either settled or as it was.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\RedisQueue::deleteReserved`, `deleteAndRelease`.
    fn settle(
        &self,
        jobs: &[(Arc<ReservedJob>, Settlement)],
    ) -> impl Future<Output = Result<Vec<Settled>, Unsettled>> + Send;

    /// Moves the end of reservations to *now + `retry_after`*; those that are gone stay gone.
    fn renew(
        &self,
        jobs: &[Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// How long a reservation lives; `None` for ever.
    fn retry_after(&self) -> Option<Duration>;

    /// Waits until something is pushed to one of the queues, at most so long; says to which.
    ///
    /// A notification is a hint and no job. It is taken from the server: pass
    /// the queue on as `woken` with the next pop.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may lose a notification, which costs somebody a poll interval.
    fn wait_for_push(
        &self,
        queues: &[QueueName],
        timeout: Duration,
    ) -> impl Future<Output = Result<Option<QueueName>, Error>> + Send;

    /// Whether pushes are announced; if not, waiting is of no use.
    fn announces_pushes(&self) -> bool;

    /// Adds payloads to the end of a queue, bytes as they are.
    fn push(
        &self,
        queue: &QueueName,
        payloads: &[Vec<u8>],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Adds a payload that becomes due at a given second.
    fn later(
        &self,
        queue: &QueueName,
        due: UnixSeconds,
        payload: &[u8],
    ) -> impl Future<Output = Result<(), Error>> + Send;

    /// Counts the jobs of a queue. Nothing is migrated: a due delayed job counts as delayed.
    fn sizes(&self, queue: &QueueName) -> impl Future<Output = Result<Sizes, Error>> + Send;

    /// Deletes all jobs of a queue, also reserved ones, and says how many; the quarantine stays.
    fn clear(&self, queue: &QueueName) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Whether a lock that is kept on this connection can be taken and freed together with the end of a job.
    fn is_on(&self, redis: &Redis) -> bool;

    /// Records of a list of ours, the oldest first, from this position on.
    fn spooled(
        &self,
        spool: Spool,
        from: usize,
        max: usize,
    ) -> impl Future<Output = Result<Vec<Vec<u8>>, Error>> + Send;

    /// Takes records out of a list of ours, each once, and does what follows: all in one step.
    ///
    /// Says how many records were there. If none was, or `owner` no longer has
    /// the right to empty the list, it is 0, and nothing follows: another
    /// process is at it.
    ///
    /// # Errors
    ///
    /// Either all of it happened or nothing.
    fn advance(
        &self,
        spool: Spool,
        owner: &str,
        records: &[Vec<u8>],
        effects: &[Effect],
    ) -> impl Future<Output = Result<u64, Error>> + Send;

    /// Takes for so long the right to empty a list of ours; false if another process has it.
    ///
    /// A right that was lost and is taken again must have another owner.
    fn lease_spool(
        &self,
        spool: Spool,
        owner: &str,
        lives: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Keeps that right for so long from now on; false if it is no longer ours.
    fn keep_spool(
        &self,
        spool: Spool,
        owner: &str,
        lives: Duration,
    ) -> impl Future<Output = Result<bool, Error>> + Send;

    /// Gives that right up, if it is still ours.
    fn unlease_spool(
        &self,
        spool: Spool,
        owner: &str,
    ) -> impl Future<Output = Result<(), Error>> + Send;
}
