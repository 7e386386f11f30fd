//! Reads a fact about one object from its properties, and from attributes and methods of its class.
//!
//! The version decides their order (docs/protocol/payload.md 4). The results are
//! PHP's values, not yet those of a payload.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::manifest::{Class, Manifest, Part};
use crate::payload::{Delay, Scalar, Version, Waits};
use crate::php::json::Graph;
use crate::php::{Array, ClassName, Key, Object, Value};
use crate::time::UnixSeconds;

/// A fact about a job that only PHP knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{class}: {what}")]
pub struct Missing {
    /// The class in question.
    pub class: Box<str>,
    /// The missing fact, and a remedy.
    pub what: Box<str>,
}

pub(super) type Result<T> = std::result::Result<T, Missing>;

pub(super) fn missing(class: &str, what: &str) -> Missing {
    Missing {
        class: class.into(),
        what: what.into(),
    }
}

pub(super) fn unknown_class(manifest: &Manifest, class: &ClassName) -> Missing {
    let mut changed = manifest.changed();
    let of_class = changed.find(|(name, _)| name.eq_ignore_ascii_case(class.as_str()));
    let what = of_class.map_or_else(
        || "the manifest does not have the class".to_owned(),
        |(_, file)| {
            let file = file.display();
            format!("{file} has changed since the manifest was written")
        },
    );
    let what = format!("{what}; write it again with `artisand manifest`");
    missing(class.as_str(), &what)
}

impl Class {
    /// Default value of a public property; `None` without one.
    pub(super) fn default(&self, name: &str) -> Option<Value> {
        let property = self
            .properties
            .iter()
            .find(|property| property.name == name);
        property
            .filter(|property| property.visibility == "public")?
            .default
            .clone()
    }

    pub(super) fn is(&self, flag: &str) -> bool {
        self.flags.get(flag).and_then(Json::as_bool) == Some(true)
    }

    pub(super) fn is_not(&self, flag: &str) -> bool {
        self.flags.get(flag).and_then(Json::as_bool) == Some(false)
    }

    pub(super) fn implements(&self, interface: &str) -> bool {
        self.interfaces
            .iter()
            .any(|known| known.eq_ignore_ascii_case(interface))
    }

    pub(super) fn uses(&self, name: &str) -> bool {
        self.uses
            .iter()
            .any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// A concrete object, and everything known about it.
#[derive(Clone, Copy)]
pub(super) struct Subject<'a> {
    pub(super) manifest: &'a Manifest,
    pub(super) object: &'a Object,
    pub(super) graph: &'a Graph<'a>,
    pub(super) answers: &'a Answers,
    pub(super) version: Version,
    pub(super) now: UnixSeconds,
}

/// What methods of the class return for one object, said by the code that dispatches it: values by the method's name.
pub type Answers = BTreeMap<&'static str, Value>;

pub(super) static NO_ANSWERS: Answers = Answers::new();

impl<'a> Subject<'a> {
    pub(super) fn name(&self) -> &'a str {
        self.object.class.as_str()
    }

    pub(super) fn missing(&self, what: &str) -> Missing {
        missing(self.name(), what)
    }

    pub(super) fn since(&self, major: u32, minor: u32) -> bool {
        self.version.is_at_least(major, minor)
    }

    pub(super) fn class(&self) -> Result<&'a Class> {
        self.manifest.known_class(&self.object.class)
    }

    /// A public property that is in the bytes.
    fn written(&self, name: &str) -> Option<&'a Value> {
        let mut properties = self.object.properties.iter().rev();
        let is_it = |key: &Key| matches!(key, Key::String(key) if key == name.as_bytes());
        let found = properties.find(|(key, _)| is_it(key));
        found.map(|(_, value)| self.graph.resolve(value))
    }

    /// A property as code outside the class sees it; null if it is not set.
    pub(super) fn property(&self, class: Option<&Class>, name: &str) -> Value {
        let value = self
            .answers
            .get(name)
            .or_else(|| self.written(name))
            .cloned();
        let value = value.or_else(|| class?.default(name));
        value.unwrap_or(Value::Null)
    }

    /// A property, or the attribute that replaces it since Laravel 13; since 13.4 a property that was changed wins.
    ///
    /// # Source
    ///
    /// `Illuminate\Support\Traits\ReadsClassAttributes::getAttributeValue`.
    pub(super) fn value(&self, class: &Class, name: &str, said: Option<&Json>) -> Result<Value> {
        if let Some(answer) = self.answers.get(name) {
            return Ok(answer.clone());
        }
        let current = self.property(Some(class), name);
        if !self.since(13, 0) {
            return Ok(current);
        }
        let default = class.default(name).unwrap_or(Value::Null);
        let is_set = !current.is_null() && current != default;
        let Some(said) = said.filter(|said| !is_method(said)) else {
            // If there is a method of that name, the manifest does not say whether there is an attribute.
            return if is_set || said.is_none() {
                Ok(current)
            } else {
                Err(self.missing(&format!("whether `{name}` has an attribute is not known")))
            };
        };
        let said = plain(said).ok_or_else(|| {
            self.missing(&format!("the default of `{name}` is known to PHP only"))
        })?;
        let property_wins = is_set && self.since(13, 4);
        Ok(if said == default || property_wins {
            current
        } else {
            said
        })
    }

    pub(super) fn limit(&self, class: &Class, name: &str) -> Result<Value> {
        self.value(class, name, class.limits.get(name))
    }

    /// The result of a method, if the exporter could read it.
    pub(super) fn method(&self, class: &Class, name: &str) -> Result<Value> {
        if let Some(answer) = self.answers.get(name) {
            return Ok(answer.clone());
        }
        let unknown = || {
            self.missing(&format!(
                "its method `{name}()` must be asked, and only PHP can do that; a property would do, \
                 or a method that only returns one"
            ))
        };
        let returned = class.methods.get(name).ok_or_else(unknown)?;
        let mut values = returned
            .parts
            .iter()
            .map(|part| self.part(class, part).ok_or_else(unknown));
        if !returned.text {
            return values.next().ok_or_else(unknown)?;
        }
        let mut text = Vec::new();
        for value in values {
            text.extend_from_slice(&bytes_of(&value?).ok_or_else(unknown)?);
        }
        Ok(Value::String(text))
    }

    fn part(&self, class: &Class, part: &Part) -> Option<Value> {
        match part {
            Part::Literal(value) => plain(value),
            Part::Property(name) => {
                let mut properties = class
                    .properties
                    .iter()
                    .filter(|property| property.name == *name);
                // A parent's private property of the same name is a different property.
                let (property, None) = (properties.next()?, properties.next()) else {
                    return None;
                };
                match self.graph.property(self.object, name) {
                    Some(value) => Some(value.clone()),
                    None => property.default.clone(),
                }
            }
        }
    }

    pub(super) fn scalar(&self, name: &str, value: &Value) -> Result<Scalar> {
        Scalar::of(value).ok_or_else(|| {
            let found = value.kind_name();
            self.missing(&format!(
                "`{name}` is {found}, and only PHP knows what that means there"
            ))
        })
    }

    /// The text that PHP's cast to string gives.
    pub(super) fn text(&self, name: &str, value: &Value) -> Result<Box<str>> {
        let text = bytes_of(value).and_then(|bytes| String::from_utf8(bytes).ok());
        text.map(String::into_boxed_str).ok_or_else(|| {
            let found = value.kind_name();
            self.missing(&format!(
                "`{name}` is {found}, of which only PHP can make a text"
            ))
        })
    }

    /// `maxTries` of a class of the app.
    pub(super) fn tries(&self, class: &Class) -> Result<Scalar> {
        let has_method = class.limits.get("tries").is_some_and(is_method);
        if !has_method {
            return self.scalar("tries", &self.limit(class, "tries")?);
        }
        let mut value = self.property(Some(class), "tries");
        let asks = self.since(13, 0) || (self.since(10, 39) && value.is_null());
        if asks {
            value = self.method(class, "tries")?;
        }
        self.scalar("tries", &value)
    }

    pub(super) fn backoff(&self, class: &Class) -> Result<Waits> {
        let name = if self.since(8, 0) {
            "backoff"
        } else {
            "retryAfter"
        };
        if !class.limits.get("backoff").is_some_and(is_method) {
            let value = if self.since(8, 0) {
                self.limit(class, name)?
            } else {
                self.property(Some(class), name)
            };
            return self.waits(&value);
        }
        let mut value = self.property(Some(class), name);
        if self.since(13, 0) || value.is_null() {
            value = self.method(class, name)?;
        }
        self.waits(&value)
    }

    pub(super) fn waits(&self, value: &Value) -> Result<Waits> {
        let wait = |value: &Value| match date(value) {
            Some(moment) => Ok(Scalar::Int(moment.0.saturating_sub(self.now.0).max(0))),
            None => self.scalar("backoff", value),
        };
        match value {
            Value::Null => Ok(Waits::None),
            Value::Array(array) => {
                let values = array.values().map(|value| wait(self.graph.resolve(value)));
                values.collect::<Result<_>>().map(Waits::List)
            }
            value => wait(value).map(Waits::One),
        }
    }

    /// `retryUntil`, or `timeoutAt` before Laravel 8.
    pub(super) fn retry_until(&self, class: &Class) -> Result<Scalar> {
        let name = if self.since(8, 0) {
            "retryUntil"
        } else {
            "timeoutAt"
        };
        let mut value = self.property(Some(class), name);
        if value.is_null() && class.limits.get("retryUntil").is_some_and(is_method) {
            value = self.method(class, "retryUntil")?;
        }
        self.moment(name, &value)
    }

    pub(super) fn moment(&self, name: &str, value: &Value) -> Result<Scalar> {
        match date(value) {
            Some(moment) => Ok(Scalar::Int(moment.0)),
            None => self.scalar(name, value),
        }
    }

    pub(super) fn delay(&self, value: &Value) -> Result<Option<Delay>> {
        Delay::of(value).map_err(|error| self.missing(&error.to_string()))
    }

    /// The name of a connection or queue: the job's own, or else that of its route. Empty means the default.
    pub(super) fn place(
        &self,
        name: &str,
        own: &Value,
        route: Option<&str>,
    ) -> Result<Option<Box<str>>> {
        let place = match own {
            Value::Null => route,
            Value::String(_) => own.as_str(),
            _ => None,
        };
        if place.is_none() && !own.is_null() {
            let found = own.kind_name();
            return Err(self.missing(&format!(
                "`{name}` is {found}, and only PHP knows the name of that"
            )));
        }
        Ok(place
            .filter(|place| !place.is_empty() && *place != "0")
            .map(Into::into))
    }
}

/// Whether a value is `{"$method": true}`: a method returns the limit.
pub(super) fn is_method(said: &Json) -> bool {
    said.get("$method").is_some()
}

/// A value of the manifest that is a scalar or a list of scalars.
fn plain(json: &Json) -> Option<Value> {
    Some(match json {
        Json::Null => Value::Null,
        Json::Bool(value) => Value::Bool(*value),
        Json::Number(number) => match number.as_i64() {
            Some(value) => Value::Int(value),
            None => Value::from(number.as_f64()?),
        },
        Json::String(text) => Value::from(text.as_str()),
        Json::Array(items) => {
            let items: Option<Array> = items.iter().map(plain).collect();
            items?.into()
        }
        Json::Object(_) => return None,
    })
}

/// The bytes of PHP's cast to string; `None` for values that need more than a cast.
fn bytes_of(value: &Value) -> Option<Vec<u8>> {
    Some(match value {
        Value::Null | Value::Bool(false) => Vec::new(),
        Value::Bool(true) => b"1".to_vec(),
        Value::Int(value) => value.to_string().into_bytes(),
        Value::String(bytes) => bytes.clone(),
        _ => return None,
    })
}

fn date(value: &Value) -> Option<UnixSeconds> {
    match Delay::of(value) {
        Ok(Some(Delay::At(moment))) => Some(moment),
        _ => None,
    }
}

pub(super) fn is_true(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) | Value::Int(0) => false,
        Value::String(text) => !matches!(text.as_slice(), b"" | b"0"),
        Value::Float(value) => value.get() != 0.0,
        Value::Array(array) => !array.pairs.is_empty(),
        _ => true,
    }
}
