//! `[redis]` and the environment: which sentinels are said here.

use toml::Spanned;

use super::place::place;
use super::redis::RedisTable;
use super::{Config, Error};

/// The password of the sentinels.
const PASSWORD: &str = "ARTISAND_SENTINEL_PASSWORD";

impl Config {
    /// `[redis]`, with the password of the environment.
    pub(super) fn redis_table(&self) -> RedisTable {
        let table = self.file.redis.as_ref().map(Spanned::get_ref);
        let mut table = table.cloned().unwrap_or_default();
        let password = self.process.get(PASSWORD).cloned();
        let password = password.filter(|password| !password.is_empty());
        table.sentinel_password = password.or(table.sentinel_password);
        table
    }

    /// Refuses a `[redis]` that means nothing.
    pub(super) fn check_redis_table(&self) -> Result<(), Error> {
        let Some(table) = &self.file.redis else {
            return Ok(());
        };
        match table.get_ref().problem() {
            None => Ok(()),
            Some(problem) => Err(Error::Toml {
                place: place(&self.path, table.span().start),
                problem: problem.to_owned(),
            }),
        }
    }
}
