//! Queues in databases and in tubes of a beanstalkd: one process of artisand beside one `queue:work` of the same
//! Laravel, on the table, the cache and the driver that a new app has.
//!
//! Both run `App\Jobs\Counted`, which appends its number to a list in Redis; artisand with the handler of
//! `examples/interop_worker.rs`, which does the same.

use std::collections::HashSet;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::process::INTEROP_MAPPINGS;
use crate::harness::scene::Scene;
use crate::harness::stores::{Databases, Kind};
use crate::report::Round;

/// The version of Laravel, whose default connection is `database`.
const VERSION: u8 = 13;
/// Every job appends one line to this list.
const DONE: &str = "interop:done";

/// Where the jobs are.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Table(Kind),
    Tubes,
}

pub(crate) const PLACES: [Place; 4] = [
    Place::Table(Kind::Sqlite),
    Place::Table(Kind::Postgres),
    Place::Table(Kind::MariaDb),
    Place::Tubes,
];

/// Slots of artisand, or PHP's worker.
#[derive(Clone, Copy)]
pub(crate) enum By {
    Slots(usize),
    Php,
}

pub(crate) const CONTENDERS: [By; 3] = [By::Slots(1), By::Slots(64), By::Php];

pub(crate) fn name(place: Place, by: By) -> String {
    let place = match place {
        Place::Table(Kind::Sqlite) => "SQLite",
        Place::Table(Kind::Postgres) => "PostgreSQL",
        Place::Table(Kind::MariaDb) => "MariaDB",
        Place::Table(Kind::MySql) => "MySQL",
        Place::Tubes => "beanstalkd",
    };
    match by {
        By::Slots(1) => format!("{place}, artisand, 1 slot"),
        By::Slots(slots) => format!("{place}, artisand, {slots} slots"),
        By::Php => format!("{place}, queue:work"),
    }
}

/// Measures from the end of the first job to that of the last, so without boot and end.
pub(crate) fn run(databases: &Arc<Databases>, place: Place, by: By, jobs: usize) -> Round {
    let name = name(place, by);
    let (connection, tubes, env) = match place {
        Place::Table(kind) => {
            let mut env = databases.create(kind, "bench");
            let both = ["QUEUE_CONNECTION", "CACHE_STORE"];
            env.extend(both.map(|name| (name, "database".to_owned())));
            ("database", None, env)
        }
        Place::Tubes => {
            let tubes = Beanstalkd::start();
            let port = tubes.port().to_string();
            let env = vec![
                ("BEANSTALKD_PORT", port),
                ("QUEUE_CONNECTION", "beanstalkd".to_owned()),
            ];
            ("beanstalkd", Some(tubes), env)
        }
    };
    // What no mapping names cannot be left in a tube.
    let settings = format!("[unmapped]\npolicy = \"fail\"\n{INTEROP_MAPPINGS}");
    let scene = Scene::with_classes(VERSION, &env, &settings);
    // The first look makes the tables.
    scene.failed();
    let count = jobs.to_string();
    scene
        .laravel
        .text(&["interop:flood", &count, "--chunk=1000"]);
    let mut command = match by {
        By::Slots(slots) => {
            let slots = format!("--concurrency={slots}");
            let args = ["queue:work", connection, "--stop-when-empty", "-q", &slots];
            scene.workplace.command_of(&args)
        }
        By::Php => {
            let args = [
                "queue:work",
                connection,
                "--stop-when-empty",
                "--sleep=0",
                "-q",
            ];
            scene.laravel.command(&args)
        }
    };
    let seconds = time(&scene, &mut command, jobs);
    let done: Vec<Vec<u8>> = scene.redis.list(DONE);
    let different: HashSet<&Vec<u8>> = done.iter().collect();
    assert_eq!((done.len(), different.len()), (jobs, jobs), "{name}");
    match tubes {
        None => {
            let left = scene.php().run(&["interop:jobs"]);
            assert_eq!(left["jobs"].as_array().map(Vec::len), Some(0), "{name}");
        }
        Some(tubes) => {
            let stats = tubes.query("stats");
            for place in ["ready", "reserved", "delayed", "buried"] {
                let none = format!("current-jobs-{place}: 0\n");
                assert!(stats.contains(&none), "{name}: {stats}");
            }
        }
    }
    Round {
        name,
        jobs: jobs - 1,
        seconds,
        commands_per_job: f64::NAN,
        micros: None,
        longest_script: None,
        memory: None,
    }
}

fn time(scene: &Scene, command: &mut Command, jobs: usize) -> f64 {
    let mut child = command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut until = |least: usize| {
        while scene.redis.length(DONE) < least && child.try_wait().unwrap().is_none() {
            std::thread::sleep(Duration::from_millis(1));
        }
        Instant::now()
    };
    let (began, ended) = (until(1), until(jobs));
    assert!(child.wait().unwrap().success());
    ended.duration_since(began).as_secs_f64()
}
