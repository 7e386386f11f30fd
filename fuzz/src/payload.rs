//! Parses any bytes as a payload, reads its trace context and command and makes its document: errors are short.

use std::error::Error;

use artisand::payload::{Command, Document, Payload, Target, TraceContext, for_retry};
use serde::de::IgnoredAny;

/// Longest error: a name of 255 characters, each of them written as an escape.
const LONGEST: usize = 255 * 12 + 500;

fn is_short(error: &dyn Error) {
    assert!(error.to_string().len() <= LONGEST, "{error}");
    if let Some(cause) = error.source() {
        is_short(cause);
    }
}

/// Checks an input.
pub fn check(bytes: &[u8]) {
    let trace = TraceContext::read(bytes);
    assert!(trace.state.is_none() || trace.parent.is_some());
    let payload = match Payload::parse(bytes) {
        Err(error) => return is_short(&error),
        Ok(payload) => payload,
    };
    serde_json::from_slice::<IgnoredAny>(bytes).expect("what is read is JSON");
    assert!(payload.shown_name().chars().count() <= LONGEST);
    match Command::of(&payload) {
        Err(error) => is_short(&error),
        Ok(command) => assert!(command.is_none_or(|command| command.as_bytes().starts_with(b"O:"))),
    }
    if let Err(error) = Target::of(&payload) {
        is_short(&error);
    }
    let document = Document {
        connection: "redis",
        queue: "default",
        attempts: 0,
        payload: &payload,
    };
    match document.to_json() {
        Err(error) => is_short(&error),
        Ok(json) => {
            serde_json::from_str::<IgnoredAny>(&json).expect("a document is JSON");
            assert!(!json.contains('\n'), "a program reads a line");
        }
    }
    let again = for_retry(bytes, None).expect("what is read can be retried");
    assert!(Payload::parse(&again).is_ok());
    assert_eq!(for_retry(&again, None).expect("again"), again);
}
