//! PHP processes of artisand's worker: jobs that `queue:work` leaves reserved stay reserved, jobs that it refuses stay
//! in the queue, and each failed job is recorded by the right side.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::laravel::Laravel;
use crate::harness::process::{
    ManagedChild, Workplace, artisand, children, eventually, install_program, processes,
    without_settings,
};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;
use crate::telemetry::Served;

const SOON: Duration = Duration::from_secs(60);

fn now() -> f64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    since.as_secs_f64()
}

/// A list of JSON lines.
fn lines(redis: &RedisServer, key: &str) -> Vec<Value> {
    let lines = redis.list(key);
    lines
        .iter()
        .map(|line| serde_json::from_slice(line).unwrap())
        .collect()
}

fn push(redis: &RedisServer, laravel: &Laravel, payload: &Value) {
    let key = laravel.key("queues:default");
    let () = redis.query(&[b"RPUSH", key.as_bytes(), payload.to_string().as_bytes()]);
}

/// A string job of this method of `App\Jobs\Legacy`.
fn string_job(method: &str) -> Value {
    json!({
        "uuid": "4decd07d-031e-40ab-82e5-3ec83a5b4a76", "displayName": "App\\Jobs\\Legacy",
        "job": format!("App\\Jobs\\Legacy@{method}"), "maxTries": null, "maxExceptions": null, "backoff": null,
        "timeout": null, "data": [1], "id": "zm13kuP0ECzQTyEU9j8xWyLCCF64O1PZ", "attempts": 0,
    })
}

fn a_string_job_that_ends_without_a_word_stays_reserved(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::with_retry_after(version, &redis, 50);
    let reserved = laravel.key("queues:default:reserved");
    // The process ends after this job, which must not be reported as lost.
    let workplace = Workplace::with_pool(&laravel, 1, "").php("max_jobs = 1");
    let mut left = Vec::new();
    for by_pool in [false, true] {
        push(&redis, &laravel, &string_job("keep"));
        let before = now().floor();
        let mut worker = if by_pool {
            workplace.worker(&["--once"])
        } else {
            laravel.worker(&["--once"])
        };
        worker.succeeds_within(SOON);
        let output = worker.describe();
        assert!(!output.contains("stays reserved"), "{output}");
        let found = redis.scores(&reserved);
        assert_eq!(found.len(), 1, "{}: {output}", redis.state());
        let payload: Value = serde_json::from_slice(&found[0].0).unwrap();
        assert_eq!(payload["attempts"], 1);
        let possible = before + 50.0..=now() + 51.0;
        assert!(possible.contains(&found[0].1), "{found:?} {possible:?}");
        left.push(payload);
        let () = redis.query(&[b"DEL", reserved.as_bytes()]);
    }
    assert_eq!(left[0], left[1]);
    assert_eq!(redis.length("interop:seen"), 2);
}

on_every_laravel!(a_string_job_that_ends_without_a_word_stays_reserved);

fn a_job_longer_than_its_reservation_is_run_once(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::with_retry_after(version, &redis, 4);
    let workplace = Workplace::with_pool(&laravel, 2, "");
    laravel.run(&["interop:journal", "long", "--tries=3", "--script=sleep:9"]);
    // The other process keeps looking for jobs whose reservation has ended.
    let args = ["--stop-when-empty", "--sleep=1"];
    workplace.worker(&args).succeeds_within(SOON);
    let journal = lines(&redis, "interop:journal");
    assert_eq!(journal.len(), 1, "{journal:?}");
    assert_eq!(redis.length(&laravel.key("queues:default")), 0);
    assert!(
        redis
            .scores(&laravel.key("queues:default:reserved"))
            .is_empty()
    );
}

on_every_laravel!(a_job_longer_than_its_reservation_is_run_once);

/// How often the app was asked whether workers may work.
fn looks(redis: &RedisServer) -> usize {
    let count: Option<usize> = redis.query(&[b"GET", b"interop:looks"]);
    count.unwrap_or(0)
}

/// The attempts of each waiting job.
fn attempts(redis: &RedisServer, laravel: &Laravel) -> Vec<Value> {
    let jobs = lines(redis, &laravel.key("queues:default"));
    jobs.iter().map(|job| job["attempts"].clone()).collect()
}

fn while_the_app_lets_no_worker_work_jobs_stay_as_they_are(version: u8) {
    let redis = RedisServer::start();
    let guard = [("INTEROP_LOOPING_WHILE", "interop:veto")];
    let laravel = Laravel::with_env(version, &redis, &guard);
    let workplace = Workplace::with_pool(&laravel, 2, "");
    let veto = || redis.query::<()>(&[b"SET", b"interop:veto", b"1"]);
    let lift = || redis.query::<()>(&[b"DEL", b"interop:veto"]);
    let dispatch = |id: &str| {
        laravel.run(&["interop:journal", id, "--script=ok"]);
    };
    let runs = || -> Vec<Value> {
        let journal = lines(&redis, "interop:journal");
        journal
            .iter()
            .map(|line| json!([line["id"], line["attempts"]]))
            .collect()
    };

    // From the start on.
    veto();
    dispatch("first");
    let mut worker = workplace.worker(&["--sleep=1", "-v"]);
    redis.eventually("some looks", SOON, || (looks(&redis) > 1).then_some(()));
    assert_eq!(attempts(&redis, &laravel), [0], "{}", worker.describe());
    lift();
    redis.eventually("the first job", SOON, || (runs().len() == 1).then_some(()));

    // While the process waits: a job sent to it goes back.
    // Time is the subject: a process that has just checked does not check again for a second.
    std::thread::sleep(Duration::from_millis(1500));
    let before = looks(&redis);
    veto();
    dispatch("second");
    // Longer than a job waits for its process, which would then be replaced.
    redis.eventually("more looks", SOON, || {
        (looks(&redis) > before + 8).then_some(())
    });
    assert_eq!(attempts(&redis, &laravel), [0], "{}", worker.describe());
    lift();
    redis.eventually("the second job", SOON, || (runs().len() == 2).then_some(()));
    assert_eq!(runs(), [json!(["first", 1]), json!(["second", 1])]);

    let log = worker.stderr();
    // Logged only with `-v`.
    assert_eq!(log.matches("has booted the app").count(), 2, "{log}");
    assert!(!log.contains("did not take the job"), "{log}");

    // A worker whose processes pause stops as fast as any other.
    veto();
    let began = std::time::Instant::now();
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    let log = worker.stderr();
    assert!(began.elapsed() < Duration::from_secs(20), "{log}");
    // And not killed.
    assert_eq!(log.matches("of the pool ended").count(), 2, "{log}");
}

on_every_laravel!(while_the_app_lets_no_worker_work_jobs_stay_as_they_are);

/// As `queue:work` does, which is run the same way.
fn a_veto_of_the_app_empties_the_queue_and_is_not_asked_for_one_job(version: u8) {
    let redis = RedisServer::start();
    let guard = [("INTEROP_LOOPING_WHILE", "interop:veto")];
    let laravel = Laravel::with_env(version, &redis, &guard);
    let () = redis.query(&[b"SET", b"interop:veto", b"1"]);
    let workplace = Workplace::with_pool(&laravel, 2, "");
    for by_php in [true, false] {
        laravel.run(&["interop:journal", "waits", "--script=ok"]);
        let work = |args: &[&str]| {
            if by_php {
                laravel.worker(args).succeeds_within(SOON);
            } else {
                workplace.worker(args).succeeds_within(SOON);
            }
        };
        let before = lines(&redis, "interop:journal").len();
        work(&["--stop-when-empty", "--sleep=1"]);
        assert_eq!(attempts(&redis, &laravel), [0], "{by_php}");
        work(&["--once"]);
        assert_eq!(lines(&redis, "interop:journal").len(), before + 1);
        assert_eq!(redis.jobs(&laravel.key("queues:default")), 0, "{by_php}");
    }
}

on_every_laravel!(a_veto_of_the_app_empties_the_queue_and_is_not_asked_for_one_job);

fn an_outage_of_redis_is_two_lines_of_the_log_and_no_end(version: u8) {
    let mut redis = RedisServer::start_durable();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::with_pool(&laravel, 2, "");
    // A job keeps the worker from stopping until its processes have tried to start again.
    laravel.run(&["interop:journal", "before", "--script=ok"]);
    let mut worker = workplace.worker(&["-v", "--sleep=1"]);
    let count = |worker: &ManagedChild, text: &str| worker.stderr().matches(text).count();
    redis.eventually("the first job", SOON, || {
        (lines(&redis, "interop:journal").len() == 1).then_some(())
    });
    redis.stop();
    eventually("failures to start", SOON, || {
        (count(&worker, "could not start while Redis is away") >= 4).then_some(())
    });
    redis.restart();
    laravel.run(&["interop:journal", "after", "--script=ok"]);
    redis.eventually("the second job", SOON, || {
        (lines(&redis, "interop:journal").len() == 2).then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    let log = worker.stderr();
    let errors: Vec<&str> = log
        .lines()
        .filter(|line| line.contains(" ERROR "))
        .collect();
    let [away] = errors[..] else { panic!("{log}") };
    assert!(away.contains("Redis is away"), "{log}");
    assert_eq!(log.matches("Redis is back").count(), 1, "{log}");
}

on_every_laravel!(an_outage_of_redis_is_two_lines_of_the_log_and_no_end);

/// The last words of the job lines, as `queue:work` of this version writes them.
fn statuses(output: &str) -> Vec<&'static str> {
    let status = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        // Before Laravel 9, a line is `[time][id] Failed: NAME`.
        [
            "RUNNING",
            "DONE",
            "FAIL",
            "Processing:",
            "Processed:",
            "Failed:",
        ]
        .into_iter()
        .find(|status| words.contains(status))
    };
    let in_words = |status| match status {
        "Processing:" => "RUNNING",
        "Processed:" => "DONE",
        "Failed:" => "FAIL",
        status => status,
    };
    output.lines().filter_map(status).map(in_words).collect()
}

fn a_job_that_fails_itself_prints_what_it_prints_in_queue_work(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::with_pool(&laravel, 1, "");
    for (script, expected) in [
        ("fail", &["RUNNING", "FAIL", "DONE"][..]),
        ("throw", &["RUNNING", "FAIL"]),
        ("fail+throw", &["RUNNING", "FAIL"]),
    ] {
        for by_pool in [false, true] {
            let script = format!("--script={script}");
            laravel.run(&["interop:journal", "a", "--tries=1", &script]);
            let mut worker = if by_pool {
                workplace.worker(&["--max-jobs=1"])
            } else {
                laravel.worker(&["--max-jobs=1"])
            };
            worker.succeeds_within(SOON);
            let output = worker.stdout();
            assert_eq!(
                statuses(&output),
                expected,
                "{by_pool} {script}: {}",
                worker.describe()
            );
        }
    }
}

on_every_laravel!(a_job_that_fails_itself_prints_what_it_prints_in_queue_work);

fn times_of_a_job_fit_its_duration(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::with_pool(&laravel, 1, "");
    laravel.run(&["interop:journal", "a", "--script=sleep:1"]);
    let mut worker = workplace.worker(&["--max-jobs=1", "--json"]);
    worker.succeeds_within(SOON);
    let output = worker.stdout();
    let time =
        |line: &Value| -> jiff::Timestamp { line["timestamp"].as_str().unwrap().parse().unwrap() };
    let found: Vec<Value> = output
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let (start, end) = (&found[0], &found[1]);
    assert_eq!(
        (&start["status"], &end["status"]),
        (&json!("starting"), &json!("success"))
    );
    let apart = (time(end) - time(start)).total(jiff::Unit::Second).unwrap();
    let duration = end["duration"].as_f64().unwrap();
    // A process says that it has begun a job when it has something else to say, or 120 ms later.
    assert!((apart - duration).abs() < 0.05, "{apart}: {output}");
}

on_every_laravel!(times_of_a_job_fit_its_duration);

/// Since Laravel 11.
fn a_job_has_its_own_log_context_and_no_other(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let queue = laravel.key("queues:default");
    laravel.run(&["interop:journal", "with", "--script=context"]);
    let job = redis.list(&queue).pop().unwrap();
    let () = redis.query(&[b"DEL", queue.as_bytes()]);
    let mut job: Value = serde_json::from_slice(&job).unwrap();
    job["illuminate:log:context"] = json!({"data": {"tenant": "i:7;"}, "hidden": {}});
    push(&redis, &laravel, &job);
    laravel.run(&["interop:journal", "without", "--script=context"]);
    let workplace = Workplace::with_pool(&laravel, 1, "");
    workplace
        .worker(&["--stop-when-empty"])
        .succeeds_within(SOON);
    let contexts: Vec<Value> = lines(&redis, "interop:journal")
        .iter()
        .filter(|line| line["event"] == "context")
        .map(|line| line["context"].clone())
        .collect();
    assert_eq!(contexts, [json!({"tenant": 7}), json!([])]);
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_job_of_laravel_13_has_its_own_log_context_and_no_other() {
    a_job_has_its_own_log_context_and_no_other(13);
}

fn a_failed_job_is_recorded_once_by_artisand_or_by_php(version: u8) {
    // Driver, the store that gets the records, and the driver in the manifest.
    let mut cases = vec![
        ("database-uuids", "app", None),
        ("null", "nobody", None),
        ("database-uuids", "own", None),
        // A driver that artisand cannot write to.
        ("database-uuids", "app", Some("dynamodb")),
        // A driver that artisand mistakes for another.
        ("database-uuids", "app", Some("null")),
    ];
    if version >= 10 {
        cases.push(("file", "app", None));
    }
    for (driver, taker, said) in cases {
        let place = format!("Laravel {version} {driver} {taker} {said:?}");
        let redis = RedisServer::start();
        let failer = if taker == "own" { "own" } else { "" };
        let env = [("QUEUE_FAILED_DRIVER", driver), ("INTEROP_FAILER", failer)];
        let laravel = Laravel::with_env(version, &redis, &env);
        // The first look makes the tables.
        laravel.run(&["interop:failed"]);
        let mut manifest = laravel.manifest();
        if let Some(said) = said {
            manifest["config"]["queue"]["failed"]["driver"] = said.into();
        }
        let workplace = Workplace::with_manifest_and_pool(&laravel, &manifest, 1, "");
        let uuid = laravel.run(&["interop:journal", "a", "--tries=1", "--script=throw"]);
        let uuid = &uuid[0]["uuid"];
        let mut worker = workplace.worker(&["--stop-when-empty"]);
        worker.succeeds_within(SOON);
        let place = format!("{place}: {}", worker.describe());
        let journal = lines(&redis, "interop:journal");
        assert_eq!(journal.last().unwrap()["event"], "failed", "{place}");
        assert_eq!(
            redis.length(&laravel.key("artisand:failed-spool")),
            0,
            "{place}"
        );
        let own = lines(&redis, "interop:own-failed");
        assert_eq!(own.len(), usize::from(taker == "own"), "{place}");
        let stored = laravel.run(&["interop:failed"]).remove(0);
        assert_eq!(
            stored["count"],
            usize::from(taker == "app"),
            "{place}: {stored}"
        );
        let records = own.iter().chain(stored["jobs"].as_array().unwrap());
        for record in records {
            let payload: Value = serde_json::from_str(record["payload"].as_str().unwrap()).unwrap();
            assert_eq!(payload["uuid"], *uuid, "{place}");
            assert_eq!(payload["attempts"], 0, "{place}");
            let exception = record["exception"].as_str().unwrap();
            assert!(
                exception.starts_with("RuntimeException: thrown by the script of a in "),
                "{exception}"
            );
            assert_eq!(record["queue"], "default", "{place}");
        }
    }
}

on_every_laravel!(a_failed_job_is_recorded_once_by_artisand_or_by_php);

/// A realistic app, on this machine's own PHP.
struct App {
    directory: tempfile::TempDir,
    redis: RedisServer,
}

impl App {
    fn new() -> Self {
        let directory = tempfile::Builder::new()
            .prefix("artisand-app-")
            .tempdir()
            .unwrap();
        let status = Command::new(project().join("php-interop").join("apps").join("make"))
            .arg("8")
            .arg(directory.path())
            .arg("skeleton-8")
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success());
        let redis = RedisServer::start();
        Self { directory, redis }
    }

    fn path(&self) -> std::path::PathBuf {
        self.directory.path().join("skeleton-8")
    }

    fn env<'a>(&self, command: &'a mut Command) -> &'a mut Command {
        without_settings(command)
            .env("REDIS_HOST", "127.0.0.1")
            .env("REDIS_PORT", self.redis.port().to_string())
            .env("REDIS_PASSWORD", "null")
    }

    fn dispatch(&self) {
        const CODE: &str = "require 'vendor/autoload.php'; $app = require 'bootstrap/app.php'; \
            $app->make(Illuminate\\Contracts\\Console\\Kernel::class)->bootstrap(); \
            dispatch(new App\\Jobs\\Plain('x'));";
        let mut command = Command::new("php");
        let output = self
            .env(&mut command)
            .args(["-r", CODE])
            .current_dir(self.path())
            .output();
        let output = output.unwrap();
        assert!(output.status.success(), "{output:?}");
        assert_eq!(self.waiting(), 1, "{output:?} {}", self.redis.state());
    }

    fn waiting(&self) -> usize {
        self.redis.length("laravel_database_queues:default")
    }

    /// A worker with nothing but the app's directory, and these settings.
    fn work(&self, settings: &str) -> ManagedChild {
        let file = self.directory.path().join("artisand.toml");
        std::fs::write(&file, settings).unwrap();
        let mut command = artisand(&["queue:work", "--stop-when-empty", "--app"]);
        command.arg(self.path()).arg("--config").arg(file);
        self.env(&mut command);
        let mut worker = ManagedChild::spawn(command);
        worker.wait_timeout(SOON);
        worker
    }

    /// Checks that the worker does not start, prints this, and took no job.
    fn refuses(&self, settings: &str, words: &[&str]) {
        self.refuses_with(1, settings, words);
    }

    fn refuses_with(&self, code: i32, settings: &str, words: &[&str]) {
        let mut worker = self.work(settings);
        let status = worker.wait_timeout(SOON);
        let output = worker.describe();
        assert_eq!(status.code(), Some(code), "{output}");
        for word in words {
            assert!(worker.stderr().contains(word), "no `{word}`: {output}");
        }
        assert_eq!(self.waiting(), 1, "{output}");
    }
}

fn overwrite(path: &Path, text: &str) -> String {
    let before = std::fs::read_to_string(path).unwrap();
    std::fs::write(path, text).unwrap();
    before
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn without_a_word_php_runs_what_nobody_mapped_where_the_app_and_php_are() {
    let app = App::new();
    app.dispatch();
    let mut worker = app.work("");
    worker.succeeds_within(SOON);
    assert_eq!(app.waiting(), 0, "{}", worker.describe());
    assert!(worker.stdout().contains("DONE"), "{}", worker.describe());

    app.dispatch();
    let mut worker = app.work("[unmapped]\npolicy = 'leave'");
    worker.succeeds_within(SOON);
    assert_eq!(app.waiting(), 1, "{}", worker.describe());
    // A PHP that the user named has to run: if it does not, that is an error.
    app.refuses_with(
        2,
        "[php]\nbinary = 'no-such-php'",
        &["artisand.toml:2: no program `no-such-php` in the search path"],
    );
    assert_eq!(app.waiting(), 1);
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_worker_whose_app_cannot_be_booted_says_why_and_takes_nothing() {
    let app = App::new();
    app.dispatch();
    let bootstrap = app.path().join("bootstrap/app.php");
    let before = overwrite(&bootstrap, "<?php\n\n$app = new ;\n");
    app.refuses("", &["ParseError", "bootstrap/app.php:3"]);
    overwrite(&bootstrap, "<?php\n\nreturn 7;\n");
    app.refuses("", &["does not return a Laravel application"]);
    overwrite(&bootstrap, "<?php\n\nexit(7);\n");
    app.refuses("", &["the app called exit", "`artisand manifest`"]);
    overwrite(
        &bootstrap,
        "<?php\n\nfunction twice() {}\nfunction twice() {}\n",
    );
    app.refuses("", &["Cannot redeclare twice()"]);
    // Its configuration can be loaded, but the app cannot boot.
    let fails_later = |code: &str| {
        let hook = format!("$app->booting(function () {{ {code} }});\n\nreturn $app;");
        overwrite(&bootstrap, &before.replace("return $app;", &hook));
    };
    fails_later("exit(7);");
    app.refuses("", &["ended while it booted the app", "exit status: 7"]);
    fails_later("eval('function twice() {} function twice() {}');");
    app.refuses(
        "",
        &["ended while it booted the app", "Cannot redeclare twice()"],
    );
    overwrite(&bootstrap, &before);

    let named = "[unmapped]\npolicy = 'php'\n[php]\nbinary = 'no-such-php'";
    app.refuses_with(
        2,
        named,
        &["artisand.toml:4: no program `no-such-php` in the search path"],
    );

    let vendor = app.path().join("vendor");
    std::fs::rename(&vendor, app.path().join("elsewhere")).unwrap();
    app.refuses("", &["no `vendor/autoload.php`", "run `composer install`"]);
    std::fs::rename(app.path().join("elsewhere"), &vendor).unwrap();

    let mut worker = app.work("");
    worker.succeeds_within(SOON);
    assert_eq!(app.waiting(), 0, "{}", worker.describe());
    let is_of_app = |pid: &u32| {
        let directory = std::fs::read_link(format!("/proc/{pid}/cwd"));
        directory.is_ok_and(|directory| directory.starts_with(app.path()))
    };
    eventually("no PHP process stays", SOON, || {
        (!processes(|_| true).iter().any(is_of_app)).then_some(())
    });
}

/// A script that runs the app's PHP with these options, and waits for it; for `ARTISAND_PHP`.
fn wrapper(scene: &Scene, options: &str) -> PathBuf {
    let php = project().join("php-interop").join("laravel");
    let version = scene.laravel.version;
    let script = format!(
        "#!/bin/sh\n'{}' {version} {options} \"$@\"\nexit $?\n",
        php.display()
    );
    let text = scene.workplace.path().join("wrapper.sh");
    std::fs::write(&text, script).unwrap();
    let program = scene.workplace.path().join("wrapper");
    install_program(&text, &program);
    program
}

/// Jobs of the journal that have run, in their order.
fn runs(scene: &Scene) -> Vec<String> {
    let lines = scene.lines().into_iter();
    let runs = lines.filter(|line| line.event == "run");
    runs.map(|line| line.id).collect()
}

fn settings_that_php_may_not_reset_keep_no_process_from_its_jobs(version: u8) {
    let scene = Scene::with_pool::<&str>(version, &[], 1, "");
    let ids = ["1", "2", "3"];
    for id in ids {
        scene.push(id, &[]);
    }
    let php = wrapper(
        &scene,
        "-d disable_functions=set_time_limit,pcntl_sigprocmask",
    );
    let mut command = scene.workplace.worker_command(&["--stop-when-empty"]);
    command.env("ARTISAND_PHP", php);
    let mut worker = ManagedChild::spawn(command);
    worker.succeeds_within(SOON);
    assert_eq!(runs(&scene), ids, "{}", worker.describe());
    assert_eq!(scene.queued(), 0, "{}", worker.describe());
}

on_every_laravel!(settings_that_php_may_not_reset_keep_no_process_from_its_jobs);

/// From Laravel 13 on the process hears of the stop while it runs its job.
fn a_stop_does_not_end_a_script_that_waits_for_php_before_the_job(version: u8) {
    let scene = Scene::with_pool::<&str>(version, &[], 1, "");
    scene.push("long", &["--script=sleep:2"]);
    let mut command = scene.workplace.worker_command(&[]);
    command.env("ARTISAND_PHP", wrapper(&scene, ""));
    let mut worker = ManagedChild::spawn(command);
    eventually("the job runs", SOON, || {
        (runs(&scene).len() == 1).then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    assert_eq!(scene.queued(), 0, "{}", worker.describe());
}

on_every_laravel!(a_stop_does_not_end_a_script_that_waits_for_php_before_the_job);

fn a_job_may_work_its_queue_itself(version: u8) {
    for option in ["once", "stop-when-empty"] {
        let scene = Scene::with_pool::<&str>(version, &[], 1, "");
        scene.push("outer", &[&format!("--script=work:{option}")]);
        scene.push("inner", &[]);
        let mut worker = scene.worker(&["--stop-when-empty"]);
        worker.succeeds_within(SOON);
        assert_eq!(runs(&scene), ["outer", "inner"], "{}", worker.describe());
        assert_eq!(scene.queued(), 0, "{}", worker.describe());
    }
}

on_every_laravel!(a_job_may_work_its_queue_itself);

fn processes_say_what_they_are(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let workplace = Workplace::with_pool(&laravel, 1, "");
    let args = ["queue:work", "redis", "--queue=default,Horizon high"];
    let mut worker = ManagedChild::spawn(workplace.artisand(&args));
    eventually("it has a title", SOON, || {
        let title = "artisand: php worker (default,hrzn?high)";
        let entitled = processes(|command| command.trim_end_matches('\0') == title);
        let children = children(worker.id());
        children
            .iter()
            .any(|pid| entitled.contains(pid))
            .then_some(())
    });
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
}

on_every_laravel!(processes_say_what_they_are);

/// How many processes of the pool were replaced for this reason, as metrics say it.
fn counted(reason: &str, count: u8) -> String {
    format!("artisand_php_process_restarts_total{{reason=\"{reason}\"}} {count}\n")
}

fn replaced_processes_are_counted_with_the_reason(version: u8) {
    let scene = Scene::with_pool::<&str>(version, &[], 1, "");
    for id in ["1", "2"] {
        scene.push(id, &[]);
    }
    scene.push("3", &["--script=exit"]);
    scene.push("4", &["--script=kill"]);
    let workplace = scene.workplace.php("max_jobs = 1");
    let mut served = Served::start_in(workplace, &[]);
    let expected = [("jobs", 2), ("crashed", 1), ("killed", 1), ("boot", 0)];
    let expected = expected.map(|(reason, count)| counted(reason, count));
    served.shows("/metrics", &expected.each_ref().map(String::as_str));
    served.worker.signal(rustix::process::Signal::TERM);
    served.worker.succeeds_within(SOON);
}

on_every_laravel!(replaced_processes_are_counted_with_the_reason);

/// Laravel ends each process behind its job, when the next one was mostly sent already: that one is declined, and did
/// not crash. On Laravel 13 the app says which exit status tells so.
fn a_process_that_leaves_the_next_job_alone_has_not_crashed(version: u8) {
    let scene = Scene::with_pool(version, &[("INTEROP_CODE", "1")], 1, "");
    for id in 0..8 {
        scene.push(&id.to_string(), &[]);
    }
    let mut served = Served::start_in(scene.workplace.php("memory = 1"), &[]);
    served.shows("/metrics", &[&counted("memory", 8), &counted("crashed", 0)]);
    served.worker.signal(rustix::process::Signal::TERM);
    served.worker.succeeds_within(SOON);
}

on_every_laravel!(a_process_that_leaves_the_next_job_alone_has_not_crashed);
