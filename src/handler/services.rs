//! The app's services for jobs: keys, batches, locks, databases, and facts about its classes.

use std::collections::BTreeMap;
use std::sync::Arc;

use tokio::runtime::Handle;

use super::hold::HeldLocks;
use super::hooks::Hooks;
use super::limiter::Limiter;
use super::model::Models;
use crate::app::{Class, Manifest};
use crate::batch::Batches;
use crate::cache::{Cache, Stores};
use crate::connection::{Databases, Redis};
use crate::payload::{Data, Encrypter, JobId, Kind, NewPayload, Payload, Version, random_id};
use crate::php::ClassName;
use crate::queue::{Connections, QueueName};
use crate::time::Clock;

/// Everything of the app that a job may need during and after its run; missing services are `None`.
///
/// Built once per worker from the app's configuration and manifest. Connections
/// and stores are opened on first use.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct Services {
    /// Version of the app's Laravel; its rules apply.
    pub version: Version,
    /// Facts about the app's classes.
    pub manifest: Option<Arc<Manifest>>,
    /// What PHP has told about the app's classes at the start; asked only where nothing else says which jobs are
    /// unique. It is newer than the manifest.
    pub told: Option<Arc<Manifest>>,
    /// Whether the app has Laravel Horizon, which adds to payloads.
    pub has_horizon: bool,
    /// The app's time zone, as PHP names it.
    pub timezone: String,
    /// Where the time comes from.
    pub(crate) clock: Clock,
    /// The app's cache stores.
    pub stores: Option<Stores>,
    /// The app's queue connections.
    pub connections: Option<Connections>,
    /// What becomes of the app's payload hooks.
    pub(crate) hooks: Hooks,
    /// A queue that PHP serves, for work that only PHP can do; by default the queue that unmapped jobs go to.
    pub php_queue: Option<QueueName>,
    /// The app's batches; `None` if their configuration is unknown or they are not in a database.
    pub batches: Option<Batches>,
    /// The app's keys, which decrypt encrypted jobs and sign closures.
    pub encrypter: Option<Arc<Encrypter>>,
    /// Why there is no encrypter, and how to configure one.
    pub encrypter_missing: Option<Box<str>>,
    /// The app's databases.
    pub databases: Arc<Databases>,
    /// Tables and keys of the app's models; from the manifest.
    pub models: Option<Arc<Models>>,
    /// What middleware needs.
    pub middleware: MiddlewareServices,
}

/// What middleware, and the count of a job's exceptions, need of the app: all of it is shared with other workers.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct MiddlewareServices {
    /// The app's default cache store.
    pub cache: Option<Cache>,
    /// The store of the app's rate limiters (`cache.limiter`, or else the default store).
    pub limiter_cache: Option<Cache>,
    /// The app's Redis connections by name, or why one cannot be used.
    pub redis: BTreeMap<String, Result<Redis, String>>,
    /// Rate limiters by name.
    pub limiters: BTreeMap<String, Limiter>,
    /// Why each missing service is missing.
    pub gaps: BTreeMap<Gap, String>,
    /// Locks that running jobs hold.
    pub held: HeldLocks,
}

/// A service that may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Gap {
    /// [`MiddlewareServices::cache`]
    Cache,
    /// [`MiddlewareServices::limiter_cache`]
    LimiterCache,
    /// [`MiddlewareServices::redis`]
    Redis,
    /// [`Services::batches`]
    Batches,
}

/// A service of the app is needed but missing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what} cannot be used: {why}")]
pub struct Missing {
    what: String,
    why: String,
}

impl MiddlewareServices {
    fn missing(&self, gap: Gap, what: &str) -> Missing {
        let why = self.gaps.get(&gap).cloned();
        Missing {
            what: what.to_owned(),
            why: why.unwrap_or_else(|| "it is not set".to_owned()),
        }
    }

    fn shared<'a>(
        &self,
        cache: Option<&'a Cache>,
        gap: Gap,
        what: &str,
    ) -> Result<&'a Cache, Missing> {
        match cache {
            Some(cache) if cache.is_shared() => Ok(cache),
            Some(_) => Err(Missing {
                what: what.to_owned(),
                why: "no other process sees it, so it excludes no other worker; use redis, database or file".to_owned(),
            }),
            None => Err(self.missing(gap, what)),
        }
    }

    /// The app's default cache store, if other processes share it.
    ///
    /// # Errors
    ///
    /// The store is missing or not shared; the error says why.
    pub fn cache(&self) -> Result<&Cache, Missing> {
        let what = "the app's default cache store";
        self.shared(self.cache.as_ref(), Gap::Cache, what)
    }

    /// The store of the app's rate limiters, if other processes share it.
    ///
    /// # Errors
    ///
    /// The store is missing or not shared; the error says why.
    pub fn limiter_cache(&self) -> Result<&Cache, Missing> {
        let what = "the app's cache store for rate limiters";
        self.shared(self.limiter_cache.as_ref(), Gap::LimiterCache, what)
    }

    /// The app's Redis connection of this name.
    ///
    /// # Errors
    ///
    /// There is no such connection, or it cannot be used; the error says why.
    pub fn redis(&self, name: &str) -> Result<&Redis, Missing> {
        let what = format!("the app's Redis connection `{name}`");
        match self.redis.get(name) {
            Some(Ok(redis)) => Ok(redis),
            Some(Err(why)) => Err(Missing {
                what,
                why: why.clone(),
            }),
            None if self.redis.is_empty() => Err(self.missing(Gap::Redis, &what)),
            None => {
                let known: Vec<&str> = self.redis.keys().map(String::as_str).collect();
                let why = format!(
                    "the app has none of this name (there are: {})",
                    known.join(", ")
                );
                Err(Missing { what, why })
            }
        }
    }

    /// The rate limiter of this name.
    ///
    /// # Errors
    ///
    /// No limiter has this name.
    pub fn limiter(&self, name: &str) -> Result<&Limiter, Missing> {
        self.limiters.get(name).ok_or_else(|| Missing {
            what: format!("the rate limiter `{name}`"),
            why: format!(
                "its limits are code in PHP; say them under [limiters.{name}] (there are: {})",
                match self.limiters.len() {
                    0 => "none".to_owned(),
                    _ => self.limiters.keys().cloned().collect::<Vec<_>>().join(", "),
                }
            ),
        })
    }
}

impl Services {
    /// Keeps the locks of running jobs on this runtime, which no handler can block, and opens there what connections to
    /// Redis jobs share.
    pub(crate) fn oversee(&self, overseer: &Handle) {
        let middleware = &self.middleware;
        middleware.held.keep_on(overseer);
        if let Some(stores) = &self.stores {
            stores.open_on(overseer);
        }
        let caches = [&middleware.cache, &middleware.limiter_cache];
        for cache in caches.into_iter().flatten() {
            cache.open_on(overseer);
        }
        for redis in middleware.redis.values().flatten() {
            redis.open_on(overseer);
        }
    }

    /// Puts what a connection's driver adds into a payload: Redis an id and the number of attempts, and Horizon its own
    /// fields, which stay away from other drivers. Returns the job's id.
    pub(crate) fn add_driver_fields(&self, connection: &str, payload: &mut NewPayload) -> JobId {
        let of_uuid = || JobId::from(payload.uuid.as_str());
        let connections = self.connections.as_ref();
        if connections.is_some_and(|connections| !connections.counts_in_payload(connection)) {
            let id = of_uuid();
            (payload.id, payload.horizon) = (None, None);
            return id;
        }
        let id = match &payload.horizon {
            // Horizon gives a job one name.
            Some(_) => of_uuid(),
            None => random_id(),
        };
        payload.id = Some(id.clone());
        id
    }

    /// What is known of a class: PHP has told it, or the manifest says it.
    pub(crate) fn class(&self, name: &ClassName) -> Option<&Class> {
        let manifest = self.told.as_ref().or(self.manifest.as_ref())?;
        manifest.class(name)
    }

    /// Id of the batch that a job is in, if it is in one. A `batchId` is taken for that of Laravel's `Batchable` unless
    /// it is known that the job's class does not use it.
    pub(crate) fn batch_id(&self, payload: &Payload) -> Option<String> {
        let id = payload.batch_id()?;
        let class = payload.command_name().and_then(ClassName::new);
        let class = class.and_then(|class| self.class(&class));
        (!class.is_some_and(Class::is_never_batched)).then_some(id)
    }

    /// The app's batches.
    ///
    /// # Errors
    ///
    /// The batches are unknown, or not in a database.
    pub fn batches(&self) -> Result<&Batches, Missing> {
        let batches = self.batches.as_ref();
        batches.ok_or_else(|| {
            let what = "the app's batches";
            self.middleware.missing(Gap::Batches, what)
        })
    }

    /// Whether a job whose model is gone is deleted instead of failed; `None` if that is not known.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\CallQueuedHandler::handleModelNotFound`: since Laravel
    /// 13 the payload decides, in 12 the class of the command, before that the
    /// class that the job shows as its name.
    pub fn deletes_when_missing_models(&self, payload: &Payload) -> Option<bool> {
        if self.version.is_at_least(13, 0) {
            return Some(payload.delete_when_missing_models == Some(true));
        }
        // In Laravel 12 the wrapper's class decides; Laravel's own wrappers are the same in every app.
        let wrapper = payload.command_name().and_then(ClassName::new);
        let wrapper = wrapper.map_or(Kind::Job, |class| Kind::of_class(&class));
        if self.version.is_at_least(12, 0) && !matches!(wrapper, Kind::Job | Kind::Closure) {
            return Some(wrapper == Kind::Broadcast && self.version.is_at_least(12, 38));
        }
        let manifest = self.told.as_ref().or(self.manifest.as_ref())?;
        let class = match &payload.data {
            Data::Command { name, .. } if self.version.is_at_least(12, 0) => name,
            _ => payload.resolve_name(),
        };
        // A name of the job's own choice is no class that could say it.
        ClassName::in_code(class).map_or(Some(false), |class| {
            manifest.deletes_when_missing_models(&class)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload of a job that is shown by this name.
    fn shown_as(name: &str) -> Payload {
        let json = serde_json::json!({
            "displayName": name, "job": "Illuminate\\Queue\\CallQueuedHandler@call",
            "data": {"commandName": "Named", "command": "O:1:\"N\":0:{}"},
        });
        Payload::parse(json.to_string().as_bytes()).unwrap()
    }

    /// A manifest in which this class has `deleteWhenMissingModels`.
    fn deleting(class: &str) -> Arc<Manifest> {
        let manifest = serde_json::json!({
            "artisand": 1, "laravel": "13.0.0", "generated_at": 0,
            "paths": {"base": "/nowhere", "storage": "/nowhere"}, "config": {},
            "classes": {class: {
                "kind": "job", "file": "A.php", "flags": {"queued": true},
                "limits": {"deleteWhenMissingModels": true},
            }},
        });
        let manifest = Manifest::parse("a.json".as_ref(), manifest.to_string().as_bytes()).unwrap();
        Arc::new(manifest)
    }

    #[test]
    fn versions_look_in_different_places_for_what_a_missing_model_does() {
        let payload = |field: &str| {
            let json = format!(
                r#"{{"displayName":"Shown","job":"Illuminate\\Queue\\CallQueuedHandler@call",{field}"data":{{"commandName":"Named","command":"O:1:\"N\":0:{{}}"}}}}"#
            );
            Payload::parse(json.as_bytes()).unwrap()
        };
        let (yes, no) = (
            r#""deleteWhenMissingModels":true,"#,
            r#""deleteWhenMissingModels":false,"#,
        );
        #[rustfmt::skip]
        let rows = [
            // version, classes that say it, field => deletes
            ("8.83.0",  Some("Shown"), "",  Some(true)),
            ("11.52.0", Some("Shown"), no,  Some(true)),
            ("11.52.0", Some("Named"), yes, None),
            ("12.0.0",  Some("Named"), no,  Some(true)),
            ("12.60.0", Some("Shown"), yes, None),
            ("12.60.0", None,          yes, None),
            ("13.0.0",  None,          yes, Some(true)),
            ("13.0.0",  Some("Named"), no,  Some(false)),
            ("13.31.0", Some("Shown"), "",  Some(false)),
        ];
        for (version, classes, field, expected) in rows {
            let services = Services {
                version: version.parse().unwrap(),
                manifest: classes.map(deleting),
                ..Services::default()
            };
            let deletes = services.deletes_when_missing_models(&payload(field));
            assert_eq!(deletes, expected, "{version} {classes:?} {field}");
        }
    }

    #[test]
    fn nothing_says_what_a_missing_model_does_to_a_class_that_has_changed() {
        let base = tempfile::tempdir().unwrap();
        std::fs::write(base.path().join("A.php"), "<?php").unwrap();
        let mut manifest = Manifest::clone(&deleting("Shown"));
        let services = |manifest: &Manifest, told: Option<Arc<Manifest>>| Services {
            version: "10.48.0".parse().unwrap(),
            manifest: Some(Arc::new(manifest.clone())),
            told,
            ..Services::default()
        };
        let deletes =
            |services: &Services, name: &str| services.deletes_when_missing_models(&shown_as(name));
        let before = services(&manifest, None);
        assert_eq!(deletes(&before, r"\shown"), Some(true), "as PHP finds it");
        manifest.distrust_changed(base.path());
        let after = services(&manifest, None);
        assert_eq!(deletes(&after, "Shown"), None);
        assert_eq!(deletes(&after, "Shown for you"), Some(false), "no class");
        let told = services(&manifest, Some(deleting("Shown")));
        assert_eq!(deletes(&told, "Shown"), Some(true));
    }

    #[test]
    fn in_laravel_12_the_wrapper_is_asked_what_a_missing_model_does() {
        let payload = |wrapper: &str| {
            let json = serde_json::json!({
                "displayName": "Shown", "job": "Illuminate\\Queue\\CallQueuedHandler@call",
                "data": {"commandName": wrapper, "command": "O:1:\"N\":0:{}"},
            });
            Payload::parse(json.to_string().as_bytes()).unwrap()
        };
        let (listener, broadcast) = (
            "Illuminate\\Events\\CallQueuedListener",
            "Illuminate\\Broadcasting\\UniqueBroadcastEvent",
        );
        #[rustfmt::skip]
        let rows = [
            ("11.52.0", listener,  Some(true)),
            ("12.37.0", listener,  Some(false)),
            ("12.37.0", broadcast, Some(false)),
            ("12.38.0", broadcast, Some(true)),
            ("12.38.0", listener,  Some(false)),
            ("13.0.0",  broadcast, Some(false)),
        ];
        for (version, wrapper, expected) in rows {
            let services = Services {
                version: version.parse().unwrap(),
                manifest: Some(deleting("Shown")),
                ..Services::default()
            };
            let deletes = services.deletes_when_missing_models(&payload(wrapper));
            assert_eq!(deletes, expected, "{version} {wrapper}");
        }
    }
}
