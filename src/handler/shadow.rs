//! What a handler can see of a job that PHP ran, with `mode = "shadow"`.

use std::time::Duration;

use super::FailureText;

/// How a job ended in PHP.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInPhp {
    /// What happened to the job.
    pub end: EndInPhp,
    /// The exception of the attempt, if any.
    pub thrown: Option<FailureText>,
    /// How long the attempt took.
    pub elapsed: Duration,
}

/// What happened to a job in PHP.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum EndInPhp {
    /// PHP finished it or deleted it.
    Deleted,
    /// It was released to the queue.
    Released {
        /// The wait until the next attempt.
        delay: Duration,
    },
    /// The job failed for good.
    Failed(FailureText),
    /// The job stays reserved: its process ended, it timed out, or its code did not delete it.
    Left,
}

impl RunInPhp {
    /// Whether the attempt succeeded: deleted, and nothing thrown.
    pub fn has_succeeded(&self) -> bool {
        self.end == EndInPhp::Deleted && self.thrown.is_none()
    }
}
