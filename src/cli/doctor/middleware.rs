//! The middleware of mappings, and what follow-ups of jobs lack.

use crate::cli::gaps;
use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::routing::Router;
use crate::shown::with_causes;

pub(super) fn check(config: &Config, router: &Router) -> Report {
    let mut report = Report::default();
    let checked = config::services(config);
    let checked = checked.and_then(|services| config::check_middleware(config, router, &services));
    if let Err(error) = checked {
        report.error(
            "middleware",
            with_causes(&error),
            "queue:work does not start with it: set what is missing, or take the middleware out",
        );
    }
    let classes = config::classes_without_their_middleware(config, router);
    if !classes.is_empty() {
        report.warn(
            "middleware",
            format!(
                "classes with middleware in PHP run here without any: {}",
                classes.join(", ")
            ),
            "list it under `middleware` in their mapping",
        );
    }
    report
}

/// Reports what is missing for the follow-ups of a job.
pub(super) fn check_gaps(config: &Config, router: &Router) -> Report {
    let mut report = Report::default();
    // The reason is already reported.
    let Ok(services) = config::services(config) else {
        return report;
    };
    for finding in gaps::check(config, router, &services) {
        match finding.remedy {
            Some(remedy) => report.warn(finding.check, finding.found, remedy),
            None => report.ok(finding.check, finding.found),
        }
    }
    report
}
