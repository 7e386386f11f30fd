//! What has to be known about the app's Pulse.

use std::fmt;

use super::hash::md5;
use super::pattern::PhpPattern;
use crate::connection::DatabaseOptions;

/// Settings of the app's Pulse; a recorder that is off is `None`.
#[derive(Debug, Clone)]
pub struct PulseOptions {
    /// Where its tables are.
    pub database: DatabaseOptions,
    /// Counts of what happened to jobs.
    pub queues: Option<RecorderOptions>,
    /// Jobs that took long.
    pub slow_jobs: Option<SlowJobs>,
    /// Exceptions of jobs.
    pub exceptions: Option<RecorderOptions>,
    /// Whether an exception is shown with its place.
    pub has_location: bool,
    /// Why recorders are off that PHP has on, or write less; each with what would help.
    pub doubts: Vec<(String, &'static str)>,
}

/// Settings that all recorders have.
#[derive(Debug, Clone)]
pub struct RecorderOptions {
    /// Share of entries that are recorded, from 0 to 1.
    pub sample_rate: f64,
    /// Names that are not recorded.
    pub ignore: Vec<PhpPattern>,
}

/// Settings of the recorder of slow jobs.
#[derive(Debug, Clone)]
pub struct SlowJobs {
    /// What all recorders have.
    pub recorder: RecorderOptions,
    /// From how many milliseconds a job counts as slow: the first limit whose pattern matches its name.
    pub limits: Vec<Limit>,
    /// The same for all other jobs.
    pub otherwise: u64,
    /// Whether the order of the limits is not the app's, which is not known.
    pub is_order_lost: bool,
}

/// From how many milliseconds a job with a name like this counts as slow.
#[derive(Debug, Clone)]
pub struct Limit {
    /// Names that are meant.
    pub name: PhpPattern,
    /// Milliseconds.
    pub milliseconds: u64,
}

impl Default for RecorderOptions {
    fn default() -> Self {
        Self {
            sample_rate: 1.0,
            ignore: Vec::new(),
        }
    }
}

impl RecorderOptions {
    /// Whether names like this are recorded.
    pub(super) fn wants(&self, name: &str) -> bool {
        !self.ignore.iter().any(|pattern| pattern.matches(name))
    }

    /// Whether this entry is one of the share that is recorded.
    pub(super) fn samples(&self) -> bool {
        self.sample_rate >= 1.0 || fastrand::f64() <= self.sample_rate
    }

    /// Whether the entries of this job are recorded: all of them or none, in PHP too.
    ///
    /// # Source
    ///
    /// `Laravel\Pulse\Recorders\Concerns\Sampling::shouldSampleDeterministically`.
    pub(super) fn samples_job(&self, uuid: &str) -> bool {
        self.sample_rate >= 1.0 || share_of(uuid) <= self.sample_rate
    }
}

impl SlowJobs {
    /// From how many milliseconds a job of this name counts as slow.
    pub(crate) fn limit(&self, name: &str) -> u64 {
        let mut limits = self.limits.iter();
        let found = limits.find(|limit| limit.name.matches(name));
        found.map_or(self.otherwise, |limit| limit.milliseconds)
    }
}

/// `hexdec(md5($seed)) / pow(16, 32)`: digit by digit, as PHP rounds it.
fn share_of(seed: &str) -> f64 {
    let digits = md5(seed);
    let digits = digits.chars().filter_map(|digit| digit.to_digit(16));
    let number = digits.fold(0.0, |number, digit| number * 16.0 + f64::from(digit));
    number / 16_f64.powi(32)
}

impl fmt::Display for PulseOptions {
    /// Which cards get entries.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let cards = [
            ("Queues", self.queues.is_some()),
            ("Slow Jobs", self.slow_jobs.is_some()),
            ("Exceptions", self.exceptions.is_some()),
        ];
        let cards = cards.into_iter().filter(|(_, is_on)| *is_on);
        let names: Vec<&str> = cards.map(|(name, _)| name).collect();
        f.write_str(&names.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_job_is_sampled_by_its_uuid_as_in_php() {
        // printf '%.17g' of `hexdec(md5($uuid)) / pow(16, 32)` in PHP 8.2.
        let rows = [
            ("", 0.828_575_900_187_390_9),
            (
                "3e695d0c-9ec1-4d11-8f0c-fd54f1ac3b27",
                0.407_114_004_977_513_9,
            ),
            ("a", 0.049_826_963_281_652_016),
        ];
        for (uuid, expected) in rows {
            assert!((share_of(uuid) - expected).abs() < 1e-15, "{uuid}");
            let options = |sample_rate| RecorderOptions {
                sample_rate,
                ignore: Vec::new(),
            };
            assert!(options(1.0).samples_job(uuid) && options(share_of(uuid)).samples_job(uuid));
            assert!(!options(share_of(uuid) - 1e-9).samples_job(uuid));
        }
    }

    #[test]
    fn the_first_limit_that_matches_counts() {
        let limit = |name: &str, milliseconds| Limit {
            name: name.parse().unwrap(),
            milliseconds,
        };
        let slow = SlowJobs {
            recorder: RecorderOptions::default(),
            limits: vec![
                limit("#^App\\\\Jobs\\\\Report#", 60_000),
                limit("#Jobs#", 5000),
            ],
            otherwise: 1000,
            is_order_lost: false,
        };
        for (name, expected) in [
            ("App\\Jobs\\Reports\\A", 60_000),
            ("App\\Jobs\\B", 5000),
            ("Mail", 1000),
        ] {
            assert_eq!(slow.limit(name), expected, "{name}");
        }
    }
}
