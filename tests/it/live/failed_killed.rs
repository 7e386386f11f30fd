//! Failed jobs whose store, or whose worker, goes away on the way: each is recorded once.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild};
use crate::harness::scene::{Scene, in_scene};
use crate::harness::sql::{Engine, MariaDbServer, PostgresServer, SqlServer};
use crate::harness::stores::Settings;

const JOBS: usize = 200;
const SOON: Duration = Duration::from_secs(60);

struct Killed {
    scene: Scene,
    /// Of the jobs, in the order in which they were queued.
    uuids: Vec<String>,
}

in_scene!(Killed);

impl Killed {
    fn new(version: u8, settings: &Settings, job: &[&str]) -> Self {
        let scene = Scene::new(version, settings, INTEROP_MAPPINGS);
        // The first look makes the tables.
        scene.failed();
        let uuids = scene.laravel.journals(&scene.redis, JOBS, job);
        Self { scene, uuids }
    }

    /// Lines of the journal about this event: id and time.
    fn journal(&self, event: &str) -> Vec<(String, f64)> {
        let lines = self.lines().into_iter();
        let lines = lines.filter(|line| line.event == event);
        lines.map(|line| (line.id, line.at)).collect()
    }

    fn length(&self, key: &str) -> usize {
        let key = self.laravel.key(key);
        let kind: String = self.redis.query(&[b"TYPE", key.as_bytes()]);
        match &*kind {
            "none" => 0,
            "zset" => self.redis.scores(&key).len(),
            _ => self.redis.length(&key),
        }
    }

    fn spooled(&self) -> usize {
        self.length("artisand:failed-spool")
    }

    /// When each job failed and of what, by id; every one has exactly one row.
    fn rows(&self) -> BTreeMap<String, (i64, String)> {
        let mut uuids = Vec::new();
        let mut rows = BTreeMap::new();
        for row in self.failed() {
            let payload: Value = serde_json::from_str(row["payload"].as_str().unwrap()).unwrap();
            let uuid = payload["uuid"].as_str().unwrap().to_owned();
            let at: DateTime = row["failed_at"].as_str().unwrap()[..19].parse().unwrap();
            let at = TimeZone::UTC.to_timestamp(at).unwrap().as_second();
            let number = self.uuids.iter().position(|other| *other == uuid);
            let exception = row["exception"].as_str().unwrap().to_owned();
            let number = number.expect("a job of this test");
            rows.insert(format!("job-{number:03}"), (at, exception));
            uuids.push(uuid);
        }
        uuids.sort_unstable();
        let mut expected = self.uuids.clone();
        expected.sort_unstable();
        assert_eq!(uuids, expected, "one row for each");
        rows
    }
}

fn a_store_that_is_killed_gets_every_failed_job_later<E: Engine>(
    version: u8,
    driver: &str,
    mut server: SqlServer<E>,
) {
    let mut settings = server.env().to_vec();
    settings.push(("QUEUE_FAILED_DRIVER", driver.to_owned()));
    let scene = Killed::new(version, &settings, &["--script=sleep:0.1+throw"]);
    let redis = &scene.redis;
    let complaints = |worker: &ManagedChild| {
        let said = worker.stderr();
        said.matches("failed jobs cannot be recorded").count()
    };
    let mut worker = scene.workplace.worker(&["--concurrency=4", "--tries=1"]);
    redis.eventually("some are recorded", SOON, || {
        (scene.journal("failed").len() >= JOBS / 5).then_some(())
    });
    server.kill();
    redis.eventually("all jobs ran without the store", SOON, || {
        (scene.journal("failed").len() >= JOBS && scene.queued() == 0).then_some(())
    });
    assert!(worker.is_running(), "{}", worker.describe());
    assert!(scene.spooled() > JOBS / 5, "{}", redis.state());
    redis.eventually("the worker says so", SOON, || {
        (complaints(&worker) > 0).then_some(())
    });
    server.restart();
    redis.eventually("the spool is empty", SOON, || {
        (scene.spooled() == 0).then_some(())
    });

    scene.rows();
    assert_eq!(scene.journal("run").len(), JOBS, "each ran once");
    // It goes away in two ways, one after the other.
    let complaints = complaints(&worker);
    assert!((1..=3).contains(&complaints), "{}", worker.describe());
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

on_laravel! { a_store_that_is_killed_gets_every_failed_job_later:
    laravel_8_mariadb(8, "database", MariaDbServer::start())
    laravel_10_postgres(10, "database-uuids", PostgresServer::start())
    laravel_13_mariadb(13, "database-uuids", MariaDbServer::start())
    laravel_13_postgres(13, "database", PostgresServer::start())
}

fn workers_that_are_killed_leave_one_record_of_each_job(
    version: u8,
    settings: &[(&'static str, String)],
) {
    const KILLS: usize = 20;
    let more = [("REDIS_QUEUE_RETRY_AFTER", "2".to_owned())];
    let settings = [settings, &more].concat();
    let job = [
        "--tries=2",
        "--script=sleep:0.08+throw,sleep:0.08+throw,throw",
    ];
    let scene = Killed::new(version, &settings, &job);
    let start = || scene.workplace.worker(&["--concurrency=4"]);
    let mut workers = [start(), start()];
    let mut random = fastrand::Rng::with_seed(u64::from(version));
    for kill in 0..KILLS {
        // The moment does not matter.
        std::thread::sleep(Duration::from_millis(random.u64(30..400)));
        let worker = &mut workers[kill % 2];
        assert!(worker.is_running(), "{}", worker.describe());
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
        *worker = start();
    }
    scene.redis.eventually("all jobs are settled", SOON, || {
        (scene.queued() == 0).then_some(())
    });
    // The killed worker may hold the lease for ten seconds more.
    scene.redis.eventually("the spool is empty", SOON, || {
        (scene.spooled() == 0).then_some(())
    });
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        // A worker that has just started may not catch signals yet.
        worker.wait_timeout(SOON);
    }

    let rows = scene.rows();
    let mut runs: BTreeMap<String, usize> = BTreeMap::new();
    for (id, at) in scene.journal("run") {
        *runs.entry(id.clone()).or_default() += 1;
        #[expect(clippy::cast_precision_loss, reason = "seconds of this century")]
        let failed_before = (rows[&id].0 + 1) as f64;
        assert!(at < failed_before, "{id} ran at {at}: {:?}", rows[&id]);
    }
    // A worker may be killed between taking a job and running it, and the next one of that job, too.
    for (id, (_, exception)) in rows.iter().filter(|(id, _)| !runs.contains_key(*id)) {
        let is_spent = exception.contains("MaxAttemptsExceededException");
        assert!(is_spent, "{id} did not run: {exception}");
    }
    assert!(runs.len() >= JOBS / 2, "most ran: {}", runs.len());
    assert!(runs.values().all(|runs| *runs <= 2), "{runs:?}");
    assert_eq!(
        (scene.queued(), scene.spooled()),
        (0, 0),
        "{}",
        scene.redis.state()
    );
}

fn failed_in(driver: &str) -> [(&'static str, String); 1] {
    [("QUEUE_FAILED_DRIVER", driver.to_owned())]
}

on_laravel! { workers_that_are_killed_leave_one_record_of_each_job:
    laravel_8_mariadb(8, &[&MariaDbServer::start().env()[..], &failed_in("database")].concat())
    laravel_10_sqlite(10, &failed_in("database-uuids"))
    laravel_13_postgres(13, &[&PostgresServer::start().env()[..], &failed_in("database-uuids")].concat())
}
