//! Predicts what a worker would do with waiting jobs, for commands that only look.

use std::sync::Arc;

use crate::handler::Services;
use crate::payload::Payload;
use crate::queue::{ConnectionName, MemoryQueue, QueueName};
use crate::routing::Router;
use crate::worker::app_context::AppContext;
use crate::worker::options::WorkerOptions;
use crate::worker::triage::Triage;
use crate::worker::triaged::{BypassReason, Candidate, Triaged};

/// Predicts what a worker would do with waiting jobs, without running one.
pub(crate) struct Preview(Triage);

impl Preview {
    /// A preview of a worker of this connection.
    pub(crate) fn new(
        router: Arc<Router>,
        services: Arc<Services>,
        connection: ConnectionName,
    ) -> Self {
        let options = WorkerOptions {
            connection,
            ..WorkerOptions::default()
        };
        // Keeps no locks of the app; nothing is pushed.
        let ledger = Arc::new(MemoryQueue::new(None));
        let app = AppContext::new(router, services, &options, &*ledger.clone(), ledger);
        Self(Triage::new(Arc::new(app)))
    }

    /// Reads the input of a job as its handler would, also for canaries and shadows; `None` if no handler gets the
    /// job.
    pub(crate) fn check(&self, payload: &Payload, queue: &QueueName) -> Option<Result<(), String>> {
        let Candidate { payload, triaged } = self.0.of(payload.clone(), queue);
        // Other jobs of a canary's or shadow's class run in the handler, or will.
        let handler = match triaged {
            Triaged::Run(routed) => routed.handler,
            Triaged::Bypass(bypass)
                if matches!(bypass.reason, BypassReason::Canary | BypassReason::Shadow) =>
            {
                bypass.handler
            }
            _ => return None,
        };
        Some(self.0.check_input(&payload, queue, &*handler))
    }

    /// Why a job that has a mapping would not be run.
    pub(crate) fn refusal(&self, payload: &Payload, queue: &QueueName) -> Option<String> {
        match self.0.of(payload.clone(), queue).triaged {
            Triaged::Unmapped(refusal) => refusal.map(|refusal| refusal.to_string()),
            Triaged::Bypass(bypass) => match bypass.reason {
                BypassReason::Mismatch(why) => Some(why),
                _ => None,
            },
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::json;

    use super::*;
    use crate::handler::{self, BoxError, JobContext};
    use crate::routing::{Canary, Mapping, Mode, OnMismatch, UnmappedPolicy};
    use crate::worker::test_support::{mapping, object, payload_of, router, services};

    #[derive(Deserialize)]
    struct Job {
        #[expect(dead_code, reason = "only its error is of interest")]
        n: u32,
    }

    #[test]
    fn waiting_jobs_are_read_as_the_handler_would_that_gets_them_now_or_later() {
        let canary = |percent| Mapping {
            canary: Canary::new(percent),
            ..mapping("App\\Jobs\\A")
        };
        let shadow = Mapping {
            mode: Mode::Shadow,
            ..mapping("App\\Jobs\\A")
        };
        let falls_back = Mapping {
            on_mismatch: OnMismatch::Php,
            ..mapping("App\\Jobs\\A")
        };
        let number = object("App\\Jobs\\A", 1, "s:1:\"n\";i:7;");
        let text = object("App\\Jobs\\A", 1, "s:1:\"n\";s:1:\"x\";");
        let in_batch = object("App\\Jobs\\A", 1, "s:7:\"batchId\";s:1:\"b\";");
        let nameless = json!({"uuid": null});
        #[rustfmt::skip]
        let rows = [
            // mapping, command => whether it is read and fits, whether it is said not to run
            (mapping("App\\Jobs\\A"), &number, Some(true),  false),
            (mapping("App\\Jobs\\A"), &text,   Some(false), false),
            (mapping("App\\Jobs\\B"), &number, None,        false),
            (canary(0.0),             &number, Some(true),  false),
            (canary(0.0),             &text,   Some(false), false),
            (shadow,                  &text,   Some(false), false),
            (falls_back.clone(),      &number, Some(true),  false),
            (falls_back,              &text,   None,        true),
            (mapping("App\\Jobs\\A"), &in_batch, None,      true),
        ];
        for (mapping, command, fits, is_refused) in rows {
            let row = format!("{} {:?} {command}", mapping.target, mapping.mode);
            let handler =
                handler::function(|_: Job, _: JobContext| async { Ok::<(), BoxError>(()) });
            let router = router(
                vec![mapping],
                UnmappedPolicy::Forward("php".into()),
                handler,
            );
            let services = Arc::new(services("13.31.0"));
            let preview = Preview::new(Arc::new(router), services, "redis".into());
            let payload = payload_of("App\\Jobs\\A", command, 1, &nameless);
            let payload = Payload::parse(&payload).unwrap();
            let checked = preview.check(&payload, &"default".into());
            assert_eq!(checked.map(|checked| checked.is_ok()), fits, "{row}");
            let refusal = preview.refusal(&payload, &"default".into());
            assert_eq!(refusal.is_some(), is_refused, "{row}: {refusal:?}");
        }
    }
}
