//! The running jobs: how many, of which mapping, and where.

use std::num::NonZeroUsize;
use std::sync::Arc;

use tokio::task::{JoinError, JoinSet};

use super::attempt::shared::{Shared, TaskEnd};
use super::attempt::{self, Executor, Placement};
use super::gauge::{Gauge, Held};
use super::triaged::{TriageResult, Triaged};
use crate::process::pool::Pool;
use crate::queue::ReservedJob;

/// How a job's task ended, and what counts it until the loop has noted its end.
pub(super) type TaskOutput = (TaskEnd, Counted);

/// What counts a job; a task that panics drops it, too.
pub(super) struct Counted {
    in_php: Option<Held>,
    in_mapping: Option<Held>,
}

/// The running jobs.
pub(super) struct Slots {
    tasks: JoinSet<TaskOutput>,
    /// Jobs for handlers here that begin once the next pop is on its way, so that the server works meanwhile.
    waiting: Vec<(ReservedJob, Option<TriageResult>)>,
    concurrency: NonZeroUsize,
    /// Slots taken permanently by handlers that do not return.
    lost: usize,
    /// Jobs running per mapping that has a limit of its own.
    per_mapping: Vec<Gauge>,
    next_number: u64,
    /// Attempts begun.
    begun: u64,
    /// Jobs cut short at the stop deadline and released.
    released: u64,
    /// Jobs that run in PHP.
    in_php: Gauge,
    /// PHP jobs whose end is not yet settled, and whose deletion is not yet sent.
    unsettled_in_php: Gauge,
}

impl Slots {
    pub(super) fn new(concurrency: NonZeroUsize, mappings: usize) -> Self {
        Self {
            tasks: JoinSet::new(),
            waiting: Vec::new(),
            concurrency,
            lost: 0,
            per_mapping: std::iter::repeat_with(Gauge::default)
                .take(mappings)
                .collect(),
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

    /// Whether a handler runs on after its timeout or the stop deadline.
    pub(super) fn is_stuck(&self) -> bool {
        self.lost > 0
    }

    /// Number of jobs that run in PHP.
    pub(super) fn in_php(&self) -> usize {
        self.in_php.count()
    }

    /// Whether a single PHP process may be given another job: the end of its last one is settled, or its deletion sent.
    pub(super) fn may_pop_for_one_process(&self) -> bool {
        self.unsettled_in_php.count() == 0
    }

    /// Jobs running per mapping that has a limit of its own.
    pub(super) fn per_mapping(&self) -> Vec<usize> {
        self.per_mapping.iter().map(Gauge::count).collect()
    }

    /// Free slots for handlers in this process.
    pub(super) fn free(&self) -> usize {
        let taken = self.len().saturating_sub(self.in_php()) + self.lost;
        self.concurrency.get().saturating_sub(taken)
    }

    /// Takes jobs for handlers here, which begin with [`start_waiting`](Self::start_waiting).
    pub(super) fn take(&mut self, jobs: impl Iterator<Item = (ReservedJob, Option<TriageResult>)>) {
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
        candidate: Option<TriageResult>,
        executor: Executor,
    ) {
        self.begun += 1;
        self.next_number += 1;
        let number = self.next_number;
        let triage = &shared.triage;
        let candidate = candidate.unwrap_or_else(|| triage.triage(&job.payload, &job.queue));
        let mapping = match candidate.as_ref().map(|candidate| &candidate.triaged) {
            Ok(Triaged::Run(routed)) => Some(routed.mapping),
            _ => None,
        };
        let runtime = mapping.and_then(|mapping| shared.weights.runtime(mapping).cloned());
        let job = Arc::new(job);
        let age = shared.leases.age(&job, triage.app.clock);
        (shared.leases.running).insert(number, Arc::clone(&job), age);
        if runtime.is_some() {
            shared.leases.running.set_needs_thread(number, true);
        }
        let mut counted = Counted {
            in_php: None,
            in_mapping: None,
        };
        let placement = match executor {
            Executor::Local => {
                let limited = mapping.filter(|mapping| triage.is_limited(*mapping));
                counted.in_mapping = limited.map(|mapping| self.per_mapping[mapping].hold());
                Placement::Local
            }
            Executor::Php => {
                counted.in_php = Some(self.in_php.hold());
                Placement::Php {
                    idle: shared.pool.as_ref().and_then(Pool::take),
                    unsettled: self.unsettled_in_php.hold(),
                }
            }
        };
        let shared = Arc::clone(shared);
        // Tokio copies a task about ten times between its spawn and its end, and this one has ten kilobytes.
        let task = Box::pin(async move {
            let end = attempt::run(shared, job, candidate, number, placement).await;
            (end, counted)
        });
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

    /// Notes a task that has ended; true if that may free a slot of a limited mapping.
    pub(super) fn note_end(&mut self, end: Result<TaskOutput, JoinError>) -> bool {
        let (end, counted) = match end {
            Ok(end) => end,
            // Panics of handlers are caught inside the task, so this is a bug in the worker. The job stays
            // reserved.
            Err(error) => {
                tracing::error!(%error, "a job's task ended abnormally; its job stays reserved");
                return true;
            }
        };
        self.lost += usize::from(end.is_stuck);
        self.released += u64::from(end.was_cut);
        self.begun -= u64::from(end.was_declined);
        drop(counted.in_php);
        counted.in_mapping.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{Mapping, UnmappedPolicy};
    use crate::worker::test_support::{NOW, RETRY_AFTER, S, Scene, job, mapping, nothing, router};
    use crate::worker::weights::Weights;

    fn three() -> NonZeroUsize {
        NonZeroUsize::new(3).unwrap()
    }

    /// The end of a job's task, with one thing set.
    fn end(set: impl Fn(&mut TaskEnd)) -> TaskOutput {
        let mut end = TaskEnd::default();
        set(&mut end);
        let counted = Counted {
            in_php: None,
            in_mapping: None,
        };
        (end, counted)
    }

    async fn reserved(scene: &Scene, jobs: u32) -> Vec<ReservedJob> {
        let payloads: Vec<_> = (0..jobs).map(job).collect();
        scene.server.push(&payloads).await;
        let jobs = scene.server.reserve().await;
        jobs.iter().map(|job| (**job).clone()).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_takes_its_slot_when_it_is_popped_and_not_when_it_begins() {
        let scene = Scene::new(nothing());
        let jobs = reserved(&scene, 2).await;
        let (shared, mut ended) = scene.shared();
        let mut slots = Slots::new(three(), 1);
        slots.take(jobs.into_iter().map(|job| (job, None)));
        assert_eq!((slots.len(), slots.free(), slots.begun()), (2, 1, 2));
        assert!(slots.has_waiting() && slots.try_next_end().is_none());
        slots.start_waiting(&shared);
        assert!(!slots.has_waiting() && shared.leases.running.has(2));
        for left in [1, 0] {
            let end = slots.next_end().await;
            // The mapping has no limit of its own, so no pop has to look again.
            assert!(!slots.note_end(end));
            assert_eq!(slots.len(), left);
        }
        assert_eq!((slots.free(), slots.begun()), (3, 2));
        assert!(ended.recv().await.is_some() && ended.recv().await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_counts_from_the_pop_and_not_from_the_begin_of_the_job() {
        #[rustfmt::skip]
        let rows = [
            // seconds that are left of the reservation => seconds until it is overdue
            (Some(90),  60),
            (Some(50),  20),
            (Some(20),  0),
            // The clock was set back.
            (Some(900), 60),
            (None,      60),
        ];
        for (left, expected) in rows {
            let scene = Scene::new(nothing());
            let mut jobs = reserved(&scene, 1).await;
            jobs[0].lease = left.map(|left| NOW.plus(S(left)));
            let (shared, _ended) = scene.shared();
            let mut slots = Slots::new(three(), 1);
            slots.start(&shared, jobs.remove(0), None, Executor::Local);
            let running = &shared.leases.running;
            let mut passed = 0;
            while running.overdue(RETRY_AFTER, NOW).is_empty() && passed < 99 {
                tokio::time::advance(S(1)).await;
                passed += 1;
            }
            assert_eq!(passed, expected, "{left:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_of_a_busy_handler_needs_one_of_the_threads_for_them() {
        for threads in [None, Some(tokio::runtime::Handle::current())] {
            let scene = Scene::new(nothing());
            let job = reserved(&scene, 1).await.remove(0);
            let (shared, _ended) = scene.shared();
            let mut shared = Arc::into_inner(shared).unwrap();
            shared.weights = Weights::new(threads.clone(), 1);
            let shared = Arc::new(shared);
            Slots::new(three(), 1).start(&shared, job, None, Executor::Local);
            // No thread is left: it cannot end.
            let running = &shared.leases.running;
            assert_eq!(running.are_given_up(true), threads.is_some());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_limited_mapping_counts_its_jobs_from_begin_to_end() {
        let mut scene = Scene::new(nothing());
        let limited = Mapping {
            concurrency: NonZeroUsize::new(2),
            ..mapping("App\\Jobs\\*")
        };
        scene.router = router(vec![limited], UnmappedPolicy::Leave, nothing());
        let jobs = reserved(&scene, 2).await;
        let (shared, _ended) = scene.shared();
        let mut slots = Slots::new(three(), 1);
        for job in jobs {
            slots.start(&shared, job, None, Executor::Local);
        }
        assert_eq!(slots.per_mapping(), [2]);
        for running in [1, 0] {
            let end = slots.next_end().await;
            assert!(slots.note_end(end));
            assert_eq!(slots.per_mapping(), [running]);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_job_did_not_do_is_not_counted() {
        let mut slots = Slots::new(three(), 0);
        slots.begun = 5;
        slots.note_end(Ok(end(|end| end.was_declined = true)));
        assert_eq!(slots.begun(), 4);
        slots.note_end(Ok(end(|end| end.was_cut = true)));
        assert_eq!((slots.begun(), slots.released()), (4, 1));
        assert!(!slots.is_stuck());
        slots.note_end(Ok(end(|end| end.is_stuck = true)));
        assert!(slots.is_stuck());
        assert_eq!(slots.free(), 2, "the handler keeps its slot");
    }

    #[tokio::test(start_paused = true)]
    async fn a_bug_of_the_worker_costs_a_job_its_attempt_and_nothing_else() {
        let mut slots = Slots::new(three(), 1);
        let counted = Counted {
            in_php: Some(slots.in_php.hold()),
            in_mapping: Some(slots.per_mapping[0].hold()),
        };
        slots.tasks.spawn(async move {
            let _counted = counted;
            panic!("a bug")
        });
        assert_eq!((slots.per_mapping(), slots.in_php()), (vec![1], 1));
        let end = slots.next_end().await;
        assert!(slots.note_end(end));
        assert_eq!((slots.per_mapping(), slots.in_php()), (vec![0], 0));
        assert_eq!(slots.free(), 3);
    }

    #[tokio::test(start_paused = true)]
    async fn jobs_in_php_take_no_slot_of_this_process() {
        let mut scene = Scene::new(nothing());
        scene.pool = Some(Pool::played(2));
        scene.router = router(Vec::new(), UnmappedPolicy::Php, nothing());
        let jobs = reserved(&scene, 1).await;
        let (shared, mut ended) = scene.shared();
        let mut slots = Slots::new(three(), 0);
        for job in jobs {
            slots.start(&shared, job, None, Executor::Php);
        }
        assert_eq!((slots.in_php(), slots.free(), slots.len()), (1, 3, 1));
        assert!(!slots.may_pop_for_one_process());
        // No process waits any more, so the job goes back.
        let end = slots.next_end().await;
        slots.note_end(end);
        assert_eq!((slots.in_php(), slots.begun()), (0, 0));
        assert!(slots.may_pop_for_one_process());
        let settlement = ended.recv().await.unwrap().ending.settlement;
        assert_eq!(settlement, crate::queue::Settlement::PutBack);
    }
}
