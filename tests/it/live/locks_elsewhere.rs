//! Locks of unique jobs that are not on the queue's server: freed and taken after the job's end, by any worker.

use std::time::Duration;

use rustix::process::Signal;

use crate::harness::scene::{Scene, in_scene};

const SOON: Duration = Duration::from_secs(60);
const STORES: [&str; 2] = ["database", "file"];

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct Locked {
    scene: Scene,
}

in_scene!(Locked);

impl Locked {
    fn new(version: u8, store: &str) -> Self {
        let mut scene = Scene::with_classes(version, &[("CACHE_STORE", store)], MAPPINGS);
        scene.name = format!("Laravel {version} {store}");
        // The first use makes the tables, where there are any.
        scene.php().run(&["interop:cache", "get", "nothing"]);
        Self { scene }
    }

    /// Ids in the order in which their jobs were run.
    fn ran(&self) -> Vec<String> {
        self.lines().into_iter().map(|line| line.id).collect()
    }

    /// Dispatches unique jobs of this many names; returns how many were queued.
    fn dispatch(&self, ids: usize) -> usize {
        let (count, ids) = ((50 * ids).to_string(), format!("--ids={ids}"));
        let queued = self.php().run(&["interop:rush", &count, "ok", &ids]);
        queued["uuids"].as_array().unwrap().len()
    }
}

/// In Laravel a job's own lock is free before the next of its chain takes it.
fn a_chain_of_one_unique_class_goes_on(version: u8) {
    for store in STORES {
        let scene = Locked::new(version, store);
        let chain = ["ok", "ok", "ok"];
        let args = ["interop:chain", "php"];
        let options = ["--classes=SingleJournal", "--without-catch"];
        scene.php().text(&[&args[..], &chain, &options].concat());
        scene
            .laravel
            .worker(&["--stop-when-empty", "--sleep=0"])
            .succeeds_within(SOON);
        let expected = ["php-1", "php-2", "php-3"];
        assert_eq!(scene.ran(), expected, "{}", scene.name);

        let args = ["interop:chain", "rust"];
        scene.php().text(&[&args[..], &chain, &options].concat());
        let mut worker = scene.workplace.worker(&["--sleep=0.05"]);
        scene.redis.eventually("all steps are run", SOON, || {
            (scene.redis.length("interop:journal") == 6).then_some(())
        });
        worker.signal(Signal::TERM);
        worker.succeeds_within(SOON);
        assert_eq!(scene.ran()[3..], ["rust-1", "rust-2", "rust-3"]);
        assert_eq!(scene.own_keys(), [""; 0], "{}", scene.name);
        // Nothing is locked.
        scene
            .php()
            .text(&[&args[..], &chain[..1], &options].concat());
        assert_eq!(scene.redis.length(&scene.laravel.key("queues:default")), 1);
    }
}

on_every_laravel!(a_chain_of_one_unique_class_goes_on);

fn a_lock_that_a_worker_left_is_freed_by_the_next(version: u8) {
    const IDS: usize = 10;
    for store in STORES {
        let scene = Locked::new(version, store);
        let (redis, name) = (&scene.redis, &scene.name);
        assert_eq!(scene.dispatch(IDS), IDS, "{name}");
        // Another process holds the lease, so the worker ends its jobs but does not do the follow-ups.
        let lease = scene.laravel.key("artisand:follow-ups:lease");
        redis.query::<()>(&[b"SET", lease.as_bytes(), b"somebody"]);
        let mut worker = scene.workplace.worker(&["--concurrency=4"]);
        let follow_ups = scene.laravel.key("artisand:follow-ups");
        redis.eventually("all jobs have ended", SOON, || {
            (redis.length(&follow_ups) == IDS).then_some(())
        });
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
        assert_eq!(scene.dispatch(IDS), 0, "{name}: all locks are held");

        // One lock is freed by hand meanwhile, and another job takes it: that job keeps it.
        let separator = if version == 13 { ":" } else { "" };
        let lock = format!("laravel_unique_job:App\\Jobs\\UniqueJournal{separator}id-3");
        scene.php().text(&["interop:lock", "force-release", &lock]);
        assert_eq!(scene.dispatch(IDS), 1, "{name}");
        let owner = |lock: &str| scene.php().run(&["interop:lock", "owner", lock])["owner"].clone();
        let other = owner(&lock);
        assert!(other.is_string(), "{name}: {other}");

        redis.query::<()>(&[b"DEL", lease.as_bytes()]);
        let idle = ["--queue=idle", "--sleep=0.05"];
        let mut next = scene.workplace.worker(&idle);
        redis.eventually("all locks are freed", SOON, || {
            scene.own_keys().is_empty().then_some(())
        });
        next.signal(Signal::TERM);
        next.succeeds_within(SOON);
        assert_eq!(owner(&lock), other, "{name}");
        assert_eq!(scene.dispatch(IDS), IDS - 1, "{name}: all others are free");
        let mut worker = scene
            .workplace
            .worker(&["--concurrency=4", "--stop-when-empty"]);
        worker.succeeds_within(SOON);
        assert_eq!(scene.ran().len(), 2 * IDS, "{name}");
        assert_eq!(scene.own_keys(), [""; 0], "{name}");
        assert_eq!(scene.dispatch(IDS), IDS, "{name}");
    }
}

on_every_laravel!(a_lock_that_a_worker_left_is_freed_by_the_next);
