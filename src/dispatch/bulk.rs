//! Many jobs in few steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::app::App;
use super::error::DispatchError;
use super::pending::{Options, Wait, plan};
use super::push::A_WHILE;
use crate::handler::BoxFuture;
use crate::handler::dispatch::{self as draft};
use crate::payload::random_id;
use crate::php::Object;
use crate::queue::{Once, Push, Queue, QueueName};

/// Jobs that go to a queue together. They are pushed when it is awaited, which says how many.
#[derive(Debug)]
#[must_use = "nothing is dispatched before it is awaited"]
pub struct Bulk {
    app: Arc<App>,
    jobs: Vec<Result<Object, DispatchError>>,
    options: Options,
}

/// Jobs, and bytes of payloads, that one step pushes at most.
const MOST: usize = 1_000;
const MOST_BYTES: usize = 4 << 20;

impl Bulk {
    pub(super) fn of(app: Arc<App>, jobs: Vec<Result<Object, DispatchError>>) -> Self {
        Self {
            app,
            jobs,
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

    /// Makes all payloads, then pushes them; a job that cannot be made keeps all from being pushed.
    async fn push(self) -> Result<usize, BulkError> {
        let count = self.jobs.len();
        let services = Arc::clone(&self.app.services);
        let places = self.payloads().await.map_err(BulkError::before)?;
        let mut queued = 0;
        for (connection, pushes) in places {
            let queues = draft::destination(&services, Some(&connection))
                .and_then(|(name, destination)| draft::queues(name, destination))
                .map_err(|error| BulkError::before(error.into()).after(queued))?;
            for step in steps(pushes) {
                let (size, pushed) = step.push(&**queues).await;
                pushed.map_err(|error| BulkError {
                    queued,
                    unknown: if error.may_be_pushed() { size } else { 0 },
                    source: error,
                })?;
                queued += size;
            }
        }
        Ok(count)
    }

    /// What is to be pushed, by queue connection.
    async fn payloads(self) -> Result<BTreeMap<String, Vec<Push>>, DispatchError> {
        let services = &self.app.services;
        let context = self.app.context.as_deref();
        let mut places: BTreeMap<String, Vec<Push>> = BTreeMap::new();
        for job in self.jobs {
            let planned = plan(&self.app, job?, &self.options)?;
            if planned.draft.facts.unique.is_some() {
                let class = planned.draft.facts.class;
                let what = format!("{class} is unique: dispatch its jobs one by one");
                return Err(DispatchError::unfit(what));
            }
            let ready = planned.finish(services, context, None).await?;
            places.entry(ready.connection).or_default().push(ready.push);
        }
        Ok(places)
    }
}

/// A bulk that was not pushed as a whole.
#[derive(Debug, thiserror::Error)]
#[error("{queued} jobs were pushed, and {unknown} more may be")]
#[non_exhaustive]
pub struct BulkError {
    /// Jobs that are on their queues for certain. They are the first ones, unless the jobs have different queues.
    pub queued: usize,
    /// Jobs that may be: the server's reply about them was lost.
    pub unknown: usize,
    /// The error of the step that ended it.
    #[source]
    pub source: DispatchError,
}

impl BulkError {
    fn before(source: DispatchError) -> Self {
        Self {
            queued: 0,
            unknown: 0,
            source,
        }
    }

    fn after(self, queued: usize) -> Self {
        Self { queued, ..self }
    }
}

impl IntoFuture for Bulk {
    type Output = Result<usize, BulkError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.push())
    }
}

/// What one step pushes.
enum Step {
    Now(QueueName, Vec<Vec<u8>>),
    Later(Vec<Push>),
}

impl Step {
    /// The number of its jobs, and whether they were pushed.
    async fn push(self, queues: &dyn Queue) -> (usize, Result<(), DispatchError>) {
        match self {
            Self::Now(queue, payloads) => {
                let pushed = queues.push(&queue, &payloads).await;
                (payloads.len(), pushed.map_err(DispatchError::from))
            }
            Self::Later(pushes) => {
                let id = random_id();
                let once = Once {
                    id: id.as_str(),
                    remembered: A_WHILE,
                    note: "1",
                };
                let pushed = queues.push_once(&pushes, once).await;
                (pushes.len(), pushed.map(drop).map_err(DispatchError::from))
            }
        }
    }
}

/// Splits jobs into steps, in order: neighbours of the same queue go together.
fn steps(pushes: Vec<Push>) -> Vec<Step> {
    let mut steps = Vec::new();
    let mut bytes = 0;
    for push in pushes {
        bytes += push.payload.len();
        let fits = |count: usize| count < MOST && bytes <= MOST_BYTES;
        match (steps.last_mut(), push.due) {
            (Some(Step::Now(queue, payloads)), None)
                if *queue == push.queue && fits(payloads.len()) =>
            {
                payloads.push(push.payload);
            }
            (Some(Step::Later(pushes)), Some(_)) if fits(pushes.len()) => pushes.push(push),
            (_, due) => {
                bytes = push.payload.len();
                steps.push(match due {
                    None => Step::Now(push.queue, vec![push.payload]),
                    Some(_) => Step::Later(vec![push]),
                });
            }
        }
    }
    steps
}
