//! The effect of one job's end on its batch. Pure: counters in, counters out.

use super::ids::JobIds;
use super::{Ended, JobOutcome, Options, Recorded};
use crate::payload::Version;

/// The columns to change.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Counters {
    pub(super) pending: i64,
    pub(super) failed: i64,
    pub(super) ids: JobIds,
    /// Whether to set `finished_at` to the current time.
    pub(super) finishes: bool,
    /// Whether to set `cancelled_at` to the current time.
    pub(super) cancels: bool,
}

/// Since when there are `BatchFinished` and `BatchCanceled`, or a little before: PHP then counts, and raises nothing.
pub(super) const FINISHED: (u32, u32) = (12, 48);
/// The same of `BatchStarted`.
const STARTED: (u32, u32) = (13, 0);

/// The version's rules and the batch's options.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules<'a> {
    pub(super) version: Version,
    pub(super) options: &'a Options,
    /// How many jobs the batch has, if PHP is to raise its events.
    pub(super) raised_of: Option<i64>,
}

impl Rules<'_> {
    /// Counts an ending and marks it, unless it was counted already or makes callbacks due, or events, which only PHP
    /// can run.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\Batch::recordSuccessfulJob` and `recordFailedJob`.
    pub(super) fn record(self, counters: &mut Counters, ended: &Ended) -> Recorded {
        if counters.ids.is_marked(ended) {
            return Recorded::AlreadyCounted;
        }
        let mut after = counters.clone();
        let is_due = match ended.outcome {
            JobOutcome::Succeeded => self.succeeded(&mut after, &ended.uuid),
            JobOutcome::Failed => self.failed(&mut after, &ended.uuid),
        };
        if is_due {
            return Recorded::NeedsPhp;
        }
        let starts = self.raises_start(&after);
        after.ids.mark(ended);
        *counters = after;
        if starts {
            Recorded::CountedFirst
        } else {
            Recorded::Counted
        }
    }

    /// Counts a success; returns whether callbacks are due.
    fn succeeded(self, after: &mut Counters, uuid: &str) -> bool {
        after.pending = after.pending.saturating_sub(1);
        after.ids.succeeded(uuid);
        after.finishes |= after.pending == 0;
        let callbacks = self.options.callbacks;
        (after.pending == 0 && self.raises(FINISHED))
            || (callbacks.progress && self.has_progress())
            || (callbacks.then && after.pending == 0)
            || (callbacks.finally && Self::all_ran(after))
    }

    /// Counts a failure; returns whether callbacks are due.
    fn failed(self, after: &mut Counters, uuid: &str) -> bool {
        after.failed = after.failed.saturating_add(1);
        after.ids.failed(uuid);
        let is_first = after.failed == 1;
        let allowed = self.options.allow_failures;
        if is_first && !allowed {
            after.cancels = true;
            after.finishes = true;
        }
        let callbacks = self.options.callbacks;
        (is_first && !allowed && self.raises(FINISHED))
            || (callbacks.progress && allowed && self.has_progress())
            || (callbacks.failure && allowed && self.has_failure())
            || (callbacks.catch && is_first)
            || (callbacks.finally && Self::all_ran(after))
    }

    /// Whether PHP raises events that exist since this version, as it does when it counts a job.
    fn raises(self, (major, minor): (u32, u32)) -> bool {
        self.raised_of.is_some() && self.version.is_at_least(major, minor)
    }

    /// `Batch::isFirstJobProcessed`
    fn raises_start(self, after: &Counters) -> bool {
        let ended = self
            .raised_of
            .map(|total| total - after.pending + after.failed);
        ended == Some(1) && self.raises(STARTED)
    }

    /// `UpdatedBatchJobCounts::allJobsHaveRanExactlyOnce`
    fn all_ran(after: &Counters) -> bool {
        after.pending.saturating_sub(after.failed) == 0
    }

    fn has_progress(self) -> bool {
        self.version.is_at_least(10, 37)
    }

    fn has_failure(self) -> bool {
        self.version.is_at_least(12, 32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Callbacks;
    use Recorded::{AlreadyCounted, Counted, NeedsPhp};

    fn ended(outcome: char, uuid: &str) -> Ended {
        Ended {
            uuid: uuid.into(),
            outcome: match outcome {
                's' => JobOutcome::Succeeded,
                _ => JobOutcome::Failed,
            },
            token: String::new(),
        }
    }

    fn callbacks(names: &str) -> Callbacks {
        let has = |name| names.split(' ').any(|other| other == name);
        Callbacks {
            before: has("before"),
            progress: has("progress"),
            then: has("then"),
            catch: has("catch"),
            failure: has("failure"),
            finally: has("finally"),
        }
    }

    #[test]
    fn an_ending_that_brings_about_an_event_is_left_to_php_or_said_to_be_the_first() {
        use Recorded::CountedFirst;
        // Version; allowFailures; total, pending, failed; the ending => the result
        #[rustfmt::skip]
        let rows = [
            ("13.31", false, (3, 3, 0), "s a", CountedFirst),
            ("13.31", false, (3, 2, 0), "s a", Counted),
            ("13.31", false, (3, 1, 0), "s a", NeedsPhp),
            ("13.31", false, (1, 1, 0), "s a", NeedsPhp),
            ("13.31", false, (3, 3, 0), "f a", NeedsPhp),
            ("13.31", false, (3, 3, 1), "f a", Counted),
            ("13.31", true,  (3, 3, 0), "f a", CountedFirst),
            ("12.48", false, (3, 3, 0), "s a", Counted),
            ("12.48", false, (3, 1, 0), "s a", NeedsPhp),
            ("12.47", false, (3, 1, 0), "s a", Counted),
            ("12.47", false, (3, 3, 0), "f a", Counted),
        ];
        for (version, allow_failures, (total, pending, failed), ending, expected) in rows {
            let options = Options {
                allow_failures,
                ..Options::default()
            };
            let rules = Rules {
                version: version.parse().unwrap(),
                options: &options,
                raised_of: Some(total),
            };
            let mut counters = Counters {
                pending,
                failed,
                ids: JobIds::parse("[]"),
                finishes: false,
                cancels: false,
            };
            let (outcome, uuid) = ending.split_once(' ').unwrap();
            let ended = ended(outcome.chars().next().unwrap(), uuid);
            let recorded = rules.record(&mut counters, &ended);
            assert_eq!(
                recorded, expected,
                "{version} {allow_failures} {pending} {failed} {ending}"
            );
        }
    }

    #[test]
    fn an_ending_is_counted_unless_it_makes_callbacks_due() {
        // Version; allowFailures; callbacks; pending, failed, ids; the ending
        // => the result; pending, failed, ids without marks; finished, cancelled
        #[rustfmt::skip]
        let rows = [
            ("13.31", false, "",         (3, 0, ""),  "s a", Counted,  (2, 0, "",   false, false)),
            ("13.31", false, "",         (1, 0, ""),  "s a", Counted,  (0, 0, "",   true,  false)),
            ("13.31", false, "",         (2, 1, "a"), "s a", Counted,  (1, 1, "",   false, false)),
            // Counted twice by a worker that died: never zero again.
            ("13.31", false, "",         (0, 0, ""),  "s a", Counted,  (-1, 0, "",  false, false)),
            ("13.31", false, "",         (3, 0, ""),  "f a", Counted,  (3, 1, "a",  true,  true)),
            ("13.31", false, "",         (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
            // A retried job that fails again counts as another failure.
            ("13.31", true,  "",         (3, 1, "a"), "f a", Counted,  (3, 2, "a",  false, false)),
            ("13.31", true,  "",         (3, 0, ""),  "f a", Counted,  (3, 1, "a",  false, false)),
            ("13.31", false, "before",   (1, 0, ""),  "s a", Counted,  (0, 0, "",   true,  false)),
            ("13.31", false, "then",     (2, 0, ""),  "s a", Counted,  (1, 0, "",   false, false)),
            ("13.31", false, "then",     (1, 0, ""),  "s a", NeedsPhp, (1, 0, "",   false, false)),
            ("13.31", false, "then",     (1, 0, ""),  "f a", Counted,  (1, 1, "a",  true,  true)),
            ("13.31", true,  "finally",  (2, 1, "a"), "s b", NeedsPhp, (2, 1, "a",  false, false)),
            ("13.31", true,  "finally",  (2, 1, "a"), "f b", NeedsPhp, (2, 1, "a",  false, false)),
            ("13.31", true,  "finally",  (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
            // After the retry the batch is finished, and `finally` was called long before.
            ("13.31", true,  "finally",  (1, 1, "a"), "s a", Counted,  (0, 1, "",   true,  false)),
            ("13.31", true,  "then",     (1, 1, "a"), "s a", NeedsPhp, (1, 1, "a",  false, false)),
            ("13.31", false, "catch",    (3, 0, ""),  "f a", NeedsPhp, (3, 0, "",   false, false)),
            ("13.31", false, "catch",    (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
            ("13.31", false, "catch",    (3, 0, ""),  "s a", Counted,  (2, 0, "",   false, false)),
            ("13.31", false, "progress", (3, 0, ""),  "s a", NeedsPhp, (3, 0, "",   false, false)),
            ("10.36", false, "progress", (3, 0, ""),  "s a", Counted,  (2, 0, "",   false, false)),
            ("10.37", false, "progress", (3, 0, ""),  "s a", NeedsPhp, (3, 0, "",   false, false)),
            ("10.37", false, "progress", (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
            ("10.37", true,  "progress", (3, 1, "a"), "f b", NeedsPhp, (3, 1, "a",  false, false)),
            ("12.31", true,  "failure",  (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
            ("12.32", true,  "failure",  (3, 1, "a"), "f b", NeedsPhp, (3, 1, "a",  false, false)),
            ("12.32", false, "failure",  (3, 1, "a"), "f b", Counted,  (3, 2, "ab", false, false)),
        ];
        for (version, allow_failures, names, before, ending, expected, after) in rows {
            let list = |ids: &str| ids.chars().map(String::from).collect::<Vec<_>>();
            let options = Options {
                allow_failures,
                callbacks: callbacks(names),
                ..Options::default()
            };
            let rules = Rules {
                version: version.parse().unwrap(),
                options: &options,
                raised_of: None,
            };
            let (pending, failed, ids) = before;
            let mut counters = Counters {
                pending,
                failed,
                ids: JobIds::parse(&serde_json::to_string(&list(ids)).unwrap()),
                finishes: false,
                cancels: false,
            };
            let row = format!("{version} {allow_failures} [{names}] {before:?} {ending}");
            let (outcome, uuid) = ending.split_once(' ').unwrap();
            let ended = ended(outcome.chars().next().unwrap(), uuid);
            assert_eq!(rules.record(&mut counters, &ended), expected, "{row}");
            let (pending, failed, ids, finishes, cancels) = after;
            assert_eq!(
                (counters.pending, counters.failed, counters.ids.uuids()),
                (pending, failed, list(ids)),
                "{row}"
            );
            assert_eq!(
                (counters.finishes, counters.cancels),
                (finishes, cancels),
                "{row}"
            );
            // Recording it a second time changes nothing, whatever the first result was.
            let first = counters.clone();
            let again = rules.record(&mut counters, &ended);
            let is_counted = expected == Counted;
            assert_eq!(again, if is_counted { AlreadyCounted } else { NeedsPhp });
            assert_eq!(counters, first, "{row}");
        }
    }
}
