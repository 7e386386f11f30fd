//! The task of the writer, and the observer that it gets its notes from.

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::note::Recorder;
use super::options::HorizonOptions;
use super::writer::{Losses, Writer};
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
    /// Starts the task on this runtime; `losses` hears of records that were dropped.
    ///
    /// # Errors
    ///
    /// The server's address cannot be used.
    pub fn start(
        options: HorizonOptions,
        losses: Losses,
        runtime: &Handle,
    ) -> Result<Self, connection::Error> {
        let (recorder, writer) = Writer::new(options, losses)?;
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
