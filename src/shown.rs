//! Text from payloads and programs, fit to be shown.
//!
//! It is data of strangers: as it stands it may paint a terminal, turn the
//! direction of a line, forge lines or be megabytes long.

use std::borrow::Cow;
use std::fmt::Write;
use std::time::Duration;

/// Most characters of a name that are shown; Laravel's own columns hold 255.
const LONGEST_NAME: usize = 255;

/// The text with control characters and bidirectional marks written out, as `\u{1b}`. Tabs stay.
pub(crate) fn printable(text: &str) -> Cow<'_, str> {
    if !text.contains(is_unfit) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for c in text.chars() {
        if is_unfit(c) {
            let _ = write!(shown, "{}", c.escape_unicode());
        } else {
            shown.push(c);
        }
    }
    Cow::Owned(shown)
}

/// A name, printable and at most 255 characters of it.
pub(crate) fn name(name: &str) -> Cow<'_, str> {
    // A character has a byte at least.
    if name.len() <= LONGEST_NAME {
        return printable(name);
    }
    match name.char_indices().nth(LONGEST_NAME) {
        Some((end, _)) => Cow::Owned(format!("{}…", printable(&name[..end]))),
        None => printable(name),
    }
}

/// The beginning of an id; what prints it writes out what is unfit.
pub(crate) fn bounded(id: &str) -> &str {
    &id[..id.floor_char_boundary(LONGEST_NAME)]
}

/// As much of a text as a line of the log bears.
pub(crate) fn short(text: &str) -> Cow<'_, str> {
    const LONGEST: usize = 2000;
    match text.char_indices().nth(LONGEST) {
        Some((end, _)) => Cow::Owned(format!("{} ..", &text[..end])),
        None => Cow::Borrowed(text),
    }
}

/// A time without the digits that only blur it: whole milliseconds, or microseconds below one.
pub(crate) fn rounded(time: Duration) -> Duration {
    let step = if time < Duration::from_millis(1) {
        Duration::from_micros(1)
    } else {
        Duration::from_millis(1)
    };
    let beyond = time.as_nanos() % step.as_nanos();
    time.saturating_sub(Duration::from_nanos(u64::try_from(beyond).unwrap_or(0)))
}

/// Bytes as lowercase hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    let mut hex = String::with_capacity(2 * bytes.len());
    for byte in bytes {
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}

/// Whether a character does something to what is around it.
pub(crate) fn is_unfit(c: char) -> bool {
    match c {
        '\t' => false,
        // Bidirectional marks, embeddings, overrides and isolates; separators of lines.
        '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => {
            true
        }
        c => c.is_control(),
    }
}

/// The messages of an error and of its causes, each said once: some errors repeat their cause in their own text.
pub(crate) fn causes(error: &(dyn std::error::Error + 'static)) -> Vec<String> {
    let mut chain = vec![error.to_string()];
    let mut cause = error.source();
    while let Some(error) = cause {
        let text = error.to_string();
        if !chain.iter().any(|said| said.contains(&text)) {
            chain.push(text);
        }
        cause = error.source();
    }
    chain
}

/// The messages of an error and of its causes, in one line.
pub(crate) fn with_causes(error: &(dyn std::error::Error + 'static)) -> String {
    causes(error).join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_paints_or_turns_a_line_is_written_out() {
        let rows = [
            ("App\\Jobs\\Später", "App\\Jobs\\Später"),
            ("a\tb", "a\tb"),
            ("\u{1b}[2Jgone", "\\u{1b}[2Jgone"),
            ("\u{9b}31m", "\\u{9b}31m"),
            ("two\nlines\r\0", "two\\u{a}lines\\u{d}\\u{0}"),
            ("txt.\u{202e}exe\u{2066}", "txt.\\u{202e}exe\\u{2066}"),
        ];
        for (text, expected) in rows {
            assert_eq!(printable(text), expected);
            assert_eq!(name(text), expected);
        }
    }

    #[test]
    fn times_are_shown_with_the_digits_that_matter() {
        let rows = [
            (7_414_127_592, "7.414s"),
            (319_292_754, "319ms"),
            (54_321, "54µs"),
            (0, "0ns"),
        ];
        for (nanos, expected) in rows {
            let shown = format!("{:?}", rounded(Duration::from_nanos(nanos)));
            assert_eq!(shown, expected);
        }
    }

    #[test]
    fn long_names_are_cut_at_a_character() {
        let whole = "ä".repeat(LONGEST_NAME);
        assert_eq!(name(&whole), whole);
        let shown = name(&"ä".repeat(LONGEST_NAME + 1)).into_owned();
        assert_eq!(shown, whole + "…");
    }
}
