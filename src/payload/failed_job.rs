//! A job that failed for good, with the columns of Laravel's `failed_jobs`.

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
    /// The payload as it was popped, without counting this attempt, as Laravel records it.
    pub payload: String,
    /// Exception text in PHP's shape.
    pub exception: String,
    /// When it failed, in unix seconds.
    pub failed_at: i64,
    /// Tells apart failures of jobs without a uuid that are equal otherwise; absent in records of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token: Option<String>,
}

impl FailedJob {
    /// The record as JSON for the spool.
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

    /// The uuid; for a payload without one, an id derived from the record, always the same for the same record.
    ///
    /// Laravel cannot store such a job by uuid at all; artisand loses none.
    pub(crate) fn id(&self) -> String {
        use sha1::Digest as _;
        if let Some(uuid) = self.uuid.as_ref().filter(|uuid| !uuid.is_empty()) {
            return uuid.clone();
        }
        let hash = sha1::Sha1::digest(self.to_json());
        let mut bytes = [0; 16];
        bytes.copy_from_slice(&hash[..16]);
        // Version 8 allows custom rules.
        bytes[6] = bytes[6] & 0x0f | 0x80;
        bytes[8] = bytes[8] & 0x3f | 0x80;
        let hex = format!("{:032x}", u128::from_be_bytes(bytes));
        [
            &hex[..8],
            &hex[8..12],
            &hex[12..16],
            &hex[16..20],
            &hex[20..],
        ]
        .join("-")
    }
}
