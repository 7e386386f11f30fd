//! Sends spans to the collector, in batches, from a thread of its own.
//!
//! A span that has ended goes to a queue of bounded length (`OTEL_BSP_MAX_QUEUE_SIZE`); if that is full, the span is
//! dropped. So neither a collector that is away nor one that is slow holds up a job, and neither takes more memory.
//! Each trouble is said when it begins, and when it is over.

use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry::KeyValue;
use opentelemetry_http::{Bytes, HttpClient, HttpError, Request, Response};
use opentelemetry_otlp::{Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, SpanData, SpanProcessor as _};
use tokio::runtime::Handle;

use super::options::TraceOptions;
use crate::connection::with_tls;
use crate::shown::with_causes;
use crate::task::Losses;

/// How long the last spans may take to be sent when the worker ends.
const FINISHING: Duration = Duration::from_secs(5);
/// The same if the collector took none before.
const LAST_TRY: Duration = Duration::from_secs(1);

/// Why jobs cannot be traced.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracesError {
    /// A setting of OpenTelemetry that cannot be used.
    #[error("traces of jobs cannot be sent with these settings")]
    Settings(#[source] opentelemetry_otlp::ExporterBuildError),
    /// No client can be made.
    #[error("could not start the HTTP client for traces")]
    Client(#[source] reqwest::Error),
}

/// Sends spans to the collector.
#[derive(Debug)]
pub(super) struct Exporter {
    processor: BatchSpanProcessor,
    counts: Arc<Counts>,
    /// Whether the collector takes no spans.
    is_away: Arc<AtomicBool>,
}

/// Spans on their way.
#[derive(Debug, Default)]
struct Counts {
    ended: AtomicUsize,
    sent: AtomicUsize,
    lost: AtomicUsize,
}

impl Exporter {
    pub(super) fn start(
        options: &TraceOptions,
        losses: Losses,
        runtime: &Handle,
    ) -> Result<Self, TracesError> {
        let client = reqwest::Client::builder()
            .user_agent(concat!("artisand/", env!("CARGO_PKG_VERSION")))
            .timeout(options.timeout)
            .redirect(reqwest::redirect::Policy::none());
        let (client, _) = with_tls(client);
        let last = LastAnswer::default();
        let sender = Sender {
            client: client.build().map_err(TracesError::Client)?,
            runtime: runtime.clone(),
            last: Arc::clone(&last),
        };
        let headers: HashMap<String, String> = options.headers.iter().cloned().collect();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(sender)
            .with_protocol(Protocol::HttpBinary)
            .with_endpoint(options.endpoint.clone())
            .with_timeout(options.timeout)
            .with_headers(headers)
            .build()
            .map_err(TracesError::Settings)?;
        let counts = Arc::<Counts>::default();
        let is_away = Arc::<AtomicBool>::default();
        let mut processor = BatchSpanProcessor::builder(Counting {
            exporter,
            counts: Arc::clone(&counts),
            losses,
            is_away: Arc::clone(&is_away),
            last,
        })
        .build();
        processor.set_resource(&resource(options));
        Ok(Self {
            processor,
            counts,
            is_away,
        })
    }

    /// Takes a span that has ended; never waits.
    pub(super) fn take(&self, span: SpanData) {
        self.counts.ended.fetch_add(1, Ordering::Relaxed);
        self.processor.on_end(span);
    }

    /// Sends the spans that are left, for some seconds at most, and says how many were not sent since the start.
    pub(super) fn finish(&self) {
        let limit = if self.is_away.load(Ordering::Relaxed) {
            LAST_TRY
        } else {
            FINISHING
        };
        let ended = self.processor.shutdown_with_timeout(limit);
        let count = |count: &AtomicUsize| count.load(Ordering::Relaxed);
        let unsent = count(&self.counts.ended).saturating_sub(count(&self.counts.sent));
        if unsent > 0 {
            tracing::warn!(
                spans = unsent,
                refused = count(&self.counts.lost),
                is_late = ended.is_err(),
                "not all traces of jobs reached the collector"
            );
        }
    }
}

fn resource(options: &TraceOptions) -> Resource {
    let pairs = options.resource.iter().cloned();
    let attributes = pairs.map(|(name, value)| KeyValue::new(name, value));
    Resource::builder_empty()
        .with_attributes(attributes)
        .build()
}

/// Counts what was sent, and says what has changed.
struct Counting {
    exporter: SpanExporter,
    counts: Arc<Counts>,
    losses: Losses,
    /// Whether it was said that the collector takes no traces.
    is_away: Arc<AtomicBool>,
    last: LastAnswer,
}

/// The collector that was asked last, and what was wrong with its answer: a request may be sent again, and only all of
/// them together say whether spans are lost.
type LastAnswer = Arc<Mutex<(String, Option<String>)>>;

impl Counting {
    /// Says once that spans are lost, and once that they are not any more.
    fn say(&self, sent: &OTelSdkResult) {
        let was_away = self.is_away.swap(sent.is_err(), Ordering::Relaxed);
        if was_away == sent.is_err() {
            return;
        }
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        let (collector, trouble) = last.clone();
        drop(last);
        match sent {
            Ok(()) => tracing::info!(collector, "the collector takes traces again"),
            Err(error) => tracing::warn!(
                collector,
                error = trouble.unwrap_or_else(|| with_causes(error)),
                "the collector takes no traces: those of jobs are lost until it does"
            ),
        }
    }
}

impl fmt::Debug for Counting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Counting").finish_non_exhaustive()
    }
}

impl opentelemetry_sdk::trace::SpanExporter for Counting {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        let sent = self.exporter.export(batch).await;
        self.say(&sent);
        let counter = if sent.is_ok() {
            &self.counts.sent
        } else {
            (self.losses)(count as u64);
            &self.counts.lost
        };
        counter.fetch_add(count, Ordering::Relaxed);
        sent
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}

/// Sends requests on a runtime: the thread that batches spans has none.
struct Sender {
    client: reqwest::Client,
    runtime: Handle,
    last: LastAnswer,
}

impl fmt::Debug for Sender {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sender").finish_non_exhaustive()
    }
}

type Answer = Result<Response<Bytes>, HttpError>;

impl Sender {
    async fn send(&self, request: Request<Bytes>) -> Answer {
        // The user and password that a URL may name are nobody's business.
        let collector = request.uri().host().unwrap_or_default().to_owned();
        let client = self.client.clone();
        let sent = self
            .runtime
            .spawn(async move { client.send_bytes(request).await });
        let answer = sent.await.unwrap_or_else(|error| Err(error.into()));
        let trouble = match &answer {
            Ok(response) if response.status().is_success() => None,
            Ok(response) => Some(format!("it answered {}", response.status())),
            Err(error) => Some(with_causes(&**error)),
        };
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = (collector, trouble);
        answer
    }
}

impl HttpClient for Sender {
    fn send_bytes<'a, 'f>(
        &'a self,
        request: Request<Bytes>,
    ) -> Pin<Box<dyn Future<Output = Answer> + Send + 'f>>
    where
        'a: 'f,
        Self: 'f,
    {
        Box::pin(self.send(request))
    }
}
