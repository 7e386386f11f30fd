//! Entries as rows of Pulse's tables, and the statements that write them.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use super::gather::{Gathered, Greatest, Single, TYPES};
use super::hash::md5;
use crate::connection::{Database, DatabaseKind, Error, Param, SqlError, Transaction, storable};

/// Lengths of buckets in seconds; each is kept for as many minutes.
const PERIODS: [u64; 4] = [60, 360, 1440, 10_080];
/// Most rows of one statement.
const CHUNK: usize = 500;
/// How often a transaction is tried that another one was in the way of.
const TRIES: usize = 3;

/// How a value is added to what a bucket holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aggregate {
    Count,
    Max,
}

/// Which bucket: sorted like this by all writers, so that they lock rows in one order.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Bucket {
    aggregate: Aggregate,
    kind: &'static str,
    period: u64,
    /// When it begins.
    start: u64,
    key: Box<str>,
}

/// What is added to Pulse's tables.
#[derive(Debug, Default)]
pub struct Rows {
    buckets: BTreeMap<Bucket, u64>,
    single: Vec<Single>,
}

impl Rows {
    /// The rows of these entries, at this moment.
    ///
    /// # Source
    ///
    /// `Laravel\Pulse\Storage\DatabaseStorage::preaggregate`.
    pub fn of(gathered: &Gathered, now: u64) -> Self {
        let mut rows = Self {
            buckets: BTreeMap::new(),
            single: gathered.single.clone(),
        };
        for ((connection, queue, minute), counts) in &gathered.queues {
            let key = format!("{connection}:{queue}");
            for (kind, count) in TYPES.into_iter().zip(counts) {
                if *count > 0 {
                    rows.add(Aggregate::Count, kind, &key, *minute, *count, now);
                }
            }
        }
        for ((kind, key, minute), Greatest { value, count }) in &gathered.greatest {
            rows.add(Aggregate::Count, kind, key, *minute, *count, now);
            rows.add(Aggregate::Max, kind, key, *minute, *value, now);
        }
        rows
    }

    fn add(
        &mut self,
        aggregate: Aggregate,
        kind: &'static str,
        key: &str,
        timestamp: u64,
        value: u64,
        now: u64,
    ) {
        for period in PERIODS {
            // Pulse removes such buckets; here the minute counts, not its seconds.
            if timestamp + period * 60 < now {
                continue;
            }
            let bucket = Bucket {
                aggregate,
                kind,
                period,
                start: timestamp - timestamp % period,
                key: storable(key).into(),
            };
            let sum = self.buckets.entry(bucket).or_default();
            *sum = match aggregate {
                Aggregate::Count => *sum + value,
                Aggregate::Max => (*sum).max(value),
            };
        }
    }

    /// The statements for these rows, each with its keys.
    fn statements(&self, database: &Database) -> Vec<(String, Vec<String>)> {
        let single = self.single.chunks(CHUNK);
        let mut statements: Vec<_> = single.map(|rows| insert_single(database, rows)).collect();
        for aggregate in [Aggregate::Count, Aggregate::Max] {
            let rows = self.buckets.iter();
            let rows: Vec<_> = rows.filter(|(row, _)| row.aggregate == aggregate).collect();
            let chunks = rows.chunks(CHUNK);
            statements.extend(chunks.map(|rows| upsert(database, aggregate, rows)));
        }
        statements
    }
}

/// Only on `SQLite` the hash of a key is an ordinary column.
fn has_hash(database: &Database) -> bool {
    database.kind() == DatabaseKind::Sqlite
}

/// Writes rows of keys; `values` gives each row up to its key.
fn values<'a>(
    database: &Database,
    rows: impl Iterator<Item = (String, &'a str)>,
) -> (String, Vec<String>) {
    let (mut sql, mut params) = (String::new(), Vec::new());
    for (numbers, key) in rows {
        if !sql.is_empty() {
            sql.push_str(", ");
        }
        // Writing to a `String` cannot fail.
        let _ = write!(sql, "({numbers}, ?");
        let key = storable(key);
        params.push(key.to_string());
        if has_hash(database) {
            sql.push_str(", ?");
            params.push(md5(&key));
        }
        sql.push(')');
    }
    (sql, params)
}

fn insert_single(database: &Database, rows: &[Single]) -> (String, Vec<String>) {
    let table = database.table("pulse_entries");
    let hash = if has_hash(database) {
        ", \"key_hash\""
    } else {
        ""
    };
    let rows = rows.iter().map(|row| {
        let Single {
            timestamp,
            kind,
            key,
            value,
        } = row;
        (format!("{timestamp}, '{kind}', {value}"), &**key)
    });
    let (values, params) = values(database, rows);
    let sql = format!(
        "insert into {table} (\"timestamp\", \"type\", \"value\", \"key\"{hash}) values {values}"
    );
    (sql, params)
}

fn upsert(
    database: &Database,
    aggregate: Aggregate,
    rows: &[(&Bucket, &u64)],
) -> (String, Vec<String>) {
    let table = database.table("pulse_aggregates");
    let name = match aggregate {
        Aggregate::Count => "count",
        Aggregate::Max => "max",
    };
    let rows = rows.iter().map(|(row, value)| {
        let Bucket {
            kind,
            period,
            start,
            key,
            ..
        } = row;
        (
            format!("'{name}', {start}, {period}, '{kind}', {value}"),
            &**key,
        )
    });
    let hash = if has_hash(database) {
        ", \"key_hash\""
    } else {
        ""
    };
    let (values, params) = values(database, rows);
    let (old, new, on_conflict) = match database.kind() {
        DatabaseKind::MySql => (
            "\"value\"".to_owned(),
            // Deprecated in MySQL 8.0.20, and the only form that MariaDB knows, too.
            "values(\"value\")",
            "on duplicate key update",
        ),
        DatabaseKind::Sqlite | DatabaseKind::Postgres => (
            format!("{table}.\"value\""),
            "\"excluded\".\"value\"",
            "on conflict (\"bucket\", \"period\", \"type\", \"aggregate\", \"key_hash\") do update set",
        ),
    };
    let sum = match (aggregate, database.kind()) {
        (Aggregate::Count, _) => format!("{old} + {new}"),
        (Aggregate::Max, DatabaseKind::Sqlite) => format!("max({old}, {new})"),
        (Aggregate::Max, _) => format!("greatest({old}, {new})"),
    };
    let sql = format!(
        "insert into {table} (\"aggregate\", \"bucket\", \"period\", \"type\", \"value\", \"key\"{hash}) \
         values {values} {on_conflict} \"value\" = {sum}"
    );
    (sql, params)
}

/// Why rows were not written.
#[derive(Debug)]
pub struct Unwritten {
    /// What the database said.
    pub error: Error,
    /// Whether it is certain that nothing was written, so that it may be tried again.
    pub is_certain: bool,
}

/// Adds rows to Pulse's tables, all or none.
///
/// # Errors
///
/// The database is away, refuses the rows, or has no such tables.
pub async fn write(database: &Database, rows: &Rows) -> Result<(), Unwritten> {
    let statements = rows.statements(database);
    for tries in 1.. {
        match transact(database, &statements).await {
            Err(Unwritten { error, .. }) if tries < TRIES && is_deadlock(&error) => {}
            ended => return ended,
        }
    }
    Ok(())
}

async fn transact(
    database: &Database,
    statements: &[(String, Vec<String>)],
) -> Result<(), Unwritten> {
    let undone = |error| Unwritten {
        error,
        is_certain: true,
    };
    let mut transaction: Transaction = database.begin().await.map_err(undone)?;
    for (sql, params) in statements {
        let params: Vec<Param<'_>> = params.iter().map(Param::from).collect();
        let ran = transaction.execute(sql, &params).await;
        ran.map_err(undone)?;
    }
    let committed = transaction.commit().await;
    committed.map_err(|error| Unwritten {
        is_certain: sql_error(&error).is_some_and(|error| !error.is_of_unknown_outcome()),
        error,
    })
}

/// What the server said, if the error is one of a statement.
pub(super) fn sql_error(error: &Error) -> Option<&SqlError> {
    match error {
        Error::Sql { source, .. } => Some(source),
        _ => None,
    }
}

fn is_deadlock(error: &Error) -> bool {
    sql_error(error).is_some_and(SqlError::is_deadlock)
}
