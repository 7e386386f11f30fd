//! Statements on connections that belong to the caller, in whose transaction they take part.

use futures_util::future::BoxFuture;

use super::database::translate;
use super::error::SqlError;
use super::options::DatabaseKind;
use super::row::Param;

/// A connection of sqlx, usually one with an open transaction (`&mut *transaction`).
pub trait SqlConnection: Send + sealed::Sealed {
    /// Kind of the server.
    #[doc(hidden)]
    fn kind(&self) -> DatabaseKind;

    /// Runs a statement with identifiers in double quotes and parameters as `?`; returns how many rows it changed.
    #[doc(hidden)]
    fn run<'a>(
        &'a mut self,
        sql: &'a str,
        params: &'a [Param<'a>],
    ) -> BoxFuture<'a, Result<u64, SqlError>>;
}

mod sealed {
    pub trait Sealed {}
    #[cfg(feature = "sqlite")]
    impl Sealed for sqlx::SqliteConnection {}
    #[cfg(feature = "mysql")]
    impl Sealed for sqlx::MySqlConnection {}
    #[cfg(feature = "postgres")]
    impl Sealed for sqlx::PgConnection {}
}

macro_rules! connection {
    ($connection:ty, $kind:expr) => {
        impl SqlConnection for $connection {
            fn kind(&self) -> DatabaseKind {
                $kind
            }

            fn run<'a>(
                &'a mut self,
                sql: &'a str,
                params: &'a [Param<'a>],
            ) -> BoxFuture<'a, Result<u64, SqlError>> {
                Box::pin(async move {
                    let sql = translate($kind, sql);
                    let mut query = sqlx::query(sqlx::AssertSqlSafe(&*sql)).persistent(false);
                    for param in params {
                        query = match *param {
                            Param::Int(number) => query.bind(number),
                            Param::Text(text) => query.bind(text),
                            Param::Null => query.bind(None::<&str>),
                        };
                    }
                    Ok(query.execute(self).await?.rows_affected())
                })
            }
        }
    };
}

#[cfg(feature = "sqlite")]
connection!(sqlx::SqliteConnection, DatabaseKind::Sqlite);
#[cfg(feature = "mysql")]
connection!(sqlx::MySqlConnection, DatabaseKind::MySql);
#[cfg(feature = "postgres")]
connection!(sqlx::PgConnection, DatabaseKind::Postgres);
