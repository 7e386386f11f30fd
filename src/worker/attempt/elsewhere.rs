//! Jobs that no handler here runs: for PHP, for another queue, failed, or in quarantine.

use std::sync::Arc;

use tokio::time::Instant;

use crate::handler::{FailureText, JobInfo};
use crate::queue::{Effect, Settlement};
use crate::routing::{Runner, UnmappedPolicy};
use crate::worker::attempt::ending::Ending;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::TaskEnd;
use crate::worker::attempt::{Attempt, Ended, Placement};
use crate::worker::completion::Completion;
use crate::worker::completion::refusal::Refusal;
use crate::worker::completion::unique::Unique;
use crate::worker::shadow::Shadow;

impl Attempt {
    /// Applies the policy for unmapped jobs.
    pub(super) async fn go_elsewhere(
        &self,
        info: Arc<JobInfo>,
        placement: Placement,
        refusal: Option<Refusal>,
        shadow: Option<Shadow>,
        end: &mut TaskEnd,
    ) {
        let (seat, unsettled) = match placement {
            Placement::Php {
                seat: Some(seat),
                unsettled,
            } => (seat, unsettled),
            Placement::Php { seat: None, .. } => {
                end.was_declined = true;
                return self.give_back().await;
            }
            Placement::Local => return self.unmapped(info, refusal).await,
        };
        // Each job takes one way only, so nothing is set before.
        let _ = self.runner.set(Runner::Php);
        let run = self.run_in_php(info, seat, unsettled, end).await;
        if let Some(pool) = &self.shared.pool
            && pool.size() == 1
        {
            // With the end settled, its process may be given the next job.
            pool.changed();
        }
        if let (Some(shadow), Some(run)) = (shadow, run) {
            let (triage, stop) = (&self.shared.triage, &self.shared.stops.cut);
            shadow.compare(triage, stop, run).await;
        }
    }

    async fn unmapped(&self, info: Arc<JobInfo>, refusal: Option<Refusal>) {
        let triage = &self.shared.triage;
        match triage.app.router.unmapped() {
            UnmappedPolicy::Forward(to) => self.settle(Ending::forward(info, to.clone())).await,
            UnmappedPolicy::Fail => {
                let name = info.payload.shown_name();
                let completed = Completion::of(&triage.app, &info.payload, &info.queue, None);
                let mut completion = match completed {
                    Ok(completion) if refusal.is_none() && !info.payload.is_encrypted() => {
                        completion
                    }
                    _ => Completion::of_refused(&triage.app, &info),
                };
                completion.telling = triage.app.router.telling(None);
                let message = match refusal {
                    Some(refusal) => refusal.of(&name),
                    None => {
                        format!("no mapping for {name}, and the policy for unmapped jobs is `fail`")
                    }
                };
                let failure = FailureText::new("Artisand\\UnmappedJob", message);
                let now = Instant::now();
                self.announce(&info, now);
                let ended = Ended::at_once(Outcome::threw(failure.clone()), now);
                self.fail(&info, &completion, ended, failure, None).await;
            }
            UnmappedPolicy::Leave | UnmappedPolicy::Php => {
                triage.inspect_from_now_on(&self.job.payload);
                self.settle(Ending::put_back()).await;
            }
        }
    }

    /// Quarantines a job that nothing can run; frees its lock if the lock can be read from the payload.
    pub(super) async fn quarantine(&self) -> Settlement {
        let triage = &self.shared.triage;
        let lock = Unique::rescued(&triage.app.services, &self.job.payload);
        let freed = match lock {
            Some(lock) => Box::pin(lock.free(&triage.app, &self.job.queue)).await,
            None => None,
        };
        match freed {
            Some(freed) => Settlement::Finish(vec![Effect::Quarantine, freed]),
            None => Settlement::Quarantine,
        }
    }
}
