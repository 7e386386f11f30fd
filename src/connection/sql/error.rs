//! Errors of statements.

use std::time::Duration;

use super::failure::{self, Failure};

/// An error of a statement.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SqlError {
    /// The driver or the server refused it, or the connection broke.
    #[error(transparent)]
    Driver(#[from] Failure),
    /// The server did not answer.
    #[error("there was no answer within {0:?}")]
    Timeout(Duration),
}

impl SqlError {
    /// True if a row with the same unique key exists.
    pub fn is_duplicate(&self) -> bool {
        self.failure().is_some_and(failure::is_duplicate)
    }

    /// True if other transactions held the needed locks for too long, or a deadlock was found: the transaction may
    /// be tried again from its start.
    pub fn is_deadlock(&self) -> bool {
        self.failure().is_some_and(failure::is_lock_conflict)
    }

    /// True if there is no such table.
    pub fn is_missing_table(&self) -> bool {
        self.failure().is_some_and(failure::is_missing_table)
    }

    /// True if the connection is lost or the server is busy, so that another try may help.
    pub fn is_lost(&self) -> bool {
        self.failure().is_none_or(failure::is_lost)
    }

    /// True if it is unknown whether the statement was carried out: there was no reply.
    pub fn is_of_unknown_outcome(&self) -> bool {
        self.failure().is_none_or(failure::is_reply_lost)
    }

    /// True if a moment is refused, such as one in the hour that a change to summer time skips.
    pub(crate) fn is_no_moment(&self) -> bool {
        self.failure().is_some_and(failure::is_no_moment)
    }

    /// True if the server refuses to write at all.
    pub(super) fn is_read_only(&self) -> bool {
        self.failure().is_some_and(failure::is_read_only)
    }

    /// True if the pool gave up to connect, without the error that it met.
    pub(super) fn is_pool_timeout(&self) -> bool {
        self.failure().is_some_and(failure::is_pool_timeout)
    }

    fn failure(&self) -> Option<&Failure> {
        match self {
            Self::Driver(failure) => Some(failure),
            Self::Timeout(_) => None,
        }
    }
}
