//! Payloads that cannot be decoded: they stop no worker, and none is lost.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, Workplace, poll};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(90);
/// Valid jobs, from PHP.
const VALID: usize = 20;

/// One payload broken in each possible way; `valid` is an intact one.
fn broken(valid: &[u8]) -> Vec<Vec<u8>> {
    let valid = std::str::from_utf8(valid).unwrap();
    assert_eq!(valid.matches(r#","attempts":0"#).count(), 1, "{valid}");
    // Only the data is bad: the ending is the one by which a pop finds `attempts` without decoding.
    let with_data = |data: &str| {
        let start = r#"{"uuid":"u","displayName":"X","job":"X@fire","data":"#;
        format!(r#"{start}{data},"id":"i","attempts":0}}"#)
    };
    let deep = "[".repeat(1500) + &"]".repeat(1500);
    let mut payloads: Vec<Vec<u8>> = [
        r#"{"uuid":"#.to_owned(),
        String::new(),
        "no JSON at all".to_owned(),
        "null".to_owned(),
        "[1,2,3]".to_owned(),
        valid[..valid.len() / 2].to_owned(),
        // Readable and mapped, but no pop can count its attempt.
        valid.replace(r#","attempts":0"#, ""),
        valid.replace(r#","attempts":0"#, r#","attempts":null"#),
        with_data(&deep),
        // The same with `attempts` where only a decoder finds it.
        format!(r#"{{"attempts":0,"job":"X@fire","data":{deep}}}"#),
        with_data("1e400"),
        with_data(r#""\ud800""#),
        with_data("[1,]"),
    ]
    .map(String::into_bytes)
    .into();
    let mut not_utf8 = with_data(r#""?""#).into_bytes();
    let at = not_utf8.iter().position(|byte| *byte == b'?').unwrap();
    not_utf8[at] = 0xff;
    payloads.push(not_utf8);
    payloads
}

/// Puts broken payloads before, between and after the jobs that PHP has queued.
fn mix(redis: &RedisServer, list: &str, payloads: &[Vec<u8>]) {
    let valid = redis.list(list);
    let notify = format!("{list}:notify");
    let _: i64 = redis.query(&[b"DEL", list.as_bytes(), notify.as_bytes()]);
    let (front, rest) = payloads.split_at(payloads.len() / 2);
    let mut mixed: Vec<&[u8]> = front.iter().map(Vec::as_slice).collect();
    let mut rest = rest.iter();
    for job in &valid {
        mixed.push(job);
        mixed.extend(rest.next().map(Vec::as_slice));
    }
    mixed.extend(rest.map(Vec::as_slice));
    let push: Vec<&[u8]> = [b"RPUSH".as_slice(), list.as_bytes()]
        .into_iter()
        .chain(mixed.iter().copied())
        .collect();
    let _: i64 = redis.query(&push);
    let ones: Vec<&[u8]> = [b"RPUSH".as_slice(), notify.as_bytes()]
        .into_iter()
        .chain(mixed.iter().map(|_| b"1".as_slice()))
        .collect();
    let _: i64 = redis.query(&ones);
}

fn sorted(mut payloads: Vec<Vec<u8>>) -> Vec<Vec<u8>> {
    payloads.sort();
    payloads
}

/// A queue with jobs, and a place for broken ones.
#[expect(clippy::struct_field_names, reason = "the list of this name")]
struct Quarantine {
    scene: Scene,
    list: String,
    quarantine: String,
}

in_scene!(Quarantine);

impl Quarantine {
    fn new(version: u8, rest: &str) -> Self {
        let mut scene = Scene::new::<&str>(version, &[], "");
        // Its workers know nothing of the app's store of failed jobs.
        scene.workplace = Workplace::new(&scene.redis, &scene.laravel.prefix, 90, rest);
        let flood = ["interop:flood", &VALID.to_string()];
        scene.php().text(&flood);
        Self {
            list: scene.queue("default"),
            quarantine: scene.queue("default:quarantine"),
            scene,
        }
    }

    /// Starts a worker that runs until it is told to stop.
    fn worker(&self) -> ManagedChild {
        self.workplace.worker(&["--concurrency=4"])
    }

    /// Waits until this many jobs were run and all of these payloads are in quarantine, byte for byte.
    fn await_quarantine(&self, runs: usize, payloads: &[Vec<u8>], worker: &mut ManagedChild) {
        let expected = sorted(payloads.to_vec());
        let reserved = self.queue("default:reserved");
        let done = poll(SOON, || {
            assert!(worker.is_running(), "it ended: {}", worker.describe());
            let is_done = self.redis.length("interop:done") == runs
                && self.redis.scores(&reserved).is_empty()
                && sorted(self.redis.list(&self.quarantine)) == expected;
            is_done.then_some(())
        });
        if done.is_none() {
            let found = self.redis.list(&self.quarantine);
            let start = |payload: &[u8]| {
                String::from_utf8_lossy(&payload[..payload.len().min(80)]).into_owned()
            };
            let missing: Vec<String> = expected
                .iter()
                .filter(|payload| !found.contains(payload))
                .map(|payload| start(payload))
                .collect();
            panic!(
                "not in quarantine: {missing:#?}; {}\n{}",
                self.redis.state(),
                worker.describe()
            );
        }
    }

    fn quarantine_command(&self, args: &[&str]) -> String {
        let args = [&["queue:quarantine", "default"][..], args].concat();
        let mut child = ManagedChild::spawn(self.workplace.artisand(&args));
        child.succeeds_within(SOON);
        child.stdout()
    }
}

fn stop(mut worker: ManagedChild) {
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

fn broken_payloads_go_to_quarantine_and_the_rest_runs(version: u8) {
    let scene = Quarantine::new(version, INTEROP_MAPPINGS);
    let (redis, list) = (&scene.redis, &scene.list);
    // A job without a mapping in the same queue stays, also when a worker moves others to quarantine.
    scene.php().text(&["interop:dispatch", "string"]);
    let unmapped = redis.list(list).pop().unwrap();
    let broken = broken(&redis.list(list)[0]);
    mix(redis, list, &broken);

    let mut worker = scene.worker();
    scene.await_quarantine(VALID, &broken, &mut worker);
    assert_eq!(
        redis.list(list),
        std::slice::from_ref(&unmapped),
        "{}",
        redis.state()
    );
    // The worker is alive and works.
    scene.php().text(&["interop:flood", "1"]);
    scene.await_quarantine(VALID + 1, &broken, &mut worker);
    stop(worker);

    let listed = scene.quarantine_command(&["--json"]);
    let listed: Vec<Value> = listed
        .lines()
        .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
        .collect();
    assert_eq!(listed.len(), broken.len(), "{listed:?}");
    for line in &listed {
        assert_eq!(line["queue"], "default", "{line}");
        assert_ne!(line["reason"].as_str().unwrap_or_default(), "", "{line}");
    }
    let mut sizes: Vec<u64> = broken.iter().map(|payload| payload.len() as u64).collect();
    sizes.sort_unstable();
    let mut told: Vec<u64> = listed
        .iter()
        .map(|line| line["bytes"].as_u64().unwrap())
        .collect();
    told.sort_unstable();
    assert_eq!(told, sizes, "{listed:?}");

    // Back at the end of their queue as they were, and out of it again.
    scene.quarantine_command(&["--requeue"]);
    assert_eq!(redis.length(&scene.quarantine), 0, "{}", redis.state());
    let in_queue = redis.list(list);
    assert_eq!(in_queue[0], unmapped);
    assert!(
        sorted(in_queue[1..].to_vec()) == sorted(broken.clone()),
        "requeued payloads have changed"
    );
    let mut worker = scene.worker();
    scene.await_quarantine(VALID + 1, &broken, &mut worker);
    stop(worker);

    scene.quarantine_command(&["--delete"]);
    assert_eq!(redis.length(&scene.quarantine), 0, "{}", redis.state());
    assert_eq!(redis.list(list), [unmapped], "{}", redis.state());
    assert_eq!(scene.quarantine_command(&["--json"]).trim(), "");
}

on_every_laravel!(broken_payloads_go_to_quarantine_and_the_rest_runs);

fn a_worker_that_takes_every_job_quarantines_too(version: u8) {
    let rest = "[unmapped]\npolicy = \"fail\"\n\n[[map]]\njob = \"*\"\nhandler = \"counted\"\n";
    let scene = Quarantine::new(version, rest);
    let (redis, list) = (&scene.redis, &scene.list);
    scene.php().text(&["interop:dispatch", "string"]);
    let broken = broken(&redis.list(list)[0]);
    mix(redis, list, &broken);

    let mut worker = scene.worker();
    scene.await_quarantine(VALID, &broken, &mut worker);
    // Only a readable job can fail: the string job, which no mapping of job classes matches.
    let spool = scene.key("artisand:failed-spool");
    let records = redis.eventually("the string job is recorded", SOON, || {
        Some(redis.list(&spool)).filter(|records| !records.is_empty())
    });
    assert_eq!(records.len(), 1, "{}", redis.state());
    let record: Value = serde_json::from_slice(&records[0]).unwrap();
    assert_eq!(record["queue"], "default");
    assert!(
        record["exception"].as_str().unwrap().contains("Legacy"),
        "{record}"
    );
    assert_eq!(redis.length(list), 0, "{}", redis.state());
    stop(worker);
}

on_every_laravel!(a_worker_that_takes_every_job_quarantines_too);
