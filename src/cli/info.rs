//! What a Redis server says of itself.

use crate::connection::{Error, Redis};

/// Sections of `INFO`.
pub(super) struct Info(pub(super) String);

impl Info {
    /// Asks the server for these sections.
    pub(super) async fn of(redis: &Redis, sections: &[&str]) -> Result<Self, Error> {
        let mut info = String::new();
        for section in sections {
            info += &redis
                .command::<String>(redis::cmd("INFO").arg(section))
                .await?;
        }
        Ok(Self(info))
    }

    pub(super) fn field(&self, name: &str) -> Option<&str> {
        self.0
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
            .map(str::trim)
    }

    /// A field that is a number.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Option<T> {
        self.field(name)?.parse().ok()
    }
}
