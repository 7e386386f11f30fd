//! Chains: each job is dispatched when the one before has succeeded.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;

use super::app::App;
use super::callbacks::callbacks;
use super::error::DispatchError;
use super::pending::{Options, Wait, plan};
use super::push::{Dispatched, Prepared};
use crate::app::Unfit;
use crate::handler::BoxFuture;
use crate::handler::dispatch as draft;
use crate::php::{Array, Object, Value};

/// Jobs that run one after the other. The first is pushed when it is awaited.
///
/// # Source
///
/// `Illuminate\Foundation\Bus\PendingChain`.
#[derive(Debug)]
#[must_use = "nothing is dispatched before it is awaited"]
pub struct Chain {
    app: Arc<App>,
    jobs: Vec<Result<Object, DispatchError>>,
    catches: Vec<Result<Object, DispatchError>>,
    options: Options,
}

impl Chain {
    pub(super) fn of(app: Arc<App>) -> Self {
        Self {
            app,
            jobs: Vec::new(),
            catches: Vec::new(),
            options: Options::default(),
        }
    }

    /// Adds a job of a struct whose serde name is its class.
    pub fn then<T: Serialize>(mut self, job: &T) -> Self {
        self.jobs.push(self.app.read(job));
        self
    }

    /// Adds a job that is this object.
    pub fn then_object(mut self, object: Object) -> Self {
        self.jobs.push(Ok(object));
        self
    }

    /// Dispatches this job when one of the chain has failed for good. PHP does it, so this needs the app's key, and
    /// Laravel 8.62.
    pub fn catch<T: Serialize>(mut self, job: &T) -> Self {
        self.catches.push(self.app.read(job));
        self
    }

    /// `onQueue`: the queue of all jobs that name none.
    pub fn on_queue(mut self, queue: impl Into<String>) -> Self {
        self.options.queue = Some(queue.into());
        self
    }

    /// `onConnection`: the queue connection of all jobs that name none.
    pub fn on_connection(mut self, connection: impl Into<String>) -> Self {
        self.options.connection = Some(connection.into());
        self
    }

    /// `delay`: the wait until the first job becomes due, in whole seconds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = Some(Wait::For(delay));
        self
    }

    /// Makes the payload of the first job, which carries the others.
    ///
    /// # Errors
    ///
    /// [`DispatchError::Unfit`], [`DispatchError::OnlyPhp`].
    pub async fn prepare(self) -> Result<Prepared, DispatchError> {
        let services = &self.app.services;
        let manifest = draft::manifest(services)?;
        let mut jobs = self.jobs.into_iter();
        let Some(first) = jobs.next() else {
            return Err(DispatchError::unfit("a chain has at least one job"));
        };
        let mut first = first?;
        if !manifest
            .known_class(&first.class)
            .map_err(Unfit::from)?
            .is_queueable()
        {
            let what = format!(
                "{} does not use Queueable, so it cannot begin a chain",
                first.class
            );
            return Err(DispatchError::unfit(what));
        }
        let mut rest = Vec::new();
        for job in jobs {
            rest.push(Value::String(manifest.command(job?, Vec::new())?.bytes));
        }
        let own = |job: &Object, name: &str| {
            let value = job.get(name).cloned();
            let value = value.or_else(|| manifest.default(&job.class, name));
            value.unwrap_or(Value::Null)
        };
        let named = [
            ("chainConnection", "connection", &self.options.connection),
            ("chainQueue", "queue", &self.options.queue),
        ];
        for (of_chain, of_job, name) in named {
            let Some(name) = name else { continue };
            first.set(of_chain, &**name);
            if !own(&first, of_job).is_truthy() {
                first.set(of_job, &**name);
            }
        }
        let mut options = Options::default();
        // A job that says 0 is due at once, and a chain that says so has no delay.
        if own(&first, "delay").is_null() {
            let is_delay = |wait: &Wait| !matches!(wait, Wait::For(delay) if delay.as_secs() == 0);
            options.delay = self.options.delay.filter(is_delay);
        }
        first.set("chained", rest.into_iter().collect::<Array>());
        let catches: Vec<Object> = self.catches.into_iter().collect::<Result<_, _>>()?;
        // Classes have the property since Laravel 8.
        if services.version.is_at_least(8, 0) || !catches.is_empty() {
            first.set("chainCatchCallbacks", callbacks(services, catches)?);
        }
        let mut planned = plan(&self.app, first, &options)?;
        // As in Laravel, only a job that is dispatched by itself, or by the one before, takes its lock.
        planned.draft.facts.unique = None;
        let inherited = self.app.inherited.clone();
        let ready = planned.finish(services, inherited, None).await?;
        Ok(Prepared {
            app: Arc::clone(&self.app),
            ready,
            once: None,
        })
    }
}

impl IntoFuture for Chain {
    type Output = Result<Dispatched, DispatchError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { self.prepare().await?.push().await })
    }
}
