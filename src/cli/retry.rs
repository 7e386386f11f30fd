//! `queue:retry`, `queue:retry-batch`

use std::collections::HashSet;
use std::process::ExitCode;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::retrying::{Retried, Retrying};
use super::stops::{APART, stops};
use super::style::Screen;
use super::{GlobalArgs, UsageError, output};
use crate::batch::Batches;
use crate::config::{self, Config};

/// Arguments of `queue:retry`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct RetryArgs {
    /// The ID of the failed job or "all" to retry all jobs
    #[arg(value_name = "ID")]
    id: Vec<String>,

    /// Retry all of the failed jobs for the specified queue
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// Range of job IDs (numeric) to be retried (e.g. 1-5)
    #[arg(long, value_name = "RANGE")]
    range: Vec<String>,
}

/// Arguments of `queue:retry-batch`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct RetryBatchArgs {
    /// The ID of the batch whose failed jobs should be retried
    #[arg(value_name = "ID")]
    id: Vec<String>,
}

/// Most ids that a range may cover.
const MOST: u64 = 1_000_000;

/// Most jobs that one PHP process pushes: it boots the app once for all of them.
const MOST_FOR_PHP: usize = 100;

/// `queue:retry` at work.
struct Retry<'a> {
    config: &'a Config,
    retrying: Retrying<'a>,
    screen: Screen,
    code: ExitCode,
    /// A signal has asked for the end.
    told: CancellationToken,
    /// Jobs that were not retried then.
    left_jobs: usize,
    /// Batches that were not looked at.
    left_batches: usize,
}

pub(super) async fn run(args: RetryArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut retry = Retry::new(&config, global)?;
    let ids = retry.ids(&args).await?;
    if ids.is_empty() {
        retry.screen.info("No retryable jobs found")?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = "Pushing failed queue jobs back onto the queue";
    retry.screen.info(text)?;
    let told = retry.told.clone();
    let ended = until_told_twice(&told, retry.all(&ids)).await;
    retry.end(ended).await
}

/// Retries the failed jobs of batches.
///
/// Since 11.24 Laravel stops with an exception at a batch that does not exist; artisand continues with the others.
/// Both exit with 1.
pub(super) async fn run_batches(
    args: RetryBatchArgs,
    global: &GlobalArgs,
) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut retry = Retry::new(&config, global)?;
    let Some(batches) = config::batches(&config)? else {
        let text = "The app keeps its batches in DynamoDB, which only PHP reads: use `php artisan queue:retry-batch`";
        retry.screen.error(text)?;
        return Ok(ExitCode::FAILURE);
    };
    let mut ids = args.id;
    let mut seen = HashSet::new();
    ids.retain(|id| !matches!(&**id, "" | "0") && seen.insert(id.clone()));
    if !ids.is_empty() {
        let text = "Pushing failed batch jobs back onto the queue";
        retry.screen.info(text)?;
    }
    let told = retry.told.clone();
    let ended = until_told_twice(&told, Box::pin(retry.batches(&batches, &ids))).await;
    retry.end(ended).await
}

/// Does this work, and tells it of a signal that asks for the end: a job between its push and its deletion would be
/// pushed again by the next command.
///
/// # Errors
///
/// Those of the work; a second signal, which ends it at once.
async fn until_told_twice(
    told: &CancellationToken,
    work: impl Future<Output = anyhow::Result<()>>,
) -> anyhow::Result<()> {
    let mut stops = stops()?;
    let second = async {
        stops.recv().await;
        told.cancel();
        output::inform(
            "The job that is being retried is finished first, or what one PHP process was given. A second signal ends the command at once.",
        );
        let first = Instant::now();
        while first.elapsed() < APART {
            stops.recv().await;
        }
    };
    tokio::select! {
        ended = work => ended,
        () = second => anyhow::bail!(
            "ended at once by a second signal: a job may be on its queue again and still be a failed job"
        ),
    }
}

impl<'a> Retry<'a> {
    fn new(config: &'a Config, global: &'a GlobalArgs) -> anyhow::Result<Self> {
        Ok(Self {
            config,
            retrying: Retrying::new(config, global.env.clone())?,
            screen: Screen::new(global),
            code: ExitCode::SUCCESS,
            told: CancellationToken::new(),
            left_jobs: 0,
            left_batches: 0,
        })
    }

    /// The ids of the jobs to retry, each once.
    async fn ids(&mut self, args: &RetryArgs) -> anyhow::Result<Vec<String>> {
        if let [id] = &args.id[..]
            && id == "all"
        {
            return Ok(self.retrying.store.ids(None).await?);
        }
        let named = args.queue.as_deref();
        if let Some(queue) = named.filter(|queue| !matches!(*queue, "" | "0")) {
            let ids = self.retrying.store.ids(Some(queue)).await?;
            if ids.is_empty() {
                let text = format!("Unable to find failed jobs for queue [{queue}]");
                self.screen.error(&text)?;
            }
            return Ok(ids);
        }
        let mut ids = args.id.clone();
        for range in &args.range {
            ids.extend(in_range(range)?);
        }
        let mut seen = HashSet::new();
        ids.retain(|id| !matches!(&**id, "" | "0") && seen.insert(id.clone()));
        Ok(ids)
    }

    async fn all(&mut self, ids: &[String]) -> anyhow::Result<()> {
        let mut for_php = Vec::new();
        for (index, id) in ids.iter().enumerate() {
            if self.told.is_cancelled() {
                self.left_jobs += ids.len() - index;
                break;
            }
            match self.retrying.retry(id).await? {
                None => for_php.push(id.clone()),
                Some(retried) => self.show(id, retried)?,
            }
            if for_php.len() >= MOST_FOR_PHP {
                self.with_php(&mut for_php).await?;
            }
        }
        self.with_php(&mut for_php).await?;
        self.screen.new_line()
    }

    /// Has PHP push these jobs.
    async fn with_php(&mut self, ids: &mut Vec<String>) -> anyhow::Result<()> {
        while !ids.is_empty() {
            if self.told.is_cancelled() {
                self.left_jobs += std::mem::take(ids).len();
                break;
            }
            for (id, retried) in self.retrying.retry_with_php(ids).await? {
                self.show(&id, retried)?;
            }
        }
        Ok(())
    }

    async fn batches(&mut self, batches: &Batches, ids: &[String]) -> anyhow::Result<()> {
        for (index, id) in ids.iter().enumerate() {
            if self.told.is_cancelled() {
                self.left_batches = ids.len() - index;
                break;
            }
            let Some(batch) = batches.find(id).await? else {
                let text = format!("Unable to find a batch with ID [{id}]");
                self.screen.error(&text)?;
                self.code = ExitCode::FAILURE;
                continue;
            };
            if batch.failed_job_ids.is_empty() {
                let text = "The given batch does not contain any failed jobs";
                self.screen.error(text)?;
                // Since 11.24, which takes many ids, Laravel continues with the next.
                if !self.config.known_version().is_at_least(11, 24) {
                    self.code = ExitCode::FAILURE;
                }
                continue;
            }
            let text = format!("Pushing failed queue jobs of the batch [{id}] back onto the queue");
            self.screen.info(&text)?;
            self.all(&batch.failed_job_ids).await?;
        }
        Ok(())
    }

    /// Ends the command, also after an error, with the records of what was pushed.
    async fn end(mut self, mut ended: anyhow::Result<()>) -> anyhow::Result<ExitCode> {
        if let Some(text) = self.retrying.unasked() {
            ended = ended.and(self.screen.warn(&text));
        }
        if self.left_jobs + self.left_batches > 0 {
            self.code = ExitCode::FAILURE;
            let batches = match self.left_batches {
                0 => String::new(),
                left => format!("; batches that were not looked at: {left}"),
            };
            let jobs = self.left_jobs;
            let text =
                format!("Stopped by a signal; failed jobs that were not retried: {jobs}{batches}");
            ended = ended.and(self.screen.warn(&text));
        }
        self.retrying.finish().await;
        ended.map(|()| self.code)
    }

    /// Prints what came of a job. One that is not there is no failure.
    ///
    /// # Errors
    ///
    /// Others would not do better.
    fn show(&mut self, id: &str, retried: Retried) -> anyhow::Result<()> {
        match retried {
            Retried::Pushed(took) => self.screen.task(id, took, true),
            Retried::RecordStays(took, error) => {
                self.screen.task(id, took, true)?;
                Err(error)
            }
            Retried::Unknown => {
                let text = format!("Unable to find failed job with ID [{id}]");
                self.screen.error(&text)
            }
            Retried::Stays { tried, why } => {
                self.code = ExitCode::FAILURE;
                if let Some(took) = tried {
                    self.screen.task(id, took, false)?;
                }
                self.screen.error(&why)
            }
            Retried::Refused(took, error) => {
                self.screen.task(id, took, false)?;
                Err(error)
            }
        }
    }
}

/// The numbers of a range such as `1-5`; empty if it is not a range.
fn in_range(range: &str) -> anyhow::Result<Vec<String>> {
    let number = |text: &str| {
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u64>().ok().filter(|_| is_number)
    };
    let ends = range.split_once('-');
    let ends = ends.and_then(|(first, last)| Some((number(first)?, number(last)?)));
    let Some((first, last)) = ends else {
        return Ok(Vec::new());
    };
    if first.abs_diff(last) >= MOST {
        let text = format!("--range={range} stands for more than {MOST} ids");
        return Err(UsageError(text).into());
    }
    let mut ids: Vec<String> = (first.min(last)..=first.max(last))
        .map(|id| id.to_string())
        .collect();
    if first > last {
        ids.reverse();
    }
    Ok(ids)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_count_in_both_directions_and_bad_ones_are_nothing() {
        #[rustfmt::skip]
        let rows: [(&str, &[&str]); 8] = [
            ("1-3", &["1", "2", "3"]), ("3-1", &["3", "2", "1"]), ("7-7", &["7"]), ("07-8", &["7", "8"]),
            ("1", &[]), ("a-b", &[]), ("-1-3", &[]), ("+1-3", &[]),
        ];
        for (range, expected) in rows {
            assert_eq!(in_range(range).unwrap(), expected, "{range}");
        }
        assert!(in_range("1-9999999999").is_err());
    }
}
