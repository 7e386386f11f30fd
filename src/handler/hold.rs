//! Locks that are held while a handler runs and freed however it ends.
//!
//! Each lock has a task that takes it, renews it and frees it again. The holder
//! of the lock keeps a [`Held`]; when that is dropped, with its job's future or
//! with the last clone of its job's context, the task frees the lock. So no drop
//! has to wait or to be in a runtime, and a call that was cancelled halfway
//! leaves no lock behind.

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::cache::{Error, Lock};
use crate::shown::with_causes;

/// The locks held by jobs of this process.
#[derive(Clone, Default)]
pub struct HeldLocks(Arc<Inner>);

#[derive(Default)]
struct Inner {
    next: AtomicU64,
    keepers: Mutex<HashMap<u64, Keeper>>,
    /// Where the tasks run, if not where the locks are taken.
    runtime: OnceLock<Handle>,
}

/// The two tokens of a lock's task.
#[derive(Clone)]
struct Keeper {
    /// Cancel it to free the lock.
    ended: CancellationToken,
    /// Cancelled when the lock is free, or the task has given up.
    done: CancellationToken,
}

/// A lock that this process holds until this is dropped.
#[derive(Debug)]
pub(crate) struct Held {
    number: u64,
    _ended: DropGuard,
}

/// The locks of one job, stored in its context.
#[derive(Default)]
pub(crate) struct Holds {
    keepers: Mutex<Vec<Keeper>>,
    /// Locks of a handler that may run on after its future is dropped.
    kept: Mutex<Vec<Held>>,
}

/// How long a job waits for its locks to be freed before it is settled.
const FREEING: Duration = Duration::from_secs(3);
/// First wait before freeing a lock is tried again; it doubles each time.
const FIRST_RETRY: Duration = Duration::from_millis(200);
/// Longest wait between two tries.
const LAST_RETRY: Duration = Duration::from_secs(5);
/// How long to try to free a lock that may not be taken at all: while its store is away, each job leaves one. The
/// system may go on sending what was written to a lost connection, but not for that long.
const TRY_FREEING: Duration = Duration::from_secs(300);

impl fmt::Debug for HeldLocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HeldLocks({})", self.0.keepers().len())
    }
}

impl Inner {
    fn keepers(&self) -> MutexGuard<'_, HashMap<u64, Keeper>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl HeldLocks {
    /// Keeps locks on this runtime from now on: it must be one that no handler can block. Only the first one that is
    /// given counts.
    pub(crate) fn keep_on(&self, runtime: &Handle) {
        let _ = self.0.runtime.set(runtime.clone());
    }

    /// Number of locks, including those about to be freed.
    pub fn len(&self) -> usize {
        self.0.keepers().len()
    }

    /// True if no lock is held.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Frees all locks, even of jobs that still run; returns how many could not be freed in time.
    ///
    /// For the end of a process, which also ends blocking handlers that did not return.
    pub async fn free_all(&self, within: Duration) -> usize {
        let keepers: Vec<Keeper> = self.0.keepers().values().cloned().collect();
        for keeper in &keepers {
            keeper.ended.cancel();
        }
        let all = async {
            for keeper in &keepers {
                keeper.done.cancelled().await;
            }
        };
        // The locks that are left are counted below.
        let _ = tokio::time::timeout(within, all).await;
        keepers
            .iter()
            .filter(|keeper| !keeper.done.is_cancelled())
            .count()
    }

    /// Tries once to take a lock for a job; `None` if another holder has it.
    ///
    /// # Errors
    ///
    /// The store cannot be reached. If the lock was taken after all, it is freed.
    ///
    /// # Cancel safety
    ///
    /// A lock that is taken after this future was dropped is freed at once.
    pub(crate) async fn take(
        &self,
        lock: Lock,
        ttl: Duration,
        holds: &Holds,
    ) -> Result<Option<Held>, Error> {
        let keeper = Keeper {
            ended: CancellationToken::new(),
            done: CancellationToken::new(),
        };
        let number = self.0.next.fetch_add(1, Ordering::Relaxed);
        let held = Held {
            number,
            _ended: keeper.ended.clone().drop_guard(),
        };
        self.0.keepers().insert(number, keeper.clone());
        holds.keepers().push(keeper.clone());
        let (tell, taken) = oneshot::channel();
        let inner = Arc::clone(&self.0);
        let keeping = async move {
            let comes_until = keep(&lock, ttl, tell, &keeper.ended).await;
            inner.keepers().remove(&number);
            keeper.done.cancel();
            if let Some(until) = comes_until {
                free_late(&lock, until).await;
            }
        };
        match self.0.runtime.get() {
            Some(runtime) => runtime.spawn(keeping),
            None => tokio::spawn(keeping),
        };
        match taken.await {
            Ok(Ok(is_ours)) => Ok(is_ours.then_some(held)),
            Ok(Err(error)) => Err(error),
            // The runtime is shutting down and dropped the task.
            Err(_) => Ok(None),
        }
    }
}

impl Holds {
    fn keepers(&self) -> MutexGuard<'_, Vec<Keeper>> {
        self.keepers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Vec<Held>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps a lock until the last clone of the context is gone; returns a number for [`let_go`](Self::let_go).
    pub(crate) fn keep(&self, held: Held) -> u64 {
        let number = held.number;
        self.kept().push(held);
        number
    }

    /// Lets go of a lock that [`keep`](Self::keep) holds.
    pub(crate) fn let_go(&self, number: u64) {
        let mut kept = self.kept();
        if let Some(at) = kept.iter().position(|held| held.number == number) {
            kept.swap_remove(at);
        }
    }

    /// Waits, for a bounded time, until the locks that are no longer used are free.
    pub(crate) async fn freed(&self) {
        let ended: Vec<Keeper> = {
            let mut keepers = self.keepers();
            let (ended, used) = std::mem::take(&mut *keepers)
                .into_iter()
                .partition(|keeper| keeper.ended.is_cancelled());
            *keepers = used;
            ended
        };
        let all = async {
            for keeper in &ended {
                keeper.done.cancelled().await;
            }
        };
        // The task goes on in the background and reports failures itself.
        let _ = tokio::time::timeout(FREEING, all).await;
    }
}

/// Takes a lock, reports whether that worked, renews it until `ended` is cancelled, then frees it. Returns until when
/// the request for it may still come to the store, if that is possible.
async fn keep(
    lock: &Lock,
    ttl: Duration,
    tell: oneshot::Sender<Result<bool, Error>>,
    ended: &CancellationToken,
) -> Option<Instant> {
    let taken = lock.acquire().await;
    if taken.is_err() {
        // The lock may be taken: maybe only the answer was lost.
        ended.cancel();
    }
    let (is_ours, is_sure) = (!matches!(taken, Ok(false)), taken.is_ok());
    let may_come = (taken.as_ref()).is_err_and(Error::may_come_late);
    // The receiver may be dropped; then `ended` is cancelled.
    let _ = tell.send(taken);
    if !is_ours || renew(lock, ttl, ended).await {
        return None;
    }
    let lives = if ttl.is_zero() { Duration::MAX } else { ttl };
    let tries_for = if is_sure {
        lives
    } else {
        lives.min(TRY_FREEING)
    };
    // None if that is for ever.
    let until = Instant::now().checked_add(tries_for);
    let was_there = free(lock, until).await;
    until.filter(|_| may_come && !was_there)
}

/// Renews a lock that expires until `ended` is cancelled; true if the lock was lost before.
async fn renew(lock: &Lock, ttl: Duration, ended: &CancellationToken) -> bool {
    if ttl.is_zero() {
        ended.cancelled().await;
        return false;
    }
    let every = ttl / 3;
    loop {
        tokio::select! {
            biased;
            () = ended.cancelled() => return false,
            () = tokio::time::sleep(every) => {}
        }
        match lock.refresh().await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(
                    lock = lock.name(),
                    "the lock of a running job is lost: it expired or another process freed it, and another job may run at the same time"
                );
                return true;
            }
            // The connection logs its loss itself, once.
            Err(error) if crate::connection::is_away(&error) => {}
            Err(error) => {
                tracing::warn!(
                    lock = lock.name(),
                    error = with_causes(&error),
                    "could not renew the lock of a running job, trying again"
                );
            }
        }
    }
}

/// Frees a lock; retries while the lock may still exist. False if it was not there.
async fn free(lock: &Lock, until: Option<Instant>) -> bool {
    let mut wait = FIRST_RETRY;
    loop {
        let error = match lock.release().await {
            Ok(true) => return true,
            Ok(false) => {
                tracing::debug!(
                    lock = lock.name(),
                    "the lock of a job was gone when the job ended"
                );
                return false;
            }
            Err(error) => with_causes(&error),
        };
        if until.is_some_and(|until| until <= Instant::now()) {
            tracing::error!(
                lock = lock.name(),
                error,
                "could not free the lock of a job: it stays until it expires or is deleted"
            );
            return true;
        }
        if wait == FIRST_RETRY {
            tracing::warn!(
                lock = lock.name(),
                error,
                "could not free the lock of a job, trying again"
            );
        }
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
    }
}

/// Frees a lock once it is taken by a request that got no answer and whose connection is lost. Neither the job nor the
/// end of the process waits for that.
async fn free_late(lock: &Lock, until: Instant) {
    let mut wait = FIRST_RETRY;
    while Instant::now() < until {
        tokio::time::sleep(wait).await;
        wait = (wait * 2).min(LAST_RETRY);
        if matches!(lock.release().await, Ok(true)) {
            tracing::info!(
                lock = lock.name(),
                "the lock of a job was taken long after it was asked for, and is free again"
            );
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Path, PathBuf};

    use super::*;
    use crate::cache::{Cache, FileStore, FileStoreOptions};
    use crate::time::Clock;

    fn files(directory: &Path) -> Cache {
        let options = FileStoreOptions {
            directory: directory.to_owned(),
            lock_directory: directory.to_owned(),
            permission: None,
            separate_locks: true,
        };
        Cache::file(FileStore::new(options, Clock::System))
    }

    /// The only file below a directory.
    fn only_file(directory: &Path) -> PathBuf {
        let entry = std::fs::read_dir(directory).unwrap().next().unwrap();
        let path = entry.unwrap().path();
        if path.is_dir() {
            only_file(&path)
        } else {
            path
        }
    }

    #[test]
    fn a_lock_is_kept_where_no_handler_blocks_its_task() {
        let runtime = || {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(1).enable_all().build().unwrap()
        };
        let (jobs, overseer) = (runtime(), runtime());
        let directory = tempfile::tempdir().unwrap();
        let lock = files(directory.path()).lock("lock", "me", Duration::ZERO);
        let (locks, holds) = (HeldLocks::default(), Holds::default());
        locks.keep_on(overseer.handle());
        let taken = jobs.block_on(locks.take(lock.clone(), Duration::ZERO, &holds));
        let (gate, waits) = std::sync::mpsc::channel::<()>();
        let (tell, started) = std::sync::mpsc::channel();
        jobs.spawn(async move {
            tell.send(()).unwrap();
            // Ends with an error once the other end is dropped.
            let _ = waits.recv();
        });
        started.recv().unwrap();
        drop(taken.unwrap().unwrap());
        let left = overseer.block_on(locks.free_all(Duration::from_secs(20)));
        let owner = overseer.block_on(lock.current_owner()).unwrap();
        drop(gate);
        assert_eq!((left, owner), (0, None));
    }

    #[tokio::test(start_paused = true)]
    async fn a_lock_that_never_expires_is_freed_however_long_its_store_was_away() {
        let directory = tempfile::tempdir().unwrap();
        let lock = files(directory.path()).lock("lock", "me", Duration::ZERO);
        let (locks, holds) = (HeldLocks::default(), Holds::default());
        let held = locks.take(lock.clone(), Duration::ZERO, &holds).await;
        let held = held.unwrap().unwrap();
        let file = only_file(directory.path());
        // A directory in its place makes each try fail.
        let aside = directory.path().join("aside");
        std::fs::rename(&file, &aside).unwrap();
        std::fs::create_dir(&file).unwrap();
        assert!(lock.release().await.is_err());
        drop(held);
        tokio::time::sleep(TRY_FREEING * 4).await;
        assert_eq!(locks.len(), 1);
        std::fs::remove_dir(&file).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        assert_eq!(locks.free_all(LAST_RETRY * 2).await, 0);
        assert_eq!(lock.current_owner().await.unwrap(), None);
    }
}
