//! Waits between attempts to reach a server that went away.

use std::time::Duration;

/// Doubling waits with jitter, so that the workers of a fleet do not reconnect all at once.
#[derive(Debug, Default)]
pub(crate) struct Reconnect {
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
    pub(crate) fn next_wait(&mut self) -> Duration {
        let ceiling = Self::ceiling(self.failures);
        self.failures = self.failures.saturating_add(1);
        ceiling.mul_f64(0.5 + fastrand::f64() / 2.0)
    }

    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.next_wait()).await;
    }

    /// Starts over with the shortest wait, because the server is back.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
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
}
