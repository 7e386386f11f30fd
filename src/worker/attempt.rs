//! Runs one attempt; error, panic, timeout and stop all become one value.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::decide::{Asked, Ended};
use super::span;
use crate::handler::{
    BoxError, FailureText, HANDLER_ERROR, HANDLER_PANIC, Handler, JobContext, MODEL_NOT_FOUND,
    ModelNotFound, Outcome, Panicked, Pipeline, Request, causes, panic_text,
};

/// How long a blocking handler may take to notice that it was cancelled.
const NOTICE: Duration = Duration::from_secs(1);

/// Runs a handler with what is around it until it ends, its timeout has passed, or `stop` is cancelled.
///
/// Locks that the job held and nobody uses any more are then free, unless their
/// store takes too long.
///
/// # Cancel safety
///
/// Dropping the future drops an async handler; a blocking one runs on.
pub(super) async fn run(
    handler: &dyn Handler,
    pipeline: &Pipeline,
    context: &JobContext,
    timeout: Option<Duration>,
    stop: &CancellationToken,
) -> Outcome {
    let outcome = run_to_end(handler, pipeline, context, timeout, stop).await;
    if !pipeline.is_empty() {
        // Whoever gets the job next must not be kept out by us.
        context.holds().freed().await;
    }
    outcome
}

async fn run_to_end(
    handler: &dyn Handler,
    pipeline: &Pipeline,
    context: &JobContext,
    timeout: Option<Duration>,
    stop: &CancellationToken,
) -> Outcome {
    // The handler's own code before its first await runs inside as well: it may panic too.
    let run = async {
        if pipeline.is_empty() {
            handler.handle(context.clone()).await
        } else {
            pipeline.run(context, handler).await
        }
    };
    let run = run.instrument(span::of(context));
    let mut running = std::pin::pin!(AssertUnwindSafe(run).catch_unwind());
    let timed_out = async {
        match timeout {
            Some(timeout) => tokio::time::sleep(timeout).await,
            None => std::future::pending().await,
        }
    };
    let interrupted = tokio::select! {
        biased;
        result = &mut running => return ended(result),
        () = timed_out => Outcome::TimedOut,
        () = stop.cancelled() => Outcome::Stopped,
    };
    context.cancellation().cancel();
    if !handler.is_blocking() {
        return interrupted;
    }
    match (tokio::time::timeout(NOTICE, running).await, interrupted) {
        (Err(_), Outcome::TimedOut) => Outcome::Stuck,
        // It gave up in time, and what it returned after its timeout counts for nothing; or the process ends anyway.
        (_, interrupted) => interrupted,
    }
}

fn ended(result: Result<Result<(), BoxError>, Box<dyn std::any::Any + Send>>) -> Outcome {
    match result {
        Ok(Ok(())) => Outcome::Finished,
        Ok(Err(error)) => match error.downcast::<Panicked>() {
            Ok(panicked) => Outcome::Panicked(panicked.0),
            Err(error) => Outcome::Threw(error),
        },
        Err(panic) => Outcome::Panicked(panic_text(&*panic)),
    }
}

/// Tells a handler that its job failed for good; a panic or a hook without end is reported.
pub(super) async fn failed(
    handler: &dyn Handler,
    context: JobContext,
    failure: Arc<FailureText>,
    timeout: Duration,
) -> Result<(), String> {
    let span = span::of(&context);
    let hook = async { handler.failed(context, failure).await }.instrument(span);
    let hook = AssertUnwindSafe(hook).catch_unwind();
    let timeout = if timeout.is_zero() {
        Duration::from_secs(60)
    } else {
        timeout
    };
    match tokio::time::timeout(timeout, hook).await {
        Ok(Ok(())) => Ok(()),
        Ok(Err(panic)) => Err(panic_text(&*panic)),
        Err(_) => Err(format!("it ran longer than {timeout:?}")),
    }
}

/// An error's message with those of its causes.
pub(super) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).join(": ")
}

/// What the rules need to know of an outcome; `deletes` says what a model that is gone does to the job.
pub(super) fn ended_as(outcome: &Outcome, deletes: impl FnOnce() -> bool) -> Ended {
    match outcome {
        Outcome::Finished => Ended::Finished,
        Outcome::Threw(error) => match ModelNotFound::within(&**error) {
            Some(missing) => Ended::ModelMissing {
                failure: FailureText::new(MODEL_NOT_FOUND, missing.to_string()),
                deletes: deletes(),
            },
            None => Ended::Threw(FailureText::of(HANDLER_ERROR, &**error)),
        },
        Outcome::Panicked(message) => {
            Ended::Threw(FailureText::new(HANDLER_PANIC, message.clone()))
        }
        Outcome::TimedOut | Outcome::Stuck => Ended::TimedOut,
        Outcome::Stopped => Ended::Stopped,
    }
}

const MANUALLY_FAILED: &str = "Illuminate\\Queue\\ManuallyFailedException";

/// What the rules need to know of a handler's requests.
pub(super) fn asked(request: Request) -> Asked {
    Asked {
        release: request.release,
        is_uncounted: request.is_uncounted,
        discard: request.discard,
        fail: request.fail.map(|reason| match reason {
            Some(error) => FailureText::of(MANUALLY_FAILED, &*error),
            None => FailureText::new(MANUALLY_FAILED, ""),
        }),
        delete: request.delete,
    }
}
