//! The findings of `doctor`, and its remedies.

use std::path::PathBuf;
use std::process::Command;

use artisand::payload::{Encrypter, Version};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::process::artisand;
use crate::harness::redis::{RedisServer, free_port};

/// An app with its cache and failed jobs in files, and a mapping for one class.
struct App(TempDir);

impl App {
    fn new(redis: &RedisServer) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("artisand-app-")
            .tempdir()
            .unwrap();
        let app = Self(directory);
        std::fs::create_dir_all(app.path("storage/framework/cache/data")).unwrap();
        let port = redis.port();
        let env = format!(
            "APP_ENV=local\nREDIS_HOST=127.0.0.1\nREDIS_PORT={port}\nREDIS_PREFIX=app-\nCACHE_STORE=file\nQUEUE_CONNECTION=redis\nQUEUE_FAILED_DRIVER=file\n"
        );
        std::fs::write(app.path(".env"), env).unwrap();
        app.set_mode(".env", 0o600);
        let directory = app.0.path().display();
        let toml = format!(
            "app = \"{directory}\"\nlaravel = \"13.31.0\"\n[[map]]\njob = 'App\\Jobs\\Mapped'\nhandler = 'log'\n"
        );
        std::fs::write(app.path("artisand.toml"), toml).unwrap();
        app
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn set_mode(&self, name: &str, mode: u32) {
        use std::os::unix::fs::PermissionsExt as _;
        let permissions = std::fs::Permissions::from_mode(mode);
        std::fs::set_permissions(self.path(name), permissions).unwrap();
    }

    /// Maps `App\Jobs\Mapped` and `App\Jobs\Other*`, under these settings.
    fn configure(&self, version: &str, more: &str) {
        let directory = self.0.path().display();
        let toml = format!(
            "app = \"{directory}\"\nlaravel = \"{version}\"\n{more}\n[[map]]\njob = 'App\\Jobs\\Mapped'\nhandler = 'log'\n[[map]]\njob = 'App\\Jobs\\Other*'\nhandler = 'log'\n"
        );
        std::fs::write(self.path("artisand.toml"), toml).unwrap();
    }

    fn doctor(&self, args: &[&str]) -> Command {
        let mut command = artisand(&["doctor", "--config"]);
        // There is no PHP: checks that need it say so.
        command
            .arg(self.path("artisand.toml"))
            .args(args)
            .env("PATH", "/nonexistent");
        command
    }

    /// Exit code, and the findings that are not good: level, check and text.
    fn examine(&self, args: &[&str]) -> (i32, Vec<String>) {
        let output = self.doctor(args).arg("--json").output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("").to_owned();
        let findings = report["findings"].as_array().unwrap().iter();
        let bad = findings
            .filter(|finding| finding["level"] != "ok")
            .map(|finding| {
                let (level, check) = (text(finding, "level"), text(finding, "check"));
                assert!(!text(finding, "remedy").is_empty(), "{finding}");
                format!("{level} {check}: {}", text(finding, "found"))
            });
        (output.status.code().unwrap(), bad.collect())
    }
}

fn payload(class: &str) -> Vec<u8> {
    let escaped = class.replace('\\', "\\\\");
    let len = class.len();
    format!(
        r#"{{"uuid":"u","displayName":"{escaped}","job":"Illuminate\\Queue\\CallQueuedHandler@call","timeout":120,"data":{{"commandName":"{escaped}","command":"O:{len}:\"{escaped}\":0:{{}}"}},"attempts":0}}"#
    )
    .into_bytes()
}

/// Whether one of the findings holds this text.
fn has(findings: &[String], text: &str) -> bool {
    findings.iter().any(|finding| finding.contains(text))
}

#[test]
fn what_could_go_wrong_is_found_and_the_exit_code_says_how_bad_it_is() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    let (code, found) = app.examine(&[]);
    let expected_only = |found: &[String]| {
        // Of an app, the directory has the settings only.
        let known = ["settings", "php", "app", "unique"];
        found.iter().all(|finding| {
            known
                .iter()
                .any(|check| finding.starts_with(&format!("warning {check}")))
        })
    };
    assert_eq!(code, 0, "{found:?}");
    assert!(expected_only(&found), "{found:?}");
    assert_eq!(app.examine(&["--strict"]).0, 1);

    // Classes and where their jobs go.
    redis.query::<()>(&[
        b"RPUSH",
        b"app-queues:default",
        &payload("App\\Jobs\\Mapped"),
        &payload("App\\Jobs\\Other"),
    ]);
    let output = app.doctor(&[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains("1 of App\\Jobs\\Mapped -> mapping 1, handler `log`"),
        "{text}"
    );
    assert!(
        text.contains("1 of App\\Jobs\\Other -> left in the queue for PHP"),
        "{text}"
    );
    assert!(text.contains("`default`: 2 pending"), "{text}");
    assert!(text.contains("no table `job_batches` at "), "{text}");
    let (_, found) = app.examine(&[]);
    assert!(
        has(
            &found,
            "warning retry_after: waiting jobs have a timeout that is not shorter"
        ),
        "{found:?}"
    );

    // Signs of trouble.
    std::fs::write(app.path("storage/framework/down"), "{}").unwrap();
    redis.query::<()>(&[b"RPUSH", b"app-queues:default:quarantine", b"{"]);
    redis.query::<()>(&[b"RPUSH", b"app-artisand:failed-spool", b"{}"]);
    redis.query::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"100mb"]);
    redis.query::<()>(&[b"CONFIG", b"SET", b"maxmemory-policy", b"allkeys-lru"]);
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 0, "{found:?}");
    for expected in [
        "the app is down",
        "payloads in quarantine: 1",
        "1 failed jobs wait",
        "maxmemory-policy is allkeys-lru",
    ] {
        assert!(has(&found, expected), "{expected}: {found:?}");
    }
}

#[test]
fn a_cache_store_that_only_php_reads_keeps_no_worker_from_starting() {
    for driver in [
        "memcached",
        "dynamodb",
        "octane",
        "apc",
        "storage",
        "my-own",
    ] {
        let redis = RedisServer::start();
        let app = App::new(&redis);
        let manifest = json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
            "paths": {"base": app.path(""), "storage": app.path("storage")},
            "config": {
                "queue": {"default": "redis", "connections": {"redis": {"driver": "redis"}}, "failed": {"driver": "null"}},
                "cache": {"default": "main", "stores": {"main": {"driver": driver}}},
                "database": {"redis": {"options": {"prefix": "app-"}, "default": {"port": redis.port()}}},
            },
        });
        std::fs::write(app.path("artisand.json"), manifest.to_string()).unwrap();
        let (code, found) = app.examine(&[]);
        assert_eq!(code, 0, "{found:?}");
        let expected = format!(
            "warning cache: `cache.stores.main.driver` of the app is `{driver}`, which only PHP reads"
        );
        assert!(has(&found, &expected), "{found:?}");

        // Its exceptions are counted in that store: it waits for PHP.
        let counted = String::from_utf8(payload("App\\Jobs\\Mapped")).unwrap();
        let counted = counted.replace("\"timeout\":120", "\"timeout\":120,\"maxExceptions\":2");
        let plain = payload("App\\Jobs\\Mapped");
        let push: [&[u8]; 4] = [b"RPUSH", b"app-queues:default", counted.as_bytes(), &plain];
        redis.query::<()>(&push);
        let worked = artisand(&["queue:work", "--stop-when-empty", "--config"])
            .arg(app.path("artisand.toml"))
            .env("PATH", "/nonexistent")
            .output()
            .unwrap();
        let log = String::from_utf8_lossy(&worked.stderr);
        assert!(worked.status.success(), "{log}");
        assert_eq!(
            redis.list("app-queues:default"),
            [counted.into_bytes()],
            "{log}"
        );
        let said = log
            .matches("the app's default cache store is not read here")
            .count();
        assert_eq!(said, 1, "{log}");
        assert!(log.contains("it has `maxExceptions`"), "{log}");
    }
}

#[test]
fn wrong_keys_and_servers_that_are_away_are_errors() {
    let redis = RedisServer::start();
    let app = App::new(&redis);
    redis.query::<()>(&[b"RPUSH", b"shop_database_queues:default", b"x"]);
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2);
    assert!(
        has(
            &found,
            "error prefix: `app-`, but the queues in this database have `shop_database_`"
        ),
        "{found:?}"
    );
    std::fs::write(app.path("storage/framework/cache/failed-jobs.json"), "{").unwrap();
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2);
    assert!(has(&found, "error failed jobs"), "{found:?}");
    drop(redis);
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2);
    assert!(
        has(&found, "error redis: could not connect to Redis"),
        "{found:?}"
    );
    std::fs::write(app.path("artisand.toml"), "nonsense = 1\n").unwrap();
    let (code, found) = app.examine(&[]);
    assert_eq!((code, found.len()), (2, 1), "{found:?}");
}

#[test]
fn mappings_of_what_is_not_there_are_found_and_said_at_the_start() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    std::fs::create_dir_all(app.path("app/Jobs")).unwrap();
    std::fs::create_dir_all(app.path("app/Listeners")).unwrap();
    for class in ["Jobs/SendReceipt", "Listeners/SendShipmentNotification"] {
        std::fs::write(app.path(&format!("app/{class}.php")), "<?php").unwrap();
    }
    let composer = r#"{"autoload": {"psr-4": {"App\\": "app/"}}}"#;
    std::fs::write(app.path("composer.json"), composer).unwrap();
    let port = free_port();
    let toml = std::fs::read_to_string(app.path("artisand.toml")).unwrap();
    let (head, _) = toml.split_once("[[map]]").unwrap();
    let toml = format!(
        "{head}[[map]]\njob = 'App\\Jobs\\SendReciept'\nhandler = 'log'\n[[map]]\njob = 'App\\Listeners\\SendShipmentNotification'\nhandler = 'log'\n[[map]]\ncommand = 'a'\nhandler = {{ exec = ['bin/nothing'] }}\n[[map]]\ncommand = 'b'\nhandler = {{ http = 'http://127.0.0.1:{port}/x' }}\n"
    );
    std::fs::write(app.path("artisand.toml"), toml).unwrap();
    let listener = crate::harness::fixtures::lines("payloads/laravel-13.jsonl");
    let (_, listener) = listener
        .iter()
        .find(|(_, line)| line["kind"] == "listener")
        .unwrap();
    let listener = listener["element"].as_str().unwrap();
    redis.query::<()>(&[
        b"RPUSH",
        b"app-queues:default",
        listener.as_bytes(),
        b"not json",
    ]);
    let config = app.path("artisand.toml");
    let paused = artisand(&["queue:pause", "default", "--config"])
        .arg(&config)
        .output();
    assert!(paused.unwrap().status.success());
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2, "{found:?}");
    for expected in [
        "artisand.toml:4: the app has no class `App\\Jobs\\SendReciept`; did you mean `App\\Jobs\\SendReceipt`?",
        "artisand.toml:7: `job = ..` names `App\\Listeners\\SendShipmentNotification`, and what waits in `default` is a listener of it",
        "bin/nothing`: No such file or directory",
        &format!("artisand.toml:13: `http://127.0.0.1:{port}/x` does not answer: "),
        "warning queue: `default` is paused",
        "warning jobs: `default`: payloads that cannot be decoded",
        "is no Laravel app: it has no `artisan`",
    ] {
        assert!(has(&found, expected), "{expected}: {found:#?}");
    }
    let mut work = artisand(&["queue:work", "--max-time=1", "--sleep=0.1", "--config"]);
    let output = work
        .arg(&config)
        .env("PATH", "/nonexistent")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(said.contains("bin/nothing`: No such file"), "{said}");
    std::fs::create_dir(app.path("bin")).unwrap();
    std::fs::write(app.path("bin/nothing"), "#!/bin/sh\n").unwrap();
    app.set_mode("bin/nothing", 0o755);
    let output = work.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    let expected = "artisand.toml:4: the app has no class";
    assert!(said.contains(expected), "{expected}: {said}");
    // Nothing was lost: the job is of a kind that no mapping takes, and the queue is paused.
    assert_eq!(redis.length("app-queues:default"), 2);
}

#[test]
fn what_other_users_can_change_or_read_is_told() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    let (_, found) = app.examine(&[]);
    assert!(!has(&found, "warning files:"), "{found:?}");
    app.set_mode("artisand.toml", 0o666);
    app.set_mode(".env", 0o644);
    let (_, found) = app.examine(&[]);
    for (name, said) in [
        (
            "artisand.toml",
            "says what artisand does, and users other than its owner can write it (mode 0666)",
        ),
        (
            ".env",
            "holds passwords and keys, and every user of this machine can read it (mode 0644)",
        ),
    ] {
        let warning = format!("warning files: {} {said}", app.path(name).display());
        assert!(has(&found, &warning), "{found:?}");
    }
    let mut work = artisand(&["queue:work", "--stop-when-empty", "--config"]);
    let output = work.arg(app.path("artisand.toml")).output().unwrap();
    let log = String::from_utf8_lossy(&output.stderr);
    let warning = "other users of this machine can change what artisand does";
    assert_eq!(log.matches(warning).count(), 1, "{log}");
}

#[test]
fn whether_encrypted_jobs_can_be_read_is_told_and_peek_reads_them() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    let encrypted = |key: &str| {
        let encrypter = Encrypter::new(Version::NEWEST, &key.repeat(32), "AES-256-CBC").unwrap();
        let command = encrypter.encrypt_command(br#"O:15:"App\Jobs\Mapped":1:{s:1:"x";s:1:"y";}"#);
        let payload: Value = serde_json::from_slice(&payload("App\\Jobs\\Mapped")).unwrap();
        let mut payload = payload;
        payload["data"]["command"] = command.into();
        payload["timeout"] = Value::Null;
        payload.to_string().into_bytes()
    };
    let queue = b"app-queues:default";
    redis.query::<()>(&[b"RPUSH", queue, &encrypted("k"), &encrypted("o")]);
    let peek = |variables: &[(&str, &str)], args: &[&str]| {
        let config = app.path("artisand.toml");
        let mut command = artisand(&["queue:peek", "--config"]);
        command.arg(config).args(args).envs(variables.to_vec());
        String::from_utf8(command.output().unwrap().stdout).unwrap()
    };

    // No key.
    let (_, found) = app.examine(&[]);
    let warning = "warning encryption: `default`: encrypted jobs of App\\Jobs\\Mapped cannot be read: `app.key` of the app cannot be used: No application encryption key has been specified.";
    assert!(has(&found, warning), "{found:?}");
    assert!(
        peek(&[], &[]).contains("encrypted and not readable here: `app.key` of the app"),
        "{}",
        peek(&[], &[])
    );
    assert!(!peek(&[], &["--json"]).contains(r#""x":"y""#));

    // The key of one of them.
    let env = std::fs::read_to_string(app.path(".env")).unwrap();
    let with_key = format!("{env}APP_KEY={}\n", "k".repeat(32));
    std::fs::write(app.path(".env"), &with_key).unwrap();
    let (_, found) = app.examine(&[]);
    let warning = "warning encryption: `default`: encrypted jobs of App\\Jobs\\Mapped cannot be read: the command of App\\Jobs\\Mapped cannot be decrypted: The MAC is invalid.";
    assert!(has(&found, warning), "{found:?}");
    let output = app.doctor(&[]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    for line in [
        "a key for AES-256-CBC is known",
        "`default`: encrypted jobs that can be read: 1",
        "1 of App\\Jobs\\Mapped -> mapping 1, handler `log`",
        "1 of App\\Jobs\\Mapped -> left in the queue for PHP (encrypted)",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }

    // Both keys.
    let rotated = format!("{with_key}APP_PREVIOUS_KEYS={}\n", "o".repeat(32));
    std::fs::write(app.path(".env"), rotated).unwrap();
    let (_, found) = app.examine(&[]);
    assert!(!has(&found, "encryption"), "{found:?}");
    let lines = peek(&[], &["--json"]);
    let readable = r#""data":{"x":"y"},"encrypted":true}"#;
    assert_eq!(lines.matches(readable).count(), 2, "{lines}");
    let text = peek(&[], &[]);
    assert_eq!(text.matches("attempts 0, encrypted\n").count(), 2, "{text}");
    // `doctor` changes nothing.
    assert_eq!(redis.length("app-queues:default"), 2);

    // A key that cannot be used.
    let key = [("APP_KEY", "base64:YWJj")];
    let text = peek(&key, &[]);
    assert!(
        text.contains("Unsupported cipher or incorrect key length."),
        "{text}"
    );
}

/// All findings: check, level and text.
struct Findings(Vec<(String, String)>);

impl Findings {
    fn new(app: &App, env: &[(&str, &str)]) -> Self {
        let output = app.doctor(&["--json"]).envs(env.to_vec()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let text = |finding: &Value, name: &str| finding[name].as_str().unwrap().to_owned();
        let findings = report["findings"].as_array().unwrap().iter();
        let findings = findings.map(|finding| {
            let said = format!("{}: {}", text(finding, "level"), text(finding, "found"));
            (text(finding, "check"), said)
        });
        Self(findings.collect())
    }

    fn of(&self, check: &str) -> Vec<&str> {
        let found = self.0.iter().filter(|(of, _)| of == check);
        found.map(|(_, said)| said.as_str()).collect()
    }
}

/// A manifest with these classes for the app, in a file next to it.
fn write_manifest(app: &App, laravel: &str, classes: &Value) {
    let config = json!({
        "queue": {
            "default": "redis",
            "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}},
            "batching": {"database": "main", "table": "job_batches"},
            "failed": {"driver": "null"},
        },
        "cache": {"default": "array", "stores": {"array": {"driver": "array"}}},
        "database": {
            "redis": {"default": {"host": "127.0.0.1"}},
            "connections": {"main": {"driver": "sqlite", "database": app.path("main.sqlite")}},
        },
    });
    let manifest = json!({
        "artisand": 1, "laravel": laravel, "generated_at": 0, "config": config,
        "paths": {"base": app.0.path(), "storage": app.path("storage")}, "classes": classes,
    });
    std::fs::write(app.path("main.sqlite"), "").unwrap();
    std::fs::write(app.path("manifest.json"), manifest.to_string()).unwrap();
}

#[test]
fn payload_hooks_are_named_with_what_becomes_of_them() {
    let redis = RedisServer::start();
    let app = App::new(&redis);
    let path = app.path("manifest.json");
    let env = [("ARTISAND_MANIFEST", path.to_str().unwrap())];
    write_manifest(&app, "13.31.0", &json!({}));
    let mut manifest: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    manifest["payload_hooks"] = json!(["App\\Tenancy"]);
    std::fs::write(&path, manifest.to_string()).unwrap();
    #[rustfmt::skip]
    let rows = [
        ("[unmapped]\npolicy = 'leave'", "ok: App\\Tenancy adds to payloads; PHP pushes the jobs that follow others, in closures"),
        ("[unmapped]\npolicy = 'php'", "ok: App\\Tenancy adds to payloads; a PHP process is asked what, for jobs that artisand pushes"),
        ("[php]\npayload_hooks = 'skip'", "warning: App\\Tenancy adds to payloads, and jobs that artisand pushes go without that"),
    ];
    for (settings, expected) in rows {
        app.configure("13.31.0", settings);
        let findings = Findings::new(&app, &env);
        assert_eq!(findings.of("payload hooks"), [expected], "{settings}");
    }
}

const NO_QUEUE: &str = "warning: no queue is known that PHP serves: jobs in batches are not taken, nor those of chains with catch callbacks or with steps that need PHP";

const UNKNOWN: &str = "nothing says whether `App\\Jobs\\Mapped` is unique";

/// A class of a manifest.
fn class(flags: &Value, more: &Value) -> Value {
    let mut class = json!({
        "kind": "job", "file": "A.php", "flags": flags,
        "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
    });
    let more = more.as_object().unwrap().clone();
    class.as_object_mut().unwrap().extend(more);
    class
}

#[test]
fn what_is_missing_for_what_follows_a_job_is_found() {
    let redis = RedisServer::start();
    let app = App::new(&redis);
    let unknown = "warning: unique jobs are not taken: only their classes say when their locks are freed, and nothing is known of these";
    #[rustfmt::skip]
    let rows = [
        // version, settings => unique, php queue
        ("8.13.0",  "", None, "ok: what only PHP can do for a job goes to the queue that it came from"),
        ("8.14.0",  "[unmapped]\npolicy = 'forward'\nqueue = 'php'", None, "ok: what only PHP can do for jobs goes to `php`"),
        ("11.38.2", "[unmapped]\npolicy = 'fail'", None, NO_QUEUE),
        ("13.23.0", "[unmapped]\npolicy = 'fail'", None, NO_QUEUE),
        ("13.24.0", "[unmapped]\npolicy = 'fail'\n[php]\nqueue = 'closures'", Some(unknown), "ok: what only PHP can do for jobs goes to `closures`"),
    ];
    for (version, more, unique, php_queue) in rows {
        app.configure(version, more);
        let findings = Findings::new(&app, &[]);
        assert_eq!(findings.of("unique"), Vec::from_iter(unique), "{version}");
        let doubted = findings.of("mappings");
        let doubted = doubted
            .iter()
            .filter(|found| found.contains("whether `App"));
        let is_doubted = matches!(version, "8.14.0" | "11.38.2" | "13.23.0");
        assert_eq!(doubted.count(), if is_doubted { 2 } else { 0 }, "{version}");
        assert_eq!(findings.of("php queue"), [php_queue], "{version}");
    }

    // A worker says it, too.
    app.configure("8.14.0", "[unmapped]\npolicy = 'fail'");
    let mut work = artisand(&["queue:work", "--stop-when-empty", "--config"]);
    let output = work.arg(app.path("artisand.toml")).output().unwrap();
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    for line in [UNKNOWN, NO_QUEUE] {
        let found = line.trim_start_matches("warning: ");
        assert!(text.contains(found), "{found}: {text}");
    }
}

#[test]
fn classes_that_run_here_are_looked_at_for_what_follows_their_jobs() {
    let redis = RedisServer::start();
    let app = App::new(&redis);
    let unique = json!({"queued": true, "unique": true});
    let batchable = json!({"queued": true, "batchable": true});
    let chosen = json!({"queued": true, "unique": true, "batchable": true});
    let by_property = json!({
        "unique_id": {"method": true},
        "properties": [{"name": "id", "visibility": "protected", "class": "App\\Jobs\\Other1"}],
        "methods": {"uniqueId": {"text": true, "parts": [{"literal": "a-"}, {"property": "id"}]}},
    });
    let classes = json!({
        "App\\Jobs\\Other1": class(&unique, &by_property),
        "App\\Jobs\\Other2": class(&unique, &json!({"unique_id": {"method": true}})),
        "App\\Jobs\\Other3": class(&batchable, &json!({})),
        "App\\Jobs\\Elsewhere": class(&chosen, &json!({"unique_via": true})),
    });
    let path = app.path("manifest.json");
    let env = [("ARTISAND_MANIFEST", path.to_str().unwrap())];
    write_manifest(&app, "10.48.29", &classes);
    app.configure("10.48.29", "");
    let findings = Findings::new(&app, &env);
    let found = findings.of("unique");
    assert_eq!(
        found,
        [
            "warning: jobs whose lock is unknown are not taken: App\\Jobs\\Other2: its method `uniqueId()` must be asked, and only PHP can do that; a property would do, or a method that only returns one",
        ]
    );
    let doubted = findings.of("mappings");
    assert!(
        doubted.iter().any(|found| found.contains(UNKNOWN)),
        "{doubted:?}"
    );
    let found = findings.of("batches");
    let no_key = "warning: PHP takes only closures that are signed with the app's key (`app.key` of the app cannot be used: No application encryption key has been specified.), so jobs in batches are not taken; of App\\Jobs\\Other3";
    assert_eq!(found[0], no_key);
    assert!(
        found[1].starts_with("warning: no table `job_batches` at ")
            && found[1]
                .ends_with(", and classes that run here may be in batches: App\\Jobs\\Other3"),
        "{found:?}"
    );

    // All is well.
    let classes = json!({
        "App\\Jobs\\Mapped": class(&json!({"queued": true}), &json!({})),
        "App\\Jobs\\Other1": class(&unique, &by_property),
    });
    write_manifest(&app, "10.48.29", &classes);
    let findings = Findings::new(&app, &env);
    let found = findings.of("unique");
    assert_eq!(
        found,
        ["ok: unique classes that run here, and whose locks are known: 1"]
    );
    let found = findings.of("batches");
    assert!(
        found.len() == 1 && found[0].starts_with("ok: no table"),
        "{found:?}"
    );
}

/// A job of a batch that has a handler.
fn batched(uuid: &str) -> Vec<u8> {
    let mut payload: Value = serde_json::from_slice(&payload("App\\Jobs\\Mapped")).unwrap();
    let command = r#"O:15:"App\Jobs\Mapped":1:{s:7:"batchId";s:1:"b";}"#;
    payload["data"]["command"] = command.into();
    payload["uuid"] = uuid.into();
    payload["timeout"] = Value::Null;
    payload.to_string().into_bytes()
}

#[test]
fn what_is_left_to_do_for_ended_jobs_and_what_php_must_do_is_told() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    let text = || String::from_utf8(app.doctor(&[]).output().unwrap().stdout).unwrap();
    redis.query::<()>(&[b"RPUSH", b"app-queues:default", &batched("u1")]);

    // Without a key no work can be pushed to PHP, and without a table no job can be counted.
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2, "{found:?}");
    let missing = "and there are jobs in batches";
    assert!(has(&found, missing), "{found:?}");
    let text_without_key = text();
    assert!(
        text_without_key.contains("left in the queue for PHP (it is in a batch, or in a chain with catch callbacks, which PHP has to run: PHP takes only closures that are signed"),
        "{text_without_key}"
    );
    let env = std::fs::read_to_string(app.path(".env")).unwrap();
    let env = format!("{env}APP_KEY={}\n", "k".repeat(32));
    std::fs::write(app.path(".env"), env).unwrap();
    assert!(
        text().contains("App\\Jobs\\Mapped -> mapping 1, handler `log`"),
        "{}",
        text()
    );

    // Follow-ups of ended jobs.
    redis.query::<()>(&[b"DEL", b"app-queues:default"]);
    let records = [
        r#"{"do":"unlock","store":"file","name":"lock","owner":"me"}"#,
        r#"{"do":"count","batch":"b","uuid":"u","outcome":"succeeded","token":"t","queue":"q"}"#,
        "{",
    ];
    for record in records {
        redis.query::<()>(&[b"RPUSH", b"app-artisand:follow-ups", record.as_bytes()]);
    }
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 2, "{found:?}");
    assert!(has(&found, missing), "{found:?}");
    let left = "warning follow-ups: left to do in artisand:follow-ups for jobs that have ended: jobs to be counted in batches: 1, locks to be freed: 1, records that cannot be read: 1";
    assert!(has(&found, left), "{found:?}");

    // With no work for PHP.
    let toml = std::fs::read_to_string(app.path("artisand.toml")).unwrap();
    let fail = format!("{toml}\n[unmapped]\npolicy = \"fail\"\n");
    std::fs::write(app.path("artisand.toml"), fail).unwrap();
    redis.query::<()>(&[b"RPUSH", b"app-queues:default", &batched("u2")]);
    let (_, found) = app.examine(&[]);
    assert!(
        has(
            &found,
            "warning php queue: no queue is known that PHP serves"
        ),
        "{found:?}"
    );
    assert!(
        text().contains(
            "fails, as no handler takes it (it is in a batch, or in a chain with catch callbacks, which PHP has to run: no queue is known that PHP serves"
        ),
        "{}",
        text()
    );
}

#[test]
fn closures_that_no_php_worker_takes_are_told() {
    let redis = RedisServer::start_with(&["--save", "", "--appendonly", "yes"]);
    let app = App::new(&redis);
    let closure = br#"{"uuid":"u","displayName":"App\\Jobs\\Import","job":"Illuminate\\Queue\\CallQueuedHandler@call","createdAt":1000,"data":{"commandName":"Illuminate\\Queue\\CallQueuedClosure","command":"O:34:\"Illuminate\\Queue\\CallQueuedClosure\":0:{}"},"attempts":0}"#;
    redis.query::<()>(&[b"RPUSH", b"app-queues:php", closure]);
    let (code, found) = app.examine(&[]);
    assert_eq!(code, 0, "{found:?}");
    assert!(
        has(&found, "warning php queue: `php`: 1 closures wait for PHP"),
        "{found:?}"
    );
}
