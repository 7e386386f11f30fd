//! One SQL database of the app: `SQLite`, `MySQL`, `MariaDB` or `PostgreSQL`.
//!
//! Statements are written once, with identifiers in double quotes and parameters as `?`; differences between
//! servers are translated. Values are read as text ([`Database::as_text`]), because the types of Laravel's columns
//! changed over the versions and only their text did not. Tables of the app's own are read as [`Record`]s, which
//! have names and types.

use std::borrow::Cow;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
use super::record::{Column, Value};
use super::{Error, Record};

/// Kind of server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DatabaseKind {
    /// A file.
    Sqlite,
    /// `MySQL` and `MariaDB`.
    MySql,
    /// `PostgreSQL`.
    Postgres,
}

impl DatabaseKind {
    /// The kind of server for the name of a Laravel driver; `None` for an unsupported driver.
    pub fn of_driver(driver: &str) -> Option<Self> {
        match driver {
            "sqlite" => Some(Self::Sqlite),
            "mysql" | "mariadb" => Some(Self::MySql),
            "pgsql" => Some(Self::Postgres),
            _ => None,
        }
    }
}

/// How to reach a database.
#[derive(Clone, PartialEq, Eq)]
pub struct DatabaseOptions {
    /// Name of the connection in the app, for messages.
    pub name: String,
    /// Kind of server.
    pub kind: DatabaseKind,
    /// Host name.
    pub host: String,
    /// Port.
    pub port: u16,
    /// Path of a unix socket, which wins over host and port.
    pub socket: Option<PathBuf>,
    /// Name of the database; for `SQLite` the path of its file.
    pub database: String,
    /// User.
    pub username: String,
    /// Password.
    pub password: Option<String>,
    /// Put before every table name.
    pub prefix: String,
    /// `PostgreSQL`'s `search_path`, comma separated.
    pub search_path: Option<String>,
    /// `PostgreSQL`'s `sslmode`; for `MySQL` one of the same names, and `None` for no TLS.
    pub ssl_mode: Option<String>,
    /// Path of the certificate authority that the server is checked against.
    pub ssl_ca: Option<PathBuf>,
    /// Path of the certificate that the client shows to the server.
    pub ssl_cert: Option<PathBuf>,
    /// Path of the key of that certificate.
    pub ssl_key: Option<PathBuf>,
    /// Time zone of the session, where the app sets one.
    pub timezone: Option<String>,
}

impl DatabaseOptions {
    /// The value of [`ssl_ca`](Self::ssl_ca) for the certificate authorities that this machine trusts
    /// (`PostgreSQL`).
    pub const SYSTEM_CA: &'static str = "system";

    /// Options for a database of this kind, with only the server's usual address filled in.
    pub fn new(name: impl Into<String>, kind: DatabaseKind) -> Self {
        Self {
            name: name.into(),
            kind,
            host: "127.0.0.1".into(),
            port: if kind == DatabaseKind::Postgres {
                5432
            } else {
                3306
            },
            socket: None,
            database: String::new(),
            username: String::new(),
            password: None,
            prefix: String::new(),
            search_path: None,
            ssl_mode: None,
            ssl_ca: None,
            ssl_cert: None,
            ssl_key: None,
            timezone: None,
        }
    }

    /// Address of the database, for messages: never the password.
    pub fn address(&self) -> String {
        match (self.kind, &self.socket) {
            (DatabaseKind::Sqlite, _) => self.database.clone(),
            (_, Some(socket)) => format!("{}/{}", socket.display(), self.database),
            (_, None) => format!("{}:{}/{}", self.host, self.port, self.database),
        }
    }
}

impl fmt::Debug for DatabaseOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DatabaseOptions")
            .field("name", &self.name)
            .field("kind", &self.kind)
            .field("address", &self.address())
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "(set)"))
            .field("prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

/// A value of a statement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Param<'a> {
    /// A number.
    Int(i64),
    /// Text.
    Text(&'a str),
    /// No value.
    Null,
}

impl<'a> From<&'a str> for Param<'a> {
    fn from(text: &'a str) -> Self {
        Self::Text(text)
    }
}

impl<'a> From<&'a String> for Param<'a> {
    fn from(text: &'a String) -> Self {
        Self::Text(text)
    }
}

impl From<i64> for Param<'_> {
    fn from(number: i64) -> Self {
        Self::Int(number)
    }
}

impl<'a> From<Option<&'a str>> for Param<'a> {
    fn from(text: Option<&'a str>) -> Self {
        text.map_or(Self::Null, Self::Text)
    }
}

/// A row of text columns.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Row(Vec<Option<Vec<u8>>>);

impl Row {
    /// The bytes of a column; `None` for NULL, and if there is no such column.
    pub fn bytes(&self, column: usize) -> Option<&[u8]> {
        self.0.get(column)?.as_deref()
    }

    /// The text of a column, with replacement characters for bytes that are not UTF-8.
    pub fn text(&self, column: usize) -> Option<Cow<'_, str>> {
        self.bytes(column).map(String::from_utf8_lossy)
    }

    /// The number in a column.
    pub fn int(&self, column: usize) -> Option<i64> {
        self.text(column)?.trim().parse().ok()
    }
}

/// A pool of connections to one database; the first statement opens one.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    options: DatabaseOptions,
    pool: Pool,
}

enum Pool {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::SqlitePool),
    #[cfg(feature = "mysql")]
    MySql(sqlx::MySqlPool),
    #[cfg(feature = "postgres")]
    Postgres {
        pool: sqlx::PgPool,
        /// Set in every transaction: a pooler may give each transaction another server.
        search_path: Option<String>,
    },
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.0.options).finish()
    }
}

/// How long opening a connection may take.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How long one statement may take: a server that hangs must not hold up later work.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);

impl Database {
    /// Prepares a pool; nothing is opened yet.
    ///
    /// # Errors
    ///
    /// [`Error::NoDriver`] if this build has no driver for the kind of server,
    /// [`Error::Setting`] for one that cannot be used.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn new(options: &DatabaseOptions) -> Result<Self, Error> {
        let pool = pool(options)?;
        Ok(Self(Arc::new(Inner {
            options: options.clone(),
            pool,
        })))
    }

    /// Kind of server.
    pub fn kind(&self) -> DatabaseKind {
        self.0.options.kind
    }

    /// Name of the connection in the app.
    pub fn name(&self) -> &str {
        &self.0.options.name
    }

    /// Address of the database, for messages.
    pub fn address(&self) -> String {
        self.0.options.address()
    }

    /// True if the database is a file that does not exist: the app does not use it.
    pub fn is_missing_file(&self) -> bool {
        self.kind() == DatabaseKind::Sqlite && !Path::new(&self.0.options.database).exists()
    }

    /// A table's name as it stands in a statement: with the connection's prefix, quoted.
    ///
    /// # Source
    ///
    /// `Illuminate\Database\Grammar::wrapTable`.
    pub fn table(&self, name: &str) -> String {
        let quoted = |part: &str| format!("\"{}\"", part.replace(['"', '`', '?'], ""));
        let prefix = &self.0.options.prefix;
        match name.rsplit_once('.') {
            Some((schema, table)) => {
                let schema: Vec<_> = schema.split('.').map(quoted).collect();
                format!(
                    "{}.{}",
                    schema.join("."),
                    quoted(&format!("{prefix}{table}"))
                )
            }
            None => quoted(&format!("{prefix}{name}")),
        }
    }

    /// A column's name as it stands in a statement.
    pub fn column(name: &str) -> String {
        format!("\"{}\"", name.replace(['"', '`', '?'], ""))
    }

    /// An expression for a column's text.
    pub fn as_text(&self, column: &str) -> String {
        match self.kind() {
            DatabaseKind::MySql => format!("cast(\"{column}\" as char)"),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => format!("cast(\"{column}\" as text)"),
        }
    }

    /// A parameter that is a moment (`Y-m-d H:i:s`) given as text.
    pub fn moment(&self) -> &'static str {
        match self.kind() {
            DatabaseKind::Postgres => "cast(? as timestamp)",
            DatabaseKind::Sqlite | DatabaseKind::MySql => "?",
        }
    }

    /// Runs a statement and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`]; if the connection broke, the statement may have been carried out.
    pub async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        let sql = self.translate(sql);
        let run = self.0.pool.execute(&sql, params);
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, run).await;
        self.finish(ended).await
    }

    /// Runs a query whose columns are all text.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`].
    pub async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let sql = self.translate(sql);
        let run = self.0.pool.rows(&sql, params);
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, run).await;
        self.finish(ended).await
    }

    /// Runs a query for rows of any table.
    ///
    /// Every value comes in the server's own text, as PHP gets it.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`].
    pub async fn records(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Record>, Error> {
        let run = self.0.pool.records(self.kind(), sql, params);
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, run).await;
        self.finish(ended).await
    }

    /// Begins a transaction on a connection of its own; if dropped without a commit, it is rolled back.
    ///
    /// On `SQLite` it takes the right to write at once: a transaction that begins by reading may be refused later
    /// if another connection writes.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`].
    pub async fn begin(&self) -> Result<Transaction, Error> {
        let begun = tokio::time::timeout(STATEMENT_TIMEOUT, self.0.pool.begin()).await;
        let open = self.finish(begun).await?;
        Ok(Transaction {
            database: self.clone(),
            open,
        })
    }

    /// The end of a query whose rows no other transaction may change until this one is over.
    pub fn for_update(&self) -> &'static str {
        match self.kind() {
            // The transaction has locked the whole file.
            DatabaseKind::Sqlite => "",
            DatabaseKind::MySql | DatabaseKind::Postgres => " for update",
        }
    }

    /// Closes all connections.
    pub async fn close(&self) {
        self.0.pool.close().await;
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, reason = "there is no driver")
    )]
    async fn finish<T>(
        &self,
        result: Result<Result<T, SqlError>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        let source = match result {
            Ok(Ok(value)) => return Ok(value),
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            // The pool tried to connect for a while and does not report the error it met.
            Ok(Err(SqlError::Driver(sqlx::Error::PoolTimedOut))) => {
                let met = tokio::time::timeout(CONNECT_TIMEOUT, self.0.pool.try_to_connect()).await;
                let met = met.ok().and_then(Result::err);
                met.map_or(SqlError::Timeout(CONNECT_TIMEOUT), SqlError::Driver)
            }
            Ok(Err(source)) => source,
            Err(_) => SqlError::Timeout(STATEMENT_TIMEOUT),
        };
        Err(Error::Sql {
            name: self.name().to_owned(),
            address: self.address(),
            source,
        })
    }

    fn translate<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        match self.kind() {
            DatabaseKind::Sqlite => Cow::Borrowed(sql),
            DatabaseKind::MySql => Cow::Owned(sql.replace('"', "`")),
            DatabaseKind::Postgres => {
                let mut numbered = String::with_capacity(sql.len() + 8);
                let mut number = 0;
                for part in sql.split_inclusive('?') {
                    match part.strip_suffix('?') {
                        Some(part) => {
                            number += 1;
                            numbered.push_str(part);
                            numbered.push('$');
                            numbered.push_str(&number.to_string());
                        }
                        None => numbered.push_str(part),
                    }
                }
                Cow::Owned(numbered)
            }
        }
    }
}

/// Statements that are carried out together or not at all.
///
/// After an error, only drop the transaction: `PostgreSQL` refuses further statements, and the other servers may
/// have undone earlier ones.
pub struct Transaction {
    database: Database,
    open: Open,
}

enum Open {
    #[cfg(feature = "sqlite")]
    Sqlite(sqlx::Transaction<'static, sqlx::Sqlite>),
    #[cfg(feature = "mysql")]
    MySql(sqlx::Transaction<'static, sqlx::MySql>),
    #[cfg(feature = "postgres")]
    Postgres(sqlx::Transaction<'static, sqlx::Postgres>),
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transaction").field(&self.database).finish()
    }
}

impl Transaction {
    /// Runs a statement and returns how many rows it changed.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`].
    pub async fn execute(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        let sql = self.database.translate(sql);
        let run = self.open.execute(&sql, params);
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, run).await;
        self.database.finish(ended).await
    }

    /// Runs a query whose columns are all text.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`].
    pub async fn rows(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, Error> {
        let sql = self.database.translate(sql);
        let run = self.open.rows(&sql, params);
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, run).await;
        self.database.finish(ended).await
    }

    /// Commits the transaction.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`]; if the connection broke, the transaction may have been committed.
    pub async fn commit(self) -> Result<(), Error> {
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, self.open.commit()).await;
        self.database.finish(ended).await
    }

    /// Rolls the transaction back.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`]; the transaction is rolled back all the same.
    pub async fn rollback(self) -> Result<(), Error> {
        let ended = tokio::time::timeout(STATEMENT_TIMEOUT, self.open.rollback()).await;
        self.database.finish(ended).await
    }
}

/// An error of a statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// The driver or the server refused it, or the connection broke.
    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    #[error(transparent)]
    Driver(#[from] sqlx::Error),
    /// The server did not answer.
    #[error("there was no answer within {0:?}")]
    Timeout(Duration),
}

impl SqlError {
    /// True if a row with the same unique key exists.
    pub fn is_duplicate(&self) -> bool {
        match self {
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(error) => error
                .as_database_error()
                .is_some_and(sqlx::error::DatabaseError::is_unique_violation),
            Self::Timeout(_) => false,
        }
    }

    /// True if other transactions held the needed locks for too long, or a deadlock was found: the transaction may
    /// be tried again from its start.
    pub fn is_deadlock(&self) -> bool {
        match self {
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(sqlx::Error::Database(error)) => is_lock_conflict(&**error),
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(_) => false,
            Self::Timeout(_) => false,
        }
    }

    /// True if there is no such table.
    pub fn is_missing_table(&self) -> bool {
        match self {
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(sqlx::Error::Database(error)) => is_about_no_table(&**error),
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(_) => false,
            Self::Timeout(_) => false,
        }
    }

    /// True if the connection is lost or the server is busy, so that another try may help.
    pub fn is_lost(&self) -> bool {
        match self {
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(sqlx::Error::Database(error)) => is_outage(&**error),
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(
                sqlx::Error::RowNotFound
                | sqlx::Error::ColumnDecode { .. }
                | sqlx::Error::Decode(_)
                | sqlx::Error::Encode(_)
                | sqlx::Error::TypeNotFound { .. },
            ) => false,
            #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
            Self::Driver(_) => true,
            Self::Timeout(_) => true,
        }
    }
}

/// Whether the server says that another transaction was in the way.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn is_lock_conflict(error: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // Lock wait timeout, deadlock, changed since it was read (MariaDB), no wait.
        return matches!(error.number(), 1205 | 1213 | 1020 | 3572);
    }
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        return matches!(&*code, "40001" | "40P01" | "55P03");
    }
    // SQLite: busy, locked; the low byte is the kind.
    let kind = code.parse::<u32>().map_or(0, |code| code & 0xff);
    matches!(kind, 5 | 6)
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn is_about_no_table(error: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        return error.number() == 1146;
    }
    // SQLite has no number for it.
    error.code().as_deref() == Some("42P01") || error.message().starts_with("no such table")
}

/// Whether the server's error concerns more than this one statement.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn is_outage(error: &dyn sqlx::error::DatabaseError) -> bool {
    #[cfg(feature = "mysql")]
    if let Some(error) = error.try_downcast_ref::<sqlx::mysql::MySqlDatabaseError>() {
        // Connections, resources, shutdown, locks, read only, disk full; no right to it, or no such database or table.
        const OUTAGES: [u16; 18] = [
            1040, 1203, 1037, 1041, 1053, 1205, 1213, 1290, 1836, 1021, 1030, 1114, 1044, 1045,
            1049, 1054, 1142, 1146,
        ];
        return OUTAGES.contains(&error.number());
    }
    let code = error.code().unwrap_or_default();
    if code.len() == 5 {
        // PostgreSQL: connection, read only, login, database, rollback and deadlock, resources, operators, system.
        let classes = ["08", "25", "28", "3D", "40", "53", "57", "58"];
        // No such table, no such column, no right to it; a lock that was waited for too long.
        let whole = ["42P01", "42703", "42501", "55P03"];
        return classes.iter().any(|class| code.starts_with(class)) || whole.contains(&&*code);
    }
    // SQLite: no such table or column, busy, locked, read only, I/O, full, cannot open; the low byte is the kind.
    let kind = code.parse::<u32>().map_or(0, |code| code & 0xff);
    matches!(kind, 1 | 5 | 6 | 8 | 10 | 13 | 14)
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
macro_rules! run {
    ($pool:expr, $sql:expr, $params:expr, $method:ident) => {{
        // The server does not keep the statement: behind a pooler the next one may go to another server.
        let mut query = sqlx::query($sql).persistent(false);
        for param in $params {
            query = match *param {
                Param::Int(number) => query.bind(number),
                Param::Text(text) => query.bind(text),
                Param::Null => query.bind(None::<&str>),
            };
        }
        query.$method($pool).await
    }};
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
macro_rules! text_rows {
    ($rows:expr) => {{
        use sqlx::Row as _;
        let rows = $rows?;
        let mut read = Vec::with_capacity(rows.len());
        for row in &rows {
            let columns = (0..row.len()).map(|column| row.try_get_unchecked(column));
            read.push(Row(columns.collect::<Result<_, sqlx::Error>>()?));
        }
        Ok(read)
    }};
}

/// A value as part of a statement. Text is spelled in digits, so that no character of it can end the literal.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn literal(kind: DatabaseKind, param: Param<'_>) -> String {
    use std::fmt::Write as _;
    let mut literal = String::new();
    let written = match (param, kind) {
        (Param::Null, _) => write!(literal, "null"),
        // A quoted literal has no type yet, so the column's type decides.
        (Param::Int(number), DatabaseKind::Postgres) => write!(literal, "'{number}'"),
        (Param::Int(number), _) => write!(literal, "{number}"),
        (Param::Text(text), DatabaseKind::Postgres) => {
            literal.push_str("E'");
            for c in text.chars() {
                // Writing to a `String` cannot fail.
                let _ = write!(literal, "\\U{:08x}", u32::from(c));
            }
            write!(literal, "'")
        }
        (Param::Text(text), _) => {
            literal.push_str("_utf8mb4 x'");
            for byte in text.bytes() {
                let _ = write!(literal, "{byte:02x}");
            }
            write!(literal, "'")
        }
    };
    written.expect("a string takes everything");
    literal
}

/// A statement with its parameters as literals: these servers answer only such statements in text.
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn with_literals(kind: DatabaseKind, sql: &str, params: &[Param<'_>]) -> String {
    let sql = match kind {
        DatabaseKind::MySql => Cow::Owned(sql.replace('"', "`")),
        _ => Cow::Borrowed(sql),
    };
    let mut whole = String::with_capacity(sql.len() + 64);
    let mut params = params.iter();
    for part in sql.split_inclusive('?') {
        match part.strip_suffix('?') {
            Some(part) => {
                whole.push_str(part);
                whole.push_str(&literal(kind, *params.next().unwrap_or(&Param::Null)));
            }
            None => whole.push_str(part),
        }
    }
    whole
}

/// Rows with column names, types, and the values that `$value` makes of `(row, place, name of the type)`.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
macro_rules! records {
    ($rows:expr, $value:expr) => {{
        use sqlx::{Column as _, Row as _, TypeInfo as _};
        let rows = $rows?;
        let columns: Arc<[Column]> = match rows.first() {
            Some(row) => row
                .columns()
                .iter()
                .map(|column| Column {
                    name: column.name().into(),
                    kind: column.type_info().name().into(),
                })
                .collect(),
            None => Arc::default(),
        };
        let value = $value;
        let mut records = Vec::with_capacity(rows.len());
        for row in &rows {
            let values = (0..row.len()).map(|place| value(row, place, &*columns[place].kind));
            let values = values.collect::<Result<_, sqlx::Error>>()?;
            records.push(Record::new(Arc::clone(&columns), values));
        }
        Ok(records)
    }};
}

#[cfg(feature = "sqlite")]
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
        _ => text_or_bytes(row.try_get_unchecked(place)?),
    })
}

#[cfg(feature = "mysql")]
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
        _ => match text_or_bytes(bytes) {
            Value::Text(text) if kind == "BOOLEAN" || kind.contains("INT") => int_or_text(text),
            Value::Text(text) if matches!(kind, "FLOAT" | "DOUBLE") => Value::Float(text),
            value => value,
        },
    })
}

#[cfg(feature = "postgres")]
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

#[cfg(feature = "postgres")]
fn unhex(digits: &str) -> Option<Vec<u8>> {
    let digit = |digit: u8| char::from(digit).to_digit(16);
    let byte = |pair: &[u8]| match pair {
        [high, low] => u8::try_from(digit(*high)? << 4 | digit(*low)?).ok(),
        _ => None,
    };
    digits.as_bytes().chunks(2).map(byte).collect()
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn int_or_text(text: String) -> Value {
    text.parse().map_or(Value::Text(text), Value::Int)
}

#[cfg(any(feature = "sqlite", feature = "mysql"))]
fn text_or_bytes(bytes: Vec<u8>) -> Value {
    String::from_utf8(bytes).map_or_else(|error| Value::Bytes(error.into_bytes()), Value::Text)
}

impl Pool {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, unused_variables, reason = "there is no driver")
    )]
    async fn records(
        &self,
        kind: DatabaseKind,
        sql: &str,
        params: &[Param<'_>],
    ) -> Result<Vec<Record>, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => {
                let rows = run!(pool, sql, params, fetch_all);
                records!(rows, |row, place, _: &str| sqlite_value(row, place))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => {
                let sql = with_literals(kind, sql, params);
                records!(sqlx::Executor::fetch_all(pool, &*sql).await, mysql_value)
            }
            #[cfg(feature = "postgres")]
            Self::Postgres {
                ref pool,
                ref search_path,
            } => {
                let sql = with_literals(kind, sql, params);
                let mut transaction = begin(pool, search_path.as_deref()).await?;
                let rows = sqlx::Executor::fetch_all(&mut *transaction, &*sql).await;
                let records = records!(rows, postgres_value);
                transaction.commit().await?;
                records
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, unused_variables, reason = "there is no driver")
    )]
    async fn execute(&self, sql: &str, params: &[Param<'_>]) -> Result<u64, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => Ok(run!(pool, sql, params, execute)?.rows_affected()),
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => Ok(run!(pool, sql, params, execute)?.rows_affected()),
            #[cfg(feature = "postgres")]
            Self::Postgres {
                ref pool,
                ref search_path,
            } => {
                let mut transaction = begin(pool, search_path.as_deref()).await?;
                let done = run!(&mut *transaction, sql, params, execute)?.rows_affected();
                transaction.commit().await?;
                Ok(done)
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, unused_variables, reason = "there is no driver")
    )]
    async fn rows(&self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => text_rows!(run!(pool, sql, params, fetch_all)),
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => text_rows!(run!(pool, sql, params, fetch_all)),
            #[cfg(feature = "postgres")]
            Self::Postgres {
                ref pool,
                ref search_path,
            } => {
                let mut transaction = begin(pool, search_path.as_deref()).await?;
                let rows = text_rows!(run!(&mut *transaction, sql, params, fetch_all));
                transaction.commit().await?;
                rows
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, reason = "there is no driver")
    )]
    async fn begin(&self) -> Result<Open, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => {
                let pool = pool.clone();
                let begin = async move { pool.begin_with("BEGIN IMMEDIATE").await };
                Ok(Open::Sqlite(begun(begin).await?))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => {
                let pool = pool.clone();
                Ok(Open::MySql(begun(async move { pool.begin().await }).await?))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres {
                ref pool,
                ref search_path,
            } => Ok(Open::Postgres(begin(pool, search_path.as_deref()).await?)),
        }
    }

    #[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
    async fn try_to_connect(&self) -> Result<(), sqlx::Error> {
        use sqlx::ConnectOptions as _;
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => pool.connect_options().connect().await.map(drop),
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => pool.connect_options().connect().await.map(drop),
            #[cfg(feature = "postgres")]
            Self::Postgres { ref pool, .. } => pool.connect_options().connect().await.map(drop),
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, reason = "there is no driver")
    )]
    async fn close(&self) {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref pool) => pool.close().await,
            #[cfg(feature = "mysql")]
            Self::MySql(ref pool) => pool.close().await,
            #[cfg(feature = "postgres")]
            Self::Postgres { ref pool, .. } => pool.close().await,
        }
    }
}

impl Open {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, unused_variables, reason = "there is no driver")
    )]
    async fn execute(&mut self, sql: &str, params: &[Param<'_>]) -> Result<u64, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref mut open) => {
                Ok(run!(&mut **open, sql, params, execute)?.rows_affected())
            }
            #[cfg(feature = "mysql")]
            Self::MySql(ref mut open) => {
                Ok(run!(&mut **open, sql, params, execute)?.rows_affected())
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(ref mut open) => {
                Ok(run!(&mut **open, sql, params, execute)?.rows_affected())
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, unused_variables, reason = "there is no driver")
    )]
    async fn rows(&mut self, sql: &str, params: &[Param<'_>]) -> Result<Vec<Row>, SqlError> {
        match *self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(ref mut open) => {
                text_rows!(run!(&mut **open, sql, params, fetch_all))
            }
            #[cfg(feature = "mysql")]
            Self::MySql(ref mut open) => {
                text_rows!(run!(&mut **open, sql, params, fetch_all))
            }
            #[cfg(feature = "postgres")]
            Self::Postgres(ref mut open) => {
                text_rows!(run!(&mut **open, sql, params, fetch_all))
            }
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, reason = "there is no driver")
    )]
    async fn commit(self) -> Result<(), SqlError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(open) => Ok(open.commit().await?),
            #[cfg(feature = "mysql")]
            Self::MySql(open) => Ok(open.commit().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(open) => Ok(open.commit().await?),
        }
    }

    #[cfg_attr(
        not(any(feature = "sqlite", feature = "mysql", feature = "postgres")),
        expect(clippy::unused_async, reason = "there is no driver")
    )]
    async fn rollback(self) -> Result<(), SqlError> {
        match self {
            #[cfg(feature = "sqlite")]
            Self::Sqlite(open) => Ok(open.rollback().await?),
            #[cfg(feature = "mysql")]
            Self::MySql(open) => Ok(open.rollback().await?),
            #[cfg(feature = "postgres")]
            Self::Postgres(open) => Ok(open.rollback().await?),
        }
    }
}

/// Runs `begin` to its end even if this future is dropped; the transaction is then rolled back.
///
/// If `begin` is dropped while `BEGIN` is under way, sqlx 0.8 and 0.9 return a connection with an open transaction
/// to the pool (transact-rs/sqlx#4385): later writes on that connection would not be committed.
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
async fn begun<T: Send + 'static>(
    begin: impl Future<Output = Result<T, sqlx::Error>> + Send + 'static,
) -> Result<T, sqlx::Error> {
    tokio::spawn(begin)
        .await
        .unwrap_or(Err(sqlx::Error::WorkerCrashed))
}

/// Begins a transaction; behind a pooler, all its statements go to the same server.
#[cfg(feature = "postgres")]
async fn begin(
    pool: &sqlx::PgPool,
    search_path: Option<&str>,
) -> Result<sqlx::Transaction<'static, sqlx::Postgres>, sqlx::Error> {
    let pool = pool.clone();
    let mut transaction = begun(async move { pool.begin().await }).await?;
    if let Some(search_path) = search_path {
        let set = sqlx::query("select set_config('search_path', $1, true)").persistent(false);
        set.bind(search_path).execute(&mut *transaction).await?;
    }
    Ok(transaction)
}

#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
fn pool_options<DB: sqlx::Database>() -> sqlx::pool::PoolOptions<DB> {
    sqlx::pool::PoolOptions::new()
        .max_connections(4)
        .acquire_timeout(CONNECT_TIMEOUT)
        .idle_timeout(Duration::from_secs(60))
}

fn pool(options: &DatabaseOptions) -> Result<Pool, Error> {
    match options.kind {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => {
            use sqlx::ConnectOptions as _;
            let connect = sqlx::sqlite::SqliteConnectOptions::new()
                .filename(&options.database)
                .create_if_missing(false)
                .busy_timeout(Duration::from_secs(10))
                .disable_statement_logging();
            Ok(Pool::Sqlite(pool_options().connect_lazy_with(connect)))
        }
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => mysql(options).map(Pool::MySql),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => postgres(options).map(|pool| Pool::Postgres {
            pool,
            search_path: options.search_path.clone(),
        }),
        #[cfg(not(feature = "sqlite"))]
        DatabaseKind::Sqlite => Err(Error::NoDriver("sqlite")),
        #[cfg(not(feature = "mysql"))]
        DatabaseKind::MySql => Err(Error::NoDriver("mysql")),
        #[cfg(not(feature = "postgres"))]
        DatabaseKind::Postgres => Err(Error::NoDriver("postgres")),
    }
}

#[cfg(any(feature = "mysql", feature = "postgres"))]
fn prepare_tls() {
    #[cfg(feature = "tls")]
    super::redis::install_crypto();
}

#[cfg(feature = "mysql")]
fn mysql(options: &DatabaseOptions) -> Result<sqlx::MySqlPool, Error> {
    use sqlx::ConnectOptions as _;
    use sqlx::mysql::MySqlSslMode;
    prepare_tls();
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
    let mut connect = sqlx::mysql::MySqlConnectOptions::new()
        .host(&options.host)
        .port(options.port)
        .username(&options.username)
        .database(&options.database)
        .charset("utf8mb4")
        // The session keeps the server's time zone, as in PHP: `failed_at` is a timestamp.
        .timezone(options.timezone.clone())
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .ssl_mode(ssl_mode)
        .disable_statement_logging();
    if let Some(password) = &options.password {
        connect = connect.password(password);
    }
    if let Some(socket) = &options.socket {
        connect = connect.socket(socket);
    }
    if let Some(ca) = &options.ssl_ca {
        connect = connect.ssl_ca(ca);
    }
    if let Some(cert) = &options.ssl_cert {
        connect = connect.ssl_client_cert(cert);
    }
    if let Some(key) = &options.ssl_key {
        connect = connect.ssl_client_key(key);
    }
    // Overrides the server's own mode: a value that does not fit must be refused, not cut.
    let pool = pool_options().after_connect(|connection, _| {
        Box::pin(async move {
            let strict = "set session sql_mode = concat(@@sql_mode, ',STRICT_ALL_TABLES')";
            sqlx::Executor::execute(connection, strict).await.map(drop)
        })
    });
    Ok(pool.connect_lazy_with(connect))
}

#[cfg(feature = "postgres")]
fn postgres(options: &DatabaseOptions) -> Result<sqlx::PgPool, Error> {
    use sqlx::ConnectOptions as _;
    use sqlx::postgres::PgSslMode;
    prepare_tls();
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    let ssl_mode = options.ssl_mode.clone().or_else(|| variable("PGSSLMODE"));
    let ssl_mode = ssl_mode.as_deref().unwrap_or("prefer");
    let wrong = |value: &str, expected| Error::Setting {
        name: format!("database.connections.{}.sslmode", options.name),
        value: value.to_owned(),
        expected,
    };
    let ssl_ca = ssl_ca(options, variable("PGSSLROOTCERT"));
    let is_system = ssl_ca.as_deref() == Some(Path::new(DatabaseOptions::SYSTEM_CA));
    // As in libpq, `require` with a certificate authority also checks the server against it.
    let parsed = match ssl_mode {
        mode if is_system && mode != "verify-full" => {
            return Err(wrong(
                mode,
                "verify-full, which `sslrootcert` = system needs",
            ));
        }
        "require" if ssl_ca.is_some() => PgSslMode::VerifyCa,
        "verify-ca" | "verify-full" if ssl_ca.is_none() => {
            let expected = "an authority to check the server against as well: `sslrootcert`, or ~/.postgresql/root.crt";
            return Err(wrong(ssl_mode, expected));
        }
        mode => mode.parse().map_err(|_| {
            wrong(
                mode,
                "disable, allow, prefer, require, verify-ca or verify-full",
            )
        })?,
    };
    let mut connect = sqlx::postgres::PgConnectOptions::new_without_pgpass()
        .host(&options.host)
        .port(options.port)
        .username(&options.username)
        .database(&options.database)
        .ssl_mode(parsed)
        .application_name("artisand")
        // Poolers refuse parameters that they do not know.
        .extra_float_digits(None)
        .disable_statement_logging();
    if let Some(password) = &options.password {
        connect = connect.password(password);
    }
    if let Some(socket) = &options.socket {
        connect = connect.socket(socket);
    }
    if let Some(ca) = ssl_ca.filter(|_| !is_system) {
        connect = connect.ssl_root_cert(ca);
    }
    if let Some(cert) = &options.ssl_cert {
        connect = connect.ssl_client_cert(cert);
    }
    if let Some(key) = &options.ssl_key {
        connect = connect.ssl_client_key(key);
    }
    Ok(pool_options().connect_lazy_with(connect))
}

/// The certificate authority that libpq would check the server against.
#[cfg(feature = "postgres")]
fn ssl_ca(options: &DatabaseOptions, variable: Option<String>) -> Option<PathBuf> {
    let usual = || {
        let path = std::env::home_dir()?.join(".postgresql/root.crt");
        path.is_file().then_some(path)
    };
    let named = options.ssl_ca.clone();
    named.or_else(|| variable.map(PathBuf::from)).or_else(usual)
}
