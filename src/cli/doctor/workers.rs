//! The artisand workers that are alive.

use crate::cli::report::Report;
use crate::queue::Ledger;
use crate::shown::{name, printable, rounded, with_causes};
use crate::telemetry::{WorkerRecord, live_workers};
use crate::time::Clock;
use std::time::Duration;

const CHECK: &str = "workers";

/// Lists the workers whose heartbeats the server keeps.
pub(super) async fn check(ledger: &dyn Ledger) -> Report {
    let mut report = Report::default();
    if !ledger.keeps_heartbeats() {
        return report;
    }
    let live = match live_workers(ledger).await {
        Ok(live) => live,
        Err(error) => {
            let remedy = "the key artisand:workers must be a sorted set of artisand's";
            report.warn(CHECK, with_causes(&error), remedy);
            return report;
        }
    };
    let now = Clock::System.precise();
    for worker in &live.workers {
        report.ok(CHECK, line(worker, now));
    }
    if live.workers.is_empty() {
        report.ok(CHECK, "no artisand worker writes a heartbeat here now");
    }
    if live.unreadable > 0 {
        report.warn(
            CHECK,
            format!(
                "{} heartbeats are not in the form of this version",
                live.unreadable
            ),
            "they are written by another version of artisand, and expire with its worker",
        );
    }
    report
}

/// A worker in a line.
fn line(worker: &WorkerRecord, now: f64) -> String {
    let state = match worker {
        worker if worker.is_stopping => ", stopping",
        worker if worker.is_paused => ", paused",
        _ => "",
    };
    let queues: Vec<_> = worker.queues.iter().map(|queue| name(queue)).collect();
    format!(
        "artisand {} on {}, process {}{state}: `{}` of connection `{}`; {} of {} slots busy, {} done, {} failed since {:?}",
        printable(&worker.version),
        name(&worker.host),
        worker.pid,
        queues.join(","),
        name(&worker.connection),
        worker.busy,
        worker.slots,
        worker.done,
        worker.failed,
        age(now - worker.started),
    )
}

fn age(seconds: f64) -> Duration {
    let age = Duration::try_from_secs_f64(seconds).unwrap_or_default();
    rounded(Duration::from_secs(age.as_secs()))
}
