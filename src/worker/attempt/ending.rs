//! The end of an attempt: how its job is settled, and what observers are told afterwards.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::handler::{FailureText, JobInfo};
use crate::queue::{Effect, QueueName, Settlement};
use crate::routing::Runner;
use crate::time::UnixSeconds;
use crate::worker::attempt::decide::{Decision, timed_out};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::event::{Event, JobEnd, JobException, JobResult, Observers};

/// How a job is settled and what observers are told afterwards.
#[derive(Debug)]
pub(crate) struct Ending {
    pub(crate) settlement: Settlement,
    pub(crate) report: EndReport,
}

/// What observers are told once a job is settled.
#[derive(Debug)]
pub(crate) enum EndReport {
    /// An attempt ended.
    Ended(AttemptEnd),
    /// The payload cannot be decoded; the text says why.
    Quarantined(String),
    /// The job moved to another queue.
    Forwarded(Arc<JobInfo>, QueueName),
    /// The job went back to its queue without having run; with its facts if observers have heard that it was popped.
    GivenBack(Option<Arc<JobInfo>>),
}

/// The end of an attempt, for observers.
#[derive(Debug)]
pub(crate) struct AttemptEnd {
    pub(crate) job: Arc<JobInfo>,
    elapsed: Duration,
    ended: Instant,
    result: JobResult,
    delay: Option<Duration>,
    /// Why the job failed, timed out, was lost or is to be tried again.
    failure: Option<FailureText>,
    /// The exception or timeout that ended the attempt; `None` if the handler returned.
    thrown: Option<FailureText>,
    events: &'static [EndEvent],
    is_counted: bool,
    has_failed: bool,
    pub(crate) raised_by_php: RaisedByPhp,
    runner: Runner,
}

/// Which of Laravel's events of an attempt PHP raises.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct RaisedByPhp {
    /// All of them, of an attempt that ends here: the app's own listeners get them.
    pub(crate) all: bool,
    /// `JobFailed`, in a closure: the app's own listeners get it.
    pub(crate) failure_in_closure: bool,
    /// `JobFailed`, in the process that ran the job.
    pub(crate) failure_in_process: bool,
}

/// The events that observers get at the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum EndEvent {
    Processed,
    Released,
    ReleasedAfterException,
    Failed,
    ExceptionOccurred,
    TimedOut,
    Lost,
    Attempted,
}

/// What an ending needs to know in addition to outcome and decision.
pub(crate) struct Circumstances<'a> {
    pub(crate) job: &'a Arc<JobInfo>,
    pub(crate) elapsed: Duration,
    pub(crate) ended: Instant,
    pub(crate) now: UnixSeconds,
    /// When the reservation ends unless it is renewed.
    pub(crate) reservation_end: UnixSeconds,
    pub(crate) raised_by_php: RaisedByPhp,
    pub(crate) runner: Runner,
}

impl Ending {
    /// The ending of an attempt; `effects` are carried out in one step with the end of its job.
    pub(crate) fn of(
        outcome: Outcome,
        decision: Decision,
        effects: Vec<Effect>,
        circumstances: &Circumstances<'_>,
    ) -> Self {
        let Circumstances {
            now,
            reservation_end,
            ..
        } = *circumstances;
        let settlement = match &decision {
            Decision::Release { delay, .. } => Settlement::Release(now.plus(*delay)),
            Decision::ReleaseUncounted { delay } => Settlement::ReleaseUncounted(now.plus(*delay)),
            Decision::Leave => Settlement::LeaveUntil(reservation_end),
            Decision::Delete | Decision::DeleteMissing | Decision::Discard | Decision::Fail(_) => {
                if effects.is_empty() {
                    Settlement::Delete
                } else {
                    Settlement::Finish(effects)
                }
            }
        };
        let facts = EndFacts::of(outcome, decision, circumstances.job.payload.resolve_name());
        Self {
            settlement,
            report: EndReport::Ended(AttemptEnd::new(facts, circumstances)),
        }
    }

    /// The ending of a job that was announced, and goes back to its queue without having run.
    pub(crate) fn put_back_announced(circumstances: &Circumstances<'_>) -> Self {
        let facts = EndFacts {
            result: JobResult::Released,
            delay: Some(Duration::ZERO),
            failure: None,
            thrown: None,
            is_counted: false,
            events: &[EndEvent::Released, EndEvent::Attempted],
        };
        Self {
            settlement: Settlement::PutBack,
            report: EndReport::Ended(AttemptEnd::new(facts, circumstances)),
        }
    }

    /// The ending of a job that goes back to its queue as it was before the pop; with its facts if observers have heard
    /// that it was popped.
    pub(crate) fn put_back(popped: Option<Arc<JobInfo>>) -> Self {
        Self {
            settlement: Settlement::PutBack,
            report: EndReport::GivenBack(popped),
        }
    }

    /// The ending of a job that moves to another queue.
    pub(crate) fn forward(job: Arc<JobInfo>, to: QueueName) -> Self {
        Self {
            settlement: Settlement::Forward(to.clone()),
            report: EndReport::Forwarded(job, to),
        }
    }
}

/// The events that follow from outcome and decision, and their content.
struct EndFacts {
    result: JobResult,
    delay: Option<Duration>,
    failure: Option<FailureText>,
    thrown: Option<FailureText>,
    is_counted: bool,
    events: &'static [EndEvent],
}

/// What becomes of the job, and the delay until its next attempt.
fn becomes(decision: &Decision) -> (JobResult, Option<Duration>) {
    match decision {
        Decision::Release { delay, .. } | Decision::ReleaseUncounted { delay } => {
            (JobResult::Released, Some(*delay))
        }
        Decision::Leave => (JobResult::Left, None),
        _ => (JobResult::Deleted, None),
    }
}

impl EndFacts {
    fn of(outcome: Outcome, decision: Decision, name: &str) -> Self {
        use EndEvent::{
            Attempted, ExceptionOccurred, Failed, Lost, Processed, Released,
            ReleasedAfterException, TimedOut,
        };
        let (result, delay) = becomes(&decision);
        let is_counted = !matches!(decision, Decision::ReleaseUncounted { .. });
        let facts = |failure: Option<FailureText>, thrown, events| Self {
            result,
            delay,
            failure,
            thrown,
            is_counted,
            events,
        };
        let both =
            |failure: FailureText, events| facts(Some(failure.clone()), Some(failure), events);
        match (decision, outcome) {
            (
                Decision::Fail(failure),
                Outcome::Threw {
                    failure: thrown, ..
                }
                // Laravel meets the exception again when it reads the job to call its class's `failed()`.
                | Outcome::ModelMissing {
                    failure: thrown, ..
                }
                | Outcome::Lost(thrown),
            ) => facts(
                Some(failure),
                Some(thrown),
                &[Failed, ExceptionOccurred, Attempted],
            ),
            (Decision::Fail(failure), Outcome::TimedOut) => {
                both(failure, &[Failed, TimedOut, Attempted])
            }
            (Decision::Fail(failure), Outcome::Finished | Outcome::Stopped) => {
                facts(Some(failure), None, &[Failed, Processed, Attempted])
            }
            (
                Decision::Release {
                    after_exception: true,
                    ..
                },
                Outcome::Threw { failure, .. },
            ) => both(failure, &[ReleasedAfterException, Attempted]),
            (Decision::Release { .. } | Decision::ReleaseUncounted { .. }, Outcome::Stopped) => {
                let failure = FailureText::new(
                    "Artisand\\WorkerStopped",
                    "the worker stopped before the job had ended",
                );
                both(failure, &[ReleasedAfterException, Attempted])
            }
            (Decision::Leave, Outcome::TimedOut) => both(timed_out(name), &[TimedOut, Attempted]),
            (Decision::Leave, Outcome::Lost(failure)) => both(failure, &[Lost, Attempted]),
            (_, Outcome::Threw { failure, .. }) => facts(None, Some(failure), &[Attempted]),
            (Decision::Release { .. } | Decision::ReleaseUncounted { .. }, _) => {
                facts(None, None, &[Processed, Released, Attempted])
            }
            _ => facts(None, None, &[Processed, Attempted]),
        }
    }
}

impl AttemptEnd {
    fn new(facts: EndFacts, circumstances: &Circumstances<'_>) -> Self {
        Self {
            job: Arc::clone(circumstances.job),
            elapsed: circumstances.elapsed,
            ended: circumstances.ended,
            result: facts.result,
            delay: facts.delay,
            failure: facts.failure,
            thrown: facts.thrown,
            is_counted: facts.is_counted,
            has_failed: facts.events.contains(&EndEvent::Failed),
            events: facts.events,
            raised_by_php: circumstances.raised_by_php,
            runner: circumstances.runner,
        }
    }

    /// Tells observers that an attempt is over whose end cannot be written; its job stays reserved.
    pub(crate) fn emit_left(mut self, observers: &Observers) {
        self.result = JobResult::Left;
        self.is_counted = true;
        self.has_failed = false;
        self.events = &[EndEvent::Attempted];
        self.emit(observers, false);
    }

    /// Keeps only the event of the failure: the job that failed itself still runs, and another value has the events of
    /// its end.
    pub(crate) fn keep_only_failure(&mut self) {
        self.events = &[EndEvent::Failed];
    }

    /// Drops the event of a failure that was emitted already, and keeps those after it.
    ///
    /// `has_returned` says whether PHP has finished with the job; a process that has died sends no further event.
    pub(crate) fn keep_rest(&mut self, has_returned: bool) {
        self.events = match self.events {
            [EndEvent::Failed, EndEvent::Processed, ..] if !has_returned => &[EndEvent::Attempted],
            [EndEvent::Failed, rest @ ..] => rest,
            all => all,
        };
    }

    /// Sends the events of an attempt whose job is settled, or whose reservation was gone.
    pub(crate) fn emit(&self, observers: &Observers, is_gone: bool) {
        for event in self.events {
            let failure = match event {
                EndEvent::Attempted => &self.thrown,
                _ => &self.failure,
            };
            let end = JobEnd {
                job: &self.job,
                elapsed: self.elapsed,
                ended: self.ended,
                result: self.result,
                failure: failure.as_ref(),
                delay: self.delay,
                is_counted: self.is_counted,
                has_failed: self.has_failed,
                is_gone,
                is_raised_by_php: self.raised_by_php.failure_in_process,
                is_heard_by_php: self.raised_by_php.all,
                is_failure_heard_by_php: self.raised_by_php.failure_in_closure,
                runner: self.runner,
            };
            let thrown = self.thrown.as_ref().map(|failure| JobException {
                job: &self.job,
                elapsed: self.elapsed,
                failure,
                runner: self.runner,
            });
            let event = match event {
                EndEvent::Processed => Event::JobProcessed(&end),
                EndEvent::Released => Event::JobReleased(&end),
                EndEvent::ReleasedAfterException => Event::JobReleasedAfterException(&end),
                EndEvent::Failed => Event::JobFailed(&end),
                EndEvent::TimedOut => Event::JobTimedOut(&end),
                EndEvent::Lost => Event::JobLost(&end),
                EndEvent::Attempted => Event::JobAttempted(&end),
                EndEvent::ExceptionOccurred => match &thrown {
                    Some(thrown) => Event::JobExceptionOccurred(thrown),
                    None => continue,
                },
            };
            observers.emit(&event);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;
    use crate::payload::Payload;
    use crate::worker::event::Observer;

    fn job() -> Arc<JobInfo> {
        let payload = Payload::parse(br#"{"job":"A@b","attempts":0}"#).unwrap();
        Arc::new(JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Arc::new(payload),
            body: Arc::from(&b""[..]),
            reserved: Arc::default(),
            trace: None,
        })
    }

    /// Observers, and the events that they got since this was asked.
    fn listening() -> (Observers, impl Fn() -> String) {
        let names = Arc::new(Mutex::new(Vec::<String>::new()));
        let listener = {
            let names = Arc::clone(&names);
            move |event: &Event<'_>| {
                let (name, failure) = match event {
                    Event::JobAttempted(end) => ("JobAttempted", end.failure),
                    Event::JobExceptionOccurred(it) => (event.name(), Some(it.failure)),
                    Event::JobFailed(end) => (event.name(), end.failure),
                    event => (event.name(), None),
                };
                let failure = failure.map_or(String::new(), |it| format!("({})", it.message));
                names.lock().unwrap().push(format!("{name}{failure}"));
            }
        };
        let panics: Arc<dyn Observer> = Arc::new(|_: &Event<'_>| panic!("a bug"));
        let observers: Observers = [panics, Arc::new(listener)].into_iter().collect();
        let emitted = move || std::mem::take(&mut *names.lock().unwrap()).join(" ");
        (observers, emitted)
    }

    fn circumstances(job: &Arc<JobInfo>) -> Circumstances<'_> {
        Circumstances {
            job,
            elapsed: Duration::from_secs(1),
            ended: Instant::now(),
            now: UnixSeconds(100),
            reservation_end: UnixSeconds(190),
            raised_by_php: RaisedByPhp::default(),
            runner: Runner::Rust,
        }
    }

    /// What is emitted of the end of an attempt.
    fn end(outcome: Outcome, decision: Decision, job: &Arc<JobInfo>) -> AttemptEnd {
        match Ending::of(outcome, decision, Vec::new(), &circumstances(job)).report {
            EndReport::Ended(end) => end,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_end_is_emitted_in_laravels_order() {
        let job = job();
        let (observers, emitted) = listening();
        let text = |text: &str| FailureText::new("E", text);
        let second = Duration::from_secs(1);
        let threw = || Outcome::threw(text("e"));
        let missing = |deletes| Outcome::ModelMissing {
            failure: text("m"),
            deletes,
        };
        let fail = || Decision::Fail(text("f"));
        let release = |after_exception| Decision::Release {
            delay: second,
            after_exception,
        };
        let uncounted = || Decision::ReleaseUncounted { delay: second };
        #[rustfmt::skip]
        let rows = [
            (Outcome::Finished, Decision::Delete,        "JobProcessed JobAttempted"),
            (Outcome::Finished, Decision::Discard,       "JobProcessed JobAttempted"),
            (missing(true),     Decision::DeleteMissing, "JobProcessed JobAttempted"),
            (Outcome::Finished, release(false),          "JobProcessed JobReleased JobAttempted"),
            (Outcome::TimedOut, release(false),          "JobProcessed JobReleased JobAttempted"),
            (Outcome::Finished, uncounted(),             "JobProcessed JobReleased JobAttempted"),
            (Outcome::Finished, Decision::Leave,         "JobProcessed JobAttempted"),
            (Outcome::Stopped,  release(false),          "JobReleasedAfterException JobAttempted(the worker stopped before the job had ended)"),
            (threw(),           release(true),           "JobReleasedAfterException JobAttempted(e)"),
            (threw(),           release(false),          "JobAttempted(e)"),
            (threw(),           uncounted(),             "JobAttempted(e)"),
            (threw(),           Decision::Delete,        "JobAttempted(e)"),
            (threw(),           Decision::Leave,         "JobAttempted(e)"),
            (threw(),           fail(),                  "JobFailed(f) JobExceptionOccurred(e) JobAttempted(e)"),
            (missing(false),    fail(),                  "JobFailed(f) JobExceptionOccurred(m) JobAttempted(m)"),
            (Outcome::Finished, fail(),                  "JobFailed(f) JobProcessed JobAttempted"),
            (Outcome::TimedOut, fail(),                  "JobFailed(f) JobTimedOut JobAttempted(f)"),
            (Outcome::TimedOut, Decision::Leave,         "JobTimedOut JobAttempted(A@b has timed out.)"),
            (Outcome::Lost(text("l")), Decision::Leave,  "JobLost JobAttempted(l)"),
        ];
        for (outcome, decision, expected) in rows {
            let place = format!("{outcome:?} {decision:?}");
            end(outcome, decision, &job).emit(&observers, false);
            assert_eq!(emitted(), expected, "{place}");
        }
    }

    #[test]
    fn of_a_failure_that_was_emitted_only_the_rest_is_emitted_later() {
        let (job, (observers, emitted)) = (job(), listening());
        let failed = || {
            let failure = Decision::Fail(FailureText::new("E", "f"));
            end(Outcome::Finished, failure, &job)
        };
        let mut first = failed();
        first.keep_only_failure();
        first.emit(&observers, false);
        assert_eq!(emitted(), "JobFailed(f)");
        for (has_returned, expected) in [
            (true, "JobProcessed JobAttempted"),
            // The process that ran the job is gone.
            (false, "JobAttempted"),
        ] {
            let mut rest = failed();
            rest.keep_rest(has_returned);
            rest.emit(&observers, false);
            assert_eq!(emitted(), expected);
        }
        failed().emit_left(&observers);
        assert_eq!(emitted(), "JobAttempted");
    }

    #[test]
    fn a_decision_says_how_the_job_is_settled() {
        let job = job();
        let fail = || Decision::Fail(FailureText::new("E", "f"));
        let delay = Duration::from_secs(7);
        let release = Decision::Release {
            delay,
            after_exception: true,
        };
        let finish = || Settlement::Finish(vec![Effect::Quarantine]);
        #[rustfmt::skip]
        let rows = [
            (Decision::Delete,        false, Settlement::Delete),
            (Decision::Delete,        true,  finish()),
            (Decision::DeleteMissing, true,  finish()),
            (fail(),                  true,  finish()),
            // PHP has recorded the failure.
            (fail(),                  false, Settlement::Delete),
            (release,                 false, Settlement::Release(UnixSeconds(107))),
            (Decision::ReleaseUncounted { delay }, false, Settlement::ReleaseUncounted(UnixSeconds(107))),
            (Decision::Leave,         false, Settlement::LeaveUntil(UnixSeconds(190))),
        ];
        for (decision, has_effects, expected) in rows {
            let effects = if has_effects {
                vec![Effect::Quarantine]
            } else {
                Vec::new()
            };
            let place = format!("{decision:?}");
            let ending = Ending::of(Outcome::Finished, decision, effects, &circumstances(&job));
            assert_eq!(ending.settlement, expected, "{place}");
            let becomes = match expected {
                Settlement::Release(_) | Settlement::ReleaseUncounted(_) => {
                    (JobResult::Released, Some(delay))
                }
                Settlement::LeaveUntil(_) => (JobResult::Left, None),
                _ => (JobResult::Deleted, None),
            };
            let EndReport::Ended(end) = ending.report else {
                panic!("{place}");
            };
            assert_eq!((end.result, end.delay), becomes, "{place}");
            let is_uncounted = matches!(expected, Settlement::ReleaseUncounted(_));
            assert_eq!(end.is_counted, !is_uncounted, "{place}");
        }
    }
}
