//! Middleware in the payload of a job: its `middleware` property, and the marks of a debounced job.
//!
//! artisand implements only the framework's own middleware classes. A job with
//! any other class does not run without it: it is left to PHP.

use std::sync::Arc;
use std::time::Duration;

use super::{
    DEFAULT_REDIS, Debounce, RateLimited, SkipIfBatchCancelled, ThrottlesExceptions,
    WithoutOverlapping,
};
use crate::handler::{
    BoxError, BoxFuture, JobContext, Middleware, Next, Pipeline, Services, Template,
};
use crate::payload::{Command, Kind};
use crate::php::json::Graph;
use crate::php::{ClassName, Object, PropertyScan, Value};

/// Why artisand cannot run a job as PHP would.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotInRust {
    /// A middleware class that only PHP can run.
    #[error("its `middleware` property holds {class}, which only PHP can run")]
    Unknown {
        /// The class, or the kind of value that is there instead.
        class: String,
    },
    /// A middleware that artisand implements, but not with these properties.
    #[error("its `middleware` property holds {class}, {problem}")]
    Unusable {
        /// The class.
        class: String,
        /// What prevents it, and what would work.
        problem: String,
    },
    /// The job is debounced, and the mapping does not set `debounce`.
    #[error(
        "it is debounced, and its debounce id is not in the bytes: set `debounce` in its mapping"
    )]
    Debounced,
    /// The job is debounced through a store that its class chooses.
    #[error(
        "it is debounced, and `debounceVia()` of its class chooses the cache store, which only PHP can run"
    )]
    DebouncedVia,
    /// The object cannot be read.
    #[error("its object cannot be read")]
    Unreadable,
}

const MIDDLEWARE: &str = "Illuminate\\Queue\\Middleware\\";

/// Adds the middleware in a job's payload to the pipeline of its mapping.
pub(crate) fn in_payload(
    command: &Command,
    pipeline: &Pipeline,
    debounce: Option<&Debounce>,
    services: &Services,
) -> Result<Pipeline, NotInRust> {
    static OF_JOB: PropertyScan = PropertyScan::of_any_visibility("middleware");
    static OWNER: PropertyScan = PropertyScan::of_any_visibility("debounceOwner");
    let bytes = command.as_bytes();
    let has_middleware = OF_JOB.may_hold_something(bytes);
    let is_debounced = services.version.is_at_least(13, 6) && OWNER.may_hold_something(bytes);
    if !has_middleware && !is_debounced {
        return Ok(pipeline.clone());
    }
    let value = command.to_value().map_err(|_| NotInRust::Unreadable)?;
    let graph = Graph::new(&value);
    let job = value.as_object().ok_or(NotInRust::Unreadable)?;
    let owner = graph
        .property(job, "debounceOwner")
        .and_then(Value::as_bytes);
    let is_debounced = is_debounced && owner.is_some_and(|owner| !matches!(owner, b"" | b"0"));
    let debounce = match (is_debounced, debounce) {
        (true, None) => return Err(NotInRust::Debounced),
        (true, Some(_)) if chooses_store(command, job, &graph, services) => {
            return Err(NotInRust::DebouncedVia);
        }
        (true, Some(debounce)) => Some(debounce),
        (false, _) => None,
    };
    let mut all: Vec<Arc<dyn Middleware>> = Vec::new();
    if let Some(debounce) = debounce {
        all.push(Arc::new(debounce.clone()));
    }
    all.extend(pipeline.iter().cloned());
    match graph.property(job, "middleware") {
        None | Some(Value::Null) => {}
        Some(Value::Array(list)) => {
            for one in list.values() {
                all.push(read(graph.resolve(one), &graph, services)?);
            }
        }
        Some(other) => {
            let class = other.kind_name().into_owned();
            return Err(NotInRust::Unknown { class });
        }
    }
    if let Some(end) = debounce.and_then(|debounce| debounce.at_the_end(services)) {
        all.push(Arc::new(end));
    }
    Ok(all.into_iter().collect())
}

/// Whether the class of a debounced job, or its listener, chooses the store by a method; false without a manifest.
fn chooses_store(command: &Command, job: &Object, graph: &Graph<'_>, services: &Services) -> bool {
    let listener = match Kind::of_class(command.class()) {
        Kind::Listener => graph.property(job, "class").and_then(Value::as_str),
        _ => None,
    };
    let class = listener.and_then(ClassName::in_code);
    let class = class.as_ref().unwrap_or(command.class());
    let manifest = services.manifest.as_ref();
    let class = manifest.and_then(|manifest| manifest.class(class));
    class.is_some_and(|class| class.debounce_via)
}

/// The properties of a middleware object.
struct Properties<'v> {
    object: &'v Object,
    graph: &'v Graph<'v>,
}

impl Properties<'_> {
    fn get(&self, name: &str) -> Option<&Value> {
        let value = self.graph.property(self.object, name);
        value.filter(|value| !value.is_null())
    }

    fn unusable(&self, problem: impl Into<String>) -> NotInRust {
        NotInRust::Unusable {
            class: self.object.class.as_str().to_owned(),
            problem: problem.into(),
        }
    }

    fn wrong(&self, name: &str, value: &Value) -> NotInRust {
        self.unusable(format!("and its `{name}` is {}", value.kind_name()))
    }

    fn int(&self, name: &str) -> Result<Option<i64>, NotInRust> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(*value)),
            Some(value) => Err(self.wrong(name, value)),
        }
    }

    fn seconds(&self, name: &str) -> Result<Option<Duration>, NotInRust> {
        let seconds = self.int(name)?;
        Ok(seconds.map(crate::time::seconds))
    }

    fn text(&self, name: &str) -> Result<Option<String>, NotInRust> {
        match self.get(name) {
            None => Ok(None),
            Some(Value::Int(value)) => Ok(Some(value.to_string())),
            Some(value) => match value.as_str() {
                Some(text) => Ok(Some(text.to_owned())),
                None => Err(self.wrong(name, value)),
            },
        }
    }

    fn flag(&self, name: &str, default: bool) -> Result<bool, NotInRust> {
        match self.get(name) {
            None => Ok(default),
            Some(Value::Bool(value)) => Ok(*value),
            Some(value) => Err(self.wrong(name, value)),
        }
    }

    /// Refuses properties that can only be PHP code.
    fn without(&self, names: &[&str]) -> Result<(), NotInRust> {
        for name in names {
            match self.get(name) {
                None => {}
                Some(Value::Array(list)) if list.pairs.is_empty() => {}
                Some(_) => {
                    return Err(self.unusable(format!("and its `{name}` only PHP can use")));
                }
            }
        }
        Ok(())
    }
}

fn read(
    value: &Value,
    graph: &Graph<'_>,
    services: &Services,
) -> Result<Arc<dyn Middleware>, NotInRust> {
    let unknown = |class: &str| NotInRust::Unknown {
        class: class.to_owned(),
    };
    let Value::Object(object) = value else {
        // The value is a name that PHP's container would resolve to an object.
        return Err(unknown(value.as_str().unwrap_or(&value.kind_name())));
    };
    let class = object.class.as_str();
    let name = class
        .get(..MIDDLEWARE.len())
        .filter(|start| start.eq_ignore_ascii_case(MIDDLEWARE))
        .map(|start| class[start.len()..].to_ascii_lowercase());
    let of = Properties { object, graph };
    let middleware: Arc<dyn Middleware> = match name.as_deref() {
        Some("withoutoverlapping") => Arc::new(overlap(&of)?),
        Some(name @ ("ratelimited" | "ratelimitedwithredis")) => {
            Arc::new(limited(&of, name.ends_with("redis"), services)?)
        }
        Some(name @ ("throttlesexceptions" | "throttlesexceptionswithredis")) => {
            Arc::new(throttle(&of, name.ends_with("redis"), services)?)
        }
        Some("skip") => Arc::new(Frozen::skip(of.flag("skip", false)?)),
        Some("release") => Arc::new(Frozen {
            lets_through: !of.flag("release", false)?,
            release_after: Some(of.seconds("releaseAfter")?.unwrap_or_default()),
        }),
        Some("skipifbatchcancelled") => Arc::new(SkipIfBatchCancelled),
        _ => return Err(unknown(class)),
    };
    // This middleware comes from a payload, so it was not checked when the worker started.
    middleware
        .check(services)
        .map_err(|missing| of.unusable(format!("and {missing}")))?;
    Ok(middleware)
}

fn overlap(of: &Properties<'_>) -> Result<WithoutOverlapping, NotInRust> {
    let key = of.text("key")?.unwrap_or_default();
    let mut middleware = WithoutOverlapping::new(Template::literal(key))
        .expires_after(of.seconds("expiresAfter")?.unwrap_or_default());
    middleware = match of.seconds("releaseAfter")? {
        Some(delay) => middleware.release_after(delay),
        None => middleware.dont_release(),
    };
    if let Some(prefix) = of.text("prefix")? {
        middleware = middleware.with_prefix(prefix);
    }
    Ok(if of.flag("shareKey", false)? {
        middleware.shared()
    } else {
        middleware
    })
}

fn limited(
    of: &Properties<'_>,
    uses_redis: bool,
    services: &Services,
) -> Result<RateLimited, NotInRust> {
    let name = of.text("limiterName")?.unwrap_or_default();
    services
        .middleware
        .limiter(&name)
        .map_err(|missing| of.unusable(format!("and {missing}")))?;
    let mut middleware = RateLimited::new(name);
    if let Some(delay) = of.seconds("releaseAfter")? {
        middleware = middleware.release_after(delay);
    }
    if uses_redis {
        middleware = middleware.on_redis(redis_of(of, services)?);
    }
    Ok(if of.flag("shouldRelease", true)? {
        middleware
    } else {
        middleware.dont_release()
    })
}

fn throttle(
    of: &Properties<'_>,
    uses_redis: bool,
    services: &Services,
) -> Result<ThrottlesExceptions, NotInRust> {
    #[rustfmt::skip]
    of.without(&["whenCallback", "reportCallback", "deleteWhenCallbacks", "failWhenCallbacks"])?;
    let minutes = |name: &str| Ok(of.seconds(name)?.map(|minutes| minutes.saturating_mul(60)));
    let decay = match of.seconds("decaySeconds")? {
        Some(decay) => Some(decay),
        None => minutes("decayMinutes")?,
    };
    let decay = decay.unwrap_or(Duration::from_secs(600));
    let mut middleware = ThrottlesExceptions::new(of.int("maxAttempts")?.unwrap_or(10), decay)
        .backoff(minutes("retryAfterMinutes")?.unwrap_or_default())
        .by(Template::literal(of.text("key")?.unwrap_or_default()));
    if of.flag("byJob", false)? {
        middleware = middleware.by_job();
    }
    if let Some(prefix) = of.text("prefix")? {
        middleware = middleware.with_prefix(prefix);
    }
    Ok(if uses_redis {
        middleware.on_redis(redis_of(of, services)?)
    } else {
        middleware
    })
}

/// The Redis connection that a middleware names; `default` if it names none.
fn redis_of(of: &Properties<'_>, services: &Services) -> Result<String, NotInRust> {
    let name = of.text("connectionName")?;
    let name = name.filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| DEFAULT_REDIS.to_owned());
    match services.middleware.redis(&name) {
        Ok(_) => Ok(name),
        Err(missing) => Err(of.unusable(format!("and {missing}"))),
    }
}

/// `Skip` and `Release` with the result that PHP computed when it dispatched the job.
struct Frozen {
    lets_through: bool,
    /// The wait of `Release`; `None` for `Skip`, which drops the job.
    release_after: Option<Duration>,
}

impl Frozen {
    fn skip(skips: bool) -> Self {
        Self {
            lets_through: !skips,
            release_after: None,
        }
    }
}

impl Middleware for Frozen {
    fn handle<'a>(
        &'a self,
        context: &'a JobContext,
        next: Next<'a>,
    ) -> BoxFuture<'a, Result<(), BoxError>> {
        if self.lets_through {
            return next.run();
        }
        if let Some(delay) = self.release_after {
            context.release(delay);
        }
        Box::pin(std::future::ready(Ok(())))
    }
}
