//! JSON values as PHP's arrays hold them.

use std::collections::HashMap;

#[cfg(any(feature = "cli", feature = "internals"))]
use super::json;
use super::json::{JsonError, Reader, Token};

/// A JSON value as PHP's `json_decode(.., true)` represents it.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Json {
    Null,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(String),
    Array(Vec<(Key, Json)>),
}

/// Key of a PHP array: text that looks like an integer becomes an integer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    Int(i64),
    Text(String),
}

impl Key {
    fn of(text: String) -> Self {
        let number = text.parse::<i64>().ok();
        match number.filter(|number| number.to_string() == text) {
            Some(number) => Self::Int(number),
            None => Self::Text(text),
        }
    }
}

impl Json {
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, JsonError> {
        Ok(match reader.token()? {
            Token::Null => Self::Null,
            Token::Bool(value) => Self::Bool(value),
            Token::Int(value) => Self::Int(value),
            Token::Float(value) => Self::Float(value),
            Token::Text(text) => Self::Text(text.to_owned()),
            Token::Array => {
                let mut items = Vec::new();
                reader.elements(|reader| {
                    let index = i64::try_from(items.len()).unwrap_or(i64::MAX);
                    items.push((Key::Int(index), Self::read(reader)?));
                    Ok(())
                })?;
                Self::Array(items)
            }
            Token::Object => {
                let mut items: Vec<(Key, Self)> = Vec::new();
                let mut places = HashMap::new();
                reader.members(|reader, name| {
                    let value = Self::read(reader)?;
                    // The last of duplicate keys counts, at the position of the first.
                    if let Some(&place) = places.get(&name) {
                        let item: &mut (Key, Self) = &mut items[place];
                        item.1 = value;
                    } else {
                        let key = Key::of(name.clone().into_owned());
                        places.insert(name, items.len());
                        items.push((key, value));
                    }
                    Ok(())
                })?;
                Self::Array(items)
            }
        })
    }

    #[cfg(any(feature = "cli", feature = "internals"))]
    pub(super) fn write(&self, out: &mut String) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => out.push_str(&value.to_string()),
            Self::Float(value) => json::write_json_float(out, *value),
            Self::Text(text) => json::write_json_text(out, text),
            Self::Array(items) => {
                let is_list = (0_i64..)
                    .zip(items)
                    .all(|(index, (key, _))| *key == Key::Int(index));
                out.push(if is_list { '[' } else { '{' });
                for (index, (key, value)) in items.iter().enumerate() {
                    if index > 0 {
                        out.push(',');
                    }
                    if !is_list {
                        match key {
                            Key::Int(key) => json::write_json_text(out, &key.to_string()),
                            Key::Text(key) => json::write_json_text(out, key),
                        }
                        out.push(':');
                    }
                    value.write(out);
                }
                out.push(if is_list { ']' } else { '}' });
            }
        }
    }
}
