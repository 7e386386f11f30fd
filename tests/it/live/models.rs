//! Models in jobs beside real Laravel: rows, and jobs whose model is gone.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::stores::{Databases, Kind};

const SOON: Duration = Duration::from_secs(90);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\ModelCollection'
handler = "models"

[[map]]
job = 'App\Jobs\*Model*'
handler = "model"
"#;

/// Runs one job; returns its events and the lines that it wrote.
fn run(redis: &RedisServer, mut worker: std::process::Command) -> (Vec<String>, Vec<Value>) {
    worker.env("INTEROP_EVENTS", "1");
    ManagedChild::spawn(worker).succeeds_within(SOON);
    let take = |list: &str| -> Vec<Value> {
        let lines = redis.list(list);
        let () = redis.query(&[b"DEL", list.as_bytes()]);
        let read = |line: &Vec<u8>| serde_json::from_slice(line).unwrap();
        lines.iter().map(read).collect()
    };
    let events = take("interop:events");
    let events = events.iter().filter_map(|event| {
        let name = event["event"].as_str().unwrap();
        // Known to all versions.
        let is_known = [
            "JobProcessing",
            "JobProcessed",
            "JobFailed",
            "JobExceptionOccurred",
        ];
        let failure = match event["exception"].as_str() {
            Some(class) => format!(" {class}: {}", event["message"].as_str().unwrap()),
            None => String::new(),
        };
        is_known.contains(&name).then(|| format!("{name}{failure}"))
    });
    (events.collect(), take("interop:models"))
}

fn models_are_the_rows_that_laravel_means(version: u8) {
    let redis = RedisServer::start();
    let databases = Databases::shared();
    for kind in Kind::ALL {
        let settings = databases.create(kind, &format!("models_{version}"));
        let laravel = Laravel::with_env(version, &redis, &settings);
        let manifest = laravel.manifest_with_classes();
        let workplace = Workplace::with_manifest(&laravel, &manifest, MAPPINGS);
        let once = |by_php: bool| {
            let args = ["--once", "--sleep=0", "--tries=3"];
            if by_php {
                laravel.command(&[&["queue:work", "redis"][..], &args].concat())
            } else {
                workplace.worker_command(&args)
            }
        };
        let ada = json!({"id": 1, "name": "Ada", "email": "ada@example.com", "created_at": "2026-01-01 00:00:00"});
        laravel.run(&["interop:dispatch", "model"]);
        let (events, rows) = run(&redis, once(false));
        assert_eq!(events, ["JobProcessing", "JobProcessed"], "{kind:?}");
        assert_eq!(rows, [ada], "{kind:?}");
        laravel.run(&["interop:dispatch", "model-collection"]);
        let (events, rows) = run(&redis, once(false));
        assert_eq!(events, ["JobProcessing", "JobProcessed"], "{kind:?}");
        let (users, nobody) = (&rows[0][0], &rows[0][1]);
        let names: Vec<&str> = users
            .as_array()
            .unwrap()
            .iter()
            .map(|user| user["name"].as_str().unwrap())
            .collect();
        assert!(names.len() >= 2 && names.contains(&"Ada"), "{names:?}");
        assert_eq!(*nobody, json!([]));

        // The rows are deleted while the jobs wait.
        for job in ["model", "model-delete-when-missing"] {
            let mut seen = Vec::new();
            for by_php in [true, false] {
                let user = if job == "model" { "1" } else { "2" };
                laravel.run(&["interop:dispatch", job]);
                laravel.run(&["interop:user", user, "--gone"]);
                seen.push(run(&redis, once(by_php)));
                laravel.run(&["interop:user", user]);
                let waiting = redis.length(&laravel.key("queues:default"));
                let delayed = redis.scores(&laravel.key("queues:default:delayed"));
                assert!(waiting == 0 && delayed.is_empty(), "{job} by PHP: {by_php}");
            }
            let (events, rows) = &seen[1];
            assert_eq!(*events, seen[0].0, "Laravel {version} {kind:?} {job}");
            assert_eq!(rows.len(), 0);
            let has_failed = events.iter().any(|event| event.starts_with("JobFailed"));
            assert_eq!(has_failed, job == "model", "{events:?}");
        }
    }
}

on_every_laravel!(models_are_the_rows_that_laravel_means);
