//! The JSON payload of a job. Pure: parses bytes into facts.
//!
//! Payloads are read leniently, because fourteen years of Laravel versions,
//! packages and Redis' own JSON encoder have written the payloads in live queues:
//! fields may be missing, numbers may be strings, an empty list may be an object.
//! A payload is never written back: its bytes identify the job, and [`Payload`]
//! is a view of them. `docs/protocol/payload.md` lists the fields of all
//! versions.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use serde_json::value::RawValue;

mod build;
mod chain;
mod closure;
mod command;
mod command_line;
mod context;
mod delay;
mod document;
mod encryption;
mod failed_job;
#[cfg(test)]
#[cfg(any(feature = "cli", feature = "internals"))]
mod huge;
mod inherited;
mod json;
mod json_value;
mod limits;
mod pattern;
#[cfg(any(feature = "cli", feature = "internals"))]
mod retry;
mod target;
mod trace;
mod version;

pub use build::{
    BuildError, Envelope, HorizonFields, NewData, NewPayload, Scalar, Waits, random_id, random_uuid,
};
pub use chain::{Chain, ChainError, Step, StepKind};
pub use closure::{ClosureError, QueuedClosure};
pub use command::Command;
pub use command_line::CommandLine;
pub use context::LogContext;
pub use delay::{Delay, DelayError, Interval};
pub use document::Document;
#[cfg(feature = "cli")]
pub(crate) use document::is_bookkeeping;
pub use encryption::{Encrypter, EncryptionError, KeyError};
pub use failed_job::FailedJob;
pub use inherited::Inherited;
pub(crate) use inherited::InheritedFields;
pub use json::write_json_text;
pub use limits::{Backoff, Limits};
pub use pattern::{Pattern, TargetPattern};
pub use pattern::{PatternError, TargetPatternError};
#[cfg(any(feature = "cli", feature = "internals"))]
pub use retry::for_retry;
pub use target::{Kind, Target};
pub(crate) use target::{UNIQUE_BROADCAST_EVENT, parts_of_string_job, subject_of};
pub use trace::{SpanIds, Trace, TraceContext};
pub use version::Version;
pub use version::VersionError;

use crate::php::{self, PropertyScan, Value};
use crate::shown::name;
use crate::time::{UnixSeconds, seconds};
use json::{JsonError, Reader, Token};

macro_rules! text_newtype {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl<T: Into<Arc<str>>> From<T> for $name {
            fn from(text: T) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&self.0, f)
            }
        }
    };
}
pub(crate) use text_newtype;

text_newtype! {
    /// Identity of a job in failed jobs, batches and Horizon (`uuid`, since Laravel 7).
    JobUuid
}

text_newtype! {
    /// The Redis driver's own random id of a job (`id`); Horizon sets it to the uuid.
    JobId
}

impl JobUuid {
    /// At most its first 255 bytes, for logs.
    pub(crate) fn bounded(&self) -> &str {
        crate::shown::bounded(&self.0)
    }
}

#[cfg(feature = "cli")]
impl JobId {
    /// At most its first 255 bytes, for logs.
    pub(crate) fn bounded(&self) -> &str {
        crate::shown::bounded(&self.0)
    }
}

/// The `job` field of every job that is a PHP object.
pub const CALL_QUEUED_HANDLER: &str = "Illuminate\\Queue\\CallQueuedHandler@call";

/// [`CALL_QUEUED_HANDLER`] as PHP and Redis write it.
const HANDLER_SOURCE: &str = r#""Illuminate\\Queue\\CallQueuedHandler@call""#;

/// The facts about a job in its payload.
#[derive(Debug, Clone)]
pub struct Payload {
    /// `uuid`.
    pub uuid: Option<JobUuid>,
    /// `id`.
    pub id: Option<JobId>,
    /// `displayName`; empty if the payload has none.
    pub display_name: Arc<str>,
    /// `job`: `Illuminate\Queue\CallQueuedHandler@call`, or `Class@method` of a string job.
    pub job: Cow<'static, str>,
    /// `attempts`: number of runs before the one that is about to start; absent if the driver counts elsewhere.
    pub attempts: Option<u32>,
    /// Limits of this job.
    pub limits: Limits,
    /// `tags` of Horizon.
    pub tags: Vec<Box<str>>,
    /// Whether there is a field `tags`, other than null.
    pub(crate) has_tags: bool,
    /// `createdAt`, since Laravel 12.11.
    pub created_at: Option<UnixSeconds>,
    /// `delay`: how long after the push the job was to become due, where there is `createdAt`; before that, another
    /// name of `backoff`.
    pub delay: Duration,
    /// `pushedAt` of Horizon: unix seconds with a fraction.
    pub pushed_at: Option<f64>,
    /// `type` of Horizon: `job`, `event`, `notification`, `mail`, `broadcast`.
    pub horizon_type: Option<Box<str>>,
    /// `silenced` of Horizon.
    pub silenced: bool,
    /// `retry_of` of Horizon: the failed job that its dashboard pushed again as this one.
    pub retry_of: Option<Box<str>>,
    /// `deleteWhenMissingModels`, since Laravel 13.
    pub delete_when_missing_models: Option<bool>,
    /// `illuminate:log:context`, since Laravel 11.
    pub context: Option<Arc<LogContext>>,
    /// `tenantId` and `tenant_id`, with their JSON: the tenant for which the job was pushed, as
    /// `spatie/laravel-multitenancy` up to 3 and `stancl/tenancy` note it. One that is null is left out.
    pub tenant: Vec<(Box<str>, Box<RawValue>)>,
    /// `data`.
    pub data: Data,
    /// Whether there is a field `backoff`, which Laravel writes since 8.0, if only as null.
    has_backoff: bool,
}

/// The `data` field.
#[derive(Clone)]
pub enum Data {
    /// The data of an object job.
    Command {
        /// `commandName`: class of the object, according to the producer.
        name: Arc<str>,
        /// `command`: the serialized object, or its encrypted form. After decryption it may be any bytes.
        command: Arc<[u8]>,
        /// True once [`Payload::decrypt`] has replaced the encrypted form by the object.
        was_encrypted: bool,
        /// `batchId`, since Laravel 12.51.
        batch_id: Option<Box<str>>,
    },
    /// The data of a string job: any JSON.
    Json(Arc<RawValue>),
}

impl fmt::Debug for Data {
    /// Shows the length instead of the content, which may have been encrypted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Command {
                name,
                command,
                was_encrypted,
                batch_id,
            } => f
                .debug_struct("Command")
                .field("name", name)
                .field("command", &format_args!("{} bytes", command.len()))
                .field("was_encrypted", was_encrypted)
                .field("batch_id", batch_id)
                .finish(),
            Self::Json(json) => write!(f, "Json({} bytes)", json.get().len()),
        }
    }
}

/// An error from reading a payload.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Not JSON, or JSON beyond the limits of PHP.
    #[error("the payload is not JSON that PHP would read: {0}")]
    Json(String),
    /// A required field is missing.
    #[error("the payload has no {0}")]
    Missing(&'static str),
    /// The serialized command cannot be read.
    #[error("the command of {} cannot be read", name(.class))]
    Command {
        /// `commandName`.
        class: Arc<str>,
        /// The error of the codec.
        source: crate::php::Error,
    },
    /// The command is encrypted.
    #[error("the command of {} is encrypted", name(.class))]
    Encrypted {
        /// `commandName`.
        class: Arc<str>,
    },
    /// The command is encrypted, and no known key decrypts it.
    #[error("the command of {} cannot be decrypted", name(.class))]
    Undecryptable {
        /// `commandName`.
        class: Arc<str>,
        /// The error of the encrypter.
        source: EncryptionError,
    },
}

impl From<JsonError> for Error {
    fn from(error: JsonError) -> Self {
        Self::Json(error.to_string())
    }
}

impl Payload {
    /// Reads a payload as it was popped.
    ///
    /// # Errors
    ///
    /// [`Error::Json`] for bytes that PHP's `json_decode` or the pop script would
    /// refuse, [`Error::Missing`] without `job`, or without the `command` of an
    /// object job.
    pub fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let fields = Fields::of(bytes)?;
        let job = fields.job.ok_or(Error::Missing("`job`"))?;
        let data = if &*job == CALL_QUEUED_HANDLER {
            let (_, command) = fields.data.ok_or(Error::Missing("`data`"))?;
            Data::Command {
                name: command.name.unwrap_or_default(),
                command: command
                    .command
                    .ok_or(Error::Missing("`data.command`"))?
                    .into(),
                was_encrypted: false,
                batch_id: command.batch_id,
            }
        } else {
            let data = fields.data.map_or("\"\"", |(source, _)| source);
            let data = RawValue::from_string(data.to_owned());
            Data::Json(data.map_err(|error| Error::Json(error.to_string()))?.into())
        };
        let delay = (fields
            .delay
            .as_ref()
            .filter(|_| fields.created_at.is_some()))
        .map_or(Duration::ZERO, |delay| delay.after(1));
        Ok(Self {
            uuid: fields.uuid.map(JobUuid::from),
            id: fields.id.map(JobId::from),
            display_name: fields.display_name.unwrap_or_default(),
            job,
            attempts: fields.attempts,
            limits: Limits {
                max_tries: fields.max_tries,
                max_exceptions: fields.max_exceptions,
                fail_on_timeout: fields.fail_on_timeout,
                backoff: fields.backoff.or(fields.delay),
                timeout: fields.timeout.map(seconds),
                retry_until: fields.retry_until.or(fields.timeout_at),
            },
            has_tags: fields.tags.is_some(),
            tags: fields.tags.unwrap_or_default(),
            delay,
            created_at: fields.created_at.map(UnixSeconds),
            pushed_at: fields.pushed_at,
            horizon_type: fields.horizon_type,
            silenced: fields.silenced,
            retry_of: fields.retry_of,
            delete_when_missing_models: fields.delete_when_missing_models,
            context: fields.context.map(Arc::new),
            tenant: fields.tenant,
            data,
            has_backoff: fields.has_backoff,
        })
    }

    /// Whether a Laravel may have written it that does not note the locks of unique jobs in their payloads, as far as
    /// its fields tell: it has those of 8.0 to 12.10.
    pub(crate) fn may_hide_its_lock(&self) -> bool {
        let is_newer = self.created_at.is_some() || self.delete_when_missing_models.is_some();
        self.has_backoff && !is_newer
    }

    /// Whether the command is still encrypted.
    ///
    /// Since 8.19 Laravel checks the first two bytes.
    pub fn is_encrypted(&self) -> bool {
        let object = php::OBJECT.as_bytes();
        matches!(&self.data, Data::Command { command, was_encrypted: false, .. } if !command.starts_with(object))
    }

    /// Whether [`decrypt`](Self::decrypt) has replaced the encrypted form by the object.
    pub fn was_encrypted(&self) -> bool {
        matches!(&self.data, Data::Command { was_encrypted, .. } if *was_encrypted)
    }

    /// `commandName`: class of the object, according to the producer; `None` for a string job.
    pub fn command_name(&self) -> Option<&str> {
        match &self.data {
            Data::Command { name, .. } => Some(name),
            Data::Json(_) => None,
        }
    }

    /// Replaces the encrypted form by the object; a command that is not encrypted stays unchanged.
    ///
    /// The popped bytes stay unchanged: the job is released, retried and recorded
    /// as failed with its original text.
    ///
    /// # Errors
    ///
    /// [`Error::Undecryptable`] if the text was made with another key, was changed, or is not the output of an
    /// encrypter.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\CallQueuedHandler::getCommand`.
    pub fn decrypt(&mut self, encrypter: &Encrypter) -> Result<(), Error> {
        if !self.is_encrypted() {
            return Ok(());
        }
        if let Data::Command {
            name,
            command,
            was_encrypted,
            ..
        } = &mut self.data
        {
            let plain = encrypter.decrypt_command(command);
            let plain = plain.map_err(|source| Error::Undecryptable {
                class: name.clone(),
                source,
            })?;
            *command = plain.into();
            *was_encrypted = true;
        }
        Ok(())
    }

    /// The name that workers show: `displayName`, or `job` if that is empty.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Jobs\JobName::resolve`.
    pub fn resolve_name(&self) -> &str {
        if self.display_name.is_empty() {
            &self.job
        } else {
            &self.display_name
        }
    }

    /// When the job was to become due after its push, in unix seconds with a fraction; `None` if the payload does not
    /// say when it was pushed or for how long it was delayed.
    pub fn first_due(&self) -> Option<f64> {
        /// From the year 2000 to 5138: others would spoil sums for as long as a worker lives.
        const LIKELY: std::ops::Range<f64> = 946_684_800.0..1e11;
        if self.created_at.is_none() && self.may_be_delayed() {
            return None;
        }
        #[expect(clippy::cast_precision_loss, reason = "seconds of this age are exact")]
        let created = self.created_at.map(|created| created.0 as f64);
        let due = self.pushed_at.or(created)? + self.delay.as_secs_f64();
        LIKELY.contains(&due).then_some(due)
    }

    /// Whether the object may have a delay, which payloads without `createdAt` (before Laravel 12.11) do not say.
    fn may_be_delayed(&self) -> bool {
        static DELAY: PropertyScan = PropertyScan::public("delay");
        let Data::Command { command, .. } = &self.data else {
            return false;
        };
        !command.starts_with(php::OBJECT.as_bytes()) || DELAY.may_hold_something(command)
    }

    /// The name for display: [`resolve_name`](Self::resolve_name), made printable and cut to 255 characters.
    pub fn shown_name(&self) -> Cow<'_, str> {
        name(self.resolve_name())
    }

    /// A scalar of the hidden log context as text, cast as in PHP.
    ///
    /// For a unique job the framework stores there the key of its lock, and the
    /// cache store that holds it.
    pub fn hidden_context(&self, key: &str) -> Option<String> {
        match self.context.as_ref()?.hidden(key)? {
            Value::String(text) => String::from_utf8(text).ok(),
            Value::Int(number) => Some(number.to_string()),
            Value::Bool(is) => Some(if is { "1".into() } else { String::new() }),
            _ => None,
        }
    }
}

/// The fields that were found; the last of duplicates counts, as in PHP.
#[derive(Default)]
struct Fields<'a> {
    uuid: Option<Arc<str>>,
    id: Option<Arc<str>>,
    display_name: Option<Arc<str>>,
    job: Option<Cow<'static, str>>,
    attempts: Option<u32>,
    max_tries: Option<i64>,
    max_exceptions: Option<i64>,
    fail_on_timeout: bool,
    backoff: Option<Backoff>,
    has_backoff: bool,
    delay: Option<Backoff>,
    timeout: Option<i64>,
    retry_until: Option<UnixSeconds>,
    timeout_at: Option<UnixSeconds>,
    tags: Option<Vec<Box<str>>>,
    created_at: Option<i64>,
    pushed_at: Option<f64>,
    horizon_type: Option<Box<str>>,
    silenced: bool,
    retry_of: Option<Box<str>>,
    delete_when_missing_models: Option<bool>,
    context: Option<LogContext>,
    tenant: Vec<(Box<str>, Box<RawValue>)>,
    /// The JSON of `data`, and its fields if it is that of an object job.
    data: Option<(&'a str, CommandData)>,
}

impl<'a> Fields<'a> {
    fn of(bytes: &'a [u8]) -> Result<Self, JsonError> {
        let mut reader = Reader::new(bytes)?;
        let mut fields = Self::default();
        if reader.token()? != Token::Object {
            return Err(reader.error("expected an object"));
        }
        reader.members(|reader, name| fields.read(&name, reader))?;
        reader.end()?;
        Ok(fields)
    }

    fn read(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), JsonError> {
        match name {
            "uuid" => self.uuid = reader.text()?,
            "id" => self.id = reader.text()?,
            "displayName" => self.display_name = reader.text()?,
            "job" if reader.take(HANDLER_SOURCE) => self.job = Some(CALL_QUEUED_HANDLER.into()),
            "job" => self.job = reader.text::<String>()?.map(Cow::Owned),
            "attempts" => self.attempts = reader.number()?.and_then(count),
            "maxTries" => self.max_tries = reader.int()?,
            "maxExceptions" => self.max_exceptions = reader.int()?,
            "failOnTimeout" => self.fail_on_timeout = reader.truthy()?,
            "backoff" => (self.backoff, self.has_backoff) = (Backoff::read(reader)?, true),
            "delay" => self.delay = Backoff::read(reader)?,
            "timeout" => self.timeout = reader.int()?,
            "retryUntil" => self.retry_until = limits::read_moment(reader)?,
            "timeoutAt" => self.timeout_at = limits::read_moment(reader)?,
            "tags" => self.tags = tags(reader)?,
            "createdAt" => self.created_at = reader.int()?,
            "pushedAt" => self.pushed_at = reader.number()?,
            "type" => self.horizon_type = reader.text()?,
            "silenced" => self.silenced = reader.truthy()?,
            "retry_of" => self.retry_of = reader.text()?,
            "deleteWhenMissingModels" => {
                self.delete_when_missing_models = reader.int()?.map(|value| value != 0);
            }
            "illuminate:log:context" => self.context = LogContext::read(reader)?,
            "tenantId" | "tenant_id" => self.read_tenant(name, reader)?,
            "data" => {
                let mut command = CommandData::default();
                let source = reader.source(|reader| command.read(reader))?;
                self.data = Some((source, command));
            }
            _ => reader.skip()?,
        }
        Ok(())
    }

    fn read_tenant(&mut self, name: &str, reader: &mut Reader<'a>) -> Result<(), JsonError> {
        let json = reader.source(Reader::skip)?;
        self.tenant.retain(|(known, _)| **known != *name);
        if json != "null" {
            let json = RawValue::from_string(json.to_owned());
            self.tenant
                .extend(json.ok().map(|json| (name.into(), json)));
        }
        Ok(())
    }
}

/// A count that Redis would accept: a whole number, possibly written as text or with a zero fraction.
fn count(number: f64) -> Option<u32> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the range and fraction are checked"
    )]
    let whole = (number.fract() == 0.0 && number <= 1e9).then_some(number.max(0.0) as u32);
    whole
}

/// Tags: a list, the object that Lua made of a list, or one tag; `None` for null; otherwise empty.
fn tags(reader: &mut Reader<'_>) -> Result<Option<Vec<Box<str>>>, JsonError> {
    let mut tags = Vec::new();
    match reader.token()? {
        Token::Null => return Ok(None),
        Token::Array => reader.elements(|reader| {
            tags.extend(reader.text()?);
            Ok(())
        })?,
        Token::Object => reader.members(|reader, _| {
            tags.extend(reader.text()?);
            Ok(())
        })?,
        Token::Text(tag) => tags.push(tag.into()),
        _ => {}
    }
    Ok(Some(tags))
}

/// The `data` of an object job.
#[derive(Default)]
struct CommandData {
    name: Option<Arc<str>>,
    command: Option<Arc<str>>,
    batch_id: Option<Box<str>>,
}

impl CommandData {
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<(), JsonError> {
        match reader.token()? {
            Token::Object => reader.members(|reader, name| {
                match &*name {
                    "commandName" => self.name = reader.text()?,
                    "command" => self.command = reader.text()?,
                    "batchId" => self.batch_id = reader.text()?,
                    _ => reader.skip()?,
                }
                Ok(())
            }),
            Token::Array => reader.skip_elements(),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn parse(json: &str) -> Payload {
        Payload::parse(json.as_bytes()).unwrap_or_else(|e| panic!("{e}: {json}"))
    }

    #[test]
    fn a_delay_that_the_payload_does_not_say_is_no_wait() {
        let due = |command: &str, more: &str| {
            let command = serde_json::Value::from(command);
            let json = format!(
                r#"{{"job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{{"commandName":"A","command":{command}}},"pushedAt":"1800000000.5"{more}}}"#
            );
            parse(&json).first_due()
        };
        let pushed = Some(1_800_000_000.5);
        assert_eq!(due("O:1:\"A\":0:{}", ""), pushed);
        assert_eq!(due("O:1:\"A\":1:{s:5:\"delay\";N;}", ""), pushed);
        let delayed = "O:1:\"A\":1:{s:5:\"delay\";i:60;}";
        assert_eq!(due(delayed, ""), None);
        assert_eq!(due("encrypted", ""), None);
        let later = r#","createdAt":1800000000,"delay":60"#;
        assert_eq!(due(delayed, later), pushed.map(|pushed| pushed + 60.0));
    }

    #[test]
    fn a_senseless_time_is_none() {
        for pushed in [r#""inf""#, r#""-inf""#, r#""NaN""#, "-1e300", "1e300", "0"] {
            let payload = parse(&format!(r#"{{"job":"A@b","pushedAt":{pushed}}}"#));
            assert_eq!(payload.first_due(), None, "{pushed}");
        }
        let created = parse(r#"{"job":"A@b","createdAt":-9000000000000000000}"#);
        assert_eq!(created.first_due(), None);
    }

    #[test]
    fn limits_are_read_from_the_fields_of_every_version() {
        let with =
            |fields: &str| parse(&format!(r#"{{"job":"A@b","attempts":0,{fields}}}"#)).limits;
        let seconds = Duration::from_secs;
        #[rustfmt::skip]
        let rows = [
            (r#""maxTries":3,"timeout":60"#, Limits { max_tries: Some(3), timeout: Some(seconds(60)), ..Limits::default() }),
            (r#""maxTries":null,"timeout":null"#, Limits::default()),
            (r#""maxTries":"3","timeout":"60""#, Limits { max_tries: Some(3), timeout: Some(seconds(60)), ..Limits::default() }),
            (r#""maxTries":[],"backoff":{}"#, Limits::default()),
            (r#""delay":7,"timeoutAt":9"#, Limits { backoff: Some(Backoff::parse("7")), retry_until: Some(UnixSeconds(9)), ..Limits::default() }),
            (r#""backoff":"1,5","delay":7"#, Limits { backoff: Some(Backoff::parse("1,5")), ..Limits::default() }),
            (r#""backoff":[1,5]"#, Limits { backoff: Some(Backoff::parse("1,5")), ..Limits::default() }),
            (r#""backoff":null,"delay":null"#, Limits::default()),
            (r#""retryUntil":1.8e9,"timeoutAt":9"#, Limits { retry_until: Some(UnixSeconds(1_800_000_000)), ..Limits::default() }),
            (r#""retryUntil":0"#, Limits::default()),
            (r#""retryUntil":0.0"#, Limits::default()),
            (r#""retryUntil":"""#, Limits::default()),
            (r#""retryUntil":"0","timeoutAt":0"#, Limits::default()),
            (r#""retryUntil":false"#, Limits::default()),
            (r#""retryUntil":"2030-01-01 00:00:00""#, Limits::default()),
            (r#""retryUntil":[]"#, Limits::default()),
            (r#""retryUntil":"1800000000""#, Limits { retry_until: Some(UnixSeconds(1_800_000_000)), ..Limits::default() }),
            (r#""retryUntil":-5"#, Limits { retry_until: Some(UnixSeconds(-5)), ..Limits::default() }),
            (r#""retryUntil":0.5"#, Limits { retry_until: Some(UnixSeconds(0)), ..Limits::default() }),
            (r#""failOnTimeout":true,"maxExceptions":2"#, Limits { fail_on_timeout: true, max_exceptions: Some(2), ..Limits::default() }),
            (r#""timeout":-5"#, Limits { timeout: Some(seconds(0)), ..Limits::default() }),
            (r#""timeout":9223372036854775807"#, Limits { timeout: Some(seconds(3_162_240_000)), ..Limits::default() }),
            (r#""backoff":1e300"#, Limits { backoff: Some(Backoff::constant(seconds(3_162_240_000))), ..Limits::default() }),
        ];
        for (fields, expected) in rows {
            assert_eq!(with(fields), expected, "{fields}");
        }
    }

    #[test]
    fn horizon_fields_are_read_in_all_their_forms() {
        let payload = parse(
            r#"{"job":"A@b","attempts":"2","type":"job","tags":{"1":"a","2":"b"},"silenced":false,"pushedAt":"1735600000.1234"}"#,
        );
        assert_eq!(payload.attempts, Some(2));
        assert_eq!(payload.tags, [Box::from("a"), Box::from("b")]);
        assert_eq!(payload.pushed_at, Some(1_735_600_000.123_4));
        assert_eq!(payload.horizon_type.as_deref(), Some("job"));
        for tags in ["[]", "{}", "null", "3", "\"\""] {
            let payload = parse(&format!(
                r#"{{"job":"A@b","tags":{tags},"pushedAt":1735600000.5,"silenced":1}}"#
            ));
            assert_eq!(payload.has_tags, tags != "null", "{tags}");
        }
        assert!(!parse(r#"{"job":"A@b"}"#).has_tags);
    }

    #[test]
    fn the_log_context_is_read_as_the_framework_writes_it() {
        let context = |json: &str| {
            parse(&format!(
                r#"{{"job":"A@b","illuminate:log:context":{json},"attempts":0}}"#
            ))
        };
        let payload = context(
            r#"{"data":{"tenant":"i:7;","who":"s:3:\"Ada\";","list":"a:1:{i:0;b:1;}","broken":"s:9:"},
               "hidden":{"laravel_unique_job_key":"s:3:\"k:1\";","n":"i:5;","token":"s:6:\"s3cr3t\";"}}"#,
        );
        let read = payload.context.clone().unwrap();
        assert_eq!(
            read.to_json(1000),
            r#"{"tenant":7,"who":"Ada","list":[true],"$omitted":1}"#
        );
        assert_eq!(read.to_json(20), r#"{"tenant":7,"$omitted":3}"#);
        assert_eq!(read.get("tenant"), Some(Value::Int(7)));
        assert_eq!(read.get("token"), None);
        let hidden = |key| payload.hidden_context(key);
        assert_eq!(hidden("laravel_unique_job_key").unwrap(), "k:1");
        assert_eq!(hidden("n").unwrap(), "5");
        assert_eq!(hidden("tenant"), None);
        let debug = format!("{payload:?}");
        assert!(
            debug.contains("token") && !debug.contains("s3cr3t"),
            "{debug}"
        );
        // An empty part is a list in PHP, or whatever Lua makes of it.
        for empty in ["[]", "{}", "null", "3", "\"\"", "true", "1.5"] {
            let payload = context(&format!(r#"{{"data":{empty},"hidden":{{"a":"N;"}}}}"#));
            assert!(payload.context.unwrap().is_empty(), "{empty}");
            assert_eq!(context(empty).hidden_context("a"), None, "{empty}");
        }
        let list = context(r#"{"data":["i:1;",2,null],"hidden":[]}"#);
        assert_eq!(
            list.context.unwrap().to_json(100),
            r#"{"0":1,"$omitted":1}"#
        );
        assert!(parse(r#"{"job":"A"}"#).context.is_none());
        let wrong = [r#"{"data":{"a":[1e400]}}"#, r#"{"x":"\ud800"}"#, "[1e400]"];
        for json in wrong {
            let json = format!(r#"{{"job":"A","illuminate:log:context":{json}}}"#);
            assert!(Payload::parse(json.as_bytes()).is_err(), "{json}");
        }
    }

    #[test]
    fn entries_of_the_log_context_are_read_in_vain_only_a_few_times() {
        let entries = |wrong: usize| {
            let wrong = (0..wrong).map(|i| format!(r#""{i}":"s:9:","#));
            let json = format!(r#"{{{}"tenant":"i:7;"}}"#, wrong.collect::<String>());
            let json = format!(r#"{{"job":"A","illuminate:log:context":{{"data":{json}}}}}"#);
            parse(&json).context.unwrap().to_json(1000)
        };
        assert_eq!(entries(15), r#"{"tenant":7,"$omitted":15}"#);
        assert_eq!(entries(16), r#"{"$omitted":17}"#);
    }

    #[test]
    fn the_last_of_duplicate_fields_counts_as_in_php() {
        assert_eq!(&*parse(r#"{"job":"A","job":"B"}"#).job, "B");
    }

    #[test]
    fn what_php_or_the_pop_script_would_choke_on_is_refused() {
        let deep = |levels: usize| {
            format!(
                r#"{{"job":"A","x":{}{}}}"#,
                "[".repeat(levels),
                "]".repeat(levels)
            )
        };
        parse(&deep(510));
        let deep_data = format!(
            r#"{{"job":"A","data":{}{}}}"#,
            "[".repeat(1500),
            "]".repeat(1500)
        );
        let rows = [
            String::new(),
            "not json".into(),
            "[]".into(),
            "null".into(),
            "{}".into(),
            r#"{"job":"A"} x"#.into(),
            r#"{"job":"A","x":1e400}"#.into(),
            r#"{"job":"A","data":[1e400]}"#.into(),
            r#"{"job":"A","x":"\ud800"}"#.into(),
            r#"{"job":"A","x":NaN}"#.into(),
            deep(511),
            deep(1500),
            deep_data,
            format!(
                r#"{{"job":"{}","data":{{}}}}"#,
                CALL_QUEUED_HANDLER.replace('\\', "\\\\")
            ),
            format!(
                r#"{{"job":"{}","data":[]}}"#,
                CALL_QUEUED_HANDLER.replace('\\', "\\\\")
            ),
        ];
        for json in rows {
            assert!(
                Payload::parse(json.as_bytes()).is_err(),
                "{}",
                &json[..json.len().min(80)]
            );
        }
        assert!(Payload::parse(b"{\"job\":\"\xff\"}").is_err());
    }

    #[test]
    fn an_encrypted_command_is_read_once_it_was_decrypted() {
        let encrypter = Encrypter::new(Version::NEWEST, &"k".repeat(32), "AES-256-CBC").unwrap();
        let other = Encrypter::new(Version::NEWEST, &"o".repeat(32), "AES-256-CBC").unwrap();
        let object = b"O:1:\"A\":1:{s:1:\"x\";s:2:\"\xff\x00\";}";
        let json = |command: &str| {
            serde_json::json!({
                "job": CALL_QUEUED_HANDLER, "data": {"commandName": "A", "command": command},
            })
        };
        let mut payload = parse(&json(&encrypter.encrypt_command(object)).to_string());
        assert!(payload.is_encrypted());
        assert!(matches!(
            Command::of(&payload),
            Err(Error::Encrypted { .. })
        ));
        let error = payload.decrypt(&other).unwrap_err();
        assert_eq!(error.to_string(), "the command of A cannot be decrypted");
        assert!(payload.is_encrypted());
        payload.decrypt(&encrypter).unwrap();
        assert!(!payload.is_encrypted());
        let command = Command::of(&payload).unwrap().unwrap();
        assert_eq!(
            (command.class().as_str(), command.as_bytes()),
            ("A", &object[..])
        );
        let shown = format!("{payload:?}");
        let len = format!("command: {} bytes", object.len());
        assert!(shown.contains(&len), "{shown}");
        // Decrypting twice is harmless.
        payload.decrypt(&encrypter).unwrap();
        assert_eq!(Command::of(&payload).unwrap().unwrap().as_bytes(), object);
        let document = Document {
            connection: "redis",
            queue: "default",
            attempts: 1,
            payload: &payload,
        };
        let document = document.to_json().unwrap();
        let end = r#""data":{"x":{"$bytes":"/wA="}},"encrypted":true}"#;
        assert!(document.ends_with(end), "{document}");

        let mut plain = parse(&json("O:1:\"A\":0:{}").to_string());
        plain.decrypt(&other).unwrap();
        assert!(Command::of(&plain).unwrap().is_some());
        // Any other content than an object is an error, and the command no longer counts as encrypted.
        let mut number = parse(&json(&encrypter.encrypt_command(b"i:5;")).to_string());
        number.decrypt(&encrypter).unwrap();
        assert!(matches!(Command::of(&number), Err(Error::Command { .. })));
    }
}
