//! Debounced jobs: of several dispatched close together, the last one runs (Laravel 13.6 and later).

use crate::cache::name;
use crate::handler::{BoxError, JobContext, Next, Services, Template};
use crate::payload::Command;
use crate::payload::JobUuid;
use crate::php::Value;
use crate::php::json::Graph;

/// Deletes jobs that a later job has replaced, before any other middleware runs.
///
/// A debounced job carries an owner; the cache holds the owner of the last
/// dispatched job. If the cache has no entry, the job runs. A replaced job is
/// deleted without any effect on its chain, its batch or a lock.
///
/// The id is the result of `debounceId` in PHP; a mapping sets it with
/// `debounce`. If the manifest says that the class chooses its own store
/// (`debounceVia`), the job is left to PHP.
///
/// # Source
///
/// `Illuminate\Queue\CallQueuedHandler::commandShouldBeDebounced`,
/// `Illuminate\Bus\DebounceLock` (docs/protocol/cache.md 12).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debounce {
    id: Template,
}

/// Last step of the pipeline: forgets when the first debounced job was dispatched, because one of them runs now.
pub(super) struct ForgetFirst {
    id: Template,
}

impl Debounce {
    /// Jobs with the same id replace each other.
    pub fn new(id: Template) -> Self {
        Self { id }
    }

    /// The last step of the pipeline, for versions of Laravel that have it.
    pub(super) fn at_the_end(&self, services: &Services) -> Option<ForgetFirst> {
        // 13.31 has this step, versions up to 13.26 do not.
        let id = self.id.clone();
        services
            .version
            .is_at_least(13, 31)
            .then_some(ForgetFirst { id })
    }

    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let Some(owner) = owner(context)? else {
            return next.run().await;
        };
        let key = key(&self.id, context)?;
        let current = context.services().middleware.cache()?.get(&key).await?;
        match current {
            Some(current) if !matches!(&current, Value::String(current) if *current == owner) => {
                tracing::debug!(
                    job.uuid = context.uuid().map(JobUuid::bounded),
                    job.class = &*context.payload().shown_name(),
                    "a later job has replaced this one"
                );
                context.discard();
                Ok(())
            }
            _ => next.run().await,
        }
    }
}

fn key(id: &Template, context: &JobContext) -> Result<String, BoxError> {
    let id = context.render(id)?;
    Ok(name::debounce_owner(
        context.class(),
        context.display_name(),
        &id,
    ))
}

/// The owner in the job, if there is one.
fn owner(context: &JobContext) -> Result<Option<Vec<u8>>, BoxError> {
    // For a listener or a notification the owner is on the wrapper.
    let command = Command::of(context.payload())?;
    let Some(command) = command else {
        return Ok(None);
    };
    let job = command.to_value()?;
    let graph = Graph::new(&job);
    let owner = job
        .as_object()
        .and_then(|job| graph.property(job, "debounceOwner"))
        .and_then(Value::as_bytes);
    // PHP's `empty()` is true for these.
    let owner = owner.filter(|owner| !matches!(*owner, b"" | b"0"));
    Ok(owner.map(<[u8]>::to_vec))
}

middleware!(Debounce, |_this, services| services.cache());

impl ForgetFirst {
    async fn run(&self, context: &JobContext, next: Next<'_>) -> Result<(), BoxError> {
        let key = key(&self.id, context)?;
        let key = format!("{key}:first_dispatched_at");
        context.services().middleware.cache()?.forget(&key).await?;
        next.run().await
    }
}

middleware!(ForgetFirst);
