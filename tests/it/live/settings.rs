//! Settings of an app: from PHP now, from its manifest, and in Laravel itself.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;

use artisand::app::Manifest;
use artisand::config::{Config, Laravel, Origin, QueuePlace};
use artisand::connection::RedisAddress;
use serde_json::{Map, Value, json};

use crate::harness::apps::{App, Apps, Env};
use crate::harness::fixtures::{lines, project};
use crate::harness::journal;
use crate::harness::laravel::Laravel as RealLaravel;
use crate::harness::process::{INTEROP_MAPPINGS, Workplace, artisand};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);

fn what_the_app_sets_in_code_is_in_its_manifest_and_prohibits_commands(version: u8) {
    let redis = RedisServer::start();
    let laravel = RealLaravel::with_env(version, &redis, &[("INTEROP_CODE", "1")]);
    let manifest = laravel.exported();
    let code = &manifest.code;
    assert_eq!(code.pop_using, ["default"]);
    assert_eq!(code.pipes, ["App\\Traces"]);
    assert!(code.names_masters);
    let changed: &[&str] = match version {
        13 => &["memoryExceededExitCode"],
        _ => &[],
    };
    assert_eq!(code.exit_codes, changed);
    let unpolled: &[&str] = match version {
        13 => &["restart", "pause"],
        _ => &[],
    };
    assert_eq!(code.unpolled, unpolled);
    let prohibited: &[&str] = match version {
        13 => &["queue:clear", "queue:flush"],
        _ => &[],
    };
    assert_eq!(code.prohibited, prohibited);
    assert!(
        laravel
            .exported()
            .models
            .values()
            .any(|model| model.restored_by_code)
    );

    let facts = laravel.manifest_with_classes();
    let workplace = Workplace::with_manifest(&laravel, &facts, INTEROP_MAPPINGS);

    // A queue that is forwarded is worked where PHP puts its jobs.
    laravel.run(&["interop:journal", "forwarded", "--queue=from"]);
    let kept = if version == 13 {
        "queues:to"
    } else {
        "queues:from"
    };
    assert_eq!(redis.length(&laravel.key(kept)), 1);
    let mut worker = workplace.worker(&["--queue=from", "--stop-when-empty"]);
    worker.succeeds_within(SOON);
    let ran = journal::since(&redis, 0);
    assert_eq!(ran.len(), 1, "{}", worker.describe());
    assert_eq!(
        (ran[0].by.as_str(), ran[0].id.as_str()),
        ("rust", "forwarded")
    );
    for said in [
        "Worker::popUsing",
        "Bus::pipeThrough",
        "newQueryForRestoration",
    ] {
        assert!(
            worker.stderr().contains(said),
            "{said}: {}",
            worker.stderr()
        );
    }

    let queue = laravel.key("queues:default");
    if version == 13 {
        let pause = ["queue:pause", "redis:default"];
        let (theirs, code) = laravel.text(&pause);
        let ours = workplace.artisand(&pause).output().unwrap();
        assert_eq!(ours.status.code(), Some(code), "{theirs} {ours:?}");
        let said = "Queue pausing is currently disabled.";
        assert!(theirs.contains(said), "{theirs}");
        assert!(
            String::from_utf8_lossy(&ours.stdout).contains(said),
            "{ours:?}"
        );
        // The app's workers do not ask whether it was paused before.
        let pausing = RealLaravel::new(version, &redis);
        let (said, code) = pausing.text(&pause);
        assert_eq!(code, 0, "{said}");
        laravel.run(&["interop:journal", "unpolled"]);
        let mut worker = workplace.worker(&["--stop-when-empty"]);
        worker.succeeds_within(SOON);
        assert_eq!(redis.length(&queue), 0, "{}", worker.describe());
    }
    for args in [&["queue:clear", "redis"][..], &["queue:flush"]] {
        laravel.run(&["interop:journal", "kept"]);
        let output = workplace.artisand(args).output().unwrap();
        let ours = String::from_utf8_lossy(&output.stdout).into_owned();
        let left = redis.length(&queue);
        let (theirs, code) = laravel.text(args);
        assert_eq!(output.status.code(), Some(code), "{ours} {theirs}");
        let text = "This command is prohibited from running in this environment.";
        let are_prohibited = [&ours, &theirs].map(|said| said.contains(text));
        assert_eq!(are_prohibited, [version == 13; 2], "{ours} {theirs}");
        assert_eq!(
            left > 0,
            version == 13 || args[0] == "queue:flush",
            "{ours}"
        );
    }
}

on_every_laravel!(what_the_app_sets_in_code_is_in_its_manifest_and_prohibits_commands);

/// Where two configurations differ.
#[derive(Default)]
struct Differences {
    list: Vec<String>,
    /// Paths of settings that artisand could not find out.
    unknown: Vec<String>,
    /// Paths of secrets that the manifest does not contain.
    secret: Vec<String>,
}

impl Differences {
    fn between(laravel: &Laravel, app: &App, truth: &Value) -> Self {
        let mut found = Self::default();
        for section in ["app", "queue", "cache", "database"] {
            let ours = &laravel.config[section];
            found.walk(laravel, app, section, ours, &truth["config"][section]);
        }
        found
    }

    fn walk(&mut self, laravel: &Laravel, app: &App, path: &str, ours: &Value, truth: &Value) {
        if ours.get("$unknown").is_some() {
            self.unknown.push(path.to_owned());
            return;
        }
        if ours.get("$secret").is_some() {
            assert!(!truth.is_null(), "{path} is no secret");
            self.secret.push(path.to_owned());
            return;
        }
        let ours = resolved(laravel, app, path, ours);
        match (&ours, truth) {
            (Value::Object(ours), Value::Object(truth)) => {
                // Of `config('app')` the truth has only some; a null is as good as nothing.
                let both = ours
                    .keys()
                    .filter(|key| path != "app" || truth.contains_key(*key))
                    .chain(truth.keys().filter(|key| !ours.contains_key(*key)));
                for key in both {
                    let at = |side: &Map<String, Value>| side.get(key).cloned();
                    let (ours, truth) = (at(ours), at(truth));
                    let (ours, truth) = (ours.unwrap_or_default(), truth.unwrap_or_default());
                    self.walk(laravel, app, &format!("{path}.{key}"), &ours, &truth);
                }
            }
            (Value::Array(ours), Value::Array(truth)) if ours.len() == truth.len() => {
                for (index, (ours, truth)) in ours.iter().zip(truth).enumerate() {
                    self.walk(laravel, app, &format!("{path}.{index}"), ours, truth);
                }
            }
            // PHP has one empty array for both.
            (Value::Object(ours), Value::Array(truth)) if ours.len() + truth.len() == 0 => {}
            (Value::Array(ours), Value::Object(truth)) if ours.len() + truth.len() == 0 => {}
            (ours, truth) if ours == truth => {}
            (ours, truth) => self
                .list
                .push(format!("{path} is {ours}, Laravel says {truth}")),
        }
    }
}

/// A value with secrets looked up, and with paths as the app's PHP sees them.
fn resolved(laravel: &Laravel, app: &App, path: &str, value: &Value) -> Value {
    if let Some(name) = value.get("$env").and_then(Value::as_str) {
        let text = (laravel.env)(name).unwrap_or_else(|| panic!("{path}: no {name}"));
        if name == "APP_PREVIOUS_KEYS" {
            let keys = text.split(',').filter(|key| !key.is_empty());
            // Laravel filters and keeps the positions.
            return keys.map(Value::from).collect();
        }
        return text.into();
    }
    let here = app.here.to_str().unwrap();
    match value {
        Value::String(text) => text.replace(here, &app.inside).into(),
        value => value.clone(),
    }
}

/// The settings of a Redis connection that a worker uses, from Laravel's parsed form.
fn expected_redis(truth: &Value, sends_user: bool) -> Value {
    let text = |key: &str| match &truth[key] {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    };
    let host = text("host").unwrap_or_else(|| "127.0.0.1".into());
    let is_tls = truth["scheme"] == "tls" || host.starts_with("tls://");
    let port = text("port").map_or(6379, |port| port.parse::<u16>().unwrap());
    let host = host.trim_start_matches("tls://").to_owned();
    let address = match truth["path"].as_str() {
        Some(path) if truth["scheme"] == "unix" => json!(path),
        _ if host.starts_with('/') => json!(host),
        _ => json!([host, port, is_tls]),
    };
    let sends_user = sends_user && truth["password"].is_string() && text("password").is_some();
    json!({
        "address": address,
        "username": text("username").filter(|_| sends_user),
        "password": text("password"),
        "database": text("database").map_or(0, |database| database.parse::<i64>().unwrap()),
    })
}

/// Compares artisand's reading of the configuration with Laravel's.
#[expect(clippy::too_many_lines, reason = "one list of things to compare")]
fn compare_use(laravel: &Laravel, app: &App, truth: &Value, place: &str) {
    let object = |value: &Value| value.as_object().cloned().unwrap_or_default();
    let version = laravel.version.as_deref();
    assert_eq!(version, truth["laravel"].as_str(), "{place}");
    let inside = |path: &Path| {
        path.to_str()
            .unwrap()
            .replace(app.here.to_str().unwrap(), &app.inside)
    };
    assert_eq!(inside(&laravel.base), truth["paths"]["base"], "{place}");
    assert_eq!(
        inside(&laravel.storage),
        truth["paths"]["storage"],
        "{place}"
    );
    let zone = laravel.timezone().unwrap();
    let zone = zone.iana_name().unwrap();
    assert_eq!(zone, truth["config"]["app"]["timezone"], "{place}");
    let environment = laravel.environment().unwrap();
    assert_eq!(environment, truth["config"]["app"]["env"], "{place}");

    let names: Vec<String> = object(&truth["redis_connections"])
        .into_iter()
        .map(|(name, _)| name)
        .collect();
    // A single server of the same name counts more.
    let clusters = object(&truth["config"]["database"]["redis"]["clusters"]);
    let clusters = clusters.into_iter().map(|(name, _)| name);
    let clusters: Vec<String> = clusters
        .filter(|name| name != "options" && !names.contains(name))
        .collect();
    for name in &clusters {
        let address = laravel.redis(name).unwrap().options.address;
        let is_cluster = matches!(address, RedisAddress::Cluster { .. });
        assert!(is_cluster, "{place}: {name} {address}");
    }
    let mut ours = laravel.redis_connections().unwrap();
    ours.retain(|name| !clusters.contains(name));
    ours.sort();
    assert_eq!(ours, names, "{place}");
    let mut compared = 0;
    for (name, parsed) in object(&truth["redis_connections"]) {
        let place = format!("{place}: redis {name}");
        // Only phpredis supports these, and what a list of servers means, predis knows.
        let Some(parsed) = parsed.is_object().then_some(parsed) else {
            continue;
        };
        if parsed.get("0").is_some() {
            continue;
        }
        let settings = laravel
            .redis(&name)
            .unwrap_or_else(|e| panic!("{place}: {e}"));
        let options = settings.options;
        let address = match options.address {
            RedisAddress::Tcp(host, port) => json!([host, port, false]),
            RedisAddress::Tls(host, port) => json!([host, port, true]),
            RedisAddress::Unix(path) => json!(path),
            RedisAddress::Cluster { .. } => continue,
            RedisAddress::Sentinel(sentinels) => json!(sentinels.to_string()),
        };
        let ours = json!({
            "address": address,
            "username": options.username,
            "password": options.password,
            "database": options.database,
        });
        let sends_user = laravel.major_minor() >= (9, 6);
        assert_eq!(ours, expected_redis(&parsed, sends_user), "{place}");
        // Null, which is no prefix, if the process of Laravel did not reach its Redis, or if the app has no phpredis.
        assert_eq!(options.prefix, truth["redis_prefixes"][&name], "{place}");
        compared += 1;
    }
    assert!(compared > 0, "{place}: no prefixes");
    for (store, prefix) in object(&truth["cache_prefixes"]) {
        let place = format!("{place}: cache {store}");
        let driver = truth["config"]["cache"]["stores"][&store]["driver"]
            .as_str()
            .unwrap();
        let ours = laravel
            .cache_prefix(&store, driver)
            .unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(ours, prefix, "{place}");
    }
    if let Some(failer) = truth["failer"].as_str() {
        let store = laravel
            .failed_jobs()
            .unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(store.provider(), failer, "{place}");
    }
    for (name, parsed) in object(&truth["database_connections"]) {
        let is_split = parsed.get("write").is_some();
        if matches!(
            parsed["driver"].as_str(),
            Some("mysql" | "mariadb" | "pgsql")
        ) && !is_split
        {
            let place = format!("{place}: database {name}");
            let ours = laravel
                .database(Some(&name))
                .unwrap_or_else(|e| panic!("{place}: {e}"));
            let text = |key: &str| match &parsed[key] {
                Value::Null => String::new(),
                Value::String(text) => text.clone(),
                value => value.to_string(),
            };
            for (ours, key) in [
                (ours.host, "host"),
                (ours.port.to_string(), "port"),
                (ours.database, "database"),
                (ours.username, "username"),
                (ours.password.unwrap_or_default(), "password"),
                (ours.prefix, "prefix"),
            ] {
                assert_eq!(ours, text(key), "{place}: {key}");
            }
        }
    }
    for (name, queue) in object(&truth["config"]["queue"]["connections"]) {
        if matches!(queue["driver"].as_str(), Some("redis" | "database")) {
            compare_queue(laravel, truth, &name, &queue, place);
        }
    }
}

fn compare_queue(laravel: &Laravel, truth: &Value, name: &str, queue: &Value, place: &str) {
    let place = format!("{place}: queue {name}");
    let ours = laravel.queue(name, None);
    if queue["driver"] == "database" {
        compare_database_queue(laravel, name, queue, &place);
        return;
    }
    let redis = queue["connection"].as_str().unwrap_or("default");
    let clusters = &truth["config"]["database"]["redis"]["clusters"];
    if truth["redis_connections"].get(redis).is_none() && clusters.get(redis).is_none() {
        assert!(ours.is_err(), "{place}: there is no Redis connection");
        return;
    }
    let ours = ours.unwrap_or_else(|e| panic!("{place}: {e}"));
    let QueuePlace::Redis {
        redis: server,
        queue: options,
    } = ours.place
    else {
        panic!("{place}: not on Redis");
    };
    assert_eq!(server, laravel.redis(redis).unwrap().options, "{place}");
    let default_queue = queue["queue"].as_str().unwrap_or("default");
    assert_eq!(ours.default_queue, default_queue, "{place}");
    let retry_after = options.retry_after.map(|time| time.as_secs());
    let expected = queue["retry_after"].as_u64().unwrap_or(60);
    assert_eq!(retry_after, Some(expected), "{place}");
}

fn compare_database_queue(laravel: &Laravel, name: &str, queue: &Value, place: &str) {
    let connection = queue["connection"].as_str();
    let Ok(expected) = laravel.database(connection) else {
        let ours = laravel.queue(name, None);
        assert!(ours.is_err(), "{place}: there is no such database");
        return;
    };
    let ours = laravel.queue(name, None);
    let QueuePlace::Database {
        database,
        queue: options,
    } = ours.unwrap_or_else(|e| panic!("{place}: {e}")).place
    else {
        panic!("{place}: not in a database");
    };
    assert_eq!(database, expected, "{place}");
    assert_eq!(options.table, queue["table"].as_str().unwrap(), "{place}");
    let retry_after = queue["retry_after"].as_u64().unwrap_or(60);
    assert_eq!(options.retry_after.as_secs(), retry_after, "{place}");
}

/// Environments in which an app is checked: its own, and some that change it.
fn environments(app: &str) -> &'static [Env<'static>] {
    match app {
        "env-tricks" => &[&[], &[("APP_ENV", "staging")]],
        "skeleton-10" => &[&[], &[("REDIS_PREFIX", "real:"), ("REDIS_PORT", "7001")]],
        _ => &[&[]],
    }
}

fn load(app: &App, env: Env<'_>, place: &str) -> Config {
    let env = [env, &[("ARTISAND_SETTINGS", "manifest")]].concat();
    let env = env
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()));
    Config::load(None, Some(&app.here), env).unwrap_or_else(|e| panic!("{place}: {e}"))
}

/// Checks each app in each of its environments, two at a time; reports all mistakes at once.
fn for_each(version: u8, look: impl Fn(&Apps, &App, Env<'_>, &Value, &str) + Sync) {
    let redis = RedisServer::start();
    let apps = Apps::make(version);
    let (apps, redis, look) = (&apps, &redis, &look);
    let half = |half: usize| {
        // Connections are opened in it, if only to be closed.
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let _runtime = runtime.enter();
        let mut wrong = Vec::new();
        for app in apps.list.iter().skip(half).step_by(2) {
            for env in environments(&app.name) {
                let place = format!("Laravel {version} {} {env:?}", app.name);
                let look = || look(apps, app, env, &apps.truth(app, env, redis), &place);
                if let Err(panic) = catch_unwind(AssertUnwindSafe(look)) {
                    let text = panic.downcast_ref::<String>();
                    wrong.push(text.unwrap_or(&place).clone());
                }
            }
        }
        wrong
    };
    let half = &half;
    let wrong = std::thread::scope(|scope| {
        let halves = [0, 1].map(|number| scope.spawn(move || half(number)));
        halves.map(|half| half.join().unwrap()).concat()
    });
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

/// All files below a directory, with their contents.
fn files(directory: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path));
        } else {
            found.insert(path.clone(), std::fs::read(&path).unwrap());
        }
    }
    found
}

/// Settings for asking the app's PHP.
pub(super) fn settings_of_php(version: u8, app: &App) -> String {
    let php = project().join("php-interop").join("laravel");
    let (php, here, inside) = (php.display(), app.here.display(), &app.inside);
    format!(
        "app = '{here}'\n[php]\nbinary = ['{php}', '{version}', '--at', '{inside}']\napp = '{inside}'\n"
    )
}

/// A search path for programs on which there are none, no PHP either.
pub(super) const NO_PROGRAMS: &str = "/nonexistent";

/// Lets artisand write the manifest of the app that the settings name, in this environment.
pub(super) fn write_manifest(settings: &str, to: &Path, env: &[(String, String)]) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings).unwrap();
    let settings: toml::Table = settings.parse().unwrap();
    let mut command = artisand(&["manifest"]);
    command.arg("--config").arg(file.path());
    // As in the README, where PHP has no root of its own and sees the app in the same directory.
    if settings["app"] == settings["php"]["app"] {
        command.arg("--app").arg(settings["app"].as_str().unwrap());
    }
    command
        .arg("--output")
        .arg(to)
        .env_clear()
        .envs(variables_of_php(&[]))
        .envs(env.iter().map(|(name, value)| (name, value)));
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {output:?}");
}

/// PHP's environment, and the command that starts that PHP.
fn variables_of_php(env: Env<'_>) -> BTreeMap<String, String> {
    let owned = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
    let mut variables: BTreeMap<String, String> = env.iter().map(owned).collect();
    for name in ["PATH", "ARTISAND_ROOTS"] {
        variables.extend(std::env::var(name).map(|value| (name.to_owned(), value)));
    }
    variables
}

fn compare_what_php_says(version: u8, app: &App, env: Env<'_>, truth: &Value, place: &str) {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings_of_php(version, app)).unwrap();
    let before = files(&app.here);
    let config = Config::load(Some(file.path()), None, variables_of_php(env));
    let config = config.unwrap_or_else(|e| panic!("{place}: {e}"));
    assert!(files(&app.here) == before, "{place}: the app has changed");
    let laravel = config.laravel().unwrap();
    let is_of_php = matches!(laravel.origin, Origin::Php { .. });
    assert!(is_of_php, "{place}: {}", laravel.origin);
    let found = Differences::between(laravel, app, truth);
    assert!(found.list.is_empty(), "{place}:\n{}", found.list.join("\n"));
    assert_eq!((found.unknown.len(), found.secret.len()), (0, 0), "{place}");
    compare_use(laravel, app, truth, place);
}

fn compare_what_the_manifest_says(
    apps: &Apps,
    app: &App,
    env: Env<'_>,
    truth: &Value,
    place: &str,
) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("artisand.json");
    let named = path.to_str().unwrap();
    let env_with_manifest = [env, &[("ARTISAND_MANIFEST", named)]].concat();

    let manifest = apps.manifest(app, env, &[]);
    for secret in ["s3cr3t", "7331733173317331"] {
        assert!(
            !manifest.contains(secret),
            "{place}: the manifest has {secret}"
        );
    }
    std::fs::write(&path, manifest).unwrap();
    let config = load(app, &env_with_manifest, place);
    assert_eq!(config.manifest().unwrap().0, path, "{place}");
    assert_eq!(config.stale_manifest(), [""; 0], "{place}");
    let found = Differences::between(config.laravel().unwrap(), app, truth);
    assert!(found.list.is_empty(), "{place}:\n{}", found.list.join("\n"));
    if found.secret.is_empty() {
        assert_eq!(found.unknown, [""; 0], "{place}");
        return compare_use(config.laravel().unwrap(), app, truth, place);
    }

    let manifest = apps.manifest(app, env, &["--with-secrets"]);
    std::fs::write(&path, manifest).unwrap();
    let config = load(app, &env_with_manifest, place);
    let found = Differences::between(config.laravel().unwrap(), app, truth);
    assert!(found.list.is_empty(), "{place}:\n{}", found.list.join("\n"));
    assert_eq!((found.unknown.len(), found.secret.len()), (0, 0), "{place}");
    compare_use(config.laravel().unwrap(), app, truth, place);
}

fn php_and_the_manifest_of_an_app_say_what_laravel_says(version: u8) {
    for_each(version, |apps, app, env, truth, place| {
        compare_what_php_says(version, app, env, truth, place);
        compare_what_the_manifest_says(apps, app, env, truth, place);
    });
}

on_every_laravel!(php_and_the_manifest_of_an_app_say_what_laravel_says);

/// A manifest that was made without these variables, as in an image, gives Laravel's settings once they are set.
fn php_and_a_manifest_obey_the_variables_that_they_run_with(version: u8) {
    let redis = RedisServer::start();
    let port = redis.port().to_string();
    let apps = Apps::make(version);
    let env: Env<'_> = &[
        ("REDIS_PREFIX", "prod_"),
        ("REDIS_PORT", &port),
        ("REDIS_QUEUE", "hot"),
        ("CACHE_PREFIX", "prod-cache"),
        ("QUEUE_CONNECTION", "redis"),
        ("DB_HOST", "db.example"),
    ];
    let skeletons = ["skeleton-8", "skeleton-10", "skeleton-13"];
    let made = apps.list.iter();
    for app in made.filter(|app| skeletons.contains(&&*app.name)) {
        let place = format!("Laravel {version} {}", app.name);
        let directory = tempfile::tempdir().unwrap();
        let manifest = directory.path().join("artisand.json");
        write_manifest(&settings_of_php(version, app), &manifest, &[]);
        let named = ("ARTISAND_MANIFEST", manifest.to_str().unwrap());
        let config = load(app, &[env, &[named]].concat(), &place);
        let truth = apps.truth(app, env, &redis);
        let found = Differences::between(config.laravel().unwrap(), app, &truth);
        assert!(found.list.is_empty(), "{place}:\n{}", found.list.join("\n"));
        assert_eq!(found.unknown, [""; 0], "{place}");
        assert_eq!(config.stale_manifest(), [""; 0], "{place}");
        let taken = config.settings_of_variables();
        let prefix = ("database.redis.options.prefix", "REDIS_PREFIX");
        let prefix = (prefix.0.to_owned(), prefix.1.to_owned());
        assert!(taken.contains(&prefix), "{place}: {taken:?}");

        // A setting that is computed from a variable is not guessed; the error names both.
        let config = load(app, &[("APP_NAME", "Another"), named], &place);
        let error = config.laravel().unwrap().redis("default").unwrap_err();
        let error = error.to_string();
        for part in ["`database.redis.options.prefix`", "`APP_NAME`"] {
            assert!(error.contains(part), "{place}: {part} in {error}");
        }
        let stale = config.stale_manifest().join("; ");
        assert!(stale.contains("`APP_NAME`"), "{place}: {stale}");

        // And a worker works those keys: with nothing but the manifest, with PHP, and with both.
        let rest = "[worker]\ncontrol_plane = false\n[unmapped]\npolicy = 'leave'\n[[map]]\njob = 'App\\Jobs\\Plain'\nhandler = 'discard'\n";
        let of_php = settings_of_php(version, app) + rest;
        let lines = lines("payloads/laravel-13.jsonl");
        let (_, line) = lines
            .iter()
            .find(|(_, line)| line["kind"] == "plain")
            .unwrap();
        let element = line["element"].as_str().unwrap().as_bytes();
        let with_manifest = format!("settings = 'manifest'\n{rest}");
        for (toml, has_manifest) in [(&with_manifest, true), (&of_php, true), (&of_php, false)] {
            if !has_manifest {
                std::fs::remove_file(&manifest).unwrap();
            }
            std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
            redis.query::<()>(&[b"RPUSH", b"prod_queues:hot", element]);
            let mut command = artisand(&["queue:work", "--stop-when-empty"]);
            if toml == &with_manifest {
                command.env("PATH", NO_PROGRAMS);
            }
            let output = command
                .current_dir(directory.path())
                .envs(env.iter().copied())
                // Secrets are not in the manifest; this server has no password.
                .env("REDIS_PASSWORD", "null")
                .env("DB_PASSWORD", "unused")
                .output()
                .unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(output.status.success(), "{place}: {said}");
            assert_eq!(redis.length("prod_queues:hot"), 0, "{place}: {said}");
            assert_eq!(redis.length("prod_queues:hot:reserved"), 0, "{place}");
        }
    }
}

on_every_laravel!(php_and_a_manifest_obey_the_variables_that_they_run_with);

/// Source that is not UTF-8, and models with a key of two columns or a number for their alias.
fn odd_classes_of_an_app_do_not_cost_the_others(version: u8) {
    let name = format!("skeleton-{version}");
    let apps = Apps::make_these(version, &[&name]);
    let app = &apps.list[0];
    let write = |class: &str, parent: &str, body: &[u8]| {
        let (space, short) = class.rsplit_once('\\').unwrap();
        let head = format!("<?php\n\nnamespace {space};\n\nclass {short} extends {parent}\n{{\n");
        let path = format!("{}.php", class.replace("App\\", "app/").replace('\\', "/"));
        let text = [head.as_bytes(), body, b"\n}\n"].concat();
        std::fs::write(app.here.join(path), text).unwrap();
    };
    let model = "\\Illuminate\\Database\\Eloquent\\Model";
    let two_columns = b"public $incrementing = false;\n\
        protected $primaryKey = ['order_id', 'product_id'];";
    write("App\\Models\\Line", model, two_columns);
    let number = b"public function getMorphClass() { return 1; }";
    write("App\\Models\\Aliased", model, number);
    let literals = b"public function __construct() { $this->onQueue('caf\xe9'); }\n\
        public function displayName() { return 'Caf\xe9'; }\n\
        public function backoff() { return [1, 5]; }";
    write("App\\Jobs\\Latin", "Plain", literals);
    write("App\\Jobs\\LatinName", "Plain", b"public $gr\xf6\xdfe = 1;");

    let text = apps.manifest(app, &[], &[]);
    let manifest = Manifest::parse(Path::new("artisand.json"), text.as_bytes()).unwrap();
    let (line, aliased) = (
        &manifest.models["App\\Models\\Line"],
        &manifest.models["App\\Models\\Aliased"],
    );
    assert_eq!((&line.key, &*line.table), (&None, "lines"));
    assert_eq!(aliased.morph_class.as_deref(), Some("1"));
    let latin = &manifest.classes["App\\Jobs\\Latin"];
    let methods: Vec<&String> = latin.methods.keys().collect();
    assert_eq!(methods, ["backoff"], "what JSON cannot hold is left to PHP");
    assert_eq!(latin.constructor.calls, ["onQueue('caf?')"]);
    assert!(manifest.classes.contains_key("App\\Jobs\\Plain"));
    assert!(!manifest.classes.contains_key("App\\Jobs\\LatinName"));
    let notes = manifest.notes.join("\n");
    assert!(
        notes.contains("App\\Jobs\\LatinName was left out"),
        "{notes}"
    );
}

on_every_laravel!(odd_classes_of_an_app_do_not_cost_the_others);

fn configuration_of_packages_is_merged_as_their_providers_do(version: u8) {
    let apps = Apps::make(version);
    let name = format!("skeleton-{version}");
    let app = apps.list.iter().find(|app| app.name == name).unwrap();
    let write = |path: &str, text: &str| {
        let path = app.here.join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let of_package = "<?php return ['use' => 'default', 'prefix' => env('HORIZON_PREFIX', 'theirs'), 'trim' => ['recent' => 60, 'failed' => 1]];";
    write("vendor/laravel/horizon/config/horizon.php", of_package);
    let of_pulse = "<?php return ['recorders' => ['Laravel\\Pulse\\Recorders\\SlowJobs' => ['threshold' => ['#^Z#' => 9, '#A#' => 5, 'default' => 7]]]];";
    write("vendor/laravel/pulse/config/pulse.php", of_pulse);
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), settings_of_php(version, app)).unwrap();
    let of = |package: &str| {
        let env = variables_of_php(&[]);
        let config = Config::load(Some(file.path()), None, env).unwrap();
        config.laravel().unwrap().config[package].clone()
    };
    let horizon = || of("horizon");
    let trim = json!({"recent": 60, "failed": 1});
    assert_eq!(
        horizon(),
        json!({"use": "default", "prefix": "theirs", "trim": trim})
    );
    write(
        "config/horizon.php",
        "<?php return ['prefix' => 'ours', 'trim' => ['recent' => 5]];",
    );
    assert_eq!(
        horizon(),
        json!({"use": "default", "prefix": "ours", "trim": {"recent": 5}})
    );
    // In the app's order: the first pattern that matches counts.
    assert_eq!(
        of("pulse")["recorders"]["Laravel\\Pulse\\Recorders\\SlowJobs"]["threshold"],
        json!([["#^Z#", 9], ["#A#", 5], ["default", 7]])
    );
}

on_every_laravel!(configuration_of_packages_is_merged_as_their_providers_do);
