//! `Str::slug` of ASCII text, which names an app's default Redis and cache prefixes.
//!
//! Other text is turned into ASCII by a table that changed with the framework:
//! that is for PHP to do. The rules are in `docs/protocol/app-config.md` 4.

/// What PHP makes of a text, `My App` becomes `my_app`; `None` if the text is not ASCII.
///
/// The separator is `_` or `-` in every Laravel skeleton; the other of the two
/// in the text becomes the separator, too.
///
/// # Source
///
/// `Illuminate\Support\Str::slug`, the same since 5.5.
pub fn slug(text: &str, separator: char) -> Option<String> {
    if !text.is_ascii() {
        return None;
    }
    let at = format!("{separator}at{separator}");
    let words = text.replace(['-', '_'], &separator.to_string());
    let mut slug = String::with_capacity(words.len());
    for c in words.replace('@', &at).chars() {
        if c == separator || matches!(c, ' ' | '\t' | '\n' | '\r') {
            if !slug.ends_with(separator) {
                slug.push(separator);
            }
        } else if c.is_ascii_alphanumeric() {
            slug.push(c.to_ascii_lowercase());
        }
    }
    Some(slug.trim_matches(separator).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_what_str_slug_makes_of_them() {
        #[rustfmt::skip]
        let rows = [
            ("My App", "my_app"), ("my-app", "my_app"), ("My  -- App__x", "my_app_x"), ("App 2.0", "app_20"),
            ("user@example", "user_at_example"), ("@", "at"), ("Foo & Bar", "foo_bar"), ("O'Reilly", "oreilly"),
            ("My.App", "myapp"), ("foo/bar", "foobar"), ("a\tb\nc", "a_b_c"), ("", ""), ("---", ""), (" _x_ ", "x"),
        ];
        for (text, expected) in rows {
            assert_eq!(slug(text, '_').as_deref(), Some(expected), "{text:?}");
            let hyphens = expected.replace('_', "-");
            assert_eq!(slug(text, '-'), Some(hyphens), "{text:?}");
        }
        for text in ["Straße", "日本語", "a\u{a0}b"] {
            assert_eq!(slug(text, '_'), None, "{text:?}");
        }
    }
}
