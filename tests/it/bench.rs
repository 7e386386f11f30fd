//! `artisand bench` beside a living app: what it prints, and what it leaves alone.

use std::io::Write as _;
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;

const LONG: Duration = Duration::from_secs(60);

/// A server with jobs of an app, and lists that a worker of the app would look at.
fn with_app() -> (RedisServer, Workplace) {
    let redis = RedisServer::start();
    for key in [
        "app-queues:default",
        "app-queues:jobs",
        "app-artisand:failed-spool",
        "app-artisand:follow-ups",
    ] {
        redis.query::<()>(&[b"RPUSH", key.as_bytes(), b"{}"]);
    }
    let workplace = Workplace::new(&redis, "app-", 90, "");
    (redis, workplace)
}

/// The keys of benchmarks.
fn keys(redis: &RedisServer) -> Vec<String> {
    redis.query(&[b"KEYS", b"app-artisand:bench:*"])
}

/// Waits until a benchmark runs jobs.
fn wait_for_jobs(redis: &RedisServer) {
    redis.eventually("jobs are run", LONG, || {
        let keys = keys(redis);
        let reserved = keys.iter().find(|key| key.ends_with(":reserved"))?;
        let jobs: u32 = redis.query(&[b"ZCARD", reserved.as_bytes()]);
        (jobs > 1).then_some(())
    });
}

#[test]
fn figures_are_printed_and_nothing_of_the_app_is_touched() {
    let (redis, workplace) = with_app();
    let before = redis.state();
    let args = ["bench", "--jobs=300", "--concurrency=1,8", "--size=700"];
    let mut bench = ManagedChild::spawn(workplace.artisand(&args));
    bench.succeeds_within(LONG);
    assert_eq!(redis.state(), before);
    let text = bench.stdout();
    let figures: Vec<Vec<&str>> = (text.lines())
        .map(|line| line.split_whitespace().collect())
        .collect();
    for concurrency in ["1", "8"] {
        let is_row = |row: &&Vec<&str>| row[..].starts_with(&[concurrency, "300"]);
        let row = figures.iter().find(is_row);
        assert_eq!(row.map(Vec::len), Some(9), "{text}");
    }
    for part in [
        "keys           app-artisand:bench:",
        "at most 300 at once of 700 bytes",
        "other clients  none",
        "push to start of the handler, us",
        "Every job ran exactly once.",
    ] {
        assert!(text.contains(part), "no `{part}` in {text}");
    }

    let json = [&args[..], &["redis", "--json"]].concat();
    let _other = redis.connection();
    let mut bench = ManagedChild::spawn(workplace.artisand(&json));
    bench.succeeds_within(LONG);
    assert_eq!(redis.state(), before);
    let lines: Vec<Value> = (bench.stdout().lines())
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let kinds: Vec<&str> = lines
        .iter()
        .map(|line| line["kind"].as_str().unwrap())
        .collect();
    assert_eq!(kinds, ["plan", "throughput", "throughput", "latency"]);
    assert_eq!(lines[0]["other_clients"], 1);
    assert_eq!(lines[2]["concurrency"], 8);
    for figure in [
        &lines[1]["ratio"],
        &lines[1]["artisand"]["jobs_per_second"],
        &lines[1]["bare_loop"]["redis_cpu_us"],
        &lines[1]["artisand"]["process_cpu_us"],
        &lines[3]["started_us"]["p50"],
        &lines[3]["settled_us"]["p99"],
    ] {
        assert!(figure.as_f64().unwrap() > 0.0, "{lines:?}");
    }
    // The test runner hides what a test prints, but not what is written to standard error itself.
    let ratio = |line: &Value| line["ratio"].as_f64().unwrap();
    let _ = writeln!(
        std::io::stderr(),
        "artisand bench, not optimized and beside other tests: {:.2} of the bare loop with 1 slot, {:.2} with 8",
        ratio(&lines[1]),
        ratio(&lines[2])
    );
}

#[test]
fn signals_end_a_benchmark_and_its_keys() {
    let (redis, workplace) = with_app();
    let before = redis.state();
    for signal in [Signal::INT, Signal::TERM, Signal::HUP] {
        let args = ["bench", "--jobs=100000", "--concurrency=256"];
        let mut bench = ManagedChild::spawn(workplace.artisand(&args));
        wait_for_jobs(&redis);
        bench.signal(signal);
        let status = bench.wait_timeout(LONG);
        assert_eq!(status.code(), Some(1), "{}", bench.describe());
        let errors = bench.stderr();
        assert!(errors.contains("stopped by a signal"), "{errors}");
        assert_eq!(redis.state(), before);
    }
}

#[test]
fn keys_of_a_killed_benchmark_expire() {
    let (redis, workplace) = with_app();
    let args = ["bench", "--jobs=100000", "--concurrency=64"];
    let mut bench = ManagedChild::spawn(workplace.artisand(&args));
    wait_for_jobs(&redis);
    bench.signal(Signal::KILL);
    bench.wait_timeout(LONG);
    let left = keys(&redis);
    assert!(left.len() >= 2, "{left:?}");
    for key in left {
        let seconds: i64 = redis.query(&[b"TTL", key.as_bytes()]);
        assert!((1..=3600).contains(&seconds), "{key}: {seconds}");
    }
}

#[test]
fn what_is_too_much_for_the_server_is_refused() {
    let (redis, workplace) = with_app();
    redis.query::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"20mb"]);
    let before = redis.state();
    let rows: [(&[&str], i32, &str); 7] = [
        (&["--jobs=1000001"], 2, "1000001 is not in 1..=1000000"),
        (&["--concurrency=0"], 2, "0 is not in 1..=1024"),
        (&["--size=599"], 2, "599 is not in 600..=1000000"),
        (
            &["--jobs=1000", "--size=1000000", "--concurrency=1"],
            2,
            "1000 jobs of 1000000 bytes are 1.0 GB, and bench has at most 512.0 MB in Redis: give --jobs 512 or less",
        ),
        (
            &["--jobs=10", "--size=1000000", "--concurrency=1,64"],
            2,
            "are 64.0 MB, and bench has at most 16.0 MB at a time: give --concurrency 16 or less",
        ),
        (
            &[],
            1,
            "these jobs take 13.8 MB of Redis' memory, and bench takes at most a quarter of the",
        ),
        (&["nope"], 1, "no queue connection `nope`"),
    ];
    for (args, code, message) in rows {
        let mut bench = ManagedChild::spawn(workplace.artisand(&[&["bench"], args].concat()));
        let status = bench.wait_timeout(LONG);
        assert_eq!(status.code(), Some(code), "{}", bench.describe());
        assert!(bench.stderr().contains(message), "{}", bench.describe());
        assert_eq!(redis.state(), before);
    }
}
