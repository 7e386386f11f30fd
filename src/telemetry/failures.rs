//! The app's failed jobs, as the page and `artisand top` show them.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::failed::{FailedJobs, StoredJob, class};
use crate::shown::{bounded, name, printable, with_causes};

/// Most failed jobs that are read, and that are listed one by one.
const MOST_READ: usize = 200;
const MOST_SHOWN: usize = 50;
/// Longest text of an exception, in characters.
const LONGEST_MESSAGE: usize = 300;
/// How long a list of failed jobs counts as new: the app's database has other work.
const FRESH: Duration = Duration::from_secs(5);
/// How long the store may take.
const PATIENCE: Duration = Duration::from_secs(3);

/// The app's failed jobs.
#[derive(Debug, Clone, Default, Serialize)]
pub(crate) struct FailedPart {
    pub(crate) total: u64,
    /// How many of them were looked at for `groups`.
    pub(crate) looked_at: usize,
    pub(crate) groups: Vec<FailedGroup>,
    pub(crate) jobs: Vec<FailedLine>,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedGroup {
    pub(crate) class: String,
    pub(crate) exception: String,
    pub(crate) count: usize,
}

#[derive(Debug, Clone, Serialize)]
pub(crate) struct FailedLine {
    id: String,
    connection: String,
    queue: String,
    class: String,
    exception: String,
    message: String,
    failed_at: String,
}

/// What was last read of them.
pub(super) type FailedRead = Option<(Instant, Result<FailedPart, String>)>;

/// A list of failed jobs that is at most some seconds old.
pub(super) async fn failed_part(
    store: &FailedJobs,
    read: &Mutex<FailedRead>,
) -> Result<FailedPart, String> {
    let mut read = read.lock().await;
    if let Some((at, known)) = &*read
        && at.elapsed() < FRESH
    {
        return known.clone();
    }
    let asked = tokio::time::timeout(PATIENCE, async {
        Ok::<_, crate::failed::Error>((store.count().await?, store.latest(MOST_READ).await?))
    });
    let told = match asked.await {
        Ok(Ok((total, jobs))) => Ok(FailedPart::of(total, &jobs)),
        Ok(Err(error)) => Err(format!("failed jobs: {}", with_causes(&error))),
        Err(_) => Err(format!("failed jobs: no answer within {PATIENCE:?}")),
    };
    *read = Some((Instant::now(), told.clone()));
    told
}

impl FailedPart {
    fn of(total: u64, jobs: &[StoredJob]) -> Self {
        let mut groups = BTreeMap::<(String, String), usize>::new();
        let mut lines = Vec::new();
        for job in jobs {
            let (class, (exception, message)) = (class(&job.payload), job.exception_parts());
            if lines.len() < MOST_SHOWN {
                let message: String = message.chars().take(LONGEST_MESSAGE).collect();
                lines.push(FailedLine {
                    id: bounded(&job.id).to_owned(),
                    connection: name(&job.connection).into_owned(),
                    queue: name(&job.queue).into_owned(),
                    class: class.clone(),
                    exception: exception.to_owned(),
                    message: printable(&message).into_owned(),
                    failed_at: name(&job.failed_at).into_owned(),
                });
            }
            *groups.entry((class, exception.to_owned())).or_default() += 1;
        }
        let groups = groups.into_iter();
        let mut groups: Vec<_> = groups
            .map(|((class, exception), count)| FailedGroup {
                class,
                exception,
                count,
            })
            .collect();
        groups.sort_by_key(|group| std::cmp::Reverse(group.count));
        groups.truncate(MOST_SHOWN);
        Self {
            total,
            looked_at: jobs.len(),
            groups,
            jobs: lines,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job(id: &str, class: &str, exception: &str) -> StoredJob {
        let class = class.replace('\\', "\\\\");
        StoredJob {
            id: id.into(),
            connection: "redis".into(),
            queue: "default".into(),
            payload: format!(r#"{{"displayName":"{class}","job":"x","data":{{"command":"O"}}}}"#)
                .into_bytes(),
            exception: exception.into(),
            failed_at: "2026-01-02 03:04:05".into(),
        }
    }

    #[test]
    fn failed_jobs_are_grouped_by_class_and_exception() {
        let mut jobs = vec![job("0", "App\\A", "Other: x in /a:1")];
        for id in 1..=60 {
            jobs.push(job(
                &id.to_string(),
                "App\\A",
                "RuntimeException: no <b>\u{1b}[1m\nStack",
            ));
        }
        let part = FailedPart::of(900, &jobs);
        assert_eq!((part.total, part.looked_at, part.jobs.len()), (900, 61, 50));
        let groups: Vec<_> = part
            .groups
            .iter()
            .map(|group| (&*group.exception, group.count))
            .collect();
        assert_eq!(groups, [("RuntimeException", 60), ("Other", 1)]);
        assert_eq!(part.jobs[1].message, "no <b>\\u{1b}[1m");
        assert_eq!(part.jobs[1].class, "App\\A");
    }
}
