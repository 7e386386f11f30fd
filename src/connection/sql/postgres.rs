//! The driver for `PostgreSQL`.

use std::path::{Path, PathBuf};

use futures_util::future::BoxFuture;
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgSslMode;

use super::driver::{Answer, Open, Pool};
use super::literal::{int_or_text, with_literals};
use super::options::DatabaseKind;
use super::options::DatabaseOptions;
use super::read_only::ReadOnly;
use super::row::{Param, Row};
use super::statement::{begun, open, records, run, server_options, set, text_rows};
use crate::connection::Error;
use crate::connection::record::{Record, Value};

const BEGIN: &str = "begin isolation level read committed";

/// Connections to a server.
struct Postgres {
    pool: sqlx::PgPool,
    /// Set in every transaction: a pooler may give each transaction another server.
    search_path: Option<String>,
    read_only: ReadOnly,
}

/// Prepares a pool; nothing is opened yet.
pub(super) fn open(options: &DatabaseOptions) -> Result<Box<dyn Pool>, Error> {
    let read_only = ReadOnly::default();
    Ok(Box::new(Postgres {
        pool: connect(options, &read_only)?,
        search_path: options.search_path.clone(),
        read_only,
    }))
}

fn connect(options: &DatabaseOptions, read_only: &ReadOnly) -> Result<sqlx::PgPool, Error> {
    #[cfg(feature = "tls")]
    crate::connection::endpoint::install_crypto();
    let ssl_ca = ssl_ca(options);
    let ssl_mode = ssl_mode(options, ssl_ca.as_deref())?;
    let mut connect = sqlx::postgres::PgConnectOptions::new_without_pgpass()
        .host(&options.host)
        .port(options.port)
        .username(&options.username)
        .database(&options.database)
        .ssl_mode(ssl_mode)
        .application_name("artisand")
        // Poolers refuse parameters that they do not know.
        .extra_float_digits(None)
        .disable_statement_logging();
    set!(
        connect,
        &options.password => password,
        &options.socket => socket,
        ssl_ca.filter(|ca| *ca != Path::new(DatabaseOptions::SYSTEM_CA)) => ssl_root_cert,
        &options.ssl_cert => ssl_client_cert,
        &options.ssl_key => ssl_client_key,
    );
    Ok(server_options(options, read_only).connect_lazy_with(connect))
}

/// A variable that libpq reads.
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok().filter(|value| !value.is_empty())
}

/// How the connection is encrypted, and the server verified.
fn ssl_mode(options: &DatabaseOptions, ssl_ca: Option<&Path>) -> Result<PgSslMode, Error> {
    let mode = options.ssl_mode.clone().or_else(|| variable("PGSSLMODE"));
    let mode = mode.as_deref().unwrap_or("prefer");
    let wrong = |expected| Error::Setting {
        name: format!("database.connections.{}.sslmode", options.name),
        value: mode.to_owned(),
        expected,
    };
    let is_system = ssl_ca == Some(Path::new(DatabaseOptions::SYSTEM_CA));
    // As in libpq, `require` with a certificate authority also checks the server against it.
    match mode {
        _ if is_system && mode != "verify-full" => {
            Err(wrong("verify-full, which `sslrootcert` = system needs"))
        }
        "require" if ssl_ca.is_some() => Ok(PgSslMode::VerifyCa),
        "verify-ca" | "verify-full" if ssl_ca.is_none() => Err(wrong(
            "an authority to check the server against as well: `sslrootcert`, or ~/.postgresql/root.crt",
        )),
        _ => mode
            .parse()
            .map_err(|_| wrong("disable, allow, prefer, require, verify-ca or verify-full")),
    }
}

/// The certificate authority that libpq would check the server against.
fn ssl_ca(options: &DatabaseOptions) -> Option<PathBuf> {
    let variable = variable("PGSSLROOTCERT");
    let usual = || {
        let path = std::env::home_dir()?.join(".postgresql/root.crt");
        path.is_file().then_some(path)
    };
    let named = options.ssl_ca.clone();
    named.or_else(|| variable.map(PathBuf::from)).or_else(usual)
}

impl Postgres {
    /// Begins a transaction; behind a pooler, all its statements go to the same server.
    ///
    /// Each statement sees what is committed by then, whatever the server's default is: otherwise one that has waited for
    /// a lock would not see what its last holder did.
    async fn begin(&self) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, sqlx::Error> {
        let pool = self.pool.clone();
        let mut transaction = begun(async move { pool.begin_with(BEGIN).await }).await?;
        if let Some(search_path) = &self.search_path {
            let set = sqlx::query("select set_config('search_path', $1, true)").persistent(false);
            set.bind(search_path).execute(&mut *transaction).await?;
        }
        Ok(transaction)
    }
}

impl Pool for Postgres {
    fn execute<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, u64> {
        Box::pin(async move {
            let mut transaction = Postgres::begin(self).await?;
            let done = run!(&mut *transaction, sql, params, execute)?.rows_affected();
            transaction.commit().await?;
            Ok(done)
        })
    }

    fn rows<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Row>> {
        Box::pin(async move {
            let mut transaction = Postgres::begin(self).await?;
            let rows = text_rows!(run!(&mut *transaction, sql, params, fetch_all));
            transaction.commit().await?;
            rows
        })
    }

    fn records<'a>(&'a self, sql: &'a str, params: &'a [Param<'a>]) -> Answer<'a, Vec<Record>> {
        Box::pin(async move {
            let sql = with_literals(DatabaseKind::Postgres, sql, params);
            let mut transaction = Postgres::begin(self).await?;
            let rows = sqlx::Executor::fetch_all(&mut *transaction, sqlx::AssertSqlSafe(sql)).await;
            let records = records!(rows, postgres_value);
            transaction.commit().await?;
            records
        })
    }

    fn begin(&self) -> Answer<'_, Box<dyn Open>> {
        Box::pin(async move { Ok(Box::new(Postgres::begin(self).await?) as Box<dyn Open>) })
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

open!(sqlx::Transaction<'static, sqlx::Postgres>);

fn postgres_value(
    row: &sqlx::postgres::PgRow,
    place: usize,
    kind: &str,
) -> Result<Value, sqlx::Error> {
    use sqlx::Row as _;
    let text: Option<String> = row.try_get_unchecked(place)?;
    let Some(text) = text else {
        return Ok(Value::Null);
    };
    Ok(match kind {
        "BOOL" => Value::Bool(text == "t"),
        "INT2" | "INT4" | "INT8" | "OID" => int_or_text(text),
        "FLOAT4" | "FLOAT8" => Value::Float(text),
        "BYTEA" => match text.strip_prefix("\\x").and_then(unhex) {
            Some(bytes) => Value::Bytes(bytes),
            None => Value::Bytes(text.into_bytes()),
        },
        _ => Value::Text(text),
    })
}

fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}
