//! What operators see of a worker: figures for Prometheus, probes for Kubernetes, its state as JSON, traces of jobs.
//!
//! Figures of jobs are counted by an observer; what only servers know is asked when it is wanted. All of it is
//! served from the overseer's runtime, so that a handler that blocks its thread does not hide the rest.

#[cfg(feature = "cli")]
mod beating;
#[cfg(feature = "cli")]
mod board;
mod endpoint;
#[cfg(feature = "cli")]
mod failures;
#[cfg(feature = "cli")]
mod gather;
#[cfg(feature = "cli")]
mod guard;
#[cfg(feature = "cli")]
mod heartbeat;
#[cfg(feature = "cli")]
mod jobs;
#[cfg(feature = "cli")]
mod listen;
#[cfg(feature = "cli")]
mod minutes;
#[cfg(feature = "cli")]
mod orders;
#[cfg(any(feature = "cli", feature = "otlp"))]
mod outcome;
#[cfg(feature = "cli")]
mod overview;
#[cfg(feature = "cli")]
mod pages;
#[cfg(feature = "cli")]
mod process;
#[cfg(feature = "cli")]
mod systemd;
#[cfg(feature = "cli")]
mod tail;
mod token;
mod traces;
#[cfg(any(feature = "cli", feature = "otlp"))]
mod uncounted;

#[cfg(feature = "cli")]
pub use beating::{About, Heart};
pub use endpoint::{Endpoint, EndpointError};
#[cfg(feature = "cli")]
pub use gather::Sources;
#[cfg(feature = "cli")]
pub use guard::PageOptions;
#[cfg(feature = "cli")]
pub use heartbeat::{LiveWorkers, RunningRecord, Series, WorkerRecord, live_workers};
#[cfg(feature = "cli")]
pub use jobs::JobFigures;
#[cfg(feature = "cli")]
pub use listen::ListenError;
#[cfg(feature = "cli")]
pub use minutes::{MINUTES, Minute, Minutes, Times};
#[cfg(feature = "cli")]
pub use orders::{Failures, Order, OrderResult, Orders, PendingOrder};
#[cfg(feature = "tui")]
pub(crate) use overview::{Chart, Overview, QueueLine};
#[cfg(feature = "cli")]
pub use pages::Telemetry;
#[cfg(feature = "cli")]
pub use systemd::{is_watched_by_systemd, keep_telling_systemd};
#[cfg(feature = "cli")]
pub use tail::{Feed, Heard, Tail, TailEvent, TailLevel};
pub use token::{Token, TokenError};
pub(crate) use traces::current_trace;
pub use traces::{Continues, Sampling, TraceOptions};
#[cfg(feature = "otlp")]
pub use traces::{Traces, TracesError};
