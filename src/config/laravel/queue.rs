//! Queue connections of the app.

use std::time::Duration;

use super::Laravel;
use super::error::{Found, SettingError};
use crate::connection::{DatabaseOptions, RedisOptions};
use crate::queue::{ConnectionName, DatabaseQueueOptions, RedisQueueOptions};

/// A queue connection of the app.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// Where the queues are.
    pub place: QueuePlace,
    /// Queue that is meant where none is named.
    pub default_queue: String,
}

/// Where queues are, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(
    clippy::large_enum_variant,
    reason = "there is one for each connection of an app"
)]
pub enum QueuePlace {
    /// Keys of a Redis.
    Redis {
        /// The server.
        redis: RedisOptions,
        /// The queues on it.
        queue: RedisQueueOptions,
    },
    /// A table of a database.
    Database {
        /// The database.
        database: DatabaseOptions,
        /// The queues in it.
        queue: DatabaseQueueOptions,
    },
}

/// Drivers of queue connections that artisand works.
pub(in crate::config) const DRIVERS: [&str; 2] = ["redis", "database"];

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

    /// A queue connection; `prefix` is said for it and beats the app's key prefix.
    ///
    /// # Errors
    ///
    /// It is missing, has a driver that artisand does not work, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Connectors\RedisConnector`, `DatabaseConnector`.
    pub fn queue(&self, name: &str, prefix: Option<&str>) -> Found<QueueSettings> {
        let path = ["queue", "connections", name];
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = ["queue", "connections", name, "driver"];
        let place = match &*self.text(&driver)?.unwrap_or_default() {
            "redis" => self.redis_queue(name, prefix)?,
            "database" => self.database_queue(name)?,
            other => {
                return Err(SettingError::Wrong {
                    path: driver.join("."),
                    found: format!("`{other}`"),
                    expected: "`redis` or `database`, the drivers that artisand works".into(),
                });
            }
        };
        let default_queue = self.text(&["queue", "connections", name, "queue"])?;
        Ok(QueueSettings {
            place,
            default_queue: default_queue
                .filter(|queue| !queue.is_empty())
                .unwrap_or_else(|| "default".into()),
        })
    }

    fn redis_queue(&self, name: &str, prefix: Option<&str>) -> Found<QueuePlace> {
        let of = |key: &'static str| ["queue", "connections", name, key];
        let redis = self
            .text(&of("connection"))?
            .unwrap_or_else(|| "default".into());
        let redis = self.prefixed_redis(&redis, prefix)?;
        let defaults = RedisQueueOptions::default();
        let batch = self.number(&of("migration_batch_size"))?;
        let batch = batch.and_then(|batch| usize::try_from(batch).ok());
        Ok(QueuePlace::Redis {
            redis: redis.options,
            queue: RedisQueueOptions {
                connection: ConnectionName::from(name),
                retry_after: Some(self.retry_after(name)?),
                notify: self.is_at_least(5, 8),
                migration_batch: batch
                    .filter(|batch| *batch > 0)
                    .unwrap_or(defaults.migration_batch),
                ..defaults
            },
        })
    }

    fn database_queue(&self, name: &str) -> Found<QueuePlace> {
        let of = |key: &'static str| ["queue", "connections", name, key];
        let database = self.database(self.text(&of("connection"))?.as_deref())?;
        let table = self.text(&of("table"))?.filter(|table| !table.is_empty());
        Ok(QueuePlace::Database {
            queue: DatabaseQueueOptions {
                connection: ConnectionName::from(name),
                table: table.ok_or_else(|| self.missing(&of("table")))?,
                retry_after: self.retry_after(name)?,
                failed: self.failed_table_in(&database),
                ..DatabaseQueueOptions::default()
            },
            database,
        })
    }

    /// How long a reservation lives: 60 seconds if the setting is missing or null, as in Laravel's connectors.
    fn retry_after(&self, name: &str) -> Found<Duration> {
        let seconds = self.number(&["queue", "connections", name, "retry_after"])?;
        let seconds = seconds.unwrap_or(60);
        Ok(Duration::from_secs(u64::try_from(seconds).unwrap_or(0)))
    }
}
