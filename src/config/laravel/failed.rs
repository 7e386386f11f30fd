//! The app's stores of failed jobs and batches.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::batch::Batches;
use crate::cache::{Cache, random_owner};
use crate::connection::{DatabaseOptions, FailedJobsTable};
use crate::failed::{DatabaseFailedJobs, FailedJobs, FileFailedJobs, FileLock, Unlock};
use crate::time::Clock;

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::config::laravel";

impl Laravel {
    /// The app's batches; `None` if they are kept in `DynamoDB`, which only PHP can count in.
    ///
    /// # Errors
    ///
    /// It cannot be told where they are, or not in a database that is supported.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\BusServiceProvider::registerBatchServices`.
    pub fn batches(&self) -> SettingResult<Option<Batches>> {
        let driver = self.text(&["queue", "batching", "driver"])?;
        // Any other name is the database for Laravel, too; before 10.36 all are.
        if driver.as_deref() == Some("dynamodb") && self.is_at_least(10, 36) {
            return Ok(None);
        }
        let name = self.text(&["queue", "batching", "database"])?;
        let database = self.open_database(name.as_deref())?;
        let table = self.text(&["queue", "batching", "table"])?;
        let table = table.unwrap_or_else(|| "job_batches".into());
        Ok(Some(Batches::new(
            database,
            &table,
            self.known_version(),
            Clock::System,
        )))
    }

    /// `queue.failed.driver`, or what Laravel takes instead.
    fn failed_driver(&self) -> SettingResult<String> {
        let failed = self.at(&["queue", "failed"])?.and_then(Value::as_object);
        let has = |key: &str| failed.is_some_and(|failed| failed.contains_key(key));
        let driver = self.text(&["queue", "failed", "driver"])?;
        // Set to nothing is not the same as not set.
        Ok(match (driver, has("driver")) {
            (Some(driver), _) => driver,
            (None, false) if has("table") => "database".into(),
            (None, _) => "null".into(),
        })
    }

    /// The table of failed jobs, and the name of its database connection, if they are kept in one.
    fn failed_table(&self) -> SettingResult<Option<(Option<String>, FailedJobsTable)>> {
        let driver = self.failed_driver()?;
        if !matches!(&*driver, "database" | "database-uuids") {
            return Ok(None);
        }
        let table = self.text(&["queue", "failed", "table"])?;
        let table = FailedJobsTable {
            name: table.unwrap_or_else(|| "failed_jobs".into()),
            by_uuid: driver == "database-uuids",
            timezone: self.timezone()?,
        };
        Ok(Some((self.text(&["queue", "failed", "database"])?, table)))
    }

    /// The table of failed jobs, if it is in this database.
    pub(in crate::config) fn failed_table_in(
        &self,
        database: &DatabaseOptions,
    ) -> Option<FailedJobsTable> {
        let (name, table) = self.failed_table().ok()??;
        let place = self.database(name.as_deref()).ok()?;
        (place == *database).then_some(table)
    }

    /// The app's store of failed jobs.
    ///
    /// # Errors
    ///
    /// It cannot be told, or is of a kind that is not supported.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\QueueServiceProvider::registerFailedJobServices`.
    pub fn failed_jobs(&self) -> SettingResult<FailedJobs> {
        if let Some((name, table)) = self.failed_table()? {
            let database = self.open_database(name.as_deref())?;
            let store =
                DatabaseFailedJobs::new(database, &table.name, table.by_uuid, table.timezone);
            return Ok(FailedJobs::Database(store));
        }
        let timezone = self.timezone()?;
        match &*self.failed_driver()? {
            "null" => Ok(FailedJobs::Null),
            "file" => {
                let path = self.text(&["queue", "failed", "path"])?.map(PathBuf::from);
                let path =
                    path.unwrap_or_else(|| self.storage.join("framework/cache/failed-jobs.json"));
                let limit = self.number(&["queue", "failed", "limit"])?.unwrap_or(100);
                let lock: Arc<dyn FileLock> = Arc::new(CacheLock(self.cache("file")?));
                let limit = usize::try_from(limit).unwrap_or(0);
                Ok(FailedJobs::File(FileFailedJobs::new(
                    path, limit, timezone, lock,
                )))
            }
            driver => Err(SettingError::Wrong {
                path: "queue.failed.driver".into(),
                found: format!("`{driver}`"),
                expected: "database-uuids, database, file or null".into(),
            }),
        }
    }
}

/// Laravel's lock on the file of failed jobs.
#[derive(Debug)]
struct CacheLock(Cache);

/// How long the lock lives if its holder dies, as in Laravel.
const FILE_LOCK_LIVES: Duration = Duration::from_secs(5);

impl FileLock for CacheLock {
    fn lock(
        &self,
        wait: Duration,
    ) -> crate::handler::BoxFuture<
        '_,
        Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>,
    > {
        Box::pin(async move {
            let lock = self
                .0
                .lock("laravel-failed-jobs", random_owner(), FILE_LOCK_LIVES);
            if !lock.block(wait).await? {
                return Ok(None);
            }
            let unlock: Unlock = Box::new(move || {
                Box::pin(async move {
                    if let Err(error) = lock.release().await {
                        tracing::warn!(target: TARGET, %error, "the lock on the failed jobs stays until it ends by itself");
                    }
                })
            });
            Ok(Some(unlock))
        })
    }
}
