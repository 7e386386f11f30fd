//! Jobs that no handler here runs: for PHP, for another queue, failed, or in quarantine.

use std::sync::Arc;

use tokio::time::Instant;

use crate::handler::{FailureText, JobInfo};
use crate::queue::{Effect, Settlement};
use crate::routing::{Runner, UnmappedPolicy};
use crate::worker::attempt::ending::Ending;
use crate::worker::attempt::outcome::Outcome;
use crate::worker::attempt::shared::TaskEnd;
use crate::worker::attempt::{Attempt, FinalAttempt, Placement};
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
        let Placement::Php { idle, unsettled } = placement else {
            return self.unmapped(info, refusal).await;
        };
        // Each job takes one way only, so nothing is set before.
        let _ = self.runner.set(Runner::Php);
        let run = self.run_in_pool(info, idle, unsettled, end).await;
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
                let is_readable = refusal.is_none() && !info.payload.is_encrypted();
                let completed = is_readable
                    .then(|| Completion::of(&triage.app, &info.payload, &info.queue, None));
                let mut completion = match completed {
                    Some(Ok(completion)) => completion,
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
                let ended = FinalAttempt::at_once(Outcome::threw(failure.clone()), now);
                self.fail(&info, &completion, ended, failure, None).await;
            }
            UnmappedPolicy::Leave | UnmappedPolicy::Php => {
                triage.inspect_from_now_on(&self.job.payload);
                self.settle(Ending::put_back(None)).await;
            }
        }
    }

    /// Quarantines a job that nothing can run; frees its lock if the lock can be read from the payload.
    pub(super) async fn quarantine(&self) -> Settlement {
        let triage = &self.shared.triage;
        let lock = Unique::from_raw_json(&triage.app.services, &self.job.payload);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::queue::{QueueName, Settled};
    use crate::worker::test_support::{
        KEY, Scene, job, mapping, nothing, object, payload_of, router, stores,
    };

    #[tokio::test(start_paused = true)]
    async fn a_job_without_a_mapping_goes_where_the_policy_says_and_is_never_lost() {
        let forward = QueueName::from("php");
        #[rustfmt::skip]
        let rows = [
            (UnmappedPolicy::Leave,                    Some(Settlement::PutBack)),
            // Its process is gone, so that the job has no place.
            (UnmappedPolicy::Php,                      Some(Settlement::PutBack)),
            (UnmappedPolicy::Forward(forward.clone()), Some(Settlement::Forward(forward))),
            (UnmappedPolicy::Fail,                     None),
        ];
        for (policy, expected) in rows {
            let row = format!("{policy:?}");
            let mut scene = Scene::new(nothing());
            scene.router = router(vec![mapping("App\\Jobs\\B")], policy, nothing());
            let attempted = scene.attempt(&job(1), 1, Settled::Done).await;
            if let Some(expected) = expected {
                assert_eq!(*attempted.settlement(), expected, "{row}");
                assert!(attempted.told.is_empty(), "{row}: it does not begin");
            } else {
                let failed = attempted.failed();
                let text =
                    "no mapping for App\\Jobs\\A, and the policy for unmapped jobs is `fail`";
                assert!(failed.exception.contains(text), "{}", failed.exception);
                assert_eq!(attempted.told, ["JobProcessing uuid-1 1"], "{row}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_job_that_fails_says_why_and_leaves_no_lock_behind() {
        let directory = tempfile::tempdir().unwrap();
        let mut scene = Scene::new(nothing());
        scene.router = router(
            vec![mapping("App\\Jobs\\A")],
            UnmappedPolicy::Fail,
            nothing(),
        );
        scene.services.stores = Some(stores(directory.path()));
        let other = format!("{}!", &KEY[1..]);
        let encrypter =
            crate::payload::Encrypter::new(scene.services.version, &other, "AES-256-CBC").unwrap();
        let command = encrypter.encrypt_command(object("App\\Jobs\\A", 0, "").as_bytes());
        let name = "laravel_unique_job:App\\Jobs\\A:7";
        let context = json!({"illuminate:log:context": {"data": {}, "hidden": {
            "laravel_unique_job_key": format!("s:{}:\"{name}\";", name.len()),
            "laravel_unique_job_lock_owner": "s:2:\"me\";",
        }}});
        let payload = payload_of("App\\Jobs\\A", &command, 1, &context);
        let attempted = scene.attempt(&payload, 1, Settled::Done).await;
        let exception = &attempted.failed().exception;
        let text = "App\\Jobs\\A is encrypted and cannot be read: ";
        assert!(exception.contains(text), "{exception}");
        let Settlement::Finish(effects) = attempted.settlement() else {
            panic!("{attempted:?}");
        };
        let Effect::Append(_, record) = &effects[1] else {
            panic!("{effects:?}");
        };
        let record = String::from_utf8_lossy(record);
        assert!(
            record.contains("unlock") && record.contains("\"me\""),
            "{record}"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn an_unreadable_payload_goes_to_quarantine_together_with_the_end_of_its_lock() {
        let directory = tempfile::tempdir().unwrap();
        let unreadable = |context: &str| {
            let rest = r#""attempts":0,"data":{"commandName":"App\\Jobs\\A"}"#;
            format!("{{\"displayName\":\"A\"{context},{rest}}}").into_bytes()
        };
        let mut scene = Scene::new(nothing());
        scene.services.stores = Some(stores(directory.path()));
        let attempted = scene.attempt(&unreadable(""), 1, Settled::Done).await;
        assert_eq!(*attempted.settlement(), Settlement::Quarantine);
        let name = "laravel_unique_job:App\\Jobs\\A:7";
        let context = json!({"data": {}, "hidden": {
            "laravel_unique_job_key": format!("s:{}:\"{name}\";", name.len()),
            "laravel_unique_job_lock_owner": "s:2:\"me\";",
        }});
        let context = format!(",\"illuminate:log:context\":{context}");
        let mut scene = Scene::new(nothing());
        scene.services.stores = Some(stores(directory.path()));
        let attempted = scene.attempt(&unreadable(&context), 1, Settled::Done).await;
        let Settlement::Finish(effects) = attempted.settlement() else {
            panic!("{attempted:?}");
        };
        assert!(
            matches!(&effects[..], [Effect::Quarantine, Effect::Append(..)]),
            "{effects:?}"
        );
    }
}
