//! The worker's side: looks for listeners, and writes events while there is one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use redis::Pipeline;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;
use tokio_util::sync::CancellationToken;

use super::event::TailEvent;
use super::{Keys, TailLevel};
use crate::connection::{self, Redis, RedisOptions};
use crate::shown::{bounded, with_causes};
use crate::task::{BackgroundTask, too_late};
use crate::worker::{Event, Observer};

/// How often the worker looks for listeners.
const LOOK: Duration = Duration::from_secs(1);
/// How long events are gathered before they are written.
const GATHER: Duration = Duration::from_millis(50);
/// Most events that wait to be written, and most bytes of them.
const MOST: usize = 4096;
const MOST_BYTES: usize = 4 << 20;
/// Bytes of events at which an entry of the stream is full.
const ENTRY_BYTES: usize = 16 << 10;
/// Entries that the stream keeps, roughly: 16 MB at most.
const ENTRIES: usize = 1000;
/// How long the stream lives after the last entry, in seconds.
const LIVES: u64 = 60;
/// How long the end of the worker waits for its last events.
const FAREWELL: Duration = Duration::from_secs(1);

/// The task that writes events for listeners, and the observer that it gets them from.
#[derive(Debug)]
pub struct Feed {
    observer: Feeder,
    writing: BackgroundTask,
}

impl Feed {
    /// Starts the task on this runtime, for the queues of this Redis.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn start(redis: &RedisOptions, runtime: &Handle) -> Result<Self, connection::Error> {
        let redis = Redis::new(redis)?;
        let (sender, lines) = mpsc::channel(MOST);
        let shared = Arc::<Shared>::default();
        let observer = Feeder {
            lines: sender,
            shared: Arc::clone(&shared),
        };
        let writer = Writer {
            keys: Keys::new(redis.prefix()),
            redis,
            lines,
            shared,
            worker: name_of_worker(),
            next: 0,
            is_refused: false,
        };
        Ok(Self {
            observer,
            writing: BackgroundTask::start(runtime, |last| writer.run(last)),
        })
    }

    /// The observer of the worker.
    pub fn observer(&self) -> impl Observer + use<> {
        self.observer.clone()
    }

    /// Writes what is left, for a second at most.
    pub async fn finish(self) {
        let abnormal = "events are no longer written for `artisand tail`";
        self.writing.finish(abnormal).await;
    }
}

/// Host and process, and a word that tells a process from an earlier one of this number.
fn name_of_worker() -> String {
    let host = rustix::system::uname();
    let host = host.nodename().to_string_lossy();
    let word: String = std::iter::repeat_with(fastrand::alphanumeric)
        .take(6)
        .collect();
    format!("{}:{}:{word}", bounded(&host), std::process::id())
}

/// What both sides of the channel know.
#[derive(Debug, Default)]
struct Shared {
    /// What listeners want, as [`TailLevel`].
    wanted: AtomicU8,
    /// Bytes of events that wait.
    bytes: AtomicUsize,
    /// Events that found no room since the last batch.
    dropped: AtomicU64,
}

/// The observer; while there is no listener it costs one load.
#[derive(Debug, Clone)]
struct Feeder {
    lines: mpsc::Sender<String>,
    shared: Arc<Shared>,
}

impl Feeder {
    fn tell(&self, event: &Event<'_>, wanted: u8) {
        let Some(event) = TailEvent::of(event) else {
            return;
        };
        if wanted < TailLevel::Everything as u8 && !event.is_failure() {
            return;
        }
        // Without room the event is lost, and no job waits.
        let shared = &*self.shared;
        let is_lost = shared.bytes.load(Ordering::Relaxed) > MOST_BYTES || {
            self.lines.try_reserve().map_or(true, |room| {
                let line = serde_json::to_string(&event);
                line.map_or(true, |line| {
                    shared.bytes.fetch_add(line.len(), Ordering::Relaxed);
                    room.send(line);
                    false
                })
            })
        };
        if is_lost {
            shared.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Observer for Feeder {
    fn on_event(&self, event: &Event<'_>) {
        let wanted = self.shared.wanted.load(Ordering::Relaxed);
        if wanted != TailLevel::Nothing as u8 {
            self.tell(event, wanted);
        }
    }

    /// Lines are about one job each.
    fn is_in_order(&self) -> bool {
        false
    }
}

/// The events of one entry.
#[derive(Default)]
struct Entry {
    lines: String,
    count: u64,
    /// Bytes of the events without what separates them.
    bytes: usize,
}

impl Entry {
    fn is_full(&self) -> bool {
        self.count == 0 || self.bytes >= ENTRY_BYTES
    }

    fn extend(&mut self, line: Option<String>) {
        let Some(line) = line else { return };
        self.bytes += line.len();
        if self.count > 0 {
            self.lines.push('\n');
            self.lines.push_str(&line);
        } else {
            self.lines = line;
        }
        self.count += 1;
    }
}

struct Writer {
    redis: Redis,
    keys: Keys,
    lines: mpsc::Receiver<String>,
    shared: Arc<Shared>,
    worker: String,
    /// Number of the next event, so that listeners notice what they miss.
    next: u64,
    /// Whether it was said that the server refuses the commands.
    is_refused: bool,
}

impl Writer {
    async fn run(mut self, last: CancellationToken) {
        let mut looks = tokio::time::interval(LOOK);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            let line = tokio::select! {
                biased;
                () = last.cancelled() => break,
                _ = looks.tick() => None,
                line = self.lines.recv() => line,
            };
            let work = async {
                if line.is_some() {
                    tokio::time::sleep(GATHER).await;
                } else {
                    self.look().await;
                }
                self.write(line).await;
            };
            tokio::select! {
                () = work => {}
                () = too_late(&last, FAREWELL) => return,
            }
        }
        let _ = tokio::time::timeout(FAREWELL, self.write(None)).await;
    }

    /// Looks for listeners; while the server is away, what they last wanted holds.
    async fn look(&mut self) {
        let look = [&self.keys.everything, &self.keys.failures];
        let look = look.map(|key| redis::cmd("EXISTS").arg(key).take());
        let [everything, failures] = look.each_ref().map(|look| self.redis.command::<bool>(look));
        let wanted = match futures_util::future::try_join(everything, failures).await {
            Ok((true, _)) => TailLevel::Everything,
            Ok((false, true)) => TailLevel::Failures,
            Ok((false, false)) => TailLevel::Nothing,
            Err(error) if connection::is_away(&error) => return,
            Err(error) => {
                self.refused(&error);
                TailLevel::Nothing
            }
        };
        self.shared.wanted.store(wanted as u8, Ordering::Relaxed);
    }

    /// Writes this event and all that wait.
    async fn write(&mut self, first: Option<String>) {
        let mut first = first;
        loop {
            let batch = self.batch(first.take());
            if batch.is_empty() {
                return;
            }
            // What cannot be written is missing between two numbers.
            match self.redis.pipeline::<()>(&batch).await {
                Ok(()) => {}
                Err(error) if connection::is_away(&error) => return,
                Err(error) => return self.refused(&error),
            }
        }
    }

    /// Some of the events that wait, in entries of the stream; empty if there is nothing to tell.
    fn batch(&mut self, first: Option<String>) -> Pipeline {
        /// Most entries that are sent at once.
        const AT_ONCE: usize = 64;
        let mut batch = Pipeline::new();
        let mut first = first;
        for _ in 0..AT_ONCE {
            let line = first.take().or_else(|| self.lines.try_recv().ok());
            let dropped = self.shared.dropped.swap(0, Ordering::Relaxed);
            if line.is_none() && dropped == 0 {
                break;
            }
            let mut events = Entry::default();
            events.extend(line);
            while !events.is_full()
                && let Ok(line) = self.lines.try_recv()
            {
                events.extend(Some(line));
            }
            (self.shared.bytes).fetch_sub(events.bytes, Ordering::Relaxed);
            self.next += dropped;
            (batch.cmd("XADD").arg(&self.keys.stream))
                .arg(&["MAXLEN", "~"])
                .arg(ENTRIES)
                .arg(&["*", "worker", &self.worker, "number"])
                .arg(self.next)
                .arg("dropped")
                .arg(dropped)
                .arg("events")
                .arg(events.lines)
                .ignore();
            self.next += events.count;
        }
        if !batch.is_empty() {
            (batch.cmd("EXPIRE").arg(&self.keys.stream).arg(LIVES)).ignore();
        }
        batch
    }

    fn refused(&mut self, error: &connection::Error) {
        if !std::mem::replace(&mut self.is_refused, true) {
            tracing::warn!(
                error = with_causes(error),
                "Redis refuses what `artisand tail` needs, so that it does not show this worker; the jobs are not affected"
            );
        }
    }
}
