//! Payloads of sizes that no app makes: each is read, or refused with an error that says why, on a small stack, and in
//! time and memory in proportion to its bytes.
//!
//! `tests/it/limits.rs` has a worker run the largest ones.

use std::time::{Duration, Instant};

use serde::de::IgnoredAny;

use super::{CALL_QUEUED_HANDLER, Command, Document, Error, Payload, Target, TraceContext};
use crate::php::{self, Category, Kind, ObjectText, Value};

const LEVELS: usize = 100_000;

/// Runs on a stack half the size of a thread's default.
fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
    let thread = std::thread::Builder::new().stack_size(1 << 20);
    thread.spawn(run).unwrap().join().unwrap();
}

/// The payload of a job of this class with this command.
fn payload(class: &str, command: &str) -> Vec<u8> {
    let payload = serde_json::json!({
        "displayName": class, "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": class, "command": command}, "attempts": 0,
    });
    payload.to_string().into_bytes()
}

/// The payload's document, or why there is none.
fn document(payload: &Payload) -> Result<String, Error> {
    let document = Document {
        connection: "redis",
        queue: "default",
        attempts: 0,
        payload,
    };
    document.to_json()
}

#[test]
fn a_hundred_thousand_levels_of_json_are_refused() {
    on_a_small_stack(|| {
        for (open, close) in [("[", "]"), ("{\"a\":", "}")] {
            let deep = format!("{}1{}", open.repeat(LEVELS), close.repeat(LEVELS));
            for text in [
                format!(r#"{{"job":"A@b","data":{deep}}}"#),
                format!(r#"{{"job":"A@b","unknown":{deep}}}"#),
                format!(r#"{{"job":"A@b","tags":{deep}}}"#),
                format!(r#"{{"job":"A@b","backoff":{deep}}}"#),
                format!(r#"{{"job":"A@b","illuminate:log:context":{deep}}}"#),
                deep,
            ] {
                for bytes in [text.as_bytes(), &text.as_bytes()[..text.len() / 2]] {
                    let error = Payload::parse(bytes).unwrap_err();
                    assert!(matches!(error, Error::Json(_)), "{error}");
                    let error = super::for_retry(bytes, None).unwrap_err().to_string();
                    let reason = "nested deeper than 511 levels";
                    assert!(error.contains(reason), "{error}");
                    TraceContext::read(bytes);
                }
            }
        }
    });
}

#[test]
fn a_hundred_thousand_levels_of_a_command_are_refused() {
    on_a_small_stack(|| {
        let limit = Kind::DepthExceeded {
            limit: php::MAX_DEPTH,
        };
        for open in ["a:1:{i:0;", "O:1:\"P\":1:{s:1:\"a\";"] {
            let deep = open.repeat(LEVELS) + "N;" + &"}".repeat(LEVELS);
            for class in ["App\\Job", "Illuminate\\Events\\CallQueuedListener"] {
                let job = format!("O:{}:\"{class}\":1:{{s:4:\"data\";{deep}}}", class.len());
                let parsed = Payload::parse(&payload(class, &job)).unwrap();
                // Only what looks into the command finds it out: PHP has the job otherwise.
                let command = Command::of(&parsed).unwrap().unwrap();
                assert_eq!(*command.to_value().unwrap_err().kind(), limit);
                let ignored = command.deserialize::<IgnoredAny>().unwrap_err();
                assert_eq!(*ignored.kind(), limit);
                assert!(command.deserialize::<serde_json::Value>().is_err());
                assert!(ObjectText::parse(command.as_bytes()).is_err());
                assert_eq!(Target::of(&parsed).is_ok(), class == "App\\Job");
                let error = document(&parsed).unwrap_err();
                let text = format!("the command of {class} cannot be read");
                assert_eq!(error.to_string(), text);
            }
        }
        // Bodies that hold bodies: each level is longer than the one in it.
        let mut body = "N;".to_owned();
        for _ in 0..2000 {
            body = format!("C:1:\"P\":{}:{{{body}}}", body.len());
        }
        let job = format!("O:1:\"J\":1:{{s:1:\"a\";{body}}}");
        let parsed = Payload::parse(&payload("J", &job)).unwrap();
        let _ = document(&parsed);
    });
}

#[test]
fn counts_and_lengths_that_are_not_there_are_an_end_of_input() {
    let began = Instant::now();
    let most = [
        10_000_000_u64.to_string(),
        (1_u64 << 60).to_string(),
        u64::MAX.to_string(),
        "9".repeat(1000),
    ];
    for count in most {
        for text in [
            format!("a:{count}:{{"),
            format!("a:{count}:{{i:0;N;i:1;N;}}"),
            format!("O:8:\"stdClass\":{count}:{{s:1:\"a\";N;}}"),
            format!("O:{count}:\"stdClass\":0:{{}}"),
            format!("C:1:\"P\":{count}:{{N;}}"),
            format!("s:{count}:\"x\";"),
            format!("S:{count}:\"x\";"),
            format!("E:{count}:\"Suit:Hearts\";"),
        ] {
            let job = format!("O:1:\"J\":1:{{s:1:\"a\";{text}}}");
            let errors = [
                Value::from_bytes(text.as_bytes()).unwrap_err(),
                php::from_slice::<serde_json::Value>(text.as_bytes()).unwrap_err(),
                php::from_slice::<IgnoredAny>(text.as_bytes()).unwrap_err(),
                php::from_slice::<Vec<Option<u8>>>(text.as_bytes()).unwrap_err(),
                php::from_slice::<String>(text.as_bytes()).unwrap_err(),
                ObjectText::parse(job.as_bytes()).unwrap_err(),
            ];
            for error in errors {
                let is_bounded = error.to_string().len() < 300;
                assert!(error.category() != Category::Limit && is_bounded, "{error}");
            }
            let parsed = Payload::parse(&payload("J", &job)).unwrap();
            assert!(document(&parsed).is_err(), "{text}");
        }
    }
    assert!(
        began.elapsed() < Duration::from_secs(5),
        "{:?}",
        began.elapsed()
    );
}

fn joined(count: usize, element: impl Fn(usize) -> String) -> String {
    (0..count).map(element).collect()
}

#[test]
fn many_small_elements_are_read_in_time_in_proportion() {
    let count = 100_000;
    let began = Instant::now();
    let elements = joined(count, |key| format!("i:{key};N;"));
    let job = format!("O:1:\"J\":1:{{s:1:\"a\";a:{count}:{{{elements}}}}}");
    let parsed = Payload::parse(&payload("J", &job)).unwrap();
    let nulls = document(&parsed).unwrap().matches("null,null").count();
    assert!(nulls >= count / 2 - 1, "{nulls}");
    let command = Command::of(&parsed).unwrap().unwrap();
    let text = ObjectText::parse(command.as_bytes()).unwrap();
    assert_eq!(text.get("a").unwrap().unwrap().len(), job.len() - 20);
    for list in ["1,", "[],", "{\"a\":1},", "\"a\\n\","] {
        let list = list.repeat(count) + "1";
        for field in [
            "data",
            "tags",
            "backoff",
            "unknown",
            "illuminate:log:context",
        ] {
            let text = format!(r#"{{"job":"A@b","{field}":[{list}],"attempts":0}}"#);
            let parsed = Payload::parse(text.as_bytes()).unwrap();
            assert!(document(&parsed).is_ok());
        }
    }
    let members = joined(count, |key| format!("\"k{key}\":{key},"));
    let text = format!(r#"{{{members}"job":"A@b"}}"#);
    Payload::parse(text.as_bytes()).unwrap();
    super::for_retry(text.as_bytes(), None).unwrap();
    // Quadratic time would take minutes.
    assert!(
        began.elapsed() < Duration::from_secs(20),
        "{:?}",
        began.elapsed()
    );
}
