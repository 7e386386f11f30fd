//! Handlers, the middleware around them, and the way of a job through both.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::{
    BoxError, BoxFuture, FailureText, JobContext, Missing, RunInPhp, Services, panic_text,
};

/// Code that can run jobs.
///
/// Most handlers are made by [`function`](super::function) or [`blocking`](super::blocking); implement this trait
/// to run jobs of many classes by one piece of code.
pub trait Handler: Send + Sync + 'static {
    /// Runs a job.
    ///
    /// # Errors
    ///
    /// An error counts as an exception of the job: it is released or failed by
    /// Laravel's rules.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the job's timeout or the worker's stop
    /// deadline has passed.
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>>;

    /// Called after the job failed for good and its record was left for the app's `failed_jobs`, like `failed()` of a
    /// PHP job.
    fn failed(&self, context: JobContext, error: Arc<FailureText>) -> BoxFuture<'_, ()> {
        drop((context, error));
        Box::pin(std::future::ready(()))
    }

    /// Whether [`failed`](Self::failed) does something; `failed()` of the job's PHP class is not called then.
    fn has_failed_hook(&self) -> bool {
        false
    }

    /// Middleware around every job of this handler, the outermost first; asked once, when its mapping is made.
    ///
    /// These replace the class's `middleware()` method, which Laravel runs before
    /// the job's `middleware` property. Mappings may add more.
    fn middleware(&self) -> Vec<Arc<dyn Middleware>> {
        Vec::new()
    }

    /// Checks, without running the job, whether its input fits.
    ///
    /// Called for jobs that PHP runs (`mode = "shadow"`), and before a job is
    /// taken (`on_mismatch = "php"`), perhaps more than once; `raw_body` of the
    /// context may be empty then. The check must not block or wait.
    ///
    /// # Errors
    ///
    /// Why the input does not fit.
    fn check(&self, context: &JobContext) -> Result<(), BoxError> {
        context.document()?;
        Ok(())
    }

    /// Compares the result of this handler with the run in PHP; `None` if there is nothing to compare.
    ///
    /// An error of the future describes the difference. The job has already run
    /// in PHP, so requests to the context have no effect.
    fn compare(
        &self,
        context: JobContext,
        run: Arc<RunInPhp>,
    ) -> Option<BoxFuture<'_, Result<(), BoxError>>> {
        drop((context, run));
        None
    }

    /// Called when the worker has stopped and none of its jobs runs any more: stops what the handler keeps
    /// running.
    ///
    /// The worker waits a few seconds for it, then the future is dropped. If two
    /// mappings name one handler, this is called twice.
    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Whether jobs run on their own thread, where they cannot be cancelled.
    fn is_blocking(&self) -> bool {
        false
    }
}

/// Code around a handler.
pub trait Middleware: Send + Sync + 'static {
    /// Handles a job: runs `next`, or returns without it.
    ///
    /// # Errors
    ///
    /// An error counts as an exception of the job, whether it comes from `next`
    /// or from the middleware itself.
    ///
    /// # Cancel safety
    ///
    /// As with the handler, the future is dropped when the job's timeout or the
    /// worker's stop deadline has passed.
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Checks, before a worker starts, that all services this middleware needs are there.
    ///
    /// # Errors
    ///
    /// The first missing service.
    fn check(&self, services: &Services) -> Result<(), Missing> {
        let _ = services;
        Ok(())
    }
}

/// Middleware in the order in which a job passes through it, the outermost first. Cheap to clone.
#[derive(Clone, Default)]
pub struct Pipeline(Arc<[Arc<dyn Middleware>]>);

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pipeline of {}", self.0.len())
    }
}

impl FromIterator<Arc<dyn Middleware>> for Pipeline {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Middleware>>>(middleware: I) -> Self {
        Self(middleware.into_iter().collect())
    }
}

impl Pipeline {
    /// True if there is no middleware.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The middleware, the outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        self.0.iter()
    }

    /// Checks that all services that the middleware needs are there.
    ///
    /// # Errors
    ///
    /// The first missing service.
    pub fn check(&self, services: &Services) -> Result<(), Missing> {
        self.iter().try_for_each(|one| one.check(services))
    }

    /// Sends a job through the middleware to its handler.
    ///
    /// # Errors
    ///
    /// Errors of the handler and of the middleware. A panic of either becomes a
    /// [`Panicked`] error here, so that the outer middleware sees it.
    pub fn run<'a>(
        &'a self,
        context: &'a JobContext,
        handler: &'a dyn Handler,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        let next = Next {
            rest: &self.0,
            handler,
            context,
        };
        next.run()
    }
}

/// The rest of the pipeline, with the handler at its end.
pub struct Next<'a> {
    rest: &'a [Arc<dyn Middleware>],
    handler: &'a dyn Handler,
    context: &'a JobContext,
}

impl fmt::Debug for Next<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Next({} and the handler)", self.rest.len())
    }
}

/// A panic of a handler or a middleware, as the pipeline reports it.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(pub(crate) String);

impl<'a> Next<'a> {
    /// Runs the rest of the pipeline.
    ///
    /// # Errors
    ///
    /// Errors of the handler and of the rest of the middleware; a panic of either is one, too.
    pub fn run(self) -> BoxFuture<'a, Result<(), BoxError>> {
        let run = async move {
            let Self {
                rest,
                handler,
                context,
            } = self;
            match rest.split_first() {
                Some((first, rest)) => {
                    let next = Self {
                        rest,
                        handler,
                        context,
                    };
                    first.handle(context, next).await
                }
                None => handler.handle(context.clone()).await,
            }
        };
        Box::pin(
            AssertUnwindSafe(run).catch_unwind().map(|result| {
                result.unwrap_or_else(|panic| Err(Panicked(panic_text(&*panic)).into()))
            }),
        )
    }

    /// Whether the handler runs on its own thread and may run on when this future is dropped.
    pub fn is_blocking(&self) -> bool {
        self.handler.is_blocking()
    }
}
