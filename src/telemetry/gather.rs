//! What only servers and the pool know, asked when it is wanted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::try_join_all;
use tokio::sync::Mutex;
use tokio::time::Instant;

use super::beating::Heart;
use super::failures::FailedRead;
use crate::failed::FailedJobs;
use crate::payload::Payload;
use crate::process::pool::Pool;
use crate::queue::{
    ConnectionName, Driver, Due, Error, Ledger, Queue, QueueName, Sizes, Spool, first_waiting,
};
use crate::telemetry::jobs::unix_seconds;
use crate::time::Clock;

/// How long an answer of the server counts as new, however often it is asked for.
const FRESH: Duration = Duration::from_secs(1);
/// How long the server may take to answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// Where figures come from once the worker has started.
#[derive(Debug)]
pub struct Sources {
    /// The queues' connection.
    pub queue: Arc<dyn Queue>,
    /// artisand's own records.
    pub ledger: Arc<dyn Ledger>,
    /// Name of the connection.
    pub connection: ConnectionName,
    /// The worker's queues, in order.
    pub queues: Vec<QueueName>,
    /// PHP processes, if the worker has any.
    pub pool: Option<Pool>,
    /// How many jobs can run at once in this process.
    pub slots: usize,
    /// What tells of this worker.
    pub heart: Option<Heart>,
    /// The app's failed jobs, for the page.
    pub failed_jobs: Option<FailedJobs>,
    /// What was last read of them.
    pub(super) failed_read: Mutex<FailedRead>,
    /// What was last read of the server.
    read: Mutex<Option<(Instant, QueueReports)>>,
}

/// What the server said, or why it said nothing.
type QueueReports = Result<Arc<Backlog>, String>;

/// What the server keeps.
#[derive(Debug)]
pub(super) struct Backlog {
    pub(super) queues: Vec<QueueBacklog>,
    /// Records of failed jobs on their way to the app's store.
    pub(super) failed_jobs: u64,
    /// Follow-ups of ended jobs that are still to be done.
    pub(super) follow_ups: u64,
}

/// What one queue holds.
#[derive(Debug)]
pub(super) struct QueueBacklog {
    pub(super) queue: QueueName,
    pub(super) sizes: Sizes,
    pub(super) due: Due,
    /// Age of the oldest pending job in seconds, as far as its payload tells.
    pub(super) oldest: Option<f64>,
}

impl QueueBacklog {
    /// Number of jobs in each state, each job once.
    pub(super) fn states(&self) -> [(&'static str, u64); 5] {
        let Self { sizes, due, .. } = self;
        [
            ("pending", sizes.pending),
            ("delayed", sizes.delayed.saturating_sub(due.delayed)),
            ("due", due.delayed),
            ("reserved", sizes.reserved.saturating_sub(due.reserved)),
            ("expired", due.reserved),
        ]
    }
}

impl Sources {
    /// Sources of a worker.
    pub fn new(queue: Arc<dyn Driver>, connection: ConnectionName, queues: Vec<QueueName>) -> Self {
        Self {
            ledger: Arc::clone(&queue) as Arc<dyn Ledger>,
            queue: queue as Arc<dyn Queue>,
            connection,
            queues,
            pool: None,
            slots: 0,
            heart: None,
            failed_jobs: None,
            failed_read: Mutex::default(),
            read: Mutex::default(),
        }
    }

    /// Lets the next look ask for the failed jobs again: some were retried.
    pub(crate) async fn read_failed_anew(&self) {
        *self.failed_read.lock().await = None;
    }

    /// What the server keeps, at most a second old; the error says why it cannot be told.
    pub(super) async fn backlog(&self) -> QueueReports {
        let mut read = self.read.lock().await;
        if let Some((at, known)) = &*read
            && at.elapsed() < FRESH
        {
            return known.clone();
        }
        let asked = tokio::time::timeout(PATIENCE, self.ask()).await;
        let told = match asked {
            Ok(Ok(backlog)) => Ok(Arc::new(backlog)),
            Ok(Err(error)) => Err(crate::shown::with_causes(&error)),
            Err(_) => Err(format!("no answer within {PATIENCE:?}")),
        };
        *read = Some((Instant::now(), told.clone()));
        told
    }

    async fn ask(&self) -> Result<Backlog, Error> {
        let queues = self.queues.iter().map(|queue| self.ask_queue(queue));
        Ok(Backlog {
            queues: try_join_all(queues).await?,
            failed_jobs: self.ledger.length(Spool::FailedJobs).await?,
            follow_ups: self.ledger.length(Spool::FollowUps).await?,
        })
    }

    /// Asks about one queue.
    pub(super) async fn ask_queue(&self, queue: &QueueName) -> Result<QueueBacklog, Error> {
        let sizes = self.queue.sizes(queue).await?;
        let due = self.queue.due(queue, Clock::System.now()).await?;
        let head = first_waiting(&*self.queue, queue).await?;
        let head = head.and_then(|head| Payload::parse(&head).ok());
        let since = head.and_then(|head| head.first_due());
        Ok(QueueBacklog {
            queue: queue.clone(),
            sizes,
            due,
            oldest: since.map(|since| (unix_seconds() - since).max(0.0)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;
    use crate::time::UnixSeconds;

    #[tokio::test]
    async fn each_job_is_in_one_state() {
        let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
        let name = QueueName::from("default");
        let job =
            |id: u8| format!(r#"{{"job":"A@b","id":"{id}","createdAt":1000000000}}"#).into_bytes();
        queue.push(&name, &[job(1), job(2)]).await.unwrap();
        let now = Clock::System.now();
        let second = Duration::from_secs(1);
        for (id, due) in [
            (3, UnixSeconds(5)),
            (4, now.plus(600 * second)),
            (5, now.plus(700 * second)),
        ] {
            queue.later(&name, due, &job(id)).await.unwrap();
        }
        let sources = Sources::new(queue.clone(), "redis".into(), vec![name]);
        let backlog = sources.backlog().await.unwrap();
        let counted = backlog.queues[0].states();
        let expected = [
            ("pending", 2),
            ("delayed", 2),
            ("due", 1),
            ("reserved", 0),
            ("expired", 0),
        ];
        assert_eq!(counted, expected);
        assert!(backlog.queues[0].oldest.unwrap() > 1e8);
    }
}
