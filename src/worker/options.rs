//! The options that a worker starts with.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::payload::Backoff;
use crate::queue::{ConnectionName, QueueName};
use crate::time::Clock;
use crate::worker::attempt::decide::Defaults;

/// Options of `queue:work` with Laravel 13's defaults, and artisand's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// The name by which the app pauses its queues, if it is another one.
    pub paused_as: Option<ConnectionName>,
    /// Queues in order of priority, highest first.
    pub queues: Vec<QueueName>,
    /// Tries, backoff and timeout of jobs without their own.
    pub defaults: Defaults,
    /// How long to wait for a job if no push is announced.
    pub sleep: Duration,
    /// How long a slot rests after each job.
    pub rest: Duration,
    /// When the worker stops by itself.
    pub stop: StopRules,
    /// Continue while the app is down; this applies to the worker's PHP processes too.
    pub force: bool,
    /// Jobs running at once.
    pub concurrency: NonZeroUsize,
    /// How long running jobs may continue after the order to quit; with `None` only their own timeouts limit them,
    /// as in Laravel.
    pub grace: Option<Duration>,
    /// Whether the last error of a job is kept for the case that the job fails because it has no attempt left.
    pub last_errors: bool,
    /// Where the current second comes from.
    pub clock: Clock,
}

/// When a worker stops by itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StopRules {
    /// After one job, or if there is none. As in Laravel, such a worker ends no job that takes too long.
    pub once: bool,
    /// Most resident memory in bytes; `None` for no limit.
    pub memory: Option<u64>,
    /// Most attempts to begin.
    pub max_jobs: Option<u64>,
    /// Longest run.
    pub max_time: Option<Duration>,
    /// Stop as soon as there is no job.
    pub when_empty: bool,
    /// Stop when there was no job for this long.
    pub when_empty_for: Option<Duration>,
}

impl Default for StopRules {
    fn default() -> Self {
        Self {
            once: false,
            memory: Some(128 << 20),
            max_jobs: None,
            max_time: None,
            when_empty: false,
            when_empty_for: None,
        }
    }
}

impl Default for WorkerOptions {
    fn default() -> Self {
        Self {
            connection: "redis".into(),
            paused_as: None,
            queues: vec!["default".into()],
            defaults: Defaults {
                tries: 1,
                backoff: Backoff::constant(Duration::ZERO),
                timeout: Duration::from_secs(60),
            },
            sleep: Duration::from_secs(3),
            rest: Duration::ZERO,
            stop: StopRules::default(),
            force: false,
            concurrency: NonZeroUsize::MIN,
            grace: None,
            last_errors: true,
            clock: Clock::System,
        }
    }
}
