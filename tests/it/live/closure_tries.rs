//! Closures that artisand pushes are tried again by real PHP workers, and their effects happen once.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::process::{Workplace, eventually};
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(90);

const SETTINGS: &str = r#"
[php]
queue = "php"
events = "none"

[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct Tries {
    scene: Scene,
    runtime: tokio::runtime::Runtime,
    pool: Workplace,
}

in_scene!(Tries);

/// Which worker runs closures.
#[derive(Debug, Clone, Copy)]
enum By {
    QueueWork,
    Pool,
}

impl Tries {
    fn new(version: u8) -> Self {
        let driver = [("QUEUE_FAILED_DRIVER", "database-uuids")];
        let scene = Scene::new(version, &driver, SETTINGS);
        scene.failed();
        Self {
            pool: Workplace::with_pool(&scene.laravel, 1, ""),
            runtime: tokio::runtime::Runtime::new().unwrap(),
            scene,
        }
    }

    /// Runs all waiting jobs in Rust; returns the one closure that it pushed.
    fn closure(&self) -> Value {
        let mut worker = self.worker(&["--tries=1"]);
        let closure = eventually("a closure", SOON, || self.take("queues:php"));
        // The first of two jobs may have pushed it before the second was taken.
        let what = "the jobs have run";
        eventually(what, SOON, || (self.queued() == 0).then_some(()));
        worker.signal(rustix::process::Signal::TERM);
        worker.succeeds_within(SOON);
        assert_eq!(self.take("queues:php"), None, "{}", self.name);
        closure
    }

    fn take(&self, queue: &str) -> Option<Value> {
        let key = self.laravel.key(queue);
        let element: Option<Vec<u8>> = self.redis.query(&[b"LPOP", key.as_bytes()]);
        let notify = format!("{key}:notify");
        self.redis.query::<i64>(&[b"DEL", notify.as_bytes()]);
        Some(serde_json::from_slice(&element?).unwrap())
    }

    /// Lets PHP run a closure that has been popped this often before.
    fn run(&self, by: By, closure: &Value, attempts: u32) {
        let mut closure = closure.clone();
        closure["attempts"] = attempts.into();
        let key = self.laravel.key("queues:php");
        self.redis
            .query::<()>(&[b"RPUSH", key.as_bytes(), closure.to_string().as_bytes()]);
        // With the strictest options.
        let args = ["--queue=php", "--once", "--tries=1", "--backoff=77"];
        let mut worker = match by {
            By::QueueWork => self.laravel.worker(&args),
            By::Pool => self.pool.worker(&args),
        };
        worker.wait_timeout(SOON);
        let left = self.redis.length(&key);
        assert_eq!(left, 0, "{}: {}", self.name, worker.describe());
    }

    /// The same with a closure that succeeds, and so does not come back.
    fn succeed(&self, by: By, closure: &Value, attempts: u32) {
        self.run(by, closure, attempts);
        let left = self.redis.jobs(&self.laravel.key("queues:php"));
        assert_eq!(left, 0, "{} {by:?} {attempts}", self.name);
    }

    /// When the closure that failed is due again, from now.
    fn wait(&self) -> f64 {
        let delayed = self.laravel.key("queues:php:delayed");
        let found = self.redis.scores(&delayed);
        self.redis.query::<i64>(&[b"DEL", delayed.as_bytes()]);
        let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
        assert_eq!(found.len(), 1, "{}", self.name);
        found[0].1 - now
    }

    fn batch(&self, scripts: &[&str], flags: &[&str]) -> String {
        let args = [&["interop:batch"][..], scripts, flags].concat();
        let batch = self.php().run(&args);
        batch["id"].as_str().unwrap().to_owned()
    }

    /// Names of the callbacks that were called since the last look.
    fn called(&self) -> Vec<String> {
        let lines = self.redis.list("interop:batch");
        self.redis.query::<i64>(&[b"DEL", b"interop:batch"]);
        let name = |line: &Vec<u8>| -> String {
            let note: Value = serde_json::from_slice(line).unwrap();
            note["callback"].as_str().unwrap().to_owned()
        };
        lines.iter().map(name).collect()
    }

    /// Pending, failed, number of failed uuids, whether it is finished.
    fn state(&self, id: &str) -> Value {
        let state = self.php().run(&["interop:batch-state", id]);
        let ids = state["failed_ids"].as_array().unwrap().len();
        json!([
            state["pending"],
            state["failed"],
            ids,
            state["finished_at"].is_number()
        ])
    }

    fn sql(&self, sql: &str) {
        let _entered = self.runtime.enter();
        let database = self.laravel.settings().open_database(None).unwrap();
        self.runtime.block_on(database.execute(sql, &[])).unwrap();
    }
}

fn closures_wait_longer_and_longer_and_fail_under_the_name_of_their_job(version: u8) {
    let scene = Tries::new(version);
    let name = &scene.name;
    let batch = scene.batch(&["ok"], &["--then", "--finally"]);
    let closure = scene.closure();
    let fields = ["displayName", "maxTries", "backoff", "retryUntil"];
    let found = fields.map(|field| closure[field].clone());
    let waits = "1,3,10,30,60,120,300,600,1200,1800,3600";
    let expected = json!(["App\\Jobs\\BatchJournal", 34, waits, null]);
    assert_eq!(json!(found), expected, "{name}");
    for by in [By::QueueWork, By::Pool] {
        // This acts like a locked database.
        scene.sql("alter table job_batches rename to away");
        for (attempts, expected) in [(0, 1.0), (4, 60.0), (32, 3600.0)] {
            scene.run(by, &closure, attempts);
            let wait = scene.wait();
            let near = expected - 30.0..=expected + 2.0;
            assert!(near.contains(&wait), "{name} {by:?}: {attempts} {wait}");
        }
        assert_eq!(scene.failed(), [] as [Value; 0], "{name} {by:?}");
        // The last try; then a person retries it.
        scene.run(by, &closure, 33);
        let failed = scene.failed();
        assert_eq!(failed.len(), 1, "{name} {by:?}");
        let text = failed[0]["payload"].as_str().unwrap();
        let payload: Value = serde_json::from_str(text).unwrap();
        assert_eq!(payload["displayName"], "App\\Jobs\\BatchJournal", "{name}");
        scene.sql("alter table away rename to job_batches");
        assert_eq!(scene.state(&batch)[0], 1, "{name} {by:?}");
        let (text, code) = scene.laravel.text(&["queue:retry", "all"]);
        assert_eq!(code, 0, "{name}: {text}");
        assert!(scene.failed().is_empty(), "{name}");
        let again = scene.take("queues:php").unwrap();
        assert_eq!(
            (&again["attempts"], &again["maxTries"]),
            (&json!(0), &json!(34))
        );
    }
    scene.run(By::QueueWork, &closure, 0);
    assert_eq!(scene.called(), ["then", "finally"], "{name}");
    assert_eq!(scene.state(&batch), json!([0, 0, 0, true]), "{name}");
}

on_every_laravel!(closures_wait_longer_and_longer_and_fail_under_the_name_of_their_job);

fn a_closure_whose_worker_was_killed_counts_and_calls_once(version: u8) {
    let scene = Tries::new(version);
    let name = &scene.name;
    for by in [By::QueueWork, By::Pool] {
        let name = format!("{name} {by:?}");
        // Killed at the end, before the closure was deleted: another worker pops it again.
        let batch = scene.batch(&["ok"], &["--then", "--finally"]);
        let closure = scene.closure();
        for (attempts, called) in [(0, &["then", "finally"][..]), (1, &[]), (2, &[])] {
            scene.succeed(by, &closure, attempts);
            assert_eq!(scene.called(), called, "{name} {attempts}");
            assert_eq!(scene.state(&batch), json!([0, 0, 0, true]), "{name}");
        }
        // Killed before it counted.
        let batch = scene.batch(&["ok"], &["--then"]);
        let closure = scene.closure();
        scene.succeed(by, &closure, 1);
        assert_eq!(scene.called(), ["then"], "{name}");
        assert_eq!(scene.state(&batch), json!([0, 0, 0, true]), "{name}");
        // Killed between counting and the rest.
        let batch = scene.batch(&["ok"], &["--then", "--finally"]);
        let closure = scene.closure();
        scene.sql(&format!(
            "update job_batches set pending_jobs = 0, failed_job_ids = '[]' where id = '{batch}'"
        ));
        scene.succeed(by, &closure, 1);
        assert_eq!(scene.called(), ["then", "finally"], "{name}");
        assert_eq!(scene.state(&batch), json!([0, 0, 0, true]), "{name}");
        scene.succeed(by, &closure, 2);
        assert_eq!(scene.called(), [""; 0], "{name}");
        // A failure.
        let batch = scene.batch(&["throw", "ok"], &["--allow-failures", "--catch"]);
        let closure = scene.closure();
        for (attempts, called) in [(0, &["catch"][..]), (1, &[])] {
            scene.succeed(by, &closure, attempts);
            assert_eq!(scene.called(), called, "{name} {attempts}");
            assert_eq!(scene.state(&batch), json!([1, 1, 1, false]), "{name}");
        }
        // The job's own failure does not concern the closure.
        scene.laravel.text(&["queue:flush"]);
    }
    assert!(scene.failed().is_empty(), "{name}");
}

on_every_laravel!(a_closure_whose_worker_was_killed_counts_and_calls_once);

fn catch_callbacks_of_a_chain_are_called_once(version: u8) {
    let scene = Tries::new(version);
    let name = &scene.name;
    let caught = || {
        let lines = scene.redis.list("interop:journal");
        let lines = lines
            .iter()
            .map(|line| String::from_utf8_lossy(line).into_owned());
        lines.filter(|line| line.contains("\"catch\"")).count()
    };
    for (number, by) in [By::QueueWork, By::Pool].into_iter().enumerate() {
        scene.php().text(&["interop:chain", "c", "throw", "ok"]);
        let closure = scene.closure();
        scene.succeed(by, &closure, 0);
        assert_eq!(caught(), number + 1, "{name} {by:?}");
        let keys: Vec<String> = scene.redis.query(&[b"KEYS", b"*artisand:called:*"]);
        assert_eq!(keys, [""; 0], "{name} {by:?}");
        // Killed while it called the first one.
        let begun = scene.laravel.key("artisand:called:") + closure["uuid"].as_str().unwrap();
        scene
            .redis
            .query::<i64>(&[b"HSET", begun.as_bytes(), b"0", b"1"]);
        scene.succeed(by, &closure, 1);
        assert_eq!(caught(), number + 1, "{name} {by:?}");
    }
}

on_every_laravel!(catch_callbacks_of_a_chain_are_called_once);
