//! `queue:failed`, `queue:forget`, `queue:flush`, `queue:prune-failed`

use std::process::ExitCode;
use std::time::Duration;

use super::clear::is_prohibited;
use super::json::PhpJson;
use super::paint::GREY;
use super::style::Screen;
use super::{GlobalArgs, open, output};
use crate::config::{self, Config, Error};
use crate::failed::{FailedJobs, StoredJob, class};
use crate::queue::Spool;
use crate::time::{Clock, UnixSeconds};

/// Arguments of `queue:failed`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ListArgs {
    /// Output the failed jobs as JSON
    #[arg(long)]
    json: bool,
}

/// Arguments of `queue:forget`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ForgetArgs {
    /// The ID of the failed job
    #[arg(value_name = "ID")]
    id: String,
}

/// Arguments of `queue:flush`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct FlushArgs {
    /// The number of hours to retain failed job data
    #[arg(long, value_name = "HOURS")]
    hours: Option<u32>,
}

/// Arguments of `queue:prune-failed`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct PruneArgs {
    /// The number of hours to retain failed jobs data
    #[arg(long, value_name = "HOURS", default_value_t = 24)]
    hours: u32,
}

/// The app's store of failed jobs.
pub(super) fn store(config: &Config) -> anyhow::Result<FailedJobs> {
    Ok(config::failed_jobs(config)?.ok_or(Error::NoApp)?)
}

pub(super) fn hours_ago(hours: u32) -> UnixSeconds {
    UnixSeconds(Clock::System.now().0 - i64::from(hours) * 3600)
}

pub(super) async fn list(args: ListArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let store = store(&config)?;
    let jobs = store.all().await?;
    if args.json {
        output::data(&json(&jobs, is_by_number(&store)))?;
        if let Some(text) = spooled(&config).await {
            output::notice(&text);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut screen = Screen::new(global);
    if jobs.is_empty() {
        screen.info("No failed jobs found")?;
    } else {
        screen.new_line()?;
        for job in &jobs {
            let left = screen.column().painted(GREY, &job.failed_at);
            let left = left.plain(" ").plain(&job.id);
            let place = format!("{}@{}", job.connection, job.queue);
            let right = screen.column().painted(GREY, &place);
            let right = right.plain(" ").plain(&class(&job.payload));
            screen.two_columns(&left, &right)?;
        }
        screen.new_line()?;
    }
    if let Some(text) = spooled(&config).await {
        screen.warn(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Whether ids are numbers, which PHP prints without quotes.
fn is_by_number(store: &FailedJobs) -> bool {
    store.provider().ends_with("\\DatabaseFailedJobProvider")
}

fn json(jobs: &[StoredJob], is_by_number: bool) -> String {
    let object = |job: &StoredJob| {
        let json = match job.id.parse::<u64>() {
            Ok(id) if is_by_number => PhpJson::new().number("id", id),
            _ => PhpJson::new().any_text("id", &job.id),
        };
        json.any_text("connection", &job.connection)
            .any_text("queue", &job.queue)
            .any_text("class", &class(&job.payload))
            .any_text("failed_at", &job.failed_at)
            .object()
    };
    let objects: Vec<String> = jobs.iter().map(object).collect();
    format!("[{}]\n", objects.join(","))
}

/// How long a Redis server that does not answer may delay the end of the list.
const SPOOL_WAIT: Duration = Duration::from_secs(1);

/// Reports how many failed jobs are not in the store yet; `None` if there are none or Redis does not answer.
async fn spooled(config: &Config) -> Option<String> {
    let name = config.default_connection();
    let look = async {
        let (queue, _) = open(config, &name).await.ok()?;
        queue.length(Spool::FailedJobs).await.ok()
    };
    let count = tokio::time::timeout(SPOOL_WAIT, look).await.ok()??;
    let (jobs, wait) = match count {
        0 => return None,
        1 => ("job", "waits"),
        _ => ("jobs", "wait"),
    };
    Some(format!(
        "{count} failed {jobs} {wait} in the spool of connection [{name}] until the failed-job store can be written"
    ))
}

pub(super) async fn forget(args: ForgetArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let store = store(&global.load_config()?)?;
    let mut screen = Screen::new(global);
    if store.forget(&args.id).await? {
        screen.info("Failed job deleted successfully")?;
        return Ok(ExitCode::SUCCESS);
    }
    screen.error("No failed job matches the given ID")?;
    Ok(ExitCode::FAILURE)
}

pub(super) async fn flush(args: FlushArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let mut screen = Screen::new(global);
    if is_prohibited(&config, "queue:flush", &mut screen)? {
        // Laravel exits with 0 here.
        return Ok(ExitCode::SUCCESS);
    }
    let store = store(&config)?;
    let hours = args.hours.filter(|hours| *hours > 0);
    store.flush(hours.map(hours_ago)).await?;
    let text = match hours {
        Some(hours) => format!(
            "All jobs that failed more than {hours} hours ago have been deleted successfully"
        ),
        None => "All failed jobs deleted successfully".to_owned(),
    };
    screen.info(&text)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn prune(args: PruneArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let store = store(&global.load_config()?)?;
    let mut screen = Screen::new(global);
    if let Some(count) = store.prune(hours_ago(args.hours)).await? {
        screen.info(&format!("{count} entries deleted"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let provider = store.provider();
    let provider = provider.rsplit('\\').next().unwrap_or(provider);
    screen.error(&format!(
        "The [{provider}] failed job storage driver does not support pruning"
    ))?;
    Ok(ExitCode::FAILURE)
}
