//! The `redis` cache store.

use std::sync::OnceLock;
use std::time::Duration;

use ::redis::{Script, cmd};
use futures_util::future::try_join_all;
use tokio::runtime::Handle;

use super::Error;
use super::value::{float_text, is_numeric};
use crate::connection::{Arg, LockPlace, Redis};
use crate::php::Value;

/// A cache store in Redis: values on one connection, locks on another.
#[derive(Debug)]
pub struct RedisStore {
    values: Redis,
    locks: Redis,
    prefix: String,
}

/// Stores a value unless the key exists.
fn add_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(include_str!("scripts/add.lua")))
}

fn release_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(include_str!("scripts/release.lua")))
}

fn refresh_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(include_str!("scripts/refresh.lua")))
}

impl RedisStore {
    /// A store with this key prefix, which follows the prefix of the connection.
    ///
    /// `prefix` is the full prefix: before Laravel 11 it includes the colon that Laravel appends.
    pub fn new(values: Redis, locks: Redis, prefix: impl Into<String>) -> Self {
        Self {
            values,
            locks,
            prefix: prefix.into(),
        }
    }

    pub(super) fn open_on(&self, runtime: &Handle) {
        self.values.open_on(runtime);
        self.locks.open_on(runtime);
    }

    pub(super) fn address(&self) -> &str {
        self.values.address()
    }

    fn key(&self, key: &str) -> String {
        format!("{}{}{key}", self.values.prefix(), self.prefix)
    }

    fn lock_key(&self, name: &str) -> String {
        format!("{}{}{name}", self.locks.prefix(), self.prefix)
    }

    pub(super) fn lock_place(&self, name: &str) -> LockPlace {
        LockPlace::Redis {
            server: self.locks.clone(),
            key: self.lock_key(name),
        }
    }

    pub(super) async fn get(&self, key: &str) -> Result<Option<Value>, Error> {
        let stored: Option<Vec<u8>> = self
            .values
            .command(cmd("GET").arg(self.key(key)))
            .await
            .map_err(failed("read"))?;
        stored.map(|stored| decode(key, stored)).transpose()
    }

    pub(super) async fn many(&self, keys: &[String]) -> Result<Vec<Option<Value>>, Error> {
        let stored: Vec<Option<Vec<u8>>> = if self.values.is_cluster() {
            // A command takes keys of one slot there.
            let get = async |key: &String| {
                let get = cmd("GET").arg(self.key(key)).take();
                self.values.command(&get).await
            };
            let all = try_join_all(keys.iter().map(get));
            all.await.map_err(failed("read"))?
        } else {
            let mut command = cmd("MGET");
            for key in keys {
                command.arg(self.key(key));
            }
            let all = self.values.command(&command);
            all.await.map_err(failed("read"))?
        };
        let pairs = keys.iter().zip(stored);
        Ok(pairs
            .map(|(key, stored)| stored.and_then(|stored| decode(key, stored).ok()))
            .collect())
    }

    pub(super) async fn put(&self, key: &str, value: &Value, ttl: Duration) -> Result<(), Error> {
        let mut command = cmd("SETEX");
        command
            .arg(self.key(key))
            .arg(ttl.as_secs())
            .arg(encode(value));
        self.values.command(&command).await.map_err(failed("write"))
    }

    pub(super) async fn forever(&self, key: &str, value: &Value) -> Result<(), Error> {
        let mut command = cmd("SET");
        command.arg(self.key(key)).arg(encode(value));
        self.values.command(&command).await.map_err(failed("write"))
    }

    pub(super) async fn add(&self, key: &str, value: &Value, ttl: Duration) -> Result<bool, Error> {
        let value = encode(value);
        let args = [Arg::Bytes(&value), seconds(ttl)];
        let added: i64 = self
            .values
            .script(add_script(), &[self.key(key)], &args)
            .await
            .map_err(failed("write"))?;
        Ok(added == 1)
    }

    pub(super) async fn increment(&self, key: &str, by: i64) -> Result<i64, Error> {
        self.values
            .command(cmd("INCRBY").arg(self.key(key)).arg(by))
            .await
            .map_err(failed("count"))
    }

    pub(super) async fn forget(&self, key: &str) -> Result<bool, Error> {
        let deleted: i64 = self
            .values
            .command(cmd("DEL").arg(self.key(key)))
            .await
            .map_err(failed("delete"))?;
        Ok(deleted > 0)
    }

    pub(super) async fn acquire(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let mut command = cmd("SET");
        command.arg(self.lock_key(name)).arg(owner);
        if ttl.as_secs() > 0 {
            command.arg("EX").arg(ttl.min(LONGEST_LOCK).as_secs());
        }
        let reply: Option<String> = self
            .locks
            .command(command.arg("NX"))
            .await
            .map_err(failed("lock"))?;
        Ok(reply.is_some())
    }

    pub(super) async fn release(&self, name: &str, owner: &str) -> Result<bool, Error> {
        let released: i64 = self
            .locks
            .script(
                release_script(),
                &[self.lock_key(name)],
                &[Arg::Bytes(owner.as_bytes())],
            )
            .await
            .map_err(failed("unlock"))?;
        Ok(released == 1)
    }

    pub(super) async fn force_release(&self, name: &str) -> Result<bool, Error> {
        let deleted: i64 = self
            .locks
            .command(cmd("DEL").arg(self.lock_key(name)))
            .await
            .map_err(failed("unlock"))?;
        Ok(deleted > 0)
    }

    pub(super) async fn owner(&self, name: &str) -> Result<Option<String>, Error> {
        let owner: Option<Vec<u8>> = self
            .locks
            .command(cmd("GET").arg(self.lock_key(name)))
            .await
            .map_err(failed("read"))?;
        Ok(owner.map(|owner| String::from_utf8_lossy(&owner).into_owned()))
    }

    pub(super) async fn refresh(
        &self,
        name: &str,
        owner: &str,
        ttl: Duration,
    ) -> Result<bool, Error> {
        let args = [Arg::Bytes(owner.as_bytes()), seconds(ttl)];
        let refreshed: i64 = self
            .locks
            .script(refresh_script(), &[self.lock_key(name)], &args)
            .await
            .map_err(failed("lock"))?;
        Ok(refreshed == 1)
    }
}

/// Longest lifetime of a lock that Redis can count in milliseconds, whatever the date.
const LONGEST_LOCK: Duration = Duration::from_secs(9_000_000_000_000_000);

fn seconds(ttl: Duration) -> Arg<'static> {
    Arg::Int(i64::try_from(ttl.as_secs()).unwrap_or(i64::MAX))
}

fn failed(what: &'static str) -> impl Fn(crate::connection::Error) -> Error {
    move |source| Error::Server { what, source }
}

/// The stored form of a value: numbers and numeric texts as they are, everything else serialized.
///
/// # Source
///
/// `Illuminate\Cache\RedisStore::serialize`.
fn encode(value: &Value) -> Vec<u8> {
    match value {
        Value::Int(number) => number.to_string().into_bytes(),
        Value::Float(number) if number.get().is_finite() => float_text(number.get()).into_bytes(),
        Value::String(text) if is_numeric(text) => text.clone(),
        value => value.to_bytes(),
    }
}

fn decode(key: &str, stored: Vec<u8>) -> Result<Value, Error> {
    if is_numeric(&stored) {
        return Ok(Value::String(stored));
    }
    Value::from_bytes(&stored).map_err(|source| Error::Value {
        key: key.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_stored_as_laravel_stores_them() {
        let text = |text: &str| Value::String(text.as_bytes().to_vec());
        let rows = [
            (Value::Int(-5), "-5"),
            (Value::Float(2.0.into()), "2"),
            (Value::Float(f64::INFINITY.into()), "d:INF;"),
            (text("hello"), "s:5:\"hello\";"),
            (text("1e5"), "1e5"),
            (text("0x1A"), "s:4:\"0x1A\";"),
            (Value::Bool(true), "b:1;"),
            (Value::Null, "N;"),
        ];
        for (value, expected) in rows {
            let stored = encode(&value);
            assert_eq!(String::from_utf8_lossy(&stored), expected, "{value:?}");
        }
        assert_eq!(decode("k", b"17".to_vec()).unwrap(), text("17"));
        assert_eq!(decode("k", b"b:1;".to_vec()).unwrap(), Value::Bool(true));
        assert!(decode("k", b"\x1f\x8b".to_vec()).is_err());
    }
}
