//! What PHP has reported about a running attempt.

use std::time::Duration;

use tokio::sync::watch;

use crate::handler::{EndInPhp, FailureText, JobInfo};
use crate::outbox::failed_jobs::{Failing, Sweeps};
use crate::queue::Settled;
use crate::worker::attempt::decide::Decision;
use crate::worker::attempt::log::log_outcome;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::gauge::Held;

/// What Laravel did with the job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum PhpOutcome {
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

impl PhpOutcome {
    /// Whether it is the failure of a job that ran too long.
    pub(super) fn is_timeout(&self) -> bool {
        const TIMEOUT: &str = "Illuminate\\Queue\\TimeoutExceededException";
        matches!(self, Self::Failed { failure, .. } if failure.class == TIMEOUT)
    }
}

impl EndInPhp {
    pub(super) fn of(fate: Option<&PhpOutcome>) -> Self {
        match fate {
            Some(PhpOutcome::Deleted) => Self::Deleted,
            Some(PhpOutcome::Released(delay)) => Self::Released { delay: *delay },
            Some(PhpOutcome::Failed { failure, .. }) => Self::Failed(failure.clone()),
            None => Self::Left,
        }
    }
}

/// What is known about a running attempt.
#[derive(Debug, Default)]
pub(super) struct PhpAttempt {
    pub(super) fate: Option<PhpOutcome>,
    /// The exception, if Laravel has reported one.
    pub(super) thrown: Option<FailureText>,
    /// How the job's failure was settled, if its event was emitted and those after it were not.
    pub(super) emitted_failure: Option<Settled>,
    pub(super) has_timed_out: bool,
    /// Whether observers have been told that the job has begun.
    pub(super) is_announced: bool,
    /// Whether the end of the job was given to the settler.
    pub(super) is_end_sent: bool,
    /// Counts the job until its end is settled, or its deletion sent.
    pub(super) unsettled: Option<Held>,
    /// Delays the record of the failure while PHP writes what follows `fail()`, such as a batch.
    pub(super) failing: Option<Failing>,
    /// The recorder's progress and its value at the failure, if the next job has to wait for the record.
    pub(super) recording: Option<(watch::Receiver<Sweeps>, u64)>,
}

impl PhpAttempt {
    /// How the attempt ended, as far as Laravel has reported it.
    pub(super) fn outcome(&self) -> Outcome {
        match &self.thrown {
            Some(thrown) => Outcome::threw(thrown.clone()),
            None => Outcome::Finished,
        }
    }

    /// Whether the job has ended for good, and PHP works on what follows the end.
    pub(super) fn has_end(&self) -> bool {
        matches!(
            self.fate,
            Some(PhpOutcome::Deleted | PhpOutcome::Failed { .. })
        )
    }

    /// The outcome of a job whose end PHP did not report: it stays reserved, or goes back if the worker has cut it
    /// off.
    pub(super) fn outcome_without_report(&self, info: &JobInfo, over: RunEnd) -> Outcome {
        match over {
            RunEnd::Cut => Outcome::Stopped,
            RunEnd::Ended(_) if self.has_timed_out => Outcome::TimedOut,
            RunEnd::Ended(how) => {
                let name = info.payload.shown_name();
                let message = format!("the PHP process that ran {name} ended: {how}");
                Outcome::Lost(FailureText::new("Artisand\\PhpProcessEnded", message))
            }
            RunEnd::Done | RunEnd::Declined => self.outcome(),
        }
    }

    /// Logs an exception, unless it is the failure of the job, which is logged already.
    pub(super) fn log_thrown(&self, info: &JobInfo) {
        let decision = match &self.fate {
            Some(PhpOutcome::Failed { failure, .. }) => Decision::Fail(failure.clone()),
            _ => Decision::Leave,
        };
        if self.thrown.is_some() {
            log_outcome(info, &self.outcome(), &decision, false, Duration::ZERO);
        }
    }
}

/// Why PHP reports nothing more about an attempt.
pub(super) enum RunEnd {
    /// Laravel's loop has finished the job.
    Done,
    /// The job was not begun.
    Declined,
    /// The process has ended; the text says how.
    Ended(String),
    /// The worker stops, and the process was killed.
    Cut,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::test_support::{info, job};

    fn failed(class: &str) -> PhpOutcome {
        PhpOutcome::Failed {
            failure: FailureText::new(class, "m"),
            text: "m".to_owned(),
            is_logged: false,
        }
    }

    #[test]
    fn a_process_that_ends_without_a_report_leaves_its_job_as_a_killed_worker_would() {
        let thrown = || FailureText::new("E", "m");
        let course = |has_timed_out| PhpAttempt {
            has_timed_out,
            thrown: Some(thrown()),
            ..PhpAttempt::default()
        };
        let ended = || RunEnd::Ended("killed by signal 9".to_owned());
        let text = "the PHP process that ran App\\Jobs\\A ended: killed by signal 9";
        let lost = FailureText::new("Artisand\\PhpProcessEnded", text);
        #[rustfmt::skip]
        let rows = [
            (RunEnd::Cut,  true,  Outcome::Stopped),
            (ended(),    true,  Outcome::TimedOut),
            (ended(),    false, Outcome::Lost(lost)),
            (RunEnd::Done, false, Outcome::threw(thrown())),
        ];
        for (over, has_timed_out, expected) in rows {
            let course = course(has_timed_out);
            let found = course.outcome_without_report(&info(&job(1)), over);
            assert_eq!(found, expected);
        }
        assert_eq!(PhpAttempt::default().outcome(), Outcome::Finished);
    }

    #[test]
    fn only_a_deletion_and_a_failure_are_the_end_of_a_job() {
        let failure = FailureText::new("E", "m");
        let delay = Duration::from_secs(7);
        #[rustfmt::skip]
        let rows = [
            (None,                        false, EndInPhp::Left),
            (Some(PhpOutcome::Released(delay)), false, EndInPhp::Released { delay }),
            (Some(PhpOutcome::Deleted),         true,  EndInPhp::Deleted),
            (Some(failed("E")),           true,  EndInPhp::Failed(failure)),
        ];
        for (fate, has_end, end) in rows {
            assert_eq!(EndInPhp::of(fate.as_ref()), end);
            let course = PhpAttempt {
                fate,
                ..PhpAttempt::default()
            };
            assert_eq!(course.has_end(), has_end, "{course:?}");
        }
    }

    #[test]
    fn a_timeout_is_known_by_its_class() {
        assert!(failed("Illuminate\\Queue\\TimeoutExceededException").is_timeout());
        assert!(!failed("Illuminate\\Queue\\MaxAttemptsExceededException").is_timeout());
        assert!(!PhpOutcome::Deleted.is_timeout());
    }
}
