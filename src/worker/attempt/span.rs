//! The tracing span of a job: log lines of its handler name the job.

use tracing::Span;
use tracing::field::Empty;

use crate::handler::JobContext;
use crate::payload::{JobUuid, LogContext};

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
    if span.is_disabled() {
        return span;
    }
    if let Some(trace) = context.trace() {
        span.record("trace", trace.ids.trace_id());
    }
    if let Some(shown) = payload.context.as_deref().and_then(LogContext::shown) {
        span.record("context", shown);
    }
    span
}
