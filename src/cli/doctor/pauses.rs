//! Queues that the app has paused.

use std::collections::BTreeSet;

use crate::cache::Watched;
use crate::cli::pause::is_unpolled;
use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::queue::QueueName;

/// Reports queues that the app has paused.
pub(super) async fn check(
    config: &Config,
    connection: &str,
    names: &[QueueName],
    default_queue: &QueueName,
) -> Report {
    let mut report = Report::default();
    // A store that is unknown or cannot be read is reported elsewhere.
    let Ok(Some(cache)) = config::default_cache(config) else {
        return report;
    };
    let names: BTreeSet<&str> = names
        .iter()
        .chain([default_queue])
        .map(QueueName::as_str)
        .collect();
    let watched = Watched::new(cache, connection, names.iter().copied());
    let Ok(signals) = watched.read().await else {
        return report;
    };
    for (name, is_paused) in names.into_iter().zip(signals.paused) {
        if is_paused && is_unpolled(config, "pause") {
            report.ok(
                "queue",
                format!("`{name}` is paused, which neither the app's workers nor artisand obey"),
            );
        } else if is_paused {
            report.warn(
                "queue",
                format!("`{name}` is paused: no worker takes its jobs"),
                format!(
                    "`artisand queue:continue {connection}:{name}` (with --all if all are paused)"
                ),
            );
        }
    }
    report
}
