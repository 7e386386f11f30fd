//! Decides when a worker stops by itself: Laravel's stop conditions, in Laravel's order.

use std::time::Duration;

use tokio::time::Instant;

use super::options::WorkerOptions;
use super::stop::{StopReason, resident_memory};

/// How often limits are checked while nothing happens.
pub(super) const LIMITS_EVERY: Duration = Duration::from_secs(1);

/// The measurements for the limits.
#[derive(Debug)]
pub(super) struct Limits {
    started: Instant,
    /// When a job was last popped.
    last_job: Instant,
    memory_measured: Option<Instant>,
    is_over_memory: bool,
}

/// The state that the stop conditions check.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "each is a condition of its own"
)]
pub(super) struct Snapshot {
    /// An order to quit was given.
    pub(super) quit: bool,
    /// A handler does not return.
    pub(super) is_stuck: bool,
    /// Settling has panicked.
    pub(super) has_given_up: bool,
    /// The app told its workers to restart.
    pub(super) restart: bool,
    /// PHP processes cannot be started.
    pub(super) has_no_php: bool,
    /// The last pop has failed.
    pub(super) lost_connection: bool,
    /// Jobs run, or are being settled.
    pub(super) is_busy: bool,
    /// There is no job, none runs, and ended jobs have no follow-ups left to do.
    pub(super) is_idle: bool,
    /// Attempts begun.
    pub(super) begun: u64,
    /// Number of jobs that PHP runs; PHP may put them back unchanged.
    pub(super) in_php: usize,
}

impl Limits {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            started: now,
            last_job: now,
            memory_measured: None,
            is_over_memory: false,
        }
    }

    /// Notes that jobs were popped.
    pub(super) fn note_jobs(&mut self, now: Instant) {
        self.last_job = now;
    }

    /// Measures the memory of this process if `limit` is set, at most once per [`LIMITS_EVERY`].
    pub(super) fn measure_memory(&mut self, limit: Option<u64>) {
        let is_recent = self
            .memory_measured
            .is_some_and(|before| before.elapsed() < LIMITS_EVERY);
        if let Some(limit) = limit.filter(|_| !is_recent) {
            self.memory_measured = Some(Instant::now());
            self.is_over_memory = resident_memory().is_some_and(|resident| resident >= limit);
        }
    }

    /// When a limit has to be checked next if nothing happens earlier.
    pub(super) fn next_look(
        &self,
        options: &WorkerOptions,
        is_busy: bool,
        now: Instant,
    ) -> Option<Instant> {
        let is_watched = options.stop.memory.is_some() && is_busy;
        let memory = is_watched.then(|| now + LIMITS_EVERY);
        let max_time = options
            .stop
            .max_time
            .map(|max_time| self.started + max_time);
        let empty_for = options.stop.when_empty_for;
        let empty_for = empty_for.map(|empty_for| self.last_job + empty_for);
        [memory, max_time, empty_for]
            .into_iter()
            .flatten()
            .filter(|limit| *limit > now)
            .min()
    }

    /// Why the worker is to stop now.
    ///
    /// # Source
    ///
    /// `Illuminate\Queue\Worker::stopIfNecessary`; the order is Laravel's.
    pub(super) fn stop_reason(
        &self,
        snapshot: Snapshot,
        options: &WorkerOptions,
        now: Instant,
    ) -> Option<StopReason> {
        let is_bounded = options.stop.once || options.stop.when_empty;
        if is_bounded && !snapshot.is_busy && snapshot.has_no_php {
            return Some(StopReason::NoPhp);
        }
        if is_bounded && !snapshot.is_busy && snapshot.lost_connection {
            return Some(StopReason::LostConnection);
        }
        if snapshot.quit {
            return Some(StopReason::Interrupted);
        }
        if snapshot.has_given_up {
            return Some(StopReason::SettlingFailed);
        }
        if snapshot.is_stuck {
            return Some(StopReason::TimedOut);
        }
        // As in Laravel, not before the first job: even with too low a limit the worker makes progress.
        if self.is_over_memory && snapshot.begun > 0 {
            return Some(StopReason::MemoryLimit);
        }
        if snapshot.restart && !options.stop.once {
            return Some(StopReason::RestartSignal);
        }
        if options.stop.when_empty && snapshot.is_idle {
            return Some(StopReason::QueueEmpty);
        }
        let has_passed = |since: Instant, limit: Option<Duration>| {
            limit.is_some_and(|limit| now - since >= limit)
        };
        if snapshot.is_idle && has_passed(self.last_job, options.stop.when_empty_for) {
            return Some(StopReason::QueueEmptyFor);
        }
        if has_passed(self.started, options.stop.max_time) {
            return Some(StopReason::MaxTime);
        }
        let has_begun = |least: u64| snapshot.begun >= least && snapshot.in_php == 0;
        if options.stop.once && (snapshot.is_idle || has_begun(1)) {
            return Some(StopReason::QueueEmpty);
        }
        let is_last = options.stop.max_jobs.is_some_and(has_begun);
        is_last.then_some(StopReason::MaxJobs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::worker::StopRules;

    const S: fn(u64) -> Duration = Duration::from_secs;

    #[test]
    fn the_first_condition_that_holds_is_the_reason() {
        use StopReason::{
            Interrupted, LostConnection, MaxJobs, MaxTime, MemoryLimit, NoPhp, QueueEmpty,
            QueueEmptyFor, RestartSignal, TimedOut,
        };
        let none = Snapshot::default;
        let start = Instant::now();
        let idle = || Snapshot {
            is_idle: true,
            ..none()
        };
        let begun = |begun| Snapshot { begun, ..none() };
        let unbounded = WorkerOptions::default;
        let stopping = |stop| WorkerOptions {
            stop,
            ..unbounded()
        };
        let stops = |once, when_empty| {
            stopping(StopRules {
                once,
                when_empty,
                ..StopRules::default()
            })
        };
        let (once, when_empty) = (|| stops(true, false), || stops(false, true));
        let limited = || {
            stopping(StopRules {
                max_jobs: Some(3),
                max_time: Some(S(60)),
                when_empty_for: Some(S(10)),
                ..StopRules::default()
            })
        };
        let quit = |snapshot| Snapshot {
            quit: true,
            ..snapshot
        };
        let busy = |snapshot| Snapshot {
            is_busy: true,
            ..snapshot
        };
        let lost = Snapshot {
            lost_connection: true,
            ..none()
        };
        let restart = Snapshot {
            restart: true,
            ..none()
        };
        let no_php = Snapshot {
            has_no_php: true,
            ..none()
        };
        let stuck = Snapshot {
            is_stuck: true,
            ..none()
        };
        let in_php = Snapshot {
            in_php: 1,
            ..begun(3)
        };
        #[rustfmt::skip]
        let rows = [
            // snapshot, options, over its memory, seconds => reason
            (none(),       unbounded(),  false, 999, None),
            (idle(),       unbounded(),  false, 999, None),
            (quit(idle()), when_empty(), false, 0,   Some(Interrupted)),
            (stuck,        unbounded(),  false, 0,   Some(TimedOut)),
            // A limit that is too low still lets one job through.
            (begun(0),     unbounded(),  true,  0,   None),
            (begun(1),     unbounded(),  true,  0,   Some(MemoryLimit)),
            (restart,      unbounded(),  false, 0,   Some(RestartSignal)),
            (restart,      once(),       false, 0,   None),
            (idle(),       when_empty(), false, 0,   Some(QueueEmpty)),
            (none(),       when_empty(), false, 0,   None),
            (idle(),       limited(),    false, 9,   None),
            (idle(),       limited(),    false, 10,  Some(QueueEmptyFor)),
            (none(),       limited(),    false, 59,  None),
            (none(),       limited(),    false, 60,  Some(MaxTime)),
            (begun(2),     limited(),    false, 0,   None),
            (begun(3),     limited(),    false, 0,   Some(MaxJobs)),
            // PHP may put the job back unchanged.
            (in_php,       limited(),    false, 0,   None),
            (idle(),       once(),       false, 0,   Some(QueueEmpty)),
            (begun(1),     once(),       false, 0,   Some(QueueEmpty)),
            (none(),       once(),       false, 0,   None),
            // A worker that runs until the queue is empty does not wait for servers and processes.
            (lost,         when_empty(), false, 0,   Some(LostConnection)),
            (lost,         once(),       false, 0,   Some(LostConnection)),
            (lost,         unbounded(),  false, 0,   None),
            (busy(lost),   when_empty(), false, 0,   None),
            (no_php,       when_empty(), false, 0,   Some(NoPhp)),
            (no_php,       unbounded(),  false, 0,   None),
            (busy(no_php), once(),       false, 0,   None),
        ];
        for (snapshot, options, is_over_memory, seconds, expected) in rows {
            let limits = Limits {
                is_over_memory,
                ..Limits::new(start)
            };
            let reason = limits.stop_reason(snapshot, &options, start + S(seconds));
            assert_eq!(reason, expected, "{snapshot:?} {options:?} after {seconds}");
        }
    }

    #[test]
    fn limits_of_time_are_looked_at_when_they_are_reached() {
        let now = Instant::now();
        let limits = Limits::new(now);
        let options = WorkerOptions {
            stop: StopRules {
                max_time: Some(S(60)),
                when_empty_for: Some(S(10)),
                ..StopRules::default()
            },
            ..WorkerOptions::default()
        };
        // Memory is measured while jobs run.
        assert_eq!(limits.next_look(&options, true, now), Some(now + S(1)));
        assert_eq!(limits.next_look(&options, false, now), Some(now + S(10)));
        let later = now + S(10);
        assert_eq!(limits.next_look(&options, false, later), Some(now + S(60)));
        let options = WorkerOptions::default();
        assert_eq!(limits.next_look(&options, false, now), None);
    }
}
