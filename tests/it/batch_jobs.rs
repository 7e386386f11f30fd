//! Adding jobs to a batch from its handler: all of them are pushed and counted, or none.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use artisand::app::Manifest;
use artisand::batch::Batches;
use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Redis, RedisOptions};
use artisand::handler::{BatchHandle, BatchJob, JobContext, JobInfo, Services};
use artisand::payload::{Command, Payload};
use artisand::php::{Array, ClassName, Object, Value};
use artisand::queue::{
    Connections, Destination, Once, Push, PushedOnce, Queue as _, RedisQueue, RedisQueueOptions,
};
use artisand::time::{Clock, UnixSeconds};
use serde_json::json;
use tempfile::TempDir;
use tokio_util::sync::CancellationToken;

use crate::harness::jobs_table::{JobsTable, batches_table};
use crate::harness::redis::RedisServer;
use crate::harness::stores::Kind;

const NOW: i64 = 1_767_323_045;

/// A batch with options, in a private database, and a Redis for its jobs.
struct Scene {
    server: RedisServer,
    _directory: TempDir,
    database: Database,
    services: Services,
    version: &'static str,
}

fn manifest(version: &str) -> Manifest {
    let class = |flags: serde_json::Value, uses: &[&str]| {
        json!({
            "kind": "job", "file": "A.php", "flags": flags, "uses": uses,
            "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
            "properties": [
                {"name": "own", "visibility": "public", "class": "A"},
                {"name": "connection", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "queue", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "chainConnection", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "chainQueue", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "chained", "visibility": "public", "class": "A", "default": "YTowOnt9"},
                {"name": "batchId", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "delay", "visibility": "public", "class": "A", "default": "Tjs="},
                {"name": "last", "visibility": "public", "class": "A"},
            ],
        })
    };
    let models = "Illuminate\\Queue\\SerializesModels";
    let queueable = ["Illuminate\\Bus\\Queueable", models];
    let mut tries = class(json!({"queued": true, "batchable": true}), &queueable);
    tries["limits"] = json!({"tries": {"$method": true}});
    let json = json!({
        "artisand": 1, "laravel": version, "generated_at": 0, "config": {},
        "paths": {"base": "/app", "storage": "/app/storage"},
        "classes": {
            "A": class(json!({"queued": true, "batchable": true}), &queueable),
            "Alone": class(json!({"queued": true}), &queueable),
            "Bare": class(json!({"queued": true, "batchable": true}), &[models]),
            "Asked": tries,
        },
    });
    Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
}

impl Scene {
    async fn new(version: &'static str, options: &str) -> Self {
        let server = RedisServer::start();
        let mut redis = RedisOptions::default();
        redis.apply_url(&server.url()).unwrap();
        let queues = RedisQueue::new(Redis::new(&redis).unwrap(), RedisQueueOptions::default());
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("database.sqlite");
        std::fs::write(&path, b"").unwrap();
        let mut database = DatabaseOptions::new("main", DatabaseKind::Sqlite);
        database.database = path.to_str().unwrap().into();
        let database = Database::new(&database).unwrap();
        let table = batches_table("job_batches", "text");
        database.execute(&table, &[]).await.unwrap();
        let sql = "insert into job_batches values ('b-1', '', 3, 1, 0, '[]', ?, null, 1000, null)";
        database.execute(sql, &[options.into()]).await.unwrap();
        let clock = Clock::Fixed(UnixSeconds(NOW));
        let mut services = Services::default();
        services.version = version.parse().unwrap();
        services.manifest = Some(Arc::new(manifest(version)));
        services.batches = Some(Batches::new(
            database.clone(),
            "job_batches",
            services.version,
            clock,
        ));
        let here = Destination {
            default_queue: "usual".into(),
            queues: Ok(Arc::new(queues)),
        };
        let elsewhere = Destination {
            default_queue: "default".into(),
            queues: Err("it is no Redis".to_owned()),
        };
        let all = [("redis".to_owned(), here), ("sqs".to_owned(), elsewhere)];
        services.connections = Some(Connections::new("redis", all));
        Self {
            server,
            _directory: directory,
            database,
            services,
            version,
        }
    }

    async fn batch(&self) -> BatchHandle {
        let command = r#"O:1:\"A\":1:{s:7:\"batchId\";s:3:\"b-1\";}"#;
        let body = format!(
            r#"{{"uuid":"u","displayName":"A","job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{{"commandName":"A","command":"{command}"}}}}"#
        );
        let info = JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Payload::parse(body.as_bytes()).unwrap().into(),
            body: body.into_bytes().into(),
            reserved: Arc::default(),
            trace: None,
        };
        let services = self.services.clone().into();
        let job = JobContext::new(Arc::new(info), CancellationToken::new(), services);
        job.batch().await.unwrap().unwrap()
    }

    /// Total and pending.
    async fn counters(&self) -> (i64, i64) {
        let sql = "select total_jobs, pending_jobs from job_batches";
        let rows = self.database.rows(sql, &[]).await.unwrap();
        let number = |column| rows[0].text(column).unwrap().parse().unwrap();
        (number(0), number(1))
    }

    fn keys(&self) -> Vec<String> {
        let mut keys: Vec<String> = self.server.query(&[b"KEYS", b"*"]);
        keys.retain(|key| !key.contains("artisand:pushed:"));
        keys.sort();
        keys
    }

    fn commands(&self, queue: &str) -> Vec<String> {
        let jobs = self.server.list(queue);
        jobs.iter().map(|job| command(job)).collect()
    }
}

fn command(job: &[u8]) -> String {
    let payload = Payload::parse(job).unwrap();
    let command = Command::of(&payload).unwrap().unwrap();
    String::from_utf8(command.as_bytes().to_vec()).unwrap()
}

/// An error with its causes.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

fn job(class: &str) -> Object {
    Object::new(ClassName::new(class).unwrap())
}

const NO_OPTIONS: &str = "a:0:{}";

#[tokio::test(flavor = "multi_thread")]
async fn jobs_and_chains_go_to_the_batch_s_queue_and_count() {
    let scene = Scene::new("13.31.0", r#"a:1:{s:5:"queue";s:4:"high";}"#).await;
    let jobs: Vec<BatchJob> = vec![
        job("A").public("own", 1).public("last", 2).into(),
        vec![
            job("A").public("queue", "its own"),
            job("A").public("own", 3),
        ]
        .into(),
        job("A").public("delay", 60).into(),
    ];
    let batch = scene.batch().await.add(jobs).await.unwrap().unwrap();
    assert_eq!((batch.total_jobs, batch.pending_jobs), (7, 5));
    assert_eq!(scene.counters().await, (7, 5));
    #[rustfmt::skip]
    let expected = [
        r#"O:1:"A":3:{s:3:"own";i:1;s:7:"batchId";s:3:"b-1";s:4:"last";i:2;}"#,
        r#"O:1:"A":4:{s:5:"queue";s:4:"high";s:10:"chainQueue";s:4:"high";s:7:"chained";a:1:{i:0;s:50:"O:1:"A":2:{s:3:"own";i:3;s:7:"batchId";s:3:"b-1";}";}s:7:"batchId";s:3:"b-1";}"#,
    ];
    assert_eq!(scene.commands("queues:high"), expected);
    let delayed = scene.server.scores("queues:high:delayed");
    #[expect(clippy::cast_precision_loss, reason = "a time of today")]
    let due = (NOW + 60) as f64;
    assert_eq!((delayed.len(), delayed[0].1), (1, due));
    let expected = r#"O:1:"A":2:{s:7:"batchId";s:3:"b-1";s:5:"delay";i:60;}"#;
    assert_eq!(command(&delayed[0].0), expected);
    assert_eq!(scene.server.length("queues:high:notify"), 2);

    // A value that refers to another one: the numbering does not change.
    let inner = Value::Object(job("Inner"));
    let shared = job("A")
        .public("own", inner)
        .public("last", Value::ObjectRef(2));
    scene.batch().await.add(vec![shared]).await.unwrap();
    let expected =
        r#"O:1:"A":3:{s:3:"own";O:5:"Inner":0:{}s:4:"last";r:2;s:7:"batchId";s:3:"b-1";}"#;
    assert_eq!(scene.commands("queues:high")[2], expected);

    // An empty list adds nothing.
    let nothing: Vec<Object> = Vec::new();
    scene.batch().await.add(nothing).await.unwrap();
    assert_eq!(scene.counters().await, (8, 6));
    let gone = scene.batch().await;
    let sql = "delete from job_batches";
    scene.database.execute(sql, &[]).await.unwrap();
    assert!(gone.add(vec![job("A")]).await.unwrap().is_none());
    assert_eq!(scene.server.length("queues:high"), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn versions_differ_in_the_first_job_of_a_chain_and_in_delays() {
    #[rustfmt::skip]
    let rows = [
        // version, whether the first job keeps its queue, delayed jobs
        ("8.83.0",  false, 0),
        ("9.6.0",   false, 0),
        ("9.7.0",   false, 1),
        ("13.0.0",  false, 1),
        ("13.1.0",  true,  1),
        ("13.22.0", true,  1),
    ];
    for (version, keeps_queue, delayed) in rows {
        let scene = Scene::new(version, NO_OPTIONS).await;
        let batch = scene.batch().await;
        let chain = vec![job("A").public("queue", "own"), job("A")];
        let jobs: Vec<BatchJob> = vec![chain.into(), job("A").public("delay", 9).into()];
        batch.add(jobs).await.unwrap();
        let version = scene.version;
        assert_eq!(
            scene.server.scores("queues:usual:delayed").len(),
            delayed,
            "{version}"
        );
        let chain = &scene.commands("queues:usual")[0];
        let keeps = chain.contains(r#"s:5:"queue";s:3:"own";"#);
        assert_eq!(keeps, keeps_queue, "{version}: {chain}");
        assert_eq!(scene.counters().await, (6, 4), "{version}");
    }
}

/// As `DatabaseQueue::bulk` does it, which does not tell the payload.
#[tokio::test(flavor = "multi_thread")]
async fn in_a_table_the_delay_of_a_job_is_that_of_its_row_alone() {
    let mut scene = Scene::new("13.31.0", NO_OPTIONS).await;
    let jobs = || vec![job("A").public("delay", 9)];
    let delay = |payload: &[u8]| {
        let payload: serde_json::Value = serde_json::from_slice(payload).unwrap();
        payload["delay"].clone()
    };
    scene.batch().await.add(jobs()).await.unwrap();
    let delayed = scene.server.scores("queues:usual:delayed");
    assert_eq!(delay(&delayed[0].0), 9);

    let table = JobsTable::create(Kind::Sqlite).await;
    let here = Destination {
        default_queue: "usual".into(),
        queues: Ok(Arc::new(table.queue(Clock::Fixed(UnixSeconds(NOW))))),
    };
    scene.services.connections = Some(Connections::new("redis", [("redis".to_owned(), here)]));
    scene.batch().await.add(jobs()).await.unwrap();
    let sql = "select payload, available_at from jobs where queue = 'usual'";
    let rows = table.database().rows(sql, &[]).await.unwrap();
    assert_eq!(rows.len(), 1);
    let payload = rows[0].text(0).unwrap();
    assert_eq!(delay(payload.as_bytes()), json!(null), "{payload}");
    assert_eq!(rows[0].text(1).unwrap(), (NOW + 9).to_string());
}

#[tokio::test(flavor = "multi_thread")]
async fn what_only_php_could_push_is_said_and_nothing_is_counted() {
    let scene = Scene::new("13.31.0", NO_OPTIONS).await;
    let with = |change: &dyn Fn(&mut Services)| {
        let mut services = scene.services.clone();
        change(&mut services);
        services
    };
    let as_is = || with(&|_| {});
    let many = vec![job("A"), job("Alone")];
    let array = Value::from(Array::default());
    #[rustfmt::skip]
    let rows: [(Services, BatchJob, &str); 9] = [
        (as_is(), job("Gone").into(), "Gone cannot be pushed from here: Gone: the manifest does not have the class; write it again with `artisand manifest`"),
        (as_is(), job("Alone").into(), "Alone does not use `Illuminate\\Bus\\Batchable`, and so cannot be in a batch"),
        (as_is(), many.into(), "Alone does not use `Illuminate\\Bus\\Batchable`, and so cannot be in a batch"),
        (as_is(), vec![job("Bare"), job("A")].into(), "Bare does not use `Illuminate\\Bus\\Queueable`, and so cannot begin a chain"),
        (as_is(), Vec::new().into(), "a chain without jobs cannot be added to a batch"),
        (as_is(), job("Asked").into(), "Asked cannot be pushed from here: Asked: its method `tries()` must be asked"),
        (as_is(), job("A").public("delay", array).into(), "A cannot be pushed from here: A: `delay` is"),
        (with(&|services| services.manifest = None), job("A").into(), "nothing can be pushed to the batch's queue from here: nothing is known of the app's classes: write a manifest with `artisand manifest`"),
        (with(&|services| services.connections = None), job("A").into(), "nothing can be pushed to the batch's queue from here: nothing is known of the app's queue connections"),
    ];
    for (services, added, expected) in rows {
        let scene = Scene {
            services,
            server: RedisServer::start(),
            _directory: TempDir::new().unwrap(),
            database: scene.database.clone(),
            version: scene.version,
        };
        // A job that could be pushed comes first.
        let jobs = vec![job("A").into(), added];
        let error = scene.batch().await.add(jobs).await.unwrap_err();
        let text = told(&error);
        assert!(text.starts_with(expected), "{text}\n{expected}");
        assert_eq!(scene.counters().await, (3, 1), "{expected}");
    }
    assert_eq!(scene.keys(), [""; 0]);

    let elsewhere = Scene::new("13.31.0", r#"a:1:{s:10:"connection";s:3:"sqs";}"#).await;
    let error = elsewhere
        .batch()
        .await
        .add(vec![job("A")])
        .await
        .unwrap_err();
    assert_eq!(
        told(&error),
        "nothing can be pushed to the batch's queue from here: it goes to the queue connection `sqs`: it is no Redis"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn jobs_that_the_server_does_not_take_do_not_count() {
    let scene = Scene::new("13.31.0", NO_OPTIONS).await;
    // The list could be written, the set could not: no job is pushed.
    scene
        .server
        .query::<()>(&[b"SET", b"queues:usual:delayed", b"x"]);
    let jobs = vec![job("A"), job("A").public("delay", 1)];
    let error = scene.batch().await.add(jobs).await.unwrap_err();
    let text = told(&error);
    assert!(text.contains("push_once.lua"), "{text}");
    assert_eq!(scene.keys(), ["queues:usual:delayed"]);
    assert_eq!(scene.counters().await, (3, 1));

    let batch = scene.batch().await;
    let Scene {
        server, database, ..
    } = scene;
    drop(server);
    let started = std::time::Instant::now();
    batch.add(vec![job("A")]).await.unwrap_err();
    assert!(started.elapsed() < Duration::from_secs(20));
    let rows = database
        .rows("select total_jobs from job_batches", &[])
        .await;
    assert_eq!(rows.unwrap()[0].text(0).unwrap(), "3");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_push_is_repeated_without_a_difference() {
    let server = RedisServer::start();
    let mut redis = RedisOptions::default();
    redis.apply_url(&server.url()).unwrap();
    let queues = RedisQueue::new(Redis::new(&redis).unwrap(), RedisQueueOptions::default());
    let push = |payload: &str, due| Push {
        queue: "default".into(),
        payload: payload.into(),
        due,
        claim: None,
    };
    let both = [push("one", None), push("two", Some(UnixSeconds(7)))];
    let remembered = Duration::from_secs(60);
    for (id, expected, length) in [("x", true, 1), ("x", false, 1), ("y", true, 2)] {
        let is_new = queues
            .push_once(
                &both,
                Once {
                    id,
                    remembered,
                    note: "1",
                },
            )
            .await
            .unwrap();
        assert_eq!(is_new == PushedOnce::Now { locked: 0 }, expected, "{id}");
        assert_eq!(server.length("queues:default"), length);
        assert_eq!(server.length("queues:default:notify"), length);
        assert_eq!(server.scores("queues:default:delayed").len(), 1);
    }
    let left: i64 = server.query(&[b"TTL", b"artisand:pushed:x"]);
    assert!((1..=60).contains(&left), "{left}");
}

/// Redis before 7.0 takes no command with eight arguments for each of them.
#[tokio::test(flavor = "multi_thread")]
async fn very_many_jobs_are_pushed_in_steps_and_each_once() {
    const JOBS: usize = 140_000;
    let server = RedisServer::start();
    let mut redis = RedisOptions::default();
    redis.apply_url(&server.url()).unwrap();
    let queues = RedisQueue::new(Redis::new(&redis).unwrap(), RedisQueueOptions::default());
    let push = Push {
        queue: "default".into(),
        payload: b"{}".to_vec(),
        due: None,
        claim: None,
    };
    let all = vec![push; JOBS];
    let once = Once {
        id: "x",
        remembered: Duration::from_secs(60),
        note: "1",
    };
    // The first step was made before: its reply was lost, and the second one is missing.
    let first = queues.push_once(&all[..100_000], once).await.unwrap();
    assert_eq!(first, PushedOnce::Now { locked: 0 });
    for expected in [
        PushedOnce::Now { locked: 0 },
        PushedOnce::Before { note: "1".into() },
    ] {
        assert_eq!(queues.push_once(&all, once).await.unwrap(), expected);
        assert_eq!(server.length("queues:default"), JOBS);
    }
}
