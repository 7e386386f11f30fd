//! artisand's own lists, and the keys that hold them.

/// artisand's own lists of records that wait to be moved elsewhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Spool {
    /// Records of failed jobs, on their way to the app's store.
    FailedJobs,
    /// Follow-ups of ended jobs: count them in their batch, free their locks in other stores.
    FollowUps,
}

impl Spool {
    /// All lists.
    pub const ALL: [Self; 2] = [Self::FailedJobs, Self::FollowUps];

    /// Name of the list, below the prefix of the connection.
    pub fn key(self) -> &'static str {
        match self {
            Self::FailedJobs => "artisand:failed-spool",
            Self::FollowUps => "artisand:follow-ups",
        }
    }
}
