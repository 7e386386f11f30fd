//! `doctor`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::num::NonZeroUsize;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::fit::Fit;
use super::prefixes::{Found, queues_by_prefix};
use super::{GlobalArgs, Program, gaps, open, output};
use crate::app::Manifest;
use crate::cache::{Cache, Watched, keys};
use crate::config::{Config, Laravel, Origin, SettingError, php};
use crate::connection::Redis;
use crate::failed::FailedJobs;
use crate::handler::pool::{Pool, PoolOptions};
use crate::handler::{
    HandlerChoice, MappingError, Mode, Pattern, Registry, Route, Router, UnmappedPolicy,
};
use crate::payload::{Command, Encrypter, KeyError, Kind, Payload, Target};
use crate::php::Value;
use crate::queue::{Ledger as _, Place, Queue as _, QueueName, RedisQueue, Spool};
use crate::shown::with_causes;
use crate::time::{Clock, UnixSeconds};
use crate::worker::{Preview, WorkerOptions, is_closure};

/// Arguments of `doctor`, as given.
#[derive(Debug, clap::Args)]
pub(super) struct DoctorArgs {
    /// Queue connection to look at [default: `QUEUE_CONNECTION`, else redis]
    #[arg(value_name = "CONNECTION")]
    connection: Option<String>,

    /// Exit with 1 if there are warnings
    #[arg(long)]
    strict: bool,

    /// Print one JSON object
    #[arg(long)]
    json: bool,

    /// The app's PHP
    #[arg(long, value_name = "PROGRAM", env = "ARTISAND_PHP", default_value = php::PHP)]
    php: String,

    /// Waiting jobs of each queue that are looked at
    #[arg(long, value_name = "N", default_value_t = 500)]
    sample: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, serde::Serialize)]
#[serde(rename_all = "lowercase")]
enum Level {
    Ok,
    Warning,
    Error,
}

/// One line of the report.
#[derive(Debug, serde::Serialize)]
struct Finding {
    level: Level,
    check: &'static str,
    found: String,
    /// What to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

#[derive(Debug, Default)]
pub(super) struct Report(Vec<Finding>);

impl Report {
    pub(super) fn ok(&mut self, check: &'static str, found: impl Into<String>) {
        self.add(Level::Ok, check, found.into(), None);
    }

    pub(super) fn warn(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Warning, check, found.into(), Some(remedy.into()));
    }

    pub(super) fn error(
        &mut self,
        check: &'static str,
        found: impl Into<String>,
        remedy: impl Into<String>,
    ) {
        self.add(Level::Error, check, found.into(), Some(remedy.into()));
    }

    fn add(&mut self, level: Level, check: &'static str, found: String, remedy: Option<String>) {
        self.0.push(Finding {
            level,
            check,
            found,
            remedy,
        });
    }

    fn count(&self, level: Level) -> usize {
        self.0
            .iter()
            .filter(|finding| finding.level == level)
            .count()
    }

    /// Prints the report; the exit code shows the worst finding.
    pub(super) fn finish(
        self,
        global: &GlobalArgs,
        is_json: bool,
        is_strict: bool,
    ) -> anyhow::Result<ExitCode> {
        let (errors, warnings) = (self.count(Level::Error), self.count(Level::Warning));
        let text = if is_json {
            let json =
                serde_json::json!({"findings": self.0, "errors": errors, "warnings": warnings});
            format!("{json}\n")
        } else {
            self.text(output::is_coloured(global))
        };
        output::data(&text)?;
        Ok(ExitCode::from(match (errors, warnings) {
            (1.., _) => 2,
            (0, 1..) if is_strict => 1,
            _ => 0,
        }))
    }

    fn text(&self, is_coloured: bool) -> String {
        let mut text = String::from("\n");
        for finding in &self.0 {
            let (word, colour) = match finding.level {
                Level::Ok => ("OK   ", "32;1"),
                Level::Warning => ("WARN ", "33;1"),
                Level::Error => ("ERROR", "31;1"),
            };
            let word = if is_coloured {
                format!("\x1b[{colour}m{word}\x1b[0m")
            } else {
                word.to_owned()
            };
            let found = output::printable(&finding.found).into_owned();
            let _ = writeln!(text, "  {word}  {:<12}  {found}", finding.check);
            if let Some(remedy) = &finding.remedy {
                let _ = writeln!(text, "  {:21}-> {}", "", output::printable(remedy));
            }
        }
        let plural = |count: usize, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let errors = plural(self.count(Level::Error), "error");
        let warnings = plural(self.count(Level::Warning), "warning");
        text + &format!("\n  {errors}, {warnings}\n\n")
    }
}

fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    with_causes(error)
}

pub(super) async fn run(
    args: DoctorArgs,
    global: &GlobalArgs,
    registry: &Registry,
    program: &Program,
) -> anyhow::Result<ExitCode> {
    let mut report = Report::default();
    look_at_program(program, registry, &mut report);
    match global.read_config() {
        Ok(config) => examine(&args, &config, registry, &mut report).await,
        Err(error) => report.error(
            "settings",
            output::with_causes(&error),
            "correct this first: nothing else can be looked at",
        ),
    }
    report.finish(global, args.json, args.strict)
}

async fn examine(args: &DoctorArgs, config: &Config, registry: &Registry, report: &mut Report) {
    look_at_app(args, config, report);
    look_at_doubts(config, report);
    let router = match config.router(registry) {
        Ok(router) => {
            look_at_mappings(&router, report);
            #[cfg(feature = "http")]
            look_at_servers(config, &router, report).await;
            look_at_middleware(config, &router, report);
            look_at_gaps(config, &router, report);
            look_at_pool(config, &router, args, report).await;
            Some(Arc::new(router))
        }
        Err(error) => {
            report.error(
                "mappings",
                chain(&error),
                remedy_of_mappings(&error, registry),
            );
            None
        }
    };
    let name = args
        .connection
        .clone()
        .unwrap_or_else(|| config.default_connection());
    let key = config.encrypter().map_err(|error| Locked::of(&error));
    look_at_key(&key, config, report);
    let look = Look {
        args,
        router: router.as_deref(),
        preview: router.as_ref().and_then(|router| {
            let connection = config.connection(&name).ok()?.queue.connection;
            let services = Arc::new(config.services().ok()?);
            Some(Preview::new(Arc::clone(router), services, connection))
        }),
        key,
    };
    let has_batches = look_at_queues(&look, config, &name, report).await;
    if let Some(laravel) = config.laravel() {
        look_at_cache(config, laravel, report).await;
    }
    look_at_failed_jobs(config, report).await;
    if config.laravel().is_some() {
        look_at_batches(config, look.router, has_batches, report).await;
    }
}

/// Reports which program this is: a custom worker has handlers that the stock program lacks.
fn look_at_program(program: &Program, registry: &Registry, report: &mut Report) {
    let (name, version) = (&program.name, &program.version);
    let built_in = Registry::new();
    let built_in = built_in.names();
    let mut own = registry.names();
    own.retain(|name| !built_in.contains(name));
    let handlers = if own.is_empty() {
        "no handlers of its own".to_owned()
    } else {
        format!("with the handlers {}", own.join(", "))
    };
    report.ok("program", format!("{name} {version}, {handlers}"));
}

/// The remedy for mappings that cannot be used.
fn remedy_of_mappings(error: &crate::config::Error, registry: &Registry) -> &'static str {
    let is_unknown = matches!(
        error,
        crate::config::Error::Mapping {
            source: MappingError::UnknownHandler { .. },
            ..
        }
    );
    if is_unknown && registry.names() == Registry::new().names() {
        "run your worker's own doctor: this program has no handlers in Rust, `my-worker doctor` has"
    } else {
        "correct this line: queue:work does not start with it"
    }
}

fn look_at_app(args: &DoctorArgs, config: &Config, report: &mut Report) {
    let Some(laravel) = config.laravel() else {
        report.warn(
            "app",
            "no app is known: neither its settings nor its failed-job store, cache and signals are known",
            "run this in its directory, or give that with --app, ARTISAND_APP or `app` in artisand.toml",
        );
        return;
    };
    let base = laravel.base.display();
    match &laravel.version {
        Some(version) => report.ok("app", format!("Laravel {version} in {base}")),
        None => report.warn(
            "app",
            format!("{base}: the version of Laravel is not known, the newest is assumed"),
            "set `laravel = \"11.0\"` (its version) in artisand.toml, or write a manifest",
        ),
    }
    look_at_settings(config, laravel, report);
    match config.manifest() {
        Some((path, manifest)) => look_at_manifest(config, laravel, path, manifest, report),
        None => report.ok(
            "manifest",
            "none; of the app's classes only their files are known",
        ),
    }
    for exposure in config
        .exposures()
        .into_iter()
        .chain(config.readable_secrets())
    {
        report.warn("files", exposure.found, exposure.remedy);
    }
    match php::version(&args.php) {
        Some(version) => report.ok("php", format!("`{}` is PHP {version}", args.php)),
        None => report.warn(
            "php",
            format!("`{}` cannot be run", args.php),
            "name the app's PHP with --php; without it there is no `artisand manifest`",
        ),
    }
    match (laravel.timezone(), laravel.environment()) {
        (Err(error), _) | (_, Err(error)) => {
            report.error("settings", chain(&error), "correct the app's configuration");
        }
        (Ok(_), Ok(_)) => {}
    }
}

/// What to do where PHP should have said the settings.
const OTHERWISE_MANIFEST: &str = "correct this: the settings are those of the manifest until PHP says them; or set `settings = \"manifest\"` in artisand.toml";

/// Where the app's settings come from.
fn look_at_settings(config: &Config, laravel: &Laravel, report: &mut Report) {
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
    for note in &config.notes {
        report.warn(
            "settings",
            note.clone(),
            "write a manifest with `artisand manifest`, or check that this does not matter",
        );
    }
}

/// Reports whether the manifest matches the app as it is now.
fn look_at_manifest(
    config: &Config,
    laravel: &Laravel,
    path: &Path,
    manifest: &Manifest,
    report: &mut Report,
) {
    let reasons = config.stale_manifest();
    for reason in &reasons {
        report.warn(
            "manifest",
            format!("{} may be out of date: {reason}", path.display()),
            "write it anew: `artisand manifest`",
        );
    }
    let taken = config.settings_of_variables().iter();
    let taken: Vec<String> = taken
        .map(|(setting, variable)| format!("{setting} ({variable})"))
        .collect();
    if !taken.is_empty() {
        report.ok(
            "manifest",
            format!("the environment says otherwise: {}", taken.join(", ")),
        );
    }
    if !manifest.complete {
        report.warn(
            "manifest",
            "PHP ended before it had seen all classes",
            "see its notes, and write it anew",
        );
    }
    if reasons.is_empty() {
        let queued = manifest
            .classes
            .values()
            .filter(|class| class.is_queued())
            .count();
        let state = if laravel.base.is_dir() {
            "is fresh"
        } else {
            "cannot be compared with the app, which is not here"
        };
        report.ok(
            "manifest",
            format!("{} {state}; {queued} queued classes", path.display()),
        );
    }
}

/// Reports names in the configuration that do not exist or mean something else.
pub(super) fn look_at_doubts(config: &Config, report: &mut Report) {
    for doubt in config.doubts() {
        let check = doubt.place.as_ref().map_or("app", |_| "mappings");
        if doubt.is_certain {
            report.error(check, doubt.to_string(), doubt.remedy);
        } else {
            report.warn(check, doubt.to_string(), doubt.remedy);
        }
    }
}

/// Reports whether the servers that jobs are posted to accept connections; behind a proxy this cannot be checked.
#[cfg(feature = "http")]
async fn look_at_servers(config: &Config, router: &Router, report: &mut Report) {
    let proxies = ["http_proxy", "https_proxy", "all_proxy"];
    let is_set = |name: &str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    if proxies
        .iter()
        .any(|name| is_set(name) || is_set(&name.to_uppercase()))
    {
        return;
    }
    for (position, mapping) in router.mappings().enumerate() {
        if let HandlerChoice::Http(options) = &mapping.handler
            && let Err(error) = options.try_connect().await
        {
            let problem = format!("`{}` does not answer: {error}", options.shown_url());
            report.error(
                "mappings",
                at_mapping(config, position, &problem),
                "start the server, or correct `http`: each of its jobs is an exception until then",
            );
        }
    }
}

/// A problem with the file and line of its mapping in front.
fn at_mapping(config: &Config, position: usize, problem: &str) -> String {
    match config.place_of_mapping(position) {
        Some(place) => format!("{place}: {problem}"),
        None => problem.to_owned(),
    }
}

/// Reports whether a PHP process of the pool boots the app.
async fn look_at_pool(config: &Config, router: &Router, args: &DoctorArgs, report: &mut Report) {
    if *router.unmapped() != UnmappedPolicy::Php {
        return;
    }
    let name = args.connection.clone();
    let worker = WorkerOptions {
        connection: name
            .unwrap_or_else(|| config.default_connection())
            .as_str()
            .into(),
        ..WorkerOptions::default()
    };
    let options = config.pool(&worker, None);
    let processes = options.processes;
    let one = PoolOptions {
        processes: NonZeroUsize::MIN,
        ..options
    };
    let began = std::time::Instant::now();
    match Pool::start(one).await {
        Ok(pool) => {
            let (versions, took) = (pool.versions(), began.elapsed());
            pool.stop().await;
            report.ok(
                "php pool",
                format!(
                    "{processes} processes of PHP {} run what is not mapped; the app (Laravel {}) boots in {} ms",
                    versions.php,
                    versions.laravel,
                    took.as_millis()
                ),
            );
        }
        Err(error) => report.error(
            "php pool",
            error.to_string(),
            "queue:work does not start like this: mend the app, or set `policy` under [unmapped] to `leave` or `forward`",
        ),
    }
}

/// Reports mappings that an earlier one covers completely, and mappings that overlap with an earlier one.
fn look_at_mappings(router: &Router, report: &mut Report) {
    let mappings: Vec<_> = router.mappings().collect();
    let mut shadowed = 0;
    for (position, mapping) in mappings.iter().enumerate() {
        let earlier = &mappings[..position];
        let covering = earlier
            .iter()
            .position(|earlier| earlier.target.covers(&mapping.target));
        if let Some(earlier) = covering {
            shadowed += 1;
            report.warn(
                "mappings",
                format!(
                    "mapping {} (`{}`) never matches: mapping {} takes its jobs first",
                    position + 1,
                    mapping.target,
                    earlier + 1
                ),
                "put the more special mapping first, or delete it",
            );
            continue;
        }
        let overlapping = earlier
            .iter()
            .position(|earlier| earlier.target.overlaps(&mapping.target));
        if let Some(earlier) = overlapping {
            report.ok(
                "mappings",
                format!(
                    "mapping {} (`{}`) and mapping {} (`{}`) name some jobs in common: the first takes them",
                    earlier + 1,
                    mappings[earlier].target,
                    position + 1,
                    mapping.target
                ),
            );
        }
    }
    let policy = match router.unmapped() {
        UnmappedPolicy::Php => "run by PHP, in processes of our own".to_owned(),
        UnmappedPolicy::Leave => "left in their queue".to_owned(),
        UnmappedPolicy::Fail => "failed".to_owned(),
        UnmappedPolicy::Forward(queue) => format!("forwarded to `{queue}`"),
    };
    if mappings.is_empty() && *router.unmapped() == UnmappedPolicy::Php {
        report.ok("mappings", format!("there are none: all jobs are {policy}"));
    } else if mappings.is_empty() {
        report.warn(
            "mappings",
            format!("there are none: all jobs are {policy}"),
            "add [[map]] tables to artisand.toml",
        );
    } else if shadowed == 0 {
        report.ok(
            "mappings",
            format!("{}; other jobs are {policy}", mappings.len()),
        );
    }
}

fn look_at_middleware(config: &Config, router: &Router, report: &mut Report) {
    let checked = config.services();
    let checked = checked.and_then(|services| config.check_middleware(router, &services));
    if let Err(error) = checked {
        report.error(
            "middleware",
            chain(&error),
            "queue:work does not start with it: set what is missing, or take the middleware out",
        );
    }
    let classes = config.classes_without_their_middleware(router);
    if !classes.is_empty() {
        report.warn(
            "middleware",
            format!(
                "classes with middleware in PHP run here without any: {}",
                classes.join(", ")
            ),
            "list it under `middleware` in their mapping",
        );
    }
}

/// Reports what is missing for the follow-ups of a job.
fn look_at_gaps(config: &Config, router: &Router, report: &mut Report) {
    // The reason is already reported.
    let Ok(services) = config.services() else {
        return;
    };
    for finding in gaps::look(config, router, &services) {
        match finding.remedy {
            Some(remedy) => report.warn(finding.check, finding.found, remedy),
            None => report.ok(finding.check, finding.found),
        }
    }
}

/// What is needed to look at waiting jobs.
struct Look<'a> {
    args: &'a DoctorArgs,
    router: Option<&'a Router>,
    key: Result<Encrypter, Locked>,
    /// Predicts which jobs with a mapping a worker would not run.
    preview: Option<Preview>,
}

/// Why there is no encrypter.
struct Locked {
    why: String,
    /// The key is missing; many apps do not need one.
    is_missing: bool,
}

impl Locked {
    fn of(error: &SettingError) -> Self {
        Self {
            why: chain(error),
            is_missing: matches!(error, SettingError::Key(KeyError::Missing)),
        }
    }
}

const NEEDS_KEY: &str = "set APP_KEY in the environment or in the app's .env; until then encrypted jobs, and those whose batch or chain needs PHP, count as unmapped";

/// Reports whether encrypted jobs can be read.
fn look_at_key(key: &Result<Encrypter, Locked>, config: &Config, report: &mut Report) {
    let is_used = config.manifest().is_some_and(|(_, manifest)| {
        let mut classes = manifest.classes.values();
        classes.any(|class| class.is_queued() && class.flags.get("encrypted") == Some(&true.into()))
    });
    match key {
        Ok(encrypter) => {
            let previous = match encrypter.previous_keys() {
                0 => String::new(),
                1 => ", and 1 previous key".to_owned(),
                count => format!(", and {count} previous keys"),
            };
            report.ok(
                "encryption",
                format!("a key for {} is known{previous}", encrypter.cipher()),
            );
        }
        Err(locked) if locked.is_missing && !is_used => {
            report.ok(
                "encryption",
                "no key is known; encrypted jobs would need it",
            );
        }
        Err(locked) => report.warn("encryption", locked.why.clone(), NEEDS_KEY),
    }
}

/// Looks at the queues of a connection; true if there are jobs in batches.
async fn look_at_queues(look: &Look<'_>, config: &Config, name: &str, report: &mut Report) -> bool {
    let settings = match super::connection(config, name).await {
        Ok(settings) => settings,
        Err(error @ crate::config::Error::NoPrefix { .. }) => {
            report.error(
                "prefix",
                chain(&error),
                "without it no queue can be told: nothing more of this connection was looked at",
            );
            return false;
        }
        Err(error) => {
            report.error(
                "queue",
                chain(&error),
                "name a connection on Redis, or correct its settings",
            );
            return false;
        }
    };
    let (queue, _) = match open(config, name).await {
        Ok(opened) => opened,
        Err(error) => {
            report.error(
                "redis",
                output::with_causes(&error),
                "check that the server runs, and host, port and password of the connection",
            );
            return false;
        }
    };
    look_at_server(queue.redis(), report).await;
    let prefix = settings.redis.prefix.clone();
    let found = match queues_by_prefix(queue.redis()).await {
        Ok(found) => found,
        Err(error) => {
            report.error(
                "queues",
                chain(&error),
                "the user of this connection must be allowed to SCAN",
            );
            return false;
        }
    };
    let names = look_at_prefix(&prefix, &found, report);
    if let Some(retry_after) = settings.queue.retry_after {
        look_at_timeouts(config, name, retry_after, report);
    }
    look_at_pauses(config, name, &names, &settings.default_queue, report).await;
    let mut has_batches = false;
    let mut waiting = BTreeMap::new();
    for name in &names {
        let retry_after = settings.queue.retry_after;
        has_batches |= look_at_queue(look, &queue, name, retry_after, &mut waiting, report).await;
    }
    if let Some(router) = look.router {
        look_at_kinds(config, router, &waiting, report);
    }
    if names.is_empty() {
        report.ok(
            "queues",
            format!("none of connection `{name}` holds jobs now"),
        );
    }
    match queue.read(Spool::FailedJobs, 0, 10_000).await {
        Ok(spooled) if spooled.is_empty() => {}
        Ok(spooled) => report.warn(
            "spool",
            format!("{} failed jobs wait in artisand:failed-spool for their store", spooled.len()),
            "a running worker brings them there once the store can be written; see failed jobs below",
        ),
        Err(error) => report.error("spool", chain(&error), "the key artisand:failed-spool must be a list"),
    }
    has_batches | look_at_follow_ups(&queue, report).await
}

/// Reports queues that the app has paused.
async fn look_at_pauses(
    config: &Config,
    connection: &str,
    names: &[QueueName],
    default_queue: &QueueName,
    report: &mut Report,
) {
    // A store that is unknown or cannot be read is reported elsewhere.
    let Ok(Some(cache)) = config.default_cache() else {
        return;
    };
    let names: BTreeSet<&str> = names
        .iter()
        .chain([default_queue])
        .map(QueueName::as_str)
        .collect();
    let watched = Watched::new(cache, connection, names.iter().copied());
    let Ok(signals) = watched.read().await else {
        return;
    };
    for (name, is_paused) in names.into_iter().zip(signals.paused) {
        if is_paused {
            report.warn(
                "queue",
                format!("`{name}` is paused: no worker takes its jobs"),
                format!(
                    "`artisand queue:continue {connection}:{name}` (with --all if all are paused)"
                ),
            );
        }
    }
}

/// Kinds of waiting jobs by lower-case class name, and a queue that holds such a job.
type Waiting = BTreeMap<String, (Kind, QueueName)>;

/// Reports mappings of a class whose waiting jobs are of another kind.
fn look_at_kinds(config: &Config, router: &Router, waiting: &Waiting, report: &mut Report) {
    for (position, mapping) in router.mappings().enumerate() {
        let Pattern::Exact(class) = mapping.target.name() else {
            continue;
        };
        let Some((kind, queue)) = waiting.get(&class.to_lowercase()) else {
            continue;
        };
        let is_named = |kind: Kind| {
            router.mappings().any(|mapping| {
                mapping.target.kind() == kind && mapping.target.name().matches(class)
            })
        };
        let mapped = mapping.target.kind();
        if mapped != *kind && !is_named(*kind) {
            let problem = format!(
                "`{mapped} = ..` names `{class}`, and what waits in `{queue}` is a {kind} of it"
            );
            report.error(
                "mappings",
                at_mapping(config, position, &problem),
                format!("write `{kind} = '..'`: this mapping takes no such job"),
            );
        }
    }
}

/// Reports the follow-ups that ended jobs have left; true if batches have ends to count.
async fn look_at_follow_ups(queue: &RedisQueue, report: &mut Report) -> bool {
    const CHECK: &str = "follow-ups";
    let records = match queue.read(Spool::FollowUps, 0, 10_000).await {
        Ok(records) => records,
        Err(error) => {
            report.error(
                CHECK,
                chain(&error),
                "the key artisand:follow-ups must be a list",
            );
            return false;
        }
    };
    let mut kinds: BTreeMap<&str, usize> = BTreeMap::new();
    for record in &records {
        let json: serde_json::Value = serde_json::from_slice(record).unwrap_or_default();
        let kind = match json["do"].as_str() {
            Some("count") => "jobs to be counted in batches",
            Some("forget") => "marks to be taken out of batches",
            Some("unlock") => "locks to be freed",
            Some("push") => "jobs to be pushed to other connections",
            _ => "records that cannot be read",
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    if !kinds.is_empty() {
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, count)| format!("{kind}: {count}"))
            .collect();
        report.warn(
            CHECK,
            format!(
                "left to do in artisand:follow-ups for jobs that have ended: {}",
                kinds.join(", ")
            ),
            "a running worker sees to it in a moment; if it stays, the worker's log says why",
        );
    }
    kinds.contains_key("jobs to be counted in batches")
}

async fn look_at_server(redis: &Redis, report: &mut Report) {
    let mut info = String::new();
    for section in ["server", "memory", "persistence", "replication"] {
        match redis
            .command::<String>(::redis::cmd("INFO").arg(section))
            .await
        {
            Ok(text) => info += &text,
            Err(error) => {
                report.warn(
                    "redis",
                    chain(&error),
                    "allow this user INFO, so that more can be checked",
                );
                return;
            }
        }
    }
    let field = |name: &str| {
        info.lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    };
    let version = field("redis_version").unwrap_or("unknown");
    report.ok("redis", format!("{}, version {version}", redis.address()));
    let major: u32 = version
        .split('.')
        .next()
        .and_then(|major| major.parse().ok())
        .unwrap_or(99);
    if major < 3 {
        report.warn(
            "redis",
            format!("version {version} is not tested"),
            "use Redis 5 or later",
        );
    }
    if field("role") == Some("slave") {
        report.error(
            "redis",
            "the server is a replica, which takes no writes",
            "connect to its master",
        );
    }
    let (policy, limit) = (
        field("maxmemory_policy").unwrap_or(""),
        field("maxmemory").unwrap_or("0"),
    );
    if limit != "0" && policy != "noeviction" && !policy.is_empty() {
        report.warn("redis", format!("maxmemory-policy is {policy}: a full server deletes keys, and with them jobs or locks"), "set maxmemory-policy noeviction, and keep the cache on another server");
    }
    let saves = redis
        .command::<Vec<String>>(::redis::cmd("CONFIG").arg("GET").arg("save"))
        .await
        .ok()
        .and_then(|pair| pair.into_iter().nth(1));
    match (field("aof_enabled"), saves.as_deref()) {
        // Managed servers do not reveal this.
        (Some("1"), _) | (_, None) => {}
        (_, Some("")) => report.warn(
            "redis",
            "nothing is written to disk: jobs are gone when the server restarts",
            "set appendonly yes",
        ),
        (_, Some(_)) => report.warn(
            "redis",
            "only snapshots are written to disk: a crash loses the jobs of the last minutes",
            "set appendonly yes, or accept that",
        ),
    }
    if let Ok((seconds, micros)) = redis.command::<(u64, u64)>(&::redis::cmd("TIME")).await {
        let theirs = Duration::from_secs(seconds) + Duration::from_micros(micros);
        let ours = SystemTime::now()
            .duration_since(UNIX_EPOCH)
            .unwrap_or_default();
        let skew = ours.abs_diff(theirs);
        if skew > Duration::from_secs(2) {
            report.warn("clock", format!("this machine and Redis differ by {:.1} s; delays and reservations are counted by the clock of each worker", skew.as_secs_f64()), "run a time service on all machines");
        } else {
            report.ok(
                "clock",
                format!("{} ms from that of Redis", skew.as_millis()),
            );
        }
    }
}

fn look_at_prefix(prefix: &str, found: &Found, report: &mut Report) -> Vec<QueueName> {
    let others: Vec<String> = found
        .keys()
        .filter(|other| *other != prefix)
        .map(|other| format!("`{other}`"))
        .collect();
    match found.get(prefix) {
        Some(names) => {
            report.ok(
                "prefix",
                format!("`{prefix}`, as the keys in Redis have it"),
            );
            names
                .iter()
                .map(|name| QueueName::from(name.as_str()))
                .collect()
        }
        None if others.is_empty() => {
            report.ok(
                "prefix",
                format!("`{prefix}`; no queue has a key now that could tell"),
            );
            Vec::new()
        }
        None => {
            report.error(
                "prefix",
                format!(
                    "`{prefix}`, but the queues in this database have {}",
                    others.join(", ")
                ),
                "check database and prefix: with the wrong ones no job is ever found",
            );
            Vec::new()
        }
    }
}

/// Reports timeouts that are longer than a reservation: a PHP worker on the same queue would run such a job twice.
fn look_at_timeouts(config: &Config, name: &str, retry_after: Duration, report: &mut Report) {
    let retry_after = retry_after.as_secs();
    let mut too_long: Vec<String> = Vec::new();
    if let Some((_, manifest)) = config.manifest() {
        for (class, facts) in &manifest.classes {
            let timeout = facts
                .limits
                .get("timeout")
                .and_then(serde_json::Value::as_u64);
            if facts.is_queued()
                && timeout.is_some_and(|timeout| timeout >= retry_after || timeout == 0)
            {
                too_long.push(class.clone());
            }
        }
    }
    if retry_after <= 60 {
        report.warn("retry_after", format!("{retry_after} s on `{name}` is not longer than the default timeout of 60 s"), "make retry_after some seconds longer than any timeout: PHP workers run a job again that is still running (artisand renews its reservations)");
    } else if !too_long.is_empty() {
        report.warn("retry_after", format!("{retry_after} s on `{name}` is not longer than the timeout of {}", too_long.join(", ")), "make retry_after longer than any timeout: PHP workers run a job again that is still running (artisand renews its reservations)");
    } else {
        report.ok("retry_after", format!("{retry_after} s on `{name}`"));
    }
}

async fn look_at_queue(
    look: &Look<'_>,
    queue: &RedisQueue,
    name: &QueueName,
    retry_after: Option<Duration>,
    waiting: &mut Waiting,
    report: &mut Report,
) -> bool {
    let (sizes, elements) = match (
        queue.sizes(name).await,
        queue.look(name, Place::Pending, 0, look.args.sample).await,
    ) {
        (Ok(sizes), Ok(elements)) => (sizes, elements),
        (Err(error), _) | (_, Err(error)) => {
            report.error(
                "queue",
                format!("`{name}`: {}", chain(&error)),
                "its keys must be a list and two sorted sets",
            );
            return false;
        }
    };
    let mut line = format!(
        "`{name}`: {} pending, {} delayed, {} reserved",
        sizes.pending, sizes.delayed, sizes.reserved
    );
    let oldest = elements
        .first()
        .and_then(|element| Payload::parse(element).ok()?.created_at);
    if let Some(oldest) = oldest {
        let age = Clock::System.now().0.saturating_sub(oldest.0).max(0);
        let _ = write!(line, ", the oldest {age} s old");
    }
    report.ok("queue", line);
    if sizes.quarantined > 0 {
        report.warn(
            "queue",
            format!("`{name}` has {} payloads in quarantine", sizes.quarantined),
            format!("see `artisand queue:quarantine {name}`"),
        );
    }
    let mut classes: BTreeMap<(String, String), usize> = BTreeMap::new();
    let mut slow = BTreeSet::new();
    let mut encrypted = Encrypted::default();
    let mut has_batches = false;
    let mut fit = Fit::default();
    let mut closures = 0;
    let mut oldest_closure = None;
    let mut undecodable = 0;
    for element in &elements {
        let Ok(mut payload) = Payload::parse(element) else {
            undecodable += 1;
            continue;
        };
        if let (Some(timeout), Some(retry_after)) = (payload.limits.timeout, retry_after)
            && timeout >= retry_after
        {
            slow.insert(payload.shown_name().into_owned());
        }
        encrypted.look_at(&mut payload, look);
        if is_closure(&payload) {
            closures += 1;
            oldest_closure = oldest_closure.or(payload.created_at);
        }
        let command = Command::of(&payload).ok().flatten();
        if let Ok(target) = Target::of(&payload)
            && !target.name().is_empty()
        {
            let kind = (target.kind(), name.clone());
            waiting.insert(target.name().trim_start_matches('\\').to_lowercase(), kind);
        }
        has_batches |= command.is_some_and(|command| matches!(command.batch_id(), Ok(Some(_))));
        if let Some(preview) = &look.preview {
            fit.look_at(preview, &payload, name);
        }
        let taker = look.router.map_or_else(
            || "(mappings have an error)".to_owned(),
            |router| taker(router, &payload, name, look),
        );
        *classes
            .entry((payload.shown_name().into_owned(), taker))
            .or_insert(0) += 1;
    }
    for ((class, taker), count) in classes {
        report.ok("jobs", format!("`{name}`: {count} of {class} -> {taker}"));
    }
    if undecodable > 0 {
        report.warn(
            "jobs",
            format!(
                "`{name}`: {undecodable} payloads cannot be decoded and would go to the quarantine"
            ),
            format!("`artisand queue:peek {name}` says why; find out what pushes them"),
        );
    }
    fit.tell(name, report);
    encrypted.tell(name, report);
    warn_of_closures(name, closures, oldest_closure, report);
    warn_of_slow(slow, report);
    has_batches
}

/// Warns of closures that have waited for long, because no PHP worker takes them.
fn warn_of_closures(
    name: &QueueName,
    closures: usize,
    oldest: Option<UnixSeconds>,
    report: &mut Report,
) {
    let waited = oldest.map_or(0, |since| Clock::System.now().0.saturating_sub(since.0));
    if waited > 60 {
        report.warn(
            "php queue",
            format!("`{name}`: {closures} closures wait for PHP, which ends batches and chains with them, the oldest for {waited} s"),
            "let a PHP worker serve this queue",
        );
    }
}

/// Warns of waiting jobs that may run for longer than their reservation lasts.
fn warn_of_slow(classes: BTreeSet<String>, report: &mut Report) {
    if classes.is_empty() {
        return;
    }
    let classes: Vec<String> = classes.into_iter().collect();
    report.warn(
        "retry_after",
        format!(
            "waiting jobs have a timeout that is not shorter than retry_after: {}",
            classes.join(", ")
        ),
        "make retry_after longer, or PHP workers run them twice",
    );
}

/// Encrypted jobs that are waiting.
#[derive(Default)]
struct Encrypted {
    readable: usize,
    /// Classes of unreadable jobs, each with a reason.
    unreadable: BTreeMap<String, String>,
}

impl Encrypted {
    fn look_at(&mut self, payload: &mut Payload, look: &Look<'_>) {
        if !payload.is_encrypted() {
            return;
        }
        let why = match &look.key {
            Ok(encrypter) => payload.decrypt(encrypter).err().map(|error| chain(&error)),
            Err(locked) => Some(locked.why.clone()),
        };
        match why {
            None => self.readable += 1,
            Some(why) => {
                let class = payload.shown_name().into_owned();
                self.unreadable.insert(class, why);
            }
        }
    }

    fn tell(self, name: &QueueName, report: &mut Report) {
        if self.readable > 0 {
            report.ok(
                "encryption",
                format!(
                    "`{name}`: encrypted jobs that can be read: {}",
                    self.readable
                ),
            );
        }
        for (class, why) in self.unreadable {
            report.warn(
                "encryption",
                format!("`{name}`: encrypted jobs of {class} cannot be read: {why}"),
                "set APP_KEY, or the key they were encrypted with in APP_PREVIOUS_KEYS (Laravel 11 or later); until then they count as unmapped",
            );
        }
    }
}

/// Describes in words which worker takes a job.
fn taker(router: &Router, payload: &Payload, queue: &QueueName, look: &Look<'_>) -> String {
    let unmapped = || match router.unmapped() {
        UnmappedPolicy::Php => "PHP, in a process of the pool".to_owned(),
        UnmappedPolicy::Leave => "left in the queue for PHP".to_owned(),
        UnmappedPolicy::Fail => "nobody: fails".to_owned(),
        UnmappedPolicy::Forward(queue) => format!("nobody here: forwarded to `{queue}`"),
    };
    let target = match (Target::of(payload), Command::of(payload)) {
        (Ok(target), Ok(_)) => target,
        (_, Err(crate::payload::Error::Encrypted { .. }))
        | (Err(crate::payload::Error::Encrypted { .. }), _) => {
            return format!("{} (encrypted)", unmapped());
        }
        _ => return unmapped(),
    };
    let preview = look.preview.as_ref();
    if let Some(why) = preview.and_then(|preview| preview.refusal(payload, queue)) {
        return format!("{} ({why})", unmapped());
    }
    match router.route(&target) {
        Route::Handler { mapping, .. } => {
            let handler = router
                .mappings()
                .nth(mapping)
                .map(|mapping| mapping.handler.to_string());
            let part = router.mapping(mapping).map_or(String::new(), |found| {
                match (found.mode, found.canary) {
                    (Mode::Shadow, _) => format!(" (shadow: {} runs it)", unmapped()),
                    (Mode::Run, Some(canary)) => format!(" ({canary} %; the rest: {})", unmapped()),
                    (Mode::Run, None) => String::new(),
                }
            });
            format!(
                "mapping {}, {}{part}",
                mapping + 1,
                handler.unwrap_or_default()
            )
        }
        Route::Forward(queue) => format!("forwarded to `{queue}`"),
        Route::Unmapped => unmapped(),
    }
}

async fn look_at_cache(config: &Config, laravel: &Laravel, report: &mut Report) {
    for name in laravel.redis_connections().unwrap_or_default() {
        if let Ok(settings) = laravel.redis(&name)
            && let Some((path, value)) = settings.encoded
        {
            report.error("serializer", format!("Redis connection `{name}`: `{path}` is {value}, so phpredis changes the bytes of cache values and locks"), "unset it, or give the cache store a connection without it");
            break;
        }
    }
    if !config.obeys_app() {
        report.warn(
            "cache",
            "`control_plane = false`: restart, pause and maintenance are not obeyed",
            "delete it from artisand.toml if that is not meant",
        );
    }
    let opened = laravel
        .default_cache()
        .and_then(|name| Ok((laravel.cache(&name)?, name)));
    let (cache, name) = match opened {
        Ok(opened) => opened,
        Err(error) if !config.obeys_app() => {
            report.warn("cache", chain(&error), "correct it if jobs are unique, or have middleware: without the store of their locks they are not run here");
            return;
        }
        Err(error) if error.is_for_php_only() => {
            let found = format!("{}: {}", chain(&error), gaps::CACHE_OF_PHP);
            report.warn("cache", found, gaps::CACHE_OF_PHP_REMEDY);
            look_at_maintenance(laravel, report).await;
            return;
        }
        Err(error) => {
            report.error("cache", chain(&error), "queue:work does not start with it: correct it, or set `control_plane = false` under [worker]");
            return;
        }
    };
    if !cache.is_shared() {
        report.warn("cache", format!("the default store `{name}` is not shared between processes"), "use redis, database or file: otherwise queue:restart and queue:pause reach no worker, in PHP neither");
        return;
    }
    match try_cache(&cache).await {
        Ok(restart) => {
            let restart = restart.map_or_else(
                || "no restart was asked for".to_owned(),
                |restart| format!("last restart at {restart}"),
            );
            report.ok(
                "cache",
                format!("store `{name}`, {}; {restart}", cache.describe()),
            );
        }
        Err(error) => report.error(
            "cache",
            format!("store `{name}`, {}: {}", cache.describe(), chain(&error)),
            "check that it runs and can be written: without it workers hear no signal",
        ),
    }
    look_at_maintenance(laravel, report).await;
}

async fn look_at_maintenance(laravel: &Laravel, report: &mut Report) {
    match laravel.maintenance() {
        Ok(maintenance) => match maintenance.is_down().await {
            Ok(false) => report.ok("maintenance", "the app is up"),
            Ok(true) => report.warn(
                "maintenance",
                "the app is down: workers take no jobs",
                "`php artisan up`, or `queue:work --force`",
            ),
            Err(error) => report.error(
                "maintenance",
                chain(&error),
                "workers cannot tell whether the app is down",
            ),
        },
        Err(error) if error.is_for_php_only() => report.warn(
            "maintenance",
            chain(&error),
            "workers do not hear of `down`: keep it in a file (`app.maintenance.driver`), or in another store",
        ),
        Err(error) => report.error("maintenance", chain(&error), "correct app.maintenance"),
    }
}

/// Reads the restart key; writes, increments and deletes a key of artisand's own.
async fn try_cache(cache: &Cache) -> Result<Option<String>, crate::cache::Error> {
    const KEY: &str = "artisand:doctor";
    cache
        .put(KEY, &Value::Int(1), Duration::from_secs(60))
        .await?;
    cache.increment(KEY, 1).await?;
    cache.forget(KEY).await?;
    let restart = cache.get(keys::RESTART).await?;
    Ok(restart.map(|value| match &value {
        Value::Int(seconds) => seconds.to_string(),
        value => value.as_str().unwrap_or("(not a number)").to_owned(),
    }))
}

async fn look_at_failed_jobs(config: &Config, report: &mut Report) {
    let store = match config.failed_jobs() {
        Ok(Some(store)) => store,
        Ok(None) => {
            report.warn(
                "failed jobs",
                "no store is known: they stay in artisand:failed-spool",
                "give the app with --app",
            );
            return;
        }
        Err(error) => {
            report.error(
                "failed jobs",
                chain(&error),
                "correct queue.failed of the app",
            );
            return;
        }
    };
    if matches!(store, FailedJobs::Null) {
        report.warn(
            "failed jobs",
            "the app keeps none (queue.failed.driver is null)",
            "set QUEUE_FAILED_DRIVER=database-uuids",
        );
        return;
    }
    if store.wants_uuid().await {
        report.error(
            "failed jobs",
            format!(
                "{}: the table has a uuid column, which driver `database` does not fill",
                store.describe()
            ),
            "set queue.failed.driver to database-uuids",
        );
        return;
    }
    match store.check().await {
        Ok(()) => report.ok("failed jobs", format!("{}, can be written", store.describe())),
        Err(error) => report.error("failed jobs", format!("{}: {}", store.describe(), chain(&error)), "make the store writable (`php artisan migrate` makes the table); until then failed jobs wait in the spool"),
    }
}

/// Reports on batches. Few apps have batches, so missing settings for them are not an error.
async fn look_at_batches(
    config: &Config,
    router: Option<&Router>,
    has_batches: bool,
    report: &mut Report,
) {
    const CHECK: &str = "batches";
    let batches = match config.batches() {
        Ok(Some(batches)) => batches,
        Ok(None) => {
            report.warn(
                CHECK,
                "the app keeps them in DynamoDB, where only PHP can count their jobs: with a closure for each",
                "keep batches in a database (queue.batching.driver), or let PHP run their jobs",
            );
            return;
        }
        Err(error) => {
            report.warn(
                CHECK,
                chain(&error),
                "correct queue.batching of the app if it has jobs in batches",
            );
            return;
        }
    };
    let place = batches.describe();
    match batches.check().await {
        Ok(()) => {
            report.ok(CHECK, format!("{place}, can be written"));
            if has_batches && batches.are_in_a_file() {
                report.warn(
                    CHECK,
                    "they are in a SQLite file: PHP reads a batch before it writes it, and if another process writes in between, it gets `database is locked` and its job is run again",
                    "set `'transaction_mode' => 'IMMEDIATE'` and a `busy_timeout` (milliseconds) for the connection in config/database.php, where the app's Laravel knows them; `journal_mode` WAL alone does not help; with an older Laravel give such jobs 3 tries or more, or keep batches in MySQL or PostgreSQL",
                );
            }
        }
        Err(error) if batches.is_missing(&error) && has_batches => report.error(
            CHECK,
            format!("no {place}, and there are jobs in batches"),
            "make it with `php artisan queue:batches-table` (since Laravel 11 make:queue-batches-table) and migrate, or correct queue.batching of the app; until then their ends wait in artisand:follow-ups",
        ),
        Err(error) if batches.is_missing(&error) => {
            let batchable = router.map(|router| gaps::batchable(config, router));
            let batchable = batchable.unwrap_or_default();
            if !batchable.is_empty() {
                report.warn(
                    CHECK,
                    format!(
                        "no {place}, and classes that run here may be in batches: {}",
                        gaps::some_of(&batchable)
                    ),
                    "make it with `php artisan queue:batches-table` (since Laravel 11 make:queue-batches-table) and migrate, if there are batches",
                );
                return;
            }
            report.ok(CHECK, format!("no {place}: the app has no jobs in batches"));
        }
        Err(error) => report.warn(
            CHECK,
            format!("{place}: {}", chain(&error)),
            "make the table writable if the app has jobs in batches",
        ),
    }
}
