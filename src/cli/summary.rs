//! `queue:work --summary`: one line per class at the end, and on SIGUSR1.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::console::Console;
use super::json::PhpJson;
use super::output::printable;
use super::style::run_time;
use crate::outbox::hand_over::{is_closure, shown_name};
use crate::worker::{Event, JobResult, Observer};

/// Most classes that are counted one by one: names come from payloads, which are not trusted.
const MOST_CLASSES: usize = 500;
/// The name under which all further classes are counted together.
const OTHERS: &str = "(other classes)";

/// The counts of each class.
#[derive(Debug, Default)]
pub(super) struct Summary(Mutex<BTreeMap<Box<str>, Counts>>);

#[derive(Debug, Default)]
struct Counts {
    is_closure: bool,
    runs: u64,
    /// Runs after which the job was to run again: released, thrown, timed out or lost.
    retried: u64,
    /// Jobs that failed for good.
    failed: u64,
    total: Duration,
    longest: Duration,
}

impl Counts {
    fn mean(&self) -> Duration {
        let runs = u32::try_from(self.runs).unwrap_or(u32::MAX);
        self.total.checked_div(runs).unwrap_or_default()
    }
}

impl Observer for Summary {
    /// Notes the end of an attempt, or a job that failed for good.
    fn on_event(&self, event: &Event<'_>) {
        let (end, is_attempt) = match event {
            Event::JobAttempted(end) => (end, true),
            Event::JobFailed(end) => (end, false),
            _ => return,
        };
        let name = &*shown_name(&end.job.payload);
        let mut classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_new = !classes.contains_key(name);
        let name = if is_new && classes.len() >= MOST_CLASSES {
            OTHERS
        } else {
            name
        };
        let counts = classes.entry(name.into()).or_default();
        counts.is_closure = name != OTHERS && is_closure(&end.job.payload);
        if is_attempt {
            counts.runs += 1;
            counts.retried += u64::from(end.result != JobResult::Deleted);
            counts.total = counts.total.saturating_add(end.elapsed);
            counts.longest = counts.longest.max(end.elapsed);
        } else {
            counts.failed += 1;
        }
    }

    /// Counts do not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }
}

impl Summary {
    /// The lines, for people or as JSON.
    pub(super) fn lines(&self, console: &Console) -> String {
        let classes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut text = String::new();
        for (name, counts) in &*classes {
            let Counts {
                runs,
                retried,
                failed,
                ..
            } = *counts;
            if console.is_json() {
                let seconds = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e6;
                text += &PhpJson::new()
                    .text("level", Some("info"))
                    .text("status", Some("summary"))
                    .text("job", Some(name.strip_suffix(" (closure)").unwrap_or(name)))
                    .flag("closure", counts.is_closure)
                    .number("runs", runs)
                    .number("retried", retried)
                    .number("failed", failed)
                    .number("mean", seconds(counts.mean()))
                    .number("max", seconds(counts.longest))
                    .text("timestamp", Some(&console.json_time()))
                    .line();
                continue;
            }
            let (mean, longest) = (run_time(counts.mean()), run_time(counts.longest));
            writeln!(
                text,
                "  {} Summary {} {runs} RUN, {retried} RETRIED, {failed} FAILED FOR GOOD, mean {mean}, max {longest}",
                console.now(),
                printable(name),
            )
            .expect("a string takes everything");
        }
        text
    }

    /// Prints the lines on every SIGUSR1, until the future is dropped.
    pub(super) async fn obey_signal(&self, console: &Console) -> std::io::Result<()> {
        use tokio::signal::unix::{SignalKind, signal};
        let mut asked = signal(SignalKind::user_defined1())?;
        while asked.recv().await.is_some() {
            console.print(self.lines(console));
        }
        std::future::pending().await
    }
}
