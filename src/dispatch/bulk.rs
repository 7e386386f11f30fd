//! Many jobs in few steps.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::app::App;
use super::error::DispatchError;
use super::pending::{Options, Wait, plan};

use crate::handler::BoxFuture;
use crate::handler::dispatch::{self as draft};
use crate::php::Object;
use crate::queue::{Push, QueueName};

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
    async fn push(self) -> Result<usize, DispatchError> {
        let services = &self.app.services;
        let context = self.app.context.as_deref();
        let mut places: BTreeMap<String, Vec<Push>> = BTreeMap::new();
        let count = self.jobs.len();
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
        for (connection, pushes) in places {
            let (name, destination) = draft::destination(services, Some(&connection))?;
            let queues = draft::queues(name, destination)?;
            let mut lists: BTreeMap<QueueName, Vec<Vec<u8>>> = BTreeMap::new();
            for push in pushes {
                match push.due {
                    Some(due) => queues.later(&push.queue, due, &push.payload).await?,
                    None => lists.entry(push.queue).or_default().push(push.payload),
                }
            }
            for (queue, payloads) in lists {
                for step in steps(&payloads) {
                    queues.push(&queue, step).await?;
                }
            }
        }
        Ok(count)
    }
}

impl IntoFuture for Bulk {
    type Output = Result<usize, DispatchError>;
    type IntoFuture = BoxFuture<'static, Self::Output>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.push())
    }
}

/// Splits payloads into what one step pushes.
fn steps(payloads: &[Vec<u8>]) -> impl Iterator<Item = &[Vec<u8>]> {
    let mut rest = payloads;
    std::iter::from_fn(move || {
        let mut bytes = 0;
        let fits = |payload: &&Vec<u8>| {
            bytes += payload.len();
            bytes <= MOST_BYTES
        };
        let fitting = rest.iter().take(MOST).take_while(fits).count();
        let (step, after) = rest.split_at(fitting.max(1).min(rest.len()));
        rest = after;
        (!step.is_empty()).then_some(step)
    })
}
