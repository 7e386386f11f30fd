//! Failed jobs in the app's own store: Laravel lists and retries artisand's, and the other way round.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use artisand::failed::StoredJob;
use artisand::time::UnixSeconds;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::process::{INTEROP_MAPPINGS, Workplace, eventually, poll};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind, Settings};

const SOON: Duration = Duration::from_secs(60);
/// A zone that is not a whole number of hours from UTC, and is never a default.
const ZONE: &str = "Asia/Kathmandu";

/// A store of failed jobs: a name, and the environment that makes an app use it.
type Store = (String, Settings);

/// Every store that a version has.
fn stores(version: u8, databases: &Databases) -> Vec<Store> {
    let mut stores: Vec<Store> = Vec::new();
    for kind in Kind::ALL {
        for driver in ["database-uuids", "database"] {
            let name = format!("{driver}-{kind:?}").to_lowercase();
            let mut settings = databases.create(kind, &name.replace('-', "_"));
            settings.push(("QUEUE_FAILED_DRIVER", driver.to_owned()));
            stores.push((name, settings));
        }
    }
    if version >= 10 {
        let settings = vec![("QUEUE_FAILED_DRIVER", "file".to_owned())];
        stores.push(("file".to_owned(), settings));
    }
    for (_, settings) in &mut stores {
        settings.push(("APP_TIMEZONE", ZONE.to_owned()));
    }
    stores
}

/// An app with one of the stores, and its workers.
struct Stored {
    scene: Scene,
}

in_scene!(Stored);

/// Seconds before and after something.
type During = (i64, i64);

fn now() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    i64::try_from(since.as_secs()).unwrap()
}

impl Stored {
    fn new(version: u8, (name, settings): &Store) -> Self {
        let mut scene = Scene::new(version, settings, INTEROP_MAPPINGS);
        scene.name = format!("Laravel {version} {name}");
        let scene = Self { scene };
        // The first look makes the tables.
        assert_eq!(scene.failed(), [Value::Null; 0]);
        scene
    }

    /// Runs all jobs in Rust.
    fn rust(&self, options: &[&str]) -> During {
        let before = now();
        let args = [&["--stop-when-empty", "--sleep=0"][..], options].concat();
        let mut worker = self.workplace.worker(&args);
        worker.succeeds_within(SOON);
        (before, now())
    }

    /// Runs all jobs in PHP.
    fn artisan(&self, options: &[&str]) -> During {
        let before = now();
        let args = [&["--stop-when-empty", "--sleep=0"][..], options].concat();
        let mut worker = self.laravel.worker(&args);
        worker.succeeds_within(SOON);
        (before, now())
    }

    /// PHP's view of the store, the last job first.
    fn failed(&self) -> Vec<Value> {
        let found = self.php().run(&["interop:failed"]);
        let jobs = found["jobs"].as_array().unwrap();
        assert_eq!(found["count"], jobs.len(), "{}", self.name);
        jobs.clone()
    }

    fn spooled(&self) -> usize {
        self.redis
            .length(&self.laravel.key("artisand:failed-spool"))
    }

    /// Each line of the journal as `ID:EVENT:BY:ATTEMPTS`, since `from`.
    fn journal(&self, from: usize) -> Vec<String> {
        let lines = self.redis.list("interop:journal");
        let read = |line: &Vec<u8>| {
            let line: Value = serde_json::from_slice(line).unwrap();
            let text = |key: &str| line[key].to_string().trim_matches('"').to_owned();
            ["id", "event", "by", "attempts"].map(text).join(":")
        };
        lines.iter().skip(from).map(read).collect()
    }

    /// Runs `artisand` to its end; returns its standard output.
    fn artisand(&self, args: &[&str]) -> String {
        let output = self.workplace.artisand(args).output().unwrap();
        let (stdout, stderr) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        let name = &self.name;
        assert!(output.status.success(), "{name} {args:?}: {stdout}{stderr}");
        stdout.into_owned()
    }

    /// Checks that the store and the spool are empty.
    fn is_empty(&self) {
        assert_eq!(self.failed(), [Value::Null; 0], "{}", self.name);
        assert_eq!(self.spooled(), 0, "{}", self.name);
    }
}

/// Runs a scene for each store of a version, some at a time.
fn for_each(version: u8, scenario: impl Fn(&Stored) + Sync) {
    let databases = Databases::shared();
    let stores = stores(version, &databases);
    let (halves, scenario) = (stores.len().div_ceil(2), &scenario);
    std::thread::scope(|scope| {
        for half in stores.chunks(halves) {
            scope.spawn(move || {
                for store in half {
                    scenario(&Stored::new(version, store));
                }
            });
        }
    });
}

/// Checks one row as PHP has it.
fn check_row(scene: &Stored, row: &Value, uuid: &str, attempts: u64, during: During) {
    let name = &scene.name;
    assert_eq!(row["connection"], "redis", "{name}: {row}");
    assert_eq!(row["queue"], "default", "{name}: {row}");
    let payload: Value = serde_json::from_str(row["payload"].as_str().unwrap()).unwrap();
    assert_eq!(payload["uuid"], uuid, "{name}: {row}");
    // As it was popped.
    assert_eq!(payload["attempts"], attempts, "{name}: {row}");
    let is_by_number = name.contains("database-") && !name.contains("uuids");
    assert!(is_by_number || row["id"] == uuid, "{name}: {row}");

    let local: DateTime = row["failed_at"].as_str().unwrap()[..19].parse().unwrap();
    let zone = TimeZone::get(ZONE).unwrap();
    let failed_at = zone.to_timestamp(local).unwrap().as_second();
    let (before, after) = during;
    let is_then = (before..=after).contains(&failed_at);
    assert!(is_then, "{name}: {failed_at} not in {during:?}: {row}");

    let exception = row["exception"].as_str().unwrap();
    let (first, rest) = exception.split_once('\n').unwrap();
    let (class, message) = first.split_once(": ").unwrap();
    let is_class = |part: &str| part.chars().all(|c| c.is_alphanumeric() || c == '_');
    assert!(class.split('\\').all(is_class), "{name}: {exception}");
    assert!(message.contains("thrown by the script of"), "{exception}");
    let (_, place) = message.rsplit_once(" in ").unwrap();
    let (_, line) = place.rsplit_once(':').unwrap();
    assert!(line.parse::<u32>().is_ok(), "{name}: {exception}");
    assert!(rest.starts_with("Stack trace:\n#0 "), "{exception}");
    assert!(rest.ends_with(" {main}"), "{name}: {exception}");
}

fn id(row: &Value) -> String {
    row["id"].to_string().trim_matches('"').to_owned()
}

fn what_fails_here_is_listed_and_retried_by_laravel(version: u8) {
    for_each(version, |scene| {
        let first = scene.push("first", &["--script=throw"]);
        let second = scene.push("second", &["--script=release:0,throw", "--tries=2"]);
        let during = scene.rust(&["--tries=1"]);

        assert_eq!(scene.spooled(), 0, "{}", scene.name);
        let rows = scene.failed();
        assert_eq!(rows.len(), 2, "{}: {rows:?}", scene.name);
        // The last one first.
        check_row(scene, &rows[0], &second, 1, during);
        check_row(scene, &rows[1], &first, 0, during);
        let (text, code) = scene.laravel.text(&["queue:failed"]);
        assert_eq!(code, 0, "{text}");
        for row in &rows {
            assert!(text.contains(&id(row)), "{}: {text}", scene.name);
        }

        let seen = scene.journal(0).len();
        let (text, code) = scene.laravel.text(&["queue:retry", &id(&rows[1])]);
        assert_eq!(code, 0, "{text}");
        scene.rust(&["--tries=2"]);
        let runs = ["first:run:rust:1", "first:run:rust:2"];
        assert_eq!(scene.journal(seen), runs, "{}", scene.name);
        assert_eq!(scene.failed(), rows[..1], "{}", scene.name);

        // This one fails the same way again, and is recorded again.
        scene.laravel.text(&["queue:retry", "all"]);
        assert_eq!(scene.failed(), [Value::Null; 0], "{}", scene.name);
        let during = scene.rust(&[]);
        let rows = scene.failed();
        assert_eq!(rows.len(), 1, "{}: {rows:?}", scene.name);
        check_row(scene, &rows[0], &second, 1, during);
        scene.laravel.text(&["queue:flush"]);
        scene.is_empty();
    });
}

on_every_laravel!(what_fails_here_is_listed_and_retried_by_laravel);

/// A row as PHP returns it, of a kind that artisand reads.
fn stored(row: &Value) -> StoredJob {
    let text = |key: &str| row[key].as_str().unwrap().to_owned();
    StoredJob {
        id: id(row),
        connection: text("connection"),
        queue: text("queue"),
        payload: text("payload").into_bytes(),
        exception: text("exception"),
        failed_at: text("failed_at")[..19].to_owned(),
    }
}

fn what_failed_in_php_is_read_and_deleted_here(version: u8) {
    for_each(version, |scene| {
        let name = &scene.name;
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _runtime = runtime.enter();
        let store = scene.laravel.settings().failed_jobs().unwrap();
        let all = || runtime.block_on(store.all()).unwrap();
        assert_eq!(all(), [], "{name}");

        for (id, queue) in [
            ("old", "default"),
            ("a", "default"),
            ("b", "other"),
            ("c", "other"),
        ] {
            let queue = format!("--queue={queue}");
            scene.push(id, &["--script=throw", &queue]);
            // All in the present, except the first: it failed two days ago.
            let then = now() - if id == "old" { 2 * 86_400 } else { 0 };
            let args = ["queue:work", "redis", "--once", "--tries=1", &queue];
            let mut php = scene.laravel.command(&args);
            php.env("INTEROP_NOW", then.to_string());
            let output = php.output().unwrap();
            assert!(output.status.success(), "{name}: {output:?}");
        }
        let rows = scene.failed();
        let expected: Vec<StoredJob> = rows.iter().map(stored).collect();
        assert_eq!(expected.len(), 4, "{name}");
        assert_eq!(all(), expected, "{name}");
        let ids: Vec<String> = expected.iter().map(|job| job.id.clone()).collect();
        let of = |queue| runtime.block_on(store.ids(queue)).unwrap();
        assert_eq!(of(None), ids, "{name}");
        assert_eq!(of(Some("other")), ids[..2], "{name}");
        assert_eq!(of(Some("none")), [""; 0], "{name}");
        let find = |id: &str| runtime.block_on(store.find(id)).unwrap();
        for job in &expected {
            assert_eq!(find(&job.id).as_ref(), Some(job), "{name}");
        }
        assert_eq!(find("0"), None, "{name}");
        assert_eq!(find("no such job"), None, "{name}");

        let yesterday = UnixSeconds(now() - 86_400);
        let pruned = runtime.block_on(store.prune(yesterday)).unwrap();
        assert_eq!(pruned, Some(1), "{name}");
        assert_eq!(scene.failed(), rows[..3], "{name}");
        let forget = |id: &str| runtime.block_on(store.forget(id)).unwrap();
        assert!(forget(&ids[1]), "{name}");
        assert!(!forget(&ids[1]), "{name}");
        assert_eq!(scene.failed(), [rows[0].clone(), rows[2].clone()], "{name}");
        runtime.block_on(store.flush(Some(yesterday))).unwrap();
        assert_eq!(scene.failed().len(), 2, "{name}");
        runtime.block_on(store.flush(None)).unwrap();
        scene.is_empty();
    });
}

on_every_laravel!(what_failed_in_php_is_read_and_deleted_here);

fn commands_of_both_work_on_one_store(version: u8) {
    for_each(version, |scene| {
        let name = &scene.name;
        // Failed in Rust, retried by artisand, run by PHP.
        scene.push("ours", &["--script=throw"]);
        scene.rust(&["--tries=1"]);
        let rows = scene.failed();
        let listed: Value =
            serde_json::from_str(&scene.artisand(&["queue:failed", "--json"])).unwrap();
        let expected = json!([{
            "id": rows[0]["id"], "connection": "redis", "queue": "default",
            "class": "App\\Jobs\\Journal", "failed_at": rows[0]["failed_at"],
        }]);
        assert_eq!(listed, expected, "{name}");
        let seen = scene.journal(0).len();
        scene.artisand(&["queue:retry", &id(&rows[0])]);
        scene.is_empty();
        scene.artisan(&["--tries=2"]);
        let runs = ["ours:run:php:1", "ours:run:php:2"];
        assert_eq!(scene.journal(seen), runs, "{name}");

        // Failed in PHP, retried by artisand, run by either side.
        for by in ["rust", "php"] {
            scene.push("theirs", &["--script=throw"]);
            scene.artisan(&["--tries=1"]);
            let seen = scene.journal(0).len();
            scene.artisand(&["queue:retry", "all"]);
            scene.is_empty();
            match by {
                "rust" => scene.rust(&["--tries=2"]),
                _ => scene.artisan(&["--tries=2"]),
            };
            let expected = [1, 2].map(|attempt| format!("theirs:run:{by}:{attempt}"));
            assert_eq!(scene.journal(seen), expected, "{name}");
        }

        for job in ["x", "y", "z"] {
            scene.push(job, &["--script=throw"]);
        }
        scene.artisan(&["--tries=1"]);
        let rows = scene.failed();
        scene.artisand(&["queue:forget", &id(&rows[1])]);
        assert_eq!(scene.failed(), [rows[0].clone(), rows[2].clone()], "{name}");
        scene.artisand(&["queue:prune-failed", "--hours=1"]);
        assert_eq!(scene.failed().len(), 2, "{name}");
        scene.artisand(&["queue:flush"]);
        scene.is_empty();
    });
}

on_every_laravel!(commands_of_both_work_on_one_store);

/// A single PHP process gets its next job once the failure of the last one is recorded, as in Laravel's own worker:
/// `SQLite` would refuse a batch's count beside the record.
fn a_single_process_waits_for_the_record_of_a_failure(version: u8) {
    let env = [("QUEUE_FAILED_DRIVER", "database-uuids")];
    let scene = Scene::on(RedisServer::start(), version, &env, |laravel| {
        Workplace::with_pool(laravel, 1, "")
    });
    scene.php().run(&["interop:tables"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let settings = scene.laravel.settings();
    let held = runtime.block_on(async {
        let database = settings.open_database(None).unwrap();
        let mut held = database.begin().await.unwrap();
        held.execute("delete from failed_jobs where 1 = 0", &[])
            .await
            .unwrap();
        held
    });
    scene.push("first", &["--script=fail"]);
    scene.push("second", &[]);
    let mut worker = scene.workplace.worker(&["--sleep=0.05"]);
    eventually("the first job has failed", SOON, || {
        (scene.events("first").len() > 1).then_some(())
    });
    let second = || (!scene.events("second").is_empty()).then_some(());
    let began = poll(Duration::from_millis(1_500), second);
    assert_eq!(began, None, "before the record: {}", worker.describe());
    runtime.block_on(held.rollback()).unwrap();
    eventually("the second job runs", SOON, second);
    assert_eq!(scene.failed().len(), 1);
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

on_every_laravel!(a_single_process_waits_for_the_record_of_a_failure);
