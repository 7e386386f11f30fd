//! Handlers made of functions: async functions, and functions that block their thread.

use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{
    BoxError, BoxFuture, FailureText, Handler, JobContext, Middleware, RunInPhp, input, panic_text,
};

type CompareHook = Arc<
    dyn Fn(JobContext, Arc<RunInPhp>) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync,
>;
type FailedHook = Arc<dyn Fn(JobContext, Arc<FailureText>) -> BoxFuture<'static, ()> + Send + Sync>;

/// A handler made of a function; see [`function`] and [`blocking`].
///
/// `J` is the job as the function takes it, `W` how the function is run.
pub struct Function<J, F, W = Async> {
    run: Arc<F>,
    failed: Option<FailedHook>,
    compare: Option<CompareHook>,
    middleware: Vec<Arc<dyn Middleware>>,
    input: PhantomData<fn() -> (J, W)>,
}

/// A handler made of a blocking function; see [`blocking`].
pub type Blocking<J, F> = Function<J, F, OnThread>;

/// Marks a [`Function`] that is async.
#[derive(Debug, Clone, Copy)]
pub struct Async;

/// Marks a [`Function`] that blocks a thread of its own.
#[derive(Debug, Clone, Copy)]
pub struct OnThread;

/// Makes a handler of an `async fn(Job, JobContext) -> Result<(), E>`.
///
/// `Job` is any type that serde can read: a struct with the properties of the
/// PHP class, [`php::Value`](crate::php::Value)-like trees such as
/// `serde_json::Value`, or `serde::de::IgnoredAny`. State is shared by
/// capturing it.
///
/// ```
/// use artisand::handler::{self, JobContext};
/// use artisand::Registry;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct SendReceipt {
///     #[serde(rename = "orderId")]
///     order_id: u64,
/// }
///
/// async fn send_receipt(job: SendReceipt, context: JobContext) -> Result<(), std::io::Error> {
///     println!("order {} on attempt {}", job.order_id, context.attempts());
///     Ok(())
/// }
///
/// let registry = Registry::new().with("send_receipt", handler::function(send_receipt));
/// ```
pub fn function<J, F, R, E>(function: F) -> Function<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError>,
{
    Function::new(function)
}

/// Makes a handler of a `fn(Job, JobContext) -> Result<(), E>` that blocks its thread.
///
/// The function cannot be cancelled from outside: a long one should check
/// [`JobContext::is_cancelled`] now and then. A function that does not return
/// after its timeout keeps its slot, and the worker stops after its other jobs so
/// that its process manager starts a fresh one.
pub fn blocking<J, F, E>(function: F) -> Blocking<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> Result<(), E> + Send + Sync + 'static,
    E: Into<BoxError>,
{
    Function::new(function)
}

impl<J, F, W> Function<J, F, W> {
    fn new(run: F) -> Self {
        Self {
            run: Arc::new(run),
            failed: None,
            compare: None,
            middleware: Vec::new(),
            input: PhantomData,
        }
    }

    /// Sets a function that is called after a job failed for good.
    #[must_use]
    pub fn on_failed<H, R>(mut self, hook: H) -> Self
    where
        H: Fn(JobContext, Arc<FailureText>) -> R + Send + Sync + 'static,
        R: Future<Output = ()> + Send + 'static,
    {
        self.failed = Some(Arc::new(move |context, error| {
            Box::pin(hook(context, error))
        }));
        self
    }

    /// Sets a function that compares a job with its run in PHP, for mappings with `mode = "shadow"`.
    ///
    /// The function gets the job as the handler would, and returns an error that
    /// describes the difference: it may compute the result and check whether PHP
    /// stored the same in the database.
    ///
    /// ```
    /// use std::sync::Arc;
    /// use artisand::handler::{self, JobContext, RunInPhp};
    ///
    /// # #[derive(serde::Deserialize)] struct Total { order: u64 }
    /// # async fn total(job: Total, _: JobContext) -> Result<(), std::io::Error> { Ok(()) }
    /// let handler = handler::function(total).with_compare(
    ///     |job: Total, _: JobContext, run: Arc<RunInPhp>| async move {
    ///         match run.has_succeeded() || job.order == 0 {
    ///             true => Ok(()),
    ///             false => Err(format!("order {} has a total here", job.order)),
    ///         }
    ///     },
    /// );
    /// ```
    #[must_use]
    pub fn with_compare<H, R, E>(mut self, hook: H) -> Self
    where
        J: DeserializeOwned + Send + 'static,
        H: Fn(J, JobContext, Arc<RunInPhp>) -> R + Send + Sync + 'static,
        R: Future<Output = Result<(), E>> + Send + 'static,
        E: Into<BoxError>,
    {
        self.compare = Some(Arc::new(move |context, run| {
            let compared = input::<J>(&context).map(|job| hook(job, context, run));
            Box::pin(async move { compared?.await.map_err(Into::into) })
        }));
        self
    }

    /// Wraps the function in a middleware, inside those added before.
    #[must_use]
    pub fn with_middleware(mut self, middleware: impl Middleware) -> Self {
        self.middleware.push(Arc::new(middleware));
        self
    }

    fn call_hook(&self, context: JobContext, error: Arc<FailureText>) -> BoxFuture<'_, ()> {
        match &self.failed {
            Some(hook) => hook(context, error),
            None => Box::pin(std::future::ready(())),
        }
    }
}

impl<J, F, W> fmt::Debug for Function<J, F, W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
}

/// What async and blocking functions have in common.
macro_rules! hooks {
    ($job:ty) => {
        fn failed(&self, context: JobContext, error: Arc<FailureText>) -> BoxFuture<'_, ()> {
            self.call_hook(context, error)
        }

        fn has_failed_hook(&self) -> bool {
            self.failed.is_some()
        }

        fn check(&self, context: &JobContext) -> Result<(), BoxError> {
            input::<$job>(context).map(drop).map_err(Into::into)
        }

        fn compare(
            &self,
            context: JobContext,
            run: Arc<RunInPhp>,
        ) -> Option<BoxFuture<'_, Result<(), BoxError>>> {
            self.compare
                .as_ref()
                .map(|compare| compare(context, run) as BoxFuture<'_, _>)
        }

        fn middleware(&self) -> Vec<Arc<dyn Middleware>> {
            self.middleware.clone()
        }
    };
}

impl<J, F, R, E> Handler for Function<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> R + Send + Sync + 'static,
    R: Future<Output = Result<(), E>> + Send + 'static,
    E: Into<BoxError>,
{
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        let run = input::<J>(&context).map(|job| (self.run)(job, context));
        Box::pin(async move { run?.await.map_err(Into::into) })
    }

    hooks!(J);
}

impl<J, F, E> Handler for Blocking<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> Result<(), E> + Send + Sync + 'static,
    E: Into<BoxError>,
{
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        let run = Arc::clone(&self.run);
        // Log lines of the function's own thread carry the job's span, too.
        let span = tracing::Span::current();
        let running = tokio::task::spawn_blocking(move || {
            let run = || {
                let job = input::<J>(&context)?;
                run(job, context).map_err(Into::into)
            };
            // The place of a panic is known only on the panicking thread.
            span.in_scope(|| catch_unwind(AssertUnwindSafe(run)))
                .unwrap_or_else(|panic| resume_unwind(Box::new(panic_text(&*panic))))
        });
        Box::pin(async move {
            match running.await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    // Rethrow on the job's own task, where panics are caught.
                    Ok(panic) => resume_unwind(panic),
                    Err(error) => Err(error.into()),
                },
            }
        })
    }

    hooks!(J);

    fn is_blocking(&self) -> bool {
        true
    }
}
