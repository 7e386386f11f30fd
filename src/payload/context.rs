//! The log context that the app attached to a job: `illuminate:log:context`.
//!
//! Since Laravel 11 a payload may contain the context of the process that queued
//! the job: `{"data": {key: text}, "hidden": {key: text}}`, each text a
//! serialized PHP value. Texts are stored unchanged and parsed on access. Hidden
//! entries must never be logged: nothing here prints them.

use std::fmt;

use serde_json::value::RawValue;

use super::json::{JsonError, Reader, Token, write_unescaped_text};
use crate::php::Value;

/// The context of a job.
///
/// # Source
///
/// `Illuminate\Log\Context\Repository::dehydrate`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct LogContext {
    data: Entries,
    hidden: Entries,
}

impl fmt::Debug for LogContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LogContext")
            .field("data", &self.data.keys())
            .field("hidden", &self.hidden.keys())
            .finish()
    }
}

impl LogContext {
    /// Reads the context in a payload; `None` if the app puts any other value there.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, JsonError> {
        let mut context = Self::default();
        match reader.token()? {
            Token::Object => reader.members(|reader, half| {
                match &*half {
                    "data" => context.data = Entries::read(reader)?,
                    "hidden" => context.hidden = Entries::read(reader)?,
                    _ => reader.skip()?,
                }
                Ok(())
            })?,
            Token::Array => return reader.skip_elements().map(|()| None),
            _ => return Ok(None),
        }
        Ok(Some(context))
    }

    /// Keys of the entries that logs may show, in order.
    pub fn keys(&self) -> Vec<&str> {
        self.data.keys()
    }

    /// An entry that logs may show; `None` if it is missing or cannot be read.
    pub fn get(&self, key: &str) -> Option<Value> {
        self.data.get(key)
    }

    /// A hidden entry; `None` if it is missing or cannot be read.
    pub fn hidden(&self, key: &str) -> Option<Value> {
        self.hidden.get(key)
    }

    /// What a log line says of the context, as a JSON object of 2 KB at most; `None` if no entry may be shown.
    pub(crate) fn shown(&self) -> Option<String> {
        const MOST: usize = 2048;
        (!self.is_empty()).then(|| self.to_json(MOST))
    }

    /// The entries that logs may show as one JSON object of at most about `limit` bytes.
    ///
    /// Entries beyond the limit are left out as a whole, and `"$omitted"` gives
    /// their number. Values have the forms of [`php::json`](crate::php::json).
    pub fn to_json(&self, limit: usize) -> String {
        // A hostile context may have very many entries that are read in vain.
        const MOST_IN_VAIN: usize = 16;
        let mut json = String::from("{");
        let (mut omitted, mut in_vain) = (0, 0);
        for (key, text) in &self.data.0 {
            let left = limit.saturating_sub(json.len());
            // JSON text is hardly ever shorter than half of the serialized text.
            let is_long = key.len() + text.len() / 2 > left;
            if is_long || in_vain == MOST_IN_VAIN {
                omitted += 1;
                continue;
            }
            if let Some(entry) = entry(key, text, left) {
                json.push_str(if json.len() > 1 { "," } else { "" });
                json.push_str(&entry);
            } else {
                omitted += 1;
                in_vain += 1;
            }
        }
        if omitted > 0 {
            json.push_str(if json.len() > 1 { "," } else { "" });
            json.push_str("\"$omitted\":");
            json.push_str(&omitted.to_string());
        }
        json + "}"
    }

    /// Adds a hidden entry, replacing one with the same key.
    #[must_use]
    pub fn with_hidden(mut self, key: &str, value: &Value) -> Self {
        let text = String::from_utf8_lossy(&value.to_bytes()).into_owned();
        let entry = (Box::from(key), Box::from(text));
        match self.hidden.0.iter_mut().rfind(|(name, _)| **name == *key) {
            Some(there) => *there = entry,
            None => self.hidden.0.push(entry),
        }
        self
    }

    /// The field `illuminate:log:context` of a payload; `None` for a context without entries, which gets no field.
    ///
    /// # Source
    ///
    /// `Illuminate\Log\Context\ContextServiceProvider`.
    pub(crate) fn to_field(&self) -> Option<(Box<str>, Box<RawValue>)> {
        if self.data.0.is_empty() && self.hidden.0.is_empty() {
            return None;
        }
        let json = format!(
            "{{\"data\":{},\"hidden\":{}}}",
            self.data.to_field(),
            self.hidden.to_field()
        );
        Some((
            "illuminate:log:context".into(),
            RawValue::from_string(json).ok()?,
        ))
    }

    /// True if no entry may be shown in logs.
    pub fn is_empty(&self) -> bool {
        self.data.0.is_empty()
    }
}

/// A member of a JSON object; `None` if the value cannot be read, or the member has more than `limit` bytes.
fn entry(key: &str, text: &str, limit: usize) -> Option<String> {
    let mut entry = serde_json::to_string(key).ok()?;
    entry.push(':');
    let left = limit.checked_sub(entry.len())?;
    let value = Value::from_bytes(text.as_bytes()).ok()?;
    entry.push_str(&value.to_json_within(left)?);
    Some(entry)
}

/// Keys with serialized values.
#[derive(Clone, Default, PartialEq, Eq)]
struct Entries(Vec<(Box<str>, Box<str>)>);

impl Entries {
    /// Reads keys and values, or a list if PHP's keys were 0, 1 and so on; any other value gives no entries.
    fn read(reader: &mut Reader<'_>) -> Result<Self, JsonError> {
        let mut entries = Vec::new();
        match reader.token()? {
            Token::Object => reader.members(|reader, key| {
                entries.extend(reader.text()?.map(|text| (key.into(), text)));
                Ok(())
            })?,
            Token::Array => {
                let mut index = 0_usize;
                reader.elements(|reader| {
                    entries.extend(reader.text()?.map(|text| (index.to_string().into(), text)));
                    index += 1;
                    Ok(())
                })?;
            }
            _ => {}
        }
        Ok(Self(entries))
    }

    fn keys(&self) -> Vec<&str> {
        self.0.iter().map(|(key, _)| &**key).collect()
    }

    /// Writes the entries as PHP writes an array: an object, or a list if the keys are 0, 1 and so on.
    fn to_field(&self) -> String {
        let is_list = (0..)
            .zip(&self.0)
            .all(|(index, (key, _))| **key == *index.to_string());
        let mut json = String::from(if is_list { "[" } else { "{" });
        for (index, (key, text)) in self.0.iter().enumerate() {
            json.push_str(if index > 0 { "," } else { "" });
            if !is_list {
                write_unescaped_text(&mut json, key);
                json.push(':');
            }
            write_unescaped_text(&mut json, text);
        }
        json.push_str(if is_list { "]" } else { "}" });
        json
    }

    fn get(&self, key: &str) -> Option<Value> {
        // The last of duplicate keys counts, as in PHP.
        let (_, text) = self.0.iter().rfind(|(name, _)| **name == *key)?;
        Value::from_bytes(text.as_bytes()).ok()
    }
}
