//! Opens the app's stores: cache, maintenance mode, failed jobs, batches; and its key.

use super::laravel::{self, Laravel, SettingError};
use super::{Config, Error};
use crate::batch::Batches;
use crate::cache::{Cache, Maintenance};
use crate::failed::FailedJobs;
use crate::payload::Encrypter;

/// The app's default cache store; `None` without an app, where its signals are not to be obeyed, and where only PHP
/// reads it.
///
/// # Errors
///
/// The store cannot be told.
pub fn default_cache(config: &Config) -> Result<Option<Cache>, Error> {
    if config.laravel.is_none() || !config.obeys_app() || cache_for_php_only(config).is_some() {
        return Ok(None);
    }
    app_cache(config).map(|(_, cache)| Some(cache))
}

/// Name of the app's default cache store, and the store: also where its signals are not to be obeyed.
///
/// # Errors
///
/// There is no app, or the store cannot be told or is not supported.
pub fn app_cache(config: &Config) -> Result<(String, Cache), Error> {
    let laravel = config.known_laravel()?;
    let name = config.setting(laravel.default_cache())?;
    let cache = config.setting(laravel.cache(&name))?;
    Ok((name, cache))
}

/// Why the app's default cache store is not read here, where it is of a kind that only PHP reads.
pub fn cache_for_php_only(config: &Config) -> Option<String> {
    let laravel = config.laravel.as_ref()?;
    let name = laravel.default_cache().ok()?;
    let error = laravel.cache(&name).err()?;
    error.is_for_php_only().then(|| error.to_string())
}

/// Where the app says that it is down; `None` without an app, and where it says so in a cache store that only PHP
/// reads.
///
/// # Errors
///
/// It cannot be told.
pub fn maintenance(config: &Config) -> Result<Option<Maintenance>, Error> {
    let laravel = config.laravel.as_ref().filter(|_| config.obeys_app());
    match laravel.map(Laravel::maintenance) {
        None => Ok(None),
        Some(Err(error)) if error.is_for_php_only() => Ok(None),
        Some(maintenance) => config.setting(maintenance).map(Some),
    }
}

/// The app's store of failed jobs; `None` without an app.
///
/// # Errors
///
/// It cannot be told or is not supported.
pub fn failed_jobs(config: &Config) -> Result<Option<FailedJobs>, Error> {
    let store = config.laravel.as_ref().map(Laravel::failed_jobs);
    store.map(|store| config.setting(store)).transpose()
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
pub fn batches(config: &Config) -> Result<Option<Batches>, Error> {
    let Some(laravel) = &config.laravel else {
        return Ok(None);
    };
    config.setting(laravel.batches())
}

/// The app's encrypter; without an app that of `APP_KEY` and `APP_PREVIOUS_KEYS` in the environment.
///
/// # Errors
///
/// There is no key, it cannot be told, or does not fit the cipher.
pub fn encrypter(config: &Config) -> Result<Encrypter, SettingError> {
    if let Some(laravel) = &config.laravel {
        return laravel.encrypter();
    }
    let (version, key) = (config.known_version(), config.env("APP_KEY"));
    let encrypter = Encrypter::new(version, &key.unwrap_or_default(), Laravel::CIPHER)?;
    let previous = config.env("APP_PREVIOUS_KEYS").unwrap_or_default();
    let previous = version
        .is_at_least(11, 0)
        .then(|| laravel::split_keys(&previous));
    Ok(encrypter.with_previous_keys(previous.into_iter().flatten())?)
}
