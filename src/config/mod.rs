//! Settings: `artisand.toml`, the environment and the app's `.env`, into the structs of the modules below.
//!
//! What is said twice is taken from the first of: command line flag,
//! `ARTISAND_*` variable, `artisand.toml`, the app's own configuration. That is
//! what PHP makes of it where PHP runs; else what a manifest says, with the
//! process environment over it; else the process environment and the app's
//! `.env` alone.

use std::collections::BTreeMap;
use std::num::{NonZeroU64, NonZeroUsize};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::Value;

mod doubts;
mod environment;
mod exposure;
mod file;
mod laravel;
mod middleware;
pub mod php;
mod source;
mod target;

pub use doubts::Doubt;
pub use exposure::Exposure;
pub use file::{
    ConnectionTable, ErrorPlace, File, HandlerTable, MapTable, OneOrMore, PhpTable, Source,
    UnmappedTable, WorkerTable,
};
pub use laravel::{EnvLookup, Laravel, Origin, QueueSettings, RedisSettings, SettingError};
pub use middleware::{
    ExceptionsTable, LimiterTable, MiddlewareTable, OverlapTable, RateLimitedTable, ReleaseTable,
    Spend, ThrottleTable,
};

use self::environment::Environment;
use self::target::Problem;
use crate::app::{self, EnvError, EnvFile, Manifest, ManifestError, Version, cast};
use crate::batch::Batches;
use crate::cache::{Cache, Maintenance, Stores};
use crate::connection::{self, Redis, RedisAddress, RedisOptions};
use crate::failed::FailedJobs;
use crate::handler::pool::PoolOptions;
use crate::handler::{
    Gap, Mapping, MappingError, Models, Registry, Router, Services, TargetPatternError,
    UnmappedPolicy,
};
use crate::payload::Encrypter;
use crate::queue::{
    ConnectionName, Connections, Destination, Queue, QueueName, RedisQueue, RedisQueueOptions,
};
use crate::shown::with_causes;
use crate::worker::WorkerOptions;

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
    /// Nothing says which keys of a Redis are the app's.
    #[error(
        "no app and no key prefix is known for queue connection `{connection}`: run this in the app's directory or give that with --app, or set `prefix` under [connections.{connection}] in artisand.toml (`prefix = \"\"` if the keys have none), or REDIS_PREFIX{seen}"
    )]
    NoPrefix {
        /// Name of the connection.
        connection: String,
        /// What keys of queues the server shows, as the end of the sentence; empty if it was not asked.
        seen: String,
    },
    /// PHP cannot describe the app.
    #[error("{0}")]
    Php(String),
    /// PHP cannot load the app's configuration, and nothing else says it.
    #[error(
        "{0}; without PHP, write a manifest where it runs (`artisand manifest`), or set `settings = \"env\"` in artisand.toml to take the settings from the environment and .env alone"
    )]
    Settings(String),
    /// Settings are to come from a manifest, and there is none.
    #[error(
        "`settings` is `manifest`, and there is no manifest: write one with `artisand manifest`"
    )]
    NoManifest,
    /// A command needs an app, and none is set.
    #[error(
        "no Laravel app is known: run this in its directory, or give that with --app, ARTISAND_APP or `app` in artisand.toml, or give a manifest"
    )]
    NoApp,
    /// The manifest cannot be used.
    #[error("cannot use the manifest")]
    Manifest(#[from] ManifestError),
    /// A setting of the app cannot be used.
    #[error("cannot use the app's settings ({origin})")]
    Setting {
        /// Where they came from.
        origin: String,
        /// Which, and why.
        source: Box<SettingError>,
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
    #[error("{place}: mapping of `{target}`")]
    Mapping {
        /// File and line.
        place: ErrorPlace,
        /// What the mapping is for.
        target: String,
        /// What is wrong.
        source: MappingError,
    },
    /// What a mapping is for cannot be read.
    #[error("{place}")]
    Pattern {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong.
        source: TargetPatternError,
    },
    /// A mapping does not say what it is for, or says two things.
    #[error("{place}: {problem}")]
    Target {
        /// File and line.
        place: ErrorPlace,
        /// What is wrong and what would work.
        problem: String,
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

impl Error {
    /// Whether a setting is only not known here.
    pub fn is_unknown_setting(&self) -> bool {
        matches!(self, Self::Setting { source, .. } if matches!(**source, SettingError::Unknown { .. }))
    }
}

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
    /// What is known of the app.
    laravel: Option<Laravel>,
    manifest: Option<(PathBuf, Manifest)>,
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

/// Name of the manifest that is read where none is given, in the app's directory or the current one.
pub const MANIFEST_FILE: &str = "artisand.json";

/// Name of the file that is read where none is given.
pub const DEFAULT_FILE: &str = "artisand.toml";

impl Config {
    /// Reads the file (or `artisand.toml` in the current directory if there is one) and the app's `.env`, and asks PHP
    /// for the app's settings, where it runs.
    ///
    /// # Errors
    ///
    /// A file that was named and is not there, or anything in one that cannot be understood.
    pub fn load(
        path: Option<&Path>,
        app: Option<&Path>,
        process: impl IntoIterator<Item = (String, String)>,
    ) -> Result<Self, Error> {
        let path = Self::path_or_default(path);
        let file = path.map(file::read).transpose()?.unwrap_or_default();
        Self::with_file(file, path, app, process.into_iter().collect(), true)
    }

    /// Reads the same without starting PHP, and all that is wrong in the file.
    ///
    /// The mappings are looked up among these handlers. What cannot be understood of the file is left out of the
    /// settings.
    ///
    /// # Errors
    ///
    /// A file that cannot be read, or an app or manifest that cannot be understood, after the mistakes in the file.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn check(
        path: Option<&Path>,
        app: Option<&Path>,
        process: impl IntoIterator<Item = (String, String)>,
        registry: &Registry,
    ) -> (Result<Self, Error>, Vec<Error>) {
        let path = Self::path_or_default(path);
        let (file, mut mistakes) = match path.map(file::read_all).transpose() {
            Ok(read) => read.unwrap_or_default(),
            Err(error) => return (Err(error), Vec::new()),
        };
        let config = Self::with_file(file, path, app, process.into_iter().collect(), false);
        if let Ok(config) = &config {
            mistakes.extend(config.mistakes(registry));
        }
        (config, mistakes)
    }

    fn path_or_default(path: Option<&Path>) -> Option<&Path> {
        let default = Path::new(DEFAULT_FILE);
        path.or_else(|| default.exists().then_some(default))
    }

    fn with_file(
        file: File,
        path: Option<&Path>,
        app: Option<&Path>,
        process: BTreeMap<String, String>,
        may_ask_php: bool,
    ) -> Result<Self, Error> {
        let mut config = Self {
            file,
            path: path.map(Path::to_owned).unwrap_or_default(),
            process: Arc::new(process),
            ..Self::default()
        };
        let app = app.map(Path::to_owned).or_else(|| config.file.app.clone());
        let app = app.or_else(|| config.app_here());
        // Paths in the app's configuration are made from it.
        config.app = app.map(|app| std::path::absolute(&app).unwrap_or(app));
        if let Some(app) = &config.app {
            if !app.is_dir() {
                let source = std::io::Error::from(std::io::ErrorKind::NotFound);
                let path = app.clone();
                return Err(Error::Read { path, source });
            }
            config.env_file = Arc::new(read_env_file(app, &config.process)?);
        }
        config.learn(may_ask_php)?;
        Ok(config)
    }

    /// The app's directory as a configuration file says it, else the current one if it is an app's.
    ///
    /// # Errors
    ///
    /// The file was named and is not there, or cannot be understood.
    pub fn app_of_file(path: Option<&Path>) -> Result<Option<PathBuf>, Error> {
        let of_file = Self::path_or_default(path)
            .map(file::read)
            .transpose()?
            .and_then(|file| file.app);
        let here = Path::new(".");
        Ok(of_file.or_else(|| app::is_app(here).then(|| here.to_owned())))
    }

    /// The current directory if it is an app's, as it is for `php artisan`, and no manifest is named that is of another app.
    fn app_here(&self) -> Option<PathBuf> {
        let here = Path::new(".");
        let is_of_another = |path: PathBuf| {
            // One that cannot be read is an error for whatever uses it.
            let base = Manifest::read(&path).map(|manifest| manifest.paths.base);
            base.is_ok_and(|base| base.is_dir() && !app::is_same_directory(&base, here))
        };
        let is_it = app::is_app(here) && !self.named_manifest().is_some_and(is_of_another);
        is_it.then(|| here.to_owned())
    }

    /// The manifest that the environment or the file names.
    fn named_manifest(&self) -> Option<PathBuf> {
        let named = self.process.get("ARTISAND_MANIFEST").map(PathBuf::from);
        named.or_else(|| self.file.manifest.clone())
    }

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

    /// Finds out what is known of the app.
    fn learn(&mut self, may_ask_php: bool) -> Result<(), Error> {
        self.read_manifest()?;
        let source = self.source()?;
        match source {
            Some(Source::Env) => return self.learn_from_environment(source),
            Some(Source::Manifest) if self.manifest.is_none() => return Err(Error::NoManifest),
            Some(Source::Manifest) => {}
            Some(Source::Php) | None if !may_ask_php => {
                self.is_php_unasked = self.app_to_ask().is_some();
            }
            Some(Source::Php) | None => match self.ask_php() {
                Some(Ok(answer)) => return self.learn_from_php(&answer),
                Some(Err(failed)) => {
                    // Where PHP is only looked for, it may be missing.
                    let is_meant = source.is_some() || self.names_php();
                    if is_meant || !failed.is_missing {
                        if source.is_some() || self.manifest.is_none() {
                            return Err(Error::Settings(failed.why));
                        }
                        self.php_failure = Some(failed.why);
                    }
                }
                None if source.is_some() => return Err(Error::NoApp),
                None => {}
            },
        }
        match self.manifest.clone() {
            Some((path, manifest)) => self.learn_from(&manifest, Origin::Manifest(path)),
            None => self.learn_from_environment(source),
        }
    }

    /// Where the settings are to come from, if that is said.
    fn source(&self) -> Result<Option<Source>, Error> {
        const NAME: &str = "ARTISAND_SETTINGS";
        match self.process.get(NAME).map(String::as_str) {
            None | Some("") => Ok(self.file.settings),
            Some("php") => Ok(Some(Source::Php)),
            Some("manifest") => Ok(Some(Source::Manifest)),
            Some("env") => Ok(Some(Source::Env)),
            Some(other) => Err(Error::Variable {
                name: NAME.to_owned(),
                value: other.to_owned(),
                expected: "`php`, `manifest` or `env`",
            }),
        }
    }

    /// Reads the manifest that is named, or the one that is there.
    fn read_manifest(&mut self) -> Result<(), Error> {
        let of_app = self.app.as_ref().map(|app| app.join(MANIFEST_FILE));
        let path = self
            .named_manifest()
            .or_else(|| of_app.filter(|path| path.is_file()))
            .or_else(|| self.manifest_here());
        let Some(path) = path else {
            return Ok(());
        };
        let mut manifest = Manifest::read(&path)?;
        manifest.distrust_changed(self.app.as_ref().unwrap_or(&manifest.paths.base.clone()));
        self.notes.extend(manifest.notes.iter().cloned());
        self.manifest = Some((path, manifest));
        Ok(())
    }

    /// The directory of the app as PHP sees it; `None` if there is none that it could load.
    fn app_to_ask(&self) -> Option<PathBuf> {
        let is_app = |base: &PathBuf| base.join("bootstrap/app.php").is_file();
        let here = || self.base().filter(is_app);
        self.file.php.app.clone().or_else(here)
    }

    /// The app's directory, if that is said here or in the manifest.
    fn base(&self) -> Option<PathBuf> {
        let of_manifest = || Some(self.manifest.as_ref()?.1.paths.base.clone());
        self.app.clone().or_else(of_manifest)
    }

    /// Asks PHP for the settings; `None` if there is no app to ask about.
    fn ask_php(&self) -> Option<Result<Manifest, php::NoAnswer>> {
        let base = self.app_to_ask()?;
        let environment = self.process.get("APP_ENV").map(String::as_str);
        let answer = php::settings(&self.php_program(), &base, environment, &self.process);
        Some(answer)
    }

    /// The manifest in the current directory, unless it is another app's.
    fn manifest_here(&mut self) -> Option<PathBuf> {
        let path = PathBuf::from(MANIFEST_FILE);
        if !path.is_file() {
            return None;
        }
        let Some(app) = &self.app else {
            return Some(path);
        };
        // One that cannot be read is an error for whoever uses it.
        let other = Manifest::read(&path)
            .ok()
            .map(|manifest| manifest.paths.base);
        match other.filter(|other| !app::is_same_directory(other, app)) {
            None => Some(path),
            Some(other) => {
                self.notes.push(format!(
                    "{MANIFEST_FILE} in the current directory is of the app in {} and not used",
                    other.display()
                ));
                None
            }
        }
    }

    fn learn_from_php(&mut self, answer: &Manifest) -> Result<(), Error> {
        let cached = answer.paths.config_cache.clone();
        self.learn_from(answer, Origin::Php { cached })
    }

    /// Takes the settings that PHP said, now or when it wrote the manifest.
    fn learn_from(&mut self, facts: &Manifest, origin: Origin) -> Result<(), Error> {
        let paths = &facts.paths;
        let base = self.base().unwrap_or_else(|| paths.base.clone());
        self.read_env_of(&base)?;
        // An app that was moved took its storage with it.
        let storage = match paths.storage.strip_prefix(&paths.base) {
            Ok(inside) => base.join(inside),
            Err(_) => paths.storage.clone(),
        };
        let mut config = facts.config.clone();
        if base.is_dir() && !app::is_same_directory(&base, &paths.base) {
            move_paths(&mut config, &paths.base, &base);
        }
        if let Some(variables) = &facts.variables {
            let process = Arc::clone(&self.process);
            let env = |name: &str| process.get(name).map(String::as_str);
            self.overrides = variables.apply(&mut config, env);
        }
        let cache_prefixes = if self.overrides.concern_cache_prefixes() {
            BTreeMap::new()
        } else {
            facts.cache_prefixes.clone()
        };
        self.laravel = Some(Laravel {
            version: Some(facts.laravel.clone()),
            config,
            base,
            storage,
            cache_prefixes,
            origin,
            env: self.env_lookup(),
        });
        Ok(())
    }

    /// Reads the `.env` of an app whose directory nothing but PHP or a manifest says: secrets are there.
    fn read_env_of(&mut self, base: &Path) -> Result<(), Error> {
        if self.app.is_none() && base.is_dir() {
            self.env_file = Arc::new(read_env_file(base, &self.process)?);
        }
        Ok(())
    }

    /// Takes the settings that the process environment and `.env` say.
    fn learn_from_environment(&mut self, source: Option<Source>) -> Result<(), Error> {
        let Some(base) = self.base() else {
            return Ok(());
        };
        self.read_env_of(&base)?;
        let of_manifest = || Some(self.manifest.as_ref()?.1.laravel.clone());
        let laravel = app::framework_version(&base)
            .or_else(of_manifest)
            .or_else(|| self.file.laravel.clone());
        let version = laravel.as_deref().and_then(|version| version.parse().ok());
        let (process, env_file) = (Arc::clone(&self.process), Arc::clone(&self.env_file));
        let real = |name: &str| process.get(name).cloned();
        let variable = |name: &str| real(name).or_else(|| env_file.get(name).map(str::to_owned));
        let storage = match variable("LARAVEL_STORAGE_PATH") {
            Some(path) if version.is_none_or(|version: Version| version.is_at_least(10, 20)) => {
                path.into()
            }
            _ => base.join("storage"),
        };
        let environment = Environment {
            base: &base,
            storage: &storage,
            version,
            variable: &variable,
        };
        // With it, no variable counts.
        let cached = app::cached_config_path(&base, real);
        let config = match cached.filter(|_| source != Some(Source::Env)) {
            Some(path) => environment::config_behind(&path),
            None => environment.config(),
        };
        self.notes.extend(environment.notes());
        self.laravel = Some(Laravel {
            version: laravel,
            config,
            origin: Origin::Environment(base.clone()),
            base,
            storage,
            cache_prefixes: BTreeMap::new(),
            env: self.env_lookup(),
        });
        Ok(())
    }

    fn env_lookup(&self) -> EnvLookup {
        let (process, env_file) = (Arc::clone(&self.process), Arc::clone(&self.env_file));
        Arc::new(move |name| {
            let raw = process
                .get(name)
                .map(String::as_str)
                .or_else(|| env_file.get(name));
            raw.and_then(cast)
        })
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

    /// The manifest in use, and where it is.
    pub fn manifest(&self) -> Option<(&Path, &Manifest)> {
        self.manifest
            .as_ref()
            .map(|(path, manifest)| (path.as_path(), manifest))
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
            format!("`{variable}` is set to something else than then, and what comes from it is not known")
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

    /// The app's default cache store; `None` without an app, where its signals are not to be obeyed, and where only PHP
    /// reads it.
    ///
    /// # Errors
    ///
    /// The store cannot be told.
    pub fn default_cache(&self) -> Result<Option<Cache>, Error> {
        if self.laravel.is_none() || !self.obeys_app() || self.cache_for_php_only().is_some() {
            return Ok(None);
        }
        self.app_cache().map(|(_, cache)| Some(cache))
    }

    /// Name of the app's default cache store, and the store: also where its signals are not to be obeyed.
    ///
    /// # Errors
    ///
    /// There is no app, or the store cannot be told or is not supported.
    pub fn app_cache(&self) -> Result<(String, Cache), Error> {
        let laravel = self.known_laravel()?;
        let name = self.setting(laravel.default_cache())?;
        let cache = self.setting(laravel.cache(&name))?;
        Ok((name, cache))
    }

    /// Why the app's default cache store is not read here, where it is of a kind that only PHP reads.
    pub fn cache_for_php_only(&self) -> Option<String> {
        let laravel = self.laravel.as_ref()?;
        let name = laravel.default_cache().ok()?;
        let error = laravel.cache(&name).err()?;
        error.is_for_php_only().then(|| error.to_string())
    }

    /// Whether the app's signals are to be obeyed.
    pub fn obeys_app(&self) -> bool {
        self.file.worker.control_plane.unwrap_or(true)
    }

    /// Where the app says that it is down; `None` without an app, and where it says so in a cache store that only PHP
    /// reads.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn maintenance(&self) -> Result<Option<Maintenance>, Error> {
        let laravel = self.laravel.as_ref().filter(|_| self.obeys_app());
        match laravel.map(Laravel::maintenance) {
            None => Ok(None),
            Some(Err(error)) if error.is_for_php_only() => Ok(None),
            Some(maintenance) => self.setting(maintenance).map(Some),
        }
    }

    /// The app's store of failed jobs; `None` without an app.
    ///
    /// # Errors
    ///
    /// It cannot be told or is not supported.
    pub fn failed_jobs(&self) -> Result<Option<FailedJobs>, Error> {
        let store = self.laravel.as_ref().map(Laravel::failed_jobs);
        store.map(|store| self.setting(store)).transpose()
    }

    /// The app's batches; `None` without an app, and where they are not kept in a database.
    ///
    /// # Errors
    ///
    /// It cannot be told where they are, or that is not supported.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn batches(&self) -> Result<Option<Batches>, Error> {
        let Some(laravel) = &self.laravel else {
            return Ok(None);
        };
        self.setting(laravel.batches())
    }

    /// What the app offers to its jobs.
    ///
    /// Batches that cannot be used are none, and said in the log: few apps have
    /// jobs in batches, and all have a setting for them.
    ///
    /// # Errors
    ///
    /// Something of it is set and cannot be used.
    ///
    /// # Panics
    ///
    /// Outside of a Tokio runtime.
    pub fn services(&self) -> Result<Services, Error> {
        let php_queue = self.file.php.queue.as_deref();
        let mut services = Services {
            php_queue: php_queue.map(QueueName::from),
            version: self.known_version(),
            timezone: "UTC".to_owned(),
            ..Services::default()
        };
        if let Some(laravel) = &self.laravel {
            services.databases = Arc::new(laravel.databases());
            let zone = laravel.timezone().ok();
            if let Some(zone) = zone.as_ref().and_then(TimeZone::iana_name) {
                zone.clone_into(&mut services.timezone);
            }
            let default = self.setting(laravel.default_cache())?;
            let of_app = laravel.clone();
            services.stores = Some(Stores::new(default, move |name| of_app.cache(name)));
            services.connections = Some(self.destinations());
            match self.batches() {
                Ok(Some(batches)) => services.batches = Some(batches),
                Ok(None) => tracing::warn!(
                    "the app keeps its batches in DynamoDB, where PHP has to count each of their jobs"
                ),
                Err(error) => tracing::warn!(
                    error = with_causes(&error),
                    "the app's batches cannot be used here: PHP counts each of their jobs"
                ),
            }
        }
        match self.encrypter() {
            Ok(encrypter) => services.encrypter = Some(Arc::new(encrypter)),
            // Most apps encrypt no job: whoever needs the key says why there is none.
            Err(error) => services.encrypter_missing = Some(with_causes(&error).into()),
        }
        if let Some((_, manifest)) = &self.manifest {
            services.manifest = Some(Arc::new(manifest.clone()));
            let models = Models::new(manifest.models.clone(), Arc::clone(&services.databases));
            services.models = Some(Arc::new(models));
            let deleting = manifest.deleting_when_missing_models();
            let deleting = deleting.map(str::to_owned).collect();
            services.delete_when_missing_models = Some(Arc::new(deleting));
        }
        for (name, table) in &self.file.limiters {
            let limiter = table.to_limiter();
            services.limiters.insert(name.clone(), limiter);
        }
        self.fill_middleware(&mut services);
        Ok(services)
    }

    /// All queue connections, as far as they can be used.
    fn destinations(&self) -> Connections {
        let destination = |name: String| {
            let opened = self.connection(&name).map_err(|error| with_causes(&error));
            let default_queue = match &opened {
                Ok(connection) => connection.default_queue.clone(),
                Err(_) => "default".into(),
            };
            let queues = opened.and_then(|connection| {
                let redis = Redis::new(&connection.redis).map_err(|error| with_causes(&error))?;
                Ok(Arc::new(RedisQueue::new(redis, connection.queue)) as Arc<dyn Queue>)
            });
            let destination = Destination {
                default_queue,
                queues,
            };
            (name, destination)
        };
        let all = self.connections().into_iter().map(destination);
        Connections::new(self.default_connection(), all)
    }

    /// Version of the app's Laravel; where it is unknown, the newest.
    fn known_version(&self) -> Version {
        if let Some(laravel) = &self.laravel {
            return laravel.known_version();
        }
        let version = self.file.laravel.as_deref();
        version
            .and_then(|version| version.parse().ok())
            .unwrap_or_default()
    }

    /// The app's encrypter; without an app that of `APP_KEY` and `APP_PREVIOUS_KEYS` in the environment.
    ///
    /// # Errors
    ///
    /// There is no key, it cannot be told, or does not fit the cipher.
    pub fn encrypter(&self) -> Result<Encrypter, SettingError> {
        if let Some(laravel) = &self.laravel {
            return laravel.encrypter();
        }
        let (version, key) = (self.known_version(), self.env("APP_KEY"));
        let encrypter = Encrypter::new(version, &key.unwrap_or_default(), Laravel::CIPHER)?;
        let previous = self.env("APP_PREVIOUS_KEYS").unwrap_or_default();
        let previous = version
            .is_at_least(11, 0)
            .then(|| laravel::split_keys(&previous));
        Ok(encrypter.with_previous_keys(previous.into_iter().flatten())?)
    }

    /// What middleware needs: of no importance to jobs that do not need it, so an error only for those.
    fn fill_middleware(&self, services: &mut Services) {
        let Some(laravel) = &self.laravel else {
            for gap in [Gap::Cache, Gap::LimiterCache, Gap::Redis, Gap::Batches] {
                services.gaps.insert(gap, Error::NoApp.to_string());
            }
            return;
        };
        let stores = services.stores.clone();
        let open = |name: String| match &stores {
            Some(stores) => stores.get(&name).map_err(|error| with_causes(&error)),
            None => laravel.cache(&name).map_err(|error| with_causes(&error)),
        };
        let text = |error: SettingError| with_causes(&error);
        let gaps = &mut services.gaps;
        let cache = laravel.default_cache().map_err(text).and_then(open);
        services.cache = or_gap(gaps, Gap::Cache, cache);
        let cache = laravel.limiter_cache().map_err(text).and_then(open);
        services.limiter_cache = or_gap(gaps, Gap::LimiterCache, cache);
        let redis = laravel
            .redis("default")
            .map_err(text)
            .and_then(|redis| Redis::new(&redis.options).map_err(|error| with_causes(&error)));
        services.redis = or_gap(gaps, Gap::Redis, redis);
        if services.batches.is_none() {
            let why = "they cannot be read, see the log".to_owned();
            gaps.insert(Gap::Batches, why);
        }
    }

    /// Says which mapping has middleware that needs something of the app that is not there.
    ///
    /// # Errors
    ///
    /// File, line and what is missing.
    pub fn check_middleware(&self, router: &Router, services: &Services) -> Result<(), Error> {
        router.check(services).map_err(|at| self.mapping_error(at))
    }

    fn mapping_error(&self, (position, source): (usize, MappingError)) -> Error {
        let table = &self.file.map[position];
        // Of a mapping that became one, it was read before.
        let target = table.target().map(|target| target.to_string());
        Error::Mapping {
            place: file::place(&self.path, table.handler.span().start),
            target: target.unwrap_or_default(),
            source,
        }
    }

    /// Classes with middleware in PHP whose jobs run here without any.
    pub fn classes_without_their_middleware(&self, router: &Router) -> Vec<&str> {
        let classes = self
            .manifest
            .iter()
            .flat_map(|(_, manifest)| &manifest.classes);
        let with_middleware = classes.filter(|(_, class)| class.has_middleware());
        with_middleware
            .map(|(name, _)| name.as_str())
            .filter(|name| router.has_middleware(name) == Some(false))
            .collect()
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
        // Also one that is not ours: to work another queue than the app means would be worse than an error.
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

    /// Puts together the settings of a queue connection.
    ///
    /// # Errors
    ///
    /// An unknown name, a variable that is no number, an address that cannot be
    /// used, a key prefix that cannot be told or that nothing says.
    pub fn connection(&self, name: &str) -> Result<Connection, Error> {
        let connection = self.connection_without_prefix(name)?;
        if self.is_prefix_unknown(name) {
            return Err(Error::NoPrefix {
                connection: name.to_owned(),
                seen: String::new(),
            });
        }
        Ok(connection)
    }

    /// The settings of a queue connection, also where nothing says which key prefix the app has: then it is empty.
    ///
    /// # Errors
    ///
    /// As [`connection`](Self::connection), but for the prefix that nothing says.
    pub fn connection_without_prefix(&self, name: &str) -> Result<Connection, Error> {
        if !self.is_known(name) {
            return Err(Error::UnknownConnection {
                name: name.to_owned(),
                configured: self.connections().join(", "),
            });
        }
        let empty = ConnectionTable::default();
        let table = self.file.connections.get(name).unwrap_or(&empty);
        let of_app = match &self.laravel {
            Some(laravel) if laravel.has_queue_connection(name) => {
                let found = laravel.queue(name, table.prefix.as_deref());
                match found {
                    // What the file says in full needs nothing of the app.
                    Err(_) if table.says_all() => None,
                    found => Some(self.setting(found)?),
                }
            }
            _ => None,
        };
        let mut redis = match &of_app {
            Some(of_app) => of_app.redis.clone(),
            None => self.redis_of_env()?,
        };
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
        redis.prefix = match (&table.prefix, &of_app) {
            (Some(prefix), _) => prefix.clone(),
            (None, Some(of_app)) => of_app.redis.prefix.clone(),
            (None, None) => self.env("REDIS_PREFIX").unwrap_or_default(),
        };
        let seconds = "a whole number of seconds";
        let defaults = of_app.as_ref().map(|of_app| of_app.queue.clone());
        let defaults = match defaults {
            Some(defaults) => defaults,
            None => RedisQueueOptions {
                retry_after: Some(Duration::from_secs(
                    self.number("REDIS_QUEUE_RETRY_AFTER", seconds)?
                        .unwrap_or(90),
                )),
                notify: !self.is_before_notify_lists(),
                ..RedisQueueOptions::default()
            },
        };
        let queue = RedisQueueOptions {
            connection: ConnectionName::from(name),
            retry_after: table
                .retry_after
                .map(Duration::from_secs)
                .or(defaults.retry_after),
            notify: table.notify.unwrap_or(defaults.notify),
            migration_batch: table
                .migration_batch_size
                .map_or(defaults.migration_batch, NonZeroUsize::get),
            look_ahead: table
                .look_ahead
                .map_or(defaults.look_ahead, NonZeroUsize::get),
            forwards: self.forwards(name),
        };
        let default_queue = table
            .queue
            .clone()
            .or_else(|| match of_app {
                Some(of_app) => Some(of_app.default_queue),
                None => self.env("REDIS_QUEUE"),
            })
            .filter(|queue| !queue.is_empty());
        Ok(Connection {
            redis,
            queue,
            default_queue: default_queue.unwrap_or_else(|| "default".into()).into(),
        })
    }

    /// Queues of a connection that the app forwards to others, as its manifest says.
    fn forwards(&self, connection: &str) -> BTreeMap<QueueName, QueueName> {
        let Some((_, manifest)) = &self.manifest else {
            return BTreeMap::new();
        };
        let queues = manifest.queue_forwards.keys();
        let ends = queues.map(|queue| (queue, manifest.forwarded_queue(queue, connection)));
        ends.filter(|(queue, end)| queue != end)
            .map(|(queue, end)| (queue.as_str().into(), end.into()))
            .collect()
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

    /// Whether nothing says which key prefix the app has.
    fn is_prefix_unknown(&self, connection: &str) -> bool {
        let table = self.file.connections.get(connection);
        table.is_none_or(|table| table.prefix.is_none())
            && self.laravel.is_none()
            && !self.is_set("REDIS_PREFIX")
    }

    /// Whether the app's Laravel is older than 5.8, which brought the notify lists.
    fn is_before_notify_lists(&self) -> bool {
        let version = self.file.laravel.as_deref();
        let version = version.and_then(|version| version.parse::<Version>().ok());
        version.is_some_and(|version| !version.is_at_least(5, 8))
    }

    /// What is wrong with mappings and the policy for unmapped jobs, each with its line.
    fn mistakes(&self, registry: &Registry) -> Vec<Error> {
        let policy = self.file.unmapped.to_policy();
        let unmapped = policy.as_ref().ok().cloned().flatten();
        let unmapped = unmapped.unwrap_or(UnmappedPolicy::Leave);
        let of_mapping = |(position, table): (usize, &MapTable)| {
            let routed = self.mapping(table).and_then(|mapping| {
                let routed = Router::new(vec![mapping], unmapped.clone(), registry);
                routed.map_err(|(_, source)| self.mapping_error((position, source)))
            });
            routed.err()
        };
        let mappings = self.file.map.iter().enumerate().filter_map(of_mapping);
        let policy = policy.err().map(|problem| self.policy_error(problem));
        let mut mistakes: Vec<Error> = mappings.chain(policy).collect();
        // What middleware needs of the app may be only in what PHP says.
        let is_known = !self.is_php_unasked || self.manifest.is_some();
        if mistakes.is_empty() && self.laravel.is_some() && is_known {
            let mappings = self.file.map.iter().map(|table| self.mapping(table));
            let mappings = mappings.filter_map(Result::ok).collect();
            if let Ok(router) = Router::new(mappings, unmapped, registry) {
                let services = self.services();
                let checked =
                    services.and_then(|services| self.check_middleware(&router, &services));
                mistakes.extend(checked.err());
            }
        }
        mistakes
    }

    fn mapping(&self, table: &MapTable) -> Result<Mapping, Error> {
        table.to_mapping().map_err(|wrong| {
            let place = file::place(&self.path, wrong.offset);
            match wrong.problem {
                Problem::Name(source) => Error::Pattern { place, source },
                Problem::Keys(problem) => Error::Target { place, problem },
            }
        })
    }

    /// Looks up the handlers of all mappings.
    ///
    /// # Errors
    ///
    /// A bad pattern, an unknown handler or policy, with file and line.
    pub fn router(&self, registry: &Registry) -> Result<Router, Error> {
        let mappings = self.file.map.iter().map(|table| self.mapping(table));
        let mappings = mappings.collect::<Result<Vec<_>, _>>()?;
        let unmapped = self.unmapped()?;
        Router::new(mappings, unmapped, registry).map_err(|at| self.mapping_error(at))
    }
}

impl Config {
    fn policy_error(&self, problem: String) -> Error {
        Error::Policy {
            place: file::place(&self.path, self.file.unmapped.offset()),
            problem,
        }
    }

    /// What becomes of jobs that no mapping matches: as it is written, or else `php` where the app is and PHP runs,
    /// and `leave` elsewhere.
    ///
    /// # Errors
    ///
    /// A policy that cannot be carried out, with file and line.
    pub fn unmapped(&self) -> Result<UnmappedPolicy, Error> {
        let error = |problem: String| self.policy_error(problem);
        match self.file.unmapped.to_policy().map_err(error)? {
            Some(UnmappedPolicy::Php) if self.app_for_php().is_none() => Err(error(
                "policy `php` needs the Laravel app: give its directory with --app, ARTISAND_APP or `app` in artisand.toml".to_owned(),
            )),
            Some(UnmappedPolicy::Php) if self.is_too_old_for_php() => Err(error(format!(
                "policy `php` needs Laravel 8 or later, and the app is {}: take `leave`, `forward` or `fail`",
                self.known_version()
            ))),
            Some(policy) => Ok(policy),
            None if self.can_run_php() => Ok(UnmappedPolicy::Php),
            None => Ok(UnmappedPolicy::Leave),
        }
    }

    /// The app's directory as PHP sees it.
    fn app_for_php(&self) -> Option<PathBuf> {
        let known = || self.laravel.as_ref().map(|laravel| laravel.base.clone());
        self.file.php.app.clone().or_else(known)
    }

    /// The program that is PHP, and its arguments.
    pub fn php_program(&self) -> Vec<String> {
        let set = self.file.php.binary.as_ref().map(OneOrMore::to_vec);
        let of_environment = || {
            let named = self.process.get("ARTISAND_PHP");
            named.filter(|name| !name.is_empty()).cloned()
        };
        set.filter(|command| !command.is_empty())
            .unwrap_or_else(|| vec![of_environment().unwrap_or_else(|| php::PHP.to_owned())])
    }

    /// Whether the app is here, not too old, and PHP runs.
    fn can_run_php(&self) -> bool {
        let is_here = self.file.php.app.is_some() || self.has_app_for_php();
        is_here && !self.is_too_old_for_php() && self.has_php()
    }

    fn has_app_for_php(&self) -> bool {
        let app = self.app_for_php();
        app.is_some_and(|base| base.join("bootstrap/app.php").is_file())
    }

    /// Whoever names a program wants it to be used, and is told if it cannot be.
    fn has_php(&self) -> bool {
        let has_answered = self.laravel.as_ref().is_some_and(Laravel::is_of_php);
        has_answered || self.names_php() || php::version(php::PHP).is_some()
    }

    /// Laravel's worker before 8 ends its process instead of returning.
    fn is_too_old_for_php(&self) -> bool {
        !self.known_version().is_at_least(8, 0)
    }

    fn names_php(&self) -> bool {
        self.php_program() != [php::PHP]
    }

    /// What alone keeps PHP processes from running what is not mapped, and what would help.
    pub fn lack_for_php(&self) -> Option<String> {
        let is_open = matches!(self.file.unmapped.to_policy(), Ok(None));
        if !is_open || !self.has_app_for_php() {
            return None;
        }
        if self.is_too_old_for_php() {
            let version = self.known_version();
            return Some(format!(
                "PHP processes are for Laravel 8 and later, and the app is {version}"
            ));
        }
        let problem = "`php` does not run here (name the app's PHP with `binary` under [php])";
        (!self.has_php()).then(|| problem.to_owned())
    }

    /// How PHP processes are started for the jobs of a connection; `failed_jobs` is the store that we write.
    pub fn pool(&self, worker: &WorkerOptions, failed_jobs: Option<&FailedJobs>) -> PoolOptions {
        let table = &self.file.php;
        let seconds = |duration: Duration| duration.as_secs();
        // Properties of `WorkerOptions`, by their names.
        let options = serde_json::json!({
            "name": "default",
            "backoff": worker.defaults.backoff.to_string(),
            "memory": match table.memory {
                Some(0) => i64::MAX,
                memory => i64::try_from(memory.unwrap_or(128)).unwrap_or(i64::MAX),
            },
            "timeout": if worker.once { 0 } else { seconds(worker.defaults.timeout) },
            // Where it may not ask for jobs; it waits for one on the socket. Shorter than a job waits for being taken.
            "sleep": 1,
            "maxTries": worker.defaults.tries,
            // Whoever does not want the app's signals obeyed does not want it of PHP either.
            "force": worker.force || self.file.worker.control_plane == Some(false),
            "stopWhenEmpty": false,
            "maxJobs": table.max_jobs.unwrap_or(1000),
            // Up to Laravel 10 a worker that pauses takes the machine's uptime for its own.
            "maxTime": 0,
            "rest": 0,
        });
        // One job after the other, as one `queue:work`: more is for the app's people to decide.
        let processes = table.processes.unwrap_or(NonZeroUsize::MIN);
        let queues: Vec<&str> = worker.queues.iter().map(QueueName::as_str).collect();
        let boot = table.boot_timeout.map_or(60, NonZeroU64::get);
        PoolOptions {
            php: self.php_program(),
            app: self.app_for_php().unwrap_or_else(|| ".".into()),
            env: self.process.get("APP_ENV").cloned(),
            connection: worker.connection.to_string(),
            queue: queues.join(","),
            processes: if worker.once {
                NonZeroUsize::MIN
            } else {
                processes
            },
            rest: worker.rest,
            max_time: Some(table.max_time.unwrap_or(3600))
                .filter(|seconds| *seconds > 0)
                .map(Duration::from_secs),
            failer: failed_jobs.map(FailedJobs::provider),
            worker: options.as_object().cloned().unwrap_or_default(),
            boot: Duration::from_secs(boot),
            retry_after: (self.connection(worker.connection.as_str()).ok())
                .and_then(|connection| connection.queue.retry_after),
            once: worker.once,
        }
    }
}

/// Makes paths below one directory lead below another: PHP may see the app elsewhere, in a container.
fn move_paths(value: &mut Value, from: &Path, to: &Path) {
    match value {
        Value::String(text) => {
            let inside = Path::new(text).strip_prefix(from);
            if let Ok(inside) = inside.map(|inside| to.join(inside)) {
                *text = inside.to_string_lossy().into_owned();
            }
        }
        Value::Array(list) => list
            .iter_mut()
            .for_each(|value| move_paths(value, from, to)),
        Value::Object(map) => map
            .values_mut()
            .for_each(|value| move_paths(value, from, to)),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

/// What was found; why it was not is written down.
fn or_gap<T>(gaps: &mut BTreeMap<Gap, String>, gap: Gap, found: Result<T, String>) -> Option<T> {
    found.map_err(|why| gaps.insert(gap, why)).ok()
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
            process: Arc::new(process),
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
    fn debug_output_holds_no_secret() {
        let toml = r#"
[connections.redis]
url = "redis://user:hunter2@127.0.0.1"
prefix = ""
password = "hunter2"
[[map]]
job = 'A'
handler = { exec = ["x"], env = { TOKEN = "hunter2" } }
[[map]]
job = 'B'
handler = { exec = ["x"], env = { TOKEN = "hunter2" }, persistent = true }
"#;
        let mut config = config(toml, &[("REDIS_PASSWORD", "hunter2")]);
        let env = EnvFile::parse("APP_KEY=hunter2\n", |_| None).unwrap();
        let manifest = r#"{"artisand":1,"laravel":"13.31.0","generated_at":1,"paths":{"base":"/a","storage":"/a/storage"},"config":{"app":{"key":"hunter2"}}}"#;
        let manifest = Manifest::parse(Path::new("artisand.json"), manifest.as_bytes()).unwrap();
        config.env_file = Arc::new(env.clone());
        config.manifest = Some(("artisand.json".into(), manifest.clone()));
        let router = config.router(&Registry::new()).unwrap();
        let key = "base64:MDEyMzQ1Njc4OTAxMjM0NTY3ODkwMTIzNDU2Nzg5MDE=";
        let encrypter = Encrypter::new(Version::default(), key, Laravel::CIPHER).unwrap();
        let shown = [
            format!("{config:?}"),
            format!("{env:?}"),
            format!("{manifest:?}"),
            format!("{router:?}"),
            format!("{:?}", config.connection("redis").unwrap()),
            format!("{:?}", config.services().unwrap()),
        ];
        for shown in shown {
            assert!(!shown.contains("hunter2"), "{shown}");
        }
        let shown = format!("{encrypter:?}");
        assert!(
            !shown.contains("MDEy") && !shown.contains("0123") && !shown.contains("48, 49"),
            "{shown}"
        );
    }

    #[test]
    fn paths_of_an_app_lead_to_where_it_is() {
        let text = |path: &str| {
            let mut value = serde_json::json!({"a": [path, 5, null]});
            move_paths(&mut value, Path::new("/var/www"), Path::new("/srv/app"));
            value["a"][0].as_str().unwrap().to_owned()
        };
        for (path, expected) in [
            ("/var/www/storage/x", "/srv/app/storage/x"),
            ("/var/www", "/srv/app"),
            ("/var/www2/x", "/var/www2/x"),
            ("var/www", "var/www"),
        ] {
            assert_eq!(text(path).trim_end_matches('/'), expected);
        }
    }

    #[test]
    fn mistakes_are_named_with_their_line() {
        let error = |toml: &str| config(toml, &[]).router(&Registry::new()).unwrap_err();
        let unknown = error("\n[[map]]\njob = 'A'\nhandler = 'nope'\n");
        assert!(matches!(unknown, Error::Mapping { .. }), "{unknown:?}");
        let pattern = error("[[map]]\njob = '/(/'\nhandler = 'log'\n");
        assert!(matches!(pattern, Error::Pattern { .. }), "{pattern:?}");
        let forwarded = error("[[map]]\njob = 'A'\nhandler = { forward = 'q' }\ndebounce = 'x'\n");
        assert!(matches!(forwarded, Error::Mapping { .. }), "{forwarded:?}");
        let policy = error("[unmapped]\npolicy = 'forward'\n").to_string();
        assert!(policy.contains("needs a `queue`"), "{policy}");
        assert!(
            toml::from_str::<File>("[worker]\nconcurency = 3")
                .unwrap_err()
                .to_string()
                .contains("concurrency")
        );
    }

    #[test]
    fn an_app_that_is_too_old_for_php_processes_leaves_its_jobs() {
        let unmapped = |laravel: &str, more: &str| {
            let php = "[php]\napp = '/srv/app'\nbinary = '/opt/php/bin/php'\n";
            config(&format!("laravel = '{laravel}'\n{php}{more}"), &[]).unmapped()
        };
        assert_eq!(unmapped("7.30.4", "").unwrap(), UnmappedPolicy::Leave);
        assert_eq!(unmapped("8.0.0", "").unwrap(), UnmappedPolicy::Php);
        let error = unmapped("7.30.4", "[unmapped]\npolicy = 'php'\n").unwrap_err();
        let error = error.to_string();
        assert!(
            error.contains("policy `php` needs Laravel 8 or later, and the app is 7.30.4"),
            "{error}"
        );
    }

    #[test]
    fn a_mapping_is_for_one_kind_of_job() {
        let error = |toml: &str| {
            let toml = format!("[[map]]\n{toml}\nhandler = 'log'\n");
            let error = config(&toml, &[]).router(&Registry::new()).unwrap_err();
            with_causes(&error)
        };
        #[rustfmt::skip]
        let rows = [
            ("", "it needs one of job, listener"),
            ("job = 'A'\nlistener = 'B'", "this one has `job` and `listener`"),
            ("job = 'A'\nchannel = 'mail'", "`channel` goes with `notification`, and this mapping has `job`"),
            ("mailable = 'A'\nevent = 'E'", "`event` goes with `listener`"),
            ("notification = 'A'\nchannel = ''", "`channel` is empty"),
            ("closure = true", "only PHP can run"),
            ("batch = true", "only PHP can run"),
            ("listener = '/(/@handle'", "is not a pattern"),
            ("listener = 'A@'", "it is empty"),
            ("string = ''", "it is empty"),
            (r"job = 'Illuminate\Mail\SendQueuedMailable'", "write `mailable = '..'`"),
        ];
        for (toml, expected) in rows {
            let error = error(toml);
            assert!(error.contains(expected), "{toml}: {error}");
        }
        let unknown = toml::from_str::<File>("[[map]]\nlistner = 'A'\nhandler = 'log'\n");
        let unknown = unknown.unwrap_err().to_string();
        assert!(unknown.contains("`listener`"), "{unknown}");
        let all = r"
[[map]]
listener = 'L@handle'
event = 'E'
handler = 'log'
[[map]]
notification = 'N'
channel = 'mail'
handler = 'log'
[[map]]
mailable = 'M'
handler = 'log'
[[map]]
broadcast = 'B'
handler = 'log'
[[map]]
command = 'c:d'
handler = 'log'
[[map]]
string = 'S'
handler = 'log'
";
        let router = config(all, &[]).router(&Registry::new()).unwrap();
        let names = router.mappings().map(|mapping| mapping.target.to_string());
        #[rustfmt::skip]
        assert_eq!(
            names.collect::<Vec<_>>(),
            ["listener L@handle of E", "notification N by mail", "mailable M", "broadcast B", "command c:d", "string S@fire"]
        );
    }

    #[test]
    fn middleware_is_written_as_a_list_of_tables() {
        let toml = r#"
[[map]]
job = 'A'
handler = "log"
middleware = [
    { without_overlapping = { key = "{podcast.id}", release_after = 5, expires_after = 60, shared = true } },
    { rate_limited = "backups" },
    { rate_limited_with_redis = { limiter = "backups", dont_release = true } },
    { throttles_exceptions = { max = 3, decay = 60, by = "x", spend_attempt = false, when = ['/timed out/'] } },
    { fail_on_exception = ['Illuminate\Database\Eloquent\*'] },
    { release = { when = "{podcast.busy}", after = 30 } },
    { throttles_exceptions_with_redis = {} },
    { skip = "{muted}" },
    "skip_if_batch_cancelled",
]
debounce = "{podcast.id}"

[limiters.backups]
limits = [{ max = 10, per = 60, by = "{user.id}" }, { max = 100, per = 3600 }]
"#;
        let config = config(toml, &[]);
        let router = config.router(&Registry::new()).unwrap();
        assert_eq!(
            router.mappings().next().unwrap().middleware.iter().count(),
            9
        );
        assert_eq!(router.has_middleware("A"), Some(true));
        let services = config.services().unwrap();
        assert!(services.limiter("backups").is_ok());
        let error = config.check_middleware(&router, &services).unwrap_err();
        let error = with_causes(&error);
        assert!(
            error.contains("the app's default cache store cannot be used: no Laravel app is known"),
            "{error}"
        );
    }

    #[test]
    fn mistakes_in_middleware_are_named() {
        #[rustfmt::skip]
        let rows = [
            (r"{ without_overlaping = {} }", "unknown variant `without_overlaping`"),
            (r"{ without_overlapping = { release = 5 } }", "unknown field `release`"),
            (r#"{ without_overlapping = { key = "{podcast" } }"#, "a `{` is not closed"),
            (r#"{ rate_limited = { limit = "x" } }"#, "unknown field `limit`"),
            (r"{ rate_limited = 5 }", "the name of a limiter"),
            (r#"{ skip = "muted" }"#, "expected one property of the job"),
            (r#"{ skip = "{a}", rate_limited = "b" }"#, "`skip` does not go with `rate_limited`"),
            (r#""log""#, "unknown variant"),
            (r#"{ throttles_exceptions = { when = "X" } }"#, "invalid type: string"),
            (r#"{ throttles_exceptions = { fail_when = ["/(/"] } }"#, "`/(/` is not a pattern"),
            (r"{ throttles_exceptions = { report = true } }", "`report` is not needed"),
            (r"{ fail_on_exception = true }", "invalid type: boolean"),
            (r#"{ release = "{busy}" }"#, "invalid type: string"),
            (r"{ release = { after = 5 } }", "missing field `when`"),
        ];
        for (middleware, expected) in rows {
            let toml = format!(
                "[worker]\n\n[[map]]\njob = 'A'\nhandler = 'log'\nmiddleware = [\n  {middleware},\n]\n"
            );
            let error = toml::from_str::<File>(&toml).unwrap_err();
            assert!(
                error.to_string().contains(expected),
                "{middleware}: {error}"
            );
            assert!(
                error.to_string().contains("line 7"),
                "{middleware}: {error}"
            );
        }
    }
}
