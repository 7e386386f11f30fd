//! The app's Horizon, and what artisand writes for it.

use super::context::Context;
use crate::cli::report::Report;
use crate::config::{self, Config};
use crate::connection::Redis;
use crate::horizon::{HorizonOptions, Registration};
use crate::routing::{Router, UnmappedPolicy};
use crate::shown::with_causes;

pub(super) async fn check(context: &Context<'_>) -> Report {
    let config: &Config = context.config;
    let mut report = Report::default();
    let options = match config::horizon_settings(config, &context.connection) {
        Ok(Some(options)) => options,
        Ok(None) => {
            let has_horizon = config.laravel().is_some_and(config::Laravel::has_horizon);
            if has_horizon {
                report.ok(
                    "horizon",
                    "`enabled = false`: its dashboard does not show the jobs that artisand takes",
                );
            }
            return report;
        }
        Err(error) => {
            let (shown, off) = (
                with_causes(&error),
                "or set `enabled = false` under [horizon]",
            );
            if config.file.horizon.enabled == Some(true) {
                let remedy = format!("correct this, {off}: queue:work does not start with it");
                report.error("horizon", shown, &remedy);
            } else {
                let remedy = format!(
                    "correct this, {off}: its dashboard does not show the jobs that artisand takes"
                );
                report.warn("horizon", shown, &remedy);
            }
            return report;
        }
    };
    if options
        .name_of(&context.connection.as_str().into())
        .is_none()
    {
        let text = format!(
            "jobs of `{}` have no records, as it is not on Redis; those that are pushed onto Redis have",
            context.connection
        );
        report.ok("horizon", text);
        return report;
    }
    let place = format!("`{}` on {}", options.redis.prefix, options.redis.address);
    match has_run(&options).await {
        Ok(true) => {
            let shown = match config.file.horizon.register {
                Registration::Full => "this worker is a master and a supervisor there",
                Registration::Supervisor => "this worker is a supervisor there",
                Registration::Off => "this worker is not listed there",
            };
            let waits = if looks_for_waits(context) {
                ""
            } else {
                "; it looks for long waits only while a supervisor of its own runs, or a worker of artisand with a pool of PHP processes"
            };
            report.ok("horizon", format!("records of jobs go to {place}; {shown}{waits}"));
        }
        Ok(false) => report.warn(
            "horizon",
            format!("records of jobs go to {place}, where no key of Horizon is"),
            "check `horizon.use` and `horizon.prefix`; if the app has not used Horizon yet, this is right",
        ),
        Err(error) => report.warn(
            "horizon",
            format!("{place}: {}", with_causes(&error)),
            "check that it runs: jobs run without their records meanwhile",
        ),
    }
    report
}

/// Whether a worker lets PHP look for queues whose jobs wait too long.
fn looks_for_waits(context: &Context<'_>) -> bool {
    let runs_php = |router: &Router| *router.unmapped() == UnmappedPolicy::Php;
    context.router().is_some_and(runs_php)
        && context.config.file.horizon.register != Registration::Off
}

/// Whether Horizon has written keys under its prefix.
async fn has_run(options: &HorizonOptions) -> Result<bool, crate::connection::Error> {
    let redis = Redis::new(&options.redis)?;
    let mut exists = redis::cmd("EXISTS");
    for name in ["masters", "supervisors", "recent_jobs"] {
        exists.arg(format!("{}{name}", options.redis.prefix));
    }
    Ok(redis.command::<u64>(&exists).await? > 0)
}
