//! Job middleware: code around a handler that decides whether the handler runs.
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
//!
//! The built-in middleware uses Laravel's keys, values and delays, so that PHP
//! and Rust workers of one app exclude each other (docs/protocol/cache.md 9 to
//! 12).

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt as _;

mod debounce;
mod exceptions;
mod hold;
mod limited;
mod overlap;
mod serialized;
mod skip;
mod throttle;

pub use debounce::Debounce;
pub use exceptions::{Exceptions, FailOnException};
pub(crate) use exceptions::{HANDLER_ERROR, HANDLER_PANIC, MODEL_NOT_FOUND};
pub use hold::HeldLocks;
pub(crate) use hold::Holds;
pub use limited::{Limit, LimitTemplate, Limiter, RateLimited};
pub use overlap::WithoutOverlapping;
pub(crate) use serialized::in_payload;
pub use skip::{Release, Skip, SkipIfBatchCancelled};
pub use throttle::ThrottlesExceptions;

use super::panic_text;
use super::{BoxError, BoxFuture, Handler, JobContext, Missing, Services};

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

/// Laravel's limiters add this to the wait until there is room.
const AFTER_LIMIT: Duration = Duration::from_secs(3);

/// The Redis connection that Laravel's middleware counts on unless it names another.
pub(crate) const DEFAULT_REDIS: &str = "default";

/// How a middleware gives back a job that it does not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Giving {
    /// False for `dontRelease()`: the job is dropped and counts as done.
    releases: bool,
    /// False if the attempt must not count.
    spends_attempt: bool,
}

impl Default for Giving {
    fn default() -> Self {
        Self {
            releases: true,
            spends_attempt: true,
        }
    }
}

impl Giving {
    fn back(self, context: &JobContext, delay: Duration) {
        match self {
            Self {
                releases: false, ..
            } => {}
            Self {
                spends_attempt: true,
                ..
            } => context.release(delay),
            Self {
                spends_attempt: false,
                ..
            } => context.release_without_attempt(delay),
        }
    }
}
