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

use super::attempt::with_causes;
use crate::queue::{Queue, ReservedJob};
use crate::time::Clock;

/// Jobs that run, and since when.
#[derive(Debug, Default)]
pub(super) struct Running {
    jobs: Mutex<HashMap<u64, Entry>>,
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

    /// True if no job is under way: none runs, and all verdicts are carried out.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
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
        let jobs = running.older_than(interval / 2);
        if jobs.is_empty() {
            continue;
        }
        if let Err(error) = queue.renew(&jobs, clock.now()).await {
            tracing::warn!(
                error = with_causes(&error),
                jobs = jobs.len(),
                "could not renew reservations"
            );
        }
    }
}
