//! What a worker tells of itself every few seconds, and the list of the workers that do.
//!
//! Records are JSON in the queue's Redis, where every client of that Redis can write: what cannot be read is counted
//! and left out, and what prints a record writes out what is unfit.

use serde::{Deserialize, Serialize};

use super::minutes::Minutes;
use crate::queue::{Error, Ledger};

/// The form of the records that this version writes; others are not read.
const FORMAT: u32 = 1;
/// Most workers that are listed.
const MOST_WORKERS: usize = 1000;
/// Longest record in bytes: about twice what a worker writes at most.
const LONGEST: usize = 256 << 10;

/// A worker, as it was a few seconds ago.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// The form of the record.
    pub format: u32,
    /// Its name in Redis: host, process and a random word.
    pub id: String,
    /// Host name.
    pub host: String,
    /// Number of the process on that host, or in its container.
    pub pid: u32,
    /// `--name`
    pub name: String,
    /// Version of artisand.
    pub version: String,
    /// When it started, in unix seconds.
    pub started: f64,
    /// When the record was written, in unix seconds.
    pub at: f64,
    /// The queue connection.
    pub connection: String,
    /// The name of the connection in the app's pauses.
    pub paused_as: String,
    /// Driver of the connection.
    pub driver: String,
    /// Its queues, the first one first.
    pub queues: Vec<String>,
    /// Those of its queues that the app has paused.
    pub paused_queues: Vec<String>,
    /// Jobs that can run at once, in PHP processes too.
    pub slots: usize,
    /// Jobs that run.
    pub busy: usize,
    /// Jobs that run, the longest first; of many only some.
    pub running: Vec<RunningRecord>,
    /// Whether it takes no jobs until it is resumed.
    pub is_paused: bool,
    /// Whether it takes no more jobs, and ends once the running ones have ended.
    pub is_stopping: bool,
    /// Attempts that ended since the start.
    pub attempts: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Attempts after which the job waits for another one.
    pub released: u64,
    /// The last hour of its queues, the busiest first; only those with attempts, and not of many.
    pub by_queue: Vec<Series>,
    /// The last hour of its classes, likewise.
    pub by_class: Vec<Series>,
}

/// A job that runs.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct RunningRecord {
    /// The job's uuid, if its payload has one.
    pub uuid: Option<String>,
    /// Class, or the name that stands for it.
    pub class: String,
    /// Its queue.
    pub queue: String,
    /// When the attempt began, in unix seconds.
    pub since: f64,
    /// Number of the attempt.
    pub attempts: u32,
}

/// The last hour of a queue or of a class.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// The queue or class.
    pub name: String,
    /// Its minutes.
    pub minutes: Minutes,
}

impl WorkerRecord {
    /// The form that this version writes.
    pub(super) const FORMAT: u32 = FORMAT;

    fn read(record: &[u8]) -> Option<Self> {
        if record.len() > LONGEST {
            return None;
        }
        let read: Self = serde_json::from_slice(record).ok()?;
        (read.format == FORMAT).then_some(read)
    }
}

/// The workers whose heartbeats a server keeps.
#[derive(Debug, Default, Clone, PartialEq)]
pub struct LiveWorkers {
    /// What they told last, by host and start.
    pub workers: Vec<WorkerRecord>,
    /// Records that could not be read: of other versions, or not artisand's.
    pub unreadable: usize,
}

/// The workers that were alive within the last half minute.
///
/// # Errors
///
/// The server cannot be asked.
pub async fn live_workers(ledger: &dyn Ledger) -> Result<LiveWorkers, Error> {
    let mut live = LiveWorkers::default();
    for record in ledger.beats(MOST_WORKERS).await? {
        match WorkerRecord::read(&record) {
            Some(worker) => live.workers.push(worker),
            None => live.unreadable += 1,
        }
    }
    live.workers.sort_by(|a, b| {
        let by_start = a.started.total_cmp(&b.started);
        a.host.cmp(&b.host).then(by_start).then(a.id.cmp(&b.id))
    });
    Ok(live)
}
