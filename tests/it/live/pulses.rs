//! Jobs of handlers beside real Pulse, which hears of them (`events = "all"`) and runs in the pool: each is counted
//! once.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use serde_json::json;

use crate::harness::process::{ManagedChild, Workplace, say};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;
use crate::harness::sql::PostgresServer;

const SOON: Duration = Duration::from_secs(90);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Journal'
events = "all"
handler = "journal"
"#;

/// What real Pulse counts of jobs in PHP; those of artisand's handlers are to count the same.
const JOBS: [(&str, &[&str]); 6] = [
    ("done", &["--script=ok"]),
    ("slow", &["--script=sleep:2.5"]),
    (
        "retried",
        &["--tries=3", "--backoff=0", "--script=throw,sleep:2.5"],
    ),
    (
        "failed",
        &["--tries=2", "--backoff=0", "--script=throw,sleep:2.5+throw"],
    ),
    ("released", &["--tries=3", "--script=release:0,ok"]),
    (
        "slow-failed-by-itself",
        &["--tries=3", "--script=sleep:2.5+fail"],
    ),
];

/// Those that fail: PHP hears of each in a closure, which is a job.
const CLOSURES: i64 = 2;

/// Counts by type and key, and the rows of entries; exceptions in Rust have other names.
fn counts(server: &PostgresServer) -> BTreeMap<String, i64> {
    let counts = server.query(
        "select type, case when type = 'exception' then '' else key end, cast(sum(value) as bigint) from pulse_aggregates \
         where period = 10080 and aggregate = 'count' and type != 'queued' group by 1, 2 \
         union all select 'row of ' || type, case when type = 'exception' then '' else key end, count(*) \
         from pulse_entries group by 1, 2",
    );
    server.query("delete from pulse_aggregates");
    server.query("delete from pulse_entries");
    let count = |row: &Vec<Option<String>>| {
        let text = |column: usize| row[column].clone().unwrap();
        (format!("{} {}", text(0), text(1)), text(2).parse().unwrap())
    };
    counts.iter().map(count).collect()
}

fn work(command: Command) -> ManagedChild {
    let mut worker = ManagedChild::spawn(command);
    worker.succeeds_within(SOON);
    worker
}

/// Beside real Pulse, whose checkout `PULSE_SOURCE` names. CI has none: there this says that it compared nothing.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn real_pulse_counts_the_jobs_of_handlers_once_if_there_is_a_checkout() {
    let Some(source) = std::env::var_os("PULSE_SOURCE") else {
        say("NOT run beside real Pulse: PULSE_SOURCE names no checkout");
        return;
    };
    let roots = std::env::var("ARTISAND_ROOTS").unwrap_or("/var/lib/artisand/roots".into());
    let inside = "/opt/pulse";
    let root = format!("{roots}/laravel-10{inside}");
    std::fs::create_dir_all(Path::new(&root).parent().unwrap()).unwrap();
    let copied = Command::new("cp")
        .args(["-rTL"])
        .arg(&source)
        .arg(&root)
        .status();
    assert!(copied.unwrap().success());

    let server = PostgresServer::start();
    let failed = [("QUEUE_FAILED_DRIVER", "database-uuids".to_owned())];
    let pulse = [("PULSE_SOURCE", inside.to_owned())];
    let env = [&server.env()[..], &failed, &pulse].concat();
    let scene = Scene::on(RedisServer::start(), 10, &env, |laravel| {
        let mut manifest = laravel.manifest();
        let recorder = json!({"enabled": true, "sample_rate": 1, "ignore": []});
        manifest["config"]["pulse"] = json!({
            "enabled": true, "storage": {"driver": "database", "database": {"connection": "pgsql"}},
            "ingest": {"driver": "storage"},
            "recorders": {
                "Laravel\\Pulse\\Recorders\\Queues": recorder,
                "Laravel\\Pulse\\Recorders\\SlowJobs": {"enabled": true, "sample_rate": 1, "threshold": 2000, "ignore": []},
                "Laravel\\Pulse\\Recorders\\Exceptions": {"enabled": true, "sample_rate": 1, "location": true, "ignore": []},
            },
        });
        Workplace::with_manifest_and_pool(laravel, &manifest, 1, MAPPINGS)
    });
    let push = || {
        for (name, options) in JOBS {
            scene.push(name, options);
        }
    };
    let args = ["queue:work", "redis", "--stop-when-empty", "--sleep=0"];
    push();
    while scene.queued() > 0 {
        work(scene.laravel.command(&args));
    }
    let mut expected = counts(&server);
    assert_eq!(expected["slow_job App\\Jobs\\Journal"], 4, "{expected:?}");
    assert_eq!(expected["exception "], 3, "{expected:?}");
    for type_ in ["processing", "processed"] {
        *expected.get_mut(&format!("{type_} redis:default")).unwrap() += CLOSURES;
    }
    push();
    let mut worker = work(scene.workplace.command_of(&args));
    while scene.queued() > 0 {
        worker = work(scene.workplace.command_of(&args));
    }
    assert_eq!(counts(&server), expected, "{}", worker.describe());
    say("compared with real Pulse");
}
