//! Finds out what is known of the app: PHP says it, a manifest, or the environment.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use serde_json::Value;

use super::doubts::Doubt;
use super::environment::{self, Environment};
use super::file::Source;
use super::laravel::{EnvLookup, Laravel, Origin, as_predis};
use super::{Config, Error, php};
use crate::app::{self, EnvFile, Manifest, Version, cast};

impl Config {
    /// Finds out what is known of the app.
    pub(super) fn learn(&mut self, may_ask_php: bool) -> Result<(), Error> {
        self.check_redis_table()?;
        self.read_manifest()?;
        let source = self.source()?;
        match source {
            Some(Source::Env) => {
                self.learn_from_environment(source);
                return Ok(());
            }
            Some(Source::Manifest) if self.manifest.is_none() => return Err(Error::NoManifest),
            Some(Source::Manifest) => {}
            Some(Source::Php) | None if !may_ask_php => {
                self.is_php_unasked = self.app_to_ask().is_some();
            }
            Some(Source::Php) | None => match self.ask_php() {
                Some(Ok(answer)) => {
                    self.learn_from_php(&answer);
                    return Ok(());
                }
                Some(Err(failed)) => {
                    // Where PHP is only looked for, it may be missing.
                    let is_meant = source.is_some() || self.names_php();
                    if is_meant || !failed.is_missing {
                        if source.is_some() || self.manifest.is_none() {
                            return Err(match self.doubt_of_php() {
                                Some(Doubt {
                                    place: Some(place),
                                    problem,
                                    ..
                                }) if failed.is_missing => Error::Program { place, problem },
                                _ => Error::Settings(failed.why),
                            });
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
        Ok(())
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
        self.ask(php::settings)
    }

    /// Asks PHP about the app's classes, if jobs of them run here that may be unique and nothing else says it. It boots
    /// the app, so only what starts a worker or examines it asks.
    pub fn ask_about_classes(&mut self) {
        if self.unknown_classes().next().is_some() {
            self.ask_about_all_classes();
        }
    }

    /// Asks PHP about all classes of the app, where no manifest tells.
    pub(crate) fn ask_about_all_classes(&mut self) {
        let is_php_here = self.laravel.as_ref().is_some_and(Laravel::is_of_php);
        if is_php_here && self.told.is_none() {
            match self.ask(php::classes) {
                Some(Ok(told)) => self.told = Some(Arc::new(told)),
                Some(Err(failed)) => self.classes_failure = Some(failed.why),
                None => {}
            }
        }
    }

    fn ask(
        &self,
        question: impl Fn(
            &[String],
            &Path,
            Option<&str>,
            &BTreeMap<String, String>,
        ) -> Result<Manifest, php::NoAnswer>,
    ) -> Option<Result<Manifest, php::NoAnswer>> {
        let base = self.app_to_ask()?;
        let environment = self.process.get("APP_ENV").map(String::as_str);
        let answer = question(&self.php_program(), &base, environment, &self.process);
        Some(answer)
    }

    fn learn_from_php(&mut self, answer: &Manifest) {
        let cached = answer.paths.config_cache.clone();
        self.learn_from(answer, Origin::Php { cached });
    }

    /// Takes the settings that PHP said, now or when it wrote the manifest.
    fn learn_from(&mut self, facts: &Manifest, origin: Origin) {
        let paths = &facts.paths;
        let base = self.base().unwrap_or_else(|| paths.base.clone());
        self.read_env_of(&base);
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
            config: as_predis(config),
            base,
            storage,
            cache_prefixes,
            origin,
            env: self.env_lookup(),
            redis: self.redis_table(),
        });
    }

    /// Reads the `.env` of an app whose directory nothing but PHP or a manifest says: secrets are there.
    fn read_env_of(&mut self, base: &Path) {
        if self.app.is_none() && base.is_dir() {
            self.read_env(base);
        }
    }

    /// Reads the `.env` in a directory.
    pub(super) fn read_env(&mut self, base: &Path) {
        match read_env_file(base, &self.process) {
            Ok(file) => self.env_file = Arc::new(file),
            Err(mistake) => self.env_mistake = Some(mistake),
        }
    }

    /// Decides what a mistake in `.env` means, now that it is known where the settings come from.
    ///
    /// # Errors
    ///
    /// The mistake, where Laravel would not start with it, either.
    pub(super) fn judge_env(&mut self) -> Result<(), Error> {
        let Some(mistake) = self.env_mistake.take() else {
            return Ok(());
        };
        let real = |name: &str| self.process.get(name).cloned();
        let cached = || app::cached_config_path(&self.base()?, real);
        let is_source = self.source()? == Some(Source::Env);
        let is_unread = !is_source && cached().is_some();
        let is_denied = matches!(&mistake, Error::Read { source, .. }
            if source.kind() == std::io::ErrorKind::PermissionDenied);
        let is_unreadable = is_denied && !is_source;
        let is_of_php = self.laravel.as_ref().is_some_and(Laravel::is_of_php);
        if !is_unread && !is_unreadable && !is_of_php {
            return Err(mistake);
        }
        self.ignored_env = Some(crate::shown::with_causes(&mistake));
        Ok(())
    }

    /// Takes the settings that the process environment and `.env` say.
    fn learn_from_environment(&mut self, source: Option<Source>) {
        let Some(base) = self.base() else {
            return;
        };
        self.read_env_of(&base);
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
            redis: self.redis_table(),
        });
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

fn read_env_file(app: &Path, process: &BTreeMap<String, String>) -> Result<EnvFile, Error> {
    let named = process
        .get("APP_ENV")
        .map(|env| app.join(format!(".env.{env}")))
        .filter(|path| path.exists());
    let path = named.unwrap_or_else(|| app.join(".env"));
    let bytes = match std::fs::read(&path) {
        Ok(bytes) => bytes,
        // Laravel does without it, too.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(EnvFile::default()),
        Err(source) => return Err(Error::Read { path, source }),
    };
    EnvFile::parse(&bytes, |name| process.get(name).cloned())
        .map_err(|source| Error::Env { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;

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
}
