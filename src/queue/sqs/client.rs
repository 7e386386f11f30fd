//! Requests to SQS.
//!
//! The SDK repeats nothing by itself: the caller of a request has to know that a lost reply leaves its outcome open.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use aws_config::retry::RetryConfig;
use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region, SdkConfig};
use aws_sdk_sqs::Client as Sdk;
use aws_sdk_sqs::config::Credentials;
use aws_sdk_sqs::error::{ProvideErrorMetadata, SdkError};
use aws_sdk_sqs::types::{
    BatchResultErrorEntry, ChangeMessageVisibilityBatchRequestEntry,
    DeleteMessageBatchRequestEntry, MessageSystemAttributeName, QueueAttributeName,
    SendMessageBatchRequestEntry,
};
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use tokio::sync::OnceCell;

use super::address::Url;
use super::options::SqsOptions;
use crate::connection::Error as ConnectionError;
use crate::queue::{Error, QueueName, QueueRefusal};

/// Most messages of one request.
pub(super) const AT_ONCE: usize = 10;
/// Most bytes of one request's messages.
pub(super) const MOST_BYTES: usize = 1 << 20;
/// Time for an answer, beyond that of a long poll.
const PATIENCE: Duration = Duration::from_secs(30);
const CONNECT: Duration = Duration::from_secs(10);

/// A message, as it was received.
#[derive(Debug)]
pub(super) struct Message {
    pub(super) id: String,
    pub(super) receipt: String,
    pub(super) body: String,
    pub(super) receives: u32,
    pub(super) group: Option<String>,
}

/// A message to send.
#[derive(Debug, Clone)]
pub(super) struct Outgoing {
    pub(super) body: String,
    pub(super) delay: Option<i32>,
    pub(super) group: Option<String>,
    pub(super) deduplication: Option<String>,
}

/// What became of one entry of a batch; an error is the code and text of the server.
pub(super) type Entry = Result<(), (String, String)>;

/// Numbers that a queue tells of itself.
#[derive(Debug, Default)]
pub(super) struct Attributes {
    pub(super) visible: u64,
    pub(super) delayed: u64,
    pub(super) hidden: u64,
    pub(super) visibility: Option<Duration>,
}

/// Requests of one connection.
#[derive(Debug)]
pub(super) struct Client {
    key: Option<Credentials>,
    region: Option<String>,
    config: OnceCell<SdkConfig>,
    by_origin: Mutex<HashMap<String, Sdk>>,
}

impl Client {
    pub(super) fn new(options: &SqsOptions) -> Self {
        let key = options.key.as_ref().map(|key| {
            let (id, secret) = (key.id.clone(), key.secret.clone());
            Credentials::new(id, secret, key.token.clone(), None, "queue connection")
        });
        Self {
            key,
            region: options.region.clone(),
            config: OnceCell::new(),
            by_origin: Mutex::default(),
        }
    }

    async fn config(&self) -> &SdkConfig {
        let load = async || {
            let http = aws_smithy_http_client::Builder::new()
                .tls_provider(Provider::Rustls(CryptoMode::Ring))
                .build_https();
            let timeouts = TimeoutConfig::builder().connect_timeout(CONNECT).build();
            let mut loader = aws_config::defaults(BehaviorVersion::latest())
                .http_client(http)
                .retry_config(RetryConfig::disabled())
                .timeout_config(timeouts);
            if let Some(key) = &self.key {
                loader = loader.credentials_provider(key.clone());
            }
            if let Some(region) = &self.region {
                loader = loader.region(Region::new(region.clone()));
            }
            loader.load().await
        };
        self.config.get_or_init(load).await
    }

    /// The SDK's client for the server of a queue.
    async fn of(&self, url: &Url, queue: &QueueName) -> Result<Sdk, Error> {
        let refused = || Error::Refused {
            queue: queue.clone(),
            source: QueueRefusal::QueueUrl {
                url: url.as_str().to_owned(),
            },
        };
        let origin = url.origin().ok_or_else(refused)?;
        let config = self.config().await;
        let mut clients = self
            .by_origin
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = clients.get(origin) {
            return Ok(known.clone());
        }
        let config = aws_sdk_sqs::config::Builder::from(config).endpoint_url(origin);
        let sdk = Sdk::from_conf(config.build());
        clients.insert(origin.to_owned(), sdk.clone());
        Ok(sdk)
    }

    /// Receives up to `most` messages, and waits for the first one.
    ///
    /// # Errors
    ///
    /// Messages may then be reserved for nothing.
    pub(super) async fn receive(
        &self,
        queue: &QueueName,
        url: &Url,
        most: usize,
        wait: Duration,
        visibility: Option<Duration>,
    ) -> Result<Vec<Message>, Error> {
        let request = self.of(url, queue).await?.receive_message();
        let sent = request
            .queue_url(url.as_str())
            .max_number_of_messages(i32::try_from(most.clamp(1, AT_ONCE)).unwrap_or(1))
            .wait_time_seconds(seconds(wait))
            .set_visibility_timeout(visibility.map(seconds))
            .message_system_attribute_names(MessageSystemAttributeName::ApproximateReceiveCount)
            .message_system_attribute_names(MessageSystemAttributeName::MessageGroupId)
            .send();
        let reply = within(wait + PATIENCE, sent).await;
        let reply = reply.map_err(|problem| problem.at("ReceiveMessage", queue, url))?;
        let message = |message: aws_sdk_sqs::types::Message| {
            let attributes = message.attributes.unwrap_or_default();
            let receives = attributes.get(&MessageSystemAttributeName::ApproximateReceiveCount);
            let receives = receives.and_then(|count| count.parse().ok());
            Some(Message {
                id: message.message_id?,
                receipt: message.receipt_handle?,
                body: message.body.unwrap_or_default(),
                receives: receives.unwrap_or(1).max(1),
                group: attributes
                    .get(&MessageSystemAttributeName::MessageGroupId)
                    .cloned(),
            })
        };
        let messages = reply.messages.unwrap_or_default();
        Ok(messages.into_iter().filter_map(message).collect())
    }

    /// Sends up to ten messages of up to a megabyte together.
    pub(super) async fn send(
        &self,
        queue: &QueueName,
        url: &Url,
        messages: &[Outgoing],
    ) -> Result<Vec<Entry>, Error> {
        let mut request = self.of(url, queue).await?.send_message_batch();
        for (index, message) in messages.iter().enumerate() {
            let entry = SendMessageBatchRequestEntry::builder()
                .id(index.to_string())
                .message_body(message.body.as_str())
                .set_delay_seconds(message.delay)
                .set_message_group_id(message.group.clone())
                .set_message_deduplication_id(message.deduplication.clone())
                .build();
            request = request
                .entries(entry.map_err(|error| built("SendMessageBatch", queue, url, error))?);
        }
        let sent = request.queue_url(url.as_str()).send();
        let reply = within(PATIENCE, sent).await;
        let reply = reply.map_err(|problem| problem.at("SendMessageBatch", queue, url))?;
        Ok(entries(messages.len(), reply.failed))
    }

    /// Deletes up to ten messages.
    pub(super) async fn delete(
        &self,
        queue: &QueueName,
        url: &Url,
        receipts: &[&str],
    ) -> Result<Vec<Entry>, Error> {
        let mut request = self.of(url, queue).await?.delete_message_batch();
        for (index, receipt) in receipts.iter().enumerate() {
            let entry = DeleteMessageBatchRequestEntry::builder()
                .id(index.to_string())
                .receipt_handle(*receipt)
                .build();
            request = request
                .entries(entry.map_err(|error| built("DeleteMessageBatch", queue, url, error))?);
        }
        let sent = request.queue_url(url.as_str()).send();
        let reply = within(PATIENCE, sent).await;
        let reply = reply.map_err(|problem| problem.at("DeleteMessageBatch", queue, url))?;
        Ok(entries(receipts.len(), reply.failed))
    }

    /// Hides up to ten messages for some time from now on.
    pub(super) async fn hide(
        &self,
        queue: &QueueName,
        url: &Url,
        receipts: &[(&str, Duration)],
    ) -> Result<Vec<Entry>, Error> {
        let mut request = self.of(url, queue).await?.change_message_visibility_batch();
        for (index, (receipt, time)) in receipts.iter().enumerate() {
            let entry = ChangeMessageVisibilityBatchRequestEntry::builder()
                .id(index.to_string())
                .receipt_handle(*receipt)
                .visibility_timeout(seconds(*time))
                .build();
            request = request.entries(
                entry.map_err(|error| built("ChangeMessageVisibilityBatch", queue, url, error))?,
            );
        }
        let sent = request.queue_url(url.as_str()).send();
        let reply = within(PATIENCE, sent).await;
        let reply =
            reply.map_err(|problem| problem.at("ChangeMessageVisibilityBatch", queue, url))?;
        Ok(entries(receipts.len(), reply.failed))
    }

    pub(super) async fn attributes(
        &self,
        queue: &QueueName,
        url: &Url,
    ) -> Result<Attributes, Error> {
        const VISIBLE: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessages;
        const DELAYED: QueueAttributeName = QueueAttributeName::ApproximateNumberOfMessagesDelayed;
        const HIDDEN: QueueAttributeName =
            QueueAttributeName::ApproximateNumberOfMessagesNotVisible;
        const VISIBILITY: QueueAttributeName = QueueAttributeName::VisibilityTimeout;
        let mut request = self.of(url, queue).await?.get_queue_attributes();
        for name in [VISIBLE, DELAYED, HIDDEN, VISIBILITY] {
            request = request.attribute_names(name);
        }
        let sent = request.queue_url(url.as_str()).send();
        let reply = within(PATIENCE, sent).await;
        let reply = reply.map_err(|problem| problem.at("GetQueueAttributes", queue, url))?;
        let attributes = reply.attributes.unwrap_or_default();
        let number = |name| {
            attributes
                .get(&name)
                .and_then(|text| text.parse::<u64>().ok())
        };
        Ok(Attributes {
            visible: number(VISIBLE).unwrap_or(0),
            delayed: number(DELAYED).unwrap_or(0),
            hidden: number(HIDDEN).unwrap_or(0),
            visibility: number(VISIBILITY).map(Duration::from_secs),
        })
    }

    pub(super) async fn purge(&self, queue: &QueueName, url: &Url) -> Result<(), Error> {
        let request = self.of(url, queue).await?.purge_queue();
        let reply = within(PATIENCE, request.queue_url(url.as_str()).send()).await;
        let reply = reply.map_err(|problem| problem.at("PurgeQueue", queue, url))?;
        drop(reply);
        Ok(())
    }
}

/// Whole seconds, rounded up, as the server takes them.
fn seconds(time: Duration) -> i32 {
    let whole = time.as_secs() + u64::from(time.subsec_nanos() > 0);
    i32::try_from(whole).unwrap_or(i32::MAX)
}

/// The result of each entry, in order.
fn entries(sent: usize, failed: Vec<BatchResultErrorEntry>) -> Vec<Entry> {
    let mut results = vec![Ok(()); sent];
    for entry in failed {
        let index = entry.id.parse::<usize>().ok();
        if let Some(result) = index.and_then(|index| results.get_mut(index)) {
            *result = Err((entry.code, entry.message.unwrap_or_default()));
        }
    }
    results
}

/// Why a request has no answer that can be used.
enum Problem {
    /// The server has refused, and has done nothing.
    Refused { code: String, message: String },
    /// Nothing was sent.
    Unreachable(String),
    /// It may have been carried out.
    Unknown(String),
}

impl Problem {
    fn at(self, call: &'static str, queue: &QueueName, url: &Url) -> Error {
        let lost = |was_connected, problem: String| Error::Script {
            script: call,
            queue: queue.clone(),
            source: ConnectionError::Sqs {
                address: url.origin().unwrap_or_default().to_owned(),
                was_connected,
                source: std::io::Error::other(problem),
            },
        };
        match self {
            Self::Refused { code, message } => Error::Refused {
                queue: queue.clone(),
                source: QueueRefusal::Sqs {
                    call,
                    code,
                    message,
                },
            },
            Self::Unreachable(problem) => lost(false, problem),
            Self::Unknown(problem) => lost(true, problem),
        }
    }
}

fn built(call: &'static str, queue: &QueueName, url: &Url, error: impl std::error::Error) -> Error {
    Problem::Unreachable(error.to_string()).at(call, queue, url)
}

/// Waits for an answer, but not forever.
async fn within<T, E>(
    time: Duration,
    sent: impl Future<Output = Result<T, SdkError<E>>>,
) -> Result<T, Problem>
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    match tokio::time::timeout(time, sent).await {
        Ok(Ok(reply)) => Ok(reply),
        Ok(Err(error)) => Err(problem(&error)),
        Err(_) => Err(Problem::Unknown(format!(
            "no answer within {} s",
            time.as_secs()
        ))),
    }
}

/// What the SDK says when it has sent nothing; without credentials they are looked for again with the next request.
const UNSENT: [&str; 4] = ["(Connect)", "Connection refused", "dns error", "credential"];

fn problem<E>(error: &SdkError<E>) -> Problem
where
    E: ProvideErrorMetadata + std::error::Error + 'static,
{
    let text = crate::shown::with_causes(error);
    match error {
        SdkError::ServiceError(refusal) if refusal.raw().status().is_client_error() => {
            Problem::Refused {
                code: refusal.err().code().unwrap_or("an error").to_owned(),
                message: refusal.err().message().unwrap_or_default().to_owned(),
            }
        }
        SdkError::ConstructionFailure(_) => Problem::Unreachable(text),
        SdkError::DispatchFailure(_) if UNSENT.iter().any(|sign| text.contains(sign)) => {
            Problem::Unreachable(text)
        }
        _ => Problem::Unknown(text),
    }
}
