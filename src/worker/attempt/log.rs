//! Log lines about attempts.

use std::time::Duration;

use tracing::field::debug;

use crate::handler::{FailureText, JobInfo};
use crate::middleware::{HANDLER_ERROR, HANDLER_PANIC};
use crate::payload::JobUuid;
use crate::shown::{self, rounded};
use crate::worker::attempt::decide::Decision;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::last_errors;

/// Logs that a job has failed for good: the only line about it at level ERROR, so that an alert counts it once.
pub(crate) fn log_failure(info: &JobInfo, failure: &FailureText, elapsed: Duration) {
    tracing::error!(
        job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
        job.class = &*info.payload.shown_name(),
        attempts = info.attempts,
        // Logged as text, which is quoted: content of a payload or a program cannot forge a log line.
        reason = &*shown::short(&failure.to_string()),
        last_error = last_errors::of(failure).map(shown::short).as_deref(),
        // A job may fail before it runs.
        elapsed = (!elapsed.is_zero()).then(|| debug(rounded(elapsed))),
        "job failed for good"
    );
}

/// Whether the log line about a job that failed for good says how its last attempt ended.
fn is_said_by(decision: &Decision, outcome: &Outcome) -> bool {
    match (decision, outcome) {
        (
            Decision::Fail(failure),
            Outcome::Threw {
                failure: thrown, ..
            }
            | Outcome::ModelMissing {
                failure: thrown, ..
            },
        ) => failure == thrown,
        (Decision::Fail(_), Outcome::TimedOut) => true,
        _ => false,
    }
}

/// How long the job waits for its next attempt, for a log line; `None` if it does not wait.
fn retry_delay(decision: &Decision) -> Option<Duration> {
    match decision {
        Decision::Release { delay, .. } | Decision::ReleaseUncounted { delay } => {
            (!delay.is_zero()).then(|| rounded(*delay))
        }
        _ => None,
    }
}

/// The error of a handler; its class says something only if the handler named one.
fn without_handler_error(failure: &FailureText) -> String {
    match &*failure.class {
        HANDLER_ERROR => failure.message.clone(),
        _ => failure.to_string(),
    }
}

/// Logs how an attempt ended, except where another log line says that together with what becomes of the job.
pub(crate) fn log_outcome(
    info: &JobInfo,
    outcome: &Outcome,
    decision: &Decision,
    is_stuck: bool,
    elapsed: Duration,
) {
    if is_said_by(decision, outcome) && !is_stuck {
        return;
    }
    let elapsed = rounded(elapsed);
    let retry_in = retry_delay(decision).map(debug);
    macro_rules! log {
        ($level:ident, $message:literal $(, $($field:tt)+)?) => {
            tracing::$level!(
                job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
                job.class = &*info.payload.shown_name(),
                attempts = info.attempts,
                $($($field)+,)?
                $message
            )
        };
    }
    match outcome {
        Outcome::Finished => log!(debug, "job finished", ?elapsed),
        Outcome::ModelMissing { failure, .. } => {
            log!(
                info,
                "a model of the job is gone",
                error = &*shown::short(&failure.message)
            );
        }
        Outcome::Threw { failure, .. } if failure.class == HANDLER_PANIC => {
            log!(
                warn,
                "job panicked",
                retry_in,
                message = &*shown::short(&failure.message)
            );
        }
        Outcome::Threw { failure, .. } => {
            let error = without_handler_error(failure);
            log!(warn, "job threw", retry_in, error = &*shown::short(&error));
        }
        Outcome::TimedOut if is_stuck => log!(
            error,
            "job timed out and its blocking handler does not return; the worker stops after its other jobs"
        ),
        Outcome::TimedOut => log!(warn, "job timed out", retry_in, ?elapsed),
        Outcome::Lost(failure) => log!(
            error,
            "the PHP process that ran a job ended: the job stays reserved until `retry_after`",
            how = &*shown::short(&failure.message)
        ),
        Outcome::Stopped if is_stuck => log!(
            warn,
            "job cancelled and its blocking handler does not return; the job waits until the process has surely ended"
        ),
        // Logged together with what becomes of the job.
        Outcome::Stopped => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_one_line_of_the_log_unless_its_last_attempt_ended_otherwise() {
        let one = || FailureText::new("E", "one");
        let other = || FailureText::new("E", "other");
        let fail = || Decision::Fail(one());
        let release = || Decision::Release {
            delay: Duration::ZERO,
            after_exception: true,
        };
        let missing = |failure| Outcome::ModelMissing {
            failure,
            deletes: false,
        };
        #[rustfmt::skip]
        let rows = [
            (fail(),          Outcome::threw(one()),   true),
            (fail(),          missing(one()),          true),
            (fail(),          Outcome::TimedOut,       true),
            // The job has failed itself and then threw something else.
            (fail(),          Outcome::threw(other()), false),
            (fail(),          missing(other()),        false),
            (fail(),          Outcome::Finished,       false),
            (fail(),          Outcome::Lost(one()),    false),
            (release(),       Outcome::threw(one()),   false),
            (Decision::Leave, Outcome::TimedOut,       false),
        ];
        for (decision, outcome, expected) in rows {
            let said = is_said_by(&decision, &outcome);
            assert_eq!(said, expected, "{decision:?} {outcome:?}");
        }
    }
}
