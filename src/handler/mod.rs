//! Handlers: code that runs jobs. The router in `src/routing` chooses the handler of each job.
//!
//! A handler only makes requests: [`JobContext`] records "release me", "fail me"
//! or "delete me", and only the worker settles the job on its queue. The handler's
//! result, a panic and a timeout all become one outcome.
//!
//! # Middleware
//!
//! The shape is Laravel's pipeline. A middleware gets the job's context and
//! [`Next`]; it runs `next`, or asks the context for a release, a failure or the
//! deletion of the job and returns without it. A middleware that does neither has
//! skipped the job, which then counts as done: its chain goes on, its batch
//! counts it as a success.
//!
//! A job passes first through the middleware of its handler, then through the
//! middleware of its mapping in `artisand.toml` (both replace the `middleware()`
//! method of the PHP class, whose result is not in the payload), then through the
//! middleware in its own `middleware` property. All of it runs within the job's
//! timeout.

pub(crate) mod batch;
mod context;
pub(crate) mod dispatch;
mod failure;
mod function;
mod hold;
mod hooks;
#[cfg(feature = "http")]
mod http;
mod input;
mod limiter;
mod model;
mod panics;
mod rows;
mod services;
mod shadow;
mod template;
mod traits;
pub mod view;

pub use batch::{AddError, BatchHandle, BatchJob};
pub use context::JobContext;
pub use failure::{BoxError, BoxFuture, FailureText};
pub use function::{Function, blocking, function};
pub(crate) use hooks::{Fields, Hooks, RunsHooks};
pub(crate) use input::read;
pub use input::{InputError, input};
pub use limiter::{Limit, Limiter};
pub use model::{ModelError, ModelId, ModelIdentifier, ModelKey, ModelNotFound};
pub use rows::{Collection, Model};
pub use shadow::{EndInPhp, RunInPhp};
pub use traits::{Handler, Middleware, Next};

#[cfg(not(feature = "internals"))]
pub(crate) use inside::*;
#[cfg(feature = "internals")]
pub use inside::*;
pub(crate) use panics::{panic_text, remember_places};

/// What the rest of the crate uses, and users do not need.
mod inside {
    pub use super::context::{ChainEdit, JobInfo, Request};
    pub use super::function::{Async, Blocking, OnThread};
    pub use super::hold::HeldLocks;
    #[cfg(feature = "http")]
    pub use super::http::{Http, HttpClient, HttpOptions, HttpSetupError, SecretSource};
    #[cfg(all(feature = "http", feature = "internals"))]
    pub use super::http::{HttpAnswer, Verdict};
    pub use super::limiter::LimitTemplate;
    pub use super::model::Models;
    pub use super::services::{Gap, MiddlewareServices, Missing, Services};
    pub use super::template::{Path, PathError, Template, TemplateError};
    pub use super::traits::{Panicked, Pipeline};
    pub use crate::handler::dispatch::DraftError;
}

/// The longest wait that a program or a server can ask for, in seconds.
pub(crate) const MAX_WAIT: u64 = 24 * 60 * 60;
