//! The span of a job: what its handler logs says which job it was.

use tracing::Span;
use tracing::field::Empty;

use crate::handler::JobContext;
use crate::payload::JobUuid;

/// Most bytes of a log context that go into each line.
const MAX_CONTEXT: usize = 2048;

/// A span with the fields of the job, and its log context as JSON where there is one.
///
/// Of the level of errors, so that it is there whenever anything is logged.
/// Nothing is read or formatted unless somebody listens. All text is quoted by
/// whoever prints it: what a payload says forges no line.
pub(crate) fn of(context: &JobContext) -> Span {
    let payload = context.payload();
    let span = tracing::error_span!(
        "job",
        job.uuid = payload.uuid.as_ref().map(JobUuid::bounded),
        job.class = &*payload.shown_name(),
        queue = context.queue().as_str(),
        attempts = context.attempts(),
        context = Empty,
    );
    if let Some(shown) = &payload.context
        && !span.is_disabled()
        && !shown.is_empty()
    {
        span.record("context", shown.to_json(MAX_CONTEXT));
    }
    span
}
