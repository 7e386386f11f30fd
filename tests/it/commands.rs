//! artisan's commands on an app's failed jobs, signals and queues.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::process::Signal;
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::harness::fixtures;
use crate::harness::process::{ManagedChild, artisand, eventually, with_hangups};
use crate::harness::redis::RedisServer;

const PREFIX: &str = "app-";
const SOON: Duration = Duration::from_secs(60);

/// The directory of an app that keeps its failed jobs and its cache in files.
pub(crate) struct App(TempDir);

impl App {
    pub(crate) fn new(port: u16, laravel: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("artisand-app-")
            .tempdir()
            .unwrap();
        let app = Self(directory);
        std::fs::create_dir_all(app.path("storage/framework/cache/data")).unwrap();
        let env = format!(
            "APP_ENV=local\nAPP_TIMEZONE=UTC\nREDIS_HOST=127.0.0.1\nREDIS_PORT={port}\nREDIS_PREFIX={PREFIX}\nCACHE_STORE=file\nQUEUE_CONNECTION=redis\nQUEUE_FAILED_DRIVER=file\n"
        );
        std::fs::write(app.path(".env"), env).unwrap();
        let directory = app.0.path().display();
        let toml = format!("app = \"{directory}\"\nlaravel = \"{laravel}\"\n");
        std::fs::write(app.path("artisand.toml"), toml).unwrap();
        app
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = artisand(args);
        command
            .arg("--config")
            .arg(self.path("artisand.toml"))
            .env("COLUMNS", "80")
            // There is no PHP: commands that need it have to say so.
            .env("PATH", "/nonexistent")
            .stdin(std::process::Stdio::null());
        command
    }

    /// Output and exit code, with run times replaced.
    fn run(&self, args: &[&str]) -> String {
        shown(&mut self.command(args))
    }

    /// Writes the file of failed jobs: id, connection, payload and seconds each.
    pub(crate) fn fail(&self, jobs: &[(&str, &str, &str, i64)]) {
        let entry = |(id, connection, payload, at): &(&str, &str, &str, i64)| -> Value {
            let moment = moment_of(*at);
            json!({"id": id, "connection": connection, "queue": "default", "payload": payload, "exception": "E", "failed_at": moment, "failed_at_timestamp": at})
        };
        let entries: Vec<Value> = jobs.iter().map(entry).collect();
        let text = serde_json::to_string_pretty(&entries).unwrap();
        std::fs::write(self.path(FAILED), text).unwrap();
    }

    /// Adds to its settings.
    pub(crate) fn configure(&self, more: &str) {
        let path = self.path("artisand.toml");
        let toml = std::fs::read_to_string(&path).unwrap();
        std::fs::write(path, toml + more).unwrap();
    }

    /// Makes a shell script PHP; its directory is `$D`.
    fn php(&self, script: &str) {
        std::fs::write(self.path("artisan"), "<?php").unwrap();
        let php = self.path("php");
        std::fs::write(&php, format!("D=${{0%/*}}; {script}")).unwrap();
        let php = php.display();
        self.configure(&format!("[php]\nbinary = ['/bin/sh', '{php}']\n"));
    }

    /// Puts a file where the cache's directory was. No process can take the lock on the file of failed jobs then, so that
    /// failed jobs can be read, but not deleted.
    pub(crate) fn keep_failed(&self) {
        let cache = self.path("storage/framework/cache/data");
        std::fs::remove_dir_all(&cache).unwrap();
        std::fs::write(cache, "").unwrap();
    }

    /// Ids of the failed jobs.
    pub(crate) fn failed(&self) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(FAILED)).unwrap();
        let entries: Vec<Value> = serde_json::from_str(&text).unwrap();
        let id = |entry: &Value| entry["id"].as_str().unwrap().to_owned();
        entries.iter().map(id).collect()
    }
}

/// Tests fail jobs in the first minute of 2026 or just now; only the former is looked at.
fn moment_of(at: i64) -> String {
    format!("2026-01-01 00:00:{:02}", at.rem_euclid(60))
}

/// Where an app keeps its failed jobs.
const FAILED: &str = "storage/framework/cache/failed-jobs.json";
/// The first second of 2026.
const LONG_AGO: i64 = 1_767_225_600;

fn now() -> i64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    i64::try_from(since.unwrap().as_secs()).unwrap()
}

fn shown(command: &mut Command) -> String {
    let output = command.env_remove("NO_COLOR").output().unwrap();
    let code = output.status.code().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    let filters = [
        (r"\.+ \d+\.\d\dms", "... [runtime]"),
        (r"/[^ ]*/artisand-app-\w+", "[app]"),
        // Boxes and columns end with two blanks, which no editor keeps.
        (r"(?m) +$", ""),
    ];
    let text = filters
        .iter()
        .fold(text.into_owned(), |text, (pattern, replacement)| {
            let pattern = regex::Regex::new(pattern).unwrap();
            pattern.replace_all(&text, *replacement).into_owned()
        });
    let errors = errors.replace("  \n", "\n");
    let stderr = if errors.is_empty() { "" } else { "--- stderr" };
    format!("exit {code}\n{text}{stderr}{errors}")
}

pub(crate) fn payload(retry_until: Option<i64>) -> String {
    let lines = fixtures::lines("payloads/laravel-13.jsonl");
    let plain = lines.iter().find(|(_, line)| line["kind"] == "plain");
    let element = plain.unwrap().1["element"].as_str().unwrap();
    let mut payload: Value = serde_json::from_str(element).unwrap();
    payload["attempts"] = 3.into();
    payload["retryUntil"] = json!(retry_until);
    payload.to_string()
}

#[test]
fn failed_jobs_are_listed_forgotten_and_pruned() {
    let app = App::new(1, "13.31.0");
    insta::assert_snapshot!(app.run(&["queue:failed"]), @r"
        exit 0

           INFO  No failed jobs found.
        ");
    insta::assert_snapshot!(app.run(&["queue:failed", "--json"]), @r"
        exit 0
        []
        ");
    let string_job = r#"{"job":"Mail\u001b[31m@send","data":{"to":"x"}}"#;
    app.fail(&[
        ("c", "redis", &payload(None), now()),
        ("b", "redis", string_job, LONG_AGO + 1),
        ("a", "sync", "not json", LONG_AGO),
    ]);
    let list = app.run(&["queue:failed"]);
    let list = list
        .lines()
        .filter(|line| !line.contains(" c "))
        .collect::<Vec<_>>();
    insta::assert_snapshot!(list.join("\n"), @r"
        exit 0

          2026-01-01 00:00:01 b .................... redis@default Mail\u{1b}[31m@send
          2026-01-01 00:00:00 a ........................................ sync@default
        ");
    insta::assert_snapshot!(app.run(&["queue:forget", "a"]), @r"
        exit 0

           INFO  Failed job deleted successfully.
        ");
    insta::assert_snapshot!(app.run(&["queue:forget", "a"]), @r"
        exit 1

           ERROR  No failed job matches the given ID.
        ");
    insta::assert_snapshot!(app.run(&["queue:flush", "--hours=100000000"]), @r"
        exit 0

           INFO  All jobs that failed more than 100000000 hours ago have been deleted successfully.
        ");
    assert_eq!(app.failed(), ["c", "b"]);
    insta::assert_snapshot!(app.run(&["queue:prune-failed"]), @r"
        exit 0

           INFO  1 entries deleted.
        ");
    assert_eq!(app.failed(), ["c"]);
    insta::assert_snapshot!(app.run(&["queue:flush"]), @r"
        exit 0

           INFO  All failed jobs deleted successfully.
        ");
    assert!(app.failed().is_empty());
}

#[test]
fn a_store_that_cannot_prune_says_so_and_without_an_app_there_is_none() {
    let app = App::new(1, "13.31.0");
    let prune = |driver: &str| {
        let mut command = app.command(&["queue:prune-failed"]);
        shown(command.env("QUEUE_FAILED_DRIVER", driver))
    };
    insta::assert_snapshot!(prune("null"), @r"
        exit 1

           ERROR  The [NullFailedJobProvider] failed job storage driver does not support pruning.
        ");
    let nowhere = tempfile::tempdir().unwrap();
    insta::assert_snapshot!(shown(artisand(&["queue:failed"]).current_dir(nowhere.path())), @r"
        exit 2
        --- stderr
           ERROR  no Laravel app is known: run this in its directory, or give that with --app, ARTISAND_APP or `app` in artisand.toml, or give a manifest
        ");
}

#[test]
fn only_the_apps_own_php_retries_what_only_its_class_can_renew() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    app.php("case $1 in -r) printf 8.4.1;; *) echo \"$*\" > $D/asked;; esac");
    // PHP does not know this one.
    let port = redis.port();
    app.configure(&format!(
        "[connections.own]\nhost = '127.0.0.1'\nport = {port}\nprefix = '{PREFIX}'\n"
    ));
    let artisan = app.path("artisan").display().to_string();
    let (past, soon) = (now() - 600, now() + 600);
    for (id, connection, until) in [("past", "redis", past), ("soon", "redis", soon)] {
        app.fail(&[(id, connection, &payload(Some(until)), LONG_AGO)]);
        let said = app.run(&["queue:retry", id]);
        let stays = format!(
            "Job [{id}] could not be retried: it is still a failed job after `php artisan queue:retry`"
        );
        assert!(said.contains(&stays), "{said}");
        let asked = std::fs::read_to_string(app.path("asked")).unwrap();
        assert_eq!(asked, format!("{artisan} queue:retry -- {id}\n"));
    }
    app.fail(&[("soon", "own", &payload(Some(soon)), LONG_AGO)]);
    let said = app.run(&["queue:retry", "soon"]);
    assert!(said.starts_with("exit 0\n"), "{said}");
    assert!(said.contains("WARN  1 job was pushed as it was"), "{said}");
    assert_eq!(redis.length(&format!("{PREFIX}queues:default")), 1);
}

/// An app with a queue on SQS that keeps order, of whose classes a manifest knows two.
#[cfg(feature = "sqs")]
fn app_with_groups(redis: &RedisServer, server: &crate::harness::sqs::Sqs) -> App {
    let app = App::new(redis.port(), "13.31.0");
    let class = |groups_itself: bool| json!({"kind": "job", "file": "A.php", "flags": {"queued": true, "groups_itself": groups_itself}});
    let sqs = json!({"driver": "sqs", "key": "k", "secret": "s", "region": "eu-central-1", "prefix": server.prefix()});
    let manifest = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 2_000_000_000,
        "paths": {"base": app.path(""), "storage": app.path("storage")},
        "config": {
            "app": {"timezone": "UTC"},
            "queue": {"default": "sqs", "connections": {"sqs": sqs}, "failed": {"driver": "file", "path": app.path(FAILED)}},
            "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": app.path("storage/framework/cache/data")}}},
            "database": {"redis": {"options": {"prefix": PREFIX}, "default": {"host": "127.0.0.1", "port": redis.port()}}},
        },
        "classes": {"App\\Jobs\\Plain": class(false), "App\\Jobs\\Group": class(true)},
    });
    std::fs::write(app.path("artisand.json"), manifest.to_string()).unwrap();
    let (base, manifest) = (app.path(""), app.path("artisand.json"));
    let settings = format!(
        "app = '{}'\nsettings = 'manifest'\nmanifest = '{}'\n[worker]\nledger = 'redis'\n",
        base.display(),
        manifest.display()
    );
    std::fs::write(app.path("artisand.toml"), settings).unwrap();
    app
}

#[cfg(feature = "sqs")]
#[test]
fn php_asks_a_class_for_its_group_on_a_queue_that_keeps_order() {
    let redis = RedisServer::start();
    let server = crate::harness::sqs::Sqs::start();
    let app = app_with_groups(&redis, &server);
    app.php("case $1 in -r) ;; *) echo \"$*\" >> $D/asked;; esac");
    let fail = |class: &str| {
        app.fail(&[("a", "sqs", &payload(None).replace("Plain", class), LONG_AGO)]);
        let jobs = std::fs::read_to_string(app.path(FAILED)).unwrap();
        let jobs = jobs.replace("\"default\"", "\"orders.fifo\"");
        std::fs::write(app.path(FAILED), jobs).unwrap();
    };
    let sent = || server.messages("orders.fifo").len();
    #[rustfmt::skip]
    let rows = [
        // class, whether PHP runs, exit code, what is said, messages
        ("Plain", true, 0, "DONE", 1),
        ("Group", true, 1, "still a failed job after `php artisan queue:retry`", 1),
        ("Other", true, 1, "still a failed job after `php artisan queue:retry`", 1),
        ("Group", false, 1, "only its PHP class knows its group: retry it with `php artisan queue:retry a`", 1),
        ("Other", false, 0, "WARN  1 job was pushed as it was", 2),
    ];
    for (class, runs, code, expected, messages) in rows {
        fail(class);
        let mut command = app.command(&["queue:retry", "a"]);
        if !runs {
            command.env("ARTISAND_PHP", "/nonexistent/php");
        }
        let said = shown(&mut command);
        assert!(
            said.starts_with(&format!("exit {code}\n")),
            "{class}: {said}"
        );
        assert!(said.contains(expected), "{class}: {said}");
        assert_eq!(sent(), messages, "{class}: {said}");
    }
    let asked = std::fs::read_to_string(app.path("asked")).unwrap();
    assert_eq!(asked.matches("queue:retry -- a\n").count(), 2, "{asked}");
}

#[test]
fn one_php_process_retries_many_jobs_and_another_those_behind_one_that_it_cannot() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let (past, plain) = (payload(Some(now() - 600)), payload(None));
    let job = |id| (id, "redis", past.as_str(), LONG_AGO);
    // What PHP leaves of them.
    for (name, left) in [("second", &["bad"][..]), ("first", &["bad", "c"])] {
        let left: Vec<_> = left.iter().map(|id| job(*id)).collect();
        app.fail(&left);
        std::fs::rename(app.path(FAILED), app.path(name)).unwrap();
    }
    app.fail(&[
        job("a"),
        job("bad"),
        ("plain", "redis", &plain, LONG_AGO),
        job("c"),
    ]);
    app.php(&format!(
        "case $1 in -d) exit 1;; -r) echo once >> $D/looked; exit;; esac; shift; echo \"$*\" >> $D/asked
        if [ -e $D/first ]; then /bin/mv $D/first $D/{FAILED}; echo 'it is bad' >&2; exit 1; fi
        /bin/mv $D/second $D/{FAILED}"
    ));
    let said = app.run(&["queue:retry", "all"]);
    assert!(said.starts_with("exit 1\n"), "{said}");
    let stays = "ERROR  Job [bad] could not be retried: `php artisan queue:retry` ended with exit status: 1: it is bad.";
    assert!(said.contains(stays), "{said}");
    assert_eq!(said.matches(" DONE\n").count(), 3, "{said}");
    assert_eq!(app.failed(), ["bad"]);
    assert_eq!(redis.length(&format!("{PREFIX}queues:default")), 1);
    let read = |name: &str| std::fs::read_to_string(app.path(name)).unwrap();
    assert_eq!(read("asked"), "queue:retry -- a bad c\nqueue:retry -- c\n");
    assert_eq!(read("looked"), "once\n");
}

/// As where the app cannot boot: to ask for each of many jobs would take hours.
#[test]
fn php_that_pushes_nothing_is_not_asked_again_and_again() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let past = payload(Some(now() - 600));
    app.fail(&["a", "b", "c", "d", "e"].map(|id| (id, "redis", past.as_str(), LONG_AGO)));
    app.php("case $1 in -r) exit;; esac; shift; echo \"$*\" >> $D/asked; exit 1");
    let said = app.run(&["queue:retry", "all"]);
    assert!(said.starts_with("exit 1\n"), "{said}");
    assert_eq!(app.failed(), ["a", "b", "c", "d", "e"]);
    for id in app.failed() {
        let text = format!("Job [{id}] could not be retried");
        assert!(said.contains(&text), "{text}: {said}");
    }
    let asked = std::fs::read_to_string(app.path("asked")).unwrap();
    let groups = ["a b c d e", "b c d e", "c d e"];
    let expected = groups.map(|ids| format!("queue:retry -- {ids}\n")).concat();
    assert_eq!(asked, expected);
}

#[test]
fn retried_jobs_are_pushed_anew_and_what_cannot_be_pushed_stays() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let (soon, past) = (now() + 600, now() - 600);
    app.fail(&[
        ("plain", "redis", &payload(None), LONG_AGO),
        ("soon", "redis", &payload(Some(soon)), LONG_AGO),
        ("past", "redis", &payload(Some(past)), LONG_AGO),
        ("broken", "redis", "not json", LONG_AGO),
        ("gone", "gone", &payload(None), LONG_AGO),
        ("sync", "sync", &payload(None), LONG_AGO),
    ]);
    insta::assert_snapshot!(app.run(&["queue:retry", "all"]), @r"
        exit 1

           INFO  Pushing failed queue jobs back onto the queue.

          plain ... [runtime] DONE
          soon ... [runtime] DONE

           ERROR  Job [past] has a retryUntil in the past that only its PHP class can renew: retry it with `php artisan queue:retry past`.

           ERROR  Job [broken] has a payload that cannot be decoded: the payload is not JSON that PHP would read: expected a value (byte 0).

           ERROR  Job [gone] cannot be pushed onto its connection [gone]: no queue connection `gone` (configured: database, redis, sync).

           ERROR  Job [sync] cannot be pushed onto its connection [sync]: queue connection `sync` has the driver `sync`, whose jobs wait nowhere: PHP runs them where they are pushed, or drops them.


           WARN  1 job was pushed as it was: only PHP can ask classes for a new `retryUntil` or a group on SQS, and it does not run here or does not have the connection.
        ");
    assert_eq!(app.failed(), ["past", "broken", "gone", "sync"]);
    let pushed = redis.list(&format!("{PREFIX}queues:default"));
    let pushed: Vec<Value> = pushed
        .iter()
        .map(|payload| serde_json::from_slice(payload).unwrap())
        .collect();
    let fields = |payload: &Value| (payload["attempts"].clone(), payload["retryUntil"].clone());
    let fields: Vec<_> = pushed.iter().map(fields).collect();
    assert_eq!(fields, [(json!(0), json!(null)), (json!(0), json!(soon))]);
    let announced = redis.length(&format!("{PREFIX}queues:default:notify"));
    assert_eq!(announced, 2);
}

#[test]
fn a_job_whose_record_cannot_be_deleted_is_told_as_pushed() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    app.fail(&[
        ("a", "redis", &payload(None), LONG_AGO),
        ("b", "redis", &payload(None), LONG_AGO),
    ]);
    app.keep_failed();
    let said = app.run(&["queue:retry", "all"]);
    for part in [
        "exit 1\n",
        "  a ... [runtime] DONE\n",
        "ERROR  Job [a] is on its queue again, and its record could not be deleted (delete it with `queue:forget a`, unless it shows a later failure by then): could not lock",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(app.failed(), ["a", "b"]);
    let pushed = redis.length(&format!("{PREFIX}queues:default"));
    assert_eq!(pushed, 1, "the record of the next one would stay, too");
}

/// A worker was killed when it had written the row of a failed job, and before it removed the record.
#[test]
fn the_record_of_a_job_that_is_retried_does_not_come_back() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let (text, other) = (payload(None), payload(Some(9_999_999_999)));
    app.fail(&[("a", "redis", &text, LONG_AGO)]);
    let spool = format!("{PREFIX}artisand:failed-spool");
    for (uuid, payload) in [("a", &text), ("b", &other)] {
        let record = json!({
            "uuid": uuid, "connection": "redis", "queue": "default",
            "payload": payload, "exception": "E", "failed_at": LONG_AGO,
        });
        redis.query::<i64>(&[b"RPUSH", spool.as_bytes(), record.to_string().as_bytes()]);
    }
    let lease = format!("{spool}:lease");
    redis.query::<()>(&[b"SET", lease.as_bytes(), b"killed", b"PX", b"500"]);
    let said = app.run(&["queue:retry", "a"]);
    assert!(said.contains("  a ... [runtime] DONE\n"), "{said}");
    assert!(app.failed().is_empty(), "{said}");
    let pushed = redis.length(&format!("{PREFIX}queues:default"));
    let left = redis.length(&spool);
    assert_eq!((pushed, left), (1, 1), "{}", redis.state());
}

/// Where the lock on the file of failed jobs is (Laravel 12.36 and later).
const LOCK: &str = "storage/framework/cache/data/0a/c9/0ac92417880b9c60632778b92a4f206ab66ac2c0";

/// Starts to retry the jobs `a`, `b` and `c`; returns once `a` is pushed. It is deleted when the lock is.
fn begin_to_retry(redis: &RedisServer, by_nohup: bool) -> (App, ManagedChild) {
    let app = App::new(redis.port(), "13.31.0");
    let payload = payload(None);
    app.fail(&["a", "b", "c"].map(|id| (id, "redis", payload.as_str(), LONG_AGO)));
    let lock = app.path(LOCK);
    std::fs::create_dir_all(lock.parent().unwrap()).unwrap();
    std::fs::write(&lock, "9999999999s:5:\"other\";").unwrap();
    let retry = app.command(&["queue:retry", "all"]);
    let retry = ManagedChild::spawn(with_hangups(&retry, by_nohup));
    let queue = format!("{PREFIX}queues:default");
    eventually("the push of the first job", SOON, || {
        (redis.length(&queue) == 1).then_some(())
    });
    (app, retry)
}

#[test]
fn a_signal_ends_retries_between_two_jobs() {
    for (signal, by_nohup) in [
        (Signal::TERM, false),
        (Signal::INT, false),
        (Signal::HUP, false),
        (Signal::HUP, true),
    ] {
        let redis = RedisServer::start();
        let (app, mut retry) = begin_to_retry(&redis, by_nohup);
        retry.signal(signal);
        if !by_nohup {
            eventually("the signal is heard", SOON, || {
                (!retry.stderr().is_empty()).then_some(())
            });
        }
        std::fs::remove_file(app.path(LOCK)).unwrap();
        let code = retry.wait_timeout(SOON).code();
        let left: &[&str] = if by_nohup { &[] } else { &["b", "c"] };
        let described = retry.describe();
        assert_eq!(app.failed(), left, "{described}");
        assert_eq!(code, Some(i32::from(!by_nohup)), "{described}");
        let pushed = redis.length(&format!("{PREFIX}queues:default"));
        assert_eq!(pushed, 3 - left.len(), "{described}");
        let text = "WARN  Stopped by a signal; failed jobs that were not retried: 2.";
        assert_eq!(retry.stdout().contains(text), !by_nohup, "{described}");
    }
}

#[test]
fn a_second_signal_ends_retries_at_once() {
    let redis = RedisServer::start();
    let (app, mut retry) = begin_to_retry(&redis, false);
    // Those within the first second count as one.
    eventually("the end", SOON, || {
        retry.signal(Signal::INT);
        (!retry.is_running()).then_some(())
    });
    let described = retry.describe();
    assert_eq!(retry.wait_timeout(SOON).code(), Some(1), "{described}");
    assert!(
        described.contains("ended at once by a second signal"),
        "{described}"
    );
    assert_eq!(app.failed(), ["a", "b", "c"]);
}

#[test]
fn ids_to_retry_come_from_arguments_queues_and_ranges() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    insta::assert_snapshot!(app.run(&["queue:retry"]), @r"
        exit 0

           INFO  No retryable jobs found.
        ");
    insta::assert_snapshot!(app.run(&["queue:retry", "--queue=high"]), @r"
        exit 0

           ERROR  Unable to find failed jobs for queue [high].

           INFO  No retryable jobs found.
        ");
    app.fail(&[("3", "redis", &payload(None), LONG_AGO)]);
    let args = ["queue:retry", "x", "x", "0", "--range=3-2", "--range=a-b"];
    insta::assert_snapshot!(app.run(&args), @r"
        exit 0

           INFO  Pushing failed queue jobs back onto the queue.

           ERROR  Unable to find failed job with ID [x].

          3 ... [runtime] DONE

           ERROR  Unable to find failed job with ID [2].
        ");
    assert!(app.failed().is_empty());
    app.fail(&[("4", "redis", &payload(None), LONG_AGO)]);
    insta::assert_snapshot!(app.run(&["queue:retry", "--queue=default"]), @r"
        exit 0

           INFO  Pushing failed queue jobs back onto the queue.

          4 ... [runtime] DONE
        ");
    assert!(app.failed().is_empty());
}

#[test]
fn a_job_stays_failed_where_redis_is_not_there_and_lists_do_not_need_it() {
    let mut redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let key = format!("{PREFIX}artisand:failed-spool");
    redis.query::<i64>(&[b"RPUSH", key.as_bytes(), b"{}"]);
    insta::assert_snapshot!(app.run(&["queue:failed"]), @r"
        exit 0

           INFO  No failed jobs found.

           WARN  1 failed job waits in the spool of connection [redis] until the failed-job store can be written.
        ");
    insta::assert_snapshot!(app.run(&["queue:failed", "--json"]), @r"
        exit 0
        []
        --- stderr
           WARN  1 failed job waits in the spool of connection [redis] until the failed-job store can be written.
        ");
    app.fail(&[("a", "redis", &payload(None), LONG_AGO)]);
    redis.stop();
    let started = Instant::now();
    insta::assert_snapshot!(app.run(&["queue:failed"]), @r"
        exit 0

          2026-01-01 00:00:00 a ......................... redis@default App\Jobs\Plain
        ");
    assert!(started.elapsed() < Duration::from_secs(15));
    assert!(app.run(&["queue:retry", "a"]).starts_with("exit 1\n"));
    assert_eq!(app.failed(), ["a"]);
}

#[test]
fn signals_are_put_where_workers_look() {
    let app = App::new(1, "13.31.0");
    // Laravel's file store names a key's file by its SHA-1.
    let stored = |hash: &str| {
        let directory = app.path("storage/framework/cache/data");
        let path = directory.join(&hash[..2]).join(&hash[2..4]).join(hash);
        std::fs::read_to_string(path).ok()
    };
    let restart = || stored("ee2f842aa7bb1f53edf3a2ed2c09a1807ffa6c90");
    insta::assert_snapshot!(app.run(&["queue:restart"]), @r"
        exit 0

           INFO  Broadcasting queue restart signal.
        ");
    let written = restart().unwrap();
    let seconds = written.strip_prefix("9999999999i:").unwrap();
    let seconds: i64 = seconds.trim_end_matches(';').parse().unwrap();
    assert!((now() - seconds).abs() < 60, "{written}");
    insta::assert_snapshot!(app.run(&["queue:pause"]), @r"
        exit 1

           ERROR  A queue name is required unless the --all option is used.
        ");
    insta::assert_snapshot!(app.run(&["queue:pause", "high"]), @r"
        exit 0

           INFO  Job processing on queue [redis:high] has been paused.
        ");
    let paused = || stored("183914cc61993144a63adff8fad2200b7a4aa76f");
    assert_eq!(paused().as_deref(), Some("9999999999b:1;"));
    insta::assert_snapshot!(app.run(&["queue:continue", "redis:high"]), @r"
        exit 0

           INFO  Job processing on queue [redis:high] has been resumed.
        ");
    assert_eq!(paused(), None);
    insta::assert_snapshot!(app.run(&["queue:pause", "--all"]), @r"
        exit 0

           INFO  Job processing on all queues across all connections has been paused.
        ");
    let all_paused = || stored("52d49a2b2f7253ee37d7d1c0c1d85cbff5dc9d0d");
    assert_eq!(all_paused().as_deref(), Some("9999999999b:1;"));
    insta::assert_snapshot!(app.run(&["queue:resume", "--all"]), @r"
        exit 0

           INFO  Job processing on all queues across all connections has been resumed.
        ");
    assert_eq!(all_paused(), None);
}

#[test]
fn signals_that_nobody_would_see_are_no_success() {
    let app = App::new(1, "10.48.29");
    let mut command = app.command(&["queue:restart"]);
    insta::assert_snapshot!(shown(command.env("CACHE_DRIVER", "array")), @r"
        exit 1

           ERROR  No worker would see it: `cache.default` is [array], which is not shared between processes.
        ");
    let mut command = app.command(&["queue:pause", "high"]);
    insta::assert_snapshot!(shown(command.env("CACHE_DRIVER", "file")), @r"
        exit 0

           INFO  Job processing on queue [redis:high] has been paused.

           WARN  PHP workers of Laravel 10.48.29 ignore it, those of 12.40 and later follow it, as do artisand's workers.
        ");
}

#[test]
fn queues_are_monitored_and_cleared() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let push = |queue: &str, created_at: i64| {
        let key = format!("{PREFIX}queues:{queue}");
        let payload = json!({"job": "A@b", "createdAt": created_at, "attempts": 0}).to_string();
        redis.query::<i64>(&[b"RPUSH", key.as_bytes(), payload.as_bytes()]);
    };
    push("high", now() - 7200);
    push("high", now());
    let delayed = format!("{PREFIX}queues:default:delayed");
    redis.query::<i64>(&[b"ZADD", delayed.as_bytes(), b"1", b"x"]);
    insta::assert_snapshot!(app.run(&["queue:monitor", "redis:high,default", "--max=2"]), @r"
        exit 0

          Queue name ................................................... Size / Status
          [redis] high ..................................................... [2] ALERT
          Pending jobs ............................................................. 2
          Delayed jobs ............................................................. 0
          Reserved jobs ............................................................ 0
          Oldest pending job ............................................. 2 hours ago

          [redis] default ..................................................... [1] OK
          Pending jobs ............................................................. 0
          Delayed jobs ............................................................. 1
          Reserved jobs ............................................................ 0
          Oldest pending job ..................................................... N/A
        ");
    insta::assert_snapshot!(app.run(&["queue:monitor", "default", "--json"]), @r#"
        exit 0
        [{"connection":"redis","queue":"default","size":1,"pending":0,"delayed":1,"reserved":0,"oldest_pending":null,"status":"OK"}]
        "#);
    let in_production = |args: &[&str]| {
        let mut command = app.command(args);
        shown(command.env("APP_ENV", "production"))
    };
    insta::assert_snapshot!(in_production(&["queue:clear"]), @r"
        exit 1


                                   APPLICATION IN PRODUCTION.


           WARN  Command cancelled.
        ");
    insta::assert_snapshot!(in_production(&["queue:clear", "--force"]), @r"
        exit 0

           INFO  Cleared 1 job from the [default] queue.
        ");
    insta::assert_snapshot!(app.run(&["queue:clear", "redis", "--queue= high,default,,high"]), @r"
        exit 0

           INFO  Cleared 2 jobs from the [high, default] queues.
        ");
    insta::assert_snapshot!(app.run(&["queue:clear", "sync"]), @r"
        exit 1

           ERROR  Clearing queues is not supported on [SyncQueue].
        ");
    assert_eq!(redis.length(&format!("{PREFIX}queues:high")), 0);
}
