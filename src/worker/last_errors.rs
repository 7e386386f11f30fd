//! The real error behind "has been attempted too many times".
//!
//! A job that was tried for the last time by a worker that was then killed fails at its next pop, with an
//! exception that says nothing about why. So the last error of each job that is to be tried again is kept for a day,
//! and becomes the cause of that exception.

use std::sync::Arc;
use std::time::Duration;

use crate::handler::{FailureText, JobInfo};
use crate::payload::JobUuid;
use crate::queue::Ledger;
use crate::shown::with_causes;

/// How long an error is kept.
const LIVES: Duration = Duration::from_secs(24 * 60 * 60);
/// Longest error in bytes.
const LONGEST: usize = 2048;
/// How long the server may take: no job waits longer for it.
const PATIENCE: Duration = Duration::from_secs(1);
/// The classes of failures that say nothing about the error.
const SILENT: &str = "MaxAttemptsExceededException";

/// The last error that a failure has as its cause.
pub(crate) fn of(failure: &FailureText) -> Option<&str> {
    let causes = failure.chain.get(1..)?;
    let cause = causes.last().filter(|_| failure.class.ends_with(SILENT));
    cause.map(String::as_str)
}

/// The last errors of jobs.
#[derive(Debug)]
pub(crate) struct LastErrors(Option<Arc<dyn Ledger>>);

impl LastErrors {
    /// Errors that are kept with the records of this ledger, or none at all.
    pub(crate) fn new(ledger: &Arc<dyn Ledger>, are_kept: bool) -> Self {
        Self(are_kept.then(|| Arc::clone(ledger)))
    }

    /// Keeps the error of a job that is to be tried again.
    pub(crate) async fn keep(&self, job: &JobInfo, failure: &FailureText) {
        let (Some(ledger), Some(uuid)) = (&self.0, &job.payload.uuid) else {
            return;
        };
        let mut error = format!("{}: {}", failure.class, failure.message);
        error.truncate(error.floor_char_boundary(LONGEST));
        let keeping = ledger.keep_error(uuid.bounded(), &error, LIVES);
        match tokio::time::timeout(PATIENCE, keeping).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => {
                tracing::debug!(
                    error = with_causes(&error),
                    "could not keep the error of a job"
                );
            }
            Err(_) => tracing::debug!("could not keep the error of a job in time"),
        }
    }

    /// The last error of a job, if its failure does not say it.
    pub(crate) async fn behind(&self, job: &JobInfo, failure: &FailureText) -> Option<String> {
        if !failure.class.ends_with(SILENT) {
            return None;
        }
        let (ledger, uuid) = (self.0.as_ref()?, job.payload.uuid.as_ref()?);
        let asked = ledger.last_error(JobUuid::bounded(uuid));
        tokio::time::timeout(PATIENCE, asked).await.ok()?.ok()?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;
    use crate::queue::MemoryQueue;

    fn job(uuid: &str) -> JobInfo {
        let payload = format!(r#"{{"job":"A@b","uuid":"{uuid}","attempts":0}}"#);
        JobInfo {
            connection: "redis".into(),
            queue: "default".into(),
            attempts: 1,
            payload: Arc::new(Payload::parse(payload.as_bytes()).unwrap()),
            body: Arc::default(),
            reserved: Arc::default(),
            trace: None,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_error_is_kept_for_a_day_and_told_of_its_job_alone() {
        let ledger: Arc<dyn Ledger> = Arc::new(MemoryQueue::new(None));
        let errors = LastErrors::new(&ledger, true);
        let exhausted = FailureText::new("Illuminate\\Queue\\MaxAttemptsExceededException", "");
        errors
            .keep(&job("1"), &FailureText::new("E", "first"))
            .await;
        errors
            .keep(&job("1"), &FailureText::new("E", "ä".repeat(4000)))
            .await;
        let told = errors.behind(&job("1"), &exhausted).await.unwrap();
        assert!(
            told.starts_with("E: ää") && told.len() > 2040 && told.len() <= 2048,
            "{told}"
        );
        assert_eq!(errors.behind(&job("2"), &exhausted).await, None);
        let other = FailureText::new("E", "says it");
        assert_eq!(errors.behind(&job("1"), &other).await, None);
        let off = LastErrors::new(&ledger, false);
        assert_eq!(off.behind(&job("1"), &exhausted).await, None);
        tokio::time::advance(LIVES).await;
        assert_eq!(errors.behind(&job("1"), &exhausted).await, None);
    }
}
