//! `config:check`

use std::process::ExitCode;

use super::doctor::doubts;
use super::report::Report;
use super::{GlobalArgs, output};
use crate::config::{self, Config, Error, QueuePlace};
use crate::routing::Registry;
use crate::shown::with_causes;

/// Exit codes of `doctor` and `config:check`.
pub(super) const EXIT_CODES: &str = "Exit codes: 0 no errors, 1 warnings (with --strict), 2 errors";

/// Arguments of `config:check`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct ConfigCheckArgs {
    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Reads `artisand.toml`, and the app's files and manifest if they exist; connects to nothing and starts nothing.
pub(super) fn run(
    args: &ConfigCheckArgs,
    global: &GlobalArgs,
    registry: &Registry,
) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    let (config, mistakes) = Config::check(
        global.config.as_deref(),
        global.app.as_deref(),
        global.variables(),
        registry,
    );
    for mistake in &mistakes {
        report.error("file", chain(mistake), "correct this line");
    }
    match config {
        Ok(config) => examine(&config, mistakes.is_empty(), &mut report),
        Err(error) => report.error(
            "settings",
            chain(&error),
            "correct this: nothing of the app was looked at",
        ),
    }
    report.finish(global, args.json, args.strict)
}

fn chain(error: &Error) -> String {
    with_causes(error)
}

fn examine(config: &Config, is_file_right: bool, report: &mut Report) {
    match config.path() {
        // What is wrong with it was said, and mappings with mistakes are not among its own.
        Some(_) if !is_file_right => {}
        Some(path) => report.ok(
            "file",
            format!("{}, mappings: {}", path.display(), config.file.map.len()),
        ),
        None => report.ok("file", "no artisand.toml"),
    }
    match config.laravel() {
        Some(laravel) => {
            let version = laravel.version.as_deref().unwrap_or("of unknown version");
            let base = laravel.base.display();
            report.ok("app", format!("Laravel {version} in {base}"));
            let last_word = if config.is_php_unasked() {
                "; where PHP runs, it is asked for them"
            } else {
                ""
            };
            report.ok("settings", format!("{}{last_word}", laravel.origin));
        }
        None => report.ok(
            "app",
            "none is known here; classes of mappings were not looked for",
        ),
    }
    if let Some((path, manifest)) = config.manifest() {
        let (path, classes) = (path.display(), manifest.classes.len());
        report.ok("manifest", format!("{path}: {classes} classes"));
        for reason in config.stale_manifest() {
            report.warn(
                "manifest",
                format!("{path} may be out of date: {reason}"),
                "write it again: `artisand manifest`",
            );
        }
    }
    report.extend(doubts::check(config));
    check_connection(config, report);
    if let Err(error) = config.timezone() {
        report.error("settings", chain(&error), "correct the time zone");
    }
}

/// Where queues are, after their name.
fn place(place: &QueuePlace) -> String {
    match place {
        QueuePlace::Redis { redis, .. } => format!(
            "at {}, prefix `{}`",
            redis.address,
            output::printable(&redis.prefix)
        ),
        QueuePlace::Database { database, queue } => format!(
            "in table `{}` at {}",
            output::printable(&queue.table),
            database.address()
        ),
        QueuePlace::Nowhere(driver) => format!("of the driver `{driver}`, where no job waits"),
        QueuePlace::Failover(names) => format!("of {}", names.join(", ")),
        QueuePlace::Sqs { queue } => format!("at {}", output::printable(&queue.prefix)),
        QueuePlace::Beanstalkd { queue } => format!("at {}:{}", queue.host, queue.port),
    }
}

/// Reports where the default connection leads.
fn check_connection(config: &Config, report: &mut Report) {
    let name = config.default_connection();
    match config::connection(config, &name) {
        Ok(connection) => match connection.check_tags([&connection.default_queue]) {
            Ok(()) => report.ok(
                "queue",
                format!(
                    "connection `{name}`, queue `{}` {}",
                    output::printable(connection.default_queue.as_str()),
                    place(&connection.place),
                ),
            ),
            Err(error) => report.error(
                "queue",
                chain(&error),
                "do that first: queue:work refuses this queue",
            ),
        },
        Err(error) if config.is_php_unasked() && error.is_unknown_setting() => report.ok(
            "queue",
            format!("connection `{name}`: PHP says where it is"),
        ),
        // The machine that checks need not have the variables of the one that works.
        Err(error @ Error::NoPrefix { .. }) => report.warn(
            "queue",
            chain(&error),
            "without it queue:work does not start",
        ),
        Err(error) => report.error(
            "queue",
            chain(&error),
            "correct the settings of the connection",
        ),
    }
}
