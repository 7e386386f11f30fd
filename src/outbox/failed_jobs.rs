//! Moves failed jobs from the spool to the app's store, each exactly once.
//!
//! Settling moves a failed job from its queue into the spool in one step. From there any worker takes it to the
//! store: first it writes the row, then it removes the record from the spool. A lease allows one process at a
//! time. If that process dies in between, its successor finds the row that is already there.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::Reconnect;
use crate::failed::{FailedJob, FailedJobs, Recorded};
use crate::outbox::OnRefusal;
use crate::outbox::lease::{DrainStatus, Lease, Progress, list_unreachable};
use crate::outbox::parts::{Part, Parts, worst};
use crate::queue::{Ledger, QueueName, Spool};
use crate::shown::with_causes;
use crate::time::Clock;

/// What the task needs.
pub(crate) struct FailedJobRelay {
    pub(crate) ledger: Arc<dyn Ledger>,
    /// The queues that the worker serves.
    pub(crate) queues: Vec<QueueName>,
    pub(crate) store: Arc<FailedJobs>,
    pub(crate) clock: Clock,
    /// Notified when a job went to the spool.
    pub(crate) spooled: Arc<Notify>,
    /// Cancelled when no more jobs will go to the spool.
    pub(crate) last: CancellationToken,
    pub(crate) progress: Progress,
    pub(crate) sweeps: watch::Sender<Sweeps>,
    /// Number of failed jobs whose aftermath PHP still writes to a database that takes one writer at a time.
    pub(crate) failing: watch::Receiver<usize>,
    pub(crate) on_refusal: OnRefusal,
}

/// What was already logged, so that it is not logged every second.
#[derive(Debug, Default)]
struct Logged {
    refusal: Option<String>,
    foreign: bool,
    /// Where the next pass begins: after refused records, so that they do not keep others from the store.
    from: usize,
}

impl Logged {
    fn refusal(&mut self, error: &crate::failed::Error, store: &FailedJobs) {
        let error = with_causes(error);
        if self.refusal.as_ref() != Some(&error) {
            tracing::error!(
                error,
                store = store.describe(),
                "failed jobs cannot be recorded; they wait in the spool until the store can be written"
            );
            self.refusal = Some(error);
        }
    }

    fn foreign(&mut self, error: &serde_json::Error) {
        if !std::mem::replace(&mut self.foreign, true) {
            tracing::error!(%error, "a record in the spool cannot be read; it stays there");
        }
    }
}

/// Number of records read at once.
const PAGE: usize = 100;
/// Number of refusals in a pass after which the store gets a rest.
const MOST_REFUSALS: usize = 20;
/// How often the spool is checked without a notification: another process may have died.
const LOOK_EVERY: Duration = Duration::from_secs(30);
/// How long ago a job must have failed for an equal row to count as its own.
///
/// `queue:retry` pushes a job before it deletes its row. If the job fails again in between, the existing row is
/// the old one, which is about to be deleted.
const SAME_AFTER: i64 = 5;
/// How long ago a job must have failed for its record to replace the row of another failure of the same job.
const REPLACE_AFTER: i64 = 15;

/// How many sweeps over the spool have begun and ended.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Sweeps {
    pub(crate) begun: u64,
    pub(crate) ended: u64,
    /// The store does not take records, and no pass tries it again soon.
    pub(crate) is_refused: bool,
}

/// Connects attempts in PHP with the recorder, in both directions.
#[derive(Debug, Clone)]
pub(crate) struct Recordings {
    sweeps: watch::Receiver<Sweeps>,
    /// Number of failed jobs whose aftermath PHP still writes.
    failing: Arc<watch::Sender<usize>>,
}

impl Recordings {
    pub(crate) fn new(sweeps: watch::Receiver<Sweeps>, failing: Arc<watch::Sender<usize>>) -> Self {
        Self { sweeps, failing }
    }

    /// A receiver that changes with each pass over the spool.
    pub(crate) fn sweeps(&self) -> watch::Receiver<Sweeps> {
        self.sweeps.clone()
    }

    /// Makes the recorder wait until the returned guard is dropped.
    pub(crate) fn failing(&self) -> Failing {
        self.failing.send_modify(|failing| *failing += 1);
        Failing(Arc::clone(&self.failing))
    }
}

/// A guard that exists while PHP writes the aftermath of a job's failure.
#[derive(Debug)]
pub(crate) struct Failing(Arc<watch::Sender<usize>>);

impl Drop for Failing {
    fn drop(&mut self) {
        self.0.send_modify(|failing| *failing -= 1);
    }
}

/// How long the recorder waits for PHP's work after failures if there is always some.
const FAILING: Duration = Duration::from_secs(10);

/// Moves records to the store until no more will come.
pub(crate) async fn keep_recording(recorder: FailedJobRelay) {
    let mut reconnect = Reconnect::default();
    let mut parts = Parts::<Logged>::new(Arc::clone(&recorder.ledger), &recorder.queues);
    loop {
        let mut quiet = Quiet::new(recorder.failing.clone());
        quiet.reached().await;
        let is_last = recorder.last.is_cancelled();
        if is_last {
            parts.states().for_each(|said| said.from = 0);
        }
        recorder.sweeps.send_modify(|sweeps| sweeps.begun += 1);
        let mut drained = Vec::new();
        for Part { ledger, state } in parts.due().await {
            drained.push(recorder.drain(ledger, state, &mut quiet).await);
        }
        let drained = worst(drained);
        recorder.sweeps.send_modify(|sweeps| {
            sweeps.ended += 1;
            sweeps.is_refused = drained == DrainStatus::Failed;
        });
        if is_last {
            return;
        }
        let wait = match drained {
            DrainStatus::All => {
                parts.states().for_each(|said| *said = Logged::default());
                reconnect.reset();
                LOOK_EVERY
            }
            DrainStatus::Later => Duration::from_secs(1),
            DrainStatus::Failed => reconnect.next_wait().max(Duration::from_millis(500)),
        };
        let deadline = Instant::now() + wait;
        tokio::select! {
            () = recorder.last.cancelled() => {}
            () = tokio::time::sleep_until(deadline) => {}
            () = recorder.spooled.notified(), if drained != DrainStatus::Failed => {}
        }
    }
}

/// Waits, during one pass, while PHP writes what failures of jobs bring about.
struct Quiet {
    failing: watch::Receiver<usize>,
    /// When to write in between. With many processes, some job may be failing all the time; then only the first
    /// record of a pass waits.
    patience: Instant,
}

impl Quiet {
    fn new(failing: watch::Receiver<usize>) -> Self {
        let patience = Instant::now() + FAILING;
        Self { failing, patience }
    }

    async fn reached(&mut self) {
        let is_quiet = self.failing.wait_for(|failing| *failing == 0);
        let waited = tokio::time::timeout_at(self.patience, is_quiet).await;
        if waited.is_ok() {
            self.patience = Instant::now() + FAILING;
        }
    }
}

impl FailedJobRelay {
    async fn drain(
        &self,
        ledger: &Arc<dyn Ledger>,
        said: &mut Logged,
        quiet: &mut Quiet,
    ) -> DrainStatus {
        let mut lease = match Lease::take(ledger, Spool::FailedJobs, &self.progress).await {
            Ok(lease) => lease,
            Err(drained) => return drained,
        };
        let drained = self.drain_leased(&mut lease, said, quiet).await;
        lease.give_up().await;
        drained
    }

    async fn drain_leased(
        &self,
        lease: &mut Lease,
        said: &mut Logged,
        quiet: &mut Quiet,
    ) -> DrainStatus {
        let hold = lease.hold();
        let mut left = std::mem::take(&mut said.from);
        let mut drained = if left == 0 {
            DrainStatus::All
        } else {
            DrainStatus::Failed
        };
        let (mut outages, mut refusals) = (0, 0);
        loop {
            let records = match hold.ledger().read(Spool::FailedJobs, left, PAGE).await {
                Ok(records) if records.is_empty() => return drained,
                Ok(records) => records,
                Err(error) => return list_unreachable(&error),
            };
            for record in records {
                let bring = async {
                    // The job of this record may have failed after the pass began.
                    quiet.reached().await;
                    self.bring(&record, said).await
                };
                let Some(brought) = lease.during(bring).await else {
                    return DrainStatus::Later;
                };
                match brought {
                    Ok(true) => {
                        (outages, refusals) = (0, 0);
                        match lease.hold().advance(&[record], &[]).await {
                            // Without the lease another process empties the spool.
                            Ok(0) => return DrainStatus::Later,
                            Ok(_) => {}
                            Err(error) => return list_unreachable(&error),
                        }
                    }
                    Ok(false) => {
                        outages = 0;
                        left += 1;
                        drained = drained.or(DrainStatus::Later);
                    }
                    Err(error) => {
                        self.on_refusal.tell("record a failed job");
                        said.refusal(&error, &self.store);
                        drained = DrainStatus::Failed;
                        left += 1;
                        // The error may concern this record alone, even if it looks like an outage: try the next
                        // one.
                        outages = if is_outage(&error) { outages + 1 } else { 0 };
                        refusals += 1;
                        // A stopping worker does not come back to the rest, so it goes on; another limit bounds
                        // its time.
                        let is_enough = refusals >= MOST_REFUSALS && !self.last.is_cancelled();
                        if outages == 2 || is_enough {
                            said.from = left;
                            return drained;
                        }
                    }
                }
            }
        }
    }

    /// Moves one record to the store; false if the record has to wait.
    async fn bring(&self, record: &[u8], said: &mut Logged) -> Result<bool, crate::failed::Error> {
        let job: FailedJob = match serde_json::from_slice(record) {
            Ok(job) => job,
            Err(error) => {
                said.foreign(&error);
                return Ok(false);
            }
        };
        let age = self.clock.now().0.saturating_sub(job.failed_at);
        match self.store.record(&job).await? {
            Recorded::New => Ok(true),
            Recorded::Already => Ok(age >= SAME_AFTER),
            Recorded::Occupied if age >= REPLACE_AFTER => {
                if self.store.replace(&job).await? == Recorded::Occupied {
                    return Ok(false);
                }
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

/// Whether the store as a whole cannot be used, rather than one record.
fn is_outage(error: &crate::failed::Error) -> bool {
    match error {
        crate::failed::Error::Database { source, .. } => source.is_lost_connection(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn records_wait_for_php_but_not_each_of_them_if_some_job_always_fails() {
        let (failing, receiver) = watch::channel(1);
        let begin = Instant::now();
        let mut quiet = Quiet::new(receiver);
        for _ in 0..100 {
            quiet.reached().await;
        }
        assert_eq!(begin.elapsed(), FAILING);

        // Once PHP has been quiet, records wait again.
        failing.send_replace(0);
        quiet.reached().await;
        failing.send_replace(1);
        let end = tokio::time::sleep(Duration::from_secs(3));
        let wait = async {
            quiet.reached().await;
            begin.elapsed()
        };
        let ((), elapsed) = tokio::join!(
            async {
                end.await;
                failing.send_replace(0);
            },
            wait
        );
        assert_eq!(elapsed, FAILING + Duration::from_secs(3));
    }

    #[test]
    fn the_recorder_knows_of_how_many_failures_php_still_writes() {
        let (failing, receiver) = watch::channel(0);
        let (_, sweeps) = watch::channel(Sweeps::default());
        let recordings = Recordings::new(sweeps, Arc::new(failing));
        let (first, second) = (recordings.failing(), recordings.failing());
        assert_eq!(*receiver.borrow(), 2);
        drop(first);
        assert_eq!(*receiver.borrow(), 1);
        drop(second);
        assert_eq!(*receiver.borrow(), 0);
    }
}
