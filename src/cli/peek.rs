//! `queue:peek`

use std::collections::HashMap;
use std::process::ExitCode;

use serde_json::value::RawValue;

use super::{GlobalArgs, named, open, output};
use crate::config::{self, SettingError};
use crate::payload::{Document, Encrypter, Payload, Target};
use crate::queue::{Place, QueueName};
use crate::shown::with_causes;

/// Arguments of `queue:peek`, as given.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct PeekArgs {
    /// Queues to look into, comma separated [default: the connection's queue]
    #[arg(value_name = "QUEUE", env = "ARTISAND_QUEUE")]
    queue: Option<String>,

    /// Queue connection [default: the app's default connection]
    #[arg(long, value_name = "CONNECTION")]
    connection: Option<String>,

    /// Print one job document per line, as programs get it
    #[arg(long)]
    json: bool,

    /// Show jobs that are not yet due
    #[arg(long)]
    delayed: bool,

    /// Show jobs that are being run, or were left by a worker that is gone
    #[arg(long)]
    reserved: bool,

    /// Show pending, delayed and reserved jobs
    #[arg(long)]
    all: bool,

    /// Most jobs to show of each state, the oldest first
    #[arg(long, value_name = "N", default_value_t = 10)]
    limit: usize,
}

/// The states whose jobs are shown.
fn states(args: &PeekArgs) -> Vec<Place> {
    let mut states = Vec::new();
    if args.all || !(args.delayed || args.reserved) {
        states.push(Place::Pending);
    }
    if args.all || args.delayed {
        states.push(Place::Delayed);
    }
    if args.all || args.reserved {
        states.push(Place::Reserved);
    }
    states
}

fn name_of(state: Place) -> &'static str {
    match state {
        Place::Pending => "pending",
        Place::Delayed => "delayed",
        Place::Reserved => "reserved",
        Place::Quarantine => "quarantined",
    }
}

pub(super) async fn run(args: PeekArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let name = named(&config, args.connection.as_deref());
    let (queue, connection) = open(&config, &name).await?;
    let queues: Vec<QueueName> = match args.queue.as_deref().filter(|list| !list.is_empty()) {
        Some(list) => list.split(',').map(QueueName::from).collect(),
        None => vec![connection.default_queue],
    };
    let states = states(&args);
    let encrypter = config::encrypter(&config);
    let encrypter = encrypter.as_ref().map_err(causes_of);
    let is_plain = states == [Place::Pending];
    let (mut text, mut pending, mut others) = (String::new(), 0, 0);
    for queue_name in &queues {
        if !args.json {
            let sizes = queue.sizes(queue_name).await?;
            pending += sizes.pending;
            others += sizes.delayed + sizes.reserved;
            let head = format!(
                "\n  [{name}] {}: {} pending, {} delayed, {} reserved, {} in quarantine\n\n",
                output::printable(queue_name.as_str()),
                sizes.pending,
                sizes.delayed,
                sizes.reserved,
                sizes.quarantined
            );
            text.push_str(&head);
        }
        for state in &states {
            // Pending jobs alone need no label.
            let word = (!is_plain).then(|| name_of(*state));
            for element in queue.look(queue_name, *state, 0, args.limit).await? {
                text += &if args.json {
                    json_line(&name, queue_name, &element, &encrypter, word)
                } else {
                    people_lines(&name, queue_name, &element, &encrypter, word)
                };
            }
        }
    }
    let hint = if args.json {
        ""
    } else if pending + others == 0 {
        "  `artisand doctor` lists all queues that have jobs.\n\n"
    } else if is_plain && others > 0 {
        "  `--all` shows the delayed and reserved jobs, too.\n\n"
    } else {
        ""
    };
    output::data(&(text + hint))?;
    Ok(ExitCode::SUCCESS)
}

/// The app's encrypter, or why there is none.
type Key<'a> = Result<&'a Encrypter, String>;

fn causes_of(error: &SettingError) -> String {
    with_causes(error)
}

/// Why a job's command stays encrypted; `None` if it does not.
fn decrypt(payload: &mut Payload, key: &Key<'_>) -> Option<String> {
    if !payload.is_encrypted() {
        return None;
    }
    match key {
        Ok(encrypter) => payload
            .decrypt(encrypter)
            .err()
            .map(|error| with_causes(&error)),
        Err(why) => Some(why.clone()),
    }
}

fn document(
    connection: &str,
    queue: &QueueName,
    element: &[u8],
    key: &Key<'_>,
) -> Result<(Payload, String, Option<String>), anyhow::Error> {
    let mut payload = Payload::parse(element)?;
    let locked = decrypt(&mut payload, key);
    let document = Document {
        connection,
        queue: queue.as_str(),
        attempts: payload.attempts.unwrap_or(0),
        payload: &payload,
    };
    let json = document.to_json()?;
    Ok((payload, json, locked))
}

fn json_line(
    connection: &str,
    queue: &QueueName,
    element: &[u8],
    key: &Key<'_>,
    state: Option<&str>,
) -> String {
    let line = match document(connection, queue, element, key) {
        Ok((_, json, _)) => json,
        Err(error) => serde_json::json!({
            "connection": connection, "queue": queue.as_str(), "error": output::with_causes(&error), "bytes": element.len(),
        })
        .to_string(),
    };
    match (state, line.strip_prefix('{')) {
        (Some(state), Some(fields)) => format!("{{\"state\":\"{state}\",{fields}\n"),
        _ => line + "\n",
    }
}

/// The kind of a job, if its name does not show it.
fn kind_of(payload: &Payload) -> String {
    let Ok(target) = Target::of(payload) else {
        return String::new();
    };
    match target {
        Target::Job { .. } => "job, ".to_owned(),
        Target::Listener {
            method,
            event: Some(event),
            ..
        } => format!("listener by {method} of {event}, "),
        Target::Listener { method, .. } => format!("listener by {method}, "),
        Target::Notification {
            channel: Some(channel),
            ..
        } => format!("notification by {channel}, "),
        Target::Command { name, .. } => format!("command {name}, "),
        Target::String { method, .. } => format!("string by {method}, "),
        other => format!("{}, ", other.kind()),
    }
}

/// Name and uuid on a line that fills the terminal, then the job's content.
fn people_lines(
    connection: &str,
    queue: &QueueName,
    element: &[u8],
    key: &Key<'_>,
    state: Option<&str>,
) -> String {
    let (left, right, data) = match document(connection, queue, element, key) {
        Ok((payload, json, locked)) => {
            let right = payload
                .uuid
                .as_ref()
                .map(ToString::to_string)
                .or(payload.id.as_ref().map(ToString::to_string));
            // Raw parts: parsing and printing a value would lose order, depth and big integers.
            let document: HashMap<&str, &RawValue> =
                serde_json::from_str(&json).unwrap_or_default();
            let mut data = kind_of(&payload);
            if let Some(state) = state {
                data.extend([state, ", "]);
            }
            data.extend(["attempts ", &payload.attempts.unwrap_or(0).to_string()]);
            match &locked {
                Some(why) => data.extend([", encrypted and not readable here: ", why]),
                None if payload.was_encrypted() => data.push_str(", encrypted"),
                None => {}
            }
            for part in ["data", "meta"] {
                if let Some(value) = document.get(part) {
                    data.extend(["\n    ", part, " ", &shortened(value.get())]);
                }
            }
            (
                payload.shown_name().into_owned(),
                right.unwrap_or_default(),
                data,
            )
        }
        Err(error) => (
            "(cannot be decoded)".to_owned(),
            format!("{} bytes", element.len()),
            output::with_causes(&error),
        ),
    };
    let width = output::width().min(150);
    let dots = width.saturating_sub(left.chars().count() + right.chars().count() + 6);
    let (right, data) = (output::printable(&right), printable_lines(&data));
    format!("  {left} {} {right}\n    {data}\n\n", ".".repeat(dots))
}

/// Like [`output::printable`], for several lines.
fn printable_lines(text: &str) -> String {
    let lines: Vec<_> = text.split('\n').map(output::printable).collect();
    lines.join("\n")
}

/// At most a few terminal lines: a job can hold a megabyte.
fn shortened(text: &str) -> String {
    const MOST: usize = 1000;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} ... ({} bytes)", &text[..end], text.len()),
        None => text.to_owned(),
    }
}
