//! The step to the next job of a chain: its payload, and where it goes.

use super::job::Shared;
use crate::payload::{Chain, LogContext};
use crate::queue::{ConnectionName, Effect};

/// The job that has ended.
#[derive(Debug, Clone, Copy)]
pub(super) struct Place<'a> {
    pub(super) connection: &'a ConnectionName,
    pub(super) uuid: Option<&'a str>,
    /// Jobs that are dispatched by a job have its log context.
    pub(super) context: Option<&'a LogContext>,
}

/// Why only PHP can take a step.
#[derive(Debug, thiserror::Error)]
pub(super) enum NotHere {
    /// Nothing is known of the next job's class.
    #[error("nothing is known of {0}: write a manifest with `artisand manifest`")]
    UnknownClass(String),
}

/// Says whether the next step can be taken here.
pub(super) fn check(_: &Shared, chain: &Chain) -> Result<(), NotHere> {
    Err(NotHere::UnknownClass(format!("{:?}", chain.next_class())))
}

/// Takes the next step.
pub(super) async fn take(
    shared: &Shared,
    chain: &Chain,
    _: &Place<'_>,
) -> Result<Vec<Effect>, NotHere> {
    check(shared, chain).map(|()| Vec::new())
}
