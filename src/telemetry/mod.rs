//! What operators see of a worker: figures for Prometheus, probes for Kubernetes, its state as JSON, traces of jobs.
//!
//! Figures of jobs are counted by an observer; what only servers know is asked when it is wanted. All of it is
//! served from the overseer's runtime, so that a handler that blocks its thread does not hide the rest.

mod endpoint;
#[cfg(feature = "cli")]
mod gather;
#[cfg(feature = "cli")]
mod jobs;
#[cfg(feature = "cli")]
mod listen;
#[cfg(any(feature = "cli", feature = "otlp"))]
mod outcome;
#[cfg(feature = "cli")]
mod pages;
#[cfg(feature = "cli")]
mod process;
#[cfg(feature = "cli")]
mod systemd;
mod traces;

pub use endpoint::{Endpoint, EndpointError};
#[cfg(feature = "cli")]
pub use gather::Sources;
#[cfg(feature = "cli")]
pub use jobs::JobFigures;
#[cfg(feature = "cli")]
pub use listen::ListenError;
#[cfg(feature = "cli")]
pub use pages::Telemetry;
#[cfg(feature = "cli")]
pub use systemd::{is_watched_by_systemd, keep_telling_systemd};
pub(crate) use traces::current_trace;
pub use traces::{Continues, Sampling, TraceOptions};
#[cfg(feature = "otlp")]
pub use traces::{Traces, TracesError};
