//! The byte reader: one token at a time, lengths checked before anything is allocated.
//!
//! [`Reader::token`] reads a whole scalar, or the opening of a container up to
//! and with its `{`. [`walk`] passes over whole values with an explicit stack,
//! so that no input can overflow the call stack, and can number the values on
//! its way ([`Slots`]) for back references.

use std::borrow::Cow;

use super::class::is_class_name;
use super::error::{Error, Kind};

/// What the reader found.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Token<'de> {
    Null,
    Bool(bool),
    Int(i64),
    /// The number and the text it was written as.
    Float(f64, &'de str),
    Str(Cow<'de, [u8]>),
    /// Opened; so many pairs and a `}` follow.
    Array(usize),
    /// Opened; class and so many pairs and a `}` follow.
    Object(&'de str, usize),
    /// Read whole; the second is the body.
    Custom(&'de str, &'de [u8]),
    Enum(&'de str, &'de str),
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
        match self.bytes.get(self.pos) {
            Some(&found) if found == byte => {
                self.pos += 1;
                Ok(())
            }
            Some(&found) => Err(self.error(Kind::Unexpected { found, expected })),
            None => Err(self.error(Kind::Eof)),
        }
    }

    /// Reads the next token; the reader then stands behind it.
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
            b'a' => self.count().map(Token::Array),
            b'O' => {
                let class = self.class_name()?;
                self.expect(b':', "`:`")?;
                self.skip_sign();
                Ok(Token::Object(class, self.count()?))
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
        // Gathered as a negative number, which has room for one more. PHP clamps on overflow.
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

    /// Reads digits; `end` must follow and is passed over.
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
            let found = self.peek()?;
            return Err(self.error(Kind::Unexpected {
                found,
                expected: "a digit",
            }));
        }
        self.expect(end, expected)?;
        Ok(value)
    }

    /// Takes `len` bytes that must be there.
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
    fn count(&mut self) -> Result<usize, Error> {
        let start = self.pos;
        let count = self.unsigned(b':', "a digit or `:`")?;
        self.expect(b'{', "`{`")?;
        // A pair takes bytes: a count beyond what is left can never be met.
        if count > self.remaining() as u64 {
            return Err(Error::new(Kind::Eof, start));
        }
        usize::try_from(count).map_err(|_| Error::new(Kind::LengthOverflow, start))
    }

    /// Passes over the sign that PHP takes before the count of `O:` and the length of `C:`.
    fn skip_sign(&mut self) {
        let rest = &self.bytes[self.pos..];
        if rest.first() == Some(&b'+') || rest.starts_with(b"-0") {
            self.pos += 1;
        }
    }

    fn custom(&mut self) -> Result<Token<'de>, Error> {
        let class = self.class_name()?;
        self.expect(b':', "`:`")?;
        self.skip_sign();
        let len = self.unsigned(b':', "a digit or `:`")?;
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
        // Unlike `O:` and `C:`, PHP takes a leading backslash here.
        let class = bytes[..colon]
            .strip_prefix(b"\\")
            .unwrap_or(&bytes[..colon]);
        let class = check_class_name(class, start)?;
        let case = &bytes[colon + 1..];
        let is_label = !case.is_empty()
            && !case[0].is_ascii_digit()
            && case
                .iter()
                .all(|&b| b.is_ascii_alphanumeric() || b == b'_' || b >= 0x7f);
        match std::str::from_utf8(case) {
            Ok(case) if is_label => Ok(Token::Enum(class, case)),
            _ => Err(Error::new(Kind::BadClassName, start)),
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

/// Reads the float forms that PHP reads (php-serialize.md 3.2).
fn parse_float(text: &str) -> Option<f64> {
    match text {
        "INF" => return Some(f64::INFINITY),
        "-INF" => return Some(f64::NEG_INFINITY),
        "NAN" => return Some(f64::NAN),
        _ => {}
    }
    // Rust reads the same grammar: sign, digits, point, exponent; but also `inf` and `nan`,
    // whose letters (other than the three words above) must not pass.
    if text.bytes().any(|b| matches!(b, b'I' | b'N' | b'F' | b'A')) {
        return None;
    }
    text.parse().ok()
}

/// One numbered value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slot {
    /// Where its token starts.
    pub(crate) offset: usize,
    /// Behind its last byte; 0 while it is open.
    pub(crate) end: usize,
    /// True if `r:` may point to it.
    pub(crate) is_object: bool,
    /// True for an array with the keys 0, 1, 2 and so on.
    pub(crate) is_list: bool,
    /// True if an `R:` points to it.
    pub(crate) is_shared: bool,
}

/// The numbering of values for `r:` and `R:`; the first value has number 1.
#[derive(Debug, Default)]
pub(crate) struct Slots(Vec<Slot>);

impl Slots {
    fn push(&mut self, offset: usize, is_object: bool) {
        self.0.push(Slot {
            offset,
            end: 0,
            is_object,
            is_list: false,
            is_shared: false,
        });
    }

    pub(crate) fn get(&self, number: u64) -> Option<Slot> {
        let index = usize::try_from(number).ok()?.checked_sub(1)?;
        self.0.get(index).copied()
    }

    /// The value whose token starts at `offset`.
    pub(crate) fn starting_at(&self, offset: usize) -> Option<Slot> {
        let index = self
            .0
            .binary_search_by_key(&offset, |slot| slot.offset)
            .ok()?;
        self.0.get(index).copied()
    }

    /// Number of the value whose token starts at `offset`; `R:` has none.
    pub(crate) fn number_at(&self, offset: usize) -> Option<u64> {
        let index = self.0.binary_search_by_key(&offset, |slot| slot.offset);
        u64::try_from(index.ok()? + 1).ok()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    pub(crate) fn truncate(&mut self, len: usize) {
        self.0.truncate(len);
    }

    /// Notes one value; checks references against what was numbered so far.
    pub(crate) fn note(&mut self, token: &Token<'_>, offset: usize) -> Result<(), Error> {
        let bad = |slot| Error::new(Kind::BadReference { slot }, offset);
        match *token {
            Token::VarRef(slot) => {
                let index = usize::try_from(slot).ok().and_then(|n| n.checked_sub(1));
                let target = index.and_then(|index| self.0.get_mut(index));
                target.ok_or_else(|| bad(slot))?.is_shared = true;
                Ok(())
            }
            Token::ObjectRef(slot) => {
                if !self.get(slot).is_some_and(|slot| slot.is_object) {
                    return Err(bad(slot));
                }
                self.push(offset, true);
                Ok(())
            }
            Token::Object(..) | Token::Custom(..) | Token::Enum(..) => {
                self.push(offset, true);
                Ok(())
            }
            _ => {
                self.push(offset, false);
                Ok(())
            }
        }
    }
}

/// How many `C:` bodies inside one another are looked into.
pub(crate) const MAX_CUSTOM_NESTING: usize = 16;

/// Numbers the values inside a `C:` body, if it is `serialize()` output.
///
/// PHP continues the outer numbering inside such a body and counts nothing in
/// any other (php-serialize.md 6.3). Which of the two it is only the class
/// knows; a body that reads as exactly one value, maybe behind the signature of
/// a signed closure, is taken for `serialize()` output.
fn note_custom_body(
    body: &[u8],
    base: usize,
    slots: &mut Slots,
    depth_limit: usize,
    nesting: usize,
) {
    if nesting >= MAX_CUSTOM_NESTING {
        return;
    }
    let before = slots.len();
    let mut reader = Reader::at(body, signature_len(body));
    let walked = walk_from(&mut reader, base, Some(slots), depth_limit, nesting + 1);
    if walked.is_err() || reader.remaining() != 0 {
        slots.truncate(before);
    }
}

/// Length of the `@` hash `.` that a signed closure's body begins with.
pub(crate) fn signature_len(body: &[u8]) -> usize {
    if body.first() == Some(&b'@') && body.get(45) == Some(&b'.') {
        46
    } else {
        0
    }
}

/// Passes over one value without building it; numbers what it sees if `slots` is given.
pub(crate) fn walk(
    reader: &mut Reader<'_>,
    slots: Option<&mut Slots>,
    depth_limit: usize,
) -> Result<(), Error> {
    walk_from(reader, 0, slots, depth_limit, 0)
}

fn walk_from(
    reader: &mut Reader<'_>,
    base: usize,
    mut slots: Option<&mut Slots>,
    depth_limit: usize,
    nesting: usize,
) -> Result<(), Error> {
    let mut open: Vec<Open> = Vec::new();
    loop {
        let offset = reader.pos();
        let token = reader.token()?;
        let mut slot = None;
        if let Some(slots) = slots.as_deref_mut() {
            let before = slots.len();
            slots.note(&token, base + offset)?;
            slot = (slots.len() > before).then_some(before);
            if let Token::Custom(_, body) = token {
                let body_start = base + reader.pos() - 1 - body.len();
                note_custom_body(body, body_start, slots, depth_limit, nesting);
            }
        }
        if let Token::Array(left) | Token::Object(_, left) = token {
            // PHP does not count an empty array as a level.
            if open.len() >= depth_limit && token != Token::Array(0) {
                return Err(Error::new(
                    Kind::DepthExceeded { limit: depth_limit },
                    offset,
                ));
            }
            open.push(Open {
                left,
                taken: 0,
                is_list: matches!(token, Token::Array(_)),
                slot,
            });
        } else if let (Some(slots), Some(slot)) = (slots.as_deref_mut(), slot) {
            slots.0[slot].end = base + reader.pos();
        }
        while let Some(container) = open.last_mut() {
            if container.left > 0 {
                container.left -= 1;
                let key = reader.key()?;
                container.is_list &= key == Token::Int(container.taken);
                container.taken += 1;
                break;
            }
            reader.close()?;
            if let (Some(slots), Some(slot)) = (slots.as_deref_mut(), container.slot) {
                slots.0[slot].end = base + reader.pos();
                slots.0[slot].is_list = container.is_list;
            }
            open.pop();
        }
        if open.is_empty() {
            return Ok(());
        }
    }
}

/// A container that is being passed over.
struct Open {
    left: usize,
    taken: i64,
    is_list: bool,
    slot: Option<usize>,
}
