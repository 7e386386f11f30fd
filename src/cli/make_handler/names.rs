//! Names, literals and comments made of what payloads say.
//!
//! Class and property names are untrusted: whoever can push a job chooses
//! them. Identifiers are ASCII and bounded, literals escape all that is not
//! plain, comments never end early and show no control characters.

use std::collections::HashSet;
use std::fmt::Write as _;

use crate::app::slug;

/// Longest identifier that is made of a name.
const LONGEST: usize = 40;

/// Version whose rules turn letters into ASCII; any will do.
const SLUGS_OF: u32 = 13;

/// Names that a generated type cannot have: it would hide what the file itself uses.
const TAKEN_TYPES: [&str; 53] = [
    "ArtisanCommand",
    "AsMut",
    "AsRef",
    "BTreeMap",
    "BoxError",
    "Box",
    "Broadcast",
    "Clone",
    "Copy",
    "Debug",
    "Default",
    "Deserialize",
    "DoubleEndedIterator",
    "Drop",
    "Eq",
    "Err",
    "ExactSizeIterator",
    "Extend",
    "Fn",
    "FnMut",
    "FnOnce",
    "From",
    "FromIterator",
    "Future",
    "Hash",
    "Into",
    "IntoFuture",
    "IntoIterator",
    "Iterator",
    "JobContext",
    "Listener",
    "Mailable",
    "ModelIdentifier",
    "None",
    "Notification",
    "Ok",
    "Option",
    "Ord",
    "PartialEq",
    "PartialOrd",
    "Registry",
    "Result",
    "Self",
    "Send",
    "Sized",
    "Some",
    "String",
    "StringJob",
    "Sync",
    "ToOwned",
    "ToString",
    "TryFrom",
    "Vec",
];

/// Keywords of all editions, in use or reserved; `r#` does for all but the last four.
const KEYWORDS: [&str; 52] = [
    "abstract", "as", "async", "await", "become", "box", "break", "const", "continue", "do", "dyn",
    "else", "enum", "extern", "false", "final", "fn", "for", "gen", "if", "impl", "in", "let",
    "loop", "macro", "match", "mod", "move", "mut", "override", "priv", "pub", "ref", "return",
    "static", "struct", "trait", "true", "try", "type", "typeof", "unsafe", "unsized", "use",
    "virtual", "where", "while", "yield", "Self", "crate", "self", "super",
];

/// Names given out in one namespace.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<String>);

impl Names {
    /// A namespace of types.
    pub(super) fn of_types() -> Self {
        Self(TAKEN_TYPES.into_iter().map(str::to_owned).collect())
    }

    /// Takes the first of these names that is free, or the first one with a number.
    pub(super) fn take(&mut self, candidates: &[String]) -> String {
        let free = candidates.iter().find(|name| !self.0.contains(*name));
        let name = free.cloned().unwrap_or_else(|| {
            let first = candidates.first().map_or("Value", String::as_str);
            let needs_none =
                first.starts_with(|c: char| c.is_ascii_uppercase()) || first.ends_with('_');
            let separator = if needs_none { "" } else { "_" };
            // One more than there are names: one of them is free.
            (2..self.0.len() + 3)
                .map(|number| format!("{first}{separator}{number}"))
                .find(|name| !self.0.contains(name))
                .unwrap_or_default()
        });
        self.0.insert(name.clone());
        name
    }
}

/// The letters and digits of a name in ASCII, everything else as a space.
fn ascii(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(4 * LONGEST) {
        if c.is_ascii_alphanumeric() {
            out.push(c);
        } else if c.is_ascii() {
            out.push(' ');
        } else {
            out.push_str(&slug(c.encode_utf8(&mut [0; 4]), ' ', SLUGS_OF));
        }
    }
    out
}

/// A name of a type: `UpperCamelCase`; `or` if nothing is left of it.
pub(super) fn type_name(text: &str, or: &str) -> String {
    let mut name = String::new();
    for piece in ascii(text).split(' ').filter(|piece| !piece.is_empty()) {
        let (first, rest) = piece.split_at(1);
        name.push_str(&first.to_ascii_uppercase());
        // `SMS` is `Sms` in Rust, `OrderID` stays.
        if piece.len() > 1 && rest.bytes().all(|b| !b.is_ascii_lowercase()) {
            name.push_str(&rest.to_ascii_lowercase());
        } else {
            name.push_str(rest);
        }
    }
    name.truncate(LONGEST);
    match name.as_bytes().first() {
        None => or.to_owned(),
        Some(first) if first.is_ascii_digit() => format!("{or}{name}"),
        Some(_) => name,
    }
}

/// A name of a field or function: `snake_case`, not yet fit to be written, see [`raw`]; `or` if nothing is left of it.
pub(super) fn snake(text: &str, or: &str) -> String {
    let text: Vec<char> = ascii(text).chars().collect();
    let mut name = String::new();
    for (index, &c) in text.iter().enumerate() {
        if c == ' ' {
            if !name.is_empty() && !name.ends_with('_') {
                name.push('_');
            }
            continue;
        }
        let before = index.checked_sub(1).map(|before| text[before]);
        let after = text.get(index + 1);
        let begins_word = c.is_ascii_uppercase()
            && before.is_some_and(|before| {
                before.is_ascii_lowercase()
                    || before.is_ascii_digit()
                    || (before.is_ascii_uppercase() && after.is_some_and(char::is_ascii_lowercase))
            });
        if begins_word && !name.ends_with('_') {
            name.push('_');
        }
        name.push(c.to_ascii_lowercase());
    }
    name.truncate(LONGEST);
    let name = name.trim_end_matches('_');
    match name.as_bytes().first() {
        None => or.to_owned(),
        Some(first) if first.is_ascii_digit() => format!("{or}_{name}"),
        Some(_) if matches!(name, "self" | "super" | "crate") => format!("{name}_"),
        Some(_) => name.to_owned(),
    }
}

/// An identifier as source code has it.
pub(super) fn raw(name: &str) -> String {
    if KEYWORDS.contains(&name) {
        format!("r#{name}")
    } else {
        name.to_owned()
    }
}

/// What serde's `rename_all = "camelCase"` makes of a field's name.
pub(super) fn camel(name: &str) -> String {
    let mut camel = String::new();
    let mut begins_word = false;
    for c in name.chars() {
        if c == '_' {
            begins_word = true;
        } else if std::mem::take(&mut begins_word) && !camel.is_empty() {
            camel.push(c.to_ascii_uppercase());
        } else {
            camel.push(c);
        }
    }
    // What stands first is made small.
    camel[..camel.len().min(1)].to_ascii_lowercase() + camel.get(1..).unwrap_or_default()
}

/// Whether a character is what it looks like: no control, no space but the plain one, no mark of direction.
fn is_plain(c: char) -> bool {
    c == ' ' || c.is_ascii_graphic() || (!c.is_ascii() && c.is_alphanumeric())
}

/// A string literal of Rust.
pub(super) fn literal(text: &str) -> String {
    let mut out = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if is_plain(c) => out.push(c),
            c => out.extend(c.escape_unicode()),
        }
    }
    out.push('"');
    out
}

/// Text for a comment, between backticks: one line that ends neither comment nor code.
pub(super) fn quoted(text: &str) -> String {
    const MOST: usize = 120;
    let mut out = String::from("`");
    for c in text.chars().take(MOST) {
        out.push(match c {
            '`' => '\'',
            c if is_plain(c) => c,
            _ => '\u{fffd}',
        });
    }
    if text.chars().nth(MOST).is_some() {
        out.push_str(" ...");
    }
    out.push('`');
    out
}

/// A string of TOML, as a mapping names a target exactly.
pub(super) fn toml_pattern(name: &str) -> String {
    let pattern = if name.starts_with('/') || name.contains(['*', '?']) {
        format!("/^{}$/", regex::escape(name))
    } else {
        name.to_owned()
    };
    if pattern.chars().all(is_plain) && !pattern.contains('\'') {
        return format!("'{pattern}'");
    }
    let mut out = String::from("\"");
    for c in pattern.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if is_plain(c) => out.push(c),
            c => {
                let _ = write!(out, "\\U{:08x}", u32::from(c));
            }
        }
    }
    out.push('"');
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_identifiers() {
        #[rustfmt::skip]
        let rows = [
            ("orderId", "order_id", "OrderId"),
            ("ProcessPodcast", "process_podcast", "ProcessPodcast"),
            ("SendSMS", "send_sms", "SendSMS"),
            ("SMS", "sms", "Sms"),
            ("HTMLBody", "html_body", "HTMLBody"),
            ("address2", "address2", "Address2"),
            ("line2Text", "line2_text", "Line2Text"),
            ("with space", "with_space", "WithSpace"),
            ("--times", "times", "Times"),
            ("__x__", "x", "X"),
            ("2fast", "field_2fast", "Field2fast"),
            ("", "field", "Field"),
            ("zażółć", "zazolc", "Zazolc"),
            ("\u{202e}//\n", "field", "Field"),
            ("self", "self_", "Self"),
            ("type", "type", "Type"),
        ];
        for (text, field, ty) in rows {
            assert_eq!(snake(text, "field"), field, "{text:?}");
            assert_eq!(type_name(text, "Field"), ty, "{text:?}");
        }
        assert_eq!(snake(&"a".repeat(500), "field").len(), LONGEST);
        assert_eq!(raw("type"), "r#type");
        assert_eq!(raw("order"), "order");
    }

    #[test]
    fn a_name_is_given_once() {
        let mut names = Names::of_types();
        let wanted = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
        assert_eq!(names.take(&wanted(&["Point"])), "Point");
        assert_eq!(
            names.take(&wanted(&["Point", "ValuesPoint"])),
            "ValuesPoint"
        );
        assert_eq!(names.take(&wanted(&["Point", "ValuesPoint"])), "Point2");
        assert_eq!(names.take(&wanted(&["Option"])), "Option2");
        let mut names = Names::default();
        assert_eq!(names.take(&wanted(&["x"])), "x");
        assert_eq!(names.take(&wanted(&["x"])), "x_2");
        names.take(&wanted(&["self_"]));
        assert_eq!(names.take(&wanted(&["self_"])), "self_2");
    }

    #[test]
    fn camel_case_is_serdes() {
        for (field, expected) in [
            ("order_id", "orderId"),
            ("x", "x"),
            ("x_2", "x2"),
            ("a_b_c", "aBC"),
        ] {
            assert_eq!(camel(field), expected);
        }
    }

    #[test]
    fn nothing_breaks_out_of_literals_and_comments() {
        #[rustfmt::skip]
        let rows = [
            ("plain", "\"plain\"", "`plain`"),
            ("a\"b\\", "\"a\\\"b\\\\\"", "`a\"b\\`"),
            ("a\nfn x() {}", "\"a\\u{a}fn x() {}\"", "`a\u{fffd}fn x() {}`"),
            ("`]\r\u{2028}", "\"`]\\u{d}\\u{2028}\"", "`']\u{fffd}\u{fffd}`"),
            ("\u{202e}abc", "\"\\u{202e}abc\"", "`\u{fffd}abc`"),
            ("żółć", "\"żółć\"", "`żółć`"),
        ];
        for (text, as_literal, as_comment) in rows {
            assert_eq!(literal(text), as_literal);
            assert_eq!(quoted(text), as_comment);
        }
    }

    #[test]
    fn a_mapping_names_its_target_and_no_other() {
        #[rustfmt::skip]
        let rows = [
            ("App\\Jobs\\X", "'App\\Jobs\\X'"),
            ("it's", "\"it's\""),
            ("a\nb\\", "\"a\\U0000000ab\\\\\""),
            ("a*", "'/^a\\*$/'"),
            ("/x", "'/^/x$/'"),
        ];
        for (name, expected) in rows {
            let toml = toml_pattern(name);
            assert_eq!(toml, expected);
            let read: toml::Table = format!("job = {toml}").parse().unwrap();
            let pattern = crate::handler::Pattern::parse(read["job"].as_str().unwrap()).unwrap();
            assert!(pattern.matches(name), "{toml}");
            assert!(!pattern.matches(&format!("{name}y")), "{toml}");
        }
    }
}
