//! Versions of Laravel, which decide which rules apply.

use std::fmt;
use std::str::FromStr;

/// A version of the framework: `13.31.0`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 13 of `13.31.0`.
    pub major: u32,
    /// 31 of `13.31.0`.
    pub minor: u32,
    /// 0 of `13.31.0`.
    pub patch: u32,
}

impl Version {
    /// The version that is assumed if none is known.
    pub const NEWEST: Self = Self {
        major: 13,
        minor: u32::MAX,
        patch: u32::MAX,
    };

    /// Whether this is `major.minor` or later.
    pub fn is_at_least(self, major: u32, minor: u32) -> bool {
        (self.major, self.minor) >= (major, minor)
    }

    /// Whether jobs can be unique: since 8.14. `8` alone may be any of its versions.
    pub fn has_unique_jobs(self) -> bool {
        let is_any_8 = (self.major, self.minor, self.patch) == (8, 0, 0);
        is_any_8 || self.is_at_least(8, 14)
    }

    /// Whether jobs may be unique without saying so. Since 11.39 `dispatch()` notes the lock in the payload, and the
    /// scheduler does not; since 13.24 the object of either's job has the owner of its lock.
    pub fn hides_locks(self) -> bool {
        self.has_unique_jobs() && !self.is_at_least(13, 24)
    }

    /// Whether later attempts leave a lock without a known owner alone, as it may be that of a job dispatched since:
    /// 13.5 to 13.22, and since 13.24. Version 13.23 took the rule back.
    pub fn spares_locks_in_retries(self) -> bool {
        self.is_at_least(13, 5) && (self.major, self.minor) != (13, 23)
    }
}

impl Default for Version {
    fn default() -> Self {
        Self::NEWEST
    }
}

/// A text that is not a version.
#[derive(Debug, thiserror::Error)]
#[error("expected a version of Laravel, such as 13.31.0")]
pub struct VersionError;

impl FromStr for Version {
    type Err = VersionError;

    /// Reads `13`, `12.4`, `v11.0.8` and `13.x-dev`.
    fn from_str(text: &str) -> Result<Self, VersionError> {
        let mut parts = text.trim_start_matches('v').split(['.', '-']);
        let major = parts.next().and_then(|major| major.parse().ok());
        let mut number = || parts.next().and_then(|part| part.parse().ok()).unwrap_or(0);
        Ok(Self {
            major: major.ok_or(VersionError)?,
            minor: number(),
            patch: number(),
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if *self == Self::NEWEST {
            return f.write_str("13 (assumed)");
        }
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_read_as_people_write_them() {
        let version = |text: &str| text.parse::<Version>().map(|version| version.to_string());
        for (text, expected) in [
            ("13.31.0", "13.31.0"),
            ("v11.0.8", "11.0.8"),
            ("5.7", "5.7.0"),
            ("13.x-dev", "13.0.0"),
        ] {
            assert_eq!(version(text).unwrap(), expected);
        }
        assert!(version("dev-master").is_err());
        assert!(Version::NEWEST.is_at_least(13, 31));
        assert!(!"12.60.1".parse::<Version>().unwrap().is_at_least(13, 0));
    }
}
