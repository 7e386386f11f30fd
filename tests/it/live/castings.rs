//! The ends of jobs: PHP alone, Rust alone, the pool, and mixtures of them produce the same final state.
//!
//! A scenario (`interop:scenario`) queues jobs of chains and batches, and unique
//! ones. PHP's workers by themselves are the reference: after each job the
//! queues, and at the end the locks, the batch, the failed jobs, the journal
//! and the callbacks must be those of PHP, whichever side ran which job.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use artisand::payload::{Command, Encrypter, Payload};
use artisand::php;
use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::{RedisServer, is_memory};
use crate::harness::scene::{Scene, in_scene};
use crate::harness::stores::{Databases, Kind};

const SOON: Duration = Duration::from_secs(60);
/// The queues of the scenarios, in the order in which they are worked.
const QUEUES: [&str; 4] = ["a", "b", "c", "default"];
/// More jobs than any scenario has.
const MOST_STEPS: usize = 60;

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

/// Who runs a job.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Php,
    Rust,
    /// Nothing is mapped: PHP processes of artisand's worker run everything.
    Pool,
    /// Some classes are mapped; the rest is for PHP processes of the same worker.
    Half,
}

/// Classes that are mapped where others are for PHP.
const HALF: &str = r#"
[[map]]
job = 'App\Jobs\Journal'
handler = "journal"

[[map]]
job = 'App\Jobs\UniqueJournal'
handler = "journal"

[[map]]
job = 'App\Jobs\EncryptedBatchJournal'
handler = "journal"
"#;

/// Which side runs the first job, the second, and so on. Closures always run in PHP.
const CASTINGS: [(&str, [By; 2]); 5] = [
    ("rust", [By::Rust, By::Rust]),
    ("rust-php", [By::Rust, By::Php]),
    ("php-rust", [By::Php, By::Rust]),
    ("pool", [By::Pool, By::Pool]),
    ("half", [By::Half, By::Half]),
];

/// A scenario, and whether each of its jobs follows the one before, without a closure of artisand in between.
#[derive(Clone, Copy)]
struct Scenario {
    name: &'static str,
    is_direct: bool,
    /// Whether its handlers fail without the manifest's classes.
    needs_classes: bool,
}

impl Scenario {
    fn is_for(&self, casting: &str) -> bool {
        !self.needs_classes || casting != WITHOUT_CLASSES
    }

    fn has_locks(&self) -> bool {
        ["uni", "until", "taken"]
            .iter()
            .any(|part| self.name.contains(part))
    }
}

const fn direct(name: &'static str) -> Scenario {
    Scenario {
        name,
        is_direct: true,
        needs_classes: false,
    }
}

const fn through_php(name: &'static str) -> Scenario {
    Scenario {
        name,
        is_direct: false,
        needs_classes: false,
    }
}

const fn with_classes(scenario: Scenario) -> Scenario {
    Scenario {
        needs_classes: true,
        ..scenario
    }
}

/// A casting in which PHP takes every step.
const WITHOUT_CLASSES: &str = "rust without classes";

const SCENARIOS: [Scenario; 22] = [
    direct("chain"),
    direct("chain-retried"),
    through_php("chain-fails"),
    through_php("chain-throws"),
    through_php("chain-with-closure"),
    through_php("chain-with-batch"),
    direct("chain-with-unique"),
    direct("chain-with-taken"),
    through_php("chain-of-encrypted"),
    direct("unique"),
    direct("unique-retried"),
    direct("unique-deleted"),
    direct("until-processing"),
    through_php("batch"),
    through_php("batch-fails"),
    through_php("batch-allowed"),
    through_php("batch-failing-last"),
    through_php("batch-progress"),
    direct("batch-silent"),
    through_php("batch-of-chains"),
    with_classes(through_php("batch-growing")),
    // One of its jobs is delayed, so its place among the others is random.
    with_classes(through_php("batch-growing-silently")),
];

/// The state after a scenario, normalized so that equal runs compare equal.
#[derive(Debug, PartialEq)]
struct Left {
    /// The queues after each job that was run.
    trace: Vec<Value>,
    /// All keys at the end, with the comparable parts of their values.
    keys: BTreeMap<String, Value>,
    journal: Vec<Value>,
    notes: Vec<Value>,
    batches: Vec<Value>,
    failed: Vec<Value>,
    /// What the workers printed, for messages.
    printed: String,
}

/// A queue at one moment.
#[derive(Default)]
struct Queue {
    pending: Vec<Vec<u8>>,
    /// With the second at which each is due.
    delayed: Vec<(Vec<u8>, f64)>,
    notify: usize,
}

/// All queues at one moment.
struct Queues {
    /// In the order of [`QUEUES`].
    list: [Queue; QUEUES.len()],
    /// In a table: what tells a job from the same one that was released.
    rows: Vec<String>,
    /// Follow-ups of ended jobs.
    left_to_do: usize,
}

impl Queues {
    /// All elements.
    fn elements(&self) -> Vec<&[u8]> {
        let mut all = Vec::new();
        for queue in &self.list {
            all.extend(queue.pending.iter().map(Vec::as_slice));
            all.extend(queue.delayed.iter().map(|(element, _)| &**element));
        }
        all.extend(self.rows.iter().map(String::as_bytes));
        all
    }

    /// Waits until a job may run; false if there is none.
    fn wait(&self) -> bool {
        if self.list.iter().any(|queue| !queue.pending.is_empty()) {
            return true;
        }
        let delayed = self.list.iter().flat_map(|queue| &queue.delayed);
        let Some(due) = delayed.map(|(_, due)| *due).reduce(f64::min) else {
            return false;
        };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let left = Duration::from_secs_f64(due).saturating_sub(now);
        assert!(left < SOON, "a job is due only in {left:?}");
        // Time is the subject: both kinds of workers look at the clock.
        std::thread::sleep(left + Duration::from_millis(5));
        true
    }
}

/// An app and its workers.
struct Stage {
    scene: Scene,
    /// Where the queues and the locks are, if in a database; the app writes its journal to Redis all the same.
    database: Option<Kind>,
    _servers: Arc<Databases>,
    /// Workers with PHP processes: nothing mapped, and half of it.
    pools: [Workplace; 2],
    encrypter: Encrypter,
    printed: Mutex<String>,
}

in_scene!(Stage);

impl Stage {
    /// Its workers know the app's classes, if they are to.
    fn new(version: u8, database: Option<Kind>, know_classes: bool) -> Self {
        let servers = Databases::shared();
        let mut env = vec![("QUEUE_FAILED_DRIVER", "database-uuids".to_owned())];
        if let Some(kind) = database {
            env.extend(servers.create(kind, "castings"));
            env.extend(["QUEUE_CONNECTION", "CACHE_STORE"].map(|name| (name, "database".into())));
        }
        let known = |laravel: &Laravel| {
            if know_classes {
                laravel.manifest_with_classes()
            } else {
                laravel.manifest()
            }
        };
        let scene = Scene::on(RedisServer::start(), version, &env, |laravel| {
            Workplace::with_manifest(laravel, &known(laravel), MAPPINGS)
        });
        let laravel = &scene.laravel;
        let pool = |rest| {
            // What PHP is told of failures would stand in the queues for a moment.
            let workplace = Workplace::with_manifest_and_pool(laravel, &known(laravel), 1, rest);
            workplace.php("events = \"none\"")
        };
        let pools = ["", HALF].map(pool);
        let encrypter = laravel.settings().encrypter().unwrap();
        Self {
            database,
            _servers: servers,
            pools,
            encrypter,
            scene,
            printed: Mutex::default(),
        }
    }

    /// Runs the next job; says whether there was one, and what the queues are then.
    fn run_one(&self, by: By, before: &Queues) -> (bool, Queues) {
        self.run(by, "--once", before)
    }

    /// Runs jobs, until the worker ends by itself; says whether there were any, and what the queues are then.
    fn run(&self, by: By, until: &str, before: &Queues) -> (bool, Queues) {
        let queues = format!("--queue={}", QUEUES.join(","));
        let connection = self.connection();
        let args = [until, "--sleep=0", "--tries=1", &queues];
        let [pool, half] = &self.pools;
        let output = match by {
            By::Php => self
                .php()
                .text(&[&["queue:work", connection][..], &args].concat()),
            By::Rust => self.work(&self.workplace, &args),
            By::Pool => self.work(pool, &args),
            By::Half => self.work(half, &args),
        };
        let after = self.queues();
        *self.printed.lock().unwrap() += &output;
        assert!(after.left_to_do == 0, "something was left to do: {output}");
        (before.elements() != after.elements(), after)
    }

    fn connection(&self) -> &'static str {
        self.database.map_or("redis", |_| "database")
    }

    /// The queues as they are now.
    fn queues(&self) -> Queues {
        if self.database.is_none() {
            return Queues {
                list: QUEUES.map(|queue| {
                    let key = |part| self.queue(&format!("{queue}{part}"));
                    Queue {
                        pending: self.redis.list(&key("")),
                        delayed: self.redis.scores(&key(":delayed")),
                        notify: self.redis.length(&key(":notify")),
                    }
                }),
                rows: Vec::new(),
                left_to_do: self.redis.length(&self.laravel.key("artisand:follow-ups")),
            };
        }
        let table = self.php().run(&["interop:jobs"]);
        let mut queues = Queues {
            list: Default::default(),
            rows: Vec::new(),
            left_to_do: 0,
        };
        for row in table["jobs"].as_array().unwrap() {
            // A released job has the same payload.
            queues.rows.push(row["id"].to_string());
            let name = row["queue"].as_str().unwrap();
            queues.left_to_do += usize::from(name == "artisand:follow-ups");
            let Some(at) = QUEUES.iter().position(|queue| *queue == name) else {
                continue;
            };
            if !row["reserved_at"].is_null() {
                continue;
            }
            let payload = row["payload"].as_str().unwrap().as_bytes().to_vec();
            let due = row["available_at"].as_f64().unwrap();
            // However long ago it became due: what is compared must not depend on the moment.
            // The clock is read for each of the two columns, first for this one: delays have more than a second.
            let is_delayed = due > row["created_at"].as_f64().unwrap();
            if !is_delayed && row["attempts"] == 0 {
                queues.list[at].pending.push(payload);
            } else {
                queues.list[at].delayed.push((payload, due));
            }
        }
        queues
    }

    fn work(&self, workplace: &Workplace, args: &[&str]) -> String {
        let args = [&["queue:work", self.connection()][..], args].concat();
        let mut worker = workplace.worker_of(&args);
        worker.succeeds_within(SOON);
        worker.describe()
    }

    fn play(&self, scenario: &Scenario, turns: [By; 2]) -> Left {
        // A process for each job only where the queues are compared after each, or PHP and Rust take turns: on SQLite,
        // counts of both at the same time fail, as those of two workers in PHP do.
        let until = match turns {
            [By::Pool, _] => "--stop-when-empty",
            [By::Rust, By::Rust] if !scenario.is_direct => "--stop-when-empty",
            _ => "--once",
        };
        let scenario = scenario.name;
        self.redis.query::<()>(&[b"FLUSHALL"]);
        if self.database.is_some() {
            self.php().run(&["interop:jobs", "--clear"]);
        }
        self.php().text(&["queue:flush"]);
        self.php()
            .text(&["queue:prune-batches", "--hours=-1", "--unfinished=-1"]);
        self.php().text(&["interop:scenario", scenario]);
        let mut trace = Vec::new();
        let mut queues = self.queues();
        for step in 0.. {
            assert!(
                step < MOST_STEPS,
                "{scenario} {turns:?}: no end; {}",
                self.redis.state()
            );
            if !queues.wait() {
                break;
            }
            let by = turns[step % 2];
            let (mut has_run, mut after) = self.run(by, until, &queues);
            if !has_run && by == By::Rust {
                // Jobs without a handler in Rust run in PHP.
                (has_run, after) = self.run_one(By::Php, &after);
            }
            assert!(
                has_run,
                "{scenario} {turns:?}: no worker runs what is there"
            );
            queues = after;
            trace.push(self.picture(&queues));
        }
        self.left(trace)
    }

    /// The queues, normalized so that equal contents compare equal.
    fn picture(&self, queues: &Queues) -> Value {
        let mut picture = json!({});
        for (name, queue) in QUEUES.iter().zip(&queues.list) {
            let pending: Vec<Value> = queue.pending.iter().map(|job| self.payload(job)).collect();
            let delayed = queue.delayed.iter().map(|(job, _)| self.payload(job));
            let delayed: Vec<Value> = delayed.collect();
            if pending.is_empty() && delayed.is_empty() && queue.notify == 0 {
                continue;
            }
            picture[*name] =
                json!({"pending": pending, "delayed": delayed, "notify": queue.notify});
        }
        picture
    }

    /// A payload without the parts that differ from run to run.
    fn payload(&self, element: &[u8]) -> Value {
        let mut json: Value = serde_json::from_slice(element).unwrap();
        for field in ["uuid", "id", "createdAt"] {
            if let Some(value) = json.get_mut(field) {
                *value = "...".into();
            }
        }
        let mut payload = Payload::parse(element).unwrap();
        json["encrypted"] = payload.is_encrypted().into();
        payload.decrypt(&self.encrypter).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        let mut value = command.to_value().unwrap();
        if let php::Value::Object(object) = &mut value {
            for property in [
                "chainCatchCallbacks",
                "closure",
                "uniqueLockOwner",
                "batchId",
            ] {
                let is_set = object.get(property).is_some_and(|value| !value.is_null());
                if is_set {
                    object.set(property, "...");
                }
            }
            if let Some(chained) = object.get("chained").and_then(php::Value::as_array) {
                // Of closures only their presence.
                let texts = chained.values().map(|value| {
                    let text = String::from_utf8_lossy(value.as_bytes().unwrap()).into_owned();
                    if text.contains("SerializableClosure") {
                        text.split(':').nth(2).unwrap().to_owned()
                    } else {
                        text
                    }
                });
                let texts: php::Array = texts.map(php::Value::from).collect();
                object.set("chained", texts);
            }
        }
        json["data"]["command"] = serde_json::from_str(&value.to_json()).unwrap();
        if json["data"]["batchId"].is_string() {
            json["data"]["batchId"] = "...".into();
        }
        // Redis' own JSON encoder, which PHP's retries use, has no empty list.
        let data = json.pointer_mut("/illuminate:log:context/data");
        if let Some(data) = data.filter(|data| **data == json!({})) {
            *data = json!([]);
        }
        let owner =
            json.pointer_mut("/illuminate:log:context/hidden/laravel_unique_job_lock_owner");
        if let Some(owner) = owner {
            *owner = "...".into();
        }
        json
    }

    fn left(&self, trace: Vec<Value>) -> Left {
        let mut keys = BTreeMap::new();
        let names: Vec<String> = self.redis.query(&[b"KEYS", b"*"]);
        for name in names {
            // The key that prevents a repeated push expires.
            if name.starts_with("interop:") || name.contains("artisand:pushed:") {
                continue;
            }
            if is_memory(&name) {
                continue;
            }
            let kind: String = self.redis.query(&[b"TYPE", name.as_bytes()]);
            let size = match &*kind {
                "list" => self.redis.length(&name).into(),
                "string" => self
                    .redis
                    .query::<i64>(&[b"STRLEN", name.as_bytes()])
                    .into(),
                _ => Value::Null,
            };
            keys.insert(name, json!([kind, size]));
        }
        if self.database.is_some() {
            let state = self.php().run(&["interop:jobs"]);
            keys.insert("locks".into(), state["locks"].clone());
            let is_memory = |queue: &Value| {
                let queue = queue.as_str().unwrap();
                queue.starts_with("artisand:pushed:") || queue.starts_with("artisand:guard:")
            };
            let rows = state["jobs"].as_array().unwrap().iter();
            let queues = rows.map(|row| row["queue"].clone());
            let queues: Vec<Value> = queues.filter(|queue| !is_memory(queue)).collect();
            keys.insert("rows".into(), queues.into());
        }
        let lines = |key: &str, hidden: &[&str]| -> Vec<Value> {
            let read = |line: &Vec<u8>| {
                let mut line: Value = serde_json::from_slice(line).unwrap();
                for field in hidden {
                    line.as_object_mut().unwrap().remove(*field);
                }
                line
            };
            self.redis.list(key).iter().map(read).collect()
        };
        let journal = lines(
            "interop:journal",
            &["by", "pid", "at", "exception", "attempts", "uuid"],
        );
        let notes = lines("interop:batch", &["id", "exception"]);
        let state = self.php().run(&["interop:tables"]);
        let list = |value: &Value| value.as_array().unwrap().clone();
        Left {
            trace,
            keys,
            journal,
            notes,
            batches: list(&state["batches"]),
            failed: list(&state["failed"]),
            printed: std::mem::take(&mut *self.printed.lock().unwrap()),
        }
    }
}

/// The content of a callback; callbacks before the end see the batch's current progress.
fn without_progress(note: &Value) -> Value {
    let mut note = note.clone();
    if matches!(note["callback"].as_str(), Some("catch" | "progress")) {
        note["pending"].take();
        note["failed"].take();
    }
    note
}

fn sorted(lines: &[Value]) -> Value {
    let mut lines = lines.to_vec();
    lines.sort_by_key(Value::to_string);
    lines.into()
}

fn every_casting_leaves_what_php_leaves(version: u8) {
    cast(version, None);
}

/// Each Laravel on another kind of database.
fn in_a_database_every_casting_leaves_what_php_leaves(version: u8) {
    let kind = match version {
        8 => Kind::Sqlite,
        10 => Kind::MariaDb,
        _ => Kind::Postgres,
    };
    cast(version, Some(kind));
}

fn cast(version: u8, database: Option<Kind>) {
    let play = |(name, turns): (&'static str, [By; 2])| {
        let know_classes = !matches!(name, "php" | WITHOUT_CLASSES);
        let stage = Stage::new(version, database, know_classes);
        let play = |scenario: &Scenario| (scenario.name, stage.play(scenario, turns));
        let scenarios = SCENARIOS.iter().filter(|scenario| scenario.is_for(name));
        let left: BTreeMap<_, _> = scenarios.map(play).collect();
        (name, left)
    };
    let all = [("php", [By::Php, By::Php])].into_iter().chain(CASTINGS);
    let all = all.chain([(WITHOUT_CLASSES, [By::Rust, By::Rust])]);
    // In a database, one casting of each kind is enough: one side alone, both in turn, both in one worker.
    let is_needed =
        |name: &str| database.is_none() || ["php", "rust", "php-rust", "half"].contains(&name);
    let all: Vec<_> = all.filter(|(name, _)| is_needed(name)).collect();
    // A few at a time: each of them has processes of artisand and of PHP.
    let mut played = Vec::new();
    for some in all.chunks(3) {
        std::thread::scope(|scope| {
            let playing: Vec<_> = some
                .iter()
                .map(|casting| scope.spawn(|| play(*casting)))
                .collect();
            played.extend(playing.into_iter().map(|casting| casting.join().unwrap()));
        });
    }
    let (_, reference) = played.remove(0);
    for (name, left) in played {
        for scenario in SCENARIOS.iter().filter(|scenario| scenario.is_for(name)) {
            let (expected, found) = (&reference[scenario.name], &left[scenario.name]);
            let place = format!("Laravel {version}, {} by {name}", scenario.name);
            let with = |left: &Left, what: fn(&Left) -> Value| {
                serde_json::to_string_pretty(&what(left)).unwrap()
            };
            let same = |what: fn(&Left) -> Value| {
                let state = || format!("{:?} {:?} {}", found.batches, found.failed, found.printed);
                assert_eq!(
                    with(expected, what),
                    with(found, what),
                    "{place}: {}",
                    state()
                );
            };
            if scenario.is_direct {
                same(|left| left.journal.clone().into());
            } else {
                // Work for PHP happens when PHP's worker runs.
                same(|left| sorted(&left.journal));
            }
            if scenario.is_direct {
                same(|left| left.notes.clone().into());
            } else {
                same(|left| sorted(&left.notes.iter().map(without_progress).collect::<Vec<_>>()));
            }
            same(|left| left.batches.clone().into());
            same(|left| left.failed.clone().into());
            // Before Laravel 13.24 only the manifest says of each job whether it is unique.
            let is_known = name != WITHOUT_CLASSES || version == 13;
            if is_known || !scenario.has_locks() {
                same(|left| json!(left.keys));
            }
            // Only castings that run one job at a time can be checked in between.
            if scenario.is_direct && !matches!(name, WITHOUT_CLASSES | "pool") {
                same(|left| left.trace.clone().into());
            }
        }
    }
}

on_every_laravel!(every_casting_leaves_what_php_leaves);
on_every_laravel!(in_a_database_every_casting_leaves_what_php_leaves);

impl Stage {
    /// The jobs that the first job of a batch adds: queue and payload without ids and times, and their order by due
    /// time.
    fn added_by(&self, by: By, scenario: &str) -> Vec<(String, String)> {
        self.redis.query::<()>(&[b"FLUSHALL"]);
        self.php().text(&["interop:scenario", scenario]);
        let (has_run, _) = self.run_one(by, &self.queues());
        assert!(has_run, "{scenario} {by:?}");
        let mut all = Vec::new();
        for queue in QUEUES {
            for job in self.redis.list(&self.queue(queue)) {
                all.push((queue.to_owned(), self.text(&job)));
            }
            let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
            for (job, due) in self.redis.scores(&self.queue(&format!("{queue}:delayed"))) {
                let wait = due - now.as_secs_f64();
                assert!(
                    (-5.0..=2.0).contains(&wait),
                    "{scenario} {by:?}: due in {wait}"
                );
                all.push((format!("{queue}:delayed"), self.text(&job)));
            }
            let notify = self.redis.length(&self.queue(&format!("{queue}:notify")));
            all.push((format!("{queue}:notify"), notify.to_string()));
        }
        all
    }

    /// A payload's text, decrypted, without the parts that differ from run to run.
    fn text(&self, element: &[u8]) -> String {
        let mut text = String::from_utf8(element.to_vec()).unwrap();
        let mut payload = Payload::parse(element).unwrap();
        let json: Value = serde_json::from_slice(element).unwrap();
        let is_encrypted = payload.is_encrypted();
        payload.decrypt(&self.encrypter).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        let batch = command.batch_id().unwrap().unwrap();
        if is_encrypted {
            // Their text is base64, which JSON does not escape, but for the slash.
            let secret = json["data"]["command"].as_str().unwrap();
            let inner = String::from_utf8(command.as_bytes().to_vec()).unwrap();
            let escaped = secret.replace('/', "\\/");
            assert!(text.contains(secret) || text.contains(&escaped), "{text}");
            text = text.replace(secret, &inner).replace(&escaped, &inner);
        }
        for field in ["uuid", "id"] {
            text = text.replace(json[field].as_str().unwrap(), field);
        }
        if let Some(at) = json["createdAt"].as_i64() {
            text = text.replace(&at.to_string(), "createdAt");
        }
        text.replace(&batch, "batch")
    }
}

fn added_jobs_are_php_s_to_the_byte(version: u8) {
    let scene = Stage::new(version, None, true);
    for (scenario, count) in [
        ("batch-growing", 4),
        ("batch-growing-silently", 4),
        ("batch-growing-by-packages", 2),
    ] {
        let [php, rust] = [By::Php, By::Rust].map(|by| scene.added_by(by, scenario));
        let jobs = php.iter().filter(|(queue, _)| !queue.ends_with(":notify"));
        assert_eq!(jobs.count(), count, "Laravel {version}: {php:#?}");
        assert_eq!(php, rust, "Laravel {version}, {scenario}");
    }
}

on_every_laravel!(added_jobs_are_php_s_to_the_byte);
