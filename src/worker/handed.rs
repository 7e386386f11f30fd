//! How far the settling of ended jobs has come, for a worker with one slot.
//!
//! Such a worker runs one job after the other: the next one begins when the last one is settled. The pop need not
//! wait for that. It is sent right behind the settlement, on the same connection, so that both take one round trip.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

/// Counts of ended jobs since the worker's start.
#[derive(Debug, Default)]
pub(crate) struct Handed {
    /// Handed over to be settled.
    over: AtomicU64,
    /// Whose settlement was sent for the first time.
    sent: AtomicU64,
    /// Settled, or given up.
    settled: AtomicU64,
    changed: Notify,
    /// Notified, too, when jobs are settled, for attempts that wait for it.
    all_settled: Notify,
}

impl Handed {
    /// Notes that a job is about to be handed over.
    pub(crate) fn hand_over(&self) {
        self.over.fetch_add(1, Ordering::Relaxed);
    }

    /// Notes that settlements are sent in this moment.
    ///
    /// The loop is notified before the task of the connection, so that the pop goes to the server in one piece with
    /// them.
    pub(super) fn send(&self, jobs: usize) {
        self.sent.fetch_add(jobs as u64, Ordering::Relaxed);
        self.changed.notify_one();
    }

    /// Notes that jobs are settled.
    pub(super) fn settle(&self, jobs: usize) {
        self.settled.fetch_add(jobs as u64, Ordering::Relaxed);
        self.changed.notify_one();
        self.all_settled.notify_waiters();
    }

    /// Whether all jobs that were handed over are settled.
    pub(super) fn are_settled(&self) -> bool {
        self.settled.load(Ordering::Relaxed) >= self.over.load(Ordering::Relaxed)
    }

    /// Waits until all jobs that were handed over are settled.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(crate) async fn settled(&self) {
        loop {
            let mut changed = std::pin::pin!(self.all_settled.notified());
            changed.as_mut().enable();
            if self.are_settled() {
                return;
            }
            changed.await;
        }
    }

    /// Waits until the settlements of all jobs that were handed over are sent.
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
        let handed = Handed::default();
        let sent = async || {
            let wait = Duration::from_secs(1);
            tokio::time::timeout(wait, handed.sent()).await.is_ok()
        };
        assert!(sent().await && handed.are_settled());
        handed.settled().await;
        handed.hand_over();
        assert!(!sent().await && !handed.are_settled());
        handed.send(1);
        assert!(sent().await && !handed.are_settled());
        let mut settled = std::pin::pin!(handed.settled());
        assert!(futures_util::poll!(settled.as_mut()).is_pending());
        handed.settle(1);
        settled.await;
        assert!(sent().await && handed.are_settled());
    }
}
