//! Child processes: each leads its own process group, which is killed when the child's job or this process ends.
//!
//! A child that runs a job must not outlive this process: after `retry_after` another worker runs the same job,
//! and both would run at once. A process killed with SIGKILL cannot clean up, so a second process does it: the
//! [supervisor](supervisor) starts with the first child, learns of every child through a pipe ([notes](notes)),
//! and kills their groups once the pipe is closed.
//!
//! The supervisor does not find processes that a child moved to another process group or session.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpgid, kill_process};
use tokio::process::{Child, Command};

mod line;
mod notes;
mod supervisor;

use notes::Note;
pub use supervisor::supervise;

/// A child and every process in its group. Dropping it kills them.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    /// `None` once the child has ended and the processes it left behind may live on.
    leader: Option<Pid>,
    /// The process that signals are for, if it has said that.
    addressee: Option<Pid>,
    /// Dropped last: the supervisor must know of the child as long as it may live.
    note: Option<Note>,
}

impl ProcessGroup {
    /// Starts a program as the leader of a process group.
    ///
    /// If this process is killed, the supervisor kills the group `farewell` later.
    ///
    /// # Errors
    ///
    /// The program could not be started.
    pub(super) fn spawn(command: &mut Command, farewell: Duration) -> io::Result<(Child, Self)> {
        let mut note = Note::announce();
        let (name, token) = note.variable();
        let child = command
            .process_group(0)
            .kill_on_drop(true)
            .env(name, token)
            .spawn()?;
        let pid = child.id().and_then(|id| i32::try_from(id).ok());
        let leader = pid.and_then(Pid::from_raw);
        if let Some(leader) = leader {
            note.started(leader, farewell);
        }
        let group = Self {
            leader,
            addressee: None,
            note: Some(note),
        };
        Ok((child, group))
    }

    /// Records that the child has ended: processes it left behind may live on.
    pub(super) fn forget(&mut self) {
        self.leader = None;
        self.note = None;
    }

    /// Names the process that signals are for: the child may be a script that waits for it.
    ///
    /// The number counts only while it is one of the group: in a container, the process has another one there.
    pub(super) fn signals_are_for(&mut self, pid: u32) {
        self.addressee = i32::try_from(pid).ok().and_then(Pid::from_raw);
    }

    /// Sends a signal to the process that signals are for, or else to the child itself.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            let is_in_group = |pid: &Pid| getpgid(Some(*pid)) == Ok(leader);
            let addressee = self.addressee.filter(is_in_group).unwrap_or(leader);
            // It may have ended just now.
            let _ = kill_process(addressee, signal);
        }
    }

    /// Kills the group now.
    pub(super) fn kill(&self) {
        if let Some(leader) = self.leader {
            // The group may have ended just now; then there is nothing to kill.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }

    /// Whether the child has ended; it is not reaped yet, so its process id is not reused.
    pub(super) fn has_ended(&self) -> bool {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let is_running =
            |leader| matches!(rustix::process::waitid(WaitId::Pid(leader), look), Ok(None));
        !self.leader.is_some_and(is_running)
    }
}

impl Drop for ProcessGroup {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use std::process::Stdio;

    use tokio::io::{AsyncBufReadExt as _, BufReader};

    use super::*;

    #[tokio::test]
    async fn a_signal_is_for_the_process_that_a_script_waits_for_if_that_is_in_its_group() {
        for is_known in [true, false] {
            let mut command = Command::new("sh");
            command
                .args(["-c", "sleep 60 & echo $!; wait $!; exit 7"])
                .stdout(Stdio::piped());
            let (mut child, mut group) = ProcessGroup::spawn(&mut command, Duration::ZERO).unwrap();
            let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let sleep = lines.next_line().await.unwrap().unwrap();
            // A number of another pid namespace may be that of any process here.
            let pid = if is_known {
                sleep.parse().unwrap()
            } else {
                std::process::id()
            };
            group.signals_are_for(pid);
            group.signal(Signal::TERM);
            let status = child.wait().await.unwrap();
            assert_eq!(status.code(), is_known.then_some(7), "{status}");
        }
    }
}
