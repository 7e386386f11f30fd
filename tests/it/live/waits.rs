//! Jobs that cannot be read wait; a stopping worker leaves PHP time for the end of a job.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::process::{Workplace, eventually};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);

fn a_job_that_cannot_be_read_waits_longer_and_longer(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let rust = Workplace::for_app(
        &laravel,
        "[[map]]\njob = 'App\\Jobs\\Journal'\nhandler = \"strict\"\n",
    );
    let php = Workplace::with_pool(&laravel, 1, "");
    let (queue, delayed) = (
        laravel.key("queues:default"),
        laravel.key("queues:default:delayed"),
    );
    laravel.run(&["interop:journal", "long", "--script=ok"]);
    let element: Vec<u8> = redis.query(&[b"LPOP", queue.as_bytes()]);
    let job: Value = serde_json::from_slice(&element).unwrap();
    // Rust's handler accepts ids of one letter; PHP cannot read half of an object.
    let command = job["data"]["command"].as_str().unwrap();
    let (half, _) = command.split_at(command.len() / 2);
    for (workplace, command) in [(&rust, command), (&php, half)] {
        // Attempts before; `--backoff`; the wait.
        for (attempts, backoff, expected) in [(0, "0", 1.0), (3, "0", 60.0), (3, "7", 7.0)] {
            let mut job = job.clone();
            job["data"]["command"] = command.into();
            job["maxTries"] = json!(0);
            job["attempts"] = json!(attempts);
            let text = job.to_string();
            redis.query::<()>(&[b"RPUSH", queue.as_bytes(), text.as_bytes()]);
            let backoff = format!("--backoff={backoff}");
            let mut worker = workplace.worker(&["--once", &backoff]);
            worker.wait_timeout(SOON);
            let found = redis.scores(&delayed);
            let () = redis.query(&[b"DEL", delayed.as_bytes()]);
            let now = std::time::UNIX_EPOCH.elapsed().unwrap().as_secs_f64();
            assert_eq!(found.len(), 1, "{}", worker.describe());
            let wait = found[0].1 - now;
            let near = expected - 6.0..=expected + 1.0;
            assert!(near.contains(&wait), "{wait} {}", worker.describe());
        }
    }
}

on_every_laravel!(a_job_that_cannot_be_read_waits_longer_and_longer);

fn a_stop_leaves_php_time_for_what_follows_a_failed_job(version: u8) {
    let redis = RedisServer::start();
    let driver = [("QUEUE_FAILED_DRIVER", "null")];
    let laravel = Laravel::with_env(version, &redis, &driver);
    let workplace = Workplace::with_pool(&laravel, 1, "");
    let failing = "await:go+throw";
    let args = ["interop:batch", failing, "--catch", "--allow-failures"];
    let batch = laravel.run(&args).remove(0);
    let id = batch["id"].as_str().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _entered = runtime.enter();
    let database = laravel.settings().open_database(None).unwrap();
    let mut worker = workplace.worker(&["--tries=1", "--grace=1"]);
    eventually("the job runs", SOON, || {
        (redis.length("interop:journal") > 0).then_some(())
    });
    // PHP waits for the database when it counts the failure; there is one connection, which keeps the lock.
    let run = |sql| runtime.block_on(database.execute(sql, &[])).unwrap();
    run("begin exclusive");
    redis.query::<()>(&[b"SET", b"interop:go", b"1"]);
    eventually("the job failed", SOON, || {
        let log = worker.stderr();
        log.contains("job failed for good").then_some(())
    });
    worker.signal(Signal::TERM);
    // Longer than the grace, with some time for the stop itself.
    let since = Instant::now();
    while since.elapsed() < Duration::from_secs(4) {
        assert!(worker.is_running(), "{}", worker.describe());
        // That nothing happens has no event.
        std::thread::sleep(Duration::from_millis(50));
    }
    run("rollback");
    worker.succeeds_within(SOON);
    let state = laravel.run(&["interop:batch-state", id]).remove(0);
    assert_eq!(state["failed"], 1, "{}", worker.describe());
    assert_eq!(redis.length("interop:batch"), 1, "{}", worker.describe());
}

on_every_laravel!(a_stop_leaves_php_time_for_what_follows_a_failed_job);
