//! Records of follow-up work.

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde::{Deserialize, Serialize};

use crate::batch::Ended;
use crate::payload::InheritedFields;
use crate::queue::{ConnectionName, Effect, Push, Spool};

/// A record of follow-up work.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub(crate) enum FollowUp {
    /// Count the end of a job in its batch.
    Count(Count),
    /// Remove the marks of counted ends from the batch.
    Forget {
        /// The batch.
        batch: String,
        /// The ends.
        ended: Vec<Ended>,
    },
    /// Free a lock.
    Unlock {
        /// Name of the cache store.
        store: String,
        /// Name of the lock, below the store's prefix.
        name: String,
        /// The owner when the job ended; `None` if it was not known.
        owner: Option<String>,
    },
    /// Push a job to another connection, or a job that needs a lock kept elsewhere.
    Push(RemotePush),
}

/// A job that must be pushed exactly once.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RemotePush {
    /// Name of the queue connection.
    pub(crate) connection: String,
    /// Queue on it.
    pub(crate) queue: String,
    /// The payload; if it is not UTF-8, with replacement characters, for versions that do not know `bytes`.
    pub(crate) payload: String,
    /// The payload in Base64, if it is not UTF-8: a job that is forwarded has the bytes that some program gave it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) bytes: Option<String>,
    /// When it becomes due.
    pub(crate) due: Option<i64>,
    /// Identity of the payload, by which the other Redis recognizes a repeated push.
    pub(crate) id: String,
    /// The lock that must be taken first; if another owner holds it, the job is not pushed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) lock: Option<LockRequest>,
}

/// A lock to take.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LockRequest {
    /// Name of the cache store.
    pub(crate) store: String,
    /// Name of the lock, below the store's prefix.
    pub(crate) name: String,
    /// The owner that takes it.
    pub(crate) owner: String,
    /// Lifetime in seconds; 0 for as long as the store keeps such locks.
    pub(crate) seconds: u64,
}

impl LockRequest {
    /// The effect that leaves a record by which the lock is freed.
    pub(crate) fn unlock(&self) -> Effect {
        let unlock = FollowUp::Unlock {
            store: self.store.clone(),
            name: self.name.clone(),
            owner: Some(self.owner.clone()),
        };
        unlock.effect()
    }
}

/// The end of a job that is to be counted in its batch.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Count {
    /// The batch.
    pub(crate) batch: String,
    /// The job, and how it ended.
    #[serde(flatten)]
    pub(crate) ended: Ended,
    /// The connection of the job; that of the worker that counts, if it is not noted. Workers of several connections
    /// can share a list.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) connection: Option<String>,
    /// A queue of that connection which PHP workers serve, for when callbacks are due; they wait if none is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) queue: Option<String>,
    /// Why the job failed, for the callbacks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) message: Option<String>,
    /// Name of the job, for a closure that counts it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) name: Option<String>,
    /// What such a closure inherits from the job: its log context, and its trace.
    #[serde(default, rename = "trace", skip_serializing_if = "Option::is_none")]
    pub(crate) inherited: Option<InheritedFields>,
    /// The job's own limit of time in seconds, for such a closure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) timeout: Option<u64>,
}

/// A token that distinguishes the end of a job from other ends of the same job.
pub(crate) fn random_token() -> String {
    format!("{:016x}", fastrand::u64(..))
}

impl RemotePush {
    /// A push to a queue connection, to be made once the job has ended that it follows; it takes no lock.
    pub(crate) fn of(connection: &ConnectionName, push: &Push) -> Self {
        let text = String::from_utf8_lossy(&push.payload);
        let is_text = matches!(text, std::borrow::Cow::Borrowed(_));
        Self {
            connection: connection.to_string(),
            queue: push.queue.to_string(),
            bytes: (!is_text).then(|| BASE64_STANDARD.encode(&push.payload)),
            payload: text.into_owned(),
            due: push.due.map(|due| due.0),
            id: random_token(),
            lock: None,
        }
    }

    /// The payload as it is pushed; `None` if the record does not hold it.
    pub(crate) fn payload(&self) -> Option<Vec<u8>> {
        match &self.bytes {
            None => Some(self.payload.as_bytes().to_vec()),
            Some(bytes) => BASE64_STANDARD.decode(bytes).ok(),
        }
    }
}

/// Puts a push off until after the end of the job that it follows ([`InOrder`](crate::queue::InOrder)).
pub(crate) fn put_off(connection: &ConnectionName, push: &Push) -> Effect {
    FollowUp::Push(RemotePush::of(connection, push)).effect()
}

impl FollowUp {
    pub(super) fn to_record(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("text and numbers are always JSON")
    }

    /// The effect that leaves this record.
    pub(crate) fn effect(&self) -> Effect {
        Effect::Append(Spool::FollowUps, self.to_record())
    }
}

/// Why something for PHP waits.
pub(crate) const NO_PHP_QUEUE: &str =
    "no queue is known that PHP serves: set `queue` under [php] in artisand.toml";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payload_that_is_put_off_keeps_its_bytes() {
        for payload in [&b"{\"job\":\"A\"}"[..], b"{\"job\":\"\xff\"}", b""] {
            let push = Push {
                queue: "q".into(),
                payload: payload.to_vec(),
                due: None,
                claim: None,
            };
            let record = FollowUp::Push(RemotePush::of(&"redis".into(), &push)).to_record();
            let Ok(FollowUp::Push(read)) = serde_json::from_slice(&record) else {
                panic!("{}", String::from_utf8_lossy(&record));
            };
            assert_eq!(read.payload().as_deref(), Some(payload));
        }
    }

    #[test]
    fn each_end_of_a_job_has_a_token_of_its_own() {
        assert_ne!(random_token(), random_token());
    }
}
