//! The line of a job, as `queue:work` prints it: for people, and as a JSON object.

use std::borrow::Cow;
use std::time::Duration;

use jiff::tz::TimeZone;

use super::json::PhpJson;
use super::output::printable;
use super::paint::{BLUE, GREY, YELLOW_BOLD, paint};
use super::style::run_time;
use crate::handler::JobInfo;
use crate::outbox::hand_over::shown_name;
use crate::payload::JobId;
use crate::worker::resident_memory;

/// How to print.
#[derive(Debug, Clone)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a switch of the command line"
)]
pub(super) struct Style {
    /// One JSON object per line.
    pub(super) json: bool,
    /// No lines for jobs.
    pub(super) quiet: bool,
    /// Id, connection, queue and memory as well.
    pub(super) verbose: bool,
    pub(super) coloured: bool,
    pub(super) width: usize,
    pub(super) timezone: TimeZone,
}

impl Style {
    pub(super) fn paint(&self, colour: &str, text: &str) -> String {
        paint(self.coloured, colour, text)
    }

    /// Two blanks, time, name, dots up to two columns before the edge, run time and status.
    pub(super) fn job_line(
        &self,
        now: &str,
        job: &JobInfo,
        elapsed: Option<Duration>,
        status: &str,
        colour: &str,
    ) -> String {
        let named = Named {
            name: shown_name(&job.payload),
            id: job.payload.id.as_ref().map_or("", JobId::bounded),
            connection: job.connection.as_str(),
            queue: job.queue.as_str(),
            remark: None,
        };
        let memory = (self.verbose && elapsed.is_some()).then(memory);
        self.line_of(now, &named, elapsed, memory.as_deref(), (status, colour))
    }

    /// The same of a job that another process runs; `more` follows the run time in verbose lines.
    pub(super) fn line_of(
        &self,
        now: &str,
        job: &Named<'_>,
        elapsed: Option<Duration>,
        more: Option<&str>,
        (status, colour): (&str, &str),
    ) -> String {
        let name = &*job.name;
        let id = printable(job.id);
        let (connection, queue) = (printable(job.connection), printable(job.queue));
        let length = |text: &str| text.chars().count();
        let (mut details, mut details_length) = (String::new(), 0);
        if self.verbose {
            details = format!(
                " {} {} {}",
                self.paint(GREY, &id),
                self.paint(BLUE, &connection),
                self.paint(BLUE, &queue)
            );
            details_length = length(&id) + length(&connection) + length(&queue) + 2;
        }
        let mut taken = length(name) + details_length;
        let runtime = elapsed.map(run_time);
        let mut before_status = String::new();
        match &runtime {
            None => taken += 33,
            Some(runtime) => {
                taken += length(runtime) + 31;
                before_status = self.paint(GREY, runtime) + " ";
            }
        }
        if let Some(more) = more.filter(|_| self.verbose) {
            taken += length(more) + 1;
            before_status += &(self.paint(GREY, more) + " ");
        }
        let mut room = self.width.saturating_sub(taken);
        if let Some(remark) = job.remark.as_deref().filter(|_| room >= SHORTEST_REMARK) {
            // At least three dots and two blanks are left.
            let remark = printable(remark);
            let shown = shortened(&remark, room - 4);
            room -= length(&shown) + 1;
            details.push(' ');
            details += &self.paint(GREY, &shown);
        }
        let dots = self.paint(GREY, &".".repeat(room));
        let now = self.paint(GREY, now);
        format!(
            "  {now} {name}{details} {dots} {before_status}{}\n",
            self.paint(colour, status)
        )
    }

    /// The line of an event that is not about one run of a job.
    pub(super) fn notice(
        &self,
        now: &str,
        what: &str,
        name: &str,
        (status, colour): (&str, &str),
    ) -> String {
        let name = match name {
            "" => String::new(),
            name => self.paint(BLUE, name) + " ",
        };
        let (now, status) = (self.paint(GREY, now), self.paint(colour, status));
        format!("  {now} {what} {name}{status}\n")
    }

    /// The line of a worker that has stopped.
    pub(super) fn stopped(&self, now: &str, description: &str) -> String {
        let (now, stopped) = (self.paint(GREY, now), self.paint(YELLOW_BOLD, "STOPPED"));
        let description = self.paint(GREY, description);
        format!("  {now} Worker {stopped} {description}\n")
    }
}

/// What a line says of a job.
#[derive(Debug)]
pub(super) struct Named<'a> {
    /// Fit to be shown.
    pub(super) name: Cow<'a, str>,
    pub(super) id: &'a str,
    pub(super) connection: &'a str,
    pub(super) queue: &'a str,
    /// Takes the place of some dots, as much of it as fits.
    pub(super) remark: Option<String>,
}

/// The least room in which a remark says something.
const SHORTEST_REMARK: usize = 20;

/// The beginning of a text, at most this many characters long.
pub(super) fn shortened(text: &str, most: usize) -> Cow<'_, str> {
    if text.chars().count() <= most {
        return text.into();
    }
    let shown: String = text.chars().take(most.saturating_sub(1)).collect();
    (shown + "…").into()
}

/// What a JSON line says of a job, in Laravel's order.
#[derive(Debug)]
pub(super) struct JobObject<'a> {
    pub(super) id: Option<&'a str>,
    pub(super) uuid: Option<&'a str>,
    pub(super) connection: &'a str,
    pub(super) queue: &'a str,
    pub(super) job: &'a str,
    pub(super) closure: bool,
    pub(super) status: &'a str,
    pub(super) result: Option<&'a str>,
    pub(super) attempts: u32,
    pub(super) exception: Option<&'a str>,
    pub(super) message: Option<&'a str>,
    pub(super) timestamp: &'a str,
    /// In seconds, rounded to six decimals.
    pub(super) duration: Option<f64>,
}

impl JobObject<'_> {
    pub(super) fn json(&self) -> PhpJson {
        let level = if matches!(self.status, "starting" | "success") {
            "info"
        } else {
            "warning"
        };
        let json = PhpJson::new()
            .text("level", Some(level))
            .text("id", self.id)
            .text("uuid", self.uuid)
            .text("connection", Some(self.connection))
            .text("queue", Some(self.queue))
            .text("job", Some(self.job))
            .flag("closure", self.closure)
            .text("status", Some(self.status))
            .text("result", self.result)
            .number("attempts", self.attempts)
            .text("exception", self.exception)
            .text("message", self.message)
            .text("timestamp", Some(self.timestamp));
        match self.duration {
            // Without trailing zeros, as PHP prints a rounded float.
            Some(duration) => json.number("duration", duration),
            None => json,
        }
    }
}

/// Resident memory as Laravel shows it: `22MB`, `22.5MB`.
fn memory() -> String {
    #[expect(clippy::cast_precision_loss, reason = "one decimal is shown")]
    let megabytes = resident_memory().unwrap_or(0) as f64 / f64::from(1 << 20);
    format!("{}MB", (megabytes * 10.0).round() / 10.0)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::payload::{CALL_QUEUED_HANDLER, Payload};

    fn style() -> Style {
        Style {
            json: false,
            quiet: false,
            verbose: false,
            coloured: false,
            width: 80,
            timezone: TimeZone::UTC,
        }
    }

    #[test]
    fn a_closure_that_artisand_pushed_is_told_from_the_job_whose_name_it_has() {
        const CLOSURE: &str = "Illuminate\\Queue\\CallQueuedClosure";
        let rows = [
            ("App\\Jobs\\X", CLOSURE, "App\\Jobs\\X (closure)"),
            ("App\\Jobs\\X", "App\\Jobs\\X", "App\\Jobs\\X"),
            ("Closure (web.php:3)", CLOSURE, "Closure (web.php:3)"),
            ("Closure (artisand:0)", CLOSURE, "Closure (artisand:0)"),
        ];
        for (name, class, expected) in rows {
            let payload = serde_json::json!({
                "displayName": name, "job": CALL_QUEUED_HANDLER, "id": "abc", "attempts": 0,
                "data": {"commandName": class, "command": "O:1:\"A\":0:{}"},
            });
            let payload = Payload::parse(payload.to_string().as_bytes()).unwrap();
            assert_eq!(shown_name(&payload), expected);
        }
    }

    fn job() -> JobInfo {
        let payload = br#"{"displayName":"App\\Jobs\\X","job":"App\\Jobs\\X@handle","id":"abc","attempts":0}"#;
        JobInfo {
            connection: "redis".into(),
            queue: "high".into(),
            attempts: 1,
            payload: Arc::new(Payload::parse(payload).unwrap()),
            body: Arc::from(&b""[..]),
            reserved: Arc::default(),
            trace: None,
        }
    }

    #[test]
    fn lines_end_two_columns_before_the_edge() {
        let line =
            |elapsed, status| style().job_line("2026-01-02 03:04:05", &job(), elapsed, status, "");
        let running = line(None, "RUNNING");
        assert_eq!(running.trim_end().chars().count(), 78);
        assert_eq!(
            running,
            format!(
                "  2026-01-02 03:04:05 App\\Jobs\\X {} RUNNING\n",
                ".".repeat(37)
            )
        );
        let done = line(Some(Duration::from_micros(1690)), "DONE");
        assert_eq!(
            done,
            format!(
                "  2026-01-02 03:04:05 App\\Jobs\\X {} 1.69ms DONE\n",
                ".".repeat(33)
            )
        );
    }
}
