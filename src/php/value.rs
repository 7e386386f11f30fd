//! A lossless tree of a serialized value.
//!
//! [`Value::to_bytes`] returns everything that PHP writes byte for byte: order of
//! pairs, visibility marks, the text of floats written with `serialize_precision
//! = 17`, opaque `C:` bodies, references as numbers. Forms that PHP reads but
//! never writes (`i:+5;`, `S:`, leading zeros, duplicate keys) are written as PHP
//! would write them.
//!
//! A value that was read can be cloned, compared, formatted and dropped without
//! overflowing the stack.
//!
//! References are kept as references; [`Value::to_json`](Value::to_json) and
//! [`from_slice`](super::from_slice) follow them.

use std::borrow::Cow;
use std::fmt;

use super::class::{ClassName, PropertyName, Visibility};
use super::edit::{self, EditError, ObjectText};
use super::error::{Error, Kind, Segment};
use super::read::{Reader, Token};
use super::slots::{Keys, Seen, Slots, check_depth, numbered_body};
use super::text::{
    DisplayBytes, canonical_int, decimal, split_scientific, write_array_head, write_float,
    write_int, write_object_head, write_string,
};

/// A PHP value as `serialize()` writes it.
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
    /// `r:`; the object in the slot with this number. The reference takes a slot itself.
    ObjectRef(u64),
    /// `R:`; a PHP reference to the slot with this number.
    VarRef(u64),
}

/// A float, with its original text if PHP would write it otherwise today.
///
/// Two floats are equal if they have the same bits and the same text.
#[derive(Debug, Clone)]
pub struct Float {
    value: f64,
    text: Option<Box<str>>,
}

/// An ordered PHP array.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Array {
    /// Keys and values in order.
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

/// An object serialized by PHP's old `Serializable` interface.
#[derive(Debug, Clone, PartialEq)]
pub struct Custom {
    /// Class of the object.
    pub class: ClassName,
    body: Vec<u8>,
    /// The body as a value, if the class passes it to `unserialize`: its values are part of the outer numbering.
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

    /// The result of the object's `serialize` method.
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
    /// Name of the case, which may not be UTF-8; the backing value is not serialized.
    pub case: Box<[u8]>,
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
    /// Value of the last pair with this string key, or with the int that PHP makes of it (`"7"` becomes the int
    /// 7).
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
    /// Prefers the object's own property to a private one of a parent class.
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

    /// Replaces the property of this name, or adds it as a public property at the end.
    ///
    /// Adding it anywhere else would shift the numbers that back references
    /// inside the object point to.
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
    /// Whether there is a reference anywhere in it, whose number belongs to the text that it comes from.
    pub(crate) fn has_reference(&self) -> bool {
        let mut open = vec![self];
        while let Some(value) = open.pop() {
            match value {
                Self::ObjectRef(_) | Self::VarRef(_) => return true,
                Self::Array(Array { pairs }) => open.extend(pairs.iter().map(|(_, value)| value)),
                Self::Object(object) => {
                    open.extend(object.properties.iter().map(|(_, value)| value));
                }
                Self::Custom(custom) => open.extend(custom.inner()),
                _ => {}
            }
        }
        false
    }

    /// Reads one value; the bytes must contain nothing else.
    ///
    /// # Errors
    ///
    /// See [`Error`]; nesting is limited to `MAX_DEPTH`, memory by the length of the input.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, Error> {
        let (value, end) = Self::from_prefix(bytes)?;
        if end < bytes.len() {
            return Err(Error::new(Kind::TrailingData, end));
        }
        Ok(value)
    }

    /// Reads one value and returns how many bytes it took, as PHP does before 8.3.
    pub fn from_prefix(bytes: &[u8]) -> Result<(Self, usize), Error> {
        let mut tree = Tree::default();
        let mut reader = Reader::new(bytes);
        let value = tree.read(&mut reader)?;
        let end = reader.pos();
        if tree.seen.duplicates {
            let text = edit::without_duplicates(&bytes[..end])?;
            return Ok((Self::from_bytes(&text)?, end));
        }
        if tree.seen.references {
            Slots::of(&mut Reader::new(bytes))?;
        }
        Ok((value, end))
    }

    /// Writes the value as PHP's `serialize` does.
    pub fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.write_to(&mut out);
        out
    }

    /// Appends the result of [`to_bytes`](Self::to_bytes).
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
                    out.extend_from_slice(format!("E:{len}:\"{class}:").as_bytes());
                    out.extend_from_slice(case);
                    out.extend_from_slice(b"\";");
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

    /// The kind of the value, for messages.
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

    /// Whether PHP takes it for true.
    pub fn is_truthy(&self) -> bool {
        match self {
            Self::Null => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => value.get() != 0.0,
            Self::String(text) => !matches!(text.as_slice(), b"" | b"0"),
            Self::Array(array) => !array.pairs.is_empty(),
            _ => true,
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

impl ObjectText<'_> {
    /// The parsed result of [`get`](Self::get).
    ///
    /// # Errors
    ///
    /// As for [`get`](Self::get).
    pub fn value(&self, property: &str) -> Result<Option<Value>, EditError> {
        let text = self.get(property)?;
        Ok(text.map(|text| Value::from_bytes(&text)).transpose()?)
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

impl Clone for Value {
    fn clone(&self) -> Self {
        let mut open: Vec<(std::slice::Iter<'_, (Key, Self)>, Open)> = Vec::new();
        let mut next = self;
        loop {
            let mut done = match next {
                Self::Array(array) => {
                    let container = Open::new(None, array.pairs.len());
                    open.push((array.pairs.iter(), container));
                    None
                }
                Self::Object(object) => {
                    let container = Open::new(Some(object.class.clone()), object.properties.len());
                    open.push((object.properties.iter(), container));
                    None
                }
                Self::Null => Some(Self::Null),
                Self::Bool(value) => Some(Self::Bool(*value)),
                Self::Int(value) => Some(Self::Int(*value)),
                Self::Float(value) => Some(Self::Float(value.clone())),
                Self::String(value) => Some(Self::String(value.clone())),
                Self::Custom(custom) => Some(Self::Custom(custom.clone())),
                Self::Enum(case) => Some(Self::Enum(case.clone())),
                Self::ObjectRef(slot) => Some(Self::ObjectRef(*slot)),
                Self::VarRef(slot) => Some(Self::VarRef(*slot)),
            };
            next = loop {
                let Some((pairs, container)) = open.last_mut() else {
                    return done.expect("only a finished value empties the stack");
                };
                container.take(&mut done);
                if let Some((key, value)) = pairs.next() {
                    container.key = Some(key.clone());
                    break value;
                }
                done = open.pop().map(|(_, container)| container.finish());
            };
        }
    }
}

impl PartialEq for Value {
    fn eq(&self, other: &Self) -> bool {
        let mut left = vec![(self, other)];
        while let Some(pair) = left.pop() {
            let is_same = match pair {
                (Self::Null, Self::Null) => true,
                (Self::Bool(a), Self::Bool(b)) => a == b,
                (Self::Int(a), Self::Int(b)) => a == b,
                (Self::Float(a), Self::Float(b)) => a == b,
                (Self::String(a), Self::String(b)) => a == b,
                (Self::Custom(a), Self::Custom(b)) => a == b,
                (Self::Enum(a), Self::Enum(b)) => a == b,
                (Self::ObjectRef(a), Self::ObjectRef(b)) | (Self::VarRef(a), Self::VarRef(b)) => {
                    a == b
                }
                (Self::Array(Array { pairs: a }), Self::Array(Array { pairs: b })) => {
                    same_keys(a, b, &mut left)
                }
                (Self::Object(a), Self::Object(b)) => {
                    a.class == b.class && same_keys(&a.properties, &b.properties, &mut left)
                }
                _ => false,
            };
            if !is_same {
                return false;
            }
        }
        true
    }
}

/// Compares the keys of two containers, and leaves the values to the caller.
fn same_keys<'v>(
    a: &'v [(Key, Value)],
    b: &'v [(Key, Value)],
    left: &mut Vec<(&'v Value, &'v Value)>,
) -> bool {
    let is_same = a.len() == b.len() && a.iter().zip(b).all(|((a, _), (b, _))| a == b);
    left.extend(a.iter().map(|(_, a)| a).zip(b.iter().map(|(_, b)| b)));
    is_same
}

/// Formats the value as `serialize()` writes it.
impl fmt::Debug for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Value({})", DisplayBytes(&self.to_bytes()))
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
    fn new(class: Option<ClassName>, left: usize) -> Self {
        // Start small whatever the count is: it is not verified yet.
        let pairs = Vec::with_capacity(left.min(8));
        Self {
            class,
            left,
            pairs,
            key: None,
        }
    }

    fn take(&mut self, done: &mut Option<Value>) {
        if let Some(value) = done.take() {
            let key = self.key.take().expect("a value is read after its key");
            self.pairs.push((key, value));
        }
    }

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

/// A tree that is being built.
#[derive(Default)]
struct Tree<'de> {
    keys: Keys<'de>,
    seen: Seen,
}

impl<'de> Tree<'de> {
    fn read(&mut self, reader: &mut Reader<'de>) -> Result<Value, Error> {
        let mut open: Vec<Open> = Vec::new();
        self.value(reader, &mut open, 0, 0, 0).map_err(|error| {
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

    /// Reads a value at depth `depth`; `base` is the offset of the reader's bytes in the text.
    fn value(
        &mut self,
        reader: &mut Reader<'de>,
        open: &mut Vec<Open>,
        base: usize,
        depth: usize,
        nesting: usize,
    ) -> Result<Value, Error> {
        let class_name = |name: &str| ClassName::new(name).expect("the reader checked the name");
        loop {
            let offset = base + reader.pos();
            let token = reader.token()?;
            check_depth(&token, depth + open.len(), offset)?;
            let mut done = match token {
                Token::Array(left) => {
                    self.keys.open();
                    open.push(Open::new(None, left));
                    None
                }
                Token::Object(class, left) => {
                    self.keys.open();
                    open.push(Open::new(Some(class_name(class)), left));
                    None
                }
                Token::Null => Some(Value::Null),
                Token::Bool(value) => Some(Value::Bool(value)),
                Token::Int(value) => Some(Value::Int(value)),
                Token::Float(value, text) => Some(Value::Float(float_with_text(value, text))),
                Token::Str(bytes) => Some(Value::String(bytes.into_owned())),
                Token::Custom(class, body) => {
                    let start = base + reader.pos() - 1 - body.len();
                    Some(Value::Custom(Custom {
                        class: class_name(class),
                        body: body.to_vec(),
                        inner: self.body(class, body, start, depth + open.len(), nesting)?,
                    }))
                }
                Token::Enum(class, case) => Some(Value::Enum(EnumCase {
                    class: class_name(class),
                    case: case.into(),
                })),
                Token::ObjectRef(slot) => {
                    self.seen.references = true;
                    Some(Value::ObjectRef(slot))
                }
                Token::VarRef(slot) => {
                    self.seen.references = true;
                    Some(Value::VarRef(slot))
                }
            };
            loop {
                let Some(container) = open.last_mut() else {
                    return Ok(done.expect("only a finished value empties the stack"));
                };
                container.take(&mut done);
                if container.left > 0 {
                    container.left -= 1;
                    let key = reader.key()?;
                    self.seen.duplicates |= self.keys.add(&key);
                    let is_array = container.class.is_none();
                    container.key = Some(match key {
                        Token::Int(key) => Key::Int(key),
                        Token::Str(key) => match canonical_int(&key).filter(|_| is_array) {
                            Some(key) => Key::Int(key),
                            None => Key::String(key.into_owned()),
                        },
                        _ => unreachable!("a key is an int or a string"),
                    });
                    break;
                }
                reader.close()?;
                self.keys.close();
                done = open.pop().map(Open::finish);
            }
        }
    }

    /// Reads the body of a `C:` object as a value if its values are part of the outer numbering.
    fn body(
        &mut self,
        class: &str,
        body: &'de [u8],
        start: usize,
        depth: usize,
        nesting: usize,
    ) -> Result<Option<Box<Value>>, Error> {
        let Some(first) = numbered_body(class, body, nesting) else {
            return Ok(None);
        };
        let mut reader = Reader::at(body, first);
        let (keys, seen) = (std::mem::take(&mut self.keys), self.seen);
        let value = self.value(&mut reader, &mut Vec::new(), start, depth, nesting + 1);
        self.keys = keys;
        match value {
            Ok(value) if reader.remaining() == 0 => Ok(Some(Box::new(value))),
            Err(error) if matches!(error.kind(), Kind::DepthExceeded { .. }) => Err(error),
            _ => {
                self.seen = seen;
                Ok(None)
            }
        }
    }
}

fn float_with_text(value: f64, text: &str) -> Float {
    let mut canonical = Vec::new();
    write_float(&mut canonical, value);
    let is_canonical = canonical[2..canonical.len() - 1] == *text.as_bytes();
    // Keep only texts of 17 digits (serialize_precision = 17), which PHP writes; it never writes `.5` or `1E3`.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::php::text::MAX_DEPTH;

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
            // Exactly ..248512: nearer to ..249, though ..248 is even and reads back, too.
            (6.504_508_143_021_249e18, "d:6.504508143021249E+18;"),
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
    fn other_text_of_a_float_is_written_as_php_writes_it() {
        let rows = [
            ("d:1E3;", 1000.0, "d:1000;"),
            ("d:.5;", 0.5, "d:0.5;"),
            ("d:00.25;", 0.25, "d:0.25;"),
            ("d:0.5;", 0.5, "d:0.5;"),
        ];
        for (text, float, expected) in rows {
            let value = Value::from_bytes(text.as_bytes()).unwrap();
            assert_eq!(value.to_bytes(), expected.as_bytes());
            assert_eq!(value, Value::from(float));
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

    fn deep(levels: usize, middle: &[u8]) -> Vec<u8> {
        [&b"a:1:{i:0;".repeat(levels), middle, &b"}".repeat(levels)].concat()
    }

    /// A closure of Laravel 8 with this body.
    fn closure(body: &[u8]) -> Vec<u8> {
        let head = format!(
            "C:32:\"Opis\\Closure\\SerializableClosure\":{}:{{",
            body.len()
        );
        [head.as_bytes(), body, b"}"].concat()
    }

    /// Runs on a stack half the size of a thread's default.
    fn on_a_small_stack(run: impl FnOnce() + Send + 'static) {
        let thread = std::thread::Builder::new().stack_size(1 << 20);
        thread.spawn(run).unwrap().join().unwrap();
    }

    #[test]
    fn the_deepest_value_allowed_does_not_overflow_a_small_stack() {
        on_a_small_stack(|| {
            for bytes in [
                deep(MAX_DEPTH, b"N;"),
                deep(MAX_DEPTH - 1, &closure(&deep(1, b"N;"))),
            ] {
                let value = Value::from_bytes(&bytes).unwrap();
                assert_eq!(value.to_bytes(), bytes);
                let copy = value.clone();
                assert!(copy == value && copy != Value::Null);
                assert!(format!("{value:?}{value:#?}").len() > bytes.len());
                assert!(value.to_json().len() > 2 * MAX_DEPTH);
                drop((value, copy));
                crate::php::from_slice::<serde::de::IgnoredAny>(&bytes).unwrap();
                assert!(crate::php::from_slice::<serde_json::Value>(&bytes).is_err());
            }
        });
    }

    #[test]
    fn counts_of_objects_have_the_signs_that_php_takes() {
        #[rustfmt::skip]
        let rows = [
            ("+1", "i:0;N;", true), ("01", "i:0;N;", true), ("-0", "", true), ("-00", "", true), ("", "", true),
            ("-01", "i:0;N;", false), ("-1", "i:0;N;", false), ("-01", "", false),
        ];
        for (count, pairs, is_read) in rows {
            let text = format!("O:8:\"stdClass\":{count}:{{{pairs}}}");
            assert_eq!(
                Value::from_bytes(text.as_bytes()).is_ok(),
                is_read,
                "{text}"
            );
        }
    }

    #[test]
    fn there_is_one_limit_of_depth_for_all_that_is_inside_one_another() {
        #[derive(Debug, serde::Deserialize)]
        struct Nothing {}
        let mut bodies = deep(4090, b"N;");
        for _ in 0..7 {
            bodies = deep(4090, &closure(&bodies));
        }
        let rows = [
            deep(MAX_DEPTH + 1, b"N;"),
            deep(1_000_000, b"N;"),
            deep(1, &closure(&deep(MAX_DEPTH, b"N;"))),
            closure(&bodies),
        ];
        on_a_small_stack(move || {
            let limit = Kind::DepthExceeded { limit: MAX_DEPTH };
            for bytes in rows {
                for error in [
                    Value::from_bytes(&bytes).unwrap_err(),
                    crate::php::from_slice::<serde::de::IgnoredAny>(&bytes).unwrap_err(),
                ] {
                    assert_eq!(*error.kind(), limit);
                    let (before, found) = bytes.split_at(error.offset().unwrap());
                    let before = std::str::from_utf8(before).unwrap();
                    assert!(found.starts_with(b"a:1:{"), "{error}");
                    assert_eq!(before.matches("a:1:{").count(), MAX_DEPTH, "{error}");
                }
                assert!(crate::php::from_slice::<serde_json::Value>(&bytes).is_err());
                let job = [b"O:1:\"J\":1:{s:1:\"a\";", &bytes[..], b"}"].concat();
                assert!(crate::php::ObjectText::parse(&job).is_err());
                let job = crate::php::ObjectText::parse(b"O:1:\"J\":0:{}").unwrap();
                assert!(job.with(&[("a", &bytes)]).is_err());
            }
            // A value that is passed by in an object.
            let job = [
                b"O:1:\"J\":1:{s:1:\"a\";",
                &deep(MAX_DEPTH, b"N;")[..],
                b"}",
            ]
            .concat();
            let passed_by = crate::php::from_slice::<Nothing>(&job);
            assert_eq!(*passed_by.unwrap_err().kind(), limit);
        });
    }

    #[test]
    fn chains_of_references_take_time_in_proportion() {
        use std::fmt::Write as _;
        let count = 60_000;
        let chain = |first: usize| {
            let mut text = format!("a:{}:{{i:0;O:1:\"P\":0:{{}}", count + 1);
            for index in 0..count {
                write!(text, "i:{};r:{};", index + 1, first + index).unwrap();
            }
            text + "}"
        };
        let bytes = chain(2);
        let job = format!("O:1:\"J\":1:{{s:1:\"a\";{}}}", chain(3));
        let began = std::time::Instant::now();
        let value = Value::from_bytes(bytes.as_bytes()).unwrap();
        let json = value.to_json();
        assert_eq!(json.matches("{\"$class\":\"P\"}").count(), count + 1);
        let typed: serde_json::Value = crate::php::from_slice(bytes.as_bytes()).unwrap();
        assert_eq!(typed[count]["$class"], "P");
        let passed_by: Vec<serde::de::IgnoredAny> =
            crate::php::from_slice(bytes.as_bytes()).unwrap();
        assert_eq!(passed_by.len(), count + 1);
        let graph = crate::php::json::Graph::new(&value);
        let part = graph.detached(&value).unwrap();
        assert_eq!(part.as_array().unwrap().pairs.len(), count + 1);
        let text = crate::php::ObjectText::parse(job.as_bytes()).unwrap();
        let same = text.with(&[]).unwrap();
        assert!(same == job.as_bytes() && text.get("a").unwrap().unwrap() == bytes.as_bytes());
        // Quadratic time would take minutes.
        assert!(began.elapsed().as_secs() < 30, "{:?}", began.elapsed());
    }

    #[test]
    fn a_number_behind_a_body_that_only_its_class_reads_is_refused() {
        let closure = closure(b"i:5;");
        let closure = std::str::from_utf8(&closure).unwrap();
        let after = |first: &str, letter: char, number: u64| {
            format!("a:3:{{i:0;{first}i:1;s:1:\"k\";i:2;{letter}:{number};}}")
        };
        let flat = "C:4:\"Flat\":4:{i:5;}";
        // Not a value: the number of values that the class counts is unknown.
        let broken = closure.replace("i:5;", "i:x;");
        // Not only a value.
        let longer = closure.replace("4:{i:5;", "5:{i:5;x");
        // Not signed: only a signature begins with `@`.
        let dots = format!("s:40:\"{}\";", ".".repeat(40));
        let dots = closure.replace("4:{i:5;", &format!("{}:{{{dots}", dots.len()));
        #[rustfmt::skip]
        let rows = [
            (flat, 'R', 2, true), (flat, 'r', 2, true), (flat, 'R', 3, false), (flat, 'R', 4, false),
            ("C:4:\"Flat\":2:{zz}", 'R', 3, false), ("a:1:{i:0;C:4:\"Flat\":4:{i:5;}}", 'R', 4, false),
            (closure, 'R', 4, true), (&broken, 'R', 3, false), (&longer, 'R', 3, false), (&dots, 'R', 4, true),
        ];
        for (first, letter, number, is_certain) in rows {
            let text = after(first, letter, number);
            let found = Value::from_bytes(text.as_bytes());
            let is_uncertain = |error: Error| match error.kind() {
                Kind::UncertainReference { slot, .. } => assert_eq!(*slot, number),
                _ => panic!("{text}: {error}"),
            };
            assert_eq!(found.map_err(is_uncertain).is_ok(), is_certain, "{text}");
            let inside = after(first, letter, number + 1);
            let job = format!("O:1:\"J\":1:{{s:1:\"a\";{inside}}}");
            for is_read in [
                crate::php::from_slice::<serde_json::Value>(text.as_bytes()).is_ok(),
                crate::php::from_slice::<serde::de::IgnoredAny>(text.as_bytes()).is_ok(),
                crate::php::ObjectText::parse(job.as_bytes()).is_ok(),
            ] {
                assert_eq!(is_read, is_certain, "{text}");
            }
        }
        let error = Value::from_bytes(after(flat, 'R', 3).as_bytes()).unwrap_err();
        assert_eq!(
            error.to_string(),
            "a reference to slot 3 behind an object of class `Flat` that wrote itself (`C:`): \
             how many slots are in there only the class knows (byte 44)"
        );
    }

    /// The second column is what PHP 8.2 makes of the first.
    #[test]
    fn whole_numbers_are_int_keys_of_arrays_and_names_of_properties() {
        #[rustfmt::skip]
        let rows = [
            ("a:4:{s:1:\"7\";i:1;s:2:\"07\";i:2;s:2:\"-7\";i:3;s:2:\"-0\";i:4;}", "a:4:{i:7;i:1;s:2:\"07\";i:2;i:-7;i:3;s:2:\"-0\";i:4;}"),
            ("a:1:{s:20:\"-9223372036854775808\";i:5;}", "a:1:{i:-9223372036854775808;i:5;}"),
            ("a:1:{s:19:\"9223372036854775808\";i:6;}", "a:1:{s:19:\"9223372036854775808\";i:6;}"),
            ("a:2:{i:7;i:1;s:1:\"7\";i:2;}", "a:1:{i:7;i:2;}"),
            ("O:8:\"stdClass\":1:{s:1:\"7\";a:1:{s:1:\"7\";i:1;}}", "O:8:\"stdClass\":1:{s:1:\"7\";a:1:{i:7;i:1;}}"),
        ];
        for (text, expected) in rows {
            let value = Value::from_bytes(text.as_bytes()).unwrap();
            let written = String::from_utf8(value.to_bytes()).unwrap();
            assert_eq!(written, expected, "{text}");
        }
    }

    /// The second column is the result of PHP 8.2 for the first, except for an `r:` to an `r:`.
    #[test]
    fn a_key_that_stands_twice_has_the_last_value_in_the_first_place() {
        #[derive(Debug, PartialEq, serde::Deserialize)]
        struct Job {
            a: i64,
        }
        #[rustfmt::skip]
        let rows = [
            ("a:2:{i:0;i:1;i:0;i:2;}", "a:1:{i:0;i:2;}"),
            ("a:2:{i:0;i:1;s:1:\"0\";i:2;}", "a:1:{i:0;i:2;}"),
            ("a:3:{i:0;s:1:\"a\";i:1;i:9;i:0;s:1:\"b\";}", "a:2:{i:0;s:1:\"b\";i:1;i:9;}"),
            ("a:3:{i:0;s:1:\"a\";i:0;s:1:\"b\";i:1;R:2;}", "a:2:{i:0;s:1:\"b\";i:1;R:2;}"),
            ("a:3:{i:0;s:1:\"a\";i:1;R:2;i:0;s:1:\"b\";}", "a:2:{i:0;s:1:\"b\";i:1;s:1:\"a\";}"),
            ("a:4:{i:0;s:1:\"a\";i:1;R:2;i:0;s:1:\"b\";i:2;R:2;}", "a:3:{i:0;s:1:\"b\";i:1;s:1:\"a\";i:2;R:2;}"),
            ("a:5:{i:0;i:5;i:1;i:6;i:1;R:2;i:0;i:9;i:2;R:3;}", "a:3:{i:0;i:9;i:1;i:5;i:2;R:3;}"),
            ("a:3:{i:0;a:1:{i:0;i:5;}i:0;s:1:\"k\";i:1;R:3;}", "a:2:{i:0;s:1:\"k\";i:1;i:5;}"),
            ("a:3:{i:0;a:1:{i:0;i:5;}i:0;s:1:\"k\";i:1;R:2;}", "a:2:{i:0;s:1:\"k\";i:1;R:2;}"),
            ("a:2:{i:0;a:1:{i:0;i:1;}i:0;a:1:{i:0;R:3;}}", "a:1:{i:0;a:1:{i:0;i:1;}}"),
            ("a:3:{i:0;O:1:\"P\":0:{}i:1;i:3;i:1;r:2;}", "a:2:{i:0;O:1:\"P\":0:{}i:1;r:2;}"),
            ("a:4:{i:0;O:1:\"P\":0:{}i:1;i:3;i:1;r:2;i:2;r:3;}", "a:3:{i:0;O:1:\"P\":0:{}i:1;r:2;i:2;r:3;}"),
            ("O:1:\"P\":2:{s:6:\"$class\";i:1;s:1:\"b\";i:2;}", "O:1:\"P\":2:{s:6:\"$class\";i:1;s:1:\"b\";i:2;}"),
            ("O:8:\"stdClass\":3:{s:1:\"7\";i:1;i:7;i:2;s:1:\"b\";R:2;}", "O:8:\"stdClass\":2:{s:1:\"7\";i:2;s:1:\"b\";R:2;}"),
            // The value is written at the first reference to it, and stays there.
            ("a:3:{s:1:\"a\";a:1:{i:0;i:1;}s:1:\"b\";R:3;s:1:\"a\";N;}", "a:2:{s:1:\"a\";N;s:1:\"b\";i:1;}"),
        ];
        for (text, expected) in rows {
            let value =
                Value::from_bytes(text.as_bytes()).unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(
                String::from_utf8(value.to_bytes()).unwrap(),
                expected,
                "{text}"
            );
            let json: serde_json::Value = serde_json::from_str(&value.to_json()).unwrap();
            let typed: serde_json::Value = crate::php::from_slice(text.as_bytes()).unwrap();
            assert_eq!(typed, json, "{text}");
            if let Some(list) = json.as_array() {
                let typed: Vec<serde_json::Value> =
                    crate::php::from_slice(text.as_bytes()).unwrap();
                assert_eq!(typed, *list, "{text}");
            }
        }
        for text in [
            "a:2:{i:0;i:5;i:0;R:2;}",
            "a:2:{i:0;O:1:\"P\":0:{}i:0;r:2;}",
            "a:4:{i:0;O:1:\"P\":0:{}i:1;r:2;i:1;i:3;i:2;r:3;}",
        ] {
            let error = Value::from_bytes(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error.kind(), Kind::BadReference { .. }),
                "{text}: {error}"
            );
            crate::php::from_slice::<serde::de::IgnoredAny>(text.as_bytes()).unwrap_err();
        }
        let job = "O:1:\"J\":2:{s:1:\"a\";s:1:\"x\";s:1:\"a\";i:2;}";
        assert_eq!(
            crate::php::from_slice::<Job>(job.as_bytes()).unwrap(),
            Job { a: 2 }
        );
        // The same place again and again.
        let references: Vec<String> = (1..20_000)
            .map(|i| format!("i:0;i:{i};i:{i};R:2;"))
            .collect();
        let text = format!("a:39999:{{i:0;i:0;{}}}", references.concat());
        let began = std::time::Instant::now();
        let list: Vec<i64> = crate::php::from_slice(text.as_bytes()).unwrap();
        assert_eq!((list[0], list[1], list[19_998]), (19_999, 1, 19_998));
        assert!(began.elapsed().as_secs() < 20, "{:?}", began.elapsed());
        // Many keys without duplicates; then one of them twice.
        let many: Vec<String> = (0..100)
            .map(|i| format!("s:3:\"k{i:02}\";i:{i};"))
            .collect();
        let many = many.concat();
        let text = format!("a:100:{{{many}}}");
        assert_eq!(
            Value::from_bytes(text.as_bytes()).unwrap().to_bytes(),
            text.as_bytes()
        );
        let twice = format!("a:101:{{{many}s:3:\"k50\";N;}}");
        let value = Value::from_bytes(twice.as_bytes()).unwrap();
        assert_eq!(value.to_bytes(), text.replace("i:50;", "N;").as_bytes());
    }

    #[test]
    fn what_is_passed_by_is_checked_too() {
        #[derive(Debug, serde::Deserialize)]
        struct Job {
            #[expect(dead_code, reason = "only its error is of interest")]
            a: i64,
        }
        for ignored in ["r:9;", "R:9;", "a:1:{i:0;r:2;}", "r:4;"] {
            let text = format!("O:1:\"J\":2:{{s:1:\"a\";i:1;s:1:\"b\";{ignored}}}");
            let error = crate::php::from_slice::<Job>(text.as_bytes()).unwrap_err();
            assert!(
                matches!(error.kind(), Kind::BadReference { .. }),
                "{text}: {error}"
            );
        }
    }

    #[test]
    fn cases_have_the_names_that_php_allows() {
        let case = |name: &[u8]| {
            let head = format!("E:{}:\"Suit:", name.len() + 5);
            Value::from_bytes(&[head.as_bytes(), name, b"\";"].concat())
        };
        for name in [
            &b"A"[..],
            b"_a0",
            "Größe".as_bytes(),
            b"\xff\x80",
            b"\xe9t\xe9",
        ] {
            let Value::Enum(found) = case(name).unwrap() else {
                panic!("a case")
            };
            assert_eq!(&*found.case, name);
        }
        for name in [&b""[..], b"0a", b"\x7f", b"a b", b"a:b", b"a-b", b"a\\b"] {
            assert!(case(name).is_err(), "{name:?}");
        }
        let text = b"E:7:\"Suit:\xe9\xff\";".as_slice();
        let expected = r#"{"$enum":"Suit","case":{"$bytes":"6f8="}}"#;
        assert_eq!(Value::from_bytes(text).unwrap().to_json(), expected);
        let typed: serde_json::Value = crate::php::from_slice(text).unwrap();
        assert_eq!(typed["case"]["$bytes"], "6f8=");
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
        assert_eq!(error.offset(), Some(47));
        let path = [b"pri".as_slice(), b"k"].map(|name| Segment::Name(name.into()));
        assert!(error.path().eq(&path));
        let expected = format!("Error {{ kind: BadNumber, offset: Some(47), path: {path:?} }}");
        assert_eq!(format!("{error:?}"), expected);
        let rows = [
            ("s:3:\"abc", "the input ends inside a value (byte 8)"),
            ("s:4:\"abc", "the input ends inside a value (byte 5)"),
            ("S:3:\"abc", "the input ends inside a value (byte 8)"),
            ("S:4:\"abc", "the input ends inside a value (byte 5)"),
            ("a:1:{", "the input ends inside a value (byte 2)"),
            (
                "a:1:{}",
                "expected a key (`i:` or `s:`), found `}` (byte 5)",
            ),
            ("i:1;i:2;", "data after the end of the value (byte 4)"),
        ];
        for (text, expected) in rows {
            let error = Value::from_bytes(text.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), expected, "{text}");
        }
    }

    #[test]
    fn closures_in_closures_are_numbered_to_a_limit() {
        for (levels, is_certain) in [(16, true), (17, false)] {
            let mut closures = b"i:5;".to_vec();
            for _ in 0..levels {
                closures = closure(&closures);
            }
            let text = [
                b"a:2:{i:0;",
                &closures[..],
                format!("i:1;R:{};}}", levels + 2).as_bytes(),
            ]
            .concat();
            let found = Value::from_bytes(&text);
            assert_eq!(found.is_ok(), is_certain, "{levels}");
            let typed = crate::php::from_slice::<serde::de::IgnoredAny>(&text);
            assert_eq!(typed.is_ok(), is_certain, "{levels}");
        }
        for (levels, is_read) in [(16, true), (17, false)] {
            let mut closures = b"a:1:{i:0;r:1;}".to_vec();
            for _ in 0..levels {
                closures = closure(&closures);
            }
            let value = Value::from_bytes(&closures).unwrap();
            assert_eq!(value.has_reference(), is_read, "{levels}");
        }
    }

    #[test]
    fn values_are_equal_to_themselves_only() {
        let closure = String::from_utf8(closure(b"i:5;")).unwrap();
        #[rustfmt::skip]
        let texts = [
            "N;", "b:0;", "b:1;", "i:0;", "i:1;", "d:0;", "d:-0;", "d:NAN;", "d:0.1;", "d:0.10000000000000001;",
            "s:1:\"a\";", "s:1:\"b\";", "a:0:{}", "a:1:{i:0;N;}", "a:1:{i:1;N;}", "a:1:{i:0;i:1;}", "a:2:{i:0;N;i:1;N;}",
            "O:1:\"A\":0:{}", "O:1:\"B\":0:{}", "O:1:\"A\":1:{s:1:\"a\";N;}", "C:1:\"S\":1:{a}", "C:1:\"S\":1:{b}", &closure,
            "E:3:\"A:B\";", "E:3:\"A:C\";",
        ];
        let values = || {
            let texts = texts.map(|text| Value::from_bytes(text.as_bytes()).unwrap());
            let references = [1, 2].map(|number| [Value::ObjectRef(number), Value::VarRef(number)]);
            texts.into_iter().chain(references.into_iter().flatten())
        };
        for (i, value) in values().enumerate() {
            for (j, other) in values().enumerate() {
                assert_eq!(value == other, i == j, "{value:?} {other:?}");
            }
        }
    }

    #[test]
    fn values_have_a_kind_and_are_true_or_false_as_in_php() {
        #[rustfmt::skip]
        let rows = [
            ("N;", "null", false),
            ("b:0;", "a bool", false), ("b:1;", "a bool", true),
            ("i:0;", "an int", false), ("i:-1;", "an int", true),
            ("d:0;", "a float", false), ("d:-0;", "a float", false), ("d:0.5;", "a float", true), ("d:NAN;", "a float", true),
            ("s:0:\"\";", "a string", false), ("s:1:\"0\";", "a string", false), ("s:2:\"00\";", "a string", true),
            ("a:0:{}", "an array", false), ("a:1:{i:0;N;}", "an array", true),
            ("O:1:\"A\":0:{}", "an object of class `A`", true),
            ("C:1:\"A\":0:{}", "an object of class `A`", true),
            ("E:3:\"A:B\";", "a case of enum `A`", true),
        ];
        for (text, kind, is_truthy) in rows {
            let value = Value::from_bytes(text.as_bytes()).unwrap();
            assert_eq!(value.kind_name(), kind, "{text}");
            assert_eq!(value.is_truthy(), is_truthy, "{text}");
        }
        assert_eq!(Value::VarRef(1).kind_name(), "a reference");
    }

    #[test]
    fn references_are_found_wherever_they_are() {
        let closure = |body: &str| String::from_utf8(closure(body.as_bytes())).unwrap();
        let rows = [
            ("a:2:{i:0;i:1;i:1;R:2;}".to_owned(), true),
            ("O:1:\"A\":1:{s:1:\"a\";a:1:{i:0;r:1;}}".to_owned(), true),
            (closure("a:2:{i:0;i:5;i:1;R:3;}"), true),
            (closure("O:1:\"A\":1:{s:1:\"a\";a:1:{i:0;i:5;}}"), false),
            (closure("a:1:{i:0;r:1;}x"), false),
            ("C:1:\"S\":4:{r:1;}".to_owned(), false),
        ];
        for (text, expected) in rows {
            let value = Value::from_bytes(text.as_bytes()).unwrap();
            assert_eq!(value.has_reference(), expected, "{text}");
        }
    }

    #[test]
    fn values_of_arrays_are_found_by_key() {
        let int = |value: Option<&Value>| value.and_then(Value::as_int);
        let mut array = Array {
            pairs: vec![
                (Key::Int(7), Value::Int(1)),
                ("k".into(), Value::Int(2)),
                ("07".into(), Value::Int(3)),
            ],
        };
        let rows: [(&[u8], _); 4] = [
            (b"7", Some(1)),
            (b"k", Some(2)),
            (b"07", Some(3)),
            (b"x", None),
        ];
        for (key, expected) in rows {
            assert_eq!(int(array.get(key)), expected, "{key:?}");
        }
        array.pairs.push((Key::Int(7), Value::Int(4)));
        assert_eq!(int(array.get(b"7")), Some(4));
        assert!(!array.is_list());
        let list: Array = [Value::Int(5), Value::Null].into_iter().collect();
        assert!(list.is_list());
        assert_eq!(Value::from(list).to_bytes(), b"a:2:{i:0;i:5;i:1;N;}");
    }

    #[test]
    fn a_property_is_taken_out_of_a_text_as_a_value() {
        let text = ObjectText::parse(b"O:1:\"A\":1:{s:1:\"a\";i:5;}").unwrap();
        assert_eq!(text.value("a").unwrap(), Some(Value::Int(5)));
        assert_eq!(text.value("b").unwrap(), None);
    }
}
