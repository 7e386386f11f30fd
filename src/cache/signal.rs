//! Signals from the app to its workers through the cache: restart, pause, maintenance.

use std::path::PathBuf;

use super::value::to_int;
use super::{Cache, Error, loosely_equal};
use crate::php::Value;
use crate::time::UnixSeconds;

/// Names of the keys, without any prefix.
///
/// # Source
///
/// `Illuminate\Queue\Worker`, `Illuminate\Queue\QueueManager`,
/// `Illuminate\Foundation\CacheBasedMaintenanceMode`.
pub mod keys {
    /// Time of the last `queue:restart`, in seconds.
    pub const RESTART: &str = "illuminate:queue:restart";
    /// Set while all queues are paused (Laravel 13.25).
    pub const ALL_PAUSED: &str = "illuminate:queues:paused";
    /// Set while the app is down, if it uses the cache for maintenance mode.
    pub const DOWN: &str = "illuminate:foundation:down";

    /// Set while a queue is paused (Laravel 12.40).
    pub fn paused(connection: &str, queue: &str) -> String {
        format!("illuminate:queue:paused:{connection}:{queue}")
    }

    /// Time of the last `canary:resume`, in milliseconds; an artisand key that PHP workers do not read.
    pub const CANARY_RESUME: &str = "artisand:canary:resume";

    /// Holds the number of exceptions of a job.
    pub fn exceptions(uuid: &str) -> String {
        format!("job-exceptions:{uuid}")
    }
}

/// Reads all signal keys of one worker in one request.
#[derive(Debug)]
pub struct Watched {
    cache: Cache,
    keys: Vec<String>,
}

/// The values of the signal keys at one moment.
#[derive(Debug, Clone, PartialEq)]
pub struct Signals {
    restart: Option<Value>,
    canary_resume: Option<Value>,
    /// Whether each of the worker's queues is paused, in the order of the queues.
    pub paused: Vec<bool>,
}

impl Watched {
    /// The signal keys for a worker of these queues.
    pub fn new<'a>(
        cache: Cache,
        connection: &str,
        queues: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        let fixed = [keys::RESTART, keys::CANARY_RESUME, keys::ALL_PAUSED].map(str::to_owned);
        let paused = queues
            .into_iter()
            .map(|queue| keys::paused(connection, queue));
        Self {
            keys: fixed.into_iter().chain(paused).collect(),
            cache,
        }
    }

    /// Reads the signals.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn read(&self) -> Result<Signals, Error> {
        let mut values = self.cache.many(&self.keys).await?.into_iter();
        let restart = values.next().flatten();
        let canary_resume = values.next().flatten();
        let is_set = |value: Option<Value>| value.as_ref().is_some_and(Value::is_truthy);
        let all_paused = values.next().is_some_and(is_set);
        let paused = values.map(|value| all_paused || is_set(value)).collect();
        Ok(Signals {
            restart,
            canary_resume,
            paused,
        })
    }
}

impl Signals {
    /// Whether a worker that started under `self` has to stop under `now`: the restart value has changed or is
    /// gone.
    pub fn asks_for_restart(&self, now: &Self) -> bool {
        !loosely_equal(self.restart.as_ref(), now.restart.as_ref())
    }

    /// Whether workers were told to restart after the first of these seconds, and in the second one at the latest. A
    /// worker that begins in the very second of a restart mostly is one that the restart has brought about.
    pub fn were_restarts_told(&self, after: UnixSeconds, until: UnixSeconds) -> bool {
        // Redis gives numbers as text.
        let at = self.restart.as_ref().map(to_int);
        at.is_some_and(|at| after.0 < at && at <= until.0)
    }

    /// Whether canaries that stopped themselves under `self` have to run jobs again under `now`.
    pub fn asks_to_resume(&self, now: &Self) -> bool {
        now.canary_resume.is_some() && self.canary_resume != now.canary_resume
    }

    /// Whether the restart key has disappeared: the cache was cleared, which is not a restart request.
    pub fn was_cleared(&self, now: &Self) -> bool {
        self.restart.is_some() && now.restart.is_none()
    }
}

/// How the app reports that it is down for maintenance (`app.maintenance`).
#[derive(Debug, Clone)]
pub enum Maintenance {
    /// A file: the app is down while it exists, whatever its content.
    File(PathBuf),
    /// A key in this cache store.
    Cache(Cache),
}

impl Maintenance {
    /// Whether the app is down.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the file's directory cannot be read.
    pub async fn is_down(&self) -> Result<bool, Error> {
        match self {
            Self::File(path) => path.try_exists().map_err(|source| Error::File {
                what: "look for",
                path: path.clone(),
                source,
            }),
            Self::Cache(cache) => {
                let keys = [keys::DOWN.to_owned()];
                let values = cache.many(&keys).await?;
                Ok(values.into_iter().any(|value| value.is_some()))
            }
        }
    }
}

/// How long the count of a job's exceptions lives.
const EXCEPTIONS_LIVE: std::time::Duration = std::time::Duration::from_secs(86_400);

/// Counts an exception of a job and returns the count within a day; a count of `most` or more is reset.
///
/// # Errors
///
/// The store cannot be reached; the exception may be counted all the same.
///
/// # Source
///
/// `Illuminate\Queue\Worker::markJobAsFailedIfWillExceedMaxExceptions`.
pub async fn count_exception(cache: &Cache, uuid: &str, most: i64) -> Result<i64, Error> {
    let key = keys::exceptions(uuid);
    let count = cache.get(&key).await?;
    if !count.as_ref().is_some_and(Value::is_truthy) {
        cache.put(&key, &Value::Int(0), EXCEPTIONS_LIVE).await?;
    }
    let count = cache.increment(&key, 1).await?.unwrap_or(1);
    if most <= count {
        cache.forget(&key).await?;
    }
    Ok(count)
}
