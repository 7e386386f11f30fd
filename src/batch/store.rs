//! New batches.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::{Batch, Batches, Error, Options};
use crate::connection::DatabaseKind;
use crate::payload::random_uuid;
use crate::time::Micros;

impl Batches {
    /// A new batch without jobs, with these options as PHP serializes them. It is not in the table yet.
    pub(crate) fn make(&self, name: &str, options: &[u8]) -> Batch {
        Batch {
            id: ordered_uuid(Micros::now()),
            name: name.to_owned(),
            total_jobs: 0,
            pending_jobs: 0,
            failed_jobs: 0,
            failed_job_ids: Vec::new(),
            options: Options::parse(options),
            created_at: self.now(),
            cancelled_at: None,
            finished_at: None,
        }
    }

    /// Puts a new batch into the table.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::store`.
    pub(crate) async fn store(&self, batch: &Batch, options: &[u8]) -> Result<(), Error> {
        let options = match self.database.kind() {
            // Its text holds no NUL, which names of private properties have.
            DatabaseKind::Postgres => BASE64.encode(options),
            DatabaseKind::MySql | DatabaseKind::Sqlite => {
                String::from_utf8_lossy(options).into_owned()
            }
        };
        let sql = format!(
            "insert into {} (\"id\", \"name\", \"total_jobs\", \"pending_jobs\", \"failed_jobs\", \"failed_job_ids\", \"options\", \"created_at\", \"cancelled_at\", \"finished_at\") values (?, ?, 0, 0, 0, '[]', ?, ?, null, null)",
            self.table
        );
        let params = [
            (&*batch.id).into(),
            (&*batch.name).into(),
            (&*options).into(),
            batch.created_at.0.into(),
        ];
        let stored = self.execute("store", &sql, &params).await;
        stored.map(drop)
    }

    /// Deletes a batch.
    pub(crate) async fn delete(&self, id: &str) -> Result<(), Error> {
        let sql = format!("delete from {} where \"id\" = ?", self.table);
        let deleted = self.execute("delete", &sql, &[id.into()]).await;
        deleted.map(drop)
    }
}

/// A uuid that sorts by time: 48 bits of the time in units of 10 microseconds, then those of a random one.
///
/// # Source
///
/// `Illuminate\Support\Str::orderedUuid`.
fn ordered_uuid(now: Micros) -> String {
    let time = format!("{:012x}", now.0 / 10);
    let random = random_uuid();
    format!("{}-{}{}", &time[..8], &time[8..12], &random.as_str()[13..])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_uuids_that_sort_by_time() {
        let [first, second] = [4_660, 4_670].map(|now| ordered_uuid(Micros(now)));
        assert!(first.starts_with("00000000-01d2-4"), "{first}");
        assert!(first < second, "{first} {second}");
        assert_eq!(first.len(), 36);
    }
}
