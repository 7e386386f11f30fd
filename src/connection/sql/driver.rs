//! What a driver does: one implementation per kind of server.

use std::time::Duration;

use futures_util::future::BoxFuture;

use super::error::SqlError;
use super::row::{Param, Row};
use crate::connection::record::Record;

/// How long opening a connection may take.
pub(super) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// What becomes of a statement.
pub(super) type Answer<'a, T> = BoxFuture<'a, Result<T, SqlError>>;

/// A pool of connections to one server.
pub(super) trait Pool: Send + Sync {
    /// Runs a statement and returns how many rows it changed.
    fn execute<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64>;

    /// Runs a query whose columns are all text.
    fn rows<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>>;

    /// Runs a query for rows of any table; `sql` is not translated.
    fn records<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Record>>;

    /// Begins a transaction; if dropped without a commit, it is rolled back.
    fn begin(&self) -> Answer<'_, Box<dyn Open>>;

    /// Connects once more, to meet the error that the pool does not report.
    fn try_to_connect(&self) -> Answer<'_, ()>;

    /// The server has become read-only: its connections are closed before they are used again. A file has no other
    /// server.
    fn note_read_only(&self) {}

    /// Closes all connections.
    fn close(&self) -> BoxFuture<'_, ()>;
}

/// A transaction that has begun.
pub(super) trait Open: Send + Sync {
    /// Runs a statement and returns how many rows it changed.
    fn execute<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64>;

    /// Runs a query whose columns are all text.
    fn rows<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>>;

    /// Commits the transaction.
    fn commit(self: Box<Self>) -> Answer<'static, ()>;

    /// Rolls the transaction back.
    fn rollback(self: Box<Self>) -> Answer<'static, ()>;
}
