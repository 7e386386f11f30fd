//! Every key name of the Redis driver.

use std::collections::BTreeMap;

use super::{QueueName, Spool};

/// Makes key names: the client prefix, then Laravel's name.
///
/// # Source
///
/// `Illuminate\Queue\RedisQueue::getQueue` (docs/protocol/redis-driver.md 2).
#[derive(Debug, Clone)]
pub struct Keys {
    prefix: String,
    /// Queues whose jobs are stored under the keys of another queue.
    forwards: BTreeMap<QueueName, QueueName>,
}

impl Keys {
    /// Key names under this client prefix.
    pub fn new(prefix: impl Into<String>) -> Self {
        Self {
            prefix: prefix.into(),
            forwards: BTreeMap::new(),
        }
    }

    /// The same keys, with forwarded queues (`Queue::forward`, Laravel 13): all commands for a forwarded queue use
    /// the keys of its target.
    #[must_use]
    pub fn with_forwards(self, forwards: BTreeMap<QueueName, QueueName>) -> Self {
        Self { forwards, ..self }
    }

    /// The queue under whose keys the jobs of `queue` are stored.
    fn kept<'q>(&'q self, queue: &'q QueueName) -> &'q QueueName {
        self.forwards.get(queue).unwrap_or(queue)
    }

    /// List of pending jobs, oldest at the left.
    pub fn list(&self, queue: &QueueName) -> String {
        format!("{}queues:{}", self.prefix, self.kept(queue))
    }

    /// Sorted set of jobs that are not yet due.
    pub fn delayed(&self, queue: &QueueName) -> String {
        format!("{}queues:{}:delayed", self.prefix, self.kept(queue))
    }

    /// Sorted set of jobs that are being run.
    pub fn reserved(&self, queue: &QueueName) -> String {
        format!("{}queues:{}:reserved", self.prefix, self.kept(queue))
    }

    /// List of one `1` per pending job, since Laravel 5.8.
    pub fn notify(&self, queue: &QueueName) -> String {
        format!("{}queues:{}:notify", self.prefix, self.kept(queue))
    }

    /// List of payloads that cannot be decoded; artisand's own key.
    pub fn quarantine(&self, queue: &QueueName) -> String {
        format!("{}queues:{}:quarantine", self.prefix, self.kept(queue))
    }

    /// A list of records that wait to be moved elsewhere; artisand's own key.
    pub fn spool(&self, spool: Spool) -> String {
        format!("{}{}", self.prefix, spool.key())
    }

    /// The process that drains such a list; artisand's own key.
    pub fn spool_lease(&self, spool: Spool) -> String {
        format!("{}{}:lease", self.prefix, spool.key())
    }

    /// The last error of a job; artisand's own key.
    pub fn last_error(&self, job: &str) -> String {
        format!("{}artisand:last-error:{job}", self.prefix)
    }

    /// Sorted set of the names of workers, by the second of their last heartbeat; artisand's own key.
    pub fn workers(&self) -> String {
        format!("{}artisand:workers", self.prefix)
    }

    /// The record of a worker; artisand's own key.
    pub fn worker(&self, name: &str) -> String {
        format!("{}artisand:worker:{name}", self.prefix)
    }

    /// Notes the end of a job of another server; artisand's own key.
    pub(super) fn ended(&self, id: &str) -> String {
        format!("{}artisand:ended:{id}", self.prefix)
    }

    /// Marks a payload with this identity as pushed; artisand's own key.
    pub fn pushed(&self, id: &str) -> String {
        format!("{}artisand:pushed:{id}", self.prefix)
    }
}
