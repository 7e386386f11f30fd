//! What is known of the Laravel app whose queues are worked.

pub mod broadcast;
mod class;
mod env;
mod manifest;
pub mod php_config;
mod slug;
mod source;
mod subject;

pub use crate::payload::{Version, VersionError};
pub use class::{Facts, Unique};
pub use env::{EnvError, EnvFile, cast};
pub use manifest::{
    Broadcasting, Class, Manifest, ManifestError, Middleware, Model, Part, PathStep, Paths, Pivot,
    Property, PropertyPath, Returned, UniqueId, is_same_directory,
};
pub use slug::slug;
pub use source::{AppConfig, Origin, SourceError, cached_config_path, framework_version, read};
pub use subject::Missing;
