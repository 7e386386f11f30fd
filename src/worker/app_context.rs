//! The app and the connection that a worker works for.

use std::sync::{Arc, OnceLock};

use crate::handler::Services;
use crate::queue::{Ability, ConnectionName, Ledger, Queue, QueueName};
use crate::routing::{Router, UnmappedPolicy};
use crate::time::Clock;
use crate::worker::last_errors::LastErrors;
use crate::worker::options::WorkerOptions;

/// The app and the connection that a worker works for.
pub(super) struct AppContext {
    pub(super) router: Arc<Router>,
    /// What the app offers to its jobs.
    pub(super) services: Arc<Services>,
    pub(super) connection: ConnectionName,
    pub(super) clock: Clock,
    /// The records that are written in one step with a job's end.
    pub(super) ledger: Arc<dyn Ledger>,
    /// Whether a push to this connection happens in one step with the end of a job of it.
    pub(super) ends_in_one_step: bool,
    /// The last errors of jobs that are to be tried again.
    pub(super) last_errors: LastErrors,
    /// Whether PHP would run closures signed here, or the reason why not; determined once.
    pub(super) can_sign: OnceLock<Result<(), String>>,
}

impl AppContext {
    pub(super) fn new(
        router: Arc<Router>,
        services: Arc<Services>,
        options: &WorkerOptions,
        queue: &dyn Queue,
        ledger: Arc<dyn Ledger>,
    ) -> Self {
        Self {
            router,
            services,
            connection: options.connection.clone(),
            clock: options.clock,
            last_errors: LastErrors::new(&ledger, options.last_errors),
            ledger,
            ends_in_one_step: queue.abilities().has(Ability::FinishesInOneStep),
            can_sign: OnceLock::new(),
        }
    }

    /// A queue that PHP workers serve, for closures that follow a job of this queue.
    pub(super) fn php_queue(&self, queue: &QueueName) -> Option<QueueName> {
        let named = self.services.php_queue.clone();
        named.or_else(|| match self.router.unmapped() {
            UnmappedPolicy::Forward(to) => Some(to.clone()),
            // PHP workers take unmapped jobs from the same queue.
            UnmappedPolicy::Leave | UnmappedPolicy::Php => Some(queue.clone()),
            UnmappedPolicy::Fail => None,
        })
    }
}
