//! PHP's conversions of values: numeric strings, truth, loose equality.

use crate::php::Value;

/// Whether PHP's `is_numeric` is true for this text.
///
/// # Source
///
/// `_is_numeric_string` of PHP 8: blanks around, sign, digits with fraction and exponent.
pub(super) fn is_numeric(text: &[u8]) -> bool {
    let is_blank = |b: &u8| matches!(b, b' ' | b'\t' | b'\n' | b'\r' | 0x0b | 0x0c);
    let start = text.iter().position(|b| !is_blank(b));
    let Some(start) = start else { return false };
    let end = text.iter().rposition(|b| !is_blank(b)).unwrap_or(start);
    let mut rest = &text[start..=end];
    if let [b'+' | b'-', after @ ..] = rest {
        rest = after;
    }
    let digits = |text: &[u8]| text.iter().take_while(|b| b.is_ascii_digit()).count();
    let whole = digits(rest);
    rest = &rest[whole..];
    let mut fraction = 0;
    if let [b'.', after @ ..] = rest {
        fraction = digits(after);
        rest = &after[fraction..];
    }
    if whole + fraction == 0 {
        return false;
    }
    if let [b'e' | b'E', after @ ..] = rest {
        let after = after
            .strip_prefix(b"+")
            .or_else(|| after.strip_prefix(b"-"))
            .unwrap_or(after);
        let exponent = digits(after);
        if exponent == 0 {
            return false;
        }
        rest = &after[exponent..];
    }
    rest.is_empty()
}

/// The text of a float by PHP's string conversion with its default `precision` of 14 digits.
pub fn float_text(value: f64) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "NAN" } else { "INF" };
        return if value < 0.0 { "-INF" } else { name }.to_owned();
    }
    if value == 0.0 {
        return if value.is_sign_negative() { "-0" } else { "0" }.into();
    }
    let scientific = format!("{value:.13e}");
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| {
        if text.contains('.') {
            text.trim_end_matches('0').trim_end_matches('.').to_owned()
        } else {
            text.to_owned()
        }
    };
    if (-5..15).contains(&exponent) {
        let decimals = usize::try_from(13 - exponent).unwrap_or(0);
        trim(&format!("{value:.decimals$}"))
    } else {
        let mut mantissa = trim(mantissa);
        if !mantissa.contains('.') {
            mantissa.push_str(".0");
        }
        let sign = if exponent < 0 { '-' } else { '+' };
        format!("{mantissa}E{sign}{}", exponent.abs())
    }
}

/// A cached value cast to an integer as in PHP; zero if it is not a number.
pub(super) fn to_int(value: &Value) -> i64 {
    match value {
        Value::Int(value) => *value,
        Value::Bool(value) => i64::from(*value),
        #[expect(clippy::cast_possible_truncation, reason = "PHP's cast cuts, too")]
        Value::Float(value) => value.get() as i64,
        Value::String(text) if is_numeric(text) => {
            let text = std::str::from_utf8(text).unwrap_or_default().trim();
            #[expect(clippy::cast_possible_truncation, reason = "PHP's cast cuts, too")]
            let float = || text.parse::<f64>().unwrap_or_default() as i64;
            text.parse().unwrap_or_else(|_| float())
        }
        _ => 0,
    }
}

/// Whether PHP's `==` holds between two cached values: numeric texts compare as numbers, a missing value as false.
pub fn loosely_equal(left: Option<&Value>, right: Option<&Value>) -> bool {
    let number = |value: &Value| match value {
        #[expect(
            clippy::cast_precision_loss,
            reason = "as PHP compares an int with a float"
        )]
        Value::Int(value) => Some(*value as f64),
        Value::Float(value) => Some(value.get()),
        Value::String(text) if is_numeric(text) => {
            std::str::from_utf8(text).ok()?.trim().parse().ok()
        }
        _ => None,
    };
    match (left, right) {
        (None, None) => true,
        (None, Some(value)) | (Some(value), None) => {
            !value.is_truthy() && !matches!(value, Value::String(text) if text == b"0")
        }
        (Some(left), Some(right))
            if matches!(left, Value::Bool(_)) || matches!(right, Value::Bool(_)) =>
        {
            left.is_truthy() == right.is_truthy()
        }
        (Some(Value::Int(left)), Some(Value::Int(right))) => left == right,
        (Some(left), Some(right)) => match (number(left), number(right)) {
            #[expect(clippy::float_cmp, reason = "PHP compares exactly")]
            (Some(left), Some(right)) => left == right,
            _ => left == right,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_numeric_where_php_says_so() {
        for text in ["1", " 12", "5 ", "-5", ".5", "1.", "1e5", "1E+20", "+0"] {
            assert!(is_numeric(text.as_bytes()), "{text:?}");
        }
        for text in [
            "", " ", "0x1A", "5a", "0b1", "1_000", "e5", ".", "1e", "--1",
        ] {
            assert!(!is_numeric(text.as_bytes()), "{text:?}");
        }
    }

    #[test]
    fn floats_are_texts_of_fourteen_digits() {
        #[rustfmt::skip]
        let rows = [
            (1.5, "1.5"), (2.0, "2"), (0.1 + 0.2, "0.3"), (1e15, "1.0E+15"), (123_456_789.123_456_79, "123456789.12346"),
            (1e-7, "1.0E-7"), (-0.0, "-0"), (f64::NAN, "NAN"), (f64::NEG_INFINITY, "-INF"), (100_000.0, "100000"), (1.25e25, "1.25E+25"),
        ];
        for (value, expected) in rows {
            assert_eq!(float_text(value), expected);
        }
    }

    #[test]
    fn counts_are_read_however_they_are_stored() {
        let text = |text: &str| Value::String(text.as_bytes().to_vec());
        let rows = [
            (Value::Int(3), 3),
            (text("3"), 3),
            (text(" 1e2 "), 100),
            (text("2.9"), 2),
            (text("x"), 0),
            (Value::Null, 0),
            (Value::Bool(true), 1),
        ];
        for (value, expected) in rows {
            assert_eq!(to_int(&value), expected, "{value:?}");
        }
    }

    #[test]
    fn equality_is_phps() {
        let text = |text: &str| Value::String(text.as_bytes().to_vec());
        let rows = [
            (Some(Value::Int(5)), Some(text("5")), true),
            (Some(text("5.0")), Some(text("5")), true),
            (Some(Value::Int(5)), Some(text("6")), false),
            (None, Some(Value::Int(0)), true),
            (None, Some(Value::Int(5)), false),
            (None, None, true),
            (Some(Value::Bool(true)), Some(text("x")), true),
        ];
        for (left, right, expected) in rows {
            assert_eq!(
                loosely_equal(left.as_ref(), right.as_ref()),
                expected,
                "{left:?} {right:?}"
            );
        }
    }
}
