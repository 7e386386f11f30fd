//! The http handler against a server that misbehaves.

use std::collections::BTreeMap;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use artisand::handler::{
    Handler, Http, HttpClient, HttpOptions, InputError, JobContext, JobInfo, Request, SecretSource,
};
use artisand::payload::CALL_QUEUED_HANDLER;
use artisand::payload::Pattern;
use artisand::payload::Payload;
use artisand::process::{Exec, ExecOptions, Persistent, PersistentOptions};
use artisand::queue::Queue as _;
use artisand::routing::{HandlerChoice, Mapping, Registry, UnmappedPolicy};
use artisand::worker::Defaults;
use artisand::worker::WorkerOptions;
use hmac::{Hmac, KeyInit as _, Mac as _};
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::{RedisServer, free_port};
use crate::tls::certificate;
use crate::worker::{name, options, payload, queue, router, run, sizes};

/// How long an expected event may take.
const SOON: Duration = Duration::from_secs(20);

/// A request that arrived in full.
#[derive(Debug, Clone)]
struct Post {
    connection: usize,
    at: Instant,
    path: String,
    headers: BTreeMap<String, String>,
    body: String,
}

#[derive(Default)]
struct Seen {
    posts: Vec<Post>,
    connections: usize,
    /// Connections that the client closed while it was kept waiting.
    given_up: usize,
    /// Connections that the server has closed after an answer.
    closed: usize,
}

/// A server whose behaviour the path chooses. Its threads end with their connections.
struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<Seen>>,
}

impl Server {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(Seen::default()));
        let shared = Arc::clone(&seen);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let seen = Arc::clone(&shared);
                std::thread::spawn(move || serve(stream.unwrap(), &seen));
            }
        });
        Self { address, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn posts(&self) -> Vec<Post> {
        self.seen.lock().unwrap().posts.clone()
    }

    fn given_up(&self) -> usize {
        self.seen.lock().unwrap().given_up
    }

    fn closed(&self) -> usize {
        self.seen.lock().unwrap().closed
    }
}

/// Serves a connection until one side closes it.
fn serve(mut stream: TcpStream, seen: &Mutex<Seen>) {
    let connection = {
        let mut seen = seen.lock().unwrap();
        seen.connections += 1;
        seen.connections
    };
    if is_to_be_reset(&stream) {
        seen.lock().unwrap().posts.push(Post {
            connection,
            at: Instant::now(),
            path: "/reset".to_owned(),
            headers: BTreeMap::new(),
            body: String::new(),
        });
        return;
    }
    while let Some(post) = read_post(&mut stream, connection) {
        let path = post.path.clone();
        seen.lock().unwrap().posts.push(post);
        let parts: Vec<&str> = path.split('/').skip(1).collect();
        let answer = |status: &str, headers: &str, body: &str| {
            format!(
                "HTTP/1.1 {status} Some Reason\r\n{headers}Content-Length: {}\r\n\r\n{body}",
                body.len()
            )
        };
        let sent = match *parts.as_slice() {
            ["status", status] => {
                stream.write_all(answer(status, "", &format!("why {status}")).as_bytes())
            }
            ["retry", status, wait] => {
                let wait = wait.replace('_', " ");
                let header = format!("Retry-After: {wait}\r\n");
                stream.write_all(answer(status, &header, "").as_bytes())
            }
            ["redirect"] => {
                let header = "Location: http://elsewhere/x?token=s3cr3t\r\n";
                stream.write_all(answer("302", header, "").as_bytes())
            }
            // Closes silently, as servers do after an idle time.
            ["closing"] => {
                stream
                    .write_all(answer("200", "", "done").as_bytes())
                    .unwrap();
                drop(stream);
                seen.lock().unwrap().closed += 1;
                return;
            }
            ["hangup"] => return,
            ["junk"] => {
                let _ = stream.write_all(b"SSH-2.0-OpenSSH_9.2\r\n");
                return;
            }
            ["slow"] => {
                // Ends when the client does.
                let _ = stream.read(&mut [0; 1]);
                seen.lock().unwrap().given_up += 1;
                return;
            }
            ["endless", status] => endless(&mut stream, status, &[b'x'; 10_000], Duration::ZERO),
            ["trickle", status] => endless(&mut stream, status, b"x", Duration::from_millis(20)),
            _ => panic!("no behaviour for {path}"),
        };
        if sent.is_err() {
            return;
        }
    }
}

/// A body that continues until the client closes the connection.
fn endless(
    stream: &mut TcpStream,
    status: &str,
    part: &[u8],
    rest: Duration,
) -> std::io::Result<()> {
    let head = format!("HTTP/1.1 {status} X\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes())?;
    loop {
        stream.write_all(format!("{:x}\r\n", part.len()).as_bytes())?;
        stream.write_all(part)?;
        stream.write_all(b"\r\n")?;
        std::thread::sleep(rest);
    }
}

/// Whether the next request is answered by a reset, which a close before reading it causes.
fn is_to_be_reset(stream: &TcpStream) -> bool {
    let expected = b"POST /reset ";
    let mut begin = [0; 12];
    while let Ok(1..) = stream.peek(&mut begin[..1]) {
        if stream.peek(&mut begin).unwrap() == begin.len() {
            return begin == *expected;
        }
    }
    false
}

fn read_post(stream: &mut TcpStream, connection: usize) -> Option<Post> {
    let mut bytes = Vec::new();
    let mut buffer = [0; 4096];
    let end_of_head = loop {
        if let Some(end) = bytes.windows(4).position(|window| window == b"\r\n\r\n") {
            break end;
        }
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => bytes.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    };
    let head = String::from_utf8(bytes[..end_of_head].to_vec()).unwrap();
    let mut lines = head.lines();
    let request = lines.next().unwrap();
    let path = request.strip_prefix("POST ").unwrap();
    let path = path.strip_suffix(" HTTP/1.1").unwrap().to_owned();
    let headers: BTreeMap<String, String> = lines
        .map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        })
        .collect();
    let length: usize = headers["content-length"].parse().unwrap();
    let mut body = bytes.split_off(end_of_head + 4);
    while body.len() < length {
        match stream.read(&mut buffer) {
            Ok(read @ 1..) => body.extend_from_slice(&buffer[..read]),
            _ => return None,
        }
    }
    let body = String::from_utf8(body).unwrap();
    Some(Post {
        connection,
        at: Instant::now(),
        path,
        headers,
        body,
    })
}

fn to(url: impl Into<String>) -> HttpOptions {
    HttpOptions {
        url: url.into(),
        ..HttpOptions::default()
    }
}

fn handler(options: &HttpOptions) -> Http {
    Http::new(options, &HttpClient::new().unwrap()).unwrap()
}

fn context(n: u32) -> JobContext {
    let body = payload("A", n, &json!({}));
    let info = JobInfo {
        connection: "redis".into(),
        queue: name("default"),
        attempts: 2,
        payload: Arc::new(Payload::parse(&body).unwrap()),
        body: body.into(),
        reserved: Arc::default(),
        trace: None,
    };
    JobContext::new(Arc::new(info), CancellationToken::new(), Arc::default())
}

/// Runs one attempt; returns the handler's result, in words, and its request.
async fn attempt(handler: &Http) -> (Result<(), String>, Request) {
    let context = context(1);
    let result = tokio::time::timeout(SOON, handler.handle(context.clone())).await;
    let result = result.expect("the handler does not hang");
    (
        result.map_err(|error| chain(&*error)),
        context.take_request(),
    )
}

/// An error's text with those of its causes.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let causes = std::iter::successors(Some(error), |error| error.source());
    let texts: Vec<String> = causes.map(ToString::to_string).collect();
    texts.join(": ")
}

#[derive(Debug)]
enum Expected {
    Done,
    Released(u64),
    Failed(&'static str),
    Exception(&'static str),
}

#[tokio::test]
async fn the_status_of_an_answer_is_the_verdict() {
    use Expected::{Done, Exception, Failed, Released};
    let server = Server::start();
    #[rustfmt::skip]
    let rows = [
        ("/status/200", Done),
        ("/status/204", Done),
        ("/closing", Done),
        ("/retry/429/7", Released(7)),
        ("/retry/503/30", Released(30)),
        ("/retry/503/0", Released(1)),
        ("/retry/429/999999999", Released(86_400)),
        // In the past by now.
        ("/retry/503/Sun,_06_Nov_1994_08:49:37_GMT", Released(1)),
        ("/retry/429/soon", Exception("answered 429 Too Many Requests")),
        ("/retry/500/7", Exception("answered 500 Internal Server Error")),
        ("/status/429", Exception("answered 429 Too Many Requests: why 429")),
        ("/status/503", Exception("answered 503 Service Unavailable: why 503")),
        ("/status/500", Exception("answered 500 Internal Server Error: why 500")),
        ("/status/408", Exception("answered 408 Request Timeout: why 408")),
        ("/status/425", Exception("answered 425 Too Early: why 425")),
        ("/status/400", Failed("answered 400 Bad Request: why 400")),
        ("/status/404", Failed("answered 404 Not Found: why 404")),
        ("/status/410", Failed("answered 410 Gone: why 410")),
        ("/redirect", Exception("answered 302 Found, a redirect to `http://elsewhere/x`: redirects are not followed")),
        ("/hangup", Exception("no answer from `http://")),
        ("/reset", Exception("Connection reset by peer")),
        ("/junk", Exception("no answer from `http://")),
        ("/endless/200", Done),
        ("/endless/500", Exception("answered 500 Internal Server Error: xxxx")),
        ("/trickle/200", Done),
        ("/trickle/500", Exception("answered 500 Internal Server Error: x")),
        ("/trickle/410", Failed("answered 410 Gone: x")),
    ];
    for (number, (path, expected)) in rows.into_iter().enumerate() {
        let (result, request) = attempt(&handler(&to(server.url(path)))).await;
        let release = request.release.map(|wait| wait.as_secs());
        let fail = request.fail.map(|reason| reason.message);
        let text = match (&expected, &result, release, &fail) {
            (Done, Ok(()), None, None) => "",
            (Released(wait), Ok(()), Some(asked), None) if asked == *wait => "",
            (Failed(part), Ok(()), None, Some(reason)) if reason.contains(part) => reason,
            (Exception(part), Err(error), None, None) if error.contains(part) => error,
            _ => panic!("{path}: expected {expected:?}, found {result:?} {release:?} {fail:?}"),
        };
        assert!(
            text.len() < 1300 && !text.contains("s3cr3t"),
            "{path}: {text}"
        );
        assert_eq!(server.posts().len(), number + 1, "{path} was posted once");
    }
}

#[tokio::test]
async fn a_server_that_cannot_be_reached_is_an_exception_that_says_so() {
    let address = format!("127.0.0.1:{}", free_port());
    let (result, _) = attempt(&handler(&to(format!(
        "http://user:s3cr3t@{address}/x?k=s3cr3t"
    ))))
    .await;
    let error = result.unwrap_err();
    let expected = format!("could not connect to `http://{address}/x`");
    assert!(
        error.starts_with(&expected) && error.contains("Connection refused"),
        "{error}"
    );
    assert!(!error.contains("s3cr3t"), "{error}");
    let (result, _) = attempt(&handler(&to("http://nowhere.invalid/"))).await;
    let error = result.unwrap_err();
    assert!(
        error.starts_with("could not connect to `http://nowhere.invalid/`"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_mappings_timeout_is_an_exception_and_the_jobs_own_ends_the_attempt() {
    let server = Server::start();
    let patient = to(server.url("/slow"));
    let hasty = HttpOptions {
        // Long enough that a slow machine sends the request before.
        timeout: Some(Duration::from_secs(3)),
        ..patient.clone()
    };
    let (result, _) = attempt(&handler(&hasty)).await;
    let expected = format!("no answer from `{}` within 3s", server.url("/slow"));
    assert_eq!(result, Err(expected));
    eventually("the request is cancelled", SOON, || {
        (server.given_up() == 1).then_some(())
    });
    // Drops the handler's future when the job's timeout has passed.
    let events = work(
        &patient,
        &[payload("A", 1, &json!({"timeout": 3, "maxTries": 1}))],
    )
    .await;
    let failed = "failed: Illuminate\\Queue\\TimeoutExceededException: App\\Jobs\\A has timed out.";
    assert_eq!(events, ["processing 1", failed, "timed out"]);
    eventually("the request is cancelled", SOON, || {
        (server.given_up() == 2).then_some(())
    });
    assert_eq!(server.posts().len(), 2);
}

/// The rest of the answer takes as long as the job has.
#[tokio::test]
async fn a_job_that_is_done_does_not_time_out_while_its_answer_goes_on() {
    let server = Server::start();
    for path in ["/trickle/200", "/endless/200"] {
        let job = payload("A", 1, &json!({"timeout": 1, "maxTries": 1}));
        let events = work(&to(server.url(path)), &[job]).await;
        assert_eq!(events, ["processing 1", "processed Deleted"], "{path}");
    }
}

/// Runs jobs in a worker, three tries each, and returns its events.
async fn work(options_: &HttpOptions, jobs: &[Vec<u8>]) -> Vec<String> {
    let queue = queue();
    queue.push(&name("default"), jobs).await.unwrap();
    let choice = HandlerChoice::Http(options_.clone());
    let mapping = Mapping::new(Pattern::parse("*").unwrap(), choice);
    let router = router(vec![mapping], UnmappedPolicy::Leave, &Registry::new());
    let defaults = Defaults {
        tries: 3,
        ..WorkerOptions::default().defaults
    };
    let options = WorkerOptions {
        defaults,
        ..options(1)
    };
    let (_, events) = run(&queue, router, options).await;
    let sizes = sizes(&queue).await;
    assert_eq!(sizes.pending, 0, "{sizes:?}");
    events
}

#[tokio::test]
async fn exceptions_are_retried_by_the_queue_and_what_failed_for_good_is_not() {
    let server = Server::start();
    let events = work(
        &to(server.url("/status/500")),
        &[payload("A", 1, &json!({}))],
    )
    .await;
    let text = format!(
        "`{}` answered 500 Internal Server Error: why 500",
        server.url("/status/500")
    );
    let released = format!("released: {text}");
    let failed = format!("failed: Artisand\\HandlerError: {text}");
    let expected = [
        "processing 1",
        &released,
        "processing 2",
        &released,
        "processing 3",
        &failed,
    ];
    assert_eq!(events, expected);
    let posts = server.posts();
    let headers: Vec<(&str, &str)> = posts
        .iter()
        .map(|post| {
            (
                &*post.headers["idempotency-key"],
                &*post.headers["x-artisand-job-attempts"],
            )
        })
        .collect();
    assert_eq!(headers, [("uuid-1", "1"), ("uuid-1", "2"), ("uuid-1", "3")]);

    let events = work(
        &to(server.url("/status/410")),
        &[payload("A", 1, &json!({}))],
    )
    .await;
    let failed = format!(
        "failed: Illuminate\\Queue\\ManuallyFailedException: `{}` answered 410 Gone: why 410",
        server.url("/status/410")
    );
    assert_eq!(events[..2], ["processing 1".to_owned(), failed]);
    let events = work(
        &to(server.url("/retry/429/7")),
        &[payload("A", 1, &json!({}))],
    )
    .await;
    assert_eq!(events, ["processing 1", "processed Released"]);
}

/// Known as one, it has waits between its attempts; else it would run again at once, for ever.
#[tokio::test]
async fn a_job_whose_document_cannot_be_made_is_an_unreadable_one() {
    let command = vec!["cat".to_owned()];
    let exec = ExecOptions {
        command: command.clone(),
        ..ExecOptions::default()
    };
    let persistent = PersistentOptions {
        command,
        ..PersistentOptions::default()
    };
    let handlers: [Box<dyn Handler>; 3] = [
        Box::new(Exec::new(&exec).unwrap()),
        Box::new(Persistent::new(&persistent).unwrap()),
        Box::new(handler(&to("http://127.0.0.1:9/"))),
    ];
    let payload = json!({
        "uuid": "uuid-1", "displayName": "App\\Jobs\\A", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\A", "command": "O:10:\"App"}, "attempts": 0,
    });
    let context = JobContext::of_payload(payload.to_string().as_bytes()).unwrap();
    for handler in handlers {
        let error = handler.handle(context.clone()).await.unwrap_err();
        assert!(error.is::<InputError>(), "{error}");
    }
}

#[tokio::test]
async fn a_server_gets_the_document_and_can_tell_who_sent_it() {
    let server = Server::start();
    let secret = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(secret.path(), "s3cr3t key\n").unwrap();
    let options = HttpOptions {
        headers: [("Authorization".to_owned(), "Bearer t0ken".to_owned())].into(),
        secret: Some(SecretSource::File(secret.path().to_owned())),
        ..to(server.url("/status/200"))
    };
    let handler = handler(&options);
    let debug = format!("{options:?} {handler:?}");
    assert!(
        !debug.contains("t0ken") && !debug.contains("s3cr3t"),
        "{debug}"
    );
    attempt(&handler).await.0.unwrap();
    let posts = server.posts();
    let [post] = posts.as_slice() else {
        panic!("{posts:?}")
    };
    let body: Value = serde_json::from_str(&post.body).unwrap();
    assert_eq!(
        (&body["uuid"], &body["data"]),
        (&json!("uuid-1"), &json!({"n": 1}))
    );
    let expected = [
        ("content-type", "application/json"),
        ("authorization", "Bearer t0ken"),
        ("idempotency-key", "uuid-1"),
        ("x-artisand-job-class", "App\\Jobs\\A"),
        ("x-artisand-job-attempts", "2"),
        ("x-artisand-queue", "default"),
    ];
    for (name, value) in expected {
        assert_eq!(post.headers[name], value, "{name}");
    }
    // The check that docs/configuration.md describes for servers.
    let signature = &post.headers["x-artisand-signature"];
    let (time, hex) = signature
        .strip_prefix("t=")
        .unwrap()
        .split_once(",v1=")
        .unwrap();
    let mut mac = Hmac::<sha2::Sha256>::new_from_slice(b"s3cr3t key").unwrap();
    let url = server.url("/status/200");
    mac.update(format!("{time}\nPOST\n{url}\n{}", post.body).as_bytes());
    let expected = mac.finalize().into_bytes();
    let sent: Vec<u8> = (0..hex.len())
        .step_by(2)
        .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap())
        .collect();
    assert_eq!(sent, *expected);
    let age = jiff::Timestamp::now().as_second() - time.parse::<i64>().unwrap();
    assert!((0..60).contains(&age), "{age}");
}

#[tokio::test]
async fn connections_are_used_again_and_one_that_was_closed_costs_nothing() {
    let server = Server::start();
    let jobs: Vec<Vec<u8>> = (1..=20)
        .map(|n| payload("A", n, &json!({"maxTries": 1})))
        .collect();
    let done = |events: Vec<String>| {
        events
            .iter()
            .filter(|event| *event == "processed Deleted")
            .count()
    };
    let events = work(&to(server.url("/status/200")), &jobs).await;
    assert_eq!(done(events), 20);
    let posts = server.posts();
    assert_eq!(posts.len(), 20);
    for pair in posts.windows(2) {
        // A connection that is idle for a second is closed: a slow machine may keep a job waiting for as long.
        let was_idle = pair[1].at - pair[0].at > Duration::from_secs(1);
        assert!(
            pair[1].connection == pair[0].connection || was_idle,
            "{pair:?}"
        );
    }

    // One attempt at a time, each after the server has closed the previous connection.
    let server = Server::start();
    let handler = handler(&to(server.url("/closing")));
    for n in 1..=10 {
        let (result, _) = attempt(&handler).await;
        assert_eq!(result, Ok(()), "attempt {n}");
        let posts = server.posts();
        assert_eq!(posts.len(), n, "{posts:?}");
        eventually("the server has closed the connection", SOON, || {
            (server.closed() == n).then_some(())
        });
        // The end of a connection sends no event: the test can only let the runtime notice it.
        let now = Instant::now();
        while now.elapsed() < Duration::from_millis(200) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A server that answers every POST with 200, by TLS, once it has printed its port.
const TLS_SERVER: &str = r#"
import http.server, ssl, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.end_headers()
server = http.server.HTTPServer(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[1] + "/cert.pem", sys.argv[1] + "/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
print(server.server_port, flush=True)
server.serve_forever()
"#;

#[test]
#[ignore = "needs openssl and python3"]
fn https_trusts_the_machines_certificates_and_no_others() {
    let directory = tempfile::tempdir().unwrap();
    certificate(directory.path());
    let stranger = tempfile::tempdir().unwrap();
    certificate(stranger.path());
    let mut command = std::process::Command::new("python3");
    command.args(["-c", TLS_SERVER]).arg(directory.path());
    let server = ManagedChild::spawn(command);
    let port = eventually("the server listens", SOON, || {
        Some(server.stdout().strip_suffix('\n')?.to_owned())
    });
    let mapping =
        format!("[[map]]\njob = '*'\nhandler = {{ http = 'https://localhost:{port}/' }}\n");
    let work = |trusted: &std::path::Path| {
        let redis = RedisServer::start();
        redis.query::<()>(&[
            b"RPUSH",
            b"queues:default",
            &payload("A", 1, &json!({"maxTries": 1})),
        ]);
        let workplace = Workplace::new(&redis, "", 90, &mapping);
        let mut command = workplace.artisand(&["queue:work", "redis", "--stop-when-empty"]);
        command
            .env("SSL_CERT_FILE", trusted)
            .env_remove("SSL_CERT_DIR");
        let mut worker = ManagedChild::spawn(command);
        let status = worker.wait_timeout(SOON);
        let spooled = redis.list("artisand:failed-spool");
        let spooled = spooled
            .iter()
            .map(|record| String::from_utf8_lossy(record).into_owned());
        (status.code(), spooled.collect::<Vec<_>>(), worker.stderr())
    };
    let (code, failed, log) = work(&directory.path().join("cert.pem"));
    assert!(code == Some(0) && failed.is_empty(), "{failed:?} {log}");
    let (code, failed, log) = work(&stranger.path().join("cert.pem"));
    assert_eq!((code, failed.len()), (Some(0), 1), "{log}");
    let expected = format!("could not connect to `https://localhost:{port}/`");
    assert!(
        failed[0].contains(&expected) && failed[0].contains("certificate"),
        "{failed:?}"
    );
    let (code, _, log) = work(std::path::Path::new("/dev/null"));
    assert_eq!(code, Some(2), "{log}");
    assert!(
        log.contains("no root certificates were found on this machine"),
        "{log}"
    );
}
