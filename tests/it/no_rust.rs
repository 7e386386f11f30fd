//! Runs `examples/no-rust` unchanged.

use std::time::Duration;

use artisand::payload::CALL_QUEUED_HANDLER;
use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::process::{ManagedChild, artisand, eventually};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(30);

/// A payload of a job with these properties, serialized.
fn payload(class: &str, uuid: &str, properties: &str) -> String {
    let class = format!("App\\Jobs\\{class}");
    let count = properties.matches(';').count() / 2;
    let command = format!("O:{}:\"{class}\":{count}:{{{properties}}}", class.len());
    let payload = json!({
        "uuid": uuid, "displayName": class, "job": CALL_QUEUED_HANDLER, "maxTries": 1,
        "data": {"commandName": class, "command": command}, "id": uuid, "attempts": 0,
    });
    payload.to_string()
}

/// The jobs of the example, and one of another class.
fn payloads() -> [String; 10] {
    let score = |id: u32, review: &str| {
        format!(
            "s:2:\"id\";i:{id};s:6:\"review\";s:{}:\"{review}\";",
            review.len()
        )
    };
    let invoice =
        |order: u32, amount: &str| format!("s:7:\"orderId\";i:{order};s:6:\"amount\";{amount};");
    [
        payload("MakeInvoice", "a-1", &invoice(42, "d:12.5")),
        payload("MakeInvoice", "a-2", &invoice(43, "i:-1")),
        payload("ScoreReview", "b-1", &score(1, "Great, I love it!")),
        payload("ScoreReview", "b-2", &score(2, "Poor and broken.")),
        payload("ScoreReview", "b-3", &score(3, " ")),
        payload("ScoreReview", "b-4", "s:2:\"id\";i:4;"),
        payload("BookShipment", "c-1", &shipment(3)),
        // The same job again, as after a lost answer.
        payload("BookShipment", "c-1", &shipment(3)),
        payload("BookShipment", "c-2", &shipment(3000)),
        payload("ForPhp", "d-1", ""),
    ]
}

fn shipment(weight: u32) -> String {
    format!("s:5:\"order\";i:42;s:6:\"weight\";i:{weight};")
}

/// The uuids of failed jobs and the first lines of their exceptions.
fn failed(redis: &RedisServer) -> Vec<(String, String)> {
    let spooled = redis.list("shop:artisand:failed-spool");
    let jobs = spooled.iter().map(|record| {
        let job: Value = serde_json::from_slice(record).unwrap();
        let text = |key: &str| job[key].as_str().unwrap().to_owned();
        let exception = text("exception");
        (text("uuid"), exception.lines().next().unwrap().to_owned())
    });
    let mut jobs: Vec<_> = jobs.collect();
    jobs.sort();
    jobs
}

#[test]
#[ignore = "needs python3"]
fn the_example_without_rust_works_as_it_says() {
    let example = project().join("examples/no-rust");
    let directory = tempfile::tempdir().unwrap();
    let output = directory.path().join("output");
    let python = |script: &str| {
        let mut command = std::process::Command::new("python3");
        command.arg(script).current_dir(&example);
        command
    };
    let mut command = python("server.py");
    command
        .env("SHIPMENTS_SECRET", "a secret")
        .env("OUTPUT", &output)
        .env("PORT", "0");
    let server = ManagedChild::spawn(command);
    let port = eventually("the service listens", SOON, || {
        let text = server.stdout();
        let port = text.strip_prefix("listening on port ")?;
        Some(port.strip_suffix('\n')?.to_owned())
    });
    // Only the port differs, because its own may be in use on this machine, and the file is in another directory.
    let toml = std::fs::read_to_string(example.join("artisand.toml")).unwrap();
    assert!(toml.contains("127.0.0.1:9000"));
    let config = directory.path().join("artisand.toml");
    let of_test = toml.replace("127.0.0.1:9000", &format!("127.0.0.1:{port}"));
    assert!(of_test.contains("cwd = \".\""));
    let of_test = of_test.replace("cwd = \".\"", &format!("cwd = {example:?}"));
    std::fs::write(&config, of_test).unwrap();

    let redis = RedisServer::start();
    let payloads = payloads();
    for payload in &payloads {
        redis.query::<()>(&[b"RPUSH", b"shop:queues:default", payload.as_bytes()]);
    }
    let work = |secret: &str| {
        let mut command = artisand(&["queue:work", "redis", "--stop-when-empty", "--config"]);
        command
            .arg(&config)
            .current_dir(&example)
            .env("REDIS_PORT", redis.port().to_string())
            .env("REDIS_PREFIX", "shop:")
            .env("SHIPMENTS_SECRET", secret)
            .env("OUTPUT", &output);
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(SOON);
        worker
    };
    let worker = work("a secret");
    let read = |name: &str| std::fs::read_to_string(output.join(name)).unwrap_or_default();
    assert_eq!(read("invoice-42.txt"), "Invoice for order 42: 12.50\n");
    assert_eq!([read("score-1.txt"), read("score-2.txt")], ["2\n", "-2\n"]);
    let shipments: Vec<Value> = read("shipments.jsonl")
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    assert_eq!(shipments, [json!({"order": 42, "weight": 3})]);
    assert!(worker.stderr().contains("points"), "{}", worker.describe());

    let expected = [
        ("a-2", "order 43 has an amount below zero".to_owned()),
        ("b-3", "the review is empty".to_owned()),
        ("b-4", "KeyError: 'review'".to_owned()),
        (
            "c-2",
            format!(
                "`http://127.0.0.1:{port}/shipments` answered 422 Unprocessable Entity: too heavy"
            ),
        ),
    ];
    let found = failed(&redis);
    assert_eq!(found.len(), expected.len(), "{found:?}");
    for ((uuid, exception), (expected_uuid, text)) in found.iter().zip(&expected) {
        assert!(
            uuid == expected_uuid && exception.contains(text),
            "{uuid}: {exception}"
        );
    }
    let left = redis.list("shop:queues:default");
    assert_eq!(left, [payloads[9].as_bytes()]);

    // A sender without the secret cannot book anything.
    let forged = payload("BookShipment", "c-3", &shipment(3));
    redis.query::<()>(&[b"RPUSH", b"shop:queues:default", forged.as_bytes()]);
    work("another secret");
    let found = failed(&redis);
    let last = found.last().unwrap();
    assert!(
        last.0 == "c-3" && last.1.contains("401 Unauthorized: the signature is wrong"),
        "{found:?}"
    );
    assert_eq!(read("shipments.jsonl").lines().count(), 1);
}
