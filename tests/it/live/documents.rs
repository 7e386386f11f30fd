//! The document that a handler gets equals PHP's own view of the same object.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::cache::Stores;
use artisand::connection::{Redis, RedisAddress, RedisOptions};
use artisand::handler::{BoxError, BoxFuture, Handler, JobContext, Services};
use artisand::payload::Pattern;
use artisand::queue::{RedisQueue, RedisQueueOptions};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::worker::{Control, StopReason, StopRules, Worker, WorkerOptions};
use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::redis::RedisServer;
use crate::payloads::assert_same_document;

/// Documents in the order in which their jobs were run.
type Documents = Arc<Mutex<Vec<Value>>>;

/// Keeps the document of every job.
struct Record(Documents);

impl Record {
    fn keep(&self, context: &JobContext) -> Result<(), BoxError> {
        let document = serde_json::from_str(&context.document()?)?;
        self.0.lock().unwrap().push(document);
        Ok(())
    }
}

impl Handler for Record {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move { self.keep(&context) })
    }
}

/// A little more than the longest delay of a job of the catalogue that artisand runs.
const LONGEST_DELAY: Duration = Duration::from_secs(5);

/// Runs every job that a `*` mapping matches, including those due in the next seconds.
async fn drain(redis: &RedisServer, laravel: &Laravel) -> Vec<Value> {
    let documents = Documents::default();
    let registry = Registry::new().with("record", Record(Arc::clone(&documents)));
    let any = Pattern::parse("*").unwrap();
    let mapping = Mapping {
        // Nothing else tells it of jobs of older versions.
        is_never_unique: true,
        ..Mapping::new(any, HandlerChoice::Named("record".into()))
    };
    let router = Router::new(vec![mapping], UnmappedPolicy::Leave, &registry).unwrap();
    let options = RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), redis.port()),
        prefix: laravel.prefix.clone(),
        ..RedisOptions::default()
    };
    let connection = Redis::new(&options).unwrap();
    let queue = Arc::new(RedisQueue::new(connection, RedisQueueOptions::default()));
    let options = WorkerOptions {
        stop: StopRules {
            when_empty_for: Some(LONGEST_DELAY),
            // The test's own process may have grown large already.
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    // One of the jobs contains middleware.
    let settings = laravel.settings();
    let mut services = Services::default();
    services.version = settings.known_version();
    if services.version.is_at_least(11, 39) {
        // Only the class of a unique job says when its lock is freed.
        services.manifest = Some(Arc::new(laravel.exported()));
    }
    services.middleware.cache = Some(settings.cache("redis").unwrap());
    services.encrypter = Some(Arc::new(settings.encrypter().unwrap()));
    // A unique job whose lock could not be freed would not be run.
    let of_app = laravel.settings();
    services.stores = Some(Stores::new("redis", move |name| of_app.cache(name)));
    let worker = Worker::new(queue, router, options).with_services(services);
    let report = tokio::time::timeout(Duration::from_secs(60), worker.run(&Control::new()))
        .await
        .unwrap_or_else(|_| panic!("the worker does not stop; {}", redis.state()));
    assert_eq!(report.reason, StopReason::QueueEmptyFor);
    assert_eq!((report.released, report.unsettled), (0, 0));
    std::mem::take(&mut *documents.lock().unwrap())
}

/// Whether this version of artisand runs the job of this line.
fn is_ours(line: &Value) -> bool {
    line["category"] == "job"
}

fn uuid_of(element: &[u8]) -> String {
    let payload: Value = serde_json::from_slice(element).unwrap();
    payload["uuid"].as_str().unwrap().to_owned()
}

/// PHP writes an object without properties as `[]`.
fn object_or_empty(value: Option<&Value>) -> Value {
    match value {
        None => json!({}),
        Some(Value::Array(list)) if list.is_empty() => json!({}),
        Some(value) => value.clone(),
    }
}

fn documents_are_what_php_says(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let told = laravel.run(&["interop:dispatch-described", "all"]);
    let list = laravel.key("queues:default");
    let delayed = laravel.key("queues:default:delayed");
    // All jobs that artisand does not run, in the order of the list.
    let not_ours: Vec<String> = told
        .iter()
        .filter(|line| !is_ours(line))
        .map(|line| line["uuid"].as_str().unwrap().to_owned())
        .collect();
    let due_later = redis
        .scores(&delayed)
        .into_iter()
        .map(|(element, _)| element);
    let left: Vec<Vec<u8>> = redis
        .list(&list)
        .into_iter()
        .chain(due_later)
        .filter(|element| not_ours.contains(&uuid_of(element)))
        .collect();
    assert_eq!(left.len(), not_ours.len(), "{}", redis.state());

    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    let documents = runtime.block_on(drain(&redis, &laravel));
    let found: HashMap<&str, &Value> = documents
        .iter()
        .map(|document| (document["uuid"].as_str().unwrap(), document))
        .collect();
    assert_eq!(found.len(), documents.len(), "a job was run twice");

    let mut compared = 0;
    // A reference after a body that only its class reads is never guessed: that job fails.
    let (unreadable, readable): (Vec<_>, Vec<_>) = told
        .iter()
        .filter(|line| is_ours(line))
        .partition(|line| line["kind"] == "custom");
    let failed = redis.list(&laravel.key("artisand:failed-spool"));
    assert_eq!(failed.len(), unreadable.len(), "{}", redis.state());
    for line in readable {
        let place = format!("Laravel {version} {}", line["kind"]);
        let document = found
            .get(line["uuid"].as_str().unwrap())
            .unwrap_or_else(|| panic!("{place} was not run; {}", redis.state()));
        assert_eq!(document["target"]["kind"], "job", "{place}");
        assert_eq!(document["queue"], line["queue"], "{place}");
        assert_eq!(document["id"], line["id"], "{place}");
        assert_eq!(document["attempts"], 1, "{place}");
        let is_encrypted = line["kind"].as_str().unwrap().starts_with("encrypted");
        assert_eq!(document["encrypted"] == true, is_encrypted, "{place}");
        let defaults = line["defaults"].as_array().cloned().unwrap_or_default();
        assert_same_document(&place, &document["data"], &line["document"], &defaults);
        let meta = object_or_empty(document.get("meta"));
        let expected = object_or_empty(line.get("meta"));
        assert_eq!(meta, expected, "{place}");
        compared += 1;
    }
    assert_eq!(
        found.len(),
        compared,
        "something was run that PHP did not tell of"
    );
    assert!(compared >= 27, "only {compared} kinds");

    // Jobs that artisand does not run stay unchanged, for PHP.
    let now_there: Vec<Vec<u8>> = redis
        .list(&list)
        .into_iter()
        .chain(
            redis
                .scores(&delayed)
                .into_iter()
                .map(|(element, _)| element),
        )
        .collect();
    // The ends of the jobs of two chains and of a batch are handed to PHP.
    let is_closure =
        |element: &Vec<u8>| memchr::memmem::find(element, b"\"maxTries\":34,").is_some();
    let (closures, now_there): (Vec<_>, Vec<_>) = now_there.into_iter().partition(is_closure);
    assert_eq!(closures.len(), 3, "{}", redis.state());
    let uuids = |elements: &[Vec<u8>]| elements.iter().map(|e| uuid_of(e)).collect::<Vec<_>>();
    assert_eq!(uuids(&now_there), uuids(&left), "{}", redis.state());
    assert!(now_there == left, "payloads that were left have changed");
    let reserved = redis.scores(&laravel.key("queues:default:reserved"));
    assert!(reserved.is_empty(), "{}", redis.state());
}

on_every_laravel!(documents_are_what_php_says);
