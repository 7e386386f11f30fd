//! Failed jobs in a table, by uuid or by number.

use jiff::tz::TimeZone;

use super::{Error, FailedJob, Recorded, StoredJob};
use crate::connection::{Database, DatabaseKind, Param, Row, local_text, storable};
use crate::time::UnixSeconds;

/// A table of failed jobs.
#[derive(Debug)]
pub struct DatabaseFailedJobs {
    database: Database,
    /// The table's name as configured, for messages.
    name: String,
    /// The table's name as written in statements.
    table: String,
    by_uuid: bool,
    timezone: TimeZone,
}

/// Rows deleted by one statement of `queue:prune-failed`.
const CHUNK: u64 = 1000;
/// Rows among which one that is equal is looked for: it was written by a try whose reply was lost.
const RECENT: u64 = 10_000;

impl DatabaseFailedJobs {
    /// A store in this table; `by_uuid` for driver `database-uuids`.
    pub fn new(database: Database, table: &str, by_uuid: bool, timezone: TimeZone) -> Self {
        Self {
            table: database.table(table),
            name: table.to_owned(),
            database,
            by_uuid,
            timezone,
        }
    }

    pub(super) fn is_by_uuid(&self) -> bool {
        self.by_uuid
    }

    pub(super) fn is_sqlite(&self) -> bool {
        self.database.kind() == DatabaseKind::Sqlite
    }

    pub(super) fn describe(&self) -> String {
        let driver = if self.by_uuid {
            "database-uuids"
        } else {
            "database"
        };
        let address = self.database.address();
        format!("{driver}, table `{}` at {address}", self.name)
    }

    fn failed(&self, what: &'static str) -> impl Fn(crate::connection::Error) -> Error {
        let table = self.name.clone();
        move |source| Error::Database {
            what,
            table: table.clone(),
            source: Box::new(source),
        }
    }

    /// The column that identifies a job to users.
    fn id_column(&self) -> &'static str {
        if self.by_uuid { "uuid" } else { "id" }
    }

    /// The condition that a row has this id, with its value; `None` for a text that is no row's number.
    ///
    /// A number is compared as such: compared as text, no index would help.
    fn with_id<'a>(&self, id: &'a str) -> Option<(&'static str, Param<'a>)> {
        if self.by_uuid {
            return Some(("where \"uuid\" = ?", id.into()));
        }
        Some(("where \"id\" = ?", id.parse::<i64>().ok()?.into()))
    }

    pub(super) async fn record(&self, job: &FailedJob) -> Result<Recorded, Error> {
        match self.record_as_it_is(job).await {
            Err(error) if is_no_moment(&error) => self.record_as_it_is(&an_hour_later(job)).await,
            recorded => recorded,
        }
    }

    async fn record_as_it_is(&self, job: &FailedJob) -> Result<Recorded, Error> {
        if self.by_uuid {
            self.record_by_uuid(job).await
        } else {
            self.record_by_number(job).await
        }
    }

    async fn record_by_uuid(&self, job: &FailedJob) -> Result<Recorded, Error> {
        let sql = format!(
            "insert into {} (\"uuid\", \"connection\", \"queue\", \"payload\", \"exception\", \"failed_at\") values (?, ?, ?, ?, ?, {})",
            self.table,
            self.database.moment()
        );
        let (uuid, failed_at) = (job.id(), local_text(job.failed_at(), &self.timezone));
        let exception = storable(&job.exception);
        let params: [Param<'_>; 6] = [
            (&uuid).into(),
            (&job.connection).into(),
            (&job.queue).into(),
            (&job.payload).into(),
            Param::Text(&exception),
            (&failed_at).into(),
        ];
        let duplicate = match self.database.execute(&sql, &params).await {
            Ok(_) => return Ok(Recorded::New),
            Err(error) if error.is_duplicate() => error,
            Err(error) => return Err(self.failed("record")(error)),
        };
        // The duplicate concerns another unique column, for example because the table's numbering is behind.
        let Some(stored) = self.find(&uuid).await? else {
            return Err(self.failed("record")(duplicate));
        };
        let is_same = stored.failed_at == failed_at
            && stored.payload == job.payload.as_bytes()
            && stored.exception == *exception;
        Ok(if is_same {
            Recorded::Already
        } else {
            Recorded::Occupied
        })
    }

    /// Without a unique column, a row counts as the same if all columns are equal. Only the last rows are compared: the
    /// table has no index but that of the id.
    async fn record_by_number(&self, job: &FailedJob) -> Result<Recorded, Error> {
        let moment = self.database.moment();
        let (text, dual) = match self.database.kind() {
            DatabaseKind::Postgres => ("cast(? as text)", ""),
            DatabaseKind::MySql => ("?", " from dual"),
            DatabaseKind::Sqlite => ("?", ""),
        };
        let sql = format!(
            "insert into {table} (\"connection\", \"queue\", \"payload\", \"exception\", \"failed_at\") \
             select {text}, {text}, {text}, {text}, {moment}{dual} where not exists (select 1 from {table} \
             where \"id\" > (select case when max(\"id\") > {RECENT} then max(\"id\") - {RECENT} else 0 end from {table}) \
             and \"failed_at\" = {moment} and \"queue\" = ? and \"connection\" = ? and \"payload\" = ? and \"exception\" = ?)",
            table = self.table
        );
        let failed_at = local_text(job.failed_at(), &self.timezone);
        let exception = storable(&job.exception);
        let params: [Param<'_>; 10] = [
            (&job.connection).into(),
            (&job.queue).into(),
            (&job.payload).into(),
            Param::Text(&exception),
            (&failed_at).into(),
            (&failed_at).into(),
            (&job.queue).into(),
            (&job.connection).into(),
            (&job.payload).into(),
            Param::Text(&exception),
        ];
        let inserted = self.database.execute(&sql, &params).await;
        Ok(match inserted.map_err(self.failed("record"))? {
            0 => Recorded::Already,
            _ => Recorded::New,
        })
    }

    pub(super) async fn replace(&self, job: &FailedJob) -> Result<Recorded, Error> {
        match self.replace_as_it_is(job).await {
            Err(error) if is_no_moment(&error) => self.replace_as_it_is(&an_hour_later(job)).await,
            replaced => replaced,
        }
    }

    async fn replace_as_it_is(&self, job: &FailedJob) -> Result<Recorded, Error> {
        if !self.by_uuid {
            return self.record_by_number(job).await;
        }
        let sql = format!(
            "update {} set \"connection\" = ?, \"queue\" = ?, \"payload\" = ?, \"exception\" = ?, \"failed_at\" = {} where \"uuid\" = ?",
            self.table,
            self.database.moment()
        );
        let (uuid, failed_at) = (job.id(), local_text(job.failed_at(), &self.timezone));
        let exception = storable(&job.exception);
        let params: [Param<'_>; 6] = [
            (&job.connection).into(),
            (&job.queue).into(),
            (&job.payload).into(),
            Param::Text(&exception),
            (&failed_at).into(),
            (&uuid).into(),
        ];
        let updated = self.database.execute(&sql, &params).await;
        if updated.map_err(self.failed("record"))? == 0 {
            return self.record_by_uuid(job).await;
        }
        Ok(Recorded::New)
    }

    async fn select(&self, rest: &str, params: &[Param<'_>]) -> Result<Vec<StoredJob>, Error> {
        let columns = [
            self.id_column(),
            "connection",
            "queue",
            "payload",
            "exception",
            "failed_at",
        ];
        let columns = columns
            .map(|column| self.database.as_text(column))
            .join(", ");
        let sql = format!("select {columns} from {} {rest}", self.table);
        let rows = self.database.rows(&sql, params).await;
        let rows = rows.map_err(self.failed("read"))?;
        Ok(rows.iter().map(stored).collect())
    }

    pub(super) async fn all(&self) -> Result<Vec<StoredJob>, Error> {
        self.select("order by \"id\" desc", &[]).await
    }

    pub(super) async fn latest(&self, most: usize) -> Result<Vec<StoredJob>, Error> {
        let rest = format!("order by \"id\" desc limit {most}");
        self.select(&rest, &[]).await
    }

    pub(super) async fn count(&self) -> Result<u64, Error> {
        let count = self.database.text_of("count(*)");
        let sql = format!("select {count} from {}", self.table);
        let rows = self.database.rows(&sql, &[]).await;
        let rows = rows.map_err(self.failed("read"))?;
        let count = rows.first().and_then(|row| row.text(0)?.parse().ok());
        Ok(count.unwrap_or(0))
    }

    pub(super) async fn find(&self, id: &str) -> Result<Option<StoredJob>, Error> {
        let Some((rest, id)) = self.with_id(id) else {
            return Ok(None);
        };
        Ok(self.select(rest, &[id]).await?.pop())
    }

    pub(super) async fn ids(&self, queue: Option<&str>) -> Result<Vec<String>, Error> {
        let id = self.database.as_text(self.id_column());
        let (condition, params) = match queue {
            Some(queue) => ("where \"queue\" = ?", vec![Param::Text(queue)]),
            None => ("", Vec::new()),
        };
        let sql = format!(
            "select {id} from {} {condition} order by \"id\" desc",
            self.table
        );
        let rows = self.database.rows(&sql, &params).await;
        let rows = rows.map_err(self.failed("read"))?;
        Ok(rows
            .iter()
            .filter_map(|row| row.text(0))
            .map(Into::into)
            .collect())
    }

    async fn delete(&self, rest: &str, params: &[Param<'_>]) -> Result<u64, Error> {
        let sql = format!("delete from {} {rest}", self.table);
        let deleted = self.database.execute(&sql, params).await;
        deleted.map_err(self.failed("delete"))
    }

    pub(super) async fn forget(&self, id: &str) -> Result<bool, Error> {
        let Some((rest, id)) = self.with_id(id) else {
            return Ok(false);
        };
        Ok(self.delete(rest, &[id]).await? > 0)
    }

    pub(super) async fn flush(&self, until: Option<UnixSeconds>) -> Result<(), Error> {
        let Some(until) = until else {
            return self.delete("", &[]).await.map(drop);
        };
        let until = local_text(until, &self.timezone);
        let rest = format!("where \"failed_at\" <= {}", self.database.moment());
        self.delete(&rest, &[(&until).into()]).await.map(drop)
    }

    pub(super) async fn prune(&self, before: UnixSeconds) -> Result<u64, Error> {
        let before = local_text(before, &self.timezone);
        let condition = format!("\"failed_at\" < {}", self.database.moment());
        let rest = match self.database.kind() {
            DatabaseKind::MySql => format!("where {condition} limit {CHUNK}"),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => format!(
                "where \"id\" in (select \"id\" from {} where {condition} limit {CHUNK})",
                self.table
            ),
        };
        let mut total = 0;
        loop {
            let deleted = self.delete(&rest, &[(&before).into()]).await?;
            total += deleted;
            if deleted == 0 {
                return Ok(total);
            }
        }
    }

    /// Tests whether rows can be written, without writing one.
    pub(super) async fn try_write(&self) -> Result<(), Error> {
        let columns = ["connection", "queue", "payload", "exception", "failed_at"];
        let id = if self.by_uuid { "\"uuid\", " } else { "" };
        let columns = columns.map(|column| format!("\"{column}\"")).join(", ");
        let columns = format!("{id}{columns}");
        let sql = format!(
            "insert into {table} ({columns}) select {columns} from {table} where 1 = 0",
            table = self.table
        );
        let tried = self.database.execute(&sql, &[]).await;
        tried.map_err(self.failed("record"))?;
        self.delete("where 1 = 0", &[]).await.map(drop)
    }

    /// Whether the table requires a uuid that this driver does not write.
    pub(super) async fn wants_uuid(&self) -> bool {
        let sql = format!("select \"uuid\" from {} where 1 = 0", self.table);
        // SQLite takes a double-quoted name that is not a column as text.
        let is_column = self.database.kind() != DatabaseKind::Sqlite;
        !self.by_uuid && is_column && self.database.rows(&sql, &[]).await.is_ok()
    }

    pub(super) async fn ping(&self) -> Result<(), Error> {
        self.select("where 1 = 0", &[]).await.map(drop)
    }
}

fn is_no_moment(error: &Error) -> bool {
    matches!(error, Error::Database { source, .. } if source.is_no_moment())
}

/// A job whose moment the server does not know, as its own time zone skips that hour for summer time.
fn an_hour_later(job: &FailedJob) -> FailedJob {
    FailedJob {
        // Else it would be made of the moment.
        uuid: Some(job.id()),
        failed_at: job.failed_at.saturating_add(3600),
        ..job.clone()
    }
}

fn stored(row: &Row) -> StoredJob {
    let text = |column| row.text(column).map(String::from).unwrap_or_default();
    StoredJob {
        id: text(0),
        connection: text(1),
        queue: text(2),
        payload: row.bytes(3).unwrap_or_default().to_vec(),
        exception: text(4),
        // SQLite and MySQL may keep fractions of a second.
        failed_at: text(5).chars().take(19).collect(),
    }
}

#[cfg(all(test, feature = "sqlite"))]
mod tests {
    use super::*;
    use crate::connection::DatabaseOptions;

    #[tokio::test]
    async fn a_row_is_found_by_an_index() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("database.sqlite");
        std::fs::write(&path, b"").unwrap();
        let options = DatabaseOptions {
            database: path.to_str().unwrap().into(),
            ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
        };
        let database = Database::new(&options).unwrap();
        let table = "create table failed_jobs (id integer primary key, uuid text unique)";
        database.execute(table, &[]).await.unwrap();
        for (by_uuid, id) in [(true, "a"), (true, "7"), (false, "7")] {
            let store =
                DatabaseFailedJobs::new(database.clone(), "failed_jobs", by_uuid, TimeZone::UTC);
            let (rest, id) = store.with_id(id).unwrap();
            for what in ["select id", "delete"] {
                let sql = format!("explain query plan {what} from failed_jobs {rest}");
                let plan = database.rows(&sql, &[id]).await.unwrap();
                let plan = plan[0].text(3).unwrap();
                assert!(plan.starts_with("SEARCH"), "{sql}: {plan}");
            }
        }
        let by_number = DatabaseFailedJobs::new(database, "failed_jobs", false, TimeZone::UTC);
        for id in ["a", "", "1 or 1=1", "9223372036854775808"] {
            assert!(by_number.with_id(id).is_none(), "{id}");
            assert!(!by_number.forget(id).await.unwrap(), "{id}");
        }
    }
}
