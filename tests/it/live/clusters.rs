//! Real Laravel and artisand on the same queues of a Redis Cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};

use crate::harness::cluster::Cluster;
use crate::harness::journal;
use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, poll, supervisor_of};
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
    poll(SOON, || is_empty().then_some(()))
        .unwrap_or_else(|| panic!("{:?} {}", cluster.keys("*"), worker.describe()));
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
    push("php");
    let mut worker = scene.php_worker(&[&all, "--sleep=0.2"]);
    poll(SOON, || is_empty().then_some(()))
        .unwrap_or_else(|| panic!("{:?} {}", cluster.keys("*"), worker.describe()));
    worker.signal(Signal::TERM);
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

/// Ends that PHP writes itself: of a job that deletes itself and then comes back, and of one that was released when
/// artisand was killed.
fn php_processes_end_jobs_where_their_queue_is(version: u8) {
    let cluster = Cluster::start();
    let env = [("INTEROP_CLUSTER", cluster.seeds())];
    let scene = Scene::with_pool(version, &env, 1, "");
    let queue = format!("--queue={}", queues(version)[0]);
    let size = |set: &str| -> usize {
        let key = scene.key(&format!("queues:{{mail}}:{set}"));
        cluster.query(&[b"ZCARD", key.as_bytes()])
    };
    let mut worker = scene.worker(&[&queue, "--sleep=0.2"]);
    let has = |id: &str, expected: &[&str]| {
        poll(SOON, || (scene.events(id) == expected).then_some(())).is_some()
    };
    let script = "--script=delete+release:1,ok";
    scene.push("again", &[&queue, script, "--tries=9"]);
    let describe = |worker: &ManagedChild| format!("{:?} {}", cluster.keys("*"), worker.describe());
    assert!(has("again", &["run:1", "run:2"]), "{}", describe(&worker));

    let script = "--script=release:600+note:released+await:go";
    scene.push("killed", &[&queue, script, "--tries=9"]);
    let expected = ["run:1", "released:1"];
    assert!(has("killed", &expected), "{}", describe(&worker));
    // It would end the process, which waits, and the worker would start another one.
    let supervisor = poll(SOON, || supervisor_of(worker.id())).expect("there is one");
    let supervisor = Pid::from_raw(i32::try_from(supervisor).unwrap()).unwrap();
    worker.signal(Signal::STOP);
    kill_process(supervisor, Signal::KILL).unwrap();
    worker.signal(Signal::KILL);
    worker.wait_timeout(SOON);
    assert_eq!((size("reserved"), size("delayed")), (1, 0));
    let () = scene.redis.query(&[b"SET", b"interop:go", b"1"]);
    let is_delayed = || ((size("reserved"), size("delayed")) == (0, 1)).then_some(());
    assert!(poll(SOON, is_delayed).is_some(), "{}", describe(&worker));
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn php_processes_end_jobs_where_their_queue_is_laravel_10() {
    php_processes_end_jobs_where_their_queue_is(10);
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn php_processes_end_jobs_where_their_queue_is_laravel_13() {
    php_processes_end_jobs_where_their_queue_is(13);
}

/// Chains whose steps are on queues in different slots, while each master is killed in turn: a replica takes over with
/// what it knew, so that a step may run again, and none is missing.
#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn chains_go_on_when_masters_are_killed_laravel_13() {
    const CHAINS: usize = 30;
    const STEPS: usize = 6;
    let mut cluster = Cluster::with_replicas();
    let env = [
        ("INTEROP_CLUSTER", cluster.seeds()),
        ("REDIS_QUEUE_RETRY_AFTER", "4".to_owned()),
        ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
    ];
    let scene = Scene::with_classes(13, &env, INTEROP_MAPPINGS);
    let names = queues(13);
    let queues = names.join(",");
    for chain in 0..CHAINS {
        let id = format!("chain-{chain}");
        let scripts = ["sleep:0.05"; STEPS];
        let where_to = format!("--queues={queues}");
        let args = [
            &["interop:chain", &*id][..],
            &scripts,
            &[&*where_to, "--tries=9"],
        ]
        .concat();
        scene.php().run(&args);
    }
    // The first look makes the table.
    scene.failed();
    let victims = names.map(|name| cluster.first_master_of(&format!("{{{name}}}")));
    // What a replica does not have yet is lost, as with Laravel alone.
    for (name, victim) in names.iter().zip(victims) {
        let mut commands = redis::pipe();
        let key = format!("{{{name}}}-in-step");
        commands.cmd("SET").arg(key).arg(1).ignore();
        commands.cmd("WAIT").arg(&["1", "30000"]);
        let in_step: (i64,) = commands
            .query(&mut cluster.node(victim).connection())
            .unwrap();
        assert_eq!(in_step, (1,));
    }
    let args = [
        &*format!("--queue={queues}"),
        "--concurrency=4",
        "--sleep=0.2",
    ];
    let mut workers = [scene.worker(&args), scene.worker(&args)];
    let steps = || -> BTreeMap<String, usize> {
        let mut runs = BTreeMap::new();
        for line in journal::since(&scene.redis, 0) {
            *runs.entry(line.id).or_default() += usize::from(line.event == "run");
        }
        runs
    };
    let have_run = |cluster: &Cluster, workers: &[ManagedChild; 2], count: usize| {
        poll(SOON, || (steps().len() >= count).then_some(())).unwrap_or_else(|| {
            let [one, other] = workers.each_ref().map(ManagedChild::describe);
            let keys = cluster.keys("*");
            panic!("not {count}: {:?} {keys:?}\n{one}\n{other}", steps())
        });
    };
    for (round, name) in (1..).zip(names) {
        have_run(&cluster, &workers, round * CHAINS * STEPS / 5);
        cluster.replace_first_master_of(&format!("{{{name}}}"));
    }
    have_run(&cluster, &workers, CHAINS * STEPS);
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        worker.succeeds_within(SOON);
    }
    assert!(scene.failed().is_empty(), "{:?}", scene.failed());
    // Each of two workers loses what it has reserved, and what it did in the moment of each kill.
    let again: usize = steps().values().map(|runs| runs - 1).sum();
    assert!(again <= 60, "{again}: {:?}", steps());
}
