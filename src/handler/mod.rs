//! Handlers: code that runs jobs, and the routing of jobs to it.
//!
//! A handler only makes requests: [`JobContext`] records "release me", "fail me"
//! or "delete me", and only the worker writes to Redis. The handler's result, a
//! panic and a timeout all become one outcome.
//!
//! # Middleware
//!
//! The shape is Laravel's pipeline. A middleware gets the job's context and
//! [`Next`]; it runs `next`, or asks the context for a release, a failure or the
//! deletion of the job and returns without it. A middleware that does neither has
//! skipped the job, which then counts as done: its chain goes on, its batch
//! counts it as a success.
//!
//! A job passes first through the middleware of its handler, then through the
//! middleware of its mapping in `artisand.toml` (both replace the `middleware()`
//! method of the PHP class, whose result is not in the payload), then through the
//! middleware in its own `middleware` property. All of it runs within the job's
//! timeout.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;

mod batch;
mod context;
pub(crate) mod dispatch;
mod failure;
mod function;
mod hold;
mod hooks;
#[cfg(feature = "http")]
mod http;
mod input;
mod limiter;
mod model;
mod panics;
mod rows;
mod services;
mod shadow;
mod template;
pub mod view;

pub use batch::{AddError, BatchHandle, BatchJob};
#[cfg(not(feature = "internals"))]
pub(crate) use context::{ChainEdit, Request};
#[cfg(feature = "internals")]
pub use context::{ChainEdit, Request};
pub use context::{JobContext, JobInfo};
#[cfg(not(feature = "internals"))]
pub(crate) use dispatch::DispatchError;
#[cfg(feature = "internals")]
pub use dispatch::DispatchError;
pub use failure::{BoxError, BoxFuture, FailureText};
pub use function::{Async, Blocking, Function, OnThread, blocking, function};
#[cfg(not(feature = "internals"))]
pub(crate) use hold::HeldLocks;
#[cfg(feature = "internals")]
pub use hold::HeldLocks;
pub(crate) use hooks::{Fields, Hooks, RunsHooks};
#[cfg(all(not(feature = "internals"), feature = "http"))]
pub(crate) use http::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
#[cfg(all(feature = "internals", feature = "http"))]
pub use http::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
pub use input::{InputError, input};
#[cfg(not(feature = "internals"))]
pub(crate) use limiter::LimitTemplate;
#[cfg(feature = "internals")]
pub use limiter::LimitTemplate;
pub use limiter::{Limit, Limiter};
#[cfg(not(feature = "internals"))]
pub(crate) use model::Models;
#[cfg(feature = "internals")]
pub use model::Models;
pub use model::{ModelError, ModelId, ModelIdentifier, ModelKey, ModelNotFound};
pub(crate) use panics::{panic_text, remember_places};
pub use rows::{Collection, Model};
#[cfg(not(feature = "internals"))]
pub(crate) use services::Gap;
#[cfg(feature = "internals")]
pub use services::Gap;
pub use services::{MiddlewareServices, Missing, Services};
pub use shadow::{EndInPhp, RunInPhp};
#[cfg(not(feature = "internals"))]
pub(crate) use template::{Path, PathError, Template, TemplateError};
#[cfg(feature = "internals")]
pub use template::{Path, PathError, Template, TemplateError};

/// The longest wait that a program or a server can ask for, in seconds.
pub(crate) const MAX_WAIT: u64 = 24 * 60 * 60;

/// Code that can run jobs.
///
/// Most handlers are made by [`function`] or [`blocking`]; implement this trait
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

    /// Called after the job failed for good and was recorded, like `failed()` of a PHP job.
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
    /// See [`Pipeline::run`].
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
