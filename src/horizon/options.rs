//! What has to be known about the app's Horizon.

use std::time::Duration;

use crate::connection::RedisOptions;
use crate::queue::{ConnectionName, QueueName};

/// Settings of the app's Horizon.
#[derive(Debug, Clone)]
pub struct HorizonOptions {
    /// Server, database and Horizon's own key prefix (`horizon.use`, `horizon.prefix`).
    pub redis: RedisOptions,
    /// Queue connections whose jobs have records: those on Redis, and failover connections that work one of these; each
    /// with the name that Horizon has for it.
    pub connections: Vec<(ConnectionName, ConnectionName)>,
    /// How long records are kept.
    pub trim: Trim,
    /// How many of the jobs that succeed keep their record.
    pub completed: Share,
    /// The worker that writes the records; `None` for a command that pushes jobs, and for a worker whose own jobs have
    /// none.
    pub worker: Option<Supervisor>,
}

impl HorizonOptions {
    /// What is written beside pushes onto the connection `redis` alone, with Horizon's own settings otherwise.
    #[cfg(any(test, feature = "internals"))]
    pub fn of_pushes(redis: RedisOptions) -> Self {
        Self {
            redis,
            connections: vec![("redis".into(), "redis".into())],
            trim: Trim::default(),
            completed: Share::ALL,
            worker: None,
        }
    }

    /// The name under which Horizon knows a connection; `None` for one whose jobs it does not know.
    pub fn name_of(&self, connection: &ConnectionName) -> Option<&ConnectionName> {
        name_of(&self.connections, connection)
    }
}

pub(super) fn name_of<'a>(
    connections: &'a [(ConnectionName, ConnectionName)],
    connection: &ConnectionName,
) -> Option<&'a ConnectionName> {
    let mut names = connections.iter();
    let (_, name) = names.find(|(name, _)| name == connection)?;
    Some(name)
}

/// How a worker appears in Horizon.
#[derive(Debug, Clone)]
pub struct Supervisor {
    /// What the dashboard shows of it.
    pub registration: Registration,
    /// The name of this host as Horizon's commands look for it; `None` if those commands cannot reach this process.
    pub host: Option<String>,
    /// What stands for the app's environment: none of those that `horizon.environments` names.
    pub environment: String,
    /// Name of the queue connection.
    pub connection: String,
    /// Queues in order of priority.
    pub queues: Vec<QueueName>,
    /// Jobs that can run at once, in PHP processes too.
    pub slots: usize,
    /// Tries of jobs without their own.
    pub tries: i64,
    /// Timeout of jobs without their own.
    pub timeout: Duration,
}

/// What the dashboard shows of a worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Registration {
    /// A master with a supervisor: Horizon counts as running.
    #[default]
    Full,
    /// A supervisor without a master: its queues and processes count, and `horizon:status` does not change.
    Supervisor,
    /// Nothing.
    Off,
}

/// A part of all, from 0 to 1.
#[derive(Debug, Clone, Copy, PartialEq, serde::Deserialize)]
#[serde(try_from = "f64")]
pub struct Share(f64);

impl Share {
    /// All of them.
    pub const ALL: Self = Self(1.0);

    /// Whether the share holds one that is chosen by a number from 0 to 1.
    pub(super) fn holds(self, chance: f64) -> bool {
        chance < self.0
    }
}

impl Default for Share {
    fn default() -> Self {
        Self::ALL
    }
}

impl TryFrom<f64> for Share {
    type Error = &'static str;

    fn try_from(share: f64) -> Result<Self, Self::Error> {
        let is_share = (0.0..=1.0).contains(&share);
        is_share
            .then_some(Self(share))
            .ok_or("expected a number from 0 to 1")
    }
}

/// Minutes that records are kept (`horizon.trim`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trim {
    /// Jobs of the past hour.
    pub recent: u64,
    /// Jobs that have not ended.
    pub pending: u64,
    /// Jobs that succeeded.
    pub completed: u64,
    /// Failed jobs.
    pub failed: u64,
    /// The count of failed jobs.
    pub recent_failed: u64,
    /// Jobs with a monitored tag.
    pub monitored: u64,
}

impl Default for Trim {
    /// Horizon's own values.
    fn default() -> Self {
        Self {
            recent: 60,
            pending: 60,
            completed: 60,
            failed: 10_080,
            recent_failed: 10_080,
            monitored: 10_080,
        }
    }
}
