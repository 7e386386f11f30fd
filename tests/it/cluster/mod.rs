//! Queues on a Redis Cluster: slots that move, masters that die, replies that are lost.

mod lost;
mod queues;
mod seen;
mod served;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use artisand::queue::{PopRequest, Queue, QueueName, RedisQueue, Settlement};
use artisand::time::Clock;

use crate::contract::name;
use crate::harness::process::until;

/// Tests do not wait for longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// How long a worker waits for a push before it looks at the queues again.
const LOOK: Duration = Duration::from_millis(100);

/// A payload of a job with this number.
fn payload(number: usize) -> Vec<u8> {
    format!(r#"{{"uuid":"u{number}","displayName":"A","job":"A@run","data":"","id":"{number}","attempts":0,"delay":null}}"#)
        .into_bytes()
}

fn number_of(payload: &[u8]) -> usize {
    let json: serde_json::Value = serde_json::from_slice(payload).unwrap();
    json["id"].as_str().unwrap().parse().unwrap()
}

/// Asks for at most `max` jobs.
fn request(queues: &[QueueName], max: usize) -> PopRequest<'_> {
    PopRequest {
        queues,
        max: NonZeroUsize::new(max).unwrap(),
        now: Clock::System.now(),
        woken: &[],
        selection: None,
        thorough: false,
    }
}

/// Rests before a call is repeated that failed, as a worker does. Time is the subject: a cluster tells no event when it
/// serves a slot again.
async fn rest() {
    tokio::time::sleep(Duration::from_millis(20)).await;
}

/// Pops and deletes jobs until told to stop and all queues are empty; returns how often each job came.
///
/// A command that failed for sure is repeated, as a worker does; after a lost reply the job may come again.
async fn work(
    queue: Arc<RedisQueue>,
    queues: Vec<QueueName>,
    is_over: Arc<AtomicBool>,
) -> BTreeMap<usize, usize> {
    let mut ran = BTreeMap::new();
    loop {
        let over = is_over.load(Ordering::SeqCst);
        let Ok(popped) = queue.pop(request(&queues, 8)).await else {
            rest().await;
            continue;
        };
        if popped.jobs.is_empty() {
            if over {
                return ran;
            }
            // A wait that fails is followed by a pop, as in a worker.
            let _ = queue.wait_for_push(&queues, LOOK).await;
        }
        for job in &popped.jobs {
            *ran.entry(number_of(&job.payload)).or_insert(0) += 1;
        }
        let delete = |job| (Arc::new(job), Settlement::Delete);
        let mut rows: Vec<_> = popped.jobs.into_iter().map(delete).collect();
        while let Err(unsettled) = queue.settle(&rows).await {
            let mut left = unsettled.settled.into_iter();
            rows.retain(|_| left.next().unwrap().is_none());
            rest().await;
        }
    }
}

/// Pushes a job until it is certain that it is there; returns how often it may be there.
async fn push(queue: &RedisQueue, to: &QueueName, number: usize) -> usize {
    let mut times = 0;
    until("a job can be pushed", PATIENCE, async || {
        let pushed = queue.push(to, &[payload(number)]).await;
        times += match &pushed {
            Ok(()) => 1,
            Err(error) => usize::from(error.is_of_unknown_outcome()),
        };
        pushed.is_ok()
    })
    .await;
    times
}

/// Names of queues whose slots lie on all three masters.
fn three() -> Vec<QueueName> {
    ["a", "b", "c"].map(name).to_vec()
}
