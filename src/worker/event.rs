//! What happens in a worker, under Laravel's names.

use std::sync::Arc;
use std::time::Duration;

use super::stop::StopReason;
use crate::handler::{FailureText, JobInfo};
use crate::queue::QueueName;

/// Hears what happens. Called on the worker's own tasks: be quick, never block.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each event, in order per job.
    fn on_event(&self, event: &Event<'_>);
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// The worker begins.
    WorkerStarting,
    /// An attempt begins.
    JobProcessing(&'a Arc<JobInfo>),
    /// An attempt ended and was settled.
    JobProcessed(&'a JobEnd<'a>),
    /// An attempt threw, or panicked, and the job will be tried again.
    JobReleasedAfterException(&'a JobEnd<'a>),
    /// The job failed for good and was recorded.
    JobFailed(&'a JobEnd<'a>),
    /// An attempt ran longer than its timeout and stays reserved until it may be tried again.
    JobTimedOut(&'a JobEnd<'a>),
    /// Payloads that cannot be decoded went to quarantine.
    JobsQuarantined {
        /// Queue they came from.
        queue: &'a QueueName,
        /// How many.
        count: usize,
    },
    /// A job went to another queue, unchanged.
    JobForwarded {
        /// The job.
        job: &'a Arc<JobInfo>,
        /// Where to.
        to: &'a QueueName,
    },
    /// No more pops until resumed.
    WorkerPausing,
    /// Pops again.
    WorkerResuming,
    /// The app paused a queue.
    WorkerQueuePaused(&'a QueueName),
    /// The app resumed a queue.
    WorkerQueueResumed(&'a QueueName),
    /// The app went down for maintenance (true) or came up again.
    MaintenanceMode(bool),
    /// The worker stops: all jobs have ended and are settled.
    WorkerStopping {
        /// Why.
        reason: StopReason,
        /// Attempts begun since the start.
        jobs_processed: u64,
    },
}

/// How an attempt ended.
#[derive(Debug, Clone)]
pub struct JobEnd<'a> {
    /// The job.
    pub job: &'a Arc<JobInfo>,
    /// How long the handler ran.
    pub elapsed: Duration,
    /// What was done with the job.
    pub result: JobResult,
    /// The error, panic or timeout, if there was one.
    pub failure: Option<&'a FailureText>,
}

/// What was done with a job at the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobResult {
    /// It is gone from the queue.
    Deleted,
    /// It waits for another attempt.
    Released,
    /// It stays reserved until another attempt may start.
    Left,
}
