//! The app's store of failed jobs.

use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::failed::FailedJobs;
use crate::shown::with_causes;

pub(super) async fn check(config: &Config) -> Report {
    let mut report = Report::default();
    let store = match config::failed_jobs(config) {
        Ok(Some(store)) => store,
        Ok(None) => {
            report.warn(
                "failed jobs",
                "no store is known: they stay in artisand:failed-spool",
                "give the app with --app",
            );
            return report;
        }
        Err(error) => {
            report.error(
                "failed jobs",
                with_causes(&error),
                "correct queue.failed of the app",
            );
            return report;
        }
    };
    if matches!(store, FailedJobs::Null) {
        report.warn(
            "failed jobs",
            "the app keeps none (queue.failed.driver is null)",
            "set QUEUE_FAILED_DRIVER=database-uuids",
        );
        return report;
    }
    if store.wants_uuid().await {
        report.error(
            "failed jobs",
            format!(
                "{}: the table has a uuid column, which driver `database` does not fill",
                store.describe()
            ),
            "set queue.failed.driver to database-uuids",
        );
        return report;
    }
    match store.check().await {
        Ok(()) => report.ok("failed jobs", format!("{}, can be written", store.describe())),
        Err(error) => report.error("failed jobs", format!("{}: {}", store.describe(), with_causes(&error)), "make the store writable (`php artisan migrate` makes the table); until then failed jobs wait in the spool"),
    }
    report
}
