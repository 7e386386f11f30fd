//! `dispatch`

use std::io::{BufRead as _, BufReader, Read};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use anyhow::{Context as _, anyhow};
use futures_util::stream::{FuturesOrdered, StreamExt as _};
use indicatif::{ProgressBar, ProgressStyle};
use jiff::civil::DateTime;
use serde_json::Value as Json;
use tokio::sync::mpsc;

use super::stops::{APART, stops};
use super::{GlobalArgs, UsageError, output};
use crate::dispatch::{Dispatch, DispatchError, Dispatched, Pending, Prepared};
use crate::php::{Array, ClassName, Key, MODEL_IDENTIFIER, Object, Value};

/// Arguments of `dispatch`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct DispatchArgs {
    /// The class of the job, Class@method for a string job, or an artisan command: app:prune
    #[arg(value_name = "JOB")]
    job: String,

    /// The arguments of an artisan command, as they are typed after its name
    #[arg(
        long,
        value_name = "LINE",
        conflicts_with = "data",
        allow_hyphen_values = true
    )]
    arguments: Option<String>,

    /// The job's properties as JSON; @FILE for one job per line, - for standard input
    #[arg(long, value_name = "JSON", default_value = "{}")]
    data: String,

    /// The queue, instead of the class's own
    #[arg(long, value_name = "QUEUE")]
    queue: Option<String>,

    /// The queue connection, instead of the class's own
    #[arg(long, value_name = "CONNECTION")]
    connection: Option<String>,

    /// Seconds until the job becomes due, or a date: 2026-12-01T09:00
    #[arg(long, value_name = "DELAY")]
    delay: Option<String>,

    /// Dispatch each job this many times
    #[arg(long, value_name = "COUNT", default_value_t = 1)]
    count: u32,

    /// Push at most once under this key within a day
    #[arg(long, value_name = "KEY")]
    once: Option<String>,

    /// Let a PHP worker dispatch it, for what only PHP can do
    #[arg(long)]
    by_php: bool,

    /// Print the payload, and push nothing
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn run(args: DispatchArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    if args.once.is_some() && (args.count > 1 || is_many(&args.data)) {
        let text = "--once is for one job: with more, they would all have the same key";
        return Err(UsageError(text.to_owned()).into());
    }
    let config = global.load_config()?;
    let zone = config.timezone()?;
    let due = args.delay.as_deref();
    let due = due.map(|text| Due::parse(text, &zone)).transpose()?;
    let dispatch = Dispatch::of_config(config)?;
    let done = dispatch_all(&args, due, &dispatch).await;
    dispatch.finish().await;
    done
}

async fn dispatch_all(
    args: &DispatchArgs,
    due: Option<Due>,
    dispatch: &Dispatch,
) -> anyhow::Result<ExitCode> {
    let mut stops = stops()?;
    let mut work = Work {
        jobs: documents(&args.data)?,
        repeated: None,
        is_told: args.by_php,
        args,
        dispatch,
        due,
    };
    let mut tally = Tally::new(args);
    let mut pushes = FuturesOrdered::new();
    // Whether no more is read, and since when that is because of a signal.
    let (mut is_over, mut stopped_at) = (false, None::<Instant>);
    while !(is_over && pushes.is_empty()) {
        // Jobs are made in order, as many as have come, and pushed together.
        tokio::select! {
            biased;
            _ = stops.recv() => {
                if let Some(stopped_at) = stopped_at {
                    if stopped_at.elapsed() < APART {
                        continue;
                    }
                    let left = pushes.len();
                    tally.failed.push(anyhow!("given up: {left} jobs may be on their queues, or not"));
                    break;
                }
                stopped_at = Some(Instant::now());
                tally.failed.extend((!is_over).then(|| work.stopped()));
                output::notice("Nothing more is read. What is being pushed is finished; a second signal gives it up");
            }
            job = work.next(), if !is_over && pushes.len() < IN_FLIGHT => match job {
                Some(Ok((_, prepared))) if args.dry_run => {
                    let payload = String::from_utf8_lossy(prepared.payload());
                    output::data(&format!("{payload}\n"))?;
                }
                Some(Ok((place, prepared))) => {
                    pushes.push_back(async move { (place, prepared.push().await) });
                }
                Some(Err(error)) => tally.failed.push(error),
                None => is_over = true,
            },
            Some((place, answer)) = pushes.next() => tally.note(place, answer)?,
        }
        is_over |= !tally.failed.is_empty();
    }
    tally.finish()
}

/// What has become of the jobs.
struct Tally {
    /// Whether to count the jobs, and not to name each.
    is_many: bool,
    is_dry: bool,
    progress: ProgressBar,
    queued: u64,
    unique: u64,
    failed: Vec<anyhow::Error>,
}

impl Tally {
    fn new(args: &DispatchArgs) -> Self {
        let is_many = is_many(&args.data) || args.count > 1;
        Self {
            is_many,
            is_dry: args.dry_run,
            progress: progress(is_many && !args.dry_run),
            queued: 0,
            unique: 0,
            failed: Vec::new(),
        }
    }

    fn note(
        &mut self,
        place: String,
        pushed: Result<Dispatched, DispatchError>,
    ) -> anyhow::Result<()> {
        match pushed {
            Ok(Dispatched::Queued { uuid, queue, .. }) => {
                self.queued += 1;
                self.progress.inc(1);
                if !self.is_many {
                    output::data(&format!("{uuid} on queue {queue}\n"))?;
                }
            }
            Ok(Dispatched::Unique) => self.unique += 1,
            Err(error) => self.failed.push(anyhow::Error::new(error).context(place)),
        }
        Ok(())
    }

    fn finish(self) -> anyhow::Result<ExitCode> {
        self.progress.finish_and_clear();
        if !self.is_dry && self.is_many {
            output::data(&format!("{} jobs dispatched\n", self.queued))?;
        }
        if self.unique > 0 {
            output::notice(&format!(
                "{} not dispatched: a unique job of the same id waits already",
                self.unique
            ));
        }
        let mut failed = self.failed.into_iter();
        let Some(first) = failed.next() else {
            return Ok(ExitCode::SUCCESS);
        };
        for other in failed {
            output::notice(&format!("{other:#}"));
        }
        Err(if self.is_many {
            first.context("not all jobs were dispatched, and none after this one was read")
        } else {
            first
        })
    }
}

/// Jobs that are pushed at a time.
const IN_FLIGHT: usize = 64;

/// A line on standard error with the number of jobs and their rate; nothing if that is no terminal.
fn progress(shows: bool) -> ProgressBar {
    if !shows {
        return ProgressBar::hidden();
    }
    let style = ProgressStyle::with_template("{spinner} {human_pos} jobs, {per_sec}, {elapsed}");
    let progress = ProgressBar::new_spinner();
    if let Ok(style) = style {
        progress.set_style(style);
    }
    progress
}

/// The jobs that the arguments name, each as often as they say.
struct Work<'a> {
    jobs: Documents,
    /// A document, its place, and how often it is still to be dispatched.
    repeated: Option<(String, Json, u32)>,
    /// Whether it was said what the constructor of the class does.
    is_told: bool,
    args: &'a DispatchArgs,
    dispatch: &'a Dispatch,
    due: Option<Due>,
}

impl Work<'_> {
    /// The next job. Cancel safe: nothing that was read is lost.
    async fn next(&mut self) -> Option<anyhow::Result<(String, Prepared)>> {
        if self
            .repeated
            .as_ref()
            .is_none_or(|(_, _, count)| *count == 0)
        {
            match self.jobs.recv().await? {
                Ok((place, data)) => self.repeated = Some((place, data, self.args.count)),
                Err(error) => return Some(Err(error)),
            }
        }
        let (place, data, count) = self.repeated.as_mut()?;
        if !self.is_told {
            self.is_told = true;
            let fields = data.as_object().into_iter().flat_map(|map| map.keys());
            let fields: Vec<&str> = fields.map(String::as_str).collect();
            for note in self.dispatch.constructor_notes(&self.args.job, &fields) {
                output::notice(&note);
            }
        }
        let left = count.checked_sub(1)?;
        let prepared = match pending(self.dispatch, self.args, self.due, data) {
            Ok(pending) => pending.prepare().await.map_err(anyhow::Error::new),
            Err(error) => Err(error),
        };
        *count = left;
        let place = place.clone();
        Some(match prepared {
            Ok(prepared) => Ok((place, prepared)),
            Err(error) => Err(error.context(place)),
        })
    }

    /// Says how far the jobs have come, so that someone can go on from there.
    fn stopped(&self) -> anyhow::Error {
        match &self.repeated {
            None => anyhow!("stopped before the first"),
            Some((place, _, 0)) => anyhow!("stopped after {place}"),
            Some((place, _, left)) => {
                anyhow!("stopped at {place}, which is to be dispatched {left} times more")
            }
        }
    }
}

/// When a job becomes due.
#[derive(Debug, Clone, Copy)]
enum Due {
    In(Duration),
    At(SystemTime),
}

impl Due {
    fn parse(text: &str, zone: &jiff::tz::TimeZone) -> anyhow::Result<Self> {
        if let Ok(seconds) = text.parse() {
            return Ok(Self::In(Duration::from_secs(seconds)));
        }
        if let Ok(instant) = text.parse::<jiff::Timestamp>() {
            return Ok(Self::At(instant.into()));
        }
        let at: DateTime = text.parse().map_err(|_| {
            let text = format!("--delay={text}: expected seconds, or a date as 2026-12-01T09:00");
            UsageError(text)
        })?;
        Ok(Self::At(at.to_zoned(zone.clone())?.timestamp().into()))
    }
}

fn is_many(data: &str) -> bool {
    data == "-" || data.starts_with('@')
}

/// Documents with their place for messages, until the first that cannot be read.
type Documents = mpsc::Receiver<anyhow::Result<(String, Json)>>;

/// The documents that are given.
fn documents(data: &str) -> anyhow::Result<Documents> {
    let (name, reader): (String, Box<dyn Read + Send>) = match data.strip_prefix('@') {
        Some(path) => {
            let file = std::fs::File::open(path).with_context(|| path.to_owned())?;
            (path.to_owned(), Box::new(file))
        }
        None if data == "-" => ("standard input".to_owned(), Box::new(std::io::stdin())),
        None => {
            let document = serde_json::from_str(data);
            let document = document.map_err(|error| UsageError(format!("--data: {error}")))?;
            let (sender, documents) = mpsc::channel(1);
            // There is room for it.
            let _ = sender.try_send(Ok(("--data".to_owned(), document)));
            return Ok(documents);
        }
    };
    let (sender, documents) = mpsc::channel(IN_FLIGHT);
    let read = move || {
        for (number, line) in BufReader::new(reader).lines().enumerate() {
            let place = format!("{name}:{}", number + 1);
            let document = match line.map(|line| line.trim().to_owned()) {
                Ok(blank) if blank.is_empty() => continue,
                Ok(line) => serde_json::from_str(&line).map_err(anyhow::Error::from),
                Err(error) => Err(error.into()),
            };
            let is_last = document.is_err();
            let document = document.with_context(|| place.clone());
            let sent = sender.blocking_send(document.map(|document| (place, document)));
            if is_last || sent.is_err() {
                break;
            }
        }
    };
    // The next line may be long in coming, and what has come is not to wait for it. The runtime would wait for one of its
    // own threads at the end; for this one nothing does.
    let thread = std::thread::Builder::new().name("artisand-input".into());
    thread.spawn(read).context("could not start a thread")?;
    Ok(documents)
}

fn pending(
    dispatch: &Dispatch,
    args: &DispatchArgs,
    due: Option<Due>,
    data: &Json,
) -> anyhow::Result<Pending> {
    let is_command = args.arguments.is_some() || args.job.contains(':');
    let mut pending = if is_command {
        let arguments = args.arguments.as_deref().unwrap_or_default().trim();
        dispatch.command_line(format!("{} {arguments}", args.job).trim_end())
    } else if args.job.contains('@') {
        dispatch.string(&args.job, data)
    } else {
        let Json::Object(properties) = data else {
            let text = "the properties of a job are a JSON object: {\"orderId\":42}";
            return Err(UsageError(text.to_owned()).into());
        };
        let name = args.job.trim_start_matches('\\');
        let class = ClassName::new(name);
        let class = class.ok_or_else(|| anyhow!("`{name}` is no class name"))?;
        let mut object = Object::new(class);
        for (name, value) in properties {
            object.set(name, value_of(value)?);
        }
        dispatch.object(object)
    };
    if let Some(queue) = &args.queue {
        pending = pending.on_queue(queue);
    }
    if let Some(connection) = &args.connection {
        pending = pending.on_connection(connection);
    }
    if let Some(key) = &args.once {
        pending = pending.once(key);
    }
    if args.by_php {
        pending = pending.by_php();
    }
    Ok(match due {
        Some(Due::In(delay)) => pending.delay(delay),
        Some(Due::At(due)) => pending.at(due),
        None => pending,
    })
}

/// A value of JSON in PHP; `{"$model": "App\\Models\\User", "id": 7}` is a model, as `queue:peek` shows it.
fn value_of(json: &Json) -> anyhow::Result<Value> {
    Ok(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(value), _) => Value::Int(value),
            (None, Some(value)) => Value::from(value),
            (None, None) => return Err(anyhow!("{number} is too large for PHP")),
        },
        Json::String(text) => Value::from(&**text),
        Json::Array(values) => {
            let values = values.iter().map(value_of);
            Value::from(values.collect::<anyhow::Result<Array>>()?)
        }
        Json::Object(map) => {
            if let Some(class) = map.get("$model") {
                model(class, map)?
            } else {
                let pair =
                    |(key, value): (&String, &Json)| Ok((Key::from(&**key), value_of(value)?));
                let pairs = map.iter().map(pair).collect::<anyhow::Result<_>>()?;
                Value::from(Array { pairs })
            }
        }
    })
}

fn model(class: &Json, map: &serde_json::Map<String, Json>) -> anyhow::Result<Value> {
    let class = class.as_str().context("`$model` is the name of a class")?;
    let id = map.get("id").context("a model has an `id`")?;
    let relations = map
        .get("relations")
        .map_or(Ok(Array::default().into()), value_of)?;
    let connection = map.get("connection").map_or(Ok(Value::Null), value_of)?;
    let name = ClassName::new(MODEL_IDENTIFIER);
    let object = Object::new(name.context("a class name")?);
    let object = object.public("class", class).public("id", value_of(id)?);
    let object = object
        .public("relations", relations)
        .public("connection", connection);
    Ok(object.public("collectionClass", Value::Null).into())
}
