//! Wakes an idle worker: announced pushes, and PHP processes that wait for jobs.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Notify, mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::connection::Reconnect;
use crate::queue::{Ability, Queue, QueueName};
use crate::shown::with_causes;

/// Pushes that were announced, and changes in the PHP pool.
pub(super) struct Wakeups {
    /// Queues whose announcements were taken since the last pop.
    woken: Vec<QueueName>,
    /// Lets the waiter take the next announcement.
    arm: Arc<Notify>,
    /// Until then announcements are left to other workers.
    rests_until: Option<Instant>,
    pushed: mpsc::Receiver<QueueName>,
    /// Changes when a PHP process starts or stops waiting.
    php: Option<watch::Receiver<u64>>,
}

/// The reason for a wake-up.
#[derive(Debug)]
pub(super) enum Woken {
    /// A push was announced.
    Pushed,
    /// A PHP process starts or stops waiting.
    Php,
}

impl Wakeups {
    /// Starts to wait for pushes if the queue announces them.
    pub(super) fn start(
        queue: &Arc<dyn Queue>,
        queues: &[QueueName],
        php: Option<watch::Receiver<u64>>,
        helpers: &mut JoinSet<()>,
    ) -> Self {
        let arm = Arc::new(Notify::new());
        let (announce, pushed) = mpsc::channel(1);
        if queue.abilities().has(Ability::AnnouncesPushes) {
            let (queue, queues) = (Arc::clone(queue), queues.to_vec());
            helpers.spawn(keep_waiting(queue, queues, Arc::clone(&arm), announce));
        }
        Self {
            woken: Vec::new(),
            arm,
            rests_until: None,
            pushed,
            php,
        }
    }

    /// The queues whose announcements were taken, for the next pop.
    pub(super) fn take(&mut self) -> Vec<QueueName> {
        std::mem::take(&mut self.woken)
    }

    /// Leaves announcements to other workers until `moment`.
    pub(super) fn rest_until(&mut self, moment: Instant) {
        self.rests_until = Some(moment);
    }

    /// Whether announcements are left to other workers.
    pub(super) fn rests(&self, now: Instant) -> bool {
        self.rest_end(now).is_some()
    }

    /// When announcements are taken again; `None` for now.
    pub(super) fn rest_end(&self, now: Instant) -> Option<Instant> {
        self.rests_until.filter(|until| *until > now)
    }

    /// Takes the next announcement, unless announcements are left to other workers.
    pub(super) fn arm(&mut self, now: Instant) {
        if !self.rests(now) {
            self.rests_until = None;
            self.arm.notify_one();
        }
    }

    /// Waits for something to happen.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost.
    pub(super) async fn next(&mut self) -> Woken {
        let pushed = async |pushed: &mut mpsc::Receiver<QueueName>| match pushed.recv().await {
            Some(queue) => queue,
            None => std::future::pending().await,
        };
        let queue = tokio::select! {
            biased;
            queue = pushed(&mut self.pushed) => queue,
            () = changed(&mut self.php) => return Woken::Php,
        };
        self.woken.push(queue);
        Woken::Pushed
    }
}

/// Waits until a PHP process starts or stops waiting; forever without a pool.
async fn changed(changes: &mut Option<watch::Receiver<u64>>) {
    let is_told = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_told {
        std::future::pending::<()>().await;
    }
}

/// Waits for a push whenever armed, and sends its queue to `announce`, until the future is dropped.
async fn keep_waiting(
    queue: Arc<dyn Queue>,
    queues: Vec<QueueName>,
    armed: Arc<Notify>,
    announce: mpsc::Sender<QueueName>,
) {
    const AT_A_TIME: Duration = Duration::from_secs(10);
    let mut reconnect = Reconnect::default();
    loop {
        armed.notified().await;
        let pushed = loop {
            match queue.wait_for_push(&queues, AT_A_TIME).await {
                Ok(Some(queue)) => break queue,
                Ok(None) => reconnect.reset(),
                Err(error) => {
                    // The loop that pops logs the loss; a log line here would repeat it.
                    tracing::debug!(error = with_causes(&error), "could not wait for pushes");
                    reconnect.wait().await;
                }
            }
        };
        reconnect.reset();
        if announce.send(pushed).await.is_err() {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::NoQueue;
    use crate::worker::test_support::{Fault, S, Server, job};

    /// The next wake-up, if it comes within a minute.
    async fn next(wakeups: &mut Wakeups) -> Option<Woken> {
        tokio::time::timeout(S(60), wakeups.next()).await.ok()
    }

    fn start(server: &Arc<Server>, helpers: &mut JoinSet<()>) -> Wakeups {
        let queue: Arc<dyn Queue> = Arc::clone(server) as _;
        Wakeups::start(&queue, &["default".into()], None, helpers)
    }

    #[tokio::test(start_paused = true)]
    async fn an_announcement_is_left_to_other_workers_until_this_one_is_idle() {
        let (server, mut helpers) = (Server::new(), JoinSet::new());
        server.push(&[job(1)]).await;
        let mut wakeups = start(&server, &mut helpers);
        assert!(next(&mut wakeups).await.is_none());
        assert!(server.calls("wait").is_empty());
        wakeups.arm(Instant::now());
        assert!(matches!(next(&mut wakeups).await, Some(Woken::Pushed)));
        // One is taken each time, and the next pop is told of it.
        assert!(next(&mut wakeups).await.is_none());
        assert_eq!(wakeups.take(), ["default".into()]);
        assert!(wakeups.take().is_empty());
        assert_eq!(server.calls("wait").len(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_worker_that_rests_takes_no_announcement() {
        let (server, mut helpers) = (Server::new(), JoinSet::new());
        server.push(&[job(1)]).await;
        let mut wakeups = start(&server, &mut helpers);
        let until = Instant::now() + S(120);
        wakeups.rest_until(until);
        wakeups.arm(Instant::now());
        assert!(next(&mut wakeups).await.is_none());
        assert_eq!(wakeups.rest_end(Instant::now()), Some(until));
        assert!(wakeups.rests(Instant::now()) && !wakeups.rests(until));
        tokio::time::sleep_until(until).await;
        wakeups.arm(until);
        assert!(next(&mut wakeups).await.is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_that_fails_is_made_again_and_not_without_a_pause() {
        let (server, mut helpers) = (Server::new(), JoinSet::new());
        server.next("wait", [Some(Fault::Refused); 60]);
        let mut wakeups = start(&server, &mut helpers);
        wakeups.arm(Instant::now());
        assert!(next(&mut wakeups).await.is_none());
        let calls = server.calls("wait").len();
        assert!((5..60).contains(&calls), "{calls} calls in a minute");
        server.push(&[job(1)]).await;
        while next(&mut wakeups).await.is_none() {}
        assert_eq!(wakeups.take(), ["default".into()]);
    }

    #[tokio::test(start_paused = true)]
    async fn php_processes_wake_the_loop_too() {
        let (server, mut helpers) = (Server::new(), JoinSet::new());
        let queue: Arc<dyn Queue> = server;
        let (changes, seen) = watch::channel(0);
        let mut wakeups = Wakeups::start(&queue, &["default".into()], Some(seen), &mut helpers);
        assert!(next(&mut wakeups).await.is_none());
        changes.send_replace(1);
        assert!(matches!(next(&mut wakeups).await, Some(Woken::Php)));
        // The pool is gone, and nothing spins.
        drop(changes);
        assert!(next(&mut wakeups).await.is_none());
    }

    #[tokio::test(start_paused = true)]
    async fn no_task_waits_where_pushes_are_not_announced() {
        let mut helpers = JoinSet::new();
        let queue: Arc<dyn Queue> = Arc::new(NoQueue::new("null"));
        let mut wakeups = Wakeups::start(&queue, &["default".into()], None, &mut helpers);
        assert!(helpers.is_empty());
        wakeups.arm(Instant::now());
        assert!(next(&mut wakeups).await.is_none());
    }
}
