//! The target of a job: the class inside Laravel's wrappers.

use std::fmt;
use std::sync::Arc;

use super::json::Reader;
use super::json_value::{Json, Key as JsonKey};
use super::{Command, CommandLine, Data, Error, Payload};
use crate::php::ClassName;
use crate::php::json::Graph;
use crate::php::{Array, Key, Object, Value};

/// The class, command or closure that a job runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Target {
    /// A job class of the application or of a package.
    Job {
        /// The class.
        class: ClassName,
    },
    /// A queued event listener (`CallQueuedListener`).
    Listener {
        /// Listener class.
        class: ClassName,
        /// Method of the listener, mostly `handle`.
        method: Box<str>,
        /// Class of the event; `None` for an event that is only a name.
        event: Option<ClassName>,
    },
    /// A queued notification on one channel (`SendQueuedNotifications`).
    Notification {
        /// Notification class.
        class: ClassName,
        /// Channel name or class.
        channel: Option<Box<str>>,
    },
    /// A queued mailable (`SendQueuedMailable`).
    Mailable {
        /// Mailable class.
        class: ClassName,
    },
    /// A broadcast event (`BroadcastEvent`, `UniqueBroadcastEvent`).
    Broadcast {
        /// Event class.
        class: ClassName,
    },
    /// A queued artisan command (`QueuedCommand`).
    Command {
        /// Name of the command, or its class if it was queued by class.
        name: Box<str>,
        /// The text after the name, if the command was queued as one line of text.
        line: Option<Box<str>>,
    },
    /// A closure: PHP source text.
    Closure,
    /// A batch inside a chain (`ChainedBatch`).
    Batch,
    /// A string job.
    String {
        /// The part before `@`.
        class: Box<str>,
        /// The part after `@`; `fire` if there is none.
        method: Box<str>,
    },
}

/// The kinds of targets, without their names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// See [`Target::Job`].
    Job,
    /// See [`Target::Listener`].
    Listener,
    /// See [`Target::Notification`].
    Notification,
    /// See [`Target::Mailable`].
    Mailable,
    /// See [`Target::Broadcast`].
    Broadcast,
    /// See [`Target::Command`].
    Command,
    /// See [`Target::Closure`].
    Closure,
    /// See [`Target::Batch`].
    Batch,
    /// See [`Target::String`].
    String,
}

impl Kind {
    /// The kind of an object of this class: one of Laravel's wrappers, or else a job.
    pub fn of_class(class: &ClassName) -> Self {
        wrapper(class).unwrap_or(Self::Job)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Job => "job",
            Self::Listener => "listener",
            Self::Notification => "notification",
            Self::Mailable => "mailable",
            Self::Broadcast => "broadcast",
            Self::Command => "command",
            Self::Closure => "closure",
            Self::Batch => "batch",
            Self::String => "string",
        })
    }
}

/// The wrapper of a broadcast event that is unique.
pub(crate) const UNIQUE_BROADCAST_EVENT: &str = "Illuminate\\Broadcasting\\UniqueBroadcastEvent";

/// Laravel's wrapper classes and their kinds.
const WRAPPERS: [(&str, Kind); 8] = [
    ("Illuminate\\Events\\CallQueuedListener", Kind::Listener),
    (
        "Illuminate\\Notifications\\SendQueuedNotifications",
        Kind::Notification,
    ),
    ("Illuminate\\Mail\\SendQueuedMailable", Kind::Mailable),
    ("Illuminate\\Broadcasting\\BroadcastEvent", Kind::Broadcast),
    (UNIQUE_BROADCAST_EVENT, Kind::Broadcast),
    (
        "Illuminate\\Foundation\\Console\\QueuedCommand",
        Kind::Command,
    ),
    ("Illuminate\\Queue\\CallQueuedClosure", Kind::Closure),
    ("Illuminate\\Bus\\ChainedBatch", Kind::Batch),
];

/// A closure registered as a listener (`queueable(fn ..)`).
const INVOKE_QUEUED_CLOSURE: &str = "Illuminate\\Events\\InvokeQueuedClosure";

/// Splits the name of a string job into class and method, as Laravel does.
pub(crate) fn parts_of_string_job(job: &str) -> (&str, &str) {
    job.split_once('@').unwrap_or((job, "fire"))
}

impl Target {
    /// Unwraps a payload.
    ///
    /// For an encrypted job only the outer class is readable; a wrapper then
    /// cannot be unwrapped, which is an error.
    ///
    /// # Errors
    ///
    /// [`Error::Encrypted`] and [`Error::Command`], see `Command::of`;
    /// [`Error::Missing`] for a wrapper without the property that names its
    /// target.
    pub fn of(payload: &Payload) -> Result<Self, Error> {
        let command = match Command::of(payload) {
            Ok(Some(command)) => command,
            Ok(None) => return Ok(Self::of_string_job(&payload.job)),
            Err(Error::Encrypted { class }) => return Self::of_encrypted(class),
            Err(error) => return Err(error),
        };
        let Some(kind) = wrapper(command.class()) else {
            return Ok(Self::Job {
                class: command.class().clone(),
            });
        };
        let error = |source| Error::Command {
            class: command.class().as_str().into(),
            source,
        };
        let value = command.to_value().map_err(error)?;
        let graph = Graph::new(&value);
        let object = value
            .as_object()
            .ok_or(Error::Missing("object in `data.command`"))?;
        Self::unwrap(kind, object, &graph)
    }

    fn of_string_job(job: &str) -> Self {
        let (class, method) = parts_of_string_job(job);
        Self::String {
            class: class.into(),
            method: method.into(),
        }
    }

    fn of_encrypted(class: Arc<str>) -> Result<Self, Error> {
        match ClassName::new(class.clone()) {
            Some(name) if wrapper(&name).is_none() => Ok(Self::Job { class: name }),
            _ => Err(Error::Encrypted { class }),
        }
    }

    fn of_listener(object: &Object, graph: &Graph<'_>) -> Result<Self, Error> {
        let text = |property: &str| graph_property(graph, object, property).and_then(Value::as_str);
        let class = text("class")
            .and_then(ClassName::in_code)
            .ok_or(Error::Missing("listener class"))?;
        if class == *INVOKE_QUEUED_CLOSURE {
            return Ok(Self::Closure);
        }
        let event = match graph_property(graph, object, "data") {
            Some(Value::Array(data)) => {
                let first = data.values().next().map(|value| graph.resolve(value));
                first.and_then(class_of_value)
            }
            Some(Value::String(data)) => class_of_old_event(data),
            _ => None,
        };
        Ok(Self::Listener {
            class,
            method: text("method").unwrap_or("handle").into(),
            event,
        })
    }

    fn unwrap(kind: Kind, object: &Object, graph: &Graph<'_>) -> Result<Self, Error> {
        let class_of = |property: &'static str, missing: &'static str| {
            let inner = graph_property(graph, object, property).and_then(class_of_value);
            inner.ok_or(Error::Missing(missing))
        };
        match kind {
            Kind::Listener => Self::of_listener(object, graph),
            Kind::Notification => {
                let channels = graph_property(graph, object, "channels").and_then(Value::as_array);
                let channel = channels
                    .and_then(|channels| channels.values().next())
                    .map(|value| graph.resolve(value));
                Ok(Self::Notification {
                    class: class_of("notification", "notification")?,
                    channel: channel.and_then(Value::as_str).map(Into::into),
                })
            }
            Kind::Mailable => Ok(Self::Mailable {
                class: class_of("mailable", "mailable")?,
            }),
            Kind::Broadcast => Ok(Self::Broadcast {
                class: class_of("event", "broadcast event")?,
            }),
            Kind::Command => {
                let data = graph_property(graph, object, "data").and_then(Value::as_array);
                let mut data = data.into_iter().flat_map(Array::values);
                let text = data.next().map(|value| graph.resolve(value));
                let text = text.and_then(Value::as_str);
                let parameters = data.next().map(|value| graph.resolve(value));
                let parameters = parameters.and_then(Value::as_array);
                let line = CommandLine::of(
                    text.ok_or(Error::Missing("command name"))?,
                    parameters.is_some_and(|parameters| !parameters.pairs.is_empty()),
                );
                Ok(Self::Command {
                    name: line.name.into(),
                    line: line.rest.map(Into::into),
                })
            }
            Kind::Closure => Ok(Self::Closure),
            Kind::Batch => Ok(Self::Batch),
            Kind::Job | Kind::String => unreachable!("no wrapper has this kind"),
        }
    }

    /// The kind of target.
    pub fn kind(&self) -> Kind {
        match self {
            Self::Job { .. } => Kind::Job,
            Self::Listener { .. } => Kind::Listener,
            Self::Notification { .. } => Kind::Notification,
            Self::Mailable { .. } => Kind::Mailable,
            Self::Broadcast { .. } => Kind::Broadcast,
            Self::Command { .. } => Kind::Command,
            Self::Closure => Kind::Closure,
            Self::Batch => Kind::Batch,
            Self::String { .. } => Kind::String,
        }
    }

    /// The name that mappings match: class or command name; empty for a closure or a batch.
    pub fn name(&self) -> &str {
        match self {
            Self::Job { class }
            | Self::Listener { class, .. }
            | Self::Notification { class, .. }
            | Self::Mailable { class }
            | Self::Broadcast { class } => class.as_str(),
            Self::Command { name, .. } => name,
            Self::String { class, .. } => class,
            Self::Closure | Self::Batch => "",
        }
    }
}

/// Class of the event of a listener whose arguments were serialized separately, a form that PHP still reads.
fn class_of_old_event(data: &[u8]) -> Option<ClassName> {
    let data = Value::from_bytes(data).ok()?;
    class_of_value(data.as_array()?.values().next()?)
}

fn graph_property<'v>(graph: &Graph<'v>, object: &'v Object, name: &str) -> Option<&'v Value> {
    graph.property(object, name)
}

fn class_of_value(value: &Value) -> Option<ClassName> {
    match value {
        Value::Object(object) => Some(object.class.clone()),
        Value::Custom(custom) => Some(custom.class.clone()),
        _ => None,
    }
}

fn wrapper(class: &ClassName) -> Option<Kind> {
    // All wrappers are Laravel's own classes: one prefix comparison rules out every other class.
    let name = class.as_str().as_bytes();
    if !name
        .get(..11)
        .is_some_and(|prefix| prefix.eq_ignore_ascii_case(b"Illuminate\\"))
    {
        return None;
    }
    WRAPPERS
        .iter()
        .find(|(wrapper, _)| *class == **wrapper)
        .map(|(_, kind)| *kind)
}

/// The subject of a job as an independent value: the object of a job class, or what is inside a wrapper.
///
/// # Errors
///
/// The job is encrypted, cannot be read, or a wrapper lacks its content.
pub(crate) fn subject_of(payload: &Payload) -> Result<Value, Error> {
    let command = match (Command::of(payload)?, &payload.data) {
        (Some(command), _) => command,
        (None, Data::Json(data)) => {
            let mut reader = Reader::new(data.get().as_bytes())?;
            return Ok(Json::read(&mut reader)?.into());
        }
        (None, Data::Command { .. }) => return Err(Error::Missing("object")),
    };
    let error = |source| Error::Command {
        class: command.class().as_str().into(),
        source,
    };
    let value = command.to_value().map_err(error)?;
    if Kind::of_class(command.class()) == Kind::Job {
        return Ok(value);
    }
    let target = Target::of(payload)?;
    if let Target::Listener { .. } = target
        && let Some(data) = value.as_object().and_then(|listener| listener.get("data"))
        && let Some(data) = data.as_bytes()
    {
        let data = Value::from_bytes(data).map_err(error)?;
        let graph = Graph::new(&data);
        let first = data.as_array().and_then(|data| data.values().next());
        let first = first.ok_or(Error::Missing("event"))?;
        return graph.detached(first).map_err(error);
    }
    let graph = Graph::new(&value);
    let subject = subject(&target, &value, &graph);
    let subject = subject.ok_or(Error::Missing("object in its wrapper"))?;
    graph.detached(subject).map_err(error)
}

impl From<Json> for Value {
    fn from(json: Json) -> Self {
        match json {
            Json::Null => Self::Null,
            Json::Bool(value) => Self::Bool(value),
            Json::Int(value) => Self::Int(value),
            Json::Float(value) => Self::from(value),
            Json::Text(text) => Self::from(text),
            Json::Array(items) => {
                let pairs = items.into_iter().map(|(key, value)| {
                    let key = match key {
                        JsonKey::Int(key) => Key::Int(key),
                        JsonKey::Text(key) => Key::from(key.as_str()),
                    };
                    (key, value.into())
                });
                let pairs = pairs.collect();
                Self::Array(Array { pairs })
            }
        }
    }
}

static EMPTY_ARRAY: Value = Value::Array(Array { pairs: Vec::new() });

/// The object inside a wrapper that is the job's subject, for documents.
pub(super) fn subject<'v>(
    target: &Target,
    outer: &'v Value,
    graph: &Graph<'v>,
) -> Option<&'v Value> {
    let object = outer.as_object()?;
    match target {
        Target::Job { .. } | Target::Batch => Some(outer),
        Target::Listener { .. } => {
            let data = graph.property(object, "data")?.as_array()?;
            data.values().next().map(|value| graph.resolve(value))
        }
        Target::Notification { .. } => graph.property(object, "notification"),
        Target::Mailable { .. } => graph.property(object, "mailable"),
        Target::Broadcast { .. } => graph.property(object, "event"),
        Target::Command { .. } => {
            // The name, and the parameters if there are any.
            let data = graph.property(object, "data")?.as_array()?;
            Some(
                data.values()
                    .nth(1)
                    .map_or(&EMPTY_ARRAY, |value| graph.resolve(value)),
            )
        }
        Target::Closure | Target::String { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_may_be_registered_with_a_leading_backslash() {
        let command = r#"O:36:"Illuminate\Events\CallQueuedListener":2:{s:5:"class";s:6:"\App\L";s:4:"data";a:0:{}}"#;
        let payload = serde_json::json!({
            "job": "Illuminate\\Queue\\CallQueuedHandler@call", "displayName": "\\App\\L",
            "data": {"commandName": "Illuminate\\Events\\CallQueuedListener", "command": command},
        });
        let payload = Payload::parse(payload.to_string().as_bytes()).unwrap();
        assert_eq!(Target::of(&payload).unwrap().name(), r"App\L");
    }

    #[test]
    fn data_of_a_string_job_is_what_php_decodes() {
        let subject = |data: &str| {
            let payload = format!(r#"{{"job":"A","data":{data}}}"#);
            let payload = Payload::parse(payload.as_bytes()).unwrap();
            subject_of(&payload).unwrap()
        };
        let found = subject(r#"{"b":-0,"a":-0.0,"5":[12345678901234567890,null]}"#);
        assert_eq!(
            String::from_utf8(found.to_bytes()).unwrap(),
            r#"a:3:{s:1:"b";i:0;s:1:"a";d:-0;i:5;a:2:{i:0;d:1.2345678901234567E+19;i:1;N;}}"#
        );
        let deep = "[".repeat(510) + &"]".repeat(510);
        assert!(subject(&deep).to_bytes().starts_with(b"a:1:{i:0;a:1:{"));
    }
}
