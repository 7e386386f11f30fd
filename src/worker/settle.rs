//! Writes down what was decided: the only place of the worker that ends a job.
//!
//! Jobs that end close together are settled by one call: while one is on its
//! way, the next ones gather. A lone job waits for nobody. Nothing is given up
//! on: if the server is gone, the same jobs are settled again when it is back,
//! and scripts that move a job only if it is still reserved make that safe.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::attempt::with_causes;
use super::backoff::Reconnect;
use super::event::{Event, JobEnd, JobResult, Observer};
use super::renew::Running;
use crate::handler::{FailureText, JobInfo};
use crate::queue::{Queue, ReservedJob, Settled, Settlement};

/// A job with its verdict, on the way to the server.
pub(super) struct Verdict {
    pub(super) job: Arc<ReservedJob>,
    pub(super) settlement: Settlement,
    /// Number under which the job's reservation is renewed.
    pub(super) number: u64,
    pub(super) report: Report,
    /// Told when it is settled, for whoever has to wait for that.
    pub(super) done: Option<oneshot::Sender<Settled>>,
}

/// What observers are told once the job is settled.
pub(super) enum Report {
    /// An attempt ended.
    Ended {
        info: Arc<JobInfo>,
        elapsed: Duration,
        kind: EndKind,
    },
    /// The payload cannot be decoded; the text says why.
    Quarantined(String),
    /// It moved to another queue.
    Forwarded(Arc<JobInfo>),
    /// It was given back without having been run.
    GivenBack,
}

/// How an attempt ended, as observers hear it.
pub(super) enum EndKind {
    Processed(JobResult),
    ReleasedAfterException(FailureText),
    Failed(FailureText),
    TimedOut(FailureText),
}

/// Settles jobs until all senders are gone; returns how many could not be settled.
///
/// `give_up` is set once the worker's stop deadline has passed: then a server
/// that stays away is waited for no longer.
pub(super) async fn keep_settling<Q: Queue>(
    queue: Arc<Q>,
    mut verdicts: mpsc::Receiver<Verdict>,
    running: Arc<Running>,
    observers: Arc<[Arc<dyn Observer>]>,
    give_up: tokio_util::sync::CancellationToken,
) -> usize {
    const AT_ONCE: usize = 1024;
    let mut batch = Vec::with_capacity(64);
    let mut unsettled = 0;
    while verdicts.recv_many(&mut batch, AT_ONCE).await > 0 {
        unsettled += settle_batch(&*queue, &mut batch, &running, &observers, &give_up).await;
    }
    unsettled
}

async fn settle_batch<Q: Queue>(
    queue: &Q,
    batch: &mut Vec<Verdict>,
    running: &Running,
    observers: &[Arc<dyn Observer>],
    give_up: &tokio_util::sync::CancellationToken,
) -> usize {
    let rows: Vec<_> = batch
        .iter()
        .map(|verdict| (Arc::clone(&verdict.job), verdict.settlement.clone()))
        .collect();
    let mut reconnect = Reconnect::default();
    let mut asked_again = false;
    let mut giving_up_at = None;
    loop {
        let settling = settle_unless_over(queue, &rows, give_up);
        match settling.await {
            Ok(settled) => {
                for (verdict, settled) in batch.drain(..).zip(settled) {
                    running.remove(verdict.number);
                    finish(verdict, settled, asked_again, observers);
                }
                return 0;
            }
            Err(error) => {
                asked_again = true;
                tracing::error!(
                    error = error.as_ref().map(|error| with_causes(error)),
                    jobs = rows.len(),
                    "could not settle jobs"
                );
                if give_up.is_cancelled() {
                    let deadline =
                        *giving_up_at.get_or_insert_with(|| Instant::now() + LAST_CHANCE);
                    if Instant::now() >= deadline || error.is_none() {
                        tracing::error!(
                            jobs = rows.len(),
                            "jobs could not be settled; they stay reserved until `retry_after`"
                        );
                        batch.clear();
                        return rows.len();
                    }
                }
                reconnect.wait().await;
            }
        }
    }
}

/// Settles jobs; `Err(None)` if the server did not answer in time after the worker's stop deadline.
async fn settle_unless_over<Q: Queue>(
    queue: &Q,
    rows: &[(Arc<ReservedJob>, Settlement)],
    give_up: &tokio_util::sync::CancellationToken,
) -> Result<Vec<Settled>, Option<crate::queue::Error>> {
    let over = async {
        give_up.cancelled().await;
        tokio::time::sleep(LAST_CHANCE).await;
    };
    tokio::select! {
        biased;
        settled = queue.settle(rows) => settled.map_err(Some),
        () = over => Err(None),
    }
}

/// How long a server that went away is waited for after the worker's stop deadline.
const LAST_CHANCE: Duration = Duration::from_secs(3);

fn finish(verdict: Verdict, settled: Settled, asked_again: bool, observers: &[Arc<dyn Observer>]) {
    // After a lost reply "gone" mostly means that the first call did it.
    let settled = if asked_again { Settled::Done } else { settled };
    if settled == Settled::Gone {
        let uuid = match &verdict.report {
            Report::Ended { info, .. } | Report::Forwarded(info) => info.payload.uuid.clone(),
            Report::Quarantined(_) | Report::GivenBack => None,
        };
        tracing::warn!(
            job.uuid = uuid.as_ref().map(tracing::field::display),
            queue = %verdict.job.queue,
            "the reservation of a job was gone when it ended: it ran out and another worker has the job, or the queue was cleared"
        );
    }
    let tell = |event: Event<'_>| {
        for observer in observers {
            observer.on_event(&event);
        }
    };
    match &verdict.report {
        Report::Ended {
            info,
            elapsed,
            kind,
        } => {
            let end = |result, failure| JobEnd {
                job: info,
                elapsed: *elapsed,
                result,
                failure,
            };
            match kind {
                EndKind::Processed(result) => tell(Event::JobProcessed(&end(*result, None))),
                EndKind::ReleasedAfterException(failure) => {
                    tell(Event::JobReleasedAfterException(&end(
                        JobResult::Released,
                        Some(failure),
                    )));
                }
                EndKind::Failed(failure) => {
                    tell(Event::JobFailed(&end(JobResult::Deleted, Some(failure))));
                }
                EndKind::TimedOut(failure) => {
                    tell(Event::JobTimedOut(&end(JobResult::Left, Some(failure))));
                }
            }
        }
        Report::Quarantined(reason) => {
            tracing::error!(queue = %verdict.job.queue, reason, "a payload cannot be decoded and went to quarantine");
            tell(Event::JobsQuarantined {
                queue: &verdict.job.queue,
                count: 1,
            });
        }
        Report::Forwarded(info) => {
            if let Settlement::Forward(to) = &verdict.settlement {
                tell(Event::JobForwarded { job: info, to });
            }
        }
        Report::GivenBack => {}
    }
    if let Some(done) = verdict.done {
        // Whoever asked may have stopped waiting.
        let _ = done.send(settled);
    }
}
