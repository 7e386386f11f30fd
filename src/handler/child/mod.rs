//! Child processes: each leads a process group of its own, which ends with the child's job or with this process.
//!
//! A child that runs a job must not outlive this process: after `retry_after`
//! another worker runs the same job, and both would run at once. Nothing can be
//! done by a process that is killed with SIGKILL, so another one does it: the
//! [supervisor](supervisor), which is started with the first child, is [told](notes)
//! of every child, and kills their groups once the pipe to it is closed.
//!
//! What a child moved to another process group or session is not found there.

use std::io;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions};
use tokio::process::{Child, Command};

mod notes;
mod supervisor;

use notes::Note;
pub use supervisor::supervise;

/// A child and everything it started, unless that has left its group. Dropped, they are killed.
#[derive(Debug)]
pub(super) struct ProcessGroup {
    /// `None` once the child has ended and what it left behind may live on.
    leader: Option<Pid>,
    /// Dropped last, so that the supervisor knows of it as long as it may live.
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
            note: Some(note),
        };
        Ok((child, group))
    }

    /// The child has ended: what it left behind may live on.
    pub(super) fn forget(&mut self) {
        self.leader = None;
        self.note = None;
    }

    /// Sends a signal to the child itself.
    pub(super) fn signal(&self, signal: Signal) {
        if let Some(leader) = self.leader {
            // It may have ended just now.
            let _ = rustix::process::kill_process(leader, signal);
        }
    }

    /// Kills them now.
    pub(super) fn kill(&self) {
        if let Some(leader) = self.leader {
            // It may have ended just now; then there is nothing to kill.
            let _ = rustix::process::kill_process_group(leader, Signal::KILL);
        }
    }

    /// Whether the child has ended; it is still to be waited for, so its number is not given to another process.
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
