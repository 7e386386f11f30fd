//! Takes jobs from queues, runs them, and makes sure that each is settled.
//!
//! ```text
//! pop, triage ──▶ task of a job: limits, run, decision, ending ──▶ settler ──▶ observers
//!   ▲                   │ a slot each                               │
//!   └────── slot ───────┘                                           └─ one call for many jobs
//! ```
//!
//! A slot is free before a job is popped, so no job is reserved that cannot run. docs/architecture.md follows a job
//! through all files.

use std::sync::Arc;

use tokio::time::Instant;

mod announcer;
mod app_context;
mod attempt;
mod background;
mod backoff;
mod completion;
mod event;
mod gauge;
mod heartbeat;
mod intake;
mod last_errors;
mod limits;
mod linger;
mod next_release;
mod options;
mod outbox_tasks;
#[cfg(feature = "cli")]
mod preview;
mod renew;
mod run;
mod running;
mod select;
mod settle_counts;
mod settler;
mod shadow;
mod shutdown;
mod signals;
mod slots;
mod stats;
mod stop;
#[cfg(test)]
mod test_support;
mod triage;
mod triaged;
mod wakeups;
mod watchdog;
mod weights;

#[cfg(feature = "cli")]
pub use attempt::decide::Defaults;
pub(crate) use attempt::exception::php_text as exception_text;
pub use event::{Event, JobEnd, JobException, JobResult, Looping, Observer};
pub use heartbeat::Heartbeat;
pub use options::{StopRules, WorkerOptions};
#[cfg(feature = "cli")]
pub(crate) use preview::Preview;
pub use signals::{ControlPlane, Unpolled};
pub use stats::{CanaryStop, MappingCounts};
pub use stop::{Control, StopReason};
pub use stop::{Orders, resident_memory};

use crate::failed::FailedJobs;
use crate::handler::{Services, remember_places};
use crate::process::pool::Pool;
use crate::queue::{Driver, Ledger, Queue};
use crate::routing::{Router, UnmappedPolicy};
use announcer::Announcer;
use app_context::AppContext;
use attempt::shared::{Leases, Settlements, Shared, Stops, Terms};
use background::{Background, ExtraRuntimes, Premises};
use backoff::PopRetry;
use event::Observers;
use intake::Intakes;
use limits::Limits;
use linger::{EndCounter, Linger};
use outbox_tasks::Recording;
use renew::{Renewals, Renewer};
use run::{Run, Steering};
use running::Running;
use settle_counts::SettleCounts;
use slots::Slots;
use stop::told_to_quit;
use triage::Triage;
use wakeups::Wakeups;
use watchdog::Turns;
use weights::Weights;

/// Runs the jobs of some queues.
pub struct Worker {
    queue: Arc<dyn Queue>,
    ledger: Arc<dyn Ledger>,
    router: Arc<Router>,
    options: WorkerOptions,
    observers: Vec<Arc<dyn Observer>>,
    control_plane: ControlPlane,
    failed_jobs: Option<Arc<FailedJobs>>,
    services: Services,
    pool: Option<Pool>,
    runtimes: ExtraRuntimes,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Worker")
            .field("router", &self.router)
            .field("options", &self.options)
            .finish_non_exhaustive()
    }
}

/// What a worker did, and why it stopped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Report {
    /// Why it stopped.
    pub reason: StopReason,
    /// Attempts begun.
    pub jobs_processed: u64,
    /// Jobs cut short at the stop deadline and released.
    pub released: u64,
    /// Jobs whose end could not be written down; they stay reserved until `retry_after`.
    pub unsettled: u64,
}

impl Worker {
    /// A worker for the queues in `options`.
    ///
    /// The ledger keeps failed jobs and follow-ups until they are done; drivers that end a job in one step are
    /// their own ledger.
    pub fn new<Q: Driver>(queue: Arc<Q>, router: Router, options: WorkerOptions) -> Self {
        Self::with_driver(queue, router, options)
    }

    /// As [`new`](Self::new), for a driver that is known at run time only.
    pub fn with_driver(queue: Arc<dyn Driver>, router: Router, options: WorkerOptions) -> Self {
        let ledger = Arc::clone(&queue) as Arc<dyn Ledger>;
        Self::with_ledger(queue, ledger, router, options)
    }

    /// As [`new`](Self::new), for a driver that keeps no ledger.
    ///
    /// Such a driver cannot end a job in one step with an entry in a ledger elsewhere.
    pub fn with_ledger(
        queue: Arc<dyn Queue>,
        ledger: Arc<dyn Ledger>,
        router: Router,
        options: WorkerOptions,
    ) -> Self {
        Self {
            ledger,
            queue,
            router: Arc::new(router),
            options,
            observers: Vec::new(),
            control_plane: ControlPlane::default(),
            failed_jobs: None,
            services: Services::default(),
            pool: None,
            runtimes: ExtraRuntimes::default(),
        }
    }

    /// Renews reservations and watches handlers on this runtime, which no handler can block.
    ///
    /// Handlers that block a thread of the worker's runtime are named in the log. If a handler blocks beyond its
    /// timeout, or beyond the stop deadline, [`Control::abandoned`] returns: then end the process.
    #[must_use]
    pub fn with_overseer(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtimes.overseer = Some(runtime);
        self
    }

    /// Runs handlers that keep a thread busy on this runtime, so that they use several processors; all others run
    /// on the worker's own, where nothing has to be handed from thread to thread.
    #[must_use]
    pub fn with_threads(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.runtimes.threads = Some(runtime);
        self
    }

    /// Sends the jobs that policy `php` leaves to PHP to this pool; without a pool they stay in the queue.
    ///
    /// The worker stops the pool when it ends.
    #[must_use]
    pub fn with_php_pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Gives jobs access to what their app offers: keys, batches, locks, databases.
    #[must_use]
    pub fn with_services(mut self, services: Services) -> Self {
        self.services = services;
        self
    }

    /// Makes the worker obey what the app says through its cache and its maintenance mode.
    #[must_use]
    pub fn with_control_plane(mut self, control_plane: ControlPlane) -> Self {
        self.control_plane = control_plane;
        self
    }

    /// Records failed jobs in the app's store; without a store they stay in the spool.
    #[must_use]
    pub fn with_failed_jobs(mut self, failed_jobs: FailedJobs) -> Self {
        self.failed_jobs = Some(Arc::new(failed_jobs));
        self
    }

    /// Adds an observer of events.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Adds a closure that receives all events; it picks those it wants.
    ///
    /// ```
    /// use artisand::worker::{Event, Worker};
    ///
    /// # fn with<Q: artisand::queue::Queue>(worker: Worker) -> Worker {
    /// worker.on(|event| {
    ///     if let Event::JobFailed(end) = event {
    ///         eprintln!("{} failed", end.job.payload.resolve_name());
    ///     }
    /// })
    /// # }
    /// ```
    #[must_use]
    pub fn on(self, observer: impl Fn(&Event<'_>) + Send + Sync + 'static) -> Self {
        self.with_observer(observer)
    }

    /// Runs until told to stop, or until one of the options ends the run.
    ///
    /// Never fails: the worker waits for a server that goes away, and any other error ends only with the job it
    /// concerns.
    pub async fn run(self, control: &Control) -> Report {
        remember_places();
        if self.runtimes.threads.is_some() {
            // A busy handler may be the first to need a new connection, and such handlers may then block all of their
            // threads: nothing would read the replies to pops.
            self.queue.open_on(&tokio::runtime::Handle::current());
        }
        let mut run = self.start(control);
        if !run.options.stop.once {
            run.shared.emit(Event::WorkerStarting(&run.options));
        }
        // No pop before the first look at the app's signals, so that the app can say that it is down.
        tokio::select! {
            () = run.announcer.first_look() => {}
            () = told_to_quit(&mut run.steering.orders) => {}
        }
        let reason = run.work().await;
        run.shared.stops.begun.cancel();
        if run.options.stop.once && run.slots.begun() == 0 && reason == StopReason::QueueEmpty {
            // As in Laravel, so that a shell loop around `--once` does not spin.
            tokio::select! {
                () = tokio::time::sleep(run.options.sleep) => {}
                _ = run.steering.orders.changed() => {}
            }
        }
        let is_told = matches!(reason, StopReason::Interrupted | StopReason::RestartSignal);
        if is_told && !run.slots.is_empty() {
            let hint = if run.steering.orders.borrow().is_interrupted {
                "; press Ctrl-C again to cancel them: cancelled jobs are released, and fail if this was their last try"
            } else {
                ""
            };
            tracing::info!(%reason, jobs = run.slots.len(), "stopping when the running jobs have ended{hint}");
        }
        run.stop(reason).await
    }

    /// Starts all background tasks.
    fn start(self, control: &Control) -> Run {
        let (queue, options) = (self.queue, self.options);
        let observers: Observers = self.observers.into_iter().collect();
        let (services, running) = (Arc::new(self.services), Arc::<Running>::default());
        let turns = Arc::new(Turns::new(self.runtimes.overseer.is_some()));
        let settle_counts = Arc::<SettleCounts>::default();
        let renewer = Renewer::new(&queue, &running, &observers, options.clock);
        let renewals = Arc::new(Renewals::new(renewer, self.runtimes.overseer.as_ref()));
        let (mut background, settlements) = Background::start(Premises {
            queue: &queue,
            ledger: &self.ledger,
            options: &options,
            control,
            observers: &observers,
            services: &services,
            running: &running,
            renewals: &renewals,
            turns: &turns,
            settle_counts: &settle_counts,
            failed_jobs: self.failed_jobs,
            runtimes: &self.runtimes,
        });
        let pool = (self.pool).filter(|_| *self.router.unmapped() == UnmappedPolicy::Php);
        background.pass_signals(pool.as_ref(), &*queue, control);
        let php_changes = pool.as_ref().map(Pool::changes);
        let helpers = &mut background.helpers;
        let announcer = Announcer::start(&self.control_plane, &options, helpers);
        let wakeups = Wakeups::start(&queue, &options.queues, php_changes, helpers);
        let app = AppContext::new(self.router, services, &options, &*queue, self.ledger);
        let mappings = app.router.mappings().len();
        let shared = Shared {
            triage: Arc::new(Triage::new(Arc::new(app))),
            terms: Terms::of(&options),
            leases: Leases::new(running, renewals, &queue),
            settlements: Settlements::new(settlements, settle_counts),
            turns,
            weights: Weights::new(self.runtimes.threads, mappings),
            observers,
            stops: Stops::default(),
            ends: EndCounter::default(),
            pool,
            recording: (background.recording.as_ref()).and_then(Recording::recordings),
        };
        let at_once = options.concurrency.min(queue.abilities().most_at_once);
        Run {
            shared: Arc::new(shared),
            queue,
            steering: Steering::new(control.subscribe()),
            heartbeat: control.heartbeat().clone(),
            slots: Slots::new(options.concurrency, mappings),
            intakes: Intakes::new(Linger::new(at_once)),
            wakeups,
            retry: PopRetry::default(),
            limits: Limits::new(Instant::now()),
            announcer,
            background,
            options,
        }
    }
}
