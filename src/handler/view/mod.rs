//! Views: a job of one of Laravel's own kinds, with the wrapper's properties and the object inside.
//!
//! A view is the input of a handler's function: `async fn(job: Listener<OrderShipped>, ..)`.
//! It holds a type of your own that reads the event, the notification or the
//! mailable, and next to it the channel, the notifiables, the addresses. If the
//! job is of another kind than the view, the error names both.
//!
//! Only [`input`](super::input) can read views;
//! [`php::from_slice`](crate::php::from_slice) cannot.

use std::fmt;
use std::marker::PhantomData;

use serde::de::{self, DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, forward_to_deserialize_any};

mod broadcast;
mod command;
mod listener;
mod mailable;
mod notification;
mod string;

pub use broadcast::Broadcast;
pub use command::ArtisanCommand;
pub use listener::Listener;
pub use mailable::{
    Address, Attachment, Attachments, Content, DiskAttachment, Envelope, Mailable, RawAttachment,
};
pub use notification::{AnonymousNotifiable, Notifiable, Notifiables, Notification};
pub use string::StringJob;

use crate::payload::Kind;
use crate::php::loose;

/// The name by which a view asks serde for itself, and the kind of job that it views.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct View {
    /// The view's name, for messages.
    pub(super) name: &'static str,
    /// The kind of job.
    pub(super) kind: Kind,
    /// A struct name that no type outside of this crate has.
    mark: &'static str,
}

impl View {
    const fn new(name: &'static str, kind: Kind, mark: &'static str) -> Self {
        Self { name, kind, mark }
    }
}

const LISTENER: View = View::new("a `Listener`", Kind::Listener, "$artisand::Listener");
const NOTIFICATION: View = View::new(
    "a `Notification`",
    Kind::Notification,
    "$artisand::Notification",
);
const MAILABLE: View = View::new("a `Mailable`", Kind::Mailable, "$artisand::Mailable");
const BROADCAST: View = View::new("a `Broadcast`", Kind::Broadcast, "$artisand::Broadcast");
const COMMAND: View = View::new("an `ArtisanCommand`", Kind::Command, "$artisand::Command");
const STRING: View = View::new("a `StringJob`", Kind::String, "$artisand::String");
const ALL: [View; 6] = [LISTENER, NOTIFICATION, MAILABLE, BROADCAST, COMMAND, STRING];

/// The view that a type is, or `None`; found by asking the type to deserialize itself.
pub(super) fn asked_by<J: DeserializeOwned>() -> Option<View> {
    let Err(StructName(mark)) = J::deserialize(Probe) else {
        return None;
    };
    ALL.into_iter().find(|view| Some(view.mark) == mark)
}

/// A deserializer without data that records the struct name a type asks for.
struct Probe;

#[derive(Debug)]
struct StructName(Option<&'static str>);

impl fmt::Display for StructName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("there is nothing to read")
    }
}

impl std::error::Error for StructName {}

impl de::Error for StructName {
    fn custom<T: fmt::Display>(_: T) -> Self {
        Self(None)
    }
}

impl<'de> Deserializer<'de> for Probe {
    type Error = StructName;

    fn deserialize_any<V: Visitor<'de>>(self, _: V) -> Result<V::Value, StructName> {
        Err(StructName(None))
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        _: V,
    ) -> Result<V::Value, StructName> {
        Err(StructName(Some(name)))
    }

    forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit
        unit_struct seq tuple tuple_struct map struct enum identifier ignored_any
    }
}

/// Reads the parts of a view: the wrapper, and its content in as many types as the view asks for.
fn read<'de, D, W, S, V>(
    deserializer: D,
    view: View,
    make: impl FnOnce(W, S) -> V,
) -> Result<V, D::Error>
where
    D: Deserializer<'de>,
    W: Deserialize<'de>,
    S: Subject<'de>,
{
    struct PartsVisitor<W, S>(&'static str, PhantomData<(W, S)>);

    impl<'de, W: Deserialize<'de>, S: Subject<'de>> Visitor<'de> for PartsVisitor<W, S> {
        type Value = (W, S);

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            write!(f, "{} of a job, which `handler::input` gives", self.0)
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut parts: A) -> Result<(W, S), A::Error> {
            let wrapper = part(&mut parts)?;
            Ok((wrapper, S::read(&mut parts)?))
        }
    }

    let visitor = PartsVisitor(view.name, PhantomData);
    let (wrapper, subject) = deserializer.deserialize_newtype_struct(view.mark, visitor)?;
    Ok(make(wrapper, subject))
}

fn part<'de, T: Deserialize<'de>, A: SeqAccess<'de>>(parts: &mut A) -> Result<T, A::Error> {
    let none = || de::Error::custom("a view can be read by `handler::input` only");
    parts.next_element()?.ok_or_else(none)
}

/// The content of a wrapper, read into one or several types.
trait Subject<'de>: Sized {
    fn read<A: SeqAccess<'de>>(parts: &mut A) -> Result<Self, A::Error>;
}

/// Content that is read into one type.
struct Once<T>(T);

impl<'de, T: Deserialize<'de>> Subject<'de> for Once<T> {
    fn read<A: SeqAccess<'de>>(parts: &mut A) -> Result<Self, A::Error> {
        part(parts).map(Self)
    }
}

/// Content that is read into the handler's type, and into the properties of Laravel's base class.
struct Twice<T, Base>(T, Base);

impl<'de, T: Deserialize<'de>, Base: Deserialize<'de>> Subject<'de> for Twice<T, Base> {
    fn read<A: SeqAccess<'de>>(parts: &mut A) -> Result<Self, A::Error> {
        Ok(Self(part(parts)?, part(parts)?))
    }
}

/// Reads null as the default, as PHP means it.
fn or_default<'de, D: Deserializer<'de>, T: Deserialize<'de> + Default>(
    deserializer: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(deserializer)?.unwrap_or_default())
}

/// Reads text, or a number as text, from a property that an app may use for something else, which is then `None`.
#[expect(clippy::unnecessary_wraps, reason = "serde asks for it")]
fn text<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<String>, D::Error> {
    Ok(loose::string(deserializer).ok())
}

/// Bytes: a PHP string that need not be UTF-8.
#[derive(Default)]
pub(super) struct Bytes(pub(super) Vec<u8>);

impl<'de> Deserialize<'de> for Bytes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct BytesVisitor;

        impl Visitor<'_> for BytesVisitor {
            type Value = Bytes;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a string")
            }

            fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<Bytes, E> {
                Ok(Bytes(bytes.to_vec()))
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Bytes, E> {
                self.visit_bytes(text.as_bytes())
            }
        }

        deserializer.deserialize_bytes(BytesVisitor)
    }
}

#[cfg(test)]
mod tests;
