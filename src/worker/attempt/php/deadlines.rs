//! The deadlines of an attempt in PHP: when its process is killed, and when it is given up after that.

use std::time::Duration;

use tokio::time::Instant;

use crate::process::pool::{PoolMessage, Run};
use crate::time::sleep_until;
use crate::worker::attempt::shared::Stops;
use crate::worker::stop::BEHIND_THE_END;

/// How long Laravel may take after the timeout to fail the job and to end its process.
const AFTER_TIMEOUT: Duration = Duration::from_secs(10);
/// How long PHP may take to say that it does not begin a job; longer than the end of its last job may take in PHP.
const DECLINING: Duration = Duration::from_millis(120);
/// How long a killed process may take to end.
const DEATH: Duration = Duration::from_secs(5);

/// The deadlines of a running attempt.
pub(super) struct Deadlines {
    /// The job's own timeout.
    timeout: Option<Duration>,
    /// When the process is killed, or given up after that.
    deadline: Option<Instant>,
    /// When `JobProcessing` is announced: after the time that PHP has to decline the job.
    announced: Option<Instant>,
    /// Whether the process was killed for the last time.
    is_cut: bool,
    /// Whether the process was killed for the timeout.
    is_overdue: bool,
    /// Whether the worker cuts jobs short, and PHP may still finish what follows the end of this one.
    has_time: bool,
}

impl Deadlines {
    pub(super) fn new(timeout: Option<Duration>, began: Instant) -> Self {
        Self {
            timeout,
            // Laravel itself ends a job that runs too long. This deadline is for processes that cannot.
            deadline: timeout.map(|timeout| began + timeout + AFTER_TIMEOUT),
            // Mostly PHP has begun by then.
            announced: Some(began + DECLINING),
            is_cut: false,
            is_overdue: false,
            has_time: false,
        }
    }

    pub(super) async fn next(&self, run: &mut Run, stops: &Stops, has_end: bool) -> Wake {
        let has_heeded = self.is_cut || (self.has_time && has_end);
        let waits_for_death = self.is_overdue && self.deadline.is_none();
        tokio::select! {
            biased;
            said = run.next() => Wake::PoolMessage(said),
            () = sleep_until(self.announced) => Wake::Announce,
            () = stops.cut.cancelled(), if !has_heeded => Wake::Cut,
            () = stops.begun.cancelled(), if waits_for_death => Wake::Stop,
            () = sleep_until(self.deadline) => Wake::Deadline,
        }
    }

    /// Whether `JobProcessing` is still to be announced; afterwards it is not.
    pub(super) fn take_announcement(&mut self) -> bool {
        self.announced.take().is_some()
    }

    /// Whether the process was killed for the last time, so that its end says nothing about the job.
    pub(super) fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Whether an attempt that began at `began` has run for longer than it may.
    pub(super) fn is_over_time(&self, began: Option<Instant>) -> bool {
        let elapsed = began.map(|began| began.elapsed());
        (self.timeout.zip(elapsed)).is_some_and(|(timeout, elapsed)| elapsed >= timeout)
    }

    /// Notes that the job has failed: what follows a failure gets at least as long as what follows a timeout.
    pub(super) fn note_failure(&mut self, now: Instant) {
        let least = now + AFTER_TIMEOUT;
        self.deadline = self.deadline.map(|deadline| deadline.max(least));
    }

    /// Notes that the job had to wait for this long: as in PHP, that does not count towards its timeout.
    pub(super) fn excuse(&mut self, waited: Duration) {
        self.deadline = self.deadline.map(|deadline| deadline + waited);
    }

    /// Notes that the worker cuts its jobs short; `has_end` says whether this one has ended for good.
    pub(super) fn cut(&mut self, has_end: bool, now: Instant) -> AttemptStep {
        if has_end {
            // The job will not run again: work that is cut off now would never be done.
            self.has_time = true;
            let last = now + BEHIND_THE_END;
            self.deadline = Some(self.deadline.map_or(last, |it| it.min(last)));
            return AttemptStep::Wait;
        }
        self.is_cut = true;
        self.deadline = Some(now + DEATH);
        AttemptStep::Kill
    }

    /// Notes that the worker stops: it does not wait for ever for a process that was killed for the timeout.
    pub(super) fn stop(&mut self, now: Instant) -> AttemptStep {
        self.deadline = Some(now + DEATH);
        AttemptStep::Wait
    }

    /// Notes that the deadline has passed.
    pub(super) fn pass_deadline(&mut self, now: Instant) -> AttemptStep {
        if self.is_cut || self.is_overdue {
            return AttemptStep::GiveUp;
        }
        self.is_cut = self.has_time;
        self.is_overdue = !self.has_time;
        self.deadline = self.has_time.then(|| now + DEATH);
        if self.has_time {
            AttemptStep::Kill
        } else {
            AttemptStep::KillForTimeout
        }
    }
}

/// What happens next to a running attempt.
pub(super) enum Wake {
    /// PHP reports something; `None` if it never will again.
    PoolMessage(Option<PoolMessage>),
    Announce,
    /// The worker cuts its jobs short.
    Cut,
    /// The worker stops, and the process was killed for the timeout.
    Stop,
    Deadline,
}

/// What to do with the process of an attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AttemptStep {
    /// Let it go on.
    Wait,
    /// Kill it, because the worker stops.
    Kill,
    /// Kill it, because the job has run for too long and PHP did not end it.
    KillForTimeout,
    /// The process hangs in the system and even SIGKILL does not end it: wait for no further reports.
    GiveUp,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::test_support::S;

    #[test]
    fn a_process_is_killed_for_the_timeout_ten_seconds_after_laravel_would_end_it() {
        let began = Instant::now();
        let mut deadlines = Deadlines::new(Some(S(60)), began);
        assert_eq!(deadlines.deadline, Some(began + S(70)));
        assert_eq!(
            deadlines.pass_deadline(began + S(70)),
            AttemptStep::KillForTimeout
        );
        // Its end is reported, however long it takes; only a stop does not wait for ever.
        assert_eq!(deadlines.deadline, None);
        assert!(!deadlines.is_cut());
        assert_eq!(deadlines.stop(began + S(99)), AttemptStep::Wait);
        assert_eq!(deadlines.deadline, Some(began + S(99) + DEATH));
        let given_up = deadlines.pass_deadline(began + S(99) + DEATH);
        assert_eq!(given_up, AttemptStep::GiveUp);
        assert!(!deadlines.is_cut());
        assert_eq!(Deadlines::new(None, began).deadline, None);
    }

    #[test]
    fn what_follows_a_failure_gets_as_long_as_what_follows_a_timeout() {
        let began = Instant::now();
        let mut deadlines = Deadlines::new(Some(S(60)), began);
        deadlines.note_failure(began + S(5));
        assert_eq!(deadlines.deadline, Some(began + S(70)));
        deadlines.note_failure(began + S(69));
        assert_eq!(deadlines.deadline, Some(began + S(79)));
        // A job without a timeout has all the time.
        let mut deadlines = Deadlines::new(None, began);
        deadlines.note_failure(began + S(69));
        assert_eq!(deadlines.deadline, None);
    }

    #[test]
    fn a_job_that_has_not_ended_is_killed_at_the_stop_deadline_and_given_up_after_that() {
        let now = Instant::now();
        let mut deadlines = Deadlines::new(Some(S(60)), now);
        assert_eq!(deadlines.cut(false, now + S(9)), AttemptStep::Kill);
        assert!(deadlines.is_cut());
        assert_eq!(deadlines.deadline, Some(now + S(9) + DEATH));
        assert_eq!(deadlines.pass_deadline(now + S(14)), AttemptStep::GiveUp);
    }

    #[test]
    fn a_job_that_has_ended_may_do_what_follows_before_it_is_killed() {
        let now = Instant::now();
        let mut deadlines = Deadlines::new(None, now);
        assert_eq!(deadlines.cut(true, now), AttemptStep::Wait);
        assert!(!deadlines.is_cut());
        assert_eq!(deadlines.deadline, Some(now + BEHIND_THE_END));
        let then = now + BEHIND_THE_END;
        assert_eq!(deadlines.pass_deadline(then), AttemptStep::Kill);
        assert!(deadlines.is_cut());
        assert_eq!(deadlines.pass_deadline(then + DEATH), AttemptStep::GiveUp);
        // Its own timeout may come first.
        let mut deadlines = Deadlines::new(Some(S(1)), now);
        deadlines.cut(true, now + S(10));
        assert_eq!(deadlines.deadline, Some(now + S(11)));
    }

    #[tokio::test(start_paused = true)]
    async fn an_attempt_without_a_timeout_is_never_over_time() {
        let began = Instant::now();
        let (some, none) = (
            Deadlines::new(Some(S(5)), began),
            Deadlines::new(None, began),
        );
        tokio::time::advance(S(5)).await;
        assert!(some.is_over_time(Some(began)) && !none.is_over_time(Some(began)));
        // It had to wait for its process until now.
        assert!(!some.is_over_time(Some(Instant::now())) && !some.is_over_time(None));
    }

    #[test]
    fn a_job_is_announced_once() {
        let mut deadlines = Deadlines::new(None, Instant::now());
        assert!(deadlines.take_announcement() && !deadlines.take_announcement());
    }
}
