//! Locks with owners.

use std::time::Duration;

use super::{Cache, Error, Store};

/// A lock of a cache store, held or not.
///
/// Dropping it releases nothing: a lock outlives its process on purpose, until it
/// expires. The code that takes a lock has to release it.
///
/// # Source
///
/// `Illuminate\Cache\Lock` (docs/protocol/cache.md 5).
#[derive(Debug, Clone)]
pub struct Lock {
    cache: Cache,
    name: String,
    owner: String,
    ttl: Duration,
}

/// A new owner: 16 random letters and digits, as Laravel makes them.
pub fn random_owner() -> String {
    std::iter::repeat_with(fastrand::alphanumeric)
        .take(16)
        .collect()
}

impl Cache {
    /// A lock of this name, which is not taken yet. It never expires if `ttl` is zero.
    pub fn lock(&self, name: impl Into<String>, owner: impl Into<String>, ttl: Duration) -> Lock {
        Lock::new(self.clone(), name.into(), owner.into(), ttl)
    }
}

impl Lock {
    pub(super) fn new(cache: Cache, name: String, owner: String, ttl: Duration) -> Self {
        Self {
            cache,
            name,
            owner,
            ttl,
        }
    }

    /// Its name, before any prefix.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The owner under which the lock is taken.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Tries once to take the lock; returns whether this owner has it now.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be taken all the same.
    pub async fn acquire(&self) -> Result<bool, Error> {
        let Self {
            name, owner, ttl, ..
        } = self;
        match &*self.cache.0 {
            Store::Redis(store) => store.acquire(name, owner, *ttl).await,
            Store::Database(store) => store.acquire(name, owner, *ttl).await,
            Store::File(store) => store.acquire(name, owner, *ttl).await,
            Store::Unshared => Ok(true),
        }
    }

    /// Tries to take the lock for the given duration, four times a second as Laravel does.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be taken all the same.
    pub async fn block(&self, wait: Duration) -> Result<bool, Error> {
        let deadline = tokio::time::Instant::now() + wait;
        loop {
            if self.acquire().await? {
                return Ok(true);
            }
            if tokio::time::Instant::now() >= deadline {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(250)).await;
        }
    }

    /// Frees the lock if this owner has it; returns whether it did.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be freed all the same.
    pub async fn release(&self) -> Result<bool, Error> {
        match &*self.cache.0 {
            Store::Redis(store) => store.release(&self.name, &self.owner).await,
            Store::Database(store) => store.release(&self.name, &self.owner).await,
            Store::File(store) => store.release(&self.name, &self.owner).await,
            Store::Unshared => Ok(true),
        }
    }

    /// Frees the lock, whichever owner has it; returns whether the lock was taken.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be freed all the same.
    pub async fn force_release(&self) -> Result<bool, Error> {
        match &*self.cache.0 {
            Store::Redis(store) => store.force_release(&self.name).await,
            Store::Database(store) => store.force_release(&self.name).await,
            Store::File(store) => store.force_release(&self.name).await,
            Store::Unshared => Ok(true),
        }
    }

    /// The owner that holds the lock now.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn current_owner(&self) -> Result<Option<String>, Error> {
        match &*self.cache.0 {
            Store::Redis(store) => store.owner(&self.name).await,
            Store::Database(store) => store.owner(&self.name).await,
            Store::File(store) => store.owner(&self.name).await,
            Store::Unshared => Ok(None),
        }
    }

    /// Extends the lock if this owner has it; returns whether it did.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn refresh(&self) -> Result<bool, Error> {
        let Self {
            name, owner, ttl, ..
        } = self;
        match &*self.cache.0 {
            Store::Redis(store) => store.refresh(name, owner, *ttl).await,
            Store::Database(store) => store.refresh(name, owner, *ttl).await,
            Store::File(store) => store.refresh(name, owner, *ttl).await,
            Store::Unshared => Ok(true),
        }
    }
}

/// Frees a lock: that of this owner, or any where the version knows no owners.
///
/// # Errors
///
/// The store cannot be reached; the lock may be free.
pub(crate) async fn free_lock(cache: &Cache, name: &str, owner: Option<&str>) -> Result<(), Error> {
    let lock = cache.lock(name, owner.unwrap_or_default(), Duration::ZERO);
    let freed = match owner {
        Some(_) => lock.release().await,
        None => lock.force_release().await,
    };
    freed.map(drop)
}
