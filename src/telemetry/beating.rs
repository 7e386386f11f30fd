//! Writes the heartbeat of this worker.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::time::MissedTickBehavior;

use super::heartbeat::{RunningRecord, Series, WorkerRecord};
use super::jobs::{JobFigures, minute, unix_seconds};
use crate::connection::is_away;
use crate::outbox::hand_over::shown_name;
use crate::payload::JobUuid;
use crate::queue::{ConnectionName, Ledger, QueueName};
use crate::shown::{bounded, with_causes};
use crate::worker::Control;

/// How often a heartbeat is written.
const EVERY: Duration = Duration::from_secs(5);
/// How long one is kept: a server that hangs for some seconds makes no worker disappear.
const LIVES: Duration = Duration::from_secs(30);
/// How long the server may take for the last one.
const PATIENCE: Duration = Duration::from_secs(1);
/// Most running jobs, queues and classes in a record.
const MOST_RUNNING: usize = 50;
const MOST_QUEUES: usize = 20;
const MOST_CLASSES: usize = 10;

/// What does not change about a worker.
#[derive(Debug, Clone)]
pub struct About {
    /// `--name`
    pub name: String,
    /// The queue connection.
    pub connection: ConnectionName,
    /// Its name in the app's pauses.
    pub paused_as: ConnectionName,
    /// Its driver.
    pub driver: &'static str,
    /// Its queues.
    pub queues: Vec<QueueName>,
    /// Jobs that can run at once, in PHP processes too.
    pub slots: usize,
}

/// Tells of this worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Heart(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    id: String,
    host: String,
    started: f64,
    about: About,
    jobs: JobFigures,
    control: Control,
    /// Whether it was said that heartbeats cannot be written.
    is_said: AtomicBool,
}

impl Heart {
    /// The heart of a worker that has started.
    pub fn new(about: About, jobs: JobFigures, control: Control) -> Self {
        let host = rustix::system::uname();
        let host = host.nodename().to_string_lossy();
        let host = bounded(&host).to_owned();
        let word = std::iter::repeat_with(fastrand::alphanumeric).take(6);
        let word: String = word.collect();
        Self(Arc::new(Inner {
            id: format!("{host}:{}:{word}", std::process::id()),
            host,
            started: unix_seconds(),
            about,
            jobs,
            control,
            is_said: AtomicBool::new(false),
        }))
    }

    /// What there is to tell at this moment.
    pub fn record(&self) -> WorkerRecord {
        let Inner { about, jobs, .. } = &*self.0;
        let (moment, now) = (jobs.now(), unix_seconds());
        let hour = jobs.hour(minute(now), MOST_QUEUES, MOST_CLASSES);
        let series = |series: Vec<_>| {
            let series = series.into_iter();
            series
                .map(|(name, minutes)| Series { name, minutes })
                .collect()
        };
        let queues = |queues: &[QueueName]| queues.iter().map(ToString::to_string).collect();
        let running = moment.running.iter().take(MOST_RUNNING);
        WorkerRecord {
            format: WorkerRecord::FORMAT,
            id: self.0.id.clone(),
            host: self.0.host.clone(),
            pid: std::process::id(),
            name: bounded(&about.name).to_owned(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            started: self.0.started,
            at: now,
            connection: about.connection.to_string(),
            paused_as: about.paused_as.to_string(),
            driver: about.driver.to_owned(),
            queues: queues(&about.queues),
            paused_queues: queues(&moment.paused),
            slots: about.slots,
            busy: moment.running.len(),
            running: running
                .map(|running| RunningRecord {
                    uuid: (running.job.payload.uuid.as_ref())
                        .map(|uuid| JobUuid::bounded(uuid).to_owned()),
                    class: shown_name(&running.job.payload).into_owned(),
                    queue: running.job.queue.to_string(),
                    since: now - running.elapsed.as_secs_f64(),
                    attempts: running.job.attempts,
                })
                .collect(),
            is_paused: moment.is_paused,
            is_stopping: self.0.control.is_told_to_quit(),
            attempts: moment.totals.attempts,
            done: moment.totals.done,
            failed: moment.totals.failed,
            released: moment.totals.released,
            by_queue: series(hour.queues),
            by_class: series(hour.classes),
        }
    }

    /// Writes heartbeats until the future is dropped.
    pub async fn keep_beating(self, ledger: Arc<dyn Ledger>) -> Infallible {
        let control = self.0.control.clone();
        let mut ticks = tokio::time::interval(EVERY);
        // Not several at once for a server that was away.
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut stops = std::pin::pin!(control.told_to_quit());
        let mut is_stopping = false;
        loop {
            tokio::select! {
                _ = ticks.tick() => {}
                // Said at once.
                () = &mut stops, if !is_stopping => is_stopping = true,
            }
            self.beat(&*ledger).await;
        }
    }

    async fn beat(&self, ledger: &dyn Ledger) {
        // Texts and numbers only, so that this cannot fail.
        let record = serde_json::to_vec(&self.record()).unwrap_or_default();
        let Err(error) = ledger.beat(&self.0.id, &record, LIVES).await else {
            return;
        };
        // That the server is away is said by what needs it.
        if !is_away(&error) && !self.0.is_said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                error = with_causes(&error),
                "could not write the heartbeat of this worker, so that the worker is not listed; logged once"
            );
        }
    }

    /// Removes the heartbeat, once the worker has ended.
    pub async fn stop(&self, ledger: &dyn Ledger) {
        // What stays expires.
        let _ = tokio::time::timeout(PATIENCE, ledger.end_beats(&self.0.id)).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;
    use crate::telemetry::live_workers;

    fn heart() -> Heart {
        let about = About {
            name: "default".into(),
            connection: "redis".into(),
            paused_as: "redis".into(),
            driver: "redis",
            queues: vec!["high".into(), "low".into()],
            slots: 4,
        };
        Heart::new(about, JobFigures::new(&"redis".into()), Control::new())
    }

    #[tokio::test]
    async fn workers_are_listed_as_long_as_their_hearts_beat() {
        let ledger = MemoryQueue::new(None);
        let (one, other) = (heart(), heart());
        for heart in [&one, &other, &one] {
            heart.beat(&ledger).await;
        }
        for foreign in [&b"no JSON"[..], b"{}", br#"{"format":2}"#, b"\xff"] {
            let worker = format!("{foreign:?}");
            ledger.beat(&worker, foreign, LIVES).await.unwrap();
        }
        let live = live_workers(&ledger).await.unwrap();
        assert_eq!(live.unreadable, 4);
        let ids: Vec<_> = live.workers.iter().map(|worker| &worker.id).collect();
        assert_eq!(ids, [&one.0.id, &other.0.id]);
        assert_eq!(live.workers[0].queues, ["high", "low"]);
        one.stop(&ledger).await;
        let live = live_workers(&ledger).await.unwrap();
        assert_eq!(live.workers.len(), 1);
        assert_eq!(live.workers[0].id, other.0.id);
    }

    #[tokio::test(start_paused = true)]
    async fn a_heart_that_stands_still_is_forgotten_and_a_stop_order_is_told_at_once() {
        let (ledger, heart) = (Arc::new(MemoryQueue::new(None)), heart());
        let beating = tokio::spawn(heart.clone().keep_beating(ledger.clone()));
        tokio::time::sleep(LIVES * 2).await;
        let worker = |live: &crate::telemetry::LiveWorkers| live.workers.first().cloned();
        let told = worker(&live_workers(&*ledger).await.unwrap()).unwrap();
        assert!(!told.is_stopping);
        heart.0.control.quit();
        tokio::time::sleep(Duration::from_millis(1)).await;
        let told = worker(&live_workers(&*ledger).await.unwrap()).unwrap();
        assert!(told.is_stopping);
        beating.abort();
        tokio::time::sleep(LIVES).await;
        assert_eq!(worker(&live_workers(&*ledger).await.unwrap()), None);
    }
}
