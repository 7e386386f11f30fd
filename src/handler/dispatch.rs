//! Makes the payload of a new job of one of the app's classes, and finds its queue.
//!
//! The manifest records the facts that PHP would ask the class for. If a fact is
//! missing, only PHP can push the job, and the error names the fact. This module
//! pushes nothing.

use std::sync::Arc;

use crate::app::{Facts, Manifest, Missing};
use crate::payload::{
    BuildError, DelayError, HorizonFields, JobId, LogContext, NewPayload, random_id,
};
use crate::php::{self, Value};
use crate::queue::{Connections, Destination, Queue, QueueName};
use crate::time::UnixSeconds;

use super::{Hooks, Services};

/// Why artisand cannot push a job that PHP could.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// Facts about the app's classes are missing.
    #[error("nothing is known of the app's classes: write a manifest with `artisand manifest`")]
    NoManifest,
    /// The app's queue connections are unknown.
    #[error("nothing is known of the app's queue connections")]
    NoConnections,
    /// The job's queue connection cannot be used.
    #[error("it goes to the queue connection `{name}`: {why}")]
    Connection {
        /// Name of the connection.
        name: String,
        /// Why artisand cannot use it.
        why: String,
    },
    /// The command cannot be read.
    #[error(transparent)]
    Command(#[from] php::Error),
    /// Only PHP knows a fact of the class.
    #[error(transparent)]
    Missing(#[from] Missing),
    /// The time at which the job is due cannot be computed.
    #[error(transparent)]
    Delay(#[from] DelayError),
    /// The payload cannot be made.
    #[error(transparent)]
    Payload(#[from] BuildError),
    /// The job must be encrypted, and the key is unknown.
    #[error("{0} is to be encrypted, and the app's key is not known")]
    NoKey(String),
    /// A payload hook of the app adds to payloads.
    #[error("{hook} adds to payloads (`Queue::createPayloadUsing`), and {why}")]
    Hook {
        /// The class that has the hook.
        hook: String,
        /// Why it is not known what it adds.
        why: String,
    },
}

/// A job with all facts that a payload needs.
#[derive(Debug)]
pub(crate) struct Draft {
    pub(crate) command: Vec<u8>,
    pub(crate) facts: Facts,
    pub(crate) now: UnixSeconds,
    horizon: Option<HorizonFields>,
}

/// A job that is ready to be pushed.
pub(crate) struct Drafted {
    pub(crate) payload: Vec<u8>,
    /// The Redis driver's id of the job.
    pub(crate) id: JobId,
    pub(crate) due: Option<UnixSeconds>,
}

impl Draft {
    pub(crate) fn of(
        services: &Services,
        command: Vec<u8>,
        now: UnixSeconds,
    ) -> Result<Self, DispatchError> {
        let manifest = manifest(services)?;
        let value = Value::from_bytes(&command)?;
        let facts = manifest.facts(&value, now)?;
        if let (Some(hook), Hooks::OnlyPhp) = (manifest.payload_hooks.first(), &services.hooks) {
            return Err(hook_error(hook, "only PHP can run it"));
        }
        if facts.is_encrypted && services.encrypter.is_none() {
            return Err(DispatchError::NoKey(facts.class.to_string()));
        }
        let horizon = services.has_horizon.then(|| manifest.horizon(&value));
        Ok(Self {
            command,
            facts,
            now,
            horizon: horizon.transpose()?,
        })
    }

    /// Makes the payload for this queue, with what the app's payload hooks add; `context` is the log context of the
    /// job that is being run.
    pub(crate) async fn finish(
        self,
        services: &Services,
        context: Option<&LogContext>,
        (connection, queue): (&str, &QueueName),
    ) -> Result<Drafted, DispatchError> {
        let (mut payload, mut drafted) = self.build(services, context)?;
        let manifest = manifest(services)?;
        if let (Some(hook), Hooks::Ask(hooks)) = (manifest.payload_hooks.first(), &services.hooks) {
            let text = str::from_utf8(&drafted.payload).expect("payloads are JSON");
            let fields = hooks.fields(text, connection, queue).await;
            payload
                .extra
                .extend(fields.map_err(|why| hook_error(hook, &why))?);
            drafted.payload = payload.to_bytes(services.version)?;
        }
        Ok(drafted)
    }

    /// Says whether artisand can push the job whatever PHP answers.
    pub(crate) fn check(self, services: &Services) -> Result<(), DispatchError> {
        let manifest = manifest(services)?;
        if let (Some(hook), Hooks::Ask(_)) = (manifest.payload_hooks.first(), &services.hooks) {
            return Err(hook_error(hook, "PHP may not answer"));
        }
        self.build(services, None).map(drop)
    }

    /// Makes the payload, without what payload hooks add.
    fn build(
        self,
        services: &Services,
        context: Option<&LogContext>,
    ) -> Result<(NewPayload, Drafted), DispatchError> {
        let zone = &services.timezone;
        let command = match &services.encrypter {
            Some(encrypter) if self.facts.is_encrypted => {
                encrypter.encrypt_command(&self.command).into_bytes()
            }
            _ => self.command,
        };
        let delay = self.facts.delay.as_ref();
        let due = delay.map(|delay| delay.available_at(self.now, zone));
        let mut payload = NewPayload {
            extra: context.and_then(LogContext::to_field).into_iter().collect(),
            horizon: self.horizon,
            ..self.facts.payload(command, self.now, zone)?
        };
        let id = match &payload.horizon {
            // Horizon gives a job one name.
            Some(_) => JobId::from(payload.uuid.as_str()),
            None => random_id(),
        };
        payload.id = Some(id.clone());
        let drafted = Drafted {
            payload: payload.to_bytes(services.version)?,
            id,
            due: due.transpose()?,
        };
        Ok((payload, drafted))
    }
}

fn hook_error(hook: &str, why: &str) -> DispatchError {
    DispatchError::Hook {
        hook: hook.to_owned(),
        why: why.to_owned(),
    }
}

pub(crate) fn manifest(services: &Services) -> Result<&Manifest, DispatchError> {
    let manifest = services.manifest.as_deref();
    manifest.ok_or(DispatchError::NoManifest)
}

/// The queue connection of this name, or the app's default one.
pub(crate) fn destination<'a>(
    services: &'a Services,
    name: Option<&'a str>,
) -> Result<(&'a str, &'a Destination), DispatchError> {
    let connections = services.connections.as_ref();
    let connections: &Connections = connections.ok_or(DispatchError::NoConnections)?;
    let name = name.unwrap_or(connections.default_name().as_str());
    match connections.get(name) {
        Some(destination) => Ok((name, destination)),
        None => Err(DispatchError::Connection {
            name: name.to_owned(),
            why: "there is none of this name".to_owned(),
        }),
    }
}

/// The queues of a connection, if artisand can use it.
pub(crate) fn queues<'a>(
    name: &str,
    destination: &'a Destination,
) -> Result<&'a Arc<dyn Queue>, DispatchError> {
    let queues = destination.queues.as_ref();
    queues.map_err(|why| DispatchError::Connection {
        name: name.to_owned(),
        why: why.clone(),
    })
}
