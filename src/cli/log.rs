//! The log of `queue:work` on standard error: what an operator has to know or act on.
//!
//! Job lines are the output. Log lines have the same look and the same time format, so that both can be read
//! together. `-v` adds the life of the PHP processes.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::GlobalArgs;
use super::output::Log;

/// Time of a job line or log line for people.
pub(super) fn time_for_people(now: Timestamp, timezone: &TimeZone) -> String {
    let local = now.to_zoned(timezone.clone());
    local.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The same time for machines (`--json`).
pub(super) fn time_for_machines(now: Timestamp, timezone: &TimeZone) -> String {
    let local = now.to_zoned(timezone.clone());
    local.strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string()
}

/// Formats times in the app's zone, as in job lines.
struct Time {
    is_json: bool,
    timezone: TimeZone,
}

impl FormatTime for Time {
    fn format_time(&self, out: &mut Writer<'_>) -> std::fmt::Result {
        let now = Timestamp::now();
        if self.is_json {
            out.write_str(&time_for_machines(now, &self.timezone))
        } else {
            // Job lines begin with two blanks.
            out.write_str("  ")?;
            out.write_str(&time_for_people(now, &self.timezone))
        }
    }
}

/// The log level if `ARTISAND_LOG` is not set.
fn level(global: &GlobalArgs) -> &'static str {
    match (global.quiet, global.verbose) {
        (true, _) => "error,sqlx=off,sqlx_core=off",
        // artisand itself logs the errors of its database connections.
        (false, 0) => "warn,artisand=info,sqlx=off,sqlx_core=off",
        (false, 1) => "warn,artisand=info,artisand::process::pool=debug,sqlx=off,sqlx_core=off",
        (false, 2) => "info,artisand=debug",
        (false, _) => "info,artisand=trace",
    }
}

/// Logs go to standard error; data goes to standard output.
///
/// A thread of its own writes the log, so that a reader that stands still does not keep jobs from running.
pub(super) fn start(
    global: &GlobalArgs,
    is_json: bool,
    timezone: TimeZone,
    log: Log,
) -> anyhow::Result<()> {
    let filter = match std::env::var("ARTISAND_LOG") {
        Ok(directives) if !directives.is_empty() => {
            let expected = "log directives, such as info or artisand=debug";
            EnvFilter::try_new(&directives).map_err(|_| crate::config::Error::Variable {
                name: "ARTISAND_LOG".into(),
                value: directives,
                expected,
            })?
        }
        _ => EnvFilter::new(level(global)),
    };
    let subscriber = tracing_subscriber::fmt()
        .with_writer(move || log.clone())
        .with_env_filter(filter)
        .with_timer(Time { is_json, timezone })
        // A log that cannot be written must not end the worker.
        .log_internal_errors(false);
    // A program that uses artisand as a library may have set up logging already.
    let _ = if is_json {
        subscriber.json().try_init()
    } else {
        let is_coloured =
            std::io::IsTerminal::is_terminal(&std::io::stderr()) && global.is_coloured();
        subscriber
            .with_ansi(is_coloured)
            // Module names help readers of the source.
            .with_target(global.verbose > 1)
            .try_init()
    };
    Ok(())
}
