//! The observer that counts what Pulse shows.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::gather::{Gathered, Happened};
use super::options::PulseOptions;
use crate::payload::{JobUuid, Payload, write_json_text};
use crate::queue::{ConnectionName, PushListener, QueueName};
use crate::routing::Runner;
use crate::worker::{Event, JobEnd, Observer};

/// Most names whose settings are remembered.
const MOST_NAMES: usize = 1000;

/// Counts what Pulse shows of jobs. Cheap to clone.
#[derive(Debug, Clone)]
pub struct PulseRecorder(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PulseOptions,
    connection: ConnectionName,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    gathered: Gathered,
    /// What the settings say of jobs of this name.
    names: HashMap<Box<str>, NameSettings>,
}

/// What the settings say of jobs of one name.
#[derive(Debug, Clone, Copy)]
struct NameSettings {
    /// Whether their events are counted.
    queues: bool,
    /// From how many milliseconds they are slow.
    slow: Option<u64>,
}

/// A moment in unix seconds.
fn unix_seconds(moment: Instant) -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    (now.unwrap_or_default().saturating_sub(moment.elapsed())).as_secs()
}

impl PulseRecorder {
    /// Counts jobs of this connection.
    pub fn new(options: PulseOptions, connection: ConnectionName) -> Self {
        Self(Arc::new(Inner {
            options,
            connection,
            state: Mutex::default(),
        }))
    }

    /// Takes what was counted since the last time.
    pub fn take(&self) -> Gathered {
        std::mem::take(&mut self.state().gathered)
    }

    /// Takes entries back that could not be written.
    pub(super) fn take_back(&self, gathered: Gathered, now: u64) {
        self.state().gathered.add_again(gathered, now);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Every change leaves the counts as they are or one further.
        (self.0.state.lock()).unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether entries of this name are wanted.
    fn wanted(&self, state: &mut State, name: &str) -> NameSettings {
        if let Some(wanted) = state.names.get(name) {
            return *wanted;
        }
        let options = &self.0.options;
        let queues = options.queues.as_ref();
        let slow = options.slow_jobs.as_ref();
        let slow = slow.filter(|slow| slow.recorder.wants(name));
        let wanted = NameSettings {
            queues: queues.is_some_and(|queues| queues.wants(name)),
            slow: slow.map(|slow| slow.limit(name)),
        };
        if state.names.len() >= MOST_NAMES {
            state.names.clear();
        }
        state.names.insert(name.into(), wanted);
        wanted
    }

    /// Counts what happened to a job of this connection, if its like is counted.
    pub fn count(
        &self,
        payload: &Payload,
        queue: &QueueName,
        happened: Happened,
        timestamp: impl FnOnce() -> u64,
    ) {
        self.count_on(&self.0.connection, payload, queue, happened, timestamp);
    }

    fn count_on(
        &self,
        connection: &ConnectionName,
        payload: &Payload,
        queue: &QueueName,
        happened: Happened,
        timestamp: impl FnOnce() -> u64,
    ) {
        let mut state = self.state();
        let wanted = self.wanted(&mut state, payload.resolve_name());
        let is_sampled = wanted.queues
            && self.0.options.queues.as_ref().is_some_and(|queues| {
                let uuid = payload.uuid.as_ref().map_or("", JobUuid::as_str);
                queues.samples_job(uuid)
            });
        if is_sampled {
            let gathered = &mut state.gathered;
            gathered.count(connection, queue, timestamp(), happened);
        }
    }

    fn happened(&self, end: &JobEnd<'_>, happened: Happened) {
        let job = end.job;
        self.count(&job.payload, &job.queue, happened, || {
            unix_seconds(end.ended)
        });
    }

    fn took(&self, end: &JobEnd<'_>) {
        let name = end.job.payload.resolve_name();
        self.add_if_slow(name, end.elapsed, || unix_seconds(end.ended));
    }

    /// Adds an attempt, if it took long for a job of this name.
    pub fn add_if_slow(&self, name: &str, elapsed: Duration, timestamp: impl FnOnce() -> u64) {
        let mut state = self.state();
        let Some(limit) = self.wanted(&mut state, name).slow else {
            return;
        };
        let took = u64::try_from(elapsed.as_millis()).unwrap_or(u64::MAX);
        let slow = self.0.options.slow_jobs.as_ref();
        if took >= limit && slow.is_some_and(|slow| slow.recorder.samples()) {
            let gathered = &mut state.gathered;
            gathered.add("slow_job", name, timestamp(), took);
        }
    }

    /// Adds an exception of this class that a job threw.
    pub fn add_exception(&self, class: &str, job: &str, timestamp: impl FnOnce() -> u64) {
        let Some(recorder) = &self.0.options.exceptions else {
            return;
        };
        if !recorder.wants(class) || !recorder.samples() {
            return;
        }
        let at = timestamp();
        let key = exception_key(class, self.0.options.has_location.then_some(job));
        self.state().gathered.add("exception", &key, at, at);
    }
}

/// Class and place of an exception as PHP writes JSON: the card reads it, and breaks over anything else.
///
/// An error in Rust has no file and line; its place is the name of the job.
fn exception_key(class: &str, place: Option<&str>) -> String {
    let mut key = String::from("[");
    write_json_text(&mut key, class);
    key.push(',');
    match place {
        Some(place) => write_json_text(&mut key, place),
        None => key.push_str("null"),
    }
    key.push(']');
    key
}

impl PushListener for PulseRecorder {
    fn pushed(&self, connection: &ConnectionName, queue: &QueueName, payload: &[u8]) {
        if self.0.options.queues.is_none() {
            return;
        }
        if let Ok(payload) = Payload::parse(payload) {
            let now = || unix_seconds(Instant::now());
            self.count_on(connection, &payload, queue, Happened::Queued, now);
        }
    }
}

impl Observer for PulseRecorder {
    fn on_event(&self, event: &Event<'_>) {
        match event {
            // Laravel reports what a job throws, and Pulse hears it; nothing reports it where a handler runs the job.
            Event::JobExceptionOccurred(thrown) if thrown.runner != Runner::Php => {
                let name = thrown.job.payload.resolve_name();
                let now = || unix_seconds(Instant::now());
                self.add_exception(&thrown.failure.class, name, now);
            }
            Event::JobProcessed(end) if is_here(end) => {
                self.happened(end, Happened::Processed);
                if !end.has_failed {
                    self.took(end);
                }
            }
            Event::JobReleasedAfterException(end) if is_here(end) => {
                self.happened(end, Happened::Released);
                self.took(end);
            }
            Event::JobFailed(end) if end.runner != Runner::Php => {
                if !end.is_failure_heard_by_php {
                    self.happened(end, Happened::Failed);
                }
                if !end.is_heard_by_php {
                    self.took(end);
                }
            }
            // What it threw is no end for Pulse, and PHP raises `JobFailed` in a process that has not begun the job. A
            // job that has failed by itself was processed, and Pulse has heard that.
            Event::JobAttempted(end)
                if end.is_heard_by_php && end.has_failed && end.failure.is_some() =>
            {
                self.took(end);
            }
            // In PHP, too, what has begun is written once it is over.
            Event::JobAttempted(end) if is_here(end) => {
                let began = || unix_seconds(end.ended).saturating_sub(end.elapsed.as_secs());
                let job = end.job;
                self.count(&job.payload, &job.queue, Happened::Processing, began);
            }
            _ => {}
        }
    }

    /// Counts do not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }
}

/// Whether Pulse's recorders in PHP hear nothing of the attempt.
fn is_here(end: &JobEnd<'_>) -> bool {
    end.runner != Runner::Php && !end.is_heard_by_php
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection::{DatabaseKind, DatabaseOptions};
    use crate::handler::{FailureText, JobInfo};
    use crate::pulse::options::{RecorderOptions, SlowJobs};
    use crate::worker::{JobException, JobResult};

    fn recorder() -> PulseRecorder {
        let options = PulseOptions {
            database: DatabaseOptions::new("app", DatabaseKind::Sqlite),
            queues: Some(RecorderOptions::default()),
            slow_jobs: Some(SlowJobs {
                recorder: RecorderOptions::default(),
                limits: Vec::new(),
                otherwise: 1000,
                is_order_lost: false,
            }),
            exceptions: Some(RecorderOptions::default()),
            has_location: true,
            doubts: Vec::new(),
        };
        PulseRecorder::new(options, "redis".into())
    }

    fn job() -> Arc<JobInfo> {
        let body = br#"{"uuid":"u","displayName":"App\\Jobs\\A","job":"A@b","attempts":0}"#;
        Arc::new(JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Arc::new(Payload::parse(body).unwrap()),
            body: body[..].into(),
            reserved: Arc::default(),
            trace: None,
        })
    }

    /// What is told of an attempt of two seconds.
    fn end(job: &Arc<JobInfo>, runner: Runner) -> JobEnd<'_> {
        JobEnd {
            job,
            elapsed: Duration::from_secs(2),
            ended: Instant::now(),
            result: JobResult::Deleted,
            failure: None,
            delay: None,
            is_counted: true,
            has_failed: false,
            is_gone: false,
            is_raised_by_php: false,
            is_heard_by_php: false,
            is_failure_heard_by_php: false,
            runner,
        }
    }

    /// What was counted: queued, processing, processed, released, failed; and how many were slow, and threw.
    fn counted(recorder: &PulseRecorder) -> ([u64; 5], [u64; 2]) {
        let gathered = recorder.take();
        let mut counts = [0; 5];
        for of_minute in gathered.queues.values() {
            for (sum, count) in counts.iter_mut().zip(of_minute) {
                *sum += count;
            }
        }
        let valued = ["slow_job", "exception"].map(|kind| {
            let of_kind = gathered
                .greatest
                .iter()
                .filter(|((found, ..), _)| *found == kind);
            of_kind.map(|(_, sums)| sums.count).sum()
        });
        (counts, valued)
    }

    #[test]
    fn an_attempt_is_counted_as_pulse_counts_laravels_events() {
        let (recorder, job) = (recorder(), job());
        let failure = FailureText::new("E", "no");
        let told = |runner, has_failed, names: &[&str]| {
            let end = JobEnd {
                has_failed,
                ..end(&job, runner)
            };
            let thrown = JobException {
                job: &job,
                elapsed: end.elapsed,
                failure: &failure,
                runner,
            };
            for name in names {
                recorder.on_event(&match *name {
                    "processed" => Event::JobProcessed(&end),
                    "released" => Event::JobReleasedAfterException(&end),
                    "failed" => Event::JobFailed(&end),
                    "threw" => Event::JobExceptionOccurred(&thrown),
                    "timed out" => Event::JobTimedOut(&end),
                    other => panic!("{other}"),
                });
            }
            recorder.on_event(&Event::JobAttempted(&end));
            counted(&recorder)
        };
        #[rustfmt::skip]
        let rows: [(&[&str], _, _); 6] = [
            (&["processed"],           [0, 1, 1, 0, 0], [1, 0]),
            (&["threw", "released"],   [0, 1, 0, 1, 0], [1, 1]),
            (&["failed", "threw"],     [0, 1, 0, 0, 1], [1, 1]),
            (&["failed", "processed"], [0, 1, 1, 0, 1], [1, 0]),
            (&["timed out"],           [0, 1, 0, 0, 0], [0, 0]),
            (&["threw"],               [0, 1, 0, 0, 0], [0, 1]),
        ];
        for (names, counts, valued) in rows {
            let has_failed = names.contains(&"failed");
            for runner in [Runner::Rust, Runner::Exec, Runner::None] {
                assert_eq!(
                    told(runner, has_failed, names),
                    (counts, valued),
                    "{names:?} {runner:?}"
                );
            }
            assert_eq!(
                told(Runner::Php, has_failed, names),
                ([0; 5], [0; 2]),
                "{names:?}"
            );
        }
    }

    #[test]
    fn what_pulse_hears_in_php_is_not_counted_here_as_well() {
        let (recorder, job) = (recorder(), job());
        let closure = JobEnd {
            has_failed: true,
            is_failure_heard_by_php: true,
            ..end(&job, Runner::Rust)
        };
        recorder.on_event(&Event::JobFailed(&closure));
        recorder.on_event(&Event::JobAttempted(&closure));
        assert_eq!(counted(&recorder), ([0, 1, 0, 0, 0], [1, 0]));
        let all = JobEnd {
            is_heard_by_php: true,
            ..end(&job, Runner::Rust)
        };
        recorder.on_event(&Event::JobProcessed(&all));
        recorder.on_event(&Event::JobReleasedAfterException(&all));
        recorder.on_event(&Event::JobAttempted(&all));
        assert_eq!(counted(&recorder), ([0; 5], [0; 2]));
        let by_itself = JobEnd {
            has_failed: true,
            is_failure_heard_by_php: true,
            ..all
        };
        recorder.on_event(&Event::JobFailed(&by_itself));
        recorder.on_event(&Event::JobProcessed(&by_itself));
        recorder.on_event(&Event::JobAttempted(&by_itself));
        assert_eq!(counted(&recorder), ([0; 5], [0; 2]));
        let failure = FailureText {
            class: "E".into(),
            message: "disk full".into(),
            chain: Vec::new(),
        };
        let thrown = JobEnd {
            failure: Some(&failure),
            ..by_itself
        };
        recorder.on_event(&Event::JobFailed(&thrown));
        recorder.on_event(&Event::JobAttempted(&thrown));
        assert_eq!(counted(&recorder), ([0; 5], [1, 0]));
    }

    #[test]
    fn jobs_that_this_worker_pushes_are_queued_on_their_own_connections() {
        let recorder = recorder();
        let payload = &job().body;
        recorder.pushed(&"redis".into(), &"other".into(), payload);
        recorder.pushed(&"elsewhere".into(), &"other".into(), payload);
        recorder.pushed(&"redis".into(), &"other".into(), b"no payload");
        let gathered = recorder.take();
        let mut names: Vec<_> = (gathered.queues.into_iter())
            .map(|((connection, ..), counts)| (connection, counts))
            .collect();
        names.sort();
        let counts = [1, 0, 0, 0, 0];
        let expected = [("elsewhere".into(), counts), ("redis".into(), counts)];
        assert_eq!(names, expected);
    }

    #[test]
    fn the_key_of_an_exception_is_what_json_encode_makes_of_it() {
        let key = exception_key("A\\Größe", Some("a/b"));
        assert_eq!(key, r#"["A\\Gr\u00f6\u00dfe","a\/b"]"#);
        assert_eq!(exception_key("E", None), r#"["E",null]"#);
    }
}
