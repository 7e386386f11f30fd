//! The app's batches.

use crate::batch::{Batches, Error};
use crate::cli::gaps;
use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::routing::Router;
use crate::shown::with_causes;

const CHECK: &str = "batches";

/// Reports on batches. Few apps have batches, so missing settings for them are not an error.
pub(super) async fn check(config: &Config, router: Option<&Router>, has_batches: bool) -> Report {
    let mut report = Report::default();
    match config::batches(config) {
        Ok(Some(batches)) => {
            let checked = batches.check().await;
            return check_place(config, router, &batches, checked, has_batches);
        }
        Ok(None) => report.warn(
            CHECK,
            "the app keeps them in DynamoDB, where only PHP can count their jobs: with a closure for each",
            "keep batches in a database (queue.batching.driver), or let PHP run their jobs",
        ),
        Err(error) => report.warn(
            CHECK,
            with_causes(&error),
            "correct queue.batching of the app if it has jobs in batches",
        ),
    }
    report
}

/// Reports whether the table of batches is there and can be written.
fn check_place(
    config: &Config,
    router: Option<&Router>,
    batches: &Batches,
    checked: Result<(), Error>,
    has_batches: bool,
) -> Report {
    let mut report = Report::default();
    let place = batches.describe();
    match checked {
        Ok(()) => {
            report.ok(CHECK, format!("{place}, can be written"));
            if has_batches && batches.are_in_a_file() {
                report.warn(
                    CHECK,
                    "they are in a SQLite file: PHP reads a batch before it writes it, and if another process writes in between, it gets `database is locked` and its job is run again",
                    "set `'transaction_mode' => 'IMMEDIATE'` and a `busy_timeout` (milliseconds) for the connection in config/database.php, where the app's Laravel knows them; `journal_mode` WAL alone does not help; with an older Laravel give such jobs 3 tries or more, or keep batches in MySQL or PostgreSQL",
                );
            }
        }
        Err(error) if batches.is_missing(&error) && has_batches => report.error(
            CHECK,
            format!("no {place}, and there are jobs in batches"),
            "make it with `php artisan queue:batches-table` (since Laravel 11 make:queue-batches-table) and migrate, or correct queue.batching of the app; until then their ends wait in artisand:follow-ups",
        ),
        Err(error) if batches.is_missing(&error) => {
            let batchable = router.map(|router| gaps::batchable(config, router));
            let batchable = batchable.unwrap_or_default();
            if batchable.is_empty() {
                report.ok(CHECK, format!("no {place}: the app has no jobs in batches"));
            } else {
                report.warn(
                    CHECK,
                    format!(
                        "no {place}, and classes that run here may be in batches: {}",
                        gaps::some_of(&batchable)
                    ),
                    "make it with `php artisan queue:batches-table` (since Laravel 11 make:queue-batches-table) and migrate, if there are batches",
                );
            }
        }
        Err(error) => report.warn(
            CHECK,
            format!("{place}: {}", with_causes(&error)),
            "make the table writable if the app has jobs in batches",
        ),
    }
    report
}
