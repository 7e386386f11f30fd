//! What happens in a worker, under Laravel's names.
//!
//! Events of one job come in Laravel's order:
//!
//! | what happened | events after `JobPopping`, `JobPopped`, `JobProcessing` |
//! | --- | --- |
//! | done, deleted by itself, or deleted because a model is gone | `JobProcessed`, `JobAttempted` |
//! | released by itself | `JobProcessed`, `JobReleased`, `JobAttempted` |
//! | failed by itself | `JobFailed`, `JobProcessed`, `JobAttempted` |
//! | threw, to be tried again | `JobExceptionOccurred`, `JobReleasedAfterException`, `JobAttempted` |
//! | threw after it had released or deleted itself | `JobExceptionOccurred`, `JobAttempted` |
//! | threw for the last time, or failed because a model is gone | `JobFailed`, `JobExceptionOccurred`, `JobAttempted` |
//! | timed out, to be tried again | `JobTimedOut`, `JobAttempted` |
//! | timed out for the last time | `JobFailed`, `JobTimedOut`, `JobAttempted` |
//!
//! Where this differs from PHP: a timeout ends the job and not the process, so `JobAttempted` also follows
//! `JobTimedOut`, and `WorkerStopping` does not. An event is sent once it is true of the queue too, except
//! `JobExceptionOccurred` of a job that will be tried again. A handler's `failed` hook runs after `JobFailed`,
//! because the failure is written down first. One `JobPopping` may bring several jobs. All events exist with every
//! Laravel version.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::handler::{FailureText, JobInfo, panic_text};
use crate::payload::Trace;
use crate::queue::{ConnectionName, QueueName};
use crate::routing::Runner;
use crate::worker::options::WorkerOptions;
use crate::worker::stats::{CanaryStop, MappingCounts};
use crate::worker::stop::StopReason;

/// Receives events. Called on the worker's own tasks: return quickly and never block.
///
/// A closure that takes an event is an observer. If an observer panics, the panic is reported once, and the
/// observer still gets later events.
pub trait Observer: Send + Sync + 'static {
    /// Called once for each event, in order per job.
    fn on_event(&self, event: &Event<'_>);

    /// Whether a worker with one slot has to report the end of a job before it looks for the next one, as Laravel's
    /// worker does.
    ///
    /// If no observer needs that, the next pop is sent right behind the settlement of the last job: one round trip
    /// per job instead of two.
    fn is_in_order(&self) -> bool {
        true
    }

    /// Begins the span of an attempt. Asked once for each job that runs here and not in PHP, before its first event.
    ///
    /// Jobs that this one pushes carry the span, and events of the attempt have it in their facts. The first observer
    /// with an answer is the one that counts.
    fn trace(&self, job: &JobInfo) -> Option<Arc<Trace>> {
        let _ = job;
        None
    }
}

impl<F: Fn(&Event<'_>) + Send + Sync + 'static> Observer for F {
    fn on_event(&self, event: &Event<'_>) {
        self(event);
    }
}

impl Observer for Arc<dyn Observer> {
    fn on_event(&self, event: &Event<'_>) {
        (**self).on_event(event);
    }

    fn is_in_order(&self) -> bool {
        (**self).is_in_order()
    }

    fn trace(&self, job: &JobInfo) -> Option<Arc<Trace>> {
        (**self).trace(job)
    }
}

/// Something that happened.
#[derive(Debug, Clone, Copy)]
#[non_exhaustive]
pub enum Event<'a> {
    /// A PHP process ended while it ran a job, which stays reserved.
    JobLost(&'a JobEnd<'a>),
    /// Counts of a mapping that does not run all of its jobs: sent from time to time, and when the worker stops.
    Tallied(&'a MappingCounts),
    /// Too many runs of a canary failed: its jobs are treated as unmapped until the canary is resumed.
    CanaryStopped(&'a CanaryStop),
    /// `artisand canary:resume` was called: the canary of this target runs jobs again.
    CanaryResumed(&'a str),
    /// The worker begins; not with `--once`.
    WorkerStarting(&'a WorkerOptions),
    /// The worker is about to look at its queues, and an observer may veto it; not with `--once`.
    Looping(&'a Looping<'a>),
    /// Jobs are about to be popped.
    JobPopping {
        /// The connection.
        connection: &'a ConnectionName,
        /// The queues that are not paused, in order.
        queues: &'a [QueueName],
    },
    /// A job was popped, and this worker is responsible for it.
    JobPopped(&'a Arc<JobInfo>),
    /// An attempt has begun.
    JobProcessing {
        /// The job.
        job: &'a Arc<JobInfo>,
        /// When; a PHP process says later that it has.
        began: Instant,
    },
    /// An attempt ended without an exception and was settled.
    JobProcessed(&'a JobEnd<'a>),
    /// The handler asked for the job to run again; the job waits.
    JobReleased(&'a JobEnd<'a>),
    /// An attempt threw, or panicked. If the job is to be tried again, it is not released yet.
    JobExceptionOccurred(&'a JobException<'a>),
    /// An attempt threw, or panicked, and the job will be tried again.
    JobReleasedAfterException(&'a JobEnd<'a>),
    /// The job failed for good; its row of `failed_jobs` may come a moment later.
    JobFailed(&'a JobEnd<'a>),
    /// An attempt ran longer than its timeout: the job has failed, or stays reserved until it may be tried again.
    JobTimedOut(&'a JobEnd<'a>),
    /// An attempt is over, however it ended: once for each `JobProcessing`. Its failure is the exception, if there
    /// was one.
    JobAttempted(&'a JobEnd<'a>),
    /// A running job is no longer reserved for this worker, so that another one may run it, too.
    ReservationLost(&'a QueueName),
    /// Reservations of running jobs were renewed.
    ReservationsRenewed {
        /// Their queue.
        queue: &'a QueueName,
        /// How many.
        count: usize,
    },
    /// Payloads that cannot be decoded went to quarantine.
    JobsQuarantined {
        /// Queue they came from.
        queue: &'a QueueName,
        /// How many.
        count: usize,
    },
    /// A database, a cache or a queue refused what an ended job has left to do: to record a failed job, to count jobs
    /// in a batch, and so on. It is tried again until it is done, and each try that is refused sends the event.
    StoreFailed(&'static str),
    /// A job went to another queue, unchanged.
    JobForwarded {
        /// The job.
        job: &'a Arc<JobInfo>,
        /// Where to.
        to: &'a QueueName,
    },
    /// A job went back to its queue as it was: PHP did not begin it.
    JobGivenBack(&'a Arc<JobInfo>),
    /// The worker pops no more jobs until it is resumed.
    WorkerPausing,
    /// The worker pops jobs again.
    WorkerResuming,
    /// The app paused a queue.
    WorkerQueuePaused(&'a QueueName),
    /// The app resumed a queue.
    WorkerQueueResumed(&'a QueueName),
    /// The app went down for maintenance (true) or came up again.
    MaintenanceMode(bool),
    /// The worker stops: all jobs have ended and are settled; not with `--once`.
    WorkerStopping {
        /// Why; it determines the exit code.
        reason: StopReason,
        /// Attempts begun since the start.
        jobs_processed: u64,
        /// The worker's options.
        options: &'a WorkerOptions,
    },
}

impl Event<'_> {
    /// Laravel's name of the event; artisand's own where Laravel has none.
    pub fn name(&self) -> &'static str {
        match self {
            Self::WorkerStarting(_) => "WorkerStarting",
            Self::Looping(_) => "Looping",
            Self::JobPopping { .. } => "JobPopping",
            Self::JobPopped(_) => "JobPopped",
            Self::JobProcessing { .. } => "JobProcessing",
            Self::JobProcessed(_) => "JobProcessed",
            Self::JobReleased(_) => "JobReleased",
            Self::JobExceptionOccurred(_) => "JobExceptionOccurred",
            Self::JobReleasedAfterException(_) => "JobReleasedAfterException",
            Self::JobFailed(_) => "JobFailed",
            Self::JobTimedOut(_) => "JobTimedOut",
            Self::JobLost(_) => "JobLost",
            Self::JobAttempted(_) => "JobAttempted",
            Self::Tallied(_) => "Tallied",
            Self::CanaryStopped(_) => "CanaryStopped",
            Self::CanaryResumed(_) => "CanaryResumed",
            Self::ReservationLost(_) => "ReservationLost",
            Self::ReservationsRenewed { .. } => "ReservationsRenewed",
            Self::JobsQuarantined { .. } => "JobsQuarantined",
            Self::StoreFailed(_) => "StoreFailed",
            Self::JobForwarded { .. } => "JobForwarded",
            Self::JobGivenBack(_) => "JobGivenBack",
            Self::WorkerPausing => "WorkerPausing",
            Self::WorkerResuming => "WorkerResuming",
            Self::WorkerQueuePaused(_) => "WorkerQueuePaused",
            Self::WorkerQueueResumed(_) => "WorkerQueueResumed",
            Self::MaintenanceMode(_) => "MaintenanceMode",
            Self::WorkerStopping { .. } => "WorkerStopping",
        }
    }
}

/// The worker is about to look at its queues.
#[derive(Debug)]
pub struct Looping<'a> {
    /// The worker's options: connection, queues and the rest.
    pub options: &'a WorkerOptions,
    vetoed: AtomicBool,
}

impl<'a> Looping<'a> {
    pub(super) fn new(options: &'a WorkerOptions) -> Self {
        Self {
            options,
            vetoed: AtomicBool::new(false),
        }
    }

    /// Keeps the worker from looking at its queues this time, like a PHP listener that returns false.
    ///
    /// The worker sends the event again after `--sleep`, or after a second if that is 0. Until then its queues
    /// count as empty.
    pub fn veto(&self) {
        self.vetoed.store(true, Ordering::Relaxed);
    }

    pub(super) fn is_vetoed(&self) -> bool {
        self.vetoed.load(Ordering::Relaxed)
    }
}

/// How an attempt ended.
#[derive(Debug, Clone)]
#[non_exhaustive]
#[expect(clippy::struct_excessive_bools, reason = "none follows from another")]
pub struct JobEnd<'a> {
    /// The job.
    pub job: &'a Arc<JobInfo>,
    /// How long the handler ran.
    pub elapsed: Duration,
    /// When it ended, which is before its job was settled and the event sent.
    pub ended: Instant,
    /// What was done with the job.
    pub result: JobResult,
    /// The error, panic or timeout, or the reason why the job failed, if there was one.
    pub failure: Option<&'a FailureText>,
    /// Wait until the next attempt, if the job was released.
    pub delay: Option<Duration>,
    /// Whether the attempt counts: if a job goes back as if it had not been taken, the next attempt has this one's
    /// number.
    pub is_counted: bool,
    /// Whether the job failed for good.
    pub has_failed: bool,
    /// Whether the job was no longer reserved for this worker when its end was written: another worker has it, or the
    /// queue was cleared.
    pub is_gone: bool,
    /// Whether a PHP process raises Laravel's `JobFailed` for this failure.
    pub is_raised_by_php: bool,
    /// Whether the app's own listeners hear of this attempt, because PHP raises all events.
    pub is_heard_by_php: bool,
    /// Whether they hear that the job failed, because PHP raises `JobFailed` in a closure.
    pub is_failure_heard_by_php: bool,
    /// What ran the job.
    pub runner: Runner,
}

/// What an attempt threw.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct JobException<'a> {
    /// The job.
    pub job: &'a Arc<JobInfo>,
    /// How long the handler ran.
    pub elapsed: Duration,
    /// The error or panic.
    pub failure: &'a FailureText,
    /// What ran the job.
    pub runner: Runner,
}

/// What was done with a job at the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum JobResult {
    /// The job is gone from the queue.
    Deleted,
    /// The job waits for another attempt.
    Released,
    /// The job stays reserved until another attempt may start.
    Left,
}

/// All observers. A panic of an observer does not end anything else.
#[derive(Clone, Default)]
pub(super) struct Observers(Arc<[Listening]>);

struct Listening {
    observer: Arc<dyn Observer>,
    /// Whether its panic was already reported.
    is_reported: AtomicBool,
}

impl FromIterator<Arc<dyn Observer>> for Observers {
    fn from_iter<I: IntoIterator<Item = Arc<dyn Observer>>>(observers: I) -> Self {
        let listening = observers.into_iter().map(|observer| Listening {
            observer,
            is_reported: AtomicBool::new(false),
        });
        Self(listening.collect())
    }
}

impl Observers {
    /// Whether any of them wants the events of one job before the next pop.
    pub(super) fn are_in_order(&self) -> bool {
        self.0
            .iter()
            .any(|listening| listening.observer.is_in_order())
    }

    /// Sends an event to all observers.
    pub(super) fn emit(&self, event: &Event<'_>) {
        for listening in &*self.0 {
            listening.ask(event.name(), |observer| observer.on_event(event));
        }
    }

    /// Begins the span of an attempt, if an observer traces jobs.
    pub(super) fn trace(&self, job: &JobInfo) -> Option<Arc<Trace>> {
        let ask = |listening: &Listening| listening.ask("trace", |observer| observer.trace(job));
        self.0.iter().find_map(|listening| ask(listening).flatten())
    }
}

impl Listening {
    /// Asks the observer something; `None` if it panicked.
    fn ask<T>(&self, what: &'static str, ask: impl FnOnce(&dyn Observer) -> T) -> Option<T> {
        let asked = AssertUnwindSafe(|| ask(&*self.observer));
        let panic = match std::panic::catch_unwind(asked) {
            Ok(answer) => return Some(answer),
            Err(panic) => panic,
        };
        if !self.is_reported.swap(true, Ordering::Relaxed) {
            tracing::error!(
                event = what,
                panic = panic_text(&*panic),
                "an observer panicked; it still receives later events, and this is logged once"
            );
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::payload::{SpanIds, TraceContext};
    use crate::worker::test_support::{info, job};

    /// Notes the names of events, or panics; answers traces with this span.
    struct Listener {
        heard: Arc<Mutex<Vec<&'static str>>>,
        panics: bool,
        is_in_order: bool,
        span: Option<u64>,
    }

    impl Observer for Listener {
        fn on_event(&self, event: &Event<'_>) {
            assert!(!self.panics, "a bug");
            self.heard.lock().unwrap().push(event.name());
        }

        fn is_in_order(&self) -> bool {
            self.is_in_order
        }

        fn trace(&self, _: &JobInfo) -> Option<Arc<Trace>> {
            assert!(!self.panics, "a bug");
            let span = self.span?;
            Some(Arc::new(trace(span)))
        }
    }

    fn trace(span: u64) -> Trace {
        Trace {
            ids: SpanIds::new(7, span, true).unwrap(),
            origin: TraceContext::default(),
        }
    }

    fn listener(heard: &Arc<Mutex<Vec<&'static str>>>) -> Listener {
        Listener {
            heard: Arc::clone(heard),
            panics: false,
            is_in_order: false,
            span: None,
        }
    }

    fn observers(listeners: impl IntoIterator<Item = Listener>) -> Observers {
        let shared = listeners
            .into_iter()
            .map(|one| Arc::new(one) as Arc<dyn Observer>);
        shared.collect()
    }

    #[test]
    fn an_observer_that_panics_keeps_no_event_from_the_others() {
        let heard = Arc::default();
        let bug = Listener {
            panics: true,
            ..listener(&heard)
        };
        let observers = observers([bug, listener(&heard)]);
        observers.emit(&Event::WorkerPausing);
        observers.emit(&Event::WorkerResuming);
        assert_eq!(*heard.lock().unwrap(), ["WorkerPausing", "WorkerResuming"]);
        assert!(observers.0[0].is_reported.load(Ordering::Relaxed));
        assert!(!observers.0[1].is_reported.load(Ordering::Relaxed));
    }

    #[test]
    fn the_first_observer_that_traces_a_job_begins_its_span() {
        let heard = Arc::default();
        let spans = |span| Listener {
            span,
            ..listener(&heard)
        };
        let bug = Listener {
            panics: true,
            ..listener(&heard)
        };
        let observers = observers([bug, spans(None), spans(Some(1)), spans(Some(2))]);
        let span = observers.trace(&info(&job(1))).map(|trace| trace.ids.span);
        assert_eq!(span, Some(1));
        assert!(Observers::default().trace(&info(&job(1))).is_none());
    }

    #[test]
    fn one_observer_is_enough_to_ask_for_the_end_of_a_job_before_the_next_pop() {
        let heard = Arc::default();
        let in_order = |is_in_order| Listener {
            is_in_order,
            ..listener(&heard)
        };
        assert!(!Observers::default().are_in_order());
        assert!(!observers([in_order(false)]).are_in_order());
        assert!(observers([in_order(false), in_order(true)]).are_in_order());
        // A closure does not say what it needs.
        let closure: Arc<dyn Observer> = Arc::new(|_: &Event<'_>| {});
        let observers: Observers = std::iter::once(closure).collect();
        assert!(observers.are_in_order());
    }
}
