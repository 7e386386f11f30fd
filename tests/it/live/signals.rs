//! The app's signals to its workers through cache and files: restart, pause, maintenance.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::harness::process::{INTEROP_MAPPINGS, ManagedChild, poll};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};
use crate::harness::sql::PostgresServer;

const SOON: Duration = Duration::from_secs(90);
/// How long a job has to stay where it is.
const LONG: Duration = Duration::from_secs(3);
/// What a worker of artisand says of the app or of its queue, at the end of a line, when it rests.
const RESTS: [&str; 2] = ["DOWN", "PAUSED"];
/// The same when it goes on.
const GOES_ON: [&str; 2] = ["UP", "RESUMED"];

struct Signalled {
    scene: Scene,
}

in_scene!(Signalled);

impl Signalled {
    fn new(version: u8, settings: &[(&str, String)]) -> Self {
        let mut scene = Scene::new(version, settings, INTEROP_MAPPINGS);
        scene.name = format!("Laravel {version} {settings:?}");
        // The first use makes the tables, where there are any.
        scene.php().run(&["interop:cache", "get", "nothing"]);
        Self { scene }
    }

    /// Queues a job and returns its name in the journal.
    fn push(&self) -> String {
        let id = format!("{:016x}", fastrand::u64(..));
        self.scene.push(&id, &[]);
        id
    }

    fn has_run(&self, id: &str) -> Option<()> {
        let mut lines = self.lines().into_iter();
        lines.any(|line| line.id == id).then_some(())
    }

    /// Runs a pushed job; by then the worker has read the signals, too.
    fn runs(&self, worker: &ManagedChild) {
        let id = self.push();
        poll(SOON, || self.has_run(&id))
            .unwrap_or_else(|| panic!("{}: {id} was not run: {}", self.name, worker.describe()));
    }

    /// Waits until a worker of artisand has said last that it rests, or that it goes on.
    fn says(&self, words: [&str; 2], worker: &ManagedChild) {
        let says = || {
            let said = worker.stdout();
            let ends_with =
                |line: &str, words: [&str; 2]| words.iter().any(|word| line.ends_with(*word));
            let mut lines = said.lines().rev();
            let last = lines.find(|line| ends_with(line, RESTS) || ends_with(line, GOES_ON))?;
            ends_with(last, words).then_some(())
        };
        poll(SOON, says)
            .unwrap_or_else(|| panic!("{}: not {words:?}: {}", self.name, worker.describe()));
    }

    /// Checks that a job stays in the queue once a worker of artisand has said that it rests; returns the job.
    fn rests(&self, worker: &ManagedChild) -> String {
        self.says(RESTS, worker);
        let id = self.push();
        assert!(
            poll(LONG, || self.has_run(&id)).is_none(),
            "{}: {id} was run: {}",
            self.name,
            worker.describe()
        );
        id
    }

    /// Checks that jobs stay in the queue once a worker of Laravel has read the signals; returns one of them.
    fn stays_queued(&self, worker: &ManagedChild) -> String {
        let deadline = Instant::now() + SOON;
        while Instant::now() < deadline {
            let id = self.push();
            if poll(LONG, || self.has_run(&id)).is_none() {
                return id;
            }
        }
        panic!(
            "{}: jobs are run all the same: {}",
            self.name,
            worker.describe()
        );
    }

    /// Waits until this job has run.
    fn comes_to_run(&self, id: &str, worker: &ManagedChild) {
        poll(SOON, || self.has_run(id))
            .unwrap_or_else(|| panic!("{}: {id} was not run: {}", self.name, worker.describe()));
    }

    fn rust(&self, options: &[&str]) -> ManagedChild {
        let worker = self
            .workplace
            .worker(&[&["--sleep=0.1"][..], options].concat());
        if options.is_empty() {
            self.runs(&worker);
        }
        worker
    }

    /// A worker of Laravel that has run a job.
    fn php_worker(&self) -> ManagedChild {
        let worker = self.scene.php_worker(&["--sleep=0.1"]);
        self.runs(&worker);
        worker
    }

    fn artisan(&self, args: &[&str]) {
        let (text, code) = self.laravel.text(args);
        assert_eq!(code, 0, "{} {args:?}: {text}", self.name);
    }

    fn artisand(&self, args: &[&str]) {
        let output = self.workplace.artisand(args).output().unwrap();
        assert!(
            output.status.success(),
            "{} {args:?}: {output:?}",
            self.name
        );
    }

    fn stops_by_itself(&self, mut worker: ManagedChild) {
        let status = worker.wait_timeout(SOON);
        assert!(
            status.success(),
            "{}: {status}: {}",
            self.name,
            worker.describe()
        );
        let said = worker.stdout();
        let is_said = said.contains("STOPPED Received restart signal");
        assert!(is_said, "{}: {}", self.name, worker.describe());
    }

    fn stop(&self, mut worker: ManagedChild) {
        worker.signal(Signal::TERM);
        let status = worker.wait_timeout(SOON);
        assert!(
            status.success(),
            "{}: {status}: {}",
            self.name,
            worker.describe()
        );
    }

    /// One command stops the jobs of a worker of artisand, another lets them continue.
    fn is_held_and_let_go(&self, hold: &[&str], release: &[&str], worker: &ManagedChild) {
        self.artisan(hold);
        let waiting = self.rests(worker);
        self.artisan(release);
        self.comes_to_run(&waiting, worker);
        self.says(GOES_ON, worker);
    }
}

/// The environment that makes an app use a cache store, for each store that a version is tested with.
fn each_store(version: u8, scenario: impl Fn(&Signalled) + Sync) {
    let store = |name: &str| ("CACHE_STORE", name.to_owned());
    let postgres = (version == 13).then(PostgresServer::start);
    let mut settings = vec![vec![store("redis")], vec![store("file")]];
    if let Some(postgres) = &postgres {
        settings.push([&postgres.env()[..], &[store("database")]].concat());
    }
    std::thread::scope(|scope| {
        for settings in &settings {
            scope.spawn(|| scenario(&Signalled::new(version, settings)));
        }
    });
}

fn workers_stop_when_laravel_says_so(version: u8) {
    each_store(version, |scene| {
        let worker = scene.rust(&[]);
        scene.artisan(&["queue:restart"]);
        scene.stops_by_itself(worker);

        // The next worker starts while the key has a value, and then the key is deleted.
        let worker = scene.rust(&[]);
        scene.artisan(&["cache:clear"]);
        scene.stops_by_itself(worker);

        let worker = scene.rust(&[]);
        scene.artisand(&["queue:restart"]);
        scene.stops_by_itself(worker);
    });
}

on_every_laravel!(workers_stop_when_laravel_says_so);

fn workers_rest_while_the_app_is_down(version: u8) {
    each_store(version, |scene| {
        let worker = scene.rust(&[]);
        scene.artisan(&["down"]);
        let held = scene.rests(&worker);
        let forced = scene.rust(&["--force"]);
        scene.comes_to_run(&held, &forced);
        scene.stop(forced);
        let held = scene.rests(&worker);
        scene.artisan(&["up"]);
        scene.comes_to_run(&held, &worker);
        scene.stop(worker);
    });
}

on_every_laravel!(workers_rest_while_the_app_is_down);

fn maintenance_in_the_cache_is_heard(version: u8) {
    let settings = [
        ("APP_MAINTENANCE_DRIVER", "cache".to_owned()),
        ("APP_MAINTENANCE_STORE", "redis".to_owned()),
        ("CACHE_STORE", "file".to_owned()),
    ];
    let scene = Signalled::new(version, &settings);
    let worker = scene.rust(&[]);
    scene.is_held_and_let_go(&["down"], &["up"], &worker);
    scene.stop(worker);
}

on_laravel! { maintenance_in_the_cache_is_heard: laravel_10(10) laravel_13(13) }

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn queues_are_paused_by_laravel_13() {
    each_store(13, |scene| {
        let worker = scene.rust(&[]);
        // No queue of this worker: the worker goes on below although this one stays paused.
        scene.artisan(&["queue:pause", "redis:other"]);
        let (pause, resume) = (
            ["queue:pause", "redis:default"],
            ["queue:continue", "redis:default"],
        );
        scene.is_held_and_let_go(&pause, &resume, &worker);
        let (pause, resume) = (["queue:pause", "--all"], ["queue:resume", "--all"]);
        scene.is_held_and_let_go(&pause, &resume, &worker);
        scene.stop(worker);
    });
}

fn workers_of_php_stop_when_we_say_so(version: u8) {
    each_store(version, |scene| {
        let mut worker = scene.php_worker();
        scene.artisand(&["queue:restart"]);
        worker.succeeds_within(SOON);
    });
}

on_every_laravel!(workers_of_php_stop_when_we_say_so);

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn workers_of_laravel_13_rest_when_we_say_so() {
    each_store(13, |scene| {
        let mut worker = scene.php_worker();
        for (pause, resume) in [
            (
                ["queue:pause", "redis:default"],
                ["queue:continue", "redis:default"],
            ),
            (["queue:pause", "--all"], ["queue:resume", "--all"]),
        ] {
            scene.artisand(&pause);
            let held = scene.stays_queued(&worker);
            scene.artisand(&resume);
            scene.comes_to_run(&held, &worker);
        }
        scene.artisand(&["queue:restart"]);
        worker.succeeds_within(SOON);
    });
}

fn a_cache_that_is_killed_stops_no_job(version: u8) {
    const REPORT: &str = "Redis is away";
    let mut cache = RedisServer::start();
    let settings = [
        ("CACHE_STORE", "redis".to_owned()),
        ("REDIS_CACHE_PORT", cache.port().to_string()),
    ];
    let scene = Signalled::new(version, &settings);
    let worker = scene.rust(&[]);
    cache.kill();
    let report = poll(SOON, || worker.stderr().contains(REPORT).then_some(()));
    assert!(report.is_some(), "not reported: {}", worker.describe());
    for _ in 0..3 {
        scene.runs(&worker);
    }
    let reports = worker.stderr().matches(REPORT).count();
    assert_eq!(reports, 1, "{}", worker.describe());

    cache.restart();
    let again = poll(SOON, || {
        worker.stderr().contains("Redis is back").then_some(())
    });
    assert!(again.is_some(), "{}", worker.describe());
    scene.artisan(&["queue:restart"]);
    scene.stops_by_itself(worker);
}

on_every_laravel!(a_cache_that_is_killed_stops_no_job);
