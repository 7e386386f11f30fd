//! Queue connections: what the file says of one, over what the app says.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use super::Error;
use super::cluster;
use super::laravel::QueuePlace;
use super::ledger::LedgerPlace;
use crate::connection::{Redis, RedisOptions};
use crate::outbox::follow_up::put_off;
use crate::queue::{
    BeanstalkdQueue, ConnectionName, DatabaseQueue, Driver, InOrder, MemoryQueue, NoQueue, Queue,
    QueueName, RedisQueue, SqsOptions,
};
use crate::routing::{Router, UnmappedPolicy};
use crate::time::Clock;

mod redis;
pub(super) mod settings;

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

    /// Opens the queues for a command that ends no job, which makes no file: a ledger in a file that is not there holds
    /// nothing yet.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    #[cfg(feature = "cli")]
    pub(crate) fn open_without_work(&self) -> Result<Arc<dyn Driver>, Error> {
        match &self.ledger {
            Ok(LedgerPlace::File(path)) if matches!(path.try_exists(), Ok(false)) => {
                let ledger = Arc::new(MemoryQueue::new(None));
                Ok(self.with_ledger(self.open_to_push()?, ledger))
            }
            _ => self.open(),
        }
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
        Ok(self.with_ledger(queue, ledger))
    }

    fn with_ledger(&self, queue: Arc<dyn Queue>, ledger: Arc<dyn Driver>) -> Arc<dyn Driver> {
        let name = self.name.clone();
        Arc::new(InOrder::new(name, queue, ledger, put_off, Clock::System))
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
    pub fn check_tags<'q>(
        &self,
        queues: impl IntoIterator<Item = &'q QueueName>,
    ) -> Result<(), Error> {
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
