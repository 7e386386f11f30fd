//! Locks with owners.

use std::time::Duration;

use super::{Cache, Error, Store};

/// A lock of a cache store, held or not.
///
/// Nothing is released on drop: a lock outlives its process on purpose, until
/// its end. Whoever takes one releases it.
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

    /// Who holds it, or would.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// Tries to take the lock, once; says whether it is ours now.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be taken.
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

    /// Tries to take the lock for so long, four times a second as Laravel does.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be taken.
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

    /// Frees the lock if it is ours; says whether it was.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be free.
    pub async fn release(&self) -> Result<bool, Error> {
        match &*self.cache.0 {
            Store::Redis(store) => store.release(&self.name, &self.owner).await,
            Store::Database(store) => store.release(&self.name, &self.owner).await,
            Store::File(store) => store.release(&self.name, &self.owner).await,
            Store::Unshared => Ok(true),
        }
    }

    /// Frees the lock, whoever has it; says whether somebody had.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the lock may be free.
    pub async fn force_release(&self) -> Result<bool, Error> {
        match &*self.cache.0 {
            Store::Redis(store) => store.force_release(&self.name).await,
            Store::Database(store) => store.force_release(&self.name).await,
            Store::File(store) => store.force_release(&self.name).await,
            Store::Unshared => Ok(true),
        }
    }

    /// Who holds the lock now.
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

    /// Gives the lock a new end if it is ours; says whether it was.
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
