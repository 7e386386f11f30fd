//! Which follow-ups the jobs of this worker have left, and how many of them are done.

use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::{Notify, watch};

use crate::outbox::lease::DrainStatus;

/// The follow-ups of this worker's jobs, and how many of them are done.
#[derive(Debug)]
pub(crate) struct Left {
    /// How many calls that settle jobs have left records.
    pub(super) noted: AtomicU64,
    pub(super) told: Notify,
    done: watch::Sender<LeftDone>,
}

/// How many of these calls' records are done.
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
            noted: AtomicU64::new(0),
            told: Notify::new(),
            done: watch::Sender::new(LeftDone::default()),
        }
    }
}

impl Left {
    /// Notes that a call has left records.
    pub(crate) fn note(&self) {
        self.noted.fetch_add(1, Ordering::Release);
        self.told.notify_one();
    }

    /// Whether all records so far are done, or it is unknown when they will be.
    pub(crate) fn is_clear(&self) -> bool {
        let LeftDone { up_to, is_stuck } = *self.done.borrow();
        is_stuck || up_to >= self.noted.load(Ordering::Acquire)
    }

    /// A receiver that changes whenever more of them are done.
    pub(crate) fn changes(&self) -> watch::Receiver<LeftDone> {
        self.done.subscribe()
    }

    /// Notes the end of a pass that began when `noted` calls had left records.
    pub(super) fn pass_ended(&self, noted: u64, drained: DrainStatus) {
        self.done.send_if_modified(|done| {
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
            left.pass_ended(noted, drained);
            assert_eq!(left.is_clear(), is_clear, "{noted} {drained:?}");
            assert_eq!(
                changes.has_changed().unwrap(),
                is_change,
                "{noted} {drained:?}"
            );
            changes.mark_unchanged();
        }
    }
}
