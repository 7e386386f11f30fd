//! A queued notification.

use serde::Deserialize;
use serde::de::{DeserializeOwned, Deserializer, Error};
use serde_json::{Map, Value};

use super::{NOTIFICATION, Twice, or_default, read, text};
use crate::handler::{ModelId, ModelIdentifier, ModelKey};

/// A queued notification (`SendQueuedNotifications`), with its recipients and its channel.
///
/// `N` reads the notification's own properties. Laravel queues one job for each
/// notifiable and channel. The results of `toMail()`, `toArray()` and similar
/// methods are made when PHP sends the notification, and are not in the job.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub struct Notification<N> {
    /// The notification.
    pub notification: N,
    /// The notification's id, the same for all channels of one notifiable; `None` also if the app keeps no text there.
    pub id: Option<String>,
    /// The requested language; `None` also if the app keeps no text there.
    pub locale: Option<String>,
    /// The channels, by name or class; one, unless the app built the job itself.
    pub channels: Vec<String>,
    /// The recipients.
    pub notifiables: Notifiables,
}

impl<N> Notification<N> {
    /// The channel, by name or class; the first, if the app built a job for several.
    pub fn channel(&self) -> Option<&str> {
        self.channels.first().map(String::as_str)
    }

    /// The route of an anonymous notifiable on this channel: a text, or another value given to
    /// `Notification::route`.
    pub fn route(&self, channel: &str) -> Option<&Value> {
        self.notifiables.route(channel)
    }
}

/// The recipients of a notification.
#[derive(Debug, Clone, PartialEq)]
pub enum Notifiables {
    /// Models; since Laravel 7.2.2 a single model is a collection, too.
    Models(ModelIdentifier),
    /// Objects contained in the job, mostly one.
    Objects(Vec<Notifiable>),
}

/// A recipient contained in the job.
#[derive(Debug, Clone, PartialEq)]
pub enum Notifiable {
    /// A recipient that has only routes (`Notification::route`).
    Anonymous(AnonymousNotifiable),
    /// An object of the app, in the forms of the job document. A value inside itself is `{"$ref":null}` there.
    Other(Value),
}

/// A notifiable that has only routes (`AnonymousNotifiable`).
#[derive(Debug, Clone, Default, PartialEq)]
pub struct AnonymousNotifiable {
    /// Routes by channel: a text, or an array such as address and name.
    pub routes: Map<String, Value>,
}

impl Notifiables {
    /// The models; `None` if the notifiables are objects.
    pub fn models(&self) -> Option<&ModelIdentifier> {
        match self {
            Self::Models(models) => Some(models),
            Self::Objects(_) => None,
        }
    }

    /// The keys of the models; empty if the notifiables are objects.
    pub fn model_keys(&self) -> &[ModelKey] {
        match self.models().map(|models| &models.id) {
            Some(ModelId::Single(key)) => std::slice::from_ref(key),
            Some(ModelId::Collection(keys)) => keys,
            Some(ModelId::Missing) | None => &[],
        }
    }

    /// The route of the first anonymous notifiable that has one on this channel.
    pub fn route(&self, channel: &str) -> Option<&Value> {
        let Self::Objects(objects) = self else {
            return None;
        };
        objects.iter().find_map(|object| match object {
            Notifiable::Anonymous(anonymous) => anonymous.routes.get(channel),
            Notifiable::Other(_) => None,
        })
    }
}

const ANONYMOUS: &str = "Illuminate\\Notifications\\AnonymousNotifiable";
const COLLECTION: &str = "Illuminate\\Support\\Collection";

impl<'de> Deserialize<'de> for Notifiables {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        if value.get("$model").is_some() {
            let models = ModelIdentifier::deserialize(value);
            return models.map(Self::Models).map_err(D::Error::custom);
        }
        let objects = match items(value) {
            Ok(items) => items,
            Err(single) => vec![single],
        };
        let objects = objects.into_iter().map(notifiable).collect();
        Ok(Self::Objects(objects))
    }
}

fn class_of(value: &Value) -> &str {
    value.get("$class").and_then(Value::as_str).unwrap_or("")
}

/// The items of a collection; any other value is returned as the error.
fn items(mut value: Value) -> Result<Vec<Value>, Value> {
    let list = if class_of(&value).eq_ignore_ascii_case(COLLECTION) {
        value.get_mut("items").map(Value::take).unwrap_or_default()
    } else if value.is_array() {
        value
    } else {
        return Err(value);
    };
    Ok(match list {
        Value::Array(items) => items,
        // A list whose keys have gaps.
        Value::Object(items) => items.into_iter().map(|(_, item)| item).collect(),
        _ => Vec::new(),
    })
}

fn notifiable(mut value: Value) -> Notifiable {
    if !class_of(&value).eq_ignore_ascii_case(ANONYMOUS) {
        return Notifiable::Other(value);
    }
    let routes = match value.get_mut("routes").map(Value::take) {
        Some(Value::Object(routes)) => routes,
        // Routes of channels `0`, `1`, ..: an array in PHP, a list in JSON.
        Some(Value::Array(routes)) => {
            let routes = routes.into_iter().enumerate();
            routes
                .map(|(channel, route)| (channel.to_string(), route))
                .collect()
        }
        _ => Map::new(),
    };
    Notifiable::Anonymous(AnonymousNotifiable { routes })
}

#[derive(Deserialize)]
struct Wrapper {
    notifiables: Notifiables,
    #[serde(default, deserialize_with = "or_default")]
    channels: Vec<String>,
}

/// Properties of Laravel's base class of notifications.
#[derive(Deserialize)]
struct Base {
    #[serde(default, deserialize_with = "text")]
    id: Option<String>,
    #[serde(default, deserialize_with = "text")]
    locale: Option<String>,
}

impl<'de, N: DeserializeOwned> Deserialize<'de> for Notification<N> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let make = |wrapper: Wrapper, Twice(notification, base): Twice<N, Base>| Self {
            notification,
            id: base.id,
            locale: base.locale,
            channels: wrapper.channels,
            notifiables: wrapper.notifiables,
        };
        read(deserializer, NOTIFICATION, make)
    }
}
