//! Keeps reservations alive while their jobs run.
//!
//! Laravel never extends a reservation: while a job runs longer than `retry_after`, a second worker runs it as
//! well. artisand renews the reservation while the handler runs within its own timeout. If this process dies, the
//! reservation ends as in Laravel.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::join_all;
use tokio::time::Instant;

use crate::connection::is_away;
use crate::payload::{JobUuid, Payload};
use crate::queue::{Error, Held, Queue, QueueName, ReservedJob};
use crate::shown::with_causes;
use crate::time::Clock;
use crate::worker::event::{Event, Observers};

/// Running jobs, and when each began.
#[derive(Debug, Default)]
pub(super) struct Running {
    jobs: Mutex<HashMap<u64, Entry>>,
}

#[derive(Debug)]
struct Entry {
    job: Arc<ReservedJob>,
    since: Instant,
    /// When the reservation was last made or renewed.
    renewed: Instant,
    /// How many renewals in a row found no reservation.
    misses: u8,
    /// Whether its loss was told.
    is_told: bool,
}

impl Running {
    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // Every change is a single insert or remove.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(&self, number: u64, job: Arc<ReservedJob>) {
        let now = Instant::now();
        self.jobs().insert(
            number,
            Entry {
                job,
                since: now,
                renewed: now,
                misses: 0,
                is_told: false,
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

    /// Jobs whose reservations may have ended already, or will soon, because they could not be renewed in time.
    ///
    /// The server was away, or the process was suspended. A pop would move these jobs back to their queue.
    fn overdue(&self, retry_after: Duration) -> ByQueue {
        self.those(|entry| entry.renewed.elapsed() >= retry_after * 2 / 3)
    }

    /// Jobs that have run for at least `age`.
    fn older_than(&self, age: Duration) -> ByQueue {
        self.those(|entry| entry.since.elapsed() >= age)
    }

    fn those(&self, is_wanted: impl Fn(&Entry) -> bool) -> ByQueue {
        let mut wanted = ByQueue::new();
        for (number, entry) in self.jobs().iter().filter(|(_, entry)| is_wanted(entry)) {
            let queue = wanted.entry(entry.job.queue.clone()).or_default();
            queue.numbers.push(*number);
            queue.jobs.push(Arc::clone(&entry.job));
        }
        wanted
    }

    /// Notes what a renewal at `moment` has found.
    fn note(&self, renewed: &OfQueue, held: &[Held], moment: Instant) {
        let mut jobs = self.jobs();
        for (number, held) in renewed.numbers.iter().zip(held) {
            // It may have ended meanwhile.
            let Some(entry) = jobs.get_mut(number) else {
                continue;
            };
            entry.renewed = moment;
            if *held != Held::Lost {
                entry.misses = 0;
                continue;
            }
            entry.misses = entry.misses.saturating_add(1);
        }
    }

    /// The jobs whose reservations turn out to be gone, each once.
    ///
    /// A job that is being settled has no reservation for a moment, so one miss does not count.
    fn newly_lost(&self) -> Vec<Arc<ReservedJob>> {
        let mut jobs = self.jobs();
        let newly_lost = (jobs.values_mut()).filter(|entry| entry.misses >= 2 && !entry.is_told);
        let tell = |entry: &mut Entry| {
            entry.is_told = true;
            Arc::clone(&entry.job)
        };
        newly_lost.map(tell).collect()
    }
}

/// Jobs, by their queue.
type ByQueue = BTreeMap<QueueName, OfQueue>;

/// Jobs of one queue.
#[derive(Debug, Default)]
struct OfQueue {
    numbers: Vec<u64>,
    jobs: Vec<Arc<ReservedJob>>,
}

/// Renews reservations, at the same time with a call for each queue: a queue that cannot be written must not cost the
/// others theirs. Notes what was renewed, and returns the errors.
async fn renew(
    queue: &dyn Queue,
    running: &Running,
    jobs: &ByQueue,
    clock: Clock,
) -> Vec<(QueueName, Error)> {
    let (moment, now) = (Instant::now(), clock.now());
    let renewals = jobs.iter().map(async |(name, of_queue)| {
        let held = queue.renew(&of_queue.jobs, now).await;
        let noted = held.map(|held| running.note(of_queue, &held, moment));
        Some((name.clone(), noted.err()?))
    });
    join_all(renewals).await.into_iter().flatten().collect()
}

/// Renews reservations that could not be renewed in time, so that a pop takes no job that this worker runs. Returns the
/// queues where that did not succeed, which must not be popped.
pub(super) async fn renew_overdue(
    queue: &dyn Queue,
    running: &Running,
    clock: Clock,
) -> Vec<(QueueName, Error)> {
    let Some(retry_after) = queue.abilities().retry_after else {
        return Vec::new();
    };
    // A job that turns out to be lost is told of at the next renewal.
    renew(queue, running, &running.overdue(retry_after), clock).await
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
        let jobs = running.older_than(interval / 2);
        let errors = renew(&*queue, &running, &jobs, clock).await;
        for job in running.newly_lost() {
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
        for (name, error) in errors {
            // The connection logs this once.
            if !is_away(&error) {
                tracing::warn!(
                    error = with_causes(&error),
                    queue = %name,
                    jobs = jobs[&name].jobs.len(),
                    "could not renew reservations"
                );
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroUsize;

    use super::*;
    use crate::queue::{MemoryQueue, PopRequest, QueueName};
    use crate::time::UnixSeconds;
    use crate::worker::event::Observer;
    use crate::worker::test_support::{Fault, NOW, RETRY_AFTER, S, Server, Told, job};

    /// Two running jobs, of the queues `a` and `b`.
    async fn scene() -> (MemoryQueue, Running) {
        let queue = MemoryQueue::new(Some(RETRY_AFTER));
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
        (queue, running)
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_reservation_is_reported_once_and_not_at_the_first_miss() {
        let (queue, running) = scene().await;
        let newly_lost = async || {
            let jobs = running.older_than(Duration::ZERO);
            renew(&queue, &running, &jobs, Clock::System).await;
            running.newly_lost().len()
        };
        assert_eq!(newly_lost().await, 0);
        queue.clear(&QueueName::from("a")).await.unwrap();
        let mut found = Vec::new();
        for _ in 0..4 {
            found.push(newly_lost().await);
        }
        assert_eq!(found, [0, 1, 0, 0]);
    }

    #[tokio::test(start_paused = true)]
    async fn only_jobs_that_could_not_be_renewed_are_overdue() {
        let (queue, running) = scene().await;
        let overdue = || -> Vec<_> { running.overdue(RETRY_AFTER).into_keys().collect() };
        tokio::time::advance(RETRY_AFTER / 2).await;
        assert_eq!(overdue(), []);
        let mut jobs = running.older_than(Duration::ZERO);
        jobs.remove(&QueueName::from("a"));
        let errors = renew(&queue, &running, &jobs, Clock::System).await;
        assert!(errors.is_empty());
        tokio::time::advance(RETRY_AFTER / 2).await;
        assert_eq!(overdue(), [QueueName::from("a")]);
        assert!(
            renew_overdue(&queue, &running, Clock::System)
                .await
                .is_empty()
        );
        assert_eq!(overdue(), []);
        running.remove(0);
        running.remove(1);
        tokio::time::advance(RETRY_AFTER).await;
        assert_eq!(overdue(), []);
    }

    /// A task that renews the reservation of one job, number 1, which begins now.
    async fn renewing() -> (Arc<Server>, Arc<Running>, Told) {
        let (server, running, told) = (Server::new(), Arc::<Running>::default(), Told::default());
        server.push(&[job(1)]).await;
        running.insert(1, server.reserve().await.remove(0));
        let observer: Arc<dyn Observer> = Arc::new(told.clone());
        tokio::spawn(keep_renewing(
            Arc::clone(&server) as _,
            Arc::clone(&running),
            std::iter::once(observer).collect(),
            Clock::Fixed(NOW),
        ));
        (server, running, told)
    }

    #[tokio::test(start_paused = true)]
    async fn a_short_job_costs_no_renewal_and_a_long_one_is_renewed_every_ten_seconds() {
        let began = Instant::now();
        let (server, running, told) = renewing().await;
        tokio::time::sleep_until(began + S(65)).await;
        let seconds = |server: &Server| -> Vec<u64> {
            let calls = server.calls("renew");
            calls
                .iter()
                .map(|call| (call.at - began).as_secs())
                .collect()
        };
        assert_eq!(seconds(&server), [20, 30, 40, 50, 60]);
        running.remove(1);
        tokio::time::sleep(S(300)).await;
        assert_eq!(seconds(&server).len(), 5);
        assert!(told.take().is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn a_reservation_that_is_lost_while_its_job_runs_is_told_once() {
        let (server, _running, told) = renewing().await;
        tokio::time::sleep(S(25)).await;
        server.jobs.clear(&"default".into()).await.unwrap();
        tokio::time::sleep(S(10)).await;
        assert!(told.take().is_empty(), "the job may be settled just now");
        tokio::time::sleep(S(300)).await;
        assert_eq!(told.take(), ["ReservationLost"]);
    }

    #[tokio::test(start_paused = true)]
    async fn reservations_that_could_not_be_renewed_are_overdue_before_they_end() {
        for fault in [Fault::Refused, Fault::ReplyLost, Fault::Hangs] {
            let began = Instant::now();
            let (server, running, told) = renewing().await;
            server.next("renew", [Some(fault); 9]);
            tokio::time::sleep_until(began + S(59)).await;
            assert!(running.overdue(RETRY_AFTER).is_empty(), "{fault:?}");
            tokio::time::sleep_until(began + S(61)).await;
            assert_eq!(running.overdue(RETRY_AFTER).len(), 1, "{fault:?}");
            assert!(told.take().is_empty(), "{fault:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_renewal_in_between_makes_a_miss_no_loss() {
        let (_server, running, _told) = renewing().await;
        let jobs = running.older_than(Duration::ZERO);
        let misses = [true, false, true, false, true, true, true];
        let mut lost = 0;
        let mut found = Vec::new();
        for misses in misses {
            let held = if misses { Held::Lost } else { Held::Until(NOW) };
            running.note(&jobs[&QueueName::from("default")], &[held], Instant::now());
            lost += running.newly_lost().len();
            found.push(lost);
        }
        assert_eq!(found, [0, 0, 0, 0, 0, 1, 1]);
    }
}
