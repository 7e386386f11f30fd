//! Handles PHP's reports about a job, and settles the job as soon as PHP waits for that.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::handler::{FailureText, JobInfo};
use crate::outbox::failed_jobs::Recordings;
use crate::process::pool::{PoolMessage, Run};
use crate::queue::Settled;
use crate::worker::attempt::Attempt;
use crate::worker::attempt::decide::Decision;
use crate::worker::attempt::ending::EndReport;
use crate::worker::attempt::php::course::{PhpAttempt, PhpOutcome, RunEnd};
use crate::worker::attempt::php::deadlines::Deadlines;
use crate::worker::attempt::php::judged::{Judged, log_judged};

impl Attempt {
    /// Handles one report of PHP; returns how the attempt ended if it is over.
    pub(super) async fn on_report(
        &self,
        said: Option<PoolMessage>,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut PhpAttempt,
        deadlines: &mut Deadlines,
    ) -> Option<RunEnd> {
        match said {
            Some(PoolMessage::Deleted { last }) => {
                self.on_deletion(last, info, run, course).await;
            }
            // The last report counts; a failed job stays failed.
            Some(PoolMessage::Released { delay })
                if !matches!(course.fate, Some(PhpOutcome::Failed { .. })) =>
            {
                course.fate = Some(PhpOutcome::Released(PoolMessage::wait(delay)));
            }
            Some(PoolMessage::Failed {
                class,
                message,
                exception,
                logged,
            }) => {
                let fate = PhpOutcome::Failed {
                    failure: FailureText::new(class, message),
                    text: exception,
                    is_logged: logged,
                };
                self.on_failure(fate, info, run, course, deadlines).await;
            }
            Some(PoolMessage::Exception { class, message }) => {
                course.thrown = Some(FailureText::new(class, message));
                if course.is_end_sent {
                    course.log_thrown(info);
                }
            }
            Some(PoolMessage::Timeout) => course.has_timed_out = true,
            Some(PoolMessage::Done) => return Some(RunEnd::Done),
            Some(PoolMessage::Declined) => return Some(RunEnd::Declined),
            Some(PoolMessage::Ended(_)) | None if deadlines.is_cut() => return Some(RunEnd::Cut),
            Some(PoolMessage::Ended(how)) => {
                // Before Laravel 9, Laravel does not report its own timeouts.
                course.has_timed_out |= deadlines.is_over_time(run.began());
                return Some(RunEnd::Ended(how));
            }
            None => return Some(RunEnd::Ended("its place in the pool is gone".to_owned())),
            Some(
                PoolMessage::Released { .. }
                | PoolMessage::Booted(_)
                | PoolMessage::Ready { .. }
                | PoolMessage::Paused
                | PoolMessage::Progress { .. }
                | PoolMessage::Answer { .. }
                | PoolMessage::Parting
                | PoolMessage::Unbootable { .. },
            ) => {}
        }
        None
    }

    /// Settles a deleted job, and lets PHP continue if it waits for that.
    async fn on_deletion(
        &self,
        last: bool,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut PhpAttempt,
    ) {
        // After a release there is nothing left to delete.
        course.fate.get_or_insert(PhpOutcome::Deleted);
        let is_settled = course.is_end_sent || self.settle_early(info, course, run, last).await;
        if !last {
            run.answer(is_settled);
        }
    }

    /// Settles a failed job, and lets PHP continue with what follows the failure.
    async fn on_failure(
        &self,
        fate: PhpOutcome,
        info: &Arc<JobInfo>,
        run: &mut Run,
        course: &mut PhpAttempt,
        deadlines: &mut Deadlines,
    ) {
        let is_settled = course.is_end_sent || {
            course.has_timed_out |= fate.is_timeout() || deadlines.is_over_time(run.began());
            course.fate = Some(fate);
            self.settle_failure(info, course, run).await
        };
        run.answer(is_settled);
        deadlines.note_failure(Instant::now());
    }

    /// Writes to the queue that the job has failed; true if that was done. PHP waits for the answer.
    ///
    /// As in Laravel, which frees locks, counts batches and calls `failed()` only once the job has left the queue.
    /// If the server is away, this waits for it.
    async fn settle_failure(
        &self,
        info: &Arc<JobInfo>,
        course: &mut PhpAttempt,
        run: &Run,
    ) -> bool {
        let elapsed = run.began().map_or(Duration::ZERO, |began| began.elapsed());
        let Some(fate) = course.fate.clone() else {
            return false;
        };
        let fate = self.with_cause(fate, info).await;
        let judged = self.judged(info, fate, course);
        course.is_end_sent = true;
        course.failing = self.shared.recording.as_ref().map(Recordings::failing);
        log_judged(info, &judged, elapsed);
        // A job that has failed itself runs on, and returns or throws.
        let runs_on = !course.has_timed_out;
        let mut ending = self.ending(judged, info, elapsed);
        if let EndReport::Ended(end) = &mut ending.report {
            end.raised_by_php.failure_in_process = true;
            if runs_on {
                end.keep_only_failure();
            }
        }
        course.recording = self.recording_of(&ending.settlement);
        let settled = self.settle_and_wait(ending).await;
        // The process is ready for its next job before the failure is recorded, and must not get it then.
        if course.recording.is_none() {
            course.unsettled = None;
        }
        course.emitted_failure = settled.filter(|_| runs_on);
        settled == Some(Settled::Done)
    }

    /// A failure that says nothing about the error gets the job's last error as its cause, as PHP prints it.
    async fn with_cause(&self, fate: PhpOutcome, info: &JobInfo) -> PhpOutcome {
        let PhpOutcome::Failed {
            failure,
            text,
            is_logged,
        } = fate
        else {
            return fate;
        };
        let errors = &self.shared.triage.app.last_errors;
        let Some(error) = errors.behind(info, &failure).await else {
            return PhpOutcome::Failed {
                failure,
                text,
                is_logged,
            };
        };
        PhpOutcome::Failed {
            text: format!("{error}\n\nNext {text}"),
            failure: failure.caused_by(error),
            is_logged,
        }
    }

    /// Emits the events after a failure whose own event was emitted already.
    pub(super) fn emit_rest(
        &self,
        info: &Arc<JobInfo>,
        course: &PhpAttempt,
        is_done: bool,
        elapsed: Duration,
    ) {
        let (Some(settled), Some(PhpOutcome::Failed { failure, .. })) =
            (course.emitted_failure, &course.fate)
        else {
            return;
        };
        let judged = Judged {
            outcome: course.outcome(),
            decision: Decision::Fail(failure.clone()),
            effects: Vec::new(),
        };
        if let EndReport::Ended(mut end) = self.ending(judged, info, elapsed).report {
            end.raised_by_php.failure_in_process = true;
            end.keep_rest(is_done);
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
        course: &mut PhpAttempt,
        run: &Run,
        last: bool,
    ) -> bool {
        let elapsed = run.began().map_or(Duration::ZERO, |began| began.elapsed());
        let Some(fate) = course.fate.clone() else {
            return false;
        };
        let judged = self.judged(info, fate, course);
        course.is_end_sent = true;
        if !last {
            let ending = self.prepare_ending(judged, info, elapsed).await;
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
}
