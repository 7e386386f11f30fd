//! The supervisor process, which kills the children of a worker that has died.
//!
//! It reads a line for each change from the worker ([notes](super::notes)) until
//! the pipe is closed. Only the end of the worker closes the pipe: the kernel
//! does that, however the worker ended. A child that is being started also holds
//! the pipe open, until it has executed its program; so when the pipe closes,
//! each child was either reported or has its token in its environment.
//!
//! Signals that are sent to all processes of a service or a terminal do not end the supervisor.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, getpgid, getpgrp, kill_process, kill_process_group};
use tokio::signal::unix::{SignalKind, signal};

use super::line::{Line, NAME, VARIABLE};

/// How long to search for a child that was being started: it may not have its environment yet.
const SEARCH: Duration = Duration::from_secs(1);
/// Interval of that search.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Becomes a supervisor, if this process was started as one; the caller then exits with the returned code.
///
/// Otherwise it enables supervision of this process's children: programs of
/// `exec` mappings and PHP processes are killed if this process ends without
/// having ended them, for example by SIGKILL. The supervisor is this same
/// program, started again under another name, so `main` must call this first.
///
/// `cli::run` calls this itself. Without it, programs and PHP processes run on
/// after their worker was killed, at the same time as the next run of their jobs.
///
/// ```no_run
/// use std::process::ExitCode;
///
/// fn main() -> ExitCode {
///     if let Some(code) = artisand::process::supervise() {
///         return code;
///     }
///     // .. make handlers and run a worker
///     ExitCode::SUCCESS
/// }
/// ```
#[must_use]
pub fn supervise() -> Option<ExitCode> {
    if std::env::args_os().next().is_none_or(|name| name != NAME) {
        super::notes::enable_supervision();
        return None;
    }
    Some(run())
}

/// A child that has not ended, as far as the supervisor knows.
#[derive(Debug)]
enum Living {
    Announced,
    Started {
        leader: Pid,
        /// Start time of the group's leader, which distinguishes it from a later process with the same id.
        born: Option<u64>,
        farewell: Duration,
    },
}

fn run() -> ExitCode {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_io()
        .build()
    else {
        return ExitCode::FAILURE;
    };
    let _entered = runtime.enter();
    let kinds = [
        SignalKind::terminate(),
        SignalKind::interrupt(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    // Handling a signal keeps it from ending this process.
    if kinds.into_iter().any(|kind| signal(kind).is_err()) {
        return ExitCode::FAILURE;
    }
    // Otherwise the process would be named `exe`.
    let _ = std::fs::write("/proc/self/comm", NAME);
    let children = read(BufReader::new(std::io::stdin()));
    end(children, Instant::now());
    ExitCode::SUCCESS
}

/// Reads to the end of the pipe; returns the children that live then.
fn read(pipe: impl BufRead) -> BTreeMap<String, Living> {
    let mut children = BTreeMap::new();
    for line in pipe.lines().map_while(Result::ok) {
        match Line::parse(&line) {
            Some(Line::Spawn(token)) => {
                children.insert(token.to_owned(), Living::Announced);
            }
            Some(Line::Started(token, leader, farewell)) => {
                let born = Stat::of(leader).map(|stat| stat.born);
                let started = Living::Started {
                    leader,
                    born,
                    farewell,
                };
                children.insert(token.to_owned(), started);
            }
            Some(Line::Ended(token)) => {
                children.remove(token);
            }
            // Unknown lines cannot occur: the other side is this same program.
            None => {}
        }
    }
    children
}

/// Kills the children and the processes they started, each when its time is over.
fn end(mut children: BTreeMap<String, Living>, since: Instant) {
    loop {
        let passed = since.elapsed();
        children.retain(|token, child| match child {
            Living::Announced => !kill_by_token(token) && passed < SEARCH,
            Living::Started {
                leader,
                born,
                farewell,
            } => {
                let found = Stat::of(*leader);
                let is_gone = found.is_none_or(|stat| stat.is_dead);
                let is_over = is_gone || passed >= *farewell;
                // As long as the id is not reused, a group with that id is the child's.
                if is_over && found.is_none_or(|stat| Some(stat.born) == *born) {
                    kill(*leader);
                }
                !is_over
            }
        });
        if children.is_empty() {
            return;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Kills a process and its group.
fn kill(leader: Pid) {
    // They may have ended just now.
    let _ = kill_process_group(leader, Signal::KILL);
    let _ = kill_process(leader, Signal::KILL);
}

/// Kills the groups of all processes that have the token in their environment; false if there are none.
fn kill_by_token(token: &str) -> bool {
    let variable = format!("{VARIABLE}={token}");
    let mut is_found = false;
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = entries.filter_map(|entry| {
        let number = entry.file_name().to_str()?.parse().ok()?;
        Pid::from_raw(number)
    });
    for pid in pids {
        // Processes of other users cannot be read, and are not children of the worker.
        let environment = std::fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        let has_token = |environment: Vec<u8>| {
            let mut variables = environment.split(|byte| *byte == 0);
            variables.any(|it| it == variable.as_bytes())
        };
        if environment.is_ok_and(has_token)
            && let Ok(group) = getpgid(Some(pid))
            && group != getpgrp()
        {
            is_found = true;
            kill(group);
        }
    }
    is_found
}

/// A process as the kernel describes it.
#[derive(Debug, Clone, Copy)]
struct Stat {
    /// The process has ended and was not reaped.
    is_dead: bool,
    /// When the process was started, in clock ticks since boot.
    born: u64,
}

impl Stat {
    fn of(pid: Pid) -> Option<Self> {
        let text = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero())).ok()?;
        Self::parse(&text)
    }

    /// Parses `/proc/PID/stat`, see `proc_pid_stat(5)`: state is the third field, the start time the 22nd.
    fn parse(text: &str) -> Option<Self> {
        // The name comes first, in parentheses, and may contain any character.
        let (_, rest) = text.rsplit_once(") ")?;
        let mut fields = rest.split(' ');
        Some(Self {
            is_dead: matches!(fields.next()?, "Z" | "X"),
            born: fields.nth(18)?.parse().ok()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    #[test]
    fn children_that_have_not_ended_are_left_at_the_end_of_the_pipe() {
        let own = std::process::id();
        let said = format!(
            "spawn a\nstarted a {own} 0\nspawn b\nspawn c\nended b\nspawn d\nstarted d {own} 5\nended d\nspa"
        );
        let children = read(Cursor::new(said));
        let tokens: Vec<&str> = children.keys().map(String::as_str).collect();
        assert_eq!(tokens, ["a", "c"]);
        assert!(matches!(
            children["a"],
            Living::Started { born: Some(_), .. }
        ));
        assert!(matches!(children["c"], Living::Announced));
    }

    #[test]
    fn a_child_that_was_being_started_is_found_by_its_token() {
        use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};

        let token = format!("{}-unit-test", std::process::id());
        let mut child = std::process::Command::new("sleep")
            .arg("60")
            .env(VARIABLE, &token)
            .process_group(0)
            .spawn()
            .unwrap();
        end(BTreeMap::from([(token, Living::Announced)]), Instant::now());
        assert_eq!(child.wait().unwrap().signal(), Some(9));
    }

    #[test]
    fn a_process_is_known_by_when_it_was_started() {
        let text = "12 (a) b) S 1 12 12 0 -1 4194304 90 0 0 0 1 2 3 4 20 0 1 0 8675309 1000 50";
        let stat = Stat::parse(text).unwrap();
        assert_eq!((stat.is_dead, stat.born), (false, 8_675_309));
        let text = text.replace(") S", ") Z");
        assert!(Stat::parse(&text).unwrap().is_dead);
        // This process has the id of a child that has ended, but another start time: it is left alone.
        let own = rustix::process::getpid();
        let another = Living::Started {
            leader: own,
            born: Some(1),
            farewell: Duration::ZERO,
        };
        end(BTreeMap::from([("a".to_owned(), another)]), Instant::now());
    }
}
