//! Metrics, probes and status of a worker, and what Prometheus and systemd make of them.

use std::collections::BTreeSet;
use std::net::{TcpListener, TcpStream};
use std::os::unix::net::{UnixDatagram, UnixStream};
use std::process::{Command, Output};
use std::time::Duration;

use artisand::payload::CALL_QUEUED_HANDLER;
use regex::Regex;
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::process::{ManagedChild, Workplace, eventually, poll};
use crate::harness::redis::{RedisServer, free_port};

const SOON: Duration = Duration::from_secs(60);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Fine'
handler = "discard"
[[map]]
job = 'App\Jobs\Bad'
handler = { exec = ["false"] }
[[map]]
job = 'App\Jobs\Long'
handler = { exec = ["sh", "-c", "while [ ! -e go ]; do sleep 0.05; done"] }
"#;

fn payload(class: &str, id: &str) -> Vec<u8> {
    named(class, class, id)
}

fn named(name: &str, class: &str, id: &str) -> Vec<u8> {
    let payload = json!({
        "uuid": id, "displayName": name, "job": CALL_QUEUED_HANDLER, "maxTries": null,
        "data": {"commandName": class, "command": format!("O:{}:\"{class}\":0:{{}}", class.len())},
        "id": id, "attempts": 0, "createdAt": 1_000_000_000, "delay": null,
    });
    payload.to_string().into_bytes()
}

/// Status and body of a page.
pub(crate) fn get(
    stream: impl std::io::Read + std::io::Write,
    method: &str,
    path: &str,
) -> (u16, String) {
    let mut stream = stream;
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: localhost\r\n\r\n"
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    (status, body.to_owned())
}

/// A worker that serves on a socket in its directory.
pub(crate) struct Served {
    pub(crate) worker: ManagedChild,
    workplace: Workplace,
}

impl Served {
    pub(crate) fn start(redis: &RedisServer, args: &[&str]) -> Self {
        Self::start_in(Workplace::new(redis, "", 90, MAPPINGS), args)
    }

    pub(crate) fn start_in(workplace: Workplace, args: &[&str]) -> Self {
        let socket = format!("--metrics=unix:{}", workplace.path().join("http").display());
        let args = [&["queue:work", "redis", &socket], args].concat();
        let worker = ManagedChild::spawn(workplace.artisand(&args));
        Self { worker, workplace }
    }

    pub(crate) fn get(&self, path: &str) -> (u16, String) {
        let socket = self.workplace.path().join("http");
        let stream = eventually("a server", SOON, || UnixStream::connect(&socket).ok());
        get(stream, "GET", path)
    }

    pub(crate) fn json(&self, path: &str) -> (u16, Value) {
        let (status, body) = self.get(path);
        (
            status,
            serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}")),
        )
    }

    /// Waits until a page contains each of these texts.
    pub(crate) fn shows(&self, path: &str, texts: &[&str]) -> String {
        let mut last = String::new();
        let shown = poll(SOON, || {
            last = self.get(path).1;
            texts.iter().all(|text| last.contains(text)).then_some(())
        });
        let missing: Vec<_> = texts.iter().filter(|text| !last.contains(**text)).collect();
        assert!(
            shown.is_some(),
            "missing {missing:?} in {last}\n{}",
            self.worker.describe()
        );
        last
    }

    fn release_long_jobs(&self) {
        std::fs::write(self.workplace.path().join("go"), "").unwrap();
    }
}

#[test]
fn figures_and_status_tell_what_a_worker_does() {
    let redis = RedisServer::start();
    let push = |class: &str, id: &str| {
        redis.query::<()>(&[b"RPUSH", b"queues:default", &payload(class, id)]);
    };
    for id in ["1", "2", "3"] {
        push("App\\Jobs\\Fine", id);
    }
    push("App\\Jobs\\Bad", "4");
    push("App\\Jobs\\Long", "5");
    redis.query::<()>(&[b"RPUSH", b"queues:default", b"no JSON"]);
    let later = payload("App\\Jobs\\Fine", "6");
    redis.query::<()>(&[b"ZADD", b"queues:default:delayed", b"9999999999", &later]);
    let mut served = Served::start(&redis, &["--concurrency=3"]);
    let figures = served.shows(
        "/metrics",
        &[
            r#"artisand_jobs_total{connection="redis",queue="default",job_class="App\\Jobs\\Fine",outcome="done",runner="rust"} 3"#,
            r#"artisand_jobs_total{connection="redis",queue="default",job_class="App\\Jobs\\Bad",outcome="failed",runner="exec"} 1"#,
            r#"artisand_jobs_total{connection="redis",queue="default",job_class="",outcome="quarantined",runner="none"} 1"#,
            r#"artisand_jobs_failed_total{connection="redis",queue="default",job_class="App\\Jobs\\Bad",reason="exception"} 1"#,
            r#"artisand_job_runtime_seconds_count{connection="redis",queue="default",job_class="App\\Jobs\\Fine"} 3"#,
            r#"artisand_job_wait_seconds_bucket{le="900.0",connection="redis",queue="default"} 0"#,
            r#"artisand_job_wait_seconds_count{connection="redis",queue="default"} 5"#,
            r#"artisand_queue_jobs{connection="redis",queue="default",state="reserved"} 1"#,
            r#"artisand_queue_jobs{connection="redis",queue="default",state="delayed"} 1"#,
            r#"artisand_queue_jobs{connection="redis",queue="default",state="pending"} 0"#,
            r#"artisand_quarantine_jobs{connection="redis",queue="default"} 1"#,
            r#"artisand_jobs_running{connection="redis",queue="default"} 1"#,
            "artisand_slots 3",
            // Without an app, failed jobs stay there.
            "artisand_failed_spool_jobs 1",
            "artisand_redis_up 1",
            r#"artisand_redis_round_trip_seconds_count{call="settle"}"#,
        ],
    );
    assert!(figures.ends_with("# EOF\n"), "{figures}");
    assert!(
        !figures.contains("App\\\\Jobs\\\\Long\",outcome"),
        "{figures}"
    );

    let (code, status) = served.json("/api/status");
    assert_eq!(code, 200);
    assert_eq!(status["state"], "running");
    assert_eq!(status["attempts"], 4);
    assert_eq!(status["failed"], 1);
    let queue = &status["queues"][0];
    assert_eq!(
        (
            &queue["queue"],
            &queue["ready"],
            &queue["delayed"],
            &queue["quarantined"]
        ),
        (&json!("default"), &json!(1), &json!(1), &json!(1))
    );
    let running = &status["running"][0];
    assert_eq!(
        (&running["uuid"], &running["job_class"]),
        (&json!("5"), &json!("App\\Jobs\\Long"))
    );

    // A worker that is told to stop takes no more jobs and is not restarted.
    // A server that takes two seconds to answer counts as away.
    let ready = json!({"status": "ok", "checks": {"redis": "ok", "worker": "ok"}});
    eventually("ready", SOON, || {
        (served.json("/readyz") == (200, ready.clone())).then_some(())
    });
    served.worker.signal(Signal::TERM);
    let stopping = json!({"status": "unhealthy", "checks": {"redis": "ok", "worker": "stopping"}});
    eventually("not ready", SOON, || {
        (served.json("/readyz") == (503, stopping.clone())).then_some(())
    });
    assert_eq!(
        served.json("/livez"),
        (200, json!({"status": "ok", "checks": {"loop": "ok"}}))
    );
    assert_eq!(served.json("/startupz").0, 200);
    served.release_long_jobs();
    served.worker.succeeds_within(SOON);
    assert!(!served.workplace.path().join("http").exists());
}

#[test]
fn a_redis_that_is_away_is_no_reason_to_restart_the_worker() {
    let mut redis = RedisServer::start_durable();
    let mut served = Served::start(&redis, &[]);
    served.shows("/readyz", &[r#"{"status":"ok""#]);
    redis.kill();
    served.shows("/metrics", &["artisand_redis_up 0"]);
    let (code, ready) = served.json("/readyz");
    assert_eq!((code, &ready["status"]), (503, &json!("unhealthy")));
    assert!(
        ready["checks"]["redis"]
            .as_str()
            .unwrap()
            .contains("127.0.0.1"),
        "{ready}"
    );
    assert_eq!(served.get("/livez").0, 200);
    assert_eq!(served.get("/startupz").0, 200);
    let status = served.json("/api/status").1;
    assert!(
        status["error"].is_string() && status["queues"].is_null(),
        "{status}"
    );
    redis.restart();
    served.shows("/metrics", &["artisand_redis_up 1"]);
    served.shows("/readyz", &[r#"{"status":"ok""#]);
    served.worker.signal(Signal::TERM);
    served.worker.succeeds_within(SOON);
}

#[test]
fn what_cannot_be_read_hides_nothing_else() {
    let redis = RedisServer::start();
    let mut served = Served::start(&redis, &["--queue=low,default"]);
    served.shows("/readyz", &[r#"{"status":"ok""#]);
    let later = payload("App\\Jobs\\Fine", "1");
    redis.query::<()>(&[b"ZADD", b"queues:default:delayed", b"9999999999", &later]);
    // Of another type than the lists that they should be.
    let broken: [&[u8]; 2] = [b"queues:low", b"artisand:follow-ups"];
    for key in broken {
        redis.query::<()>(&[b"SET", key, b"x"]);
    }
    let status = eventually("one queue cannot be read", SOON, || {
        let status = served.json("/api/status").1;
        status["queues"][0]["error"].is_string().then_some(status)
    });
    let [low, default] = [0, 1].map(|place| &status["queues"][place]);
    assert_eq!(
        (&low["queue"], &low["ready"]),
        (&json!("low"), &Value::Null)
    );
    let read = (&default["queue"], &default["delayed"], &default["error"]);
    assert_eq!(read, (&json!("default"), &json!(1), &Value::Null));
    let besides = ["error", "follow_ups", "failed_spool"].map(|name| &status[name]);
    assert_eq!(besides, [&Value::Null, &Value::Null, &json!(0)], "{status}");
    let delayed = r#"artisand_queue_jobs{connection="redis",queue="default",state="delayed"} 1"#;
    let figures = served.shows("/metrics", &["artisand_redis_up 1", delayed]);
    let of_low = r#"artisand_queue_jobs{connection="redis",queue="low""#;
    assert!(!figures.contains(of_low), "{figures}");
    for key in broken {
        redis.query::<()>(&[b"DEL", key]);
    }
    served.worker.signal(Signal::TERM);
    served.worker.succeeds_within(SOON);
}

#[test]
fn refusals_of_the_apps_stores_are_counted() {
    let redis = RedisServer::start();
    let settings = "settings = 'manifest'\nmanifest = 'artisand.json'\napp = '.'\n";
    let workplace = Workplace::with_settings(&redis, &(settings.to_owned() + MAPPINGS));
    let base = workplace.path();
    // The file that is to hold failed jobs is a directory.
    let failed = base.join("failed.json");
    std::fs::create_dir(&failed).unwrap();
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": base, "storage": base.join("storage")},
        "config": {
            "queue": {
                "default": "redis",
                "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default", "retry_after": 90}},
                "failed": {"driver": "file", "path": failed},
            },
            "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": base.join("cache")}}},
            "database": {"redis": {"default": {"host": "127.0.0.1", "port": redis.port()}}},
        },
    });
    std::fs::write(base.join("artisand.json"), manifest.to_string()).unwrap();
    redis.query::<()>(&[b"RPUSH", b"queues:default", &payload("App\\Jobs\\Bad", "1")]);
    let mut served = Served::start_in(workplace, &[]);
    let figures = served.shows(
        "/metrics",
        &[
            "artisand_failed_spool_jobs 1",
            "artisand_store_errors_total{",
        ],
    );
    let refused = r#"artisand_store_errors_total{kind="record a failed job"} "#;
    assert!(figures.contains(refused), "{figures}");
    std::fs::remove_dir(failed).unwrap();
    served.shows("/metrics", &["artisand_failed_spool_jobs 0"]);
    served.worker.signal(Signal::TERM);
    served.worker.succeeds_within(SOON);
}

#[test]
fn nothing_but_reading_is_served_and_a_taken_address_is_said() {
    let redis = RedisServer::start();
    // No other program gets this port while nothing listens on it.
    let taken = TcpListener::bind(("127.0.0.1", free_port())).unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let workplace = Workplace::new(&redis, "", 90, &format!("[http]\nlisten = \"{address}\"\n"));
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "redis"]));
    assert_eq!(worker.wait_timeout(SOON).code(), Some(1));
    let said = worker.stderr();
    assert!(
        said.contains(&format!(
            "could not listen on {address}: Address already in use"
        )),
        "{said}"
    );
    drop(taken);
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "redis"]));
    let connect = || eventually("a server", SOON, || TcpStream::connect(&address).ok());
    for method in ["POST", "PUT", "DELETE"] {
        assert_eq!(get(connect(), method, "/metrics").0, 405);
    }
    assert_eq!(get(connect(), "HEAD", "/metrics"), (200, String::new()));
    let (code, said) = get(connect(), "GET", "/metric");
    assert_eq!((code, said.contains("/, /metrics, /livez")), (404, true));
    // One that says nothing keeps no one else from asking.
    let silent: Vec<TcpStream> = (0..20).map(|_| connect()).collect();
    assert_eq!(get(connect(), "GET", "/livez").0, 200);
    drop(silent);
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

/// The records of the workers that this Redis lists.
fn workers(redis: &RedisServer) -> Vec<Value> {
    let names: Vec<String> = redis.query(&[b"ZRANGE", b"artisand:workers", b"0", b"-1"]);
    let record = |name: &String| -> Option<Vec<u8>> {
        redis.query(&[b"GET", format!("artisand:worker:{name}").as_bytes()])
    };
    let records = names.iter().filter_map(record);
    records
        .map(|record| serde_json::from_slice(&record).unwrap())
        .collect()
}

#[test]
fn workers_are_listed_with_what_they_do_while_they_live() {
    let redis = RedisServer::start();
    for (class, id) in [("Fine", "1"), ("Fine", "2"), ("Bad", "3"), ("Long", "4")] {
        let payload = payload(&format!("App\\Jobs\\{class}"), id);
        redis.query::<()>(&[b"RPUSH", b"queues:high", &payload]);
    }
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let args = ["queue:work", "redis", "--queue=high,low", "--concurrency=2"];
    let mut one = ManagedChild::spawn(workplace.artisand(&[&args[..], &["--name=one"]].concat()));
    let told = |what: &str, is_it: &dyn Fn(&[Value]) -> bool| {
        eventually(what, SOON, || {
            Some(workers(&redis)).filter(|workers| is_it(workers))
        })
    };
    let seen = told("a heartbeat after the jobs", &|workers| {
        workers
            .iter()
            .any(|worker| worker["done"] == 2 && worker["failed"] == 1 && worker["busy"] == 1)
    });
    let worker = &seen[0];
    for (key, expected) in [
        ("name", json!("one")),
        ("pid", json!(one.id())),
        ("version", json!(env!("CARGO_PKG_VERSION"))),
        ("connection", json!("redis")),
        ("queues", json!(["high", "low"])),
        ("slots", json!(2)),
        ("busy", json!(1)),
        ("is_paused", json!(false)),
        ("is_stopping", json!(false)),
    ] {
        assert_eq!(worker[key], expected, "{key}: {worker}");
    }
    let running = &worker["running"][0];
    assert_eq!(running["uuid"], "4");
    assert_eq!(running["class"], "App\\Jobs\\Long");
    assert_eq!(worker["by_queue"][0]["name"], "high");
    assert_eq!(worker["by_class"][0]["name"], "App\\Jobs\\Fine");
    let minutes = worker["by_queue"][0]["minutes"].as_array().unwrap();
    let sum = |column: usize| {
        minutes
            .iter()
            .map(|minute| minute[column].as_u64().unwrap())
            .sum::<u64>()
    };
    // Done, failed, and how many of them were measured.
    assert_eq!((sum(1), sum(2), sum(4)), (2, 1, 3), "{worker}");

    // A second one, a foreign record, and the list that a person reads.
    let mut other =
        ManagedChild::spawn(workplace.artisand(&[&args[..], &["--name=other"]].concat()));
    told("two workers", &|workers| workers.len() == 2);
    redis.query::<()>(&[b"ZADD", b"artisand:workers", b"9999999999", b"\xff\xfe"]);
    redis.query::<()>(&[b"ZADD", b"artisand:workers", b"9999999999", b"foreign"]);
    redis.query::<()>(&[b"SET", b"artisand:worker:foreign", b"{\"format\":1}"]);
    let doctor = || {
        let output = workplace
            .artisand(&["doctor", "redis", "--json"])
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let said = doctor();
    let line = format!(
        "process {}: `high,low` of connection `redis`; 1 of 2 slots busy, 2 done, 1 failed",
        one.id()
    );
    assert!(said.contains(&line), "{said}");
    assert!(
        said.contains(&format!("process {}: ", other.id())),
        "{said}"
    );
    assert!(
        said.contains("1 heartbeats are not in the form of this version"),
        "{said}"
    );
    redis.query::<()>(&[b"DEL", b"artisand:worker:foreign"]);
    redis.query::<()>(&[b"ZREM", b"artisand:workers", b"\xff\xfe", b"foreign"]);

    // One that stops says so, and is gone at the end; of one that is killed the record expires.
    one.signal(Signal::TERM);
    told("that it stops", &|workers| {
        workers.iter().any(|worker| worker["is_stopping"] == true)
    });
    other.signal(Signal::KILL);
    other.wait_timeout(SOON);
    std::fs::write(workplace.path().join("go"), "").unwrap();
    one.succeeds_within(SOON);
    let left = workers(&redis);
    assert_eq!(left.len(), 1, "{left:?}");
    assert_eq!(left[0]["name"], "other");
    let key = format!("artisand:worker:{}", left[0]["id"].as_str().unwrap());
    let lives: i64 = redis.query(&[b"TTL", key.as_bytes()]);
    let list: i64 = redis.query(&[b"TTL", b"artisand:workers"]);
    assert!(
        (1..=30).contains(&lives) && (1..=600).contains(&list),
        "{lives} {list}"
    );
}

#[test]
fn a_worker_that_is_not_to_be_listed_writes_nothing() {
    let redis = RedisServer::start();
    redis.query::<()>(&[
        b"RPUSH",
        b"queues:default",
        &payload("App\\Jobs\\Fine", "1"),
    ]);
    let rest = format!("[worker]\nheartbeat = false\n{MAPPINGS}");
    let workplace = Workplace::new(&redis, "", 90, &rest);
    let args = ["queue:work", "redis", "--stop-when-empty"];
    ManagedChild::spawn(workplace.artisand(&args)).succeeds_within(SOON);
    let calls: String = redis.query(&[b"INFO", b"commandstats"]);
    assert!(!calls.contains("cmdstat_setex"), "{calls}");
    // The same with it, so that the name of the command is right. A worker that ends at once may not come to it.
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let mut worker = ManagedChild::spawn(workplace.artisand(&["queue:work", "redis"]));
    eventually("it is listed", SOON, || {
        (!workers(&redis).is_empty()).then_some(())
    });
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    let calls: String = redis.query(&[b"INFO", b"commandstats"]);
    assert!(calls.contains("cmdstat_setex"), "{calls}");
    assert!(workers(&redis).is_empty());
}

fn run(program: &str, args: &[&str]) -> Output {
    let output = Command::new(program).args(args).output();
    output.unwrap_or_else(|error| panic!("{program}: {error}; php-interop/setup.sh installs it"))
}

/// Names of artisand's metrics in a text, without the endings of histograms.
pub(crate) fn names(text: &str) -> BTreeSet<String> {
    let name = Regex::new(r"\b(?:artisand|process)_[a-z_]+").unwrap();
    let names = name.find_iter(text).map(|name| {
        let name = name.as_str();
        let endings = ["_bucket", "_count", "_sum"];
        let histogram = endings.iter().find_map(|ending| name.strip_suffix(ending));
        histogram
            .filter(|name| name.ends_with("_seconds"))
            .unwrap_or(name)
            .to_owned()
    });
    names.collect()
}

/// Whatever the dashboard asks of these metrics, Prometheus has an answer; of others, it understands the question.
fn assert_that_the_dashboard_is_answered(
    dashboard: &Value,
    served: &BTreeSet<String>,
    query: impl Fn(&str) -> Result<Vec<Value>, String>,
) {
    let panels = dashboard["panels"].as_array().unwrap();
    let targets = panels
        .iter()
        .filter_map(|panel| panel["targets"].as_array())
        .flatten();
    let mut asked = 0;
    for target in targets {
        let expression = target["expr"].as_str().unwrap();
        let is_served = names(expression).is_subset(served);
        let variables = ["$connection", "$queue", "$job"];
        let with_interval = expression.replace("$__rate_interval", "10s");
        let expression =
            (variables.iter()).fold(with_interval, |asked, name| asked.replace(name, ".+"));
        assert!(!expression.contains('$'), "{expression}");
        let mut last = Ok(Vec::new());
        let answered = poll(SOON, || {
            last = query(&expression);
            let is_empty = last.as_ref().map_or(true, Vec::is_empty);
            (is_empty != is_served).then_some(())
        });
        assert!(answered.is_some() && last.is_ok(), "{expression}: {last:?}");
        asked += usize::from(is_served);
    }
    assert!(asked > 15, "{asked}");
}

#[test]
fn prometheus_takes_the_figures_and_what_is_made_of_them_names_no_others() {
    let operations = project().join("docs/operations");
    let read = |name: &str| std::fs::read_to_string(operations.join(name)).unwrap();
    let documented = names(&read("metrics.md"));
    let rules = operations.join("alerts.yml");
    let checked = run("promtool", &["check", "rules", rules.to_str().unwrap()]);
    assert!(checked.status.success(), "{checked:?}");
    let dashboard: Value = serde_json::from_str(&read("grafana-dashboard.json")).unwrap();
    assert!(dashboard["panels"].as_array().unwrap().len() > 10);
    for text in [read("alerts.yml"), dashboard.to_string()] {
        let unknown: Vec<_> = names(&text).difference(&documented).cloned().collect();
        assert!(unknown.is_empty(), "{unknown:?}");
    }

    let redis = RedisServer::start();
    // The last name would end a label, or a line.
    let fine = "App\\Jobs\\Fine";
    for (name, class, id) in [
        (fine, fine, "1"),
        ("App\\Jobs\\Bad", "App\\Jobs\\Bad", "2"),
        ("Q\"uote\n{}\\", fine, "3"),
    ] {
        redis.query::<()>(&[b"RPUSH", b"queues:default", &named(name, class, id)]);
    }
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let args = ["queue:work", "redis", "--metrics=127.0.0.1:0", "-vv"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    let served = worker.serves_at().to_string();
    let config = workplace.path().join("prometheus.yml");
    let rules = rules.display();
    std::fs::write(
        &config,
        format!(
            "global: {{scrape_interval: 200ms, scrape_timeout: 200ms, evaluation_interval: 200ms}}\nrule_files: [{rules}]\nscrape_configs: [{{job_name: artisand, static_configs: [{{targets: ['{served}']}}]}}]\n"
        ),
    )
    .unwrap();
    // Prometheus does not tell which port it was given.
    let own = format!("127.0.0.1:{}", free_port());
    let mut prometheus = Command::new("prometheus");
    prometheus
        .arg(format!("--config.file={}", config.display()))
        .arg(format!(
            "--storage.tsdb.path={}",
            workplace.path().join("tsdb").display()
        ))
        .arg(format!("--web.listen-address={own}"))
        .current_dir(workplace.path());
    let prometheus = ManagedChild::spawn(prometheus);
    let url = format!("http://{own}");
    let query = |expression: &str| {
        let output = run(
            "promtool",
            &["query", "instant", "-o", "json", &url, expression],
        );
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        let series: Option<Vec<Value>> = serde_json::from_str(&answer).ok();
        series.ok_or_else(|| answer + &String::from_utf8_lossy(&output.stderr))
    };
    let mut series = Vec::new();
    let found = poll(SOON, || {
        series = query("artisand_jobs_total").ok()?;
        (series.len() == 3).then_some(())
    });
    assert!(
        found.is_some(),
        "{series:?}\n{}\n{}",
        prometheus.describe(),
        worker.describe()
    );
    let classes: BTreeSet<_> = series
        .iter()
        .map(|one| one["metric"]["job_class"].as_str().unwrap())
        .collect();
    // As it is shown everywhere: control characters as text.
    let expected = BTreeSet::from(["App\\Jobs\\Bad", "App\\Jobs\\Fine", "Q\"uote\\u{a}{}\\"]);
    assert_eq!(classes, expected, "{}", prometheus.describe());
    // A scrape that takes too long ends all series until the next one.
    let up = eventually("the version", SOON, || {
        query("artisand_build_info").ok()?.into_iter().next()
    });
    assert_eq!(up["metric"]["version"], env!("CARGO_PKG_VERSION"));
    let (_, figures) = get(TcpStream::connect(&served).unwrap(), "GET", "/metrics");
    let series = figures
        .lines()
        .filter(|line| !line.starts_with('#'))
        .collect::<Vec<_>>()
        .join("\n");
    let undocumented: Vec<_> = names(&series).difference(&documented).cloned().collect();
    assert!(undocumented.is_empty(), "{undocumented:?}");

    assert_that_the_dashboard_is_answered(&dashboard, &names(&series), query);
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

#[test]
fn systemd_is_told_when_the_worker_has_started_lives_and_stops() {
    let redis = RedisServer::start();
    redis.query::<()>(&[
        b"RPUSH",
        b"queues:default",
        &payload("App\\Jobs\\Long", "1"),
    ]);
    let workplace = Workplace::new(&redis, "", 90, MAPPINGS);
    let path = workplace.path().join("notify");
    let socket = UnixDatagram::bind(&path).unwrap();
    socket.set_read_timeout(Some(SOON)).unwrap();
    let mut command = workplace.artisand(&["queue:work", "redis"]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "400000");
    let mut worker = ManagedChild::spawn(command);
    let next = || {
        let mut bytes = [0; 4096];
        let length = socket.recv(&mut bytes).unwrap();
        String::from_utf8(bytes[..length].to_vec()).unwrap()
    };
    assert_eq!(next(), "READY=1\n");
    // One comes each 200 ms: for a minute. After a pause of the machine several come at once.
    let told = std::iter::repeat_with(next)
        .take(300)
        .find(|told| told.contains("STATUS=1 jobs running;"));
    let told = told.unwrap();
    assert!(told.contains("WATCHDOG=1"), "{told}");
    worker.signal(Signal::TERM);
    assert!(
        std::iter::repeat_with(next)
            .take(20)
            .any(|told| told == "STOPPING=1\n")
    );
    let told = next();
    assert!(told.contains("STATUS=stopping; 1 jobs running"), "{told}");
    assert!(
        told.contains("EXTEND_TIMEOUT_USEC=30000000") && told.contains("WATCHDOG=1"),
        "{told}"
    );
    std::fs::write(workplace.path().join("go"), "").unwrap();
    worker.succeeds_within(SOON);
}
