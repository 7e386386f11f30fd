//! Traces of jobs for collectors of OpenTelemetry.
//!
//! | file | what it holds |
//! | --- | --- |
//! | `options.rs` | where traces go |
//! | `observer.rs` | begins and ends the spans of jobs |
//! | `span.rs` | what a span says of its job |
//! | `export.rs` | sends spans to the collector |
//!
//! A span is made when its job has ended and is settled; while the job runs, only the ids exist, which the jobs that
//! it pushes carry on. So no span is left open, whatever becomes of a job; an attempt that ends with its process has
//! none. Jobs that PHP runs have no span here: their payload is unchanged, and the app's own agent traces them.

#[cfg(feature = "otlp")]
mod export;
#[cfg(feature = "otlp")]
mod observer;
mod options;
#[cfg(feature = "otlp")]
mod span;

#[cfg(feature = "otlp")]
pub use export::TracesError;
#[cfg(feature = "otlp")]
pub use observer::Traces;
pub use options::{Continues, Sampling, TraceOptions};

use crate::payload::Trace;

/// The span in which this thread is at the moment, for jobs that are dispatched outside of handlers.
#[cfg(feature = "otlp")]
pub(crate) fn current_trace() -> Option<Trace> {
    use opentelemetry::trace::TraceContextExt as _;

    opentelemetry::Context::map_current(|context| {
        let span = context.span();
        let span = span.span_context();
        let ids = span::ids(span)?;
        Some(Trace::outside(ids, &span.trace_state().header()))
    })
}

/// Without OpenTelemetry there is no span outside of handlers.
#[cfg(not(feature = "otlp"))]
pub(crate) fn current_trace() -> Option<Trace> {
    None
}
