//! `Str::slug` of any text, which names an app's default Redis and cache prefixes.
//!
//! Laravel turns the text into ASCII first, by a table that changed with the
//! framework: [`slug`] follows the major version that will do it in PHP. It is
//! exact for the texts of which [`is_exact`] says so; the tables before Laravel 9
//! are known for Latin, Russian, Vietnamese and for all that they drop (Chinese,
//! Japanese, Korean, emoji), not for every script.
//!
//! The rules are in `docs/protocol/app-config.md` 4. What surprises:
//!
//! * Laravel 5 and 6 drop tabs and line breaks, later ones make them separators.
//! * A text without a Latin equivalent becomes empty, and that is a legal prefix.
//! * Sequences of letters (Bengali, Burmese) depend on the minor version of a
//!   package that Laravel 7 to 12 leave open.

use std::collections::HashMap;
use std::sync::LazyLock;

/// What PHP makes of a text: `My App` becomes `my_app`; `laravel_major` picks the transliteration.
///
/// The separator is `_` or `-` in every Laravel skeleton; the other of the two
/// in the text becomes the separator, too.
///
/// # Source
///
/// `Illuminate\Support\Str::slug` with language `en`, since 5.5.
pub fn slug(text: &str, separator: char, laravel_major: u32) -> String {
    let flip = if separator == '-' { '_' } else { '-' };
    let mut words = String::with_capacity(text.len());
    for c in ascii(text, laravel_major).chars() {
        if c == flip {
            words.push(separator);
        } else if c == '@' {
            words.extend([separator, 'a', 't', separator]);
        } else {
            words.push(c.to_ascii_lowercase());
        }
    }
    let mut slug = String::with_capacity(words.len());
    for c in words.chars() {
        // A letter as separator is legal: it is one before it is a letter.
        if c == separator || is_space(c) {
            if !slug.ends_with(separator) {
                slug.push(separator);
            }
        } else if c.is_ascii_alphanumeric() {
            slug.push(c);
        }
    }
    slug.trim_matches(separator).to_owned()
}

/// True if [`slug`] is known to be what this major version of Laravel makes of the text.
pub(super) fn is_exact(text: &str, laravel_major: u32) -> bool {
    if text.is_ascii() {
        return true;
    }
    let known = match laravel_major {
        ..=6 => text.chars().all(is_known_to_laravel_6),
        7..=8 => text.chars().all(is_known_to_portable_ascii_1),
        _ => true,
    };
    known && (laravel_major >= 13 || !has_sequence(text))
}

/// What PHP's `\s` matches in ASCII.
fn is_space(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

fn ascii(text: &str, laravel_major: u32) -> String {
    if text.is_ascii() {
        return text
            .chars()
            .filter_map(|c| printable(c, laravel_major))
            .collect();
    }
    let mut ascii = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let old = old_replacement(first, laravel_major);
        let (replacement, len) = match old {
            Some(replacement) => (replacement, first.len_utf8()),
            None => replacement(rest).unwrap_or(("", first.len_utf8())),
        };
        if first.is_ascii() {
            ascii.extend(printable(first, laravel_major));
        } else {
            ascii.push_str(replacement);
        }
        rest = rest.get(len..).unwrap_or_default();
    }
    ascii
}

fn printable(c: char, laravel_major: u32) -> Option<char> {
    match c {
        ' '..='~' => Some(c),
        '\t' | '\n' | '\r' if laravel_major > 6 => Some(' '),
        _ => None,
    }
}

/// The replacement of the longest listed sequence that the text begins with, and the sequence's length.
fn replacement(text: &str) -> Option<(&'static str, usize)> {
    let mut ends = text.char_indices().map(|(at, c)| at + c.len_utf8());
    let ends: Vec<usize> = ends.by_ref().take(TABLE.longest).collect();
    ends.into_iter().rev().find_map(|end| {
        let replacement = TABLE.replacements.get(text.get(..end)?)?;
        Some((*replacement, end))
    })
}

fn has_sequence(text: &str) -> bool {
    let mut starts = text.char_indices();
    starts.any(|(at, c)| replacement(&text[at..]).is_some_and(|(_, len)| len > c.len_utf8()))
}

struct Table {
    replacements: HashMap<String, &'static str>,
    /// Code points in the longest key.
    longest: usize,
}

static TABLE: LazyLock<Table> = LazyLock::new(|| {
    let mut table = Table {
        replacements: HashMap::new(),
        longest: 1,
    };
    for line in include_str!("../../docs/protocol/slug-ascii-en.tsv").lines() {
        let Some((code_points, replacement)) = line.split_once('\t') else {
            continue; // a comment
        };
        let key: Option<String> = code_points
            .split(' ')
            .map(|hex| char::from_u32(u32::from_str_radix(hex, 16).ok()?))
            .collect();
        if let Some(key) = key {
            table.longest = table.longest.max(key.chars().count());
            table.replacements.insert(key, replacement);
        }
    }
    table
});

/// Where an older Laravel differs from the table.
fn old_replacement(c: char, laravel_major: u32) -> Option<&'static str> {
    match laravel_major {
        ..=6 => laravel_6(c),
        7..=8 => portable_ascii_1(c),
        _ => None,
    }
}

fn portable_ascii_1(c: char) -> Option<&'static str> {
    Some(match c {
        'Ё' | 'ё' => "yo",
        'Ю' | 'ю' => "yu",
        'Я' | 'я' => "ya",
        'Ъ' | 'ъ' => "",
        'پ' => "b",
        _ => return None,
    })
}

/// Observed on 5.5.50, 5.8.38 and 6.20.45, which agree in the ranges of [`is_known_to_laravel_6`].
fn laravel_6(c: char) -> Option<&'static str> {
    Some(match c {
        '©' => "c",
        '°' => "0",
        'µ' => "u",
        'Ĝ' => "gx",
        'Ĥ' => "hx",
        'Ĵ' => "jx",
        'ŝ' => "sx",
        'Ж' | 'ж' => "zh",
        'Й' | 'й' => "y",
        'Х' | 'х' => "kh",
        'Ц' | 'ц' => "ts",
        'Ч' | 'ч' => "ch",
        'Ш' | 'ш' => "sh",
        'Щ' | 'щ' => "shch",
        'Ю' | 'ю' => "yu",
        'Я' | 'я' => "ya",
        'Ъ' | 'ъ' | '¢' | '£' | '¥' | '–' | '—' | '€' => "",
        _ => return None,
    })
}

fn is_known_to_laravel_6(c: char) -> bool {
    !matches!(c, '元' | '円')
        && matches!(
            c,
            '\0'..='ſ'
                | 'Ё'
                | 'А'..='я'
                | 'ё'
                | '\u{1ea0}'..='\u{1eff}'
                | '\u{2002}'..='\u{200a}'
                | '\u{200c}'..='\u{2027}'
                | '€'
                | '\u{2190}'..='\u{2bff}'
                | '\u{3000}'..='\u{a4cf}'
                | '\u{ac00}'..='\u{d7a3}'
                | '\u{fe00}'..='\u{fe0f}'
                | '\u{1f300}'..='\u{1f64f}'
                | '\u{1f680}'..='\u{1faff}'
                | '\u{20000}'..='\u{3ffff}'
        )
}

/// All but Bengali, Burmese and two letters of Georgian, which changed within 1.x.
fn is_known_to_portable_ascii_1(c: char) -> bool {
    !matches!(c, 'ქ' | 'ყ' | '\u{0964}' | '\u{0980}'..='\u{09ff}' | '\u{1000}'..='\u{109f}')
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
            ("My.App", "myapp"), ("foo/bar", "foobar"), ("Ünïcode Äpp", "unicode_app"), ("Straße", "strasse"),
            ("a–b", "a_b"), ("Привет мир", "privet_mir"), ("€uro", "eururo"), ("App™", "app"), ("a\u{a0}b", "a_b"),
            ("a\tb\nc", "a_b_c"), ("日本語", ""), ("", ""), ("---", ""), (" _x_ ", "x"), ("🚀 Rocket", "rocket"),
            ("ক\u{9cd}ষ", "ksh"), ("e\u{301}", "e"), ("Ёлка Юля", "elka_iulia"),
        ];
        for (text, expected) in rows {
            assert_eq!(slug(text, '_', 13), expected, "{text:?}");
            assert_eq!(slug(text, '-', 13), expected.replace('_', "-"), "{text:?}");
            assert!(is_exact(text, 13), "{text:?}");
        }
    }

    #[test]
    fn older_versions_transliterate_in_their_own_way() {
        #[rustfmt::skip]
        let rows = [
            // text, Laravel 6, Laravel 8, Laravel 9; None where it is not known
            ("Ёлка Юля", Some("elka_yulya"), Some("yolka_yulya"), Some("elka_iulia")),
            ("Жизнь",    Some("zhizn"),      Some("zizn"),        Some("zizn")),
            ("© 20°",    Some("c_200"),      Some("20"),          Some("20")),
            ("a\tb",     Some("ab"),         Some("a_b"),         Some("a_b")),
            ("£5 – €6",  Some("5_6"),        Some("ps5_eur6"),    Some("ps5_eur6")),
            ("Việt 東京", Some("viet"),       Some("viet"),        Some("viet")),
            ("ΑΒΓ",      None,               Some("abg"),         Some("abg")),
            ("কখ",       None,               None,                Some("kkh")),
            ("ক\u{9cd}ষ", None,             None,                None),
        ];
        for (text, six, eight, nine) in rows {
            for (major, expected) in [(6, six), (8, eight), (9, nine)] {
                let known = is_exact(text, major).then(|| slug(text, '_', major));
                assert_eq!(known.as_deref(), expected, "{text:?} on {major}");
            }
        }
    }
}
