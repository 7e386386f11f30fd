//! Where traces go, and what is traced.

use std::fmt;
use std::time::Duration;

use serde::Deserialize;

/// Where traces go, and what is traced.
#[derive(Clone, PartialEq)]
pub struct TraceOptions {
    /// The collector's URL for traces, with its path.
    pub endpoint: String,
    /// Headers of requests; some are secrets.
    pub headers: Vec<(String, String)>,
    /// How long the collector may take to answer.
    pub timeout: Duration,
    /// Which traces are recorded.
    pub sampling: Sampling,
    /// How a job's span belongs to the one that pushed the job.
    pub continues: Continues,
    /// What all spans say of this process (`service.name` and so on).
    pub resource: Vec<(String, String)>,
    /// `messaging.system`.
    pub system: String,
    /// Host and port of the queue's server.
    pub server: Option<(String, u16)>,
}

impl Default for TraceOptions {
    fn default() -> Self {
        Self {
            endpoint: "http://localhost:4318/v1/traces".to_owned(),
            headers: Vec::new(),
            timeout: Duration::from_secs(10),
            sampling: Sampling::default(),
            continues: Continues::default(),
            resource: Vec::new(),
            system: "redis".to_owned(),
            server: None,
        }
    }
}

impl fmt::Debug for TraceOptions {
    /// Without the values of headers, and without the user that a URL may name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let headers: Vec<_> = self.headers.iter().map(|(name, _)| name).collect();
        f.debug_struct("TraceOptions")
            .field("headers", &headers)
            .field("timeout", &self.timeout)
            .field("sampling", &self.sampling)
            .field("continues", &self.continues)
            .field("resource", &self.resource)
            .finish_non_exhaustive()
    }
}

/// How a job's span belongs to the one that pushed the job.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Continues {
    /// As its child, in the same trace, as the agents of PHP do it.
    #[default]
    Parent,
    /// By a link: each attempt is a trace of its own.
    Link,
    /// As its child; by a link if the job was pushed more than a quarter of an hour ago.
    Auto,
}

/// Which traces are recorded (`OTEL_TRACES_SAMPLER`).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sampling {
    /// Whether the decision of the span that pushed the job holds.
    pub is_parent_based: bool,
    /// The share of other traces that are recorded, from 0 to 1.
    pub share: f64,
}

impl Default for Sampling {
    fn default() -> Self {
        Self {
            is_parent_based: true,
            share: 1.0,
        }
    }
}
