//! PHP's serialize format: every fixture line, every prefix, and a real PHP on the other end.

use std::io::Write as _;
use std::process::{Command, Stdio};

use artisand::php::{self, Array, Category, ClassName, EnumCase, Key, Object, Value};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;
use serde::de::IgnoredAny;

use crate::harness::fixtures;

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn every_vector_decodes_and_encodes_to_the_same_bytes_and_shows_what_php_shows() {
    for (place, line) in fixtures::lines("php/vectors.jsonl") {
        let bytes = fixtures::php_bytes(&line);
        let value = Value::from_bytes(&bytes).unwrap_or_else(|e| panic!("{place}: {e}"));
        assert_eq!(value.to_bytes(), bytes, "{place}");
        assert_eq!(
            json(&value.to_json()),
            json(line["json"].as_str().unwrap()),
            "{place}"
        );
        php::from_slice::<IgnoredAny>(&bytes).unwrap_or_else(|e| panic!("{place}: {e}"));
    }
}

#[test]
fn untyped_reading_gives_the_document_where_the_value_is_a_tree() {
    for (place, line) in fixtures::lines("php/vectors.jsonl") {
        let expected = json(line["json"].as_str().unwrap());
        let text = expected.to_string();
        // A cycle cannot be read into a tree, a float JSON cannot hold has no `serde_json::Value`.
        if text.contains("$ref") {
            continue;
        }
        let found = php::from_slice::<serde_json::Value>(&fixtures::php_bytes(&line));
        assert_eq!(
            found.unwrap_or_else(|e| panic!("{place}: {e}")),
            expected,
            "{place}"
        );
    }
}

#[test]
fn every_proper_prefix_of_a_vector_is_an_end_of_input() {
    for (place, line) in fixtures::lines("php/vectors.jsonl") {
        let bytes = fixtures::php_bytes(&line);
        for end in 0..bytes.len() {
            let error = Value::from_bytes(&bytes[..end]).expect_err(&place);
            assert_eq!(
                error.category(),
                Category::Eof,
                "{place} cut at {end}: {error}"
            );
            let error = php::from_slice::<IgnoredAny>(&bytes[..end]).expect_err(&place);
            assert_eq!(
                error.category(),
                Category::Eof,
                "{place} cut at {end}: {error}"
            );
        }
    }
}

#[test]
fn forms_that_php_only_reads_are_read_too() {
    for (place, line) in fixtures::lines("php/accepted.jsonl") {
        let value = Value::from_prefix(&fixtures::php_bytes(&line))
            .unwrap_or_else(|e| panic!("{place}: {e}"))
            .0;
        let (Some(canonical), Some(expected)) = (line["canonical"].as_str(), line["json"].as_str())
        else {
            continue;
        };
        // What becomes of these only the PHP class knows.
        if line["needs_class"] == true {
            continue;
        }
        let canonical = Value::from_bytes(&fixtures::base64(canonical)).unwrap();
        assert_eq!(json(&value.to_json()), json(expected), "{place}");
        assert_eq!(json(&canonical.to_json()), json(expected), "{place}");
    }
}

#[test]
fn what_php_refuses_is_refused() {
    for (place, line) in fixtures::lines("php/errors.jsonl") {
        let bytes = fixtures::php_bytes(&line);
        if line["needs_class"] == true {
            continue;
        }
        let error = Value::from_prefix(&bytes)
            .err()
            .unwrap_or_else(|| panic!("{place} was read: {line}"));
        assert!(
            error.offset().is_some_and(|offset| offset <= bytes.len()),
            "{place}: {error}"
        );
        assert!(!error.to_string().is_empty());
    }
}

#[test]
#[expect(
    clippy::float_cmp,
    reason = "both read the same text: the same bits are asked for"
)]
fn serde_php_agrees_on_everything_that_it_reads() {
    let mut compared = 0;
    for file in ["php/vectors.jsonl", "php/accepted.jsonl"] {
        for (place, line) in fixtures::lines(file) {
            let bytes = fixtures::php_bytes(&line);
            macro_rules! agree {
                ($($type:ty),*) => {$(
                    // Its numbers and strings, read as what they say they are.
                    if bytes.len() < 10_000 && let Ok(theirs) = serde_php::from_bytes::<$type>(&bytes) {
                        let (value, end) = Value::from_prefix(&bytes).unwrap();
                        if end == bytes.len() {
                            let ours = php::from_slice::<$type>(&bytes);
                            assert_eq!(ours.unwrap_or_else(|e| panic!("{place}: {e} in {value:?}")), theirs, "{place}");
                            compared += 1;
                        }
                    }
                )*};
            }
            agree!(bool, i64, (), Option<i64>, std::collections::BTreeMap<i64, i64>);
            // To serde_php a string is a list of bytes, and the other way round.
            if bytes.starts_with(b"s:") {
                agree!(String);
            } else {
                agree!(Vec<i64>, Vec<bool>, Vec<Option<bool>>);
            }
            if bytes.starts_with(b"d:") && !bytes.starts_with(b"d:N") {
                agree!(f64);
            }
        }
    }
    assert!(compared > 40, "only {compared} values were compared");
}

/// Any value PHP could have written, without references.
fn any_value() -> impl Strategy<Value = Value> {
    let string = || prop_oneof![any::<Vec<u8>>(), ".{0,12}".prop_map(String::into_bytes)];
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        any::<u64>().prop_map(|bits| Value::from(f64::from_bits(bits))),
        string().prop_map(Value::String),
        Just(Value::Enum(EnumCase {
            class: ClassName::new("Suit").unwrap(),
            case: "Hearts".into()
        })),
    ];
    leaf.prop_recursive(6, 60, 8, move |inner| {
        let key = prop_oneof![
            any::<i64>().prop_map(Key::Int),
            string().prop_map(Key::String)
        ];
        let pairs = prop::collection::vec((key, inner), 0..8);
        prop_oneof![
            pairs
                .clone()
                .prop_map(|pairs| Value::Array(Array { pairs })),
            pairs.prop_map(|properties| {
                Value::Object(Object {
                    class: ClassName::new("App\\Jobs\\X").unwrap(),
                    properties,
                })
            }),
        ]
    })
}

proptest! {
    #[test]
    fn values_survive_a_round_trip(value in any_value()) {
        let bytes = value.to_bytes();
        let back = Value::from_bytes(&bytes).unwrap();
        // NaN has many bit patterns and one text.
        prop_assert_eq!(back.to_bytes(), bytes.clone());
        prop_assert!(php::from_slice::<IgnoredAny>(&bytes).is_ok());
        json(&back.to_json());
        for end in (0..bytes.len()).step_by(7) {
            prop_assert_eq!(Value::from_bytes(&bytes[..end]).unwrap_err().category(), Category::Eof);
        }
    }

    #[test]
    fn no_bytes_panic(bytes in any::<Vec<u8>>()) {
        let _ = Value::from_bytes(&bytes).map(|value| value.to_json());
        let _ = php::from_slice::<serde_json::Value>(&bytes);
    }

    #[test]
    fn no_mutation_of_a_real_value_panics(value in any_value(), at in any::<prop::sample::Index>(), byte: u8) {
        let mut bytes = value.to_bytes();
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok((value, _)) = Value::from_prefix(&bytes) {
            value.to_json();
        }
        let _ = php::from_slice::<serde_json::Value>(&bytes);
    }
}

/// Runs the project's exchange script and returns its lines.
fn exchange(args: &[&str], input: Option<String>) -> Vec<String> {
    let script = fixtures::project().join("php-interop/codec/exchange.php");
    let mut child = Command::new("php")
        .arg("-n")
        .arg(script)
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("php runs");
    let mut stdin = child.stdin.take().unwrap();
    let writer = std::thread::spawn(move || stdin.write_all(input.unwrap_or_default().as_bytes()));
    let output = child.wait_with_output().unwrap();
    writer.join().unwrap().unwrap();
    assert!(output.status.success());
    String::from_utf8(output.stdout)
        .unwrap()
        .lines()
        .map(str::to_owned)
        .collect()
}

#[test]
#[ignore = "needs php"]
fn twenty_thousand_random_values_of_php_are_read_shown_and_written_back() {
    let lines = exchange(&["make", "20000", "4711"], None);
    assert_eq!(lines.len(), 20_000);
    for line in lines {
        let (bytes, expected) = line.split_once('\t').unwrap();
        let bytes = fixtures::base64(bytes);
        let value = Value::from_bytes(&bytes).unwrap_or_else(|e| panic!("{e}: {line}"));
        assert_eq!(value.to_bytes(), bytes, "{line}");
        assert_eq!(json(&value.to_json()), json(expected), "{line}");
    }
}

#[test]
#[ignore = "needs php"]
fn twenty_thousand_random_values_of_ours_are_read_by_php_and_come_back() {
    use proptest::strategy::ValueTree as _;
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    // PHP merges equal keys and refuses names it would not write; the classes are those it knows.
    let strategy = any_value();
    let mut values = Vec::new();
    while values.len() < 20_000 {
        let value = strategy.new_tree(&mut runner).unwrap().current();
        values.push(known_to_php(value));
    }
    let input = values
        .iter()
        .map(|value| BASE64.encode(value.to_bytes()) + "\n")
        .collect();
    let lines = exchange(&["echo"], Some(input));
    assert_eq!(lines.len(), values.len());
    for (value, line) in values.iter().zip(lines) {
        let (bytes, expected) = line
            .split_once('\t')
            .unwrap_or_else(|| panic!("{line} for {value:?}"));
        assert_eq!(BASE64.encode(value.to_bytes()), bytes, "{value:?}");
        assert_eq!(json(&value.to_json()), json(expected), "{value:?}");
    }
}

/// The same value with keys that PHP would have written, and of a class without declared properties.
fn known_to_php(value: Value) -> Value {
    let unique = |pairs: Vec<(Key, Value)>, is_object: bool| {
        let mut seen = std::collections::HashSet::new();
        let mut kept = Vec::new();
        for (key, value) in pairs {
            let name = match &key {
                Key::Int(int) => int.to_string().into_bytes(),
                Key::String(name) => name.clone(),
            };
            // A property name that starts with NUL is a mark of visibility, and PHP refuses the empty one.
            let fits = if is_object {
                !name.is_empty() && name[0] != 0 && matches!(key, Key::String(_))
            } else {
                true
            };
            let is_decimal = std::str::from_utf8(&name)
                .is_ok_and(|t| t.parse::<i64>().is_ok_and(|i| i.to_string() == t));
            if fits && seen.insert(name) && (is_object || matches!(key, Key::Int(_)) || !is_decimal)
            {
                kept.push((key, known_to_php(value)));
            }
        }
        kept
    };
    // An enum case is an object: PHP writes the second occurrence as a reference.
    match value {
        Value::Enum(_) => Value::Null,
        Value::Array(array) => Value::Array(Array {
            pairs: unique(array.pairs, false),
        }),
        Value::Object(object) => Value::Object(Object {
            class: ClassName::new("stdClass").unwrap(),
            properties: unique(object.properties, true),
        }),
        other => other,
    }
}
