//! What is handed to PHP: closures of our own that PHP workers run.
//!
//! Callbacks of batches and chains are PHP code, and some steps of a chain need
//! facts that only PHP has. Each is handed over as one queued closure, pushed in
//! one step with the end of the job that it follows, so that it happens once.

use crate::handler::Services;
use crate::payload::{
    BuildError, Chain, ClosureError, Envelope, JobUuid, LogContext, NewData, NewPayload,
    QueuedClosure, random_id, random_uuid,
};
use crate::php::{ClassName, EditError, ObjectText, Value};
use crate::time::UnixSeconds;

/// Makes payloads for PHP workers.
#[derive(Debug, Clone, Copy)]
pub(super) struct HandOver<'a> {
    pub(super) services: &'a Services,
    pub(super) now: UnixSeconds,
    /// Whether the closure is encrypted: it carries something that was.
    pub(super) is_secret: bool,
}

/// Why something cannot be handed to PHP.
#[derive(Debug, thiserror::Error)]
pub(super) enum HandOverError {
    /// Closures are signed, and the key is not known.
    #[error("PHP takes only closures that are signed with the app's key: {0}")]
    NoKey(Box<str>),
    /// The closure cannot be made.
    #[error(transparent)]
    Closure(#[from] ClosureError),
    /// What it is to carry cannot be put into it.
    #[error(transparent)]
    Edit(#[from] EditError),
    /// The payload cannot be made.
    #[error(transparent)]
    Payload(#[from] BuildError),
}

/// A closure that is to be pushed.
struct Closure {
    class: ClassName,
    bytes: Vec<u8>,
}

impl Closure {
    /// Sets public properties, each a serialized value by itself.
    fn set(&mut self, properties: &[(&str, &[u8])]) -> Result<(), EditError> {
        self.bytes = ObjectText::parse(&self.bytes)?.with(properties)?;
        Ok(())
    }
}

/// What the closures are called where jobs are listed.
pub(crate) const CLOSURE_NAME: &str = "Closure (artisand:0)";

const NOTHING: &str = "function () {}";

impl HandOver<'_> {
    /// Says whether PHP can be handed anything at all.
    pub(super) fn check(&self) -> Result<(), HandOverError> {
        self.closure(NOTHING, Vec::new()).map(drop)
    }

    /// Goes on with a chain: PHP runs nothing and takes the next step as after any job.
    ///
    /// `context` is that of the job that has ended.
    pub(super) fn goes_on(
        &self,
        chain: &Chain,
        context: Option<&LogContext>,
    ) -> Result<Vec<u8>, HandOverError> {
        let mut closure = self.closure(NOTHING, Vec::new())?;
        let properties = chain.properties();
        let properties = properties
            .iter()
            .map(|(name, text)| (*name, text.as_slice()));
        closure.set(&properties.collect::<Vec<_>>())?;
        self.payload(closure, None, None, context)
    }

    /// Counts the success of a job in its batch: PHP runs nothing and counts as after any job.
    pub(super) fn counts_success(&self, batch: &str, uuid: &str) -> Result<Vec<u8>, HandOverError> {
        let mut closure = self.closure(NOTHING, Vec::new())?;
        closure.set(&[("batchId", &Value::from(batch).to_bytes())])?;
        self.payload(closure, Some(uuid), Some(batch), None)
    }

    /// Counts the failure of a job in its batch.
    pub(super) fn counts_failure(
        &self,
        batch: &str,
        uuid: &str,
        message: &str,
    ) -> Result<Vec<u8>, HandOverError> {
        const CODE: &str = "function () use ($batch, $uuid, $message) { \
            $found = \\Illuminate\\Support\\Facades\\Bus::findBatch($batch); \
            if ($found !== null) { $found->recordFailedJob($uuid, new \\RuntimeException($message)); } }";
        let uses = vec![
            ("batch", batch.into()),
            ("uuid", uuid.into()),
            ("message", message.into()),
        ];
        self.payload(self.closure(CODE, uses)?, None, None, None)
    }

    /// Runs a chain's catch callbacks.
    pub(super) fn catches(
        &self,
        callbacks: &[u8],
        message: &str,
        context: Option<&LogContext>,
    ) -> Result<Vec<u8>, HandOverError> {
        // As text, so that references in it count from its own start.
        const CODE: &str = "function () use ($callbacks, $message) { \
            $exception = new \\RuntimeException($message); \
            foreach (\\unserialize($callbacks) as $callback) { $callback($exception); } }";
        let uses = vec![
            ("callbacks", Value::String(callbacks.to_vec())),
            ("message", message.into()),
        ];
        self.payload(self.closure(CODE, uses)?, None, None, context)
    }

    fn closure(&self, code: &str, uses: Vec<(&str, Value)>) -> Result<Closure, HandOverError> {
        let Some(encrypter) = &self.services.encrypter else {
            let why = self.services.encrypter_missing.as_deref();
            let why = why.unwrap_or("the worker was not given it");
            return Err(HandOverError::NoKey(why.into()));
        };
        let command = QueuedClosure { code, uses }.command(encrypter)?;
        Ok(Closure {
            class: command.class.clone(),
            bytes: Value::Object(command).to_bytes(),
        })
    }

    fn payload(
        &self,
        closure: Closure,
        uuid: Option<&str>,
        batch: Option<&str>,
        context: Option<&LogContext>,
    ) -> Result<Vec<u8>, HandOverError> {
        let mut command = closure.bytes;
        if let Some(encrypter) = &self.services.encrypter
            && (self.is_secret || std::str::from_utf8(&command).is_err())
        {
            command = encrypter.encrypt_command(&command).into_bytes();
        }
        let payload = NewPayload {
            uuid: uuid.map_or_else(random_uuid, JobUuid::from),
            display_name: CLOSURE_NAME.into(),
            envelope: Envelope {
                delete_when_missing_models: true.into(),
                ..Envelope::default()
            },
            data: NewData::Command {
                class: closure.class.as_str().into(),
                command,
                batch_id: batch.map(Into::into),
            },
            created_at: self.now,
            extra: context.and_then(LogContext::to_field).into_iter().collect(),
            id: Some(random_id()),
            delay: None,
        };
        Ok(payload.to_bytes(self.services.version)?)
    }
}
