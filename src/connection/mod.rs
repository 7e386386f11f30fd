//! Opening connections to the app's servers.
//!
//! A [`Redis`] hands out one shared connection, reopens it after a loss, and never repeats a command by itself:
//! only the caller knows whether a command whose reply was lost may be sent twice.

mod address;
mod cluster;
mod databases;
mod endpoint;
mod error;
#[cfg(any(feature = "http", feature = "otlp"))]
mod http;
mod lock_place;
mod presence;
mod reconnect;
mod record;
mod redis;
mod sentinel;
mod server;
mod sql;
mod tls;

pub use address::Address;
pub(crate) use cluster::{slot, tag};
pub use databases::Databases;
pub use error::Error;
#[cfg(any(feature = "http", feature = "otlp"))]
pub(crate) use http::with_tls;
pub use lock_place::{DatabaseLock, LockPlace};
#[cfg(test)]
pub(crate) use presence::server_away;
pub(crate) use presence::{Presence, check_for_outage, is_away, servers_away};
pub(crate) use reconnect::Reconnect;
pub use record::{Record, RecordError};
pub(crate) use redis::percent_decode;
pub use redis::{Arg, RedisAddress, RedisOptions};
pub use sentinel::{SentinelServer, Sentinels};
pub use server::Redis;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub use sql::SqlConnection;
pub use sql::{
    Database, DatabaseKind, DatabaseOptions, FailedJobsTable, Param, Row, SqlError, Transaction,
};
pub(crate) use sql::{Tries, local_text, storable};
pub use tls::{TlsOptions, Trust};
