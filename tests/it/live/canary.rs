//! Classes that move to Rust step by step: first shadows, then a part of their jobs.

use std::collections::BTreeMap;
use std::time::Duration;

use artisand::payload::Payload;
use artisand::routing::Canary;
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::fixtures::project;
use crate::harness::journal;
use crate::harness::laravel::Laravel;
use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);

/// Runs a worker with PHP processes for unmapped jobs until it ends.
fn worker(laravel: &Laravel, mapping: &str, args: &[&str]) -> ManagedChild {
    let (mut child, _workplace) = start(laravel, mapping, args);
    child.succeeds_within(SOON);
    child
}

/// The same, running.
fn start(laravel: &Laravel, mapping: &str, args: &[&str]) -> (ManagedChild, Workplace) {
    let php = project().join("php-interop").join("laravel");
    let rest = format!(
        "{mapping}\n[unmapped]\npolicy = \"php\"\n[php]\nbinary = [\"{}\", \"{}\"]\napp = \".\"\nprocesses = 2\n",
        php.display(),
        laravel.version
    );
    let workplace = Workplace::for_app(laravel, &rest);
    let mut command = workplace.worker_command(args);
    let env = laravel.env.iter();
    command.envs(env.map(|(name, value)| (name.as_str(), value.as_str())));
    (ManagedChild::spawn(command), workplace)
}

/// The last line of this status that was printed as JSON. What a worker tells may come after what it does.
fn printed(child: &ManagedChild, status: &str) -> Value {
    let what = format!("a line with status {status}");
    eventually(&what, SOON, || {
        let stdout = child.stdout();
        let mut lines = stdout
            .lines()
            .filter_map(|line| serde_json::from_str(line).ok());
        lines.rfind(|line: &Value| line["status"] == status)
    })
}

fn a_canary_has_the_same_jobs_on_every_attempt(version: u8) {
    const JOBS: usize = 60;
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let script = "--script=throw,throw,ok";
    laravel.journals(&redis, JOBS, &[script, "--tries=5", "--backoff=0"]);
    let canary = Canary::new(40.0).unwrap();
    let mut is_here = BTreeMap::new();
    for element in redis.list(&laravel.key("queues:default")) {
        let payload = Payload::parse(&element).unwrap();
        let uuid = payload.uuid.clone().unwrap().to_string();
        is_here.insert(uuid, canary.takes(&payload));
    }
    let here = is_here.values().filter(|is_here| **is_here).count();
    assert!(
        is_here.len() == JOBS && here > 5 && here < JOBS - 5,
        "{here}"
    );
    let mapping = "[[map]]\njob = 'App\\Jobs\\Journal'\nhandler = \"journal\"\ncanary = 40";
    let child = worker(
        &laravel,
        mapping,
        &["--stop-when-empty", "--json", "--concurrency=4"],
    );
    let lines = journal::since(&redis, 0);
    assert_eq!(lines.len(), 3 * JOBS);
    for line in &lines {
        let by = if is_here[line.uuid.as_ref().unwrap()] {
            "rust"
        } else {
            "php"
        };
        assert_eq!(line.by, by, "{line:?}");
    }
    let told = printed(&child, "canary");
    assert_eq!(
        (&told["handler"], &told["php"]),
        (&(3 * here).into(), &(3 * (JOBS - here)).into())
    );
    assert_eq!(told["target"], "App\\Jobs\\Journal");
}

on_every_laravel!(a_canary_has_the_same_jobs_on_every_attempt);

fn a_canary_that_fails_too_often_leaves_its_jobs_to_php_until_it_is_resumed(version: u8) {
    const JOBS: usize = 50;
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    laravel.journals(&redis, JOBS, &["--script=throw", "--tries=1"]);
    let mapping = "[[map]]\njob = 'App\\Jobs\\Journal'\nhandler = \"journal\"\ncanary = { percent = 100, stop_at = 50 }";
    let (mut child, workplace) = start(&laravel, mapping, &["--json", "--sleep=0.1"]);
    let runs = |by: &str| {
        let lines = journal::since(&redis, 0);
        let is_run = |line: &&journal::Line| line.event == "run" && line.by == by;
        lines.iter().filter(is_run).count()
    };
    eventually("all jobs have run", SOON, || {
        (runs("rust") + runs("php") == JOBS).then_some(())
    });
    assert_eq!((runs("rust"), runs("php")), (20, JOBS - 20));
    let told = printed(&child, "canary_stopped");
    assert_eq!(
        (&told["failures"], &told["runs"], &told["target"]),
        (&20.into(), &20.into(), &"App\\Jobs\\Journal".into())
    );
    let said = "a canary stopped itself";
    eventually(said, SOON, || child.stderr().contains(said).then_some(()));

    let resumed = workplace.artisand(&["canary:resume"]).output().unwrap();
    assert!(resumed.status.success(), "{resumed:?}");
    let served = laravel.serve();
    eventually("the handler runs jobs again", SOON, || {
        served.run(&["interop:journal", "again"]);
        (runs("rust") > 20).then_some(())
    });
    assert_eq!(
        printed(&child, "canary_resumed")["target"],
        "App\\Jobs\\Journal"
    );
    child.signal(Signal::TERM);
    child.succeeds_within(SOON);
}

on_every_laravel!(a_canary_that_fails_too_often_leaves_its_jobs_to_php_until_it_is_resumed);

fn a_job_that_does_not_fit_its_handler_runs_in_php(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let served = laravel.serve();
    for id in ["1", "two", "3", "four"] {
        served.run(&["interop:journal", id, "--tries=1"]);
    }
    let mapping =
        "[[map]]\njob = 'App\\Jobs\\Journal'\nhandler = \"strict\"\non_mismatch = \"php\"";
    let child = worker(&laravel, mapping, &["--stop-when-empty", "--json"]);
    let told = printed(&child, "mapping");
    let counted = ["handler", "php", "mismatched"].map(|name| told[name].as_u64().unwrap());
    assert_eq!(counted, [2, 2, 2], "{}", child.stderr());
    let lines = journal::since(&redis, 0).into_iter();
    // PHP also hears of the two that failed in the handler.
    let mut ran: Vec<_> = lines
        .filter(|line| line.event == "run")
        .map(|line| (line.by, line.id, line.attempts))
        .collect();
    // Two processes of PHP run them at once.
    ran.sort();
    let in_php = ["four", "two"].map(|id| ("php".to_owned(), id.to_owned(), Some(1)));
    assert_eq!(ran, in_php, "{}", child.stderr());
    let said = child.stderr().matches("does not fit its handler").count();
    assert_eq!(said, 1, "{}", child.stderr());
}

on_every_laravel!(a_job_that_does_not_fit_its_handler_runs_in_php);

fn a_shadow_runs_nothing_and_says_what_is_different(version: u8) {
    let redis = RedisServer::start();
    // Reservations of jobs whose process ends expire soon.
    let laravel = Laravel::with_retry_after(version, &redis, 4);
    let served = laravel.serve();
    #[rustfmt::skip]
    let jobs: [&[&str]; 6] = [
        &["a", "--script=ok"], &["b", "--script=throw,ok", "--tries=3"], &["c", "--script=release:0,ok", "--tries=3"],
        &["d", "--script=fail"], &["e", "--script=note:x"], &["f", "--script=exit,ok", "--tries=3"],
    ];
    for job in jobs {
        served.run(&[&["interop:journal"], job].concat());
    }
    let shadow = "[[map]]\njob = 'App\\Jobs\\Journal'\nmode = \"shadow\"\nhandler = ";
    let args = ["--stop-when-empty-for=9", "--sleep=1", "--json"];
    let child = worker(&laravel, &format!("{shadow}\"journal\""), &args);
    let lines = journal::since(&redis, 0);
    assert!(lines.iter().all(|line| line.by == "php"), "{lines:?}");
    let runs = lines.iter().filter(|line| line.event == "run").count();
    assert_eq!(runs, 9, "{lines:?}");
    let told = printed(&child, "shadow");
    let counted = ["jobs", "readable", "unreadable", "compared", "different"];
    assert_eq!(
        counted.map(|name| told[name].as_u64().unwrap()),
        [9, 9, 0, 9, 1]
    );
    assert_eq!(told["level"], "warning");
    let log = child.stderr();
    assert!(log.contains("`note:x` became Deleted"), "{log}");

    // A handler that cannot read them: PHP still runs them.
    for id in ["1", "two", "3"] {
        served.run(&["interop:journal", id]);
    }
    let empties = |handler: &str, expected: [u64; 5]| {
        let mapping = format!("{shadow}\"{handler}\"");
        let child = worker(&laravel, &mapping, &["--stop-when-empty", "--json"]);
        let told = printed(&child, "shadow");
        let counts = counted.map(|name| told[name].as_u64().unwrap());
        assert_eq!(counts, expected, "{}", child.stderr());
        child
    };
    let child = empties("strict", [3, 2, 1, 0, 0]);
    assert_eq!(journal::since(&redis, lines.len()).len(), 3);
    assert!(
        child.stderr().contains("a shadow cannot read a job"),
        "{}",
        child.stderr()
    );

    // A job that would not reach the handler, because only PHP has its middleware.
    let through = r#"--through=[{"php_only":{}}]"#;
    served.run(&["interop:journal", "guarded", through]);
    let child = empties("journal", [1, 0, 1, 0, 0]);
    assert!(child.stderr().contains("PhpOnly"), "{}", child.stderr());
    assert_eq!(journal::since(&redis, lines.len() + 3)[0].by, "php");
}

on_every_laravel!(a_shadow_runs_nothing_and_says_what_is_different);
