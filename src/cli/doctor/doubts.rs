//! Names in the configuration that do not exist or mean something else.

use crate::cli::report::Report;
use crate::config::{Config, Doubt};

/// Reports names in the configuration that do not exist or mean something else.
pub(in crate::cli) fn check(config: &Config) -> Report {
    let mut report = Report::default();
    for doubt in config.doubts() {
        tell(&mut report, &doubt);
    }
    report
}

/// Reports a doubt.
pub(super) fn tell(report: &mut Report, doubt: &Doubt) {
    let check = doubt.place.as_ref().map_or("settings", |_| "mappings");
    if doubt.is_certain {
        report.error(check, doubt.to_string(), doubt.remedy);
    } else {
        report.warn(check, doubt.to_string(), doubt.remedy);
    }
}
