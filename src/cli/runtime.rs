//! The runtime of commands that are not a worker.

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// Runs a command on a runtime of its own.
pub(super) fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    runtime
        .context("could not start the runtime")?
        .block_on(future)
}

/// Hears of signals that tell the process to end, instead of ending it.
pub(super) fn stops(kinds: &[SignalKind]) -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    for kind in kinds {
        let arrivals = signal(*kind).context("could not listen for signals");
        let (mut arrivals, sender) = (arrivals?, sender.clone());
        tokio::spawn(async move {
            while arrivals.recv().await.is_some() && sender.send(()).await.is_ok() {}
        });
    }
    Ok(receiver)
}
