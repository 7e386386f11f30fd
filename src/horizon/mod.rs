//! Records of Laravel Horizon: what its dashboard shows of the jobs that this worker takes.
//!
//! Horizon's own workers write them while they work; a worker that Horizon does not know has to write the same keys.
//! Here an observer notes what happens, and a task of its own writes the notes in batches,
//! so that no job waits for them. A record that cannot be written changes nothing about its job.
//!
//! # Source
//!
//! Keys, fields and their order: docs/protocol/horizon.md.

#[cfg(feature = "cli")]
mod batch;
#[cfg(feature = "cli")]
mod note;
mod options;
#[cfg(feature = "cli")]
mod register;
#[cfg(feature = "cli")]
mod task;
#[cfg(feature = "cli")]
mod writer;

pub use options::{HorizonOptions, Registration, Supervisor, Trim};
#[cfg(feature = "cli")]
pub use task::Horizon;
