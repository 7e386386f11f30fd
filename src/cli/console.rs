//! The output of `queue:work`: the lines of Laravel 13, for people or as JSON.
//!
//! Layout and colours are those of docs/protocol/worker.md 13.

use std::borrow::Cow;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::sync::PoisonError;
use std::time::Instant;

use jiff::Timestamp;

use super::job_line::{JobObject, Style};
use super::json::PhpJson;
use super::log;
use super::output::{LineWriter, printable};
use super::paint::{GREEN_BOLD, RED_BOLD, Tag, YELLOW_BOLD, boxed};
use crate::handler::JobInfo;
use crate::outbox::hand_over::{is_closure, shown_name};
use crate::payload::{JobId, JobUuid, LogContext};
use crate::worker::{
    Event, JobEnd, JobResult, MappingCounts, Observer, StopReason, resident_memory,
};

/// Prints the events of a worker.
#[derive(Debug)]
pub(super) struct Console {
    style: Style,
    out: LineWriter,
    /// The formatted time of the last second, because a busy worker prints many lines per second.
    second: Mutex<(i64, String)>,
}

impl Console {
    pub(super) fn new(style: Style, out: LineWriter) -> Self {
        Self {
            style,
            out,
            second: Mutex::default(),
        }
    }

    /// Prints lines that do not belong to an event.
    pub(super) fn print(&self, lines: String) {
        if !self.style.quiet && !lines.is_empty() {
            self.out.line(lines);
        }
    }

    /// Whether lines are JSON.
    pub(super) fn is_json(&self) -> bool {
        self.style.json
    }

    /// The time in the format for people.
    pub(super) fn now(&self) -> String {
        let now = Timestamp::now();
        let mut second = self.second.lock().unwrap_or_else(PoisonError::into_inner);
        if second.0 != now.as_second() {
            let text = log::time_for_people(now, &self.style.timezone);
            *second = (now.as_second(), text);
        }
        second.1.clone()
    }

    fn running(&self, job: &JobInfo) -> String {
        self.style
            .job_line(&self.now(), job, None, "RUNNING", YELLOW_BOLD)
    }

    fn ended(&self, end: &JobEnd<'_>, status: &str, colour: &str) -> String {
        self.style
            .job_line(&self.now(), end.job, Some(end.elapsed), status, colour)
    }

    /// The time in the format for machines.
    pub(super) fn json_time(&self) -> String {
        log::time_for_machines(Timestamp::now(), &self.style.timezone)
    }

    /// The time of this moment in the format for machines: events are sent after what they tell.
    fn json_time_of(&self, moment: Instant) -> String {
        let now = Timestamp::now();
        let then = now.checked_sub(moment.elapsed()).unwrap_or(now);
        log::time_for_machines(then, &self.style.timezone)
    }

    fn json_job(
        &self,
        job: &JobInfo,
        status: &str,
        at: Instant,
        end: Option<&JobEnd<'_>>,
    ) -> String {
        let payload = &job.payload;
        let failure = end
            .and_then(|end| end.failure)
            .filter(|_| status == "failed");
        let object = JobObject {
            id: payload.id.as_ref().map(JobId::bounded),
            uuid: payload.uuid.as_ref().map(JobUuid::bounded),
            connection: job.connection.as_str(),
            queue: job.queue.as_str(),
            job: &payload.shown_name(),
            closure: is_closure(payload),
            status,
            result: end.map(|end| match end.result {
                JobResult::Deleted => "deleted",
                JobResult::Released => "released",
                JobResult::Left => "",
            }),
            attempts: job.attempts,
            exception: failure.map(|failure| failure.class.as_str()),
            message: failure.map(|failure| failure.message.as_str()),
            timestamp: &self.json_time_of(at),
            duration: end.map(|end| (end.elapsed.as_secs_f64() * 1e6).round() / 1e6),
        };
        // What Laravel does not say comes after what it says.
        let trace = job.trace.as_ref().map(|trace| trace.ids.trace_id());
        let context = payload.context.as_deref().and_then(LogContext::shown);
        let json = object.json().text("trace", trace.as_deref());
        json.value("context", context.as_deref()).line()
    }

    fn json_event(&self, event: &Event<'_>) -> Option<String> {
        Some(match event {
            Event::JobProcessing { job, began } => self.json_job(job, "starting", *began, None),
            Event::JobProcessed(end) => self.json_end(end, "success"),
            Event::JobReleasedAfterException(end) => self.json_end(end, "released_after_exception"),
            Event::JobFailed(end) => self.json_end(end, "failed"),
            Event::JobTimedOut(end) if end.result == JobResult::Left => {
                self.json_end(end, "timed_out")
            }
            Event::JobLost(end) => self.json_end(end, "lost"),
            _ => {
                let notice = json_notice(event)?;
                notice.text("timestamp", Some(&self.json_time())).line()
            }
        })
    }

    fn json_end(&self, end: &JobEnd<'_>, status: &str) -> String {
        self.json_job(end.job, status, end.ended, Some(end))
    }

    fn text_event(&self, event: &Event<'_>) -> Option<String> {
        Some(match event {
            Event::JobProcessing { job, .. } => self.running(job),
            Event::JobProcessed(end) => self.ended(end, "DONE", GREEN_BOLD),
            Event::JobReleasedAfterException(end) | Event::JobLost(end) => {
                self.ended(end, "FAIL", YELLOW_BOLD)
            }
            // A job that failed because of the timeout has a line of its own.
            Event::JobTimedOut(end) if end.result == JobResult::Left => {
                self.ended(end, "FAIL", YELLOW_BOLD)
            }
            Event::JobFailed(end) => self.ended(end, "FAIL", RED_BOLD),
            Event::WorkerStopping { reason, .. } => {
                self.style.stopped(&self.now(), reason.description())
            }
            _ => {
                let (what, name, status, colour) = text_notice(event)?;
                self.style
                    .notice(&self.now(), what, &name, (&status, colour))
            }
        })
    }
}

/// An event that is not about one run of a job, without the time.
fn json_notice(event: &Event<'_>) -> Option<PhpJson> {
    let warning = |status: &str, queue: &str| {
        PhpJson::new()
            .text("level", Some("warning"))
            .text("queue", Some(queue))
            .text("status", Some(status))
    };
    Some(match event {
        Event::Tallied(counts) => json_counts(counts),
        Event::CanaryStopped(stop) => PhpJson::new()
            .text("level", Some("error"))
            .text("status", Some("canary_stopped"))
            .text("target", Some(&stop.target))
            .number("failures", stop.failures)
            .number("runs", stop.runs),
        Event::CanaryResumed(target) => warning("canary_resumed", "").text("target", Some(target)),
        Event::JobsQuarantined { queue, count } => {
            warning("quarantined", queue.as_str()).number("count", count)
        }
        Event::JobForwarded { job, to } => warning("forwarded", job.queue.as_str())
            .text("uuid", job.payload.uuid.as_ref().map(JobUuid::bounded))
            .text("to", Some(to.as_str())),
        Event::WorkerPausing => warning("paused", ""),
        Event::WorkerResuming => warning("resumed", ""),
        Event::WorkerQueuePaused(queue) => warning("paused", queue.as_str()),
        Event::WorkerQueueResumed(queue) => warning("resumed", queue.as_str()),
        Event::MaintenanceMode(down) => warning(if *down { "down" } else { "up" }, ""),
        Event::WorkerStopping {
            reason,
            jobs_processed,
            ..
        } => json_stop(*reason, *jobs_processed),
        _ => return None,
    })
}

/// An event that is not about one run of a job: what it is about, that one's name, the status and its colour.
fn text_notice(
    event: &Event<'_>,
) -> Option<(
    &'static str,
    Cow<'static, str>,
    Cow<'static, str>,
    &'static str,
)> {
    let name = |name: &str| printable(name).into_owned().into();
    Some(match event {
        Event::Tallied(counts) => {
            let (what, status) = counts_text(counts);
            let colour = counts_colour(counts);
            (what, name(&counts.target), status.into(), colour)
        }
        Event::CanaryStopped(stop) => {
            let status = format!("STOPPED, {} of {} runs failed", stop.failures, stop.runs);
            ("Canary", name(&stop.target), status.into(), RED_BOLD)
        }
        Event::CanaryResumed(target) => ("Canary", name(target), "RESUMED".into(), GREEN_BOLD),
        Event::JobsQuarantined { queue, count } => {
            let queue = queue.to_string().into();
            (
                "Queue",
                queue,
                format!("{count} QUARANTINED").into(),
                RED_BOLD,
            )
        }
        Event::JobForwarded { job, to } => {
            let name = shown_name(&job.payload).into_owned().into();
            (
                "Job",
                name,
                format!("FORWARDED to {to}").into(),
                YELLOW_BOLD,
            )
        }
        Event::WorkerPausing => ("Worker", "".into(), "PAUSED".into(), YELLOW_BOLD),
        Event::WorkerResuming => ("Worker", "".into(), "RESUMED".into(), GREEN_BOLD),
        Event::WorkerQueuePaused(queue) => {
            ("Queue", name(queue.as_str()), "PAUSED".into(), YELLOW_BOLD)
        }
        Event::WorkerQueueResumed(queue) => {
            ("Queue", name(queue.as_str()), "RESUMED".into(), GREEN_BOLD)
        }
        Event::MaintenanceMode(true) => ("App", "".into(), "DOWN".into(), YELLOW_BOLD),
        Event::MaintenanceMode(false) => ("App", "".into(), "UP".into(), GREEN_BOLD),
        _ => return None,
    })
}

fn json_counts(counts: &MappingCounts) -> PhpJson {
    let has_problem = has_problem(counts);
    let json = PhpJson::new()
        .text("level", Some(if has_problem { "warning" } else { "info" }))
        .text(
            "status",
            Some(match counts.canary {
                _ if counts.is_shadow() => "shadow",
                Some(_) => "canary",
                None => "mapping",
            }),
        )
        .text("target", Some(&counts.target));
    if counts.is_shadow() {
        json.number("jobs", counts.bypassed)
            .number("readable", counts.readable)
            .number("unreadable", counts.unreadable)
            .number("compared", counts.compared)
            .number("different", counts.different)
    } else {
        json.number("handler", counts.here)
            .number("php", counts.bypassed)
            .number("mismatched", counts.mismatched)
    }
}

fn json_stop(reason: StopReason, jobs_processed: u64) -> PhpJson {
    let level = if reason.exit_code() == 0 {
        "info"
    } else {
        "warning"
    };
    PhpJson::new()
        .text("level", Some(level))
        .text("status", Some("stopped"))
        .text("reason", Some(reason.as_str()))
        .number("exit_code", reason.exit_code())
        .number("jobs_processed", jobs_processed)
        .number("memory", resident_memory().unwrap_or(0) >> 20)
}

/// The kind of a mapping, and its counts.
fn counts_text(counts: &MappingCounts) -> (&'static str, String) {
    if !counts.is_shadow() {
        let misfits = match counts.mismatched {
            0 => String::new(),
            count => format!(" ({count} DO NOT FIT)"),
        };
        let counted = format!("{} HANDLER, {} PHP{misfits}", counts.here, counts.bypassed);
        return match counts.canary {
            Some(canary) => ("Canary", format!("{canary} %: {counted}")),
            None => ("Mapping", counted),
        };
    }
    let mut counted = vec![format!("{} READ", counts.readable)];
    if counts.unreadable > 0 {
        counted.push(format!("{} NOT READABLE", counts.unreadable));
    }
    if counts.compared > 0 {
        let (compared, different) = (counts.compared, counts.different);
        counted.push(format!("{compared} COMPARED, {different} DIFFERENT"));
    }
    ("Shadow", counted.join(", "))
}

fn has_problem(counts: &MappingCounts) -> bool {
    counts.unreadable + counts.different + counts.mismatched > 0
}

fn counts_colour(counts: &MappingCounts) -> &'static str {
    if has_problem(counts) {
        YELLOW_BOLD
    } else {
        GREEN_BOLD
    }
}

impl Observer for Console {
    fn on_event(&self, event: &Event<'_>) {
        if self.style.quiet {
            return;
        }
        let line = if self.style.json {
            self.json_event(event)
        } else {
            self.text_event(event)
        };
        if let Some(line) = line {
            self.out.line(line);
        }
    }

    /// Lines are about one job each.
    fn is_in_order(&self) -> bool {
        false
    }
}

/// The box that artisan prints at the start if the output is a terminal.
///
/// `php` is the number of PHP processes that run unmapped jobs, if there are any.
pub(super) fn banner(
    queues: &[crate::queue::QueueName],
    php: Option<NonZeroUsize>,
    coloured: bool,
) -> String {
    let names: Vec<&str> = queues.iter().map(crate::queue::QueueName::as_str).collect();
    let word = if names.len() == 1 { "queue" } else { "queues" };
    let text = format!("Processing jobs from the [{}] {word}", names.join(","));
    let text = "\n".to_owned() + &boxed(Tag::Info, &text, coloured);
    let Some(php) = php else {
        return text;
    };
    let (processes, run) = if php == NonZeroUsize::MIN {
        ("process", "runs")
    } else {
        ("processes", "run")
    };
    let php = format!(
        "{php} PHP {processes} {run} jobs without a mapping: `processes` under [php] in artisand.toml"
    );
    text + &boxed(Tag::Info, &php, coloured)
}
