//! Handlers: what runs a job, and which one runs which.
//!
//! A handler asks, the worker acts: [`JobContext`] takes down "release me",
//! "fail me" or "delete me", and only the worker writes to Redis. What a
//! handler returns, a panic and a timeout all become one [`Outcome`].

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
pub use middleware::{
    Debounce, Exceptions, FailOnException, HeldLocks, Limit, LimitTemplate, Limiter, Middleware,
    Next, Panicked, Pipeline, RateLimited, Release, Skip, SkipIfBatchCancelled,
    ThrottlesExceptions, WithoutOverlapping,
};
pub(crate) use middleware::{HANDLER_ERROR, HANDLER_PANIC, MODEL_NOT_FOUND, in_payload};
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

/// What handlers return when they fail: any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Something that can run jobs.
///
/// Mostly made by [`function`] or [`blocking`]; implement it to run jobs of
/// many classes by one piece of code.
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
    /// What Laravel calls before the `middleware` property of a job: the
    /// class's `middleware()`. Mappings may add to it.
    fn middleware(&self) -> Vec<Arc<dyn Middleware>> {
        Vec::new()
    }

    /// Says whether a job could be run, without running it: whether its input fits.
    ///
    /// Asked of jobs that PHP runs (`mode = "shadow"`), and before a job is
    /// taken (`on_mismatch = "php"`), more than once perhaps; `raw_body` of the
    /// context may be empty then. It must wait for nothing.
    ///
    /// # Errors
    ///
    /// Why it does not.
    fn check(&self, context: &JobContext) -> Result<(), BoxError> {
        context.document()?;
        Ok(())
    }

    /// Compares what this handler would do with what PHP did; `None` if it has nothing to compare with.
    ///
    /// An error of the future says what is different. The job has left PHP by
    /// then, and nothing that is asked of the context counts.
    fn compare(
        &self,
        context: JobContext,
        run: Arc<RunInPhp>,
    ) -> Option<BoxFuture<'_, Result<(), BoxError>>> {
        drop((context, run));
        None
    }

    /// Called when the worker has stopped and none of its jobs runs any more: ends what the handler keeps running.
    ///
    /// The worker waits some seconds for it, then the future is dropped. A
    /// handler that two mappings name is told twice.
    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(std::future::ready(()))
    }

    /// Says why this handler cannot run a job that is mapped to it; asked before the job is taken.
    ///
    /// Such a job counts as unmapped, as if there were no mapping for it. It is
    /// asked of each job that is looked at, so the answer has to be quick and
    /// must wait for nothing. It must not show what is in the payload: it ends
    /// up in the log and in what `doctor` says.
    fn refuses(&self, payload: &Payload, services: &Services) -> Option<String> {
        let _ = (payload, services);
        None
    }

    /// Whether jobs run on a thread of their own, where they cannot be cancelled.
    fn is_blocking(&self) -> bool {
        false
    }
}

/// Why a job failed for good: class-like name and message, as failed-job stores keep them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailureText {
    /// What PHP would have thrown, or the kind of Rust failure.
    pub class: String,
    /// The message with its chain of causes.
    pub message: String,
    /// The messages of the chain one by one, the cause last; empty if there is one message only.
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

    /// A failure with all causes of an error, each said once.
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
