//! Runs a job by a program: the document on its standard input, the verdict in its exit code.
//!
//! | exit | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 65 (`EX_DATAERR`) | failed for good |
//! | 75 (`EX_TEMPFAIL`) | released; a last line `release SECONDS` on standard output sets the wait |
//! | another, or a signal | an exception, whose text is the end of standard error |
//!
//! The program leads a process group of its own, which is killed as a whole
//! when the job's timeout or the worker's stop deadline has passed.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::{BoxError, BoxFuture, Handler, JobContext};

/// `EX_DATAERR` of `sysexits.h`.
const DATA_ERROR: i32 = 65;
/// `EX_TEMPFAIL` of `sysexits.h`.
const TEMPORARY_FAILURE: i32 = 75;
/// How much of the end of an output is kept, in bytes.
pub(super) const KEPT_OUTPUT: usize = 8 * 1024;

/// A program and its arguments (`handler = { exec = ["python3", "invoice.py"] }`).
#[derive(Debug, Clone)]
pub struct Exec {
    program: String,
    args: Vec<String>,
}

/// Why a program did not do its job.
#[derive(Debug, thiserror::Error)]
pub(super) enum ExecError {
    #[error("could not start `{program}`")]
    Start {
        program: String,
        source: std::io::Error,
    },
    #[error("lost the connection to `{program}`")]
    Pipe {
        program: String,
        source: std::io::Error,
    },
    #[error("`{program}` ended with {status}{stderr}")]
    Ended {
        program: String,
        status: ExitStatus,
        stderr: String,
    },
}

impl Exec {
    /// A program found by the search path, and its arguments.
    pub fn new(program: impl Into<String>, args: impl IntoIterator<Item = String>) -> Self {
        Self {
            program: program.into(),
            args: args.into_iter().collect(),
        }
    }

    async fn run(&self, context: JobContext) -> Result<(), BoxError> {
        let mut document = context.document()?;
        document.push('\n');
        let mut command = Command::new(&self.program);
        command
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .env(
                "ARTISAND_JOB_UUID",
                context.uuid().map_or("", |uuid| uuid.as_str()),
            )
            .env("ARTISAND_JOB_ID", context.id().map_or("", |id| id.as_str()))
            .env("ARTISAND_JOB_CLASS", context.payload().resolve_name())
            .env("ARTISAND_JOB_KIND", kind_of(&context))
            .env("ARTISAND_JOB_ATTEMPTS", context.attempts().to_string())
            .env("ARTISAND_QUEUE", context.queue().as_str())
            .env("ARTISAND_CONNECTION", context.connection().as_str());
        let start = |source| ExecError::Start {
            program: self.program.clone(),
            source,
        };
        let pipe = |source| ExecError::Pipe {
            program: self.program.clone(),
            source,
        };
        let mut child = command.spawn().map_err(start)?;
        let mut group = ProcessGroup::of(&child);
        let mut stdin = child.stdin.take().expect("standard input is piped");
        let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
        let (mut kept_stdout, mut kept_stderr) = (Vec::new(), Vec::new());
        let feed = async move {
            // A program that does not want its input closes it: no reason to fail.
            let _ = stdin.write_all(document.as_bytes()).await;
        };
        let status = {
            let outputs = async {
                tokio::join!(
                    feed,
                    read_end(stdout.as_mut(), &mut kept_stdout),
                    read_end(stderr.as_mut(), &mut kept_stderr)
                )
            };
            let mut outputs = std::pin::pin!(outputs);
            let mut are_closed = false;
            let status = loop {
                tokio::select! {
                    biased;
                    status = child.wait() => break status,
                    _ = &mut outputs, if !are_closed => are_closed = true,
                }
            };
            if !are_closed {
                // What the program left behind may keep its pipes open for as long as it likes.
                let _ = tokio::time::timeout(LINGER, outputs).await;
            }
            status.map_err(pipe)?
        };
        group.forget();
        let (stdout, stderr) = (lossy(&kept_stdout), lossy(&kept_stderr));
        let ended = || ExecError::Ended {
            program: self.program.clone(),
            status,
            stderr: indented(&stderr),
        };
        match status.code() {
            Some(0) => Ok(()),
            Some(DATA_ERROR) => {
                context.fail(ended());
                Ok(())
            }
            Some(TEMPORARY_FAILURE) => {
                context.release(asked_delay(&stdout).unwrap_or_default());
                Ok(())
            }
            _ => Err(ended().into()),
        }
    }
}

impl Handler for Exec {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.run(context))
    }
}

/// Kills the program and everything it started, unless it has ended by itself.
#[derive(Debug)]
pub(super) struct ProcessGroup(Option<rustix::process::Pid>);

impl ProcessGroup {
    pub(super) fn of(child: &Child) -> Self {
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        Self(pid.and_then(rustix::process::Pid::from_raw))
    }

    /// The program has ended: what it left behind may live on.
    pub(super) fn forget(&mut self) {
        self.0 = None;
    }

    /// Asks the program itself to end.
    pub(super) fn terminate(&self) {
        if let Some(program) = self.0 {
            // It may have ended just now.
            let _ = rustix::process::kill_process(program, rustix::process::Signal::TERM);
        }
    }

    /// Kills them now.
    pub(super) fn kill(&self) {
        if let Some(group) = self.0 {
            // It may have ended just now; then there is nothing to kill.
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
    }

    /// Whether the program has ended; it is still to be waited for, and its number nobody else's.
    pub(super) fn has_ended(&self) -> bool {
        use rustix::process::{WaitId, WaitIdOptions, waitid};
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_running = |group| matches!(waitid(WaitId::Pid(group), look), Ok(None));
        !self.0.is_some_and(is_running)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

/// How long to read on after the program has ended.
pub(super) const LINGER: Duration = Duration::from_millis(200);

/// Reads to the end, or until it cannot be read, and keeps the last part.
async fn read_end(pipe: Option<&mut (impl AsyncReadExt + Unpin)>, kept: &mut Vec<u8>) {
    let Some(pipe) = pipe else { return };
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = pipe.read(&mut buffer).await {
        kept.extend_from_slice(&buffer[..read]);
        if kept.len() > KEPT_OUTPUT {
            kept.drain(..kept.len() - KEPT_OUTPUT);
        }
    }
}

pub(super) fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(super) fn indented(stderr: &str) -> String {
    let stderr = stderr.trim_end();
    if stderr.is_empty() {
        String::new()
    } else {
        format!(": {stderr}")
    }
}

/// The wait asked for by a last line `release SECONDS`.
fn asked_delay(stdout: &str) -> Option<Duration> {
    let line = stdout.trim_end().lines().next_back()?;
    let seconds: f64 = line.strip_prefix("release ")?.trim().parse().ok()?;
    // Laravel counts whole seconds: a part of one is one.
    Duration::try_from_secs_f64(seconds.ceil()).ok()
}

/// The kind of job, as its document has it; empty where that cannot be read.
fn kind_of(context: &JobContext) -> String {
    let target = context.target();
    target.map_or_else(|_| String::new(), |target| target.kind().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_may_ask_for_a_wait() {
        let rows = [
            ("release 30\n", Some(30)),
            ("x\nrelease 5", Some(5)),
            ("release 5\nx", None),
            ("release x", None),
            ("release 1.5", Some(2)),
            ("release -1", None),
            ("", None),
        ];
        for (stdout, seconds) in rows {
            assert_eq!(
                asked_delay(stdout),
                seconds.map(Duration::from_secs),
                "{stdout:?}"
            );
        }
    }
}
