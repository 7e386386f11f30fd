//! Takes jobs from queues, runs them, and sees to it that each is settled.
//!
//! ```text
//! fetch ──▶ job task: parse, route, judge, run, judge ──▶ settle ──▶ observers
//!   ▲            │ a slot each                              │
//!   └── slot ────┘                                          └─ one call for many jobs
//! ```
//!
//! A slot is free before a job is popped, so nothing is reserved that cannot
//! run. Whoever holds a reserved job settles it: there is no early return
//! between pop and settle.

use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod app_context;
mod attempt;
mod backoff;
mod completer;
mod completion;
mod event;
mod lane;
mod options;
mod outbox;
#[cfg(feature = "cli")]
mod preview;
mod renew;
mod select;
mod signals;
mod stats;
mod stop;
mod triage;
mod watchdog;

pub use attempt::decide::Defaults;
#[cfg(feature = "cli")]
pub(crate) use completion::hand_over::is_closure;
pub use event::{Event, JobEnd, JobException, JobResult, Looping, Observer};
pub use options::WorkerOptions;
#[cfg(feature = "cli")]
pub(crate) use preview::Preview;
pub use signals::ControlPlane;
pub use stats::{CanaryStop, Tally};
pub use stop::{Control, Orders, StopReason, resident_memory};

use crate::connection::is_away;
use crate::failed::FailedJobs;
use crate::handler::pool::Pool;
use crate::handler::{Router, Services, UnmappedPolicy, remember_places};
use crate::queue::{Popped, Queue, QueueName, ReservedJob, Settled, Settlement};
use crate::shown::with_causes;
use crate::time::UnixSeconds;
use app_context::AppContext;
use attempt::{Company, Given, Shared, TaskEnd};
use backoff::Reconnect;
use completer::Returns;
use event::Observers;
use lane::{Due, Lane};
use outbox::follow_ups::{Left, LeftDone};
use outbox::{Following, Patience, Recording};
use renew::Running;
use select::Selector;
use signals::{Heard, Watch};
use triage::{Candidate, Triage, Triaged};
use watchdog::{Turns, Watchdog};

/// Runs the jobs of some queues.
pub struct Worker<Q> {
    queue: Arc<Q>,
    router: Arc<Router>,
    options: WorkerOptions,
    observers: Vec<Arc<dyn Observer>>,
    control_plane: ControlPlane,
    failed_jobs: Option<Arc<FailedJobs>>,
    services: Services,
    pool: Option<Pool>,
    overseer: Option<tokio::runtime::Handle>,
}

impl<Q> std::fmt::Debug for Worker<Q> {
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

impl<Q: Queue> Worker<Q> {
    /// A worker for the queues in `options`.
    pub fn new(queue: Arc<Q>, router: Router, options: WorkerOptions) -> Self {
        Self {
            queue,
            router: Arc::new(router),
            options,
            observers: Vec::new(),
            control_plane: ControlPlane::default(),
            failed_jobs: None,
            services: Services::default(),
            pool: None,
            overseer: None,
        }
    }

    /// Renews reservations and watches handlers on this runtime, which no handler can block.
    ///
    /// Handlers that block a thread of the worker's runtime are named in the
    /// log. One that blocks it beyond its timeout, or beyond the stop deadline,
    /// lets [`Control::abandoned`] return: then end the process.
    #[must_use]
    pub fn with_overseer(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.overseer = Some(runtime);
        self
    }

    /// Gives jobs that policy `php` sends to PHP to this pool; without one they stay in the queue.
    ///
    /// The worker stops the pool when it ends.
    #[must_use]
    pub fn with_php_pool(mut self, pool: Pool) -> Self {
        self.pool = Some(pool);
        self
    }

    /// Gives jobs what their app offers: keys, batches, locks, databases.
    #[must_use]
    pub fn with_services(mut self, services: Services) -> Self {
        self.services = services;
        self
    }

    /// Obeys what the app says through its cache and its maintenance mode.
    #[must_use]
    pub fn with_control_plane(mut self, control_plane: ControlPlane) -> Self {
        self.control_plane = control_plane;
        self
    }

    /// Brings failed jobs to the app's store; without one they stay in the spool.
    #[must_use]
    pub fn with_failed_jobs(mut self, failed_jobs: FailedJobs) -> Self {
        self.failed_jobs = Some(Arc::new(failed_jobs));
        self
    }

    /// Adds a listener of events.
    #[must_use]
    pub fn with_observer(mut self, observer: impl Observer) -> Self {
        self.observers.push(Arc::new(observer));
        self
    }

    /// Adds a closure that is told of all events; it picks those it wants.
    ///
    /// ```
    /// use artisand::worker::{Event, Worker};
    ///
    /// # fn with<Q: artisand::queue::Queue>(worker: Worker<Q>) -> Worker<Q> {
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

    /// Adds a closure that is asked before each look at the queues; false keeps the worker from it.
    ///
    /// See [`Looping::veto`] for what becomes of the worker then.
    #[must_use]
    pub fn on_looping(
        self,
        may_pop: impl Fn(&Looping<'_>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.on(move |event| {
            if let Event::Looping(looping) = event
                && !may_pop(looping)
            {
                looping.veto();
            }
        })
    }

    /// Runs until told to stop, or until one of the options says so.
    ///
    /// Never fails: a server that goes away is waited for, and everything else
    /// is somebody's job and ends with that job.
    pub async fn run(self, control: &Control) -> Report {
        remember_places();
        Loop::new(self, control).run().await
    }
}

/// How a job's task ended; and what counts it as one for PHP until the loop has taken note.
type TaskOutput = (TaskEnd, Option<Arc<()>>);

/// Something that happened while the loop waited.
enum Wake {
    Ended(Option<Result<TaskOutput, tokio::task::JoinError>>),
    Pushed(Option<QueueName>),
    Orders,
    /// A job that was released is back then.
    Returns(UnixSeconds),
    /// What was left to do for jobs that have ended is done.
    Left,
    Time,
}

struct Loop<Q> {
    shared: Arc<Shared>,
    queue: Arc<Q>,
    options: WorkerOptions,
    orders: tokio::sync::watch::Receiver<Orders>,
    tasks: JoinSet<TaskOutput>,
    /// Slots taken for good by handlers that do not return.
    lost_slots: usize,
    begun: u64,
    released: u64,
    /// Jobs running per mapping.
    per_mapping: Vec<usize>,
    next_number: u64,
    /// Jobs for handlers here.
    lane: Lane,
    /// Jobs for PHP.
    php_lane: Lane,
    /// Changes when a PHP process begins or ends to wait.
    php_changes: Option<tokio::sync::watch::Receiver<u64>>,
    /// Held once more by every job that PHP runs.
    in_php: Arc<()>,
    /// Held once more by every job of PHP whose end is not written down.
    unsettled_in_php: Arc<()>,
    woken: Vec<QueueName>,
    arm_waiter: Arc<Notify>,
    waiter_rests_until: Option<Instant>,
    pushed: mpsc::Receiver<QueueName>,
    reconnect: Reconnect,
    /// No pop before this moment, whatever happens: the last one failed.
    pops_again: Option<Instant>,
    started: Instant,
    last_job: Instant,
    stuck: bool,
    lost_connection: bool,
    memory_looked_at: Option<Instant>,
    /// When observers were last told what was counted, and that.
    tallied: (Instant, Vec<Tally>),
    is_over_memory: bool,
    /// Tasks that live as long as the loop.
    helpers: JoinSet<()>,
    settling: tokio::task::JoinHandle<usize>,
    /// When jobs are back that were released.
    returns: Arc<Returns>,
    give_up: CancellationToken,
    heard: tokio::sync::watch::Receiver<Heard>,
    /// What was told to observers of what was heard.
    told: Heard,
    /// Ends when the first look at the app's signals is over.
    first_look: Option<tokio::sync::oneshot::Receiver<()>>,
    recording: Option<Recording>,
    following: Following,
    /// What is left to do for jobs that have ended.
    left_to_do: Arc<Left>,
    /// Changes when more of that is done.
    left_changes: tokio::sync::watch::Receiver<LeftDone>,
}

/// What is heard of the app, and the end of the first look.
type Watching = (
    tokio::sync::watch::Receiver<Heard>,
    Option<tokio::sync::oneshot::Receiver<()>>,
);

fn start_watch(
    helpers: &mut JoinSet<()>,
    control_plane: &ControlPlane,
    options: &WorkerOptions,
) -> Watching {
    let (hear, heard) = tokio::sync::watch::channel(Heard::default());
    let watch = Watch::new(control_plane, options.connection.as_str(), &options.queues);
    let first_look = watch.map(|watch| {
        let (looked, first_look) = tokio::sync::oneshot::channel();
        helpers.spawn(watch.keep_looking(hear, looked));
        first_look
    });
    (heard, first_look)
}

/// What a pop is for.
#[derive(Debug, Clone, Copy)]
enum For {
    /// Slots here.
    Slots,
    /// PHP processes that wait.
    Php,
}

/// What came of a pop.
struct Fetched<'a> {
    popped: Popped,
    taken: usize,
    selector: Option<Selector<'a>>,
}

impl Fetched<'_> {
    /// The jobs, each with what was found out about it when it was selected.
    fn into_jobs(self) -> impl Iterator<Item = (ReservedJob, Option<Candidate>)> {
        let mut selector = self.selector;
        self.popped.jobs.into_iter().map(move |job| {
            let candidate = selector
                .as_mut()
                .and_then(|selector| selector.candidate(&job));
            (job, candidate)
        })
    }
}

/// How often to look for jobs of ours among those for PHP processes that are all at work.
const BESIDE_PHP: Duration = Duration::from_millis(100);
/// How often observers are told what was counted of canaries and shadows.
const TALLY_EVERY: Duration = Duration::from_secs(60);
/// How long a pop under load waits for more free slots.
const GATHER: Duration = Duration::from_millis(1);
/// How often memory and time limits are looked at.
const LIMITS_EVERY: Duration = Duration::from_secs(1);

impl<Q: Queue> Loop<Q> {
    #[expect(clippy::too_many_lines, reason = "a list of all there is")]
    fn new(worker: Worker<Q>, control: &Control) -> Self {
        let Worker {
            queue,
            router,
            options,
            observers,
            control_plane,
            failed_jobs,
            services,
            pool,
            overseer,
        } = worker;
        let observers: Observers = observers.into_iter().collect();
        let running = Arc::new(Running::default());
        let give_up = CancellationToken::new();
        let (settlements, received) = mpsc::channel(options.concurrency.get().max(64));
        let spooled = Arc::new(Notify::new());
        let left: Arc<Left> = Arc::default();
        let returns = Arc::new(Returns::default());
        let settler = completer::Settler {
            queue: Arc::clone(&queue),
            running: Arc::clone(&running),
            observers: observers.clone(),
            spooled: Arc::clone(&spooled),
            left: Arc::clone(&left),
            returns: Arc::clone(&returns),
            give_up: give_up.clone(),
            over_at: std::sync::OnceLock::new(),
        };
        let settling = tokio::spawn(completer::keep_settling(settler, received));
        let mut helpers = JoinSet::new();
        let renewing =
            renew::keep_renewing(Arc::clone(&queue), Arc::clone(&running), options.clock);
        let turns = Arc::new(Turns::new(overseer.is_some()));
        if let Some(overseer) = &overseer {
            helpers.spawn_on(renewing, overseer);
            helpers.spawn(Arc::clone(&turns).keep_alive());
            let watchdog = Watchdog {
                turns: Arc::clone(&turns),
                running: Arc::clone(&running),
                control: control.clone(),
                orders: control.subscribe(),
                grace: options.grace,
            };
            helpers.spawn_on(watchdog.keep_watching(), overseer);
        } else {
            helpers.spawn(renewing);
        }
        let arm_waiter = Arc::new(Notify::new());
        let (announce, pushed) = mpsc::channel(1);
        if queue.announces_pushes() {
            let (queue, queues) = (Arc::clone(&queue), options.queues.clone());
            helpers.spawn(select::keep_waiting(
                queue,
                queues,
                Arc::clone(&arm_waiter),
                announce,
            ));
        }
        let services = Arc::new(services);
        let following = Following::start(
            &queue,
            Arc::clone(&services),
            options.connection.clone(),
            Arc::clone(&left),
            options.clock,
        );
        let keeps_others_out = failed_jobs
            .as_ref()
            .is_some_and(|store| store.keeps_others_out());
        let recording =
            failed_jobs.map(|store| Recording::start(&queue, store, spooled, options.clock));
        let (heard, first_look) = start_watch(&mut helpers, &control_plane, &options);
        let per_mapping = vec![0; router.mappings().len()];
        let shared = Arc::new(Shared {
            triage: Arc::new(Triage::new(Arc::new(AppContext {
                router: Arc::clone(&router),
                services: Arc::clone(&services),
                connection: options.connection.clone(),
                clock: options.clock,
                is_on_queue: Box::new({
                    let queue = Arc::clone(&queue);
                    move |redis| queue.is_on(redis)
                }),
                can_sign: OnceLock::new(),
            }))),
            defaults: options.defaults.clone(),
            has_timeouts: !options.once,
            is_sequential: options.concurrency == NonZeroUsize::MIN,
            rest: options.rest,
            confirm: Box::new({
                let queue = Arc::clone(&queue);
                move |job, until| {
                    let queue = Arc::clone(&queue);
                    Box::pin(async move {
                        let settled = queue.settle(&[(job, Settlement::LeaveUntil(until))]).await;
                        matches!(settled.as_deref(), Ok([Settled::Done]))
                    })
                }
            }),
            retry_after: queue.retry_after(),
            settlements,
            running,
            turns,
            observers,
            stop: CancellationToken::new(),
            company: Company::default(),
            stopping: CancellationToken::new(),
            cache: control_plane.cache,
            pool: pool.filter(|_| *router.unmapped() == UnmappedPolicy::Php),
            recording: (recording.as_ref())
                .filter(|_| keeps_others_out)
                .map(Recording::recordings),
            only_settling: AtomicUsize::default(),
        });
        let now = Instant::now();
        let php_changes = shared.pool.as_ref().map(Pool::changes);
        if let Some(pool) = shared.pool.clone() {
            let mut signals = control.signals();
            helpers.spawn(async move {
                while signals.changed().await.is_ok() {
                    if let Some(signal) = *signals.borrow_and_update() {
                        // Before members that end by it: they are not to be replaced.
                        pool.close();
                        pool.signal(signal);
                    }
                }
            });
        }
        Self {
            shared,
            queue,
            orders: control.subscribe(),
            tasks: JoinSet::new(),
            lost_slots: 0,
            begun: 0,
            released: 0,
            per_mapping,
            next_number: 0,
            lane: Lane::default(),
            php_lane: Lane::default(),
            php_changes,
            in_php: Arc::default(),
            unsettled_in_php: Arc::default(),
            woken: Vec::new(),
            arm_waiter,
            waiter_rests_until: None,
            pushed,
            reconnect: Reconnect::default(),
            pops_again: None,
            started: now,
            last_job: now,
            stuck: false,
            lost_connection: false,
            memory_looked_at: None,
            tallied: (now, Vec::new()),
            is_over_memory: false,
            helpers,
            settling,
            returns,
            give_up,
            heard,
            told: Heard::default(),
            first_look,
            recording,
            following,
            left_changes: left.changes(),
            left_to_do: left,
            options,
        }
    }

    async fn run(mut self) -> Report {
        if !self.options.once {
            self.shared.emit(Event::WorkerStarting(&self.options));
        }
        if let Some(looked) = self.first_look.take() {
            // Nothing is popped before the app had a chance to say that it is down.
            tokio::select! {
                () = signals::first_look(looked) => {}
                () = told_to_quit(&mut self.orders) => {}
            }
        }
        let mut paused = false;
        let reason = loop {
            self.reap();
            self.hear();
            let orders = *self.orders.borrow_and_update();
            if orders.paused != paused {
                paused = orders.paused;
                self.shared.emit(if paused {
                    Event::WorkerPausing
                } else {
                    Event::WorkerResuming
                });
                self.look_again();
            }
            self.look_at_memory();
            if self.tallied.0.elapsed() >= TALLY_EVERY {
                self.tell_tallies();
            }
            if let Some(reason) = self.stop_reason(orders) {
                break reason;
            }
            let may_fetch = !paused && self.has_open_queue() && !self.rests();
            let mut has_fetched = false;
            if let Some(slots) = self.slots_to_fill().filter(|_| may_fetch)
                && self.is_due(slots)
            {
                self.fetch(slots).await;
                has_fetched = true;
            }
            if let Some(slots) = self.php_slots_to_fill().filter(|_| may_fetch)
                && self.php_lane.is_due()
            {
                self.fetch_for_php(slots).await;
                has_fetched = true;
            }
            if !has_fetched {
                self.wait(!may_fetch).await;
            }
        };
        self.shared.stopping.cancel();
        if self.options.once && self.begun == 0 && reason == StopReason::QueueEmpty {
            // As in Laravel, so that a shell loop around `--once` does not spin.
            tokio::select! {
                () = tokio::time::sleep(self.options.sleep) => {}
                _ = self.orders.changed() => {}
            }
        }
        if reason == StopReason::Interrupted && !self.tasks.is_empty() {
            tracing::info!(%reason, jobs = self.tasks.len(), "stopping when the running jobs have ended");
        }
        self.stop(reason).await
    }

    /// Takes note of what the app said.
    fn hear(&mut self) {
        let heard = {
            let heard = self.heard.borrow_and_update();
            if *heard == self.told {
                return;
            }
            heard.clone()
        };
        let tell = |event: Event<'_>| self.shared.emit(event);
        for queue in heard
            .paused
            .iter()
            .filter(|queue| !self.told.paused.contains(queue))
        {
            tell(Event::WorkerQueuePaused(queue));
        }
        for queue in self
            .told
            .paused
            .iter()
            .filter(|queue| !heard.paused.contains(queue))
        {
            tell(Event::WorkerQueueResumed(queue));
        }
        if heard.down != self.told.down {
            tell(Event::MaintenanceMode(heard.down));
        }
        if heard.resumes != self.told.resumes {
            for target in self.shared.triage.stats.resume() {
                tracing::info!(
                    mapping = target,
                    "a canary that had stopped itself runs jobs again"
                );
                tell(Event::CanaryResumed(target));
            }
        }
        self.look_again();
        self.told = heard;
    }

    /// Whether the app lets any of the queues be worked now.
    fn has_open_queue(&self) -> bool {
        let is_paused = |queue: &QueueName| self.told.paused.contains(queue);
        !self.told.down && !self.options.queues.iter().all(is_paused)
    }

    /// Whether the wait after a pop that failed is not over.
    fn rests(&mut self) -> bool {
        let now = Instant::now();
        self.pops_again = self.pops_again.filter(|moment| *moment > now);
        self.pops_again.is_some()
    }

    /// Both lanes are due.
    fn look_again(&mut self) {
        self.lane.due = Due::Now;
        self.php_lane.due = Due::Now;
    }

    /// How many jobs PHP runs.
    fn in_php(&self) -> usize {
        Arc::strong_count(&self.in_php) - 1
    }

    /// How many jobs may still be begun.
    fn left(&self) -> usize {
        let max_jobs = if self.options.once {
            Some(1)
        } else {
            self.options.max_jobs
        };
        let left = max_jobs.map_or(u64::MAX, |max_jobs| max_jobs.saturating_sub(self.begun));
        usize::try_from(left).unwrap_or(usize::MAX)
    }

    /// Free slots that may be filled now.
    fn slots_to_fill(&self) -> Option<NonZeroUsize> {
        if self.shared.has_only_php() {
            return None;
        }
        let taken = self.tasks.len().saturating_sub(self.in_php()) + self.lost_slots;
        let free = self.options.concurrency.get().saturating_sub(taken);
        NonZeroUsize::new(free.min(self.left()))
    }

    /// PHP processes that wait for a job.
    fn php_slots_to_fill(&self) -> Option<NonZeroUsize> {
        let pool = self.shared.pool.as_ref()?;
        // Of one job after the other, also the other kind; and a single process is as `queue:work`, which has written
        // down the end of a job when it takes the next.
        let is_free = (!self.options.once || self.tasks.is_empty())
            && (pool.size() > 1 || Arc::strong_count(&self.unsettled_in_php) == 1);
        NonZeroUsize::new(pool.waiting().min(self.left())).filter(|_| is_free)
    }

    fn is_due(&mut self, slots: NonZeroUsize) -> bool {
        match self.lane.due {
            Due::At(moment) => moment <= Instant::now(),
            Due::Now if !self.lane.backlog || self.tasks.is_empty() => true,
            // Under load one call for several jobs: wait a moment for more slots.
            Due::Now => {
                let since = *self.lane.gathering_since.get_or_insert_with(Instant::now);
                slots.get() >= self.company() || since.elapsed() >= GATHER
            }
        }
    }

    /// How many slots a pop under load waits for.
    fn company(&self) -> usize {
        self.options.concurrency.get().div_ceil(2)
    }

    /// Pops and starts jobs that run here.
    async fn fetch(&mut self, slots: NonZeroUsize) {
        self.lane.gathering_since = None;
        let selects = self.selects();
        // What is announced and not for us is for PHP, whose turn comes next.
        let is_last = self.shared.pool.is_none() || self.php_slots_to_fill().is_none();
        let woken = if is_last {
            std::mem::take(&mut self.woken)
        } else {
            Vec::new()
        };
        let shared = Arc::clone(&self.shared);
        let selector = selects.then(|| Selector::for_handlers(&shared.triage, &self.per_mapping));
        let Some(fetched) = self.pop(slots, selector, &woken, For::Slots).await else {
            return;
        };
        if selects && fetched.taken == 0 {
            let now = Instant::now();
            if !woken.is_empty() {
                // What was announced is for somebody else: let them see the next announcements first.
                self.waiter_rests_until = Some(now + LIMITS_EVERY);
            }
            if self.shared.pool.is_some() && self.does_waiter_rest(now) {
                // Here that may be our own PHP processes, all at work: jobs for us are not announced meanwhile.
                self.lane.is_due_by(now + BESIDE_PHP);
            }
        }
        for (job, candidate) in fetched.into_jobs() {
            self.start(job, candidate, Given::Slot);
        }
    }

    /// Pops jobs for the PHP processes that wait, and gives each of them one.
    async fn fetch_for_php(&mut self, slots: NonZeroUsize) {
        let woken = std::mem::take(&mut self.woken);
        let shared = Arc::clone(&self.shared);
        let selector = (!shared.has_only_php()).then(|| Selector::for_php(&shared.triage));
        let Some(fetched) = self.pop(slots, selector, &woken, For::Php).await else {
            return;
        };
        let now = Instant::now();
        if fetched.taken > 0 {
            // Behind what they took there may be something for us.
            self.lane.is_due_by(now + BESIDE_PHP);
        } else {
            if !woken.is_empty() {
                // What was announced is for slots that are all taken: our own waiter must not hear of it again and again.
                self.waiter_rests_until = Some(now + LIMITS_EVERY);
            }
            if self.does_waiter_rest(now) {
                self.php_lane.is_due_by(now + BESIDE_PHP);
            }
        }
        for (job, candidate) in fetched.into_jobs() {
            let seat = shared.pool.as_ref().and_then(Pool::take);
            let given = Given::Php(seat, Arc::clone(&self.unsettled_in_php));
            self.start(job, candidate, given);
        }
    }

    /// Whether nobody here listens to announcements.
    fn does_waiter_rest(&self, now: Instant) -> bool {
        self.waiter_rests_until.is_some_and(|until| until > now)
    }

    fn lane_of(&mut self, what: For) -> &mut Lane {
        match what {
            For::Slots => &mut self.lane,
            For::Php => &mut self.php_lane,
        }
    }

    /// Pops up to so many jobs, and takes note of what that says of the queues; `None` if there was no pop.
    async fn pop<'a>(
        &mut self,
        slots: NonZeroUsize,
        mut selector: Option<Selector<'a>>,
        woken: &[QueueName],
        what: For,
    ) -> Option<Fetched<'a>> {
        // Before the pop: a job settled after it may be back in the queue.
        let is_quiet = self.tasks.is_empty() && self.shared.running.is_empty();
        if self.is_vetoed() {
            self.rest_after_veto(what, is_quiet);
            return None;
        }
        let is_open = |queue: &&QueueName| !self.told.paused.contains(queue);
        let queues: Vec<QueueName> = self
            .options
            .queues
            .iter()
            .filter(is_open)
            .cloned()
            .collect();
        self.shared.emit(Event::JobPopping {
            connection: &self.options.connection,
            queues: &queues,
        });
        let popping = async {
            self.renew_overdue().await?;
            let now = self.options.clock.now();
            select::pop(&*self.queue, &queues, now, slots, woken, selector.as_mut()).await
        };
        let mut orders = self.orders.clone();
        let Some(popped) = unless_told_to_quit(popping, &mut orders).await else {
            tracing::warn!(
                "the server does not answer: stopping without the reply of the last pop"
            );
            return None;
        };
        let now = Instant::now();
        let popped = match popped {
            Ok(popped) => popped,
            Err(error) => {
                let wait = self.reconnect.next_wait();
                // That the server is away is said once for all, by the connection.
                if !is_away(&error) {
                    tracing::error!(error = with_causes(&error), retry_in = ?wait, "could not pop jobs");
                }
                self.lost_connection = true;
                self.pops_again = Some(now + wait);
                for lane in [&mut self.lane, &mut self.php_lane] {
                    lane.backlog = false;
                    lane.due = Due::Now;
                }
                return None;
            }
        };
        if std::mem::take(&mut self.lost_connection) {
            self.reconnect.reset();
        }
        let taken = popped.jobs.len();
        let has_moved = popped.migrated > 0 || !popped.quarantined.is_empty();
        let backlog = taken == slots.get();
        let due = if backlog || (has_moved && taken == 0) {
            Due::Now
        } else if self.is_bounded() && !is_quiet && self.tasks.is_empty() {
            // The last jobs are being settled: look again when they are.
            Due::At(now + Duration::from_millis(2))
        } else if selector.as_ref().is_some_and(|selector| selector.limited) {
            // Jobs are there whose mapping has no slot: the end of one of them makes the queue due.
            Due::At(now + self.options.sleep)
        } else {
            Due::At(now + self.idle_wait(&popped))
        };
        let lane = self.lane_of(what);
        lane.backlog = backlog;
        lane.due = due;
        lane.is_empty = taken == 0 && !has_moved && is_quiet;
        for (queue, count) in &popped.quarantined {
            tracing::error!(%queue, count, "payloads cannot be decoded and went to quarantine");
            self.shared.emit(Event::JobsQuarantined {
                queue,
                count: *count,
            });
        }
        if taken > 0 {
            self.last_job = now;
            // What they do may leave something for either.
            self.lane.is_empty = false;
            self.php_lane.is_empty = false;
        }
        Some(Fetched {
            popped,
            taken,
            selector,
        })
    }

    /// Looks at the queues again only after a rest.
    fn rest_after_veto(&mut self, what: For, is_quiet: bool) {
        let rest = if self.options.sleep.is_zero() {
            LIMITS_EVERY
        } else {
            self.options.sleep
        };
        let until = Instant::now() + rest;
        *self.lane_of(what) = Lane {
            due: Due::At(until),
            is_empty: is_quiet,
            ..Lane::default()
        };
        // Pushes are of no interest until then.
        self.waiter_rests_until = Some(until);
    }

    /// Renews reservations that could not be renewed in time, so that the pop takes no job that runs here.
    async fn renew_overdue(&self) -> Result<(), crate::queue::Error> {
        let Some(retry_after) = self.queue.retry_after() else {
            return Ok(());
        };
        let now = Instant::now();
        let overdue = self.shared.running.overdue(retry_after);
        if !overdue.is_empty() {
            self.queue.renew(&overdue, self.options.clock.now()).await?;
            self.shared.running.renewed_at(now);
        }
        Ok(())
    }

    /// Whether somebody who hears of it keeps us from looking at the queues.
    fn is_vetoed(&self) -> bool {
        if self.options.once {
            return false;
        }
        let looping = Looping::new(&self.options);
        self.shared.emit(Event::Looping(&looping));
        looping.is_vetoed()
    }

    /// How long to wait when there is no job: until one is due, at most as long as `--sleep` says.
    fn idle_wait(&self, popped: &Popped) -> Duration {
        let due = popped.next_due.map(|due| self.options.clock.until(due));
        // A moment past the second, so that the clock is surely there; never a busy loop on a due job we cannot have.
        let due = due.map(|due| due.max(Duration::from_millis(20)) + Duration::from_millis(1));
        due.map_or(self.options.sleep, |due| due.min(self.options.sleep))
    }

    /// Whether a pop has to choose among the jobs.
    fn selects(&self) -> bool {
        self.shared.triage.leaves_unmapped() || self.has_limited_mappings()
    }

    /// Whether any mapping has a limit of its own.
    fn has_limited_mappings(&self) -> bool {
        let mut mappings = self.shared.triage.app.router.mappings();
        mappings.any(|mapping| mapping.concurrency.is_some())
    }

    fn start(&mut self, job: ReservedJob, mut candidate: Option<Candidate>, given: Given) {
        self.begun += 1;
        self.next_number += 1;
        let number = self.next_number;
        let job = Arc::new(job);
        self.shared.running.insert(number, Arc::clone(&job));
        let mapping = match given {
            Given::Slot => self.limited_mapping(&job, &mut candidate),
            Given::Php(..) => None,
        };
        if let Some(mapping) = mapping {
            self.per_mapping[mapping] += 1;
        }
        let shared = Arc::clone(&self.shared);
        let in_php = matches!(given, Given::Php(..)).then(|| Arc::clone(&self.in_php));
        self.tasks.spawn(async move {
            let end = attempt::run(shared, job, candidate, number, mapping, given).await;
            (end, in_php)
        });
    }

    /// The mapping whose own limit the job counts against.
    ///
    /// A job that was taken unseen is looked at for this, if any mapping has a limit.
    fn limited_mapping(
        &self,
        job: &ReservedJob,
        candidate: &mut Option<Candidate>,
    ) -> Option<usize> {
        if !self.has_limited_mappings() {
            return None;
        }
        let triage = &self.shared.triage;
        if candidate.is_none() {
            *candidate = triage.triage(&job.payload, &job.queue).ok();
        }
        match &candidate.as_ref()?.triaged {
            Triaged::Run(routed) => {
                let limit = triage.app.router.mapping(routed.mapping)?.concurrency;
                limit.map(|_| routed.mapping)
            }
            _ => None,
        }
    }

    /// Takes note of tasks that have ended.
    fn reap(&mut self) {
        while let Some(end) = self.tasks.try_join_next() {
            self.ended(end);
        }
    }

    fn ended(&mut self, end: Result<TaskOutput, tokio::task::JoinError>) {
        if self.is_bounded() {
            // It may have left something in the queue.
            self.look_again();
        }
        match end {
            Ok((end, _in_php)) => {
                if let Some(mapping) = end.mapping {
                    self.per_mapping[mapping] -= 1;
                    self.lane.due = Due::Now;
                }
                if end.is_stuck {
                    self.lost_slots += 1;
                    self.stuck = true;
                }
                self.released += u64::from(end.was_cut);
                self.begun -= u64::from(end.was_declined);
            }
            // Handlers' panics are caught inside: this is a fault of ours, and the job stays reserved.
            Err(error) => {
                tracing::error!(%error, "a job's task ended abnormally; its job stays reserved");
            }
        }
    }

    async fn wait(&mut self, paused: bool) {
        let can_fetch = !paused && self.slots_to_fill().is_some();
        let can_fetch_for_php = !paused && self.php_slots_to_fill().is_some();
        let now = Instant::now();
        let gathered = self.lane.gathering_since.map(|since| since + GATHER);
        let ours = can_fetch.then(|| self.lane.when(gathered.unwrap_or(now)));
        let of_php = can_fetch_for_php.then(|| self.php_lane.when(now));
        let next = ours.into_iter().chain(of_php).min();
        let until = next.unwrap_or(now + LIMITS_EVERY);
        let rest = self.waiter_rests_until.filter(|rest| *rest > now);
        let until = self
            .next_limit()
            .into_iter()
            .chain(rest)
            .chain(self.pops_again)
            .fold(until, Instant::min);
        // A worker that stops when the queue is empty would take a notification with it.
        let is_waiting = |can: bool, lane: &Lane| !can || matches!(lane.due, Due::At(_));
        if next.is_some()
            && !self.is_bounded()
            && is_waiting(can_fetch, &self.lane)
            && is_waiting(can_fetch_for_php, &self.php_lane)
            && self.waiter_rests_until.is_none_or(|rest| rest <= now)
        {
            self.waiter_rests_until = None;
            self.arm_waiter.notify_one();
        }
        let gathering = self
            .lane
            .gathering_since
            .and_then(|_| self.slots_to_fill())
            .filter(|_| can_fetch);
        if let Some(slots) = gathering {
            self.shared
                .company
                .expect(self.company().saturating_sub(slots.get()));
        }
        let wake = tokio::select! {
            biased;
            // While slots gather, their ends are counted and not each waited for.
            () = self.shared.company.is_complete(), if gathering.is_some() => Wake::Time,
            end = self.tasks.join_next(), if !self.tasks.is_empty() && gathering.is_none() => Wake::Ended(end),
            queue = self.pushed.recv(), if !self.pushed.is_closed() => Wake::Pushed(queue),
            _ = self.orders.changed() => Wake::Orders,
            Ok(()) = self.heard.changed() => Wake::Orders,
            () = changed(&mut self.php_changes) => Wake::Time,
            at = self.returns.next() => Wake::Returns(at),
            Ok(()) = self.left_changes.changed(), if self.ends_when_empty() => Wake::Left,
            () = tokio::time::sleep_until(until) => Wake::Time,
        };
        match wake {
            Wake::Ended(end) => end.into_iter().for_each(|end| self.ended(end)),
            Wake::Pushed(queue) => {
                self.woken.extend(queue);
                self.look_again();
            }
            Wake::Returns(at) => {
                let wait = self.options.clock.until(at);
                // A moment past the second, as for those that a pop has seen.
                let wait = if wait.is_zero() {
                    wait
                } else {
                    wait + Duration::from_millis(1)
                };
                let moment = Instant::now() + wait;
                self.lane.is_due_by(moment);
                self.php_lane.is_due_by(moment);
            }
            Wake::Left => {
                self.lane.is_empty = false;
                self.php_lane.is_empty = false;
                self.look_again();
            }
            Wake::Orders | Wake::Time => {}
        }
    }

    /// Whether the worker stops once there is no job.
    fn ends_when_empty(&self) -> bool {
        self.is_bounded() || self.options.stop_when_empty_for.is_some()
    }

    /// When a limit has to be looked at although nothing happens.
    fn next_limit(&self) -> Option<Instant> {
        let options = &self.options;
        let watched = options.memory.is_some() && !self.tasks.is_empty();
        let periodic = watched.then(|| Instant::now() + LIMITS_EVERY);
        let max_time = options.max_time.map(|max_time| self.started + max_time);
        let empty_for = options
            .stop_when_empty_for
            .map(|empty_for| self.last_job + empty_for);
        [periodic, max_time, empty_for]
            .into_iter()
            .flatten()
            .filter(|limit| *limit > Instant::now())
            .min()
    }

    /// Tells what was counted and has changed.
    fn tell_tallies(&mut self) {
        let tallies = self.shared.triage.stats.read();
        for tally in tallies
            .iter()
            .filter(|tally| !self.tallied.1.contains(tally))
        {
            self.shared.emit(Event::Tallied(tally));
        }
        self.tallied = (Instant::now(), tallies);
    }

    fn look_at_memory(&mut self) {
        let Some(limit) = self.options.memory else {
            return;
        };
        if self
            .memory_looked_at
            .is_some_and(|before| before.elapsed() < LIMITS_EVERY)
        {
            return;
        }
        self.memory_looked_at = Some(Instant::now());
        self.is_over_memory = resident_memory().is_some_and(|resident| resident >= limit);
    }

    /// Whether the worker is to run only until there is no job.
    fn is_bounded(&self) -> bool {
        self.options.once || self.options.stop_when_empty
    }

    /// Laravel's stop conditions, in Laravel's order.
    fn stop_reason(&self, orders: Orders) -> Option<StopReason> {
        let options = &self.options;
        // Queues that are closed count as empty ones, as in Laravel.
        let is_closed = !self.has_open_queue() && self.shared.running.is_empty();
        // And PHP that may not ask for jobs finds none.
        let is_php_idle = |pool: &Pool| self.php_lane.is_empty || pool.is_paused();
        let is_empty = (self.lane.is_empty || self.shared.has_only_php())
            && self.shared.pool.as_ref().is_none_or(is_php_idle);
        // What an ended job brings about may be more jobs, such as the callbacks of its batch.
        let is_idle =
            (is_empty || is_closed) && self.tasks.is_empty() && self.left_to_do.is_clear();
        let problem = self.shared.pool.as_ref().and_then(Pool::problem);
        if self.is_bounded() && self.tasks.is_empty() && problem.is_some() {
            return Some(StopReason::NoPhp);
        }
        if self.is_bounded() && self.lost_connection && self.tasks.is_empty() {
            return Some(StopReason::LostConnection);
        }
        if orders.quit {
            return Some(StopReason::Interrupted);
        }
        if self.stuck || self.shared.turns.is_overdue() {
            return Some(StopReason::TimedOut);
        }
        // As in Laravel not before the first job: with too low a limit there is progress still.
        if self.is_over_memory && self.begun > 0 {
            return Some(StopReason::MemoryLimit);
        }
        if self.told.restart && !options.once {
            return Some(StopReason::RestartSignal);
        }
        if options.stop_when_empty && is_idle {
            return Some(StopReason::QueueEmpty);
        }
        if is_idle
            && options
                .stop_when_empty_for
                .is_some_and(|empty_for| self.last_job.elapsed() >= empty_for)
        {
            return Some(StopReason::QueueEmptyFor);
        }
        if options
            .max_time
            .is_some_and(|max_time| self.started.elapsed() >= max_time)
        {
            return Some(StopReason::MaxTime);
        }
        // One that was given to PHP may come back as it was.
        let has_begun = |least: u64| self.begun >= least && self.in_php() == 0;
        if options.once && (is_idle || has_begun(1)) {
            return Some(StopReason::QueueEmpty);
        }
        options
            .max_jobs
            .is_some_and(has_begun)
            .then_some(StopReason::MaxJobs)
    }

    /// Lets running jobs finish, cuts them at the deadline, and waits until all are settled.
    async fn stop(mut self, reason: StopReason) -> Report {
        if let Some(pool) = &self.shared.pool {
            pool.close();
        }
        // Only an order to quit has somebody waiting behind it with SIGKILL in hand.
        let mut deadline = None;
        let mut is_asked = reason == StopReason::Interrupted;
        // Since when no job runs, and the server alone is waited for.
        let mut only_settling = None;
        while !self.tasks.is_empty() {
            let now = Instant::now();
            let orders = *self.orders.borrow_and_update();
            is_asked |= orders.quit;
            if is_asked && deadline.is_none() {
                deadline = self.options.grace.map(|grace| now + grace);
            }
            if orders.hurry || deadline.is_some_and(|deadline| deadline <= now) {
                self.shared.stop.cancel();
                self.give_up.cancel();
            }
            let settling = self.shared.only_settling.load(Ordering::Relaxed);
            only_settling = (is_asked && settling == self.tasks.len())
                .then(|| only_settling.unwrap_or(now + SERVER_AWAY));
            if only_settling.is_some_and(|until| until <= now) {
                self.give_up.cancel();
            }
            let until = deadline.filter(|_| !self.shared.stop.is_cancelled());
            let look_again = is_asked.then(|| now + LIMITS_EVERY);
            tokio::select! {
                end = self.tasks.join_next() => end.into_iter().for_each(|end| self.ended(end)),
                _ = self.orders.changed() => {}
                () = sleep_until(until) => {}
                () = sleep_until(look_again) => {}
            }
        }
        self.tell_tallies();
        // Dropping the last sender ends the settling task once it has done everything.
        let Self {
            shared,
            mut settling,
            mut helpers,
            mut orders,
            give_up,
            begun,
            released,
            options,
            recording,
            following,
            ..
        } = self;
        let observers = shared.observers.clone();
        let router = Arc::clone(&shared.triage.app.router);
        if let Some(pool) = &shared.pool {
            pool.stop().await;
        }
        drop(shared);
        let settled = loop {
            let Orders { quit, hurry, .. } = *orders.borrow_and_update();
            is_asked |= quit;
            if is_asked && only_settling.is_none() {
                only_settling = Some(Instant::now() + SERVER_AWAY);
            }
            let is_over = only_settling.is_some_and(|until| until <= Instant::now());
            if hurry || is_over || deadline.is_some() {
                give_up.cancel();
            }
            tokio::select! {
                settled = &mut settling => break settled,
                Ok(()) = orders.changed() => {}
                () = sleep_until(only_settling), if !give_up.is_cancelled() => {}
            }
        };
        let unsettled = settled.unwrap_or_else(|error| {
            tracing::error!(%error, "the settling task ended abnormally");
            1
        });
        let patience = Patience {
            orders,
            deadline,
            grace: options.grace,
        };
        let recorded = async {
            if let Some(recording) = recording {
                recording.finish(patience.clone()).await;
            }
        };
        let followed = following.finish(patience.clone());
        tokio::join!(recorded, followed, router.stop());
        // `--once` stops without a word, as in Laravel.
        if !options.once {
            observers.emit(&Event::WorkerStopping {
                reason,
                jobs_processed: begun,
                options: &options,
            });
        }
        helpers.shutdown().await;
        Report {
            reason,
            jobs_processed: begun,
            released,
            unsettled: unsettled as u64,
        }
    }
}

/// Ends when the worker is told to quit.
async fn told_to_quit(orders: &mut tokio::sync::watch::Receiver<Orders>) {
    while !orders.borrow_and_update().quit {
        if orders.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
    }
}

/// How long a server that went away is waited for once no job runs and the worker is told to quit; after that a last
/// chance.
const SERVER_AWAY: Duration = Duration::from_secs(5);

/// How long the server may take to answer a pop once the worker is told to quit.
const LAST_POP: Duration = Duration::from_secs(1);

/// Waits for a pop; given up only when the worker is told to quit and the server hangs.
///
/// Jobs of a reply that never came stay reserved until `retry_after`, as if this
/// process had been killed: which is what would happen next.
async fn unless_told_to_quit<T>(
    pop: impl Future<Output = T>,
    orders: &mut tokio::sync::watch::Receiver<Orders>,
) -> Option<T> {
    let mut pop = std::pin::pin!(pop);
    let told = async {
        told_to_quit(orders).await;
        tokio::time::sleep(LAST_POP).await;
    };
    tokio::select! {
        biased;
        popped = &mut pop => Some(popped),
        () = told => None,
    }
}

/// Waits for a change in who waits for jobs in PHP; for ever without a pool.
async fn changed(changes: &mut Option<tokio::sync::watch::Receiver<u64>>) {
    let is_told = match changes {
        Some(changes) => changes.changed().await.is_ok(),
        None => false,
    };
    if !is_told {
        std::future::pending::<()>().await;
    }
}

async fn sleep_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
