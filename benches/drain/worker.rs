//! Workers of artisand with handlers of all kinds: the real binary, or the example with handlers of its own.

use std::collections::HashSet;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use artisand::queue::{Queue as _, QueueName};
use serde_json::json;

use crate::payload;
use crate::php::LARAVEL;
use crate::report::Round;
use crate::server::{HORIZON, PREFIX, Server, free_port};

/// What runs the jobs.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Handler {
    /// The handler `discard`: it reads nothing.
    Nothing,
    /// A handler of `examples/bench_worker.rs`; it counts its jobs.
    Named(&'static str),
    /// A program that stays alive and answers each job.
    Persistent,
    /// A server of this process that answers each request at once.
    Http,
    /// There is none: this policy for unmapped jobs applies.
    Policy(&'static str),
}

/// What the jobs and the worker have to do with Horizon.
#[derive(Clone, Copy, PartialEq)]
enum Horizon {
    /// The app has no Horizon.
    Away,
    /// Horizon has pushed the jobs: its fields are in their payloads, and its records of them there. The worker writes
    /// none.
    Ignored,
    /// The same, and the worker writes records.
    Written,
}

/// A worker that drains a queue.
#[derive(Clone, Copy)]
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    handler: Handler,
    /// Slots.
    slots: usize,
    threads: usize,
    /// Bytes of a payload.
    size: usize,
    /// Jobs in front that policy `leave` leaves in the queue.
    others: usize,
    /// Whether the jobs are delayed ones that are all due.
    is_delayed: bool,
    /// Whether figures are collected and asked for each second.
    has_metrics: bool,
    horizon: Horizon,
    /// The share of jobs that keep their record.
    completed: f64,
    /// Events that a PHP process raises for the app's listeners; there is no PHP without them.
    events: Option<&'static str>,
    /// The number of jobs is that of the benchmark divided by this: slow ones need fewer.
    share: usize,
    /// The number of jobs, whatever that of the benchmark is.
    jobs: Option<usize>,
}

const NOTHING: Contender = Contender {
    name: "no-op, 64 slots",
    handler: Handler::Nothing,
    slots: 64,
    threads: 2,
    size: 710,
    others: 0,
    is_delayed: false,
    has_metrics: false,
    horizon: Horizon::Away,
    completed: 1.0,
    events: None,
    share: 1,
    jobs: None,
};

#[rustfmt::skip]
pub(crate) const CONTENDERS: &[Contender] = &[
    Contender { name: "no-op, 1 slot", slots: 1, share: 5, ..NOTHING },
    Contender { name: "no-op, 16 slots", slots: 16, ..NOTHING },
    NOTHING,
    Contender { name: "no-op, 64 slots, 1 thread", threads: 1, ..NOTHING },
    Contender { name: "no-op, 256 slots", slots: 256, ..NOTHING },
    Contender { name: "no-op, 1024 slots", slots: 1024, ..NOTHING },
    Contender { name: "typed, 1 slot", handler: Handler::Named("typed"), slots: 1, share: 5, ..NOTHING },
    Contender { name: "typed, 16 slots", handler: Handler::Named("typed"), slots: 16, ..NOTHING },
    Contender { name: "typed, 64 slots", handler: Handler::Named("typed"), ..NOTHING },
    Contender { name: "typed, 256 slots", handler: Handler::Named("typed"), slots: 256, ..NOTHING },
    Contender { name: "typed, 1024 slots", handler: Handler::Named("typed"), slots: 1024, ..NOTHING },
    Contender { name: "no-op, 64 slots, string jobs of 200 bytes", size: 200, ..NOTHING },
    Contender { name: "no-op, 64 slots, 650 bytes", size: 650, ..NOTHING },
    Contender { name: "no-op, 64 slots, 10 KB", size: 10_000, share: 2, ..NOTHING },
    Contender { name: "no-op, 64 slots, 100 KB", size: 100_000, share: 20, ..NOTHING },
    Contender { name: "sleeps 1 ms, 64 slots", handler: Handler::Named("sleeps"), share: 2, ..NOTHING },
    Contender { name: "sleeps 2 s, 10000 slots", handler: Handler::Named("sleeps_long"), slots: 10_000, jobs: Some(10_000), ..NOTHING },
    Contender { name: "computes 200 us, 64 slots, 1 thread", handler: Handler::Named("computes"), threads: 1, share: 10, ..NOTHING },
    Contender { name: "computes 200 us, 64 slots, 2 threads", handler: Handler::Named("computes"), share: 10, ..NOTHING },
    Contender { name: "persistent program, 4 slots", handler: Handler::Persistent, slots: 4, share: 10, ..NOTHING },
    Contender { name: "http, 16 slots", handler: Handler::Http, slots: 16, share: 10, ..NOTHING },
    Contender { name: "no-op, 64 slots, 1 job left", others: 1, ..NOTHING },
    Contender { name: "no-op, 64 slots, 400 jobs left", others: 400, ..NOTHING },
    Contender { name: "forwarded, 64 slots", handler: Handler::Policy("forward"), ..NOTHING },
    Contender { name: "failed, 64 slots", handler: Handler::Policy("fail"), share: 20, ..NOTHING },
    Contender { name: "no-op, 64 slots, delayed jobs", is_delayed: true, ..NOTHING },
    Contender { name: "no-op, 256 slots, delayed jobs", is_delayed: true, slots: 256, ..NOTHING },
    Contender { name: "one job of 100 MB", handler: Handler::Named("typed"), size: 100_000_000, jobs: Some(1), ..NOTHING },
    Contender { name: "no-op, 64 slots, metrics", has_metrics: true, ..NOTHING },
    Contender { name: "no-op, 64 slots, payloads of Horizon", horizon: Horizon::Ignored, ..NOTHING },
    Contender { name: "no-op, 64 slots, metrics and Horizon", has_metrics: true, horizon: Horizon::Written, ..NOTHING },
    Contender { name: "no-op, 64 slots, PHP with its default events", events: Some("failures"), ..NOTHING },
    Contender { name: "no-op, 64 slots, metrics, Horizon and PHP with its default events", has_metrics: true, horizon: Horizon::Written, events: Some("failures"), ..NOTHING },
    Contender { name: "no-op, 64 slots, metrics, Horizon and PHP with all events", has_metrics: true, horizon: Horizon::Written, events: Some("all"), ..NOTHING },
    Contender { name: "no-op, 64 slots, metrics and Horizon, 1 % of records", has_metrics: true, horizon: Horizon::Written, completed: 0.01, ..NOTHING },
];

/// Reads a job per line, answers it, and writes its uuid to a file.
const PROGRAM: &str = r#"
import json, sys
uuids = open(sys.argv[1], "a")
for line in sys.stdin:
    uuid = json.loads(line)["uuid"]
    uuids.write(uuid + "\n")
    print(json.dumps({"ok": True, "uuid": uuid}), flush=True)
"#;

impl Contender {
    /// Drains a queue of `jobs` jobs, and checks that each ran once.
    pub(crate) async fn run(&self, jobs: usize) -> Round {
        let jobs = self.jobs.unwrap_or(jobs / self.share);
        let server = Server::start();
        server.fill(&payload::of_others(self.others)).await;
        let mut payloads = payload::of_size(jobs, self.size);
        if self.horizon != Horizon::Away {
            payload::with_horizon(&mut payloads);
            server.record(&payloads);
        }
        if self.is_delayed {
            server.delay(&payloads);
        } else {
            server.fill(&payloads).await;
        }
        drop(payloads);
        let directory = tempfile::tempdir().unwrap();
        let seen = Arc::new(Mutex::new(HashSet::new()));
        let metrics = free_port();
        let mut command = self.command(&server, directory.path(), &seen);
        if self.has_metrics {
            command.arg(format!("--metrics=127.0.0.1:{metrics}"));
        }
        let used = (server.client_commands(), server.processor_seconds(), own());
        let began = Instant::now();
        let child = command.spawn().expect("build the examples with --release");
        let (memory, is_success) = watch(child, self.has_metrics.then_some(metrics));
        let seconds = began.elapsed().as_secs_f64();
        assert!(is_success, "{} failed", self.name);
        let (redis, own) = (server.processor_seconds() - used.1, own() - used.2);
        self.each_ran_once(jobs, directory.path(), &seen);
        let left = async |queue: &str| {
            let sizes = server.queue().sizes(&QueueName::from(queue)).await.unwrap();
            (sizes.pending, sizes.delayed, sizes.reserved)
        };
        assert_eq!(
            left("default").await,
            (self.others as u64, 0, 0),
            "{}",
            self.name
        );
        let forwarded = match self.handler {
            Handler::Policy("forward") => jobs as u64,
            _ => 0,
        };
        assert_eq!(left("elsewhere").await, (forwarded, 0, 0), "{}", self.name);
        let per_job = |count: f64| count / crate::float(jobs);
        Round {
            name: self.name.to_owned(),
            jobs,
            seconds,
            commands_per_job: per_job(crate::float(
                usize::try_from(server.client_commands() - used.0).unwrap(),
            )),
            micros: Some((per_job(redis * 1e6), per_job(own * 1e6))),
            longest_script: Some(server.longest_script()),
            memory: Some(memory),
        }
    }

    fn command(
        &self,
        server: &Server,
        directory: &Path,
        seen: &Arc<Mutex<HashSet<String>>>,
    ) -> Command {
        let binary = Path::new(env!("CARGO_BIN_EXE_artisand"));
        let (program, handler) = match self.handler {
            Handler::Nothing => (binary.into(), "\"discard\"".to_owned()),
            Handler::Named(name) => {
                let example = binary.with_file_name("examples/bench_worker");
                (example, format!("{name:?}"))
            }
            Handler::Persistent => {
                let file = directory.join("uuids").display().to_string();
                let exec = json!(["python3", "-c", PROGRAM, file]);
                let handler = format!("{{ exec = {exec}, persistent = true }}");
                (binary.into(), handler)
            }
            Handler::Http => {
                let port = answering(Arc::clone(seen));
                let handler = format!("{{ http = \"http://127.0.0.1:{port}/\" }}");
                (binary.into(), handler)
            }
            Handler::Policy(_) => (binary.into(), String::new()),
        };
        let redis = json!({
            "options": {"prefix": PREFIX},
            "default": {"host": "127.0.0.1", "port": server.port},
        });
        let manifest = manifest(&redis, self.horizon == Horizon::Written, directory);
        std::fs::write(directory.join("artisand.json"), manifest).unwrap();
        let (policy, php) = match self.events {
            None => (self.policy(), String::new()),
            Some(events) => {
                let php = format!(
                    "[php]\nbinary = [{LARAVEL:?}, '8']\napp = '.'\nprocesses = 1\nevents = '{events}'\n"
                );
                ("php", php)
            }
        };
        let mappings = match self.handler {
            Handler::Policy(_) => String::new(),
            _ => format!(
                "[[map]]\njob = 'App\\Jobs\\Counted'\nhandler = {handler}\n\
                 [[map]]\nstring = 'Counted@run'\nhandler = {handler}\n"
            ),
        };
        let to = if policy == "forward" {
            "queue = 'elsewhere'\n"
        } else {
            ""
        };
        let toml = format!(
            "app = '.'\nsettings = 'manifest'\nmanifest = 'artisand.json'\n{mappings}\
             [unmapped]\npolicy = '{policy}'\n{to}[horizon]\ncompleted = {}\n{php}",
            self.completed
        );
        std::fs::write(directory.join("artisand.toml"), toml).unwrap();
        let mut command = Command::new(program);
        command
            .args("queue:work redis --stop-when-empty -q --memory=0".split(' '))
            .arg(format!("--concurrency={}", self.slots))
            .arg(format!("--threads={}", self.threads))
            .env("REDIS_PORT", server.port.to_string())
            .env("REDIS_PREFIX", PREFIX)
            .env("BENCH_COUNTS", directory.join("counts"))
            .current_dir(directory);
        command
    }

    fn policy(&self) -> &'static str {
        match self.handler {
            Handler::Policy(policy) => policy,
            _ => "leave",
        }
    }

    fn each_ran_once(&self, jobs: usize, directory: &Path, seen: &Mutex<HashSet<String>>) {
        match self.handler {
            Handler::Nothing | Handler::Policy("forward") => {}
            Handler::Policy(_) => {
                // Laravel's driver keeps the last 100.
                let failed = std::fs::read_to_string(directory.join("failed.json")).unwrap();
                let failed: Vec<serde_json::Value> = serde_json::from_str(&failed).unwrap();
                assert_eq!(failed.len(), jobs.min(100), "{}", self.name);
            }
            Handler::Named(_) => {
                let counted = std::fs::read_to_string(directory.join("counts")).unwrap();
                assert_eq!(counted, format!("{jobs} 0"), "{}", self.name);
            }
            Handler::Persistent => {
                let uuids = std::fs::read_to_string(directory.join("uuids")).unwrap();
                let different: HashSet<&str> = uuids.lines().collect();
                assert_eq!((uuids.lines().count(), different.len()), (jobs, jobs));
            }
            Handler::Http => assert_eq!(seen.lock().unwrap().len(), jobs),
        }
    }
}

/// What `artisand manifest` would say of an app with these `database.redis` connections.
pub(crate) fn manifest(redis: &serde_json::Value, has_horizon: bool, base: &Path) -> String {
    let mut manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": base, "storage": base.join("storage")},
        "config": {
            "app": {"timezone": "UTC"},
            "queue": {
                "default": "redis",
                "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default", "retry_after": 90}},
                "failed": {"driver": "file", "path": base.join("failed.json")},
            },
            "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": base.join("cache")}}},
            "database": {"redis": redis},
        },
    });
    if has_horizon {
        manifest["config"]["horizon"] =
            json!({"use": "default", "prefix": HORIZON, "environments": {"artisand": {}}});
    }
    manifest.to_string()
}

/// Waits for the end of a worker; returns its peak of resident memory in MB, and whether it succeeded.
///
/// Asks the port for figures once a second.
fn watch(mut child: Child, metrics: Option<u16>) -> (f64, bool) {
    let (mut peak, mut asked) = (0.0, Instant::now());
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return (peak, status.success());
        }
        let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
        let kilobytes = status.ok().and_then(|status| {
            let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
            line?.trim().strip_suffix(" kB")?.parse::<f64>().ok()
        });
        peak = kilobytes.map_or(peak, |kilobytes| f64::max(peak, kilobytes / 1000.0));
        if let Some(port) = metrics
            && asked.elapsed() > Duration::from_secs(1)
            && let Ok(mut stream) = TcpStream::connect((Ipv4Addr::LOCALHOST, port))
        {
            asked = Instant::now();
            let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
            let asked = stream.write_all(request.as_bytes());
            let _ = asked.and_then(|()| stream.read_to_string(&mut String::new()));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Seconds of processor time of the children of this process that have ended.
pub(crate) fn own() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // Fields 16 and 17 of proc(5), in hundredths of a second; the third one is the first here.
    let ticks = |field: usize| fields[field - 3].parse::<f64>().unwrap() / 100.0;
    ticks(16) + ticks(17)
}

/// A server that answers each job with "done", on connections that stay open; returns its port.
fn answering(seen: Arc<Mutex<HashSet<String>>>) -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let seen = Arc::clone(&seen);
            std::thread::spawn(move || answer(stream.unwrap(), &seen));
        }
    });
    port
}

fn answer(mut stream: TcpStream, seen: &Mutex<HashSet<String>>) -> Option<()> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    loop {
        let mut length = 0;
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            let line = line.trim_end().to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse().ok()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).ok()?;
        let job: serde_json::Value = serde_json::from_slice(&body).ok()?;
        // A panic here poisons the lock, and so the benchmark stops.
        assert!(
            seen.lock().unwrap().insert(job["uuid"].to_string()),
            "ran twice: {job}"
        );
        let done = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(done.as_bytes()).ok()?;
    }
}
