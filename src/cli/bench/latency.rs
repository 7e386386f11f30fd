//! Latency of an idle worker: one job at a time.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::payload::payload;
use super::setup::{Setup, go_on};
use crate::queue::Queue as _;
use crate::worker::{Control, Event};

/// Jobs that are measured.
pub(super) const JOBS: u32 = 300;
/// Jobs before them, which open connections and load scripts.
const FIRST: u32 = 10;
/// Wait after each job, so that the worker is idle again.
const PAUSE: Duration = Duration::from_millis(2);
/// Longest wait for one job.
const LONGEST: Duration = Duration::from_secs(30);

/// Times from the push, sorted.
pub(super) struct Latency {
    /// To the start of the handler.
    pub(super) started: Vec<Duration>,
    /// Until the job is settled.
    pub(super) settled: Vec<Duration>,
}

/// The value below which this part of the sorted times is.
pub(super) fn percentile(times: &[Duration], percent: usize) -> Duration {
    let position = (times.len() * percent / 100).min(times.len().saturating_sub(1));
    times.get(position).copied().unwrap_or_default()
}

/// Measures an idle worker.
pub(super) async fn measure(setup: &Setup) -> anyhow::Result<Latency> {
    setup.queue.clear().await?;
    let (start, starts) = unbounded_channel();
    let (end, ends) = unbounded_channel();
    // A receiver that is gone does not matter.
    let worker = setup.worker(NonZeroUsize::MIN, false, move |_| {
        let _ = start.send(Instant::now());
    })?;
    let worker = worker.on(move |event| {
        if let Event::JobProcessed(_) = event {
            let _ = end.send(Instant::now());
        }
    });
    let control = Control::new();
    let told = control.clone();
    let working = tokio::spawn(async move { worker.run(&told).await });
    let measured = push_one_by_one(setup, starts, ends).await;
    control.quit();
    working.await.context("the worker ended abnormally")?;
    measured
}

/// Pushes jobs on this thread, which is not the worker's.
async fn push_one_by_one(
    setup: &Setup,
    mut starts: UnboundedReceiver<Instant>,
    mut ends: UnboundedReceiver<Instant>,
) -> anyhow::Result<Latency> {
    let (mut started, mut settled) = (Vec::new(), Vec::new());
    for n in 0..FIRST + JOBS {
        go_on(&setup.control)?;
        let job = [payload(n, setup.load.size)];
        let pushed = Instant::now();
        setup.queue.app.push(&setup.queue.name, &job).await?;
        let times = async { Some((starts.recv().await?, ends.recv().await?)) };
        let times = tokio::time::timeout(LONGEST, times).await.ok().flatten();
        let (start, end) = times.context("a job was pushed, and did not run within 30 seconds")?;
        if n >= FIRST {
            started.push(start.saturating_duration_since(pushed));
            settled.push(end.saturating_duration_since(pushed));
        }
        tokio::time::sleep(PAUSE).await;
    }
    anyhow::ensure!(starts.is_empty(), "a job ran twice");
    started.sort();
    settled.sort();
    Ok(Latency { started, settled })
}
