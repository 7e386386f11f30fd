//! The page's requests, as programs and foreign pages send them; `live/page.rs` has a browser.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use artisand::payload::CALL_QUEUED_HANDLER;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::commands::{App, payload};
use crate::harness::process::{ManagedChild, Workplace, eventually, poll};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);
const TOKEN: &str = "a-token-of-this-test";

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Fine'
handler = "discard"
[[map]]
job = 'App\Jobs\Long'
handler = { exec = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"] }
"#;

/// A worker that serves on a port.
struct Served {
    redis: RedisServer,
    workplace: Workplace,
    worker: ManagedChild,
    address: String,
}

impl Served {
    fn start(http: &str, env: &[(&str, &str)]) -> Self {
        Self::at("127.0.0.1", http, env)
    }

    fn at(host: &str, http: &str, env: &[(&str, &str)]) -> Self {
        let redis = RedisServer::start();
        let rest = format!("[http]\nlisten = \"{host}:0\"\n{http}\n{MAPPINGS}");
        let workplace = Workplace::new(&redis, "", 90, &rest);
        let mut command = workplace.artisand(&["queue:work", "redis", "--queue=high,low", "-vv"]);
        command.envs(env.iter().copied());
        Self::by(redis, workplace, command)
    }

    /// By this worker.
    fn by(redis: RedisServer, workplace: Workplace, command: Command) -> Self {
        let worker = ManagedChild::spawn(command);
        let address = format!("127.0.0.1:{}", worker.serves_at().port());
        let served = Self {
            redis,
            workplace,
            worker,
            address,
        };
        eventually("the worker to start", SOON, || {
            (served.get("/readyz").0 == 200).then_some(())
        });
        served
    }

    /// Sends a request; the headers replace those of a browser that shows the page.
    fn send(&self, method: &str, path: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
        let connect = || TcpStream::connect(&self.address).ok();
        let mut stream = eventually("a server", SOON, connect);
        stream.set_read_timeout(Some(SOON)).unwrap();
        let mut all = vec![("Host", self.address.as_str())];
        all.retain(|(name, _)| headers.iter().all(|(other, _)| other != name));
        all.extend(headers);
        let lines = all
            .iter()
            .map(|(name, value)| format!("{name}: {value}\r\n"));
        let lines = lines.collect::<Vec<_>>().concat();
        let length = body.len();
        write!(
            stream,
            "{method} {path} HTTP/1.1\r\n{lines}Content-Length: {length}\r\n\r\n{body}"
        )
        .unwrap();
        stream
    }

    /// Status, head and body of the answer.
    fn ask(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: &str,
    ) -> (u16, String, String) {
        let mut answer = String::new();
        self.send(method, path, headers, body)
            .read_to_string(&mut answer)
            .unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        (status, head.to_ascii_lowercase(), body.to_owned())
    }

    fn get(&self, path: &str) -> (u16, String, String) {
        self.ask("GET", path, &[], "")
    }

    fn overview(&self) -> Value {
        serde_json::from_str(&self.get("/api/overview").2).unwrap()
    }

    fn press(&self, path: &str, token: &str, body: &Value) -> (u16, String) {
        let bearer = format!("Bearer {token}");
        let headers = [
            ("Authorization", bearer.as_str()),
            ("Content-Type", "application/json"),
        ];
        let (status, _, said) = self.ask("POST", path, &headers, &body.to_string());
        (status, said)
    }

    fn push(&self, class: &str, id: &str) {
        let class = format!("App\\Jobs\\{class}");
        let payload = json!({
            "uuid": id, "displayName": class, "job": CALL_QUEUED_HANDLER, "maxTries": null,
            "data": {"commandName": class, "command": format!("O:{}:\"{class}\":0:{{}}", class.len())},
            "id": id, "attempts": 0, "createdAt": 1_000_000_000, "delay": null,
        });
        self.redis
            .query::<()>(&[b"RPUSH", b"queues:high", payload.to_string().as_bytes()]);
    }

    fn end(mut self) {
        std::fs::write(self.workplace.path().join("go"), "").unwrap();
        self.worker.signal(Signal::TERM);
        self.worker.succeeds_within(SOON);
    }
}

#[test]
fn the_page_is_one_file_that_may_load_nothing_else() {
    let served = Served::start("", &[]);
    let (status, head, body) = served.get("/");
    assert_eq!(status, 200);
    for header in [
        "content-type: text/html; charset=utf-8",
        "default-src 'none'; script-src 'sha256-",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "x-content-type-options: nosniff",
        "referrer-policy: no-referrer",
        "cache-control: no-store",
    ] {
        assert!(head.contains(header), "{header} in {head}");
    }
    assert!(
        !head.contains("unsafe") && !head.contains("access-control"),
        "{head}"
    );
    // Nothing is fetched, and nothing that a payload holds can become HTML.
    for bad in [
        "src=",
        "innerHTML",
        "@import",
        "url(",
        "document.write",
        "eval(",
    ] {
        assert!(!body.contains(bad), "{bad}");
    }
    served.end();
}

#[test]
fn the_overview_and_its_stream_show_all_workers() {
    let served = Served::start("", &[]);
    for id in ["1", "2", "3"] {
        served.push("Fine", id);
    }
    served.push("Long", "4");
    let other = [
        "queue:work",
        "redis",
        "--queue=high",
        "--metrics=127.0.0.1:0",
    ];
    let mut other = ManagedChild::spawn(served.workplace.artisand(&other));
    let mut seen = Value::Null;
    let found = poll(SOON, || {
        seen = served.overview();
        let done = seen["queues"][0]["attempts"] == 3 && seen["busy"] == 1;
        (seen["workers"].as_array()?.len() == 2 && done).then_some(())
    });
    assert!(found.is_some(), "{seen}\n{}", served.worker.describe());
    let queue = &seen["queues"][0];
    assert_eq!(
        (&queue["queue"], &queue["is_paused"]),
        (&json!("high"), &json!(false))
    );
    assert_eq!(queue["sizes"]["reserved"], 1);
    assert_eq!(queue["chart"]["done"].as_array().unwrap().len(), 60);
    assert_eq!(seen["classes"][0]["class"], "App\\Jobs\\Fine");
    assert_eq!(seen["running"][0]["uuid"], "4");
    assert_eq!(
        (&seen["problems"], &seen["is_writable"]),
        (&json!([]), &json!(false))
    );
    let stream = BufReader::new(served.send("GET", "/api/events", &[], ""));
    let events = stream.lines().map_while(Result::ok);
    let mut events = events.filter_map(|line| Some(line.strip_prefix("data: ")?.to_owned()));
    for _ in 0..2 {
        let event: Value = serde_json::from_str(&events.next().unwrap()).unwrap();
        assert_eq!(event["workers"].as_array().unwrap().len(), 2);
    }
    std::fs::write(served.workplace.path().join("go"), "").unwrap();
    other.signal(Signal::TERM);
    other.succeeds_within(SOON);
    eventually("that one is gone", SOON, || {
        (served.overview()["workers"].as_array()?.len() == 1).then_some(())
    });
    served.end();
}

#[test]
fn streams_are_few_and_keep_no_one_else_from_asking() {
    let served = Served::start("", &[]);
    let mut streams = Vec::new();
    let first_line = |stream: &TcpStream| {
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).unwrap();
        line
    };
    for _ in 0..16 {
        let stream = served.send("GET", "/api/events", &[], "");
        assert_eq!(first_line(&stream), "HTTP/1.1 200 OK\r\n");
        streams.push(stream);
    }
    let (status, head, _) = served.get("/api/events");
    assert_eq!((status, head.contains("retry-after: 30")), (503, true));
    assert_eq!(served.get("/api/overview").0, 200);
    assert_eq!(served.get("/livez").0, 200);
    drop(streams);
    eventually("room for another one", SOON, || {
        let stream = served.send("GET", "/api/events", &[], "");
        (first_line(&stream) == "HTTP/1.1 200 OK\r\n").then_some(())
    });
    served.end();
}

#[test]
fn foreign_pages_and_names_get_nothing() {
    let served = Served::start(
        "hosts = [\"queue.example.com\"]",
        &[("ARTISAND_HTTP_TOKEN", TOKEN)],
    );
    for path in ["/", "/api/overview", "/api/events"] {
        let (status, _, said) = served.ask("GET", path, &[("Host", "attacker.example")], "");
        assert_eq!(status, 421, "{path}: {said}");
    }
    let named = [("Host", "queue.example.com")];
    assert_eq!(served.ask("GET", "/api/overview", &named, "").0, 200);
    let bearer = format!("Bearer {TOKEN}");
    let good = [
        ("Authorization", bearer.as_str()),
        ("Content-Type", "application/json"),
    ];
    let body = r#"{"connection":"redis","queue":"high"}"#;
    for (header, status) in [
        (("Origin", "http://attacker.example"), 403),
        (("Origin", "null"), 403),
        (("Sec-Fetch-Site", "cross-site"), 403),
        (("Host", "attacker.example"), 421),
    ] {
        let headers = [&good[..], &[header]].concat();
        assert_eq!(
            served.ask("POST", "/api/pause", &headers, body).0,
            status,
            "{header:?}"
        );
    }
    // What a form can send has no such type, and what a script sends is asked for first.
    assert_eq!(served.ask("POST", "/api/pause", &good[..1], body).0, 415);
    assert_eq!(served.ask("OPTIONS", "/api/pause", &good, "").0, 405);
    assert_eq!(served.ask("GET", "/api/pause", &good, "").0, 405);
    assert_eq!(served.press("/api/token", TOKEN, &json!({})).0, 200);
    assert_eq!(
        served
            .press("/api/token", "a-token-of-no-worker", &json!({}))
            .0,
        401
    );
    for (path, body, status) in [
        (
            "/api/pause",
            json!({"connection": "redis", "queue": "unknown"}),
            404,
        ),
        ("/api/pause", json!({"queue": "high"}), 400),
        ("/api/retry", json!({"ids": []}), 400),
        ("/api/retry", json!({"class": "A"}), 400),
        ("/api/retry", json!({"ids": vec!["x"; 201]}), 400),
        ("/api/retry", json!({"ids": ["x".repeat(70_000)]}), 413),
        // Without an app there is neither a cache nor a store.
        (
            "/api/pause",
            json!({"connection": "redis", "queue": "high"}),
            502,
        ),
        ("/api/retry", json!({"ids": ["1"]}), 502),
    ] {
        let (got, said) = served.press(path, TOKEN, &body);
        assert_eq!(got, status, "{path} {said}");
    }
    served.end();
}

#[test]
fn a_job_whose_record_cannot_be_deleted_is_told_as_pushed() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    app.configure("[http]\nlisten = \"127.0.0.1:0\"\n");
    app.fail(&[
        ("a", "redis", &payload(None), 1),
        ("b", "redis", &payload(None), 2),
    ]);
    let workplace = Workplace::new(&redis, "", 90, "");
    let mut command = app.command(&["queue:work", "--queue=other", "-vv"]);
    command.env("ARTISAND_HTTP_TOKEN", TOKEN);
    let served = Served::by(redis, workplace, command);
    app.keep_failed();
    let (status, said) = served.press("/api/retry", TOKEN, &json!({"ids": ["a", "b"]}));
    assert_eq!(status, 200, "{said}");
    let said: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["retried"], 1, "{said}");
    let problem = said["problems"][0].as_str().unwrap();
    let expected = "Job [a] is on its queue again, and its record could not be deleted";
    assert!(problem.starts_with(expected), "{said}");
    assert_eq!(served.redis.length("app-queues:default"), 1);
    assert_eq!(app.failed(), ["a", "b"]);
    served.end();
}

#[test]
fn without_a_token_the_page_is_read_only_and_without_a_page_there_is_none() {
    let served = Served::start("", &[]);
    let (status, said) = served.press(
        "/api/pause",
        TOKEN,
        &json!({"connection": "redis", "queue": "high"}),
    );
    assert_eq!((status, said.contains("no `token` is set")), (403, true));
    assert!(
        !served.worker.stderr().contains("everyone who reaches"),
        "{}",
        served.worker.stderr()
    );
    served.end();
    let served = Served::at("0.0.0.0", "", &[]);
    let said = served.worker.stderr();
    assert!(
        said.contains("everyone who reaches this address can read the page"),
        "{said}"
    );
    served.end();
    let served = Served::at("0.0.0.0", "page = false", &[]);
    for path in ["/", "/api/overview", "/api/events", "/api/pause"] {
        assert_eq!(served.get(path).0, 404, "{path}");
    }
    assert!(!served.worker.stderr().contains("everyone who reaches"));
    served.end();
}

#[test]
fn a_short_token_is_refused_at_the_start_and_never_printed() {
    let redis = RedisServer::start();
    for (http, env, expected) in [
        (
            "token = \"short-one\"",
            None,
            "a token has at least 16 characters",
        ),
        (
            "",
            Some("short-one"),
            "ARTISAND_HTTP_TOKEN: a token has at least 16 characters",
        ),
    ] {
        let rest = format!("[http]\nlisten = \"127.0.0.1:0\"\n{http}\n");
        let workplace = Workplace::new(&redis, "", 90, &rest);
        let mut command = workplace.artisand(&["queue:work", "redis"]);
        command.envs(env.map(|token| ("ARTISAND_HTTP_TOKEN", token)));
        let mut worker = ManagedChild::spawn(command);
        assert_ne!(worker.wait_timeout(SOON).code(), Some(0));
        let said = worker.stderr();
        assert!(
            said.contains(expected) && !said.contains("short-one"),
            "{said}"
        );
    }
}

#[test]
fn a_redis_that_is_away_is_said_on_the_page_and_nothing_else_ends() {
    let mut served = Served::start("", &[]);
    served.redis.kill();
    let seen = eventually("the problem", SOON, || {
        let seen = served.overview();
        (!seen["problems"].as_array()?.is_empty()).then_some(seen)
    });
    assert_eq!(
        seen["workers"].as_array().unwrap().len(),
        1,
        "itself: {seen}"
    );
    assert!(seen["queues"][0]["sizes"].is_null(), "{seen}");
    assert_eq!(served.get("/").0, 200);
    served.worker.signal(Signal::KILL);
    served.worker.wait_timeout(SOON);
}
