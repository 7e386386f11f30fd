//! Traces of jobs: whether their collector can be reached.

use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::handler::HttpOptions;
use crate::shown::with_causes;

pub(super) async fn check(config: &Config, connection: &str) -> Report {
    let mut report = Report::default();
    let options = match config::traces(config, connection) {
        Ok(Some(options)) => options,
        Ok(None) => return report,
        // What is wrong with the connection is said elsewhere.
        Err(_) if config::connection(config, connection).is_err() => return report,
        Err(error) => {
            let remedy = "correct this, or set `enabled = false` under [otlp]: queue:work does not start with it";
            report.error("traces", with_causes(&error), remedy);
            return report;
        }
    };
    let collector = HttpOptions {
        url: options.endpoint,
        ..HttpOptions::default()
    };
    let place = collector.shown_url();
    match collector.try_connect().await {
        Ok(()) => report.ok("traces", format!("those of jobs go to {place}")),
        Err(error) => report.warn(
            "traces",
            format!("{place}: {}", with_causes(&error)),
            "check that the collector runs: jobs run without traces meanwhile",
        ),
    }
    report
}
