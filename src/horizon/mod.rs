//! Records of Laravel Horizon: what its dashboard shows of the jobs that this worker takes.
//!
//! Horizon's own workers write them while they work; a worker that Horizon does not know has to write the same keys.
//! Here an observer notes what happens ([`Recorder`]), and a task of its own writes the notes in batches
//! ([`Writer`]), so that no job waits for them. A record that cannot be written changes nothing about its job.
//!
//! # Source
//!
//! Keys, fields and their order: docs/protocol/horizon.md.

mod batch;
mod note;
mod options;
mod register;
mod writer;

pub use note::Recorder;
pub use options::{HorizonOptions, Registration, Trim};
pub use writer::Writer;
