//! The serialized object inside a payload.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::{Data, Error, Payload};
use crate::php::{self, ClassName, Value};

/// A serialized PHP object, plain or decrypted.
#[derive(Debug, Clone)]
pub struct Command {
    class: ClassName,
    bytes: Arc<[u8]>,
}

impl Command {
    /// Finds the command of an object job; `None` for a string job.
    ///
    /// # Errors
    ///
    /// [`Error::Encrypted`] if the command is encrypted and was not decrypted
    /// ([`Payload::decrypt`]), [`Error::Command`] if it is no object of a class.
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
        Ok(Some(Self {
            class,
            bytes: Arc::clone(command),
        }))
    }

    /// Class of the object, as written in the serialized text: the one PHP would run.
    pub fn class(&self) -> &ClassName {
        &self.class
    }

    /// The serialized object.
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Reads the object's properties into a type of one's own.
    pub fn deserialize<T: DeserializeOwned>(&self) -> Result<T, php::Error> {
        php::from_slice(&self.bytes)
    }

    /// Reads the whole object.
    pub fn to_value(&self) -> Result<Value, php::Error> {
        Value::from_bytes(&self.bytes)
    }
}
