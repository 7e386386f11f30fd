//! Lets a pop under load fill several slots: the worker waits a moment until enough slots are free.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicIsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

/// How long a pop under load waits for more free slots.
pub(super) const LINGER: Duration = Duration::from_millis(1);

/// The wait of a pop for more free slots.
#[derive(Debug)]
pub(super) struct Linger {
    /// The number of free slots that is enough.
    enough: usize,
    /// When the first of the free slots became free.
    since: Option<Instant>,
}

impl Linger {
    /// A linger for a worker with `concurrency` slots: half of them are enough.
    pub(super) fn new(concurrency: NonZeroUsize) -> Self {
        Self {
            enough: concurrency.get().div_ceil(2),
            since: None,
        }
    }

    /// Whether to pop now for `slots` free slots; if not, the wait for more slots begins or goes on.
    pub(super) fn check(&mut self, slots: NonZeroUsize, now: Instant) -> bool {
        let since = *self.since.get_or_insert(now);
        slots.get() >= self.enough || now - since >= LINGER
    }

    /// Ends the wait, because a pop begins.
    pub(super) fn end(&mut self) {
        self.since = None;
    }

    /// When the wait is over; `None` if there is no wait.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.since.map(|since| since + LINGER)
    }

    /// How many more free slots the wait is for; `None` if there is no wait.
    pub(super) fn missing(&self, slots: NonZeroUsize) -> Option<usize> {
        self.since.map(|_| self.enough.saturating_sub(slots.get()))
    }
}

/// Wakes the worker's loop once the expected number of jobs have ended: one wake-up for several slots.
#[derive(Debug, Default)]
pub(crate) struct EndCounter {
    missing: AtomicIsize,
    reached: Notify,
}

impl EndCounter {
    /// Sets how many ends to wait for. Ends just before may or may not count: the loop has a deadline as well.
    pub(super) fn expect(&self, ends: usize) {
        let ends = ends.try_into().unwrap_or(isize::MAX);
        self.missing.store(ends, Ordering::Relaxed);
    }

    /// Waits until the expected number of jobs have ended.
    pub(super) async fn reached(&self) {
        self.reached.notified().await;
    }

    /// Counts the end of a job.
    pub(crate) fn count(&self) {
        if self.missing.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.reached.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slots(free: usize) -> NonZeroUsize {
        NonZeroUsize::new(free).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn a_pop_waits_for_half_of_the_slots_or_a_moment() {
        let mut linger = Linger::new(slots(7));
        assert_eq!(linger.deadline(), None);
        assert!(!linger.check(slots(3), Instant::now()));
        assert_eq!(linger.missing(slots(3)), Some(1));
        assert!(linger.check(slots(4), Instant::now()));
        tokio::time::advance(LINGER).await;
        assert!(linger.check(slots(1), Instant::now()));
        assert_eq!(linger.deadline(), Some(Instant::now()));
        linger.end();
        assert_eq!((linger.deadline(), linger.missing(slots(1))), (None, None));
        // A worker with one slot never waits.
        assert!(Linger::new(slots(1)).check(slots(1), Instant::now()));
    }

    #[tokio::test(start_paused = true)]
    async fn ends_are_counted_and_the_last_one_wakes() {
        let ends = EndCounter::default();
        ends.expect(2);
        let is_reached = async |wait| tokio::time::timeout(wait, ends.reached()).await.is_ok();
        ends.count();
        assert!(!is_reached(LINGER).await);
        ends.count();
        assert!(is_reached(LINGER).await);
        // Further ends do not wake it again.
        ends.count();
        assert!(!is_reached(LINGER).await);
    }
}
