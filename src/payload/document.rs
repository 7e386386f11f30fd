//! The job as one JSON object, for `queue:peek --json` and for programs that run jobs.
//!
//! Envelope fields keep Laravel's spelling. `data` has what the author of the
//! class wrote: the job's own properties, the listener's event, the mailable.
//! Laravel's bookkeeping properties are in `meta`, unless they are null or empty.
//! Values have the forms of [`php::json`](crate::php::json).

use std::fmt::Write as _;

use super::target::subject;
use super::{Command, Data, Error, Payload, Target};
use crate::php::json::{Graph, Writer};
use crate::php::{Object, Value};

/// Properties of Laravel's queue traits, which configure how a job is queued.
const BOOKKEEPING: [&str; 17] = [
    "afterCommit",
    "batchId",
    "chainCatchCallbacks",
    "chainConnection",
    "chainQueue",
    "chained",
    "connection",
    "debounceOwner",
    "deduplicator",
    "delay",
    "fakeBatch",
    "group",
    "job",
    "messageGroup",
    "middleware",
    "queue",
    "uniqueLockOwner",
];

/// The input of a job document.
#[derive(Debug, Clone, Copy)]
pub struct Document<'a> {
    /// Connection the job was found on.
    pub connection: &'a str,
    /// Queue the job was found on.
    pub queue: &'a str,
    /// Number of the run the document is for; for a waiting job the number of runs so far.
    pub attempts: u32,
    /// The job.
    pub payload: &'a Payload,
}

impl Document<'_> {
    /// Writes the document as one line of JSON.
    ///
    /// # Errors
    ///
    /// [`Error::Command`] if the serialized object cannot be read,
    /// [`Error::Missing`] if a wrapper lacks what it wraps.
    pub fn to_json(self) -> Result<String, Error> {
        let target = match Target::of(self.payload) {
            Ok(target) => Some(target),
            Err(Error::Encrypted { .. }) => None,
            Err(error) => return Err(error),
        };
        let value = match Command::of(self.payload) {
            Ok(Some(command)) => {
                let error = |source| Error::Command {
                    class: command.class().as_str().into(),
                    source,
                };
                Some(command.to_value().map_err(error)?)
            }
            Ok(None) | Err(Error::Encrypted { .. }) => None,
            Err(error) => return Err(error),
        };
        let null = Value::Null;
        let outer = value.as_ref().unwrap_or(&null);
        let graph = Graph::new(outer);
        let mut writer = Writer::new(&graph).with_root("/data");
        self.envelope(&mut writer);
        self.target(&mut writer, target.as_ref());
        writer.raw(",\"data\":");
        match (&self.payload.data, &target) {
            // Strings hold no raw line break, so this changes only what is between the parts.
            (Data::Json(data), _) => writer.raw(&data.get().replace(['\n', '\r'], " ")),
            (Data::Command { .. }, Some(target)) if value.is_some() => {
                data(&mut writer, &graph, target, outer);
            }
            _ => writer.raw("null"),
        }
        // The job is encrypted in its queue: `data` is null, or was decrypted for this document.
        if self.payload.is_encrypted() || self.payload.was_encrypted() {
            writer.raw(",\"encrypted\":true");
        }
        writer.raw("}");
        Ok(writer.finish())
    }

    fn envelope(&self, writer: &mut Writer<'_, '_>) {
        let payload = self.payload;
        writer.raw("{\"connection\":");
        writer.string(self.connection);
        writer.raw(",\"queue\":");
        writer.string(self.queue);
        writer.raw(",\"uuid\":");
        optional(writer, payload.uuid.as_ref().map(super::JobUuid::as_str));
        writer.raw(",\"id\":");
        optional(writer, payload.id.as_ref().map(super::JobId::as_str));
        let mut numbers = format!(",\"attempts\":{}", self.attempts);
        let max_tries = payload
            .limits
            .max_tries
            .map_or_else(|| "null".to_owned(), |n| n.to_string());
        let timeout = payload
            .limits
            .timeout
            .map_or_else(|| "null".to_owned(), |t| t.as_secs().to_string());
        write!(numbers, ",\"maxTries\":{max_tries},\"timeout\":{timeout}")
            .expect("a string takes everything");
        writer.raw(&numbers);
        writer.raw(",\"displayName\":");
        writer.string(payload.resolve_name());
        writer.raw(",\"tags\":[");
        for (i, tag) in payload.tags.iter().enumerate() {
            writer.raw(if i > 0 { "," } else { "" });
            writer.string(tag);
        }
        writer.raw("]");
    }

    fn target(&self, writer: &mut Writer<'_, '_>, target: Option<&Target>) {
        writer.raw(",\"target\":");
        let Some(target) = target else {
            // For an encrypted wrapper only the outer class is known.
            let Data::Command { name, .. } = &self.payload.data else {
                return writer.raw("null");
            };
            writer.raw("{\"kind\":\"job\",\"class\":");
            writer.string(name);
            return writer.raw("}");
        };
        writer.raw("{\"kind\":");
        writer.string(&target.kind().to_string());
        let mut field = |name: &str, text: &str| {
            writer.raw(",\"");
            writer.raw(name);
            writer.raw("\":");
            writer.string(text);
        };
        match target {
            Target::Job { class } | Target::Mailable { class } | Target::Broadcast { class } => {
                field("class", class.as_str());
            }
            Target::Listener {
                class,
                method,
                event,
            } => {
                field("class", class.as_str());
                field("method", method);
                if let Some(event) = event {
                    field("event", event.as_str());
                }
            }
            Target::Notification { class, channel } => {
                field("class", class.as_str());
                if let Some(channel) = channel {
                    field("channel", channel);
                }
            }
            Target::Command { name, .. } => field("name", name),
            Target::String { class, method } => {
                field("class", class);
                field("method", method);
            }
            Target::Closure | Target::Batch => {}
        }
        writer.raw("}");
    }
}

fn optional(writer: &mut Writer<'_, '_>, text: Option<&str>) {
    match text {
        Some(text) => writer.string(text),
        None => writer.raw("null"),
    }
}

/// Writes the subject's own properties, then `meta` with those of Laravel's traits.
fn data<'v>(writer: &mut Writer<'_, 'v>, graph: &Graph<'v>, target: &Target, outer: &'v Value) {
    let Some(outer_object) = outer.as_object() else {
        return writer.raw("null");
    };
    let subject = subject(target, outer, graph);
    let Some(Value::Object(object)) = subject else {
        match (subject, target) {
            (
                _,
                Target::Command {
                    line: Some(line), ..
                },
            ) => writer.string(line),
            (Some(subject), _) => writer.value_at(subject, "/data"),
            (None, Target::Listener { .. }) => writer.raw(&old_event(outer_object)),
            (None, _) => writer.raw("null"),
        }
        return meta(writer, graph, outer_object, outer);
    };
    let subject = subject.expect("matched above");
    writer.enter(subject, "/data");
    writer.raw("{");
    let members = crate::php::json::object_members(object);
    let mut first = true;
    // They hide a property of the notification that has their name.
    let notifiables = match target {
        Target::Notification { .. } => outer_object.get("notifiables"),
        _ => None,
    };
    for (name, value) in &members {
        let is_hidden = notifiables.is_some() && name == "notifiables";
        if !is_hidden && !is_bookkeeping(name) {
            member(writer, &mut first, name, value, "/data");
        }
    }
    if let Some(notifiables) = notifiables {
        member(writer, &mut first, "notifiables", notifiables, "/data");
    }
    writer.raw("}");
    meta(writer, graph, object, outer);
}

/// The event of a listener whose arguments were serialized separately; references in them count from their own
/// start.
fn old_event(listener: &Object) -> String {
    let json = || {
        let data = Value::from_bytes(listener.get("data")?.as_bytes()?).ok()?;
        let graph = Graph::new(&data);
        let mut writer = Writer::new(&graph).with_root("/data");
        writer.value_at(data.as_array()?.values().next()?, "/data");
        Some(writer.finish())
    };
    json().unwrap_or_else(|| "null".to_owned())
}

fn meta<'v>(writer: &mut Writer<'_, 'v>, graph: &Graph<'v>, subject: &'v Object, outer: &'v Value) {
    let mut first = true;
    // A wrapper has the same trait properties itself: its values come first.
    let outer = outer
        .as_object()
        .filter(|outer| !std::ptr::eq(*outer, subject));
    for name in BOOKKEEPING {
        let value = outer
            .and_then(|outer| outer.get(name))
            .filter(|value| says_something(graph.resolve(value)));
        let value = value.or_else(|| {
            subject
                .get(name)
                .filter(|value| says_something(graph.resolve(value)))
        });
        let Some(value) = value else { continue };
        if first {
            writer.raw(",\"meta\":{");
        }
        member(writer, &mut first, name, value, "/meta");
    }
    if !first {
        writer.raw("}");
    }
}

fn member<'v>(
    writer: &mut Writer<'_, 'v>,
    first: &mut bool,
    name: &str,
    value: &'v Value,
    parent: &str,
) {
    if !std::mem::take(first) {
        writer.raw(",");
    }
    writer.string(name);
    writer.raw(":");
    let escaped = name.replace('~', "~0").replace('/', "~1");
    writer.value_at(value, &format!("{parent}/{escaped}"));
}

/// Whether this name is a property of Laravel's queue traits.
pub(crate) fn is_bookkeeping(name: &str) -> bool {
    BOOKKEEPING.binary_search(&name).is_ok()
}

fn says_something(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::String(text) => !text.is_empty(),
        Value::Array(array) => !array.pairs.is_empty(),
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_of_bookkeeping_properties_is_sorted() {
        assert!(BOOKKEEPING.is_sorted());
    }

    #[test]
    fn a_job_shows_its_own_properties_and_apart_from_them_laravels() {
        let command = "O:10:\"App\\Jobs\\A\":4:{s:1:\"n\";i:7;s:7:\"\0*\0self\";r:1;s:5:\"queue\";s:2:\"hi\";s:7:\"chained\";a:0:{}}";
        let json = serde_json::json!({
            "uuid": "u", "displayName": "App\\Jobs\\A", "job": super::super::CALL_QUEUED_HANDLER,
            "maxTries": 3, "data": {"commandName": "App\\Jobs\\A", "command": command}, "attempts": 0,
        });
        let payload = Payload::parse(json.to_string().as_bytes()).unwrap();
        let document = Document {
            connection: "redis",
            queue: "hi",
            attempts: 1,
            payload: &payload,
        };
        assert_eq!(
            document.to_json().unwrap(),
            r#"{"connection":"redis","queue":"hi","uuid":"u","id":null,"attempts":1,"maxTries":3,"timeout":null,"#.to_owned()
                + r#""displayName":"App\\Jobs\\A","tags":[],"target":{"kind":"job","class":"App\\Jobs\\A"},"#
                + r#""data":{"n":7,"self":{"$ref":"/data"}},"meta":{"queue":"hi"}}"#
        );
    }

    #[test]
    fn no_key_of_a_notification_is_there_twice() {
        let command = "O:48:\"Illuminate\\Notifications\\SendQueuedNotifications\":2:{s:11:\"notifiables\";i:1;s:12:\"notification\";O:1:\"N\":2:{s:11:\"notifiables\";i:2;s:1:\"n\";i:3;}}";
        let json = serde_json::json!({
            "job": super::super::CALL_QUEUED_HANDLER,
            "data": {"commandName": "Illuminate\\Notifications\\SendQueuedNotifications", "command": command},
        });
        let payload = Payload::parse(json.to_string().as_bytes()).unwrap();
        let document = Document {
            connection: "redis",
            queue: "default",
            attempts: 0,
            payload: &payload,
        };
        let json = document.to_json().unwrap();
        assert!(json.contains(r#""data":{"n":3,"notifiables":1}"#), "{json}");
    }

    /// A persistent program would read the line in the middle as the document of another job.
    #[test]
    fn the_document_is_one_line_however_the_payload_is_written() {
        let payload = "{\"job\":\"A@b\",\"data\":[\r\n{\"uuid\":\"forged\",\"t\":\"a\\nb\"}\n]\n}";
        let payload = Payload::parse(payload.as_bytes()).unwrap();
        let document = Document {
            connection: "redis",
            queue: "default",
            attempts: 0,
            payload: &payload,
        };
        let json = document.to_json().unwrap();
        let end = r#""data":[  {"uuid":"forged","t":"a\nb"} ]}"#;
        assert!(
            json.ends_with(end) && !json.contains(['\r', '\n']),
            "{json}"
        );
    }
}
