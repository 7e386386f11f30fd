//! PHP and Rust workers on one queue: every job is run exactly once.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::laravel::Laravel;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, Workplace, flood};
use crate::harness::redis::RedisServer;
use crate::harness::sql::{Engine, MariaDb, MySql, Postgres, SqlServer};

/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(600);

fn every_job_is_run_once_by_php_or_rust(version: u8) {
    let count = flood(20_000);
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::new(&redis, &laravel.prefix, 90, INTEROP_MAPPINGS);
    let mut rust: Vec<ManagedChild> = (0..2)
        .map(|_| workplace.worker(&["--queue=default", "--concurrency=16", "-q"]))
        .collect();
    let mut php: Vec<ManagedChild> = (0..2)
        .map(|_| laravel.worker(&["--sleep=1", "--quiet"]))
        .collect();
    let jobs = count.to_string();
    let mut pushing = ManagedChild::spawn(laravel.command(&["interop:flood", &jobs]));
    pushing.succeeds_within(LONG);

    redis.eventually("all jobs are run", LONG, || {
        for worker in rust.iter_mut().chain(&mut php) {
            assert!(worker.is_running(), "ended: {}", worker.describe());
        }
        let done = redis.length("interop:done");
        assert!(
            done <= count,
            "{done} runs of {count} jobs; {}",
            redis.state()
        );
        (done == count).then_some(())
    });
    let mut numbers: Vec<usize> = redis
        .list("interop:done")
        .iter()
        .map(|n| std::str::from_utf8(n).unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    let is_each_once = numbers.iter().copied().eq(0..count);
    assert!(is_each_once, "some jobs were run twice and some never");

    // The number is written before the job is deleted.
    let keys =
        ["", ":delayed", ":reserved"].map(|part| laravel.key(&format!("queues:default{part}")));
    redis.eventually("the queue is empty", Duration::from_secs(60), || {
        let left =
            redis.length(&keys[0]) + redis.scores(&keys[1]).len() + redis.scores(&keys[2]).len();
        (left == 0).then_some(())
    });
    let notifications = redis.length(&laravel.key("queues:default:notify"));
    let pending = redis.length(&keys[0]);
    assert!(
        notifications <= pending,
        "{notifications} notifications; {}",
        redis.state()
    );
    assert_eq!(redis.length(&laravel.key("artisand:failed-spool")), 0);

    for worker in rust.iter_mut().chain(&mut php) {
        worker.signal(Signal::TERM);
    }
    for worker in rust.iter_mut().chain(&mut php) {
        worker.succeeds_within(Duration::from_secs(60));
    }
    // No worker took a job again while it stopped.
    assert_eq!(redis.length("interop:done"), count);
}

on_every_laravel!(every_job_is_run_once_by_php_or_rust);

/// The same with jobs in a table of this database.
fn every_job_of_a_table_is_run_once<E: Engine>(version: u8) {
    let count = flood(10_000);
    let (redis, server) = (RedisServer::start(), SqlServer::<E>::start());
    let mut settings = server.env().to_vec();
    settings.push(("QUEUE_CONNECTION", "database".to_owned()));
    settings.push(("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()));
    if E::CONNECTION == Postgres::CONNECTION {
        // Each look for a job passes the rows of all jobs that were deleted, until they are vacuumed: by default once a
        // minute, which is longer than the test.
        for setting in [
            "set autovacuum_naptime = 1",
            "set autovacuum_vacuum_cost_delay = 0",
        ] {
            server.query(&format!("alter system {setting}"));
        }
        server.query("select pg_reload_conf()");
    }
    let laravel = Laravel::with_env(version, &redis, &settings);
    // The first look makes the tables.
    laravel.run(&["interop:failed"]);
    let workplace = Workplace::for_app(&laravel, INTEROP_MAPPINGS);
    let work = |rest: &[&'static str]| [&["queue:work", "database"][..], rest].concat();
    let mut rust: Vec<ManagedChild> = (0..2)
        .map(|_| workplace.worker_of(&work(&["--concurrency=16", "-q"])))
        .collect();
    let php = || ManagedChild::spawn(laravel.command(&work(&["--sleep=1", "--quiet"])));
    let mut php: Vec<ManagedChild> = (0..2).map(|_| php()).collect();
    let jobs = count.to_string();
    let mut pushing = ManagedChild::spawn(laravel.command(&["interop:flood", &jobs]));
    pushing.succeeds_within(LONG);

    let rows = "select count(*) from jobs where queue = 'default'";
    let left = || server.query(rows)[0][0].clone().unwrap();
    redis.eventually("all jobs are run and deleted", LONG, || {
        for worker in rust.iter_mut().chain(&mut php) {
            assert!(worker.is_running(), "ended: {}", worker.describe());
        }
        let done = redis.length("interop:done");
        assert!(done <= count, "{done} runs of {count} jobs");
        (done == count && left() == "0").then_some(())
    });
    let done = redis.list("interop:done").into_iter();
    let number = |n: Vec<u8>| String::from_utf8(n).unwrap().parse::<usize>().unwrap();
    let mut numbers: Vec<usize> = done.map(number).collect();
    numbers.sort_unstable();
    let is_each_once = numbers.iter().copied().eq(0..count);
    assert!(is_each_once, "some jobs were run twice and some never");
    // No transaction was in the way of another one: since Laravel 12.54 PHP takes that for a failure of the job.
    let failed = server.query("select count(*) from failed_jobs");
    assert_eq!(failed[0][0].as_deref(), Some("0"));
    assert!(!laravel.log().contains("ERROR"), "{}", laravel.log());
    for worker in rust.iter_mut().chain(&mut php) {
        worker.signal(Signal::TERM);
    }
    for worker in rust.iter_mut().chain(&mut php) {
        worker.succeeds_within(Duration::from_secs(60));
    }
    assert_eq!(redis.length("interop:done"), count);
}

mod every_job_of_a_table_is_run_once {
    use super::{MariaDb, MySql, Postgres, every_job_of_a_table_is_run_once as scenario};

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_8_postgres() {
        scenario::<Postgres>(8);
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_10_mariadb() {
        scenario::<MariaDb>(10);
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_13_mariadb() {
        scenario::<MariaDb>(13);
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_13_mysql() {
        scenario::<MySql>(13);
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_13_postgres() {
        scenario::<Postgres>(13);
    }
}
