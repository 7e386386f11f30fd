//! A worker on SQS, with jobs whose end brings nothing else about.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::handler::{self, JobContext};
use artisand::payload::Pattern;
use artisand::queue::{MemoryQueue, Queue as _, Sizes};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::Clock;
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::watch;

use super::{PATIENCE, in_seconds, queue_of};
use crate::contract::{name, sizes};
use crate::harness::sqs::Sqs;
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

/// Jobs wait, are pushed while the worker is idle, are delayed, and tried again.
#[tokio::test]
async fn a_worker_runs_all_jobs_as_soon_as_they_are_there() {
    let server = Sqs::start();
    let queue = Arc::new(queue_of(&server, None));
    let q = name("default");
    let first: Vec<Vec<u8>> = (0..50).map(job).collect();
    queue.push(&q, &first).await.unwrap();
    let (running, mut ran) = watch::channel(Vec::<(u32, u32)>::new());
    let handler = handler::function({
        move |job: Numbered, context: JobContext| {
            running.send_modify(|ran| ran.push((job.n, context.attempts())));
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
        let producer = queue_of(&server, None);
        for n in 50..60 {
            ran.wait_for(|ran| ran.len() >= n as usize).await.unwrap();
            if n % 2 == 0 {
                producer.push(&q, &[job(n)]).await.unwrap();
            } else {
                producer.later(&q, in_seconds(1), &job(n)).await.unwrap();
            }
        }
        // 50 and those that were tried again.
        ran.wait_for(|ran| ran.len() >= 66).await.unwrap();
        control.quit();
        ran.borrow().clone()
    };
    let both = futures_util::future::join(worker.run(&control), telling);
    let (report, mut ran) = tokio::time::timeout(PATIENCE, both).await.unwrap();
    assert_eq!((report.jobs_processed, report.unsettled), (66, 0));
    assert_eq!(report.released, 0);
    ran.sort_unstable();
    let tried_again = (0..60).step_by(10).map(|n| (n, 2));
    let mut expected: Vec<(u32, u32)> = (0..60).map(|n| (n, 1)).chain(tried_again).collect();
    expected.sort_unstable();
    assert_eq!(ran, expected);
    let looker = queue_of(&server, None);
    assert_eq!(sizes(&looker, "default").await, Sizes::default());
}

/// Workers with one slot that are told to stop while they wait: a job that comes in that moment is run, or left
/// untouched.
#[tokio::test]
async fn a_worker_that_stops_spends_no_attempt_in_vain() {
    let server = Sqs::start();
    let rounds = (0..4).map(|round| stops_beside_a_push(&server, round));
    let ran = futures_util::future::join_all(rounds).await.concat();
    let left = (0..4).flat_map(|round| server.receives(&format!("queue-{round}")));
    let left: Vec<u32> = left.collect();
    assert_eq!(left.len() + ran.len(), 4, "{left:?} left, ran {ran:?}");
    assert!(left.iter().all(|receives| *receives == 0), "{left:?}");
    assert!(ran.iter().all(|(_, attempts)| *attempts == 1), "{ran:?}");
}

/// What a worker has run that is told to stop, while a job is pushed to its queue.
async fn stops_beside_a_push(server: &Sqs, round: u32) -> Vec<(u32, u32)> {
    let ran = Arc::<Mutex<Vec<(u32, u32)>>>::default();
    let handler = handler::function({
        let ran = Arc::clone(&ran);
        move |job: Numbered, context: JobContext| {
            ran.lock().unwrap().push((job.n, context.attempts()));
            async { Ok::<(), std::io::Error>(()) }
        }
    });
    let of = name(&format!("queue-{round}"));
    let options = WorkerOptions {
        clock: Clock::System,
        queues: vec![of.clone()],
        sleep: Duration::from_secs(600),
        stop: StopRules {
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let queue = Arc::new(queue_of(server, None));
    let ledger = Arc::new(MemoryQueue::new(None));
    let worker = Worker::with_ledger(queue, ledger, router(handler), options);
    let control = Control::new();
    let telling = async {
        server.is_polled(of.as_str()).await;
        control.quit();
        let jobs = [job(round)];
        queue_of(server, None).push(&of, &jobs).await.unwrap();
    };
    let both = futures_util::future::join(worker.run(&control), telling);
    tokio::time::timeout(PATIENCE, both).await.unwrap();
    std::mem::take(&mut *ran.lock().unwrap())
}
