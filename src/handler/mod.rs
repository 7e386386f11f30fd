//! Handlers: code that runs jobs, and the routing of jobs to it.
//!
//! A handler only makes requests: [`JobContext`] records "release me", "fail me"
//! or "delete me", and only the worker writes to Redis. The handler's result, a
//! panic and a timeout all become one [`Outcome`].

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;

mod batch;
mod builtin;
mod canary;
mod child;
mod context;
pub(crate) mod dispatch;
mod environment;
mod exec;
mod function;
#[cfg(feature = "http")]
mod http;
mod input;
mod middleware;
mod model;
mod panics;
mod pattern;
mod persistent;
pub mod pool;
mod registry;
mod services;
mod shadow;
mod template;
pub mod view;

pub use batch::{AddError, BatchHandle, BatchJob};
pub use builtin::{Discard, Log};
pub use canary::Canary;
pub use child::supervise;
pub use context::{ChainEdit, JobContext, JobInfo, Request};
pub use dispatch::DispatchError;
pub use environment::Environment;
pub use exec::{Exec, ExecOptions};
pub use function::{Async, Blocking, Function, OnThread, blocking, function};
#[cfg(feature = "http")]
pub use http::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
pub use input::{InputError, input};
pub(crate) use middleware::{
    DEFAULT_REDIS, HANDLER_ERROR, HANDLER_PANIC, MODEL_NOT_FOUND, in_payload,
};
pub use middleware::{
    Debounce, Exceptions, FailOnException, HeldLocks, Limit, LimitTemplate, Limiter, Middleware,
    Next, Panicked, Pipeline, RateLimited, Release, Skip, SkipIfBatchCancelled,
    ThrottlesExceptions, WithoutOverlapping,
};
pub use model::{
    Collection, Model, ModelError, ModelId, ModelIdentifier, ModelKey, ModelNotFound, Models,
};
pub(crate) use panics::{panic_text, remember_places};
pub use pattern::{Pattern, PatternError, TargetPattern, TargetPatternError};
pub use persistent::{Persistent, PersistentOptions};
pub use registry::{
    HandlerChoice, Mapping, MappingError, Mode, OnMismatch, Registry, Route, Router, UnmappedPolicy,
};
pub use services::{Gap, Missing, Services};
pub use shadow::{EndInPhp, RunInPhp};
pub use template::{Path, PathError, Template, TemplateError};

use crate::payload::Payload;
use crate::shown::causes;

/// A boxed future, as trait objects need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The error of a handler, of any type.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

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

    /// Says why this handler cannot run a job that is mapped to it; called before the job is taken.
    ///
    /// Such a job is treated as unmapped. This is called for each job that is
    /// looked at, so it has to be quick and must not wait. The answer must not
    /// contain payload data: it appears in the log and in the output of `doctor`.
    fn refuses(&self, payload: &Payload, services: &Services) -> Option<String> {
        let _ = (payload, services);
        None
    }

    /// Whether jobs run on their own thread, where they cannot be cancelled.
    fn is_blocking(&self) -> bool {
        false
    }
}

/// Why a job failed for good: class-like name and message, as stores of failed jobs record them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureText {
    /// Class of the exception that PHP would have thrown, or the kind of Rust failure.
    pub class: String,
    /// The message with its chain of causes.
    pub message: String,
    /// The messages of the chain one by one, the root cause last; empty if there is only one message.
    pub chain: Vec<String>,
}

impl FailureText {
    /// A failure without causes.
    pub fn new(class: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            class: class.into(),
            message: message.into(),
            chain: Vec::new(),
        }
    }

    /// A failure with all causes of an error, each message once.
    pub fn of(class: impl Into<String>, error: &(dyn std::error::Error + 'static)) -> Self {
        let chain = causes(error);
        Self {
            class: class.into(),
            message: chain.join(": "),
            chain: if chain.len() > 1 { chain } else { Vec::new() },
        }
    }
}

impl fmt::Display for FailureText {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.class, self.message)
    }
}
