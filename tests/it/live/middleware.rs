//! Middleware: PHP and Rust workers keep each other out and count together, under the same keys.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::is_memory;
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(60);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum By {
    Php,
    Rust,
}

/// The state after a step. Seconds are relative to now and compared with a tolerance.
#[derive(Debug, Default)]
struct Seen {
    /// The step's journal lines.
    events: Vec<String>,
    /// Keys of cache and limiters, by database and name.
    keys: BTreeMap<String, Key>,
    /// Waits of delayed jobs, and their attempts.
    delays: Vec<(f64, i64)>,
    /// Jobs in the list.
    waiting: usize,
}

#[derive(Debug)]
struct Key {
    fields: BTreeMap<String, Field>,
    ttl: f64,
}

#[derive(Debug)]
enum Field {
    Text(String),
    /// A point in time.
    Time(f64),
}

/// How far apart two runs may be in time, on a machine that has much to do.
const TOLERANCE: f64 = 60.0;

fn is_near(a: f64, b: f64) -> bool {
    (a - b).abs() <= TOLERANCE
}

impl Seen {
    fn is_like(&self, other: &Self) -> bool {
        let same_field = |a: &Field, b: &Field| match (a, b) {
            (Field::Text(a), Field::Text(b)) => a == b,
            (Field::Time(a), Field::Time(b)) => is_near(*a, *b),
            _ => false,
        };
        let same_key = |a: &Key, b: &Key| {
            is_near(a.ttl, b.ttl)
                && a.fields.len() == b.fields.len()
                && a.fields
                    .iter()
                    .zip(&b.fields)
                    .all(|(a, b)| a.0 == b.0 && same_field(a.1, b.1))
        };
        let same_delay = |a: &(f64, i64), b: &(f64, i64)| is_near(a.0, b.0) && a.1 == b.1;
        self.events == other.events
            && self.waiting == other.waiting
            && self.keys.len() == other.keys.len()
            && self
                .keys
                .iter()
                .zip(&other.keys)
                .all(|(a, b)| a.0 == b.0 && same_key(a.1, b.1))
            && self.delays.len() == other.delays.len()
            && self
                .delays
                .iter()
                .zip(&other.delays)
                .all(|(a, b)| same_delay(a, b))
    }
}

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs_f64()
}

/// The guards of `App\Jobs\Guarded` as the `middleware` of a mapping.
fn toml(value: &Value) -> String {
    match value {
        Value::Array(list) => {
            let list: Vec<String> = list.iter().map(toml).collect();
            format!("[{}]", list.join(", "))
        }
        Value::Object(table) => {
            let pairs: Vec<String> = table
                .iter()
                .map(|(key, value)| format!("{key} = {}", toml(value)))
                .collect();
            format!("{{ {} }}", pairs.join(", "))
        }
        value => value.to_string(),
    }
}

fn mappings(guards: &Value, handler: &str, debounce: Option<&str>) -> String {
    let mut text = String::new();
    for class in ["Guarded", "GuardedNamed", "Debounced", "Journal"] {
        let (middleware, debounce) = match class {
            "Journal" => (String::new(), None),
            "Debounced" => (String::new(), debounce),
            _ => (format!("middleware = {}\n", toml(guards)), None),
        };
        let debounce = debounce.map_or_else(String::new, |id| format!("debounce = {id:?}\n"));
        write!(
            text,
            "[[map]]\njob = 'App\\Jobs\\{class}'\nhandler = \"{handler}\"\n{middleware}{debounce}\n"
        )
        .unwrap();
    }
    text + r#"
[limiters]
interop = { limits = [{ max = 2, per = 600, by = "{group}" }] }
pair = { limits = [{ max = 5, per = 600, by = "{group}" }, { max = 1, per = 600, by = "all" }] }
alike = { limits = [{ max = 3, per = 600, by = "x" }, { max = 1, per = 1200, by = "x" }] }
"#
}

struct Guarded {
    scene: Scene,
}

in_scene!(Guarded);

impl Guarded {
    fn new(version: u8, env: &[(&str, &str)], rest: &str) -> Self {
        Self {
            scene: Scene::new(version, env, rest),
        }
    }

    fn queue(&self, id: &str, guards: &Value, options: &[&str]) -> String {
        let guards = format!("--guards={guards}");
        let args = [&["interop:journal", id, &*guards][..], options].concat();
        self.queue_with(&args)
    }

    fn queue_with(&self, args: &[&str]) -> String {
        let line = self.php().run(args);
        line["uuid"].as_str().unwrap().to_owned()
    }

    fn worker(&self, by: By, args: &[&str]) -> ManagedChild {
        match by {
            By::Php => self.laravel.worker(args),
            By::Rust => self.workplace.worker(args),
        }
    }

    fn once(&self, by: By) -> String {
        let args = ["--once", "--sleep=0", "--backoff=0", "--tries=0"];
        if by == By::Php {
            return self
                .php()
                .text(&[&["queue:work", "redis"][..], &args].concat());
        }
        let mut worker = self.workplace.worker(&args);
        worker.succeeds_within(SOON);
        worker.stderr()
    }

    fn journal(&self) -> Vec<String> {
        let lines = self.redis.list("interop:journal");
        let lines = lines
            .iter()
            .map(|line| serde_json::from_slice(line).unwrap());
        lines
            .map(|line: Value| {
                let text = |field: &str| line[field].as_str().unwrap().to_owned();
                format!("{} {} {}", text("id"), text("event"), line["attempts"])
            })
            .collect()
    }

    /// Waits until a job has begun.
    fn has_begun(&self, id: &str) {
        let line = format!("{id} run");
        let begun = || {
            self.journal()
                .iter()
                .any(|seen| seen.starts_with(&line))
                .then_some(())
        };
        self.redis.eventually(&line, SOON, begun);
    }

    fn keys(&self, uuids: &[String]) -> BTreeMap<String, Key> {
        let mut keys = BTreeMap::new();
        for database in ["0", "1"] {
            let mut connection = self.redis.connection();
            redis::cmd("SELECT")
                .arg(database)
                .exec(&mut connection)
                .unwrap();
            let names: Vec<String> = redis::cmd("KEYS").arg("*").query(&mut connection).unwrap();
            for name in names {
                if name.contains("queues:") || name.contains("interop:") || is_memory(&name) {
                    continue;
                }
                let kind: String = redis::cmd("TYPE")
                    .arg(&name)
                    .query(&mut connection)
                    .unwrap();
                let fields: Vec<(String, String)> = if kind == "hash" {
                    redis::cmd("HGETALL")
                        .arg(&name)
                        .query(&mut connection)
                        .unwrap()
                } else {
                    let value = redis::cmd("GET").arg(&name).query(&mut connection).unwrap();
                    vec![(String::new(), value)]
                };
                let ttl: i64 = redis::cmd("TTL").arg(&name).query(&mut connection).unwrap();
                let field = |(name, value): (String, String)| (name, Self::field(value));
                let key = Key {
                    fields: fields.into_iter().map(field).collect(),
                    ttl: f64::from(i32::try_from(ttl).unwrap()),
                };
                let name = uuids
                    .iter()
                    .fold(name, |name, uuid| name.replace(uuid, "UUID"));
                keys.insert(format!("{database} {name}"), key);
            }
        }
        keys
    }

    fn field(value: String) -> Field {
        match value.parse::<f64>() {
            Ok(time) if time > 1e9 => Field::Time(time - now()),
            _ if value.starts_with("s:40:") => Field::Text("an owner".into()),
            _ if value.len() == 16 => Field::Text("a holder".into()),
            _ => Field::Text(value),
        }
    }

    fn look(&self, from: usize, uuids: &[String]) -> Seen {
        let list = self.laravel.key("queues:default");
        let delayed = self.redis.scores(&format!("{list}:delayed"));
        let delay = |(payload, due): (Vec<u8>, f64)| {
            let payload: Value = serde_json::from_slice(&payload).unwrap();
            (due - now(), payload["attempts"].as_i64().unwrap())
        };
        Seen {
            events: self.journal().split_off(from),
            keys: self.keys(uuids),
            delays: delayed.into_iter().map(delay).collect(),
            waiting: self.redis.length(&list),
        }
    }
}

/// One scenario with some jobs, step by step.
struct Walk {
    name: &'static str,
    guards: Value,
    /// Id and options of each.
    jobs: &'static [(&'static str, &'static [&'static str])],
    steps: usize,
}

impl Walk {
    /// What is seen after each step, with what its worker said.
    fn run(&self, scene: &Guarded, turns: &[By]) -> Vec<(Seen, String)> {
        scene.redis.query::<()>(&[b"FLUSHALL"]);
        let queue = |(id, options): &(&str, &[&str])| scene.queue(id, &self.guards, options);
        let uuids: Vec<String> = self.jobs.iter().map(queue).collect();
        let turns = turns.iter().cycle().take(self.steps);
        turns
            .map(|by| {
                let from = scene.journal().len();
                let said = scene.once(*by);
                (scene.look(from, &uuids), said)
            })
            .collect()
    }

    /// In a scene that other walks may have been through, as each begins with an empty Redis.
    fn is_the_same_for_all(&self, scene: &mut Guarded) {
        let rest = mappings(&self.guards, "journal", None);
        scene.scene.workplace = Workplace::for_app(&scene.laravel, &rest);
        let reference = self.run(scene, &[By::Php]);
        for turns in [&[By::Rust][..], &[By::Php, By::Rust]] {
            let seen = self.run(scene, turns);
            for (step, ((seen, said), (reference, _))) in seen.iter().zip(&reference).enumerate() {
                assert!(
                    seen.is_like(reference),
                    "Laravel {} {} {turns:?} step {step}:\n{seen:#?}\nand all in PHP:\n{reference:#?}\n{said}",
                    scene.laravel.version,
                    self.name
                );
            }
        }
    }
}

const THREE: &[(&str, &[&str])] = &[
    ("a", &["--group=x"]),
    ("b", &["--group=x"]),
    ("c", &["--group=x"]),
];
const THROWING: &[(&str, &[&str])] = &[
    ("a", &["--script=throw,ok,throw"]),
    ("b", &["--script=throw,throw,throw"]),
    ("c", &["--named", "--script=throw"]),
];

fn walks() -> Vec<Walk> {
    let mut walks = Vec::new();
    let mut add = |name, guards, jobs, steps| {
        walks.push(Walk {
            name,
            guards,
            jobs,
            steps,
        });
    };
    for name in ["rate_limited", "rate_limited_with_redis"] {
        add(name, json!([{name: {"limiter": "interop"}}]), THREE, 3);
        add(
            "two limits, the second blocks",
            json!([{name: {"limiter": "pair"}}]),
            THREE,
            3,
        );
        add(
            "limits counted by the same",
            json!([{name: {"limiter": "alike"}}]),
            THREE,
            3,
        );
        add(
            "limited and dropped",
            json!([{name: {"limiter": "interop", "dont_release": true}}]),
            THREE,
            3,
        );
    }
    for name in ["throttles_exceptions", "throttles_exceptions_with_redis"] {
        add(name, json!([{name: {"max": 2, "decay": 600}}]), THROWING, 5);
        add(
            "throttled by a key, with a wait",
            json!([{name: {"max": 1, "decay": 600, "by": "k\u{e9}y&", "backoff": 300}}]),
            THROWING,
            3,
        );
        add(
            "throttled by job",
            json!([{name: {"max": 1, "decay": 600, "by_job": true, "prefix": "mine:"}}]),
            &[("a", &["--script=throw,ok"])],
            2,
        );
    }
    add(
        "not overlapping",
        json!([{"without_overlapping": {"key": "{group}", "expires_after": 600}}]),
        &[
            ("a", &["--group=x", "--script=throw,ok"]),
            ("b", &["--group=x"]),
        ],
        3,
    );
    walks
}

/// Counters, timers, delays and attempts after every step, however the sides share the steps.
fn keys_and_delays_are_those_of_php(version: u8) {
    let mut scene = Guarded::new(version, &[], "");
    for walk in walks() {
        walk.is_the_same_for_all(&mut scene);
    }
}

on_every_laravel!(keys_and_delays_are_those_of_php);

/// Middleware in a job's bytes works as in PHP, without an entry in a mapping.
fn middleware_of_the_job_itself_works(version: u8) {
    #[rustfmt::skip]
    let mut walks = vec![
        ("limited", json!([{"rate_limited": {"limiter": "alike"}}]), 3),
        ("limited in Redis", json!([{"rate_limited_with_redis": {"limiter": "alike"}}]), 3),
        ("throttled", json!([{"throttles_exceptions": {"max": 1, "decay": 600, "by": "k", "backoff": 300}}]), 3),
        ("throttled in Redis", json!([{"throttles_exceptions_with_redis": {"max": 1, "decay": 600, "by_job": true}}]), 3),
        ("not overlapping", json!([{"without_overlapping": {"key": "k", "expires_after": 600}}]), 2),
    ];
    if version >= 13 {
        walks.push(("skipped", json!([{"skip": {"when": true}}]), 2));
        walks.push((
            "released",
            json!([{"release": {"when": true, "after": 300}}]),
            2,
        ));
        walks.push((
            "neither",
            json!([{"skip": {"when": false}}, {"release": {"when": false, "after": 9}}]),
            2,
        ));
    }
    let scene = Guarded::new(version, &[], &mappings(&json!([]), "journal", None));
    for (name, through, steps) in walks {
        let run = |turns: &[By]| {
            scene.redis.query::<()>(&[b"FLUSHALL"]);
            let through = format!("--through={through}");
            let queue =
                |id| scene.queue_with(&["interop:journal", id, "--script=throw,ok", &through]);
            let uuids = ["a", "b", "c"].map(queue);
            let turns = turns.iter().cycle().take(steps);
            let step = |by: &By| {
                let from = scene.journal().len();
                scene.once(*by);
                scene.look(from, &uuids)
            };
            turns.map(step).collect::<Vec<Seen>>()
        };
        let reference = run(&[By::Php]);
        for turns in [&[By::Rust][..], &[By::Php, By::Rust]] {
            let seen = run(turns);
            let is_like = seen.iter().zip(&reference).all(|(a, b)| a.is_like(b));
            assert!(
                is_like,
                "Laravel {version} {name} {turns:?}:\n{seen:#?}\nand all in PHP:\n{reference:#?}"
            );
        }
    }

    // Jobs that only PHP can run stay for PHP, and the log says so.
    scene.redis.query::<()>(&[b"FLUSHALL"]);
    let php_only = format!("--through={}", json!([{"php_only": {}}]));
    scene.queue_with(&["interop:journal", "p", &php_only]);
    let told = scene.once(By::Rust);
    assert!(
        told.contains("App\\\\Jobs\\\\PhpOnly") || told.contains("App\\Jobs\\PhpOnly"),
        "{told}"
    );
    assert_eq!(scene.journal(), [""; 0]);
    scene.once(By::Php);
    assert_eq!(scene.journal(), ["p run 1"]);
}

on_every_laravel!(middleware_of_the_job_itself_works);

/// One side runs a job, the other one wants the same lock.
fn overlapping_jobs_keep_each_other_out(version: u8) {
    // From 9.32 on a key can be shared.
    let shared = version > 8;
    #[rustfmt::skip]
    let mut cases = vec![
        ("released", json!({"key": "{group}", "release_after": 300, "expires_after": 600}), true),
        ("dropped", json!({"key": "{group}", "dont_release": true}), true),
        ("of another key", json!({"key": "{group}", "release_after": 300}), false),
        ("with a prefix", json!({"key": "k", "prefix": "mine:", "release_after": 300}), true),
    ];
    if shared {
        cases.push((
            "of another class",
            json!({"key": "k", "shared": true, "release_after": 300}),
            true,
        ));
    }
    for (name, guard, is_kept_out) in cases {
        let guards = json!([{"without_overlapping": guard}]);
        let scene = Guarded::new(version, &[], &mappings(&guards, "journal", None));
        let run = |holder: By, other: By| {
            scene.redis.query::<()>(&[b"FLUSHALL"]);
            let other_group = if is_kept_out {
                "--group=x"
            } else {
                "--group=y"
            };
            let uuids = [scene.queue("a", &guards, &["--group=x", "--script=sleep:20"])];
            let args = ["--once", "--sleep=0", "--tries=0", "--timeout=60"];
            let mut running = scene.worker(holder, &args);
            scene.has_begun("a");
            let named: &[&str] = if name == "of another class" {
                &["--named"]
            } else {
                &[]
            };
            scene.queue("b", &guards, &[&[other_group][..], named].concat());
            scene.once(other);
            let during = scene.look(0, &uuids);
            // Not waited for: twenty seconds are for slow machines.
            running.signal(Signal::KILL);
            during
        };
        let reference = run(By::Php, By::Php);
        let has_run = reference.events.iter().any(|event| event == "b run 1");
        assert_eq!(has_run, !is_kept_out, "{name}: {reference:#?}");
        for (holder, other) in [
            (By::Rust, By::Rust),
            (By::Php, By::Rust),
            (By::Rust, By::Php),
        ] {
            let seen = run(holder, other);
            assert!(
                seen.is_like(&reference),
                "Laravel {version} {name} {holder:?} {other:?}:\n{seen:#?}\nand all in PHP:\n{reference:#?}"
            );
        }
    }
}

on_every_laravel!(overlapping_jobs_keep_each_other_out);

/// A lock with an end lives as long as its handler, and no longer.
fn a_lock_is_renewed_while_its_handler_runs(version: u8) {
    let guards =
        json!([{"without_overlapping": {"key": "k", "expires_after": 6, "dont_release": true}}]);
    let scene = Guarded::new(version, &[], &mappings(&guards, "journal", None));
    scene.queue("a", &guards, &["--script=sleep:20"]);
    let mut running = scene.worker(By::Rust, &["--once", "--sleep=0"]);
    scene.has_begun("a");
    // It is renewed after each third of its time: after four of them it would not live any more by itself.
    let (mut lives, mut renewals) = (f64::INFINITY, 0);
    eventually("four renewals", SOON, || {
        let keys = scene.keys(&[]);
        let mut locks = keys.iter().filter(|(name, _)| name.contains("overlap"));
        let left = locks.next().map_or(0.0, |(_, lock)| lock.ttl);
        renewals += u32::from(left > lives);
        lives = left;
        (renewals >= 4).then_some(())
    });
    scene.queue("b", &guards, &[]);
    scene.once(By::Php);
    assert_eq!(scene.journal(), ["a run 1"], "{}", running.describe());
    running.succeeds_within(SOON);
    assert!(scene.keys(&[]).is_empty(), "{:?}", scene.keys(&[]));
    scene.queue("c", &guards, &[]);
    scene.once(By::Php);
    assert_eq!(scene.journal(), ["a run 1", "c run 1"]);
}

on_every_laravel!(a_lock_is_renewed_while_its_handler_runs);

/// However a job ends, its lock is free afterwards and the next job runs.
fn no_lock_stays_behind(version: u8) {
    let guards = json!([{"without_overlapping": {"key": "k", "release_after": 300}}]);
    #[rustfmt::skip]
    let cases: [(&str, &str, &str, &[&str]); 6] = [
        ("error", "journal", "throw", &["--tries=1"]),
        ("panic", "journal", "panic", &["--tries=1"]),
        ("timeout", "journal", "sleep:60", &["--timeout=4", "--tries=1"]),
        ("blocking error", "journal_blocking", "throw", &["--tries=1"]),
        ("blocking timeout", "journal_blocking", "sleep:60", &["--timeout=4", "--tries=1"]),
        ("stop", "journal", "sleep:60", &["--grace=0", "--tries=0"]),
    ];
    let stop = (
        "blocking stop",
        "journal_blocking",
        "sleep:60",
        &["--grace=0", "--tries=0"][..],
    );
    for (name, handler, script, args) in cases.into_iter().chain([stop]) {
        let scene = Guarded::new(version, &[], &mappings(&guards, handler, None));
        scene.queue("a", &guards, &[&*format!("--script={script}")]);
        let mut worker = scene.worker(
            By::Rust,
            &[&["--max-jobs=1", "--sleep=0"][..], args].concat(),
        );
        scene.has_begun("a");
        if name.ends_with("stop") {
            worker.signal(Signal::TERM);
        }
        worker.wait_timeout(SOON);
        let keys = scene.keys(&[]);
        assert!(
            keys.is_empty(),
            "Laravel {version} {name}: {keys:?}\n{}",
            worker.describe()
        );
        scene.redis.query::<()>(&[
            b"DEL",
            scene.laravel.key("queues:default:delayed").as_bytes(),
        ]);
        scene
            .redis
            .query::<()>(&[b"DEL", scene.laravel.key("queues:default").as_bytes()]);
        scene.queue("b", &guards, &[]);
        scene.once(By::Php);
        assert!(
            scene.journal().contains(&"b run 1".to_owned()),
            "Laravel {version} {name}: {:?}",
            scene.journal()
        );
    }
}

on_every_laravel!(no_lock_stays_behind);

/// Stores without comparable keys: both sides share locks and counts.
fn other_stores_are_shared_too(version: u8) {
    for store in ["database", "file"] {
        let env = [("CACHE_STORE", store)];
        let guards = json!([{"without_overlapping": {"key": "{group}", "release_after": 300}}]);
        let scene = Guarded::new(version, &env, &mappings(&guards, "journal", None));
        for (holder, other) in [(By::Php, By::Rust), (By::Rust, By::Php)] {
            scene.redis.query::<()>(&[b"FLUSHALL"]);
            let group = format!("--group={holder:?}");
            scene.queue("a", &guards, &["--script=await:end", &group]);
            let mut running = scene.worker(holder, &["--once", "--sleep=0", "--timeout=60"]);
            scene.has_begun("a");
            scene.queue("b", &guards, &[&*group]);
            scene.once(other);
            let during = scene.look(0, &[]);
            assert_eq!(
                during.events,
                ["a run 1"],
                "Laravel {version} {store} {holder:?}"
            );
            assert_eq!(during.delays.len(), 1, "{during:?}");
            scene.redis.query::<()>(&[b"SET", b"interop:end", b"now"]);
            running.succeeds_within(SOON);
            scene.queue("c", &guards, &[&*group]);
            scene.once(other);
            assert!(scene.journal().contains(&"c run 1".to_owned()), "{store}");
        }
        let limited = Walk {
            name: "rate_limited",
            guards: json!([{"rate_limited": {"limiter": "interop"}}]),
            jobs: THREE,
            steps: 3,
        };
        let throttled = Walk {
            name: "throttles_exceptions",
            guards: json!([{"throttles_exceptions": {"max": 2, "decay": 600}}]),
            jobs: THROWING,
            steps: 5,
        };
        for walk in [limited, throttled] {
            let run = |turns: &[By]| {
                // A separate store for each: nothing empties it in between.
                let scene = Guarded::new(version, &env, &mappings(&walk.guards, "journal", None));
                walk.run(&scene, turns)
            };
            let reference = run(&[By::Php]);
            for turns in [&[By::Rust][..], &[By::Php, By::Rust]] {
                let seen = run(turns);
                assert!(
                    seen.iter()
                        .zip(&reference)
                        .all(|((a, _), (b, _))| a.is_like(b)),
                    "Laravel {version} {store} {} {turns:?}:\n{seen:#?}\nand all in PHP:\n{reference:#?}",
                    walk.name
                );
            }
        }
    }
}

on_every_laravel!(other_stores_are_shared_too);

/// Of debounced jobs the last one runs; the others are deleted without any effect.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn debounced_jobs_run_once() {
    let run = |turns: &[By], mapping: Option<&str>| {
        let scene = Guarded::new(13, &[], &mappings(&json!([]), "journal", mapping));
        let options = ["--debounced", "--group=g"];
        let uuids = ["a", "b", "c"].map(|id| {
            // Time is the subject: jobs due in the same second come in the order of their bytes.
            std::thread::sleep(Duration::from_millis(1100));
            scene.queue(id, &json!([]), &options)
        });
        let list = scene.laravel.key("queues:default:delayed");
        // All three are due after a second.
        scene.redis.eventually("the jobs are due", SOON, || {
            let is_due = |(_, due): &(Vec<u8>, f64)| *due <= now();
            scene.redis.scores(&list).iter().all(is_due).then_some(())
        });
        let turns = turns.iter().cycle().take(3);
        let step = |by: &By| {
            let from = scene.journal().len();
            scene.once(*by);
            scene.look(from, &uuids)
        };
        let seen: Vec<Seen> = turns.map(step).collect();
        (seen, scene)
    };
    let (reference, _) = run(&[By::Php], None);
    let events: Vec<&String> = reference.iter().flat_map(|seen| &seen.events).collect();
    assert_eq!(events, ["c run 1"]);
    for turns in [&[By::Rust][..], &[By::Php, By::Rust]] {
        let (seen, _) = run(turns, Some("{group}"));
        assert!(
            seen.iter().zip(&reference).all(|(a, b)| a.is_like(b)),
            "{turns:?}:\n{seen:#?}\nand all in PHP:\n{reference:#?}"
        );
    }
    // The middleware is unknown, so the job does not run as an ordinary one.
    let (seen, scene) = run(&[By::Rust], None);
    assert!(seen.iter().all(|seen| seen.events.is_empty()), "{seen:#?}");
    assert_eq!(scene.look(0, &[]).waiting, 3);
}
