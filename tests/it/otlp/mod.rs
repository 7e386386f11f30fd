//! Traces of jobs: what spans say, what they continue, what jobs carry on, and collectors that are no help.

mod carried;
mod spans;
mod workers;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use artisand::app::Manifest;
use artisand::batch::Batches;
use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Redis, RedisOptions};
use artisand::handler::{self, BoxError, JobContext, Services};
use artisand::payload::{CALL_QUEUED_HANDLER, Encrypter, Pattern};
use artisand::php::{ClassName, Object, Value as Php};
use artisand::queue::{Connections, Destination, Queue as _, RedisQueue, RedisQueueOptions};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::telemetry::{TraceOptions, Traces};
use artisand::time::Clock;
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use opentelemetry_proto::tonic::trace::v1::Span;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::collector::{Collector, attribute, hex};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const PARENT: &str = "b7ad6b7169203331";
const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

fn object(class: &str) -> Object {
    Object::new(ClassName::new(class).unwrap())
}

/// A job of this object, with these fields besides.
fn payload(object: Object, fields: &Value) -> Vec<u8> {
    let class = object.class.to_string();
    let command = String::from_utf8(Php::Object(object).to_bytes()).unwrap();
    let mut payload = json!({
        "uuid": format!("uuid of {class}"), "displayName": class, "job": CALL_QUEUED_HANDLER, "maxTries": 1,
        "data": {"commandName": class, "command": command}, "id": "an id", "attempts": 0,
    });
    for (name, value) in fields.as_object().unwrap() {
        payload[name] = value.clone();
    }
    payload.to_string().into_bytes()
}

fn manifest() -> Manifest {
    let names = ["batchId", "chained", "chainCatchCallbacks", "queue"];
    let property = |name| json!({"name": name, "visibility": "public", "class": "App\\Next", "default": "Tjs="});
    let properties = names.map(property);
    let class = json!({
        "kind": "job", "file": "Next.php", "flags": {"queued": true, "batchable": true},
        "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
        "uses": ["Illuminate\\Bus\\Queueable"],
        "properties": properties,
    });
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "config": {},
        "paths": {"base": "/nowhere", "storage": "/nowhere"},
        "classes": {"App\\Next": class},
    });
    Manifest::parse(Path::new("artisand.json"), manifest.to_string().as_bytes()).unwrap()
}

#[derive(Serialize, Deserialize)]
#[serde(rename = "App\\Next")]
struct Next {}

/// A queue, the app's batches and a collector.
struct Scene {
    redis: RedisServer,
    queue: Arc<RedisQueue>,
    services: Services,
    collector: Collector,
    database: Database,
    _directory: TempDir,
}

impl Scene {
    async fn new() -> Self {
        let redis = RedisServer::start();
        let mut options = RedisOptions::default();
        options.apply_url(&redis.url()).unwrap();
        let queue = RedisQueue::new(Redis::new(&options).unwrap(), RedisQueueOptions::default());
        let queue = Arc::new(queue);
        let directory = TempDir::new().unwrap();
        let mut services = Services::default();
        services.version = "13.31.0".parse().unwrap();
        services.manifest = Some(Arc::new(manifest()));
        services.php_queue = Some("php".into());
        let encrypter = Encrypter::new(services.version, &"k".repeat(32), "AES-256-CBC");
        services.encrypter = Some(Arc::new(encrypter.unwrap()));
        let database = database(directory.path()).await;
        let batches = Batches::new(
            database.clone(),
            "job_batches",
            services.version,
            Clock::System,
        );
        services.batches = Some(batches);
        let here = Destination {
            default_queue: "default".into(),
            queues: Ok(queue.clone()),
        };
        services.connections = Some(Connections::new("redis", [("redis".to_owned(), here)]));
        Self {
            redis,
            queue,
            services,
            collector: Collector::start(),
            database,
            _directory: directory,
        }
    }

    fn options(&self) -> TraceOptions {
        TraceOptions {
            endpoint: format!("{}/v1/traces", self.collector.url()),
            resource: vec![("service.name".to_owned(), "shop".to_owned())],
            server: Some(("redis.example".to_owned(), 6379)),
            ..TraceOptions::default()
        }
    }

    /// Runs these jobs; returns their spans, by class.
    async fn spans(&self, options: &TraceOptions, jobs: &[Vec<u8>]) -> Vec<Span> {
        let before = self.collector.spans().len();
        let traces = Traces::start(
            options,
            Arc::new(|_| ()),
            &tokio::runtime::Handle::current(),
        )
        .unwrap();
        self.run(jobs, traces.clone()).await;
        traces.finish().await;
        let mut spans = self.collector.spans().split_off(before);
        spans.sort_by_key(class);
        spans
    }

    async fn run(&self, jobs: &[Vec<u8>], traces: Traces) {
        self.queue.push(&"orders".into(), jobs).await.unwrap();
        let registry = Registry::new().with("handler", handler::function(handle));
        let mapped = [
            "Chained",
            "Dispatches",
            "Done",
            "Fails",
            "Hangs",
            "Panics",
            "Releases",
            "Throws",
            "Yields",
        ];
        let mapping = |class: &str| {
            let choice = HandlerChoice::Named("handler".into());
            Mapping::new(Pattern::parse(class).unwrap(), choice)
        };
        let mappings = mapped.into_iter().map(mapping).collect();
        let router = Router::new(mappings, UnmappedPolicy::Leave, &registry).unwrap();
        let options = WorkerOptions {
            connection: "redis".into(),
            queues: vec!["orders".into()],
            stop: StopRules {
                when_empty: true,
                memory: None,
                ..StopRules::default()
            },
            ..WorkerOptions::default()
        };
        let worker = Worker::new(Arc::clone(&self.queue), router, options)
            .with_services(self.services.clone())
            .with_observer(traces);
        let control = Control::new();
        let report = tokio::time::timeout(SOON, worker.run(&control))
            .await
            .unwrap();
        assert_eq!(report.unsettled, 0);
    }

    /// The jobs of a queue, as JSON.
    fn jobs(&self, queue: &str) -> Vec<Value> {
        let jobs = self.redis.list(&format!("queues:{queue}"));
        let parse = |job: &Vec<u8>| serde_json::from_slice(job).unwrap();
        jobs.iter().map(parse).collect()
    }
}

/// The app's batches: one, of two jobs.
async fn database(directory: &Path) -> Database {
    let path = directory.join("database.sqlite");
    std::fs::write(&path, b"").unwrap();
    let options = DatabaseOptions {
        database: path.to_str().unwrap().into(),
        ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
    };
    let database = Database::new(&options).unwrap();
    let table = "create table job_batches (id varchar(255) primary key, name varchar(255) not null, \
         total_jobs integer not null, pending_jobs integer not null, failed_jobs integer not null, \
         failed_job_ids text not null, options text null, cancelled_at integer null, \
         created_at integer not null, finished_at integer null)";
    let row =
        "insert into job_batches values ('b-1', '', 2, 2, 0, '[]', 'a:0:{}', null, 1000, null)";
    for sql in [table, row] {
        database.execute(sql, &[]).await.unwrap();
    }
    database
}

async fn handle(_: IgnoredAny, context: JobContext) -> Result<(), BoxError> {
    match context.class() {
        "Throws" => return Err("no stock".into()),
        "Panics" => panic!("a bug"),
        "Fails" => context.fail("gave up"),
        "Releases" => context.release(Duration::from_secs(3600)),
        "Hangs" => std::future::pending().await,
        "Yields" => {
            static HAS_YIELDED: AtomicBool = AtomicBool::new(false);
            if !HAS_YIELDED.swap(true, Ordering::Relaxed) {
                context.release_without_attempt(Duration::ZERO);
            }
        }
        "Dispatches" => {
            context.then(&Next {})?;
            context.dispatch().job(&Next {}).on_queue("now").await?;
            let batch = context.batch().await?.unwrap();
            batch.add(vec![object("App\\Next")]).await?;
        }
        _ => {}
    }
    Ok(())
}

fn get(span: &Span, name: &str) -> String {
    attribute(&span.attributes, name)
}

fn class(span: &Span) -> String {
    get(span, "artisand.job.class")
}

/// The ids that a job carries on which was pushed by this span.
fn carried(span: &Span) -> String {
    format!("00-{}-{}-01", hex(&span.trace_id), hex(&span.span_id))
}
