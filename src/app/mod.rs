//! What is known of the Laravel app whose queues are worked.

mod env;
mod manifest;
pub mod php_config;
mod slug;
mod source;

pub use crate::payload::{Version, VersionError};
pub use env::{EnvError, EnvFile, cast};
pub use manifest::{Class, Manifest, ManifestError, Model, Paths, Pivot, is_same_directory};
pub use slug::slug;
pub use source::{AppConfig, Origin, SourceError, cached_config_path, framework_version, read};
