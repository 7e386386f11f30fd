//! Which handlers keep a thread busy, so that their jobs run on threads beside the one that pops and settles.
//!
//! Handing a job to another thread costs more than most handlers do. So jobs run on the worker's own thread, but
//! those of a handler that computes, or blocks its thread by mistake, do not. Each handler begins beside it, until
//! its first runs have shown that it is light.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

/// Runs that a handler has to show before it counts as light.
const FIRST_RUNS: u32 = 32;
/// How much longer a build without optimization takes for a run, and for a hand-over.
const SLOWNESS: u64 = if cfg!(debug_assertions) { 10 } else { 1 };
/// A handler that keeps its thread busy for longer than this, on average, is heavy: twice what a hand-over costs.
const HEAVY: Duration = Duration::from_micros(50 * SLOWNESS);
/// A heavy handler becomes light below this.
const LIGHT: Duration = Duration::from_micros(25 * SLOWNESS);
/// A run counts as no longer than this, so that one interruption of the process does not count for minutes.
const LONGEST: Duration = Duration::from_micros(1000 * SLOWNESS);
/// A run's share in the average is one part in this many.
const MEMORY: u64 = 8;

/// The weights of all mappings' handlers.
#[derive(Debug)]
pub(crate) struct Weights {
    /// The runtime for heavy handlers; without one every job runs on the worker's own.
    runtime: Option<Handle>,
    mappings: Box<[Weight]>,
}

#[derive(Debug)]
struct Weight {
    is_heavy: AtomicBool,
    /// Runs so far, up to [`FIRST_RUNS`].
    runs: AtomicU32,
    /// Moving average of nanoseconds in which a run keeps its thread busy.
    busy: AtomicU64,
}

impl Weights {
    /// Weights of this many mappings.
    pub(super) fn new(runtime: Option<Handle>, mappings: usize) -> Self {
        let weight = || Weight {
            is_heavy: AtomicBool::new(true),
            runs: AtomicU32::new(0),
            busy: AtomicU64::new(0),
        };
        Self {
            runtime,
            mappings: std::iter::repeat_with(weight).take(mappings).collect(),
        }
    }

    /// The runtime on which the next job of a mapping runs; `None` for the worker's own.
    pub(super) fn runtime(&self, mapping: usize) -> Option<&Handle> {
        let runtime = self.runtime.as_ref()?;
        let weight = self.mappings.get(mapping)?;
        weight.is_heavy.load(Ordering::Relaxed).then_some(runtime)
    }

    /// Runs a mapping's handler and notes how long it keeps its thread busy.
    pub(super) async fn measure<T>(&self, mapping: usize, run: impl Future<Output = T>) -> T {
        if self.runtime.is_none() {
            return run.await;
        }
        let (mut run, mut busy) = (std::pin::pin!(run), Duration::ZERO);
        let output = std::future::poll_fn(|context| {
            let began = Instant::now();
            let polled = run.as_mut().poll(context);
            busy += began.elapsed();
            polled
        });
        let output = output.await;
        self.note(mapping, busy);
        output
    }

    fn note(&self, mapping: usize, busy: Duration) {
        let Some(weight) = self.mappings.get(mapping) else {
            return;
        };
        // Threads may overwrite each other's notes: an average bears that.
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        let sample = nanos(busy.min(LONGEST));
        let (runs, average) = (
            weight.runs.load(Ordering::Relaxed),
            weight.busy.load(Ordering::Relaxed),
        );
        let average = match runs {
            0 => sample,
            _ => average - average / MEMORY + sample / MEMORY,
        };
        weight.busy.store(average, Ordering::Relaxed);
        if runs < FIRST_RUNS {
            weight.runs.store(runs + 1, Ordering::Relaxed);
        }
        let is_heavy = weight.is_heavy.load(Ordering::Relaxed);
        if is_heavy && runs >= FIRST_RUNS && average < nanos(LIGHT) {
            weight.is_heavy.store(false, Ordering::Relaxed);
        } else if !is_heavy && average > nanos(HEAVY) {
            weight.is_heavy.store(true, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_handler_shows_that_it_is_light_and_one_long_run_makes_it_heavy() {
        let weights = Weights::new(Some(Handle::current()), 2);
        let is_heavy = || weights.runtime(0).is_some();
        let note = |runs: u32, micros| {
            (0..runs).for_each(|_| weights.note(0, Duration::from_micros(micros * SLOWNESS)));
        };
        note(FIRST_RUNS, 5);
        assert!(is_heavy());
        note(1, 5);
        assert!(!is_heavy() && weights.runtime(1).is_some());
        // A thread that is blocked for a minute, and one for a moment: both are long.
        note(1, 60_000_000);
        assert!(is_heavy());
        note(30, 5);
        assert!(!is_heavy());
        note(50, 40);
        assert!(!is_heavy());
        note(50, 200);
        assert!(is_heavy());
        note(50, 40);
        assert!(is_heavy(), "between both bounds it stays what it is");
    }

    #[test]
    fn without_other_threads_no_handler_is_moved() {
        let weights = Weights::new(None, 1);
        assert!(weights.runtime(0).is_none());
    }
}
