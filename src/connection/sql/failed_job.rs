//! Rows of failed jobs, which are written by the app's store of them, or in the transaction that ends the job.

use std::borrow::Cow;

use jiff::tz::TimeZone;

use super::{Database, DatabaseKind, Param, Transaction};
use crate::connection::Error;
use crate::payload::FailedJob;
use crate::time::UnixSeconds;

/// The app's table of failed jobs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FailedJobsTable {
    /// Its name as configured, without the prefix of the database connection.
    pub name: String,
    /// Whether it has a column `uuid` (`database-uuids`).
    pub by_uuid: bool,
    /// The app's.
    pub timezone: TimeZone,
}

impl FailedJobsTable {
    /// Inserts a job; false if the table has a row of the same uuid, and is left as it was.
    ///
    /// # Errors
    ///
    /// [`Error::Sql`]; the transaction is of no more use then.
    pub async fn insert(
        &self,
        database: &Database,
        transaction: &mut Transaction,
        job: &FailedJob,
    ) -> Result<bool, Error> {
        let table = database.table(&self.name);
        let moment = database.moment();
        let columns = "\"connection\", \"queue\", \"payload\", \"exception\", \"failed_at\"";
        let values = format!("?, ?, ?, ?, {moment}");
        let sql = match database.kind() {
            _ if !self.by_uuid => format!("insert into {table} ({columns}) values ({values})"),
            // MySQL's `insert ignore` would shorten what is too long.
            DatabaseKind::MySql => format!(
                "insert into {table} ({columns}, \"uuid\") select {values}, ? from dual \
                 where not exists (select 1 from {table} where \"uuid\" = ?)"
            ),
            DatabaseKind::Sqlite | DatabaseKind::Postgres => format!(
                "insert into {table} ({columns}, \"uuid\") values ({values}, ?) on conflict do nothing"
            ),
        };
        let (uuid, failed_at) = (job.id(), local_text(job.failed_at(), &self.timezone));
        let exception = storable(&job.exception);
        let params: [Param<'_>; 7] = [
            (&job.connection).into(),
            (&job.queue).into(),
            (&job.payload).into(),
            Param::Text(&exception),
            (&failed_at).into(),
            (&uuid).into(),
            (&uuid).into(),
        ];
        let used = sql.matches('?').count();
        Ok(transaction.execute(&sql, &params[..used]).await? > 0)
    }
}

/// A moment as tables of failed jobs have it: local, without a zone.
pub(crate) fn local_text(moment: UnixSeconds, timezone: &TimeZone) -> String {
    let timestamp = jiff::Timestamp::from_second(moment.0).unwrap_or_default();
    let local = timezone.to_datetime(timestamp);
    local.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Text that every database accepts: `PostgreSQL` refuses NUL.
pub(crate) fn storable(text: &str) -> Cow<'_, str> {
    if text.contains('\0') {
        text.replace('\0', "?").into()
    } else {
        text.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_local() {
        let at = UnixSeconds(1_767_323_045);
        assert_eq!(local_text(at, &TimeZone::UTC), "2026-01-02 03:04:05");
        let warsaw = TimeZone::get("Europe/Warsaw").unwrap();
        assert_eq!(local_text(at, &warsaw), "2026-01-02 04:04:05");
    }
}
