//! Parses any bytes as PHP's serialize format: must never panic, and must write back what it read.
#![no_main]

use std::collections::BTreeMap;

use artisand::php::{self, Value};
use serde::Deserialize;

type Pairs = BTreeMap<String, Option<Vec<i64>>>;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = php::from_slice::<serde_json::Value>(bytes);
    // Read in one pass, or again after a scan: the same as after a scan.
    let mut scanned = php::Deserializer::new(bytes);
    let expected = Pairs::deserialize(&mut scanned).and_then(|pairs| scanned.end().map(|()| pairs));
    assert_eq!(php::from_slice::<Pairs>(bytes).ok(), expected.ok());
    if let Ok((value, _)) = Value::from_prefix(bytes) {
        let written = value.to_bytes();
        let again = Value::from_bytes(&written).expect("what we write we read");
        assert_eq!(again.to_bytes(), written);
        let json = value.to_json();
        assert!(!json.is_empty());
    }
});
