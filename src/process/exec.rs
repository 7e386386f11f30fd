//! Runs a job by a program: the document on its standard input, the verdict in its exit code.
//!
//! | exit | meaning |
//! | --- | --- |
//! | 0 | done |
//! | 65 (`EX_DATAERR`) | failed for good |
//! | 75 (`EX_TEMPFAIL`) | released; a last line `release SECONDS` on standard output sets the wait |
//! | another, or a signal | an exception, whose text is the end of standard error |
//!
//! The program leads its own process group. artisand kills the whole group when
//! the job's timeout or the worker's stop deadline has passed; the supervisor
//! kills it when the worker itself is killed.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};

use super::child::ProcessGroup;
use super::environment::Environment;
use crate::handler::{BoxError, BoxFuture, Handler, InputError, JobContext, MAX_WAIT};
use crate::payload::{JobId, JobUuid};
use crate::shown;

/// `EX_DATAERR` of `sysexits.h`.
const DATA_ERROR: i32 = 65;
/// `EX_TEMPFAIL` of `sysexits.h`.
const TEMPORARY_FAILURE: i32 = 75;
/// Number of bytes kept from the end of an output.
pub(super) const KEPT_OUTPUT: usize = 8 * 1024;

/// The settings of a program in a mapping (`handler = { exec = ["python3", "invoice.py"] }`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ExecOptions {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// The program's environment.
    pub environment: Environment,
}

/// A program that runs one job.
#[derive(Debug, Clone)]
pub struct Exec {
    program: String,
    args: Vec<String>,
    environment: Environment,
}

/// Why a program failed to run a job.
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
    /// Takes the first word of the command as the program, looked up in `PATH`; `None` if the command is empty.
    pub fn new(options: &ExecOptions) -> Option<Self> {
        let (program, args) = options.command.split_first()?;
        (!program.is_empty()).then(|| Self {
            program: program.clone(),
            args: args.to_vec(),
            environment: options.environment.clone(),
        })
    }

    async fn run(&self, context: JobContext) -> Result<(), BoxError> {
        let mut document = context.document().map_err(InputError::Payload)?;
        document.push('\n');
        let start = |source| ExecError::Start {
            program: self.program.clone(),
            source,
        };
        let pipe = |source| ExecError::Pipe {
            program: self.program.clone(),
            source,
        };
        let mut command = self.command(&context);
        let (mut child, mut group) = match ProcessGroup::spawn(&mut command, Duration::ZERO) {
            Err(error) if context.release_for_want(&error) => return Ok(()),
            spawned => spawned.map_err(start)?,
        };
        let (status, stdout, stderr) = outcome(&mut child, document).await.map_err(pipe)?;
        group.forget();
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

    /// The program with its arguments and what it is told of the job.
    fn command(&self, context: &JobContext) -> Command {
        let mut command = Command::new(&self.program);
        self.environment.apply(&mut command);
        command
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .env(
                "ARTISAND_JOB_UUID",
                &*shown::name(context.uuid().map_or("", JobUuid::as_str)),
            )
            .env(
                "ARTISAND_JOB_ID",
                &*shown::name(context.id().map_or("", JobId::as_str)),
            )
            .env("ARTISAND_JOB_CLASS", &*shown::name(&context.routed_class()))
            .env("ARTISAND_JOB_KIND", kind_of(context))
            .env("ARTISAND_JOB_ATTEMPTS", context.attempts().to_string())
            .env("ARTISAND_QUEUE", context.queue().as_str())
            .env("ARTISAND_CONNECTION", context.connection().as_str());
        if let Some(trace) = context.trace() {
            // What OpenTelemetry has programs read.
            command.env("TRACEPARENT", trace.traceparent());
            command.env("TRACESTATE", trace.tracestate().unwrap_or_default());
        }
        command
    }
}

/// Gives a program its input and waits for its end; unless it is done, returns also the last parts of its two outputs.
async fn outcome(
    child: &mut Child,
    document: String,
) -> std::io::Result<(ExitStatus, String, String)> {
    let mut stdin = child.stdin.take().expect("standard input is piped");
    let (mut stdout, mut stderr) = (child.stdout.take(), child.stderr.take());
    let (mut kept_stdout, mut kept_stderr) = (Vec::new(), Vec::new());
    let feed = async move {
        // A program that does not read its input may close it: that is no failure.
        let _ = stdin.write_all(document.as_bytes()).await;
    };
    let (status, are_closed) = {
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
                status = child.wait() => break status?,
                _ = &mut outputs, if !are_closed => are_closed = true,
            }
        };
        if !are_closed && !status.success() {
            // Processes that the program left behind may keep its pipes open indefinitely.
            let _ = tokio::time::timeout(LINGER, outputs).await;
        }
        (status, are_closed)
    };
    if status.success() && !are_closed {
        // The job is done: no timeout and no stop may come before that is said, and the outputs do not matter.
        tokio::spawn(async move {
            let outputs = async {
                tokio::join!(
                    read_end(stdout.as_mut(), &mut kept_stdout),
                    read_end(stderr.as_mut(), &mut kept_stderr)
                )
            };
            tokio::time::timeout(LINGER, outputs).await
        });
        return Ok((status, String::new(), String::new()));
    }
    Ok((status, lossy(&kept_stdout), lossy(&kept_stderr)))
}

impl Handler for Exec {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.run(context))
    }
}

/// How long to read on after the program has ended: what it left behind may write to its pipes.
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

/// The wait that the program asked for with a last line `release SECONDS`.
fn asked_delay(stdout: &str) -> Option<Duration> {
    let line = stdout.trim_end().lines().next_back()?;
    clamped_wait(line.strip_prefix("release ")?.trim().parse().ok()?)
}

/// Clamps a wait to at least one second, so that a job without limit does not spin, and at most one day.
pub(super) fn clamped_wait(seconds: f64) -> Option<Duration> {
    #[expect(clippy::cast_precision_loss, reason = "a day is exact")]
    let longest = MAX_WAIT as f64;
    // Laravel counts whole seconds: round a fraction up.
    (seconds >= 0.0).then(|| Duration::from_secs_f64(seconds.ceil().clamp(1.0, longest)))
}

/// The kind of job as its document names it; empty if it cannot be read.
fn kind_of(context: &JobContext) -> String {
    let target = context.target();
    target.map_or_else(|_| String::new(), |target| target.kind().to_string())
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_program_is_done_at_once_whatever_still_has_its_outputs() {
        for code in [0, TEMPORARY_FAILURE] {
            let script = format!("sleep 60 & echo release 7; exit {code}");
            let options = ExecOptions {
                command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
                ..ExecOptions::default()
            };
            let context = JobContext::of_payload(br#"{"job":"A","data":{}}"#).unwrap();
            let mut command = Exec::new(&options).unwrap().command(&context);
            let (mut child, group) = ProcessGroup::spawn(&mut command, Duration::ZERO).unwrap();
            let began = Instant::now();
            let (status, stdout, _) = outcome(&mut child, String::new()).await.unwrap();
            // Ends the process that was left behind.
            drop(group);
            assert_eq!(status.code(), Some(code));
            let is_done = code == 0;
            assert_eq!(began.elapsed() < LINGER, is_done, "{code}");
            assert_eq!(asked_delay(&stdout).is_some(), !is_done, "{code}");
        }
    }

    #[test]
    fn the_last_line_may_ask_for_a_wait() {
        let rows = [
            ("release 30\n", Some(30)),
            ("x\nrelease 5", Some(5)),
            ("release 5\nx", None),
            ("release x", None),
            ("release 1.5", Some(2)),
            ("release 0", Some(1)),
            ("release 86401", Some(86_400)),
            ("release 1e300", Some(86_400)),
            ("release NaN", None),
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
