//! Runs a job in a PHP process: Laravel decides what becomes of the job, and artisand applies it to the queue.
//!
//! artisand does nothing of what follows a job (lock, chain, batch, `failed()`): Laravel does. It has done it when it
//! reports a deletion as its last word on the job. After a failure, or a deletion behind which the job runs on, it
//! waits until artisand has settled the job, and does it then. A process that ends without a report leaves the job
//! reserved, like a `queue:work` that was killed.

mod course;
mod deadlines;
mod judged;
mod reports;

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use crate::handler::{EndInPhp, JobInfo, RunInPhp};
use crate::outbox::failed_jobs::Sweeps;
use crate::process::pool::{IdleMember, PoolMessage, Run};
use crate::queue::{self, Ability, Delivery, Settlement};
use crate::time::UnixSeconds;
use crate::worker::attempt::Attempt;
use crate::worker::attempt::decide::Rules;
use crate::worker::attempt::ending::{Ending, RaisedByPhp};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::php::course::{PhpAttempt, RunEnd};
use crate::worker::attempt::php::deadlines::{AttemptStep, Deadlines, Wake};
use crate::worker::attempt::php::judged::{Judged, log_judged};
use crate::worker::attempt::shared::TaskEnd;
use crate::worker::gauge::Held;

/// How long a stopping worker waits for a process that is to begin a job: Redis may be away, without which the app does
/// not boot.
const LAST_BOOT: Duration = Duration::from_secs(30);

/// How long the next job of a single process waits until the failure of the previous job is recorded.
const RECORDING: Duration = Duration::from_secs(10);

/// What PHP's own object of a job is made of: its name, its attempt, and the receipt, if it has one.
fn named(delivery: &Delivery, attempts: u32) -> Arc<[u8]> {
    let receipt = delivery.receipt.as_ref();
    let receipt = receipt.map_or_else(String::new, |receipt| format!(":{receipt}"));
    let text = format!("{}:{attempts}{receipt}", delivery.id);
    text.into_bytes().into()
}

/// A job that waits for a process.
struct ForProcess {
    /// Counts it until its end is settled.
    unsettled: Option<Held>,
    /// How long it took, if observers were told that it has begun and its process did not begin it.
    announced: Option<Duration>,
}

impl ForProcess {
    fn begin(self) -> PhpAttempt {
        PhpAttempt {
            is_announced: self.announced.is_some(),
            unsettled: self.unsettled,
            ..PhpAttempt::default()
        }
    }
}

impl Attempt {
    /// Runs the job in a process of the pool; `None` if the job did not begin or was cut short.
    ///
    /// A job that the process does not begin goes back to the queue; where that would spend an attempt, the next
    /// process gets it.
    pub(crate) async fn run_in_pool(
        &self,
        info: Arc<JobInfo>,
        idle: Option<IdleMember>,
        unsettled: Held,
        end: &mut TaskEnd,
    ) -> Option<RunInPhp> {
        let is_pop_announced = idle.is_some() || !self.shared.triage.leaves_unmapped();
        let mut idle = idle.map(|idle| (idle, self.lease()));
        let mut waits = ForProcess {
            unsettled: Some(unsettled),
            announced: None,
        };
        loop {
            let next = match idle.take() {
                Some(idle) => Some(idle),
                None => self.next_process().await,
            };
            let Some((process, lease)) = next else {
                end.was_declined = true;
                match waits.announced {
                    Some(elapsed) => self.return_announced(&info, elapsed).await,
                    None => self.give_back(is_pop_announced.then_some(info)).await,
                }
                return None;
            };
            match self.run_in_php(&info, process, lease, waits, end).await {
                Ok(run) => return run,
                Err(declined) => waits = declined,
            }
        }
    }

    /// A process for a job that cannot be put back as it was, with the new end of its reservation; `None` if the job
    /// has to be put back all the same.
    async fn next_process(&self) -> Option<(IdleMember, Option<UnixSeconds>)> {
        let (shared, pool) = (&self.shared, self.shared.pool.as_ref()?);
        if shared.leases.queue.abilities().has(Ability::PutsBack) {
            return None;
        }
        let (mut changes, begun) = (pool.changes(), &shared.stops.begun);
        let mut too_late = std::pin::pin!(async {
            begun.cancelled().await;
            tokio::time::sleep(LAST_BOOT).await;
        });
        let idle = loop {
            changes.borrow_and_update();
            // A process that the app does not let work would not begin the job either.
            let is_paused = pool.is_paused();
            if pool.problem().is_some() || (is_paused && begun.is_cancelled()) {
                return None;
            }
            if let Some(idle) = (!is_paused).then(|| pool.take()).flatten() {
                break idle;
            }
            tokio::select! {
                _ = changes.changed() => {}
                () = begun.cancelled(), if !begun.is_cancelled() => {}
                () = &mut too_late => return None,
                () = shared.stops.cut.cancelled() => return None,
            }
        };
        match self.renew_before_start().await? {
            queue::Held::Until(until) => Some((idle, Some(until))),
            queue::Held::Lost => None,
        }
    }

    /// Runs the job in this process.
    ///
    /// # Errors
    ///
    /// The process did not begin it.
    async fn run_in_php(
        &self,
        info: &Arc<JobInfo>,
        idle: IdleMember,
        lease: Option<UnixSeconds>,
        waits: ForProcess,
        end: &mut TaskEnd,
    ) -> Result<Option<RunInPhp>, ForProcess> {
        let left = |lease| self.shared.triage.app.clock.until(lease);
        let lease = lease.map(|lease| Instant::now() + left(lease));
        let reserved = match &self.job.delivery {
            Some(delivery) => named(delivery, info.attempts),
            None => Arc::clone(&self.job.ticket),
        };
        let Some(mut run) = idle.run(Arc::clone(info), &reserved, lease) else {
            return Err(waits);
        };
        let began = Instant::now();
        let mut course = waits.begin();
        let over = self.follow(info, &mut run, &mut course, began).await;
        let elapsed = run.began().unwrap_or(began).elapsed();
        let seen = RunInPhp {
            end: EndInPhp::of(course.fate.as_ref()),
            thrown: course.thrown.clone(),
            elapsed,
        };
        if course.is_end_sent {
            self.emit_rest(info, &course, matches!(over, RunEnd::Done), elapsed);
            drop(course.failing.take());
            if let Some((recording, begun)) = course.recording.take() {
                self.wait_until_recorded(recording, begun).await;
                course.unsettled = None;
            }
            return Ok(Some(seen));
        }
        let judged = match (course.fate.take(), over) {
            (None, RunEnd::Declined) => {
                return Err(ForProcess {
                    unsettled: course.unsettled.take(),
                    announced: course.is_announced.then_some(elapsed),
                });
            }
            (Some(fate), _) => self.judged(info, fate, &course),
            (None, over) => {
                if !matches!(over, RunEnd::Done) {
                    course.log_thrown(info);
                }
                Judged::left(course.outcome_without_report(info, over))
            }
        };
        end.was_cut = judged.outcome == Outcome::Stopped;
        if end.was_cut {
            self.log_cut(info, elapsed);
        }
        self.end(judged, info, elapsed).await;
        Ok((!end.was_cut).then_some(seen))
    }

    /// Handles PHP's reports until the attempt is over.
    async fn follow(
        &self,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut PhpAttempt,
        began: Instant,
    ) -> RunEnd {
        let timeout = Rules::of(&info.payload.limits, &self.shared.terms.defaults).timeout;
        let timeout = timeout.filter(|_| self.shared.terms.has_timeouts);
        let mut deadlines = Deadlines::new(timeout, began);
        if course.is_announced {
            deadlines.take_announcement();
        }
        let stops = &self.shared.stops;
        loop {
            let next = match deadlines.next(run, stops, course.has_end()).await {
                Wake::PoolMessage(said) => {
                    let is_declined = matches!(said, Some(PoolMessage::Declined));
                    if !is_declined && deadlines.take_announcement() {
                        course.is_announced = true;
                        self.announce(info, run.began().unwrap_or(began));
                    }
                    let reported_at = Instant::now();
                    let over = self
                        .on_report(said, info, run, course, &mut deadlines)
                        .await;
                    // PHP waits meanwhile: for as long as the server is away.
                    deadlines.excuse(reported_at.elapsed());
                    if let Some(over) = over {
                        return over;
                    }
                    continue;
                }
                Wake::Announce => {
                    deadlines.take_announcement();
                    course.is_announced = true;
                    self.announce(info, run.began().unwrap_or(began));
                    continue;
                }
                Wake::Cut => deadlines.cut(course.has_end(), Instant::now()),
                Wake::Stop => deadlines.stop(Instant::now()),
                Wake::Deadline => deadlines.pass_deadline(Instant::now()),
            };
            match next {
                AttemptStep::Wait => {}
                AttemptStep::Kill => run.kill(),
                AttemptStep::KillForTimeout => {
                    run.kill();
                    course.has_timed_out = true;
                }
                AttemptStep::GiveUp if deadlines.is_cut() => return RunEnd::Cut,
                AttemptStep::GiveUp => return RunEnd::Ended("it hangs in the system".to_owned()),
            }
        }
    }

    /// Waits until the last job of a single PHP process is settled; false if that was given up, or the worker has to
    /// stop first.
    pub(super) async fn last_is_settled(&self) -> bool {
        if !self.shared.pops_behind_deletion() {
            return true;
        }
        let settlements = &self.shared.settlements;
        // If the server is away, a stop must not wait for this job.
        let _waiting = settlements.waiting.hold();
        tokio::select! {
            biased;
            are_settled = settlements.settle_counts.settled() => are_settled,
            () = self.shared.stops.cut.cancelled() => false,
        }
    }

    /// Puts a job that did not run back where it was.
    pub(crate) async fn give_back(&self, popped: Option<Arc<JobInfo>>) {
        self.settle_for_php(Ending::put_back(popped)).await;
    }

    /// The same for a job that was announced: observers hear that it is over.
    async fn return_announced(&self, info: &Arc<JobInfo>, elapsed: Duration) {
        let circumstances =
            self.circumstances(info, elapsed, Instant::now(), RaisedByPhp::default());
        self.settle_for_php(Ending::put_back_announced(&circumstances))
            .await;
    }

    /// Hands a job over to be settled; waits for that if the next job must not be popped before.
    async fn settle_for_php(&self, ending: Ending) {
        let is_deletion = matches!(ending.settlement, Settlement::Delete);
        let is_followed = is_deletion && self.shared.pops_behind_deletion();
        if self.shared.has_one_member() && !is_followed {
            self.settle_and_wait(ending).await;
        } else {
            self.send(ending, None).await;
        }
    }

    fn ending(&self, judged: Judged, info: &Arc<JobInfo>, elapsed: Duration) -> Ending {
        let Judged {
            outcome,
            decision,
            effects,
        } = judged;
        let circumstances =
            self.circumstances(info, elapsed, Instant::now(), RaisedByPhp::default());
        Ending::of(outcome, decision, effects, &circumstances)
    }

    /// Logs the end of a job that has not failed, keeps its last error, emits its exception, and returns the ending.
    async fn prepare_ending(
        &self,
        judged: Judged,
        info: &Arc<JobInfo>,
        elapsed: Duration,
    ) -> Ending {
        log_judged(info, &judged, elapsed);
        self.keep_error(info, &judged.outcome, &judged.decision)
            .await;
        self.emit_exception(info, &judged.outcome, elapsed);
        self.ending(judged, info, elapsed)
    }

    async fn end(&self, judged: Judged, info: &Arc<JobInfo>, elapsed: Duration) {
        let ending = self.prepare_ending(judged, info, elapsed).await;
        self.settle_for_php(ending).await;
    }

    /// The recorder's progress before a job is settled; `None` if the next job need not wait for the record.
    ///
    /// Laravel reads a batch and then writes it in one transaction, which `SQLite` refuses if another process
    /// wrote in between. With a single PHP process Laravel never runs into that, so it must not happen here
    /// either.
    fn recording_of(&self, settlement: &Settlement) -> Option<(watch::Receiver<Sweeps>, u64)> {
        let recording = self.shared.recording.as_ref()?.sweeps();
        let begun = recording.borrow().begun;
        (self.shared.has_one_member() && matches!(settlement, Settlement::Finish(_)))
            .then_some((recording, begun))
    }

    /// Waits for the end of the first pass over the spool that began after `begun`.
    async fn wait_until_recorded(&self, mut recording: watch::Receiver<Sweeps>, begun: u64) {
        let has_ended = |sweeps: &Sweeps| sweeps.ended > begun || sweeps.is_refused;
        tokio::select! {
            // Ends also when the recorder is gone.
            _ = recording.wait_for(has_ended) => {}
            () = self.shared.stops.cut.cancelled() => {}
            () = tokio::time::sleep(RECORDING) => {}
        }
    }
}

#[cfg(test)]
mod tests;
