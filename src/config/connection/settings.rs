//! Puts together the settings of a queue connection: the file over what the app says.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;

use super::{Connection, redis};
use crate::config::cluster;
use crate::config::file::ConnectionTable;
use crate::config::laravel::{DRIVERS, Laravel, QueuePlace, QueueSettings};
use crate::config::ledger::{LedgerPlace, ledger};
use crate::config::{Config, Error};
use crate::connection::RedisOptions;
use crate::queue::{
    BeanstalkdOptions, ConnectionName, DatabaseQueueOptions, QueueName, RedisQueueOptions,
    SqsOptions,
};

/// Puts together the settings of a queue connection.
///
/// # Errors
///
/// An unknown name, a variable that is no number, an address that cannot be
/// used, a key prefix that cannot be told or that nothing says.
pub fn connection(config: &Config, name: &str) -> Result<Connection, Error> {
    let connection = connection_without_prefix(config, name)?;
    if redis::is_prefix_unknown(config, name) {
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
    if let Some(QueueSettings {
        place: QueuePlace::Failover(names),
        ..
    }) = &of_app
    {
        // The settings' reader has seen that there is one, and that it is no failover connection.
        let first = names.first().map_or("", String::as_str);
        return Ok(Connection {
            paused_as: ConnectionName::from(name),
            failover: names.clone(),
            ..connection_without_prefix(config, first)?
        });
    }
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
        Some(place @ (QueuePlace::Nowhere(_) | QueuePlace::Failover(_))) => place,
        Some(QueuePlace::Beanstalkd { queue }) => QueuePlace::Beanstalkd {
            queue: beanstalkd_queue(config, name, table, queue)?,
        },
        Some(QueuePlace::Sqs { queue }) => QueuePlace::Sqs {
            queue: sqs_queue(config, name, table, queue)?,
        },
        Some(QueuePlace::Redis { redis, queue }) => {
            on_redis(config, name, table, Some(redis), Some(queue))?
        }
        None => on_redis(config, name, table, None, None)?,
    };
    let ledger = match &place {
        QueuePlace::Beanstalkd { .. } | QueuePlace::Sqs { .. } => ledger(config),
        _ => Ok(LedgerPlace::Own),
    };
    Ok(Connection {
        name: ConnectionName::from(name),
        paused_as: ConnectionName::from(name),
        failover: Vec::new(),
        place,
        ledger,
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
    let redis = cluster::of(name, table, redis::server(config, name, table, redis)?)?;
    let queue = redis::queue(config, name, table, queue)?;
    Ok(QueuePlace::Redis {
        queue: RedisQueueOptions {
            forwards: forwards(config, name),
            tagging: cluster::tagging(config, &redis, queue.tagging),
            ..queue
        },
        redis,
    })
}

/// Refuses a setting of Redis in the file for a connection that is elsewhere.
fn only_redis(name: &str, key: Option<&'static str>, place: &'static str) -> Result<(), Error> {
    let Some(key) = key else {
        return Ok(());
    };
    Err(Error::OnlyRedis {
        connection: name.to_owned(),
        key,
        place,
    })
}

/// The queues in a table of the app, over which the file says something.
fn database_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: DatabaseQueueOptions,
) -> Result<DatabaseQueueOptions, Error> {
    only_redis(name, table.first_of_server(), "in a database")?;
    let retry_after = table.retry_after.map(crate::time::seconds);
    Ok(DatabaseQueueOptions {
        retry_after: retry_after.unwrap_or(of_app.retry_after),
        look_ahead: table
            .look_ahead
            .map_or(of_app.look_ahead, NonZeroUsize::get),
        forwards: forwards(config, name),
        ..of_app
    })
}

/// The tubes of the app, over which the file says something.
fn beanstalkd_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: BeanstalkdOptions,
) -> Result<BeanstalkdOptions, Error> {
    only_redis(name, table.first_of_redis(), "on beanstalkd")?;
    // The server makes one second of none.
    let retry_after = table
        .retry_after
        .map(|seconds| crate::time::seconds(seconds.max(1)));
    Ok(BeanstalkdOptions {
        host: table.host.clone().unwrap_or(of_app.host),
        port: table.port.unwrap_or(of_app.port),
        retry_after: retry_after.unwrap_or(of_app.retry_after),
        forwards: forwards(config, name),
        ..of_app
    })
}

/// The queues of the app's account, over which the file says something.
fn sqs_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: SqsOptions,
) -> Result<SqsOptions, Error> {
    only_redis(name, table.first_of_server(), "on SQS")?;
    // A long poll takes a second at least, and may have reserved its messages when it began.
    let retry_after = (table.retry_after).map(|seconds| crate::time::seconds(seconds.max(3)));
    Ok(SqsOptions {
        retry_after,
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
                    place:
                        QueuePlace::Database { .. }
                        | QueuePlace::Beanstalkd { .. }
                        | QueuePlace::Sqs { .. }
                        | QueuePlace::Nowhere(_)
                        | QueuePlace::Failover(_),
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
