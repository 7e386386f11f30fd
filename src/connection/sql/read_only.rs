//! Connections to a server that has become read-only, as the old writer is after a failover.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// When the server last refused to write: connections from before are of no more use.
///
/// They work, and would be kept, while new ones of the same name, as PHP has them, reach the new writer.
#[derive(Clone, Default)]
pub(super) struct ReadOnly(Arc<Mutex<Option<Instant>>>);

impl ReadOnly {
    pub(super) fn note(&self) {
        *self.at() = Some(Instant::now());
    }

    /// Whether a connection of this age was opened before.
    pub(super) fn concerns(&self, age: Duration) -> bool {
        self.at().is_some_and(|at| at.elapsed() < age)
    }

    fn at(&self) -> MutexGuard<'_, Option<Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_connections_from_before_are_of_no_more_use() {
        let read_only = ReadOnly::default();
        assert!(!read_only.concerns(Duration::MAX));
        read_only.note();
        assert!(read_only.concerns(Duration::MAX));
        assert!(!read_only.concerns(Duration::ZERO));
    }
}
