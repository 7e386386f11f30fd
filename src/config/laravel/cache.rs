//! Cache stores of the app, and maintenance mode.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use super::Laravel;
use super::error::{SettingError, SettingResult};
use crate::cache::{
    Cache, DatabaseStore, DatabaseStoreOptions, FileStore, FileStoreOptions, Maintenance,
    RedisStore,
};
use crate::connection::Redis;
use crate::time::Clock;

impl Laravel {
    /// `cache.default`.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn default_cache(&self) -> SettingResult<String> {
        Ok(self
            .text(&["cache", "default"])?
            .unwrap_or_else(|| "null".into()))
    }

    /// `cache.limiter`, the store of rate limiters; the default one where it is not set.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    ///
    /// # Source
    ///
    /// `Illuminate\Cache\CacheServiceProvider`.
    pub fn limiter_cache(&self) -> SettingResult<String> {
        match self.text(&["cache", "limiter"])? {
            Some(name) => Ok(name),
            None => self.default_cache(),
        }
    }

    /// Prefix of a cache store, with the colon that Laravel puts behind it before version 11.
    ///
    /// # Errors
    ///
    /// It cannot be told.
    pub fn cache_prefix(&self, store: &str, driver: &str) -> SettingResult<String> {
        if let Some(prefix) = self.cache_prefixes.get(store) {
            return Ok(prefix.clone().unwrap_or_default());
        }
        let own = self.text(&["cache", "stores", store, "prefix"])?;
        let prefix = match own {
            Some(own) => Some(own),
            None => self.text(&["cache", "prefix"])?,
        };
        let prefix = prefix.unwrap_or_default();
        let has_colon = matches!(driver, "redis" | "memcached") && !self.is_at_least(11, 0);
        Ok(if has_colon && !prefix.is_empty() {
            prefix + ":"
        } else {
            prefix
        })
    }

    /// Opens a cache store; nothing is sent yet.
    ///
    /// # Errors
    ///
    /// It is missing, of a kind that is not supported, or cannot be told.
    pub fn cache(&self, name: &str) -> SettingResult<Cache> {
        let path = ["cache", "stores", name];
        let of = |key: &'static str| ["cache", "stores", name, key];
        if name == "null" && self.at(&path)?.is_none() {
            return Ok(Cache::unshared());
        }
        if self.at(&path)?.is_none() {
            return Err(self.missing(&path));
        }
        let driver = self.text(&of("driver"))?.unwrap_or_default();
        match &*driver {
            "redis" => self.redis_cache(name),
            "database" => self.database_cache(name),
            "file" => {
                let directory = self.text(&of("path"))?.map(PathBuf::from);
                let directory =
                    directory.unwrap_or_else(|| self.storage.join("framework/cache/data"));
                let lock_directory = self.text(&of("lock_path"))?.map(PathBuf::from);
                let lock_directory = lock_directory.filter(|_| self.is_at_least(10, 9));
                let permission = self.number(&of("permission"))?;
                let options = FileStoreOptions {
                    lock_directory: lock_directory.unwrap_or_else(|| directory.clone()),
                    directory,
                    permission: permission.and_then(|mode| u32::try_from(mode).ok()),
                    separate_locks: self.is_at_least(12, 36),
                };
                Ok(Cache::file(FileStore::new(options, Clock::System)))
            }
            "array" | "null" | "session" => Ok(Cache::unshared()),
            "failover" => self.failover_cache(name),
            driver => Err(SettingError::OnlyPhp {
                path: of("driver").join("."),
                driver: driver.to_owned(),
            }),
        }
    }

    /// The first store of several: as long as it answers, Laravel uses no other.
    fn failover_cache(&self, name: &str) -> SettingResult<Cache> {
        let path = ["cache", "stores", name, "stores"];
        let stores = self.at(&path)?.and_then(Value::as_array);
        let first = stores.and_then(|stores| stores.first()?.as_str());
        match first {
            // A store that names itself would have no end.
            Some(first)
                if first != name
                    && self.text(&["cache", "stores", first, "driver"])?.as_deref()
                        != Some("failover") =>
            {
                self.cache(first)
            }
            _ => Err(self.missing(&path)),
        }
    }

    fn redis_cache(&self, name: &str) -> SettingResult<Cache> {
        let of = |key: &'static str| ["cache", "stores", name, key];
        let values = self
            .text(&of("connection"))?
            .unwrap_or_else(|| "default".into());
        let locks = self
            .text(&of("lock_connection"))?
            .unwrap_or_else(|| values.clone());
        let open = |name: &str| {
            let settings = self.redis(name)?;
            if let Some((path, value)) = settings.encoded {
                return Err(SettingError::Encoded { path, value });
            }
            Redis::new(&settings.options).map_err(|source| SettingError::Connection {
                path: format!("database.redis.{name}"),
                source,
            })
        };
        let prefix = self.cache_prefix(name, "redis")?;
        Ok(Cache::redis(RedisStore::new(
            open(&values)?,
            open(&locks)?,
            prefix,
        )))
    }

    fn database_cache(&self, name: &str) -> SettingResult<Cache> {
        let of = |key: &'static str| ["cache", "stores", name, key];
        let values = self.text(&of("connection"))?;
        let locks = self
            .text(&of("lock_connection"))?
            .or_else(|| values.clone());
        let or = |text: Option<String>, default: &str| {
            text.filter(|text| !text.is_empty())
                .unwrap_or_else(|| default.to_owned())
        };
        let lock_timeout = self.number(&of("lock_timeout"))?.unwrap_or(86_400);
        let options = DatabaseStoreOptions {
            prefix: self.cache_prefix(name, "database")?,
            table: or(self.text(&of("table"))?, "cache"),
            lock_table: or(self.text(&of("lock_table"))?, "cache_locks"),
            sqlite_base64: self.is_at_least(11, 38),
            lock_timeout: Duration::from_secs(u64::try_from(lock_timeout).unwrap_or(86_400)),
            lock_lottery: self.lock_lottery(name)?,
        };
        let (values, locks) = (
            self.open_database(values.as_deref())?,
            self.open_database(locks.as_deref())?,
        );
        Ok(Cache::database(DatabaseStore::new(
            values,
            locks,
            options,
            Clock::System,
        )))
    }

    /// How often taking a lock of a database store sweeps expired locks; `None` for never.
    ///
    /// # Source
    ///
    /// `Illuminate\Cache\DatabaseLock::acquire`.
    pub(super) fn lock_lottery(&self, store: &str) -> SettingResult<Option<(u64, u64)>> {
        let Some(odds) = self.at(&["cache", "stores", store, "lock_lottery"])? else {
            return Ok(Some((2, 100)));
        };
        let odds = odds.as_array().map(Vec::as_slice);
        Ok(odds.and_then(|odds| match odds {
            [times, of] => Some((times.as_u64()?, of.as_u64().filter(|of| *of > 0)?)),
            _ => None,
        }))
    }

    /// Where the app says that it is down.
    ///
    /// # Errors
    ///
    /// It cannot be told, or is in a cache store that cannot be used.
    pub fn maintenance(&self) -> SettingResult<Maintenance> {
        let driver = self.text(&["app", "maintenance", "driver"])?;
        if driver.as_deref() == Some("cache") && self.is_at_least(9, 0) {
            let store = self.text(&["app", "maintenance", "store"])?;
            let store = match store.filter(|store| !store.is_empty()) {
                Some(store) => store,
                None => self.default_cache()?,
            };
            return self.cache(&store).map(Maintenance::Cache);
        }
        Ok(Maintenance::File(self.storage.join("framework/down")))
    }
}
