//! `Skip`, `SkipIfBatchCancelled` and `Release`: jobs that count as done, or are released, without having run.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::handler::{BoxError, BoxFuture, JobContext, Middleware, Missing, Next, Path, Services};
use crate::php::json::Graph;

type Test = dyn Fn(&JobContext) -> Result<bool, BoxError> + Send + Sync;

/// Skips jobs that satisfy a condition: they count as done.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\Skip` (Laravel 11.23 and later). PHP decides when the job is dispatched or
/// `middleware()` is called, artisand when the job runs.
#[derive(Clone)]
pub struct Skip(Arc<Test>);

impl fmt::Debug for Skip {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Skip")
    }
}

impl Skip {
    /// Skips jobs for which the test returns true.
    pub fn when(test: impl Fn(&JobContext) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(move |context| Ok(test(context))))
    }

    /// Skips jobs with a property that PHP takes for true; a path that leads nowhere is an error.
    pub fn when_property(path: Path) -> Self {
        Self(property_is_true(path))
    }
}

/// Tests whether PHP takes a property of a job for true.
fn property_is_true(path: Path) -> Arc<Test> {
    Arc::new(move |context| {
        let job = context.properties()?;
        let graph = Graph::new(job);
        Ok(path.find(job, &graph)?.is_truthy())
    })
}

impl Middleware for Skip {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        match (self.0)(context) {
            Ok(true) => Box::pin(std::future::ready(Ok(()))),
            Ok(false) => next.run(),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// Releases jobs that satisfy a condition; the attempt counts.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\Release` (Laravel 13). PHP decides when the job
/// is dispatched or `middleware()` is called, artisand when the job runs.
#[derive(Clone)]
pub struct Release {
    test: Arc<Test>,
    after: Duration,
}

impl fmt::Debug for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Release")
            .field("after", &self.after)
            .finish_non_exhaustive()
    }
}

impl Release {
    /// Releases jobs for which the test returns true, with the given wait.
    pub fn when(
        test: impl Fn(&JobContext) -> bool + Send + Sync + 'static,
        after: Duration,
    ) -> Self {
        Self {
            test: Arc::new(move |context| Ok(test(context))),
            after,
        }
    }

    /// Releases jobs with a property that PHP takes for true; a path that leads nowhere is an error.
    pub fn when_property(path: Path, after: Duration) -> Self {
        Self {
            test: property_is_true(path),
            after,
        }
    }
}

impl Middleware for Release {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        match (self.test)(context) {
            Ok(true) => {
                context.release(self.after);
                Box::pin(std::future::ready(Ok(())))
            }
            Ok(false) => next.run(),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }
}

/// Skips jobs whose batch was cancelled: they count as done.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\SkipIfBatchCancelled` (Laravel 9.49 and later).
#[derive(Debug, Clone, Copy)]
pub struct SkipIfBatchCancelled;

impl SkipIfBatchCancelled {
    async fn run(context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let batch = context.batch().await?;
        if batch.is_some_and(|batch| batch.is_cancelled()) {
            return Ok(());
        }
        next.run().await
    }
}

impl Middleware for SkipIfBatchCancelled {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(Self::run(context, next))
    }

    fn check(&self, services: &Services) -> Result<(), Missing> {
        services.batches().map(drop)
    }
}
