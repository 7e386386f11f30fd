//! Trace context in payloads: which span pushed a job, in the keys of all agents that PHP apps use.
//!
//! The keys stand at the top of the payload (docs/protocol/payload.md 14). Their texts come from any program that
//! pushes jobs, so each is read up to a length, and one that is not valid counts as missing. The first of these that is
//! valid names the parent:
//!
//! 1. `traceparent` with `tracestate`: W3C Trace Context, as OpenTelemetry and New Relic write it;
//! 2. `dd_headers`: Datadog's object, by its own `traceparent` or else by its decimal ids;
//! 3. `sentry_trace_parent_data`;
//! 4. `b3`, or `X-B3-TraceId` and its fellows.
//!
//! Jobs that a traced job pushes get `traceparent` always, and the keys of Sentry and Datadog if the job itself had
//! them, so that a PHP worker with one of these agents goes on with the trace.

mod ids;
mod read;

pub use ids::SpanIds;
pub use read::TraceContext;

use std::borrow::Cow;

use serde_json::value::{RawValue, to_raw_value};

use crate::time::Micros;

/// Keys of Sentry.
const SENTRY: [&str; 3] = [
    "sentry_trace_parent_data",
    "sentry_baggage_data",
    "sentry_publish_time",
];
/// The key of Datadog.
const DATADOG: &str = "dd_headers";

/// A field of a payload, with its JSON.
type Field = (Box<str>, Box<RawValue>);

/// The span of an attempt, and the trace context that its job came with.
#[derive(Debug, Clone, PartialEq)]
pub struct Trace {
    /// The span.
    pub ids: SpanIds,
    /// What the payload of the job says.
    pub origin: TraceContext,
}

impl Trace {
    /// A span that does not run a job, with its `tracestate`.
    #[cfg(feature = "otlp")]
    pub(crate) fn outside(ids: SpanIds, state: &str) -> Self {
        let origin = TraceContext {
            parent: Some(ids),
            state: (!state.is_empty()).then(|| state.into()),
            ..TraceContext::default()
        };
        Self { ids, origin }
    }

    /// The header `traceparent` for requests of the job.
    pub fn traceparent(&self) -> String {
        self.ids.to_string()
    }

    /// The header `tracestate` for requests of the job.
    pub fn tracestate(&self) -> Option<&str> {
        self.origin.state.as_deref().filter(|_| self.is_continued())
    }

    /// Whether the span belongs to the trace of the payload; otherwise it is linked to it.
    pub fn is_continued(&self) -> bool {
        (self.origin.parent).is_some_and(|parent| parent.trace == self.ids.trace)
    }

    /// The fields of a job that the span pushes; `others` are those that it has besides.
    pub(super) fn fields(&self, others: &[Field]) -> Vec<Field> {
        let has = |names: &[&str]| others.iter().any(|(name, _)| names.contains(&&**name));
        let origin = &self.origin;
        let mut fields = vec![text_field("traceparent", &self.traceparent())];
        fields.extend(self.tracestate().map(|text| text_field("tracestate", text)));
        let baggage = origin.baggage.as_deref();
        fields.extend(baggage.map(|text| text_field("baggage", text)));
        if origin.has_sentry || has(&SENTRY) {
            fields.extend(self.sentry());
        }
        if origin.datadog.is_some() || has(&[DATADOG]) {
            fields.extend(self.datadog());
        }
        fields
    }

    fn sentry(&self) -> [Field; 3] {
        let ids = self.ids;
        let sampled = u8::from(ids.is_sampled);
        let parent = format!("{:032x}-{:016x}-{sampled}", ids.trace, ids.span);
        let baggage = self.origin.sentry_baggage.as_deref();
        let baggage = baggage.filter(|_| self.is_continued()).unwrap_or_default();
        let now = RawValue::from_string(Micros::now().to_string());
        [
            text_field(SENTRY[0], &parent),
            text_field(SENTRY[1], baggage),
            (SENTRY[2].into(), now.unwrap_or_default()),
        ]
    }

    fn datadog(&self) -> Option<Field> {
        let (ids, kept) = (self.ids, self.origin.datadog.as_ref());
        let kept = kept.filter(|_| self.is_continued());
        let (high, low) = (ids.trace >> 64, ids.trace & u128::from(u64::MAX));
        let priority = kept.filter(|kept| kept.keeps() == ids.is_sampled);
        let priority = priority.and_then(|kept| kept.priority.as_deref());
        let mut headers = serde_json::Map::new();
        let mut set = |name: &str, value: Cow<'_, str>| {
            headers.insert(name.to_owned(), value.into());
        };
        set("x-datadog-trace-id", low.to_string().into());
        set("x-datadog-parent-id", ids.span.to_string().into());
        let plain = if ids.is_sampled { "1" } else { "0" };
        set(
            "x-datadog-sampling-priority",
            priority.unwrap_or(plain).into(),
        );
        if high != 0 {
            set("x-datadog-tags", format!("_dd.p.tid={high:016x}").into());
        }
        if let Some(origin) = kept.and_then(|kept| kept.origin.as_deref()) {
            set("x-datadog-origin", origin.into());
        }
        set("traceparent", self.traceparent().into());
        if let Some(state) = self.tracestate() {
            set("tracestate", state.into());
        }
        Some((DATADOG.into(), to_raw_value(&headers).ok()?))
    }
}

fn text_field(name: &str, text: &str) -> Field {
    (name.into(), to_raw_value(text).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(fields: &Value) -> TraceContext {
        TraceContext::read(fields.to_string().as_bytes())
    }

    fn pushed(payload: &Value, trace: u128, others: &[Field]) -> Value {
        let ids = SpanIds::new(trace, 0x00f0_67aa_0ba9_02b7, true).unwrap();
        let origin = read(payload);
        let fields = Trace { ids, origin }.fields(others);
        let json = |(name, json): Field| {
            let value: Value = serde_json::from_str(json.get()).unwrap();
            (name.into_string(), value)
        };
        fields.into_iter().map(json).collect()
    }

    #[test]
    fn pushed_jobs_carry_the_span_in_the_keys_that_their_pusher_had() {
        const TRACE: u128 = 0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c;
        const SPAN: &str = "00-0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-01";
        assert_eq!(
            pushed(&json!({}), TRACE, &[]),
            json!({ "traceparent": SPAN })
        );
        let w3c = json!({"traceparent": W3C, "tracestate": "a=1", "baggage": "b=2", "telescope_uuid": "t"});
        assert_eq!(
            pushed(&w3c, TRACE, &[]),
            json!({"traceparent": SPAN, "tracestate": "a=1", "baggage": "b=2"})
        );
        // A trace of its own has nothing of the state of another, but the app's baggage.
        assert_eq!(
            pushed(&w3c, 1, &[]),
            json!({"traceparent": "00-00000000000000000000000000000001-00f067aa0ba902b7-01", "baggage": "b=2"})
        );
        let sentry = json!({"sentry_trace_parent_data": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1",
            "sentry_baggage_data": "sentry-release=1", "sentry_publish_time": 1.5});
        let found = pushed(&sentry, TRACE, &[]);
        assert_eq!(found["traceparent"], SPAN);
        let parent = "0af7651916cd43dd8448eb211c80319c-00f067aa0ba902b7-1";
        assert_eq!(found["sentry_trace_parent_data"], parent);
        assert_eq!(found["sentry_baggage_data"], "sentry-release=1");
        assert!(
            found["sentry_publish_time"].as_f64().unwrap() > 1e9,
            "{found}"
        );
        assert_eq!(pushed(&sentry, 1, &[])["sentry_baggage_data"], "");
        let datadog = json!({"dd_headers": {"traceparent": W3C, "tracestate": "dd=s:2", "x-datadog-origin": "rum",
            "x-datadog-sampling-priority": "2"}});
        assert_eq!(
            pushed(&datadog, TRACE, &[])["dd_headers"],
            json!({"traceparent": SPAN, "tracestate": "dd=s:2", "x-datadog-origin": "rum",
                "x-datadog-sampling-priority": "2", "x-datadog-parent-id": "67667974448284343",
                "x-datadog-trace-id": "9532127138774266268", "x-datadog-tags": "_dd.p.tid=0af7651916cd43dd"})
        );
        // A payload hook that was asked in PHP wrote the keys of its agent, of a trace that is none.
        let hook = [text_field("sentry_trace_parent_data", "x")];
        let found = pushed(&json!({}), TRACE, &hook);
        assert_eq!(found["sentry_trace_parent_data"], parent);
    }
}
