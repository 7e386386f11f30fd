//! Redis as all others see it: one server, or a cluster of them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use redis::{Cmd, FromRedisValue, Pipeline, Script, Value};
use tokio::runtime::Handle;

use super::Error;
use super::cluster::Cluster;
use super::redis::{Arg, Node, RedisAddress, RedisOptions};

/// A shared connection to one Redis database, or to a cluster.
///
/// On a cluster each command goes to the node that serves its key, which is the first argument of most commands.
#[derive(Clone)]
pub struct Redis(Server);

#[derive(Clone)]
enum Server {
    One(Node),
    Cluster(Arc<Cluster>),
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Redis")
            .field("address", &self.address())
            .field("prefix", &self.prefix())
            .finish_non_exhaustive()
    }
}

/// Reads a reply of a cluster.
fn read<T: FromRedisValue>(cluster: &Cluster, reply: Value) -> Result<T, Error> {
    T::from_redis_value(reply).map_err(|source| Error::Command {
        address: cluster.name().to_owned(),
        source: source.into(),
    })
}

impl Redis {
    /// How long a reply may take before the connection is given up, by default.
    pub const RESPONSE_TIMEOUT: Duration = Node::RESPONSE_TIMEOUT;

    /// Prepares a connection; the first command opens it.
    ///
    /// # Errors
    ///
    /// `Error::NoTls`, or an address the client refuses.
    pub fn new(options: &RedisOptions) -> Result<Self, Error> {
        Ok(Self(match &options.address {
            RedisAddress::Cluster { seeds, tls } => {
                Server::Cluster(Arc::new(Cluster::new(seeds, *tls, options)?))
            }
            _ => Server::One(Node::new(options)?),
        }))
    }

    /// Another connection to the same database, for commands that block.
    #[must_use]
    pub fn another(&self, response_timeout: Duration) -> Self {
        Self(match &self.0 {
            Server::One(node) => Server::One(node.another(response_timeout)),
            Server::Cluster(cluster) => {
                Server::Cluster(Arc::new(cluster.another(response_timeout)))
            }
        })
    }

    /// Opens connections on this runtime from now on, which reads and writes for all who use them: where nothing is said,
    /// that is the runtime of the first command, and all others wait while its threads are blocked. Only the first
    /// runtime that is given counts.
    pub(crate) fn open_on(&self, runtime: &Handle) {
        match &self.0 {
            Server::One(node) => node.open_on(runtime),
            Server::Cluster(cluster) => cluster.open_on(runtime),
        }
    }

    /// Whether it is a cluster, where a command takes keys of one slot only.
    pub fn is_cluster(&self) -> bool {
        matches!(self.0, Server::Cluster(_))
    }

    /// Whether both lead to the same database of the same server, judged by their addresses.
    pub fn is_same_database(&self, other: &Self) -> bool {
        match (&self.0, &other.0) {
            (Server::One(node), Server::One(other)) => node.is_same_database(other),
            (Server::Cluster(cluster), Server::Cluster(other)) => cluster.name() == other.name(),
            _ => false,
        }
    }

    /// Put before every key.
    pub fn prefix(&self) -> &str {
        match &self.0 {
            Server::One(node) => node.prefix(),
            Server::Cluster(cluster) => cluster.prefix(),
        }
    }

    /// Host and port, or path of the socket, or those nodes of a cluster that are configured.
    pub fn address(&self) -> &str {
        match &self.0 {
            Server::One(node) => node.address(),
            Server::Cluster(cluster) => cluster.name(),
        }
    }

    /// The servers that have keys: all masters of a cluster, each as a server of its own.
    ///
    /// # Errors
    ///
    /// No node of the cluster tells which there are.
    pub async fn masters(&self) -> Result<Vec<Self>, Error> {
        match &self.0 {
            Server::One(_) => Ok(vec![self.clone()]),
            Server::Cluster(cluster) => {
                let masters = Box::pin(cluster.masters()).await?;
                Ok(masters.into_iter().map(Server::One).map(Self).collect())
            }
        }
    }

    /// What each of the sentinels says: the master that it names, or why it names none; `None` without sentinels.
    #[cfg(feature = "cli")]
    pub(crate) async fn ask_sentinels(&self) -> Option<Vec<(String, Result<String, String>)>> {
        match &self.0 {
            Server::One(node) => node.ask_sentinels().await,
            Server::Cluster(_) => None,
        }
    }

    /// Asks the server, or all masters, for a sign of life.
    ///
    /// # Errors
    ///
    /// The connection cannot be opened (this is not logged; the caller has to report it), or the server refuses to
    /// serve.
    pub async fn ping(&self) -> Result<(), Error> {
        match &self.0 {
            Server::One(node) => node.ping().await,
            Server::Cluster(cluster) => Box::pin(cluster.ping()).await,
        }
    }

    /// Sends one command, once.
    ///
    /// # Errors
    ///
    /// `Error::Connect` if nothing was sent, `Error::Command` otherwise; the
    /// command may then have been carried out.
    pub async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Error> {
        match &self.0 {
            Server::One(node) => node.command(command).await,
            Server::Cluster(cluster) => read(cluster, Box::pin(cluster.command(command)).await?),
        }
    }

    /// Sends several commands at once, each on its own: others may be served in between. On a cluster all their keys
    /// have to be in one slot.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command); the first error of any of them.
    pub async fn pipeline<T: FromRedisValue>(&self, commands: &Pipeline) -> Result<T, Error> {
        match &self.0 {
            Server::One(node) => node.pipeline(commands).await,
            Server::Cluster(cluster) => Box::pin(cluster.pipeline(commands)).await,
        }
    }

    /// Runs a script by its digest, or by its text if the server does not know it.
    ///
    /// # Errors
    ///
    /// See [`command`](Self::command).
    pub async fn script<T: FromRedisValue>(
        &self,
        script: &Script,
        keys: &[String],
        args: &[Arg<'_>],
    ) -> Result<T, Error> {
        match &self.0 {
            Server::One(node) => node.script(script, keys, args).await,
            Server::Cluster(cluster) => {
                read(cluster, Box::pin(cluster.script(script, keys, args)).await?)
            }
        }
    }
}
