//! This process's side of the pipe to the supervisor: which children live.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use rustix::process::{Pid, WaitId, WaitIdOptions};

use super::supervisor::{Line, NAME, VARIABLE};

/// The program of this process: not by its path, where a newer one may be by now.
const PROGRAM: &str = "/proc/self/exe";
/// How long the supervisor may take to read what is in the pipe, before it is replaced.
const READING: Timespec = Timespec {
    tv_sec: 1,
    tv_nsec: 0,
};
/// A supervisor that ends sooner than that is none.
const SHORTEST_LIFE: Duration = Duration::from_secs(1);
/// How many supervisors in a row may end that soon, before no more are started.
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

/// One supervisor for the whole process, whatever it runs.
struct Notes {
    /// Whether the program of this process is one that becomes a supervisor when it is told to.
    can_supervise: bool,
    /// Children that were announced and have not ended.
    living: BTreeMap<u64, Option<Started>>,
    /// Number of the next child.
    next: u64,
    /// What makes tokens those of this process.
    prefix: Option<String>,
    supervisor: Option<Supervisor>,
    /// How many supervisors were started.
    starts: u64,
    /// How many of the last ones could not be started or ended at once.
    failures: u32,
}

#[derive(Debug, Clone, Copy)]
struct Started {
    leader: Pid,
    farewell: Duration,
}

struct Supervisor {
    /// Which one it is, of those that were started.
    number: u64,
    process: Child,
    pipe: ChildStdin,
    since: Instant,
}

/// A child as the supervisor knows it. Dropped, it has ended.
#[derive(Debug)]
pub(super) struct Note {
    number: u64,
    token: String,
}

impl Note {
    /// Says that a child is about to be started.
    pub(super) fn announce() -> Self {
        let mut notes = notes();
        let number = notes.next;
        notes.next += 1;
        let token = notes.token(number);
        notes.living.insert(number, None);
        notes.say(&Line::Spawn(&token));
        Self { number, token }
    }

    /// The variable of the child's environment by which it is found if this process is killed while it starts it.
    pub(super) fn variable(&self) -> (&'static str, &str) {
        (VARIABLE, &self.token)
    }

    /// Says that it runs.
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

/// Lets children be supervised: this program becomes a supervisor when it is told to.
pub(super) fn can_supervise() {
    notes().can_supervise = true;
}

fn notes() -> MutexGuard<'static, Notes> {
    // Each change is a single insert, remove or replacement.
    NOTES.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Notes {
    fn token(&mut self, number: u64) -> String {
        let prefix = self
            .prefix
            .get_or_insert_with(|| format!("{}-{:016x}", std::process::id(), fastrand::u64(..)));
        format!("{prefix}-{number}")
    }

    /// Tells the supervisor; one that does not hear it is replaced by another, which is told everything.
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

    /// Starts a supervisor and tells it of all children.
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
            // It must not be found as the child of another worker, which runs this one as a job.
            .env_remove(VARIABLE)
            .current_dir("/")
            .stdin(Stdio::piped())
            // Who reads what this process prints is to see its end.
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()?;
        let pipe = process.stdin.take().expect("standard input is piped");
        rustix::io::ioctl_fionbio(&pipe, true)?;
        watch(Pid::from_child(&process), number)?;
        let mut supervisor = Supervisor {
            number,
            process,
            pipe,
            since: Instant::now(),
        };
        let mut lines = String::new();
        for (number, started) in self.living.clone() {
            let token = self.token(number);
            // A string takes everything.
            let _ = write!(lines, "{}", Line::Spawn(&token));
            if let Some(Started { leader, farewell }) = started {
                let _ = write!(lines, "{}", Line::Started(&token, leader, farewell));
            }
        }
        supervisor.write(lines.as_bytes())?;
        self.supervisor = Some(supervisor);
        Ok(())
    }

    /// The supervisor has ended, or has to because it cannot be told anything.
    fn ends(&mut self, error: Option<&io::Error>) {
        let Some(mut supervisor) = self.supervisor.take() else {
            return;
        };
        // Before its pipe is closed, or it would kill all children. It may have ended by itself.
        let _ = supervisor.process.kill();
        let how = match (supervisor.process.wait(), error) {
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

/// Waits for the end of a supervisor, so that there is another at once.
fn watch(pid: Pid, number: u64) -> io::Result<()> {
    let watch = move || {
        // Only looked at: its number must not be given to another process while it could be killed.
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
    /// Writes all of it, unless the supervisor is gone or does not read.
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
