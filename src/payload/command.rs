//! The serialized object inside a payload.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Data, Error, Payload};
use crate::php::{self, ClassName, PropertyScan, Value};

/// A serialized PHP object, plain or decrypted.
#[derive(Debug, Clone)]
pub struct Command {
    class: ClassName,
    bytes: Arc<[u8]>,
}

impl Command {
    /// Reads the command of an object job; `None` for a string job.
    ///
    /// # Errors
    ///
    /// [`Error::Encrypted`] if the command is encrypted and was not decrypted
    /// ([`Payload::decrypt`]), [`Error::Command`] if it is not an object of a
    /// class.
    pub fn of(payload: &Payload) -> Result<Option<Self>, Error> {
        let Data::Command { name, command, .. } = &payload.data else {
            return Ok(None);
        };
        if payload.is_encrypted() {
            return Err(Error::Encrypted {
                class: name.clone(),
            });
        }
        let class = php::leading_class(command);
        let class = class.map_err(|source| Error::Command {
            class: name.clone(),
            source,
        })?;
        // Nearly always `commandName` is the class, spelled alike.
        let class = if class == &**name {
            Arc::clone(name)
        } else {
            class.into()
        };
        Ok(Some(Self {
            class: ClassName::accepted(class),
            bytes: Arc::clone(command),
        }))
    }

    /// Class of the object in the serialized text, which is the class that PHP would run.
    pub fn class(&self) -> &ClassName {
        &self.class
    }

    /// The serialized object.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the object's properties into a type.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, php::Error> {
        php::from_slice(&self.bytes)
    }

    /// The batch of the job if its class is `Batchable`: its property `batchId`, or `None` if that is not text.
    ///
    /// # Errors
    ///
    /// The object cannot be read.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batchable::batch`.
    pub fn batch_id(&self) -> Result<Option<String>, php::Error> {
        // Most jobs have no batch: check for that without parsing.
        static BATCH_ID: PropertyScan = PropertyScan::public("batchId");
        if !BATCH_ID.may_exist(self.as_bytes()) {
            return Ok(None);
        }
        let value = self.to_value()?;
        let id = value.as_object().and_then(|object| object.get("batchId"));
        let id = id.and_then(Value::as_str);
        Ok(id.filter(|id| !matches!(*id, "" | "0")).map(str::to_owned))
    }

    /// Reads the whole object.
    pub fn to_value(&self) -> Result<Value, php::Error> {
        Value::from_bytes(&self.bytes)
    }
}

impl Payload {
    /// Id of the batch that the job is in, if it is in one and its class is `Batchable`.
    pub(crate) fn batch_id(&self) -> Option<String> {
        let Data::Command { batch_id, .. } = &self.data else {
            return None;
        };
        let of_command = Command::of(self).ok().flatten();
        let of_command = of_command.and_then(|command| command.batch_id().ok()?);
        // Since Laravel 12.51 the id is outside of an encrypted command, too.
        of_command.or_else(|| {
            let id = batch_id.as_deref();
            id.filter(|id| !matches!(*id, "" | "0")).map(str::to_owned)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_batch_of_a_job_is_its_public_property() {
        #[rustfmt::skip]
        let rows = [
            (r#"O:1:"J":1:{s:7:"batchId";s:3:"b-1";}"#, Some("b-1")),
            (r#"O:1:"J":1:{s:7:"batchId";N;}"#, None),
            (r#"O:1:"J":1:{s:7:"batchId";s:0:"";}"#, None),
            (r#"O:1:"J":1:{s:7:"batchId";i:7;}"#, None),
            (r#"O:1:"J":1:{s:1:"a";a:1:{s:7:"batchId";s:3:"b-1";}}"#, None),
            (r#"O:1:"J":1:{s:7:"chained";a:1:{i:0;s:36:"O:1:"J":1:{s:7:"batchId";s:3:"b-1";}";}}"#, None),
            (r#"O:1:"J":0:{}"#, None),
        ];
        for (text, expected) in rows {
            let command = Command {
                class: ClassName::new("J").unwrap(),
                bytes: Arc::from(text.as_bytes()),
            };
            let found = command.batch_id().unwrap_or_else(|e| panic!("{text}: {e}"));
            assert_eq!(found.as_deref(), expected, "{text}");
        }
    }
}
