//! A lossless tree of a serialized value.
//!
//! Whatever PHP writes comes back from [`Value::to_bytes`] byte for byte: order
//! of pairs, visibility marks, duplicate keys, the text of floats written with
//! `serialize_precision = 17`, opaque `C:` bodies, references as numbers. Forms
//! that PHP reads but never writes (`i:+5;`, `S:`, leading zeros) come back as
//! PHP would write them.
//!
//! References stay references here; [`Value::to_json`](Value::to_json) and
//! [`from_slice`](super::from_slice) follow them.

use std::borrow::Cow;
use std::fmt;

use super::class::{ClassName, PropertyName, Visibility};
use super::error::{Error, Kind, Segment};
use super::read::{MAX_CUSTOM_NESTING, Reader, Slots, Token, signature_len};

/// Most levels of nesting that are read; PHP's own default (`unserialize_max_depth`).
pub const MAX_DEPTH: usize = 4096;

/// A PHP value as `serialize()` writes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// `N;`
    Null,
    /// `b:`
    Bool(bool),
    /// `i:`
    Int(i64),
    /// `d:`
    Float(Float),
    /// `s:`; bytes, not necessarily UTF-8.
    String(Vec<u8>),
    /// `a:`
    Array(Array),
    /// `O:`
    Object(Object),
    /// `C:`
    Custom(Custom),
    /// `E:`
    Enum(EnumCase),
    /// `r:`; the object of the slot with this number, which takes a slot itself.
    ObjectRef(u64),
    /// `R:`; a PHP reference to the slot with this number.
    VarRef(u64),
}

/// A float, with the text it was written as if PHP would write it otherwise today.
///
/// Two floats are equal if they are the same bits written the same way.
#[derive(Debug, Clone)]
pub struct Float {
    value: f64,
    text: Option<Box<str>>,
}

/// An ordered PHP array.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Array {
    /// Keys and values in order; a duplicate key stays where it stood.
    pub pairs: Vec<(Key, Value)>,
}

/// An array key or a serialized property name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    /// `i:`
    Int(i64),
    /// `s:`; property names with their visibility marks.
    String(Vec<u8>),
}

/// An object with its properties.
#[derive(Debug, Clone, PartialEq)]
pub struct Object {
    /// Class of the object.
    pub class: ClassName,
    /// Serialized property names and values in order.
    pub properties: Vec<(Key, Value)>,
}

/// An object that wrote itself by PHP's old `Serializable` interface.
#[derive(Debug, Clone, PartialEq)]
pub struct Custom {
    /// Class of the object.
    pub class: ClassName,
    body: Vec<u8>,
    /// The body as a value, where it is `serialize()` output: its values have numbers of the whole.
    inner: Option<Box<Value>>,
}

impl Custom {
    /// An object with a body that takes no part in the numbering of references.
    pub fn new(class: ClassName, body: Vec<u8>) -> Self {
        Self {
            class,
            body,
            inner: None,
        }
    }

    /// What the object's `serialize` method returned.
    pub fn body(&self) -> &[u8] {
        &self.body
    }

    pub(crate) fn inner(&self) -> Option<&Value> {
        self.inner.as_deref()
    }
}

/// A case of a PHP enum.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnumCase {
    /// The enum.
    pub class: ClassName,
    /// Name of the case; the backing value is not on the wire.
    pub case: Box<str>,
}

impl Float {
    /// The number.
    pub fn get(&self) -> f64 {
        self.value
    }
}

impl From<f64> for Float {
    fn from(value: f64) -> Self {
        Self { value, text: None }
    }
}

impl PartialEq for Float {
    fn eq(&self, other: &Self) -> bool {
        self.value.to_bits() == other.value.to_bits() && self.text == other.text
    }
}

impl Array {
    /// Value of the last pair with this string key, or with the int it stands for (PHP makes `"7"` the int 7).
    pub fn get(&self, key: &[u8]) -> Option<&Value> {
        let int = canonical_int(key);
        let is_it = |candidate: &Key| match candidate {
            Key::Int(candidate) => Some(*candidate) == int,
            Key::String(candidate) => candidate == key,
        };
        self.pairs
            .iter()
            .rev()
            .find(|(candidate, _)| is_it(candidate))
            .map(|(_, value)| value)
    }

    /// The int that PHP makes of a key that is written as text; `None` if it stays text.
    pub fn int_key(key: &[u8]) -> Option<i64> {
        canonical_int(key)
    }

    /// True if the keys are 0, 1, 2 and so on, in this order.
    pub fn is_list(&self) -> bool {
        self.pairs
            .iter()
            .zip(0i64..)
            .all(|((key, _), index)| *key == Key::Int(index))
    }

    /// The values in order.
    pub fn values(&self) -> impl DoubleEndedIterator<Item = &Value> {
        self.pairs.iter().map(|(_, value)| value)
    }
}

impl FromIterator<Value> for Array {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        Self {
            pairs: (0..).map(Key::Int).zip(values).collect(),
        }
    }
}

impl Object {
    /// An object without properties.
    pub fn new(class: ClassName) -> Self {
        Self {
            class,
            properties: Vec::new(),
        }
    }

    /// Adds a public property.
    #[must_use]
    pub fn public(self, name: &str, value: impl Into<Value>) -> Self {
        self.with(Visibility::Public, name, value)
    }

    /// Adds a protected property.
    #[must_use]
    pub fn protected(self, name: &str, value: impl Into<Value>) -> Self {
        self.with(Visibility::Protected, name, value)
    }

    /// Adds a property that is private to the object's own class.
    #[must_use]
    pub fn private(self, name: &str, value: impl Into<Value>) -> Self {
        let class = self.class.as_str().to_owned();
        self.with(Visibility::Private(class.as_bytes()), name, value)
    }

    /// Adds a property of the given visibility.
    #[must_use]
    pub fn with(mut self, visibility: Visibility<'_>, name: &str, value: impl Into<Value>) -> Self {
        let name = PropertyName {
            visibility,
            name: name.as_bytes(),
        }
        .to_bytes();
        self.properties.push((Key::String(name), value.into()));
        self
    }

    /// Value of a property by its name in PHP source, whatever its visibility.
    ///
    /// The object's own property is preferred to a private one of a parent class.
    pub fn get(&self, name: &str) -> Option<&Value> {
        let mut of_parent = None;
        for (key, value) in self.properties.iter().rev() {
            let Key::String(key) = key else { continue };
            let property = PropertyName::parse(key);
            if property.name != name.as_bytes() {
                continue;
            }
            if !self.is_private_to_another(property.visibility) {
                return Some(value);
            }
            of_parent.get_or_insert(value);
        }
        of_parent
    }

    /// Replaces the property of this name, or adds it as a public one at the end.
    ///
    /// At the end, because a property added anywhere else would shift the
    /// numbers that back references inside the object point to.
    pub fn set(&mut self, name: &str, value: impl Into<Value>) {
        let class = self.class.as_str().as_bytes();
        let found = self.properties.iter_mut().rev().find(|(key, _)| match key {
            Key::String(key) => {
                let property = PropertyName::parse(key);
                property.name == name.as_bytes()
                    && !matches!(property.visibility, Visibility::Private(c) if !c.eq_ignore_ascii_case(class))
            }
            Key::Int(_) => false,
        });
        match found {
            Some((_, slot)) => *slot = value.into(),
            None => self
                .properties
                .push((Key::String(name.as_bytes().to_vec()), value.into())),
        }
    }

    pub(crate) fn is_private_to_another(&self, visibility: Visibility<'_>) -> bool {
        matches!(visibility, Visibility::Private(class) if !class.eq_ignore_ascii_case(self.class.as_str().as_bytes()))
    }
}

impl Value {
    /// Reads one value; the bytes must hold nothing else.
    ///
    /// # Errors
    ///
    /// See [`Kind`]; nesting is limited to [`MAX_DEPTH`], memory by the length of the input.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let mut reader = Reader::new(bytes);
        let value = read(&mut reader)?;
        if reader.remaining() > 0 {
            return Err(reader.error(Kind::TrailingData));
        }
        Ok(value)
    }

    /// Reads one value and says how many bytes it took, as PHP does before 8.3.
    pub fn from_prefix(bytes: &[u8]) -> Result<(Self, usize), Error> {
        let mut reader = Reader::new(bytes);
        let value = read(&mut reader)?;
        Ok((value, reader.pos()))
    }

    /// Writes the value as PHP's `serialize` does.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out);
        out
    }

    /// Appends what [`to_bytes`](Self::to_bytes) returns.
    pub fn write_to(&self, out: &mut Vec<u8>) {
        let mut open: Vec<std::slice::Iter<'_, (Key, Value)>> = Vec::new();
        let mut next = Some(self);
        while let Some(value) = next {
            match value {
                Self::Null => out.extend_from_slice(b"N;"),
                Self::Bool(value) => out.extend_from_slice(if *value { b"b:1;" } else { b"b:0;" }),
                Self::Int(value) => write_int(out, *value),
                Self::Float(Float {
                    text: Some(text), ..
                }) => {
                    out.extend_from_slice(b"d:");
                    out.extend_from_slice(text.as_bytes());
                    out.push(b';');
                }
                Self::Float(Float { value, text: None }) => write_float(out, *value),
                Self::String(value) => write_string(out, value),
                Self::Array(array) => {
                    write_array_head(out, array.pairs.len());
                    open.push(array.pairs.iter());
                }
                Self::Object(object) => {
                    write_object_head(out, object.class.as_str(), object.properties.len());
                    open.push(object.properties.iter());
                }
                Self::Custom(Custom { class, body, .. }) => {
                    let head = format!("C:{}:\"{class}\":{}:{{", class.as_str().len(), body.len());
                    out.extend_from_slice(head.as_bytes());
                    out.extend_from_slice(body);
                    out.push(b'}');
                }
                Self::Enum(EnumCase { class, case }) => {
                    let len = class.as_str().len() + 1 + case.len();
                    out.extend_from_slice(format!("E:{len}:\"{class}:{case}\";").as_bytes());
                }
                Self::ObjectRef(slot) => out.extend_from_slice(format!("r:{slot};").as_bytes()),
                Self::VarRef(slot) => out.extend_from_slice(format!("R:{slot};").as_bytes()),
            }
            next = loop {
                let Some(pairs) = open.last_mut() else {
                    break None;
                };
                if let Some((key, value)) = pairs.next() {
                    match key {
                        Key::Int(key) => write_int(out, *key),
                        Key::String(key) => write_string(out, key),
                    }
                    break Some(value);
                }
                out.push(b'}');
                open.pop();
            };
        }
    }

    /// What kind of value it is, for messages.
    pub fn kind_name(&self) -> Cow<'static, str> {
        match self {
            Self::Null => "null".into(),
            Self::Bool(_) => "a bool".into(),
            Self::Int(_) => "an int".into(),
            Self::Float(_) => "a float".into(),
            Self::String(_) => "a string".into(),
            Self::Array(_) => "an array".into(),
            Self::Object(object) => format!("an object of class `{}`", object.class).into(),
            Self::Custom(custom) => format!("an object of class `{}`", custom.class).into(),
            Self::Enum(case) => format!("a case of enum `{}`", case.class).into(),
            Self::ObjectRef(_) | Self::VarRef(_) => "a reference".into(),
        }
    }

    /// The string's bytes.
    pub fn as_bytes(&self) -> Option<&[u8]> {
        match self {
            Self::String(bytes) => Some(bytes),
            _ => None,
        }
    }

    /// The string, if it is UTF-8.
    pub fn as_str(&self) -> Option<&str> {
        self.as_bytes()
            .and_then(|bytes| std::str::from_utf8(bytes).ok())
    }

    /// The int.
    pub fn as_int(&self) -> Option<i64> {
        match self {
            Self::Int(value) => Some(*value),
            _ => None,
        }
    }

    /// The array.
    pub fn as_array(&self) -> Option<&Array> {
        match self {
            Self::Array(array) => Some(array),
            _ => None,
        }
    }

    /// The object.
    pub fn as_object(&self) -> Option<&Object> {
        match self {
            Self::Object(object) => Some(object),
            _ => None,
        }
    }

    /// True for null.
    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Value {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<f64> for Value {
    fn from(value: f64) -> Self {
        Self::Float(value.into())
    }
}

impl From<&str> for Value {
    fn from(value: &str) -> Self {
        Self::String(value.as_bytes().to_vec())
    }
}

impl From<String> for Value {
    fn from(value: String) -> Self {
        Self::String(value.into_bytes())
    }
}

impl From<Object> for Value {
    fn from(value: Object) -> Self {
        Self::Object(value)
    }
}

impl From<Array> for Value {
    fn from(value: Array) -> Self {
        Self::Array(value)
    }
}

impl<T: Into<Self>> From<Option<T>> for Value {
    fn from(value: Option<T>) -> Self {
        value.map_or(Self::Null, Into::into)
    }
}

impl From<&str> for Key {
    fn from(key: &str) -> Self {
        Self::String(key.as_bytes().to_vec())
    }
}

/// A container whose pairs are still being read.
struct Open {
    class: Option<ClassName>,
    left: usize,
    pairs: Vec<(Key, Value)>,
    /// Key of the pair whose value is being read.
    key: Option<Key>,
}

impl Open {
    fn finish(self) -> Value {
        match self.class {
            Some(class) => Value::Object(Object {
                class,
                properties: self.pairs,
            }),
            None => Value::Array(Array { pairs: self.pairs }),
        }
    }
}

fn read(reader: &mut Reader<'_>) -> Result<Value, Error> {
    let mut slots = Slots::default();
    let mut open: Vec<Open> = Vec::new();
    read_into(reader, 0, &mut slots, &mut open, 0).map_err(|error| {
        open.iter()
            .rev()
            .fold(error, |error, container| match &container.key {
                Some(Key::Int(key)) => error.inside(Segment::Index(*key)),
                Some(Key::String(key)) => {
                    error.inside(Segment::Name(PropertyName::parse(key).name.into()))
                }
                None => error,
            })
    })
}

/// Reads the body of a `C:` object as a value, if it is `serialize()` output (see [`walk`](super::read::walk)).
fn read_custom_body(
    body: &[u8],
    base: usize,
    slots: &mut Slots,
    nesting: usize,
) -> Option<Box<Value>> {
    if nesting >= MAX_CUSTOM_NESTING {
        return None;
    }
    let before = slots.len();
    let mut reader = Reader::at(body, signature_len(body));
    match read_into(&mut reader, base, slots, &mut Vec::new(), nesting + 1) {
        Ok(value) if reader.remaining() == 0 => Some(Box::new(value)),
        _ => {
            slots.truncate(before);
            None
        }
    }
}

fn read_into(
    reader: &mut Reader<'_>,
    base: usize,
    slots: &mut Slots,
    open: &mut Vec<Open>,
    nesting: usize,
) -> Result<Value, Error> {
    loop {
        let offset = reader.pos();
        let token = reader.token()?;
        slots.note(&token, base + offset)?;
        let class_name = |name: &str| ClassName::new(name).expect("the reader checked the name");
        let container = match &token {
            Token::Array(count) => Some((None, *count)),
            Token::Object(class, count) => Some((Some(class_name(class)), *count)),
            _ => None,
        };
        let mut done = if let Some((class, left)) = container {
            if open.len() >= MAX_DEPTH && (left > 0 || class.is_some()) {
                return Err(Error::new(Kind::DepthExceeded { limit: MAX_DEPTH }, offset));
            }
            // Small at first whatever the count says: it is not yet proven.
            open.push(Open {
                class,
                left,
                pairs: Vec::with_capacity(left.min(8)),
                key: None,
            });
            None
        } else {
            Some(match token {
                Token::Null => Value::Null,
                Token::Bool(value) => Value::Bool(value),
                Token::Int(value) => Value::Int(value),
                Token::Float(value, text) => Value::Float(float_with_text(value, text)),
                Token::Str(bytes) => Value::String(bytes.into_owned()),
                Token::Custom(class, body) => {
                    let start = base + reader.pos() - 1 - body.len();
                    let inner = read_custom_body(body, start, slots, nesting);
                    Value::Custom(Custom {
                        class: class_name(class),
                        body: body.to_vec(),
                        inner,
                    })
                }
                Token::Enum(class, case) => Value::Enum(EnumCase {
                    class: class_name(class),
                    case: case.into(),
                }),
                Token::ObjectRef(slot) => Value::ObjectRef(slot),
                Token::VarRef(slot) => Value::VarRef(slot),
                Token::Array(_) | Token::Object(..) => unreachable!("containers were taken above"),
            })
        };
        loop {
            let Some(container) = open.last_mut() else {
                return Ok(done.expect("only a finished value empties the stack"));
            };
            if let Some(value) = done.take() {
                let key = container.key.take().expect("a value is read after its key");
                container.pairs.push((key, value));
            }
            if container.left > 0 {
                container.left -= 1;
                container.key = Some(match reader.key()? {
                    Token::Int(key) => Key::Int(key),
                    Token::Str(key) => Key::String(key.into_owned()),
                    _ => unreachable!("a key is an int or a string"),
                });
                break;
            }
            reader.close()?;
            done = open.pop().map(Open::finish);
        }
    }
}

fn float_with_text(value: f64, text: &str) -> Float {
    let mut canonical = Vec::new();
    write_float(&mut canonical, value);
    let is_canonical = canonical[2..canonical.len() - 1] == *text.as_bytes();
    // Only 17 digits (serialize_precision = 17) are PHP's own writing; `.5` and `1E3` are not.
    let text = (!is_canonical && is_precision_17(value, text)).then(|| text.into());
    Float { value, text }
}

/// True if `text` is what PHP with `serialize_precision = 17` writes for `value`.
fn is_precision_17(value: f64, text: &str) -> bool {
    if !value.is_finite() {
        return false;
    }
    let scientific = format!("{value:.16e}");
    let (digits, exponent) = split_scientific(&scientific);
    let digits = digits.trim_end_matches('0');
    let digits = if digits.is_empty() { "0" } else { digits };
    decimal(value.is_sign_negative(), digits, exponent) == text
}

/// Takes `-1.25e-7` apart into digits without point and exponent, sign left out.
fn split_scientific(text: &str) -> (String, i32) {
    let (mantissa, exponent) = text.split_once('e').expect("`{:e}` has an exponent");
    let digits = mantissa
        .bytes()
        .filter(u8::is_ascii_digit)
        .map(char::from)
        .collect();
    (
        digits,
        exponent.parse().expect("`{:e}` has a decimal exponent"),
    )
}

/// The fewest digits that read back to the same number, and the exponent of the first.
///
/// Where the number lies exactly between two such texts, PHP takes the even
/// last digit and Rust the upper one.
fn shortest_digits(value: f64) -> (String, i32) {
    let (digits, exponent) = split_scientific(&format!("{value:e}"));
    let len = digits.len();
    // Ties need one digit more, a 5, and nothing behind it; only large mantissas have them.
    if len < 15 || split_scientific(&format!("{value:.len$e}")).0.as_bytes()[len] != b'5' {
        return (digits, exponent);
    }
    // No double has more significant digits than this.
    let (exact, exact_exponent) = split_scientific(&format!("{value:.800e}"));
    if exact.as_bytes()[len] != b'5' || exact.bytes().skip(len + 1).any(|digit| digit != b'0') {
        return (digits, exponent);
    }
    let lower = &exact[..len];
    let is_even = (lower.as_bytes()[len - 1] - b'0').is_multiple_of(2);
    let reads_back =
        format!("{}.{}e{exact_exponent}", &lower[..1], &lower[1..]).parse() == Ok(value.abs());
    if is_even && reads_back {
        (lower.to_owned(), exact_exponent)
    } else {
        (digits, exponent)
    }
}

/// PHP's text of d1.d2d3.. x 10^exponent (php-serialize.md 3.2).
fn decimal(negative: bool, digits: &str, exponent: i32) -> String {
    let sign = if negative { "-" } else { "" };
    if !(-4..=16).contains(&exponent) {
        let (first, rest) = digits.split_at(1);
        let rest = if rest.is_empty() { "0" } else { rest };
        let plus = if exponent >= 0 { "+" } else { "" };
        return format!("{sign}{first}.{rest}E{plus}{exponent}");
    }
    let Ok(whole) = usize::try_from(exponent + 1) else {
        let zeros = "0".repeat(usize::try_from(-exponent - 1).expect("the exponent is below -1"));
        return format!("{sign}0.{zeros}{digits}");
    };
    if whole == 0 {
        format!("{sign}0.{digits}")
    } else if digits.len() <= whole {
        format!("{sign}{digits}{}", "0".repeat(whole - digits.len()))
    } else {
        format!("{sign}{}.{}", &digits[..whole], &digits[whole..])
    }
}

pub(crate) fn write_float(out: &mut Vec<u8>, value: f64) {
    out.extend_from_slice(b"d:");
    if value.is_nan() {
        out.extend_from_slice(b"NAN");
    } else if value.is_infinite() {
        out.extend_from_slice(if value > 0.0 {
            b"INF".as_slice()
        } else {
            b"-INF"
        });
    } else {
        let (digits, exponent) = shortest_digits(value);
        out.extend_from_slice(decimal(value.is_sign_negative(), &digits, exponent).as_bytes());
    }
    out.push(b';');
}

/// A finite float as PHP's `json_encode` writes it.
pub(crate) fn json_float(value: f64) -> String {
    let (digits, exponent) = shortest_digits(value);
    decimal(value.is_sign_negative(), &digits, exponent).replace('E', "e")
}

pub(crate) fn write_int(out: &mut Vec<u8>, value: i64) {
    out.extend_from_slice(b"i:");
    out.extend_from_slice(value.to_string().as_bytes());
    out.push(b';');
}

pub(crate) fn write_string(out: &mut Vec<u8>, value: &[u8]) {
    out.extend_from_slice(b"s:");
    out.extend_from_slice(value.len().to_string().as_bytes());
    out.extend_from_slice(b":\"");
    out.extend_from_slice(value);
    out.extend_from_slice(b"\";");
}

pub(crate) fn write_array_head(out: &mut Vec<u8>, count: usize) {
    out.extend_from_slice(format!("a:{count}:{{").as_bytes());
}

pub(crate) fn write_object_head(out: &mut Vec<u8>, class: &str, count: usize) {
    out.extend_from_slice(format!("O:{}:\"{class}\":{count}:{{", class.len()).as_bytes());
}

/// The int that PHP makes of a string array key, if it makes one (php-serialize.md 4).
pub(crate) fn canonical_int(key: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(key).ok()?;
    let value: i64 = text.parse().ok()?;
    (value.to_string() == text).then_some(value)
}

/// Shows bytes as text: UTF-8 as it is, control characters and other bytes as `\xNN`.
pub(crate) struct DisplayBytes<'a>(pub(crate) &'a [u8]);

impl fmt::Display for DisplayBytes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for chunk in self.0.utf8_chunks() {
            for c in chunk.valid().chars() {
                if c.is_control() {
                    write!(f, "\\x{:02x}", c as u32)?;
                } else {
                    write!(f, "{c}")?;
                }
            }
            for byte in chunk.invalid() {
                write!(f, "\\x{byte:02x}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn floats_are_written_as_php_writes_them() {
        let rows = [
            (0.0, "d:0;"),
            (-0.0, "d:-0;"),
            (1.0, "d:1;"),
            (0.1, "d:0.1;"),
            (0.0001, "d:0.0001;"),
            (0.00012, "d:0.00012;"),
            (1e-5, "d:1.0E-5;"),
            (1.25e-5, "d:1.25E-5;"),
            (1e15, "d:1000000000000000;"),
            (1e16, "d:10000000000000000;"),
            (1e17, "d:1.0E+17;"),
            (123.456, "d:123.456;"),
            (-1.5, "d:-1.5;"),
            (1.234_567_890_123_456_8e17, "d:1.2345678901234568E+17;"),
            (5e-324, "d:5.0E-324;"),
            // Exactly between ..638.2 and ..638.3.
            (-1_517_980_828_587_638.3, "d:-1517980828587638.2;"),
            (1_517_980_828_587_638.8, "d:1517980828587638.8;"),
            (f64::MAX, "d:1.7976931348623157E+308;"),
            (f64::NAN, "d:NAN;"),
            (f64::NEG_INFINITY, "d:-INF;"),
        ];
        for (value, text) in rows {
            assert_eq!(
                String::from_utf8(Value::from(value).to_bytes()).unwrap(),
                text
            );
        }
    }

    #[test]
    fn text_of_serialize_precision_17_survives() {
        for text in [
            "d:0.10000000000000001;",
            "d:1.0000000000000001E-5;",
            "d:0.29999999999999999;",
        ] {
            assert_eq!(
                Value::from_bytes(text.as_bytes()).unwrap().to_bytes(),
                text.as_bytes()
            );
        }
    }

    #[test]
    fn properties_are_found_by_name_and_replaced_in_place() {
        let bytes = b"O:2:\"C2\":3:{s:3:\"pub\";i:1;s:6:\"\0P\0pri\";N;s:7:\"\0C2\0pri\";i:5;}";
        let Value::Object(mut object) = Value::from_bytes(bytes).unwrap() else {
            panic!("an object")
        };
        assert_eq!(object.get("pri"), Some(&Value::Int(5)));
        object.set("pri", 6i64);
        object.set("new", "x");
        let expected = b"O:2:\"C2\":4:{s:3:\"pub\";i:1;s:6:\"\0P\0pri\";N;s:7:\"\0C2\0pri\";i:6;s:3:\"new\";s:1:\"x\";}";
        assert_eq!(Value::Object(object).to_bytes(), expected);
    }

    #[test]
    fn the_deepest_value_allowed_is_read_written_and_dropped_on_a_small_stack() {
        let deep = |levels: usize| {
            [
                b"a:1:{i:0;".repeat(levels),
                b"N;".to_vec(),
                b"}".repeat(levels),
            ]
            .concat()
        };
        let value = Value::from_bytes(&deep(MAX_DEPTH)).unwrap();
        assert_eq!(value.to_bytes(), deep(MAX_DEPTH));
        drop(value);
        let error = Value::from_bytes(&deep(MAX_DEPTH + 1)).unwrap_err();
        assert_eq!(*error.kind(), Kind::DepthExceeded { limit: MAX_DEPTH });
        assert!(Value::from_bytes(&deep(1_000_000)).is_err());
    }

    #[test]
    fn errors_say_where() {
        let error =
            Value::from_bytes(b"O:1:\"P\":1:{s:6:\"\0P\0pri\";a:2:{i:0;i:1;s:1:\"k\";i:x;}}")
                .unwrap_err();
        assert_eq!(
            error.to_string(),
            "`pri.k`: not a number that PHP reads (byte 47)"
        );
    }
}
