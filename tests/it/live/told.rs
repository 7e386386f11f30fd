//! The app hears of jobs that failed in artisand's handlers: `failed()` of their class, and `JobFailed`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::journal::Line;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(90);

/// Handlers without a hook, so that PHP is to be told.
const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = { exec = ["sh", "-c", "echo broken >&2; exit 1"] }
"#;

fn scene(version: u8, mappings: &str) -> Scene {
    let env = [
        ("QUEUE_FAILED_DRIVER", "database-uuids"),
        ("INTEROP_FAILING", "1"),
        // Jobs of killed workers come back soon.
        ("REDIS_QUEUE_RETRY_AFTER", "3"),
    ];
    let scene = Scene::on(RedisServer::start_durable(), version, &env, |laravel| {
        Workplace::with_pool(laravel, 1, mappings)
    });
    // The first look makes the tables.
    assert_eq!(scene.failed(), [Value::Null; 0]);
    scene
}

/// Works until the queue is empty; returns the worker's process.
fn work(scene: &Scene, args: &[&str]) -> ManagedChild {
    let args = [
        &["queue:work", "redis", "--stop-when-empty", "--sleep=0"][..],
        args,
    ]
    .concat();
    let mut worker = ManagedChild::spawn(scene.workplace.artisand(&args));
    worker.succeeds_within(SOON);
    worker
}

/// What the listener of the app heard.
fn heard(scene: &Scene) -> Vec<Value> {
    let lines = scene.redis.list("interop:failing");
    let read = |line: &Vec<u8>| serde_json::from_slice(line).unwrap();
    lines.iter().map(read).collect()
}

/// `id event message` of the journal's lines.
fn journal(scene: &Scene) -> Vec<String> {
    let text = |line: &Line| format!("{} {}", line.id, line.event);
    scene.lines().iter().map(text).collect()
}

on_every_laravel!(the_app_hears_once_of_a_job_that_failed_in_a_handler);
fn the_app_hears_once_of_a_job_that_failed_in_a_handler(version: u8) {
    let scene = scene(version, MAPPINGS);
    let uuid = scene.push("plain", &["--tries=2", "--backoff=0"]);
    let secret = scene.push("secret", &["--tries=1", "--encrypted"]);
    let worker = work(&scene, &["--tries=1"]);
    let name = format!("{}\n{}", scene.name, worker.describe());
    let mut said = journal(&scene);
    said.sort();
    assert_eq!(said, ["plain failed", "secret failed"], "{name}");
    let mut heard = heard(&scene);
    heard.sort_by_key(|heard| heard["attempts"].as_i64());
    assert_eq!(heard.len(), 2, "{heard:?} {name}");
    let expected = |uuid: &str, class: &str, attempts: u8| {
        json!({
            "uuid": uuid, "id": true, "class": class, "command": class, "queue": "default",
            "connection": ["redis", "redis"], "attempts": attempts,
            "was": [true, false, true], "is": [true, false, true],
            "exception": "RuntimeException",
            "message": "`sh` ended with exit status: 1: broken",
        })
    };
    assert_eq!(
        heard[0],
        expected(&secret, "App\\Jobs\\EncryptedJournal", 1),
        "{name}"
    );
    assert_eq!(heard[1], expected(&uuid, "App\\Jobs\\Journal", 2), "{name}");
    // The jobs are in `failed_jobs` once, nothing else is, and the queue is empty.
    let failed = scene.failed();
    let mut uuids: Vec<_> = failed
        .iter()
        .map(|row| row["id"].as_str().unwrap())
        .collect();
    uuids.sort_unstable();
    let mut both = [&*uuid, &*secret];
    both.sort_unstable();
    assert_eq!(uuids, both, "{failed:?} {name}");
    assert_eq!(scene.queued(), 0, "{name}");
    let log = scene.laravel.log();
    // Both are said to the app, each once per job: what a listener threw, and what it asked of a job that has ended.
    assert_eq!(
        log.matches("ERROR: thrown by a listener").count(),
        2,
        "{log}"
    );
    assert_eq!(
        log.matches("WARNING: artisand: a job that has failed cannot be changed any more")
            .count(),
        6,
        "{log}"
    );
}

on_every_laravel!(an_exhausted_job_is_told_with_laravels_exception);
fn an_exhausted_job_is_told_with_laravels_exception(version: u8) {
    let scene = scene(version, MAPPINGS);
    let uuid = scene.push("tired", &["--tries=1"]);
    // Taken by a worker that was killed.
    let queue = scene.queue("default");
    let element: Vec<u8> = scene.redis.query(&[b"LPOP", queue.as_bytes()]);
    let begun = String::from_utf8(element)
        .unwrap()
        .replace("\"attempts\":0", "\"attempts\":1");
    scene
        .redis
        .query::<()>(&[b"RPUSH", queue.as_bytes(), begun.as_bytes()]);
    let worker = work(&scene, &["--tries=1"]);
    let [heard] = &heard(&scene)[..] else {
        panic!("{}", worker.describe())
    };
    assert_eq!(heard["uuid"], uuid.as_str());
    assert_eq!(
        heard["exception"],
        "Illuminate\\Queue\\MaxAttemptsExceededException"
    );
    assert!(
        heard["message"]
            .as_str()
            .unwrap()
            .contains("has been attempted too many times"),
        "{heard}"
    );
    assert_eq!(journal(&scene), ["tired failed"]);
}

on_every_laravel!(the_last_error_of_an_exhausted_job_is_kept);
fn the_last_error_of_an_exhausted_job_is_kept(version: u8) {
    // One job in a program, one in PHP: each throws once, and is then taken by workers that are killed.
    let mapping = r#"
[[map]]
job = 'App\Jobs\EncryptedJournal'
handler = { exec = ["sh", "-c", "echo card declined >&2; exit 1"] }
"#;
    let scene = scene(version, mapping);
    let script = ["--tries=2", "--backoff=0", "--script=throw"];
    let in_php = scene.push("php", &script);
    let in_rust = scene.push("rust", &[&script[..], &["--encrypted"]].concat());
    let queue = scene.queue("default");
    let args = ["--max-jobs=2"];
    work(&scene, &args);
    let delayed = scene.key("queues:default:delayed");
    let released = scene.redis.scores(&delayed);
    assert_eq!(released.len(), 2);
    scene.redis.query::<()>(&[b"DEL", delayed.as_bytes()]);
    for (element, _) in released {
        let element = String::from_utf8(element).unwrap();
        let begun = element.replace("\"attempts\":1", "\"attempts\":2");
        scene
            .redis
            .query::<()>(&[b"RPUSH", queue.as_bytes(), begun.as_bytes()]);
    }
    let worker = work(&scene, &[]);
    let failed = scene.failed();
    let exception = |uuid: &str| {
        let row = failed.iter().find(|row| row["id"] == uuid);
        let row = row.unwrap_or_else(|| panic!("{failed:?} {}", worker.describe()));
        row["exception"].as_str().unwrap().to_owned()
    };
    for (uuid, error) in [
        (&in_php, "RuntimeException: thrown by the script of php"),
        (&in_rust, "ended with exit status: 1: card declined"),
    ] {
        let exception = exception(uuid);
        let (cause, last) = exception
            .split_once("\n\nNext ")
            .unwrap_or_else(|| panic!("{exception}"));
        assert!(cause.contains(error), "{exception}");
        assert!(
            last.starts_with("Illuminate\\Queue\\MaxAttemptsExceededException: "),
            "{exception}"
        );
    }
    let key = scene.key(&format!("artisand:last-error:{in_php}"));
    let lives: i64 = scene.redis.query(&[b"TTL", key.as_bytes()]);
    assert!((80_000..=86_400).contains(&lives), "{lives}");
}

on_every_laravel!(what_is_not_wanted_is_not_told);
fn what_is_not_wanted_is_not_told(version: u8) {
    // The handler's own hook stands for `failed()`, and events are switched off.
    let rust = MAPPINGS.replace(
        "handler =",
        "failed = \"rust\"\nevents = \"none\"\nhandler =",
    );
    let scene = scene(version, &rust);
    scene.push("quiet", &["--tries=1"]);
    let worker = work(&scene, &[]);
    assert_eq!(heard(&scene), [Value::Null; 0], "{}", worker.describe());
    assert_eq!(journal(&scene), [""; 0]);
    assert_eq!(scene.failed().len(), 1);
}

on_every_laravel!(a_failure_is_told_once_however_often_php_is_killed);
fn a_failure_is_told_once_however_often_php_is_killed(version: u8) {
    let scene = scene(version, MAPPINGS);
    let uuid = scene.push("killed", &["--tries=1"]);
    let args = ["queue:work", "redis", "--sleep=0.1", "-v"];
    let mut worker = ManagedChild::spawn(scene.workplace.artisand(&args));
    // Before PHP could take the closure, or after: in neither case twice.
    for round in 0..3 {
        scene
            .redis
            .eventually("a failed job, or its end", SOON, || {
                // The later workers find it failed: each is killed once its PHP can take the closure.
                let can_take = round == 0 || worker.stderr().contains("has booted the app");
                (can_take && scene.failed().len() == 1).then_some(())
            });
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
        worker = ManagedChild::spawn(scene.workplace.artisand(&args));
    }
    scene
        .redis
        .eventually("the end", SOON, || (scene.queued() == 0).then_some(()));
    // The kills may have kept the app from hearing of that job. It hears of one that fails in a worker that lives on.
    let other = scene.push("other", &["--tries=1"]);
    let uuids = || {
        let heard = heard(&scene).into_iter();
        heard.map(|heard| heard["uuid"].clone()).collect::<Vec<_>>()
    };
    scene.redis.eventually("the app hears", SOON, || {
        uuids().contains(&json!(other)).then_some(())
    });
    drop(worker);
    let mut uuids = uuids();
    uuids.retain(|heard| *heard != other);
    assert!(
        uuids.len() <= 1 && uuids.iter().all(|heard| *heard == uuid),
        "{uuids:?}"
    );
    let mut failed = scene.failed();
    failed.retain(|row| row["id"] == uuid);
    assert_eq!(failed.len(), 1, "{failed:?}");
}
