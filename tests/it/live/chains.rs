//! Payloads made from the manifest and a job's bytes equal those that Laravel pushes, also for chain steps.

use std::collections::BTreeMap;

use artisand::app::{Facts, Manifest, Missing};
use artisand::payload::{Chain, NewPayload, Payload, Step};
use artisand::php::{ObjectText, Value};
use artisand::time::{Clock, UnixSeconds};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::Value as Json;
use serde_json::value::RawValue;

use crate::harness::laravel::{Laravel, Served};
use crate::harness::redis::RedisServer;

/// A payload that PHP pushed, and its parts that differ in every payload.
struct Pushed {
    text: String,
    payload: Payload,
    json: Json,
    queue: String,
    /// When it is due, in unix seconds, if it is delayed.
    due: Option<i64>,
}

/// A score, which Laravel writes as whole seconds.
fn whole(score: f64) -> i64 {
    format!("{score:.0}").parse().unwrap()
}

impl Pushed {
    fn new(element: Vec<u8>, queue: &str, due: Option<i64>) -> Self {
        let text = String::from_utf8(element).unwrap();
        Self {
            payload: Payload::parse(text.as_bytes()).unwrap(),
            json: serde_json::from_str(&text).unwrap(),
            queue: queue.to_owned(),
            due,
            text,
        }
    }

    /// All jobs on these queues, delayed or not.
    fn on(redis: &RedisServer, laravel: &Laravel, queues: &[&str]) -> Vec<Self> {
        let mut found = Vec::new();
        for queue in queues {
            let key = laravel.key(&format!("queues:{queue}"));
            let pending = redis.list(&key).into_iter();
            found.extend(pending.map(|element| Self::new(element, queue, None)));
            let delayed = redis.scores(&format!("{key}:delayed")).into_iter();
            found.extend(delayed.map(|(element, due)| Self::new(element, queue, Some(whole(due)))));
        }
        found
    }

    /// The serialized object; `None` if it is encrypted or there is none.
    fn command(&self) -> Option<&str> {
        let command = self.json["data"]["command"].as_str()?;
        command.starts_with("O:").then_some(command)
    }

    /// The second of the push, if the version records it.
    fn now(&self) -> UnixSeconds {
        self.payload
            .created_at
            .unwrap_or_else(|| Clock::System.now())
    }

    /// artisand's payload, with the names and times of PHP's.
    fn remade(&self, manifest: &Manifest, facts: &Facts, command: Vec<u8>) -> String {
        let payload = facts
            .payload(command, self.now(), manifest.timezone())
            .unwrap();
        let extra: BTreeMap<String, Box<RawValue>> = serde_json::from_str(&self.text).unwrap();
        let extra = extra
            .into_iter()
            .filter(|(name, _)| name.starts_with("illuminate:"));
        let payload = NewPayload {
            uuid: self.payload.uuid.clone().unwrap(),
            id: self.payload.id.clone(),
            extra: extra.map(|(name, value)| (name.into(), value)).collect(),
            ..payload
        };
        let bytes = payload.to_bytes(manifest.version().unwrap()).unwrap();
        String::from_utf8(bytes).unwrap()
    }
}

fn payloads_are_made_as_laravel_makes_them(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let manifest = laravel.exported();
    let told = laravel.run(&["interop:dispatch", "all"]);
    let kinds: BTreeMap<&str, &str> = told
        .iter()
        .map(|line| {
            (
                line["uuid"].as_str().unwrap(),
                line["kind"].as_str().unwrap(),
            )
        })
        .collect();
    let mut made = 0;
    let mut unmade = Vec::new();
    for pushed in Pushed::on(&redis, &laravel, &["default"]) {
        let kind = kinds[pushed.payload.uuid.as_ref().unwrap().as_str()];
        let Some(command) = pushed.command() else {
            continue;
        };
        let value = match Value::from_bytes(command.as_bytes()) {
            // A reference after a body that only its class reads is never guessed.
            Err(error) if kind == "custom" => {
                assert!(error.to_string().contains("OldStyle"), "{error}");
                continue;
            }
            read => read.unwrap(),
        };
        match manifest.facts(&value, pushed.now()) {
            Ok(facts) => {
                let remade = pushed.remade(&manifest, &facts, command.into());
                assert_eq!(remade, pushed.text, "Laravel {version} {kind}");
                assert_eq!(facts.is_queued, !kind.starts_with("mailable"), "{kind}");
                made += 1;
            }
            Err(Missing { class, what }) => unmade.push(format!("{kind}: {class}: {what}")),
        }
    }
    let method = "its method `retryUntil()` must be asked, and only PHP can do that; a property would do, or a method that only returns one";
    let expected = [
        format!("retry-until: App\\Jobs\\RetryUntil: {method}"),
        "closure: Illuminate\\Queue\\CallQueuedClosure: a closure is PHP, and only PHP can queue it".to_owned(),
    ];
    assert_eq!(unmade, expected, "Laravel {version}");
    assert!(made >= 55, "only {made} kinds");
}

on_every_laravel!(payloads_are_made_as_laravel_makes_them);

/// The queues that jobs of `interop:chains` go to.
const QUEUES: [&str; 5] = ["second", "own", "elsewhere", "attributed", "default"];

/// The note of the last job of a chain, which names its kind.
fn kind_of(last: &[u8]) -> String {
    let value = Value::from_bytes(last).unwrap();
    let note = value.as_object().unwrap().get("note").unwrap();
    note.as_str().unwrap().to_owned()
}

/// Kinds whose properties PHP writes in another order: those that have one of the chain's neighbours set already.
fn reordered_on(version: u8) -> Vec<&'static str> {
    let clones = ["cycle-to-job", "cycle-to-job-native"].into_iter();
    let delayed = ["delayed", "delayed-date", "delayed-interval", "middleware"].into_iter();
    let delays = [
        "delay-zero",
        "delay-date",
        "delay-past",
        "delay-interval",
        "delay-months",
        "delay-other-half",
        "delay-inverted",
    ];
    match version {
        // All properties exist, and are replaced in place.
        8 => clones.collect(),
        10 => clones.chain(delayed).chain(delays).collect(),
        _ => {
            let locked = ["returning", "unique-by-property"];
            let all = clones.chain(delayed).chain(["unique"]);
            all.chain(delays).chain(locked).collect()
        }
    }
}

/// Steps of chains as PHP pushed them, to be made again.
struct Steps {
    place: String,
    version: u8,
    manifest: Manifest,
    php: Served,
    pushed: BTreeMap<String, Pushed>,
    encrypted: Vec<Pushed>,
}

impl Steps {
    fn chain(&self, command: &str) -> Chain {
        Chain::read(command.as_bytes(), self.manifest.version().unwrap()).unwrap()
    }

    fn kind(&self, pushed: &Pushed) -> Option<String> {
        let chain = self.chain(pushed.command()?);
        let last = chain.commands().last().map(kind_of);
        Some(last.unwrap())
    }

    fn step(&self, first: &Pushed) -> Step {
        let chain = self.chain(first.command().unwrap());
        let class = chain.next_class().unwrap().unwrap();
        let step = chain.next(|property| self.manifest.default(&class, property));
        step.unwrap().unwrap()
    }

    /// PHP's payloads of a kind.
    fn take(&mut self, kind: &str, facts: &Facts) -> Pushed {
        if facts.is_encrypted {
            let name = facts.class.as_str();
            let is_it = |second: &Pushed| second.json["data"]["commandName"] == name;
            let place = self.encrypted.iter().position(is_it);
            return self
                .encrypted
                .remove(place.unwrap_or_else(|| panic!("{}", self.place)));
        }
        let second = self.pushed.remove(kind);
        second.unwrap_or_else(|| panic!("{}: PHP pushed nothing", self.place))
    }

    /// Compares artisand's step with PHP's; returns whether the commands differ only in the order of properties.
    fn compare(&self, kind: &str, step: &Step, theirs: &Pushed) -> bool {
        let place = &self.place;
        let value = Value::from_bytes(&step.command).unwrap();
        let facts = self.manifest.facts(&value, theirs.now()).unwrap();
        assert_eq!(
            facts.queue.as_deref().unwrap_or("default"),
            theirs.queue,
            "{place}"
        );
        assert_eq!(
            facts.connection.as_deref().unwrap_or("redis"),
            "redis",
            "{place}"
        );
        let due = facts.delay.as_ref();
        let due = due.map(|delay| {
            delay
                .available_at(theirs.now(), self.manifest.timezone())
                .unwrap()
                .0
        });
        match (due, theirs.due) {
            // Before 12.11 the second of the push is not known.
            (Some(due), Some(theirs)) => {
                assert!((theirs - due).abs() <= 30, "{place} {due} {theirs}");
            }
            (due, theirs) => assert_eq!(due, theirs, "{place}"),
        }

        let their_command = theirs.json["data"]["command"].as_str().unwrap();
        let remade = theirs.remade(&self.manifest, &facts, their_command.into());
        assert_eq!(remade, theirs.text, "{place}");
        if facts.is_encrypted {
            return false;
        }
        if self.version == 13 {
            let is_locked = their_command.contains("uniqueLockOwner\";s:16");
            assert_eq!(facts.unique.is_some(), is_locked, "{place}");
        }
        let ours = with_chance_of(their_command, step);
        // PHP pushes a clone of the job, which refers to the job it was cloned from; artisand's refers to itself.
        if !kind.starts_with("cycle-to-job") {
            self.assert_same_graph(&ours, their_command.as_bytes());
        }
        with_callbacks_of(&ours, their_command) != ours
    }

    /// Whether PHP makes equal graphs of the two.
    fn assert_same_graph(&self, ours: &[u8], theirs: &[u8]) {
        let args = [ours, theirs].map(|bytes| BASE64.encode(bytes));
        let answer = self.php.run(&["interop:same", &args[0], &args[1]]);
        let (ours, theirs) = (
            String::from_utf8_lossy(ours),
            String::from_utf8_lossy(theirs),
        );
        assert_eq!(
            answer["left"], answer["right"],
            "{}:\n{ours}\n{theirs}",
            self.place
        );
    }
}

/// The text with the callbacks of another one: PHP signs closures again whenever it writes them.
fn with_callbacks_of(ours: &[u8], theirs: &str) -> Vec<u8> {
    let callbacks = ObjectText::parse(ours)
        .unwrap()
        .get("chainCatchCallbacks")
        .unwrap();
    let theirs = ObjectText::parse(theirs.as_bytes()).unwrap();
    theirs
        .with(&[("chainCatchCallbacks", &callbacks.unwrap())])
        .unwrap()
}

/// Copies the random parts of PHP's second payload into artisand's step; returns whether the rest is equal byte for
/// byte.
fn with_chance_of(theirs: &str, step: &Step) -> Vec<u8> {
    let theirs = ObjectText::parse(theirs.as_bytes()).unwrap();
    match theirs.get("uniqueLockOwner").unwrap() {
        Some(owner) if owner != b"s:0:\"\";" => {
            let ours = ObjectText::parse(&step.command).unwrap();
            ours.with(&[("uniqueLockOwner", &owner)]).unwrap()
        }
        _ => step.command.clone(),
    }
}

fn the_next_job_of_a_chain_is_the_one_that_laravel_pushes(version: u8) {
    let redis = RedisServer::start();
    // A day of an interval is not always 24 hours there.
    let zone = [("APP_TIMEZONE", "America/New_York")];
    let laravel = Laravel::with_env(version, &redis, &zone);
    let told = laravel.run(&["interop:chains", "--queue=second"]);
    let firsts = Pushed::on(&redis, &laravel, &["second"]);
    assert_eq!(firsts.len(), told.len());
    // The first job of each chain runs; its second is pushed and does not run.
    let (second, first) = (laravel.key("queues:second"), laravel.key("queues:first"));
    redis.query::<()>(&[b"RENAME", second.as_bytes(), first.as_bytes()]);
    let options = [
        "--queue=first",
        "--stop-when-empty",
        "--memory=2000",
        "--tries=1",
    ];
    let (text, code) = laravel.text(&[&["queue:work", "redis"][..], &options].concat());
    assert_eq!(code, 0, "{text}");

    let mut scene = Steps {
        place: String::new(),
        version,
        manifest: laravel.exported(),
        php: laravel.serve(),
        pushed: BTreeMap::new(),
        encrypted: Vec::new(),
    };
    // A reference after a body that only its class reads is never guessed: such a chain goes to PHP.
    let is_readable = |pushed: &Pushed| {
        let version = scene.manifest.version().unwrap();
        let command = pushed.command();
        command.is_none_or(|command| Chain::read(command.as_bytes(), version).is_ok())
    };
    let seconds = Pushed::on(&redis, &laravel, &QUEUES);
    let (seconds, unreadable): (Vec<_>, Vec<_>) = seconds.into_iter().partition(is_readable);
    assert_eq!(unreadable.len(), 1, "Laravel {version}");
    for second in seconds {
        match scene.kind(&second) {
            Some(kind) => {
                scene.pushed.insert(kind, second);
            }
            None => scene.encrypted.push(second),
        }
    }
    let (mut reordered, mut unmade) = (Vec::new(), Vec::new());
    for first in &firsts {
        let kind = scene.kind(first).unwrap();
        scene.place = format!("Laravel {version} {kind}");
        if kind == "custom" {
            let chain = scene.chain(first.command().unwrap());
            assert!(chain.next(|_| None).is_err(), "{}", scene.place);
            continue;
        }
        let step = scene.step(first);
        let value = Value::from_bytes(&step.command).unwrap();
        let Ok(facts) = scene.manifest.facts(&value, Clock::System.now()) else {
            scene.pushed.remove(&kind);
            unmade.push(kind);
            continue;
        };
        if !facts.is_queued {
            // PHP ran it at once.
            assert!(kind == "mailable" && !scene.pushed.contains_key(&kind));
            continue;
        }
        let theirs = scene.take(&kind, &facts);
        if scene.compare(&kind, &step, &theirs) {
            reordered.push(kind);
        }
    }
    assert!(scene.pushed.is_empty() && scene.encrypted.is_empty());
    assert_eq!(unmade, ["retry-until", "untellable", "closure"]);
    assert_eq!(reordered, reordered_on(version), "Laravel {version}");
}

on_every_laravel!(the_next_job_of_a_chain_is_the_one_that_laravel_pushes);

fn methods_that_only_return_something_are_told_and_no_others(version: u8) {
    let redis = RedisServer::start();
    let hook = [("INTEROP_PAYLOAD_HOOK", "1")];
    let manifest = Laravel::with_env(version, &redis, &hook).exported();
    // Since 11 the framework has its own.
    assert_eq!(manifest.payload_hooks, ["App\\PayloadHook"]);
    let methods = |class: &str| {
        let methods = &manifest.classes[class].methods;
        let told = methods
            .iter()
            .map(|(name, returned)| format!("{name} {returned:?}"));
        told.collect::<Vec<_>>()
            .join("\n")
            .replace(" { text: ", " ")
            .replace("String(", "(")
    };
    let expected = r#"backoff Returned false, parts: [Literal(Array [Number(3), Number(30)])] }
displayName Returned true, parts: [Literal(("App\\Jobs\\Returning")), Literal((":")), Property("number")] }
tries Returned false, parts: [Literal(Number(8))] }
uniqueFor Returned false, parts: [Property("seconds")] }
uniqueId Returned true, parts: [Property("number"), Literal(("-")), Property("place"), Literal(("/é"))] }"#;
    assert_eq!(methods("App\\Jobs\\Returning"), expected);
    assert_eq!(methods("App\\Jobs\\Untellable"), "");
}

on_every_laravel!(methods_that_only_return_something_are_told_and_no_others);
