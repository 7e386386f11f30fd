//! Effects of a job's end: they happen all in one step with the job's deletion, or not at all.

use std::time::Duration;

use super::name::QueueName;
use super::spool::Spool;
use crate::connection::LockPlace;
use crate::payload::FailedJob;
use crate::time::UnixSeconds;

/// Something that happens together with the end of a job, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Another job is pushed.
    Push(Push),
    /// A lock on the queue's own server is freed.
    Unlock(Unlock),
    /// A failed job is recorded: in the app's store, if the driver writes both in one transaction, else in the list
    /// from which it goes there.
    Record(FailedJob),
    /// A record is added to the end of one of artisand's own lists.
    Append(Spool, Vec<u8>),
    /// The job's payload, as it was before the pop, goes to the queue's quarantine.
    Quarantine,
}

impl Effect {
    /// The list that gets a record by this effect, where the driver does not write the app's own store.
    pub fn spool(&self) -> Option<Spool> {
        match self {
            Self::Record(_) => Some(Spool::FailedJobs),
            Self::Append(spool, _) => Some(*spool),
            Self::Push(_) | Self::Unlock(_) | Self::Quarantine => None,
        }
    }
}

/// A job to push.
#[derive(Clone, PartialEq, Eq)]
pub struct Push {
    /// The queue it goes to.
    pub queue: QueueName,
    /// The payload of the job.
    pub payload: Vec<u8>,
    /// When it becomes due; `None` for at once.
    pub due: Option<UnixSeconds>,
    /// A lock to take first: if it is taken already, the job is silently not pushed.
    pub claim: Option<Claim>,
}

impl std::fmt::Debug for Push {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Push")
            .field("queue", &self.queue)
            .field("payload", &format_args!("{} bytes", self.payload.len()))
            .field("due", &self.due)
            .field("claim", &self.claim)
            .finish()
    }
}

/// A lock to take, in a place that the [ledger holds](super::Ledger::holds).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Where the lock is kept.
    pub place: LockPlace,
    /// The owner that takes it.
    pub owner: String,
    /// Lifetime of the lock; zero for no end.
    pub ttl: Duration,
}

/// A lock to free, in a place that the [ledger holds](super::Ledger::holds).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlock {
    /// Where the lock is kept.
    pub place: LockPlace,
    /// The owner that must hold it; `None` frees it for any holder.
    pub owner: Option<String>,
}
