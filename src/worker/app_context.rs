//! The app and the connection that a worker works for.

use std::sync::{Arc, OnceLock};

use crate::connection::Redis;
use crate::handler::{Router, Services};
use crate::queue::ConnectionName;
use crate::time::Clock;
use crate::worker::options::WorkerOptions;

/// The app and the connection that a worker works for.
pub(super) struct AppContext {
    pub(super) router: Arc<Router>,
    /// What the app offers to its jobs.
    pub(super) services: Arc<Services>,
    pub(super) connection: ConnectionName,
    pub(super) clock: Clock,
    /// Whether a lock kept on this Redis can be freed in the same step as the job's end.
    pub(super) is_on_queue: Box<dyn Fn(&Redis) -> bool + Send + Sync>,
    /// Whether PHP would run closures signed here, or the reason why not; determined once.
    pub(super) can_sign: OnceLock<Result<(), String>>,
}

impl AppContext {
    pub(super) fn new(
        router: Arc<Router>,
        services: Arc<Services>,
        options: &WorkerOptions,
        is_on_queue: impl Fn(&Redis) -> bool + Send + Sync + 'static,
    ) -> Self {
        Self {
            router,
            services,
            connection: options.connection.clone(),
            clock: options.clock,
            is_on_queue: Box::new(is_on_queue),
            can_sign: OnceLock::new(),
        }
    }
}
