//! Reads and writes JSON as PHP and Redis do.
//!
//! A payload is read in one pass, field by field: nearly half of its bytes are the
//! escaped text of the command, and most of its fields are short.

use std::borrow::Cow;
use std::fmt;

use crate::php::Value;
use crate::php::int_of;

/// Most levels of arrays and objects: `json_decode` refuses the 512th, which is its default depth.
const MAX_DEPTH: usize = 511;

/// JSON that PHP's `json_decode` or Laravel's pop script would refuse: the problem and its place, without the
/// content, which may be a secret.
#[derive(Debug)]
pub(super) struct JsonError {
    problem: &'static str,
    offset: usize,
}

impl fmt::Display for JsonError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (byte {})", self.problem, self.offset)
    }
}

/// A value; of an array or object only its opening.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Token<'t> {
    Null,
    Bool(bool),
    Int(i64),
    /// Also a whole number beyond 64 bits, as in PHP.
    Float(f64),
    Text(&'t str),
    /// [`Reader::elements`] has to follow.
    Array,
    /// [`Reader::members`] has to follow.
    Object,
}

/// Reads a text from its beginning to its end.
///
/// It refuses all on which PHP's `json_decode` or Laravel's pop script would fail, in unused values too, so that
/// such a payload is detected at once and not when a PHP worker loses it.
#[derive(Debug)]
pub(super) struct Reader<'a> {
    text: &'a str,
    pos: usize,
    depth: usize,
    /// Holds the string that was read last, if it had escapes. It only grows.
    unescaped: Vec<u8>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let text = std::str::from_utf8(bytes).map_err(|error| JsonError {
            problem: "invalid UTF-8",
            offset: error.valid_up_to(),
        })?;
        Ok(Self {
            text,
            pos: 0,
            depth: 0,
            unescaped: Vec::new(),
        })
    }

    /// Checks that only blanks are left.
    pub(super) fn end(&mut self) -> Result<(), JsonError> {
        match self.peek() {
            None => Ok(()),
            Some(_) => Err(self.error("more after the end")),
        }
    }

    pub(super) fn error(&self, problem: &'static str) -> JsonError {
        JsonError {
            problem,
            offset: self.pos,
        }
    }

    #[inline]
    fn byte(&self) -> Option<u8> {
        self.text.as_bytes().get(self.pos).copied()
    }

    /// The next byte that is not blank.
    #[inline]
    fn peek(&mut self) -> Option<u8> {
        loop {
            match self.byte() {
                Some(b' ' | b'\t' | b'\n' | b'\r') => self.pos += 1,
                other => return other,
            }
        }
    }

    /// Reads a value, or the opening of an array or object.
    #[inline]
    pub(super) fn token(&mut self) -> Result<Token<'_>, JsonError> {
        match self.peek() {
            Some(b'"') => {
                self.pos += 1;
                self.string().map(Token::Text)
            }
            Some(b'n') => self.word("null", Token::Null),
            Some(b't') => self.word("true", Token::Bool(true)),
            Some(b'f') => self.word("false", Token::Bool(false)),
            Some(b'-' | b'0'..=b'9') => self.numeral(),
            Some(b'[') => self.open(Token::Array),
            Some(b'{') => self.open(Token::Object),
            _ => Err(self.error("expected a value")),
        }
    }

    /// Takes a value if it is written exactly like this.
    #[inline]
    pub(super) fn take(&mut self, source: &str) -> bool {
        self.peek();
        let is_there = self.text.as_bytes()[self.pos..].starts_with(source.as_bytes());
        self.pos += if is_there { source.len() } else { 0 };
        is_there
    }

    /// Reads text, or a number as text; any other value counts as absent.
    #[inline]
    pub(super) fn text<T: for<'t> From<&'t str>>(&mut self) -> Result<Option<T>, JsonError> {
        if self.peek() == Some(b'"') {
            self.pos += 1;
            return self.string().map(|text| Some(T::from(text)));
        }
        match self.token()? {
            Token::Text(text) => Ok(Some(T::from(text))),
            Token::Int(value) => Ok(Some(T::from(&value.to_string()))),
            Token::Float(value) => Ok(Some(T::from(&value.to_string()))),
            Token::Array => self.skip_elements().map(|()| None),
            Token::Object => self.skip_members().map(|()| None),
            Token::Null | Token::Bool(_) => Ok(None),
        }
    }

    /// Reads an int as PHP casts to it; null, an array or an object counts as absent.
    #[inline]
    pub(super) fn int(&mut self) -> Result<Option<i64>, JsonError> {
        if self.take("null") {
            return Ok(None);
        }
        match self.token()? {
            Token::Int(value) => Ok(Some(value)),
            Token::Bool(value) => Ok(Some(i64::from(value))),
            Token::Float(value) =>
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "PHP truncates; the cast saturates"
                )]
                Ok(Some(value as i64))
            }
            Token::Text(text) => Ok(Some(int_of(text))),
            Token::Array => self.skip_elements().map(|()| None),
            Token::Object => self.skip_members().map(|()| None),
            Token::Null => Ok(None),
        }
    }

    /// Reads a number, or text that is one.
    pub(super) fn number(&mut self) -> Result<Option<f64>, JsonError> {
        match self.token()? {
            #[expect(clippy::cast_precision_loss, reason = "PHP and Lua round it too")]
            Token::Int(value) => Ok(Some(value as f64)),
            Token::Float(value) => Ok(Some(value)),
            Token::Text(text) => Ok(text.parse().ok().filter(|number: &f64| number.is_finite())),
            Token::Array => self.skip_elements().map(|()| None),
            Token::Object => self.skip_members().map(|()| None),
            Token::Null | Token::Bool(_) => Ok(None),
        }
    }

    /// Reads true, or a number other than 0.
    pub(super) fn truthy(&mut self) -> Result<bool, JsonError> {
        Ok(self.int()?.is_some_and(|value| value != 0))
    }

    /// Reads the rest of an array.
    pub(super) fn elements(
        &mut self,
        mut element: impl FnMut(&mut Self) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if self.peek() == Some(b']') {
            self.close();
            return Ok(());
        }
        loop {
            element(self)?;
            match self.peek() {
                Some(b',') => self.pos += 1,
                Some(b']') => break self.close(),
                _ => return Err(self.error("expected `,` or `]`")),
            }
        }
        Ok(())
    }

    /// Reads the rest of an object; `member` gets each name and reads its value.
    #[inline]
    pub(super) fn members(
        &mut self,
        mut member: impl FnMut(&mut Self, Cow<'a, str>) -> Result<(), JsonError>,
    ) -> Result<(), JsonError> {
        if self.peek() == Some(b'}') {
            self.close();
            return Ok(());
        }
        loop {
            if self.peek() != Some(b'"') {
                return Err(self.error("expected a name"));
            }
            self.pos += 1;
            let name = match self.plain() {
                Some(name) => Cow::Borrowed(name),
                None => Cow::Owned(self.string()?.to_owned()),
            };
            if self.peek() != Some(b':') {
                return Err(self.error("expected `:`"));
            }
            self.pos += 1;
            member(self, name)?;
            match self.peek() {
                Some(b',') => self.pos += 1,
                Some(b'}') => break self.close(),
                _ => return Err(self.error("expected `,` or `}`")),
            }
        }
        Ok(())
    }

    /// Checks a value and drops it.
    pub(super) fn skip(&mut self) -> Result<(), JsonError> {
        match self.token()? {
            Token::Array => self.skip_elements(),
            Token::Object => self.skip_members(),
            _ => Ok(()),
        }
    }

    pub(super) fn skip_elements(&mut self) -> Result<(), JsonError> {
        self.elements(Self::skip)
    }

    pub(super) fn skip_members(&mut self) -> Result<(), JsonError> {
        self.members(|reader, _| reader.skip())
    }

    /// The text of the value that `read` reads.
    pub(super) fn source(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<(), JsonError>,
    ) -> Result<&'a str, JsonError> {
        self.peek();
        let start = self.pos;
        read(self)?;
        Ok(&self.text[start..self.pos])
    }

    fn open(&mut self, token: Token<'static>) -> Result<Token<'static>, JsonError> {
        if self.depth == MAX_DEPTH {
            return Err(self.error("nested deeper than 511 levels"));
        }
        self.depth += 1;
        self.pos += 1;
        Ok(token)
    }

    fn close(&mut self) {
        self.depth -= 1;
        self.pos += 1;
    }

    #[inline]
    fn word(
        &mut self,
        word: &'static str,
        token: Token<'static>,
    ) -> Result<Token<'static>, JsonError> {
        if !self.text.as_bytes()[self.pos..].starts_with(word.as_bytes()) {
            return Err(self.error("expected a value"));
        }
        self.pos += word.len();
        Ok(token)
    }

    fn digits(&mut self) -> Result<(), JsonError> {
        let start = self.pos;
        while matches!(self.byte(), Some(b'0'..=b'9')) {
            self.pos += 1;
        }
        if self.pos == start {
            return Err(self.error("expected a digit"));
        }
        Ok(())
    }

    #[inline]
    fn numeral(&mut self) -> Result<Token<'static>, JsonError> {
        let start = self.pos;
        let is_negative = self.byte() == Some(b'-');
        self.pos += usize::from(is_negative);
        if self.byte() == Some(b'0') {
            self.pos += 1;
        } else {
            self.digits()?;
        }
        let is_whole = !matches!(self.byte(), Some(b'.' | b'e' | b'E'));
        if self.byte() == Some(b'.') {
            self.pos += 1;
            self.digits()?;
        }
        if matches!(self.byte(), Some(b'e' | b'E')) {
            self.pos += 1;
            if matches!(self.byte(), Some(b'+' | b'-')) {
                self.pos += 1;
            }
            self.digits()?;
        }
        let text = &self.text[start..self.pos];
        if is_whole && let Ok(value) = text.parse() {
            return Ok(Token::Int(value));
        }
        match text.parse::<f64>() {
            // The pop script fails on infinity.
            Ok(value) if value.is_finite() => Ok(Token::Float(value)),
            _ => Err(self.error("number out of range")),
        }
    }

    /// Reads the rest of a string if it has no escapes.
    #[inline(always)]
    #[expect(
        clippy::inline_always,
        reason = "most names and strings are this short"
    )]
    fn plain(&mut self) -> Option<&'a str> {
        let start = self.pos;
        let end = start + plain_len(&self.text.as_bytes()[start..]);
        if self.text.as_bytes().get(end) != Some(&b'"') {
            return None;
        }
        self.pos = end + 1;
        Some(&self.text[start..end])
    }

    /// Reads the rest of a string.
    #[inline]
    fn string(&mut self) -> Result<&str, JsonError> {
        match self.plain() {
            Some(text) => Ok(text),
            None => self.escaped(),
        }
    }

    /// Reads the rest of a string that may have escapes.
    fn escaped(&mut self) -> Result<&str, JsonError> {
        let bytes = self.text.as_bytes();
        // Without escapes the text is never longer; eight bytes are written at once.
        let room = bytes.len() - self.pos + 8;
        if self.unescaped.len() < room {
            self.unescaped.resize(room, 0);
        }
        let (mut pos, mut len) = (self.pos, 0);
        // Whether the next byte stands for itself, because a backslash was before it.
        let mut is_literal = false;
        loop {
            let plain = if let Some(word) = bytes[pos..].first_chunk::<8>() {
                // All eight bytes are copied, and those after the first special one overwritten: runs are short.
                self.unescaped[len..len + 8].copy_from_slice(word);
                let special = special_bytes(u64::from_le_bytes(*word));
                let special = special & if is_literal { !0xff } else { !0 };
                (special.trailing_zeros() / 8) as usize
            } else if let Some(&byte) = bytes.get(pos) {
                self.unescaped[len] = byte;
                usize::from(is_literal || !is_special(byte))
            } else {
                self.pos = pos;
                return Err(self.error("unclosed string"));
            };
            is_literal = false;
            pos += plain;
            len += plain;
            if plain == 8 {
                continue;
            }
            match bytes.get(pos..) {
                Some([b'\\', b'"' | b'\\' | b'/', ..]) => {
                    pos += 1;
                    is_literal = true;
                }
                Some([b'"', ..]) => break,
                Some([b'\\', ..]) => {
                    self.pos = pos;
                    let (character, end) = self.escape()?;
                    len += character.encode_utf8(&mut self.unescaped[len..]).len();
                    pos = end;
                }
                Some([control, ..]) if *control < 0x20 => {
                    self.pos = pos;
                    return Err(self.error("control character in a string"));
                }
                // Marked by mistake, or near the end of the text.
                _ => {}
            }
        }
        self.pos = pos + 1;
        std::str::from_utf8(&self.unescaped[..len]).map_err(|_| self.error("invalid UTF-8"))
    }

    /// The character of the escape here, and where it ends.
    #[cold]
    fn escape(&self) -> Result<(char, usize), JsonError> {
        let character = match self.text.as_bytes().get(self.pos + 1) {
            Some(b'n') => '\n',
            Some(b't') => '\t',
            Some(b'r') => '\r',
            Some(b'b') => '\x08',
            Some(b'f') => '\x0c',
            _ => return self.unicode(),
        };
        Ok((character, self.pos + 2))
    }

    /// The character of the `\uXXXX` here, which may be two of them, and where it ends.
    fn unicode(&self) -> Result<(char, usize), JsonError> {
        let unit = |at: usize| {
            let bytes = self.text.as_bytes();
            let digits = bytes.get(at..)?.strip_prefix(b"\\u")?.first_chunk::<4>()?;
            let mut digits = digits.iter().map(|&digit| (digit as char).to_digit(16));
            digits.try_fold(0, |unit, digit| {
                Some(unit << 4 | u16::try_from(digit?).ok()?)
            })
        };
        let first = unit(self.pos).ok_or_else(|| self.error("invalid escape"))?;
        let second = matches!(first, 0xd800..0xdc00)
            .then(|| unit(self.pos + 6))
            .flatten();
        let units = [first].into_iter().chain(second);
        match char::decode_utf16(units).next() {
            Some(Ok(character)) => Ok((character, self.pos + 6 * character.len_utf16())),
            _ => Err(self.error("half of a surrogate pair")),
        }
    }
}

/// Marks in eight bytes of a string those that are not plain; one after the first may be marked by mistake.
#[inline]
fn special_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    const HIGHS: u64 = u64::from_le_bytes([0x80; 8]);
    // Below 0x21 are exactly the quote (0x22) and the control characters once 0x02 is flipped.
    let quotes = (word ^ (ONES * 0x02)).wrapping_sub(ONES * 0x21);
    let backslashes = (word ^ (ONES * u64::from(b'\\'))).wrapping_sub(ONES);
    (quotes | backslashes) & !word & HIGHS
}

/// True for a quote, a backslash and a control character.
fn is_special(byte: u8) -> bool {
    matches!(byte, b'"' | b'\\' | ..0x20)
}

/// How many bytes come before the first special one.
#[inline]
fn plain_len(bytes: &[u8]) -> usize {
    let mut len = 0;
    while let Some(word) = bytes[len..].first_chunk::<8>() {
        let special = special_bytes(u64::from_le_bytes(*word));
        if special != 0 {
            return len + (special.trailing_zeros() / 8) as usize;
        }
        len += 8;
    }
    let rest = bytes[len..].iter();
    len + rest.take_while(|byte| !is_special(**byte)).count()
}

/// Writes a text of JSON once more, as PHP's `json_encode` would: `1.0` is `1`, and strings are what `write_text` makes of
/// them.
pub(super) fn write_json(
    out: &mut String,
    json: &str,
    write_text: fn(&mut String, &str),
) -> Result<(), JsonError> {
    let mut reader = Reader::new(json.as_bytes())?;
    write_value(&mut reader, out, write_text)?;
    reader.end()
}

fn write_value(
    reader: &mut Reader<'_>,
    out: &mut String,
    write_text: fn(&mut String, &str),
) -> Result<(), JsonError> {
    let (_, start) = (reader.peek(), reader.pos);
    match reader.token()? {
        Token::Text(text) => write_text(out, text),
        Token::Float(value) => {
            let source = &reader.text[start..reader.pos];
            // PHP has no whole numbers beyond 64 bits with a sign, but a handler may.
            if source.contains(['.', 'e', 'E']) {
                write_json_float(out, value);
            } else {
                out.push_str(source);
            }
        }
        Token::Array => {
            out.push('[');
            let length = out.len();
            reader.elements(|reader| {
                if out.len() > length {
                    out.push(',');
                }
                write_value(reader, out, write_text)
            })?;
            out.push(']');
        }
        Token::Object => {
            out.push('{');
            let length = out.len();
            reader.members(|reader, name| {
                if out.len() > length {
                    out.push(',');
                }
                write_text(out, &name);
                out.push(':');
                write_value(reader, out, write_text)
            })?;
            out.push('}');
        }
        Token::Int(0) => out.push('0'),
        Token::Null | Token::Bool(_) | Token::Int(_) => {
            out.push_str(&reader.text[start..reader.pos]);
        }
    }
    Ok(())
}

/// Writes a number as PHP's `json_encode` does: without a zero fraction.
pub(super) fn write_json_float(out: &mut String, value: f64) {
    // `d:1.0E+25;`: the same digits, with a small e.
    let serialized = Value::from(value).to_bytes();
    let text = String::from_utf8_lossy(&serialized[2..serialized.len() - 1]);
    out.push_str(&text.replace('E', "e"));
}

/// Writes text as PHP's `json_encode` does by default: `\/` and `\uXXXX`.
pub fn write_json_text(out: &mut String, text: &str) {
    write_escaped(out, text, |_| true);
}

/// Writes text as PHP's `json_encode` does with `JSON_UNESCAPED_UNICODE`: line separators stay escaped.
pub(super) fn write_unescaped_text(out: &mut String, text: &str) {
    write_escaped(out, text, |c| matches!(c, '\u{2028}' | '\u{2029}'));
}

/// `is_escaped` decides for characters that are not ASCII.
fn write_escaped(out: &mut String, text: &str, is_escaped: impl Fn(char) -> bool) {
    use fmt::Write as _;
    out.push('"');
    let is_plain =
        |byte: u8| matches!(byte, b' '..=b'\x7f') && !matches!(byte, b'"' | b'\\' | b'/');
    let mut rest = text;
    while let Some(at) = rest.bytes().position(|byte| !is_plain(byte)) {
        out.push_str(&rest[..at]);
        let Some(c) = rest[at..].chars().next() else {
            break;
        };
        match c {
            '"' => out.push_str("\\\""),
            '\\' => out.push_str("\\\\"),
            '/' => out.push_str("\\/"),
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\x08' => out.push_str("\\b"),
            '\x0c' => out.push_str("\\f"),
            c if !c.is_ascii() && !is_escaped(c) => out.push(c),
            c => {
                for unit in c.encode_utf16(&mut [0; 2]) {
                    // Writing to a string cannot fail.
                    let _ = write!(out, "\\u{unit:04x}");
                }
            }
        }
        rest = &rest[at + c.len_utf8()..];
    }
    out.push_str(rest);
    out.push('"');
}
