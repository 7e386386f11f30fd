//! The log of `queue:work`, on standard error: what an operator has to know or act on.
//!
//! Job lines are the output; log lines look like them and have the same time,
//! so that both can be read together. `-v` adds the life of the PHP processes.

use jiff::Timestamp;
use jiff::tz::TimeZone;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::time::FormatTime;

use super::GlobalArgs;
use super::output::{self, Log};

/// Time of a job line or log line for people.
pub(super) fn time_for_people(now: Timestamp, timezone: &TimeZone) -> String {
    let local = now.to_zoned(timezone.clone());
    local.strftime("%Y-%m-%d %H:%M:%S").to_string()
}

/// The same for machines (`--json`).
pub(super) fn time_for_machines(now: Timestamp, timezone: &TimeZone) -> String {
    let local = now.to_zoned(timezone.clone());
    local.strftime("%Y-%m-%dT%H:%M:%S%.6f%:z").to_string()
}

/// The time in the app's zone, as in job lines.
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

/// What is logged where `ARTISAND_LOG` says nothing.
fn level(global: &GlobalArgs) -> &'static str {
    match (global.quiet, global.verbose) {
        (true, _) => "error,sqlx=off,sqlx_core=off",
        // What the pool of database connections meets, we say ourselves.
        (false, 0) => "warn,artisand=info,sqlx=off,sqlx_core=off",
        (false, 1) => "warn,artisand=info,artisand::handler::pool=debug,sqlx=off,sqlx_core=off",
        (false, 2) => "info,artisand=debug",
        (false, _) => "info,artisand=trace",
    }
}

/// Logs go to standard error; data goes to standard output.
///
/// On a thread of their own: a reader of them who stands still must keep no job from running.
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
    // A program that calls this as a library may have set up logging already.
    let _ = if is_json {
        subscriber.json().try_init()
    } else {
        let is_coloured =
            std::io::IsTerminal::is_terminal(&std::io::stderr()) && output::is_coloured(global);
        subscriber
            .with_ansi(is_coloured)
            // Module names help those who read the source.
            .with_target(global.verbose > 1)
            .try_init()
    };
    Ok(())
}
