//! A setting of the app that cannot be used.

use crate::connection;
use crate::payload::KeyError;

/// A setting of the app that is missing, unknown or not supported.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SettingError {
    /// It could not be found out.
    #[error("cannot tell `{path}` of the app: {why}; write a manifest with `artisand manifest`")]
    Unknown {
        /// Path of the setting.
        path: String,
        /// Why not.
        why: String,
    },
    /// A secret that the manifest left out.
    #[error("the manifest leaves out the secret `{path}`: {remedy}")]
    Secret {
        /// Path of the setting.
        path: String,
        /// What would work.
        remedy: String,
    },
    /// It is not there.
    #[error("the app has no `{path}` (there are: {there})")]
    Missing {
        /// Path of the setting.
        path: String,
        /// What is there instead.
        there: String,
    },
    /// It is there, and artisand cannot use it.
    #[error("`{path}` of the app is {found}, expected {expected}")]
    Wrong {
        /// Path of the setting.
        path: String,
        /// What it is.
        found: String,
        /// What would work.
        expected: String,
    },
    /// A cache store of a kind that is not supported: `memcached`, `dynamodb`, `octane`, `apc`, `storage`, an app's
    /// own.
    #[error(
        "`{path}` of the app is `{driver}`, which only PHP reads (artisand reads redis, database and file)"
    )]
    OnlyPhp {
        /// Path of the setting.
        path: String,
        /// The kind.
        driver: String,
    },
    /// Values would be written otherwise than artisand can read them.
    #[error(
        "`{path}` is {value}: phpredis then changes the bytes of cache values and locks, which artisand does not read; unset it, or give the cache store a connection without it, or set `control_plane = false` under [worker] to work without the app's signals"
    )]
    Encoded {
        /// Path of the option.
        path: String,
        /// What it is.
        value: String,
    },
    /// The encryption key or cipher is missing, or of no use.
    #[error("`app.key` of the app cannot be used")]
    Key(#[from] KeyError),
    /// A connection cannot be made.
    #[error("`{path}` of the app cannot be used")]
    Connection {
        /// Path of the setting.
        path: String,
        /// Why not.
        source: connection::Error,
    },
}

impl SettingError {
    /// True if the setting is a good one, for PHP alone.
    pub fn is_for_php_only(&self) -> bool {
        matches!(self, Self::OnlyPhp { .. })
    }
}

/// A setting, or why it cannot be used.
pub(super) type SettingResult<T> = Result<T, SettingError>;
