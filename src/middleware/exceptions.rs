//! Patterns for the exceptions of a job, and `FailOnException`.

use std::sync::Arc;

use crate::handler::{BoxError, JobContext, ModelNotFound, Next, Panicked};
use crate::payload::Pattern;
use crate::shown::with_causes;

/// Tests whether an error matches.
type Test = Arc<dyn Fn(&BoxError) -> bool + Send + Sync>;

/// Class under which a handler's error is recorded.
pub(crate) const HANDLER_ERROR: &str = "Artisand\\HandlerError";
/// Class under which a handler's panic is recorded.
pub(crate) const HANDLER_PANIC: &str = "Artisand\\HandlerPanic";
/// Class under which a missing model is recorded, as in PHP.
pub(crate) const MODEL_NOT_FOUND: &str = "Illuminate\\Database\\Eloquent\\ModelNotFoundException";

/// Patterns for exceptions in a mapping: they match the recorded class or the text.
#[derive(Debug, Clone)]
pub struct Exceptions(Vec<Pattern>);

impl Exceptions {
    /// Exceptions that match one of the patterns: against the class alone, or `Class: message` with all causes.
    pub fn new(patterns: impl IntoIterator<Item = Pattern>) -> Self {
        Self(patterns.into_iter().collect())
    }

    /// Whether one of the patterns matches this error.
    pub fn include(&self, error: &BoxError) -> bool {
        let class = match &**error {
            error if ModelNotFound::within(error).is_some() => MODEL_NOT_FOUND,
            error if error.is::<Panicked>() => HANDLER_PANIC,
            _ => HANDLER_ERROR,
        };
        let text = format!("{class}: {}", with_causes(&**error));
        let is_meant = |pattern: &Pattern| pattern.matches(class) || pattern.matches(&text);
        self.0.iter().any(is_meant)
    }
}

/// Fails a job for good on certain exceptions, even if it has attempts left.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\FailOnException` (Laravel 12.16 and later).
#[derive(Clone)]
pub struct FailOnException(Test);

impl std::fmt::Debug for FailOnException {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("FailOnException")
    }
}

impl FailOnException {
    /// Fails the job on errors for which the test returns true.
    pub fn when(test: impl Fn(&BoxError) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(test))
    }

    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let Err(error) = next.run().await else {
            return Ok(());
        };
        // A run that was cut off by its timeout or the worker's stop did not throw an exception.
        if !context.is_cancelled() && (self.0)(&error) {
            context.fail(with_causes(&*error));
        }
        Err(error)
    }
}

middleware!(FailOnException);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exceptions_are_named_by_their_class_or_by_what_they_say() {
        let error = || BoxError::from("status 422: no such address");
        let panic = || BoxError::from(Panicked("status 422".into()));
        #[rustfmt::skip]
        let rows = [
            (r"artisand\handlererror",   error(), true),
            (r"Artisand\HandlerError",   panic(), false),
            (r"Artisand\HandlerPanic",   panic(), true),
            (r"Artisand\*",              panic(), true),
            ("/status 4\\d\\d/",         error(), true),
            ("/^Artisand.HandlerError: status 422/", error(), true),
            ("/status 5/",               error(), false),
            (r"App\Exceptions\*",        error(), false),
        ];
        for (pattern, error, expected) in rows {
            let exceptions = Exceptions::new([Pattern::parse(pattern).unwrap()]);
            assert_eq!(exceptions.include(&error), expected, "{pattern} {error}");
        }
    }
}
