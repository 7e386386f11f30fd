//! Errors of cache stores.

use std::path::PathBuf;

use crate::php;

/// An error from a cache store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server failed the operation.
    #[error("could not {what} a key in the cache")]
    Server {
        /// The operation.
        what: &'static str,
        /// The error of the connection.
        source: crate::connection::Error,
    },
    /// A file of the file store cannot be read or written.
    #[error("could not {what} the cache file {path}")]
    File {
        /// The operation.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
    /// The stored value is not in Laravel's format.
    #[error("the cache holds something under `{key}` that PHP did not serialize")]
    Value {
        /// The key without prefix.
        key: String,
        /// The problem with the value.
        source: php::Error,
    },
    /// This store cannot hold such a value.
    #[error("the value for `{key}` is not text, which this store needs")]
    NotText {
        /// The key without prefix.
        key: String,
    },
}

impl Error {
    /// True if the key is too long for its column, so that no other try will do better.
    pub(crate) fn is_long_key(&self) -> bool {
        use crate::connection::Error::LongKey;
        matches!(
            self,
            Self::Server {
                source: LongKey { .. },
                ..
            }
        )
    }

    /// True if the request may still be on its way to the server, and come behind later ones.
    pub(crate) fn may_come_late(&self) -> bool {
        matches!(self, Self::Server { source, .. } if source.is_of_unknown_outcome())
    }
}
