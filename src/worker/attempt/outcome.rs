//! How an attempt ended, as one value: error, panic, timeout or stop of a handler, or PHP's report about a job.

use crate::handler::{BoxError, FailureText, InputError, ModelNotFound, Panicked, panic_text};
use crate::middleware::{HANDLER_ERROR, HANDLER_PANIC, MODEL_NOT_FOUND};

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It returned without an exception.
    Finished,
    /// It threw an exception: an error or a panic.
    Threw {
        /// What was thrown.
        failure: FailureText,
        /// Whether the job's data did not fit its handler, so that no later attempt of this program can succeed.
        is_unreadable: bool,
    },
    /// A model of the job is gone.
    ModelMissing {
        /// Laravel's exception.
        failure: FailureText,
        /// Whether jobs of this class are then deleted.
        deletes: bool,
    },
    /// It ran longer than its timeout.
    TimedOut,
    /// The worker stopped first.
    Stopped,
    /// The PHP process that ran the job ended.
    Lost(FailureText),
}

impl Outcome {
    /// The outcome of an exception.
    pub(crate) fn threw(failure: FailureText) -> Self {
        Self::Threw {
            failure,
            is_unreadable: false,
        }
    }

    /// The outcome of a handler's result; `deletes` says whether the job is deleted if one of its models is gone.
    pub(crate) fn of(
        result: Result<Result<(), BoxError>, Box<dyn std::any::Any + Send>>,
        deletes: impl FnOnce() -> bool,
    ) -> Self {
        let panicked = |message| Self::threw(FailureText::new(HANDLER_PANIC, message));
        let error = match result {
            Ok(Ok(())) => return Self::Finished,
            Ok(Err(error)) => error,
            Err(panic) => return panicked(panic_text(&*panic)),
        };
        let error = match error.downcast::<Panicked>() {
            Ok(panic) => return panicked(panic.0),
            Err(error) => error,
        };
        match ModelNotFound::within(&*error) {
            Some(missing) => Self::ModelMissing {
                failure: FailureText::new(MODEL_NOT_FOUND, missing.to_string()),
                deletes: deletes(),
            },
            None => Self::Threw {
                failure: FailureText::of(HANDLER_ERROR, &*error),
                is_unreadable: error.is::<InputError>(),
            },
        }
    }

    /// The exception to report for this attempt, if there is one.
    pub(crate) fn thrown(&self) -> Option<&FailureText> {
        match self {
            Self::Threw { failure, .. } => Some(failure),
            _ => None,
        }
    }
}
