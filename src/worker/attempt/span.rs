//! The tracing span of a job: log lines of its handler name the job.

use tracing::Span;
use tracing::field::Empty;

use crate::handler::JobContext;
use crate::payload::JobUuid;

/// Most bytes of a log context that each line shows.
const MAX_CONTEXT: usize = 2048;

/// A span with the fields of the job, and its log context as JSON if there is one.
///
/// The span has level ERROR, so that it exists whenever anything is logged. Nothing is read or formatted unless a
/// subscriber listens. Formatters quote the text, so content of a payload cannot forge a log line.
pub(crate) fn of(context: &JobContext) -> Span {
    let payload = context.payload();
    let span = tracing::error_span!(
        "job",
        job.uuid = payload.uuid.as_ref().map(JobUuid::bounded),
        job.class = &*payload.shown_name(),
        queue = context.queue().as_str(),
        attempts = context.attempts(),
        trace = Empty,
        context = Empty,
    );
    if let Some(trace) = context.trace()
        && !span.is_disabled()
    {
        span.record("trace", format!("{:032x}", trace.ids.trace));
    }
    if let Some(shown) = &payload.context
        && !span.is_disabled()
        && !shown.is_empty()
    {
        span.record("context", shown.to_json(MAX_CONTEXT));
    }
    span
}
