//! Opens queue connections by name.

use std::sync::Arc;

use tokio::runtime::Handle;

use super::prefixes;
use crate::config::{self, Config, Connection, Error, QueuePlace};
use crate::horizon::Horizon;
use crate::queue::Driver;

/// Opens a queue connection for a command that ends no job, and makes sure that the server answers.
pub(super) async fn open(
    config: &Config,
    name: &str,
) -> anyhow::Result<(Arc<dyn Driver>, Connection)> {
    let connection = connection(config, name).await?;
    let queue = connection.open_without_work()?;
    check(&*queue, &connection, name).await?;
    Ok((queue, connection))
}

/// Opens the queues of a connection for a worker, and makes the file of its ledger, if that is a file and missing.
///
/// Other commands do not make it: the file belongs to the user who makes it, and workers have to write to it.
pub(super) async fn open_to_work(
    config: &Config,
    name: &str,
) -> anyhow::Result<(Arc<dyn Driver>, Connection)> {
    let connection = connection(config, name).await?;
    if let Ok(ledger) = &connection.ledger {
        ledger.prepare().await?;
    }
    let queue = connection.open()?;
    check(&*queue, &connection, name).await?;
    Ok((queue, connection))
}

/// Makes sure that the server answers.
async fn check(queue: &dyn Driver, connection: &Connection, name: &str) -> anyhow::Result<()> {
    let answer = queue.ping().await;
    if let (Err(error), QueuePlace::Database { queue, .. }) = (&answer, &connection.place)
        && error.is_missing_table()
    {
        return Err(Error::NoTable {
            connection: name.to_owned(),
            table: queue.table.clone(),
        }
        .into());
    }
    Ok(answer?)
}

/// The queue connection that an argument names: the default one, as in Laravel, if that is falsy in PHP.
pub(super) fn named(config: &Config, argument: Option<&str>) -> String {
    match argument {
        None | Some("" | "0") => config.default_connection(),
        Some(name) => name.to_owned(),
    }
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

/// Starts to record for the app's Horizon what this command pushes onto a connection or moves in it. The caller waits
/// for [`Horizon::finish`].
pub(super) fn record_for_horizon(
    config: &Config,
    connection: &str,
    queue: &dyn Driver,
) -> anyhow::Result<Option<Horizon>> {
    let Some(options) = config::horizon(config, connection)? else {
        return Ok(None);
    };
    let horizon = Horizon::start(options, Arc::new(|_| ()), &Handle::current())?;
    queue.tell_pushes(Arc::new(horizon.recorder()));
    Ok(Some(horizon))
}
