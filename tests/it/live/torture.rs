//! All kinds of jobs under random kills: no job is lost or stuck, and only restarted attempts happen twice.
//!
//! A short form runs with the suite; `make torture MINUTES=10 [SEED=..]` runs longer. The oracle is
//! the journal that the jobs write into Redis, which keeps all it was told (`appendfsync always`).

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::harness::journal::{self, Line};
use crate::harness::process::{ManagedChild, Workplace, is_alive, poll};
use crate::harness::proxy::{Mode, Proxy};
use crate::harness::redis::{RedisServer, is_memory};
use crate::harness::scene::{Scene, in_scene};
use crate::harness::sql::PostgresServer;

/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(300);
const RETRY_AFTER: u32 = 4;
const CHAINS: usize = 3;
const MEMBERS: usize = 6;
const SINGLES: usize = 12;
/// What a worker says and ends with if a strike hits it at its start: a child's boot or its own first connection.
const HIT_AT_START: [&str; 3] = [
    "it ended while it booted the app (signal: 9 (SIGKILL))",
    "could not connect to Redis at",
    "did not carry out a command",
];
/// Sets the clock of a process, by `FAKETIME_TIMESTAMP_FILE`.
const FAKETIME: &str = "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1";
/// Redis cannot save to this file, as it is a directory.
const DIRECTORY: &str = "directory";
/// As if the disk was full.
const FULL_DISK: &[(&str, &str)] = &[("save", "3600 1")];
/// How Redis is made to refuse writes, and to take them again.
const REFUSALS: [[&[(&str, &str)]; 2]; 3] = [
    [FULL_DISK, &[("save", "")]],
    [&[("maxmemory", "1")], &[("maxmemory", "0")]],
    [
        &[("min-replicas-to-write", "1")],
        &[("min-replicas-to-write", "0")],
    ],
];
/// Classes of the steps of a chain: PHP's pool and Rust in turn.
const CLASSES: [&str; 4] = ["Journal", "UniqueJournal", "EncryptedJournal", "Journal"];

/// `Journal` goes to PHP, the rest runs in Rust.
const MAPPINGS: &str = r#"
[[map]]
job = '/^App\\Jobs\\(Unique|UniqueUntil|Encrypted|Batch)Journal$/'
handler = "journal"
"#;

struct Torture {
    scene: Scene,
    /// Batches and failed jobs.
    database: PostgresServer,
    /// Seconds by which artisand's clock differs from that of others, with a sign; read once a second.
    clock: NamedTempFile,
    /// Processes that had that clock.
    clocked: RefCell<Vec<u32>>,
    wave: Wave,
    /// Between artisand and Redis; PHP, also in artisand's pool, has none.
    proxy: Proxy,
    random: fastrand::Rng,
    faults: BTreeMap<&'static str, usize>,
}

/// Some jobs, and what happened while they ran.
#[derive(Default)]
struct Wave {
    /// Jobs have it in their names.
    number: usize,
    /// Lines of the journal before it.
    lines_before: usize,
    /// Jobs that were dispatched, without the later steps of chains.
    jobs: BTreeSet<String>,
    batches: Vec<String>,
    /// Processes of `queue:work`.
    by_php: BTreeSet<u32>,
    /// When processes were stopped for long: their reservations may have ended meanwhile.
    stopped: Vec<(u32, std::ops::Range<f64>)>,
    /// Whether the clock was set, so that reservations could end at any time.
    is_wrong_time: bool,
    /// Whether something could not be written.
    is_refused: bool,
    /// Failed jobs of the waves before.
    failed_before: BTreeSet<String>,
}

in_scene!(Torture);

impl Torture {
    fn new(version: u8, seed: u64) -> Self {
        assert!(Path::new(FAKETIME).is_file(), "install faketime");
        let database = PostgresServer::start();
        let settings = [
            ("REDIS_QUEUE_RETRY_AFTER", RETRY_AFTER.to_string()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
        ];
        let settings = [&settings[..], &database.env()].concat();
        let durable = RedisServer::start_durable_with(&["--dbfilename", DIRECTORY]);
        std::fs::create_dir(durable.directory().join(DIRECTORY)).unwrap();
        let proxy = Proxy::start(durable.port());
        let mut scene = Scene::on(durable, version, &settings, |laravel| {
            let mut manifest = laravel.manifest_with_classes();
            let servers = manifest["config"]["database"]["redis"].as_object_mut();
            for server in servers.unwrap().values_mut() {
                if server.get("port").is_some() {
                    server["port"] = proxy.port.into();
                }
            }
            Workplace::with_manifest_and_pool(laravel, &manifest, 2, MAPPINGS)
        });
        scene.name = format!("Laravel {version}, SEED={seed}");
        // The first look makes the tables.
        scene.failed();
        Self {
            scene,
            database,
            clock: NamedTempFile::new().unwrap(),
            clocked: RefCell::default(),
            wave: Wave::default(),
            proxy,
            random: fastrand::Rng::with_seed(seed),
            faults: BTreeMap::new(),
        }
    }

    fn worker(&self, tries: u32) -> ManagedChild {
        let tries = format!("--tries={tries}");
        let args = ["--queue=rust,default", "--concurrency=4", "--sleep=0.2"];
        let mut command = (self.workplace).worker_command(&[&args[..], &[&tries]].concat());
        command
            .env("LD_PRELOAD", FAKETIME)
            .env("FAKETIME_TIMESTAMP_FILE", self.clock.path())
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
        let worker = ManagedChild::spawn(command);
        self.clocked.borrow_mut().push(worker.id());
        worker
    }

    fn set_clock(&self, seconds: i32) {
        std::fs::write(self.clock.path(), format!("{seconds:+}")).unwrap();
    }

    /// Lets Redis refuse to write, or not.
    fn refuse_writes(&self, way: &[(&str, &str)]) {
        for (name, value) in way {
            let command = [&b"CONFIG"[..], b"SET", name.as_bytes(), value.as_bytes()];
            self.redis.query::<()>(&command);
        }
        if way == FULL_DISK {
            // It fails, now or after the rewriting of the log.
            let schedule = [&b"BGSAVE"[..], b"SCHEDULE"];
            self.redis.query::<()>(&schedule);
        }
    }

    /// Plain `queue:work` in addition; it gets no batches, which PHP counts twice if Redis goes away in between.
    fn php_worker(&mut self, tries: u32) -> ManagedChild {
        let tries = format!("--tries={tries}");
        let args = ["--queue=default", "--sleep=0.2", &tries];
        let worker = self.laravel.worker(&args);
        self.wave.by_php.insert(worker.id());
        worker
    }

    /// Dispatches some jobs of each kind.
    fn dispatch(&mut self) {
        let wave = self.wave.number;
        let classes = format!("--classes={}", CLASSES.join(","));
        for chain in 0..CHAINS {
            let id = format!("w{wave}-chain{chain}");
            let steps: Vec<String> = (0..CLASSES.len()).map(|_| self.script()).collect();
            let steps: Vec<&str> = steps.iter().map(String::as_str).collect();
            let head = ["interop:chain", &id];
            let args = [&head[..], &steps, &[&*classes, "--without-catch"]].concat();
            self.php().text(&args);
            self.wave.jobs.insert(format!("{id}-1"));
        }
        for single in 0..SINGLES {
            let id = format!("w{wave}-single{single}");
            let script = format!("--script={}", self.script());
            self.php().run(&["interop:journal", &id, &script]);
            self.wave.jobs.insert(id);
        }
        let members = ["sleep:0.02"; MEMBERS];
        let args = [
            "interop:batch",
            "--queue=rust",
            "--then",
            "--finally",
            "--allow-failures",
        ];
        let batch = self.php().run(&[&args[..1], &members, &args[1..]].concat());
        self.wave
            .batches
            .push(batch["id"].as_str().unwrap().to_owned());
    }

    /// What a job does at each of its attempts.
    fn script(&mut self) -> String {
        let naps = self.random.u32(1..30);
        let end = format!("sleep:0.{naps:02}+note:end");
        let attempts = match self.random.u8(..6) {
            0 => vec!["sleep:0.05+throw".to_owned(), end.clone()],
            1 => vec!["release:1".to_owned(), end.clone()],
            _ => Vec::new(),
        };
        let more = std::iter::repeat_n(end, 12);
        attempts
            .into_iter()
            .chain(more)
            .collect::<Vec<_>>()
            .join(",")
    }

    /// Does something to the workers or to Redis; ended workers are replaced.
    fn strike(&mut self, workers: &mut [ManagedChild], tries: u32) {
        let victim = self.random.usize(..workers.len());
        let fault = match self.random.u8(..31) {
            // Where clocks were set, much is excused.
            28..=29 if self.wave.number % 4 == 1 => {
                let seconds = self.random.i32(-20..20);
                self.set_clock(seconds);
                self.wave.is_wrong_time = true;
                "clocks that were set"
            }
            0..9 | 28..=29 => {
                workers[victim].signal(Signal::KILL);
                workers[victim].wait_timeout(LONG);
                "kills of artisand"
            }
            9..14 => {
                let members = children(workers[victim].id());
                if !members.is_empty() {
                    send(members[self.random.usize(..members.len())], Signal::KILL);
                }
                "kills of a child"
            }
            14..17 => {
                // Longer than its reservations, too.
                let began = now();
                workers[victim].signal(Signal::STOP);
                self.nap(100..6000);
                workers[victim].signal(Signal::CONT);
                let ended = now();
                // Renewed at a third of their length.
                if ended - began > f64::from(RETRY_AFTER) / 2.0 {
                    self.wave.stopped.push((workers[victim].id(), began..ended));
                }
                "stopped processes"
            }
            17..19 => {
                workers[victim].signal(Signal::TERM);
                workers[victim].wait_timeout(LONG);
                "deploys"
            }
            19 => {
                self.redis.stop();
                self.nap(100..3000);
                self.redis.restart();
                self.renew_php();
                "restarts of Redis"
            }
            20 => {
                self.proxy.set(Mode::Cut);
                self.nap(1..500);
                "cut connections"
            }
            21..=23 => {
                self.proxy.set(Mode::LoseReplies);
                self.nap(1..100);
                "lost replies"
            }
            24..=25 => {
                if self.random.bool() {
                    self.database.stop();
                } else {
                    self.database.kill();
                }
                self.nap(100..3000);
                self.database.restart();
                self.renew_php();
                self.wave.is_refused = true;
                "restarts of the database"
            }
            26..=27 => {
                let [refuse, take] = REFUSALS[self.random.usize(..REFUSALS.len())];
                self.refuse_writes(refuse);
                self.nap(100..3000);
                self.refuse_writes(take);
                self.wave.is_refused = true;
                "refused writes"
            }
            _ => {
                let began = now();
                self.proxy.set(Mode::Stall);
                self.nap(100..6000);
                let ended = now();
                if ended - began > f64::from(RETRY_AFTER) / 2.0 {
                    let pids = workers.iter().map(ManagedChild::id);
                    self.wave
                        .stopped
                        .extend(pids.map(|pid| (pid, began..ended)));
                }
                "stalled connections"
            }
        };
        self.proxy.set(Mode::Pass);
        *self.faults.entry(fault).or_default() += 1;
        for worker in workers {
            if !worker.is_running() {
                *worker = self.worker(tries);
            }
        }
    }

    /// Waits for a random time: faults have to hit any moment, so no event is awaited.
    fn nap(&mut self, milliseconds: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_millis(self.random.u64(milliseconds)));
    }

    fn begin_wave(&mut self, number: usize) {
        self.set_clock(0);
        self.wave = Wave {
            number,
            lines_before: self.redis.length("interop:journal"),
            failed_before: self.failed().into_keys().collect(),
            ..Wave::default()
        };
    }

    fn is_busy(&self) -> bool {
        // One look at all keys: work goes from queues to follow-ups and back.
        let is_work = |key: &String| {
            (key.contains("queues:") && !key.ends_with(":notify"))
                || (key.contains("artisand:") && !is_memory(key))
        };
        self.keys("*").iter().any(is_work)
    }

    /// Payloads in the store of failed jobs, by uuid.
    fn failed(&self) -> BTreeMap<String, String> {
        let row = |job: Value| {
            let text = job["payload"].as_str().unwrap().to_owned();
            let payload: Value = serde_json::from_str(&text).unwrap();
            (payload["uuid"].as_str().unwrap().to_owned(), text)
        };
        self.scene.failed().into_iter().map(row).collect()
    }

    /// Compares the records with the allowed outcomes.
    fn judge(&self) {
        let name = format!("{}, {:?}", self.name, self.faults);
        let lines = journal::since(&self.redis, self.wave.lines_before);
        let mut of: BTreeMap<&str, Vec<&Line>> = BTreeMap::new();
        for line in lines.iter().filter(|line| line.uuid.is_some()) {
            of.entry(&line.id).or_default().push(line);
        }
        let failed = self.failed();
        let (mut again, mut wrong) = (0, Vec::new());
        for (id, lines) in &of {
            let runs: Vec<_> = lines.iter().filter(|line| line.event == "run").collect();
            let uuids: BTreeSet<_> = runs.iter().filter_map(|run| run.uuid.as_deref()).collect();
            again += usize::from(runs.len() > 1);
            // If PHP ran a step again, it pushes the next one again.
            // Members of batches have the names of those of other batches.
            let is_member = id.starts_with("member");
            let is_excused = || {
                Self::was_before_run_again_by_php(id, &of) || uuids.len() <= pushes_before(id, &of)
            };
            if uuids.len() > 1 && !is_member && !is_excused() {
                let before = step_before(id).and_then(|before| of.get(before.as_str()));
                wrong.push(format!(
                    "{id} was pushed twice: {lines:?}\nthe step before it: {before:?}"
                ));
            }
            for uuid in uuids {
                let of_one: Vec<_> = (lines.iter())
                    .filter(|line| line.uuid.as_deref() == Some(uuid))
                    .collect();
                let runs: Vec<_> = of_one.iter().filter(|line| line.event == "run").collect();
                let is_counted = self.wave.is_wrong_time
                    || runs.windows(2).all(|two| two[0].attempts < two[1].attempts);
                if !is_counted {
                    wrong.push(format!("{id}: an attempt ran twice: {of_one:?}"));
                }
                for two in runs.windows(2) {
                    let ends_late = (of_one.iter()).any(|line| {
                        line.pid == two[0].pid
                            && line.event == "end"
                            && line.at > two[1].at
                            && line.attempts == two[0].attempts
                    });
                    let stood_still = (self.wave.stopped.iter()).any(|(pid, span)| {
                        *pid == two[0].pid && span.start < two[1].at && two[0].at < span.end
                    });
                    let may_end_late =
                        self.wave.is_wrong_time || self.wave.by_php.contains(&two[0].pid);
                    if ends_late && !stood_still && !may_end_late {
                        wrong.push(format!("{id}: two attempts at a time: {of_one:?}"));
                    }
                }
                let is_over = of_one.iter().any(|line| line.event == "end");
                let is_lost = || self.has_lost_row(uuid);
                if !is_over && !failed.contains_key(uuid) && !is_member && !is_lost() {
                    let refused = self.wave.is_refused;
                    wrong.push(format!("{id} has no end (refused: {refused}): {of_one:?}"));
                }
            }
        }
        // A job with one try that was killed before it could write a line has failed.
        let has_failed = |id: &str| {
            let quoted = format!("{id}\\\"");
            failed.values().any(|payload| payload.contains(&quoted))
        };
        let missing: Vec<_> = (self.wave.jobs.iter())
            .filter(|id| !of.contains_key(id.as_str()) && !has_failed(id) && !self.has_lost_row(id))
            .collect();
        if !missing.is_empty() {
            wrong.push(format!("never run: {missing:?}"));
        }
        wrong.extend(self.steps_missing(&of, &failed));
        for batch in &self.wave.batches {
            let row = self.php().run(&["interop:batch-state", batch]);
            let of_batch = |uuid: &Value| failed.contains_key(uuid.as_str().unwrap_or_default());
            let ids = row["failed_ids"].as_array().cloned().unwrap_or_default();
            if row["pending"] != row["failed"] || !ids.iter().all(of_batch) {
                wrong.push(format!("a batch is not exact: {row}"));
            }
        }
        wrong.extend(self.locks_left(&of));
        assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
        #[expect(
            clippy::print_stdout,
            reason = "who runs it for hours wants to see it get on"
        )]
        {
            println!(
                "{name}: {} jobs, {again} of them begun again, {} failed",
                of.len(),
                failed.len()
            );
        }
    }

    /// Steps of chains that should follow one that has ended well, and are nowhere.
    fn steps_missing(
        &self,
        of: &BTreeMap<&str, Vec<&Line>>,
        failed: &BTreeMap<String, String>,
    ) -> Vec<String> {
        let has_failed = |id: &str, class: &str| {
            // An encrypted payload does not tell the job's name.
            let (quoted, is_secret) = (format!("{id}\\\""), class == "EncryptedJournal");
            let is_unknown = |uuid: &String| {
                let mut lines = of.values().flatten();
                !lines.any(|line| line.uuid.as_ref() == Some(uuid))
            };
            failed.iter().any(|(uuid, payload)| {
                let may_be = is_secret && payload.contains(class) && is_unknown(uuid);
                payload.contains(&quoted) || (may_be && !self.wave.failed_before.contains(uuid))
            })
        };
        let mut missing = Vec::new();
        for (id, lines) in of {
            let parts = id.rsplit_once('-');
            let Some((chain, Ok(step))) = parts.map(|(chain, step)| (chain, step.parse::<usize>()))
            else {
                continue;
            };
            let Some(class) = CLASSES.get(step).filter(|_| chain.contains("chain")) else {
                continue;
            };
            let next = format!("{chain}-{}", step + 1);
            let mut ends = lines.iter().filter(|line| line.event == "end");
            let has_ended_well = ends.any(|line| {
                let uuid = line.uuid.as_deref().unwrap_or_default();
                !failed.contains_key(uuid) && !self.has_lost_row(uuid)
            });
            let is_there =
                of.contains_key(&*next) || has_failed(&next, class) || self.has_lost_row(&next);
            // As for locks that are left.
            let is_excused =
                *class == "UniqueJournal" && Self::was_before_run_again_by_php(&next, of);
            if has_ended_well && !is_there && !is_excused {
                missing.push(format!("{next} never came after {id}: {lines:?}"));
            }
        }
        missing
    }

    /// Locks of jobs of this wave that no job will free.
    fn locks_left(&self, of: &BTreeMap<&str, Vec<&Line>>) -> Vec<String> {
        let mut left = Vec::new();
        let of_wave = format!("w{}-", self.wave.number);
        for lock in self.keys("*laravel_unique_job*") {
            let id = lock.rsplit(':').next().unwrap_or_default();
            if !id.starts_with(&of_wave) {
                continue;
            }
            let before = step_before(id).and_then(|before| of.get(before.as_str()));
            // PHP takes the lock of the next step and then pushes it. If it is killed in between, the step before
            // runs again, finds the lock taken, and the chain ends there, as in Laravel.
            let runs = before.into_iter().flatten();
            let runs: Vec<_> = runs.filter(|line| line.event == "run").collect();
            let is_of_php = runs.len() > 1 && runs.iter().any(|run| run.by == "php");
            let lines = of.get(id);
            // PHP could not free it, and does not try again.
            let could_not = lines.is_some_and(|lines| self.is_of_refused_php(lines));
            if (lines.is_some() || !is_of_php) && !could_not {
                left.push(format!(
                    "a lock is left: {lock}, {lines:?}\nthe step before it: {before:?}"
                ));
            }
        }
        left
    }

    /// Whether PHP could not write the row of a failed job, which it had deleted before: the log has the statement,
    /// with the job's uuid and payload.
    fn has_lost_row(&self, job: &str) -> bool {
        let log = self.laravel.log();
        let mut lines = log.lines();
        lines.any(|line| line.contains("failed_jobs") && line.contains(job))
    }

    /// Whether `queue:work` ran a job last, while something could not be written.
    fn is_of_refused_php(&self, lines: &[&Line]) -> bool {
        let last = lines.iter().rev().find(|line| line.event == "run");
        self.wave.is_refused && last.is_some_and(|run| self.wave.by_php.contains(&run.pid))
    }

    /// Whether the step of a chain before this one was begun more than once, or in `queue:work`.
    fn was_before_run_again_by_php(id: &str, of: &BTreeMap<&str, Vec<&Line>>) -> bool {
        let Some(before) = step_before(id) else {
            return false;
        };
        let runs = of.get(before.as_str()).into_iter().flatten();
        let runs: Vec<_> = runs.filter(|line| line.event == "run").collect();
        runs.len() > 1 && runs.iter().any(|run| run.by == "php")
    }
}

impl Drop for Torture {
    /// Removes what libfaketime removes itself at the end of a process that is not killed.
    fn drop(&mut self) {
        let of_ended = self.clocked.get_mut().iter().filter(|pid| !is_alive(**pid));
        for pid in of_ended {
            for name in ["faketime_shm_", "sem.faketime_sem_"] {
                let _ = std::fs::remove_file(format!("/dev/shm/{name}{pid}"));
            }
        }
    }
}

/// How often the step of a chain before this one was pushed: each of them pushes this one.
fn pushes_before(id: &str, of: &BTreeMap<&str, Vec<&Line>>) -> usize {
    let before = step_before(id).and_then(|before| of.get(before.as_str()));
    let uuids = (before.into_iter().flatten()).filter_map(|line| line.uuid.as_deref());
    uuids.collect::<BTreeSet<_>>().len()
}

/// The step of a chain before this one.
fn step_before(id: &str) -> Option<String> {
    let (chain, step) = id.rsplit_once('-')?;
    let before = step.parse::<usize>().ok()?.checked_sub(1)?;
    Some(format!("{chain}-{before}"))
}

/// The time as the journal has it, in unix seconds.
fn now() -> f64 {
    let since = std::time::UNIX_EPOCH.elapsed();
    since.expect("the clock is behind 1970").as_secs_f64()
}

/// Processes that this one has started.
fn children(parent: u32) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_child = |pid: &u32| {
        let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // The name before may hold anything.
        let rest = text.rsplit_once(") ").map(|(_, rest)| rest.to_owned());
        let of = rest.and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        of == Some(parent)
    };
    pids.filter(is_child).collect()
}

/// Whether a strike hit this worker before its first job: it does not start then, while one that works goes on.
fn is_hit_at_start(worker: &mut ManagedChild) -> bool {
    let said = worker.stderr();
    // Log lines have a time before the level: one that tells of a lost connection is no reason to end.
    let ended_with = said.split_once("\n   ERROR  ").map(|(_, error)| error);
    let is_hit = |error: &str| HIT_AT_START.iter().any(|end| error.contains(end));
    ended_with.is_some_and(is_hit) && worker.stdout().is_empty() && !worker.is_running()
}

fn send(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    // It may have ended just now.
    let _ = pid.map(|pid| kill_process(pid, signal));
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

fn torture(version: u8) {
    let seed = setting("TORTURE_SEED").unwrap_or_else(|| fastrand::u64(..));
    let minutes = setting("TORTURE_MINUTES").unwrap_or(0.25_f64);
    let mut scene = Torture::new(version, seed);
    let end = Instant::now() + Duration::from_secs_f64(minutes * 60.0);
    let mut wave = 0;
    while Instant::now() < end {
        let tries = if wave % 2 == 0 { 5 } else { 1 };
        scene.begin_wave(wave);
        scene.dispatch();
        let mut workers = [scene.worker(tries), scene.worker(tries)];
        let mut php = scene.php_worker(tries);
        let until = Instant::now() + Duration::from_secs(10);
        while Instant::now() < until.min(end) {
            scene.strike(&mut workers, tries);
            // It ends with its connection, as Laravel has it.
            if !php.is_running() {
                php = scene.php_worker(tries);
            }
            scene.nap(50..900);
        }
        scene.set_clock(0);
        let done = poll(LONG, || {
            for worker in &mut workers {
                if is_hit_at_start(worker) {
                    *worker = scene.worker(tries);
                }
                assert!(worker.is_running(), "{}: {}", scene.name, worker.describe());
            }
            (!scene.is_busy()).then_some(())
        });
        let state = || {
            let workers: Vec<_> = workers.iter().map(ManagedChild::describe).collect();
            format!("{}\n{}", scene.redis.state(), workers.join("\n"))
        };
        assert!(done.is_some(), "{}: no end: {}", scene.name, state());
        for worker in workers.iter_mut().chain([&mut php]) {
            worker.signal(Signal::TERM);
            worker.wait_timeout(LONG);
        }
        scene.judge();
        wave += 1;
    }
}

on_every_laravel!(torture);
