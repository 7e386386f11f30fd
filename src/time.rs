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
        Duration::from_secs(u64::try_from(left).unwrap_or(0))
    }

    /// How long until `moment` is reached; zero if it is now or past.
    pub fn until(self, moment: UnixSeconds) -> Duration {
        match self {
            Self::System => {
                let since = SystemTime::now()
                    .duration_since(UNIX_EPOCH)
                    .unwrap_or_default();
                Duration::from_secs(u64::try_from(moment.0).unwrap_or(0)).saturating_sub(since)
            }
            Self::Fixed(now) => {
                Duration::from_secs(u64::try_from(moment.0.saturating_sub(now.0)).unwrap_or(0))
            }
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
