//! Limits on runs and run time in a job's payload.

use std::fmt;
use std::time::Duration;

use serde::de::{self, Deserialize, Deserializer, SeqAccess, Visitor};

use crate::time::UnixSeconds;

/// Limits in a job's payload; `None` means that the worker's option applies.
///
/// # Source
///
/// `Illuminate\Queue\Jobs\Job`: `maxTries`, `maxExceptions`, `backoff`,
/// `timeout`, `retryUntil`, `shouldFailOnTimeout` (docs/protocol/payload.md 9).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Limits {
    /// Maximum number of runs; 0 for no limit.
    pub max_tries: Option<i64>,
    /// Maximum number of exceptions, which are counted separately from runs.
    pub max_exceptions: Option<i64>,
    /// Whether a timeout fails the job at once.
    pub fail_on_timeout: bool,
    /// Waits between runs; from `backoff`, else from `delay`, which had this meaning in Laravel 5.8 to 7.
    pub backoff: Option<Backoff>,
    /// Maximum duration of a run; zero for no limit.
    pub timeout: Option<Duration>,
    /// No run starts after this moment; from `retryUntil`, else from `timeoutAt` of Laravel 5.5 to 7.
    pub retry_until: Option<UnixSeconds>,
}

/// Waits after exceptions: the first after the first run; the last is repeated.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Backoff(Vec<Duration>);

impl fmt::Display for Backoff {
    /// Laravel's comma-separated list.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (position, wait) in self.0.iter().enumerate() {
            let comma = if position > 0 { "," } else { "" };
            write!(f, "{comma}{}", wait.as_secs())?;
        }
        Ok(())
    }
}

impl Backoff {
    /// The same wait every time.
    pub fn constant(wait: Duration) -> Self {
        Self(vec![wait])
    }

    /// Reads Laravel's comma-separated list (`"1,5,10"`) with PHP's cast to int: text that is not a number is 0.
    pub fn parse(list: &str) -> Self {
        Self(
            list.split(',')
                .map(|seconds| seconds_from(php_int(seconds)))
                .collect(),
        )
    }

    /// Raises each wait to at least this one: the effect of `--delay` together with `--backoff`, since Laravel
    /// 8.25.
    #[must_use]
    pub fn at_least(mut self, shortest: Duration) -> Self {
        self.0
            .iter_mut()
            .for_each(|wait| *wait = (*wait).max(shortest));
        self
    }

    /// Wait after an exception of run number `attempts` (from 1).
    pub fn after(&self, attempts: u32) -> Duration {
        let index = (attempts.max(1) - 1) as usize;
        self.0
            .get(index)
            .or(self.0.last())
            .copied()
            .unwrap_or_default()
    }
}

fn seconds_from(seconds: i64) -> Duration {
    Duration::from_secs(u64::try_from(seconds).unwrap_or(0))
}

/// PHP's `(int)` of a string: leading blanks, a sign, digits; the rest is ignored.
pub(crate) fn php_int(text: &str) -> i64 {
    let text = text.trim_start_matches([' ', '\t', '\n', '\r', '\x0b', '\x0c']);
    let digits_from = usize::from(text.starts_with(['-', '+']));
    let end = text[digits_from..]
        .find(|c: char| !c.is_ascii_digit())
        .map_or(text.len(), |end| digits_from + end);
    // PHP takes "1e3" for 1000, and "1.9" for 1.
    if text[end..].starts_with(['e', 'E', '.']) {
        let float_end = text
            .find(|c: char| !c.is_ascii_digit() && !"+-.eE".contains(c))
            .unwrap_or(text.len());
        if let Ok(value) = text[..float_end].parse::<f64>() {
            #[expect(clippy::cast_possible_truncation, reason = "PHP truncates too")]
            return value as i64;
        }
    }
    match text[..end].parse() {
        Ok(value) => value,
        Err(_) if end > digits_from => {
            if text.starts_with('-') {
                i64::MIN
            } else {
                i64::MAX
            }
        }
        Err(_) => 0,
    }
}

/// An int as found in JSON from PHP: a number, a numeric string, null, or another value, which counts as absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct LooseInt(pub(super) Option<i64>);

/// A `backoff` or old `delay` field: a comma-separated list, a number, or a list of numbers.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct LooseBackoff(pub(super) Option<Backoff>);

struct LooseIntVisitor;

impl<'de> Visitor<'de> for LooseIntVisitor {
    type Value = Option<i64>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an int, a numeric string or null")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Option<i64>, E> {
        Ok(Some(value))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Option<i64>, E> {
        Ok(Some(i64::try_from(value).unwrap_or(i64::MAX)))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Option<i64>, E> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "PHP truncates; the cast saturates"
        )]
        Ok(Some(value as i64))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Option<i64>, E> {
        Ok(Some(i64::from(value)))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Option<i64>, E> {
        Ok(Some(php_int(value)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Option<i64>, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Option<i64>, A::Error> {
        while seq.next_element::<super::json::Checked>()?.is_some() {}
        Ok(None)
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Option<i64>, A::Error> {
        while map
            .next_entry::<super::json::Checked, super::json::Checked>()?
            .is_some()
        {}
        Ok(None)
    }
}

impl<'de> Deserialize<'de> for LooseInt {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseIntVisitor).map(Self)
    }
}

struct LooseBackoffVisitor;

impl<'de> Visitor<'de> for LooseBackoffVisitor {
    type Value = Option<Backoff>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("seconds, a comma list of seconds, or null")
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Some(Backoff::constant(seconds_from(value))))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Some(Backoff::constant(Duration::from_secs(value))))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Self::Value, E> {
        #[expect(
            clippy::cast_possible_truncation,
            reason = "PHP truncates; the cast saturates"
        )]
        self.visit_i64(value as i64)
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Self::Value, E> {
        self.visit_i64(i64::from(value))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Some(Backoff::parse(value)))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Self::Value, E> {
        Ok(None)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
        let mut waits = Vec::new();
        while let Some(LooseInt(wait)) = seq.next_element()? {
            waits.push(seconds_from(wait.unwrap_or(0)));
        }
        Ok((!waits.is_empty()).then_some(Backoff(waits)))
    }

    fn visit_map<A: de::MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map
            .next_entry::<super::json::Checked, super::json::Checked>()?
            .is_some()
        {}
        Ok(None)
    }
}

impl<'de> Deserialize<'de> for LooseBackoff {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(LooseBackoffVisitor).map(Self)
    }
}

/// Converts Laravel's seconds to a timeout; negative ones mean none.
pub(super) fn timeout_from(seconds: i64) -> Duration {
    seconds_from(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backoff_takes_the_element_of_the_attempt_and_repeats_the_last() {
        #[rustfmt::skip]
        let rows = [
            ("1,5,10", 1, 1), ("1,5,10", 2, 5), ("1,5,10", 3, 10), ("1,5,10", 9, 10),
            ("", 1, 0), ("7", 4, 7), ("x,2", 1, 0), (" 3, 4", 2, 4), ("-5", 1, 0), ("1e1", 1, 10),
        ];
        for (list, attempts, seconds) in rows {
            assert_eq!(
                Backoff::parse(list).after(attempts),
                Duration::from_secs(seconds),
                "{list} {attempts}"
            );
        }
    }

    #[test]
    fn strings_become_ints_as_in_php() {
        let rows = [
            ("12", 12),
            ("12abc", 12),
            ("abc", 0),
            ("-3", -3),
            ("+4", 4),
            ("1.9", 1),
            ("", 0),
            ("é", 0),
        ];
        for (text, expected) in rows {
            assert_eq!(php_int(text), expected, "{text}");
        }
        assert_eq!(php_int("99999999999999999999"), i64::MAX);
    }
}
