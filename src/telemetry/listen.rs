//! A small HTTP server: one request per connection, answered from memory or by one look at the servers.
//!
//! The answer to one kind of request is a stream, of which there are few and which lasts longer.

use std::convert::Infallible;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::body::{Bytes, Incoming};
use hyper::header::{ALLOW, CACHE_CONTROL, CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, UnixListener};
use tokio::runtime::Handle;
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::board::Answer;
use super::endpoint::Endpoint;
use super::pages::{PLAIN, Page, STATUS, Telemetry};

/// Most connections at once; further ones wait.
const MOST_CONNECTIONS: usize = 64;
/// How long a client may take from connecting to the end of the answer.
const PATIENCE: Duration = Duration::from_secs(20);
/// How long it may take to ask: those that say nothing must not keep probes waiting until the pod is killed.
const UNTIL_ASKED: Duration = Duration::from_secs(2);
/// How long a stream may last, also for a client that does not read it.
const LONGEST_STREAM: Duration = Duration::from_secs(660);

/// The system refuses an endpoint.
#[derive(Debug, thiserror::Error)]
#[error("could not listen on {endpoint}")]
pub struct ListenError {
    endpoint: Endpoint,
    source: std::io::Error,
}

/// An open endpoint.
#[derive(Debug)]
enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, PathBuf),
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Self::Unix(_, path) = self {
            // The next process listens there; what cannot be removed, it reports.
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Endpoint {
    async fn open(&self) -> Result<Listener, ListenError> {
        let opened = match self {
            Self::Tcp(address) => TcpListener::bind(address).await.map(Listener::Tcp),
            Self::Unix(path) => {
                // Left by a process that was killed: no one listens there.
                if std::os::unix::net::UnixStream::connect(path)
                    .is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
                {
                    let _ = std::fs::remove_file(path);
                }
                UnixListener::bind(path).map(|listener| Listener::Unix(listener, path.clone()))
            }
        };
        opened.map_err(|source| ListenError {
            endpoint: self.clone(),
            source,
        })
    }

    /// Opens the endpoint and serves on this runtime until the task is aborted.
    ///
    /// # Errors
    ///
    /// The endpoint cannot be opened; once it is, serving does not end.
    pub async fn serve(
        &self,
        telemetry: Telemetry,
        runtime: &Handle,
    ) -> Result<JoinHandle<Infallible>, ListenError> {
        let endpoint = self.clone();
        // A socket belongs to the runtime that opens it.
        let opening = runtime.spawn(async move { endpoint.open().await });
        let listener = opening.await.map_err(|error| ListenError {
            endpoint: self.clone(),
            source: error.into(),
        })??;
        if let Listener::Tcp(listener) = &listener
            && let Ok(address) = listener.local_addr()
        {
            tracing::debug!(%address, "serving metrics and probes");
        }
        Ok(runtime.spawn(serve(listener, telemetry)))
    }
}

async fn serve(listener: Listener, telemetry: Telemetry) -> Infallible {
    let free = Arc::new(Semaphore::new(MOST_CONNECTIONS));
    let mut connections = JoinSet::new();
    loop {
        let Ok(permit) = Arc::clone(&free).acquire_owned().await else {
            // Nothing closes it.
            std::future::pending().await
        };
        while connections.try_join_next().is_some() {}
        let accepted = match &listener {
            Listener::Tcp(listener) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(answer_all(stream, telemetry.clone(), permit));
            }),
            Listener::Unix(listener, _) => listener.accept().await.map(|(stream, _)| {
                connections.spawn(answer_all(stream, telemetry.clone(), permit));
            }),
        };
        if let Err(error) = accepted {
            // Out of file descriptors, mostly: jobs need them more.
            tracing::debug!(%error, "could not accept a connection for metrics");
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    }
}

/// Answers the request of one connection.
async fn answer_all<T>(
    stream: impl AsyncRead + AsyncWrite + Unpin + Send,
    telemetry: Telemetry,
    permit: T,
) {
    let streams = AtomicBool::new(false);
    let service = service_fn(|request: Request<Incoming>| {
        let (telemetry, streams) = (telemetry.clone(), &streams);
        async move {
            if !telemetry.board().has(request.uri().path()) {
                return Ok::<_, Infallible>(answer(&request, &telemetry).await);
            }
            let (answer, is_stream) = telemetry.board().answer(request).await;
            streams.store(is_stream, Ordering::Relaxed);
            Ok(answer)
        }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(UNTIL_ASKED)
        .keep_alive(false)
        .max_buf_size(16 << 10)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = std::pin::pin!(connection);
    // A client that goes away or takes too long is its own problem.
    let ended = tokio::time::timeout(PATIENCE, connection.as_mut()).await;
    if ended.is_err() && streams.load(Ordering::Relaxed) {
        let _ = tokio::time::timeout(LONGEST_STREAM, connection).await;
    }
    drop(permit);
}

async fn answer<B>(request: &Request<B>, telemetry: &Telemetry) -> Answer {
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    if request.uri().path() == STATUS
        && let Some(refused) = telemetry.board().refused_status(request.headers())
    {
        return refused;
    }
    let page = if is_read {
        telemetry.page(request.uri().path()).await
    } else {
        Page {
            status: StatusCode::METHOD_NOT_ALLOWED,
            kind: PLAIN,
            body: "only GET\n".to_owned(),
        }
    };
    let body = Full::new(Bytes::from(page.body));
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = page.status;
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(page.kind));
    headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if !is_read {
        headers.insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
    }
    response
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt as _;
    use tokio::time::Instant;

    use super::*;
    use crate::telemetry::{JobFigures, Orders, PageOptions};
    use crate::worker::Control;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_asks_nothing_is_soon_gone() {
        let endpoint = Endpoint::Tcp("127.0.0.1:9464".to_owned());
        let page = PageOptions::new(&endpoint, None, Vec::new());
        let (orders, _pending) = Orders::channel();
        let jobs = JobFigures::new(&"redis".into());
        let telemetry = Telemetry::new(jobs, Control::new(), Duration::ZERO, page, orders);
        for said in ["", "GET /livez HTTP/1.1\r\n"] {
            let (mut client, server) = tokio::io::duplex(1024);
            client.write_all(said.as_bytes()).await.unwrap();
            let begun = Instant::now();
            answer_all(server, telemetry.clone(), ()).await;
            let took = begun.elapsed();
            assert!(took < UNTIL_ASKED * 2, "{said:?}: {took:?}");
        }
    }
}
