//! Programs that run jobs: one per job, long-lived ones, and PHP processes that have booted the app.

mod child;
mod environment;
mod exec;
#[cfg(feature = "cli")]
mod files;
mod persistent;
pub mod pool;

pub use child::supervise;
pub use environment::Environment;
pub use exec::{Exec, ExecOptions};
#[cfg(feature = "cli")]
pub use files::raise_file_limit;
#[cfg(feature = "internals")]
pub use persistent::Answer;
pub use persistent::{Persistent, PersistentOptions};
