//! `middleware` of a mapping and `[limiters.NAME]`, as `artisand.toml` writes them.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;
use serde::de::Error;
use serde::de::value::MapAccessDeserializer;

use crate::handler::{BoxError, LimitTemplate, Limiter, Middleware, Path, Template};
use crate::middleware::{
    DEFAULT_REDIS, Exceptions, FailOnException, RateLimited, Release, Skip, SkipIfBatchCancelled,
    ThrottlesExceptions, WithoutOverlapping,
};
use crate::payload::Pattern;

/// One middleware: `{ without_overlapping = { .. } }`, `{ rate_limited = "backups" }`. Times are seconds.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub enum MiddlewareTable {
    /// One job of a key at a time.
    WithoutOverlapping(OverlapTable),
    /// A number of jobs per period, counted in the cache.
    RateLimited(RateLimitedTable),
    /// A number of jobs per period, counted in Redis.
    RateLimitedWithRedis(RateLimitedTable),
    /// After this many exceptions, a pause; counted in the cache.
    ThrottlesExceptions(ThrottleTable),
    /// After this many exceptions, a pause; counted in Redis.
    ThrottlesExceptionsWithRedis(ThrottleTable),
    /// Fails jobs for good on these exceptions.
    FailOnException(ExceptionsTable),
    /// Back with the jobs of which this property is true.
    Release(ReleaseTable),
    /// Not the jobs of which this property is true.
    Skip(Path),
    /// Not the jobs of a batch that was cancelled.
    SkipIfBatchCancelled,
}

impl<'de> Deserialize<'de> for MiddlewareTable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct MiddlewareVisitor;

        impl<'de> serde::de::Visitor<'de> for MiddlewareVisitor {
            type Value = MiddlewareTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a middleware, such as `{ without_overlapping = { key = \"{id}\" } }`")
            }

            fn visit_str<E: Error>(self, name: &str) -> Result<MiddlewareTable, E> {
                match name {
                    "skip_if_batch_cancelled" => Ok(MiddlewareTable::SkipIfBatchCancelled),
                    name if NAMES.contains(&name) => Err(E::custom(format_args!(
                        "`{name}` needs a value: write `{{ {name} = .. }}`"
                    ))),
                    name => Err(E::unknown_variant(name, NAMES)),
                }
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                mut map: A,
            ) -> Result<MiddlewareTable, A::Error> {
                let Some(name) = map.next_key::<String>()? else {
                    return Err(A::Error::invalid_length(0, &self));
                };
                let table = MiddlewareTable::read(&name, &mut map)?;
                match map.next_key::<String>()? {
                    Some(other) => Err(A::Error::custom(format_args!(
                        "`{other}` does not go with `{name}`: each middleware is in braces of its own"
                    ))),
                    None => Ok(table),
                }
            }
        }

        deserializer.deserialize_any(MiddlewareVisitor)
    }
}

impl MiddlewareTable {
    /// Reads the value of the middleware `name`.
    fn read<'de, A: serde::de::MapAccess<'de>>(name: &str, map: &mut A) -> Result<Self, A::Error> {
        Ok(match name {
            "without_overlapping" => Self::WithoutOverlapping(map.next_value()?),
            "rate_limited" => {
                let table: RateLimitedTable = map.next_value()?;
                no_connection(name, table.0.connection.as_ref())?;
                Self::RateLimited(table)
            }
            "rate_limited_with_redis" => Self::RateLimitedWithRedis(map.next_value()?),
            "throttles_exceptions" => {
                let table: ThrottleTable = map.next_value()?;
                no_connection(name, table.connection.as_ref())?;
                Self::ThrottlesExceptions(table)
            }
            "throttles_exceptions_with_redis" => {
                Self::ThrottlesExceptionsWithRedis(map.next_value()?)
            }
            "fail_on_exception" => Self::FailOnException(map.next_value()?),
            "release" => Self::Release(map.next_value()?),
            "skip" => Self::Skip(map.next_value()?),
            "skip_if_batch_cancelled" => {
                return Err(A::Error::custom(format_args!(
                    "`{name}` has no value: write `\"{name}\"`"
                )));
            }
            _ => return Err(A::Error::unknown_variant(name, NAMES)),
        })
    }
}

/// All names that `middleware` takes.
const NAMES: &[&str] = &[
    "without_overlapping",
    "rate_limited",
    "rate_limited_with_redis",
    "throttles_exceptions",
    "throttles_exceptions_with_redis",
    "fail_on_exception",
    "release",
    "skip",
    "skip_if_batch_cancelled",
];

/// `["Class", "/regex/"]`: exceptions by the class under which they are recorded, or by what they say.
#[derive(Debug, Clone)]
pub struct ExceptionsTable(Exceptions);

impl<'de> Deserialize<'de> for ExceptionsTable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let patterns = Vec::<String>::deserialize(deserializer)?;
        let patterns = patterns.iter().map(|text| Pattern::parse(text));
        let patterns: Result<Vec<Pattern>, _> = patterns.collect();
        Ok(Self(Exceptions::new(patterns.map_err(D::Error::custom)?)))
    }
}

impl ExceptionsTable {
    fn to_test(&self) -> impl Fn(&BoxError) -> bool + Send + Sync + 'static {
        let exceptions = self.0.clone();
        move |error| exceptions.include(error)
    }
}

/// `release = { when = "{property}", after = 30 }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReleaseTable {
    /// The property.
    pub when: Path,
    /// How long the job waits.
    #[serde(default)]
    pub after: u64,
}

/// `without_overlapping = { .. }`
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct OverlapTable {
    /// What is not to overlap; jobs of the class if empty.
    pub key: Template,
    /// Wait of a job that was kept out.
    pub release_after: u64,
    /// Drops jobs that are kept out, as if they were done.
    pub dont_release: bool,
    /// When the lock ends if its holder is gone; never if 0.
    pub expires_after: u64,
    /// Replaces `laravel-queue-overlap:`.
    pub prefix: Option<String>,
    /// Shares the key with jobs of other classes.
    pub shared: bool,
    /// Whether being kept out costs an attempt, as in Laravel.
    pub spend_attempt: Spend,
}

/// `spend_attempt`: true unless said otherwise.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Spend(pub bool);

impl Default for Spend {
    fn default() -> Self {
        Self(true)
    }
}

/// `rate_limited = "NAME"`, or `{ limiter = "NAME", .. }`
#[derive(Debug, Clone)]
pub struct RateLimitedTable(RateLimitedFields);

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct RateLimitedFields {
    limiter: String,
    #[serde(default)]
    release_after: u64,
    #[serde(default)]
    dont_release: bool,
    #[serde(default)]
    spend_attempt: Spend,
    #[serde(default)]
    connection: Option<String>,
}

/// Refuses a Redis connection for a middleware that counts in the cache.
fn no_connection<E: Error>(name: &str, connection: Option<&String>) -> Result<(), E> {
    match connection {
        None => Ok(()),
        Some(connection) => Err(E::custom(format_args!(
            "`{name}` counts in the cache and has no `connection`: write `{name}_with_redis = {{ connection = \"{connection}\", .. }}`"
        ))),
    }
}

impl<'de> Deserialize<'de> for RateLimitedTable {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct TableVisitor;

        impl<'de> serde::de::Visitor<'de> for TableVisitor {
            type Value = RateLimitedTable;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the name of a limiter, or a table with `limiter`")
            }

            fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<RateLimitedTable, E> {
                Ok(RateLimitedTable(RateLimitedFields {
                    limiter: name.to_owned(),
                    ..RateLimitedFields::default()
                }))
            }

            fn visit_map<A: serde::de::MapAccess<'de>>(
                self,
                map: A,
            ) -> Result<RateLimitedTable, A::Error> {
                Deserialize::deserialize(MapAccessDeserializer::new(map)).map(RateLimitedTable)
            }
        }

        deserializer.deserialize_any(TableVisitor)
    }
}

/// `throttles_exceptions = { .. }`
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ThrottleTable {
    /// Exceptions before the pause.
    pub max: i64,
    /// How long they are counted together.
    pub decay: u64,
    /// Wait after an exception that was counted.
    pub backoff: u64,
    /// Counts by this instead of the class.
    pub by: Template,
    /// Counts each job by itself.
    pub by_job: bool,
    /// The exceptions that are counted; all without it.
    pub when: Option<ExceptionsTable>,
    /// Those on which the job is deleted.
    pub delete_when: Option<ExceptionsTable>,
    /// Those on which it fails for good.
    pub fail_when: Option<ExceptionsTable>,
    /// Not for use: says why it is not needed.
    #[serde(deserialize_with = "no_report")]
    pub report: (),
    /// Replaces `laravel_throttles_exceptions:`.
    pub prefix: Option<String>,
    /// Whether waiting for the end of a pause costs an attempt, as in Laravel.
    pub spend_attempt: Spend,
    /// The app's Redis connection that counts, instead of `default`; only for `throttles_exceptions_with_redis`.
    pub connection: Option<String>,
}

fn no_report<'de, D: serde::Deserializer<'de>>(_: D) -> Result<(), D::Error> {
    Err(D::Error::custom(
        "`report` is not needed: each exception that is counted is in the log; leave it out",
    ))
}

impl Default for ThrottleTable {
    fn default() -> Self {
        Self {
            max: 10,
            decay: 600,
            backoff: 0,
            by: Template::default(),
            by_job: false,
            when: None,
            delete_when: None,
            fail_when: None,
            report: (),
            prefix: None,
            spend_attempt: Spend::default(),
            connection: None,
        }
    }
}

/// `[limiters.NAME]`: what `RateLimiter::for(NAME, ..)` says in PHP.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LimiterTable {
    limits: Vec<LimitTable>,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitTable {
    max: i64,
    per: u64,
    #[serde(default)]
    by: Template,
}

const S: fn(u64) -> Duration = Duration::from_secs;

impl MiddlewareTable {
    pub(super) fn to_middleware(&self) -> Arc<dyn Middleware> {
        match self {
            Self::WithoutOverlapping(table) => Arc::new(table.to_middleware()),
            Self::RateLimited(table) => Arc::new(table.to_middleware()),
            Self::RateLimitedWithRedis(table) => {
                let connection = table.0.connection.as_deref();
                Arc::new(
                    table
                        .to_middleware()
                        .on_redis(connection.unwrap_or(DEFAULT_REDIS)),
                )
            }
            Self::ThrottlesExceptions(table) => Arc::new(table.to_middleware()),
            Self::ThrottlesExceptionsWithRedis(table) => {
                let connection = table.connection.as_deref();
                Arc::new(
                    table
                        .to_middleware()
                        .on_redis(connection.unwrap_or(DEFAULT_REDIS)),
                )
            }
            Self::FailOnException(table) => Arc::new(FailOnException::when(table.to_test())),
            Self::Release(table) => {
                Arc::new(Release::when_property(table.when.clone(), S(table.after)))
            }
            Self::Skip(path) => Arc::new(Skip::when_property(path.clone())),
            Self::SkipIfBatchCancelled => Arc::new(SkipIfBatchCancelled),
        }
    }
}

impl OverlapTable {
    fn to_middleware(&self) -> WithoutOverlapping {
        let mut middleware = WithoutOverlapping::new(self.key.clone())
            .release_after(S(self.release_after))
            .expires_after(S(self.expires_after));
        if let Some(prefix) = &self.prefix {
            middleware = middleware.with_prefix(prefix);
        }
        if self.dont_release {
            middleware = middleware.dont_release();
        }
        if self.shared {
            middleware = middleware.shared();
        }
        if self.spend_attempt == Spend(false) {
            middleware = middleware.without_spending_attempts();
        }
        middleware
    }
}

impl RateLimitedTable {
    fn to_middleware(&self) -> RateLimited {
        let table = &self.0;
        let mut middleware = RateLimited::new(&table.limiter).release_after(S(table.release_after));
        if table.dont_release {
            middleware = middleware.dont_release();
        }
        if table.spend_attempt == Spend(false) {
            middleware = middleware.without_spending_attempts();
        }
        middleware
    }
}

impl ThrottleTable {
    fn to_middleware(&self) -> ThrottlesExceptions {
        let mut middleware = ThrottlesExceptions::new(self.max, S(self.decay))
            .backoff(S(self.backoff))
            .by(self.by.clone());
        if self.by_job {
            middleware = middleware.by_job();
        }
        if let Some(exceptions) = &self.when {
            middleware = middleware.when(exceptions.to_test());
        }
        if let Some(exceptions) = &self.delete_when {
            middleware = middleware.delete_when(exceptions.to_test());
        }
        if let Some(exceptions) = &self.fail_when {
            middleware = middleware.fail_when(exceptions.to_test());
        }
        if let Some(prefix) = &self.prefix {
            middleware = middleware.with_prefix(prefix);
        }
        if self.spend_attempt == Spend(false) {
            middleware = middleware.without_spending_attempts();
        }
        middleware
    }
}

impl LimiterTable {
    pub(super) fn to_limiter(&self) -> Limiter {
        let limit = |table: &LimitTable| LimitTemplate {
            max: table.max,
            per: S(table.per),
            by: table.by.clone(),
        };
        Limiter::of(self.limits.iter().map(limit).collect())
    }
}
