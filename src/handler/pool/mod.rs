//! A pool of PHP processes that run what nobody mapped, with the app's own code and Laravel's own worker.
//!
//! ```text
//! worker loop ── as many jobs as members are offered ──▶ Seat::run ──▶ Run ──▶ what Laravel did with the job
//!                                                    │  ▲
//!                          a socket per member       ▼  │
//!                                        php: Worker::daemon (php-interop/pool.php)
//! ```
//!
//! A member boots the app once and runs one job after the other. It is offered
//! when it waits for a job, or a moment before: when Laravel has deleted the
//! last one. What is assigned to it then is sent once it waits. It ends when
//! Laravel says so (jobs, time, memory, a restart signal, a lost connection),
//! when a job ends it, or when it is killed; then another takes its place. It
//! never touches a job's bytes in Redis, unless this process is gone: then it
//! ends the job it has as `queue:work` would, if it is done with it within a
//! second. After that it is killed, with what it started in its process group,
//! by the supervisor that [`supervise`](super::supervise) provides; without that
//! call it runs its job to the end, beside the next run of it once the
//! reservation has ended.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use rustix::process::Signal;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

mod channel;
mod member;
mod output;

pub use channel::Said;

use super::JobInfo;

/// How the members of a pool are started.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The program that is PHP, and arguments before ours.
    pub php: Vec<String>,
    /// The app's directory, as PHP sees it.
    pub app: PathBuf,
    /// The app's environment (`--env`), if one was named.
    pub env: Option<String>,
    /// Queue connection whose jobs are run, by the app's name for it.
    pub connection: String,
    /// The queues, separated by commas.
    pub queue: String,
    /// How many members there are.
    pub processes: NonZeroUsize,
    /// Pause after each job of a member.
    pub rest: Duration,
    /// How long a member runs jobs.
    pub max_time: Option<Duration>,
    /// Laravel's class for the store of failed jobs that is written here; PHP writes all others.
    pub failer: Option<&'static str>,
    /// Properties of Laravel's `WorkerOptions`, by their names.
    pub worker: serde_json::Map<String, serde_json::Value>,
    /// How long the app may take to boot.
    pub boot: Duration,
    /// How long a job stays reserved that nobody renews.
    pub retry_after: Option<Duration>,
    /// Whether it runs one job alone, which the app's listeners of Laravel's `Looping` cannot forbid.
    pub once: bool,
}

/// The pool cannot run jobs.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the pool of PHP processes could not start: {0}")]
pub struct PoolError(pub(crate) String);

/// PHP processes that wait for jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

/// What the pool and its members share.
#[derive(Debug)]
struct Shared {
    options: PoolOptions,
    /// Members that wait for a job or are about to, the one that was offered first in front.
    waiting: Mutex<VecDeque<Seat>>,
    /// Counts changes of `waiting`, so that others can wait for one.
    changes: watch::Sender<u64>,
    health: Mutex<Health>,
    /// Members that the app does not let work.
    paused: Arc<AtomicUsize>,
    /// Cancelled when no process is to be started any more.
    is_closing: CancellationToken,
    /// The last signal that told this process to end.
    signals: watch::Sender<Option<Signal>>,
    /// Cancelled when all are to end; jobs run on until then.
    stop: CancellationToken,
    members: tokio::sync::Mutex<JoinSet<()>>,
}

/// How the members do.
#[derive(Debug, Default)]
struct Health {
    /// How many could not boot when they last tried.
    broken: usize,
    /// What the last of them said.
    problem: String,
    /// How many have booted since the start, of all members.
    booted: u64,
    /// What the last of them said of itself.
    versions: Versions,
}

/// What runs the jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// The app's framework.
    pub laravel: String,
    /// PHP.
    pub php: String,
}

/// A member that waits for a job, or is about to. Dropped, the member waits on.
#[derive(Debug)]
pub struct Seat(oneshot::Sender<Assignment>);

/// A job on its way to a member.
#[derive(Debug)]
struct Assignment {
    info: Arc<JobInfo>,
    reserved: Arc<[u8]>,
    /// Until when no other worker can have the job, if its reservation has an end.
    lease: Option<Instant>,
    said: mpsc::Sender<Said>,
    /// Whether the failure that the member told of is written down.
    answers: mpsc::Receiver<bool>,
    kill: CancellationToken,
    /// When the member was given it, which may have been at something else before.
    begun: Arc<OnceLock<Instant>>,
}

/// A job that a member runs. Dropped, the member is killed.
#[derive(Debug)]
pub struct Run {
    said: mpsc::Receiver<Said>,
    answers: mpsc::Sender<bool>,
    kill: CancellationToken,
    begun: Arc<OnceLock<Instant>>,
    guard: Option<DropGuard>,
}

impl Pool {
    /// Starts all members; in a runtime.
    pub fn new(options: PoolOptions) -> Self {
        let count = options.processes.get();
        let shared = Arc::new(Shared {
            options,
            waiting: Mutex::default(),
            changes: watch::Sender::new(0),
            health: Mutex::default(),
            paused: Arc::default(),
            is_closing: CancellationToken::new(),
            signals: watch::Sender::default(),
            stop: CancellationToken::new(),
            members: tokio::sync::Mutex::default(),
        });
        if let Ok(mut members) = shared.members.try_lock() {
            // Nobody else has it yet.
            for _ in 0..count {
                members.spawn(member::keep(Arc::clone(&shared)));
            }
        }
        Self(shared)
    }

    /// Starts all members, and waits until one of them has booted the app or one could not.
    ///
    /// # Errors
    ///
    /// The first member could not boot the app: what it said. All are stopped then.
    pub async fn start(options: PoolOptions) -> Result<Self, PoolError> {
        let pool = Self::new(options);
        pool.booted().await?;
        Ok(pool)
    }

    /// Waits until a member has booted the app or one could not.
    ///
    /// # Errors
    ///
    /// The first member could not boot the app: what it said. All are stopped then.
    pub async fn booted(&self) -> Result<(), PoolError> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if self.0.health().booted > 0 {
                return Ok(());
            }
            if let Some(problem) = self.0.first_problem() {
                self.stop().await;
                return Err(PoolError(problem));
            }
            // The sender lives in the pool.
            let _ = changes.changed().await;
        }
    }

    /// How many members wait for a job, or are about to.
    pub fn waiting(&self) -> usize {
        let mut waiting = self.0.waiting();
        waiting.retain(|seat| !seat.0.is_closed());
        waiting.len()
    }

    /// Takes the member that was offered first.
    pub fn take(&self) -> Option<Seat> {
        let mut waiting = self.0.waiting();
        std::iter::from_fn(|| waiting.pop_front()).find(|seat| !seat.0.is_closed())
    }

    /// What the members run.
    pub fn versions(&self) -> Versions {
        self.0.health().versions.clone()
    }

    /// How many members there are to be.
    pub fn size(&self) -> usize {
        self.0.options.processes.get()
    }

    /// Why no member can be started just now; `None` while at least one may come.
    pub fn problem(&self) -> Option<String> {
        let health = self.0.health();
        (health.broken >= self.size()).then(|| health.problem.clone())
    }

    /// Wakes those who wait for a change: something else has changed.
    pub(crate) fn changed(&self) {
        self.0.changed();
    }

    /// Tells of every change in who waits, and of members that could not start.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Whether the app lets no member work: all that could start have come round without asking for a job.
    pub fn is_paused(&self) -> bool {
        let paused = self.0.paused.load(Ordering::Relaxed);
        paused > 0 && paused + self.0.health().broken >= self.size()
    }

    /// Starts no more processes: there will be no more jobs. Those that run jobs run on.
    pub fn close(&self) {
        self.0.is_closing.cancel();
    }

    /// Passes a signal on to members that run a job which Laravel tells of it; they end after it.
    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signals.send_replace(Some(signal));
    }

    /// Ends all members: those that wait at once, others are killed.
    pub async fn stop(&self) {
        self.close();
        self.0.stop.cancel();
        let mut members = self.0.members.lock().await;
        while members.join_next().await.is_some() {}
    }
}

impl Shared {
    fn waiting(&self) -> std::sync::MutexGuard<'_, VecDeque<Seat>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn health(&self) -> std::sync::MutexGuard<'_, Health> {
        self.health.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// What the first member said that could not boot.
    fn first_problem(&self) -> Option<String> {
        let health = self.health();
        (health.broken > 0).then(|| health.problem.clone())
    }

    fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Offers a member to whoever has a job.
    fn offer(&self) -> Offer {
        let (seat, assigned) = oneshot::channel();
        self.waiting().push_back(Seat(seat));
        self.changed();
        Offer(assigned)
    }
}

/// Counts a member that pauses.
#[derive(Debug)]
struct Pause(Arc<AtomicUsize>);

impl Pause {
    fn new(paused: &Arc<AtomicUsize>) -> Self {
        paused.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(paused))
    }
}

impl Drop for Pause {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The member's side of a [`Seat`]. Dropped, it is withdrawn: a job that came is declined.
#[derive(Debug)]
struct Offer(oneshot::Receiver<Assignment>);

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.close();
        if let Ok(assignment) = self.0.try_recv() {
            // Nothing was said before, so there is room. Whoever asked may have stopped waiting.
            let _ = assignment.said.try_send(Said::Declined);
        }
    }
}

impl Seat {
    /// Gives the member a job; `None` if it has ended meanwhile.
    ///
    /// `reserved` is the member of Redis' sorted set, for the case that this process is gone when the job has ended.
    /// The member does not begin with the job at `lease` or later, when another worker may have it.
    pub fn run(self, info: Arc<JobInfo>, reserved: &[u8], lease: Option<Instant>) -> Option<Run> {
        let (said, heard) = mpsc::channel(64);
        let (answers, answered) = mpsc::channel(1);
        let kill = CancellationToken::new();
        let assignment = Assignment {
            info,
            reserved: reserved.into(),
            lease,
            said,
            answers: answered,
            kill: kill.clone(),
            begun: Arc::default(),
        };
        let begun = Arc::clone(&assignment.begun);
        self.0.send(assignment).ok()?;
        Some(Run {
            said: heard,
            answers,
            begun,
            guard: Some(kill.clone().drop_guard()),
            kill,
        })
    }
}

impl Run {
    /// What PHP said next; `None` when the attempt is over.
    ///
    /// # Cancel safety
    ///
    /// Nothing is lost if the future is dropped.
    pub async fn next(&mut self) -> Option<Said> {
        let said = self.said.recv().await;
        let is_over = matches!(
            said,
            None | Some(Said::Done | Said::Declined | Said::Ended(_))
        );
        if is_over && let Some(guard) = self.guard.take() {
            guard.disarm();
        }
        said
    }

    /// When the member was given the job, if it was.
    pub fn began(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Says whether a failure is written down: PHP goes on with what follows it, or throws.
    pub fn answer(&self, is_settled: bool) {
        // A process that has ended waits for no answer.
        let _ = self.answers.try_send(is_settled);
    }

    /// Kills the process; what it said before can still be read.
    pub fn kill(&self) {
        self.kill.cancel();
    }
}
