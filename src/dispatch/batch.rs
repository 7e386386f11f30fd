//! New batches: jobs that are counted together.

use std::sync::Arc;

use serde::Serialize;

use super::app::App;
use super::callbacks::callbacks;
use super::error::DispatchError;
use crate::handler::batch::{AddError, BatchHandle, BatchJob};
use crate::handler::{BoxError, BoxFuture};
use crate::php::{Array, Key, Object, Value};

/// A batch that is stored, and whose jobs are pushed, when it is awaited.
///
/// As in Laravel, its jobs go to the batch's connection and queue, whatever they name themselves, and unique ones take
/// no locks. What is awaited is the batch as the table has it then.
///
/// # Source
///
/// `Illuminate\Bus\PendingBatch`.
#[derive(Debug)]
#[must_use = "nothing is dispatched before it is awaited"]
pub struct PendingBatch {
    app: Arc<App>,
    name: String,
    jobs: Result<Vec<BatchJob>, DispatchError>,
    /// In the order in which they were set, as PHP has them.
    options: Vec<(&'static str, Setting)>,
}

#[derive(Debug)]
enum Setting {
    Plain(Value),
    /// Jobs that callbacks dispatch.
    Jobs(Vec<Object>),
}

impl PendingBatch {
    pub(super) fn of(app: Arc<App>) -> Self {
        Self {
            app,
            name: String::new(),
            jobs: Ok(Vec::new()),
            options: Vec::new(),
        }
    }

    /// Names the batch.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Adds a job.
    pub fn job<T: Serialize>(self, job: &T) -> Self {
        let job = self.app.read(job).map(BatchJob::One);
        self.with(job)
    }

    /// Adds jobs.
    pub fn jobs<T: Serialize>(self, jobs: impl IntoIterator<Item = T>) -> Self {
        jobs.into_iter().fold(self, |batch, job| batch.job(&job))
    }

    /// Adds jobs that run one after the other.
    pub fn chain<T: Serialize>(self, jobs: impl IntoIterator<Item = T>) -> Self {
        let jobs = jobs.into_iter().map(|job| self.app.read(&job));
        let jobs = jobs.collect::<Result<Vec<Object>, _>>();
        self.with(jobs.map(BatchJob::Chain))
    }

    /// Adds a job, or a chain of them, as objects.
    pub fn object(self, job: impl Into<BatchJob>) -> Self {
        self.with(Ok(job.into()))
    }

    fn with(mut self, job: Result<BatchJob, DispatchError>) -> Self {
        self.jobs = self.jobs.and_then(|mut jobs| {
            jobs.push(job?);
            Ok(jobs)
        });
        self
    }

    /// `onQueue`: the queue of all jobs.
    pub fn on_queue(self, queue: impl Into<String>) -> Self {
        self.set("queue", queue.into())
    }

    /// `onConnection`: the queue connection of all jobs.
    pub fn on_connection(self, connection: impl Into<String>) -> Self {
        self.set("connection", connection.into())
    }

    /// `allowFailures`: the batch goes on after a failure.
    pub fn allow_failures(self) -> Self {
        self.set("allowFailures", true)
    }

    /// Dispatches this job when all jobs of the batch have succeeded. PHP does it, so this needs the app's key, and
    /// Laravel 8.62.
    pub fn then<T: Serialize>(self, job: &T) -> Self {
        self.callback("then", job)
    }

    /// Dispatches this job when the first job of the batch has failed for good.
    pub fn catch<T: Serialize>(self, job: &T) -> Self {
        self.callback("catch", job)
    }

    /// Dispatches this job when all jobs of the batch have ended.
    pub fn finally<T: Serialize>(self, job: &T) -> Self {
        self.callback("finally", job)
    }

    fn set(mut self, name: &'static str, value: impl Into<Value>) -> Self {
        let value = Setting::Plain(value.into());
        match self.options.iter_mut().find(|(known, _)| *known == name) {
            Some((_, known)) => *known = value,
            None => self.options.push((name, value)),
        }
        self
    }

    fn callback<T: Serialize>(mut self, name: &'static str, job: &T) -> Self {
        match self.app.read(job) {
            Ok(job) => match self.options.iter_mut().find(|(known, _)| *known == name) {
                Some((_, Setting::Jobs(jobs))) => jobs.push(job),
                _ => self.options.push((name, Setting::Jobs(vec![job]))),
            },
            Err(error) => self.jobs = self.jobs.and(Err(error)),
        }
        self
    }

    async fn push(self) -> Result<BatchHandle, DispatchError> {
        let jobs = self.jobs?;
        let services = &self.app.services;
        let mut pairs = Vec::new();
        for (name, setting) in self.options {
            let value = match setting {
                Setting::Plain(value) => value,
                Setting::Jobs(jobs) => callbacks(services, jobs)?,
            };
            pairs.push((Key::String(name.into()), value));
        }
        let options = Value::from(Array { pairs }).to_bytes();
        let batches = services.batches();
        let batches = batches.map_err(|error| DispatchError::OnlyPhp(error.into()))?;
        let inherited = self.app.inherited.clone();
        let batch = BatchHandle::of_new(&self.name, &options, batches, services, inherited);
        Ok(batch.store(&options, jobs).await?)
    }
}

impl From<AddError> for DispatchError {
    fn from(error: AddError) -> Self {
        match error {
            AddError::Unfit(unfit) => unfit.into(),
            AddError::Job { source, .. } | AddError::Queue(source) => source.into(),
            error @ (AddError::NotBatchable { .. }
            | AddError::NotQueueable { .. }
            | AddError::EmptyChain) => Self::unfit(error),
            error if error.may_be_pushed() => Self::Unknown(error.into()),
            AddError::Batch(error) => Self::Refused(error.into()),
        }
    }
}

impl IntoFuture for PendingBatch {
    type Output = Result<BatchHandle, DispatchError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    /// Once it has begun, the dispatch goes on even if the future is dropped: a batch is never left half stored.
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let pushed = tokio::spawn(self.push()).await;
            pushed.map_err(|error| DispatchError::Unknown(BoxError::from(error)))?
        })
    }
}
