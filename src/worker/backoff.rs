//! The wait after a pop that failed.

use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Reconnect;

/// The wait after failed pops.
#[derive(Debug, Default)]
pub(super) struct PopRetry {
    reconnect: Reconnect,
    /// The earliest moment of the next pop.
    again: Option<Instant>,
    has_failed: bool,
}

impl PopRetry {
    /// Notes that the last pop has failed; returns how long to wait.
    pub(super) fn fail(&mut self, now: Instant) -> Duration {
        let wait = self.reconnect.next_wait();
        self.again = Some(now + wait);
        self.has_failed = true;
        wait
    }

    /// Notes that the last pop has succeeded.
    pub(super) fn succeed(&mut self) {
        if std::mem::take(&mut self.has_failed) {
            self.reconnect.reset();
        }
    }

    /// Whether the last pop has failed.
    pub(super) fn has_failed(&self) -> bool {
        self.has_failed
    }

    /// When the wait ends; `None` if there is none.
    pub(super) fn deadline(&self, now: Instant) -> Option<Instant> {
        self.again.filter(|moment| *moment > now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_pop_that_failed_is_waited_out_and_a_success_forgets_it() {
        let mut retry = PopRetry::default();
        let now = Instant::now();
        assert_eq!(retry.deadline(now), None);
        for _ in 0..10 {
            let wait = retry.fail(now);
            assert_eq!(retry.deadline(now), Some(now + wait));
            assert_eq!(retry.deadline(now + wait), None);
        }
        assert!(retry.has_failed());
        retry.succeed();
        assert!(!retry.has_failed());
        assert!(retry.fail(now) <= Duration::from_millis(50));
    }
}
