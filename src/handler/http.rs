//! Runs a job by posting its document to a URL; the status of the answer is the verdict.
//!
//! | status | meaning |
//! | --- | --- |
//! | 2xx | done |
//! | 429, 503 with `Retry-After` | released; the wait is seconds or a date, from one second to a day |
//! | 4xx other than 408, 425 and 429 | failed for good |
//! | another | an exception, whose text is the status and the beginning of the body |
//!
//! A server that cannot be reached, resets the connection or is too slow is an
//! exception as well: the queue then decides whether the job runs again.
//!
//! One attempt never posts a job twice. The client retries on another connection
//! only if the first one was found closed before a byte was written. A connection
//! that breaks later may have delivered the job to the server: that is an
//! exception, and `Idempotency-Key` identifies the job to the server on the next
//! attempt. Idle connections are closed after a second, earlier than most servers
//! close them, to avoid that case.
//!
//! Dropping the future closes the connection of the request.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use hmac::{Hmac, KeyInit as _, Mac as _};
use reqwest::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue, LOCATION,
    RETRY_AFTER, TRANSFER_ENCODING,
};
use reqwest::{Client, Response, StatusCode, Url};
use sha2::Sha256;
use tokio::sync::Semaphore;
use zeroize::Zeroizing;

use super::{BoxError, BoxFuture, Handler, InputError, JobContext, MAX_WAIT};
use crate::connection::with_tls;
use crate::payload::{JobId, JobUuid, Trace};
use crate::shown::hex;
use crate::time::{Clock, UnixSeconds};

/// How long a connection may take to be made.
const CONNECT: Duration = Duration::from_secs(10);
/// How long a connection test that runs no job may take.
const TRIED: Duration = Duration::from_secs(3);
/// How long an idle connection is kept for the next job.
const IDLE: Duration = Duration::from_secs(1);
/// Most bytes of an answer's body that are read.
const MAX_BODY: usize = 64 * 1024;
/// How long the rest of an answer may take once its status is known.
const LINGER: Duration = Duration::from_secs(1);
/// How much of that a job waits that is done, so that the next one finds the connection free.
const AT_HAND: Duration = Duration::from_millis(10);
/// How many answers of a handler are read on at a time behind jobs that are done.
const MOST_DRAINS: usize = 16;
/// Most characters of an answer's body that an exception shows.
const MAX_SHOWN: usize = 1024;

/// The settings of a URL in a mapping (`handler = { http = "http://127.0.0.1:9000/x" }`).
#[derive(Clone, Default, PartialEq, Eq)]
pub struct HttpOptions {
    /// The URL to which jobs are posted.
    pub url: String,
    /// How long the server may take to answer, in addition to the limit of the job's own timeout.
    pub timeout: Option<Duration>,
    /// Additional headers.
    pub headers: BTreeMap<String, String>,
    /// Additional headers; each value is in the named environment variable.
    pub headers_env: BTreeMap<String, String>,
    /// The secret that signs each request.
    pub secret: Option<SecretSource>,
}

/// Where the signing secret is stored; it is read once, at startup.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// In an environment variable of this process.
    Env(String),
    /// In a file; a line break at its end does not count.
    File(PathBuf),
}

impl fmt::Debug for HttpOptions {
    /// Omits the values of headers, which are often secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpOptions")
            .field("url", &shown_text(&self.url))
            .field("timeout", &self.timeout)
            .field("headers", &self.headers.keys())
            .field("headers_env", &self.headers_env)
            .field("secret", &self.secret)
            .finish()
    }
}

impl HttpOptions {
    /// Opens a connection to the server and closes it.
    ///
    /// # Errors
    ///
    /// The server cannot be reached, or does not answer within a few seconds.
    pub async fn try_connect(&self) -> std::io::Result<()> {
        let unusable = || std::io::Error::from(std::io::ErrorKind::InvalidInput);
        let url = Url::parse(&self.url).map_err(|_| unusable())?;
        let host = url.host_str().ok_or_else(unusable)?;
        let port = url.port_or_known_default().ok_or_else(unusable)?;
        let address = (host.trim_matches(['[', ']']), port);
        let connecting = tokio::net::TcpStream::connect(address);
        let connected = tokio::time::timeout(TRIED, connecting).await;
        connected.map_err(|_| std::io::Error::from(std::io::ErrorKind::TimedOut))??;
        Ok(())
    }

    /// The URL without parts that may be secret.
    pub fn shown_url(&self) -> String {
        match Url::parse(&self.url) {
            Ok(url) if url.has_host() => shown(&url),
            _ => shown_text(&self.url),
        }
    }
}

/// A mapping's URL that cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum HttpSetupError {
    /// The URL is invalid or has an unsupported scheme.
    #[error(
        "`http` is `{url}`: {problem}; expected a URL such as `http://127.0.0.1:9000/shipments`"
    )]
    Url {
        /// As written, without parts that may be secret.
        url: String,
        /// What is wrong.
        problem: String,
    },
    /// The URL needs TLS, and this program was built without.
    #[error("`http` is `{url}`, and this program was built without TLS (feature `tls`)")]
    NoTls {
        /// The URL.
        url: String,
    },
    /// The URL needs TLS, and no root certificates were found.
    #[error(
        "`http` is `{url}`, and no root certificates were found on this machine: install ca-certificates, or name a file of them in SSL_CERT_FILE"
    )]
    NoCertificates {
        /// The URL.
        url: String,
    },
    /// A header that cannot be sent.
    #[error("header `{name}`: {problem}")]
    Header {
        /// Its name.
        name: String,
        /// What is wrong.
        problem: &'static str,
    },
    /// The variable with the value of a header is not set.
    #[error(
        "header `{name}` is in the environment variable `{variable}`, which is not set or no text"
    )]
    HeaderEnv {
        /// Name of the header.
        name: String,
        /// Name of the variable.
        variable: String,
    },
    /// The variable with the secret is not set.
    #[error(
        "`secret_env` is `{0}`, and there is no such environment variable, or nothing is in it"
    )]
    SecretEnv(String),
    /// The file with the secret cannot be read.
    #[error("cannot read `secret_file` `{}`", path.display())]
    SecretFile {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is empty.
    #[error("`secret_file` `{}` is empty, expected the secret of signatures", .0.display())]
    SecretEmpty(PathBuf),
    /// No client can be made.
    #[error("could not start the HTTP client")]
    Client(#[source] reqwest::Error),
}

/// The pool of connections to servers, which all mappings share.
#[derive(Debug, Clone)]
pub struct HttpClient {
    client: Client,
    /// Whether root certificates were found.
    has_roots: bool,
}

impl HttpClient {
    /// A client without connections yet; it uses the proxies of the environment.
    ///
    /// # Errors
    ///
    /// The system lacks something that a client needs.
    pub fn new() -> Result<Self, HttpSetupError> {
        let client = Client::builder()
            .user_agent(concat!("artisand/", env!("CARGO_PKG_VERSION")))
            .http1_only()
            .connect_timeout(CONNECT)
            .pool_idle_timeout(IDLE)
            .redirect(reqwest::redirect::Policy::none())
            .retry(reqwest::retry::never())
            .referer(false);
        let (client, has_roots) = with_tls(client);
        let client = client.build().map_err(HttpSetupError::Client)?;
        Ok(Self { client, has_roots })
    }
}

/// Posts jobs to a URL.
pub struct Http {
    client: Client,
    url: Url,
    timeout: Option<Duration>,
    headers: HeaderMap,
    secret: Option<Zeroizing<Vec<u8>>>,
    /// For answers that are read on behind jobs that are done.
    drains: Arc<Semaphore>,
}

impl fmt::Debug for Http {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Http")
            .field("url", &shown(&self.url))
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Why posting a job failed.
#[derive(Debug, thiserror::Error)]
enum HttpError {
    #[error("could not connect to `{url}`")]
    Connect { url: String, source: reqwest::Error },
    #[error("no answer from `{url}`")]
    NoAnswer { url: String, source: reqwest::Error },
    #[error("no answer from `{url}` within {timeout:?}")]
    TooSlow { url: String, timeout: Duration },
    #[error("`{url}` answered {answer}")]
    Status { url: String, answer: String },
}

impl Http {
    /// Checks the settings of a mapping, and reads its secret.
    ///
    /// # Errors
    ///
    /// Names the setting that cannot be used.
    pub fn new(options: &HttpOptions, client: &HttpClient) -> Result<Self, HttpSetupError> {
        let url = Url::parse(&options.url).map_err(|error| HttpSetupError::Url {
            url: shown_text(&options.url),
            problem: error.to_string(),
        })?;
        match url.scheme() {
            "https" if !cfg!(feature = "tls") => {
                return Err(HttpSetupError::NoTls { url: shown(&url) });
            }
            "https" if !client.has_roots => {
                return Err(HttpSetupError::NoCertificates { url: shown(&url) });
            }
            "http" | "https" => {}
            other => {
                return Err(HttpSetupError::Url {
                    url: shown_text(&options.url),
                    problem: format!("jobs cannot be posted to `{other}:`"),
                });
            }
        }
        let mut headers = HeaderMap::new();
        for (name, value) in &options.headers {
            headers.insert(header_name(name)?, header_value(name, value)?);
        }
        for (name, variable) in &options.headers_env {
            let value = std::env::var(variable).map_err(|_| HttpSetupError::HeaderEnv {
                name: name.clone(),
                variable: variable.clone(),
            })?;
            headers.insert(header_name(name)?, header_value(name, &value)?);
        }
        Ok(Self {
            client: client.client.clone(),
            url,
            timeout: options.timeout,
            headers,
            secret: options.secret.as_ref().map(read_secret).transpose()?,
            drains: Arc::new(Semaphore::new(MOST_DRAINS)),
        })
    }

    async fn run(&self, context: JobContext) -> Result<(), BoxError> {
        let response = match self.post(&context).await {
            // Nothing was sent.
            Err(error)
                if matches!(error.downcast_ref(), Some(HttpError::Connect { .. }))
                    && context.release_for_want(&*error) =>
            {
                return Ok(());
            }
            posted => posted?,
        };
        let answer = HttpAnswer::read(response, &self.drains).await;
        let answered = || HttpError::Status {
            url: shown(&self.url),
            answer: answer.to_string(),
        };
        match answer.verdict(Clock::System.now()) {
            Verdict::Done => Ok(()),
            Verdict::Release(delay) => {
                context.release(delay);
                Ok(())
            }
            Verdict::Fail => {
                context.fail(answered());
                Ok(())
            }
            Verdict::Exception => Err(answered().into()),
        }
    }

    /// Sends the job and waits for the head of the answer.
    async fn post(&self, context: &JobContext) -> Result<Response, BoxError> {
        let body = context.document().map_err(InputError::Payload)?;
        let mut headers = self.headers.clone();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        // Before Laravel 7 there was no uuid: use the id.
        let uuid = context.uuid().map(JobUuid::as_str);
        let key = uuid.or_else(|| context.id().map(JobId::as_str));
        // Never truncate a key: two jobs could share the beginning.
        let key = key.filter(|key| key.len() <= LONGEST_KEY);
        let (attempts, class) = (context.attempts().to_string(), context.routed_class());
        let traceparent = context.trace().map(Trace::traceparent);
        let of_job = [
            (IDEMPOTENCY_KEY, key),
            (JOB_CLASS, Some(&*crate::shown::name(&class))),
            (JOB_ATTEMPTS, Some(&*attempts)),
            (QUEUE, Some(context.queue().as_str())),
            (TRACEPARENT, traceparent.as_deref()),
            (TRACESTATE, context.trace().and_then(Trace::tracestate)),
        ];
        for (name, value) in of_job {
            // The body contains values that no header can hold.
            if let Some(Ok(value)) = value.map(|value| HeaderValue::from_bytes(value.as_bytes())) {
                headers.insert(name, value);
            }
        }
        if let Some(secret) = &self.secret {
            let signature = signature(secret, Clock::System.now(), &self.url, &body);
            let signature = HeaderValue::try_from(signature);
            headers.insert(SIGNATURE, signature.expect("digits and letters only"));
        }
        let request = self.client.post(self.url.clone()).headers(headers);
        let sending = request.body(body).send();
        let sent = match self.timeout {
            Some(timeout) => {
                let sent = tokio::time::timeout(timeout, sending).await;
                sent.map_err(|_| HttpError::TooSlow {
                    url: shown(&self.url),
                    timeout,
                })?
            }
            None => sending.await,
        };
        let url = || shown(&self.url);
        Ok(sent.map_err(|error| {
            // Logged without parts that may be secret.
            let source = error.without_url();
            if source.is_connect() {
                HttpError::Connect { url: url(), source }
            } else {
                HttpError::NoAnswer { url: url(), source }
            }
        })?)
    }
}

impl Handler for Http {
    fn handle(&self, context: JobContext) -> BoxFuture<'_, Result<(), BoxError>> {
        Box::pin(self.run(context))
    }
}

/// Longest id, in bytes, that is sent as a header; servers refuse long ones.
const LONGEST_KEY: usize = 255;
const IDEMPOTENCY_KEY: HeaderName = HeaderName::from_static("idempotency-key");
const JOB_CLASS: HeaderName = HeaderName::from_static("x-artisand-job-class");
const JOB_ATTEMPTS: HeaderName = HeaderName::from_static("x-artisand-job-attempts");
const QUEUE: HeaderName = HeaderName::from_static("x-artisand-queue");
const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");
const SIGNATURE: HeaderName = HeaderName::from_static("x-artisand-signature");

fn header_name(name: &str) -> Result<HeaderName, HttpSetupError> {
    let error = |problem| HttpSetupError::Header {
        name: name.to_owned(),
        problem,
    };
    let parsed: HeaderName = name
        .parse()
        .map_err(|_| error("no header can have this name"))?;
    let is_ours = parsed.as_str().starts_with("x-artisand-");
    let is_of_body = [CONTENT_TYPE, CONTENT_LENGTH, TRANSFER_ENCODING, CONNECTION];
    if is_ours || parsed == IDEMPOTENCY_KEY || is_of_body.contains(&parsed) {
        return Err(error("it is set by artisand and cannot be another"));
    }
    Ok(parsed)
}

fn header_value(name: &str, value: &str) -> Result<HeaderValue, HttpSetupError> {
    let mut value = HeaderValue::from_str(value).map_err(|_| HttpSetupError::Header {
        name: name.to_owned(),
        problem: "its value holds characters that no header can have, such as line breaks",
    })?;
    value.set_sensitive(true);
    Ok(value)
}

fn read_secret(source: &SecretSource) -> Result<Zeroizing<Vec<u8>>, HttpSetupError> {
    match source {
        SecretSource::Env(variable) => {
            let value = std::env::var(variable)
                .ok()
                .filter(|value| !value.is_empty());
            let value = value.ok_or_else(|| HttpSetupError::SecretEnv(variable.clone()))?;
            Ok(Zeroizing::new(value.into_bytes()))
        }
        SecretSource::File(path) => {
            let read = std::fs::read(path).map_err(|source| HttpSetupError::SecretFile {
                path: path.clone(),
                source,
            })?;
            let mut secret = Zeroizing::new(read);
            while secret.last().is_some_and(|byte| b"\r\n".contains(byte)) {
                secret.pop();
            }
            if secret.is_empty() {
                return Err(HttpSetupError::SecretEmpty(path.clone()));
            }
            Ok(secret)
        }
    }
}

/// `t=SECONDS,v1=HEX`: the HMAC-SHA256 of the seconds, the method, the URL and the body, with a line break after
/// each but the body.
///
/// User, password and fragment are removed from the URL: the server does not see them.
fn signature(secret: &[u8], now: UnixSeconds, url: &Url, body: &str) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC takes keys of any length");
    let mut url = url.clone();
    // Fails for URLs that cannot have a user and password.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_fragment(None);
    mac.update(format!("{now}\nPOST\n{url}\n").as_bytes());
    mac.update(body.as_bytes());
    format!("t={now},v1={}", hex(&mac.finalize().into_bytes()))
}

/// What counts of a server's answer. Displays as the text of an exception.
#[derive(Debug)]
pub struct HttpAnswer {
    status: StatusCode,
    retry_after: Option<String>,
    location: Option<String>,
    body: Vec<u8>,
}

impl HttpAnswer {
    /// Reads an answer to its end, limited in time and size; of one that says that the job is done only the head, as long
    /// as `drains` has room for the task that reads the rest.
    pub async fn read(response: Response, drains: &Arc<Semaphore>) -> Self {
        let header = |name| {
            let value = response.headers().get(name)?;
            value.to_str().ok().map(str::to_owned)
        };
        let (retry_after, location) = (header(RETRY_AFTER), header(LOCATION));
        let status = response.status();
        // Read the body even on success: a connection can be reused only after its answer was read.
        let mut reading = Box::pin(read_body(response));
        let body = match Arc::clone(drains).try_acquire_owned() {
            Ok(drain) if status.is_success() => {
                if tokio::time::timeout(AT_HAND, &mut reading).await.is_err() {
                    // A timeout or a stop while the rest is read must not undo what the status says.
                    tokio::spawn(async move {
                        reading.await;
                        drop(drain);
                    });
                }
                Vec::new()
            }
            // A server that ends its answers late would get ever more requests at a time.
            _ => reading.await,
        };
        Self {
            status,
            retry_after,
            location,
            body,
        }
    }

    /// What it says of the job.
    pub fn verdict(&self, now: UnixSeconds) -> Verdict {
        verdict(self.status.as_u16(), self.retry_after.as_deref(), now)
    }
}

impl fmt::Display for HttpAnswer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let note = redirect_note(self.status, self.location.as_deref());
        write!(f, "{}{note}{}", self.status, shown_body(&self.body))
    }
}

/// The verdict of an answer on the job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// It is done.
    Done,
    /// It goes back to the queue, and waits so long.
    Release(Duration),
    /// It has failed for good.
    Fail,
    /// The attempt ended with an exception.
    Exception,
}

fn verdict(status: u16, retry_after: Option<&str>, now: UnixSeconds) -> Verdict {
    match status {
        200..=299 => Verdict::Done,
        429 | 503 => match retry_after.and_then(|wait| asked_wait(wait, now)) {
            Some(wait) => Verdict::Release(wait),
            None => Verdict::Exception,
        },
        // The server had no time for the job or refuses it so early: not the job's fault.
        408 | 425 => Verdict::Exception,
        400..=499 => Verdict::Fail,
        _ => Verdict::Exception,
    }
}

/// The wait of a `Retry-After`: seconds, or the date at which it ends.
///
/// At least a second, so that a job without limit does not spin; at most a day.
fn asked_wait(text: &str, now: UnixSeconds) -> Option<Duration> {
    let text = text.trim();
    let seconds = if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        // Too many digits for a number mean a long wait, too.
        text.parse().unwrap_or(u64::MAX)
    } else {
        // HTTP's date format that is not obsolete.
        let parser = jiff::fmt::rfc2822::DateTimeParser::new().relaxed_weekday(true);
        let date = parser.parse_timestamp(text).ok()?;
        let wait = date.as_second().saturating_sub(now.0);
        u64::try_from(wait).unwrap_or(0)
    };
    Some(Duration::from_secs(seconds.clamp(1, MAX_WAIT)))
}

/// Reads the body, limited in time and size.
async fn read_body(mut response: Response) -> Vec<u8> {
    let mut body = Vec::new();
    let reading = async {
        // Only the beginning of the body matters: ignore a connection that breaks here.
        while let Ok(Some(chunk)) = response.chunk().await {
            let room = MAX_BODY - body.len();
            body.extend_from_slice(&chunk[..chunk.len().min(room)]);
            if body.len() == MAX_BODY {
                break;
            }
        }
    };
    let _ = tokio::time::timeout(LINGER, reading).await;
    body
}

fn redirect_note(status: StatusCode, location: Option<&str>) -> String {
    if !status.is_redirection() {
        return String::new();
    }
    let to = location.map_or_else(String::new, |to| format!(" to `{}`", shown_text(to)));
    format!(", a redirect{to}: redirects are not followed, the mapping has to name the address")
}

/// The beginning of a body, for the text of an exception.
fn shown_body(body: &[u8]) -> String {
    let text = String::from_utf8_lossy(body);
    let text: String = text
        .trim()
        .chars()
        .map(|c| {
            if c.is_control() && c != '\n' && c != '\t' {
                ' '
            } else {
                c
            }
        })
        .take(MAX_SHOWN)
        .collect();
    if text.is_empty() {
        text
    } else {
        format!(": {text}")
    }
}

/// A URL without user, password and query, any of which may be secret.
fn shown(url: &Url) -> String {
    let mut url = url.clone();
    // Fails for URLs that cannot have a user and password.
    let _ = url.set_password(None);
    let _ = url.set_username("");
    url.set_query(None);
    url.set_fragment(None);
    url.to_string()
}

/// Like [`shown`], for a text that may not be a URL.
fn shown_text(text: &str) -> String {
    let shown = match Url::parse(text) {
        Ok(url) if url.has_host() => shown(&url),
        // A `?` or `#` before the `@` may be part of a password that was not encoded.
        _ => match (text.split_once("://"), text.rsplit_once('@')) {
            (Some((scheme, _)), Some((_, rest))) => format!("{scheme}://{rest}"),
            (None, Some((_, rest))) => rest.to_owned(),
            (_, None) => text.to_owned(),
        },
    };
    let shown = shown.split(['?', '#']).next().unwrap_or_default();
    shown
        .chars()
        .filter(|c| !c.is_control())
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixSeconds = UnixSeconds(784_111_777);

    #[test]
    fn the_status_is_the_verdict() {
        let wait = |seconds| Verdict::Release(Duration::from_secs(seconds));
        #[rustfmt::skip]
        let rows = [
            (200, None, Verdict::Done),
            (204, Some("7"), Verdict::Done),
            (302, None, Verdict::Exception),
            (400, Some("7"), Verdict::Fail),
            (404, None, Verdict::Fail),
            (408, Some("7"), Verdict::Exception),
            (410, None, Verdict::Fail),
            (425, None, Verdict::Exception),
            (429, None, Verdict::Exception),
            (429, Some("7"), wait(7)),
            (429, Some(" 7 "), wait(7)),
            (429, Some("0"), wait(1)),
            (429, Some("99999999999999999999999"), wait(MAX_WAIT)),
            (429, Some("-7"), Verdict::Exception),
            (429, Some("1.5"), Verdict::Exception),
            (429, Some(""), Verdict::Exception),
            (429, Some("soon"), Verdict::Exception),
            (500, Some("7"), Verdict::Exception),
            // The date of RFC 9110, which is `NOW`.
            (503, Some("Sun, 06 Nov 1994 08:49:37 GMT"), wait(1)),
            (503, Some("Sun, 06 Nov 1994 08:50:37 GMT"), wait(60)),
            (503, Some("Sun, 06 Nov 1994 07:49:37 GMT"), wait(1)),
            // Really a Saturday.
            (503, Some("Tue, 06 Nov 2094 08:49:37 GMT"), wait(MAX_WAIT)),
            (503, None, Verdict::Exception),
            (599, None, Verdict::Exception),
        ];
        for (status, retry_after, expected) in rows {
            assert_eq!(
                verdict(status, retry_after, NOW),
                expected,
                "{status} {retry_after:?}"
            );
        }
    }

    #[test]
    fn a_signature_is_the_hmac_of_time_method_url_and_body() {
        // printf '784111777\nPOST\nhttps://h/x?a=b\n{"a":1}' | openssl dgst -sha256 -hmac secret
        let expected =
            "t=784111777,v1=f741b6de37c46a4b1a97e0c8c3d5d9bdc16828fc91ce8b1b1fc8a93b8851cb15";
        for url in ["https://h/x?a=b", "https://u:p@H:443/x?a=b#f"] {
            let url = Url::parse(url).unwrap();
            assert_eq!(
                signature(b"secret", NOW, &url, r#"{"a":1}"#),
                expected,
                "{url}"
            );
        }
    }

    #[test]
    fn what_may_be_secret_in_a_url_is_not_shown() {
        let rows = [
            ("http://u:p@h:9000/x?token=t#f", "http://h:9000/x"),
            ("https://h/x", "https://h/x"),
            ("http://u:p@h:port/x?t", "http://h:port/x"),
            ("u:p@h", "h"),
            ("http://u:p#p@h:9000/x?y#z", "http://h:9000/x"),
            ("http://u:?p@h/x", "http://u/"),
            ("/x?token=p@h", "h"),
        ];
        for (url, expected) in rows {
            let options = HttpOptions {
                url: url.to_owned(),
                ..HttpOptions::default()
            };
            assert_eq!(options.shown_url(), expected, "{url}");
            let debug = format!("{options:?}");
            assert!(!debug.contains("p@") && !debug.contains("token"), "{debug}");
        }
    }
}
