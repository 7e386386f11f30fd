//! The outbox: what ended jobs bring about that is not one step with their end.
//!
//! These are rows of failed jobs, counts of batches, and locks and pushes on other servers than that of the queue.
//! The call that ends a job leaves a record for each. A task that holds a lease carries the records out, first those
//! that free locks, and removes each record once it is done. Records that a worker leaves are carried out by the next
//! one.

mod count;
pub(crate) mod failed_jobs;
pub(crate) mod follow_up;
pub(crate) mod follow_ups;
pub(crate) mod hand_over;
pub(crate) mod lease;
pub(crate) mod left;
mod parts;
mod push;

use std::fmt;
use std::sync::Arc;

/// Told of each time that a store, a cache or a queue has refused what an ended job has left to do, and what that was.
#[derive(Clone)]
pub(crate) struct OnRefusal(Arc<dyn Fn(&'static str) + Send + Sync>);

impl OnRefusal {
    pub(crate) fn new(told: impl Fn(&'static str) + Send + Sync + 'static) -> Self {
        Self(Arc::new(told))
    }

    fn tell(&self, what: &'static str) {
        (self.0)(what);
    }
}

impl fmt::Debug for OnRefusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("OnRefusal").finish_non_exhaustive()
    }
}
