//! Killed workers: the programs of their jobs, and everything that those started, end with them.

use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::json;
use tempfile::TempDir;

use crate::harness::process::{
    ManagedChild, Workplace, eventually, is_alive, processes, supervisor_of,
};
use crate::harness::redis::RedisServer;
use crate::worker::payload;

const SOON: Duration = Duration::from_secs(60);

struct Scene {
    redis: RedisServer,
    workplace: Workplace,
    directory: TempDir,
    pushed: u32,
}

impl Scene {
    /// A shell script runs each job `Once`, a persistent one runs jobs `Lives`; `$D` is their directory.
    fn new(retry_after: u64, once: &str, lives: &str) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let begin = format!("D={}; ", directory.path().display());
        let command = |script: &str| json!(["sh", "-c", begin.clone() + script]);
        let mappings = format!(
            "[[map]]\njob = 'App\\Jobs\\Once'\nhandler = {{ exec = {} }}\n[[map]]\njob = 'App\\Jobs\\Lives'\nhandler = {{ exec = {}, persistent = true }}\n",
            command(once),
            command(lives),
        );
        let redis = RedisServer::start();
        Self {
            workplace: Workplace::new(&redis, "", retry_after, &mappings),
            redis,
            directory,
            pushed: 0,
        }
    }

    fn push(&mut self, class: &str) {
        self.pushed += 1;
        let payload = payload(class, self.pushed, &json!({}));
        self.redis
            .query::<()>(&[b"RPUSH", b"queues:default", &payload]);
    }

    fn command(&self) -> std::process::Command {
        let args = ["queue:work", "redis", "--sleep=0.1", "--tries=99"];
        self.workplace
            .artisand(&[&args[..], &["--concurrency=20"]].concat())
    }

    fn worker(&self) -> ManagedChild {
        ManagedChild::spawn(self.command())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn lines(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.path(name)).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    /// Waits for this number of lines with process ids.
    fn pids(&self, count: usize) -> Vec<u32> {
        eventually("all run", SOON, || {
            let pids: Vec<u32> = self
                .lines("pids")
                .iter()
                .flat_map(|pid| pid.parse())
                .collect();
            (pids.len() == count).then_some(pids)
        })
    }
}

fn all_end(pids: &[u32]) {
    eventually(&format!("{pids:?} end"), Duration::from_secs(20), || {
        (!pids.iter().any(|pid| is_alive(*pid))).then_some(())
    });
}

fn supervisor(worker: u32) -> u32 {
    eventually("there is a supervisor", SOON, || supervisor_of(worker))
}

fn pid(number: u32) -> Pid {
    Pid::from_raw(i32::try_from(number).unwrap()).unwrap()
}

/// Writes its process id and that of a child, and waits.
const WAITS: &str = "sleep 300 & echo $! >> $D/pids; echo $$ >> $D/pids; wait";

#[test]
fn programs_and_what_they_started_die_with_artisand() {
    let mut scene = Scene::new(90, WAITS, &format!("read -r line; {WAITS}"));
    scene.push("Once");
    scene.push("Lives");
    let mut command = scene.command();
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let mut worker = command.spawn().unwrap();
    let pids = scene.pids(4);
    let supervisor = supervisor(worker.id());
    worker.kill().unwrap();
    worker.wait().unwrap();
    all_end(&pids);
    // The reader of the worker's output sees its end.
    let mut stdout = String::new();
    let mut pipe = worker.stdout.take().unwrap();
    pipe.read_to_string(&mut stdout).unwrap();
    assert!(stdout.contains("RUNNING"), "{stdout}");
    all_end(&[supervisor]);
}

/// The process and its child write their ids again and again, as long as they live.
const BEATS: &str = "(while :; do echo $$ >> $D/BEATS; sleep 0.03; done) & while :; do echo $$ >> $D/BEATS; sleep 0.03; done";

#[test]
fn programs_longer_than_their_reservation_never_overlap() {
    const ROUNDS: u32 = 10;
    let once = BEATS.replace("BEATS", "once");
    let lives = format!("read -r line; {}", BEATS.replace("BEATS", "lives"));
    let mut scene = Scene::new(2, &once, &lives);
    scene.push("Once");
    scene.push("Lives");
    let runs = |name: &str| {
        let mut runs = scene.lines(name);
        runs.dedup();
        runs
    };
    for round in 1..=ROUNDS {
        let mut worker = scene.worker();
        for name in ["once", "lives"] {
            eventually("it runs again", SOON, || {
                (runs(name).len() >= round as usize).then_some(())
            });
        }
        // In every second round longer than their reservation.
        let longest = if round % 2 == 0 { 3000 } else { 300 };
        // Time is the subject: the kill comes at any moment.
        std::thread::sleep(Duration::from_millis(fastrand::u64(longest / 2..longest)));
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
    }
    for name in ["once", "lives"] {
        let runs = runs(name);
        let mut distinct = runs.clone();
        distinct.sort();
        distinct.dedup();
        // A job that began twice would be in the list twice.
        assert_eq!((runs.len(), distinct.len()), (10, 10), "{name}: {runs:?}");
    }
}

#[test]
fn no_moment_is_too_early_to_die_with_artisand() {
    const ROUNDS: u64 = 12;
    let seconds = format!("300.{}", std::process::id());
    let mut scene = Scene::new(90, &format!("exec sleep {seconds}"), "exit 1");
    let programs = || processes(|command| command.contains(&seconds));
    for round in 0..ROUNDS {
        for _ in 0..20 {
            scene.push("Once");
        }
        let mut worker = scene.worker();
        eventually("the first one runs", SOON, || {
            (!programs().is_empty()).then_some(())
        });
        // Time is the subject: the kill is to come between any two of the starts.
        std::thread::sleep(Duration::from_millis(fastrand::u64(0..=2 * round)));
        worker.signal(Signal::KILL);
        worker.wait_timeout(SOON);
        eventually("none is left", SOON, || programs().is_empty().then_some(()));
    }
}

#[test]
fn signals_to_all_processes_end_no_supervisor_before_the_job() {
    let script = "echo begun >> $D/said; until test -e $D/go || ! test -d $D; do sleep 0.05; done; \
                  echo done >> $D/said";
    let mut scene = Scene::new(90, script, "exit 1");
    scene.push("Once");
    let mut worker = ManagedChild::spawn({
        let mut command = scene.command();
        command.process_group(0);
        command
    });
    eventually("it runs", SOON, || {
        (scene.lines("said") == ["begun"]).then_some(())
    });
    let supervisor = supervisor(worker.id());
    // As a terminal sends it, and as a service manager does.
    kill_process_group(pid(worker.id()), Signal::TERM).unwrap();
    for signal in [
        Signal::TERM,
        Signal::INT,
        Signal::HUP,
        Signal::QUIT,
        Signal::USR2,
    ] {
        kill_process(pid(supervisor), signal).unwrap();
    }
    // That nothing happens has no event: a supervisor that obeyed a signal would have ended by then.
    std::thread::sleep(Duration::from_millis(300));
    assert!(is_alive(supervisor), "{}", worker.describe());
    std::fs::write(scene.path("go"), "").unwrap();
    worker.succeeds_within(SOON);
    assert_eq!(scene.lines("said"), ["begun", "done"]);
    all_end(&[supervisor]);
    assert_eq!(scene.redis.jobs("queues:default"), 0);
    assert!(
        !worker.stderr().contains("supervisor"),
        "{}",
        worker.stderr()
    );
}

#[test]
fn a_supervisor_that_is_killed_is_replaced_and_told_of_all_children() {
    let mut scene = Scene::new(90, WAITS, &format!("read -r line; {WAITS}"));
    scene.push("Once");
    scene.push("Lives");
    let mut worker = scene.worker();
    let pids = scene.pids(4);
    let first = supervisor(worker.id());
    let replaced = "the supervisor of child processes has ended, and another takes its place";
    // Time is the subject: a supervisor that dies within a second counts as one that cannot be started.
    std::thread::sleep(Duration::from_millis(1100));
    kill_process(pid(first), Signal::KILL).unwrap();
    let second = eventually("there is another", SOON, || {
        supervisor_of(worker.id()).filter(|pid| *pid != first)
    });
    eventually("it is said", SOON, || {
        worker.stderr().contains(replaced).then_some(())
    });
    assert!(pids.iter().all(|pid| is_alive(*pid)));
    worker.signal(Signal::KILL);
    worker.wait_timeout(SOON);
    all_end(&pids);
    all_end(&[second]);
    assert_eq!(worker.stderr().matches(replaced).count(), 1);
}
