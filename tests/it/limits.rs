//! Workers and the largest payloads: each runs, or is refused with an error that says why, in bounded memory.
//!
//! `src/payload/huge.rs` has what is deep, or has many parts, or claims to.

use std::fmt::Write as _;
use std::time::Duration;

use rustix::process::Signal;

use crate::harness::process::{ManagedChild, Workplace, eventually, is_thorough};
use crate::harness::redis::RedisServer;

const PATIENCE: Duration = Duration::from_secs(300);

/// Bytes of a payload: the most that Redis takes, or what needs no time.
fn largest() -> usize {
    if is_thorough() { 512 << 20 } else { 24 << 20 }
}

/// Elements of an array.
fn most_elements() -> usize {
    if is_thorough() { 10_000_000 } else { 300_000 }
}

const MAPPINGS: &str = r"
[worker]
control_plane = false
[[map]]
job = 'App\Jobs\Discarded'
handler = 'discard'
[[map]]
job = 'App\Jobs\Read'
handler = { exec = ['sh', '-c', 'wc -c >>sizes'] }
";

/// What became of a job.
struct Worked {
    /// The most memory that the worker had at once, in bytes.
    peak: usize,
    stderr: String,
    /// Sizes of the documents that the program read.
    sizes: String,
}

/// Has a worker run one job.
fn work(redis: &RedisServer, payload: &[u8]) -> Worked {
    let workplace = Workplace::new(redis, "", 600, MAPPINGS);
    redis.query::<()>(&[b"RPUSH", b"queues:default", payload]);
    let args = "queue:work redis --tries=1 --timeout=0 --memory=100000";
    let args: Vec<&str> = args.split(' ').collect();
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    let is_done = || (redis.jobs("queues:default") == 0).then_some(());
    eventually("the job is done", PATIENCE, is_done);
    // The kernel keeps the most that there was.
    let peak = resident(worker.id()).expect("the worker runs");
    worker.signal(Signal::TERM);
    worker.succeeds_within(PATIENCE);
    Worked {
        peak,
        stderr: worker.stderr(),
        sizes: std::fs::read_to_string(workplace.path().join("sizes")).unwrap_or_default(),
    }
}

/// The most memory that a process had so far, in bytes.
fn resident(pid: u32) -> Option<usize> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("VmHWM:"))?;
    let kilobytes: usize = line.trim().strip_suffix(" kB")?.parse().ok()?;
    Some(kilobytes << 10)
}

/// The payload of a job with this command.
fn payload(class: &str, command: &str) -> String {
    let name = class.replace('\\', r"\\");
    let command = command.replace('\\', r"\\").replace('"', "\\\"");
    format!(
        r#"{{"uuid":"u","displayName":"{name}","job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{{"commandName":"{name}","command":"{command}"}},"attempts":0}}"#
    )
}

fn job(class: &str, value: &str) -> String {
    let command = format!("O:{}:\"{class}\":1:{{s:1:\"a\";{value}}}", class.len());
    payload(class, &command)
}

/// A job whose payload has nearly this many bytes.
fn large(class: &str, size: usize) -> String {
    let size = size - 1000;
    job(class, &format!("s:{size}:\"{}\";", "x".repeat(size)))
}

#[test]
fn a_payload_as_large_as_redis_takes_runs_in_a_dozen_times_its_memory() {
    let redis = RedisServer::start();
    let idle = work(&redis, job("App\\Jobs\\Discarded", "N;").as_bytes()).peak;
    for (class, times) in [("App\\Jobs\\Discarded", 10), ("App\\Jobs\\Read", 12)] {
        let worked = work(&redis, large(class, largest()).as_bytes());
        let more = worked.peak.saturating_sub(idle);
        assert!(more < times * largest(), "{class}: {more}");
        let is_read = class.ends_with("Read");
        let size = worked.sizes.trim().parse().unwrap_or(0);
        assert_eq!(
            size > largest() - 2000,
            is_read,
            "{size}: {}",
            worked.stderr
        );
    }
}

#[test]
fn a_large_payload_that_cannot_be_read_is_kept_apart_with_a_reason() {
    let redis = RedisServer::start();
    let idle = work(&redis, job("App\\Jobs\\Discarded", "N;").as_bytes()).peak;
    let whole = large("App\\Jobs\\Discarded", largest());
    let worked = work(&redis, &whole.as_bytes()[..whole.len() / 2]);
    assert_eq!(redis.length("queues:default:quarantine"), 1);
    assert!(worked.stderr.contains("quarantine"), "{}", worked.stderr);
    assert!(worked.stderr.len() < 10_000, "{}", worked.stderr.len());
    assert!(worked.peak < idle + 4 * largest(), "{}", worked.peak);
}

/// The elements of an array of nulls.
fn nulls(count: usize) -> String {
    (0..count).fold(String::new(), |mut text, key| {
        let _ = write!(text, "i:{key};N;");
        text
    })
}

#[test]
fn ten_million_elements_are_read_and_as_many_that_are_not_there_are_an_error() {
    let redis = RedisServer::start();
    let idle = work(&redis, job("App\\Jobs\\Discarded", "N;").as_bytes()).peak;
    let count = most_elements();
    let elements = nulls(count);
    let read = job("App\\Jobs\\Read", &format!("a:{count}:{{{elements}}}"));
    let worked = work(&redis, read.as_bytes());
    let size: usize = worked.sizes.trim().parse().unwrap_or(0);
    assert!(size > 5 * count, "{size}: {}", worked.stderr);
    let more = worked.peak.saturating_sub(idle);
    assert!(more < 25 * read.len(), "{more}");
    for count in ["10000000", "1152921504606846976"] {
        let claims = job("App\\Jobs\\Read", &format!("a:{count}:{{i:0;N;}}"));
        let worked = work(&redis, claims.as_bytes());
        assert_eq!(worked.sizes, "");
        let reason = "the command of App\\Jobs\\Read cannot be read";
        assert!(worked.stderr.contains(reason), "{}", worked.stderr);
        assert!(worked.peak < idle + (32 << 20), "{}", worked.peak);
    }
}
