//! The app's cache stores by name.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::Handle;

use super::Cache;

/// Opens a store by its name.
type Open =
    dyn Fn(&str) -> Result<Cache, Box<dyn std::error::Error + Send + Sync>> + Send + Sync + 'static;

/// The app's cache stores (`cache.stores`), each opened when it is first needed.
#[derive(Clone)]
pub struct Stores {
    default: Arc<str>,
    open: Arc<Open>,
    opened: Arc<Mutex<BTreeMap<String, Cache>>>,
    /// Where their connections are opened, if not where they are needed.
    runtime: Arc<OnceLock<Handle>>,
}

impl fmt::Debug for Stores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stores")
            .field("default", &self.default)
            .finish_non_exhaustive()
    }
}

/// A store of the app that cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the app's cache store `{name}` cannot be used")]
pub struct StoreError {
    /// Its name.
    pub name: String,
    /// The cause.
    pub source: Box<dyn std::error::Error + Send + Sync>,
}

impl Stores {
    /// Stores that `open` opens by their names.
    pub fn new<E>(
        default: impl Into<Arc<str>>,
        open: impl Fn(&str) -> Result<Cache, E> + Send + Sync + 'static,
    ) -> Self
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        Self {
            default: default.into(),
            open: Arc::new(move |name| open(name).map_err(Into::into)),
            opened: Arc::default(),
            runtime: Arc::default(),
        }
    }

    /// Opens connections to Redis on this runtime from now on; only the first one that is given counts.
    pub(crate) fn open_on(&self, runtime: &Handle) {
        let opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = self.runtime.set(runtime.clone());
        for cache in opened.values() {
            cache.open_on(runtime);
        }
    }

    /// Name of the default store.
    pub fn default_name(&self) -> &str {
        &self.default
    }

    /// Opens the store of this name, without sending a request.
    ///
    /// # Errors
    ///
    /// The store is missing, of an unsupported kind, or its settings cannot be read.
    pub fn get(&self, name: &str) -> Result<Cache, StoreError> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cache) = opened.get(name) {
            return Ok(cache.clone());
        }
        let cache = (self.open)(name).map_err(|source| StoreError {
            name: name.to_owned(),
            source,
        })?;
        if let Some(runtime) = self.runtime.get() {
            cache.open_on(runtime);
        }
        opened.insert(name.to_owned(), cache.clone());
        Ok(cache)
    }
}
