//! The app's configuration, as Laravel's own components would use it.
//!
//! Wherever it came from (PHP, a manifest, the environment), it
//! is the value of `config('app')`, `config('queue')`, `config('cache')` and
//! `config('database')`; what Laravel makes of it depends on its version and
//! is done here (docs/protocol/app-config.md 5 to 9). What could not be found
//! out is an error only where it is needed.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

use crate::app::Version;
use crate::batch::Batches;
use crate::cache::{
    Cache, DatabaseStore, DatabaseStoreOptions, FileStore, FileStoreOptions, Maintenance,
    RedisStore, random_owner,
};
use crate::connection::{
    self, Database, DatabaseKind, DatabaseOptions, Databases, Redis, RedisAddress, RedisOptions,
};
use crate::failed::{DatabaseFailedJobs, FailedJobs, FileFailedJobs, FileLock, Unlock};
use crate::payload::{Encrypter, KeyError};
use crate::queue::{ConnectionName, RedisQueueOptions};
use crate::shown::with_causes;
use crate::time::Clock;

/// Looks up a variable of the process environment or `.env`, cast as Laravel casts it.
pub type EnvLookup = Arc<dyn Fn(&str) -> Option<String> + Send + Sync>;

/// The app's configuration.
#[derive(Clone)]
pub struct Laravel {
    /// Version of the framework, where it is known.
    pub version: Option<String>,
    /// `{"app": .., "queue": .., "cache": .., "database": ..}`.
    pub config: Value,
    /// The app's directory.
    pub base: PathBuf,
    /// Its storage directory.
    pub storage: PathBuf,
    /// Prefixes of cache stores, where the stores said them themselves.
    pub cache_prefixes: BTreeMap<String, Option<String>>,
    /// Where it came from.
    pub origin: Origin,
    /// Secrets are looked up here.
    pub env: EnvLookup,
}

/// Where a configuration came from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// PHP loaded it.
    Php {
        /// The cached configuration, if that was in use.
        cached: Option<PathBuf>,
    },
    /// This manifest.
    Manifest(PathBuf),
    /// The process environment and the `.env` in this directory.
    Environment(PathBuf),
}

impl std::fmt::Display for Origin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Php { cached: None } => f.write_str("config/*.php and .env, loaded by PHP"),
            Self::Php { cached: Some(path) } => {
                write!(f, "cached configuration {}, loaded by PHP", path.display())
            }
            Self::Manifest(path) => write!(f, "manifest {}", path.display()),
            Self::Environment(base) => write!(f, ".env in {}", base.display()),
        }
    }
}

impl std::fmt::Debug for Laravel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        // The configuration may hold passwords.
        f.debug_struct("Laravel")
            .field("version", &self.version)
            .field("base", &self.base)
            .field("origin", &self.origin)
            .finish_non_exhaustive()
    }
}

/// A setting of the app that is missing, unknown or not supported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// It could not be found out.
    #[error("cannot tell `{path}` of the app: {why}; write a manifest with `artisand manifest`")]
    Unknown {
        /// Path of the setting.
        path: String,
        /// Why not.
        why: String,
    },
    /// A secret that the manifest left out.
    #[error("the manifest leaves out the secret `{path}`: {remedy}")]
    Secret {
        /// Path of the setting.
        path: String,
        /// What would work.
        remedy: String,
    },
    /// It is not there.
    #[error("the app has no `{path}` (there are: {there})")]
    Missing {
        /// Path of the setting.
        path: String,
        /// What is there instead.
        there: String,
    },
    /// It is there and nothing we can use.
    #[error("`{path}` of the app is {found}, expected {expected}")]
    Wrong {
        /// Path of the setting.
        path: String,
        /// What it is.
        found: String,
        /// What would work.
        expected: String,
    },
    /// A cache store of a kind that is not supported: `memcached`, `dynamodb`, `octane`, `apc`, `storage`, an app's own.
    #[error(
        "`{path}` of the app is `{driver}`, which only PHP reads (artisand reads redis, database and file)"
    )]
    OnlyPhp {
        /// Path of the setting.
        path: String,
        /// The kind.
        driver: String,
    },
    /// Values would be written otherwise than we can read them.
    #[error(
        "`{path}` is {value}: phpredis then changes the bytes of cache values and locks, which artisand does not read; unset it, or give the cache store a connection without it, or set `control_plane = false` under [worker] to work without the app's signals"
    )]
    Encoded {
        /// Path of the option.
        path: String,
        /// What it is.
        value: String,
    },
    /// The encryption key or cipher is missing, or of no use.
    #[error("`app.key` of the app cannot be used")]
    Key(#[from] KeyError),
    /// A connection cannot be made.
    #[error("`{path}` of the app cannot be used")]
    Connection {
        /// Path of the setting.
        path: String,
        /// Why not.
        source: connection::Error,
    },
}

impl SettingError {
    /// True if the setting is a good one, for PHP alone.
    pub fn is_for_php_only(&self) -> bool {
        matches!(self, Self::OnlyPhp { .. })
    }
}

/// A queue connection of the app.
#[derive(Debug, Clone)]
pub struct QueueSettings {
    /// The server.
    pub redis: RedisOptions,
    /// The queues on it.
    pub queue: RedisQueueOptions,
    /// Queue that is meant where none is named.
    pub default_queue: String,
}

/// A Redis connection of the app, and what would change its bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RedisSettings {
    /// How to reach it.
    pub options: RedisOptions,
    /// Path and value of a serializer or compression option.
    pub encoded: Option<(String, String)>,
}

type Found<T> = Result<T, SettingError>;

/// Settings for which a manifest may name a variable.
const SECRETS: [&str; 4] = ["password", "url", "key", "previous_keys"];

impl Laravel {
    /// Whether PHP has loaded it now.
    pub(super) fn is_of_php(&self) -> bool {
        matches!(self.origin, Origin::Php { .. })
    }

    /// The framework's version as two numbers; where it is unknown, the newest.
    pub fn major_minor(&self) -> (u32, u32) {
        let known = self.known_version();
        (known.major, known.minor)
    }

    /// The framework's version; where it is unknown, the newest.
    pub fn known_version(&self) -> Version {
        let known = self.version.as_deref();
        known
            .and_then(|version| version.parse().ok())
            .unwrap_or_default()
    }

    fn is_at_least(&self, major: u32, minor: u32) -> bool {
        self.major_minor() >= (major, minor)
    }

    /// The value at a path; null counts as absent.
    fn at(&self, path: &[&str]) -> Found<Option<&Value>> {
        let mut value = &self.config;
        for (depth, key) in path.iter().enumerate() {
            self.known(value, &path[..depth])?;
            match value.get(*key) {
                Some(inner) => value = inner,
                None => return Ok(None),
            }
        }
        self.known(value, path)?;
        Ok(Some(value).filter(|value| !value.is_null()))
    }

    #[expect(clippy::unused_self, reason = "reads as its siblings do")]
    fn known(&self, value: &Value, path: &[&str]) -> Found<()> {
        match value.get("$unknown").and_then(Value::as_str) {
            Some(why) => Err(SettingError::Unknown {
                path: path.join("."),
                why: why.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// A scalar as text: PHP's string cast. Secrets are looked up.
    fn text(&self, path: &[&str]) -> Found<Option<String>> {
        let Some(value) = self.at(path)? else {
            return Ok(None);
        };
        self.scalar(value, path)
    }

    fn scalar(&self, value: &Value, path: &[&str]) -> Found<Option<String>> {
        Ok(Some(match value {
            Value::String(text) => text.clone(),
            Value::Number(number) => number.to_string(),
            Value::Bool(value) => if *value { "1" } else { "" }.to_owned(),
            Value::Null => return Ok(None),
            Value::Object(object)
                if object.contains_key("$env") || object.contains_key("$secret") =>
            {
                return self.secret(object, path).map(Some);
            }
            Value::Object(object) if object.contains_key("$unknown") => {
                self.known(value, path)?;
                return Ok(None);
            }
            Value::Array(_) | Value::Object(_) => {
                return Err(SettingError::Wrong {
                    path: path.join("."),
                    found: "an array".into(),
                    expected: "a text or a number".into(),
                });
            }
        }))
    }

    fn secret(&self, object: &Map<String, Value>, path: &[&str]) -> Found<String> {
        let missing = |remedy: String| SettingError::Secret {
            path: path.join("."),
            remedy,
        };
        // A manifest written by an attacker must not send other variables to the attacker's server.
        let holds_secrets = path.last().is_some_and(|key| SECRETS.contains(key));
        match object.get("$env").and_then(Value::as_str) {
            Some(name) if !holds_secrets => Err(missing(format!(
                "it names the variable {name}, which is looked up for passwords, keys and URLs only; write the manifest anew with `artisand manifest`"
            ))),
            Some(name) => (self.env)(name).ok_or_else(|| {
                missing(format!("set {name} in the environment or in the app's .env"))
            }),
            None => Err(missing(
                "no variable of the environment held it; write the manifest with --with-secrets, or set it in artisand.toml".into(),
            )),
        }
    }

    fn number(&self, path: &[&str]) -> Found<Option<i64>> {
        let Some(text) = self.text(path)?.filter(|text| !text.is_empty()) else {
            return Ok(None);
        };
        let number = text
            .trim()
            .parse::<f64>()
            .ok()
            .filter(|number| number.abs() < 9e15);
        match number {
            #[expect(clippy::cast_possible_truncation, reason = "PHP's int cast cuts, too")]
            Some(number) => Ok(Some(number as i64)),
            None => Err(SettingError::Wrong {
                path: path.join("."),
                found: format!("`{text}`"),
                expected: "a number".into(),
            }),
        }
    }

    fn names(&self, path: &[&str]) -> Found<Vec<String>> {
        let object = self.at(path)?.and_then(Value::as_object);
        Ok(object
            .map(|object| object.keys().cloned().collect())
            .unwrap_or_default())
    }

    fn missing(&self, path: &[&str]) -> SettingError {
        let parent = &path[..path.len() - 1];
        let there = self.names(parent).unwrap_or_default().join(", ");
        SettingError::Missing {
            path: path.join("."),
            there: if there.is_empty() {
                "none".into()
            } else {
                there
            },
        }
    }

    // --- queue

    /// `queue.default`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn default_queue_connection(&self) -> Found<Option<String>> {
        self.text(&["queue", "default"])
    }

    /// Names of the queue connections.
    ///
    /// # Errors
    ///
    /// They cannot be told.
    pub fn queue_connections(&self) -> Found<Vec<String>> {
        self.names(&["queue", "connections"])
    }

    /// Whether there is a queue connection of this name.
    pub fn has_queue_connection(&self, name: &str) -> bool {
        matches!(
            self.at(&["queue", "connections", name]),
            Ok(Some(_)) | Err(_)
        )
    }

    /// Driver of a queue connection; `None` if there is none of this name.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn queue_driver(&self, name: &str) -> Found<Option<String>> {
        self.text(&["queue", "connections", name, "driver"])
    }

    /// A queue connection, which has to be one on Redis; `prefix` is said for it and beats the app's key prefix.
    ///
    /// # Errors
    ///
    /// It is missing, has another driver, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Connectors\RedisConnector`.
    pub fn queue(&self, name: &str, prefix: Option<&str>) -> Found<QueueSettings> {
        let path = ["queue", "connections", name];
        let of = |key: &'static str| ["queue", "connections", name, key];
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = self.text(&of("driver"))?.unwrap_or_default();
        if driver != "redis" {
            return Err(SettingError::Wrong {
                path: of("driver").join("."),
                found: format!("`{driver}`"),
                expected: "`redis`, the only driver this version works".into(),
            });
        }
        let redis = self
            .text(&of("connection"))?
            .unwrap_or_else(|| "default".into());
        let redis = self.prefixed_redis(&redis, prefix)?;
        let retry_after = self.number(&of("retry_after"))?.unwrap_or(60);
        let defaults = RedisQueueOptions::default();
        let batch = self.number(&of("migration_batch_size"))?;
        let batch = batch.and_then(|batch| usize::try_from(batch).ok());
        Ok(QueueSettings {
            redis: redis.options,
            queue: RedisQueueOptions {
                connection: ConnectionName::from(name),
                retry_after: Some(Duration::from_secs(u64::try_from(retry_after).unwrap_or(0))),
                notify: self.is_at_least(5, 8),
                migration_batch: batch
                    .filter(|batch| *batch > 0)
                    .unwrap_or(defaults.migration_batch),
                ..defaults
            },
            default_queue: self
                .text(&of("queue"))?
                .filter(|queue| !queue.is_empty())
                .unwrap_or_else(|| "default".into()),
        })
    }

    // --- Redis

    /// Names of the Redis connections.
    ///
    /// # Errors
    ///
    /// They cannot be told.
    pub fn redis_connections(&self) -> Found<Vec<String>> {
        let mut names = self.names(&["database", "redis"])?;
        names.retain(|name| !matches!(&**name, "client" | "options" | "clusters"));
        Ok(names)
    }

    /// A Redis connection.
    ///
    /// # Errors
    ///
    /// It is missing, a cluster, or cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Redis\RedisManager`, `Illuminate\Redis\Connectors\PhpRedisConnector`.
    pub fn redis(&self, name: &str) -> Found<RedisSettings> {
        self.prefixed_redis(name, None)
    }

    fn prefixed_redis(&self, name: &str, prefix: Option<&str>) -> Found<RedisSettings> {
        let path = ["database", "redis", name];
        let Some(connection) = self.at(&path)? else {
            if self.at(&["database", "redis", "clusters", name])?.is_some() {
                return Err(SettingError::Wrong {
                    path: format!("database.redis.clusters.{name}"),
                    found: "a Redis cluster".into(),
                    expected: "a single server, the only kind this version works".into(),
                });
            }
            return Err(self.missing(&path));
        };
        let mut fields = match connection {
            Value::Object(fields)
                if fields.contains_key("$env") || fields.contains_key("$secret") =>
            {
                url_only(self.secret(fields, &["database", "redis", name, "url"])?)
            }
            Value::Object(fields) => fields.clone(),
            Value::String(url) => url_only(url.clone()),
            _ => return Err(self.missing(&path)),
        };
        let is_predis = self.text(&["database", "redis", "client"])?.as_deref() == Some("predis");
        self.apply_url(&mut fields, &path, Url::Redis)?;
        let of = |key: &'static str| ["database", "redis", name, key];
        let field = |key: &'static str| match fields.get(key) {
            Some(value) => self.scalar(value, &of(key)),
            None => Ok(None),
        };
        let mut merged = Map::new();
        if let Some(Value::Object(global)) = self.at(&["database", "redis", "options"])? {
            merged.extend(global.clone());
        }
        if let Some(Value::Object(own)) = fields.get("options") {
            merged.extend(own.clone());
        }
        // Before 9.12 phpredis took no notice of a prefix beside the options.
        if let Some(prefix) = fields
            .get("prefix")
            .filter(|_| self.is_at_least(9, 12) || is_predis)
        {
            merged.insert("prefix".into(), prefix.clone());
        }
        if let Some(prefix) = prefix {
            merged.insert("prefix".into(), prefix.into());
        }
        let option = |key: &'static str| match merged.get(key) {
            Some(value) => self.scalar(value, &["database", "redis", "options", key]),
            None => Ok(None),
        };
        let mut encoded = None;
        for key in ["serializer", "compression"] {
            let value = option(key)?.or(field(key)?);
            if let Some(value) = value.filter(|value| !matches!(&**value, "" | "0" | "none")) {
                encoded.get_or_insert((format!("database.redis.options.{key}"), value));
            }
        }
        let host = field("host")?.unwrap_or_else(|| "127.0.0.1".into());
        let port = match fields.get("port") {
            Some(_) => self.port(&fields, &of("port"), 6379)?,
            None => 6379,
        };
        let is_tls = matches!(field("scheme")?.as_deref(), Some("tls" | "rediss"));
        let socket =
            field("path")?.filter(|_| field("scheme").ok().flatten().as_deref() == Some("unix"));
        // A password that looks like a number came as one out of a URL; then no user name is sent with it.
        let has_text_password = fields
            .get("password")
            .is_some_and(|password| !password.is_number());
        let password = field("password")?.filter(|password| !password.is_empty());
        let sends_user =
            is_predis || (self.is_at_least(9, 6) && has_text_password && password.is_some());
        let database = match field("database")? {
            Some(database) => database.trim().parse().unwrap_or(0),
            None => 0,
        };
        Ok(RedisSettings {
            options: RedisOptions {
                address: match socket {
                    Some(socket) => RedisAddress::Unix(socket.into()),
                    None => RedisOptions::address_of(&host, port, is_tls),
                },
                username: field("username")?.filter(|name| sends_user && !name.is_empty()),
                password,
                database,
                prefix: option("prefix")?.unwrap_or_default(),
            },
            encoded,
        })
    }

    fn port(&self, fields: &Map<String, Value>, path: &[&str], default: u16) -> Found<u16> {
        let text = match fields.get("port") {
            Some(value) => self.scalar(value, path)?,
            None => None,
        };
        match text.filter(|text| !text.is_empty()) {
            None => Ok(default),
            Some(text) => text.trim().parse().map_err(|_| SettingError::Wrong {
                path: path.join("."),
                found: format!("`{text}`"),
                expected: "a port number".into(),
            }),
        }
    }

    /// Lays what a `url` says over the other fields.
    ///
    /// # Source
    ///
    /// `Illuminate\Support\ConfigurationUrlParser`.
    fn apply_url(&self, fields: &mut Map<String, Value>, path: &[&str], kind: Url) -> Found<()> {
        let url = match fields.remove("url") {
            Some(url) => self.scalar(&url, &[path, &["url"]].concat())?,
            None => None,
        };
        let Some(url) = url.filter(|url| !url.is_empty()) else {
            return Ok(());
        };
        let malformed = || SettingError::Wrong {
            path: format!("{}.url", path.join(".")),
            found: "malformed".into(),
            expected: "`scheme://user:password@host:port/database`".into(),
        };
        let (scheme, rest) = url.split_once("://").ok_or_else(malformed)?;
        let rest = rest.split('#').next().unwrap_or_default();
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, database) = match rest.split_once('/') {
            Some((authority, database)) => (authority, Some(database)),
            None => (rest, None),
        };
        if authority.is_empty() && kind == Url::Redis {
            return Err(malformed());
        }
        let (userinfo, host) = match authority.rsplit_once('@') {
            Some((userinfo, host)) => (Some(userinfo), host),
            None => (None, authority),
        };
        let (host, port) = match host.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, Some(port)),
            _ => (host, None),
        };
        // Not told: what looks like a port may be part of a password that was not encoded.
        if port.is_some_and(|port| port.parse::<u16>().is_err()) {
            return Err(malformed());
        }
        let mut set = |key: &str, text: &str| {
            fields.insert(key.to_owned(), json_word(&connection::percent_decode(text)));
        };
        if kind == Url::Database || matches!(scheme, "tcp" | "tls") {
            set(
                if kind == Url::Database {
                    "driver"
                } else {
                    "scheme"
                },
                scheme,
            );
        } else if scheme == "rediss" {
            set("scheme", "tls");
        }
        if let Some(userinfo) = userinfo {
            let (user, password) = match userinfo.split_once(':') {
                Some((user, password)) => (user, Some(password)),
                None => (userinfo, None),
            };
            set("username", user);
            if let Some(password) = password {
                set("password", password);
            }
        }
        if !host.is_empty() {
            set("host", host.trim_start_matches('[').trim_end_matches(']'));
        }
        if let Some(port) = port {
            set("port", port);
        }
        if let Some(database) = database.filter(|database| !database.is_empty()) {
            set("database", database);
        }
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            set(&connection::percent_decode(key), &value.replace('+', " "));
        }
        Ok(())
    }

    // --- databases

    /// A database connection; the default one if no name is given.
    ///
    /// # Errors
    ///
    /// It is missing, of a kind that is not supported, or cannot be told.
    pub fn database(&self, name: Option<&str>) -> Found<DatabaseOptions> {
        let name = match name.filter(|name| !name.is_empty()) {
            Some(name) => name.to_owned(),
            None => self
                .text(&["database", "default"])?
                .ok_or_else(|| self.missing(&["database", "default"]))?,
        };
        // Laravel knows `NAME::read` and `NAME::write`.
        let name = name.split("::").next().unwrap_or_default();
        let path = ["database", "connections", name];
        let Some(Value::Object(fields)) = self.at(&path)? else {
            return Err(self.missing(&path));
        };
        let mut fields = fields.clone();
        self.apply_url(&mut fields, &path, Url::Database)?;
        let write = match fields.get("write") {
            Some(Value::Array(hosts)) => hosts.first().cloned(),
            write => write.cloned(),
        };
        if let Some(Value::Object(write)) = write {
            fields.extend(write);
        }
        let of = |key: &'static str| ["database", "connections", name, key];
        let field = |key: &'static str| match fields.get(key) {
            // Of several hosts Laravel picks any.
            Some(Value::Array(several)) => match several.first() {
                Some(first) => self.scalar(first, &of(key)),
                None => Ok(None),
            },
            Some(value) => self.scalar(value, &of(key)),
            None => Ok(None),
        };
        let driver = field("driver")?.unwrap_or_default();
        let driver = match &*driver {
            "postgres" | "postgresql" => "pgsql",
            "mysql2" => "mysql",
            "sqlite3" => "sqlite",
            driver => driver,
        };
        let kind = DatabaseKind::of_driver(driver).ok_or_else(|| SettingError::Wrong {
            path: of("driver").join("."),
            found: format!("`{driver}`"),
            expected: "sqlite, mysql, mariadb or pgsql".into(),
        })?;
        let defaults = DatabaseOptions::new(name, kind);
        let database = field("database")?.unwrap_or_default();
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        let tls = match kind {
            DatabaseKind::Sqlite => Tls::default(),
            DatabaseKind::MySql => self.mysql_tls(fields.get("options"), name)?,
            DatabaseKind::Postgres => Tls {
                mode: filled(field("sslmode")?),
                ca: filled(field("sslrootcert")?),
                cert: filled(field("sslcert")?),
                key: filled(field("sslkey")?),
            },
        };
        // PHP looks from its current directory, which is the app's under a process manager.
        let file = |path: Option<String>| path.map(|path| self.base.join(path));
        let search_path = match fields.get("search_path").or_else(|| fields.get("schema")) {
            Some(Value::Array(paths)) => {
                let paths: Vec<&str> = paths.iter().filter_map(Value::as_str).collect();
                Some(paths.join(", "))
            }
            Some(value) => self.scalar(value, &of("search_path"))?,
            None => None,
        };
        Ok(DatabaseOptions {
            host: filled(field("host")?).unwrap_or_else(|| defaults.host.clone()),
            port: self.port(&fields, &of("port"), defaults.port)?,
            socket: filled(field("unix_socket")?).map(PathBuf::from),
            database: if kind == DatabaseKind::Sqlite {
                self.sqlite_path(&database, &of("database"))?
            } else {
                database
            },
            username: field("username")?.unwrap_or_default(),
            password: filled(field("password")?),
            prefix: field("prefix")?.unwrap_or_default(),
            search_path: filled(search_path),
            ssl_mode: tls.mode,
            ssl_ca: match tls.ca.as_deref() {
                Some(DatabaseOptions::SYSTEM_CA) => tls.ca.map(PathBuf::from),
                _ => file(tls.ca),
            },
            ssl_cert: file(tls.cert),
            ssl_key: file(tls.key),
            timezone: filled(field("timezone")?),
            ..defaults
        })
    }

    /// What PDO's options say of TLS: any of them asks for it, and the server is verified unless they say otherwise.
    ///
    /// # Source
    ///
    /// php-src, `ext/pdo_mysql/mysql_driver.c` (`pdo_mysql_handle_factory`) and `mysqlnd_vio.c` (`enable_ssl`).
    fn mysql_tls(&self, options: Option<&Value>, connection: &str) -> Found<Tls> {
        let path = |name| ["database", "connections", connection, "options", name];
        let Some(options) = options else {
            return Ok(Tls::default());
        };
        self.known(options, &path("")[..4])?;
        // By the number that it has in every PHP with mysqlnd.
        let option = |name: &'static str, number: &str| {
            let value = options.get(number);
            let text = value.map(|value| self.scalar(value, &path(name)));
            // Null counts as set, and is as good as an empty text.
            Found::Ok(text.transpose()?.map(Option::unwrap_or_default))
        };
        for (name, number) in [
            ("PDO::MYSQL_ATTR_SSL_CAPATH", "1010"),
            ("PDO::MYSQL_ATTR_SSL_CIPHER", "1011"),
        ] {
            if let Some(found) = option(name, number)? {
                return Err(SettingError::Wrong {
                    path: path(name).join("."),
                    found: format!("`{found}`"),
                    expected: "no such option, which artisand cannot obey: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA".into(),
                });
            }
        }
        let ca = option("PDO::MYSQL_ATTR_SSL_CA", "1009")?;
        let cert = option("PDO::MYSQL_ATTR_SSL_CERT", "1008")?;
        let key = option("PDO::MYSQL_ATTR_SSL_KEY", "1007")?;
        let verify = option("PDO::MYSQL_ATTR_SSL_VERIFY_SERVER_CERT", "1014")?;
        let is_asked_for = ca.is_some() || cert.is_some() || key.is_some();
        let is_verified = !matches!(verify.as_deref(), Some("" | "0"));
        let mode = if is_verified {
            "verify-full"
        } else {
            "require"
        };
        let filled = |text: Option<String>| text.filter(|text| !text.is_empty());
        Ok(Tls {
            mode: is_asked_for.then(|| mode.to_owned()),
            ca: filled(ca),
            cert: filled(cert),
            key: filled(key),
        })
    }

    fn sqlite_path(&self, database: &str, path: &[&str]) -> Found<String> {
        if database.is_empty() || database == ":memory:" || database.contains("mode=memory") {
            return Err(SettingError::Wrong {
                path: path.join("."),
                found: format!("`{database}`"),
                expected: "a file, which other processes can open as well".into(),
            });
        }
        let file = Path::new(database);
        let there = if file.is_absolute() {
            file.to_owned()
        } else {
            self.base.join(file)
        };
        Ok(there.to_string_lossy().into_owned())
    }

    // --- cache

    /// `cache.default`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn default_cache(&self) -> Found<String> {
        Ok(self
            .text(&["cache", "default"])?
            .unwrap_or_else(|| "null".into()))
    }

    /// `cache.limiter`, the store of rate limiters; the default one where it is not set.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Cache\CacheServiceProvider`.
    pub fn limiter_cache(&self) -> Found<String> {
        match self.text(&["cache", "limiter"])? {
            Some(name) => Ok(name),
            None => self.default_cache(),
        }
    }

    /// Prefix of a cache store, with the colon that Laravel puts behind it before version 11.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn cache_prefix(&self, store: &str, driver: &str) -> Found<String> {
        if let Some(prefix) = self.cache_prefixes.get(store) {
            return Ok(prefix.clone().unwrap_or_default());
        }
        let own = self.text(&["cache", "stores", store, "prefix"])?;
        let prefix = match own {
            Some(own) => Some(own),
            None => self.text(&["cache", "prefix"])?,
        };
        let prefix = prefix.unwrap_or_default();
        let has_colon = matches!(driver, "redis" | "memcached") && !self.is_at_least(11, 0);
        Ok(if has_colon && !prefix.is_empty() {
            prefix + ":"
        } else {
            prefix
        })
    }

    /// Opens a cache store; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// It is missing, of a kind that is not supported, or cannot be told.
    pub fn cache(&self, name: &str) -> Found<Cache> {
        let path = ["cache", "stores", name];
        let of = |key: &'static str| ["cache", "stores", name, key];
        if name == "null" && self.at(&path)?.is_none() {
            return Ok(Cache::unshared());
        }
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = self.text(&of("driver"))?.unwrap_or_default();
        match &*driver {
            "redis" => self.redis_cache(name),
            "database" => self.database_cache(name),
            "file" => {
                let directory = self.text(&of("path"))?.map(PathBuf::from);
                let directory =
                    directory.unwrap_or_else(|| self.storage.join("framework/cache/data"));
                let lock_directory = self.text(&of("lock_path"))?.map(PathBuf::from);
                let lock_directory = lock_directory.filter(|_| self.is_at_least(10, 9));
                let permission = self.number(&of("permission"))?;
                let options = FileStoreOptions {
                    lock_directory: lock_directory.unwrap_or_else(|| directory.clone()),
                    directory,
                    permission: permission.and_then(|mode| u32::try_from(mode).ok()),
                    separate_locks: self.is_at_least(12, 36),
                };
                Ok(Cache::file(FileStore::new(options, Clock::System)))
            }
            "array" | "null" | "session" => Ok(Cache::unshared()),
            "failover" => self.failover_cache(name),
            driver => Err(SettingError::OnlyPhp {
                path: of("driver").join("."),
                driver: driver.to_owned(),
            }),
        }
    }

    /// The first store of several: as long as it answers, Laravel uses no other.
    fn failover_cache(&self, name: &str) -> Found<Cache> {
        let path = ["cache", "stores", name, "stores"];
        let stores = self.at(&path)?.and_then(Value::as_array);
        let first = stores.and_then(|stores| stores.first()?.as_str());
        match first {
            // A store that names itself would have no end.
            Some(first)
                if first != name
                    && self.text(&["cache", "stores", first, "driver"])?.as_deref()
                        != Some("failover") =>
            {
                self.cache(first)
            }
            _ => Err(self.missing(&path)),
        }
    }

    fn redis_cache(&self, name: &str) -> Found<Cache> {
        let of = |key: &'static str| ["cache", "stores", name, key];
        let values = self
            .text(&of("connection"))?
            .unwrap_or_else(|| "default".into());
        let locks = self
            .text(&of("lock_connection"))?
            .unwrap_or_else(|| values.clone());
        let open = |name: &str| {
            let settings = self.redis(name)?;
            if let Some((path, value)) = settings.encoded {
                return Err(SettingError::Encoded { path, value });
            }
            Redis::new(&settings.options).map_err(|source| SettingError::Connection {
                path: format!("database.redis.{name}"),
                source,
            })
        };
        let prefix = self.cache_prefix(name, "redis")?;
        Ok(Cache::redis(RedisStore::new(
            open(&values)?,
            open(&locks)?,
            prefix,
        )))
    }

    fn database_cache(&self, name: &str) -> Found<Cache> {
        let of = |key: &'static str| ["cache", "stores", name, key];
        let values = self.text(&of("connection"))?;
        let locks = self
            .text(&of("lock_connection"))?
            .or_else(|| values.clone());
        let or = |text: Option<String>, default: &str| {
            text.filter(|text| !text.is_empty())
                .unwrap_or_else(|| default.to_owned())
        };
        let lock_timeout = self.number(&of("lock_timeout"))?.unwrap_or(86_400);
        let options = DatabaseStoreOptions {
            prefix: self.cache_prefix(name, "database")?,
            table: or(self.text(&of("table"))?, "cache"),
            lock_table: or(self.text(&of("lock_table"))?, "cache_locks"),
            sqlite_base64: self.is_at_least(11, 38),
            lock_timeout: Duration::from_secs(u64::try_from(lock_timeout).unwrap_or(86_400)),
        };
        let (values, locks) = (
            self.open_database(values.as_deref())?,
            self.open_database(locks.as_deref())?,
        );
        Ok(Cache::database(DatabaseStore::new(
            values,
            locks,
            options,
            Clock::System,
        )))
    }

    /// Opens a database connection; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// See [`database`](Self::database).
    pub fn open_database(&self, name: Option<&str>) -> Found<Database> {
        let options = self.database(name)?;
        Database::new(&options).map_err(|source| SettingError::Connection {
            path: format!("database.connections.{}", options.name),
            source,
        })
    }

    /// All database connections, opened at their first use.
    pub fn databases(&self) -> Databases {
        let default = self.text(&["database", "default"]).ok().flatten();
        let names = self.names(&["database", "connections"]).unwrap_or_default();
        let options = |name: String| {
            let options = self.database(Some(&name));
            let options = options.map_err(|error| with_causes(&error));
            (name, options)
        };
        Databases::new(default, names.into_iter().map(options))
    }

    // --- keys

    /// The app's encrypter.
    ///
    /// # Errors
    ///
    /// There is no key, it cannot be told, or does not fit the cipher.
    ///
    /// # Source
    ///
    /// `Illuminate\Encryption\EncryptionServiceProvider`.
    pub fn encrypter(&self) -> Found<Encrypter> {
        let version = self.known_version();
        let key = match self.text(&["app", "key"]) {
            // What the manifest left out may be said to us alone.
            Err(SettingError::Secret { path, .. }) => {
                let key = (self.env)("APP_KEY");
                Some(key.ok_or_else(|| SettingError::Secret {
                    path,
                    remedy: "set APP_KEY in the environment or in the app's .env, or write the manifest with --with-secrets".into(),
                })?)
            }
            key => key?,
        };
        let cipher = self.text(&["app", "cipher"])?;
        let cipher = cipher.as_deref().unwrap_or(Self::CIPHER);
        let encrypter = Encrypter::new(version, &key.unwrap_or_default(), cipher)?;
        if !version.is_at_least(11, 0) {
            return Ok(encrypter);
        }
        Ok(encrypter.with_previous_keys(self.previous_keys()?)?)
    }

    /// The cipher of an app that does not say.
    pub(super) const CIPHER: &str = "AES-256-CBC";

    fn previous_keys(&self) -> Found<Vec<String>> {
        let path = ["app", "previous_keys"];
        let of_items = |items: Vec<&Value>| {
            let keys = items.into_iter().map(|item| self.scalar(item, &path));
            keys.map(|key| key.map(Option::unwrap_or_default)).collect()
        };
        match self.at(&path)? {
            None => Ok(Vec::new()),
            Some(Value::Array(items)) => of_items(items.iter().collect()),
            Some(Value::Object(object)) if object.contains_key("$env") => {
                Ok(split_keys(&self.secret(object, &path)?))
            }
            Some(Value::Object(items)) if !items.contains_key("$secret") => {
                of_items(items.values().collect())
            }
            Some(other) => of_items(vec![other]),
        }
    }

    // --- the rest

    /// The app's time zone.
    ///
    /// # Errors
    ///
    /// It cannot be told, or there is none of this name.
    pub fn timezone(&self) -> Found<TimeZone> {
        let zone = self.timezone_at(["app", "timezone"])?;
        Ok(zone.unwrap_or(TimeZone::UTC))
    }

    /// `queue.output_timezone`: of what workers print, if that is another than the app's (Laravel 9.49 and later).
    ///
    /// # Errors
    ///
    /// It cannot be told, or there is no such time zone.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Console\WorkCommand::now`.
    pub fn output_timezone(&self) -> Found<Option<TimeZone>> {
        if !self.is_at_least(9, 49) {
            return Ok(None);
        }
        self.timezone_at(["queue", "output_timezone"])
    }

    fn timezone_at(&self, path: [&str; 2]) -> Found<Option<TimeZone>> {
        let name = self.text(&path)?.filter(|name| !name.is_empty());
        let Some(name) = name else {
            return Ok(None);
        };
        let zone = TimeZone::get(&name).map_err(|_| SettingError::Wrong {
            path: path.join("."),
            found: format!("`{name}`"),
            expected: "a time zone, such as Europe/Warsaw".into(),
        });
        zone.map(Some)
    }

    /// `app.env`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn environment(&self) -> Found<String> {
        Ok(self
            .text(&["app", "env"])?
            .unwrap_or_else(|| "production".into()))
    }

    /// Where the app says that it is down.
    ///
    /// # Errors
    ///
    /// It cannot be told, or is in a cache store that cannot be used.
    pub fn maintenance(&self) -> Found<Maintenance> {
        let driver = self.text(&["app", "maintenance", "driver"])?;
        if driver.as_deref() == Some("cache") && self.is_at_least(9, 0) {
            let store = self.text(&["app", "maintenance", "store"])?;
            let store = match store.filter(|store| !store.is_empty()) {
                Some(store) => store,
                None => self.default_cache()?,
            };
            return self.cache(&store).map(Maintenance::Cache);
        }
        Ok(Maintenance::File(self.storage.join("framework/down")))
    }

    /// The app's batches; `None` if they are kept in `DynamoDB`, which only PHP can count in.
    ///
    /// # Errors
    ///
    /// It cannot be told where they are, or not in a database that is supported.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\BusServiceProvider::registerBatchServices`.
    pub fn batches(&self) -> Found<Option<Batches>> {
        let driver = self.text(&["queue", "batching", "driver"])?;
        // Any other name is the database for Laravel, too; before 10.36 all are.
        if driver.as_deref() == Some("dynamodb") && self.is_at_least(10, 36) {
            return Ok(None);
        }
        let name = self.text(&["queue", "batching", "database"])?;
        let database = self.open_database(name.as_deref())?;
        let table = self.text(&["queue", "batching", "table"])?;
        let table = table.unwrap_or_else(|| "job_batches".into());
        Ok(Some(Batches::new(
            database,
            &table,
            self.known_version(),
            Clock::System,
        )))
    }

    /// The app's store of failed jobs.
    ///
    /// # Errors
    ///
    /// It cannot be told, or is of a kind that is not supported.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\QueueServiceProvider::registerFailedJobServices`.
    pub fn failed_jobs(&self) -> Found<FailedJobs> {
        let failed = self.at(&["queue", "failed"])?.and_then(Value::as_object);
        let has = |key: &str| failed.is_some_and(|failed| failed.contains_key(key));
        let driver = self.text(&["queue", "failed", "driver"])?;
        // Set to nothing is not the same as not set.
        let driver = match (driver, has("driver")) {
            (Some(driver), _) => driver,
            (None, false) if has("table") => "database".into(),
            (None, _) => "null".into(),
        };
        let timezone = self.timezone()?;
        match &*driver {
            "null" => Ok(FailedJobs::Null),
            "database" | "database-uuids" => {
                let name = self.text(&["queue", "failed", "database"])?;
                let database = self.open_database(name.as_deref())?;
                let table = self.text(&["queue", "failed", "table"])?;
                let table = table.unwrap_or_else(|| "failed_jobs".into());
                let by_uuid = driver == "database-uuids";
                let store = DatabaseFailedJobs::new(database, &table, by_uuid, timezone);
                Ok(FailedJobs::Database(store))
            }
            "file" => {
                let path = self.text(&["queue", "failed", "path"])?.map(PathBuf::from);
                let path =
                    path.unwrap_or_else(|| self.storage.join("framework/cache/failed-jobs.json"));
                let limit = self.number(&["queue", "failed", "limit"])?.unwrap_or(100);
                let lock: Arc<dyn FileLock> = Arc::new(CacheLock(self.cache("file")?));
                let limit = usize::try_from(limit).unwrap_or(0);
                Ok(FailedJobs::File(FileFailedJobs::new(
                    path, limit, timezone, lock,
                )))
            }
            driver => Err(SettingError::Wrong {
                path: "queue.failed.driver".into(),
                found: format!("`{driver}`"),
                expected: "database-uuids, database, file or null".into(),
            }),
        }
    }
}

/// `APP_PREVIOUS_KEYS`, as the skeleton splits it: nothing is trimmed.
pub(super) fn split_keys(text: &str) -> Vec<String> {
    let is_filled = |key: &&str| !matches!(*key, "" | "0");
    text.split(',')
        .filter(is_filled)
        .map(str::to_owned)
        .collect()
}

fn url_only(url: String) -> Map<String, Value> {
    Map::from_iter([("url".to_owned(), Value::String(url))])
}

/// What a database connection says of TLS, as text.
#[derive(Default)]
struct Tls {
    mode: Option<String>,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Url {
    Redis,
    Database,
}

/// A part of a URL: Laravel runs each through a JSON decoder.
fn json_word(text: &str) -> Value {
    match serde_json::from_str(text) {
        Ok(value) => value,
        Err(_) => Value::String(text.to_owned()),
    }
}

/// Laravel's lock on the file of failed jobs.
#[derive(Debug)]
struct CacheLock(Cache);

/// How long the lock lives if its holder dies, as in Laravel.
const FILE_LOCK_LIVES: Duration = Duration::from_secs(5);

impl FileLock for CacheLock {
    fn lock(
        &self,
        wait: Duration,
    ) -> crate::handler::BoxFuture<
        '_,
        Result<Option<Unlock>, Box<dyn std::error::Error + Send + Sync>>,
    > {
        Box::pin(async move {
            let lock = self
                .0
                .lock("laravel-failed-jobs", random_owner(), FILE_LOCK_LIVES);
            if !lock.block(wait).await? {
                return Ok(None);
            }
            let unlock: Unlock = Box::new(move || {
                Box::pin(async move {
                    if let Err(error) = lock.release().await {
                        tracing::warn!(%error, "the lock on the failed jobs stays until it ends by itself");
                    }
                })
            });
            Ok(Some(unlock))
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn laravel(version: &str, config: Value) -> Laravel {
        Laravel {
            version: Some(version.to_owned()),
            config,
            base: "/app".into(),
            storage: "/app/storage".into(),
            cache_prefixes: BTreeMap::new(),
            origin: Origin::Php { cached: None },
            env: Arc::new(|name| (name == "REDIS_PASSWORD").then(|| "secret".to_owned())),
        }
    }

    #[test]
    fn workers_may_print_times_of_another_zone() {
        #[rustfmt::skip]
        let rows = [
            ("9.48", json!("Asia/Tokyo"), Ok(None)),
            ("9.49", json!("Asia/Tokyo"), Ok(Some("Asia/Tokyo"))),
            ("13.31", Value::Null,        Ok(None)),
            ("13.31", json!(""),          Ok(None)),
            ("13.31", json!("Mars"),      Err("`queue.output_timezone` of the app is `Mars`, expected a time zone, such as Europe/Warsaw")),
        ];
        for (version, output, expected) in rows {
            let config = json!({"app": {"timezone": "UTC"}, "queue": {"output_timezone": output}});
            let found = laravel(version, config).output_timezone();
            let found = found.map(|zone| zone.and_then(|zone| Some(zone.iana_name()?.to_owned())));
            let found = found.map_err(|error| error.to_string());
            let expected = expected.map(|name| name.map(str::to_owned));
            assert_eq!(found, expected.map_err(str::to_owned), "{version} {output}");
        }
    }

    fn redis(version: &str, connection: &Value, options: &Value) -> Found<RedisSettings> {
        let config = json!({"database": {"redis": {"client": "phpredis", "options": options, "default": connection}}});
        laravel(version, config).redis("default")
    }

    #[test]
    fn urls_lie_over_the_other_fields() {
        let tcp = |host: &str, port| RedisAddress::Tcp(host.into(), port);
        let tls = |host: &str, port| RedisAddress::Tls(host.into(), port);
        #[rustfmt::skip]
        let rows = [
            ("redis://user:p%40ss@h:6380/3", tcp("h", 6380), Some("user"), Some("p@ss"), 3),
            ("rediss://:secret@h", tls("h", 1), None, Some("secret"), 9),
            ("tls://h", tls("h", 1), None, None, 9),
            ("tcp://h:6379?database=5", tcp("h", 6379), None, None, 5),
            // A password of digits is a number, and then no user name is sent.
            ("redis://user:123456@h", tcp("h", 1), None, Some("123456"), 9),
        ];
        for (url, address, username, password, database) in rows {
            let fields = json!({"url": url, "host": "x", "port": "1", "database": "9"});
            let options = redis("10.0", &fields, &json!([])).unwrap().options;
            assert_eq!(options.address, address, "{url}");
            assert_eq!(options.username.as_deref(), username, "{url}");
            assert_eq!(options.password.as_deref(), password, "{url}");
            assert_eq!(options.database, database, "{url}");
        }
        let malformed = redis(
            "10.0",
            &json!({"url": "unix:///run/redis.sock"}),
            &json!([]),
        );
        assert!(malformed.unwrap_err().to_string().contains("malformed"));
    }

    #[test]
    fn prefixes_depend_on_where_they_stand_and_on_the_version() {
        #[rustfmt::skip]
        let rows = [
            ("8.83", json!({"prefix": "own"}), "all"),
            ("9.12", json!({"prefix": "own"}), "own"),
            ("8.83", json!({"options": {"prefix": "nested"}}), "nested"),
            ("13.0", json!({"prefix": "own", "options": {"prefix": "nested"}}), "own"),
            ("13.0", json!({}), "all"),
        ];
        for (version, connection, expected) in rows {
            let found = redis(version, &connection, &json!({"prefix": "all"})).unwrap();
            assert_eq!(found.options.prefix, expected, "{version} {connection}");
        }
        let cache =
            json!({"cache": {"prefix": "shop_cache_", "stores": {"redis": {"driver": "redis"}}}});
        let prefix = |version| laravel(version, cache.clone()).cache_prefix("redis", "redis");
        assert_eq!(prefix("10.48").unwrap(), "shop_cache_:");
        assert_eq!(prefix("11.0").unwrap(), "shop_cache_");
    }

    #[test]
    fn what_cannot_be_used_is_named() {
        let encoded = json!({
            "cache": {"default": "redis", "stores": {"redis": {"driver": "redis", "connection": "default"}}},
            "database": {"redis": {"options": {"serializer": 1}, "default": {}}},
        });
        let error = laravel("13.0", encoded)
            .cache("redis")
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`database.redis.options.serializer` is 1"),
            "{error}"
        );
        let cluster = json!({"database": {"redis": {"clusters": {"default": [{"host": "h"}]}}}});
        let error = laravel("13.0", cluster)
            .redis("default")
            .unwrap_err()
            .to_string();
        assert!(error.contains("a Redis cluster"), "{error}");
        let unknown =
            json!({"queue": {"default": {"$unknown": "config/queue.php:3: calls `f()`"}}});
        let error = laravel("13.0", unknown)
            .default_queue_connection()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`queue.default`") && error.contains("config/queue.php:3"),
            "{error}"
        );
        let missing = redis("13.0", &Value::Null, &json!([]))
            .unwrap_err()
            .to_string();
        assert!(missing.contains("no `database.redis.default`"), "{missing}");
        let secret = json!({"host": "h", "password": {"$env": "REDIS_PASSWORD"}});
        let found = redis("13.0", &secret, &json!([])).unwrap().options;
        assert_eq!(found.password.as_deref(), Some("secret"));
        let gone = redis("13.0", &json!({"password": {"$env": "GONE"}}), &json!([]));
        assert!(
            gone.unwrap_err()
                .to_string()
                .contains("set GONE in the environment")
        );
    }

    #[test]
    fn the_encrypter_is_the_one_laravel_makes() {
        let (key, old) = ("k".repeat(32), "o".repeat(32));
        let text = Encrypter::new(Version::NEWEST, &old, "AES-256-CBC")
            .unwrap()
            .encrypt(b"x");
        let found = |version: &str, app: Value| {
            let mut laravel = laravel(version, json!({"app": app}));
            let (key, old) = (key.clone(), format!("{old},,0"));
            laravel.env = Arc::new(move |name| match name {
                "APP_KEY" => Some(key.clone()),
                "APP_PREVIOUS_KEYS" => Some(old.clone()),
                _ => None,
            });
            match laravel.encrypter() {
                Ok(encrypter) => format!(
                    "{} {} {}",
                    encrypter.cipher(),
                    encrypter.previous_keys(),
                    encrypter.decrypt(text.as_bytes()).is_ok()
                ),
                Err(error) => match std::error::Error::source(&error) {
                    Some(source) => source.to_string(),
                    None => error.to_string(),
                },
            }
        };
        #[rustfmt::skip]
        let rows = [
            ("13.0", json!({"key": old, "cipher": "aes-256-cbc"}), "AES-256-CBC 0 true"),
            ("13.0", json!({"key": {"$env": "APP_KEY"}, "previous_keys": [old]}), "AES-256-CBC 1 true"),
            ("13.0", json!({"key": {"$secret": true}, "previous_keys": {"$env": "APP_PREVIOUS_KEYS"}}), "AES-256-CBC 1 true"),
            ("13.0", json!({"key": key, "previous_keys": {"3": {"$env": "APP_KEY"}, "5": old}}), "AES-256-CBC 2 true"),
            // Laravel 10 would not take them either.
            ("10.48", json!({"key": key, "previous_keys": [old]}), "AES-256-CBC 0 false"),
            ("10.48", json!({"key": key, "cipher": "AES-256-GCM"}), "AES-256-GCM 0 false"),
            ("13.0", json!({"key": null}), "No application encryption key has been specified."),
            ("13.0", json!({"key": "short"}), "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
            ("13.0", json!({"key": key, "previous_keys": [" x"]}), "Unsupported cipher or incorrect key length. Supported ciphers are: aes-128-cbc, aes-256-cbc, aes-128-gcm, aes-256-gcm."),
            ("13.0", json!({"key": {"$env": "GONE_KEY"}}), "AES-256-CBC 0 false"),
            ("13.0", json!({"key": key, "previous_keys": {"$secret": true}}), "the manifest leaves out the secret `app.previous_keys`: no variable of the environment held it; write the manifest with --with-secrets, or set it in artisand.toml"),
        ];
        for (version, app, expected) in rows {
            assert_eq!(found(version, app.clone()), expected, "{version} {app}");
        }
        let foreign = json!({"app": {"key": key, "cipher": {"$env": "APP_KEY"}}});
        let error = laravel("13.0", foreign)
            .encrypter()
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("looked up for passwords, keys and URLs only"),
            "{error}"
        );
        let mut bare = laravel("13.0", json!({"app": {"key": {"$secret": true}}}));
        bare.env = Arc::new(|_| None);
        let error = bare.encrypter().unwrap_err().to_string();
        assert!(error.contains("set APP_KEY in the environment"), "{error}");
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn the_store_of_failed_jobs_is_the_one_laravel_takes() {
        let rows = [
            (
                json!({"driver": "database-uuids", "database": "s", "table": "failed_jobs"}),
                "database-uuids, table",
            ),
            (json!({"table": "failed_jobs"}), "database, table"),
            (json!({"driver": null, "table": "failed_jobs"}), "null"),
            (
                json!({"driver": "file"}),
                "file /app/storage/framework/cache/failed-jobs.json",
            ),
            (Value::Null, "null"),
        ];
        for (failed, expected) in rows {
            let config = json!({
                "queue": {"failed": failed},
                "cache": {"stores": {"file": {"driver": "file"}}},
                "database": {"default": "s", "connections": {"s": {"driver": "sqlite", "database": "/x.sqlite"}}},
            });
            let store = laravel("13.0", config).failed_jobs().unwrap();
            assert!(
                store.describe().starts_with(expected),
                "{}",
                store.describe()
            );
        }
    }

    #[cfg(feature = "sqlite")]
    #[tokio::test]
    async fn batches_are_where_laravel_looks_for_them() {
        #[rustfmt::skip]
        let rows = [
            ("8.83", json!({}), Some("table `job_batches` at /a.sqlite")),
            ("13.31", json!({"batching": {"database": "b", "table": "t"}}), Some("table `t` at /b.sqlite")),
            ("13.31", json!({"batching": {"driver": null, "database": null}}), Some("table `job_batches` at /a.sqlite")),
            ("13.31", json!({"batching": {"driver": "dynamodb", "table": "t"}}), None),
            // Before there was a choice.
            ("10.35", json!({"batching": {"driver": "dynamodb", "table": "t"}}), Some("table `t` at /a.sqlite")),
        ];
        for (version, queue, expected) in rows {
            let sqlite = |path: &str| json!({"driver": "sqlite", "database": path});
            let connections = json!({"a": sqlite("/a.sqlite"), "b": sqlite("/b.sqlite")});
            let config =
                json!({"queue": queue, "database": {"default": "a", "connections": connections}});
            let batches = laravel(version, config).batches().unwrap();
            let place = batches.map(|batches| batches.describe());
            assert_eq!(place.as_deref(), expected, "{version} {queue}");
        }
    }

    #[test]
    fn databases_are_found_by_fields_and_by_url() {
        let connections = json!({
            "a": {"driver": "mysql", "host": "x", "write": {"host": ["w", "v"]}, "prefix": "p_", "unix_socket": ""},
            "b": {"url": "postgres://u:p%2Fw@h:1/db?sslmode=require"},
            "c": {"driver": "sqlite", "database": "database/x.sqlite"},
            "d": {"driver": "sqlsrv"},
        });
        let laravel = laravel(
            "12.0",
            json!({"database": {"default": "a", "connections": connections}}),
        );
        let a = laravel.database(None).unwrap();
        assert_eq!(
            (&*a.host, a.port, &*a.prefix, a.socket),
            ("w", 3306, "p_", None)
        );
        let b = laravel.database(Some("b")).unwrap();
        assert_eq!((b.kind, &*b.address()), (DatabaseKind::Postgres, "h:1/db"));
        assert_eq!(
            (b.password.as_deref(), b.ssl_mode.as_deref()),
            (Some("p/w"), Some("require"))
        );
        let c = laravel.database(Some("c")).unwrap();
        assert_eq!(c.database, "/app/database/x.sqlite");
        let d = laravel.database(Some("d")).unwrap_err().to_string();
        assert!(d.contains("`sqlsrv`"), "{d}");
    }

    #[test]
    fn tls_is_as_strict_as_pdo_makes_it() {
        let tls = |driver: &str, fields: Value| {
            let mut connection = json!({"driver": driver});
            let fields = fields.as_object().unwrap().clone();
            connection.as_object_mut().unwrap().extend(fields);
            let config = json!({"database": {"connections": {"a": connection}}});
            match laravel("12.0", config).database(Some("a")) {
                Ok(database) => format!(
                    "{} {}",
                    database.ssl_mode.as_deref().unwrap_or("none"),
                    [database.ssl_ca, database.ssl_cert, database.ssl_key]
                        .map(|path| path.map_or("-".into(), |path| path.display().to_string()))
                        .join(" ")
                ),
                Err(error) => error.to_string(),
            }
        };
        #[rustfmt::skip]
        let rows = [
            (json!({}), "none - - -"),
            (json!({"1002": "set x", "1014": true}), "none - - -"),
            (json!({"1009": "/ca"}), "verify-full /ca - -"),
            (json!({"1009": "ca.pem"}), "verify-full /app/ca.pem - -"),
            (json!({"1009": "/ca", "1014": true}), "verify-full /ca - -"),
            (json!({"1009": "/ca", "1014": false}), "require /ca - -"),
            (json!({"1009": "/ca", "1014": "0"}), "require /ca - -"),
            (json!({"1009": "/ca", "1014": null}), "require /ca - -"),
            (json!({"1009": ""}), "verify-full - - -"),
            (json!({"1009": null, "1014": false}), "require - - -"),
            (json!({"1007": "/key", "1008": "/cert"}), "verify-full - /cert /key"),
            (json!({"1009": "/ca", "1010": "/certs"}), "`database.connections.a.options.PDO::MYSQL_ATTR_SSL_CAPATH` of the app is `/certs`, expected no such option, which artisand cannot obey: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA"),
            (json!({"1011": "AES"}), "`database.connections.a.options.PDO::MYSQL_ATTR_SSL_CIPHER` of the app is `AES`, expected no such option, which artisand cannot obey: name the certificate authority in PDO::MYSQL_ATTR_SSL_CA"),
            (json!({"$unknown": "it is made by code"}), "cannot tell `database.connections.a.options` of the app: it is made by code; write a manifest with `artisand manifest`"),
        ];
        for (options, expected) in rows {
            assert_eq!(
                tls("mysql", json!({"options": options})),
                expected,
                "{options}"
            );
        }
        #[rustfmt::skip]
        let rows = [
            (json!({}), "none - - -"),
            (json!({"sslmode": "verify-ca", "sslrootcert": "/ca", "sslcert": "c", "sslkey": "/k"}), "verify-ca /ca /app/c /k"),
            (json!({"sslmode": "verify-full", "sslrootcert": "system"}), "verify-full system - -"),
        ];
        for (fields, expected) in rows {
            assert_eq!(tls("pgsql", fields.clone()), expected, "{fields}");
        }
    }
}
