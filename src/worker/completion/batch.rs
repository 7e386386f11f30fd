//! How the batch of a job counts it: by a record of the ledger, or in PHP where only PHP knows the batches.

use crate::batch::{Ended, JobOutcome};
use crate::handler::JobInfo;
use crate::outbox::follow_up::{Count, FollowUp, random_token};
use crate::queue::Effect;
use crate::worker::app_context::AppContext;
use crate::worker::completion::Completion;

impl Completion {
    /// The record that makes the batch count the job.
    pub(super) fn count(
        &self,
        app: &AppContext,
        info: &JobInfo,
        outcome: JobOutcome,
        message: Option<&str>,
    ) -> Option<Effect> {
        let batch = self.batch.as_deref()?;
        let uuid = info.payload.uuid.as_ref()?.as_str();
        let inherited = info.inherited().to_map();
        if app.services.batches.is_none() {
            // Only PHP knows where the batches are, so it counts every job.
            let hand_over = self.hand_over(app, &info.payload);
            let payload = match outcome {
                JobOutcome::Succeeded => {
                    hand_over.counts_success(batch, uuid, None, inherited.as_ref())
                }
                JobOutcome::Failed => {
                    let message = message.unwrap_or_default();
                    hand_over.counts_failure(batch, uuid, message, inherited.as_ref())
                }
            };
            return self.push_to_php(payload, "a job of a batch", info);
        }
        let count = Count {
            batch: batch.to_owned(),
            ended: Ended {
                uuid: uuid.to_owned(),
                outcome,
                token: random_token(),
            },
            connection: Some(app.connection.to_string()),
            queue: self.php_queue.as_ref().map(ToString::to_string),
            message: message.map(str::to_owned),
            name: Some(info.payload.resolve_name().to_owned()),
            inherited,
            timeout: info.payload.limits.timeout.map(|limit| limit.as_secs()),
        };
        Some(FollowUp::Count(count).effect())
    }
}
