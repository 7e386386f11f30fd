//! What a worker logs of its jobs.

use std::time::Duration;

use artisand::payload::CALL_QUEUED_HANDLER;
use serde_json::{Value, json};

use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;

const MAPPING: &str = "[[map]]\njob = '*'\nhandler = \"log\"\n";

/// Runs one job of this context and gives what was logged.
fn log_of(context: &Value, args: &[&str]) -> String {
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
    worker.stderr()
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
    let span = r#"job{job.uuid="uuid-1" job.class="App\\Jobs\\X" queue="default" attempts=1 context="{\"forged\":\"a\\n\\u001b[1mb\\u0007\",\"tenant\":7}"}:"#;
    assert!(text.contains(span), "{text}");
    assert!(!log.contains("s3cr3t") && !log.contains("token"), "{log}");

    let log = log_of(&context, &["--json"]);
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
}

#[test]
fn a_long_context_is_cut_and_a_job_without_one_has_none() {
    let long = format!("s:9000:\"{}\";", "x".repeat(9000));
    let context = json!({"data": {"long": long, "short": "b:1;"}, "hidden": []});
    let text = log_of(&context, &[]);
    let logged = line(&text);
    let shown = r#"context="{\"short\":true,\"$omitted\":1}""#;
    assert!(logged.contains(shown) && logged.len() < 3000, "{logged}");
    let text = log_of(&json!({"data": [], "hidden": {"a": "N;"}}), &[]);
    assert!(!line(&text).contains("context="), "{text}");
}
