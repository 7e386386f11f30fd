//! Brings failed jobs from the spool to the app's store, each exactly once.
//!
//! Settling moves a failed job from its queue into the spool in one step; from
//! there any worker brings it to the store: written first, then taken out of
//! the spool. One process at a time has the lease for that. If it dies in
//! between, its successor finds the row that is there already.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::attempt::with_causes;
use super::backoff::Reconnect;
use crate::failed::{FailedJob, FailedJobs, Recorded};
use crate::queue::Queue;
use crate::time::Clock;

/// What the task needs.
pub(super) struct Recorder<Q> {
    pub(super) queue: Arc<Q>,
    pub(super) store: Arc<FailedJobs>,
    pub(super) clock: Clock,
    /// Told when a job went to the spool.
    pub(super) spooled: Arc<Notify>,
    /// Cancelled when no more jobs will.
    pub(super) last: CancellationToken,
}

/// How a look at the spool ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Drained {
    /// Nothing is left.
    All,
    /// Some have to wait for a moment, or another process is at it.
    Later,
    /// The store or the server could not be used.
    Failed,
}

/// Records that are read at once.
const PAGE: usize = 100;
/// How long the lease lives: longer than any statement may take.
const LEASE: Duration = Duration::from_secs(60);
/// How often the spool is looked at where nobody said that there is something: other processes may have died.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long ago a job must have failed for a row that equals it to be its own.
///
/// `queue:retry` pushes a job before it deletes its row. If the job fails again
/// in between, the row that is there is the old one, and about to go.
const SAME_AFTER: i64 = 5;
/// How long ago a job must have failed for another failure of it to be written over.
const REPLACE_AFTER: i64 = 15;

/// Brings records to the store until no more will come.
pub(super) async fn keep_recording<Q: Queue>(recorder: Recorder<Q>) {
    let owner = format!("{:016x}", fastrand::u64(..));
    let mut reconnect = Reconnect::default();
    let mut was_reported = false;
    loop {
        let is_last = recorder.last.is_cancelled();
        let drained = recorder.drain(&owner, &mut was_reported).await;
        if is_last {
            return;
        }
        let wait = match drained {
            Drained::All => {
                was_reported = false;
                reconnect.reset();
                LOOK_EVERY
            }
            Drained::Later => Duration::from_secs(1),
            Drained::Failed => reconnect.next_wait().max(Duration::from_millis(500)),
        };
        let deadline = Instant::now() + wait;
        tokio::select! {
            () = recorder.last.cancelled() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = recorder.spooled.notified(), if drained != Drained::Failed => {}
        }
    }
}

impl<Q: Queue> Recorder<Q> {
    async fn drain(&self, owner: &str, was_reported: &mut bool) -> Drained {
        let mut left = 0;
        let mut drained = Drained::All;
        loop {
            let records = match self.queue.spooled(left, PAGE).await {
                Ok(records) if records.is_empty() => return drained,
                Ok(records) => records,
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "could not read the spool");
                    return Drained::Failed;
                }
            };
            match self.queue.lease_spool(owner, LEASE).await {
                Ok(true) => {}
                Ok(false) => return Drained::Later,
                Err(error) => {
                    tracing::debug!(error = with_causes(&error), "could not lease the spool");
                    return Drained::Failed;
                }
            }
            let leased = Instant::now();
            let mut is_whole = true;
            for record in records {
                if leased.elapsed() > LEASE / 3 {
                    // A slow store: make sure that it is still our turn.
                    is_whole = false;
                    break;
                }
                match self.bring(&record).await {
                    Ok(true) => {
                        if let Err(error) = self.queue.unspool(&[record]).await {
                            tracing::debug!(error = with_causes(&error), "could not unspool");
                            return Drained::Failed;
                        }
                    }
                    Ok(false) => {
                        left += 1;
                        drained = Drained::Later;
                    }
                    Err(error) => {
                        if !std::mem::replace(was_reported, true) {
                            tracing::error!(
                                error = with_causes(&error),
                                store = self.store.describe(),
                                "failed jobs cannot be recorded; they wait in the spool until the store can be written"
                            );
                        }
                        if is_outage(&error) {
                            return Drained::Failed;
                        }
                        // It may be this one alone: the others get their turn.
                        left += 1;
                        drained = Drained::Failed;
                    }
                }
            }
            if is_whole && left == 0 {
                *was_reported = false;
            }
        }
    }

    /// Brings one record to the store; false if it has to wait.
    async fn bring(&self, record: &[u8]) -> Result<bool, crate::failed::Error> {
        let job: FailedJob = match serde_json::from_slice(record) {
            Ok(job) => job,
            Err(error) => {
                tracing::error!(%error, "a record in the spool is not ours; it stays there");
                return Ok(false);
            }
        };
        let age = self.clock.now().0.saturating_sub(job.failed_at);
        match self.store.record(&job).await? {
            Recorded::New => Ok(true),
            Recorded::Already => Ok(age >= SAME_AFTER),
            Recorded::Occupied if age >= REPLACE_AFTER => {
                self.store.replace(&job).await?;
                tracing::warn!(
                    job.uuid = job.uuid,
                    "a job failed again while its earlier failure was still stored; the later one stands there now"
                );
                Ok(true)
            }
            Recorded::Occupied => Ok(false),
        }
    }
}

/// Whether the store as a whole cannot be used, and not one record.
fn is_outage(error: &crate::failed::Error) -> bool {
    match error {
        crate::failed::Error::Database { source, .. } => source.is_lost_connection(),
        _ => true,
    }
}
