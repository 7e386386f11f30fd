//! What pops, polls and settlements of a connection share.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use serde::Deserialize;
use tokio::runtime::{self, Handle};

use super::address::Url;
use super::client::{AT_ONCE, Client, Message};
use super::leases::{Lease, Leases, Moment, Renewing};
use super::options::{SqsOptions, StoreProblem};
use crate::queue::{Delivery, Error, Held, QueueName, QueueRefusal, ReservedJob};
use crate::time::Clock;

/// No reservation is shorter, whatever the queue says: it is renewed every ten seconds.
pub const SHORTEST_VISIBILITY: Duration = Duration::from_secs(30);
/// How long an answer about a queue's own setting counts.
const SETTING_LIVES: Duration = Duration::from_secs(60);
/// Where Laravel keeps payloads that are too long for a message.
pub(super) const OVERFLOW: &str = "laravel:sqs-payloads:";

/// A message that names the place of its payload.
#[derive(Deserialize)]
struct Pointer {
    #[serde(rename = "@pointer")]
    key: String,
}

/// The place of a job among others, and for how long to reserve it.
type Due<'a> = (usize, &'a Arc<ReservedJob>, Duration);

#[derive(Debug)]
pub(super) struct Core {
    pub(super) options: SqsOptions,
    pub(super) client: Client,
    /// For renewals from another runtime: a connection rests while the thread of its own runtime is busy.
    renewing: Client,
    /// The runtime that receives jobs.
    receives_on: OnceLock<runtime::Id>,
    pub(super) leases: Leases,
    /// Reservation times that queues have by themselves, and when they said so.
    settings: Mutex<HashMap<Url, (Option<Duration>, Instant)>>,
    /// Whether the store of long payloads did not answer.
    is_store_away: AtomicBool,
}

impl Core {
    pub(super) fn new(options: SqsOptions) -> Self {
        Self {
            client: Client::new(&options),
            renewing: Client::new(&options),
            receives_on: OnceLock::new(),
            options,
            leases: Leases::default(),
            settings: Mutex::default(),
            is_store_away: AtomicBool::new(false),
        }
    }

    pub(super) fn url(&self, queue: &QueueName) -> Url {
        let forwarded = self.options.forwards.get(queue).unwrap_or(queue);
        Url::of(forwarded.as_str(), &self.options)
    }

    /// The shortest time that any reservation lives.
    pub(super) fn retry_after(&self) -> Duration {
        self.options.retry_after.unwrap_or(SHORTEST_VISIBILITY)
    }

    /// The client for renewals from this runtime.
    fn client_to_renew(&self) -> &Client {
        let is_here = self.receives_on.get() == Some(&Handle::current().id());
        if is_here {
            &self.client
        } else {
            &self.renewing
        }
    }

    /// How long a reservation of this queue lives, and whether each receipt has to say so.
    async fn visibility(&self, client: &Client, queue: &QueueName, url: &Url) -> (Duration, bool) {
        if let Some(retry_after) = self.options.retry_after {
            return (retry_after, true);
        }
        let known = || self.settings.lock().unwrap_or_else(PoisonError::into_inner);
        let said = known().get(url).copied();
        let said = match said {
            Some((said, at)) if at.elapsed() < SETTING_LIVES => said,
            before => {
                let asked = client.attributes(queue, url).await;
                if let (Err(error), None) = (&asked, before) {
                    tracing::warn!(
                        error = crate::shown::with_causes(error),
                        %queue,
                        "could not ask SQS how long the queue reserves its messages; artisand reserves them for {} s",
                        SHORTEST_VISIBILITY.as_secs()
                    );
                }
                let said = asked.ok().and_then(|attributes| attributes.visibility);
                known().insert(url.clone(), (said, Instant::now()));
                said
            }
        };
        match said {
            Some(said) if said >= SHORTEST_VISIBILITY => (said, false),
            _ => (SHORTEST_VISIBILITY, true),
        }
    }

    /// Receives up to `most` jobs of a queue.
    pub(super) async fn receive(
        &self,
        queue: &QueueName,
        url: &Url,
        most: usize,
        wait: Duration,
    ) -> Result<Vec<ReservedJob>, Error> {
        self.receives_on.get_or_init(|| Handle::current().id());
        self.find_store(queue).await?;
        let (visibility, is_told) = self.visibility(&self.client, queue, url).await;
        // A long poll reserves its messages when it finds them: no sooner than this. Their payloads may take time, too.
        let since = Moment::now();
        let told = is_told.then_some(visibility);
        let messages = self.client.receive(queue, url, most, wait, told).await?;
        let mut jobs = Vec::with_capacity(messages.len());
        let mut problem = None;
        for message in messages {
            let Message {
                id,
                receipt,
                body,
                receives,
                group,
            } = message;
            let (body, overflow) = match self.resolved(&body).await {
                Ok(Some((payload, key))) => (payload, Some(key)),
                Ok(None) => (body, None),
                Err(error) => {
                    // Its reservation ends, and the message comes again, with one attempt more.
                    self.is_store_away.store(true, Ordering::Relaxed);
                    tracing::warn!(
                        error = crate::shown::with_causes(&*error),
                        %queue,
                        "the cache store with the payload of a message cannot be read; the message comes again"
                    );
                    problem = Some(error);
                    continue;
                }
            };
            let ticket: Arc<[u8]> = receipt.as_bytes().into();
            let lease = Lease {
                url: url.clone(),
                received: since,
                since,
                visibility,
                group,
                overflow,
                is_forwarded: false,
                is_hidden: false,
                has_ended: false,
                turn: Arc::default(),
            };
            self.leases.insert(Arc::clone(&ticket), lease);
            jobs.push(ReservedJob {
                queue: queue.clone(),
                payload: body.into_bytes().into(),
                attempts: receives,
                lease: Some(since.wall.plus(visibility)),
                choice: None,
                ticket,
                delivery: Some(Delivery {
                    id,
                    pushed: None,
                    receipt: Some(receipt),
                }),
            });
        }
        match problem {
            Some(source) if jobs.is_empty() => Err(Error::Overflow {
                queue: queue.clone(),
                source,
            }),
            _ => Ok(jobs),
        }
    }

    /// Looks for a store that was away, so that no message loses an attempt in vain.
    async fn find_store(&self, queue: &QueueName) -> Result<(), Error> {
        let Some(overflow) = &self.options.overflow else {
            return Ok(());
        };
        if self.is_store_away.load(Ordering::Relaxed) {
            let found = overflow.store.get(OVERFLOW).await;
            found.map_err(|source| Error::Overflow {
                queue: queue.clone(),
                source,
            })?;
            self.is_store_away.store(false, Ordering::Relaxed);
        }
        Ok(())
    }

    /// The payload that a message only names, and its key in the cache; `None` if the message is the payload. A payload
    /// that is gone leaves what names it, which no worker can run.
    async fn resolved(&self, body: &str) -> Result<Option<(String, String)>, StoreProblem> {
        let Some(overflow) = &self.options.overflow else {
            return Ok(None);
        };
        let Ok(Pointer { key }) = serde_json::from_str(body) else {
            return Ok(None);
        };
        let payload = overflow.store.get(&key).await?;
        Ok(payload.map(|payload| (payload, key)))
    }

    /// Renews reservations of which more than a third has passed.
    pub(super) async fn renew(&self, jobs: &[Arc<ReservedJob>]) -> Result<Vec<Held>, Error> {
        let client = self.client_to_renew();
        let mut held = vec![Held::Lost; jobs.len()];
        let mut due: HashMap<Url, Vec<Due<'_>>> = HashMap::new();
        let until = |left: Duration| Held::Until(Clock::System.now().plus(left));
        for (index, job) in jobs.iter().enumerate() {
            let Some(lease) = self.leases.of(job) else {
                continue;
            };
            let left = lease.left();
            if left.is_zero() {
                continue;
            }
            held[index] = until(left);
            // A longer reservation is renewed less often: each request costs money.
            let (whole, _) = self.visibility(client, &job.queue, &lease.url).await;
            let wanted = whole.min(lease.longest());
            if left < whole * 2 / 3 && wanted > left {
                due.entry(lease.url).or_default().push((index, job, wanted));
            }
        }
        for (url, due) in due {
            for some in due.chunks(AT_ONCE) {
                self.renew_some(client, &url, some, &mut held).await?;
            }
        }
        Ok(held)
    }

    /// Renews up to ten reservations of a queue, without those of messages that a settlement hides meanwhile.
    async fn renew_some(
        &self,
        client: &Client,
        url: &Url,
        due: &[Due<'_>],
        held: &mut [Held],
    ) -> Result<(), Error> {
        let (due, _turns): (Vec<&Due<'_>>, Vec<Renewing>) = (due.iter())
            .filter_map(|due| Some((due, self.leases.turn_to_renew(due.1)?)))
            .unzip();
        let Some((_, first, _)) = due.first() else {
            return Ok(());
        };
        let queue = &first.queue;
        let receipts: Vec<_> = (due.iter())
            .map(|(_, job, time)| (receipt(job), *time))
            .collect();
        let since = Moment::now();
        let entries = client.hide(queue, url, &receipts).await?;
        for ((index, job, time), entry) in due.into_iter().zip(entries) {
            match entry {
                Ok(()) => {
                    self.leases.renewed(job, since, *time);
                    held[*index] = Held::Until(since.wall.plus(*time));
                }
                Err((code, message)) if is_gone(&code, &message) => held[*index] = Held::Lost,
                Err((code, message)) => {
                    let call = "ChangeMessageVisibilityBatch";
                    return Err(refused(queue, call, code, message));
                }
            }
        }
        Ok(())
    }
}

/// The receipt handle of a job.
pub(super) fn receipt(job: &ReservedJob) -> &str {
    let delivery = job.delivery.as_ref();
    (delivery.and_then(|delivery| delivery.receipt.as_deref())).unwrap_or_default()
}

/// Whether an entry failed because the message is no longer reserved with this receipt.
pub(super) fn is_gone(code: &str, message: &str) -> bool {
    const GONE: [&str; 4] = [
        "ReceiptHandleIsInvalid",
        "MessageNotInflight",
        "InvalidParameterValue",
        "AWS.SimpleQueueService.MessageNotInflight",
    ];
    // One that would be hidden for more than 12 hours in all is still reserved.
    GONE.contains(&code) && !message.contains("Total VisibilityTimeout")
}

pub(super) fn refused(
    queue: &QueueName,
    call: &'static str,
    code: String,
    message: String,
) -> Error {
    Error::Refused {
        queue: queue.clone(),
        source: QueueRefusal::Sqs {
            call,
            code,
            message,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::is_gone;

    #[test]
    fn a_message_that_cannot_be_hidden_any_longer_is_not_gone() {
        let invalid = "InvalidParameterValue";
        #[rustfmt::skip]
        let rows = [
            (invalid, "Reason: The receipt handle has expired.", true),
            (invalid, "Reason: Message does not exist or is not available for visibility timeout change.", true),
            (invalid, "Reason: Total VisibilityTimeout for the message is beyond the limit [43200 seconds].", false),
            ("ReceiptHandleIsInvalid", "", true),
            ("MessageNotInflight", "", true),
            ("RequestThrottled", "", false),
        ];
        for (code, message, expected) in rows {
            assert_eq!(is_gone(code, message), expected, "{code}: {message}");
        }
    }
}
