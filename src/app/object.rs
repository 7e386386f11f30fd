//! An object of one of the app's classes, as PHP would write it.
//!
//! A Rust struct has names and values; which properties the class has, in which order and with which visibility and
//! defaults PHP writes them, is in the manifest.
//!
//! # Source
//!
//! `Illuminate\Queue\SerializesModels::__serialize`, PHP's `serialize` (docs/protocol/payload.md 5).

use serde_json::Value as Json;

use super::classes::nearest;
use super::manifest::{Class, Manifest, Property};
use super::subject::{Missing, Result as OrMissing};
use crate::payload::Kind;
use crate::php::{
    ClassName, EditError, Key, MODEL_IDENTIFIER, Object, ObjectText, PropertyName, Value,
    Visibility,
};

/// Why properties do not fit a class of the app.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Unfit {
    /// The value is no object of a class.
    #[error("{what}")]
    NoClass {
        /// What was given, and what would work.
        what: String,
    },
    /// The class has no property of this name.
    #[error("{class} has no property `{property}`{}", meant(nearest.as_deref()))]
    Unknown {
        /// The class.
        class: ClassName,
        /// The name.
        property: String,
        /// The property with the most similar name.
        nearest: Option<String>,
    },
    /// A value that the property's type does not allow: PHP would throw a `TypeError` in the worker.
    #[error("{class}::${property} is {type_name}, and cannot be {found}")]
    Type {
        /// The class.
        class: ClassName,
        /// The property.
        property: String,
        /// Its type in PHP's notation.
        type_name: String,
        /// The kind of the value.
        found: String,
    },
    /// A property that `SerializesModels` leaves out: a private one of a parent class.
    #[error("{class}::${property} is private in {parent}, and SerializesModels does not write it")]
    Hidden {
        /// The class.
        class: ClassName,
        /// The property.
        property: String,
        /// The class that declares it.
        parent: String,
    },
    /// A property that the constructor always sets has neither a value nor a default.
    #[error("{class}::${property} has no value and no default{}", if *is_set { ": its constructor sets it, which does not run" } else { "" })]
    Uncovered {
        /// The class.
        class: ClassName,
        /// The property.
        property: String,
        /// Whether the constructor sets it otherwise than from a parameter of its name.
        is_set: bool,
    },
    /// The class is not queued (`ShouldQueue`): PHP would run it at once.
    #[error("{class} does not implement ShouldQueue: PHP would run it at once")]
    NotQueued {
        /// The class.
        class: ClassName,
    },
    /// The properties of an object with references cannot be set.
    #[error("{class} cannot be edited: {why}")]
    Edit {
        /// The class.
        class: ClassName,
        /// Why not.
        why: String,
    },
    /// Nothing is known of the class.
    #[error(transparent)]
    Missing(#[from] Missing),
}

fn meant(nearest: Option<&str>) -> String {
    nearest.map_or_else(String::new, |name| format!("; did you mean `{name}`?"))
}

impl Manifest {
    /// The name of the class that is most similar to this one.
    pub fn nearest_class(&self, name: &str) -> Option<&str> {
        nearest(name, self.classes.keys().map(String::as_str))
    }

    /// A type whose serde name is no class.
    pub(crate) fn no_class(&self, of_type: &str) -> Unfit {
        let mut names = self.classes.keys();
        let same = names.find(|name| name.rsplit('\\').next() == Some(of_type));
        let class = same.map_or("App\\Jobs\\..", |name| name);
        Unfit::NoClass {
            what: format!(
                "`{of_type}` names no PHP class: #[serde(rename = \"{}\")]",
                class.replace('\\', "\\\\")
            ),
        }
    }

    /// A class, or an error that names the nearest one.
    pub(super) fn class_to_make(&self, name: &ClassName) -> std::result::Result<&Class, Unfit> {
        if let Some(wrapper) = self.wrappers.get(name.as_str()) {
            return Ok(wrapper);
        }
        let known: OrMissing<&Class> = self.known_class(name);
        known.map_err(|missing| match self.nearest_class(name.as_str()) {
            Some(nearest) if nearest != name.as_str() => Unfit::NoClass {
                what: format!("the app has no class {name}; did you mean {nearest}?"),
            },
            _ => missing.into(),
        })
    }

    /// The object that PHP would write, with the properties that are given.
    ///
    /// Names are those of PHP's source; visibility, order and defaults are the class's. A property that is not given
    /// has its default, or stays uninitialised.
    ///
    /// # Errors
    ///
    /// [`Unfit`].
    pub fn object(&self, given: &Object) -> std::result::Result<Object, Unfit> {
        let class = self.class_to_make(&given.class)?;
        let version = self.version();
        let leaves_defaults_out =
            version.is_ok_and(|version| version.is_at_least(9, 4)) && class.serializes_models();
        let mut values = Vec::with_capacity(given.properties.len());
        for (key, value) in &given.properties {
            values.push((class.position(&given.class, key)?, value));
        }
        let mut object = Object::new(given.class.clone());
        for (position, property) in class.properties.iter().enumerate() {
            let of = values.iter().find(|(of, _)| *of == position);
            let value = match of {
                Some((_, value)) => Some(property.fit(&given.class, value)?),
                None => property.default.clone(),
            };
            let is_default = value.is_some() && value == property.default;
            let is_hidden = class.serializes_models() && property.is_hidden(&given.class);
            if let Some(value) = value
                && !is_hidden
                && !(is_default && leaves_defaults_out)
            {
                object = object.with(property.mark(), &property.name, value);
            }
        }
        Ok(object)
    }

    /// The command of a job: its [`object`](Self::object), with these properties set as well.
    ///
    /// A job with references keeps its properties where they are, because references count the values before them; so
    /// do those of Laravel's own classes that the manifest does not describe.
    ///
    /// # Errors
    ///
    /// [`Unfit`].
    pub fn command(
        &self,
        mut job: Object,
        edits: Vec<(&str, Value)>,
    ) -> std::result::Result<Made, Unfit> {
        let is_wrapper = Kind::of_class(&job.class) != Kind::Job
            && !self.wrappers.contains_key(job.class.as_str());
        let mut values = job.properties.iter().map(|(_, value)| value);
        if is_wrapper || values.any(Value::has_reference) {
            return edited(job, edits);
        }
        for (name, value) in edits {
            job.set(name, value);
        }
        let mut object = self.object(&job)?;
        self.fit_models(&mut object);
        let value = Value::Object(object);
        Ok(Made {
            bytes: value.to_bytes(),
            value,
        })
    }

    /// Writes models as the app's version does: with the name of their own connection if they say none, and before 9.26
    /// without the class of a collection.
    pub fn fit_models(&self, object: &mut Object) {
        let default = self
            .config
            .pointer("/database/default")
            .and_then(Json::as_str);
        for (_, value) in &mut object.properties {
            let Value::Object(model) = value else {
                continue;
            };
            let is_model = model.class.as_str().eq_ignore_ascii_case(MODEL_IDENTIFIER);
            let is_open = model.get("connection").is_some_and(Value::is_null);
            let Some(class) = model.get("class").and_then(Value::as_str) else {
                continue;
            };
            let of_class = self
                .models
                .get(class)
                .and_then(|model| model.connection.as_deref());
            let name = of_class.or(default).map(str::to_owned);
            if !is_model {
                continue;
            }
            if let Some(name) = name
                && is_open
            {
                model.set("connection", &*name);
            }
            if self
                .version()
                .is_ok_and(|version| !version.is_at_least(9, 26))
            {
                let is_it = |key: &Key| *key == Key::from("collectionClass");
                model.properties.retain(|(key, _)| !is_it(key));
            }
        }
    }

    /// Checks that objects of a class can be made of a struct with these fields.
    ///
    /// # Errors
    ///
    /// [`Unfit`]: the class is unknown or not queued, a field is no property, or a property without a default is no
    /// field.
    pub fn check_fields(
        &self,
        name: &ClassName,
        fields: &[&str],
    ) -> std::result::Result<(), Unfit> {
        let class = self.class_to_make(name)?;
        if !class.is_queued() {
            return Err(Unfit::NotQueued {
                class: name.clone(),
            });
        }
        let mut covered = Vec::with_capacity(fields.len());
        for field in fields {
            let key = Key::String(field.as_bytes().to_vec());
            covered.push(class.position(name, &key)?);
        }
        let properties = class.properties.iter().enumerate();
        let mut open = properties.filter(|(position, property)| {
            property.default.is_none() && !covered.contains(position)
        });
        match open.find(|(_, property)| !property.is_hidden(name)) {
            Some((_, property)) => Err(Unfit::Uncovered {
                class: name.clone(),
                property: property.name.clone(),
                is_set: class.constructor.sets.contains(&property.name),
            }),
            None => Ok(()),
        }
    }

    /// What the constructor of a class does, which does not run, beyond setting these properties.
    pub fn constructor_notes(&self, name: &ClassName, fields: &[&str]) -> Vec<String> {
        let Some(class) = self.class(name) else {
            return Vec::new();
        };
        let constructor = &class.constructor;
        let sets = constructor.sets.iter();
        let sets = sets.filter(|property| !fields.contains(&&***property));
        let sets = sets.map(|property| format!("its constructor sets `{property}`: give it"));
        let calls = constructor
            .calls
            .iter()
            .map(|call| format!("its constructor calls `{call}`: do what that does"));
        sets.chain(calls)
            .map(|note| format!("{name}: {note}, because constructors do not run here"))
            .collect()
    }
}

/// A command that is made.
#[derive(Debug, Clone, PartialEq)]
pub struct Made {
    /// The object.
    pub value: Value,
    /// The same, as PHP serializes it.
    pub bytes: Vec<u8>,
}

/// Sets properties in the text of a job.
fn edited(job: Object, edits: Vec<(&str, Value)>) -> std::result::Result<Made, Unfit> {
    let changes = edits
        .into_iter()
        .filter(|(name, value)| *job.get(name).unwrap_or(&Value::Null) != *value);
    let texts: Vec<_> = changes
        .map(|(name, value)| (name, value.to_bytes()))
        .collect();
    let texts: Vec<_> = texts
        .iter()
        .map(|(name, text)| (*name, text.as_slice()))
        .collect();
    let class = job.class.clone();
    let text = Value::Object(job).to_bytes();
    let edited = ObjectText::parse(&text).map_err(EditError::from);
    let made = edited.and_then(|text| {
        let bytes = text.with(&texts)?;
        let value = Value::from_bytes(&bytes)?;
        Ok(Made { value, bytes })
    });
    made.map_err(|error| Unfit::Edit {
        class,
        why: error.to_string(),
    })
}

impl Class {
    /// The position of a property among those of the class.
    fn position(&self, name: &ClassName, key: &Key) -> std::result::Result<usize, Unfit> {
        let bytes = match key {
            Key::String(bytes) => bytes.clone(),
            Key::Int(number) => number.to_string().into_bytes(),
        };
        let key = PropertyName::parse(&bytes);
        let wanted = String::from_utf8_lossy(key.name).into_owned();
        let found = |property: &Property| {
            let is_of = |class: &[u8]| property.class.as_bytes().eq_ignore_ascii_case(class);
            property.name == wanted
                && !matches!(key.visibility, Visibility::Private(class) if !is_of(class))
        };
        let mut properties = self.properties.iter();
        // A private property of a parent may have the name of one of the class's own.
        let own = self
            .properties
            .iter()
            .position(|property| found(property) && !property.is_hidden(name));
        let Some(position) = own.or_else(|| properties.position(found)) else {
            let names = self.properties.iter().map(|property| &*property.name);
            return Err(Unfit::Unknown {
                class: name.clone(),
                nearest: nearest(&wanted, names).map(str::to_owned),
                property: wanted,
            });
        };
        let property = &self.properties[position];
        if self.serializes_models() && property.is_hidden(name) {
            return Err(Unfit::Hidden {
                class: name.clone(),
                property: wanted,
                parent: property.class.clone(),
            });
        }
        Ok(position)
    }
}

impl Property {
    /// Whether it is private in a parent of this class.
    fn is_hidden(&self, class: &ClassName) -> bool {
        self.visibility == "private" && !self.class.eq_ignore_ascii_case(class.as_str())
    }

    fn mark(&self) -> Visibility<'_> {
        match &*self.visibility {
            "private" => Visibility::Private(self.class.as_bytes()),
            "protected" => Visibility::Protected,
            _ => Visibility::Public,
        }
    }

    /// The value as the property holds it: an int in a property of type float becomes one.
    fn fit(&self, class: &ClassName, value: &Value) -> std::result::Result<Value, Unfit> {
        let Some(type_name) = &self.type_name else {
            return Ok(value.clone());
        };
        let names: Vec<String> = type_name
            .trim_start_matches('?')
            .split(['|', '&', '(', ')'])
            .map(|name| name.trim_start_matches('\\').to_ascii_lowercase())
            .collect();
        let is_nullable = type_name.starts_with('?');
        let is = |wanted: &[&str]| names.iter().any(|name| wanted.contains(&&**name));
        let is_of_class = || names.iter().any(|name| !SCALAR.contains(&&**name));
        let fits = is(&["mixed"])
            || match value {
                Value::Null => is_nullable || is(&["null"]),
                Value::Bool(value) => is(&["bool", if *value { "true" } else { "false" }]),
                Value::Int(_) => is(&["int", "float"]),
                Value::Float(_) => is(&["float"]),
                Value::String(_) => is(&["string", "callable"]),
                Value::Array(_) => is(&["array", "iterable", "callable"]),
                Value::Object(_) | Value::Custom(_) | Value::Enum(_) => {
                    is(&["object", "iterable", "callable"]) || is_of_class()
                }
                // What they stand for is not looked up.
                Value::ObjectRef(_) | Value::VarRef(_) => true,
            };
        if !fits {
            return Err(Unfit::Type {
                class: class.clone(),
                property: self.name.clone(),
                type_name: type_name.clone(),
                found: value.kind_name().into_owned(),
            });
        }
        #[expect(clippy::cast_precision_loss, reason = "as PHP does it")]
        Ok(match value {
            Value::Int(value) if !is(&["int", "mixed"]) => Value::from(*value as f64),
            value => value.clone(),
        })
    }
}

/// Types that an object cannot satisfy.
const SCALAR: [&str; 11] = [
    "", "null", "bool", "true", "false", "int", "float", "string", "array", "void", "never",
];
