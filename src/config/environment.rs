//! The app's settings as the process environment and `.env` alone say them.
//!
//! This is for where PHP does not run and no manifest is: the variables that Laravel's own
//! configuration files read, with their defaults (docs/protocol/app-config.md 5 to 9). What
//! such a file of the app says otherwise is not known. A key prefix is never guessed: one
//! that no variable holds and that only PHP can tell is marked as unknown.

use std::path::Path;

use serde_json::{Value, json};

use crate::app::{Version, cast, slug};

/// Files whose settings a worker needs.
const FILES: [&str; 4] = ["app", "queue", "cache", "database"];

/// The configuration of an app that keeps it in a cache which only PHP reads.
pub(super) fn config_behind(cache: &Path) -> Value {
    let why = format!(
        "it is in the cached configuration {}, which only PHP reads",
        cache.display()
    );
    let section = |name: &str| (name.to_owned(), json!({"$unknown": why}));
    FILES.map(section).into_iter().collect()
}

/// What is known of the app.
pub(super) struct Environment<'a> {
    /// Its directory.
    pub(super) base: &'a Path,
    /// Its storage directory.
    pub(super) storage: &'a Path,
    /// Version of its framework, if that is known.
    pub(super) version: Option<Version>,
    /// The raw text of a variable.
    pub(super) variable: &'a dyn Fn(&str) -> Option<String>,
}

impl Environment<'_> {
    /// `{"app": .., "queue": .., "cache": .., "database": ..}`.
    pub(super) fn config(&self) -> Value {
        json!({
            "app": self.app(),
            "queue": self.queue(),
            "cache": self.cache(),
            "database": self.database(),
        })
    }

    /// What had to be assumed, one sentence each.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut notes = Vec::new();
        let mut files = FILES.to_vec();
        files.retain(|file| self.has_file(file));
        if !files.is_empty() {
            let files: Vec<String> = files
                .iter()
                .map(|file| format!("config/{file}.php"))
                .collect();
            notes.push(format!(
                "{} can only be read by PHP: settings are those of the environment",
                files.join(", ")
            ));
        }
        notes
    }

    /// `env()` of Laravel: the default is for a variable that is not set.
    fn env(&self, name: &str, default: impl Into<Value>) -> Value {
        match (self.variable)(name) {
            Some(raw) => cast(&raw).map_or(Value::Null, Value::from),
            None => default.into(),
        }
    }

    fn text(&self, name: &str, default: &str) -> String {
        match (self.variable)(name) {
            Some(raw) => cast(&raw).unwrap_or_default(),
            None => default.to_owned(),
        }
    }

    fn version(&self) -> (u32, u32, u32) {
        let version = self.version.unwrap_or_default();
        (version.major, version.minor, version.patch)
    }

    /// From Laravel 11 on, much more can be set by variables.
    fn is_at_least_11(&self) -> bool {
        self.version() >= (11, 0, 0)
    }

    fn has_file(&self, name: &str) -> bool {
        let path = format!("config/{name}.php");
        self.base.join(path).is_file()
    }

    /// A prefix that is made of the app's name, if no variable holds it.
    fn prefix(&self, file: &str, variable: &str, separator: char, end: &str) -> Value {
        let unknown = |why: String| json!({"$unknown": format!("{why} (set `{variable}` in its environment)")});
        if (self.variable)(variable).is_some() {
            return self.env(variable, Value::Null);
        }
        if self.has_file(file) {
            return unknown(format!("config/{file}.php says it, which only PHP reads"));
        }
        if self.version.is_none() {
            return unknown("it depends on the version of Laravel, which is not known".to_owned());
        }
        match slug(&self.text("APP_NAME", "laravel"), separator) {
            Some(slug) => format!("{slug}{end}").into(),
            None => unknown(
                "it is made of `APP_NAME`, which has letters that only PHP turns into ASCII"
                    .to_owned(),
            ),
        }
    }

    fn app(&self) -> Value {
        let mut app = json!({
            "env": self.env("APP_ENV", "production"),
            "timezone": "UTC",
            "key": self.env("APP_KEY", Value::Null),
            "maintenance": {"driver": "file"},
        });
        if self.is_at_least_11() {
            let previous = self.text("APP_PREVIOUS_KEYS", "");
            app["previous_keys"] = super::laravel::split_keys(&previous).into();
            app["maintenance"] = json!({
                "driver": self.env("APP_MAINTENANCE_DRIVER", "file"),
                "store": self.env("APP_MAINTENANCE_STORE", "database"),
            });
            app["timezone"] = self.env("APP_TIMEZONE", "UTC");
        }
        app
    }

    fn queue(&self) -> Value {
        let is_new = self.is_at_least_11();
        let variable = if self.version() >= (5, 7, 0) {
            "QUEUE_CONNECTION"
        } else {
            "QUEUE_DRIVER"
        };
        let mut redis = json!({
            "driver": "redis",
            "connection": "default",
            "queue": self.env("REDIS_QUEUE", "default"),
            "retry_after": 90,
        });
        let mut jobs = json!({
            "driver": "database",
            "connection": null,
            "table": "jobs",
            "queue": "default",
            "retry_after": 90,
        });
        if is_new {
            redis["connection"] = self.env("REDIS_QUEUE_CONNECTION", "default");
            redis["retry_after"] = self.env("REDIS_QUEUE_RETRY_AFTER", 90);
            jobs["connection"] = self.env("DB_QUEUE_CONNECTION", Value::Null);
            jobs["table"] = self.env("DB_QUEUE_TABLE", "jobs");
            jobs["queue"] = self.env("DB_QUEUE", "default");
            jobs["retry_after"] = self.env("DB_QUEUE_RETRY_AFTER", 90);
        }
        let database = self.env("DB_CONNECTION", self.default_database());
        let mut failed = json!({"database": database, "table": "failed_jobs"});
        if self.version() >= (6, 0, 0) {
            let is_by_uuid = self.version() >= (8, 0, 0);
            let driver = if is_by_uuid {
                "database-uuids"
            } else {
                "database"
            };
            failed["driver"] = self.env("QUEUE_FAILED_DRIVER", driver);
        }
        json!({
            "default": self.env(variable, if is_new { "database" } else { "sync" }),
            "connections": {
                "sync": {"driver": "sync"},
                "database": jobs,
                "redis": redis,
            },
            "batching": {"database": database, "table": "job_batches"},
            "failed": failed,
        })
    }

    fn cache(&self) -> Value {
        let version = self.version();
        let (separator, end) = match version {
            (13.., ..) => ('-', "-cache-"),
            version if version >= (9, 0, 1) => ('_', "_cache_"),
            _ => ('_', "_cache"),
        };
        let mut redis = json!({
            "driver": "redis",
            "connection": if version >= (5, 7, 0) { "cache" } else { "default" },
        });
        let mut database = json!({"driver": "database", "table": "cache"});
        let default = if self.is_at_least_11() {
            redis["connection"] = self.env("REDIS_CACHE_CONNECTION", "cache");
            redis["lock_connection"] = self.env("REDIS_CACHE_LOCK_CONNECTION", "default");
            database["connection"] = self.env("DB_CACHE_CONNECTION", Value::Null);
            database["table"] = self.env("DB_CACHE_TABLE", "cache");
            database["lock_connection"] = self.env("DB_CACHE_LOCK_CONNECTION", Value::Null);
            database["lock_table"] = self.env("DB_CACHE_LOCK_TABLE", Value::Null);
            self.env("CACHE_STORE", "database")
        } else {
            if version >= (8, 5, 6) {
                redis["lock_connection"] = "default".into();
            }
            self.env("CACHE_DRIVER", "file")
        };
        let path = self.storage.join("framework/cache/data");
        json!({
            "default": default,
            "stores": {
                "array": {"driver": "array"},
                "database": database,
                "dynamodb": {"driver": "dynamodb"},
                "file": {"driver": "file", "path": path},
                "memcached": {"driver": "memcached"},
                "octane": {"driver": "octane"},
                "redis": redis,
            },
            "prefix": self.prefix("cache", "CACHE_PREFIX", separator, end),
        })
    }

    fn default_database(&self) -> &'static str {
        if self.is_at_least_11() {
            "sqlite"
        } else {
            "mysql"
        }
    }

    fn database(&self) -> Value {
        let (url, name, user) = if self.is_at_least_11() {
            ("DB_URL", "laravel", "root")
        } else {
            ("DATABASE_URL", "forge", "forge")
        };
        let server = |driver: &str, port: u16| {
            let mut server = json!({
                "driver": driver,
                "url": self.env(url, Value::Null),
                "host": self.env("DB_HOST", "127.0.0.1"),
                "port": self.env("DB_PORT", port),
                "database": self.env("DB_DATABASE", name),
                "username": self.env("DB_USERNAME", user),
                "password": self.env("DB_PASSWORD", ""),
            });
            if driver == "pgsql" {
                server["sslmode"] = "prefer".into();
            } else {
                server["unix_socket"] = self.env("DB_SOCKET", "");
                let authority = self.env("MYSQL_ATTR_SSL_CA", "");
                if authority.as_str().is_some_and(|path| !path.is_empty()) {
                    // `PDO::MYSQL_ATTR_SSL_CA`
                    server["options"] = json!({"1009": authority});
                }
            }
            server
        };
        let file = self.base.join("database/database.sqlite");
        let file = file.to_string_lossy();
        json!({
            "default": self.env("DB_CONNECTION", self.default_database()),
            "connections": {
                "sqlite": {
                    "driver": "sqlite",
                    "url": self.env(url, Value::Null),
                    "database": self.env("DB_DATABASE", &*file),
                },
                "mysql": server("mysql", 3306),
                "mariadb": server("mariadb", 3306),
                "pgsql": server("pgsql", 5432),
            },
            "redis": self.redis(),
        })
    }

    fn redis(&self) -> Value {
        let version = self.version();
        let client = if version >= (6, 0, 0) {
            "phpredis"
        } else {
            "predis"
        };
        let client = self.env("REDIS_CLIENT", client);
        let database = |variable: &str, default: &str| {
            let mut connection = json!({
                "url": self.env("REDIS_URL", Value::Null),
                "host": self.env("REDIS_HOST", "127.0.0.1"),
                "username": self.env("REDIS_USERNAME", Value::Null),
                "password": self.env("REDIS_PASSWORD", Value::Null),
                "port": self.env("REDIS_PORT", "6379"),
                "database": self.env(variable, default),
            });
            // As the package `namoshek/laravel-redis-sentinel` has it.
            if client == "phpredis-sentinel" {
                let host = self.env("REDIS_SENTINEL_HOST", "127.0.0.1");
                connection["sentinel_host"] = host;
                connection["sentinel_port"] = self.env("REDIS_SENTINEL_PORT", "26379");
                connection["sentinel_service"] = self.env("REDIS_SENTINEL_SERVICE", "mymaster");
                let user = self.env("REDIS_SENTINEL_USERNAME", Value::Null);
                connection["sentinel_username"] = user;
                let password = self.env("REDIS_SENTINEL_PASSWORD", Value::Null);
                connection["sentinel_password"] = password;
            }
            connection
        };
        let prefix = match version {
            (13.., ..) => self.prefix("database", "REDIS_PREFIX", '-', "-database-"),
            version if version >= (5, 8, 16) => {
                self.prefix("database", "REDIS_PREFIX", '_', "_database_")
            }
            _ => Value::Null,
        };
        json!({
            "client": client,
            "options": {"prefix": prefix},
            "default": database("REDIS_DB", "0"),
            "cache": database("REDIS_CACHE_DB", "1"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Settings under these variables, of an app with these files.
    fn config(version: Option<&str>, env: &[(&str, &str)], files: &[&str]) -> (Value, Vec<String>) {
        let base = tempfile::tempdir().unwrap();
        std::fs::create_dir(base.path().join("config")).unwrap();
        for file in files {
            std::fs::write(base.path().join(file), "<?php return [];").unwrap();
        }
        let find = |name: &str| {
            let found = env.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| (*value).to_owned())
        };
        let environment = Environment {
            base: base.path(),
            storage: Path::new("/storage"),
            version: version.map(|version| version.parse().unwrap()),
            variable: &find,
        };
        (environment.config(), environment.notes())
    }

    #[test]
    fn what_no_variable_holds_is_what_that_version_has() {
        #[rustfmt::skip]
        let rows = [
            // version, Redis prefix, cache prefix, cache connection, queue default, failed driver
            ("5.5.0",    None,                     "my_app_cache",  "default", "sync",     None),
            ("5.8.35",   Some("my_app_database_"), "my_app_cache",  "cache",   "sync",     None),
            ("6.20.45",  Some("my_app_database_"), "my_app_cache",  "cache",   "sync",     Some("database")),
            ("8.83.29",  Some("my_app_database_"), "my_app_cache",  "cache",   "sync",     Some("database-uuids")),
            ("10.x-dev", Some("my_app_database_"), "my_app_cache_", "cache",   "sync",     Some("database-uuids")),
            ("12.67.0",  Some("my_app_database_"), "my_app_cache_", "cache",   "database", Some("database-uuids")),
            ("13.1.0",   Some("my-app-database-"), "my-app-cache-", "cache",   "database", Some("database-uuids")),
        ];
        for (version, redis, cache, connection, queue, failed) in rows {
            let (config, notes) = config(Some(version), &[("APP_NAME", "My App")], &[]);
            let text = |pointer: &str| config.pointer(pointer).and_then(Value::as_str);
            let all = (
                text("/database/redis/options/prefix"),
                text("/cache/prefix").unwrap(),
                text("/cache/stores/redis/connection").unwrap(),
                text("/queue/default").unwrap(),
                text("/queue/failed/driver"),
            );
            assert_eq!(all, (redis, cache, connection, queue, failed), "{version}");
            assert_eq!(notes, [""; 0], "{version}");
        }
    }

    #[test]
    fn a_prefix_is_never_guessed() {
        let redis = |version, env: &[(&str, &str)], files: &[&str]| {
            let (mut config, _) = config(version, env, files);
            config["database"]["redis"]["options"]["prefix"].take()
        };
        let why = |prefix: Value| prefix["$unknown"].as_str().unwrap().to_owned();
        let told = [("REDIS_PREFIX", "p_"), ("APP_NAME", "Café")];
        assert_eq!(redis(None, &told, &["config/database.php"]), "p_");
        assert_eq!(redis(None, &[("REDIS_PREFIX", "null")], &[]), Value::Null);
        let version = Some("13.0.0");
        for (prefix, part) in [
            (redis(version, &told[1..], &[]), "`APP_NAME`"),
            (
                redis(version, &[], &["config/database.php"]),
                "config/database.php",
            ),
            (redis(None, &[], &[]), "the version of Laravel"),
        ] {
            let why = why(prefix);
            assert!(
                why.contains(part) && why.contains("(set `REDIS_PREFIX`"),
                "{why}"
            );
        }
        let (_, notes) = config(None, &[], &["config/queue.php", "config/cache.php"]);
        assert_eq!(
            notes,
            [
                "config/queue.php, config/cache.php can only be read by PHP: settings are those of the environment",
            ]
        );
    }

    #[test]
    fn jobs_in_a_database_are_where_variables_say() {
        let env = [
            ("DB_QUEUE_CONNECTION", "pgsql"),
            ("DB_QUEUE_TABLE", "work"),
            ("DB_QUEUE", "mail"),
            ("DB_QUEUE_RETRY_AFTER", "30"),
        ];
        let usual = json!({"driver": "database", "connection": null, "table": "jobs", "queue": "default", "retry_after": 90});
        let told = json!({"driver": "database", "connection": "pgsql", "table": "work", "queue": "mail", "retry_after": "30"});
        for (version, env, expected) in [
            ("11.0.0", &env[..], &told),
            ("13.0.0", &[], &usual),
            ("10.48.0", &env[..], &usual),
        ] {
            let (config, _) = config(Some(version), env, &[]);
            assert_eq!(
                config["queue"]["connections"]["database"], *expected,
                "{version}"
            );
        }
    }

    #[test]
    fn variables_count_as_laravel_casts_them() {
        let env = [
            ("QUEUE_CONNECTION", "redis"),
            ("REDIS_QUEUE_RETRY_AFTER", "30"),
            ("REDIS_PASSWORD", "null"),
            ("CACHE_PREFIX", ""),
            ("APP_PREVIOUS_KEYS", "a,,b"),
            ("MYSQL_ATTR_SSL_CA", "/ca.pem"),
        ];
        let (config, _) = config(Some("12.0.0"), &env, &[]);
        let at = |pointer: &str| config.pointer(pointer).cloned().unwrap_or_default();
        #[rustfmt::skip]
        let rows = [
            ("/queue/default", json!("redis")),
            ("/queue/connections/redis/retry_after", json!("30")),
            ("/database/redis/default/password", Value::Null),
            ("/cache/prefix", json!("")),
            ("/cache/stores/file/path", json!("/storage/framework/cache/data")),
            ("/app/previous_keys", json!(["a", "b"])),
            ("/app/maintenance/store", json!("database")),
            ("/database/connections/mysql/options/1009", json!("/ca.pem")),
        ];
        for (pointer, expected) in rows {
            assert_eq!(at(pointer), expected, "{pointer}");
        }
    }
}
