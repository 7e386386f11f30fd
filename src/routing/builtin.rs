//! Built-in handlers, which need no user code.

use crate::handler::{BoxError, BoxFuture, Handler, JobContext};
use crate::payload::JobUuid;

/// Logs each job and counts it as done (`handler = "log"`).
///
/// The line names the job; its data appears at `trace` level only.
#[derive(Debug, Clone, Copy)]
pub struct Log;

impl Handler for Log {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move {
            tracing::info!(
                job.uuid = context.uuid().map(JobUuid::bounded),
                job.class = &*context.payload().shown_name(),
                queue = %context.queue(),
                attempts = context.attempts(),
                "job logged"
            );
            if tracing::enabled!(tracing::Level::TRACE) {
                tracing::trace!(document = context.document()?, "job data");
            }
            Ok(())
        })
    }
}

/// Counts each job as done without looking at it (`handler = "discard"`).
#[derive(Debug, Clone, Copy)]
pub struct Discard;

impl Handler for Discard {
    fn handle(&self, _: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(std::future::ready(Ok(())))
    }
}
