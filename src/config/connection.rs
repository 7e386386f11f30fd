//! Queue connections: what the file says of one, over what the app says.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use super::cluster;
use super::file::ConnectionTable;
use super::laravel::{DRIVERS, Laravel, QueuePlace, QueueSettings};
use super::ledger::{LedgerPlace, ledger};
use super::{Config, Error};
use crate::app::Version;
use crate::connection::{Redis, RedisAddress, RedisOptions};
use crate::outbox::follow_up::put_off;
use crate::queue::{
    BeanstalkdOptions, BeanstalkdQueue, ConnectionName, DatabaseQueue, DatabaseQueueOptions,
    Driver, InOrder, MemoryQueue, NoQueue, Queue, QueueName, RedisQueue, RedisQueueOptions,
    SqsOptions,
};
use crate::routing::{Router, UnmappedPolicy};
use crate::time::Clock;

/// A queue connection, ready to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// Its name; of a failover connection that of its first one, by which jobs and events know it.
    pub name: ConnectionName,
    /// The name by which the app pauses its queues.
    pub paused_as: ConnectionName,
    /// Names of all connections to which jobs are pushed in turn, if it is a failover connection.
    pub failover: Vec<String>,
    /// Where the queues are.
    pub place: QueuePlace,
    /// Queue that is meant where none is named.
    pub default_queue: QueueName,
    /// Where the ends of its jobs are noted, if its own server cannot do that; else why nothing is known.
    pub ledger: Result<LedgerPlace, String>,
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
    pub fn open(&self) -> Result<Arc<dyn Driver>, Error> {
        Ok(match &self.place {
            QueuePlace::Redis { redis, queue } => {
                let redis = Redis::new(redis).map_err(self.refused())?;
                Arc::new(RedisQueue::new(redis, queue.clone()).with_put_off(put_off))
            }
            QueuePlace::Database { database, queue } => {
                let opened = DatabaseQueue::new(database, queue.clone());
                Arc::new(opened.map_err(self.refused())?)
            }
            QueuePlace::Beanstalkd { queue } => {
                let queue = Arc::new(BeanstalkdQueue::new(queue.clone()));
                self.in_order(queue)?
            }
            QueuePlace::Sqs { queue } => self.in_order(sqs(queue)?)?,
            QueuePlace::Nowhere(driver) => {
                let ledger = Arc::new(MemoryQueue::new(None));
                let (name, queue) = (self.name.clone(), Arc::new(NoQueue::new(driver)));
                Arc::new(InOrder::new(name, queue, ledger, put_off, Clock::System))
            }
            QueuePlace::Failover(_) => unreachable!("its first connection stands for it"),
        })
    }

    /// Opens the queues only to push; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), but for a ledger that is missing.
    pub fn open_to_push(&self) -> Result<Arc<dyn Queue>, Error> {
        match &self.place {
            QueuePlace::Beanstalkd { queue } => Ok(Arc::new(BeanstalkdQueue::new(queue.clone()))),
            QueuePlace::Sqs { queue } => sqs(queue),
            QueuePlace::Nowhere(driver) => Err(Error::Nowhere {
                name: self.name.to_string(),
                driver,
            }),
            _ => Ok(self.open()?),
        }
    }

    /// Queues whose server only deletes jobs, with the ledger that notes their ends.
    fn in_order(&self, queue: Arc<dyn Queue>) -> Result<Arc<dyn Driver>, Error> {
        let missing = |why: &str| Error::NoLedger {
            connection: self.name.to_string(),
            driver: self.driver(),
            why: why.to_owned(),
        };
        let place = self.ledger.as_ref().map_err(|why| missing(why))?;
        let ledger = place.open().map_err(self.refused())?;
        let ledger = ledger.ok_or_else(|| missing("it is its own"))?;
        let name = self.name.clone();
        Ok(Arc::new(InOrder::new(
            name,
            queue,
            ledger,
            put_off,
            Clock::System,
        )))
    }

    /// Name of the driver.
    pub fn driver(&self) -> &'static str {
        match &self.place {
            QueuePlace::Redis { .. } => "redis",
            QueuePlace::Database { .. } => "database",
            QueuePlace::Beanstalkd { .. } => "beanstalkd",
            QueuePlace::Sqs { .. } => "sqs",
            QueuePlace::Nowhere(driver) => driver,
            QueuePlace::Failover(_) => "failover",
        }
    }

    /// Refuses what needs a queue that leaves some jobs where they are.
    ///
    /// # Errors
    ///
    /// The queues are on such a server, and the router asks for that.
    pub fn check_choices(&self, router: &Router) -> Result<(), Error> {
        if !matches!(
            self.place,
            QueuePlace::Beanstalkd { .. } | QueuePlace::Sqs { .. }
        ) {
            return Ok(());
        }
        let cannot = |setting: String, instead| Error::CannotChoose {
            connection: self.name.to_string(),
            driver: self.driver(),
            setting,
            instead,
        };
        if *router.unmapped() == UnmappedPolicy::Leave {
            return Err(cannot(
                "`policy = \"leave\"` under [unmapped]".into(),
                "let PHP run what has no mapping (`php`), send it to a queue of its own (`forward`), or let it `fail`",
            ));
        }
        if let Some(mapping) = router
            .mappings()
            .find(|mapping| mapping.concurrency.is_some())
        {
            return Err(cannot(
                format!("`concurrency` of the mapping of `{}`", mapping.target),
                "give these jobs a queue and a worker of their own",
            ));
        }
        Ok(())
    }

    /// Refuses queues whose keys lie in different slots of a cluster.
    ///
    /// # Errors
    ///
    /// The app's Laravel is older than 13.5, and gives such queues no tag.
    pub fn check_tags(&self, queues: &[QueueName]) -> Result<(), Error> {
        cluster::check_tags(self.name.as_str(), &self.place, queues)
    }

    fn refused(&self) -> impl Fn(crate::connection::Error) -> Error {
        let name = self.name.to_string();
        move |source| Error::Address {
            name: name.clone(),
            source,
        }
    }

    /// The Redis server, if the queues are on one.
    pub fn redis(&self) -> Option<&RedisOptions> {
        match &self.place {
            QueuePlace::Redis { redis, .. } => Some(redis),
            _ => None,
        }
    }

    /// How long a reservation lives; `None` for no end.
    pub fn retry_after(&self) -> Option<Duration> {
        match &self.place {
            QueuePlace::Redis { queue, .. } => queue.retry_after,
            QueuePlace::Database { queue, .. } => Some(queue.retry_after),
            QueuePlace::Beanstalkd { queue } => Some(queue.retry_after),
            QueuePlace::Sqs { queue } => queue.retry_after,
            QueuePlace::Nowhere(_) | QueuePlace::Failover(_) => None,
        }
    }

    /// Queues whose jobs are kept in others.
    pub fn forwards(&self) -> &BTreeMap<QueueName, QueueName> {
        static NONE: BTreeMap<QueueName, QueueName> = BTreeMap::new();
        match &self.place {
            QueuePlace::Redis { queue, .. } => &queue.forwards,
            QueuePlace::Database { queue, .. } => &queue.forwards,
            QueuePlace::Beanstalkd { queue } => &queue.forwards,
            QueuePlace::Sqs { queue } => &queue.forwards,
            QueuePlace::Nowhere(_) | QueuePlace::Failover(_) => &NONE,
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
    let redis = cluster::of(name, table, redis_of(config, name, table, redis)?)?;
    let queue = redis_queue(config, name, table, queue)?;
    let tagging = cluster::tagging(config, &redis, queue.tagging);
    Ok(QueuePlace::Redis {
        redis,
        queue: RedisQueueOptions { tagging, ..queue },
    })
}

/// The queues in a table of the app, over which the file says something.
fn database_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: DatabaseQueueOptions,
) -> Result<DatabaseQueueOptions, Error> {
    if let Some(key) = table.first_of_server() {
        return Err(Error::OnlyRedis {
            connection: name.to_owned(),
            key,
            place: "in a database",
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

/// The tubes of the app, over which the file says something.
fn beanstalkd_queue(
    config: &Config,
    name: &str,
    table: &ConnectionTable,
    of_app: BeanstalkdOptions,
) -> Result<BeanstalkdOptions, Error> {
    if let Some(key) = table.first_of_redis() {
        return Err(Error::OnlyRedis {
            connection: name.to_owned(),
            key,
            place: "on beanstalkd",
        });
    }
    // The server makes one second of none.
    let retry_after = table
        .retry_after
        .map(|seconds| Duration::from_secs(seconds.max(1)));
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
    if let Some(key) = table.first_of_server() {
        return Err(Error::OnlyRedis {
            connection: name.to_owned(),
            key,
            place: "on SQS",
        });
    }
    // A long poll takes a second at least, and may have reserved its messages when it began.
    let retry_after = (table.retry_after).map(|seconds| Duration::from_secs(seconds.max(3)));
    Ok(SqsOptions {
        retry_after,
        forwards: forwards(config, name),
        ..of_app
    })
}

#[cfg(feature = "sqs")]
#[expect(clippy::unnecessary_wraps, reason = "another build has no SQS")]
fn sqs(options: &SqsOptions) -> Result<Arc<dyn Queue>, Error> {
    Ok(Arc::new(crate::queue::SqsQueue::new(options.clone())))
}

#[cfg(not(feature = "sqs"))]
fn sqs(options: &SqsOptions) -> Result<Arc<dyn Queue>, Error> {
    Err(Error::Address {
        name: options.connection.to_string(),
        source: crate::connection::Error::NoSqs,
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
    } else if table.host.is_some()
        || table.port.is_some()
        || table.tls.is_some() && !redis.is_cluster()
    {
        let (host, port, is_tls) = match &redis.address {
            RedisAddress::Tcp(host, port) => (host.clone(), *port, false),
            RedisAddress::Tls(host, port) => (host.clone(), *port, true),
            RedisAddress::Unix(_) | RedisAddress::Cluster { .. } => {
                ("127.0.0.1".to_owned(), 6379, false)
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
        tagging: defaults.tagging,
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
