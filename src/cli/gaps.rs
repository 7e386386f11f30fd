//! What is missing for the follow-ups of a job: facts about the classes that run here, a queue that PHP serves,
//! the key.
//!
//! `doctor` reports the gaps, and `queue:work` logs them at the start.

use crate::config::{Config, Laravel};
use crate::handler::Services;
use crate::horizon::Registration;
use crate::payload::{Kind, Version};
use crate::php::ClassName;
use crate::routing::{HandlerChoice, Mapping, Mode, Router, UnmappedPolicy};

/// What does not work if only PHP can read the app's default cache store.
pub(super) const CACHE_OF_PHP: &str = "queue:restart, queue:pause and canary:resume do not reach this worker (its PHP processes follow restarts); jobs that are unique, have maxExceptions, or carry middleware with locks or limits count as unmapped where that store keeps them";
/// The remedy for [`CACHE_OF_PHP`].
pub(super) const CACHE_OF_PHP_REMEDY: &str = "restart artisand through its process manager when code changes, or make redis, database or file the default store";

/// The result for one subject.
#[derive(Debug)]
pub(super) struct Finding {
    pub(super) check: &'static str,
    pub(super) found: String,
    /// What to do; `None` if all is well.
    pub(super) remedy: Option<&'static str>,
}

fn well(check: &'static str, found: impl Into<String>) -> Finding {
    Finding {
        check,
        found: found.into(),
        remedy: None,
    }
}

fn gap(check: &'static str, found: impl Into<String>, remedy: &'static str) -> Finding {
    Finding {
        check,
        found: found.into(),
        remedy: Some(remedy),
    }
}

/// Checks everything; if no job runs here, only what concerns every worker.
pub(super) fn check(config: &Config, router: &Router, services: &Services) -> Vec<Finding> {
    let runs_something = router
        .mappings()
        .any(|mapping| !matches!(mapping.handler, HandlerChoice::Forward(_)));
    if !runs_something {
        return code(config, false);
    }
    let mut findings = code(config, true);
    unique(config, router, services, &mut findings);
    findings.push(php_queue(router, services));
    findings.extend(batch_key(config, router, services));
    findings.extend(failures(config, router, services));
    findings
}

/// What the app sets in code for its PHP workers, and artisand does not obey.
fn code(config: &Config, runs_something: bool) -> Vec<Finding> {
    const CHECK: &str = "code";
    let Some((_, manifest)) = config.manifest() else {
        return Vec::new();
    };
    let mut findings = Vec::new();
    let code = &manifest.code;
    if !code.pop_using.is_empty() {
        let workers = code.pop_using.join(", ");
        findings.push(gap(
            CHECK,
            format!("`Worker::popUsing` chooses the jobs of workers named {workers} in PHP; artisand pops the queues of `--queue` in their order"),
            "give --queue the order that is meant",
        ));
    }
    if !code.exit_codes.is_empty() {
        let changed = code.exit_codes.join(", ");
        findings.push(gap(
            CHECK,
            format!("the app changes exit codes of its workers ({changed}); artisand ends with Laravel's own"),
            "let the process manager expect 12 for the memory limit and 137 for a timeout",
        ));
    }
    if !code.unpolled.is_empty() {
        let unpolled = code.unpolled.join(", ");
        findings.push(well(
            CHECK,
            format!(
                "the app's workers do not ask for these signals (`Queue::withoutInterruptionPolling`), nor does artisand: {unpolled}"
            ),
        ));
    }
    // What the callback says on the host that wrote the manifest may be the name of that host: commands there would
    // then signal the process that has this worker's number.
    if code.names_masters && is_master(config) {
        findings.push(gap(
            CHECK,
            "`MasterSupervisor::determineNameUsing` names Horizon's masters in PHP, and artisand's are named after the host: `horizon:pause`, `horizon:continue` and `horizon:terminate` do not find them",
            "use `queue:pause`, `queue:continue` and `queue:restart`, or the process manager",
        ));
    }
    if !runs_something {
        return findings;
    }
    if !code.pipes.is_empty() {
        let pipes = code.pipes.join(", ");
        findings.push(gap(
            CHECK,
            format!(
                "jobs in PHP go through {pipes} (`Bus::pipeThrough`), those that run here do not"
            ),
            "do the same in the handler or its middleware, or leave jobs that need it to PHP",
        ));
    }
    let models = manifest.models.iter();
    let own: Vec<&str> = models
        .filter(|(_, model)| model.restored_by_code)
        .map(|(class, _)| class.as_str())
        .collect();
    if !own.is_empty() {
        findings.push(gap(
            CHECK,
            format!("the app loads {} by `newQueryForRestoration()`: handlers here cannot load them, and have their ids", own.join(", ")),
            "leave jobs whose handlers would load them to PHP",
        ));
    }
    findings
}

/// Whether workers are masters in the app's Horizon.
fn is_master(config: &Config) -> bool {
    let horizon = &config.file.horizon;
    let is_there = config.laravel().is_some_and(Laravel::has_horizon);
    is_there && horizon.enabled != Some(false) && horizon.register == Registration::Full
}

/// Classes that run here and whose jobs can be in batches.
pub(super) fn batchable<'a>(config: &'a Config, router: &Router) -> Vec<&'a str> {
    let classes = config
        .manifest()
        .into_iter()
        .flat_map(|(_, manifest)| manifest.targets());
    let batchable = classes.filter(|(name, class)| class.is_batchable() && router.runs(name));
    batchable.map(|(name, _)| name).collect()
}

/// The first few names, and how many more there are.
pub(super) fn some_of(names: &[&str]) -> String {
    const MOST: usize = 5;
    match names.len().checked_sub(MOST) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..MOST].join(", ")),
    }
}

fn unique(config: &Config, router: &Router, services: &Services, findings: &mut Vec<Finding>) {
    const CHECK: &str = "unique";
    let version = services.version;
    if !version.is_at_least(8, 14) {
        return;
    }
    let may_be_unique = |mapping: &Mapping| {
        let is_forwarded = matches!(mapping.handler, HandlerChoice::Forward(_));
        let runs_here = !is_forwarded && mapping.mode == Mode::Run;
        mapping.target.kind() == Kind::Job && runs_here && !mapping.is_never_unique
    };
    if !router.mappings().any(may_be_unique) {
        return;
    }
    if version == Version::NEWEST {
        findings.push(gap(
            CHECK,
            "the version of Laravel is unknown, and not all jobs of versions before 13.24 say that they are unique: those in the form of Laravel 8.0 to 12.10 are not taken",
            "set `laravel = \"13.31\"` (the app's version) in artisand.toml",
        ));
        return;
    }
    let Some(manifest) = config.classes() else {
        // Before, each mapping is doubted.
        if !version.hides_locks() {
            findings.push(gap(
                CHECK,
                "unique jobs are not taken: only their classes say when their locks are freed, and nothing is known of these",
                "write a manifest (`artisand manifest`), or let PHP tell it (`settings = \"php\"`)",
            ));
        }
        return;
    };
    if version.is_at_least(11, 39) {
        if config.unknown_classes().next().is_none() {
            findings.push(well(
                CHECK,
                "what jobs and their classes say of locks is known",
            ));
        } else if !version.hides_locks() {
            findings.push(gap(
                CHECK,
                "unique jobs of some mapped classes are not taken: only their classes say when their locks are freed, and nothing is known of these",
                "write the manifest again (`artisand manifest`), or let PHP tell it (`settings = \"php\"`)",
            ));
        }
        return;
    }
    let before = findings.len();
    let mut told = 0;
    let targets = manifest.targets().map(|(name, _)| name);
    for name in targets.filter(|name| router.runs(name)) {
        let class = ClassName::new(name);
        match class.map(|class| manifest.can_tell_lock(&class)) {
            Some(Ok(true)) => told += 1,
            Some(Err(missing)) => findings.push(gap(
                CHECK,
                format!("jobs whose lock is unknown are not taken: {missing}"),
                "let PHP run the class (they count as unmapped until then), or update Laravel: since 11.39 jobs say which lock they hold",
            )),
            Some(Ok(false)) | None => {}
        }
    }
    if findings.len() == before {
        let found = format!("unique classes that run here, and whose locks are known: {told}");
        findings.push(well(CHECK, found));
    }
}

fn php_queue(router: &Router, services: &Services) -> Finding {
    const CHECK: &str = "php queue";
    match (&services.php_queue, router.unmapped()) {
        (Some(queue), _) | (None, UnmappedPolicy::Forward(queue)) => well(
            CHECK,
            format!("what only PHP can do for jobs goes to `{queue}`"),
        ),
        (None, UnmappedPolicy::Leave | UnmappedPolicy::Php) => well(
            CHECK,
            "what only PHP can do for a job goes to the queue that it came from",
        ),
        (None, UnmappedPolicy::Fail) => gap(
            CHECK,
            "no queue is known that PHP serves: jobs in batches are not taken, nor those of chains with catch callbacks or with steps that need PHP",
            "set `queue` under [php] in artisand.toml",
        ),
    }
}

fn batch_key(config: &Config, router: &Router, services: &Services) -> Option<Finding> {
    let batchable = batchable(config, router);
    if batchable.is_empty() || services.encrypter.is_some() {
        return None;
    }
    let why = services.encrypter_missing.as_deref();
    Some(gap(
        "batches",
        format!(
            "PHP takes only closures that are signed with the app's key ({}), so jobs in batches are not taken; of {}",
            why.unwrap_or("it is not known"),
            some_of(&batchable)
        ),
        "set APP_KEY in the environment or in the app's .env",
    ))
}

/// Whether PHP can be told of jobs that fail here.
fn failures(config: &Config, router: &Router, services: &Services) -> Option<Finding> {
    const CHECK: &str = "failures";
    let classes = config
        .manifest()
        .into_iter()
        .flat_map(|(_, manifest)| manifest.targets());
    let told = classes.filter(|(name, class)| {
        class.has_failed() && router.runs(name) && router.calls_failed(name)
    });
    let told: Vec<&str> = told.map(|(name, _)| name).collect();
    if told.is_empty() || services.encrypter.is_some() {
        return None;
    }
    let why = services.encrypter_missing.as_deref();
    Some(gap(
        CHECK,
        format!(
            "PHP takes only closures that are signed with the app's key ({}), so `failed()` of {} is not called",
            why.unwrap_or("it is not known"),
            some_of(&told)
        ),
        "set APP_KEY in the environment or in the app's .env, or `failed = \"rust\"` in the mapping",
    ))
}
