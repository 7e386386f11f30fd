//! What a worker would make of waiting jobs, for those who only look.

use std::sync::{Arc, Mutex, OnceLock};

use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::event::Observers;
use super::fetch::find;
use super::job::{Company, Shared};
use super::options::WorkerOptions;
use super::tally::Tallies;
use crate::handler::{Router, Services};
use crate::payload::Payload;
use crate::queue::{ConnectionName, QueueName};

/// What a worker would make of waiting jobs, without one.
pub(crate) struct Preview(Shared);

impl Preview {
    /// A worker of this connection.
    pub(crate) fn new(
        router: Arc<Router>,
        services: Arc<Services>,
        connection: ConnectionName,
    ) -> Self {
        let options = WorkerOptions::default();
        Self(Shared {
            tallies: Tallies::new(&router),
            router,
            connection,
            defaults: options.defaults,
            is_sequential: true,
            has_timeouts: true,
            rest: options.rest,
            retry_after: None,
            clock: options.clock,
            verdicts: mpsc::channel(1).0,
            running: Arc::default(),
            observers: Observers::default(),
            stop: CancellationToken::new(),
            company: Company::default(),
            stopping: CancellationToken::new(),
            distrusted: Mutex::default(),
            refused: Mutex::default(),
            cache: None,
            pool: None,
            services,
            can_sign: OnceLock::new(),
            is_on_queue: Box::new(|_| false),
            recording: None,
        })
    }

    /// Why a job that has a mapping would not be run.
    pub(crate) fn refusal(&self, payload: &Payload, queue: &QueueName) -> Option<String> {
        find(&self.0, &mut payload.clone(), queue).err()
    }
}
