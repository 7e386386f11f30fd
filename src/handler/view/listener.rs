//! A queued event listener.

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, SeqAccess, Visitor};
use serde_json::Value;

use super::{LISTENER, Once, read};
use crate::handler::input::Nothing;

/// A queued listener (`CallQueuedListener`) and its event.
///
/// `E` reads the event: the first of the arguments that PHP calls the listener
/// with. For an event that is only a name, that is the first value it was fired
/// with; for a wildcard listener it is the name. The other arguments are in
/// [`arguments`](Self::arguments).
///
/// ```
/// use artisand::handler::{self, JobContext, view::Listener};
/// use artisand::Registry;
/// use serde::Deserialize;
///
/// #[derive(Deserialize)]
/// struct OrderShipped {
///     order: artisand::handler::ModelIdentifier,
/// }
///
/// async fn notify(job: Listener<OrderShipped>, _: JobContext) -> Result<(), std::io::Error> {
///     println!("{} for order {:?}", job.class, job.event.order.id);
///     Ok(())
/// }
///
/// let registry = Registry::new().with("notify", handler::function(notify));
/// ```
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Listener<E> {
    /// Listener class.
    pub class: String,
    /// Its method, mostly `handle`.
    pub method: String,
    /// The event.
    pub event: E,
    /// The remaining arguments of the method, in the forms of the job document. A value inside itself is
    /// `{"$ref":null}` there.
    pub arguments: Vec<Value>,
}

#[derive(Deserialize)]
struct Wrapper {
    class: String,
    #[serde(default)]
    method: Option<String>,
}

/// The event and the arguments after it.
struct Arguments<E>(E, Vec<Value>);

impl<'de, E: DeserializeOwned> Deserialize<'de> for Arguments<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ArgumentsVisitor<E>(PhantomData<E>);

        impl<'de, E: DeserializeOwned> Visitor<'de> for ArgumentsVisitor<E> {
            type Value = Arguments<E>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("the list of a listener's arguments")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Arguments<E>, A::Error> {
                let Some(event) = seq.next_element()? else {
                    return Ok(Arguments(E::deserialize(Nothing(PhantomData))?, Vec::new()));
                };
                let mut rest = Vec::new();
                while let Some(argument) = seq.next_element()? {
                    rest.push(argument);
                }
                Ok(Arguments(event, rest))
            }
        }

        deserializer.deserialize_seq(ArgumentsVisitor(PhantomData))
    }
}

impl<'de, E: DeserializeOwned> Deserialize<'de> for Listener<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |wrapper: Wrapper, Once(Arguments(event, arguments))| Self {
            class: wrapper.class.trim_start_matches('\\').to_owned(),
            method: wrapper.method.unwrap_or_else(|| "handle".to_owned()),
            event,
            arguments,
        };
        read(deserializer, LISTENER, make)
    }
}
