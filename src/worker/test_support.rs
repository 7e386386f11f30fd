//! What tests of the worker have in common: jobs, a server that fails when it is told to, and a worker on it.

use std::collections::{HashMap, VecDeque};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use serde::de::IgnoredAny;
use serde_json::{Value, json};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::app::Manifest;
use crate::cache::{Cache, FileStore, FileStoreOptions, Stores};
use crate::connection::LockPlace;
use crate::handler::{self, BoxError, Handler, JobContext, JobInfo, Services};
use crate::payload::TargetPattern;
use crate::payload::{CALL_QUEUED_HANDLER, Encrypter, FailedJob, Payload};
use crate::process::pool::Pool;
use crate::queue::{
    Abilities, Answer, Connections, Destination, Due, Effect, Error, Fate, Held, MemoryQueue, Once,
    Place, PopRequest, Popped, Push, PushedOnce, Queue, QueueName, Refusal, ReservedJob, Settled,
    Settlement, Sizes, Spool, Unsettled,
};
use crate::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use crate::time::{Clock, UnixSeconds};
use crate::worker::app_context::AppContext;
use crate::worker::attempt::shared::{Leases, Settlements, Shared, Stops, Terms};
use crate::worker::attempt::{self, Placement};
use crate::worker::completer::PendingSettlement;
use crate::worker::event::{Observer, Observers};
use crate::worker::handed::Handed;
use crate::worker::linger::EndCounter;
use crate::worker::renew::Running;
use crate::worker::triage::Triage;
use crate::worker::watchdog::Turns;
use crate::worker::weights::Weights;
use crate::worker::{Control, ControlPlane, Event, Report, StopRules, Worker, WorkerOptions};

/// The second in which all tests happen.
pub(crate) const NOW: UnixSeconds = UnixSeconds(1_760_000_000);
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(90);
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

/// What happens to a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The server refuses it, and does nothing.
    Refused,
    /// The server refuses it, and will always do so.
    Impossible,
    /// The server carries it out, and its reply is lost.
    ReplyLost,
    /// The server carries it out for the first of its jobs.
    OnlyFirst,
    /// The server carries it out after this long.
    Slow(Duration),
    /// The server does nothing and never answers.
    Hangs,
}

/// A call that came to the server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Call {
    pub(crate) what: &'static str,
    pub(crate) at: Instant,
    /// How many jobs it was for, or at most for.
    pub(crate) jobs: usize,
}

type Refuses = Box<dyn Fn(&Settlement) -> Option<Fault> + Send + Sync>;

/// Queues in memory on a server that fails when a test says so.
pub(crate) struct Server {
    pub(crate) jobs: Arc<MemoryQueue>,
    /// What happens to the next calls of a name.
    next: Mutex<HashMap<&'static str, VecDeque<Option<Fault>>>>,
    /// What happens to calls with such a settlement.
    refuses: Mutex<Option<Refuses>>,
    calls: Mutex<Vec<Call>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Server").finish_non_exhaustive()
    }
}

impl Server {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self {
            jobs: Arc::new(MemoryQueue::new(Some(RETRY_AFTER))),
            next: Mutex::default(),
            refuses: Mutex::default(),
            calls: Mutex::default(),
        })
    }

    /// Says what happens to the next calls: `pop`, `settle`, `renew` or `wait`.
    pub(crate) fn next(&self, what: &'static str, faults: impl IntoIterator<Item = Option<Fault>>) {
        let mut next = self.next.lock().unwrap();
        next.entry(what).or_default().extend(faults);
    }

    /// Says what happens to every call that has such a settlement.
    pub(crate) fn refuses(
        &self,
        refuses: impl Fn(&Settlement) -> Option<Fault> + Send + Sync + 'static,
    ) {
        *self.refuses.lock().unwrap() = Some(Box::new(refuses));
    }

    /// The calls of a name so far.
    pub(crate) fn calls(&self, what: &str) -> Vec<Call> {
        let calls = self.calls.lock().unwrap();
        calls
            .iter()
            .filter(|call| call.what == what)
            .cloned()
            .collect()
    }

    /// How many jobs each call of a name was for.
    pub(crate) fn sizes_of(&self, what: &str) -> Vec<usize> {
        self.calls(what).iter().map(|call| call.jobs).collect()
    }

    pub(crate) async fn push(&self, payloads: &[Vec<u8>]) {
        self.jobs.push(&"default".into(), payloads).await.unwrap();
    }

    pub(crate) async fn sizes(&self) -> Sizes {
        self.jobs.sizes(&"default".into()).await.unwrap()
    }

    /// Reserves all jobs that wait.
    pub(crate) async fn reserve(&self) -> Vec<Arc<ReservedJob>> {
        let request = PopRequest {
            queues: &["default".into()],
            max: std::num::NonZeroUsize::MAX,
            now: NOW,
            woken: &[],
            selection: None,
            thorough: false,
        };
        let popped = self.jobs.pop(request).await.unwrap();
        popped.jobs.into_iter().map(Arc::new).collect()
    }

    /// The names of all calls so far, but for waits.
    pub(crate) fn order(&self) -> Vec<&'static str> {
        let calls = self.calls.lock().unwrap();
        let names = calls.iter().map(|call| call.what);
        names.filter(|what| *what != "wait").collect()
    }

    /// The records of failed jobs.
    pub(crate) fn failed(&self) -> Vec<FailedJob> {
        let records = self.jobs.spool(Spool::FailedJobs);
        let read = |record: &Vec<u8>| serde_json::from_slice(record).unwrap();
        records.iter().map(read).collect()
    }

    fn note(&self, what: &'static str, jobs: usize) -> Option<Fault> {
        let at = Instant::now();
        self.calls.lock().unwrap().push(Call { what, at, jobs });
        let mut next = self.next.lock().unwrap();
        next.get_mut(what)?.pop_front()?
    }
}

/// An error of a call.
fn error(fault: Fault) -> Error {
    let queue = QueueName::from("default");
    match fault {
        Fault::Impossible => Error::Refused {
            queue,
            source: Refusal::Nowhere,
        },
        Fault::ReplyLost => Error::Reply {
            script: "a script",
            queue,
        },
        _ => Error::Overflow {
            queue,
            source: "the server says no".into(),
        },
    }
}

/// Carries out a call, with what happens to it.
async fn faulty<T>(
    fault: Option<Fault>,
    carry_out: impl Future<Output = Result<T, Error>>,
) -> Result<T, Error> {
    match fault {
        None => carry_out.await,
        Some(fault @ (Fault::Refused | Fault::Impossible | Fault::OnlyFirst)) => Err(error(fault)),
        Some(Fault::ReplyLost) => {
            carry_out.await?;
            Err(error(Fault::ReplyLost))
        }
        Some(Fault::Slow(wait)) => {
            tokio::time::sleep(wait).await;
            carry_out.await
        }
        Some(Fault::Hangs) => std::future::pending().await,
    }
}

impl Queue for Server {
    fn abilities(&self) -> &Abilities {
        self.jobs.abilities()
    }

    fn ping(&self) -> Answer<'_, (), crate::connection::Error> {
        self.jobs.ping()
    }

    fn pop<'a>(&'a self, request: PopRequest<'a>) -> Answer<'a, Popped> {
        let fault = self.note("pop", request.max.get());
        Box::pin(faulty(fault, self.jobs.pop(request)))
    }

    fn settle<'a>(
        &'a self,
        jobs: &'a [(Arc<ReservedJob>, Settlement)],
    ) -> Answer<'a, Vec<Settled>, Unsettled> {
        let fault = self.note("settle", jobs.len()).or_else(|| {
            let refuses = self.refuses.lock().unwrap();
            let refuses = refuses.as_ref()?;
            jobs.iter().find_map(|(_, settlement)| refuses(settlement))
        });
        let none = vec![None; jobs.len()];
        Box::pin(async move {
            if fault == Some(Fault::OnlyFirst) {
                let mut settled = none;
                settled[0] = self.jobs.settle(&jobs[..1]).await?.pop();
                let source = error(Fault::OnlyFirst);
                return Err(Unsettled { settled, source });
            }
            let settling = async { Ok(self.jobs.settle(jobs).await.expect("memory")) };
            faulty(fault, settling).await.map_err(|source| Unsettled {
                settled: none,
                source,
            })
        })
    }

    fn renew<'a>(
        &'a self,
        jobs: &'a [Arc<ReservedJob>],
        now: UnixSeconds,
    ) -> Answer<'a, Vec<Held>> {
        let fault = self.note("renew", jobs.len());
        Box::pin(faulty(fault, self.jobs.renew(jobs, now)))
    }

    fn wait_for_push<'a>(
        &'a self,
        queues: &'a [QueueName],
        timeout: Duration,
    ) -> Answer<'a, Option<QueueName>> {
        let fault = self.note("wait", 0);
        Box::pin(faulty(fault, self.jobs.wait_for_push(queues, timeout)))
    }

    fn push<'a>(&'a self, queue: &'a QueueName, payloads: &'a [Vec<u8>]) -> Answer<'a, ()> {
        self.jobs.push(queue, payloads)
    }

    fn later<'a>(
        &'a self,
        queue: &'a QueueName,
        due: UnixSeconds,
        payload: &'a [u8],
    ) -> Answer<'a, ()> {
        self.jobs.later(queue, due, payload)
    }

    fn push_once<'a>(&'a self, pushes: &'a [Push], once: Once<'a>) -> Answer<'a, PushedOnce> {
        self.jobs.push_once(pushes, once)
    }

    fn can_claim(&self, queue: &QueueName, place: &LockPlace) -> bool {
        self.jobs.can_claim(queue, place)
    }

    fn was_pushed<'a>(&'a self, queue: &'a QueueName, id: &'a str) -> Answer<'a, bool> {
        self.jobs.was_pushed(queue, id)
    }

    fn due<'a>(&'a self, queue: &'a QueueName, now: UnixSeconds) -> Answer<'a, Due> {
        self.jobs.due(queue, now)
    }

    fn sizes<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, Sizes> {
        Queue::sizes(&*self.jobs, queue)
    }

    fn look<'a>(
        &'a self,
        queue: &'a QueueName,
        place: Place,
        from: usize,
        limit: usize,
    ) -> Answer<'a, Vec<Vec<u8>>> {
        self.jobs.look(queue, place, from, limit)
    }

    fn clear<'a>(&'a self, queue: &'a QueueName) -> Answer<'a, u64> {
        self.jobs.clear(queue)
    }

    fn queues(&self) -> Answer<'_, Vec<QueueName>> {
        self.jobs.queues()
    }

    fn quarantines(&self) -> Answer<'_, Vec<QueueName>> {
        self.jobs.quarantines()
    }

    fn dequarantine<'a>(
        &'a self,
        queue: &'a QueueName,
        payloads: &'a [Vec<u8>],
        fate: Fate,
    ) -> Answer<'a, u64> {
        self.jobs.dequarantine(queue, payloads, fate)
    }
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
        let shared = Shared {
            triage: Arc::new(Triage::new(Arc::new(app))),
            terms: Terms::of(&self.options),
            leases: Leases {
                running: Arc::<Running>::default(),
                queue,
            },
            settlements: Settlements::new(sender, Arc::<Handed>::default()),
            turns: Arc::new(Turns::new(false)),
            weights: Weights::new(None, mappings),
            observers: std::iter::once(observer).collect::<Observers>(),
            stops: Stops::default(),
            ends: EndCounter::default(),
            cache: self.control_plane.cache,
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
        shared.leases.running.insert(1, Arc::clone(&job));
        let placement = Placement::Local;
        let run = attempt::run(Arc::clone(&shared), job, candidate, 1, None, placement);
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
