//! What people see of queues on a cluster: `doctor`, `tail`, the worker's figures, and Horizon's records.

use std::time::Duration;

use artisand::queue::{Queue as _, QueueName};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::cluster::Cluster;
use crate::harness::process::{ManagedChild, artisand, eventually, until};

const SOON: Duration = Duration::from_secs(60);

/// An app whose queues, cache and Horizon are on the cluster.
fn app(cluster: &Cluster, prefix: &str, horizon: &str) -> TempDir {
    let app = tempfile::tempdir().unwrap();
    let base = app.path();
    let nodes = cluster.seeds();
    let nodes = nodes.split(',').map(|node| {
        let (host, port) = node.split_once(':').unwrap();
        json!({"host": host, "port": port})
    });
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": base, "storage": base.join("storage")},
        "config": {
            "app": {"timezone": "UTC"},
            "queue": {
                "default": "redis",
                "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "{mail}", "retry_after": 90}},
                "failed": {"driver": "file", "path": base.join("failed.json")},
            },
            "cache": {"default": "redis", "stores": {
                "redis": {"driver": "redis", "connection": "default"},
                "file": {"driver": "file", "path": base.join("cache")},
            }},
            "database": {"redis": {
                "client": "phpredis",
                "options": {"prefix": prefix},
                "clusters": {"default": nodes.collect::<Vec<_>>()},
            }},
            "horizon": {"use": "default", "prefix": horizon, "environments": {"artisand": {}}},
        },
    });
    std::fs::write(base.join("artisand.json"), manifest.to_string()).unwrap();
    let settings = r#"
app = "."
settings = "manifest"
manifest = "artisand.json"
[[map]]
job = 'App\Jobs\Fine'
handler = "discard"
[[map]]
job = 'App\Jobs\Bad'
handler = { exec = ["sh", "-c", "echo 'no such invoice' >&2; exit 1"] }
"#;
    std::fs::write(base.join("artisand.toml"), settings).unwrap();
    app
}

fn run(app: &TempDir, args: &[&str]) -> ManagedChild {
    let mut command = artisand(args);
    command.current_dir(app.path());
    ManagedChild::spawn(command)
}

fn job(id: &str, class: &str) -> Vec<u8> {
    let class = format!("App\\Jobs\\{class}");
    let payload = json!({
        "uuid": id, "displayName": class, "job": "Illuminate\\Queue\\CallQueuedHandler@call", "maxTries": null,
        "data": {"commandName": class, "command": format!("O:{}:\"{class}\":0:{{}}", class.len())},
        "id": id, "attempts": 0, "type": "job", "tags": [], "silenced": false, "pushedAt": "1795207352.2461",
    });
    payload.to_string().into_bytes()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn people_see_of_a_cluster_what_they_see_of_a_server() {
    // Slots move.
    let cluster = &Cluster::start();
    let prefix = Cluster::own_prefix();
    let horizon = format!("{prefix}{{hz}}:");
    let app = app(cluster, &prefix, &horizon);
    let queue = cluster.queue(&prefix);
    let push = async |id: &str, class: &str| {
        let name = QueueName::from("{mail}");
        queue.push(&name, &[job(id, class)]).await.unwrap();
    };
    let tail = run(&app, &["tail", "--json"]);
    let mut worker = run(
        &app,
        &[
            "queue:work",
            "--queue={mail},{feed}",
            "--sleep=0.1",
            "--metrics=127.0.0.1:0",
            "-v",
        ],
    );
    // A worker notices a listener after a moment, and tells it of the jobs from then on.
    let mut number = 0;
    until("the worker tells of its jobs", SOON, async || {
        push(&format!("probe-{number}"), "Fine").await;
        number += 1;
        tail.stdout().contains("probe-")
    })
    .await;
    push("bad", "Bad").await;
    let lines = eventually("the failure is told", SOON, || {
        let lines = tail.stdout();
        let is_told = lines
            .lines()
            .any(|line| line.contains("\"bad\"") && line.contains("no such invoice"));
        is_told.then_some(lines)
    });
    assert!(lines.contains(r"App\\Jobs\\Fine"), "{lines}");

    let hash = |id: &str| -> std::collections::BTreeMap<String, String> {
        cluster.query(&[b"HGETALL", format!("{horizon}{id}").as_bytes()])
    };
    eventually("Horizon's record is written", SOON, || {
        (hash("bad").get("status").map(String::as_str) == Some("failed")).then_some(())
    });
    assert_eq!(hash("probe-0")["status"], "completed");
    let slots = cluster.keys(&format!("{horizon}*"));
    let slots: std::collections::BTreeSet<u16> =
        slots.iter().map(|key| cluster.slot(key)).collect();
    assert_eq!(slots.len(), 1);

    // Horizon's slot moves to another node: no record is lost.
    let (first, key) = (cluster.first_master_of(&horizon), format!("{horizon}x"));
    for step in 0..3 {
        let [from, to] = [first + step, first + step + 1].map(|node| node % 3);
        let id = format!("moves-{step}");
        push(&id, "Fine").await;
        cluster.move_slot(&key, from, to, Duration::from_millis(2));
        eventually("its record is written", SOON, || {
            (hash(&id).get("status").map(String::as_str) == Some("completed")).then_some(())
        });
    }

    let mut doctor = run(&app, &["doctor"]);
    doctor.wait_timeout(SOON);
    let text = doctor.stdout();
    for expected in [
        "the cluster of 127.0.0.1:",
        "3 masters",
        "artisand",
        "{mail}",
    ] {
        assert!(text.contains(expected), "{expected}: {}", doctor.describe());
    }
    let mut list = run(&app, &["queue:failed", "--json"]);
    list.succeeds_within(SOON);
    let failed: Value = serde_json::from_str(&list.stdout()).unwrap();
    assert!(failed[0]["id"] == "bad", "{failed}");
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
}

#[test]
fn horizons_keys_have_to_be_in_one_slot() {
    let cluster = Cluster::shared();
    let prefix = Cluster::own_prefix();
    let app = app(cluster, &prefix, "shop_horizon:");
    let mut worker = run(&app, &["queue:work", "--stop-when-empty"]);
    worker.succeeds_within(SOON);
    let said = worker.stderr();
    assert!(said.contains("nothing is written for Horizon"), "{said}");
    assert_eq!(cluster.keys("shop_horizon:*"), [""; 0]);
    for expected in [
        "`horizon.prefix`",
        "`shop_horizon:`",
        "{app}_horizon:",
        "enabled = false",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
}
