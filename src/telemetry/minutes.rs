//! What the minutes of the last hour came to, few numbers each.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// How many minutes are kept.
pub const MINUTES: usize = 60;
/// How long a minute is kept, in minutes.
const AN_HOUR: u64 = MINUTES as u64;

/// How long something took, several times.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Times {
    /// How often it was measured.
    pub count: u64,
    /// All of them together, in microseconds.
    pub sum: u64,
    /// The longest, in microseconds.
    pub max: u64,
}

impl Times {
    /// The average in seconds, if anything was measured.
    #[expect(clippy::cast_precision_loss, reason = "a time that is shown")]
    pub fn average(&self) -> Option<f64> {
        (self.count > 0).then(|| self.sum as f64 / self.count as f64 / 1e6)
    }

    /// The longest in seconds, if anything was measured.
    #[expect(clippy::cast_precision_loss, reason = "a time that is shown")]
    pub fn longest(&self) -> Option<f64> {
        (self.count > 0).then(|| self.max as f64 / 1e6)
    }

    fn add(&mut self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        self.merge(&Self {
            count: 1,
            sum: took,
            max: took,
        });
    }

    fn merge(&mut self, other: &Self) {
        self.count = self.count.saturating_add(other.count);
        self.sum = self.sum.saturating_add(other.sum);
        self.max = self.max.max(other.max);
    }
}

/// What the attempts that ended in one minute came to. As JSON: minute, done, failed, released, then number, sum and
/// longest of runs and of waits.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "[u64; 10]", into = "[u64; 10]")]
pub struct Minute {
    /// Whole minutes since 1970.
    pub number: u64,
    /// Jobs that are done.
    pub done: u64,
    /// Jobs that failed for good.
    pub failed: u64,
    /// Attempts after which the job waits for another one.
    pub released: u64,
    /// How long attempts ran.
    pub ran: Times,
    /// How long jobs waited for their first attempt, as far as their payloads tell.
    pub waited: Times,
}

impl From<[u64; 10]> for Minute {
    fn from(numbers: [u64; 10]) -> Self {
        let [number, done, failed, released, rest @ ..] = numbers;
        let [ran, ran_sum, ran_max, waited, waited_sum, waited_max] = rest;
        let times = |count, sum, max| Times { count, sum, max };
        Self {
            number,
            done,
            failed,
            released,
            ran: times(ran, ran_sum, ran_max),
            waited: times(waited, waited_sum, waited_max),
        }
    }
}

impl From<Minute> for [u64; 10] {
    fn from(minute: Minute) -> Self {
        let Minute { ran, waited, .. } = minute;
        [
            minute.number,
            minute.done,
            minute.failed,
            minute.released,
            ran.count,
            ran.sum,
            ran.max,
            waited.count,
            waited.sum,
            waited.max,
        ]
    }
}

impl Minute {
    /// Attempts that ended.
    pub fn attempts(&self) -> u64 {
        let ended = self.done.saturating_add(self.failed);
        ended.saturating_add(self.released)
    }

    /// Adds what another worker or queue did in the same minute, or in another one for a sum.
    pub fn merge(&mut self, other: &Self) {
        self.done = self.done.saturating_add(other.done);
        self.failed = self.failed.saturating_add(other.failed);
        self.released = self.released.saturating_add(other.released);
        self.ran.merge(&other.ran);
        self.waited.merge(&other.waited);
    }

    /// Notes how long an attempt ran.
    pub(super) fn ran(&mut self, took: Duration) {
        self.ran.add(took);
    }

    /// Notes how long a job waited.
    pub(super) fn waited(&mut self, took: Duration) {
        self.waited.add(took);
    }
}

/// The minutes of the last hour in which something happened, oldest first.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Minutes(VecDeque<Minute>);

impl Minutes {
    /// The counts of a minute, which is the latest one unless the clock was set back.
    pub(super) fn at(&mut self, minute: u64) -> &mut Minute {
        let last = self.0.back().map(|last| last.number);
        if last.is_none_or(|last| last < minute) {
            while (self.0.front())
                .is_some_and(|first| first.number.saturating_add(AN_HOUR) <= minute)
            {
                self.0.pop_front();
            }
            self.0.push_back(Minute {
                number: minute,
                ..Minute::default()
            });
        }
        let last = self.0.len() - 1;
        &mut self.0[last]
    }

    /// Those of the hour that ends with `now`, a number of minutes since 1970.
    pub fn until(&self, now: u64) -> impl Iterator<Item = &Minute> {
        let in_hour = move |minute: &&Minute| minute.number.saturating_add(AN_HOUR) > now;
        self.0.iter().filter(in_hour)
    }

    /// What all minutes of that hour came to.
    pub fn sum(&self, now: u64) -> Minute {
        let mut sum = Minute::default();
        self.until(now).for_each(|minute| sum.merge(minute));
        sum
    }

    /// Adds the minutes of another series.
    pub fn merge(&mut self, other: &Self) {
        for minute in &other.0 {
            let at = self.0.partition_point(|known| known.number < minute.number);
            match self.0.get_mut(at) {
                Some(known) if known.number == minute.number => known.merge(minute),
                _ => self.0.insert(at, *minute),
            }
        }
    }

    /// A copy of those of the hour that ends with `now`.
    pub(super) fn latest(&self, now: u64) -> Self {
        Self(self.until(now).copied().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_hour_is_kept_and_old_minutes_go() {
        let mut minutes = Minutes::default();
        for minute in 0..200 {
            minutes.at(minute).done += 1;
        }
        assert_eq!(minutes.sum(199).done, 60);
        assert_eq!(minutes.0.len(), 60);
        // Of a worker that has done nothing since, only what is still within the hour counts.
        assert_eq!(minutes.sum(230).done, 29);
        assert_eq!(minutes.latest(230).0.len(), 29);
        assert_eq!(minutes.sum(1000).done, 0);
        // A clock that is set back loses no count.
        minutes.at(150).failed += 1;
        assert_eq!(minutes.sum(199).failed, 1);
    }

    #[test]
    fn series_of_workers_add_up_minute_by_minute() {
        let (mut one, mut other) = (Minutes::default(), Minutes::default());
        one.at(5).done = 1;
        one.at(5).ran(Duration::from_millis(3));
        one.at(7).failed = 2;
        other.at(4).released = 3;
        other.at(5).done = 4;
        other.at(5).ran(Duration::from_millis(9));
        one.merge(&other);
        let json = serde_json::to_string(&one).unwrap();
        let expected = "[[4,0,0,3,0,0,0,0,0,0],[5,5,0,0,2,12000,9000,0,0,0],[7,0,2,0,0,0,0,0,0,0]]";
        assert_eq!(json, expected);
        assert_eq!(serde_json::from_str::<Minutes>(&json).unwrap(), one);
        assert_eq!(one.sum(7).attempts(), 10);
    }
}
