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
