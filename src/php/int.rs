//! PHP's conversion of text to a number.

/// PHP's `(int)` of a string: leading blanks, a sign, digits; the rest is ignored.
pub(crate) fn int_of(text: &str) -> i64 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits_from = usize::from(text.starts_with(['-', '+']));
    let end = text[digits_from..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |end| digits_from + end);
    // PHP takes "1e3" for 1000, and "1.9" for 1.
    if text[end..].starts_with(['e', 'E', '.']) {
        let float_end = text
            .find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c))
            .unwrap_or(text.len());
        if let Ok(value) = text[..float_end].parse::<f64>() {
            #[expect(clippy::cast_possible_truncation, reason = "PHP truncates too")]
            return value as i64;
        }
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
