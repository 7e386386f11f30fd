//! `ThrottlesExceptions` and `ThrottlesExceptionsWithRedis`: a pause after a number of exceptions.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::{AFTER_LIMIT, DEFAULT_REDIS, ReleasePolicy};
use crate::cache::{self, DurationLimiter, RateLimiter, name};
use crate::handler::{
    BoxError, JobContext, MiddlewareServices, Missing, ModelNotFound, Next, Template,
};
use crate::payload::JobUuid;
use crate::shown::with_causes;
use crate::time::Clock;

/// Tests whether an error matches.
type Test = Arc<dyn Fn(&BoxError) -> bool + Send + Sync>;

/// After a number of exceptions in a span of time, jobs wait until the span has ended. PHP workers share the
/// count.
///
/// A counted exception is swallowed: the job is released, which spends an attempt
/// but does not count towards `maxExceptions`. A success resets the count.
/// Exceptions after the job's timeout are not counted; nor is a
/// [missing model](ModelNotFound), unless [`when`](Self::when),
/// [`delete_when`](Self::delete_when) or [`fail_when`](Self::fail_when) matches it.
///
/// # Source
///
/// `Illuminate\Queue\Middleware\ThrottlesExceptions`, and with
/// [`with_redis`](Self::with_redis) `ThrottlesExceptionsWithRedis`
/// (docs/protocol/cache.md 10.3, 10.4).
#[derive(Clone)]
pub struct ThrottlesExceptions {
    max: i64,
    decay: Duration,
    backoff: Duration,
    by: Template,
    by_job: bool,
    prefix: String,
    when: Option<Test>,
    delete_when: Option<Test>,
    fail_when: Option<Test>,
    /// The Redis connection that counts; `None` for the cache.
    redis: Option<String>,
    policy: ReleasePolicy,
}

impl fmt::Debug for ThrottlesExceptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottlesExceptions")
            .field("max", &self.max)
            .field("decay", &self.decay)
            .field("by", &self.by)
            .finish_non_exhaustive()
    }
}

impl Default for ThrottlesExceptions {
    /// Laravel's defaults: ten exceptions in ten minutes.
    fn default() -> Self {
        Self::new(10, Duration::from_secs(600))
    }
}

enum Counter {
    Cache(RateLimiter),
    Redis(DurationLimiter),
}

impl ThrottlesExceptions {
    /// Pauses all jobs of a class after `max` exceptions within `decay`, which is in whole seconds.
    pub fn new(max: i64, decay: Duration) -> Self {
        Self {
            max,
            decay,
            backoff: Duration::ZERO,
            by: Template::default(),
            by_job: false,
            prefix: name::THROTTLE_PREFIX.to_owned(),
            when: None,
            delete_when: None,
            fail_when: None,
            redis: None,
            policy: ReleasePolicy::default(),
        }
    }

    /// Counts on the app's Redis connection `default`.
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

    /// Sets the wait after a counted exception; no wait unless set. Laravel's `backoff()` takes minutes.
    #[must_use]
    pub fn backoff(mut self, delay: Duration) -> Self {
        self.backoff = delay;
        self
    }

    /// Counts by this text instead of the class.
    #[must_use]
    pub fn by(mut self, key: Template) -> Self {
        self.by = key;
        self
    }

    /// Counts each job by itself.
    #[must_use]
    pub fn by_job(mut self) -> Self {
        self.by_job = true;
        self
    }

    /// Replaces the key prefix `laravel_throttles_exceptions:`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Counts only errors for which the test returns true; others stay exceptions of their job.
    #[must_use]
    pub fn when(mut self, test: impl Fn(&BoxError) -> bool + Send + Sync + 'static) -> Self {
        self.when = Some(Arc::new(test));
        self
    }

    /// Deletes the job on an error for which the test returns true (Laravel 12.14 and later).
    #[must_use]
    pub fn delete_when(mut self, test: impl Fn(&BoxError) -> bool + Send + Sync + 'static) -> Self {
        self.delete_when = Some(Arc::new(test));
        self
    }

    /// Fails the job for good on an error for which the test returns true (Laravel 12.20 and later).
    #[must_use]
    pub fn fail_when(mut self, test: impl Fn(&BoxError) -> bool + Send + Sync + 'static) -> Self {
        self.fail_when = Some(Arc::new(test));
        self
    }

    /// Gives back waiting jobs as if they had not been popped. After an exception the attempt still counts.
    #[must_use]
    pub fn without_spending_attempts(mut self) -> Self {
        self.policy.spends_attempt = false;
        self
    }

    fn key(&self, context: &JobContext) -> Result<String, BoxError> {
        let by = context.render(&self.by)?;
        // PHP tests the key for truth, and `0` is false.
        if !matches!(&*by, "" | "0") {
            return Ok(format!("{}{by}", self.prefix));
        }
        if self.by_job {
            let uuid = context.uuid().map_or("", |uuid| uuid.as_str());
            return Ok(format!("{}{uuid}", self.prefix));
        }
        let version = context.services().version;
        let (class, display_name) = (context.class(), context.display_name());
        Ok(name::throttle_counter(
            version,
            &self.prefix,
            class,
            display_name,
        ))
    }

    fn counter(&self, services: &MiddlewareServices) -> Result<Counter, Missing> {
        Ok(if let Some(name) = &self.redis {
            Counter::Redis(DurationLimiter::new(
                services.redis(name)?.clone(),
                Clock::System,
            ))
        } else {
            Counter::Cache(RateLimiter::new(
                services.limiter_cache()?.clone(),
                Clock::System,
            ))
        })
    }

    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let counter = self.counter(&context.services().middleware)?;
        let key = self.key(context)?;
        if let Some(wait) = counter.pause(&key, self.max, self.decay).await? {
            self.policy.apply(context, wait);
            return Ok(());
        }
        let Err(error) = next.run().await else {
            if let Err(problem) = counter.clear(&key).await {
                // The job is done: this error must not make it run again.
                warn(
                    context,
                    &problem,
                    "could not forget the exceptions of a job that is done",
                );
            }
            return Ok(());
        };
        let is = |test: &Option<Test>| test.as_ref().is_some_and(|test| test(&error));
        // Laravel looks for the models of a job before its middleware runs.
        if ModelNotFound::within(&*error).is_some()
            && ![&self.when, &self.delete_when, &self.fail_when]
                .into_iter()
                .any(is)
        {
            return Err(error);
        }
        context.note_exception();
        if context.is_cancelled() || (self.when.is_some() && !is(&self.when)) {
            return Err(error);
        }
        if is(&self.delete_when) {
            context.delete();
            return Ok(());
        }
        if is(&self.fail_when) {
            context.fail(error);
            return Ok(());
        }
        if let Err(problem) = counter.hit(&key, self.max, self.decay).await {
            warn(context, &problem, "could not count an exception of a job");
            return Err(error);
        }
        warn(
            context,
            &*error,
            "a job threw; that was counted and the job is released",
        );
        context.release(self.backoff);
        Ok(())
    }
}

fn warn(context: &JobContext, error: &(dyn std::error::Error + 'static), message: &str) {
    tracing::warn!(
        job.uuid = context.uuid().map(JobUuid::bounded),
        job.class = &*context.payload().shown_name(),
        error = with_causes(error),
        "{message}"
    );
}

impl Counter {
    /// How long jobs have to wait; `None` if they may run.
    async fn pause(
        &self,
        key: &str,
        max: i64,
        decay: Duration,
    ) -> Result<Option<Duration>, cache::Error> {
        match self {
            Self::Cache(limiter) => Ok(if limiter.too_many_attempts(key, max).await? {
                Some(limiter.available_in(key).await? + AFTER_LIMIT)
            } else {
                None
            }),
            Self::Redis(limiter) => {
                let span = limiter.peek(key, max, decay).await?;
                Ok((!span.has_room).then(|| Clock::System.until_whole(span.ends)))
            }
        }
    }

    async fn hit(&self, key: &str, max: i64, decay: Duration) -> Result<(), cache::Error> {
        match self {
            Self::Cache(limiter) => limiter.hit(key, decay).await.map(drop),
            Self::Redis(limiter) => limiter.acquire(key, max, decay).await.map(drop),
        }
    }

    async fn clear(&self, key: &str) -> Result<(), cache::Error> {
        match self {
            Self::Cache(limiter) => limiter.clear(key).await,
            Self::Redis(limiter) => limiter.clear(key).await,
        }
    }
}

middleware!(ThrottlesExceptions, |this, services| this.counter(services));
