//! When to pop next, for one executor: handlers in this process, or PHP processes.

use std::num::NonZeroUsize;
use std::time::Duration;

use tokio::time::Instant;

use crate::queue::Heads;
use crate::worker::attempt::Executor;
use crate::worker::linger::Linger;

/// How often to look for jobs of one executor that stand behind jobs the other has not taken yet.
pub(super) const BEHIND_OTHERS: Duration = Duration::from_millis(100);

/// When the next pop is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum NextPop {
    /// There may be jobs now.
    Now,
    /// Not before this moment, unless something happens earlier.
    At(Instant),
}

/// What is known about the jobs for one executor.
#[derive(Debug)]
pub(super) struct Intake {
    next: NextPop,
    /// The last pop filled every slot, so there may be more jobs.
    backlog: bool,
    /// The last pop found nothing, and no running job could come back to the queue.
    is_empty: bool,
    /// The wait for more free slots, where pops under load have one.
    linger: Option<Linger>,
    /// What pops have learnt about jobs for other executors at the heads of queues.
    pub(super) heads: Heads,
}

/// What a pop found.
#[derive(Debug, Clone, Copy)]
pub(super) struct PopCounts {
    /// Number of jobs.
    pub(super) taken: usize,
    /// Whether jobs moved to the list or to quarantine.
    pub(super) has_moved: bool,
    /// Whether no job ran when the pop began, so that none could come back meanwhile.
    pub(super) was_quiet: bool,
    /// How long to wait if there are no more jobs.
    pub(super) wait: Duration,
}

impl Intake {
    pub(super) fn new(linger: Option<Linger>) -> Self {
        Self {
            next: NextPop::Now,
            backlog: false,
            is_empty: false,
            linger,
            heads: Heads::default(),
        }
    }

    /// Whether to pop now for `slots` free slots; if not, the wait for more slots may begin. `is_busy` says whether
    /// jobs run, whose slots may be free in a moment.
    pub(super) fn check_due(&mut self, slots: NonZeroUsize, is_busy: bool, now: Instant) -> bool {
        match (self.next, &mut self.linger) {
            (NextPop::At(moment), _) => moment <= now,
            (NextPop::Now, Some(linger)) if self.backlog && is_busy => linger.check(slots, now),
            (NextPop::Now, _) => true,
        }
    }

    /// Whether the next pop waits for a known moment.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.next, NextPop::At(_))
    }

    /// The moment of the next pop, `now` at the earliest.
    pub(super) fn next_pop(&self, now: Instant) -> Instant {
        let lingers = self.linger.as_ref().and_then(Linger::deadline);
        match self.next {
            NextPop::Now => lingers.unwrap_or(now),
            NextPop::At(moment) => moment,
        }
    }

    /// How many more free slots the next pop waits for; `None` if it does not wait.
    pub(super) fn missing(&self, slots: NonZeroUsize) -> Option<usize> {
        self.linger.as_ref()?.missing(slots)
    }

    /// Whether the last pop found no job for this executor.
    pub(super) fn is_empty(&self) -> bool {
        self.is_empty
    }

    /// Makes a pop due now, because a job may have been pushed.
    pub(super) fn look_again(&mut self) {
        self.next = NextPop::Now;
    }

    /// Notes that started jobs may push others.
    pub(super) fn expect_jobs(&mut self) {
        self.is_empty = false;
    }

    /// Makes a pop due at this moment, unless one is due earlier.
    pub(super) fn look_by(&mut self, moment: Instant) {
        if let NextPop::At(due) = self.next {
            self.next = NextPop::At(due.min(moment));
        }
    }

    /// Notes that a pop begins.
    pub(super) fn begin_pop(&mut self) {
        if let Some(linger) = &mut self.linger {
            linger.end();
        }
    }

    /// Notes the result of a pop for `slots` slots.
    pub(super) fn end_pop(&mut self, slots: NonZeroUsize, found: PopCounts, now: Instant) {
        self.backlog = found.taken == slots.get();
        let is_nothing = found.taken == 0;
        self.next = if self.backlog || (found.has_moved && is_nothing) {
            NextPop::Now
        } else {
            NextPop::At(now + found.wait)
        };
        self.is_empty = is_nothing && !found.has_moved && found.was_quiet;
    }

    /// Notes that a pop has failed; `PopRetry` decides when the next one follows.
    pub(super) fn fail_pop(&mut self) {
        self.backlog = false;
        self.next = NextPop::Now;
    }

    /// Notes a veto: no pop until `until`, and the queues count as empty if nothing runs.
    pub(super) fn veto(&mut self, until: Instant, is_quiet: bool) {
        self.next = NextPop::At(until);
        self.backlog = false;
        self.is_empty = is_quiet;
    }
}

/// When to pop, for each executor.
#[derive(Debug)]
pub(super) struct Intakes {
    /// For handlers in this process.
    pub(super) local: Intake,
    /// For PHP.
    pub(super) php: Intake,
}

impl Intakes {
    /// The intakes of a worker whose pops under load linger for handlers in this process.
    pub(super) fn new(linger: Linger) -> Self {
        Self {
            local: Intake::new(Some(linger)),
            php: Intake::new(None),
        }
    }

    /// The intake of one executor.
    pub(super) fn of(&mut self, executor: Executor) -> &mut Intake {
        match executor {
            Executor::Local => &mut self.local,
            Executor::Php => &mut self.php,
        }
    }

    /// Makes a pop due now for both executors.
    pub(super) fn look_again(&mut self) {
        self.local.look_again();
        self.php.look_again();
    }

    /// Makes a pop due, because a job has ended that may have left another in the queue: now, but in a moment for an
    /// executor whose jobs stand behind many of the other. A pop for it after each of those would hold the other up.
    pub(super) fn look_after_end(&mut self, now: Instant) {
        for executor in [Executor::Local, Executor::Php] {
            if self.is_behind(executor) {
                self.of(executor).look_by(now + BEHIND_OTHERS);
            } else {
                self.of(executor).look_again();
            }
        }
    }

    /// Whether only the other executor has more jobs than it can take.
    pub(super) fn is_behind(&self, executor: Executor) -> bool {
        match executor {
            Executor::Local => self.php.backlog && !self.local.backlog,
            Executor::Php => self.local.backlog && !self.php.backlog,
        }
    }

    /// Makes a pop due at this moment for both executors, unless one is due earlier.
    pub(super) fn look_by(&mut self, moment: Instant) {
        self.local.look_by(moment);
        self.php.look_by(moment);
    }

    /// Notes that there may be jobs that no pop has seen.
    pub(super) fn expect_jobs(&mut self) {
        self.local.expect_jobs();
        self.php.expect_jobs();
    }

    /// Notes that a pop has failed: the server answers neither executor.
    pub(super) fn fail_pop(&mut self) {
        self.local.fail_pop();
        self.php.fail_pop();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::linger::LINGER;

    const S: fn(u64) -> Duration = Duration::from_secs;
    const FOUR: NonZeroUsize = NonZeroUsize::new(4).unwrap();
    const ONE: NonZeroUsize = NonZeroUsize::MIN;

    fn found(taken: usize, has_moved: bool, was_quiet: bool) -> PopCounts {
        PopCounts {
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
            // Jobs that became due now stand at the end of the list.
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
        assert!(intake.check_due(ONE, true, now));
        intake.end_pop(FOUR, found(0, false, true), now);
        assert!(!intake.check_due(ONE, true, now));
        intake.look_by(now + S(9));
        assert_eq!(intake.next_pop(now), now + S(3));
        intake.look_by(now + S(1));
        assert_eq!(intake.next_pop(now), now + S(1));
        assert!(intake.check_due(ONE, true, now + S(1)));
        intake.look_again();
        assert!(intake.check_due(ONE, true, now));
        intake.end_pop(FOUR, found(0, false, true), now);
        intake.expect_jobs();
        assert!(!intake.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn under_load_a_pop_waits_for_more_slots() {
        let now = Instant::now();
        let mut intake = Intake::new(Some(Linger::new(FOUR)));
        // No wait before a pop has found more than fits, and none while nothing runs.
        assert!(intake.check_due(ONE, true, now));
        intake.end_pop(FOUR, found(4, false, true), now);
        assert!(intake.check_due(ONE, false, now));
        assert!(!intake.check_due(ONE, true, now));
        assert_eq!(intake.missing(ONE), Some(1));
        assert_eq!(intake.next_pop(now), now + LINGER);
        assert!(intake.check_due(ONE, true, now + LINGER));
        intake.begin_pop();
        assert_eq!(intake.missing(ONE), None);
        // `PopRetry` waits out failures; a failure says nothing about a backlog.
        intake.fail_pop();
        assert!(intake.check_due(ONE, true, now));
    }

    #[tokio::test(start_paused = true)]
    async fn the_end_of_a_job_lets_an_executor_look_at_once_unless_it_is_behind_the_other() {
        for behind in [Executor::Local, Executor::Php] {
            let now = Instant::now();
            let mut intakes = Intakes::new(Linger::new(FOUR));
            let other = match behind {
                Executor::Local => Executor::Php,
                Executor::Php => Executor::Local,
            };
            let nothing = found(0, false, false);
            intakes.of(behind).end_pop(FOUR, nothing, now);
            intakes.of(other).end_pop(FOUR, found(4, false, false), now);
            assert!(intakes.is_behind(behind) && !intakes.is_behind(other));
            intakes.look_after_end(now);
            assert_eq!(intakes.of(behind).next_pop(now), now + BEHIND_OTHERS);
            assert_eq!(intakes.of(other).next_pop(now), now);
            // The other has taken all.
            intakes.of(other).end_pop(FOUR, nothing, now);
            intakes.look_after_end(now);
            assert_eq!(intakes.of(behind).next_pop(now), now);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_veto_makes_the_queues_count_as_empty() {
        let now = Instant::now();
        let mut intake = Intake::new(None);
        intake.veto(now + S(1), false);
        assert!(!intake.is_empty() && !intake.check_due(ONE, false, now));
        intake.veto(now + S(1), true);
        assert!(intake.is_empty() && intake.check_due(ONE, false, now + S(1)));
    }
}
