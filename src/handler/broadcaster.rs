//! Publishes broadcast events as Laravel's Redis broadcaster does (`handler = "broadcast"`).
//!
//! What is published is found out by [`app::broadcast`](crate::app::broadcast).
//! An event of which only PHP knows it is not taken: it counts as unmapped, and
//! the reason is said ([`Handler::refuses`]).
//!
//! docs/protocol/commands.md 16.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, LazyLock};

use redis::Script;
use serde::de::IgnoredAny;

use super::{
    BoxError, BoxFuture, Handler, JobContext, ModelId, ModelIdentifier, ModelKey, Services,
};
use crate::app::Missing;
use crate::app::broadcast::{ModelRow, Published, RowKey, published};
use crate::connection::{self, Arg, Redis};
use crate::payload::{Command, Payload};

/// Laravel's own script, so that a server with rules about scripts needs no others.
///
/// KEYS: none. ARGV: the text, then the channels with the app's prefix. Returns
/// nothing. All channels get the text, or none.
static PUBLISH: LazyLock<Script> = LazyLock::new(|| {
    Script::new("for i = 2, #ARGV do\n  redis.call('publish', ARGV[i], ARGV[1])\nend")
});

/// Publishes broadcast events (`handler = "broadcast"`).
#[derive(Debug, Clone, Copy)]
pub struct Broadcaster;

/// The app's broadcast connections.
#[derive(Clone, Default)]
pub struct BroadcastConnections {
    default: String,
    connections: BTreeMap<String, Result<BroadcastConnection, String>>,
}

/// A broadcast connection with the driver `redis`.
#[derive(Debug, Clone)]
pub struct BroadcastConnection {
    redis: Redis,
    prefix: Arc<str>,
}

impl fmt::Debug for BroadcastConnections {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BroadcastConnections")
            .field("default", &self.default)
            .field("connections", &self.connections.keys())
            .finish()
    }
}

impl BroadcastConnection {
    /// Publishes on this server; `prefix` is put before the names of channels.
    pub fn new(redis: Redis, prefix: impl Into<Arc<str>>) -> Self {
        Self {
            redis,
            prefix: prefix.into(),
        }
    }

    async fn publish(&self, channels: &[Vec<u8>], json: &[u8]) -> Result<(), connection::Error> {
        let prefixed = channels
            .iter()
            .map(|channel| [self.prefix.as_bytes(), channel].concat());
        let prefixed: Vec<Vec<u8>> = prefixed.collect();
        let mut args = vec![Arg::Bytes(json)];
        args.extend(prefixed.iter().map(|channel| Arg::Bytes(channel)));
        self.redis.script::<()>(&PUBLISH, &[], &args).await
    }
}

impl BroadcastConnections {
    /// Connections by name; an error says why one cannot be published on from here.
    pub fn new(
        default: impl Into<String>,
        connections: impl IntoIterator<Item = (String, Result<BroadcastConnection, String>)>,
    ) -> Self {
        Self {
            default: default.into(),
            connections: connections.into_iter().collect(),
        }
    }

    /// The connection of this name, or the default one.
    fn get(&self, name: Option<&str>) -> Result<&BroadcastConnection, String> {
        let name = name.filter(|name| !matches!(*name, "" | "0"));
        let name = name.unwrap_or(&self.default);
        match self.connections.get(name) {
            Some(Ok(connection)) => Ok(connection),
            Some(Err(why)) => Err(format!("its broadcast connection `{name}`: {why}")),
            None if self.default.is_empty() => {
                Err("the app's default broadcast connection is not set".to_owned())
            }
            None => Err(format!(
                "the app has no broadcast connection `{name}` (there are: {})",
                match self.connections.len() {
                    0 => "none".to_owned(),
                    _ => self
                        .connections
                        .keys()
                        .cloned()
                        .collect::<Vec<_>>()
                        .join(", "),
                }
            )),
        }
    }
}

/// An event that could not be published.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BroadcastError {
    /// Only PHP can publish it.
    #[error("cannot be broadcast here: {why}")]
    NeedsPhp {
        /// Why.
        why: String,
    },
    /// Redis could not be reached, or refused it.
    #[error(
        "could not broadcast on {} channels of connection `{connection}`",
        channels
    )]
    Publish {
        /// The broadcast connection.
        connection: String,
        /// How many channels there are.
        channels: usize,
        /// What the client or the server said.
        source: connection::Error,
    },
}

fn needs_php(why: impl Into<String>) -> BroadcastError {
    BroadcastError::NeedsPhp { why: why.into() }
}

/// What is to be published for a job, all that it takes being there.
fn look(payload: &Payload, services: &Services) -> Result<Published, BroadcastError> {
    let command = Command::of(payload).map_err(|error| needs_php(error.to_string()))?;
    let command = command.ok_or_else(|| needs_php("it is no broadcast event but a string job"))?;
    let value = command.to_value();
    let value = value.map_err(|error| needs_php(error.to_string()))?;
    let found = published(services.manifest.as_deref(), services.version, &value);
    let found = found.map_err(|missing: Missing| needs_php(missing.to_string()))?;
    let connections = services
        .broadcasts()
        .map_err(|why| needs_php(why.to_string()))?;
    for message in &found.messages {
        let connection = connections.get(message.connection.as_deref());
        connection.map_err(needs_php)?;
    }
    for row in &found.models {
        let database = services.databases.get(row.connection.as_deref());
        database.map_err(|error| {
            needs_php(format!(
                "the row of {} cannot be looked for: {error}",
                row.class
            ))
        })?;
    }
    Ok(found)
}

impl From<&ModelRow> for ModelIdentifier {
    fn from(row: &ModelRow) -> Self {
        Self {
            class: Some(row.class.clone()),
            id: ModelId::Single(match &row.key {
                RowKey::Int(key) => ModelKey::Int(*key),
                RowKey::Text(key) => ModelKey::Text(key.clone()),
            }),
            relations: Vec::new(),
            connection: row.connection.clone(),
            collection_class: None,
        }
    }
}

impl Handler for Broadcaster {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(async move {
            let services = context.services();
            let found = look(context.payload(), services)?;
            for row in &found.models {
                // PHP reads the row before it asks the event: a job whose model is gone publishes nothing.
                let _: IgnoredAny = context.model(&row.into()).await?;
            }
            let connections = services.broadcasts()?;
            for message in &found.messages {
                let name = message.connection.as_deref();
                let connection = connections.get(name).map_err(needs_php)?;
                let sent = connection.publish(&message.channels, &message.json).await;
                sent.map_err(|source| BroadcastError::Publish {
                    connection: name.unwrap_or(&connections.default).to_owned(),
                    channels: message.channels.len(),
                    source,
                })?;
            }
            Ok(())
        })
    }

    fn refuses(&self, payload: &Payload, services: &Services) -> Option<String> {
        match look(payload, services) {
            Ok(_) => None,
            Err(BroadcastError::NeedsPhp { why }) => Some(why),
            Err(error) => Some(error.to_string()),
        }
    }
}
