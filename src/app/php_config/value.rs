//! PHP's values and its rules for comparing and converting them.
//!
//! Where PHP 7 and 8 differ, or PHP only warns, the answer is `None`: not known.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::fmt;
use std::rc::Rc;

/// Arrays in arrays; everything that recurses over values relies on it.
pub(super) const MAX_DEPTH: u32 = 48;
/// Members of a value, counted through shared arrays.
pub(super) const MAX_SIZE: u64 = 1 << 18;

/// A value, cheap to clone.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(Rc<str>),
    Array(Rc<Array>),
    /// A constant known by name only: unknown as a value; one of PHP's own classes is good as a key.
    Constant {
        name: Rc<str>,
        reason: Rc<str>,
    },
    /// Where and why it is not known.
    Unknown(Rc<str>),
}

/// A key as PHP stores it: the text `"1"` is the number 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Key {
    Int(i64),
    Text(Rc<str>),
}

/// An ordered PHP array.
#[derive(Debug, Clone, Default)]
pub(super) struct Array {
    entries: Vec<(Key, Value)>,
    places: HashMap<Key, usize>,
    largest: Option<i64>,
    size: u64,
    depth: u32,
    unknown: Option<Rc<str>>,
    is_object: bool,
}

impl Value {
    pub(super) fn text(text: &str) -> Self {
        Self::Text(text.into())
    }

    pub(super) fn list(values: impl IntoIterator<Item = Self>) -> Self {
        let mut array = Array::default();
        for (index, value) in (0..).zip(values) {
            array.insert(Key::Int(index), value);
        }
        Self::Array(array.into())
    }

    /// Why the value, or a part of it, is not known.
    pub(super) fn unknown(&self) -> Option<&Rc<str>> {
        match self {
            Self::Constant { reason, .. } | Self::Unknown(reason) => Some(reason),
            Self::Array(array) => array.unknown.as_ref(),
            _ => None,
        }
    }

    pub(super) fn depth(&self) -> u32 {
        match self {
            Self::Array(array) => array.depth.saturating_add(1),
            _ => 0,
        }
    }

    pub(super) fn size(&self) -> u64 {
        match self {
            Self::Array(array) => array.size(),
            _ => 1,
        }
    }

    pub(super) fn is_true(&self) -> bool {
        match self {
            Self::Null | Self::Constant { .. } | Self::Unknown(_) => false,
            Self::Bool(value) => *value,
            Self::Int(value) => *value != 0,
            Self::Float(value) => *value != 0.0,
            Self::Text(text) => !text.is_empty() && &**text != "0",
            Self::Array(array) => array.is_object || !array.entries.is_empty(),
        }
    }

    pub(super) fn to_text(&self) -> Option<Rc<str>> {
        match self {
            Self::Null | Self::Bool(false) => Some("".into()),
            Self::Bool(true) => Some("1".into()),
            Self::Int(value) => Some(value.to_string().into()),
            Self::Float(value) => float_text(*value).map(Into::into),
            Self::Text(text) => Some(Rc::clone(text)),
            Self::Array(_) | Self::Constant { .. } | Self::Unknown(_) => None,
        }
    }

    pub(super) fn to_int(&self) -> Option<i64> {
        match self {
            Self::Null => Some(0),
            Self::Bool(value) => Some((*value).into()),
            Self::Int(value) => Some(*value),
            Self::Float(value) => truncate(*value),
            Self::Text(text) => match leading_number(text).0 {
                Self::Int(value) => Some(value),
                Self::Float(value) if is_decimal_integer(text) => {
                    Some(if value < 0.0 { i64::MIN } else { i64::MAX })
                }
                Self::Float(value) => truncate(value),
                _ => None,
            },
            Self::Array(array) if !array.is_object => Some((!array.entries.is_empty()).into()),
            _ => None,
        }
    }

    pub(super) fn to_float(&self) -> Option<f64> {
        match self {
            Self::Float(value) => Some(*value),
            Self::Text(text) => leading_number(text).0.to_float(),
            Self::Null | Self::Bool(_) | Self::Int(_) => self.to_int().map(int_to_float),
            _ => None,
        }
    }

    /// The number an arithmetic operator sees; `None` for what PHP 8 refuses.
    pub(super) fn to_number(&self) -> Option<Self> {
        match self {
            Self::Null | Self::Bool(_) => self.to_int().map(Self::Int),
            Self::Int(_) | Self::Float(_) => Some(self.clone()),
            Self::Text(text) => numeric(text),
            _ => None,
        }
    }

    /// The key this value is, in brackets or before `=>`.
    pub(super) fn to_key(&self) -> Option<Key> {
        match self {
            Self::Null => Some(Key::Text("".into())),
            Self::Bool(_) | Self::Int(_) => self.to_int().map(Key::Int),
            Self::Text(text) => Some(Key::of_text(text)),
            Self::Constant { name, .. } if name.contains("::") => Some(Key::Text(Rc::clone(name))),
            _ => None,
        }
    }

    /// `==`; the caller has looked for unknown parts.
    pub(super) fn equals(&self, other: &Self) -> Option<bool> {
        match (self, other) {
            (Self::Null, Self::Text(text)) | (Self::Text(text), Self::Null) => {
                Some(text.is_empty())
            }
            (Self::Bool(_) | Self::Null, _) | (_, Self::Bool(_) | Self::Null) => {
                Some(self.is_true() == other.is_true())
            }
            (Self::Array(_), Self::Array(_)) => self.is_identical(other)?.then_some(true),
            (Self::Array(_), _) | (_, Self::Array(_)) => Some(false),
            _ => self.compare(other).map(Ordering::is_eq),
        }
    }

    /// `===`; `None` if that would take too long to tell.
    pub(super) fn is_identical(&self, other: &Self) -> Option<bool> {
        let is_small = self.size() <= 10_000 && other.size() <= 10_000;
        is_small.then(|| self == other)
    }

    /// `<=>` of numbers and texts.
    pub(super) fn compare(&self, other: &Self) -> Option<Ordering> {
        match (self, other) {
            (Self::Text(left), Self::Text(right)) => match (numeric(left), numeric(right)) {
                (Some(left), Some(right)) => compare_numbers(&left, &right),
                _ => Some(left.cmp(right)),
            },
            (Self::Text(text), number) | (number, Self::Text(text)) => {
                let ordering = match numeric(text) {
                    Some(value) => compare_numbers(&value, number)?,
                    None => compare_with_word(text, number)?,
                };
                Some(if matches!(self, Self::Text(_)) {
                    ordering
                } else {
                    ordering.reverse()
                })
            }
            _ => compare_numbers(self, other),
        }
    }
}

/// A text that is no number: PHP 7 takes it for its leading number, PHP 8 for a text.
fn compare_with_word(text: &str, number: &Value) -> Option<Ordering> {
    let old = compare_numbers(&leading_number(text).0, number)?;
    let new = text.cmp(&number.to_text()?);
    (old == new).then_some(old)
}

fn compare_numbers(left: &Value, right: &Value) -> Option<Ordering> {
    match (left, right) {
        (Value::Int(left), Value::Int(right)) => Some(left.cmp(right)),
        (Value::Int(_) | Value::Float(_), Value::Int(_) | Value::Float(_)) => {
            left.to_float()?.partial_cmp(&right.to_float()?)
        }
        _ => None,
    }
}

impl Key {
    pub(super) fn of_text(text: &str) -> Self {
        match text.parse::<i64>() {
            // "01", "+1" and "-0" stay texts.
            Ok(value) if value.to_string() == text => Self::Int(value),
            _ => Self::Text(text.into()),
        }
    }

    pub(super) fn to_value(&self) -> Value {
        match self {
            Self::Int(value) => Value::Int(*value),
            Self::Text(text) => Value::Text(Rc::clone(text)),
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Int(value) => value.fmt(f),
            Self::Text(text) => text.fmt(f),
        }
    }
}

impl PartialEq for Array {
    fn eq(&self, other: &Self) -> bool {
        self.is_object == other.is_object && self.entries == other.entries
    }
}

impl Array {
    pub(super) fn get(&self, key: &Key) -> Option<&Value> {
        self.places.get(key).map(|place| &self.entries[*place].1)
    }

    pub(super) fn insert(&mut self, key: Key, value: Value) {
        self.size = self.size.saturating_add(value.size());
        self.depth = self.depth.max(value.depth());
        if self.unknown.is_none() {
            self.unknown = value.unknown().cloned();
        }
        if let Key::Int(index) = key {
            self.largest = Some(self.largest.map_or(index, |largest| largest.max(index)));
        }
        if let Some(place) = self.places.get(&key) {
            self.entries[*place].1 = value;
        } else {
            self.places.insert(key.clone(), self.entries.len());
            self.entries.push((key, value));
        }
    }

    /// Adds a value at the next number; false if that depends on the version of PHP.
    pub(super) fn push(&mut self, value: Value) -> bool {
        let next = match self.largest {
            None => Some(0),
            Some(largest) if largest < 0 => None,
            Some(largest) => largest.checked_add(1),
        };
        next.map(|next| self.insert(Key::Int(next), value))
            .is_some()
    }

    /// Adds all of another array: numbers get new keys, texts keep theirs; false as for [`push`](Self::push).
    pub(super) fn spread(&mut self, other: &Self) -> bool {
        other.iter().all(|(key, value)| match key {
            Key::Int(_) => self.push(value.clone()),
            Key::Text(_) => {
                self.insert(key.clone(), value.clone());
                true
            }
        })
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &(Key, Value)> {
        self.entries.iter()
    }

    /// The values, to change one in place; call [`insert`](Self::insert) with it afterwards.
    pub(super) fn take(&mut self, key: &Key) -> Option<Value> {
        let place = self.places.get(key)?;
        Some(std::mem::replace(&mut self.entries[*place].1, Value::Null))
    }

    pub(super) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(super) fn size(&self) -> u64 {
        self.size.saturating_add(1)
    }

    pub(super) fn is_list(&self) -> bool {
        let in_order = (0..)
            .zip(&self.entries)
            .all(|(index, (key, _))| *key == Key::Int(index));
        in_order && !self.is_object
    }

    pub(super) fn into_object(mut self) -> Self {
        self.is_object = true;
        self
    }

    pub(super) fn is_object(&self) -> bool {
        self.is_object
    }
}

/// A text that is a number from end to end, as PHP 8 sees it.
pub(super) fn numeric(text: &str) -> Option<Value> {
    let (number, rest) = leading_number(text);
    let begins = text.trim_start_matches(is_blank).len() != rest.len();
    (begins && rest.trim_start_matches(is_blank).is_empty()).then_some(number)
}

fn is_blank(c: char) -> bool {
    matches!(c, ' ' | '\t'..='\r')
}

/// The number that a text begins with (0 if none) and what follows it.
fn leading_number(text: &str) -> (Value, &str) {
    let text = text.trim_start_matches(is_blank);
    let bytes = text.as_bytes();
    let digits = |from: usize| {
        let run = bytes.get(from..).unwrap_or_default();
        run.iter().take_while(|b| b.is_ascii_digit()).count()
    };
    let sign = usize::from(matches!(bytes.first(), Some(b'+' | b'-')));
    let whole = digits(sign);
    let mut end = sign + whole;
    let mut fraction = 0;
    if bytes.get(end) == Some(&b'.') {
        fraction = digits(end + 1);
        if whole + fraction > 0 {
            end += 1 + fraction;
        }
    }
    if whole + fraction == 0 {
        return (Value::Int(0), text);
    }
    let mut is_int = end == sign + whole;
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
            is_int = false;
        }
    }
    let (number, rest) = text.split_at(end);
    let int = if is_int {
        number.parse().ok().map(Value::Int)
    } else {
        None
    };
    let value = int.unwrap_or_else(|| Value::Float(number.parse().unwrap_or(0.0)));
    (value, rest)
}

/// True for digits only, where PHP's cast stops at the largest number.
fn is_decimal_integer(text: &str) -> bool {
    let text = text.trim_start_matches(is_blank);
    let digits = text
        .bytes()
        .skip_while(|b| matches!(b, b'+' | b'-'))
        .take_while(u8::is_ascii_digit)
        .count();
    let after = text.trim_start_matches(['+', '-']).as_bytes().get(digits);
    !matches!(after, Some(b'.' | b'e' | b'E'))
}

/// Whole numbers and plain decimals; the exponent form depends on PHP's settings.
fn float_text(value: f64) -> Option<String> {
    let size = value.abs();
    let is_plain = size < 1e15 && (size >= 1e-4 || size == 0.0);
    is_plain.then(|| value.to_string())
}

#[expect(clippy::cast_possible_truncation, reason = "the range is checked")]
fn truncate(value: f64) -> Option<i64> {
    (value.is_finite() && value.abs() < 9e18).then(|| value.trunc() as i64)
}

#[expect(clippy::cast_precision_loss, reason = "PHP loses it too")]
pub(super) fn int_to_float(value: i64) -> f64 {
    value as f64
}
