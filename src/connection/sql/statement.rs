//! What the drivers share: sqlx has the same statements, rows and transactions for each, as types of their own.

use std::time::Duration;

use super::driver::CONNECT_TIMEOUT;
use super::options::DatabaseOptions;
#[cfg(any(feature = "mysql", feature = "postgres"))]
use super::read_only::ReadOnly;

/// Runs a statement.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! run {
    ($pool:expr, $sql:expr, $params:expr, $method:ident) => {{
        // The server does not keep the statement: behind a pooler the next one may go to another server.
        let mut query = sqlx::query(sqlx::AssertSqlSafe($sql)).persistent(false);
        for param in $params {
            query = match *param {
                $crate::connection::sql::row::Param::Int(number) => query.bind(number),
                $crate::connection::sql::row::Param::Text(text) => query.bind(text),
                $crate::connection::sql::row::Param::Null => query.bind(None::<&str>),
            };
        }
        query.$method($pool).await
    }};
}

/// Rows whose columns are all text.
macro_rules! text_rows {
    ($rows:expr) => {{
        use sqlx::Row as _;
        let rows = $rows?;
        let mut read = Vec::with_capacity(rows.len());
        for row in &rows {
            let columns = (0..row.len()).map(|column| row.try_get_unchecked(column));
            read.push($crate::connection::sql::row::Row(
                columns.collect::<Result<_, sqlx::Error>>()?,
            ));
        }
        Ok(read)
    }};
}

/// Rows with column names, types, and the values that `$value` makes of `(row, place, name of the type)`.
macro_rules! records {
    ($rows:expr, $value:expr) => {{
        use sqlx::{Column as _, Row as _, TypeInfo as _};
        let rows = $rows?;
        let columns: std::sync::Arc<[$crate::connection::record::Column]> = match rows.first() {
            Some(row) => row
                .columns()
                .iter()
                .map(|column| $crate::connection::record::Column {
                    name: column.name().into(),
                    kind: column.type_info().name().into(),
                })
                .collect(),
            None => std::sync::Arc::default(),
        };
        let value = $value;
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let values = (0..row.len()).map(|place| value(row, place, &*columns[place].kind));
            let values = values.collect::<Result<_, sqlx::Error>>()?;
            records.push($crate::connection::record::Record::new(
                std::sync::Arc::clone(&columns),
                values,
            ));
        }
        Ok(records)
    }};
}

/// Implements [`Open`](super::driver::Open) for transactions of a driver.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
macro_rules! open {
    ($transaction:ty) => {
        impl $crate::connection::sql::driver::Open for $transaction {
            fn execute<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
                Box::pin(
                    async move { Ok(run!(&mut **self, sql, params, execute)?.rows_affected()) },
                )
            }

            fn rows<'a>(
                &'a mut self,
                sql: &'a str,
                params: &'a [Param<'a>],
            ) -> Answer<'a, Vec<Row>> {
                Box::pin(async move { text_rows!(run!(&mut **self, sql, params, fetch_all)) })
            }

            fn commit(self: Box<Self>) -> Answer<'static, ()> {
                Box::pin(async move { Ok((*self).commit().await?) })
            }

            fn rollback(self: Box<Self>) -> Answer<'static, ()> {
                Box::pin(async move { Ok((*self).rollback().await?) })
            }
        }
    };
}

/// Sets those options of a connection that are given.
#[cfg(any(feature = "mysql", feature = "postgres"))]
macro_rules! set {
    ($connect:ident, $($given:expr => $method:ident),+ $(,)?) => {
        $(if let Some(value) = $given {
            $connect = $connect.$method(value);
        })+
    };
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) use set;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(super) use {open, run};
pub(super) use {records, text_rows};

/// Runs `begin` to its end even if this future is dropped; the transaction is then rolled back.
///
/// If `begin` is dropped while `BEGIN` is under way, sqlx 0.8 and 0.9 return a connection with an open transaction
/// to the pool (transact-rs/sqlx#4385): later writes on that connection would not be committed.
pub(super) async fn begun<T: Send + 'static>(
    begin: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, sqlx::Error> {
    tokio::spawn(begin)
        .await
        .unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

pub(super) fn pool_options<DB: sqlx::Database>(
    options: &DatabaseOptions,
) -> sqlx::pool::PoolOptions<DB> {
    sqlx::pool::PoolOptions::new()
        .max_connections(options.connections)
        .acquire_timeout(CONNECT_TIMEOUT)
        .idle_timeout(Duration::from_secs(60))
}

/// How long a connection lives: one that only reads never hears that its server has become read-only.
#[cfg(any(feature = "mysql", feature = "postgres"))]
const LIVES: Duration = Duration::from_secs(300);

/// The same for a server, which may become read-only.
#[cfg(any(feature = "mysql", feature = "postgres"))]
pub(super) fn server_options<DB: sqlx::Database>(
    options: &DatabaseOptions,
    read_only: &ReadOnly,
) -> sqlx::pool::PoolOptions<DB> {
    let read_only = read_only.clone();
    pool_options(options)
        .max_lifetime(LIVES)
        .before_acquire(move |_, connection| {
            let is_of_use = !read_only.concerns(connection.age);
            Box::pin(std::future::ready(Ok(is_of_use)))
        })
}
