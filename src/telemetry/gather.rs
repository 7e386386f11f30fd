//! What only servers and the pool know, asked when it is wanted.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
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
use crate::shown::with_causes;
use crate::telemetry::jobs::unix_seconds;
use crate::time::Clock;

/// How long an answer of the server counts as new, however often it is asked for.
const FRESH: Duration = Duration::from_secs(1);
/// How long the server may take to answer, and to answer a probe.
const PATIENCE: Duration = Duration::from_secs(3);
const PING: Duration = Duration::from_secs(2);

/// Where figures come from once the worker has started.
#[derive(Debug)]
pub struct Sources {
    /// The queues, with a connection that no handler keeps from being read.
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
    read: Mutex<Option<(Instant, Arc<Backlog>)>>,
}

/// What the server keeps, as far as it can be read: one part that does not answer hides no other.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Why the server does not answer.
    pub(super) problem: Option<String>,
    /// The worker's queues, in order, each with why it cannot be read.
    pub(super) queues: Vec<Result<QueueBacklog, String>>,
    /// Records of failed jobs on their way to the app's store.
    pub(super) failed_jobs: Option<u64>,
    /// Follow-ups of ended jobs that are still to be done.
    pub(super) follow_ups: Option<u64>,
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

    /// What the server keeps, at most a second old.
    pub(super) async fn backlog(&self) -> Arc<Backlog> {
        let mut read = self.read.lock().await;
        if let Some((at, known)) = &*read
            && at.elapsed() < FRESH
        {
            return Arc::clone(known);
        }
        let told = Arc::new(self.ask().await);
        *read = Some((Instant::now(), Arc::clone(&told)));
        told
    }

    async fn ask(&self) -> Backlog {
        let queues = self.queues.iter().map(|queue| self.ask_queue(queue));
        let (pinged, queues, failed_jobs, follow_ups) = tokio::join!(
            self.ping(),
            join_all(queues),
            self.length(Spool::FailedJobs),
            self.length(Spool::FollowUps),
        );
        // A server that is not asked for life (SQS) is known by its queues.
        let silent = || {
            let mut problems = queues.iter().map(|queue| queue.as_ref().err());
            let first = problems.next()??;
            problems
                .all(|problem| problem.is_some())
                .then(|| first.clone())
        };
        Backlog {
            problem: pinged.err().or_else(silent),
            queues,
            failed_jobs,
            follow_ups,
        }
    }

    /// Whether the server answers a probe; the error says why it does not.
    pub(super) async fn ping(&self) -> Result<(), String> {
        within(PING, self.queue.ping()).await
    }

    /// The length of one of artisand's own lists, if it can be read.
    pub(super) async fn length(&self, spool: Spool) -> Option<u64> {
        within(PATIENCE, self.ledger.length(spool)).await.ok()
    }

    /// Asks about one queue; the error says why it cannot be read.
    pub(super) async fn ask_queue(&self, queue: &QueueName) -> Result<QueueBacklog, String> {
        within(PATIENCE, self.read_queue(queue)).await
    }

    async fn read_queue(&self, queue: &QueueName) -> Result<QueueBacklog, Error> {
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

/// An answer, or why there is none within this time.
async fn within<T, E: std::error::Error + 'static>(
    patience: Duration,
    asked: impl Future<Output = Result<T, E>>,
) -> Result<T, String> {
    match tokio::time::timeout(patience, asked).await {
        Ok(answer) => answer.map_err(|error| with_causes(&error)),
        Err(_) => Err(format!("no answer within {patience:?}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;
    use crate::queue::faulty::{Fault, Server};
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
        let backlog = sources.backlog().await;
        let queue = backlog.queues[0].as_ref().unwrap();
        let counted = queue.states();
        let expected = [
            ("pending", 2),
            ("delayed", 2),
            ("due", 1),
            ("reserved", 0),
            ("expired", 0),
        ];
        assert_eq!(counted, expected);
        assert!(queue.oldest.unwrap() > 1e8);
        assert_eq!(
            (backlog.failed_jobs, backlog.follow_ups),
            (Some(0), Some(0))
        );
    }

    #[tokio::test(start_paused = true)]
    async fn what_does_not_answer_hides_nothing_else() {
        use Fault::{Away, Hangs};
        // What happens to the ping and to the two queues, and whether the server counts as one that answers.
        let rows = [
            (None, [None, None], true),
            (None, [Some(Away), None], true),
            (None, [None, Some(Hangs)], true),
            (None, [Some(Hangs), Some(Away)], false),
            (Some(Away), [None, None], false),
        ];
        for (ping, queues, is_up) in rows {
            let server = Server::new();
            server.next("ping", [ping]);
            server.next("sizes", queues);
            let ledger = Arc::new(MemoryQueue::new(None));
            let names = vec!["high".into(), "low".into()];
            let mut sources = Sources::new(ledger, "redis".into(), names);
            sources.queue = server;
            let backlog = sources.backlog().await;
            let are_read: Vec<_> = backlog.queues.iter().map(Result::is_ok).collect();
            assert_eq!(are_read, queues.map(|fault| fault.is_none()), "{backlog:?}");
            assert_eq!(backlog.problem.is_none(), is_up, "{backlog:?}");
            assert_eq!(backlog.follow_ups, Some(0));
        }
    }
}
