//! Fixture files, line by line.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value;

/// The project's directory.
pub(crate) fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Path of a file under `fixtures/`.
pub(crate) fn path(name: &str) -> PathBuf {
    project().join("fixtures").join(name)
}

/// The lines of a `.jsonl` fixture, with the place for messages.
pub(crate) fn lines(name: &str) -> Vec<(String, Value)> {
    let text =
        std::fs::read_to_string(path(name)).unwrap_or_else(|e| panic!("fixtures/{name}: {e}"));
    let lines: Vec<_> = text
        .lines()
        .enumerate()
        .map(|(i, line)| {
            let place = format!("fixtures/{name}:{}", i + 1);
            let value = serde_json::from_str(line).unwrap_or_else(|e| panic!("{place}: {e}"));
            (place, value)
        })
        .collect();
    assert!(!lines.is_empty(), "fixtures/{name} is empty");
    lines
}

pub(crate) fn base64(text: &str) -> Vec<u8> {
    BASE64.decode(text).unwrap()
}

/// The bytes of a codec fixture: written out, or repeated.
pub(crate) fn php_bytes(line: &Value) -> Vec<u8> {
    if let Some(text) = line["php"].as_str() {
        return base64(text);
    }
    let repeat = &line["repeat"];
    let part = |name: &str| {
        repeat[name]
            .as_str()
            .unwrap_or_else(|| panic!("no `{name}` in {line}"))
    };
    let times = usize::try_from(repeat["times"].as_u64().unwrap()).unwrap();
    [
        part("prefix").repeat(times),
        part("middle").to_owned(),
        part("suffix").repeat(times),
    ]
    .concat()
    .into_bytes()
}
