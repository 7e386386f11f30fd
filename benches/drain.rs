//! Compares artisand, a real `queue:work` and a bare pop-and-delete loop, which drain a queue of real payloads.
//!
//! `make bench`, or `cargo build --release --examples && cargo bench --bench drain [-- --jobs N] [--rounds N]
//! [--only TEXT]`, which measures the rows whose name holds the text, and not PHP.
//! Every round starts a private redis-server and fills it with payloads as Laravel 13 writes them. artisand is the
//! real binary, a process of its own; handlers in Rust are those of `examples/bench_worker.rs`, which count, so
//! that every job is known to have run exactly once. PHP appends each job's number to a list. Pools of PHP
//! processes without a mapping are compared with the same number of `queue:work` processes of the same Laravel,
//! including boot and end; `--jobs 0` measures only these. Raw rounds go to `bench-results/drain.jsonl`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints and may stop"
)]

use std::io::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use artisand::connection::{Redis, RedisOptions};
use artisand::queue::{Queue as _, QueueName, RedisQueue, RedisQueueOptions};

const PREFIX: &str = "laravel-database-";
/// Number of jobs for PHP: enough to measure it, few enough to wait for.
const PHP_JOBS: usize = 5_000;
/// The bare loop with batches of these sizes.
const BARE: [(&str, usize); 2] = [("bare loop of 64", 64), ("bare loop of 256", 256)];
/// Version of Laravel, and number of processes in the pool and of `queue:work`. All but the first need `make setup`.
const IN_PHP: [(&str, usize); 7] = [
    ("8", 1),
    ("8", 2),
    ("8", 4),
    ("10", 2),
    ("13", 1),
    ("13", 2),
    ("13", 4),
];

struct Server {
    child: Child,
    port: u16,
}

impl Server {
    fn start() -> Self {
        let port = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let child = Command::new("redis-server")
            .args([
                "--bind",
                "127.0.0.1",
                "--save",
                "",
                "--appendonly",
                "no",
                "--port",
            ])
            .arg(port.to_string())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server is installed (php-interop/setup.sh --host-only)");
        let server = Self { child, port };
        let deadline = Instant::now() + Duration::from_secs(10);
        while server.try_connection().is_none() {
            assert!(Instant::now() < deadline, "redis-server does not answer");
            std::thread::sleep(Duration::from_millis(20));
        }
        server
    }

    fn try_connection(&self) -> Option<redis::Connection> {
        let client = redis::Client::open(format!("redis://127.0.0.1:{}", self.port)).unwrap();
        let mut connection = client.get_connection().ok()?;
        redis::cmd("PING")
            .query::<String>(&mut connection)
            .ok()
            .map(|_| connection)
    }

    fn connection(&self) -> redis::Connection {
        self.try_connection().unwrap()
    }

    fn queue(&self) -> RedisQueue {
        let mut options = RedisOptions {
            prefix: PREFIX.into(),
            ..RedisOptions::default()
        };
        options
            .apply_url(&format!("redis://127.0.0.1:{}", self.port))
            .unwrap();
        RedisQueue::new(Redis::new(&options).unwrap(), RedisQueueOptions::default())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Payloads as Laravel 13 writes them for `App\Jobs\Counted`, with the number in the serialized command.
fn payloads(jobs: usize) -> Vec<Vec<u8>> {
    let uuid = |n: usize| format!("{n:08x}-0000-4000-8000-{n:012x}");
    let payload = |n: usize| {
        let padding = "x".repeat(130);
        let command = format!(
            "O:16:\\\"App\\\\Jobs\\\\Counted\\\":2:{{s:1:\\\"n\\\";i:{n};s:4:\\\"note\\\";s:130:\\\"{padding}\\\";}}"
        );
        format!(
            "{{\"uuid\":\"{}\",\"displayName\":\"App\\\\Jobs\\\\Counted\",\"job\":\"Illuminate\\\\Queue\\\\CallQueuedHandler@call\",\
             \"maxTries\":null,\"maxExceptions\":null,\"failOnTimeout\":false,\"backoff\":null,\"timeout\":null,\
             \"retryUntil\":null,\"deleteWhenMissingModels\":false,\"data\":{{\"commandName\":\"App\\\\Jobs\\\\Counted\",\
             \"command\":\"{command}\",\"batchId\":null}},\"createdAt\":1760000000,\"id\":\"{:032}\",\"attempts\":0,\"delay\":null}}",
            uuid(n),
            n
        )
        .into_bytes()
    };
    (0..jobs).map(payload).collect()
}

/// What one contender did in one round.
struct Round {
    name: String,
    jobs: usize,
    seconds: f64,
    commands_per_job: f64,
    /// Microseconds of processor time per job, of Redis and of artisand.
    micros: Option<(f64, f64)>,
}

impl Round {
    fn per_second(&self) -> f64 {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let jobs = self.jobs as f64;
        jobs / self.seconds
    }
}

fn calls(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("stats")
        .query(&mut server.connection())
        .unwrap();
    let line = info
        .lines()
        .find_map(|line| line.strip_prefix("total_commands_processed:"))
        .unwrap();
    line.trim().parse().unwrap()
}

/// Number of commands that clients sent; commands that scripts call are not round trips.
fn client_commands(server: &Server) -> u64 {
    let info: String = redis::cmd("INFO")
        .arg("commandstats")
        .query(&mut server.connection())
        .unwrap();
    let of = |name: &str| {
        let line = info
            .lines()
            .find(|line| line.starts_with(&format!("cmdstat_{name}:")))
            .unwrap_or_default();
        line.split("calls=")
            .nth(1)
            .and_then(|rest| rest.split(',').next())
            .map_or(0, |n| n.parse::<u64>().unwrap())
    };
    of("evalsha") + of("eval") + of("blpop")
}

async fn fill(queue: &RedisQueue, payloads: &[Vec<u8>]) {
    for chunk in payloads.chunks(1000) {
        queue
            .push(&QueueName::from("default"), chunk)
            .await
            .unwrap();
    }
}

/// Pushes jobs that became due long ago.
fn delay(server: &Server, payloads: &[Vec<u8>]) {
    let mut connection = server.connection();
    for chunk in payloads.chunks(1000) {
        let mut command = redis::cmd("ZADD");
        command.arg(format!("{PREFIX}queues:default:delayed"));
        for payload in chunk {
            command.arg(1_760_000_000).arg(payload);
        }
        let _: usize = command.query(&mut connection).unwrap();
    }
}

/// Jobs before the others that artisand does not run.
fn fill_with_others(count: usize) -> Vec<Vec<u8>> {
    let other = |payload| {
        let text = String::from_utf8(payload).unwrap();
        text.replace("Counted", "Another").into_bytes()
    };
    payloads(count).into_iter().map(other).collect()
}

/// A worker of the benchmark: the real binary, or the example with handlers of its own.
struct Contender {
    name: &'static str,
    handler: &'static str,
    concurrency: usize,
    threads: usize,
    /// Jobs in front that policy `leave` leaves in the queue.
    others: usize,
    /// Whether the jobs are delayed ones that are all due.
    delayed: bool,
    /// The share of the jobs that is enough to measure it: one in so many.
    share: usize,
}

#[rustfmt::skip]
const CONTENDERS: [Contender; 14] = [
    Contender { name: "no-op, 1 slot", handler: "discard", concurrency: 1, threads: 2, others: 0, delayed: false, share: 5 },
    Contender { name: "no-op, 16 slots", handler: "discard", concurrency: 16, threads: 2, others: 0, delayed: false, share: 1 },
    Contender { name: "no-op, 64 slots", handler: "discard", concurrency: 64, threads: 2, others: 0, delayed: false, share: 1 },
    Contender { name: "no-op, 64 slots, 1 thread", handler: "discard", concurrency: 64, threads: 1, others: 0, delayed: false, share: 1 },
    Contender { name: "no-op, 256 slots", handler: "discard", concurrency: 256, threads: 2, others: 0, delayed: false, share: 1 },
    Contender { name: "typed, 64 slots", handler: "typed", concurrency: 64, threads: 2, others: 0, delayed: false, share: 1 },
    Contender { name: "typed, 256 slots", handler: "typed", concurrency: 256, threads: 2, others: 0, delayed: false, share: 1 },
    Contender { name: "sleeps 1 ms, 64 slots", handler: "sleeps", concurrency: 64, threads: 2, others: 0, delayed: false, share: 2 },
    Contender { name: "computes 200 us, 1 thread", handler: "computes", concurrency: 64, threads: 1, others: 0, delayed: false, share: 10 },
    Contender { name: "computes 200 us, 2 threads", handler: "computes", concurrency: 64, threads: 2, others: 0, delayed: false, share: 10 },
    Contender { name: "no-op, 64 slots, 1 left", handler: "discard", concurrency: 64, threads: 2, others: 1, delayed: false, share: 1 },
    Contender { name: "no-op, 64 slots, 400 left", handler: "discard", concurrency: 64, threads: 2, others: 400, delayed: false, share: 1 },
    Contender { name: "no-op, 64 slots, delayed", handler: "discard", concurrency: 64, threads: 2, others: 0, delayed: true, share: 1 },
    Contender { name: "no-op, 256 slots, delayed", handler: "discard", concurrency: 256, threads: 2, others: 0, delayed: true, share: 1 },
];

/// Seconds of processor time: of a server, and of all children of this process that have ended.
fn processor_seconds(server: &Server) -> (f64, f64) {
    let info: String = redis::cmd("INFO")
        .arg("cpu")
        .query(&mut server.connection())
        .unwrap();
    let of = |name: &str| -> f64 {
        let line = info.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().parse().unwrap()
    };
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    // Fields 16 and 17 of proc(5), in hundredths of a second; the third one is the first here.
    let ticks = |field: usize| fields[field - 3].parse::<f64>().unwrap() / 100.0;
    (
        of("used_cpu_user:") + of("used_cpu_sys:"),
        ticks(16) + ticks(17),
    )
}

async fn drained_by(contender: &Contender, jobs: usize) -> Round {
    let server = Server::start();
    let queue = server.queue();
    fill(&queue, &fill_with_others(contender.others)).await;
    if contender.delayed {
        delay(&server, &payloads(jobs));
    } else {
        fill(&queue, &payloads(jobs)).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let toml = format!(
        "[connections.redis]\nhost = \"127.0.0.1\"\nport = {}\nprefix = \"{PREFIX}\"\n\
         [[map]]\njob = 'App\\Jobs\\Counted'\nhandler = \"{}\"\n",
        server.port, contender.handler
    );
    std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
    let counts = directory.path().join("counts");
    let program = if contender.handler == "discard" {
        env!("CARGO_BIN_EXE_artisand").into()
    } else {
        std::path::Path::new(env!("CARGO_BIN_EXE_artisand")).with_file_name("examples/bench_worker")
    };
    let (before, used) = (client_commands(&server), processor_seconds(&server));
    let began = Instant::now();
    let status = Command::new(program)
        .args([
            "queue:work",
            "redis",
            "--stop-when-empty",
            "-q",
            "--memory=0",
        ])
        .arg(format!("--concurrency={}", contender.concurrency))
        .arg(format!("--threads={}", contender.threads))
        .env("BENCH_COUNTS", &counts)
        .current_dir(directory.path())
        .status();
    let seconds = began.elapsed().as_secs_f64();
    assert!(
        status.is_ok_and(|status| status.success()),
        "build the examples with --release"
    );
    if contender.handler != "discard" {
        let counted = std::fs::read_to_string(counts).unwrap();
        assert_eq!(counted, format!("{jobs} 0"), "a job was lost or run twice");
    }
    let (redis, own) = processor_seconds(&server);
    let sizes = queue.sizes(&QueueName::from("default")).await.unwrap();
    let left = (sizes.pending, sizes.reserved);
    assert_eq!(
        left,
        (contender.others as u64, 0),
        "what no handler runs stays"
    );
    let per_job = |count: f64| {
        #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
        let jobs = jobs as f64;
        count / jobs
    };
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let commands = (client_commands(&server) - before) as f64;
    Round {
        name: contender.name.to_owned(),
        jobs,
        seconds,
        commands_per_job: per_job(commands),
        micros: Some((per_job(redis - used.0) * 1e6, per_job(own - used.1) * 1e6)),
    }
}

/// The minimum for any worker: pops a batch with a script and deletes it with one command.
async fn bare_loop(name: &str, batch: usize, jobs: usize) -> Round {
    let server = Server::start();
    let queue = server.queue();
    fill(&queue, &payloads(jobs)).await;
    let script = redis::Script::new(
        "local jobs = redis.call('LRANGE', KEYS[1], 0, ARGV[2] - 1)
         if #jobs == 0 then return jobs end
         for i, job in ipairs(jobs) do
           jobs[i] = string.gsub(job, '\"attempts\":0', '\"attempts\":1', 1)
           redis.call('ZADD', KEYS[2], ARGV[1], jobs[i])
         end
         redis.call('LTRIM', KEYS[1], #jobs, -1)
         return jobs",
    );
    let client = redis::Client::open(format!("redis://127.0.0.1:{}", server.port)).unwrap();
    let mut connection = client.get_multiplexed_async_connection().await.unwrap();
    let (list, reserved) = (
        format!("{PREFIX}queues:default"),
        format!("{PREFIX}queues:default:reserved"),
    );
    let (mut done, mut commands) = (0, 0_u32);
    let began = Instant::now();
    loop {
        let popped: Vec<Vec<u8>> = script
            .key(&list)
            .key(&reserved)
            .arg(1_760_000_090)
            .arg(batch)
            .invoke_async(&mut connection)
            .await
            .unwrap();
        if popped.is_empty() {
            break;
        }
        done += popped.len();
        commands += 2;
        let removed: usize = redis::cmd("ZREM")
            .arg(&reserved)
            .arg(&popped)
            .query_async(&mut connection)
            .await
            .unwrap();
        assert_eq!(removed, popped.len());
    }
    let seconds = began.elapsed().as_secs_f64();
    assert_eq!(done, jobs);
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let commands_per_job = f64::from(commands) / jobs as f64;
    Round {
        name: name.to_owned(),
        jobs,
        seconds,
        commands_per_job,
        micros: None,
    }
}

/// The payloads without properties that the class of Laravel 8 does not have, because it would refuse them.
fn payloads_for_php(jobs: usize) -> Vec<Vec<u8>> {
    let note = format!("s:4:\\\"note\\\";s:130:\\\"{}\\\";", "x".repeat(130));
    let plain = |payload| {
        let text = String::from_utf8(payload).unwrap();
        text.replace("\\\":2:{", "\\\":1:{")
            .replace(&note, "")
            .into_bytes()
    };
    payloads(jobs).into_iter().map(plain).collect()
}

/// Lets programs drain a queue whose jobs PHP runs, and checks that each ran once.
async fn in_php(
    name: String,
    jobs: usize,
    server: &Server,
    commands: Vec<Command>,
) -> Option<Round> {
    let queue = server.queue();
    fill(&queue, &payloads_for_php(jobs)).await;
    let before = calls(server);
    let began = Instant::now();
    let start = |mut command: Command| {
        command
            .env("REDIS_PORT", server.port.to_string())
            .env("REDIS_PREFIX", PREFIX)
            .env("INTEROP_KEY", "bench")
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        command.spawn().ok()
    };
    let children: Vec<Child> = commands.into_iter().map(start).collect::<Option<_>>()?;
    let ended_well = |mut child: Child| child.wait().is_ok_and(|status| status.success());
    let all_ended_well = children
        .into_iter()
        .map(ended_well)
        // Wait for all, even after one that failed.
        .filter(|ended_well| !ended_well)
        .count()
        == 0;
    let seconds = began.elapsed().as_secs_f64();
    let done: Vec<String> = redis::cmd("LRANGE")
        .arg("interop:done")
        .arg(0)
        .arg(-1)
        .query(&mut server.connection())
        .unwrap();
    let different: std::collections::HashSet<&String> = done.iter().collect();
    if !all_ended_well || done.len() != jobs || different.len() != jobs {
        println!("{name} ran {} of {jobs} jobs: no reference", done.len());
        return None;
    }
    #[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
    let commands_per_job = (calls(server) - before) as f64 / jobs as f64;
    Some(Round {
        name,
        jobs,
        seconds,
        commands_per_job,
        micros: None,
    })
}

const LARAVEL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/php-interop/laravel");

/// Real `php artisan queue:work`.
async fn queue_work(name: String, version: &str, jobs: usize, processes: usize) -> Option<Round> {
    let command = || {
        let mut command = Command::new(LARAVEL);
        command.arg(version);
        command.args("artisan queue:work redis --stop-when-empty --sleep=0".split(' '));
        command
    };
    let server = Server::start();
    let commands = (0..processes).map(|_| command()).collect();
    in_php(name, jobs, &server, commands).await
}

/// artisand without a mapping, and this number of PHP processes of the same Laravel.
async fn pool(name: String, version: &str, jobs: usize, processes: usize) -> Option<Round> {
    let server = Server::start();
    let directory = std::env::temp_dir().join(format!("artisand-bench-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    let toml = format!(
        "[connections.redis]\nhost = \"127.0.0.1\"\nport = {}\nprefix = \"{PREFIX}\"\n\
         [unmapped]\npolicy = \"php\"\n\
         [php]\nbinary = [\"{LARAVEL}\", \"{version}\"]\napp = \".\"\nprocesses = {processes}\nmax_jobs = 0\n",
        server.port
    );
    std::fs::write(directory.join("artisand.toml"), toml).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_artisand"));
    command
        .args(["queue:work", "redis", "--stop-when-empty"])
        .current_dir(&directory);
    let round = in_php(name, jobs, &server, vec![command]).await;
    std::fs::remove_dir_all(&directory).unwrap();
    round
}

/// The median.
fn middle(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied()
}

fn median(rounds: &[Round], name: &str) -> Option<(f64, f64)> {
    let mut rates: Vec<f64> = rounds
        .iter()
        .filter(|round| round.name == name)
        .map(Round::per_second)
        .collect();
    rates.sort_by(f64::total_cmp);
    let commands = rounds
        .iter()
        .find(|round| round.name == name)?
        .commands_per_job;
    Some((*rates.get(rates.len() / 2)?, commands))
}

fn argument(name: &str) -> Option<String> {
    std::env::args().skip_while(|arg| arg != name).nth(1)
}

fn number(name: &str, default: usize) -> usize {
    argument(name).map_or(default, |value| value.parse().expect("a number"))
}

fn main() {
    let (jobs, rounds) = (number("--jobs", 100_000), number("--rounds", 5));
    let only = argument("--only");
    let is_wanted = |name: &str| only.as_deref().is_none_or(|only| name.contains(only));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let mut all: Vec<Round> = Vec::new();
    let rounds_here = if jobs == 0 { 0 } else { rounds };
    for _ in 0..rounds_here {
        for contender in CONTENDERS.iter().filter(|row| is_wanted(row.name)) {
            all.push(runtime.block_on(drained_by(contender, jobs / contender.share)));
        }
        for (name, batch) in BARE.into_iter().filter(|row| is_wanted(row.0)) {
            all.push(runtime.block_on(bare_loop(name, batch, jobs)));
        }
    }
    let in_php = if only.is_some() { &[][..] } else { &IN_PHP };
    if only.is_none() {
        all.extend(runtime.block_on(queue_work("queue:work".to_owned(), "8", PHP_JOBS, 1)));
    }
    for &(version, processes) in in_php {
        let [pools, works] = names_in_php(version, processes);
        for _ in 0..rounds {
            all.extend(runtime.block_on(pool(pools.clone(), version, PHP_JOBS, processes)));
            all.extend(runtime.block_on(queue_work(works.clone(), version, PHP_JOBS, processes)));
        }
    }
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/bench-results");
    std::fs::create_dir_all(directory).unwrap();
    let mut raw = std::fs::File::create(format!("{directory}/drain.jsonl")).unwrap();
    for round in &all {
        let line = serde_json::json!({
            "name": round.name, "jobs": round.jobs, "seconds": round.seconds, "commands_per_job": round.commands_per_job,
            "redis_and_own_micros": round.micros,
        });
        writeln!(raw, "{line}").unwrap();
    }
    if jobs > 0 {
        println!("\n{jobs} jobs, medians of {rounds} rounds; every job ran exactly once");
        println!(
            "\n| | jobs/s | least and most | of the bare loop | Redis us/job | artisand us/job | commands/job |"
        );
        println!("| --- | --- | --- | --- | --- | --- | --- |");
    }
    let names = CONTENDERS.iter().map(|contender| contender.name);
    for name in names
        .chain(BARE.map(|(name, _)| name))
        .chain(["queue:work"])
    {
        let mine: Vec<&Round> = all.iter().filter(|round| round.name == name).collect();
        let Some(rate) = middle(mine.iter().map(|round| round.per_second())) else {
            continue;
        };
        let bare = if name.contains("256") {
            BARE[1].0
        } else {
            BARE[0].0
        };
        let bare = middle(
            all.iter()
                .filter(|round| round.name == bare)
                .map(Round::per_second),
        );
        let rates = mine.iter().map(|round| round.per_second());
        let (least, most) = rates.fold((f64::MAX, 0.0_f64), |(a, b), rate| {
            (a.min(rate), b.max(rate))
        });
        let micros = |of: fn((f64, f64)) -> f64| {
            let all = mine.iter().filter_map(|round| round.micros.map(of));
            middle(all).map_or_else(String::new, |micros| format!("{micros:.1}"))
        };
        println!(
            "| {name} | {rate:.0} | {least:.0} to {most:.0} | {} | {} | {} | {:.3} |",
            bare.map_or_else(String::new, |bare| format!("{:.2}", rate / bare)),
            micros(|both| both.0),
            micros(|both| both.1),
            mine[0].commands_per_job,
        );
    }
    let line = |name: &str, reference: Option<f64>| {
        let (rate, commands) = median(&all, name)?;
        let ratio =
            reference.map_or_else(String::new, |reference| format!("{:.2}", reference / rate));
        println!("  {name:<34} {rate:>10.0} {commands:>22.3} {ratio:>10}");
        Some(rate)
    };
    if in_php.is_empty() {
        return;
    }
    println!("\n{PHP_JOBS} jobs with nothing mapped, medians of {rounds} rounds");
    for &(version, processes) in in_php {
        let [pools, works] = names_in_php(version, processes);
        let rate = line(&pools, None);
        line(&works, rate);
    }
}

/// Names of a pool and of the same number of `queue:work` processes.
fn names_in_php(version: &str, processes: usize) -> [String; 2] {
    [
        format!("pool of {processes}, Laravel {version}"),
        format!("{processes} queue:work, Laravel {version}"),
    ]
}
