//! What all jobs of a worker share.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::sync::mpsc::error::{SendError, TrySendError};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::outbox::failed_jobs::Recordings;
use crate::process::pool::Pool;
use crate::queue::{Queue, ReservedJob};
use crate::time::{Clock, UnixSeconds};
use crate::worker::attempt::decide::Defaults;
use crate::worker::event::{Event, Observers};
use crate::worker::gauge::Gauge;
use crate::worker::linger::EndCounter;
use crate::worker::next_release::returns_at;
use crate::worker::options::WorkerOptions;
use crate::worker::renew::Renewals;
use crate::worker::running::Running;
use crate::worker::settle_counts::SettleCounts;
use crate::worker::settler::PendingSettlement;
use crate::worker::triage::Triage;
use crate::worker::watchdog::Turns;
use crate::worker::weights::Weights;

/// What all jobs of a worker share.
pub(crate) struct Shared {
    /// Decides where jobs go and what their ends bring about.
    pub(crate) triage: Arc<Triage>,
    pub(crate) terms: Terms,
    pub(crate) leases: Leases,
    pub(crate) settlements: Settlements,
    /// Handlers under the watchdog.
    pub(crate) turns: Arc<Turns>,
    /// Which handlers keep a thread busy.
    pub(crate) weights: Weights,
    pub(crate) observers: Observers,
    pub(crate) stops: Stops,
    /// Counts ended jobs for a pop that lingers.
    pub(crate) ends: EndCounter,
    /// PHP processes for unmapped jobs; only with policy `php`.
    pub(crate) pool: Option<Pool>,
    /// Reports when failed jobs have been recorded; only if the app's database refuses PHP's writes during that.
    pub(crate) recording: Option<Recordings>,
}

/// The settings under which jobs run.
#[derive(Debug)]
pub(crate) struct Terms {
    /// Limits for jobs without their own.
    pub(crate) defaults: Defaults,
    /// False with `--once`, which in Laravel arms no timeout.
    pub(crate) has_timeouts: bool,
    /// How long a slot rests after each job.
    pub(crate) rest: Duration,
}

impl Terms {
    pub(crate) fn of(options: &WorkerOptions) -> Self {
        Self {
            defaults: options.defaults.clone(),
            has_timeouts: !options.stop.once,
            rest: options.rest,
        }
    }
}

/// The reservations of running jobs.
pub(crate) struct Leases {
    /// Jobs whose reservations are renewed.
    pub(crate) running: Arc<Running>,
    pub(crate) renewals: Arc<Renewals>,
    /// The queue that keeps the reservations.
    pub(crate) queue: Arc<dyn Queue>,
}

impl Leases {
    pub(crate) fn new(
        running: Arc<Running>,
        renewals: Arc<Renewals>,
        queue: &Arc<dyn Queue>,
    ) -> Self {
        Self {
            running,
            renewals,
            queue: Arc::clone(queue),
        }
    }

    /// How long ago the reservation of a job was made; zero if it never ends.
    pub(crate) fn age(&self, job: &ReservedJob, clock: Clock) -> Duration {
        let lasts = self.queue.abilities().retry_after.zip(job.lease);
        lasts.map_or(Duration::ZERO, |(retry_after, lease)| {
            retry_after.saturating_sub(clock.until(lease))
        })
    }
}

/// How long the process may run on once the jobs of stuck handlers are settled: longer than the last steps of a
/// stop take.
const LAST_STEPS: Duration = Duration::from_secs(40);

/// How ended jobs reach the settling task.
pub(crate) struct Settlements {
    /// Ended jobs.
    pub(crate) sender: mpsc::Sender<PendingSettlement>,
    /// How far the settling has come.
    pub(crate) settle_counts: Arc<SettleCounts>,
    /// Number of attempts that only wait for the server to settle their job.
    pub(crate) waiting: Gauge,
    /// Jobs that will run again although their handlers run on, and cannot be stopped before the process ends.
    stuck: Mutex<Vec<PendingSettlement>>,
}

impl Settlements {
    pub(crate) fn new(
        sender: mpsc::Sender<PendingSettlement>,
        settle_counts: Arc<SettleCounts>,
    ) -> Self {
        Self {
            sender,
            settle_counts,
            waiting: Gauge::default(),
            stuck: Mutex::default(),
        }
    }

    /// Hands an ended job over to be settled; false if the task that settles has ended.
    pub(crate) async fn send(&self, pending: PendingSettlement) -> bool {
        self.settle_counts.note_ended();
        let unsent = match self.sender.try_send(pending) {
            Ok(()) => None,
            Err(TrySendError::Closed(pending)) => Some(pending),
            // Rare: there is room for as many as there are slots.
            Err(TrySendError::Full(pending)) => {
                // The settler waits for the server: a stop must see that nothing else is waited for.
                let _waiting = self.waiting.hold();
                let sent = Box::pin(self.sender.send(pending)).await;
                sent.err().map(|SendError(pending)| pending)
            }
        };
        if let Some(PendingSettlement { job, .. }) = &unsent {
            tracing::error!(queue = %job.queue, "the task that settles jobs has ended: a job stays reserved");
        }
        unsent.is_none()
    }

    /// Keeps a job until [`settle_stuck`](Self::settle_stuck).
    pub(crate) fn keep_stuck(&self, pending: PendingSettlement) {
        self.stuck().push(pending);
    }

    fn stuck(&self) -> MutexGuard<'_, Vec<PendingSettlement>> {
        // Every change is a single step.
        self.stuck.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Settles the jobs of stuck handlers, so that other workers get them once this process has ended.
    pub(crate) async fn settle_stuck(&self, leases: &Leases, now: UnixSeconds) {
        let stuck = std::mem::take(&mut *self.stuck());
        for mut pending in stuck {
            // A later renewal would move the end of the reservation again.
            leases.running.remove(pending.number);
            if let Some(at) = returns_at(&mut pending.ending.settlement) {
                *at = (*at).max(now.plus(LAST_STEPS));
            }
            pending.handed_in = Instant::now();
            self.send(pending).await;
        }
    }
}

/// How far the worker's stop has come.
#[derive(Debug, Default)]
pub(crate) struct Stops {
    /// Cancelled when the worker begins to stop.
    pub(crate) begun: CancellationToken,
    /// Cancelled at the stop deadline: running jobs are cut.
    pub(crate) cut: CancellationToken,
}

/// What the loop has to know about a job that has ended.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct TaskEnd {
    /// The handler still runs and cannot be stopped.
    pub(crate) is_stuck: bool,
    /// The job was cut short at the stop deadline.
    pub(crate) was_cut: bool,
    /// The job was given back without having begun.
    pub(crate) was_declined: bool,
}

impl Shared {
    /// Sends an event to all observers.
    pub(crate) fn emit(&self, event: Event<'_>) {
        self.observers.emit(&event);
    }

    /// Whether there is a single PHP process, so that jobs run in it one after the other as in `queue:work`.
    pub(crate) fn has_one_member(&self) -> bool {
        self.pool.as_ref().is_some_and(|pool| pool.size() == 1)
    }

    /// Whether the next job of a single PHP process is popped in one round trip with the deletion of the last one.
    ///
    /// It begins once that is done. Where jobs run here, too, their ends would count as well.
    pub(crate) fn pops_behind_deletion(&self) -> bool {
        self.has_one_member() && self.has_only_php() && !self.observers.are_in_order()
    }

    /// Whether every job goes to PHP.
    pub(crate) fn has_only_php(&self) -> bool {
        self.pool.is_some() && self.triage.app.router.mappings().len() == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::UnmappedPolicy;
    use crate::worker::test_support::{Scene, mapping, nothing, router};

    #[tokio::test]
    async fn a_single_php_process_that_gets_every_job_takes_the_next_behind_a_deletion() {
        struct Unhurried;
        impl crate::worker::Observer for Unhurried {
            fn on_event(&self, _: &Event<'_>) {}

            fn is_in_order(&self) -> bool {
                false
            }
        }
        #[rustfmt::skip]
        let rows = [
            // members, has a mapping, an observer wants ends in order => one member, only PHP, behind
            (None,    false, false, [false, false, false]),
            (Some(1), false, false, [true,  true,  true]),
            (Some(1), false, true,  [true,  true,  false]),
            // Jobs that end here would count as well.
            (Some(1), true,  false, [true,  false, false]),
            (Some(2), false, false, [false, true,  false]),
        ];
        for (members, has_mapping, in_order, expected) in rows {
            let mut scene = Scene::new(nothing());
            scene.pool = members.map(Pool::played);
            let mappings = has_mapping.then(|| mapping("*")).into_iter().collect();
            scene.router = router(mappings, UnmappedPolicy::Php, nothing());
            let (shared, _ended) = scene.shared();
            let mut shared = Arc::into_inner(shared).unwrap();
            if !in_order {
                let unhurried: Arc<dyn crate::worker::Observer> = Arc::new(Unhurried);
                shared.observers = std::iter::once(unhurried).collect();
            }
            let found = [
                shared.has_one_member(),
                shared.has_only_php(),
                shared.pops_behind_deletion(),
            ];
            assert_eq!(found, expected, "{members:?} {has_mapping} {in_order}");
        }
    }

    #[test]
    fn a_worker_that_runs_once_sets_no_timeout_as_in_laravel() {
        let mut options = WorkerOptions::default();
        assert!(Terms::of(&options).has_timeouts);
        options.stop.once = true;
        assert!(!Terms::of(&options).has_timeouts);
    }
}
