//! The driver for `SQLite`.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use sqlx::ConnectOptions as _;
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::driver::{Answer, Open, Pool};
use super::options::DatabaseOptions;
use super::row::{Param, Row};
use super::statement::{begun, open, pool_options, records, run, text_rows};
use crate::connection::Error;
use crate::connection::record::{Record, Value};

/// How long a connection waits for another one, which may be another program's.
const BUSY_TIMEOUT: Duration = Duration::from_secs(10);

/// Connections to a file.
struct Sqlite {
    pool: sqlx::SqlitePool,
    /// The file has one writer at a time, for which `SQLite` waits by sleeping: connections of one pool take turns.
    writing: Arc<Mutex<()>>,
}

type Turn = OwnedMutexGuard<()>;

impl Sqlite {
    /// Waits for the turn to write; without one, the file itself says who may.
    async fn turn(&self) -> Option<Turn> {
        let turn = Arc::clone(&self.writing).lock_owned();
        tokio::time::timeout(BUSY_TIMEOUT, turn).await.ok()
    }

    /// The same, if the statement writes.
    async fn turn_for(&self, sql: &str) -> Option<Turn> {
        if sql.trim_start().starts_with("select") {
            return None;
        }
        self.turn().await
    }
}

/// A transaction, and its turn to write.
struct Writing {
    transaction: sqlx::Transaction<'static, sqlx::Sqlite>,
    turn: Option<Turn>,
}

/// Prepares a pool; nothing is opened yet.
#[expect(clippy::unnecessary_wraps, reason = "other drivers refuse settings")]
pub(super) fn open(options: &DatabaseOptions) -> Result<Box<dyn Pool>, Error> {
    let connect = sqlx::sqlite::SqliteConnectOptions::new()
        .filename(&options.database)
        .create_if_missing(false)
        .busy_timeout(BUSY_TIMEOUT)
        .disable_statement_logging();
    Ok(Box::new(Sqlite {
        pool: pool_options(options).connect_lazy_with(connect),
        writing: Arc::default(),
    }))
}

impl Pool for Sqlite {
    fn execute<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Box::pin(async move {
            let _turn = self.turn_for(sql).await;
            Ok(run!(&self.pool, sql, params, execute)?.rows_affected())
        })
    }

    fn rows<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Box::pin(async move {
            let _turn = self.turn_for(sql).await;
            text_rows!(run!(&self.pool, sql, params, fetch_all))
        })
    }

    fn records<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Record>> {
        Box::pin(async move {
            let rows = run!(&self.pool, sql, params, fetch_all);
            records!(rows, |row, place, _: &str| sqlite_value(row, place))
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Open>> {
        Box::pin(async move {
            let turn = self.turn().await;
            let pool = self.pool.clone();
            let begin = async move {
                let transaction = pool.begin_with("BEGIN IMMEDIATE").await?;
                Ok(Writing { transaction, turn })
            };
            Ok(Box::new(begun(begin).await?) as Box<dyn Open>)
        })
    }

    fn try_to_connect(&self) -> Answer<'_, ()> {
        Box::pin(async move { Ok(self.pool.connect_options().connect().await.map(drop)?) })
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.pool.close())
    }
}

open!(sqlx::Transaction<'static, sqlx::Sqlite>);

impl Open for Writing {
    fn execute<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Open::execute(&mut self.transaction, sql, params)
    }

    fn rows<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Open::rows(&mut self.transaction, sql, params)
    }

    fn commit(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { transaction, turn } = *self;
            let committed = transaction.commit().await;
            drop(turn);
            Ok(committed?)
        })
    }

    fn rollback(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move {
            let Self { transaction, turn } = *self;
            let rolled_back = transaction.rollback().await;
            drop(turn);
            Ok(rolled_back?)
        })
    }
}

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
