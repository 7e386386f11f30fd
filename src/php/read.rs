//! The byte reader: one token at a time, lengths checked before anything is allocated.
//!
//! [`Reader::token`] reads a whole scalar, or the opening of a container
//! including its `{`. Code that skips whole values ([`slots`](super::slots)) uses
//! an explicit stack, so that no input can overflow the call stack.

use std::borrow::Cow;

use super::class::is_class_name;
use super::error::{Error, Kind};

/// A token of the format.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token<'de> {
    Null,
    Bool(bool),
    Int(i64),
    /// The number and its original text.
    Float(f64, &'de str),
    Str(Cow<'de, [u8]>),
    /// Opened; this many pairs and a `}` follow.
    Array(usize),
    /// Opened: the class; this many pairs and a `}` follow.
    Object(&'de str, usize),
    /// Read completely: the class and the body.
    Custom(&'de str, &'de [u8]),
    /// Class and case; the case may not be UTF-8.
    Enum(&'de str, &'de [u8]),
    ObjectRef(u64),
    VarRef(u64),
}

#[derive(Debug, Clone)]
pub(crate) struct Reader<'de> {
    bytes: &'de [u8],
    pos: usize,
}

impl<'de> Reader<'de> {
    pub(crate) fn new(bytes: &'de [u8]) -> Self {
        Self { bytes, pos: 0 }
    }

    pub(crate) fn at(bytes: &'de [u8], pos: usize) -> Self {
        Self { bytes, pos }
    }

    pub(crate) fn pos(&self) -> usize {
        self.pos
    }

    pub(crate) fn bytes(&self) -> &'de [u8] {
        self.bytes
    }

    pub(crate) fn remaining(&self) -> usize {
        self.bytes.len() - self.pos
    }

    pub(crate) fn error(&self, kind: Kind) -> Error {
        Error::new(kind, self.pos)
    }

    #[inline]
    pub(crate) fn peek(&self) -> Result<u8, Error> {
        self.bytes
            .get(self.pos)
            .copied()
            .ok_or_else(|| self.error(Kind::Eof))
    }

    #[inline]
    fn expect(&mut self, byte: u8, expected: &'static str) -> Result<(), Error> {
        if self.bytes.get(self.pos) == Some(&byte) {
            self.pos += 1;
            Ok(())
        } else {
            Err(self.unexpected(expected))
        }
    }

    #[cold]
    fn unexpected(&self, expected: &'static str) -> Error {
        match self.bytes.get(self.pos) {
            Some(&found) => self.error(Kind::Unexpected { found, expected }),
            None => self.error(Kind::Eof),
        }
    }

    /// Reads a string that is written plainly; `None` before any other value.
    #[inline]
    pub(crate) fn plain_string(&mut self) -> Result<Option<&'de [u8]>, Error> {
        let rest = &self.bytes[self.pos..];
        // Nearly all strings are shorter than 100 bytes; the general way below also finds what is wrong with one.
        let head = match rest {
            [b's', b':', ones @ b'0'..=b'9', b':', b'"', ..] => Some((5, ones - b'0')),
            [
                b's',
                b':',
                tens @ b'0'..=b'9',
                ones @ b'0'..=b'9',
                b':',
                b'"',
                ..,
            ] => Some((6, 10 * (tens - b'0') + ones - b'0')),
            [b's', b':', ..] => None,
            _ => return Ok(None),
        };
        if let Some((start, len)) = head
            && let Some((bytes, [b'"', b';', ..])) = rest[start..].split_at_checked(len.into())
        {
            self.pos += start + bytes.len() + 2;
            return Ok(Some(bytes));
        }
        self.pos += 2;
        self.string().map(Some)
    }

    /// Reads the next token; the reader is then positioned after it.
    #[inline]
    pub(crate) fn token(&mut self) -> Result<Token<'de>, Error> {
        let start = self.pos;
        let letter = self.peek()?;
        self.pos += 1;
        if letter == b'N' {
            self.expect(b';', "`;`")?;
            return Ok(Token::Null);
        }
        if !matches!(
            letter,
            b'b' | b'i' | b'd' | b's' | b'S' | b'a' | b'O' | b'C' | b'E' | b'r' | b'R'
        ) {
            let kind = Kind::Unexpected {
                found: letter,
                expected: "a type letter (one of NbidsSaOCErR)",
            };
            return Err(Error::new(kind, start));
        }
        self.expect(b':', "`:`")?;
        match letter {
            b's' => self.string().map(|bytes| Token::Str(Cow::Borrowed(bytes))),
            b'i' => self.int().map(Token::Int),
            b'a' => {
                let start = self.pos;
                let count = self.unsigned(b':', "a digit or `:`")?;
                self.count(start, count).map(Token::Array)
            }
            b'O' => {
                let class = self.class_name()?;
                self.expect(b':', "`:`")?;
                let start = self.pos;
                let count = self.lenient()?;
                Ok(Token::Object(class, self.count(start, count)?))
            }
            b'b' => {
                let value = match self.peek()? {
                    b'0' => false,
                    b'1' => true,
                    found => {
                        return Err(self.error(Kind::Unexpected {
                            found,
                            expected: "`0` or `1`",
                        }));
                    }
                };
                self.pos += 1;
                self.expect(b';', "`;`")?;
                Ok(Token::Bool(value))
            }
            b'd' => self.float(),
            b'S' => self
                .escaped_string()
                .map(|bytes| Token::Str(Cow::Owned(bytes))),
            b'E' => self.enum_case(),
            b'C' => self.custom(),
            b'r' => self.slot().map(Token::ObjectRef),
            _ => self.slot().map(Token::VarRef),
        }
    }

    /// Reads the `}` that ends a container.
    #[inline]
    pub(crate) fn close(&mut self) -> Result<(), Error> {
        self.expect(b'}', "`}` (no more pairs were announced)")
    }

    /// Reads an array key or a property name.
    #[inline]
    pub(crate) fn key(&mut self) -> Result<Token<'de>, Error> {
        match self.peek()? {
            b'i' | b's' | b'S' => self.token(),
            found => Err(self.error(Kind::Unexpected {
                found,
                expected: "a key (`i:` or `s:`)",
            })),
        }
    }

    fn int(&mut self) -> Result<i64, Error> {
        let start = self.pos;
        let negative = match self.peek()? {
            b'-' => {
                self.pos += 1;
                true
            }
            b'+' => {
                self.pos += 1;
                false
            }
            _ => false,
        };
        let digits = self.pos;
        // Computed as a negative number, whose range is larger by one. PHP clamps on overflow.
        let mut value: i64 = 0;
        while let Some(&byte) = self.bytes.get(self.pos)
            && byte.is_ascii_digit()
        {
            value = value
                .saturating_mul(10)
                .saturating_sub(i64::from(byte - b'0'));
            self.pos += 1;
        }
        if self.pos == digits && self.pos < self.bytes.len() {
            return Err(Error::new(Kind::BadNumber, start));
        }
        self.expect(b';', "a digit or `;`")?;
        Ok(if negative {
            value
        } else {
            value.checked_neg().unwrap_or(i64::MAX)
        })
    }

    fn float(&mut self) -> Result<Token<'de>, Error> {
        let start = self.pos;
        while let Some(byte) = self.bytes.get(self.pos)
            && matches!(
                byte,
                b'0'..=b'9' | b'+' | b'-' | b'.' | b'e' | b'E' | b'I' | b'N' | b'F' | b'A'
            )
        {
            self.pos += 1;
        }
        if self.pos == self.bytes.len() {
            return Err(self.error(Kind::Eof));
        }
        let text = std::str::from_utf8(&self.bytes[start..self.pos]).expect("only ASCII was taken");
        let value = parse_float(text).ok_or_else(|| Error::new(Kind::BadNumber, start))?;
        self.expect(b';', "`;`")?;
        Ok(Token::Float(value, text))
    }

    /// Reads digits and the byte `end`, which must follow.
    #[inline]
    fn unsigned(&mut self, end: u8, expected: &'static str) -> Result<u64, Error> {
        let start = self.pos;
        let mut value: u64 = 0;
        while let Some(&byte) = self.bytes.get(self.pos)
            && byte.is_ascii_digit()
        {
            value = value
                .checked_mul(10)
                .and_then(|v| v.checked_add(u64::from(byte - b'0')))
                .ok_or_else(|| Error::new(Kind::LengthOverflow, start))?;
            self.pos += 1;
        }
        if self.pos == start {
            return Err(self.unexpected("a digit"));
        }
        self.expect(end, expected)?;
        Ok(value)
    }

    /// Takes `len` bytes, or fails if fewer are left.
    #[inline]
    fn take(&mut self, len: u64) -> Result<&'de [u8], Error> {
        let rest = &self.bytes[self.pos..];
        let len = usize::try_from(len).map_err(|_| self.error(Kind::LengthOverflow))?;
        if len > rest.len() {
            return Err(self.error(Kind::Eof));
        }
        self.pos += len;
        Ok(&rest[..len])
    }

    #[inline]
    fn quoted(&mut self) -> Result<&'de [u8], Error> {
        let len = self.unsigned(b':', "a digit or `:`")?;
        self.expect(b'"', "`\"`")?;
        let bytes = self.take(len)?;
        self.expect(
            b'"',
            "`\"` (the string is longer or shorter than its length says)",
        )?;
        Ok(bytes)
    }

    #[inline]
    fn string(&mut self) -> Result<&'de [u8], Error> {
        let bytes = self.quoted()?;
        self.expect(b';', "`;`")?;
        Ok(bytes)
    }

    fn escaped_string(&mut self) -> Result<Vec<u8>, Error> {
        let len = self.unsigned(b':', "a digit or `:`")?;
        self.expect(b'"', "`\"`")?;
        if len > self.remaining() as u64 {
            return Err(self.error(Kind::Eof));
        }
        let mut bytes = Vec::new();
        for _ in 0..len {
            let byte = self.peek()?;
            self.pos += 1;
            if byte != b'\\' {
                bytes.push(byte);
                continue;
            }
            let mut decoded = 0;
            for _ in 0..2 {
                let found = self.peek()?;
                let digit = (found as char).to_digit(16);
                let digit = digit.ok_or_else(|| {
                    self.error(Kind::Unexpected {
                        found,
                        expected: "a hex digit",
                    })
                })?;
                decoded = decoded << 4 | u8::try_from(digit).expect("a hex digit is below 16");
                self.pos += 1;
            }
            bytes.push(decoded);
        }
        self.expect(
            b'"',
            "`\"` (the string is longer or shorter than its length says)",
        )?;
        self.expect(b';', "`;`")?;
        Ok(bytes)
    }

    fn class_name(&mut self) -> Result<&'de str, Error> {
        let start = self.pos;
        let bytes = self.quoted()?;
        check_class_name(bytes, start)
    }

    #[inline]
    fn count(&mut self, start: usize, count: u64) -> Result<usize, Error> {
        self.expect(b'{', "`{`")?;
        // Each pair takes at least one byte: a count beyond the remaining bytes is an error.
        if count > self.remaining() as u64 {
            return Err(Error::new(Kind::Eof, start));
        }
        usize::try_from(count).map_err(|_| Error::new(Kind::LengthOverflow, start))
    }

    /// Reads the count of `O:` or the length of `C:`, where PHP accepts a sign, and no digits as 0.
    fn lenient(&mut self) -> Result<u64, Error> {
        let rest = &self.bytes[self.pos..];
        let is_negative = rest.starts_with(b"-0") || rest.starts_with(b"-:");
        if is_negative || rest.first() == Some(&b'+') {
            self.pos += 1;
        }
        if self.peek()? == b':' {
            self.pos += 1;
            return Ok(0);
        }
        let start = self.pos;
        match self.unsigned(b':', "a digit or `:`")? {
            1.. if is_negative => Err(Error::new(Kind::BadNumber, start)),
            count => Ok(count),
        }
    }

    fn custom(&mut self) -> Result<Token<'de>, Error> {
        let class = self.class_name()?;
        self.expect(b':', "`:`")?;
        let len = self.lenient()?;
        self.expect(b'{', "`{`")?;
        let body = self.take(len)?;
        self.expect(
            b'}',
            "`}` (the body is longer or shorter than its length says)",
        )?;
        Ok(Token::Custom(class, body))
    }

    fn enum_case(&mut self) -> Result<Token<'de>, Error> {
        let start = self.pos;
        let bytes = self.quoted()?;
        self.expect(b';', "`;`")?;
        let colon =
            memchr::memchr(b':', bytes).ok_or_else(|| Error::new(Kind::BadClassName, start))?;
        // Unlike for `O:` and `C:`, PHP accepts a leading backslash here.
        let class = bytes[..colon]
            .strip_prefix(b"\\")
            .unwrap_or(&bytes[..colon]);
        let class = check_class_name(class, start)?;
        let case = &bytes[colon + 1..];
        let is_label = !case.is_empty()
            && !case[0].is_ascii_digit()
            && case
                .iter()
                .all(|&b| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x80);
        if is_label {
            Ok(Token::Enum(class, case))
        } else {
            Err(Error::new(Kind::BadClassName, start))
        }
    }

    fn slot(&mut self) -> Result<u64, Error> {
        self.unsigned(b';', "a digit or `;`")
    }
}

fn check_class_name(bytes: &[u8], offset: usize) -> Result<&str, Error> {
    match std::str::from_utf8(bytes) {
        Ok(name) if is_class_name(bytes) => Ok(name),
        _ => Err(Error::new(Kind::BadClassName, offset)),
    }
}

/// Reads all float forms that PHP reads (php-serialize.md 3.2).
fn parse_float(text: &str) -> Option<f64> {
    match text {
        "INF" => return Some(f64::INFINITY),
        "-INF" => return Some(f64::NEG_INFINITY),
        "NAN" => return Some(f64::NAN),
        _ => {}
    }
    // Rust reads the same grammar: sign, digits, point, exponent. It also reads `inf` and `nan`, which must be
    // refused here (other than the three words above).
    if text.bytes().any(|b| matches!(b, b'I' | b'N' | b'F' | b'A')) {
        return None;
    }
    text.parse().ok()
}
