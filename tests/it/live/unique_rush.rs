//! Unique jobs that are dispatched again and again while workers of both kinds run them: one of a name at a time.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use artisand::dispatch::{Dispatch, Dispatched};
use artisand::payload::{Command, Payload};
use rustix::process::Signal;
use serde_json::Value;

use crate::harness::journal::{self, Line};
use crate::harness::process::{ManagedChild, poll};
use crate::harness::scene::{Scene, in_scene};

const LONG: Duration = Duration::from_secs(120);
/// Dispatches, by several processes at once, and by this one.
const DISPATCHES: usize = 10_000;
const DISPATCHERS: usize = 3;
/// Names of jobs.
const IDS: usize = 20;

const MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

/// A kind of unique job.
struct Case {
    class: &'static str,
    /// What the jobs do.
    scripts: &'static [&'static str],
    /// Whether the lock is held until the job has ended, and not only until it is run.
    until_end: bool,
}

const CASES: [Case; 2] = [
    Case {
        class: "UniqueJournal",
        scripts: &[
            "note:end",
            "sleep:0.003+note:end",
            "throw,note:end",
            "release:0,note:end",
            // Not `fail`: PHP then frees the lock twice, the second time maybe that of the next job.
            "throw,throw,throw,throw,note:end+throw",
        ],
        until_end: true,
    },
    Case {
        class: "UniqueUntilJournal",
        scripts: &["note:end", "sleep:0.003+note:end"],
        until_end: false,
    },
];

/// The state of Redis at one moment.
struct Moment {
    waiting: Vec<Vec<u8>>,
    reserved: Vec<Vec<u8>>,
    /// New lines of the journal.
    lines: Vec<Vec<u8>>,
}

struct Rush {
    scene: Scene,
    /// Lines of the journal that were read.
    seen: usize,
    /// Uuids of jobs that have finished.
    ended: BTreeSet<String>,
}

in_scene!(Rush);

impl Rush {
    fn look(&self) -> Moment {
        let key = |part: &str| self.queue(&format!("default{part}"));
        let mut pipe = redis::pipe();
        pipe.atomic();
        pipe.lrange(key(""), 0, -1);
        for part in [":delayed", ":reserved"] {
            pipe.zrange(key(part), 0, -1);
        }
        let seen = isize::try_from(self.seen).unwrap();
        pipe.lrange("interop:journal", seen, -1);
        let (mut waiting, delayed, reserved, lines): (Vec<Vec<u8>>, Vec<Vec<u8>>, _, _) =
            pipe.query(&mut self.redis.connection()).unwrap();
        waiting.extend(delayed);
        Moment {
            waiting,
            reserved,
            lines,
        }
    }

    /// Checks that there are never two unfinished jobs of one name.
    fn check(&mut self, case: &Case) {
        let moment = self.look();
        self.seen += moment.lines.len();
        let lines = moment.lines.iter().map(|line| journal::read(line));
        let ends = lines.filter(|line| line.event == "end");
        self.ended.extend(ends.filter_map(|line| line.uuid));
        let mut jobs = moment.waiting;
        if case.until_end {
            jobs.extend(moment.reserved);
        }
        let mut found: BTreeMap<String, String> = BTreeMap::new();
        for job in &jobs {
            let payload = Payload::parse(job).unwrap();
            let uuid = payload.uuid.as_ref().unwrap().to_string();
            // PHP frees the lock before it deletes the job.
            if case.until_end && self.ended.contains(&uuid) {
                continue;
            }
            let command = Command::of(&payload).unwrap().unwrap().to_value().unwrap();
            let id = command.as_object().unwrap().get("id").unwrap();
            let id = id.as_str().unwrap().to_owned();
            let other = found.insert(id.clone(), uuid.clone());
            let text = || {
                let lines = self.lines();
                let lines = lines.iter().rev().filter(|line| line.id == id).take(12);
                let lines: Vec<_> = lines.map(|line| format!("{line:?}")).collect();
                format!("{}\n{}", String::from_utf8_lossy(job), lines.join("\n"))
            };
            let (class, text) = (case.class, other.is_some().then(text));
            assert_eq!(other, None, "{class} {id} is there twice: {text:?}");
        }
    }

    fn locks(&self) -> Vec<String> {
        self.keys("*laravel_unique_job*")
    }

    /// Laravel deletes a job that fails before it frees its lock.
    fn frees_all_locks(&self, name: &str) {
        let free = poll(LONG, || self.locks().is_empty().then_some(()));
        assert!(free.is_some(), "{name}: {:?}", self.locks());
    }

    fn rush(&self, case: &Case, count: usize, pause: &str, seed: usize) -> ManagedChild {
        let (count, seed) = (count.to_string(), format!("--seed={seed}"));
        let (class, ids) = (format!("--class={}", case.class), format!("--ids={IDS}"));
        let args = [&["interop:rush", &count][..], case.scripts];
        let options = [&*class, &*ids, pause, &*seed];
        let args = [args.concat(), options.to_vec()].concat();
        ManagedChild::spawn(self.laravel.command(&args))
    }
}

/// Dispatches as `interop:rush` does, and returns the uuids of the jobs that were queued.
async fn rush_in_rust(dispatch: Dispatch, case: &'static Case, count: usize) -> Vec<String> {
    let mut queued = Vec::new();
    for _ in 0..count {
        let script = case.scripts[fastrand::usize(..case.scripts.len())];
        let script: Vec<&str> = script.split(',').collect();
        let job = dispatch.class(&format!(r"App\Jobs\{}", case.class));
        let job = job.with("id", format!("id-{}", fastrand::usize(1..=IDS)));
        let job = job
            .with("script", script)
            .with("tries", 5)
            .with("backoff", 0);
        if let Dispatched::Queued { uuid, .. } = job.await.unwrap() {
            queued.push(uuid.to_string());
        }
        // Time is the subject: dispatches meet each moment of the others.
        let pause = Duration::from_micros(fastrand::u64(..1_500));
        tokio::time::sleep(pause).await;
    }
    queued
}

fn uuids(rush: &ManagedChild) -> Vec<String> {
    let line: Value = serde_json::from_str(rush.stdout().trim()).unwrap();
    let uuids = line["uuids"].as_array().unwrap();
    (uuids.iter())
        .map(|uuid| uuid.as_str().unwrap().to_owned())
        .collect()
}

/// Runs of jobs of one name do not overlap.
fn check_runs(id: &str, lines: &[Line]) {
    let mut running: Option<&Line> = None;
    for line in lines {
        match &*line.event {
            "run" => {
                assert!(running.is_none(), "{id}: {line:?} beside {running:?}");
                running = Some(line);
            }
            "end" => {
                let run = running.take();
                let is_same = run.is_some_and(|run| (run.pid, &run.uuid) == (line.pid, &line.uuid));
                assert!(is_same, "{id}: {line:?} ends {run:?}");
            }
            // Nothing records the end of jobs that throw or are released.
            event => panic!("{event}: {line:?}"),
        }
    }
}

fn one_unique_job_of_a_name_at_a_time(version: u8) {
    let scene = Scene::with_classes::<&str>(version, &[], MAPPINGS);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let dispatch = runtime.block_on(async { scene.workplace.dispatch() });
    let rust = (0..2).map(|_| scene.worker(&["--concurrency=4"]));
    let mut workers: Vec<_> = rust.collect();
    workers.extend((0..2).map(|_| scene.php_worker(&["--sleep=0.02"])));
    let mut scene = Rush {
        scene,
        seen: 0,
        ended: BTreeSet::new(),
    };
    for case in &CASES {
        let name = case.class;
        let first = scene.seen;
        let share = DISPATCHES / CASES.len() / (DISPATCHERS + 1);
        let mut rushes: Vec<_> = (0..DISPATCHERS)
            .map(|number| scene.rush(case, share, "--pause=1500", number))
            .collect();
        let ours = runtime.spawn(rush_in_rust(dispatch.clone(), case, share));
        while rushes.iter_mut().any(ManagedChild::is_running) || !ours.is_finished() {
            scene.check(case);
        }
        for rush in &mut rushes {
            rush.succeeds_within(LONG);
        }
        let mut accepted: Vec<String> = rushes.iter().flat_map(uuids).collect();
        let ours = runtime.block_on(ours).unwrap();
        assert!(!ours.is_empty(), "{name}: none by Rust");
        accepted.extend(ours);
        accepted.sort();
        assert!(accepted.len() > 10 * IDS, "{name}: {}", accepted.len());

        let mut wait = |scene: &mut Rush| {
            let is_over = poll(LONG, || {
                for worker in &mut workers {
                    assert!(worker.is_running(), "ended: {}", worker.describe());
                }
                let moment = scene.look();
                (moment.waiting.is_empty() && moment.reserved.is_empty()).then_some(())
            });
            assert!(is_over.is_some(), "{name}: no end; {}", scene.redis.state());
        };
        wait(&mut scene);
        scene.frees_all_locks(name);

        // All queued jobs ran, one per name at a time.
        let lines = journal::since(&scene.redis, first);
        let of_end = lines.iter().filter(|line| line.event == "end");
        let mut ended: Vec<String> = of_end.filter_map(|line| line.uuid.clone()).collect();
        ended.sort();
        assert_eq!(ended, accepted, "{name}");
        for by in ["rust", "php"] {
            assert!(
                lines.iter().any(|line| line.by == by),
                "{name}: none by {by}"
            );
        }
        if case.until_end {
            let mut by_id: BTreeMap<&str, Vec<Line>> = BTreeMap::new();
            for (number, line) in lines.iter().enumerate() {
                let is_pair = line.event == "end"
                    || lines[number + 1..].iter().any(|other| {
                        other.event == "end"
                            && (&other.uuid, other.attempts) == (&line.uuid, line.attempts)
                    });
                if line.event != "failed" && is_pair {
                    by_id.entry(&line.id).or_default().push(line.clone());
                }
            }
            assert_eq!(by_id.len(), IDS);
            for (id, lines) in by_id {
                check_runs(id, &lines);
            }
        }

        // None is locked out forever.
        let mut again = scene.rush(case, 30 * IDS, "--pause=0", 99);
        again.succeeds_within(LONG);
        wait(&mut scene);
        let lines = journal::since(&scene.redis, first);
        let again: BTreeSet<String> = uuids(&again).into_iter().collect();
        let names: BTreeSet<&str> = (lines.iter())
            .filter(|line| line.uuid.as_ref().is_some_and(|uuid| again.contains(uuid)))
            .map(|line| &*line.id)
            .collect();
        assert_eq!(names.len(), IDS, "{name}: {names:?}");
        scene.frees_all_locks(name);
        scene.seen = scene.redis.length("interop:journal");
    }
    for worker in &mut workers {
        worker.signal(Signal::TERM);
    }
    for worker in &mut workers {
        worker.succeeds_within(LONG);
    }
    assert_eq!(scene.own_keys(), [""; 0]);
}

on_every_laravel!(one_unique_job_of_a_name_at_a_time);
