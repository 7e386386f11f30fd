//! How far the settling of ended jobs has come.
//!
//! A worker with one slot or one PHP process runs one job after the other: the next one begins when the last one is
//! settled. The pop need not wait for that. It is sent right behind the settlement, on the same connection, so that
//! both take one round trip.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tokio::sync::Notify;

use super::gauge::{Gauge, Held};

/// How many groups of jobs that cannot be settled keep the worker from popping more.
const MOST_PARKED: usize = 64;

/// Counts of ended jobs since the worker's start.
#[derive(Debug, Default)]
pub(crate) struct SettleCounts {
    /// Jobs that have ended and were given to the settler.
    over: AtomicU64,
    /// Jobs whose settlement was sent to the server at least once.
    sent: AtomicU64,
    /// Jobs that are settled, or given up.
    settled: AtomicU64,
    /// Whether some will never be settled by this worker.
    are_given_up: AtomicBool,
    /// Groups of jobs that could not be settled, and are tried again.
    parked: Gauge,
    changed: Notify,
    /// Notified, too, when jobs are settled, for attempts that wait for it.
    all_settled: Notify,
}

impl SettleCounts {
    /// Notes that a job has ended, before its end goes to the settler.
    pub(crate) fn note_ended(&self) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that settlements are sent in this moment.
    ///
    /// The loop is notified before the task of the connection, so that the pop goes to the server in one piece with
    /// them.
    pub(super) fn note_sent(&self, jobs: usize) {
        self.sent.fetch_add(jobs as u64, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Notes that jobs are settled.
    pub(super) fn note_settled(&self, jobs: usize) {
        self.settled.fetch_add(jobs as u64, Ordering::Relaxed);
        self.changed.notify_one();
        self.all_settled.notify_waiters();
    }

    /// Notes that jobs could not be settled before the worker's end.
    pub(super) fn note_given_up(&self, jobs: usize) {
        self.are_given_up.store(true, Ordering::Relaxed);
        self.note_settled(jobs);
    }

    /// Counts a group of jobs that is tried again until the guard is dropped.
    pub(super) fn park(&self) -> Held {
        self.parked.hold()
    }

    /// Whether no more jobs should begin, because too many could not be settled: their number would have no limit.
    pub(super) fn are_too_many_parked(&self) -> bool {
        self.parked.count() >= MOST_PARKED
    }

    /// Whether jobs were given up, so that this worker should begin no more.
    pub(super) fn are_given_up(&self) -> bool {
        self.are_given_up.load(Ordering::Relaxed)
    }

    /// Whether all jobs that have ended are settled.
    pub(super) fn are_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) >= self.over.load(Ordering::Relaxed)
    }

    /// Waits until all jobs that have ended are settled; false as soon as some are given up.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn settled(&self) -> bool {
        loop {
            let mut changed = std::pin::pin!(self.all_settled.notified());
            changed.as_mut().enable();
            if self.are_given_up() {
                return false;
            }
            if self.are_settled() {
                return true;
            }
            changed.await;
        }
    }

    /// Waits until the settlements of all jobs that have ended are sent.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn sent(&self) {
        while self.sent.load(Ordering::Relaxed) < self.over.load(Ordering::Relaxed) {
            self.changed.notified().await;
        }
    }

    /// Waits for the next change.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn changed(&self) {
        self.changed.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pop_waits_for_the_sending_and_a_job_for_the_settling() {
        let settle_counts = SettleCounts::default();
        let sent = async || {
            let wait = Duration::from_secs(1);
            tokio::time::timeout(wait, settle_counts.sent())
                .await
                .is_ok()
        };
        assert!(sent().await && settle_counts.are_settled());
        assert!(settle_counts.settled().await);
        settle_counts.note_ended();
        assert!(!sent().await && !settle_counts.are_settled());
        settle_counts.note_sent(1);
        assert!(sent().await && !settle_counts.are_settled());
        let mut settled = std::pin::pin!(settle_counts.settled());
        assert!(futures_util::poll!(settled.as_mut()).is_pending());
        settle_counts.note_settled(1);
        assert!(settled.await);
        assert!(sent().await && settle_counts.are_settled());
        // No job begins behind one that this worker could not settle.
        settle_counts.note_ended();
        let mut settled = std::pin::pin!(settle_counts.settled());
        assert!(futures_util::poll!(settled.as_mut()).is_pending());
        settle_counts.note_given_up(1);
        assert!(!settled.await && settle_counts.are_settled());
    }
}
