//! Regular expressions as PHP writes them, as far as they mean the same here.

use std::str::FromStr;

use regex::bytes::{Regex, RegexBuilder};

/// A regular expression between delimiters (`#^App\\Jobs\\#i`) that means here what it means to PHP's `preg_match`.
#[derive(Debug, Clone)]
pub struct PhpPattern(Regex);

/// A pattern that only PHP can read.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("only PHP can read the pattern `{pattern}`: {why}")]
pub struct PhpPatternError {
    /// As written.
    pub pattern: String,
    /// What is special about it.
    pub why: &'static str,
}

impl PhpPattern {
    /// Whether it matches somewhere in this name.
    pub fn matches(&self, name: &str) -> bool {
        self.0.is_match(name.as_bytes())
    }
}

impl FromStr for PhpPattern {
    type Err = PhpPatternError;

    fn from_str(pattern: &str) -> Result<Self, PhpPatternError> {
        let wrong = |why| PhpPatternError {
            pattern: pattern.to_owned(),
            why,
        };
        let pattern = pattern.trim_start();
        let mut chars = pattern.chars();
        let begin = chars
            .next()
            .filter(|c| c.is_ascii_punctuation() && *c != '\\')
            .ok_or_else(|| wrong("it has no delimiter"))?;
        let end = match begin {
            '(' => ')',
            '[' => ']',
            '{' => '}',
            '<' => '>',
            other => other,
        };
        let (body, modifiers) = (chars.as_str())
            .rsplit_once(end)
            .ok_or_else(|| wrong("its closing delimiter is missing"))?;
        if let Some(why) = special(body, end) {
            return Err(wrong(why));
        }
        // An escaped delimiter is the character itself.
        let body = if end.is_ascii_alphanumeric() || "^$.|?*+()[]{}".contains(end) {
            body.to_owned()
        } else {
            body.replace(&format!("\\{end}"), &regex::escape(&end.to_string()))
        };
        let mut builder = RegexBuilder::new(&body);
        builder.unicode(false);
        for modifier in modifiers.chars() {
            match modifier {
                'i' => drop(builder.case_insensitive(true)),
                'm' => drop(builder.multi_line(true)),
                's' => drop(builder.dot_matches_new_line(true)),
                'u' => drop(builder.unicode(true)),
                // They say how fast it is, or what the end of a name with a line break is.
                'D' | 'S' | '\n' | ' ' => {}
                _ => {
                    return Err(wrong(
                        "of its modifiers only i, m, s, u, D and S are known here",
                    ));
                }
            }
        }
        let regex = builder.build();
        Ok(Self(regex.map_err(|_| {
            wrong("it looks around, refers back, or has other syntax that is not known here")
        })?))
    }
}

/// What would be read without an error and mean something else here.
fn special(body: &str, end: char) -> Option<&'static str> {
    let mut chars = body.chars().peekable();
    let mut is_class = false;
    let mut before = '\0';
    while let Some(c) = chars.next() {
        let next = chars.peek().copied().unwrap_or('\0');
        match c {
            '\\' => {
                if "<>".contains(next) && next != end {
                    return Some("`\\<` and `\\>` mean something else here");
                }
                chars.next();
                before = '\\';
                continue;
            }
            '[' if is_class && next != ':' => {
                return Some("a bracket in a class means a class here");
            }
            '[' => is_class = true,
            // A class may begin with it.
            ']' if is_class && before != '[' && before != '^' => is_class = false,
            '&' | '-' | '~' if is_class && next == c => {
                return Some("a doubled sign in a class means an operation here");
            }
            '+' if !is_class && "*+?}".contains(before) => {
                return Some("a possessive quantifier means something else here");
            }
            _ => {}
        }
        // The colon of `[:alpha:]` closes what it opens.
        if is_class && c == ':' && next == ']' {
            chars.next();
        }
        before = c;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_are_read_as_php_reads_them() {
        #[rustfmt::skip]
        let rows = [
            ("/^Package\\\\Jobs\\\\/", "Package\\Jobs\\A", true), ("/^Package\\\\Jobs\\\\/", "App\\Jobs\\A", false),
            ("#ship$#i", "App\\SHIP", true), ("{a{2}}", "baab", true), ("/a\\/b/", "xa/b", true),
            ("~[[:upper:]]x~", "aBx", true), ("~[[:upper:]]x~", "abx", false), ("(^é)u", "école", true),
            ("/\\d/", "\u{663}", false), ("/[]a]/", "]", true), ("#\\##", "a#", true),
        ];
        for (pattern, name, expected) in rows {
            let pattern: PhpPattern = pattern.parse().unwrap();
            assert_eq!(pattern.matches(name), expected, "{pattern:?} {name}");
        }
    }

    #[test]
    fn a_pattern_that_could_mean_something_else_is_left_to_php() {
        for pattern in [
            "",
            "abc",
            "/abc",
            "/(?<!a)b/",
            "/(a)\\1/",
            "/a/e",
            "/a++/",
            "/[a&&b]/",
            "/[a[b]/",
            "/\\<a/",
            "/a/x",
        ] {
            assert!(pattern.parse::<PhpPattern>().is_err(), "{pattern}");
        }
    }
}
