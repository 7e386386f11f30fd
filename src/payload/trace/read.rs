//! Reads the trace context of a payload.

use super::ids::{SpanIds, hex};
use crate::payload::json::{JsonError, Reader, Token};

/// Longest `tracestate`, as W3C has it.
const MAX_STATE: usize = 512;
/// Longest baggage, as W3C has it.
const MAX_BAGGAGE: usize = 8192;
/// Longest of all other texts.
const MAX_TEXT: usize = 512;

/// The trace context of a payload.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TraceContext {
    /// The span that pushed the job, or pushed the job that pushed it.
    pub parent: Option<SpanIds>,
    /// `tracestate` of that span.
    pub state: Option<Box<str>>,
    /// `baggage` of OpenTelemetry.
    pub baggage: Option<Box<str>>,
    /// When the job was pushed, as Sentry notes it: unix seconds.
    pub published: Option<f64>,
    /// Whether there are keys of Sentry.
    pub(super) has_sentry: bool,
    pub(super) sentry_baggage: Option<Box<str>>,
    /// What Datadog's agent wrote, if it did.
    pub(super) datadog: Option<Datadog>,
}

#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct Datadog {
    traceparent: Option<Box<str>>,
    tracestate: Option<Box<str>>,
    trace: Option<Box<str>>,
    span: Option<Box<str>>,
    tags: Option<Box<str>>,
    pub(super) priority: Option<Box<str>>,
    pub(super) origin: Option<Box<str>>,
}

/// Texts of the keys, before anything is made of them.
#[derive(Default)]
struct TraceKeys {
    traceparent: Option<Box<str>>,
    sentry: Option<Box<str>>,
    b3: Option<Box<str>>,
    b3_trace: Option<Box<str>>,
    b3_span: Option<Box<str>>,
    b3_sampled: Option<Box<str>>,
}

impl TraceContext {
    /// Reads it from a payload; what is missing or not valid is none.
    pub fn read(payload: &[u8]) -> Self {
        Self::try_read(payload).unwrap_or_default()
    }

    fn try_read(payload: &[u8]) -> Result<Self, JsonError> {
        let (mut context, mut found) = (Self::default(), TraceKeys::default());
        let mut reader = Reader::new(payload)?;
        if reader.token()? == Token::Object {
            reader.members(|reader, name| context.member(&mut found, &name, reader))?;
        }
        context.settle(&found);
        Ok(context)
    }

    fn member(
        &mut self,
        found: &mut TraceKeys,
        name: &str,
        reader: &mut Reader<'_>,
    ) -> Result<(), JsonError> {
        match name {
            "traceparent" => found.traceparent = text(reader, MAX_TEXT)?,
            "tracestate" => self.state = text(reader, MAX_STATE)?,
            "baggage" => self.baggage = text(reader, MAX_BAGGAGE)?,
            "dd_headers" => self.datadog = Datadog::read(reader)?,
            "sentry_trace_parent_data" => {
                found.sentry = text(reader, MAX_TEXT)?;
                self.has_sentry = found.sentry.is_some();
            }
            "sentry_baggage_data" => self.sentry_baggage = text(reader, MAX_BAGGAGE)?,
            "sentry_publish_time" => self.published = reader.number()?,
            "b3" => found.b3 = text(reader, MAX_TEXT)?,
            "X-B3-TraceId" => found.b3_trace = text(reader, MAX_TEXT)?,
            "X-B3-SpanId" => found.b3_span = text(reader, MAX_TEXT)?,
            "X-B3-Sampled" => found.b3_sampled = text(reader, MAX_TEXT)?,
            _ => reader.skip()?,
        }
        Ok(())
    }

    /// Picks the parent, and its state with it.
    fn settle(&mut self, found: &TraceKeys) {
        let own = found.traceparent.as_deref();
        self.parent = own.and_then(SpanIds::of_traceparent);
        if self.parent.is_some() {
            return self.drop_bad_state();
        }
        self.state = None;
        if let Some(datadog) = &self.datadog {
            let w3c = datadog.traceparent.as_deref();
            let w3c = w3c.and_then(SpanIds::of_traceparent);
            self.parent = w3c.or_else(|| datadog.ids());
            if w3c.is_some() {
                self.state.clone_from(&datadog.tracestate);
            }
        }
        let sentry = || SpanIds::of_pair(found.sentry.as_deref()?);
        self.parent = self.parent.or_else(sentry).or_else(|| found.b3());
        self.drop_bad_state();
    }

    /// A state that no header could carry is none.
    fn drop_bad_state(&mut self) {
        let is_bad = |text: &str| text.bytes().any(|byte| !(0x20..0x7f).contains(&byte));
        let has_many = |text: &str| text.split(',').count() > 32;
        self.state = (self.state.take()).filter(|text| !is_bad(text) && !has_many(text));
        self.baggage = self.baggage.take().filter(|text| !is_bad(text));
    }
}

impl TraceKeys {
    fn b3(&self) -> Option<SpanIds> {
        if let Some(b3) = &self.b3 {
            return SpanIds::of_pair(b3);
        }
        let (trace, span) = (self.b3_trace.as_deref()?, self.b3_span.as_deref()?);
        let ids = SpanIds::of_pair(&format!("{trace}-{span}"))?;
        let is_sampled = !matches!(self.b3_sampled.as_deref(), Some("0" | "false"));
        Some(SpanIds { is_sampled, ..ids })
    }
}

impl Datadog {
    /// Reads the object, which may have become a list on its way if it was empty.
    fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, JsonError> {
        let mut found = Self::default();
        match reader.token()? {
            Token::Object => reader.members(|reader, name| {
                let into = match &*name {
                    "traceparent" => &mut found.traceparent,
                    "tracestate" => &mut found.tracestate,
                    "x-datadog-trace-id" => &mut found.trace,
                    "x-datadog-parent-id" => &mut found.span,
                    "x-datadog-tags" => &mut found.tags,
                    "x-datadog-sampling-priority" => &mut found.priority,
                    "x-datadog-origin" => &mut found.origin,
                    _ => return reader.skip(),
                };
                *into = text(reader, MAX_TEXT)?;
                Ok(())
            })?,
            Token::Array => reader.skip_elements()?,
            _ => return Ok(None),
        }
        Ok(Some(found))
    }

    /// The decimal ids; the upper half of the trace's is among the tags.
    fn ids(&self) -> Option<SpanIds> {
        let number = |text: &Option<Box<str>>| text.as_deref()?.parse::<u64>().ok();
        let tags = self.tags.as_deref().unwrap_or_default().split(',');
        let mut high = tags.filter_map(|tag| tag.trim().strip_prefix("_dd.p.tid="));
        let high = high.next().and_then(|high| hex(high, &[16])).unwrap_or(0);
        let trace = high << 64 | u128::from(number(&self.trace)?);
        SpanIds::new(trace, number(&self.span)?, self.keeps())
    }

    /// Whether its sampling priority says that the trace is kept; no priority leaves that to others.
    pub(super) fn keeps(&self) -> bool {
        let priority = self.priority.as_deref();
        let priority = priority.and_then(|text| text.parse::<i64>().ok());
        priority.is_none_or(|priority| priority > 0)
    }
}

/// Reads a text of at most this many bytes, or a whole number; all else is none.
fn text(reader: &mut Reader<'_>, most: usize) -> Result<Option<Box<str>>, JsonError> {
    Ok(match reader.token()? {
        Token::Text(text) => (text.len() <= most).then(|| text.into()),
        Token::Int(number) => Some(number.to_string().into()),
        Token::Array => reader.skip_elements().map(|()| None)?,
        Token::Object => reader.skip_members().map(|()| None)?,
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const W3C: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    fn read(fields: &Value) -> TraceContext {
        TraceContext::read(fields.to_string().as_bytes())
    }

    #[test]
    fn the_parent_is_read_from_the_keys_of_every_agent() {
        let long = "0".repeat(600);
        #[rustfmt::skip]
        let rows = [
            (json!({"traceparent": W3C}), W3C),
            (json!({"traceparent": W3C.replace("-01", "-00")}), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
            (json!({"traceparent": W3C.replace("00-0", "cc-0") + "-more"}), W3C),
            (json!({"traceparent": W3C.to_owned() + "-more"}), ""),
            (json!({"traceparent": W3C.replace("00-0", "ff-0")}), ""),
            (json!({"traceparent": W3C.to_uppercase()}), ""),
            (json!({"traceparent": "00-00000000000000000000000000000000-b7ad6b7169203331-01"}), ""),
            (json!({"traceparent": "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01"}), ""),
            (json!({"traceparent": "00-+af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}), ""),
            (json!({"traceparent": ["no"], "b3": {"no": 1}}), ""),
            (json!({"traceparent": long, "sentry_trace_parent_data": long}), ""),
            (json!({"traceparent": "wörter-und-mehr-davon"}), ""),
            // Datadog
            (json!({"dd_headers": {"traceparent": W3C, "x-datadog-trace-id": "1", "x-datadog-parent-id": "2"}}), W3C),
            (json!({"dd_headers": {"x-datadog-trace-id": "1", "x-datadog-parent-id": 2, "x-datadog-sampling-priority": "2",
                "x-datadog-tags": "_dd.p.dm=-1,_dd.p.tid=640cfd8d00000000"}}),
                "00-640cfd8d000000000000000000000001-0000000000000002-01"),
            (json!({"dd_headers": {"x-datadog-trace-id": "18446744073709551615", "x-datadog-parent-id": "2",
                "x-datadog-sampling-priority": "-1"}}), "00-0000000000000000ffffffffffffffff-0000000000000002-00"),
            (json!({"dd_headers": {"x-datadog-trace-id": "18446744073709551616", "x-datadog-parent-id": "2"}}), ""),
            (json!({"dd_headers": [], "traceparent": W3C}), W3C),
            // Sentry
            (json!({"sentry_trace_parent_data": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331"}), W3C),
            (json!({"sentry_trace_parent_data": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-1"}), W3C),
            (json!({"sentry_trace_parent_data": "0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0"}), "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"),
            (json!({"sentry_trace_parent_data": ""}), ""),
            // B3
            (json!({"b3": "8448eb211c80319c-b7ad6b7169203331-1-05e3ac9a4f6e3b90"}), "00-00000000000000008448eb211c80319c-b7ad6b7169203331-01"),
            (json!({"b3": "0"}), ""),
            (json!({"X-B3-TraceId": "8448eb211c80319c", "X-B3-SpanId": "b7ad6b7169203331", "X-B3-Sampled": "0"}),
                "00-00000000000000008448eb211c80319c-b7ad6b7169203331-00"),
            // The first that is valid
            (json!({"b3": "8448eb211c80319c-b7ad6b7169203331-1", "traceparent": "no", "sentry_trace_parent_data": &W3C[3..52]}), W3C),
        ];
        for (fields, expected) in rows {
            let found = read(&fields).parent.map(|parent| parent.to_string());
            assert_eq!(found.unwrap_or_default(), expected, "{fields}");
        }
        for broken in [&b""[..], b"[]", b"{", b"\xff", br#"{"traceparent":"#] {
            assert_eq!(TraceContext::read(broken), TraceContext::default());
        }
    }

    #[test]
    fn a_state_that_no_header_could_carry_is_dropped() {
        let many = vec!["a=1"; 33].join(",");
        let long = format!("a={}", "x".repeat(512));
        #[rustfmt::skip]
        let rows = [
            ("congo=t61rcWkgMzE", true), ("a=1\r\nb: 2", false), ("ä=1", false),
            (&many, false), (&long, false),
        ];
        for (state, is_kept) in rows {
            let found = read(&json!({"traceparent": W3C, "tracestate": state}));
            assert_eq!(found.state.as_deref(), is_kept.then_some(state));
        }
        let alone = read(&json!({"tracestate": "a=1"}));
        assert_eq!(alone.state, None, "it belongs to a parent");
    }
}
