//! Queues on a Redis Cluster: slots that move, masters that die, replies that are lost.

mod lost;
mod queues;
mod served;

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use artisand::queue::{PopRequest, Queue, QueueName, RedisQueue, Settlement};
use artisand::time::Clock;

use crate::contract::name;

/// Tests do not wait for longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

/// A payload of a job with this number.
fn payload(number: usize) -> Vec<u8> {
    format!(r#"{{"uuid":"u{number}","displayName":"A","job":"A@run","data":"","id":"{number}","attempts":0,"delay":null}}"#)
        .into_bytes()
}

fn number_of(payload: &[u8]) -> usize {
    let json: serde_json::Value = serde_json::from_slice(payload).unwrap();
    json["id"].as_str().unwrap().parse().unwrap()
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
        let request = PopRequest {
            queues: &queues,
            max: NonZeroUsize::new(8).unwrap(),
            now: Clock::System.now(),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let popped = queue.pop(request).await;
        let Ok(popped) = popped else {
            tokio::time::sleep(Duration::from_millis(20)).await;
            continue;
        };
        if popped.jobs.is_empty() {
            if over {
                return ran;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for job in &popped.jobs {
            *ran.entry(number_of(&job.payload)).or_insert(0) += 1;
        }
        let delete = |job| (Arc::new(job), Settlement::Delete);
        let mut rows: Vec<_> = popped.jobs.into_iter().map(delete).collect();
        while let Err(unsettled) = queue.settle(&rows).await {
            let mut left = unsettled.settled.into_iter();
            rows.retain(|_| left.next().unwrap().is_none());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

/// Pushes a job until it is certain that it is there; returns how often it may be there.
async fn push(queue: &RedisQueue, to: &QueueName, number: usize) -> usize {
    let mut times = 0;
    let begun = tokio::time::Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "job {number} cannot be pushed");
        match queue.push(to, &[payload(number)]).await {
            Ok(()) => return times + 1,
            Err(error) => times += usize::from(error.is_of_unknown_outcome()),
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Names of queues whose slots lie on all three masters.
fn three() -> Vec<QueueName> {
    ["a", "b", "c"].map(name).to_vec()
}
