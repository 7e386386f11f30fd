//! Names, comments and mappings made from the contents of payloads.
//!
//! Class and property names are untrusted: everyone who can push a job chooses
//! them. Identifiers are ASCII and bounded, comments never end early and contain
//! no control characters.

use std::collections::HashSet;

use heck::{ToSnakeCase as _, ToUpperCamelCase as _};
use proc_macro2::Span;
use syn::Ident;

use crate::shown;

/// Longest identifier made from a name.
const LONGEST: usize = 40;

/// Names that a generated type must not have, because it would hide names that the file uses.
const TAKEN_TYPES: &str = "ArtisanCommand AsMut AsRef BTreeMap BoxError Box Broadcast Clone Copy \
    Debug Default Deserialize DoubleEndedIterator Drop Eq Err ExactSizeIterator Extend Fn FnMut \
    FnOnce From FromIterator Future Hash Into IntoFuture IntoIterator Iterator JobContext Listener \
    Mailable ModelIdentifier None Notification Ok Option Ord PartialEq PartialOrd Registry Result \
    Self Send Sized Some String StringJob Sync ToOwned ToString TryFrom Vec";

/// Names taken in one namespace.
#[derive(Debug, Default)]
pub(super) struct Names(HashSet<String>);

impl Names {
    /// A namespace of types.
    pub(super) fn of_types() -> Self {
        let taken = TAKEN_TYPES.split_whitespace();
        Self(taken.map(str::to_owned).collect())
    }

    /// Takes the first free name of these, or else the first with a number added.
    pub(super) fn take(&mut self, candidates: &[String]) -> String {
        let first = candidates.first().map_or("", String::as_str);
        let is_type = first.starts_with(|c: char| c.is_ascii_uppercase());
        let separator = if is_type { "" } else { "_" };
        let stem = first.trim_end_matches('_');
        let numbered = (2..).map(|number| format!("{stem}{separator}{number}"));
        let mut names = candidates.iter().cloned().chain(numbered);
        let free = names.find(|name| self.0.insert(name.clone()));
        free.unwrap_or_default()
    }
}

/// The part of the text that can become a name, in ASCII.
fn ascii(text: &str) -> String {
    let one = |c: char| if c.is_ascii() { c } else { ' ' };
    text.chars().take(4 * LONGEST).map(one).collect()
}

/// A name that begins with a letter; `or` is put before one that does not.
fn named(mut name: String, or: &str, separator: &str) -> String {
    name.truncate(LONGEST);
    let name = name.trim_end_matches('_');
    match name.as_bytes().first() {
        None => or.to_owned(),
        Some(first) if first.is_ascii_digit() => format!("{or}{separator}{name}"),
        Some(_) => name.to_owned(),
    }
}

/// A name of a type: `UpperCamelCase`; `or` if no letter remains.
pub(super) fn type_name(text: &str, or: &str) -> String {
    named(ascii(text).to_upper_camel_case(), or, "")
}

/// A name of a field or function: `snake_case`; `or` if no letter remains.
pub(super) fn snake(text: &str, or: &str) -> String {
    let name = named(ascii(text).to_snake_case(), or, "_");
    // Keywords that `r#` does not make an identifier.
    match &*name {
        "self" | "super" | "crate" => format!("{name}_"),
        _ => name,
    }
}

/// An identifier in source code.
pub(super) fn ident(name: &str) -> Ident {
    // `gen` is a keyword since edition 2024.
    let is_keyword = name == "gen" || syn::parse_str::<Ident>(name).is_err();
    let make = if is_keyword {
        Ident::new_raw
    } else {
        Ident::new
    };
    make(name, Span::call_site())
}

/// Text for a comment, between backticks: one line that ends neither comment nor code.
pub(super) fn quoted(text: &str) -> String {
    format!("`{}`", shown::name(text).replace('`', "'"))
}

/// A string of TOML that names exactly one target in a mapping.
pub(super) fn toml_pattern(name: &str) -> String {
    let pattern = if name.starts_with('/') || name.contains(['*', '?']) {
        format!("/^{}$/", regex::escape(name))
    } else {
        name.to_owned()
    };
    if !pattern.contains(shown::is_unfit) && !pattern.contains('\'') {
        return format!("'{pattern}'");
    }
    // TOML has all escapes of JSON, but JSON leaves some characters unescaped that TOML does not.
    let json = serde_json::Value::from(pattern).to_string();
    let escaped = |c: char| match c {
        c if shown::is_unfit(c) => format!("\\U{:08x}", u32::from(c)),
        c => c.to_string(),
    };
    json.chars().map(escaped).collect()
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
            ("SendSMS", "send_sms", "SendSms"),
            ("SMS", "sms", "Sms"),
            ("HTMLBody", "html_body", "HtmlBody"),
            ("IN_PROGRESS", "in_progress", "InProgress"),
            ("address2", "address2", "Address2"),
            ("line2Text", "line2_text", "Line2Text"),
            ("with space", "with_space", "WithSpace"),
            ("--times", "times", "Times"),
            ("__x__", "x", "X"),
            ("2fast", "field_2fast", "Field2fast"),
            ("", "field", "Field"),
            ("über_größe", "ber_gr_e", "BerGrE"),
            ("\u{202e}//\n", "field", "Field"),
            ("self", "self_", "Self"),
            ("type", "type", "Type"),
        ];
        for (text, field, ty) in rows {
            assert_eq!(snake(text, "field"), field, "{text:?}");
            assert_eq!(type_name(text, "Field"), ty, "{text:?}");
        }
        assert_eq!(snake(&"a".repeat(500), "field").len(), LONGEST);
        for (name, expected) in [("type", "r#type"), ("gen", "r#gen"), ("order", "order")] {
            assert_eq!(ident(name).to_string(), expected);
        }
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
            // The name that `rename_all = "camelCase"` gives a field.
            assert_eq!(heck::AsLowerCamelCase(field).to_string(), expected);
        }
    }

    #[test]
    fn nothing_breaks_out_of_literals_and_comments() {
        #[rustfmt::skip]
        let rows = [
            ("plain", "\"plain\"", "`plain`"),
            ("a\"b\\", "\"a\\\"b\\\\\"", "`a\"b\\`"),
            ("a\nfn x() {}", "\"a\\nfn x() {}\"", "`a\\u{a}fn x() {}`"),
            ("`]\r\u{2028}", "\"`]\\r\\u{2028}\"", "`']\\u{d}\\u{2028}`"),
            ("\u{202e}abc", "\"\\u{202e}abc\"", "`\\u{202e}abc`"),
            ("żółć", "\"żółć\"", "`żółć`"),
        ];
        for (text, as_literal, as_comment) in rows {
            assert_eq!(quote::quote!(#text).to_string(), as_literal);
            assert_eq!(quoted(text), as_comment);
        }
    }

    #[test]
    fn a_mapping_names_its_target_and_no_other() {
        #[rustfmt::skip]
        let rows = [
            ("App\\Jobs\\X", "'App\\Jobs\\X'"),
            ("it's", "\"it's\""),
            ("a\nb\\", "\"a\\nb\\\\\""),
            ("a*", "'/^a\\*$/'"),
            ("/x", "'/^/x$/'"),
        ];
        for (name, expected) in rows {
            let toml = toml_pattern(name);
            assert_eq!(toml, expected);
            let read: toml::Table = format!("job = {toml}").parse().unwrap();
            let pattern = crate::payload::Pattern::parse(read["job"].as_str().unwrap()).unwrap();
            assert!(pattern.matches(name), "{toml}");
            assert!(!pattern.matches(&format!("{name}y")), "{toml}");
        }
    }
}
