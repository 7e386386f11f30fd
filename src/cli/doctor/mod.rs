//! `doctor`: looks for everything that could go wrong, a file per subject.

use std::process::ExitCode;

use super::program::Program;
use super::report::Report;
use super::{GlobalArgs, output};
use crate::config::Config;
use crate::routing::Registry;
use crate::shown::with_causes;

mod app;
mod batches;
mod cache;
mod context;
mod database;
pub(super) mod dispatched;
pub(super) mod doubts;
mod encryption;
mod failed;
mod fit;
mod horizon;
mod jobs;
mod maintenance;
mod manifest;
mod mappings;
mod middleware;
mod outbox;
mod pauses;
mod pool;
mod prefix;
mod program;
mod pulse;
mod queues;
mod redis;
mod retry_after;
mod sentinel;
#[cfg(feature = "http")]
mod servers;
mod taker;
#[cfg(feature = "http")]
mod traces;
mod waiting;
mod workers;

use context::Context;

/// Arguments of `doctor`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// Queue connection to look at [default: the app's default connection]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// The app's PHP [default: `ARTISAND_PHP`, else `binary` under [php], else php]
    #[arg(long, value_name = "PROGRAM")]
    php: Option<String>,

    /// Waiting jobs of each queue that are looked at
    #[arg(long, value_name = "N", default_value_t = 500)]
    sample: usize,
}

pub(super) async fn run(
    args: DoctorArgs,
    global: &GlobalArgs,
    registry: &Registry,
    program: &Program,
) -> anyhow::Result<ExitCode> {
    let mut report = program::check(program, registry);
    match global.read_config() {
        Ok(mut config) => {
            config.ask_about_classes();
            let DoctorArgs {
                connection,
                php,
                sample,
                ..
            } = &args;
            let php = php.as_ref().map(|php| vec![php.clone()]);
            let php = php.unwrap_or_else(|| config.php_program());
            let context = Context::new(&config, &php, connection.as_deref(), *sample, registry);
            report.extend(examine(&context, registry).await);
        }
        Err(error) => report.error(
            "settings",
            output::with_causes(&error),
            "correct this first: nothing else can be looked at",
        ),
    }
    report.finish(global, args.json, args.strict)
}

/// Makes all checks that need settings.
async fn examine(context: &Context<'_>, registry: &Registry) -> Report {
    let config: &Config = context.config;
    let mut report = app::check(context);
    report.extend(doubts::check(config));
    match &context.router {
        Ok(router) => {
            report.extend(mappings::check(router));
            #[cfg(feature = "http")]
            report.extend(servers::check(config, router).await);
            report.extend(middleware::check(config, router));
            report.extend(middleware::check_gaps(config, router));
            report.extend(pool::check(context, router).await);
        }
        Err(error) => report.error(
            "mappings",
            with_causes(error),
            mappings::remedy_of_mappings(error, registry),
        ),
    }
    report.extend(dispatched::check(context, registry));
    report.extend(encryption::check(&context.key, config));
    let (queues, has_batches) = queues::check(context).await;
    report.extend(queues);
    if let Some(laravel) = config.laravel() {
        report.extend(cache::check(config, laravel).await);
        report.extend(horizon::check(context).await);
        report.extend(pulse::check(config).await);
    }
    #[cfg(feature = "http")]
    report.extend(traces::check(config, &context.connection).await);
    report.extend(failed::check(config).await);
    if config.laravel().is_some() {
        report.extend(batches::check(config, context.router(), has_batches).await);
    }
    report
}
