//! The app's configuration, as Laravel's own components would use it.
//!
//! Wherever it came from (PHP, a manifest, the environment), it
//! is the value of `config('app')`, `config('queue')`, `config('cache')` and
//! `config('database')`; what Laravel makes of it depends on its version and
//! is done here (docs/protocol/app-config.md 5 to 9). What could not be found
//! out is an error only where it is needed.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use jiff::tz::TimeZone;
use serde_json::{Map, Value};

mod cache;
mod cluster;
mod context;
mod database;
mod error;
mod failed;
mod keys;
mod monospice;
mod queue;
mod redis;
mod sentinel;
mod tls;
mod url;

pub use error::SettingError;
use error::SettingResult;
pub(super) use keys::split_keys;
pub(super) use monospice::as_predis;
pub(super) use queue::DRIVERS;
pub use queue::{QueuePlace, QueueSettings};
pub use redis::RedisSettings;

use super::redis::RedisTable;
use crate::app::Version;

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
    /// Sentinels that artisand.toml names.
    pub redis: RedisTable,
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

/// Settings for which a manifest may name a variable.
const SECRETS: [&str; 7] = [
    "password",
    "sentinel_password",
    "url",
    "key",
    "secret",
    "token",
    "previous_keys",
];

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
    pub(in crate::config) fn at(&self, path: &[&str]) -> SettingResult<Option<&Value>> {
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
    fn known(&self, value: &Value, path: &[&str]) -> SettingResult<()> {
        match value.get("$unknown").and_then(Value::as_str) {
            Some(why) => Err(SettingError::Unknown {
                path: path.join("."),
                why: why.to_owned(),
            }),
            None => Ok(()),
        }
    }

    /// A scalar as text: PHP's string cast. Secrets are looked up.
    pub(in crate::config) fn text(&self, path: &[&str]) -> SettingResult<Option<String>> {
        let Some(value) = self.at(path)? else {
            return Ok(None);
        };
        self.scalar(value, path)
    }

    fn scalar(&self, value: &Value, path: &[&str]) -> SettingResult<Option<String>> {
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

    fn secret(&self, object: &Map<String, Value>, path: &[&str]) -> SettingResult<String> {
        let missing = |remedy: String| SettingError::Secret {
            path: path.join("."),
            remedy,
        };
        // A manifest written by an attacker must not send other variables to the attacker's server.
        let holds_secrets = path.last().is_some_and(|key| SECRETS.contains(key));
        match object.get("$env").and_then(Value::as_str) {
            Some(name) if !holds_secrets => Err(missing(format!(
                "it names the variable {name}, which is looked up for passwords, keys, tokens and URLs only; write the manifest again with `artisand manifest`"
            ))),
            Some(name) => (self.env)(name).ok_or_else(|| {
                missing(format!("set {name} in the environment or in the app's .env"))
            }),
            None => Err(missing(
                "no variable of the environment held it; write the manifest with --with-secrets, or set it in artisand.toml".into(),
            )),
        }
    }

    pub(in crate::config) fn number(&self, path: &[&str]) -> SettingResult<Option<i64>> {
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

    pub(in crate::config) fn names(&self, path: &[&str]) -> SettingResult<Vec<String>> {
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

    /// The app's time zone.
    ///
    /// # Errors
    ///
    /// It cannot be told, or there is none of this name.
    pub fn timezone(&self) -> SettingResult<TimeZone> {
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
    pub fn output_timezone(&self) -> SettingResult<Option<TimeZone>> {
        if !self.is_at_least(9, 49) {
            return Ok(None);
        }
        self.timezone_at(["queue", "output_timezone"])
    }

    fn timezone_at(&self, path: [&str; 2]) -> SettingResult<Option<TimeZone>> {
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
    pub fn environment(&self) -> SettingResult<String> {
        Ok(self
            .text(&["app", "env"])?
            .unwrap_or_else(|| "production".into()))
    }
}

#[cfg(test)]
mod tests;
