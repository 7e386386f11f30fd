//! Timeouts that are longer than a reservation: a PHP worker on the same queue would run such a job twice.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::cli::report::Report;
use crate::config::Config;

pub(super) fn check(config: &Config, name: &str, retry_after: Duration) -> Report {
    let mut report = Report::default();
    let retry_after = retry_after.as_secs();
    let too_long = classes_as_slow_as(retry_after, config);
    if retry_after <= 60 {
        report.warn("retry_after", format!("{retry_after} s on `{name}` is not longer than the default timeout of 60 s"), "make retry_after some seconds longer than any timeout: PHP workers run a job again that is still running (artisand renews its reservations)");
    } else if !too_long.is_empty() {
        report.warn("retry_after", format!("{retry_after} s on `{name}` is not longer than the timeout of {}", too_long.join(", ")), "make retry_after longer than any timeout: PHP workers run a job again that is still running (artisand renews its reservations)");
    } else {
        report.ok("retry_after", format!("{retry_after} s on `{name}`"));
    }
    report
}

/// Queued classes whose timeout is not shorter than this, in seconds.
fn classes_as_slow_as(retry_after: u64, config: &Config) -> Vec<&str> {
    let classes = config
        .manifest()
        .into_iter()
        .flat_map(|(_, manifest)| &manifest.classes);
    let too_long = classes.filter(|(_, facts)| {
        let timeout = facts.limits.get("timeout");
        let timeout = timeout.and_then(serde_json::Value::as_u64);
        facts.is_queued() && timeout.is_some_and(|timeout| timeout >= retry_after || timeout == 0)
    });
    too_long.map(|(class, _)| class.as_str()).collect()
}

/// Warns of waiting jobs that may run for longer than their reservation lasts.
pub(super) fn check_slow(classes: BTreeSet<String>) -> Report {
    let mut report = Report::default();
    if classes.is_empty() {
        return report;
    }
    let classes: Vec<String> = classes.into_iter().collect();
    report.warn(
        "retry_after",
        format!(
            "waiting jobs have a timeout that is not shorter than retry_after: {}",
            classes.join(", ")
        ),
        "make retry_after longer, or PHP workers run them twice",
    );
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_to_be_longer_than_the_usual_timeout() {
        let config = Config::default();
        for (seconds, expected) in [(60, "warning"), (61, "ok")] {
            let report = check(&config, "redis", Duration::from_secs(seconds));
            assert_eq!(report.levels(), expected, "{seconds}");
        }
    }
}
