//! What dispatching needs of the app.

use std::sync::Arc;

use serde::Serialize;

use super::error::DispatchError;
use crate::handler::Services;
use crate::payload::Inherited;
use crate::php::{self, Object, Value};

#[derive(Debug)]
pub(super) struct App {
    pub(super) services: Arc<Services>,
    /// What jobs inherit from the job, or the span, that dispatches them.
    pub(super) inherited: Inherited,
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
