//! The app's own listeners hear of jobs that ran in artisand's handlers (`events = "all"`).

use std::collections::BTreeSet;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(90);

/// A handler that follows the script of `App\Jobs\Journal` for its attempt, as far as it can.
const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
events = "all"
handler = { exec = ["sh", "-c", '''
document=$(cat | tr -d '"[]')
attempt=$(printf %s "$document" | sed 's/.*attempts:\([0-9]*\).*/\1/')
steps=$(printf %s "$document" | sed 's/.*script:\([^}]*\)}.*/\1/')
step=$(printf %s "$steps" | cut -d, -f"$attempt")
case "$step" in
throw) echo broken >&2; exit 1 ;;
fail) echo refused >&2; exit 65 ;;
release*) echo "release ${step#release:}"; exit 75 ;;
sleep*) sleep "${step#sleep:}" ;;
esac
'''] }
"#;

/// A handler that can cancel a batch.
const OF_BATCHES: &str = r#"
[[map]]
job = 'App\Jobs\BatchJournal'
events = "all"
handler = "journal"
"#;

fn scene(version: u8, env: &[(&str, &str)]) -> Scene {
    with_mappings(version, env, MAPPINGS)
}

fn with_mappings(version: u8, env: &[(&str, &str)], mappings: &str) -> Scene {
    let env = [&[("QUEUE_FAILED_DRIVER", "database-uuids")], env].concat();
    let scene = Scene::on(RedisServer::start(), version, &env, |laravel| {
        Workplace::with_pool(laravel, 1, mappings)
    });
    // The first look makes the tables.
    assert_eq!(scene.failed(), [Value::Null; 0]);
    scene
}

const WORK: [&str; 4] = ["queue:work", "redis", "--stop-when-empty", "--sleep=0"];

/// Works until the queue is empty; returns the worker's process.
fn work(mut command: Command) -> ManagedChild {
    // Only workers note the events that they raise.
    command.env("INTEROP_EVENTS", "1");
    let mut worker = ManagedChild::spawn(command);
    worker.succeeds_within(SOON);
    worker
}

/// Lines of a list, which is emptied.
fn taken(scene: &Scene, key: &str) -> Vec<Value> {
    let lines = scene.redis.list(key);
    scene.redis.query::<()>(&[b"DEL", key.as_bytes()]);
    let read = |line: &Vec<u8>| serde_json::from_slice(line).unwrap();
    lines.iter().map(read).collect()
}

/// The events of one job, `name attempts`: those of its failure, and the others.
fn told(scene: &Scene, uuid: &str) -> (Vec<String>, Vec<String>) {
    let events = taken(scene, "interop:events");
    let events = events.iter().filter(|event| event["uuid"] == uuid);
    let text = |event: &Value| {
        let name = event["event"].as_str().unwrap();
        format!("{name} {}", event["attempts"])
    };
    events
        .map(text)
        .partition(|event| event.starts_with("JobFailed"))
}

on_every_laravel!(listeners_hear_of_a_handlers_jobs_what_they_hear_of_phps);
fn listeners_hear_of_a_handlers_jobs_what_they_hear_of_phps(version: u8) {
    let scene = scene(version, &[]);
    #[rustfmt::skip]
    let cases: [(&str, &[&str]); 5] = [
        ("done", &["--script=ok"]),
        ("retried", &["--tries=3", "--backoff=0", "--script=throw,ok"]),
        ("failed", &["--tries=2", "--backoff=0", "--script=throw,throw"]),
        ("released", &["--tries=3", "--script=release:0,ok"]),
        ("failed-by-itself", &["--tries=3", "--script=fail"]),
    ];
    for (name, options) in cases {
        let uuid = scene.push(name, options);
        while scene.queued() > 0 {
            work(scene.laravel.command(&WORK));
        }
        let reference = told(&scene, &uuid);
        assert!(reference.1.len() > 1, "{reference:?}");
        let uuid = scene.push(name, options);
        let mut worker = work(scene.workplace.artisand(&WORK));
        while scene.queued() > 0 {
            worker = work(scene.workplace.artisand(&WORK));
        }
        let heard = told(&scene, &uuid);
        assert_eq!(
            heard,
            reference,
            "{} {name} {}",
            scene.name,
            worker.describe()
        );
    }
}

/// What listeners heard of a job: names, and all of it.
fn of<'a>(heard: &'a [Value], uuid: &str) -> (Vec<&'a str>, Vec<&'a Value>) {
    let heard = heard.iter().filter(|heard| heard["uuid"] == uuid);
    heard
        .map(|heard| (heard["what"].as_str().unwrap(), heard))
        .unzip()
}

on_every_laravel!(a_listener_gets_a_job_that_answers_and_cannot_be_changed);
fn a_listener_gets_a_job_that_answers_and_cannot_be_changed(version: u8) {
    let scene = scene(version, &[("INTEROP_LISTENERS", "1")]);
    let script = ["--tries=2", "--backoff=0", "--script=throw,sleep:0.7"];
    let uuid = scene.push("asked", &script);
    let rude = scene.push("listener-throws", &["--tries=4", "--script=ok"]);
    let worker = work(scene.workplace.artisand(&[&WORK[..], &["-v"]].concat()));
    let log = worker.describe();
    let heard = taken(&scene, "interop:heard");
    // The listener that throws keeps no event from being raised.
    let (names, _) = of(&heard, &rude);
    assert_eq!(names, ["before", "after"], "{log}");
    let (names, asked) = of(&heard, &uuid);
    let released = &["JobReleasedAfterException"][usize::from(version == 8)..];
    let expected = [
        &["before", "JobExceptionOccurred"],
        released,
        &["before", "after"],
    ]
    .concat();
    assert_eq!(names, expected, "{log}");
    let (thrown, begun, ended) = (asked[1], asked[asked.len() - 2], asked[asked.len() - 1]);
    let class = "App\\Jobs\\Journal";
    let facts = [
        "id",
        "class",
        "command",
        "connection",
        "queue",
        "attempts",
        "tries",
    ];
    let facts = facts.map(|name| ended[name].clone());
    let expected = json!([true, class, class, ["redis", "redis"], "default", 2, 2]);
    assert_eq!(json!(facts), expected, "{log}");
    let states = [begun, ended, thrown].map(|heard| heard["state"].clone());
    let nothing = [false, false, false];
    assert_eq!(
        json!(states),
        json!([nothing, [true, false, false], nothing])
    );
    assert_eq!(
        thrown["exception"],
        "RuntimeException: `sh` ended with exit status: 1: broken"
    );
    // The app's clock shows when it happened.
    let ran = ended["at"].as_f64().unwrap() - begun["at"].as_f64().unwrap();
    assert!((0.6..30.0).contains(&ran), "{ran}");
    let processes: BTreeSet<_> = heard.iter().map(|heard| heard["pid"].as_i64()).collect();
    assert_eq!(processes.len(), 1, "{heard:?}");
    for said in [
        "thrown before a job",
        "asked something of a job that has ended",
    ] {
        assert_eq!(log.matches(said).count(), 1, "{said}: {log}");
    }
    assert_eq!(scene.queued(), 0);
    assert_eq!(scene.failed(), [Value::Null; 0]);
}

on_every_laravel!(no_job_waits_for_a_listener_that_hangs);
fn no_job_waits_for_a_listener_that_hangs(version: u8) {
    let scene = scene(version, &[("INTEROP_LISTENERS", "1")]);
    scene.push("listener-hangs", &["--script=ok"]);
    for id in ["one", "two", "three"] {
        scene.push(id, &["--script=ok"]);
    }
    let worker = work(scene.workplace.artisand(&WORK));
    assert_eq!(scene.queued(), 0);
    let log = worker.describe();
    let said = log.matches("do not hear of some attempts").count();
    assert_eq!(said, 1, "{log}");
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_process_whose_listener_hangs_is_replaced() {
    let scene = scene(13, &[("INTEROP_LISTENERS", "1")]);
    let args = ["queue:work", "redis", "--sleep=0.1"];
    let mut worker = ManagedChild::spawn(scene.workplace.artisand(&args));
    scene.push("listener-hangs", &["--script=ok"]);
    scene.redis.eventually("its event", SOON, || {
        (scene.redis.length("interop:heard") == 1).then_some(())
    });
    let next = scene.push("next", &["--script=ok"]);
    scene.redis.eventually("the next event", SOON, || {
        (scene.redis.length("interop:heard") == 3).then_some(())
    });
    assert_eq!(taken(&scene, "interop:heard")[2]["uuid"], next.as_str());
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    let log = worker.describe();
    for said in [
        "has said nothing for 30s and is killed",
        "do not hear of some attempts",
    ] {
        assert_eq!(log.matches(said).count(), 1, "{said}: {log}");
    }
}

on_every_laravel!(events_of_batches_are_raised_once);
fn events_of_batches_are_raised_once(version: u8) {
    let mappings = MAPPINGS.replace("App\\Jobs\\*Journal", "App\\Jobs\\Journal");
    let scene = with_mappings(version, &[], &format!("{mappings}{OF_BATCHES}"));
    let mut expected = Vec::new();
    for by_php in [true, false] {
        for scripts in [
            &["ok", "ok", "ok"][..],
            &["throw", "ok"],
            &["cancel", "ok"],
            &["cancel+release:0", "ok"],
        ] {
            let args = [&["interop:batch"][..], scripts].concat();
            let made = scene.php().run(&args);
            let id = made["id"].as_str().unwrap_or_else(|| panic!("{made}"));
            let command = || {
                if by_php {
                    scene.laravel.command(&WORK)
                } else {
                    scene.workplace.command_of(&WORK)
                }
            };
            let mut worker = work(command());
            // A closure is tried again a second later if the database was locked.
            while scene.queued() > 0 {
                worker = work(command());
            }
            let lines = scene.redis.list("interop:batch-events");
            scene.redis.query::<()>(&[b"DEL", b"interop:batch-events"]);
            let lines: Vec<_> = lines
                .iter()
                .map(|line| String::from_utf8_lossy(line).replace(id, ""))
                .collect();
            if by_php {
                assert_eq!(lines.is_empty(), version < 13, "{lines:?}");
                expected.push(lines);
            } else {
                let mut sorted = [expected.remove(0), lines];
                for lines in &mut sorted {
                    lines.sort();
                }
                assert_eq!(sorted[0], sorted[1], "{} {}", scene.name, worker.describe());
            }
        }
    }
}
