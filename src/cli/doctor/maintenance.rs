//! Whether the app is down.

use crate::cli::report::Report;
use crate::config::Laravel;
use crate::shown::with_causes;

pub(super) async fn check(laravel: &Laravel) -> Report {
    let mut report = Report::default();
    match laravel.maintenance() {
        Ok(maintenance) => match maintenance.is_down().await {
            Ok(false) => report.ok("maintenance", "the app is up"),
            Ok(true) => report.warn(
                "maintenance",
                "the app is down: workers take no jobs",
                "`php artisan up`, or `queue:work --force`",
            ),
            Err(error) => report.error(
                "maintenance",
                with_causes(&error),
                "workers cannot tell whether the app is down",
            ),
        },
        Err(error) if error.is_for_php_only() => report.warn(
            "maintenance",
            with_causes(&error),
            "workers do not hear of `down`: keep it in a file (`app.maintenance.driver`), or in another store",
        ),
        Err(error) => report.error("maintenance", with_causes(&error), "correct app.maintenance"),
    }
    report
}
