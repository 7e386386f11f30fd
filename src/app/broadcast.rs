//! What a broadcast event publishes, as far as its bytes and the manifest say it.
//!
//! PHP asks the event for its channels, name and data when the job runs
//! (`broadcastOn`, `broadcastAs`, `broadcastWith`): code. The exporter reads
//! those methods that are one `return` of literals, properties and channels,
//! and here they are carried out. Everything else is a [`Missing`], which says
//! why PHP has to publish this event.
//!
//! Nothing here reads a row. A model in an event is known by its key; whoever
//! publishes has to see that its row is there ([`Published::models`]), since
//! PHP would read it.
//!
//! # Source
//!
//! `Illuminate\Broadcasting\BroadcastEvent::handle`,
//! `Illuminate\Broadcasting\Broadcasters\RedisBroadcaster::broadcast`;
//! docs/protocol/commands.md 16.

use std::collections::{BTreeMap, HashMap};

use serde::Deserialize;
use serde_json::Value as Json;

use super::manifest::{Class, Manifest, Part, PathStep, PropertyPath, Returned};
use super::subject::{Missing, Result, Subject, bytes_of, is_true, missing, plain};
use crate::payload::Version;
use crate::php::encode::{EncodeError, Encoder};
use crate::php::json::Graph;
use crate::php::{Array, ClassName, Key, Object, Value};
use crate::time::UnixSeconds;

const ANONYMOUS_EVENT: &str = "Illuminate\\Broadcasting\\AnonymousEvent";
const NOTIFICATION_CREATED: &str =
    "Illuminate\\Notifications\\Events\\BroadcastNotificationCreated";
const MODEL_EVENT: &str = "Illuminate\\Database\\Eloquent\\BroadcastableModelEventOccurred";
const ANONYMOUS_NOTIFIABLE: &str = "Illuminate\\Notifications\\AnonymousNotifiable";
const UNIQUE_BROADCAST_EVENT: &str = "Illuminate\\Broadcasting\\UniqueBroadcastEvent";
const MODEL_IDENTIFIER: &str = "Illuminate\\Contracts\\Database\\ModelIdentifier";
const MANAGER: &str = "Illuminate\\Broadcasting\\BroadcastManager";

/// Most rows that are looked for before an event is published.
const MOST_MODELS: usize = 32;

/// Laravel's channels, and what their constructors put before the name.
const CHANNELS: [(&str, &str); 4] = [
    ("Channel", ""),
    ("PrivateChannel", "private-"),
    ("PresenceChannel", "presence-"),
    ("EncryptedPrivateChannel", "private-encrypted-"),
];

/// What the exporter says of a broadcast event, or of a notification.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Facts {
    /// What its methods return; null for one that PHP has to be asked for.
    pub methods: BTreeMap<String, Option<Shape>>,
    /// Its public properties in the order in which they are published; none if PHP has to be asked for one.
    pub payload: Option<Vec<String>>,
    /// Public properties of classes that properties are declared to have, and that have no code for their JSON.
    pub values: BTreeMap<String, Vec<String>>,
    /// A method because of which PHP has to run the event.
    pub code: Option<String>,
}

impl Facts {
    /// Why PHP has to publish every event of this class; `None` if it depends on the event.
    pub fn needs_php(&self) -> Option<String> {
        if let Some(method) = &self.code {
            return Some(has_code(method));
        }
        let asked = [
            "broadcastOn",
            "broadcastAs",
            "broadcastWith",
            "broadcastConnections",
        ];
        let code = asked
            .iter()
            .find(|name| matches!(self.methods.get(**name), Some(None)));
        match code {
            Some(method) => Some(is_code(method)),
            None if self.payload.is_none() && !self.methods.contains_key("broadcastWith") => {
                Some(COMPUTED.to_owned())
            }
            None => None,
        }
    }
}

fn has_code(method: &str) -> String {
    format!("it has a method `{method}()`, which is PHP code")
}

fn is_code(method: &str) -> String {
    format!(
        "its `{method}()` is PHP code: more than one `return` of literals, properties and channels"
    )
}

const COMPUTED: &str =
    "one of its public properties is static or computed, and only PHP knows its value";

/// What a method returns.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Shape {
    /// A literal, a property, or a text of those.
    Value(Returned),
    /// An array.
    Items(Vec<Item>),
    /// A new channel.
    Channel(NewChannel),
}

/// An entry of an array.
#[derive(Debug, Clone, Deserialize)]
pub struct Item {
    /// Its key; null where none is written.
    pub key: Json,
    /// Its value.
    pub value: Shape,
}

/// `new PrivateChannel(..)` and its like.
#[derive(Debug, Clone, Deserialize)]
pub struct NewChannel {
    /// Laravel's class, without its namespace.
    pub class: String,
    /// What is given to it.
    pub name: Returned,
}

/// What is to be published.
#[derive(Debug, Clone, PartialEq)]
pub struct Published {
    /// In this order.
    pub messages: Vec<Message>,
    /// Models whose rows PHP would have read before.
    pub models: Vec<ModelRow>,
}

/// One text for several channels of one broadcast connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// The broadcast connection; the default one if none.
    pub connection: Option<String>,
    /// Names of the channels, without the app's prefix.
    pub channels: Vec<Vec<u8>>,
    /// The text.
    pub json: Vec<u8>,
}

/// A row that has to be there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelRow {
    /// Class of the model, or its morph alias.
    pub class: String,
    /// Its key: an int or text.
    pub key: RowKey,
    /// Database connection; the default one if none.
    pub connection: Option<String>,
}

/// Key of a row.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum RowKey {
    /// A number.
    Int(i64),
    /// Text.
    Text(String),
}

/// Finds out what PHP would publish for this `BroadcastEvent`, as the Redis broadcaster writes it.
///
/// # Errors
///
/// [`Missing`], if only PHP knows.
pub fn published(
    manifest: Option<&Manifest>,
    version: Version,
    wrapper: &Value,
) -> Result<Published> {
    let graph = Graph::new(wrapper);
    let wrapper = wrapper.as_object();
    let event = wrapper.and_then(|wrapper| graph.property(wrapper, "event"));
    let (Some(wrapper), Some(Value::Object(event))) = (wrapper, event) else {
        return Err(missing("the job", "it is no broadcast event"));
    };
    let name = event.class.as_str();
    let is_anonymous = event.class == *ANONYMOUS_EVENT;
    if event.class == *MODEL_EVENT {
        return Err(missing(
            name,
            "its data is the row of a model as PHP makes it",
        ));
    }
    if manifest.is_none() && (!is_anonymous || wrapper.class == *UNIQUE_BROADCAST_EVENT) {
        return Err(missing(
            name,
            "its channels and data are said by PHP code, and there is no manifest; write it with `artisand manifest`",
        ));
    }
    let surroundings = manifest.map(|manifest| surroundings(manifest, name));
    let surroundings = surroundings.transpose()?;
    let parts = match manifest {
        _ if is_anonymous => anonymous(event, &graph)?,
        Some(manifest) => {
            let subject = Subject {
                manifest,
                object: event,
                graph: &graph,
                version,
                // Of no importance here.
                now: UnixSeconds(0),
            };
            if event.class == *NOTIFICATION_CREATED {
                notification(&subject)?
            } else {
                Asked::of(subject)?.event()?
            }
        }
        None => unreachable!("looked at above"),
    };
    let no_dates = Vec::new();
    let encoding = Encoding {
        event: name,
        graph: &graph,
        dates: surroundings.map_or(&no_dates, |known| &known.dates),
        floats: surroundings.is_none_or(|known| known.floats),
    };
    Ok(Published {
        messages: parts.messages(version, &encoding)?,
        models: models(manifest, name, event, &graph)?,
    })
}

/// What the app's PHP does with what is published.
fn surroundings<'m>(
    manifest: &'m Manifest,
    event: &str,
) -> Result<&'m super::manifest::Broadcasting> {
    let Some(known) = &manifest.broadcasting else {
        let what = "the manifest does not say how the app broadcasts; write it anew with `artisand manifest`";
        return Err(missing(event, what));
    };
    if known.manager.as_deref() != Some(MANAGER) {
        let manager = known.manager.as_deref().unwrap_or("none that is known");
        let what = format!("the app's broadcast manager is not Laravel's but {manager}");
        return Err(missing(event, &what));
    }
    if known.drivers.iter().any(|driver| driver == "redis") {
        let what = "the app has a broadcast driver `redis` of its own (`Broadcast::extend`)";
        return Err(missing(event, what));
    }
    Ok(known)
}

/// What the event says.
struct Parts<'a> {
    /// Objects whose JSON is known.
    values: Option<&'a BTreeMap<String, Vec<String>>>,
    name: Vec<u8>,
    channels: Array,
    payload: Array,
    connections: Vec<Option<String>>,
}

struct Encoding<'a> {
    event: &'a str,
    graph: &'a Graph<'a>,
    dates: &'a [String],
    floats: bool,
}

impl Parts<'_> {
    fn messages(&self, version: Version, encoding: &Encoding<'_>) -> Result<Vec<Message>> {
        if self.channels.pairs.is_empty() {
            return Ok(Vec::new());
        }
        let mut messages = Vec::new();
        for connection in &self.connections {
            let (channels, payload) = if version.is_at_least(11, 38) {
                self.of_connection(connection.as_deref(), encoding.graph)
            } else {
                (self.channels.clone(), self.payload.clone())
            };
            let channels = channels
                .values()
                .map(|channel| channel_name(encoding, encoding.graph.resolve(channel)));
            let channels: Vec<Vec<u8>> = channels.collect::<Result<_>>()?;
            if channels.is_empty() {
                continue;
            }
            messages.push(Message {
                connection: connection.clone(),
                json: self.json(&payload, encoding)?,
                channels,
            });
        }
        Ok(messages)
    }

    /// What is meant for one connection only.
    ///
    /// # Source
    ///
    /// `BroadcastEvent::getConnectionChannels`, `getConnectionPayload`, since 11.38.
    fn of_connection(&self, connection: Option<&str>, graph: &Graph<'_>) -> (Array, Array) {
        let key = connection.unwrap_or_default().as_bytes();
        let part = |whole: &Array| {
            let part = whole.get(key).map(|value| resolved(graph, value));
            match part {
                Some(Value::Array(part)) => Some(part),
                _ => None,
            }
        };
        let channels = part(&self.channels).unwrap_or_else(|| self.channels.clone());
        let Some(mut payload) = part(&self.payload) else {
            return (channels, self.payload.clone());
        };
        let socket = self.payload.get(b"socket");
        if let Some(socket) = socket.filter(|socket| !resolved(graph, socket).is_null()) {
            set(
                &mut payload,
                Key::String(b"socket".to_vec()),
                socket.clone(),
            );
        }
        (channels, payload)
    }

    /// `{"event":..,"data":..,"socket":..}`; the data keeps its own `socket`.
    fn json(&self, payload: &Array, encoding: &Encoding<'_>) -> Result<Vec<u8>> {
        let graph = encoding.graph;
        let socket = payload.get(b"socket").cloned().unwrap_or(Value::Null);
        let mut encoder = Encoder::new(graph, encoding.dates).with_floats(encoding.floats);
        if let Some(values) = self.values {
            encoder = encoder.with_values(values);
        }
        let mut encode = || {
            encoder.raw("{\"event\":");
            encoder.string(&self.name)?;
            encoder.raw(",\"data\":");
            encoder.array(payload, 1)?;
            encoder.raw(",\"socket\":");
            encoder.value(&socket, 1)?;
            encoder.raw("}");
            Ok(())
        };
        let done: std::result::Result<(), EncodeError> = encode();
        match done {
            Ok(()) => Ok(encoder.finish()),
            Err(error) => Err(missing(encoding.event, &format!("its data: {error}"))),
        }
    }
}

fn resolved(graph: &Graph<'_>, value: &Value) -> Value {
    // What a reference leads to outlives this call, the reference itself may not.
    match value {
        Value::ObjectRef(_) | Value::VarRef(_) => graph.resolved(value),
        value => value.clone(),
    }
}

fn channel_name(encoding: &Encoding<'_>, channel: &Value) -> Result<Vec<u8>> {
    let name = match channel {
        Value::Object(object) => {
            let namespace = "Illuminate\\Broadcasting\\";
            let own = object.class.as_str();
            let is_ours = own
                .get(..namespace.len())
                .is_some_and(|start| start.eq_ignore_ascii_case(namespace))
                && CHANNELS
                    .iter()
                    .any(|(class, _)| own[namespace.len()..].eq_ignore_ascii_case(class));
            let name = is_ours.then(|| object.get("name")).flatten();
            name.map(|name| resolved(encoding.graph, name))
        }
        other => Some(other.clone()),
    };
    match name {
        Some(Value::String(name)) => Ok(name),
        Some(Value::Int(name)) => Ok(name.to_string().into_bytes()),
        _ => Err(missing(
            encoding.event,
            &format!(
                "one of its channels is {}, and only PHP knows the name of that",
                channel.kind_name()
            ),
        )),
    }
}

/// An event whose bytes say it all.
fn anonymous(event: &Object, graph: &Graph<'_>) -> Result<Parts<'static>> {
    let property = |name: &str| {
        let found = event.get(name).map(|value| resolved(graph, value));
        found.ok_or_else(|| {
            missing(
                event.class.as_str(),
                &format!("its property `{name}` is not in the bytes"),
            )
        })
    };
    let name = property("name")?;
    let name = match &name {
        Value::String(text) if is_true(&name) => text.clone(),
        Value::Null | Value::String(_) => b"AnonymousEvent".to_vec(),
        other => return Err(unfit(event.class.as_str(), "its name", other)),
    };
    let Value::Array(payload) = property("payload")? else {
        return Err(missing(event.class.as_str(), "its payload is no array"));
    };
    let socket = property("socket").unwrap_or(Value::Null);
    Ok(Parts {
        values: None,
        name,
        channels: wrapped(property("channels")?),
        payload: merged(payload, [("socket", socket)]),
        connections: connections(
            event.class.as_str(),
            graph,
            property("broadcastConnection")?,
        )?,
    })
}

fn unfit(event: &str, what: &str, found: &Value) -> Missing {
    let found = found.kind_name();
    missing(
        event,
        &format!("{what} is {found}, and only PHP knows what that means there"),
    )
}

fn connections(event: &str, graph: &Graph<'_>, value: Value) -> Result<Vec<Option<String>>> {
    let Value::Array(array) = value else {
        return Err(unfit(
            event,
            "what its `broadcastConnections()` returns",
            &value,
        ));
    };
    let one = |value: &Value| match resolved(graph, value) {
        Value::Null => Ok(None),
        Value::String(name) => String::from_utf8(name)
            .map(Some)
            .map_err(|_| missing(event, "the name of a broadcast connection is not UTF-8")),
        other => Err(unfit(event, "a broadcast connection", &other)),
    };
    array.values().map(one).collect()
}

/// `Arr::wrap`
fn wrapped(value: Value) -> Array {
    match value {
        Value::Null => Array::default(),
        Value::Array(array) => array,
        other => Array::from_iter([other]),
    }
}

/// Sets a value where the key stands, or at the end.
fn set(array: &mut Array, key: Key, value: Value) {
    match array.pairs.iter_mut().find(|(known, _)| *known == key) {
        Some((_, slot)) => *slot = value,
        None => array.pairs.push((key, value)),
    }
}

/// `array_merge` with texts as keys: the keys that are numbers are counted anew.
fn merged<const N: usize>(array: Array, more: [(&str, Value); N]) -> Array {
    let mut merged = Array::default();
    let mut places: HashMap<Key, usize> = HashMap::new();
    let mut next = 0;
    let more = more
        .into_iter()
        .map(|(key, value)| (Key::String(key.as_bytes().to_vec()), value));
    for (key, value) in array.pairs.into_iter().chain(more) {
        let key = match key {
            Key::String(text) if Array::int_key(&text).is_none() => Key::String(text),
            Key::String(_) | Key::Int(_) => {
                next += 1;
                Key::Int(next - 1)
            }
        };
        if let Some(place) = places.get(&key) {
            merged.pairs[*place].1 = value;
        } else {
            places.insert(key.clone(), merged.pairs.len());
            merged.pairs.push((key, value));
        }
    }
    merged
}

/// An object whose class says something about broadcasts.
struct Asked<'a> {
    subject: Subject<'a>,
    class: &'a Class,
    facts: &'a Facts,
}

impl<'a> Asked<'a> {
    fn of(subject: Subject<'a>) -> Result<Self> {
        let class = subject.class()?;
        let Some(facts) = &class.broadcast else {
            let what = "the manifest does not say how it is broadcast; write it anew with `artisand manifest`";
            return Err(subject.missing(what));
        };
        if let Some(method) = &facts.code {
            return Err(subject.missing(&has_code(method)));
        }
        Ok(Self {
            subject,
            class,
            facts,
        })
    }

    fn event(&self) -> Result<Parts<'a>> {
        let name = match self.method("broadcastAs")? {
            None => self.subject.name().as_bytes().to_vec(),
            Some(name) => self.text("broadcastAs", name)?,
        };
        let channels = self.method("broadcastOn")?;
        let channels = channels.ok_or_else(|| self.subject.missing("it has no `broadcastOn()`"))?;
        let connections = match self.method("broadcastConnections")? {
            None => vec![None],
            Some(value) => connections(self.subject.name(), self.subject.graph, value)?,
        };
        Ok(Parts {
            values: Some(&self.facts.values),
            name,
            channels: wrapped(channels),
            payload: self.payload()?,
            connections,
        })
    }

    fn text(&self, method: &str, value: Value) -> Result<Vec<u8>> {
        match value {
            Value::String(text) => Ok(text),
            other => Err(unfit(
                self.subject.name(),
                &format!("what its `{method}()` returns"),
                &other,
            )),
        }
    }

    /// What a method returns; `None` if there is none of this name.
    fn method(&self, name: &str) -> Result<Option<Value>> {
        match self.facts.methods.get(name) {
            None => Ok(None),
            Some(Some(shape)) => self.shape(name, shape).map(Some),
            Some(None) => Err(self.subject.missing(&is_code(name))),
        }
    }

    fn shape(&self, method: &str, shape: &Shape) -> Result<Value> {
        match shape {
            Shape::Value(returned) => self.returned(method, returned),
            Shape::Items(items) => {
                let mut array = Array::default();
                let mut next = 0;
                for Item { key, value } in items {
                    let value = self.shape(method, value)?;
                    let key = match key {
                        Json::Null => Key::Int(next),
                        Json::String(text) => match Array::int_key(text.as_bytes()) {
                            Some(int) => Key::Int(int),
                            None => Key::String(text.as_bytes().to_vec()),
                        },
                        key => Key::Int(key.as_i64().ok_or_else(|| self.odd(method))?),
                    };
                    if let Key::Int(key) = key {
                        next = next.max(key.saturating_add(1));
                    }
                    set(&mut array, key, value);
                }
                Ok(Value::Array(array))
            }
            Shape::Channel(new) => {
                let class = CHANNELS.iter().find(|(class, _)| *class == new.class);
                let (class, prefix) = class.ok_or_else(|| self.odd(method))?;
                let name = self.returned(method, &new.name)?;
                let text = bytes_of(&name).ok_or_else(|| {
                    unfit(
                        self.subject.name(),
                        "the name of one of its channels",
                        &name,
                    )
                })?;
                let name = [prefix.as_bytes(), &text].concat();
                let class = ClassName::new(format!("Illuminate\\Broadcasting\\{class}"));
                let class = class.ok_or_else(|| self.odd(method))?;
                Ok(Value::Object(
                    Object::new(class).public("name", Value::String(name)),
                ))
            }
        }
    }

    fn odd(&self, method: &str) -> Missing {
        self.subject.missing(&format!(
            "the manifest says something of its `{method}()` that this version does not know"
        ))
    }

    fn returned(&self, method: &str, returned: &Returned) -> Result<Value> {
        let mut values = returned.parts.iter().map(|part| self.part(method, part));
        if !returned.text {
            return values.next().unwrap_or_else(|| Err(self.odd(method)));
        }
        let mut text = Vec::new();
        for value in values {
            let value = value?;
            let bytes = bytes_of(&value);
            text.extend(bytes.ok_or_else(|| {
                self.subject.missing(&format!(
                    "its `{method}()` makes a text of {}, which is PHP's",
                    value.kind_name()
                ))
            })?);
        }
        Ok(Value::String(text))
    }

    fn part(&self, method: &str, part: &Part) -> Result<Value> {
        match part {
            Part::Literal(value) => plain(value).ok_or_else(|| self.odd(method)),
            Part::Property(name) => self.property(name, part),
            Part::Path(path) => self.path(path),
        }
    }

    fn property(&self, name: &str, part: &Part) -> Result<Value> {
        let found = self.subject.part(self.class, part);
        let found = found.map(|value| resolved(self.subject.graph, &value));
        found.ok_or_else(|| {
            self.subject
                .missing(&format!("the value of its property `{name}` is not known"))
        })
    }

    /// A value inside a property.
    fn path(&self, path: &PropertyPath) -> Result<Value> {
        let mut value = self.property(&path.of, &Part::Property(path.of.clone()))?;
        for step in &path.steps {
            let inner = match (step, &value) {
                (PathStep::Property(name), Value::Object(object)) => self.inside(object, name),
                (PathStep::Key(Json::String(key)), Value::Array(array)) => {
                    array.get(key.as_bytes()).cloned()
                }
                (PathStep::Key(key), Value::Array(array)) => {
                    let key = key.as_i64().map(|key| key.to_string());
                    key.and_then(|key| array.get(key.as_bytes()).cloned())
                }
                _ => None,
            };
            let found = value.kind_name();
            value = inner
                .map(|value| resolved(self.subject.graph, &value))
                .ok_or_else(|| {
                    self.subject.missing(&format!(
                        "what it takes from its property `{}`, {found}, only PHP can take",
                        path.of
                    ))
                })?;
        }
        Ok(value)
    }

    /// A property of an object that has no code for it, or the key of a model.
    fn inside(&self, object: &Object, name: &str) -> Option<Value> {
        let is_plain =
            object.class == *"stdClass" || self.facts.values.contains_key(object.class.as_str());
        if is_plain {
            // By its name as it stands: others are not public.
            let mut properties = object.properties.iter();
            let found = properties
                .find(|(key, _)| matches!(key, Key::String(key) if key == name.as_bytes()));
            return found.map(|(_, value)| value.clone());
        }
        let model = self.model(object)?;
        let (_, facts) = model;
        let id = resolved(self.subject.graph, object.get("id")?);
        let is_key = facts.key.as_deref().unwrap_or("id") == name;
        let has_type = match (&id, facts.key_type.as_deref()) {
            (Value::Int(_), Some("int")) => facts.incrementing,
            (Value::String(_), Some("string")) => true,
            _ => false,
        };
        (is_key && has_type && facts.pivot.is_none()).then_some(id)
    }

    /// The model that an object stands for, by its class.
    fn model(&self, object: &Object) -> Option<(&'a str, &'a super::manifest::Model)> {
        if object.class != *MODEL_IDENTIFIER {
            return None;
        }
        let class = resolved(self.subject.graph, object.get("class")?);
        model(self.subject.manifest, class.as_str()?)
    }

    fn payload(&self) -> Result<Array> {
        let socket = || self.visible("socket").unwrap_or(Value::Null);
        if let Some(with) = self.method("broadcastWith")?
            && !with.is_null()
        {
            let Value::Array(with) = with else {
                let what = "what its `broadcastWith()` returns";
                return Err(unfit(self.subject.name(), what, &with));
            };
            return Ok(merged(with, [("socket", socket())]));
        }
        let Some(names) = &self.facts.payload else {
            return Err(self.subject.missing(COMPUTED));
        };
        let mut payload = Array::default();
        for name in names.iter().filter(|name| *name != "broadcastQueue") {
            let Some(value) = self.visible(name) else {
                return Err(self.subject.missing(&format!(
                    "its property `{name}` has no value, which PHP treats as an error"
                )));
            };
            if let Value::Object(object) = &value
                && object.class == *MODEL_IDENTIFIER
            {
                return Err(self.subject.missing(&format!(
                    "its public property `{name}` is a model, and only PHP knows its data; a `broadcastWith()` that returns what is needed would do"
                )));
            }
            payload
                .pairs
                .push((Key::String(name.as_bytes().to_vec()), value));
        }
        Ok(payload)
    }

    /// A public property: in the bytes, or its default.
    fn visible(&self, name: &str) -> Option<Value> {
        let written = self.subject.written(name).cloned();
        written.or_else(|| self.class.default(name))
    }
}

/// A model by its class or morph alias.
fn model<'m>(manifest: &'m Manifest, named: &str) -> Option<(&'m str, &'m super::manifest::Model)> {
    let found = manifest.models.get_key_value(named).or_else(|| {
        let mut all = manifest.models.iter();
        all.find(|(_, model)| model.morph_class.as_deref() == Some(named))
    });
    found.map(|(class, model)| (class.as_str(), model))
}

/// The models in an event whose rows PHP would read, and fail without.
fn models(
    manifest: Option<&Manifest>,
    event: &str,
    object: &Object,
    graph: &Graph<'_>,
) -> Result<Vec<ModelRow>> {
    let mut found: Vec<ModelRow> = Vec::new();
    let mut open: Vec<&Value> = object.properties.iter().map(|(_, value)| value).collect();
    while let Some(value) = open.pop() {
        match value {
            Value::Array(array) => open.extend(array.values()),
            Value::Object(object) if object.class == *MODEL_IDENTIFIER => {
                found.extend(row(manifest, event, object, graph)?);
                if found.len() > MOST_MODELS {
                    return Err(missing(
                        event,
                        "it holds too many models to look for their rows",
                    ));
                }
            }
            Value::Object(object) => open.extend(object.properties.iter().map(|(_, value)| value)),
            _ => {}
        }
    }
    Ok(found)
}

fn row(
    manifest: Option<&Manifest>,
    event: &str,
    object: &Object,
    graph: &Graph<'_>,
) -> Result<Option<ModelRow>> {
    let property = |name: &str| match object.get(name) {
        Some(value) => resolved(graph, value),
        None => Value::Null,
    };
    let key = match property("id") {
        // Those of a collection that are gone are left out.
        Value::Array(_) => return Ok(None),
        Value::Int(key) => RowKey::Int(key),
        Value::String(key) => match String::from_utf8(key) {
            Ok(key) => RowKey::Text(key),
            Err(_) => return Err(missing(event, "the key of a model in it is not UTF-8")),
        },
        other => return Err(unfit(event, "the key of a model in it", &other)),
    };
    let class = property("class");
    let class = class.as_str().unwrap_or_default();
    if manifest
        .and_then(|manifest| model(manifest, class))
        .is_none()
    {
        return Err(missing(
            event,
            &format!(
                "the manifest does not have the model {class}; write it anew with `artisand manifest`"
            ),
        ));
    }
    Ok(Some(ModelRow {
        class: class.to_owned(),
        key,
        connection: property("connection").as_str().map(str::to_owned),
    }))
}

/// What is published of a notification (channel `broadcast`).
///
/// # Source
///
/// `Illuminate\Notifications\Events\BroadcastNotificationCreated`.
fn notification<'a>(event: &Subject<'a>) -> Result<Parts<'a>> {
    let graph = event.graph;
    let part = |name: &str| graph.property(event.object, name);
    let Some(Value::Object(object)) = part("notification") else {
        return Err(event.missing("it has no notification"));
    };
    let asked = Asked::of(Subject { object, ..*event })?;
    let notifiable = part("notifiable").unwrap_or(&Value::Null);
    let is_anonymous =
        matches!(notifiable, Value::Object(object) if object.class == *ANONYMOUS_NOTIFIABLE);
    let has_name = asked.facts.methods.contains_key("broadcastAs");
    if event.since(9, 0) && !event.since(10, 0) && (is_anonymous || has_name) {
        let what = "whether Laravel 9 asks the notification for its name, or its receiver for a channel, depends on the release";
        return Err(event.missing(what));
    }
    let name = if event.since(10, 0) && has_name {
        let name = asked.method("broadcastAs")?.unwrap_or(Value::Null);
        asked.text("broadcastAs", name)?
    } else {
        NOTIFICATION_CREATED.as_bytes().to_vec()
    };
    let payload = match asked.method("broadcastWith")? {
        Some(Value::Array(payload)) => payload,
        Some(other) => {
            return Err(unfit(
                asked.subject.name(),
                "what its `broadcastWith()` returns",
                &other,
            ));
        }
        None => {
            let data = match part("data") {
                Some(Value::Array(data)) => data.clone(),
                None => Array::default(),
                Some(other) => return Err(unfit(event.name(), "its data", other)),
            };
            let kind = match asked.method("broadcastType")? {
                Some(kind) => kind,
                None => Value::from(asked.subject.name()),
            };
            let id = asked.visible("id").unwrap_or(Value::Null);
            merged(data, [("id", id), ("type", kind)])
        }
    };
    let socket = event.written("socket").cloned().unwrap_or(Value::Null);
    Ok(Parts {
        values: Some(&asked.facts.values),
        name,
        channels: notification_channels(&asked, notifiable, is_anonymous)?,
        payload: merged(payload, [("socket", socket)]),
        connections: vec![None],
    })
}

fn notification_channels(
    asked: &Asked<'_>,
    notifiable: &Value,
    is_anonymous: bool,
) -> Result<Array> {
    let graph = asked.subject.graph;
    let route = match notifiable {
        Value::Object(object) if is_anonymous && asked.subject.since(10, 0) => {
            let routes = object.get("routes").map(|routes| resolved(graph, routes));
            let routes = routes.as_ref().and_then(Value::as_array);
            let route = routes.and_then(|routes| routes.get(b"broadcast"));
            route.map(|route| resolved(graph, route))
        }
        _ => None,
    };
    let said = match route.filter(is_true) {
        Some(route) => Some(route),
        None => asked.method("broadcastOn")?,
    };
    if let Some(channels) = said.filter(is_true) {
        return Ok(wrapped(channels));
    }
    let model = match notifiable {
        Value::Object(object) => asked.model(object).zip(object.get("id")),
        _ => None,
    };
    let Some(((class, facts), id)) = model else {
        return Err(asked.subject.missing(&format!(
            "its receiver is {}, and only PHP knows the channel of that",
            notifiable.kind_name()
        )));
    };
    if facts.receives_broadcasts_on != Some(false) {
        return Err(asked.subject.missing(&format!(
            "its receiver has a method `receivesBroadcastNotificationsOn()`, or the manifest does not know whether {class} has one"
        )));
    }
    let id = bytes_of(&resolved(graph, id))
        .ok_or_else(|| asked.subject.missing("its receiver has several keys"))?;
    let name = format!("private-{}.", class.replace('\\', "."));
    Ok(Array::from_iter([Value::String(
        [name.as_bytes(), &id].concat(),
    )]))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::json;

    use super::*;

    fn channel(name: &str) -> Json {
        json!({"channel": {"class": "PrivateChannel", "name": {"text": false, "parts": [{"literal": name}]}}})
    }

    /// A manifest with the event `E`.
    fn manifest(laravel: &str, event: &Json, more: &Json) -> Manifest {
        let mut json = json!({
            "artisand": 1, "laravel": laravel, "generated_at": 0,
            "paths": {"base": "/app", "storage": "/app/storage"}, "config": {},
            "broadcasting": {"manager": MANAGER, "drivers": [], "floats": true, "dates": []},
            "classes": {"E": {"kind": "broadcast", "file": "E.php", "broadcast": event, "properties": [
                {"name": "id", "visibility": "public", "class": "E"},
                {"name": "by", "visibility": "protected", "class": "E", "default": "aToxOw=="},
            ]}},
            "models": {"App\\User": {"table": "users", "key": "id", "key_type": "int", "incrementing": true, "receives_broadcasts_on": false}},
        });
        let json_object = json.as_object_mut().unwrap();
        json_object.extend(more.as_object().unwrap().clone());
        Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
    }

    fn event(class: &str) -> Object {
        Object::new(ClassName::new(class).unwrap())
    }

    fn wrapper(event: Object) -> Value {
        let class = ClassName::new("Illuminate\\Broadcasting\\BroadcastEvent").unwrap();
        Value::Object(Object::new(class).public("event", Value::Object(event)))
    }

    fn told(manifest: &Manifest, event: Object) -> String {
        let version = manifest.version().unwrap();
        match published(Some(manifest), version, &wrapper(event)) {
            Ok(published) => {
                let messages = published.messages.iter().map(|message| {
                    let text = |bytes: &Vec<u8>| String::from_utf8(bytes.clone()).unwrap();
                    let channels: Vec<String> = message.channels.iter().map(text).collect();
                    let on = message.connection.as_deref().unwrap_or("-");
                    format!("{on} {} {}", channels.join(","), text(&message.json))
                });
                messages.collect::<Vec<_>>().join("; ")
            }
            Err(missing) => missing.to_string(),
        }
    }

    #[test]
    fn what_only_php_knows_is_named() {
        let plain = json!({"methods": {"broadcastOn": channel("c")}, "payload": ["id"]});
        let with = |key: &str, value: Json| {
            let mut event = plain.clone();
            event[key] = value;
            event
        };
        let methods = |name: &str, shape: Json| {
            let mut event = plain.clone();
            event["methods"][name] = shape;
            event
        };
        let property = |path: Json| json!({"value": {"text": false, "parts": [path]}});
        let path = |steps: Json| property(json!({"path": {"of": "id", "steps": steps}}));
        let id = |value: Value| event("E").public("id", value);
        let model = || {
            let model = event(MODEL_IDENTIFIER).public("class", "App\\User");
            Value::Object(model.public("id", 5).public("connection", "c"))
        };
        let none = json!({});
        #[rustfmt::skip]
        let rows = [
            (plain.clone(), none.clone(), id(5.into()), r#"- private-c {"event":"E","data":{"id":5},"socket":null}"#),
            (plain.clone(), none.clone(), event("E"), "`id` has no value"),
            (plain.clone(), none.clone(), event("F"), "does not have the class"),
            (Json::Null, none.clone(), id(5.into()), "does not say how it is broadcast"),
            (plain.clone(), json!({"broadcasting": null}), id(5.into()), "does not say how the app broadcasts"),
            (plain.clone(), json!({"broadcasting": {"manager": "App\\M"}}), id(5.into()), "not Laravel's but App\\M"),
            (plain.clone(), json!({"broadcasting": {"manager": MANAGER, "drivers": ["redis"]}}), id(5.into()), "a broadcast driver `redis` of its own"),
            (plain.clone(), json!({"broadcasting": {"manager": MANAGER}}), id(Value::from(0.5)), "writes floats in a way of its own"),
            (plain.clone(), json!({"broadcasting": {"manager": MANAGER}}), id(1.into()), "private-c"),
            (with("code", json!("failed")), none.clone(), id(5.into()), "a method `failed()`, which is PHP code"),
            (with("payload", Json::Null), none.clone(), id(5.into()), "static or computed"),
            (methods("broadcastOn", Json::Null), none.clone(), id(5.into()), "its `broadcastOn()` is PHP code"),
            (methods("broadcastAs", json!({"items": []})), none.clone(), id(5.into()), "what its `broadcastAs()` returns is an array"),
            (methods("broadcastAs", property(json!({"property": "gone"}))), none.clone(), id(5.into()), "its property `gone` is not known"),
            (methods("broadcastConnections", property(json!({"property": "id"}))), none.clone(), id(5.into()), "is an int"),
            (methods("broadcastOn", property(json!({"property": "by"}))), none.clone(), id(5.into()), "- 1 {"),
            (methods("broadcastOn", property(json!({"property": "id"}))), none.clone(), id(Value::from(0.5)), "one of its channels is a float"),
            (plain.clone(), none.clone(), id(model()), "its public property `id` is a model"),
            (methods("broadcastWith", json!({"items": [{"key": "k", "value": path(json!([{"property": "id"}]))}]})), none.clone(), id(model()), r#""data":{"k":5,"socket":null}"#),
            (methods("broadcastWith", json!({"items": [{"key": "k", "value": path(json!([{"property": "name"}]))}]})), none.clone(), id(model()), "takes from its property `id`, an object of class"),
            (methods("broadcastWith", json!({"items": [{"key": null, "value": path(json!([{"key": 3}]))}]})), none.clone(), id(Array::from_iter([Value::Null]).into()), "takes from its property `id`, an array"),
            (methods("broadcastWith", property(json!({"literal": 5}))), none.clone(), id(5.into()), "what its `broadcastWith()` returns is an int"),
            (methods("broadcastWith", property(json!({"literal": null}))), none.clone(), id(5.into()), r#""data":{"id":5}"#),
            (methods("broadcastWith", json!({"items": []})), json!({"models": {}}), id(model()), "does not have the model App\\User"),
            (plain.clone(), none.clone(), event(MODEL_EVENT), "its data is the row of a model"),
        ];
        for (class, more, event, expected) in rows {
            let found = told(&manifest("13.31.0", &class, &more), event);
            assert!(found.contains(expected), "{class} {more}: {found}");
        }
    }

    #[test]
    fn a_class_of_which_php_has_to_publish_every_event_is_known() {
        let facts = |json: Json| serde_json::from_value::<Facts>(json).unwrap().needs_php();
        #[rustfmt::skip]
        let rows = [
            (json!({"methods": {"broadcastOn": {"items": []}}, "payload": []}), None),
            (json!({"methods": {"broadcastOn": {"items": []}, "broadcastType": null}, "payload": []}), None),
            (json!({"methods": {"broadcastOn": null}, "payload": []}), Some("`broadcastOn()`")),
            (json!({"methods": {"broadcastOn": {"items": []}}, "payload": null}), Some("static")),
            (json!({"methods": {"broadcastOn": {"items": []}, "broadcastWith": {"items": []}}, "payload": null}), None),
            (json!({"methods": {}, "payload": [], "code": "__wakeup"}), Some("`__wakeup()`")),
        ];
        for (json, expected) in rows {
            let found = facts(json.clone());
            assert_eq!(found.is_some(), expected.is_some(), "{json}: {found:?}");
            assert!(
                found
                    .unwrap_or_default()
                    .contains(expected.unwrap_or_default()),
                "{json}"
            );
        }
    }

    #[test]
    fn what_stands_under_the_name_of_a_connection_is_for_it_since_laravel_11_38() {
        let class = json!({"methods": {
            "broadcastOn": {"items": [{"key": "a", "value": {"items": [{"key": null, "value": channel("x")}]}}]},
            "broadcastConnections": {"items": [{"key": null, "value": {"value": {"text": false, "parts": [{"literal": "a"}]}}}]},
        }, "payload": ["a"]});
        let class = |laravel: &str| manifest(laravel, &class, &json!({}));
        let of = |laravel: &str| {
            let part: Array = Array::from_iter([Value::Int(7)]);
            told(&class(laravel), event("E").public("a", part))
        };
        assert_eq!(
            of("11.38.0"),
            r#"a private-x {"event":"E","data":[7],"socket":null}"#
        );
        assert!(
            of("11.37.0").contains("one of its channels is an array"),
            "{}",
            of("11.37.0")
        );
    }

    #[test]
    fn an_event_whose_bytes_say_all_needs_no_manifest() {
        let of = |properties: &[(&str, Value)]| {
            let mut object = event(ANONYMOUS_EVENT);
            for (name, value) in properties {
                object = object.protected(name, value.clone());
            }
            wrapper(object)
        };
        let list = |values: &[Value]| -> Value { values.iter().cloned().collect::<Array>().into() };
        let mut properties = vec![
            ("name", Value::from("0")),
            ("payload", list(&[5.into()])),
            ("channels", list(&["c".into()])),
            ("broadcastConnection", list(&[Value::Null])),
        ];
        let version: Version = "13.0.0".parse().unwrap();
        let found = published(None, version, &of(&properties)).unwrap();
        let json = String::from_utf8(found.messages[0].json.clone()).unwrap();
        assert_eq!(
            json,
            r#"{"event":"AnonymousEvent","data":{"0":5,"socket":null},"socket":null}"#
        );
        properties.pop();
        let error = published(None, version, &of(&properties))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("`broadcastConnection` is not in the bytes"),
            "{error}"
        );
        let error = published(None, version, &wrapper(event("E")))
            .unwrap_err()
            .to_string();
        assert!(error.contains("there is no manifest"), "{error}");
        let error = published(None, version, &Value::Null)
            .unwrap_err()
            .to_string();
        assert!(error.contains("no broadcast event"), "{error}");
    }

    #[test]
    fn merging_counts_numbers_anew_and_replaces_texts() {
        let array = Array {
            pairs: vec![
                (Key::Int(7), 1.into()),
                (Key::String(b"a".to_vec()), 2.into()),
                (Key::String(b"9".to_vec()), 3.into()),
            ],
        };
        let merged = merged(array, [("a", 4.into()), ("b", 5.into())]);
        let shown = Value::Array(merged).to_json();
        assert_eq!(shown, r#"{"0":1,"a":4,"1":3,"b":5}"#);
    }
}
