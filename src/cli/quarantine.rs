//! `queue:quarantine`

use std::process::ExitCode;

use sha2::{Digest as _, Sha256};

use super::paint::{Tag, boxed};
use super::{GlobalArgs, UsageError, named, open, output};
use crate::payload::{Document, Payload};
use crate::queue::{Driver, Fate, Place, QueueName};
use crate::shown::hex;

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

    /// Only payloads with these ids, as listed, comma separated
    #[arg(long, value_name = "IDS", value_delimiter = ',')]
    only: Vec<String>,

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
    let name = named(&config, args.connection.as_deref());
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
    let mut held = Vec::new();
    for queue_name in queues {
        let payloads = queue.look(&queue_name, Place::Quarantine, 0, MOST).await?;
        let all = queue.sizes(&queue_name).await?.quarantined;
        let more = all.saturating_sub(payloads.len() as u64);
        if more > 0 {
            output::notice(&format!(
                "[{queue_name}]: {more} more payloads are in quarantine than can be seen in one call"
            ));
        }
        held.push((queue_name, payloads));
    }
    for id in &args.only {
        let mut payloads = held.iter().flat_map(|(_, payloads)| payloads);
        anyhow::ensure!(
            payloads.any(|payload| id_of(payload) == *id),
            "no payload in quarantine has the id `{id}`: `artisand queue:quarantine` lists those that there are"
        );
    }
    let mut text = String::new();
    for (queue_name, mut payloads) in held {
        payloads.retain(|payload| args.only.is_empty() || args.only.contains(&id_of(payload)));
        text += &act(&args, global, &*queue, &name, &queue_name, payloads).await?;
    }
    if text.is_empty() && !args.json {
        text = information("No payloads in quarantine", global);
    }
    output::data(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// What a payload is called: its place in the list is another one once those before it have gone.
fn id_of(payload: &[u8]) -> String {
    hex(&Sha256::digest(payload)[..6])
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
    chosen: Vec<Vec<u8>>,
) -> anyhow::Result<String> {
    let lines = chosen
        .iter()
        .map(|payload| line(args, connection, name, payload));
    let lines: String = lines.collect();
    let (fate, what) = match (args.requeue, args.delete) {
        (true, _) => (Fate::Requeue, "pushed back onto"),
        (_, true) => (Fate::Delete, "deleted from the quarantine of"),
        _ => return Ok(lines),
    };
    let count = queue.dequarantine(name, &chosen, fate).await?;
    if args.json {
        return Ok(lines);
    }
    let plural = if count == 1 { "payload" } else { "payloads" };
    let text = format!("{count} {plural} {what} the [{name}] queue");
    Ok(lines + &information(&text, global))
}

/// Shows a payload.
fn line(args: &QuarantineArgs, connection: &str, name: &QueueName, payload: &[u8]) -> String {
    let (id, reason) = (id_of(payload), reason(connection, name, payload));
    let text = args.show.then(|| String::from_utf8_lossy(payload));
    if args.json {
        let object = serde_json::json!({
            "connection": connection, "queue": name.as_str(), "id": id, "bytes": payload.len(),
            "reason": reason, "payload": text,
        });
        return format!("{object}\n");
    }
    let shown = text.map(|text| format!("\n    {}", output::printable(&text)));
    format!(
        "  {} {id}, {} bytes: {reason}{}\n",
        output::printable(name.as_str()),
        payload.len(),
        shown.unwrap_or_default()
    )
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
