//! Queues in a table: where it is, and who may work it at the same time.

use crate::cli::output;
use crate::cli::report::Report;
use crate::config::{Config, Laravel};
use crate::connection::{DatabaseKind, DatabaseOptions};

/// Says where the table is, and what workers of PHP do beside others on `SQLite`.
pub(super) fn check(config: &Config, database: &DatabaseOptions, table: &str) -> Report {
    let mut report = Report::default();
    report.ok(
        "database",
        format!(
            "queues in table `{}` at {}",
            output::printable(table),
            output::printable(&database.address())
        ),
    );
    if database.kind == DatabaseKind::Sqlite
        && config
            .laravel()
            .is_none_or(|laravel| fails_healthy_jobs(laravel, &database.name))
    {
        report.warn(
            "database",
            "beside another worker on SQLite, `php artisan queue:work` of Laravel 12.54 and later fails a job that it \
             was about to begin when the other one wrote first",
            "let artisand be the only worker (its PHP processes are no workers of their own), or set `transaction_mode` \
             of the connection to IMMEDIATE (Laravel 12.26 and PHP 8.4)",
        );
    }
    report
}

/// Whether a worker of this Laravel takes a busy file for the fault of the job.
fn fails_healthy_jobs(laravel: &Laravel, database: &str) -> bool {
    let mode = laravel.transaction_mode(database).ok().flatten();
    let waits = mode.is_some_and(|mode| !mode.eq_ignore_ascii_case("deferred"));
    !waits && laravel.known_version().is_at_least(12, 54)
}
