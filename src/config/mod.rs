//! Settings: `artisand.toml`, the environment and the app's `.env`, into the structs of the modules below.
//!
//! What is said twice is taken from the first of: command line flag,
//! `ARTISAND_*` variable, `artisand.toml`, process environment, the app's
//! `.env`, Laravel's default.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::Duration;

mod file;
mod laravel;

pub use file::{
    ConnectionTable, ErrorPlace, File, HandlerTable, MapTable, UnmappedTable, WorkerTable,
};
pub use laravel::{EnvLookup, Laravel, QueueSettings, RedisSettings, SettingError};

use crate::app::{DatabasePrefix, EnvError, EnvFile, cast};
use crate::connection::{self, RedisAddress, RedisOptions};
use crate::handler::{MappingError, PatternError, Registry, Router};
use crate::queue::{ConnectionName, QueueName, RedisQueueOptions};

/// An error in what somebody set.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file cannot be read.
    #[error("could not read {path}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not TOML, or holds a key or value that means nothing.
    #[error("{place}: {problem}")]
    Toml {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong; not the line itself, which may hold a password.
        problem: String,
    },
    /// `.env` is one that Laravel refuses, too.
    #[error("{path} is not a valid environment file")]
    Env {
        /// The file.
        path: PathBuf,
        /// The line and what is wrong with it.
        source: EnvError,
    },
    /// A variable holds something that cannot be used.
    #[error("`{name}` is `{value}`, expected {expected}")]
    Variable {
        /// Name of the variable.
        name: String,
        /// What it holds.
        value: String,
        /// What would work.
        expected: &'static str,
    },
    /// There is no connection of this name.
    #[error("no queue connection `{name}` (configured: {configured})")]
    UnknownConnection {
        /// The name asked for.
        name: String,
        /// The names there are.
        configured: String,
    },
    /// The key prefix of the app is not known.
    #[error(
        "cannot tell the Redis key prefix of {app}: {problem}; set REDIS_PREFIX in its .env, or `prefix` under [connections.redis]"
    )]
    Prefix {
        /// The app's directory.
        app: PathBuf,
        /// Why not.
        problem: &'static str,
    },
    /// The address of a connection cannot be used.
    #[error("queue connection `{name}`")]
    Address {
        /// Name of the connection.
        name: String,
        /// What is wrong.
        source: connection::Error,
    },
    /// A mapping cannot be carried out.
    #[error("{place}: mapping of `{job}`")]
    Mapping {
        /// File and line.
        place: ErrorPlace,
        /// The pattern of the mapping.
        job: String,
        /// What is wrong.
        source: MappingError,
    },
    /// A mapping's class pattern cannot be read.
    #[error("{place}")]
    Pattern {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong.
        source: PatternError,
    },
    /// A policy without what it needs, or an unknown one.
    #[error("{place}: {problem}")]
    Policy {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong and what would work.
        problem: String,
    },
}

/// Everything that was set, before flags.
#[derive(Debug, Default)]
pub struct Config {
    /// `artisand.toml`.
    pub file: File,
    /// Where the file is, for messages.
    path: PathBuf,
    /// The app's directory.
    pub app: Option<PathBuf>,
    env_file: EnvFile,
    /// Process environment, taken once.
    process: BTreeMap<String, String>,
}

/// A queue connection, ready to be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Connection {
    /// The server.
    pub redis: RedisOptions,
    /// The queues on it.
    pub queue: RedisQueueOptions,
    /// Queue that is meant where none is named.
    pub default_queue: QueueName,
}

/// Name of the file that is read where none is given.
pub const DEFAULT_FILE: &str = "artisand.toml";

impl Config {
    /// Reads the file (or `artisand.toml` in the current directory if there is one), and the app's `.env`.
    ///
    /// # Errors
    ///
    /// A file that was named and is not there, or anything in one that cannot be understood.
    pub fn load(
        path: Option<&Path>,
        app: Option<&Path>,
        process: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let process: BTreeMap<String, String> = process.into_iter().collect();
        let default = Path::new(DEFAULT_FILE);
        let path = path.or_else(|| default.exists().then_some(default));
        let mut config = Self {
            process,
            ..Self::default()
        };
        if let Some(path) = path {
            path.clone_into(&mut config.path);
            config.file = file::read(path)?;
        }
        config.app = app.map(Path::to_owned).or_else(|| config.file.app.clone());
        if let Some(app) = &config.app {
            if !app.is_dir() {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                let path = app.clone();
                return Err(Error::Read { path, source });
            }
            config.env_file = read_env_file(app, &config.process)?;
        }
        Ok(config)
    }

    /// A variable of the process environment or of `.env`, cast as Laravel casts it.
    pub fn env(&self, name: &str) -> Option<String> {
        let raw = self
            .process
            .get(name)
            .map(String::as_str)
            .or_else(|| self.env_file.get(name));
        raw.and_then(cast)
    }

    /// Whether the variable is set at all, if only to nothing.
    fn is_set(&self, name: &str) -> bool {
        self.process.contains_key(name) || self.env_file.get(name).is_some()
    }

    fn number<T: std::str::FromStr>(
        &self,
        name: &str,
        expected: &'static str,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.env(name).filter(|value| !value.is_empty()) else {
            return Ok(None);
        };
        let parsed = value.parse().map_err(|_| Error::Variable {
            name: name.to_owned(),
            value,
            expected,
        });
        parsed.map(Some)
    }

    /// Name of the connection that is meant where none is named.
    pub fn default_connection(&self) -> String {
        let only = || match self.file.connections.len() {
            1 => self.file.connections.keys().next().cloned(),
            _ => None,
        };
        // Also one that is not ours: to work another queue than the app means would be worse than an error.
        let from_env = self.env("QUEUE_CONNECTION").filter(|name| !name.is_empty());
        from_env.or_else(only).unwrap_or_else(|| "redis".to_owned())
    }

    fn is_known(&self, name: &str) -> bool {
        name == "redis" || self.file.connections.contains_key(name)
    }

    /// Puts together the settings of a queue connection.
    ///
    /// # Errors
    ///
    /// An unknown name, a variable that is no number, an address that cannot be
    /// used, a key prefix that cannot be told.
    pub fn connection(&self, name: &str) -> Result<Connection, Error> {
        if !self.is_known(name) {
            let names = self.file.connections.keys().map(String::as_str);
            let mut configured: Vec<&str> = names.chain(["redis"]).collect();
            configured.sort_unstable();
            configured.dedup();
            return Err(Error::UnknownConnection {
                name: name.to_owned(),
                configured: configured.join(", "),
            });
        }
        let empty = ConnectionTable::default();
        let table = self.file.connections.get(name).unwrap_or(&empty);
        let mut redis = self.redis_of_env()?;
        let address = |source| Error::Address {
            name: name.to_owned(),
            source,
        };
        if let Some(url) = &table.url {
            redis.apply_url(url).map_err(address)?;
        }
        if let Some(socket) = &table.socket {
            redis.address = RedisAddress::Unix(socket.clone());
        } else if table.host.is_some() || table.port.is_some() || table.tls.is_some() {
            let (host, port, is_tls) = match &redis.address {
                RedisAddress::Tcp(host, port) => (host.clone(), *port, false),
                RedisAddress::Tls(host, port) => (host.clone(), *port, true),
                RedisAddress::Unix(_) => ("127.0.0.1".to_owned(), 6379, false),
            };
            let host = table.host.clone().unwrap_or(host);
            redis.address = RedisOptions::address_of(
                &host,
                table.port.unwrap_or(port),
                table.tls.unwrap_or(is_tls),
            );
        }
        redis.username = table.username.clone().or(redis.username);
        redis.password = table.password.clone().or(redis.password);
        redis.database = table.database.unwrap_or(redis.database);
        redis.prefix = match &table.prefix {
            Some(prefix) => prefix.clone(),
            None => self.prefix()?,
        };
        let seconds = "a whole number of seconds";
        let retry_after = match table.retry_after {
            Some(seconds) => seconds,
            None => self
                .number("REDIS_QUEUE_RETRY_AFTER", seconds)?
                .unwrap_or(90),
        };
        let defaults = RedisQueueOptions::default();
        let queue = RedisQueueOptions {
            connection: ConnectionName::from(name),
            retry_after: Some(Duration::from_secs(retry_after)),
            notify: table.notify.unwrap_or(!self.is_before_notify_lists()),
            migration_batch: table
                .migration_batch_size
                .map_or(defaults.migration_batch, NonZeroUsize::get),
            look_ahead: table
                .look_ahead
                .map_or(defaults.look_ahead, NonZeroUsize::get),
        };
        let default_queue = table
            .queue
            .clone()
            .or_else(|| self.env("REDIS_QUEUE"))
            .filter(|queue| !queue.is_empty());
        Ok(Connection {
            redis,
            queue,
            default_queue: default_queue.unwrap_or_else(|| "default".into()).into(),
        })
    }

    /// Redis as the app's `default` connection says it.
    fn redis_of_env(&self) -> Result<RedisOptions, Error> {
        let filled = |name: &str| self.env(name).filter(|value| !value.is_empty());
        let host = filled("REDIS_HOST").unwrap_or_else(|| "127.0.0.1".to_owned());
        let port = self.number("REDIS_PORT", "a port number")?.unwrap_or(6379);
        let is_tls =
            filled("REDIS_SCHEME").is_some_and(|scheme| scheme == "tls" || scheme == "rediss");
        let mut redis = RedisOptions {
            address: RedisOptions::address_of(&host, port, is_tls),
            username: filled("REDIS_USERNAME"),
            password: filled("REDIS_PASSWORD"),
            database: self
                .number("REDIS_DB", "the number of a database")?
                .unwrap_or(0),
            prefix: String::new(),
        };
        if let Some(url) = filled("REDIS_URL") {
            let address = |source| Error::Address {
                name: "REDIS_URL".to_owned(),
                source,
            };
            redis.apply_url(&url).map_err(address)?;
        }
        Ok(redis)
    }

    fn prefix(&self) -> Result<String, Error> {
        // Set to nothing or null means no prefix, and not the default.
        if self.is_set("REDIS_PREFIX") {
            return Ok(self.env("REDIS_PREFIX").unwrap_or_default());
        }
        let Some(app) = &self.app else {
            return Ok(String::new());
        };
        let unknown = |problem| Error::Prefix {
            app: app.clone(),
            problem,
        };
        let in_config = std::fs::read_to_string(app.join("config/database.php")).ok();
        let formula = in_config.as_deref().and_then(DatabasePrefix::in_config);
        let formula = formula.or_else(|| {
            self.file
                .laravel
                .as_deref()
                .and_then(DatabasePrefix::of_version)
        });
        let formula = formula
            .ok_or_else(|| unknown("its config/database.php does not have Laravel's formula"))?;
        let name = if self.is_set("APP_NAME") {
            self.env("APP_NAME").unwrap_or_default()
        } else {
            "Laravel".into()
        };
        formula
            .for_app(&name)
            .ok_or_else(|| unknown("its APP_NAME is not plain ASCII"))
    }

    /// Whether nothing says which key prefix the app has; then there is none, which few apps mean.
    pub fn is_prefix_unknown(&self, connection: &str) -> bool {
        let table = self.file.connections.get(connection);
        table.is_none_or(|table| table.prefix.is_none())
            && self.app.is_none()
            && !self.is_set("REDIS_PREFIX")
    }

    /// Whether the app's Laravel is older than 5.8, which brought the notify lists.
    fn is_before_notify_lists(&self) -> bool {
        let version = self.file.laravel.as_deref().unwrap_or_default();
        let mut parts = version
            .split('.')
            .map(|part| part.parse::<u32>().unwrap_or(u32::MAX));
        match (parts.next(), parts.next()) {
            (Some(5), minor) => minor.unwrap_or(0) < 8,
            _ => false,
        }
    }

    /// Looks up the handlers of all mappings.
    ///
    /// # Errors
    ///
    /// A bad pattern, an unknown handler or policy, with file and line.
    pub fn router(&self, registry: &Registry) -> Result<Router, Error> {
        let place = |offset| file::place(&self.path, offset);
        let mut mappings = Vec::with_capacity(self.file.map.len());
        for table in &self.file.map {
            let mapping = table.to_mapping();
            mappings.push(mapping.map_err(|source| Error::Pattern {
                place: place(table.job.span().start),
                source,
            })?);
        }
        let unmapped = self
            .file
            .unmapped
            .to_policy()
            .map_err(|problem| Error::Policy {
                place: place(self.file.unmapped.offset()),
                problem,
            })?;
        Router::new(mappings, unmapped, registry).map_err(|(position, source)| {
            let table = &self.file.map[position];
            Error::Mapping {
                place: place(table.handler.span().start),
                job: table.job.get_ref().clone(),
                source,
            }
        })
    }
}

fn read_env_file(app: &Path, process: &BTreeMap<String, String>) -> Result<EnvFile, Error> {
    let named = process
        .get("APP_ENV")
        .map(|env| app.join(format!(".env.{env}")))
        .filter(|path| path.exists());
    let path = named.unwrap_or_else(|| app.join(".env"));
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        // Laravel does without it, too.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(EnvFile::default()),
        Err(source) => return Err(Error::Read { path, source }),
    };
    EnvFile::parse(&text, |name| process.get(name).cloned())
        .map_err(|source| Error::Env { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(toml: &str, env: &[(&str, &str)]) -> Config {
        let process = env
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect();
        Config {
            file: toml::from_str(toml).unwrap(),
            path: "artisand.toml".into(),
            process,
            ..Config::default()
        }
    }

    #[test]
    fn the_file_beats_the_environment_and_that_the_defaults() {
        let env = [
            ("REDIS_HOST", "h"),
            ("REDIS_PORT", "7"),
            ("REDIS_PASSWORD", "null"),
            ("REDIS_PREFIX", "p_"),
            ("REDIS_QUEUE", "q"),
        ];
        let from_env = config("", &env).connection("redis").unwrap();
        assert_eq!(from_env.redis.address, RedisAddress::Tcp("h".into(), 7));
        assert_eq!(
            (from_env.redis.password, from_env.redis.prefix.as_str()),
            (None, "p_")
        );
        assert_eq!(from_env.default_queue.as_str(), "q");
        assert_eq!(from_env.queue.retry_after, Some(Duration::from_secs(90)));
        let toml = "[connections.redis]\nport = 8\nprefix = ''\nretry_after = 5\nqueue = 'x'";
        let from_file = config(toml, &env).connection("redis").unwrap();
        assert_eq!(from_file.redis.address, RedisAddress::Tcp("h".into(), 8));
        assert_eq!(
            (
                from_file.redis.prefix.as_str(),
                from_file.default_queue.as_str()
            ),
            ("", "x")
        );
        assert_eq!(from_file.queue.retry_after, Some(Duration::from_secs(5)));
        let error = config(toml, &env)
            .connection("rediss")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "no queue connection `rediss` (configured: redis)");
        let error = config("", &[("REDIS_PORT", "x")])
            .connection("redis")
            .unwrap_err()
            .to_string();
        assert_eq!(error, "`REDIS_PORT` is `x`, expected a port number");
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = |toml: &str| config(toml, &[]).router(&Registry::new()).unwrap_err();
        let unknown = error("\n[[map]]\njob = 'A'\nhandler = 'nope'\n");
        assert!(matches!(unknown, Error::Mapping { .. }), "{unknown:?}");
        let pattern = error("[[map]]\njob = '/(/'\nhandler = 'log'\n");
        assert!(matches!(pattern, Error::Pattern { .. }), "{pattern:?}");
        let policy = error("[unmapped]\npolicy = 'forward'\n").to_string();
        assert!(policy.contains("needs a `queue`"), "{policy}");
        assert!(
            toml::from_str::<File>("[worker]\nconcurency = 3")
                .unwrap_err()
                .to_string()
                .contains("concurrency")
        );
    }
}
