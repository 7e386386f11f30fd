//! What Laravel did with a job, in the words of artisand: outcome, decision and effects.

use std::sync::Arc;
use std::time::Duration;

use crate::handler::JobInfo;
use crate::payload::Command;
use crate::queue::Effect;
use crate::worker::attempt::Attempt;
use crate::worker::attempt::decide::{Decision, Rules};
use crate::worker::attempt::log::{log_failure, log_outcome};
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::php::course::{PhpAttempt, PhpOutcome};

/// What became of a job that PHP ran.
#[derive(Debug)]
pub(super) struct Judged {
    pub(super) outcome: Outcome,
    pub(super) decision: Decision,
    /// Effects that are carried out in one step with the job's end.
    pub(super) effects: Vec<Effect>,
}

impl Judged {
    /// What becomes of a job that Laravel has not settled.
    pub(super) fn left(outcome: Outcome) -> Self {
        let decision = match outcome {
            Outcome::Stopped => Decision::Release {
                delay: Duration::ZERO,
                after_exception: false,
            },
            _ => Decision::Leave,
        };
        Self {
            outcome,
            decision,
            effects: Vec::new(),
        }
    }
}

impl Attempt {
    /// Converts what Laravel has done with the job into outcome, decision and effects.
    pub(super) fn judged(
        &self,
        info: &Arc<JobInfo>,
        fate: PhpOutcome,
        course: &PhpAttempt,
    ) -> Judged {
        let outcome = course.outcome();
        match fate {
            PhpOutcome::Deleted => Judged {
                outcome,
                decision: Decision::Delete,
                effects: Vec::new(),
            },
            PhpOutcome::Released(delay) => {
                let after_exception = outcome.thrown().is_some();
                let wait = self.wait_of_unreadable(info).filter(|_| after_exception);
                Judged {
                    outcome,
                    decision: Decision::Release {
                        delay: wait.map_or(delay, |wait| wait.max(delay)),
                        after_exception,
                    },
                    effects: Vec::new(),
                }
            }
            PhpOutcome::Failed {
                failure,
                text,
                is_logged,
            } => {
                let outcome = if course.has_timed_out {
                    Outcome::TimedOut
                } else {
                    outcome
                };
                let effects = if is_logged {
                    Vec::new()
                } else {
                    vec![self.failed_job(info, text)]
                };
                Judged {
                    outcome,
                    decision: Decision::Fail(failure),
                    effects,
                }
            }
        }
    }

    /// The least wait of a job whose data PHP could not read; without it the job would come back at once,
    /// endlessly.
    fn wait_of_unreadable(&self, info: &JobInfo) -> Option<Duration> {
        let rules = Rules::of(&info.payload.limits, &self.shared.terms.defaults);
        let wait = rules.wait_of_unreadable(info.attempts)?;
        let command = Command::of(&info.payload).map(|command| {
            // An encrypted command may have been read by PHP alone.
            let is_read = |command: Command| command.to_value().is_ok();
            info.payload.is_encrypted() || command.is_none_or(is_read)
        });
        (!command.unwrap_or(false)).then_some(wait)
    }
}

/// Logs how a job ended that PHP ran, and that it failed for good.
pub(super) fn log_judged(info: &JobInfo, judged: &Judged, elapsed: Duration) {
    let Judged {
        outcome, decision, ..
    } = judged;
    log_outcome(info, outcome, decision, false, elapsed);
    if let Decision::Fail(failure) = decision {
        log_failure(info, failure, elapsed);
    }
}
