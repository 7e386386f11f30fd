//! What the checks look at.

use std::sync::Arc;

use super::encryption::Locked;
use crate::cli::named;
use crate::config::{self, Config, Error};
use crate::payload::Encrypter;
use crate::routing::{Registry, Router};
use crate::worker::Preview;

/// What the checks look at.
pub(super) struct Context<'a> {
    pub(super) config: &'a Config,
    /// The app's PHP.
    pub(super) php: &'a [String],
    /// Name of the queue connection.
    pub(super) connection: String,
    /// Waiting jobs of each queue that are looked at.
    pub(super) sample: usize,
    pub(super) router: Result<Arc<Router>, Error>,
    pub(super) key: Result<Encrypter, Locked>,
    /// Predicts which jobs with a mapping a worker would not run.
    pub(super) preview: Option<Preview>,
}

impl<'a> Context<'a> {
    pub(super) fn new(
        config: &'a Config,
        php: &'a [String],
        connection: Option<&str>,
        sample: usize,
        registry: &Registry,
    ) -> Self {
        let connection = named(config, connection);
        let router = config::router(config, registry).map(Arc::new);
        let preview = router.as_ref().ok().and_then(|router| {
            let name = config::connection(config, &connection).ok()?.name;
            let services = Arc::new(config::services(config).ok()?);
            Some(Preview::new(Arc::clone(router), services, name))
        });
        Self {
            key: config::encrypter(config).map_err(|error| Locked::of(&error)),
            config,
            php,
            connection,
            sample,
            router,
            preview,
        }
    }

    /// The mappings, unless one has an error.
    pub(super) fn router(&self) -> Option<&Router> {
        self.router.as_deref().ok()
    }
}
