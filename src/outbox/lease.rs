//! A lease on an outbox list: one drainer at a time.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::{Effect, Error, Ledger, Spool};
use crate::shown::with_causes;

/// How long a lease lives if its holder dies.
const LIVES: Duration = Duration::from_secs(10);
/// How often its holder renews it.
const RENEW: Duration = Duration::from_secs(3);

/// How a pass over a list ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DrainStatus {
    /// The list is empty.
    All,
    /// Some records have to wait for a moment, or another process has the lease.
    Later,
    /// The records' destination or the server could not be used.
    Failed,
}

impl DrainStatus {
    pub(crate) fn or(self, other: Self) -> Self {
        if self == Self::Failed { self } else { other }
    }
}

/// Number of records that a task has removed from its list: shows whether a task is busy or stuck.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress(Arc<AtomicU64>);

impl Progress {
    /// Number of records so far.
    pub(crate) fn records(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Adds a number of removed records.
    pub(crate) fn add(&self, records: u64) {
        self.0.fetch_add(records, Ordering::Relaxed);
    }
}

/// The result of a pass that could not reach the list.
pub(crate) fn list_unreachable(error: &Error) -> DrainStatus {
    // The loop that pops reports a server that is gone.
    tracing::debug!(error = with_causes(error), "could not reach the spool");
    DrainStatus::Failed
}

/// A lease that is held.
///
/// A process may sleep longer than its lease lives, at any point, without noticing. Work that must not happen
/// twice is therefore bound to the lease itself: only the holder can remove records from the list
/// ([`FencingToken::ack`]).
pub(crate) struct Lease {
    hold: FencingToken,
    renew_at: Instant,
}

/// Proof of holding a lease. Every lease has its own holder name, so a lost lease never becomes valid again.
#[derive(Debug)]
pub(crate) struct FencingToken {
    ledger: Arc<dyn Ledger>,
    spool: Spool,
    holder: Arc<str>,
    progress: Progress,
}

impl Clone for FencingToken {
    fn clone(&self) -> Self {
        Self {
            ledger: Arc::clone(&self.ledger),
            spool: self.spool,
            holder: Arc::clone(&self.holder),
            progress: self.progress.clone(),
        }
    }
}

impl FencingToken {
    /// The ledger that has the list.
    pub(crate) fn ledger(&self) -> &dyn Ledger {
        &*self.ledger
    }

    /// Starts the lifetime of the lease anew; false if it is no longer held.
    pub(crate) async fn renew(&self) -> bool {
        let kept = self.ledger.keep(self.spool, &self.holder, LIVES).await;
        matches!(kept, Ok(true))
    }

    /// Asks the server whether the lease is still held, and may renew it; false if it is not held. May be called while
    /// the row of a batch is locked.
    pub(crate) async fn confirm_held(&self) -> bool {
        let held = self
            .ledger
            .confirm_lease(self.spool, &self.holder, LIVES)
            .await;
        matches!(held, Ok(true))
    }

    /// Removes records from the list and applies the effects; 0 if another process has the lease.
    pub(crate) async fn ack(&self, records: &[Vec<u8>], effects: &[Effect]) -> Result<u64, Error> {
        let removed = self.ledger.ack(self.spool, &self.holder, records, effects);
        let removed = removed.await?;
        self.progress.add(removed);
        Ok(removed)
    }
}

impl Lease {
    /// Takes the lease of a list that has records; otherwise returns how the pass ended.
    pub(crate) async fn take(
        ledger: &Arc<dyn Ledger>,
        spool: Spool,
        progress: &Progress,
    ) -> Result<Self, DrainStatus> {
        match ledger.read(spool, 0, 1).await {
            Ok(records) if records.is_empty() => return Err(DrainStatus::All),
            Ok(_) => {}
            Err(error) => return Err(list_unreachable(&error)),
        }
        let holder = format!("{:016x}", fastrand::u64(..));
        match ledger.lease(spool, &holder, LIVES).await {
            Ok(true) => Ok(Self {
                hold: FencingToken {
                    ledger: Arc::clone(ledger),
                    spool,
                    holder: holder.into(),
                    progress: progress.clone(),
                },
                renew_at: Instant::now() + RENEW,
            }),
            Ok(false) => Err(DrainStatus::Later),
            Err(error) => Err(list_unreachable(&error)),
        }
    }

    /// The proof that the lease is held.
    pub(crate) fn hold(&self) -> FencingToken {
        self.hold.clone()
    }

    /// The name under which the lease is held.
    #[cfg(test)]
    pub(crate) fn holder(&self) -> &str {
        &self.hold.holder
    }

    /// Runs `work` under the lease and renews the lease meanwhile; `None` if the lease is lost.
    ///
    /// Without the lease another process does the work: it finishes what this process did not.
    pub(crate) async fn during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        let mut work = std::pin::pin!(work);
        loop {
            if self.renew_at <= Instant::now() {
                // The work goes on meanwhile: it may hold what the renewal waits for.
                tokio::select! {
                    biased;
                    done = &mut work => return Some(done),
                    is_renewed = self.hold.renew() => {
                        if !is_renewed {
                            return None;
                        }
                    }
                }
                self.renew_at = Instant::now() + RENEW;
            }
            if let Ok(done) = tokio::time::timeout_at(self.renew_at, &mut work).await {
                return Some(done);
            }
        }
    }

    /// Gives up the lease.
    pub(crate) async fn give_up(self) {
        let FencingToken {
            ledger,
            spool,
            holder,
            ..
        } = &self.hold;
        let given_up = ledger.unlease(*spool, holder).await;
        if let Err(error) = given_up {
            // The lease expires by itself in a moment.
            tracing::debug!(error = with_causes(&error), "could not give up the lease");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;

    #[test]
    fn a_failure_stays_a_failure() {
        use DrainStatus::{All, Failed, Later};
        assert_eq!([Failed.or(All), Failed.or(Later)], [Failed, Failed]);
        assert_eq!([All.or(Later), Later.or(Failed)], [Later, Failed]);
    }

    struct Scene {
        ledger: Arc<dyn Ledger>,
        progress: Progress,
    }

    impl Scene {
        fn new() -> Self {
            let queue = MemoryQueue::new(None);
            queue.spool_record(Spool::FollowUps, b"{}".to_vec());
            Self {
                ledger: Arc::new(queue),
                progress: Progress::default(),
            }
        }

        async fn take(&self) -> Result<Lease, DrainStatus> {
            Lease::take(&self.ledger, Spool::FollowUps, &self.progress).await
        }
    }

    /// The first holder sleeps for longer than its lease lives.
    #[tokio::test(start_paused = true)]
    async fn a_lease_that_another_process_took_does_not_last() {
        let scene = Scene::new();
        let records = [b"{}".to_vec()];
        let first = scene.take().await.unwrap().hold();
        assert!(first.renew().await);
        assert_eq!(scene.take().await.err(), Some(DrainStatus::Later));
        tokio::time::advance(LIVES + Duration::from_millis(1)).await;
        let second = scene.take().await.unwrap().hold();
        assert!(!first.renew().await);
        assert_eq!(first.ack(&records, &[]).await.unwrap(), 0);
        assert!(second.renew().await);
        assert_eq!(second.ack(&records, &[]).await.unwrap(), 1);
        assert_eq!(scene.progress.records(), 1);
        assert_eq!(scene.take().await.err(), Some(DrainStatus::All));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lease_is_renewed_while_work_goes_on_and_work_ends_with_it() {
        let scene = Scene::new();
        let mut lease = scene.take().await.unwrap();
        let work = tokio::time::sleep(LIVES * 4);
        assert_eq!(lease.during(work).await, Some(()));
        assert_eq!(scene.take().await.err(), Some(DrainStatus::Later));
        // Another process takes the list while this work goes on.
        let (hold, ledger) = (lease.hold(), Arc::clone(&scene.ledger));
        let work = async {
            ledger.unlease(hold.spool, &hold.holder).await.unwrap();
            assert!(scene.take().await.is_ok());
            std::future::pending::<()>().await;
        };
        assert_eq!(lease.during(work).await, None);
        lease.give_up().await;
        assert_eq!(scene.take().await.err(), Some(DrainStatus::Later));
        tokio::time::advance(LIVES + Duration::from_millis(1)).await;
        let last = scene.take().await.unwrap();
        last.give_up().await;
        assert!(scene.take().await.is_ok());
    }
}
