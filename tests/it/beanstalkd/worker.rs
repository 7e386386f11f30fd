//! A worker on beanstalkd, with jobs whose end brings nothing else about.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use artisand::handler::{self, JobContext, Services};
use artisand::payload::Pattern;
use artisand::queue::{MemoryQueue, Queue as _, Sizes, Spool};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::Clock;
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::Notify;

use super::waits::wait_ends_early;
use super::{PATIENCE, connections_wait, in_seconds, queue_of, take_one};
use crate::contract::{name, sizes};
use crate::follow::file_stores;
use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::process::until;
use crate::worker::payload;

#[derive(Deserialize)]
struct Numbered {
    n: u32,
}

fn router(handler: impl handler::Handler) -> Router {
    let registry = Registry::new().with("handler", handler);
    let all = Pattern::parse("App\\Jobs\\*").unwrap();
    let mapping = Mapping::new(all, HandlerChoice::Named("handler".into()));
    // Jobs cannot be left where they are.
    Router::new(vec![mapping], UnmappedPolicy::Fail, &registry).unwrap()
}

/// As Laravel's driver writes it: without `id` and `attempts`.
fn job(n: u32) -> Vec<u8> {
    let payload = payload("A", n, &json!({"maxTries": 3}));
    let mut payload: serde_json::Value = serde_json::from_slice(&payload).unwrap();
    let fields = payload.as_object_mut().unwrap();
    fields.retain(|name, _| name != "id" && name != "attempts");
    payload.to_string().into_bytes()
}

/// A job that follows another one and is longer than the server takes is not tried forever, and not lost.
#[tokio::test]
async fn a_push_that_the_server_refuses_becomes_a_failed_job() {
    let server = Beanstalkd::start_with(&["-z", "500"]);
    let payload = json!({"uuid": "u1", "job": "A@run", "data": "x".repeat(500)}).to_string();
    let directory = tempfile::tempdir().unwrap();
    let mut services = Services::default();
    services.stores = Some(file_stores(directory.path()));
    let wanted = json!({"store": "file", "name": "lock", "owner": "me", "seconds": 0});
    let push = json!({"do": "push", "connection": "tubes", "queue": "default", "payload": payload, "due": null, "id": "1", "lock": wanted});
    let ledger = Arc::new(MemoryQueue::new(None));
    ledger.spool_record(Spool::FollowUps, push.to_string().into_bytes());
    let options = WorkerOptions {
        connection: "tubes".into(),
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let handler = handler::function(|_: Numbered, _| async { Ok::<(), std::io::Error>(()) });
    let queue = Arc::new(queue_of(&server, 90));
    let ledger_of_worker = Arc::clone(&ledger) as Arc<dyn artisand::queue::Ledger>;
    let worker = Worker::with_ledger(queue, ledger_of_worker, router(handler), options)
        .with_services(services);
    let control = Control::new();
    let running = worker.run(&control);
    tokio::time::timeout(PATIENCE, running).await.unwrap();
    let stores = file_stores(directory.path());
    let lock = stores.get("file").unwrap().lock("lock", "", Duration::ZERO);
    assert_eq!(
        lock.current_owner().await.unwrap(),
        None,
        "no job would free it"
    );
    assert_eq!(ledger.spool(Spool::FollowUps), Vec::<Vec<u8>>::new());
    let failed = ledger.spool(Spool::FailedJobs);
    assert_eq!(failed.len(), 1);
    let failed: serde_json::Value = serde_json::from_slice(&failed[0]).unwrap();
    assert_eq!(
        (&failed["uuid"], &failed["connection"], &failed["payload"]),
        (&json!("u1"), &json!("tubes"), &json!(payload))
    );
    let exception = failed["exception"].as_str().unwrap();
    let expected = "Artisand\\PushRefused: ";
    assert!(
        exception.starts_with(expected) && exception.contains("option -z"),
        "{exception}"
    );
}

/// Jobs wait, are pushed while the worker is idle, are delayed, and tried again.
#[tokio::test]
async fn a_worker_runs_all_jobs_as_soon_as_they_are_there() {
    let server = Beanstalkd::start();
    let queue = Arc::new(queue_of(&server, 90));
    let q = name("default");
    let first: Vec<Vec<u8>> = (0..50).map(job).collect();
    queue.push(&q, &first).await.unwrap();
    let ran: Arc<Mutex<Vec<(u32, u32)>>> = Arc::default();
    let handler = handler::function({
        let ran = Arc::clone(&ran);
        move |job: Numbered, context: JobContext| {
            ran.lock().unwrap().push((job.n, context.attempts()));
            let is_tried_again = job.n.is_multiple_of(10) && context.attempts() == 1;
            async move {
                if is_tried_again {
                    return Err(std::io::Error::other("not yet"));
                }
                Ok(())
            }
        }
    });
    let options = WorkerOptions {
        concurrency: NonZeroUsize::new(8).unwrap(),
        clock: Clock::System,
        // Too long for this test: only waiting on the server finds what is pushed later.
        sleep: Duration::from_secs(600),
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let control = Control::new();
    let ledger = Arc::new(MemoryQueue::new(None));
    let worker = Worker::with_ledger(queue, ledger, router(handler), options);
    let telling = async {
        let producer = queue_of(&server, 90);
        for n in 50..60 {
            have_begun(&ran, n as usize).await;
            if n % 2 == 0 {
                producer.push(&q, &[job(n)]).await.unwrap();
            } else {
                producer.later(&q, in_seconds(1), &job(n)).await.unwrap();
            }
        }
        // 50 and those that were tried again.
        have_begun(&ran, 66).await;
        control.quit();
    };
    let both = futures_util::future::join(worker.run(&control), telling);
    let (report, ()) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!((report.jobs_processed, report.unsettled), (66, 0));
    assert_eq!(report.released, 0);
    let mut ran = std::mem::take(&mut *ran.lock().unwrap());
    ran.sort_unstable();
    let tried_again = (0..60).step_by(10).map(|n| (n, 2));
    let mut expected: Vec<(u32, u32)> = (0..60).map(|n| (n, 1)).chain(tried_again).collect();
    expected.sort_unstable();
    assert_eq!(ran, expected);
    let looker = queue_of(&server, 90);
    assert_eq!(sizes(&looker, "default").await, Sizes::default());
}

/// The worker stops while a job runs, and another one is pushed: with a slot free, it must not take that.
#[tokio::test]
async fn a_job_that_is_pushed_during_a_stop_is_left_to_other_workers() {
    let server = Beanstalkd::start();
    let queue = Arc::new(queue_of(&server, 90));
    let q = name("default");
    queue.push(&q, &[job(1)]).await.unwrap();
    let (ran, goes_on) = (
        Arc::<Mutex<Vec<(u32, u32)>>>::default(),
        Arc::new(Notify::new()),
    );
    let handler = handler::function({
        let (ran, goes_on) = (Arc::clone(&ran), Arc::clone(&goes_on));
        move |job: Numbered, context: JobContext| {
            ran.lock().unwrap().push((job.n, context.attempts()));
            let goes_on = Arc::clone(&goes_on);
            async move {
                goes_on.notified().await;
                Ok::<(), std::io::Error>(())
            }
        }
    });
    let options = WorkerOptions {
        concurrency: NonZeroUsize::new(2).unwrap(),
        clock: Clock::System,
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let control = Control::new();
    let ledger = Arc::new(MemoryQueue::new(None));
    let worker = Worker::with_ledger(queue, ledger, router(handler), options);
    let looker = queue_of(&server, 90);
    let stopping = async {
        have_begun(&ran, 1).await;
        let began = Instant::now();
        connections_wait(&server, 1).await;
        control.quit();
        wait_ends_early(&server, began).await;
        looker.push(&q, &[job(2)]).await.unwrap();
        goes_on.notify_one();
    };
    let both = futures_util::future::join(worker.run(&control), stopping);
    let (report, ()) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!((report.jobs_processed, report.unsettled), (1, 0));
    assert_eq!(take_one(&looker, "default").await.attempts, 1);
}

/// Waits until this many attempts have begun.
async fn have_begun(ran: &Mutex<Vec<(u32, u32)>>, count: usize) {
    until("attempts have begun", PATIENCE, async || {
        ran.lock().unwrap().len() >= count
    })
    .await;
}
