//! Chains that leave their connection: to another Redis, each step once, and to a table, by way of PHP.

use std::time::Duration;

use serde_json::Value;

use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(60);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct Elsewhere {
    scene: Scene,
    elsewhere: RedisServer,
}

in_scene!(Elsewhere);

impl Elsewhere {
    fn new(version: u8) -> Self {
        let elsewhere = RedisServer::start();
        let port = elsewhere.port().to_string();
        let env = [("REDIS_CACHE_PORT", &*port), ("REDIS_CACHE_DB", "0")];
        Self {
            scene: Scene::with_classes(version, &env, MAPPINGS),
            elsewhere,
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
        self.lines().into_iter().map(|line| line.id).collect()
    }
}

fn a_chain_goes_over_two_servers_and_each_step_is_pushed_once(version: u8) {
    let scene = Elsewhere::new(version);
    scene.php().text(&["interop:scenario", "chain-elsewhere"]);
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
    assert_eq!(
        scene.redis.length(&follow_ups),
        0,
        "{}",
        scene.redis.state()
    );
    let pushed = scene.elsewhere.list(&far).remove(0);
    let payload: Value = serde_json::from_slice(&pushed).unwrap();
    let record = serde_json::json!({
        "do": "push", "connection": "elsewhere", "queue": "far",
        "payload": String::from_utf8(pushed).unwrap(), "due": null, "id": payload["id"],
    });
    let record = record.to_string();
    scene
        .redis
        .query::<()>(&[b"RPUSH", follow_ups.as_bytes(), record.as_bytes()]);
    scene.run("redis", "nothing");
    assert_eq!(
        scene.redis.length(&follow_ups),
        0,
        "{}",
        scene.redis.state()
    );
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
    // Time is the subject: its delay passes.
    std::thread::sleep(Duration::from_millis(2100));
    scene.run("elsewhere", "farther");
    assert_eq!(
        scene.redis.length(&scene.key("queues:b")),
        1,
        "{}",
        scene.redis.state()
    );
    scene.run("redis", "b");
    assert_eq!(scene.ids(), ["1", "2", "3", "4"]);
}

fn a_step_to_a_table_is_pushed_there(version: u8) {
    let scene = Elsewhere::new(version);
    // The first look makes the tables.
    scene.php().text(&["interop:jobs"]);
    scene.php().text(&["interop:scenario", "chain-to-a-table"]);
    let printed = scene.run("redis", "a");
    let keys = [scene.key("queues:a"), scene.key("artisand:follow-ups")];
    let left = keys.map(|key| scene.redis.length(&key));
    assert_eq!(left, [0, 0], "{printed}");
    let table = scene.php().run(&["interop:jobs"]);
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
