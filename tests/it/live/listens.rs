//! `queue:listen` with jobs in PHP: their processes have the code as it is now.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::process::{ManagedChild, Workplace, eventually};
use crate::harness::redis::RedisServer;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(60);

fn a_changed_file_gives_php_jobs_new_processes(version: u8) {
    let env = [("QUEUE_FAILED_DRIVER", "database-uuids")];
    let scene = Scene::on(RedisServer::start(), version, &env, |laravel| {
        Workplace::with_pool(laravel, 1, "")
    });
    // The first look makes the tables.
    assert_eq!(scene.failed().len(), 0);
    let directory = scene.workplace.path().join("watched");
    std::fs::create_dir(&directory).unwrap();
    let args = [
        "queue:listen",
        "--tries=1",
        "--sleep=0.1",
        "--watch=watched",
    ];
    let mut listener = ManagedChild::spawn(scene.workplace.artisand(&args));
    let ran = |count: usize| {
        eventually(&format!("{}: {count} runs", scene.name), SOON, || {
            let lines = scene.lines();
            (lines.len() == count).then_some(lines)
        })
    };
    scene.push("first", &[]);
    scene.push("second", &[]);
    let lines = ran(2);
    assert_eq!(lines[0].pid, lines[1].pid, "{}", listener.describe());
    // A job that runs ends in its process.
    scene.push("long", &["--script=await:go"]);
    ran(3);
    std::fs::write(directory.join("Send.php"), "<?php").unwrap();
    eventually("the change is said", SOON, || {
        listener.stderr().contains("Send.php changed").then_some(())
    });
    // Until then the worker may take the next job itself.
    eventually("the worker is told", SOON, || {
        let log = listener.stderr();
        log.contains("stopping when the running jobs have ended")
            .then_some(())
    });
    scene.push("last", &[]);
    scene.redis.query::<()>(&[b"SET", b"interop:go", b"1"]);
    let lines = ran(4);
    let told: Vec<_> = lines.iter().map(|line| (&*line.id, &*line.event)).collect();
    let ids = ["first", "second", "long", "last"];
    assert_eq!(told, ids.map(|id| (id, "run")), "{}", listener.describe());
    assert_eq!(lines[1].pid, lines[2].pid);
    assert_ne!(lines[2].pid, lines[3].pid, "{}", listener.describe());
    listener.signal(Signal::TERM);
    listener.succeeds_within(SOON);
    assert_eq!((scene.queued(), scene.failed().len()), (0, 0));
}

on_every_laravel!(a_changed_file_gives_php_jobs_new_processes);
