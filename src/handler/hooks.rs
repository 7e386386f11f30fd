//! The app's payload hooks (`Queue::createPayloadUsing`): PHP code that adds fields to the payloads of new jobs.

use std::fmt::Debug;
use std::sync::Arc;

use serde_json::value::RawValue;

use super::BoxFuture;
use crate::queue::QueueName;

/// Fields of a payload, with their JSON.
pub(crate) type Fields = Vec<(Box<str>, Box<RawValue>)>;

/// Runs the hooks in PHP.
pub(crate) trait RunsHooks: Debug + Send + Sync {
    /// What the hooks add to this payload on its way to a queue of this connection; an error says why that is not
    /// known.
    fn fields<'a>(
        &'a self,
        payload: &'a str,
        connection: &'a str,
        queue: &'a QueueName,
    ) -> BoxFuture<'a, Result<Fields, String>>;
}

/// What becomes of a job that artisand is to push, if the app has payload hooks.
#[derive(Debug, Clone, Default)]
pub(crate) enum Hooks {
    /// Only PHP can push it.
    #[default]
    OnlyPhp,
    /// It is pushed without what they would add.
    Skip,
    /// PHP is asked what they add.
    #[cfg_attr(
        not(any(feature = "cli", test)),
        expect(dead_code, reason = "only `queue:work` starts PHP for it")
    )]
    Ask(Arc<dyn RunsHooks>),
}
