//! `queue:quarantine`

use std::process::ExitCode;

use super::paint::{Tag, boxed};
use super::{GlobalArgs, UsageError, open, output};
use crate::payload::{Document, Payload};
use crate::queue::{Driver, Fate, Place, QueueName};

/// Arguments of `queue:quarantine`, as given.
#[derive(Debug, clap::Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags")]
pub(super) struct QuarantineArgs {
    /// Queue whose quarantine is meant [default: all that have one]
    #[arg(value_name = "QUEUE")]
    queue: Option<String>,

    /// Queue connection [default: the app's default connection]
    #[arg(long, value_name = "CONNECTION")]
    connection: Option<String>,

    /// Only payloads with these numbers, as listed, comma separated
    #[arg(long, value_name = "NUMBERS", value_delimiter = ',')]
    only: Vec<usize>,

    /// Print the payloads whole; with --json byte for byte, as far as they are text
    #[arg(long)]
    show: bool,

    /// Move the payloads back to their queue
    #[arg(long, conflicts_with = "delete")]
    requeue: bool,

    /// Delete the payloads
    #[arg(long)]
    delete: bool,

    /// Print one JSON object per payload
    #[arg(long)]
    json: bool,
}

/// Most payloads that one call looks at.
const MOST: usize = 10_000;

pub(super) async fn run(args: QuarantineArgs, global: &GlobalArgs) -> anyhow::Result<ExitCode> {
    let config = global.load_config()?;
    let name = args
        .connection
        .clone()
        .unwrap_or_else(|| config.default_connection());
    let (queue, _) = open(&config, &name).await?;
    let queues = match &args.queue {
        Some(name) => vec![QueueName::from(name.as_str())],
        None if args.requeue || args.delete => {
            return Err(UsageError(
                "name the queue whose payloads are to be moved or deleted".into(),
            )
            .into());
        }
        None => queue.quarantines().await?,
    };
    let mut text = String::new();
    for queue_name in &queues {
        let payloads = queue.look(queue_name, Place::Quarantine, 0, MOST).await?;
        let chosen: Vec<(usize, Vec<u8>)> = payloads
            .into_iter()
            .enumerate()
            .map(|(index, payload)| (index + 1, payload))
            .filter(|(number, _)| args.only.is_empty() || args.only.contains(number))
            .collect();
        text += &act(&args, global, &*queue, &name, queue_name, chosen).await?;
    }
    if text.is_empty() && !args.json {
        text = information("No payloads in quarantine", global);
    }
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn information(text: &str, global: &GlobalArgs) -> String {
    "\n".to_owned() + &boxed(Tag::Info, text, global.is_coloured())
}

async fn act(
    args: &QuarantineArgs,
    global: &GlobalArgs,
    queue: &dyn Driver,
    connection: &str,
    name: &QueueName,
    chosen: Vec<(usize, Vec<u8>)>,
) -> anyhow::Result<String> {
    if args.requeue || args.delete {
        let payloads: Vec<Vec<u8>> = chosen.into_iter().map(|(_, payload)| payload).collect();
        let fate = if args.requeue {
            Fate::Requeue
        } else {
            Fate::Delete
        };
        let count = queue.dequarantine(name, &payloads, fate).await?;
        let what = if args.requeue {
            "pushed back onto"
        } else {
            "deleted from the quarantine of"
        };
        let plural = if count == 1 { "payload" } else { "payloads" };
        let text = format!("{count} {plural} {what} the [{name}] queue");
        return Ok(information(&text, global));
    }
    let mut text = String::new();
    for (number, payload) in chosen {
        let reason = reason(connection, name, &payload);
        let line = if args.json {
            let payload_text = args
                .show
                .then(|| String::from_utf8_lossy(&payload).into_owned());
            serde_json::json!({
                "connection": connection, "queue": name.as_str(), "number": number, "bytes": payload.len(),
                "reason": reason, "payload": payload_text,
            })
            .to_string()
                + "\n"
        } else {
            let shown = if args.show {
                format!(
                    "\n    {}",
                    output::printable(&String::from_utf8_lossy(&payload))
                )
            } else {
                String::new()
            };
            format!(
                "  {} {number}, {} bytes: {reason}{shown}\n",
                output::printable(name.as_str()),
                payload.len()
            )
        };
        text.push_str(&line);
    }
    Ok(text)
}

/// Why a payload is in quarantine, determined anew: a later version may read what an earlier one could not.
fn reason(connection: &str, queue: &QueueName, payload: &[u8]) -> String {
    let parsed = match Payload::parse(payload) {
        Ok(parsed) => parsed,
        Err(error) => return output::with_causes(&error.into()),
    };
    let document = Document {
        connection,
        queue: queue.as_str(),
        attempts: parsed.attempts.unwrap_or(0),
        payload: &parsed,
    };
    match document.to_json() {
        Err(error) => output::with_causes(&error.into()),
        Ok(_) => "it can be decoded, but Redis found no integer `attempts` in it".to_owned(),
    }
}
