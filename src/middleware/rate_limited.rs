//! `RateLimited` and `RateLimitedWithRedis`: a maximum number of jobs per span of time.

use std::time::Duration;

use super::{AFTER_LIMIT, DEFAULT_REDIS, ReleasePolicy};
use crate::cache::{self, DurationLimiter, RateLimiter, loosely_equal, name};
use crate::handler::{BoxError, JobContext, Limit, Limiter, Next, Services};
use crate::php::Value;
use crate::time::Clock;

/// Limits the number of jobs per span of time, with a counter that PHP workers share.
///
/// The limits come from the limiter of this name: `[limiters.NAME]` of
/// `artisand.toml`. In PHP they are a closure, which
/// only PHP can evaluate: configure the same limits in both places.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\RateLimited`, and with
/// [`with_redis`](Self::with_redis) `RateLimitedWithRedis` (docs/protocol/cache.md 10.1, 10.2).
#[derive(Debug, Clone)]
pub struct RateLimited {
    limiter: String,
    release_after: Duration,
    policy: ReleasePolicy,
    /// The Redis connection that counts; `None` for the cache.
    redis: Option<String>,
}

/// The limits of a job.
fn limits(limiter: &Limiter, context: &JobContext) -> Result<Vec<Limit>, BoxError> {
    let mut limits = if limiter.reads_job() {
        limiter.limits(context.properties()?)?
    } else {
        limiter.limits(&Value::Null)?
    };
    if context.services().version.is_at_least(11, 29) {
        tell_apart(&mut limits);
    }
    Ok(limits)
}

/// Gives limits with the same key distinct keys.
///
/// # Source
///
/// `Illuminate\Cache\RateLimiter::limiter`, `Illuminate\Cache\RateLimiting\Limit::fallbackKey` (since 11.29).
fn tell_apart(limits: &mut [Limit]) {
    let text = |limit: &Limit| Value::String(limit.by.clone().into_bytes());
    let is_same = |a: &Limit, b: &Limit| loosely_equal(Some(&text(a)), Some(&text(b)));
    let is_double: Vec<bool> = limits
        .iter()
        .map(|limit| limits.iter().filter(|other| is_same(limit, other)).count() > 1)
        .collect();
    for (limit, is_double) in limits.iter_mut().zip(is_double) {
        if is_double {
            let key = match &*limit.by {
                "" | "0" => String::new(),
                by => format!("{by}:"),
            };
            let (max, decay) = (limit.max, limit.per.as_secs());
            limit.by = format!("{key}attempts:{max}:decay:{decay}");
        }
    }
}

impl RateLimited {
    /// Applies this limiter, counted in the app's cache store for limiters.
    pub fn new(limiter: impl Into<String>) -> Self {
        Self {
            limiter: limiter.into(),
            release_after: Duration::ZERO,
            policy: ReleasePolicy::default(),
            redis: None,
        }
    }

    /// Counts on the app's Redis connection `default`, with one script call per limit.
    #[must_use]
    pub fn with_redis(self) -> Self {
        self.on_redis(DEFAULT_REDIS)
    }

    /// Counts on the app's Redis connection of this name.
    #[must_use]
    pub fn on_redis(mut self, connection: impl Into<String>) -> Self {
        self.redis = Some(connection.into());
        self
    }

    /// Sets the wait of a job for which there is no room; if unset, three seconds more than the time until there
    /// is room.
    #[must_use]
    pub fn release_after(mut self, delay: Duration) -> Self {
        self.release_after = delay;
        self
    }

    /// Drops jobs for which there is no room; they count as done.
    #[must_use]
    pub fn dont_release(mut self) -> Self {
        self.policy.releases = false;
        self
    }

    /// Gives back jobs for which there is no room as if they had not been popped: their attempt does not count.
    #[must_use]
    pub fn without_spending_attempts(mut self) -> Self {
        self.policy.spends_attempt = false;
        self
    }

    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let services = context.services();
        let limiter = services.middleware.limiter(&self.limiter)?;
        let limits = limits(limiter, context)?;
        let wait = if let Some(name) = &self.redis {
            let limiter =
                DurationLimiter::new(services.middleware.redis(name)?.clone(), Clock::System);
            self.count_in_redis(services, &limiter, &limits).await?
        } else {
            let limiter =
                RateLimiter::new(services.middleware.limiter_cache()?.clone(), Clock::System);
            self.count(services, &limiter, &limits).await?
        };
        match wait {
            None => next.run().await,
            Some(wait) => {
                let own = Some(self.release_after).filter(|own| !own.is_zero());
                self.policy.apply(context, own.unwrap_or(wait));
                Ok(())
            }
        }
    }

    fn key(&self, limit: &Limit) -> String {
        name::limit_counter(&self.limiter, &limit.by)
    }

    /// Counts a job; if there is no room, the time until there is, plus Laravel's extra wait.
    async fn count(
        &self,
        services: &Services,
        limiter: &RateLimiter,
        limits: &[Limit],
    ) -> Result<Option<Duration>, cache::Error> {
        let looks_first = looks_at_all_first(services);
        for limit in limits {
            let key = self.key(limit);
            if limiter.too_many_attempts(&key, limit.max).await? {
                return Ok(Some(limiter.available_in(&key).await? + AFTER_LIMIT));
            }
            if !looks_first {
                limiter.hit(&key, limit.per).await?;
            }
        }
        for limit in limits.iter().filter(|_| looks_first) {
            limiter.hit(&self.key(limit), limit.per).await?;
        }
        Ok(None)
    }

    async fn count_in_redis(
        &self,
        services: &Services,
        limiter: &DurationLimiter,
        limits: &[Limit],
    ) -> Result<Option<Duration>, cache::Error> {
        let wait = |span: cache::Span| Clock::System.until_whole(span.ends) + AFTER_LIMIT;
        for limit in limits.iter().filter(|_| looks_at_all_first(services)) {
            let span = limiter.peek(&self.key(limit), limit.max, limit.per).await?;
            if !span.has_room {
                return Ok(Some(wait(span)));
            }
        }
        for limit in limits {
            let key = self.key(limit);
            let span = limiter.acquire(&key, limit.max, limit.per).await?;
            if !span.has_room {
                return Ok(Some(wait(span)));
            }
        }
        Ok(None)
    }
}

/// Whether all limits are checked before any is counted: true in 13.31, not up to 13.26.
fn looks_at_all_first(services: &Services) -> bool {
    services.version.is_at_least(13, 31)
}

middleware!(RateLimited, |this, services| {
    services.limiter(&this.limiter)?;
    match &this.redis {
        Some(name) => services.redis(name).map(drop),
        None => services.limiter_cache().map(drop),
    }
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_counted_by_the_same_are_told_apart() {
        let limit = |max, by: &str| Limit {
            max,
            per: Duration::from_secs(60),
            by: by.to_owned(),
        };
        let mut limits = vec![
            limit(1, "a"),
            limit(2, ""),
            limit(3, "a"),
            limit(4, "b"),
            limit(5, "0"),
            limit(6, "00"),
        ];
        tell_apart(&mut limits);
        let keys: Vec<&str> = limits.iter().map(|limit| limit.by.as_str()).collect();
        #[rustfmt::skip]
        let expected = [
            "a:attempts:1:decay:60", "", "a:attempts:3:decay:60", "b",
            "attempts:5:decay:60", "00:attempts:6:decay:60",
        ];
        assert_eq!(keys, expected);
    }
}
