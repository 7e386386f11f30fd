//! What is asked of a connection, and what comes of it.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::client::{Batch, Reply};
use super::ticket::Ticket;
use super::tube::Tube;

/// What is asked of a connection.
#[derive(Debug)]
pub(super) enum Ask {
    /// Commands that concern no reserved job.
    Plain(Batch),
    /// Jobs of one tube that are ready, as many as are asked for or fewer.
    Reserve { tube: Tube, most: usize },
    /// Waits for a job of one of these tubes; it goes to the jobs that were caught.
    Wait {
        tubes: Vec<Tube>,
        seconds: u32,
        turn: Turn,
        /// Cancelled when the wait is given up.
        cancel: CancellationToken,
    },
    /// Something for each of these jobs, as long as they are reserved.
    Held(Vec<(Ticket, Act)>),
}

/// A command about a reserved job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Act {
    Delete,
    /// With the seconds of its delay.
    Release(u32),
    Bury,
    Touch,
    Stats,
}

/// What became of one command.
#[derive(Debug)]
pub(super) enum CommandResult {
    /// The server's answer.
    Reply(Reply),
    /// A job is reserved.
    Taken(HeldJob),
    /// The job is not reserved any more; maybe the server was not even asked.
    Gone,
}

/// A job that is reserved.
#[derive(Debug, Clone)]
pub(super) struct HeldJob {
    pub(super) ticket: Arc<[u8]>,
    pub(super) payload: Arc<[u8]>,
}

/// The connection was lost before all replies were there.
#[derive(Debug)]
pub(super) struct Lost {
    /// False if nothing was sent, because there was no connection.
    pub(super) was_connected: bool,
    pub(super) source: std::io::Error,
}

/// Where the outcomes of a request go.
pub(super) type AnswerTo = oneshot::Sender<Result<Vec<CommandResult>, Lost>>;

/// Jobs that waits have taken, for the next pop.
pub(super) type Caught = Arc<Mutex<Vec<HeldJob>>>;

/// What others may know of a connection.
#[derive(Debug, Default)]
pub(super) struct Load {
    /// How many jobs it has reserved.
    pub(super) held: AtomicUsize,
    /// Whether it waits for a job: other commands would stand behind the wait.
    is_waiting: AtomicBool,
}

/// The right to wait on a connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn(Arc<Load>);

impl Turn {
    /// The turn, unless the connection has jobs, or waits already.
    pub(super) fn take(load: &Arc<Load>) -> Option<Self> {
        let is_first = !load.is_waiting.swap(true, Ordering::AcqRel);
        let turn = is_first.then(|| Self(Arc::clone(load)))?;
        (load.held.load(Ordering::Acquire) == 0).then_some(turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.0.is_waiting.store(false, Ordering::Release);
    }
}

impl Lost {
    fn new(source: &std::io::Error, was_connected: bool) -> Self {
        // Every request that was under way gets a copy.
        let source = std::io::Error::new(source.kind(), source.to_string());
        Self {
            was_connected,
            source,
        }
    }

    /// For what was sent and not answered.
    pub(super) fn after(source: &std::io::Error) -> Self {
        Self::new(source, true)
    }

    /// For what was not sent.
    pub(super) fn before(source: &std::io::Error) -> Self {
        Self::new(source, false)
    }
}
