//! Workers and servers that go away in the middle of their jobs.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::journal::since;
use crate::harness::laravel::Laravel;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(90);

fn dispatch(laravel: &Laravel, jobs: usize, script: &str) {
    for n in 0..jobs {
        let (id, script) = (format!("job-{n}"), format!("--script={script}"));
        laravel.run(&["interop:journal", &id, &script, "--tries=5"]);
    }
}

/// Attempts in the journal as (pid, attempt) in order, by job.
fn journal(redis: &RedisServer) -> BTreeMap<String, Vec<(u64, u64)>> {
    let mut runs: BTreeMap<String, Vec<(u64, u64)>> = BTreeMap::new();
    for line in redis.list("interop:journal") {
        let line: Value = serde_json::from_slice(&line).unwrap();
        assert_eq!(line["event"], "run", "{line}");
        let run = (
            line["pid"].as_u64().unwrap(),
            line["attempts"].as_u64().unwrap(),
        );
        runs.entry(line["id"].as_str().unwrap().to_owned())
            .or_default()
            .push(run);
    }
    runs
}

/// Number of jobs in the list, delayed and reserved.
fn sizes(redis: &RedisServer, laravel: &Laravel) -> (usize, usize, usize) {
    (
        redis.length(&laravel.key("queues:default")),
        redis.scores(&laravel.key("queues:default:delayed")).len(),
        redis.scores(&laravel.key("queues:default:reserved")).len(),
    )
}

fn await_lines(redis: &RedisServer, lines: usize) {
    redis.eventually("the lines are in the journal", SOON, || {
        (redis.length("interop:journal") >= lines).then_some(())
    });
}

fn jobs_of_a_killed_worker_go_to_another(version: u8) {
    const JOBS: usize = 8;
    let redis = RedisServer::start();
    let laravel = Laravel::with_retry_after(version, &redis, 3);
    let workplace = Workplace::new(&redis, &laravel.prefix, 3, INTEROP_MAPPINGS);
    dispatch(&laravel, JOBS, "sleep:30,ok");

    let mut first = workplace.worker(&["--concurrency=8"]);
    await_lines(&redis, JOBS);
    assert_eq!(sizes(&redis, &laravel), (0, 0, JOBS), "{}", redis.state());
    first.signal(Signal::KILL);
    first.wait_timeout(SOON);
    // No process was left to record anything.
    assert_eq!(sizes(&redis, &laravel), (0, 0, JOBS), "{}", redis.state());

    let mut second = workplace.worker(&["--concurrency=8"]);
    await_lines(&redis, 2 * JOBS);
    redis.eventually("the second runs are settled", SOON, || {
        (sizes(&redis, &laravel) == (0, 0, 0)).then_some(())
    });
    let runs = journal(&redis);
    assert_eq!(runs.len(), JOBS);
    let expected = [(u64::from(first.id()), 1), (u64::from(second.id()), 2)];
    for (id, runs) in runs {
        assert_eq!(runs, expected, "{id}");
    }
    assert_eq!(redis.length(&laravel.key("artisand:failed-spool")), 0);
    second.signal(Signal::TERM);
    second.succeeds_within(SOON);
}

on_every_laravel!(jobs_of_a_killed_worker_go_to_another);

fn jobs_of_a_stopped_worker_are_released_at_once(version: u8) {
    const JOBS: usize = 4;
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::new(&redis, &laravel.prefix, 90, INTEROP_MAPPINGS);
    dispatch(&laravel, JOBS, "sleep:30,ok");

    let mut worker = workplace.worker(&["--concurrency=4", "--grace=1"]);
    await_lines(&redis, JOBS);
    let told = Instant::now();
    worker.signal(Signal::TERM);
    worker.succeeds_within(Duration::from_secs(8));
    let took = told.elapsed();
    assert!(
        took >= Duration::from_millis(900),
        "stopped after {took:?}, before its grace was over"
    );

    let (pending, delayed, reserved) = sizes(&redis, &laravel);
    assert_eq!(
        (pending + delayed, reserved),
        (JOBS, 0),
        "{}",
        redis.state()
    );
    let released = redis
        .list(&laravel.key("queues:default"))
        .into_iter()
        .chain(
            redis
                .scores(&laravel.key("queues:default:delayed"))
                .into_iter()
                .map(|(job, _)| job),
        );
    for job in released {
        let payload: Value = serde_json::from_slice(&job).unwrap();
        assert_eq!(payload["attempts"], 1, "{payload}");
    }

    // PHP continues where artisand stopped, with the second entry of the script.
    let mut php = laravel.worker(&["--stop-when-empty", "--sleep=0"]);
    php.succeeds_within(SOON);
    assert_eq!(sizes(&redis, &laravel), (0, 0, 0), "{}", redis.state());
    for (id, runs) in journal(&redis) {
        let attempts: Vec<u64> = runs.iter().map(|(_, attempt)| *attempt).collect();
        assert_eq!(attempts, [1, 2], "{id}");
    }
}

on_every_laravel!(jobs_of_a_stopped_worker_are_released_at_once);

fn a_redis_that_was_restarted_gets_the_ends_of_jobs_it_had_begun(version: u8) {
    const JOBS: usize = 4;
    let mut redis = RedisServer::start_durable();
    // Where handlers wait for the end of the other server, and tell their own end.
    let handlers = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::new(&redis, &laravel.prefix, 90, INTEROP_MAPPINGS);
    dispatch(&laravel, JOBS, "await:go+note:end");

    let mut command = workplace.worker_command(&["--concurrency=4"]);
    command.env("REDIS_PORT", handlers.port().to_string());
    let mut worker = ManagedChild::spawn(command);
    await_lines(&handlers, JOBS);
    redis.stop();
    handlers.query::<()>(&[b"SET", b"interop:go", b""]);
    await_lines(&handlers, 2 * JOBS);
    eventually("the worker says so", SOON, || {
        worker.stderr().contains("Redis is away").then_some(())
    });
    assert!(
        worker.is_running(),
        "ended without Redis: {}",
        worker.describe()
    );
    redis.restart();

    redis.eventually("the jobs are settled", SOON, || {
        (sizes(&redis, &laravel) == (0, 0, 0)).then_some(())
    });
    let lines = since(&handlers, 0);
    assert_eq!(lines.len(), 2 * JOBS, "one was run again: {lines:?}");
    let once = (worker.id(), Some(1));
    for line in lines {
        assert_eq!((line.pid, line.attempts), once, "{line:?}");
    }
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

on_every_laravel!(a_redis_that_was_restarted_gets_the_ends_of_jobs_it_had_begun);
