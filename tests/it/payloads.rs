//! Payloads captured from real Laravel: the document of each equals PHP's own view of the job.

use artisand::payload::{Document, Encrypter, Payload, Version};
use serde_json::Value;

use crate::harness::fixtures;

const VERSIONS: [&str; 3] = [
    "payloads/laravel-8.jsonl",
    "payloads/laravel-10.jsonl",
    "payloads/laravel-13.jsonl",
];

/// Removes from PHP's view the properties that Laravel does not write because they equal the class default.
///
/// A property that is missing in the bytes must be a default; a written one must equal PHP's value.
pub(crate) fn assert_same_document(
    place: &str,
    found: &Value,
    expected: &Value,
    defaults: &[Value],
) {
    let mut expected = expected.clone();
    for pointer in defaults.iter().filter_map(Value::as_str) {
        if found.pointer(pointer).is_none() {
            let (parent, name) = pointer.rsplit_once('/').unwrap();
            let name = name.replace("~1", "/").replace("~0", "~");
            if let Some(parent) = expected.pointer_mut(parent).and_then(Value::as_object_mut) {
                parent.remove(&name);
            }
        }
    }
    // Only its class distinguishes an object without properties from an empty array.
    if expected.as_object().is_some_and(serde_json::Map::is_empty)
        && found.as_object().is_some_and(serde_json::Map::is_empty)
    {
        return;
    }
    assert_eq!(*found, expected, "{place}");
}

fn document(place: &str, payload: &Payload) -> String {
    let document = Document {
        connection: "redis",
        queue: "default",
        attempts: 0,
        payload,
    };
    document
        .to_json()
        .unwrap_or_else(|e| panic!("{place}: {e}"))
}

#[test]
fn every_captured_payload_shows_the_document_that_php_told() {
    // The key of the app in php-interop/.
    let key = "artisand interop key, 32 bytes!!";
    let encrypter = Encrypter::new(Version::NEWEST, key, "AES-256-CBC").unwrap();
    for version in VERSIONS {
        for (place, line) in fixtures::lines(version) {
            let place = format!("{place} {}", line["kind"]);
            let element = line["element"].as_str().unwrap();
            let mut payload =
                Payload::parse(element.as_bytes()).unwrap_or_else(|e| panic!("{place}: {e}"));
            if line["kind"] == "custom" {
                // A reference behind a `C:` body, which only PHP can follow.
                let document = Document {
                    connection: "redis",
                    queue: "default",
                    attempts: 0,
                    payload: &payload,
                };
                assert!(document.to_json().is_err(), "{place}");
                continue;
            }
            let text = document(&place, &payload);
            assert!(!text.contains('\n'), "{place}");
            let found: Value =
                serde_json::from_str(&text).unwrap_or_else(|e| panic!("{place}: {e}: {text}"));
            let category = line["category"].as_str().unwrap();
            assert_eq!(found["target"]["kind"], category, "{place}");
            let kind = line["kind"].as_str().unwrap();
            let is_encrypted = kind.starts_with("encrypted");
            assert_eq!(found["encrypted"] == true, is_encrypted, "{place}");
            let found = if is_encrypted {
                assert_eq!(found["data"], Value::Null, "{place}");
                payload
                    .decrypt(&encrypter)
                    .unwrap_or_else(|e| panic!("{place}: {e}"));
                serde_json::from_str(&document(&place, &payload)).unwrap()
            } else {
                found
            };
            let defaults = line["defaults"].as_array().cloned().unwrap_or_default();
            assert_same_document(&place, &found["data"], &line["document"], &defaults);
            let meta = found
                .get("meta")
                .cloned()
                .unwrap_or_else(|| serde_json::json!({}));
            let expected = if line["meta"].as_array().is_some_and(Vec::is_empty) {
                serde_json::json!({})
            } else {
                line["meta"].clone()
            };
            assert_eq!(meta, expected, "{place}");
        }
    }
}
