//! Queue connections: what the file says of one, over what the app says.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::file::ConnectionTable;
use super::laravel::{DRIVERS, Laravel, QueuePlace, QueueSettings};
use super::{Config, Error};
use crate::app::Version;
use crate::connection::{Redis, RedisAddress, RedisOptions};
use crate::queue::{
    ConnectionName, DatabaseQueue, DatabaseQueueOptions, Driver, QueueName, RedisQueue,
    RedisQueueOptions,
};

/// A queue connection, ready to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Its name.
    pub name: ConnectionName,
    /// Where the queues are.
    pub place: QueuePlace,
    /// Queue that is meant where none is named.
    pub default_queue: QueueName,
}

impl Connection {
    /// Opens the queues; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// The server cannot be used with these settings, or by this build.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn open(&self) -> Result<Arc<dyn Driver>, crate::connection::Error> {
        Ok(match &self.place {
            QueuePlace::Redis { redis, queue } => {
                Arc::new(RedisQueue::new(Redis::new(redis)?, queue.clone()))
            }
            QueuePlace::Database { database, queue } => {
                Arc::new(DatabaseQueue::new(database, queue.clone())?)
            }
        })
    }

    /// The Redis server, if the queues are on one.
    pub fn redis(&self) -> Option<&RedisOptions> {
        match &self.place {
            QueuePlace::Redis { redis, .. } => Some(redis),
            QueuePlace::Database { .. } => None,
        }
    }

    /// How long a reservation lives; `None` for no end.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.place {
            QueuePlace::Redis { queue, .. } => queue.retry_after,
            QueuePlace::Database { queue, .. } => Some(queue.retry_after),
        }
    }

    /// Queues whose jobs are kept in others.
    pub fn forwards(&self) -> &BTreeMap<QueueName, QueueName> {
        match &self.place {
            QueuePlace::Redis { queue, .. } => &queue.forwards,
            QueuePlace::Database { queue, .. } => &queue.forwards,
        }
    }
}

/// Puts together the settings of a queue connection.
///
/// # Errors
///
/// An unknown name, a variable that is no number, an address that cannot be
/// used, a key prefix that cannot be told or that nothing says.
pub fn connection(config: &Config, name: &str) -> Result<Connection, Error> {
    let connection = connection_without_prefix(config, name)?;
    if is_prefix_unknown(config, name) {
        return Err(Error::NoPrefix {
            connection: name.to_owned(),
            seen: String::new(),
        });
    }
    Ok(connection)
}

/// The settings of a queue connection, also where nothing says which key prefix the app has: then it is empty.
///
/// # Errors
///
/// As [`connection`](connection), but for the prefix that nothing says.
pub fn connection_without_prefix(config: &Config, name: &str) -> Result<Connection, Error> {
    if !config.is_known(name) {
        return Err(Error::UnknownConnection {
            name: name.to_owned(),
            configured: config.connections().join(", "),
        });
    }
    let empty = ConnectionTable::default();
    let table = config.file.connections.get(name).unwrap_or(&empty);
    let of_app = connection_of_app(config, name, table)?;
    let default_queue = table
        .queue
        .clone()
        .or_else(|| match &of_app {
            Some(of_app) => Some(of_app.default_queue.clone()),
            None => config.env("REDIS_QUEUE"),
        })
        .filter(|queue| !queue.is_empty());
    let place = match of_app.map(|of_app| of_app.place) {
        Some(QueuePlace::Database { database, queue }) => {
            let queue = database_queue(config, name, table, queue)?;
            QueuePlace::Database { database, queue }
        }
        Some(QueuePlace::Redis { redis, queue }) => {
            on_redis(config, name, table, Some(redis), Some(queue))?
        }
        None => on_redis(config, name, table, None, None)?,
    };
    Ok(Connection {
        name: ConnectionName::from(name),
        place,
        default_queue: default_queue.unwrap_or_else(|| "default".into()).into(),
    })
}

fn on_redis(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    redis: Option<RedisOptions>,
    queue: Option<RedisQueueOptions>,
) -> Result<QueuePlace, Error> {
    Ok(QueuePlace::Redis {
        redis: redis_of(config, name, table, redis)?,
        queue: redis_queue(config, name, table, queue)?,
    })
}

/// The queues in a table of the app, over which the file says something.
fn database_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: DatabaseQueueOptions,
) -> Result<DatabaseQueueOptions, Error> {
    if let Some(key) = table.first_of_redis() {
        return Err(Error::OnlyRedis {
            connection: name.to_owned(),
            key,
        });
    }
    let retry_after = table.retry_after.map(Duration::from_secs);
    Ok(DatabaseQueueOptions {
        retry_after: retry_after.unwrap_or(of_app.retry_after),
        look_ahead: table
            .look_ahead
            .map_or(of_app.look_ahead, NonZeroUsize::get),
        forwards: forwards(config, name),
        ..of_app
    })
}

/// What the app says of a connection; `None` if it says nothing, or is not needed.
fn connection_of_app(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
) -> Result<Option<QueueSettings>, Error> {
    match &config.laravel {
        Some(laravel) if laravel.has_queue_connection(name) => {
            match laravel.queue(name, table.prefix.as_deref()) {
                // What the file says in full needs nothing of the app.
                Ok(QueueSettings {
                    place: QueuePlace::Database { .. },
                    ..
                })
                | Err(_)
                    if table.says_all() =>
                {
                    Ok(None)
                }
                Err(error) => match other_driver(laravel, name) {
                    Some(driver) => Err(Error::Driver {
                        name: name.to_owned(),
                        driver,
                        usable: usable(laravel),
                    }),
                    None => config.setting(Err(error)),
                },
                found => config.setting(found).map(Some),
            }
        }
        _ => Ok(None),
    }
}

/// The driver of a connection, if artisand does not work it.
fn other_driver(laravel: &Laravel, name: &str) -> Option<String> {
    let driver = laravel.queue_driver(name).ok().flatten();
    driver.filter(|driver| !DRIVERS.contains(&driver.as_str()))
}

/// The app's connections that artisand works.
fn usable(laravel: &Laravel) -> String {
    let mut names = laravel.queue_connections().unwrap_or_default();
    names.retain(|name| {
        let driver = laravel.queue_driver(name).ok().flatten();
        driver.is_some_and(|driver| DRIVERS.contains(&driver.as_str()))
    });
    if names.is_empty() {
        "none".to_owned()
    } else {
        names.join(", ")
    }
}

/// The server.
fn redis_of(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: Option<RedisOptions>,
) -> Result<RedisOptions, Error> {
    let prefix = match (&table.prefix, &of_app) {
        (Some(prefix), _) => prefix.clone(),
        (None, Some(of_app)) => of_app.prefix.clone(),
        (None, None) => config.env("REDIS_PREFIX").unwrap_or_default(),
    };
    let mut redis = match of_app {
        Some(of_app) => of_app,
        None => redis_of_env(config)?,
    };
    let address = |source| Error::Address {
        name: name.to_owned(),
        source,
    };
    if let Some(url) = &table.url {
        redis.apply_url(url).map_err(address)?;
    }
    if let Some(socket) = &table.socket {
        redis.address = RedisAddress::Unix(socket.clone());
    } else if table.host.is_some() || table.port.is_some() || table.tls.is_some() {
        let (host, port, is_tls) = match &redis.address {
            RedisAddress::Tcp(host, port) => (host.clone(), *port, false),
            RedisAddress::Tls(host, port) => (host.clone(), *port, true),
            RedisAddress::Unix(_) => ("127.0.0.1".to_owned(), 6379, false),
        };
        let host = table.host.clone().unwrap_or(host);
        redis.address = RedisOptions::address_of(
            &host,
            table.port.unwrap_or(port),
            table.tls.unwrap_or(is_tls),
        );
    }
    redis.username = table.username.clone().or(redis.username);
    redis.password = table.password.clone().or(redis.password);
    redis.database = table.database.unwrap_or(redis.database);
    redis.prefix = prefix;
    Ok(redis)
}

/// The queues on it.
fn redis_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: Option<RedisQueueOptions>,
) -> Result<RedisQueueOptions, Error> {
    let seconds = "a whole number of seconds";
    let defaults = match of_app {
        Some(of_app) => of_app,
        None => RedisQueueOptions {
            retry_after: Some(Duration::from_secs(
                config
                    .number("REDIS_QUEUE_RETRY_AFTER", seconds)?
                    .unwrap_or(90),
            )),
            notify: !is_before_notify_lists(config),
            ..RedisQueueOptions::default()
        },
    };
    Ok(RedisQueueOptions {
        connection: ConnectionName::from(name),
        retry_after: table
            .retry_after
            .map(Duration::from_secs)
            .or(defaults.retry_after),
        notify: table.notify.unwrap_or(defaults.notify),
        migration_batch: table
            .migration_batch_size
            .map_or(defaults.migration_batch, NonZeroUsize::get),
        look_ahead: table
            .look_ahead
            .map_or(defaults.look_ahead, NonZeroUsize::get),
        forwards: forwards(config, name),
    })
}

/// Queues of a connection that the app forwards to others, as its manifest says.
fn forwards(config: &Config, connection: &str) -> BTreeMap<QueueName, QueueName> {
    let Some((_, manifest)) = &config.manifest else {
        return BTreeMap::new();
    };
    let queues = manifest.queue_forwards.keys();
    let ends = queues.map(|queue| (queue, manifest.forwarded_queue(queue, connection)));
    ends.filter(|(queue, end)| queue != end)
        .map(|(queue, end)| (queue.as_str().into(), end.into()))
        .collect()
}

/// Redis as the app's `default` connection says it.
fn redis_of_env(config: &Config) -> Result<RedisOptions, Error> {
    let filled = |name: &str| config.env(name).filter(|value| !value.is_empty());
    let host = filled("REDIS_HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
    let port = config
        .number("REDIS_PORT", "a port number")?
        .unwrap_or(6379);
    let is_tls = filled("REDIS_SCHEME").is_some_and(|scheme| scheme == "tls" || scheme == "rediss");
    let mut redis = RedisOptions {
        address: RedisOptions::address_of(&host, port, is_tls),
        username: filled("REDIS_USERNAME"),
        password: filled("REDIS_PASSWORD"),
        database: config
            .number("REDIS_DB", "the number of a database")?
            .unwrap_or(0),
        prefix: String::new(),
    };
    if let Some(url) = filled("REDIS_URL") {
        let address = |source| Error::Address {
            name: "REDIS_URL".to_owned(),
            source,
        };
        redis.apply_url(&url).map_err(address)?;
    }
    Ok(redis)
}

/// Whether nothing says which key prefix the app has.
fn is_prefix_unknown(config: &Config, connection: &str) -> bool {
    let table = config.file.connections.get(connection);
    table.is_none_or(|table| table.prefix.is_none())
        && config.laravel.is_none()
        && !config.is_set("REDIS_PREFIX")
}

/// Whether the app's Laravel is older than 5.8, which brought the notify lists.
fn is_before_notify_lists(config: &Config) -> bool {
    let version = config.file.laravel.as_deref();
    let version = version.and_then(|version| version.parse::<Version>().ok());
    version.is_some_and(|version| !version.is_at_least(5, 8))
}
