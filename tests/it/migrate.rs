//! `queue:migrate`: due jobs come to their queue without a worker, and beside one.

use std::time::Duration;

use serde_json::{Value, json};

use crate::harness::process::{INTEROP_MAPPINGS, Workplace};
use crate::harness::redis::RedisServer;

const PREFIX: &str = "app-";
/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(180);

/// A job that writes its number to a list; `%N` stands for the number.
const COUNTED: &str = r#"{"uuid":"u%N","displayName":"App\\Jobs\\Counted","job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":null,"timeout":null,"data":{"commandName":"App\\Jobs\\Counted","command":"O:16:\"App\\Jobs\\Counted\":1:{s:1:\"n\";i:%N;}"},"id":"i%N","attempts":0}"#;

/// Puts jobs with the numbers `first..=last` into a sorted set of the queue, each due at the second of its number.
fn put(redis: &RedisServer, set: &str, first: usize, last: usize) {
    let script = "for n = ARGV[2], ARGV[3] do redis.call('ZADD', KEYS[1], n, (string.gsub(ARGV[1], '%%N', string.format('%d', n)))) end";
    let key = format!("{PREFIX}queues:default:{set}");
    let (first, last) = (first.to_string(), last.to_string());
    let command = ["EVAL", script, "1", &key, COUNTED, &first, &last];
    redis.query::<()>(&command.map(str::as_bytes));
}

fn key(part: &str) -> String {
    format!("{PREFIX}queues:default{part}")
}

fn members(scores: &[(Vec<u8>, f64)]) -> Vec<&Vec<u8>> {
    scores.iter().map(|(member, _)| member).collect()
}

fn migrate(workplace: &Workplace, args: &[&str]) -> String {
    let args = [&["queue:migrate"][..], args].concat();
    let output = workplace.artisand(&args).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_hundred_thousand_due_jobs_move_in_bounded_steps() {
    const DUE: usize = 100_000;
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, PREFIX, 90, "");
    put(&redis, "delayed", 1, DUE);
    put(&redis, "reserved", DUE + 1, DUE + 3);
    // Due in some hundred years.
    put(&redis, "delayed", 10_000_000_000, 10_000_000_001);
    let (delayed, expired) = (
        redis.scores(&key(":delayed")),
        redis.scores(&key(":reserved")),
    );
    redis.query::<()>(&[b"CONFIG", b"RESETSTAT"]);

    let said: Value = serde_json::from_str(&migrate(&workplace, &["--json"])).unwrap();
    let expected = json!([{"connection": "redis", "queue": "default", "driver": "redis", "delayed": DUE, "expired": 3}]);
    assert_eq!(said, expected);
    let list = redis.list(&key(""));
    assert_eq!(list.len(), DUE + 3);
    // In the order in which they were due; the reservations that had ended came with the first step.
    let expired = members(&expired);
    let moved: Vec<_> = list.iter().filter(|job| !expired.contains(job)).collect();
    assert!(moved.into_iter().eq(members(&delayed[..DUE])));
    assert_eq!(redis.length(&key(":notify")), DUE + 3);
    assert_eq!(redis.scores(&key(":delayed")), delayed[DUE..]);
    assert_eq!(redis.scores(&key(":reserved")), []);
    let stats: String = redis.query(&[b"INFO", b"commandstats"]);
    let calls = stats
        .lines()
        .find_map(|line| line.strip_prefix("cmdstat_evalsha:calls="));
    let calls: usize = calls.unwrap().split(',').next().unwrap().parse().unwrap();
    assert!((1_000..1_100).contains(&calls), "{stats}");

    let text = migrate(&workplace, &["redis", "--queue=default, other"]);
    let words: Vec<_> = text
        .split_whitespace()
        .filter(|word| !word.starts_with(".."))
        .collect();
    assert_eq!(
        words.join(" "),
        "Queue name Moved jobs [redis] default 0 delayed, 0 expired [redis] other 0 delayed, 0 expired"
    );
}

#[test]
#[ignore = "needs the example interop_worker (make test)"]
fn beside_workers_each_job_runs_once() {
    const JOBS: usize = 30_000;
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, PREFIX, 90, INTEROP_MAPPINGS);
    put(&redis, "delayed", 1, JOBS - 1000);
    // What workers left that were killed.
    put(&redis, "reserved", JOBS - 999, JOBS);
    let mut workers = [(); 2].map(|()| workplace.worker(&["--concurrency=16", "-q"]));
    let mut moved = 0;
    redis.eventually("all jobs are run", LONG, || {
        for worker in &mut workers {
            assert!(worker.is_running(), "ended: {}", worker.describe());
        }
        let said: Value = serde_json::from_str(&migrate(&workplace, &["--json"])).unwrap();
        moved += said[0]["delayed"].as_u64().unwrap();
        (redis.length("interop:done") >= JOBS && redis.jobs(&key("")) == 0).then_some(())
    });
    assert!(moved > 0, "the workers moved all");
    let number = |n: Vec<u8>| String::from_utf8(n).unwrap().parse::<usize>().unwrap();
    let mut done: Vec<_> = redis.list("interop:done").into_iter().map(number).collect();
    done.sort_unstable();
    assert!(done.into_iter().eq(1..=JOBS), "some ran twice or never");
    assert_eq!(redis.length(&key(":notify")), 0);
    for mut worker in workers {
        worker.signal(rustix::process::Signal::TERM);
        worker.succeeds_within(LONG);
    }
}
