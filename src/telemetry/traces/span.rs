//! What a span says of its job: the conventions of OpenTelemetry for messaging, and what the agents of PHP say besides.

use std::borrow::Cow;
use std::str::FromStr as _;
use std::time::{Duration, Instant, SystemTime};

use opentelemetry::trace::{
    Event, Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState,
};
use opentelemetry::{InstrumentationScope, KeyValue, Value};
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanLinks};

use super::options::TraceOptions;
use crate::handler::{FailureText, JobInfo};
use crate::payload::{JobUuid, SpanIds, Trace, TraceContext};
use crate::telemetry::outcome::OutcomeLabel;
use crate::time::Micros;
use crate::worker::{JobEnd, JobResult};

/// Most bytes of a text; those of payloads and exceptions may be long.
const MAX_TEXT: usize = 4096;
/// Most bytes of a name of a span.
const MAX_NAME: usize = 255;

/// What all spans of a worker have in common.
#[derive(Debug)]
pub(super) struct About {
    scope: InstrumentationScope,
    attributes: Vec<KeyValue>,
}

impl About {
    pub(super) fn of(options: &TraceOptions) -> Self {
        let mut attributes = vec![
            KeyValue::new("messaging.operation.name", "process"),
            KeyValue::new("messaging.operation.type", "process"),
            KeyValue::new("messaging.system", options.system.clone()),
            KeyValue::new("messaging.client.id", client_id()),
        ];
        if let Some((host, port)) = &options.server {
            attributes.push(KeyValue::new("server.address", host.clone()));
            attributes.push(KeyValue::new("server.port", i64::from(*port)));
        }
        let scope = InstrumentationScope::builder("artisand");
        Self {
            scope: scope.with_version(env!("CARGO_PKG_VERSION")).build(),
            attributes,
        }
    }

    /// The span of an attempt that has ended; before the first one, the job has waited since its push.
    pub(super) fn span(&self, end: &JobEnd<'_>, trace: &Trace, is_first: bool) -> SpanData {
        let outcome = OutcomeLabel::of(end);
        let (start_time, end_time) = times(end);
        let state = state(trace.origin.state.as_deref());
        let parent = trace.origin.parent;
        let mut links = SpanLinks::default();
        if let Some(parent) = parent.filter(|_| !trace.is_continued()) {
            let linked = context(parent, true, state.clone());
            links.links.push(Link::with_context(linked));
        }
        let parent = parent.filter(|_| trace.is_continued());
        let state = if parent.is_some() {
            state
        } else {
            TraceState::default()
        };
        let mut attributes = self.attributes(end, outcome);
        if is_first && let Some(age) = age(end.job, &trace.origin) {
            let waited = age.saturating_sub(end.elapsed).as_secs_f64() * 1000.0;
            let latency = KeyValue::new("messaging.message.receive.latency", waited);
            attributes.push(latency);
        }
        let mut events = SpanEvents::default();
        events
            .events
            .extend(end.failure.map(|failure| exception(failure, end_time)));
        SpanData {
            span_context: context(trace.ids, false, state),
            parent_span_id: SpanId::from(parent.map_or(0, |parent| parent.span)),
            parent_span_is_remote: parent.is_some(),
            span_kind: SpanKind::Consumer,
            name: format!("process {}", cut(end.job.queue.as_str(), MAX_NAME)).into(),
            start_time,
            end_time,
            attributes,
            dropped_attributes_count: 0,
            events,
            links,
            status: status(end, outcome),
            instrumentation_scope: self.scope.clone(),
        }
    }

    fn attributes(&self, end: &JobEnd<'_>, outcome: OutcomeLabel) -> Vec<KeyValue> {
        let (job, payload) = (end.job, &end.job.payload);
        let mut all = Attributes(self.attributes.clone());
        all.text("messaging.destination.name", job.queue.as_str());
        let id = payload.id.as_ref().map(|id| cut(id.as_str(), MAX_TEXT));
        let uuid = payload.uuid.as_ref().map(JobUuid::bounded);
        all.maybe(
            "messaging.message.id",
            uuid.or(id).map(|id| id.to_owned().into()),
        );
        all.text("messaging.message.job_name", &payload.shown_name());
        all.add("messaging.message.attempts", i64::from(job.attempts));
        let retries = i64::from(job.attempts.saturating_sub(1));
        all.add("messaging.message.retry.count", retries);
        let limits = &payload.limits;
        all.maybe(
            "messaging.message.max_tries",
            limits.max_tries.map(Value::from),
        );
        all.maybe(
            "messaging.message.max_exceptions",
            limits.max_exceptions.map(Value::from),
        );
        all.maybe(
            "messaging.message.retry_until",
            limits.retry_until.map(|until| until.0.into()),
        );
        let timeout = limits.timeout.map(|timeout| timeout.as_secs_f64());
        all.maybe("messaging.message.timeout", timeout.map(Value::F64));
        all.add(
            "messaging.message.deleted",
            end.result == JobResult::Deleted,
        );
        all.add(
            "messaging.message.released",
            end.result == JobResult::Released,
        );
        all.text("artisand.connection", job.connection.as_str());
        all.text("artisand.job.class", payload.resolve_name());
        all.maybe("artisand.job.id", id.map(|id| id.to_owned().into()));
        all.text("artisand.runner", end.runner.as_str());
        all.text("artisand.outcome", outcome.as_str());
        if let Some(kind) = error_type(end, outcome) {
            all.text("error.type", kind);
        }
        all.0
    }
}

/// Attributes being collected.
struct Attributes(Vec<KeyValue>);

impl Attributes {
    fn add(&mut self, name: &'static str, value: impl Into<Value>) {
        self.0.push(KeyValue::new(name, value.into()));
    }

    fn text(&mut self, name: &'static str, text: &str) {
        self.add(name, cut(text, MAX_TEXT).to_owned());
    }

    fn maybe(&mut self, name: &'static str, value: Option<Value>) {
        self.0.extend(value.map(|value| KeyValue::new(name, value)));
    }
}

/// The ids of a span, unless it is none.
pub(super) fn ids(span: &SpanContext) -> Option<SpanIds> {
    let trace = u128::from_be_bytes(span.trace_id().to_bytes());
    let id = u64::from_be_bytes(span.span_id().to_bytes());
    SpanIds::new(trace, id, span.is_sampled())
}

fn context(ids: SpanIds, is_remote: bool, state: TraceState) -> SpanContext {
    let flags = TraceFlags::NOT_SAMPLED.with_sampled(ids.is_sampled);
    let (trace, span) = (TraceId::from(ids.trace), SpanId::from(ids.span));
    SpanContext::new(trace, span, flags, is_remote, state)
}

fn state(text: Option<&str>) -> TraceState {
    let state = text.and_then(|text| TraceState::from_str(text).ok());
    state.unwrap_or_default()
}

/// When the handler began and ended, by the wall clock.
fn times(end: &JobEnd<'_>) -> (SystemTime, SystemTime) {
    let since = Instant::now().saturating_duration_since(end.ended);
    let now = SystemTime::now();
    let ended = now.checked_sub(since).unwrap_or(now);
    (ended.checked_sub(end.elapsed).unwrap_or(ended), ended)
}

/// What went wrong, in one word; `None` if nothing did.
fn error_type<'a>(end: &JobEnd<'a>, outcome: OutcomeLabel) -> Option<&'a str> {
    match (end.failure, outcome) {
        (Some(failure), _) => Some(&failure.class),
        (None, OutcomeLabel::Lost | OutcomeLabel::Failed) => Some("_OTHER"),
        _ => None,
    }
}

fn status(end: &JobEnd<'_>, outcome: OutcomeLabel) -> Status {
    let text = |text: &str| Status::error(cut(text, MAX_TEXT).to_owned());
    match (end.failure, outcome) {
        (Some(failure), _) => text(&failure.message),
        (None, OutcomeLabel::Lost) => text("another worker had the job at its end"),
        (None, OutcomeLabel::Failed) => text("the job failed"),
        _ => Status::Unset,
    }
}

fn exception(failure: &FailureText, at: SystemTime) -> Event {
    let text = |text: &str| cut(text, MAX_TEXT).to_owned();
    let mut attributes = vec![
        KeyValue::new("exception.type", text(&failure.class)),
        KeyValue::new("exception.message", text(&failure.message)),
    ];
    if !failure.chain.is_empty() {
        let causes = failure.chain.join("\nCaused by: ");
        attributes.push(KeyValue::new("exception.stacktrace", text(&causes)));
    }
    Event::new("exception", at, attributes, 0)
}

/// The beginning of a text, up to this many bytes.
fn cut(text: &str, most: usize) -> &str {
    &text[..text.floor_char_boundary(most)]
}

/// Names this process among the clients of a server.
fn client_id() -> String {
    let name = rustix::system::uname();
    let host: Cow<'_, str> = name.nodename().to_string_lossy();
    format!("{host}:{}", std::process::id())
}

/// How long ago a job was pushed, as far as its payload tells.
pub(super) fn age(job: &JobInfo, origin: &TraceContext) -> Option<Duration> {
    let payload = &job.payload;
    #[expect(clippy::cast_precision_loss, reason = "seconds of this century")]
    let created = payload.created_at.map(|at| at.0 as f64);
    let pushed = payload.pushed_at.or(origin.published).or(created)?;
    let now = Duration::from_micros(Micros::now().0);
    // Clocks of producer and worker may differ.
    Duration::try_from_secs_f64(now.as_secs_f64() - pushed).ok()
}
