//! Parses any bytes as a payload and makes its document: must never panic.
#![no_main]

use artisand::payload::{Document, Payload};
use serde::de::IgnoredAny;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Ok(payload) = Payload::parse(bytes) {
        serde_json::from_slice::<IgnoredAny>(bytes).expect("what is read is JSON");
        let document = Document { connection: "redis", queue: "default", attempts: 0, payload: &payload };
        if let Ok(json) = document.to_json() {
            assert!(json.starts_with('{') && json.ends_with('}'));
        }
    }
});
