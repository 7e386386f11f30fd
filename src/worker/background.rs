//! Tasks that go on beside the jobs, and have the last word when the worker stops.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::lease::Drained;
use super::{follow_up, record};
use crate::failed::FailedJobs;
use crate::handler::Services;
use crate::queue::{ConnectionName, Queue};
use crate::time::Clock;

/// The task that brings failed jobs to their store.
pub(super) struct Recording {
    task: tokio::task::JoinHandle<()>,
    last: CancellationToken,
}

/// The task that does what is left to do for jobs that have ended.
pub(super) struct Following {
    task: tokio::task::JoinHandle<Drained>,
    last: CancellationToken,
}

impl Recording {
    pub(super) fn start<Q: Queue>(
        queue: &Arc<Q>,
        store: Arc<FailedJobs>,
        spooled: Arc<Notify>,
        clock: Clock,
    ) -> Self {
        let last = CancellationToken::new();
        let recorder = record::Recorder {
            queue: Arc::clone(queue),
            store,
            clock,
            spooled,
            last: last.clone(),
        };
        let task = tokio::spawn(record::keep_recording(recorder));
        Self { task, last }
    }

    /// Brings the last records to the store, if that answers soon; otherwise the next worker brings them there.
    ///
    /// `deadline` is when the worker should have stopped.
    pub(super) async fn finish(mut self, deadline: Option<Instant>) {
        self.last.cancel();
        if tokio::time::timeout(last_wait(deadline), &mut self.task)
            .await
            .is_err()
        {
            self.task.abort();
            tracing::warn!("failed jobs are left in the spool: their store does not answer");
        }
    }
}

impl Following {
    pub(super) fn start<Q: Queue>(
        queue: &Arc<Q>,
        services: Arc<Services>,
        connection: ConnectionName,
        followed: Arc<Notify>,
        clock: Clock,
    ) -> Self {
        let last = CancellationToken::new();
        let task = follow_up::Follower {
            queue: Arc::clone(queue),
            services,
            connection,
            clock,
            followed,
            last: last.clone(),
        };
        let task = tokio::spawn(follow_up::keep_following(task));
        Self { task, last }
    }

    /// Does what is left, if that is soon done; otherwise the next worker does it.
    pub(super) async fn finish(mut self, deadline: Option<Instant>) {
        self.last.cancel();
        let ended = tokio::time::timeout(last_wait(deadline), &mut self.task).await;
        if !matches!(ended, Ok(Ok(Drained::All))) {
            self.task.abort();
            tracing::warn!(
                "something is left to do for jobs that have ended; the next worker will do it"
            );
        }
    }
}

/// How long the last things may take; `deadline` is when the worker should have stopped.
fn last_wait(deadline: Option<Instant>) -> Duration {
    let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
    // Whoever asked for the stop may kill two seconds after the deadline.
    left.map_or(LAST_RECORDS, |left| {
        (left + Duration::from_secs(1)).min(LAST_RECORDS)
    })
}

/// How long the store of failed jobs may take for the last ones.
const LAST_RECORDS: Duration = Duration::from_secs(3);
