//! Handlers: what runs a job, and which one runs which.
//!
//! A handler asks, the worker acts: [`JobContext`] takes down "release me",
//! "fail me" or "delete me", and only the worker writes to Redis. What a
//! handler returns, a panic and a timeout all become one [`Outcome`].

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;

use serde::de::DeserializeOwned;

mod builtin;
mod context;
mod exec;
mod registry;
mod services;

pub use builtin::{Discard, Log};
pub use context::{JobContext, JobInfo, Request};
pub use exec::Exec;
pub use registry::{
    HandlerChoice, Mapping, MappingError, Pattern, PatternError, Registry, Route, Router,
    UnmappedPolicy,
};
pub use services::Services;

use crate::payload::{Command, Data};

/// A boxed future, as trait objects need it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// What handlers return when they fail: any error.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How an attempt ended, before anybody judged it.
#[derive(Debug)]
pub enum Outcome {
    /// The handler returned without an error.
    Finished,
    /// It returned an error, or the job's data did not fit its type.
    Threw(BoxError),
    /// It panicked; the text is the panic's message.
    Panicked(String),
    /// It ran longer than its timeout and was cancelled.
    TimedOut,
    /// It ran longer than its timeout and cannot be cancelled: a blocking function that still runs.
    Stuck,
    /// The worker had to stop before it ended.
    Stopped,
}

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

/// The messages of an error and of its causes, each said once: some errors repeat their cause in their own text.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !chain.iter().any(|said| said.contains(&text)) {
            chain.push(text);
        }
        cause = error.source();
    }
    chain
}

/// An input that does not fit the handler's type.
#[derive(Debug, thiserror::Error)]
pub enum InputError {
    /// The serialized object does not fit.
    #[error("the job does not fit the handler's input")]
    Php(#[source] crate::php::Error),
    /// The data of a string job does not fit.
    #[error("the job's data does not fit the handler's input (line {line}, column {column})")]
    Json {
        /// Line in the data.
        line: usize,
        /// Column in the data.
        column: usize,
    },
    /// There is nothing to read.
    #[error(transparent)]
    Payload(crate::payload::Error),
}

/// Reads a job's input into a type: the object's properties, or a string job's data.
///
/// # Errors
///
/// Names the property that does not fit and what was found.
pub fn input<J: DeserializeOwned>(context: &JobContext) -> Result<J, InputError> {
    let payload = context.payload();
    match &payload.data {
        Data::Json(data) => serde_json::from_str(data.get()).map_err(|error| InputError::Json {
            line: error.line(),
            column: error.column(),
        }),
        Data::Command { .. } => match Command::of(payload) {
            Ok(Some(command)) => command.deserialize().map_err(InputError::Php),
            Ok(None) => unreachable!("an object job has a command"),
            Err(error) => Err(InputError::Payload(error)),
        },
    }
}

type FailedHook = Arc<dyn Fn(JobContext, Arc<FailureText>) -> BoxFuture<'static, ()> + Send + Sync>;

fn no_hook() -> Option<FailedHook> {
    None
}

fn call_hook(
    hook: Option<&FailedHook>,
    context: JobContext,
    error: Arc<FailureText>,
) -> BoxFuture<'static, ()> {
    match hook {
        Some(hook) => hook(context, error),
        None => Box::pin(std::future::ready(())),
    }
}

/// A handler made of an async function; see [`function`].
pub struct Function<J, F> {
    run: F,
    failed: Option<FailedHook>,
    input: PhantomData<fn() -> J>,
}

/// Makes a handler of an `async fn(Job, JobContext) -> Result<(), E>`.
///
/// `Job` is any type that serde can read: a struct with the properties of the
/// PHP class, [`php::Value`](crate::php::Value)-like trees such as
/// `serde_json::Value`, or `serde::de::IgnoredAny`. State is shared by
/// capturing it.
///
/// ```
/// use artisand::handler::{self, JobContext, Registry};
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
    Function {
        run: function,
        failed: no_hook(),
        input: PhantomData,
    }
}

impl<J, F> Function<J, F> {
    /// Sets what is called after a job failed for good.
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
}

impl<J, F> fmt::Debug for Function<J, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Function").finish_non_exhaustive()
    }
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

    fn failed(&self, context: JobContext, error: Arc<FailureText>) -> BoxFuture<'_, ()> {
        call_hook(self.failed.as_ref(), context, error)
    }
}

/// A handler made of a blocking function; see [`blocking`].
pub struct Blocking<J, F> {
    function: Arc<F>,
    failed: Option<FailedHook>,
    input: PhantomData<fn() -> J>,
}

/// Makes a handler of a `fn(Job, JobContext) -> Result<(), E>` that blocks its thread.
///
/// It cannot be cancelled from outside: a long one should look at
/// [`JobContext::is_cancelled`] now and then. One that does not return after
/// its timeout keeps its slot, and the worker stops after its other jobs so
/// that a supervisor starts a fresh one.
pub fn blocking<J, F, E>(function: F) -> Blocking<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> Result<(), E> + Send + Sync + 'static,
    E: Into<BoxError>,
{
    Blocking {
        function: Arc::new(function),
        failed: no_hook(),
        input: PhantomData,
    }
}

impl<J, F> Blocking<J, F> {
    /// Sets what is called after a job failed for good.
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
}

impl<J, F> fmt::Debug for Blocking<J, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Blocking").finish_non_exhaustive()
    }
}

impl<J, F, E> Handler for Blocking<J, F>
where
    J: DeserializeOwned + Send + 'static,
    F: Fn(J, JobContext) -> Result<(), E> + Send + Sync + 'static,
    E: Into<BoxError>,
{
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        let function = Arc::clone(&self.function);
        let running = tokio::task::spawn_blocking(move || {
            let job = input::<J>(&context)?;
            function(job, context).map_err(Into::into)
        });
        Box::pin(async move {
            match running.await {
                Ok(result) => result,
                Err(error) => match error.try_into_panic() {
                    // Back onto the job's own task, where panics are caught.
                    Ok(panic) => std::panic::resume_unwind(panic),
                    Err(error) => Err(error.into()),
                },
            }
        })
    }

    fn failed(&self, context: JobContext, error: Arc<FailureText>) -> BoxFuture<'_, ()> {
        call_hook(self.failed.as_ref(), context, error)
    }

    fn is_blocking(&self) -> bool {
        true
    }
}
