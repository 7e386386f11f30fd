//! Counts things under way by guards that are held.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// A count of held guards.
#[derive(Debug, Clone, Default)]
pub(crate) struct Gauge(Arc<AtomicUsize>);

/// Counts as one until it is dropped.
#[derive(Debug)]
pub(crate) struct Held(Gauge);

impl Gauge {
    /// Counts one more until the guard is dropped.
    pub(crate) fn hold(&self) -> Held {
        self.0.fetch_add(1, Ordering::Relaxed);
        Held(self.clone())
    }

    /// How many guards are held.
    pub(crate) fn count(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.0.fetch_sub(1, Ordering::Relaxed);
    }
}
