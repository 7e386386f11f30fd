//! A pool of PHP processes that run unmapped jobs with the app's own code and Laravel's own worker.
//!
//! ```text
//! worker loop ── as many jobs as members are offered ──▶ IdleMember::run ──▶ Run ──▶ what Laravel did with the job
//!                                                    │  ▲
//!                          a socket per member       ▼  │
//!                                        php: Worker::daemon (php-interop/pool.php)
//! ```
//!
//! A member boots the app once and runs one job after the other. It is offered
//! when it waits for a job, or a moment before: when Laravel has deleted the last
//! one. A job assigned early is sent at once, and taken back if the member does not
//! read it soon; the member does not begin it after that. A member ends when
//! Laravel decides so (jobs, time, memory, a restart signal, a lost connection),
//! when a job ends it, or when it is killed; then another takes its place. A
//! member ends no job in the queue by itself, unless this worker is gone: then
//! it ends its job as `queue:work` would, if it finishes within a second. After
//! that the supervisor of [`supervise`](super::supervise) kills the member and
//! its process group. Without a call of `supervise` the member runs its job to
//! the end, at the same time as the next run of the job once the reservation has
//! expired.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::process::Signal;
use tokio::sync::watch;

mod channel;
mod helper;
#[cfg_attr(
    not(feature = "cli"),
    expect(dead_code, reason = "only `queue:work` starts helpers")
)]
mod hooks;
mod member;
mod message;
mod output;
#[cfg(test)]
mod played;
mod shared;

#[cfg(feature = "cli")]
pub use helper::Helper;
#[cfg(feature = "cli")]
pub use hooks::HookHelper;
#[cfg(feature = "internals")]
pub use message::Inbox;
pub use message::PoolMessage;
#[cfg(test)]
pub(crate) use played::Member;
#[cfg(feature = "cli")]
pub use shared::Answer;
use shared::Shared;
pub use shared::{IdleMember, PoolOptions, Run, Versions};

/// The pool cannot run jobs.
#[derive(Debug, Clone, thiserror::Error)]
#[error("the pool of PHP processes could not start: {0}")]
pub struct PoolError(pub(crate) String);

/// PHP processes that wait for jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Pool(Arc<Shared>);

impl Pool {
    /// Starts all members; must be called in a runtime.
    pub fn new(options: PoolOptions) -> Self {
        let count = options.processes.get();
        let shared = Arc::new(Shared::new(options, None));
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
        waiting.retain(|idle| !idle.has_ended());
        waiting.len()
    }

    /// Takes the member that was offered first.
    pub fn take(&self) -> Option<IdleMember> {
        let mut waiting = self.0.waiting();
        std::iter::from_fn(|| waiting.pop_front()).find(|idle| !idle.has_ended())
    }

    /// The versions that the members run.
    pub fn versions(&self) -> Versions {
        self.0.health().versions.clone()
    }

    /// How many members wait for a job, run one, or boot the app, each with the name of that state.
    #[cfg(feature = "cli")]
    pub fn states(&self) -> [(&'static str, usize); 3] {
        let (idle, serving) = (self.waiting(), self.0.health().serving);
        let busy = serving.saturating_sub(idle);
        let booting = self.size().saturating_sub(serving);
        [("idle", idle), ("busy", busy), ("booting", booting)]
    }

    /// How many processes have been replaced since the start, each with the reason.
    #[cfg(feature = "cli")]
    pub fn restarts(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let restarts = self.0.health().restarts.clone();
        (shared::REASONS.into_iter())
            .map(move |reason| (reason, restarts.get(reason).copied().unwrap_or(0)))
    }

    /// The configured number of members.
    pub fn size(&self) -> usize {
        self.0.options.processes.get()
    }

    /// Why no member can be started at the moment; `None` while at least one may start, or may once Redis is back.
    pub fn problem(&self) -> Option<String> {
        let health = self.0.health();
        (health.broken >= self.size() && health.excused == 0).then(|| health.problem.clone())
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
        self.0.end_members().await;
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::connection::{server_away, servers_away};

    /// Waits for the next change that a member reports.
    async fn next_change(changes: &mut watch::Receiver<u64>) {
        let next = tokio::time::timeout(Duration::from_secs(60), changes.changed());
        next.await.unwrap().unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_cannot_be_killed_holds_up_no_stop() {
        let pool = Pool::played(1);
        pool.0.members.lock().await.spawn(std::future::pending());
        let stopping = tokio::time::timeout(Duration::from_secs(11), pool.stop());
        assert!(stopping.await.is_ok());
    }

    #[tokio::test]
    async fn a_process_that_cannot_start_while_redis_is_away_is_no_problem_and_starts_once_it_is_back()
     {
        let away = server_away("a-process-that-cannot-start");
        let pool = Pool::new(PoolOptions::of(&["false"]));
        let mut changes = pool.changes();
        // After the fifth failure the next attempt is at least four seconds away.
        for _ in 0..5 {
            next_change(&mut changes).await;
            assert_eq!(pool.problem(), None);
            assert!(pool.0.last_problem().is_some());
        }
        drop(away);
        // Servers of other tests may be away at the same time.
        let mut others = servers_away();
        let none_away = others.wait_for(|away| *away == 0);
        let waited = tokio::time::timeout(Duration::from_secs(60), none_away);
        waited.await.unwrap().unwrap();
        let back = tokio::time::timeout(Duration::from_secs(4), changes.changed());
        back.await.unwrap().unwrap();
        // The attempt may have begun while a server was away: only then it is excused.
        let unexcused = async {
            while pool.problem().is_none() {
                next_change(&mut changes).await;
            }
        };
        let told = tokio::time::timeout(Duration::from_secs(60), unexcused).await;
        assert!(told.is_ok());
        pool.stop().await;
    }
}
