//! Handlers that block their thread: renewals and signals continue, and deadlines hold.

use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::json;

use crate::harness::journal;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, eventually};
use crate::harness::scene::{Scene, in_scene};
use crate::telemetry::get;

const SOON: Duration = Duration::from_secs(30);
const RETRY_AFTER: u64 = 6;

struct Blocked {
    scene: Scene,
}

in_scene!(Blocked);

impl Blocked {
    fn new(version: u8) -> Self {
        let retry_after = [("REDIS_QUEUE_RETRY_AFTER", RETRY_AFTER.to_string())];
        Self {
            scene: Scene::new(version, &retry_after, INTEROP_MAPPINGS),
        }
    }

    fn dispatch(&self, id: &str, script: &str) {
        let script = format!("--script={script}");
        self.laravel
            .run(&["interop:journal", id, "--tries=3", &script]);
    }

    /// A worker with this many threads for handlers.
    fn worker(&self, threads: &str, args: &[&str]) -> ManagedChild {
        let mut command = self.workplace.worker_command(args);
        command.env("TOKIO_WORKER_THREADS", threads);
        ManagedChild::spawn(command)
    }

    fn runs(&self, id: &str) -> usize {
        let lines = self.lines();
        let is_run = |line: &&journal::Line| line.id == id && line.event == "run";
        lines.iter().filter(is_run).count()
    }

    fn begins(&self, id: &str, worker: &ManagedChild) {
        eventually(&format!("{id} begins: {}", worker.describe()), SOON, || {
            (self.runs(id) > 0).then_some(())
        });
    }

    /// When the reservation of the only reserved job ends, and its attempts.
    fn reserved(&self) -> Option<(f64, serde_json::Value)> {
        let found = self
            .redis
            .scores(&self.laravel.key("queues:default:reserved"));
        let (element, score) = found.first()?;
        let payload: serde_json::Value = serde_json::from_slice(element).unwrap();
        Some((*score, payload["attempts"].clone()))
    }
}

fn a_reservation_is_renewed_while_the_only_thread_is_blocked(version: u8) {
    let scene = Blocked::new(version);
    // Twice as long as a reservation that nothing renews.
    scene.dispatch("long", "block:12");
    let mut worker = scene.worker("1", &["--concurrency=1", "--sleep=0.1"]);
    scene.begins("long", &worker);
    eventually("the handler is named", SOON, || {
        let log = worker.stderr();
        let names = |line: &str| line.contains("handler::blocking") && line.contains("Journal");
        let is_named = log.lines().any(names);
        is_named.then_some(())
    });
    let (first, _) = scene.reserved().unwrap();
    // Another worker finds nothing as long as it runs.
    let mut other = scene.worker("1", &["--sleep=0.1"]);
    eventually("it is done", SOON, || {
        scene.reserved().is_none().then_some(())
    });
    assert_eq!(scene.runs("long"), 1, "{first} {}", other.describe());
    for worker in [&mut worker, &mut other] {
        worker.signal(Signal::TERM);
        worker.succeeds_within(SOON);
    }
}

on_every_laravel!(a_reservation_is_renewed_while_the_only_thread_is_blocked);

fn a_worker_whose_only_thread_is_blocked_is_seen(version: u8) {
    let scene = Blocked::new(version);
    scene.dispatch("long", "block:15");
    let socket = scene.workplace.path().join("http");
    let listen = format!("--metrics=unix:{}", socket.display());
    let mut worker = scene.worker("1", &["--concurrency=1", "--sleep=0.1", &listen]);
    scene.begins("long", &worker);
    let page = |path: &str| get(UnixStream::connect(&socket).unwrap(), "GET", path);
    let (code, ready) = page("/readyz");
    assert_eq!(code, 200, "{ready}");
    // They wait no longer than two seconds for Redis.
    for figure in ["artisand_redis_up 1", "state=\"reserved\"} 1"] {
        eventually(figure, SOON, || {
            page("/metrics").1.contains(figure).then_some(())
        });
    }
    let beat = || {
        let beats = scene.redis.scores(&scene.laravel.key("artisand:workers"));
        beats.first().map(|(_, at)| *at)
    };
    let first = eventually("a heartbeat", SOON, beat);
    eventually("another one", SOON, || beat().filter(|at| *at > first));
    // All of that while the job blocked.
    assert!(scene.reserved().is_some(), "{}", worker.describe());
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

on_every_laravel!(a_worker_whose_only_thread_is_blocked_is_seen);

fn a_handler_that_blocks_beyond_its_timeout_ends_the_process(version: u8) {
    let scene = Blocked::new(version);
    for (threads, concurrency) in [("1", "--concurrency=1"), ("2", "--concurrency=8")] {
        let id = format!("late-{threads}");
        scene.dispatch(&id, "block:60");
        if threads == "2" {
            // On the other thread jobs end as always.
            scene.dispatch("other", "sleep:1");
        }
        let since = Instant::now();
        let mut worker = scene.worker(threads, &[concurrency, "--timeout=2", "--sleep=0.1"]);
        let status = worker.wait_timeout(SOON);
        assert!(since.elapsed() > Duration::from_secs(2));
        assert_eq!(status.code(), Some(137), "{}", worker.describe());
        let log = worker.stderr();
        assert!(log.contains("it ran longer than its timeout"), "{log}");
        assert_eq!(scene.runs(&id), 1, "{log}");
        let (_, attempts) = scene.reserved().unwrap();
        assert_eq!(attempts, json!(1));
        let reserved = scene.laravel.key("queues:default:reserved");
        assert_eq!(scene.redis.scores(&reserved).len(), 1, "{log}");
        scene.redis.query::<i64>(&[b"DEL", reserved.as_bytes()]);
    }
    assert_eq!(scene.runs("other"), 1);
}

on_every_laravel!(a_handler_that_blocks_beyond_its_timeout_ends_the_process);

fn a_stop_ends_a_process_whose_threads_are_blocked(version: u8) {
    let scene = Blocked::new(version);
    scene.dispatch("stop", "block:60");
    let mut worker = scene.worker("1", &["--concurrency=1", "--timeout=0", "--grace=2"]);
    scene.begins("stop", &worker);
    let since = Instant::now();
    worker.signal(Signal::TERM);
    let status = worker.wait_timeout(SOON);
    let elapsed = since.elapsed();
    assert!(elapsed > Duration::from_secs(2) && elapsed < Duration::from_secs(15));
    assert_eq!(status.code(), Some(0), "{}", worker.describe());
    assert!(worker.stderr().contains("the stop deadline has passed"));
    assert_eq!(scene.reserved().unwrap().1, json!(1));
}

on_every_laravel!(a_stop_ends_a_process_whose_threads_are_blocked);
