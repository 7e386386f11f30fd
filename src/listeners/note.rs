//! What listeners are to hear of an attempt, gathered from the worker's events.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tokio::sync::mpsc;

use super::figures::ListenerFigures;
use crate::handler::{FailureText, JobInfo};
use crate::worker::{Event, JobEnd, JobResult, Observer};

/// Most attempts that wait.
pub(super) const MOST: usize = 1 << 14;
/// Most bytes of attempts that wait.
const MOST_BYTES: usize = 32 << 20;

/// An attempt that is over, with its events in order.
#[derive(Debug)]
pub(super) struct Note {
    job: Arc<JobInfo>,
    events: Vec<(&'static str, f64)>,
    state: &'static str,
    error: Option<FailureText>,
    /// Seconds until the next attempt.
    delay: Option<u64>,
}

/// What PHP gets of it.
#[derive(Serialize)]
struct NoteForPhp<'a> {
    connection: &'a str,
    queue: &'a str,
    attempts: u32,
    body: &'a str,
    state: &'a str,
    error: Option<[&'a str; 2]>,
    delay: Option<u64>,
    timeout: Option<u64>,
    /// Names, and times in unix seconds.
    events: &'a [(&'static str, f64)],
}

impl Note {
    /// Memory that it keeps, roughly.
    pub(super) fn size(&self) -> usize {
        const BESIDES: usize = 512;
        let error = self.error.as_ref().map_or(0, |error| error.message.len());
        // Payload, its reserved form and the command.
        3 * self.job.body.len() + error + BESIDES
    }
}

impl Serialize for Note {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let told = NoteForPhp {
            connection: self.job.connection.as_str(),
            queue: self.job.queue.as_str(),
            attempts: self.job.attempts,
            body: &String::from_utf8_lossy(&self.job.body),
            state: self.state,
            error: (self.error.as_ref()).map(|error| [&*error.class, &*error.message]),
            delay: self.delay,
            timeout: self.job.payload.limits.timeout.map(|limit| limit.as_secs()),
            events: &self.events,
        };
        told.serialize(serializer)
    }
}

/// The observer that notes what listeners are to hear.
#[derive(Debug, Clone)]
pub(super) struct Notes {
    pub(super) sender: mpsc::Sender<Note>,
    /// Bytes of notes that wait.
    pub(super) bytes: Arc<AtomicUsize>,
    /// Events of running jobs, by the address of their facts, which stay where they are as long as they are here.
    running: Arc<Mutex<HashMap<usize, Running>>>,
    pub(super) figures: ListenerFigures,
}

#[derive(Debug)]
struct Running {
    job: Arc<JobInfo>,
    events: Vec<(&'static str, f64)>,
}

/// A moment in unix seconds.
fn unix_seconds(moment: Instant) -> f64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    now.unwrap_or_default().as_secs_f64() - moment.elapsed().as_secs_f64()
}

impl Notes {
    pub(super) fn new(sender: mpsc::Sender<Note>, figures: ListenerFigures) -> Self {
        Self {
            sender,
            bytes: Arc::default(),
            running: Arc::default(),
            figures,
        }
    }

    fn happened(&self, job: &Arc<JobInfo>, event: &'static str, at: Instant) {
        let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(running) = running.get_mut(&Arc::as_ptr(job).addr()) {
            // The exception of a job that is to be tried again is told before its end is settled.
            let last = running.events.last().map_or(0.0, |(_, at)| *at);
            running.events.push((event, unix_seconds(at).max(last)));
        }
    }

    fn begun(&self, job: &Arc<JobInfo>, at: Instant) {
        let at = unix_seconds(at);
        let running = Running {
            job: Arc::clone(job),
            events: vec![("JobPopped", at), ("JobProcessing", at)],
        };
        let mut all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(Arc::as_ptr(job).addr(), running);
    }

    /// Sends what happened in an attempt on its way, if the app is to hear of it.
    fn ended(&self, end: &JobEnd<'_>) {
        self.happened(end.job, "JobAttempted", end.ended);
        let mut all = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(Running { job, events }) = all.remove(&Arc::as_ptr(end.job).addr()) else {
            return;
        };
        drop(all);
        if !end.is_heard_by_php {
            return;
        }
        let note = Note {
            job,
            events,
            state: match end.result {
                _ if end.has_failed => "failed",
                JobResult::Deleted => "deleted",
                JobResult::Released => "released",
                JobResult::Left => "",
            },
            error: end.failure.cloned(),
            delay: end.delay.map(|delay| delay.as_secs()),
        };
        let size = note.size();
        let before = self.bytes.fetch_add(size, Ordering::Relaxed);
        // Without room the note is lost, and no job waits.
        if before > MOST_BYTES || self.sender.try_send(note).is_err() {
            self.bytes.fetch_sub(size, Ordering::Relaxed);
            self.figures.missed.inc();
        }
    }
}

impl Observer for Notes {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            Event::JobProcessing { job, began } => self.begun(job, *began),
            Event::JobExceptionOccurred(thrown) => {
                self.happened(thrown.job, event.name(), Instant::now());
            }
            Event::JobProcessed(end)
            | Event::JobReleased(end)
            | Event::JobReleasedAfterException(end)
            | Event::JobTimedOut(end) => self.happened(end.job, event.name(), end.ended),
            Event::JobAttempted(end) => self.ended(end),
            _ => {}
        }
    }

    /// What listeners hear does not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::payload::Payload;
    use crate::routing::Runner;

    fn job(size: usize) -> Arc<JobInfo> {
        let body = format!(
            r#"{{"job":"A@b","data":"{}","attempts":0}}"#,
            "x".repeat(size)
        );
        Arc::new(JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Arc::new(Payload::parse(body.as_bytes()).unwrap()),
            body: body.as_bytes().into(),
            reserved: Arc::default(),
            trace: None,
        })
    }

    fn run(notes: &Notes, job: &Arc<JobInfo>, is_heard_by_php: bool) {
        let began = Instant::now();
        notes.on_event(&Event::JobProcessing { job, began });
        let end = JobEnd {
            job,
            elapsed: Duration::ZERO,
            ended: began,
            result: JobResult::Deleted,
            failure: None,
            delay: None,
            is_counted: true,
            has_failed: false,
            is_gone: false,
            is_raised_by_php: false,
            is_heard_by_php,
            is_failure_heard_by_php: false,
            runner: Runner::Rust,
        };
        notes.on_event(&Event::JobProcessed(&end));
        notes.on_event(&Event::JobAttempted(&end));
    }

    #[test]
    fn an_attempt_is_noted_once_it_is_over_and_only_if_the_app_is_to_hear_of_it() {
        let (sender, mut waiting) = mpsc::channel(2);
        let notes = Notes::new(sender, ListenerFigures::default());
        run(&notes, &job(1), false);
        run(&notes, &job(1), true);
        let note = serde_json::to_value(waiting.try_recv().unwrap()).unwrap();
        let names: Vec<_> = (note["events"].as_array().unwrap().iter())
            .map(|event| event[0].as_str().unwrap())
            .collect();
        assert_eq!(
            names,
            ["JobPopped", "JobProcessing", "JobProcessed", "JobAttempted"]
        );
        assert_eq!(note["state"], "deleted");
        assert!(waiting.try_recv().is_err());
        assert!(notes.running.lock().unwrap().is_empty());
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let (sender, waiting) = mpsc::channel(3);
        let notes = Notes::new(sender, ListenerFigures::default());
        for _ in 0..5 {
            run(&notes, &job(1), true);
        }
        assert_eq!((waiting.len(), notes.figures.missed.get()), (3, 2));
        let (sender, waiting) = mpsc::channel(1000);
        let notes = Notes::new(sender, ListenerFigures::default());
        for _ in 0..100 {
            run(&notes, &job(MOST_BYTES / 50), true);
        }
        assert!(waiting.len() < 100 && notes.bytes.load(Ordering::Relaxed) < 2 * MOST_BYTES);
        assert_eq!(waiting.len() as u64 + notes.figures.missed.get(), 100);
    }
}
