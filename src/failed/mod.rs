//! Jobs that failed for good: the app's own store of them, and the records on their way into it.
//!
//! A failed job first becomes a [`FailedJob`] in the spool, in the same step in which it leaves its queue, and
//! then a row of the store. A store that is down, or a worker that dies, therefore delays a record but loses no
//! job. Since a record may reach the store a second time, [`FailedJobs::record`] says what it found there.

use std::path::PathBuf;

mod database;
mod file;
mod shown;
mod store;

pub use database::DatabaseFailedJobs;
pub use file::{FileFailedJobs, FileLock, Unlock};
pub use shown::class;
pub use store::FailedJobs;

pub use crate::payload::FailedJob;

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
    /// The store has another failure of the same job, because the job was retried or pushed twice.
    Occupied,
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
    #[error("{path} is not a JSON list of failed jobs; move it away or fix it")]
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
            token: None,
        };
        let uuid = job.id();
        assert_eq!(uuid, job.id());
        // As in the spools of earlier versions.
        assert!(!String::from_utf8(job.to_json()).unwrap().contains("token"));
        let read: FailedJob = serde_json::from_slice(&job.to_json()).unwrap();
        assert_eq!(read, job);
        assert_eq!((uuid.len(), &uuid[14..15]), (36, "8"), "{uuid}");
        // Another failure that is equal otherwise.
        let other = FailedJob {
            token: Some("1".into()),
            ..job.clone()
        };
        let read: FailedJob = serde_json::from_slice(&other.to_json()).unwrap();
        assert_eq!(read.id(), other.id());
        assert_ne!(read.id(), uuid);
        let named = FailedJob {
            uuid: Some("u".into()),
            ..job
        };
        assert_eq!(named.id(), "u");
    }
}
