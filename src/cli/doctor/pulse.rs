//! The app's Pulse, and what artisand writes for it.

use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::connection::{Database, Error, SqlError};
use crate::pulse::PulseOptions;
use crate::shown::with_causes;

pub(super) async fn check(config: &Config) -> Report {
    let mut report = Report::default();
    let options = match config::pulse(config) {
        Ok(Some(options)) => options,
        Ok(None) => {
            if config.laravel().is_some_and(config::Laravel::has_pulse) {
                report.ok(
                    "pulse",
                    "it is off, or none of its recorders counts jobs: nothing is written for it",
                );
            }
            return report;
        }
        Err(error) => {
            report.error(
                "pulse",
                with_causes(&error),
                "correct this, or set `enabled = false` under [pulse]: nothing is written for it meanwhile",
            );
            return report;
        }
    };
    for (doubt, advice) in &options.doubts {
        report.warn("pulse", doubt.clone(), *advice);
    }
    let address = options.database.address();
    match check_tables(&options).await {
        Ok(()) => report.ok(
            "pulse",
            format!("entries of jobs that run here go to {address}, for the cards {options}"),
        ),
        Err(error) if is_missing(&error) => report.warn(
            "pulse",
            format!("{address} has no tables of Pulse"),
            "run its migrations, or set `pulse.storage.database.connection` right; its cards do not count the jobs that run here meanwhile",
        ),
        Err(error) => report.warn(
            "pulse",
            format!("{address}: {}", with_causes(&error)),
            "check that it runs: jobs run without their entries meanwhile",
        ),
    }
    report
}

async fn check_tables(options: &PulseOptions) -> Result<(), Error> {
    let database = Database::new(&options.database)?;
    let mut found = Ok(());
    for table in ["pulse_aggregates", "pulse_entries"] {
        let sql = format!("select 1 from {} where 1 = 0", database.table(table));
        found = database.rows(&sql, &[]).await.map(drop);
        if found.is_err() {
            break;
        }
    }
    database.close().await;
    found
}

fn is_missing(error: &Error) -> bool {
    matches!(error, Error::Sql { source, .. } if SqlError::is_missing_table(source))
}
