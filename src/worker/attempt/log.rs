//! Log lines about attempts.

use std::time::Duration;

use crate::handler::{FailureText, JobInfo};
use crate::middleware::{HANDLER_ERROR, HANDLER_PANIC};
use crate::payload::JobUuid;
use crate::shown;
use crate::worker::attempt::outcome::Outcome;

/// Logs that the chain of a job that was run is broken.
pub(super) fn log_chain_error(info: &JobInfo, why: &str) {
    tracing::error!(
        job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
        job.class = &*info.payload.shown_name(),
        error = why,
        "a job was run, and its chain cannot go on"
    );
}

/// Logs that a job has failed for good.
pub(crate) fn log_failure(info: &JobInfo, failure: &FailureText) {
    tracing::error!(
        job.uuid = info.payload.uuid.as_ref().map(JobUuid::bounded),
        job.class = &*info.payload.shown_name(),
        attempts = info.attempts,
        // Logged as text, which is quoted: content of a payload or a program cannot forge a log line.
        reason = &*shown::short(&failure.to_string()),
        "job failed for good"
    );
}

/// Logs how an attempt ended, except where a later log line says what becomes of the job.
pub(crate) fn log_outcome(info: &JobInfo, outcome: &Outcome, is_stuck: bool, elapsed: Duration) {
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
                error,
                "job panicked",
                message = &*shown::short(&failure.message)
            );
        }
        Outcome::Threw { failure, .. } => {
            let error = match &*failure.class {
                HANDLER_ERROR => failure.message.clone(),
                _ => failure.to_string(),
            };
            log!(error, "job threw", error = &*shown::short(&error));
        }
        Outcome::TimedOut if is_stuck => log!(
            error,
            "job timed out and its blocking handler does not return; the worker stops after its other jobs"
        ),
        Outcome::TimedOut => log!(error, "job timed out", ?elapsed),
        Outcome::Lost(failure) => log!(
            error,
            "the PHP process that ran a job ended: the job stays reserved until `retry_after`",
            how = &*shown::short(&failure.message)
        ),
        // Logged together with what becomes of the job.
        Outcome::Stopped => {}
    }
}
