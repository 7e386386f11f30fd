//! Jobs that failed for good: the app's own store of them, and the records on their way into it.
//!
//! A failed job first becomes a [`FailedJob`] in the spool, in the same step in which it leaves its queue, and
//! then a row of the store. A store that is down, or a worker that dies, therefore delays a record but loses no
//! job. Since a record may reach the store a second time, [`FailedJobs::record`] says what it found there.

use std::path::PathBuf;

use jiff::tz::TimeZone;

mod database;
mod file;

pub use database::DatabaseFailedJobs;
pub use file::{FileFailedJobs, FileLock, Unlock};

pub use crate::payload::FailedJob;
use crate::time::UnixSeconds;

/// A failed job as stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredJob {
    /// The id for `queue:retry` and similar commands: the uuid, or the number of a row without one.
    pub id: String,
    /// Queue connection.
    pub connection: String,
    /// Queue.
    pub queue: String,
    /// The payload.
    pub payload: Vec<u8>,
    /// The exception.
    pub exception: String,
    /// `Y-m-d H:i:s` in the app's time zone.
    pub failed_at: String,
}

/// The result of recording a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The job is now in the store.
    New,
    /// The job was in the store already.
    Already,
    /// The store has another failure of the same job, which is being retried or was pushed twice.
    Occupied,
}

/// The app's store of failed jobs (`queue.failed`).
#[derive(Debug)]
pub enum FailedJobs {
    /// A table, by uuid (`database-uuids`) or by number (`database`).
    Database(DatabaseFailedJobs),
    /// A JSON file (`file`).
    File(FileFailedJobs),
    /// No store: failed jobs are not kept (`null`).
    Null,
}

/// An error from a store of failed jobs.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database refused the operation.
    #[error("could not {what} failed jobs in table `{table}`")]
    Database {
        /// What was tried.
        what: &'static str,
        /// The table.
        table: String,
        /// What the connection reported.
        source: Box<crate::connection::Error>,
    },
    /// The file cannot be read or written.
    #[error("could not {what} {path}")]
    File {
        /// What was tried.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file's content is not what Laravel writes.
    #[error("{path} is not a JSON list of failed jobs; move it away or mend it")]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        source: serde_json::Error,
    },
    /// Another process works on the file.
    #[error("could not get the lock for {path} within {seconds} seconds")]
    Locked {
        /// The file.
        path: PathBuf,
        /// How long the lock was tried for, in seconds.
        seconds: u64,
    },
    /// The lock cannot be used.
    #[error("could not lock {path}")]
    Lock {
        /// The file.
        path: PathBuf,
        /// What its cache store reported.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

impl FailedJobs {
    /// Name of the driver, and where it keeps the jobs.
    pub fn describe(&self) -> String {
        match self {
            Self::Database(store) => store.describe(),
            Self::File(store) => format!("file {}", store.path().display()),
            Self::Null => "null (failed jobs are not kept)".to_owned(),
        }
    }

    /// Records a failed job, unless the store has a job with the same id.
    ///
    /// # Errors
    ///
    /// The store cannot be written; the job may be there.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Failed\DatabaseUuidFailedJobProvider::log` and its siblings.
    pub async fn record(&self, job: &FailedJob) -> Result<Recorded, Error> {
        match self {
            Self::Database(store) => store.record(job).await,
            Self::File(store) => store.record(job).await,
            Self::Null => Ok(Recorded::New),
        }
    }

    /// Replaces another failure of the same job; the result says if another writer came first.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn replace(&self, job: &FailedJob) -> Result<Recorded, Error> {
        match self {
            Self::Database(store) => store.replace(job).await,
            Self::File(store) => store.replace(job).await,
            Self::Null => Ok(Recorded::New),
        }
    }

    /// All failed jobs, latest first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn all(&self) -> Result<Vec<StoredJob>, Error> {
        match self {
            Self::Database(store) => store.all().await,
            Self::File(store) => store.all().await,
            Self::Null => Ok(Vec::new()),
        }
    }

    /// Ids of the failed jobs of one queue or of all queues, latest first.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn ids(&self, queue: Option<&str>) -> Result<Vec<String>, Error> {
        match self {
            Self::Database(store) => store.ids(queue).await,
            Self::File(store) => {
                let jobs = store.all().await?.into_iter();
                let of_queue = jobs.filter(|job| queue.is_none_or(|queue| job.queue == queue));
                Ok(of_queue.map(|job| job.id).collect())
            }
            Self::Null => Ok(Vec::new()),
        }
    }

    /// One failed job.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn find(&self, id: &str) -> Result<Option<StoredJob>, Error> {
        match self {
            Self::Database(store) => store.find(id).await,
            Self::File(store) => Ok(store.all().await?.into_iter().find(|job| job.id == id)),
            Self::Null => Ok(None),
        }
    }

    /// Deletes one failed job; returns whether it existed.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn forget(&self, id: &str) -> Result<bool, Error> {
        match self {
            Self::Database(store) => store.forget(id).await,
            Self::File(store) => {
                let id = id.to_owned();
                let gone = store.retain(move |job| job.id() != id).await?;
                Ok(gone > 0)
            }
            // As Laravel's null provider, which reports success.
            Self::Null => Ok(true),
        }
    }

    /// Deletes all failed jobs, or those that failed at this second or before.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn flush(&self, until: Option<UnixSeconds>) -> Result<(), Error> {
        match self {
            Self::Database(store) => store.flush(until).await,
            Self::File(store) => {
                let keep = move |at: i64| until.is_some_and(|until| at > until.0);
                store
                    .retain(move |job| keep(job.failed_at_timestamp))
                    .await
                    .map(drop)
            }
            Self::Null => Ok(()),
        }
    }

    /// Deletes jobs that failed before this second (driver `file`: before or at it); returns how many, or `None`
    /// if the driver cannot prune.
    ///
    /// # Errors
    ///
    /// The store cannot be written.
    pub async fn prune(&self, before: UnixSeconds) -> Result<Option<u64>, Error> {
        match self {
            Self::Database(store) => store.prune(before).await.map(Some),
            Self::File(store) => {
                let gone = store
                    .retain(move |job| job.failed_at_timestamp > before.0)
                    .await;
                gone.map(Some)
            }
            Self::Null => Ok(None),
        }
    }

    /// Class of Laravel's provider, as its messages name it.
    pub fn provider(&self) -> &'static str {
        match self {
            Self::Database(store) if store.is_by_uuid() => {
                "Illuminate\\Queue\\Failed\\DatabaseUuidFailedJobProvider"
            }
            Self::Database(_) => "Illuminate\\Queue\\Failed\\DatabaseFailedJobProvider",
            Self::File(_) => "Illuminate\\Queue\\Failed\\FileFailedJobProvider",
            Self::Null => "Illuminate\\Queue\\Failed\\NullFailedJobProvider",
        }
    }

    /// Whether a write to the store may keep others from writing to the database: `SQLite` allows one writer.
    pub fn keeps_others_out(&self) -> bool {
        matches!(self, Self::Database(store) if store.is_sqlite())
    }

    /// Tests whether the store can be read and written, without changing it.
    ///
    /// # Errors
    ///
    /// Why not.
    pub async fn check(&self) -> Result<(), Error> {
        match self {
            Self::Database(store) => {
                store.ping().await?;
                store.try_write().await
            }
            Self::File(store) => store.try_write().await,
            Self::Null => Ok(()),
        }
    }

    /// Whether the table requires a uuid that the driver (`database`) does not write, so that nothing can be
    /// recorded.
    pub async fn wants_uuid(&self) -> bool {
        match self {
            Self::Database(store) => store.wants_uuid().await,
            Self::File(_) | Self::Null => false,
        }
    }
}

/// A moment as Laravel writes it: in the app's time zone, without naming the zone.
fn local_text(moment: UnixSeconds, timezone: &TimeZone) -> String {
    let timestamp = jiff::Timestamp::from_second(moment.0).unwrap_or_default();
    let local = timezone.to_datetime(timestamp);
    local.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// Text that every database accepts: `PostgreSQL` refuses NUL.
fn storable(text: &str) -> std::borrow::Cow<'_, str> {
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
    fn a_job_without_uuid_gets_the_same_one_each_time() {
        let job = FailedJob {
            uuid: None,
            connection: "redis".into(),
            queue: "default".into(),
            payload: "{}".into(),
            exception: "E".into(),
            failed_at: 1_767_323_045,
        };
        let uuid = job.id();
        assert_eq!(uuid, job.id());
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "8"), "{uuid}");
        let named = FailedJob {
            uuid: Some("u".into()),
            ..job
        };
        assert_eq!(named.id(), "u");
    }

    #[test]
    fn moments_are_local() {
        let at = UnixSeconds(1_767_323_045);
        assert_eq!(local_text(at, &TimeZone::UTC), "2026-01-02 03:04:05");
        let warsaw = TimeZone::get("Europe/Warsaw").unwrap();
        assert_eq!(local_text(at, &warsaw), "2026-01-02 04:04:05");
    }
}
