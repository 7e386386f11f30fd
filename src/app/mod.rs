//! Facts about the Laravel app whose queues this program works.

mod class;
mod classes;
mod env;
mod framework;
mod horizon;
mod manifest;
mod object;
mod slug;
mod subject;
mod variables;
mod wrapper;

pub use crate::payload::Version;
pub use class::{Facts, Unique};
pub use classes::{Classes, Presence, nearest};
pub use env::{EnvError, EnvFile, cast};
pub use framework::{cached_config_path, framework_version};
pub use manifest::Listens;
pub(crate) use manifest::between_marks;
pub use manifest::{
    Class, Code, Manifest, ManifestError, Middleware, Model, Part, Paths, Pivot, Property,
    Returned, UniqueId, is_same_directory,
};
pub use object::{Made, Unfit};
pub use slug::slug;
pub use subject::{Answers, Missing};
pub use variables::{Overrides, Variables};
pub use wrapper::{Wrapped, Wrapping};

/// Whether a directory contains a Laravel app.
pub fn is_app(base: &std::path::Path) -> bool {
    base.join("artisan").is_file() && base.join("bootstrap/app.php").is_file()
}
