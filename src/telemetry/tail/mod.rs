//! The events of all workers of a Redis, for those who listen (`artisand tail`).
//!
//! A listener keeps a key alive. Each worker looks for such keys once a second, and only while there is one it writes
//! its events to a stream: in batches, off the path of jobs, with bounds on both sides. What finds no room is counted,
//! and the stream says it. If a listener is killed, its key expires, workers stop writing, and the stream expires.

mod event;
mod feed;
mod reader;

pub use event::TailEvent;
pub use feed::Feed;
pub use reader::{Heard, Tail};

/// Which events a listener wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum TailLevel {
    /// None: there is no listener.
    Nothing = 0,
    /// Failures.
    Failures = 1,
    /// All.
    Everything = 2,
}

/// The names of the keys, under the prefix of the queues.
#[derive(Debug, Clone)]
struct Keys {
    stream: String,
    /// Is there while a listener wants all events.
    everything: String,
    /// Is there while a listener wants failures.
    failures: String,
}

impl Keys {
    fn new(prefix: &str) -> Self {
        Self {
            stream: format!("{prefix}artisand:tail"),
            everything: format!("{prefix}artisand:tail:everything"),
            failures: format!("{prefix}artisand:tail:failures"),
        }
    }

    /// The key of a listener.
    fn listener(&self, wanted: TailLevel) -> &str {
        match wanted {
            TailLevel::Everything => &self.everything,
            TailLevel::Failures | TailLevel::Nothing => &self.failures,
        }
    }
}
