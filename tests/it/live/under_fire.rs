//! The pool of PHP processes with jobs that harm their process, and with kills.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use rustix::io::ioctl_fionread;
use rustix::process::{
    Pid, PidfdFlags, PidfdGetfdFlags, Signal, kill_process, pidfd_getfd, pidfd_open,
};
use serde_json::{Value, json};

use crate::harness::fixtures::project;
use crate::harness::journal::Line;
use crate::harness::laravel::Laravel;
use crate::harness::process::{
    ManagedChild, Workplace, children, eventually, is_alive, is_asleep, is_stopped, is_thorough,
    poll, supervisor_of, with_hangups,
};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};

/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(300);
/// Enough time for the last writes of a process whose artisand was killed.
const RETRY_AFTER: u64 = 4;

struct UnderFire {
    scene: Scene,
    random: fastrand::Rng,
    processes: usize,
}

in_scene!(UnderFire);

impl UnderFire {
    /// An app whose jobs `processes` PHP processes run; `php` is more of the `[php]` table.
    fn new(version: u8, processes: usize, php: &str) -> Self {
        Self::on(RedisServer::start(), version, processes, php)
    }

    fn on(redis: RedisServer, version: u8, processes: usize, php: &str) -> Self {
        let binary = project().join("php-interop").join("laravel");
        let binary = json!([binary, version.to_string()]);
        let php = format!("binary = {binary}\napp = \".\"\nprocesses = {processes}\n{php}");
        Self::with_php(redis, version, RETRY_AFTER, processes, &php)
    }

    fn with_php(
        redis: RedisServer,
        version: u8,
        retry_after: u64,
        processes: usize,
        php: &str,
    ) -> Self {
        let seed = fastrand::u64(..);
        let more = [
            ("REDIS_QUEUE_RETRY_AFTER", retry_after.to_string()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
        ];
        let settings = format!("[unmapped]\npolicy = \"php\"\n\n[php]\n{php}");
        let mut scene = Scene::on(redis, version, &more, |laravel| {
            Workplace::for_app(laravel, &settings)
        });
        scene.name = format!("Laravel {version}, seed {seed}");
        // The first look makes the tables.
        scene.failed();
        Self {
            scene,
            random: fastrand::Rng::with_seed(seed),
            processes,
        }
    }

    fn worker(&self, args: &[&str]) -> ManagedChild {
        ManagedChild::spawn(self.worker_command(args))
    }

    /// The same, to be started.
    fn worker_command(&self, args: &[&str]) -> Command {
        let args = [
            &["queue:work", "redis", "--tries=9", "--sleep=1", "-v"][..],
            args,
        ]
        .concat();
        let mut command = self.workplace.artisand(&args);
        let env = self.laravel.env.iter();
        command.envs(env.map(|(name, value)| (name, value)));
        command
    }

    /// Puts hostile jobs on the queue.
    fn dispatch(&self, jobs: &Value) {
        self.php().run(&["interop:hostile", &jobs.to_string()]);
    }

    /// Changes the order of the queued jobs.
    fn shuffle(&mut self) {
        let queue = self.queue("default");
        let mut jobs = self.redis.list(&queue);
        self.random.shuffle(&mut jobs);
        self.redis.query::<()>(&[b"DEL", queue.as_bytes()]);
        let push = [&b"RPUSH"[..], queue.as_bytes()];
        let jobs: Vec<&[u8]> = jobs.iter().map(Vec::as_slice).collect();
        self.redis.query::<()>(&[&push[..], &jobs].concat());
    }

    fn wait_for_end(&self, worker: &mut ManagedChild) {
        let spool = self.laravel.key("artisand:failed-spool");
        let done = poll(LONG, || {
            (self.queued() + self.redis.length(&spool) == 0).then_some(())
        });
        if done.is_none() || !worker.is_running() {
            let lines = self.lines();
            let last: Vec<_> = lines.iter().rev().take(20).collect();
            panic!(
                "{}: no end; {}; {last:?}; {}",
                self.name,
                self.redis.state(),
                tail(worker)
            );
        }
    }

    /// Waits until the journal has such a line.
    fn wait_for(&self, id: &str, event: &str, worker: &ManagedChild) -> Line {
        let found = poll(LONG, || {
            let lines = self.lines();
            lines
                .into_iter()
                .find(|line| line.id == id && line.event == event)
        });
        found.unwrap_or_else(|| {
            panic!(
                "{}: {id} has no {event}; {}; {}",
                self.name,
                self.redis.state(),
                tail(worker)
            )
        })
    }

    /// Runs by the name of the job, in order; no attempt is made twice.
    fn runs(&self) -> BTreeMap<String, Vec<Line>> {
        let mut runs: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in self.lines() {
            if line.event == "run" {
                runs.entry(line.id.clone()).or_default().push(line);
            }
        }
        for (id, runs) in &runs {
            // A run that could not write a line counts as well.
            let attempts: Vec<u32> = runs.iter().filter_map(|run| run.attempts).collect();
            let is_counted = attempts.is_sorted_by(|one, next| one < next);
            assert!(
                is_counted && attempts.len() == runs.len(),
                "{}: {id}: {runs:?}",
                self.name
            );
        }
        runs
    }

    /// Number of journal lines that are not runs, by job.
    fn count(&self, id: &str, event: &str) -> usize {
        let lines = self.lines();
        let is_it = |line: &&Line| line.id == id && line.event == event;
        lines.iter().filter(is_it).count()
    }

    /// Names of jobs in the store of failed jobs.
    fn failed(&self) -> Vec<String> {
        let failed = self.scene.failed();
        let lines = self.lines();
        let name = |job: &Value| {
            let payload: Value = serde_json::from_str(job["payload"].as_str().unwrap()).unwrap();
            let is_it = |line: &&Line| line.uuid.as_deref() == payload["uuid"].as_str();
            let line = lines.iter().find(is_it);
            line.map_or_else(|| payload["uuid"].to_string(), |line| line.id.clone())
        };
        let mut names: Vec<String> = failed.iter().map(name).collect();
        names.sort();
        names
    }

    /// Waits until the expected number of PHP processes lives.
    fn wait_for_size(&self, worker: &ManagedChild) -> Vec<u32> {
        let mut members = Vec::new();
        let full = poll(LONG, || {
            members = children(worker.id());
            (members.len() == self.processes).then_some(())
        });
        assert!(
            full.is_some(),
            "{}: {members:?}; {}",
            self.name,
            tail(worker)
        );
        members
    }

    /// Ends the worker and checks that none of its processes is left.
    fn stop(&self, worker: &mut ManagedChild) {
        let members = self.wait_for_size(worker);
        worker.signal(Signal::TERM);
        worker.succeeds_within(LONG);
        self.all_end(&members, Duration::from_secs(30));
    }

    fn all_end(&self, members: &[u32], soon: Duration) {
        let ended = poll(soon, || {
            (!members.iter().any(|pid| is_alive(*pid))).then_some(())
        });
        assert!(ended.is_some(), "{}: {members:?} live on", self.name);
    }

    /// Queues short jobs, all at once: `job-000` and so on.
    fn doze(&self, count: usize) {
        let job = |number| json!({"id": format!("job-{number:03}"), "misdeed": "dozes"});
        self.dispatch(&json!((0..count).map(job).collect::<Vec<_>>()));
    }

    /// Waits until this many PHP processes have been ready since the start.
    fn wait_for_ready(&self, worker: &ManagedChild, count: usize) {
        let ready = "a PHP process of the pool has booted the app";
        let is_ready = || (worker.stderr().matches(ready).count() >= count).then_some(());
        assert!(
            poll(LONG, is_ready).is_some(),
            "{}: {}",
            self.name,
            tail(worker)
        );
    }

    fn is_each_run_once(&self, runs: &BTreeMap<String, Vec<Line>>, count: usize) {
        for number in 0..count {
            let id = format!("job-{number:03}");
            let runs = runs.get(&id).map_or(0, Vec::len);
            assert_eq!(runs, 1, "{}: {id}", self.name);
        }
    }
}

/// The end of a worker's output.
fn tail(worker: &ManagedChild) -> String {
    let text = worker.stderr() + &worker.stdout();
    let lines: Vec<&str> = text.lines().collect();
    let short = lines.iter().rev().take(60).rev();
    let short = short.map(|line| line.chars().take(400).collect::<String>());
    short.collect::<Vec<_>>().join("\n")
}

fn send(pid: u32, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    // It may have ended just now.
    let _ = kill_process(pid, signal);
}

/// Waits until a PHP process that has booted waits for its job: it has no more to do, so the kernel lets it sleep.
fn wait_until_idle(pid: u32) {
    // It also sleeps for a moment while it talks to a server.
    let mut looks = 0;
    eventually("the process is idle", LONG, || {
        looks = if is_asleep(pid) { looks + 1 } else { 0 };
        (looks == 50).then_some(())
    });
}

/// Misdeeds, the number of runs of a job that does it once, and whether it ends as failed.
#[rustfmt::skip]
const MISDEEDS: &[(&str, usize, bool)] = &[
    // The process dies, and the job is run again when its reservation has ended.
    ("redeclares", 2, false),
    ("exhaustsMemory", 2, false),
    ("runsOutOfTime", 2, false),
    ("exits", 2, false),
    ("dies", 2, false),
    ("kills", 2, false),
    ("printsTheProtocol", 2, false),
    ("leavesSomethingAndExits", 2, false),
    ("leavesNoiseAndExits", 2, false),
    // It dies, and the job is over.
    ("exitsAfterDelete", 1, false),
    ("exitsInFailed", 1, true),
    // It asks for more.
    ("releasesAndGoesOn", 2, false),
    ("keepsItsJob", 2, false),
    ("deletesAfterRelease", 2, false),
    ("releasesAfterDelete", 2, false),
    ("releasesAfterFail", 2, true),
    ("callsNothing", 2, false),
    ("throwsInADestructor", 2, false),
    ("throwsALot", 2, false),
    // It ends normally.
    ("terminates", 1, false),
    ("startsAProgramThatSpeaksForIt", 1, false),
    ("limitsTime", 1, false),
    ("limitsMemory", 1, false),
    ("blocksSignals", 1, false),
    ("printsOneLongLine", 1, false),
    ("printsBytes", 1, false),
    ("readsInput", 1, false),
    ("closesStandardStreams", 1, false),
    ("closesEverything", 1, false),
    ("forks", 1, false),
    ("forksAWorker", 1, false),
    ("leavesSomething", 1, false),
    ("deletesEarly", 1, false),
    ("buffers", 1, false),
    ("pushes", 1, false),
    ("wanders", 1, false),
    ("leavesATransaction", 1, false),
];

fn hostile_jobs_harm_only_themselves(version: u8) {
    const JOURNALS: usize = 300;
    let mut scene = UnderFire::new(version, 4, "");
    scene.laravel.journals(&scene.redis, JOURNALS, &[]);
    let mut jobs: Vec<Value> = MISDEEDS
        .iter()
        .map(|(misdeed, ..)| json!({"id": misdeed, "misdeed": misdeed}))
        .collect();
    // Those that run forever: once with attempts left, once without.
    for (id, misdeed, tries) in [
        ("loops", "loops", 9),
        ("loops-once", "loops", 1),
        ("loops-deafly", "loopsDeafly", 9),
        ("prints", "printsWithoutEnd", 9),
    ] {
        jobs.push(json!({"id": id, "misdeed": misdeed, "tries": tries, "timeout": 3}));
    }
    for (id, misdeed) in [("dies-always", "exits"), ("throws-always", "throwsALot")] {
        jobs.push(json!({"id": id, "misdeed": misdeed, "tries": 2, "stubborn": true}));
    }
    scene.dispatch(&json!(jobs));
    scene.shuffle();
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    let name = &scene.name;
    scene.is_each_run_once(&runs, JOURNALS);
    let of = |id: &str| runs.get(id).map_or(0, Vec::len);
    for (misdeed, expected, _) in MISDEEDS {
        assert_eq!(
            of(misdeed),
            *expected,
            "{name}: {misdeed}; {}",
            tail(&worker)
        );
    }
    for (id, expected) in [
        ("loops", 2),
        ("loops-once", 1),
        ("loops-deafly", 2),
        ("prints", 2),
        ("dies-always", 2),
        ("throws-always", 2),
        ("pushed-by-pushes", 1),
    ] {
        assert_eq!(of(id), expected, "{name}: {id}");
    }
    let mut failed: Vec<&str> = MISDEEDS
        .iter()
        .filter(|(.., fails)| *fails)
        .map(|(misdeed, ..)| *misdeed)
        .chain(["dies-always", "loops-once", "throws-always"])
        .collect();
    failed.sort_unstable();
    assert_eq!(scene.failed(), failed, "{name}");
    scene.stop(&mut worker);
    // PHP may do these behind the end of the job. The forked child sent nothing, and a job that was deleted early
    // continued.
    for id in [
        "forksAWorker",
        "deletesEarly",
        "leavesSomething",
        "closesEverything",
        "startsAProgramThatSpeaksForIt",
    ] {
        assert_eq!(scene.count(id, "end"), 1, "{name}: {id}");
    }
    for id in &failed {
        assert_eq!(scene.count(id, "failed"), 1, "{name}: {id}");
    }
    let listed = (scene.workplace.artisand(&["queue:failed"]).output()).unwrap();
    assert!(listed.status.success(), "{name}: {listed:?}");
    // Its output went to the log, with the job.
    assert!(
        worker
            .stderr()
            .contains("a job printed more than is logged"),
        "{name}"
    );
    // No job ran again afterwards.
    assert_eq!(scene.runs().len(), runs.len(), "{name}");
}

on_every_laravel!(hostile_jobs_harm_only_themselves);

fn members_that_are_killed_lose_no_job(version: u8) {
    let count = if is_thorough() { 300 } else { 150 };
    let mut scene = UnderFire::new(version, 3, "max_jobs = 20\n");
    let script = ["sleep:0.1"; 9].join(",");
    scene
        .laravel
        .journals(&scene.redis, count, &[&format!("--script={script}")]);
    let mut worker = scene.worker(&[]);
    // Before that, an app that cannot boot ends artisand.
    scene.wait_for_ready(&worker, scene.processes);
    let mut killed = BTreeSet::new();
    let began = Instant::now();
    while scene.redis.length(&scene.queue("default")) > 40
        && began.elapsed() < Duration::from_secs(20)
    {
        // Time is the subject: a signal comes at any moment of a job.
        std::thread::sleep(Duration::from_millis(scene.random.u64(50..250)));
        let members = children(worker.id());
        if members.is_empty() {
            continue;
        }
        let pid = members[scene.random.usize(..members.len())];
        // On a request to end it finishes its job first, also if it was only stopped for a while.
        match scene.random.u8(..3) {
            0 => send(pid, Signal::TERM),
            1 => {
                send(pid, Signal::STOP);
                std::thread::sleep(Duration::from_millis(scene.random.u64(1..100)));
                send(pid, Signal::CONT);
            }
            _ => {
                killed.insert(pid);
                send(pid, Signal::KILL);
            }
        }
    }
    assert!(
        killed.len() > 2,
        "{}: {killed:?} {}",
        scene.name,
        tail(&worker)
    );
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    assert_eq!(runs.len(), count, "{}", scene.name);
    for (id, runs) in &runs {
        for again in &runs[..runs.len() - 1] {
            let is_killed = killed.contains(&again.pid);
            assert!(
                is_killed,
                "{}: {id}: {runs:?}; {}",
                scene.name,
                tail(&worker)
            );
        }
    }
    assert_eq!(scene.failed(), [""; 0], "{}", scene.name);
    scene.stop(&mut worker);
}

on_every_laravel!(members_that_are_killed_lose_no_job);

fn a_member_that_is_frozen_is_replaced(version: u8) {
    let scene = UnderFire::new(version, 1, "");
    let mut worker = scene.worker(&[]);
    let idle = scene.wait_for_size(&worker)[0];
    scene.dispatch(&json!([{"id": "first", "misdeed": "napsLong", "timeout": 3}]));
    let run = scene.wait_for("first", "run", &worker);
    send(idle, Signal::STOP);
    scene.dispatch(&json!([{"id": "second", "misdeed": "buffers"}]));
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    assert_eq!(run.pid, idle, "{}", scene.name);
    assert_eq!(runs["first"].len(), 2, "{}: {runs:?}", scene.name);
    assert_eq!(runs["second"].len(), 1, "{}: {runs:?}", scene.name);
    assert!(!is_alive(idle), "{}", scene.name);
    scene.stop(&mut worker);
}

on_every_laravel!(a_member_that_is_frozen_is_replaced);

/// More than fits into a socket: the process is at half of it when it must be replaced, or the worker stops.
fn a_large_job_for_a_frozen_member_is_not_touched(version: u8) {
    let scene = UnderFire::new(version, 1, "");
    let worker = scene.worker(&["--grace=2"]);
    scene.wait_for_ready(&worker, 1);
    let idle = scene.wait_for_size(&worker)[0];
    wait_until_idle(idle);
    let large = json!([{"id": "large", "misdeed": "buffers", "timeout": 60, "weight": 2 << 20}]);
    let give = || {
        scene.dispatch(&large);
        let reserved = format!("{}:reserved", scene.queue("default"));
        let is_given = || (scene.redis.scores(&reserved).len() == 1).then_some(());
        assert!(poll(LONG, is_given).is_some(), "{}", scene.name);
    };
    send(idle, Signal::STOP);
    give();
    // The stopped process does not take the job; the next process runs it.
    let run = scene.wait_for("large", "run", &worker);
    assert_eq!(run.attempts, Some(1), "{}", scene.name);
    assert!(!is_alive(idle), "{}", scene.name);
    scene.wait_for("large", "end", &worker);
    let mut worker = worker;
    scene.wait_for_end(&mut worker);
    let idle = scene.wait_for_size(&worker)[0];
    wait_until_idle(idle);
    send(idle, Signal::STOP);
    give();
    let began = Instant::now();
    worker.signal(Signal::TERM);
    worker.wait_timeout(LONG);
    // This does not take as long as the process sleeps.
    assert!(began.elapsed() < Duration::from_secs(30), "{}", scene.name);
    let waiting = scene.redis.list(&scene.queue("default"));
    let waiting: Vec<Value> = waiting
        .iter()
        .map(|job| serde_json::from_slice(job).unwrap())
        .collect();
    assert_eq!(waiting.len(), scene.queued(), "{}", tail(&worker));
    assert_eq!(waiting[0]["attempts"], 0, "{}", tail(&worker));
    assert_eq!(scene.runs()["large"].len(), 1, "{}", scene.name);
}

on_every_laravel!(a_large_job_for_a_frozen_member_is_not_touched);

/// Its reservation is not renewed any more, so another worker may have the job. The supervisor cannot end it, as it is
/// stopped, too.
fn a_member_that_wakes_up_late_does_not_begin_with_its_job(version: u8) {
    std::thread::scope(|scope| {
        for hangup in Hangup::ALL {
            scope.spawn(move || {
                // artisand takes back a job that PHP has not begun after three seconds. If the machine pauses for that
                // long, there is nothing to test, and the scene is played again.
                let is_played = (0..5).any(|_| wakes_up_late(version, hangup));
                assert!(
                    is_played,
                    "Laravel {version}, {hangup:?}: the job was taken back before the kill"
                );
            });
        }
    });
}

/// What SIGHUP does to a worker and to its PHP processes, whatever it does to the tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hangup {
    Ends,
    /// As below `nohup`.
    IsIgnored,
}

impl Hangup {
    const ALL: [Self; 2] = [Self::Ends, Self::IsIgnored];

    /// What it does to a process.
    fn of(pid: u32) -> Self {
        let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        let ignored = u64::from_str_radix(ignored.unwrap().trim(), 16).unwrap();
        match ignored & 1 {
            0 => Self::Ends,
            _ => Self::IsIgnored,
        }
    }
}

/// A process in the group of another one, as long as it lives.
///
/// The test stops PHP and its supervisor, and then kills artisand. Their process groups are then orphaned: no member
/// has a parent in the same session. The kernel sends SIGHUP and SIGCONT to an orphaned group with a stopped process,
/// which would kill or wake the process too early. The parent of this process is the test, so the group is not
/// orphaned.
fn companion_of(leader: u32) -> ManagedChild {
    let mut command = Command::new("sleep");
    command
        .arg("infinity")
        .process_group(i32::try_from(leader).unwrap());
    ManagedChild::spawn(command)
}

/// Waits until a PHP process that is stopped has something to read from artisand.
fn wait_until_sent(pid: u32) {
    /// The descriptor of its socket to artisand.
    const SOCKET: i32 = 3;
    let pid = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    let process = pidfd_open(pid, PidfdFlags::empty()).unwrap();
    let socket = pidfd_getfd(&process, SOCKET, PidfdGetfdFlags::empty());
    let socket = socket
        .expect("a process may look at the descriptors of its descendants (pidfd_getfd, ptrace)");
    eventually("the job is in the socket", LONG, || {
        (ioctl_fionread(&socket).unwrap() > 0).then_some(())
    });
}

/// Whether artisand was killed while the process had the job.
fn wakes_up_late(version: u8, hangup: Hangup) -> bool {
    let mut scene = UnderFire::new(version, 1, "");
    scene.name = format!("{}, SIGHUP {hangup:?}", scene.name);
    let mut worker = ManagedChild::spawn(with_hangups(
        &scene.worker_command(&[]),
        hangup == Hangup::IsIgnored,
    ));
    scene.wait_for_ready(&worker, 1);
    let idle = scene.wait_for_size(&worker)[0];
    // The worker inherits it, and PHP inherits it from the worker.
    assert_eq!(Hangup::of(worker.id()), hangup, "{}", scene.name);
    wait_until_idle(idle);
    let supervisor = eventually("a supervisor", LONG, || supervisor_of(worker.id()));
    let _companions = [idle, supervisor].map(companion_of);
    send(idle, Signal::STOP);
    scene.doze(1);
    let reserved = format!("{}:reserved", scene.queue("default"));
    let is_given = || (scene.redis.scores(&reserved).len() == 1).then_some(());
    assert!(poll(LONG, is_given).is_some(), "{}", scene.name);
    wait_until_sent(idle);
    send(supervisor, Signal::STOP);
    worker.signal(Signal::KILL);
    worker.wait_timeout(LONG);
    assert_eq!(scene.runs().len(), 0, "{}", scene.name);
    if is_given().is_none() {
        for process in [idle, supervisor] {
            send(process, Signal::CONT);
        }
        scene.all_end(&[idle, supervisor], Duration::from_secs(30));
        return false;
    }
    // Time is the subject: the reservation runs out meanwhile.
    std::thread::sleep(Duration::from_millis(RETRY_AFTER * 1000 + 500));
    for process in [idle, supervisor] {
        assert!(is_stopped(process), "{}: {process} went on", scene.name);
    }
    send(idle, Signal::CONT);
    scene.all_end(&[idle], Duration::from_secs(30));
    send(supervisor, Signal::CONT);
    scene.all_end(&[supervisor], Duration::from_secs(30));
    assert_eq!(scene.runs().len(), 0, "{}: {:?}", scene.name, scene.lines());
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    scene.is_each_run_once(&runs, 1);
    // The killed process may have begun with the job.
    assert_eq!(runs["job-000"][0].attempts, Some(2), "{}", scene.name);
    scene.stop(&mut worker);
    true
}

on_every_laravel!(a_member_that_wakes_up_late_does_not_begin_with_its_job);

/// As with `queue:work`, which has counted an attempt when the job kills it.
fn a_job_that_php_has_no_memory_for_keeps_nobody_from_running(version: u8) {
    const JOURNALS: usize = 30;
    // A job that takes longer to come from Redis does not begin.
    const RESERVED_FOR: u64 = 60;
    let binary = project().join("php-interop").join("laravel");
    let binary = json!([binary, version.to_string(), "-d", "memory_limit=32M"]);
    let php = format!("binary = {binary}\napp = \".\"\nprocesses = 2\n");
    let scene = UnderFire::with_php(RedisServer::start(), version, RESERVED_FOR, 2, &php);
    scene.dispatch(&json!([{"id": "large", "misdeed": "buffers", "weight": 12 << 20}]));
    scene.doze(JOURNALS);
    let began = Instant::now();
    // Memory of artisand, which has several copies of the payload for a while.
    let mut worker = scene.worker(&["--memory=1024"]);
    let reserved = format!("{}:reserved", scene.queue("default"));
    let is_left = || {
        // Only counted: to read the large job over and over would keep the worker from it.
        let count =
            |command: &[u8], key: &str| scene.redis.query::<usize>(&[command, key.as_bytes()]);
        // The large job may be the last one to begin.
        let is_too_large = worker.stderr().contains("Allowed memory size");
        (is_too_large
            && scene.runs().len() == JOURNALS
            && count(b"LLEN", &scene.queue("default")) == 0
            && count(b"ZCARD", &reserved) == 1)
            .then_some(())
    };
    assert!(poll(LONG, is_left).is_some(), "{}", tail(&worker));
    scene.is_each_run_once(&scene.runs(), JOURNALS);
    let (large, _) = scene.redis.scores(&reserved).remove(0);
    let end = String::from_utf8_lossy(&large[large.len() - 60..]).into_owned();
    let attempts: u64 = end.split("\"attempts\":").nth(1).map_or(0, |rest| {
        let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
        digits.parse().unwrap()
    });
    let most = began.elapsed().as_secs() / RESERVED_FOR + 1;
    assert!((1..=most).contains(&attempts), "{}: {end}", scene.name);
    scene.stop(&mut worker);
}

on_every_laravel!(a_job_that_php_has_no_memory_for_keeps_nobody_from_running);

/// The next job is popped when one has ended; a process that does not come for it gives it back.
fn members_that_linger_behind_their_jobs_keep_none_waiting(version: u8) {
    const JOURNALS: usize = 60;
    let scene = UnderFire::new(version, 2, "");
    scene.dispatch(&json!([{"id": "lingers", "misdeed": "lingers"}]));
    scene.doze(JOURNALS);
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    scene.is_each_run_once(&runs, JOURNALS);
    let lingering = runs["lingers"][0].pid;
    let of = |run: &&Line| run.pid == lingering;
    let runs: Vec<Line> = runs.into_values().flatten().collect();
    // No attempt counts for a job that was given back.
    assert!(runs.iter().all(|run| run.attempts == Some(1)), "{runs:?}");
    // The slow process needs a third of a second per job, so the other does most.
    assert!(
        runs.iter().filter(of).count() < JOURNALS / 2,
        "{}: {runs:?}",
        scene.name
    );
    scene.stop(&mut worker);
}

on_every_laravel!(members_that_linger_behind_their_jobs_keep_none_waiting);

/// The next job, which a process already has, is taken back; the process is left alone.
fn a_member_that_tarries_behind_its_job_is_not_killed(version: u8) {
    const JOURNALS: usize = 20;
    let scene = UnderFire::new(version, 2, "");
    scene.dispatch(&json!([{"id": "tarries", "misdeed": "tarries"}]));
    scene.doze(JOURNALS);
    let mut worker = scene.worker(&["--stop-when-empty"]);
    worker.succeeds_within(LONG);
    let runs = scene.runs();
    scene.is_each_run_once(&runs, JOURNALS);
    let mut runs = runs.into_values().flatten();
    assert!(runs.all(|run| run.attempts == Some(1)), "{}", scene.name);
    let is_said = [worker.stdout(), worker.stderr()].map(|said| said.contains("kill"));
    assert_eq!(is_said, [false; 2], "{}", worker.describe());
}

on_every_laravel!(a_member_that_tarries_behind_its_job_is_not_killed);

/// Each process ends after one job although it already has the next, which it does not begin.
fn a_job_that_was_not_begun_does_not_count(version: u8) {
    const JOURNALS: usize = 20;
    const MOST: usize = 7;
    let scene = UnderFire::new(version, 2, "memory = 1\n");
    scene.doze(JOURNALS);
    let mut worker = scene.worker(&[&format!("--max-jobs={MOST}")]);
    worker.succeeds_within(LONG);
    assert_eq!(
        scene.runs().len(),
        MOST,
        "{}: {}",
        scene.name,
        tail(&worker)
    );
    let waiting = scene.redis.list(&scene.queue("default"));
    assert_eq!(waiting.len(), JOURNALS - MOST, "{}", scene.redis.state());
    assert_eq!(scene.queued(), waiting.len(), "{}", scene.redis.state());
    for job in waiting {
        let job: Value = serde_json::from_slice(&job).unwrap();
        assert_eq!(job["attempts"], 0, "{}: {job}", scene.name);
    }
}

on_every_laravel!(a_job_that_was_not_begun_does_not_count);

/// Pushes meanwhile wake no process that could not run the job.
fn while_all_members_work_pushes_cost_little(version: u8) {
    let scene = UnderFire::new(version, 2, "");
    let mut worker = scene.worker(&[]);
    scene.wait_for_ready(&worker, 2);
    for id in ["one", "two"] {
        scene
            .php()
            .run(&["interop:journal", id, "--script=sleep:8"]);
    }
    for id in ["one", "two"] {
        scene.wait_for(id, "run", &worker);
    }
    scene.doze(20);
    let commands = || -> u64 {
        let stats: String = scene.redis.query(&[b"INFO", b"stats"]);
        let mut lines = stats.lines();
        let of = |line: &str| line.strip_prefix("total_commands_processed:")?.parse().ok();
        lines.find_map(of).unwrap()
    };
    let before = commands();
    // Time is the subject: what a while costs.
    std::thread::sleep(Duration::from_millis(500));
    let cost = commands() - before;
    assert!(
        cost < 150,
        "{}: {cost} commands in half a second",
        scene.name
    );
    scene.wait_for_end(&mut worker);
    scene.stop(&mut worker);
}

on_every_laravel!(while_all_members_work_pushes_cost_little);

/// Jobs that run when artisand is killed end with it: ends that were reported hold, and the others run again.
fn jobs_end_with_a_killed_artisand(version: u8) {
    let scene = UnderFire::new(version, 5, "");
    let jobs = [
        ("ends", "napsLong", 9),
        ("deletes", "deletesEarly", 9),
        ("releases", "releasesAndNapsLong", 9),
        ("fails", "loops", 1),
    ];
    let of = |(id, misdeed, tries): &(&str, &str, u32)| json!({"id": id, "misdeed": misdeed, "tries": tries, "timeout": 60});
    let mut worker = scene.worker(&[]);
    scene.wait_for_ready(&worker, 5);
    scene.dispatch(&json!(jobs.iter().map(of).collect::<Vec<_>>()));
    for (id, ..) in &jobs {
        scene.wait_for(id, "run", &worker);
    }
    // artisand records that a job deleted itself a moment after the report.
    let reserved = format!("{}:reserved", scene.queue("default"));
    let is_written = || (scene.redis.scores(&reserved).len() == jobs.len() - 1).then_some(());
    assert!(poll(LONG, is_written).is_some(), "{}", worker.describe());
    let members = scene.wait_for_size(&worker);
    let supervisor = eventually("a supervisor", LONG, || supervisor_of(worker.id()));
    worker.signal(Signal::KILL);
    worker.wait_timeout(LONG);
    // One of them would run for a minute.
    scene.all_end(&members, Duration::from_secs(20));
    scene.all_end(&[supervisor], Duration::from_secs(20));
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let (name, runs) = (&scene.name, scene.runs());
    for (id, expected) in [("ends", 2), ("deletes", 1), ("releases", 2), ("fails", 1)] {
        assert_eq!(runs[id].len(), expected, "{name}: {id}: {:?}", runs[id]);
    }
    // Its only attempt was cancelled, as by the end of a `queue:work`.
    assert_eq!(scene.failed(), ["fails"], "{name}");
    scene.stop(&mut worker);
}

on_every_laravel!(jobs_end_with_a_killed_artisand);

/// A job that runs longer than its unrenewed reservation runs in only one process at a time.
fn long_jobs_of_a_killed_artisand_never_overlap(version: u8) {
    // Each round waits for the end of a reservation, so half of the rounds go with another job of another app.
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| attempts_of_a_long_job_never_overlap(version));
        }
    });
}

fn attempts_of_a_long_job_never_overlap(version: u8) {
    const ROUNDS: u32 = 5;
    let mut scene = UnderFire::new(version, 2, "");
    // Ten beats a second for half a minute, in each attempt but the last.
    let long = ["note:beat+sleep:0.1"; 300].join("+");
    let script = vec![long; ROUNDS as usize].join(",");
    let script = format!("--script={script}");
    scene
        .php()
        .run(&["interop:journal", "long", &script, "--tries=99"]);
    for round in 1..=ROUNDS {
        let mut worker = scene.worker(&[]);
        let beats = |event: &'static str| {
            let lines = scene.lines().into_iter();
            lines.filter(move |line| line.attempts == Some(round) && line.event == event)
        };
        let has_begun = || (beats("beat").count() > 1).then_some(());
        assert!(
            poll(LONG, has_begun).is_some(),
            "{}: {}",
            scene.name,
            tail(&worker)
        );
        let longest = if round % 2 == 0 {
            RETRY_AFTER * 1500
        } else {
            500
        };
        // Time is the subject: the kill comes at any moment, in every second round behind the reservation's end.
        std::thread::sleep(Duration::from_millis(
            scene.random.u64(longest / 2..longest),
        ));
        let members = children(worker.id());
        worker.signal(Signal::KILL);
        worker.wait_timeout(LONG);
        scene.all_end(&members, Duration::from_secs(20));
    }
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    // In the order of Redis, which is the order of writing.
    let lines = scene.lines();
    let attempts: Vec<u32> = lines.iter().filter_map(|line| line.attempts).collect();
    assert!(attempts.is_sorted(), "{}: {attempts:?}", scene.name);
    assert_eq!(attempts.last(), Some(&(ROUNDS + 1)), "{}", scene.name);
    scene.stop(&mut worker);
}

on_every_laravel!(long_jobs_of_a_killed_artisand_never_overlap);

/// The reservation is not renewed and ends while the process still runs: another worker gets the job.
fn an_orphan_does_nothing_more_for_a_job_that_another_worker_has(version: u8) {
    let scene = UnderFire::new(version, 2, "");
    scene.dispatch(&json!([
        {"id": "throws", "misdeed": "napsLongAndThrows", "tries": 0, "timeout": 60},
        {"id": "ends", "misdeed": "napsLong", "tries": 0, "timeout": 60, "then": "next"},
    ]));
    let mut worker = scene.worker(&[]);
    let orphans = ["throws", "ends"].map(|id| scene.wait_for(id, "run", &worker).pid);
    // Also the supervisor of its processes.
    for child in children(worker.id()) {
        if !orphans.contains(&child) {
            send(child, Signal::KILL);
        }
    }
    worker.signal(Signal::KILL);
    worker.wait_timeout(LONG);
    let mut worker = scene.worker(&[]);
    scene.all_end(&orphans, LONG);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    let name = &scene.name;
    assert_eq!(runs["throws"].len(), 2, "{name}: {runs:?}");
    assert_eq!(runs["ends"].len(), 2, "{name}: {runs:?}");
    assert_eq!(runs["next"].len(), 1, "{name}: {runs:?}");
    assert_eq!(scene.failed(), [""; 0], "{name}");
    scene.stop(&mut worker);
}

on_every_laravel!(an_orphan_does_nothing_more_for_a_job_that_another_worker_has);

/// Kills at many random moments: PHP's reports in artisand's last moment are not lost.
fn artisand_is_killed_at_any_moment(version: u8) {
    const JOURNALS: usize = 400;
    let mut scene = UnderFire::new(version, 3, "");
    let script = ["sleep:0.005"; 9].join(",");
    scene
        .laravel
        .journals(&scene.redis, JOURNALS, &[&format!("--script={script}")]);
    let mut kills = 0;
    while scene.redis.length(&scene.queue("default")) > 0 && kills < 12 {
        let before = scene.lines().len();
        let mut worker = scene.worker(&[]);
        let runs_jobs = poll(LONG, || (scene.lines().len() > before).then_some(()));
        assert!(runs_jobs.is_some(), "{}: {}", scene.name, tail(&worker));
        // Time is the subject: the kill comes at any moment.
        std::thread::sleep(Duration::from_millis(scene.random.u64(1..150)));
        let members = children(worker.id());
        worker.signal(Signal::KILL);
        worker.wait_timeout(LONG);
        // Each has a second for its remaining work.
        scene.all_end(&members, LONG);
        kills += 1;
    }
    assert!(kills > 3, "{}: {kills} kills", scene.name);
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    assert_eq!(runs.len(), JOURNALS, "{}", scene.name);
    scene.is_each_run_once(&runs, JOURNALS);
    scene.stop(&mut worker);
}

on_every_laravel!(artisand_is_killed_at_any_moment);

fn members_are_replaced_and_the_pool_keeps_its_size(version: u8) {
    const JOURNALS: usize = 15;
    for php in [
        "max_jobs = 1\n",
        "max_jobs = 3\n",
        "max_time = 1\n",
        "memory = 1\n",
    ] {
        let scene = UnderFire::new(version, 2, php);
        // Each process works for longer than its time limit.
        let script = match php {
            "max_time = 1\n" => "--script=sleep:0.2",
            _ => "--script=sleep:0.03",
        };
        scene.laravel.journals(&scene.redis, JOURNALS, &[script]);
        let mut worker = scene.worker(&[]);
        scene.wait_for_end(&mut worker);
        let runs = scene.runs();
        scene.is_each_run_once(&runs, JOURNALS);
        let pids: BTreeSet<u32> = runs.values().flatten().map(|run| run.pid).collect();
        let least = match php {
            "max_jobs = 1\n" | "memory = 1\n" => JOURNALS,
            "max_jobs = 3\n" => JOURNALS / 3,
            _ => 3,
        };
        assert!(pids.len() >= least, "{}: {php}: {pids:?}", scene.name);
        scene.stop(&mut worker);
    }
}

on_every_laravel!(members_are_replaced_and_the_pool_keeps_its_size);

fn short_jobs_end_at_a_stop_and_long_ones_go_back(version: u8) {
    let scene = UnderFire::new(version, 2, "");
    for (id, seconds) in [("short", "1"), ("long", "30")] {
        let script = format!("--script=sleep:{seconds}+note:end,note:end");
        scene.php().run(&["interop:journal", id, &script]);
    }
    let mut worker = scene.worker(&["--grace=5"]);
    for id in ["short", "long"] {
        scene.wait_for(id, "run", &worker);
    }
    let members = scene.wait_for_size(&worker);
    let began = Instant::now();
    worker.signal(Signal::TERM);
    worker.wait_timeout(LONG);
    assert!(began.elapsed() < Duration::from_secs(20), "{}", scene.name);
    scene.all_end(&members, Duration::from_secs(5));
    assert_eq!(scene.count("short", "end"), 1, "{}", scene.name);
    assert_eq!(scene.count("long", "end"), 0, "{}", scene.name);
    assert_eq!(scene.queued(), 1, "{}: {}", scene.name, scene.redis.state());
    let reserved = format!("{}:reserved", scene.queue("default"));
    assert_eq!(scene.redis.scores(&reserved), [], "{}", scene.name);
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    assert_eq!((runs["short"].len(), runs["long"].len()), (1, 2));
    scene.stop(&mut worker);
}

on_every_laravel!(short_jobs_end_at_a_stop_and_long_ones_go_back);

/// Ends of jobs while the server is away are recorded when it is back.
fn the_server_goes_away_while_php_runs(version: u8) {
    const JOURNALS: usize = 60;
    let redis = RedisServer::start_durable();
    let mut scene = UnderFire::on(redis, version, 3, "");
    // It reports its end while the server is away; it wrote its journal before.
    scene.dispatch(&json!([
        {"id": "naps", "misdeed": "deletesEarly"},
        {"id": "fails", "misdeed": "loops", "tries": 1, "timeout": 2},
    ]));
    let mut worker = scene.worker(&[]);
    for id in ["naps", "fails"] {
        scene.wait_for(id, "run", &worker);
    }
    // The end of the job that deletes itself early is recorded.
    // A slow test looks when the timeout of the other one has passed, too.
    let is_written = poll(LONG, || (scene.queued() <= 1).then_some(()));
    assert!(is_written.is_some(), "{}", scene.redis.state());
    scene.redis.stop();
    // Time itself is the subject: a nap of two seconds and a timeout of two seconds pass while the server is away. The
    // test reads about both from that server, so there is nothing to wait for before it is back.
    std::thread::sleep(Duration::from_secs(4));
    scene.redis.restart();
    scene.renew_php();
    scene.doze(JOURNALS);
    for _ in 0..5 {
        // Time is the subject: connections are cut at any moment.
        std::thread::sleep(Duration::from_millis(scene.random.u64(100..400)));
        // Cuts all connections, also those of PHP.
        for kind in ["normal", "pubsub"] {
            scene.redis.query::<i64>(&[
                b"CLIENT",
                b"KILL",
                b"TYPE",
                kind.as_bytes(),
                b"SKIPME",
                b"yes",
            ]);
        }
    }
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    assert_eq!(runs["fails"].len(), 1, "{}; {}", scene.name, tail(&worker));
    assert_eq!(runs["naps"].len(), 1, "{}; {}", scene.name, tail(&worker));
    assert_eq!(scene.failed(), ["fails"], "{}", scene.name);
    // A job that could not write its journal threw, and runs again.
    assert_eq!(runs.len(), JOURNALS + 2, "{}", scene.name);
    scene.stop(&mut worker);
}

on_every_laravel!(the_server_goes_away_while_php_runs);

/// Locks are freed and `failed()` is called once the failure is recorded, even if the server was away.
fn what_follows_a_failure_waits_for_the_server(version: u8) {
    let redis = RedisServer::start_durable();
    let mut scene = UnderFire::on(redis, version, 2, "");
    let job = json!([{"id": "once", "misdeed": "napsAndThrows", "tries": 1, "timeout": 5, "unique": true}]);
    scene.dispatch(&job);
    let mut worker = scene.worker(&[]);
    scene.wait_for("once", "run", &worker);
    scene.redis.stop();
    // Time itself is the subject: the job's timeout of five seconds passes after it has thrown, while artisand cannot
    // record that. The timeout must not kill it.
    std::thread::sleep(Duration::from_secs(5));
    scene.redis.restart();
    scene.renew_php();
    scene.wait_for("once", "failed", &worker);
    scene.wait_for_end(&mut worker);
    assert_eq!(scene.failed(), ["once"], "{}", scene.name);
    assert_eq!(scene.count("once", "failed"), 1, "{}", scene.name);
    assert_eq!(scene.runs()["once"].len(), 1, "{}", scene.name);
    let locks: Vec<String> = scene.redis.query(&[b"KEYS", b"*unique_job*"]);
    assert_eq!(locks, [""; 0], "{}; {}", scene.name, tail(&worker));
    scene.stop(&mut worker);
}

on_every_laravel!(what_follows_a_failure_waits_for_the_server);

/// A copy of the app that a test may change, where its PHP finds it.
struct Deployed {
    scene: UnderFire,
    directory: std::path::PathBuf,
}

impl Deployed {
    fn new(version: u8, processes: usize, php: &str) -> Self {
        let redis = RedisServer::start();
        // Its paths tell the root of its PHP, if there is one.
        let plain = Laravel::new(version, &redis);
        let of = |name: &str| plain.config[name].as_str().unwrap().to_owned();
        let (storage, app) = (of("storage"), of("app_path"));
        let root = &storage[..storage.find("/tmp/").unwrap()];
        let name = format!(
            "/tmp/artisand-deployed-{}-{}",
            std::process::id(),
            fastrand::u32(..)
        );
        let directory = std::path::PathBuf::from(format!("{root}{name}"));
        let copied = Command::new("cp")
            .args(["-r", &app])
            .arg(&directory)
            .status();
        assert!(copied.unwrap().success());
        let binary = project().join("php-interop").join("laravel");
        let binary = json!([binary, version.to_string(), "--at", name]);
        let php = format!("binary = {binary}\napp = \".\"\nprocesses = {processes}\n{php}");
        let scene = UnderFire::with_php(redis, version, RETRY_AFTER, processes, &php);
        Self { scene, directory }
    }

    /// Changes a file of the app.
    fn change(&self, file: &str, from: &str, to: &str) {
        let path = self.directory.join(file);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(from), "{text}");
        // As in a deploy, the new file appears in one step.
        let next = path.with_extension("next");
        std::fs::write(&next, text.replacen(from, to, 1)).unwrap();
        std::fs::rename(next, path).unwrap();
    }
}

impl Drop for Deployed {
    fn drop(&mut self) {
        // No other code removes it.
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn old_code_ends_its_jobs_and_new_code_runs_the_rest(version: u8) {
    const JOURNALS: usize = 30;
    let deployed = Deployed::new(version, 2, "");
    let scene = &deployed.scene;
    let mut worker = scene.worker(&[]);
    // Not while the job runs: it has to run on until the last jobs are queued.
    scene.wait_for_ready(&worker, 2);
    scene
        .php()
        .run(&["interop:journal", "before", "--script=sleep:6+note:end"]);
    let before = scene.wait_for("before", "run", &worker);
    deployed.change("src/Jobs/Journal.php", "'by' => 'php'", "'by' => 'new'");
    scene.php().text(&["queue:restart"]);
    // At once, before artisand receives it.
    scene.doze(JOURNALS);
    // A supervisor starts it again.
    worker.succeeds_within(LONG);
    let mut worker = scene.worker(&[]);
    scene.wait_for_end(&mut worker);
    let runs = scene.runs();
    scene.is_each_run_once(&runs, JOURNALS);
    assert_eq!(runs["before"].len(), 1, "{}", scene.name);
    assert_eq!(scene.wait_for("before", "end", &worker).pid, before.pid);
    for line in scene.lines() {
        let by = if line.id == "before" { "php" } else { "new" };
        assert_eq!(line.by, by, "{}: {line:?}", scene.name);
    }
    scene.stop(&mut worker);
}

on_every_laravel!(old_code_ends_its_jobs_and_new_code_runs_the_rest);

fn jobs_wait_while_the_app_is_broken(version: u8) {
    const JOURNALS: usize = 12;
    let deployed = Deployed::new(version, 2, "max_jobs = 2\n");
    let scene = &deployed.scene;
    let mut worker = scene.worker(&[]);
    scene.wait_for_ready(&worker, 2);
    let (good, bad) = (
        "$app = new",
        "throw new RuntimeException('nobody tested this'); $app = new",
    );
    deployed.change("bootstrap.php", good, bad);
    scene.doze(JOURNALS);
    let errors = poll(LONG, || {
        let text = worker.stderr() + &worker.stdout();
        (text.matches("nobody tested this").count() >= 3).then_some(())
    });
    assert!(errors.is_some(), "{}: {}", scene.name, tail(&worker));
    // Two processes have run two jobs each; the other jobs are unchanged.
    poll(LONG, || (scene.queued() <= JOURNALS - 4).then_some(()));
    let waiting = scene.redis.list(&scene.queue("default"));
    assert_eq!(
        waiting.len(),
        JOURNALS - 4,
        "{}: {}",
        scene.name,
        scene.redis.state()
    );
    assert_eq!(scene.queued(), waiting.len(), "{}", scene.name);
    for job in &waiting {
        let job: Value = serde_json::from_slice(job).unwrap();
        assert_eq!(job["attempts"], 0, "{}: {job}", scene.name);
    }
    deployed.change("bootstrap.php", bad, good);
    scene.wait_for_end(&mut worker);
    scene.is_each_run_once(&scene.runs(), JOURNALS);
    scene.stop(&mut worker);
}

on_every_laravel!(jobs_wait_while_the_app_is_broken);

/// A stop does not wait for an app that boots slowly.
fn a_worker_can_be_stopped_while_its_app_boots(version: u8) {
    let deployed = Deployed::new(version, 2, "");
    let scene = &deployed.scene;
    scene.doze(3);
    let slow = "touch(__DIR__.'/boots-'.getmypid()); sleep(60); $app = new";
    deployed.change("bootstrap.php", "$app = new", slow);
    let mut worker = scene.worker(&[]);
    let members = scene.wait_for_size(&worker);
    // The app sleeps while it boots, and says nothing.
    let sleeps = |pid: &u32| {
        let mark = deployed.directory.join(format!("boots-{pid}"));
        mark.is_file() && is_asleep(*pid)
    };
    eventually("the app boots", LONG, || {
        assert!(worker.is_running(), "{}", tail(&worker));
        members.iter().all(sleeps).then_some(())
    });
    let began = Instant::now();
    worker.signal(Signal::TERM);
    worker.succeeds_within(LONG);
    assert!(
        began.elapsed() < Duration::from_secs(30),
        "{}",
        tail(&worker)
    );
    scene.all_end(&members, Duration::from_secs(10));
    let waiting = scene.redis.list(&scene.queue("default")).len();
    assert_eq!((waiting, scene.queued()), (3, 3), "{}", scene.redis.state());
}

on_every_laravel!(a_worker_can_be_stopped_while_its_app_boots);

/// For Laravel 8 and 10 the start of a paused worker seems long ago, so each check would end it.
fn members_with_a_time_limit_live_on_while_the_app_is_down(version: u8) {
    let scene = UnderFire::new(version, 2, "max_time = 30\n");
    let mut worker = scene.worker(&[]);
    scene.wait_for_ready(&worker, 2);
    // A process that has just said that it is ready would begin its job without another look at the app's state.
    let members = scene.wait_for_size(&worker);
    members.into_iter().for_each(wait_until_idle);
    scene.php().text(&["down"]);
    scene.doze(4);
    // Time is the subject: after three seconds without a job Laravel's loop runs, here at least once. A process that
    // does not take its job because it pauses is replaced; artisand knows of that by the next one.
    std::thread::sleep(Duration::from_secs(7));
    // A job that was on its way to such a process comes back when that is noticed.
    let waiting = poll(LONG, || {
        let waiting = scene.redis.list(&scene.queue("default"));
        (waiting.len() == 4).then_some(waiting)
    });
    for job in waiting.unwrap_or_else(|| panic!("{}", tail(&worker))) {
        let job: Value = serde_json::from_slice(&job).unwrap();
        assert_eq!(job["attempts"], 0, "{}: {job}", scene.name);
    }
    let boots = worker.stderr().matches("has booted the app").count();
    assert!(boots <= 4, "{boots}: {}", tail(&worker));
    scene.php().text(&["up"]);
    scene.wait_for_end(&mut worker);
    scene.is_each_run_once(&scene.runs(), 4);
    scene.stop(&mut worker);
}

on_every_laravel!(members_with_a_time_limit_live_on_while_the_app_is_down);

/// A terminal that was stopped, a log collector that hangs: lines may be lost, jobs not.
fn a_log_that_nobody_reads_keeps_no_job_waiting(version: u8) {
    const JOBS: usize = 300;
    let scene = UnderFire::new(version, 2, "");
    scene
        .laravel
        .journals(&scene.redis, JOBS, &["--script=throw"]);
    let args = ["queue:work", "redis", "--sleep=1", "--tries=1"];
    let mut command = scene.workplace.artisand(&args);
    let env = scene.laravel.env.iter();
    command
        .envs(env.map(|(name, value)| (name, value)))
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::piped());
    let mut worker = command.spawn().unwrap();
    let spool = scene.laravel.key("artisand:failed-spool");
    let left = || scene.queued() + scene.redis.length(&spool);
    let is_done = poll(LONG, || (left() == 0).then_some(()));
    let pid = worker.id();
    send(pid, Signal::TERM);
    let ended = poll(LONG, || worker.try_wait().unwrap());
    if ended.is_none() {
        send(pid, Signal::KILL);
    }
    assert!(is_done.is_some(), "{}: {}", scene.name, scene.redis.state());
    assert!(ended.is_some_and(|status| status.success()), "{ended:?}");
    assert_eq!(scene.failed().len(), JOBS, "{}", scene.name);
    // About the capacity of a pipe, and less than was logged: it was full.
    let mut log = worker.stderr.take().unwrap();
    let mut read = Vec::new();
    std::io::Read::read_to_end(&mut log, &mut read).unwrap();
    let most = JOBS * 300;
    assert!((32 << 10..most).contains(&read.len()), "{}", read.len());
}

on_every_laravel!(a_log_that_nobody_reads_keeps_no_job_waiting);
