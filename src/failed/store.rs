//! Where the app keeps its failed jobs.

use super::{DatabaseFailedJobs, Error, FailedJob, FileFailedJobs, Recorded, StoredJob};
use crate::time::UnixSeconds;

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

    /// The failed jobs that were recorded last, latest first, at most `max`.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn latest(&self, most: usize) -> Result<Vec<StoredJob>, Error> {
        match self {
            Self::Database(store) => store.latest(most).await,
            Self::File(store) => {
                let mut jobs = store.all().await?;
                jobs.truncate(most);
                Ok(jobs)
            }
            Self::Null => Ok(Vec::new()),
        }
    }

    /// Number of failed jobs.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub async fn count(&self) -> Result<u64, Error> {
        match self {
            Self::Database(store) => store.count().await,
            Self::File(store) => Ok(store.all().await?.len() as u64),
            Self::Null => Ok(0),
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
            // Laravel's providers differ: `<` in the table, `<=` in the file.
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
