//! One event, as it travels from a worker to a listener.

use std::borrow::Cow;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::handler::{FailureText, JobInfo};
use crate::outbox::hand_over::is_closure;
use crate::payload::{JobId, JobUuid};
use crate::shown;
use crate::time::Micros;
use crate::worker::{Event, JobEnd, JobResult};

/// Most bytes of an exception's message.
const LONGEST_MESSAGE: usize = 1000;

/// One event: what `queue:work --json` says of it, and what it says only of failures.
///
/// The words of `status` are those of that output. Fields that do not belong to an event are `None`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, bound(deserialize = "'de: 'a"))]
pub struct TailEvent<'a> {
    /// When it happened, in microseconds since 1970, by the worker's clock.
    pub at: u64,
    /// What happened.
    #[serde(borrow)]
    pub status: Cow<'a, str>,
    /// The job's id.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub id: Option<Cow<'a, str>>,
    /// The job's uuid.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<Cow<'a, str>>,
    /// The queue connection.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub connection: Option<Cow<'a, str>>,
    /// The queue.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub queue: Option<Cow<'a, str>>,
    /// The job's displayed name, mostly its class.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub job: Option<Cow<'a, str>>,
    /// Whether the job is a closure that artisand pushed, named after the job it is about.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub closure: bool,
    /// What was done with the job: `deleted` or `released`.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub result: Option<Cow<'a, str>>,
    /// Number of the attempt.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    /// How long the attempt ran, in seconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub duration: Option<f64>,
    /// Class of the exception.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub exception: Option<Cow<'a, str>>,
    /// The exception's message, or why a worker stopped.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub message: Option<Cow<'a, str>>,
    /// The queue to which the job went.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub to: Option<Cow<'a, str>>,
    /// How many payloads.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub count: Option<u64>,
    /// The target of a mapping.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub target: Option<Cow<'a, str>>,
    /// Why a worker stopped, in one word.
    #[serde(borrow, skip_serializing_if = "Option::is_none")]
    pub reason: Option<Cow<'a, str>>,
    /// The exit code of a worker.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exit_code: Option<u8>,
}

impl<'a> TailEvent<'a> {
    /// What is told of an event; `None` if nothing is.
    pub fn of(event: &Event<'a>) -> Option<Self> {
        Some(match event {
            Event::JobProcessing { job, began } => Self::of_job(job, "starting", *began),
            Event::JobProcessed(end) => Self::of_end(end, "success"),
            Event::JobReleasedAfterException(end) => Self::of_end(end, "released_after_exception"),
            Event::JobFailed(end) => Self::of_end(end, "failed"),
            // A job that failed because of the timeout is told as failed.
            Event::JobTimedOut(end) if end.result == JobResult::Left => {
                Self::of_end(end, "timed_out")
            }
            Event::JobLost(end) => Self::of_end(end, "lost"),
            Event::ReservationLost(queue) => Self::of_queue("reservation_lost", queue.as_str()),
            Event::JobsQuarantined { queue, count } => Self {
                count: u64::try_from(*count).ok(),
                ..Self::of_queue("quarantined", queue.as_str())
            },
            Event::JobForwarded { job, to } => Self {
                to: Some(to.as_str().into()),
                ..Self::of_job(job, "forwarded", Instant::now())
            },
            Event::WorkerQueuePaused(queue) => Self::of_queue("paused", queue.as_str()),
            Event::WorkerQueueResumed(queue) => Self::of_queue("resumed", queue.as_str()),
            Event::WorkerStarting(_) => Self::now("started"),
            Event::WorkerPausing => Self::now("paused"),
            Event::WorkerResuming => Self::now("resumed"),
            Event::MaintenanceMode(true) => Self::now("down"),
            Event::MaintenanceMode(false) => Self::now("up"),
            Event::CanaryStopped(stop) => Self {
                target: Some(stop.target.clone().into()),
                ..Self::now("canary_stopped")
            },
            Event::CanaryResumed(target) => Self {
                target: Some((*target).into()),
                ..Self::now("canary_resumed")
            },
            Event::WorkerStopping { reason, .. } => Self {
                reason: Some(reason.as_str().into()),
                message: Some(reason.description().into()),
                exit_code: Some(reason.exit_code()),
                ..Self::now("stopped")
            },
            _ => return None,
        })
    }

    fn now(status: &'static str) -> Self {
        Self {
            at: Micros::now().0,
            status: status.into(),
            ..Self::default()
        }
    }

    fn of_queue(status: &'static str, queue: &'a str) -> Self {
        Self {
            queue: Some(queue.into()),
            ..Self::now(status)
        }
    }

    fn of_job(job: &'a JobInfo, status: &'static str, at: Instant) -> Self {
        let passed = u64::try_from(at.elapsed().as_micros()).unwrap_or(u64::MAX);
        let payload = &job.payload;
        Self {
            at: Micros::now().0.saturating_sub(passed),
            id: payload.id.as_ref().map(|id| JobId::bounded(id).into()),
            uuid: payload.uuid.as_ref().map(|id| JobUuid::bounded(id).into()),
            connection: Some(job.connection.as_str().into()),
            queue: Some(job.queue.as_str().into()),
            job: Some(payload.shown_name()),
            closure: is_closure(payload),
            attempts: Some(job.attempts),
            status: status.into(),
            ..Self::default()
        }
    }

    fn of_end(end: &JobEnd<'a>, status: &'static str) -> Self {
        let failure = end.failure.filter(|_| status != "success");
        Self {
            result: match end.result {
                JobResult::Deleted => Some("deleted".into()),
                JobResult::Released => Some("released".into()),
                JobResult::Left => None,
            },
            // Six decimals, as PHP rounds it.
            duration: Some((end.elapsed.as_secs_f64() * 1e6).round() / 1e6),
            exception: failure.map(|failure| shown::name(&failure.class)),
            message: failure.map(message),
            ..Self::of_job(end.job, status, end.ended)
        }
    }

    /// Whether something went wrong: a job threw, timed out, failed, was lost or could not be read, or a canary
    /// stopped.
    pub fn is_failure(&self) -> bool {
        matches!(
            &*self.status,
            "failed"
                | "released_after_exception"
                | "timed_out"
                | "lost"
                | "reservation_lost"
                | "quarantined"
                | "canary_stopped"
        )
    }

    /// Reads what a worker wrote; `None` if it is something else.
    pub fn read(line: &'a [u8]) -> Option<Self> {
        let event: Self = serde_json::from_slice(line).ok()?;
        (!event.status.is_empty()).then_some(event)
    }
}

/// The message of a failure, of bounded length.
fn message(failure: &FailureText) -> Cow<'_, str> {
    let message = &*failure.message;
    if message.len() <= LONGEST_MESSAGE {
        return message.into();
    }
    let end = message.floor_char_boundary(LONGEST_MESSAGE);
    format!("{}…", &message[..end]).into()
}
