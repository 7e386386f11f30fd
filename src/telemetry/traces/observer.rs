//! Begins and ends the spans of jobs.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::TraceId;
use opentelemetry::trace::SpanKind;
use opentelemetry_sdk::trace::{
    IdGenerator as _, RandomIdGenerator, Sampler, SamplingDecision, ShouldSample as _,
};
use tokio::runtime::Handle;

use super::export::{Exporter, TracesError};
use super::options::{Continues, Sampling, TraceOptions};
use super::span::{About, age};
use crate::handler::JobInfo;
use crate::payload::{SpanIds, Trace, TraceContext};
use crate::task::Losses;
use crate::telemetry::uncounted::Uncounted;
use crate::worker::{Event, JobEnd, Observer};

/// A job that was pushed longer ago is linked, and no child, if the settings leave that open.
const LONG_AGO: Duration = Duration::from_secs(15 * 60);

/// Traces the jobs of a worker. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Traces(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    exporter: Exporter,
    about: About,
    sampling: Sampling,
    continues: Continues,
    uncounted: Mutex<Uncounted>,
}

impl Traces {
    /// Begins to trace; requests are sent on this runtime, from a thread that waits for them. `losses` hears of spans
    /// that the collector did not take; of those that found no room, only the log tells at the end.
    ///
    /// # Errors
    ///
    /// The collector's URL or one of the settings cannot be used. That the collector does not answer is no error.
    pub fn start(
        options: &TraceOptions,
        losses: Losses,
        runtime: &Handle,
    ) -> Result<Self, TracesError> {
        Ok(Self(Arc::new(Inner {
            exporter: Exporter::start(options, losses, runtime)?,
            about: About::of(options),
            sampling: options.sampling,
            continues: options.continues,
            uncounted: Mutex::default(),
        })))
    }

    /// Sends the spans that are left; gives up after some seconds.
    pub async fn finish(self) {
        let ended = tokio::task::spawn_blocking(move || self.0.exporter.finish());
        if ended.await.is_err() {
            tracing::warn!("the last traces could not be sent: their thread panicked");
        }
    }

    /// The ids of a new span, and what the payload of its job says.
    fn begin(&self, job: &JobInfo) -> Trace {
        let origin = TraceContext::read(&job.body);
        let is_child = match self.0.continues {
            Continues::Parent => true,
            Continues::Link => false,
            Continues::Auto => age(job, &origin).is_none_or(|age| age <= LONG_AGO),
        };
        let parent = origin.parent.filter(|_| is_child);
        let random = RandomIdGenerator::default();
        let trace = match parent {
            Some(parent) => parent.trace,
            None => u128::from_be_bytes(random.new_trace_id().to_bytes()),
        };
        let ids = SpanIds {
            trace,
            span: u64::from_be_bytes(random.new_span_id().to_bytes()),
            is_sampled: self.0.sampling.keeps(parent, trace),
        };
        Trace { ids, origin }
    }

    fn end(&self, end: &JobEnd<'_>, trace: &Trace) {
        // A panic leaves all that was noted, or all but one.
        let uncounted = self.0.uncounted.lock();
        let mut uncounted = uncounted.unwrap_or_else(PoisonError::into_inner);
        let is_first = uncounted.is_first(end.job);
        if !end.is_counted {
            uncounted.note(end.job);
        }
        drop(uncounted);
        if trace.ids.is_sampled {
            let span = self.0.about.span(end, trace, is_first);
            self.0.exporter.take(span);
        }
    }
}

impl Observer for Traces {
    fn on_event(&self, event: &Event<'_>) {
        // Only the event of a failure has the reason of a job that failed itself.
        let end = match event {
            Event::JobFailed(end) => end,
            Event::JobAttempted(end) if !end.has_failed => end,
            _ => return,
        };
        if let Some(trace) = &end.job.trace {
            self.end(end, trace);
        }
    }

    /// Spans do not depend on the order of jobs.
    fn is_in_order(&self) -> bool {
        false
    }

    fn trace(&self, job: &JobInfo) -> Option<Arc<Trace>> {
        Some(Arc::new(self.begin(job)))
    }
}

impl Sampling {
    /// Whether the spans of a trace are recorded.
    fn keeps(self, parent: Option<SpanIds>, trace: u128) -> bool {
        if let Some(parent) = parent.filter(|_| self.is_parent_based) {
            return parent.is_sampled;
        }
        let (sampler, kind) = (Sampler::TraceIdRatioBased(self.share), SpanKind::Consumer);
        let result = sampler.should_sample(None, TraceId::from(trace), "", &kind, &[], &[]);
        result.decision == SamplingDecision::RecordAndSample
    }
}
