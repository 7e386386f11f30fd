//! What people and scripts see: standard output, standard error, exit code.

use std::borrow::Cow;
use std::path::Path;
use std::process::{Command, Output};

use artisand::connection::{Database, DatabaseKind, DatabaseOptions, Row};
use artisand::payload::CALL_QUEUED_HANDLER;
use serde_json::json;

use crate::harness::fixtures;
use crate::harness::process::{ManagedChild, Workplace, artisand, install_program};
use crate::harness::redis::{RedisServer, free_port};

const PREFIX: &str = "laravel-database-";

/// Output with times, ports and paths replaced.
fn shown(output: &Output) -> String {
    let text = format!(
        "exit {}\n--- stdout\n{}--- stderr\n{}",
        output
            .status
            .code()
            .map_or("by signal".to_owned(), |code| code.to_string()),
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    let filters = [
        (
            r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)?",
            "[time]",
        ),
        (r"(\.+ )? ?\d+\.\d\dms", "... [runtime]"),
        (r"\d+(\.\d)?MB", "[mb]"),
        (r"127\.0\.0\.1:\d+", "127.0.0.1:[port]"),
        (r"[^ ]*/artisand\.toml", "[dir]/artisand.toml"),
        (r#""duration":[0-9.e-]+"#, r#""duration":[seconds]"#),
        (r#""memory":\d+"#, r#""memory":[mb]"#),
    ];
    filters.iter().fold(text, |text, (pattern, replacement)| {
        regex::Regex::new(pattern)
            .unwrap()
            .replace_all(&text, *replacement)
            .into_owned()
    })
}

fn run(command: &mut Command) -> String {
    shown(
        &command
            .env("COLUMNS", "80")
            .env_remove("NO_COLOR")
            .output()
            .unwrap(),
    )
}

/// A directory with this configuration in it.
fn configured(toml: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
    directory
}

fn work_in(directory: &tempfile::TempDir) -> String {
    let path = directory.path().join("artisand.toml");
    let mut work = artisand(&["queue:work", "--stop-when-empty", "--config"]);
    run(work.arg(path).env("REDIS_PREFIX", ""))
}

#[test]
fn mistakes_in_the_configuration_are_named_with_their_line() {
    let rows = [
        "[worker]\nconcurency = 3\n",
        "\n[[map]]\njob = 'App\\Jobs\\X'\nhandler = 'nope'\n",
        "\n[[map]]\nbroadcast = 'App\\Events\\X'\nhandler = 'broadcast'\n",
        "[[map]]\njob = '/(/'\nhandler = 'log'\n",
        "[unmapped]\npolicy = 'drop'\n",
        "[[map]]\njob = 'X'\nhandler = { run = 'x' }\n",
        "[[map]]\njob = 'X'\nhandler = { exec = [] }\n",
        "\n[[map]]\njob = 'X'\nhandler = { http = 'localhost:9000/x' }\n",
        "\n[[map]]\njob = 'X'\nhandler = { exec = ['x'], processes = 2 }\n",
        "not toml",
    ];
    let shown: Vec<String> = rows
        .iter()
        .map(|toml| format!("{toml}\n{}", work_in(&configured(toml))))
        .collect();
    insta::assert_snapshot!(shown.join("\n=====\n"));
}

#[test]
fn mistakes_in_middleware_and_queues_for_php_are_said_clearly() {
    let map = |line: &str| format!("[[map]]\njob = 'X'\nhandler = 'log'\n{line}\n");
    let rows = [
        (
            map("canary = 'all'"),
            "`canary` is a number, per cent of the jobs: write `canary = 10`",
        ),
        (
            map("canary = { percent = 5, stopat = 2 }"),
            "unknown key `stopat`; did you mean `stop_at`?",
        ),
        (map("canary = { stop_at = 2 }"), "has no `percent`"),
        (
            map("canary = 101"),
            "`canary` is 101, expected per cent of the jobs, from 0 to 100",
        ),
        (
            map("canary = { percent = 5, stop_at = 100 }"),
            "`stop_at` is 100, expected per cent of the canary's runs that may fail, from 0 to below 100",
        ),
        (
            map("on_mismatch = 'fail'"),
            "`on_mismatch` is `fail`, expected `exception` (the attempt fails) or `php`",
        ),
        (
            map("middleware = ['without_overlapping']"),
            "`without_overlapping` needs a value: write `{ without_overlapping = .. }`",
        ),
        (
            map("middleware = ['without_overlaping']"),
            "unknown name `without_overlaping`; did you mean `without_overlapping`? (there are: `without_overlapping`",
        ),
        (
            map("middleware = [{ without_overlaping = {} }]"),
            "unknown name `without_overlaping`; did you mean `without_overlapping`? (there are: `without_overlapping`",
        ),
        (
            map("middleware = [{ skip_if_batch_cancelled = true }]"),
            "`skip_if_batch_cancelled` has no value: write `\"skip_if_batch_cancelled\"`",
        ),
        (
            map("middleware = [{ skip = '{a}', rate_limited = 'b' }]"),
            "`skip` does not go with `rate_limited`: each middleware is in braces of its own",
        ),
        (map("middleware = [{}]"), "expected a middleware, such as"),
        (map("middleware = [3]"), "expected a middleware, such as"),
        (
            "[php]\nqueue = ''\n".to_owned(),
            "`queue` is empty, expected the name of a queue that PHP workers serve",
        ),
        (
            format!(
                "{}[unmapped]\npolicy = 'fail'\n[php]\nqueue = 'default'\n",
                map("")
            ),
            "what only PHP can do would be pushed to `default` (`queue` under [php]), which this worker works",
        ),
    ];
    for (toml, expected) in rows {
        let said = work_in(&configured(&toml));
        assert!(said.contains(expected), "{toml}\n{said}");
    }
}

#[test]
fn mistakes_in_handlers_are_said_clearly() {
    let empty = tempfile::NamedTempFile::new().unwrap();
    let empty_file = format!(
        "http = 'http://h', secret_file = '{}'",
        empty.path().display()
    );
    let rows = [
        ("", "a handler table needs `exec`, `http` or `forward`"),
        (
            "persistent = true",
            "a handler table needs `exec`, `http` or `forward`",
        ),
        (
            "exec = ['x'], http = 'http://h'",
            "`http` does not go with `exec`: a mapping does one of them",
        ),
        (
            "exec = ['x'], max_jobs = 2",
            "`max_jobs` does not go with `exec`: it is for `exec` with `persistent = true`",
        ),
        (
            "exec = ['x'], persistent = false, processes = 2",
            "`processes` does not go with `exec`",
        ),
        (
            "exec = ['x'], persistent = true, processes = 0",
            "`processes` is 0, expected a whole number from 1",
        ),
        ("exec = [''], persistent = true", "`exec` names no program"),
        (
            "exec = ['x'], timeout = 2",
            "`timeout` does not go with `exec`: it is for `http`",
        ),
        (
            "http = 'http://h', persistent = true",
            "`persistent` does not go with `http`: it is for `exec`",
        ),
        (
            "http = 'http://h', pass_env = ['A']",
            "`pass_env` does not go with `http`: it is for `exec`",
        ),
        (
            "forward = 'q', headers = {}",
            "`headers` does not go with `forward`: it is for `http`",
        ),
        (
            "http = 'http://h', time_out = 2",
            "unknown key `time_out`; did you mean `timeout`? (there are: `exec`, `http`, `forward`",
        ),
        (
            "http = 'http://h', secret_env = 'A', secret_file = 'b'",
            "`secret_env` does not go with `secret_file`",
        ),
        (
            "http = 'ftp://u:s3cr3t@h/x'",
            "`http` is `ftp://h/x`: jobs cannot be posted to `ftp:`; expected a URL such as `http://",
        ),
        ("http = '/x'", "`http` is `/x`: relative URL without a base"),
        (
            "http = 'http://h:99999'",
            "`http` is `http://h:99999`: invalid port number",
        ),
        (
            "http = 'http://h', headers = { 'a b' = 'c' }",
            "header `a b`: no header can have this name",
        ),
        (
            "http = 'http://h', headers = { a = \"s3cr3t\\n\" }",
            "header `a`: its value holds characters that no header can have",
        ),
        (
            "http = 'http://h', headers = { Idempotency-Key = 'c' }",
            "header `Idempotency-Key`: it is set by artisand",
        ),
        (
            "http = 'http://h', headers_env = { Authorization = 'ARTISAND_NOT_SET' }",
            "header `Authorization` is in the environment variable `ARTISAND_NOT_SET`, which is not set",
        ),
        (
            "http = 'http://h', secret_env = 'ARTISAND_NOT_SET'",
            "`secret_env` is `ARTISAND_NOT_SET`, and there is no such environment variable",
        ),
        (
            "http = 'http://h', secret_file = '/nowhere/secret'",
            "cannot read `secret_file` `/nowhere/secret`: No such file",
        ),
        (&*empty_file, "is empty, expected the secret of signatures"),
    ];
    for (keys, expected) in rows {
        let toml = format!("\n[[map]]\njob = 'X'\nhandler = {{ {keys} }}\n");
        let said = work_in(&configured(&toml));
        assert!(
            said.contains("artisand.toml:4: ") && said.contains(expected),
            "{toml}\n{said}"
        );
        assert!(!said.contains("s3cr3t"), "{said}");
    }
}

#[test]
fn wrong_usage_and_servers_that_are_not_there_are_said_clearly() {
    let closed_port = free_port().to_string();
    let bare = |args: &[&str]| {
        let mut command = artisand(args);
        command.env("REDIS_PREFIX", "");
        command
    };
    let rows = [
        run(&mut artisand(&["queue:werk"])),
        run(&mut artisand(&["queue:work", "--tries=many"])),
        run(bare(&["queue:work", "rediss"]).env("REDIS_PORT", &closed_port)),
        run(bare(&["queue:work"]).env("REDIS_PORT", &closed_port)),
        run(bare(&["queue:work"]).env("REDIS_PORT", "x")),
        run(bare(&["queue:work", "--sleep=-1"]).env("REDIS_PORT", &closed_port)),
        run(bare(&["queue:peek"]).env(
            "REDIS_URL",
            format!("redis://:secret@127.0.0.1:{closed_port}"),
        )),
        run(bare(&["queue:quarantine", "--delete"]).env("REDIS_PORT", &closed_port)),
        run(artisand(&["queue:peek"]).env(
            "REDIS_URL",
            format!("redis://:secret@127.0.0.1:{closed_port}"),
        )),
        run(&mut artisand(&[
            "queue:work",
            "--config",
            "/nowhere/artisand.toml",
        ])),
    ];
    let shown = rows.join("\n=====\n");
    assert!(!shown.contains("secret"), "{shown}");
    insta::assert_snapshot!(shown);
}

#[test]
fn keys_of_unknown_prefix_are_neither_read_nor_touched() {
    let redis = RedisServer::start();
    let key = format!("{PREFIX}queues:emails:reserved");
    redis.query::<i64>(&[b"RPUSH", b"queues:default", b"not json"]);
    redis.query::<i64>(&[b"ZADD", key.as_bytes(), b"1", b"not json"]);
    let before = redis.state();
    let commands: [&[&str]; 9] = [
        &["queue:work", "redis", "--stop-when-empty"],
        &["queue:peek"],
        &["queue:clear", "--force"],
        &["queue:migrate"],
        &["queue:monitor", "default"],
        &["queue:quarantine"],
        &["make:handler", "App\\Jobs\\X", "--queue=default"],
        &["doctor"],
        &["queue:work", "--stop-when-empty"],
    ];
    let toml = format!("[connections.other]\nurl = '{}'\n", redis.url());
    let directory = configured(&toml);
    for args in commands {
        let mut command = artisand(args);
        command.current_dir(directory.path());
        let said = run(command.env("REDIS_PORT", redis.port().to_string()));
        // The only connection of the file is the default one.
        let name = if args[1..].contains(&"redis") {
            "redis"
        } else {
            "other"
        };
        assert!(said.starts_with("exit 2"), "{args:?}: {said}");
        let expected = [
            format!("no app and no key prefix is known for queue connection `{name}`"),
            format!("`prefix` under [connections.{name}]"),
            format!("have the prefixes ``, `{PREFIX}`"),
        ];
        for part in expected {
            assert!(said.contains(&part), "{args:?}: {part} in {said}");
        }
    }
    assert_eq!(redis.state(), before);
    let mut peek = artisand(&["queue:peek"]);
    peek.env("REDIS_PORT", redis.port().to_string());
    let said = run(peek.env("REDIS_PREFIX", ""));
    assert!(said.contains("default: 1 pending"), "{said}");
    let said = run(peek.env("REDIS_PREFIX", PREFIX).arg("emails"));
    assert!(
        said.contains("emails: 0 pending, 0 delayed, 1 reserved"),
        "{said}"
    );
}

#[test]
fn the_app_in_the_current_directory_is_the_one_that_is_meant() {
    let redis = RedisServer::start();
    let app = tempfile::tempdir().unwrap();
    let write = |name: &str, text: &str| {
        let path = app.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    let port = redis.port();
    let env = format!("REDIS_PORT={port}\nREDIS_PREFIX=shop-\nQUEUE_CONNECTION=redis\n");
    write(".env", &env);
    write("artisan", "#!/usr/bin/env php\n");
    redis.query::<i64>(&[b"RPUSH", b"shop-queues:default", b"not json"]);
    let peek = |args: &[&str]| {
        let mut command = artisand(&[&["queue:peek"], args].concat());
        // There is no app that PHP could load.
        run(command.current_dir(app.path()).env("PATH", "/nonexistent"))
    };
    // A file `artisan` alone does not make an app.
    let said = peek(&[]);
    assert!(said.contains("no app and no key prefix is known"), "{said}");
    write("bootstrap/app.php", "<?php\n");
    let said = peek(&[]);
    assert!(said.contains("default: 1 pending"), "{said}");
    // A named app wins, wherever it is named.
    let other = tempfile::tempdir().unwrap();
    std::fs::write(other.path().join(".env"), env.replace("shop-", "other-")).unwrap();
    let named = other.path().display().to_string();
    let said = peek(&["--app", &named]);
    assert!(said.contains("default: 0 pending"), "{said}");
    let manifest = serde_json::json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": named, "storage": other.path().join("storage")},
        "config": {
            "queue": {"default": "redis", "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}}},
            "database": {"redis": {"options": {"prefix": "made-"}, "default": {"host": "127.0.0.1", "port": port}}},
        },
    });
    write("made.json", &manifest.to_string());
    write("artisand.toml", "manifest = 'made.json'\n");
    let said = run(artisand(&["doctor", "--json"]).current_dir(app.path()));
    assert!(
        said.contains(&format!("Laravel 13.31.0 in {named}")),
        "{said}"
    );
    write("artisand.toml", &format!("app = '{named}'\n"));
    let said = peek(&[]);
    assert!(said.contains("default: 0 pending"), "{said}");
}

/// An app whose settings say another key prefix in each place: 1 job under that of PHP, 2 under that of the manifest, 3
/// under that of the environment.
struct Sources {
    app: tempfile::TempDir,
    redis: RedisServer,
}

impl Sources {
    fn new() -> Self {
        let app = tempfile::tempdir().unwrap();
        let redis = RedisServer::start();
        for (count, prefix) in (1..).zip(["php-", "made-", "env-"]) {
            let queue = format!("{prefix}queues:default");
            for _ in 0..count {
                redis.query::<i64>(&[b"RPUSH", queue.as_bytes(), b"not json"]);
            }
        }
        let sources = Self { app, redis };
        sources.write("artisan", "");
        sources.write("bootstrap/app.php", "<?php");
        sources.write("answer", &sources.facts("php-"));
        sources.set_env("REDIS_PREFIX=env-\n");
        sources
    }

    fn write(&self, name: &str, text: &str) {
        let path = self.app.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    fn set_env(&self, more: &str) {
        let port = self.redis.port();
        let env = format!("REDIS_PORT={port}\nQUEUE_CONNECTION=redis\n{more}");
        self.write(".env", &env);
    }

    /// A manifest, and PHP's answer.
    fn facts(&self, prefix: &str) -> String {
        serde_json::json!({
            "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
            "paths": {"base": self.app.path(), "storage": self.app.path().join("storage")},
            "config": {
                "queue": {"default": "redis", "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}}},
                "database": {"redis": {"options": {"prefix": prefix}, "default": {"host": "127.0.0.1", "port": self.redis.port()}}},
            },
        })
        .to_string()
    }

    /// Writes `artisand.toml` with these settings, and a shell script that replaces PHP.
    fn set(&self, settings: &str, php: &str) {
        let script = format!("cat >/dev/null; {php}");
        let toml = format!("{settings}\n[php]\nbinary = ['sh', '-c', {script:?}]\n");
        self.write("artisand.toml", &toml);
    }

    fn artisand(&self, args: &[&str]) -> Command {
        let mut command = artisand(args);
        command.current_dir(self.app.path());
        command
    }

    fn peek(&self) -> String {
        run(&mut self.artisand(&["queue:peek"]))
    }

    /// The current prefix has this many jobs.
    fn has(&self, count: usize) -> String {
        let said = self.peek();
        let expected = format!("default: {count} pending");
        assert!(said.contains(&expected), "{said}");
        said
    }

    /// Checks that a command ends with this exit code and prints this.
    fn refuses(&self, code: u8, words: &[&str]) {
        let said = self.peek();
        assert!(said.starts_with(&format!("exit {code}\n")), "{said}");
        for word in words {
            assert!(said.contains(word), "{word}: {said}");
        }
    }
}

const ANSWERS: &str =
    "echo noise; echo ---artisand-manifest---; cat answer; echo; echo ---artisand-manifest---";
const FAILS: &str = "echo 'Class X not found' >&2; exit 255";

#[test]
fn php_says_the_settings_and_where_it_cannot_a_manifest_does() {
    let app = Sources::new();
    app.set("", ANSWERS);
    app.has(1);
    app.set("", FAILS);
    app.refuses(
        1,
        &[
            "(exit status: 255): Class X not found",
            "`artisand manifest`",
            "`settings = \"env\"`",
        ],
    );
    let output = app.artisand(&["doctor", "--json"]).output().unwrap();
    assert_eq!(output.status.code(), Some(2));

    app.write("artisand.toml", "[php]\nbinary = 'no-such-php'\n");
    app.refuses(2, &["artisand.toml:2: no program `no-such-php`"]);

    app.set("", FAILS);
    app.write("artisand.json", &app.facts("made-"));
    let said = app.has(2);
    for part in ["WARN", "Class X not found", "those of the manifest"] {
        assert!(said.contains(part), "{part}: {said}");
    }
    app.write("artisand.toml", "[php]\nbinary = 'no-such-php'\n");
    let said = app.has(2);
    assert!(said.contains("could not run `no-such-php`"), "{said}");
    app.set("", ANSWERS);
    let said = app.has(1);
    assert!(!said.contains("WARN"), "{said}");
}

#[test]
fn the_source_of_the_settings_can_be_picked() {
    let app = Sources::new();
    app.write("artisand.json", &app.facts("made-"));
    for (source, count) in [("php", 1), ("manifest", 2), ("env", 3)] {
        app.set(&format!("settings = '{source}'"), ANSWERS);
        app.has(count);
        let mut command = app.artisand(&["queue:peek"]);
        let said = run(command.env("ARTISAND_SETTINGS", "manifest"));
        assert!(said.contains("default: 2 pending"), "{said}");
    }
    app.set("settings = 'php'", FAILS);
    app.refuses(1, &["Class X not found"]);
    std::fs::remove_file(app.app.path().join("artisand.json")).unwrap();
    app.set("settings = 'manifest'", ANSWERS);
    app.refuses(2, &["there is no manifest"]);
    let mut command = app.artisand(&["queue:peek"]);
    let said = run(command.env("ARTISAND_SETTINGS", "x"));
    assert!(
        said.contains("expected `php`, `manifest` or `env`"),
        "{said}"
    );
}

#[test]
fn what_only_php_reads_is_not_guessed_without_it() {
    let app = Sources::new();
    app.write("config/database.php", "<?php return [];");
    app.set("settings = 'env'", FAILS);
    app.has(3);
    app.set_env("");
    app.refuses(
        2,
        &[
            "`database.redis.options.prefix`",
            "config/database.php",
            "set `REDIS_PREFIX`",
        ],
    );
    let named = "settings = 'env'\n[connections.redis]\nprefix = 'env-'\n";
    app.write("artisand.toml", named);
    app.has(3);
    // A cached configuration hides the environment, unless `settings` selects it.
    app.write("bootstrap/cache/config.php", "<?php return [];");
    app.has(3);
    app.write("artisand.toml", "");
    let mut command = app.artisand(&["queue:peek"]);
    let said = run(command.env("PATH", "/nonexistent"));
    for part in ["the cached configuration", "`artisand manifest`"] {
        assert!(said.contains(part), "{part}: {said}");
    }
}

#[test]
fn all_mistakes_of_a_configuration_are_said_at_once_without_redis_and_php() {
    let app = configured("");
    let write = |name: &str, text: &str| {
        let path = app.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    };
    write("artisan", "");
    write("bootstrap/app.php", "<?php");
    write(
        "composer.json",
        r#"{"autoload": {"psr-4": {"App\\": "app/"}}}"#,
    );
    write("app/Jobs/SendReceipt.php", "<?php");
    write("bin/invoice", "#!/bin/sh\n");
    // No server listens there, and PHP would be found.
    write(
        ".env",
        "REDIS_PORT=1\nREDIS_PREFIX=shop-\nQUEUE_CONNECTION=redis\n",
    );
    write(
        "deploy/artisand.toml",
        r#"
app = ".."
[worker]
concurency = 3
[[map]]
job = "App\Jobs\SendReceipt"
handler = "log"
[[map]]
job = 'App\Jobs\SendReciept'
handler = { exec = ["../bin/invoice"] }
[[map]]
job = 'App\Jobs\SendReceipt'
handler = "nope"
[[map]]
job = 'App\Jobs\SendReceipt'
handler = { exec = "python3 x.py" }
[unmapped]
policy = "drop"
"#,
    );
    let elsewhere = tempfile::tempdir().unwrap();
    let check = |args: &[&str]| {
        let mut command = artisand(&["config:check", "--config"]);
        command
            .arg(app.path().join("deploy/artisand.toml"))
            .args(args)
            .env("PATH", "/nonexistent")
            .current_dir(elsewhere.path());
        run(&mut command).replace(&app.path().display().to_string(), "[app]")
    };
    insta::assert_snapshot!(check(&[]));
    write(
        "deploy/artisand.toml",
        "app = '..'\n[[map]]\njob = 'App\\Jobs\\SendReceipt'\nhandler = { exec = ['/bin/sh'] }\n",
    );
    let said = check(&[]);
    assert!(
        said.starts_with("exit 0") && said.contains("0 errors, 0 warnings"),
        "{said}"
    );
    // Which policy holds depends on PHP, which is not asked.
    let shadow = "[[map]]\njob = 'App\\Jobs\\SendReceipt'\nhandler = 'log'\nmode = 'shadow'\n";
    write("deploy/artisand.toml", &format!("app = '..'\n{shadow}"));
    let said = check(&[]);
    assert!(said.contains("0 errors, 0 warnings"), "{said}");
    for settings in ["", "app = '..'\n[unmapped]\npolicy = 'leave'\n"] {
        write("deploy/artisand.toml", &format!("{settings}{shadow}"));
        let said = check(&[]);
        assert!(
            said.contains("is `leave`: use `php` or `forward`"),
            "{said}"
        );
    }
    let named = "app = '..'\n[[map]]\nlistener = 'App\\Jobs\\SendReceipt'\nhandler = 'log'\n";
    write("deploy/artisand.toml", named);
    let manifest = serde_json::json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": app.path(), "storage": app.path().join("storage")},
        "config": {
            "queue": {"default": "redis", "connections": {"redis": {"driver": "redis", "connection": "default", "queue": "default"}}},
            "cache": {"default": "array", "stores": {"array": {"driver": "array"}}},
            "database": {"redis": {"options": {"prefix": "shop-"}, "default": {"host": "127.0.0.1"}}},
        },
        "classes": {"App\\Jobs\\SendReceipt": {"kind": "mailable", "file": "app/Jobs/SendReceipt.php"}},
    });
    write("artisand.json", &manifest.to_string());
    let said = check(&["--json"]);
    assert!(
        said.starts_with("exit 0") && said.contains("which is a mailable"),
        "{said}"
    );
    assert!(check(&["--strict"]).starts_with("exit 1"));
}

#[test]
fn what_is_not_there_is_named_in_the_words_of_who_wrote_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let write = |name: &str, text: &str| std::fs::write(path(name), text).unwrap();
    let run = |args: &[&str], env: &[(&str, &str)]| {
        let mut command = artisand(args);
        command
            .current_dir(directory.path())
            .env("PATH", "/nonexistent");
        run(command.envs(env.to_vec()))
    };
    write("artisand.toml", "\napp = '/nowhere'\n");
    let said = run(&["queue:work"], &[]);
    let expected = "artisand.toml:2: `app` is /nowhere, and there is no such directory";
    assert!(
        said.starts_with("exit 2") && said.contains(expected),
        "{said}"
    );
    let said = run(&["queue:work", "--app=/gone"], &[]);
    let expected = "`--app` is `/gone`, expected the directory of a Laravel app";
    assert!(
        said.starts_with("exit 2") && said.contains(expected),
        "{said}"
    );

    // In the wrong directory, no server is waited for.
    write(
        "artisand.toml",
        "[connections.redis]\nhost = '127.0.0.1'\nport = 1\n",
    );
    let said = run(&["queue:work"], &[]);
    assert!(said.contains("no app and no key prefix is known"), "{said}");
    assert!(!said.contains("Redis is away"), "{said}");

    for name in ["artisan", "bootstrap.php"] {
        write(name, "");
    }
    write(
        ".env",
        "QUEUE_CONNECTION=sync\nREDIS_PREFIX=\nREDIS_PORT=1\n",
    );
    write(
        "artisand.toml",
        "app = '.'\nlaravel = '13'\nsettings = 'env'\n",
    );
    let said = run(&["queue:work", "--stop-when-empty"], &[]);
    let expected = "connection `sync` has the driver `sync`: its jobs wait nowhere";
    assert!(
        said.starts_with("exit 0") && said.contains(expected),
        "{said}"
    );
}

#[test]
fn the_demo_needs_no_server_and_cleans_up() {
    let home = tempfile::tempdir().unwrap();
    let mut command = artisand(&["demo"]);
    let said = run(command.env("TMPDIR", home.path()));
    for expected in [
        "66 jobs that Laravel 13.31.0 wrote",
        "$ artisand queue:work --stop-when-empty",
        "\"number\":42",
        "App\\Jobs\\RetryUntil",
        "52 jobs are done",
    ] {
        assert!(said.contains(expected), "{expected}: {said}");
    }
    assert!(said.starts_with("exit 0"), "{said}");
    assert_eq!(std::fs::read_dir(home.path()).unwrap().count(), 0);

    let kept = home.path().join("kept");
    let said = run(&mut artisand(&["demo", "--keep", kept.to_str().unwrap()]));
    assert!(said.contains("Everything is in"), "{said}");
    let config = format!("--config={}", kept.join("artisand.toml").display());
    let mut sizes = artisand(&["queue:monitor", "database:default", "--json", &config]);
    let said = run(sizes.current_dir(&kept));
    // One of them is tried again after a second.
    assert!(said.contains("\"size\":15,\"pending\":1"), "{said}");
    let mut due = artisand(&["queue:migrate", "database", &config]);
    let said = run(due.current_dir(&kept));
    let expected = "workers of the driver [database] find due jobs where they are";
    assert!(
        said.starts_with("exit 0") && said.contains(expected),
        "{said}"
    );
    // Twice in the same place would mix two of them.
    let said = run(&mut artisand(&["demo", "--keep", kept.to_str().unwrap()]));
    assert!(said.contains("cannot create"), "{said}");
    the_demo_leaves_other_apps_alone(&kept);
}

/// `app` has what the demo keeps, and stands for an app that the environment names.
fn the_demo_leaves_other_apps_alone(app: &Path) {
    let toml = app.join("artisand.toml");
    let settings = std::fs::read_to_string(&toml).unwrap();
    std::fs::write(&toml, format!("app = '{}'\n{settings}", app.display())).unwrap();
    let options = DatabaseOptions {
        database: app.join("database.sqlite").to_str().unwrap().into(),
        ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
    };
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let database = runtime.block_on(async { Database::new(&options).unwrap() });
    let payload = json!({
        "uuid": "a", "displayName": "App\\Jobs\\Own", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\Own", "command": "O:12:\"App\\Jobs\\Own\":0:{}"},
    });
    let insert = "insert into jobs (queue, payload, attempts, available_at, created_at) values ('default', ?, 0, 0, 0)";
    let payload = payload.to_string();
    let params = [payload.as_str().into()];
    let inserted = runtime.block_on(database.execute(insert, &params));
    inserted.unwrap();
    let jobs = || {
        let select =
            "select cast(id as text), cast(attempts as text), payload from jobs order by id";
        let rows = runtime.block_on(database.rows(select, &[])).unwrap();
        let texts = |row: &Row| [0, 1, 2].map(|column| row.text(column).map(Cow::into_owned));
        rows.iter().map(texts).collect::<Vec<_>>()
    };
    let before = jobs();
    for (name, value) in [
        ("ARTISAND_APP", app.to_owned()),
        ("ARTISAND_CONFIG", toml),
        ("ARTISAND_MANIFEST", app.join("artisand.json")),
    ] {
        let said = run(artisand(&["demo"]).env(name, value));
        assert!(said.contains("52 jobs are done"), "{name}: {said}");
        assert_eq!(jobs(), before, "{name}");
    }
}

#[test]
fn peek_looks_into_the_queues_that_a_worker_would_work() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, "");
    let mut command = workplace.artisand(&["queue:peek"]);
    let said = run(command.env("ARTISAND_QUEUE", "high,default"));
    let heads = said.lines().filter(|line| line.contains(" 0 pending"));
    let heads: Vec<&str> = heads.filter_map(|line| line.split(':').next()).collect();
    assert_eq!(heads, ["  [redis] high", "  [redis] default"], "{said}");
    let said = run(command.arg("other"));
    assert!(
        said.contains("[redis] other: 0") && !said.contains("high"),
        "{said}"
    );
}

#[test]
fn help_reads_like_artisans() {
    insta::assert_snapshot!(run(
        artisand(&["queue:work", "--help"]).env_remove("ARTISAND_CONFIG")
    ));
    assert!(run(&mut artisand(&["completions", "bash"])).contains("queue:work"));
    assert!(run(&mut artisand(&["man"])).contains("queue:work"));
}

#[test]
fn commands_are_listed_and_helped_as_artisan_does() {
    let shown = [
        run(&mut artisand(&["list", "queue"])),
        run(&mut artisand(&["list", "nope"])),
        run(&mut artisand(&["help", "unknown"])),
    ];
    insta::assert_snapshot!(shown.join("\n=====\n"));
    let list = run(&mut artisand(&["list"]));
    assert_eq!(run(&mut artisand(&[])), list);
    let commands: Vec<&str> = list
        .split("Available commands:\n")
        .last()
        .unwrap()
        .lines()
        .collect();
    let place = |line: &str| commands.iter().position(|found| found.starts_with(line));
    assert!(
        place("  doctor ") < place(" make") && place(" make") < place(" queue"),
        "{list}"
    );
    assert!(place(" queue") < place("  queue:clear "), "{list}");
    assert_eq!(
        run(&mut artisand(&["help", "queue:work"])),
        run(&mut artisand(&["queue:work", "-h"]))
    );
}

#[test]
fn the_command_line_takes_what_artisan_takes() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, "[[map]]\njob = '*'\nhandler = 'discard'\n");
    let job = fixtures::lines("payloads/laravel-13.jsonl");
    let element = job[0].1["element"].as_str().unwrap().to_owned();
    redis.query::<()>(&[b"RPUSH", b"queues:default", element.as_bytes()]);
    // Of several values the last counts, and names of commands may be cut.
    let args = [
        "q:w",
        "redis",
        "--queue=nope",
        "--queue=default",
        "--stop-when-empty",
    ];
    let output = workplace.artisand(&args).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(output.status.success() && text.contains("DONE"), "{text}");

    let failed = |args: &[&str]| {
        let output = artisand(args).output().unwrap();
        assert_eq!((output.status.code(), &*output.stdout), (Some(2), &b""[..]));
        String::from_utf8(output.stderr).unwrap()
    };
    let ambiguous = failed(&["queue:re"]);
    for words in [
        "\"queue:re\" is ambiguous",
        "  ⇂ queue:restart\n",
        "  ⇂ queue:retry\n",
    ] {
        assert!(ambiguous.contains(words), "{ambiguous}");
    }
    let option = failed(&["queue:work", "--que=x"]);
    assert!(
        option.contains("'--queue'") && !option.contains("--quiet"),
        "{option}"
    );

    for command in [&["doctor"][..], &["queue:peek"], &["list"]] {
        let run = |args: &[&str]| {
            workplace
                .artisand(&[command, args].concat())
                .output()
                .unwrap()
        };
        let (loud, quiet) = (run(&[]), run(&["-q"]));
        assert!(!loud.stdout.is_empty());
        assert_eq!(
            (loud.status, quiet.stdout),
            (quiet.status, Vec::new()),
            "{command:?}"
        );
    }

    let raw = run(&mut artisand(&["list", "--raw", "config"]));
    let line = "config:check   Check artisand.toml without Redis and PHP, and report all mistakes at once\n";
    assert_eq!(raw, format!("exit 0\n--- stdout\n{line}--- stderr\n"));
    let json = artisand(&["list", "--format=json"])
        .output()
        .unwrap()
        .stdout;
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["application"]["name"], "artisand");
    assert!(
        json["commands"]
            .as_array()
            .unwrap()
            .iter()
            .any(|it| it["name"] == "queue:work")
    );
    assert_eq!(json["namespaces"][0]["id"], "_global");
}

/// Bash's completions at the end of a line.
fn completed(line: &str) -> String {
    let script = r#"
source "$SCRIPT"
COMP_LINE=$LINE COMP_POINT=${#LINE} COMP_TYPE=9 COMP_KEY=9
# As bash splits it.
read -r -a COMP_WORDS <<< "${LINE//:/ : }"
[[ $LINE == *[[:blank:]] ]] && COMP_WORDS+=("")
COMP_CWORD=$((${#COMP_WORDS[@]} - 1))
[[ $(complete -p artisand) =~ -F\ ([^\ ]+) ]]
"${BASH_REMATCH[1]}" artisand "${COMP_WORDS[COMP_CWORD]}" "${COMP_WORDS[COMP_CWORD - 1]}"
echo "${COMPREPLY[@]}"
"#;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("artisand.bash");
    let completions = artisand(&["completions", "bash"]).output().unwrap();
    std::fs::write(&path, completions.stdout).unwrap();
    let output = Command::new("bash")
        .args(["--norc", "-c", script])
        .env("SCRIPT", path)
        .env("LINE", line)
        .output()
        .unwrap();
    assert!(
        output.stderr.is_empty(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    let offered = String::from_utf8(output.stdout).unwrap();
    let mut offered: Vec<&str> = offered.split_whitespace().collect();
    offered.sort_unstable();
    offered.join(" ")
}

#[test]
fn bash_completes_names_with_colons_and_their_options() {
    let rows = [
        ("artisand doct", "doctor"),
        // The text before the last colon is typed already.
        ("artisand queue:wo", "work"),
        ("artisand queue:re", "restart resume retry retry-batch"),
        ("artisand make:", "handler"),
        (
            "artisand queue:work --stop-when-empty-",
            "--stop-when-empty-for",
        ),
        ("artisand queue:peek --del", "--delayed"),
        ("artisand --no-ansi queue:peek --res", "--reserved"),
    ];
    for (line, expected) in rows {
        assert_eq!(completed(line), expected, "{line}");
    }
}

#[test]
fn peek_shows_what_is_delayed_and_reserved_and_what_kind_it_is() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, PREFIX, 90, "");
    let element = |kind: &str| {
        let lines = fixtures::lines("payloads/laravel-13.jsonl");
        let (_, line) = lines.iter().find(|(_, line)| line["kind"] == kind).unwrap();
        line["element"].as_str().unwrap().to_owned()
    };
    let key = |rest: &str| format!("{PREFIX}queues:default{rest}").into_bytes();
    redis.query::<i64>(&[b"RPUSH", &key(""), element("listener").as_bytes()]);
    redis.query::<i64>(&[
        b"ZADD",
        &key(":delayed"),
        b"4000000000",
        element("notification").as_bytes(),
    ]);
    redis.query::<i64>(&[
        b"ZADD",
        &key(":reserved"),
        b"4000000000",
        element("plain").as_bytes(),
    ]);
    let peek = |args: &[&str]| {
        let output = workplace
            .artisand(&[&["queue:peek"], args].concat())
            .output()
            .unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let kinds = |shown: &str| -> Vec<String> {
        let lines = shown.lines().filter(|line| line.contains("attempts "));
        lines.map(|line| line.trim().to_owned()).collect()
    };
    let pending = "listener by handle of App\\Events\\OrderShipped, ";
    let delayed = "notification by mail, delayed, ";
    let reserved = "job, reserved, ";
    #[rustfmt::skip]
    let rows: [(&[&str], &[&str]); 5] = [
        (&[], &[pending]), (&["--delayed"], &[delayed]), (&["--reserved"], &[reserved]),
        (&["--delayed", "--reserved"], &[delayed, reserved]),
        (&["--all"], &["listener by handle of App\\Events\\OrderShipped, pending, ", delayed, reserved]),
    ];
    for (args, expected) in rows {
        let shown = peek(args);
        let kinds = kinds(&shown);
        assert_eq!(kinds.len(), expected.len(), "{args:?} {shown}");
        for (kind, expected) in kinds.iter().zip(expected) {
            assert!(kind.starts_with(expected), "{args:?} {shown}");
        }
    }
    let more = "`--all` shows the delayed and reserved jobs, too";
    assert!(peek(&[]).contains(more) && !peek(&["--all"]).contains(more));
    assert!(peek(&["empty"]).contains("`artisand doctor` lists all queues that have jobs"));
    let states: Vec<serde_json::Value> = peek(&["--all", "--json"])
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap()["state"].clone())
        .collect();
    assert_eq!(states, ["pending", "delayed", "reserved"]);
    assert!(!peek(&["--json"]).contains("\"state\""));
}

#[test]
fn a_summary_has_a_line_per_class() {
    let redis = RedisServer::start();
    let rest = "[[map]]\njob = 'App*Plain'\nhandler = 'discard'\n\n[[map]]\njob = 'App*'\nhandler = { exec = ['sh', '-c', 'exit 3'] }\n";
    let workplace = Workplace::new(&redis, "", 90, rest);
    let push = |class: &str| {
        let payload = serde_json::json!({
            "uuid": format!("u-{class}"), "displayName": class, "job": artisand::payload::CALL_QUEUED_HANDLER,
            "data": {"commandName": class, "command": format!("O:{}:\"{class}\":0:{{}}", class.len())},
            "id": "i", "attempts": 0,
        });
        redis.query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
    };
    for class in ["App\\Plain", "App\\Plain", "App\\Fails"] {
        push(class);
    }
    let args = ["queue:work", "redis", "--summary", "--sleep=1"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    let long = std::time::Duration::from_secs(60);
    let summaries = |worker: &ManagedChild| -> Vec<String> {
        let output = worker.stdout();
        let lines = output
            .lines()
            .filter_map(|line| Some(line.split_once(" Summary ")?.1));
        lines.map(str::to_owned).collect()
    };
    redis.eventually("three ends", long, || {
        (worker.stdout().matches("DONE").count() + worker.stdout().matches("FAIL").count() == 3)
            .then_some(())
    });
    worker.signal(rustix::process::Signal::USR1);
    redis.eventually("a summary", long, || {
        (summaries(&worker).len() == 2).then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(long);
    let lines = summaries(&worker);
    assert_eq!(lines[..2], lines[2..], "{}", worker.stdout());
    assert!(
        lines[0].starts_with("App\\Fails 1 RUN, 0 RETRIED, 1 FAILED FOR GOOD, mean "),
        "{lines:?}"
    );
    assert!(
        lines[1].starts_with("App\\Plain 2 RUN, 0 RETRIED, 0 FAILED FOR GOOD, mean "),
        "{lines:?}"
    );
    assert!(
        lines[1].contains(", max ") && lines[1].ends_with("ms"),
        "{lines:?}"
    );

    push("App\\Plain");
    let args = ["queue:work", "redis", "--summary", "--json", "--once"];
    let output = workplace.artisand(&args).output().unwrap();
    let output = String::from_utf8(output.stdout).unwrap();
    let last: serde_json::Value = serde_json::from_str(output.lines().last().unwrap()).unwrap();
    assert_eq!(
        (&last["status"], &last["job"], &last["runs"]),
        (&"summary".into(), &"App\\Plain".into(), &1.into())
    );
}

#[test]
fn a_closure_that_artisand_pushed_for_a_job_is_told_from_the_job() {
    let redis = RedisServer::start();
    let workplace = Workplace::new(&redis, "", 90, "[unmapped]\npolicy = 'fail'\n");
    let run = |args: &[&str]| {
        for class in ["App\\Counted", "Illuminate\\Queue\\CallQueuedClosure"] {
            let payload = serde_json::json!({
                "uuid": "u", "displayName": "App\\Counted", "job": artisand::payload::CALL_QUEUED_HANDLER,
                "data": {"commandName": class, "command": "O:1:\"A\":0:{}"}, "id": "i", "attempts": 0,
            });
            redis.query::<()>(&[b"RPUSH", b"queues:default", payload.to_string().as_bytes()]);
        }
        let base = ["queue:work", "redis", "--stop-when-empty", "--summary"];
        let output = workplace.artisand(&[&base[..], args].concat()).output();
        String::from_utf8(output.unwrap().stdout).unwrap()
    };
    let output = run(&[]);
    for line in [
        " App\\Counted .",
        " App\\Counted (closure) .",
        "Summary App\\Counted 1 RUN, 0 RETRIED, 1 FAILED FOR GOOD",
        "Summary App\\Counted (closure) 1 RUN, 0 RETRIED, 1 FAILED FOR GOOD",
    ] {
        assert!(output.contains(line), "{line}: {output}");
    }
    let output = run(&["--json"]);
    let lines = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap());
    let lines: Vec<serde_json::Value> = lines.collect();
    for status in ["starting", "failed", "summary"] {
        let found = lines.iter().filter(|line| line["status"] == status);
        let found: Vec<_> = found.map(|line| (&line["job"], &line["closure"])).collect();
        let name = serde_json::json!("App\\Counted");
        assert_eq!(
            found,
            [(&name, &().into()), (&name, &true.into())],
            "{status}: {output}"
        );
    }
}

#[test]
fn a_run_prints_laravels_lines() {
    let redis = RedisServer::start();
    let rest = "[[map]]\njob = 'App\\Jobs\\Plain'\nhandler = 'discard'\n\n[[map]]\njob = 'App\\Jobs\\Retrying'\nhandler = { exec = ['sh', '-c', 'echo broken >&2; exit 3'] }\n";
    let workplace = Workplace::new(&redis, PREFIX, 90, rest);
    let push = |kinds: &[&str]| {
        let lines = fixtures::lines("payloads/laravel-13.jsonl");
        for kind in kinds {
            let (_, line) = lines
                .iter()
                .find(|(_, line)| line["kind"] == *kind)
                .unwrap();
            // Long enough that the job is not due again during the test.
            let element = line["element"].as_str().unwrap();
            let element = element.replace(r#""backoff":"1,5,10""#, r#""backoff":"600""#);
            let key = format!("{PREFIX}queues:default");
            redis.query::<i64>(&[b"RPUSH", key.as_bytes(), element.as_bytes()]);
        }
    };
    push(&["plain", "retrying", "listener"]);
    redis.query::<i64>(&[
        b"RPUSH",
        format!("{PREFIX}queues:default").as_bytes(),
        b"not json",
    ]);
    insta::assert_snapshot!(
        "work",
        run(&mut workplace.artisand(&["queue:work", "--stop-when-empty"]))
    );
    insta::assert_snapshot!("peek", run(&mut workplace.artisand(&["queue:peek"])));
    insta::assert_snapshot!(
        "quarantine",
        run(&mut workplace.artisand(&["queue:quarantine", "--show"]))
    );
    // The released job is due soon, and the rest of the test does not concern it.
    redis.query::<i64>(&[b"DEL", format!("{PREFIX}queues:default:delayed").as_bytes()]);
    push(&["plain"]);
    insta::assert_snapshot!(
        "verbose",
        run(&mut workplace.artisand(&["queue:work", "--once", "-v"]))
    );
    push(&["plain"]);
    insta::assert_snapshot!(
        "json",
        run(&mut workplace.artisand(&["queue:work", "--once", "--json"]))
    );
    push(&["plain"]);
    insta::assert_snapshot!(
        "quiet",
        run(&mut workplace.artisand(&["queue:work", "--once", "-q"]))
    );
}

#[test]
fn peek_prints_the_document_of_every_captured_payload() {
    for version in [
        "payloads/laravel-8.jsonl",
        "payloads/laravel-10.jsonl",
        "payloads/laravel-13.jsonl",
    ] {
        let redis = RedisServer::start();
        let workplace = Workplace::new(&redis, PREFIX, 90, "");
        let lines = fixtures::lines(version);
        for (_, line) in &lines {
            let key = format!("{PREFIX}queues:default");
            redis.query::<i64>(&[
                b"RPUSH",
                key.as_bytes(),
                line["element"].as_str().unwrap().as_bytes(),
            ]);
        }
        let output = workplace
            .artisand(&["queue:peek", "--json", "--limit=1000"])
            .output()
            .unwrap();
        assert!(output.status.success());
        let text = String::from_utf8(output.stdout).unwrap();
        assert_eq!(text.lines().count(), lines.len());
        for (printed, (place, line)) in text.lines().zip(&lines) {
            let document: serde_json::Value = serde_json::from_str(printed).unwrap();
            if line["kind"] == "custom" {
                // A reference behind a `C:` body, which only PHP can follow.
                assert!(document["target"].is_null(), "{place}: {document}");
                continue;
            }
            assert_eq!(document["target"]["kind"], line["category"], "{place}");
            for field in [
                "connection",
                "queue",
                "uuid",
                "id",
                "attempts",
                "maxTries",
                "timeout",
                "displayName",
                "tags",
                "data",
            ] {
                assert!(document.get(field).is_some(), "{place}: no `{field}`");
            }
        }
    }
}

#[test]
fn what_a_payload_says_forges_no_line_and_paints_no_terminal() {
    let redis = RedisServer::start();
    let rest = "[[map]]\njob = '*'\nhandler = { exec = [\"sh\", \"-c\", \"printf 'x\\\\n2099-01-01 INFO all is well \\\\033[2J' >&2; exit 65\"] }\n";
    let workplace = Workplace::new(&redis, "", 90, rest);
    let payload = r#"{"uuid":"u\n2099 INFO fake\u001b[2J","id":"i\u001b[31m","displayName":"App\\Jobs\\X\u009b","job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{"commandName":"App\\Jobs\\X","command":"O:10:\"App\\Jobs\\X\":1:{s:1:\"a\";s:2:\"\u009b\";}"},"attempts":0}"#;
    redis.query::<()>(&[b"RPUSH", b"queues:default", payload.as_bytes()]);
    for args in [
        &["queue:peek"][..],
        &["queue:work", "-v", "--stop-when-empty"],
    ] {
        let output = workplace
            .artisand(args)
            .env("NO_COLOR", "1")
            .output()
            .unwrap();
        assert!(output.status.success(), "{args:?}");
        let is_shown = String::from_utf8_lossy(&output.stdout).contains("App\\Jobs\\X");
        assert!(is_shown, "{args:?}");
        for text in [&output.stdout, &output.stderr] {
            let text = String::from_utf8_lossy(text);
            assert!(!text.contains(['\u{1b}', '\u{9b}']), "{args:?}: {text:?}");
            assert!(
                !text.lines().any(|line| line.starts_with("2099")),
                "{args:?}: {text}"
            );
        }
    }
}

#[test]
fn a_manifest_with_secrets_is_written_to_a_file_that_was_not_there() {
    use std::os::unix::fs::PermissionsExt as _;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let answer = format!(
        r#"{{"artisand":1,"laravel":"13.31.0","generated_at":1,"paths":{{"base":"{0}","storage":"{0}"}},"config":{{"app":{{"key":"secret"}}}}}}"#,
        directory.path().display()
    );
    let mark = "---artisand-manifest---";
    let php = format!("#!/bin/sh\ncat > /dev/null\necho '{mark}{answer}{mark}'\n");
    std::fs::write(at("php.sh"), php).unwrap();
    install_program(&at("php.sh"), &at("php"));
    // The shell replaces itself with artisand, so its process id is known beforehand.
    let script = r#"printf theirs > planted
ln -s planted "$1.$$" && ln -s planted other && exec "$0" manifest --app . --with-secrets --php ./php --output "$1""#;
    for name in ["artisand.json", "other"] {
        let _ = std::fs::remove_file(at("other"));
        let output = Command::new("sh")
            .args(["-c", script, env!("CARGO_BIN_EXE_artisand"), name])
            .current_dir(directory.path())
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", shown(&output));
        assert_eq!(std::fs::read(at("planted")).unwrap(), b"theirs", "{name}");
        assert!(!at(name).is_symlink());
        assert_eq!(
            std::fs::read_to_string(at(name)).unwrap(),
            answer.clone() + "\n"
        );
        let mode = std::fs::metadata(at(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }
}
