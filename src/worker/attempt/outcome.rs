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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handler::JobContext;
    use crate::worker::test_support::job;

    #[derive(Debug, thiserror::Error)]
    #[error("could not save")]
    struct Save(#[source] BoxError);

    fn missing() -> ModelNotFound {
        ModelNotFound {
            class: "App\\Models\\Order".to_owned(),
            key: None,
        }
    }

    #[test]
    fn error_panic_and_missing_model_are_told_apart() {
        let misfit = || {
            let context = JobContext::of_payload(&job(1)).unwrap();
            let input: Result<Vec<u8>, _> = crate::handler::input(&context);
            BoxError::from(input.unwrap_err())
        };
        let io = || BoxError::from(std::io::Error::other("disk"));
        #[rustfmt::skip]
        let rows: [(Result<(), BoxError>, &str); 6] = [
            (Ok(()),                                  "finished"),
            (Err(io()),                               "Artisand\\HandlerError: disk"),
            (Err(Save(io()).into()),                  "Artisand\\HandlerError: could not save: disk"),
            // A panic behind middleware comes as an error.
            (Err(Panicked("a bug".to_owned()).into()), "Artisand\\HandlerPanic: a bug"),
            (Err(missing().into()),                   "missing"),
            (Err(Save(missing().into()).into()),      "missing"),
        ];
        for (result, expected) in rows {
            let found = match Outcome::of(Ok(result), || true) {
                Outcome::Finished => "finished".to_owned(),
                Outcome::Threw {
                    failure,
                    is_unreadable: false,
                } => failure.to_string(),
                Outcome::ModelMissing { deletes: true, .. } => "missing".to_owned(),
                other => format!("{other:?}"),
            };
            assert_eq!(found, expected);
        }
        let panic = std::panic::catch_unwind(|| panic!("a bug")).unwrap_err();
        let Outcome::Threw { failure, .. } = Outcome::of(Err(panic), || true) else {
            panic!("a panic");
        };
        assert!(failure.message.starts_with("a bug"), "{failure}");
        // Only another program can read what does not fit.
        let unreadable = Outcome::of(Ok(Err(misfit())), || true);
        let is_unreadable = matches!(
            unreadable,
            Outcome::Threw {
                is_unreadable: true,
                ..
            }
        );
        assert!(is_unreadable, "{unreadable:?}");
    }

    #[test]
    fn only_what_was_thrown_is_an_exception() {
        let failure = || FailureText::new("E", "m");
        assert_eq!(Outcome::threw(failure()).thrown(), Some(&failure()));
        let missing = Outcome::ModelMissing {
            failure: failure(),
            deletes: false,
        };
        let others = [
            Outcome::Finished,
            missing,
            Outcome::TimedOut,
            Outcome::Stopped,
            Outcome::Lost(failure()),
        ];
        for outcome in others {
            assert_eq!(outcome.thrown(), None, "{outcome:?}");
        }
    }
}
