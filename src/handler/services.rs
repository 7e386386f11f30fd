//! What the app offers to its jobs beside their queue: keys, batches, locks, databases, and facts about its classes.

use std::sync::Arc;

use crate::batch::Batches;
use crate::cache::Stores;
use crate::payload::{Encrypter, Version};
use crate::queue::{Connections, QueueName};

/// Everything of the app that a job may need while it runs and when it has ended; what is `None` is not there.
///
/// Made once per worker from the app's configuration and manifest. Nothing is
/// opened before it is needed.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Services {
    /// Version of the app's Laravel, whose rules hold.
    pub version: Version,
    /// The app's cache stores.
    pub stores: Option<Stores>,
    /// The app's queue connections.
    pub connections: Option<Connections>,
    /// A queue that PHP serves, for what only PHP can do; by default the one that unmapped jobs go to.
    pub php_queue: Option<QueueName>,
    /// The app's batches; `None` where nothing is known of them, or they are not in a database.
    pub batches: Option<Batches>,
    /// The app's keys: they read encrypted jobs and sign closures.
    pub encrypter: Option<Arc<Encrypter>>,
    /// Why there is no encrypter, and what would give one.
    pub encrypter_missing: Option<Box<str>>,
}
