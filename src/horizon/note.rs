//! What the worker's events say about jobs, on its way to the task that writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::micros::Micros;
use crate::handler::JobInfo;
use crate::worker::{Event, JobEnd, JobResult, Observer, exception_text};

/// Something that happened to a job.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) job: Arc<JobInfo>,
    pub(super) at: Micros,
    pub(super) what: What,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum What {
    Reserved,
    Ended(End),
}

/// How an attempt ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum End {
    Completed,
    Failed {
        /// The exception as PHP prints it.
        exception: String,
        /// Whether PHP raises the event of the failure, so that Horizon's own listener writes it, and better.
        is_raised_by_php: bool,
    },
    /// With the wait until the next attempt, in seconds.
    Released(u64),
    /// It moved to this queue.
    Moved(String),
}

impl Note {
    /// Memory that the note keeps, roughly.
    pub(super) fn size(&self) -> usize {
        const BESIDES: usize = 512;
        let text = match &self.what {
            What::Ended(End::Failed { exception, .. }) => exception.len(),
            _ => 0,
        };
        // Payload, its reserved form and the command.
        3 * self.job.body.len() + text + BESIDES
    }
}

/// Counts of notes, for both sides of the channel.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Bytes of notes that wait.
    pub(super) bytes: AtomicUsize,
    /// Notes that found no room since this was last reported.
    pub(super) dropped: AtomicU64,
    /// Whether an operator has paused the worker.
    pub(super) is_paused: AtomicBool,
}

/// Most notes that wait to be written.
pub(super) const MOST: usize = 1 << 15;
/// Most bytes of notes that wait to be written.
const MOST_BYTES: usize = 64 << 20;

/// The observer that notes what Horizon shows.
#[derive(Debug)]
pub struct Recorder {
    pub(super) notes: mpsc::Sender<Note>,
    pub(super) backlog: Arc<Backlog>,
}

impl Recorder {
    fn note(&self, job: &Arc<JobInfo>, what: What) {
        let note = Note {
            job: Arc::clone(job),
            at: Micros::now(),
            what,
        };
        let size = note.size();
        // Without room the note is lost, and no job waits.
        let before = self.backlog.bytes.fetch_add(size, Ordering::Relaxed);
        if before > MOST_BYTES || self.notes.try_send(note).is_err() {
            self.backlog.bytes.fetch_sub(size, Ordering::Relaxed);
            self.backlog.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What the end of an attempt means for its record; `None` if it changes nothing there.
fn end_of(end: &JobEnd<'_>) -> Option<End> {
    match end.result {
        // Another worker has the job: its record is that worker's.
        _ if end.is_gone => None,
        JobResult::Deleted if end.has_failed => None,
        JobResult::Deleted => Some(End::Completed),
        JobResult::Released => Some(End::Released(end.delay.unwrap_or_default().as_secs())),
        JobResult::Left => None,
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::JobPopped(job) => self.note(job, What::Reserved),
            Event::JobFailed(end) if !end.is_gone => {
                let text = |failure| exception_text(failure, end.job.payload.resolve_name());
                let failed = End::Failed {
                    exception: end.failure.map(text).unwrap_or_default(),
                    is_raised_by_php: end.is_raised_by_php,
                };
                self.note(end.job, What::Ended(failed));
            }
            Event::JobAttempted(end) => {
                if let Some(how) = end_of(end) {
                    self.note(end.job, What::Ended(how));
                }
            }
            Event::JobForwarded { job, to } => {
                self.note(job, What::Ended(End::Moved(to.to_string())));
            }
            Event::WorkerPausing => self.backlog.is_paused.store(true, Ordering::Relaxed),
            Event::WorkerResuming => self.backlog.is_paused.store(false, Ordering::Relaxed),
            _ => {}
        }
    }

    /// Records do not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }
}
