//! What dispatching needs of the app.

use std::sync::Arc;

use serde::Serialize;

use super::error::DispatchError;
use crate::app::Unfit;
use crate::handler::Services;
use crate::horizon::Horizon;
use crate::payload::LogContext;
use crate::php::{self, Object, Value};

#[derive(Debug)]
pub(super) struct App {
    pub(super) services: Arc<Services>,
    /// Jobs that a handler dispatches inherit its log context.
    pub(super) context: Option<Arc<LogContext>>,
    /// Writers of Horizon's records, which end with this.
    pub(super) _horizons: Vec<Horizon>,
}

impl App {
    /// The object of a struct.
    pub(super) fn read<T: Serialize>(&self, job: &T) -> Result<Object, DispatchError> {
        let bytes = php::to_vec(job).map_err(DispatchError::unfit)?;
        match Value::from_bytes(&bytes).map_err(DispatchError::unfit)? {
            Value::Object(object) => Ok(object),
            _ => Err(self.no_class(Self::short_name::<T>())),
        }
    }

    /// A type whose serde name is no class.
    pub(super) fn no_class(&self, of_type: &str) -> DispatchError {
        let manifest = self.services.manifest.as_ref();
        let names = manifest.iter().flat_map(|manifest| manifest.classes.keys());
        let mut same = names.filter(|name| name.rsplit('\\').next() == Some(of_type));
        let class = same.next().map_or("App\\Jobs\\..", |name| name);
        let what = format!(
            "`{of_type}` names no PHP class: #[serde(rename = \"{}\")]",
            class.replace('\\', "\\\\")
        );
        Unfit::NoClass { what }.into()
    }

    /// The name of a Rust type without its path.
    pub(super) fn short_name<T>() -> &'static str {
        let name = std::any::type_name::<T>();
        name.rsplit("::").next().unwrap_or(name)
    }
}
