//! The table of jobs: its columns, its rows, and the statements that all parts of the driver use.

use std::sync::Arc;

use tokio::sync::OnceCell;

use super::step::Failure;
use crate::connection::{Database, DatabaseKind, Error, Param, Row, Transaction};
use crate::queue::{QueueName, ReservedJob};
use crate::time::UnixSeconds;

/// When rows that no worker is to take become due: the last second that every column can hold.
pub(super) const NEVER: i64 = 2_147_483_647;

/// The table of jobs.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) database: Database,
    /// The table as statements name it.
    pub(super) name: String,
    /// The table's own name, with the prefix.
    plain: String,
    most_attempts: OnceCell<i64>,
    skips_locked: OnceCell<bool>,
}

/// Which row a reservation is, and its number of attempts since then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Ticket {
    pub(super) id: i64,
    pub(super) attempts: i64,
}

impl Ticket {
    /// As it stands in a [`ReservedJob`].
    pub(super) fn encode(self) -> Arc<[u8]> {
        format!("{}:{}", self.id, self.attempts).into_bytes().into()
    }

    pub(super) fn of(job: &ReservedJob) -> Option<Self> {
        let text = std::str::from_utf8(&job.ticket).ok()?;
        let (id, attempts) = text.split_once(':')?;
        Some(Self {
            id: id.parse().ok()?,
            attempts: attempts.parse().ok()?,
        })
    }
}

/// A row to insert.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewRow<'a> {
    pub(super) queue: &'a str,
    pub(super) payload: &'a [u8],
    /// When it becomes due.
    pub(super) due: UnixSeconds,
}

/// Most rows of one statement, within the number of parameters that every server takes.
const ROWS: usize = 500;

impl Table {
    pub(super) fn new(database: Database, table: &str) -> Self {
        Self {
            name: database.table(table),
            plain: database.prefixed(table),
            database,
            most_attempts: OnceCell::new(),
            skips_locked: OnceCell::new(),
        }
    }

    /// The table's own name, with the prefix.
    pub(super) fn plain(&self) -> &str {
        &self.plain
    }

    pub(super) fn kind(&self) -> DatabaseKind {
        self.database.kind()
    }

    /// Makes sure that the server answers and has the table.
    pub(super) async fn ping(&self) -> Result<(), Error> {
        let sql = format!("select 1 from {} where \"id\" = 0", self.name);
        self.database.rows(&sql, &[]).await.map(drop)
    }

    /// The highest number that the column `attempts` can hold: Laravel's own migrations made it an unsigned tinyint
    /// until 13.6.
    pub(super) async fn most_attempts(&self) -> Result<i64, Failure> {
        let most = self
            .most_attempts
            .get_or_try_init(|| self.ask_most_attempts());
        Ok(*most.await?)
    }

    async fn ask_most_attempts(&self) -> Result<i64, Error> {
        let (kind, current) = match self.kind() {
            // A column of `SQLite` holds any number.
            DatabaseKind::Sqlite => return Ok(u32::MAX.into()),
            DatabaseKind::MySql => ("column_type", "database()"),
            DatabaseKind::Postgres => ("data_type", "any (current_schemas(false))"),
        };
        let mut names = self.plain.rsplit('.');
        let table = Param::Text(names.next().unwrap_or_default());
        let (schema, params) = match names.next() {
            Some(schema) => ("?", vec![Param::Text(schema), table]),
            None => (current, vec![table]),
        };
        let sql = format!(
            "select {} from information_schema.columns where table_schema = {schema} \
             and table_name = ? and column_name = 'attempts'",
            self.database.as_text(kind)
        );
        let rows = self.database.rows(&sql, &params).await?;
        let kind = rows.first().and_then(|row| row.text(0)).unwrap_or_default();
        let kind = kind.to_ascii_lowercase();
        let bits = match kind.split(['(', ' ']).next().unwrap_or_default() {
            "tinyint" => 8,
            "smallint" => 16,
            "mediumint" => 24,
            _ => 32,
        };
        let is_signed = !kind.contains("unsigned");
        Ok((1 << (bits - i64::from(is_signed))) - 1)
    }

    /// The end of a query that locks rows and passes by those that are locked already.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\DatabaseQueue::getLockForPopping`.
    pub(super) async fn lock_free_rows(&self) -> Result<&'static str, Failure> {
        let skips = self
            .skips_locked
            .get_or_try_init(|| self.ask_skips_locked());
        Ok(if *skips.await? {
            " for update skip locked"
        } else {
            " for update"
        })
    }

    async fn ask_skips_locked(&self) -> Result<bool, Error> {
        let rows = self.database.rows("select version()", &[]).await?;
        let version = rows.first().and_then(|row| row.text(0)).unwrap_or_default();
        Ok(skips_locked(&version))
    }

    /// The rows of a queue that a worker may reserve, as a condition with the queue as its parameter.
    pub(super) fn ready(now: UnixSeconds, expired: i64) -> String {
        format!(
            "\"queue\" = ? and ((\"reserved_at\" is null and \"available_at\" <= {}) or \"reserved_at\" <= {expired})",
            now.0
        )
    }

    /// Reservations, for `("id", "attempts") in (..)` on `SQLite` and `PostgreSQL`.
    pub(super) fn pairs(tickets: &[Ticket]) -> String {
        let pairs = tickets
            .iter()
            .map(|Ticket { id, attempts }| format!("({id}, {attempts})"));
        format!("values {}", pairs.collect::<Vec<_>>().join(", "))
    }

    /// Numbers, for `"id" in (..)`.
    pub(super) fn list(ids: &[i64]) -> String {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        ids.join(", ")
    }

    /// The statement that inserts rows, and its parameters.
    fn insertion<'a>(
        &self,
        rows: &[NewRow<'a>],
        now: UnixSeconds,
    ) -> Result<(String, Vec<Param<'a>>), Failure> {
        let mut values = Vec::with_capacity(rows.len());
        let mut params = Vec::with_capacity(rows.len() * 2);
        for row in rows {
            values.push(format!("(?, 0, null, {}, {}, ?)", row.due.0, now.0));
            let payload = text(row.queue, row.payload)?;
            params.extend([Param::Text(row.queue), Param::Text(payload)]);
        }
        let sql = format!(
            "insert into {} (\"queue\", \"attempts\", \"reserved_at\", \"available_at\", \"created_at\", \"payload\") \
             values {}",
            self.name,
            values.join(", ")
        );
        Ok((sql, params))
    }

    /// Inserts rows within a transaction.
    pub(super) async fn insert(
        &self,
        transaction: &mut Transaction,
        rows: &[NewRow<'_>],
        now: UnixSeconds,
    ) -> Result<(), Failure> {
        for chunk in rows.chunks(ROWS) {
            let (sql, params) = self.insertion(chunk, now)?;
            transaction.execute(&sql, &params).await?;
        }
        Ok(())
    }

    /// Inserts rows, all or none.
    pub(super) async fn insert_alone(
        &self,
        rows: &[NewRow<'_>],
        now: UnixSeconds,
    ) -> Result<(), Failure> {
        if rows.len() > ROWS {
            let mut transaction = self.database.begin().await?;
            self.insert(&mut transaction, rows, now).await?;
            return super::step::commit(transaction).await;
        }
        let (sql, params) = self.insertion(rows, now)?;
        let inserted = self.database.execute(&sql, &params).await;
        inserted.map(drop).map_err(Failure::of_commit)
    }

    /// Deletes rows by id within a transaction.
    pub(super) async fn delete(
        &self,
        transaction: &mut Transaction,
        ids: &[i64],
    ) -> Result<(), Failure> {
        if ids.is_empty() {
            return Ok(());
        }
        let list = Self::list(ids);
        let sql = format!("delete from {} where \"id\" in ({list})", self.name);
        transaction.execute(&sql, &[]).await?;
        Ok(())
    }
}

/// Whether a server of `MySQL`'s kind knows `skip locked`: `MySQL` 8.0.1 and `MariaDB` 10.6.
fn skips_locked(version: &str) -> bool {
    let is_mariadb = version.contains("MariaDB");
    // MariaDB may put the version of the MySQL that it once was in front.
    let version = version.strip_prefix("5.5.5-").unwrap_or(version);
    let mut numbers = version
        .split(|letter: char| !letter.is_ascii_digit())
        .map_while(|number| number.parse::<u32>().ok());
    let mut next = || numbers.next().unwrap_or(0);
    let version = (next(), next(), next());
    version >= if is_mariadb { (10, 6, 0) } else { (8, 0, 1) }
}

/// A payload as the column holds it.
fn text<'a>(queue: &str, payload: &'a [u8]) -> Result<&'a str, Failure> {
    std::str::from_utf8(payload).map_err(|_| {
        Failure::from(Error::NotText {
            what: format!("a payload for queue `{queue}`"),
        })
    })
}

/// A number from a row of text.
pub(super) fn number(row: &Row, column: usize) -> i64 {
    row.int(column).unwrap_or_default()
}

/// How the queues of artisand's own rows begin.
pub(super) const OWN: &str = "artisand:";

/// The queue that holds what was set aside from another one.
pub(super) fn quarantine(queue: &str) -> String {
    format!("{queue}{QUARANTINE}")
}

/// End of the names of queues that hold what was set aside.
pub(super) const QUARANTINE: &str = ":quarantine";

/// Name of a queue as a job's.
pub(super) fn named(queue: &str) -> QueueName {
    QueueName::from(queue)
}
