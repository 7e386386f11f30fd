//! Entries of Pulse, compared with those of real Pulse (php-interop/pulse/rows.json, whose first line says of which).

use std::collections::BTreeMap;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use artisand::connection::{Database, DatabaseKind, DatabaseOptions};
use artisand::payload::Payload;
use artisand::pulse::{
    Happened, Limit, Pulse, PulseOptions, PulseRecorder, RecorderOptions, Rows, SlowJobs, write,
};
use artisand::queue::QueueName;
use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::jobs_table::JobsTable;
use crate::harness::process::{ManagedChild, artisand, until};
use crate::harness::redis::RedisServer;
use crate::harness::stores::Kind;

const SOON: Duration = Duration::from_secs(60);

fn read(name: &str) -> Value {
    let path = project().join("php-interop/pulse").join(name);
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

/// What Pulse's migration makes.
fn tables(kind: DatabaseKind, prefix: &str) -> Vec<String> {
    let (id, hash, key) = match kind {
        DatabaseKind::Sqlite => (
            "integer primary key autoincrement",
            "varchar not null",
            "text",
        ),
        DatabaseKind::MySql => (
            "bigint unsigned not null auto_increment primary key",
            "char(16) character set binary as (unhex(md5(`key`)))",
            "mediumtext character set utf8mb4",
        ),
        DatabaseKind::Postgres => (
            "bigserial primary key",
            "uuid not null generated always as (md5(\"key\")::uuid) stored",
            "text",
        ),
    };
    vec![
        format!(
            "create table \"{prefix}pulse_entries\" (\"id\" {id}, \"timestamp\" integer not null, \"type\" varchar(255) not null, \
             \"key\" {key} not null, \"key_hash\" {hash}, \"value\" bigint null)"
        ),
        format!(
            "create table \"{prefix}pulse_aggregates\" (\"id\" {id}, \"bucket\" integer not null, \"period\" integer not null, \
             \"type\" varchar(255) not null, \"key\" {key} not null, \"key_hash\" {hash}, \
             \"aggregate\" varchar(255) not null, \"value\" decimal(20, 2) not null, \"count\" integer null)"
        ),
        format!(
            "create unique index \"{prefix}pulse_unique\" on \"{prefix}pulse_aggregates\" \
             (\"bucket\", \"period\", \"type\", \"aggregate\", \"key_hash\")"
        ),
    ]
}

async fn create_tables(database: &Database, prefix: &str) {
    for statement in tables(database.kind(), prefix) {
        database.execute(&statement, &[]).await.unwrap();
    }
}

/// The rows as rows.json has them, with the hash of a key as hexadecimal digits.
async fn rows(database: &Database) -> Value {
    let hash = match database.kind() {
        DatabaseKind::Sqlite => "\"key_hash\"".to_owned(),
        DatabaseKind::MySql => "lower(hex(\"key_hash\"))".to_owned(),
        DatabaseKind::Postgres => "replace(cast(\"key_hash\" as text), '-', '')".to_owned(),
    };
    let text = |column: &str| database.as_text(column);
    let aggregates = format!(
        "select \"aggregate\", \"type\", {}, {}, \"key\", {hash}, {}, {} from {}",
        text("period"),
        text("bucket"),
        text("value"),
        text("count"),
        database.table("pulse_aggregates")
    );
    let entries = format!(
        "select {}, \"type\", \"key\", {hash}, {} from {}",
        text("timestamp"),
        text("value"),
        database.table("pulse_entries")
    );
    let mut read = Vec::new();
    for (sql, numbers) in [(aggregates, &[2, 3, 6, 7][..]), (entries, &[0, 4])] {
        let mut found = Vec::new();
        for row in database.rows(&sql, &[]).await.unwrap() {
            let columns = if numbers.len() == 4 { 8 } else { 5 };
            let value = |column: usize| match row.text(column) {
                Some(text) if numbers.contains(&column) => {
                    json!(text.parse::<f64>().unwrap())
                }
                Some(text) => json!(text),
                None => Value::Null,
            };
            found.push(Value::Array((0..columns).map(value).collect()));
        }
        read.push(found);
    }
    normal(&json!({"pulse_aggregates": read[0], "pulse_entries": read[1]}))
}

/// Rows in one order, with all numbers alike.
fn normal(rows: &Value) -> Value {
    let mut tables = BTreeMap::new();
    for table in ["pulse_aggregates", "pulse_entries"] {
        let rows = rows[table].as_array().unwrap().iter();
        let number = |value: &Value| value.as_f64().map_or(value.clone(), |number| json!(number));
        let mut rows: Vec<Vec<Value>> = rows
            .map(|row| row.as_array().unwrap().iter().map(number).collect())
            .collect();
        rows.sort_by_key(|row| serde_json::to_string(row).unwrap());
        tables.insert(table, rows);
    }
    json!(tables)
}

fn options(told: &Value) -> PulseOptions {
    let recorder = |name: &str| {
        let settings = &told["recorders"][name];
        let ignore = settings["ignore"].as_array().unwrap().iter();
        RecorderOptions {
            sample_rate: settings["sample_rate"].as_f64().unwrap_or(1.0),
            ignore: ignore
                .map(|text| text.as_str().unwrap().parse().unwrap())
                .collect(),
        }
    };
    PulseOptions {
        database: DatabaseOptions::new("app", DatabaseKind::Sqlite),
        queues: Some(recorder("Queues")),
        slow_jobs: Some(SlowJobs {
            recorder: recorder("SlowJobs"),
            limits: Vec::<Limit>::new(),
            otherwise: told["recorders"]["SlowJobs"]["threshold"].as_u64().unwrap(),
            is_order_lost: false,
        }),
        exceptions: Some(recorder("Exceptions")),
        has_location: false,
        doubts: Vec::new(),
    }
}

fn recorder(told: &Value) -> PulseRecorder {
    PulseRecorder::new(options(told), "redis".into())
}

/// The whole seconds of a moment.
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    reason = "seconds since 1970"
)]
fn seconds(moment: &Value) -> u64 {
    moment.as_f64().unwrap().floor() as u64
}

/// What the recorder is told of the jobs that php-interop/pulse/record.php tells real Pulse of.
fn tell(recorder: &PulseRecorder, told: &Value) {
    for job in told["jobs"].as_array().unwrap() {
        let name = job["name"].as_str().unwrap();
        let payload =
            json!({"uuid": job["uuid"], "displayName": name, "job": "A@b", "attempts": 0});
        let payload = Payload::parse(payload.to_string().as_bytes()).unwrap();
        let queue = QueueName::from(job["queue"].as_str().unwrap());
        let (begin, end) = (&job["begin"], &job["end"]);
        recorder.count(&payload, &queue, Happened::Processing, || seconds(begin));
        for happened in job["ends"].as_array().unwrap() {
            let happened = match happened.as_str().unwrap() {
                "processed" => Happened::Processed,
                "released" => Happened::Released,
                "failed" => Happened::Failed,
                other => panic!("{other}"),
            };
            recorder.count(&payload, &queue, happened, || seconds(end));
        }
        let milliseconds = (end.as_f64().unwrap() - begin.as_f64().unwrap()) * 1000.0;
        let elapsed = Duration::from_secs_f64(milliseconds.round() / 1000.0);
        recorder.add_if_slow(name, elapsed, || seconds(end));
    }
    for exception in told["exceptions"].as_array().unwrap() {
        let class = exception["class"].as_str().unwrap();
        recorder.add_exception(class, "App\\Jobs\\A", || seconds(&exception["at"]));
    }
}

async fn entries_are_those_of_real_pulse(kind: Kind) {
    let told = read("jobs.json");
    let expected = normal(&read("rows.json"));
    let table = JobsTable::create(kind).await;
    let database = table.database();
    create_tables(&database, "").await;
    let recorder = recorder(&told);
    tell(&recorder, &told);
    let gathered = recorder.take();
    let now = told["now"].as_u64().unwrap();
    write(&database, &Rows::of(&gathered, now)).await.unwrap();
    similar(&rows(&database).await, &expected);
    // A second time: counts double, and the greatest stay.
    write(&database, &Rows::of(&gathered, now)).await.unwrap();
    let mut doubled = expected;
    for row in doubled["pulse_aggregates"].as_array_mut().unwrap() {
        if row[0] == "count" {
            row[6] = json!(row[6].as_f64().unwrap() * 2.0);
        }
    }
    let entries = doubled["pulse_entries"].as_array_mut().unwrap();
    *entries = [&entries[..], &entries[..]].concat();
    similar(&rows(&database).await, &normal(&doubled));
}

fn similar(found: &Value, expected: &Value) {
    for table in ["pulse_aggregates", "pulse_entries"] {
        let lines = |rows: &Value| {
            let rows = rows[table].as_array().unwrap().iter();
            rows.map(Value::to_string).collect::<Vec<_>>()
        };
        let (found, expected) = (lines(found), lines(expected));
        let without = |some: &[String], others: &[String]| {
            let alone = some.iter().filter(|line| !others.contains(line));
            alone.cloned().collect::<Vec<_>>().join("\n")
        };
        let (more, less) = (without(&found, &expected), without(&expected, &found));
        assert_eq!(
            found, expected,
            "{table}\nonly here:\n{more}\nonly there:\n{less}"
        );
    }
    assert!(!expected["pulse_aggregates"].as_array().unwrap().is_empty());
}

#[tokio::test]
async fn entries_on_sqlite_are_those_of_real_pulse() {
    entries_are_those_of_real_pulse(Kind::Sqlite).await;
}

#[tokio::test]
async fn entries_on_mariadb_are_those_of_real_pulse() {
    entries_are_those_of_real_pulse(Kind::MariaDb).await;
}

#[tokio::test]
async fn entries_on_postgres_are_those_of_real_pulse() {
    entries_are_those_of_real_pulse(Kind::Postgres).await;
}

async fn several_writers_add_up(kind: Kind) {
    const WRITERS: u64 = 4;
    const TIMES: u64 = 15;
    let table = Arc::new(JobsTable::create(kind).await);
    create_tables(&table.database(), "").await;
    let mut writing = tokio::task::JoinSet::new();
    for _ in 0..WRITERS {
        let database = table.database();
        let told = read("jobs.json");
        writing.spawn(async move {
            for _ in 0..TIMES {
                let recorder = recorder(&told);
                tell(&recorder, &told);
                let now = told["now"].as_u64().unwrap();
                let rows = Rows::of(&recorder.take(), now);
                while let Err(unwritten) = write(&database, &rows).await {
                    // The task of a worker writes them with the next ones; here it is done at once.
                    let artisand::connection::Error::Sql { source, .. } = &unwritten.error else {
                        panic!("{}", unwritten.error);
                    };
                    let may_help = source.is_deadlock() || source.is_lost();
                    assert!(unwritten.is_certain && may_help, "{source}");
                }
            }
        });
    }
    while let Some(ended) = writing.join_next().await {
        ended.unwrap();
    }
    let found = rows(&table.database()).await;
    let mut expected = normal(&read("rows.json"));
    for row in expected["pulse_aggregates"].as_array_mut().unwrap() {
        if row[0] == "count" {
            row[6] = json!(
                row[6].as_f64().unwrap() * f64::from(u32::try_from(WRITERS * TIMES).unwrap())
            );
        }
    }
    let lines = |rows: &Value| rows["pulse_aggregates"].to_string();
    assert_eq!(lines(&found), lines(&normal(&expected)));
}

#[tokio::test]
async fn several_writers_on_sqlite_add_up() {
    several_writers_add_up(Kind::Sqlite).await;
}

#[tokio::test]
async fn several_writers_on_mariadb_add_up() {
    several_writers_add_up(Kind::MariaDb).await;
}

#[tokio::test]
async fn several_writers_on_postgres_add_up() {
    several_writers_add_up(Kind::Postgres).await;
}

/// A flush that waits for the table when the worker is told to end must not keep it as long as the lock lasts.
#[tokio::test]
async fn a_table_that_stays_locked_holds_up_no_stop() {
    let table = JobsTable::create(Kind::Postgres).await;
    let database = table.database();
    create_tables(&database, "").await;
    let mut locking = database.begin().await.unwrap();
    let lock = "lock table \"pulse_aggregates\"";
    locking.execute(lock, &[]).await.unwrap();

    let mut options = options(&read("jobs.json"));
    options.database = table.options().clone();
    let lost = Arc::new(AtomicU64::new(0));
    let losses = {
        let lost = Arc::clone(&lost);
        Arc::new(move |entries| {
            lost.fetch_add(entries, Ordering::Relaxed);
        })
    };
    let runtime = tokio::runtime::Handle::current();
    let pulse = Pulse::start(options, "redis".into(), losses, &runtime).unwrap();
    let payload = json!({"uuid": "a", "displayName": "App\\Jobs\\A", "job": "A@b", "attempts": 0});
    let payload = Payload::parse(payload.to_string().as_bytes()).unwrap();
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let queue = QueueName::from("default");
    // The task of the entries, on this thread, first runs when this one waits: the entry is written at once.
    (pulse.recorder()).count(&payload, &queue, Happened::Queued, || now.as_secs());
    until("the flush waits for the table", SOON, async || {
        let waits = "select 'x' from pg_locks where not granted and relation = 'pulse_aggregates'::regclass \
             and database = (select oid from pg_database where datname = current_database())";
        !database.rows(waits, &[]).await.unwrap().is_empty()
    })
    .await;

    let finished = tokio::time::timeout(Duration::from_secs(20), pulse.finish()).await;
    finished.expect("the worker waits for the lock");
    assert_eq!(lost.load(Ordering::Relaxed), 1);
    drop(locking);
}

/// An app with Pulse: a manifest, a Redis and a database, and handlers that are shell scripts.
struct App {
    redis: RedisServer,
    home: tempfile::TempDir,
}

impl App {
    fn new(pulse: &Value) -> Self {
        let redis = RedisServer::start();
        let home = tempfile::tempdir().unwrap();
        let base = home.path();
        let database = base.join("app.sqlite");
        std::fs::write(&database, b"").unwrap();
        let manifest = json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
            "paths": {"base": base, "storage": base.join("storage")},
            "config": {
                "app": {"timezone": "UTC"},
                "queue": {
                    "default": "redis",
                    "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default", "retry_after": 90}},
                    "failed": {"driver": "file", "path": base.join("failed.json")},
                },
                "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": base.join("cache")}}},
                "database": {
                    "default": "pulses",
                    "connections": {"pulses": {"driver": "sqlite", "database": database, "prefix": "p_"}},
                    "redis": {"default": {"host": "127.0.0.1", "port": redis.port()}},
                },
                "pulse": pulse,
            },
        });
        std::fs::write(base.join("artisand.json"), manifest.to_string()).unwrap();
        let settings = "app = \".\"\nsettings = \"manifest\"\nmanifest = \"artisand.json\"\n\
            [worker]\ncontrol_plane = false\n\
            [[map]]\njob = 'App\\Jobs\\Ok'\nhandler = \"discard\"\n\
            [[map]]\njob = 'App\\Jobs\\Again'\nhandler = { exec = [\"sh\", \"-c\", \"[ $ARTISAND_JOB_ATTEMPTS = 2 ]\"] }\n\
            [[map]]\njob = 'App\\Jobs\\Fails'\nhandler = { exec = [\"false\"] }\n";
        std::fs::write(base.join("artisand.toml"), settings).unwrap();
        Self { redis, home }
    }

    fn database(&self) -> Database {
        let options = DatabaseOptions {
            database: self.home.path().join("app.sqlite").to_str().unwrap().into(),
            prefix: "p_".into(),
            ..DatabaseOptions::new("pulses", DatabaseKind::Sqlite)
        };
        Database::new(&options).unwrap()
    }

    fn push(&self, class: &str, number: u32) {
        let class = format!("App\\Jobs\\{class}");
        let command = format!("O:{}:\"{class}\":0:{{}}", class.len());
        let id = format!("{class}-{number}");
        let payload = json!({
            "uuid": id, "displayName": class, "job": "Illuminate\\Queue\\CallQueuedHandler@call", "maxTries": 2,
            "data": {"commandName": class, "command": command}, "id": id, "attempts": 0,
        });
        self.redis
            .query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = artisand(args);
        command.current_dir(self.home.path());
        command
    }

    fn drain(&self) -> ManagedChild {
        let args = [
            "queue:work",
            "--stop-when-empty",
            "--sleep=0.1",
            "--concurrency=4",
        ];
        let mut worker = ManagedChild::spawn(self.command(&args));
        worker.succeeds_within(SOON);
        worker
    }

    fn doctor(&self) -> String {
        let output = self.command(&["doctor"]).output().unwrap();
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}

fn settings() -> Value {
    let recorder = json!({"enabled": true, "sample_rate": 1, "ignore": []});
    json!({
        "enabled": true, "storage": {"driver": "database", "database": {"connection": "pulses"}},
        "ingest": {"driver": "redis"},
        "recorders": {
            "Laravel\\Pulse\\Recorders\\Queues": recorder,
            "Laravel\\Pulse\\Recorders\\SlowJobs": {"enabled": true, "sample_rate": 1, "threshold": 0, "ignore": []},
            "Laravel\\Pulse\\Recorders\\Exceptions": {"enabled": "1", "sample_rate": "1", "location": true, "ignore": []},
        },
    })
}

/// Sums of the week's buckets by type and aggregate.
async fn sums(database: &Database) -> BTreeMap<String, i64> {
    let sql = format!(
        "select \"type\", \"aggregate\", \"key\", cast(sum(\"value\") as text) from {} where \"period\" = 10080 \
         and \"aggregate\" = 'count' group by 1, 2, 3",
        database.table("pulse_aggregates")
    );
    let rows = database.rows(&sql, &[]).await.unwrap();
    let line = |row: &artisand::connection::Row| {
        let text = |column| row.text(column).unwrap().into_owned();
        (
            format!("{} {}", text(0), text(2)),
            text(3).parse::<f64>().unwrap(),
        )
    };
    #[expect(clippy::cast_possible_truncation, reason = "counts")]
    rows.iter()
        .map(line)
        .map(|(name, sum)| (name, sum as i64))
        .collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn the_cards_count_what_handlers_run() {
    let app = App::new(&settings());
    assert!(
        app.doctor().contains("has no tables of Pulse"),
        "{}",
        app.doctor()
    );
    let database = app.database();
    create_tables(&database, "p_").await;
    let said = app.doctor();
    assert!(
        said.contains("for the cards Queues, Slow Jobs, Exceptions"),
        "{said}"
    );
    for number in 0..20 {
        app.push("Ok", number);
    }
    app.push("Again", 0);
    app.push("Fails", 0);
    app.drain();
    let found = sums(&database).await;
    let counted = |key: &str| found.get(key).copied().unwrap_or(0);
    assert_eq!(counted("processing redis:default"), 24, "{found:?}");
    assert_eq!(counted("processed redis:default"), 21, "{found:?}");
    assert_eq!(counted("released redis:default"), 2, "{found:?}");
    assert_eq!(counted("failed redis:default"), 1, "{found:?}");
    assert_eq!(counted("slow_job App\\Jobs\\Ok"), 20, "{found:?}");
    assert_eq!(counted("slow_job App\\Jobs\\Fails"), 2, "{found:?}");
    let thrown: i64 = (found.iter())
        .filter(|(key, _)| key.starts_with("exception [\""))
        .map(|(_, count)| count)
        .sum();
    assert_eq!(thrown, 3, "{found:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_runs_its_jobs_without_pulses_tables_and_says_so_once() {
    let app = App::new(&settings());
    for number in 0..5 {
        app.push("Ok", number);
    }
    let worker = app.drain();
    let said = worker.stderr();
    let lines = said.lines().filter(|line| line.contains("Pulse"));
    assert_eq!(lines.count(), 1, "{said}");
    assert!(app.redis.query::<u64>(&[b"LLEN", b"queues:default"]) == 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_written_if_pulse_is_off_or_a_pattern_is_for_php_alone() {
    let mut off = settings();
    off["enabled"] = json!(false);
    let mut odd = settings();
    for name in ["Queues", "SlowJobs", "Exceptions"] {
        let class = format!("Laravel\\Pulse\\Recorders\\{name}");
        odd["recorders"][class]["ignore"] = json!(["/(?<!App)Jobs/"]);
    }
    for (pulse, expected) in [(off, "it is off"), (odd, "only PHP can read the pattern")] {
        let app = App::new(&pulse);
        let database = app.database();
        create_tables(&database, "p_").await;
        let said = app.doctor();
        assert!(said.contains(expected), "{said}");
        app.push("Ok", 1);
        app.drain();
        assert_eq!(sums(&database).await, BTreeMap::new());
    }
}
