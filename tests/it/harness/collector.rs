//! A collector of traces: takes OTLP over HTTP, as it is told to.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::common::v1::{AnyValue, KeyValue};
use opentelemetry_proto::tonic::trace::v1::Span;
use prost::Message as _;

const SOON: Duration = Duration::from_secs(60);

/// A collector of traces. It takes connections until the test ends.
pub(crate) struct Collector {
    port: u16,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    /// What it answers; 200 if this is none.
    status: Option<u16>,
    /// Whether it answers the first request, and every other one after that, with 503.
    is_moody: bool,
    /// Whether it takes requests, and answers none.
    is_slow: bool,
}

/// A request to the collector.
#[derive(Clone)]
pub(crate) struct Request {
    /// Lines before the body.
    pub(crate) head: String,
    /// What was sent; nothing if that was compressed, or no trace.
    pub(crate) sent: ExportTraceServiceRequest,
}

impl Collector {
    /// Listens on a port of its own.
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::<Shared>::default();
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || {
            for connection in listener.incoming() {
                let shared = Arc::clone(&serving);
                std::thread::spawn(move || shared.serve(&connection.unwrap()));
            }
        });
        Self { port, shared }
    }

    /// Its URL, without a path.
    pub(crate) fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Answers with this status from now on.
    pub(crate) fn answer(&self, status: u16) {
        self.change(|state| state.status = Some(status));
    }

    /// Answers the first request, and every other one after that, with 503.
    pub(crate) fn be_moody(&self) {
        self.change(|state| state.is_moody = true);
    }

    /// Answers nothing until it is no longer slow.
    pub(crate) fn be_slow(&self, is_slow: bool) {
        self.change(|state| state.is_slow = is_slow);
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state.lock().unwrap());
        self.shared.changed.notify_all();
    }

    /// Waits for this many requests.
    pub(crate) fn requests(&self, count: usize) -> Vec<Request> {
        let state = self.shared.state.lock().unwrap();
        let is_waiting = |state: &mut State| state.requests.len() < count;
        let waited = self
            .shared
            .changed
            .wait_timeout_while(state, SOON, is_waiting);
        let (state, waited) = waited.unwrap();
        assert!(!waited.timed_out(), "{} requests", state.requests.len());
        state.requests.clone()
    }

    /// The spans that were sent so far.
    pub(crate) fn spans(&self) -> Vec<Span> {
        let requests = self.requests(0).into_iter().map(|request| request.sent);
        let resources = requests.flat_map(|sent| sent.resource_spans);
        let scopes = resources.flat_map(|resource| resource.scope_spans);
        scopes.flat_map(|scope| scope.spans).collect()
    }
}

impl Shared {
    fn serve(&self, connection: &TcpStream) {
        let mut reader = BufReader::new(connection);
        while let Some((head, body)) = read(&mut reader) {
            // It also stands for servers that get jobs.
            let lower = head.to_ascii_lowercase();
            let is_plain = lower.contains("/x-protobuf") && !lower.contains("content-encoding");
            let sent = is_plain.then(|| ExportTraceServiceRequest::decode(&*body).unwrap());
            let mut state = self.state.lock().unwrap();
            let sent = sent.unwrap_or_default();
            state.requests.push(Request { head, sent });
            let is_odd = state.requests.len() % 2 == 1;
            self.changed.notify_all();
            let state = self.changed.wait_while(state, |state| state.is_slow);
            let state = state.unwrap_or_else(PoisonError::into_inner);
            let status = match state.status {
                _ if state.is_moody && is_odd => 503,
                status => status.unwrap_or(200),
            };
            drop(state);
            let answer = format!("HTTP/1.1 {status} Said\r\nContent-Length: 0\r\n\r\n");
            if (&*connection).write_all(answer.as_bytes()).is_err() {
                return;
            }
        }
    }
}

/// Head and body of a request; `None` at the end of the connection.
fn read(reader: &mut BufReader<&TcpStream>) -> Option<(String, Vec<u8>)> {
    let mut head = String::new();
    while !head.ends_with("\r\n\r\n") {
        if reader.read_line(&mut head).ok()? == 0 {
            return None;
        }
    }
    let lower = head.to_ascii_lowercase();
    let length = lower
        .lines()
        .find_map(|line| line.strip_prefix("content-length:"));
    let mut body = vec![0; length?.trim().parse().ok()?];
    reader.read_exact(&mut body).ok()?;
    Some((head, body))
}

/// An attribute as text; empty if there is none of this name.
pub(crate) fn attribute(attributes: &[KeyValue], name: &str) -> String {
    let found = attributes.iter().find(|attribute| attribute.key == name);
    let value = found.and_then(|found| found.value.clone());
    match value.and_then(|AnyValue { value }| value) {
        Some(Value::StringValue(text)) => text,
        Some(Value::IntValue(number)) => number.to_string(),
        Some(Value::DoubleValue(number)) => number.to_string(),
        Some(Value::BoolValue(is_true)) => is_true.to_string(),
        Some(other) => panic!("{name} is {other:?}"),
        None => String::new(),
    }
}

/// Bytes of an id as digits.
pub(crate) fn hex(id: &[u8]) -> String {
    let digits = |text: String, byte: &u8| text + &format!("{byte:02x}");
    id.iter().fold(String::new(), digits)
}
