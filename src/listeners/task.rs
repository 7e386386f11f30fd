//! The task that lets PHP raise events.

use std::sync::atomic::Ordering;
use std::time::Duration;

use serde::Serialize;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::figures::ListenerFigures;
use super::note::{MOST, Note, Notes};
use crate::process::pool::{Answer, Helper, PoolOptions};
use crate::task::{BackgroundTask, too_late};
use crate::worker::Observer;

/// Most attempts of one request.
const BATCH: usize = 100;
/// Bytes of attempts that end a request.
const BATCH_BYTES: usize = 1 << 20;
/// Shortest time between two log lines about the same.
const SAID_AGAIN: Duration = Duration::from_secs(60);
/// How long the end of the worker waits for listeners.
const FAREWELL: Duration = Duration::from_secs(5);

/// The task that lets PHP raise events, and the observer that it gets them from.
#[derive(Debug)]
pub struct Listeners {
    notes: Notes,
    raising: BackgroundTask,
}

impl Listeners {
    /// Starts the task, and its PHP process, on this runtime.
    pub fn start(options: PoolOptions, figures: ListenerFigures, runtime: &Handle) -> Self {
        let (sender, waiting) = mpsc::channel(MOST);
        let notes = Notes::new(sender, figures);
        let entered = runtime.enter();
        let task = Raising {
            helper: Helper::start(options, "listeners"),
            waiting,
            notes: notes.clone(),
            missed: LoggedCount::default(),
            threw: LoggedCount::default(),
            has_said_ignored: false,
        };
        let raising = BackgroundTask::start(runtime, |last| task.run(last));
        drop(entered);
        Self { notes, raising }
    }

    /// The observer of a worker.
    pub fn observer(&self) -> impl Observer + use<> {
        self.notes.clone()
    }

    /// Lets PHP raise what is left, for a few seconds at most.
    pub async fn finish(self) {
        let abnormal = "the task that tells the app's listeners ended abnormally";
        self.raising.finish(abnormal).await;
    }
}

/// What PHP is asked.
#[derive(Serialize)]
struct Raise<'a> {
    r#do: &'static str,
    attempts: &'a [Note],
}

struct Raising {
    helper: Helper,
    waiting: mpsc::Receiver<Note>,
    notes: Notes,
    missed: LoggedCount,
    threw: LoggedCount,
    has_said_ignored: bool,
}

/// A count that the log has told, and when.
#[derive(Debug, Default)]
struct LoggedCount {
    count: u64,
    at: Option<Instant>,
}

impl LoggedCount {
    /// What has come to the count since it was last told; `None` if nothing has, or it was told just now.
    fn news(&mut self, count: u64) -> Option<u64> {
        let is_due = self.at.is_none_or(|at| at.elapsed() >= SAID_AGAIN);
        let news = count - self.count;
        (is_due && news > 0).then(|| {
            *self = Self {
                count,
                at: Some(Instant::now()),
            };
            news
        })
    }
}

impl Raising {
    async fn run(mut self, last: CancellationToken) {
        let mut batch = Vec::with_capacity(BATCH);
        let mut deadline = std::pin::pin!(too_late(&last, FAREWELL));
        loop {
            let first = tokio::select! {
                biased;
                note = self.waiting.recv() => note,
                () = last.cancelled() => None,
            };
            let Some(first) = first else { break };
            self.gather(first, &mut batch);
            let request = Raise {
                r#do: "raise",
                attempts: &batch,
            };
            let answer = tokio::select! {
                answer = self.helper.ask(&request) => answer,
                () = &mut deadline => {
                    let left = batch.len() + self.waiting.len();
                    self.notes.figures.missed.inc_by(left as u64);
                    break;
                }
            };
            self.hear(&answer, batch.len());
            batch.clear();
        }
        // The last line of this worker says the rest.
        self.missed.at = None;
        self.say_missed();
        self.helper.stop().await;
    }

    /// Takes what waits, up to the size of a request.
    fn gather(&mut self, first: Note, batch: &mut Vec<Note>) {
        let mut size = first.size();
        batch.push(first);
        while batch.len() < BATCH && size < BATCH_BYTES {
            let Ok(note) = self.waiting.try_recv() else {
                break;
            };
            size += note.size();
            batch.push(note);
        }
        self.notes.bytes.fetch_sub(size, Ordering::Relaxed);
    }

    fn hear(&mut self, answer: &Answer, asked: usize) {
        let figures = &self.notes.figures;
        let asked = asked as u64;
        match answer {
            Answer::Missing { done } => {
                figures.raised.inc_by(*done);
                figures.missed.inc_by(asked.saturating_sub(*done));
            }
            Answer::Given(said) => {
                figures.raised.inc_by(asked);
                let count = |name: &str| said[name].as_u64().unwrap_or(0);
                figures.ignored.inc_by(count("ignored"));
                if count("ignored") > 0 && !std::mem::replace(&mut self.has_said_ignored, true) {
                    tracing::warn!(
                        asked = said["asked"].as_str(),
                        "a listener of the app asked something of a job that has ended in a handler: that changes nothing, and is logged once"
                    );
                }
                let threw = figures.threw.inc_by(count("threw")) + count("threw");
                if let Some(times) = self.threw.news(threw) {
                    tracing::warn!(
                        times,
                        error = said["thrown"].as_str(),
                        "listeners of the app threw; other events are raised, and the app's log has all exceptions"
                    );
                }
            }
        }
        self.say_missed();
    }

    fn say_missed(&mut self) {
        if let Some(attempts) = self.missed.news(self.notes.figures.missed.get()) {
            tracing::warn!(
                attempts,
                "listeners of the app do not hear of some attempts: PHP did not raise their events, or not soon enough"
            );
        }
    }
}
