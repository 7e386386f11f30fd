//! The runtimes of a worker: one for its jobs, and one that no job can block.

use std::convert::Infallible;

use anyhow::Context as _;
use tokio::runtime::{Builder, EnterGuard, Handle, Runtime, RuntimeFlavor};
use tokio::task::JoinHandle;

use super::plan::Plan;
use crate::worker::Control;

/// The runtimes of a worker.
pub(super) struct Runtimes {
    jobs: Runtime,
    /// Obeys signals, renews reservations and watches handlers; `None` if no handler can block the other runtime.
    overseer: Option<Runtime>,
}

impl Runtimes {
    pub(super) fn new(plan: &Plan) -> anyhow::Result<Self> {
        let jobs = runtime_for(plan)?;
        let overseer = overseer_for(&jobs)?;
        Ok(Self { jobs, overseer })
    }

    /// Pools of database connections need a runtime.
    pub(super) fn enter(&self) -> EnterGuard<'_> {
        self.jobs.enter()
    }

    pub(super) fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        self.jobs.block_on(future)
    }

    pub(super) fn overseer(&self) -> Option<Handle> {
        let overseer = self.overseer.as_ref();
        overseer.map(|overseer| overseer.handle().clone())
    }

    /// Obeys signals from now on: an uncaught one would end the process and its jobs with it.
    pub(super) fn obey_signals(&self, control: &Control) -> anyhow::Result<JoinHandle<Infallible>> {
        let runtime = self.overseer.as_ref().unwrap_or(&self.jobs);
        let _entered = runtime.enter();
        let obeying = control.obey_signals();
        Ok(runtime.spawn(obeying.context("could not listen for signals")?))
    }

    /// Ends both at once: a blocking handler that does not return must not keep the process alive.
    pub(super) fn shut_down(self) {
        self.jobs.shutdown_background();
        self.overseer
            .into_iter()
            .for_each(Runtime::shutdown_background);
    }
}

/// The runtime for the worker's tasks.
fn runtime_for(plan: &Plan) -> anyhow::Result<Runtime> {
    let runs_here = plan.router.mappings().len() > 0 || !plan.is_for_php();
    let mut builder = if runs_here {
        Builder::new_multi_thread()
    } else {
        // If PHP runs all jobs, there is too little work for several threads that have to wake one another.
        Builder::new_current_thread()
    };
    builder
        .enable_all()
        .thread_name("artisand")
        .max_blocking_threads(plan.options.concurrency.get().max(64))
        .build()
        .context("could not start the runtime")
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
