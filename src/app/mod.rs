//! What is known of the Laravel app whose queues are worked.

mod class;
mod classes;
mod env;
mod manifest;
pub mod php_config;
mod slug;
mod source;
mod subject;
mod variables;

pub use crate::payload::{Version, VersionError};
pub use class::{Facts, Unique};
pub use classes::{Classes, Presence, nearest};
pub use env::{EnvError, EnvFile, cast};
pub use manifest::Listens;
pub use manifest::{
    Class, Code, Manifest, ManifestError, Middleware, Model, Part, Paths, Pivot, Property,
    Returned, UniqueId, is_same_directory,
};
pub use slug::slug;
pub use source::{AppConfig, Origin, SourceError, cached_config_path, framework_version, read};
pub use subject::Missing;
pub use variables::{Overrides, Variables};

/// Whether a directory is that of a Laravel app.
pub fn is_app(base: &std::path::Path) -> bool {
    base.join("artisan").is_file() && base.join("bootstrap/app.php").is_file()
}
