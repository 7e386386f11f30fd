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
pub use options::{HorizonOptions, Registration, Supervisor, Trim};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::connection;
use crate::shown::with_causes;

/// The task that writes records, and the observer that it gets them from.
#[derive(Debug)]
pub struct Horizon {
    recorder: Recorder,
    writing: JoinHandle<()>,
    last: CancellationToken,
}

impl Horizon {
    /// Starts the task on this runtime.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn start(options: HorizonOptions, runtime: &Handle) -> Result<Self, connection::Error> {
        let (recorder, writer) = writer::Writer::new(options)?;
        let last = CancellationToken::new();
        Ok(Self {
            recorder,
            writing: runtime.spawn(writer.run(last.clone())),
            last,
        })
    }

    /// The observer of a worker, and the listener of pushes.
    pub fn recorder(&self) -> Recorder {
        self.recorder.clone()
    }

    /// Writes what is left, for a few seconds at most, and removes the worker's own records.
    pub async fn finish(self) {
        self.last.cancel();
        if let Err(error) = self.writing.await {
            tracing::error!(
                error = with_causes(&error),
                "Horizon's records are no longer written"
            );
        }
    }
}
