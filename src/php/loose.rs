//! Conversions that PHP makes implicitly and this crate makes only on request.
//!
//! A typed PHP property has a value of its type, an untyped property can have any
//! value: a number read from a form is often a string. Use each function here
//! with serde's `deserialize_with`:
//!
//! ```
//! #[derive(serde::Deserialize)]
//! struct Job {
//!     #[serde(deserialize_with = "artisand::php::loose::int")]
//!     id: i64,
//! }
//!
//! let job: Job = artisand::php::from_slice(br#"O:3:"Job":1:{s:2:"id";s:2:"42";}"#)?;
//! assert_eq!(job.id, 42);
//! # Ok::<(), artisand::php::Error>(())
//! ```

use std::fmt;
use std::marker::PhantomData;

use serde::Deserializer;
use serde::de::{Error, Unexpected, Visitor};

/// A target type of PHP's scalar conversions.
trait Loose: Sized {
    const EXPECTING: &'static str;
    fn from_int(value: i64) -> Option<Self>;
    fn from_float(value: f64) -> Option<Self>;
    fn from_bool(value: bool) -> Option<Self>;
    fn from_text(value: &str) -> Option<Self>;
}

struct LooseVisitor<T>(PhantomData<T>);

impl<T: Loose> Visitor<'_> for LooseVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::EXPECTING)
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<T, E> {
        T::from_int(value).ok_or_else(|| E::invalid_value(Unexpected::Signed(value), &self))
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<T, E> {
        let int = i64::try_from(value).ok().and_then(T::from_int);
        int.ok_or_else(|| E::invalid_value(Unexpected::Unsigned(value), &self))
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<T, E> {
        T::from_float(value).ok_or_else(|| E::invalid_value(Unexpected::Float(value), &self))
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<T, E> {
        T::from_bool(value).ok_or_else(|| E::invalid_value(Unexpected::Bool(value), &self))
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<T, E> {
        T::from_text(value).ok_or_else(|| E::invalid_value(Unexpected::Str(value), &self))
    }
}

impl Loose for i64 {
    const EXPECTING: &'static str = "an int, or a string or float that is one";

    fn from_int(value: i64) -> Option<Self> {
        Some(value)
    }

    fn from_float(value: f64) -> Option<Self> {
        let is_whole = value.fract() == 0.0 && (-9.2e18..=9.2e18).contains(&value);
        #[expect(
            clippy::cast_possible_truncation,
            reason = "the range is checked, the fraction is zero"
        )]
        let whole = is_whole.then_some(value as Self);
        whole
    }

    fn from_bool(value: bool) -> Option<Self> {
        Some(Self::from(value))
    }

    fn from_text(value: &str) -> Option<Self> {
        value.trim().parse().ok()
    }
}

impl Loose for f64 {
    const EXPECTING: &'static str = "a number, or a string that is one";

    fn from_int(value: i64) -> Option<Self> {
        #[expect(
            clippy::cast_precision_loss,
            reason = "PHP turns an int into a float in the same way"
        )]
        Some(value as Self)
    }

    fn from_float(value: f64) -> Option<Self> {
        Some(value)
    }

    fn from_bool(_: bool) -> Option<Self> {
        None
    }

    fn from_text(value: &str) -> Option<Self> {
        let value = value.trim();
        // `parse` also accepts words such as "inf", which PHP does not take for numbers.
        let is_number = value
            .bytes()
            .all(|b| b.is_ascii_digit() || matches!(b, b'+' | b'-' | b'.' | b'e' | b'E'));
        value.parse().ok().filter(|_| is_number)
    }
}

impl Loose for bool {
    const EXPECTING: &'static str = "a bool, or a scalar that PHP takes for one";

    fn from_int(value: i64) -> Option<Self> {
        Some(value != 0)
    }

    fn from_float(value: f64) -> Option<Self> {
        Some(value != 0.0)
    }

    fn from_bool(value: bool) -> Option<Self> {
        Some(value)
    }

    fn from_text(value: &str) -> Option<Self> {
        Some(!matches!(value, "" | "0"))
    }
}

impl Loose for String {
    const EXPECTING: &'static str = "a string or a number";

    fn from_int(value: i64) -> Option<Self> {
        Some(value.to_string())
    }

    fn from_float(value: f64) -> Option<Self> {
        let mut bytes = Vec::new();
        super::text::write_float(&mut bytes, value);
        // Between `d:` and `;` is the same text that PHP's string conversion gives.
        Self::from_utf8(bytes[2..bytes.len() - 1].to_vec()).ok()
    }

    fn from_bool(_: bool) -> Option<Self> {
        None
    }

    fn from_text(value: &str) -> Option<Self> {
        Some(value.to_owned())
    }
}

/// Reads an int, or a float, bool or string that is one (`"42"`).
pub fn int<'de, D: Deserializer<'de>>(deserializer: D) -> Result<i64, D::Error> {
    deserializer.deserialize_any(LooseVisitor(PhantomData))
}

/// Reads a number, or a string that is one (`"1.5"`).
pub fn float<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f64, D::Error> {
    deserializer.deserialize_any(LooseVisitor(PhantomData))
}

/// Reads a bool, or a scalar by PHP's rules: `0`, `0.0`, `""` and `"0"` are false.
pub fn boolean<'de, D: Deserializer<'de>>(deserializer: D) -> Result<bool, D::Error> {
    deserializer.deserialize_any(LooseVisitor(PhantomData))
}

/// Reads a string, or a number as PHP prints it.
pub fn string<'de, D: Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    deserializer.deserialize_any(LooseVisitor(PhantomData))
}

#[cfg(test)]
mod tests {
    use crate::php::Deserializer;

    use super::*;

    #[test]
    fn scalars_are_converted_as_in_php_where_nothing_is_lost() {
        #[rustfmt::skip]
        let rows = [
            // value, as int, float, bool and string
            ("i:-7;", Some(-7), Some(-7.0), Some(true), Some("-7")),
            ("i:0;", Some(0), Some(0.0), Some(false), Some("0")),
            ("d:3;", Some(3), Some(3.0), Some(true), Some("3")),
            ("d:-2.5;", None, Some(-2.5), Some(true), Some("-2.5")),
            ("d:-0;", Some(0), Some(0.0), Some(false), Some("-0")),
            ("d:1.0E+19;", None, Some(1e19), Some(true), Some("1.0E+19")),
            ("b:1;", Some(1), None, Some(true), None),
            ("b:0;", Some(0), None, Some(false), None),
            ("s:4:\" 42 \";", Some(42), Some(42.0), Some(true), Some(" 42 ")),
            ("s:6:\"-1.5E1\";", None, Some(-15.0), Some(true), Some("-1.5E1")),
            ("s:3:\"inf\";", None, None, Some(true), Some("inf")),
            ("s:1:\"0\";", Some(0), Some(0.0), Some(false), Some("0")),
            ("s:0:\"\";", None, None, Some(false), Some("")),
            ("N;", None, None, None, None),
        ];
        for (text, as_int, as_float, as_bool, as_string) in rows {
            let value = || Deserializer::new(text.as_bytes());
            assert_eq!(int(&mut value()).ok(), as_int, "{text}");
            assert_eq!(float(&mut value()).ok(), as_float, "{text}");
            assert_eq!(boolean(&mut value()).ok(), as_bool, "{text}");
            assert_eq!(string(&mut value()).ok().as_deref(), as_string, "{text}");
        }
        let error = int(&mut Deserializer::new(b"N;")).unwrap_err();
        assert_eq!(
            error.to_string(),
            "expected an int, or a string or float that is one, found null (byte 0)"
        );
    }

    #[test]
    fn ints_of_other_formats_are_converted_too() {
        let value = serde_json::json!(u64::MAX);
        assert!(int(&value).is_err());
        assert_eq!(int(&serde_json::json!(5)).unwrap(), 5);
    }
}
