//! Job middleware: code around a handler that decides whether the handler runs.
//!
//! The built-in middleware uses Laravel's keys, values and delays, so that PHP
//! and Rust workers of one app exclude each other (docs/protocol/cache.md 9 to
//! 12).

use std::time::Duration;

/// Implements [`Middleware`](crate::handler::Middleware) by the type's own `run`, and checks its services.
macro_rules! middleware {
    ($type:ty $(, |$this:ident, $services:ident| $check:expr)?) => {
        impl $crate::handler::Middleware for $type {
            fn handle<'a>(
                &'a self,
                context: &'a $crate::handler::JobContext,
                next: $crate::handler::Next<'a>,
            ) -> $crate::handler::BoxFuture<'a, Result<(), $crate::handler::BoxError>> {
                Box::pin(self.run(context, next))
            }

            $(fn check(
                &self,
                services: &$crate::handler::Services,
            ) -> Result<(), $crate::handler::Missing> {
                let ($this, $services) = (self, &services.middleware);
                $check.map(drop)
            })?
        }
    };
}

mod debounce;
mod exceptions;
mod overlap;
mod rate_limited;
mod serialized;
mod skip;
mod throttle;

pub use debounce::Debounce;
pub use exceptions::{Exceptions, FailOnException};
pub(crate) use exceptions::{HANDLER_ERROR, HANDLER_PANIC, MODEL_NOT_FOUND};
pub use overlap::WithoutOverlapping;
pub use rate_limited::RateLimited;
pub(crate) use serialized::in_payload;
pub use skip::{Release, Skip, SkipIfBatchCancelled};
pub use throttle::ThrottlesExceptions;

use crate::handler::JobContext;

/// Laravel's limiters add this to the wait until there is room.
const AFTER_LIMIT: Duration = Duration::from_secs(3);

/// The Redis connection that Laravel's middleware counts on unless it names another.
pub(crate) const DEFAULT_REDIS: &str = "default";

/// How a middleware gives back a job that it does not let through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct ReleasePolicy {
    /// False for `dontRelease()`: the job is dropped and counts as done.
    releases: bool,
    /// False if the attempt must not count.
    spends_attempt: bool,
}

impl Default for ReleasePolicy {
    fn default() -> Self {
        Self {
            releases: true,
            spends_attempt: true,
        }
    }
}

impl ReleasePolicy {
    fn apply(self, context: &JobContext, delay: Duration) {
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
