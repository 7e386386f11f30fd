//! The page for operators: HTML, its figures as JSON and as a stream, and its buttons.

use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, Limited, StreamBody};
use hyper::body::{Body, Bytes, Frame};
use hyper::header::{CACHE_CONTROL, CONTENT_TYPE, HeaderName, HeaderValue, RETRY_AFTER};
use hyper::{HeaderMap, Method, Request, Response, StatusCode};
use serde::Deserialize;
use serde_json::json;
use sha2::{Digest as _, Sha256};
use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::Instant;

use super::gather::Sources;
use super::guard::{PageOptions, Rejection};
use super::orders::{Failures, NoResult, Order, Orders};
use super::overview::Overview;

/// The page: style and script are part of it, and it loads nothing else.
const HTML: &str = include_str!("page.html");

/// Most clients that are told of changes; further ones ask from time to time.
const MOST_STREAMS: usize = 16;
/// How often they are told.
const EVERY: Duration = Duration::from_secs(2);
/// How long one stream lasts; the browser then opens another one.
const LONGEST_STREAM: Duration = Duration::from_secs(600);
/// How long figures count as new, however many clients ask.
const FRESH: Duration = Duration::from_millis(900);
/// Longest body of a request, in bytes.
const LONGEST_BODY: usize = 64 << 10;
/// Most failed jobs of one request.
const MOST_IDS: usize = 200;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// The body of an answer.
pub(super) type Answer = Response<UnsyncBoxBody<Bytes, Infallible>>;

/// What answers requests for the page. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Board(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    options: PageOptions,
    orders: Orders,
    sources: Arc<OnceLock<Sources>>,
    streams: Arc<Semaphore>,
    /// What was last read, as JSON.
    read: Mutex<Option<(Instant, Bytes, Arc<Overview>)>>,
    /// What the browser may do with the page.
    policy: HeaderValue,
}

/// The body of `/api/retry`.
#[derive(Deserialize)]
#[serde(untagged, deny_unknown_fields)]
enum RetryBody {
    Ids { ids: Vec<String> },
    Like { class: String, exception: String },
}

/// The body of `/api/pause` and `/api/resume`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct QueueBody {
    connection: String,
    queue: String,
}

impl Board {
    pub(super) fn new(
        options: PageOptions,
        orders: Orders,
        sources: Arc<OnceLock<Sources>>,
    ) -> Self {
        Self(Arc::new(Inner {
            options,
            orders,
            sources,
            streams: Arc::new(Semaphore::new(MOST_STREAMS)),
            read: Mutex::default(),
            policy: policy(),
        }))
    }

    /// Whether a path is the page's.
    pub(super) fn has(&self, path: &str) -> bool {
        const PATHS: [&str; 7] = [
            "/",
            "/api/overview",
            "/api/events",
            "/api/token",
            "/api/retry",
            "/api/pause",
            "/api/resume",
        ];
        self.0.options.is_served && PATHS.contains(&path)
    }

    /// The answer to a request for the status under a name that is not this worker's.
    pub(super) fn refused_status(&self, headers: &HeaderMap) -> Option<Answer> {
        self.0.options.refuses_status(headers).map(refused)
    }

    /// Answers a request for one of its paths; also says whether the answer is a stream.
    pub(super) async fn answer<B>(&self, request: Request<B>) -> (Answer, bool)
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let path = request.uri().path().to_owned();
        let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
        let (mut answer, is_stream) = match (&*path, is_read) {
            ("/" | "/api/overview" | "/api/events", true) => self.read(&path, &request).await,
            ("/api/token" | "/api/retry" | "/api/pause" | "/api/resume", _)
                if *request.method() == Method::POST =>
            {
                (self.write(&path, request).await, false)
            }
            _ => (
                said(StatusCode::METHOD_NOT_ALLOWED, "not with this method"),
                false,
            ),
        };
        let headers = answer.headers_mut();
        let fixed = [
            (CACHE_CONTROL, "no-store"),
            (HeaderName::from_static("x-content-type-options"), "nosniff"),
            (HeaderName::from_static("x-frame-options"), "DENY"),
            (HeaderName::from_static("referrer-policy"), "no-referrer"),
            (
                HeaderName::from_static("cross-origin-opener-policy"),
                "same-origin",
            ),
            (
                HeaderName::from_static("cross-origin-resource-policy"),
                "same-origin",
            ),
        ];
        for (name, value) in fixed {
            headers.insert(name, HeaderValue::from_static(value));
        }
        let policy = HeaderName::from_static("content-security-policy");
        headers.insert(policy, self.0.policy.clone());
        (answer, is_stream)
    }

    async fn read<B>(&self, path: &str, request: &Request<B>) -> (Answer, bool) {
        if let Some(rejection) = self.0.options.refuses_reader(request.headers()) {
            return (refused(rejection), false);
        }
        match path {
            "/" => {
                let html = HeaderValue::from_static("text/html; charset=utf-8");
                (full(StatusCode::OK, html, HTML), false)
            }
            "/api/events" if *request.method() == Method::GET => {
                if let Ok(permit) = Arc::clone(&self.0.streams).try_acquire_owned() {
                    return (self.stream(permit), true);
                }
                let status = StatusCode::SERVICE_UNAVAILABLE;
                let mut answer = said(status, "too many clients; ask for /api/overview");
                let wait = HeaderValue::from_static("30");
                answer.headers_mut().insert(RETRY_AFTER, wait);
                (answer, false)
            }
            _ => match self.overview().await {
                Some((json, _)) => (full(StatusCode::OK, JSON, json), false),
                None => (starting(), false),
            },
        }
    }

    /// The figures, as new as they have to be; `None` while the worker starts.
    async fn overview(&self) -> Option<(Bytes, Arc<Overview>)> {
        let sources = self.0.sources.get()?;
        let mut read = self.0.read.lock().await;
        if let Some((at, json, overview)) = &*read
            && at.elapsed() < FRESH
        {
            return Some((json.clone(), Arc::clone(overview)));
        }
        let is_writable = self.0.options.token.is_some();
        let overview = Arc::new(Overview::look(sources, is_writable).await);
        // Texts and numbers only, so that this cannot fail.
        let json = Bytes::from(serde_json::to_vec(&*overview).unwrap_or_default());
        *read = Some((Instant::now(), json.clone(), Arc::clone(&overview)));
        Some((json, overview))
    }

    /// An endless answer: one event every few seconds.
    fn stream(&self, permit: OwnedSemaphorePermit) -> Answer {
        struct State {
            board: Board,
            ticks: tokio::time::Interval,
            end: Instant,
            _permit: OwnedSemaphorePermit,
        }
        let state = State {
            board: self.clone(),
            ticks: tokio::time::interval(EVERY),
            end: Instant::now() + LONGEST_STREAM,
            _permit: permit,
        };
        let events = futures_util::stream::unfold(state, async |mut state| {
            state.ticks.tick().await;
            if Instant::now() >= state.end {
                return None;
            }
            let event = match state.board.overview().await {
                Some((json, _)) => [b"data: ", &json[..], b"\n\n"].concat(),
                None => b": the worker starts\n\n".to_vec(),
            };
            Some((Ok::<_, Infallible>(Frame::data(Bytes::from(event))), state))
        });
        let mut answer = Response::new(StreamBody::new(events).boxed_unsync());
        let kind = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(CONTENT_TYPE, kind);
        answer
    }

    async fn write<B>(&self, path: &str, request: Request<B>) -> Answer
    where
        B: Body<Data = Bytes> + Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        if let Some(rejection) = self.0.options.refuses_writer(request.headers()) {
            return refused(rejection);
        }
        if path == "/api/token" {
            return full(StatusCode::OK, JSON, "{}\n");
        }
        let body = std::pin::pin!(Limited::new(request.into_body(), LONGEST_BODY));
        let Ok(body) = body.collect().await else {
            return said(
                StatusCode::PAYLOAD_TOO_LARGE,
                "the body is too long, or was cut off",
            );
        };
        let order = match order(path, &body.to_bytes()) {
            Ok(order) => order,
            Err(problem) => return said(StatusCode::BAD_REQUEST, &problem),
        };
        if let Order::Pause {
            connection, queue, ..
        } = &order
        {
            let known = self.overview().await;
            if !known.is_some_and(|(_, overview)| overview.has_queue(connection, queue)) {
                return said(StatusCode::NOT_FOUND, "no worker works this queue");
            }
        }
        let done = self.0.orders.ask(order).await;
        // The next look sees what the order has changed.
        *self.0.read.lock().await = None;
        if let Some(sources) = self.0.sources.get() {
            sources.read_failed_anew().await;
        }
        match done {
            Ok(done) => full(
                StatusCode::OK,
                JSON,
                serde_json::to_vec(&done).unwrap_or_default(),
            ),
            Err(NoResult::Busy) => said(
                StatusCode::SERVICE_UNAVAILABLE,
                "others wait already, or the worker ends: nothing was done",
            ),
            Err(NoResult::NotYet) => said(StatusCode::ACCEPTED, "it is still being done"),
            Err(NoResult::Failed(problem)) => said(StatusCode::BAD_GATEWAY, &problem),
        }
    }
}

/// What a request asks for.
fn order(path: &str, body: &[u8]) -> Result<Order, String> {
    let bad = |error: serde_json::Error| format!("the body does not say what: {error}");
    if path != "/api/retry" {
        let QueueBody { connection, queue } = serde_json::from_slice(body).map_err(bad)?;
        return Ok(Order::Pause {
            connection,
            queue,
            pauses: path == "/api/pause",
        });
    }
    let failures = match serde_json::from_slice(body).map_err(bad)? {
        RetryBody::Ids { ids } if ids.is_empty() || ids.len() > MOST_IDS => {
            return Err(format!("expected 1 to {MOST_IDS} ids"));
        }
        RetryBody::Ids { ids } => Failures::Ids(ids),
        RetryBody::Like { class, exception } => Failures::Like { class, exception },
    };
    Ok(Order::Retry(failures))
}

/// Only the style and the script of the page count, nothing is loaded from elsewhere, and no text becomes HTML.
fn policy() -> HeaderValue {
    let hash = |tag: &str| {
        let inside = HTML.split_once(&format!("<{tag}>")).map(|(_, rest)| rest);
        let inside = inside.and_then(|rest| rest.split_once(&format!("</{tag}>")));
        let digest = Sha256::digest(inside.map_or("", |(inside, _)| inside).as_bytes());
        format!("'sha256-{}'", STANDARD.encode(digest))
    };
    let policy = format!(
        "default-src 'none'; script-src {}; style-src {}; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'",
        hash("script"),
        hash("style")
    );
    // Visible ASCII characters only, so that this cannot fail.
    HeaderValue::try_from(policy).unwrap_or(HeaderValue::from_static("default-src 'none'"))
}

fn refused(rejection: Rejection) -> Answer {
    let (status, why) = match rejection {
        Rejection::Host => (
            StatusCode::MISDIRECTED_REQUEST,
            "nothing is shown under this name: add it to `hosts` under [http]",
        ),
        Rejection::Origin => (StatusCode::FORBIDDEN, "only the page itself may ask this"),
        Rejection::Kind => (
            StatusCode::UNSUPPORTED_MEDIA_TYPE,
            "expected application/json",
        ),
        Rejection::ReadOnly => (
            StatusCode::FORBIDDEN,
            "nothing can be changed here: no `token` is set under [http]",
        ),
        Rejection::Token => (StatusCode::UNAUTHORIZED, "the token is not the right one"),
    };
    said(status, why)
}

fn starting() -> Answer {
    said(StatusCode::SERVICE_UNAVAILABLE, "the worker starts")
}

fn said(status: StatusCode, text: &str) -> Answer {
    full(status, JSON, json!({ "said": text }).to_string() + "\n")
}

fn full(status: StatusCode, kind: HeaderValue, body: impl Into<Bytes>) -> Answer {
    let mut answer = Response::new(Full::new(body.into()).boxed_unsync());
    *answer.status_mut() = status;
    answer.headers_mut().insert(CONTENT_TYPE, kind);
    answer
}
