//! What a handler sees of a job that PHP runs, with `mode = "shadow"`.

use std::time::Duration;

use super::FailureText;

/// How a job ended in PHP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInPhp {
    /// What became of the job.
    pub end: EndInPhp,
    /// What the attempt threw, if anything.
    pub thrown: Option<FailureText>,
    /// How long the attempt took.
    pub elapsed: Duration,
}

/// What became of a job in PHP.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndInPhp {
    /// It is done, or was deleted.
    Deleted,
    /// It went back to the queue.
    Released {
        /// The wait until the next attempt.
        delay: Duration,
    },
    /// It failed for good.
    Failed(FailureText),
    /// It stays reserved: its process ended, it timed out, or its code did not delete it.
    Left,
}

impl RunInPhp {
    /// Whether the attempt did what it was to do: deleted, and nothing thrown.
    pub fn has_succeeded(&self) -> bool {
        self.end == EndInPhp::Deleted && self.thrown.is_none()
    }
}
