//! The batch of a running job, as its handler sees it: reading it, cancelling it, adding jobs to it.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::dispatch::{self, Draft, DraftError};
use super::{JobContext, Services};
use crate::app::{Answers, Class, Made, Manifest, Unfit};
use crate::batch::{self, Batch, Batches};
use crate::payload::{Delay, Inherited, random_id};
use crate::php::{Array, ClassName, Object, Value};
use crate::queue::{self, Once, Push, Queue, QueueName, push_surely};
use crate::shown::with_causes;

/// A queued closure, which may be in a batch, too.
const CALL_QUEUED_CLOSURE: &str = "Illuminate\\Queue\\CallQueuedClosure";

/// A batch, as it was when it was read, and where it is stored. [`fresh`](Self::fresh) reads it again.
#[derive(Debug, Clone)]
pub struct BatchHandle {
    batch: Batch,
    batches: Batches,
    services: Arc<Services>,
    /// What jobs that are added inherit.
    inherited: Inherited,
    /// The job that asked for its batch.
    job: Option<JobContext>,
}

/// A job or a chain to add to a batch.
#[derive(Debug, Clone, PartialEq)]
pub enum BatchJob {
    /// A job.
    One(Object),
    /// Jobs that are run one after the other.
    Chain(Vec<Object>),
}

impl From<Object> for BatchJob {
    fn from(job: Object) -> Self {
        Self::One(job)
    }
}

impl From<Vec<Object>> for BatchJob {
    fn from(chain: Vec<Object>) -> Self {
        Self::Chain(chain)
    }
}

/// Why jobs could not be added to a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum AddError {
    /// Laravel does not count jobs of this class in batches.
    #[error("{class} does not use `Illuminate\\Bus\\Batchable`, and so cannot be in a batch")]
    NotBatchable {
        /// The class.
        class: ClassName,
    },
    /// The class lacks the properties that store a chain.
    #[error("{class} does not use `Illuminate\\Bus\\Queueable`, and so cannot begin a chain")]
    NotQueueable {
        /// The class.
        class: ClassName,
    },
    /// One of the chains is empty.
    #[error("a chain without jobs cannot be added to a batch")]
    EmptyChain,
    /// The values do not fit the class.
    #[error(transparent)]
    Unfit(#[from] Unfit),
    /// Only PHP can push such a job.
    #[error("{class} cannot be pushed from here")]
    Job {
        /// Class of the job.
        class: ClassName,
        /// The cause, and how to solve it.
        source: DraftError,
    },
    /// Only PHP can push to the queue of the batch.
    #[error("nothing can be pushed to the batch's queue from here")]
    Queue(#[source] DraftError),
    /// The jobs could not be counted or not be pushed.
    #[error(transparent)]
    Batch(#[from] batch::Error),
}

impl AddError {
    /// Whether the jobs may be on their queue all the same.
    pub(crate) fn may_be_pushed(&self) -> bool {
        match self {
            Self::Batch(batch::Error::Push { source, .. }) => {
                let error = source.downcast_ref::<queue::Error>();
                error.is_some_and(queue::Error::is_of_unknown_outcome)
            }
            // The jobs are pushed before the transaction ends.
            Self::Batch(batch::Error::Database { what, .. }) => *what == batch::ADD,
            _ => false,
        }
    }
}

impl JobContext {
    /// Reads the current batch of the job; `None` if the job is in no batch or the batch is gone.
    ///
    /// # Errors
    ///
    /// The job is in a batch, and the app's batches are unknown or cannot be read.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batchable::batch`.
    pub async fn batch(&self) -> Result<Option<BatchHandle>, batch::Error> {
        let Some(id) = self.batch_id() else {
            return Ok(None);
        };
        match &self.services().batches {
            Some(batches) => {
                let batch = batches.find(&id).await?;
                let services = self.shared_services();
                Ok(batch.map(|batch| BatchHandle {
                    batch,
                    batches: batches.clone(),
                    services: Arc::clone(services),
                    inherited: self.info().inherited(),
                    job: Some(self.clone()),
                }))
            }
            None => Err(batch::Error::NoStore { batch: id }),
        }
    }
}

impl Deref for BatchHandle {
    type Target = Batch;

    fn deref(&self) -> &Batch {
        &self.batch
    }
}

impl BatchHandle {
    /// Makes a batch that is not stored yet, with these options as PHP serializes them.
    pub(crate) fn of_new(
        name: &str,
        options: &[u8],
        batches: &Batches,
        services: &Arc<Services>,
        inherited: Inherited,
    ) -> Self {
        Self {
            batch: batches.make(name, options),
            batches: batches.clone(),
            services: Arc::clone(services),
            inherited,
            job: None,
        }
    }

    /// Stores a new batch, and adds jobs to it. If they cannot be added, the batch goes again.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\PendingBatch::dispatch`.
    pub(crate) async fn store(self, options: &[u8], jobs: Vec<BatchJob>) -> Result<Self, AddError> {
        // What is wrong with the jobs is found before the batch is in the table.
        let addition = self.addition(jobs).await?;
        self.batches.store(&self.batch, options).await?;
        match self.push(addition).await {
            Ok(Some(added)) => Ok(added),
            Ok(None) => Err(AddError::Batch(batch::Error::Push {
                batch: self.batch.id,
                source: "its row is gone".into(),
            })),
            Err(error) => {
                if !error.may_be_pushed()
                    && let Err(error) = self.batches.delete(&self.batch.id).await
                {
                    let (error, batch) = (with_causes(&error), &*self.batch.id);
                    tracing::warn!(error, batch, "a batch without jobs stays in the table");
                }
                Err(error)
            }
        }
    }

    /// Whether the batch was cancelled when it was read.
    pub fn cancelled(&self) -> bool {
        self.batch.is_cancelled()
    }

    /// Cancels the batch for all workers. Waiting jobs still run, unless they check whether the batch is
    /// cancelled. With `events = "all"` PHP raises `BatchCanceled` when the attempt has ended.
    ///
    /// # Errors
    ///
    /// The row could not be written.
    pub async fn cancel(&self) -> Result<(), batch::Error> {
        self.batches.cancel(&self.batch.id).await?;
        if let Some(job) = &self.job
            && self.batches.raises_cancel()
        {
            job.note_cancelled_batch(&self.batch.id);
        }
        Ok(())
    }

    /// The batch as it is now; `None` if its row is gone.
    ///
    /// # Errors
    ///
    /// The row could not be read.
    pub async fn fresh(&self) -> Result<Option<Self>, batch::Error> {
        let batch = self.batches.find(&self.batch.id).await?;
        Ok(batch.map(|batch| Self {
            batch,
            ..self.clone()
        }))
    }

    /// Adds jobs to the batch and pushes them. Returns the batch after that, or `None` if its row is gone and
    /// nothing was pushed.
    ///
    /// All jobs go to the batch's connection and queue, whatever they name
    /// themselves, in one step, and count from then on. A job needs only the
    /// properties for which its class has no default; `batchId` is set here.
    /// Facts that PHP would ask the class for come from the manifest. As in PHP,
    /// unique jobs take no lock, and a delay is respected since Laravel 9.7.
    ///
    /// A handler that runs again adds its jobs again.
    ///
    /// # Errors
    ///
    /// Nothing is counted or pushed if a class is not `Batchable`, if only PHP
    /// can make its payload, or if artisand cannot use the batch's connection.
    /// `batch::Error::Push` if the server did not take the jobs: they are not
    /// counted then, even if a reply was lost and they may be pushed. `batch::Error::Database` if they could not be
    /// counted; if only the final commit failed, they are pushed all the same, as in Laravel.
    ///
    /// # Cancel safety
    ///
    /// Once it has begun, the addition goes on even if the future is dropped.
    ///
    /// # Panics
    ///
    /// Panics outside of a tokio runtime.
    ///
    /// # Examples
    ///
    /// ```no_run
    /// use artisand::handler::{BatchJob, BoxError, JobContext};
    /// use artisand::php::{ClassName, Object};
    ///
    /// async fn import(page: i64, context: JobContext) -> Result<(), BoxError> {
    ///     let Some(batch) = context.batch().await? else {
    ///         return Ok(());
    ///     };
    ///     let class = ClassName::new("App\\Jobs\\ImportPage").ok_or("no class name")?;
    ///     let next = Object::new(class).public("page", page + 1);
    ///     batch.add(vec![next]).await?;
    ///     Ok(())
    /// }
    /// ```
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batch::add`, `Illuminate\Queue\RedisQueue::bulk`, `Illuminate\Queue\DatabaseQueue::bulk`.
    pub async fn add<J: Into<BatchJob>>(&self, jobs: Vec<J>) -> Result<Option<Self>, AddError> {
        let addition = self.addition(jobs.into_iter().map(Into::into).collect());
        self.push(addition.await?).await
    }

    async fn push(&self, addition: Addition) -> Result<Option<Self>, AddError> {
        let (batches, id) = (self.batches.clone(), self.batch.id.clone());
        // A handler may be dropped at any await, but not between the push and the count: use a task of its own.
        let added = tokio::spawn(async move {
            let (queues, pushes) = (&*addition.queues, &*addition.pushes);
            let push = async |mut counting| {
                // In one step with the count, if the queue is in the database of the batches.
                let ended = match queues.push_within(&mut counting, pushes).await {
                    Ok(false) => push(queues, pushes).await,
                    ended => ended.map(drop),
                };
                (counting, ended)
            };
            batches.add_jobs(&id, addition.count, push).await
        });
        let added = added.await.map_err(|error| batch::Error::Push {
            batch: self.batch.id.clone(),
            source: Box::new(error),
        })?;
        match added? {
            Some(()) => Ok(self.fresh().await?),
            None => Ok(None),
        }
    }

    /// Collects everything that is to be pushed.
    async fn addition(&self, jobs: Vec<BatchJob>) -> Result<Addition, AddError> {
        let services = &*self.services;
        let adder = Adder {
            services,
            manifest: dispatch::manifest(services).map_err(AddError::Queue)?,
            batch: &self.batch,
        };
        let is_named = |name: &&str| !matches!(*name, "" | "0");
        let options = &self.batch.options;
        let connection = options.connection.as_deref().filter(is_named);
        let (connection, destination) =
            dispatch::destination(services, connection).map_err(AddError::Queue)?;
        let queues = dispatch::queues(connection, destination).map_err(AddError::Queue)?;
        let queue = options.queue.as_deref().filter(is_named);
        let queue = queue.unwrap_or(destination.default_queue.as_str());
        let queue = QueueName::from(queue);

        let now = self.batches.now();
        let mut count: u32 = 0;
        let mut pushes = Vec::new();
        for job in jobs {
            let (class, command, jobs) = match job {
                BatchJob::One(job) => (job.class.clone(), adder.job(job, Vec::new())?, 1),
                BatchJob::Chain(chain) => {
                    let jobs = u32::try_from(chain.len()).unwrap_or(u32::MAX);
                    let first = chain.first().ok_or(AddError::EmptyChain)?;
                    (first.class.clone(), adder.chain(chain)?, jobs)
                }
            };
            count = count.saturating_add(jobs);
            let impossible = |source| AddError::Job {
                class: class.clone(),
                source,
            };
            let mut draft =
                Draft::of_made(services, command, &Answers::new(), now).map_err(impossible)?;
            let delay = adder.delay(&draft).map_err(impossible)?;
            let due = delay
                .as_ref()
                .map(|delay| delay.available_at(now, &services.timezone))
                .transpose();
            let due = due.map_err(DraftError::from).map_err(impossible)?;
            // `DatabaseQueue::bulk` delays the row, and does not say so in the payload.
            draft.facts.delay = delay.filter(|_| queues.abilities().driver != "database");
            let ready = draft.finish(services, &self.inherited, (connection, &queue));
            let ready = ready.await.map_err(impossible)?;
            pushes.push(Push {
                queue: queue.clone(),
                payload: ready.payload,
                due,
                claim: None,
            });
        }
        Ok(Addition {
            queues: Arc::clone(queues),
            count,
            pushes,
        })
    }
}

/// Jobs to add to a batch.
struct Addition {
    queues: Arc<dyn Queue>,
    /// How many jobs count: jobs later in chains are included.
    count: u32,
    pushes: Vec<Push>,
}

/// Pushes all jobs exactly once, even if the connection breaks in between.
async fn push(queues: &dyn Queue, pushes: &[Push]) -> Result<(), crate::queue::Error> {
    if pushes.is_empty() {
        return Ok(());
    }
    let id = random_id();
    let once = Once {
        id: id.as_str(),
        remembered: Duration::from_secs(300),
        note: "1",
    };
    // The batch's row is locked meanwhile: it gives up after a few tries.
    push_surely(queues, pushes, once).await.map(drop)
}

/// Makes the commands of jobs that are added to a batch.
struct Adder<'a> {
    services: &'a Services,
    manifest: &'a Manifest,
    batch: &'a Batch,
}

impl Adder<'_> {
    /// The command of a job of the batch, with the given properties set as well.
    fn job(&self, job: Object, mut edits: Vec<(&str, Value)>) -> Result<Made, AddError> {
        let is_closure = job.class == *CALL_QUEUED_CLOSURE;
        if !is_closure && !self.class(&job)?.is_batchable() {
            return Err(AddError::NotBatchable { class: job.class });
        }
        edits.push(("batchId", self.batch.id.as_str().into()));
        Ok(self.manifest.command(job, edits)?)
    }

    fn class(&self, job: &Object) -> Result<&Class, AddError> {
        self.manifest
            .known_class(&job.class)
            .map_err(|missing| AddError::Job {
                class: job.class.clone(),
                source: missing.into(),
            })
    }

    /// The command of the first job of a chain, which carries the others.
    fn chain(&self, chain: Vec<Object>) -> Result<Made, AddError> {
        let mut jobs = chain.into_iter();
        let first = jobs.next().ok_or(AddError::EmptyChain)?;
        if first.class != *CALL_QUEUED_CLOSURE && !self.class(&first)?.is_queueable() {
            return Err(AddError::NotQueueable { class: first.class });
        }
        let options = &self.batch.options;
        let mut edits = Vec::new();
        for (properties, option) in [
            (["queue", "chainQueue"], &options.queue),
            (["connection", "chainConnection"], &options.connection),
        ] {
            let value = match option {
                Some(name) => Value::from(&**name),
                // Since Laravel 13.1 the first job keeps its own value.
                None if self.services.version.is_at_least(13, 1) => continue,
                None => Value::Null,
            };
            edits.extend(properties.map(|property| (property, value.clone())));
        }
        let rest = jobs.map(|job| {
            self.job(job, Vec::new())
                .map(|made| Value::String(made.bytes))
        });
        let rest: Array = rest.collect::<Result<_, _>>()?;
        edits.push(("chained", rest.into()));
        self.job(first, edits)
    }

    /// The delay of a job that is added to a batch.
    fn delay(&self, draft: &Draft) -> Result<Option<Delay>, DraftError> {
        let since = |major, minor| self.services.version.is_at_least(major, minor);
        if since(13, 22) {
            return Ok(draft.facts.delay.clone());
        }
        if !since(9, 7) {
            return Ok(None);
        }
        // Read only the property: before Laravel 13.22, attributes had no effect here.
        let value = Value::from_bytes(&draft.command)?;
        let own = value.as_object().and_then(|job| job.get("delay")).cloned();
        let delay = own.or_else(|| self.manifest.default(&draft.facts.class, "delay"));
        Ok(Delay::of(&delay.unwrap_or(Value::Null))?)
    }
}
