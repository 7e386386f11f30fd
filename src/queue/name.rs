//! Names of queues and of queue connections.

use std::fmt;
use std::sync::Arc;

use crate::payload::text_newtype;

text_newtype! {
    /// Name of a queue, verbatim: no trimming, no folding of case, colons allowed.
    QueueName
}

text_newtype! {
    /// Name of a queue connection (`queue.connections.NAME`).
    ConnectionName
}
