//! Parses any bytes as a payload, reads its trace context and makes its document: must never panic.
#![no_main]

use artisand::payload::{Document, Payload, TraceContext};
use serde::de::IgnoredAny;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let trace = TraceContext::read(bytes);
    assert!(trace.state.is_none() || trace.parent.is_some());
    if let Ok(payload) = Payload::parse(bytes) {
        serde_json::from_slice::<IgnoredAny>(bytes).expect("what is read is JSON");
        let document = Document { connection: "redis", queue: "default", attempts: 0, payload: &payload };
        if let Ok(json) = document.to_json() {
            assert!(json.starts_with('{') && json.ends_with('}'));
        }
    }
});
