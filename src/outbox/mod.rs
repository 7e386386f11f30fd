//! The outbox: what ended jobs bring about on other servers than that of their queue.
//!
//! The script call that ends a job leaves a record for each such thing. A task
//! that holds a lease carries the records out in order, and removes each of them
//! once it is done. Records that a worker leaves are carried out by the next one.

mod count;
pub(crate) mod failed_jobs;
pub(crate) mod follow_up;
pub(crate) mod follow_ups;
pub(crate) mod hand_over;
pub(crate) mod lease;
pub(crate) mod left;
mod parts;
mod push;
