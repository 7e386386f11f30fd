//! What the page and `artisand top` show: all artisand workers of this Redis, their queues and jobs, and the app's
//! failed jobs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;
use serde::Serialize;

use super::failures::{FailedPart, failed_part};
use super::gather::{QueueBacklog, Sources};
use super::heartbeat::{LiveWorkers, WorkerRecord, live_workers};
use super::jobs::{minute, unix_seconds};
use super::minutes::{MINUTES, Minute, Minutes};
use crate::queue::{QueueName, Spool};
use crate::shown::with_causes;

#[cfg(all(test, feature = "tui"))]
mod example;

/// Most queues whose sizes are asked for.
const MOST_QUEUES: usize = 50;
/// Most queues with charts of their own.
const MOST_CHARTS: usize = 20;
/// Most classes, workers and running jobs that are listed.
const MOST_CLASSES: usize = 30;
const MOST_WORKERS: usize = 100;
const MOST_RUNNING: usize = 100;
/// How long the server may take to list the workers.
const PATIENCE: Duration = Duration::from_secs(3);

/// All of it.
#[derive(Debug, Serialize)]
pub(crate) struct Overview {
    pub(crate) now: f64,
    pub(crate) version: &'static str,
    pub(crate) connection: String,
    /// Whether there is a token, with which something can be changed.
    pub(crate) is_writable: bool,
    /// Whether workers besides this one are known.
    pub(crate) are_workers_listed: bool,
    /// What could not be read.
    pub(crate) problems: Vec<String>,
    pub(crate) workers: Vec<WorkerLine>,
    pub(crate) more_workers: usize,
    pub(crate) queues: Vec<QueueLine>,
    pub(crate) total: Chart,
    pub(crate) classes: Vec<ClassLine>,
    pub(crate) running: Vec<RunningLine>,
    pub(crate) busy: usize,
    pub(crate) slots: usize,
    pub(crate) failed: Option<FailedPart>,
    pub(crate) failed_spool: Option<u64>,
    pub(crate) follow_ups: Option<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct WorkerLine {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) pid: u32,
    pub(crate) name: String,
    pub(crate) version: String,
    pub(crate) connection: String,
    pub(crate) queues: Vec<String>,
    pub(crate) started: f64,
    pub(crate) at: f64,
    pub(crate) state: &'static str,
    pub(crate) busy: usize,
    pub(crate) slots: usize,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) released: u64,
}

#[derive(Debug, Serialize)]
pub(crate) struct QueueLine {
    pub(crate) connection: String,
    /// The name of the connection in the app's pauses.
    pub(crate) paused_as: String,
    pub(crate) queue: String,
    pub(crate) is_paused: bool,
    /// Missing where this worker cannot look.
    pub(crate) sizes: Option<QueueSizes>,
    pub(crate) attempts: u64,
    pub(crate) failed: u64,
    pub(crate) chart: Option<Chart>,
}

#[derive(Debug, Serialize)]
pub(crate) struct QueueSizes {
    pub(crate) pending: u64,
    pub(crate) delayed: u64,
    pub(crate) due: u64,
    pub(crate) reserved: u64,
    pub(crate) expired: u64,
    pub(crate) quarantined: u64,
    pub(crate) oldest: Option<f64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct ClassLine {
    pub(crate) class: String,
    pub(crate) attempts: u64,
    pub(crate) done: u64,
    pub(crate) failed: u64,
    pub(crate) released: u64,
    pub(crate) average: Option<f64>,
    pub(crate) longest: Option<f64>,
    pub(crate) per_minute: Vec<u64>,
}

#[derive(Debug, Serialize)]
pub(crate) struct RunningLine {
    pub(crate) worker: String,
    pub(crate) uuid: Option<String>,
    pub(crate) class: String,
    pub(crate) queue: String,
    pub(crate) since: f64,
    pub(crate) attempts: u32,
}

/// An hour, the last minute at the end. Times are seconds.
#[derive(Debug, Serialize)]
pub(crate) struct Chart {
    pub(crate) done: Vec<u64>,
    pub(crate) failed: Vec<u64>,
    pub(crate) released: Vec<u64>,
    pub(crate) ran: Vec<Option<f64>>,
    pub(crate) ran_longest: Vec<Option<f64>>,
    pub(crate) waited: Vec<Option<f64>>,
    pub(crate) waited_longest: Vec<Option<f64>>,
}

impl Chart {
    /// Attempts that ended, by minute.
    pub(crate) fn ended(&self) -> Vec<u64> {
        let ended = self.done.iter().zip(&self.failed).zip(&self.released);
        let sum = |((done, failed), released): ((&u64, &u64), &u64)| done + failed + released;
        ended.map(sum).collect()
    }

    fn of(minutes: &Minutes, now: u64) -> Self {
        let mut hour = [Minute::default(); MINUTES];
        for minute in minutes.until(now) {
            let ago = usize::try_from(now.saturating_sub(minute.number)).unwrap_or(usize::MAX);
            if let Some(at) = hour.len().checked_sub(ago + 1) {
                hour[at] = *minute;
            }
        }
        let counts = |count: fn(&Minute) -> u64| hour.iter().map(count).collect();
        let times = |time: fn(&Minute) -> Option<f64>| hour.iter().map(time).collect();
        Self {
            done: counts(|minute| minute.done),
            failed: counts(|minute| minute.failed),
            released: counts(|minute| minute.released),
            ran: times(|minute| minute.ran.average()),
            ran_longest: times(|minute| minute.ran.longest()),
            waited: times(|minute| minute.waited.average()),
            waited_longest: times(|minute| minute.waited.longest()),
        }
    }
}

/// A queue of a connection, as workers name them.
type Place = (String, String);

/// What the workers tell of one queue.
#[derive(Default)]
struct QueueReports {
    paused_as: String,
    is_paused: bool,
    minutes: Minutes,
}

impl Overview {
    /// Looks at everything.
    pub(crate) async fn look(sources: &Sources, is_writable: bool) -> Self {
        let mut problems = Vec::new();
        let own = sources.heart.as_ref().map(super::Heart::record);
        let live = tokio::time::timeout(PATIENCE, live_workers(&*sources.ledger)).await;
        let live = match live {
            Ok(Ok(live)) => live,
            Ok(Err(error)) => {
                problems.push(format!("workers: {}", with_causes(&error)));
                LiveWorkers::default()
            }
            Err(_) => {
                problems.push(format!("workers: no answer within {PATIENCE:?}"));
                LiveWorkers::default()
            }
        };
        if live.unreadable > 0 {
            let count = live.unreadable;
            problems.push(format!(
                "{count} workers of other versions of artisand are not shown"
            ));
        }
        // What this worker knows of itself is newer than what it last wrote.
        let mut workers = live.workers;
        if let Some(own) = own {
            workers.retain(|worker| worker.id != own.id);
            workers.insert(0, own);
        }
        let told = told(&workers);
        let sizes = sizes(sources, told.keys(), &mut problems).await;
        let failed = match &sources.failed_jobs {
            None => None,
            Some(store) => failed_part(store, &sources.failed_read)
                .await
                .map_err(|problem| problems.push(problem))
                .ok(),
        };
        let spools = tokio::join!(
            sources.length(Spool::FailedJobs),
            sources.length(Spool::FollowUps)
        );
        let mut overview = Self::of(&workers, told, sizes);
        overview.is_writable = is_writable;
        overview.connection = sources.connection.to_string();
        overview.are_workers_listed = sources.ledger.keeps_heartbeats();
        (overview.failed_spool, overview.follow_ups) = spools;
        (overview.problems, overview.failed) = (problems, failed);
        overview
    }

    fn of(
        workers: &[WorkerRecord],
        told: BTreeMap<Place, QueueReports>,
        mut sizes: BTreeMap<Place, QueueSizes>,
    ) -> Self {
        let now = unix_seconds();
        let this_minute = minute(now);
        let mut total = Minutes::default();
        let mut queues: Vec<_> = told
            .into_iter()
            .map(|(place, told)| {
                total.merge(&told.minutes);
                let sum = told.minutes.sum(this_minute);
                let line = QueueLine {
                    sizes: sizes.remove(&place),
                    connection: place.0,
                    queue: place.1,
                    paused_as: told.paused_as,
                    is_paused: told.is_paused,
                    attempts: sum.attempts(),
                    failed: sum.failed,
                    chart: None,
                };
                (line, told.minutes)
            })
            .collect();
        queues.sort_by_key(|(line, _)| std::cmp::Reverse(line.attempts));
        for (line, minutes) in queues.iter_mut().take(MOST_CHARTS) {
            line.chart = Some(Chart::of(minutes, this_minute));
        }
        let mut queues: Vec<_> = queues.into_iter().map(|(line, _)| line).collect();
        queues.truncate(4 * MOST_QUEUES);
        let running = workers.iter().flat_map(|worker| {
            let of = format!("{}:{}", worker.host, worker.pid);
            worker.running.iter().map(move |job| RunningLine {
                worker: of.clone(),
                uuid: job.uuid.clone(),
                class: job.class.clone(),
                queue: job.queue.clone(),
                since: job.since,
                attempts: job.attempts,
            })
        });
        let mut running: Vec<_> = running.collect();
        running.sort_by(|a, b| a.since.total_cmp(&b.since));
        running.truncate(MOST_RUNNING);
        Self {
            now,
            version: env!("CARGO_PKG_VERSION"),
            connection: String::new(),
            is_writable: false,
            are_workers_listed: false,
            problems: Vec::new(),
            workers: workers
                .iter()
                .take(MOST_WORKERS)
                .map(WorkerLine::of)
                .collect(),
            more_workers: workers.len().saturating_sub(MOST_WORKERS),
            queues,
            total: Chart::of(&total, this_minute),
            classes: classes(workers, this_minute),
            running,
            busy: workers.iter().map(|worker| worker.busy).sum(),
            slots: workers.iter().map(|worker| worker.slots).sum(),
            failed: None,
            failed_spool: None,
            follow_ups: None,
        }
    }

    /// Whether a queue is shown: only these can be paused and resumed.
    pub(super) fn has_queue(&self, paused_as: &str, queue: &str) -> bool {
        let is_it = |line: &QueueLine| line.paused_as == paused_as && line.queue == queue;
        self.queues.iter().any(is_it)
    }
}

impl WorkerLine {
    fn of(worker: &WorkerRecord) -> Self {
        Self {
            id: worker.id.clone(),
            host: worker.host.clone(),
            pid: worker.pid,
            name: worker.name.clone(),
            version: worker.version.clone(),
            connection: worker.connection.clone(),
            queues: worker.queues.iter().take(MOST_QUEUES).cloned().collect(),
            started: worker.started,
            at: worker.at,
            state: match worker {
                worker if worker.is_stopping => "stopping",
                worker if worker.is_paused => "paused",
                _ => "running",
            },
            busy: worker.busy,
            slots: worker.slots,
            done: worker.done,
            failed: worker.failed,
            released: worker.released,
        }
    }
}

/// What all workers tell, by queue.
fn told(workers: &[WorkerRecord]) -> BTreeMap<Place, QueueReports> {
    let mut told = BTreeMap::<Place, QueueReports>::new();
    for worker in workers {
        for queue in worker.queues.iter().take(MOST_QUEUES) {
            let place = (worker.connection.clone(), queue.clone());
            let entry = told.entry(place).or_default();
            entry.paused_as.clone_from(&worker.paused_as);
            entry.is_paused |= worker.paused_queues.contains(queue);
        }
        for series in &worker.by_queue {
            let place = (worker.connection.clone(), series.name.clone());
            // Of no other queue than its own.
            if let Some(entry) = told.get_mut(&place) {
                entry.minutes.merge(&series.minutes);
            }
        }
    }
    told
}

fn classes(workers: &[WorkerRecord], now: u64) -> Vec<ClassLine> {
    let mut merged = BTreeMap::<&str, Minutes>::new();
    for series in workers.iter().flat_map(|worker| &worker.by_class) {
        let minutes = merged.entry(&series.name).or_default();
        minutes.merge(&series.minutes);
    }
    let lines = merged.into_iter().map(|(class, minutes)| {
        let sum = minutes.sum(now);
        ClassLine {
            class: class.to_owned(),
            attempts: sum.attempts(),
            done: sum.done,
            failed: sum.failed,
            released: sum.released,
            average: sum.ran.average(),
            longest: sum.ran.longest(),
            per_minute: Chart::of(&minutes, now).ended(),
        }
    });
    let mut lines: Vec<_> = lines.filter(|line| line.attempts > 0).collect();
    lines.sort_by_key(|line| std::cmp::Reverse(line.attempts));
    lines.truncate(MOST_CLASSES);
    lines
}

/// Sizes of the queues of this connection.
async fn sizes(
    sources: &Sources,
    places: impl Iterator<Item = &Place>,
    problems: &mut Vec<String>,
) -> BTreeMap<Place, QueueSizes> {
    let connection = sources.connection.as_str();
    let of_connection = places.filter(|(of, _)| of == connection);
    let names: BTreeSet<QueueName> = of_connection
        .map(|(_, queue)| QueueName::from(queue.as_str()))
        .take(MOST_QUEUES)
        .collect();
    let asked = names.iter().map(|queue| sources.ask_queue(queue));
    let mut known = BTreeMap::new();
    for answer in join_all(asked).await {
        match answer {
            Ok(backlog) => {
                let place = (connection.to_owned(), backlog.queue.to_string());
                known.insert(place, QueueSizes::of(&backlog));
            }
            Err(problem) => problems.push(format!("queues: {problem}")),
        }
    }
    // A server that is away says the same for each queue.
    problems.dedup();
    known
}

impl QueueSizes {
    fn of(backlog: &QueueBacklog) -> Self {
        let [
            (_, pending),
            (_, delayed),
            (_, due),
            (_, reserved),
            (_, expired),
        ] = backlog.states();
        Self {
            pending,
            delayed,
            due,
            reserved,
            expired,
            quarantined: backlog.sizes.quarantined,
            oldest: backlog.oldest,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chart_ends_with_this_minute() {
        let mut minutes = Minutes::default();
        minutes.at(41).done = 1;
        minutes.at(100).failed = 2;
        let chart = Chart::of(&minutes, 100);
        assert_eq!(
            (chart.done.len(), chart.done[0], chart.failed[59]),
            (60, 1, 2)
        );
        assert_eq!(chart.ran[59], None);
    }
}
