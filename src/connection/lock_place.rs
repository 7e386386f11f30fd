//! Where a lock is kept.

use std::time::Duration;

use super::{Database, Redis};

/// Where a lock is kept, for stores that can take and free locks together with other changes.
#[derive(Debug, Clone)]
pub enum LockPlace {
    /// A key of a Redis database.
    Redis {
        /// The server and database.
        server: Redis,
        /// The whole key.
        key: String,
    },
    /// A row of a table.
    Database(DatabaseLock),
    /// A key in the memory of this process.
    Memory {
        /// The whole key.
        key: String,
    },
}

/// A lock in a table with the columns `key`, `owner` and `expiration`.
#[derive(Debug, Clone)]
pub struct DatabaseLock {
    /// The database that holds the table.
    pub database: Database,
    /// The table as statements name it ([`Database::table`]).
    pub table: String,
    /// The whole key.
    pub key: String,
    /// How long a lock without an end lives.
    pub forever: Duration,
}

impl DatabaseLock {
    /// How long a lock lives that is taken for `ttl`; zero means without an end.
    pub(crate) fn lifetime(&self, ttl: Duration) -> Duration {
        if ttl.as_secs() == 0 {
            self.forever
        } else {
            ttl
        }
    }
}

impl LockPlace {
    /// The whole key of the lock.
    pub fn key(&self) -> &str {
        match self {
            Self::Redis { key, .. } | Self::Memory { key } => key,
            Self::Database(lock) => &lock.key,
        }
    }
}

impl PartialEq for LockPlace {
    /// The same key on the same server and database.
    fn eq(&self, other: &Self) -> bool {
        let is_same_server = match (self, other) {
            (Self::Redis { server, .. }, Self::Redis { server: other, .. }) => {
                server.is_same_database(other)
            }
            (Self::Database(lock), Self::Database(other)) => {
                lock.database.is_same(&other.database) && lock.table == other.table
            }
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            _ => false,
        };
        is_same_server && self.key() == other.key()
    }
}

impl Eq for LockPlace {}
