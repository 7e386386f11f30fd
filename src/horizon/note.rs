//! What the worker's events say about jobs, on its way to the task that writes it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use tokio::sync::mpsc;

use super::options::name_of;
use crate::handler::JobInfo;
use crate::queue::{ConnectionName, PushListener, QueueName};
use crate::time::Micros;
use crate::worker::{Event, JobEnd, JobResult, Observer, exception_text};

/// Something that happened to a job.
#[derive(Debug)]
pub(super) struct Note {
    pub(super) at: Micros,
    pub(super) what: NoteKind,
}

#[derive(Debug)]
pub(super) enum NoteKind {
    Pushed(Pushed),
    /// Its reservation ran out, and it is back in its queue. The bytes are those that were reserved.
    Migrated(Box<[u8]>),
    Reserved(Arc<JobInfo>),
    Ended(Arc<JobInfo>, End),
}

/// A job that this process pushed.
#[derive(Debug)]
pub(super) struct Pushed {
    pub(super) connection: ConnectionName,
    pub(super) queue: QueueName,
    pub(super) payload: Box<[u8]>,
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
        const BESIDES: usize = 256;
        let (job, text) = match &self.what {
            NoteKind::Pushed(pushed) => return pushed.payload.len() + BESIDES,
            NoteKind::Migrated(reserved) => return reserved.len() + BESIDES,
            NoteKind::Ended(job, End::Failed { exception, .. }) => (job, exception.len()),
            NoteKind::Reserved(job) | NoteKind::Ended(job, _) => (job, 0),
        };
        // Payload, its reserved form and the command; mostly the reservation and the end of a job share them.
        3 * job.body.len() / 2 + text + BESIDES
    }
}

/// Counts of notes, for both sides of the channel.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    /// Bytes of notes that wait.
    pub(super) bytes: AtomicUsize,
    /// Notes that found no room since this was last reported.
    pub(super) dropped: AtomicU64,
    /// Whether the worker has begun.
    pub(super) has_begun: AtomicBool,
    /// Whether an operator has paused the worker.
    pub(super) is_paused: AtomicBool,
}

/// Most notes that wait to be written.
pub(super) const MOST: usize = 1 << 17;
/// Most bytes of notes that wait to be written.
const MOST_BYTES: usize = 32 << 20;

/// The observer that notes what Horizon shows.
#[derive(Debug, Clone)]
pub struct Recorder {
    pub(super) notes: mpsc::Sender<Note>,
    pub(super) backlog: Arc<Backlog>,
    /// As [`HorizonOptions::connections`](super::HorizonOptions::connections).
    pub(super) connections: Arc<[(ConnectionName, ConnectionName)]>,
}

impl Recorder {
    /// The job as Horizon knows it; `None` if it does not.
    fn known(&self, job: &Arc<JobInfo>) -> Option<Arc<JobInfo>> {
        let name = name_of(&self.connections, &job.connection)?;
        if *name == job.connection {
            return Some(Arc::clone(job));
        }
        Some(Arc::new(JobInfo {
            connection: name.clone(),
            ..JobInfo::clone(job)
        }))
    }

    fn ended(&self, job: &Arc<JobInfo>, how: End) {
        if let Some(job) = self.known(job) {
            self.note(NoteKind::Ended(job, how));
        }
    }

    fn note(&self, what: NoteKind) {
        let note = Note {
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

impl PushListener for Recorder {
    fn pushed(&self, connection: &ConnectionName, queue: &QueueName, payload: &[u8]) {
        if name_of(&self.connections, connection).is_none() {
            return;
        }
        self.note(NoteKind::Pushed(Pushed {
            connection: connection.clone(),
            queue: queue.clone(),
            payload: payload.into(),
        }));
    }

    fn migrated(&self, reserved: &[u8]) {
        self.note(NoteKind::Migrated(reserved.into()));
    }
}

impl Observer for Recorder {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::JobPopped(job) => {
                if let Some(job) = self.known(job) {
                    self.note(NoteKind::Reserved(job));
                }
            }
            Event::JobFailed(end) if !end.is_gone => {
                let text = |failure| exception_text(failure, end.job.payload.resolve_name());
                let failed = End::Failed {
                    exception: end.failure.map(text).unwrap_or_default(),
                    is_raised_by_php: end.is_raised_by_php,
                };
                self.ended(end.job, failed);
            }
            Event::JobAttempted(end) => {
                if let Some(how) = end_of(end) {
                    self.ended(end.job, how);
                }
            }
            Event::JobForwarded { job, to } => {
                self.ended(job, End::Moved(to.to_string()));
            }
            Event::JobGivenBack(job) => self.ended(job, End::Moved(job.queue.to_string())),
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
