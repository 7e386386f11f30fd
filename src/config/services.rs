//! What the app offers to its jobs.

use std::collections::BTreeMap;
use std::sync::Arc;

use jiff::tz::TimeZone;

use super::connection::Connection;
use super::connection::settings::connection;
use super::file::PayloadHooks;
use super::laravel::{Laravel, SettingError};
use super::stores::{batches, encrypter};
use super::{Config, Error};
use crate::cache::Stores;
use crate::connection::Redis;
use crate::handler::{Gap, Hooks, Models, Services};
use crate::queue::{Connections, Destination, FailoverQueue, Inner, Queue, QueueName};
use crate::routing::PhpEvents;
use crate::shown::with_causes;

/// The target of log lines here: it stays the same when files are moved.
const TARGET: &str = "artisand::config";

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
pub fn services(config: &Config) -> Result<Services, Error> {
    let php_queue = config.file.php.queue.as_deref();
    let mut services = Services {
        php_queue: php_queue.map(QueueName::from),
        version: config.known_version(),
        hooks: match config.file.php.payload_hooks {
            PayloadHooks::Ask => Hooks::OnlyPhp,
            PayloadHooks::Skip => Hooks::Skip,
        },
        has_horizon: config.laravel.as_ref().is_some_and(Laravel::has_horizon),
        timezone: "UTC".to_owned(),
        ..Services::default()
    };
    if let Some(laravel) = &config.laravel {
        fill_stores(config, laravel, &mut services)?;
    }
    match encrypter(config) {
        Ok(encrypter) => services.encrypter = Some(Arc::new(encrypter)),
        // Most apps encrypt no job: only a job that needs the key says why there is none.
        Err(error) => services.encrypter_missing = Some(with_causes(&error).into()),
    }
    if let Some((_, manifest)) = &config.manifest {
        services.manifest = Some(Arc::clone(manifest));
        let models = Models::new(manifest.models.clone(), Arc::clone(&services.databases));
        services.models = Some(Arc::new(models));
    }
    services.told.clone_from(&config.told);
    for (name, table) in &config.file.limiters {
        let limiter = table.to_limiter();
        services.middleware.limiters.insert(name.clone(), limiter);
    }
    fill_middleware(config, &mut services);
    Ok(services)
}

/// What is in databases and caches, and the queues that jobs can be pushed to.
fn fill_stores(config: &Config, laravel: &Laravel, services: &mut Services) -> Result<(), Error> {
    services.databases = Arc::new(laravel.databases());
    let zone = laravel.timezone().ok();
    if let Some(zone) = zone.as_ref().and_then(TimeZone::iana_name) {
        zone.clone_into(&mut services.timezone);
    }
    let default = config.setting(laravel.default_cache())?;
    let of_app = laravel.clone();
    services.stores = Some(Stores::new(default, move |name| of_app.cache(name)));
    services.connections = Some(destinations(config));
    match batches(config) {
        Ok(Some(batches)) => {
            services.batches = Some(batches.with_events(raises_all(config)));
        }
        Ok(None) => tracing::warn!(
            target: TARGET,
            "the app keeps its batches in DynamoDB, where PHP has to count each of their jobs"
        ),
        Err(error) => tracing::warn!(
            target: TARGET,
            error = with_causes(&error),
            "the app's batches cannot be used here: PHP counts each of their jobs"
        ),
    }
    Ok(())
}

/// Whether PHP raises all events for any job of a handler.
fn raises_all(config: &Config) -> bool {
    let mut mappings = config.file.map.iter();
    config.file.php.events == Some(PhpEvents::All)
        || mappings.any(|table| table.events == Some(PhpEvents::All))
}

/// All queue connections, as far as they can be used.
fn destinations(config: &Config) -> Connections {
    let destination = |name: String| {
        let opened = connection(config, &name).map_err(|error| with_causes(&error));
        let default_queue = match &opened {
            Ok(connection) => connection.default_queue.clone(),
            Err(_) => "default".into(),
        };
        let queues = opened.and_then(|connection| open_to_push(config, &connection));
        let destination = Destination {
            default_queue,
            queues,
        };
        (name, destination)
    };
    let all = config.connections().into_iter().map(destination);
    Connections::new(config.default_connection(), all)
}

/// Opens a connection to push; of a failover connection those that can be used, up to the first that cannot: after
/// that one only PHP knows what is to be done.
fn open_to_push(config: &Config, to: &Connection) -> Result<Arc<dyn Queue>, String> {
    if to.failover.is_empty() {
        return to.open_to_push().map_err(|error| with_causes(&error));
    }
    let (mut all, mut problem) = (Vec::new(), String::new());
    for name in &to.failover {
        let opened = connection(config, name).and_then(|inner| {
            Ok(Inner {
                queues: inner.open_to_push()?,
                name: inner.name,
                default_queue: inner.default_queue,
            })
        });
        match opened {
            Ok(inner) => all.push(inner),
            Err(error) => {
                problem = with_causes(&error);
                break;
            }
        }
    }
    match FailoverQueue::new(all) {
        Some(queue) => Ok(Arc::new(queue)),
        None => Err(problem),
    }
}

/// What middleware needs: of no importance to jobs that do not need it, so an error only for those.
fn fill_middleware(config: &Config, services: &mut Services) {
    let Some(laravel) = &config.laravel else {
        for gap in [Gap::Cache, Gap::LimiterCache, Gap::Redis, Gap::Batches] {
            services
                .middleware
                .gaps
                .insert(gap, Error::NoApp.to_string());
        }
        return;
    };
    let stores = services.stores.clone();
    let open = |name: String| match &stores {
        Some(stores) => stores.get(&name).map_err(|error| with_causes(&error)),
        None => laravel.cache(&name).map_err(|error| with_causes(&error)),
    };
    let redis = |name: String| {
        let settings = laravel.redis(&name).map_err(|error| with_causes(&error));
        let opened = settings
            .and_then(|redis| Redis::new(&redis.options).map_err(|error| with_causes(&error)));
        (name, opened)
    };
    let text = |error: SettingError| with_causes(&error);
    let middleware = &mut services.middleware;
    let gaps = &mut middleware.gaps;
    let cache = laravel.default_cache().map_err(text).and_then(open);
    middleware.cache = or_gap(gaps, Gap::Cache, cache);
    let cache = laravel.limiter_cache().map_err(text).and_then(open);
    middleware.limiter_cache = or_gap(gaps, Gap::LimiterCache, cache);
    match laravel.redis_connections() {
        Ok(names) => middleware.redis = names.into_iter().map(redis).collect(),
        Err(error) => drop(gaps.insert(Gap::Redis, with_causes(&error))),
    }
    if services.batches.is_none() {
        let why = "they cannot be read, see the log".to_owned();
        gaps.insert(Gap::Batches, why);
    }
}

/// What was found; why it was not is written down.
fn or_gap<T>(gaps: &mut BTreeMap<Gap, String>, gap: Gap, found: Result<T, String>) -> Option<T> {
    found.map_err(|why| gaps.insert(gap, why)).ok()
}
