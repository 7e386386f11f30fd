//! Points in time as Laravel counts them, and where "now" comes from.

use std::fmt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Whole seconds since 1970-01-01 UTC, the unit of every score and limit in Laravel's queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct UnixSeconds(pub i64);

impl UnixSeconds {
    /// The last second that a sorted set's score, a double, holds exactly.
    const LAST: i64 = 1 << 53;

    /// This moment plus a delay, cut to whole seconds as Laravel does.
    #[must_use]
    pub fn plus(self, delay: Duration) -> Self {
        let seconds = i64::try_from(delay.as_secs()).unwrap_or(i64::MAX);
        Self(self.0.saturating_add(seconds).min(Self::LAST))
    }
}

/// Longest wait that is kept: no moment of a clock overflows when it is added.
const LONGEST: u64 = 100 * 366 * 86_400;

/// Seconds as payloads and settings give them: none if they are negative, and at most a hundred years.
pub fn seconds(seconds: impl TryInto<u64>) -> Duration {
    Duration::from_secs(seconds.try_into().unwrap_or(0).min(LONGEST))
}

impl fmt::Display for UnixSeconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0, f)
    }
}

/// Tells the time; a fixed one in tests.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Clock {
    /// The machine's clock, which Laravel's scores come from as well.
    #[default]
    System,
    /// Always this moment.
    Fixed(UnixSeconds),
}

impl Clock {
    /// The current second, cut and not rounded.
    pub fn now(self) -> UnixSeconds {
        match self {
            Self::System => {
                let since = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                UnixSeconds(i64::try_from(since.as_secs()).unwrap_or(i64::MAX))
            }
            Self::Fixed(now) => now,
        }
    }

    /// The current moment in seconds, with a fraction.
    pub fn precise(self) -> f64 {
        match self {
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH);
                since.unwrap_or_default().as_secs_f64()
            }
            #[expect(clippy::cast_precision_loss, reason = "no clock reaches 2^53 seconds")]
            Self::Fixed(now) => now.0 as f64,
        }
    }

    /// Whole seconds from the current one to `moment`, as Laravel counts waits; zero if it is now or past.
    pub fn until_whole(self, moment: UnixSeconds) -> Duration {
        let left = moment.0.saturating_sub(self.now().0);
        seconds(left)
    }

    /// How long until `moment` is reached; zero if it is now or past.
    pub fn until(self, moment: UnixSeconds) -> Duration {
        match self {
            Self::System => {
                let since = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                seconds(moment.0).saturating_sub(since)
            }
            Self::Fixed(now) => seconds(moment.0.saturating_sub(now.0)),
        }
    }
}

/// Waits for a moment; forever if there is none.
pub(crate) async fn sleep_until(moment: Option<tokio::time::Instant>) {
    match moment {
        Some(moment) => tokio::time::sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

/// Microseconds since 1970.
///
/// Displayed as decimal seconds with at most four places, as `microtime(true)` becomes text in PHP and as Horizon
/// writes moments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Micros(pub u64);

impl Micros {
    /// The present moment, from the machine's clock.
    pub fn now() -> Self {
        let since = UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    /// Whole seconds since 1970.
    pub fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Milliseconds since an earlier moment, to two places; 0 if the clock was set back.
    pub fn milliseconds_since(self, earlier: Self) -> f64 {
        let since = Duration::from_micros(self.0.saturating_sub(earlier.0));
        (since.as_secs_f64() * 100_000.0).round() / 100.0
    }

    /// The score of a list that is read from its newest entry.
    pub fn newest_first(self) -> String {
        format!("-{self}")
    }
}

impl fmt::Display for Micros {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (seconds, places) = (self.seconds(), self.0 % 1_000_000 / 100);
        if places == 0 {
            return write!(f, "{seconds}");
        }
        let text = format!("{places:04}");
        write!(f, "{seconds}.{}", text.trim_end_matches('0'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_written_as_php_writes_them() {
        #[rustfmt::skip]
        let rows = [
            (1_795_207_352_266_012, "1795207352.266"), (1_795_207_352_000_099, "1795207352"),
            (1_795_207_352_000_199, "1795207352.0001"), (1_795_207_352_123_456, "1795207352.1234"),
        ];
        for (micros, expected) in rows {
            assert_eq!(Micros(micros).to_string(), expected);
            assert_eq!(Micros(micros).newest_first(), format!("-{expected}"));
        }
        let took = |end, begin| Micros(end).milliseconds_since(Micros(begin)).to_string();
        assert_eq!(took(2_345_678, 1_000_000), "1345.68");
        // A day.
        assert_eq!(took(86_400_123_456, 0), "86400123.46");
        assert_eq!(took(1, 2), "0");
    }
}
