//! The worker on the queue in memory, where time can be moved, and on Redis, where it cannot.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::cache::{Cache, RedisStore, keys};
use artisand::connection::{Redis, RedisOptions};
use artisand::failed::FailedJob;
use artisand::handler::{self, Handler, JobContext};
use artisand::payload::Pattern;
use artisand::payload::{CALL_QUEUED_HANDLER, Payload};
use artisand::php::Value;
use artisand::process::{Environment, ExecOptions};
use artisand::queue::{MemoryQueue, PopRequest, Queue, QueueName, Sizes, Spool};
use artisand::routing::{
    Canary, HandlerChoice, Mapping, Mode, OnMismatch, Registry, Router, UnmappedPolicy,
};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{
    Control, ControlPlane, Event, Observer, Report, StopReason, StopRules, Worker, WorkerOptions,
};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::sync::mpsc;

use crate::contract::redis_queue;
use crate::harness::redis::RedisServer;

const NOW: UnixSeconds = UnixSeconds(1_760_000_000);

pub(crate) fn queue() -> Arc<MemoryQueue> {
    Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))))
}

pub(crate) fn name(text: &str) -> QueueName {
    text.into()
}

/// A payload of a job of class `App\Jobs\CLASS` with the property `n`, and more fields.
pub(crate) fn payload(class: &str, n: u32, fields: &serde_json::Value) -> Vec<u8> {
    let class = format!("App\\Jobs\\{class}");
    let command = format!("O:{}:\"{class}\":1:{{s:1:\"n\";i:{n};}}", class.len());
    let mut payload = json!({
        "uuid": format!("uuid-{n}"), "displayName": class, "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": class, "command": command}, "id": format!("id-{n}"), "attempts": 0,
    });
    payload
        .as_object_mut()
        .unwrap()
        .extend(fields.as_object().cloned().unwrap_or_default());
    payload.to_string().into_bytes()
}

pub(crate) fn job(class: &str, n: u32) -> Vec<u8> {
    payload(class, n, &json!({}))
}

fn mapping(class: &str, handler: &str, concurrency: usize) -> Mapping {
    Mapping {
        concurrency: NonZeroUsize::new(concurrency),
        ..Mapping::new(
            Pattern::parse(&format!("App\\Jobs\\{class}")).unwrap(),
            HandlerChoice::Named(handler.into()),
        )
    }
}

pub(crate) fn router(
    mappings: Vec<Mapping>,
    unmapped: UnmappedPolicy,
    registry: &Registry,
) -> Router {
    Router::new(mappings, unmapped, registry).unwrap()
}

/// A router that sends every job to one handler.
fn all_to(handler: impl Handler) -> Router {
    let registry = Registry::new().with("handler", handler);
    router(
        vec![mapping("*", "handler", 0)],
        UnmappedPolicy::Leave,
        &registry,
    )
}

pub(crate) fn options(concurrency: usize) -> WorkerOptions {
    WorkerOptions {
        concurrency: NonZeroUsize::new(concurrency).unwrap(),
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        clock: Clock::Fixed(NOW),
        ..WorkerOptions::default()
    }
}

/// Names of events as they come.
struct Names(mpsc::UnboundedSender<String>);

impl Observer for Names {
    fn on_event(&self, event: &Event<'_>) {
        let text = match event {
            Event::JobProcessing { job, .. } => format!("processing {}", job.attempts),
            Event::JobProcessed(end) => format!("processed {:?}", end.result),
            Event::JobReleasedAfterException(end) => {
                format!("released: {}", end.failure.unwrap().message)
            }
            Event::JobFailed(end) => format!("failed: {}", end.failure.unwrap()),
            Event::JobTimedOut(_) => "timed out".to_owned(),
            Event::JobForwarded { to, .. } => format!("forwarded to {to}"),
            Event::JobsQuarantined { count, .. } => format!("quarantined {count}"),
            _ => return,
        };
        self.0.send(text).unwrap();
    }
}

/// Runs a worker until the queue is empty; returns its report and the events of jobs.
pub(crate) async fn run(
    queue: &Arc<MemoryQueue>,
    router: Router,
    options: WorkerOptions,
) -> (Report, Vec<String>) {
    let (sender, mut names) = mpsc::unbounded_channel();
    let worker = Worker::new(Arc::clone(queue), router, options).with_observer(Names(sender));
    let report = worker.run(&Control::new()).await;
    let mut events = Vec::new();
    while let Some(name) = names.recv().await {
        events.push(name);
    }
    (report, events)
}

pub(crate) async fn sizes(queue: &MemoryQueue) -> Sizes {
    queue.sizes(&name("default")).await.unwrap()
}

fn spooled(queue: &MemoryQueue) -> Vec<FailedJob> {
    queue
        .spool(Spool::FailedJobs)
        .iter()
        .map(|record| serde_json::from_slice(record).unwrap())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn a_handler_gets_the_typed_job_and_what_it_returns_is_what_happens() {
    #[derive(serde::Deserialize)]
    struct Job {
        n: u32,
    }
    let queue = queue();
    queue
        .push(
            &name("default"),
            &[
                job("A", 1),
                job("A", 2),
                job("A", 3),
                job("A", 4),
                job("A", 5),
            ],
        )
        .await
        .unwrap();
    let handler = handler::function(|job: Job, context: JobContext| async move {
        match job.n {
            1 => {}
            2 => context.release(Duration::from_secs(7)),
            3 => context.fail("no longer wanted"),
            4 => context.delete(),
            _ => return Err(std::io::Error::other("disk on fire")),
        }
        Ok(())
    });
    let defaults = artisand::worker::Defaults {
        tries: 3,
        ..WorkerOptions::default().defaults
    };
    let (report, events) = run(
        &queue,
        all_to(handler),
        WorkerOptions {
            defaults,
            ..options(1)
        },
    )
    .await;
    assert_eq!(report.reason, StopReason::QueueEmpty);
    let expected = [
        "processing 1",
        "processed Deleted",
        "processing 1",
        "processed Released",
        "processing 1",
        "failed: Illuminate\\Queue\\ManuallyFailedException: no longer wanted",
        // Laravel's worker counts this as an ordinary attempt.
        "processed Deleted",
        "processing 1",
        "processed Deleted",
        "processing 1",
        "released: disk on fire",
        // Without a wait it is due at once, and three tries are its limit.
        "processing 2",
        "released: disk on fire",
        "processing 3",
        "failed: Artisand\\HandlerError: disk on fire",
    ];
    assert_eq!(events, expected);
    assert_eq!(
        sizes(&queue).await,
        Sizes {
            delayed: 1,
            ..Sizes::default()
        }
    );
    let failed = spooled(&queue);
    assert_eq!(
        failed
            .iter()
            .map(|job| job.uuid.as_deref().unwrap())
            .collect::<Vec<_>>(),
        ["uuid-3", "uuid-5"]
    );
    assert!(
        failed[1].payload.contains("\"attempts\":2"),
        "recorded as popped: {}",
        failed[1].payload
    );
}

#[tokio::test(start_paused = true)]
async fn an_input_that_does_not_fit_names_the_property_and_counts_as_an_exception() {
    #[derive(serde::Deserialize)]
    struct Job {
        #[expect(dead_code, reason = "only its error is of interest")]
        n: String,
    }
    let queue = queue();
    queue.push(&name("default"), &[job("A", 1)]).await.unwrap();
    let handler = handler::function(|_: Job, _| async { Ok::<(), std::io::Error>(()) });
    let (_, events) = run(&queue, all_to(handler), options(1)).await;
    let expected = "failed: Artisand\\HandlerError: the job does not fit the handler's input: \
        `n`: expected a string, found an int (byte 29)";
    assert_eq!(events[1], expected);
}

/// Commands that once overflowed the stack, took hours, or were read differently than in PHP.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_hostile_command_ends_its_job_and_not_the_worker() {
    let deep = |levels, middle: &str| {
        let (open, close) = ("a:1:{i:0;".repeat(levels), "}".repeat(levels));
        format!("{open}{middle}{close}")
    };
    let mut bodies = deep(4090, "N;");
    for _ in 0..7 {
        let class = "Opis\\Closure\\SerializableClosure";
        let body = format!(
            "C:{}:\"{class}\":{}:{{{bodies}}}",
            class.len(),
            bodies.len()
        );
        bodies = deep(4090, &body);
    }
    let chain: Vec<String> = (1..20_000).map(|i| format!("i:{i};r:{};", i + 2)).collect();
    let chain = chain.concat();
    let hostile = [
        (bodies, "nested deeper than 4096 levels"),
        (deep(4097, "N;"), "nested deeper than 4096 levels"),
        (
            "a:1:{i:0;r:99;}".to_owned(),
            "no value that a reference to slot 99 could mean",
        ),
        (
            "a:2:{i:0;C:1:\"F\":4:{i:5;}i:1;R:5;}".to_owned(),
            "a reference to slot 5 behind an object of class `F`",
        ),
        (
            format!("a:20000:{{i:0;O:1:\"P\":0:{{}}{chain}}}"),
            "processed",
        ),
    ];
    let jobs = |others: usize, text: &str| -> Vec<Vec<u8>> {
        let class = "App\\Jobs\\A";
        let job = |(value, _): &(String, &str)| {
            let count = others + 1;
            let command = format!("O:10:\"{class}\":{count}:{{s:1:\"n\";{value}{text}}}");
            let payload = json!({
                "uuid": "u", "displayName": class, "job": CALL_QUEUED_HANDLER, "maxTries": 1,
                "data": {"commandName": class, "command": command}, "id": "id", "attempts": 0,
            });
            payload.to_string().into_bytes()
        };
        hostile.iter().map(job).collect()
    };
    let queue = queue();
    queue.push(&name("default"), &jobs(0, "")).await.unwrap();
    // A job of a batch or a chain is read before it is taken, so this one stays in the queue.
    let in_chain = jobs(2, "s:7:\"batchId\";N;s:7:\"chained\";a:0:{}");
    queue.push(&name("default"), &in_chain).await.unwrap();
    let router = all_to(handler::function(nothing));
    let jobs = Arc::clone(&queue);
    let worker = tokio::spawn(async move { run(&jobs, router, options(1)).await });
    let (report, events) = worker.await.unwrap();
    assert_eq!(report.reason, StopReason::QueueEmpty);
    let mut ends = events
        .iter()
        .filter(|event| !event.starts_with("processing"));
    for (_, expected) in &hostile {
        let end = ends.next().unwrap();
        assert!(end.contains(expected), "{end}");
    }
    assert_eq!(ends.collect::<Vec<_>>(), ["processed Deleted"]);
    assert_eq!(sizes(&queue).await.pending, 4);
}

#[tokio::test(start_paused = true)]
async fn a_panic_ends_its_job_and_nothing_else() {
    let queue = queue();
    queue
        .push(&name("default"), &[job("A", 1), job("B", 2), job("C", 3)])
        .await
        .unwrap();
    let panics = handler::function(|_: IgnoredAny, _| async {
        assert!(std::hint::black_box(false), "a bug");
        Ok::<(), std::io::Error>(())
    });
    let line = line!() + 2;
    let blocking_panics = handler::blocking(|_: IgnoredAny, _| -> Result<(), std::io::Error> {
        panic!("another bug")
    });
    let registry = Registry::new()
        .with("panics", panics)
        .with("blocking", blocking_panics);
    let mappings = vec![
        mapping("A", "panics", 0),
        mapping("B", "blocking", 0),
        mapping("C", "discard", 0),
    ];
    let (report, events) = run(
        &queue,
        router(mappings, UnmappedPolicy::Leave, &registry),
        options(1),
    )
    .await;
    assert_eq!(report.jobs_processed, 3);
    let file = file!();
    let expected = [
        format!("Artisand\\HandlerPanic: a bug at {file}:"),
        format!("Artisand\\HandlerPanic: another bug at {file}:{line}"),
    ];
    let failed: Vec<&str> = events
        .iter()
        .filter_map(|event| event.strip_prefix("failed: "))
        .collect();
    assert!(failed[0].starts_with(&expected[0]), "{failed:?}");
    assert_eq!(failed[1], expected[1]);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_ends_the_one_job_and_leaves_it_reserved_as_laravel_does() {
    let queue = queue();
    let jobs = [
        payload("A", 1, &json!({"timeout": 2, "maxTries": 2})),
        payload("A", 2, &json!({"timeout": 2, "maxTries": 1})),
    ];
    queue.push(&name("default"), &jobs).await.unwrap();
    let handler = handler::function(|_: IgnoredAny, _| async {
        tokio::time::sleep(Duration::from_secs(3600)).await;
        Ok::<(), std::io::Error>(())
    });
    let (_, events) = run(&queue, all_to(handler), options(1)).await;
    let failed = "failed: Illuminate\\Queue\\TimeoutExceededException: App\\Jobs\\A has timed out.";
    assert_eq!(
        events,
        [
            "processing 1",
            "timed out",
            "processing 1",
            failed,
            "timed out"
        ]
    );
    assert_eq!(
        sizes(&queue).await,
        Sizes {
            reserved: 1,
            ..Sizes::default()
        }
    );
}

#[tokio::test]
async fn a_blocking_handler_that_does_not_return_costs_its_slot_and_in_the_end_the_worker() {
    let queue = queue();
    queue
        .push(
            &name("default"),
            &[payload("A", 1, &json!({"timeout": 1})), job("B", 2)],
        )
        .await
        .unwrap();
    let (release, wait) = std::sync::mpsc::channel::<()>();
    let wait = Mutex::new(wait);
    let stuck = handler::blocking(move |_: IgnoredAny, _| {
        let _ = wait.lock().unwrap().recv();
        Ok::<(), std::io::Error>(())
    });
    let registry = Registry::new().with("stuck", stuck);
    let mappings = vec![mapping("A", "stuck", 0), mapping("B", "discard", 0)];
    let worker_options = WorkerOptions {
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..options(2)
    };
    let (report, events) = run(
        &queue,
        router(mappings, UnmappedPolicy::Leave, &registry),
        worker_options,
    )
    .await;
    assert_eq!(
        (report.reason, report.reason.exit_code()),
        (StopReason::TimedOut, 137)
    );
    assert!(
        events
            .iter()
            .any(|event| event.starts_with("failed: Illuminate\\Queue\\TimeoutExceeded")),
        "{events:?}"
    );
    assert_eq!(sizes(&queue).await, Sizes::default());
    drop(release);
}

#[tokio::test(start_paused = true)]
async fn no_more_jobs_run_at_once_than_there_are_slots_and_none_is_reserved_without_one() {
    let queue = queue();
    let jobs: Vec<Vec<u8>> = (0..40)
        .map(|n| job(if n % 2 == 0 { "Wide" } else { "Narrow" }, n))
        .collect();
    queue.push(&name("default"), &jobs).await.unwrap();
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (narrow, most_narrow) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let handler = {
        let (queue, most) = (Arc::clone(&queue), Arc::clone(&most));
        let (narrow, most_narrow) = (Arc::clone(&narrow), Arc::clone(&most_narrow));
        move |_: IgnoredAny, context: JobContext| {
            let (queue, running, most) =
                (Arc::clone(&queue), Arc::clone(&running), Arc::clone(&most));
            let (narrow, most_narrow) = (Arc::clone(&narrow), Arc::clone(&most_narrow));
            async move {
                let is_narrow = context.payload().resolve_name().ends_with("Narrow");
                most.fetch_max(running.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                if is_narrow {
                    most_narrow
                        .fetch_max(narrow.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                }
                assert!(
                    queue.sizes(context.queue()).await.unwrap().reserved <= 10,
                    "a backlog is reserved"
                );
                tokio::time::sleep(Duration::from_millis(50)).await;
                running.fetch_sub(1, Ordering::SeqCst);
                narrow.fetch_sub(usize::from(is_narrow), Ordering::SeqCst);
                Ok::<(), std::io::Error>(())
            }
        }
    };
    let registry = Registry::new().with("handler", handler::function(handler));
    let mappings = vec![
        mapping("Narrow", "handler", 2),
        mapping("Wide", "handler", 0),
    ];
    let (report, events) = run(
        &queue,
        router(mappings, UnmappedPolicy::Leave, &registry),
        options(5),
    )
    .await;
    assert_eq!(report.jobs_processed, 40);
    assert_eq!(
        events
            .iter()
            .filter(|event| *event == "processed Deleted")
            .count(),
        40,
        "{events:?}"
    );
    assert_eq!(
        (
            most.load(Ordering::SeqCst),
            most_narrow.load(Ordering::SeqCst)
        ),
        (5, 2)
    );
}

#[tokio::test(start_paused = true)]
async fn what_no_mapping_names_follows_the_policy() {
    let reason = "failed: Artisand\\UnmappedJob: no mapping for App\\Jobs\\B, and the policy for unmapped jobs is `fail`";
    let rows = [
        (
            UnmappedPolicy::Leave,
            vec![],
            Sizes {
                pending: 2,
                ..Sizes::default()
            },
            0,
            0,
        ),
        (
            UnmappedPolicy::Forward(name("php")),
            vec!["forwarded to php"; 2],
            Sizes::default(),
            2,
            0,
        ),
        (
            UnmappedPolicy::Fail,
            vec!["processing 1", reason, "processing 1", reason],
            Sizes::default(),
            0,
            2,
        ),
    ];
    for (policy, expected, left, forwarded, failed) in rows {
        let queue = queue();
        queue
            .push(&name("default"), &[job("B", 1), job("A", 2), job("B", 3)])
            .await
            .unwrap();
        let router = router(
            vec![mapping("A", "discard", 0)],
            policy.clone(),
            &Registry::new(),
        );
        let (_, events) = run(&queue, router, options(1)).await;
        let events: Vec<&String> = events
            .iter()
            .filter(|event| !matches!(event.as_str(), "processed Deleted"))
            .collect();
        let of_b: Vec<&str> = events.iter().map(|event| event.as_str()).collect();
        // The mapped job's own "processing" comes between those of the others.
        let of_b = if policy == UnmappedPolicy::Fail {
            [&of_b[..2], &of_b[3..]].concat()
        } else {
            of_b[..].to_vec()
        };
        let of_b: Vec<&str> = if policy == UnmappedPolicy::Fail {
            of_b
        } else {
            of_b.into_iter().filter(|e| *e != "processing 1").collect()
        };
        assert_eq!(of_b, expected, "{policy:?}");
        assert_eq!(sizes(&queue).await, left, "{policy:?}");
        assert_eq!(
            queue.sizes(&name("php")).await.unwrap().pending,
            forwarded,
            "{policy:?}"
        );
        assert_eq!(queue.spool(Spool::FailedJobs).len(), failed, "{policy:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_failed_hook_is_told_after_the_job_was_recorded() {
    let queue = queue();
    queue.push(&name("default"), &[job("A", 1)]).await.unwrap();
    let (sender, mut told) = mpsc::unbounded_channel();
    let handler =
        handler::function(|_: IgnoredAny, _| async { Err::<(), _>(std::io::Error::other("no")) });
    let handler = handler.on_failed({
        let queue = Arc::clone(&queue);
        move |context: JobContext, failure| {
            sender
                .send((
                    context.uuid().unwrap().to_string(),
                    failure.message.clone(),
                    queue.spool(Spool::FailedJobs).len(),
                ))
                .unwrap();
            std::future::ready(())
        }
    });
    run(&queue, all_to(handler), options(1)).await;
    assert_eq!(
        told.recv().await,
        Some(("uuid-1".to_owned(), "no".to_owned(), 1))
    );
}

#[tokio::test(start_paused = true)]
async fn limits_on_the_number_of_jobs_are_exact() {
    let rows = [
        (
            WorkerOptions {
                stop: StopRules {
                    max_jobs: Some(3),
                    ..options(8).stop
                },
                ..options(8)
            },
            3,
            StopReason::MaxJobs,
        ),
        (
            WorkerOptions {
                stop: StopRules {
                    once: true,
                    ..options(8).stop
                },
                ..options(8)
            },
            1,
            StopReason::QueueEmpty,
        ),
        (options(8), 5, StopReason::QueueEmpty),
    ];
    for (options, expected, reason) in rows {
        let queue = queue();
        queue
            .push(
                &name("default"),
                &(0..5).map(|n| job("A", n)).collect::<Vec<_>>(),
            )
            .await
            .unwrap();
        let (report, _) = run(&queue, all_to(artisand::routing::Discard), options).await;
        assert_eq!((report.jobs_processed, report.reason), (expected, reason));
        assert_eq!(
            sizes(&queue).await,
            Sizes {
                pending: 5 - expected,
                ..Sizes::default()
            }
        );
    }
}

#[tokio::test(start_paused = true)]
async fn queues_are_worked_in_strict_order() {
    let queue = queue();
    queue
        .push(&name("low"), &[job("A", 3), job("A", 4)])
        .await
        .unwrap();
    queue
        .push(&name("high"), &[job("A", 1), job("A", 2)])
        .await
        .unwrap();
    let (sender, mut order) = mpsc::unbounded_channel();
    let handler = handler::function(move |_: IgnoredAny, context: JobContext| {
        sender.send(context.uuid().unwrap().to_string()).unwrap();
        std::future::ready(Ok::<(), std::io::Error>(()))
    });
    run(
        &queue,
        all_to(handler),
        WorkerOptions {
            queues: vec![name("high"), name("low")],
            ..options(1)
        },
    )
    .await;
    let mut found = Vec::new();
    while let Some(uuid) = order.recv().await {
        found.push(uuid);
    }
    assert_eq!(found, ["uuid-1", "uuid-2", "uuid-3", "uuid-4"]);
}

#[tokio::test(start_paused = true)]
async fn an_order_to_quit_lets_jobs_finish_until_the_deadline_and_releases_the_rest() {
    let queue = queue();
    let jobs = [
        payload("Short", 1, &json!({"maxTries": 5})),
        payload("Long", 2, &json!({"maxTries": 5})),
        job("A", 3),
    ];
    queue.push(&name("default"), &jobs).await.unwrap();
    let (started, mut starts) = mpsc::unbounded_channel();
    let handler = handler::function(move |_: IgnoredAny, context: JobContext| {
        started.send(()).unwrap();
        let seconds = if context.payload().resolve_name().ends_with("Short") {
            3
        } else {
            50
        };
        async move {
            tokio::time::sleep(Duration::from_secs(seconds)).await;
            Ok::<(), std::io::Error>(())
        }
    });
    let control = Control::new();
    let worker_options = WorkerOptions {
        grace: Some(Duration::from_secs(5)),
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..options(2)
    };
    let worker = Worker::new(Arc::clone(&queue), all_to(handler), worker_options);
    let quitting = async {
        starts.recv().await;
        starts.recv().await;
        control.quit();
    };
    let (report, ()) = tokio::join!(worker.run(&control), quitting);
    let expected = Report {
        reason: StopReason::Interrupted,
        jobs_processed: 2,
        released: 1,
        unsettled: 0,
    };
    assert_eq!(report, expected);
    assert_eq!(
        sizes(&queue).await,
        Sizes {
            pending: 1,
            delayed: 1,
            ..Sizes::default()
        }
    );
}

/// Also by a worker that has looked at the queue since the pop, and would look again much later.
#[tokio::test]
async fn a_released_job_is_run_when_it_is_due() {
    let queue = queue();
    let job = payload("A", 1, &json!({"maxTries": 2}));
    queue.push(&name("default"), &[job]).await.unwrap();
    let control = Control::new();
    let handler = handler::function({
        let control = control.clone();
        move |_: IgnoredAny, context: JobContext| {
            let control = control.clone();
            async move {
                if context.attempts() == 1 {
                    // The loop finds nothing more meanwhile.
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    context.release(Duration::from_secs(1));
                } else {
                    control.quit();
                }
                Ok::<(), std::io::Error>(())
            }
        }
    });
    let worker_options = WorkerOptions {
        clock: Clock::System,
        sleep: Duration::from_secs(600),
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..options(4)
    };
    let worker = Worker::new(Arc::clone(&queue), all_to(handler), worker_options);
    let soon = Duration::from_secs(60);
    let report = tokio::time::timeout(soon, worker.run(&control)).await;
    let report = report.expect("it was not forgotten");
    assert_eq!((report.jobs_processed, report.unsettled), (2, 0));
    assert_eq!(sizes(&queue).await, Sizes::default());
}

#[tokio::test(start_paused = true)]
async fn a_pause_stops_pops_and_a_resume_starts_them() {
    let queue = queue();
    let control = Control::new();
    control.pause(true);
    let (sender, mut names) = mpsc::unbounded_channel();
    let worker_options = WorkerOptions {
        stop: StopRules {
            max_jobs: Some(1),
            memory: None,
            ..StopRules::default()
        },
        ..options(1)
    };
    let worker = Worker::new(
        Arc::clone(&queue),
        all_to(artisand::routing::Discard),
        worker_options,
    )
    .with_observer(Names(sender));
    queue.push(&name("default"), &[job("A", 1)]).await.unwrap();
    let resuming = async {
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(
            sizes(&queue).await,
            Sizes {
                pending: 1,
                ..Sizes::default()
            }
        );
        assert!(names.try_recv().is_err());
        control.pause(false);
    };
    let (report, ()) = tokio::join!(worker.run(&control), resuming);
    assert_eq!(report.jobs_processed, 1);
}

#[tokio::test]
async fn a_job_longer_than_retry_after_is_not_run_twice() {
    let queue = Arc::new(MemoryQueue::new(Some(Duration::from_secs(4))));
    queue.push(&name("default"), &[job("A", 1)]).await.unwrap();
    let runs = Arc::new(AtomicUsize::new(0));
    let handler = {
        let runs = Arc::clone(&runs);
        handler::function(move |_: IgnoredAny, _| {
            runs.fetch_add(1, Ordering::SeqCst);
            async {
                tokio::time::sleep(Duration::from_secs(9)).await;
                Ok::<(), std::io::Error>(())
            }
        })
    };
    let sleep = Duration::from_millis(200);
    let (_, events) = run(
        &queue,
        all_to(handler),
        WorkerOptions {
            clock: Clock::System,
            sleep,
            ..options(4)
        },
    )
    .await;
    assert_eq!(events, ["processing 1", "processed Deleted"]);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn a_payload_that_lies_about_its_class_is_not_popped_for_ever() {
    let queue = queue();
    // The payload's outside, which the pop reads, names `A`; the command is a `B`.
    let command = "O:10:\"App\\Jobs\\B\":0:{}";
    let lie = json!({
        "uuid": "lie", "displayName": "App\\Jobs\\A", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\A", "command": command}, "id": "lie", "attempts": 0,
    });
    queue
        .push(
            &name("default"),
            &[lie.to_string().into_bytes(), job("A", 1)],
        )
        .await
        .unwrap();
    let router = router(
        vec![mapping("A", "discard", 0)],
        UnmappedPolicy::Leave,
        &Registry::new(),
    );
    let (report, _) = run(&queue, router, options(1)).await;
    assert_eq!(report.reason, StopReason::QueueEmpty);
    assert_eq!(
        sizes(&queue).await,
        Sizes {
            pending: 1,
            ..Sizes::default()
        }
    );
}

#[tokio::test(start_paused = true)]
async fn a_queue_with_broken_payloads_in_front_is_not_empty() {
    let queue = queue();
    let mut payloads = vec![b"not json".to_vec(); 4];
    payloads.push(job("A", 1));
    queue.push(&name("default"), &payloads).await.unwrap();
    let (report, _) = run(&queue, all_to(artisand::routing::Discard), options(1)).await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::QueueEmpty, 1)
    );
    assert_eq!(
        sizes(&queue).await,
        Sizes {
            quarantined: 4,
            ..Sizes::default()
        }
    );
}

/// Runs one job by a shell script and returns its events.
async fn exec(script: &str, fields: &serde_json::Value) -> Vec<String> {
    exec_in(&Environment::default(), script, fields).await
}

async fn exec_in(
    environment: &Environment,
    script: &str,
    fields: &serde_json::Value,
) -> Vec<String> {
    let queue = queue();
    queue
        .push(&name("default"), &[payload("A", 1, fields)])
        .await
        .unwrap();
    let mapping = Mapping::new(
        Pattern::parse("*").unwrap(),
        HandlerChoice::Exec(ExecOptions {
            command: ["sh", "-c", script].map(str::to_owned).to_vec(),
            environment: environment.clone(),
        }),
    );
    // This mapping names a variable that cargo sets for tests, so programs of the first mapping do not get it.
    let passed = ["CARGO_MANIFEST_DIR".to_owned()].into();
    let other = Mapping::new(
        Pattern::parse("Other").unwrap(),
        HandlerChoice::Exec(ExecOptions {
            command: vec!["true".into()],
            environment: Environment::new(BTreeMap::new(), Some(passed)),
        }),
    );
    let mappings = vec![mapping, other];
    let router = router(mappings, UnmappedPolicy::Leave, &Registry::new());
    run(
        &queue,
        router,
        WorkerOptions {
            clock: Clock::System,
            ..options(1)
        },
    )
    .await
    .1
}

#[tokio::test]
async fn a_programs_exit_code_is_its_verdict() {
    let done = "processed Deleted";
    let rows = [
        ("cat >/dev/null", done),
        ("exec <&-; exit 0", done),
        (
            r#"grep -q '"data":{"n":1}' && test "$ARTISAND_JOB_UUID" = uuid-1 && test "$ARTISAND_JOB_ATTEMPTS" = 1"#,
            done,
        ),
        (
            "echo 'no such order' >&2; exit 65",
            "failed: Illuminate\\Queue\\ManuallyFailedException: `sh` ended with exit status: 65: no such order",
        ),
        ("echo release 9; exit 75", "processed Released"),
        (
            "yes | head -c 3000000; yes broken | head -c 3000000 >&2; exit 75; ",
            "processed Released",
        ),
        (
            "echo broken >&2; exit 3",
            "failed: Artisand\\HandlerError: `sh` ended with exit status: 3: broken",
        ),
        (
            "kill -9 $$",
            "failed: Artisand\\HandlerError: `sh` ended with signal: 9 (SIGKILL)",
        ),
        // A process that it leaves running keeps the pipes open, and nothing waits for it.
        ("sleep 30 & exit 0", done),
    ];
    for (script, expected) in rows {
        let events = exec(script, &json!({"timeout": 20})).await;
        // Without a wait a release comes back at once until the tries are spent: only its first end is of interest.
        assert_eq!(events[..2], ["processing 1", expected], "{script}");
    }
    let events = exec("exit 0", &json!({"maxTries": 1, "attempts": 5})).await;
    assert!(
        events[1].starts_with("failed: Illuminate\\Queue\\MaxAttemptsExceededException"),
        "{events:?}"
    );
}

#[tokio::test]
async fn a_program_gets_the_routed_class_and_the_environment_of_its_mapping() {
    let set = BTreeMap::from([("TOKEN".to_owned(), "t".to_owned())]);
    let named = Some(["CARGO_MANIFEST_DIR".to_owned()].into());
    #[rustfmt::skip]
    let rows = [
        (None, r#"test "$ARTISAND_JOB_CLASS" = 'App\Jobs\A' && test "$TOKEN" = t && test -n "$CARGO_PKG_NAME" && test -z "$CARGO_MANIFEST_DIR""#),
        (named, r#"test -n "$CARGO_MANIFEST_DIR" && test "$TOKEN" = t && test -n "$PATH" && test -z "$CARGO_PKG_NAME""#),
    ];
    for (pass, script) in rows {
        let environment = Environment::new(set.clone(), pass);
        let fields = json!({"displayName": "Report of May", "maxTries": 1});
        let events = exec_in(&environment, script, &fields).await;
        assert_eq!(events[1], "processed Deleted", "{script}");
    }
}

#[tokio::test]
async fn a_program_that_runs_too_long_is_killed_with_all_it_started() {
    let directory = tempfile::tempdir().unwrap();
    let pids = directory.path().join("pids");
    let script = format!(
        "sleep 60 & echo $! >> {0}; echo $$ >> {0}; wait",
        pids.display()
    );
    // The program has to start within its time.
    let events = exec(&script, &json!({"timeout": 4})).await;
    assert!(
        events[1].starts_with("failed: Illuminate\\Queue\\TimeoutExceeded"),
        "{events:?}"
    );
    let pids = std::fs::read_to_string(&pids).unwrap();
    assert_eq!(pids.lines().count(), 2, "{pids}");
    for pid in pids.lines() {
        let pid = rustix::process::Pid::from_raw(pid.parse().unwrap()).unwrap();
        let is_gone =
            || match std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())) {
                Ok(stat) => stat.contains(") Z ").then_some(()),
                Err(_) => Some(()),
            };
        crate::harness::process::eventually(
            "a process of the group is gone",
            Duration::from_secs(5),
            is_gone,
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_listener_may_keep_the_worker_from_its_queues() {
    let queue = queue();
    queue.push(&name("default"), &[job("A", 1)]).await.unwrap();
    let handler = handler::function(|_: IgnoredAny, _| async { Ok::<(), std::io::Error>(()) });
    let asked = Arc::new(AtomicUsize::new(0));
    let (sender, mut names) = mpsc::unbounded_channel();
    let count = Arc::clone(&asked);
    let worker_options = WorkerOptions {
        stop: StopRules {
            max_jobs: Some(1),
            memory: None,
            ..StopRules::default()
        },
        sleep: Duration::from_secs(3),
        ..options(1)
    };
    let worker =
        Worker::new(Arc::clone(&queue), all_to(handler), worker_options).on(move |event| {
            if let Event::Looping(looping) = event {
                assert_eq!(looping.options.queues, [name("default")]);
                if count.fetch_add(1, Ordering::Relaxed) < 2 {
                    looping.veto();
                }
            }
            sender.send(event.name()).unwrap();
        });
    let began = tokio::time::Instant::now();
    let report = worker.run(&Control::new()).await;
    assert_eq!(report.reason, StopReason::MaxJobs);
    assert_eq!(began.elapsed().as_secs(), 6, "two sleeps");
    let mut told = Vec::new();
    while let Some(name) = names.recv().await {
        told.push(name);
    }
    let expected = [
        "WorkerStarting",
        "Looping",
        "Looping",
        "Looping",
        "JobPopping",
        "JobPopped",
        "JobProcessing",
        "JobProcessed",
        "JobAttempted",
        "WorkerStopping",
    ];
    assert_eq!(told, expected);

    // Queues that no worker may look at count as empty, as in Laravel.
    queue.push(&name("default"), &[job("A", 2)]).await.unwrap();
    let handler = handler::function(|_: IgnoredAny, _| async { Ok::<(), std::io::Error>(()) });
    let worker = Worker::new(Arc::clone(&queue), all_to(handler), options(1)).on(|event| {
        if let Event::Looping(looping) = event {
            looping.veto();
        }
    });
    let report = worker.run(&Control::new()).await;
    assert_eq!(
        (report.reason, report.jobs_processed),
        (StopReason::QueueEmpty, 0)
    );
    assert_eq!(sizes(&queue).await.pending, 1);
}

#[tokio::test(start_paused = true)]
async fn an_observer_that_panics_ends_nothing() {
    let queue = queue();
    let jobs = [job("A", 1), job("A", 2), job("A", 3)];
    queue.push(&name("default"), &jobs).await.unwrap();
    let handler = handler::function(|_: IgnoredAny, context: JobContext| async move {
        if context.raw_body().windows(6).any(|part| part == b"uuid-2") {
            return Err(std::io::Error::other("thrown"));
        }
        Ok(())
    });
    let (sender, mut names) = mpsc::unbounded_channel();
    let worker = Worker::new(Arc::clone(&queue), all_to(handler), options(1))
        .on(|_| panic!("a bug in a listener"))
        .with_observer(Names(sender));
    let report = worker.run(&Control::new()).await;
    assert_eq!((report.jobs_processed, report.unsettled), (3, 0));
    let mut ends = 0;
    while let Some(name) = names.recv().await {
        ends += usize::from(!name.starts_with("processing"));
    }
    assert_eq!(ends, 3);
    assert_eq!(sizes(&queue).await, Sizes::default());
    assert_eq!(spooled(&queue).len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_model_is_gone_is_deleted_or_fails_as_its_payload_says() {
    use artisand::handler::{ModelError, ModelKey, ModelNotFound};
    #[derive(Debug, thiserror::Error)]
    #[error("could not process the podcast")]
    struct Own(#[source] ModelError);
    let queue = queue();
    let deletes = |is: bool| json!({"deleteWhenMissingModels": is, "maxTries": 5});
    let jobs = [
        payload("A", 1, &deletes(true)),
        payload("A", 2, &deletes(false)),
        payload("A", 3, &json!({"maxTries": 5})),
    ];
    queue.push(&name("default"), &jobs).await.unwrap();
    let handler = handler::function(|_: IgnoredAny, _| async {
        let missing = ModelNotFound {
            class: "App\\Podcast".into(),
            key: Some(ModelKey::Int(7)),
        };
        Err::<(), _>(Own(ModelError::NotFound(missing)))
    });
    let (_, events) = run(&queue, all_to(handler), options(1)).await;
    let failed = "failed: Illuminate\\Database\\Eloquent\\ModelNotFoundException: No query results for model [App\\Podcast].";
    assert_eq!(
        events,
        [
            "processing 1",
            "processed Deleted",
            "processing 1",
            failed,
            "processing 1",
            failed
        ]
    );
    let uuids: Vec<_> = spooled(&queue).into_iter().map(|job| job.uuid).collect();
    assert_eq!(uuids, [Some("uuid-2".into()), Some("uuid-3".into())]);
    assert_eq!(sizes(&queue).await, Sizes::default());
}

/// A mapping that runs only a part of its jobs, or none.
fn partial(canary: Option<f64>, mode: Mode) -> Mapping {
    Mapping {
        canary: canary.and_then(Canary::new),
        mode,
        ..mapping("A", "handler", 0)
    }
}

#[tokio::test(start_paused = true)]
async fn a_canary_leaves_the_rest_to_the_policy_and_counts() {
    for policy in [UnmappedPolicy::Leave, UnmappedPolicy::Forward(name("php"))] {
        let queue = queue();
        let jobs: Vec<Vec<u8>> = (0..40).map(|n| job("A", n)).collect();
        queue.push(&name("default"), &jobs).await.unwrap();
        let canary = Canary::new(50.0).unwrap();
        let is_taken = |job: &&Vec<u8>| canary.takes(&Payload::parse(job).unwrap());
        let taken = jobs.iter().filter(is_taken).count();
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let handler = handler::function(move |_: IgnoredAny, _: JobContext| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<(), std::io::Error>(()))
        });
        let registry = Registry::new().with("handler", handler);
        let router = router(
            vec![partial(Some(50.0), Mode::Run)],
            policy.clone(),
            &registry,
        );
        let (tell, mut received) = mpsc::unbounded_channel();
        let worker = Worker::new(Arc::clone(&queue), router, options(3)).on(move |event| {
            if let Event::Tallied(counts) = event {
                tell.send((*counts).clone()).unwrap();
            }
        });
        worker.run(&Control::new()).await;
        assert_eq!(ran.load(Ordering::SeqCst), taken, "{policy:?}");
        assert!(taken > 5 && taken < 35, "{taken}");
        let left = if policy == UnmappedPolicy::Leave {
            "default"
        } else {
            "php"
        };
        let left = queue.sizes(&name(left)).await.unwrap().pending;
        assert_eq!(left, (40 - taken) as u64, "{policy:?}");
        let counts = received.try_recv().unwrap();
        // Jobs that stay in the queue are not counted.
        let bypassed = if policy == UnmappedPolicy::Leave {
            0
        } else {
            40 - taken
        };
        assert_eq!(
            (counts.here, counts.bypassed),
            (taken as u64, bypassed as u64)
        );
    }
}

#[tokio::test(start_paused = true)]
async fn a_shadow_of_forwarded_jobs_reads_them_and_runs_nothing() {
    #[derive(serde::Deserialize)]
    struct Small {
        #[serde(rename = "n")]
        _n: i8,
    }
    let queue = queue();
    let jobs = [job("A", 1), job("A", 1000), job("A", 2)];
    queue.push(&name("default"), &jobs).await.unwrap();
    let handler = handler::function(|_: Small, _: JobContext| async {
        panic!("a shadow runs nothing");
        #[expect(unreachable_code, reason = "says the type")]
        Ok::<(), std::io::Error>(())
    });
    let registry = Registry::new().with("handler", handler);
    let forward = UnmappedPolicy::Forward(name("php"));
    let router = router(vec![partial(None, Mode::Shadow)], forward, &registry);
    let (tell, mut received) = mpsc::unbounded_channel();
    let worker = Worker::new(Arc::clone(&queue), router, options(2)).on(move |event| {
        if let Event::Tallied(counts) = event {
            tell.send((*counts).clone()).unwrap();
        }
    });
    worker.run(&Control::new()).await;
    assert_eq!(queue.sizes(&name("php")).await.unwrap().pending, 3);
    let counts = received.try_recv().unwrap();
    assert_eq!(
        (
            counts.readable,
            counts.unreadable,
            counts.here,
            counts.bypassed,
        ),
        (2, 1, 0, 3)
    );
}

#[tokio::test(start_paused = true)]
async fn a_canary_stops_itself_when_too_many_of_its_runs_fail() {
    let queue = queue();
    let jobs: Vec<Vec<u8>> = (0..50)
        .map(|n| payload("A", n, &json!({"maxTries": 1})))
        .collect();
    queue.push(&name("default"), &jobs).await.unwrap();
    // Every fourth fails, in one of several ways.
    let handler = handler::function(|job: serde_json::Value, context: JobContext| async move {
        match job["n"].as_u64() {
            Some(n) if n % 4 > 0 => Ok(()),
            Some(n) if n % 3 == 0 => panic!("a bug"),
            Some(n) if n % 3 == 1 => Err(std::io::Error::other("no")),
            _ => {
                context.fail("no");
                Ok(())
            }
        }
    });
    let registry = Registry::new().with("handler", handler);
    let canary = Canary::new(100.0).unwrap().stop_at(24.0);
    let mapping = Mapping {
        canary,
        ..mapping("A", "handler", 0)
    };
    let forward = UnmappedPolicy::Forward(name("php"));
    let router = router(vec![mapping], forward, &registry);
    let (tell, mut stops) = mpsc::unbounded_channel();
    let worker = Worker::new(Arc::clone(&queue), router, options(1)).on(move |event| {
        if let Event::CanaryStopped(stop) = event {
            tell.send((*stop).clone()).unwrap();
        }
    });
    worker.run(&Control::new()).await;
    let stop = stops.try_recv().unwrap();
    assert_eq!((stop.failures, stop.runs), (5, 20));
    assert!(stops.try_recv().is_err());
    assert_eq!(queue.sizes(&name("php")).await.unwrap().pending, 30);
}

/// A number that is one byte wide; it panics at 666, as code of an app may.
struct Tiny;

impl<'de> serde::Deserialize<'de> for Tiny {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let n = i64::deserialize(deserializer)?;
        assert_ne!(n, 666, "a bug in the app");
        match i8::try_from(n) {
            Ok(_) => Ok(Self),
            Err(_) => Err(serde::de::Error::custom(format!("{n} is not small"))),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn jobs_that_do_not_fit_their_handler_go_the_way_of_unmapped_ones_and_cost_no_attempt() {
    #[derive(serde::Deserialize)]
    struct Small {
        #[serde(rename = "n")]
        _n: Tiny,
    }
    for policy in [UnmappedPolicy::Leave, UnmappedPolicy::Forward(name("php"))] {
        let queue = queue();
        let jobs = [1, 1000, 666, 2].map(|n| job("A", n));
        queue.push(&name("default"), &jobs).await.unwrap();
        let ran = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&ran);
        let handler = handler::function(move |_: Small, _: JobContext| {
            count.fetch_add(1, Ordering::SeqCst);
            std::future::ready(Ok::<(), std::io::Error>(()))
        });
        let registry = Registry::new().with("handler", handler);
        let mapping = Mapping {
            on_mismatch: OnMismatch::Php,
            ..mapping("A", "handler", 0)
        };
        let router = router(vec![mapping], policy.clone(), &registry);
        let (tell, mut received) = mpsc::unbounded_channel();
        let worker = Worker::new(Arc::clone(&queue), router, options(3)).on(move |event| {
            if let Event::Tallied(counts) = event {
                tell.send((*counts).clone()).unwrap();
            }
        });
        worker.run(&Control::new()).await;
        assert_eq!(ran.load(Ordering::SeqCst), 2, "{policy:?}");
        let (left, counted) = match policy {
            UnmappedPolicy::Leave => ("default", 0),
            _ => ("php", 2),
        };
        let popped = queue
            .pop(PopRequest {
                queues: &[name(left)],
                max: NonZeroUsize::new(9).unwrap(),
                now: NOW,
                woken: &[],
                selection: None,
                thorough: false,
            })
            .await
            .unwrap();
        let left: Vec<_> = popped.jobs.iter().map(|job| job.payload.to_vec()).collect();
        assert_eq!(left, [jobs[1].clone(), jobs[2].clone()], "{policy:?}");
        let counts = received.try_recv().unwrap();
        assert_eq!((counts.here, counts.mismatched), (2, counted), "{policy:?}");
    }
}

/// A job with a middleware that exists in PHP only.
fn limited(n: u32) -> Vec<u8> {
    let command = r#"O:1:"A":1:{s:10:"middleware";a:1:{i:0;O:1:"M":0:{}}}"#;
    let mut job: serde_json::Value = serde_json::from_slice(&job("A", n)).unwrap();
    job["data"]["command"] = command.into();
    serde_json::to_vec(&job).unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_job_that_cannot_run_here_counts_as_unmapped() {
    for (policy, stays, moved) in [
        (UnmappedPolicy::Leave, 3, 0),
        (UnmappedPolicy::Forward(name("php")), 0, 3),
    ] {
        let queue = queue();
        let jobs = (0..6).map(|n| if n % 2 == 0 { job("A", n) } else { limited(n) });
        let jobs: Vec<_> = jobs.collect();
        queue.push(&name("default"), &jobs).await.unwrap();
        let ran = Arc::new(Mutex::new(Vec::new()));
        let note = Arc::clone(&ran);
        let handler = handler::function(move |_: IgnoredAny, context: JobContext| {
            let uuid = context.payload().uuid.as_ref().unwrap().as_str().to_owned();
            note.lock().unwrap().push(uuid);
            std::future::ready(Ok::<_, std::io::Error>(()))
        });
        // With pattern `*`, no job is taken unread.
        let registry = Registry::new().with("even", handler);
        let router = router(vec![mapping("*", "even", 0)], policy, &registry);
        let worker = Worker::new(Arc::clone(&queue), router, options(2));
        worker.run(&Control::new()).await;
        assert_eq!(*ran.lock().unwrap(), ["uuid-0", "uuid-2", "uuid-4"]);
        let pending = |pending| Sizes {
            pending,
            ..Sizes::default()
        };
        assert_eq!(sizes(&queue).await, pending(stays));
        assert_eq!(queue.sizes(&name("php")).await.unwrap(), pending(moved));
    }
}

#[test]
fn parts_of_mappings_that_nobody_would_run_are_refused() {
    let registry = Registry::new().with("handler", handler::function(nothing));
    let refused = |mapping: Mapping, policy: UnmappedPolicy| {
        let made = Router::new(vec![mapping], policy, &registry);
        made.unwrap_err().1.to_string()
    };
    let forwarded = Mapping {
        handler: HandlerChoice::Forward(name("q")),
        ..partial(Some(5.0), Mode::Run)
    };
    let falls_back = Mapping {
        on_mismatch: OnMismatch::Php,
        ..mapping("A", "handler", 0)
    };
    let forwards = Mapping {
        handler: HandlerChoice::Forward(name("q")),
        ..falls_back.clone()
    };
    #[rustfmt::skip]
    let rows = [
        (partial(Some(5.0), Mode::Run), UnmappedPolicy::Fail, "the policy for unmapped jobs, which is `fail`"),
        (partial(None, Mode::Shadow), UnmappedPolicy::Fail, "is `fail`: use `php` or `forward`"),
        (partial(None, Mode::Shadow), UnmappedPolicy::Leave, "is `leave`: use `php` or `forward`"),
        (partial(Some(5.0), Mode::Shadow), UnmappedPolicy::Php, "do not go together"),
        (forwarded, UnmappedPolicy::Php, "`canary` is for a handler that runs jobs here"),
        (falls_back.clone(), UnmappedPolicy::Fail, "`on_mismatch = \"php\"` leaves jobs that do not fit"),
        (forwards, UnmappedPolicy::Php, "`on_mismatch` is for a handler that runs jobs here"),
    ];
    for (mapping, policy, expected) in rows {
        let text = refused(mapping, policy);
        assert!(text.contains(expected), "{text}");
    }
}

async fn nothing(_: IgnoredAny, _: JobContext) -> Result<(), std::io::Error> {
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_handler_that_keeps_a_thread_busy_runs_on_other_threads() {
    let busy = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("busy")
        .build()
        .unwrap();
    let seen = Arc::<Mutex<BTreeMap<String, Vec<bool>>>>::default();
    let handler = |class: &'static str, work: Duration| {
        let seen = Arc::clone(&seen);
        handler::function(move |_: IgnoredAny, _: JobContext| {
            let is_beside = std::thread::current().name() == Some("busy");
            // Not locked while it keeps its thread: the other handler would wait, and count as heavy.
            (seen.lock().unwrap().entry(class.to_owned()))
                .or_default()
                .push(is_beside);
            // On purpose: it keeps its thread.
            let began = std::time::Instant::now();
            while began.elapsed() < work {
                std::hint::spin_loop();
            }
            std::future::ready(Ok::<(), std::io::Error>(()))
        })
    };
    let registry = Registry::new()
        .with("light", handler("Light", Duration::ZERO))
        .with("heavy", handler("Heavy", Duration::from_millis(1)));
    let mappings = vec![mapping("Light", "light", 0), mapping("Heavy", "heavy", 0)];
    let queue = queue();
    let jobs = (0..2_000).map(|n| job(if n % 20 == 0 { "Heavy" } else { "Light" }, n));
    let jobs: Vec<_> = jobs.collect();
    queue.push(&name("default"), &jobs).await.unwrap();
    let router = router(mappings, UnmappedPolicy::Leave, &registry);
    let report = Worker::new(Arc::clone(&queue), router, options(1))
        .with_threads(busy.handle().clone())
        .run(&Control::new())
        .await;
    busy.shutdown_background();
    assert_eq!(report.jobs_processed, 2_000);
    let seen = seen.lock().unwrap();
    // More runs than those with which every handler begins beside.
    assert_eq!(seen["Heavy"].len(), 100);
    assert!(seen["Heavy"].iter().all(|is_beside| *is_beside));
    // The first runs show that it is light. An interruption of the process may cost a few more.
    let (first, later) = seen["Light"].split_at(32);
    assert!(first.iter().all(|is_beside| *is_beside));
    let is_light = later.iter().any(|is_beside| !is_beside);
    assert!(is_light, "{} runs", later.len());
}

#[tokio::test]
async fn with_one_slot_a_job_begins_when_the_one_before_is_settled() {
    let server = RedisServer::start();
    let queue = Arc::new(redis_queue(&server, true));
    let jobs: Vec<_> = (0..200).map(|n| job("Plain", n)).collect();
    queue.push(&name("default"), &jobs).await.unwrap();
    let reserved = Arc::<Mutex<Vec<u64>>>::default();
    let handler = {
        let (queue, reserved) = (Arc::clone(&queue), Arc::clone(&reserved));
        handler::function(move |_: IgnoredAny, _: JobContext| {
            let (queue, reserved) = (Arc::clone(&queue), Arc::clone(&reserved));
            async move {
                let sizes = queue.sizes(&name("default")).await?;
                reserved.lock().unwrap().push(sizes.reserved);
                Ok::<(), artisand::queue::Error>(())
            }
        })
    };
    // No observer: the next pop is on its way before the end of the last job is reported.
    let report = Worker::new(queue, all_to(handler), options(1))
        .run(&Control::new())
        .await;
    assert_eq!(report.jobs_processed, 200);
    assert_eq!(*reserved.lock().unwrap(), [1; 200]);
}

/// Redis gives the time of the restart as text.
#[tokio::test]
async fn a_restart_since_the_settings_were_read_is_heard_from_redis() {
    let server = RedisServer::start();
    let mut at = RedisOptions::default();
    at.apply_url(&server.url()).unwrap();
    let redis = Redis::new(&at).unwrap();
    let cache = Cache::redis(RedisStore::new(redis.clone(), redis, "p:"));
    let restart = Value::Int(NOW.0);
    cache.forever(keys::RESTART, &restart).await.unwrap();
    let plane = ControlPlane {
        cache: Some(cache),
        settings_of: Some(UnixSeconds(NOW.0 - 1)),
        ..ControlPlane::default()
    };
    let nothing =
        handler::function(|_: IgnoredAny, _: JobContext| async { Ok::<(), std::io::Error>(()) });
    let mut options = options(1);
    options.stop.when_empty = false;
    let worker = Worker::new(queue(), all_to(nothing), options).with_control_plane(plane);
    let control = Control::new();
    let ended = tokio::time::timeout(Duration::from_secs(20), worker.run(&control));
    assert_eq!(ended.await.unwrap().reason, StopReason::RestartSignal);
}
