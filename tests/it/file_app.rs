//! Commands in an app whose jobs are rows of a file: neither a server nor PHP is there.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use artisand::connection::{Database, DatabaseKind, DatabaseOptions};
use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::jobs_table::migration;
use crate::harness::process::{ManagedChild, artisand, eventually};
use crate::harness::stores::Kind;

const SOON: Duration = Duration::from_secs(60);

/// An app with a manifest, and the tables of Laravel's migrations.
struct FileApp {
    home: TempDir,
    database: Database,
    runtime: Runtime,
}

impl FileApp {
    fn new() -> Self {
        Self::with(&json!({}))
    }

    /// With further queue connections.
    fn with(connections: &Value) -> Self {
        let home = tempfile::tempdir().unwrap();
        let file = home.path().join("database.sqlite");
        std::fs::write(&file, "").unwrap();
        let mut all = json!({"database": {
            "driver": "database", "table": "jobs", "queue": "default", "retry_after": 90,
        }});
        for (name, connection) in connections.as_object().unwrap() {
            all[name] = connection.clone();
        }
        let manifest = json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 0,
            "paths": {"base": home.path(), "storage": home.path().join("storage")},
            "config": {
                "app": {"timezone": "UTC", "maintenance": {"driver": "file"}},
                "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": home.path().join("cache")}}, "prefix": ""},
                "database": {
                    "default": "sqlite",
                    "connections": {"sqlite": {"driver": "sqlite", "database": file, "prefix": ""}},
                },
                "queue": {
                    "default": "database", "connections": all,
                    "batching": {"database": "sqlite", "table": "job_batches"},
                    "failed": {"driver": "database-uuids", "database": "sqlite", "table": "failed_jobs"},
                },
            },
        });
        std::fs::write(home.path().join("artisand.json"), manifest.to_string()).unwrap();
        let options = DatabaseOptions {
            database: file.to_str().unwrap().into(),
            ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
        };
        let runtime = Runtime::new().unwrap();
        let database = runtime.block_on(async {
            let database = Database::new(&options).unwrap();
            for statement in migration(Kind::Sqlite) {
                database.execute(&statement, &[]).await.unwrap();
            }
            database
        });
        let app = Self {
            home,
            database,
            runtime,
        };
        app.set("[unmapped]\npolicy = 'leave'\n");
        app
    }

    fn path(&self, name: &str) -> PathBuf {
        self.home.path().join(name)
    }

    /// Writes `artisand.toml` with these settings.
    fn set(&self, settings: &str) {
        let toml = format!("settings = 'manifest'\n{settings}");
        std::fs::write(self.path("artisand.toml"), toml).unwrap();
    }

    fn artisand(&self, args: &[&str]) -> Command {
        let mut command = artisand(args);
        command.current_dir(self.home.path()).env("COLUMNS", "80");
        command
    }

    /// Runs a command to its end; returns its exit code, and all that it has printed.
    fn run(&self, args: &[&str]) -> (i32, String) {
        let mut process = ManagedChild::spawn(self.artisand(args));
        let code = process.wait_timeout(SOON).code().unwrap();
        (code, process.stdout() + &process.stderr())
    }

    /// The rows that a statement selects, each as its only column.
    fn select(&self, sql: &str) -> Vec<String> {
        let rows = self.runtime.block_on(self.database.rows(sql, &[])).unwrap();
        rows.iter()
            .map(|row| row.text(0).unwrap().into_owned())
            .collect()
    }

    /// Adds a job that is due at this second.
    fn insert(&self, queue: &str, payload: &str, due: i64) {
        let sql = "insert into jobs (queue, payload, attempts, available_at, created_at) values (?, ?, 0, ?, 0)";
        let params = [queue.into(), payload.into(), due.into()];
        let inserted = self.runtime.block_on(self.database.execute(sql, &params));
        inserted.unwrap();
    }

    fn payloads(&self) -> Vec<String> {
        self.select("select payload from jobs order by id")
    }
}

#[test]
fn a_line_that_cannot_be_read_is_an_error_with_its_number() {
    let app = FileApp::new();
    std::fs::write(
        app.path("lines"),
        b"{\"id\":1}\n \n{\"name\":\"Ren\xe9\"}\n{\"id\":3}\n",
    )
    .unwrap();
    std::fs::create_dir(app.path("directory")).unwrap();
    for (data, dispatched, expected) in [
        ("--data=@lines", 1, "lines:3: "),
        ("--data=@directory", 0, "directory:1: "),
    ] {
        let before = app.payloads().len();
        let (code, said) = app.run(&["dispatch", "Legacy@run", data]);
        assert_eq!(code, 1, "{data}: {said}");
        assert!(said.contains(expected), "{data}: {said}");
        assert_eq!(app.payloads().len() - before, dispatched, "{data}: {said}");
    }
}

#[test]
fn lines_are_dispatched_as_they_come_and_a_stop_says_how_far_they_have_come() {
    let app = FileApp::new();
    let (mut dispatch, mut input) =
        ManagedChild::spawn_fed(app.artisand(&["dispatch", "Legacy@run", "--data=-"]));
    for (lines, jobs) in [("{\"id\":1}\n", 1), ("\n{\"id\":2}\n", 2)] {
        input.write_all(lines.as_bytes()).unwrap();
        eventually("what has come is pushed", SOON, || {
            (app.payloads().len() == jobs).then_some(())
        });
    }
    // The pipe is still open.
    dispatch.signal(Signal::TERM);
    let status = dispatch.wait_timeout(SOON);
    assert_eq!(status.code(), Some(1), "{}", dispatch.describe());
    assert_eq!(dispatch.stdout(), "2 jobs dispatched\n");
    let said = dispatch.stderr();
    assert!(said.contains("stopped after standard input:3"), "{said}");
    assert_eq!(app.payloads().len(), 2);
}

#[test]
fn payloads_in_quarantine_are_named_by_their_bytes() {
    let app = FileApp::new();
    for payload in ["first", "second", "third"] {
        app.insert("default:quarantine", payload, 0);
    }
    let (code, listed) = app.run(&["queue:quarantine", "--json", "--show"]);
    assert_eq!(code, 0, "{listed}");
    let listed = listed.lines().map(|line| {
        let object: Value = serde_json::from_str(line).unwrap();
        let text = |key: &str| object[key].as_str().unwrap().to_owned();
        (text("payload"), format!("--only={}", text("id")))
    });
    let ids: BTreeMap<String, String> = listed.collect();
    let (first, second) = (&*ids["first"], &*ids["second"]);
    let both = format!("{second},nothing");
    #[rustfmt::skip]
    let rows: [(&[&str], i32, &str, &[&str]); 6] = [
        (&["--delete", first], 0, "1 payload deleted from the quarantine of the [default] queue", &["second", "third"]),
        // It would have been the second one by its number.
        (&["--delete", first], 1, "no payload in quarantine has the id", &["second", "third"]),
        (&["--delete", "--only=1"], 1, "no payload in quarantine has the id `1`", &["second", "third"]),
        (&["--delete", &both], 1, "no payload in quarantine has the id `nothing`", &["second", "third"]),
        (&["--delete", "--show", second], 0, "\n    second\n", &["third"]),
        (&["--requeue"], 0, "1 payload pushed back onto the [default] queue", &[]),
    ];
    for (args, expected_code, expected, left) in rows {
        let (code, said) = app.run(&[&["queue:quarantine", "default"], args].concat());
        assert_eq!(code, expected_code, "{args:?}: {said}");
        assert!(said.contains(expected), "{args:?}: {said}");
        let held =
            app.select("select payload from jobs where queue = 'default:quarantine' order by id");
        assert_eq!(held, left, "{args:?}");
    }
    assert_eq!(app.payloads(), ["third"]);
}

#[test]
fn the_oldest_pending_job_is_the_one_that_has_been_due_for_the_longest_time() {
    let app = FileApp::new();
    let pushed = |at: i64| json!({"job": "Legacy@run", "data": [], "createdAt": at}).to_string();
    // Pushed first, released twice; pushed later with a delay; reserved; not yet due.
    app.insert("default", &pushed(10), 200);
    app.insert("default", &pushed(50), 100);
    app.insert("default", &pushed(5), 6);
    let reserve = "update jobs set reserved_at = 7 where available_at = 6 returning payload";
    assert_eq!(app.select(reserve).len(), 1);
    app.insert("default", &pushed(1), 4_000_000_000);
    app.insert("later", &pushed(1), 4_000_000_000);
    let (code, said) = app.run(&["queue:monitor", "default,later", "--json"]);
    assert_eq!(code, 0, "{said}");
    let queues: Vec<Value> = serde_json::from_str(&said).unwrap();
    let oldest: Vec<&Value> = queues
        .iter()
        .map(|queue| &queue["oldest_pending"])
        .collect();
    assert_eq!(oldest, [&json!(100), &json!(null)], "{said}");
}

#[test]
fn only_a_worker_makes_the_file_of_its_ledger() {
    let server = Beanstalkd::start();
    let app = FileApp::with(&json!({"tubes": {
        "driver": "beanstalkd", "host": "127.0.0.1", "port": server.port(), "queue": "default", "retry_after": 90,
    }}));
    app.set("[worker]\nledger = 'made/ledger.sqlite'\n[unmapped]\npolicy = 'fail'\n");
    let rows: [(&[&str], &str); 5] = [
        (&["queue:peek", "--connection=tubes"], "0 pending"),
        (&["queue:monitor", "tubes:default"], "[tubes] default"),
        (&["queue:quarantine", "--connection=tubes"], "No payloads"),
        (&["doctor", "tubes"], "ends of jobs are noted: file"),
        (
            &["dispatch", "Legacy@run", "--connection=tubes"],
            "on queue default",
        ),
    ];
    for (args, expected) in rows {
        let (_, said) = app.run(args);
        assert!(said.contains(expected), "{args:?}: {said}");
        assert!(!said.contains("spool"), "{args:?}: {said}");
        assert!(!app.path("made").exists(), "{args:?}: {said}");
    }
    let (_, said) = app.run(&["queue:work", "tubes", "--stop-when-empty"]);
    assert!(app.path("made/ledger.sqlite").exists(), "{said}");
}

#[test]
fn empty_arguments_mean_what_they_mean_in_php() {
    let app = FileApp::new();
    #[rustfmt::skip]
    let rows: [(&[&str], &str); 8] = [
        (&["queue:work", "", "--queue", "--max-jobs=", "--max-time=", "--memory=", "--timeout=", "--stop-when-empty"], "Queue empty"),
        (&["queue:work", "", "--queue=", "--stop-when-empty"], "Queue empty"),
        (&["queue:clear", "", "--force", "--queue"], "from the [default] queue"),
        (&["queue:migrate", ""], "workers of the driver [database] find due jobs where they are"),
        (&["queue:peek", "--connection="], "[database] default: 0 pending"),
        (&["queue:quarantine", "--connection="], "No payloads in quarantine"),
        (&["doctor", ""], "none of connection `database` holds jobs now"),
        (&["tail", ""], "the connection [database] has the driver `database`"),
    ];
    for (args, expected) in rows {
        let (_, said) = app.run(args);
        assert!(said.contains(expected), "{args:?}: {said}");
    }
}
