//! Jobs on a server that only deletes them, a beanstalkd or SQS: PHP and Rust, alone and together, bring about the
//! same.

use std::collections::BTreeMap;
#[cfg(feature = "sqs")]
use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use crate::harness::beanstalkd::Beanstalkd;
#[cfg(feature = "sqs")]
use crate::harness::moto::Moto;
use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(120);

/// Everything runs in Rust; closures of artisand go to PHP.
const RUST: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

/// Some classes run in Rust, the rest in PHP processes of the same worker.
const HALF: &str = r#"
[[map]]
job = 'App\Jobs\Journal'
handler = "journal"
"#;

/// Nothing is mapped.
const POOL: &str = "";

/// Where the ends of jobs are noted. Beside PHP that counts batches in `SQLite`, Laravel wants no other writer there.
const LEDGERS: [&str; 3] = ["database", "redis", "FILE"];

struct Tubes {
    scene: Scene,
    server: Server,
}

enum Server {
    Beanstalkd(Beanstalkd),
    /// A queue of its own for each scene.
    #[cfg(feature = "sqs")]
    Sqs(Arc<Moto>, String),
}

impl Server {
    fn beanstalkd() -> Self {
        Self::Beanstalkd(Beanstalkd::start())
    }

    #[cfg(feature = "sqs")]
    fn sqs(moto: &Arc<Moto>) -> Self {
        static LAST: AtomicUsize = AtomicUsize::new(0);
        let suffix = format!("-{}", LAST.fetch_add(1, Ordering::Relaxed));
        moto.make_queue(&format!("default{suffix}"), 30);
        Self::Sqs(Arc::clone(moto), suffix)
    }

    /// The connection of the app.
    fn connection(&self) -> &'static str {
        match self {
            Self::Beanstalkd(_) => "beanstalkd",
            #[cfg(feature = "sqs")]
            Self::Sqs(..) => "sqs",
        }
    }

    fn env(&self) -> Vec<(&'static str, String)> {
        match self {
            Self::Beanstalkd(server) => vec![("BEANSTALKD_PORT", server.port().to_string())],
            #[cfg(feature = "sqs")]
            Self::Sqs(moto, suffix) => {
                vec![
                    ("SQS_PREFIX", moto.prefix()),
                    ("SQS_SUFFIX", suffix.clone()),
                ]
            }
        }
    }

    /// Jobs that wait, are delayed or run, or are buried.
    fn jobs(&self) -> u64 {
        match self {
            Self::Beanstalkd(server) => {
                let stats = server.query("stats");
                let count = |place: &str| -> u64 {
                    let name = format!("current-jobs-{place}: ");
                    let line = stats.lines().find_map(|line| line.strip_prefix(&name));
                    line.unwrap().parse().unwrap()
                };
                let places = ["ready", "delayed", "reserved", "buried"];
                places.into_iter().map(count).sum()
            }
            #[cfg(feature = "sqs")]
            Self::Sqs(moto, suffix) => moto.jobs(&format!("default{suffix}")),
        }
    }
}

in_scene!(Tubes);

impl Tubes {
    fn new(version: u8, settings: &str, retry_after: u32) -> Self {
        Self::on(Server::beanstalkd(), version, settings, retry_after)
    }

    fn on(server: Server, version: u8, settings: &str, retry_after: u32) -> Self {
        let mut env = server.env();
        env.extend([
            ("QUEUE_CONNECTION", server.connection().to_owned()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
            ("REDIS_QUEUE_RETRY_AFTER", retry_after.to_string()),
        ]);
        let redis = crate::harness::redis::RedisServer::start();
        let scene = Scene::on(redis, version, &env, |laravel| {
            let known = laravel.manifest_with_classes();
            // Two would keep each other from Laravel's own SQLite file.
            let workplace = Workplace::with_manifest_and_pool(laravel, &known, 1, settings);
            workplace.php("events = \"none\"")
        });
        // The first look makes the tables.
        scene.failed();
        Self { scene, server }
    }

    /// Jobs of all kinds of ends.
    fn push_all(&self) {
        let php = self.php();
        let journal = |args: &[&str]| drop(php.text(&[&["interop:journal"][..], args].concat()));
        journal(&["plain"]);
        journal(&["twice", "--script=throw,throw", "--tries=3", "--backoff=0"]);
        journal(&["lost", "--script=throw", "--tries=1"]);
        journal(&["back", "--script=release:1", "--tries=2"]);
        journal(&["given-up", "--script=fail"]);
        journal(&["deleted", "--script=delete"]);
        journal(&["later", "--delay=2"]);
        journal(&["secret", "--encrypted"]);
        journal(&["only", "--unique"]);
        journal(&["only", "--unique"]);
        php.run(&[
            "interop:chain",
            "chain",
            "ok",
            "throw,ok",
            "ok",
            "--tries=2",
        ]);
        php.run(&["interop:chain", "broken", "ok", "throw", "ok", "--tries=1"]);
        let batch = ["ok", "ok", "ok", "--then", "--finally"];
        php.run(&[&["interop:batch"][..], &batch].concat());
        let batch = [
            "ok",
            "throw",
            "--allow-failures",
            "--then",
            "--catch",
            "--finally",
        ];
        php.run(&[&["interop:batch"][..], &batch].concat());
    }

    fn jobs(&self) -> u64 {
        self.server.jobs()
    }

    fn artisand_worker(&self, args: &[&str]) -> ManagedChild {
        self.workplace
            .worker_of(&[&["queue:work", self.server.connection()][..], args].concat())
    }

    /// Works until no job is left.
    fn drain(&self, by_php: bool) {
        let args = ["--stop-when-empty", "--sleep=0", "--tries=1"];
        eventually(&format!("{}: all jobs are done", self.name), SOON, || {
            if by_php {
                let php = [&["queue:work", self.server.connection()][..], &args].concat();
                self.php().text(&php);
            } else {
                let mut worker = self.artisand_worker(&args);
                worker.succeeds_within(SOON);
            }
            (self.jobs() == 0).then_some(())
        });
    }

    /// Works until no job is ready.
    fn drain_ready(&self) {
        let mut worker = self.artisand_worker(&["--stop-when-empty", "--sleep=0"]);
        worker.succeeds_within(SOON);
    }

    /// What came of the jobs, as it is on either side.
    fn left(&self) -> Left {
        let mut events: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for line in self.lines() {
            let attempts = line.attempts.map_or(String::new(), |n| format!(":{n}"));
            let event = format!("{}{attempts}", line.event);
            events.entry(line.id).or_default().push(event);
        }
        // The jobs of a batch run side by side.
        for (_, events) in events.iter_mut().filter(|(id, _)| id.contains("member")) {
            events.sort();
        }
        let mut notes: Vec<String> = (self.redis.list("interop:batch").iter())
            .map(|line| serde_json::from_slice::<Value>(line).unwrap()["callback"].to_string())
            .collect();
        notes.sort();
        let mut failed: Vec<_> = self.failed().iter().map(told).collect();
        failed.sort();
        let mut keys = self.keys("*");
        keys.retain(|key| key.contains("unique") || key.contains("artisand:"));
        // It is kept for a day.
        keys.retain(|key| !key.contains("artisand:last-error:"));
        Left {
            events,
            notes,
            failed,
            keys,
        }
    }
}

/// What a row of failed jobs tells apart from times and names of jobs.
fn told(row: &Value) -> String {
    let text = |name: &str| row[name].as_str().unwrap_or_default().to_owned();
    let exception = text("exception");
    let first = exception.lines().next().unwrap_or_default();
    let first = first.split(" in ").next().unwrap_or_default();
    // The class is another one in Rust.
    let message = first.split_once(": ").map_or(first, |(_, message)| message);
    // On SQS it is a URL, here with another suffix for each scene.
    let queue = text("queue");
    let queue = match queue.rsplit_once('/') {
        Some((prefix, name)) => {
            let name = name.split_once('-').map_or(name, |(name, _)| name);
            format!("{prefix}/{name}")
        }
        None => queue,
    };
    format!("{} {queue} {message}", text("connection"))
}

#[derive(Debug, PartialEq)]
struct Left {
    events: BTreeMap<String, Vec<String>>,
    /// Callbacks of batches.
    notes: Vec<String>,
    failed: Vec<String>,
    keys: Vec<String>,
}

fn every_end_is_as_in_laravel(version: u8) {
    ends_are_as_in_laravel(version, Server::beanstalkd);
}

on_every_laravel!(every_end_is_as_in_laravel);

#[cfg(feature = "sqs")]
fn every_end_on_sqs_is_as_in_laravel(version: u8) {
    let moto = Arc::new(Moto::start());
    ends_are_as_in_laravel(version, || Server::sqs(&moto));
}

#[cfg(feature = "sqs")]
on_every_laravel!(every_end_on_sqs_is_as_in_laravel);

fn ends_are_as_in_laravel(version: u8, server: impl Fn() -> Server) {
    let reference = Tubes::on(server(), version, POOL, 90);
    reference.push_all();
    reference.drain(true);
    let expected = reference.left();
    assert_eq!(expected.failed.len(), 4, "{expected:#?}");
    assert_eq!(expected.notes.len(), 4, "{expected:#?}");
    let castings = [RUST, HALF, POOL];
    let home = tempfile::tempdir().unwrap();
    let file = home.path().join("new/ledger.sqlite");
    for (settings, ledger) in castings.into_iter().zip(LEDGERS) {
        let ledger = ledger.replace("FILE", file.to_str().unwrap());
        let settings = format!("[worker]\nledger = \"{ledger}\"\n{settings}");
        let tubes = Tubes::on(server(), version, &settings, 90);
        tubes.push_all();
        tubes.drain(false);
        assert_eq!(
            tubes.left(),
            expected,
            "Laravel {version}, ledger {ledger}: {settings}"
        );
    }
}

/// The other way round: artisand dispatches, and Laravel's own worker drains.
fn php_drains_what_artisand_dispatches(version: u8) {
    drains(&Tubes::new(version, POOL, 90));
    #[cfg(feature = "sqs")]
    drains(&Tubes::on(
        Server::sqs(&Arc::new(Moto::start())),
        version,
        POOL,
        90,
    ));
}

fn drains(tubes: &Tubes) {
    let dispatch = |id: &str, args: &[&str]| {
        let data = format!("--data={{\"id\": \"{id}\"}}");
        let args = [&["dispatch", "App\\Jobs\\Journal", &data][..], args].concat();
        let output = tubes.workplace.artisand(&args).output().unwrap();
        assert!(output.status.success(), "{}: {output:?}", tubes.name);
    };
    dispatch("one", &[]);
    dispatch("later", &["--delay=2"]);
    dispatch("many", &["--count=12"]);
    assert_eq!(tubes.jobs(), 14, "{}", tubes.name);
    tubes.drain(true);
    let runs = |id: &str| tubes.events(id);
    assert_eq!(runs("one"), ["run:1"], "{}", tubes.name);
    assert_eq!(runs("later"), ["run:1"], "{}", tubes.name);
    assert_eq!(runs("many"), ["run:1"; 12], "{}", tubes.name);
    assert_eq!(tubes.failed().len(), 0, "{}", tubes.name);
}

on_every_laravel!(php_drains_what_artisand_dispatches);

fn every_command_says_what_it_can_do(version: u8) {
    let tubes = Tubes::new(version, "", 90);
    let run = |args: &[&str]| {
        let output = tubes.workplace.artisand(args).output().unwrap();
        let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
        (output.status.code().unwrap(), text)
    };
    tubes.push("one", &[]);
    tubes.push("two", &["--delay=600"]);
    #[rustfmt::skip]
    let rows: [(&[&str], i32, &[&str]); 8] = [
        (&["queue:migrate"], 0, &["workers of the driver [beanstalkd] find due jobs where they are"]),
        (&["queue:monitor", "beanstalkd:default"], 0, &["[2] OK", "Delayed jobs"]),
        (&["queue:peek"], 0, &["1 pending, 1 delayed, 0 reserved", "\"id\":\"one\""]),
        // As Laravel.
        (&["queue:clear", "--force"], 1, &["Clearing queues is not supported on [BeanstalkdQueue]"]),
        (&["queue:quarantine"], 0, &["No payloads in quarantine"]),
        (&["doctor"], 0, &["ends of jobs are noted: Redis at", "`default`: 1 pending, 1 delayed"]),
        (&["config:check"], 0, &["connection `beanstalkd`, queue `default` at 127.0.0.1:"]),
        (&["dispatch", "App\\Jobs\\Plain"], 0, &["on queue default"]),
    ];
    for (args, code, parts) in rows {
        let (status, text) = run(args);
        assert_eq!(status, code, "{}: {args:?}: {text}", tubes.name);
        for part in parts {
            assert!(text.contains(part), "{}: {args:?}: {text}", tubes.name);
        }
    }
    // A failed job comes back to its tube.
    let uuid = tubes.push("lost", &["--script=throw", "--tries=1"]);
    tubes.drain_ready();
    assert_eq!(tubes.failed().len(), 1, "{}", tubes.name);
    let (status, text) = run(&["queue:retry", &uuid]);
    assert_eq!(status, 0, "{text}");
    assert_eq!(tubes.failed().len(), 0, "{}", tubes.name);
    let left = run(&["queue:peek", "--all"]).1;
    assert_eq!(tubes.jobs(), 2, "{}: {left}", tubes.name);
}

on_every_laravel!(every_command_says_what_it_can_do);

/// What needs a queue that leaves jobs where they are is refused before any job is taken.
fn settings_that_need_a_choice_are_refused(version: u8) {
    let leave = "[unmapped]\npolicy = \"leave\"\n";
    let limit = "[unmapped]\npolicy = \"fail\"\n[[map]]\njob = 'App\\Jobs\\*'\nhandler = \"discard\"\nconcurrency = 2\n";
    for (settings, named) in [
        (leave, "`policy = \"leave\"`"),
        (limit, "`concurrency` of the mapping"),
    ] {
        let server = Beanstalkd::start();
        let env = [
            ("BEANSTALKD_PORT", server.port().to_string()),
            ("QUEUE_CONNECTION", "beanstalkd".to_owned()),
        ];
        let scene = Scene::with_classes(version, &env, settings);
        scene.push("one", &[]);
        let mut command = scene.workplace.artisand(&["queue:work", "--once"]);
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{text}");
        assert!(
            text.contains(named) && text.contains("beanstalkd gives the next job"),
            "{text}"
        );
        assert!(server.query("stats").contains("current-jobs-ready: 1\n"));
    }
}

on_every_laravel!(settings_that_need_a_choice_are_refused);

/// When artisand dies, its server gives the job to the next worker at once: the PHP process that runs it must do no
/// more.
fn a_php_process_whose_worker_is_gone_ends_nothing(version: u8) {
    let tubes = Tubes::new(version, POOL, 90);
    let chain = ["interop:chain", "chain", "await:go,ok", "ok", "--tries=3"];
    tubes.php().run(&chain);
    let mut first = tubes.artisand_worker(&["--sleep=0.1"]);
    let began = |count: usize| {
        eventually(&format!("{}: {count} runs", tubes.name), SOON, || {
            let lines = tubes.lines();
            (lines.len() >= count).then_some(lines)
        })
    };
    let lines = began(1);
    assert_eq!((&*lines[0].id, lines[0].attempts), ("chain-1", Some(1)));
    first.signal(Signal::KILL);
    first.wait_timeout(SOON);
    let mut second = tubes.artisand_worker(&["--sleep=0.1"]);
    // The second run ends at once, and so does what follows it.
    let lines = began(3);
    tubes.redis.query::<()>(&[b"SET", b"interop:go", b"1"]);
    eventually("the first PHP process is gone", SOON, || {
        (!crate::harness::process::is_alive(lines[0].pid)).then_some(())
    });
    eventually("no job is left", SOON, || (tubes.jobs() == 0).then_some(()));
    second.signal(Signal::TERM);
    second.succeeds_within(SOON);
    let told = |line: &crate::harness::journal::Line| (line.id.clone(), line.attempts);
    let runs: Vec<_> = tubes.lines().iter().map(told).collect();
    let expected = [("chain-1", 1), ("chain-1", 2), ("chain-2", 1)];
    let expected = expected.map(|(id, attempt)| (id.to_owned(), Some(attempt)));
    assert_eq!(runs, expected, "{}", tubes.name);
    assert_eq!(tubes.failed().len(), 0, "{}", tubes.name);
}

on_every_laravel!(a_php_process_whose_worker_is_gone_ends_nothing);
