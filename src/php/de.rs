//! Reads PHP's serialize format into Rust types.
//!
//! | PHP | Rust |
//! | --- | --- |
//! | array | `Vec` and tuples (values in order, keys ignored), maps, structs |
//! | object | structs and maps; names without visibility marks |
//! | enum case | unit variant of the same name |
//! | null | `Option`, `()` |
//! | int | integers, and floats |
//! | float, bool, string | only themselves; see [`loose`](super::loose) for PHP's conversions |
//! | string | `String`, `&str`; bytes where asked for (`serde_bytes`) |
//! | reference | the value it points to, again |
//! | duplicate key | once: the last value, at the position of the first |
//!
//! A type that accepts any value (`serde_json::Value`, flattened fields) gets the
//! forms of [`json`](super::json), with `{"$ref":null}` for a value inside itself. For other types that is an error.

use std::borrow::Cow;
use std::collections::HashSet;
use std::marker::PhantomData;
use std::ops::Range;
use std::rc::Rc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::de::value::{BorrowedStrDeserializer, StrDeserializer, StringDeserializer};
use serde::de::{
    self, Deserialize, DeserializeSeed, EnumAccess, IntoDeserializer, MapAccess, SeqAccess,
    VariantAccess, Visitor,
};

use super::class::{MODEL_IDENTIFIER, PropertyName, Visibility};
use super::date;
use super::error::{Error, Kind, Segment};
use super::read::{Reader, Token};
use super::slots::{Member, Slots, scan, skip};
use super::text::{DisplayBytes, MAX_DEPTH, canonical_int};

/// Reads a value; the bytes must contain nothing else.
///
/// # Errors
///
/// Malformed input, a value that does not fit `T`, nesting beyond
/// `Deserializer::DEPTH` levels, or circular references, except in a type that accepts any value.
pub fn from_slice<'de, T: Deserialize<'de>>(bytes: &'de [u8]) -> Result<T, Error> {
    from_slice_seed(bytes, PhantomData)
}

/// Reads a value with a seed; the bytes must contain nothing else.
///
/// Nearly all texts can be read in one pass. A text with duplicate keys is read again, after a scan; so is one
/// that was refused, since its first error may be behind the value that did not fit.
pub(crate) fn from_slice_seed<'de, S: DeserializeSeed<'de> + Clone>(
    bytes: &'de [u8],
    seed: S,
) -> Result<S::Value, Error> {
    let mut deserializer = Deserializer::new(bytes);
    deserializer.state = State::OnePass;
    let value = seed.clone().deserialize(&mut deserializer);
    if let Ok(value) = value
        && deserializer.state != State::Doubtful
        && deserializer.end().is_ok()
    {
        return Ok(value);
    }
    let mut deserializer = Deserializer::new(bytes);
    let value = seed.deserialize(&mut deserializer)?;
    deserializer.end()?;
    Ok(value)
}

/// Most values read through references before the input is refused.
const MAX_EXPANDED: usize = 1_000_000;
/// Most bytes read through references before the input is refused.
const MAX_EXPANDED_BYTES: usize = 64 << 20;

/// What is known of the input as a whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// It has to be scanned before its first value is read.
    Unscanned,
    /// It was scanned and found to be well-formed, and its duplicate keys and references are known.
    Scanned,
    /// Nothing yet: duplicate keys and references are looked for while reading.
    OnePass,
    /// It has duplicate keys or is malformed, and what was read before that was found does not count.
    Doubtful,
}

/// The reader behind [`from_slice`].
#[derive(Debug)]
pub struct Deserializer<'de> {
    reader: Reader<'de>,
    state: State,
    /// The names in the open containers, one container after the other, in [`State::OnePass`].
    names: Vec<&'de [u8]>,
    /// All values of the input; built only if it has references or duplicate keys, or for an untyped container.
    slots: Option<Slots>,
    depth: usize,
    depth_limit: usize,
    /// Positions of the values being read in place of references.
    following: Vec<usize>,
    expanded: usize,
    expanded_bytes: usize,
    /// Whether reading a value has failed, and a type may not have passed on the error.
    has_failed: bool,
}

impl<'de> Deserializer<'de> {
    /// Default limit of nesting levels that are read into types.
    pub const DEPTH: usize = 256;

    /// Reads from these bytes.
    pub fn new(bytes: &'de [u8]) -> Self {
        Self {
            reader: Reader::new(bytes),
            state: State::Unscanned,
            names: Vec::new(),
            slots: None,
            depth: 0,
            depth_limit: Self::DEPTH,
            following: Vec::new(),
            expanded: 0,
            expanded_bytes: 0,
            has_failed: false,
        }
    }

    /// Sets the limit of nesting levels; each level takes space on the call stack.
    #[must_use]
    pub fn with_depth_limit(mut self, levels: usize) -> Self {
        self.depth_limit = levels.min(MAX_DEPTH);
        self
    }

    /// Checks that nothing follows the value.
    ///
    /// # Errors
    ///
    /// [`Kind::TrailingData`] with the offset of the first byte too many.
    pub fn end(&self) -> Result<(), Error> {
        if self.reader.remaining() > 0 {
            Err(self.reader.error(Kind::TrailingData))
        } else {
            Ok(())
        }
    }

    /// Scans the whole input: how to read its beginning may depend on what comes later.
    #[cold]
    fn scan(&mut self) -> Result<(), Error> {
        let before = std::mem::replace(&mut self.state, State::Doubtful);
        let bytes = self.reader.bytes();
        let seen = scan(&mut Reader::new(bytes))?;
        if seen.references || seen.duplicates {
            self.slots = Some(Slots::of(&mut Reader::new(bytes))?);
        }
        if seen.duplicates && before != State::Unscanned {
            // No caller sees this error: the text is read again.
            return Err(self.reader.error(Kind::Unsupported("a duplicate key")));
        }
        self.state = State::Scanned;
        Ok(())
    }

    /// Scans the input unless that was done.
    #[inline]
    fn ensure_scanned(&mut self) -> Result<(), Error> {
        if self.state == State::Scanned {
            Ok(())
        } else {
            self.scan()
        }
    }

    fn slots(&mut self) -> Result<&Slots, Error> {
        self.ensure_scanned()?;
        if self.slots.is_none() {
            let slots = Slots::of(&mut Reader::new(self.reader.bytes()))?;
            self.slots = Some(slots);
        }
        Ok(self.slots.as_ref().expect("made above"))
    }

    /// Skips the next value.
    fn skip(&mut self) -> Result<(), Error> {
        if self.state == State::Unscanned {
            self.scan()?;
        }
        let is_scanned = self.state == State::Scanned;
        if skip(&mut self.reader, if is_scanned { 0 } else { self.depth })? {
            self.ensure_scanned()?;
        }
        Ok(())
    }

    /// The pairs of the container at this offset without overwritten duplicates; `None` if it has none.
    #[inline]
    fn members(&self, start: usize) -> Option<Rc<[Member]>> {
        self.slots.as_ref()?.members(start).cloned()
    }

    /// Runs `read` on the next value, or on the target of a reference.
    #[inline]
    fn with_value<R>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<R, Error>,
    ) -> Result<R, Error> {
        if self.state == State::Unscanned {
            self.scan()?;
        }
        let start = self.reader.pos();
        if !self.following.is_empty() {
            self.expanded += 1;
            if self.expanded > MAX_EXPANDED {
                self.has_failed = true;
                return Err(self.reader.error(Kind::ExpansionExceeded));
            }
        }
        let result = match self.reader.peek() {
            Ok(b'r' | b'R') => self.follow(read),
            Ok(_) => read(self),
            Err(error) => Err(error),
        };
        result.map_err(|error| {
            self.has_failed = true;
            error.at(start)
        })
    }

    /// Reads the value of a pair. If its type keeps an error to itself, the value is skipped as a whole.
    #[inline]
    fn value<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let (start, names) = (self.reader.pos(), self.names.len());
        let following = self.following.len();
        let value = seed.deserialize(&mut *self)?;
        if self.has_failed {
            self.go_on_behind(start, names, following)?;
        }
        Ok(value)
    }

    #[cold]
    fn go_on_behind(&mut self, start: usize, names: usize, following: usize) -> Result<(), Error> {
        self.has_failed = false;
        self.names.truncate(names);
        self.following.truncate(following);
        self.reader = Reader::at(self.reader.bytes(), start);
        self.skip()
    }

    #[cold]
    fn follow<R>(&mut self, read: impl FnOnce(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        let start = self.reader.pos();
        let target = self.target()?.start;
        let resume = self.reader.pos();
        if self.following.contains(&target) {
            return Err(Error::new(Kind::Cycle, start));
        }
        self.following.push(target);
        self.reader = Reader::at(self.reader.bytes(), target);
        let value = read(self)?;
        self.expanded_bytes += self.reader.pos().saturating_sub(target);
        if self.expanded_bytes > MAX_EXPANDED_BYTES {
            return Err(self.reader.error(Kind::ExpansionExceeded));
        }
        self.following.pop();
        self.reader = Reader::at(self.reader.bytes(), resume);
        Ok(value)
    }

    /// Reads a reference; returns where the value is that it points to.
    fn target(&mut self) -> Result<Range<usize>, Error> {
        let start = self.reader.pos();
        let (Token::ObjectRef(number) | Token::VarRef(number)) = self.reader.token()? else {
            unreachable!("the letter was seen")
        };
        let slots = self.slots()?;
        let slot = slots.get(slots.meant(start, number));
        let root = slot.and_then(|slot| slots.get(slot.root));
        let root = root.ok_or_else(|| Error::new(Kind::BadReference { slot: number }, start))?;
        Ok(root.offset..root.end)
    }

    /// Passes by a reference to a value that it is in; reads nothing if the next value is none.
    fn passes_cycle(&mut self) -> bool {
        let start = self.reader.pos();
        if !matches!(self.reader.peek(), Ok(b'r' | b'R')) {
            return false;
        }
        let target = self.target();
        let is_cycle = target
            .is_ok_and(|target| target.contains(&start) || self.following.contains(&target.start));
        // Each of them becomes a value, as what is read through references does.
        self.expanded += usize::from(is_cycle);
        let is_passed = is_cycle && self.expanded <= MAX_EXPANDED;
        if !is_passed {
            self.reader = Reader::at(self.reader.bytes(), start);
        }
        is_passed
    }

    /// Runs `read` inside a container, one level deeper.
    fn nested<R>(&mut self, read: impl FnOnce(&mut Self) -> Result<R, Error>) -> Result<R, Error> {
        if self.depth >= self.depth_limit {
            return Err(self.reader.error(Kind::DepthExceeded {
                limit: self.depth_limit,
            }));
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn map<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        let start = self.reader.pos();
        let (class, left) = match self.reader.token()? {
            Token::Array(left) => (None, left),
            Token::Object(class, left) => (Some(class), left),
            token => return Err(mismatch(&token, &visitor).at(start)),
        };
        self.pairs(class, start, left, visitor)
    }

    fn pairs<V: Visitor<'de>>(
        &mut self,
        class: Option<&'de str>,
        start: usize,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.nested(|de| {
            let mut pairs = Pairs::new(de, class, start, left);
            let value = visitor.visit_map(&mut pairs);
            pairs.end(value, "pairs")
        })
    }

    fn list<V: Visitor<'de>>(
        &mut self,
        start: usize,
        left: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.nested(|de| {
            let mut pairs = Pairs::new(de, None, start, left);
            let value = visitor.visit_seq(Elements(&mut pairs));
            pairs.end(value, "elements")
        })
    }

    /// Reads any value, in the forms of the job document.
    fn any<V: Visitor<'de>>(&mut self, visitor: V) -> Result<V::Value, Error> {
        if matches!(self.reader.peek()?, b'a' | b'O' | b'C') {
            self.ensure_scanned()?;
        }
        let start = self.reader.pos();
        match self.reader.token()? {
            Token::Null => visitor.visit_unit(),
            Token::Bool(value) => visitor.visit_bool(value),
            Token::Int(value) => visitor.visit_i64(value),
            Token::Float(value, _) if value.is_finite() => visitor.visit_f64(value),
            Token::Float(value, _) => {
                let name = if value.is_nan() {
                    "NAN"
                } else if value > 0.0 {
                    "INF"
                } else {
                    "-INF"
                };
                visitor.visit_map(Forms::new([("$float", name.to_owned())]))
            }
            Token::Str(bytes) => visit_text(bytes, visitor).unwrap_or_else(|(bytes, visitor)| {
                visitor.visit_map(Forms::new([("$bytes", BASE64.encode(&bytes))]))
            }),
            Token::Enum(class, case) => visitor.visit_map(Forms::new([
                ("$enum", Form::Text(class.to_owned())),
                ("case", Form::of(case)),
            ])),
            Token::Custom(class, body) => visitor.visit_map(Forms::new([
                ("$class", Form::Text(class.to_owned())),
                ("$custom", Form::of(body)),
            ])),
            Token::Array(0) => self.list(start, 0, visitor),
            Token::Array(left) => {
                let is_list = self
                    .slots()?
                    .starting_at(start)
                    .is_some_and(|slot| slot.is_list);
                if is_list {
                    self.list(start, left, visitor)
                } else {
                    self.pairs(None, start, left, visitor)
                }
            }
            Token::Object(class, left) => {
                if let Some((date, end)) = self.date(class, start, left)? {
                    self.reader = Reader::at(self.reader.bytes(), end);
                    return visitor.visit_map(Forms::new(date));
                }
                self.nested(|de| {
                    let mut object = AnyObject {
                        class: Some(class),
                        pairs: Pairs::new(de, Some(class), start, left),
                    };
                    let value = visitor.visit_map(&mut object);
                    object.pairs.end(value, "pairs")
                })
            }
            Token::ObjectRef(_) | Token::VarRef(_) => unreachable!("references were followed"),
        }
    }

    /// A reader positioned before the `}` of the container at this offset.
    fn end_of(&mut self, start: usize) -> Result<Reader<'de>, Error> {
        let slot = self.slots()?.starting_at(start);
        let end = slot.expect("containers have slots").end;
        Ok(Reader::at(self.reader.bytes(), end - 1))
    }

    /// The `$date` form of the object just opened and its end, if the object has the three pairs of PHP's date
    /// classes.
    fn date(
        &mut self,
        class: &str,
        start: usize,
        left: usize,
    ) -> Result<Option<(DateForm, usize)>, Error> {
        if !(3..=40).contains(&left) {
            return Ok(None);
        }
        let members = self.members(start);
        let left = members.as_ref().map_or(left, |members| members.len());
        let mut reader = self.reader.clone();
        let (mut date, mut timezone_type, mut timezone) = (None, None, None);
        for index in 0..left {
            let member = members.as_ref().map(|members| members[index]);
            if let Some(member) = member {
                reader = Reader::at(reader.bytes(), member.key);
            }
            let Token::Str(name) = reader.key()? else {
                return Ok(None);
            };
            if let Some(member) = member {
                reader = Reader::at(reader.bytes(), member.value);
            }
            let value_start = reader.pos();
            match (PropertyName::parse(&name).name, reader.peek()?) {
                (b"date", b's' | b'S') => date = text(reader.token()?),
                (b"timezone", b's' | b'S') => timezone = text(reader.token()?),
                (b"timezone_type", b'i') => timezone_type = Some(reader.token()?),
                (_, b'a' | b'O') => {
                    let end = self
                        .slots()?
                        .starting_at(value_start)
                        .map_or(value_start, |slot| slot.end);
                    reader = Reader::at(reader.bytes(), end);
                }
                _ => drop(reader.token()?),
            }
        }
        let (Some(date), Some(Token::Int(timezone_type)), Some(timezone)) =
            (date, timezone_type, timezone)
        else {
            return Ok(None);
        };
        if members.is_some() {
            reader = self.end_of(start)?;
        }
        reader.close()?;
        let iso = date::iso_8601(&date, timezone_type, &timezone);
        Ok(iso.map(|iso| {
            (
                [
                    ("$date", iso),
                    ("timezone", timezone.into_owned()),
                    ("$class", class.to_owned()),
                ],
                reader.pos(),
            )
        }))
    }
}

/// The names and texts of the `$date` form.
type DateForm = [(&'static str, String); 3];

fn text(token: Token<'_>) -> Option<Cow<'_, str>> {
    match token {
        Token::Str(Cow::Borrowed(bytes)) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
        Token::Str(Cow::Owned(bytes)) => String::from_utf8(bytes).ok().map(Cow::Owned),
        _ => None,
    }
}

/// Passes a string to the visitor as text, or returns both if it is not UTF-8.
#[expect(
    clippy::type_complexity,
    reason = "the visitor comes back because it is used up by visiting"
)]
fn visit_text<'de, V: Visitor<'de>>(
    bytes: Cow<'de, [u8]>,
    visitor: V,
) -> Result<Result<V::Value, Error>, (Cow<'de, [u8]>, V)> {
    match bytes {
        Cow::Borrowed(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => Ok(visitor.visit_borrowed_str(text)),
            Err(_) => Err((Cow::Borrowed(bytes), visitor)),
        },
        Cow::Owned(bytes) => match String::from_utf8(bytes) {
            Ok(text) => Ok(visitor.visit_string(text)),
            Err(error) => Err((Cow::Owned(error.into_bytes()), visitor)),
        },
    }
}

fn describe(token: &Token<'_>) -> String {
    match token {
        Token::Null => "null".into(),
        // Never include the content: it may be a secret, and errors are logged.
        Token::Bool(_) => "a bool".into(),
        Token::Int(_) => "an int".into(),
        Token::Float(..) => "a float".into(),
        Token::Str(bytes) => format!("a string of {} bytes", bytes.len()),
        Token::Array(count) => format!("an array of {count}"),
        Token::Object(class, _) | Token::Custom(class, _) => {
            format!("an object of class `{class}`")
        }
        Token::Enum(class, case) => format!("enum case `{class}::{}`", DisplayBytes(case)),
        Token::ObjectRef(_) | Token::VarRef(_) => "a reference".into(),
    }
}

fn mismatch<'de>(token: &Token<'_>, expected: &impl Visitor<'de>) -> Error {
    let expected: &dyn de::Expected = expected;
    Error::mismatch(expected.to_string(), describe(token))
}

macro_rules! deserialize_int {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.with_value(|de| match de.reader.token()? {
                Token::Int(value) => visitor.visit_i64(value),
                token => Err(mismatch(&token, &visitor)),
            })
        })*
    };
}

impl<'de> de::Deserializer<'de> for &mut Deserializer<'de> {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        if self.passes_cycle() {
            return visitor.visit_map(Forms::new([("$ref", Form::Null)]));
        }
        self.with_value(|de| de.any(visitor))
    }

    deserialize_int! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| match de.reader.token()? {
            Token::Bool(value) => visitor.visit_bool(value),
            token => Err(mismatch(&token, &visitor)),
        })
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| match de.reader.token()? {
            Token::Float(value, _) => visitor.visit_f64(value),
            // PHP itself stores an int in a float property.
            Token::Int(value) => visitor.visit_i64(value),
            token => Err(mismatch(&token, &visitor)),
        })
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| {
            if let Some(bytes) = de.reader.plain_string()? {
                return match std::str::from_utf8(bytes) {
                    Ok(text) => visitor.visit_borrowed_str(text),
                    Err(_) => Err(Error::without_offset(Kind::NotUtf8)),
                };
            }
            match de.reader.token()? {
                Token::Str(bytes) => visit_text(bytes, visitor)
                    .unwrap_or_else(|_| Err(Error::without_offset(Kind::NotUtf8))),
                token => Err(mismatch(&token, &visitor)),
            }
        })
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| match de.reader.token()? {
            Token::Str(Cow::Borrowed(bytes)) => visitor.visit_borrowed_bytes(bytes),
            Token::Str(Cow::Owned(bytes)) => visitor.visit_byte_buf(bytes),
            token => Err(mismatch(&token, &visitor)),
        })
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| {
            if de.reader.peek()? == b'N' {
                de.reader.token()?;
                visitor.visit_none()
            } else {
                visitor.visit_some(de)
            }
        })
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| match de.reader.token()? {
            Token::Null => visitor.visit_unit(),
            token => Err(mismatch(&token, &visitor)),
        })
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.with_value(|de| {
            // A job class whose properties are not needed fits a unit struct as well.
            if matches!(de.reader.peek()?, b'O') {
                de.skip()?;
                return visitor.visit_unit();
            }
            de::Deserializer::deserialize_unit(de, visitor)
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| {
            let start = de.reader.pos();
            match de.reader.token()? {
                Token::Array(left) => de.list(start, left, visitor),
                token => Err(mismatch(&token, &visitor)),
            }
        })
    }

    fn deserialize_tuple<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: usize,
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.deserialize_seq(visitor)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.with_value(|de| de.map(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.with_value(|de| de.map(visitor))
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        self.with_value(|de| match de.reader.token()? {
            Token::Enum(_, bytes) | Token::Str(Cow::Borrowed(bytes)) => {
                match std::str::from_utf8(bytes) {
                    Ok(name) => visitor.visit_enum(name.into_deserializer()),
                    Err(_) => Err(Error::without_offset(Kind::NotUtf8)),
                }
            }
            Token::Array(1) => de.nested(|de| {
                let name = match de.reader.key()? {
                    Token::Str(name) => String::from_utf8_lossy(&name).into_owned(),
                    token => return Err(mismatch(&token, &visitor)),
                };
                let value = visitor.visit_enum(Variant { de, name })?;
                de.reader.close()?;
                Ok(value)
            }),
            token => Err(mismatch(&token, &visitor)),
        })
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        self.skip()?;
        visitor.visit_unit()
    }
}

/// The pairs of an array or object, in order.
struct Pairs<'a, 'de> {
    de: &'a mut Deserializer<'de>,
    class: Option<&'de str>,
    /// Offset of the container's token.
    start: usize,
    /// How many pairs there are.
    count: usize,
    left: usize,
    /// The pairs without overwritten duplicates; `None` if there are no duplicates.
    members: Option<Rc<[Member]>>,
    /// In [`State::OnePass`]: index of its first name in the list of names.
    first_name: usize,
    /// In [`State::OnePass`]: how many of its keys are ints, which were 0, 1, 2 and so on.
    listed: i64,
    /// Offset of the key whose value is next or is being read, to locate errors.
    key: Option<usize>,
    /// Names that several properties share; collected when a private property of a parent class occurs.
    shared_names: Option<HashSet<Vec<u8>>>,
}

impl<'a, 'de> Pairs<'a, 'de> {
    fn new(
        de: &'a mut Deserializer<'de>,
        class: Option<&'de str>,
        start: usize,
        count: usize,
    ) -> Self {
        let members = de.members(start);
        let count = members.as_ref().map_or(count, |members| members.len());
        let first_name = de.names.len();
        Self {
            de,
            class,
            start,
            count,
            left: count,
            members,
            first_name,
            listed: 0,
            key: None,
            shared_names: None,
        }
    }

    fn next_key(&mut self) -> Result<Option<Token<'de>>, Error> {
        self.key = None;
        if self.left == 0 {
            return Ok(None);
        }
        let index = self.count - self.left;
        self.left -= 1;
        if let Some(members) = &self.members {
            let (bytes, member) = (self.de.reader.bytes(), members[index]);
            self.key = Some(member.key);
            self.de.reader = Reader::at(bytes, member.value);
            return Reader::at(bytes, member.key).key().map(Some);
        }
        let start = self.de.reader.pos();
        let key = self.de.reader.key()?;
        self.key = Some(start);
        if self.de.state == State::OnePass && self.note_key(&key) {
            self.de.scan()?;
        }
        Ok(Some(key))
    }

    /// Reads the next key if it is a plain name that does not depend on other keys; else it reads nothing.
    #[inline]
    fn next_plain_name(&mut self) -> Result<Option<&'de str>, Error> {
        if self.left == 0 || self.members.is_some() {
            return Ok(None);
        }
        let start = self.de.reader.pos();
        let Some(name) = self.de.reader.plain_string()? else {
            return Ok(None);
        };
        let plain = name.strip_prefix(b"\0*\0").filter(|_| self.class.is_some());
        match std::str::from_utf8(plain.unwrap_or(name)) {
            Ok(plain) if !plain.starts_with('\0') => {
                self.left -= 1;
                self.key = Some(start);
                if self.de.state == State::OnePass && self.note_name(name) {
                    self.de.scan()?;
                }
                Ok(Some(plain))
            }
            _ => {
                self.de.reader = Reader::at(self.de.reader.bytes(), start);
                Ok(None)
            }
        }
    }

    /// Remembers a key; false if it certainly occurs for the first time: the next int of a list, or another name than
    /// before.
    #[inline]
    fn note_key(&mut self, key: &Token<'de>) -> bool {
        match key {
            Token::Int(key) if *key == self.listed => {
                self.listed += 1;
                false
            }
            Token::Str(Cow::Borrowed(name)) => self.note_name(name),
            _ => true,
        }
    }

    #[inline]
    fn note_name(&mut self, name: &'de [u8]) -> bool {
        const FEW: usize = 32;
        let before = &self.de.names[self.first_name..];
        // A name that looks like an int is one to PHP.
        if matches!(name, [b'0'..=b'9' | b'-', ..]) || before.len() == FEW || before.contains(&name)
        {
            return true;
        }
        if self.de.names.capacity() == 0 {
            self.de.names.reserve(FEW / 2);
        }
        self.de.names.push(name);
        false
    }

    /// Ends the container after its visitor.
    fn end<T>(mut self, value: Result<T, Error>, what: &str) -> Result<T, Error> {
        let value = value.map_err(|error| self.locate(error))?;
        if self.left > 0 {
            return Err(Error::mismatch(
                format!("fewer {what}"),
                format!("{} {what}", self.count),
            ));
        }
        if self.members.is_some() {
            self.de.reader = self.de.end_of(self.start)?;
        }
        self.de.names.truncate(self.first_name);
        self.de.reader.close()?;
        Ok(value)
    }

    /// Adds the pair in which an error occurred.
    fn locate(&mut self, error: Error) -> Error {
        let Some(key) = self.key.take() else {
            return error;
        };
        let key = Reader::at(self.de.reader.bytes(), key).key();
        let name = match (key, self.class) {
            (Ok(Token::Int(key)), _) => return error.inside(Segment::Index(key)),
            (Ok(Token::Str(key)), Some(class)) => self.property_name(class, key),
            (Ok(Token::Str(key)), None) => Ok(key),
            _ => return error,
        };
        match name {
            Ok(name) => error.inside(Segment::Name(name.as_ref().into())),
            Err(_) => error,
        }
    }

    /// The name under which a property is visible: its own, or with the class if the plain name is taken.
    fn property_name(
        &mut self,
        class: &'de str,
        key: Cow<'de, [u8]>,
    ) -> Result<Cow<'de, [u8]>, Error> {
        if key.first() != Some(&0) {
            return Ok(key);
        }
        let property = PropertyName::parse(&key);
        if let Visibility::Private(declaring) = property.visibility
            && !declaring.eq_ignore_ascii_case(class.as_bytes())
        {
            if self.shared_names.is_none() {
                self.shared_names = Some(self.gather_shared_names()?);
            }
            if self
                .shared_names
                .as_ref()
                .is_some_and(|names| names.contains(property.name))
            {
                return Ok(Cow::Owned([declaring, b"::", property.name].concat()));
            }
        }
        Ok(match &key {
            Cow::Borrowed(key) => Cow::Borrowed(PropertyName::parse(key).name),
            Cow::Owned(key) => Cow::Owned(PropertyName::parse(key).name.to_vec()),
        })
    }

    fn gather_shared_names(&mut self) -> Result<HashSet<Vec<u8>>, Error> {
        let mut reader = Reader::at(self.de.reader.bytes(), self.start);
        let (mut seen, mut shared) = (HashSet::new(), HashSet::new());
        let Token::Object(_, count) = reader.token()? else {
            return Ok(shared);
        };
        let count = self.members.as_ref().map_or(count, |members| members.len());
        let slots = self.de.slots()?;
        for index in 0..count {
            let member = self.members.as_ref().map(|members| members[index]);
            if let Some(member) = member {
                reader = Reader::at(reader.bytes(), member.key);
            }
            if let Token::Str(key) = reader.key()? {
                let name = PropertyName::parse(&key).name;
                if !seen.insert(name.to_vec()) {
                    shared.insert(name.to_vec());
                }
            }
            match slots.starting_at(reader.pos()) {
                _ if member.is_some() => {}
                Some(slot) => reader = Reader::at(reader.bytes(), slot.end),
                None => drop(reader.token()?),
            }
        }
        Ok(shared)
    }

    /// The next key in the form that types see.
    #[inline]
    fn next_name(&mut self) -> Result<Option<KeyDeserializer<'de>>, Error> {
        if let Some(name) = self.next_plain_name()? {
            return Ok(Some(KeyDeserializer::Borrowed(name)));
        }
        let Some(token) = self.next_key()? else {
            return Ok(None);
        };
        let key = match (token, self.class) {
            (Token::Int(key), _) => return Ok(Some(KeyDeserializer::Int(key))),
            (Token::Str(key), Some(class)) => self.property_name(class, key)?,
            (Token::Str(key), None) => key,
            _ => unreachable!("a key is an int or a string"),
        };
        Ok(Some(match key {
            Cow::Borrowed(key) => match std::str::from_utf8(key) {
                Ok(key) => KeyDeserializer::Borrowed(key),
                Err(_) => KeyDeserializer::Owned(format!("$bytes:{}", BASE64.encode(key))),
            },
            Cow::Owned(key) => KeyDeserializer::Owned(match String::from_utf8(key) {
                Ok(key) => key,
                Err(error) => format!("$bytes:{}", BASE64.encode(error.as_bytes())),
            }),
        }))
    }
}

impl<'de> MapAccess<'de> for Pairs<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let offset = self.de.reader.pos();
        let Some(name) = self.next_name()? else {
            return Ok(None);
        };
        let key = seed.deserialize(name);
        key.map(Some).map_err(|error| error.at(offset))
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let value = self.de.value(seed)?;
        self.key = None;
        Ok(value)
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.left)
    }
}

/// The values of an array, ignoring their keys.
struct Elements<'p, 'a, 'de>(&'p mut Pairs<'a, 'de>);

impl<'de> SeqAccess<'de> for Elements<'_, '_, 'de> {
    type Error = Error;

    fn next_element_seed<T: DeserializeSeed<'de>>(
        &mut self,
        seed: T,
    ) -> Result<Option<T::Value>, Error> {
        if self.0.next_key()?.is_none() {
            return Ok(None);
        }
        let value = self.0.de.value(seed)?;
        self.0.key = None;
        Ok(Some(value))
    }

    fn size_hint(&self) -> Option<usize> {
        Some(self.0.left)
    }
}

/// An untyped object: `$class` or `$model` first, then its properties.
struct AnyObject<'a, 'de> {
    /// `None` once the class was given to the visitor.
    class: Option<&'de str>,
    pairs: Pairs<'a, 'de>,
}

impl<'de> MapAccess<'de> for AnyObject<'_, 'de> {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let is_model = self
            .pairs
            .class
            .is_some_and(|class| class.eq_ignore_ascii_case(MODEL_IDENTIFIER));
        if self.class.is_some() {
            if !is_model {
                return seed
                    .deserialize(KeyDeserializer::Borrowed("$class"))
                    .map(Some);
            }
            self.class = None;
        }
        if !is_model {
            let offset = self.pairs.de.reader.pos();
            let mut name = self.pairs.next_name()?;
            // A dynamic property of that name would be there twice.
            while name.as_ref().is_some_and(|name| name.is("$class")) {
                self.pairs.next_value::<de::IgnoredAny>()?;
                name = self.pairs.next_name()?;
            }
            let key = name.map(|name| seed.deserialize(name)).transpose();
            return key.map_err(|error| error.at(offset));
        }
        // All versions write the five properties in the same order; only `class` is renamed here.
        let Some(token) = self.pairs.next_key()? else {
            return Ok(None);
        };
        let name = text(token).unwrap_or_default();
        if name == "collectionClass" && self.pairs.de.reader.peek()? == b'N' {
            self.pairs.de.reader.token()?;
            return self.next_key_seed(seed);
        }
        let name = if name == "class" {
            "$model".to_owned()
        } else {
            name.into_owned()
        };
        seed.deserialize(KeyDeserializer::Owned(name)).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        match self.class.take() {
            Some(class) => seed.deserialize(BorrowedStrDeserializer::new(class)),
            None => self.pairs.next_value_seed(seed),
        }
    }
}

/// A value of [`Forms`].
enum Form {
    Null,
    Text(String),
    /// Base64, shown as `{"$bytes":..}`.
    Bytes(String),
}

impl Form {
    fn of(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Bytes(BASE64.encode(bytes)),
        }
    }
}

impl From<String> for Form {
    fn from(text: String) -> Self {
        Self::Text(text)
    }
}

impl<'de> de::Deserializer<'de> for Form {
    type Error = Error;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Null => visitor.visit_unit(),
            Self::Text(text) => visitor.visit_string(text),
            Self::Bytes(base64) => visitor.visit_map(Forms::new([("$bytes", base64)])),
        }
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// A few named texts: the JSON forms of values for which JSON has no type.
struct Forms {
    left: std::vec::IntoIter<(&'static str, Form)>,
    value: Option<Form>,
}

impl Forms {
    fn new<const N: usize>(pairs: [(&'static str, impl Into<Form>); N]) -> Self {
        let pairs: Vec<_> = pairs
            .into_iter()
            .map(|(name, form)| (name, form.into()))
            .collect();
        Self {
            left: pairs.into_iter(),
            value: None,
        }
    }
}

impl<'de> MapAccess<'de> for Forms {
    type Error = Error;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, Error> {
        let Some((name, value)) = self.left.next() else {
            return Ok(None);
        };
        self.value = Some(value);
        let name: StrDeserializer<'_, Error> = name.into_deserializer();
        seed.deserialize(name).map(Some)
    }

    fn next_value_seed<T: DeserializeSeed<'de>>(&mut self, seed: T) -> Result<T::Value, Error> {
        let missing = || Error::without_offset(Kind::Unsupported("a value without a key"));
        seed.deserialize(self.value.take().ok_or_else(missing)?)
    }
}

/// Reads an array key or property name.
enum KeyDeserializer<'de> {
    Int(i64),
    Borrowed(&'de str),
    Owned(String),
}

impl KeyDeserializer<'_> {
    fn is(&self, name: &str) -> bool {
        match self {
            Self::Int(_) => false,
            Self::Borrowed(text) => *text == name,
            Self::Owned(text) => text == name,
        }
    }

    fn int<'v, V: Visitor<'v>>(self, visitor: V) -> Result<V::Value, Error> {
        let value = match &self {
            Self::Int(value) => Some(*value),
            Self::Borrowed(text) => canonical_int(text.as_bytes()),
            Self::Owned(text) => canonical_int(text.as_bytes()),
        };
        match value {
            Some(value) => visitor.visit_i64(value),
            None => Err(mismatch(&Token::Str(Cow::Borrowed(b"")), &visitor)),
        }
    }
}

macro_rules! int_keys {
    ($($method:ident)*) => {
        $(fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
            self.int(visitor)
        })*
    };
}

impl<'de> de::Deserializer<'de> for KeyDeserializer<'de> {
    type Error = Error;

    /// Always text, even for ints: a PHP array may mix both kinds of keys, a Rust map cannot.
    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        match self {
            Self::Int(key) => visitor.visit_string(key.to_string()),
            Self::Borrowed(key) => visitor.visit_borrowed_str(key),
            Self::Owned(key) => visitor.visit_string(key),
        }
    }

    int_keys! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Error> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, Error> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        let text = match self {
            Self::Int(key) => key.to_string(),
            Self::Borrowed(key) => key.to_owned(),
            Self::Owned(key) => key,
        };
        let text: StringDeserializer<Error> = text.into_deserializer();
        text.deserialize_enum(name, variants, visitor)
    }

    serde::forward_to_deserialize_any! {
        bool f32 f64 char str string bytes byte_buf unit unit_struct seq tuple tuple_struct map struct
        identifier ignored_any
    }
}

/// An enum variant with content: an array of one pair.
struct Variant<'a, 'de> {
    de: &'a mut Deserializer<'de>,
    name: String,
}

impl<'a, 'de> EnumAccess<'de> for Variant<'a, 'de> {
    type Error = Error;
    type Variant = &'a mut Deserializer<'de>;

    fn variant_seed<V: DeserializeSeed<'de>>(
        self,
        seed: V,
    ) -> Result<(V::Value, Self::Variant), Error> {
        let name: StringDeserializer<Error> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, self.de))
    }
}

impl<'de> VariantAccess<'de> for &mut Deserializer<'de> {
    type Error = Error;

    fn unit_variant(self) -> Result<(), Error> {
        Deserialize::deserialize(self)
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Error> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _: usize, visitor: V) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_seq(self, visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Error> {
        de::Deserializer::deserialize_map(self, visitor)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    fn read<'de, T: Deserialize<'de>>(text: &'de str) -> Result<T, String> {
        from_slice(text.as_bytes()).map_err(|error| error.to_string())
    }

    #[derive(Debug, PartialEq, Deserialize)]
    enum Suit {
        Hearts,
        Other(i64),
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Child {
        pri: i64,
        #[serde(rename = "P::pri")]
        of_parent: Option<i64>,
        suit: Suit,
    }

    #[test]
    fn objects_fill_structs_whatever_the_visibility() {
        let bytes = "O:2:\"C2\":4:{s:6:\"\0P\0pri\";i:1;s:7:\"\0C2\0pri\";i:5;s:4:\"suit\";\
            E:11:\"Suit:Hearts\";s:7:\"ignored\";a:1:{i:0;O:3:\"Emp\":0:{}}}";
        assert_eq!(
            read(bytes),
            Ok(Child {
                pri: 5,
                of_parent: Some(1),
                suit: Suit::Hearts
            })
        );
        assert_eq!(read("a:1:{s:5:\"Other\";i:3;}"), Ok(Suit::Other(3)));
        assert_eq!(read("a:1:{s:6:\"Hearts\";N;}"), Ok(Suit::Hearts));
    }

    #[test]
    fn lists_with_gaps_are_lists_and_arrays_are_maps() {
        let bytes = "a:2:{i:3;i:1;s:1:\"k\";i:2;}";
        assert_eq!(read(bytes), Ok(vec![1, 2]));
        assert_eq!(read(bytes), Ok((1, 2)));
        assert_eq!(
            read(bytes),
            Ok(BTreeMap::from([("3".to_owned(), 1), ("k".to_owned(), 2)]))
        );
        assert_eq!(
            read("a:2:{i:3;i:1;i:-1;i:2;}"),
            Ok(BTreeMap::from([(-1, 2), (3, 1)]))
        );
        assert!(
            read::<(i64,)>(bytes)
                .unwrap_err()
                .starts_with("expected fewer elements")
        );
    }

    #[derive(Debug, PartialEq, Deserialize)]
    struct Node {
        next: Option<Box<Node>>,
    }

    #[test]
    fn references_are_followed() {
        assert_eq!(
            read("a:3:{i:0;s:1:\"x\";i:1;R:2;i:2;R:2;}"),
            Ok(vec!["x"; 3])
        );
        let error = read::<Node>("O:4:\"Node\":1:{s:4:\"next\";r:1;}").unwrap_err();
        assert!(error.contains("contains itself"), "{error}");
    }

    #[test]
    fn what_takes_anything_takes_a_value_inside_itself_as_a_reference_without_a_place() {
        #[derive(Debug, PartialEq, Deserialize)]
        struct Job {
            data: serde_json::Value,
            n: u8,
        }
        let cut = serde_json::json!({"$ref": null});
        let user =
            |posts: &str| format!("O:4:\"User\":2:{{s:5:\"posts\";a:2:{{{posts}}}s:1:\"n\";i:1;}}");
        let post = r#"O:4:"Post":1:{s:4:"user";r:1;}"#;
        let shown = serde_json::json!({"$class": "Post", "user": cut});
        #[rustfmt::skip]
        let rows = [
            // In itself, twice.
            (user(&format!("i:0;{post}i:1;{post}")), serde_json::json!({"$class": "User", "posts": [shown, shown], "n": 1})),
            // In itself, and again through a reference to it.
            (r#"a:3:{i:0;O:1:"A":1:{s:1:"a";r:2;}i:1;r:2;i:2;i:7;}"#.to_owned(),
             serde_json::json!([{"$class": "A", "a": cut}, {"$class": "A", "a": cut}, 7])),
            // An array that refers to itself.
            ("a:1:{i:0;a:1:{i:0;R:2;}}".to_owned(), serde_json::json!([[cut]])),
        ];
        for (text, expected) in rows {
            assert_eq!(read(&text), Ok(expected), "{text}");
        }
        // A type of its own around it.
        let text = r#"O:3:"Job":2:{s:4:"data";a:1:{s:2:"up";r:1;}s:1:"n";i:7;}"#;
        let data = serde_json::json!({"up": cut});
        assert_eq!(read(text), Ok(Job { data, n: 7 }));
    }

    #[test]
    fn the_last_of_duplicate_keys_counts_in_one_pass_too() {
        /// A sum, or nothing if it could not be read.
        #[derive(Debug, PartialEq)]
        struct Lenient(Option<i64>);
        impl<'de> Deserialize<'de> for Lenient {
            fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let list = Vec::<i64>::deserialize(deserializer);
                Ok(Self(list.ok().map(|list| list.iter().sum())))
            }
        }
        /// The values, also those behind keys that were refused.
        #[derive(Debug, PartialEq)]
        struct Stubborn(Vec<i64>);
        impl<'de> Deserialize<'de> for Stubborn {
            fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_map(StubbornVisitor).map(Self)
            }
        }
        struct StubbornVisitor;
        impl<'de> Visitor<'de> for StubbornVisitor {
            type Value = Vec<i64>;

            fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str("pairs")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Vec<i64>, A::Error> {
                let mut values = Vec::new();
                while !matches!(map.next_key::<String>(), Ok(None)) {
                    values.push(map.next_value()?);
                }
                Ok(values)
            }
        }
        let many: Vec<_> = (0..40)
            .map(|key| format!("s:3:\"a{key:02}\";i:1;"))
            .collect();
        let rows = [
            ("a:2:{i:0;i:1;i:0;i:2;}".to_owned(), vec![2]),
            ("a:2:{i:0;i:1;s:1:\"0\";i:2;}".to_owned(), vec![2]),
            (
                "a:3:{s:1:\"a\";i:1;i:0;i:5;s:1:\"a\";i:2;}".to_owned(),
                vec![2, 5],
            ),
            (
                "a:3:{s:1:\"a\";i:1;i:0;R:2;S:1:\"\\61\";i:2;}".to_owned(),
                vec![2, 1],
            ),
            ("a:2:{s:1:\"7\";i:1;i:7;i:2;}".to_owned(), vec![2]),
            ("a:2:{i:5;i:1;i:5;i:2;}".to_owned(), vec![2]),
            ("a:2:{s:1:\"0\";i:1;s:1:\"0\";i:2;}".to_owned(), vec![2]),
        ];
        for (text, expected) in rows {
            assert_eq!(read(&text), Ok(expected), "{text}");
        }
        let map = read::<BTreeMap<String, i64>>;
        assert_eq!(
            map(&format!("a:40:{{{}}}", many.concat())).unwrap().len(),
            40
        );
        // A type that drops errors must not hide that a text has to be read again.
        let text = "a:2:{i:0;a:2:{i:0;i:1;i:0;i:2;}i:1;a:1:{i:0;i:3;}}";
        assert_eq!(read(text), Ok(vec![Lenient(Some(2)), Lenient(Some(3))]));
        let text = "a:2:{s:1:\"a\";i:1;s:1:\"a\";i:2;}";
        assert_eq!(read(text), Ok(Stubborn(vec![2])));
        // Keys of other containers, once it is known that the text has duplicates.
        let text = "a:3:{i:0;a:2:{i:0;i:1;i:0;i:2;}i:1;a:1:{i:5;i:3;}i:2;a:1:{s:2:\"7x\";i:4;}}";
        assert_eq!(read(text), Ok(vec![vec![2], vec![3], vec![4]]));
        let map = |key: &str, value| BTreeMap::from([(key.to_owned(), value)]);
        assert_eq!(read(text), Ok(vec![map("0", 2), map("5", 3), map("7x", 4)]));
    }

    #[test]
    fn an_error_that_a_type_keeps_to_itself_leaves_the_values_behind_it_in_order() {
        #[expect(clippy::unnecessary_wraps, reason = "serde asks for it")]
        fn lenient<'de, D: de::Deserializer<'de>>(deserializer: D) -> Result<usize, D::Error> {
            let list = Vec::<i64>::deserialize(deserializer);
            Ok(list.map_or(0, |list| list.len()))
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Job {
            #[serde(deserialize_with = "lenient")]
            list: usize,
            n: i64,
        }
        #[derive(Debug, PartialEq, Deserialize)]
        struct Lenient(#[serde(deserialize_with = "lenient")] usize);
        let (fits, fails) = (
            "a:2:{i:0;i:1;i:1;i:2;}",
            "a:3:{i:0;i:1;i:1;s:1:\"n\";s:1:\"n\";i:9;}",
        );
        for (list, length) in [(fits, 2), (fails, 0), ("i:5;", 0), ("R:2;", 0)] {
            let job = format!("a:3:{{s:4:\"list\";{list}s:1:\"n\";i:7;s:4:\"more\";N;}}");
            let job = job.replace("R:2;", "a:1:{i:0;R:2;}");
            assert_eq!(read::<Job>(&job), Ok(Job { list: length, n: 7 }), "{list}");
            let lists = format!("a:3:{{i:0;{fits}i:1;{list}i:2;{fits}}}");
            let lists = read::<Vec<Lenient>>(&lists.replace("R:2;", "R:3;"));
            let length = if list == "R:2;" { 0 } else { length };
            assert_eq!(lists, Ok([2, length, 2].map(Lenient).into()), "{list}");
        }
    }

    #[test]
    fn references_that_fan_out_are_refused() {
        let mut bytes = "a:60:{i:0;a:1:{i:0;i:1;}".to_owned();
        for level in 1..60 {
            let slot = if level == 1 { 2 } else { level + 2 };
            let pair = format!("i:{level};a:2:{{i:0;R:{slot};i:1;R:{slot};}}");
            bytes.push_str(&pair);
        }
        bytes.push('}');
        let error = read::<serde_json::Value>(&bytes).unwrap_err();
        assert!(error.contains("expand to too many values"), "{error}");
    }

    #[test]
    fn values_that_do_not_fit_say_what_was_found_and_where() {
        #[derive(Debug, Deserialize)]
        struct Job {
            #[expect(dead_code, reason = "only its error is of interest")]
            ids: Vec<u8>,
        }
        let rows = [
            (
                "O:1:\"J\":1:{s:3:\"ids\";a:1:{i:4;s:1:\"5\";}}",
                "`ids[4]`: expected u8, found a string of 1 bytes (byte 30)",
            ),
            (
                "O:1:\"J\":1:{s:3:\"ids\";a:1:{i:4;i:300;}}",
                "`ids[4]`: expected u8, found an int that does not fit (byte 30)",
            ),
            (
                "O:1:\"J\":1:{s:3:\"ids\";i:1;}",
                "`ids`: expected a sequence, found an int (byte 21)",
            ),
            (
                "O:1:\"J\":0:{}",
                "property `ids` is not in the object (Laravel leaves out properties equal to their class default) (byte 0)",
            ),
            ("i:1;", "expected struct Job, found an int (byte 0)"),
            (
                "a:1:{s:3:\"ids\";i:1;}",
                "`ids`: expected a sequence, found an int (byte 15)",
            ),
            (
                "O:1:\"J\":1:{s:3:\"ids\";a:0:{}s:1:\"b\";N;}",
                "expected `}` (no more pairs were announced), found `s` (byte 27)",
            ),
            (
                "O:1:\"J\":1:{s:3:\"ids\";a:0:{}}i:1;",
                "data after the end of the value (byte 28)",
            ),
        ];
        for (bytes, expected) in rows {
            assert_eq!(read::<Job>(bytes).unwrap_err(), expected);
        }
    }

    #[test]
    fn what_takes_anything_gets_the_forms_of_the_document() {
        let bytes = "O:1:\"J\":4:{s:1:\"d\";O:8:\"DateTime\":3:{s:4:\"date\";s:26:\"2024-01-02 03:04:05.000000\";\
            s:13:\"timezone_type\";i:3;s:8:\"timezone\";s:3:\"UTC\";}s:1:\"e\";E:11:\"Suit:Hearts\";\
            s:1:\"m\";O:45:\"Illuminate\\Contracts\\Database\\ModelIdentifier\":5:{s:5:\"class\";s:1:\"U\";s:2:\"id\";i:7;\
            s:9:\"relations\";a:0:{}s:10:\"connection\";N;s:15:\"collectionClass\";N;}s:1:\"f\";d:NAN;}";
        let value: serde_json::Value = read(bytes).unwrap();
        let expected: serde_json::Value = serde_json::from_str(
            &super::super::Value::from_bytes(bytes.as_bytes())
                .unwrap()
                .to_json(),
        )
        .unwrap();
        assert_eq!(value, expected);
        assert_eq!(value["d"]["$date"], "2024-01-02T03:04:05.000000+00:00");
        assert_eq!(value["m"]["$model"], "U");
        for (plain, escaped) in [
            ("s:5:\"class\"", "S:5:\"cl\\61ss\""),
            ("s:26:\"2024", "S:26:\"\\32024"),
            ("s:3:\"UTC\"", "S:3:\"UT\\43\""),
        ] {
            let escaped = bytes.replace(plain, escaped);
            assert_eq!(read(&escaped).as_ref(), Ok(&value), "{escaped}");
        }
    }

    #[test]
    fn references_are_followed_up_to_a_limit() {
        fn repeated<'de, T: Deserialize<'de>>(text: &'de str) -> Option<Kind> {
            let error = from_slice::<Vec<T>>(text.as_bytes()).err()?;
            Some(error.kind().clone())
        }
        let text = |first: &str, times: usize| {
            let references: Vec<String> = (1..=times).map(|i| format!("i:{i};R:2;")).collect();
            let references = references.concat();
            format!("a:{}:{{i:0;{first}{references}}}", times + 1)
        };
        let nulls: Vec<String> = (0..1000).map(|i| format!("i:{i};N;")).collect();
        let nulls = format!("a:1000:{{{}}}", nulls.concat());
        let most = MAX_EXPANDED / 1000;
        assert_eq!(repeated::<Vec<()>>(&text(&nulls, most)), None);
        assert_eq!(
            repeated::<Vec<()>>(&text(&nulls, most + 1)),
            Some(Kind::ExpansionExceeded)
        );
        let long = "x".repeat((1 << 20) - "s:1048563:\"\";".len());
        let long = format!("s:{}:\"{long}\";", long.len());
        let most = MAX_EXPANDED_BYTES / long.len();
        assert_eq!(repeated::<&str>(&text(&long, most)), None);
        assert_eq!(
            repeated::<&str>(&text(&long, most + 1)),
            Some(Kind::ExpansionExceeded)
        );
    }

    #[test]
    fn strings_of_any_length_may_contain_what_ends_a_string() {
        for len in 0..200 {
            for ends in ["\";", ";\""] {
                let string = &ends.repeat(100)[..len];
                let after = ends.repeat(100);
                let text = format!("a:2:{{i:0;s:{len}:\"{string}\";i:1;s:200:\"{after}\";}}");
                assert_eq!(read(&text), Ok(vec![string, &after]), "{text}");
            }
        }
    }

    #[test]
    fn deep_nesting_is_an_error_and_not_a_stack_overflow() {
        let bytes = [
            b"a:1:{i:0;".repeat(100_000),
            b"N;".to_vec(),
            b"}".repeat(100_000),
        ]
        .concat();
        assert!(from_slice::<serde_json::Value>(&bytes).is_err());
        assert!(from_slice::<de::IgnoredAny>(&bytes).is_err());
        let deep = [b"a:1:{i:0;".repeat(4000), b"N;".to_vec(), b"}".repeat(4000)].concat();
        assert!(from_slice::<de::IgnoredAny>(&deep).is_ok());
    }
}
