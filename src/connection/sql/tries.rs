//! Another try where another transaction was in the way.

use std::time::Duration;

use tokio::time::Instant;

use crate::connection::Error;

/// How often a transaction that conflicts with another one is tried.
const TRIES: u32 = 10;
/// How long it is tried at most.
const PATIENCE: Duration = Duration::from_secs(30);

/// Retries transactions that conflict with others, with growing waits, for a limited time.
pub(crate) struct Tries {
    count: u32,
    since: Instant,
}

impl Tries {
    pub(crate) fn new() -> Self {
        Self {
            count: 0,
            since: Instant::now(),
        }
    }

    /// Waits a little if another try may help; returns whether to try again.
    pub(crate) async fn again(&mut self, error: &Error) -> bool {
        self.count += 1;
        if !error.is_deadlock() || self.count >= TRIES || self.since.elapsed() >= PATIENCE {
            return false;
        }
        tracing::debug!(error = %error, tries = self.count, "another transaction was in the way");
        // A random wait: transactions that conflicted must not all retry at the same time.
        let most = 10 << self.count.min(6);
        tokio::time::sleep(Duration::from_millis(fastrand::u64(most / 2..=most))).await;
        true
    }
}
