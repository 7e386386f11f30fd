//! Laravel's cache: values, counters and locks that PHP and artisand share.
//!
//! A [`Cache`] is one store of `cache.stores`. Every store encodes values in its
//! own way (docs/protocol/cache.md 2 to 5); callers see a PHP [`Value`]. As in
//! Laravel, a stored `null` counts as a missing key.
//!
//! `array`, `null` and other stores that no second process can see are all
//! represented by [`Cache::unshared`]: reads find nothing, writes succeed, locks
//! are always free. Laravel's workers share nothing through such stores either.

use std::sync::Arc;
use std::time::Duration;

mod database;
mod entity;
mod error;
mod file;
mod limiter;
mod lock;
pub mod name;
mod redis;
mod signal;
mod stores;
mod value;

pub use database::{DatabaseStore, DatabaseStoreOptions};
pub use error::Error;
pub use file::{FileStore, FileStoreOptions};
pub use limiter::{DurationLimiter, RateLimiter, Span};
pub(crate) use lock::free_lock;
pub use lock::{Lock, random_owner};
pub use redis::RedisStore;
pub use signal::{Maintenance, Signals, Watched, count_exception, keys};
pub use stores::{StoreError, Stores};
pub use value::{float_text, loosely_equal};

use tokio::runtime::Handle;

use crate::connection::LockPlace;
use crate::php::Value;

/// One cache store.
#[derive(Debug, Clone)]
pub struct Cache(Arc<Store>);

#[derive(Debug)]
enum Store {
    Redis(RedisStore),
    Database(DatabaseStore),
    File(FileStore),
    Unshared,
}

impl Cache {
    /// A store on Redis.
    pub fn redis(store: RedisStore) -> Self {
        Self(Arc::new(Store::Redis(store)))
    }

    /// A store in two database tables.
    pub fn database(store: DatabaseStore) -> Self {
        Self(Arc::new(Store::Database(store)))
    }

    /// A store in a directory.
    pub fn file(store: FileStore) -> Self {
        Self(Arc::new(Store::File(store)))
    }

    /// A store that other processes do not see (`array`, `null`).
    pub fn unshared() -> Self {
        Self(Arc::new(Store::Unshared))
    }

    /// Opens connections to Redis on this runtime from now on ([`Redis::open_on`](crate::connection::Redis::open_on)).
    pub(crate) fn open_on(&self, runtime: &Handle) {
        if let Store::Redis(store) = &*self.0 {
            store.open_on(runtime);
        }
    }

    /// Whether other processes see what is stored.
    pub fn is_shared(&self) -> bool {
        !matches!(*self.0, Store::Unshared)
    }

    /// Where a lock is kept, if other changes can be made atomically with it; `None` in other stores.
    pub fn lock_place(&self, name: &str) -> Option<LockPlace> {
        match &*self.0 {
            Store::Redis(store) => Some(store.lock_place(name)),
            Store::Database(store) => Some(store.lock_place(name)),
            Store::File(_) | Store::Unshared => None,
        }
    }

    /// The location of the store, for messages.
    pub fn describe(&self) -> String {
        match &*self.0 {
            Store::Redis(store) => format!("redis at {}", store.address()),
            Store::Database(store) => format!("database at {}", store.address()),
            Store::File(store) => format!("files in {}", store.directory().display()),
            Store::Unshared => "not shared between processes".to_owned(),
        }
    }

    /// Reads a value; `None` if it is missing or expired.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the stored value is not a PHP value.
    pub async fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        let value = match &*self.0 {
            Store::Redis(store) => store.get(key).await?,
            Store::Database(store) => store.get(key).await?,
            Store::File(store) => store.get(key).await?,
            Store::Unshared => None,
        };
        Ok(value.filter(|value| !value.is_null()))
    }

    /// Reads several values, in the order of the keys; a value that cannot be decoded counts as missing.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn many(&self, keys: &[String]) -> Result<Vec<Option<Value>>, Error> {
        let values = match &*self.0 {
            Store::Redis(store) => store.many(keys).await?,
            Store::Database(store) => store.many(keys).await?,
            Store::File(store) => {
                let mut values = Vec::with_capacity(keys.len());
                for key in keys {
                    values.push(store.get(key).await?);
                }
                values
            }
            Store::Unshared => vec![None; keys.len()],
        };
        let present = |value: Option<Value>| value.filter(|value| !value.is_null());
        Ok(values.into_iter().map(present).collect())
    }

    /// Stores a value for the whole seconds of `ttl`; less than one second deletes the key, as in Laravel.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<(), Error> {
        if ttl.as_secs() == 0 {
            return self.forget(key).await.map(drop);
        }
        match &*self.0 {
            Store::Redis(store) => store.put(key, value, ttl).await,
            Store::Database(store) => store.put(key, value, ttl).await,
            Store::File(store) => store.put(key, value, Some(ttl)).await,
            Store::Unshared => Ok(()),
        }
    }

    /// Stores a value that never expires (in a database: for ten years).
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn forever(&self, key: &str, value: &Value) -> Result<(), Error> {
        match &*self.0 {
            Store::Redis(store) => store.forever(key, value).await,
            Store::Database(store) => store.put(key, value, DatabaseStore::FOREVER).await,
            Store::File(store) => store.put(key, value, None).await,
            Store::Unshared => Ok(()),
        }
    }

    /// Stores a value unless the key has one; returns whether it did.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the value may be stored all the same.
    pub async fn add(&self, key: &str, value: &Value, ttl: Duration) -> Result<bool, Error> {
        if ttl.as_secs() == 0 {
            return Ok(false);
        }
        match &*self.0 {
            Store::Redis(store) => store.add(key, value, ttl).await,
            Store::Database(store) => store.add(key, value, ttl).await,
            Store::File(store) => store.add(key, value, Some(ttl)).await,
            Store::Unshared => Ok(true),
        }
    }

    /// Adds to a counter and returns its new value; its expiry stays unchanged.
    ///
    /// Without a counter, Redis and files start at zero without expiry, and a
    /// database returns `None`, as in Laravel.
    ///
    /// # Errors
    ///
    /// The store cannot be reached, or the stored value is not an integer.
    pub async fn increment(&self, key: &str, by: i64) -> Result<Option<i64>, Error> {
        match &*self.0 {
            Store::Redis(store) => store.increment(key, by).await.map(Some),
            Store::Database(store) => store.increment(key, by).await,
            Store::File(store) => store.increment(key, by).await.map(Some),
            Store::Unshared => Ok(None),
        }
    }

    /// Deletes a value; returns whether there was one.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn forget(&self, key: &str) -> Result<bool, Error> {
        match &*self.0 {
            Store::Redis(store) => store.forget(key).await,
            Store::Database(store) => store.forget(key).await,
            Store::File(store) => store.forget(key).await,
            Store::Unshared => Ok(false),
        }
    }
}
