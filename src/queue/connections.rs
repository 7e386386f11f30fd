//! The app's queue connections by name: where a job that names a connection goes.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{Ability, ConnectionName, Queue, QueueName};

/// The app's queue connections.
#[derive(Debug, Clone)]
pub struct Connections {
    default: ConnectionName,
    all: Arc<BTreeMap<String, Destination>>,
}

/// One of the app's queue connections.
#[derive(Debug)]
pub struct Destination {
    /// The queue for jobs that name none.
    pub default_queue: QueueName,
    /// The queues of this connection. The text says why artisand cannot use them, mostly that they are not on
    /// Redis.
    pub queues: Result<Arc<dyn Queue>, String>,
}

impl Connections {
    /// The app's connections, and the name of the default one.
    pub fn new(
        default: impl Into<ConnectionName>,
        all: impl IntoIterator<Item = (String, Destination)>,
    ) -> Self {
        Self {
            default: default.into(),
            all: Arc::new(all.into_iter().collect()),
        }
    }

    /// Name of the connection for jobs that name none.
    pub fn default_name(&self) -> &ConnectionName {
        &self.default
    }

    /// The queues of all connections that artisand can use.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<dyn Queue>> {
        (self.all.values()).filter_map(|destination| destination.queues.as_ref().ok())
    }

    /// Whether payloads for a connection have an id and the number of attempts, as those on Redis; the connection may
    /// be one that artisand cannot use.
    pub(crate) fn counts_in_payload(&self, name: &str) -> bool {
        let queues = self.get(name).and_then(|to| to.queues.as_ref().ok());
        queues.is_none_or(|queues| queues.abilities().has(Ability::CountsInPayload))
    }

    /// The connection of this name; `None` if there is none.
    pub fn get(&self, name: &str) -> Option<&Destination> {
        self.all.get(name)
    }
}
