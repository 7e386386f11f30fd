//! The arguments of `queue:work`, and the options that they mean.

use std::num::NonZeroUsize;
use std::time::Duration;

use crate::cli::UsageError;
use crate::config::{Config, Connection};
use crate::payload::Backoff;
use crate::queue::QueueName;
use crate::telemetry::Endpoint;
use crate::time::{Clock, seconds};
use crate::worker::{Defaults, StopRules, WorkerOptions};

/// Arguments of `queue:work`, as given.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(in crate::cli) struct WorkArgs {
    /// Queue connection to work [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    pub(super) connection: Option<String>,

    /// Name of the worker, shown on the page
    #[arg(long, value_name = "NAME", default_value = "default")]
    pub(super) name: String,

    /// Queues to work, comma separated, the first one first [default: the connection's queue]
    #[arg(long, value_name = "NAMES", env = "ARTISAND_QUEUE", num_args = 0..=1, default_missing_value = "")]
    queue: Option<String>,

    /// Accepted for compatibility: the worker is always a daemon
    #[arg(long)]
    daemon: bool,

    /// Run one job, without a time limit, and stop
    #[arg(long)]
    once: bool,

    /// Stop as soon as there is no job
    #[arg(long)]
    stop_when_empty: bool,

    /// Stop when there was no job for this many seconds; 0 for never
    #[arg(long, value_parser = limit, value_name = "SECONDS", default_value_t = 0)]
    stop_when_empty_for: u64,

    /// Seconds to wait before a retry (deprecated: the larger of this and --backoff counts)
    #[arg(long, value_parser = limit, value_name = "SECONDS", default_value_t = 0)]
    delay: u64,

    /// Seconds to wait before a job that threw is tried again; a list such as 1,5,10 goes by attempt
    #[arg(long, value_name = "SECONDS", default_value = "0")]
    backoff: String,

    /// Jobs to begin before stopping; 0 for no limit
    #[arg(long, value_parser = limit, value_name = "N", default_value_t = 0)]
    max_jobs: u64,

    /// Seconds to run before stopping; 0 for no limit
    #[arg(long, value_parser = limit, value_name = "SECONDS", default_value_t = 0)]
    max_time: u64,

    /// Run jobs even in maintenance mode
    #[arg(long)]
    pub(super) force: bool,

    /// Megabytes of memory at which to stop; 0 for no limit
    #[arg(long, value_parser = limit, value_name = "MB", default_value_t = 128)]
    memory: u64,

    /// Seconds between polls when no push is announced
    #[arg(long, value_parser = number::<f64>, value_name = "SECONDS", default_value = "3")]
    sleep: f64,

    /// Seconds a slot rests after each job
    #[arg(long, value_parser = number::<f64>, value_name = "SECONDS", default_value = "0")]
    rest: f64,

    /// Seconds one attempt may run, then that job (and not the worker) is ended; 0 for no limit
    #[arg(long, value_parser = limit, value_name = "SECONDS", default_value_t = 60)]
    timeout: u64,

    /// Attempts of jobs that do not say how many; 0 for no limit
    #[arg(
        long,
        value_name = "N",
        value_parser = number::<i64>,
        default_value_t = 1,
        allow_negative_numbers = true
    )]
    tries: i64,

    /// Print one JSON object per line
    #[arg(long)]
    pub(super) json: bool,

    /// Jobs to run at the same time [default: 1]
    #[arg(
        long,
        value_name = "N",
        value_parser = concurrency,
        env = "ARTISAND_CONCURRENCY",
        help_heading = "Beyond Laravel"
    )]
    concurrency: Option<NonZeroUsize>,

    /// Threads for handlers that compute [default: the number of processors]
    #[arg(
        long,
        value_name = "N",
        value_parser = threads,
        env = "ARTISAND_THREADS",
        help_heading = "Beyond Laravel"
    )]
    threads: Option<NonZeroUsize>,

    /// Print one line per class at the end and on SIGUSR1: runs, failed jobs, mean and longest time
    #[arg(long, help_heading = "Beyond Laravel")]
    pub(super) summary: bool,

    /// Serve the page for operators, metrics, probes and status on this address, such as 127.0.0.1:9464
    #[arg(
        long,
        value_name = "ADDRESS",
        env = "ARTISAND_METRICS",
        help_heading = "Beyond Laravel"
    )]
    metrics: Option<Endpoint>,

    /// Seconds running jobs may go on after a stop order, then they are released [default: no limit]
    #[arg(
        long,
        value_name = "SECONDS",
        value_parser = number::<u64>,
        env = "ARTISAND_GRACE",
        help_heading = "Beyond Laravel"
    )]
    grace: Option<u64>,
}

fn number<T: std::str::FromStr>(text: &str) -> Result<T, &'static str> {
    text.parse().map_err(|_| "expected a number")
}

/// An option of Laravel's for which 0 means none; so does nothing (`--max-jobs=`), as in PHP.
fn limit(text: &str) -> Result<u64, &'static str> {
    if text.is_empty() { Ok(0) } else { number(text) }
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

/// Most threads: more only compete for the processors.
const MOST_THREADS: usize = 1024;

fn threads(text: &str) -> Result<NonZeroUsize, String> {
    let number = text
        .parse()
        .ok()
        .filter(|number: &NonZeroUsize| number.get() <= MOST_THREADS);
    number.ok_or_else(|| format!("expected a number from 1 to {MOST_THREADS}"))
}

/// Hides an option that lets the worker end by itself, or does nothing but in `queue:work`.
pub(in crate::cli) fn without_bounds(arg: clap::Arg) -> clap::Arg {
    let hidden = [
        "daemon",
        "delay",
        "max_jobs",
        "max_time",
        "once",
        "stop_when_empty",
        "stop_when_empty_for",
    ];
    let is_hidden = arg.is_hide_set() || hidden.contains(&arg.get_id().as_str());
    arg.hide(is_hidden)
}

impl WorkArgs {
    /// The option that lets the worker end by itself, if there is one.
    pub(in crate::cli) fn bound(&self) -> Option<&'static str> {
        let bounds = [
            (self.once, "--once"),
            (self.stop_when_empty, "--stop-when-empty"),
            (self.stop_when_empty_for > 0, "--stop-when-empty-for"),
            (self.max_jobs > 0, "--max-jobs"),
            (self.max_time > 0, "--max-time"),
        ];
        bounds.iter().find(|(is_given, _)| *is_given).map(|it| it.1)
    }

    /// These arguments without `--delay`, and whether it was given.
    pub(in crate::cli) fn without_delay(self) -> (Self, bool) {
        let has_delay = self.delay > 0;
        (Self { delay: 0, ..self }, has_delay)
    }

    /// Threads for handlers that keep a thread busy.
    pub(super) fn threads(&self, config: &Config) -> NonZeroUsize {
        let processors = || std::thread::available_parallelism().unwrap_or(NonZeroUsize::MIN);
        let threads = self.threads.or(config.file.worker.threads);
        threads.unwrap_or_else(processors)
    }

    /// Where to serve metrics, if anywhere.
    pub(super) fn metrics(&self, config: &Config) -> Option<Endpoint> {
        self.metrics
            .clone()
            .or_else(|| config.file.http.listen.clone())
    }

    /// Turns flags into options: 0 becomes `None`, names become queues.
    pub(super) fn resolve(
        &self,
        config: &Config,
        connection: &Connection,
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
            connection: connection.name.clone(),
            paused_as: Some(connection.paused_as.clone()),
            queues: queues.collect(),
            defaults: Defaults {
                tries: self.tries,
                backoff,
                timeout: seconds(self.timeout),
            },
            sleep: fraction("sleep", self.sleep)?,
            rest: fraction("rest", self.rest)?,
            stop: StopRules {
                once: self.once,
                memory: limit(self.memory).map(|megabytes| megabytes.saturating_mul(1 << 20)),
                max_jobs: limit(self.max_jobs),
                max_time: limit(self.max_time).map(seconds),
                when_empty: self.stop_when_empty,
                when_empty_for: limit(self.stop_when_empty_for).map(seconds),
            },
            force: self.force,
            concurrency: self
                .concurrency
                .or(config.file.worker.concurrency)
                .unwrap_or(NonZeroUsize::MIN),
            grace,
            last_errors: config.file.worker.last_errors.unwrap_or(true),
            clock: Clock::System,
        })
    }
}
