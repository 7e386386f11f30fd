//! Jobs that failed for good, until a store of the app has taken them.

use serde::{Deserialize, Serialize};

use crate::time::UnixSeconds;

/// A failed job as it waits in the spool (`artisand:failed-spool`): one JSON object per list element.
///
/// The fields are those of Laravel's `failed_jobs` table.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FailedJob {
    /// `uuid` of the payload; absent before Laravel 7.
    pub uuid: Option<String>,
    /// Queue connection.
    pub connection: String,
    /// Queue.
    pub queue: String,
    /// The payload as it was popped, `attempts` not counted up, as Laravel records it.
    pub payload: String,
    /// Exception text in PHP's shape: `Class: message`.
    pub exception: String,
    /// When it failed, in unix seconds.
    pub failed_at: i64,
}

impl FailedJob {
    /// The record as it is spooled.
    ///
    /// # Panics
    ///
    /// Never: text and numbers are always JSON.
    pub fn to_json(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are always JSON")
    }

    /// When it failed.
    pub fn failed_at(&self) -> UnixSeconds {
        UnixSeconds(self.failed_at)
    }
}
