//! Which follow-ups the jobs of this worker have left, and how many of them are done.

use tokio::sync::watch;

use crate::outbox::lease::DrainStatus;

/// The follow-ups of this worker's jobs, and how many of them are done.
///
/// The records lie in one list, or on a cluster in one for each of the worker's queues.
#[derive(Debug)]
pub(crate) struct Left {
    /// How many calls that settle jobs have left records.
    noted: watch::Sender<u64>,
    /// How far each list is done.
    done: watch::Sender<Vec<LeftDone>>,
}

/// How many of these calls' records are done in one list.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct LeftDone {
    /// Number of calls.
    up_to: u64,
    /// Something could not be reached, so the rest may take long.
    is_stuck: bool,
}

impl Default for Left {
    fn default() -> Self {
        Self {
            noted: watch::Sender::default(),
            // Until the number of lists is known, nothing is done.
            done: watch::Sender::new(vec![LeftDone::default()]),
        }
    }
}

impl Left {
    /// Notes that a call has left records.
    pub(crate) fn note(&self) {
        self.noted.send_modify(|noted| *noted += 1);
    }

    /// Whether all records so far are done, or it is unknown when they will be.
    pub(crate) fn is_clear(&self) -> bool {
        let noted = *self.noted.borrow();
        let done = self.done.borrow();
        done.iter().all(|done| done.is_stuck || done.up_to >= noted)
    }

    /// A receiver that changes whenever more of them are done.
    pub(crate) fn changes(&self) -> watch::Receiver<Vec<LeftDone>> {
        self.done.subscribe()
    }

    /// A receiver of the number of calls that have left records.
    pub(super) fn noted(&self) -> watch::Receiver<u64> {
        self.noted.subscribe()
    }

    /// Notes in how many lists records may lie.
    pub(super) fn lie_in(&self, lists: usize) {
        let done = vec![LeftDone::default(); lists];
        self.done.send_replace(done);
    }

    /// Notes the end of a pass over a list that began when `noted` calls had left records.
    pub(super) fn pass_ended(&self, list: usize, noted: u64, drained: DrainStatus) {
        self.done.send_if_modified(|done| {
            let Some(done) = done.get_mut(list) else {
                return false;
            };
            let up_to = if drained == DrainStatus::All {
                noted
            } else {
                done.up_to
            };
            let now = LeftDone {
                up_to,
                is_stuck: drained == DrainStatus::Failed,
            };
            std::mem::replace(done, now) != now
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outbox::lease::DrainStatus::{All, Failed, Later};

    #[test]
    fn records_are_clear_once_a_pass_that_began_after_them_has_done_all_or_failed() {
        let left = Left::default();
        let mut changes = left.changes();
        assert!(left.is_clear());
        left.note();
        left.note();
        let rows = [
            // records when the pass began, its end => all clear, a change
            (1, All, false, true),
            (1, All, false, false),
            (2, Later, false, false),
            (2, Failed, true, true),
            (2, Later, false, true),
            (2, All, true, true),
        ];
        for (noted, drained, is_clear, is_change) in rows {
            left.pass_ended(0, noted, drained);
            assert_eq!(left.is_clear(), is_clear, "{noted} {drained:?}");
            assert_eq!(
                changes.has_changed().unwrap(),
                is_change,
                "{noted} {drained:?}"
            );
            changes.mark_unchanged();
        }
    }

    #[test]
    fn records_are_clear_once_all_lists_are() {
        let left = Left::default();
        left.note();
        left.lie_in(2);
        assert!(!left.is_clear());
        left.pass_ended(0, 1, All);
        assert!(!left.is_clear(), "one list is not done");
        left.pass_ended(1, 1, Failed);
        assert!(left.is_clear(), "nothing is known of the other");
        // A list of a queue that the worker does not serve.
        left.pass_ended(2, 1, Later);
        assert!(left.is_clear());
    }
}
