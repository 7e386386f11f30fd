//! Where a lock is kept.

use super::Redis;

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
    /// A key in the memory of this process.
    Memory {
        /// The whole key.
        key: String,
    },
}

impl LockPlace {
    /// The whole key of the lock.
    pub fn key(&self) -> &str {
        match self {
            Self::Redis { key, .. } | Self::Memory { key } => key,
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
            (Self::Memory { .. }, Self::Memory { .. }) => true,
            _ => false,
        };
        is_same_server && self.key() == other.key()
    }
}

impl Eq for LockPlace {}
