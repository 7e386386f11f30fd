//! Laravel's SQS driver.
//!
//! The server keeps the time: it shows delayed messages, and those whose reservation has ended, by itself. It also
//! counts the attempts: a job that is put back has one more, and payloads stay as they were sent.
//!
//! What surprises:
//!
//! * The reservation time is the queue's own (`VisibilityTimeout`), 30 seconds by default, and 12 hours at most.
//! * A standard queue delivers a message twice now and then, and keeps no order.
//! * A delete with the receipt of an earlier delivery succeeds and may do nothing. So the time of a reservation is kept
//!   here, and a deletion after its end counts as uncertain.
//! * A receipt that does not wait asks some of the servers only, and may miss what is there.
//! * Messages of one group of a FIFO queue come together in one receipt, so each receipt there takes one.
//! * Each request costs money. An idle worker waits in long polls, and a reservation is renewed when a third has
//!   passed.
//! * Nothing happens in one step: `Finish` with effects is refused, a forwarded job may be there twice after a crash.

#[cfg(feature = "sqs")]
mod address;
#[cfg(feature = "sqs")]
mod client;
#[cfg(feature = "sqs")]
mod core;
#[cfg(feature = "sqs")]
mod leases;
#[cfg_attr(
    all(not(feature = "sqs"), not(feature = "internals")),
    expect(dead_code, reason = "settings are read and refused by name")
)]
mod options;
#[cfg(feature = "sqs")]
mod polls;
#[cfg(feature = "sqs")]
mod pop;
#[cfg(feature = "sqs")]
mod push;
#[cfg(feature = "sqs")]
mod queue;
#[cfg(feature = "sqs")]
mod settle;

#[cfg(feature = "sqs")]
pub use self::core::SHORTEST_VISIBILITY;
pub use options::{Overflow, PayloadStore, SqsKey, SqsOptions, StoreProblem};
#[cfg(feature = "sqs")]
pub use queue::SqsQueue;
