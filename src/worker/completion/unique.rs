//! The lock of a unique job: finds and frees it.
//!
//! The bytes of an ordinary job do not say that its class is unique. Four sources do: the hidden context that
//! `dispatch()` adds since Laravel 11.39, the owner in the object since 13.24, the object itself for listeners and
//! broadcasts, and the manifest or PHP. Only the last says whether the lock is freed before the job runs. Of a job that
//! none of them names, artisand frees no lock; before 13.24 it may have one all the same, and is not run here.
//!
//! docs/protocol/cache.md 8.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::cache::{self, Cache, name};
use crate::handler::{BoxError, BoxFuture, JobContext, Middleware, Next, Services};
use crate::outbox::follow_up::FollowUp;
use crate::payload::{Command, Kind, Payload, UNIQUE_BROADCAST_EVENT, Version};
use crate::php::{ClassName, PropertyScan, Value};
use crate::queue::{self, Effect, QueueName};
use crate::shown::with_causes;
use crate::worker::app_context::AppContext;

/// The lock of a unique job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Unique {
    /// Name of the cache store.
    pub(crate) store: String,
    /// Name of the lock, below the store's prefix.
    pub(crate) name: String,
    /// The owner that must hold the lock; `None` frees it for any owner, because older Laravel versions record
    /// none.
    pub(crate) owner: Option<String>,
    /// Whether the lock is freed as soon as the job runs (`ShouldBeUniqueUntilProcessing`).
    pub(crate) until_processing: bool,
}

/// What makes facts known about a class.
const REMEDY: &str =
    "write a manifest (`artisand manifest`) or let PHP tell it (`settings = \"php\"`)";
/// What helps if the class is not unique.
const OR_NOT: &str = "if the class is not unique, set `unique = false` in its mapping";

/// What is known about a job's uniqueness apart from its context.
enum Known {
    /// Nothing.
    Nothing,
    /// The job has no lock.
    Not,
    /// The job has a lock with this name, which contains the id.
    Name {
        name: String,
        id: String,
        until_processing: bool,
    },
    /// The job has a lock, and only PHP can compute its name.
    UnknownName(String, bool),
    /// The job may have a lock: nothing is known of its class, and its bytes would not say it.
    Unknown(String),
}

impl Known {
    fn of(services: &Services, payload: &Payload, command: &Command) -> Result<Self, String> {
        let class = command.class();
        // Laravel's wrappers say themselves whether they are unique.
        let is_wrapper = Kind::of_class(class) != Kind::Job;
        let Some(manifest) = services.told.as_ref().or(services.manifest.as_ref()) else {
            return Ok(match unique_wrapper(services, command)? {
                Some(until_processing) => Self::UnknownName(
                    "it is unique, and only a manifest says whether `uniqueVia()` of its class chooses a cache store: write it with `artisand manifest`".to_owned(),
                    until_processing,
                ),
                None if is_wrapper => Self::Nothing,
                None => Self::of_unknown_class(services, payload, command)?,
            });
        };
        let flag = |name: &str| {
            let class = manifest.class(class)?;
            class.flags.get(name)?.as_bool()
        };
        match manifest.class(class) {
            None if !is_wrapper => return Self::of_unknown_class(services, payload, command),
            Some(_) if !is_wrapper && flag("unique") != Some(true) => return Ok(Self::Not),
            _ => {}
        }
        let value = command.to_value().map_err(|error| with_causes(&error))?;
        let until = flag("unique_until_processing") == Some(true);
        Ok(match manifest.unique(&value) {
            Ok(None) => Self::Not,
            Ok(Some(unique)) => {
                let display_name = unique.display_name.as_deref();
                let (version, class) = (services.version, class.as_str());
                let name = name::unique_lock(version, class, display_name, &unique.id);
                Self::Name {
                    name,
                    id: unique.id.to_string(),
                    until_processing: unique.until_processing,
                }
            }
            Err(missing) => Self::UnknownName(missing.to_string(), until),
        })
    }
}

impl Known {
    /// A class of which nothing is known. Since 13.24 its jobs say themselves that they hold a lock. Before, any of them
    /// may be unique, and its lock would stay.
    fn of_unknown_class(
        services: &Services,
        payload: &Payload,
        command: &Command,
    ) -> Result<Self, String> {
        let version = services.version;
        let nothing = || nothing_known(services, command.class());
        Ok(Self::Unknown(if version.hides_locks() {
            format!(
                "{}, and not all jobs of Laravel {version} say whether they are unique: {REMEDY}; {OR_NOT}",
                nothing()
            )
        } else if version == Version::NEWEST && payload.may_hide_its_lock() {
            format!(
                "it has the form of Laravel 8.0 to 12.10, and not all jobs of versions before 13.24 say whether they are unique: say the app's version in artisand.toml (`laravel = \"8\"`); before 13.24, {REMEDY}; {OR_NOT}"
            )
        } else if owner_in(command)?.is_some() {
            return Err(format!("it is unique, and {}: {REMEDY}", nothing()));
        } else {
            return Ok(Self::Nothing);
        }))
    }

    /// The name of the lock, whether it is freed before the job runs, and whether the name is that of the context;
    /// `None` if the job has no lock.
    ///
    /// The context of the dispatching job may be passed on, with that job's lock instead of this job's.
    fn lock(self, of_context: Option<String>) -> Result<Option<(String, bool, bool)>, String> {
        Ok(match (self, of_context) {
            (Self::Not, _) | (Self::Nothing, None) => None,
            // A lock that is to be freed before the job runs would keep out what the app dispatches meanwhile.
            (Self::Nothing | Self::Unknown(_), Some(name)) => {
                return Err(format!(
                    "it is unique (`{name}`), and only its class says whether its lock is freed before it runs: {REMEDY}"
                ));
            }
            (
                Self::Name {
                    name,
                    id,
                    until_processing,
                },
                of_context,
            ) => {
                // The name at dispatch counts: a newer app version may compute another name.
                let has_id = |key: &String| {
                    let class = key.strip_suffix(id.as_str());
                    class.is_some_and(|class| class.ends_with(':'))
                };
                let of_context = of_context.filter(has_id);
                let is_of_context = of_context.is_some();
                Some((of_context.unwrap_or(name), until_processing, is_of_context))
            }
            (Self::UnknownName(_, until), Some(name)) => Some((name, until, true)),
            (Self::UnknownName(why, _) | Self::Unknown(why), None) => return Err(why),
        })
    }
}

impl Unique {
    /// Finds the lock of a job; `None` if it is not unique.
    ///
    /// With `is_never_unique`, jobs of unknown classes have no lock unless they say so (`unique = false` of a mapping).
    ///
    /// # Errors
    ///
    /// The job is or may be unique, and its lock is not known; the text says why, and what would help.
    pub(crate) fn of(
        services: &Services,
        payload: &Payload,
        command: &Command,
        is_never_unique: bool,
    ) -> Result<Option<Self>, String> {
        let text = |key| payload.hidden_context(key);
        let is_own =
            |key: &String| is_lock_of(key, command.class().as_str(), &payload.display_name);
        let of_context = text("laravel_unique_job_key").filter(is_own);
        let known = match Known::of(services, payload, command)? {
            Known::Unknown(_) if is_never_unique => Known::Nothing,
            known => known,
        };
        let Some((name, until_processing, is_of_context)) = known.lock(of_context)? else {
            return Ok(None);
        };
        let said = |key| text(key).filter(|text| is_of_context && !text.is_empty());
        let store = said("laravel_unique_job_cache_store");
        let owner = match said("laravel_unique_job_lock_owner") {
            Some(owner) => Some(owner),
            None => owner_in(command)?,
        };
        let default = services
            .stores
            .as_ref()
            .map(|stores| stores.default_name().to_owned());
        let store = store.or(default).ok_or(
            "it is unique, and nothing is known of the app's cache, where its lock is: give the app's directory or a manifest",
        )?;
        let unique = Self {
            store,
            name,
            owner,
            until_processing,
        };
        // A lock that cannot be freed would block later jobs, perhaps forever.
        let cache = unique.cache(services);
        cache.map_err(|why| format!("it is unique, and its lock cannot be freed: {why}"))?;
        Ok(Some(unique))
    }

    /// The lock that the context of an undecodable payload names.
    pub(crate) fn from_raw_json(services: &Services, element: &[u8]) -> Option<Self> {
        let json: serde_json::Value = serde_json::from_slice(element).ok()?;
        let hidden = json.get("illuminate:log:context")?.get("hidden")?;
        let text = |key: &str| {
            let value = Value::from_bytes(hidden.get(key)?.as_str()?.as_bytes()).ok()?;
            Some(value.as_str()?.to_owned()).filter(|text| !text.is_empty())
        };
        let name = text("laravel_unique_job_key")?;
        let of = |field: Option<&serde_json::Value>| field?.as_str().map(str::to_owned);
        let class = of(json.get("data").and_then(|data| data.get("commandName")));
        let display_name = of(json.get("displayName")).unwrap_or_default();
        let class = class.unwrap_or_else(|| display_name.clone());
        is_lock_of(&name, &class, &display_name).then_some(())?;
        let default = || Some(services.stores.as_ref()?.default_name().to_owned());
        Some(Self {
            store: text("laravel_unique_job_cache_store").or_else(default)?,
            name,
            owner: text("laravel_unique_job_lock_owner"),
            until_processing: false,
        })
    }

    fn cache(&self, services: &Services) -> Result<Cache, String> {
        let stores = services.stores.as_ref();
        let stores = stores.ok_or("nothing is known of the app's cache")?;
        stores.get(&self.store).map_err(|error| with_causes(&error))
    }

    /// The effect of freeing the lock with the end of a job of this queue; `None` if there is nothing to free.
    pub(crate) async fn free(&self, app: &AppContext, queue: &QueueName) -> Option<Effect> {
        let cache = match self.cache(&app.services) {
            Ok(cache) => cache,
            Err(error) => {
                tracing::error!(
                    error,
                    lock = self.name,
                    "the lock of a unique job cannot be freed"
                );
                return None;
            }
        };
        if let Some(place) = cache.lock_place(&self.name)
            && app.ledger.holds(queue, &place)
        {
            let owner = self.owner.clone();
            return Some(Effect::Unlock(queue::Unlock { place, owner }));
        }
        if !cache.is_shared() {
            return None;
        }
        let owner = match &self.owner {
            Some(owner) => Some(owner.clone()),
            // The lock is freed later: without an owner that could hit a lock that another job has taken by then.
            None => match cache
                .lock(&*self.name, "", std::time::Duration::ZERO)
                .current_owner()
                .await
            {
                Ok(Some(owner)) => Some(owner),
                Ok(None) => return None,
                Err(_) => None,
            },
        };
        let unlock = FollowUp::Unlock {
            store: self.store.clone(),
            name: self.name.clone(),
            owner,
        };
        Some(unlock.effect())
    }

    /// Frees the lock now: the job is about to be run.
    ///
    /// # Errors
    ///
    /// The store cannot be used; the lock may be free.
    pub(crate) async fn free_now(&self, services: &Services) -> Result<(), String> {
        let cache = self.cache(services)?;
        cache::free_lock(&cache, &self.name, self.owner.as_deref())
            .await
            .map_err(|error| with_causes(&error))
    }
}

/// Pipeline step that frees the lock of a job that is unique only until it runs.
pub(crate) struct UntilProcessing {
    lock: Unique,
    is_freed: AtomicBool,
}

impl UntilProcessing {
    pub(crate) fn new(lock: Unique) -> Self {
        Self {
            lock,
            is_freed: AtomicBool::new(false),
        }
    }

    pub(crate) fn is_freed(&self) -> bool {
        self.is_freed.load(Ordering::Relaxed)
    }

    /// Frees the lock of a job that its middleware ended without running or releasing it (since Laravel 12.21).
    pub(crate) async fn free_at_the_end(&self, services: &Services) {
        if self.is_freed() || !services.version.is_at_least(12, 21) {
            return;
        }
        match self.lock.free_now(services).await {
            Ok(()) => self.is_freed.store(true, Ordering::Relaxed),
            Err(error) => tracing::error!(
                error,
                lock = self.lock.name,
                "the lock of a unique job cannot be freed"
            ),
        }
    }
}

impl Middleware for UntilProcessing {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        Box::pin(async move {
            self.lock.free_now(context.services()).await?;
            self.is_freed.store(true, Ordering::Relaxed);
            next.run().await
        })
    }
}

/// Why nothing is known of a class.
fn nothing_known(services: &Services, class: &ClassName) -> String {
    let manifest = services.manifest.iter();
    let mut changed = manifest.flat_map(|manifest| manifest.changed());
    match changed.find(|(name, _)| name.eq_ignore_ascii_case(class.as_str())) {
        Some((_, file)) => format!(
            "{} has changed since the manifest was written",
            file.display()
        ),
        None => "nothing is known of its class".to_owned(),
    }
}

/// Whether a lock named in a payload's context is the lock of a job of this class.
fn is_lock_of(key: &str, class: &str, display_name: &str) -> bool {
    let Some(rest) = key.strip_prefix("laravel_unique_job:") else {
        return false;
    };
    // Laravel versions that add the context put a colon after the class.
    let begins_with = |name: &str| {
        let behind = rest.strip_prefix(name).filter(|_| !name.is_empty());
        behind.is_some_and(|behind| behind.starts_with(':'))
    };
    begins_with(class)
        || begins_with(display_name)
        || (!display_name.is_empty() && begins_with(&name::xxh128(display_name)))
}

/// Whether a listener or a broadcast declares itself unique, and if so, whether only until it runs.
fn unique_wrapper(services: &Services, command: &Command) -> Result<Option<bool>, String> {
    static FLAG: PropertyScan = PropertyScan::public("shouldBeUnique");
    if *command.class() == *UNIQUE_BROADCAST_EVENT {
        return Ok(Some(false));
    }
    let may_be = Kind::of_class(command.class()) == Kind::Listener
        && services.version.is_at_least(12, 50)
        && FLAG.may_be_true(command.as_bytes());
    if !may_be {
        return Ok(None);
    }
    let value = command.to_value().map_err(|error| with_causes(&error))?;
    let is = |name: &str| {
        let flag = value.as_object().and_then(|listener| listener.get(name));
        flag == Some(&Value::Bool(true))
    };
    Ok(is("shouldBeUnique").then(|| is("shouldBeUniqueUntilProcessing")))
}

/// The owner that the object itself names, since Laravel 13.24.
fn owner_in(command: &Command) -> Result<Option<String>, String> {
    static OWNER: PropertyScan = PropertyScan::public("uniqueLockOwner");
    if !OWNER.may_be_string(command.as_bytes()) {
        return Ok(None);
    }
    let value = command.to_value().map_err(|error| with_causes(&error))?;
    let owner = value
        .as_object()
        .and_then(|object| object.get("uniqueLockOwner"));
    let owner = owner
        .and_then(Value::as_str)
        .filter(|owner| !owner.is_empty());
    Ok(owner.map(str::to_owned))
}

#[cfg(test)]
mod tests;
