//! Pushes jobs.

use std::time::Duration;

use serde::Deserialize;

use super::client::{AT_ONCE, MOST_BYTES, Outgoing};
use super::core::{OVERFLOW, refused};
use super::queue::SqsQueue;
use crate::payload::{Command, Payload};
use crate::queue::{Error, Push, PushedOnce, QueueName, QueueRefusal};
use crate::time::{Clock, UnixSeconds};

/// The longest delay of a message.
const LONGEST_DELAY: Duration = Duration::from_secs(900);

impl SqsQueue {
    /// Sends jobs to a queue, each to be due at its time.
    ///
    /// A queue that keeps order delays no single message: its jobs come at once, as Laravel's do since 12.30. With
    /// `once`, it does not take the same job again for five minutes.
    ///
    /// # Errors
    ///
    /// Those before the one that the error names are pushed, and maybe some behind it.
    pub(super) async fn put(
        &self,
        queue: &QueueName,
        jobs: &[(&[u8], Option<UnixSeconds>)],
        group: Option<&str>,
        once: Option<&str>,
    ) -> Result<(), Error> {
        let url = self.core.url(queue);
        let mut messages = Vec::with_capacity(jobs.len());
        for (index, (payload, due)) in jobs.iter().enumerate() {
            let refuse = |source| Error::Refused {
                queue: queue.clone(),
                source,
            };
            let delay = due.map_or(Duration::ZERO, |due| Clock::System.until_whole(due));
            let is_delayed = !delay.is_zero() && !url.is_fifo();
            if is_delayed && delay > LONGEST_DELAY {
                return Err(refuse(QueueRefusal::Delay { delay }));
            }
            let text = std::str::from_utf8(payload).map_err(|_| refuse(QueueRefusal::NotText))?;
            let group = group.map(str::to_owned).or_else(|| group_of(payload));
            let fifo = url.is_fifo();
            let identity = match once {
                Some(id) => short_identity(&format!("{id}:{index}")),
                None => format!("{:032x}", fastrand::u128(..)),
            };
            messages.push(Outgoing {
                body: self.body(queue, text, &identity).await?,
                delay: is_delayed.then(|| i32::try_from(delay.as_secs()).unwrap_or(i32::MAX)),
                group: group.or_else(|| fifo.then(|| queue.to_string())),
                deduplication: fifo.then_some(identity),
            });
        }
        let mut rest = &messages[..];
        let mut sent = 0;
        while !rest.is_empty() {
            let (batch, left) = rest.split_at(fitting(rest));
            let entries = self.core.client.send(queue, &url, batch).await;
            let entries = entries.map_err(|error| error.doubtful_if(sent > 0))?;
            let is_begun = sent > 0 || entries.iter().any(Result::is_ok);
            let mut problem = None;
            for ((payload, _), entry) in jobs[sent..].iter().zip(entries) {
                match entry {
                    Ok(()) => {
                        if let Some(listener) = self.pushes.get() {
                            listener.pushed(&self.core.options.connection, queue, payload);
                        }
                    }
                    Err((code, message)) => {
                        problem.get_or_insert(refused(queue, "SendMessageBatch", code, message));
                    }
                }
            }
            if let Some(problem) = problem {
                return Err(problem.doubtful_if(is_begun));
            }
            sent += batch.len();
            rest = left;
        }
        Ok(())
    }

    /// The text of the message: the payload, or where it is kept.
    ///
    /// Each push has a place of its own, where Laravel names it by the job's uuid: the message of an earlier push of
    /// the same job, such as one that is forwarded or retried, takes its payload along when it is deleted.
    async fn body(
        &self,
        queue: &QueueName,
        payload: &str,
        identity: &str,
    ) -> Result<String, Error> {
        let Some(overflow) = &self.core.options.overflow else {
            return Ok(payload.to_owned());
        };
        if !overflow.always && payload.len() < MOST_BYTES {
            return Ok(payload.to_owned());
        }
        let key = format!("{OVERFLOW}{identity}");
        let kept = overflow.store.put(&key, payload).await;
        kept.map_err(|source| Error::Overflow {
            queue: queue.clone(),
            source,
        })?;
        Ok(serde_json::json!({ "@pointer": key }).to_string())
    }

    pub(super) async fn push_all(&self, pushes: &[Push], id: &str) -> Result<PushedOnce, Error> {
        if let Some(push) = pushes.iter().find(|push| push.claim.is_some()) {
            return Err(Error::Refused {
                queue: push.queue.clone(),
                source: QueueRefusal::Unsupported("take a lock together with a push"),
            });
        }
        for (number, same_queue) in pushes.chunk_by(|a, b| a.queue == b.queue).enumerate() {
            let jobs: Vec<_> = (same_queue.iter())
                .map(|push| (&*push.payload, push.due))
                .collect();
            let once = format!("{id}:{number}");
            let put = self.put(&same_queue[0].queue, &jobs, None, Some(&once));
            put.await.map_err(|error| error.doubtful_if(number > 0))?;
        }
        Ok(PushedOnce::Now { locked: 0 })
    }
}

/// How many messages go into the next request.
fn fitting(messages: &[Outgoing]) -> usize {
    let mut bytes = 0;
    let fits = |message: &&Outgoing| {
        bytes += message.body.len();
        bytes <= MOST_BYTES
    };
    let count = messages.iter().take(AT_ONCE).take_while(fits).count();
    // The server says that a message is too long.
    count.max(1)
}

/// An identity as the server takes it: no longer than 128 characters.
fn short_identity(id: &str) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(id);
    let digest = u128::from_be_bytes(digest[..16].try_into().unwrap_or_default());
    format!("{digest:032x}")
}

/// The group that an object says its job is of.
#[derive(Deserialize)]
struct Grouped {
    #[serde(rename = "messageGroup", default)]
    group: Option<String>,
}

fn group_of(payload: &[u8]) -> Option<String> {
    let payload = Payload::parse(payload).ok()?;
    let command = Command::of(&payload).ok()??;
    let Grouped { group } = command.deserialize().ok()?;
    group.filter(|group| !group.is_empty())
}
