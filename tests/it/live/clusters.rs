//! Real Laravel and artisand on the same queues of a Redis Cluster.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::harness::cluster::Cluster;
use crate::harness::journal;
use crate::harness::process::INTEROP_MAPPINGS;
use crate::harness::scene::Scene;

const SOON: Duration = Duration::from_secs(120);

/// Queues in three slots, as the app calls them: before 13.5 it has to give them tags.
fn queues(version: u8) -> [&'static str; 3] {
    if version >= 13 {
        ["mail", "feed", "rest"]
    } else {
        ["{mail}", "{feed}", "{rest}"]
    }
}

/// Both push to all queues and work them.
fn both_work_the_same_queues(version: u8) {
    let cluster = Cluster::start();
    let env = [("INTEROP_CLUSTER", cluster.seeds())];
    let scene = Scene::new(version, &env, INTEROP_MAPPINGS);
    let queues = queues(version);
    let slots: BTreeSet<u16> = queues
        .iter()
        .map(|queue| cluster.slot(&format!("{{{}}}", queue.trim_matches(['{', '}']))))
        .collect();
    assert_eq!(slots.len(), 3);
    let push = |round: &str| {
        for queue in queues {
            for number in 0..3 {
                let id = format!("{round}-{}-{number}", queue.trim_matches(['{', '}']));
                let queue = format!("--queue={queue}");
                let delay = (number == 2).then_some("--delay=1");
                scene.push(&id, &[&[&*queue], delay.as_slice()].concat());
            }
        }
    };
    let all = format!("--queue={}", queues.join(","));
    let is_empty = || {
        let keys = cluster.keys("*queues:*");
        keys.iter().all(|key| key.ends_with(":notify"))
    };
    push("rust");
    let mut worker = scene.worker(&[&all, "--concurrency=4", "--sleep=0.2"]);
    crate::harness::process::poll(SOON, || is_empty().then_some(()))
        .unwrap_or_else(|| panic!("{:?} {}", cluster.keys("*"), worker.describe()));
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    push("php");
    let mut worker = scene.php_worker(&[&all, "--sleep=0.2"]);
    crate::harness::process::poll(SOON, || is_empty().then_some(()))
        .unwrap_or_else(|| panic!("{:?} {}", cluster.keys("*"), worker.describe()));
    worker.signal(rustix::process::Signal::TERM);
    worker.succeeds_within(SOON);
    let lines = journal::since(&scene.redis, 0);
    assert_eq!(lines.len(), 2 * 9, "{lines:?}");
    for line in &lines {
        let (by, _) = line.id.split_once('-').unwrap();
        assert_eq!((&*line.by, &*line.event), (by, "run"), "{line:?}");
    }
    let left = cluster.keys("*artisand*");
    let is_work = |key: &&String| !crate::harness::redis::is_memory(key);
    assert_eq!(left.iter().find(is_work), None);
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn both_work_the_same_queues_laravel_10() {
    both_work_the_same_queues(10);
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn both_work_the_same_queues_laravel_13() {
    both_work_the_same_queues(13);
}
