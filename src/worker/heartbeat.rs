//! Signs of life of the worker's loop, for health checks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// When the loop last came round. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Heartbeat(Arc<Beats>);

#[derive(Debug)]
struct Beats {
    start: Instant,
    /// Milliseconds from `start`.
    last: AtomicU64,
    /// Whether the loop waits for a server or for running jobs, which may take any time.
    is_excused: AtomicBool,
}

impl Default for Heartbeat {
    fn default() -> Self {
        Self(Arc::new(Beats {
            start: Instant::now(),
            last: AtomicU64::new(0),
            // The loop has not begun.
            is_excused: AtomicBool::new(true),
        }))
    }
}

impl Heartbeat {
    /// Notes that the loop has come round.
    pub(super) fn beat(&self) {
        let passed = self.0.start.elapsed().as_millis();
        let passed = u64::try_from(passed).unwrap_or(u64::MAX);
        self.0.last.store(passed, Ordering::Relaxed);
        self.0.is_excused.store(false, Ordering::Relaxed);
    }

    /// Notes that the loop waits for something outside of it, until its next beat.
    pub(super) fn excuse(&self) {
        self.0.is_excused.store(true, Ordering::Relaxed);
    }

    /// How long the loop has not come round without an excuse.
    pub fn silence(&self) -> Duration {
        if self.0.is_excused.load(Ordering::Relaxed) {
            return Duration::ZERO;
        }
        let last = Duration::from_millis(self.0.last.load(Ordering::Relaxed));
        self.0.start.elapsed().saturating_sub(last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silence_counts_from_the_last_beat_unless_it_is_excused() {
        let heart = Heartbeat(Arc::new(Beats {
            start: Instant::now().checked_sub(Duration::from_secs(90)).unwrap(),
            last: AtomicU64::new(50_000),
            is_excused: AtomicBool::new(false),
        }));
        // This thread may stand still for a while.
        assert!((40..60).contains(&heart.silence().as_secs()));
        heart.excuse();
        assert_eq!(heart.silence(), Duration::ZERO);
        heart.beat();
        assert!(heart.silence().as_secs() < 20);
        assert!(heart.0.last.load(Ordering::Relaxed) >= 90_000);
    }
}
