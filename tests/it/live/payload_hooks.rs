//! Jobs that artisand pushes carry what the app's payload hooks add.

use std::time::Duration;

use regex::Regex;
use serde_json::Value;

use crate::harness::process::{ManagedChild, Workplace};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(90);

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "discard"
"#;

fn scene(version: u8, hook: &str, setting: &str) -> Scene {
    let env = [("INTEROP_PAYLOAD_HOOK", hook)];
    Scene::on(RedisServer::start(), version, &env, |laravel| {
        let manifest = laravel.manifest_with_classes();
        Workplace::with_manifest_and_pool(laravel, &manifest, 1, MAPPINGS).php(setting)
    })
}

/// Works the first step of a chain, in PHP or here; returns the payload of the second, which is on another queue, and
/// what the worker said.
fn second_step(scene: &Scene, options: &[&str], by_php: bool) -> (String, String) {
    let args = [
        "interop:chain",
        "c",
        "ok",
        "ok",
        "--queues=default,second",
        "--without-catch",
    ];
    scene.laravel.run(&[&args[..], options].concat());
    let args = ["--stop-when-empty", "--sleep=0"];
    let mut worker = if by_php {
        scene.php_worker(&args)
    } else {
        let args = [&["queue:work", "redis"][..], &args].concat();
        ManagedChild::spawn(scene.workplace.artisand(&args))
    };
    worker.succeeds_within(SOON);
    let second = scene.queue("second");
    let jobs = scene.redis.list(&second);
    scene.redis.query::<()>(&[b"DEL", second.as_bytes()]);
    let [payload] = &jobs[..] else {
        panic!("{} {jobs:?} {}", scene.name, worker.describe());
    };
    assert_eq!(scene.queued(), 0);
    (
        String::from_utf8(payload.clone()).unwrap(),
        worker.describe(),
    )
}

/// Names of the fields in order, and the payload without what is new each time.
fn compared(payload: &str, is_secret: bool) -> (Vec<String>, Value) {
    let mut value: Value = serde_json::from_str(payload).unwrap();
    let fields = value.as_object_mut().unwrap();
    let mut names: Vec<String> = fields.keys().cloned().collect();
    names.sort_by_key(|name| payload.find(&format!("\"{name}\":")));
    for name in ["uuid", "id", "createdAt"] {
        fields.remove(name);
    }
    if is_secret {
        fields["data"]["command"].take();
    }
    (names, value)
}

/// Whether PHP has pushed the step, in a closure.
fn has_closure(log: &str) -> bool {
    log.contains("(closure)")
}

/// What this returns, with what the worker said, once PHP has said in time what hooks add: it has two seconds for that,
/// and may stand still on a busy machine.
fn in_time<T>(work: impl Fn() -> (T, String)) -> (T, String) {
    let is_late = |log: &str| log.contains("PHP did not say what the app's payload hooks add");
    let mut works = (0..3).map(|_| work());
    let found = works.find(|(_, log)| !is_late(log));
    found.expect("PHP was too late three times")
}

on_every_laravel!(the_next_step_carries_what_hooks_add_without_a_detour);
fn the_next_step_carries_what_hooks_add_without_a_detour(version: u8) {
    let scene = scene(version, "1", "");
    for options in [&[][..], &["--encrypted"]] {
        let is_secret = !options.is_empty();
        let (theirs, _) = second_step(&scene, options, true);
        assert!(
            theirs.contains("\"tenant\":7,\"given\":[\"redis\",\"queues:second\",\"c-2\""),
            "{theirs}"
        );
        let (ours, log) = in_time(|| second_step(&scene, options, false));
        assert_eq!(
            compared(&ours, is_secret),
            compared(&theirs, is_secret),
            "{} {log}",
            scene.name
        );
        assert!(!has_closure(&log), "{log}");
    }
}

on_every_laravel!(php_pushes_the_step_if_a_hook_does_not_say_what_it_adds);
fn php_pushes_the_step_if_a_hook_does_not_say_what_it_adds(version: u8) {
    for hook in ["hang", "die", "throw", "set"] {
        let scene = scene(version, hook, "");
        let (theirs, _) = second_step(&scene, &[], true);
        let (ours, log) = second_step(&scene, &[], false);
        assert!(has_closure(&log), "{hook} {log}");
        assert_eq!(
            compared(&ours, false),
            compared(&theirs, false),
            "{} {hook} {log}",
            scene.name
        );
    }
}

on_every_laravel!(hooks_that_are_skipped_add_nothing);
fn hooks_that_are_skipped_add_nothing(version: u8) {
    let scene = scene(version, "1", "payload_hooks = \"skip\"");
    let (ours, log) = second_step(&scene, &[], false);
    assert!(
        !ours.contains("tenant") && !has_closure(&log),
        "{ours} {log}"
    );
}

/// Works a job that adds others to its batch, in PHP or here; returns the others with their queues, without what is new
/// each time, and what the worker said.
fn added_jobs(scene: &Scene, by_php: bool) -> (Vec<(String, String)>, String) {
    scene.php().text(&["interop:scenario", "batch-growing"]);
    let args = ["--queue=b", "--once"];
    let mut worker = if by_php {
        scene.php_worker(&args)
    } else {
        scene.worker(&args)
    };
    worker.succeeds_within(SOON);
    let ids = Regex::new("[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}").unwrap();
    let mut added = Vec::new();
    for name in ["a", "b", "c", "default"] {
        let queue = scene.queue(name);
        let delayed = scene.redis.scores(&format!("{queue}:delayed"));
        let later = delayed.into_iter().map(|(job, _)| job);
        for job in scene.redis.list(&queue).into_iter().chain(later) {
            let job = String::from_utf8(job).unwrap();
            let is_secret = job.contains("\"command\":\"eyJ");
            let (names, rest) = compared(&job, is_secret);
            let shown = format!("{names:?} {rest}");
            added.push((
                name.to_owned(),
                ids.replace_all(&shown, "an id").into_owned(),
            ));
        }
    }
    for key in scene.keys("*queues:*") {
        scene.redis.query::<()>(&[b"DEL", key.as_bytes()]);
    }
    (added, worker.describe())
}

on_every_laravel!(jobs_that_a_handler_adds_to_its_batch_carry_what_hooks_add);
fn jobs_that_a_handler_adds_to_its_batch_carry_what_hooks_add(version: u8) {
    let env = [("INTEROP_PAYLOAD_HOOK", "1")];
    let mappings = MAPPINGS.replace("discard", "journal");
    let scene = Scene::on(RedisServer::start(), version, &env, |laravel| {
        let manifest = laravel.manifest_with_classes();
        Workplace::with_manifest_and_pool(laravel, &manifest, 1, &mappings)
    });
    let (theirs, _) = added_jobs(&scene, true);
    let (ours, log) = in_time(|| added_jobs(&scene, false));
    assert_eq!(theirs.len(), 4, "{theirs:#?}");
    for (_, job) in &theirs {
        assert!(job.contains("\"tenant\":7"), "{job}");
    }
    assert_eq!(ours, theirs, "{log}");
    assert!(!has_closure(&log), "{log}");
}
