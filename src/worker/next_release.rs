//! When released jobs come back to their queues.

use std::sync::{Mutex, PoisonError};

use tokio::sync::Notify;

use crate::queue::Settlement;
use crate::time::UnixSeconds;

/// When the next delayed job comes back, for the loop that pops.
#[derive(Debug, Default)]
pub(super) struct NextRelease {
    next: Mutex<Option<UnixSeconds>>,
    told: Notify,
}

impl NextRelease {
    pub(super) fn add(&self, at: UnixSeconds) {
        let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
        *next = Some(next.map_or(at, |next| next.min(at)));
        self.told.notify_one();
    }

    /// Waits until jobs are released, and returns when the first of them comes back.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&self) -> UnixSeconds {
        loop {
            self.told.notified().await;
            let mut next = self.next.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(at) = next.take() {
                return at;
            }
        }
    }
}

/// The second at which a settled job may be popped again.
pub(super) fn returns_at(settlement: &mut Settlement) -> Option<&mut UnixSeconds> {
    match settlement {
        Settlement::Release(at) | Settlement::ReleaseUncounted(at) | Settlement::LeaveUntil(at) => {
            Some(at)
        }
        _ => None,
    }
}
