//! The key prefixes of the queues on a server.

use std::collections::{BTreeMap, BTreeSet};

use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::output;
use crate::config::{self, Config};
use crate::connection::{Error, Redis};
use crate::shown::with_causes;

/// Queues found in the database, by key prefix.
pub(super) type Found = BTreeMap<String, BTreeSet<String>>;

pub(super) async fn queues_by_prefix(redis: &Redis) -> Result<Found, Error> {
    /// Enough for any app; a database of a hundred million cache keys must not delay the command for minutes.
    const MOST_SCANS: usize = 2_000;
    let mut found = Found::new();
    let mut cursor = 0_u64;
    for _ in 0..MOST_SCANS {
        let mut command = ::redis::cmd("SCAN");
        command
            .arg(cursor)
            .arg("MATCH")
            .arg("*queues:*")
            .arg("COUNT")
            .arg(1000);
        let (next, keys): (u64, Vec<Vec<u8>>) = redis.command(&command).await?;
        for key in keys {
            let key = String::from_utf8_lossy(&key).into_owned();
            // `illuminate:queues:paused` and Horizon's keys are not queues.
            let Some((prefix, name)) = key.split_once("queues:") else {
                continue;
            };
            if prefix.ends_with("illuminate:") || prefix.contains("horizon:") {
                continue;
            }
            let suffixes = [":delayed", ":reserved", ":notify", ":quarantine"];
            let name = suffixes
                .iter()
                .find_map(|suffix| name.strip_suffix(suffix))
                .unwrap_or(name);
            found
                .entry(prefix.to_owned())
                .or_default()
                .insert(name.to_owned());
        }
        cursor = next;
        if cursor == 0 {
            break;
        }
    }
    Ok(found)
}

/// The queue keys on a connection's server, as the end of a sentence.
pub(super) async fn prefixes_at(config: &Config, name: &str) -> String {
    const MOST: usize = 20;
    let Ok(settings) = config::connection_without_prefix(config, name) else {
        return String::new();
    };
    let address = settings.redis.address.to_string();
    let found = match Redis::new(&settings.redis) {
        // Nothing waits for a server that is away: the error says it.
        Ok(redis) => {
            let asking = queues_by_prefix(&redis);
            asking.with_subscriber(NoSubscriber::default()).await
        }
        Err(error) => Err(error),
    };
    match found {
        Err(error) => format!("; {address} cannot be asked: {}", with_causes(&error)),
        Ok(found) if found.is_empty() => format!("; {address} has no keys of queues now"),
        Ok(found) => {
            let shown = found.keys().take(MOST);
            let shown: Vec<String> = shown
                .map(|prefix| format!("`{}`", output::printable(prefix)))
                .collect();
            let more = found.len().saturating_sub(MOST);
            let more = match more {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            let what = if found.len() == 1 {
                "the prefix"
            } else {
                "the prefixes"
            };
            format!(
                "; the keys of queues at {address} have {what} {}{more}",
                shown.join(", ")
            )
        }
    }
}
