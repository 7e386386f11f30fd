//! Jobs of which only their class tells that they are unique, where that class is unknown, or a manifest is older than
//! the app's code.
//!
//! Before Laravel 13.24 often only the class says that its jobs have a lock, which the end of the job has to free.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::process::{ManagedChild, artisand};
use crate::harness::redis::RedisServer;

const LOCK: &str = "laravel_unique_job:App\\Jobs\\Once";

fn hash(text: &str) -> String {
    use sha2::Digest as _;
    sha2::Sha256::digest(text)
        .iter()
        .fold(String::new(), |mut hex, byte| {
            write!(hex, "{byte:02x}").unwrap();
            hex
        })
}

/// A directory with an app of one class, and a worker that discards its jobs.
struct Work {
    redis: RedisServer,
    app: TempDir,
}

impl Work {
    fn new() -> Self {
        let app = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(app.path().join("app/Jobs")).unwrap();
        std::fs::create_dir_all(app.path().join("bootstrap")).unwrap();
        let work = Self {
            redis: RedisServer::start(),
            app,
        };
        work.write("app/Jobs/Once.php", "<?php");
        work
    }

    fn path(&self) -> &Path {
        self.app.path()
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.path().join(name), text).unwrap();
    }

    /// Writes `artisand.toml`: a mapping, and what comes before and in it.
    fn configure(&self, settings: &str, in_mapping: &str) {
        let text = format!(
            "{settings}\n[worker]\ncontrol_plane = false\n[[map]]\njob = 'App\\Jobs\\Once'\nhandler = 'discard'\n{in_mapping}\n[unmapped]\npolicy = 'leave'\n"
        );
        self.write("artisand.toml", &text);
    }

    /// What PHP says of the app, without its classes.
    fn facts(&self, classes: &Value) -> Value {
        let base = self.path();
        json!({
            "artisand": 1, "laravel": "8.83.27", "generated_at": 2_000_000_000, "paths": {"base": base, "storage": base.join("storage")},
            "config": {
                "app": {"timezone": "UTC"},
                "queue": {
                    "default": "redis",
                    "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}},
                    "failed": {"driver": "file", "path": base.join("failed.json")},
                },
                "cache": {"default": "redis", "prefix": "", "stores": {"redis": {"driver": "redis", "connection": "default"}, "file": {"driver": "file", "path": base.join("cache")}}},
                "database": {"redis": {"options": {"prefix": ""}, "default": {"host": "127.0.0.1", "port": self.redis.port()}}},
            },
            "classes": classes,
        })
    }

    /// Runs a worker on one job of the class, whose lock is held; returns how many jobs and locks are left, and its
    /// log.
    fn run(&self, more: &Value) -> ((usize, u64), String) {
        let mut payload = json!({
            "uuid": "u", "displayName": "App\\Jobs\\Once", "job": "Illuminate\\Queue\\CallQueuedHandler@call", "id": "i", "attempts": 0,
            "data": {"commandName": "App\\Jobs\\Once", "command": "O:13:\"App\\Jobs\\Once\":0:{}"},
        });
        let more = more.as_object().unwrap().clone();
        payload.as_object_mut().unwrap().extend(more);
        self.redis.query::<()>(&[b"DEL", b"queues:default"]);
        let payload = payload.to_string();
        self.redis
            .query::<()>(&[b"RPUSH", b"queues:default", payload.as_bytes()]);
        self.redis.query::<()>(&[b"SET", LOCK.as_bytes(), b"owner"]);
        let mut command = artisand(&["queue:work", "--stop-when-empty", "--sleep=0.1"]);
        command.current_dir(self.path());
        let mut worker = ManagedChild::spawn(command);
        worker.succeeds_within(Duration::from_secs(60));
        let locks = self.redis.query(&[b"EXISTS", LOCK.as_bytes()]);
        ((self.redis.jobs("queues:default"), locks), worker.stderr())
    }
}

/// The class as the manifest has it.
fn unique_class() -> Value {
    json!({"App\\Jobs\\Once": {
        "kind": "job", "file": "app/Jobs/Once.php", "flags": {"queued": true, "unique": true}, "interfaces": [], "uses": [],
        "sources": {"app/Jobs/Once.php": hash("<?php")},
    }})
}

const OF_MANIFEST: &str = "app = '.'\nsettings = 'manifest'\nmanifest = 'artisand.json'";

#[test]
fn a_job_whose_class_has_changed_does_not_run_where_its_lock_would_stay() {
    let work = Work::new();
    let facts = work.facts(&unique_class()).to_string();
    work.write("artisand.json", &facts);
    work.configure(OF_MANIFEST, "");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (0, 0), "{log}");
    work.write("app/Jobs/Once.php", "<?php // another line");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (1, 1), "{log}");
    for part in ["app/Jobs/Once.php has changed", "`artisand manifest`"] {
        assert!(log.contains(part), "no `{part}`: {log}");
    }
}

#[test]
fn a_job_of_an_unknown_class_runs_only_if_that_is_said_not_to_be_unique() {
    let work = Work::new();
    let facts = work.facts(&json!({})).to_string();
    work.write("artisand.json", &facts);
    work.configure(OF_MANIFEST, "");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (1, 1), "{log}");
    for part in [
        r"artisand.toml:7: nothing says whether `App\Jobs\Once` is unique",
        "nothing is known of its class, and not all jobs of Laravel 8.83.27 say whether they are unique",
        "`artisand manifest`",
        "`settings = \\\"php\\\"`",
        "`unique = false`",
    ] {
        assert!(log.contains(part), "no `{part}`: {log}");
    }
    work.configure(OF_MANIFEST, "unique = false");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (0, 1), "{log}");
}

/// PHP is asked once, at the start, for what a manifest would have said.
#[test]
fn php_says_which_classes_are_unique() {
    let work = Work::new();
    work.write("artisan", "");
    work.write("bootstrap/app.php", "");
    let tell = |name: &str, facts: &Value| {
        let mark = "---artisand-manifest---";
        work.write(name, &format!("{mark}\n{facts}\n{mark}\n"));
    };
    tell("settings", &work.facts(&json!({})));
    tell("classes", &work.facts(&unique_class()));
    let script = "#!/bin/sh\ncat >/dev/null\ncase \"$*\" in *--config-only*) cat settings ;; *) echo x >>booted; cat classes ;; esac\n";
    work.write("php", script);
    let php = "app = '.'\nlaravel = '8.83.27'\n[php]\nbinary = ['sh', 'php']";
    work.configure(php, "");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (0, 0), "{log}");
    let booted = || std::fs::read_to_string(work.path().join("booted")).unwrap();
    assert_eq!(booted(), "x\n");
    // The app is not booted for what is said.
    work.configure(php, "unique = false");
    let (left, log) = work.run(&json!({}));
    assert_eq!((left, &*booted()), ((0, 1), "x\n"), "{log}");
    work.write("classes", "no such class");
    work.configure(php, "");
    let (left, log) = work.run(&json!({}));
    assert_eq!(left, (1, 1), "{log}");
    assert!(log.contains("PHP could not describe the app"), "{log}");
}

/// Without the app, the form of a job tells whether its Laravel may be one that does not say that it is unique.
#[test]
fn a_job_of_an_unknown_version_runs_if_its_form_says_that_it_would_tell() {
    let work = Work::new();
    let connection = format!(
        "[connections.redis]\nhost = '127.0.0.1'\nport = {}\nprefix = ''",
        work.redis.port()
    );
    let of = |laravel: &str| format!("{laravel}\n{connection}");
    let old = json!({"backoff": null});
    let new = json!({"backoff": null, "createdAt": 1_760_000_000});
    // No Laravel has written it.
    let foreign = json!({});
    #[rustfmt::skip]
    let rows = [
        // settings, in the mapping, job => jobs that are left, what is said
        ("", "", &old, 1, "it has the form of Laravel 8.0 to 12.10"),
        ("", "unique = false", &old, 0, ""),
        ("", "", &new, 0, "the version of Laravel is unknown"),
        ("", "", &foreign, 0, "the version of Laravel is unknown"),
        ("laravel = '13.24'", "", &old, 0, ""),
        ("laravel = '12'", "", &old, 1, "not all jobs of Laravel 12.0.0 do"),
        ("laravel = '8'", "", &old, 1, "not all jobs of Laravel 8.0.0 do"),
    ];
    for (laravel, in_mapping, job, jobs, said) in rows {
        work.configure(&of(laravel), in_mapping);
        let ((left, _), log) = work.run(job);
        assert_eq!(left, jobs, "{laravel} {in_mapping} {job}: {log}");
        assert!(log.contains(said), "{laravel} {in_mapping} {job}: {log}");
        let doctor = artisand(&["doctor", "--json"])
            .current_dir(work.path())
            .output();
        let report: Value = serde_json::from_slice(&doctor.unwrap().stdout).unwrap();
        let findings = report["findings"].as_array().unwrap();
        let unique = findings.iter().find(|finding| finding["check"] == "unique");
        let is_told = !laravel.is_empty() && laravel != "laravel = '13.24'";
        let expected = (!is_told && in_mapping.is_empty()).then_some("warning");
        let level = unique.and_then(|unique| unique["level"].as_str());
        assert_eq!(level, expected, "{laravel}: {report}");
    }
}
