//! Runs Laravel queue jobs in Rust, together with PHP workers or instead of them.
//!
//! A job starts as bytes on a queue, in Redis, in a database, on beanstalkd or on SQS, and becomes data step by step:
//!
//! ```text
//! Redis list element, row of a table, or message
//!   │ queue::Queue::pop          one call for many jobs; they are now reserved
//! ReservedJob                    bytes, kept until the end
//!   │ worker: triage             parses, decrypts and routes, once
//! Candidate                      payload; handler, middleware and completion
//!   │ worker: attempt            runs it; error, panic, timeout and stop become one value
//! Outcome
//!   │ worker: decide             Laravel's limits and backoff
//! Decision
//!   │ worker: completion, ending effects of the job's end, its events
//! Ending
//!   │ queue::Queue::settle       effects and deletion in one step; one call for many jobs
//! Event -> observers
//! ```
//!
//! `docs/architecture.md` follows one job through the files, and `docs/glossary.md` explains the words.
//!
//! A program with its own handlers, and artisan's command line:
//!
//! ```no_run
//! use artisand::{JobContext, Registry, handler};
//!
//! #[derive(serde::Deserialize)]
//! struct ProcessPodcast {
//!     title: String,
//! }
//!
//! async fn process_podcast(job: ProcessPodcast, context: JobContext) -> Result<(), std::io::Error> {
//!     println!("{} (attempt {})", job.title, context.attempts());
//!     Ok(())
//! }
//!
//! # #[cfg(feature = "cli")]
//! fn main() -> std::process::ExitCode {
//!     artisand::cli::run(Registry::new().with("process_podcast", handler::function(process_podcast)))
//! }
//! # #[cfg(not(feature = "cli"))]
//! # fn main() {}
//! ```
//!
//! [`cli::Application`] adds observers of what happens to jobs, and a name and version of your own.

// Only this crate's own tests, benchmarks and fuzz targets see the rest; without them not all of it can be reached.
#![cfg_attr(
    not(all(feature = "internals", feature = "cli")),
    allow(
        unreachable_pub,
        unused_imports,
        reason = "the feature makes them reachable"
    )
)]
// Most of the crate is there for the command line.
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, reason = "the command line uses it")
)]

#[cfg(not(feature = "internals"))]
mod app;
#[cfg(feature = "internals")]
pub mod app;
#[cfg(not(feature = "internals"))]
mod batch;
#[cfg(feature = "internals")]
pub mod batch;
#[cfg(not(feature = "internals"))]
mod cache;
#[cfg(feature = "internals")]
pub mod cache;
#[cfg(feature = "cli")]
pub mod cli;
#[cfg(not(feature = "internals"))]
mod config;
#[cfg(feature = "internals")]
pub mod config;
#[cfg(not(feature = "internals"))]
mod connection;
#[cfg(feature = "internals")]
pub mod connection;
pub mod dispatch;
#[cfg(not(feature = "internals"))]
mod failed;
#[cfg(feature = "internals")]
pub mod failed;
pub mod handler;
#[cfg(not(feature = "internals"))]
mod horizon;
#[cfg(feature = "internals")]
pub mod horizon;
#[cfg(all(not(feature = "internals"), feature = "cli"))]
mod listeners;
#[cfg(all(feature = "internals", feature = "cli"))]
pub mod listeners;
pub mod middleware;
mod new_file;
mod outbox;
#[cfg(not(feature = "internals"))]
mod payload;
#[cfg(feature = "internals")]
pub mod payload;
pub mod php;
#[cfg(not(feature = "internals"))]
mod process;
#[cfg(feature = "internals")]
pub mod process;
#[cfg(not(feature = "internals"))]
mod pulse;
#[cfg(feature = "internals")]
pub mod pulse;
#[cfg(not(feature = "internals"))]
mod queue;
#[cfg(feature = "internals")]
pub mod queue;
#[cfg(not(feature = "internals"))]
mod routing;
#[cfg(feature = "internals")]
pub mod routing;
mod shown;
mod task;
#[cfg(not(feature = "internals"))]
mod telemetry;
#[cfg(feature = "internals")]
pub mod telemetry;
pub mod testing;
#[cfg(not(feature = "internals"))]
mod time;
#[cfg(feature = "internals")]
pub mod time;
#[cfg(not(feature = "internals"))]
mod worker;
#[cfg(feature = "internals")]
pub mod worker;

pub use handler::JobContext;
pub use process::supervise;
pub use routing::Registry;
/// jemalloc, for the `#[global_allocator]` of your own program.
#[cfg(feature = "jemalloc")]
pub use tikv_jemallocator::Jemalloc;

/// What happens to jobs, for observers of a worker.
pub mod event {
    pub use crate::routing::Runner;
    pub use crate::worker::{
        Event, JobEnd, JobException, JobResult, Looping, Observer, StopReason,
    };
}

/// What a job is: its payload, and the names in it.
pub mod job {
    pub use crate::payload::{
        Data, Error, JobId, JobUuid, Kind, Payload, SpanIds, Target, Trace, TraceContext,
    };
    pub use crate::queue::{ConnectionName, QueueName};
}

/// The README's examples compile.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../README.md")]
struct Readme;

/// So do those of the page on handlers.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../docs/handlers.md")]
struct HandlersPage;

/// And those of the page on dispatching.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../docs/dispatch.md")]
struct DispatchPage;

/// And those of the page on tests.
#[cfg(all(doctest, feature = "cli"))]
#[doc = include_str!("../docs/testing.md")]
struct TestingPage;
