//! Rows of tables that artisand does not know, and how serde reads them.
//!
//! A [`Record`] has the columns of a row by name. Values are what PHP's database layer gives an app: text as the
//! server writes it (`2026-01-02 03:04:05` for a date, `9.90` for a decimal), and NULL, numbers and bytes for
//! columns of such types. [`Record::to`] converts them into the fields of a type:
//!
//! | asked for | taken from |
//! | --- | --- |
//! | integers | integers, text of one, decimals without a fraction, booleans |
//! | floats | any number, text of one |
//! | `bool` | booleans, 0 and 1, `t`, `f`, `true`, `false` |
//! | text | everything but bytes that are not UTF-8 |
//! | bytes (`serde_bytes`, `Vec<u8>`) | binary columns; with `serde_bytes` also text |
//! | lists, maps, structs | text that is JSON; `Vec<u8>` takes JSON too, if a binary column holds some |
//! | enums | text that is the name of a variant |
//! | `Option` | NULL as `None` |
//!
//! Columns that the type does not name are ignored. Errors name the column and never show its content.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use serde::de::value::{BorrowedStrDeserializer, SeqDeserializer};
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, Expected, IgnoredAny, IntoDeserializer,
    MapAccess, Unexpected, Visitor,
};

/// A row with the names of its columns.
#[derive(Clone)]
pub struct Record {
    columns: Arc<[Column]>,
    values: Vec<Value>,
}

/// A column of a result.
#[derive(Debug, Clone)]
pub(super) struct Column {
    pub(super) name: Box<str>,
    /// The server's name for its type.
    pub(super) kind: Box<str>,
}

/// A value as PHP would get it.
#[cfg_attr(
    all(not(test), not(feature = "postgres")),
    expect(dead_code, reason = "only PostgreSQL has all of them")
)]
#[derive(Clone)]
pub(super) enum Value {
    Null,
    Bool(bool),
    Int(i64),
    /// A number with a fraction or an exponent, in the server's notation.
    Float(String),
    Text(String),
    /// The value of a binary column, or text that is not UTF-8.
    Bytes(Vec<u8>),
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rows of apps hold content that does not belong in a log.
        let names = self.columns.iter().map(|column| &column.name);
        f.debug_list().entries(names).finish()
    }
}

impl Record {
    #[cfg_attr(
        all(
            not(test),
            not(any(feature = "sqlite", feature = "mysql", feature = "postgres"))
        ),
        expect(dead_code, reason = "there is no driver")
    )]
    pub(super) fn new(columns: Arc<[Column]>, values: Vec<Value>) -> Self {
        Self { columns, values }
    }

    /// The text of a column; `None` for NULL, for bytes, and if there is no such column.
    pub fn text(&self, column: &str) -> Option<Cow<'_, str>> {
        let place = self.columns.iter().position(|it| *it.name == *column)?;
        self.values.get(place)?.text()
    }

    /// Reads the row into a type of the caller.
    ///
    /// # Errors
    ///
    /// Names the column that does not fit, its type and the requested type.
    pub fn to<T: DeserializeOwned>(&self) -> Result<T, RecordError> {
        T::deserialize(RecordDeserializer(self))
    }
}

impl Value {
    /// Text, or bytes if it is none.
    #[cfg(any(feature = "sqlite", feature = "mysql"))]
    pub(super) fn from_bytes(bytes: Vec<u8>) -> Self {
        String::from_utf8(bytes).map_or_else(|error| Self::Bytes(error.into_bytes()), Self::Text)
    }

    fn text(&self) -> Option<Cow<'_, str>> {
        match self {
            Self::Null | Self::Bytes(_) => None,
            // The same texts as PHP's casts.
            Self::Bool(true) => Some("1".into()),
            Self::Bool(false) => Some("0".into()),
            Self::Int(number) => Some(number.to_string().into()),
            Self::Float(text) | Self::Text(text) => Some(text.into()),
        }
    }

    fn bytes(&self) -> Option<Cow<'_, [u8]>> {
        match self {
            Self::Bytes(bytes) => Some(bytes.into()),
            value => value.text().map(|text| match text {
                Cow::Borrowed(text) => text.as_bytes().into(),
                Cow::Owned(text) => text.into_bytes().into(),
            }),
        }
    }

    /// The value as a whole number.
    fn int(&self) -> Option<i128> {
        if let Self::Int(number) = self {
            return Some((*number).into());
        }
        let text = self.text()?;
        let text = text.trim();
        let whole = match text.split_once('.') {
            Some((whole, fraction)) if fraction.bytes().all(|b| b == b'0') => whole,
            _ => text,
        };
        whole.parse().ok()
    }

    fn bool(&self) -> Option<bool> {
        match &*self.text()? {
            "1" | "t" | "true" => Some(true),
            "0" | "f" | "false" | "" => Some(false),
            _ => None,
        }
    }

    /// The kind of the value, without its content.
    fn found(&self) -> &'static str {
        match self {
            Self::Null => "NULL",
            Self::Bool(_) => "a boolean",
            Self::Int(_) => "an integer",
            Self::Float(_) => "a number",
            Self::Text(_) => "text",
            Self::Bytes(_) => "bytes",
        }
    }
}

/// A row that does not fit the type it is read into. The error does not show the row's content.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub struct RecordError {
    column: Option<Place>,
    problem: Problem,
}

#[derive(Debug, Clone, PartialEq, Eq)]
struct Place {
    name: Box<str>,
    kind: Box<str>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Problem {
    Mismatch {
        expected: Box<str>,
        found: Box<str>,
    },
    /// A `Deserialize` implementation refused the value; its message may repeat the value.
    Refused,
    NoColumn(&'static str),
    Json {
        line: usize,
        column: usize,
    },
}

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(Place { name, kind }) = &self.column {
            write!(f, "column `{name}` ({kind}): ")?;
        }
        match &self.problem {
            Problem::Mismatch { expected, found } => {
                write!(f, "expected {expected}, found {found}")
            }
            Problem::Refused => f.write_str("the type it is read into does not take its value"),
            Problem::NoColumn(name) => write!(f, "the table has no column `{name}`"),
            Problem::Json { line, column } => write!(
                f,
                "its JSON does not fit the type it is read into (line {line}, column {column})"
            ),
        }
    }
}

impl RecordError {
    /// Name of the column; `None` if the row as a whole does not fit.
    pub fn column(&self) -> Option<&str> {
        self.column.as_ref().map(|place| &*place.name)
    }

    fn new(problem: Problem) -> Self {
        Self {
            column: None,
            problem,
        }
    }

    fn mismatch(expected: impl fmt::Display, found: impl Into<Box<str>>) -> Self {
        Self::new(Problem::Mismatch {
            expected: expected.to_string().into(),
            found: found.into(),
        })
    }

    fn json(error: &serde_json::Error) -> Self {
        Self::new(Problem::Json {
            line: error.line(),
            column: error.column(),
        })
    }

    fn at(mut self, column: &Column) -> Self {
        self.column.get_or_insert_with(|| Place {
            name: column.name.clone(),
            kind: column.kind.clone(),
        });
        self
    }
}

/// Kind of a value, without the value.
fn without_content(unexpected: Unexpected<'_>) -> &'static str {
    match unexpected {
        Unexpected::Bool(_) => "a boolean",
        Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer",
        Unexpected::Float(_) => "a number",
        Unexpected::Char(_) | Unexpected::Str(_) => "text",
        Unexpected::Bytes(_) => "bytes",
        Unexpected::Unit | Unexpected::Option => "NULL",
        Unexpected::Seq => "a list",
        Unexpected::Map => "a map",
        _ => "another value",
    }
}

impl serde::de::Error for RecordError {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self::new(Problem::Refused)
    }

    fn invalid_type(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        Self::mismatch(expected, without_content(unexpected))
    }

    fn invalid_value(unexpected: Unexpected<'_>, expected: &dyn Expected) -> Self {
        let found = without_content(unexpected);
        Self::mismatch(expected, format!("{found} that does not fit"))
    }

    fn unknown_variant(_: &str, expected: &'static [&'static str]) -> Self {
        let names = expected.join("`, `");
        Self::mismatch(format_args!("one of `{names}`"), "other text")
    }

    fn missing_field(field: &'static str) -> Self {
        Self::new(Problem::NoColumn(field))
    }
}

struct RecordDeserializer<'de>(&'de Record);

impl<'de> Deserializer<'de> for RecordDeserializer<'de> {
    type Error = RecordError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        visitor.visit_map(Columns {
            record: self.0,
            next: 0,
        })
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        visitor.visit_some(self)
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// The columns of a record, one after the other.
struct Columns<'de> {
    record: &'de Record,
    next: usize,
}

impl<'de> MapAccess<'de> for Columns<'de> {
    type Error = RecordError;

    fn next_key_seed<K: DeserializeSeed<'de>>(
        &mut self,
        seed: K,
    ) -> Result<Option<K::Value>, RecordError> {
        let column = self.record.columns.get(self.next);
        let key = column.map(|column| seed.deserialize(BorrowedStrDeserializer::new(&column.name)));
        key.transpose()
    }

    fn next_value_seed<S: DeserializeSeed<'de>>(
        &mut self,
        seed: S,
    ) -> Result<S::Value, RecordError> {
        let place = self.next;
        self.next += 1;
        let value = self.record.values.get(place).unwrap_or(&Value::Null);
        let read = seed.deserialize(ValueDeserializer(value));
        read.map_err(|error| error.at(&self.record.columns[place]))
    }
}

struct ValueDeserializer<'de>(&'de Value);

impl<'de> ValueDeserializer<'de> {
    fn mismatch(&self, expected: &dyn Expected) -> RecordError {
        RecordError::mismatch(expected, self.0.found())
    }

    fn integer<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        let Some(number) = self.0.int() else {
            return Err(self.mismatch(&visitor));
        };
        match (i64::try_from(number), u64::try_from(number)) {
            (Ok(number), _) => visitor.visit_i64(number),
            (_, Ok(number)) => visitor.visit_u64(number),
            _ => visitor.visit_i128(number),
        }
    }

    /// Reads a value that only JSON text can hold.
    fn structure<V: Visitor<'de>>(
        self,
        visitor: V,
        read: impl FnOnce(
            &mut serde_json::Deserializer<serde_json::de::SliceRead<'de>>,
            V,
        ) -> Result<V::Value, serde_json::Error>,
    ) -> Result<V::Value, RecordError> {
        let json = match self.0 {
            Value::Text(text) => text.as_bytes(),
            Value::Bytes(bytes) => bytes,
            _ => return Err(self.mismatch(&visitor)),
        };
        let mut json = serde_json::Deserializer::from_slice(json);
        let value = read(&mut json, visitor).map_err(|error| RecordError::json(&error))?;
        json.end().map_err(|error| RecordError::json(&error))?;
        Ok(value)
    }

    fn is_bytes_and_no_json(&self) -> bool {
        match self.0 {
            Value::Bytes(bytes) => serde_json::from_slice::<IgnoredAny>(bytes).is_err(),
            _ => false,
        }
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
            self.integer(visitor)
        }
    )*};
}

impl<'de> Deserializer<'de> for ValueDeserializer<'de> {
    type Error = RecordError;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            Value::Bool(is) => visitor.visit_bool(*is),
            Value::Int(number) => visitor.visit_i64(*number),
            Value::Float(text) => match text.parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => visitor.visit_borrowed_str(text),
            },
            Value::Text(text) => visitor.visit_borrowed_str(text),
            Value::Bytes(bytes) => match std::str::from_utf8(bytes) {
                Ok(text) => visitor.visit_borrowed_str(text),
                Err(_) => visitor.visit_borrowed_bytes(bytes),
            },
        }
    }

    integers! {
        deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_i128
        deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 deserialize_u128
    }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0.bool() {
            Some(is) => visitor.visit_bool(is),
            None => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_f32<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.deserialize_f64(visitor)
    }

    fn deserialize_f64<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        let number = self.0.text().and_then(|text| text.trim().parse().ok());
        match number {
            Some(number) => visitor.visit_f64(number),
            None => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        let text = match self.0 {
            Value::Bytes(bytes) => std::str::from_utf8(bytes).ok().map(Cow::Borrowed),
            value => value.text(),
        };
        match text {
            Some(Cow::Borrowed(text)) => visitor.visit_borrowed_str(text),
            Some(Cow::Owned(text)) => visitor.visit_string(text),
            None => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_bytes<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0.bytes() {
            Some(Cow::Borrowed(bytes)) => visitor.visit_borrowed_bytes(bytes),
            Some(Cow::Owned(bytes)) => visitor.visit_byte_buf(bytes),
            None => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_byte_buf<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.deserialize_bytes(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Null => visitor.visit_none(),
            _ => visitor.visit_some(self),
        }
    }

    fn deserialize_unit<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Null => visitor.visit_unit(),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_unit_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        self.deserialize_unit(visitor)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Bytes(bytes) if self.is_bytes_and_no_json() => {
                visitor.visit_seq(SeqDeserializer::new(bytes.iter().copied()))
            }
            _ => self.structure(visitor, |json, visitor| json.deserialize_seq(visitor)),
        }
    }

    fn deserialize_tuple<V: Visitor<'de>>(
        self,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Bytes(bytes) if self.is_bytes_and_no_json() => {
                visitor.visit_seq(SeqDeserializer::new(bytes.iter().copied()))
            }
            _ => self.structure(visitor, |json, visitor| {
                json.deserialize_tuple(length, visitor)
            }),
        }
    }

    fn deserialize_tuple_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        length: usize,
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        self.structure(visitor, |json, visitor| {
            json.deserialize_tuple_struct(name, length, visitor)
        })
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.structure(visitor, |json, visitor| json.deserialize_map(visitor))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        self.structure(visitor, |json, visitor| {
            json.deserialize_struct(name, fields, visitor)
        })
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, RecordError> {
        match self.0 {
            Value::Text(text) if text.starts_with('{') => self
                .structure(visitor, |json, visitor| {
                    json.deserialize_enum(name, variants, visitor)
                }),
            Value::Text(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            _ => Err(self.mismatch(&visitor)),
        }
    }

    fn deserialize_identifier<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        self.deserialize_str(visitor)
    }

    fn deserialize_ignored_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, RecordError> {
        visitor.visit_unit()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use serde::Deserialize;

    use super::*;

    fn record(columns: &[(&str, &str, Value)]) -> Record {
        let names = columns.iter().map(|(name, kind, _)| Column {
            name: (*name).into(),
            kind: (*kind).into(),
        });
        let values = columns.iter().map(|(.., value)| value.clone());
        Record::new(names.collect(), values.collect())
    }

    fn text(text: &str) -> Value {
        Value::Text(text.into())
    }

    fn one<T: DeserializeOwned>(value: Value) -> Result<T, String> {
        #[derive(Deserialize)]
        struct One<T> {
            x: T,
        }
        let record = record(&[("ignored", "INT", Value::Int(1)), ("x", "TYPE", value)]);
        record
            .to::<One<T>>()
            .map(|one| one.x)
            .map_err(|error| error.to_string())
    }

    #[test]
    fn values_become_what_a_type_asks_for() {
        #[derive(Debug, PartialEq, Deserialize)]
        #[serde(rename_all = "lowercase")]
        enum Status {
            Live,
            Held { by: String },
        }
        assert_eq!(one(Value::Int(7)), Ok(7_u8));
        assert_eq!(one(text(" 7 ")), Ok(7_i64));
        assert_eq!(one(text("7.00")), Ok(7_u32));
        assert_eq!(one(text("18446744073709551615")), Ok(u64::MAX));
        assert_eq!(one(text("18446744073709551616")), Ok(1_i128 << 64));
        assert_eq!(one(Value::Bool(true)), Ok(1_i32));
        assert_eq!(one(Value::Float("1.5e3".into())), Ok(1500.0_f64));
        assert_eq!(one(text("9.90")), Ok(9.9_f32));
        assert_eq!(one(text("9.90")), Ok("9.90".to_owned()));
        for (value, is) in [
            (Value::Int(1), true),
            (Value::Int(0), false),
            (text("t"), true),
            (text(""), false),
            (Value::Bool(false), false),
        ] {
            assert_eq!(one(value), Ok(is));
        }
        assert_eq!(one(Value::Int(-3)), Ok("-3".to_owned()));
        assert_eq!(one(Value::Null), Ok(None::<String>));
        assert_eq!(one(text("x")), Ok(Some("x".to_owned())));
        assert_eq!(one(Value::Bytes(vec![0, 255])), Ok(vec![0_u8, 255]));
        assert_eq!(one(Value::Bytes(vec![0, 255])), Ok([0_u8, 255]));
        assert_eq!(one(Value::Bytes(b"ab".into())), Ok("ab".to_owned()));
        let bytes: serde_bytes::ByteBuf = one(text("[1]")).unwrap();
        assert_eq!(bytes.as_slice(), b"[1]");
        assert_eq!(one(text(" [1, 2]")), Ok(vec![1_u8, 2]));
        // MariaDB's JSON has a binary collation.
        assert_eq!(
            one(Value::Bytes(b"[\"a\"]".into())),
            Ok(vec!["a".to_owned()])
        );
        let map: BTreeMap<String, u8> = one(text(r#"{"a":1}"#)).unwrap();
        assert_eq!(map["a"], 1);
        assert_eq!(one(text("live")), Ok(Status::Live));
        let held = Status::Held { by: "x".into() };
        assert_eq!(one(text(r#"{"held":{"by":"x"}}"#)), Ok(held));
        // As PHP has them, where anything is asked for.
        for (value, json) in [
            (Value::Float("1.5".into()), "1.5"),
            (text("{\"a\":1}"), r#""{\"a\":1}""#),
            (Value::Bool(true), "true"),
            (Value::Null, "null"),
        ] {
            let any: serde_json::Value = one(value).unwrap();
            assert_eq!(any.to_string(), json);
        }
    }

    #[test]
    fn errors_name_the_column_and_not_what_is_in_it() {
        #[derive(Debug, Deserialize)]
        struct Other {
            #[expect(dead_code, reason = "only its name is of interest")]
            y: u8,
        }
        fn error<T: DeserializeOwned + fmt::Debug>(value: Value) -> String {
            one::<T>(value).unwrap_err()
        }
        #[derive(Debug, Deserialize)]
        enum Status {
            Live,
        }
        let secret = || text("s3cr3t");
        #[rustfmt::skip]
        let rows = [
            (error::<u8>(Value::Int(1234)), "expected u8, found an integer that does not fit"),
            (error::<u8>(secret()), "expected u8, found text"),
            (error::<bool>(secret()), "expected a boolean, found text"),
            (error::<f64>(secret()), "expected f64, found text"),
            (error::<String>(Value::Null), "expected a string, found NULL"),
            (error::<String>(Value::Bytes(vec![255])), "expected a string, found bytes"),
            (error::<char>(secret()), "expected a character, found text that does not fit"),
            (error::<Status>(secret()), "expected one of `Live`, found other text"),
            (error::<std::net::IpAddr>(secret()), "the type it is read into does not take its value"),
            (error::<Vec<u8>>(secret()), "its JSON does not fit the type it is read into (line 1, column 1)"),
            (error::<Vec<u8>>(text(r#"["s3cr3t"]"#)), "its JSON does not fit the type it is read into (line 1, column 9)"),
            (error::<Vec<u8>>(text("[1] x")), "its JSON does not fit the type it is read into (line 1, column 5)"),
            (error::<Vec<u8>>(Value::Int(1)), "expected a sequence, found an integer"),
        ];
        for (error, expected) in rows {
            assert_eq!(error, format!("column `x` (TYPE): {expected}"));
        }
        let record = record(&[("x", "TYPE", secret())]);
        let error = record.to::<Other>().unwrap_err();
        assert_eq!(error.to_string(), "the table has no column `y`");
        assert!(!format!("{record:?}").contains("s3cr3t"));
        let debug = format!("{:?}", one::<u8>(secret()));
        assert!(!debug.contains("s3cr3t"));
    }
}
