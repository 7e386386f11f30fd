//! Closures that artisand makes: real PHP workers accept them and do the work that only PHP can.

use std::time::Duration;

use artisand::payload::{Command, Encrypter, Payload, QueuedClosure};
use artisand::php::{Object, Value as Php};
use serde_json::{Value, json};

use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(90);

/// A closure that does nothing: only the properties of the command around it matter.
const NO_OP: &str = "function () {}";

struct Closures {
    scene: Scene,
    encrypter: Encrypter,
}

in_scene!(Closures);

impl Closures {
    fn new(version: u8) -> Self {
        let scene = Scene::new(version, &[("QUEUE_FAILED_DRIVER", "database-uuids")], "");
        let encrypter = scene.laravel.settings().encrypter().unwrap();
        Self { scene, encrypter }
    }

    /// Removes the oldest job, as if it had run.
    fn take(&self) -> (String, Object) {
        let element: Vec<u8> = self
            .redis
            .query(&[b"LPOP", self.queue("default").as_bytes()]);
        let payload = Payload::parse(&element).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        let Php::Object(command) = command.to_value().unwrap() else {
            panic!("no object: {command:?}");
        };
        (payload.uuid.unwrap().to_string(), command)
    }

    fn closure(&self, code: &str, uses: Vec<(&str, Php)>) -> Object {
        let closure = QueuedClosure { code, uses };
        closure.command(&self.encrypter).unwrap()
    }

    /// Queues a command behind the others, in a payload as this version writes it.
    fn push(&self, uuid: &str, command: Object) {
        let batch = command.get("batchId").and_then(Php::as_str);
        let batch = batch.map(str::to_owned);
        let bytes = Php::Object(command).to_bytes();
        let mut payload = json!({
            "uuid": uuid,
            "displayName": "Closure (artisand:1)",
            "job": "Illuminate\\Queue\\CallQueuedHandler@call",
            "maxTries": null, "maxExceptions": null, "failOnTimeout": false,
            "backoff": null, "timeout": null, "retryUntil": null,
            "data": {
                "commandName": "Illuminate\\Queue\\CallQueuedClosure",
                "command": String::from_utf8(bytes).unwrap(),
            },
            "id": "artisand", "attempts": 0,
        });
        if self.laravel.version == 13 {
            payload["data"]["batchId"] = batch.into();
            payload["deleteWhenMissingModels"] = true.into();
        }
        let queue = self.queue("default");
        self.redis
            .query::<()>(&[b"RPUSH", queue.as_bytes(), payload.to_string().as_bytes()]);
    }

    /// Lets PHP work until no job is left; returns the lines of the journal since the last call.
    fn work(&self) -> Vec<Value> {
        let from = self.redis.length("interop:journal");
        let mut worker = self
            .laravel
            .worker(&["--stop-when-empty", "--sleep=0", "--tries=1"]);
        worker.wait_timeout(SOON);
        assert_eq!(
            self.redis.length(&self.queue("default")),
            0,
            "{}",
            worker.describe()
        );
        let lines = self.redis.list("interop:journal").split_off(from);
        lines
            .iter()
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    /// Starts a batch of two jobs and removes the first; returns the batch's id and the job's uuid.
    fn batch(&self, options: &[&str]) -> (String, String) {
        let callbacks = ["--then", "--catch", "--finally"];
        let args = [&["interop:batch", "ok", "ok"][..], &callbacks, options].concat();
        let batch = self.php().run(&args);
        let (uuid, command) = self.take();
        let id = batch["id"].as_str().unwrap().to_owned();
        assert_eq!(batch["uuids"][0], uuid.as_str());
        assert_eq!(command.get("batchId").and_then(Php::as_str), Some(&*id));
        (id, uuid)
    }

    /// Lets PHP work until no job is left; returns the lines that callbacks of batches wrote since the last call.
    fn work_on_batch(&self) -> Vec<Value> {
        let from = self.redis.length("interop:batch");
        assert_eq!(events(&self.work()), ["member-1 run"]);
        let notes = self.redis.list("interop:batch").split_off(from);
        notes
            .iter()
            .map(|note| serde_json::from_slice(note).unwrap())
            .collect()
    }

    /// Counters of a batch: pending, failed, uuids of the failed.
    fn batch_state(&self, id: &str) -> [Value; 3] {
        let state = self.php().run(&["interop:batch-state", id]);
        assert_eq!(state["total"], 2);
        ["pending", "failed", "failed_ids"].map(|field| state[field].clone())
    }
}

/// Names and events of a journal.
fn events(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    lines
        .iter()
        .map(|line| format!("{} {}", text(line, "id"), text(line, "event")))
        .collect()
}

fn a_chain_goes_on_behind_a_closure(version: u8) {
    let scene = Closures::new(version);
    let chain = |id: &str, last: &str| {
        scene.php().text(&["interop:chain", id, "ok", "ok", last]);
        let (_, first) = scene.take();
        let mut command = scene.closure(NO_OP, Vec::new());
        for name in [
            "chained",
            "chainConnection",
            "chainQueue",
            "chainCatchCallbacks",
        ] {
            if let Some(value) = first.get(name) {
                command.set(name, value.clone());
            }
        }
        scene.push("00000000-0000-4000-8000-000000000001", command);
        events(&scene.work())
    };
    assert_eq!(chain("good", "ok"), ["good-2 run", "good-3 run"]);
    assert!(scene.failed().is_empty());
    let bad = chain("bad", "throw");
    assert_eq!(bad, ["bad-2 run", "bad-3 run", "bad catch", "bad-3 failed"]);
}

on_every_laravel!(a_chain_goes_on_behind_a_closure);

/// Names of callbacks.
fn callbacks(notes: &[Value]) -> Vec<&str> {
    let names = notes.iter().map(|note| note["callback"].as_str());
    names.map(Option::unwrap).collect()
}

fn a_batch_ends_with_a_closure(version: u8) {
    let scene = Closures::new(version);
    let (id, uuid) = scene.batch(&[]);
    let mut command = scene.closure(NO_OP, Vec::new());
    command.set("batchId", &*id);
    scene.push(&uuid, command);
    let notes = scene.work_on_batch();
    assert_eq!(callbacks(&notes), ["then", "finally"]);
    for note in &notes {
        let expected = json!([id, 0, 0, true]);
        let found = ["id", "pending", "failed", "finished"].map(|field| note[field].clone());
        assert_eq!(json!(found), expected, "Laravel {version}");
    }
    assert_eq!(scene.batch_state(&id), [json!(0), json!(0), json!([])]);

    // A job that succeeds after it failed is removed from the list of failed ones.
    let (id, uuid) = scene.batch(&["--allow-failures"]);
    fail(&scene, &id, &uuid);
    let mut command = scene.closure(NO_OP, Vec::new());
    command.set("batchId", &*id);
    scene.push(&uuid, command);
    let notes = scene.work_on_batch();
    assert_eq!(callbacks(&notes), ["catch", "finally", "then"]);
    assert_eq!(scene.batch_state(&id), [json!(0), json!(1), json!([])]);
    assert!(scene.failed().is_empty());
}

on_every_laravel!(a_batch_ends_with_a_closure);

/// Queues a closure that records a failed job of a batch.
fn fail(scene: &Closures, batch: &str, uuid: &str) {
    const CODE: &str = "function () use ($batch, $uuid) {
        $batch = \\Illuminate\\Support\\Facades\\Bus::findBatch($batch);
        if ($batch !== null) {
            $batch->recordFailedJob($uuid, new \\RuntimeException('failed in Rust'));
        }
    }";
    let uses = vec![("batch", batch.into()), ("uuid", uuid.into())];
    let command = scene.closure(CODE, uses);
    scene.push("00000000-0000-4000-8000-000000000002", command);
}

fn a_closure_records_a_failed_job_of_a_batch(version: u8) {
    let scene = Closures::new(version);
    for options in [&[][..], &["--allow-failures"]] {
        let (id, uuid) = scene.batch(options);
        fail(&scene, &id, &uuid);
        let notes = scene.work_on_batch();
        assert_eq!(callbacks(&notes), ["catch", "finally"], "Laravel {version}");
        assert_eq!(notes[0]["exception"], "RuntimeException");
        assert_eq!(notes[1]["cancelled"], options.is_empty());
        let expected = [json!(1), json!(1), json!([uuid])];
        assert_eq!(scene.batch_state(&id), expected, "Laravel {version}");
    }
    // A batch that was pruned meanwhile is no error.
    fail(&scene, "gone", "gone");
    assert_eq!(scene.work(), [] as [Value; 0]);
    assert!(scene.failed().is_empty());
}

on_every_laravel!(a_closure_records_a_failed_job_of_a_batch);

fn a_closure_calls_the_callbacks_of_a_chain(version: u8) {
    const CODE: &str = "function () use ($callbacks, $message) {
        foreach ($callbacks as $callback) {
            $callback(new \\RuntimeException($message));
        }
    }";
    const MESSAGE: &str = "what Rust said: \"żółć\"\n\\ 'and' $so on";
    let scene = Closures::new(version);
    scene.php().text(&["interop:chain", "c", "ok", "ok"]);
    let (_, first) = scene.take();
    let callbacks = first.get("chainCatchCallbacks").unwrap().clone();
    assert_eq!(callbacks.as_array().unwrap().pairs.len(), 1);
    let uses = vec![("callbacks", callbacks), ("message", MESSAGE.into())];
    scene.push(
        "00000000-0000-4000-8000-000000000003",
        scene.closure(CODE, uses),
    );
    let lines = scene.work();
    assert_eq!(events(&lines), ["c catch"], "Laravel {version}");
    assert_eq!(lines[0]["exception"], "RuntimeException");
    assert_eq!(lines[0]["message"], MESSAGE);
    assert!(scene.failed().is_empty());
}

on_every_laravel!(a_closure_calls_the_callbacks_of_a_chain);

fn a_closure_of_another_key_is_refused(version: u8) {
    let scene = Closures::new(version);
    let other = Encrypter::new(scene.encrypter.version(), &"x".repeat(32), "AES-256-CBC");
    let closure = QueuedClosure {
        code: NO_OP,
        uses: Vec::new(),
    };
    let uuid = "00000000-0000-4000-8000-000000000004";
    scene.push(uuid, closure.command(&other.unwrap()).unwrap());
    assert_eq!(scene.work(), [] as [Value; 0]);
    let failed = scene.failed();
    let exception = failed[0]["exception"].as_str().unwrap();
    assert!(
        exception.contains("InvalidSignatureException"),
        "{exception}"
    );
}

on_every_laravel!(a_closure_of_another_key_is_refused);

fn closures_of_php_are_signed_alike(version: u8) {
    let scene = Closures::new(version);
    scene.php().text(&["interop:dispatch", "closure"]);
    let (_, command) = scene.take();
    let property = |object: &Object, name: &str| object.get(name).unwrap().clone();
    let Php::Object(closure) = property(&command, "closure") else {
        panic!("{command:?}");
    };
    let Php::Object(signed) = property(&closure, "serializable") else {
        panic!("{closure:?}");
    };
    let text = property(&signed, "serializable");
    let hash = scene.encrypter.sign(text.as_bytes().unwrap());
    assert_eq!(property(&signed, "hash"), Php::from(hash));
    // artisand's closure has all properties of PHP's.
    let ours = scene.closure(NO_OP, Vec::new());
    assert_eq!(ours.class, command.class);
    let names = |text: &[u8]| {
        let Php::Object(native) = Php::from_bytes(text).unwrap() else {
            panic!("{}", String::from_utf8_lossy(text));
        };
        let names = native.properties.into_iter().map(|(name, _)| name);
        (native.class, names.collect::<Vec<_>>())
    };
    let Php::Object(closure) = property(&ours, "closure") else {
        panic!("{ours:?}");
    };
    let Php::Object(of_us) = property(&closure, "serializable") else {
        panic!("{closure:?}");
    };
    let ours = property(&of_us, "serializable");
    assert_eq!(
        names(ours.as_bytes().unwrap()),
        names(text.as_bytes().unwrap())
    );
}

on_every_laravel!(closures_of_php_are_signed_alike);
