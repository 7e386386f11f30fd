//! How the chain of a job goes on once it has succeeded, with the jobs that its handler added.

use crate::handler::{ChainEdit, JobInfo};
use crate::payload::{Chain, Command, JobUuid};
use crate::php;
use crate::queue::{Effect, Push};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;
use crate::worker::completion::Completion;
use crate::worker::completion::chain::{self, EndedJob};

impl Completion {
    /// Says why jobs that a handler adds to the chain could not follow.
    pub(crate) fn check_edits(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: &[ChainEdit],
    ) -> Result<(), String> {
        if edits.is_empty() {
            return Ok(());
        }
        let chain = self.edited(app, info, edits.to_vec())?;
        match (chain::check(app, &chain), self.can_hand_over(app)) {
            (Err(missing), Err(why)) => Err(format!(
                "the job added to the chain needs PHP ({missing}): {why}"
            )),
            _ => Ok(()),
        }
    }

    /// The chain after the job; `None` at its end.
    pub(super) fn chain_after(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Option<Chain>, String> {
        let chain = if edits.is_empty() {
            self.chain.as_deref().cloned()
        } else {
            Some(self.edited(app, info, edits)?)
        };
        Ok(chain.filter(|chain| !chain.is_empty()))
    }

    /// The next step of the chain.
    ///
    /// # Errors
    ///
    /// Neither artisand nor PHP can take it.
    pub(super) async fn step(
        &self,
        app: &AppContext,
        info: &JobInfo,
        chain: &Chain,
    ) -> Result<Vec<Effect>, String> {
        let ended = EndedJob {
            uuid: info.payload.uuid.as_ref().map(JobUuid::as_str),
            queue: &info.queue,
            inherited: info.inherited(),
        };
        match chain::take(app, chain, &ended).await {
            Ok(effect) => Ok(vec![effect]),
            Err(missing) => {
                tracing::debug!(
                    job.uuid = ended.uuid,
                    missing = missing.to_string(),
                    "the next step of a chain is left to PHP"
                );
                let payload = self.can_hand_over(app).and_then(|()| {
                    let hand_over = self.hand_over(app, &info.payload);
                    let payload = hand_over.goes_on(chain, &ended.inherited);
                    payload.map_err(|error| with_causes(&error))
                });
                let payload = payload.map_err(|why| {
                    format!("the next step of its chain needs PHP ({missing}): {why}")
                })?;
                let queue = self.php_queue.clone().into_iter();
                let push = |queue| {
                    Effect::Push(Push {
                        queue,
                        payload: payload.clone(),
                        due: None,
                        claim: None,
                    })
                };
                Ok(queue.map(push).collect())
            }
        }
    }

    /// The chain with the jobs that the handler added.
    fn edited(
        &self,
        app: &AppContext,
        info: &JobInfo,
        edits: Vec<ChainEdit>,
    ) -> Result<Chain, String> {
        let read = || {
            let command = Command::of(&info.payload).ok().flatten();
            let bytes = command.as_ref().map_or(php::NULL, Command::as_bytes);
            Chain::read(bytes, app.services.version)
        };
        let chain = self.chain.as_deref().cloned().map_or_else(read, Ok);
        let edited = chain.and_then(|mut chain| {
            // Each call puts its job in front, so the last of several comes first.
            for edit in edits {
                match edit {
                    ChainEdit::Prepend(command) => chain.prepend(command)?,
                    ChainEdit::Append(command) => chain.append(command)?,
                }
            }
            Ok(chain)
        });
        edited.map_err(|error| with_causes(&error))
    }
}
