//! Opens queue connections by name.

use super::prefixes;
use crate::config::{self, Config, Connection, Error};
use crate::connection::Redis;
use crate::queue::{Queue as _, RedisQueue};

/// Opens a queue connection and makes sure that the server answers.
pub(super) async fn open(config: &Config, name: &str) -> anyhow::Result<(RedisQueue, Connection)> {
    let connection = connection(config, name).await?;
    let redis = Redis::new(&connection.redis)?;
    let queue = RedisQueue::new(redis, connection.queue.clone());
    queue.ping().await?;
    Ok((queue, connection))
}

/// The settings of a queue connection; if its key prefix is unknown, the error lists the prefixes found on the
/// server.
pub(super) async fn connection(config: &Config, name: &str) -> Result<Connection, Error> {
    match config::connection(config, name) {
        Err(Error::NoPrefix { connection, .. }) => {
            let seen = prefixes::prefixes_at(config, name).await;
            Err(Error::NoPrefix { connection, seen })
        }
        known => known,
    }
}
