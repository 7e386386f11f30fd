//! The `database` cache store: tables `cache` and `cache_locks`.

use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;

use super::Error;
use crate::connection::{Database, DatabaseKind, DatabaseLock, LockPlace, Param, Row, Tries};
use crate::php::Value;
use crate::time::{Clock, UnixSeconds};

/// A cache store in a database.
#[derive(Debug)]
pub struct DatabaseStore {
    values: Database,
    locks: Database,
    prefix: String,
    table: String,
    lock_table: String,
    /// Whether `SQLite` stores values with NUL bytes as base64 (Laravel 11.38); `PostgreSQL` always does.
    sqlite_base64: bool,
    /// How long a lock without expiry lives.
    lock_timeout: Duration,
    lock_lottery: Option<(u64, u64)>,
    clock: Clock,
}

/// The settings of a [`DatabaseStore`].
#[derive(Debug, Clone)]
pub struct DatabaseStoreOptions {
    /// Prefix of every key.
    pub prefix: String,
    /// Table of values.
    pub table: String,
    /// Table of locks.
    pub lock_table: String,
    /// Whether `SQLite` stores values with NUL bytes as base64 (Laravel 11.38 and later).
    pub sqlite_base64: bool,
    /// How long a lock without expiry lives (`lock_timeout`).
    pub lock_timeout: Duration,
    /// How often taking a lock deletes the expired locks of all keys (`lock_lottery`): `(2, 100)` is twice in a hundred
    /// times. The second number is not 0; `None` is never.
    pub lock_lottery: Option<(u64, u64)>,
}

impl DatabaseStore {
    /// Lifetime of a value that never expires, in Laravel's database store: ten years.
    pub(super) const FOREVER: Duration = Duration::from_secs(315_360_000);

    /// A store on these connections.
    pub fn new(
        values: Database,
        locks: Database,
        options: DatabaseStoreOptions,
        clock: Clock,
    ) -> Self {
        Self {
            table: values.table(&options.table),
            lock_table: locks.table(&options.lock_table),
            values,
            locks,
            prefix: options.prefix,
            sqlite_base64: options.sqlite_base64,
            lock_timeout: options.lock_timeout,
            lock_lottery: options.lock_lottery,
            clock,
        }
    }

    pub(super) fn address(&self) -> String {
        self.values.address()
    }

    fn key(&self, key: &str) -> String {
        format!("{}{key}", self.prefix)
    }

    pub(super) fn lock_place(&self, name: &str) -> LockPlace {
        LockPlace::Database(DatabaseLock {
            database: self.locks.clone(),
            table: self.lock_table.clone(),
            key: self.key(name),
            forever: self.lock_timeout,
        })
    }

    fn expiration(&self, ttl: Duration) -> i64 {
        self.clock.now().plus(ttl).0
    }

    fn encode(&self, key: &str, value: &Value) -> Result<String, Error> {
        let stored = value.to_bytes();
        let is_base64 = match self.values.kind() {
            DatabaseKind::Postgres => true,
            DatabaseKind::Sqlite => self.sqlite_base64,
            DatabaseKind::MySql => false,
        };
        if is_base64 && stored.contains(&0) {
            return Ok(BASE64.encode(stored));
        }
        String::from_utf8(stored).map_err(|_| Error::NotText {
            key: key.to_owned(),
        })
    }

    fn decode(&self, key: &str, stored: &[u8]) -> Result<Value, Error> {
        let may_be_base64 = self.values.kind() != DatabaseKind::MySql
            && !stored.iter().any(|b| matches!(b, b':' | b';'));
        let decoded = may_be_base64.then(|| BASE64.decode(stored).ok()).flatten();
        Value::from_bytes(decoded.as_deref().unwrap_or(stored)).map_err(|source| Error::Value {
            key: key.to_owned(),
            source,
        })
    }

    async fn select(&self, keys: &[String]) -> Result<Vec<Row>, Error> {
        let marks = vec!["?"; keys.len()].join(", ");
        let sql = format!(
            "select {}, {}, {} from {} where \"key\" in ({marks})",
            self.values.as_text("key"),
            self.values.as_text("value"),
            self.values.as_text("expiration"),
            self.table
        );
        let params: Vec<Param<'_>> = keys.iter().map(Param::from).collect();
        self.values
            .rows(&sql, &params)
            .await
            .map_err(failed("read"))
    }

    fn is_live(row: &Row, now: UnixSeconds) -> bool {
        row.int(2).is_some_and(|expiration| expiration > now.0)
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        let full = self.key(key);
        let now = self.clock.now();
        let rows = self.select(std::slice::from_ref(&full)).await?;
        let Some(row) = rows.first() else {
            return Ok(None);
        };
        if !Self::is_live(row, now) {
            // The condition on `expiration` spares a value that another process stored in between.
            let sql = format!(
                "delete from {} where \"key\" = ? and \"expiration\" <= ?",
                self.table
            );
            let deleted = self
                .values
                .execute(&sql, &[(&full).into(), now.0.into()])
                .await;
            deleted.map_err(failed("delete"))?;
            return Ok(None);
        }
        row.bytes(1)
            .map(|stored| self.decode(key, stored))
            .transpose()
    }

    pub(super) async fn many(&self, keys: &[String]) -> Result<Vec<Option<Value>>, Error> {
        let full: Vec<String> = keys.iter().map(|key| self.key(key)).collect();
        let now = self.clock.now();
        let rows = self.select(&full).await?;
        let found = |key: &String| {
            let row = rows
                .iter()
                .find(|row| row.bytes(0) == Some(key.as_bytes()))?;
            let stored = row.bytes(1).filter(|_| Self::is_live(row, now))?;
            self.decode(key, stored).ok()
        };
        Ok(full.iter().map(found).collect())
    }

    pub(super) async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<(), Error> {
        let insert = format!(
            "insert into {} (\"key\", \"value\", \"expiration\") values (?, ?, ?)",
            self.table
        );
        let sql = if self.values.kind() == DatabaseKind::MySql {
            format!(
                "{insert} on duplicate key update \"value\" = values(\"value\"), \"expiration\" = values(\"expiration\")"
            )
        } else {
            format!(
                "{insert} on conflict (\"key\") do update set \"value\" = excluded.\"value\", \"expiration\" = excluded.\"expiration\""
            )
        };
        let (key, value) = (self.key(key), self.encode(key, value)?);
        let params = [(&key).into(), (&value).into(), self.expiration(ttl).into()];
        let put = self.values.execute(&sql, &params).await;
        put.map(drop).map_err(failed("write"))
    }

    pub(super) async fn add(&self, key: &str, value: &Value, ttl: Duration) -> Result<bool, Error> {
        if self.get(key).await?.is_some() {
            return Ok(false);
        }
        let (key, value) = (self.key(key), self.encode(key, value)?);
        self.values.check_key(&key).map_err(failed("write"))?;
        let params = [(&key).into(), (&value).into(), self.expiration(ttl).into()];
        let sql = insert_or_ignore(&self.values, &self.table, &["key", "value", "expiration"]);
        let added = self.values.execute(&sql, &params).await;
        Ok(added.map_err(failed("write"))? == 1)
    }

    pub(super) async fn increment(&self, key: &str, by: i64) -> Result<Option<i64>, Error> {
        let full = self.key(key);
        let sql = format!(
            "update {} set \"value\" = ? where \"key\" = ? and \"value\" = ?",
            self.table
        );
        loop {
            let rows = self.select(std::slice::from_ref(&full)).await?;
            let Some(stored) = rows.first().and_then(|row| row.bytes(1)) else {
                return Ok(None);
            };
            let Value::Int(count) = self.decode(key, stored)? else {
                return Ok(None);
            };
            let (count, old) = (count.saturating_add(by), String::from_utf8_lossy(stored));
            let new = self.encode(key, &Value::Int(count))?;
            let params = [(&new).into(), (&full).into(), Param::Text(&old)];
            let changed = self.values.execute(&sql, &params).await;
            // No changed row means that another process counted in between: read again.
            if changed.map_err(failed("count"))? > 0 {
                return Ok(Some(count));
            }
        }
    }

    pub(super) async fn forget(&self, key: &str) -> Result<bool, Error> {
        let sql = format!("delete from {} where \"key\" = ?", self.table);
        let key = self.key(key);
        let deleted = self.values.execute(&sql, &[(&key).into()]).await;
        Ok(deleted.map_err(failed("delete"))? > 0)
    }

    fn lock_expiration(&self, ttl: Duration) -> i64 {
        let ttl = if ttl.as_secs() == 0 {
            self.lock_timeout
        } else {
            ttl
        };
        self.expiration(ttl)
    }

    pub(super) async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let now = self.clock.now().0;
        let mut tries = Tries::new();
        let is_ours = loop {
            match self.try_acquire(name, owner, ttl, now).await {
                // A job must not fail because others took or swept locks at that moment.
                Err(error) if tries.again(&error).await => {}
                ended => break ended.map_err(failed("lock"))?,
            }
        };
        let sweeps = |(times, of): (u64, u64)| fastrand::u64(1..=of) <= times;
        if self.lock_lottery.is_some_and(sweeps) {
            let sweep = format!("delete from {} where \"expiration\" <= ?", self.lock_table);
            // Only log an error: the lock may be taken already, and the caller would not free it after an error.
            if let Err(error) = self.locks.execute(&sweep, &[now.into()]).await {
                tracing::debug!(error = %error, "could not sweep locks whose time has passed");
            }
        }
        Ok(is_ours)
    }

    async fn try_acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
        now: i64,
    ) -> Result<bool, crate::connection::Error> {
        let (key, expiration) = (self.key(name), self.lock_expiration(ttl));
        self.locks.check_key(&key)?;
        let insert = insert_or_ignore(
            &self.locks,
            &self.lock_table,
            &["key", "owner", "expiration"],
        );
        let params = [(&key).into(), owner.into(), expiration.into()];
        if self.locks.execute(&insert, &params).await? == 1 {
            return Ok(true);
        }
        // An owner that takes its lock again never shortens it: this request may come long after the lock was extended.
        let update = format!(
            "update {} set \"owner\" = ?, \"expiration\" = ? \
             where \"key\" = ? and ((\"owner\" = ? and \"expiration\" <= ?) or \"expiration\" <= ?)",
            self.lock_table
        );
        let params = [
            owner.into(),
            expiration.into(),
            (&key).into(),
            owner.into(),
            expiration.into(),
            now.into(),
        ];
        Ok(self.locks.execute(&update, &params).await? > 0)
    }

    pub(super) async fn release(&self, name: &str, owner: &str) -> Result<bool, Error> {
        let sql = format!(
            "delete from {} where \"key\" = ? and \"owner\" = ?",
            self.lock_table
        );
        let key = self.key(name);
        let deleted = self
            .locks
            .execute(&sql, &[(&key).into(), owner.into()])
            .await;
        Ok(deleted.map_err(failed("unlock"))? > 0)
    }

    pub(super) async fn force_release(&self, name: &str) -> Result<bool, Error> {
        let sql = format!("delete from {} where \"key\" = ?", self.lock_table);
        let key = self.key(name);
        let deleted = self.locks.execute(&sql, &[(&key).into()]).await;
        Ok(deleted.map_err(failed("unlock"))? > 0)
    }

    pub(super) async fn owner(&self, name: &str) -> Result<Option<String>, Error> {
        let owner = self.locks.as_text("owner");
        let sql = format!(
            "select {owner} from {} where \"key\" = ? and \"expiration\" > ?",
            self.lock_table
        );
        let key = self.key(name);
        let params = [(&key).into(), self.clock.now().0.into()];
        let rows = self
            .locks
            .rows(&sql, &params)
            .await
            .map_err(failed("read"))?;
        Ok(rows.first().and_then(|row| row.text(0)).map(Into::into))
    }

    pub(super) async fn refresh(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let sql = format!(
            "update {} set \"expiration\" = ? where \"key\" = ? and \"owner\" = ? and \"expiration\" > ?",
            self.lock_table
        );
        let (key, now) = (self.key(name), self.clock.now().0);
        let params = [
            self.lock_expiration(ttl).into(),
            (&key).into(),
            owner.into(),
            now.into(),
        ];
        let updated = self.locks.execute(&sql, &params).await;
        Ok(updated.map_err(failed("lock"))? > 0)
    }
}

fn insert_or_ignore(database: &Database, table: &str, columns: &[&str]) -> String {
    let names: Vec<String> = columns.iter().map(|name| format!("\"{name}\"")).collect();
    let (names, marks) = (names.join(", "), vec!["?"; columns.len()].join(", "));
    match database.kind() {
        DatabaseKind::MySql => format!("insert ignore into {table} ({names}) values ({marks})"),
        DatabaseKind::Sqlite | DatabaseKind::Postgres => {
            format!("insert into {table} ({names}) values ({marks}) on conflict do nothing")
        }
    }
}

fn failed(what: &'static str) -> impl Fn(crate::connection::Error) -> Error {
    move |source| Error::Server { what, source }
}

#[cfg(test)]
#[cfg(feature = "sqlite")]
mod tests {
    use super::*;
    use crate::connection::DatabaseOptions;

    /// Connections to a file, whose statements do not wait for those of another one.
    async fn impatient(file: &std::path::Path) -> Database {
        let options = DatabaseOptions {
            database: file.to_str().unwrap().to_owned(),
            ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
        };
        let database = Database::new(&options).unwrap();
        let pragma = "pragma busy_timeout = 0";
        database.execute(pragma, &[]).await.unwrap();
        database
    }

    fn store(database: &Database, lock_lottery: Option<(u64, u64)>) -> DatabaseStore {
        let options = DatabaseStoreOptions {
            prefix: "p:".to_owned(),
            table: "cache".to_owned(),
            lock_table: "cache_locks".to_owned(),
            sqlite_base64: false,
            lock_timeout: Duration::from_secs(60),
            lock_lottery,
        };
        let clock = Clock::Fixed(UnixSeconds(1000));
        DatabaseStore::new(database.clone(), database.clone(), options, clock)
    }

    async fn with_table(file: &std::path::Path) -> Database {
        std::fs::write(file, "").unwrap();
        let database = impatient(file).await;
        let sql = "create table cache_locks (\"key\" varchar primary key, owner varchar, expiration integer)";
        database.execute(sql, &[]).await.unwrap();
        database
    }

    #[tokio::test]
    async fn a_lock_is_taken_in_the_end_where_others_are_in_the_way() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("database.sqlite");
        let database = with_table(&file).await;
        let other = impatient(&file).await;
        let holder = other.begin().await.unwrap();
        // The server's error is the same as after a deadlock.
        let error = database.execute("delete from cache_locks", &[]).await;
        assert!(error.is_err_and(|error| error.is_deadlock()));
        let taking = tokio::spawn(async move {
            let store = store(&database, None);
            store.acquire("a", "me", Duration::from_secs(9)).await
        });
        tokio::time::sleep(Duration::from_millis(30)).await;
        holder.rollback().await.unwrap();
        assert!(taking.await.unwrap().unwrap());
        let owner = store(&other, None).owner("a").await.unwrap();
        assert_eq!(owner.as_deref(), Some("me"));
    }

    #[tokio::test]
    async fn an_owner_that_takes_its_lock_again_does_not_shorten_it() {
        let directory = tempfile::tempdir().unwrap();
        let database = with_table(&directory.path().join("database.sqlite")).await;
        let store = store(&database, None);
        #[rustfmt::skip]
        let rows = [
            // owner, seconds => whether it is taken, when it ends
            ("me", 500, true, 1500),
            ("me", 60, false, 1500),
            ("me", 900, true, 1900),
            ("other", 9000, false, 1900),
        ];
        for (owner, seconds, is_taken, end) in rows {
            let taken = store.acquire("a", owner, Duration::from_secs(seconds));
            assert_eq!(taken.await.unwrap(), is_taken, "{owner} {seconds}");
            let rows = database.rows("select expiration from cache_locks", &[]);
            assert_eq!(
                rows.await.unwrap()[0].int(0),
                Some(end),
                "{owner} {seconds}"
            );
            assert_eq!(store.owner("a").await.unwrap().as_deref(), Some("me"));
        }
    }

    #[tokio::test]
    async fn the_lottery_says_how_often_expired_locks_are_swept() {
        let directory = tempfile::tempdir().unwrap();
        let database = with_table(&directory.path().join("database.sqlite")).await;
        for (lottery, left) in [(None, 2), (Some((0, 5)), 2), (Some((5, 5)), 1)] {
            let sql = "insert or replace into cache_locks values ('p:old', 'other', 1000)";
            database.execute(sql, &[]).await.unwrap();
            let store = store(&database, lottery);
            assert!(store.acquire("a", "me", Duration::ZERO).await.unwrap());
            let rows = database.rows("select \"key\" from cache_locks", &[]);
            assert_eq!(rows.await.unwrap().len(), left, "{lottery:?}");
        }
    }
}
