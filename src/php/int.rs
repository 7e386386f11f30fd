//! PHP's conversion of text to a number.

/// PHP's `(int)` of a string: leading blanks, a sign, digits; the rest is ignored.
pub(crate) fn int_of(text: &str) -> i64 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let byte = |at: usize| text.as_bytes().get(at).copied();
    let after_sign = |at| at + usize::from(matches!(byte(at), Some(b'-' | b'+')));
    let after_digits = |at: usize| {
        let digits = text.as_bytes()[at..].iter();
        at + digits.take_while(|byte| byte.is_ascii_digit()).count()
    };
    let digits_from = after_sign(0);
    let end = after_digits(digits_from);
    // PHP takes "1e3" for 1000, and "1.9" for 1; what follows a number is ignored.
    let mut float_end = end;
    if byte(end) == Some(b'.') {
        let fraction_end = after_digits(end + 1);
        if end > digits_from || fraction_end > end + 1 {
            float_end = fraction_end;
        }
    }
    if float_end > digits_from && matches!(byte(float_end), Some(b'e' | b'E')) {
        let exponent = after_sign(float_end + 1);
        let exponent_end = after_digits(exponent);
        if exponent_end > exponent {
            float_end = exponent_end;
        }
    }
    if float_end > end
        && let Ok(value) = text[..float_end].parse::<f64>()
    {
        #[expect(clippy::cast_possible_truncation, reason = "PHP truncates too")]
        return if value.is_finite() { value as i64 } else { 0 };
    }
    match text[..end].parse() {
        Ok(value) => value,
        Err(_) if end > digits_from => {
            if text.starts_with('-') {
                i64::MIN
            } else {
                i64::MAX
            }
        }
        Err(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strings_become_ints_as_in_php() {
        let rows = [
            ("12", 12),
            ("12abc", 12),
            ("abc", 0),
            ("-3", -3),
            ("+4", 4),
            ("1.9", 1),
            ("1e3", 1000),
            ("1.9 2", 1),
            ("-1.5e2x", -150),
            ("1e5-3", 100_000),
            ("1e3.5", 1000),
            ("1e+5x", 100_000),
            ("1.e3", 1000),
            ("1.5.5", 1),
            ("1e-2", 0),
            ("5e", 5),
            ("5e+", 5),
            ("1.", 1),
            ("-.5e1", -5),
            (".", 0),
            ("+-3", 0),
            ("-1e30", i64::MIN),
            ("1e400", 0),
            ("", 0),
            ("é", 0),
        ];
        for (text, expected) in rows {
            assert_eq!(int_of(text), expected, "{text}");
        }
        assert_eq!(int_of("99999999999999999999"), i64::MAX);
        assert_eq!(int_of("-99999999999999999999"), i64::MIN);
    }
}
