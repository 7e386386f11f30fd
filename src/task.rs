//! A task beside the worker, which does its last work when the worker has stopped.

use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::shown::with_causes;

/// Hears how many records of jobs were lost on their way to where operators look.
pub type Losses = Arc<dyn Fn(u64) + Send + Sync>;

/// A task that runs until it is told to finish.
#[derive(Debug)]
pub(crate) struct BackgroundTask {
    task: JoinHandle<()>,
    last: CancellationToken,
}

impl BackgroundTask {
    /// Starts it on this runtime. It ends soon after its token is cancelled.
    pub(crate) fn start<F>(runtime: &Handle, run: impl FnOnce(CancellationToken) -> F) -> Self
    where
        F: Future<Output = ()> + Send + 'static,
    {
        let last = CancellationToken::new();
        Self {
            task: runtime.spawn(run(last.clone())),
            last,
        }
    }

    /// Waits for its last work. If it panicked, the log gets `abnormal`: what is not done any more.
    pub(crate) async fn finish(self, abnormal: &str) {
        self.last.cancel();
        if let Err(error) = self.task.await {
            tracing::error!(error = with_causes(&error), "{abnormal}");
        }
    }
}

/// Returns when this time has passed since a task was told to finish: no worker waits longer for a server that is away.
pub(crate) async fn too_late(last: &CancellationToken, limit: Duration) {
    last.cancelled().await;
    tokio::time::sleep(limit).await;
}
