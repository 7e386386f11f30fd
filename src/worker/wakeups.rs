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
    /// The queues whose pushes are waited for.
    open: watch::Sender<Vec<QueueName>>,
    /// Whether the worker stops, and pops no more jobs than those that waits have taken.
    have_ended: bool,
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
        let open = watch::Sender::new(queues.to_vec());
        if queue.abilities().has(Ability::AnnouncesPushes) {
            let (queue, open) = (Arc::clone(queue), open.subscribe());
            helpers.spawn(keep_waiting(queue, open, Arc::clone(&arm), announce));
        }
        Self {
            woken: Vec::new(),
            arm,
            rests_until: None,
            pushed,
            open,
            have_ended: false,
            php,
        }
    }

    /// Notes that the worker stops.
    pub(super) fn end(&mut self) {
        self.have_ended = true;
    }

    /// Whether the worker stops, and pops no more jobs than those that waits have taken.
    pub(super) fn have_ended(&self) -> bool {
        self.have_ended
    }

    /// Waits for pushes to these queues only from now on.
    pub(super) fn wait_for(&self, open: Vec<QueueName>) {
        self.open.send_if_modified(|known| {
            let is_news = *known != open;
            *known = open;
            is_news
        });
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
    mut open: watch::Receiver<Vec<QueueName>>,
    armed: Arc<Notify>,
    announce: mpsc::Sender<QueueName>,
) {
    const AT_A_TIME: Duration = Duration::from_secs(10);
    // Then a wait must not go on for a queue that is paused meanwhile.
    let takes_jobs = !queue.abilities().has(Ability::PutsBack);
    let mut reconnect = Reconnect::default();
    loop {
        armed.notified().await;
        let pushed = loop {
            let queues = open.borrow_and_update().clone();
            let waited = tokio::select! {
                waited = queue.wait_for_push(&queues, AT_A_TIME), if !queues.is_empty() => waited,
                changed = open.changed(), if takes_jobs || queues.is_empty() => match changed {
                    Ok(()) => continue,
                    // The worker has ended.
                    Err(_) => return,
                },
            };
            match waited {
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
    async fn a_wait_that_may_take_a_job_ends_when_its_queue_is_paused() {
        let (server, mut helpers) = (Server::that_counts_reservations(), JoinSet::new());
        let mut wakeups = start(&server, &mut helpers);
        wakeups.arm(Instant::now());
        assert!(next(&mut wakeups).await.is_none());
        wakeups.wait_for(Vec::new());
        assert!(next(&mut wakeups).await.is_none());
        let waits = server.calls("wait").len();
        server.push(&[job(1)]).await;
        assert!(next(&mut wakeups).await.is_none());
        assert_eq!(server.calls("wait").len(), waits);
        wakeups.wait_for(vec!["default".into()]);
        assert!(matches!(next(&mut wakeups).await, Some(Woken::Pushed)));
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
