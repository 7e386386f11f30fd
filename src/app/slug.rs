//! `Str::slug` of ASCII text, which names an app's default Redis and cache prefixes.
//!
//! Laravel turns other text into ASCII with a table that changed with the framework,
//! so only PHP can do that. The rules are in `docs/protocol/app-config.md` 4.

/// The slug of a text: `My App` becomes `my_app`; `None` if the text is not ASCII.
///
/// The separator is `_` or `-` in every Laravel skeleton. In the text, the other one of the two
/// also becomes the separator.
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
