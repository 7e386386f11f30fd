//! The running jobs: how many, of which mapping, and where.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use super::attempt::shared::{Shared, TaskEnd};
use super::attempt::{self, Executor, Placement};
use super::gauge::{Gauge, Held};
use super::triaged::{Candidate, Triaged};
use crate::process::pool::Pool;
use crate::queue::ReservedJob;

/// How a job's task ended, and the guard that counts a PHP job until the loop has noted its end.
pub(super) type TaskOutput = (TaskEnd, Option<Held>);

/// The running jobs.
pub(super) struct Slots {
    tasks: JoinSet<TaskOutput>,
    /// Jobs for handlers here that begin once the next pop is on its way, so that the server works meanwhile.
    waiting: Vec<(ReservedJob, Option<Candidate>)>,
    concurrency: NonZeroUsize,
    /// Slots taken permanently by handlers that do not return.
    lost: usize,
    /// Jobs running per mapping that has a limit of its own.
    per_mapping: Vec<usize>,
    next_number: u64,
    /// Attempts begun.
    begun: u64,
    /// Jobs cut short at the stop deadline and released.
    released: u64,
    /// Jobs that run in PHP.
    in_php: Gauge,
    /// PHP jobs whose end is not yet written to the queue.
    unsettled_in_php: Gauge,
}

impl Slots {
    pub(super) fn new(concurrency: NonZeroUsize, mappings: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            waiting: Vec::new(),
            concurrency,
            lost: 0,
            per_mapping: vec![0; mappings],
            next_number: 0,
            begun: 0,
            released: 0,
            in_php: Gauge::default(),
            unsettled_in_php: Gauge::default(),
        }
    }

    /// Number of jobs' tasks, including those that wait to be settled.
    pub(super) fn len(&self) -> usize {
        self.tasks.len() + self.waiting.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Attempts begun or about to.
    pub(super) fn begun(&self) -> u64 {
        self.begun + self.waiting.len() as u64
    }

    /// Jobs cut short at the stop deadline and released.
    pub(super) fn released(&self) -> u64 {
        self.released
    }

    /// Whether a handler runs on after its timeout.
    pub(super) fn is_stuck(&self) -> bool {
        self.lost > 0
    }

    /// Number of jobs that run in PHP.
    pub(super) fn in_php(&self) -> usize {
        self.in_php.count()
    }

    /// Whether the end of every PHP job is written to the queue.
    pub(super) fn is_php_settled(&self) -> bool {
        self.unsettled_in_php.count() == 0
    }

    /// Jobs running per mapping that has a limit of its own.
    pub(super) fn per_mapping(&self) -> &[usize] {
        &self.per_mapping
    }

    /// Free slots for handlers in this process.
    pub(super) fn free(&self) -> usize {
        let taken = self.len().saturating_sub(self.in_php()) + self.lost;
        self.concurrency.get().saturating_sub(taken)
    }

    /// Takes jobs for handlers here, which begin with [`start_waiting`](Self::start_waiting).
    pub(super) fn take(&mut self, jobs: impl Iterator<Item = (ReservedJob, Option<Candidate>)>) {
        self.waiting.extend(jobs);
    }

    /// Whether jobs wait to begin.
    pub(super) fn has_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Begins the attempts of all jobs that wait for it.
    pub(super) fn start_waiting(&mut self, shared: &Arc<Shared>) {
        for (job, candidate) in std::mem::take(&mut self.waiting) {
            self.start(shared, job, candidate, Executor::Local);
        }
    }

    /// Begins an attempt.
    pub(super) fn start(
        &mut self,
        shared: &Arc<Shared>,
        job: ReservedJob,
        candidate: Option<Candidate>,
        executor: Executor,
    ) {
        self.begun += 1;
        self.next_number += 1;
        let number = self.next_number;
        let triage = &shared.triage;
        let candidate = candidate.map_or_else(|| triage.triage(&job.payload, &job.queue), Ok);
        let mapping = match candidate.as_ref().map(|candidate| &candidate.triaged) {
            Ok(Triaged::Run(routed)) => Some(routed.mapping),
            _ => None,
        };
        let runtime = mapping.and_then(|mapping| shared.weights.runtime(mapping).cloned());
        let job = Arc::new(job);
        shared.leases.running.insert(number, Arc::clone(&job));
        let (placement, mapping, in_php) = match executor {
            Executor::Local => {
                let limited = mapping.filter(|mapping| triage.is_limited(*mapping));
                (Placement::Local, limited, None)
            }
            Executor::Php => {
                let placement = Placement::Php {
                    seat: shared.pool.as_ref().and_then(Pool::take),
                    unsettled: self.unsettled_in_php.hold(),
                };
                (placement, None, Some(self.in_php.hold()))
            }
        };
        if let Some(mapping) = mapping {
            self.per_mapping[mapping] += 1;
        }
        let shared = Arc::clone(shared);
        let task = async move {
            let end = attempt::run(shared, job, candidate, number, mapping, placement).await;
            (end, in_php)
        };
        match runtime {
            Some(runtime) => self.tasks.spawn_on(task, &runtime),
            None => self.tasks.spawn(task),
        };
    }

    /// Waits for the next task to end; forever if there is none.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next_end(&mut self) -> Result<TaskOutput, JoinError> {
        match self.tasks.join_next().await {
            Some(end) => end,
            None => std::future::pending().await,
        }
    }

    /// A task that has ended, if there is one.
    pub(super) fn try_next_end(&mut self) -> Option<Result<TaskOutput, JoinError>> {
        self.tasks.try_join_next()
    }

    /// Notes a task that has ended; true if that frees a slot of a limited mapping.
    pub(super) fn note_end(&mut self, end: Result<TaskOutput, JoinError>) -> bool {
        let end = match end {
            Ok((end, _in_php)) => end,
            // Panics of handlers are caught inside the task, so this is a bug in the worker. The job stays
            // reserved.
            Err(error) => {
                tracing::error!(%error, "a job's task ended abnormally; its job stays reserved");
                return false;
            }
        };
        if let Some(mapping) = end.mapping {
            self.per_mapping[mapping] -= 1;
        }
        self.lost += usize::from(end.is_stuck);
        self.released += u64::from(end.was_cut);
        self.begun -= u64::from(end.was_declined);
        end.mapping.is_some()
    }
}
