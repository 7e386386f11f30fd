//! Keeps reservations alive while their jobs run.
//!
//! Laravel never extends a reservation: a job longer than `retry_after` is run
//! by a second worker beside the first. Here the end of the reservation is
//! pushed ahead while the handler runs and its own timeout has not passed. If
//! this process dies, the reservation ends as in Laravel.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::connection::is_away;
use crate::queue::{Queue, ReservedJob};
use crate::shown::with_causes;
use crate::time::Clock;

/// Jobs that run, and since when.
#[derive(Debug)]
pub(super) struct Running {
    jobs: Mutex<HashMap<u64, Entry>>,
    /// When reservations were last renewed, as far as there were any.
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
            },
        );
    }

    pub(super) fn remove(&self, number: u64) {
        self.jobs().remove(&number);
    }

    /// Whether this job is under way.
    pub(super) fn has(&self, number: u64) -> bool {
        self.jobs().contains_key(&number)
    }

    /// True if no job is under way: none runs, and all verdicts are carried out.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    /// Takes note that no reservation had to be renewed later than at this moment.
    pub(super) fn renewed_at(&self, moment: Instant) {
        *self.renewed.lock().unwrap_or_else(PoisonError::into_inner) = moment;
    }

    /// Jobs whose reservations may have ended already, or soon do, as they could not be renewed in time.
    ///
    /// A server that was away, or a process that was stopped: a pop would move them back to their queue.
    pub(super) fn overdue(&self, retry_after: Duration) -> Vec<Arc<ReservedJob>> {
        let renewed = *self.renewed.lock().unwrap_or_else(PoisonError::into_inner);
        if renewed.elapsed() < retry_after * 2 / 3 {
            return Vec::new();
        }
        self.older_than(Duration::ZERO)
    }

    /// Jobs that have run for so long.
    fn older_than(&self, age: Duration) -> Vec<Arc<ReservedJob>> {
        let jobs = self.jobs();
        jobs.values()
            .filter(|entry| entry.since.elapsed() >= age)
            .map(|entry| Arc::clone(&entry.job))
            .collect()
    }
}

/// Renews reservations until the future is dropped.
pub(super) async fn keep_renewing<Q: Queue>(queue: Arc<Q>, running: Arc<Running>, clock: Clock) {
    let Some(retry_after) = queue.retry_after() else {
        return std::future::pending().await;
    };
    // Three chances before the end; scores are whole seconds, so never more often than twice a second.
    let interval = (retry_after / 3).max(Duration::from_millis(500));
    let mut ticks = tokio::time::interval(interval.min(Duration::from_secs(10)));
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        let now = Instant::now();
        let jobs = running.older_than(interval / 2);
        let renewed = if jobs.is_empty() {
            Ok(())
        } else {
            queue.renew(&jobs, clock.now()).await
        };
        match renewed {
            Ok(()) => running.renewed_at(now),
            // Said once for all, by the connection.
            Err(error) if is_away(&error) => {}
            Err(error) => tracing::warn!(
                error = with_causes(&error),
                jobs = jobs.len(),
                "could not renew reservations"
            ),
        }
    }
}
