//! Job middleware: code around a handler, which may let it run or not.
//!
//! The shape is Laravel's pipeline. A middleware gets the job's context and
//! [`Next`]; it runs `next`, or asks the context for a release, a failure or
//! the deletion of the job and returns without it. One that does neither has
//! skipped the job, which then counts as done: its chain goes on, its batch
//! counts it as a success.
//!
//! A job passes through the middleware of its handler first, then through that
//! of its mapping in `artisand.toml` (both stand for the `middleware()` method
//! of the PHP class, which is not in the bytes), then through that of its own
//! `middleware` property. All of it runs within the job's timeout.
//!
//! The built-in ones have the keys, values and delays of Laravel's, so that
//! PHP and Rust workers of one app exclude each other
//! (docs/protocol/cache.md 9 to 12).

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

/// Something around a handler.
pub trait Middleware: Send + Sync + 'static {
    /// Handles a job: runs `next`, or returns without it.
    ///
    /// # Errors
    ///
    /// An error counts as an exception of the job, whether it is one of `next`
    /// or the middleware's own.
    ///
    /// # Cancel safety
    ///
    /// The future is dropped when the job's timeout or the worker's stop
    /// deadline has passed, like the handler's own.
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>>;

    /// Says what of the app it needs and does not find; asked before a worker starts.
    ///
    /// # Errors
    ///
    /// The first thing that is missing.
    fn check(&self, services: &Services) -> Result<(), Missing> {
        let _ = services;
        Ok(())
    }
}

/// Middleware in the order in which a job passes through it. Cheap to clone.
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
    /// True if a job goes straight to its handler.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The middleware, the outermost first.
    pub fn iter(&self) -> impl Iterator<Item = &Arc<dyn Middleware>> {
        self.0.iter()
    }

    /// Says what of the app is needed and not there.
    ///
    /// # Errors
    ///
    /// The first thing that is missing.
    pub fn check(&self, services: &Services) -> Result<(), Missing> {
        self.iter().try_for_each(|one| one.check(services))
    }

    /// Sends a job through, to its handler.
    ///
    /// # Errors
    ///
    /// Those of the handler and of the middleware. A panic of either is an
    /// error here, so that what is around it sees it: a [`Panicked`].
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

/// A handler or a middleware panicked; what the pipeline makes of it.
#[derive(Debug, thiserror::Error)]
#[error("panicked: {0}")]
pub struct Panicked(pub(crate) String);

impl<'a> Next<'a> {
    /// Runs it.
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

    /// Whether the handler runs on a thread of its own and may run on when this future is dropped.
    pub fn is_blocking(&self) -> bool {
        self.handler.is_blocking()
    }
}

/// What Laravel's limiters put on top of the wait until there is room.
const AFTER_LIMIT: Duration = Duration::from_secs(3);

/// How a middleware gives a job back that it does not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Giving {
    /// False for `dontRelease()`: the job is dropped as if it were done.
    releases: bool,
    /// False if the attempt is not to count.
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
