//! The app: its Laravel, its settings and where they come from, its files, its PHP.

use super::context::Context;
use super::manifest;
use crate::cli::report::Report;
use crate::config::{Config, Laravel, Origin, php};
use crate::shown::with_causes;

pub(super) fn check(context: &Context<'_>) -> Report {
    let config = context.config;
    let mut report = Report::default();
    let Some(laravel) = config.laravel() else {
        report.warn(
            "app",
            "no app is known: neither its settings nor its failed-job store, cache and signals are known",
            "run this in its directory, or give that with --app, ARTISAND_APP or `app` in artisand.toml",
        );
        return report;
    };
    let base = laravel.base.display();
    match &laravel.version {
        Some(version) => report.ok("app", format!("Laravel {version} in {base}")),
        None => report.warn(
            "app",
            format!("{base}: the version of Laravel is not known, the newest is assumed"),
            "set `laravel = \"11.0\"` (its version) in artisand.toml",
        ),
    }
    report.extend(settings(config, laravel));
    match config.manifest() {
        Some((path, manifest)) => report.extend(manifest::check(config, laravel, path, manifest)),
        None => report.ok(
            "manifest",
            "none; of the app's classes only their files are known",
        ),
    }
    for exposure in config
        .exposures()
        .into_iter()
        .chain(config.readable_secrets())
        .chain(config.unwritable_log())
    {
        report.warn("files", exposure.found, exposure.remedy);
    }
    report.extend(check_php(context.php));
    match (laravel.timezone(), laravel.environment()) {
        (Err(error), _) | (_, Err(error)) => {
            report.error(
                "settings",
                with_causes(&error),
                "correct the app's configuration",
            );
        }
        (Ok(_), Ok(_)) => {}
    }
    report
}

fn check_php(command: &[String]) -> Report {
    let mut report = Report::default();
    let shown = command.join(" ");
    match php::version(command) {
        Some(version) => report.ok("php", format!("`{shown}` is PHP {version}")),
        None => report.warn(
            "php",
            format!("`{shown}` cannot be run"),
            "name the app's PHP with `binary` under [php]",
        ),
    }
    report
}

/// What to do where PHP should have said the settings.
const OTHERWISE_MANIFEST: &str = "correct this: the settings are those of the manifest until PHP says them; or set `settings = \"manifest\"` in artisand.toml";

/// Where the app's settings come from.
fn settings(config: &Config, laravel: &Laravel) -> Report {
    let mut report = Report::default();
    let is_cached = matches!(&laravel.origin, Origin::Php { cached: Some(_) });
    if is_cached && laravel.base.join(".env").is_file() {
        report.ok(
            "settings",
            format!(
                "{}; as in Laravel, .env counts for nothing then",
                laravel.origin
            ),
        );
    } else {
        report.ok("settings", laravel.origin.to_string());
    }
    if let Some(why) = config.php_failure() {
        report.warn("settings", why, OTHERWISE_MANIFEST);
    }
    if let Some(why) = config.ignored_env() {
        report.warn(
            "settings",
            format!("nothing is taken from the app's environment file: {why}"),
            "correct it, or let the user of artisand read it, if it says something that artisand needs",
        );
    }
    for note in &config.notes {
        report.warn(
            "settings",
            note.clone(),
            "write a manifest with `artisand manifest`, or check that this does not matter",
        );
    }
    report
}
