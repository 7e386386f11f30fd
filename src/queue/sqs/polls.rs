//! Long polls: what an idle worker waits for.
//!
//! A long poll takes the messages it finds, and each receipt counts as an attempt of its job, of which it may have but
//! one. So what a poll has caught is run by this worker: polls together take no more than the last pop had room for,
//! a pop leaves room for those that are under way, what is caught stays reserved until a pop takes it, and a worker
//! that stops waits for its polls.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::{Instant, sleep, timeout_at};

use super::address::Url;
use super::client::AT_ONCE;
use super::core::Core;
use crate::queue::{Error, QueueName, ReservedJob};

/// How long a poll waits at most: as long as a worker may take to stop.
const WAIT: Duration = Duration::from_secs(5);
/// The least that the server takes for a wait.
const SHORTEST_WAIT: Duration = Duration::from_secs(1);

/// What polls do, and have found.
#[derive(Debug, Default)]
struct State {
    /// The queues of the last pop.
    queues: Vec<QueueName>,
    /// The jobs that it had room for.
    room: usize,
    /// Most messages of each poll that is under way.
    under_way: HashMap<Url, usize>,
    /// What polls have found, and no pop has taken.
    caught: Vec<Arc<ReservedJob>>,
    /// The queue to begin with, if there is not room for a poll of each.
    turn: usize,
    /// No more polls.
    has_ended: bool,
    problem: Option<Error>,
}

impl State {
    /// Room that is not free for jobs of a pop.
    fn taken(&self) -> usize {
        self.under_way.values().sum::<usize>() + self.caught.len()
    }

    /// Queues to poll now, as far as they are open, with the most messages and the wait of each poll.
    fn next_polls(
        &mut self,
        core: &Core,
        open: &[QueueName],
    ) -> Vec<(QueueName, Url, usize, Duration)> {
        if self.has_ended || self.queues.is_empty() {
            return Vec::new();
        }
        let count = self.queues.len();
        let each = (self.room / count).clamp(1, AT_ONCE);
        // With fewer slots than queues, they take turns.
        let share = u32::try_from(self.room.min(count)).unwrap_or(u32::MAX);
        // What is found may have been reserved when the poll began: most of its reservation has to be left then.
        let wait = WAIT.min(core.retry_after() / 3);
        let wait = wait * share / u32::try_from(count).unwrap_or(u32::MAX);
        let wait = wait.max(SHORTEST_WAIT);
        let mut polls = Vec::new();
        for offset in 0..count {
            let queue = &self.queues[(self.turn + offset) % count];
            let url = core.url(queue);
            let most = if url.is_fifo() { 1 } else { each };
            let is_full = self.taken() + most > self.room;
            if is_full || self.under_way.contains_key(&url) || !open.contains(queue) {
                continue;
            }
            self.under_way.insert(url.clone(), most);
            polls.push((queue.clone(), url, most, wait));
        }
        self.turn = (self.turn + polls.len()) % count;
        polls
    }
}

/// The long polls of a connection.
#[derive(Debug, Default)]
pub(super) struct Polls {
    state: Mutex<State>,
    changed: Notify,
}

impl Polls {
    fn state(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes what was caught of these queues, and says how many jobs a pop may take besides.
    pub(super) fn take(&self, queues: &[QueueName], most: usize) -> (Vec<ReservedJob>, usize) {
        let mut state = self.state();
        let (mut taken, mut left) = (Vec::new(), Vec::new());
        for job in std::mem::take(&mut state.caught) {
            let is_wanted = taken.len() < most && queues.contains(&job.queue);
            if is_wanted { &mut taken } else { &mut left }.push(job);
        }
        state.caught = left;
        let free = if state.has_ended {
            0
        } else {
            most.saturating_sub(taken.len() + state.taken())
        };
        let jobs = taken.iter().map(|job| (**job).clone()).collect();
        (jobs, free)
    }

    /// Whether a poll of this queue is under way, which finds what a pop would.
    pub(super) fn covers(&self, url: &Url) -> bool {
        self.state().under_way.contains_key(url)
    }

    /// Notes what the last pop had room for and did not find.
    pub(super) fn want(&self, queues: &[QueueName], room: usize) {
        let mut state = self.state();
        if state.queues != queues {
            state.queues = queues.to_vec();
            state.turn = 0;
        }
        state.room = room;
        drop(state);
        self.changed.notify_waiters();
    }

    /// Waits until a poll has found a job of these queues.
    pub(super) async fn wait(
        self: &Arc<Self>,
        core: &Arc<Core>,
        queues: &[QueueName],
        timeout: Duration,
    ) -> Result<Option<QueueName>, Error> {
        let deadline = Instant::now() + timeout;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state();
                let mut caught = state.caught.iter().map(|job| &job.queue);
                if let Some(queue) = caught.find(|queue| queues.contains(*queue)) {
                    return Ok(Some(queue.clone()));
                }
                if let Some(problem) = state.problem.take() {
                    return Err(problem);
                }
                if state.queues.is_empty() {
                    // Before the first pop.
                    state.queues = queues.to_vec();
                    state.room = 1;
                }
                for (queue, url, most, wait) in state.next_polls(core, queues) {
                    let (polls, core) = (Arc::clone(self), Arc::clone(core));
                    tokio::spawn(async move { polls.poll(&core, queue, url, most, wait).await });
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return Ok(None);
            }
        }
    }

    async fn poll(&self, core: &Core, queue: QueueName, url: Url, most: usize, wait: Duration) {
        let found = core.receive(&queue, &url, most, wait).await;
        let jobs: Vec<Arc<ReservedJob>> = {
            let mut state = self.state();
            state.under_way.remove(&url);
            match found {
                Ok(jobs) => {
                    let jobs: Vec<_> = jobs.into_iter().map(Arc::new).collect();
                    state.caught.extend(jobs.iter().cloned());
                    jobs
                }
                Err(error) => {
                    state.problem = Some(error);
                    Vec::new()
                }
            }
        };
        self.changed.notify_waiters();
        self.keep(core, &jobs).await;
    }

    /// Keeps jobs reserved until a pop has taken them: that of a paused worker comes late.
    async fn keep(&self, core: &Core, jobs: &[Arc<ReservedJob>]) {
        if jobs.is_empty() {
            return;
        }
        loop {
            sleep(core.retry_after() / 3).await;
            let caught = {
                let state = self.state();
                let is_caught = |job: &&Arc<ReservedJob>| {
                    state.caught.iter().any(|caught| Arc::ptr_eq(caught, job))
                };
                jobs.iter().filter(is_caught).cloned().collect::<Vec<_>>()
            };
            if caught.is_empty() {
                return;
            }
            // What is lost, another worker has; the renewal before its run sees that.
            drop(core.renew(&caught).await);
        }
    }

    /// Begins no more polls, and waits for those under way; returns whether they have left jobs to pop.
    pub(super) async fn end(&self) -> bool {
        let deadline = Instant::now() + 2 * WAIT;
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            {
                let mut state = self.state();
                state.has_ended = true;
                if state.under_way.is_empty() {
                    return !state.caught.is_empty();
                }
            }
            if timeout_at(deadline, changed).await.is_err() {
                return !self.state().caught.is_empty();
            }
        }
    }
}
