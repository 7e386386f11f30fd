//! The runtime of commands that are not a worker.

use anyhow::Context as _;

/// Runs a command on a runtime of its own.
pub(super) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .context("could not start the runtime")?
        .block_on(future)
}
