//! Waits between attempts to reach a server that went away.

use std::time::Duration;

use tokio::time::Instant;

/// Doubling waits with jitter, so that the workers of a fleet do not reconnect all at once.
#[derive(Debug, Default)]
pub(super) struct Reconnect {
    failures: u32,
}

impl Reconnect {
    const SHORTEST: Duration = Duration::from_millis(50);
    const LONGEST: Duration = Duration::from_secs(5);

    /// Longest wait before the next attempt.
    fn ceiling(failures: u32) -> Duration {
        (Self::SHORTEST * 2_u32.saturating_pow(failures.min(16))).min(Self::LONGEST)
    }

    /// The next wait, between half of the ceiling and the ceiling.
    pub(super) fn next_wait(&mut self) -> Duration {
        let ceiling = Self::ceiling(self.failures);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(super) async fn wait(&mut self) {
        tokio::time::sleep(self.next_wait()).await;
    }

    /// Starts over with the shortest wait, because the server is back.
    pub(super) fn reset(&mut self) {
        self.failures = 0;
    }
}

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

    #[test]
    fn waits_grow_to_five_seconds_and_differ() {
        let mut reconnect = Reconnect::default();
        for failures in 0..20 {
            let wait = reconnect.next_wait();
            let ceiling = Reconnect::ceiling(failures);
            assert!(
                wait >= ceiling / 2 && wait <= ceiling,
                "{wait:?} after {failures}"
            );
        }
        assert_eq!(Reconnect::ceiling(19), Reconnect::LONGEST);
        reconnect.reset();
        assert!(reconnect.next_wait() <= Reconnect::SHORTEST);
    }

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
        assert!(retry.fail(now) <= Reconnect::SHORTEST);
    }
}
