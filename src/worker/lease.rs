//! The right to empty one of our lists: one process at a time has it.

use std::time::Duration;

use tokio::time::Instant;

use super::attempt::with_causes;
use crate::queue::{Error, Queue, Spool};

/// How long a lease lives if its holder dies.
const LIVES: Duration = Duration::from_secs(10);
/// How often its holder renews it.
const RENEW: Duration = Duration::from_secs(3);

/// How a pass over a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Drained {
    /// Nothing is left.
    All,
    /// Some have to wait for a moment, or another process is at it.
    Later,
    /// Where they belong, or the server, could not be used.
    Failed,
}

impl Drained {
    pub(super) fn or(self, other: Self) -> Self {
        if self == Self::Failed { self } else { other }
    }
}

/// What a list that cannot be reached means for a pass.
pub(super) fn unreachable(error: &Error) -> Drained {
    // The loop that pops reports a server that is gone.
    tracing::debug!(error = with_causes(error), "could not reach the spool");
    Drained::Failed
}

/// A name for this process among those that take leases.
pub(super) fn random_holder() -> String {
    format!("{:016x}", fastrand::u64(..))
}

/// A lease that is held.
pub(super) struct Lease<'a, Q> {
    queue: &'a Q,
    spool: Spool,
    holder: &'a str,
    renew_at: Instant,
}

impl<'a, Q: Queue> Lease<'a, Q> {
    /// Takes the lease of a list that has records; otherwise says how the pass ended.
    pub(super) async fn take(queue: &'a Q, spool: Spool, holder: &'a str) -> Result<Self, Drained> {
        match queue.spooled(spool, 0, 1).await {
            Ok(records) if records.is_empty() => return Err(Drained::All),
            Ok(_) => {}
            Err(error) => return Err(unreachable(&error)),
        }
        match queue.lease_spool(spool, holder, LIVES).await {
            Ok(true) => Ok(Self {
                queue,
                spool,
                holder,
                renew_at: Instant::now() + RENEW,
            }),
            Ok(false) => Err(Drained::Later),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// Does something under the lease, which is renewed as long as it takes; `None` if the lease is lost.
    ///
    /// Without the lease somebody else is at it: what we did not finish, they
    /// find done or do.
    pub(super) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            if self.renew_at <= Instant::now() {
                let renewed = self.queue.lease_spool(self.spool, self.holder, LIVES).await;
                if !matches!(renewed, Ok(true)) {
                    return None;
                }
                self.renew_at = Instant::now() + RENEW;
            }
            if let Ok(done) = tokio::time::timeout_at(self.renew_at, &mut work).await {
                return Some(done);
            }
        }
    }

    /// Gives the lease up.
    pub(super) async fn give_up(self) {
        let given_up = self.queue.unlease_spool(self.spool, self.holder).await;
        if let Err(error) = given_up {
            // It ends by itself in a moment.
            tracing::debug!(error = with_causes(&error), "could not give up the lease");
        }
    }
}
