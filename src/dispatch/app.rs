//! What dispatching needs of the app.

use std::sync::{Arc, Mutex};

use serde::Serialize;

use super::error::DispatchError;
use crate::handler::Services;
use crate::horizon::Horizon;
use crate::payload::LogContext;
use crate::php::{self, Object, Value};

#[derive(Debug)]
pub(super) struct App {
    pub(super) services: Arc<Services>,
    /// Jobs that a handler dispatches inherit its log context.
    pub(super) context: Option<Arc<LogContext>>,
    /// Writers of Horizon's records, until they are finished.
    pub(super) horizons: Mutex<Vec<Horizon>>,
}

impl App {
    /// The object of a struct.
    pub(super) fn read<T: Serialize>(&self, job: &T) -> Result<Object, DispatchError> {
        let bytes = php::to_vec(job).map_err(DispatchError::unfit)?;
        if let Value::Object(object) = Value::from_bytes(&bytes).map_err(DispatchError::unfit)? {
            return Ok(object);
        }
        let manifest = crate::handler::dispatch::manifest(&self.services)?;
        Err(manifest.no_class(php::short_name::<T>()).into())
    }
}
