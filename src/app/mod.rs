//! What is known of the Laravel app whose queues are worked.

mod env;
mod prefixes;

pub use env::{EnvError, EnvFile, cast};
pub use prefixes::{DatabasePrefix, slug};
mod manifest;
pub use manifest::{Class, Manifest, ManifestError, Model, Paths};
