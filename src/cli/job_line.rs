//! The line of a job, as `queue:work` prints it for people.

use std::time::Duration;

use jiff::tz::TimeZone;

use super::output::printable;
use super::paint::{BLUE, GREY, paint};
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
        let name = shown_name(&job.payload);
        let id = printable(job.payload.id.as_ref().map_or("", JobId::bounded));
        let (connection, queue) = (
            printable(job.connection.as_str()),
            printable(job.queue.as_str()),
        );
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
        let mut taken = length(&name) + details_length;
        let runtime = elapsed.map(run_time);
        let mut before_status = String::new();
        match &runtime {
            None => taken += 33,
            Some(runtime) => {
                taken += length(runtime) + 31;
                before_status = self.paint(GREY, runtime) + " ";
                if self.verbose {
                    let memory = memory();
                    taken += length(&memory) + 1;
                    before_status = format!(
                        "{} {} ",
                        self.paint(GREY, runtime),
                        self.paint(GREY, &memory)
                    );
                }
            }
        }
        let dots = self.paint(GREY, &".".repeat(self.width.saturating_sub(taken)));
        let now = self.paint(GREY, now);
        format!(
            "  {now} {name}{details} {dots} {before_status}{}\n",
            self.paint(colour, status)
        )
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
