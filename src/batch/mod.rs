//! Batches: jobs that are counted together, in the app's table `job_batches`.
//!
//! The end of a batch's job is first a record next to its queue, written in the
//! same step in which the job leaves the queue, and then a change of the batch's
//! counters here. If a worker dies between the two, another worker applies the
//! record again. So that the end counts once, [`Batches::record`] leaves a mark
//! in the row, in the statement that counts; [`Batches::forget_marks`] removes
//! the mark when the record is gone.
//!
//! * Callbacks of a batch (`then`, `catch` ..) are PHP code. An ending that makes one
//!   due is not counted here: [`Recorded::NeedsPhp`] says that PHP has to record
//!   it, and so runs them exactly once.
//! * `pending_jobs` counts jobs that have not succeeded, so failed ones stay
//!   pending: "all have run" is pending = failed, "all succeeded" is pending = 0.
//! * Laravel's events (`BatchFinished`, `BatchCanceled`, `BatchStarted`) are PHP,
//!   too; what is counted here raises none.

use serde::{Deserialize, Serialize};

mod database;
mod ids;
mod options;
mod rules;
mod store;

pub use database::{Batches, Prune};
pub use options::{Callbacks, Options};

use crate::time::UnixSeconds;

/// Most jobs that are recorded in one step.
const MAX_EVENTS: usize = 200;
/// The operation that [`Error::Database`] names if jobs are pushed, and not known to be counted.
pub(crate) const ADD: &str = "add jobs to";

/// A batch, as its row was when it was read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Batch {
    /// Identity: a uuid that sorts by creation time.
    pub id: String,
    /// Name, possibly empty.
    pub name: String,
    /// Number of jobs ever added to the batch.
    pub total_jobs: i64,
    /// Number of jobs that have not succeeded.
    pub pending_jobs: i64,
    /// How often one of its jobs failed.
    pub failed_jobs: i64,
    /// Uuids of its jobs that failed and did not succeed later.
    pub failed_job_ids: Vec<String>,
    /// The options set by the code that made the batch.
    pub options: Options,
    /// When it was made.
    pub created_at: UnixSeconds,
    /// When it was cancelled.
    pub cancelled_at: Option<UnixSeconds>,
    /// When it was finished or cancelled.
    pub finished_at: Option<UnixSeconds>,
}

impl Batch {
    /// Jobs that have succeeded.
    pub fn processed_jobs(&self) -> i64 {
        self.total_jobs.saturating_sub(self.pending_jobs)
    }

    /// The share of its jobs that has succeeded, in per cent.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batch::progress`.
    pub fn progress(&self) -> i64 {
        if self.total_jobs <= 0 {
            return 0;
        }
        #[expect(
            clippy::cast_precision_loss,
            clippy::cast_possible_truncation,
            reason = "PHP divides floats, too"
        )]
        let percent =
            (self.processed_jobs() as f64 / self.total_jobs as f64 * 100.0).round() as i64;
        percent
    }

    /// Whether the batch was cancelled. Its jobs still run, unless they check for that.
    pub fn is_cancelled(&self) -> bool {
        self.cancelled_at.is_some()
    }

    /// Whether all jobs succeeded, or the batch was cancelled.
    pub fn is_finished(&self) -> bool {
        self.finished_at.is_some()
    }

    /// Whether any of its jobs ever failed.
    pub fn has_failures(&self) -> bool {
        self.failed_jobs > 0
    }

    /// Whether the batch continues after a failure.
    pub fn allows_failures(&self) -> bool {
        self.options.allow_failures
    }
}

/// How a job of a batch ended for good.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JobOutcome {
    /// The job ran, or was to be skipped, and has left the queue.
    Succeeded,
    /// It failed, without a further attempt.
    Failed,
}

/// The end of a job of a batch.
///
/// # Examples
///
/// Records written by versions without a token can be read, too.
///
/// ```
/// use artisand::batch::Ended;
///
/// let ended: Ended = serde_json::from_str(r#"{"uuid":"u-1","outcome":"failed"}"#)?;
/// assert_eq!(ended.token, "");
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Ended {
    /// The job's uuid.
    pub uuid: String,
    /// How it ended.
    pub outcome: JobOutcome,
    /// Identifies this ending: a job that failed may be retried, and fail again. It stays the same each time this
    /// ending is reported.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub token: String,
}

/// The result of recording the end of a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recorded {
    /// The ending was counted.
    Counted,
    /// The ending was counted, is the batch's first, and PHP raises the event of that.
    CountedFirst,
    /// The ending had been counted before.
    AlreadyCounted,
    /// The ending makes callbacks or events due and was not counted: PHP has to record it.
    NeedsPhp,
    /// There is no such batch.
    NoBatch,
}

/// An error from the store of batches.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The database operation failed.
    #[error("could not {what} batches in table `{table}`")]
    Database {
        /// The operation.
        what: &'static str,
        /// The table.
        table: String,
        /// The error of the connection.
        source: Box<crate::connection::Error>,
    },
    /// More endings at once than the list in the row may have room for.
    #[error("{found} jobs at once are too many to record, at most {most} are possible", most = MAX_EVENTS)]
    TooMany {
        /// The number of endings.
        found: usize,
    },
    /// The jobs to add could not be pushed; the batch is unchanged.
    #[error("could not push jobs of batch `{batch}`")]
    Push {
        /// The batch.
        batch: String,
        /// The cause.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The location of the app's batches is unknown.
    #[error(
        "the job is in batch `{batch}`, but nothing is known of the app's batches; see `artisand doctor`"
    )]
    NoStore {
        /// The batch.
        batch: String,
    },
}

impl Error {
    /// True if the database cannot be reached or is busy, and another try may help.
    pub fn is_lost_connection(&self) -> bool {
        matches!(self, Self::Database { source, .. } if source.is_lost_connection())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_rounded_as_php_rounds() {
        let batch = |total_jobs, pending_jobs| Batch {
            id: "b".into(),
            name: String::new(),
            total_jobs,
            pending_jobs,
            failed_jobs: 0,
            failed_job_ids: Vec::new(),
            options: Options::default(),
            created_at: UnixSeconds(0),
            cancelled_at: None,
            finished_at: None,
        };
        #[rustfmt::skip]
        let rows = [(0, 0, 0), (3, 3, 0), (3, 2, 33), (3, 1, 67), (200, 199, 1), (8, 7, 13), (4, 0, 100), (2, -1, 150)];
        for (total, pending, expected) in rows {
            assert_eq!(
                batch(total, pending).progress(),
                expected,
                "{total} {pending}"
            );
        }
        assert_eq!(batch(5, 2).processed_jobs(), 3);
    }
}
