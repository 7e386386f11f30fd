//! Chains that leave their connection: to another Redis, each step once, and to a table, by way of PHP.

use std::time::Duration;

use serde_json::Value;

use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct Scene {
    here: RedisServer,
    elsewhere: RedisServer,
    laravel: Laravel,
    workplace: Workplace,
}

impl Scene {
    fn new(version: u8) -> Self {
        let (here, elsewhere) = (RedisServer::start(), RedisServer::start());
        let port = elsewhere.port().to_string();
        let env = [("REDIS_CACHE_PORT", &*port), ("REDIS_CACHE_DB", "0")];
        let laravel = Laravel::with_env(version, &here, &env);
        let mut manifest = laravel.manifest();
        let classes = laravel.exported_classes();
        for (key, value) in classes.as_object().unwrap() {
            manifest[key] = value.clone();
        }
        let workplace = Workplace::with_manifest(&laravel, &manifest, MAPPINGS);
        Self {
            here,
            elsewhere,
            laravel,
            workplace,
        }
    }

    /// Runs one job of a connection in Rust; returns what the worker printed.
    fn run(&self, connection: &str, queue: &str) -> String {
        let queue = format!("--queue={queue}");
        let args = ["queue:work", connection, "--once", "--sleep=0", &queue];
        let mut worker = self.workplace.worker_of(&args);
        worker.succeeds_within(SOON);
        worker.describe()
    }

    fn ids(&self) -> Vec<String> {
        let id = |line: &Vec<u8>| {
            let line: Value = serde_json::from_slice(line).unwrap();
            line["id"].as_str().unwrap().to_owned()
        };
        self.here.list("interop:journal").iter().map(id).collect()
    }

    fn key(&self, name: &str) -> String {
        self.laravel.key(name)
    }
}

fn a_chain_goes_over_two_servers_and_each_step_is_pushed_once(version: u8) {
    let scene = Scene::new(version);
    scene.laravel.run(&["interop:scenario", "chain-elsewhere"]);
    // A worker that dies between the push and the removal of the record leaves both.
    let follow_ups = scene.key("artisand:follow-ups");
    scene.run("redis", "a");
    let far = scene.key("queues:far");
    assert_eq!(
        scene.elsewhere.length(&far),
        1,
        "{}",
        scene.elsewhere.state()
    );
    assert_eq!(scene.here.length(&follow_ups), 0, "{}", scene.here.state());
    let pushed = scene.elsewhere.list(&far).remove(0);
    let payload: Value = serde_json::from_slice(&pushed).unwrap();
    let record = serde_json::json!({
        "do": "push", "connection": "elsewhere", "queue": "far",
        "payload": String::from_utf8(pushed).unwrap(), "due": null, "id": payload["id"],
    });
    let record = record.to_string();
    scene
        .here
        .query::<()>(&[b"RPUSH", follow_ups.as_bytes(), record.as_bytes()]);
    scene.run("redis", "nothing");
    assert_eq!(scene.here.length(&follow_ups), 0, "{}", scene.here.state());
    assert_eq!(
        scene.elsewhere.length(&far),
        1,
        "{}",
        scene.elsewhere.state()
    );

    scene.run("elsewhere", "far");
    let farther = scene.key("queues:farther:delayed");
    assert_eq!(
        scene.elsewhere.scores(&farther).len(),
        1,
        "{}",
        scene.elsewhere.state()
    );
    // Its delay.
    std::thread::sleep(Duration::from_millis(2100));
    scene.run("elsewhere", "farther");
    assert_eq!(
        scene.here.length(&scene.key("queues:b")),
        1,
        "{}",
        scene.here.state()
    );
    scene.run("redis", "b");
    assert_eq!(scene.ids(), ["1", "2", "3", "4"]);
}

fn a_step_to_a_table_is_pushed_there(version: u8) {
    let scene = Scene::new(version);
    // The first look makes the tables.
    scene.laravel.run(&["interop:jobs"]);
    scene.laravel.run(&["interop:scenario", "chain-to-a-table"]);
    let printed = scene.run("redis", "a");
    let keys = [scene.key("queues:a"), scene.key("artisand:follow-ups")];
    let left = keys.map(|key| scene.here.length(&key));
    assert_eq!(left, [0, 0], "{printed}");
    let table = scene.laravel.run(&["interop:jobs"]).remove(0);
    let rows = table["jobs"].as_array().unwrap();
    // Beside the job, the row that remembers that it was pushed.
    let row = rows.iter().find(|row| row["queue"] == "table");
    let row = row.unwrap_or_else(|| panic!("{table}"));
    let payload = row["payload"].as_str().unwrap();
    assert!(!payload.contains("\"attempts\":"), "{payload}");
    let args = [
        "queue:work",
        "database",
        "--once",
        "--sleep=0",
        "--queue=table",
    ];
    let (output, code) = scene.laravel.text(&args);
    assert_eq!(code, 0, "{output}");
    assert_eq!(scene.ids(), ["1", "2"], "{output}");
}

on_every_laravel!(a_chain_goes_over_two_servers_and_each_step_is_pushed_once);
on_every_laravel!(a_step_to_a_table_is_pushed_there);
