//! Canary: a share of the jobs of a mapping, chosen by their uuid.

use std::fmt;

use xxhash_rust::xxh3::xxh3_64;

use crate::payload::Payload;

/// The share of a mapping's jobs that its handler runs (`canary = 5`), in per cent, and when it stops itself.
///
/// A job is chosen by its uuid: the choice is the same on every attempt, in every
/// process, and after `queue:retry`. A larger share includes all jobs of a
/// smaller share.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Canary {
    share: u32,
    /// The share of runs that may fail.
    stop_at: Option<u32>,
}

/// Resolution of a share: 100 per cent in parts.
const PARTS: u32 = 100_000;
/// Number of runs before a canary can stop itself.
const LEAST_RUNS: usize = 20;

/// Converts per cent to parts; `None` outside of 0 to 100.
fn parts(percent: f64) -> Option<u32> {
    let parts = percent * f64::from(PARTS / 100);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "from 0 to 100,000"
    )]
    (0.0..=f64::from(PARTS))
        .contains(&parts)
        .then(|| parts.round() as u32)
}

impl Canary {
    /// A share from 0 to 100 per cent, in steps of a thousandth of one; `None` for anything else.
    pub fn new(percent: f64) -> Option<Self> {
        Some(Self {
            share: parts(percent)?,
            stop_at: None,
        })
    }

    /// Stops once more than this share of the last 100 runs in a process has failed, but not before the twentieth
    /// run; `None` if `percent` is not from 0 to below 100.
    ///
    /// The canary's jobs are then treated as unmapped, until the worker starts
    /// again or sees `artisand canary:resume`.
    pub fn stop_at(self, percent: f64) -> Option<Self> {
        let stop_at = parts(percent).filter(|parts| *parts < PARTS)?;
        Some(Self {
            stop_at: Some(stop_at),
            ..self
        })
    }

    /// Whether it can stop itself.
    pub(crate) fn is_guarded(self) -> bool {
        self.stop_at.is_some()
    }

    /// Whether this many failures in this many runs are too many.
    pub(crate) fn stops(self, failures: usize, runs: usize) -> bool {
        let is_above =
            |parts: u32| failures as u64 * u64::from(PARTS) > runs as u64 * u64::from(parts);
        runs >= LEAST_RUNS && self.stop_at.is_some_and(is_above)
    }

    /// Whether the handler runs this job, chosen by its uuid, or by its id before Laravel 7. A job with neither is
    /// not chosen.
    pub fn takes(self, payload: &Payload) -> bool {
        let uuid = payload.uuid.as_ref().map(crate::payload::JobUuid::as_str);
        let id = || payload.id.as_ref().map(crate::payload::JobId::as_str);
        let Some(identity) = uuid.or_else(id) else {
            return false;
        };
        xxh3_64(identity.as_bytes()) % u64::from(PARTS) < u64::from(self.share)
    }
}

impl fmt::Display for Canary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.share) / f64::from(PARTS / 100))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(uuid: &str) -> Payload {
        let json = serde_json::json!({"uuid": uuid, "job": "A@b", "attempts": 0, "data": []});
        Payload::parse(json.to_string().as_bytes()).unwrap()
    }

    #[test]
    fn a_share_of_the_uuids_is_taken_and_a_larger_one_holds_the_smaller() {
        let jobs: Vec<Payload> = (0..10_000)
            .map(|n| payload(&format!("{n:08x}-0000-4000-8000-000000000000")))
            .collect();
        let taken = |percent: f64| -> Vec<usize> {
            let canary = Canary::new(percent).unwrap();
            let is_taken = |(_, job): &(usize, &Payload)| canary.takes(job);
            let taken = jobs.iter().enumerate().filter(is_taken);
            taken.map(|(number, _)| number).collect()
        };
        assert_eq!(taken(0.0), [] as [usize; 0]);
        assert_eq!(taken(100.0).len(), jobs.len());
        let (few, more) = (taken(5.0), taken(30.0));
        assert!((400..600).contains(&few.len()), "{}", few.len());
        assert!((2800..3200).contains(&more.len()), "{}", more.len());
        assert!(few.iter().all(|number| more.contains(number)));
        assert_eq!(few, taken(5.0));
    }

    #[test]
    fn shares_are_from_nothing_to_all() {
        let rows = [
            (0.0, Some("0")),
            (5.0, Some("5")),
            (0.5, Some("0.5")),
            (100.0, Some("100")),
            (-1.0, None),
            (100.1, None),
            (f64::NAN, None),
        ];
        for (percent, expected) in rows {
            let found = Canary::new(percent).map(|canary| canary.to_string());
            assert_eq!(found.as_deref(), expected, "{percent}");
        }
    }

    #[test]
    fn a_guarded_canary_stops_above_its_share_of_failures_and_after_enough_runs() {
        #[rustfmt::skip]
        let rows = [
            // stop_at, failures, runs => stops
            (Some(2.0), 19,  19, false),
            (Some(2.0),  1,  20, true),
            (Some(2.0),  2, 100, false),
            (Some(2.0),  3, 100, true),
            (Some(0.0),  0, 100, false),
            (Some(0.0),  1, 100, true),
            (Some(0.5),  1, 100, true),
            (None,      99, 100, false),
        ];
        let canary = Canary::new(5.0).unwrap();
        for (stop_at, failures, runs, expected) in rows {
            let canary = stop_at.map_or(canary, |percent| canary.stop_at(percent).unwrap());
            let row = (stop_at, failures, runs);
            assert_eq!(canary.stops(failures, runs), expected, "{row:?}");
        }
        for percent in [-1.0, 100.0, f64::NAN] {
            assert_eq!(canary.stop_at(percent), None, "{percent}");
        }
    }

    #[test]
    fn a_job_that_nothing_tells_apart_is_not_taken() {
        let nameless = Payload::parse(br#"{"job":"A@b","attempts":0,"data":[]}"#).unwrap();
        assert!(!Canary::new(100.0).unwrap().takes(&nameless));
        let old = Payload::parse(br#"{"job":"A@b","id":"x","attempts":0,"data":[]}"#).unwrap();
        assert!(Canary::new(100.0).unwrap().takes(&old));
    }
}
