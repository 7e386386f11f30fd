//! Why a job is not pushed, or may not be.

use crate::app::Unfit;
use crate::handler::{BoxError, DraftError};
use crate::queue;

/// An error from dispatching a job.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum DispatchError {
    /// The app's settings cannot be read. Nothing was pushed.
    #[error("the app's settings cannot be read")]
    Setup(#[source] BoxError),
    /// The value does not fit the PHP class, which is the program's mistake. Nothing was pushed.
    #[error("the job does not fit: {0}")]
    Unfit(#[source] BoxError),
    /// Only PHP knows what the payload needs. Nothing was pushed.
    #[error("only PHP can dispatch it: {0}")]
    OnlyPhp(#[source] BoxError),
    /// The server refused. Nothing was pushed.
    #[error("the server refused the job")]
    Refused(#[source] BoxError),
    /// The reply was lost: the job may be pushed. With [`once`](super::Pending::once) it can be repeated.
    #[error("the server's reply was lost, so the job may be pushed")]
    Unknown(#[source] BoxError),
}

impl DispatchError {
    /// Whether the job may be on its queue all the same.
    pub fn may_be_pushed(&self) -> bool {
        matches!(self, Self::Unknown(_))
    }

    pub(super) fn unfit(error: impl Into<BoxError>) -> Self {
        Self::Unfit(error.into())
    }
}

impl From<Unfit> for DispatchError {
    fn from(unfit: Unfit) -> Self {
        match unfit {
            Unfit::Missing(missing) => Self::OnlyPhp(missing.into()),
            unfit => Self::Unfit(unfit.into()),
        }
    }
}

impl From<DraftError> for DispatchError {
    fn from(error: DraftError) -> Self {
        match error {
            DraftError::Payload(error) => Self::Unfit(error.into()),
            DraftError::Command(error) => Self::Unfit(error.into()),
            error => Self::OnlyPhp(error.into()),
        }
    }
}

impl From<queue::Error> for DispatchError {
    fn from(error: queue::Error) -> Self {
        if error.is_of_unknown_outcome() {
            Self::Unknown(error.into())
        } else {
            Self::Refused(error.into())
        }
    }
}
