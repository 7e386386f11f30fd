//! Wakes idle workers: a database tells nobody of a push.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;

use super::step::Failure;
use crate::connection::{Database, DatabaseKind, DatabaseOptions, Error};

/// How often `SQLite` is asked whether another connection has written. A look costs some microseconds.
const GLANCE: Duration = Duration::from_millis(5);

/// How often a server is asked for jobs while it had some of late.
const SOON: Duration = Duration::from_millis(250);

/// How long jobs count as of late.
const LATELY: Duration = Duration::from_mins(1);

/// Wakes idle workers.
#[derive(Debug)]
pub(super) struct Wake {
    /// One connection to a file, which sees the writes of all others.
    file: Option<Database>,
    /// The version of the file when it was last looked at.
    seen: Mutex<Option<i64>>,
    /// Notified by pushes of this process.
    pushed: Notify,
    /// When a pop last found a job.
    last_job: Mutex<Option<Instant>>,
}

impl Wake {
    pub(super) fn new(database: &DatabaseOptions) -> Result<Self, Error> {
        let file = (database.kind == DatabaseKind::Sqlite).then(|| {
            Database::new(&DatabaseOptions {
                connections: 1,
                ..database.clone()
            })
        });
        Ok(Self {
            file: file.transpose()?,
            seen: Mutex::default(),
            pushed: Notify::new(),
            last_job: Mutex::default(),
        })
    }

    /// Wakes a worker of this process that waits.
    pub(super) fn now(&self) {
        self.pushed.notify_one();
    }

    /// Notes that a pop has found jobs.
    pub(super) fn found(&self) {
        *self.last_job.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Notes how the file is, before the first pop.
    pub(super) async fn begin(&self) {
        let is_known = || {
            self.seen
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .is_some()
        };
        if let Some(file) = self.file.as_ref().filter(|_| !is_known())
            && let Ok(version) = version(file).await
        {
            self.note_version(version);
        }
    }

    /// Waits until there may be a job; false after `timeout`.
    pub(super) async fn next(&self, timeout: Duration) -> Result<bool, Failure> {
        let deadline = Instant::now() + timeout;
        let pause = if self.file.is_some() { GLANCE } else { SOON };
        loop {
            // The look comes first: a push may have come since the last one.
            if let Some(file) = &self.file
                && self.note_version(version(file).await?)
            {
                return Ok(true);
            }
            let until = deadline.min(Instant::now() + pause);
            let pushed = tokio::time::timeout_at(until, self.pushed.notified()).await;
            if pushed.is_ok() || (self.file.is_none() && self.had_jobs()) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
        }
    }

    /// Notes the version of the file; true if it has changed since the last look.
    fn note_version(&self, version: i64) -> bool {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        seen.replace(version).is_some_and(|seen| seen != version)
    }

    fn had_jobs(&self) -> bool {
        let last = *self.last_job.lock().unwrap_or_else(PoisonError::into_inner);
        last.is_some_and(|last| last.elapsed() < LATELY)
    }
}

/// A number that changes when another connection has written to the file.
async fn version(file: &Database) -> Result<i64, Failure> {
    let rows = file
        .rows(
            "select cast(data_version as text) from pragma_data_version",
            &[],
        )
        .await?;
    Ok(rows.first().and_then(|row| row.int(0)).unwrap_or_default())
}
