//! Rate limiters: counters that PHP and artisand share.
//!
//! Laravel has two kinds. [`RateLimiter`] keeps a counter and a timer in any
//! cache store; [`DurationLimiter`] keeps a hash in Redis, outside the cache and
//! without its prefix (docs/protocol/cache.md 10).

use std::sync::OnceLock;
use std::time::Duration;

use ::redis::{Script, cmd};

use super::entity::clean;
use super::value::to_int;
use super::{Cache, Error};
use crate::connection::{Arg, Redis};
use crate::php::Value;
use crate::time::{Clock, UnixSeconds};

/// Counts events per span of time in a cache store.
///
/// The cleaned key holds the count, the key with `:timer` the second at which the
/// span ends; both expire with the span.
///
/// # Source
///
/// `Illuminate\Cache\RateLimiter`.
#[derive(Debug, Clone)]
pub struct RateLimiter {
    cache: Cache,
    clock: Clock,
}

impl RateLimiter {
    /// A limiter in this store (`cache.limiter`, or else the default one).
    pub fn new(cache: Cache, clock: Clock) -> Self {
        Self { cache, clock }
    }

    /// Resets a count whose span has ended; true if the count has reached `most`.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn too_many_attempts(&self, key: &str, most: i64) -> Result<bool, Error> {
        let key = clean(key);
        let count = self.cache.get(&key).await?;
        if count.as_ref().map_or(0, to_int) < most {
            return Ok(false);
        }
        if self.cache.get(&timer(&key)).await?.is_some() {
            return Ok(true);
        }
        self.cache.forget(&key).await?;
        Ok(false)
    }

    /// Adds one to the count, in a new span of this length if there is none; returns the count.
    ///
    /// # Errors
    ///
    /// The store cannot be reached; the event may be counted all the same.
    pub async fn hit(&self, key: &str, decay: Duration) -> Result<i64, Error> {
        let key = clean(key);
        let end = Value::Int(self.clock.now().plus(decay).0);
        self.cache.add(&timer(&key), &end, decay).await?;
        let is_new = self.cache.add(&key, &Value::Int(0), decay).await?;
        let count = self.cache.increment(&key, 1).await?.unwrap_or(0);
        if !is_new && count == 1 {
            // The counter expired between `add` and `increment`: without this the new one would never expire.
            self.cache.put(&key, &Value::Int(1), decay).await?;
        }
        Ok(count)
    }

    /// Time until the span ends; zero if there is none.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn available_in(&self, key: &str) -> Result<Duration, Error> {
        let end = self.cache.get(&timer(&clean(key))).await?;
        let left = end.map_or(0, |end| to_int(&end).saturating_sub(self.clock.now().0));
        Ok(crate::time::seconds(left))
    }

    /// Deletes count and span.
    ///
    /// # Errors
    ///
    /// The store cannot be reached.
    pub async fn clear(&self, key: &str) -> Result<(), Error> {
        let key = clean(key);
        self.cache.forget(&key).await?;
        self.cache.forget(&timer(&key)).await.map(drop)
    }
}

fn timer(cleaned: &str) -> String {
    format!("{cleaned}:timer")
}

/// The answer of a [`DurationLimiter`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Span {
    /// Whether there is room; after `acquire`, whether there was room for the counted event.
    pub has_room: bool,
    /// The second at which the span ends.
    pub ends: UnixSeconds,
}

/// Counts events per span of time in Redis, with one script per call.
///
/// Unlike [`RateLimiter`], it keeps counting while there is no room.
///
/// # Source
///
/// `Illuminate\Redis\Limiters\DurationLimiter`.
#[derive(Debug, Clone)]
pub struct DurationLimiter {
    redis: Redis,
    clock: Clock,
}

fn acquire_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(include_str!("scripts/duration_acquire.lua")))
}

fn peek_script() -> &'static Script {
    static SCRIPT: OnceLock<Script> = OnceLock::new();
    SCRIPT.get_or_init(|| Script::new(include_str!("scripts/duration_peek.lua")))
}

impl DurationLimiter {
    /// A limiter on this connection (in Laravel the connection `default`), whose key prefix is the only prefix.
    pub fn new(redis: Redis, clock: Clock) -> Self {
        Self { redis, clock }
    }

    /// Checks whether there is room for one more, without counting.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn peek(&self, key: &str, most: i64, decay: Duration) -> Result<Span, Error> {
        self.call(peek_script(), "read", key, most, decay).await
    }

    /// Adds one to the count, in a new span of this length if there is none.
    ///
    /// # Errors
    ///
    /// The server cannot be reached; the event may be counted all the same.
    pub async fn acquire(&self, key: &str, most: i64, decay: Duration) -> Result<Span, Error> {
        self.call(acquire_script(), "count", key, most, decay).await
    }

    async fn call(
        &self,
        script: &Script,
        what: &'static str,
        key: &str,
        most: i64,
        decay: Duration,
    ) -> Result<Span, Error> {
        let keys = [format!("{}{key}", self.redis.prefix())];
        let (now, precise) = (self.clock.now(), self.clock.precise());
        let precise = format!("{precise:.6}");
        let args = [
            Arg::Bytes(precise.as_bytes()),
            Arg::Int(now.0),
            Arg::Int(i64::try_from(decay.as_secs()).unwrap_or(i64::MAX)),
            Arg::Int(most),
        ];
        let reply = self.redis.script(script, &keys, &args).await;
        let (has_room, ends, _): (i64, i64, i64) =
            reply.map_err(|source| Error::Server { what, source })?;
        Ok(Span {
            has_room: has_room == 1,
            ends: UnixSeconds(ends),
        })
    }

    /// Deletes count and span.
    ///
    /// # Errors
    ///
    /// The server cannot be reached.
    pub async fn clear(&self, key: &str) -> Result<(), Error> {
        let key = format!("{}{key}", self.redis.prefix());
        let deleted = self.redis.command::<i64>(cmd("DEL").arg(key)).await;
        let failed = |source| Error::Server {
            what: "delete",
            source,
        };
        deleted.map(drop).map_err(failed)
    }
}
