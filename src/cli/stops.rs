//! Signals that tell a command to end.

use std::time::Duration;

use anyhow::Context as _;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How far apart two signals of a person are; wrappers may send one twice.
pub(super) const APART: Duration = Duration::from_secs(1);

/// Hears of signals that tell the process to end, but not of hangups that `nohup` has it ignore.
pub(super) fn stops() -> anyhow::Result<mpsc::Receiver<()>> {
    hear((!ignores_hangups()).then(SignalKind::hangup))
}

/// Hears of signals that tell the process to end, and of every hangup: it needs its terminal.
pub(super) fn stops_and_hangups() -> anyhow::Result<mpsc::Receiver<()>> {
    hear(Some(SignalKind::hangup()))
}

fn hear(hangup: Option<SignalKind>) -> anyhow::Result<mpsc::Receiver<()>> {
    let (sender, receiver) = mpsc::channel(1);
    let others = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::quit(),
    ];
    for kind in others.into_iter().chain(hangup) {
        let arrivals = signal(kind).context("could not listen for signals");
        let (mut arrivals, sender) = (arrivals?, sender.clone());
        tokio::spawn(async move {
            while arrivals.recv().await.is_some() && sender.send(()).await.is_ok() {}
        });
    }
    Ok(receiver)
}

/// Whether this process ignores SIGHUP, the first bit of the mask.
fn ignores_hangups() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask & 1 == 1)
}
