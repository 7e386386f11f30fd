//! Moments as Horizon writes them.

use std::fmt;
use std::time::SystemTime;

/// Microseconds since 1970.
///
/// Displayed as decimal seconds with at most four places, as `microtime(true)` becomes text in PHP.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Micros(u64);

impl Micros {
    pub(super) fn now() -> Self {
        let since = SystemTime::UNIX_EPOCH.elapsed().unwrap_or_default();
        Self(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
    }

    pub(super) fn seconds(self) -> u64 {
        self.0 / 1_000_000
    }

    /// Milliseconds since an earlier moment, to two places; 0 if the clock was set back.
    pub(super) fn milliseconds_since(self, earlier: Self) -> f64 {
        let micros = u32::try_from(self.0.saturating_sub(earlier.0)).unwrap_or(u32::MAX);
        f64::from(micros / 10) / 100.0
    }

    /// The score of a list that is read from its newest entry.
    pub(super) fn newest_first(self) -> String {
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
        assert_eq!(
            Micros(2_345_678).milliseconds_since(Micros(1_000_000)),
            1345.67
        );
        assert_eq!(Micros(1).milliseconds_since(Micros(2)), 0.0);
    }
}
