//! Counts of mappings that do not run all of their jobs: canaries, shadows, and those with `on_mismatch`.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::routing::{Canary, Mapping, Mode, Router};

/// Counts of one mapping since the worker's start.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct MappingCounts {
    /// The mapping's target, as written in the configuration.
    pub target: String,
    /// Its share, if it is a canary.
    pub canary: Option<Canary>,
    /// Attempts that its handler ran.
    pub here: u64,
    /// Attempts that were left to the policy for unmapped jobs.
    pub bypassed: u64,
    /// How many of `bypassed` were jobs that do not fit the handler's input, with `on_mismatch = "php"`.
    pub mismatched: u64,
    /// How many of `bypassed` had input that the handler could read, in shadow mode.
    pub readable: u64,
    /// How many of `bypassed` had input that the handler could not read, in shadow mode.
    pub unreadable: u64,
    /// Attempts that were compared with PHP's result.
    pub compared: u64,
    /// How many of `compared` were different.
    pub different: u64,
    is_shadow: bool,
}

impl MappingCounts {
    /// Whether the mapping's handler is a shadow, which only looks.
    pub fn is_shadow(&self) -> bool {
        self.is_shadow
    }
}

/// The counters of all mappings.
#[derive(Debug)]
pub(super) struct MappingStats(Vec<Option<Counters>>);

/// A canary that stopped itself.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct CanaryStop {
    /// The mapping's target, as written in the configuration.
    pub target: String,
    /// How many of its last runs in this process failed.
    pub failures: usize,
    /// The number of runs that `failures` refers to.
    pub runs: usize,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    target: String,
    canary: Option<Canary>,
    is_shadow: bool,
    here: AtomicU64,
    bypassed: AtomicU64,
    mismatched: AtomicU64,
    pub(super) shadow: ShadowCounters,
    /// Whether the canary stopped itself.
    is_stopped: AtomicBool,
    /// The canary's last runs: whether each failed.
    last_runs: Mutex<VecDeque<bool>>,
}

/// What a shadow has seen.
#[derive(Debug, Default)]
pub(super) struct ShadowCounters {
    pub(super) readable: AtomicU64,
    pub(super) unreadable: AtomicU64,
    pub(super) compared: AtomicU64,
    pub(super) different: AtomicU64,
    /// Differences that were to be logged.
    said: AtomicU64,
}

/// Number of last runs that decide a canary's share of failures.
const LAST_RUNS: usize = 100;

/// Number of differences per mapping that are logged one by one.
const MOST_SAID: u64 = 100;
impl MappingStats {
    pub(super) fn new(router: &Router) -> Self {
        let counters = |mapping: &Mapping| {
            mapping.is_partial().then(|| Counters {
                target: mapping.target.to_string(),
                canary: mapping.canary,
                is_shadow: mapping.mode == Mode::Shadow,
                ..Counters::default()
            })
        };
        Self(router.mappings().map(counters).collect())
    }

    pub(super) fn of(&self, mapping: usize) -> Option<&Counters> {
        self.0.get(mapping)?.as_ref()
    }

    pub(super) fn ran_here(&self, mapping: usize) {
        if let Some(counters) = self.of(mapping) {
            counters.here.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn bypassed(&self, mapping: usize, is_mismatch: bool) {
        if let Some(counters) = self.of(mapping) {
            counters.bypassed.fetch_add(1, Ordering::Relaxed);
            let mismatched = u64::from(is_mismatch);
            counters.mismatched.fetch_add(mismatched, Ordering::Relaxed);
        }
    }

    /// Whether the canary of a mapping stopped itself.
    pub(super) fn is_stopped(&self, mapping: usize) -> bool {
        let counters = self.of(mapping);
        counters.is_some_and(|counters| counters.is_stopped.load(Ordering::Relaxed))
    }

    /// Notes how an attempt of a handler ended; returns the stop if it stops the canary.
    pub(super) fn ended(&self, mapping: usize, has_failed: bool) -> Option<CanaryStop> {
        let counters = self.of(mapping)?;
        let canary = counters.canary.filter(|canary| canary.is_guarded())?;
        let mut runs = counters.last_runs();
        if counters.is_stopped.load(Ordering::Relaxed) {
            return None;
        }
        if runs.len() == LAST_RUNS {
            runs.pop_front();
        }
        runs.push_back(has_failed);
        let stop = CanaryStop {
            target: counters.target.clone(),
            failures: runs.iter().filter(|has_failed| **has_failed).count(),
            runs: runs.len(),
        };
        if !canary.stops(stop.failures, stop.runs) {
            return None;
        }
        runs.clear();
        counters.is_stopped.store(true, Ordering::Relaxed);
        Some(stop)
    }

    /// Lets stopped canaries run jobs again; returns the targets of those that were stopped.
    pub(super) fn resume(&self) -> Vec<&str> {
        let counters = self.0.iter().flatten();
        let was_stopped = |counters: &&Counters| counters.is_stopped.swap(false, Ordering::Relaxed);
        let resumed = counters.filter(was_stopped);
        resumed.map(|counters| counters.target.as_str()).collect()
    }

    /// The counts of mappings that have counted something.
    pub(super) fn read(&self) -> Vec<MappingCounts> {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let counts = |counters: &Counters| MappingCounts {
            target: counters.target.clone(),
            canary: counters.canary,
            here: get(&counters.here),
            bypassed: get(&counters.bypassed),
            mismatched: get(&counters.mismatched),
            readable: get(&counters.shadow.readable),
            unreadable: get(&counters.shadow.unreadable),
            compared: get(&counters.shadow.compared),
            different: get(&counters.shadow.different),
            is_shadow: counters.is_shadow,
        };
        let all = self.0.iter().flatten().map(counts);
        all.filter(|counts| counts.here + counts.bypassed > 0)
            .collect()
    }
}

impl Counters {
    fn last_runs(&self) -> MutexGuard<'_, VecDeque<bool>> {
        self.last_runs
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a difference that is to be logged; false if too many were.
    pub(super) fn note_said(&self) -> bool {
        let said = self.shadow.said.fetch_add(1, Ordering::Relaxed);
        if said == MOST_SAID {
            tracing::warn!(
                mapping = self.target,
                "a shadow found {MOST_SAID} differences: further ones are counted and not logged"
            );
        }
        said < MOST_SAID
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{OnMismatch, UnmappedPolicy};
    use crate::worker::test_support::{mapping, nothing, router};

    /// The counters of a guarded canary, of an unguarded one, of a mapping that falls back, and of one that runs all.
    fn stats() -> MappingStats {
        let canary = |percent| Canary::new(percent).unwrap();
        let mappings = vec![
            Mapping {
                canary: canary(50.0).stop_at(2.0),
                ..mapping("App\\Jobs\\Guarded")
            },
            Mapping {
                canary: Some(canary(50.0)),
                ..mapping("App\\Jobs\\Open")
            },
            Mapping {
                on_mismatch: OnMismatch::Php,
                ..mapping("App\\Jobs\\Fitting")
            },
            mapping("App\\Jobs\\All"),
        ];
        MappingStats::new(&router(mappings, UnmappedPolicy::Leave, nothing()))
    }

    #[test]
    fn a_canary_stops_by_its_last_hundred_runs_and_begins_anew_when_it_is_resumed() {
        let stats = stats();
        assert!((0..300).all(|_| stats.ended(0, false).is_none()));
        // Two of the last hundred are not more than two per cent.
        assert_eq!(stats.ended(0, true), None);
        assert_eq!(stats.ended(0, true), None);
        let stop = stats.ended(0, true).unwrap();
        assert_eq!((stop.failures, stop.runs), (3, 100));
        assert_eq!(stop.target, "App\\Jobs\\Guarded");
        assert!(stats.is_stopped(0));
        // Runs that had begun before say nothing more.
        assert_eq!(stats.ended(0, true), None);
        assert_eq!(stats.resume(), ["App\\Jobs\\Guarded"]);
        assert!(!stats.is_stopped(0) && stats.resume().is_empty());
        assert!((0..19).all(|_| stats.ended(0, true).is_none()));
        let stop = stats.ended(0, true).unwrap();
        assert_eq!((stop.failures, stop.runs), (20, 20));
    }

    #[test]
    fn only_a_guarded_canary_stops_itself() {
        let stats = stats();
        for mapping in 1..5 {
            assert!((0..200).all(|_| stats.ended(mapping, true).is_none()));
            assert!(!stats.is_stopped(mapping));
        }
    }

    #[test]
    fn mappings_that_leave_jobs_to_others_have_counts_once_they_have_met_one() {
        let stats = stats();
        assert!(stats.read().is_empty());
        stats.ran_here(1);
        stats.bypassed(1, false);
        stats.bypassed(2, true);
        // A mapping that runs all of its jobs, and one that does not exist.
        stats.ran_here(3);
        stats.bypassed(9, true);
        let read = stats.read();
        let counts: Vec<_> = (read.iter())
            .map(|it| (&*it.target, it.here, it.bypassed, it.mismatched))
            .collect();
        let expected = [
            ("App\\Jobs\\Open", 1, 1, 0),
            ("App\\Jobs\\Fitting", 0, 1, 1),
        ];
        assert_eq!(counts, expected);
    }

    #[test]
    fn differences_fill_no_log() {
        let counters = Counters::default();
        let said = (0..1000).filter(|_| counters.note_said());
        assert_eq!(said.count(), 100);
    }
}
