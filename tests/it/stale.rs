//! A manifest that is older than the app's code.

use std::fmt::Write as _;
use std::time::Duration;

use serde_json::json;

use crate::harness::process::{ManagedChild, artisand};
use crate::harness::redis::RedisServer;

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    })
}

/// Before Laravel 11.39 only the class says that its jobs have a lock, which the end of the job has to free.
#[test]
fn a_job_whose_class_has_changed_does_not_run_where_its_lock_would_stay() {
    let redis = RedisServer::start();
    let app = tempfile::tempdir().unwrap();
    let base = app.path();
    std::fs::create_dir_all(base.join("app/Jobs")).unwrap();
    let class = base.join("app/Jobs/Once.php");
    std::fs::write(&class, "<?php").unwrap();
    let hash = |text: &str| {
        use sha2::Digest as _;
        hex(&sha2::Sha256::digest(text))
    };
    let cache = base.join("cache");
    let manifest = json!({
        "artisand": 1, "laravel": "8.83.27", "generated_at": 2_000_000_000, "paths": {"base": base, "storage": base.join("storage")},
        "config": {
            "app": {"timezone": "UTC"},
            "queue": {
                "default": "redis",
                "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}},
                "failed": {"driver": "file", "path": base.join("failed.json")},
            },
            "cache": {"default": "redis", "prefix": "", "stores": {"redis": {"driver": "redis", "connection": "default"}, "file": {"driver": "file", "path": cache}}},
            "database": {"redis": {"options": {"prefix": ""}, "default": {"host": "127.0.0.1", "port": redis.port()}}},
        },
        "classes": {"App\\Jobs\\Once": {
            "kind": "job", "file": "app/Jobs/Once.php", "flags": {"queued": true, "unique": true}, "interfaces": [], "uses": [],
            "sources": {"app/Jobs/Once.php": hash("<?php")},
        }},
    });
    std::fs::write(base.join("artisand.json"), manifest.to_string()).unwrap();
    let settings = "app = '.'\nsettings = 'manifest'\nmanifest = 'artisand.json'\n[worker]\ncontrol_plane = false\n[[map]]\njob = 'App\\Jobs\\Once'\nhandler = 'discard'\n[unmapped]\npolicy = 'leave'\n";
    std::fs::write(base.join("artisand.toml"), settings).unwrap();
    let payload = json!({
        "uuid": "u", "displayName": "App\\Jobs\\Once", "job": "Illuminate\\Queue\\CallQueuedHandler@call", "id": "i", "attempts": 0,
        "data": {"commandName": "App\\Jobs\\Once", "command": "O:13:\"App\\Jobs\\Once\":0:{}"},
    })
    .to_string();
    let lock = "laravel_unique_job:App\\Jobs\\Once";
    let work = || {
        redis.query::<()>(&[b"RPUSH", b"queues:default", payload.as_bytes()]);
        redis.query::<()>(&[b"SET", lock.as_bytes(), b"owner"]);
        let mut command = artisand(&["queue:work", "--stop-when-empty", "--sleep=0.1"]);
        command.current_dir(base);
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(Duration::from_secs(60));
        worker
    };
    let locks = || redis.query::<u64>(&[b"EXISTS", lock.as_bytes()]);

    let worker = work();
    assert_eq!(
        (redis.jobs("queues:default"), locks()),
        (0, 0),
        "{}",
        worker.describe()
    );
    std::fs::write(class, "<?php // another line").unwrap();
    let worker = work();
    assert_eq!(
        (redis.jobs("queues:default"), locks()),
        (1, 1),
        "{}",
        worker.describe()
    );
    let log = worker.stderr();
    for part in ["app/Jobs/Once.php has changed", "`artisand manifest`"] {
        assert!(log.contains(part), "no `{part}`: {log}");
    }
}
