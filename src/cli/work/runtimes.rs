//! The runtimes of a worker: for its jobs, for handlers that keep a thread busy, and one that no job can block.

use std::convert::Infallible;
use std::num::NonZeroUsize;

use anyhow::Context as _;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

use crate::worker::Control;

/// The runtimes of a worker.
pub(in crate::cli) struct Runtimes {
    jobs: Runtime,
    /// Runs handlers that keep a thread busy; `None` if there is but one thread for them.
    threads: Option<Runtime>,
    /// Obeys signals, renews reservations and watches handlers; `None` if no handler can block the other runtime.
    overseer: Option<Runtime>,
}

impl Runtimes {
    /// Runtimes for a worker whose handlers run here, and not all in PHP, on this many threads; `concurrency` of them
    /// may block.
    pub(in crate::cli) fn new(
        runs_here: bool,
        concurrency: NonZeroUsize,
        threads: NonZeroUsize,
    ) -> anyhow::Result<Self> {
        let jobs = runtime_for(runs_here, concurrency)?;
        let overseer = overseer_for(&jobs)?;
        let threads = threads_for(&jobs, concurrency, threads)?;
        Ok(Self {
            jobs,
            threads,
            overseer,
        })
    }

    /// Pools of database connections need a runtime.
    pub(in crate::cli) fn enter(&self) -> EnterGuard<'_> {
        self.jobs.enter()
    }

    pub(in crate::cli) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.jobs.block_on(future)
    }

    pub(in crate::cli) fn overseer(&self) -> Option<Handle> {
        self.overseer.as_ref().map(|one| one.handle().clone())
    }

    pub(super) fn threads(&self) -> Option<Handle> {
        self.threads.as_ref().map(|one| one.handle().clone())
    }

    /// Obeys signals from now on: an uncaught one would end the process and its jobs with it.
    pub(in crate::cli) fn obey_signals(
        &self,
        control: &Control,
    ) -> anyhow::Result<JoinHandle<Infallible>> {
        let runtime = self.overseer.as_ref().unwrap_or(&self.jobs);
        let _entered = runtime.enter();
        let obeying = control.obey_signals();
        Ok(runtime.spawn(obeying.context("could not listen for signals")?))
    }

    /// Ends all at once: a blocking handler that does not return must not keep the process alive.
    pub(in crate::cli) fn shut_down(self) {
        self.jobs.shutdown_background();
        let others = self.threads.into_iter().chain(self.overseer);
        others.for_each(Runtime::shutdown_background);
    }
}

/// Threads for blocking handlers, which may take all slots, and for files and names of hosts beside them: locks of
/// running jobs must be refreshed in time.
fn blocking_threads(concurrency: NonZeroUsize) -> usize {
    concurrency.get().saturating_add(32)
}

/// The runtime for the worker's tasks.
fn runtime_for(runs_here: bool, concurrency: NonZeroUsize) -> anyhow::Result<Runtime> {
    let mut builder = if runs_here {
        // Not a runtime of the current thread alone: handlers may call `block_in_place`.
        Builder::new_multi_thread()
    } else {
        Builder::new_current_thread()
    };
    // One thread pops, settles and runs all light handlers: crossing threads costs more than they do.
    builder
        .worker_threads(1)
        .enable_all()
        .thread_name("artisand")
        .max_blocking_threads(blocking_threads(concurrency))
        .build()
        .context("could not start the runtime")
}

/// The runtime for handlers that keep a thread busy.
fn threads_for(
    jobs: &Runtime,
    concurrency: NonZeroUsize,
    threads: NonZeroUsize,
) -> anyhow::Result<Option<Runtime>> {
    if jobs.handle().runtime_flavor() == RuntimeFlavor::CurrentThread || threads.get() == 1 {
        return Ok(None);
    }
    let mut builder = Builder::new_multi_thread();
    let built = builder
        .worker_threads(threads.get())
        .max_blocking_threads(blocking_threads(concurrency))
        .enable_all()
        .thread_name("artisand-busy")
        .build();
    built
        .map(Some)
        .context("could not start the threads of handlers")
}

/// The runtime that obeys signals, renews reservations and watches handlers; `None` if no handler can block the
/// other runtime.
fn overseer_for(runtime: &Runtime) -> anyhow::Result<Option<Runtime>> {
    if runtime.handle().runtime_flavor() == RuntimeFlavor::CurrentThread {
        return Ok(None);
    }
    let mut builder = Builder::new_multi_thread();
    let built = builder
        .worker_threads(1)
        .enable_all()
        .thread_name("artisand-watch")
        .build();
    built
        .map(Some)
        .context("could not start the runtime of the watchdog")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn files_can_be_read_while_every_slot_blocks() {
        let [slots, threads] = [64, 2].map(|count| NonZeroUsize::new(count).unwrap());
        let runtimes = Runtimes::new(true, slots, threads).unwrap();
        for runtime in [runtimes.jobs.handle(), &runtimes.threads().unwrap()] {
            let (release, blocked) = std::sync::mpsc::channel::<()>();
            let blocked = std::sync::Arc::new(std::sync::Mutex::new(blocked));
            for _ in 0..slots.get() {
                let blocked = std::sync::Arc::clone(&blocked);
                // All wait until the sender is gone.
                runtime.spawn_blocking(move || blocked.lock().unwrap().recv());
            }
            let file = runtime.spawn_blocking(|| ());
            let read = async { tokio::time::timeout(Duration::from_secs(60), file).await };
            let is_read = runtimes.block_on(read).is_ok();
            drop(release);
            assert!(is_read);
        }
        runtimes.shut_down();
    }
}
