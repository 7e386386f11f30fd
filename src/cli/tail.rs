//! `tail`

use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context as _;
use jiff::Timestamp;

use super::job_line::{JobObject, Named, Style};
use super::json::PhpJson;
use super::log;
use super::output::{self, printable, with_causes};
use super::paint::{GREEN_BOLD, RED_BOLD, YELLOW_BOLD};
use super::{GlobalArgs, UsageError, connection, named};
use crate::connection::{self as server, Reconnect};
use crate::payload::Pattern;
use crate::telemetry::{Heard, Tail, TailEvent, TailLevel};

/// Arguments of `tail`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct TailArgs {
    /// Queue connection of the workers [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Only events of these queues, comma separated
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    queue: Vec<String>,

    /// Only events of jobs of this class: a name, a glob (`App\Jobs\*`) or a `/regex/`, as in a mapping
    #[arg(long, value_name = "CLASS", value_parser = Pattern::parse)]
    class: Option<Pattern>,

    /// Only failures: jobs that threw, timed out, failed, were lost or could not be read
    #[arg(long)]
    failed: bool,

    /// One JSON object per line, as `queue:work --json` prints them
    #[arg(long)]
    json: bool,
}

impl TailArgs {
    /// Whether to show an event.
    fn matches(&self, event: &TailEvent<'_>) -> bool {
        let is_of_queue = || {
            let queue = event.queue.as_deref();
            self.queue.is_empty()
                || queue.is_some_and(|queue| self.queue.iter().any(|name| name == queue))
        };
        let is_of_class = || {
            let is_it =
                |class: &Pattern| event.job.as_deref().is_some_and(|job| class.matches(job));
            self.class.as_ref().is_none_or(is_it)
        };
        (!self.failed || event.is_failure()) && is_of_queue() && is_of_class()
    }
}

pub(super) async fn run(args: TailArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let name = named(&config, args.connection.as_deref());
    let connection = connection(&config, &name).await?;
    let Some(redis) = connection.redis() else {
        let text = format!(
            "`tail` shows workers whose queues are on Redis; the connection [{name}] has the driver `{}`. What a worker of it does, it prints itself: `queue:work --json`",
            connection.driver()
        );
        return Err(UsageError(text).into());
    };
    let wanted = if args.failed {
        TailLevel::Failures
    } else {
        TailLevel::Everything
    };
    let style = Style {
        json: args.json,
        quiet: global.quiet,
        verbose: global.verbose > 0,
        coloured: global.is_coloured(),
        width: output::width(),
        timezone: config.output_timezone()?,
    };
    let mut tail = Tail::new(redis, wanted)?;
    let mut is_first = true;
    let mut outage = Outage::default();
    loop {
        let heard = match tail.next().await {
            Ok(heard) => heard,
            // Without a server at the start there is nothing to wait for.
            Err(error) if !is_first && server::is_away(&error) => {
                outage.wait(error).await;
                continue;
            }
            Err(error) if server::is_away(&error) => return Err(error.into()),
            Err(error) => return Err(error).context(REFUSED),
        };
        outage.say_it_is_back();
        is_first = false;
        let lines = lines(&heard, &args, &style);
        if !lines.is_empty() && !output::stream(&lines)? {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

/// What to do if the server refuses the commands.
const REFUSED: &str = "could not listen: that needs streams, so Redis 5 or later, and a user who may use keys that begin with `artisand:`";

/// Says once that the server is away, and once that it is back.
#[derive(Default)]
struct Outage {
    reconnect: Reconnect,
    is_said: bool,
}

impl Outage {
    async fn wait(&mut self, error: server::Error) {
        if !std::mem::replace(&mut self.is_said, true) {
            let error = with_causes(&error.into());
            output::notice(&format!("Redis is away, and is waited for: {error}"));
        }
        self.reconnect.wait().await;
    }

    fn say_it_is_back(&mut self) {
        if std::mem::take(&mut self.is_said) {
            self.reconnect.reset();
            output::inform("Redis is back: events since it went away may be missing");
        }
    }
}

/// The lines of what was heard and is to be shown.
fn lines(heard: &[Heard], args: &TailArgs, style: &Style) -> String {
    let mut lines = String::new();
    for heard in heard {
        match heard {
            Heard::Event { worker, line } => {
                let event = TailEvent::read(line).filter(|event| args.matches(event));
                let Some(event) = event else { continue };
                lines += &if style.json {
                    json(&event, worker, style)
                } else {
                    text(&event, worker, style)
                };
            }
            Heard::Dropped { worker, events } => lines += &dropped(worker, *events, style),
        }
    }
    lines
}

/// The line about events that are missing.
fn dropped(worker: &str, events: u64, style: &Style) -> String {
    let now = Timestamp::now();
    if style.json {
        let now = log::time_for_machines(now, &style.timezone);
        return PhpJson::new()
            .text("level", Some("warning"))
            .text("status", Some("dropped"))
            .number("events", events)
            .text("timestamp", Some(&now))
            .text("worker", Some(worker))
            .line();
    }
    let now = log::time_for_people(now, &style.timezone);
    let (noun, were) = if events == 1 {
        ("event", "was")
    } else {
        ("events", "were")
    };
    let status = format!("{events} {noun} {were} DROPPED");
    style.notice(&now, "Worker", &printable(worker), (&status, YELLOW_BOLD))
}

fn moment(event: &TailEvent<'_>) -> Timestamp {
    let at = i64::try_from(event.at).unwrap_or(i64::MAX);
    Timestamp::from_microsecond(at).unwrap_or_default()
}

/// An event as `queue:work --json` prints it, and its worker.
fn json(event: &TailEvent<'_>, worker: &str, style: &Style) -> String {
    let timestamp = log::time_for_machines(moment(event), &style.timezone);
    let of_job = event.job.as_deref().zip(event.attempts);
    let json = if let Some((job, attempts)) = of_job {
        let object = JobObject {
            id: event.id.as_deref(),
            uuid: event.uuid.as_deref(),
            connection: event.connection.as_deref().unwrap_or_default(),
            queue: event.queue.as_deref().unwrap_or_default(),
            job,
            closure: event.closure,
            status: &event.status,
            result: event.result.as_deref(),
            attempts,
            exception: event.exception.as_deref(),
            message: event.message.as_deref(),
            timestamp: &timestamp,
            duration: event.duration,
        };
        object.json().text("to", event.to.as_deref())
    } else {
        let json = PhpJson::new()
            .text("level", Some(level(event)))
            .text("queue", event.queue.as_deref())
            .text("status", Some(&event.status))
            .text("target", event.target.as_deref())
            .text("reason", event.reason.as_deref())
            .text("timestamp", Some(&timestamp));
        let json = event
            .count
            .into_iter()
            .fold(json, |json, count| json.number("count", count));
        let codes = event.exit_code.into_iter();
        codes.fold(json, |json, code| json.number("exit_code", code))
    };
    json.text("worker", Some(worker)).line()
}

fn level(event: &TailEvent<'_>) -> &'static str {
    match &*event.status {
        "canary_stopped" => "error",
        "started" => "info",
        "stopped" if event.exit_code == Some(0) => "info",
        _ => "warning",
    }
}

/// An event as `queue:work` prints it; with -v also its worker.
fn text(event: &TailEvent<'_>, worker: &str, style: &Style) -> String {
    let now = log::time_for_people(moment(event), &style.timezone);
    let worker = printable(worker);
    let queue = printable(event.queue.as_deref().unwrap_or_default());
    let target = printable(event.target.as_deref().unwrap_or_default());
    let notice =
        |what, name: &str, status: &str, colour| style.notice(&now, what, name, (status, colour));
    let status = match &*event.status {
        "starting" => ("RUNNING", YELLOW_BOLD),
        "success" => ("DONE", GREEN_BOLD),
        "released_after_exception" | "timed_out" | "lost" => ("FAIL", YELLOW_BOLD),
        "failed" => ("FAIL", RED_BOLD),
        "forwarded" => ("FORWARDED", YELLOW_BOLD),
        "reservation_lost" => return notice("Queue", &queue, "LOST A RESERVATION", YELLOW_BOLD),
        "quarantined" => {
            let status = format!("{} QUARANTINED", event.count.unwrap_or(0));
            return notice("Queue", &queue, &status, RED_BOLD);
        }
        "paused" if event.queue.is_some() => return notice("Queue", &queue, "PAUSED", YELLOW_BOLD),
        "resumed" if event.queue.is_some() => {
            return notice("Queue", &queue, "RESUMED", GREEN_BOLD);
        }
        "paused" => return notice("Worker", &worker, "PAUSED", YELLOW_BOLD),
        "resumed" => return notice("Worker", &worker, "RESUMED", GREEN_BOLD),
        "started" => return notice("Worker", &worker, "STARTED", GREEN_BOLD),
        "stopped" => {
            let why = printable(event.message.as_deref().unwrap_or_default()).to_lowercase();
            return notice("Worker", &worker, &format!("STOPPED: {why}"), YELLOW_BOLD);
        }
        "down" => return notice("App", "", "DOWN", YELLOW_BOLD),
        "up" => return notice("App", "", "UP", GREEN_BOLD),
        "canary_stopped" => return notice("Canary", &target, "STOPPED", RED_BOLD),
        "canary_resumed" => return notice("Canary", &target, "RESUMED", GREEN_BOLD),
        // Of a later version.
        other => return notice("Worker", &worker, &printable(other), YELLOW_BOLD),
    };
    let job = event.job.as_deref().unwrap_or_default();
    let closure = if event.closure && !job.contains("Closure (") {
        " (closure)"
    } else {
        ""
    };
    let to = event
        .to
        .as_deref()
        .map(|to| format!(" to {}", printable(to)));
    let named = Named {
        name: format!("{}{closure}{}", printable(job), to.unwrap_or_default()).into(),
        id: event.id.as_deref().unwrap_or_default(),
        connection: event.connection.as_deref().unwrap_or_default(),
        queue: event.queue.as_deref().unwrap_or_default(),
        remark: thrown(event),
    };
    let elapsed = (event.duration).and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    style.line_of(&now, &named, elapsed, Some(&worker), status)
}

/// What a job threw, in one line.
fn thrown(event: &TailEvent<'_>) -> Option<String> {
    let exception = event.exception.as_deref()?;
    let message = event.message.as_deref().unwrap_or_default();
    let first = message.lines().next().unwrap_or_default();
    Some(format!("{exception}: {first}"))
}
