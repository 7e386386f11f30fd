//! Queue connections of the app.

use std::time::Duration;

use super::Laravel;
use super::error::{Found, SettingError};
use crate::connection::RedisOptions;
use crate::queue::{ConnectionName, RedisQueueOptions};

/// A queue connection of the app.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// The server.
    pub redis: RedisOptions,
    /// The queues on it.
    pub queue: RedisQueueOptions,
    /// Queue that is meant where none is named.
    pub default_queue: String,
}

impl Laravel {
    /// `queue.default`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn default_queue_connection(&self) -> Found<Option<String>> {
        self.text(&["queue", "default"])
    }

    /// Names of the queue connections.
    ///
    /// # Errors
    ///
    /// They cannot be told.
    pub fn queue_connections(&self) -> Found<Vec<String>> {
        self.names(&["queue", "connections"])
    }

    /// Whether there is a queue connection of this name.
    pub fn has_queue_connection(&self, name: &str) -> bool {
        matches!(
            self.at(&["queue", "connections", name]),
            Ok(Some(_)) | Err(_)
        )
    }

    /// Driver of a queue connection; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn queue_driver(&self, name: &str) -> Found<Option<String>> {
        self.text(&["queue", "connections", name, "driver"])
    }

    /// A queue connection, which has to be one on Redis; `prefix` is said for it and beats the app's key prefix.
    ///
    /// # Errors
    ///
    /// It is missing, has another driver, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Connectors\RedisConnector`.
    pub fn queue(&self, name: &str, prefix: Option<&str>) -> Found<QueueSettings> {
        let path = ["queue", "connections", name];
        let of = |key: &'static str| ["queue", "connections", name, key];
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = self.text(&of("driver"))?.unwrap_or_default();
        if driver != "redis" {
            return Err(SettingError::Wrong {
                path: of("driver").join("."),
                found: format!("`{driver}`"),
                expected: "`redis`, the only driver this version works".into(),
            });
        }
        let redis = self
            .text(&of("connection"))?
            .unwrap_or_else(|| "default".into());
        let redis = self.prefixed_redis(&redis, prefix)?;
        let retry_after = self.number(&of("retry_after"))?.unwrap_or(60);
        let defaults = RedisQueueOptions::default();
        let batch = self.number(&of("migration_batch_size"))?;
        let batch = batch.and_then(|batch| usize::try_from(batch).ok());
        Ok(QueueSettings {
            redis: redis.options,
            queue: RedisQueueOptions {
                connection: ConnectionName::from(name),
                retry_after: Some(Duration::from_secs(u64::try_from(retry_after).unwrap_or(0))),
                notify: self.is_at_least(5, 8),
                migration_batch: batch
                    .filter(|batch| *batch > 0)
                    .unwrap_or(defaults.migration_batch),
                ..defaults
            },
            default_queue: self
                .text(&of("queue"))?
                .filter(|queue| !queue.is_empty())
                .unwrap_or_else(|| "default".into()),
        })
    }
}
