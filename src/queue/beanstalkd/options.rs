//! Settings of a beanstalkd queue connection.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::queue::{ConnectionName, QueueName};

/// Settings of a beanstalkd queue connection (`queue.connections.NAME`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BeanstalkdOptions {
    /// Name of the queue connection.
    pub connection: ConnectionName,
    /// Name or address of the server.
    pub host: String,
    /// Port of the server.
    pub port: u16,
    /// How long a reservation of jobs pushed here lives, in whole seconds and at least one. Each job brings its own: a
    /// job of another producer may have another.
    pub retry_after: Duration,
    /// How long to wait for a connection (`timeout`).
    pub connect_timeout: Duration,
    /// Whether idle workers wait for jobs on the server; otherwise they only look from time to time.
    pub waits: bool,
    /// Forwarded queues (`Queue::forward`, Laravel 13): jobs of the first are in the tube of the second.
    pub forwards: BTreeMap<QueueName, QueueName>,
}

impl Default for BeanstalkdOptions {
    fn default() -> Self {
        Self {
            connection: "beanstalkd".into(),
            host: "127.0.0.1".into(),
            port: 11300,
            // The default of Laravel's connector if the setting is missing or null.
            retry_after: Duration::from_secs(60),
            connect_timeout: Duration::from_secs(10),
            waits: true,
            forwards: BTreeMap::new(),
        }
    }
}
