//! The app's own listeners of Laravel's queue events, for jobs that run in handlers (`events = "all"`).
//!
//! An observer notes what happens to a job, and a task of its own lets a PHP process raise the events of each attempt
//! once the attempt is over: listeners know of one job at a time, and handlers run many. So no job waits for a
//! listener, and what finds no room, or dies with the process, is counted. `JobFailed` is not among the events: a
//! failure that only the app can handle must not be lost, so PHP raises it in a closure (see `outbox::hand_over`).

mod figures;
mod note;
mod task;

pub use figures::ListenerFigures;
pub use task::Listeners;
