//! Settings of an SQS queue connection.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::queue::{Answer, ConnectionName, QueueName};

/// Settings of an SQS queue connection (`queue.connections.NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SqsOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// Who signs the requests; `None` for the SDK's own search: environment, profile, web identity, container,
    /// instance.
    pub key: Option<SqsKey>,
    /// Region, such as `eu-central-1`; `None` for the SDK's own search.
    pub region: Option<String>,
    /// What stands before the name of a queue in its URL.
    pub prefix: String,
    /// What is added to the name of a queue.
    pub suffix: String,
    /// How long a reservation lives. `None`: as the queue says, and no shorter than
    /// 30 seconds.
    pub retry_after: Option<Duration>,
    /// Where long payloads are; `None` if the app does not keep them.
    pub overflow: Option<Overflow>,
    /// Forwarded queues (`Queue::forward`, Laravel 13): jobs of the first are in the second.
    pub forwards: BTreeMap<QueueName, QueueName>,
}

impl Default for SqsOptions {
    fn default() -> Self {
        Self {
            connection: "sqs".into(),
            key: None,
            region: None,
            prefix: String::new(),
            suffix: String::new(),
            retry_after: None,
            overflow: None,
            forwards: BTreeMap::new(),
        }
    }
}

/// A key of an account.
#[derive(Clone, PartialEq, Eq)]
pub struct SqsKey {
    /// Its public part.
    pub id: String,
    /// Its secret part.
    pub secret: String,
    /// The token of a key that was lent.
    pub token: Option<String>,
}

impl fmt::Debug for SqsKey {
    /// Shows the public part only.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqsKey")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}

/// Where payloads that are too long for a message are kept (`overflow`, Laravel 13.9).
#[derive(Debug, Clone)]
pub struct Overflow {
    /// Name of the cache store.
    pub name: String,
    /// The cache store.
    pub store: Arc<dyn PayloadStore>,
    /// Whether all payloads are kept there, and not only long ones.
    pub always: bool,
    /// Whether a payload is deleted with its message.
    pub deletes: bool,
}

impl PartialEq for Overflow {
    /// A store has its name.
    fn eq(&self, other: &Self) -> bool {
        let known = |overflow: &Self| (overflow.always, overflow.deletes);
        self.name == other.name && known(self) == known(other)
    }
}

impl Eq for Overflow {}

/// What a store of payloads reports.
pub type StoreProblem = Box<dyn std::error::Error + Send + Sync>;

/// A store of payloads, which PHP and other workers see.
pub trait PayloadStore: Send + Sync + fmt::Debug {
    /// The payload of this key, if it is there.
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<String>, StoreProblem>;

    /// Keeps a payload until it is forgotten.
    fn put<'a>(&'a self, key: &'a str, payload: &'a str) -> Answer<'a, (), StoreProblem>;

    /// Deletes a payload.
    fn forget<'a>(&'a self, key: &'a str) -> Answer<'a, (), StoreProblem>;
}
