//! Payloads captured from real Laravel: the document of each equals PHP's own view of the job.

use std::io::Write as _;
use std::process::{Command, Stdio};

use artisand::payload::{Data, Document, Encrypter, Error, Payload, Version};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
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

/// Answers each line, a text in Base64: `-` if PHP refuses it or Redis could not write it again, else the command.
const DECODE: &str = r#"
while (($line = fgets(STDIN)) !== false) {
    $payload = json_decode(base64_decode(rtrim($line)), true);
    $refused = json_last_error() !== JSON_ERROR_NONE;
    if (is_array($payload)) {
        array_walk_recursive($payload, function ($value) use (&$refused) {
            $refused = $refused || is_float($value) && is_infinite($value);
        });
    }
    $command = $payload['data']['command'] ?? null;
    echo $refused ? '-' : (is_string($command) ? '+' . base64_encode($command) : ''), "\n";
}
"#;

/// A text like a payload, with a string of all kinds of pieces and a value that may be no JSON.
fn doubtful_json(rng: &mut fastrand::Rng) -> Vec<u8> {
    let pieces: [&[u8]; 20] = [
        b"plain",
        b" ",
        b"O:1:\\\"A\\\":0:{}",
        b"\\\"",
        b"\\\\",
        b"\\/",
        b"\\n\\t\\r\\b\\f",
        b"\\u00e9",
        b"\\u0000",
        b"\\uD83D\\ude00",
        "é".as_bytes(),
        "😀".as_bytes(),
        b"]#",
        b"a long run of plain text",
        b"\\\\\\\"#]",
        b"\\ud83d",
        b"\\ude00",
        b"\\u12x4",
        b"\\x",
        b"\x1f",
    ];
    let values = [
        "0",
        "-0",
        "-1.5e+3",
        "12345678901234567890123",
        "1e400",
        "01",
        "1.",
        ".5",
        "+1",
        "1e",
        "-",
        "nul",
        "true",
        "false",
        "null",
        "\"x\"",
        "[]",
        "{}",
        "[1,[2,{\"a\":{}}]]",
        "[1,]",
        "{\"a\":1,}",
        "{1:2}",
        "[1 2]",
    ];
    let string = |rng: &mut fastrand::Rng| {
        let bad = if rng.u8(0..4) == 0 { 0 } else { 5 };
        let some = (0..rng.usize(0..9)).map(|_| pieces[rng.usize(0..pieces.len() - bad)]);
        some.collect::<Vec<_>>().concat()
    };
    let deep = rng.usize(508..514);
    let value = match rng.u8(0..12) {
        0 => "[".repeat(deep) + &"]".repeat(deep),
        _ => values[rng.usize(0..values.len())].to_owned(),
    };
    let handler = br#""job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{"command":""#;
    let (command, other) = (string(rng), string(rng));
    let mut text = [
        b"{",
        &handler[..],
        &command,
        b"\"},\"x\" : ",
        value.as_bytes(),
        b", \"",
        &other,
        b"\":\"",
        &other,
        b"\"}\n",
    ]
    .concat();
    if rng.u8(0..4) == 0 {
        let at = rng.usize(0..text.len());
        text[at] = *rng.choice(b"0\"\\,:{}[] -\xff\x00").unwrap();
    }
    text
}

#[test]
#[ignore = "needs php"]
fn json_is_read_or_refused_as_by_php() {
    let rng = &mut fastrand::Rng::with_seed(7);
    let texts: Vec<_> = (0..20_000).map(|_| doubtful_json(rng)).collect();
    let input: String = texts
        .iter()
        .map(|text| BASE64.encode(text) + "\n")
        .collect();
    let mut php = Command::new("php")
        .args(["-n", "-r", DECODE])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("php runs");
    let mut stdin = php.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.as_bytes()));
    let output = php.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    let lines = String::from_utf8(output.stdout).unwrap();
    assert_eq!(lines.lines().count(), texts.len());
    let (mut read, mut refused) = (0, 0);
    for (text, line) in texts.iter().zip(lines.lines()) {
        let shown = String::from_utf8_lossy(text);
        match (Payload::parse(text), line.strip_prefix('+')) {
            (Err(Error::Json(_)), _) => {
                assert_eq!(line, "-", "{shown}");
                refused += 1;
            }
            (Ok(payload), Some(expected)) => {
                if let Data::Command { command, .. } = &payload.data {
                    assert_eq!(BASE64.encode(command), expected, "{shown}");
                    read += 1;
                }
            }
            (_, _) => assert_ne!(line, "-", "{shown}"),
        }
    }
    assert!(read > 5000 && refused > 5000, "{read} {refused}");
}
