//! Puts a worker together and starts it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio_util::sync::CancellationToken;
use tokio_util::task::AbortOnDropHandle;

use super::helpers::Helpers;
use super::plan::Plan;
use super::records::Records;
use crate::cli::open_to_work;
use crate::cli::orders;
use crate::cli::pause::is_unpolled;
use crate::config::{self, Config, Connection};
use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::process::pool::{Pool, PoolError};
use crate::queue::{Driver, Ledger, Queue};
use crate::shown::with_causes;
use crate::telemetry::{
    About, Endpoint, Heart, JobFigures, ListenError, Orders, PageOptions, Sources, Telemetry,
    is_watched_by_systemd, keep_telling_systemd,
};
use crate::time::UnixSeconds;
use crate::worker::{Control, ControlPlane, Observer, Report, Unpolled, Worker};

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::cli::work";

/// What a worker uses of the app.
pub(super) struct Stores {
    pub(super) control_plane: ControlPlane,
    pub(super) failed_jobs: Option<FailedJobs>,
    pub(super) services: Services,
}

impl Stores {
    /// Opens them; a worker that works in maintenance mode, too, does not ask for it. `settings_of` is when the
    /// configuration began to be read.
    pub(super) fn open(
        config: &Config,
        plan: &Plan,
        settings_of: UnixSeconds,
    ) -> Result<Self, config::Error> {
        let cache = config::default_cache(config)?;
        let maintenance = if plan.options.force {
            None
        } else {
            config::maintenance(config)?
        };
        let failed_jobs = failed_jobs(config, plan)?;
        let services = config::services(config)?;
        config::check_middleware(config, &plan.router, &services)?;
        Ok(Self {
            control_plane: ControlPlane {
                cache,
                maintenance,
                settings_of: Some(settings_of),
                unpolled: unpolled(config),
            },
            failed_jobs,
            services,
        })
    }
}

/// The signals that the app's code keeps its workers from asking for, if a manifest says so.
fn unpolled(config: &Config) -> Unpolled {
    Unpolled {
        restart: is_unpolled(config, "restart"),
        pause: is_unpolled(config, "pause"),
    }
}

/// The app's store of failed jobs.
///
/// If PHP runs every job, a store that only PHP can write does not prevent the worker from starting.
fn failed_jobs(config: &Config, plan: &Plan) -> Result<Option<FailedJobs>, config::Error> {
    let is_all_in_php = plan.is_for_php() && plan.router.mappings().len() == 0;
    config::failed_jobs(config).or_else(|error| {
        if !is_all_in_php {
            return Err(error);
        }
        tracing::info!(
            target: TARGET,
            why = with_causes(&error),
            "failed jobs are recorded by PHP alone"
        );
        Ok(None)
    })
}

/// Starts the PHP processes if the policy for unmapped jobs needs them.
///
/// If the worker is told to stop before they have booted, it notices the order by itself.
async fn start_pool(
    config: &Config,
    plan: &Plan,
    failed_jobs: Option<&FailedJobs>,
    control: &Control,
) -> Result<Option<Pool>, PoolError> {
    if !plan.is_for_php() {
        return Ok(None);
    }
    let pool = Pool::new(config::pool_options(config, &plan.options, failed_jobs));
    tokio::select! {
        booted = pool.booted() => booted?,
        () = control.told_to_quit() => {}
    }
    Ok(Some(pool))
}

/// Says who can read the page, if these are not only users of this machine.
fn warn_of_readers(endpoint: &Endpoint, page: &PageOptions) {
    if page.is_served && page.token.is_none() && !endpoint.is_local() {
        tracing::warn!(
            target: TARGET,
            %endpoint,
            "everyone who reaches this address can read the page with queues, classes and messages of exceptions; `page = false` under [http] switches it off"
        );
    }
}

/// What is told of the worker: over HTTP, to systemd, and in its heartbeat.
struct Watched {
    jobs: JobFigures,
    /// What is served, and the task that serves it.
    served: Option<(Telemetry, AbortOnDropHandle<Infallible>)>,
}

impl Watched {
    /// Serves from now on, so that probes see the worker start; `None` if nothing is to be told.
    async fn start(
        plan: &Plan,
        control: &Control,
        runtime: &Handle,
        orders: Orders,
    ) -> Result<Option<Self>, ListenError> {
        if plan.metrics.is_none() && !plan.heartbeat && !is_watched_by_systemd() {
            return Ok(None);
        }
        let jobs = JobFigures::new(&plan.options.connection);
        let served = match (&plan.metrics, &plan.page) {
            (Some(endpoint), Some(page)) => {
                warn_of_readers(endpoint, page);
                let (jobs, control, page) = (jobs.clone(), control.clone(), page.clone());
                let sleep = plan.options.sleep;
                let telemetry = Telemetry::new(jobs, control, sleep, page, orders);
                let serving = endpoint.serve(telemetry.clone(), runtime).await?;
                Some((telemetry, AbortOnDropHandle::new(serving)))
            }
            _ => None,
        };
        Ok(Some(Self { jobs, served }))
    }

    /// Whether anything but a heartbeat tells of the worker.
    fn is_watched(&self) -> bool {
        self.served.is_some() || is_watched_by_systemd()
    }

    /// Tells what the worker consists of; the failed jobs are those that the page shows.
    fn begin(
        &self,
        queue: &Arc<dyn Driver>,
        plan: &Plan,
        pool: Option<&Pool>,
        heart: &Heart,
        failed_jobs: Option<FailedJobs>,
    ) {
        let Some((telemetry, _)) = &self.served else {
            return;
        };
        let options = &plan.options;
        let (connection, queues) = (options.connection.clone(), options.queues.clone());
        let mut sources = Sources::new(Arc::clone(queue), connection, queues);
        sources.pool = pool.cloned();
        if plan.runs_here() {
            sources.slots = options.concurrency.get();
        }
        (sources.heart, sources.failed_jobs) = (Some(heart.clone()), failed_jobs);
        telemetry.start(sources);
    }

    /// What tells of the worker in its heartbeat and on the page.
    fn heart(&self, config: &Config, plan: &Plan, queue: &dyn Driver, control: &Control) -> Heart {
        let options = &plan.options;
        let connection = options.connection.clone();
        let about = About {
            name: plan.name.clone(),
            paused_as: options.paused_as.clone().unwrap_or(connection.clone()),
            connection,
            driver: queue.abilities().driver,
            queues: options.queues.clone(),
            slots: plan.slots(config),
        };
        Heart::new(about, self.jobs.clone(), control.clone())
    }

    /// Tells systemd, if it waits for that, until the handle is dropped.
    fn tell_systemd(
        &self,
        control: &Control,
        sleep: Duration,
        runtime: &Handle,
    ) -> Option<AbortOnDropHandle<Infallible>> {
        is_watched_by_systemd().then(|| {
            let telling = keep_telling_systemd(self.jobs.clone(), control.clone(), sleep);
            AbortOnDropHandle::new(runtime.spawn(telling))
        })
    }
}

/// The queues for what is shown of the worker, with connections of their own, which the overseer reads: a handler that
/// blocks the thread of the jobs must not hide the worker. Nothing is sent yet.
fn queue_to_show(
    queue: &Arc<dyn Driver>,
    connection: &Connection,
    overseer: Option<&Handle>,
) -> Result<Arc<dyn Driver>, config::Error> {
    let Some(overseer) = overseer else {
        return Ok(Arc::clone(queue));
    };
    // Pools of database connections need a runtime.
    let _entered = overseer.enter();
    connection.open()
}

/// The heart of a worker while it beats.
struct Beating {
    heart: Heart,
    ledger: Arc<dyn Ledger>,
    task: AbortOnDropHandle<Infallible>,
}

impl Beating {
    fn start(heart: Heart, queue: &Arc<dyn Driver>, runtime: &Handle) -> Self {
        let ledger = Arc::clone(queue) as Arc<dyn Ledger>;
        let task = runtime.spawn(heart.clone().keep_beating(Arc::clone(&ledger)));
        Self {
            heart,
            ledger,
            task: AbortOnDropHandle::new(task),
        }
    }

    /// Removes the heartbeat; none follows.
    async fn stop(self) {
        self.task.abort();
        // It ends at its next wait; a heartbeat that is on its way reaches the server before its removal.
        let _ = self.task.await;
        self.heart.stop(&*self.ledger).await;
    }
}

/// Runs a worker until it stops.
pub(super) async fn run(
    config: &Config,
    plan: Plan,
    mut stores: Stores,
    observers: Vec<Arc<dyn Observer>>,
    (overseer, threads): (Option<Handle>, Option<Handle>),
    control: &Control,
) -> anyhow::Result<Report> {
    // Beside the runtime of the jobs, if there is another one.
    let runtime = overseer.clone().unwrap_or_else(Handle::current);
    let (orders, mut asked) = Orders::channel();
    let watched = Watched::start(&plan, control, &runtime, orders).await?;
    let figures = watched.as_ref().map(|watched| &watched.jobs);
    let horizon = config::horizon_of_worker(config, &plan.options, plan.slots(config))?;
    let records = Records::start(config, &plan, horizon.clone(), figures, &runtime)?;
    let (queue, opened) = open_to_work(config, &plan.connection).await?;
    let records = records.with_feed(config, &plan, &opened, &runtime)?;
    let shown = queue_to_show(&queue, &opened, overseer.as_ref())?;
    let beats = plan.heartbeat && queue.keeps_heartbeats();
    let watched = watched.filter(|watched| beats || watched.is_watched());
    let figures = watched.as_ref().map(|watched| watched.jobs.listeners());
    let services = &mut stores.services;
    let driver = Arc::clone(&queue) as Arc<dyn Queue>;
    let beside = (horizon, figures);
    let helpers = Helpers::start(config, &plan, services, beside, driver, &runtime)?;
    let pool = start_pool(config, &plan, stores.failed_jobs.as_ref(), control).await?;
    helpers.wait_until_ready(control).await;
    let heart = (watched.as_ref()).map(|watched| watched.heart(config, &plan, &*queue, control));
    if let (Some(watched), Some(heart)) = (&watched, &heart) {
        queue.tell_calls(Arc::new(watched.jobs.clone()));
        // One of its own: the worker's belongs to its outbox.
        let failed_jobs = config::failed_jobs(config).ok().flatten();
        watched.begin(&shown, &plan, pool.as_ref(), heart, failed_jobs);
    }
    let beating = (heart.filter(|_| beats)).map(|heart| Beating::start(heart, &shown, &runtime));
    let mut pushing = vec![Arc::clone(&queue) as Arc<dyn Queue>];
    if let Some(connections) = &stores.services.connections {
        pushing.extend(connections.queues().cloned());
    }
    let (sleep, plan_env) = (plan.options.sleep, plan.env.clone());
    let mut worker = Worker::with_driver(queue, plan.router, plan.options)
        .with_control_plane(stores.control_plane)
        .with_services(stores.services);
    if let Some(pool) = pool {
        worker = worker.with_php_pool(pool);
    }
    if let Some(overseer) = overseer {
        worker = worker.with_overseer(overseer);
    }
    if let Some(threads) = threads {
        worker = worker.with_threads(threads);
    }
    for observer in observers {
        worker = worker.with_observer(observer);
    }
    if let Some(watched) = &watched {
        worker = worker.with_observer(watched.jobs.clone());
    }
    records.listen_to(pushing);
    worker = records.observe(worker);
    if let Some(observer) = helpers.observer() {
        worker = worker.with_observer(observer);
    }
    if let Some(failed_jobs) = stores.failed_jobs {
        worker = worker.with_failed_jobs(failed_jobs);
    }
    let _telling = watched
        .as_ref()
        .and_then(|watched| watched.tell_systemd(control, sleep, &runtime));
    // Runs on the runtime's own threads, if it has any: this thread would have to be woken for every pop.
    let working = tokio::spawn({
        let control = control.clone();
        async move { worker.run(&control).await }
    });
    let env = plan_env.as_deref();
    let has_ended = CancellationToken::new();
    let working = async {
        let ended = working.await.context("the worker ended abnormally");
        has_ended.cancel();
        ended
    };
    // A retry that is cut off between its push and the removal of the failed job could be ordered a second time.
    let (ended, ()) = tokio::join!(working, orders::obey(config, env, &mut asked, &has_ended));
    if let Some(beating) = beating {
        beating.stop().await;
    }
    helpers.finish().await;
    records.finish().await;
    ended
}
