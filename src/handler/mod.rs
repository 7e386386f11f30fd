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

use std::sync::Arc;

mod batch;
mod context;
pub(crate) mod dispatch;
mod failure;
mod function;
mod hold;
#[cfg(feature = "http")]
mod http;
mod input;
mod limiter;
mod model;
mod panics;
mod pipeline;
mod rows;
mod services;
mod shadow;
mod template;
pub mod view;

pub use batch::{AddError, BatchHandle, BatchJob};
pub use context::JobContext;
pub use failure::{BoxError, BoxFuture, FailureText};
pub use function::{Function, blocking, function};
pub use input::{InputError, input};
pub use limiter::{Limit, Limiter};
pub use model::{ModelError, ModelId, ModelIdentifier, ModelKey, ModelNotFound};
pub use pipeline::Next;
pub use rows::{Collection, Model};
pub use shadow::{EndInPhp, RunInPhp};

#[cfg(not(feature = "internals"))]
pub(crate) use inside::*;
#[cfg(feature = "internals")]
pub use inside::*;
pub(crate) use panics::{panic_text, remember_places};

/// What the rest of the crate uses, and users do not need.
mod inside {
    pub use super::context::{ChainEdit, JobInfo, Request};
    pub use super::dispatch::DispatchError;
    pub use super::function::{Async, Blocking, OnThread};
    pub use super::hold::HeldLocks;
    #[cfg(feature = "http")]
    pub use super::http::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
    pub use super::limiter::LimitTemplate;
    pub use super::model::Models;
    pub use super::pipeline::{Panicked, Pipeline};
    pub use super::services::{Gap, MiddlewareServices, Missing, Services};
    pub use super::template::{Path, PathError, Template, TemplateError};
}

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
