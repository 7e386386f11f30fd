//! Where an app's configuration comes from, and what it is, without PHP.
//!
//! [`read`] answers what `config('app')`, `config('queue')`, `config('cache')` and
//! `config('database')` are in a Laravel app that is only looked at. It reads files
//! below the app's root and nothing else; `.env` reaches it through the caller's
//! look-up. Parts that cannot be found out are marked as [`php_config`](super::php_config)
//! says, and [`AppConfig::notes`] tells what was assumed.
//!
//! The rules are in `docs/protocol/app-config.md` 1. What surprises:
//!
//! * A cached configuration is all there is: `.env`, `config/` and defaults do not count.
//! * From Laravel 11 a file of the app is laid over the framework's own, one level
//!   deep, and two levels for connections and stores, but not for `database.redis`.
//! * Below 11 there is nothing below the app's files; where one is missing, what the
//!   skeleton of that version had is a better answer than nothing, and noted.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value as Json};

use super::php_config::{self, ConfigError, Scope};

/// The parts of the configuration that a queue worker needs, and the parts in them that merge one level deeper.
const PARTS: [(&str, Option<&str>); 4] = [
    ("app", None),
    ("queue", Some("connections")),
    ("cache", Some("stores")),
    ("database", Some("connections")),
];

/// What is assumed of an app whose framework has no version.
const NEWEST: Version = Version {
    major: 13,
    minor: 99,
    patch: 99,
};

/// What was found out about an app.
#[derive(Clone, PartialEq)]
pub struct AppConfig {
    /// The framework's version, such as `11.3.0`, if it is written anywhere.
    pub laravel: Option<String>,
    /// An object with the keys `app`, `queue`, `cache` and `database`; what is not configured is null.
    pub config: Json,
    /// Where most of it comes from.
    pub origin: Origin,
    /// The app's storage directory.
    pub storage: PathBuf,
    /// What was assumed or left out, one sentence each, without values.
    pub notes: Vec<String>,
}

impl fmt::Debug for AppConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration has passwords in it.
        f.debug_struct("AppConfig")
            .field("laravel", &self.laravel)
            .field("origin", &self.origin)
            .field("storage", &self.storage)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

/// Where a configuration comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// This file, written by `artisan config:cache`.
    Cached(PathBuf),
    /// `config/*.php` and the environment.
    Files,
    /// The environment only: none of the files is there.
    Defaults,
}

/// Why an app's configuration is not known.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SourceError {
    /// A file is there and cannot be read.
    #[error("could not read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The cached configuration is PHP that cannot be followed; PHP itself can read it.
    #[error("could not follow the cached configuration {}", path.display())]
    Cached {
        /// The file.
        path: PathBuf,
        /// What it stumbled over.
        source: ConfigError,
    },
}

/// The cached configuration, which is then the whole configuration; `None` if there is none.
///
/// `real_env` looks up the process environment only, as Laravel does before it
/// reads `.env`: `APP_CONFIG_CACHE` moves the file.
///
/// # Source
///
/// `Illuminate\Foundation\Application::getCachedConfigPath`.
pub fn cached_config_path(
    base: &Path,
    real_env: &dyn Fn(&str) -> Option<String>,
) -> Option<PathBuf> {
    let moved = real_env("APP_CONFIG_CACHE").and_then(|raw| super::cast(&raw));
    let path = base.join(moved.as_deref().unwrap_or("bootstrap/cache/config.php"));
    path.is_file().then_some(path)
}

/// Finds out the configuration of the app at `base`, as far as can be told without PHP.
///
/// `env` looks up the raw text of a variable in the process environment and then
/// in the app's `.env`, `real_env` in the process environment only. `laravel` is the
/// framework's version where the app does not say it.
///
/// # Errors
///
/// A file that is there and cannot be read, and a cached configuration that cannot
/// be followed. A file below `config/` that cannot be followed is an unknown value
/// and a note.
pub fn read(
    base: &Path,
    laravel: Option<&str>,
    env: &dyn Fn(&str) -> Option<String>,
    real_env: &dyn Fn(&str) -> Option<String>,
) -> Result<AppConfig, SourceError> {
    let mut notes = Vec::new();
    let laravel = framework_version(base).or_else(|| laravel.map(str::to_owned));
    let version = laravel.as_deref().and_then(Version::parse);
    if version.is_none() {
        notes.push(
            "the version of laravel/framework is not known; the newest is assumed".to_owned(),
        );
    }
    let version = version.unwrap_or(NEWEST);
    let cached = cached_config_path(base, real_env);
    // A cached configuration means that `.env` was not loaded.
    let storage_env = if cached.is_some() { real_env } else { env };
    let storage = match storage_env("LARAVEL_STORAGE_PATH") {
        Some(path) if version.number() >= 10_20_00 => PathBuf::from(path),
        _ => base.join("storage"),
    };
    let mut source = Source {
        base,
        env,
        storage,
        version,
        notes,
    };
    let (config, origin) = match cached {
        Some(path) => (source.cached(&path)?, Origin::Cached(path)),
        None => source.files()?,
    };
    Ok(AppConfig {
        laravel,
        config,
        origin,
        storage: source.storage,
        notes: source.notes,
    })
}

struct Source<'a> {
    base: &'a Path,
    env: &'a dyn Fn(&str) -> Option<String>,
    storage: PathBuf,
    version: Version,
    notes: Vec<String>,
}

impl Source<'_> {
    fn cached(&self, path: &Path) -> Result<Json, SourceError> {
        let text = read_text(path)?.unwrap_or_default();
        let file = path
            .strip_prefix(self.base)
            .unwrap_or(path)
            .to_string_lossy();
        let nothing = |_: &str| None;
        let scope = Scope {
            env: &nothing,
            ..self.scope(&[])
        };
        let config = php_config::evaluate(&text, &file, &scope);
        let config = config.map_err(|source| SourceError::Cached {
            path: path.to_owned(),
            source,
        })?;
        let part = |name: &str| match php_config::unknown_reason(&config) {
            Some(_) => config.clone(),
            None => config.get(name).cloned().unwrap_or(Json::Null),
        };
        Ok(PARTS
            .map(|(name, _)| (name.to_owned(), part(name)))
            .into_iter()
            .collect::<Map<_, _>>()
            .into())
    }

    fn files(&mut self) -> Result<(Json, Origin), SourceError> {
        let bootstrap = self.bootstrap()?;
        let has_base = self.version.major >= 11;
        let merges = has_base && !bootstrap.contains("dontMergeFrameworkConfiguration");
        if has_base && !merges {
            self.notes
                .push("bootstrap/app.php keeps the framework's own configuration out".to_owned());
        }
        let mut config = Map::new();
        let mut origin = Origin::Defaults;
        for (name, merged_deeper) in PARTS {
            let own = self.own_file(name)?;
            if own.is_some() {
                origin = Origin::Files;
            }
            let value = match (own, has_base, merges) {
                (Some(own), _, false) => own,
                (Some(own), _, true) => merge(self.framework_file(name)?, own, merged_deeper),
                (None, true, true) => self.framework_file(name)?,
                (None, true, false) => Json::Null,
                (None, false, _) => {
                    let version = self.version;
                    self.notes.push(format!(
                        "embedded: config/{name}.php is not there; that of Laravel {version} is assumed"
                    ));
                    self.embedded(name)
                }
            };
            config.insert(name.to_owned(), value);
        }
        Ok((Json::Object(config), origin))
    }

    /// The code of `bootstrap/app.php`, and notes on what it does that is not followed.
    fn bootstrap(&mut self) -> Result<String, SourceError> {
        const MOVES: [&str; 6] = [
            "useConfigPath",
            "useStoragePath",
            "useDatabasePath",
            "useBootstrapPath",
            "useEnvironmentPath",
            "loadEnvironmentFrom",
        ];
        let text = read_text(&self.base.join("bootstrap/app.php"))?.unwrap_or_default();
        let is_comment = |line: &&str| line.trim_start().starts_with(['*', '#', '/']);
        let code: Vec<&str> = text.lines().filter(|line| !is_comment(line)).collect();
        let code = code.join("\n");
        for call in MOVES.iter().filter(|call| code.contains(**call)) {
            self.notes.push(format!(
                "bootstrap/app.php calls `{call}`, which is not followed"
            ));
        }
        Ok(code)
    }

    fn own_file(&mut self, name: &str) -> Result<Option<Json>, SourceError> {
        let file = format!("config/{name}.php");
        let Some(text) = read_text(&self.base.join(&file))? else {
            return Ok(None);
        };
        let value = php_config::evaluate(&text, &file, &self.scope(&[])).unwrap_or_else(|error| {
            self.notes.push(format!("could not follow {error}"));
            php_config::unknown(&error.to_string())
        });
        Ok(Some(value))
    }

    /// The framework's own configuration file, from `vendor/` or as it is known here.
    fn framework_file(&mut self, name: &str) -> Result<Json, SourceError> {
        let file = format!("vendor/laravel/framework/config/{name}.php");
        if let Some(text) = read_text(&self.base.join(&file))? {
            match php_config::evaluate(&text, &file, &self.scope(&[])) {
                Ok(value) if value.is_object() => return Ok(value),
                Ok(_) => {}
                Err(error) => self.notes.push(format!("could not follow {error}")),
            }
        }
        let version = self.version;
        self.notes.push(format!(
            "embedded: {file} is not there; that of Laravel {version} is assumed"
        ));
        Ok(self.embedded(name))
    }

    fn embedded(&self, name: &str) -> Json {
        let text = match name {
            "app" => include_str!("base/app.php"),
            "queue" => include_str!("base/queue.php"),
            "cache" => include_str!("base/cache.php"),
            _ => include_str!("base/database.php"),
        };
        let variables = [("version", Json::from(self.version.number()))];
        let file = format!("embedded {name}.php");
        php_config::evaluate(text, &file, &self.scope(&variables))
            .unwrap_or_else(|error| php_config::unknown(&error.to_string()))
    }

    fn scope<'a>(&'a self, variables: &'a [(&'a str, Json)]) -> Scope<'a> {
        Scope {
            env: self.env,
            base: self.base,
            storage: &self.storage,
            laravel_major: self.version.major,
            variables,
        }
    }
}

/// Lays a file of the app over the framework's own.
///
/// # Source
///
/// `Illuminate\Foundation\Bootstrap\LoadConfiguration::loadConfigurationFile`, since 11.0.
fn merge(framework: Json, own: Json, merged_deeper: Option<&str>) -> Json {
    let option = |value: &Json| merged_deeper.and_then(|name| value.get(name).cloned());
    let (theirs, ours) = (option(&framework), option(&own));
    let mut merged = array_merge(framework, own);
    if let (Some(name), Some(theirs), Some(ours)) = (merged_deeper, theirs, ours)
        && !ours.is_null()
        && let Some(object) = merged
            .as_object_mut()
            .filter(|object| object.contains_key(name))
    {
        object.insert(name.to_owned(), array_merge(theirs, ours));
    }
    merged
}

/// The keys of `over` win; what is no array, or not known, wins as a whole.
fn array_merge(under: Json, over: Json) -> Json {
    if php_config::unknown_reason(&over).is_some() {
        return over;
    }
    match (under, over) {
        (under @ Json::Object(_), Json::Array(over)) if over.is_empty() => under,
        (Json::Object(mut under), Json::Object(over)) => {
            under.extend(over);
            Json::Object(under)
        }
        (_, over) => over,
    }
}

/// The file's text, `None` if it is not there.
fn read_text(path: &Path) -> Result<Option<String>, SourceError> {
    match std::fs::read(path) {
        // Comments may be in any encoding; texts with a replaced character become unknown values.
        Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
            ) =>
        {
            Ok(None)
        }
        Err(source) => Err(SourceError::Read {
            path: path.to_owned(),
            source,
        }),
    }
}

/// What composer installed, else what the framework says of itself, else what composer would install.
pub fn framework_version(base: &Path) -> Option<String> {
    let json = |file: &str| -> Option<Json> {
        serde_json::from_slice(&std::fs::read(base.join(file)).ok()?).ok()
    };
    let installed = || {
        let json = json("vendor/composer/installed.json")?;
        // Composer 2 has an object, composer 1 the list itself.
        package_version(json.get("packages").unwrap_or(&json))
    };
    let constant = || {
        let file = base.join("vendor/laravel/framework/src/Illuminate/Foundation/Application.php");
        let text = read_text(&file).ok()??;
        let (_, rest) = text.split_once("const VERSION = '")?;
        Some(rest.split_once('\'')?.0.to_owned())
    };
    let locked = || package_version(json("composer.lock")?.get("packages")?);
    let found = [installed(), constant(), locked()].into_iter().flatten();
    // A branch such as `dev-master` says less than the next place.
    let mut found = found.map(|version| version.trim_start_matches('v').to_owned());
    found.find(|version| Version::parse(version).is_some())
}

fn package_version(packages: &Json) -> Option<String> {
    let packages = packages.as_array()?;
    let framework = packages.iter().find(|package| {
        let name = package.get("name").and_then(Json::as_str);
        name == Some("laravel/framework")
    })?;
    Some(framework.get("version")?.as_str()?.to_owned())
}

/// A framework version; a branch such as `11.x-dev` is later than its releases.
#[derive(Debug, Clone, Copy)]
struct Version {
    major: u32,
    minor: u32,
    patch: u32,
}

impl Version {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split(['.', '-', '+']);
        let major = parts.next()?.parse().ok().filter(|major| *major < 1000)?;
        let mut next = || {
            parts
                .next()
                .and_then(|part| part.parse().ok())
                .map_or(99, |part: u32| part.min(99))
        };
        Some(Self {
            major,
            minor: next(),
            patch: next(),
        })
    }

    /// 5.8.35 as 50835, which is how the embedded files compare.
    fn number(self) -> u32 {
        self.major * 10_000 + self.minor * 100 + self.patch
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.major.fmt(f)?;
        for part in [self.minor, self.patch]
            .iter()
            .take_while(|part| **part < 99)
        {
            write!(f, ".{part}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use tempfile::TempDir;

    use super::*;

    /// Paths and texts.
    type Files<'a> = &'a [(&'a str, &'a str)];

    fn app(files: Files<'_>) -> TempDir {
        let dir = TempDir::new().unwrap();
        for (path, text) in files {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        dir
    }

    fn read_app(dir: &TempDir, env: &[(&str, &str)], real: &[(&str, &str)]) -> AppConfig {
        let find = |list: &[(&str, &str)], name: &str| {
            list.iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| (*value).to_owned())
        };
        let all = |name: &str| find(real, name).or_else(|| find(env, name));
        read(dir.path(), None, &all, &|name| find(real, name)).unwrap()
    }

    fn installed(version: &str) -> String {
        json!({"packages": [{"name": "a/b", "version": "1"}, {"name": "laravel/framework", "version": version}]}).to_string()
    }

    const INSTALLED: &str = "vendor/composer/installed.json";

    const QUEUE_5_8: &str = r"<?php
return [
    /*
    | Which connection is used when none is named
    */
    'default' => env('QUEUE_CONNECTION', 'sync'),
    'connections' => [
        'redis' => [
            'driver' => 'redis', // a comment
            'connection' => 'default',
            'queue' => env('REDIS_QUEUE', 'default'),
            'retry_after' => 90,
            'block_for' => null,
        ],
    ],
    'failed' => ['database' => env('DB_CONNECTION', 'mysql'), 'table' => 'failed_jobs'],
];
";

    const DATABASE_8: &str = r"<?php

use Illuminate\Support\Str;

return [
    'default' => env('DB_CONNECTION', 'mysql'),
    'connections' => [
        'mysql' => [
            'driver' => 'mysql',
            'url' => env('DATABASE_URL'),
            'host' => env('DB_HOST', '127.0.0.1'),
            'options' => extension_loaded('pdo_mysql') ? array_filter([
                PDO::MYSQL_ATTR_SSL_CA => env('MYSQL_ATTR_SSL_CA'),
            ]) : [],
        ],
    ],
    'redis' => [
        'client' => env('REDIS_CLIENT', 'phpredis'),
        'options' => [
            'cluster' => env('REDIS_CLUSTER', 'redis'),
            'prefix' => env('REDIS_PREFIX', Str::slug(env('APP_NAME', 'laravel'), '_').'_database_'),
        ],
        'default' => [
            'host' => env('REDIS_HOST', '127.0.0.1'),
            'password' => env('REDIS_PASSWORD', null),
            'port' => env('REDIS_PORT', '6379'),
            'database' => env('REDIS_DB', '0'),
        ],
    ],
];
";

    const CACHE_12_1: &str = r"<?php

use Illuminate\Support\Str;

return [
    'default' => env('CACHE_STORE', 'database'),
    'stores' => [
        'redis' => ['driver' => 'redis', 'connection' => env('REDIS_CACHE_CONNECTION', 'cache')],
    ],
    'prefix' => env('CACHE_PREFIX', Str::slug((string) env('APP_NAME', 'laravel')).'-cache-'),
];
";

    #[test]
    fn files_of_older_apps_are_read_as_they_are() {
        let dir = app(&[
            (INSTALLED, &installed("v8.83.29")),
            (
                "config/app.php",
                "<?php return ['name' => env('APP_NAME', 'Laravel'), 'zone' => date('e')];",
            ),
            ("config/queue.php", QUEUE_5_8),
            ("config/database.php", DATABASE_8),
            (
                "config/cache.php",
                "<?php return ['prefix' => env('CACHE_PREFIX', 'p')]",
            ),
        ]);
        let env = [
            ("APP_NAME", "My App"),
            ("REDIS_PASSWORD", "null"),
            ("MYSQL_ATTR_SSL_CA", "/ca.pem"),
            ("CACHE_PREFIX", ""),
        ];
        let found = read_app(&dir, &env, &[("QUEUE_CONNECTION", "redis")]);
        assert_eq!(found.laravel.as_deref(), Some("8.83.29"));
        assert_eq!(found.origin, Origin::Files);
        assert_eq!(found.notes, [] as [String; 0]);
        let expected = json!({
            "app": {"name": "My App", "zone": {"$unknown": "config/app.php:1: calls `date()`"}},
            "queue": {
                "default": "redis",
                "connections": {"redis": {
                    "driver": "redis", "connection": "default", "queue": "default", "retry_after": 90, "block_for": null,
                }},
                "failed": {"database": "mysql", "table": "failed_jobs"},
            },
            "cache": {"prefix": ""},
            "database": {
                "default": "mysql",
                "connections": {"mysql": {
                    "driver": "mysql", "url": null, "host": "127.0.0.1", "options": {"PDO::MYSQL_ATTR_SSL_CA": "/ca.pem"},
                }},
                "redis": {
                    "client": "phpredis",
                    "options": {"cluster": "redis", "prefix": "my_app_database_"},
                    "default": {"host": "127.0.0.1", "password": null, "port": "6379", "database": "0"},
                },
            },
        });
        assert_eq!(found.config, expected);
    }

    #[test]
    fn from_laravel_11_files_are_laid_over_the_framework_s() {
        let own = "<?php return ['connections' => ['redis' => ['driver' => 'redis', 'queue' => 'mine'], 'extra' => ['driver' => 'sync']]];";
        let dir = app(&[
            (INSTALLED, &installed("v12.3.0")),
            ("config/queue.php", own),
            ("config/cache.php", CACHE_12_1),
            (
                "config/database.php",
                "<?php return ['redis' => ['client' => 'predis'], 'connections' => null];",
            ),
            (
                "vendor/laravel/framework/config/cache.php",
                "<?php return ['stores' => ['octane' => ['driver' => 'octane']], 'more' => 1];",
            ),
        ]);
        let found = read_app(&dir, &[], &[]);
        let at = |pointer: &str| found.config.pointer(pointer).cloned().unwrap_or(Json::Null);
        #[rustfmt::skip]
        let rows = [
            ("/queue/default", json!("database")),
            ("/queue/connections/redis", json!({"driver": "redis", "queue": "mine"})),
            ("/queue/connections/database/table", json!("jobs")),
            ("/queue/connections/extra", json!({"driver": "sync"})),
            ("/queue/failed/driver", json!("database-uuids")),
            ("/cache/stores/octane/driver", json!("octane")),
            ("/cache/stores/redis/connection", json!("cache")),
            ("/cache/stores/file", Json::Null),
            ("/cache/more", json!(1)),
            ("/cache/prefix", json!("laravel-cache-")),
            ("/database/redis", json!({"client": "predis"})),
            ("/database/connections", Json::Null),
            ("/database/default", json!("sqlite")),
            ("/app/name", json!("Laravel")),
            ("/app/maintenance/store", json!("database")),
        ];
        for (pointer, expected) in rows {
            assert_eq!(at(pointer), expected, "{pointer}");
        }
        let embedded = found
            .notes
            .iter()
            .filter(|note| note.starts_with("embedded: vendor/laravel/framework/config/"));
        assert_eq!(embedded.count(), 3, "{:?}", found.notes);

        std::fs::create_dir_all(dir.path().join("bootstrap")).unwrap();
        let bootstrap = "<?php\n$app->dontMergeFrameworkConfiguration();\n// $app->useConfigPath('x');\n$app->useStoragePath('y');";
        std::fs::write(dir.path().join("bootstrap/app.php"), bootstrap).unwrap();
        let found = read_app(&dir, &[], &[]);
        assert_eq!(found.config.pointer("/queue/default"), None);
        assert_eq!(found.config["app"], Json::Null);
        assert_eq!(
            found.notes,
            [
                "bootstrap/app.php calls `useStoragePath`, which is not followed",
                "bootstrap/app.php keeps the framework's own configuration out",
            ]
        );
    }

    #[test]
    fn a_missing_file_is_what_that_version_had() {
        #[rustfmt::skip]
        let rows = [
            // version, Redis prefix, cache prefix, cache connection, queue default, failed driver, client
            ("5.5.0",   None,                       "laravel",         "default", "sync",     None,                   "predis"),
            ("5.8.10",  None,                       "my_app_cache",    "cache",   "sync",     None,                   "predis"),
            ("5.8.35",  Some("my_app_database_"),   "my_app_cache",    "cache",   "sync",     None,                   "predis"),
            ("6.20.45", Some("my_app_database_"),   "my_app_cache",    "cache",   "sync",     Some("database"),       "phpredis"),
            ("8.83.29", Some("my_app_database_"),   "my_app_cache",    "cache",   "sync",     Some("database-uuids"), "phpredis"),
            ("10.x-dev", Some("my_app_database_"),  "my_app_cache_",   "cache",   "sync",     Some("database-uuids"), "phpredis"),
            ("11.3.0",  Some("my_app_database_"),   "my_app_cache_",   "cache",   "database", Some("database-uuids"), "phpredis"),
            ("12.67.0", Some("my_app_database_"),   "my_app_cache_",   "cache",   "database", Some("database-uuids"), "phpredis"),
            ("13.1.0",  Some("my-app-database-"),   "my-app-cache-",   "cache",   "database", Some("database-uuids"), "phpredis"),
        ];
        for (version, redis, cache, connection, queue, failed, client) in rows {
            let dir = app(&[(INSTALLED, &installed(version))]);
            let found = read_app(&dir, &[("APP_NAME", "My App")], &[]);
            assert_eq!(found.origin, Origin::Defaults);
            assert_eq!(found.notes.len(), 4, "{:?}", found.notes);
            let text = |pointer: &str| found.config.pointer(pointer).and_then(Json::as_str);
            let all = (
                text("/database/redis/options/prefix"),
                text("/cache/prefix").unwrap(),
                text("/cache/stores/redis/connection").unwrap(),
                text("/queue/default").unwrap(),
                text("/queue/failed/driver"),
                text("/database/redis/client").unwrap(),
            );
            assert_eq!(
                all,
                (redis, cache, connection, queue, failed, client),
                "{version}"
            );
            assert!(
                !found.config.to_string().contains(php_config::UNKNOWN),
                "{version}"
            );
        }
    }

    #[test]
    fn a_cached_configuration_is_the_whole_configuration() {
        let cached = "<?php return array (\n  'queue' => \n  array (\n    'default' => 'redis',\n  ),\n  'app' => \n  array (\n    'x' => env('A'),\n  ),\n);\n";
        let dir = app(&[
            (INSTALLED, &installed("v11.0.0")),
            ("bootstrap/cache/config.php", cached),
            ("elsewhere/c.php", "<?php return [];"),
            ("config/queue.php", QUEUE_5_8),
        ]);
        let env = [
            ("A", "from the file"),
            ("LARAVEL_STORAGE_PATH", "/from/the/file"),
        ];
        let found = read_app(&dir, &env, &[]);
        let path = dir.path().join("bootstrap/cache/config.php");
        assert_eq!(found.origin, Origin::Cached(path.clone()));
        assert_eq!(
            found.config,
            json!({"app": {"x": null}, "queue": {"default": "redis"}, "cache": null, "database": null})
        );
        assert_eq!(found.storage, dir.path().join("storage"));

        let absolute = dir.path().join("elsewhere/c.php");
        let absolute = absolute.to_str().unwrap();
        #[rustfmt::skip]
        let rows = [
            (None, Some(path.to_str().unwrap())), (Some("null"), Some(path.to_str().unwrap())),
            (Some("elsewhere/c.php"), Some(absolute)), (Some(absolute), Some(absolute)), (Some("nowhere.php"), None), (Some(""), None),
        ];
        for (value, expected) in rows {
            let real = |name: &str| {
                value
                    .filter(|_| name == "APP_CONFIG_CACHE")
                    .map(str::to_owned)
            };
            assert_eq!(
                cached_config_path(dir.path(), &real).as_deref(),
                expected.map(Path::new),
                "{value:?}"
            );
        }

        std::fs::write(&path, "<?php return array (").unwrap();
        let error = read(dir.path(), None, &|_| None, &|_| None).unwrap_err();
        assert!(matches!(error, SourceError::Cached { .. }), "{error}");
    }

    #[test]
    fn the_version_and_the_storage_path_are_found_where_they_are() {
        let application = "class Application\n{\n    const VERSION = '9.52.22';\n}";
        let list = r#"[{"name":"laravel/framework","version":"v5.8.38"}]"#;
        let lock = installed("v10.20.0");
        let constant = "vendor/laravel/framework/src/Illuminate/Foundation/Application.php";
        let branch = installed("dev-master");
        #[rustfmt::skip]
        let rows: [(Files<'_>, Option<&str>, &str); 6] = [
            (&[(INSTALLED, list), ("composer.lock", &lock)], Some("5.8.38"), "storage"),
            (&[(constant, application), ("composer.lock", &lock)], Some("9.52.22"), "storage"),
            (&[(INSTALLED, &branch), (constant, application)], Some("9.52.22"), "storage"),
            (&[("composer.lock", &lock)], Some("10.20.0"), "/moved"),
            (&[(INSTALLED, "{ not json")], None, "/moved"),
            (&[], None, "/moved"),
        ];
        for (files, laravel, storage) in rows {
            let dir = app(files);
            let found = read_app(&dir, &[("LARAVEL_STORAGE_PATH", "/moved")], &[]);
            assert_eq!(found.laravel.as_deref(), laravel, "{files:?}");
            assert_eq!(found.storage, dir.path().join(storage), "{files:?}");
            let is_noted = found
                .notes
                .iter()
                .any(|note| note.contains("version of laravel/framework is not known"));
            assert_eq!(is_noted, laravel.is_none(), "{files:?}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_followed_is_unknown_and_noted() {
        let dir = app(&[
            (INSTALLED, &installed("v12.0.0")),
            ("config/queue.php", "<?php\nreturn ["),
            ("config/cache.php", "<?php return make();"),
            (
                "config/database.php",
                "<?php return ['connections' => many(), 'default' => 'x'];",
            ),
        ]);
        let found = read_app(&dir, &[], &[]);
        assert_eq!(
            found.config["queue"],
            php_config::unknown("config/queue.php:2: unexpected end of the file")
        );
        assert_eq!(
            found.config["cache"],
            php_config::unknown("config/cache.php:1: calls `make()`")
        );
        assert_eq!(
            found.config["database"]["connections"],
            php_config::unknown("config/database.php:1: calls `many()`")
        );
        assert_eq!(found.config["database"]["default"], "x");
        assert!(found.notes.contains(
            &"could not follow config/queue.php:2: unexpected end of the file".to_owned()
        ));
    }
}
