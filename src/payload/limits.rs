//! Limits on runs and run time in a job's payload.

use crate::php::int_of;
use std::fmt;
use std::time::Duration;

use super::json::{JsonError, Reader, Token};
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
    /// No run starts after this moment, and `max_tries` does not count; from `retryUntil`, else from `timeoutAt` of
    /// Laravel 5.5 to 7.
    pub retry_until: Option<UnixSeconds>,
}

/// Reads `retryUntil` or `timeoutAt`: a number other than 0, or text that is one.
///
/// With any other value the job's tries count. So it is in Laravel for 0, false and an empty text; what it does with
/// text that is no number depends on the version of PHP.
pub(super) fn read_moment(reader: &mut Reader<'_>) -> Result<Option<UnixSeconds>, JsonError> {
    let moment = reader.number()?.filter(|moment| *moment != 0.0);
    #[expect(
        clippy::cast_possible_truncation,
        reason = "attempts are compared in whole seconds; the cast saturates"
    )]
    Ok(moment.map(|moment| UnixSeconds(moment as i64)))
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
                .map(|seconds| crate::time::seconds(int_of(seconds)))
                .collect(),
        )
    }

    /// Reads a `backoff` or old `delay` field: a comma-separated list, a number, or a list of numbers.
    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Option<Self>, JsonError> {
        match reader.token()? {
            Token::Text(list) => Ok(Some(Self::parse(list))),
            Token::Int(seconds) => Ok(Some(Self::constant(crate::time::seconds(seconds)))),
            Token::Bool(is) => Ok(Some(Self::constant(crate::time::seconds(i64::from(is))))),
            Token::Float(seconds) =>
            {
                #[expect(
                    clippy::cast_possible_truncation,
                    reason = "PHP truncates; the cast saturates"
                )]
                Ok(Some(Self::constant(crate::time::seconds(seconds as i64))))
            }
            Token::Array => {
                let mut waits = Vec::new();
                reader.elements(|reader| {
                    waits.push(crate::time::seconds(reader.int()?.unwrap_or(0)));
                    Ok(())
                })?;
                Ok((!waits.is_empty()).then_some(Self(waits)))
            }
            Token::Object => reader.skip_members().map(|()| None),
            Token::Null => Ok(None),
        }
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
}
