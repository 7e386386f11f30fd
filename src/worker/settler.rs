//! Settles jobs: the only place of the worker that ends a job on the server.
//!
//! Jobs that end close together are settled by one call: while one call is under way, further jobs gather. A
//! single job does not wait. If the server is gone, the same jobs are settled again when it is back. That is safe
//! because scripts move a job only if it is still reserved.

use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::connection::Reconnect;
use crate::connection::is_away;
use crate::handler::panic_text;
use crate::outbox::left::Left;
use crate::payload::JobUuid;
use crate::queue::{
    Abilities, Ability, Effect, Queue, ReservedJob, Settled, Settlement, Spool, Unsettled,
};
use crate::shown::with_causes;
use crate::worker::attempt::ending::{EndReport, Ending};
use crate::worker::event::{Event, Observers};
use crate::worker::next_release::{NextRelease, returns_at};
use crate::worker::running::Running;
use crate::worker::settle_counts::SettleCounts;

/// A job that has ended, on the way to the server.
pub(super) struct PendingSettlement {
    pub(super) job: Arc<ReservedJob>,
    pub(super) ending: Ending,
    /// The number under which the job's reservation is renewed.
    pub(super) number: u64,
    /// Notified when the job is settled, if the attempt waits for that.
    pub(super) done: Option<oneshot::Sender<Settled>>,
    /// Whether an earlier try may have settled it, so that it is no news that the reservation is gone.
    pub(super) may_be_done: bool,
    /// When it was handed in to be settled.
    pub(super) handed_in: Instant,
}

impl PendingSettlement {
    /// Whether the settlement pushes another job.
    fn pushes(&self) -> bool {
        matches!(&self.ending.settlement, Settlement::Finish(effects)
            if effects.iter().any(|effect| matches!(effect, Effect::Push(_))))
    }

    /// Whether the job's reservation may look the same to its server once another worker has popped it again. A repeated
    /// settlement would then end the other worker's reservation.
    fn comes_back_the_same(&self, abilities: &Abilities) -> bool {
        use Settlement::{LeaveUntil, PutBack, Release, ReleaseUncounted};
        match self.ending.settlement {
            PutBack | ReleaseUncounted(_) => true,
            // Such a server may take an old reservation for the present one.
            Release(_) | LeaveUntil(_) => !abilities.has(Ability::TellsGone),
            _ => false,
        }
    }

    /// Whether the settlement leaves a record in this list.
    fn spools(&self, spool: Spool) -> bool {
        matches!(&self.ending.settlement, Settlement::Finish(effects)
            if effects.iter().any(|effect| effect.spool() == Some(spool)))
    }
}

/// What the settling task needs of the worker.
pub(super) struct Settler {
    pub(super) queue: Arc<dyn Queue>,
    pub(super) running: Arc<Running>,
    pub(super) observers: Observers,
    /// Notified when a failed job went to the spool.
    pub(super) spooled: Arc<Notify>,
    /// Notified when an ended job left follow-ups to do.
    pub(super) left: Arc<Left>,
    /// Notified when a job will come back to its queue.
    pub(super) returns: Arc<NextRelease>,
    /// Counts what is sent and settled.
    pub(super) settle_counts: Arc<SettleCounts>,
    /// Cancelled at the worker's stop deadline: from then on settling does not wait for a server that stays away.
    pub(super) give_up: CancellationToken,
    /// When `give_up` was first seen.
    pub(super) gave_up: OnceLock<Instant>,
}

/// How often a push is tried whose target key is not a queue.
const MOST_REFUSALS: u32 = 3;

/// Settles jobs until all senders are gone; returns how many could not be settled.
///
/// Jobs that cannot be settled are retried apart from the others: a list that cannot be written does not keep
/// finished jobs from being deleted. With too many of them the loop pops no more jobs; those that run are still
/// settled.
pub(super) async fn keep_settling(
    settler: Settler,
    mut settlements: mpsc::Receiver<PendingSettlement>,
) -> usize {
    const AT_ONCE: usize = 1024;
    let settler = Arc::new(settler);
    let mut parked = JoinSet::new();
    let mut batch = Vec::with_capacity(64);
    let mut unsettled = 0;
    while settlements.recv_many(&mut batch, AT_ONCE).await > 0 {
        let batch = std::mem::replace(&mut batch, Vec::with_capacity(64));
        let jobs = batch.len();
        let Some(refused) = settler.unless_it_panics(settler.settle(batch)).await else {
            unsettled += jobs;
            continue;
        };
        for refused in refused {
            let settler = Arc::clone(&settler);
            let counted = settler.settle_counts.park();
            parked.spawn(async move {
                let (_counted, jobs) = (counted, refused.len());
                let settling = settler.settle_again(refused);
                settler.unless_it_panics(settling).await.unwrap_or(jobs)
            });
        }
        while let Some(left) = parked.try_join_next() {
            unsettled += left.unwrap_or(1);
        }
    }
    while let Some(left) = parked.join_next().await {
        unsettled += left.unwrap_or(1);
    }
    unsettled
}

impl Settler {
    /// Runs a part of the settling; `None` if it panicked. Its jobs stay reserved then, and the worker stops: it could
    /// no longer tell which jobs have ended.
    async fn unless_it_panics<T>(&self, settling: impl Future<Output = T>) -> Option<T> {
        match AssertUnwindSafe(settling).catch_unwind().await {
            Ok(settled) => Some(settled),
            Err(panic) => {
                tracing::error!(
                    panic = panic_text(&*panic),
                    "the settling of jobs has panicked: they stay reserved until `retry_after`, and the worker stops"
                );
                self.settle_counts.note_given_up(0);
                None
            }
        }
    }

    /// Settles a batch; returns the jobs that could not be settled, in groups that fail or succeed together.
    async fn settle(&self, batch: Vec<PendingSettlement>) -> Vec<Vec<PendingSettlement>> {
        let (batch, error) = match self.try_settle(batch, false).await {
            Ok(()) => return Vec::new(),
            Err((batch, Some(error))) => (batch, error),
            // The time is over. What the server may still carry out is not sent again.
            Err((batch, None)) => return vec![batch],
        };
        report(Some(&error), batch.len());
        let mut groups: Vec<Vec<PendingSettlement>> = Vec::new();
        for pending in batch {
            let kind = std::mem::discriminant(&pending.ending.settlement);
            let is_same = |group: &&mut Vec<PendingSettlement>| {
                let first = &group[0];
                // A job whose effects cannot be carried out must not hold up others.
                !matches!(first.ending.settlement, Settlement::Finish(_))
                    && first.job.queue == pending.job.queue
                    && std::mem::discriminant(&first.ending.settlement) == kind
            };
            match groups.iter_mut().find(is_same) {
                Some(group) => group.push(pending),
                None => groups.push(vec![pending]),
            }
        }
        let mut refused = Vec::new();
        for group in groups {
            if let Err((group, _)) = self.try_settle(group, true).await {
                refused.push(group);
            }
        }
        refused
    }

    /// Retries until settling succeeds or the worker has to stop; returns how many jobs are left.
    async fn settle_again(&self, mut batch: Vec<PendingSettlement>) -> usize {
        let mut reconnect = Reconnect::default();
        let mut refusals = 0;
        loop {
            let wait = reconnect.next_wait();
            let is_over = tokio::select! {
                biased;
                () = self.over(&batch) => true,
                () = self.wait_to_try(wait) => false,
            };
            if is_over {
                tracing::error!(
                    jobs = batch.len(),
                    "jobs could not be settled; they stay reserved until `retry_after`"
                );
                self.settle_counts.note_given_up(batch.len());
                return batch.len();
            }
            match self.try_settle(batch, true).await {
                Ok(()) => return 0,
                Err((left, error)) => {
                    report(error.as_ref(), left.len());
                    batch = left;
                    let is_wrong = |error: &crate::queue::Error| error.is_wrong_kind();
                    refusals += u32::from(error.as_ref().is_some_and(is_wrong));
                    if refusals >= MOST_REFUSALS && batch.iter().all(PendingSettlement::pushes) {
                        return self.let_go(batch);
                    }
                }
            }
        }
    }

    /// Waits before the next try; only briefly once the worker stops, because few tries are left then.
    async fn wait_to_try(&self, wait: Duration) {
        tokio::select! {
            () = tokio::time::sleep(wait) => {}
            () = async {
                self.give_up.cancelled().await;
                tokio::time::sleep(LAST_TRIES).await;
            } => {}
        }
    }

    /// Leaves jobs to their reservations, because the chain's next queue in the payload is a key that cannot be a
    /// queue.
    ///
    /// As in Laravel, where this is an exception, the jobs run again until their attempts are spent. Endless
    /// retries would keep all other jobs from being settled.
    fn let_go(&self, batch: Vec<PendingSettlement>) -> usize {
        let count = batch.len();
        tracing::error!(
            jobs = count,
            "ended jobs cannot push their next job, because the key of its queue is no queue; \
             they stay reserved until `retry_after` and run again"
        );
        self.settle_counts.note_settled(count);
        for pending in batch {
            self.running.remove(pending.number);
            if let EndReport::Ended(end) = pending.ending.report {
                end.emit_left(&self.observers);
            }
        }
        count
    }

    /// Returns when the last chance of these jobs has passed: after the worker's stop deadline, or after they were
    /// handed in where that is later.
    async fn over(&self, batch: &[PendingSettlement]) {
        self.give_up.cancelled().await;
        let gave_up = *self.gave_up.get_or_init(Instant::now);
        let handed_in = batch.iter().map(|pending| pending.handed_in);
        let from = handed_in.fold(gave_up, Instant::max);
        tokio::time::sleep_until(from + LAST_CHANCE).await;
    }

    /// Settles jobs; `Err(None)` if the server did not answer before the last chance was over.
    async fn settle_unless_over(
        &self,
        batch: &[PendingSettlement],
        asked_again: bool,
    ) -> Result<Vec<Settled>, Option<Unsettled>> {
        let rows: Vec<_> = batch
            .iter()
            .map(|pending| (Arc::clone(&pending.job), pending.ending.settlement.clone()))
            .collect();
        let mut settling = self.queue.settle(&rows);
        if !asked_again {
            self.settle_counts.note_sent(rows.len());
        }
        // The first poll sends it, or takes its place in front of the next pop.
        let settled = futures_util::poll!(settling.as_mut());
        if let Poll::Ready(settled) = settled {
            return settled.map_err(Some);
        }
        tokio::select! {
            biased;
            settled = settling => settled.map_err(Some),
            () = self.over(batch) => Err(None),
        }
    }

    /// Settles jobs; on an error returns the jobs that could not be settled.
    async fn try_settle(
        &self,
        batch: Vec<PendingSettlement>,
        asked_again: bool,
    ) -> Result<(), (Vec<PendingSettlement>, Option<crate::queue::Error>)> {
        let (settled, error) = match self.settle_unless_over(&batch, asked_again).await {
            Ok(settled) => (settled.into_iter().map(Some).collect(), None),
            Err(None) => return Err((batch, None)),
            Err(Some(Unsettled { settled, source })) => (settled, Some(source)),
        };
        let is_unknown = (error.as_ref()).is_some_and(crate::queue::Error::is_of_unknown_outcome);
        let is_sent = !error.as_ref().is_some_and(crate::queue::Error::is_unsent);
        let mut left = Vec::new();
        let mut done = Vec::with_capacity(batch.len());
        for (mut pending, settled) in batch.into_iter().zip(settled) {
            match settled {
                Some(settled) => done.push((pending, settled)),
                None if is_unknown && pending.comes_back_the_same(self.queue.abilities()) => {
                    tracing::warn!(
                        queue = %pending.job.queue,
                        "it is not known whether a job went back to its queue; if not, it does when its reservation ends (never with `retry_after` = null)"
                    );
                    done.push((pending, Settled::Done));
                }
                None => {
                    // Several deletions are not one step.
                    let is_deletion = pending.ending.settlement == Settlement::Delete;
                    pending.may_be_done |= is_unknown || (is_deletion && is_sent);
                    left.push(pending);
                }
            }
        }
        self.notify(done);
        match error.filter(|_| !left.is_empty()) {
            None => Ok(()),
            Some(error) => Err((left, Some(error))),
        }
    }

    /// Notifies all interested tasks and observers that jobs are settled.
    fn notify(&self, mut done: Vec<(PendingSettlement, Settled)>) {
        let spools = |spool| done.iter().any(|(pending, _)| pending.spools(spool));
        if spools(Spool::FailedJobs) {
            self.spooled.notify_one();
        }
        // A push that is not made in one step with the end is left to do, too.
        let puts_off = (done.iter()).any(|(pending, _)| {
            self.queue
                .puts_off(&pending.job, &pending.ending.settlement)
        });
        if puts_off || spools(Spool::FollowUps) {
            self.left.note();
        }
        let count = done.len();
        let back =
            (done.iter_mut()).filter_map(|(pending, _)| returns_at(&mut pending.ending.settlement));
        if let Some(at) = back.min() {
            self.returns.add(*at);
        }
        for (pending, settled) in done {
            self.running.remove(pending.number);
            finish(pending, settled, &self.observers);
        }
        self.settle_counts.note_settled(count);
    }
}

fn report(error: Option<&crate::queue::Error>, jobs: usize) {
    // The connection logs once that the server is away.
    if error.is_some_and(|error| is_away(error)) {
        return;
    }
    tracing::error!(
        error = error.map(|error| with_causes(error)),
        jobs,
        "could not settle jobs, trying again"
    );
}

/// The wait between the last tries.
const LAST_TRIES: Duration = Duration::from_millis(100);
/// How long settling waits for a lost server after the worker's stop deadline, or after the end of a job behind it.
const LAST_CHANCE: Duration = Duration::from_secs(3);

fn finish(pending: PendingSettlement, settled: Settled, observers: &Observers) {
    // After a lost reply, "gone" mostly means that the first call succeeded.
    let settled = if pending.may_be_done {
        Settled::Done
    } else {
        settled
    };
    let PendingSettlement {
        job, ending, done, ..
    } = pending;
    if settled == Settled::Gone {
        let uuid = match &ending.report {
            EndReport::Ended(end) => end.job.payload.uuid.as_ref(),
            EndReport::Forwarded(job, _) => job.payload.uuid.as_ref(),
            EndReport::Quarantined(_) | EndReport::GivenBack(_) => None,
        };
        tracing::warn!(
            job.uuid = uuid.map(JobUuid::bounded),
            queue = %job.queue,
            "the reservation of a job was gone when it ended: it ran out and another worker has the job, or the queue was cleared"
        );
    }
    match &ending.report {
        EndReport::Ended(end) => end.emit(observers, settled == Settled::Gone),
        EndReport::Quarantined(reason) => {
            tracing::error!(queue = %job.queue, reason, "a payload cannot be decoded and went to quarantine");
            observers.emit(&Event::JobsQuarantined {
                queue: &job.queue,
                count: 1,
            });
        }
        // Another worker has the job now, and reports where it goes.
        EndReport::Forwarded(..) | EndReport::GivenBack(_) if settled == Settled::Gone => {}
        EndReport::Forwarded(job, to) => observers.emit(&Event::JobForwarded { job, to }),
        EndReport::GivenBack(Some(job)) => observers.emit(&Event::JobGivenBack(job)),
        EndReport::GivenBack(None) => {}
    }
    if let Some(done) = done {
        // The attempt may have stopped waiting.
        let _ = done.send(settled);
    }
}

#[cfg(test)]
mod tests;
