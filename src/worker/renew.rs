//! Keeps reservations alive while their jobs run.
//!
//! Laravel never extends a reservation: while a job runs longer than `retry_after`, a second worker runs it as
//! well. artisand renews the reservation while the handler runs within its own timeout. If this process dies, the
//! reservation ends as in Laravel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::is_away;
use crate::queue::{Held, Queue, ReservedJob};
use crate::shown::with_causes;
use crate::time::Clock;

/// Running jobs, and when each began.
#[derive(Debug)]
pub(super) struct Running {
    jobs: Mutex<HashMap<u64, Entry>>,
    /// When reservations were last renewed, or did not need to be.
    renewed: Mutex<Instant>,
}

impl Default for Running {
    fn default() -> Self {
        Self {
            jobs: Mutex::default(),
            renewed: Mutex::new(Instant::now()),
        }
    }
}

#[derive(Debug)]
struct Entry {
    job: Arc<ReservedJob>,
    since: Instant,
    /// How many renewals in a row found no reservation.
    misses: u8,
}

impl Running {
    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Every change is a single insert or remove.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, number: u64, job: Arc<ReservedJob>) {
        self.jobs().insert(
            number,
            Entry {
                job,
                since: Instant::now(),
                misses: 0,
            },
        );
    }

    pub(super) fn remove(&self, number: u64) {
        self.jobs().remove(&number);
    }

    /// Whether this job is running or not yet settled.
    pub(super) fn has(&self, number: u64) -> bool {
        self.jobs().contains_key(&number)
    }

    /// True if no job is running and all are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    /// Notes that no reservation needs renewal as of this moment.
    pub(super) fn renewed_at(&self, moment: Instant) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = moment;
    }

    /// Jobs whose reservations may have ended already, or will soon, because they could not be renewed in time.
    ///
    /// The server was away, or the process was suspended. A pop would move these jobs back to their queue.
    pub(super) fn overdue(&self, retry_after: Duration) -> Vec<Arc<ReservedJob>> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.elapsed() < retry_after * 2 / 3 {
            return Vec::new();
        }
        self.older_than(Duration::ZERO)
    }

    /// Logs the jobs whose reservations are gone, each once.
    ///
    /// A job that is being settled has no reservation for a moment, so only the second miss counts.
    fn note_lost(&self, renewed: &[Arc<ReservedJob>], held: &[Held]) {
        let lost: Vec<_> = (renewed.iter().zip(held))
            .filter_map(|(job, held)| (*held == Held::Lost).then_some(job))
            .collect();
        let mut jobs = self.jobs();
        for entry in jobs.values_mut() {
            if !lost.iter().any(|job| Arc::ptr_eq(job, &entry.job)) {
                entry.misses = 0;
                continue;
            }
            entry.misses = entry.misses.saturating_add(1);
            if entry.misses == 2 {
                tracing::warn!(
                    queue = %entry.job.queue,
                    attempts = entry.job.attempts,
                    "the reservation of a running job is gone: the queue was cleared, or another worker may run the job as well"
                );
            }
        }
    }

    /// Jobs that have run for at least `age`.
    fn older_than(&self, age: Duration) -> Vec<Arc<ReservedJob>> {
        let jobs = self.jobs();
        jobs.values()
            .filter(|entry| entry.since.elapsed() >= age)
            .map(|entry| Arc::clone(&entry.job))
            .collect()
    }
}

/// Renews reservations until the future is dropped.
pub(super) async fn keep_renewing(queue: Arc<dyn Queue>, running: Arc<Running>, clock: Clock) {
    let Some(retry_after) = queue.abilities().retry_after else {
        return std::future::pending().await;
    };
    // Three tries before the reservation ends. Scores are whole seconds, so at most twice a second.
    let interval = (retry_after / 3).max(Duration::from_millis(500));
    let mut ticks = tokio::time::interval(interval.min(Duration::from_secs(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let jobs = running.older_than(interval / 2);
        let renewed = if jobs.is_empty() {
            Ok(Vec::new())
        } else {
            queue.renew(&jobs, clock.now()).await
        };
        match renewed {
            Ok(held) => {
                running.renewed_at(now);
                running.note_lost(&jobs, &held);
            }
            // The connection logs this once.
            Err(error) if is_away(&error) => {}
            Err(error) => tracing::warn!(
                error = with_causes(&error),
                jobs = jobs.len(),
                "could not renew reservations"
            ),
        }
    }
}
