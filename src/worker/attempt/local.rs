//! Runs one attempt; returns error, panic, timeout and stop all as one value.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use crate::handler::{FailureText, Handler, JobContext, Pipeline, panic_text};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::span;

/// How long a blocking handler may take to notice its cancellation.
const NOTICE: Duration = Duration::from_secs(1);

/// Runs a handler and its middleware until the handler ends, its timeout passes, or `stop` is cancelled.
///
/// On return the locks that the job held are free, unless their store takes too long. `deletes` says whether the
/// job is deleted if one of its models is gone.
///
/// # Cancel safety
///
/// Dropping the future drops an async handler; a blocking one runs on.
pub(crate) async fn run(
    handler: &dyn Handler,
    pipeline: &Pipeline,
    context: &JobContext,
    timeout: Option<Duration>,
    stop: &CancellationToken,
    deletes: impl FnOnce() -> bool,
) -> Ran {
    let ran = run_to_end(handler, pipeline, context, timeout, stop, deletes).await;
    if !pipeline.is_empty() {
        // Another worker that gets the job next must find its locks free.
        context.holds().freed().await;
    }
    ran
}

/// How a handler's run ended.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) outcome: Outcome,
    /// Whether the handler still runs and cannot be stopped.
    pub(crate) is_stuck: bool,
}

impl From<Outcome> for Ran {
    fn from(outcome: Outcome) -> Self {
        Self {
            outcome,
            is_stuck: false,
        }
    }
}

async fn run_to_end(
    handler: &dyn Handler,
    pipeline: &Pipeline,
    context: &JobContext,
    timeout: Option<Duration>,
    stop: &CancellationToken,
    deletes: impl FnOnce() -> bool,
) -> Ran {
    // The handler's code before its first await runs inside this future as well, because it may panic too.
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
        result = &mut running => return Outcome::of(result, deletes).into(),
        () = timed_out => Outcome::TimedOut,
        () = stop.cancelled() => Outcome::Stopped,
    };
    context.cancellation().cancel();
    if !handler.is_blocking() {
        return interrupted.into();
    }
    // A handler that gives up within this time ends, but its result after the timeout is ignored.
    let runs_on = tokio::time::timeout(NOTICE, running).await.is_err();
    Ran {
        // At the stop deadline the process ends anyway, so a stuck handler need not be reported.
        is_stuck: runs_on && interrupted == Outcome::TimedOut,
        outcome: interrupted,
    }
}

/// Calls the handler's `failed` hook; returns an error if the hook panics or exceeds the timeout.
pub(crate) async fn failed(
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
