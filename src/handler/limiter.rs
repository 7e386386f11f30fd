//! Rate limiters: how many jobs may run per span of time.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use super::failure::BoxError;
use super::template::Template;
use crate::php::Value;

/// A maximum number of jobs per span of time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limit {
    /// Most jobs in one span.
    pub max: i64,
    /// Length of a span, in whole seconds.
    pub per: Duration,
    /// The key that is counted separately; if empty, all jobs are counted together.
    pub by: String,
}

/// A limit as written in `[limiters.NAME]`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimitTemplate {
    /// See [`Limit::max`].
    pub max: i64,
    /// See [`Limit::per`].
    pub per: Duration,
    /// See [`Limit::by`].
    pub by: Template,
}

type Limits = dyn Fn(&Value) -> Result<Vec<Limit>, BoxError> + Send + Sync;

/// The limits of a job, like the closure of `RateLimiter::for(NAME, ..)` in PHP. A job without limits runs.
#[derive(Clone)]
pub struct Limiter {
    limits: Arc<Limits>,
    /// Whether the limits depend on the job.
    reads_job: bool,
}

impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Limiter")
    }
}

impl Limiter {
    /// A limiter that computes the limits from the job's [properties](super::JobContext::properties).
    pub fn new(
        limits: impl Fn(&Value) -> Result<Vec<Limit>, BoxError> + Send + Sync + 'static,
    ) -> Self {
        Self {
            limits: Arc::new(limits),
            reads_job: true,
        }
    }

    /// The same limits for every job, counted by the job's properties.
    pub fn of(limits: Vec<LimitTemplate>) -> Self {
        let reads_job = limits.iter().any(|limit| limit.by.has_paths());
        let limits = move |job: &Value| {
            let limit = |template: &LimitTemplate| {
                Ok(Limit {
                    max: template.max,
                    per: template.per,
                    by: template.by.render(job)?,
                })
            };
            limits.iter().map(limit).collect()
        };
        Self {
            reads_job,
            ..Self::new(limits)
        }
    }

    /// Whether the limits depend on the job, whose properties are read for them.
    pub(crate) fn reads_job(&self) -> bool {
        self.reads_job
    }

    /// The limits of a job with these properties.
    pub(crate) fn limits(&self, job: &Value) -> Result<Vec<Limit>, BoxError> {
        (self.limits)(job)
    }
}
