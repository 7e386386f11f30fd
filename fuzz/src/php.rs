//! Parses any bytes as PHP's serialize format: must never panic, and must write back what it read.

use std::collections::BTreeMap;

use artisand::php::{self, Value};
use serde::Deserialize;

type Pairs = BTreeMap<String, Option<Vec<i64>>>;

/// Longest error: the beginnings of a path and of a message, and what is around them.
const LONGEST: usize = 2 * 1000 + 100;

/// Checks an input.
pub fn check(bytes: &[u8]) {
    if let Err(error) = php::from_slice::<serde_json::Value>(bytes) {
        assert!(error.to_string().len() <= LONGEST);
    }
    // Read in one pass, or again after a scan: the same as after a scan.
    let mut scanned = php::Deserializer::new(bytes);
    let expected = Pairs::deserialize(&mut scanned).and_then(|pairs| scanned.end().map(|()| pairs));
    assert_eq!(php::from_slice::<Pairs>(bytes).ok(), expected.ok());
    let value = Value::from_prefix(bytes);
    if let Err(error) = &value {
        assert!(error.to_string().len() <= LONGEST);
    }
    if let Ok((value, _)) = value {
        let written = value.to_bytes();
        let again = Value::from_bytes(&written).expect("what we write we read");
        assert_eq!(again.to_bytes(), written);
        let json = value.to_json();
        assert!(!json.is_empty());
    }
}
