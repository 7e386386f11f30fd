//! From artisand back to `queue:work`, as described in `docs/going-back.md`.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::{RedisServer, is_memory};
use crate::harness::sql::MariaDbServer;

const SOON: Duration = Duration::from_secs(60);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\BatchJournal'
handler = "discard"

[[map]]
job = 'App\Jobs\Journal'
handler = { exec = ["sh", "-c", "exit 65"] }
"#;

fn what_waits_is_brought_home_and_php_takes_over(version: u8) {
    let redis = RedisServer::start();
    let mut mariadb = MariaDbServer::start();
    let mut settings = mariadb.env().to_vec();
    settings.push(("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()));
    let laravel = Laravel::with_env(version, &redis, &settings);
    let workplace = Workplace::for_app(&laravel, MAPPINGS);
    let key = |name: &str| laravel.key(name);
    let (spool, follow_ups) = (key("artisand:failed-spool"), key("artisand:follow-ups"));
    let waiting = || [redis.length(&spool), redis.length(&follow_ups)];
    let list = key("queues:default");

    // The first look makes the tables.
    laravel.run(&["interop:failed"]);
    let batch = laravel
        .run(&["interop:batch", "ok", "ok", "--then"])
        .remove(0);
    let failing = laravel.run(&["interop:journal", "failing"]).remove(0);
    redis.query::<i64>(&[b"RPUSH", list.as_bytes(), b"no payload"]);

    // While the database is away, jobs end.
    mariadb.stop();
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "redis"]));
    redis.eventually("all jobs to end", SOON, || {
        (redis.jobs(&list) == 0 && waiting() == [1, 2]).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    assert_eq!(waiting(), [1, 2], "{}", redis.state());
    mariadb.restart();

    // A worker on a queue without jobs empties the lists and runs no job.
    let kept = laravel.run(&["interop:journal", "kept"]).remove(0);
    let args = [
        "queue:work",
        "redis",
        "--queue=no-such-queue",
        "--stop-when-empty",
    ];
    // The previous worker holds the leases of the lists for ten seconds.
    redis.eventually("both lists to be empty", SOON, || {
        ManagedChild::spawn(workplace.artisand(&args)).succeeds_within(SOON);
        (waiting() == [0, 0]).then_some(())
    });
    let uuid = |payload: &Vec<u8>| {
        let payload: Value = serde_json::from_slice(payload).unwrap();
        payload["uuid"].clone()
    };
    assert!(
        redis
            .list(&list)
            .iter()
            .any(|job| uuid(job) == kept["uuid"])
    );
    let failed = laravel.run(&["interop:failed"]).remove(0);
    assert_eq!(failed["count"], 1, "{failed}");
    let payload = failed["jobs"][0]["payload"].as_str().unwrap();
    assert_eq!(uuid(&payload.into()), failing["uuid"]);

    // PHP ends the batch, and now serves the queue.
    laravel
        .worker(&["--stop-when-empty", "--sleep=0"])
        .succeeds_within(SOON);
    assert_eq!(redis.length("interop:batch"), 1, "{}", redis.state());
    let state = laravel
        .run(&["interop:batch-state", batch["id"].as_str().unwrap()])
        .remove(0);
    assert_eq!(state["pending"], 0, "{state}");
    assert_ne!(state["finished_at"], Value::Null, "{state}");
    assert_eq!(state["failed_ids"], serde_json::json!([]), "{state}");
    let left: Vec<String> = redis.query(&[b"KEYS", key("*").as_bytes()]);
    let left: Vec<String> = left
        .into_iter()
        .filter(|left| !left.contains("_cache") && !is_memory(left))
        .collect();
    assert_eq!(left, [key("queues:default:quarantine")]);
    let journal = redis.list("interop:journal");
    let ran: Value = serde_json::from_slice(journal.last().unwrap()).unwrap();
    assert_eq!([&ran["id"], &ran["by"]], ["kept", "php"], "{ran}");
}

on_every_laravel!(what_waits_is_brought_home_and_php_takes_over);
