//! The app's default cache store, through which workers hear its signals, and maintenance mode.

use std::time::Duration;

use super::maintenance;
use crate::cache::{Cache, keys};
use crate::cli::gaps;
use crate::cli::report::Report;
use crate::config::{Config, Laravel, SettingError};
use crate::php::Value;
use crate::shown::with_causes;

pub(super) async fn check(config: &Config, laravel: &Laravel) -> Report {
    let mut report = check_encoding(laravel);
    if !config.obeys_app() {
        report.warn(
            "cache",
            "`control_plane = false`: restart, pause and maintenance are not obeyed",
            "delete it from artisand.toml if that is not meant",
        );
    }
    let opened = laravel
        .default_cache()
        .and_then(|name| Ok((laravel.cache(&name)?, name)));
    let (cache, name) = match opened {
        Ok(opened) => opened,
        Err(error) => {
            let is_for_php_only = error.is_for_php_only() && config.obeys_app();
            report.extend(unusable(&error, config.obeys_app()));
            if is_for_php_only {
                report.extend(maintenance::check(laravel).await);
            }
            return report;
        }
    };
    if !cache.is_shared() {
        report.warn("cache", format!("the default store `{name}` is not shared between processes"), "use redis, database or file: otherwise queue:restart and queue:pause reach no worker, in PHP neither");
        return report;
    }
    match try_cache(&cache).await {
        Ok(restart) => {
            let restart = restart.map_or_else(
                || "no restart was asked for".to_owned(),
                |restart| format!("last restart at {}", moment(config, &restart)),
            );
            report.ok(
                "cache",
                format!("store `{name}`, {}; {restart}", cache.describe()),
            );
        }
        Err(error) => report.error(
            "cache",
            format!(
                "store `{name}`, {}: {}",
                cache.describe(),
                with_causes(&error)
            ),
            "check that it runs and can be written: without it workers notice no signal",
        ),
    }
    report.extend(maintenance::check(laravel).await);
    report
}

/// Reports a Redis connection whose client changes the bytes of values.
fn check_encoding(laravel: &Laravel) -> Report {
    let mut report = Report::default();
    for name in laravel.redis_connections().unwrap_or_default() {
        if let Ok(settings) = laravel.redis(&name)
            && let Some((path, value)) = settings.encoded
        {
            report.error("serializer", format!("Redis connection `{name}`: `{path}` is {value}, so phpredis changes the bytes of cache values and locks"), "unset it, or give the cache store a connection without it");
            break;
        }
    }
    report
}

/// Reports why the default store cannot be used.
fn unusable(error: &SettingError, obeys_app: bool) -> Report {
    let mut report = Report::default();
    let why = with_causes(error);
    if !obeys_app {
        report.warn("cache", why, "correct it if jobs are unique, or have middleware: without the store of their locks they are not run here");
    } else if error.is_for_php_only() {
        let found = format!("{why}: {}", gaps::CACHE_OF_PHP);
        report.warn("cache", found, gaps::CACHE_OF_PHP_REMEDY);
    } else {
        report.error("cache", why, "queue:work does not start with it: correct it, or set `control_plane = false` under [worker]");
    }
    report
}

/// Reads the restart key; writes, increments and deletes a key of artisand's own.
/// A moment in the app's time zone.
fn moment(config: &Config, seconds: &str) -> String {
    let moment = seconds.parse().ok();
    let moment = moment.and_then(|seconds| jiff::Timestamp::from_second(seconds).ok());
    let zone = config.timezone().ok();
    moment.zip(zone).map_or_else(
        || seconds.to_owned(),
        |(moment, zone)| moment.to_zoned(zone).strftime("%F %T %Z").to_string(),
    )
}

async fn try_cache(cache: &Cache) -> Result<Option<String>, crate::cache::Error> {
    const KEY: &str = "artisand:doctor";
    cache
        .put(KEY, &Value::Int(1), Duration::from_secs(60))
        .await?;
    cache.increment(KEY, 1).await?;
    cache.forget(KEY).await?;
    let restart = cache.get(keys::RESTART).await?;
    Ok(restart.map(|value| match &value {
        Value::Int(seconds) => seconds.to_string(),
        value => value.as_str().unwrap_or("(not a number)").to_owned(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_for_php_alone_is_no_error() {
        let only_php = SettingError::OnlyPhp {
            path: "cache.default".into(),
            driver: "memcached".into(),
        };
        let missing = SettingError::Missing {
            path: "cache.stores.x".into(),
            there: "none".into(),
        };
        assert_eq!(unusable(&only_php, true).levels(), "warning");
        assert_eq!(unusable(&missing, true).levels(), "error");
        assert_eq!(unusable(&missing, false).levels(), "warning");
    }
}
