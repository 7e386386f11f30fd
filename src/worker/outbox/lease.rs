//! The right to empty one of our lists: one process at a time has it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::{Effect, Error, Queue, Spool};
use crate::shown::with_causes;

/// How long a lease lives if its holder dies.
const LIVES: Duration = Duration::from_secs(10);
/// How often its holder renews it.
const RENEW: Duration = Duration::from_secs(3);

/// How a pass over a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Drained {
    /// Nothing is left.
    All,
    /// Some have to wait for a moment, or another process is at it.
    Later,
    /// Where they belong, or the server, could not be used.
    Failed,
}

impl Drained {
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Failed { self } else { other }
    }
}

/// How many records a task has taken out of its list: what tells one that has much to do from one that is stuck.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Records so far.
    pub(crate) fn records(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// So many more were.
    pub(crate) fn add(&self, records: u64) {
        self.0.fetch_add(records, Ordering::Relaxed);
    }
}

/// What a list that cannot be reached means for a pass.
pub(crate) fn unreachable(error: &Error) -> Drained {
    // The loop that pops reports a server that is gone.
    tracing::debug!(error = with_causes(error), "could not reach the spool");
    Drained::Failed
}

/// A lease that is held.
///
/// A process may sleep longer than its lease lives, at any point, and not
/// notice. What must not happen twice is therefore bound to the lease itself:
/// records are taken out of the list only by who has it ([`Hold::advance`]).
pub(crate) struct Lease<Q> {
    hold: Hold<Q>,
    renew_at: Instant,
}

/// What says that a lease is held. A lease that was lost never is the same again.
#[derive(Debug)]
pub(crate) struct Hold<Q> {
    queue: Arc<Q>,
    spool: Spool,
    holder: Arc<str>,
    progress: Progress,
}

impl<Q> Clone for Hold<Q> {
    fn clone(&self) -> Self {
        Self {
            queue: Arc::clone(&self.queue),
            spool: self.spool,
            holder: Arc::clone(&self.holder),
            progress: self.progress.clone(),
        }
    }
}

impl<Q: Queue> Hold<Q> {
    /// Whether the lease is held still; then it lives on from now.
    pub(crate) async fn lasts(&self) -> bool {
        let kept = self.queue.keep_spool(self.spool, &self.holder, LIVES).await;
        matches!(kept, Ok(true))
    }

    /// Takes records out of the list, and does what follows; 0 if somebody else has the lease.
    pub(crate) async fn advance(
        &self,
        records: &[Vec<u8>],
        effects: &[Effect],
    ) -> Result<u64, Error> {
        let advanced = self
            .queue
            .advance(self.spool, &self.holder, records, effects);
        let advanced = advanced.await?;
        self.progress.add(advanced);
        Ok(advanced)
    }
}

impl<Q: Queue> Lease<Q> {
    /// Takes the lease of a list that has records; otherwise says how the pass ended.
    pub(crate) async fn take(
        queue: &Arc<Q>,
        spool: Spool,
        progress: &Progress,
    ) -> Result<Self, Drained> {
        match queue.spooled(spool, 0, 1).await {
            Ok(records) if records.is_empty() => return Err(Drained::All),
            Ok(_) => {}
            Err(error) => return Err(unreachable(&error)),
        }
        let holder = format!("{:016x}", fastrand::u64(..));
        match queue.lease_spool(spool, &holder, LIVES).await {
            Ok(true) => Ok(Self {
                hold: Hold {
                    queue: Arc::clone(queue),
                    spool,
                    holder: holder.into(),
                    progress: progress.clone(),
                },
                renew_at: Instant::now() + RENEW,
            }),
            Ok(false) => Err(Drained::Later),
            Err(error) => Err(unreachable(&error)),
        }
    }

    /// What says that it is held.
    pub(crate) fn hold(&self) -> Hold<Q> {
        self.hold.clone()
    }

    /// Does something under the lease, which is renewed as long as it takes; `None` if the lease is lost.
    ///
    /// Without the lease somebody else is at it: what we did not finish, they
    /// find done or do.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            if self.renew_at <= Instant::now() {
                if !self.hold.lasts().await {
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
    pub(crate) async fn give_up(self) {
        let Hold {
            queue,
            spool,
            holder,
            ..
        } = &self.hold;
        let given_up = queue.unlease_spool(*spool, holder).await;
        if let Err(error) = given_up {
            // It ends by itself in a moment.
            tracing::debug!(error = with_causes(&error), "could not give up the lease");
        }
    }
}
