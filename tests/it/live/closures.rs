//! Closures of our own making: real PHP workers accept them and do what only PHP can.

use std::time::Duration;

use artisand::payload::{Command, Encrypter, Payload, QueuedClosure};
use artisand::php::{Object, Value as Php};
use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(30);

/// Does nothing: what counts are the properties of the command around it.
const NO_OP: &str = "function () {}";

struct Scene {
    redis: RedisServer,
    laravel: Laravel,
    encrypter: Encrypter,
}

impl Scene {
    fn new(version: u8) -> Self {
        let redis = RedisServer::start();
        let driver = [("QUEUE_FAILED_DRIVER", "database-uuids")];
        let laravel = Laravel::with_env(version, &redis, &driver);
        let encrypter = laravel.settings().encrypter().unwrap();
        Self {
            redis,
            laravel,
            encrypter,
        }
    }

    fn queue(&self) -> String {
        self.laravel.key("queues:default")
    }

    /// Takes the oldest job away, as if it had been run.
    fn take(&self) -> (String, Object) {
        let element: Vec<u8> = self.redis.query(&[b"LPOP", self.queue().as_bytes()]);
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
        let queue = self.queue();
        self.redis
            .query::<()>(&[b"RPUSH", queue.as_bytes(), payload.to_string().as_bytes()]);
    }

    /// PHP works until there is nothing left; the lines of the journal since the last call.
    fn work(&self) -> Vec<Value> {
        let from = self.redis.length("interop:journal");
        let mut worker = self.laravel.worker(&["--stop-when-empty", "--tries=1"]);
        worker.wait_timeout(SOON);
        assert_eq!(self.redis.length(&self.queue()), 0, "{}", worker.describe());
        let lines = self.redis.list("interop:journal").split_off(from);
        lines
            .iter()
            .map(|line| serde_json::from_slice(line).unwrap())
            .collect()
    }

    fn failed(&self) -> Vec<Value> {
        let found = self.laravel.run(&["interop:failed"]).remove(0);
        found["jobs"].as_array().unwrap().clone()
    }

    /// Starts a batch and takes its first job away; its id, and the job's uuid.
    fn batch(&self, args: &[&str]) -> (String, String) {
        let args = [&["interop:batch"], args].concat();
        let batch = self.laravel.run(&args).remove(0);
        let (uuid, command) = self.take();
        let id = batch["batch"].as_str().unwrap().to_owned();
        assert_eq!(batch["jobs"][0]["uuid"], uuid.as_str());
        assert_eq!(command.get("batchId").and_then(Php::as_str), Some(&*id));
        (id, uuid)
    }

    fn batch_state(&self, id: &str) -> Value {
        self.laravel.run(&["interop:batch-state", id]).remove(0)
    }
}

/// Names and events, without `progress`, which Laravel 8 has not.
fn events(lines: &[Value]) -> Vec<String> {
    let text = |line: &Value, field: &str| line[field].as_str().unwrap().to_owned();
    let lines = lines.iter().filter(|line| line["event"] != "progress");
    lines
        .map(|line| format!("{} {}", text(line, "id"), text(line, "event")))
        .collect()
}

fn a_chain_goes_on_behind_a_closure(version: u8) {
    let scene = Scene::new(version);
    let chain = |id: &str, last: &str| {
        scene.laravel.run(&["interop:chain", id, "ok", "ok", last]);
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

fn a_batch_ends_with_a_closure(version: u8) {
    let scene = Scene::new(version);
    let (id, uuid) = scene.batch(&["b", "ok", "ok"]);
    let mut command = scene.closure(NO_OP, Vec::new());
    command.set("batchId", &*id);
    scene.push(&uuid, command);
    let lines = scene.work();
    assert_eq!(events(&lines), ["b-2 run", "b then", "b finally"]);
    let last = lines.last().unwrap();
    for field in ["pending", "failed"] {
        assert_eq!(last[field], 0, "{last}");
    }
    let state = scene.batch_state(&id);
    let expected = json!({
        "batch": id, "total": 2, "pending": 0, "failed": 0, "failed_ids": [],
        "cancelled": false, "finished": true,
    });
    assert_eq!(state, expected);

    // A retried job that failed before is taken from the list of those.
    let (id, uuid) = scene.batch(&["r", "ok", "ok", "--allow-failures"]);
    fail(&scene, &id, &uuid, "first");
    let mut command = scene.closure(NO_OP, Vec::new());
    command.set("batchId", &*id);
    scene.push(&uuid, command);
    let events = events(&scene.work());
    let expected = ["r-2 run", "r catch", "r finally", "r then"];
    assert_eq!(events, expected, "Laravel {version}");
    let state = scene.batch_state(&id);
    assert_eq!(
        (&state["pending"], &state["failed_ids"]),
        (&json!(0), &json!([]))
    );
}

on_every_laravel!(a_batch_ends_with_a_closure);

/// Queues a closure that records a failed job of a batch.
fn fail(scene: &Scene, batch: &str, uuid: &str, message: &str) {
    const CODE: &str = "function () use ($batch, $uuid, $message) {
        $batch = \\Illuminate\\Support\\Facades\\Bus::findBatch($batch);
        if ($batch !== null) {
            $batch->recordFailedJob($uuid, new \\RuntimeException($message));
        }
    }";
    let uses = vec![
        ("batch", batch.into()),
        ("uuid", uuid.into()),
        ("message", message.into()),
    ];
    let command = scene.closure(CODE, uses);
    scene.push("00000000-0000-4000-8000-000000000002", command);
}

fn a_closure_records_a_failed_job_of_a_batch(version: u8) {
    let scene = Scene::new(version);
    for (name, options) in [("strict", &[][..]), ("lenient", &["--allow-failures"])] {
        let (id, uuid) = scene.batch(&[&[name, "ok", "ok"], options].concat());
        let message = "what Rust said: \"żółć\"\n\\ 'and' $so on";
        fail(&scene, &id, &uuid, message);
        let lines = scene.work();
        let expected = ["-2 run", " catch", " finally"].map(|event| format!("{name}{event}"));
        assert_eq!(events(&lines), expected, "Laravel {version}");
        let catch = lines.iter().find(|line| line["event"] == "catch").unwrap();
        assert_eq!(catch["exception"], "RuntimeException");
        assert_eq!(catch["message"], message);
        let state = scene.batch_state(&id);
        let expected = json!({
            "batch": id, "total": 2, "pending": 1, "failed": 1, "failed_ids": [uuid],
            "cancelled": options.is_empty(), "finished": options.is_empty(),
        });
        assert_eq!(state, expected, "Laravel {version}");
    }
    // A batch that was pruned meanwhile is no error.
    fail(&scene, "gone", "gone", "gone");
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
    let scene = Scene::new(version);
    scene.laravel.run(&["interop:chain", "c", "ok", "ok"]);
    let (_, first) = scene.take();
    let callbacks = first.get("chainCatchCallbacks").unwrap().clone();
    assert_eq!(callbacks.as_array().unwrap().pairs.len(), 1);
    let uses = vec![("callbacks", callbacks), ("message", "it broke".into())];
    scene.push(
        "00000000-0000-4000-8000-000000000003",
        scene.closure(CODE, uses),
    );
    let lines = scene.work();
    assert_eq!(events(&lines), ["c catch"], "Laravel {version}");
    assert_eq!(lines[0]["exception"], "RuntimeException");
    assert_eq!(lines[0]["message"], "it broke");
    assert!(scene.failed().is_empty());
}

on_every_laravel!(a_closure_calls_the_callbacks_of_a_chain);

fn a_closure_of_another_key_is_refused(version: u8) {
    let scene = Scene::new(version);
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
    let scene = Scene::new(version);
    scene.laravel.run(&["interop:dispatch", "closure"]);
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
    // Ours has what theirs has.
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
