//! Takes one reserved job to its ending. Every path settles the job, unless another worker may have it.

pub(crate) mod decide;
mod elsewhere;
pub(crate) mod ending;
pub(crate) mod exception;
mod handle;
mod local;
mod log;
pub(crate) mod outcome;
mod php;
mod settle;
pub(crate) mod shared;
mod span;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::time::Instant;

use crate::handler::JobInfo;
use crate::payload::Payload;
use crate::process::pool::IdleMember;
use crate::queue::{Ability, ReservedJob};
use crate::routing::{Runner, UnmappedPolicy};
use crate::shown::with_causes;
use crate::time::UnixSeconds;
use crate::worker::attempt::ending::{Circumstances, EndReport, Ending, RaisedByPhp};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::{Shared, TaskEnd};
use crate::worker::event::{Event, JobException};
use crate::worker::gauge::Held;
use crate::worker::shadow::Shadow;
use crate::worker::triaged::{BypassReason, Candidate, TriageResult, Triaged};

/// The executor that a job was popped for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Executor {
    /// Handlers in this process.
    Local,
    /// PHP processes.
    Php,
}

/// Where a job runs.
#[derive(Debug)]
pub(crate) enum Placement {
    /// In a slot of this process.
    Local,
    /// In a PHP process.
    Php {
        /// The process; `None` if it has ended.
        idle: Option<IdleMember>,
        /// Counts the job until its end is settled, or its deletion sent.
        unsettled: Held,
    },
}

/// A job on its way through one attempt.
pub(crate) struct Attempt {
    pub(crate) shared: Arc<Shared>,
    pub(crate) job: Arc<ReservedJob>,
    number: u64,
    /// When the reservation ends unless renewed; overrides the job's own value after a renewal before the start.
    lease: OnceLock<UnixSeconds>,
    /// What runs the job, once that is known.
    runner: OnceLock<Runner>,
    /// Whether the ending was given to the settler. The reservation is then renewed until the job is settled.
    is_handed_in: AtomicBool,
}

/// How the last attempt of a job that failed for good ended.
struct FinalAttempt {
    outcome: Outcome,
    elapsed: Duration,
    at: Instant,
}

impl FinalAttempt {
    fn after(outcome: Outcome, elapsed: Duration, began: Instant) -> Self {
        Self {
            outcome,
            elapsed,
            at: began + elapsed,
        }
    }

    /// An attempt that did not run.
    fn at_once(outcome: Outcome, at: Instant) -> Self {
        Self {
            outcome,
            elapsed: Duration::ZERO,
            at,
        }
    }
}

impl Drop for Attempt {
    fn drop(&mut self) {
        if !self.is_handed_in.load(Ordering::Relaxed) {
            // The task was dropped: let the reservation run out, so that another worker gets the
            // job.
            self.shared.leases.running.remove(self.number);
        }
    }
}

/// Runs a reserved job and gives its ending to the settler.
pub(crate) async fn run(
    shared: Arc<Shared>,
    job: Arc<ReservedJob>,
    candidate: TriageResult,
    number: u64,
    placement: Placement,
) -> TaskEnd {
    let is_in_php = matches!(placement, Placement::Php { .. });
    // A PHP process rests by itself.
    let rest = if is_in_php {
        Duration::ZERO
    } else {
        shared.terms.rest
    };
    let attempt = Attempt {
        shared,
        job,
        number,
        lease: OnceLock::new(),
        runner: OnceLock::new(),
        is_handed_in: AtomicBool::new(false),
    };
    let mut end = TaskEnd::default();
    attempt.run(candidate, placement, &mut end).await;
    if !rest.is_zero() && !end.was_cut {
        tokio::select! {
            () = tokio::time::sleep(rest) => {}
            () = attempt.shared.stops.begun.cancelled() => {}
        }
    }
    if !is_in_php {
        attempt.shared.ends.count();
    }
    end
}

impl Attempt {
    async fn run(&self, candidate: TriageResult, placement: Placement, end: &mut TaskEnd) {
        if matches!(placement, Placement::Php { .. }) && !self.last_is_settled().await {
            end.was_declined = true;
            return self.give_back(None).await;
        }
        if !self.confirm_reservation().await {
            // The worker that has it now settles it.
            tracing::warn!(
                queue = %self.job.queue,
                "a job came too late to begin: its reservation has ended, and another worker gets it; if this happens often, raise the connection's `retry_after`"
            );
            end.was_declined = true;
            return;
        }
        let triage = &self.shared.triage;
        let Candidate { payload, triaged } = match candidate {
            Ok(candidate) => candidate,
            Err(error) => {
                let ending = Ending {
                    settlement: self.quarantine().await,
                    report: EndReport::Quarantined(with_causes(&error)),
                };
                return self.settle(ending).await;
            }
        };
        let info = self.info(payload, &triaged);
        let is_given_back = matches!(triaged, Triaged::Unmapped(_) | Triaged::Bypass(_))
            && triage.leaves_unmapped()
            && !matches!(placement, Placement::Php { idle: Some(_), .. });
        if !is_given_back {
            self.shared.emit(Event::JobPopped(&info));
        }
        match triaged {
            Triaged::Run(routed) => {
                triage.stats.ran_here(routed.mapping);
                self.handle(routed, info, end).await;
            }
            Triaged::Forward(to) => self.settle(Ending::forward(info, to)).await,
            Triaged::Unmapped(refusal) => {
                Box::pin(self.go_elsewhere(info, placement, refusal, None, end)).await;
            }
            // Another worker has to take it.
            Triaged::Bypass(_) if is_given_back => {
                Box::pin(self.go_elsewhere(info, placement, None, None, end)).await;
            }
            Triaged::Bypass(bypass) => {
                let is_mismatch = matches!(bypass.reason, BypassReason::Mismatch(_));
                triage.stats.bypassed(bypass.mapping, is_mismatch);
                let shadow = (bypass.reason == BypassReason::Shadow)
                    .then(|| Shadow::check(triage, *bypass, &info));
                Box::pin(self.go_elsewhere(info, placement, None, shadow, end)).await;
            }
        }
    }

    /// The facts of the attempt; jobs that end here get a span.
    fn info(&self, payload: Arc<Payload>, triaged: &Triaged) -> Arc<JobInfo> {
        let app = &self.shared.triage.app;
        let ends_here = match triaged {
            Triaged::Run(_) => true,
            Triaged::Forward(_) => false,
            // What PHP runs is traced there.
            Triaged::Unmapped(_) | Triaged::Bypass(_) => {
                *app.router.unmapped() == UnmappedPolicy::Fail
            }
        };
        let abilities = self.shared.leases.queue.abilities();
        let reserved = if abilities.has(Ability::CountsInPayload) {
            &self.job.ticket
        } else {
            &self.job.payload
        };
        let mut info = JobInfo {
            connection: app.connection.clone(),
            queue: self.job.queue.clone(),
            attempts: self.job.attempts,
            payload,
            body: Arc::clone(&self.job.payload),
            reserved: Arc::clone(reserved),
            trace: None,
        };
        if ends_here {
            info.trace = self.shared.observers.trace(&info);
        }
        Arc::new(info)
    }

    /// Tells observers that the job has begun.
    pub(crate) fn announce(&self, job: &Arc<JobInfo>, began: Instant) {
        let began = began.into_std();
        self.shared.emit(Event::JobProcessing { job, began });
    }

    /// Emits the exception event of a job that will be tried again or has settled itself, before the job is
    /// settled.
    pub(crate) fn emit_exception(&self, job: &Arc<JobInfo>, outcome: &Outcome, elapsed: Duration) {
        if let Some(failure) = outcome.thrown() {
            self.shared.emit(Event::JobExceptionOccurred(&JobException {
                job,
                elapsed,
                failure,
                runner: self.runner(),
            }));
        }
    }

    pub(crate) fn circumstances<'a>(
        &self,
        job: &'a Arc<JobInfo>,
        elapsed: Duration,
        ended: Instant,
        raised_by_php: RaisedByPhp,
    ) -> Circumstances<'a> {
        let now = self.shared.triage.app.clock.now();
        Circumstances {
            job,
            elapsed,
            ended: ended.into_std(),
            now,
            reservation_end: self.reservation_end(now),
            raised_by_php,
            runner: self.runner(),
        }
    }

    /// What runs the job, as far as it is known.
    fn runner(&self) -> Runner {
        self.runner.get().copied().unwrap_or(Runner::None)
    }
}

#[cfg(test)]
mod tests;
