//! The driver for `MySQL` and `MariaDB`.

use futures_util::future::BoxFuture;
use sqlx::ConnectOptions as _;
use sqlx::mysql::MySqlSslMode;

use super::driver::{Answer, Open, Pool};
use super::error::SqlError;
use super::literal::{int_or_text, with_literals};
use super::options::DatabaseKind;
use super::options::DatabaseOptions;
use super::read_only::ReadOnly;
use super::row::{Param, Row};
use super::statement::{begun, records, server_options, set, text_rows};
use crate::connection::Error;
use crate::connection::record::{Record, Value};

/// Connections to a server.
struct MySql {
    pool: sqlx::MySqlPool,
    read_only: ReadOnly,
}

/// Prepares a pool; nothing is opened yet.
pub(super) fn open(options: &DatabaseOptions) -> Result<Box<dyn Pool>, Error> {
    let read_only = ReadOnly::default();
    Ok(Box::new(MySql {
        pool: connect(options, &read_only)?,
        read_only,
    }))
}

fn connect(options: &DatabaseOptions, read_only: &ReadOnly) -> Result<sqlx::MySqlPool, Error> {
    #[cfg(feature = "tls")]
    crate::connection::endpoint::install_crypto();
    let mut connect = sqlx::mysql::MySqlConnectOptions::new()
        .host(&options.host)
        .port(options.port)
        .username(&options.username)
        .database(&options.database)
        .charset("utf8mb4")
        .collation("utf8mb4_unicode_ci")
        // The session keeps the server's time zone, as in PHP: `failed_at` is a timestamp.
        .timezone(options.timezone.clone())
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .ssl_mode(ssl_mode(options)?)
        .disable_statement_logging();
    set!(
        connect,
        &options.password => password,
        &options.socket => socket,
        &options.ssl_ca => ssl_ca,
        &options.ssl_cert => ssl_client_cert,
        &options.ssl_key => ssl_client_key,
    );
    // Overrides the server's own mode: a value that does not fit must be refused, not cut.
    let pool = server_options(options, read_only).after_connect(|connection, _| {
        Box::pin(async move {
            let strict = "set session sql_mode = concat(@@sql_mode, ',STRICT_ALL_TABLES')";
            sqlx::Executor::execute(connection, strict).await.map(drop)
        })
    });
    Ok(pool.connect_lazy_with(connect))
}

fn ssl_mode(options: &DatabaseOptions) -> Result<MySqlSslMode, Error> {
    let wrong = |field: &str, value: String, expected| Error::Setting {
        name: format!("database.connections.{}.{field}", options.name),
        value,
        expected,
    };
    let ssl_mode = match options.ssl_mode.as_deref() {
        None if options.ssl_ca.is_some() => MySqlSslMode::VerifyIdentity,
        None => MySqlSslMode::Disabled,
        Some("require") => MySqlSslMode::Required,
        Some("verify-ca") => MySqlSslMode::VerifyCa,
        Some("verify-full") => MySqlSslMode::VerifyIdentity,
        Some(other) => {
            let expected = "require, verify-ca, verify-full or nothing";
            return Err(wrong("sslmode", other.to_owned(), expected));
        }
    };
    // PHP does not support this either: the connection would be unencrypted, or go to another server than the
    // named one.
    if let Some(socket) = options
        .socket
        .as_ref()
        .filter(|_| !matches!(ssl_mode, MySqlSslMode::Disabled))
    {
        let expected = "a host, since TLS is asked for (PDO::MYSQL_ATTR_SSL_CA, .._CERT or .._KEY)";
        return Err(wrong("unix_socket", socket.display().to_string(), expected));
    }
    Ok(ssl_mode)
}

impl Pool for MySql {
    fn execute<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Box::pin(execute(&self.pool, sql, params))
    }

    fn rows<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Box::pin(rows(&self.pool, sql, params))
    }

    fn records<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Record>> {
        Box::pin(async move {
            let sql = with_literals(DatabaseKind::MySql, sql, params);
            records!(
                sqlx::Executor::fetch_all(&self.pool, sqlx::AssertSqlSafe(sql)).await,
                mysql_value
            )
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Open>> {
        Box::pin(async move {
            let pool = self.pool.clone();
            // This future has 18 KB, which would be moved with the others around it.
            let begun = begun(async move { Box::pin(pool.begin()).await }).await?;
            Ok(Box::new(begun) as Box<dyn Open>)
        })
    }

    fn try_to_connect(&self) -> Answer<'_, ()> {
        Box::pin(async move { Ok(self.pool.connect_options().connect().await.map(drop)?) })
    }

    fn note_read_only(&self) {
        self.read_only.note();
    }

    fn close(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.pool.close())
    }
}

/// Runs a statement that is sent in one piece, with its parameters in it.
///
/// sqlx 0.9 sends a prepared statement in several pieces and does not switch off the system's wait for more of them
/// (Nagle's algorithm): that takes 40 ms.
async fn execute<'c, E: sqlx::Executor<'c, Database = sqlx::MySql>>(
    on: E,
    sql: &str,
    params: &[Param<'_>],
) -> Result<u64, SqlError> {
    let sql = with_literals(DatabaseKind::MySql, sql, params);
    Ok(on.execute(sqlx::AssertSqlSafe(sql)).await?.rows_affected())
}

/// The same for a query whose columns are all text.
async fn rows<'c, E: sqlx::Executor<'c, Database = sqlx::MySql>>(
    on: E,
    sql: &str,
    params: &[Param<'_>],
) -> Result<Vec<Row>, SqlError> {
    let sql = with_literals(DatabaseKind::MySql, sql, params);
    text_rows!(on.fetch_all(sqlx::AssertSqlSafe(sql)).await)
}

impl Open for sqlx::Transaction<'static, sqlx::MySql> {
    fn execute<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Box::pin(execute(&mut **self, sql, params))
    }

    fn rows<'a>(&'a mut self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Box::pin(rows(&mut **self, sql, params))
    }

    fn commit(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move { Ok((*self).commit().await?) })
    }

    fn rollback(self: Box<Self>) -> Answer<'static, ()> {
        Box::pin(async move { Ok((*self).rollback().await?) })
    }
}

fn mysql_value(
    row: &sqlx::mysql::MySqlRow,
    place: usize,
    kind: &str,
) -> Result<Value, sqlx::Error> {
    use sqlx::Row as _;
    let bytes: Option<Vec<u8>> = row.try_get_unchecked(place)?;
    let Some(bytes) = bytes else {
        return Ok(Value::Null);
    };
    Ok(match kind {
        "BIT" => match bytes.len() {
            0..8 => Value::Int(
                bytes
                    .iter()
                    .fold(0, |bits, byte| bits << 8 | i64::from(*byte)),
            ),
            _ => Value::Bytes(bytes),
        },
        _ if kind.ends_with("BLOB") || kind.ends_with("BINARY") || kind == "GEOMETRY" => {
            Value::Bytes(bytes)
        }
        _ => match Value::from_bytes(bytes) {
            Value::Text(text) if kind == "BOOLEAN" || kind.contains("INT") => int_or_text(text),
            Value::Text(text) if matches!(kind, "FLOAT" | "DOUBLE") => Value::Float(text),
            value => value,
        },
    })
}
