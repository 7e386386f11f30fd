//! `WithoutOverlapping`: one job with a given key at a time.

use std::time::Duration;

use super::ReleasePolicy;
use crate::cache::{name, random_owner};
use crate::handler::{BoxError, JobContext, Next, Template};

/// Lets one job with a given key run at a time, across PHP and artisand workers.
///
/// The lock is in the app's default cache store. It is freed however the handler
/// ends: also after a panic, a timeout or the worker's stop. For a blocking
/// handler it is freed when its function has really returned. A lock that expires
/// ([`expires_after`](Self::expires_after)) is renewed while the handler runs.
///
/// ```
/// use std::time::Duration;
/// use artisand::middleware::WithoutOverlapping;
///
/// let middleware = WithoutOverlapping::new("{podcast.id}".parse()?)
///     .release_after(Duration::from_secs(5))
///     .expires_after(Duration::from_secs(60));
/// # Ok::<(), artisand::handler::TemplateError>(())
/// ```
///
/// # Source
///
/// `Illuminate\Queue\Middleware\WithoutOverlapping` (docs/protocol/cache.md 9).
#[derive(Debug, Clone)]
pub struct WithoutOverlapping {
    key: Template,
    release_after: Duration,
    expires_after: Duration,
    prefix: String,
    is_shared: bool,
    policy: ReleasePolicy,
}

impl WithoutOverlapping {
    /// Runs one job with this key at a time; an empty key means one job of its class.
    pub fn new(key: Template) -> Self {
        Self {
            key,
            release_after: Duration::ZERO,
            expires_after: Duration::ZERO,
            prefix: name::OVERLAP_PREFIX.to_owned(),
            is_shared: false,
            policy: ReleasePolicy::default(),
        }
    }

    /// Sets the wait of a job that finds the lock taken; without a wait unless set.
    #[must_use]
    pub fn release_after(mut self, delay: Duration) -> Self {
        self.release_after = delay;
        self
    }

    /// Drops jobs that find the lock taken; they count as done.
    #[must_use]
    pub fn dont_release(mut self) -> Self {
        self.policy.releases = false;
        self
    }

    /// Sets how long the lock lives if its holder is gone; forever unless set (a day in a database).
    #[must_use]
    pub fn expires_after(mut self, ttl: Duration) -> Self {
        self.expires_after = ttl;
        self
    }

    /// Replaces the key prefix `laravel-queue-overlap:`.
    #[must_use]
    pub fn with_prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Shares the key with jobs of other classes (Laravel 9.32 and later).
    #[must_use]
    pub fn shared(mut self) -> Self {
        self.is_shared = true;
        self
    }

    /// Gives back jobs that find the lock taken as if they had not been popped: their attempt does not count.
    #[must_use]
    pub fn without_spending_attempts(mut self) -> Self {
        self.policy.spends_attempt = false;
        self
    }

    fn lock_name(&self, context: &JobContext) -> Result<String, BoxError> {
        let key = context.render(&self.key)?;
        if self.is_shared {
            return Ok(name::shared_overlap_lock(&self.prefix, &key));
        }
        let version = context.services().version;
        let (class, display_name) = (context.class(), context.display_name());
        Ok(name::overlap_lock(
            version,
            &self.prefix,
            class,
            display_name,
            &key,
        ))
    }

    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let services = context.services();
        let name = self.lock_name(context)?;
        let lock = services
            .middleware
            .cache()?
            .lock(name, random_owner(), self.expires_after);
        let taken = services
            .middleware
            .held
            .take(lock, self.expires_after, context.holds());
        let Some(held) = taken.await? else {
            self.policy.apply(context, self.release_after);
            return Ok(());
        };
        if !next.is_blocking() {
            let result = next.run().await;
            drop(held);
            return result;
        }
        // The blocking function runs on when this future is dropped; it holds a clone of the context.
        let kept = context.holds().keep(held);
        let result = next.run().await;
        context.holds().let_go(kept);
        result
    }
}

middleware!(WithoutOverlapping, |_this, services| services.cache());
