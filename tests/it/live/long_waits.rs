//! While jobs wait and Horizon has no supervisor of its own, a PHP process lets it look for long waits.

use std::time::Duration;

use rustix::process::Signal;
use serde_json::json;

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(90);

/// An app with something that stands for Horizon's look.
fn scene(version: u8, mode: &str) -> Scene {
    let env = [("INTEROP_HORIZON", mode)];
    Scene::on(RedisServer::start(), version, &env, |laravel| {
        let mut manifest = laravel.manifest();
        manifest["config"]["horizon"] = json!({"use": "default", "prefix": "interop-horizon:"});
        Workplace::with_manifest_and_pool(laravel, &manifest, 1, "")
    })
}

/// Lets a job wait behind another one until Horizon has looked; returns what the worker has said.
fn wait_for_look(scene: &Scene) -> String {
    scene.push("first", &["--script=sleep:25"]);
    scene.push("waits", &[]);
    let mut worker = ManagedChild::spawn(scene.workplace.artisand(&["queue:work", "redis"]));
    let looks = eventually("Horizon has looked", SOON, || {
        let looks = scene.redis.list("interop:waits");
        (!looks.is_empty()).then_some(looks)
    });
    assert_eq!(looks, [b"artisand: php helper (waits)"]);
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    worker.describe()
}

on_every_laravel!(horizon_looks_for_long_waits_in_a_process_of_its_own);
fn horizon_looks_for_long_waits_in_a_process_of_its_own(version: u8) {
    let output = wait_for_look(&scene(version, "looks"));
    assert!(!output.contains("long waits"), "{output}");
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn a_look_that_fails_is_said_and_changes_nothing_for_jobs() {
    let scene = scene(13, "throw");
    let output = wait_for_look(&scene);
    assert_eq!(
        output.matches("could not look for long waits").count(),
        1,
        "{output}"
    );
    assert!(output.contains("no mail"), "{output}");
    // The job that ran had its end.
    assert_eq!(scene.queued(), 1, "{output}");
}
