//! What happens together with the end of a job: all of it in one step with the job's deletion, or nothing.

use std::time::Duration;

use super::QueueName;
use crate::time::UnixSeconds;

/// Something that happens together with the end of a job, or not at all.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Another job is pushed.
    Push(Push),
    /// A lock on the queue's own server is freed.
    Unlock(Unlock),
    /// A record goes to the end of a list of ours.
    Append(Spool, Vec<u8>),
    /// The job's payload, as it was before the pop, goes to the queue's quarantine.
    Quarantine,
}

/// A job to push.
#[derive(Clone, PartialEq, Eq)]
pub struct Push {
    /// Where to.
    pub queue: QueueName,
    /// Its payload.
    pub payload: Vec<u8>,
    /// When it becomes due; at once if not said.
    pub due: Option<UnixSeconds>,
    /// A lock that must be had first: if it is taken, nothing is pushed, and nobody is told.
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

/// A lock to take, by its whole key on the queue's own server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Claim {
    /// Its key.
    pub key: String,
    /// Who takes it.
    pub owner: String,
    /// How long it lives; zero for ever.
    pub ttl: Duration,
}

/// A lock to free, by its whole key on the queue's own server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unlock {
    /// Its key.
    pub key: String,
    /// Who must hold it; whoever holds it if none.
    pub owner: Option<String>,
}

/// The lists of ours in which things wait to be brought elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spool {
    /// Records of failed jobs, on their way to the app's store.
    FailedJobs,
    /// What is left to do for jobs that have ended: count them in their batch, free their locks elsewhere.
    FollowUps,
}

impl Spool {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::FailedJobs, Self::FollowUps];

    /// Name of the list, below the prefix of the connection.
    pub fn key(self) -> &'static str {
        match self {
            Self::FailedJobs => "artisand:failed-spool",
            Self::FollowUps => "artisand:follow-ups",
        }
    }
}
