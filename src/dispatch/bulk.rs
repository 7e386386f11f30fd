//! Many jobs in few steps.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinHandle;

use super::app::App;
use super::error::DispatchError;
use super::pending::{Options, Wait, plan};
use super::push::A_WHILE;
use crate::handler::BoxFuture;
use crate::handler::dispatch::{self as draft, Ready};
use crate::payload::random_id;
use crate::php::Object;
use crate::queue::{Once, Push, Queue, QueueName};

/// Jobs that go to a queue together. They are pushed when it is awaited, which says how many.
#[must_use = "nothing is dispatched before it is awaited"]
pub struct Bulk<'a> {
    app: Arc<App>,
    jobs: Box<dyn Iterator<Item = Result<Object, DispatchError>> + Send + 'a>,
    options: Options,
}

impl fmt::Debug for Bulk<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Bulk")
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// Jobs, and bytes of payloads, that one step pushes at most.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

impl<'a> Bulk<'a> {
    pub(super) fn of(
        app: Arc<App>,
        jobs: impl Iterator<Item = Result<Object, DispatchError>> + Send + 'a,
    ) -> Self {
        Self {
            app,
            jobs: Box::new(jobs),
            options: Options::default(),
        }
    }

    /// `onQueue`: the queue, instead of the class's own.
    pub fn on_queue(mut self, queue: impl Into<String>) -> Self {
        self.options.queue = Some(queue.into());
        self
    }

    /// `onConnection`: the queue connection, instead of the class's own.
    pub fn on_connection(mut self, connection: impl Into<String>) -> Self {
        self.options.connection = Some(connection.into());
        self
    }

    /// `delay`: the wait until the jobs become due, in whole seconds.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = Some(Wait::For(delay));
        self
    }

    /// Makes the payloads of a step while the one before is being pushed.
    async fn push(self) -> Result<usize, BulkError> {
        let Self { app, jobs, options } = self;
        let mut sending = Sending::default();
        let mut step: Option<Step> = None;
        for job in jobs {
            let ready = match ready(&app, job, &options).await {
                Ok(ready) => ready,
                // Those before it are pushed.
                Err(error) => return Err(sending.end(step, error).await),
            };
            match &mut step {
                Some(step) if step.takes(&ready) => step.add(ready.push),
                _ => {
                    if let Some(full) = step.take() {
                        sending.send(full).await?;
                    }
                    match Step::of(&app, ready) {
                        Ok(next) => step = Some(next),
                        Err(error) => return Err(sending.end(None, error).await),
                    }
                }
            }
        }
        if let Some(last) = step {
            sending.send(last).await?;
        }
        sending.wait().await?;
        Ok(sending.queued)
    }
}

/// Makes the payload of a job.
async fn ready(
    app: &App,
    job: Result<Object, DispatchError>,
    options: &Options,
) -> Result<Ready, DispatchError> {
    let planned = plan(app, job?, options)?;
    if planned.draft.facts.unique.is_some() {
        let class = planned.draft.facts.class;
        let what = format!("{class} is unique: dispatch its jobs one by one");
        return Err(DispatchError::unfit(what));
    }
    let inherited = app.inherited.clone();
    Ok(planned.finish(&app.services, inherited, None).await?)
}

/// The step that is being pushed.
#[derive(Default)]
struct Sending {
    queued: usize,
    sent: Option<(usize, JoinHandle<Result<(), DispatchError>>)>,
}

impl Sending {
    async fn send(&mut self, step: Step) -> Result<(), BulkError> {
        self.wait().await?;
        self.sent = Some((step.pushes.len(), tokio::spawn(step.push())));
        Ok(())
    }

    async fn wait(&mut self) -> Result<(), BulkError> {
        let Some((size, sent)) = self.sent.take() else {
            return Ok(());
        };
        let pushed = sent.await;
        let source = match pushed.unwrap_or_else(|error| Err(DispatchError::Unknown(error.into())))
        {
            Ok(()) => {
                self.queued += size;
                return Ok(());
            }
            Err(error) => error,
        };
        Err(BulkError {
            queued: self.queued,
            unknown: if source.may_be_pushed() { size } else { 0 },
            source,
        })
    }

    /// Pushes what was made before an error.
    async fn end(mut self, step: Option<Step>, error: DispatchError) -> BulkError {
        if let Some(step) = step
            && let Err(error) = self.send(step).await
        {
            return error;
        }
        match self.wait().await {
            Ok(()) => BulkError {
                queued: self.queued,
                unknown: 0,
                source: error,
            },
            Err(error) => error,
        }
    }
}

/// Neighbours of one queue, which are pushed together.
struct Step {
    connection: String,
    queues: Arc<dyn Queue>,
    queue: QueueName,
    is_delayed: bool,
    pushes: Vec<Push>,
    bytes: usize,
}

impl Step {
    fn of(app: &App, ready: Ready) -> Result<Self, DispatchError> {
        let (name, destination) = draft::destination(&app.services, Some(&ready.connection))?;
        Ok(Self {
            queues: Arc::clone(draft::queues(name, destination)?),
            connection: ready.connection,
            queue: ready.push.queue.clone(),
            is_delayed: ready.push.due.is_some(),
            bytes: ready.push.payload.len(),
            pushes: vec![ready.push],
        })
    }

    fn takes(&self, ready: &Ready) -> bool {
        let push = &ready.push;
        self.connection == ready.connection
            && self.queue == push.queue
            && self.is_delayed == push.due.is_some()
            && self.pushes.len() < MOST
            && self.bytes + push.payload.len() <= MOST_BYTES
    }

    fn add(&mut self, push: Push) {
        self.bytes += push.payload.len();
        self.pushes.push(push);
    }

    async fn push(self) -> Result<(), DispatchError> {
        if !self.is_delayed {
            let payloads = self.pushes.into_iter().map(|push| push.payload);
            let payloads: Vec<Vec<u8>> = payloads.collect();
            return Ok(self.queues.push(&self.queue, &payloads).await?);
        }
        let id = random_id();
        let once = Once {
            id: id.as_str(),
            remembered: A_WHILE,
            note: "1",
        };
        self.queues.push_once(&self.pushes, once).await?;
        Ok(())
    }
}

/// A bulk that was not pushed as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{queued} jobs were pushed, and {unknown} more may be")]
#[non_exhaustive]
pub struct BulkError {
    /// Jobs that are on their queues for certain: the first ones.
    pub queued: usize,
    /// Those after them that may be: the server's reply was lost.
    pub unknown: usize,
    /// The error of the step that ended it.
    #[source]
    pub source: DispatchError,
}

/// Where some jobs are pushed, or may be, it is an error of unknown outcome, whose source says how many.
impl From<BulkError> for DispatchError {
    fn from(error: BulkError) -> Self {
        if error.queued == 0 && error.unknown == 0 {
            error.source
        } else {
            Self::Unknown(error.into())
        }
    }
}

impl<'a> IntoFuture for Bulk<'a> {
    type Output = Result<usize, BulkError>;
    type IntoFuture = BoxFuture<'a, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.push())
    }
}
