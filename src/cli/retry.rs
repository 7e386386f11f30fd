//! `queue:retry`, `queue:retry-batch`

use std::collections::{HashMap, HashSet};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use tokio::runtime::Handle;

use super::style::Screen;
use super::{GlobalArgs, UsageError, failed, open, output};
use crate::config::{self, Config, Laravel, QueuePlace, php};
use crate::failed::{FailedJobs, StoredJob};
use crate::horizon::Horizon;
use crate::payload::{self, Payload};
use crate::queue::{Driver, QueueName};
use crate::time::{Clock, Micros, UnixSeconds};

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

/// The result of retrying one failed job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Retried {
    /// The job is on its queue again, or no job has this id, which is no error in Laravel.
    Done,
    /// The job stays a failed job, and the error was printed.
    Stays,
}

/// The state shared by all retried jobs.
struct Retry<'a> {
    config: &'a Config,
    global: &'a GlobalArgs,
    store: FailedJobs,
    screen: Screen,
    connections: HashMap<String, Arc<dyn Driver>>,
    /// Writers of Horizon's records, one for each connection.
    horizons: Vec<Horizon>,
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
    let mut code = ExitCode::SUCCESS;
    for id in &ids {
        if retry.retry(id).await? == Retried::Stays {
            code = ExitCode::FAILURE;
        }
    }
    retry.screen.new_line()?;
    retry.finish().await;
    Ok(code)
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
    let mut code = ExitCode::SUCCESS;
    for id in &ids {
        let Some(batch) = batches.find(id).await? else {
            let text = format!("Unable to find a batch with ID [{id}]");
            retry.screen.error(&text)?;
            code = ExitCode::FAILURE;
            continue;
        };
        if batch.failed_job_ids.is_empty() {
            let text = "The given batch does not contain any failed jobs";
            retry.screen.error(text)?;
            // Since 11.24, which takes many ids, Laravel continues with the next.
            if !config.known_laravel()?.known_version().is_at_least(11, 24) {
                code = ExitCode::FAILURE;
            }
            continue;
        }
        let text = format!("Pushing failed queue jobs of the batch [{id}] back onto the queue");
        retry.screen.info(&text)?;
        for job in &batch.failed_job_ids {
            if retry.retry(job).await? == Retried::Stays {
                code = ExitCode::FAILURE;
            }
        }
        retry.screen.new_line()?;
    }
    retry.finish().await;
    Ok(code)
}

impl<'a> Retry<'a> {
    fn new(config: &'a Config, global: &'a GlobalArgs) -> anyhow::Result<Self> {
        Ok(Self {
            config,
            global,
            store: failed::store(config)?,
            screen: Screen::new(global),
            connections: HashMap::new(),
            horizons: Vec::new(),
        })
    }

    async fn finish(self) {
        for horizon in self.horizons {
            horizon.finish().await;
        }
    }

    /// The ids of the jobs to retry, each once.
    async fn ids(&mut self, args: &RetryArgs) -> anyhow::Result<Vec<String>> {
        if let [id] = &args.id[..]
            && id == "all"
        {
            return Ok(self.store.ids(None).await?);
        }
        let named = args.queue.as_deref();
        if let Some(queue) = named.filter(|queue| !matches!(*queue, "" | "0")) {
            let ids = self.store.ids(Some(queue)).await?;
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

    async fn retry(&mut self, id: &str) -> anyhow::Result<Retried> {
        let Some(job) = self.store.find(id).await? else {
            let text = format!("Unable to find failed job with ID [{id}]");
            self.screen.error(&text)?;
            return Ok(Retried::Done);
        };
        let parsed = Payload::parse(&job.payload);
        let ready = parsed
            .and_then(|parsed| Ok((parsed, payload::for_retry(&job.payload, self.pushed_at())?)));
        let (parsed, payload) = match ready {
            Ok(ready) => ready,
            Err(error) => {
                let error = output::with_causes(&error.into());
                let text = format!("Job [{id}] has a payload that cannot be decoded: {error}");
                return self.stays(&text);
            }
        };
        let until = parsed.limits.retry_until;
        if until.is_some_and(|until: UnixSeconds| until < Clock::System.now()) {
            return self.retry_with_php(id).await;
        }
        if let Err(error) = self.connect(&job).await {
            // A connection that cannot be reached would fail for the next job too.
            let error = error.downcast::<config::Error>()?;
            let error = output::with_causes(&error.into());
            let text = format!(
                "Job [{id}] cannot be pushed onto its connection [{}]: {error}",
                job.connection
            );
            return self.stays(&text);
        }
        let started = Instant::now();
        let queue = QueueName::from(job.queue.as_str());
        let pushed = self.connections[&job.connection]
            .push(&queue, &[payload])
            .await;
        self.screen.task(id, started.elapsed(), pushed.is_ok())?;
        pushed?;
        self.store.forget(id).await?;
        Ok(Retried::Done)
    }

    /// What Horizon adds to what is pushed, if the app has it.
    fn pushed_at(&self) -> Option<Micros> {
        let laravel = self.config.laravel();
        laravel.is_some_and(Laravel::has_horizon).then(Micros::now)
    }

    fn stays(&mut self, text: &str) -> anyhow::Result<Retried> {
        self.screen.error(text)?;
        Ok(Retried::Stays)
    }

    async fn connect(&mut self, job: &StoredJob) -> anyhow::Result<()> {
        if !self.connections.contains_key(&job.connection) {
            let (queue, connection) = open(self.config, &job.connection).await?;
            if let QueuePlace::Nowhere(driver) = connection.place {
                let name = job.connection.clone();
                return Err(config::Error::Nowhere { name, driver }.into());
            }
            if let Some(options) = config::horizon(self.config, &job.connection)? {
                let horizon = Horizon::start(options, &Handle::current())?;
                queue.tell_pushes(Arc::new(horizon.recorder()));
                self.horizons.push(horizon);
            }
            self.connections.insert(job.connection.clone(), queue);
        }
        Ok(())
    }

    /// Leaves a job to PHP, because only its class can compute a new `retryUntil`.
    async fn retry_with_php(&mut self, id: &str) -> anyhow::Result<Retried> {
        let base = self.config.laravel().map(|laravel| laravel.base.as_path());
        let base = base.filter(|base| base.join("artisan").is_file());
        let Some(base) = base.filter(|_| php::version(&[]).is_some()) else {
            return self.stays(&format!(
                "Job [{id}] has a retryUntil in the past that only its PHP class can renew: retry it with `php artisan queue:retry {id}`."
            ));
        };
        let env = self.global.env.as_ref().map(|env| format!("--env={env}"));
        let mut args = vec!["queue:retry"];
        args.extend(env.as_deref());
        // An id may look like an option.
        args.extend(["--", id]);
        let started = Instant::now();
        let answer = php::artisan(php::PHP, base, &args);
        let elapsed = started.elapsed();
        let error = match answer {
            Err(error) => Some(error),
            Ok(_) if self.store.find(id).await?.is_some() => {
                Some("it is still a failed job after `php artisan queue:retry`".to_owned())
            }
            Ok(_) => None,
        };
        self.screen.task(id, elapsed, error.is_none())?;
        match error {
            Some(error) => self.stays(&format!("Job [{id}] could not be retried: {error}")),
            None => Ok(Retried::Done),
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
