//! Makes the payload of a new job, as the app's version of Laravel would.
//!
//! The version decides the fields, their order and the escapes of the JSON
//! (docs/protocol/payload.md 2 and 3). The caller, which knows the job's class,
//! gives the content of the fields. Nothing is looked up here.

use std::cell::RefCell;
use std::fmt::Write as _;

use serde_json::value::RawValue;

use super::json::{JsonError, write_json, write_json_float, write_json_text, write_unescaped_text};
use super::{CALL_QUEUED_HANDLER, JobId, JobUuid, Version};
use crate::php::Value;
use crate::time::{Micros, UnixSeconds};

/// The data of a job to push.
#[derive(Debug, Clone)]
pub struct NewPayload {
    /// `uuid`, since Laravel 7.
    pub uuid: JobUuid,
    /// `displayName`.
    pub display_name: Box<str>,
    /// Limits of the job.
    pub envelope: Envelope,
    /// `job` and `data`.
    pub data: NewData,
    /// `createdAt`, since Laravel 12.11.
    pub created_at: UnixSeconds,
    /// Fields that payload hooks add, such as `illuminate:log:context`: names that no other field has, and their
    /// JSON unchanged.
    pub extra: Vec<(Box<str>, Box<RawValue>)>,
    /// `id` of the Redis driver, which comes with `attempts`; other drivers have neither.
    pub id: Option<JobId>,
    /// `delay` in seconds, since Laravel 12.11; `None` for a job that is pushed without a delay.
    pub delay: Option<i64>,
    /// What Laravel Horizon adds; `None` in an app without it.
    pub horizon: Option<HorizonFields>,
}

/// What Laravel Horizon adds to the payloads of an app.
///
/// # Source
///
/// `Laravel\Horizon\JobPayload::prepare` (docs/protocol/horizon.md 2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HorizonFields {
    /// `type`: `job`, `event`, `notification`, `mail` or `broadcast`.
    pub kind: &'static str,
    /// `tags`.
    pub tags: Vec<Box<str>>,
    /// `silenced`.
    pub silenced: bool,
    /// `pushedAt`.
    pub pushed_at: Micros,
}

impl HorizonFields {
    /// The fields of a job without tags.
    pub fn plain(kind: &'static str) -> Self {
        Self {
            kind,
            tags: Vec::new(),
            silenced: false,
            pushed_at: Micros::now(),
        }
    }
}

/// The code that a job runs.
#[derive(Debug, Clone)]
pub enum NewData {
    /// An object.
    Command {
        /// Class of the object.
        class: Box<str>,
        /// The serialized object, or its encrypted form.
        command: Vec<u8>,
        /// `batchId` of the object, since Laravel 12.51.
        batch_id: Option<Box<str>>,
    },
    /// A method of a class that the app's container instantiates.
    Method {
        /// `Class@method`, or `Class` for its method `fire`.
        job: Box<str>,
        /// The argument of the method.
        data: Box<RawValue>,
    },
}

/// Limits as a class declares them, not cast, as in PHP.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Envelope {
    /// `maxTries`.
    pub max_tries: Scalar,
    /// `maxExceptions`, since Laravel 7.
    pub max_exceptions: Scalar,
    /// `failOnTimeout`, since Laravel 8.43; null means false.
    pub fail_on_timeout: Scalar,
    /// `backoff`; `delay` in Laravel 5.8.14 to 7.
    pub backoff: Waits,
    /// `timeout`.
    pub timeout: Scalar,
    /// `retryUntil`; `timeoutAt` up to Laravel 7.
    pub retry_until: Scalar,
    /// `deleteWhenMissingModels`, since Laravel 13; null means false.
    pub delete_when_missing_models: Scalar,
}

/// A PHP value that is neither an array nor an object.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Scalar {
    /// null
    #[default]
    Null,
    /// A bool.
    Bool(bool),
    /// An int.
    Int(i64),
    /// A float.
    Float(f64),
    /// A string that is UTF-8.
    Text(Box<str>),
}

/// Waits between runs, in seconds.
#[derive(Debug, Clone, Default, PartialEq)]
pub enum Waits {
    /// The class declares no waits.
    #[default]
    None,
    /// A value.
    One(Scalar),
    /// An array of values.
    List(Vec<Scalar>),
}

/// An error from making a payload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The command is not UTF-8, which JSON cannot hold: PHP would not push it either.
    #[error(
        "the command of {class} is not UTF-8, which a payload cannot hold; let the class be encrypted (`ShouldBeEncrypted`)"
    )]
    NotUtf8 {
        /// Class of the command.
        class: Box<str>,
    },
    /// The data of a string job is JSON that PHP does not read.
    #[error("PHP does not read the job's data: {0}")]
    Data(Box<str>),
}

impl Scalar {
    /// Converts a value; `None` for an array, an object, or a string that is not UTF-8.
    pub fn of(value: &Value) -> Option<Self> {
        Some(match value {
            Value::Null => Self::Null,
            Value::Bool(value) => Self::Bool(*value),
            Value::Int(value) => Self::Int(*value),
            Value::Float(value) => Self::Float(value.get()),
            Value::String(_) => Self::Text(value.as_str()?.into()),
            _ => return None,
        })
    }

    /// True for null.
    pub fn is_null(&self) -> bool {
        *self == Self::Null
    }

    fn or(&self, default: bool) -> Self {
        match self {
            Self::Null => Self::Bool(default),
            value => value.clone(),
        }
    }

    fn write_json(&self, out: &mut String, write_text: fn(&mut String, &str)) {
        match self {
            Self::Null => out.push_str("null"),
            Self::Bool(value) => out.push_str(if *value { "true" } else { "false" }),
            Self::Int(value) => write!(out, "{value}").expect("a string takes everything"),
            Self::Float(value) => write_json_float(out, *value),
            Self::Text(text) => write_text(out, text),
        }
    }

    /// Writes the text that PHP's `implode` makes of it.
    fn write_plain(&self, out: &mut String) {
        match self {
            Self::Null | Self::Bool(false) => {}
            Self::Bool(true) => out.push('1'),
            Self::Int(value) => write!(out, "{value}").expect("a string takes everything"),
            Self::Float(value) => {
                let text = Value::from(*value).to_bytes();
                out.push_str(&String::from_utf8_lossy(&text[2..text.len() - 1]));
            }
            Self::Text(text) => out.push_str(text),
        }
    }
}

impl From<i64> for Scalar {
    fn from(value: i64) -> Self {
        Self::Int(value)
    }
}

impl From<bool> for Scalar {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<&str> for Scalar {
    fn from(value: &str) -> Self {
        Self::Text(value.into())
    }
}

impl Waits {
    fn values(&self) -> &[Scalar] {
        match self {
            Self::None => &[],
            Self::One(value) => std::slice::from_ref(value),
            Self::List(values) => values,
        }
    }

    /// The comma-separated list of Laravel 8 and later.
    fn joined(&self) -> Scalar {
        if matches!(self, Self::None | Self::One(Scalar::Null)) {
            return Scalar::Null;
        }
        let mut text = String::new();
        for (index, value) in self.values().iter().enumerate() {
            if index > 0 {
                text.push(',');
            }
            value.write_plain(&mut text);
        }
        Scalar::Text(text.into())
    }
}

impl NewPayload {
    /// Writes the payload.
    ///
    /// # Errors
    ///
    /// [`BuildError::NotUtf8`].
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Queue::createPayload` and
    /// `Illuminate\Queue\RedisQueue::createPayloadArray`.
    pub fn to_bytes(&self, version: Version) -> Result<Vec<u8>, BuildError> {
        let since = |major, minor| version.is_at_least(major, minor);
        let mut json = self.fields(version);
        if since(7, 0) {
            json.text("uuid", self.uuid.as_str());
        }
        json.text("displayName", &self.display_name);
        json.text(
            "job",
            match &self.data {
                NewData::Command { .. } => CALL_QUEUED_HANDLER,
                NewData::Method { job, .. } => job,
            },
        );
        self.envelope(version, &mut json);
        self.data(version, &mut json)?;
        if since(12, 11) {
            json.scalar("createdAt", &Scalar::Int(self.created_at.0));
        }
        for (name, value) in &self.extra {
            json.raw(name, value.get());
        }
        if let Some(id) = &self.id {
            json.text("id", id.as_str());
            json.scalar("attempts", &Scalar::Int(0));
        }
        if since(12, 11) {
            json.scalar("delay", &self.delay.map_or(Scalar::Null, Scalar::Int));
        }
        if let Some(horizon) = &self.horizon {
            json.text("type", horizon.kind);
            json.texts("tags", &horizon.tags);
            json.scalar("silenced", &Scalar::Bool(horizon.silenced));
            json.text("pushedAt", &horizon.pushed_at.to_string());
        }
        Ok(json.finish().into_bytes())
    }

    /// Horizon writes payloads once more, with PHP's default escapes.
    fn fields(&self, version: Version) -> Fields {
        let mut fields = Fields::new(version);
        if self.horizon.is_some() {
            fields.write_text = write_json_text;
        }
        fields
    }

    fn envelope(&self, version: Version, json: &mut Fields) {
        let envelope = &self.envelope;
        let is_object = matches!(self.data, NewData::Command { .. });
        let since = |major, minor| version.is_at_least(major, minor);
        json.scalar("maxTries", &envelope.max_tries);
        if since(7, 0) {
            json.scalar("maxExceptions", &envelope.max_exceptions);
        }
        if since(8, 43) {
            json.scalar("failOnTimeout", &envelope.fail_on_timeout.or(false));
        }
        let has_old_backoff = Version {
            major: 5,
            minor: 8,
            patch: 14,
        };
        if since(8, 0) {
            json.scalar("backoff", &envelope.backoff.joined());
        } else if version >= has_old_backoff {
            json.waits("delay", &envelope.backoff);
        }
        json.scalar("timeout", &envelope.timeout);
        if is_object && since(8, 0) {
            json.scalar("retryUntil", &envelope.retry_until);
        } else if is_object {
            json.scalar("timeoutAt", &envelope.retry_until);
        }
        if is_object && since(13, 0) {
            let delete = envelope.delete_when_missing_models.or(false);
            json.scalar("deleteWhenMissingModels", &delete);
        }
    }

    fn data(&self, version: Version, json: &mut Fields) -> Result<(), BuildError> {
        let (class, command, batch_id) = match &self.data {
            NewData::Method { data, .. } => {
                let written = json.json("data", data.get());
                return written.map_err(|error| BuildError::Data(error.to_string().into()));
            }
            NewData::Command {
                class,
                command,
                batch_id,
            } => (class, command, batch_id),
        };
        let Ok(command) = std::str::from_utf8(command) else {
            let class = class.clone();
            return Err(BuildError::NotUtf8 { class });
        };
        let mut data = self.fields(version);
        data.text("commandName", class);
        data.text("command", command);
        if version.is_at_least(12, 51) {
            let batch_id = batch_id.as_deref().map_or(Scalar::Null, Scalar::from);
            data.scalar("batchId", &batch_id);
        }
        json.raw("data", &data.finish());
        Ok(())
    }
}

/// A JSON object being written.
struct Fields {
    out: String,
    write_text: fn(&mut String, &str),
}

impl Fields {
    fn new(version: Version) -> Self {
        Self {
            out: String::from("{"),
            write_text: if version.is_at_least(8, 82) {
                write_unescaped_text
            } else {
                write_json_text
            },
        }
    }

    fn name(&mut self, name: &str) {
        if self.out.len() > 1 {
            self.out.push(',');
        }
        (self.write_text)(&mut self.out, name);
        self.out.push(':');
    }

    fn text(&mut self, name: &str, text: &str) {
        self.name(name);
        (self.write_text)(&mut self.out, text);
    }

    fn texts(&mut self, name: &str, texts: &[Box<str>]) {
        self.name(name);
        self.out.push('[');
        for (index, text) in texts.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            (self.write_text)(&mut self.out, text);
        }
        self.out.push(']');
    }

    fn scalar(&mut self, name: &str, value: &Scalar) {
        self.name(name);
        value.write_json(&mut self.out, self.write_text);
    }

    fn waits(&mut self, name: &str, waits: &Waits) {
        let Waits::List(values) = waits else {
            let value = waits.values().first().cloned().unwrap_or_default();
            return self.scalar(name, &value);
        };
        self.name(name);
        self.out.push('[');
        for (index, value) in values.iter().enumerate() {
            if index > 0 {
                self.out.push(',');
            }
            value.write_json(&mut self.out, self.write_text);
        }
        self.out.push(']');
    }

    /// Writes JSON of another program as PHP would.
    fn json(&mut self, name: &str, json: &str) -> Result<(), JsonError> {
        self.name(name);
        write_json(&mut self.out, json, self.write_text)
    }

    fn raw(&mut self, name: &str, json: &str) {
        self.name(name);
        self.out.push_str(json);
    }

    fn finish(mut self) -> String {
        self.out.push('}');
        self.out
    }
}

/// Random bytes from the system, which are drawn for many jobs at a time.
///
/// # Panics
///
/// The system's random number generator fails.
fn random<const N: usize>() -> [u8; N] {
    const SIZE: usize = 1024;
    thread_local! {
        /// Drawn bytes, and how many of them are used.
        static DRAWN: RefCell<([u8; SIZE], usize)> = const { RefCell::new(([0; SIZE], SIZE)) };
    }
    DRAWN.with_borrow_mut(|(drawn, used)| {
        if *used + N > SIZE {
            getrandom::fill(drawn).expect("the system has random numbers");
            *used = 0;
        }
        let mut bytes = [0; N];
        let taken = &mut drawn[*used..*used + N];
        bytes.copy_from_slice(taken);
        // A dump of the memory shows no names and owners of earlier jobs.
        taken.fill(0);
        *used += N;
        bytes
    })
}

/// A uuid of version 4, from the system's random number generator.
///
/// # Panics
///
/// The system's random number generator fails.
pub fn random_uuid() -> JobUuid {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut bytes: [u8; 16] = random();
    bytes[6] = bytes[6] & 0x0f | 0x40;
    bytes[8] = bytes[8] & 0x3f | 0x80;
    let mut text = String::with_capacity(36);
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push(char::from(DIGITS[usize::from(byte >> 4)]));
        text.push(char::from(DIGITS[usize::from(byte & 0x0f)]));
    }
    JobUuid::from(text)
}

/// An `id` as the Redis driver makes it: 32 random letters and digits.
///
/// # Panics
///
/// The system's random number generator fails.
///
/// # Source
///
/// `Illuminate\Queue\RedisQueue::getRandomId`.
pub fn random_id() -> JobId {
    const LETTERS: &[u8; 62] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789";
    let mut text = String::with_capacity(32);
    while text.len() < 32 {
        let bytes: [u8; 48] = random();
        // Values beyond the letters are drawn again, so that all letters are equally likely.
        let letters = bytes
            .iter()
            .filter_map(|byte| LETTERS.get(usize::from(byte & 63)));
        text.extend(
            letters
                .take(32 - text.len())
                .map(|letter| char::from(*letter)),
        );
    }
    JobId::from(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::payload::Payload;

    fn draft() -> NewPayload {
        let context = RawValue::from_string(r#"{"data":[],"hidden":{}}"#.to_owned()).unwrap();
        NewPayload {
            uuid: JobUuid::from("6f1d2c1e-3a77-4b0e-9d55-0f4f0c6f2b11"),
            display_name: "App\\Jobs\\SendReceipt".into(),
            envelope: Envelope {
                max_tries: Scalar::Int(3),
                backoff: Waits::List(vec![Scalar::Int(10), Scalar::Int(60)]),
                ..Envelope::default()
            },
            data: NewData::Command {
                class: "App\\Jobs\\SendReceipt".into(),
                command: "O:1:\"A\":1:{s:4:\"\0*\0x\";s:8:\"é/\u{2028}\n\u{7f}\";}".into(),
                batch_id: None,
            },
            created_at: UnixSeconds(1_760_000_000),
            extra: vec![("illuminate:log:context".into(), context)],
            id: Some(JobId::from("q0S4")),
            delay: Some(30),
            horizon: None,
        }
    }

    #[test]
    fn horizon_adds_its_fields_and_escapes_text() {
        let payload = NewPayload {
            horizon: Some(HorizonFields {
                tags: vec!["App\\Order:7".into(), "é".into()],
                pushed_at: Micros(1_500_000),
                ..HorizonFields::plain("job")
            }),
            ..draft()
        };
        let bytes = payload.to_bytes("10.48.0".parse().unwrap()).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let end = r#""attempts":0,"type":"job","tags":["App\\Order:7","\u00e9"],"silenced":false,"pushedAt":"1.5"}"#;
        assert!(text.ends_with(end), "{text}");
        assert!(text.is_ascii(), "{text}");
    }

    #[test]
    fn fields_stand_in_the_order_of_the_version() {
        let class = r#""App\\Jobs\\SendReceipt""#;
        let start = format!(
            r#""displayName":{class},"job":"Illuminate\\Queue\\CallQueuedHandler@call","maxTries":3"#
        );
        let uuid = format!(r#""uuid":"6f1d2c1e-3a77-4b0e-9d55-0f4f0c6f2b11",{start}"#);
        let escaped = r#"O:1:\"A\":1:{s:4:\"\u0000*\u0000x\";s:8:\"\u00e9\/\u2028\n#\";}"#
            .replace('#', "\u{7f}");
        let raw = escaped.replace("\\u00e9", "é");
        let data = |command: &str, more: &str| {
            format!(r#""data":{{"commandName":{class},"command":"{command}"{more}}}"#)
        };
        let end = r#""illuminate:log:context":{"data":[],"hidden":{}},"id":"q0S4","attempts":0"#;
        let eight = r#""maxExceptions":null,"failOnTimeout":false,"backoff":"10,60","timeout":null,"retryUntil":null"#;
        let created = r#""createdAt":1760000000"#;
        #[rustfmt::skip]
        let rows = [
            ("5.5.50", format!(r#"{{{start},"timeout":null,"timeoutAt":null,{},{end}}}"#, data(&escaped, ""))),
            ("5.8.13", format!(r#"{{{start},"timeout":null,"timeoutAt":null,{},{end}}}"#, data(&escaped, ""))),
            ("5.8.14", format!(r#"{{{start},"delay":[10,60],"timeout":null,"timeoutAt":null,{},{end}}}"#, data(&escaped, ""))),
            ("7.30.0", format!(r#"{{{uuid},"maxExceptions":null,"delay":[10,60],"timeout":null,"timeoutAt":null,{},{end}}}"#, data(&escaped, ""))),
            ("8.42.0", format!(r#"{{{uuid},"maxExceptions":null,"backoff":"10,60","timeout":null,"retryUntil":null,{},{end}}}"#, data(&escaped, ""))),
            ("8.81.0", format!("{{{uuid},{eight},{},{end}}}", data(&escaped, ""))),
            ("10.48.29", format!("{{{uuid},{eight},{},{end}}}", data(&raw, ""))),
            ("12.11.0", format!("{{{uuid},{eight},{},{created},{end},\"delay\":30}}", data(&raw, ""))),
            ("13.31.0", format!("{{{uuid},{eight},\"deleteWhenMissingModels\":false,{},{created},{end},\"delay\":30}}", data(&raw, r#","batchId":null"#))),
        ];
        for (version, expected) in rows {
            let bytes = draft().to_bytes(version.parse().unwrap()).unwrap();
            assert_eq!(String::from_utf8(bytes).unwrap(), expected, "{version}");
        }
    }

    #[test]
    fn string_jobs_have_no_fields_that_need_a_class() {
        let draft = NewPayload {
            data: NewData::Method {
                job: "App\\Legacy@run".into(),
                data: RawValue::from_string("[1]".to_owned()).unwrap(),
            },
            envelope: Envelope::default(),
            extra: Vec::new(),
            id: None,
            delay: None,
            ..draft()
        };
        let bytes = draft.to_bytes(Version::NEWEST).unwrap();
        assert_eq!(
            String::from_utf8(bytes).unwrap(),
            r#"{"uuid":"6f1d2c1e-3a77-4b0e-9d55-0f4f0c6f2b11","displayName":"App\\Jobs\\SendReceipt","job":"App\\Legacy@run","maxTries":null,"maxExceptions":null,"failOnTimeout":false,"backoff":null,"timeout":null,"data":[1],"createdAt":1760000000,"delay":null}"#
        );
    }

    #[test]
    fn the_data_of_a_string_job_is_as_php_writes_it() {
        let data = r#"{"a/b": [1.0, 2.50, 1e25, -0.0, 18446744073709551615, []], "\u00e4": "ä\u2028 ", "n": {"x": null, "y": true}}"#;
        let draft = |version: &str| {
            let draft = NewPayload {
                data: NewData::Method {
                    job: "A".into(),
                    data: RawValue::from_string(data.to_owned()).unwrap(),
                },
                ..draft()
            };
            String::from_utf8(draft.to_bytes(version.parse().unwrap()).unwrap()).unwrap()
        };
        let numbers = r#""data":{"a\/b":[1,2.5,1.0e+25,-0,18446744073709551615,[]],"#;
        let rest = r#" ","n":{"x":null,"y":true}}"#;
        let new = format!(r#"{numbers}"ä":"ä\u2028{rest}"#);
        assert!(draft("13.31.0").contains(&new), "{}", draft("13.31.0"));
        let old = format!(r#"{numbers}"\u00e4":"\u00e4\u2028{rest}"#);
        assert!(draft("8.0.0").contains(&old), "{}", draft("8.0.0"));
    }

    #[test]
    fn waits_are_joined_as_php_joins_them() {
        let list = |values: &[Scalar]| Waits::List(values.to_vec());
        #[rustfmt::skip]
        let rows = [
            (Waits::None, Scalar::Null),
            (Waits::One(Scalar::Null), Scalar::Null),
            (Waits::One(7.into()), "7".into()),
            (Waits::One(false.into()), "".into()),
            (list(&[]), "".into()),
            (list(&[1.into(), Scalar::Null, true.into(), "x".into(), Scalar::Float(1.0), Scalar::Float(2.5)]), "1,,1,x,1,2.5".into()),
        ];
        for (waits, expected) in rows {
            assert_eq!(waits.joined(), expected, "{waits:?}");
        }
    }

    #[test]
    fn what_json_cannot_hold_is_refused_and_names_are_random() {
        let mut draft = draft();
        draft.data = NewData::Command {
            class: "A".into(),
            command: b"O:1:\"A\":1:{s:1:\"x\";s:1:\"\xff\";}".to_vec(),
            batch_id: None,
        };
        let error = draft.to_bytes(Version::NEWEST).unwrap_err().to_string();
        assert!(
            error.starts_with("the command of A is not UTF-8"),
            "{error}"
        );

        let (one, two) = (random_uuid(), random_uuid());
        assert_ne!(one, two);
        let form = |c: char| {
            if c.is_ascii_hexdigit() && !c.is_uppercase() {
                'x'
            } else {
                c
            }
        };
        let text: String = one.as_str().chars().map(form).collect();
        assert_eq!(text, "xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx");
        assert_eq!(&one.as_str()[14..15], "4");
        assert!(matches!(&one.as_str()[19..20], "8" | "9" | "a" | "b"));
        let (one, two) = (random_id(), random_id());
        assert_ne!(one, two);
        assert!(
            one.as_str().len() == 32 && one.as_str().bytes().all(|b| b.is_ascii_alphanumeric())
        );
    }

    #[test]
    fn what_is_made_is_read_again() {
        let bytes = draft().to_bytes(Version::NEWEST).unwrap();
        let payload = Payload::parse(&bytes).unwrap();
        assert_eq!(payload.limits.max_tries, Some(3));
        assert_eq!(payload.created_at, Some(UnixSeconds(1_760_000_000)));
        assert_eq!(payload.attempts, Some(0));
    }
}
