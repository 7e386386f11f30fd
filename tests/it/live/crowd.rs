//! A large batch among many workers of both kinds: its row and its callbacks are those of PHP alone.

use std::collections::BTreeSet;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use super::ends_killed::sqlite;
use crate::harness::journal;
use crate::harness::process::{ManagedChild, poll};
use crate::harness::scene::{Scene, in_scene, text};
use crate::harness::sql::{MariaDbServer, PostgresServer};
use crate::harness::stores::Settings;

/// Many times what it takes: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(180);
/// Jobs at the head of a batch. At least 34 of them wait until both kinds of workers run some: artisand's workers have
/// room for 32.
const HEAD: usize = 36;

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\BatchJournal'
handler = "journal"
"#;

struct Crowd {
    scene: Scene,
    workers: Vec<ManagedChild>,
}

in_scene!(Crowd);

/// A batch that was run.
struct Ran {
    /// Of its jobs that were to fail.
    failing: BTreeSet<String>,
    row: Value,
    /// Who ran its jobs.
    by: BTreeSet<String>,
    /// What its callbacks saw, in turn.
    notes: Vec<Value>,
}

impl Ran {
    fn calls(&self, callback: &str) -> usize {
        let is_it = |note: &&Value| note["callback"] == callback;
        self.notes.iter().filter(is_it).count()
    }
}

impl Crowd {
    fn new(version: u8, settings: &Settings) -> Self {
        let failed = [("QUEUE_FAILED_DRIVER", "database-uuids".to_owned())];
        let scene = Scene::new(version, &[&settings[..], &failed].concat(), MAPPINGS);
        // The first look makes the tables.
        scene.failed();
        let rust = (0..4).map(|_| scene.worker(&["--concurrency=8", "--tries=1"]));
        let mut workers: Vec<_> = rust.collect();
        let php_worker = || scene.php_worker(&["--tries=1", "--sleep=0.05"]);
        workers.extend([php_worker(), php_worker()]);
        // Both kinds boot for a while, in which the others would run all jobs there are.
        scene
            .redis
            .eventually("both kinds of workers run jobs", LONG, || {
                scene.php().run(&["interop:batch", "ok"]);
                let lines = scene.lines();
                let has_run = |kind: &str| lines.iter().any(|line| line.by == kind);
                (has_run("php") && has_run("rust")).then_some(())
            });
        scene
            .redis
            .eventually("the jobs before are done", LONG, || {
                (scene.queued() == 0).then_some(())
            });
        Self { scene, workers }
    }

    fn describe(&self) -> String {
        let workers = self.workers.iter().map(ManagedChild::describe);
        format!(
            "{}\n{}",
            self.redis.state(),
            workers.collect::<Vec<_>>().join("\n")
        )
    }

    /// Dispatches a batch of this many jobs, every twentieth of which fails if `fails`; waits for its end.
    fn run(&mut self, jobs: usize, fails: bool, flags: &[&str]) -> Ran {
        let scripts: Vec<&str> = (0..jobs)
            .map(|job| match job % 40 {
                7 if fails => "fail",
                27 if fails => "sleep:0.002+throw",
                _ if job < HEAD => "await:both",
                _ => "ok",
            })
            .collect();
        let callbacks = ["--then", "--catch", "--finally"];
        let args = [&["interop:batch"][..], &scripts, &callbacks, flags].concat();
        let from = self.redis.length("interop:journal");
        self.redis
            .query::<i64>(&[b"DEL", b"interop:batch", b"interop:both"]);
        let batch = self.php().run(&args);
        let uuids: Vec<&str> = batch["uuids"]
            .as_array()
            .unwrap()
            .iter()
            .map(text)
            .collect();
        assert_eq!(uuids.len(), jobs);
        let is_to_fail = |script: &str| script == "fail" || script.ends_with("throw");
        let failing = (uuids.iter().zip(&scripts)).filter(|(_, script)| is_to_fail(script));
        let failing: BTreeSet<String> = failing.map(|(uuid, _)| (*uuid).to_owned()).collect();
        self.redis
            .eventually("both kinds of workers have some", LONG, || {
                let lines = journal::since(&self.redis, from);
                let has_run = |kind: &str| lines.iter().any(|line| line.by == kind);
                (has_run("php") && has_run("rust")).then_some(())
            });
        self.redis.query::<()>(&[b"SET", b"interop:both", b"1"]);

        let id = text(&batch["id"]);
        let (scene, workers) = (&self.scene, &mut self.workers);
        let left = poll(LONG, || {
            for worker in &mut *workers {
                assert!(worker.is_running(), "ended: {}", worker.describe());
            }
            (scene.queued() == 0 && scene.own_keys().is_empty() && is_over(scene, id)).then_some(())
        });
        assert!(left.is_some(), "no end: {}", self.describe());
        // Laravel counts a job that fails before it calls the callbacks, and then records it. Two of the three
        // callbacks are called, whatever the end.
        let ended = "two callbacks, and a record of each job that failed";
        self.redis.eventually(ended, LONG, || {
            let failed: BTreeSet<String> = self.failed_uuids().into_iter().collect();
            let is_told = self.redis.length("interop:batch") >= 2;
            (is_told && failing.is_subset(&failed)).then_some(())
        });

        let lines = journal::since(&self.redis, from);
        let runs: Vec<_> = lines.iter().filter(|line| line.event == "run").collect();
        let ran: BTreeSet<_> = runs
            .iter()
            .filter_map(|line| line.uuid.as_deref())
            .collect();
        assert_eq!(ran, uuids.iter().copied().collect(), "all are run");
        assert_eq!(runs.len(), jobs, "each is run once");
        let notes = self.redis.list("interop:batch");
        Ran {
            failing,
            row: self.php().run(&["interop:batch-state", id]),
            by: runs.iter().map(|line| line.by.clone()).collect(),
            notes: (notes.iter())
                .map(|note| serde_json::from_slice(note).unwrap())
                .collect(),
        }
    }
}

/// Whether all jobs of a batch are counted.
fn is_over(scene: &Scene, id: &str) -> bool {
    let row = scene.php().run(&["interop:batch-state", id]);
    row["pending"] == row["failed"]
}

fn sorted(value: &Value) -> Vec<String> {
    let texts = value.as_array().unwrap().iter().map(text);
    let mut texts: Vec<String> = texts.map(str::to_owned).collect();
    texts.sort();
    texts
}

fn a_large_batch_ends_as_in_php(version: u8, settings: &Settings) {
    const JOBS: usize = 1000;
    let mut scene = Crowd::new(version, settings);

    let ran = scene.run(JOBS, true, &["--allow-failures"]);
    assert_eq!(
        ran.by.len(),
        2,
        "both kinds of workers had some: {:?}",
        ran.by
    );
    let failing: Vec<String> = ran.failing.iter().cloned().collect();
    assert_eq!(failing.len(), JOBS / 20);
    let row = &ran.row;
    assert_eq!(
        json!([
            row["total"],
            row["pending"],
            row["failed"],
            row["cancelled_at"],
            row["finished_at"]
        ]),
        json!([JOBS, failing.len(), failing.len(), null, null]),
        "{row}"
    );
    // Without marks: they would be uuids that are no job's.
    assert_eq!(sorted(&row["failed_ids"]), failing);
    assert_eq!(
        ["then", "catch", "finally"].map(|name| ran.calls(name)),
        [0, 1, 1]
    );
    let last = &ran.notes[1];
    assert_eq!(last["callback"], "finally");
    assert_eq!(json!([last["pending"], last["failed"]]), json!([50, 50]));
    assert_eq!(scene.failed_uuids(), failing);

    let ran = scene.run(JOBS / 5, false, &["--allow-failures"]);
    let row = &ran.row;
    assert_eq!(
        json!([
            row["total"],
            row["pending"],
            row["failed"],
            row["failed_ids"],
            row["cancelled_at"]
        ]),
        json!([JOBS / 5, 0, 0, [], null]),
        "{row}"
    );
    assert!(row["finished_at"].is_number(), "{row}");
    assert_eq!(
        ["then", "catch", "finally"].map(|name| ran.calls(name)),
        [1, 0, 1]
    );
    assert_eq!(scene.failed_uuids(), failing);

    // Cancelled by the first failure; jobs that do not ask are run all the same.
    let ran = scene.run(JOBS / 5, true, &[]);
    let row = &ran.row;
    assert_eq!(
        json!([row["total"], row["pending"], row["failed"]]),
        json!([JOBS / 5, ran.failing.len(), ran.failing.len()]),
        "{row}"
    );
    assert!(
        row["cancelled_at"].is_number() && row["finished_at"].is_number(),
        "{row}"
    );
    assert_eq!(
        sorted(&row["failed_ids"]),
        ran.failing.iter().cloned().collect::<Vec<_>>()
    );
    assert_eq!(
        ["then", "catch", "finally"].map(|name| ran.calls(name)),
        [0, 1, 1]
    );
    let both: BTreeSet<String> = ran.failing.into_iter().chain(failing).collect();
    assert_eq!(scene.failed_uuids(), both.into_iter().collect::<Vec<_>>());

    for worker in &mut scene.workers {
        worker.signal(Signal::TERM);
    }
    for worker in &mut scene.workers {
        worker.succeeds_within(LONG);
    }
    assert_eq!(scene.own_keys(), [""; 0], "{}", scene.laravel.version);
}

on_laravel! { a_large_batch_ends_as_in_php:
    laravel_8_mariadb(8, &MariaDbServer::start().env().to_vec())
    laravel_10_postgres(10, &PostgresServer::start().env().to_vec())
    laravel_13_mariadb(13, &MariaDbServer::start().env().to_vec())
    laravel_13_sqlite(13, &sqlite())
}
