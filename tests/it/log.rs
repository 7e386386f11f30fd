//! A worker's log lines about its jobs.

use std::time::Duration;

use artisand::payload::CALL_QUEUED_HANDLER;
use serde_json::{Value, json};

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;

const MAPPING: &str = "[[map]]\njob = '*'\nhandler = \"log\"\n";

/// Runs one job of this context and returns the log.
fn log_of(context: &Value, args: &[&str]) -> String {
    worked(context, args).stderr()
}

/// Runs one job of this context.
fn worked(context: &Value, args: &[&str]) -> ManagedChild {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, MAPPING);
    let payload = json!({
        "uuid": "uuid-1", "displayName": "App\\Jobs\\X", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\X", "command": "O:10:\"App\\Jobs\\X\":0:{}"},
        "illuminate:log:context": context, "id": "id-1", "attempts": 0,
    });
    redis.query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
    let args = [&["queue:work", "redis", "--once"][..], args].concat();
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    worker.succeeds_within(Duration::from_secs(30));
    worker
}

fn line(log: &str) -> &str {
    let mut lines = log.lines().filter(|line| line.contains("job logged"));
    let line = lines.next().unwrap_or_else(|| panic!("{log}"));
    assert_eq!(lines.next(), None, "{log}");
    line
}

#[test]
fn what_a_handler_logs_says_which_job_it_was_and_nothing_that_is_hidden() {
    let context = json!({
        "data": {"tenant": "i:7;", "forged": "s:8:\"a\n\u{1b}[1mb\u{7}\";"},
        "hidden": {"token": "s:6:\"s3cr3t\";"},
    });
    let log = log_of(&context, &[]);
    let text = line(&log);
    let span = r#"job{job.uuid="uuid-1" job.class="App\Jobs\X" queue="default" attempts=1 context="{\"forged\":\"a\\n\\u001b[1mb\\u0007\",\"tenant\":7}"}:"#;
    assert!(text.contains(span), "{text}");
    assert!(!log.contains("s3cr3t") && !log.contains("token"), "{log}");

    let worker = worked(&context, &["--json"]);
    let log = worker.stderr();
    let json: Value = serde_json::from_str(line(&log)).unwrap();
    let span = &json["span"];
    assert_eq!(span["name"], "job");
    assert_eq!(span["job.uuid"], "uuid-1");
    assert_eq!(span["job.class"], "App\\Jobs\\X");
    assert_eq!(span["queue"], "default");
    assert_eq!(span["attempts"], 1);
    let shown: Value = serde_json::from_str(span["context"].as_str().unwrap()).unwrap();
    assert_eq!(shown, json!({"tenant": 7, "forged": "a\n\u{1b}[1mb\u{7}"}));
    assert!(!log.contains("s3cr3t"), "{log}");

    let lines = worker.stdout();
    for line in lines.lines() {
        let json: Value = serde_json::from_str(line).unwrap();
        assert_eq!(json["context"], shown, "{line}");
    }
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert!(!lines.contains("s3cr3t"), "{lines}");
}

#[test]
fn a_long_context_is_cut_and_a_job_without_one_has_none() {
    let long = format!("s:9000:\"{}\";", "x".repeat(9000));
    let context = json!({"data": {"long": long, "short": "b:1;"}, "hidden": []});
    let text = log_of(&context, &[]);
    let logged = line(&text);
    let shown = r#"context="{\"short\":true,\"$omitted\":1}""#;
    assert!(logged.contains(shown) && logged.len() < 3000, "{logged}");
    let nothing = json!({"data": [], "hidden": {"a": "N;"}});
    let text = log_of(&nothing, &[]);
    assert!(!line(&text).contains("context="), "{text}");
    let lines = worked(&nothing, &["--json"]).stdout();
    assert!(
        lines.contains("success") && !lines.contains("context"),
        "{lines}"
    );
}

const SOON: Duration = Duration::from_secs(60);

/// An element of `queues:default`.
fn payload(uuid: &str) -> Vec<u8> {
    let payload = json!({
        "uuid": uuid, "displayName": "App\\Jobs\\X", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\X", "command": "O:10:\"App\\Jobs\\X\":0:{}"},
        "id": uuid, "attempts": 0,
    });
    payload.to_string().into_bytes()
}

#[test]
fn a_server_that_is_away_is_said_once_and_once_when_it_is_back() {
    let mut redis = RedisServer::start_durable();
    // A reservation is renewed while the server is away, and jobs end.
    let mapping = "[[map]]\njob = 'App*'\nhandler = { exec = [\"sleep\", \"2\"] }\n";
    let workplace = Workplace::new(&redis, "", 9, mapping);
    for uuid in ["u-1", "u-2", "u-3"] {
        redis.query::<()>(&[b"RPUSH", b"queues:default", &payload(uuid)]);
    }
    let args = ["queue:work", "redis", "--concurrency=4"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    redis.eventually("three jobs", SOON, || {
        (worker.stdout().matches("RUNNING").count() == 3).then_some(())
    });
    redis.kill();
    // Time is the subject: long enough for many tries, and for a renewal, which are not logged one by one.
    std::thread::sleep(Duration::from_secs(4));
    redis.restart();
    redis.eventually("three ends", SOON, || {
        (worker.stdout().matches("DONE").count() == 3).then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    let log = worker.stderr();
    // The first line is about the missing app.
    let lines: Vec<&str> = log.lines().skip(1).collect();
    let [away, back] = lines[..] else {
        panic!("{}", worker.describe())
    };
    assert!(
        away.contains("ERROR Redis is away: what needs it waits, and is tried again address="),
        "{log}"
    );
    assert!(back.contains("INFO Redis is back address="), "{log}");
}

#[test]
fn a_failure_is_one_error() {
    let redis = RedisServer::start();
    let mapping =
        "[[map]]\njob = '*'\nhandler = { exec = ['sh', '-c', 'echo broken >&2; exit 3'] }\n";
    let workplace = Workplace::new(&redis, "", 90, mapping);
    redis.query::<()>(&[b"RPUSH", b"queues:default", &payload("u-1")]);
    let args = ["queue:work", "redis", "--stop-when-empty", "--tries=2"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    worker.succeeds_within(SOON);
    let log = worker.stderr();
    // The first line is about the missing app.
    let lines: Vec<&str> = log.lines().skip(1).collect();
    let [threw, failed] = lines[..] else {
        panic!("{log}")
    };
    let job = r#" job.uuid="u-1" job.class="App\Jobs\X" attempts="#;
    for (line, words) in [
        (threw, [" WARN job threw", "1 error=", "broken"]),
        (failed, ["ERROR job failed for good", "2 reason=", "broken"]),
    ] {
        assert!(line.contains(job), "{line}");
        assert!(words.iter().all(|word| line.contains(word)), "{line}");
    }
    assert!(failed.ends_with("ms") || failed.ends_with('s'), "{failed}");
}

#[test]
fn log_lines_have_the_time_of_job_lines() {
    let redis = RedisServer::start();
    let zone = "[worker]\ntimezone = \"Asia/Kathmandu\"\n";
    let workplace = Workplace::new(&redis, "", 90, &format!("{zone}{MAPPING}"));
    let run = |args: &[&str]| {
        redis.query::<()>(&[b"RPUSH", b"queues:default", &payload("u-1")]);
        let args = [&["queue:work", "redis", "--once"][..], args].concat();
        let mut worker = ManagedChild::spawn(workplace.artisand(&args));
        worker.succeeds_within(SOON);
        (worker.stdout(), worker.stderr())
    };
    let (output, log) = run(&[]);
    let hour = |line: &str| line.get(..15).unwrap_or_default().to_owned();
    let logged = log
        .lines()
        .find(|line| line.contains("job logged"))
        .unwrap();
    // The job may begin in another hour than it ends.
    let mut of_jobs = output.lines().map(hour);
    assert!(
        of_jobs.any(|of_job| of_job == hour(logged)),
        "{output}{log}"
    );
    assert!(logged[21..].starts_with("  INFO job{"), "{log}");

    let (output, log) = run(&["--json"]);
    let logged: Value = serde_json::from_str(line(&log)).unwrap();
    let job: Value = serde_json::from_str(output.lines().next().unwrap()).unwrap();
    for time in [&logged["timestamp"], &job["timestamp"]] {
        assert!(time.as_str().unwrap().ends_with("+05:45"), "{time}");
    }
}

#[test]
fn a_cause_that_is_told_twice_is_said_once() {
    let mut redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, MAPPING);
    redis.kill();
    let output = workplace.artisand(&["doctor"]).output().unwrap();
    let shown = String::from_utf8(output.stdout).unwrap();
    assert_eq!(shown.matches("onnection refused").count(), 1, "{shown}");
}

#[test]
fn the_log_names_a_running_job_whose_reservation_is_gone() {
    let redis = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let pipe = directory.path().join("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let path = pipe.to_str().unwrap();
    let mapping =
        format!("[[map]]\njob = '*'\nhandler = {{ exec = ['sh', '-c', 'read line < {path}'] }}\n");
    // The job must begin before its reservation ends, on a machine that stands still for a while, too.
    let workplace = Workplace::new(&redis, "", 9, &mapping);
    let payload = json!({
        "uuid": "uuid-1", "displayName": "App\\Jobs\\X", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\X", "command": "O:10:\"App\\Jobs\\X\":0:{}"},
        "id": "id-1", "attempts": 0,
    });
    redis.query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "redis", "--once"]));
    let soon = Duration::from_secs(30);
    let reserved = b"queues:default:reserved";
    eventually("the job is reserved", soon, || {
        (redis.query::<u64>(&[b"DEL", reserved]) == 1).then_some(())
    });
    let line = eventually("the loss is logged", soon, || {
        let log = worker.stderr();
        let mut lines = log.lines();
        let found = lines.find(|line| line.contains("the reservation of a running job is gone"));
        found.map(str::to_owned)
    });
    std::fs::write(&pipe, "\n").unwrap();
    worker.succeeds_within(soon);
    let named = r#"job.uuid="uuid-1" job.class="App\Jobs\X" queue=default attempts=1"#;
    assert!(line.contains(named), "{line}");
}
