//! A broadcast event.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer};

use super::{BROADCAST, Twice, read, text};

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
    /// The socket that is excluded from the message (`toOthers()`); `None` also if the event's own property of that name
    /// is no text.
    pub socket: Option<String>,
    /// The id of a unique broadcast (Laravel 9.26 and later).
    pub unique_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Wrapper {
    #[serde(default, deserialize_with = "text")]
    unique_id: Option<String>,
}

/// Properties that `InteractsWithSockets` adds to an event.
#[derive(Deserialize)]
struct Base {
    #[serde(default, deserialize_with = "text")]
    socket: Option<String>,
}

impl<'de, E: DeserializeOwned> Deserialize<'de> for Broadcast<E> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |wrapper: Wrapper, Twice(event, base): Twice<E, Base>| Self {
            event,
            socket: base.socket,
            unique_id: wrapper.unique_id,
        };
        read(deserializer, BROADCAST, make)
    }
}
