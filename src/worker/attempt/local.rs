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
use crate::worker::stop::BEHIND_THE_END;

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
    // A handler that gives up within this time ends, but its result is ignored.
    let runs_on = tokio::time::timeout(NOTICE, running).await.is_err();
    Ran {
        // Also at the stop deadline: the process still has its last steps to take, and the handler runs beside them.
        is_stuck: runs_on,
        outcome: interrupted,
    }
}

/// How long a `failed` hook may take, given the worker's timeout: a minute without one.
pub(crate) fn hook_timeout(timeout: Duration) -> Duration {
    if timeout.is_zero() {
        Duration::from_secs(60)
    } else {
        timeout
    }
}

/// Calls the handler's `failed` hook; returns an error if the hook panics, exceeds the timeout, or does not end soon
/// after the stop deadline.
pub(crate) async fn failed(
    handler: &dyn Handler,
    context: JobContext,
    failure: Arc<FailureText>,
    timeout: Duration,
    stop: &CancellationToken,
) -> Result<(), String> {
    let span = span::of(&context);
    let cancellation = context.cancellation().clone();
    let hook = async { handler.failed(context, failure).await }.instrument(span);
    let hook = AssertUnwindSafe(hook).catch_unwind();
    let cut = async {
        stop.cancelled().await;
        cancellation.cancel();
        tokio::time::sleep(BEHIND_THE_END).await;
    };
    tokio::select! {
        biased;
        ended = hook => ended.map_err(|panic| panic_text(&*panic)),
        () = tokio::time::sleep(timeout) => Err(format!("it ran longer than {timeout:?}")),
        () = cut => Err("it did not end after the worker's stop deadline".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;
    use crate::handler::{BoxError, BoxFuture, Middleware, Next};
    use crate::worker::test_support::{S, does, job, nothing, slow};

    /// A blocking handler whose thread returns after this long, or never.
    struct Blocks(Option<Duration>);

    impl Handler for Blocks {
        fn handle(&self, _: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
            Box::pin(async {
                match self.0 {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
                Ok(())
            })
        }

        fn is_blocking(&self) -> bool {
            true
        }

        fn failed(&self, _: JobContext, _: Arc<FailureText>) -> BoxFuture<'_, ()> {
            Box::pin(async {
                match self.0 {
                    Some(after) => tokio::time::sleep(after).await,
                    None => std::future::pending().await,
                }
            })
        }
    }

    fn context() -> JobContext {
        JobContext::of_payload(&job(1)).unwrap()
    }

    /// Runs a handler; returns how it ended, after how long, and whether it was told to give up.
    async fn ran(
        handler: &dyn Handler,
        timeout: Option<Duration>,
        stop: &CancellationToken,
    ) -> (Ran, Duration, bool) {
        let (context, began) = (context(), Instant::now());
        let pipeline = Pipeline::default();
        let ran = run(handler, &pipeline, &context, timeout, stop, || false).await;
        (ran, began.elapsed(), context.is_cancelled())
    }

    #[tokio::test(start_paused = true)]
    async fn a_handler_has_its_timeout_and_not_a_moment_more() {
        #[rustfmt::skip]
        let rows = [
            // takes, timeout => outcome, after
            (S(5),     Some(S(60)), Outcome::Finished, S(5)),
            (S(60),    Some(S(5)),  Outcome::TimedOut, S(5)),
            // A job that is done in that very moment is done.
            (S(5),     Some(S(5)),  Outcome::Finished, S(5)),
            (S(86400), None,        Outcome::Finished, S(86400)),
        ];
        for (takes, timeout, outcome, after) in rows {
            let stop = CancellationToken::new();
            let (ran, took, is_cancelled) = ran(&slow(takes), timeout, &stop).await;
            assert_eq!(
                (&ran.outcome, took),
                (&outcome, after),
                "{takes:?} {timeout:?}"
            );
            assert_eq!(is_cancelled, outcome == Outcome::TimedOut);
            assert!(!ran.is_stuck);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_cuts_a_handler_and_loses_no_result_that_is_there() {
        let stop = CancellationToken::new();
        stop.cancel();
        let (done, ..) = ran(&nothing(), None, &stop).await;
        assert_eq!(done.outcome, Outcome::Finished);
        let (cut, took, is_cancelled) = ran(&slow(S(60)), None, &stop).await;
        assert_eq!((cut.outcome, took), (Outcome::Stopped, S(0)));
        assert!(is_cancelled);
    }

    #[tokio::test(start_paused = true)]
    async fn a_blocking_handler_that_ignores_its_cancellation_is_stuck() {
        let stops = CancellationToken::new();
        stops.cancel();
        let runs = CancellationToken::new();
        let (soon, late) = (Some(Duration::from_millis(5500)), Some(S(7)));
        let quick = Some(Duration::from_millis(500));
        #[rustfmt::skip]
        let rows = [
            // returns after, stop => outcome, stuck, after
            (soon, &runs,  Outcome::TimedOut, false, Duration::from_millis(5500)),
            (late, &runs,  Outcome::TimedOut, true,  S(6)),
            (None, &runs,  Outcome::TimedOut, true,  S(6)),
            (quick, &stops, Outcome::Stopped, false, Duration::from_millis(500)),
            (None, &stops, Outcome::Stopped,  true,  S(1)),
        ];
        for (returns, stop, outcome, is_stuck, after) in rows {
            let (ran, took, is_cancelled) = ran(&Blocks(returns), Some(S(5)), stop).await;
            assert_eq!((ran.outcome, took), (outcome, after), "{returns:?}");
            assert_eq!(ran.is_stuck, is_stuck, "{returns:?}");
            assert!(is_cancelled);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_panic_before_the_first_await_ends_the_attempt_like_any_other() {
        struct Panics;
        impl Handler for Panics {
            fn handle(&self, _: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
                panic!("a bug")
            }
        }
        struct Passes;
        impl Middleware for Passes {
            fn handle<'a>(
                &'a self,
                _: &'a JobContext,
                next: Next<'a>,
            ) -> BoxFuture<'a, Result<(), BoxError>> {
                next.run()
            }
        }
        let passes: Arc<dyn Middleware> = Arc::new(Passes);
        for pipeline in [Pipeline::default(), std::iter::once(passes).collect()] {
            let (context, stop) = (context(), CancellationToken::new());
            let ran = run(&Panics, &pipeline, &context, None, &stop, || false).await;
            let thrown = ran.outcome.thrown().unwrap();
            assert_eq!(thrown.class, "Artisand\\HandlerPanic");
            assert!(thrown.message.starts_with("a bug"), "{thrown}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_failed_hook_that_does_not_end_is_given_up() {
        let failure = || Arc::new(FailureText::new("E", "m"));
        let (runs, stops) = (CancellationToken::new(), CancellationToken::new());
        stops.cancel();
        #[rustfmt::skip]
        let rows = [
            // takes, the worker's timeout, stop => ends well, after
            (Some(S(5)),  S(60), &runs,  true,  S(5)),
            (None,        S(60), &runs,  false, S(60)),
            (None,        S(5),  &runs,  false, S(5)),
            // A worker without a timeout waits a minute.
            (None,        S(0),  &runs,  false, S(60)),
            (Some(S(9)),  S(60), &stops, true,  S(9)),
            (Some(S(11)), S(60), &stops, false, S(10)),
        ];
        for (takes, timeout, stop, ends_well, after) in rows {
            let (began, context) = (Instant::now(), context());
            let (handler, timeout) = (Blocks(takes), hook_timeout(timeout));
            let ended = failed(&handler, context.clone(), failure(), timeout, stop).await;
            assert_eq!((ended.is_ok(), began.elapsed()), (ends_well, after));
            assert_eq!(context.is_cancelled(), stop.is_cancelled());
        }
        let panics = crate::handler::function(|_: serde::de::IgnoredAny, _: JobContext| async {
            Ok::<(), BoxError>(())
        });
        let panics = panics.on_failed(|_, _| async { panic!("a bug") });
        let ended = failed(&panics, context(), failure(), S(60), &runs).await;
        assert!(ended.unwrap_err().starts_with("a bug"));
        let fine = does(|_| Ok(()));
        let ended = failed(&fine, context(), failure(), S(60), &runs).await;
        assert_eq!(ended, Ok(()));
    }
}
