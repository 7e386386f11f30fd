//! What `doctor` finds, and says to do about it.

use std::path::PathBuf;
use std::process::Command;

use artisand::payload::{Encrypter, Version};
use serde_json::Value;
use tempfile::TempDir;

use crate::harness::process::artisand;
use crate::harness::redis::RedisServer;

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

    fn doctor(&self, args: &[&str]) -> Command {
        let mut command = artisand(&["doctor", "--config"]);
        // No PHP is to be found: what needs it says so.
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
        let known = ["settings", "php"];
        found.iter().all(|finding| {
            known
                .iter()
                .any(|check| finding.starts_with(&format!("warning {check}")))
        })
    };
    assert_eq!(code, 0, "{found:?}");
    assert!(expected_only(&found), "{found:?}");
    assert_eq!(app.examine(&["--strict"]).0, 1);

    // Classes and who takes them.
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
        text.contains("1 of App\\Jobs\\Other -> nobody here: left in the queue for PHP"),
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
        "1 payloads in quarantine",
        "1 failed jobs wait",
        "maxmemory-policy is allkeys-lru",
    ] {
        assert!(has(&found, expected), "{expected}: {found:?}");
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
        "1 of App\\Jobs\\Mapped -> nobody here: left in the queue for PHP (encrypted)",
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
    // Looking changes nothing.
    assert_eq!(redis.length("app-queues:default"), 2);

    // A key that cannot be used.
    let key = [("APP_KEY", "base64:YWJj")];
    let text = peek(&key, &[]);
    assert!(
        text.contains("Unsupported cipher or incorrect key length."),
        "{text}"
    );
}
