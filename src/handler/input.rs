//! The input of a handler's function: a type read from the subject of the job, or a view of the whole job.
//!
//! Laravel wraps queued objects: a listener's event, a notification with its
//! notifiables, a mailable. The handler's own type is read from what is inside
//! the wrapper: the event, the notification, the mailable, the parameters of a
//! command, the data of a string job. A job class has no wrapper, so the type is
//! read from the job itself. A view ([`view`](super::view)) also gives the
//! wrapper's properties.

use std::borrow::Cow;
use std::fmt;
use std::marker::PhantomData;

use serde::de::value::{MapDeserializer, SeqDeserializer};
use serde::de::{
    self, DeserializeOwned, DeserializeSeed, Deserializer, IgnoredAny, MapAccess, SeqAccess,
    Visitor,
};
use serde::forward_to_deserialize_any;

use super::JobContext;
use super::view::{self, Bytes};
use crate::payload::{self, Command, Data, Kind, Payload};
use crate::php::{self, PropertyScan};

/// An input that does not fit the handler's type.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InputError {
    /// The serialized object does not fit.
    #[error("the job does not fit the handler's input")]
    Php(#[source] php::Error),
    /// The data of a string job does not fit.
    #[error("the job's data does not fit the handler's input (line {line}, column {column})")]
    Json {
        /// Line in the data.
        line: usize,
        /// Column in the data.
        column: usize,
    },
    /// The handler takes a view of another kind of job.
    #[error(
        "the handler takes {view}, which views a {expected}, and the job is a {found}: map it to a handler for a {found}"
    )]
    Kind {
        /// The view.
        view: &'static str,
        /// The kind of job that the view expects.
        expected: Kind,
        /// The kind of job that was found.
        found: Kind,
    },
    /// The payload has no readable input.
    #[error(transparent)]
    Payload(payload::Error),
}

/// Reads a job's input into a type: a [view](super::view), or the subject of the job.
///
/// The subject is the object itself for a job class; the event of a listener (the
/// first of its arguments) or of a broadcast; the notification; the mailable; the
/// parameters of an artisan command; the data of a string job.
///
/// # Errors
///
/// The error names the property that does not fit and what was found.
pub fn input<J: DeserializeOwned>(context: &JobContext) -> Result<J, InputError> {
    read(context.payload())
}

/// Reads the job of a payload that is decrypted.
pub(crate) fn read<J: DeserializeOwned>(payload: &Payload) -> Result<J, InputError> {
    let source = Source::of(payload)?;
    let Some(view) = view::asked_by::<J>() else {
        return match &source {
            // No wrapper: one pass over the bytes mostly suffices.
            Source::Command {
                command,
                kind: Kind::Job | Kind::Closure | Kind::Batch,
                ..
            } => command.deserialize().map_err(InputError::Php),
            _ => source.subject(PhantomData::<J>),
        };
    };
    if source.kind() != view.kind {
        return Err(InputError::Kind {
            view: view.name,
            expected: view.kind,
            found: source.kind(),
        });
    }
    let parts = Parts {
        source: &source,
        given: 0,
    };
    J::deserialize(parts).map_err(|Failed(error)| error)
}

/// Where a job's input is read from.
enum Source<'a> {
    Command {
        command: Command,
        kind: Kind,
        /// The arguments of a listener, if they were serialized separately.
        arguments: Option<Vec<u8>>,
    },
    String {
        class: Box<str>,
        method: Box<str>,
        data: &'a str,
    },
}

impl<'a> Source<'a> {
    fn of(payload: &'a Payload) -> Result<Self, InputError> {
        let command = match (&payload.data, Command::of(payload)) {
            (Data::Command { .. }, Ok(Some(command))) => command,
            (_, Err(error)) => return Err(InputError::Payload(error)),
            (Data::Command { .. }, Ok(None)) => unreachable!("an object job has a command"),
            (Data::Json(data), Ok(_)) => {
                let (class, method) = payload::parts_of_string_job(&payload.job);
                return Ok(Self::String {
                    class: class.into(),
                    method: method.into(),
                    data: data.get(),
                });
            }
        };
        let kind = Kind::of_class(command.class());
        let arguments = match kind {
            Kind::Listener => old_arguments(command.as_bytes()),
            _ => None,
        };
        Ok(Self::Command {
            command,
            kind,
            arguments,
        })
    }

    fn kind(&self) -> Kind {
        match self {
            Self::Command { kind, .. } => *kind,
            Self::String { .. } => Kind::String,
        }
    }

    /// Reads the wrapper's own properties.
    fn wrapper<'s, S: DeserializeSeed<'s>>(&'s self, seed: S) -> Result<S::Value, InputError> {
        match self {
            Self::Command { command, .. } => whole(command.as_bytes(), seed),
            Self::String { class, method, .. } => {
                let names = [("class", &**class), ("method", &**method)];
                let names = MapDeserializer::<_, php::Error>::new(names.into_iter());
                seed.deserialize(names).map_err(InputError::Php)
            }
        }
    }

    /// Reads the subject of the job: the one argument that matters if there are several.
    fn subject<'s, S: DeserializeSeed<'s>>(&'s self, seed: S) -> Result<S::Value, InputError> {
        match self.kind() {
            Kind::Listener => self.inside(Nth { nth: 0, seed }),
            Kind::Command => self.inside(Nth { nth: 1, seed }),
            _ => self.inside(seed),
        }
    }

    /// Reads what is inside the wrapper: all arguments of a listener or a command.
    fn inside<'s, S: DeserializeSeed<'s>>(&'s self, seed: S) -> Result<S::Value, InputError> {
        let (command, kind) = match self {
            Self::Command {
                arguments: Some(arguments),
                ..
            } => return whole(arguments, seed),
            Self::Command { command, kind, .. } => (command.as_bytes(), *kind),
            Self::String { data, .. } => {
                let mut json = serde_json::Deserializer::from_str(data);
                let value = seed.deserialize(&mut json);
                return value.map_err(|error| InputError::Json {
                    line: error.line(),
                    column: error.column(),
                });
            }
        };
        match kind {
            Kind::Job | Kind::Closure | Kind::Batch | Kind::String => whole(command, seed),
            Kind::Listener | Kind::Command => pick(command, "data", seed),
            Kind::Notification => pick(command, "notification", seed),
            Kind::Mailable => pick(command, "mailable", seed),
            Kind::Broadcast => pick(command, "event", seed),
        }
    }
}

/// Reads all bytes as one value.
fn whole<'de, S: DeserializeSeed<'de>>(bytes: &'de [u8], seed: S) -> Result<S::Value, InputError> {
    let mut php = php::Deserializer::new(bytes);
    let value = seed.deserialize(&mut php).map_err(InputError::Php)?;
    php.end().map_err(InputError::Php)?;
    Ok(value)
}

/// Reads one property of an object.
fn pick<'de, S: DeserializeSeed<'de>>(
    bytes: &'de [u8],
    property: &'static str,
    seed: S,
) -> Result<S::Value, InputError> {
    whole(bytes, Property { property, seed })
}

/// The arguments of a listener that were serialized separately, a form that PHP still reads.
fn old_arguments(command: &[u8]) -> Option<Vec<u8>> {
    // Nearly all listeners have a list there: check for that without parsing.
    static DATA: PropertyScan = PropertyScan::public("data");
    if !DATA.may_be_string(command) {
        return None;
    }
    whole(
        command,
        Property {
            property: "data",
            seed: PhantomData::<Bytes>,
        },
    )
    .ok()
    .map(|bytes| bytes.0)
}

/// Reads one property of an object and skips the others.
struct Property<S> {
    property: &'static str,
    seed: S,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Property<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Property<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an object with a property `{}`", self.property)
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<S::Value, A::Error> {
        let mut seed = Some(self.seed);
        let mut value = None;
        while let Some(name) = map.next_key::<Cow<'de, str>>()? {
            match seed.take() {
                Some(seed) if name == self.property => value = Some(map.next_value_seed(seed)?),
                left => {
                    seed = left;
                    map.next_value::<IgnoredAny>()?;
                }
            }
        }
        value.ok_or_else(|| de::Error::missing_field(self.property))
    }
}

/// Reads one element of a list; reads [`Nothing`] if the list is shorter.
struct Nth<S> {
    nth: usize,
    seed: S,
}

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for Nth<S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, S: DeserializeSeed<'de>> Visitor<'de> for Nth<S> {
    type Value = S::Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of arguments")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<S::Value, A::Error> {
        let mut there = true;
        for _ in 0..self.nth {
            there = there && seq.next_element::<IgnoredAny>()?.is_some();
        }
        // The seed is still here afterwards if no element was read with it.
        let mut seed = Some(self.seed);
        let found = if there {
            seq.next_element_seed(OneSeed(&mut seed))?
        } else {
            None
        };
        while there && seq.next_element::<IgnoredAny>()?.is_some() {}
        match (found, seed) {
            (Some(value), _) => Ok(value),
            (None, Some(seed)) => seed.deserialize(Nothing(PhantomData)),
            (None, None) => Err(de::Error::custom(
                "a list ended in the middle of an element",
            )),
        }
    }
}

/// A seed that remains available if no element was read with it.
struct OneSeed<'s, S>(&'s mut Option<S>);

impl<'de, S: DeserializeSeed<'de>> DeserializeSeed<'de> for OneSeed<'_, S> {
    type Value = S::Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<S::Value, D::Error> {
        let seed = self.0.take().expect("a seed is used once");
        seed.deserialize(deserializer)
    }
}

/// Stands for an input that the job lacks: an empty map for types that read fields, otherwise null.
pub(super) struct Nothing<E>(pub(super) PhantomData<E>);

impl<'de, E: de::Error> Deserializer<'de> for Nothing<E> {
    type Error = E;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_unit()
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        visitor.visit_none()
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        visitor: V,
    ) -> Result<V::Value, E> {
        visitor.visit_newtype_struct(self)
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        MapDeserializer::<_, E>::new(std::iter::empty::<((), ())>()).deserialize_map(visitor)
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _: &'static str,
        _: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, E> {
        self.deserialize_map(visitor)
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, E> {
        SeqDeserializer::<_, E>::new(std::iter::empty::<()>()).deserialize_seq(visitor)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf unit
        unit_struct tuple tuple_struct enum identifier ignored_any
    }
}

/// Gives a view its parts as elements of a sequence: first the wrapper, then what is inside, as often as asked
/// for.
///
/// Each part is parsed from the bytes again: that is cheaper than building a tree, and references resolve
/// correctly.
struct Parts<'s> {
    source: &'s Source<'s>,
    given: usize,
}

/// Carries an [`InputError`] through serde's error type.
#[derive(Debug)]
struct Failed(InputError);

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Failed {}

impl de::Error for Failed {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self(InputError::Php(de::Error::custom(message)))
    }
}

impl<'de> Deserializer<'de> for Parts<'de> {
    type Error = Failed;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failed> {
        visitor.visit_seq(self)
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct newtype_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

impl<'s> SeqAccess<'s> for Parts<'s> {
    type Error = Failed;

    fn next_element_seed<S: DeserializeSeed<'s>>(
        &mut self,
        seed: S,
    ) -> Result<Option<S::Value>, Failed> {
        let source = self.source;
        self.given += 1;
        let value = match self.given {
            1 => source.wrapper(seed),
            _ => source.inside(seed),
        };
        value.map(Some).map_err(Failed)
    }
}
