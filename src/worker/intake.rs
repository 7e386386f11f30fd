//! When to look at the queues next, for one executor: handlers here, or PHP processes.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;

use crate::worker::linger::Linger;

/// When the queues are to be looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Due {
    /// There may be jobs now.
    Now,
    /// Not before this moment, unless something happens.
    At(Instant),
}

/// What is known of the jobs for one executor.
#[derive(Debug)]
pub(super) struct Intake {
    due: Due,
    /// The last pop filled every slot: there is more.
    backlog: bool,
    /// The last pop found nothing, and nothing was under way that could come back.
    is_empty: bool,
    /// The wait for more free slots, where pops under load have one.
    linger: Option<Linger>,
}

/// What a pop found.
#[derive(Debug, Clone, Copy)]
pub(super) struct Found {
    /// Jobs.
    pub(super) taken: usize,
    /// Whether jobs moved to the list, or to quarantine.
    pub(super) has_moved: bool,
    /// Whether nothing ran when the pop began, so that nothing could come back meanwhile.
    pub(super) was_quiet: bool,
    /// How long to wait if there is nothing more.
    pub(super) wait: Duration,
}

impl Intake {
    pub(super) fn new(linger: Option<Linger>) -> Self {
        Self {
            due: Due::Now,
            backlog: false,
            is_empty: false,
            linger,
        }
    }

    /// Whether to pop now for so many free slots; `is_busy` says whether jobs run, whose slots may be free in a moment.
    pub(super) fn is_due(&mut self, slots: NonZeroUsize, is_busy: bool, now: Instant) -> bool {
        match (self.due, &mut self.linger) {
            (Due::At(moment), _) => moment <= now,
            (Due::Now, Some(linger)) if self.backlog && is_busy => linger.is_over(slots, now),
            (Due::Now, _) => true,
        }
    }

    /// Whether nothing happens before a moment that is known.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.due, Due::At(_))
    }

    /// The moment of the next pop, at the earliest `now`.
    pub(super) fn next_pop(&self, now: Instant) -> Instant {
        let lingers = self.linger.as_ref().and_then(Linger::deadline);
        match self.due {
            Due::Now => lingers.unwrap_or(now),
            Due::At(moment) => moment,
        }
    }

    /// How many more slots the next pop waits for, if it does.
    pub(super) fn missing(&self, slots: NonZeroUsize) -> Option<usize> {
        self.linger.as_ref()?.missing(slots)
    }

    /// Whether the queues held nothing for this executor when they were last looked at.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Something may have been pushed.
    pub(super) fn look_again(&mut self) {
        self.due = Due::Now;
    }

    /// Something was started that may leave jobs behind.
    pub(super) fn may_fill(&mut self) {
        self.is_empty = false;
    }

    /// Looks again at this moment, if not before.
    pub(super) fn look_by(&mut self, moment: Instant) {
        if let Due::At(due) = self.due {
            self.due = Due::At(due.min(moment));
        }
    }

    /// A pop begins.
    pub(super) fn begin_pop(&mut self) {
        if let Some(linger) = &mut self.linger {
            linger.end();
        }
    }

    /// A pop has ended that was for so many slots.
    pub(super) fn end_pop(&mut self, slots: NonZeroUsize, found: Found, now: Instant) {
        self.backlog = found.taken == slots.get();
        let is_nothing = found.taken == 0;
        self.due = if self.backlog || (found.has_moved && is_nothing) {
            Due::Now
        } else {
            Due::At(now + found.wait)
        };
        self.is_empty = is_nothing && !found.has_moved && found.was_quiet;
    }

    /// A pop has failed; the next one is as far off as failures make it.
    pub(super) fn fail_pop(&mut self) {
        self.backlog = false;
        self.due = Due::Now;
    }

    /// The queues may not be looked at until then, and count as empty if nothing runs.
    pub(super) fn veto(&mut self, until: Instant, is_quiet: bool) {
        self.due = Due::At(until);
        self.backlog = false;
        self.is_empty = is_quiet;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::linger::LINGER;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();
    const ONE: NonZeroUsize = NonZeroUsize::MIN;

    fn found(taken: usize, has_moved: bool, was_quiet: bool) -> Found {
        Found {
            taken,
            has_moved,
            was_quiet,
            wait: S(3),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_a_pop_found_says_when_the_next_one_is() {
        #[rustfmt::skip]
        let rows = [
            // what was found, waits, counts as empty
            (found(4, false, true),  S(0), false),
            (found(3, false, true),  S(3), false),
            (found(0, false, true),  S(3), true),
            (found(0, false, false), S(3), false),
            // Jobs that were due stand at the end of the list now.
            (found(0, true,  true),  S(0), false),
        ];
        for (found, wait, is_empty) in rows {
            let now = Instant::now();
            let mut intake = Intake::new(None);
            intake.end_pop(FOUR, found, now);
            assert_eq!(intake.next_pop(now), now + wait, "{found:?}");
            assert_eq!(intake.is_empty(), is_empty, "{found:?}");
            assert_eq!(intake.is_waiting(), !wait.is_zero(), "{found:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn something_that_happens_brings_the_next_pop_forward_and_never_back() {
        let now = Instant::now();
        let mut intake = Intake::new(None);
        intake.look_by(now + S(1));
        assert!(intake.is_due(ONE, true, now));
        intake.end_pop(FOUR, found(0, false, true), now);
        assert!(!intake.is_due(ONE, true, now));
        intake.look_by(now + S(9));
        assert_eq!(intake.next_pop(now), now + S(3));
        intake.look_by(now + S(1));
        assert_eq!(intake.next_pop(now), now + S(1));
        assert!(intake.is_due(ONE, true, now + S(1)));
        intake.look_again();
        assert!(intake.is_due(ONE, true, now));
        intake.end_pop(FOUR, found(0, false, true), now);
        intake.may_fill();
        assert!(!intake.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn under_load_a_pop_waits_for_more_slots() {
        let now = Instant::now();
        let mut intake = Intake::new(Some(Linger::new(FOUR)));
        // Not before it is known that there is more, nor while nothing runs.
        assert!(intake.is_due(ONE, true, now));
        intake.end_pop(FOUR, found(4, false, true), now);
        assert!(intake.is_due(ONE, false, now));
        assert!(!intake.is_due(ONE, true, now));
        assert_eq!(intake.missing(ONE), Some(1));
        assert_eq!(intake.next_pop(now), now + LINGER);
        assert!(intake.is_due(ONE, true, now + LINGER));
        intake.begin_pop();
        assert_eq!(intake.missing(ONE), None);
        // A failure is waited out elsewhere, and says nothing of a backlog.
        intake.fail_pop();
        assert!(intake.is_due(ONE, true, now));
    }

    #[tokio::test(start_paused = true)]
    async fn a_veto_makes_the_queues_count_as_empty() {
        let now = Instant::now();
        let mut intake = Intake::new(None);
        intake.veto(now + S(1), false);
        assert!(!intake.is_empty() && !intake.is_due(ONE, false, now));
        intake.veto(now + S(1), true);
        assert!(intake.is_empty() && intake.is_due(ONE, false, now + S(1)));
    }
}
