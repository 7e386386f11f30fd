//! A pool of PHP processes that run unmapped jobs with the app's own code and Laravel's own worker.
//!
//! ```text
//! worker loop ── as many jobs as members are offered ──▶ Seat::run ──▶ Run ──▶ what Laravel did with the job
//!                                                    │  ▲
//!                          a socket per member       ▼  │
//!                                        php: Worker::daemon (php-interop/pool.php)
//! ```
//!
//! A member boots the app once and runs one job after the other. It is offered
//! when it waits for a job, or a moment before: when Laravel has deleted the last
//! one. A job assigned early is sent once the member waits. A member ends when
//! Laravel decides so (jobs, time, memory, a restart signal, a lost connection),
//! when a job ends it, or when it is killed; then another takes its place. A
//! member never touches a job's bytes in Redis, unless this worker is gone: then
//! it ends its job as `queue:work` would, if it finishes within a second. After
//! that the supervisor of [`supervise`](super::supervise) kills the member and
//! its process group. Without a call of `supervise` the member runs its job to
//! the end, at the same time as the next run of the job once the reservation has
//! expired.

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

/// How to start the members of a pool.
#[derive(Debug, Clone)]
pub struct PoolOptions {
    /// The PHP program, and arguments to put before artisand's own.
    pub php: Vec<String>,
    /// The app's directory, as PHP sees it.
    pub app: PathBuf,
    /// The app's environment (`--env`), if one was named.
    pub env: Option<String>,
    /// Name of the queue connection whose jobs are run, as the app names it.
    pub connection: String,
    /// The queues, separated by commas.
    pub queue: String,
    /// How many members there are.
    pub processes: NonZeroUsize,
    /// Pause of a member after each job.
    pub rest: Duration,
    /// How long a member runs jobs before it is replaced.
    pub max_time: Option<Duration>,
    /// Laravel's class of the failed-job store that this worker writes itself; PHP writes all other stores.
    pub failer: Option<&'static str>,
    /// Properties of Laravel's `WorkerOptions`, by name.
    pub worker: serde_json::Map<String, serde_json::Value>,
    /// How long the app may take to boot.
    pub boot: Duration,
    /// How long a job stays reserved if its reservation is not renewed.
    pub retry_after: Option<Duration>,
    /// Whether the pool runs a single job, which the app's listeners of Laravel's `Looping` cannot prevent.
    pub once: bool,
}

/// The pool cannot run jobs.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the pool of PHP processes could not start: {0}")]
pub struct PoolError(pub(crate) String);

/// PHP processes that wait for jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

/// State shared by the pool and its members.
#[derive(Debug)]
struct Shared {
    options: PoolOptions,
    /// Members that wait for a job or are about to; the first offered is in front.
    waiting: Mutex<VecDeque<Seat>>,
    /// Counts changes of `waiting`, so that tasks can wait for one.
    changes: watch::Sender<u64>,
    health: Mutex<Health>,
    /// Members that the app does not let work.
    paused: Arc<AtomicUsize>,
    /// Cancelled when no more processes may be started.
    is_closing: CancellationToken,
    /// The last signal that told this worker to end.
    signals: watch::Sender<Option<Signal>>,
    /// Cancelled when all members have to end; jobs run on until then.
    stop: CancellationToken,
    members: tokio::sync::Mutex<JoinSet<()>>,
}

/// The health of the members.
#[derive(Debug, Default)]
struct Health {
    /// How many members failed to boot at their last try.
    broken: usize,
    /// The error message of the last failure.
    problem: String,
    /// How many boots of any member have succeeded since the start.
    booted: u64,
    /// The versions that the last booted member reported.
    versions: Versions,
}

/// The versions of the software that runs the jobs.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Versions {
    /// The app's framework.
    pub laravel: String,
    /// PHP.
    pub php: String,
}

/// A member that waits for a job, or is about to. Dropping it leaves the member waiting.
#[derive(Debug)]
pub struct Seat(oneshot::Sender<Assignment>);

/// A job on its way to a member.
#[derive(Debug)]
struct Assignment {
    info: Arc<JobInfo>,
    reserved: Arc<[u8]>,
    /// The time before which no other worker can have the job; `None` if the reservation does not expire.
    lease: Option<Instant>,
    said: mpsc::Sender<Said>,
    /// Whether the failure that the member reported was written down.
    answers: mpsc::Receiver<bool>,
    kill: CancellationToken,
    /// When the member was given the job; before that it may have been busy.
    begun: Arc<OnceLock<Instant>>,
}

/// A job that a member runs. Dropping it kills the member.
#[derive(Debug)]
pub struct Run {
    said: mpsc::Receiver<Said>,
    answers: mpsc::Sender<bool>,
    kill: CancellationToken,
    begun: Arc<OnceLock<Instant>>,
    guard: Option<DropGuard>,
}

impl Pool {
    /// Starts all members; must be called in a runtime.
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
            // The lock is free: the pool has not been shared yet.
            for _ in 0..count {
                members.spawn(member::keep(Arc::clone(&shared)));
            }
        }
        Self(shared)
    }

    /// Starts all members, and waits until one of them has booted the app or failed to.
    ///
    /// # Errors
    ///
    /// A member could not boot the app before any other did; the error holds the newest message. All members are
    /// stopped then.
    pub async fn start(options: PoolOptions) -> Result<Self, PoolError> {
        let pool = Self::new(options);
        pool.booted().await?;
        Ok(pool)
    }

    /// Waits until a member has booted the app or failed to.
    ///
    /// # Errors
    ///
    /// A member could not boot the app before any other did; the error holds the newest message. All members are
    /// stopped then.
    pub async fn booted(&self) -> Result<(), PoolError> {
        let mut changes = self.changes();
        loop {
            changes.borrow_and_update();
            if self.0.health().booted > 0 {
                return Ok(());
            }
            if let Some(problem) = self.0.last_problem() {
                self.stop().await;
                return Err(PoolError(problem));
            }
            // The sender lives as long as the pool.
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

    /// The versions that the members run.
    pub fn versions(&self) -> Versions {
        self.0.health().versions.clone()
    }

    /// The configured number of members.
    pub fn size(&self) -> usize {
        self.0.options.processes.get()
    }

    /// Why no member can be started at the moment; `None` while at least one may start.
    pub fn problem(&self) -> Option<String> {
        let health = self.0.health();
        (health.broken >= self.size()).then(|| health.problem.clone())
    }

    /// Wakes tasks that wait for a change, because something outside of the pool has changed.
    pub(crate) fn changed(&self) {
        self.0.changed();
    }

    /// Notifies of every change of the waiting members, and of members that could not start.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.0.changes.subscribe()
    }

    /// Whether the app lets no member work: all members that could start came round without asking for a job.
    pub fn is_paused(&self) -> bool {
        let paused = self.0.paused.load(Ordering::Relaxed);
        paused > 0 && paused + self.0.health().broken >= self.size()
    }

    /// Starts no more processes, because there will be no more jobs. Running jobs run on.
    pub fn close(&self) {
        self.0.is_closing.cancel();
    }

    /// Forwards a signal to members with a running job that Laravel notifies of it; they end after that job.
    pub(crate) fn signal(&self, signal: Signal) {
        self.0.signals.send_replace(Some(signal));
    }

    /// Ends all members: waiting members at once, others are killed.
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

    /// The error message of the last boot that failed, while a member is unable to boot.
    fn last_problem(&self) -> Option<String> {
        let health = self.health();
        (health.broken > 0).then(|| health.problem.clone())
    }

    fn changed(&self) {
        self.changes
            .send_modify(|count| *count = count.wrapping_add(1));
    }

    /// Offers a member to the tasks that have jobs.
    fn offer(&self) -> Offer {
        let (seat, assigned) = oneshot::channel();
        self.waiting().push_back(Seat(seat));
        self.changed();
        Offer(assigned)
    }
}

/// Counts as a pausing member until it is dropped.
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

/// The member's end of a [`Seat`]. Dropping it withdraws the offer and declines a job that was assigned.
#[derive(Debug)]
struct Offer(oneshot::Receiver<Assignment>);

impl Drop for Offer {
    fn drop(&mut self) {
        self.0.close();
        if let Ok(assignment) = self.0.try_recv() {
            // This is the first message, so the channel has room. The receiver may be dropped.
            let _ = assignment.said.try_send(Said::Declined);
        }
    }
}

impl Seat {
    /// Assigns a job to the member; `None` if the member has ended meanwhile.
    ///
    /// `reserved` is the job's entry in Redis' sorted set, which PHP needs if this worker is gone when the job
    /// ends. The member does not begin the job at `lease` or later, when another worker may have it.
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
    /// The next message from PHP; `None` when the attempt is over.
    ///
    /// # Cancel safety
    ///
    /// No message is lost if the future is dropped.
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

    /// When the member was given the job; `None` if it was not.
    pub fn began(&self) -> Option<Instant> {
        self.begun.get().copied()
    }

    /// Tells PHP whether a failure was written down: PHP then continues after the failure, or throws.
    pub fn answer(&self, is_settled: bool) {
        // A process that has ended does not need the answer.
        let _ = self.answers.try_send(is_settled);
    }

    /// Kills the process; messages it sent before can still be read.
    pub fn kill(&self) {
        self.kill.cancel();
    }
}
