//! Skips unused JSON values while enforcing the limits of PHP and Redis.

use std::fmt;

use serde::de::{Deserialize, DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};

use crate::php::Value;

/// Most levels of arrays and objects: the default of PHP's `json_decode`.
pub(super) const MAX_DEPTH: usize = 512;

/// A value that was checked and dropped: within the depth limit, numbers finite, text valid.
///
/// Unlike serde's `IgnoredAny` it refuses values on which Laravel's pop script or
/// PHP's `json_decode` would fail, so that such a payload is detected at once and
/// not when a PHP worker loses it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Checked;

impl<'de> Deserialize<'de> for Checked {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        CheckedSeed {
            depth_left: MAX_DEPTH,
        }
        .deserialize(deserializer)
    }
}

#[derive(Clone, Copy)]
struct CheckedSeed {
    depth_left: usize,
}

impl CheckedSeed {
    fn inner<E: Error>(self) -> Result<Self, E> {
        match self.depth_left.checked_sub(1) {
            Some(depth_left) => Ok(Self { depth_left }),
            None => Err(E::custom(format_args!(
                "nested deeper than {MAX_DEPTH} levels"
            ))),
        }
    }
}

impl<'de> DeserializeSeed<'de> for CheckedSeed {
    type Value = Checked;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Checked, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CheckedSeed {
    type Value = Checked;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E: Error>(self, _: bool) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_i64<E: Error>(self, _: i64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_u64<E: Error>(self, _: u64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_f64<E: Error>(self, _: f64) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_str<E: Error>(self, _: &str) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_unit<E: Error>(self) -> Result<Checked, E> {
        Ok(Checked)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Checked, A::Error> {
        let inner = self.inner()?;
        while seq.next_element_seed(inner)?.is_some() {}
        Ok(Checked)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Checked, A::Error> {
        let inner = self.inner()?;
        while map.next_key_seed(inner)?.is_some() {
            map.next_value_seed(inner)?;
        }
        Ok(Checked)
    }
}

/// Reads a whole text as `T`; [`Checked`] limits the nesting, not the parser.
pub(super) fn from_slice<'de, T: Deserialize<'de>>(
    bytes: &'de [u8],
) -> Result<T, serde_json::Error> {
    let mut deserializer = serde_json::Deserializer::from_slice(bytes);
    deserializer.disable_recursion_limit();
    let value = T::deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Writes a number as PHP's `json_encode` does: without a zero fraction.
pub(super) fn write_json_float(out: &mut String, value: f64) {
    // `d:1.0E+25;`: the same digits, with a small e.
    let serialized = Value::from(value).to_bytes();
    let text = String::from_utf8_lossy(&serialized[2..serialized.len() - 1]);
    out.push_str(&text.replace('E', "e"));
}

/// Writes text as PHP's `json_encode` does by default: `\/` and `\uXXXX`.
pub fn write_json_text(out: &mut String, text: &str) {
    write_escaped(out, text, |_| true);
}

/// Writes text as PHP's `json_encode` does with `JSON_UNESCAPED_UNICODE`: line separators stay escaped.
pub(super) fn write_unescaped_text(out: &mut String, text: &str) {
    write_escaped(out, text, |c| matches!(c, '\u{2028}' | '\u{2029}'));
}

/// `is_escaped` decides for characters that are not ASCII.
fn write_escaped(out: &mut String, text: &str, is_escaped: impl Fn(char) -> bool) {
    use fmt::Write as _;
    out.push('"');
    for c in text.chars() {
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            ' '..='~' | '\x7f' => out.push(c),
            c if !c.is_ascii() && !is_escaped(c) => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
    }
    out.push('"');
}
