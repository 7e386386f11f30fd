//! The app's `.env` file, read as vlucas/phpdotenv 5 reads it.
//!
//! The rules and their examples are in `docs/protocol/app-config.md` 2 and 3.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt;
use std::sync::LazyLock;

use regex::Regex;

/// Most bytes that references (`${NAME}`) may put into all values together: a file of some lines, each with the line
/// before it twice, would fill any memory.
const MOST_REFERRED: usize = 16 << 20;

/// Variables of one file. Real environment variables override them; the code that looks one up asks those first.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct EnvFile {
    values: HashMap<String, String>,
}

impl fmt::Debug for EnvFile {
    /// Shows no values, because many are secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.values.keys()).finish()
    }
}

/// An error in a file, which Laravel would refuse as well.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct EnvError {
    /// Line of the entry, from 1.
    pub line: usize,
    /// The problem, without the value, which may be a secret.
    pub problem: &'static str,
}

impl EnvFile {
    /// Reads a file; `real` looks up the process environment, for `${NAME}`. What is not UTF-8 becomes question marks.
    ///
    /// # Errors
    ///
    /// The first entry that phpdotenv refuses, too: Laravel does not start with such a file. Or the one at which
    /// references have made more than 16 MB.
    pub fn parse(
        file: &(impl AsRef<[u8]> + ?Sized),
        real: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, EnvError> {
        let text = utf8(file.as_ref());
        let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
        let mut values: HashMap<String, String> = HashMap::new();
        let mut room = MOST_REFERRED;
        for (line, entry) in entries(text) {
            let error = |problem| EnvError { line, problem };
            let (name, value) = match entry.split_once('=') {
                Some((name, value)) => (
                    name.trim_matches(is_trimmed),
                    Some(value.trim_matches(is_trimmed)),
                ),
                None => (&*entry, None),
            };
            let name =
                parse_name(name).ok_or_else(|| error("the name of the variable is invalid"))?;
            let Some(value) = value else {
                values.remove(&name);
                continue;
            };
            let mut known = |name: &str| {
                let value = real(name).or_else(|| values.get(name).cloned());
                let used = value.as_ref().map_or(0, String::len);
                room = room.checked_sub(used).ok_or(TOO_MUCH)?;
                Ok(value)
            };
            let value = parse_value(value, &mut known).map_err(error)?;
            values.insert(name, value);
        }
        Ok(Self { values })
    }

    /// The raw text of a variable.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.values.get(name).map(String::as_str)
    }

    /// All variables with their raw text, in no order.
    #[cfg(feature = "internals")]
    pub fn all(&self) -> impl Iterator<Item = (&str, &str)> {
        let all = self.values.iter();
        all.map(|(name, value)| (&**name, &**value))
    }
}

/// Laravel's `env()` cast, as far as text goes: `null` is absent, `empty` is empty, one pair of quotes comes off.
///
/// # Source
///
/// `Illuminate\Support\Env::get`.
pub fn cast(raw: &str) -> Option<String> {
    match raw.to_ascii_lowercase().as_str() {
        "null" | "(null)" => return None,
        "empty" | "(empty)" | "false" | "(false)" => return Some(String::new()),
        "true" | "(true)" => return Some("1".into()),
        _ => {}
    }
    for quote in ['"', '\''] {
        if let Some(inner) = raw
            .strip_prefix(quote)
            .and_then(|rest| rest.strip_suffix(quote))
            // The `.` of Laravel's pattern is no line break.
            .filter(|inner| !inner.contains('\n'))
        {
            return Some(inner.to_owned());
        }
    }
    Some(raw.to_owned())
}

/// The text as PHP's `mb_convert_encoding` makes it.
fn utf8(bytes: &[u8]) -> Cow<'_, str> {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.into();
    }
    let chunks = bytes.utf8_chunks();
    let parts = chunks.flat_map(|chunk| {
        let replacement = if chunk.invalid().is_empty() { "" } else { "?" };
        [chunk.valid(), replacement]
    });
    parts.collect()
}

/// Entries with the number of their first line; a double-quoted value may span lines.
fn entries(text: &str) -> Vec<(usize, String)> {
    let mut entries = Vec::new();
    let mut open: Option<(usize, String)> = None;
    let text = text.replace("\r\n", "\n").replace('\r', "\n");
    for (index, line) in text.split('\n').enumerate() {
        let (number, entry, is_open) = match open.take() {
            Some((number, mut buffer)) => {
                buffer.push('\n');
                buffer.push_str(line);
                (number, buffer, quotes(line) == 0)
            }
            None => (index + 1, line.to_owned(), opens(line)),
        };
        if is_open {
            open = Some((number, entry));
            continue;
        }
        let trimmed = entry.trim_start_matches(is_trimmed);
        if !trimmed.is_empty() && !trimmed.starts_with('#') {
            entries.push((number, entry));
        }
    }
    // Older parsers silently drop a value whose quote never closes; phpdotenv 5.8 reads it, and mostly refuses it.
    entries.extend(open);
    entries
}

/// Whether a line begins a value that continues in the next line.
fn opens(line: &str) -> bool {
    let value = line.find("=\"");
    let is_comment = |value| line.find('#').is_some_and(|hash| hash < value);
    value.is_some_and(|value| !is_comment(value)) && quotes(line) <= 1
}

/// Double quotes of a line that no backslash escapes.
fn quotes(line: &str) -> usize {
    let line = line.replace("\\\\", "");
    let bytes = line.as_bytes();
    let is_quote = |at: &usize| bytes[*at] == b'"' && (*at == 0 || bytes[at - 1] != b'\\');
    (0..bytes.len()).filter(is_quote).count()
}

/// Bytes that PHP's `trim` removes.
fn is_trimmed(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\0' | '\x0b')
}

/// White space in PHP, which is that of ASCII.
fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t' | '\n' | '\r' | '\x0b' | '\x0c')
}

/// A name: letters that have a case, no others.
static NAME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"\A[\p{Ll}\p{Lu}\p{M}\p{N}_.]+\z").expect("the pattern is constant")
});

fn parse_name(left: &str) -> Option<String> {
    // As phpdotenv 5.8; earlier versions checked only left sides of more than eight bytes, and refused others.
    let name = match left.strip_prefix("export") {
        Some(rest) if rest.starts_with(is_blank) => rest.trim_start_matches(is_blank),
        _ => left,
    };
    let unquoted = ['"', '\'']
        .iter()
        .find_map(|quote| name.strip_prefix(*quote)?.strip_suffix(*quote));
    let name = unquoted.unwrap_or(name);
    NAME.is_match(name).then(|| name.to_owned())
}

const TOO_MUCH: &str = "references to other variables make more than 16 MB of text";

/// Looks up the value that a reference means; `None` if there is none.
type Known<'k> = &'k mut dyn FnMut(&str) -> Result<Option<String>, &'static str>;

fn parse_value(value: &str, known: Known<'_>) -> Result<String, &'static str> {
    let mut chars = value.chars();
    match chars.next() {
        None => Ok(String::new()),
        Some('\'') => {
            let (inner, rest) = value[1..]
                .split_once('\'')
                .ok_or("a missing closing quote")?;
            only_comment(rest)?;
            Ok(inner.to_owned())
        }
        Some('"') => parse_double_quoted(&value[1..], known),
        Some(_) => {
            let end = value
                .find(|c: char| is_blank(c) || c == '#')
                .unwrap_or(value.len());
            only_comment(&value[end..])?;
            interpolate(&value[..end], known)
        }
    }
}

fn only_comment(rest: &str) -> Result<(), &'static str> {
    let rest = rest.trim_start_matches(is_blank);
    if rest.is_empty() || rest.starts_with('#') {
        Ok(())
    } else {
        Err("unexpected whitespace (quote a value with blanks)")
    }
}

fn parse_double_quoted(text: &str, known: Known<'_>) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut chars = text.char_indices();
    while let Some((at, c)) = chars.next() {
        match c {
            '"' => {
                only_comment(&text[at + 1..])?;
                return Ok(value);
            }
            '\\' => value.push(match chars.next().map(|(_, c)| c) {
                Some(c @ ('"' | '\\' | '$')) => c,
                Some('f') => '\x0c',
                Some('n') => '\n',
                Some('r') => '\r',
                Some('t') => '\t',
                Some('v') => '\x0b',
                _ => return Err("an unexpected escape sequence"),
            }),
            '$' => match referred(&text[at..], known)? {
                Some((len, found)) => {
                    value.push_str(&found);
                    for _ in 1..len {
                        chars.next();
                    }
                }
                None => value.push('$'),
            },
            c => value.push(c),
        }
    }
    Err("a missing closing quote")
}

/// The name in a leading `${NAME}`.
fn reference(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("${")?;
    let is_of_name = |b: u8| b.is_ascii_alphanumeric() || b == b'_' || b == b'.';
    let end = rest.bytes().position(|b| !is_of_name(b))?;
    let is_reference = end > 0 && rest[end..].starts_with('}');
    is_reference.then(|| &rest[..end])
}

/// The length of a leading reference, and the value that it means.
fn referred(text: &str, known: Known<'_>) -> Result<Option<(usize, String)>, &'static str> {
    let Some(name) = reference(text) else {
        return Ok(None);
    };
    let found = known(name)?;
    Ok(found.map(|found| (name.len() + 3, found)))
}

fn interpolate(text: &str, known: Known<'_>) -> Result<String, &'static str> {
    let mut value = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        value.push_str(&rest[..at]);
        let found = referred(&rest[at..], known)?;
        let (len, text) = found.unwrap_or_else(|| (2, "${".to_owned()));
        value.push_str(&text);
        rest = &rest[at + len..];
    }
    Ok(value + rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Option<String>, EnvError> {
        let file = EnvFile::parse(text, |name| (name == "B").then(|| "real".to_owned()))?;
        Ok(file.get("A").map(str::to_owned))
    }

    #[test]
    fn values_are_read_as_phpdotenv_reads_them() {
        #[rustfmt::skip]
        let rows = [
            ("A = 1", Some("1")), ("A=\"a b\" # c", Some("a b")), ("A=1#c", Some("1")), ("A=1 # c", Some("1")),
            ("A=\"a\"#c", Some("a")), ("A=#x", Some("")), ("A= # x", Some("")), ("A=", Some("")), ("A=\"\"", Some("")),
            ("A", None), ("A=x\\ny", Some("x\\ny")), ("A=\"x\\ny\"", Some("x\ny")), ("A='x\\ny'", Some("x\\ny")),
            ("A=${B}", Some("real")), ("A=\"${B}\"", Some("real")), ("A='${B}'", Some("${B}")), ("A=$B", Some("$B")),
            ("A=${NOPE}", Some("${NOPE}")), ("A=$2y$10$abc", Some("$2y$10$abc")), ("A==1", Some("=1")),
            ("A=base64:abc/+d==", Some("base64:abc/+d==")), ("A=1\nA=2", Some("2")), ("A=(x)", Some("(x)")),
            ("A=1;2", Some("1;2")), ("A=x\"y\"z", Some("x\"y\"z")), ("C=c\nA=${C}d", Some("cd")),
            ("A=\"1\n2\"\nC=3", Some("1\n2")), ("A=\"\\${B}\"", Some("${B}")), ("export  A=1", Some("1")),
            ("A=a\u{a0}b\u{2003}c", Some("a\u{a0}b\u{2003}c")), ("A=\u{3000}", Some("\u{3000}")),
            ("e\u{301}É٣=x\nA=1", Some("1")), ("\u{feff}A=1", Some("1")), ("# A=1\nA=3", Some("3")), ("'A'=1", Some("1")),
        ];
        for (text, expected) in rows {
            assert_eq!(read(text).unwrap().as_deref(), expected, "{text:?}");
        }
        let latin: &[u8] = b"# caf\xe9\nA=\xe2\x82\xe9\"x\xff\xf0\x9f\x98";
        let file = EnvFile::parse(latin, |_| None).unwrap();
        assert_eq!(file.get("A"), Some("??\"x??"));
        for text in [
            "A=a b",
            "A=\"a\" b",
            "A='a'\u{a0}",
            "A='it\\'s'",
            "A-B=1",
            "漢=1",
            "ª=1",
            "=1",
            "A=\"\\u00e9\"",
            "A='x",
            "A=\"open\nC=1",
        ] {
            assert!(read(text).is_err(), "{text:?}");
        }
        assert_eq!(read("X=1\nA=a b").unwrap_err().line, 2);
    }

    #[test]
    fn references_make_a_bounded_text_of_a_few_lines() {
        let doubled = |quote: &str| {
            let line = |n: u32| format!("A{n}={quote}${{A{0}}}${{A{0}}}{quote}\n", n - 1);
            format!("A0=ten-bytes!\n{}", (1..60).map(line).collect::<String>())
        };
        for quote in ["", "\""] {
            let error = EnvFile::parse(&doubled(quote), |_| None).unwrap_err();
            assert_eq!((error.line, error.problem), (21, TOO_MUCH));
        }
        let began = std::time::Instant::now();
        for text in [
            "${".repeat(500_000),
            format!("\"{}\"", "${A".repeat(500_000)),
        ] {
            EnvFile::parse(&format!("A={text}"), |_| None).unwrap();
        }
        // Quadratic time would take minutes.
        assert!(began.elapsed().as_secs() < 10, "{:?}", began.elapsed());
    }

    #[test]
    fn words_are_cast_as_env_casts_them() {
        let rows = [
            ("null", None),
            ("(NULL)", None),
            ("empty", Some("")),
            ("true", Some("1")),
            ("'x'", Some("x")),
            ("'x\ny'", Some("'x\ny'")),
            ("yes", Some("yes")),
        ];
        for (raw, expected) in rows {
            assert_eq!(cast(raw).as_deref(), expected, "{raw}");
        }
    }
}
