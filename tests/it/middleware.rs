//! Middleware in this process: a job's outcome, and its keys in the cache.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::batch::Batches;
use artisand::cache::{Cache, RedisStore};
use artisand::connection::{
    Database, DatabaseKind, DatabaseOptions, Redis, RedisAddress, RedisOptions,
};
use artisand::handler::{
    self, BoxError, BoxFuture, Handler, JobContext, JobInfo, Limit, Limiter, Middleware,
    ModelNotFound, Next, Pipeline, Services, Template,
};
use artisand::middleware::{
    Exceptions, FailOnException, RateLimited, Release, Skip, SkipIfBatchCancelled,
    ThrottlesExceptions, WithoutOverlapping,
};
use artisand::payload::{CALL_QUEUED_HANDLER, Pattern, Payload};
use artisand::php::Value;
use artisand::queue::{MemoryQueue, Queue, QueueName, Sizes, Spool};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::Clock;
use artisand::worker::{Control, Report, StopRules, Worker, WorkerOptions};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::harness::process::eventually;
use crate::harness::proxy::{Mode, Proxy};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(20);

/// A payload of a job of class `App\Jobs\A` with these serialized properties.
fn payload(n: u32, properties: &[&str]) -> Vec<u8> {
    let class = "App\\Jobs\\A";
    let command = format!(
        "O:{}:\"{class}\":{}:{{{}}}",
        class.len(),
        properties.len(),
        properties.concat()
    );
    json!({
        "uuid": format!("uuid-{n}"), "displayName": class, "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": class, "command": command}, "id": format!("id-{n}"), "attempts": 0,
    })
    .to_string()
    .into_bytes()
}

fn queue_name() -> QueueName {
    "default".into()
}

/// A Redis with the app's stores on it.
struct Store {
    server: RedisServer,
    services: Services,
}

fn open(port: u16) -> Redis {
    let options = RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), port),
        ..RedisOptions::default()
    };
    Redis::new(&options).unwrap()
}

impl Store {
    fn start() -> Self {
        let server = RedisServer::start();
        let port = server.port();
        Self::reached_by(port, server)
    }

    /// The stores on a server that is reached by this port.
    fn reached_by(port: u16, server: RedisServer) -> Self {
        let redis = open(port);
        let store = RedisStore::new(redis.clone(), redis.clone(), "p:");
        let mut services = Services::default();
        services.middleware.cache = Some(Cache::redis(store));
        let cache = services.middleware.cache.clone();
        services.middleware.limiter_cache = cache;
        services
            .middleware
            .redis
            .insert("default".into(), Ok(redis));
        Self { server, services }
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.server.query(&[b"KEYS", b"*"]);
        keys.sort();
        keys
    }

    fn is_locked(&self) -> bool {
        self.keys() == ["p:laravel-queue-overlap:App\\Jobs\\A:k"]
    }
}

fn overlap() -> WithoutOverlapping {
    WithoutOverlapping::new("k".parse().unwrap())
}

fn router(handler: impl Handler) -> Router {
    let registry = Registry::new().with("handler", handler);
    let any = Pattern::parse("*").unwrap();
    let mapping = Mapping::new(any, HandlerChoice::Named("handler".into()));
    Router::new(vec![mapping], UnmappedPolicy::Leave, &registry).unwrap()
}

fn options(timeout: Duration) -> WorkerOptions {
    let mut options = WorkerOptions {
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    options.defaults.timeout = timeout;
    options.defaults.tries = 1;
    options
}

/// Runs these jobs until the queue is empty.
async fn run(services: &Services, handler: impl Handler, jobs: &[Vec<u8>]) -> (Report, Sizes) {
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    queue.push(&queue_name(), jobs).await.unwrap();
    let worker = Worker::new(Arc::clone(&queue), router(handler), options(SOON));
    let worker = worker.with_services(services.clone());
    let report = worker.run(&Control::new()).await;
    (report, queue.sizes(&queue_name()).await.unwrap())
}

/// A handler that counts its runs and fails while told to.
#[derive(Clone, Default)]
struct Counting {
    runs: Arc<AtomicUsize>,
    throws: Arc<AtomicBool>,
    panics: Arc<AtomicBool>,
}

impl Counting {
    fn handler(
        &self,
    ) -> impl Fn(IgnoredAny, JobContext) -> BoxFuture<'static, Result<(), BoxError>> + Send + Sync + use<>
    {
        let this = self.clone();
        move |_, _| {
            let this = this.clone();
            Box::pin(async move {
                this.runs.fetch_add(1, Ordering::SeqCst);
                assert!(!this.panics.load(Ordering::SeqCst), "told to");
                if this.throws.load(Ordering::SeqCst) {
                    Err("told to".into())
                } else {
                    Ok(())
                }
            })
        }
    }

    fn runs(&self) -> usize {
        self.runs.load(Ordering::SeqCst)
    }
}

/// Middleware that records that a job passed it.
struct Passing(&'static str, Arc<Mutex<Vec<String>>>);

impl Middleware for Passing {
    fn handle<'a>(
        &'a self,
        _: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            self.1.lock().unwrap().push(format!("into {}", self.0));
            let result = next.run().await;
            let error = result.as_ref().err().map(ToString::to_string);
            let error = error.unwrap_or_default();
            self.1
                .lock()
                .unwrap()
                .push(format!("out of {} {error}", self.0));
            result
        })
    }
}

#[tokio::test]
async fn jobs_pass_the_handlers_middleware_then_the_mappings() {
    let passed = Arc::new(Mutex::new(Vec::new()));
    let passing = |name| Passing(name, Arc::clone(&passed));
    let counting = Counting::default();
    counting.panics.store(true, Ordering::SeqCst);
    let handler = handler::function(counting.handler()).with_middleware(passing("handler's"));
    let registry = Registry::new().with("handler", handler);
    let any = Pattern::parse("*").unwrap();
    let of_mapping: Arc<dyn Middleware> = Arc::new(passing("mapping's"));
    let mapping = Mapping {
        middleware: [of_mapping].into_iter().collect(),
        ..Mapping::new(any, HandlerChoice::Named("handler".into()))
    };
    let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &registry).unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
    let options = options(SOON);
    Worker::new(Arc::clone(&queue), router, options)
        .run(&Control::new())
        .await;
    #[rustfmt::skip]
    let expected = [
        "into handler's", "into mapping's",
        "out of mapping's panicked: told to at tests/it/middleware.rs:LINE",
        "out of handler's panicked: told to at tests/it/middleware.rs:LINE",
    ];
    let passed = passed.lock().unwrap().clone();
    let passed = passed.iter().map(|line| {
        let without = line.trim_end_matches(|c: char| c.is_ascii_digit());
        if without == line {
            line.clone()
        } else {
            format!("{without}LINE")
        }
    });
    assert_eq!(passed.collect::<Vec<_>>(), expected);
    let record = String::from_utf8(queue.spool(Spool::FailedJobs).remove(0)).unwrap();
    assert!(record.contains("HandlerPanic"), "{record}");
}

/// A payload of a job that has three tries.
fn with_tries(properties: &[&str]) -> Vec<u8> {
    let mut payload: serde_json::Value = serde_json::from_slice(&payload(1, properties)).unwrap();
    payload["maxTries"] = 3.into();
    payload.to_string().into_bytes()
}

#[tokio::test]
async fn an_exception_that_is_named_fails_the_job_whatever_tries_it_has_left() {
    for (pattern, runs) in [("/^Artisand.HandlerError: told/", 1), ("/other/", 3)] {
        let counting = Counting::default();
        counting.throws.store(true, Ordering::SeqCst);
        let exceptions = Exceptions::new([Pattern::parse(pattern).unwrap()]);
        let middleware = FailOnException::when(move |error| exceptions.include(error));
        let handler = handler::function(counting.handler()).with_middleware(middleware);
        let queue = Arc::new(MemoryQueue::new(None));
        queue.push(&queue_name(), &[with_tries(&[])]).await.unwrap();
        Worker::new(Arc::clone(&queue), router(handler), options(SOON))
            .run(&Control::new())
            .await;
        assert_eq!(counting.runs(), runs, "{pattern}");
        let failed = queue.spool(Spool::FailedJobs);
        assert_eq!(failed.len(), 1, "{pattern}");
        let record = String::from_utf8(failed[0].clone()).unwrap();
        assert!(record.contains("told to"), "{record}");
    }
}

#[tokio::test]
async fn a_job_goes_back_while_a_property_of_it_is_true() {
    let counting = Counting::default();
    for (busy, delayed) in [("b:1", 1), ("b:0", 0)] {
        let middleware = Release::when_property(
            serde_json::from_value(json!("{busy}")).unwrap(),
            Duration::from_secs(60),
        );
        let handler = handler::function(counting.handler()).with_middleware(middleware);
        let job = with_tries(&[&format!("s:4:\"busy\";{busy};")]);
        let (_, sizes) = run(&Services::default(), handler, &[job]).await;
        assert_eq!(sizes.delayed, delayed, "{busy}");
    }
    assert_eq!(counting.runs(), 1);
}

#[tokio::test]
async fn a_job_that_is_kept_out_goes_back_and_its_attempt_may_not_count() {
    let store = Store::start();
    let cache = store.services.middleware.cache.clone().unwrap();
    let name = "laravel-queue-overlap:App\\Jobs\\A:k";
    let theirs = cache.lock(name, "theirs", Duration::ZERO);
    assert!(theirs.acquire().await.unwrap());
    let counting = Counting::default();
    for (middleware, attempts) in [(overlap(), 1), (overlap().without_spending_attempts(), 0)] {
        let queue = Arc::new(MemoryQueue::new(None));
        queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
        let middleware = middleware.release_after(Duration::from_secs(60));
        let handler = handler::function(counting.handler()).with_middleware(middleware);
        Worker::new(Arc::clone(&queue), router(handler), options(SOON))
            .with_services(store.services.clone())
            .run(&Control::new())
            .await;
        assert_eq!(queue.sizes(&queue_name()).await.unwrap().delayed, 1);
        let far = artisand::time::UnixSeconds(i64::MAX / 2);
        let request = artisand::queue::PopRequest {
            queues: &[queue_name()],
            max: std::num::NonZeroUsize::MIN,
            now: far,
            woken: &[],
            selection: None,
            thorough: false,
        };
        let popped = queue.pop(request).await.unwrap().jobs.remove(0);
        let element: serde_json::Value = serde_json::from_slice(&popped.payload).unwrap();
        assert_eq!(element["attempts"], attempts);
    }
    assert_eq!(counting.runs(), 0);
    let handler = handler::function(counting.handler()).with_middleware(overlap().dont_release());
    let (_, sizes) = run(&store.services, handler, &[payload(1, &[])]).await;
    assert_eq!((counting.runs(), sizes), (0, Sizes::default()));
    // Another owner's lock must not be freed.
    assert_eq!(
        cache
            .lock(name, "x", Duration::ZERO)
            .current_owner()
            .await
            .unwrap()
            .as_deref(),
        Some("theirs")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_lock_of_a_blocking_function_is_held_until_it_returns() {
    let store = Store::start();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let handler = handler::blocking(move |_: IgnoredAny, _| {
        // Ends when the test allows it, long after the timeout.
        let _ = gone.lock().unwrap().recv();
        Ok::<(), BoxError>(())
    });
    let handler = handler.with_middleware(overlap().expires_after(Duration::from_secs(4)));
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
    // The lock has to be taken until then.
    let options = options(Duration::from_secs(4));
    let worker = Worker::new(queue, router(handler), options).with_services(store.services.clone());
    let report = worker.run(&Control::new()).await;
    assert_eq!(report.jobs_processed, 1);
    // Time is the subject: longer than the lock would live without being renewed.
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(store.is_locked(), "{:?}", store.keys());
    assert_eq!(store.services.middleware.held.len(), 1);
    go.send(()).unwrap();
    tokio::task::spawn_blocking(move || {
        eventually("the lock is free", SOON, || {
            store.keys().is_empty().then_some(())
        });
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_lock_is_renewed_while_a_handler_blocks_the_runtime_of_the_jobs() {
    let mut store = Store::start();
    let limit = |_: &Value| {
        Ok(vec![Limit {
            max: 100,
            per: Duration::from_secs(3600),
            by: String::new(),
        }])
    };
    let limiters = &mut store.services.middleware.limiters;
    limiters.insert("all".into(), Limiter::new(limit));
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let handler = handler::function(move |_: IgnoredAny, _: JobContext| {
        // It keeps its thread until the test lets it go on.
        let _ = gone.lock().unwrap().recv();
        std::future::ready(Ok::<(), BoxError>(()))
    });
    // The limiter is the first that needs the connection, which the lock shares.
    let handler = handler.with_middleware(RateLimited::new("all"));
    let handler = handler.with_middleware(overlap().expires_after(Duration::from_secs(4)));
    let mut overseer = tokio::runtime::Builder::new_multi_thread();
    let overseer = overseer.worker_threads(1).enable_all().build().unwrap();
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
    let worker = Worker::new(queue, router(handler), options(SOON))
        .with_services(store.services.clone())
        .with_overseer(overseer.handle().clone());
    let working = tokio::spawn(async move { worker.run(&Control::new()).await });
    let mut least = i64::MAX;
    eventually("the lock is renewed", SOON, || {
        let key = b"p:laravel-queue-overlap:App\\Jobs\\A:k";
        let left: i64 = store.server.query(&[b"PTTL", key]);
        let is_renewed = left > least;
        if left > 0 {
            least = least.min(left);
        }
        is_renewed.then_some(())
    });
    go.send(()).unwrap();
    assert_eq!(working.await.unwrap().jobs_processed, 1);
    overseer.shutdown_background();
    let is_lock = |key: &String| key.contains("overlap");
    assert!(!store.keys().iter().any(is_lock), "{:?}", store.keys());
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_a_process_frees_what_is_still_held() {
    let store = Store::start();
    let (go, gone) = std::sync::mpsc::channel::<()>();
    let gone = Mutex::new(gone);
    let handler = handler::blocking(move |_: IgnoredAny, _| {
        // Goes on long after its timeout: it ends with the test.
        let _ = gone.lock().unwrap().recv();
        Ok::<(), BoxError>(())
    });
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
    // The lock has to be taken until then.
    let options = options(Duration::from_secs(4));
    let handler = handler.with_middleware(overlap());
    let worker = Worker::new(queue, router(handler), options).with_services(store.services.clone());
    worker.run(&Control::new()).await;
    assert!(store.is_locked(), "{:?}", store.keys());
    assert_eq!(store.services.middleware.held.free_all(SOON).await, 0);
    assert!(store.keys().is_empty() && store.services.middleware.held.is_empty());
    drop(go);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_could_not_be_freed_is_freed_when_the_store_is_back() {
    let mut store = Store::start();
    let services = store.services.clone();
    let started = Arc::new(tokio::sync::Notify::new());
    let go = Arc::new(tokio::sync::Notify::new());
    let handler = {
        let (started, go) = (Arc::clone(&started), Arc::clone(&go));
        handler::function(move |_: IgnoredAny, _| {
            let (started, go) = (Arc::clone(&started), Arc::clone(&go));
            async move {
                started.notify_one();
                go.notified().await;
                Ok::<(), BoxError>(())
            }
        })
    };
    let handler = handler.with_middleware(overlap());
    let running = tokio::spawn(async move { run(&services, handler, &[payload(1, &[])]).await });
    started.notified().await;
    // It comes back with the lock: one that is put back by hand may come after the worker's next attempt to free it.
    store.server.query::<()>(&[b"SAVE"]);
    store.server.stop();
    go.notify_one();
    let (_, sizes) = running.await.unwrap();
    assert_eq!(sizes, Sizes::default(), "the job is done all the same");
    store.server.restart();
    let loaded: String = store.server.query(&[b"INFO", b"persistence"]);
    assert!(
        loaded.contains("rdb_last_load_keys_loaded:1\r\n"),
        "{loaded}"
    );
    tokio::task::spawn_blocking(move || {
        eventually("the lock is free", SOON, || {
            store.keys().is_empty().then_some(())
        });
    })
    .await
    .unwrap();
}

/// The request for the lock is held up on its way, and its connection is lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_taken_after_its_job_has_ended_is_freed() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port());
    let store = Store::reached_by(proxy.port, server);
    let cache = store.services.middleware.cache.clone().unwrap();
    // It opens the connection, so that the next request is that for the lock.
    cache.get("k").await.unwrap();
    proxy.set(Mode::Late);
    let handler = handler::function(|_: IgnoredAny, _: JobContext| {
        std::future::ready(Ok::<(), BoxError>(()))
    });
    let handler = handler.with_middleware(overlap());
    run(&store.services, handler, &[payload(1, &[])]).await;
    assert!(store.keys().is_empty(), "{:?}", store.keys());
    assert!(store.services.middleware.held.is_empty());
    proxy.set(Mode::Pass);
    tokio::task::spawn_blocking(move || {
        eventually("the lock was taken, and is free", SOON, || {
            let stats: String = store.server.query(&[b"INFO", b"commandstats"]);
            let was_taken = stats.contains("cmdstat_set:");
            (was_taken && store.keys().is_empty()).then_some(())
        });
    })
    .await
    .unwrap();
}

#[tokio::test]
async fn exceptions_and_panics_are_throttled_alike() {
    let store = Store::start();
    let counting = Counting::default();
    counting.throws.store(true, Ordering::SeqCst);
    let hour = Duration::from_secs(3600);
    let throttle = || ThrottlesExceptions::new(2, hour).backoff(hour);
    let jobs = [payload(1, &[]), payload(2, &[]), payload(3, &[])];
    for middleware in [throttle(), throttle().with_redis()] {
        counting.runs.store(0, Ordering::SeqCst);
        let handler = handler::function(counting.handler()).with_middleware(middleware);
        let (_, sizes) = run(&store.services, handler, &jobs).await;
        assert_eq!((counting.runs(), sizes.delayed), (2, 3));
        counting.throws.store(false, Ordering::SeqCst);
        counting.panics.store(true, Ordering::SeqCst);
    }
    // A Redis connection by another name counts on its own server.
    let other = RedisServer::start();
    let mut services = store.services.clone();
    services
        .middleware
        .redis
        .insert("counters".into(), Ok(open(other.port())));
    services
        .middleware
        .redis
        .insert("broken".into(), Err("no host".into()));
    let before = store.keys();
    counting.runs.store(0, Ordering::SeqCst);
    let handler = handler::function(counting.handler());
    let handler = handler.with_middleware(throttle().on_redis("counters"));
    let (_, sizes) = run(&services, handler, &jobs).await;
    assert_eq!((counting.runs(), sizes.delayed), (2, 3));
    assert_eq!(store.keys(), before);
    assert_eq!(other.query::<Vec<String>>(&[b"KEYS", b"*"]).len(), 1);
    for (name, why) in [
        ("broken", "no host"),
        ("missing", "there are: broken, counters, default"),
    ] {
        let error = throttle().on_redis(name).check(&services).unwrap_err();
        assert!(error.to_string().contains(why), "{error}");
    }
    // Other exceptions stay exceptions of their job; a success resets the count.
    store.server.query::<()>(&[b"FLUSHALL"]);
    let never = throttle().when(|error| error.to_string() == "another");
    let handler = handler::function(counting.handler()).with_middleware(never);
    run(&store.services, handler, &jobs[..1]).await;
    assert!(store.keys().is_empty(), "{:?}", store.keys());
    for (is_failing, keys) in [(true, 2), (false, 0)] {
        counting.panics.store(is_failing, Ordering::SeqCst);
        let handler = handler::function(counting.handler()).with_middleware(throttle());
        run(&store.services, handler, &jobs[..1]).await;
        assert_eq!(store.keys().len(), keys, "{:?}", store.keys());
    }
    counting.panics.store(true, Ordering::SeqCst);
    let deleting = throttle().delete_when(|_| true);
    let handler = handler::function(counting.handler()).with_middleware(deleting);
    let (_, sizes) = run(&store.services, handler, &jobs[..1]).await;
    assert_eq!(sizes, Sizes::default());
}

#[tokio::test]
async fn limits_are_counted_by_properties() {
    let mut store = Store::start();
    let counting = Counting::default();
    let limit = |job: &Value| {
        let by = "{user.id}".parse::<Template>()?.render(job)?;
        Ok(vec![Limit {
            max: 1,
            per: Duration::from_secs(3600),
            by,
        }])
    };
    store
        .services
        .middleware
        .limiters
        .insert("backups".into(), Limiter::new(limit));
    let handler = || {
        let limited = RateLimited::new("backups").without_spending_attempts();
        handler::function(counting.handler()).with_middleware(limited)
    };
    router(handler()).check(&store.services).unwrap();
    let user = |id: u32| format!("s:4:\"user\";a:1:{{s:2:\"id\";i:{id};}}");
    let jobs = [
        payload(1, &[&user(1)]),
        payload(2, &[&user(1)]),
        payload(3, &[&user(2)]),
    ];
    let (_, sizes) = run(&store.services, handler(), &jobs).await;
    assert_eq!((counting.runs(), sizes.delayed), (2, 1));
    let missing = router(handler()).check(&Services::default()).unwrap_err();
    let missing = std::error::Error::source(&missing.1).unwrap().to_string();
    assert!(missing.contains("[limiters.backups]"), "{missing}");
}

#[tokio::test]
async fn skipped_jobs_count_as_done() {
    let store = Store::start();
    let counting = Counting::default();
    let is_first =
        |context: &JobContext| context.uuid().is_some_and(|uuid| uuid.as_str() == "uuid-1");
    let handler = handler::function(counting.handler()).with_middleware(Skip::when(is_first));
    let jobs = [payload(1, &[]), payload(2, &[])];
    let (report, sizes) = run(&store.services, handler, &jobs).await;
    assert_eq!((report.jobs_processed, counting.runs()), (2, 1));
    assert_eq!(sizes, Sizes::default());
}

#[tokio::test]
async fn jobs_of_a_cancelled_batch_are_skipped() {
    let mut services = Services::default();
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut options = DatabaseOptions::new("app", DatabaseKind::Sqlite);
    file.path()
        .to_str()
        .unwrap()
        .clone_into(&mut options.database);
    let database = Database::new(&options).unwrap();
    #[rustfmt::skip]
    let statements = [
        "create table job_batches (id text primary key, name text, total_jobs integer, pending_jobs integer, \
         failed_jobs integer, failed_job_ids text, options text, cancelled_at integer, created_at integer, finished_at integer)",
        "insert into job_batches values ('cancelled', 'n', 9, 9, 0, '[]', 'a:0:{}', 5, 5, null), ('running', 'n', 9, 9, 0, '[]', 'a:0:{}', null, 5, null)",
    ];
    for sql in statements {
        database.execute(sql, &[]).await.unwrap();
    }
    let version = services.version;
    let batches = Batches::new(database, "job_batches", version, Clock::System);
    services.batches = Some(batches);
    let counting = Counting::default();
    let handler = handler::function(counting.handler());
    let skip: Arc<dyn Middleware> = Arc::new(SkipIfBatchCancelled);
    let pipeline: Pipeline = [skip].into_iter().collect();
    pipeline.check(&services).unwrap();
    let services = Arc::new(services);
    let batch = |id: &str| format!("s:7:\"batchId\";s:{}:\"{id}\";", id.len());
    for (properties, runs) in [
        (vec![], 1),
        (vec![batch("running")], 2),
        (vec![batch("cancelled")], 2),
        (vec![batch("gone")], 3),
    ] {
        let properties: Vec<&str> = properties.iter().map(String::as_str).collect();
        let body = payload(1, &properties);
        let info = JobInfo {
            connection: "redis".into(),
            queue: queue_name(),
            attempts: 1,
            payload: Arc::new(Payload::parse(&body).unwrap()),
            body: body.into(),
            reserved: Arc::default(),
            trace: None,
        };
        let token = CancellationToken::new();
        let context = JobContext::new(Arc::new(info), token, Arc::clone(&services));
        pipeline.run(&context, &handler).await.unwrap();
        assert_eq!(counting.runs(), runs, "{properties:?}");
    }
}

#[tokio::test]
async fn a_key_without_text_keeps_the_job_from_running() {
    let store = Store::start();
    let counting = Counting::default();
    let middleware = WithoutOverlapping::new("{podcast.id}".parse().unwrap());
    let handler = handler::function(counting.handler()).with_middleware(middleware);
    let queue = Arc::new(MemoryQueue::new(None));
    queue.push(&queue_name(), &[payload(1, &[])]).await.unwrap();
    let options = options(SOON);
    Worker::new(Arc::clone(&queue), router(handler), options)
        .with_services(store.services.clone())
        .run(&Control::new())
        .await;
    assert_eq!(counting.runs(), 0);
    assert!(store.keys().is_empty(), "{:?}", store.keys());
    let record = String::from_utf8(queue.spool(Spool::FailedJobs).remove(0)).unwrap();
    assert!(record.contains("the job has no `{podcast.id}`"), "{record}");
}

#[tokio::test]
async fn jobs_with_middleware_for_php_are_left_for_php() {
    let store = Store::start();
    let counting = Counting::default();
    let middleware = |inner: &str| format!("s:10:\"middleware\";a:1:{{i:0;{inner}}}");
    let of = |class: &str, pairs: &str, count: u32| {
        let class = format!("Illuminate\\Queue\\Middleware\\{class}");
        middleware(&format!(
            "O:{}:\"{class}\":{count}:{{{pairs}}}",
            class.len()
        ))
    };
    #[rustfmt::skip]
    let rows = [
        (of("Skip", "s:7:\"\0*\0skip\";b:1;", 1), 0, 0),
        (of("Skip", "s:7:\"\0*\0skip\";b:0;", 1), 1, 0),
        (of("Release", "s:10:\"\0*\0release\";b:0;", 1), 1, 0),
        ("s:10:\"middleware\";N;".to_owned(), 1, 0),
        ("s:10:\"middleware\";a:0:{}".to_owned(), 1, 0),
        (of("ThrottlesExceptions", "s:15:\"\0*\0whenCallback\";a:0:{}", 1), 1, 0),
        // With a callback; with an unknown limiter; the app's own; a name; with batches that cannot be read.
        (of("ThrottlesExceptions", "s:15:\"\0*\0whenCallback\";s:1:\"f\";", 1), 0, 1),
        (of("RateLimited", "s:14:\"\0*\0limiterName\";s:1:\"x\";", 1), 0, 1),
        (middleware("O:5:\"App\\M\":0:{}"), 0, 1),
        (middleware("s:8:\"throttle\";"), 0, 1),
        (of("SkipIfBatchCancelled", "", 0), 0, 1),
        ("s:10:\"middleware\";s:1:\"x\";".to_owned(), 0, 1),
        ("s:13:\"debounceOwner\";s:1:\"x\";".to_owned(), 0, 1),
        ("s:13:\"debounceOwner\";s:0:\"\";".to_owned(), 1, 0),
    ];
    for (property, runs, left) in rows {
        counting.runs.store(0, Ordering::SeqCst);
        let handler = handler::function(counting.handler());
        let (_, sizes) = run(&store.services, handler, &[payload(1, &[&property])]).await;
        assert_eq!((counting.runs(), sizes.pending), (runs, left), "{property}");
    }
}

#[tokio::test]
async fn a_missing_model_ends_its_job_unless_a_list_of_exceptions_names_it() {
    let store = Store::start();
    let missing = || {
        handler::function(|_: IgnoredAny, _: JobContext| async {
            let class = "App\\Models\\A".to_owned();
            Err::<(), BoxError>(ModelNotFound { class, key: None }.into())
        })
    };
    let named = Exceptions::new([Pattern::parse("*\\ModelNotFoundException").unwrap()]);
    let throttle = || ThrottlesExceptions::new(2, SOON).backoff(SOON);
    let rows = [
        (throttle(), false),
        (
            throttle().when(|error| error.to_string() == "another"),
            false,
        ),
        (throttle().when(move |error| named.include(error)), true),
    ];
    for (throttle, is_counted) in rows {
        store.server.query::<()>(&[b"FLUSHALL"]);
        let handler = missing().with_middleware(throttle);
        let (_, sizes) = run(&store.services, handler, &[payload(1, &[])]).await;
        assert_eq!(sizes.delayed > 0, is_counted);
        assert_eq!(!store.keys().is_empty(), is_counted, "{:?}", store.keys());
    }
}

#[tokio::test]
async fn a_job_that_fails_because_it_is_for_php_says_so() {
    let registry =
        Registry::new().with("handler", handler::function(Counting::default().handler()));
    let any = Pattern::parse("*").unwrap();
    let mapping = Mapping::new(any, HandlerChoice::Named("handler".into()));
    let router = Router::new(vec![mapping], UnmappedPolicy::Fail, &registry).unwrap();
    let queue = Arc::new(MemoryQueue::new(None));
    let job = payload(1, &["s:10:\"middleware\";a:1:{i:0;O:5:\"App\\M\":0:{}}"]);
    queue.push(&queue_name(), &[job]).await.unwrap();
    Worker::new(Arc::clone(&queue), router, options(SOON))
        .run(&Control::new())
        .await;
    let record = String::from_utf8(queue.spool(Spool::FailedJobs).remove(0)).unwrap();
    assert!(record.contains("which only PHP can run"), "{record}");
}
