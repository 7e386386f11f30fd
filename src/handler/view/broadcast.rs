//! A broadcast event.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::{BROADCAST, Twice, read};

/// A broadcast (`BroadcastEvent`, `UniqueBroadcastEvent`) and its event.
///
/// `E` reads the event. Channels, name and payload of the message are what
/// `broadcastOn()`, `broadcastAs()` and `broadcastWith()` return in PHP, and
/// are not in the job.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Broadcast<E> {
    /// The event.
    pub event: E,
    /// The socket that is excluded from the message (`toOthers()`).
    pub socket: Option<String>,
    /// The id of a unique broadcast (Laravel 9.26 and later).
    pub unique_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wrapper {
    #[serde(default)]
    unique_id: Option<Scalar>,
}

/// Properties that `InteractsWithSockets` adds to an event.
#[derive(Deserialize)]
struct Base {
    #[serde(default)]
    socket: Option<String>,
}

/// An id in PHP: text or a number.
struct Scalar(String);

impl<'de> Deserialize<'de> for Scalar {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        use serde::de::Error;
        match serde_json::Value::deserialize(deserializer)? {
            serde_json::Value::String(text) => Ok(Self(text)),
            serde_json::Value::Number(number) => Ok(Self(number.to_string())),
            _ => Err(D::Error::custom("expected text or a number")),
        }
    }
}

impl<'de, E: DeserializeOwned> Deserialize<'de> for Broadcast<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |wrapper: Wrapper, Twice(event, base): Twice<E, Base>| Self {
            event,
            socket: base.socket,
            unique_id: wrapper.unique_id.map(|id| id.0),
        };
        read(deserializer, BROADCAST, make)
    }
}
