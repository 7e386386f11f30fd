//! Events of the worker: the same, in the same order and with the same content as real Laravel's.

use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::journal;
use crate::harness::laravel::Laravel;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, Workplace, poll};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(90);

/// Options of `interop:journal`, one job each.
#[rustfmt::skip]
const CASES: [(&str, &[&str]); 8] = [
    ("done", &["--script=ok"]),
    ("retried", &["--tries=3", "--backoff=0", "--script=throw,ok"]),
    ("failed", &["--tries=2", "--backoff=0", "--script=throw,throw"]),
    ("released", &["--tries=3", "--script=release:0,ok"]),
    ("released-too-often", &["--tries=1", "--script=release:0,ok"]),
    ("failed-by-itself", &["--tries=3", "--script=fail"]),
    ("deleted-by-itself", &["--tries=3", "--script=delete"]),
    ("deleted-and-thrown", &["--tries=3", "--script=delete+throw"]),
];

/// Events that came after this version.
pub(super) fn unknown_to(version: u8) -> &'static [&'static str] {
    match version {
        8 => &[
            "JobPopping",
            "JobPopped",
            "JobAttempted",
            "JobReleased",
            "JobReleasedAfterException",
            "JobTimedOut",
            "WorkerStarting",
        ],
        10 => &["JobAttempted", "JobReleased", "WorkerStarting"],
        _ => &[],
    }
}

/// The parts in which two events must agree.
fn shown(event: &Value) -> String {
    let name = event["event"].as_str().unwrap();
    let mut shown = name.to_owned();
    if event["attempts"].is_number() {
        shown = format!("{shown} #{}", event["attempts"]);
    }
    // Versions added exceptions to events one by one; these always had theirs.
    if matches!(name, "JobExceptionOccurred" | "JobFailed") {
        // Classes differ for the handler's own exceptions.
        let message = event["message"].as_str().unwrap();
        shown = format!("{shown}: {message}");
    }
    if name == "WorkerStopping" {
        shown = format!("{shown} {}", event["status"]);
    }
    if event["signal"].is_number() {
        shown = format!("{shown} by {}", event["signal"]);
    }
    shown
}

/// Events that a worker of this version would send, without looks at an empty queue.
fn told(redis: &RedisServer, version: u8) -> Vec<String> {
    let lines = redis.list("interop:events");
    let () = redis.query(&[b"DEL", b"interop:events"]);
    let events: Vec<Value> = lines
        .iter()
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    let unknown = unknown_to(version);
    let is_known = |event: &&Value| {
        let name = event["event"].as_str().unwrap();
        !unknown.contains(&name) && name != "WorkerIdle"
    };
    let mut told: Vec<String> = Vec::new();
    let is_look = |name: &str| matches!(name, "Looping" | "JobPopping");
    for event in events.iter().filter(is_known) {
        let event = shown(event);
        // A look that is followed by another, or by the end, found no job.
        if event == "Looping" || !(is_look(&event) || event.starts_with("Job")) {
            while told.last().is_some_and(|last| is_look(last)) {
                told.pop();
            }
        }
        told.push(event);
    }
    told
}

fn run(mut command: Command) -> ManagedChild {
    command.env("INTEROP_EVENTS", "1");
    ManagedChild::spawn(command)
}

fn a_worker_tells_what_laravels_worker_tells(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::for_app(&laravel, INTEROP_MAPPINGS);
    let pool = Workplace::with_pool(&laravel, 1, "");
    let args = ["--stop-when-empty", "--sleep=1"];
    for (name, options) in CASES {
        let dispatch = || {
            let args = [&["interop:journal", name][..], options].concat();
            laravel.run(&args);
        };
        dispatch();
        let all = [&["queue:work", "redis"][..], &args].concat();
        run(laravel.command(&all)).succeeds_within(SOON);
        let mut reference = told(&redis, version);
        assert!(reference.len() > 3, "{reference:?}");
        dispatch();
        run(workplace.worker_command(&args)).succeeds_within(SOON);
        let ours = told(&redis, version);
        assert_eq!(ours, reference, "Laravel {version}: {name}");
        // Its PHP process sends the app's listeners the same events as `queue:work`.
        dispatch();
        run(pool.artisand(&all)).succeeds_within(SOON);
        let mut in_pool = told(&redis, version);
        // A process that has waited checks once more before its job, without another JobPopping.
        for events in [&mut in_pool, &mut reference] {
            events.retain(|event| event != "JobPopping");
        }
        assert_eq!(in_pool, reference, "Laravel {version}: {name}, in the pool");
    }
}

on_every_laravel!(a_worker_tells_what_laravels_worker_tells);

/// Here PHP kills itself and artisand does not: from there on the two differ.
fn a_timeout_is_told_as_far_as_php_lives(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::for_app(&laravel, INTEROP_MAPPINGS);
    for (name, tries, ours_more) in [
        ("last", "--tries=1", &["JobAttempted #1"][..]),
        ("left", "--tries=2", &["JobAttempted #1"][..]),
    ] {
        let dispatch = || {
            // Long enough that PHP tells of the job's begin before its alarm, which starts earlier.
            let options = [tries, "--timeout=3", "--script=sleep:20,ok"];
            laravel.run(&[&["interop:journal", name][..], &options].concat());
        };
        dispatch();
        let args = ["queue:work", "redis", "--max-jobs=1"];
        run(laravel.command(&args)).wait_timeout(SOON);
        let mut reference = told(&redis, version);
        assert!(
            reference.pop().unwrap().starts_with("WorkerStopping"),
            "{reference:?}"
        );
        let () = redis.query(&[b"DEL", laravel.key("queues:default:reserved").as_bytes()]);
        dispatch();
        run(workplace.worker_command(&["--max-jobs=1"])).succeeds_within(SOON);
        let mut ours = told(&redis, version);
        assert_eq!(ours.pop().unwrap(), "WorkerStopping 0");
        let () = redis.query(&[b"DEL", laravel.key("queues:default:reserved").as_bytes()]);
        if version == 13 {
            reference.extend(ours_more.iter().map(|event| (*event).to_owned()));
        }
        assert_eq!(ours, reference, "Laravel {version}: {name}");
    }
}

on_every_laravel!(a_timeout_is_told_as_far_as_php_lives);

/// A job ends when it gets a signal, in the pool as under Laravel's own worker.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_signal_is_passed_on_to_jobs_that_can_be_interrupted() {
    let redis = RedisServer::start();
    let laravel = Laravel::new(13, &redis);
    let pool = Workplace::with_pool(&laravel, 1, "");
    let queue = laravel.key("queues:default");
    let args = ["queue:work", "redis", "--sleep=1"];
    for signal in [Signal::TERM, Signal::INT, Signal::QUIT] {
        let told = [laravel.command(&args), pool.artisand(&args)].map(|command| {
            let class = "App\\Jobs\\Interrupted";
            let command_of_job =
                format!("O:{}:\"{class}\":1:{{s:2:\"id\";s:1:\"i\";}}", class.len());
            let payload = json!({
                "uuid": "4decd07d-031e-40ab-82e5-3ec83a5b4a76", "displayName": class,
                "job": "Illuminate\\Queue\\CallQueuedHandler@call", "maxTries": 1, "timeout": null,
                "data": {"commandName": class, "command": command_of_job},
                "id": "zm13kuP0ECzQTyEU9j8xWyLCCF64O1PZ", "attempts": 0,
            });
            redis.query::<()>(&[b"RPUSH", queue.as_bytes(), payload.to_string().as_bytes()]);
            let mut worker = run(command);
            let journal = || journal::since(&redis, 0);
            let runs = poll(SOON, || (journal().len() == 1).then_some(()));
            assert!(runs.is_some(), "{}", worker.describe());
            worker.signal(signal);
            worker.succeeds_within(SOON);
            let events: Vec<String> = journal().into_iter().map(|line| line.event).collect();
            let end = format!("end-{}", signal.as_raw());
            assert_eq!(events, ["run", &*end], "{}", worker.describe());
            assert_eq!(redis.jobs(&queue), 0, "{}", redis.state());
            redis.query::<()>(&[b"DEL", b"interop:journal"]);
            let mut told = told(&redis, 13);
            told.retain(|event| event != "JobPopping");
            told
        });
        let [reference, in_pool] = told;
        let heard = format!("WorkerInterrupted by {}", signal.as_raw());
        assert!(reference.contains(&heard), "{reference:?}");
        assert_eq!(in_pool, reference, "{signal:?}");
    }
}
