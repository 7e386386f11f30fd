//! Settings: `artisand.toml`, the environment and the app's `.env`, into the structs of the modules below.
//!
//! What is said twice is taken from the first of: command line flag,
//! `ARTISAND_*` variable, `artisand.toml`, the app's own configuration. That is
//! what PHP makes of it where PHP runs; else what a manifest says, with the
//! process environment over it; else the process environment and the app's
//! `.env` alone.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use jiff::tz::TimeZone;

mod cluster;
mod connection;
mod doubts;
mod environment;
mod error;
mod exposure;
mod file;
mod handler;
mod horizon;
mod laravel;
mod learn;
mod ledger;
mod load;
mod manifest;
mod mapping;
mod middleware;
mod otlp;
mod overflow;
pub mod php;
mod place;
mod policy;
mod pool;
mod programs;
mod pulse;
mod read;
mod redis;
mod routing;
mod sentinels;
mod services;
mod source;
mod stores;
mod target;
mod unmapped;

pub use connection::Connection;
pub use connection::settings::{connection, connection_without_prefix};
pub use doubts::Doubt;
pub use error::Error;
pub use exposure::Exposure;
pub use file::{
    ConnectionTable, File, HorizonTable, OneOrMore, PayloadHooks, PhpTable, PulseTable, Source,
    WorkerTable,
};
pub use handler::HandlerTable;
pub use horizon::{horizon, horizon_of_worker, horizon_settings};
pub use laravel::{
    EnvLookup, Laravel, Origin, QueuePlace, QueueSettings, RedisSettings, SettingError,
};
pub use ledger::LedgerPlace;
pub use mapping::MapTable;
pub use middleware::{
    ExceptionsTable, LimiterTable, MiddlewareTable, OverlapTable, RateLimitedTable, ReleaseTable,
    Spend, ThrottleTable,
};
pub use otlp::traces;
pub use place::ErrorPlace;
#[cfg(feature = "cli")]
pub(crate) use policy::lack_for_php;
pub use pool::pool_options;
pub use pulse::pulse;
pub use redis::RedisTable;
pub use routing::{check_middleware, classes_without_their_middleware, router};
pub use services::services;
pub use stores::{
    app_cache, batches, cache_for_php_only, default_cache, encrypter, failed_jobs, maintenance,
};
pub use unmapped::UnmappedTable;

use crate::app::{self, EnvFile, Manifest, Version, cast};

/// Everything that was set, before flags.
#[derive(Default)]
pub struct Config {
    /// `artisand.toml`.
    pub file: File,
    /// Where the file is, for messages.
    path: PathBuf,
    /// The app's directory.
    pub app: Option<PathBuf>,
    env_file: Arc<EnvFile>,
    /// What is wrong with `.env`, until it is known whether that matters.
    env_mistake: Option<Error>,
    /// Why nothing is taken from `.env`.
    ignored_env: Option<String>,
    /// What is known of the app.
    laravel: Option<Laravel>,
    manifest: Option<(PathBuf, Arc<Manifest>)>,
    /// What PHP has told about the app's classes.
    told: Option<Arc<Manifest>>,
    /// Why PHP has not told it.
    classes_failure: Option<String>,
    /// What the environment says otherwise than the manifest.
    overrides: app::Overrides,
    /// Whether PHP would be asked for the settings, and was not.
    is_php_unasked: bool,
    /// Why PHP did not say the app's settings, where it should have.
    php_failure: Option<String>,
    /// What was assumed of the app, one sentence each.
    pub notes: Vec<String>,
    /// Process environment, taken once.
    process: Arc<BTreeMap<String, String>>,
}

impl std::fmt::Debug for Config {
    /// Without the variables of the process and of `.env`, most of which are secrets somewhere.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Config")
            .field("file", &self.file)
            .field("path", &self.path)
            .field("app", &self.app)
            .field("laravel", &self.laravel)
            .field("notes", &self.notes)
            .finish_non_exhaustive()
    }
}

/// Name of the manifest that is read where none is given, in the app's directory or the current one.
pub const MANIFEST_FILE: &str = "artisand.json";

/// Name of the file that is read where none is given.
pub const DEFAULT_FILE: &str = "artisand.toml";

impl Config {
    /// The file that was read; none if there is none.
    pub fn path(&self) -> Option<&Path> {
        Some(&*self.path).filter(|path| !path.as_os_str().is_empty())
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

    /// What is known of the app; `None` if none is set.
    pub fn laravel(&self) -> Option<&Laravel> {
        self.laravel.as_ref()
    }

    /// What is known of the app.
    ///
    /// # Errors
    ///
    /// None is set.
    pub fn known_laravel(&self) -> Result<&Laravel, Error> {
        self.laravel.as_ref().ok_or(Error::NoApp)
    }

    /// Whether PHP has the last word on the settings and was not asked: so it is after [`check`](Self::check).
    pub fn is_php_unasked(&self) -> bool {
        self.is_php_unasked
    }

    /// Why PHP did not say the app's settings, which are now those of the manifest.
    pub fn php_failure(&self) -> Option<&str> {
        self.php_failure.as_deref()
    }

    /// Why nothing is taken from `.env`, as Laravel takes nothing from it, either.
    pub fn ignored_env(&self) -> Option<&str> {
        self.ignored_env.as_deref()
    }

    /// Facts about the app's classes: what PHP has told now, or else the manifest.
    pub fn classes(&self) -> Option<&Manifest> {
        let of_manifest = self.manifest.as_ref().map(|(_, manifest)| manifest);
        self.told.as_ref().or(of_manifest).map(Arc::as_ref)
    }

    /// The manifest in use, and where it is.
    pub fn manifest(&self) -> Option<(&Path, &Manifest)> {
        self.manifest
            .as_ref()
            .map(|(path, manifest)| (path.as_path(), &**manifest))
    }

    /// Why the manifest in use may no longer be true of the app.
    pub fn stale_manifest(&self) -> Vec<String> {
        let (Some((_, manifest)), Some(laravel)) = (&self.manifest, &self.laravel) else {
            return Vec::new();
        };
        let installed = app::framework_version(&laravel.base);
        let mut reasons = manifest.stale(&laravel.base, installed.as_deref());
        let lost = self.overrides.lost.iter();
        reasons.extend(lost.map(|(setting, variable)| {
            format!("`{setting}` is made of `{variable}`, which is set to something else than then")
        }));
        let unclear = self.overrides.unclear.iter();
        reasons.extend(unclear.map(|variable| {
            format!("`{variable}` is set, maybe to something else than then, and what comes from it is not known")
        }));
        reasons
    }

    /// Settings that the process environment says otherwise than the manifest, each with its variable.
    pub fn settings_of_variables(&self) -> &[(String, String)] {
        &self.overrides.taken
    }

    fn setting<T>(&self, found: Result<T, SettingError>) -> Result<T, Error> {
        found.map_err(|source| Error::Setting {
            origin: self
                .laravel
                .as_ref()
                .map_or_else(String::new, |laravel| laravel.origin.to_string()),
            source: Box::new(source),
        })
    }

    /// Whether the app's signals are to be obeyed.
    pub fn obeys_app(&self) -> bool {
        self.file.worker.control_plane.unwrap_or(true)
    }

    /// Version of the app's Laravel; where it is unknown, the newest.
    pub(crate) fn known_version(&self) -> Version {
        if let Some(laravel) = &self.laravel {
            return laravel.known_version();
        }
        let version = self.file.laravel.as_deref();
        version
            .and_then(|version| version.parse().ok())
            .unwrap_or_default()
    }

    /// The time zone of what `queue:work` prints: `[worker] timezone`, else the app's `queue.output_timezone`, else the
    /// app's own.
    ///
    /// # Errors
    ///
    /// There is no such time zone.
    pub fn output_timezone(&self) -> Result<TimeZone, Error> {
        let laravel = self.laravel.as_ref();
        let laravel = laravel.filter(|_| self.file.worker.timezone.is_none());
        let of_output = laravel.map(Laravel::output_timezone).transpose();
        match self.setting(of_output)?.flatten() {
            Some(zone) => Ok(zone),
            None => self.timezone(),
        }
    }

    /// The app's time zone, in which Laravel prints and stores times.
    ///
    /// # Errors
    ///
    /// There is no such time zone.
    pub fn timezone(&self) -> Result<TimeZone, Error> {
        let named = self.file.worker.timezone.clone();
        let named = match (&named, &self.laravel) {
            (Some(_), _) => named,
            (None, Some(laravel)) => return self.setting(laravel.timezone()),
            (None, None) => self.env("APP_TIMEZONE").filter(|name| !name.is_empty()),
        };
        let Some(name) = named else {
            return Ok(TimeZone::UTC);
        };
        TimeZone::get(&name).map_err(|_| Error::Variable {
            name: "timezone".into(),
            value: name,
            expected: "a time zone, such as Europe/Warsaw",
        })
    }

    /// Name of the connection that is meant where none is named.
    pub fn default_connection(&self) -> String {
        let only = || match self.file.connections.len() {
            1 => self.file.connections.keys().next().cloned(),
            _ => None,
        };
        // Also one that artisand cannot work: to work another queue than the app means would be worse than an error.
        let of_app = self
            .laravel
            .as_ref()
            .and_then(|laravel| laravel.default_queue_connection().ok()?);
        let from_env = || self.env("QUEUE_CONNECTION");
        let named = of_app.or_else(from_env).filter(|name| !name.is_empty());
        named.or_else(only).unwrap_or_else(|| "redis".to_owned())
    }

    /// Names of the queue connections that there are.
    pub fn connections(&self) -> Vec<String> {
        let of_app = self.laravel.as_ref().map(Laravel::queue_connections);
        let mut names = match of_app {
            Some(names) => names.unwrap_or_default(),
            None => vec!["redis".to_owned()],
        };
        names.extend(self.file.connections.keys().cloned());
        names.sort_unstable();
        names.dedup();
        names
    }

    fn is_known(&self, name: &str) -> bool {
        let is_apps = match &self.laravel {
            Some(laravel) => laravel.has_queue_connection(name),
            None => name == "redis",
        };
        is_apps || self.file.connections.contains_key(name)
    }

    /// The program that is PHP, and its arguments.
    pub fn php_program(&self) -> Vec<String> {
        if let Some(program) = self.php_of_variable() {
            return vec![program.to_owned()];
        }
        let set = self.file.php.binary.as_ref();
        let set = set.map(|binary| binary.get_ref().to_vec());
        set.filter(|command| !command.is_empty())
            .unwrap_or_else(|| vec![php::PHP.to_owned()])
    }

    /// The PHP that the process environment names.
    fn php_of_variable(&self) -> Option<&str> {
        let named = self.process.get("ARTISAND_PHP").map(String::as_str);
        named.filter(|name| !name.is_empty())
    }

    /// The app's program `artisan`, where PHP sees it; `None` if there is none.
    pub fn artisan(&self) -> Option<PathBuf> {
        let named = self.file.php.app.as_ref();
        let here = || {
            let artisan = self.laravel.as_ref()?.base.join("artisan");
            artisan.is_file().then_some(artisan)
        };
        named.map(|app| app.join("artisan")).or_else(here)
    }

    fn names_php(&self) -> bool {
        self.php_program() != [php::PHP]
    }
}

#[cfg(test)]
mod tests;
