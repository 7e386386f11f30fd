//! Queue connections of the app.

use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::config::overflow::CachedPayloads;
use crate::connection::{DatabaseOptions, RedisOptions};
use crate::queue::{
    BeanstalkdOptions, ConnectionName, DatabaseQueueOptions, Overflow, RedisQueueOptions, SqsKey,
    SqsOptions, Tagging,
};

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
    /// Tubes of a beanstalkd.
    Beanstalkd {
        /// The server, and the queues on it.
        queue: BeanstalkdOptions,
    },
    /// Queues of Amazon SQS.
    Sqs {
        /// The account, and its queues.
        queue: SqsOptions,
    },
    /// Nowhere: jobs of this driver run where they are pushed, or are dropped.
    Nowhere(&'static str),
    /// The first of several connections; pushes go to the first that takes them.
    Failover(Vec<String>),
}

/// Drivers whose jobs wait nowhere.
const NOWHERE: [&str; 4] = ["sync", "null", "deferred", "background"];

/// Drivers of queue connections that artisand works.
pub(in crate::config) const DRIVERS: [&str; 5] =
    ["redis", "database", "beanstalkd", "sqs", "failover"];

impl Laravel {
    /// `queue.default`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn default_queue_connection(&self) -> SettingResult<Option<String>> {
        self.text(&["queue", "default"])
    }

    /// Names of the queue connections.
    ///
    /// # Errors
    ///
    /// They cannot be told.
    pub fn queue_connections(&self) -> SettingResult<Vec<String>> {
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
    pub fn queue_driver(&self, name: &str) -> SettingResult<Option<String>> {
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
    /// `Illuminate\Queue\Connectors\RedisConnector`, `DatabaseConnector`, `BeanstalkdConnector`, `SqsConnector`.
    pub fn queue(&self, name: &str, prefix: Option<&str>) -> SettingResult<QueueSettings> {
        let path = ["queue", "connections", name];
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = ["queue", "connections", name, "driver"];
        let place = match &*self.text(&driver)?.unwrap_or_default() {
            "redis" => self.redis_queue(name, prefix)?,
            "database" => self.database_queue(name)?,
            "beanstalkd" => self.beanstalkd_queue(name)?,
            "sqs" => self.sqs_queue(name)?,
            "failover" => self.failover_queue(name)?,
            other if let Some(driver) = NOWHERE.into_iter().find(|driver| *driver == other) => {
                QueuePlace::Nowhere(driver)
            }
            other => {
                return Err(SettingError::Wrong {
                    path: driver.join("."),
                    found: format!("`{other}`"),
                    expected:
                        "`redis`, `database`, `beanstalkd`, `sqs` or `failover`, the drivers that artisand works"
                            .into(),
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

    /// Path and value of the option with which phpredis encodes what it sends to the Redis of a queue connection,
    /// but for arguments of scripts; `None` for a connection that is on no Redis.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn queue_encoding(&self, name: &str) -> SettingResult<Option<(String, String)>> {
        let is_on_redis = self.queue_driver(name)?.as_deref() == Some("redis");
        if !is_on_redis || self.is_predis()? {
            return Ok(None);
        }
        Ok(self.redis(&self.redis_of_queue(name)?)?.encoded)
    }

    /// Name of the Redis connection of a queue connection.
    fn redis_of_queue(&self, name: &str) -> SettingResult<String> {
        let redis = self.text(&["queue", "connections", name, "connection"])?;
        Ok(redis.unwrap_or_else(|| "default".into()))
    }

    fn redis_queue(&self, name: &str, prefix: Option<&str>) -> SettingResult<QueuePlace> {
        let of = |key: &'static str| ["queue", "connections", name, key];
        let redis = self.prefixed_redis(&self.redis_of_queue(name)?, prefix)?;
        let defaults = RedisQueueOptions::default();
        let batch = self.number(&of("migration_batch_size"))?;
        let batch = batch.and_then(|batch| usize::try_from(batch).ok());
        let tagging = match redis.options.is_cluster() {
            true if self.is_at_least(13, 5) => Some(Tagging::Braces),
            true => Some(Tagging::AsNamed),
            false => None,
        };
        Ok(QueuePlace::Redis {
            redis: redis.options,
            queue: RedisQueueOptions {
                tagging,
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

    fn database_queue(&self, name: &str) -> SettingResult<QueuePlace> {
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

    fn beanstalkd_queue(&self, name: &str) -> SettingResult<QueuePlace> {
        let of = |key: &'static str| ["queue", "connections", name, key];
        let host = self.text(&of("host"))?.filter(|host| !host.is_empty());
        let defaults = BeanstalkdOptions::default();
        let port = self.number(&of("port"))?;
        let port = port.map(|port| {
            u16::try_from(port).map_err(|_| SettingError::Wrong {
                path: of("port").join("."),
                found: format!("`{port}`"),
                expected: "a port number".into(),
            })
        });
        let timeout = self.number(&of("timeout"))?;
        let timeout = timeout.and_then(|timeout| u64::try_from(timeout).ok());
        Ok(QueuePlace::Beanstalkd {
            queue: BeanstalkdOptions {
                connection: ConnectionName::from(name),
                host: host.ok_or_else(|| self.missing(&of("host")))?,
                port: port.transpose()?.unwrap_or(defaults.port),
                retry_after: self.retry_after(name)?.max(Duration::from_secs(1)),
                connect_timeout: timeout
                    .filter(|timeout| *timeout > 0)
                    .map_or(defaults.connect_timeout, crate::time::seconds),
                ..defaults
            },
        })
    }

    fn sqs_queue(&self, name: &str) -> SettingResult<QueuePlace> {
        let of = |key: &'static str| ["queue", "connections", name, key];
        let filled = |key| -> SettingResult<Option<String>> {
            Ok(self.text(&of(key))?.filter(|text| !text.is_empty()))
        };
        // As in Laravel, a key without its secret is none.
        let key = match (filled("key")?, filled("secret")?) {
            (Some(id), Some(secret)) => Some(SqsKey {
                id,
                secret,
                token: filled("token")?,
            }),
            _ => None,
        };
        Ok(QueuePlace::Sqs {
            queue: SqsOptions {
                connection: ConnectionName::from(name),
                key,
                region: filled("region")?,
                prefix: filled("prefix")?.unwrap_or_default(),
                suffix: filled("suffix")?.unwrap_or_default(),
                overflow: self.sqs_overflow(name)?,
                ..SqsOptions::default()
            },
        })
    }

    fn sqs_overflow(&self, name: &str) -> SettingResult<Option<Overflow>> {
        let path = |key: &'static str| ["queue", "connections", name, "overflow", key];
        let is_on = |key, default| -> SettingResult<bool> {
            Ok(match self.at(&path(key))? {
                Some(Value::Bool(is_on)) => *is_on,
                Some(Value::Number(number)) => number.as_i64() != Some(0),
                Some(Value::String(text)) => !matches!(text.as_str(), "" | "0"),
                _ => default,
            })
        };
        if !is_on("enabled", false)? {
            return Ok(None);
        }
        let store = self.text(&path("store"))?.filter(|store| !store.is_empty());
        let store = match store {
            Some(store) => store,
            None => self.default_cache()?,
        };
        Ok(Some(Overflow {
            store: Arc::new(CachedPayloads(self.cache(&store)?)),
            name: store,
            always: is_on("always", false)?,
            deletes: is_on("delete_after_processing", false)?,
        }))
    }

    fn failover_queue(&self, name: &str) -> SettingResult<QueuePlace> {
        let path = ["queue", "connections", name, "connections"];
        let wrong = |found: String| SettingError::Wrong {
            path: path.join("."),
            found,
            expected: "names of other queue connections, none of them of the driver `failover`"
                .into(),
        };
        let Some(Value::Array(names)) = self.at(&path)? else {
            return Err(self.missing(&path));
        };
        let names: Option<Vec<String>> = (names.iter())
            .map(|name| name.as_str().map(str::to_owned))
            .collect();
        let names = names.filter(|names| !names.is_empty());
        let names = names.ok_or_else(|| wrong("no list of names".into()))?;
        for inner in &names {
            if self.queue_driver(inner)?.as_deref() == Some("failover") {
                return Err(wrong(format!("`{inner}`")));
            }
        }
        Ok(QueuePlace::Failover(names))
    }

    /// How long a reservation lives: 60 seconds if the setting is missing or null, as in Laravel's connectors.
    fn retry_after(&self, name: &str) -> SettingResult<Duration> {
        let seconds = self.number(&["queue", "connections", name, "retry_after"])?;
        Ok(crate::time::seconds(seconds.unwrap_or(60)))
    }
}
