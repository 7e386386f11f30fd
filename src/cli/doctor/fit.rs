//! Checks whether waiting jobs fit their handlers: reads their input and runs nothing.

use std::collections::BTreeMap;

use crate::cli::output::printable;
use crate::cli::report::Report;
use crate::payload::Payload;
use crate::queue::QueueName;
use crate::worker::Preview;

/// Results of reading the jobs of a queue, by class.
#[derive(Debug, Default)]
pub(super) struct Fit(BTreeMap<String, Tried>);

#[derive(Debug, Default)]
struct Tried {
    jobs: usize,
    unfit: usize,
    /// What was wrong with the first job that does not fit.
    why: String,
}

impl Fit {
    /// Checks a job if a Rust handler is to run it, or to read it as a shadow.
    pub(super) fn note(&mut self, preview: &Preview, payload: &Payload, queue: &QueueName) {
        let Some(read) = preview.check(payload, queue) else {
            return;
        };
        let class = payload.shown_name().into_owned();
        let tried = self.0.entry(class).or_default();
        tried.jobs += 1;
        if let Err(why) = read {
            if tried.unfit == 0 {
                tried.why = why;
            }
            tried.unfit += 1;
        }
    }

    /// Reports for each class whether its jobs fit.
    pub(super) fn report(self, queue: &QueueName) -> Report {
        let mut report = Report::default();
        for (class, Tried { jobs, unfit, why }) in self.0 {
            if unfit == 0 {
                report.ok(
                    "input",
                    format!("`{queue}`: {jobs} of {class} can be read by their handler"),
                );
            } else {
                report.error(
                    "input",
                    format!(
                        "`{queue}`: {unfit} of {jobs} of {class} cannot be read by their handler: {}",
                        printable(&why)
                    ),
                    "correct the type that the handler takes: each such job would fail",
                );
            }
        }
        report
    }
}
