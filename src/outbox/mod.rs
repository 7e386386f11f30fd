//! The outbox: what ended jobs bring about that is not one step with their end.
//!
//! These are rows of failed jobs, counts of batches, and locks and pushes on other servers than that of the queue.
//! The call that ends a job leaves a record for each. A task that holds a lease carries the records out, first those
//! that free locks, and removes each record once it is done. Records that a worker leaves are carried out by the next
//! one.

#[cfg(feature = "cli")]
pub(crate) mod before_retry;
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
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;

use crate::handler::panic_text;
use crate::outbox::lease::DrainStatus;

/// How long a task rests that has panicked: by then its lease has run out.
const AFTER_PANIC: Duration = Duration::from_secs(10);

/// Runs a task of the outbox until it ends; if it panics, `panicked` is called and the task starts again.
///
/// Without the task, records would wait for another worker, and this one for the records.
async fn despite_panics<F: Future<Output = DrainStatus>>(
    last: &CancellationToken,
    start: impl Fn() -> F,
    panicked: impl Fn(),
) -> DrainStatus {
    loop {
        match AssertUnwindSafe(start()).catch_unwind().await {
            Ok(ended) => return ended,
            Err(panic) => tracing::error!(
                error = panic_text(&*panic),
                "what ended jobs have left to do cannot be done, because of a bug; it will be tried again"
            ),
        }
        panicked();
        if last.is_cancelled() {
            return DrainStatus::Failed;
        }
        tokio::select! {
            () = last.cancelled() => {}
            () = tokio::time::sleep(AFTER_PANIC) => {}
        }
    }
}

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
