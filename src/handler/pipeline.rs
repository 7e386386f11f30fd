//! Sends a job through its middleware to the handler.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;

use futures_util::FutureExt as _;

use super::{BoxError, BoxFuture, Handler, JobContext, Middleware, Missing, Services, panic_text};

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
