//! Runs jobs by long-lived programs: one line of JSON for each job, one line of JSON for each answer.
//!
//! A program reads one job document a line from standard input and writes one
//! answer a line to standard output, before it reads the next:
//!
//! | answer | meaning |
//! | --- | --- |
//! | `{"ok":true}` | done |
//! | `{"release":30}` | released, with a wait of that many seconds |
//! | `{"fail":"reason"}` | failed for good |
//! | `{"error":"text"}` | an exception |
//!
//! An answer may also hold the `uuid` of its job, which is then compared. A
//! program that writes anything else is out of step: its next answer could belong
//! to another job, so it is killed. When a job runs out of time, its program is
//! killed with its process group. A program that dies fails only the job it was
//! running. Programs are started when they are needed and end when their standard
//! input does.
//!
//! A job is given to another program only if the first one died without having
//! read a byte of it, for example because it ended between two jobs.

use std::num::{NonZeroU64, NonZeroUsize};
use std::process::{ExitStatus, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::FutureExt as _;
use serde::Deserialize;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};
use tokio::runtime::Handle;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::child::ProcessGroup;
use super::environment::Environment;
use super::exec::{ExecError, KEPT_OUTPUT, LINGER, clamped_wait, indented, lossy};
use crate::handler::{BoxError, BoxFuture, Handler, InputError, JobContext};
use crate::payload::JobUuid;
use crate::shown;

/// Most bytes of an answer.
const MAX_ANSWER: usize = 1024 * 1024;
/// Most bytes of a line of standard error that is logged.
const MAX_LOGGED_LINE: usize = 2048;
/// Most lines of standard error that are logged for one job.
const MAX_LOGGED_LINES: usize = 100;
/// How many characters of an invalid answer are shown.
const SHOWN_JUNK: usize = 200;
/// How often to check whether a silent program has ended.
const LOOK: Duration = Duration::from_millis(200);
/// How long a program may take to end after its standard input was closed.
const ENDING: Duration = Duration::from_secs(1);
/// How long to wait for the end of a killed program: one that hangs in the system is left to it.
const DEATH: Duration = Duration::from_secs(5);
/// How often to check whether a program has ended.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The settings of long-lived programs in a mapping (`handler = { exec = [..], persistent = true }`).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct PersistentOptions {
    /// The program and its arguments.
    pub command: Vec<String>,
    /// Most programs at once; if unset, as many as jobs run at once.
    pub processes: Option<NonZeroUsize>,
    /// Jobs after which a program is replaced.
    pub max_jobs: Option<NonZeroU64>,
    /// The programs' environment.
    pub environment: Environment,
}

/// Programs that run one job after the other.
#[derive(Debug)]
pub struct Persistent {
    program: String,
    args: Vec<String>,
    environment: Environment,
    max_jobs: Option<NonZeroU64>,
    /// Permits for programs that are not idle, if their number is limited.
    room: Option<Arc<Semaphore>>,
    pool: Mutex<Pool>,
    /// Programs that are being ended.
    ending: TaskTracker,
}

#[derive(Debug, Default)]
struct Pool {
    /// Idle programs; the one used last is used next.
    idle: Vec<Program>,
    is_closed: bool,
}

/// Why a program gave no answer.
#[derive(Debug, thiserror::Error)]
enum PersistentError {
    #[error("`{program}` ended with {status} before it answered{stderr}")]
    Ended {
        program: String,
        status: ExitStatus,
        stderr: String,
    },
    #[error("`{program}` closed its standard output or input before it answered{stderr}")]
    Closed { program: String, stderr: String },
    #[error("`{program}` wrote something that is no answer ({problem}): {line}{stderr}")]
    Junk {
        program: String,
        problem: String,
        line: String,
        stderr: String,
    },
    #[error("{0}")]
    Reported(String),
}

/// A program's answer about its job.
#[derive(Debug, PartialEq)]
pub enum Answer {
    /// It is done.
    Done,
    /// It goes back to the queue, and is due after this time.
    Release(Duration),
    /// It has failed for good.
    Fail(String),
    /// The attempt ended with an exception.
    Exception(String),
}

/// The result of giving a job to a program.
enum End {
    Answered(Answer),
    /// It closed a pipe after this many bytes of the job had been written.
    Broke {
        written: usize,
    },
    Junk {
        problem: String,
        line: Vec<u8>,
    },
}

impl Persistent {
    /// Takes the first word of the command as the program, looked up in `PATH`; `None` if the command is empty.
    pub fn new(options: &PersistentOptions) -> Option<Self> {
        let (program, args) = options.command.split_first()?;
        (!program.is_empty()).then(|| Self {
            program: program.clone(),
            args: args.to_vec(),
            environment: options.environment.clone(),
            max_jobs: options.max_jobs,
            room: options.processes.map(|processes| {
                let permits = processes.get().min(Semaphore::MAX_PERMITS);
                Arc::new(Semaphore::new(permits))
            }),
            pool: Mutex::default(),
            ending: TaskTracker::new(),
        })
    }

    async fn run(&self, context: JobContext) -> Result<(), BoxError> {
        let mut document = context.document().map_err(InputError::Payload)?;
        document.push('\n');
        let mut busy = Busy {
            program: None,
            room: self.room().await,
            ending: &self.ending,
        };
        let uuid = context.uuid().map(JobUuid::as_str);
        let answer = loop {
            let (program, is_new) = match self.idle() {
                Some(program) => (program, false),
                None => match self.start() {
                    Err(ExecError::Start { source, .. }) if context.release_for_want(&source) => {
                        return Ok(());
                    }
                    started => (started?, true),
                },
            };
            let program = busy.program.insert(program);
            if !is_new && !program.check_usable() {
                // Most such programs ended between two jobs: that fails no job.
                program.reap(0).await;
                busy.program = None;
                continue;
            }
            match program.ask(document.as_bytes(), uuid).await {
                End::Answered(answer) => break answer,
                End::Broke { written } => {
                    let post_mortem = program.reap(written).await;
                    busy.program = None;
                    // If a new program reads nothing, the next one would not either: do not retry.
                    if is_new || !post_mortem.is_untouched {
                        return Err(self.error_of(post_mortem).into());
                    }
                }
                End::Junk { problem, line } => {
                    let line: String = lossy(&line).chars().take(SHOWN_JUNK).collect();
                    return Err(PersistentError::Junk {
                        program: self.program.clone(),
                        problem,
                        line: format!("{line:?}"),
                        stderr: program.stderr_log.end(),
                    }
                    .into());
                }
            }
        };
        self.give_back(busy);
        match answer {
            Answer::Done => Ok(()),
            Answer::Release(delay) => {
                context.release(delay);
                Ok(())
            }
            Answer::Fail(reason) => {
                context.fail(PersistentError::Reported(reason));
                Ok(())
            }
            Answer::Exception(text) => Err(PersistentError::Reported(text).into()),
        }
    }

    /// Waits for room for a program; `None` if their number is not limited.
    async fn room(&self) -> Option<OwnedSemaphorePermit> {
        let room = Arc::clone(self.room.as_ref()?);
        Some(room.acquire_owned().await.expect("it is never closed"))
    }

    fn pool(&self) -> std::sync::MutexGuard<'_, Pool> {
        self.pool.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn idle(&self) -> Option<Program> {
        self.pool().idle.pop()
    }

    fn start(&self) -> Result<Program, ExecError> {
        let start = |source| ExecError::Start {
            program: self.program.clone(),
            source,
        };
        let mut command = Command::new(&self.program);
        self.environment.apply(&mut command);
        command
            .args(&self.args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let (mut child, group) =
            ProcessGroup::spawn(&mut command, Duration::ZERO).map_err(start)?;
        Ok(Program {
            group,
            stdin: child.stdin.take().expect("standard input is piped"),
            stdout: child.stdout.take().expect("standard output is piped"),
            stderr: child.stderr.take().expect("standard error is piped"),
            stderr_is_open: true,
            stderr_log: StderrLog::default(),
            is_out_of_step: false,
            jobs: 0,
            child,
        })
    }

    /// Keeps a program for the next job, unless it has to end.
    fn give_back(&self, mut busy: Busy<'_>) {
        let Some(mut program) = busy.program.take() else {
            return;
        };
        program.jobs += 1;
        if program.is_out_of_step {
            tracing::warn!(
                program = self.program,
                "a persistent program wrote more than its answer and was killed: its next answer could be that of another job"
            );
            busy.program = Some(program);
            return;
        }
        let is_worn = self
            .max_jobs
            .is_some_and(|max_jobs| program.jobs >= max_jobs.get());
        let mut pool = self.pool();
        if is_worn || pool.is_closed {
            drop(pool);
            let room = busy.room.take();
            self.ending.spawn(async move {
                program.end().await;
                drop(room);
            });
        } else {
            pool.idle.push(program);
        }
    }

    fn error_of(&self, post_mortem: PostMortem) -> PersistentError {
        let PostMortem { status, stderr, .. } = post_mortem;
        match status {
            Some(status) => PersistentError::Ended {
                program: self.program.clone(),
                status,
                stderr,
            },
            None => PersistentError::Closed {
                program: self.program.clone(),
                stderr,
            },
        }
    }

    async fn end_all(&self) {
        let idle = {
            let mut pool = self.pool();
            pool.is_closed = true;
            std::mem::take(&mut pool.idle)
        };
        for program in idle {
            self.ending.spawn(program.end());
        }
        self.ending.close();
        self.ending.wait().await;
    }
}

impl Handler for Persistent {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.run(context))
    }

    fn stop(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.end_all())
    }
}

/// The program of a job. Dropping it kills the program, and frees its room once that is dead.
struct Busy<'a> {
    program: Option<Program>,
    room: Option<OwnedSemaphorePermit>,
    ending: &'a TaskTracker,
}

impl Drop for Busy<'_> {
    fn drop(&mut self) {
        // Without a runtime there are no more jobs.
        let (Some(mut program), Ok(_)) = (self.program.take(), Handle::try_current()) else {
            return;
        };
        // Before the leader is reaped, which frees the number of its group.
        program.group.kill();
        program.group.forget();
        let room = self.room.take();
        self.ending.spawn(async move {
            let _ = tokio::time::timeout(DEATH, program.child.wait()).await;
            drop(room);
        });
    }
}

/// A running program. Dropping it kills it and its process group.
#[derive(Debug)]
struct Program {
    // First field: the group must be killed before its leader is reaped, which frees the group's number.
    group: ProcessGroup,
    child: Child,
    stdin: ChildStdin,
    stdout: ChildStdout,
    stderr: ChildStderr,
    stderr_is_open: bool,
    stderr_log: StderrLog,
    /// It wrote more than its answer.
    is_out_of_step: bool,
    jobs: u64,
}

/// The remains of a program that has ended.
struct PostMortem {
    /// Its exit status, if it ended by itself.
    status: Option<ExitStatus>,
    /// The end of its standard error.
    stderr: String,
    /// It read nothing of what was written.
    is_untouched: bool,
}

/// An event of a program that has a job.
enum ProgramEvent {
    /// Nothing happened for a while.
    Look,
    Wrote(std::io::Result<usize>),
    Read(std::io::Result<usize>),
    Logged(std::io::Result<usize>),
}

impl Program {
    /// Reads what the program has written since its last job; true if it waits for the next one and wrote nothing.
    fn check_usable(&mut self) -> bool {
        self.stderr_log.is_idle = true;
        self.drain_stderr();
        self.stderr_log.end();
        let mut buffer = [0; 1];
        match self.stdout.read(&mut buffer).now_or_never() {
            None => !self.group.has_ended(),
            Some(read) => {
                if let Ok(1..) = read {
                    tracing::warn!(
                        "a persistent program wrote something while it had no job, and was killed"
                    );
                }
                false
            }
        }
    }

    /// Gives the program a job and waits for the answer.
    ///
    /// # Cancel safety
    ///
    /// A program whose answer was not awaited must be dropped.
    async fn ask(&mut self, document: &[u8], uuid: Option<&str>) -> End {
        let mut written = 0;
        let mut line = Vec::new();
        let (mut said, mut logged) = ([0; 8192], [0; 4096]);
        loop {
            let act = tokio::select! {
                wrote = self.stdin.write(&document[written..]), if written < document.len() => ProgramEvent::Wrote(wrote),
                read = self.stdout.read(&mut said) => ProgramEvent::Read(read),
                read = self.stderr.read(&mut logged), if self.stderr_is_open => ProgramEvent::Logged(read),
                () = tokio::time::sleep(LOOK) => ProgramEvent::Look,
            };
            match act {
                // Processes that it started may keep its pipes open, but no answer will follow.
                ProgramEvent::Look if self.group.has_ended() => return End::Broke { written },
                ProgramEvent::Look => {}
                ProgramEvent::Wrote(Ok(more @ 1..)) => written += more,
                ProgramEvent::Wrote(_) | ProgramEvent::Read(Ok(0) | Err(_)) => {
                    return End::Broke { written };
                }
                ProgramEvent::Read(Ok(more)) => {
                    let start = line.len();
                    line.extend_from_slice(&said[..more]);
                    if let Some(end) = memchr::memchr(b'\n', &line[start..]) {
                        let rest = line.split_off(start + end + 1);
                        return self.answered(
                            &line,
                            !rest.is_empty(),
                            written < document.len(),
                            uuid,
                        );
                    }
                    if line.len() > MAX_ANSWER {
                        let problem = format!("longer than {MAX_ANSWER} bytes");
                        return End::Junk { problem, line };
                    }
                }
                ProgramEvent::Logged(Ok(more @ 1..)) => self.stderr_log.feed(&logged[..more]),
                ProgramEvent::Logged(_) => self.stderr_is_open = false,
            }
        }
    }

    /// Interprets the line that should be an answer.
    fn answered(&mut self, line: &[u8], has_more: bool, is_early: bool, uuid: Option<&str>) -> End {
        // Standard error written before the answer belongs to this job, too.
        self.drain_stderr();
        let junk = |problem: String| End::Junk {
            problem,
            line: line.to_vec(),
        };
        if is_early {
            return junk("it came before the job had been read".into());
        }
        match Answer::parse(line, uuid) {
            Ok(answer) => {
                self.is_out_of_step = has_more;
                self.stderr_log.end();
                End::Answered(answer)
            }
            Err(problem) => junk(problem),
        }
    }

    /// Reads what is available on standard error now.
    fn drain_stderr(&mut self) {
        let mut buffer = [0; 4096];
        let mut left = MAX_ANSWER;
        while self.stderr_is_open && left > 0 {
            match self.stderr.read(&mut buffer).now_or_never() {
                Some(Ok(read @ 1..)) => {
                    self.stderr_log.feed(&buffer[..read]);
                    left = left.saturating_sub(read);
                }
                Some(_) => self.stderr_is_open = false,
                None => return,
            }
        }
    }

    /// Reaps a program that has broken off after this many bytes of a job had been written to it.
    async fn reap(&mut self, written: usize) -> PostMortem {
        let has_ended = self.ends_within(LINGER).await;
        self.drain_stderr();
        // Kill before the leader is reaped, which frees the number of its group.
        self.group.kill();
        self.group.forget();
        let status = self.child.wait().await.ok();
        // Unread bytes are still in the pipe, whose write end is still open here.
        let unread = rustix::io::ioctl_fionread(&self.stdin).ok();
        PostMortem {
            status: status.filter(|_| has_ended),
            stderr: self.stderr_log.end(),
            is_untouched: unread.is_some_and(|unread| usize::try_from(unread) == Ok(written)),
        }
    }

    /// Ends a program that waits for a job: closes its input and gives it a moment.
    async fn end(self) {
        let Self {
            mut group,
            mut child,
            stdin,
            // Stays open until the program has ended: it may still want to write.
            stdout: _stdout,
            stderr: _stderr,
            ..
        } = self;
        drop(stdin);
        let has_ended = ends_within(&group, ENDING).await;
        if !has_ended {
            tracing::warn!(
                "a persistent program did not end when its standard input did, and was killed"
            );
        }
        group.kill();
        group.forget();
        // It may have been reaped already, or not be a child of this process.
        let _ = tokio::time::timeout(DEATH, child.wait()).await;
    }

    async fn ends_within(&self, time: Duration) -> bool {
        ends_within(&self.group, time).await
    }
}

async fn ends_within(group: &ProcessGroup, time: Duration) -> bool {
    let looking = async {
        while !group.has_ended() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
    };
    tokio::time::timeout(time, looking).await.is_ok()
}

/// Standard error: lines go to the log, the end is kept for exceptions.
#[derive(Debug, Default)]
struct StderrLog {
    /// The beginning of a line that is not complete yet.
    line: Vec<u8>,
    lines: usize,
    left_out: usize,
    kept: Vec<u8>,
    /// The output was written while the program had no job.
    is_idle: bool,
}

impl StderrLog {
    fn feed(&mut self, mut bytes: &[u8]) {
        self.kept.extend_from_slice(bytes);
        if self.kept.len() > KEPT_OUTPUT {
            self.kept.drain(..self.kept.len() - KEPT_OUTPUT);
        }
        while let Some(end) = memchr::memchr(b'\n', bytes) {
            self.extend(&bytes[..end]);
            self.log();
            bytes = &bytes[end + 1..];
        }
        self.extend(bytes);
    }

    fn extend(&mut self, bytes: &[u8]) {
        let room = MAX_LOGGED_LINE - self.line.len();
        self.line.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    fn log(&mut self) {
        let line = std::mem::take(&mut self.line);
        if self.lines == MAX_LOGGED_LINES {
            self.left_out += 1;
            return;
        }
        self.lines += 1;
        let line = lossy(&line);
        let line = line.trim_end();
        if self.is_idle {
            tracing::info!(parent: None, line, "standard error of an idle persistent program");
        } else {
            // The span around the handler names the job.
            tracing::info!(line, "standard error of a persistent program");
        }
    }

    /// Ends the output of a job; returns the kept part.
    fn end(&mut self) -> String {
        if !self.line.is_empty() {
            self.log();
        }
        if self.left_out > 0 {
            tracing::warn!(
                lines = self.left_out,
                "more lines of standard error of a persistent program were left out"
            );
        }
        let kept = std::mem::take(self).kept;
        indented(&lossy(&kept))
    }
}

impl Answer {
    /// Reads a line; `uuid` is that of the job.
    ///
    /// # Errors
    ///
    /// What is wrong with the line, in a text of bounded length.
    pub fn parse(line: &[u8], uuid: Option<&str>) -> Result<Self, String> {
        #[derive(Deserialize)]
        #[serde(deny_unknown_fields)]
        struct Keys {
            ok: Option<bool>,
            release: Option<f64>,
            fail: Option<String>,
            error: Option<String>,
            uuid: Option<String>,
        }

        const EXPECTED: &str =
            r#"expected {"ok":true}, {"release":30}, {"fail":"reason"} or {"error":"text"}"#;
        let keys: Keys = serde_json::from_slice(line).map_err(|error| {
            // It may repeat a text of the line.
            let problem = error.to_string();
            format!("{}; {EXPECTED}", shown::short(&problem))
        })?;
        if let (Some(answered), Some(asked)) = (&keys.uuid, uuid)
            && answered != asked
        {
            return Err(format!(
                "it is for another job than `{}`",
                shown::bounded(asked)
            ));
        }
        let cut = |text: String| text.chars().take(KEPT_OUTPUT).collect();
        match (keys.ok, keys.release, keys.fail, keys.error) {
            (Some(true), None, None, None) => Ok(Self::Done),
            (None, Some(seconds), None, None) => clamped_wait(seconds)
                .map(Self::Release)
                .ok_or_else(|| format!("{seconds} is no number of seconds")),
            (None, None, Some(reason), None) => Ok(Self::Fail(cut(reason))),
            (None, None, None, Some(text)) => Ok(Self::Exception(cut(text))),
            _ => Err(EXPECTED.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_one_of_four() {
        let seconds = |seconds| Some(Answer::Release(Duration::from_secs(seconds)));
        #[rustfmt::skip]
        let rows = [
            (r#"{"ok":true}"#, Some(Answer::Done)),
            (r#" { "uuid" : "a", "ok" : true } "#, Some(Answer::Done)),
            ("{\"ok\":true}\r\n", Some(Answer::Done)),
            (r#"{"release":0}"#, seconds(1)),
            (r#"{"release":86401}"#, seconds(86_400)),
            (r#"{"release":1.5}"#, seconds(2)),
            (r#"{"fail":"no such order"}"#, Some(Answer::Fail("no such order".into()))),
            (r#"{"error":""}"#, Some(Answer::Exception(String::new()))),
            (r#"{"ok":false}"#, None),
            (r#"{"ok":true,"uuid":"b"}"#, None),
            (r#"{"ok":true,"release":1}"#, None),
            (r#"{"release":-1}"#, None),
            (r#"{"release":1e300}"#, seconds(86_400)),
            (r#"{"done":true}"#, None),
            ("{}", None),
            ("", None),
            ("null", None),
            ("starting up", None),
            (r#"{"ok":true} x"#, None),
        ];
        for (line, expected) in rows {
            assert_eq!(
                Answer::parse(line.as_bytes(), Some("a")).ok(),
                expected,
                "{line}"
            );
        }
    }

    #[test]
    fn what_is_wrong_with_an_answer_is_said_in_few_words() {
        let long = "x".repeat(MAX_ANSWER / 2);
        for line in [
            format!("{{\"{long}\":1}}"),
            format!("{{\"ok\":\"{long}\"}}"),
            "[".repeat(100_000),
            r#"{"uuid":"b"}"#.to_owned(),
        ] {
            let problem = Answer::parse(line.as_bytes(), Some(&long)).unwrap_err();
            assert!(problem.len() < 3000, "{}", problem.len());
        }
    }

    #[test]
    fn little_is_kept_of_a_standard_error_without_end() {
        let mut log = StderrLog::default();
        for _ in 0..10_000 {
            log.feed(&[b'x'; 1000]);
        }
        log.feed(b"\nthe end");
        assert!(log.line.len() <= MAX_LOGGED_LINE && log.kept.len() <= KEPT_OUTPUT);
        let kept = log.end();
        assert!(kept.ends_with("the end") && kept.len() <= KEPT_OUTPUT + 2);
        assert_eq!(log.end(), "");
    }
}
