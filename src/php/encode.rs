//! What PHP's own `json_encode` makes of a value, byte for byte.
//!
//! Not the forms of the job document ([`json`](super::json)): this is what
//! somebody else reads who expects PHP's text. `/` becomes `\/`, everything
//! beyond ASCII `\uXXXX`, a float has no fraction if it is whole
//! (`serialize_precision` -1), an empty array is `[]`.
//!
//! An object is whatever its class says (`JsonSerializable`), which is code. Here
//! are those of which the result is known: `stdClass`, PHP's own dates, and the
//! classes that the caller vouches for: Carbon's, and those without such code.

use std::collections::{BTreeMap, HashSet};

use super::Date;
use super::json::Graph;
use super::value::{Array, Float, Key, Object, Value, canonical_int, json_float};

/// Most levels of arrays and objects, as in PHP.
const MAX_DEPTH: usize = 512;

/// Most bytes that are written: references may stand for more than any memory holds.
const MAX_BYTES: usize = 32 << 20;

/// Something that PHP would not encode, or encodes by code of its own.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct EncodeError(String);

impl EncodeError {
    fn new(what: impl Into<String>) -> Self {
        Self(what.into())
    }
}

/// Writes values of one graph into one JSON text.
#[derive(Debug)]
pub struct Encoder<'g> {
    graph: &'g Graph<'g>,
    out: Vec<u8>,
    /// Classes of dates that become `"2024-01-02T03:04:05.678901Z"`.
    dates: &'g [String],
    floats: bool,
    /// Public properties of classes without code for their JSON.
    values: Option<&'g BTreeMap<String, Vec<String>>>,
}

impl<'g> Encoder<'g> {
    /// An encoder whose output starts empty; `dates` are classes with Carbon's usual `toJSON`.
    pub fn new(graph: &'g Graph<'g>, dates: &'g [String]) -> Self {
        Self {
            graph,
            out: Vec::new(),
            dates,
            floats: true,
            values: None,
        }
    }

    /// Says whether floats may be written: PHP can be set to write them otherwise.
    #[must_use]
    pub fn with_floats(mut self, floats: bool) -> Self {
        self.floats = floats;
        self
    }

    /// Names classes of which PHP shows the public properties, with those.
    #[must_use]
    pub fn with_values(mut self, values: &'g BTreeMap<String, Vec<String>>) -> Self {
        self.values = Some(values);
        self
    }

    /// The text written so far.
    pub fn finish(self) -> Vec<u8> {
        self.out
    }

    /// Appends text as it is.
    pub fn raw(&mut self, text: &str) {
        self.out.extend_from_slice(text.as_bytes());
    }

    /// Appends a value that stands below `depth` arrays or objects.
    ///
    /// # Errors
    ///
    /// PHP would refuse it, or only PHP knows what it becomes.
    pub fn value(&mut self, value: &Value, depth: usize) -> Result<(), EncodeError> {
        if self.out.len() > MAX_BYTES {
            return Err(EncodeError::new("the text would be too long"));
        }
        match self.graph.resolve(value) {
            Value::Null => self.raw("null"),
            Value::Bool(true) => self.raw("true"),
            Value::Bool(false) => self.raw("false"),
            Value::Int(value) => self.raw(&value.to_string()),
            Value::Float(value) => self.float(value)?,
            Value::String(text) => self.string(text)?,
            Value::Array(array) => self.array(array, depth)?,
            Value::Object(object) => self.object(object, depth)?,
            Value::ObjectRef(_) | Value::VarRef(_) => {
                return Err(EncodeError::new("a reference leads nowhere"));
            }
            value @ (Value::Custom(_) | Value::Enum(_)) => {
                return Err(EncodeError::new(format!(
                    "only PHP knows the JSON of {}",
                    value.kind_name()
                )));
            }
        }
        Ok(())
    }

    /// Appends an array that stands below `depth` others.
    ///
    /// # Errors
    ///
    /// See [`value`](Self::value).
    pub fn array(&mut self, array: &Array, depth: usize) -> Result<(), EncodeError> {
        let depth = deeper(depth)?;
        let key_of = |key: &Key| match key {
            Key::Int(key) => Ok(*key),
            Key::String(key) => canonical_int(key).ok_or(()),
        };
        let is_list = array
            .pairs
            .iter()
            .zip(0i64..)
            .all(|((key, _), index)| key_of(key) == Ok(index));
        if is_list {
            self.raw("[");
            for (place, value) in array.values().enumerate() {
                self.separate(place);
                self.value(value, depth)?;
            }
            self.raw("]");
            return Ok(());
        }
        let mut seen = HashSet::new();
        self.raw("{");
        for (place, (key, value)) in array.pairs.iter().enumerate() {
            let name = match key_of(key) {
                Ok(int) => int.to_string().into_bytes(),
                Err(()) => match key {
                    Key::String(text) => text.clone(),
                    Key::Int(int) => int.to_string().into_bytes(),
                },
            };
            self.separate(place);
            self.string(&name)?;
            if !seen.insert(name) {
                return Err(EncodeError::new("an array has a key twice"));
            }
            self.raw(":");
            self.value(value, depth)?;
        }
        self.raw("}");
        Ok(())
    }

    fn separate(&mut self, place: usize) {
        if place > 0 {
            self.out.push(b',');
        }
    }

    fn object(&mut self, object: &Object, depth: usize) -> Result<(), EncodeError> {
        let class = &object.class;
        if self.dates.iter().any(|known| *class == **known) {
            let text = self.date(object);
            let text = text.ok_or_else(|| {
                EncodeError::new(format!("only PHP knows the JSON of this `{class}`"))
            })?;
            return self.string(text.as_bytes());
        }
        let is_known_date = ["DateTime", "DateTimeImmutable"]
            .iter()
            .any(|known| *class == **known);
        let is_plain = *class == *"stdClass" || (is_known_date && is_date(object));
        let declared = self.values.and_then(|values| values.get(class.as_str()));
        if !is_plain && declared.is_none() {
            return Err(EncodeError::new(format!(
                "only PHP knows the JSON of an object of class `{class}`"
            )));
        }
        let depth = deeper(depth)?;
        let mut seen = HashSet::new();
        self.raw("{");
        for (key, value) in &object.properties {
            let name = match key {
                Key::Int(key) => key.to_string().into_bytes(),
                Key::String(key) => key.clone(),
            };
            if name.first() == Some(&0) {
                // Nobody outside the class sees it.
                if declared.is_some() {
                    continue;
                }
                return Err(EncodeError::new(format!(
                    "an object of class `{class}` has a property that is not public"
                )));
            }
            self.separate(seen.len());
            self.string(&name)?;
            if !seen.insert(name) {
                return Err(EncodeError::new("an object has a property twice"));
            }
            self.raw(":");
            self.value(value, depth)?;
        }
        let is_whole = |names: &Vec<String>| {
            names.len() == seen.len() && names.iter().all(|name| seen.contains(name.as_bytes()))
        };
        if declared.is_some_and(|names| !is_whole(names)) {
            return Err(EncodeError::new(format!(
                "an object of class `{class}` has other properties than its class"
            )));
        }
        self.raw("}");
        Ok(())
    }

    /// The text of Carbon's `toJSON`: the instant in UTC.
    fn date(&self, object: &Object) -> Option<String> {
        if !is_date(object) {
            return None;
        }
        let text = |name| Some(self.graph.property(object, name)?.as_str()?.to_owned());
        let date = Date {
            date: text("date")?,
            timezone_type: self.graph.property(object, "timezone_type")?.as_int()?,
            timezone: text("timezone")?,
        };
        let instant = jiff::Timestamp::from_microsecond(date.timestamp_micros()?).ok()?;
        let utc = instant.to_zoned(jiff::tz::TimeZone::UTC).datetime();
        // Other years have another number of digits.
        (0..=9999).contains(&utc.year()).then(|| {
            format!(
                "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:06}Z",
                utc.year(),
                utc.month(),
                utc.day(),
                utc.hour(),
                utc.minute(),
                utc.second(),
                utc.subsec_nanosecond() / 1000
            )
        })
    }

    fn float(&mut self, value: &Float) -> Result<(), EncodeError> {
        if !value.get().is_finite() {
            return Err(EncodeError::new("JSON has no infinite numbers and no NAN"));
        }
        if !self.floats {
            return Err(EncodeError::new(
                "the app's PHP writes floats in a way of its own (`serialize_precision`)",
            ));
        }
        self.raw(&json_float(value.get()));
        Ok(())
    }

    /// Appends a string.
    ///
    /// # Errors
    ///
    /// It is not UTF-8.
    pub fn string(&mut self, text: &[u8]) -> Result<(), EncodeError> {
        let text =
            std::str::from_utf8(text).map_err(|_| EncodeError::new("a text is not UTF-8"))?;
        self.out.push(b'"');
        for c in text.chars() {
            match c {
                '"' => self.raw("\\\""),
                '\\' => self.raw("\\\\"),
                '/' => self.raw("\\/"),
                '\u{8}' => self.raw("\\b"),
                '\u{c}' => self.raw("\\f"),
                '\n' => self.raw("\\n"),
                '\r' => self.raw("\\r"),
                '\t' => self.raw("\\t"),
                ' '..='\u{7f}' => self.out.push(c as u8),
                c => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        self.raw(&format!("\\u{unit:04x}"));
                    }
                }
            }
        }
        self.out.push(b'"');
        Ok(())
    }
}

/// Whether an object is no more than a date.
fn is_date(object: &Object) -> bool {
    let is_one = |(key, name): (&(Key, Value), &str)| matches!(&key.0, Key::String(key) if key == name.as_bytes());
    object.properties.len() == 3
        && object
            .properties
            .iter()
            .zip(["date", "timezone_type", "timezone"])
            .all(is_one)
}

fn deeper(depth: usize) -> Result<usize, EncodeError> {
    if depth >= MAX_DEPTH {
        return Err(EncodeError::new("it is nested too deeply"));
    }
    Ok(depth + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn encoded(bytes: &[u8], dates: &[String]) -> Result<String, EncodeError> {
        let value = Value::from_bytes(bytes).unwrap();
        let graph = Graph::new(&value);
        let mut encoder = Encoder::new(&graph, dates);
        encoder.value(&value, 0)?;
        Ok(String::from_utf8(encoder.finish()).unwrap())
    }

    #[test]
    fn values_become_the_text_that_php_writes() {
        #[rustfmt::skip]
        let rows: [(&str, &str); 22] = [
            ("N;", "null"), ("b:1;", "true"), ("i:-7;", "-7"),
            ("d:1;", "1"), ("d:-0;", "-0"), ("d:0.1;", "0.1"), ("d:1.0E+25;", "1.0e+25"), ("d:1.5E-7;", "1.5e-7"),
            ("d:1.0E+17;", "1.0e+17"), ("d:10000000000000000;", "10000000000000000"), ("d:0.3333333333333333;", "0.3333333333333333"),
            ("s:4:\"a/\\\"\";", "\"a\\/\\\\\\\"\""),
            ("s:6:\"\u{e9}\u{1f680}\";", "\"\\u00e9\\ud83d\\ude80\""),
            ("s:5:\"\u{1}\u{8}\n\u{7f}\t\";", "\"\\u0001\\b\\n\u{7f}\\t\""),
            ("a:0:{}", "[]"), ("a:2:{i:0;i:1;i:1;a:0:{}}", "[1,[]]"),
            ("a:2:{i:1;i:1;i:0;i:2;}", "{\"1\":1,\"0\":2}"), ("a:1:{s:0:\"\";N;}", "{\"\":null}"),
            ("a:1:{s:1:\"0\";i:5;}", "[5]"),
            ("O:8:\"stdClass\":0:{}", "{}"), ("O:8:\"stdClass\":1:{s:1:\"0\";i:5;}", "{\"0\":5}"),
            ("a:2:{i:0;O:8:\"stdClass\":1:{s:1:\"a\";i:5;}i:1;r:2;}", "[{\"a\":5},{\"a\":5}]"),
        ];
        for (bytes, expected) in rows {
            assert_eq!(
                encoded(bytes.as_bytes(), &[]).as_deref(),
                Ok(expected),
                "{bytes}"
            );
        }
    }

    #[test]
    fn dates_are_objects_or_the_instant_in_utc() {
        let date = |class: &str| {
            format!(
                "O:{}:\"{class}\":3:{{s:4:\"date\";s:26:\"2024-01-02 03:04:05.678901\";s:13:\"timezone_type\";i:3;s:8:\"timezone\";s:12:\"Europe/Paris\";}}",
                class.len()
            )
        };
        let dates = ["Carbon\\Carbon".to_owned()];
        assert_eq!(
            encoded(date("Carbon\\Carbon").as_bytes(), &dates).as_deref(),
            Ok("\"2024-01-02T02:04:05.678901Z\"")
        );
        assert_eq!(
            encoded(date("DateTime").as_bytes(), &[]).as_deref(),
            Ok(
                r#"{"date":"2024-01-02 03:04:05.678901","timezone_type":3,"timezone":"Europe\/Paris"}"#
            )
        );
        let error = encoded(date("Carbon\\Carbon").as_bytes(), &[]).unwrap_err();
        assert!(error.to_string().contains("`Carbon\\Carbon`"), "{error}");
    }

    #[test]
    fn what_php_would_refuse_or_alone_knows_is_an_error() {
        let deep =
            |levels: usize| format!("{}N;{}", "a:1:{i:0;".repeat(levels), "}".repeat(levels));
        assert!(encoded(deep(512).as_bytes(), &[]).is_ok());
        #[rustfmt::skip]
        let rows: Vec<(Vec<u8>, &str)> = vec![
            (b"d:NAN;".to_vec(), "NAN"), (b"d:-INF;".to_vec(), "infinite"),
            (b"s:1:\"\xff\";".to_vec(), "not UTF-8"), (b"a:1:{s:1:\"\xff\";N;}".to_vec(), "not UTF-8"),
            (b"E:4:\"A\\B:C\";".to_vec(), ""), (b"O:1:\"X\":0:{}".to_vec(), "class `X`"),
            (b"C:1:\"X\":0:{}".to_vec(), "class `X`"), (deep(513).into_bytes(), "deep"),
            (b"a:1:{i:0;a:1:{i:0;R:1;}}".to_vec(), "deep"),
            (b"O:8:\"stdClass\":1:{s:4:\"\0*\0a\";N;}".to_vec(), "not public"),
        ];
        for (bytes, expected) in rows {
            let Ok(_) = Value::from_bytes(&bytes) else {
                continue;
            };
            let error = encoded(&bytes, &[]).unwrap_err().to_string();
            assert!(error.contains(expected), "{bytes:?}: {error}");
        }
    }

    #[test]
    fn objects_without_code_show_their_public_properties() {
        let values = BTreeMap::from([("V".to_owned(), vec!["a".to_owned(), "b".to_owned()])]);
        #[rustfmt::skip]
        let rows = [
            ("O:1:\"V\":3:{s:1:\"b\";i:1;s:4:\"\0*\0c\";i:2;s:1:\"a\";N;}", Ok(r#"{"b":1,"a":null}"#)),
            ("O:1:\"V\":1:{s:1:\"b\";i:1;}", Err("other properties than its class")),
            ("O:1:\"V\":3:{s:1:\"b\";i:1;s:1:\"a\";N;s:1:\"d\";N;}", Err("other properties than its class")),
        ];
        for (bytes, expected) in rows {
            let value = Value::from_bytes(bytes.as_bytes()).unwrap();
            let graph = Graph::new(&value);
            let mut encoder = Encoder::new(&graph, &[]).with_values(&values);
            let done = encoder.value(&value, 0);
            let text = String::from_utf8(encoder.finish()).unwrap();
            match expected {
                Ok(expected) => assert_eq!((done, &*text), (Ok(()), expected), "{bytes}"),
                Err(why) => assert!(done.unwrap_err().to_string().contains(why), "{bytes}"),
            }
        }
    }

    #[test]
    fn references_that_fan_out_end() {
        let mut bytes = b"a:60:{i:0;a:1:{i:0;i:1;}".to_vec();
        let mut slot = 2;
        for level in 1..60 {
            bytes.extend_from_slice(
                format!("i:{level};a:2:{{i:0;R:{slot};i:1;R:{slot};}}").as_bytes(),
            );
            slot += if level == 1 { 2 } else { 1 };
        }
        bytes.push(b'}');
        let error = encoded(&bytes, &[]).unwrap_err().to_string();
        assert!(error.contains("too long"), "{error}");
    }
}
