//! Names of spans.

use std::fmt;

/// Which span of which trace; neither number is 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SpanIds {
    /// The trace.
    pub trace: u128,
    /// The span.
    pub span: u64,
    /// Whether the spans of the trace are recorded.
    pub is_sampled: bool,
}

impl SpanIds {
    /// `None` if one of the numbers is 0, which means no trace and no span.
    pub fn new(trace: u128, span: u64, is_sampled: bool) -> Option<Self> {
        (trace != 0 && span != 0).then_some(Self {
            trace,
            span,
            is_sampled,
        })
    }

    /// The trace as logs and tools of traces name it: 32 hexadecimal digits.
    pub(crate) fn trace_id(&self) -> String {
        format!("{:032x}", self.trace)
    }

    /// Reads a `traceparent`.
    ///
    /// # Source
    ///
    /// W3C Trace Context, 3.2.2: later versions may have more at the end.
    pub(super) fn of_traceparent(text: &str) -> Option<Self> {
        let is_lower = |byte: &u8| !byte.is_ascii_uppercase();
        let mut parts = text.splitn(5, '-');
        let version = hex(parts.next()?, &[2])?;
        let trace = hex(parts.next()?, &[32])?;
        let span = hex(parts.next()?, &[16])?;
        let flags = hex(parts.next()?, &[2])?;
        let is_known = version != 0xff && (version != 0 || parts.next().is_none());
        if !is_known || !text.as_bytes().iter().take(55).all(is_lower) {
            return None;
        }
        Self::new(trace, u64::try_from(span).ok()?, flags & 1 == 1)
    }

    /// Reads the ids of Sentry and of `b3`: `trace-span`, and then maybe whether it is sampled.
    ///
    /// Without that, the producer leaves the decision to others: the trace is recorded.
    pub(super) fn of_pair(text: &str) -> Option<Self> {
        let mut parts = text.splitn(4, '-');
        let trace = hex(parts.next()?, &[32, 16])?;
        let span = hex(parts.next()?, &[16])?;
        let is_sampled = match parts.next() {
            None | Some("1" | "d") => true,
            Some("0") => false,
            Some(_) => return None,
        };
        Self::new(trace, u64::try_from(span).ok()?, is_sampled)
    }
}

impl fmt::Display for SpanIds {
    /// Writes the `traceparent`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flags = u8::from(self.is_sampled);
        write!(f, "00-{:032x}-{:016x}-{flags:02x}", self.trace, self.span)
    }
}

/// A number of one of these many hexadecimal digits.
pub(super) fn hex(text: &str, lengths: &[usize]) -> Option<u128> {
    let is_hex = text.bytes().all(|byte| byte.is_ascii_hexdigit());
    let is_number = is_hex && lengths.contains(&text.len());
    is_number.then(|| u128::from_str_radix(text, 16).ok())?
}
