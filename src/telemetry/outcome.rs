//! What became of jobs, in one word each.

use crate::worker::{JobEnd, JobResult};

/// What became of a job at the end of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum OutcomeLabel {
    /// It is gone from the queue, and has not failed.
    Done,
    /// It released itself.
    Released,
    /// It threw, timed out, or its PHP process ended, and it will be tried again.
    Retried,
    /// It failed for good.
    Failed,
    /// It moved to another queue.
    Forwarded,
    /// It could not be decoded.
    Quarantined,
    /// Another worker had the job at the end.
    Lost,
}

impl OutcomeLabel {
    pub(super) fn of(end: &JobEnd<'_>) -> Self {
        match end.result {
            _ if end.is_gone => Self::Lost,
            _ if end.has_failed => Self::Failed,
            JobResult::Deleted => Self::Done,
            JobResult::Released if end.failure.is_none() => Self::Released,
            JobResult::Released | JobResult::Left => Self::Retried,
        }
    }

    pub(super) fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Released => "released",
            Self::Retried => "retried",
            Self::Failed => "failed",
            Self::Forwarded => "forwarded",
            Self::Quarantined => "quarantined",
            Self::Lost => "lost",
        }
    }
}
