//! Puts a worker together and starts it.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::Handle;
use tokio_util::task::AbortOnDropHandle;

use super::helpers::Helpers;
use super::plan::Plan;
use crate::cli::open;
use crate::config::{self, Config};
use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::horizon::Horizon;
use crate::process::pool::{Pool, PoolError};
use crate::queue::{Driver, Queue};
use crate::shown::with_causes;
#[cfg(feature = "otlp")]
use crate::telemetry::Traces;
use crate::telemetry::{
    JobFigures, ListenError, Sources, Telemetry, is_watched_by_systemd, keep_telling_systemd,
};
use crate::worker::{Control, ControlPlane, Observer, Report, Worker};

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::cli::work";

/// What a worker uses of the app.
pub(super) struct Stores {
    pub(super) control_plane: ControlPlane,
    pub(super) failed_jobs: Option<FailedJobs>,
    pub(super) services: Services,
}

impl Stores {
    /// Opens them; a worker that works in maintenance mode, too, does not ask for it.
    pub(super) fn open(config: &Config, plan: &Plan) -> Result<Self, config::Error> {
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
            control_plane: ControlPlane { cache, maintenance },
            failed_jobs,
            services,
        })
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

/// What is told of the worker over HTTP and to systemd.
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
    ) -> Result<Option<Self>, ListenError> {
        if plan.metrics.is_none() && !is_watched_by_systemd() {
            return Ok(None);
        }
        let jobs = JobFigures::new(&plan.options.connection);
        let served = match &plan.metrics {
            None => None,
            Some(endpoint) => {
                let sleep = plan.options.sleep;
                let telemetry = Telemetry::new(jobs.clone(), control.clone(), sleep);
                let serving = endpoint.serve(telemetry.clone(), runtime).await?;
                Some((telemetry, AbortOnDropHandle::new(serving)))
            }
        };
        Ok(Some(Self { jobs, served }))
    }

    /// Tells what the worker consists of.
    fn begin(&self, queue: &Arc<dyn Driver>, plan: &Plan, pool: Option<&Pool>) {
        let Some((telemetry, _)) = &self.served else {
            return;
        };
        queue.tell_calls(Arc::new(self.jobs.clone()));
        let options = &plan.options;
        let (connection, queues) = (options.connection.clone(), options.queues.clone());
        let mut sources = Sources::new(Arc::clone(queue), connection, queues);
        sources.pool = pool.cloned();
        if plan.runs_here() {
            sources.slots = options.concurrency.get();
        }
        telemetry.start(sources);
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
    let horizon = config::horizon_of_worker(config, &plan.options, plan.slots(config))?
        .map(|options| Horizon::start(options, &runtime));
    let horizon = horizon.transpose()?;
    #[cfg(feature = "otlp")]
    let traces = config::traces(config, &plan.connection)?
        .map(|options| Traces::start(&options, &runtime))
        .transpose()?;
    #[cfg(not(feature = "otlp"))]
    config::traces(config, &plan.connection)?;
    let watched = Watched::start(&plan, control, &runtime).await?;
    let (queue, _) = open(config, &plan.connection).await?;
    let figures = watched.as_ref().map(|watched| watched.jobs.listeners());
    let helpers = Helpers::start(config, &plan, &mut stores.services, figures, &runtime);
    let pool = start_pool(config, &plan, stores.failed_jobs.as_ref(), control).await?;
    helpers.are_ready(control).await;
    if let Some(watched) = &watched {
        watched.begin(&queue, &plan, pool.as_ref());
    }
    let mut pushing = vec![Arc::clone(&queue) as Arc<dyn Queue>];
    if let Some(connections) = &stores.services.connections {
        pushing.extend(connections.queues().cloned());
    }
    let sleep = plan.options.sleep;
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
    if let Some(horizon) = &horizon {
        for pushing in pushing {
            pushing.tell_pushes(Arc::new(horizon.recorder()));
        }
        worker = worker.with_observer(horizon.recorder());
    }
    #[cfg(feature = "otlp")]
    if let Some(traces) = &traces {
        worker = worker.with_observer(traces.clone());
    }
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
    let ended = working.await.context("the worker ended abnormally");
    helpers.finish().await;
    if let Some(horizon) = horizon {
        horizon.finish().await;
    }
    #[cfg(feature = "otlp")]
    if let Some(traces) = traces {
        traces.finish().await;
    }
    ended
}
