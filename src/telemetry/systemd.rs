//! What systemd is told of a unit with `Type=notify`.

use std::convert::Infallible;
use std::time::Duration;

use sd_notify::NotifyState;

use super::jobs::JobFigures;
use super::pages::check_loop;
use crate::worker::Control;

/// How often the status is told.
const EVERY: Duration = Duration::from_secs(5);
/// For how long a stopping worker asks systemd to wait, each time.
const EXTENSION_MICROS: u32 = 30_000_000;

/// Whether a service manager waits to be told.
pub fn is_watched_by_systemd() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Tells systemd that the worker has started, then that it lives, what it does, and that it stops; until the future
/// is dropped.
///
/// A worker whose loop does not come round is no longer said to live, so that `WatchdogSec=` restarts it. While
/// running jobs finish, systemd is asked to wait: each has a timeout of its own.
pub async fn keep_telling_systemd(
    jobs: JobFigures,
    control: Control,
    sleep: Duration,
) -> Infallible {
    tell(&[NotifyState::Ready]);
    let watchdog = sd_notify::watchdog_enabled();
    let every = watchdog.map_or(EVERY, |watchdog| EVERY.min(watchdog / 2));
    let mut ticks = tokio::time::interval(every);
    let mut stops = std::pin::pin!(control.told_to_quit());
    let mut is_stopping = false;
    loop {
        tokio::select! {
            _ = ticks.tick() => {}
            () = &mut stops, if !is_stopping => {
                is_stopping = true;
                tell(&[NotifyState::Stopping]);
            }
        }
        let status = status(&jobs, is_stopping);
        let mut said = vec![NotifyState::Status(&status)];
        if watchdog.is_some() && check_loop(&control, sleep).is_ok() {
            said.push(NotifyState::Watchdog);
        }
        if is_stopping {
            said.push(NotifyState::ExtendTimeoutUsec(EXTENSION_MICROS));
        }
        tell(&said);
    }
}

fn status(jobs: &JobFigures, is_stopping: bool) -> String {
    let (running, totals) = jobs.totals();
    let stopping = if is_stopping { "stopping; " } else { "" };
    let (attempts, failed) = (totals.attempts, totals.failed);
    format!("{stopping}{running} jobs running; {attempts} attempts ended, {failed} jobs failed")
}

fn tell(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::debug!(%error, "could not tell systemd");
    }
}
