//! What is served: `/metrics`, `/livez`, `/readyz`, `/startupz` and `/api/status`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use hyper::StatusCode;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};
use serde::Serialize;
use tokio::time::Instant;

use super::board::Board;
use super::gather::{Backlog, QueueBacklog, Sources};
use super::guard::PageOptions;
use super::jobs::{JobFigures, Moment, QueueLabels};
use super::orders::Orders;
use super::process::ProcessFigures;
use crate::outbox::hand_over::shown_name;
use crate::payload::JobUuid;
use crate::queue::QueueName;
use crate::worker::Control;

/// How long the worker's loop may not come round, in addition to `--sleep`.
const SILENCE: Duration = Duration::from_secs(30);
/// Most running jobs that are listed.
const MOST_LISTED: usize = 1000;

pub(super) const STATUS: &str = "/api/status";
pub(super) const PLAIN: &str = "text/plain; charset=utf-8";
const JSON: &str = "application/json";
const OPEN_METRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

/// The answer to a request.
pub(super) struct Page {
    pub(super) status: StatusCode,
    pub(super) kind: &'static str,
    pub(super) body: String,
}

/// What is served of a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Telemetry(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    jobs: JobFigures,
    control: Control,
    /// How long the worker's loop may sleep without jobs.
    sleep: Duration,
    started: Instant,
    /// Set once the worker has started.
    sources: Arc<OnceLock<Sources>>,
    board: Board,
    was_ready: AtomicBool,
    /// Locked while gauges are written and read, so that two readers do not mix theirs.
    registry: Mutex<Registry>,
    gauges: Gauges,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabels {
    connection: String,
    queue: String,
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ProcessLabels {
    state: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BuildLabels {
    version: &'static str,
}

type Seconds = Gauge<f64, AtomicU64>;

/// What is read when it is wanted.
#[derive(Debug, Default)]
struct Gauges {
    process: ProcessFigures,
    queue_jobs: Family<StateLabels, Gauge>,
    oldest: Family<QueueLabels, Seconds>,
    paused: Family<QueueLabels, Gauge>,
    quarantine: Family<QueueLabels, Gauge>,
    running: Family<QueueLabels, Gauge>,
    longest: Family<QueueLabels, Seconds>,
    slots: Gauge,
    spool: Gauge,
    follow_ups: Gauge,
    redis_up: Gauge,
    php: Family<ProcessLabels, Gauge>,
    php_restarts: Family<ReasonLabels, Counter>,
    build: Family<BuildLabels, Gauge>,
}

impl Gauges {
    fn register(&self, registry: &mut Registry) {
        self.process.register(registry);
        let own = registry.sub_registry_with_prefix("artisand");
        own.register(
            "queue_jobs",
            "Jobs of a queue, each in one state",
            self.queue_jobs.clone(),
        );
        own.register_with_unit(
            "queue_oldest_pending",
            "Age of the oldest pending job, as far as its payload tells",
            Unit::Seconds,
            self.oldest.clone(),
        );
        own.register(
            "queue_paused",
            "Whether the app has paused the queue",
            self.paused.clone(),
        );
        own.register(
            "quarantine_jobs",
            "Payloads that could not be decoded",
            self.quarantine.clone(),
        );
        own.register(
            "jobs_running",
            "Jobs that this worker runs",
            self.running.clone(),
        );
        own.register_with_unit(
            "longest_running_job",
            "How long the longest running job has run",
            Unit::Seconds,
            self.longest.clone(),
        );
        own.register(
            "slots",
            "Jobs that can run at once in this process",
            self.slots.clone(),
        );
        own.register(
            "failed_spool_jobs",
            "Failed jobs that are not yet in the app's store",
            self.spool.clone(),
        );
        own.register(
            "follow_ups",
            "What ended jobs have left to do in the app's databases and other servers",
            self.follow_ups.clone(),
        );
        own.register("redis_up", "Whether Redis answers", self.redis_up.clone());
        own.register(
            "php_processes",
            "PHP processes of the pool, by what they do",
            self.php.clone(),
        );
        own.register(
            "php_process_restarts",
            "PHP processes of the pool that were replaced, by the reason",
            self.php_restarts.clone(),
        );
        own.register("build_info", "The version that runs", self.build.clone());
    }
}

fn number(count: impl TryInto<i64>) -> i64 {
    count.try_into().unwrap_or(i64::MAX)
}

impl Telemetry {
    /// Serves figures of a worker that is about to start; its loop may sleep for `sleep`.
    ///
    /// The page takes orders that `orders` carries away.
    pub fn new(
        jobs: JobFigures,
        control: Control,
        sleep: Duration,
        page: PageOptions,
        orders: Orders,
    ) -> Self {
        let sources = Arc::<OnceLock<Sources>>::default();
        let (mut registry, gauges) = (Registry::default(), Gauges::default());
        gauges.register(&mut registry);
        jobs.register(registry.sub_registry_with_prefix("artisand"));
        let version = env!("CARGO_PKG_VERSION");
        gauges.build.get_or_create(&BuildLabels { version }).set(1);
        Self(Arc::new(Inner {
            jobs,
            control,
            sleep,
            started: Instant::now(),
            board: Board::new(page, orders, Arc::clone(&sources)),
            sources,
            was_ready: AtomicBool::new(false),
            registry: Mutex::new(registry),
            gauges,
        }))
    }

    /// Notes that the worker has started, and where its figures come from.
    pub fn start(&self, sources: Sources) {
        // Called once.
        let _ = self.0.sources.set(sources);
    }

    /// What answers requests for the page for operators.
    pub(super) fn board(&self) -> &Board {
        &self.0.board
    }

    /// The page at a path.
    pub(super) async fn page(&self, path: &str) -> Page {
        match path {
            "/metrics" => self.metrics().await,
            "/livez" => probe(&self.check_alive()),
            "/readyz" => probe(&self.check_ready().await),
            "/startupz" => probe(&self.check_started().await),
            STATUS => self.status().await,
            _ => Page {
                status: StatusCode::NOT_FOUND,
                kind: PLAIN,
                body: "there are /, /metrics, /livez, /readyz, /startupz and /api/status\n"
                    .to_owned(),
            },
        }
    }

    /// Whether the process works, whatever its servers do.
    fn check_alive(&self) -> Checks {
        Checks(BTreeMap::from([(
            "loop",
            check_loop(&self.0.control, self.0.sleep),
        )]))
    }

    /// Whether the worker takes jobs; a paused one does, once it is resumed.
    async fn check_ready(&self) -> Checks {
        let Some(sources) = self.0.sources.get() else {
            return Checks(BTreeMap::from([("worker", Err("starting".to_owned()))]));
        };
        let worker = if self.0.control.is_told_to_quit() {
            Err("stopping".to_owned())
        } else {
            Ok(())
        };
        let redis = sources.ping().await;
        let mut checks = BTreeMap::from([("worker", worker), ("redis", redis)]);
        if let Some(pool) = &sources.pool {
            checks.insert("php", pool.problem().map_or(Ok(()), Err));
        }
        let checks = Checks(checks);
        if checks.are_passed() {
            self.0.was_ready.store(true, Ordering::Relaxed);
        }
        checks
    }

    /// Whether the worker was ready once.
    async fn check_started(&self) -> Checks {
        if self.0.was_ready.load(Ordering::Relaxed) {
            return Checks(BTreeMap::new());
        }
        self.check_ready().await
    }

    async fn metrics(&self) -> Page {
        let backlog = match self.0.sources.get() {
            Some(sources) => Some(sources.backlog().await),
            None => None,
        };
        let moment = self.0.jobs.now();
        let registry = self
            .0
            .registry
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        self.set_gauges(backlog.as_deref(), &moment);
        let mut body = String::new();
        let written = prometheus_client::encoding::text::encode(&mut body, &registry);
        let status = match written {
            Ok(()) => StatusCode::OK,
            Err(std::fmt::Error) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Page {
            status,
            kind: OPEN_METRICS,
            body,
        }
    }

    fn set_gauges(&self, backlog: Option<&Backlog>, moment: &Moment) {
        let gauges = &self.0.gauges;
        gauges.process.read();
        let is_up = backlog.is_some_and(|backlog| backlog.problem.is_none());
        gauges.redis_up.set(is_up.into());
        for family in [&gauges.paused, &gauges.quarantine, &gauges.running] {
            family.clear();
        }
        gauges.queue_jobs.clear();
        gauges.oldest.clear();
        gauges.longest.clear();
        let Some(sources) = self.0.sources.get() else {
            return;
        };
        let labels = |queue: &dyn std::fmt::Display| QueueLabels {
            connection: sources.connection.to_string(),
            queue: queue.to_string(),
        };
        gauges.slots.set(number(sources.slots));
        for queue in &sources.queues {
            let paused = moment.paused.contains(queue) || moment.is_paused;
            gauges
                .paused
                .get_or_create(&labels(queue))
                .set(paused.into());
            let running = moment.running.iter();
            let running = running.filter(|running| running.job.queue == *queue);
            let longest = running.clone().map(|running| running.elapsed).max();
            gauges
                .running
                .get_or_create(&labels(queue))
                .set(number(running.count()));
            let longest = longest.unwrap_or_default().as_secs_f64();
            gauges.longest.get_or_create(&labels(queue)).set(longest);
        }
        let queues = backlog.iter().flat_map(|backlog| &backlog.queues);
        for queue in queues.flatten() {
            for (state, jobs) in queue.states() {
                let QueueLabels { connection, queue } = labels(&queue.queue);
                let labels = StateLabels {
                    connection,
                    queue,
                    state,
                };
                gauges.queue_jobs.get_or_create(&labels).set(number(jobs));
            }
            let labels = labels(&queue.queue);
            gauges
                .quarantine
                .get_or_create(&labels)
                .set(number(queue.sizes.quarantined));
            if let Some(oldest) = queue.oldest {
                gauges.oldest.get_or_create(&labels).set(oldest);
            } else if queue.sizes.pending == 0 {
                gauges.oldest.get_or_create(&labels).set(0.0);
            }
        }
        if let Some(failed_jobs) = backlog.and_then(|backlog| backlog.failed_jobs) {
            gauges.spool.set(number(failed_jobs));
        }
        if let Some(follow_ups) = backlog.and_then(|backlog| backlog.follow_ups) {
            gauges.follow_ups.set(number(follow_ups));
        }
        if let Some(pool) = &sources.pool {
            for (reason, restarts) in pool.restarts() {
                let counted = gauges.php_restarts.get_or_create(&ReasonLabels { reason });
                counted.inc_by(restarts.saturating_sub(counted.get()));
            }
            for (state, processes) in pool.states() {
                let processes = number(processes);
                gauges
                    .php
                    .get_or_create(&ProcessLabels { state })
                    .set(processes);
            }
        }
    }

    async fn status(&self) -> Page {
        let moment = self.0.jobs.now();
        let sources = self.0.sources.get();
        let backlog = match sources {
            Some(sources) => Some(sources.backlog().await),
            None => None,
        };
        let status = Status::of(&self.0, sources, &moment, backlog.as_deref());
        json(StatusCode::OK, &status)
    }
}

/// Whether the worker's loop, which may sleep for `sleep` without jobs, comes round; the error says how long it has
/// not.
pub(super) fn check_loop(control: &Control, sleep: Duration) -> Result<(), String> {
    let silence = control.heartbeat().silence();
    if silence < SILENCE + sleep {
        Ok(())
    } else {
        Err(format!("has not come round for {} s", silence.as_secs()))
    }
}

/// The results of checks: what is wrong, by what was checked.
struct Checks(BTreeMap<&'static str, Result<(), String>>);

impl Checks {
    fn are_passed(&self) -> bool {
        self.0.values().all(Result::is_ok)
    }
}

#[derive(Serialize)]
struct Health<'a> {
    status: &'static str,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    checks: BTreeMap<&'static str, &'a str>,
}

fn probe(checks: &Checks) -> Page {
    let is_ok = checks.are_passed();
    let said = |result| match result {
        &Ok(()) => "ok",
        Err(problem) => String::as_str(problem),
    };
    let health = Health {
        status: if is_ok { "ok" } else { "unhealthy" },
        checks: checks
            .0
            .iter()
            .map(|(check, result)| (*check, said(result)))
            .collect(),
    };
    let status = if is_ok {
        StatusCode::OK
    } else {
        StatusCode::SERVICE_UNAVAILABLE
    };
    json(status, &health)
}

fn json(status: StatusCode, value: &impl Serialize) -> Page {
    let body = serde_json::to_string(value);
    Page {
        status: if body.is_ok() {
            status
        } else {
            StatusCode::INTERNAL_SERVER_ERROR
        },
        kind: JSON,
        body: body.unwrap_or_default() + "\n",
    }
}

/// The state of a worker.
#[derive(Serialize)]
struct Status<'a> {
    version: &'static str,
    pid: u32,
    uptime_seconds: u64,
    state: &'static str,
    connection: Option<&'a str>,
    slots: usize,
    attempts: u64,
    failed: u64,
    /// Why the server does not answer.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    queues: Option<Vec<QueueStatus<'a>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    failed_spool: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    follow_ups: Option<u64>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    php_processes: BTreeMap<&'static str, usize>,
    jobs_running: usize,
    running: Vec<RunningStatus<'a>>,
}

/// Each queue has its place, for autoscaling: also one that cannot be read.
#[derive(Serialize)]
struct QueueStatus<'a> {
    queue: &'a str,
    #[serde(flatten)]
    sizes: Option<SizesStatus>,
    /// Why there are no sizes.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    is_paused: bool,
}

#[derive(Serialize)]
struct SizesStatus {
    pending: u64,
    delayed: u64,
    due: u64,
    reserved: u64,
    expired: u64,
    quarantined: u64,
    /// What waits or runs now: for autoscaling.
    ready: u64,
    oldest_pending_seconds: Option<f64>,
}

impl SizesStatus {
    fn of(queue: &QueueBacklog) -> Self {
        let [
            (_, pending),
            (_, delayed),
            (_, due),
            (_, reserved),
            (_, expired),
        ] = queue.states();
        Self {
            pending,
            delayed,
            due,
            reserved,
            expired,
            quarantined: queue.sizes.quarantined,
            ready: pending + due + reserved + expired,
            oldest_pending_seconds: queue.oldest,
        }
    }
}

#[derive(Serialize)]
struct RunningStatus<'a> {
    uuid: Option<&'a str>,
    job_class: String,
    queue: &'a str,
    attempts: u32,
    seconds: f64,
}

impl<'a> Status<'a> {
    fn of(
        of: &Inner,
        sources: Option<&'a Sources>,
        moment: &'a Moment,
        backlog: Option<&'a Backlog>,
    ) -> Self {
        let state = match sources {
            None => "starting",
            Some(_) if of.control.is_told_to_quit() => "stopping",
            Some(_) if moment.is_paused => "paused",
            Some(_) => "running",
        };
        let names = sources.map(|sources| &*sources.queues).unwrap_or_default();
        let queue = |(name, read): (&'a QueueName, &'a Result<QueueBacklog, String>)| QueueStatus {
            queue: name.as_str(),
            sizes: read.as_ref().ok().map(SizesStatus::of),
            error: read.as_ref().err().map(String::as_str),
            is_paused: moment.paused.contains(name),
        };
        let is_any_read = |backlog: &&Backlog| backlog.queues.iter().any(Result::is_ok);
        let queues = |backlog: &'a Backlog| names.iter().zip(&backlog.queues).map(queue).collect();
        let error = match backlog {
            Some(backlog) => backlog.problem.as_deref(),
            None => Some("the worker has not started"),
        };
        let running = moment.running.iter().take(MOST_LISTED);
        let pool = sources.and_then(|sources| sources.pool.as_ref());
        Self {
            version: env!("CARGO_PKG_VERSION"),
            pid: std::process::id(),
            uptime_seconds: of.started.elapsed().as_secs(),
            state,
            connection: sources.map(|sources| sources.connection.as_str()),
            slots: sources.map_or(0, |sources| sources.slots),
            attempts: moment.totals.attempts,
            failed: moment.totals.failed,
            error,
            queues: backlog.filter(is_any_read).map(queues),
            failed_spool: backlog.and_then(|backlog| backlog.failed_jobs),
            follow_ups: backlog.and_then(|backlog| backlog.follow_ups),
            php_processes: pool.map(|pool| pool.states().into()).unwrap_or_default(),
            jobs_running: moment.running.len(),
            running: running
                .map(|running| RunningStatus {
                    uuid: running.job.payload.uuid.as_ref().map(JobUuid::bounded),
                    job_class: shown_name(&running.job.payload).into_owned(),
                    queue: running.job.queue.as_str(),
                    attempts: running.job.attempts,
                    seconds: running.elapsed.as_secs_f64(),
                })
                .collect(),
        }
    }
}
