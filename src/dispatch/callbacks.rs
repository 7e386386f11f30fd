//! Callbacks of chains and batches: closures, signed with the app's key, that dispatch a job in PHP.

use crate::handler::Services;
use crate::handler::dispatch as draft;
use crate::outbox::hand_over::DISPATCHES;
use crate::payload::QueuedClosure;
use crate::php::{Array, Object, Value};

use super::error::DispatchError;

/// A list of callbacks, each of which dispatches one of these jobs.
pub(super) fn callbacks(services: &Services, jobs: Vec<Object>) -> Result<Value, DispatchError> {
    let manifest = draft::manifest(services)?;
    let closures = jobs.into_iter().map(|job| {
        let class = job.class.clone();
        let no = |why: String| {
            DispatchError::OnlyPhp(format!("{class} cannot be a callback: {why}").into())
        };
        let known = manifest.class(&class);
        if known.is_some_and(|class| !class.is_queued()) {
            return Err(crate::app::Unfit::NotQueued { class }.into());
        }
        let job = manifest.command(job, Vec::new())?;
        let closure = QueuedClosure {
            code: DISPATCHES,
            uses: vec![("job", Value::String(job.bytes))],
        };
        let encrypter = services.encrypter.as_deref();
        let encrypter = encrypter.ok_or_else(|| no("the app's key is not known".to_owned()))?;
        let command = closure.command(encrypter);
        let command = command.map_err(|error| no(error.to_string()))?;
        Ok(command.get("closure").cloned().unwrap_or(Value::Null))
    });
    closures.collect::<Result<Array, _>>().map(Value::from)
}
