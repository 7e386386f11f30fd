//! What is logged at the start of a worker.

use super::plan::Plan;
use crate::cli::gaps;
use crate::config::{self, Config};
use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::routing::Router;

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::cli::work";

/// Warns at the start of settings under which no job would run.
pub(super) fn warn_of_mappings(config: &Config, plan: &Plan) {
    if let Some(driver) = plan.nowhere {
        tracing::warn!(
            target: TARGET,
            "connection `{}` has the driver `{driver}`: its jobs wait nowhere, and this worker finds none; set QUEUE_CONNECTION, or name another connection",
            plan.connection
        );
        return;
    }
    if let Some(problem) = config::lack_for_php(config) {
        tracing::warn!(
            target: TARGET,
            "{problem}, so jobs that no mapping matches are left in their queue; `policy` under [unmapped] says otherwise"
        );
    }
    if plan.router.mappings().len() == 0 && !plan.is_for_php() {
        tracing::warn!(
            target: TARGET,
            "no mapping is configured: see [[map]] in artisand.toml; every job is unmapped"
        );
    }
    let of_queue = config.doubt_of_encoding(&plan.connection);
    let settings = config::connection_without_prefix(config, &plan.connection);
    let of_ledger = settings
        .ok()
        .and_then(|settings| settings.ledger.ok()?.doubt());
    let of_connection = of_queue.into_iter().chain(of_ledger);
    for doubt in config.doubts().into_iter().chain(of_connection) {
        tracing::warn!(target: TARGET, remedy = doubt.remedy, "{doubt}");
    }
}

/// Logs at the start what the worker cannot know or do.
pub(super) fn warn_of_gaps(
    config: &Config,
    router: &Router,
    services: &Services,
    failed_jobs: Option<&FailedJobs>,
) {
    for finding in gaps::check(config, router, services) {
        if let Some(remedy) = finding.remedy {
            tracing::warn!(target: TARGET, remedy, "{}", finding.found);
        }
    }
    if let Some(why) = config::cache_for_php_only(config).filter(|_| config.obeys_app()) {
        tracing::warn!(
            target: TARGET,
            why,
            remedy = gaps::CACHE_OF_PHP_REMEDY,
            "the app's default cache store is not read here: {}",
            gaps::CACHE_OF_PHP
        );
    }
    for class in config::classes_without_their_middleware(config, router) {
        tracing::warn!(
            target: TARGET,
            { job.class = class },
            "this class has middleware in PHP and its mapping has none: list it under `middleware`"
        );
    }
    warn_of_app(config);
    warn_of_failed_jobs(config, failed_jobs);
}

/// Warns of files that others can change, and of settings that may not be those of the app.
fn warn_of_app(config: &Config) {
    for exposure in config.exposures() {
        tracing::warn!(
            target: TARGET,
            found = exposure.found,
            remedy = exposure.remedy,
            "other users of this machine can change what artisand does"
        );
    }
    for reason in config.stale_manifest() {
        tracing::warn!(
            target: TARGET,
            reason,
            "the manifest may be out of date: write it again with `artisand manifest`"
        );
    }
    if let Some(why) = config.php_failure() {
        tracing::warn!(
            target: TARGET,
            why,
            "PHP did not say the app's settings: they are those of the manifest"
        );
    }
    if let Some(why) = config.ignored_env() {
        tracing::warn!(
            target: TARGET,
            why,
            "nothing is taken from the app's environment file"
        );
    }
    if config.manifest().is_none() {
        for note in &config.notes {
            tracing::warn!(
                target: TARGET,
                note,
                "something about the app was assumed; see `artisand doctor`"
            );
        }
    }
}

/// Warns if failed jobs go nowhere.
fn warn_of_failed_jobs(config: &Config, failed_jobs: Option<&FailedJobs>) {
    match failed_jobs {
        // PHP records them.
        None if config.known_laravel().is_ok() => {}
        None => tracing::warn!(
            target: TARGET,
            "no app is set, so failed jobs stay in the list artisand:failed-spool, \
             and restart, pause and maintenance are not noticed"
        ),
        Some(FailedJobs::Null) => {
            tracing::warn!(
                target: TARGET,
                "the app keeps no failed jobs (queue.failed.driver is null): they will be gone"
            );
        }
        Some(_) => {}
    }
}
