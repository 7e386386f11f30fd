//! Batches that PHP and Rust count in turn: rows and callbacks equal those of PHP alone.

use std::time::Duration;

use artisand::batch::{Batch, Batches, Ended, JobOutcome, Recorded};
use artisand::connection::Database;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use crate::harness::fixtures::project;
use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind, Settings};

const SOON: Duration = Duration::from_secs(60);

/// An app with its batches in one kind of database, from both sides.
struct Counted {
    scene: Scene,
    runtime: Runtime,
    batches: Batches,
    /// The same database, for what stands in its columns.
    database: Database,
}

/// Which side takes a batch's next job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Php,
    Rust,
}

fn failed_jobs_of_a_batch_are_retried_as_by_artisan(version: u8) {
    let databases = Databases::shared();
    let mut settings = databases.create(Kind::Sqlite, "retried");
    settings.push(("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()));
    let scene = Counted::new(version, Kind::Sqlite, &settings);
    let workplace = Workplace::for_app(&scene.laravel, "");
    let ours = |id: &str| {
        let output = workplace.artisand(&["queue:retry-batch", id]).output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        (words(&text), output.status.code().unwrap())
    };
    let theirs = |id: &str| {
        let (text, code) = scene.laravel.text(&["queue:retry-batch", id]);
        (words(&text), code)
    };
    let queue = scene.laravel.key("queues:default");

    let (succeeds, _) = scene.dispatch(&["ok"]);
    scene.artisan("--stop-when-empty");
    #[rustfmt::skip]
    let rows = [
        ("nope", "Unable to find a batch with ID [nope]."),
        (succeeds.as_str(), "The given batch does not contain any failed jobs."),
    ];
    for (id, expected) in rows {
        let ((ours, our_code), (theirs, their_code)) = (ours(id), theirs(id));
        assert!(ours.contains(expected), "{}: {ours}", scene.name);
        assert!(theirs.contains(expected), "{}: {theirs}", scene.name);
        assert_eq!(our_code, their_code, "{}: {ours} {theirs}", scene.name);
    }

    let failing = || {
        let (id, uuids) = scene.dispatch(&["--allow-failures", "throw", "ok", "throw"]);
        scene.artisan("--stop-when-empty");
        let failed = scene.find(&id).failed_job_ids;
        assert_eq!(
            failed,
            [uuids[0].clone(), uuids[2].clone()],
            "{}",
            scene.name
        );
        (id, failed)
    };
    let retried = || {
        let elements = scene.redis.list(&queue);
        scene.redis.query::<()>(&[b"DEL", queue.as_bytes()]);
        let uuid = |element: &Vec<u8>| {
            let payload: Value = serde_json::from_slice(element).unwrap();
            payload["uuid"].as_str().unwrap().to_owned()
        };
        elements.iter().map(uuid).collect::<Vec<String>>()
    };
    let ((first, first_jobs), (second, second_jobs)) = (failing(), failing());
    let (our_text, code) = ours(&first);
    assert_eq!(
        (code, retried()),
        (0, first_jobs.clone()),
        "{}: {our_text}",
        scene.name
    );
    let (their_text, code) = theirs(&second);
    assert_eq!(
        (code, retried()),
        (0, second_jobs.clone()),
        "{}: {their_text}",
        scene.name
    );
    if version >= 13 {
        // The same lines, but for the names.
        let unnamed = |text: String, id: &str, jobs: &[String]| {
            let named = jobs.iter().fold(text, |text, job| text.replace(job, "JOB"));
            named.replace(id, "BATCH")
        };
        let ours = unnamed(our_text, &first, &first_jobs);
        assert_eq!(ours, unnamed(their_text, &second, &second_jobs));
    }
}

on_every_laravel!(failed_jobs_of_a_batch_are_retried_as_by_artisan);

/// The words of a command's output, without run times, dots that fill lines, and blanks.
fn words(text: &str) -> String {
    let filled = regex::Regex::new(r"\.{2,} *[0-9.]+m?s").unwrap();
    let text = filled.replace_all(text, " ");
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The state of a batch when all its jobs are gone, normalized so that equal batches compare equal.
#[derive(Debug, PartialEq)]
struct Seen {
    row: Value,
    notes: Vec<Value>,
}

in_scene!(Counted);

impl Counted {
    fn new(version: u8, kind: Kind, settings: &Settings) -> Self {
        let mut scene = Scene::new(version, settings, "");
        scene.name = format!("Laravel {version} {kind:?}");
        let runtime = Runtime::new().unwrap();
        let entered = runtime.enter();
        let settings = scene.laravel.settings();
        let batches = settings.batches().unwrap().unwrap();
        let database = settings.open_database(None).unwrap();
        drop(entered);
        Self {
            scene,
            runtime,
            batches,
            database,
        }
    }

    fn rust<T, E: std::fmt::Debug>(&self, future: impl Future<Output = Result<T, E>>) -> T {
        let result = self.runtime.block_on(future);
        result.unwrap_or_else(|e| panic!("{}: {e:?}", self.name))
    }

    /// Dispatches a batch; returns its id and the uuids of its jobs.
    fn dispatch(&self, args: &[&str]) -> (String, Vec<String>) {
        let line = self.php().run(&[&["interop:batch"][..], args].concat());
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let uuids = line["uuids"].as_array().unwrap().iter().map(text);
        (text(&line["id"]), uuids.collect())
    }

    /// Runs PHP's worker.
    fn artisan(&self, option: &str) {
        let args = [option, "--sleep=0", "--tries=1"];
        let mut worker: ManagedChild = self.laravel.worker(&args);
        worker.succeeds_within(SOON);
    }

    /// Pops the next job and returns its uuid.
    fn take(&self) -> String {
        let queue = self.laravel.key("queues:default");
        let element: Vec<u8> = self.redis.query(&[b"LPOP", queue.as_bytes()]);
        let notify = queue + ":notify";
        self.redis.query::<i64>(&[b"DEL", notify.as_bytes()]);
        let payload: Value = serde_json::from_slice(&element).unwrap();
        payload["uuid"].as_str().unwrap().to_owned()
    }

    /// Lets PHP record the ends that only PHP may record.
    fn record_in_php(&self, id: &str, ended: &Ended) {
        let outcome = match ended.outcome {
            JobOutcome::Succeeded => "succeeded",
            JobOutcome::Failed => "failed",
        };
        let args = ["interop:batch-record", id, &ended.uuid, outcome];
        self.php().run(&args);
    }

    fn find(&self, id: &str) -> Batch {
        self.rust(self.batches.find(id)).unwrap()
    }

    /// `failed_job_ids` and `options` as they are in the row.
    fn columns(&self, id: &str) -> [Vec<u8>; 2] {
        let database = &self.database;
        let (ids, options) = (
            database.as_text("failed_job_ids"),
            database.as_text("options"),
        );
        let table = database.table("job_batches");
        let sql = format!("select {ids}, {options} from {table} where \"id\" = ?");
        let rows = self.rust(database.rows(&sql, &[id.into()]));
        [0, 1].map(|column| rows[0].bytes(column).unwrap().to_vec())
    }

    /// Takes the notes of the callbacks.
    fn notes(&self) -> Vec<Value> {
        let lines = self.redis.list("interop:batch");
        self.redis.query::<i64>(&[b"DEL", b"interop:batch"]);
        let read = |line: &Vec<u8>| -> Value { serde_json::from_slice(line).unwrap() };
        lines.iter().map(read).collect()
    }

    /// PHP and artisand read the same from a row.
    fn agree(&self, id: &str) -> Batch {
        let batch = self.find(id);
        let seconds = |at: Option<artisand::time::UnixSeconds>| at.map(|at| at.0);
        let ours = json!({
            "id": batch.id, "name": batch.name, "total": batch.total_jobs, "pending": batch.pending_jobs,
            "failed": batch.failed_jobs, "failed_ids": batch.failed_job_ids, "processed": batch.processed_jobs(),
            "progress": batch.progress(), "has_failures": batch.has_failures(),
            "allows_failures": batch.allows_failures(), "created_at": batch.created_at.0,
            "cancelled_at": seconds(batch.cancelled_at), "finished_at": seconds(batch.finished_at),
            "queue": batch.options.queue, "connection": batch.options.connection,
        });
        let mut theirs = self.php().run(&["interop:batch-state", id]);
        // They see marks, as long as there are any.
        if let Some(ids) = theirs["failed_ids"].as_array_mut() {
            ids.retain(|id| !id.as_str().unwrap().starts_with("artisand:"));
        }
        assert_eq!(ours, theirs, "{}", self.name);
        batch
    }

    /// Runs a batch, the sides in turn; PHP alone runs all at once.
    fn run(&self, scripts: &[&str], flags: &[&str], turns: &[By]) -> Seen {
        let name = format!("{} {scripts:?} {flags:?} {turns:?}", self.name);
        let (id, uuids) = self.dispatch(&[scripts, flags].concat());
        let options = self.columns(&id)[1].clone();
        let mut counted = Vec::new();
        if turns == [By::Php] {
            self.artisan("--stop-when-empty");
        } else {
            for (number, script) in scripts.iter().enumerate() {
                if turns[number % turns.len()] == By::Php {
                    let args = ["--once", "--sleep=0", "--tries=1"];
                    self.php()
                        .text(&[&["queue:work", "redis"][..], &args].concat());
                    continue;
                }
                assert_eq!(self.take(), uuids[number], "{name}");
                let ended = Ended {
                    uuid: uuids[number].clone(),
                    outcome: match *script {
                        "throw" => JobOutcome::Failed,
                        _ => JobOutcome::Succeeded,
                    },
                    token: String::new(),
                };
                let before = self.columns(&id);
                let record = || {
                    let recorded = self.batches.record(&id, std::slice::from_ref(&ended));
                    self.rust(recorded)[0]
                };
                match record() {
                    Recorded::Counted => {
                        assert_eq!(record(), Recorded::AlreadyCounted, "{name}");
                        counted.push(ended);
                    }
                    Recorded::NeedsPhp => {
                        assert_eq!(record(), Recorded::NeedsPhp, "{name}");
                        assert_eq!(self.columns(&id), before, "{name}");
                        let silent = self.redis.length("interop:batch");
                        self.record_in_php(&id, &ended);
                        // PHP was really needed.
                        assert!(self.redis.length("interop:batch") > silent, "{name}");
                    }
                    other => panic!("{name}: {other:?}"),
                }
                self.agree(&id);
            }
            // Whatever PHP did in between, the counts are certain.
            for ended in &counted {
                let again = self.batches.record(&id, std::slice::from_ref(ended));
                assert_eq!(self.rust(again), [Recorded::AlreadyCounted], "{name}");
            }
            self.rust(self.batches.forget_marks(&id, &counted));
        }
        let batch = self.agree(&id);
        let [ids, now] = self.columns(&id);
        assert_eq!(now, options, "{name}");
        let mut ids = String::from_utf8(ids).unwrap();
        for (number, uuid) in uuids.iter().enumerate() {
            ids = ids.replace(uuid, &number.to_string());
        }
        let mut notes = self.notes();
        for note in &mut notes {
            assert_eq!(note["id"], *id, "{name}");
            note["id"].take();
        }
        let row = json!([
            batch.total_jobs,
            batch.pending_jobs,
            batch.failed_jobs,
            ids,
            batch.is_cancelled(),
            batch.is_finished(),
            batch.cancelled_at == batch.finished_at,
        ]);
        Seen { row, notes }
    }
}

/// Runs a scenario on every database of a version.
fn each_database(version: u8, scenario: impl Fn(&Counted) + Sync) {
    let databases = Databases::shared();
    let settings = Kind::ALL.map(|kind| {
        let name = format!("batches_{kind:?}").to_lowercase();
        (kind, databases.create(kind, &name))
    });
    std::thread::scope(|scope| {
        for (kind, settings) in &settings {
            scope.spawn(|| scenario(&Counted::new(version, *kind, settings)));
        }
    });
}

fn batches_end_as_in_php_whether_php_or_artisand_counts(version: u8) {
    each_database(version, |scene| {
        #[rustfmt::skip]
        let mut scenarios: Vec<(&[&str], &[&str])> = vec![
            (&["ok", "ok", "ok"], &["--name=plain"]),
            (&["ok", "throw", "ok", "throw"], &[]),
            (&["throw", "ok", "throw", "ok"], &["--allow-failures"]),
            (&["ok", "ok", "ok"], &["--then", "--catch", "--finally"]),
            (&["ok", "throw", "ok", "throw"], &["--then", "--catch", "--finally"]),
            (&["throw", "ok", "throw"], &["--allow-failures", "--then", "--catch", "--finally"]),
        ];
        if version >= 10 {
            scenarios.push((&["ok", "ok"], &["--before"]));
            scenarios.push((&["ok", "throw"], &["--progress", "--finally"]));
            scenarios.push((&["ok", "throw"], &["--progress", "--allow-failures"]));
        }
        if version >= 13 {
            scenarios.push((&["throw", "ok"], &["--failure"]));
        }
        for (number, (scripts, flags)) in scenarios.into_iter().enumerate() {
            let expected = scene.run(scripts, flags, &[By::Php]);
            let mut by_turns = [By::Rust, By::Php];
            by_turns.rotate_left(number % 2);
            for turns in [&[By::Rust][..], &by_turns] {
                let seen = scene.run(scripts, flags, turns);
                assert_eq!(
                    seen, expected,
                    "{} {scripts:?} {flags:?} {turns:?}",
                    scene.name
                );
            }
        }
    });
}

on_every_laravel!(batches_end_as_in_php_whether_php_or_artisand_counts);

fn retried_jobs_count_as_in_php(version: u8) {
    each_database(version, |scene| {
        let name = &scene.name;
        // Each side retries jobs that failed in the other.
        let counts = [By::Php, By::Rust].map(|first| {
            let (id, uuids) = scene.dispatch(&["throw", "ok", "--allow-failures"]);
            let ended = |number: usize, outcome| Ended {
                uuid: uuids[number].clone(),
                outcome,
                token: String::new(),
            };
            scene.take();
            scene.take();
            let endings = [
                ended(0, JobOutcome::Failed),
                ended(0, JobOutcome::Failed),
                ended(0, JobOutcome::Succeeded),
                ended(1, JobOutcome::Succeeded),
            ];
            let mut by = first;
            let mut seen = Vec::new();
            for ended in &endings {
                by = match by {
                    By::Php => {
                        scene.record_in_php(&id, ended);
                        By::Rust
                    }
                    By::Rust => {
                        let ended = std::slice::from_ref(ended);
                        let recorded = scene.rust(scene.batches.record(&id, ended));
                        assert_eq!(recorded, [Recorded::Counted], "{name}");
                        scene.rust(scene.batches.forget_marks(&id, ended));
                        By::Php
                    }
                };
                let batch = scene.agree(&id);
                let is_listed = batch.failed_job_ids == uuids[..1];
                seen.push((batch.pending_jobs, batch.failed_jobs, is_listed));
            }
            assert!(scene.find(&id).is_finished(), "{name}");
            seen
        });
        let expected = [(2, 1, true), (2, 2, true), (1, 2, false), (0, 2, false)];
        assert_eq!(counts, [expected.to_vec(), expected.to_vec()], "{name}");
    });
}

on_every_laravel!(retried_jobs_count_as_in_php);

fn batches_are_pruned_as_by_artisan(version: u8) {
    each_database(version, |scene| {
        let name = &scene.name;
        let workplace = Workplace::for_app(&scene.laravel, "");
        let database = &scene.database;
        let table = database.table("job_batches");
        let mut args = vec!["queue:prune-batches", "--hours=2", "--unfinished=3"];
        if version > 8 {
            args.push("--cancelled=4");
        }
        let prune = |by: By| {
            // Finished, unfinished and cancelled; each of them this side and that side of its limit.
            let left: Vec<(String, i64)> = [(1, 1), (1, 3), (2, 2), (2, 4), (3, 3), (3, 5)]
                .into_iter()
                .map(|(kind, hours)| {
                    let (id, _) = scene.dispatch(&["ok"]);
                    scene.take();
                    if kind == 3 {
                        assert!(scene.rust(scene.batches.cancel(&id)), "{name}");
                    }
                    let past = format!(
                        "update {table} set \"created_at\" = \"created_at\" - ? where \"id\" = ?"
                    );
                    let params = [(hours * 3600 + 60).into(), (&id).into()];
                    assert_eq!(scene.rust(database.execute(&past, &params)), 1, "{name}");
                    if kind == 1 {
                        let finish = format!(
                            "update {table} set \"finished_at\" = \"created_at\" where \"id\" = ?"
                        );
                        scene.rust(database.execute(&finish, &[(&id).into()]));
                    }
                    (id, kind * 10 + hours)
                })
                .collect();
            let text = match by {
                By::Php => scene.laravel.text(&args),
                By::Rust => {
                    let output = workplace.artisand(&args).output().unwrap();
                    let text = String::from_utf8_lossy(&output.stdout).into_owned();
                    (text, output.status.code().unwrap())
                }
            };
            let is_there = |id: &String| scene.rust(scene.batches.find(id)).is_some();
            let left: Vec<i64> = left
                .iter()
                .filter(|(id, _)| is_there(id))
                .map(|(_, which)| *which)
                .collect();
            let all = format!("delete from {table}");
            scene.rust(database.execute(&all, &[]));
            (text, left)
        };
        let (theirs, ours) = (prune(By::Php), prune(By::Rust));
        assert_eq!(ours.1, theirs.1, "{name}");
        let expected: &[i64] = if version > 8 {
            &[11, 22, 33]
        } else {
            &[11, 22, 33, 35]
        };
        assert_eq!(ours.1, expected, "{name}");
        assert_eq!(ours.0.1, 0, "{name}: {}", ours.0.0);
        if version >= 13 {
            assert_eq!(ours.0, theirs.0, "{name}");
        }
    });
}

on_every_laravel!(batches_are_pruned_as_by_artisan);

/// The last job of a batch causes the closure with its callbacks: the queue is not empty before that ran.
fn callbacks_run_before_a_worker_stops_for_want_of_jobs(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let php = laravel.serve();
    let binary = json!([project().join("php-interop/laravel"), version.to_string()]);
    let settings = format!(
        "[unmapped]\npolicy = \"php\"\n\n[php]\nbinary = {binary}\napp = \".\"\n\n\
         [[map]]\njob = 'App\\Jobs\\BatchJournal'\nhandler = \"discard\"\n"
    );
    let workplace = Workplace::for_app(&laravel, &settings);
    for round in 0..5 {
        php.run(&["interop:batch", "ok", "ok", "ok", "--then", "--finally"]);
        let mut command = workplace.artisand(&["queue:work", "redis", "--stop-when-empty"]);
        command.envs(laravel.env.iter().map(|(name, value)| (name, value)));
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(SOON);
        let notes = redis.length("interop:batch");
        let name = format!("Laravel {version}, round {round}");
        assert_eq!(notes, 2 * (round + 1), "{name}: {}", worker.describe());
        assert_eq!(redis.jobs(&laravel.key("queues:default")), 0, "{name}");
    }
}

on_every_laravel!(callbacks_run_before_a_worker_stops_for_want_of_jobs);
