//! Workers that are killed at any moment: chains continue, batches count, locks are freed, each once.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::cluster::Cluster;
use crate::harness::journal::{self, Line};
use crate::harness::process::{ManagedChild, kills, poll};
use crate::harness::redis::is_memory;
use crate::harness::scene::{Scene, in_scene, text};
use crate::harness::sql::{Engine, MariaDbServer, PostgresServer, SqlServer};
#[cfg(feature = "sqs")]
use crate::harness::sqs::Sqs;
use crate::harness::stores::Settings;

const SOON: Duration = Duration::from_secs(180);
/// Queues of the jobs, in the order in which they are worked.
const QUEUES: [&str; 2] = ["a", "b"];

/// Closures go to a separate queue, so that members and steps run in Rust, in workers that may die.
const SETTINGS: &str = r#"
[php]
queue = "php"

[[map]]
job = 'App\Jobs\*Journal'
handler = "journal"
"#;

struct Rampage {
    scene: Scene,
    /// The queue connection.
    connection: &'static str,
    random: fastrand::Rng,
    /// Process ids of workers that were killed.
    killed: BTreeSet<u32>,
    /// What the workers that were not killed have logged.
    said: String,
    /// Where the queues are, if on a server that only deletes jobs.
    tubes: Option<Tubes>,
    /// The cluster that the queues and locks are on, if they are on one.
    cluster: Option<Cluster>,
}

/// A server that only deletes jobs.
enum Tubes {
    Beanstalkd(Beanstalkd),
    #[cfg(feature = "sqs")]
    Sqs(Sqs),
}

impl Tubes {
    fn is_empty(&self) -> bool {
        match self {
            Self::Beanstalkd(server) => {
                let stats = server.query("stats");
                let is_job =
                    |line: &str| line.starts_with("current-jobs-") && !line.ends_with(": 0");
                !stats.lines().any(is_job)
            }
            #[cfg(feature = "sqs")]
            Self::Sqs(server) => server.count() == 0,
        }
    }
}

in_scene!(Rampage);

impl Rampage {
    fn new(version: u8, settings: &Settings, retry_after: u32) -> Self {
        let more = [
            ("REDIS_QUEUE_RETRY_AFTER", retry_after.to_string()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
        ];
        Self::of(version, &[&settings[..], &more].concat(), SETTINGS)
    }

    /// The same, with queues, locks and cache on a cluster: each queue in a slot of its own.
    fn on_a_cluster(version: u8, settings: &Settings, retry_after: u32) -> Self {
        let cluster = Cluster::start();
        let more = [
            ("INTEROP_CLUSTER", cluster.seeds()),
            ("REDIS_QUEUE_RETRY_AFTER", retry_after.to_string()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
        ];
        Self {
            cluster: Some(cluster),
            ..Self::of(version, &[&settings[..], &more].concat(), SETTINGS)
        }
    }

    /// The same, with the queues on a beanstalkd.
    fn in_tubes(version: u8, retry_after: u32) -> Self {
        let server = Beanstalkd::start();
        let env = [
            ("BEANSTALKD_PORT", server.port().to_string()),
            ("REDIS_QUEUE_RETRY_AFTER", retry_after.to_string()),
        ];
        let tubes = Tubes::Beanstalkd(server);
        Self::on(tubes, version, "beanstalkd", &env, "")
    }

    /// The same, with the queues on SQS: the tests' server may take seconds for an answer, and a reservation that ends
    /// meanwhile is lost without a kill.
    #[cfg(feature = "sqs")]
    fn on_sqs(version: u8, retry_after: u32) -> Self {
        let server = Sqs::start();
        let env = [("SQS_PREFIX", server.prefix())];
        let rest = format!("[connections.sqs]\nretry_after = {retry_after}\n");
        Self::on(Tubes::Sqs(server), version, "sqs", &env, &rest)
    }

    fn on(
        tubes: Tubes,
        version: u8,
        connection: &'static str,
        env: &[(&'static str, String)],
        rest: &str,
    ) -> Self {
        let settings = [
            ("QUEUE_CONNECTION", connection.to_owned()),
            ("QUEUE_FAILED_DRIVER", "database-uuids".to_owned()),
        ];
        // What no mapping names cannot be left there.
        let rest = format!(
            "{rest}[worker]\nledger = \"redis\"\n\n[unmapped]\npolicy = \"fail\"\n{SETTINGS}"
        );
        Self {
            connection,
            tubes: Some(tubes),
            ..Self::of(version, &[env, &settings].concat(), &rest)
        }
    }

    fn of(version: u8, settings: &[(&'static str, String)], rest: &str) -> Self {
        let mut scene = Scene::with_classes(version, settings, rest);
        let seed = fastrand::u64(..);
        scene.name = format!("Laravel {version}, seed {seed}");
        // The first look makes the tables.
        scene.failed();
        let is_in_database = settings.contains(&("QUEUE_CONNECTION", "database".to_owned()));
        Self {
            connection: if is_in_database { "database" } else { "redis" },
            scene,
            random: fastrand::Rng::with_seed(seed),
            killed: BTreeSet::new(),
            said: String::new(),
            tubes: None,
            cluster: None,
        }
    }

    fn worker(&self) -> ManagedChild {
        let queues = format!("--queue={}", QUEUES.join(","));
        let args = [
            "queue:work",
            self.connection,
            &queues,
            "--concurrency=4",
            "--tries=1000",
            "--sleep=0.1",
        ];
        self.workplace.worker_of(&args)
    }

    /// Runs closures. No other worker takes its jobs while it lives: only artisand's workers are killed.
    fn php_worker(&self) -> ManagedChild {
        let args = ["queue:work", self.connection, "--queue=php", "--sleep=0.05"];
        let mut command = self.laravel.command(&args);
        command.env("REDIS_QUEUE_RETRY_AFTER", "90");
        ManagedChild::spawn(command)
    }

    /// Waits for a random time: faults have to hit any moment, so no event is awaited.
    fn nap(&mut self, milliseconds: std::ops::Range<u64>) {
        std::thread::sleep(Duration::from_millis(self.random.u64(milliseconds)));
    }

    /// Kills and replaces workers in turn, at random moments; returns how often there was work.
    fn kill(&mut self, workers: &mut [ManagedChild; 2]) -> usize {
        let mut busy = 0;
        let mut is_aimed = true;
        for kill in 0..kills() {
            let worker = &mut workers[kill % 2];
            // A machine that is slow to start processes would see none that has begun.
            if is_aimed && kill % 5 == 0 {
                is_aimed = self.has_line_soon(worker);
            }
            self.nap(5..150);
            busy += usize::from(self.is_busy());
            assert!(worker.is_running(), "{}: {}", self.name, worker.describe());
            worker.signal(Signal::KILL);
            worker.wait_timeout(SOON);
            self.killed.insert(worker.id());
            *worker = self.worker();
            self.expire_lease();
        }
        busy
    }

    /// Waits until the worker has begun a job; false if no job is left for it.
    fn has_line_soon(&self, worker: &ManagedChild) -> bool {
        let mut seen = 0;
        let mut has_begun = || {
            let lines = journal::since(&self.redis, seen);
            seen += lines.len();
            lines
                .iter()
                .any(|line| line.pid == worker.id())
                .then_some(())
        };
        // For queues in a database the question of what is left starts PHP.
        for _ in 0..15 {
            if poll(Duration::from_secs(2), &mut has_begun).is_some() {
                return true;
            }
            if !self.is_busy() {
                break;
            }
        }
        false
    }

    /// Acts as if this much time had passed. A living process that works on the list must notice.
    fn expire_lease(&self) {
        if self.connection == "database" {
            let lease = "--forget=artisand:follow-ups:lease";
            self.php().run(&["interop:jobs", lease]);
            return;
        }
        if let Some(cluster) = &self.cluster {
            for queue in QUEUES {
                let lease = self
                    .laravel
                    .key(&format!("artisand:follow-ups-lease:{{{queue}}}"));
                cluster.query::<i64>(&[b"DEL", lease.as_bytes()]);
            }
            return;
        }
        let lease = self.laravel.key("artisand:follow-ups:lease");
        self.redis.query::<()>(&[b"DEL", lease.as_bytes()]);
    }

    /// Whether anything is queued, reserved or left to do.
    fn is_busy(&self) -> bool {
        if self.tubes.as_ref().is_some_and(|tubes| !tubes.is_empty()) {
            return true;
        }
        if self.connection == "database" {
            return self.table()["jobs"].as_array().unwrap().iter().any(|row| {
                let queue = text(&row["queue"]);
                !queue.starts_with("artisand:pushed:") && !queue.starts_with("artisand:guard:")
            });
        }
        // One look at all keys: work goes from queues to follow-ups and back.
        let is_work = |key: &String| {
            (key.contains("queues:") && !key.ends_with(":notify"))
                || (key.contains("artisand:") && !is_memory(key))
        };
        self.keys_of_work("*").iter().any(is_work)
    }

    /// Names of keys where the queues are.
    fn keys_of_work(&self, pattern: &str) -> Vec<String> {
        match &self.cluster {
            Some(cluster) => cluster.keys(pattern),
            None => self.keys(pattern),
        }
    }

    /// The table of jobs, and locks in the database.
    fn table(&self) -> Value {
        self.php().run(&["interop:jobs"])
    }

    /// Whether the worker has said that it lost the reservation of this job: a server that is slow may let it end.
    fn lost(&self, run: &Line) -> bool {
        let uuid = run.uuid.as_deref().unwrap_or_default();
        self.said
            .lines()
            .any(|line| line.contains("reservation of a") && line.contains(uuid))
    }

    /// Waits until all is done and stops the workers.
    fn finish(&mut self, workers: &mut [ManagedChild]) {
        // One look at two servers misses work that goes from the second to the first meanwhile.
        let is_done = || (0..3).all(|_| !self.is_busy());
        let done = poll(SOON, || is_done().then_some(()));
        if done.is_none() {
            let workers = workers.iter().map(ManagedChild::describe);
            let workers: Vec<_> = workers.collect();
            let state = match self.connection {
                "database" => self.table().to_string(),
                _ if self.cluster.is_some() => format!("{:?}", self.keys_of_work("*")),
                _ => self.redis.state(),
            };
            panic!("{}: no end; {state}\n{}", self.name, workers.join("\n"));
        }
        for worker in workers.iter_mut() {
            worker.signal(Signal::TERM);
        }
        for worker in workers.iter_mut() {
            // A worker that has just started may not catch signals yet.
            worker.wait_timeout(SOON);
            self.said += &worker.stderr();
        }
        let locks = self.keys_of_work("*laravel_unique_job*");
        assert_eq!(locks, [""; 0], "{}", self.name);
        if self.connection == "database" {
            assert_eq!(self.table()["locks"], json!([]), "{}", self.name);
        }
        assert!(!self.is_busy(), "{}: {}", self.name, self.redis.state());
    }

    /// Uuids in the store of failed jobs, each once.
    fn failed(&self) -> BTreeSet<String> {
        let uuids = self.failed_uuids();
        let each: BTreeSet<String> = uuids.iter().cloned().collect();
        assert_eq!(uuids.len(), each.len(), "{}: {uuids:?}", self.name);
        each
    }

    /// Runs by the name of the job; each job is one payload, and runs again only after a kill.
    fn runs(&self) -> BTreeMap<String, Vec<Line>> {
        let runs = self.lines_of_runs();
        let name = &self.name;
        for (id, runs) in &runs {
            for (first, second) in runs.iter().zip(&runs[1..]) {
                let pair = format!("{name}: {id} {first:?} {second:?}");
                assert_eq!(first.uuid, second.uuid, "a second payload: {pair}");
                assert!(first.attempts < second.attempts, "{pair}");
                assert!(
                    self.killed.contains(&first.pid),
                    "no worker was killed: {pair}"
                );
            }
        }
        runs
    }

    fn lines_of_runs(&self) -> BTreeMap<String, Vec<Line>> {
        let name = &self.name;
        let mut runs: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in journal::since(&self.redis, 0) {
            assert!(["run", "catch"].contains(&&*line.event), "{name}: {line:?}");
            if line.event == "run" {
                runs.entry(line.id.clone()).or_default().push(line);
            }
        }
        runs
    }
}

fn chains_go_on_after_kills(version: u8) {
    chains(version, &Vec::new());
}

/// Kills while there was work are more than this. On a slow machine `queue:work` has done most of it before the last
/// kills.
const FEW: usize = 2;

/// The number of chains: enough that there is work until the last kill.
fn chains_of_test() -> usize {
    kills().max(20)
}
const CLASSES: [&str; 5] = [
    "Journal",
    "EncryptedJournal",
    "UniqueJournal",
    "UniqueUntilJournal",
    "Journal",
];

fn chains(version: u8, settings: &Settings) {
    chains_of(Rampage::new(version, settings, 4));
}

fn chains_of(mut scene: Rampage) {
    let expected = go_on(&mut scene);
    let runs = scene.runs();
    let found: Vec<String> = runs.keys().cloned().collect();
    assert_eq!(found, expected, "{}", scene.name);
    // One step after the other.
    for chain in expected.chunks(CLASSES.len()) {
        for pair in chain.windows(2) {
            let (end, begin) = (runs[&pair[0]].last().unwrap(), &runs[&pair[1]][0]);
            assert!(end.at < begin.at, "{}: {end:?} {begin:?}", scene.name);
        }
    }
    let again = runs.values().filter(|runs| runs.len() > 1).count();
    assert!(again > 0, "{}: no kill hit a job", scene.name);
}

/// On a server that only deletes jobs: no step is lost, and a step is pushed twice only by a kill between the push and
/// the removal of its record.
fn chains_in_tubes_go_on_after_kills(version: u8) {
    chains_go_on_elsewhere(Rampage::in_tubes(version, 4));
}

#[cfg(feature = "sqs")]
fn chains_on_sqs_go_on_after_kills(version: u8) {
    chains_go_on_elsewhere(Rampage::on_sqs(version, 9));
}

fn chains_go_on_elsewhere(mut scene: Rampage) {
    let expected = go_on(&mut scene);
    let runs = scene.lines_of_runs();
    let found: Vec<String> = runs.keys().cloned().collect();
    assert_eq!(found, expected, "{}", scene.name);
    let is_excused = |run: &&Line| scene.killed.contains(&run.pid) || scene.lost(run);
    let (mut again, mut repeated) = (0, 0);
    for chain in expected.chunks(CLASSES.len()) {
        let (mut before, mut times) = (1, 1);
        for id in chain {
            let runs = &runs[id];
            // Each of two equal steps makes a payload of its own for the next one.
            let is_one_payload = runs.iter().all(|run| run.uuid == runs[0].uuid);
            assert!(is_one_payload || before > 1, "{}: {runs:?}", scene.name);
            before = runs.len();
            // A job runs again after a kill, and a second push is another job. Its number of attempts tells nothing: the
            // server may have given it to a worker that was killed before the job began.
            again += runs[1..].len();
            let ended = runs[..runs.len() - 1].iter();
            let pushes = 1 + ended.filter(|run| !is_excused(run)).count();
            // Each of two equal steps pushes the next one.
            repeated += pushes.saturating_sub(times);
            times = pushes;
        }
    }
    assert!(again > 0, "{}: no kill hit a job", scene.name);
    // A kill hits four jobs; at most one of them, on average, between its push and the removal of its record.
    let said = &scene.said;
    assert!(repeated <= kills(), "{}: {repeated}\n{said}", scene.name);
}

on_every_laravel!(chains_in_tubes_go_on_after_kills);

#[cfg(feature = "sqs")]
on_every_laravel!(chains_on_sqs_go_on_after_kills);

/// Lets chains go on while workers are killed; returns the names of all steps.
fn go_on(scene: &mut Rampage) -> Vec<String> {
    let (classes, queues) = (
        format!("--classes={}", CLASSES.join(",")),
        format!("--queues={}", QUEUES.join(",")),
    );
    for chain in 0..chains_of_test() {
        let id = format!("chain-{chain:02}");
        let scripts = ["sleep:0.04"; CLASSES.len()];
        let args = [&["interop:chain", &*id][..], &scripts, &[&classes, &queues]].concat();
        scene.php().text(&args);
    }
    let mut workers = [scene.worker(), scene.worker()];
    let mut php = scene.php_worker();
    let busy = scene.kill(&mut workers);
    assert!(busy > FEW, "{}: {busy} kills among work", scene.name);
    scene.finish(&mut workers);
    php.signal(Signal::TERM);
    php.succeeds_within(SOON);

    assert_eq!(scene.failed(), BTreeSet::new(), "{}", scene.name);

    let steps = 1..=CLASSES.len();
    let ids = (0..chains_of_test()).flat_map(|chain| {
        let step = move |step| format!("chain-{chain:02}-{step}");
        steps.clone().map(step)
    });
    ids.collect()
}

on_every_laravel!(chains_go_on_after_kills);

/// The settings of an app that has its queues and locks there, too.
fn with_queues(mut settings: Settings) -> Settings {
    settings.extend(["QUEUE_CONNECTION", "CACHE_STORE"].map(|name| (name, "database".into())));
    settings
}

fn in_a_database_chains_go_on_after_kills(version: u8, settings: Settings) {
    chains(version, &with_queues(settings));
}

on_laravel! { in_a_database_chains_go_on_after_kills:
    laravel_8_postgres(8, PostgresServer::start().env().to_vec())
    laravel_10_mariadb(10, MariaDbServer::start().env().to_vec())
    // Without its setting `transaction_mode`, which is new in Laravel 12, PHP's own worker gets lost in a busy file.
    laravel_13_sqlite(13, sqlite())
}

mod on_a_cluster {
    use super::{Rampage, batches_count, chains_of, sqlite};

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn chains_go_on_after_kills_laravel_13() {
        chains_of(Rampage::on_a_cluster(13, &Vec::new(), 4));
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn batches_count_after_kills_laravel_13() {
        batches_count(Rampage::on_a_cluster(13, &sqlite(), 4));
    }
}

fn in_a_database_batches_count_after_kills(version: u8, settings: Settings) {
    batches_count_after_kills(version, &with_queues(settings));
}

on_laravel! { in_a_database_batches_count_after_kills:
    laravel_8_mariadb(8, MariaDbServer::start().env().to_vec())
    laravel_10_postgres(10, PostgresServer::start().env().to_vec())
    laravel_13_sqlite(13, sqlite())
}

/// A batch that was dispatched.
struct Dispatched {
    id: String,
    uuids: Vec<String>,
    failing: BTreeSet<String>,
    has_progress: bool,
}

impl Rampage {
    /// Dispatches batches; in every second one some jobs fail.
    fn dispatch(&self, sleep: &str) -> Vec<Dispatched> {
        const JOBS: usize = 25;
        let batches = 2 + kills() / 10;
        let batch = |number: usize| {
            let fails = number % 2 == 1;
            // Whichever attempt reaches its end.
            let [ok, fail] =
                [sleep.to_owned(), format!("{sleep}+fail")].map(|entry| vec![entry; 20].join(","));
            let script = |job: usize| if fails && job % 8 == 3 { &*fail } else { &*ok };
            let scripts: Vec<&str> = (0..JOBS).map(script).collect();
            // Since Laravel 10.37 there are callbacks after each success.
            let has_progress = number < 2 && self.laravel.version > 8;
            let queue = format!("--queue={}", QUEUES[number % QUEUES.len()]);
            let flags = ["--allow-failures", "--then", "--catch", "--finally", &queue];
            let progress = has_progress.then_some("--progress");
            let args = [
                &["interop:batch"][..],
                &scripts,
                &flags,
                progress.as_slice(),
            ]
            .concat();
            let batch = self.php().run(&args);
            let uuids = batch["uuids"].as_array().unwrap().iter().map(text);
            let uuids: Vec<String> = uuids.map(str::to_owned).collect();
            let is_failing = |(_, script): &(&String, &&str)| script.ends_with("fail");
            let failing = uuids.iter().zip(&scripts).filter(is_failing);
            Dispatched {
                id: text(&batch["id"]).to_owned(),
                failing: failing.map(|(uuid, _)| uuid.clone()).collect(),
                uuids,
                has_progress,
            }
        };
        (0..batches).map(batch).collect()
    }

    /// Every job was run, every batch is counted, every callback was called once; on a server that only deletes jobs, a
    /// kill between the push of a callback and the removal of its record may push it again.
    fn check(&self, batches: &[Dispatched]) {
        let notes: Vec<Value> = (self.redis.list("interop:batch").iter())
            .map(|note| serde_json::from_slice(note).unwrap())
            .collect();
        let mut failing = BTreeSet::new();
        let mut uuids = BTreeSet::new();
        let mut again = 0;
        for batch in batches {
            let row = self
                .laravel
                .run(&["interop:batch-state", &batch.id])
                .remove(0);
            let of_batch = || notes.iter().filter(|note| note["id"] == *batch.id);
            let calls = |name: &str| of_batch().filter(|note| note["callback"] == name).count();
            let name = format!("{}: {row} {:?}", self.name, of_batch().collect::<Vec<_>>());
            let (total, failed) = (batch.uuids.len(), batch.failing.len());
            assert_eq!(
                json!([
                    row["total"],
                    row["pending"],
                    row["failed"],
                    row["cancelled_at"]
                ]),
                json!([total, failed, failed, null]),
                "{name}"
            );
            assert_eq!(row["finished_at"].is_number(), failed == 0, "{name}");
            // Without marks: they would be uuids that are no job's.
            let ids = row["failed_ids"].as_array().unwrap();
            let ids: BTreeSet<&str> = ids.iter().map(text).collect();
            assert_eq!(
                ids,
                batch.failing.iter().map(String::as_str).collect(),
                "{name}"
            );
            let (then, catch) = if failed == 0 { (1, 0) } else { (0, 1) };
            let (found, expected) = (["then", "catch", "finally"].map(calls), [then, catch, 1]);
            for (found, expected) in found.into_iter().zip(expected) {
                let is_again = self.tubes.is_some() && expected == 1 && found > 1;
                assert!(found == expected || is_again, "{name}");
                again += found.saturating_sub(expected);
            }
            if batch.has_progress {
                let least = total - failed;
                let called = calls("progress");
                // Laravel 10 and later call it after failures, too, where they are allowed.
                assert!(called >= least, "{name}");
                let more = called.saturating_sub(total);
                assert!(more == 0 || self.tubes.is_some(), "{name}");
                again += more;
            }
            failing.extend(batch.failing.iter().cloned());
            uuids.extend(batch.uuids.iter().cloned());
        }
        assert!(
            again <= kills() / 4,
            "{}: {again} callbacks again",
            self.name
        );
        assert_eq!(self.failed(), failing, "{}", self.name);
        let lines = journal::since(&self.redis, 0);
        let ran = lines.iter().filter(|line| line.event == "run");
        let ran: BTreeSet<String> = ran.filter_map(|line| line.uuid.clone()).collect();
        assert_eq!(ran, uuids, "{}", self.name);
    }

    /// Runs by the uuid of the job.
    fn check_runs(&self, is_killed: impl Fn(&Line) -> bool) {
        let mut runs: BTreeMap<String, Vec<Line>> = BTreeMap::new();
        for line in journal::since(&self.redis, 0) {
            if line.event == "run" {
                runs.entry(line.uuid.clone().unwrap())
                    .or_default()
                    .push(line);
            }
        }
        for runs in runs.values() {
            for pair in runs.windows(2) {
                let is_fair = pair[0].attempts < pair[1].attempts && is_killed(&pair[0]);
                assert!(is_fair, "{}: {pair:?}", self.name);
            }
        }
    }
}

fn batches_count_after_kills(version: u8, settings: &Settings) {
    batches_count(Rampage::new(version, settings, 4));
}

fn batches_count(mut scene: Rampage) {
    let batches = scene.dispatch("sleep:0.03");
    let mut workers = [scene.worker(), scene.worker()];
    let mut php = scene.php_worker();
    let busy = scene.kill(&mut workers);
    assert!(busy > FEW, "{}: {busy} kills among work", scene.name);
    scene.finish(&mut workers);
    php.signal(Signal::TERM);
    php.succeeds_within(SOON);
    scene.check(&batches);
    scene.check_runs(|line| scene.killed.contains(&line.pid));
}

mod elsewhere_batches_count_after_kills {
    use super::{Rampage, batches_count};

    #[cfg(feature = "sqs")]
    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_8_sqs() {
        batches_count(Rampage::on_sqs(8, 9));
    }

    #[test]
    #[ignore = "needs php and the Laravel roots (make test)"]
    fn laravel_13_beanstalkd() {
        batches_count(Rampage::in_tubes(13, 4));
    }
}

on_laravel! { batches_count_after_kills:
    laravel_8_mariadb(8, &MariaDbServer::start().env().to_vec())
    laravel_10_postgres(10, &PostgresServer::start().env().to_vec())
    laravel_13_sqlite(13, &sqlite())
}

pub(super) fn sqlite() -> Settings {
    let settings = [
        ("DB_CONNECTION", "sqlite"),
        ("DB_TRANSACTION_MODE", "IMMEDIATE"),
    ];
    settings
        .map(|(name, value)| (name, value.to_owned()))
        .to_vec()
}

fn workers_that_were_frozen_count_nothing_twice(version: u8, settings: &Settings) {
    let mut scene = Rampage::new(version, settings, 90);
    let batches = scene.dispatch("sleep:0.3");
    let mut workers = [scene.worker(), scene.worker()];
    let mut php = scene.php_worker();
    let mut busy = 0;
    for round in 0..20 {
        scene.nap(5..60);
        busy += usize::from(scene.is_busy());
        let worker = &mut workers[round % 2];
        worker.signal(Signal::STOP);
        scene.expire_lease();
        // In that time the other worker does the work of this one.
        scene.nap(200..700);
        workers[round % 2].signal(Signal::CONT);
    }
    assert!(busy > 5, "{}: {busy}", scene.name);
    scene.finish(&mut workers);
    php.signal(Signal::TERM);
    php.succeeds_within(SOON);
    scene.check(&batches);
    scene.check_runs(|_| false);
}

on_laravel! { workers_that_were_frozen_count_nothing_twice:
    laravel_8_mariadb(8, &MariaDbServer::start().env().to_vec())
    laravel_10_postgres(10, &PostgresServer::start().env().to_vec())
    laravel_13_sqlite(13, &sqlite())
}

/// PHP is away meanwhile: its work waits.
fn servers_that_come_and_go_lose_nothing<E: Engine>(version: u8, mut server: SqlServer<E>) {
    const OUTAGES: usize = 3;
    let mut scene = Rampage::new(version, &server.env().to_vec(), 5);
    let batches = scene.dispatch("sleep:0.1");
    let mut workers = [scene.worker(), scene.worker()];
    // A worker that cannot reach its server at its start ends.
    scene.redis.eventually("both work", SOON, || {
        let lines = journal::since(&scene.redis, 0);
        let at_work = |worker: &ManagedChild| lines.iter().any(|line| line.pid == worker.id());
        workers.iter().all(at_work).then_some(())
    });
    let mut random = scene.random.fork();
    for outage in 0..OUTAGES {
        for _ in 0..8 {
            scene.nap(20..150);
            scene.disconnect();
        }
        if outage % 2 == 0 {
            server.kill();
        } else {
            server.stop();
        }
        for _ in 0..3 {
            // Time is the subject: a connection is cut at any moment of the outage.
            std::thread::sleep(Duration::from_millis(random.u64(20..300)));
            scene.disconnect();
        }
        server.restart();
    }
    for worker in &mut workers {
        assert!(worker.is_running(), "{}: {}", scene.name, worker.describe());
    }
    let mut php = scene.php_worker();
    scene.finish(&mut workers);
    php.signal(Signal::TERM);
    php.succeeds_within(SOON);
    scene.check(&batches);
    scene.check_runs(|_| false);
}

impl Rampage {
    /// Cuts all connections to Redis, except those with which handlers write the journal.
    fn disconnect(&self) {
        let clients: String = self.redis.query(&[b"CLIENT", b"LIST", b"TYPE", b"normal"]);
        for client in clients.lines() {
            let field = |name: &str| client.split(' ').find_map(|field| field.strip_prefix(name));
            if field("name=") == Some("interop") || field("cmd=") == Some("client|list") {
                continue;
            }
            // It may be gone already.
            let id = field("id=").unwrap().as_bytes();
            self.redis.query::<i64>(&[b"CLIENT", b"KILL", b"ID", id]);
        }
    }
}

on_laravel! { servers_that_come_and_go_lose_nothing:
    laravel_8_mariadb(8, MariaDbServer::start())
    laravel_10_postgres(10, PostgresServer::start())
    laravel_13_mariadb(13, MariaDbServer::start())
}
