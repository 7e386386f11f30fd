//! A database, and transactions on it.

use std::borrow::Cow;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::driver::{CONNECT_TIMEOUT, Open, Pool};
use super::error::SqlError;
use super::options::{DatabaseKind, DatabaseOptions};
use super::row::{Param, Row};
use crate::connection::Error;
use crate::connection::record::Record;

/// A pool of connections to one database; the first statement opens one.
#[derive(Clone)]
pub struct Database(Arc<Inner>);

struct Inner {
    options: DatabaseOptions,
    pool: Box<dyn Pool>,
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Database").field(&self.0.options).finish()
    }
}

/// How long one statement may take: a server that hangs must not hold up later work.
const STATEMENT_TIMEOUT: Duration = Duration::from_secs(30);
/// How long the end of all connections is waited for: one whose statement was given up is busy until that ends.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(1);

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
        let pool = open(options)?;
        Ok(Self(Arc::new(Inner {
            options: options.clone(),
            pool,
        })))
    }

    /// Another pool for the same database, of at most this many connections.
    ///
    /// # Errors
    ///
    /// As [`new`](Self::new).
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub(crate) fn another(&self, connections: u32) -> Result<Self, Error> {
        Self::new(&DatabaseOptions {
            connections,
            ..self.0.options.clone()
        })
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

    /// Whether this is the same database of the same server, maybe by another name, and its tables have the same names
    /// there: which schema they are in depends on `search_path`, and that on the user.
    pub fn is_same(&self, other: &Self) -> bool {
        let (one, other) = (&self.0.options, &other.0.options);
        let names =
            |options: &DatabaseOptions| (options.search_path.clone(), options.username.clone());
        one.kind == other.kind && one.address() == other.address() && names(one) == names(other)
    }

    /// A table's own name, with the connection's prefix.
    pub(crate) fn prefixed(&self, name: &str) -> String {
        let (schema, table) = name.rsplit_once('.').unwrap_or(("", name));
        let dot = if schema.is_empty() { "" } else { "." };
        format!("{schema}{dot}{}{table}", self.0.options.prefix)
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

    /// Makes sure that a key of a cache or a lock has room in its column: `insert ignore` of `MySQL` would shorten it,
    /// so that what is stored is never found again; on `PostgreSQL` the error would end the transaction.
    pub(crate) fn check_key(&self, key: &str) -> Result<(), Error> {
        const MOST: usize = 255;
        let length = key.chars().count();
        if self.kind() != DatabaseKind::Sqlite && length > MOST {
            return Err(Error::LongKey { length, most: MOST });
        }
        Ok(())
    }

    /// A column's name as it stands in a statement.
    pub fn column(name: &str) -> String {
        format!("\"{}\"", name.replace(['"', '`', '?'], ""))
    }

    /// An expression for a column's text.
    pub fn as_text(&self, column: &str) -> String {
        self.text_of(&format!("\"{column}\""))
    }

    /// An expression for the text of another one.
    pub fn text_of(&self, expression: &str) -> String {
        match self.kind() {
            DatabaseKind::MySql => format!("cast({expression} as char)"),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => format!("cast({expression} as text)"),
        }
    }

    /// A parameter that is text where the server cannot tell from the statement.
    pub fn text_param(&self) -> &'static str {
        match self.kind() {
            DatabaseKind::Postgres => "cast(? as text)",
            DatabaseKind::Sqlite | DatabaseKind::MySql => "?",
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
        let run = self.0.pool.records(sql, params);
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

    /// Closes all connections; those that a statement keeps busy beyond a second end by themselves.
    pub async fn close(&self) {
        let _ = tokio::time::timeout(CLOSE_TIMEOUT, self.0.pool.close()).await;
    }

    async fn finish<T>(
        &self,
        result: Result<Result<T, SqlError>, tokio::time::error::Elapsed>,
    ) -> Result<T, Error> {
        let source = match result {
            Ok(Ok(value)) => return Ok(value),
            // The pool tried to connect for a while and does not report the error it met.
            Ok(Err(source)) if source.is_pool_timeout() => {
                let met = tokio::time::timeout(CONNECT_TIMEOUT, self.0.pool.try_to_connect()).await;
                let met = met.ok().and_then(Result::err);
                met.unwrap_or(SqlError::Timeout(CONNECT_TIMEOUT))
            }
            Ok(Err(source)) => source,
            Err(_) => SqlError::Timeout(STATEMENT_TIMEOUT),
        };
        if source.is_read_only() {
            self.0.pool.note_read_only();
        }
        Err(Error::Sql {
            name: self.name().to_owned(),
            address: self.address(),
            source,
        })
    }

    fn translate<'a>(&self, sql: &'a str) -> Cow<'a, str> {
        translate(self.kind(), sql)
    }
}

/// A statement as this kind of server reads it.
pub(super) fn translate(kind: DatabaseKind, sql: &str) -> Cow<'_, str> {
    match kind {
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

/// Statements that are carried out together or not at all.
///
/// After an error, only drop the transaction: `PostgreSQL` refuses further statements, and the other servers may
/// have undone earlier ones.
pub struct Transaction {
    database: Database,
    open: Box<dyn Open>,
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Transaction").field(&self.database).finish()
    }
}

impl Transaction {
    /// The database that it is on.
    pub(crate) fn database(&self) -> &Database {
        &self.database
    }

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

/// Prepares a pool with the driver for this kind of server, if the build has it.
fn open(options: &DatabaseOptions) -> Result<Box<dyn Pool>, Error> {
    match options.kind {
        #[cfg(feature = "sqlite")]
        DatabaseKind::Sqlite => super::sqlite::open(options),
        #[cfg(feature = "mysql")]
        DatabaseKind::MySql => super::mysql::open(options),
        #[cfg(feature = "postgres")]
        DatabaseKind::Postgres => super::postgres::open(options),
        #[cfg(not(all(feature = "sqlite", feature = "mysql", feature = "postgres")))]
        kind => Err(Error::NoDriver(kind.feature())),
    }
}

#[cfg(all(test, feature = "postgres"))]
mod tests {
    use super::*;

    #[tokio::test]
    async fn databases_are_the_same_if_their_tables_have_the_same_names() {
        let database = |change: fn(&mut DatabaseOptions)| {
            let mut options = DatabaseOptions::new("main", DatabaseKind::Postgres);
            options.host = "h".to_owned();
            change(&mut options);
            Database::new(&options).unwrap()
        };
        let one = database(|_| ());
        assert!(one.is_same(&database(|options| options.name = "other".to_owned())));
        let others: [fn(&mut DatabaseOptions); 4] = [
            |options| options.database = "other".to_owned(),
            |options| options.host = "other".to_owned(),
            |options| options.search_path = Some("other".to_owned()),
            // `"$user"` can be in the path.
            |options| options.username = "other".to_owned(),
        ];
        for change in others {
            let other = database(change);
            assert!(!one.is_same(&other), "{other:?}");
        }
    }
}
