//! The worker as a process of its own.

use std::path::Path;
use std::process::{ExitCode, ExitStatus, Stdio};
use std::time::Duration;

use anyhow::Context as _;
use rustix::process::{Pid, Signal};
use tokio::process::{Child, ChildStdin, Command};
use tokio::time::Instant;

use crate::cli::{exit, output};

/// How long a worker that has ended by itself is not started again.
pub(super) const REST: Duration = Duration::from_secs(3);
/// The option that tells a process that it is the worker.
const AS_WORKER: &str = "--as-worker";

/// A worker, in a process of its own.
pub(super) struct Worker {
    child: Child,
    /// Its end tells the worker that this process is gone, however it ended.
    _held: Option<ChildStdin>,
    pub(super) began: Instant,
}

impl Worker {
    /// Starts a worker with the arguments of this process.
    pub(super) fn start(program: &Path) -> anyhow::Result<Worker> {
        let mut child = Command::new(program)
            .args(std::env::args_os().skip(1))
            .arg(AS_WORKER)
            .stdin(Stdio::piped())
            // A key pressed in a terminal is a signal to this process alone.
            .process_group(0)
            .spawn()
            .with_context(|| format!("could not start {}", program.display()))?;
        Ok(Worker {
            // Waiting for a child closes what it still has of it.
            _held: child.stdin.take(),
            child,
            began: Instant::now(),
        })
    }

    pub(super) fn signal(&self, signal: Signal) {
        let pid = self.child.id().and_then(|id| i32::try_from(id).ok());
        if let Some(pid) = pid.and_then(Pid::from_raw) {
            // It may have ended just now.
            let _ = rustix::process::kill_process(pid, signal);
        }
    }
}

/// Waits for the end of a worker; forever if there is none.
pub(super) async fn end_of(worker: Option<&mut Worker>) -> std::io::Result<ExitStatus> {
    match worker {
        Some(worker) => worker.child.wait().await,
        None => std::future::pending().await,
    }
}

/// Says why a worker that has ended by itself is not started at once, and returns when it is; `None` if that needs a
/// change.
pub(super) fn rest(status: ExitStatus, lived: Duration) -> Option<Instant> {
    if status.code() == Some(i32::from(exit::USAGE)) {
        output::inform("The worker starts again when a file changes.");
        return None;
    }
    // The memory limit, or queue:restart.
    let is_as_usual = status.success() || status.code() == Some(12);
    let rest = if is_as_usual && lived > REST {
        Duration::ZERO
    } else {
        output::inform(&format!(
            "The worker ended ({status}); it starts again in {} s, or when a file changes.",
            REST.as_secs()
        ));
        REST
    };
    Some(Instant::now() + rest)
}

/// The exit code of a process that a signal may have ended.
pub(super) fn code_of(status: ExitStatus) -> ExitCode {
    let code = status.code().and_then(|code| u8::try_from(code).ok());
    code.map_or(ExitCode::FAILURE, ExitCode::from)
}
