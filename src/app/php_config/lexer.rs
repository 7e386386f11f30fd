//! PHP's source text as tokens.

use std::rc::Rc;

/// A token and the line it begins on.
#[derive(Debug, Clone)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) line: u32,
}

#[derive(Debug, Clone, PartialEq)]
pub(super) enum Kind {
    /// `$name`, without the `$`.
    Variable(Rc<str>),
    /// A word, maybe with a namespace: `return`, `env`, `\Foo\Bar`.
    Name(Rc<str>),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    /// A text with variables in it.
    Template(Rc<[Part]>),
    /// A text that is understood only as far as its end, and why.
    Opaque(&'static str),
    /// An operator or a bracket.
    Sign(&'static str),
    End,
}

/// A piece of a text in double quotes.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Part {
    Text(Rc<str>),
    Variable(Rc<str>),
}

/// Text that is not PHP.
#[derive(Debug)]
pub(super) struct LexError {
    pub(super) line: u32,
    pub(super) problem: &'static str,
}

/// Longer ones first, since the first that fits is taken.
#[rustfmt::skip]
const SIGNS: [&str; 61] = [
    "<<<", "===", "!==", "<=>", "**=", "...", "<<=", ">>=", "??=", "?->",
    "==", "!=", "<>", "<=", ">=", "&&", "||", "??", "=>", "->", "::", "++", "--", "+=", "-=", "*=", "/=", ".=", "%=",
    "&=", "|=", "^=", "<<", ">>", "**",
    "(", ")", "[", "]", "{", "}", ",", ";", ":", "?", "=", "<", ">", "+", "-", "*", "/", "%", ".", "!", "&", "|", "^",
    "~", "@", "$",
];

/// All tokens after `<?php`; the last one is [`Kind::End`].
pub(super) fn tokens(source: &str) -> Result<Vec<Token>, LexError> {
    let mut lexer = Lexer {
        source,
        at: 0,
        line: 1,
    };
    lexer.open()?;
    let mut tokens = Vec::new();
    loop {
        let token = lexer.token()?;
        let is_end = token.kind == Kind::End;
        tokens.push(token);
        if is_end {
            return Ok(tokens);
        }
    }
}

struct Lexer<'a> {
    source: &'a str,
    at: usize,
    line: u32,
}

impl<'a> Lexer<'a> {
    fn rest(&self) -> &'a str {
        self.source.get(self.at..).unwrap_or_default()
    }

    fn error<T>(&self, problem: &'static str) -> Result<T, LexError> {
        Err(LexError {
            line: self.line,
            problem,
        })
    }

    /// Steps over `len` bytes and counts their lines.
    fn skip(&mut self, len: usize) -> &'a str {
        let text = self.rest().get(..len).unwrap_or_default();
        let lines = text.bytes().filter(|b| *b == b'\n').count();
        self.line = self
            .line
            .saturating_add(u32::try_from(lines).unwrap_or(u32::MAX));
        self.at += text.len();
        text
    }

    fn skip_while(&mut self, matches: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        self.skip(rest.find(|c| !matches(c)).unwrap_or(rest.len()))
    }

    /// Steps over the opening tag.
    fn open(&mut self) -> Result<(), LexError> {
        if self.rest().starts_with("#!") {
            self.skip_while(|c| c != '\n');
        }
        self.skip_while(|c| c.is_whitespace() || c == '\u{feff}');
        let has_tag = self
            .rest()
            .get(..5)
            .is_some_and(|tag| tag.eq_ignore_ascii_case("<?php"));
        if !has_tag {
            return self.error("expected `<?php`");
        }
        self.skip(5);
        Ok(())
    }

    fn blanks_and_comments(&mut self) -> Result<(), LexError> {
        loop {
            self.skip_while(char::is_whitespace);
            let rest = self.rest();
            if rest.starts_with("/*") {
                let Some(len) = rest.get(2..).and_then(|rest| rest.find("*/")) else {
                    return self.error("a comment without an end");
                };
                self.skip(len + 4);
            } else if rest.starts_with('#') || rest.starts_with("//") {
                // Attributes (`#[..]`) stand on lines of their own and change no value.
                let line = rest.find('\n').unwrap_or(rest.len());
                let comment = rest.get(..line).unwrap_or_default();
                self.skip(comment.find("?>").unwrap_or(line));
            } else {
                return Ok(());
            }
        }
    }

    fn token(&mut self) -> Result<Token, LexError> {
        self.blanks_and_comments()?;
        let line = self.line;
        Ok(Token {
            kind: self.kind()?,
            line,
        })
    }

    fn kind(&mut self) -> Result<Kind, LexError> {
        let rest = self.rest();
        let mut chars = rest.chars();
        let Some(first) = chars.next() else {
            return Ok(Kind::End);
        };
        let second = chars.next();
        match first {
            '\'' => self.single_quoted(),
            '"' => self.double_quoted(),
            '?' if second == Some('>') => self.close(),
            '$' if second.is_some_and(is_name_start) => {
                self.skip(1);
                Ok(Kind::Variable(self.skip_while(is_name_part).into()))
            }
            '0'..='9' => self.number(),
            '.' if second.is_some_and(|c| c.is_ascii_digit()) => self.number(),
            '\\' if second.is_some_and(is_name_start) => Ok(self.name()),
            c if is_name_start(c) => Ok(self.name()),
            _ if rest.starts_with("<<<") => self.heredoc(),
            _ => match SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
                Some(sign) => {
                    self.skip(sign.len());
                    Ok(Kind::Sign(sign))
                }
                None => self.error("a character that PHP has no use for"),
            },
        }
    }

    fn name(&mut self) -> Kind {
        Kind::Name(self.skip_while(|c| is_name_part(c) || c == '\\').into())
    }

    /// `?>` ends a statement; only blanks may follow it.
    fn close(&mut self) -> Result<Kind, LexError> {
        self.skip(2);
        self.skip_while(char::is_whitespace);
        if self.rest().is_empty() {
            return Ok(Kind::Sign(";"));
        }
        self.error("text outside of PHP")
    }

    fn number(&mut self) -> Result<Kind, LexError> {
        let rest = self.rest();
        let prefix = rest.get(..2).unwrap_or_default().to_ascii_lowercase();
        let radix = match prefix.as_str() {
            "0x" => 16,
            "0b" => 2,
            "0o" => 8,
            _ => 10,
        };
        if radix != 10 {
            self.skip(2);
            return self.integer(radix);
        }
        let is_digit = |c: char| c.is_ascii_digit() || c == '_';
        let whole = rest.find(|c| !is_digit(c)).unwrap_or(rest.len());
        let mut len = whole;
        if rest[len..].starts_with('.') {
            let fraction = &rest[len + 1..];
            len += 1 + fraction.find(|c| !is_digit(c)).unwrap_or(fraction.len());
        }
        let exponent = rest[len..].strip_prefix(['e', 'E']).and_then(|exponent| {
            let digits = exponent.strip_prefix(['+', '-']).unwrap_or(exponent);
            let count = digits.find(|c| !is_digit(c)).unwrap_or(digits.len());
            (count > 0).then_some(1 + exponent.len() - digits.len() + count)
        });
        len += exponent.unwrap_or(0);
        if len == whole {
            return self.integer(if rest.starts_with('0') && whole > 1 {
                8
            } else {
                10
            });
        }
        let text = self.skip(len).replace('_', "");
        match text.parse() {
            Ok(value) => Ok(Kind::Float(value)),
            Err(_) => self.error("a number that cannot be read"),
        }
    }

    fn integer(&mut self, radix: u32) -> Result<Kind, LexError> {
        let digits = self
            .skip_while(|c| c.is_ascii_alphanumeric() || c == '_')
            .replace('_', "");
        if let Ok(value) = i64::from_str_radix(&digits, radix) {
            return Ok(Kind::Int(value));
        }
        let all_digits = !digits.is_empty() && digits.chars().all(|c| c.is_digit(radix));
        match digits.parse() {
            Ok(value) if all_digits && radix == 10 => Ok(Kind::Float(value)),
            _ if all_digits => Ok(Kind::Opaque("a number beyond 64 bits")),
            _ => self.error("a number that cannot be read"),
        }
    }

    fn single_quoted(&mut self) -> Result<Kind, LexError> {
        let rest = self.rest();
        let mut text = String::new();
        let mut chars = rest.char_indices().skip(1).peekable();
        while let Some((at, c)) = chars.next() {
            match c {
                '\'' => {
                    self.skip(at + 1);
                    return Ok(text_kind(text));
                }
                '\\' => {
                    let escaped = chars.next_if(|(_, c)| matches!(c, '\'' | '\\'));
                    text.push(escaped.map_or('\\', |(_, c)| c));
                }
                c => text.push(c),
            }
        }
        self.error("a text without a closing quote")
    }

    fn double_quoted(&mut self) -> Result<Kind, LexError> {
        let rest = self.rest();
        let body = rest.get(1..).unwrap_or_default();
        let Some(len) = double_quoted_len(body) else {
            return self.error("a text without a closing quote");
        };
        self.skip(len + 2);
        Ok(template(body.get(..len).unwrap_or_default(), Some('"')))
    }

    /// `<<<NAME` or `<<<'NAME'`, whose closing line may be indented since PHP 7.3.
    fn heredoc(&mut self) -> Result<Kind, LexError> {
        self.skip(3);
        self.skip_while(|c| c == ' ' || c == '\t');
        let quote = self
            .rest()
            .chars()
            .next()
            .filter(|c| matches!(c, '\'' | '"'));
        self.skip(quote.map_or(0, char::len_utf8));
        let label = self.skip_while(is_name_part);
        self.skip(quote.map_or(0, char::len_utf8));
        let header = self.skip_while(|c| c != '\n');
        if label.is_empty() || !header.trim().is_empty() {
            return self.error("a heredoc that cannot be read");
        }
        self.skip(1);
        let mut lines: Vec<&str> = Vec::new();
        loop {
            if self.rest().is_empty() {
                return self.error("a heredoc without an end");
            }
            let indent = self.skip_while(|c| c == ' ' || c == '\t');
            let is_end = self
                .rest()
                .strip_prefix(label)
                .is_some_and(|rest| !rest.starts_with(is_name_part));
            if is_end {
                self.skip(label.len());
                let stripped: Option<Vec<&str>> =
                    lines.iter().map(|line| dedent(line, indent)).collect();
                let Some(stripped) = stripped else {
                    return self.error("a heredoc line that is indented less than its end");
                };
                let body = stripped.join("\n");
                return Ok(match quote {
                    Some('\'') => text_kind(body),
                    _ => template(&body, None),
                });
            }
            let start = self.at - indent.len();
            self.skip_while(|c| c != '\n');
            let line = self.source.get(start..self.at).unwrap_or_default();
            lines.push(line.strip_suffix('\r').unwrap_or(line));
            self.skip(1);
        }
    }
}

fn dedent<'a>(line: &'a str, indent: &str) -> Option<&'a str> {
    if line.trim().is_empty() {
        Some("")
    } else {
        line.strip_prefix(indent)
    }
}

fn is_name_start(c: char) -> bool {
    c.is_ascii_alphabetic() || c == '_' || !c.is_ascii()
}

fn is_name_part(c: char) -> bool {
    is_name_start(c) || c.is_ascii_digit()
}

/// A file in another encoding was read with replacement characters; such a text is not what PHP sees.
fn text_kind(text: String) -> Kind {
    if text.contains('\u{fffd}') {
        Kind::Opaque("a text that is not UTF-8")
    } else {
        Kind::Text(text.into())
    }
}

/// Bytes up to the closing quote; quotes within `{$..}` do not count.
fn double_quoted_len(body: &str) -> Option<usize> {
    let bytes = body.as_bytes();
    let (mut at, mut braces) = (0, 0_usize);
    while let Some(byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 1,
            b'"' if braces == 0 => return Some(at),
            b'{' if braces > 0 || bytes.get(at + 1) == Some(&b'$') => braces += 1,
            b'}' => braces = braces.saturating_sub(1),
            _ => {}
        }
        at += 1;
    }
    None
}

/// Reads escapes and variables; `quote` is the one that needs a backslash.
fn template(body: &str, quote: Option<char>) -> Kind {
    let mut parts = Vec::new();
    // Bytes, since escapes may build characters from them.
    let mut text: Vec<u8> = Vec::new();
    let mut rest = body;
    while let Some(c) = rest.chars().next() {
        let after = &rest[c.len_utf8()..];
        let variable = match c {
            '\\' => {
                let (bytes, len) = escape(after, quote);
                match bytes {
                    Some(bytes) => text.extend(bytes),
                    None => return Kind::Opaque("an escape that PHP refuses"),
                }
                rest = &after[len..];
                continue;
            }
            '$' | '{' => variable(rest),
            _ => Ok(None),
        };
        match variable {
            Err(reason) => return Kind::Opaque(reason),
            Ok(Some((name, len))) => {
                parts.push((std::mem::take(&mut text), Some(name)));
                rest = &rest[len..];
            }
            Ok(None) => {
                text.extend_from_slice(&rest.as_bytes()[..c.len_utf8()]);
                rest = after;
            }
        }
    }
    parts.push((text, None));
    let mut pieces = Vec::new();
    for (text, variable) in parts {
        match String::from_utf8(text) {
            Ok(text) if !text.contains('\u{fffd}') => pieces.push(Part::Text(text.into())),
            _ => return Kind::Opaque("a text that is not UTF-8"),
        }
        pieces.extend(variable.map(|name| Part::Variable(name.into())));
    }
    match pieces.as_slice() {
        [Part::Text(text)] => Kind::Text(Rc::clone(text)),
        _ => Kind::Template(pieces.into()),
    }
}

/// The name in `$name`, `{$name}` or `${name}` and the length of all of it; `None` for a plain `$` or `{`.
fn variable(text: &str) -> Result<Option<(&str, usize)>, &'static str> {
    const TOO_MUCH: &str = "an expression inside a text";
    let name_of = |text: &'_ str| text.find(|c| !is_name_part(c)).unwrap_or(text.len());
    if let Some(rest) = text.strip_prefix("{$").or_else(|| text.strip_prefix("${")) {
        let len = name_of(rest);
        if len == 0 || !rest.starts_with(is_name_start) || !rest[len..].starts_with('}') {
            return Err(TOO_MUCH);
        }
        return Ok(Some((&text[2..2 + len], len + 3)));
    }
    let Some(rest) = text
        .strip_prefix('$')
        .filter(|rest| rest.starts_with(is_name_start))
    else {
        return Ok(None);
    };
    let len = name_of(rest);
    let after = &rest[len..];
    let is_more = after.starts_with('[') || after.starts_with("->") || after.starts_with("?->");
    if is_more {
        Err(TOO_MUCH)
    } else {
        Ok(Some((&rest[..len], len + 1)))
    }
}

/// What follows a backslash, as bytes, and how long it is; `None` for what PHP refuses.
fn escape(after: &str, quote: Option<char>) -> (Option<Vec<u8>>, usize) {
    let bytes = after.as_bytes();
    let simple = match bytes.first() {
        Some(b'n') => Some(b'\n'),
        Some(b't') => Some(b'\t'),
        Some(b'r') => Some(b'\r'),
        Some(b'v') => Some(0x0b),
        Some(b'e') => Some(0x1b),
        Some(b'f') => Some(0x0c),
        Some(b @ (b'\\' | b'$')) => Some(*b),
        Some(b'"') if quote == Some('"') => Some(b'"'),
        _ => None,
    };
    if let Some(byte) = simple {
        return (Some(vec![byte]), 1);
    }
    let run = |from: usize, most: usize, radix: u32| {
        let digits = bytes.get(from..).unwrap_or_default().iter().take(most);
        let len = digits
            .take_while(|b| char::from(**b).is_digit(radix))
            .count();
        let number = u32::from_str_radix(after.get(from..from + len).unwrap_or_default(), radix);
        number.ok().map(|number| (number, len))
    };
    let byte = |number: u32| Some(vec![u8::try_from(number & 0xff).unwrap_or_default()]);
    if let Some((number, len)) = run(0, 3, 8) {
        return (byte(number), len);
    }
    if bytes.first() == Some(&b'x')
        && let Some((number, len)) = run(1, 2, 16)
    {
        return (byte(number), len + 1);
    }
    if after.starts_with("u{") {
        let Some((number, len)) = run(2, 8, 16) else {
            return (None, 0);
        };
        let c = char::from_u32(number).filter(|_| bytes.get(2 + len) == Some(&b'}'));
        return (c.map(|c| c.to_string().into_bytes()), len + 3);
    }
    // Not an escape: the backslash stays.
    (Some(vec![b'\\']), 0)
}
