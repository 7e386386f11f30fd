//! Tasks that empty the outbox lists while jobs run, and once more when the worker stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::{JoinError, JoinHandle};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::outbox::failed_jobs::{Recordings, Sweeps};
use crate::outbox::lease::{DrainStatus, Progress};
use crate::outbox::left::Left;
use crate::outbox::{OnRefusal, failed_jobs, follow_ups};
use crate::queue::{ConnectionName, Ledger, Queue, QueueName};
use crate::time::Clock;
use crate::worker::stop::Orders;

/// The task that moves failed jobs to their store.
pub(crate) struct Recording {
    task: JoinHandle<DrainStatus>,
    last: CancellationToken,
    progress: Progress,
    recordings: Recordings,
    /// Whether the store refuses PHP's writes while a failed job is recorded.
    keeps_others_out: bool,
}

/// The task that does the follow-ups of ended jobs.
pub(crate) struct Following {
    task: JoinHandle<DrainStatus>,
    last: CancellationToken,
    progress: Progress,
}

impl Recording {
    pub(crate) fn start(
        (ledger, queues): (&Arc<dyn Ledger>, &[QueueName]),
        store: Arc<FailedJobs>,
        spooled: Arc<Notify>,
        clock: Clock,
        on_refusal: OnRefusal,
    ) -> Self {
        let (last, progress) = (CancellationToken::new(), Progress::default());
        let (sweeps, seen) = watch::channel(Sweeps::default());
        let (failing, is_failing) = watch::channel(0);
        let keeps_others_out = store.keeps_others_out();
        let recorder = failed_jobs::FailedJobRelay {
            ledger: Arc::clone(ledger),
            queues: queues.to_vec(),
            store,
            clock,
            spooled,
            last: last.clone(),
            progress: progress.clone(),
            sweeps,
            failing: is_failing,
            on_refusal,
        };
        let task = tokio::spawn(failed_jobs::keep_recording(recorder));
        Self {
            task,
            last,
            progress,
            recordings: Recordings::new(seen, Arc::new(failing)),
            keeps_others_out,
        }
    }

    /// What attempts in PHP have to know about the recorder; `None` if it does not concern them.
    pub(crate) fn recordings(&self) -> Option<Recordings> {
        self.keeps_others_out.then(|| self.recordings.clone())
    }

    /// Moves the last records to the store while there is progress; the next worker moves the rest.
    pub(crate) async fn finish(mut self, budget: DrainBudget) {
        self.last.cancel();
        let ended = budget.wait(&mut self.task, &self.progress).await;
        if !matches!(ended, Some(Ok(DrainStatus::All))) {
            self.task.abort();
            tracing::warn!(
                "failed jobs are left in the spool: their store has not taken them, or another process is writing them; the next worker continues, and `doctor` shows them"
            );
        }
    }
}

impl Following {
    pub(crate) fn start(
        (queue, ledger, queues): (&Arc<dyn Queue>, &Arc<dyn Ledger>, &[QueueName]),
        services: Arc<Services>,
        connection: ConnectionName,
        left: Arc<Left>,
        clock: Clock,
        on_refusal: OnRefusal,
    ) -> Self {
        let (last, progress) = (CancellationToken::new(), Progress::default());
        let task = follow_ups::FollowUpRelay {
            ledger: Arc::clone(ledger),
            queues: queues.to_vec(),
            services,
            queue: Arc::clone(queue),
            connection,
            clock,
            left,
            last: last.clone(),
            progress: progress.clone(),
            on_refusal,
        };
        let task = tokio::spawn(follow_ups::keep_following(task));
        Self {
            task,
            last,
            progress,
        }
    }

    /// Does the last follow-ups while there is progress; the next worker does the rest.
    pub(crate) async fn finish(mut self, budget: DrainBudget) {
        self.last.cancel();
        let ended = budget.wait(&mut self.task, &self.progress).await;
        if !matches!(ended, Some(Ok(DrainStatus::All))) {
            self.task.abort();
            tracing::warn!(
                "something is left to do for jobs that have ended; the next worker will do it"
            );
        }
    }
}

/// How long the tasks may take for the last records.
#[derive(Debug, Clone)]
pub(crate) struct DrainBudget {
    /// The worker's orders during the wait.
    pub(crate) orders: watch::Receiver<Orders>,
    /// When the worker should have stopped; `None` if it was not told to.
    pub(crate) deadline: Option<Instant>,
    /// How long the worker may take once told to stop; `None` for no limit.
    pub(crate) grace: Option<Duration>,
}

impl DrainBudget {
    /// How long there may be no progress.
    const IDLE: Duration = Duration::from_secs(3);
    /// How long the tasks may take after the deadline; a process manager may send SIGKILL two seconds after it.
    const EXTRA: Duration = Duration::from_secs(1);
    /// How long the tasks may take without a deadline. Other workers may keep adding records.
    const LONGEST: Duration = Duration::from_secs(30);

    /// Waits for the end of a task; `None` if it takes too long.
    async fn wait<T>(
        mut self,
        task: &mut JoinHandle<T>,
        progress: &Progress,
    ) -> Option<Result<T, JoinError>> {
        let began = Instant::now();
        let (mut seen, mut idle_at) = (progress.records(), began + Self::IDLE);
        loop {
            let Orders { quit, hurry, .. } = *self.orders.borrow_and_update();
            if quit && self.deadline.is_none() {
                self.deadline = self.grace.map(|grace| Instant::now() + grace);
            }
            if hurry {
                self.deadline = Some(began);
            }
            let deadline = self.deadline.map(|at| at.max(began) + Self::EXTRA);
            let longest = began + Self::LONGEST;
            let latest = deadline.map_or(longest, |deadline| deadline.min(longest));
            tokio::select! {
                ended = &mut *task => return Some(ended),
                Ok(()) = self.orders.changed() => {}
                () = tokio::time::sleep_until(latest.min(idle_at)) => {
                    let records = progress.records();
                    if records == seen || latest <= Instant::now() {
                        return None;
                    }
                    (seen, idle_at) = (records, Instant::now() + Self::IDLE);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seconds until the wait is over, for a task that removes a record every `every` seconds, `count` times.
    async fn waited(
        every: u64,
        count: u64,
        deadline: Option<u64>,
        quit_at: Option<u64>,
    ) -> (u64, bool) {
        let (control, orders) = watch::channel(Orders::default());
        let progress = Progress::default();
        let began = Instant::now();
        let mut task = tokio::spawn({
            let progress = progress.clone();
            async move {
                for _ in 0..count {
                    tokio::time::sleep(Duration::from_secs(every)).await;
                    progress.add(1);
                }
            }
        });
        if let Some(quit_at) = quit_at {
            tokio::spawn(async move {
                tokio::time::sleep(Duration::from_secs(quit_at)).await;
                control.send_modify(|orders| orders.quit = true);
            });
        }
        let budget = DrainBudget {
            orders,
            deadline: deadline.map(|seconds| began + Duration::from_secs(seconds)),
            grace: Some(Duration::from_secs(8)),
        };
        let ended = budget.wait(&mut task, &progress).await;
        (began.elapsed().as_secs(), ended.is_some())
    }

    #[tokio::test(start_paused = true)]
    async fn the_last_things_go_on_while_they_get_on_and_no_longer_than_they_may() {
        // A task that ends; a task without progress for three seconds; a task that would never end.
        assert_eq!(waited(1, 20, None, None).await, (20, true));
        assert_eq!(waited(10, 1, None, None).await, (3, false));
        assert_eq!(waited(1, 1000, None, None).await, (30, false));
        // A deadline from the beginning, or from later on.
        assert_eq!(waited(1, 5, Some(8), None).await, (5, true));
        assert_eq!(waited(1, 20, Some(8), None).await, (9, false));
        assert_eq!(waited(1, 20, None, Some(5)).await, (14, false));
    }
}
