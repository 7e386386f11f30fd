//! What a job is really about: the class behind Laravel's wrappers.

use std::fmt;

use super::{Command, Error, Payload};
use crate::php::ClassName;
use crate::php::json::Graph;
use crate::php::{Array, Object, Value};

/// The class, command or closure that a job is about.
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
        /// Its method, mostly `handle`.
        method: Box<str>,
        /// Class of the event, or the name of a string event's absence.
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
        /// Name of the command.
        name: Box<str>,
    },
    /// A closure: PHP source text.
    Closure,
    /// A batch inside a chain (`ChainedBatch`).
    Batch,
    /// A string job.
    String {
        /// The part before `@`.
        class: Box<str>,
        /// The part behind it; `fire` without one.
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
    /// What an object of this class is: one of Laravel's wrappers, or else a job.
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

/// Laravel's wrappers, by their class.
const WRAPPERS: [(&str, Kind); 8] = [
    ("Illuminate\\Events\\CallQueuedListener", Kind::Listener),
    (
        "Illuminate\\Notifications\\SendQueuedNotifications",
        Kind::Notification,
    ),
    ("Illuminate\\Mail\\SendQueuedMailable", Kind::Mailable),
    ("Illuminate\\Broadcasting\\BroadcastEvent", Kind::Broadcast),
    (
        "Illuminate\\Broadcasting\\UniqueBroadcastEvent",
        Kind::Broadcast,
    ),
    (
        "Illuminate\\Foundation\\Console\\QueuedCommand",
        Kind::Command,
    ),
    ("Illuminate\\Queue\\CallQueuedClosure", Kind::Closure),
    ("Illuminate\\Bus\\ChainedBatch", Kind::Batch),
];

/// A closure registered as a listener (`queueable(fn ..)`).
const INVOKE_QUEUED_CLOSURE: &str = "Illuminate\\Events\\InvokeQueuedClosure";

impl Target {
    /// Unwraps a payload.
    ///
    /// Of an encrypted job only the outer class is readable; a wrapper then
    /// cannot be unwrapped and comes back as an error.
    ///
    /// # Errors
    ///
    /// [`Error::Encrypted`] and [`Error::Command`], see [`Command::of`]; a
    /// wrapper without the property that names its target is an
    /// [`Error::Missing`].
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
        let (class, method) = job.split_once('@').unwrap_or((job, "fire"));
        Self::String {
            class: class.into(),
            method: method.into(),
        }
    }

    fn of_encrypted(class: Box<str>) -> Result<Self, Error> {
        match ClassName::new(class.clone()) {
            Some(name) if wrapper(&name).is_none() => Ok(Self::Job { class: name }),
            _ => Err(Error::Encrypted { class }),
        }
    }

    fn unwrap(kind: Kind, object: &Object, graph: &Graph<'_>) -> Result<Self, Error> {
        let class_of = |property: &'static str, missing: &'static str| {
            let inner = graph_property(graph, object, property).and_then(class_of_value);
            inner.ok_or(Error::Missing(missing))
        };
        let text = |property: &str| graph_property(graph, object, property).and_then(Value::as_str);
        match kind {
            Kind::Listener => {
                let class = text("class")
                    .and_then(ClassName::new)
                    .ok_or(Error::Missing("listener class"))?;
                if class == *INVOKE_QUEUED_CLOSURE {
                    return Ok(Self::Closure);
                }
                let first = graph_property(graph, object, "data").and_then(Value::as_array);
                let first = first
                    .and_then(|data| data.values().next())
                    .map(|value| graph.resolve(value));
                Ok(Self::Listener {
                    class,
                    method: text("method").unwrap_or("handle").into(),
                    event: first.and_then(class_of_value),
                })
            }
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
                let name = data
                    .and_then(first_value)
                    .map(|value| graph.resolve(value))
                    .and_then(Value::as_str);
                Ok(Self::Command {
                    name: name.ok_or(Error::Missing("command name"))?.into(),
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

    /// The name that mappings match: class or command name; empty for a closure or batch.
    pub fn name(&self) -> &str {
        match self {
            Self::Job { class }
            | Self::Listener { class, .. }
            | Self::Notification { class, .. }
            | Self::Mailable { class }
            | Self::Broadcast { class } => class.as_str(),
            Self::Command { name } => name,
            Self::String { class, .. } => class,
            Self::Closure | Self::Batch => "",
        }
    }
}

fn first_value(array: &Array) -> Option<&Value> {
    array.values().next()
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
    // All wrappers are Laravel's own: one comparison lets every other class pass.
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

static EMPTY_ARRAY: Value = Value::Array(Array { pairs: Vec::new() });

/// The object inside a wrapper that the target is about, for documents.
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
