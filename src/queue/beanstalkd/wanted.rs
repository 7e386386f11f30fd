//! What a wait may take.

use crate::queue::QueueName;

/// What the last pop asked for.
///
/// A wait takes its job, and a job that is given back has spent an attempt: by default its only one. So a wait takes
/// only what the next pop will ask for.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Its queues; `None` before the first pop.
    pub(super) queues: Option<Vec<QueueName>>,
    /// Whether it found as many jobs as it had room for.
    pub(super) is_full: bool,
    /// Nothing any more: the worker stops.
    pub(super) is_over: bool,
}
