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
use crate::payload::{JobUuid, Payload};
use crate::queue::{Held, Queue, ReservedJob};
use crate::shown::with_causes;
use crate::time::Clock;
use crate::worker::event::{Event, Observers};

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

    /// The jobs whose reservations turn out to be gone, each once.
    ///
    /// A job that is being settled has no reservation for a moment, so only the second miss counts.
    fn newly_lost(&self, renewed: &[Arc<ReservedJob>], held: &[Held]) -> Vec<Arc<ReservedJob>> {
        let lost: Vec<_> = (renewed.iter().zip(held))
            .filter_map(|(job, held)| (*held == Held::Lost).then_some(job))
            .collect();
        let mut newly_lost = Vec::new();
        for entry in self.jobs().values_mut() {
            if !lost.iter().any(|job| Arc::ptr_eq(job, &entry.job)) {
                entry.misses = 0;
                continue;
            }
            entry.misses = entry.misses.saturating_add(1);
            if entry.misses == 2 {
                newly_lost.push(Arc::clone(&entry.job));
            }
        }
        newly_lost
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
pub(super) async fn keep_renewing(
    queue: Arc<dyn Queue>,
    running: Arc<Running>,
    observers: Observers,
    clock: Clock,
) {
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
                for job in running.newly_lost(&jobs, &held) {
                    observers.emit(&Event::ReservationLost(&job.queue));
                    let payload = Payload::parse(&job.payload).ok();
                    let uuid = payload.as_ref().and_then(|payload| payload.uuid.as_ref());
                    tracing::warn!(
                        job.uuid = uuid.map(JobUuid::bounded),
                        job.class = payload.as_ref().map(|payload| payload.shown_name()).as_deref(),
                        queue = %job.queue,
                        attempts = job.attempts,
                        "the reservation of a running job is gone: the queue was cleared, or another worker may run the job as well"
                    );
                }
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

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::queue::{MemoryQueue, PopRequest, QueueName};
    use crate::time::UnixSeconds;

    /// Renews all jobs and returns how many turn out to be lost.
    async fn newly_lost(queue: &MemoryQueue, running: &Running) -> usize {
        let jobs = running.older_than(Duration::ZERO);
        let held = queue.renew(&jobs, UnixSeconds(0)).await.unwrap();
        running.newly_lost(&jobs, &held).len()
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_reservation_is_reported_once_and_not_at_the_first_miss() {
        let queue = MemoryQueue::new(Some(Duration::from_secs(90)));
        let names = [QueueName::from("a"), QueueName::from("b")];
        for name in &names {
            let payload = br#"{"attempts":0}"#.to_vec();
            queue.push(name, &[payload]).await.unwrap();
        }
        let request = PopRequest {
            queues: &names,
            max: NonZeroUsize::MAX,
            now: UnixSeconds(0),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let running = Running::default();
        for (number, job) in (0..).zip(queue.pop(request).await.unwrap().jobs) {
            running.insert(number, Arc::new(job));
        }
        assert_eq!(newly_lost(&queue, &running).await, 0);
        queue.clear(&names[0]).await.unwrap();
        let mut found = Vec::new();
        for _ in 0..4 {
            found.push(newly_lost(&queue, &running).await);
        }
        assert_eq!(found, [0, 1, 0, 0]);
    }
}
