//! What becomes of jobs that no mapping matches, and whether PHP is here to run them.

use std::path::PathBuf;

use super::laravel::Laravel;
use super::place::place;
use super::{Config, Error, php};
use crate::routing::UnmappedPolicy;

/// What becomes of jobs that no mapping matches: as it is written, or else `php` where the app is and PHP runs,
/// and `leave` elsewhere.
///
/// # Errors
///
/// A policy that cannot be carried out, with file and line.
pub(crate) fn unmapped(config: &Config) -> Result<UnmappedPolicy, Error> {
    let error = |problem: String| policy_error(config, problem);
    match config.file.unmapped.to_policy().map_err(error)? {
        Some(UnmappedPolicy::Php) if app_for_php(config).is_none() => Err(error(
            "policy `php` needs the Laravel app: give its directory with --app, ARTISAND_APP or `app` in artisand.toml".to_owned(),
        )),
        Some(UnmappedPolicy::Php) if is_too_old_for_php(config) => Err(error(format!(
            "policy `php` needs Laravel 8 or later, and the app is {}: take `leave`, `forward` or `fail`",
            config.known_version()
        ))),
        Some(policy) => Ok(policy),
        None if can_run_php(config) => Ok(UnmappedPolicy::Php),
        None => Ok(UnmappedPolicy::Leave),
    }
}

pub(super) fn policy_error(config: &Config, problem: String) -> Error {
    Error::Policy {
        place: place(&config.path, config.file.unmapped.offset()),
        problem,
    }
}

/// The policy where none is written, if PHP runs.
pub(super) fn by_default_with_php(config: &Config) -> UnmappedPolicy {
    if can_serve_php(config) {
        UnmappedPolicy::Php
    } else {
        UnmappedPolicy::Leave
    }
}

/// Whether the app is known and not too old for PHP processes of artisand.
pub(super) fn can_serve_php(config: &Config) -> bool {
    app_for_php(config).is_some() && !is_too_old_for_php(config)
}

/// The app's directory as PHP sees it.
pub(super) fn app_for_php(config: &Config) -> Option<PathBuf> {
    let known = || config.laravel.as_ref().map(|laravel| laravel.base.clone());
    config.file.php.app.clone().or_else(known)
}

/// Whether the app is here, not too old, and PHP runs.
fn can_run_php(config: &Config) -> bool {
    let is_here = config.file.php.app.is_some() || has_app_for_php(config);
    is_here && !is_too_old_for_php(config) && has_php(config)
}

fn has_app_for_php(config: &Config) -> bool {
    let app = app_for_php(config);
    app.is_some_and(|base| base.join("bootstrap/app.php").is_file())
}

/// Whether PHP runs; a program that is named counts as running, so that its failure is an error.
fn has_php(config: &Config) -> bool {
    let has_answered = config.laravel.as_ref().is_some_and(Laravel::is_of_php);
    has_answered || config.names_php() || php::version(&[]).is_some()
}

/// Laravel's worker before 8 ends its process instead of returning.
fn is_too_old_for_php(config: &Config) -> bool {
    !config.known_version().is_at_least(8, 0)
}

/// What alone keeps PHP processes from running what is not mapped, and what would help.
#[cfg(feature = "cli")]
pub(crate) fn lack_for_php(config: &Config) -> Option<String> {
    let is_open = matches!(config.file.unmapped.to_policy(), Ok(None));
    if !is_open || !has_app_for_php(config) {
        return None;
    }
    if is_too_old_for_php(config) {
        let version = config.known_version();
        return Some(format!(
            "PHP processes are for Laravel 8 and later, and the app is {version}"
        ));
    }
    let problem = "`php` does not run here (name the app's PHP with `binary` under [php])";
    (!has_php(config)).then(|| problem.to_owned())
}
