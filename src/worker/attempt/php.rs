//! Runs a job in a PHP process: Laravel decides what becomes of the job, and artisand applies it to the queue.
//!
//! artisand does nothing of what follows a job (lock, chain, batch, `failed()`): Laravel has done it by the time
//! it reports the job as deleted or failed. A process that ends without such a report leaves the job reserved,
//! like a `queue:work` that was killed.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::handler::{EndInPhp, FailureText, JobInfo, RunInPhp};
use crate::outbox::failed_jobs::{Failing, Passes, Recordings};
use crate::payload::Command;
use crate::process::pool::{Run, Said, Seat};
use crate::queue::{Delivery, Effect, Settled, Settlement};
use crate::time::sleep_until;
use crate::worker::attempt::Attempt;
use crate::worker::attempt::decide::{Decision, Rules};
use crate::worker::attempt::ending::{Ending, Heard, Report};
use crate::worker::attempt::log::{log_failure, log_outcome};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::TaskEnd;
use crate::worker::gauge::Held;

/// How long Laravel may take after the timeout to fail the job and to end its process.
const AFTER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long PHP may take to say that it does not begin a job; longer than a job may wait for its process to come
/// round.
const DECLINING: Duration = Duration::from_millis(120);
/// How long the next job of a single process waits until the failure of the previous job is recorded.
const RECORDING: Duration = Duration::from_secs(10);
/// How long PHP may continue at the stop deadline with what follows the end of a job: `failed()`, a batch, a
/// chain.
const BEHIND_THE_END: Duration = Duration::from_secs(10);
/// How long a killed process may take to end.
const DEATH: Duration = Duration::from_secs(5);

/// What Laravel did with the job.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Fate {
    Deleted,
    Released(Duration),
    Failed {
        failure: FailureText,
        /// The exception text as Laravel records it.
        text: String,
        /// Whether PHP has recorded it.
        is_logged: bool,
    },
}

impl Fate {
    /// Whether it is the failure of a job that ran too long.
    fn is_timeout(&self) -> bool {
        const TIMEOUT: &str = "Illuminate\\Queue\\TimeoutExceededException";
        matches!(self, Self::Failed { failure, .. } if failure.class == TIMEOUT)
    }
}

impl EndInPhp {
    fn of(fate: Option<&Fate>) -> Self {
        match fate {
            Some(Fate::Deleted) => Self::Deleted,
            Some(Fate::Released(delay)) => Self::Released { delay: *delay },
            Some(Fate::Failed { failure, .. }) => Self::Failed(failure.clone()),
            None => Self::Left,
        }
    }
}

/// What is known about a running attempt.
#[derive(Debug, Default)]
struct Course {
    fate: Option<Fate>,
    /// The exception, if Laravel has reported one.
    thrown: Option<FailureText>,
    /// How the job's failure was settled, if it was told and what comes after it was not.
    told_in_part: Option<Settled>,
    has_timed_out: bool,
    /// Whether the end of the job is already written to the queue.
    is_settled: bool,
    /// Counts the job until its end is written to the queue.
    unsettled: Option<Held>,
    /// Delays the record of the failure while PHP writes what follows `fail()`, such as a batch.
    failing: Option<Failing>,
    /// The recorder's progress and its value at the failure, if the next job has to wait for the record.
    recording: Option<(watch::Receiver<Passes>, u64)>,
}

impl Course {
    /// How the attempt ended, as far as Laravel has reported it.
    fn outcome(&self) -> Outcome {
        match &self.thrown {
            Some(thrown) => Outcome::threw(thrown.clone()),
            None => Outcome::Finished,
        }
    }

    /// Whether the job has ended for good, and PHP works on what follows the end.
    fn has_end(&self) -> bool {
        matches!(self.fate, Some(Fate::Deleted | Fate::Failed { .. }))
    }
}

/// Why PHP reports nothing more about an attempt.
enum Over {
    /// Laravel's loop has finished the job.
    Done,
    /// The job was not begun.
    Declined,
    /// The process has ended; the text says how.
    Ended(String),
    /// The worker stops, and the process was killed.
    Cut,
}

/// The deadlines of a running attempt.
struct Watch {
    /// The job's own timeout.
    timeout: Option<Duration>,
    /// When the process is killed, or given up after that.
    deadline: Option<Instant>,
    /// When `JobProcessing` is announced: after the time that PHP has to decline the job.
    announced: Option<Instant>,
    /// Whether the process was killed for the last time.
    is_cut: bool,
    /// Whether the worker cuts jobs short, and PHP may still finish what follows the end of this one.
    has_time: bool,
}

/// What happens next to a running attempt.
enum Wake {
    /// PHP reports something; `None` if it never will again.
    Said(Option<Said>),
    Announce,
    /// The worker cuts its jobs short.
    Cut,
    Deadline,
}

impl Watch {
    fn new(timeout: Option<Duration>, began: Instant) -> Self {
        Self {
            timeout,
            // Laravel itself ends a job that runs too long. This deadline is for processes that cannot.
            deadline: timeout.map(|timeout| began + timeout + AFTER_TIMEOUT),
            // Mostly PHP has begun by then.
            announced: Some(began + DECLINING),
            is_cut: false,
            has_time: false,
        }
    }

    async fn next(&self, run: &mut Run, cut: &CancellationToken, has_end: bool) -> Wake {
        let has_heeded = self.is_cut || (self.has_time && has_end);
        tokio::select! {
            biased;
            said = run.next() => Wake::Said(said),
            () = sleep_until(self.announced) => Wake::Announce,
            () = cut.cancelled(), if !has_heeded => Wake::Cut,
            () = sleep_until(self.deadline) => Wake::Deadline,
        }
    }
}

/// What PHP's own object of a job is made of: its name, its attempt, and the receipt, if it has one.
fn named(delivery: &Delivery, attempts: u32) -> Arc<[u8]> {
    let receipt = delivery.receipt.as_ref();
    let receipt = receipt.map_or_else(String::new, |receipt| format!(":{receipt}"));
    let text = format!("{}:{attempts}{receipt}", delivery.id);
    text.into_bytes().into()
}

/// What became of a job that PHP ran.
#[derive(Debug)]
struct Judged {
    outcome: Outcome,
    decision: Decision,
    /// Effects that are carried out in one step with the job's end.
    effects: Vec<Effect>,
}

impl Judged {
    /// The verdict on a job that Laravel has not settled.
    fn left(outcome: Outcome) -> Self {
        let decision = match outcome {
            Outcome::Stopped => Decision::Release {
                delay: Duration::ZERO,
                after_exception: false,
            },
            _ => Decision::Leave,
        };
        Self {
            outcome,
            decision,
            effects: Vec::new(),
        }
    }
}

impl Attempt {
    /// Runs the job in a process of the pool; `None` if the job did not begin or was cut short.
    pub(crate) async fn run_in_php(
        &self,
        info: Arc<JobInfo>,
        seat: Seat,
        unsettled: Held,
        end: &mut TaskEnd,
    ) -> Option<RunInPhp> {
        let left = |lease| self.shared.triage.app.clock.until(lease);
        let lease = self.lease().map(|lease| Instant::now() + left(lease));
        let reserved = match &self.job.delivery {
            Some(delivery) => named(delivery, info.attempts),
            None => Arc::clone(&self.job.ticket),
        };
        let Some(mut run) = seat.run(Arc::clone(&info), &reserved, lease) else {
            end.was_declined = true;
            self.give_back().await;
            return None;
        };
        let began = Instant::now();
        let mut course = Course {
            unsettled: Some(unsettled),
            ..Course::default()
        };
        let over = self.follow(&info, &mut run, &mut course, began).await;
        let elapsed = run.began().unwrap_or(began).elapsed();
        let seen = RunInPhp {
            end: EndInPhp::of(course.fate.as_ref()),
            thrown: course.thrown.clone(),
            elapsed,
        };
        if course.is_settled {
            self.tell_rest(&info, &course, matches!(over, Over::Done), elapsed);
            drop(course.failing.take());
            if let Some((recording, begun)) = course.recording.take() {
                self.wait_until_recorded(recording, begun).await;
                course.unsettled = None;
            }
            return Some(seen);
        }
        let judged = match (course.fate.take(), over) {
            (None, Over::Declined) => {
                end.was_declined = true;
                self.give_back().await;
                return None;
            }
            (Some(fate), _) => self.judged(&info, fate, &course),
            (None, over) => {
                if !matches!(over, Over::Done) {
                    log_thrown(&info, &course);
                }
                Judged::left(unsettled_by_php(&info, over, &mut course))
            }
        };
        end.was_cut = judged.outcome == Outcome::Stopped;
        if end.was_cut {
            self.log_cut(&info, elapsed);
        }
        self.end(judged, &info, elapsed).await;
        (!end.was_cut).then_some(seen)
    }

    /// Handles PHP's reports until the attempt is over.
    async fn follow(
        &self,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut Course,
        began: Instant,
    ) -> Over {
        let timeout = Rules::of(&info.payload.limits, &self.shared.terms.defaults).timeout;
        let timeout = timeout.filter(|_| self.shared.terms.has_timeouts);
        let mut watch = Watch::new(timeout, began);
        let cut = &self.shared.stops.cut;
        loop {
            match watch.next(run, cut, course.has_end()).await {
                Wake::Said(said) => {
                    let is_declined = matches!(said, Some(Said::Declined));
                    if !is_declined && watch.announced.take().is_some() {
                        self.announce(info, run.began().unwrap_or(began));
                    }
                    let over = self.hear(said, info, run, course, &mut watch).await;
                    if let Some(over) = over {
                        return over;
                    }
                }
                Wake::Announce => {
                    watch.announced = None;
                    self.announce(info, run.began().unwrap_or(began));
                }
                Wake::Cut if course.has_end() => {
                    // The job will not run again: work that is cut off now would never be done.
                    watch.has_time = true;
                    let last = Instant::now() + BEHIND_THE_END;
                    watch.deadline = Some(watch.deadline.map_or(last, |it| it.min(last)));
                }
                Wake::Cut => {
                    watch.is_cut = true;
                    run.kill();
                    watch.deadline = Some(Instant::now() + DEATH);
                }
                // The process hangs in the system and even SIGKILL does not end it. Do not wait for further reports.
                Wake::Deadline if watch.is_cut => return Over::Cut,
                Wake::Deadline => {
                    run.kill();
                    watch.is_cut = watch.has_time;
                    course.has_timed_out |= !watch.has_time;
                    watch.deadline = watch.has_time.then(|| Instant::now() + DEATH);
                }
            }
        }
    }

    /// Handles one report of PHP; returns how the attempt ended if it is over.
    async fn hear(
        &self,
        said: Option<Said>,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut Course,
        watch: &mut Watch,
    ) -> Option<Over> {
        match said {
            Some(Said::Deleted { last }) => {
                // After a release there is nothing left to delete.
                course.fate.get_or_insert(Fate::Deleted);
                let is_settled =
                    course.is_settled || self.settle_early(info, course, run, last).await;
                if !last {
                    run.answer(is_settled);
                }
            }
            // The last report counts, and a release after a deletion brings the job back. A failed job stays
            // failed.
            Some(Said::Released { delay }) if !matches!(course.fate, Some(Fate::Failed { .. })) => {
                course.fate = Some(Fate::Released(Said::wait(delay)));
            }
            Some(Said::Failed {
                class,
                message,
                exception,
                logged,
            }) => {
                let fate = Fate::Failed {
                    failure: FailureText::new(class, message),
                    text: exception,
                    is_logged: logged,
                };
                self.hear_failure(fate, info, run, course, watch).await;
            }
            Some(Said::Exception { class, message }) => {
                let thrown = FailureText::new(class, message);
                course.thrown = Some(thrown);
                if course.is_settled {
                    log_thrown(info, course);
                }
            }
            Some(Said::Timeout) => course.has_timed_out = true,
            Some(Said::Done) => return Some(Over::Done),
            Some(Said::Declined) => return Some(Over::Declined),
            Some(Said::Ended(_)) | None if watch.is_cut => return Some(Over::Cut),
            Some(Said::Ended(how)) => {
                // Before Laravel 9, Laravel does not report its own timeouts.
                course.has_timed_out |= is_over_time(watch.timeout, run);
                return Some(Over::Ended(how));
            }
            None => return Some(Over::Ended("its place in the pool is gone".to_owned())),
            Some(
                Said::Released { .. }
                | Said::Booted(_)
                | Said::Ready { .. }
                | Said::Paused
                | Said::Progress { .. }
                | Said::Answer { .. }
                | Said::Parting
                | Said::Unbootable { .. },
            ) => {}
        }
        None
    }

    /// Settles a failed job, and lets PHP continue with what follows the failure.
    async fn hear_failure(
        &self,
        fate: Fate,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut Course,
        watch: &mut Watch,
    ) {
        let is_settled = course.is_settled || {
            course.has_timed_out |= fate.is_timeout() || is_over_time(watch.timeout, run);
            course.fate = Some(fate);
            self.settle_failure(info, course, run).await
        };
        run.answer(is_settled);
        // What follows a failure gets at least as long as what follows a timeout.
        let least = Instant::now() + AFTER_TIMEOUT;
        watch.deadline = watch.deadline.map(|deadline| deadline.max(least));
    }

    /// Writes to the queue that the job has failed; true if that was done. PHP waits for the answer.
    ///
    /// As in Laravel, which frees locks, counts batches and calls `failed()` only once the job has left the queue.
    /// If the server is away, this waits for it.
    async fn settle_failure(&self, info: &Arc<JobInfo>, course: &mut Course, run: &Run) -> bool {
        let elapsed = run.began().map_or(Duration::ZERO, |began| began.elapsed());
        let Some(fate) = course.fate.clone() else {
            return false;
        };
        let fate = self.with_cause(fate, info).await;
        let judged = self.judged(info, fate, course);
        course.is_settled = true;
        course.failing = self.shared.recording.as_ref().map(Recordings::failing);
        log_judged(info, &judged, elapsed);
        // A job that has failed itself runs on, and returns or throws.
        let is_in_part = !course.has_timed_out;
        let mut ending = self.ending(judged, info, elapsed);
        if let Report::Ended(end) = &mut ending.report {
            end.is_raised_by_php = true;
            if is_in_part {
                end.tell_only_failure();
            }
        }
        course.recording = self.recording_of(&ending.settlement);
        let settled = self.settle_and_wait(ending).await;
        // The process is ready for its next job before the failure is recorded, and must not get it then.
        if course.recording.is_none() {
            course.unsettled = None;
        }
        course.told_in_part = settled.filter(|_| is_in_part);
        settled == Some(Settled::Done)
    }

    /// A failure that says nothing about the error gets the job's last error as its cause, as PHP prints it.
    async fn with_cause(&self, fate: Fate, info: &JobInfo) -> Fate {
        let Fate::Failed {
            failure,
            text,
            is_logged,
        } = fate
        else {
            return fate;
        };
        let errors = &self.shared.triage.app.last_errors;
        let Some(error) = errors.behind(info, &failure).await else {
            return Fate::Failed {
                failure,
                text,
                is_logged,
            };
        };
        Fate::Failed {
            text: format!("{error}\n\nNext {text}"),
            failure: failure.caused_by(error),
            is_logged,
        }
    }

    /// Tells what came after a failure that is told already.
    fn tell_rest(&self, info: &Arc<JobInfo>, course: &Course, is_done: bool, elapsed: Duration) {
        let (Some(settled), Some(Fate::Failed { failure, .. })) =
            (course.told_in_part, &course.fate)
        else {
            return;
        };
        let judged = Judged {
            outcome: course.outcome(),
            decision: Decision::Fail(failure.clone()),
            effects: Vec::new(),
        };
        if let Report::Ended(mut end) = self.ending(judged, info, elapsed).report {
            end.is_raised_by_php = true;
            end.tell_rest(is_done);
            end.emit(&self.shared.observers, settled == Settled::Gone);
        }
    }

    /// Writes to the queue that the job was deleted although its code still runs; false if that could not be done.
    ///
    /// A job that deletes itself and then works on must not run twice: PHP waits until it is deleted, as in Laravel.
    /// If Laravel is done with it (`last`), its worker loop goes on.
    async fn settle_early(
        &self,
        info: &Arc<JobInfo>,
        course: &mut Course,
        run: &Run,
        last: bool,
    ) -> bool {
        let elapsed = run.began().map_or(Duration::ZERO, |began| began.elapsed());
        let Some(fate) = course.fate.clone() else {
            return false;
        };
        let judged = self.judged(info, fate, course);
        course.is_settled = true;
        if !last {
            let ending = self.told(judged, info, elapsed).await;
            return self.settle_and_wait(ending).await.is_some();
        }
        self.end(judged, info, elapsed).await;
        course.unsettled = None;
        if let Some(pool) = &self.shared.pool
            && pool.size() == 1
        {
            // With the end settled, its process may be given the next job.
            pool.changed();
        }
        true
    }

    /// Converts what Laravel has done with the job into outcome, decision and effects.
    fn judged(&self, info: &Arc<JobInfo>, fate: Fate, course: &Course) -> Judged {
        let outcome = course.outcome();
        match fate {
            Fate::Deleted => Judged {
                outcome,
                decision: Decision::Delete,
                effects: Vec::new(),
            },
            Fate::Released(delay) => {
                let after_exception = outcome.thrown().is_some();
                let wait = self.wait_of_unreadable(info).filter(|_| after_exception);
                Judged {
                    outcome,
                    decision: Decision::Release {
                        delay: wait.map_or(delay, |wait| wait.max(delay)),
                        after_exception,
                    },
                    effects: Vec::new(),
                }
            }
            Fate::Failed {
                failure,
                text,
                is_logged,
            } => {
                let outcome = if course.has_timed_out {
                    Outcome::TimedOut
                } else {
                    outcome
                };
                let effects = if is_logged {
                    Vec::new()
                } else {
                    vec![self.failed_job(info, text)]
                };
                Judged {
                    outcome,
                    decision: Decision::Fail(failure),
                    effects,
                }
            }
        }
    }

    /// The least wait of a job whose data PHP could not read; without it the job would come back at once,
    /// endlessly.
    fn wait_of_unreadable(&self, info: &JobInfo) -> Option<Duration> {
        let rules = Rules::of(&info.payload.limits, &self.shared.terms.defaults);
        let wait = rules.wait_of_unreadable(info.attempts)?;
        let command = Command::of(&info.payload).map(|command| {
            // An encrypted command may have been read by PHP alone.
            let is_read = |command: Command| command.to_value().is_ok();
            info.payload.is_encrypted() || command.is_none_or(is_read)
        });
        (!command.unwrap_or(false)).then_some(wait)
    }

    /// Waits until the last job of a single PHP process is settled; false if the worker has to stop first.
    pub(super) async fn follows(&self) -> bool {
        if !self.shared.pops_behind_deletion() {
            return true;
        }
        tokio::select! {
            biased;
            () = self.shared.settlements.handed.settled() => true,
            () = self.shared.stops.cut.cancelled() => false,
        }
    }

    /// Puts a job that did not run back where it was.
    pub(crate) async fn give_back(&self) {
        self.settle_for_php(Ending::put_back()).await;
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
        let circumstances = self.circumstances(info, elapsed, Instant::now(), Heard::default());
        Ending::of(outcome, decision, effects, &circumstances)
    }

    /// The end, of which the log, the job's last error and observers of exceptions have been told.
    async fn told(&self, judged: Judged, info: &Arc<JobInfo>, elapsed: Duration) -> Ending {
        log_judged(info, &judged, elapsed);
        if !matches!(judged.decision, Decision::Fail(_)) {
            self.keep_error(info, &judged.outcome, &judged.decision)
                .await;
            self.emit_exception(info, &judged.outcome, elapsed);
        }
        self.ending(judged, info, elapsed)
    }

    async fn end(&self, judged: Judged, info: &Arc<JobInfo>, elapsed: Duration) {
        let ending = self.told(judged, info, elapsed).await;
        let recording = self.recording_of(&ending.settlement);
        self.settle_for_php(ending).await;
        if let Some((recording, begun)) = recording {
            self.wait_until_recorded(recording, begun).await;
        }
    }

    /// The recorder's progress before a job is settled; `None` if the next job need not wait for the record.
    ///
    /// Laravel reads a batch and then writes it in one transaction, which `SQLite` refuses if another process
    /// wrote in between. With a single PHP process Laravel never runs into that, so it must not happen here
    /// either.
    fn recording_of(&self, settlement: &Settlement) -> Option<(watch::Receiver<Passes>, u64)> {
        let recording = self.shared.recording.as_ref()?.passes();
        let begun = recording.borrow().begun;
        (self.shared.has_one_member() && matches!(settlement, Settlement::Finish(_)))
            .then_some((recording, begun))
    }

    /// Waits for the end of the first pass over the spool that began after `begun`.
    async fn wait_until_recorded(&self, mut recording: watch::Receiver<Passes>, begun: u64) {
        let has_ended = |passes: &Passes| passes.ended > begun || passes.is_refused;
        tokio::select! {
            // Ends also when the recorder is gone.
            _ = recording.wait_for(has_ended) => {}
            () = self.shared.stops.cut.cancelled() => {}
            () = tokio::time::sleep(RECORDING) => {}
        }
    }
}

/// Logs how a job ended that PHP ran, and that it failed for good.
fn log_judged(info: &JobInfo, judged: &Judged, elapsed: Duration) {
    let Judged {
        outcome, decision, ..
    } = judged;
    log_outcome(info, outcome, decision, false, elapsed);
    if let Decision::Fail(failure) = decision {
        log_failure(info, failure, elapsed);
    }
}

/// Logs an exception, unless it is the failure of the job, which is logged already.
fn log_thrown(info: &JobInfo, course: &Course) {
    let decision = match &course.fate {
        Some(Fate::Failed { failure, .. }) => Decision::Fail(failure.clone()),
        _ => Decision::Leave,
    };
    if course.thrown.is_some() {
        log_outcome(info, &course.outcome(), &decision, false, Duration::ZERO);
    }
}

/// Whether an attempt has run for longer than it may.
fn is_over_time(timeout: Option<Duration>, run: &Run) -> bool {
    let elapsed = run.began().map(|began| began.elapsed());
    timeout
        .zip(elapsed)
        .is_some_and(|(timeout, elapsed)| elapsed >= timeout)
}

/// The outcome of a job whose end PHP did not report: it stays reserved, or goes back if the worker has cut it
/// off.
fn unsettled_by_php(info: &JobInfo, over: Over, course: &mut Course) -> Outcome {
    match over {
        Over::Cut => Outcome::Stopped,
        Over::Ended(_) if course.has_timed_out => Outcome::TimedOut,
        Over::Ended(how) => {
            let name = info.payload.shown_name();
            let message = format!("the PHP process that ran {name} ended: {how}");
            Outcome::Lost(FailureText::new("Artisand\\PhpProcessEnded", message))
        }
        Over::Done | Over::Declined => match course.thrown.take() {
            Some(thrown) => Outcome::threw(thrown),
            None => Outcome::Finished,
        },
    }
}
