//! What tests of the worker have in common: jobs, a server that fails when it is told to, and a worker on it.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::app::Manifest;
use crate::cache::{Cache, FileStore, FileStoreOptions, Stores};
use crate::handler::{self, BoxError, BoxFuture, Handler, JobContext, JobInfo, Services};
use crate::payload::TargetPattern;
use crate::payload::{CALL_QUEUED_HANDLER, Encrypter, FailedJob, Payload};
use crate::process::pool::Pool;
use crate::queue::{
    Connections, Destination, Effect, MemoryQueue, Queue, ReservedJob, Settled, Settlement,
};
use crate::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use crate::time::Clock;
use crate::worker::app_context::AppContext;
use crate::worker::attempt::shared::{Leases, Settlements, Shared, Stops, Terms};
use crate::worker::attempt::{self, Placement};
use crate::worker::event::{Observer, Observers};
use crate::worker::linger::EndCounter;
use crate::worker::renew::{Renewals, Renewer};
use crate::worker::running::Running;
use crate::worker::settle_counts::SettleCounts;
use crate::worker::settler::PendingSettlement;
use crate::worker::triage::Triage;
use crate::worker::watchdog::Turns;
use crate::worker::weights::Weights;
use crate::worker::{Control, ControlPlane, Event, Report, StopRules, Worker, WorkerOptions};

pub(crate) use crate::queue::faulty::{Fault, NOW, RETRY_AFTER, Server};

/// The app's key.
pub(crate) const KEY: &str = "0123456789abcdef0123456789abcdef";
pub(crate) const S: fn(u64) -> Duration = Duration::from_secs;

/// A payload of the uuid `uuid-N` with this class and this serialized object, and more fields.
pub(crate) fn payload_of(class: &str, command: &str, n: u32, fields: &Value) -> Vec<u8> {
    let mut payload = json!({
        "uuid": format!("uuid-{n}"), "displayName": class, "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": class, "command": command}, "id": format!("id-{n}"), "attempts": 0,
    });
    for (name, value) in fields.as_object().into_iter().flatten() {
        payload[name] = value.clone();
    }
    payload.to_string().into_bytes()
}

/// The serialized object of a class: its properties as PHP writes them.
pub(crate) fn object(class: &str, count: usize, properties: &str) -> String {
    format!("O:{}:\"{class}\":{count}:{{{properties}}}", class.len())
}

/// A payload of class `App\Jobs\CLASS` with the property `n`.
pub(crate) fn payload(class: &str, n: u32, fields: &Value) -> Vec<u8> {
    let class = format!("App\\Jobs\\{class}");
    let command = object(&class, 1, &format!("s:1:\"n\";i:{n};"));
    payload_of(&class, &command, n, fields)
}

/// A job of class `App\Jobs\A`.
pub(crate) fn job(n: u32) -> Vec<u8> {
    payload("A", n, &json!({}))
}

/// The facts of a first attempt.
pub(crate) fn info(payload: &[u8]) -> Arc<JobInfo> {
    Arc::new(JobInfo {
        connection: "redis".into(),
        queue: "default".into(),
        attempts: 1,
        payload: Arc::new(Payload::parse(payload).unwrap()),
        body: payload.into(),
        reserved: payload.into(),
        trace: None,
    })
}

/// A handler that does nothing.
pub(crate) fn nothing() -> impl Handler {
    handler::function(|_: IgnoredAny, _: JobContext| async { Ok::<(), BoxError>(()) })
}

/// A handler that takes this long.
pub(crate) fn slow(takes: Duration) -> impl Handler {
    handler::function(move |_: IgnoredAny, _: JobContext| async move {
        tokio::time::sleep(takes).await;
        Ok::<(), BoxError>(())
    })
}

/// A handler that does this with its job's context.
pub(crate) fn does(
    act: impl Fn(&JobContext) -> Result<(), BoxError> + Send + Sync + 'static,
) -> impl Handler {
    handler::function(move |_: IgnoredAny, context: JobContext| std::future::ready(act(&context)))
}

/// A blocking handler that does not return from the job `uuid-1`, and takes five minutes for others.
pub(crate) struct Stuck;

impl Handler for Stuck {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        let uuid = context.payload().uuid.as_ref();
        let is_stuck = uuid.is_some_and(|uuid| uuid.as_str() == "uuid-1");
        Box::pin(async move {
            if is_stuck {
                std::future::pending::<()>().await;
            }
            tokio::time::sleep(S(300)).await;
            Ok(())
        })
    }

    fn is_blocking(&self) -> bool {
        true
    }
}

/// A mapping of these job classes to the handler `handler`.
pub(crate) fn mapping(classes: &str) -> Mapping {
    Mapping::new(
        TargetPattern::job(classes).unwrap(),
        HandlerChoice::Named("handler".to_owned()),
    )
}

pub(crate) fn router(
    mappings: Vec<Mapping>,
    unmapped: UnmappedPolicy,
    handler: impl Handler,
) -> Router {
    let registry = Registry::new().with("handler", handler);
    Router::new(mappings, unmapped, &registry).unwrap()
}

/// A cache store of files in this directory.
pub(crate) fn files(directory: &Path) -> Cache {
    let options = FileStoreOptions {
        directory: directory.to_owned(),
        lock_directory: directory.to_owned(),
        permission: None,
        separate_locks: true,
    };
    Cache::file(FileStore::new(options, Clock::System))
}

/// The app's cache stores: `files` in this directory, `array`, and none besides.
pub(crate) fn stores(directory: &Path) -> Stores {
    let directory = directory.to_owned();
    Stores::new("files", move |name: &str| match name {
        "files" => Ok(files(&directory)),
        "array" => Ok(Cache::unshared()),
        _ => Err(format!("no store `{name}`")),
    })
}

/// A manifest with these classes, each queued and with the facts that are given.
pub(crate) fn manifest(laravel: &str, classes: &Value) -> Arc<Manifest> {
    let mut all = json!({});
    for (name, facts) in classes.as_object().into_iter().flatten() {
        let mut class = json!({
            "kind": "job", "file": "", "flags": {"queued": true},
            "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
            "uses": ["Illuminate\\Bus\\Queueable"],
        });
        for (fact, value) in facts.as_object().into_iter().flatten() {
            class[fact] = value.clone();
        }
        all[name] = class;
    }
    let manifest = json!({
        "artisand": 1, "laravel": laravel, "generated_at": 0, "config": {},
        "paths": {"base": "/nowhere", "storage": "/nowhere"}, "classes": all,
    });
    let parsed = Manifest::parse(Path::new("artisand.json"), manifest.to_string().as_bytes());
    Arc::new(parsed.unwrap())
}

/// The services of an app of this version with a key, and with the connections `redis` and `other`.
pub(crate) fn services(laravel: &str) -> Services {
    let version = laravel.parse().unwrap();
    let destination = |queue: &str| Destination {
        default_queue: queue.into(),
        queues: Ok(Arc::new(MemoryQueue::new(None)) as _),
    };
    let all = [
        ("redis".to_owned(), destination("usual")),
        ("other".to_owned(), destination("elsewhere")),
    ];
    Services {
        version,
        connections: Some(Connections::new("redis", all)),
        encrypter: Some(Arc::new(
            Encrypter::new(version, KEY, "AES-256-CBC").unwrap(),
        )),
        timezone: "UTC".to_owned(),
        clock: Clock::Fixed(NOW),
        ..Services::default()
    }
}

/// What an app is for a worker of the connection `redis`.
pub(crate) fn app(router: Router, services: Services) -> Arc<AppContext> {
    let queue = Arc::new(MemoryQueue::new(Some(RETRY_AFTER)));
    let options = WorkerOptions {
        clock: Clock::Fixed(NOW),
        ..WorkerOptions::default()
    };
    let (router, services) = (Arc::new(router), Arc::new(services));
    let app = AppContext::new(router, services, &options, &*queue.clone(), queue);
    Arc::new(app)
}

/// A worker on a server in memory; it stops when its queue is empty.
pub(crate) struct Scene {
    pub(crate) server: Arc<Server>,
    pub(crate) router: Router,
    pub(crate) options: WorkerOptions,
    pub(crate) services: Services,
    pub(crate) control_plane: ControlPlane,
    pub(crate) control: Control,
    pub(crate) pool: Option<Pool>,
    told: Told,
}

/// Events as text, in the order in which they came.
#[derive(Debug, Clone, Default)]
pub(crate) struct Told(Arc<Mutex<Vec<String>>>);

impl Told {
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.0.lock().unwrap())
    }

    /// Waits until an event came.
    pub(crate) async fn until(&self, event: &str) {
        let has_come = || self.0.lock().unwrap().iter().any(|told| told == event);
        for _ in 0..100_000 {
            if has_come() {
                return;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        panic!("`{event}` did not come: {:?}", self.take());
    }
}

impl Observer for Told {
    fn on_event(&self, event: &Event<'_>) {
        let name = event.name();
        let text = match event {
            Event::JobPopping { .. }
            | Event::JobPopped(_)
            | Event::Looping(_)
            | Event::WorkerStarting(_)
            | Event::ReservationsRenewed { .. }
            | Event::JobAttempted(_) => return,
            Event::JobProcessing { job, .. } => {
                format!(
                    "{name} {} {}",
                    job.payload.uuid.as_ref().unwrap(),
                    job.attempts
                )
            }
            Event::JobProcessed(end)
            | Event::JobReleased(end)
            | Event::JobReleasedAfterException(end)
            | Event::JobFailed(end)
            | Event::JobTimedOut(end)
            | Event::JobLost(end) => {
                let uuid = end.job.payload.uuid.as_ref().unwrap();
                let gone = if end.is_gone { " gone" } else { "" };
                format!("{name} {uuid}{gone}")
            }
            Event::JobExceptionOccurred(it) => format!("{name} {}", it.failure.message),
            Event::JobsQuarantined { count, .. } => format!("{name} {count}"),
            Event::JobForwarded { to, .. } => format!("{name} {to}"),
            Event::WorkerQueuePaused(queue) | Event::WorkerQueueResumed(queue) => {
                format!("{name} {queue}")
            }
            Event::MaintenanceMode(down) => format!("{name} {down}"),
            Event::WorkerStopping { reason, .. } => format!("{name} {}", reason.as_str()),
            _ => name.to_owned(),
        };
        self.0.lock().unwrap().push(text);
    }
}

impl Scene {
    /// A worker that runs all jobs of `App\Jobs\` with this handler.
    pub(crate) fn new(handler: impl Handler) -> Self {
        Self {
            server: Server::new(),
            router: router(
                vec![mapping("App\\Jobs\\*")],
                UnmappedPolicy::Leave,
                handler,
            ),
            options: WorkerOptions {
                stop: StopRules {
                    memory: None,
                    when_empty: true,
                    ..StopRules::default()
                },
                clock: Clock::Fixed(NOW),
                ..WorkerOptions::default()
            },
            services: services("13.31.0"),
            control_plane: ControlPlane::default(),
            control: Control::new(),
            pool: None,
            told: Told::default(),
        }
    }

    /// The same, for a worker that runs until it is told to stop.
    #[must_use]
    pub(crate) fn endless(mut self) -> Self {
        self.options.stop.when_empty = false;
        self
    }

    pub(crate) fn told(&self) -> Told {
        self.told.clone()
    }

    /// Runs the worker; returns its report and the events of jobs.
    pub(crate) async fn run(self) -> (Report, Vec<String>) {
        let (told, control) = (self.told(), self.control.clone());
        let ledger = Arc::clone(&self.server.jobs) as _;
        let mut worker = Worker::with_ledger(self.server, ledger, self.router, self.options)
            .with_services(self.services)
            .with_control_plane(self.control_plane)
            .with_observer(self.told);
        if let Some(pool) = self.pool {
            worker = worker.with_php_pool(pool);
        }
        let report = worker.run(&control).await;
        (report, told.take())
    }

    /// What the jobs of the worker share, and the jobs that have ended.
    pub(crate) fn shared(self) -> (Arc<Shared>, mpsc::Receiver<PendingSettlement>) {
        let queue: Arc<dyn Queue> = Arc::clone(&self.server) as _;
        let ledger = Arc::clone(&self.server.jobs) as _;
        let mappings = self.router.mappings().len();
        let services = Arc::new(self.services);
        let app = AppContext::new(
            Arc::new(self.router),
            services,
            &self.options,
            &*queue,
            ledger,
        );
        let (sender, ended) = mpsc::channel(64);
        let observer: Arc<dyn Observer> = Arc::new(self.told);
        let (running, observers) = (Arc::<Running>::default(), Observers::default());
        let renewer = Renewer::new(&queue, &running, &observers, self.options.clock);
        let shared = Shared {
            triage: Arc::new(Triage::new(Arc::new(app))),
            terms: Terms::of(&self.options),
            leases: Leases {
                running,
                renewals: Arc::new(Renewals::new(renewer, None)),
                queue,
            },
            settlements: Settlements::new(sender, Arc::<SettleCounts>::default()),
            turns: Arc::new(Turns::new(false)),
            weights: Weights::new(None, mappings),
            observers: std::iter::once(observer).collect::<Observers>(),
            stops: Stops::default(),
            ends: EndCounter::default(),
            pool: self.pool,
            recording: None,
        };
        (Arc::new(shared), ended)
    }

    /// Runs one attempt of a job, whose end is then settled with this result.
    pub(crate) async fn attempt(
        self,
        payload: &[u8],
        attempts: u32,
        settled: Settled,
    ) -> Attempted {
        self.server.push(&[payload.to_vec()]).await;
        let job = self.server.reserve().await.remove(0);
        let job = Arc::new(ReservedJob {
            attempts,
            ..(*job).clone()
        });
        let told = self.told();
        let (shared, ended) = self.shared();
        let settling = settling(ended, settled);
        let candidate = shared.triage.triage(&job.payload, &job.queue);
        (shared.leases.running).insert(1, Arc::clone(&job), Duration::ZERO);
        let placement = Placement::Local;
        let run = attempt::run(Arc::clone(&shared), job, candidate, 1, placement);
        run.await;
        drop(shared);
        Attempted {
            settlements: settling.await.unwrap(),
            told: told.take(),
        }
    }
}

/// What an attempt has come to.
#[derive(Debug)]
pub(crate) struct Attempted {
    /// How its job is to be settled; none if it is not.
    pub(crate) settlements: Vec<Settlement>,
    pub(crate) told: Vec<String>,
}

impl Attempted {
    /// How its job is to be settled.
    pub(crate) fn settlement(&self) -> &Settlement {
        let [settlement] = &self.settlements[..] else {
            panic!("{:?}", self.settlements);
        };
        settlement
    }

    /// The record of its failure.
    pub(crate) fn failed(&self) -> &FailedJob {
        match self.settlement() {
            Settlement::Finish(effects) => match &effects[0] {
                Effect::Record(record) => record,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }
}

/// Answers each end of a job with this result, until no more come; returns how the jobs are to be settled.
pub(crate) fn settling(
    mut ended: mpsc::Receiver<PendingSettlement>,
    settled: Settled,
) -> tokio::task::JoinHandle<Vec<Settlement>> {
    tokio::spawn(async move {
        let mut settlements = Vec::new();
        while let Some(pending) = ended.recv().await {
            settlements.push(pending.ending.settlement);
            if let Some(done) = pending.done {
                let _ = done.send(settled);
            }
        }
        settlements
    })
}
