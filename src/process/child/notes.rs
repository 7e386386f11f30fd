//! This process's end of the pipe to the supervisor, with the list of living children.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::line::{Line, NAME, VARIABLE};

/// The program of this process; its path could point to a newer version by now.
const PROGRAM: &str = "/proc/self/exe";
/// How long the supervisor may leave the pipe full before it is replaced.
const READING: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// A supervisor that ends sooner than this counts as failed.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// After this many failures in a row no more supervisors are started.
const MOST_FAILURES: u32 = 3;

static NOTES: Mutex<Notes> = Mutex::new(Notes {
    can_supervise: false,
    living: BTreeMap::new(),
    next: 0,
    prefix: None,
    supervisor: None,
    starts: 0,
    failures: 0,
});

/// State of the one supervisor of this process.
struct Notes {
    /// Whether this program can run as a supervisor.
    can_supervise: bool,
    /// Children that were announced and have not ended.
    living: BTreeMap<u64, Option<Started>>,
    /// Number of the next child.
    next: u64,
    /// Prefix of tokens, distinct for each process.
    prefix: Option<String>,
    supervisor: Option<Supervisor>,
    /// How many supervisors were started so far.
    starts: u64,
    /// How many supervisors in a row could not be started or ended at once.
    failures: u32,
}

#[derive(Debug, Clone, Copy)]
struct Started {
    leader: Pid,
    farewell: Duration,
}

struct Supervisor {
    /// Serial number of this supervisor.
    number: u64,
    process: Child,
    pipe: ChildStdin,
    since: Instant,
}

/// Keeps a child known to the supervisor. Dropping it reports that the child has ended.
#[derive(Debug)]
pub(super) struct Note {
    number: u64,
    token: String,
}

impl Note {
    /// Announces that a child is about to be started.
    pub(super) fn announce() -> Self {
        let mut notes = notes();
        let number = notes.next;
        notes.next += 1;
        let token = notes.token(number);
        notes.living.insert(number, None);
        notes.say(&Line::Spawn(&token));
        Self { number, token }
    }

    /// The environment variable by which the supervisor finds the child if this process is killed while starting
    /// it.
    pub(super) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.token)
    }

    /// Reports that the child runs.
    pub(super) fn started(&mut self, leader: Pid, farewell: Duration) {
        let mut notes = notes();
        notes
            .living
            .insert(self.number, Some(Started { leader, farewell }));
        notes.say(&Line::Started(&self.token, leader, farewell));
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let mut notes = notes();
        notes.living.remove(&self.number);
        notes.say(&Line::Ended(&self.token));
    }
}

/// Enables supervision: this program can run as a supervisor.
pub(super) fn enable_supervision() {
    notes().can_supervise = true;
}

fn notes() -> MutexGuard<'static, Notes> {
    // The lock's poison is harmless: each change is a single insert, remove or replacement.
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn token(&mut self, number: u64) -> String {
        let prefix = self
            .prefix
            .get_or_insert_with(|| format!("{}-{:016x}", std::process::id(), fastrand::u64(..)));
        format!("{prefix}-{number}")
    }

    /// Writes a line to the supervisor. If that fails, starts another supervisor, which gets the full list.
    fn say(&mut self, line: &Line<'_>) {
        if let Some(supervisor) = &mut self.supervisor {
            match supervisor.write(line.to_string().as_bytes()) {
                Ok(()) => return,
                Err(error) => self.ends(Some(&error)),
            }
        }
        if !self.living.is_empty() {
            self.start();
        }
    }

    /// Starts a supervisor and sends it the list of all children.
    fn start(&mut self) {
        if !self.can_supervise || self.failures >= MOST_FAILURES {
            return;
        }
        if let Err(error) = self.try_to_start() {
            self.fails(&error.to_string());
        }
    }

    fn try_to_start(&mut self) -> io::Result<()> {
        self.starts += 1;
        let number = self.starts;
        let mut process = Command::new(PROGRAM)
            .arg0(NAME)
            .arg(std::process::id().to_string())
            // If this worker itself runs as a job, the supervisor must not be found as a child of that job's
            // worker.
            .env_remove(VARIABLE)
            .current_dir("/")
            .stdin(Stdio::piped())
            // A reader of this process's output must see end of file when this process ends.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take().expect("standard input is piped");
        let supervisor = Supervisor {
            number,
            process,
            pipe,
            since: Instant::now(),
        };
        let mut lines = String::new();
        for (number, started) in self.living.clone() {
            let token = self.token(number);
            // Writing to a string cannot fail.
            let _ = write!(lines, "{}", Line::Spawn(&token));
            if let Some(Started { leader, farewell }) = started {
                let _ = write!(lines, "{}", Line::Started(&token, leader, farewell));
            }
        }
        self.supervisor = Some(supervisor.begin(&lines)?);
        Ok(())
    }

    /// Handles a supervisor that has ended, or that cannot be written to and has to end.
    fn ends(&mut self, error: Option<&io::Error>) {
        let Some(mut supervisor) = self.supervisor.take() else {
            return;
        };
        let how = match (supervisor.end(), error) {
            (Ok(status), None) => status.to_string(),
            (Ok(status), Some(error)) => format!("{error}; {status}"),
            (Err(error), _) => error.to_string(),
        };
        if supervisor.since.elapsed() < SHORTEST_LIFE {
            return self.fails(&how);
        }
        self.failures = 0;
        tracing::warn!(
            how,
            "the supervisor of child processes has ended, and another takes its place"
        );
    }

    fn fails(&mut self, why: &str) {
        self.failures += 1;
        if self.failures == MOST_FAILURES {
            tracing::error!(
                error = why,
                "no supervisor of child processes can be started: if this worker is killed with SIGKILL, programs and PHP processes run on"
            );
        }
    }
}

/// Waits in the background for the end of a supervisor, to start another at once.
fn watch(pid: Pid, number: u64) -> io::Result<()> {
    let watch = move || {
        // Do not reap it here: its process id must not be reused while it could be killed.
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOWAIT;
        let wait = || rustix::process::waitid(WaitId::Pid(pid), look).err();
        while wait() == Some(Errno::INTR) {}
        let mut notes = notes();
        if (notes.supervisor.as_ref()).is_some_and(|current| current.number == number) {
            notes.ends(None);
            if !notes.living.is_empty() {
                notes.start();
            }
        }
    };
    let thread = std::thread::Builder::new().name("supervisor".into());
    thread.spawn(watch).map(drop)
}

impl Supervisor {
    /// Tells a new supervisor of all children, and waits for its end in the background.
    fn begin(mut self, lines: &str) -> io::Result<Self> {
        let begun = rustix::io::ioctl_fionbio(&self.pipe, true)
            .map_err(io::Error::from)
            .and_then(|()| watch(Pid::from_child(&self.process), self.number))
            .and_then(|()| self.write(lines.as_bytes()));
        if let Err(error) = begun {
            let _ = self.end();
            return Err(error);
        }
        Ok(self)
    }

    /// Ends it before its pipe closes, or it would kill all children that it knows.
    fn end(&mut self) -> io::Result<ExitStatus> {
        // It may have ended by itself.
        let _ = self.process.kill();
        self.process.wait()
    }

    /// Writes all bytes, unless the supervisor is gone or does not read.
    fn write(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while !bytes.is_empty() {
            match self.pipe.write(bytes) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => bytes = &bytes[written..],
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let mut pipe = [PollFd::new(&self.pipe, PollFlags::OUT)];
                    if rustix::event::poll(&mut pipe, Some(&READING))? == 0 {
                        return Err(io::Error::new(
                            io::ErrorKind::TimedOut,
                            "it does not read what it is told",
                        ));
                    }
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_supervisor_that_does_not_read_the_whole_list_is_killed_before_its_pipe_closes() {
        let mut process = Command::new("sleep")
            .arg("3600")
            .stdin(Stdio::piped())
            .spawn()
            .unwrap();
        let pid = Pid::from_child(&process);
        let pipe = process.stdin.take().unwrap();
        let supervisor = Supervisor {
            number: 0,
            process,
            pipe,
            since: Instant::now(),
        };
        let more_than_a_pipe_takes = "x".repeat(4 << 20);
        let error = supervisor.begin(&more_than_a_pipe_takes).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        // It is reaped, too.
        let wait = rustix::process::waitid(WaitId::Pid(pid), WaitIdOptions::EXITED);
        assert_eq!(wait.unwrap_err(), Errno::CHILD);
    }
}
