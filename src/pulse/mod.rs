//! Entries of Laravel Pulse: its cards Queues, Slow Jobs and Exceptions count the jobs that run here.
//!
//! Pulse's recorders hear Laravel's events, and those of a job that runs in a handler are not raised in PHP, or only
//! some of them. Here an observer counts the others, and a task of its own adds the counts to Pulse's tables every few
//! seconds, as Pulse's own storage does it: already summed up, so that some rows say what thousands of jobs did. What
//! runs in PHP is left to Pulse's recorders there.
//!
//! # Source
//!
//! `Laravel\Pulse\Recorders\{Queues, SlowJobs, Exceptions}`, `Laravel\Pulse\Storage\DatabaseStorage`.

mod gather;
mod hash;
mod options;
mod pattern;
mod recorder;
mod rows;
mod task;

pub use gather::{Gathered, Happened};
pub use options::{Limit, PulseOptions, RecorderOptions, SlowJobs};
pub use pattern::{PhpPattern, PhpPatternError};
pub use recorder::PulseRecorder;
pub use rows::{Rows, Unwritten, write};
pub use task::Pulse;

pub use crate::task::Losses;
