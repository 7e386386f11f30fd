//! SQS beside real Laravel: commands, what requests cost, and payloads that are too long for a message.

use std::time::Duration;

use crate::harness::process::{INTEROP_MAPPINGS, eventually};
use crate::harness::scene::Scene;
use crate::harness::sqs::Sqs;

const SOON: Duration = Duration::from_secs(120);

/// What no mapping names cannot be left there.
const FAIL: &str = "[unmapped]\npolicy = \"fail\"\n";

/// An app whose queues are on a server.
fn scene(server: &Sqs, version: u8, env: &[(&str, &str)], settings: &str) -> Scene {
    let prefix = server.prefix();
    let own = [
        ("SQS_PREFIX", &*prefix),
        ("QUEUE_CONNECTION", "sqs"),
        ("QUEUE_FAILED_DRIVER", "database-uuids"),
    ];
    let scene = Scene::with_classes(version, &[env, &own].concat(), &format!("{FAIL}{settings}"));
    // The first look makes the tables.
    scene.failed();
    scene
}

fn run(scene: &Scene, args: &[&str]) -> (i32, String) {
    let output = scene.workplace.command_of(args).output().unwrap();
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    (output.status.code().unwrap(), text)
}

fn every_command_says_what_it_can_do_on_sqs(version: u8) {
    let server = Sqs::start();
    let scene = scene(&server, version, &[], INTEROP_MAPPINGS);
    scene.push("one", &[]);
    scene.push("two", &["--delay=600"]);
    #[rustfmt::skip]
    let rows: [(&[&str], i32, &[&str]); 9] = [
        (&["queue:migrate", "--json"], 0, &["\"driver\":\"sqs\",\"delayed\":0"]),
        (&["queue:monitor", "sqs:default"], 0, &["[2] OK", "Delayed jobs"]),
        (&["queue:peek"], 1, &["show a message without delivering it"]),
        (&["queue:quarantine"], 0, &["No payloads in quarantine"]),
        (&["doctor"], 0, &["ends of jobs are noted: Redis at", "`default`: 1 pending, 1 delayed"]),
        (&["config:check"], 0, &["connection `sqs`, queue `default` at http://127.0.0.1:"]),
        (&["dispatch", "App\\Jobs\\Journal", "--data={\"id\": \"three\"}"], 0, &["on queue default"]),
        (&["queue:clear", "--force"], 0, &["Cleared 3 jobs from the [default] queue"]),
        (&["queue:monitor", "sqs:default"], 0, &["[0] OK"]),
    ];
    for (args, code, parts) in rows {
        let (status, text) = run(&scene, args);
        assert_eq!(status, code, "{}: {args:?}: {text}", scene.name);
        for part in parts {
            assert!(text.contains(part), "{}: {args:?}: {text}", scene.name);
        }
    }
    // A failed job comes back to its queue, which has a URL for a name; PHP and Rust each bring back the other's.
    let retries: [&dyn Fn(&str) -> i32; 2] =
        [&|uuid| run(&scene, &["queue:retry", uuid]).0, &|uuid| {
            scene.laravel.text(&["queue:retry", uuid]).1
        }];
    for retry in retries {
        let uuid = scene.push("lost", &["--script=throw", "--tries=1"]);
        let args = ["queue:work", "sqs", "--stop-when-empty"];
        scene.workplace.worker_of(&args).succeeds_within(SOON);
        let failed = scene.failed();
        let url = format!("{}/default", server.prefix());
        assert_eq!(failed[0]["queue"], *url, "{}", scene.name);
        assert_eq!(retry(&uuid), 0, "{}", scene.name);
        assert_eq!(scene.failed().len(), 0, "{}", scene.name);
        assert_eq!(server.messages("default").len(), 1, "{}", scene.name);
        run(&scene, &["queue:clear", "--force"]);
    }
    // A key that is not allowed to do what a worker does.
    server.deny("GetQueueAttributes");
    let (status, text) = run(&scene, &["doctor"]);
    assert_eq!(status, 2, "{text}");
    assert!(
        text.contains("AccessDenied") && text.contains("sqs:GetQueueAttributes"),
        "{text}"
    );
}

on_every_laravel!(every_command_says_what_it_can_do_on_sqs);

/// Requests cost money: they are counted, and printed for docs/benchmarks.md.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
#[expect(clippy::print_stdout, reason = "the figures are wanted")]
fn a_worker_makes_a_request_for_ten_jobs_and_few_when_idle() {
    const JOBS: usize = 1000;
    for slots in ["1", "64"] {
        let server = Sqs::start();
        let scene = scene(&server, 13, &[], INTEROP_MAPPINGS);
        scene.laravel.text(&["interop:flood", &JOBS.to_string()]);
        let before = server.all_requests();
        let slots = format!("--concurrency={slots}");
        let mut worker = scene
            .workplace
            .worker_of(&["queue:work", "sqs", "-q", &slots]);
        eventually("all jobs are done", SOON, || {
            (server.count() == 0).then_some(())
        });
        let spent = |before: &std::collections::BTreeMap<String, usize>| {
            let now = server.all_requests().into_iter();
            let spent = now.map(|(name, count)| {
                (
                    name.clone(),
                    count - before.get(&name).copied().unwrap_or(0),
                )
            });
            spent.filter(|(_, count)| *count > 0).collect::<Vec<_>>()
        };
        let busy = spent(&before);
        assert_eq!(scene.redis.length("interop:done"), JOBS);
        // Three polls.
        let polls = || server.requests("ReceiveMessage");
        let first = polls();
        eventually("it is idle", SOON, || (polls() > first).then_some(()));
        let (idle, began, first) = (server.all_requests(), std::time::Instant::now(), polls());
        eventually("it polls", SOON, || (polls() >= first + 3).then_some(()));
        let hours = began.elapsed().as_secs_f64() / 3600.0;
        let idle = spent(&idle);
        let total = |spent: &[(String, usize)]| spent.iter().map(|(_, count)| count).sum::<usize>();
        let (busy_count, idle_count) = (total(&busy), total(&idle));
        let per_hour = num(idle_count) / hours;
        println!(
            "SQS, {slots}: {:.2} requests a job ({busy:?}), {per_hour:.0} an idle hour ({idle:?})",
            num(busy_count) / num(JOBS)
        );
        // Laravel makes two for each job, and one for each `--sleep`. A busy machine pops fewer jobs at a time.
        let most = if slots.ends_with("=1") {
            2 * JOBS + 10
        } else {
            JOBS
        };
        assert!(busy_count <= most, "{slots}: {busy:?}");
        assert!((3..=4).contains(&idle_count), "{slots}: {idle:?}");
        worker.signal(rustix::process::Signal::TERM);
        worker.succeeds_within(SOON);
    }
}

fn num(count: usize) -> f64 {
    f64::from(u32::try_from(count).unwrap())
}

/// Payloads in the cache store go both ways.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn payloads_in_the_cache_store_are_read_by_both() {
    let server = Sqs::start();
    let env = [("SQS_OVERFLOW", "1"), ("CACHE_STORE", "redis")];
    let scene = scene(&server, 13, &env, INTEROP_MAPPINGS);
    let dispatch = |id: &str| {
        let object = format!("--data={{\"id\": \"{id}\"}}");
        let (status, text) = run(&scene, &["dispatch", "App\\Jobs\\Journal", &object]);
        assert_eq!(status, 0, "{text}");
    };
    let kept = || -> usize {
        let of = |database: u8| -> Vec<String> {
            let mut connection = scene.redis.connection();
            let select = redis::cmd("SELECT").arg(database).exec(&mut connection);
            select.unwrap();
            let mut keys = redis::cmd("KEYS");
            keys.arg("*sqs-payloads*").query(&mut connection).unwrap()
        };
        (0..3).map(|database| of(database).len()).sum()
    };
    let work_by_php = || {
        let args = ["queue:work", "sqs", "--stop-when-empty", "--sleep=0"];
        scene.laravel.text(&args);
    };
    scene.push("of-php", &[]);
    dispatch("of-rust");
    for (body, _) in server.messages("default") {
        assert!(
            body.starts_with(r#"{"@pointer":"laravel:sqs-payloads:"#),
            "{body}"
        );
    }
    assert_eq!(kept(), 2);
    let args = ["queue:work", "sqs", "--stop-when-empty"];
    scene.workplace.worker_of(&args).succeeds_within(SOON);
    assert_eq!(scene.events("of-php"), ["run:1"]);
    assert_eq!(scene.events("of-rust"), ["run:1"]);
    assert_eq!(kept(), 0);
    dispatch("for-php");
    work_by_php();
    assert_eq!(scene.events("for-php"), ["run:1"]);
    assert_eq!((server.count(), kept()), (0, 0));
}
