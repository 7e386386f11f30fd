//! The driver for `SQLite`.

use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::ConnectOptions as _;

use super::driver::{Answer, Open, Pool};
use super::options::DatabaseOptions;
use super::row::{Param, Row};
use super::statement::{begun, open, pool_options, records, run, text_rows};
use crate::connection::Error;
use crate::connection::record::{Record, Value};

/// Connections to a file.
struct Sqlite(sqlx::SqlitePool);

/// Prepares a pool; nothing is opened yet.
#[expect(clippy::unnecessary_wraps, reason = "other drivers refuse settings")]
pub(super) fn open(options: &DatabaseOptions) -> Result<Box<dyn Pool>, Error> {
    let connect = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&options.database)
        .create_if_missing(false)
        .busy_timeout(Duration::from_secs(10))
        .disable_statement_logging();
    Ok(Box::new(Sqlite(
        pool_options(options).connect_lazy_with(connect),
    )))
}

impl Pool for Sqlite {
    fn execute<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Box::pin(async move { Ok(run!(&self.0, sql, params, execute)?.rows_affected()) })
    }

    fn rows<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Box::pin(async move { text_rows!(run!(&self.0, sql, params, fetch_all)) })
    }

    fn records<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Record>> {
        Box::pin(async move {
            let rows = run!(&self.0, sql, params, fetch_all);
            records!(rows, |row, place, _: &str| sqlite_value(row, place))
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Open>> {
        Box::pin(async move {
            let pool = self.0.clone();
            let begin = async move { pool.begin_with("BEGIN IMMEDIATE").await };
            Ok(Box::new(begun(begin).await?) as Box<dyn Open>)
        })
    }

    fn try_to_connect(&self) -> Answer<'_, ()> {
        Box::pin(async move { Ok(self.0.connect_options().connect().await.map(drop)?) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.0.close())
    }
}

open!(sqlx::Transaction<'static, sqlx::Sqlite>);

fn sqlite_value(row: &sqlx::sqlite::SqliteRow, place: usize) -> Result<Value, sqlx::Error> {
    use sqlx::{Row as _, TypeInfo as _, ValueRef as _};
    let raw = row.try_get_raw(place)?;
    if raw.is_null() {
        return Ok(Value::Null);
    }
    // The value's own type, which in `SQLite` may differ from the column's.
    let kind = raw.type_info();
    Ok(match kind.name() {
        "INTEGER" => Value::Int(row.try_get_unchecked(place)?),
        "REAL" => Value::Float(format!("{:?}", row.try_get_unchecked::<f64, _>(place)?)),
        "BLOB" => Value::Bytes(row.try_get_unchecked(place)?),
        _ => Value::from_bytes(row.try_get_unchecked(place)?),
    })
}
