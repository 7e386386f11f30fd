//! Records of Laravel Horizon: what its dashboard shows of the jobs that this worker takes.
//!
//! Horizon's own workers write them while they work; a worker that Horizon does not know has to write the same keys.
//! Here an observer notes what happens, and a task of its own writes the notes in batches,
//! so that no job waits for them. A record that cannot be written changes nothing about its job.
//!
//! # Source
//!
//! Keys, fields and their order: docs/protocol/horizon.md.

mod batch;
mod note;
mod options;
mod register;
mod task;
#[cfg(feature = "cli")]
mod waits;
mod writer;
mod writes;

pub use crate::task::Losses;
pub use options::{HorizonOptions, Registration, Share, Supervisor, Trim};
pub use task::Horizon;
#[cfg(feature = "cli")]
pub use waits::WaitMonitor;
