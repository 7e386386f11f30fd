//! The end of a job, on the queue in memory: chains, refusals, follow-up records.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use artisand::app::Manifest;
use artisand::batch::Batches;
use artisand::cache::{
    Cache, DatabaseStore, DatabaseStoreOptions, FileStore, FileStoreOptions, Lock, Stores,
};
use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Redis, RedisOptions};
use artisand::failed::FailedJob;
use artisand::handler::{self, BoxError, Handler, JobContext, Services};
use artisand::payload::Pattern;
use artisand::payload::{CALL_QUEUED_HANDLER, Command, Encrypter, Payload};
use artisand::php::{Array, ClassName, Object, Value as Php};
use artisand::queue::{
    Connections, Destination, MemoryQueue, Queue as _, QueueName, RedisQueue, RedisQueueOptions,
    Spool, Tagging,
};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use serde::de::IgnoredAny;
use serde_json::{Value, json};

use crate::harness::process::until;
use crate::harness::redis::RedisServer;

/// Many times longer than needed: the machine may be busy with other tests.
const SOON: Duration = Duration::from_secs(60);

const NOW: UnixSeconds = UnixSeconds(1_760_000_000);

fn object(class: &str) -> Object {
    Object::new(ClassName::new(class).unwrap())
}

fn text(object: Object) -> Vec<u8> {
    Php::Object(object).to_bytes()
}

/// A job of class `First` whose chain holds these.
fn chained(commands: Vec<Vec<u8>>) -> Object {
    let commands: Array = commands.into_iter().map(Php::String).collect();
    object("First").public("chained", commands)
}

fn payload(command: Object) -> Vec<u8> {
    let class = command.class.to_string();
    let command = String::from_utf8(text(command)).unwrap();
    let payload = json!({
        "uuid": "b1f1b5c1-8a4e-4c53-9d0a-64d0c3f7a1de", "displayName": class,
        "job": CALL_QUEUED_HANDLER, "maxTries": 1,
        "data": {"commandName": class, "command": command}, "id": "id", "attempts": 0,
    });
    payload.to_string().into_bytes()
}

/// A manifest with one class, `Next`, with these facts.
fn manifest(facts: &Value) -> Manifest {
    let mut class = json!({
        "kind": "job", "file": "Next.php",
        "flags": {"queued": true}, "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
        "uses": ["Illuminate\\Bus\\Queueable"],
    });
    for (name, value) in facts.as_object().unwrap() {
        class[name] = value.clone();
    }
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0,
        "paths": {"base": "/nowhere", "storage": "/nowhere"}, "config": {},
        "classes": {"Next": class},
    });
    Manifest::parse(Path::new("artisand.json"), manifest.to_string().as_bytes()).unwrap()
}

fn connections() -> Connections {
    let destination = |queue: &str| Destination {
        default_queue: queue.into(),
        queues: Err("it is in memory".to_owned()),
    };
    let all = [
        ("redis".to_owned(), destination("usual")),
        ("table".to_owned(), destination("default")),
    ];
    Connections::new("redis", all)
}

fn services(manifest: Option<Manifest>, has_key: bool) -> Services {
    let mut services = Services::default();
    services.version = "13.31.0".parse().unwrap();
    "UTC".clone_into(&mut services.timezone);
    services.connections = Some(connections());
    services.manifest = manifest.map(Arc::new);
    if has_key {
        let encrypter = Encrypter::new(services.version, &"k".repeat(32), "AES-256-CBC");
        services.encrypter = Some(Arc::new(encrypter.unwrap()));
    }
    services
}

fn nothing() -> impl Handler {
    handler::function(|_: IgnoredAny, _: JobContext| async { Ok::<(), BoxError>(()) })
}

/// Runs the jobs in the queue `default` and returns the queue.
async fn run(
    jobs: Vec<Vec<u8>>,
    handler: impl Handler,
    services: Services,
    unmapped: UnmappedPolicy,
) -> Arc<MemoryQueue> {
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    queue.push(&"default".into(), &jobs).await.unwrap();
    let registry = Registry::new().with("handler", handler);
    let mapping = Mapping::new(
        Pattern::parse("First").unwrap(),
        HandlerChoice::Named("handler".into()),
    );
    let router = Router::new(vec![mapping], unmapped, &registry).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        clock: Clock::Fixed(NOW),
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(&queue), router, options).with_services(services);
    let control = Control::new();
    let running = worker.run(&control);
    let report = tokio::time::timeout(Duration::from_secs(60), running).await;
    assert_eq!(report.unwrap().unsettled, 0);
    queue
}

/// Pops the jobs of a queue.
async fn take(queue: &MemoryQueue, name: &str) -> Vec<Payload> {
    let queues: [QueueName; 1] = [name.into()];
    let request = artisand::queue::PopRequest {
        queues: &queues,
        max: std::num::NonZeroUsize::new(99).unwrap(),
        now: UnixSeconds(NOW.0 + 1000),
        woken: &[],
        selection: None,
        thorough: false,
    };
    let popped = queue.pop(request).await.unwrap();
    let parse = |job: &artisand::queue::ReservedJob| Payload::parse(&job.payload).unwrap();
    popped.jobs.iter().map(parse).collect()
}

fn failures(queue: &MemoryQueue) -> Vec<String> {
    let records = queue.spool(Spool::FailedJobs);
    let exception = |record: &Vec<u8>| {
        let job: FailedJob = serde_json::from_slice(record).unwrap();
        job.exception.lines().next().unwrap().to_owned()
    };
    records.iter().map(exception).collect()
}

fn command_of(payload: &Payload) -> Value {
    let command = Command::of(payload).unwrap().unwrap();
    serde_json::from_str(&command.to_value().unwrap().to_json()).unwrap()
}

#[tokio::test(start_paused = true)]
async fn the_next_step_has_what_its_class_says() {
    let facts = json!({"limits": {"tries": 7, "backoff": [1, 5], "timeout": 30}});
    let next = object("Next").public("n", 1).public("queue", "own");
    let first = chained(vec![text(next), text(object("Last"))]);
    let services = services(Some(manifest(&facts)), false);
    let queue = run(
        vec![payload(first)],
        nothing(),
        services,
        UnmappedPolicy::Leave,
    )
    .await;
    let pushed = take(&queue, "own").await;
    assert_eq!(pushed.len(), 1);
    assert_eq!(pushed[0].limits.max_tries, Some(7));
    assert_eq!(pushed[0].limits.timeout, Some(Duration::from_secs(30)));
    assert_eq!(&*pushed[0].display_name, "Next");
    let expected =
        json!({"$class": "Next", "n": 1, "queue": "own", "chained": ["O:4:\"Last\":0:{}"]});
    assert_eq!(command_of(&pushed[0]), expected);
    assert!(take(&queue, "default").await.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_step_without_a_queue_goes_to_that_of_its_connection() {
    let first = chained(vec![text(object("Next"))]);
    let services = services(Some(manifest(&json!({}))), false);
    let queue = run(
        vec![payload(first)],
        nothing(),
        services,
        UnmappedPolicy::Leave,
    )
    .await;
    assert_eq!(take(&queue, "usual").await.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_step_that_only_php_can_take_is_carried_by_a_closure() {
    let to_table = object("Next").public("connection", "table");
    let method = json!({"limits": {"tries": {"$method": true}}});
    #[rustfmt::skip]
    let rows = [
        // The next job, and the known facts about it.
        (object("Next"), None),
        (object("Unknown"), Some(manifest(&json!({})))),
        (object("Next"), Some(manifest(&method))),
        (to_table, Some(manifest(&json!({})))),
        (object("Illuminate\\Queue\\CallQueuedClosure"), Some(manifest(&json!({})))),
        (object("Illuminate\\Bus\\ChainedBatch"), Some(manifest(&json!({})))),
    ];
    for (next, manifest) in rows {
        let place = format!("{next:?}");
        let next = text(next);
        let first = chained(vec![next.clone()]).public("chainQueue", "chain");
        let mut services = services(manifest, true);
        services.php_queue = Some("php".into());
        let queue = run(
            vec![payload(first)],
            nothing(),
            services,
            UnmappedPolicy::Leave,
        )
        .await;
        let pushed = take(&queue, "php").await;
        assert_eq!(pushed.len(), 1, "{place}");
        let command = command_of(&pushed[0]);
        assert_eq!(
            command["$class"], "Illuminate\\Queue\\CallQueuedClosure",
            "{place}"
        );
        assert_eq!(
            command["chained"],
            json!([String::from_utf8(next).unwrap()]),
            "{place}"
        );
        assert_eq!(command["chainQueue"], "chain", "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_end_could_not_be_seen_to_is_not_run() {
    let with_chain = chained(vec![text(object("Unknown"))]);
    let with_batch = object("First").public("batchId", "a-batch");
    let callbacks: Array = [Php::from("strtoupper")].into_iter().collect();
    let caught = object("First").public("chainCatchCallbacks", callbacks);
    let plain = object("First");
    let rows = [(with_chain, 0), (with_batch, 0), (caught, 0), (plain, 1)];
    for (job, expected) in rows {
        let runs = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&runs);
        let handler = handler::function(move |_: IgnoredAny, _: JobContext| {
            counted.fetch_add(1, Ordering::Relaxed);
            async { Ok::<(), BoxError>(()) }
        });
        let place = format!("{job:?}");
        let services = services(None, false);
        let forward = UnmappedPolicy::Forward("php".into());
        let queue = run(vec![payload(job)], handler, services, forward).await;
        assert_eq!(runs.load(Ordering::Relaxed), expected, "{place}");
        assert_eq!(take(&queue, "php").await.len(), 1 - expected, "{place}");
    }
}

/// A payload with the context that `dispatch()` sends along with a unique job.
fn unique_payload() -> Vec<u8> {
    let mut payload: Value = serde_json::from_slice(&payload(object("First"))).unwrap();
    payload["illuminate:log:context"] = json!({"data": {}, "hidden": {
        "laravel_unique_job_cache_store": "s:5:\"store\";",
        "laravel_unique_job_key": "s:28:\"laravel_unique_job:First:one\";",
    }});
    payload.to_string().into_bytes()
}

#[tokio::test(start_paused = true)]
async fn a_unique_job_whose_lock_could_not_be_freed_is_not_run() {
    use artisand::cache::{Cache, Stores};
    let none = Stores::new("store", |_: &str| {
        Err::<Cache, BoxError>("of no kind".into())
    });
    let array = Stores::new("store", |_: &str| Ok::<_, BoxError>(Cache::unshared()));
    // The known cache stores, and the number of jobs that stay.
    for (stores, left) in [(None, 1), (Some(none), 1), (Some(array), 0)] {
        let place = format!("{stores:?}, {left} left");
        let mut services = services(Some(manifest_of_unique(&["First"])), true);
        services.stores = stores;
        let queue = run(
            vec![unique_payload()],
            nothing(),
            services,
            UnmappedPolicy::Leave,
        )
        .await;
        assert_eq!(take(&queue, "default").await.len(), left, "{place}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_refused_job_fails_with_the_reason_where_unmapped_jobs_fail() {
    let first = chained(vec![text(object("Unknown"))]);
    let services = services(None, true);
    let queue = run(
        vec![payload(first)],
        nothing(),
        services,
        UnmappedPolicy::Fail,
    )
    .await;
    let failures = failures(&queue);
    assert!(
        failures[0].contains("no queue is known that PHP serves: set `queue` under [php]"),
        "{failures:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_job_that_fails_without_a_mapping_calls_its_catch_callbacks_on_every_version() {
    // Of older versions, nothing says whether the class is unique.
    for version in ["8.83.27", "13.31.0"] {
        let mut services = services(None, true);
        services.version = version.parse().unwrap();
        services.php_queue = Some("closures".into());
        let callbacks: Array = [Php::from("strtoupper")].into_iter().collect();
        let caught = object("Second").public("chainCatchCallbacks", callbacks);
        let jobs = vec![payload(caught)];
        let queue = run(jobs, nothing(), services, UnmappedPolicy::Fail).await;
        assert_eq!(failures(&queue).len(), 1, "{version}");
        assert_eq!(take(&queue, "closures").await.len(), 1, "{version}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_handler_adds_to_its_chain() {
    let handler = handler::function(|_: IgnoredAny, context: JobContext| async move {
        context.append_to_chain(object("Next").public("n", 3));
        context.prepend_to_chain(object("Next").public("n", 2));
        context.prepend_to_chain(object("Next").public("n", 1));
        Ok::<(), BoxError>(())
    });
    let services = services(Some(manifest(&json!({}))), false);
    let first = chained(vec![text(object("Next").public("n", 9))]);
    let queue = run(
        vec![payload(first)],
        handler,
        services,
        UnmappedPolicy::Leave,
    )
    .await;
    let pushed = take(&queue, "usual").await;
    let expected = json!({
        "$class": "Next", "n": 1,
        "chained": ["O:4:\"Next\":1:{s:1:\"n\";i:2;}", "O:4:\"Next\":1:{s:1:\"n\";i:9;}", "O:4:\"Next\":1:{s:1:\"n\";i:3;}"],
    });
    assert_eq!(command_of(&pushed[0]), expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_follow_fails_the_one_that_asks_for_it() {
    let handler = handler::function(|_: IgnoredAny, context: JobContext| async move {
        context.append_to_chain(object("Unknown"));
        Ok::<(), BoxError>(())
    });
    let services = services(Some(manifest(&json!({}))), false);
    let jobs = vec![payload(object("First"))];
    let queue = run(jobs, handler, services, UnmappedPolicy::Leave).await;
    let failures = failures(&queue);
    assert!(
        failures[0].starts_with("Artisand\\ChainError: the job added to the chain needs PHP"),
        "{failures:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn a_chain_ends_with_a_failure_and_waits_for_a_retry() {
    let rows = [("release", 1, 0), ("fail", 0, 1), ("throw", 0, 1)];
    for (verb, left, failed) in rows {
        let handler = handler::function(move |_: IgnoredAny, context: JobContext| async move {
            match verb {
                "release" => context.release(Duration::from_secs(500)),
                "fail" => context.fail("asked for"),
                _ => return Err::<(), BoxError>("thrown".into()),
            }
            Ok(())
        });
        let services = services(Some(manifest(&json!({}))), false);
        let first = chained(vec![text(object("Next"))]);
        let queue = run(
            vec![payload(first)],
            handler,
            services,
            UnmappedPolicy::Leave,
        )
        .await;
        assert!(take(&queue, "usual").await.is_empty(), "{verb}");
        assert_eq!(take(&queue, "default").await.len(), left, "{verb}");
        assert_eq!(failures(&queue).len(), failed, "{verb}");
    }
}

#[tokio::test]
async fn the_lock_of_a_job_that_fails_without_being_run_is_freed() {
    let mut chained: Value = serde_json::from_slice(&unique_payload()).unwrap();
    let batched = object("First").public("batchId", "a-batch");
    chained["data"]["command"] = String::from_utf8(text(batched)).unwrap().into();
    let mut encrypted = chained.clone();
    let other = Encrypter::new("13.31.0".parse().unwrap(), &"o".repeat(32), "AES-256-CBC").unwrap();
    encrypted["data"]["command"] = other.encrypt_command(b"O:5:\"First\":0:{}").into();
    // No queue is known that PHP serves, and the key is unknown.
    for payload in [chained, encrypted] {
        let directory = tempfile::tempdir().unwrap();
        let mut services = services(None, true);
        let stores = file_stores(directory.path());
        let cache = stores.get("store").unwrap();
        let lock = cache.lock(
            "laravel_unique_job:First:one",
            "me",
            Duration::from_secs(60),
        );
        assert!(lock.acquire().await.unwrap());
        services.stores = Some(stores);
        let job = payload.to_string().into_bytes();
        let queue = run(vec![job], nothing(), services, UnmappedPolicy::Fail).await;
        assert_eq!(failures(&queue).len(), 1, "{payload}");
        assert_eq!(lock.current_owner().await.unwrap(), None, "{payload}");
    }
}

#[tokio::test(start_paused = true)]
async fn records_that_cannot_be_followed_keep_no_other_from_it() {
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    let foreign = b"not ours".to_vec();
    let unlock = json!({"do": "unlock", "store": "file", "name": "lock", "owner": "me"});
    let count =
        json!({"do": "count", "batch": "b", "uuid": "u", "outcome": "succeeded", "queue": "q"});
    for record in [
        foreign.clone(),
        count.to_string().into(),
        unlock.to_string().into(),
    ] {
        queue.spool_record(Spool::FollowUps, record);
    }
    let directory = tempfile::tempdir().unwrap();
    let stores = file_stores(directory.path());
    let lock = stores
        .get("file")
        .unwrap()
        .lock("lock", "me", Duration::from_secs(60));
    assert!(lock.acquire().await.unwrap());
    let mut services = services(None, true);
    services.stores = Some(stores);
    let registry = Registry::new();
    let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &registry).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(&queue), router, options).with_services(services);
    worker.run(&Control::new()).await;
    assert_eq!(lock.current_owner().await.unwrap(), None);
    let left = queue.spool(Spool::FollowUps);
    assert_eq!(left.len(), 2, "{left:?}");
    assert_eq!(left[0], foreign);
}

/// On a cluster each queue has a list of its own: the record that frees a lock may be done after the one that wants it.
#[tokio::test]
async fn a_step_whose_lock_another_list_is_about_to_free_is_not_dropped() {
    let server = RedisServer::start();
    let mut redis = RedisOptions::default();
    redis.apply_url(&server.url()).unwrap();
    let tagged = RedisQueueOptions {
        retry_after: Some(Duration::from_secs(90)),
        tagging: Some(Tagging::Braces),
        ..RedisQueueOptions::default()
    };
    let queue = Arc::new(RedisQueue::new(Redis::new(&redis).unwrap(), tagged));
    let directory = tempfile::tempdir().unwrap();
    let stores = file_stores(directory.path());
    let of_another = stores
        .get("file")
        .unwrap()
        .lock("lock", "another", Duration::from_secs(60));
    assert!(of_another.acquire().await.unwrap());
    let wanted = json!({"store": "file", "name": "lock", "owner": "me", "seconds": 60});
    let push = json!({
        "do": "push", "connection": "redis", "queue": "b",
        "payload": String::from_utf8(payload(object("Next"))).unwrap(),
        "due": null, "id": "1", "lock": wanted,
    });
    let key = b"artisand:follow-ups:{b}";
    server.query::<()>(&[b"RPUSH", key, push.to_string().as_bytes()]);
    let mut services = services(None, true);
    services.stores = Some(stores);
    let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &Registry::new()).unwrap();
    let options = WorkerOptions {
        queues: vec!["b".into()],
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(&queue), router, options).with_services(services);
    let control = Control::new();
    let stopping = control.clone();
    // Each look at the list begins with a lease.
    let looks = || {
        let stats: String = server.query(&[b"INFO", b"commandstats"]);
        let calls = stats.split_once("cmdstat_setex:calls=");
        let calls = calls.and_then(|(_, rest)| rest.split_once(','));
        calls.map_or(0, |(calls, _)| calls.parse().unwrap())
    };
    let freeing = async {
        until("the list is looked at again", SOON, async || {
            looks() >= 5u64
        })
        .await;
        assert_eq!(server.query::<u64>(&[b"LLEN", key]), 1);
        assert!(of_another.release().await.unwrap());
        until("the job is pushed", SOON, async || {
            server.query::<u64>(&[b"LLEN", b"queues:{b}"]) == 1
        })
        .await;
        stopping.quit();
    };
    tokio::join!(worker.run(&control), freeing);
    assert_eq!(server.query::<u64>(&[b"LLEN", key]), 0);
}

/// A database in this directory, created with these statements.
pub(crate) async fn sqlite(directory: &Path, statements: &[&str]) -> Database {
    let path = directory.join("database.sqlite");
    std::fs::write(&path, "").unwrap();
    let options = DatabaseOptions {
        database: path.to_str().unwrap().into(),
        ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
    };
    let database = Database::new(&options).unwrap();
    for sql in statements {
        database.execute(sql, &[]).await.unwrap();
    }
    database
}

/// Stores of every name in this directory, but for one whose driver is not supported.
pub(crate) fn file_stores(path: &Path) -> Stores {
    let path = path.to_owned();
    Stores::new("file", move |name: &str| {
        if name == "memcached" {
            return Err(BoxError::from("its driver is not supported"));
        }
        let options = FileStoreOptions {
            directory: path.clone(),
            lock_directory: path.clone(),
            permission: None,
            separate_locks: true,
        };
        Ok(Cache::file(FileStore::new(options, Clock::System)))
    })
}

fn lock(stores: &Stores, class: &str) -> Lock {
    let name = format!("laravel_unique_job:{class}:");
    let store = stores.get("file").unwrap();
    store.lock(name, "me", Duration::from_secs(60))
}

/// A manifest in which these classes are unique.
fn manifest_of_unique(classes: &[&str]) -> Manifest {
    let class = json!({
        "kind": "job", "file": "Next.php",
        "flags": {"queued": true, "unique": true},
        "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
        "uses": ["Illuminate\\Bus\\Queueable"],
    });
    let classes: serde_json::Map<String, Value> = classes
        .iter()
        .map(|name| ((*name).to_owned(), class.clone()))
        .collect();
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0,
        "paths": {"base": "/nowhere", "storage": "/nowhere"}, "config": {},
        "classes": classes,
    });
    Manifest::parse(Path::new("artisand.json"), manifest.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_unique_job_may_follow_itself() {
    for has_owner in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let stores = file_stores(directory.path());
        let lock = lock(&stores, "First");
        assert!(lock.acquire().await.unwrap());
        let mut services = services(Some(manifest_of_unique(&["First"])), false);
        services.stores = Some(stores);
        let mut first = chained(vec![text(object("First").public("n", 2))]);
        if has_owner {
            first = first.public("uniqueLockOwner", "me");
        }
        let jobs = vec![payload(first)];
        let queue = run(jobs, nothing(), services, UnmappedPolicy::Leave).await;
        let pushed = take(&queue, "usual").await;
        assert_eq!(pushed.len(), 1, "{has_owner}");
        let owner = lock.current_owner().await.unwrap();
        assert_eq!(
            owner.as_deref(),
            command_of(&pushed[0])["uniqueLockOwner"].as_str(),
            "{has_owner}"
        );
        assert!(owner.is_some_and(|owner| owner != "me"), "{has_owner}");
    }
}

#[tokio::test]
async fn a_chain_waits_for_the_store_of_its_next_lock() {
    let directory = tempfile::tempdir().unwrap();
    let broken = directory.path().join("a-file");
    std::fs::write(&broken, "").unwrap();
    let mut services = services(Some(manifest_of_unique(&["Next"])), false);
    services.stores = Some(file_stores(&broken));
    let first = chained(vec![text(object("Next"))]);
    let jobs = vec![payload(first)];
    let queue = run(jobs, nothing(), services, UnmappedPolicy::Leave).await;
    assert!(take(&queue, "usual").await.is_empty());
    assert!(failures(&queue).is_empty());
    assert_eq!(queue.spool(Spool::FollowUps).len(), 1);
}

/// A unique job whose delay cannot be computed in this time zone.
fn in_a_day_on_mars(services: &mut Services) -> Object {
    "Mars/Crater".clone_into(&mut services.timezone);
    let mut day = object("DateInterval");
    for (unit, count) in [("y", 0), ("m", 0), ("d", 1), ("h", 0), ("i", 0), ("s", 0)] {
        day = day.public(unit, count);
    }
    let day = day.public("f", 0.0).public("invert", 0);
    object("Next").public("delay", Php::Object(day))
}

#[tokio::test]
async fn a_job_whose_chain_could_not_go_on_is_not_begun() {
    let directory = tempfile::tempdir().unwrap();
    let mut services = services(Some(manifest_of_unique(&["Next"])), false);
    services.stores = Some(file_stores(directory.path()));
    let next = in_a_day_on_mars(&mut services);
    let jobs = vec![payload(chained(vec![text(next)]))];
    let queue = run(jobs, nothing(), services, UnmappedPolicy::Leave).await;
    assert!(failures(&queue).is_empty());
    assert_eq!(take(&queue, "default").await.len(), 1);
}

#[tokio::test]
async fn no_lock_is_taken_if_its_job_cannot_be_pushed() {
    let directory = tempfile::tempdir().unwrap();
    let stores = file_stores(directory.path());
    let lock = lock(&stores, "Next");
    let mut services = services(Some(manifest_of_unique(&["Next"])), true);
    services.stores = Some(stores);
    services.php_queue = Some("php".into());
    let next = in_a_day_on_mars(&mut services);
    let jobs = vec![payload(chained(vec![text(next)]))];
    let queue = run(jobs, nothing(), services, UnmappedPolicy::Leave).await;
    assert_eq!(take(&queue, "php").await.len(), 1);
    assert_eq!(lock.current_owner().await.unwrap(), None);
}

/// A payload that says where the lock of its job is.
fn with_lock(command: Object, store: &str) -> Vec<u8> {
    let name = format!("laravel_unique_job:{}:", command.class);
    let mut payload: Value = serde_json::from_slice(&payload(command)).unwrap();
    let hidden = |value: &str| String::from_utf8(Php::from(value).to_bytes()).unwrap();
    payload["illuminate:log:context"] = json!({"data": [], "hidden": {
        "laravel_unique_job_cache_store": hidden(store),
        "laravel_unique_job_key": hidden(&name),
        "laravel_unique_job_lock_owner": hidden("me"),
    }});
    payload.to_string().into_bytes()
}

#[tokio::test]
async fn a_unique_job_whose_lock_cannot_be_freed_is_not_run() {
    let directory = tempfile::tempdir().unwrap();
    for (store, left) in [("file", 0), ("memcached", 1)] {
        let mut services = services(Some(manifest_of_unique(&["First"])), false);
        services.stores = Some(file_stores(directory.path()));
        let jobs = vec![with_lock(object("First"), store)];
        let forward = UnmappedPolicy::Forward("php".into());
        let queue = run(jobs, nothing(), services, forward).await;
        assert_eq!(take(&queue, "php").await.len(), left, "{store}");
    }
}

#[tokio::test]
async fn a_refused_job_that_fails_leaves_no_lock() {
    let unreadable = |payload: &[u8]| {
        let mut payload: Value = serde_json::from_slice(payload).unwrap();
        payload["data"]["command"] = "encrypted with a key that is gone".into();
        payload.to_string().into_bytes()
    };
    let with_chain = with_lock(chained(vec![text(object("Unknown"))]), "file");
    let encrypted = unreadable(&with_lock(object("First"), "file"));
    for (place, job) in [("chain", with_chain), ("encrypted", encrypted)] {
        let directory = tempfile::tempdir().unwrap();
        let stores = file_stores(directory.path());
        let lock = lock(&stores, "First");
        assert!(lock.acquire().await.unwrap());
        let mut services = services(Some(manifest_of_unique(&["First"])), true);
        services.stores = Some(stores);
        let queue = run(vec![job], nothing(), services, UnmappedPolicy::Fail).await;
        assert_eq!(failures(&queue).len(), 1, "{place}");
        assert_eq!(lock.current_owner().await.unwrap(), None, "{place}");
    }
}

#[tokio::test]
async fn a_chain_that_leads_to_no_queue_stops_nobody_else() {
    let server = RedisServer::start();
    let mut options = artisand::connection::RedisOptions::default();
    options.apply_url(&server.url()).unwrap();
    let redis = artisand::connection::Redis::new(&options).unwrap();
    let queue = RedisQueue::new(redis, RedisQueueOptions::default());
    let queue = Arc::new(queue);
    // A set: the delayed jobs of another queue.
    server.query::<()>(&[b"ZADD", b"queues:other:delayed", b"9999999999", b"job"]);
    let lost = object("Next").public("queue", "other:delayed");
    let lost = payload(chained(vec![text(lost)]));
    queue
        .push(&"default".into(), &[lost, payload(object("First"))])
        .await
        .unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&runs);
    let handler = handler::function(move |_: IgnoredAny, _: JobContext| {
        counted.fetch_add(1, Ordering::Relaxed);
        async { Ok::<(), BoxError>(()) }
    });
    let registry = Registry::new().with("handler", handler);
    let mapping = Mapping::new(
        Pattern::parse("First").unwrap(),
        HandlerChoice::Named("handler".into()),
    );
    let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &registry).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(&queue), router, options)
        .with_services(services(Some(manifest(&json!({}))), false));
    let control = Control::new();
    let running = worker.run(&control);
    let both = async {
        until("both jobs are run", SOON, async || {
            runs.load(Ordering::Relaxed) == 2
        })
        .await;
        control.quit();
    };
    let both = async { tokio::join!(running, both).0 };
    let report = tokio::time::timeout(SOON, Box::pin(both)).await;
    assert_eq!(report.unwrap().unsettled, 1);
    let sizes = queue.sizes(&"default".into()).await.unwrap();
    assert_eq!((sizes.pending, sizes.reserved), (0, 1));
}

#[tokio::test]
async fn many_records_that_cannot_be_followed_keep_none_behind_them_from_it() {
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))));
    for number in 0..10_000 {
        queue.spool_record(Spool::FollowUps, format!("foreign {number}").into());
    }
    let directory = tempfile::tempdir().unwrap();
    let stores = file_stores(directory.path());
    let lock = lock(&stores, "First");
    assert!(lock.acquire().await.unwrap());
    let unlock = json!({"do": "unlock", "store": "file", "name": lock.name(), "owner": "me"});
    queue.spool_record(Spool::FollowUps, unlock.to_string().into());
    let mut services = services(None, true);
    services.stores = Some(stores);
    let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &Registry::new()).unwrap();
    let options = WorkerOptions {
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(&queue), router, options).with_services(services);
    let control = Control::new();
    let freed = async {
        until("the lock is free", SOON, async || {
            lock.current_owner().await.unwrap().is_none()
        })
        .await;
        control.quit();
    };
    let both = async { tokio::join!(worker.run(&control), freed) };
    let both = tokio::time::timeout(2 * SOON, both).await;
    assert!(both.is_ok(), "the worker does not stop");
    assert_eq!(queue.spool(Spool::FollowUps).len(), 10_000);
}

#[tokio::test]
async fn a_push_to_a_key_that_is_no_queue_keeps_no_record_behind_it_from_being_done() {
    let server = RedisServer::start();
    let mut redis = RedisOptions::default();
    redis.apply_url(&server.url()).unwrap();
    let options = RedisQueueOptions {
        retry_after: Some(Duration::from_secs(90)),
        ..RedisQueueOptions::default()
    };
    let queue = Arc::new(RedisQueue::new(Redis::new(&redis).unwrap(), options));
    server.query::<()>(&[b"ZADD", b"queues:set", b"1", b"member"]);
    let push = |to: &str| {
        json!({
            "do": "push", "connection": "redis", "queue": to, "id": to, "due": null,
            "payload": String::from_utf8(payload(object("Next"))).unwrap(),
        })
        .to_string()
    };
    let key = b"artisand:follow-ups";
    for to in ["set", "b"] {
        server.query::<()>(&[b"RPUSH", key, push(to).as_bytes()]);
    }
    let router = Router::new(Vec::new(), UnmappedPolicy::Leave, &Registry::new()).unwrap();
    let options = WorkerOptions {
        queues: vec!["a".into()],
        ..WorkerOptions::default()
    };
    let worker = Worker::new(queue, router, options).with_services(services(None, true));
    let control = Control::new();
    let stopping = control.clone();
    let pushing = async {
        until("the job behind it is pushed", SOON, async || {
            server.query::<u64>(&[b"LLEN", b"queues:b"]) == 1
        })
        .await;
        stopping.quit();
    };
    tokio::join!(worker.run(&control), pushing);
    let left: Vec<String> = server.query(&[b"LRANGE", key, b"0", b"-1"]);
    assert_eq!(left, [push("set")]);
}

#[tokio::test]
async fn the_lock_of_the_job_that_dispatched_this_one_is_not_its_own() {
    // The dispatching job, with an id; the store that the context names.
    let rows = [
        ("Other:", "file"),
        ("Other:", "memcached"),
        ("First:1", "file"),
    ];
    for (other, store) in rows {
        let directory = tempfile::tempdir().unwrap();
        let stores = file_stores(directory.path());
        let file = stores.get("file").unwrap();
        let held = |name: &str, owner: &str| {
            let name = format!("laravel_unique_job:{name}");
            file.lock(name, owner, Duration::from_secs(60))
        };
        let (own, other) = (held("First:2", "somebody"), held(other, "me"));
        assert!(own.acquire().await.unwrap() && other.acquire().await.unwrap());
        let mut services = services(Some(manifest_of_unique(&["First"])), false);
        services.stores = Some(stores);
        let first = object("First").public("uniqueId", "2");
        let mut job: Value = serde_json::from_slice(&with_lock(first, store)).unwrap();
        let key = String::from_utf8(Php::from(other.name()).to_bytes()).unwrap();
        job["illuminate:log:context"]["hidden"]["laravel_unique_job_key"] = key.into();
        let job = job.to_string().into_bytes();
        let queue = run(vec![job], nothing(), services, UnmappedPolicy::Leave).await;
        assert!(take(&queue, "default").await.is_empty());
        let place = format!("{} {store}", other.name());
        assert_eq!(own.current_owner().await.unwrap(), None, "{place}");
        let owner = other.current_owner().await.unwrap();
        assert_eq!(owner.as_deref(), Some("me"), "{place}");
    }
}

#[tokio::test]
async fn a_lock_that_was_taken_is_said_to_be_whatever_is_swept_then() {
    let directory = tempfile::tempdir().unwrap();
    let database = sqlite(
        directory.path(),
        &[
            "create table locks (key varchar primary key, owner varchar, expiration integer)",
            "insert into locks values ('old', 'somebody', 1)",
            "create trigger stays before delete on locks begin select raise(abort, 'busy'); end",
        ],
    )
    .await;
    let options = DatabaseStoreOptions {
        prefix: String::new(),
        table: "cache".into(),
        lock_table: "locks".into(),
        sqlite_base64: false,
        lock_timeout: Duration::from_secs(60),
        lock_lottery: Some((1, 1)),
    };
    let store = DatabaseStore::new(database.clone(), database, options, Clock::System);
    let cache = Cache::database(store);
    for number in 0..3 {
        let lock = cache.lock(format!("lock-{number}"), "me", Duration::from_secs(60));
        assert!(lock.acquire().await.unwrap(), "{number}");
    }
}

#[tokio::test]
async fn a_refused_job_that_fails_counts_in_its_batch() {
    let directory = tempfile::tempdir().unwrap();
    let database = sqlite(directory.path(), &[
        "create table job_batches (id varchar primary key, name varchar, total_jobs integer, pending_jobs integer, \
         failed_jobs integer, failed_job_ids text, options text, cancelled_at integer, created_at integer, finished_at integer)",
        "insert into job_batches values ('b', '', 2, 2, 0, '[]', 'a:1:{s:13:\"allowFailures\";b:1;}', null, 1, null)",
    ]).await;
    let mut services = services(None, true);
    let version = services.version;
    services.batches = Some(Batches::new(
        database.clone(),
        "job_batches",
        version,
        Clock::Fixed(NOW),
    ));
    let jobs = vec![payload(object("First").public("batchId", "b"))];
    let queue = run(jobs, nothing(), services, UnmappedPolicy::Fail).await;
    assert_eq!(failures(&queue).len(), 1);
    assert!(queue.spool(Spool::FollowUps).is_empty());
    let sql = "select pending_jobs, failed_jobs from job_batches";
    let rows = database.rows(sql, &[]).await.unwrap();
    assert_eq!((rows[0].int(0), rows[0].int(1)), (Some(2), Some(1)));
}
