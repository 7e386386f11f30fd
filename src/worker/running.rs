//! The jobs that run, and what is known of their reservations.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::{Held, QueueName, ReservedJob};
use crate::time::UnixSeconds;

/// How long after the first miss the second one counts.
pub(super) const BETWEEN_MISSES: Duration = Duration::from_millis(400);

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
    /// When the reservation ends unless renewed, if it ever does and was not lost. A clock that was set, or a machine
    /// that slept, shows here and not in `renewed`.
    until: Option<UnixSeconds>,
    /// How many renewals in a row found no reservation.
    misses: u8,
    /// Whether its loss was told.
    is_told: bool,
    /// Whether its handler runs on beyond its time, and cannot be ended.
    is_given_up: bool,
    /// Whether it gets on only while a thread for busy handlers is free.
    needs_thread: bool,
}

impl Running {
    fn jobs(&self) -> MutexGuard<'_, HashMap<u64, Entry>> {
        // A panic leaves no entry half changed, so the map stays usable.
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a job that begins, and whose reservation was made `age` ago.
    pub(super) fn insert(&self, number: u64, job: Arc<ReservedJob>, age: Duration) {
        let now = Instant::now();
        self.jobs().insert(
            number,
            Entry {
                until: job.lease,
                job,
                since: now,
                // The clock of the system cannot tell a moment before its start.
                renewed: now.checked_sub(age).unwrap_or(now),
                misses: 0,
                is_told: false,
                is_given_up: false,
                needs_thread: false,
            },
        );
    }

    /// Notes whether a job gets on only while a thread for busy handlers is free: until its end is handed in.
    pub(super) fn set_needs_thread(&self, number: u64, needs_thread: bool) {
        if let Some(entry) = self.jobs().get_mut(&number) {
            entry.needs_thread = needs_thread;
        }
    }

    pub(super) fn remove(&self, number: u64) {
        self.jobs().remove(&number);
    }

    /// Whether this job is running or not yet settled.
    #[cfg(test)]
    pub(super) fn has(&self, number: u64) -> bool {
        self.jobs().contains_key(&number)
    }

    /// Notes that the handler of a job cannot be ended; true if that is news.
    ///
    /// The reservation is renewed as long as this process lives: the job must not run again beside it.
    pub(super) fn give_up(&self, number: u64) -> bool {
        let mut jobs = self.jobs();
        let entry = jobs.get_mut(&number);
        entry.is_some_and(|entry| !std::mem::replace(&mut entry.is_given_up, true))
    }

    /// Whether one of these jobs is not given up, of those that need a thread for busy handlers, or of the others.
    pub(super) fn has_one_within_its_time(&self, numbers: &[u64], needs_thread: bool) -> bool {
        let jobs = self.jobs();
        let mut entries = numbers.iter().filter_map(|number| jobs.get(number));
        entries.any(|entry| entry.needs_thread == needs_thread && !entry.is_given_up)
    }

    /// True if all jobs that are running or not yet settled are given up, or wait for a thread for busy handlers where
    /// none will be free again.
    pub(super) fn are_given_up(&self, no_thread_is_left: bool) -> bool {
        let jobs = self.jobs();
        (jobs.values()).all(|entry| entry.is_given_up || (no_thread_is_left && entry.needs_thread))
    }

    /// True if no job is running and all are settled.
    pub(super) fn is_empty(&self) -> bool {
        self.jobs().is_empty()
    }

    /// Jobs whose reservations may have ended already, or will soon, because they could not be renewed in time.
    ///
    /// The server was away, the process or the machine was suspended, or the clock was set. A pop would move these jobs
    /// back to their queue.
    pub(super) fn overdue(&self, retry_after: Duration, now: UnixSeconds) -> ByQueue {
        // The pop that follows may already see the next second.
        let last = (retry_after / 3).min(Duration::from_secs(1));
        self.those(|entry| {
            entry.renewed.elapsed() >= retry_after * 2 / 3
                || entry.until.is_some_and(|until| until <= now.plus(last))
        })
    }

    /// Jobs that have run for at least `age`.
    pub(super) fn older_than(&self, age: Duration) -> ByQueue {
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
    pub(super) fn note(&self, renewed: &OfQueue, held: &[Held], moment: Instant) {
        let mut jobs = self.jobs();
        for (number, held) in renewed.numbers.iter().zip(held) {
            // It may have ended meanwhile.
            let Some(entry) = jobs.get_mut(number) else {
                continue;
            };
            let since = moment.saturating_duration_since(entry.renewed);
            entry.renewed = moment;
            entry.until = match *held {
                Held::Until(until) => Some(until),
                Held::Lost => None,
            };
            if entry.until.is_some() {
                entry.misses = 0;
            } else if entry.misses == 0 || since >= BETWEEN_MISSES {
                entry.misses = entry.misses.saturating_add(1);
            }
        }
    }

    #[cfg(test)]
    pub(super) fn misses(&self, number: u64) -> u8 {
        self.jobs()[&number].misses
    }

    /// The jobs whose reservations turn out to be gone, each once.
    ///
    /// A job that is being settled has no reservation for a moment, so one miss does not count.
    pub(super) fn newly_lost(&self) -> Vec<Arc<ReservedJob>> {
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
pub(super) type ByQueue = BTreeMap<QueueName, OfQueue>;

/// Jobs of one queue.
#[derive(Debug, Default)]
pub(super) struct OfQueue {
    numbers: Vec<u64>,
    pub(super) jobs: Vec<Arc<ReservedJob>>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::test_support::{NOW, RETRY_AFTER, S, Server, job};

    #[tokio::test(start_paused = true)]
    async fn a_renewal_in_between_makes_a_miss_no_loss() {
        let server = Server::new();
        server.push(&[job(1)]).await;
        let running = Running::default();
        running.insert(1, server.reserve().await.remove(0), Duration::ZERO);
        let jobs = running.older_than(Duration::ZERO);
        let misses = [true, false, true, false, true, true, true];
        let mut lost = 0;
        let mut found = Vec::new();
        for misses in misses {
            let held = if misses {
                Held::Lost
            } else {
                Held::Until(UnixSeconds(0))
            };
            tokio::time::advance(BETWEEN_MISSES).await;
            running.note(&jobs[&QueueName::from("default")], &[held], Instant::now());
            lost += running.newly_lost().len();
            found.push(lost);
        }
        assert_eq!(found, [0, 0, 0, 0, 0, 1, 1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_that_came_late_is_overdue_before_its_reservation_ends() {
        let (server, running) = (Server::new(), Running::default());
        server.push(&[job(1), job(2)]).await;
        let jobs = server.reserve().await;
        // The reply to the pop took 40 of 90 seconds for the second one.
        for (number, (job, age)) in (1..).zip(jobs.into_iter().zip([S(0), S(40)])) {
            running.insert(number, job, age);
        }
        let overdue = || -> usize {
            let overdue = running.overdue(RETRY_AFTER, NOW);
            overdue.values().map(|queue| queue.jobs.len()).sum()
        };
        for (passes, expected) in [(S(19), 0), (S(1), 1), (S(39), 1), (S(1), 2)] {
            tokio::time::advance(passes).await;
            assert_eq!(overdue(), expected, "{passes:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_job_is_overdue_by_a_clock_that_was_set_or_went_on_while_the_machine_slept() {
        let (server, running) = (Server::new(), Running::default());
        server.push(&[job(1)]).await;
        running.insert(1, server.reserve().await.remove(0), Duration::ZERO);
        let is_overdue = |now| !running.overdue(RETRY_AFTER, now).is_empty();
        let after = |seconds: u64| NOW.plus(S(seconds));
        #[rustfmt::skip]
        let rows = [
            (after(0), false), (after(88), false), (after(89), true), (after(3600), true),
            (UnixSeconds(NOW.0 - 3600), false),
        ];
        for (now, expected) in rows {
            assert_eq!(is_overdue(now), expected, "{now:?}");
        }
        // A renewal counts from the new time.
        let jobs = running.older_than(Duration::ZERO);
        let of_queue = &jobs[&QueueName::from("default")];
        let until = after(3600 + 90);
        running.note(of_queue, &[Held::Until(until)], Instant::now());
        assert!(!is_overdue(after(3600)) && is_overdue(until));
        // What is gone is not renewed before every pop.
        running.note(of_queue, &[Held::Lost], Instant::now());
        assert!(!is_overdue(until));
    }
}
