//! Steps that a transaction makes: all of it or nothing, again from its start where another one was in the way.

use std::time::Duration;

use crate::connection::{Error, Transaction};

/// Why a step did not end.
#[derive(Debug)]
pub(super) struct Failure {
    /// Whether the step may have been made: its reply was lost.
    pub(super) is_unknown: bool,
    pub(super) source: Error,
}

impl From<Error> for Failure {
    /// The error of a statement before the commit: nothing is done.
    fn from(source: Error) -> Self {
        Self {
            is_unknown: false,
            source,
        }
    }
}

impl Failure {
    /// The error of a statement that is a transaction of its own, or of a commit.
    pub(super) fn of_commit(source: Error) -> Self {
        Self {
            is_unknown: source.is_of_unknown_outcome(),
            source,
        }
    }
}

/// Commits a transaction.
pub(super) async fn commit(transaction: Transaction) -> Result<(), Failure> {
    transaction.commit().await.map_err(Failure::of_commit)
}

/// How often a step is tried against other transactions.
const TRIES: u32 = 8;

/// Makes a step, and makes it again where another transaction was in the way, so that nothing was done.
pub(super) async fn repeated<T, F>(mut step: impl FnMut() -> F) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let mut tries = 1;
    loop {
        match step().await {
            Err(failure)
                if failure.source.is_deadlock() && !failure.is_unknown && tries < TRIES =>
            {
                // Longer each time and never the same, so that two do not meet again.
                let most = 1 << tries.min(6);
                tokio::time::sleep(Duration::from_millis(fastrand::u64(1..=most))).await;
                tries += 1;
            }
            ended => return ended,
        }
    }
}
