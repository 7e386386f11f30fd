//! Every key name of the Redis driver.

use super::{QueueName, Spool};

/// Makes key names: the client prefix, then Laravel's name.
///
/// # Source
///
/// `Illuminate\Queue\RedisQueue::getQueue` (docs/protocol/redis-driver.md 2).
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Key names under this client prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
        }
    }

    /// List of pending jobs, oldest at the left.
    pub fn list(&self, queue: &QueueName) -> String {
        format!("{}queues:{queue}", self.prefix)
    }

    /// Sorted set of jobs that are not yet due.
    pub fn delayed(&self, queue: &QueueName) -> String {
        format!("{}queues:{queue}:delayed", self.prefix)
    }

    /// Sorted set of jobs being run.
    pub fn reserved(&self, queue: &QueueName) -> String {
        format!("{}queues:{queue}:reserved", self.prefix)
    }

    /// List of one `1` per pending job, since Laravel 5.8.
    pub fn notify(&self, queue: &QueueName) -> String {
        format!("{}queues:{queue}:notify", self.prefix)
    }

    /// List of payloads that cannot be decoded; ours.
    pub fn quarantine(&self, queue: &QueueName) -> String {
        format!("{}queues:{queue}:quarantine", self.prefix)
    }

    /// A list of records that wait to be brought elsewhere; ours.
    pub fn spool(&self, spool: Spool) -> String {
        format!("{}{}", self.prefix, spool.key())
    }

    /// Who brings the records of such a list where they belong; ours.
    pub fn spool_lease(&self, spool: Spool) -> String {
        format!("{}{}:lease", self.prefix, spool.key())
    }

    /// Says that a payload with this identity was pushed already; ours.
    pub fn pushed(&self, id: &str) -> String {
        format!("{}artisand:pushed:{id}", self.prefix)
    }

    /// The queue whose notify list this is.
    pub(super) fn queue_of_notify(&self, key: &str) -> Option<QueueName> {
        let name = key
            .strip_prefix(&self.prefix)?
            .strip_prefix("queues:")?
            .strip_suffix(":notify")?;
        Some(name.into())
    }
}
