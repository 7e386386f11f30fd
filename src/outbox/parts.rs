//! The lists that a task empties: those of the ledger, or on a cluster those of each queue.
//!
//! On a cluster the records of a job lie with its queue. A worker empties the lists of its own queues, and now and then
//! those of all others: a queue may have lost its last worker.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::outbox::lease::DrainStatus;
use crate::queue::{Ledger, QueueName};
use crate::shown::with_causes;

/// How often the lists of queues are looked at that the worker does not serve.
pub(super) const LOOK_EVERY: Duration = Duration::from_secs(30);

/// The lists that a task empties, each with what the task knows of it.
pub(crate) struct Parts<S> {
    ledger: Arc<dyn Ledger>,
    /// The queues that the worker serves.
    queues: Vec<QueueName>,
    /// Those of the worker's queues come first.
    all: Vec<Part<S>>,
    own: usize,
    /// The other queues of `all`.
    others: Vec<QueueName>,
    looked_at: Option<Instant>,
}

/// One list, and what the task knows of it.
pub(crate) struct Part<S> {
    pub(crate) ledger: Arc<dyn Ledger>,
    pub(crate) state: S,
}

impl<S: Default> Part<S> {
    fn of(ledger: Arc<dyn Ledger>) -> Self {
        Self {
            ledger,
            state: S::default(),
        }
    }
}

impl<S: Default> Parts<S> {
    /// The lists of this ledger, for a worker that serves these queues.
    pub(crate) fn new(ledger: Arc<dyn Ledger>, queues: &[QueueName]) -> Self {
        let parts = queues.iter().filter_map(|queue| ledger.part(queue));
        let mut all: Vec<_> = parts.map(Part::of).collect();
        // Either each queue has lists of its own or none has.
        let is_whole = all.is_empty();
        if is_whole {
            all.push(Part::of(Arc::clone(&ledger)));
        }
        Self {
            own: all.len(),
            all,
            ledger,
            queues: if is_whole {
                Vec::new()
            } else {
                queues.to_vec()
            },
            others: Vec::new(),
            looked_at: None,
        }
    }

    /// The lists to look at in this pass.
    pub(crate) async fn due(&mut self) -> &mut [Part<S>] {
        let is_recent = self.looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY);
        if self.queues.is_empty() || is_recent {
            return &mut self.all[..self.own];
        }
        let noted = self.ledger.note_parts(&self.queues).await;
        // After an error as well: the lists of the worker's own queues are not to wait for it again and again.
        self.looked_at = Some(Instant::now());
        match noted {
            Ok(queues) => {
                for queue in queues {
                    let is_known = self.queues.contains(&queue) || self.others.contains(&queue);
                    let part = self.ledger.part(&queue).filter(|_| !is_known);
                    if let Some(part) = part {
                        self.all.push(Part::of(part));
                        self.others.push(queue);
                    }
                }
                &mut self.all
            }
            Err(error) => {
                // The loop that pops reports a server that is gone.
                tracing::debug!(
                    error = with_causes(&error),
                    "could not look for the lists of other queues"
                );
                &mut self.all[..self.own]
            }
        }
    }

    /// The lists that are known by now.
    pub(crate) fn all(&self) -> &[Part<S>] {
        &self.all
    }

    /// What the task knows of each list.
    pub(crate) fn states(&mut self) -> impl Iterator<Item = &mut S> {
        self.all.iter_mut().map(|part| &mut part.state)
    }
}

/// How a pass over several lists ended.
pub(crate) fn worst(drained: impl IntoIterator<Item = DrainStatus>) -> DrainStatus {
    let rank = |drained: &DrainStatus| match drained {
        DrainStatus::All => 0,
        DrainStatus::Later => 1,
        DrainStatus::Failed => 2,
    };
    drained
        .into_iter()
        .max_by_key(rank)
        .unwrap_or(DrainStatus::All)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;

    #[tokio::test]
    async fn one_list_for_all_queues_is_one_part() {
        let ledger = Arc::new(MemoryQueue::new(None));
        let queues = [QueueName::from("a"), QueueName::from("b")];
        let mut parts = Parts::<usize>::new(ledger, &queues);
        assert_eq!(parts.due().await.len(), 1);
        assert_eq!(parts.states().count(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn lists_of_other_queues_are_due_every_half_minute() {
        let mut ledger = MemoryQueue::new(None);
        for queue in ["a", "b", "c"] {
            let part = Arc::new(MemoryQueue::new(None));
            ledger.parts.insert(queue.into(), part);
        }
        let mut parts = Parts::<usize>::new(Arc::new(ledger), &["a".into()]);
        assert_eq!(parts.all().len(), 1);
        assert_eq!(parts.due().await.len(), 3);
        for _ in 0..2 {
            tokio::time::advance(LOOK_EVERY.saturating_sub(Duration::from_millis(1))).await;
            assert_eq!(parts.due().await.len(), 1);
            tokio::time::advance(Duration::from_millis(1)).await;
            assert_eq!(parts.due().await.len(), 3, "none of them twice");
        }
        assert_eq!(parts.states().count(), 3);
    }

    #[test]
    fn the_worst_of_several_lists_counts() {
        use DrainStatus::{All, Failed, Later};
        let rows = [
            (vec![], All),
            (vec![All, Later, All], Later),
            (vec![Failed, Later, All], Failed),
        ];
        for (drained, expected) in rows {
            assert_eq!(worst(drained), expected);
        }
    }
}
