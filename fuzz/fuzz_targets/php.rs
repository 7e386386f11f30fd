//! Parses any bytes as PHP's serialize format: must never panic, and must write back what it read.
#![no_main]

use artisand::php::{self, Value};

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    let _ = php::from_slice::<serde_json::Value>(bytes);
    if let Ok((value, _)) = Value::from_prefix(bytes) {
        let written = value.to_bytes();
        let again = Value::from_bytes(&written).expect("what we write we read");
        assert_eq!(again.to_bytes(), written);
        let json = value.to_json();
        assert!(!json.is_empty());
    }
});
