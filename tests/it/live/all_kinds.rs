//! An app with every kind of job, drained by artisand without a mapping: the result equals that of `queue:work`.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;
use std::time::Duration;

use regex::Regex;
use serde_json::{Value, json};

use super::events::unknown_to;
use crate::harness::process::ManagedChild;
use crate::harness::redis::is_memory;
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind, Settings};

const SOON: Duration = Duration::from_secs(120);
/// Chains with delays come back this often at most.
const MOST_ROUNDS: usize = 20;

/// Additional jobs to the whole catalogue. Jobs that wait for a second would mix with the others at random.
const SCENARIOS: [&str; 13] = [
    "chain-fails",
    "chain-throws",
    "chain-with-closure",
    "chain-with-batch",
    "chain-with-unique",
    "chain-of-encrypted",
    "unique",
    "until-processing",
    "batch",
    "batch-allowed",
    "batch-failing-last",
    "batch-progress",
    "batch-of-chains",
];

/// Ends of all kinds, with `interop:journal`.
#[rustfmt::skip]
const ENDS: [(&str, &[&str]); 12] = [
    ("retried", &["--tries=3", "--backoff=0", "--script=throw,ok"]),
    ("failed", &["--tries=2", "--backoff=0", "--script=throw,throw"]),
    ("released", &["--tries=3", "--script=release:0,ok"]),
    ("released-too-often", &["--tries=1", "--script=release:0,ok"]),
    ("failed-by-itself", &["--tries=3", "--script=fail"]),
    ("deleted-by-itself", &["--tries=3", "--script=delete"]),
    ("deleted-and-thrown", &["--tries=3", "--script=delete+throw"]),
    ("exceptions", &["--tries=9", "--backoff=0", "--max-exceptions=2", "--script=throw,release:0,throw,ok"]),
    ("encrypted", &["--encrypted", "--script=ok"]),
    ("guarded", &["--guards=[{\"without_overlapping\":{\"key\":\"k\"}}]", "--script=ok"]),
    ("pushing", &["--script=push:pushed-1+push:pushed-2+throw"]),
    ("late", &["--tries=2", "--retry-until=-5", "--script=ok"]),
];

/// Which worker drains the queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Php,
    /// One PHP process of artisand's worker.
    Pool,
}

/// The state at the end, normalized so that equal runs compare equal.
#[derive(Debug, Default)]
struct Left {
    keys: BTreeMap<String, Value>,
    /// The content that arrived in jobs, mails, notifications, broadcasts and commands.
    seen: Vec<String>,
    journal: Vec<String>,
    notes: Vec<String>,
    batches: Vec<String>,
    failed: Vec<String>,
    events: Vec<String>,
    /// Errors that the app logged.
    log: Vec<String>,
}

/// A name, and the part of a scene that it means.
type Part = (&'static str, fn(&Left) -> &Vec<String>);

impl Left {
    /// Names the first difference of each part: all of them would be too much to read.
    fn is_like(&self, reference: &Self, place: &str) {
        let mut differences = Vec::new();
        #[rustfmt::skip]
        let parts: [Part; 7] = [
            ("seen", |left| &left.seen), ("journal", |left| &left.journal), ("notes", |left| &left.notes),
            ("batches", |left| &left.batches), ("failed", |left| &left.failed), ("log", |left| &left.log),
            ("events", |left| &left.events),
        ];
        for (name, part) in parts {
            let (ours, theirs) = (part(self), part(reference));
            let at = (0..ours.len().max(theirs.len())).find(|at| ours.get(*at) != theirs.get(*at));
            if let Some(at) = at {
                let from = at.saturating_sub(3);
                let some = |list: &[String]| -> Vec<String> {
                    list.iter().skip(from).take(7).cloned().collect()
                };
                differences.push(format!(
                    "{name} {at}: {:#?}\nPHP: {:#?}",
                    some(ours),
                    some(theirs)
                ));
            }
        }
        for name in self.keys.keys().chain(reference.keys.keys()) {
            let (ours, theirs) = (self.keys.get(name), reference.keys.get(name));
            if ours != theirs {
                differences.push(format!("key {name}: {ours:?}; PHP: {theirs:?}"));
            }
        }
        assert!(
            differences.is_empty(),
            "{place}: {}",
            differences.join("\n")
        );
    }
}

struct Kinds {
    scene: Scene,
}

in_scene!(Kinds);

impl Kinds {
    fn new(version: u8, mut env: Settings) -> Self {
        let more = [
            ("QUEUE_FAILED_DRIVER", "database-uuids"),
            ("BROADCAST_CONNECTION", "seen"),
            ("INTEROP_TRACES", "1"),
        ];
        env.extend(more.map(|(name, value)| (name, value.to_owned())));
        Self {
            scene: Scene::with_pool(version, &env, 1, ""),
        }
    }

    fn queue_jobs(&self) {
        let php = self.php();
        self.laravel.run(&["interop:dispatch", "all"]);
        // Of the jobs with models one is then deleted, and others fail.
        for id in ["2", "3"] {
            php.text(&["interop:user", id, "--gone"]);
        }
        for scenario in SCENARIOS {
            php.text(&["interop:scenario", scenario]);
        }
        for (id, options) in ENDS {
            php.text(&[&["interop:journal", id][..], options].concat());
        }
    }

    /// The queues that have something, and all jobs that wait there are due.
    fn due_queues(&self) -> Vec<String> {
        let prefix = self.laravel.key("queues:");
        let names: Vec<String> = self.redis.query(&[b"KEYS", b"*"]);
        let names = names.iter().filter_map(|name| name.strip_prefix(&prefix));
        let mut queues = Vec::new();
        for name in names {
            let (queue, part) = name.split_once(':').unwrap_or((name, ""));
            if part == "delayed" {
                let key = format!("{prefix}{name}");
                for (number, (job, _)) in self.redis.scores(&key).into_iter().enumerate() {
                    let score = (number + 1).to_string();
                    let () = self
                        .redis
                        .query(&[b"ZADD", key.as_bytes(), score.as_bytes(), &job]);
                }
            }
            if matches!(part, "" | "delayed") && !queues.iter().any(|known| known == queue) {
                queues.push(queue.to_owned());
            }
        }
        queues.sort();
        queues
    }

    fn drain(&self, by: By) {
        for round in 0.. {
            let queues = self.due_queues();
            if queues.is_empty() {
                break;
            }
            assert!(round < MOST_ROUNDS, "no end: {}", self.redis.state());
            let queues = format!("--queue={}", queues.join(","));
            let args = ["--stop-when-empty", "--sleep=0", "--tries=1", &queues];
            let all = [&["queue:work", "redis"][..], &args].concat();
            let mut command = match by {
                By::Php => self.laravel.command(&all),
                By::Pool => self.workplace.artisand(&all),
            };
            command.env("INTEROP_EVENTS", "1");
            ManagedChild::spawn(command).succeeds_within(SOON);
        }
    }

    fn left(&self) -> Left {
        let mut names = Names::default();
        let mut keys = BTreeMap::new();
        let all: Vec<String> = self.redis.query(&[b"KEYS", b"*"]);
        for name in all {
            if name.starts_with("interop:") {
                continue;
            }
            if is_memory(&name) {
                continue;
            }
            let kind: String = self.redis.query(&[b"TYPE", name.as_bytes()]);
            let size: i64 = match &*kind {
                "list" => self.redis.query(&[b"LLEN", name.as_bytes()]),
                "zset" => self.redis.query(&[b"ZCARD", name.as_bytes()]),
                "string" => self.redis.query(&[b"STRLEN", name.as_bytes()]),
                other => panic!("{name} is a {other}"),
            };
            // Names of locks of unique jobs and of counters hold ids.
            keys.insert(names.hidden(&name), json!([kind, size]));
        }
        let state = self.php().run(&["interop:tables"]);
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().unwrap().iter();
            list.map(ToString::to_string).collect()
        };
        Left {
            keys,
            seen: self.lines("interop:seen", &[]),
            journal: self.lines("interop:journal", &["pid", "at", "uuid"]),
            notes: self.lines("interop:batch", &["id"]),
            batches: texts(&state["batches"]),
            failed: failed(&self.scene.failed()),
            events: self.events(),
            log: self.logged(),
        }
    }

    /// Lines of a list, without these fields and without ids.
    fn lines(&self, key: &str, without: &[&str]) -> Vec<String> {
        let mut names = Names::default();
        let lines = self.redis.list(key);
        lines
            .iter()
            .map(|line| {
                let mut json: Value = serde_json::from_slice(line).unwrap();
                for field in without {
                    json.as_object_mut().unwrap().remove(*field);
                }
                names.hidden(&json.to_string())
            })
            .collect()
    }

    /// Events in their order, without looks at empty queues.
    fn events(&self) -> Vec<String> {
        let lines = self.redis.list("interop:events");
        let unknown = unknown_to(self.laravel.version);
        let mut names = Names::default();
        let mut events: Vec<String> = Vec::new();
        for line in &lines {
            let json: Value = serde_json::from_slice(line).unwrap();
            let event = json["event"].as_str().unwrap();
            assert!(!unknown.contains(&event), "{event}");
            // The number of looks, and of rounds for waiting jobs, differs; see `events.rs`.
            if event.starts_with("Worker") || matches!(event, "Looping" | "JobPopping") {
                continue;
            }
            events.push(names.hidden(&json.to_string()));
        }
        events
    }

    fn logged(&self) -> Vec<String> {
        let storage = self.laravel.config["storage"].as_str().unwrap();
        let text = std::fs::read(format!("{storage}/logs/laravel.log")).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let errors = text.lines().filter(|line| line.contains("local.ERROR: "));
        let mut names = Names::default();
        errors
            .map(|line| {
                let message = line.split("local.ERROR: ").nth(1).unwrap();
                names.hidden(message.split(" {\"").next().unwrap())
            })
            .collect()
    }
}

/// Records of failed jobs, the first one first.
fn failed(jobs: &[Value]) -> Vec<String> {
    let mut names = Names::default();
    let mut texts: Vec<String> = Vec::new();
    for job in jobs.iter().rev() {
        let payload: Value = serde_json::from_str(job["payload"].as_str().unwrap()).unwrap();
        assert_eq!(job["id"], payload["uuid"]);
        let mut kept = payload.clone();
        // Their texts differ each time.
        let hidden = [
            "uuid",
            "id",
            "createdAt",
            "data",
            "retryUntil",
            "illuminate:log:context",
        ];
        for field in hidden {
            kept.as_object_mut().unwrap().remove(field);
        }
        // The caller of the job differs.
        let exception = job["exception"].as_str().unwrap();
        let exception = exception.split("\nStack trace:").next().unwrap();
        let text = json!([job["connection"], job["queue"], kept, exception]).to_string();
        texts.push(names.hidden(&text));
    }
    texts
}

static IDS: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap()
});
static RANDOM: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r#"("uniqueLockOwner":"|"delay":\{"\$class":"[^"]*Carbon","\$date":")[^"]*"#)
        .unwrap()
});

/// Ids, which differ each time.
#[derive(Default)]
struct Names(HashMap<String, usize>);

impl Names {
    /// A text in which each id is its number in the order of their appearance, without what is random or a time.
    fn hidden(&mut self, text: &str) -> String {
        let named = IDS.replace_all(text, |found: &regex::Captures<'_>| {
            let next = self.0.len();
            format!("#{}", self.0.entry(found[0].to_owned()).or_insert(next))
        });
        RANDOM.replace_all(&named, "$1").into_owned()
    }
}

fn what_is_left_is_what_queue_work_leaves(version: u8) {
    // SQLite has one writer at a time, and failed jobs are recorded while the next job runs.
    let databases = Databases::shared();
    let play = |by: By| {
        let name = if by == By::Php { "by_php" } else { "by_pool" };
        let scene = Kinds::new(version, databases.create(Kind::MariaDb, name));
        scene.queue_jobs();
        scene.drain(by);
        scene.left()
    };
    let (php, pool) = std::thread::scope(|scope| {
        let php = scope.spawn(|| play(By::Php));
        let pool = scope.spawn(|| play(By::Pool));
        (php.join().unwrap(), pool.join().unwrap())
    });
    assert!(php.seen.len() > 60 && php.failed.len() > 5, "{php:#?}");
    for what in ["MessageSent", "InvoicePaid", "SeenBroadcaster", "Note"] {
        assert!(
            php.seen.iter().any(|line| line.contains(what)),
            "{what}: {php:#?}"
        );
    }
    assert!(php.events.len() > 200, "{:#?}", php.events);
    pool.is_like(&php, &format!("Laravel {version}"));
}

on_every_laravel!(what_is_left_is_what_queue_work_leaves);
