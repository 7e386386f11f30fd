//! The key prefixes of the queues on a server.

use tracing::instrument::WithSubscriber as _;
use tracing::subscriber::NoSubscriber;

use super::output;
use crate::config::{self, Config};
use crate::connection::Redis;
use crate::queue::queues_by_prefix;
use crate::shown::with_causes;

/// The queue keys on a connection's server, as the end of a sentence.
pub(super) async fn prefixes_at(config: &Config, name: &str) -> String {
    const MOST: usize = 20;
    let Ok(settings) = config::connection_without_prefix(config, name) else {
        return String::new();
    };
    let Some(redis) = settings.redis() else {
        return String::new();
    };
    let address = redis.address.to_string();
    let found = match Redis::new(redis) {
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
