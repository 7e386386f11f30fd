//! Numbers, strings and heads of containers as `serialize()` writes them, and bytes as people read them.

use std::fmt;

/// Most levels of nesting; the default of PHP's `unserialize_max_depth`.
pub const MAX_DEPTH: usize = 4096;

/// Splits `-1.25e-7` into its digits, without sign, point and exponent, and the exponent.
pub(super) fn split_scientific(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').expect("`{:e}` has an exponent");
    let digits = mantissa
        .bytes()
        .filter(u8::is_ascii_digit)
        .map(char::from)
        .collect();
    (
        digits,
        exponent.parse().expect("`{:e}` has a decimal exponent"),
    )
}

/// The fewest digits that read back to the same number, and the exponent of the first digit.
///
/// If the number lies exactly between two such texts, PHP takes the even last
/// digit and Rust the upper one.
fn shortest_digits(value: f64) -> (String, i32) {
    let (digits, exponent) = split_scientific(&format!("{value:e}"));
    let len = digits.len();
    // A tie has exactly one more digit, a 5; only large mantissas have ties.
    if len < 15 || split_scientific(&format!("{value:.len$e}")).0.as_bytes()[len] != b'5' {
        return (digits, exponent);
    }
    // No double has more significant digits than this.
    let (exact, exact_exponent) = split_scientific(&format!("{value:.800e}"));
    if exact.as_bytes()[len] != b'5' || exact.bytes().skip(len + 1).any(|digit| digit != b'0') {
        return (digits, exponent);
    }
    let lower = &exact[..len];
    let is_even = (lower.as_bytes()[len - 1] - b'0').is_multiple_of(2);
    let reads_back =
        format!("{}.{}e{exact_exponent}", &lower[..1], &lower[1..]).parse() == Ok(value.abs());
    if is_even && reads_back {
        (lower.to_owned(), exact_exponent)
    } else {
        (digits, exponent)
    }
}

/// PHP's text of d1.d2d3.. x 10^exponent (php-serialize.md 3.2).
pub(super) fn decimal(negative: bool, digits: &str, exponent: i32) -> String {
    let sign = if negative { "-" } else { "" };
    if !(-4..=16).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let rest = if rest.is_empty() { "0" } else { rest };
        let plus = if exponent >= 0 { "+" } else { "" };
        return format!("{sign}{first}.{rest}E{plus}{exponent}");
    }
    let Ok(whole) = usize::try_from(exponent + 1) else {
        let zeros = "0".repeat(usize::try_from(-exponent - 1).expect("the exponent is below -1"));
        return format!("{sign}0.{zeros}{digits}");
    };
    if whole == 0 {
        format!("{sign}0.{digits}")
    } else if digits.len() <= whole {
        format!("{sign}{digits}{}", "0".repeat(whole - digits.len()))
    } else {
        format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
    }
}

pub(crate) fn write_float(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(b"d:");
    if value.is_nan() {
        out.extend_from_slice(b"NAN");
    } else if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 {
            b"INF".as_slice()
        } else {
            b"-INF"
        });
    } else {
        let (digits, exponent) = shortest_digits(value);
        out.extend_from_slice(decimal(value.is_sign_negative(), &digits, exponent).as_bytes());
    }
    out.push(b';');
}

pub(crate) fn write_int(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(b"i:");
    out.extend_from_slice(value.to_string().as_bytes());
    out.push(b';');
}

pub(crate) fn write_string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(b"s:");
    out.extend_from_slice(value.len().to_string().as_bytes());
    out.extend_from_slice(b":\"");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\";");
}

pub(crate) fn write_array_head(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(format!("a:{count}:{{").as_bytes());
}

pub(crate) fn write_object_head(out: &mut Vec<u8>, class: &str, count: usize) {
    out.extend_from_slice(format!("O:{}:\"{class}\":{count}:{{", class.len()).as_bytes());
}

/// The int that PHP makes of a string array key; `None` if it stays a string (php-serialize.md 4).
pub(crate) fn canonical_int(key: &[u8]) -> Option<i64> {
    let digits = key.strip_prefix(b"-").unwrap_or(key);
    let is_canonical = match digits {
        [b'0'] => digits.len() == key.len(),
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    let text = std::str::from_utf8(key).ok().filter(|_| is_canonical)?;
    text.parse().ok()
}

/// Formats bytes as text: UTF-8 unchanged, control characters and other bytes as `\xNN`.
pub(crate) struct DisplayBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Display for DisplayBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "\\x{:02x}", c as u32)?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}
