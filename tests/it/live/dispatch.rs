//! Jobs that artisand dispatches: the bytes are PHP's, and PHP runs them.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use artisand::app::{Answers, Wrapping};
use artisand::dispatch::{Dispatch, DispatchError, Dispatched};
use artisand::handler::{ModelId, ModelIdentifier, ModelKey};
use artisand::payload::{Command, Kind, Payload};
use artisand::php::{ClassName, Key, Object, PropertyName, Value, Visibility};

use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use serde_json::json;

use crate::harness::fixtures;
use crate::harness::journal::Line;
use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, Workplace, kills};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(90);

/// The objects that PHP wrote, made anew from names and values: order, visibility and defaults are the manifest's.
fn objects_are_made_as_php_makes_them(version: u8) {
    let redis = RedisServer::start();
    let manifest = Laravel::new(version, &redis).exported();
    let mut made = Vec::new();
    for (place, line) in fixtures::lines(&format!("payloads/laravel-{version}.jsonl")) {
        let payload = Payload::parse(line["element"].as_str().unwrap().as_bytes()).unwrap();
        let Ok(Some(command)) = Command::of(&payload) else {
            continue;
        };
        let bytes = command.as_bytes();
        // What refers to the values before it cannot be put in another order.
        let refers = |what: &[u8]| {
            bytes
                .windows(3)
                .any(|part| part[0] == b';' && &part[1..] == what)
        };
        let class = command.class();
        if Kind::of_class(class) != Kind::Job || refers(b"r:") || refers(b"R:") {
            continue;
        }
        let Ok(Value::Object(object)) = Value::from_bytes(bytes) else {
            continue;
        };
        let Some(known) = manifest.class(class) else {
            continue;
        };
        let mut given = Object::new(object.class.clone());
        for (key, value) in object.properties.iter().rev() {
            let Key::String(key) = key else {
                panic!("{place}")
            };
            let name = std::str::from_utf8(PropertyName::parse(key).name).unwrap();
            let property = known
                .properties
                .iter()
                .find(|property| property.name == name);
            // What is left out has its default.
            if property.is_none_or(|property| property.default.as_ref() != Some(value)) {
                // A mark is needed only where a parent has a private property of the same name.
                let mark = match PropertyName::parse(key).visibility {
                    Visibility::Private(of) if of != class.as_str().as_bytes() => {
                        Visibility::Private(of)
                    }
                    _ => Visibility::Public,
                };
                given = given.with(mark, name, value.clone());
            }
        }
        let found = manifest
            .object(&given)
            .unwrap_or_else(|error| panic!("{place}: {error}"));
        let found = Value::Object(found).to_bytes();
        assert_eq!(
            String::from_utf8_lossy(&found),
            String::from_utf8_lossy(bytes),
            "{place} {}",
            line["kind"]
        );
        made.push(line["kind"].as_str().unwrap().to_owned());
    }
    for kind in [
        "visibility",
        "visibility-native",
        "promoted",
        "no-serializes-models",
        "typed",
        "model",
        "dates",
    ] {
        assert!(
            made.iter().any(|made| made == kind),
            "{kind} is not among {made:?}"
        );
    }
}

on_every_laravel!(objects_are_made_as_php_makes_them);

/// What constructors do is in the manifest, but for copies of their parameters.
fn what_constructors_do_is_exported(version: u8) {
    let redis = RedisServer::start();
    let manifest = Laravel::new(version, &redis).exported();
    let of = |class: &str| manifest.classes[class].constructor.clone();
    assert_eq!(of(r"App\Jobs\RetryingSet").sets, ["tries", "backoff"]);
    assert_eq!(of(r"App\Notifications\InvoicePaid").sets, ["note"]);
    let native = of(r"App\Jobs\VisibilityNative");
    assert_eq!(native.calls, ["fillParent()"]);
    assert_eq!(native.sets, ["guarded", "secret", "fixed"]);
    assert!(of(r"App\Jobs\Journal").sets.is_empty());
}

on_every_laravel!(what_constructors_do_is_exported);

/// The wrappers that PHP wrote, made anew from what is in them.
fn wrappers_are_filled_as_php_fills_them(version: u8) {
    let redis = RedisServer::start();
    let manifest = Laravel::new(version, &redis).exported();
    let mut made = Vec::new();
    for (place, line) in fixtures::lines(&format!("payloads/laravel-{version}.jsonl")) {
        let payload = Payload::parse(line["element"].as_str().unwrap().as_bytes()).unwrap();
        let Ok(Some(command)) = Command::of(&payload) else {
            continue;
        };
        let bytes = command.as_bytes();
        let Ok(Value::Object(wrapper)) = Value::from_bytes(bytes) else {
            continue;
        };
        let text = |value: Option<&Value>| value.and_then(Value::as_str).unwrap().to_owned();
        let object = |name| match wrapper.get(name) {
            Some(Value::Object(object)) => object.clone(),
            other => panic!("{place}: {other:?}"),
        };
        let first = |name| {
            let values = wrapper.get(name).and_then(Value::as_array).unwrap();
            values.values().next().unwrap().clone()
        };
        let mut answers = Answers::new();
        let wrapping = match Kind::of_class(&wrapper.class) {
            Kind::Listener => {
                let Value::Object(event) = first("data") else {
                    continue;
                };
                // Its method `viaQueue` decides.
                answers.insert("queue", Value::Null);
                Wrapping::Listener {
                    class: ClassName::new(text(wrapper.get("class"))).unwrap(),
                    method: text(wrapper.get("method")).into(),
                    event,
                }
            }
            Kind::Notification => Wrapping::Notification {
                notification: object("notification"),
                id: text(object("notification").get("id")).into(),
                to: wrapper.get("notifiables").unwrap().clone(),
                channel: text(Some(&first("channels"))).into(),
            },
            Kind::Mailable => {
                if let Some(delay @ Value::Int(_)) = wrapper.get("delay") {
                    answers.insert("delay", delay.clone());
                }
                Wrapping::Mailable(object("mailable"))
            }
            Kind::Command => {
                let Ok(Value::Object(bare)) = Value::from_bytes(bytes) else {
                    continue;
                };
                let (_, data) = &bare.properties[0];
                let data = data.as_array().unwrap();
                if data.pairs.len() > 1 {
                    continue;
                }
                Wrapping::Command(text(data.values().next()).into())
            }
            _ => continue,
        };
        if let Some(queue) = wrapper.get("queue").filter(|queue| !queue.is_null()) {
            answers.insert("queue", queue.clone());
        }
        let filled = manifest.wrap(wrapping, &answers);
        let filled = filled.unwrap_or_else(|error| panic!("{place}: {error}"));
        let found = manifest.command(filled.object, Vec::new());
        assert_eq!(
            String::from_utf8_lossy(&found.unwrap().bytes),
            String::from_utf8_lossy(bytes),
            "{place} {}",
            line["kind"]
        );
        made.push(line["kind"].as_str().unwrap().to_owned());
    }
    for kind in [
        "listener",
        "listener-method",
        "notification",
        "notification-anonymous",
        "mailable",
        "command-bare",
    ] {
        assert!(
            made.iter().any(|made| made == kind),
            "{kind} is not among {made:?}"
        );
    }
}

on_every_laravel!(wrappers_are_filled_as_php_fills_them);

struct Front(Scene);

impl Front {
    fn new(version: u8) -> Self {
        let driver = [("QUEUE_FAILED_DRIVER", "database-uuids")];
        let scene = Scene::with_classes(version, &driver, "");
        // The first look makes the tables.
        scene.failed();
        Self(scene)
    }

    /// `artisand dispatch` of a journal job; returns its standard output and error.
    fn dispatch(&self, class: &str, data: &str, options: &[&str]) -> (String, String) {
        let args = [&["dispatch", class, "--data", data][..], options].concat();
        let mut process = ManagedChild::spawn(self.0.workplace.artisand(&args));
        process.succeeds_within(SOON);
        (process.stdout(), process.stderr())
    }

    fn refuses(&self, class: &str, data: &str, words: &[&str]) {
        let args = ["dispatch", class, "--data", data];
        let mut process = ManagedChild::spawn(self.0.workplace.artisand(&args));
        let status = process.wait_timeout(SOON);
        assert!(!status.success(), "{}", process.describe());
        for word in words {
            assert!(
                process.stderr().contains(word),
                "no `{word}`: {}",
                process.describe()
            );
        }
        assert_eq!(self.0.queued(), 0);
    }

    /// What a program has that dispatches.
    fn program(&self) -> Dispatch {
        self.0.workplace.dispatch()
    }

    /// Lets Laravel's own worker run what is queued.
    fn work_in_php(&self) {
        let args = [
            "--stop-when-empty",
            "--sleep=0",
            "--queue=bulk,other,default",
        ];
        self.0.php_worker(&args).succeeds_within(SOON);
    }
}

fn php_runs_what_artisand_dispatches(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let plain = r"App\Jobs\Journal";
    let (said, _) = front.dispatch(plain, r#"{"id":"a","script":["ok"],"tries":3}"#, &[]);
    let (uuid, queue) = said.trim().split_once(" on queue ").unwrap();
    assert_eq!(queue, "default");
    let expected = scene.push("b", &["--tries=3"]);
    let pushed = scene.redis.list(&scene.queue("default"));
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    // The same job from PHP differs in what is random, in the time, and in its name.
    let (ours, theirs) = (
        Payload::parse(&pushed[0]).unwrap(),
        Payload::parse(&pushed[1]).unwrap(),
    );
    let id = |payload: &Payload| payload.id.as_ref().unwrap().to_string();
    let mut theirs_as_ours = text(&pushed[1])
        .replace(&expected, uuid)
        .replace(&id(&theirs), &id(&ours))
        .replace(r#"\"id\";s:1:\"b\";"#, r#"\"id\";s:1:\"a\";"#);
    if let (Some(ours), Some(theirs)) = (ours.created_at, theirs.created_at) {
        let field = |at: i64| format!("\"createdAt\":{at}");
        theirs_as_ours = theirs_as_ours.replace(&field(theirs.0), &field(ours.0));
    }
    let script = r#"s:6:\"script\";a:1:{i:0;s:2:\"ok\";}"#;
    let ours_as_theirs = text(&pushed[0]).replace(script, "SCRIPT");
    let theirs_as_ours = theirs_as_ours
        .replace(r#"s:6:\"script\";a:0:{}"#, "SCRIPT")
        .replace(script, "SCRIPT");
    assert_eq!(ours_as_theirs, theirs_as_ours);

    front.dispatch(
        r"App\Jobs\EncryptedJournal",
        r#"{"id":"secret","script":[]}"#,
        &["--queue=other"],
    );
    front.dispatch(plain, r#"{"id":"late","script":[]}"#, &["--delay=1"]);
    let many = scene.workplace.path().join("many.jsonl");
    std::fs::write(
        &many,
        "{\"id\":\"m1\",\"script\":[]}\n\n{\"id\":\"m2\",\"script\":[]}\n",
    )
    .unwrap();
    let (said, _) = front.dispatch(plain, &format!("@{}", many.display()), &["--count=2"]);
    assert_eq!(said, "4 jobs dispatched\n");
    let (dry, _) = front.dispatch(plain, r#"{"id":"dry","script":[]}"#, &["--dry-run"]);
    assert!(Payload::parse(dry.trim().as_bytes()).is_ok(), "{dry}");
    let again = ["--once=the-key"];
    let (first, _) = front.dispatch(plain, r#"{"id":"once","script":[]}"#, &again);
    let (second, _) = front.dispatch(plain, r#"{"id":"once","script":[]}"#, &again);
    assert_eq!(first, second);
    scene.redis.eventually("the delayed one is due", SOON, || {
        front.work_in_php();
        (scene.events("late") == ["run:1"]).then_some(())
    });
    for (id, runs) in [
        ("a", 1),
        ("b", 1),
        ("secret", 1),
        ("m1", 2),
        ("m2", 2),
        ("dry", 0),
        ("once", 1),
    ] {
        assert_eq!(scene.events(id).len(), runs, "{id}");
    }
    assert_eq!(scene.queued(), 0);

    // Constructors do not run, and what they do is said.
    let (_, said) = front.dispatch(r"App\Jobs\RetryingSet", r#"{"tries":4}"#, &["--dry-run"]);
    assert!(
        said.contains(r"App\Jobs\RetryingSet: its constructor sets `backoff`: give it"),
        "{said}"
    );
    assert!(!said.contains("`tries`"), "{said}");

    front.refuses(
        r"App\Jobs\Journall",
        "{}",
        &["did you mean", r"App\Jobs\Journal"],
    );
    front.refuses(
        plain,
        r#"{"idd":"a"}"#,
        &["no property `idd`", "did you mean `id`?"],
    );
    front.refuses(
        plain,
        r#"{"id":7,"script":[]}"#,
        &["$id is string", "cannot be an int"],
    );
    front.refuses(r"App\Models\User", "{}", &[r"App\Models\User"]);
}

on_every_laravel!(php_runs_what_artisand_dispatches);

/// Lines of which one does not fit, artisan commands, and jobs that PHP dispatches.
fn the_shell_dispatches_lines_and_commands(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let plain = r"App\Jobs\Journal";
    // Of many, those before the first that does not fit are dispatched, and it is named.
    let lines = "{\"id\":\"f1\",\"script\":[]}\n{\"idd\":\"f2\"}\n{\"id\":\"f3\",\"script\":[]}\n";
    let many = scene.workplace.path().join("many.jsonl");
    std::fs::write(&many, lines).unwrap();
    let data = format!("@{}", many.display());
    let mut process = ManagedChild::spawn(
        scene
            .workplace
            .artisand(&["dispatch", plain, "--data", &data]),
    );
    assert!(!process.wait_timeout(SOON).success());
    assert_eq!(process.stdout(), "1 jobs dispatched\n");
    assert!(
        process.stderr().contains("many.jsonl:2"),
        "{}",
        process.describe()
    );
    let mut process = ManagedChild::spawn(scene.workplace.artisand(&[
        "dispatch",
        "interop:note",
        "--arguments=hello --times=3",
    ]));
    process.succeeds_within(SOON);
    front.dispatch(plain, r#"{"id":"by-php","script":[]}"#, &["--by-php"]);
    front.work_in_php();
    assert_eq!(scene.events("f1"), ["run:1"]);
    assert_eq!(scene.events("by-php"), ["run:1"]);
    let seen = scene.redis.list("interop:seen");
    let seen: serde_json::Value = serde_json::from_slice(&seen[0]).unwrap();
    assert_eq!(
        (&seen["text"], &seen["times"]),
        (&json!("hello"), &json!("3"))
    );
}

on_every_laravel!(the_shell_dispatches_lines_and_commands);

fn a_unique_job_of_either_side_keeps_the_other_out(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let unique = r"App\Jobs\UniqueJournal";
    let data = r#"{"id":"u","script":[]}"#;
    front.dispatch(unique, data, &[]);
    let (_, said) = front.dispatch(unique, data, &[]);
    assert!(said.contains("1 not dispatched"), "{said}");
    scene.php().text(&["interop:journal", "u", "--unique"]);
    assert_eq!(scene.queued(), 1);
    front.work_in_php();
    assert_eq!(scene.events("u"), ["run:1"]);

    // Its lock is free again; now PHP is first.
    scene.php().text(&["interop:journal", "u", "--unique"]);
    assert_eq!(scene.queued(), 1);
    let (_, said) = front.dispatch(unique, data, &[]);
    assert!(said.contains("1 not dispatched"), "{said}");
    front.work_in_php();
    front.dispatch(unique, data, &[]);
    front.work_in_php();
    assert_eq!(scene.events("u"), ["run:1", "run:1", "run:1"]);
}

on_every_laravel!(a_unique_job_of_either_side_keeps_the_other_out);

#[derive(Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Journal")]
struct Journal {
    id: String,
    script: Vec<String>,
}

impl Journal {
    fn named(id: &str) -> Self {
        Self {
            id: id.to_owned(),
            script: Vec::new(),
        }
    }
}

/// A struct with a field that the class does not have.
#[derive(Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Journal")]
struct Misspelt {
    idd: String,
    script: Vec<String>,
}

#[derive(Serialize, Deserialize)]
struct UniqueJournal {
    id: String,
}

/// What a Rust program dispatches runs in PHP: chains, many jobs, string jobs.
fn a_program_dispatches(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dispatch = front.program();
        dispatch.check::<Journal>().unwrap();
        let error = dispatch.check::<Misspelt>().unwrap_err().to_string();
        assert!(error.contains("no property `idd`; did you mean `id`?"), "{error}");
        let error = dispatch.check::<UniqueJournal>().unwrap_err().to_string();
        assert!(error.contains(r#"#[serde(rename = "App\\Jobs\\UniqueJournal")]"#), "{error}");
        let (one, two) = (Journal::named("one"), Journal::named("two"));
        let chain = dispatch.chain().then(&one).then(&two).then(&Journal::named("three"));
        assert!(matches!(chain.on_queue("other").await.unwrap(), Dispatched::Queued { queue, .. } if queue.as_str() == "other"));
        let many = (0..1_200).map(|n| Journal::named(&format!("many-{n}")));
        assert_eq!(dispatch.bulk(many).on_queue("bulk").await.unwrap(), 1_200);
        let of_class = dispatch.class(r"App\Jobs\Journal").with("id", "named").with("script", [(); 0]);
        of_class.delay(Duration::ZERO).await.unwrap();
        let prepared = dispatch.job(&Journal::named("ready")).prepare().await.unwrap();
        let uuid = prepared.uuid().clone();
        assert!(matches!(prepared.push().await.unwrap(), Dispatched::Queued { uuid: pushed, .. } if pushed == uuid));
        let data = serde_json::json!({"n": 1});
        dispatch.string(r"App\Jobs\Legacy@fire", &data).await.unwrap();
    });
    assert_eq!(scene.redis.length(&scene.queue("bulk")), 1_200);
    front.work_in_php();
    for id in ["one", "two", "three", "named", "ready"] {
        assert_eq!(scene.events(id), ["run:1"], "{id}");
    }
    assert_eq!(scene.failed(), [serde_json::Value::Null; 0]);
}

on_every_laravel!(a_program_dispatches);

#[derive(Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\BatchJournal")]
struct Member {
    id: String,
    script: Vec<String>,
}

impl Member {
    fn of(id: &str, script: &[&str]) -> Self {
        Self {
            id: id.to_owned(),
            script: script.iter().map(|&step| step.to_owned()).collect(),
        }
    }
}

/// Batches and chains of a Rust program run in PHP, and their callbacks dispatch what the program gave them.
fn batches_and_callbacks_of_a_program_run_in_php(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    scene.php().run(&["interop:tables"]);
    let (good, bad) = runtime.block_on(async {
        let dispatch = front.program();
        let good = dispatch.batch().name("import").on_queue("other");
        let good = good.jobs([Member::of("g1", &[]), Member::of("g2", &[])]);
        let good = good.chain([Member::of("g3", &[]), Member::of("g4", &[])]);
        let good = good
            .then(&Journal::named("then"))
            .catch(&Journal::named("no"));
        let good = good.finally(&Journal::named("finally")).await.unwrap();
        assert_eq!((good.total_jobs, good.pending_jobs), (4, 4));
        let bad = dispatch
            .batch()
            .job(&Member::of("b1", &["fail"]))
            .allow_failures();
        let bad = bad
            .job(&Member::of("b2", &[]))
            .catch(&Journal::named("catch"));
        let bad = bad.then(&Journal::named("no")).await.unwrap();
        let chain = dispatch.chain().then(&Member::of("c1", &["fail"]));
        let chain = chain
            .then(&Journal::named("no"))
            .catch(&Journal::named("chain-catch"));
        chain.await.unwrap();

        // What does not fit leaves no batch behind.
        let unfit = dispatch
            .batch()
            .job(&Journal::named("no"))
            .await
            .unwrap_err();
        assert!(
            unfit
                .to_string()
                .contains("does not use `Illuminate\\Bus\\Batchable`"),
            "{unfit}"
        );
        let unfit = dispatch.batch().job(&Misspelt {
            idd: String::new(),
            script: Vec::new(),
        });
        assert!(matches!(unfit.await, Err(DispatchError::Unfit(_))));
        (good.id.clone(), bad.id.clone())
    });
    let state = |id: &str| scene.php().run(&["interop:batch-state", id]);
    let made = state(&good);
    assert_eq!(made["name"], "import");
    assert_eq!(made["queue"], "other");
    assert_eq!(made["pending"], 4);
    front.work_in_php();
    for id in [
        "g1",
        "g2",
        "g3",
        "g4",
        "then",
        "finally",
        "b2",
        "catch",
        "chain-catch",
    ] {
        assert_eq!(scene.events(id), ["run:1"], "{id}");
    }
    assert_eq!(scene.events("no"), [""; 0]);
    let (good, bad) = (state(&good), state(&bad));
    assert_eq!((&good["pending"], &good["failed"]), (&json!(0), &json!(0)));
    assert!(good["finished_at"].is_number(), "{good}");
    assert_eq!((&bad["pending"], &bad["failed"]), (&json!(1), &json!(1)));
    assert_eq!(scene.queued(), 0);
}

on_every_laravel!(batches_and_callbacks_of_a_program_run_in_php);

/// What only PHP knows of a class is said by the program, or PHP dispatches the job.
fn what_only_php_knows_is_said_or_left_to_php(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dispatch = front.program();
        let untellable = || dispatch.class(r"App\Jobs\Untellable");
        let unknown = untellable().prepare().await.unwrap_err();
        assert!(matches!(unknown, DispatchError::OnlyPhp(_)), "{unknown}");
        assert!(unknown.to_string().contains("its method `"), "{unknown}");
        let said = untellable()
            .tries(4)
            .backoff([1, 6].map(Duration::from_secs));
        let said = said.display_name("said").prepare().await.unwrap();
        let payload = Payload::parse(said.payload()).unwrap();
        assert_eq!(&*payload.display_name, "said");
        let json: serde_json::Value = serde_json::from_slice(said.payload()).unwrap();
        assert_eq!(
            (&json["maxTries"], &json["backoff"]),
            (&json!(4), &json!("1,6"))
        );
        untellable().by_php().on_queue("bulk").await.unwrap();

        // Properties that the class has are set, too, so that the next step of a chain finds them.
        let journal = dispatch
            .job(&Journal::named("said"))
            .tries(2)
            .timeout(Duration::from_secs(5));
        journal.await.unwrap();
        let by_php = dispatch
            .job(&Journal::named("by-php"))
            .by_php()
            .tries(3)
            .on_queue("other");
        by_php.await.unwrap();
    });
    let closures = scene.redis.list(&scene.queue("bulk"));
    let name = Payload::parse(&closures[0]).unwrap().display_name;
    assert_eq!(&*name, r"App\Jobs\Untellable");
    let said = scene.redis.list(&scene.queue("default"));
    let said: serde_json::Value = serde_json::from_slice(&said[0]).unwrap();
    assert_eq!(
        (&said["maxTries"], &said["timeout"]),
        (&json!(2), &json!(5))
    );
    assert!(
        said["data"]["command"]
            .as_str()
            .unwrap()
            .contains("s:5:\"tries\";i:2;"),
        "{said}"
    );
    scene
        .php_worker(&["--once", "--queue=bulk"])
        .succeeds_within(SOON);
    let by_php = scene.redis.list(&scene.queue("bulk"));
    assert_eq!(
        &*Payload::parse(&by_php[0]).unwrap().display_name,
        "ONLY PHP KNOWS"
    );
    scene
        .php_worker(&["--once", "--queue=default"])
        .succeeds_within(SOON);
    assert_eq!(scene.events("said"), ["run:1"]);
    scene
        .php_worker(&["--once", "--queue=other"])
        .succeeds_within(SOON);
    let by_php = scene.redis.list(&scene.queue("other"));
    let by_php: serde_json::Value = serde_json::from_slice(&by_php[0]).unwrap();
    assert_eq!(by_php["maxTries"], 3);
    scene
        .php_worker(&["--once", "--queue=other"])
        .succeeds_within(SOON);
    assert_eq!(scene.events("by-php"), ["run:1"]);
}

on_every_laravel!(what_only_php_knows_is_said_or_left_to_php);

#[derive(Serialize)]
#[serde(rename = "App\\Events\\ArticleRead")]
struct ArticleRead {
    article: u32,
    share: f64,
}

#[derive(Serialize)]
#[serde(rename = "App\\Notifications\\InvoicePaid")]
struct InvoicePaid {
    invoice: u32,
    amount: f64,
}

#[derive(Serialize)]
#[serde(rename = "App\\Mail\\OrderConfirmation")]
struct OrderConfirmation {
    user: ModelIdentifier,
    order: u32,
    prices: BTreeMap<String, f64>,
}

fn user(id: i64) -> ModelIdentifier {
    ModelIdentifier {
        class: Some(r"App\Models\User".to_owned()),
        id: ModelId::Single(ModelKey::Int(id)),
        relations: Vec::new(),
        connection: None,
        collection_class: None,
    }
}

/// PHP runs the listeners, notifications, mails and commands of a program.
fn wrapped_jobs_of_a_program_run_in_php(version: u8) {
    let front = Front::new(version);
    let scene = &front.0;
    scene.php().run(&["interop:tables"]);
    scene.php().text(&["interop:user", "7"]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let dispatch = front.program();
        let read = ArticleRead {
            article: 12,
            share: 0.75,
        };
        let listener = || dispatch.listener(r"App\Listeners\CountReading@count", &read);
        let unknown = listener().prepare().await.unwrap_err().to_string();
        assert!(
            unknown.contains("`viaQueue()` must be asked") && unknown.contains("`on_queue`"),
            "{unknown}"
        );
        let prepared = listener().on_queue("other").prepare().await.unwrap();
        let json: serde_json::Value = serde_json::from_slice(prepared.payload()).unwrap();
        assert_eq!(
            (&json["maxTries"], &json["timeout"]),
            (&json!(4), &json!(9))
        );
        prepared.push().await.unwrap();

        let paid = InvoicePaid {
            invoice: 3,
            amount: 1.5,
        };
        let notification = || dispatch.notification(&paid);
        for (unfit, word) in [
            (notification().via("mail"), "`to`"),
            (notification().to("a@example.com"), "`via`"),
            (
                dispatch.job(&Journal::named("no")).to("a@example.com"),
                "only notifications and mails",
            ),
        ] {
            let error = unfit.prepare().await.unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
        notification()
            .to(user(7))
            .via("mail")
            .on_queue("bulk")
            .await
            .unwrap();
        notification()
            .to("zoë@example.com")
            .via("mail")
            .delay(Duration::ZERO)
            .await
            .unwrap();
        let mail = OrderConfirmation {
            user: user(7),
            order: 5,
            prices: BTreeMap::from([("net".to_owned(), 10.0)]),
        };
        dispatch
            .mailable(&mail)
            .to(("Ada", "ada@example.com"))
            .to("b@example.com")
            .on_queue("other")
            .await
            .unwrap();
        let note = dispatch.command("interop:note", ["two words \"quoted\"", "--times=2"]);
        note.on_queue("bulk").await.unwrap();
    });
    front.work_in_php();
    let seen = scene.redis.list("interop:seen");
    let mut seen: Vec<serde_json::Value> = seen
        .iter()
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect();
    seen.sort_by_key(|seen| seen["class"].as_str().unwrap().to_owned());
    let classes: Vec<_> = seen
        .iter()
        .map(|seen| seen["class"].as_str().unwrap())
        .collect();
    assert_eq!(
        classes,
        [
            r"App\Console\Note",
            r"App\Events\ArticleRead",
            r"App\Mail\OrderConfirmation",
            r"App\Notifications\InvoicePaid",
            r"App\Notifications\InvoicePaid",
        ]
    );
    assert_eq!(
        (&seen[0]["text"], &seen[0]["times"]),
        (&json!("two words \"quoted\""), &json!("2"))
    );
    let to = json!([
        {"name": "Ada", "address": "ada@example.com"},
        {"name": null, "address": "b@example.com"},
    ]);
    assert_eq!((&seen[2]["order"], &seen[2]["to"]), (&json!(5), &to));
    assert_eq!(seen[3]["invoice"], 3);
    assert_eq!(scene.failed(), [serde_json::Value::Null; 0]);
    assert_eq!(scene.queued(), 0);
}

on_every_laravel!(wrapped_jobs_of_a_program_run_in_php);

/// A worker whose handlers dispatch what does not fit its class does not start, and its doctor says why.
fn a_worker_checks_what_its_handlers_dispatch(version: u8) {
    let front = Front::new(version);
    let workplace = &front.0.workplace;
    let said = |args: &[&str], kind: &str| {
        let mut command = workplace.command_of(args);
        command.env("INTEROP_DISPATCHES", kind);
        let mut process = ManagedChild::spawn(command);
        let status = process.wait_timeout(SOON);
        (status.success(), process.stdout() + &process.stderr())
    };
    let work = ["queue:work", "redis", "--stop-when-empty"];
    let (starts, text) = said(&work, "next");
    assert!(starts, "{text}");
    let (starts, text) = said(&work, "misspelt");
    assert!(!starts, "{text}");
    for word in [
        "handlers dispatch `Misspelt`",
        "no property `idd`",
        "did you mean `id`?",
    ] {
        assert!(text.contains(word), "no `{word}`: {text}");
    }
    let (_, text) = said(&["doctor"], "misspelt");
    assert!(text.contains("ERROR  dispatched    `Misspelt`: "), "{text}");
}

on_every_laravel!(a_worker_checks_what_its_handlers_dispatch);

const MAPPINGS: &str = r"
[[map]]
job = 'App\Jobs\Journal'
handler = 'journal'
";

/// Workers that take the journal's jobs, and whose jobs come back soon after a kill.
fn scene_of_handlers(version: u8) -> Front {
    let env = [("REDIS_QUEUE_RETRY_AFTER", "2")];
    let scene = Scene::on(RedisServer::start_durable(), version, &env, |laravel| {
        Workplace::with_manifest(laravel, &laravel.manifest_with_classes(), MAPPINGS)
    });
    Front(scene)
}

/// Uuids of the runs of a job.
fn uuids(front: &Front, id: &str) -> BTreeSet<String> {
    let lines = front.0.lines().into_iter().filter(|line| line.id == id);
    lines.filter_map(|line| line.uuid).collect()
}

fn what_follows_a_job_is_pushed_if_it_succeeds(version: u8) {
    let front = scene_of_handlers(version);
    let plain = r"App\Jobs\Journal";
    for data in [
        r#"{"id":"good","script":["then:after-good+dispatch:now-good"]}"#,
        r#"{"id":"bad","script":["then:after-bad+dispatch:now-bad+throw"],"tries":1}"#,
        r#"{"id":"again","script":["then:after-again+release:0","ok"],"tries":2}"#,
        r#"{"id":"gone","script":["then:after-gone+delete"]}"#,
    ] {
        front.dispatch(plain, data, &[]);
    }
    let mut worker = front.0.worker(&["--stop-when-empty", "--sleep=0"]);
    worker.succeeds_within(SOON);
    for (id, runs) in [
        ("after-good", 1),
        ("now-good", 1),
        ("after-bad", 0),
        ("now-bad", 1),
        ("after-again", 0),
    ] {
        assert_eq!(uuids(&front, id).len(), runs, "{id}: {}", worker.describe());
    }
    // A handler that deletes its job has handled it.
    assert_eq!(
        uuids(&front, "after-gone").len(),
        1,
        "{}",
        worker.describe()
    );
}

on_every_laravel!(what_follows_a_job_is_pushed_if_it_succeeds);

fn what_follows_is_pushed_once_however_often_workers_are_killed(version: u8) {
    let front = scene_of_handlers(version);
    let scene = &front.0;
    // Enough that there is work until the last kill.
    let jobs = 40 + 3 * kills();
    let line = |n: usize| {
        // Whichever attempt reaches its end; only the first is slow, and that of the first job lasts until a kill.
        let mut script = vec![format!("then:c-{n}"); 1 + kills()];
        script[0].push_str(if n == 0 { "+sleep:30" } else { "+sleep:0.02" });
        format!("{}\n", json!({"id": format!("p-{n}"), "script": script}))
    };
    let many = scene.workplace.path().join("many.jsonl");
    std::fs::write(&many, (0..jobs).map(line).collect::<String>()).unwrap();
    front.dispatch(r"App\Jobs\Journal", &format!("@{}", many.display()), &[]);
    for _ in 0..kills() {
        let before = scene.redis.length("interop:journal");
        let mut worker = scene.worker(&["--concurrency=3", "--tries=1000", "--sleep=0.05"]);
        // In the middle of some job, wherever that is then. A worker that is killed late may have left none.
        let some = before + fastrand::usize(1..5);
        scene
            .redis
            .eventually("jobs run, or none is left", SOON, || {
                let is_at_work = scene.redis.length("interop:journal") >= some;
                (is_at_work || scene.queued() == 0).then_some(())
            });
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
    }
    let mut worker = scene.worker(&["--concurrency=3", "--tries=1000", "--sleep=0.05"]);
    scene
        .redis
        .eventually("all is done", SOON, || (scene.queued() == 0).then_some(()));
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    let lines = scene.lines();
    let has_run_again = |line: &Line| line.id == "p-0" && line.attempts > Some(1);
    assert!(lines.iter().any(has_run_again), "no kill hit the job p-0");
    for n in 0..jobs {
        assert!(!uuids(&front, &format!("p-{n}")).is_empty(), "p-{n}");
        assert_eq!(uuids(&front, &format!("c-{n}")).len(), 1, "c-{n}");
    }
}

on_every_laravel!(what_follows_is_pushed_once_however_often_workers_are_killed);
