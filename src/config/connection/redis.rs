//! A connection on Redis: its server, and the queues there.

use std::num::NonZeroUsize;

use crate::app::Version;
use crate::config::file::ConnectionTable;
use crate::config::{Config, Error};
use crate::connection::{self, RedisAddress, RedisOptions};
use crate::queue::{ConnectionName, RedisQueueOptions};

/// The server.
pub(super) fn server(
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
    } else if table.host.is_some()
        || table.port.is_some()
        || table.tls.is_some() && !redis.is_cluster() && table.cluster.is_none()
    {
        let is_tls = redis.address.has_tls();
        let (host, port) = match &redis.address {
            RedisAddress::Tcp(host, port) | RedisAddress::Tls(host, port) => (host.clone(), *port),
            RedisAddress::Unix(_) => ("127.0.0.1".to_owned(), 6379),
            RedisAddress::Sentinel(_) | RedisAddress::Cluster { .. } if table.host.is_some() => {
                (String::new(), 6379)
            }
            RedisAddress::Cluster { .. } if table.cluster.is_some() => (String::new(), 6379),
            RedisAddress::Sentinel(_) | RedisAddress::Cluster { .. } => {
                return Err(address(without_host(table)));
            }
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
pub(super) fn queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: Option<RedisQueueOptions>,
) -> Result<RedisQueueOptions, Error> {
    let seconds = "a whole number of seconds";
    let defaults = match of_app {
        Some(of_app) => of_app,
        None => RedisQueueOptions {
            retry_after: Some(crate::time::seconds(
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
            .map(crate::time::seconds)
            .or(defaults.retry_after),
        notify: table.notify.unwrap_or(defaults.notify),
        migration_batch: table
            .migration_batch_size
            .map_or(defaults.migration_batch, NonZeroUsize::get),
        look_ahead: table
            .look_ahead
            .map_or(defaults.look_ahead, NonZeroUsize::get),
        forwards: defaults.forwards,
        tagging: defaults.tagging,
    })
}

/// Sentinels and clusters say the ports of their servers, and the app whether they speak TLS.
fn without_host(table: &ConnectionTable) -> connection::Error {
    let (name, value) = match (table.port, table.tls) {
        (Some(port), _) => ("port", port.to_string()),
        (None, is_tls) => ("tls", is_tls.unwrap_or_default().to_string()),
    };
    connection::Error::Setting {
        name: name.to_owned(),
        value,
        expected: "`host` beside it, or neither: the app's sentinels or cluster name the servers",
    }
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
        ..RedisOptions::default()
    };
    if let Some(url) = filled("REDIS_URL") {
        let address = |source| Error::Address {
            name: "REDIS_URL".to_owned(),
            source,
        };
        redis.apply_url(&url).map_err(address)?;
    }
    redis.address = config.redis_table().over("default", redis.address);
    Ok(redis)
}

/// Whether nothing says which key prefix the app has.
pub(super) fn is_prefix_unknown(config: &Config, connection: &str) -> bool {
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
