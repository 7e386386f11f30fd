//! What people and scripts see: standard output, standard error, exit code.

use std::process::{Command, Output};

use crate::harness::fixtures;
use crate::harness::process::{Workplace, artisand};
use crate::harness::redis::RedisServer;

const PREFIX: &str = "laravel-database-";

/// Output with times, ports and paths made equal.
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
    run(artisand(&["queue:work", "--stop-when-empty", "--config"]).arg(path))
}

#[test]
fn mistakes_in_the_configuration_are_named_with_their_line() {
    let rows = [
        "[worker]\nconcurency = 3\n",
        "\n[[map]]\njob = 'App\\Jobs\\X'\nhandler = 'nope'\n",
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
            map("middleware = ['without_overlapping']"),
            "`without_overlapping` needs a value: write `{ without_overlapping = .. }`",
        ),
        (
            map("middleware = ['without_overlaping']"),
            "unknown variant `without_overlaping`, expected one of `without_overlapping`",
        ),
        (
            map("middleware = [{ without_overlaping = {} }]"),
            "unknown variant `without_overlaping`, expected one of `without_overlapping`",
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
            "invalid value: integer `0`",
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
            "forward = 'q', headers = {}",
            "`headers` does not go with `forward`: it is for `http`",
        ),
        (
            "http = 'http://h', time_out = 2",
            "unknown field `time_out`, expected one of `exec`, `http`, `forward`",
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
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap()
        .port()
        .to_string();
    let rows = [
        run(&mut artisand(&["queue:werk"])),
        run(&mut artisand(&["queue:work", "--tries=many"])),
        run(artisand(&["queue:work", "rediss"]).env("REDIS_PORT", &nobody)),
        run(artisand(&["queue:work"]).env("REDIS_PORT", &nobody)),
        run(artisand(&["queue:work"]).env("REDIS_PORT", "x")),
        run(artisand(&["queue:work", "--sleep=-1"]).env("REDIS_PORT", &nobody)),
        run(artisand(&["queue:peek"])
            .env("REDIS_URL", format!("redis://:secret@127.0.0.1:{nobody}"))),
        run(artisand(&["queue:quarantine", "--delete"]).env("REDIS_PORT", &nobody)),
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
fn help_reads_like_artisans() {
    insta::assert_snapshot!(run(
        artisand(&["queue:work", "--help"]).env_remove("ARTISAND_CONFIG")
    ));
    assert!(run(&mut artisand(&["completions", "bash"])).contains("queue:work"));
    assert!(run(&mut artisand(&["man"])).contains("queue:work"));
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
            // Long enough not to be due again before the test is over.
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
    // The job that was released is due soon, and nothing of what follows is about it.
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
