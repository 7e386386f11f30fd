//! A PHP process that has booted the app, runs no jobs, and does what it is asked.
//!
//! It is a process of its own and no idle member: what it is asked must not keep a PHP job waiting, and members are
//! there to be busy. `php-interop/helper.php` describes the requests. A process that says nothing for a while is
//! killed, with its request, and the next one is started.

use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::time::Instant;

use super::member::{Member, ProcessEvent, keep};
use super::message::PoolMessage;
use super::shared::{Answer, PoolOptions, Request, Requests, Served, Shared};

/// How long a process may say nothing of its request.
const SILENCE: Duration = Duration::from_secs(30);

/// A PHP process that does what it is asked, one request after the other.
#[derive(Debug)]
pub struct Helper {
    shared: Arc<Shared>,
    requests: mpsc::Sender<Request>,
}

impl Helper {
    /// Starts it; must be called in a runtime.
    pub fn start(options: PoolOptions, serves: &'static str) -> Self {
        let (requests, waiting) = mpsc::channel(64);
        let asked = Requests {
            serves,
            waiting: Mutex::new(waiting),
        };
        let shared = Arc::new(Shared::new(options, Some(asked)));
        if let Ok(mut members) = shared.members.try_lock() {
            // The lock is free: nothing else has it yet.
            members.spawn(keep(Arc::clone(&shared)));
        }
        Self { shared, requests }
    }

    /// Asks it; waits until it has booted, and then as long as it says something from time to time.
    ///
    /// # Cancel safety
    ///
    /// A request that was not begun is left out. One that was runs to its end.
    pub async fn ask(&self, request: &impl Serialize) -> Answer {
        let (answer, answered) = oneshot::channel();
        let Ok(mut line) = serde_json::to_vec(request) else {
            return Answer::Missing { done: 0 };
        };
        line.push(b'\n');
        // The receiver lives as long as this value.
        let _ = self.requests.send(Request { line, answer }).await;
        answered.await.unwrap_or(Answer::Missing { done: 0 })
    }

    /// Waits until it has booted the app or failed to.
    pub async fn booted(&self) {
        let mut changes = self.shared.changes.subscribe();
        loop {
            changes.borrow_and_update();
            if self.shared.health().booted > 0 || self.is_broken() {
                return;
            }
            // The sender lives as long as this value.
            let _ = changes.changed().await;
        }
    }

    /// Whether it could not boot the app at its last try.
    pub fn is_broken(&self) -> bool {
        self.shared.last_problem().is_some()
    }

    /// Lets it end, or kills it.
    pub async fn stop(&self) {
        self.shared.end_members().await;
    }
}

impl Member {
    /// Does what it is asked until the process ends.
    pub(super) async fn help(mut self, pool: &Shared, requests: &Requests) -> Served {
        let mut waiting = requests.waiting.lock().await;
        loop {
            let request = tokio::select! {
                biased;
                did = self.next_event() => {
                    if self.handle(did).await {
                        continue;
                    }
                    return self.served().await;
                }
                () = pool.stop.cancelled() => return self.end().await,
                // The sender lives as long as the helper.
                Some(request) = waiting.recv() => request,
            };
            if request.answer.is_closed() {
                continue;
            }
            self.count += 1;
            self.log.of(None);
            if !self.put(request, pool).await {
                return self.served().await;
            }
        }
    }

    /// Sends a request and waits for its answer; false if the process has ended.
    async fn put(&mut self, request: Request, pool: &Shared) -> bool {
        let mut done = 0;
        let mut until = Instant::now() + SILENCE;
        // A process that has ended, or does not read, is noticed below.
        let _ = tokio::time::timeout_at(until, self.channel.ask(&request.line)).await;
        let ended = loop {
            let did = tokio::select! {
                did = self.next_event() => did,
                () = tokio::time::sleep_until(until) => {
                    tracing::error!(
                        php.process = self.log.process,
                        "a PHP process has said nothing for {SILENCE:?} and is killed: a listener, a payload hook or a notification of the app hangs"
                    );
                    break true;
                }
                () = pool.stop.cancelled() => break true,
            };
            match did {
                ProcessEvent::Message(PoolMessage::Progress { done: more }) => {
                    done = more;
                    until = Instant::now() + SILENCE;
                }
                ProcessEvent::Message(PoolMessage::Answer { answer, last }) => {
                    // The receiver may be dropped.
                    let _ = request.answer.send(Answer::Given(answer));
                    if last {
                        self.wait_for_its_end().await;
                    }
                    return !last;
                }
                did => {
                    if !self.handle(did).await {
                        break false;
                    }
                }
            }
        };
        let _ = request.answer.send(Answer::Missing { done });
        if ended {
            self.group.kill();
            self.wait_for_its_end().await;
        }
        false
    }

    async fn wait_for_its_end(&mut self) {
        let until = Instant::now() + SILENCE;
        let mut is_killed = false;
        loop {
            let did = tokio::select! {
                did = self.next_event() => did,
                () = tokio::time::sleep_until(until), if !is_killed => {
                    is_killed = true;
                    self.group.kill();
                    continue;
                }
            };
            let is_closed = matches!(did, ProcessEvent::Silent(None));
            if !is_closed && !self.handle(did).await {
                return;
            }
        }
    }

    /// Handles an event that is no answer; false if the process has ended.
    async fn handle(&mut self, did: ProcessEvent) -> bool {
        match did {
            ProcessEvent::Output => {}
            ProcessEvent::Message(said) => self.log_problem(&said).await,
            ProcessEvent::Silent(error) => {
                if let Some(error) = error {
                    self.log_nonsense(&error);
                }
                // It ends by itself, or is of no use any more.
                self.group.kill();
            }
            ProcessEvent::Exited(status) => {
                self.log_end(status);
                for (said, _) in self.read_rest().await {
                    self.log_problem(&said).await;
                }
                return false;
            }
        }
        true
    }
}
