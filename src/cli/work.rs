//! `queue:work`

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::runtime::{Builder, Runtime, RuntimeFlavor};

use super::console::{Console, Style, banner};
use super::output::{LineWriter, Log};
use super::summary::Summary;
use super::{GlobalArgs, UsageError, gaps, log, output};
use crate::config::{self, Config};
use crate::failed::FailedJobs;
use crate::handler::pool::{Pool, PoolError};
use crate::handler::{HeldLocks, Registry, Router, Services, UnmappedPolicy};
use crate::payload::Backoff;
use crate::queue::QueueName;
use crate::shown::with_causes;
use crate::time::Clock;
use crate::worker::Defaults;
use crate::worker::{Control, ControlPlane, Observer, Worker, WorkerOptions};

/// Arguments of `queue:work`, as given.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct WorkArgs {
    /// Queue connection to work [default: `QUEUE_CONNECTION`, else redis]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Name of the worker; taken for compatibility
    #[arg(long, value_name = "NAME", default_value = "default")]
    name: String,

    /// Queues to work, comma separated, the first one first [default: the connection's queue]
    #[arg(long, value_name = "NAMES", env = "ARTISAND_QUEUE", num_args = 0..=1, default_missing_value = "")]
    queue: Option<String>,

    /// Taken for compatibility: the worker always is a daemon
    #[arg(long)]
    daemon: bool,

    /// Run one job, without a time limit, and stop
    #[arg(long)]
    once: bool,

    /// Stop as soon as there is no job
    #[arg(long)]
    stop_when_empty: bool,

    /// Stop when there was no job for so many seconds; 0 for never
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    stop_when_empty_for: u64,

    /// Seconds to wait before a retry (deprecated: the larger of this and --backoff counts)
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    delay: u64,

    /// Seconds to wait before a job that threw is tried again; a list such as 1,5,10 goes by attempt
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    backoff: String,

    /// Jobs to begin before stopping; 0 for no limit
    #[arg(long, value_name = "N", default_value_t = 0)]
    max_jobs: u64,

    /// Seconds to run before stopping; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 0)]
    max_time: u64,

    /// Work also in maintenance mode
    #[arg(long)]
    force: bool,

    /// Megabytes of memory at which to stop; 0 for no limit
    #[arg(long, value_name = "MB", default_value_t = 128)]
    memory: u64,

    /// Seconds between looks at the queue when nothing announces a job
    #[arg(long, value_name = "SECONDS", default_value = "3")]
    sleep: f64,

    /// Seconds a slot rests after each job
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    rest: f64,

    /// Seconds one attempt may run, then that job (and not the worker) is ended; 0 for no limit
    #[arg(long, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    /// Attempts of jobs that do not say how many; 0 for no limit
    #[arg(
        long,
        value_name = "N",
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    tries: i64,

    /// Print one JSON object per line
    #[arg(long)]
    json: bool,

    /// Jobs to run at the same time [default: 1]
    #[arg(
        long,
        value_name = "N",
        value_parser = concurrency,
        env = "ARTISAND_CONCURRENCY",
        help_heading = "Beyond Laravel"
    )]
    concurrency: Option<NonZeroUsize>,

    /// Print one line per class at the end and on SIGUSR1: runs, failed jobs, mean and longest time
    #[arg(long, help_heading = "Beyond Laravel")]
    summary: bool,

    /// Seconds running jobs may go on after an order to stop, then they are released [default: no limit]
    #[arg(
        long,
        value_name = "SECONDS",
        env = "ARTISAND_GRACE",
        help_heading = "Beyond Laravel"
    )]
    grace: Option<u64>,
}

/// Most jobs at once: far beyond what one process can run, and far from any overflow.
const MOST_CONCURRENT: usize = 1_000_000;

fn concurrency(text: &str) -> Result<NonZeroUsize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &NonZeroUsize| number.get() <= MOST_CONCURRENT);
    number.ok_or_else(|| format!("expected a number from 1 to {MOST_CONCURRENT}"))
}

/// Seconds as a duration of at most a hundred years, so that adding it to a time cannot overflow.
fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds.min(100 * 366 * 86_400))
}

impl WorkArgs {
    /// Turns flags into options: 0 becomes `None`, names become queues.
    fn resolve(
        &self,
        config: &Config,
        connection: &crate::config::Connection,
    ) -> Result<WorkerOptions, UsageError> {
        let fraction = |name: &str, value: f64| {
            let problem = || {
                UsageError(format!(
                    "`--{name}` is `{value}`, expected seconds, such as 3 or 0.5"
                ))
            };
            // As in PHP: fractions count below one second only.
            let value = if value >= 1.0 { value.trunc() } else { value };
            let duration = Duration::try_from_secs_f64(value.min(3e9));
            duration.map_err(|_| problem())
        };
        let limit = |value: u64| (value > 0).then_some(value);
        let queues: Vec<QueueName> = match &self.queue {
            // Names are taken verbatim with their blanks: Laravel does not trim them.
            Some(names) => names.split(',').map(QueueName::from).collect(),
            None => vec![connection.default_queue.clone()],
        };
        let queues = queues.into_iter().map(|queue| {
            if queue.as_str().is_empty() {
                connection.default_queue.clone()
            } else {
                queue
            }
        });
        let backoff = Backoff::parse(&self.backoff).at_least(seconds(self.delay));
        let grace = self.grace.or(config.file.worker.grace).map(seconds);
        Ok(WorkerOptions {
            connection: connection.queue.connection.clone(),
            queues: queues.collect(),
            defaults: Defaults {
                tries: self.tries,
                backoff,
                timeout: seconds(self.timeout),
            },
            sleep: fraction("sleep", self.sleep)?,
            rest: fraction("rest", self.rest)?,
            memory: limit(self.memory).map(|megabytes| megabytes.saturating_mul(1 << 20)),
            max_jobs: limit(self.max_jobs),
            max_time: limit(self.max_time).map(seconds),
            stop_when_empty: self.stop_when_empty,
            stop_when_empty_for: limit(self.stop_when_empty_for).map(seconds),
            once: self.once,
            force: self.force,
            concurrency: self
                .concurrency
                .or(config.file.worker.concurrency)
                .unwrap_or(NonZeroUsize::MIN),
            grace,
            clock: Clock::System,
        })
    }
}

/// Refuses to forward jobs to a queue that this worker works, and to fail the jobs that are handed to PHP.
fn refuse_circles(
    config: &Config,
    router: &Router,
    options: &WorkerOptions,
    forwards: &BTreeMap<QueueName, QueueName>,
) -> Result<(), UsageError> {
    let kept = |queue: &QueueName| forwards.get(queue).unwrap_or(queue).clone();
    if let Some(queue) = config.file.php.queue.as_deref()
        && matches!(router.unmapped(), UnmappedPolicy::Fail)
        && options.queues.contains(&queue.into())
    {
        let problem = format!(
            "what only PHP can do would be pushed to `{queue}` (`queue` under [php]), which this worker works, and fail there by the policy for unmapped jobs: name a queue that only PHP workers serve"
        );
        return Err(UsageError(problem));
    }
    if let Some(queue) = router.forward_targets().find(|queue| {
        options
            .queues
            .iter()
            .any(|worked| kept(worked) == kept(queue))
    }) {
        let problem = format!(
            "jobs would be forwarded to `{queue}`, which this worker works: they would go round for ever"
        );
        return Err(UsageError(problem));
    }
    Ok(())
}

/// Frees the locks that jobs still hold: blocking handlers that did not return end with this process.
async fn free_locks(held: &HeldLocks) {
    let locks = held.free_all(FREEING_LOCKS).await;
    if locks > 0 {
        tracing::error!(
            locks,
            "locks of jobs could not be freed: they stay until they run out"
        );
    }
}

/// The app's store of failed jobs.
///
/// If PHP runs every job, a store that only PHP can write does not prevent the worker from starting.
fn failed_jobs(
    config: &Config,
    router: &Router,
) -> Result<Option<FailedJobs>, crate::config::Error> {
    let is_all_in_php = *router.unmapped() == UnmappedPolicy::Php && router.mappings().len() == 0;
    config::failed_jobs(config).or_else(|error| {
        if !is_all_in_php {
            return Err(error);
        }
        tracing::info!(
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
    router: &Router,
    options: &WorkerOptions,
    failed_jobs: Option<&FailedJobs>,
    control: &Control,
) -> Result<Option<Pool>, PoolError> {
    if *router.unmapped() != UnmappedPolicy::Php {
        return Ok(None);
    }
    let pool = Pool::new(config::pool_options(config, options, failed_jobs));
    tokio::select! {
        booted = pool.booted() => booted?,
        () = control.told_to_quit() => {}
    }
    Ok(Some(pool))
}

/// Warns at the start of settings under which no job would run.
fn warn_of_mappings(config: &Config, router: &Router) {
    if let Some(problem) = config::lack_for_php(config) {
        tracing::warn!(
            "{problem}, so jobs that no mapping matches are left in their queue; `policy` under [unmapped] says otherwise"
        );
    }
    if router.mappings().len() == 0 && *router.unmapped() != UnmappedPolicy::Php {
        tracing::warn!(
            "no mapping is configured: see [[map]] in artisand.toml; every job is unmapped"
        );
    }
}

/// The runtime for the worker's tasks.
fn runtime_for(router: &Router, options: &WorkerOptions) -> anyhow::Result<Runtime> {
    let runs_here = router.mappings().len() > 0 || *router.unmapped() != UnmappedPolicy::Php;
    let mut builder = if runs_here {
        Builder::new_multi_thread()
    } else {
        // If PHP runs all jobs, there is too little work for several threads that have to wake one another.
        Builder::new_current_thread()
    };
    builder
        .enable_all()
        .thread_name("artisand")
        .max_blocking_threads(options.concurrency.get().max(64))
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

/// Runs a worker; returns when it has stopped.
pub(super) fn run(
    args: &WorkArgs,
    global: &GlobalArgs,
    registry: &Registry,
    observers: Vec<Arc<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    let config = global.read_config()?;
    let lines = Log::new().context("could not start the thread that writes the log")?;
    log::start(global, args.json, config.timezone()?, lines.clone())?;
    // Whatever the result, write the log before reporting it.
    let ended = work(&config, args, global, registry, observers);
    lines.finish();
    ended
}

/// Runs a worker after the log is set up.
fn work(
    config: &Config,
    args: &WorkArgs,
    global: &GlobalArgs,
    registry: &Registry,
    observers: Vec<Arc<dyn Observer>>,
) -> anyhow::Result<ExitCode> {
    let name = args
        .connection
        .clone()
        .unwrap_or_else(|| config.default_connection());
    let connection = super::block_on(async { Ok(super::connection(config, &name).await?) })?;
    let options = args.resolve(config, &connection)?;
    let router = config::router(config, registry)?;
    refuse_circles(config, &router, &options, &connection.queue.forwards)?;
    warn_of_mappings(config, &router);
    for doubt in config.doubts() {
        tracing::warn!(remedy = doubt.remedy, "{doubt}");
    }
    let runtime = runtime_for(&router, &options)?;
    let overseer = overseer_for(&runtime)?;
    // Pools of database connections need a runtime.
    let entered = runtime.enter();
    let cache = config::default_cache(config)?;
    let control_plane = ControlPlane {
        cache,
        maintenance: if args.force {
            None
        } else {
            config::maintenance(config)?
        },
    };
    let failed_jobs = failed_jobs(config, &router)?;
    let services = config::services(config)?;
    config::check_middleware(config, &router, &services)?;
    let held = services.held.clone();
    warn_of_gaps(config, &router, &services, failed_jobs.as_ref());
    drop(entered);
    let is_php = *router.unmapped() == UnmappedPolicy::Php;
    let php = is_php.then(|| config::pool_options(config, &options, None).processes);
    let console = Arc::new(console(config, args, global, &options, php)?);
    let summary = args.summary.then(Arc::<Summary>::default);
    let control = Control::new();
    let working = async {
        let (queue, _) = super::open(config, &name).await?;
        let failed = failed_jobs.as_ref();
        let pool = start_pool(config, &router, &options, failed, &control).await?;
        let mut worker = Worker::new(Arc::new(queue), router, options)
            .with_observer(Arc::clone(&console) as Arc<dyn Observer>)
            .with_control_plane(control_plane)
            .with_services(services);
        if let Some(pool) = pool {
            worker = worker.with_php_pool(pool);
        }
        if let Some(overseer) = &overseer {
            worker = worker.with_overseer(overseer.handle().clone());
        }
        if let Some(summary) = summary.clone() {
            worker = worker.on(move |event| summary.note(event));
        }
        for observer in observers {
            worker = worker.with_observer(observer);
        }
        if let Some(failed_jobs) = failed_jobs {
            worker = worker.with_failed_jobs(failed_jobs);
        }
        // Runs on the runtime's own threads, if it has any: this thread would have to be woken for every pop.
        let working = tokio::spawn({
            let control = control.clone();
            async move { worker.run(&control).await }
        });
        working.await.context("the worker ended abnormally")
    };
    // Before the first job starts: an uncaught signal would end the process and the job with it.
    let signals = {
        let runtime = overseer.as_ref().unwrap_or(&runtime);
        let _entered = runtime.enter();
        let obeying = control.obey_signals();
        runtime.spawn(obeying.context("could not listen for signals")?)
    };
    let ended = runtime.block_on(async {
        let report = tokio::select! {
            report = working => report,
            code = control.abandoned() => return Ok(Err(code)),
            signals = signals => match signals.context("the task of signals ended")? {},
            summed = sum_up(summary.as_deref(), &console) => {
                summed.context("could not listen for SIGUSR1")?;
                unreachable!("signals are obeyed for ever")
            }
        };
        if let Some(summary) = &summary {
            console.print(summary.lines(&console));
        }
        free_locks(&held).await;
        report.map(Ok)
    });
    // A blocking handler that does not return must not keep the process alive.
    runtime.shutdown_background();
    overseer.into_iter().for_each(Runtime::shutdown_background);
    Ok(ended?.map_or_else(ExitCode::from, |report| exit_code(&report)))
}

/// The exit code of a worker's process.
fn exit_code(report: &crate::worker::Report) -> ExitCode {
    if report.released > 0 {
        tracing::warn!(
            jobs = report.released,
            "jobs were cut short by the stop deadline and released"
        );
    }
    if report.unsettled > 0 {
        ExitCode::from(1)
    } else {
        report.reason.into()
    }
}

/// The writer of job lines on standard output; on a terminal it first prints the banner.
///
/// `php` is the number of PHP processes that run jobs, if there are any.
fn console(
    config: &Config,
    args: &WorkArgs,
    global: &GlobalArgs,
    options: &WorkerOptions,
    php: Option<NonZeroUsize>,
) -> anyhow::Result<Console> {
    let style = Style {
        json: args.json,
        quiet: global.quiet,
        verbose: global.verbose > 0,
        coloured: output::is_coloured(global),
        width: output::width(),
        timezone: config.output_timezone()?,
    };
    if !args.json && !global.quiet && output::is_terminal() {
        output::data(&banner(&options.queues, php, style.coloured))?;
    }
    let out = if style.json {
        LineWriter::alone()
    } else {
        LineWriter::new()
    };
    let out = out.context("could not start the output thread")?;
    Ok(Console::new(style, out))
}

/// Prints the summary on SIGUSR1; without a summary the system handles the signal, as in `queue:work`.
async fn sum_up(summary: Option<&Summary>, console: &Console) -> std::io::Result<()> {
    match summary {
        Some(summary) => summary.obey_signal(console).await,
        None => std::future::pending().await,
    }
}

/// How long the end of the process waits for locks that jobs still hold.
const FREEING_LOCKS: Duration = Duration::from_secs(3);

/// Logs at the start what the worker cannot know or do.
fn warn_of_gaps(
    config: &Config,
    router: &Router,
    services: &Services,
    failed_jobs: Option<&FailedJobs>,
) {
    for finding in gaps::look(config, router, services) {
        if let Some(remedy) = finding.remedy {
            tracing::warn!(
                found = finding.found,
                remedy,
                "something is missing for what follows a job"
            );
        }
    }
    if let Some(why) = config::cache_for_php_only(config).filter(|_| config.obeys_app()) {
        tracing::warn!(
            why,
            remedy = gaps::CACHE_OF_PHP_REMEDY,
            "the app's default cache store is not read here: {}",
            gaps::CACHE_OF_PHP
        );
    }
    for class in config::classes_without_their_middleware(config, router) {
        tracing::warn!(
            job.class = class,
            "this class has middleware in PHP and its mapping has none: list it under `middleware`"
        );
    }
    for exposure in config.exposures() {
        tracing::warn!(
            found = exposure.found,
            remedy = exposure.remedy,
            "other users of this machine can change what artisand does"
        );
    }
    for reason in config.stale_manifest() {
        tracing::warn!(
            reason,
            "the manifest may be out of date: write it anew with `artisand manifest`"
        );
    }
    if let Some(why) = config.php_failure() {
        tracing::warn!(
            why,
            "PHP did not say the app's settings: they are those of the manifest"
        );
    }
    if config.manifest().is_none() {
        for note in &config.notes {
            tracing::warn!(
                note,
                "something about the app was assumed; see `artisand doctor`"
            );
        }
    }
    match failed_jobs {
        // PHP records them.
        None if config.known_laravel().is_ok() => {}
        None => tracing::warn!(
            "no app is set, so failed jobs stay in the list artisand:failed-spool, and restart, pause and maintenance are not heard"
        ),
        Some(FailedJobs::Null) => {
            tracing::warn!(
                "the app keeps no failed jobs (queue.failed.driver is null): they will be gone"
            );
        }
        Some(_) => {}
    }
}
