//! Hours of steady load on artisand beside `queue:work`: each job runs once, and nothing grows.
//!
//! `make soak MINUTES=120` runs it with a release build, and writes charts and samples. A short form runs with the
//! suite.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use artisand::connection::{Redis, RedisOptions};
use artisand::queue::{Queue as _, QueueName, RedisQueue, RedisQueueOptions};
use rustix::process::Signal;

use crate::harness::process::{Workplace, children, eventually};
use crate::harness::redis::RedisServer;
use crate::harness::scene::{Scene, in_scene};

/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(300);

/// If more jobs than this wait, the test pushes none in this second.
const BACKLOG: usize = 20_000;

/// One in twenty of the jobs in Rust goes to artisand's pool.
const MAPPINGS: &str = r#"
[http]
listen = "127.0.0.1:0"

[[map]]
job = 'App\Jobs\Counted'
handler = "counted"
canary = 95

[[map]]
job = '/^App\\Jobs\\(Unique|Encrypted|Batch)Journal$/'
handler = "journal"
"#;

struct Soak {
    scene: Scene,
    runtime: tokio::runtime::Runtime,
    queue: RedisQueue,
    /// A payload of the job number 123456789.
    template: String,
    /// How often each number ran.
    ran: Vec<u8>,
    pushed: usize,
    waves: usize,
}

in_scene!(Soak);

impl Soak {
    fn new() -> Self {
        let settings = [("QUEUE_FAILED_DRIVER", "database-uuids")];
        let scene = Scene::on(RedisServer::start(), 13, &settings, |laravel| {
            Workplace::with_manifest_and_pool(
                laravel,
                &laravel.manifest_with_classes(),
                2,
                MAPPINGS,
            )
        });
        // The first look makes the tables.
        scene.failed();
        scene
            .php()
            .text(&["interop:flood", "1", "--from=123456789"]);
        let template = scene.redis.list(&scene.queue("default")).remove(0);
        scene.redis.query::<()>(&[b"FLUSHALL"]);
        let mut redis = RedisOptions {
            prefix: scene.laravel.prefix.clone(),
            ..RedisOptions::default()
        };
        redis.apply_url(&scene.redis.url()).unwrap();
        Self {
            runtime: tokio::runtime::Runtime::new().unwrap(),
            queue: RedisQueue::new(Redis::new(&redis).unwrap(), RedisQueueOptions::default()),
            template: String::from_utf8(template).unwrap(),
            ran: Vec::new(),
            pushed: 0,
            waves: 0,
            scene,
        }
    }

    /// Pushes jobs as Laravel does.
    fn push(&mut self, queue: &str, jobs: usize) {
        let fields: serde_json::Value = serde_json::from_str(&self.template).unwrap();
        let uuid = fields["uuid"].as_str().unwrap();
        let payload = |number: usize| {
            let own = format!("{number:08x}{}", &uuid[8..]);
            let payload = self.template.replace(uuid, &own);
            payload
                .replace("123456789", &number.to_string())
                .into_bytes()
        };
        let payloads: Vec<_> = (self.pushed..self.pushed + jobs).map(payload).collect();
        let queue = QueueName::from(queue);
        let pushing = self.queue.push(&queue, &payloads);
        self.runtime.block_on(pushing).unwrap();
        self.pushed += jobs;
        self.ran.resize(self.pushed, 0);
    }

    /// Dispatches a chain, a batch, a delayed job, and one that succeeds at its second attempt.
    fn push_others(&mut self) {
        self.waves += 1;
        let id = format!("wave{}", self.waves);
        let classes = "--classes=Journal,UniqueJournal,EncryptedJournal";
        let steps = ["note:end"; 3];
        let php = self.scene.php();
        php.text(
            &[
                &["interop:chain", &id][..],
                &steps,
                &[classes, "--without-catch"],
            ]
            .concat(),
        );
        php.run(&["interop:batch", "ok", "ok", "ok", "--queue=rust", "--then"]);
        php.run(&["interop:journal", &format!("{id}-late"), "--delay=5"]);
        let script = "--script=throw,note:end";
        php.run(&["interop:journal", &format!("{id}-again"), script]);
    }

    /// Notes which jobs have run.
    fn collect(&mut self) {
        loop {
            let done: Vec<usize> = self.redis.query(&[b"LPOP", b"interop:done", b"100000"]);
            if done.is_empty() {
                break;
            }
            for number in done {
                self.ran[number] = self.ran[number].saturating_add(1);
            }
        }
        // What the other jobs write is not looked at.
        self.redis
            .query::<()>(&[b"DEL", b"interop:journal", b"interop:batch"]);
    }

    fn waiting(&self) -> usize {
        let queues = ["rust", "default"].map(|name| self.redis.jobs(&self.queue(name)));
        queues.iter().sum()
    }

    /// What may grow, by name.
    fn sample(&self, artisand: u32, php: u32) -> Sample {
        let kilobytes = |pid: u32, name: &str| {
            let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            let text = line
                .unwrap_or_default()
                .trim_start_matches(':')
                .trim()
                .to_owned();
            text.trim_end_matches(" kB").parse().unwrap_or(0.0)
        };
        let count = |path: String| float(std::fs::read_dir(path).map_or(0, Iterator::count));
        let info: String = self.redis.query(&[b"INFO"]);
        let of_redis = |name: &str| -> f64 {
            let line = info.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default()
                .trim_start_matches(':')
                .trim()
                .parse()
                .unwrap_or(0.0)
        };
        let keys = self.keys("*");
        let notified = keys.iter().filter(|key| key.ends_with(":notify"));
        let notified: usize = notified.map(|key| self.redis.length(key)).sum();
        let members = children(artisand);
        BTreeMap::from([
            (
                "artisand: anonymous memory, MB",
                kilobytes(artisand, "RssAnon") / 1024.0,
            ),
            (
                "artisand: resident memory, MB",
                kilobytes(artisand, "VmRSS") / 1024.0,
            ),
            (
                "artisand: open files",
                count(format!("/proc/{artisand}/fd")),
            ),
            ("artisand: threads", kilobytes(artisand, "Threads")),
            ("pool: processes", float(members.len())),
            (
                "pool: anonymous memory, MB",
                members
                    .iter()
                    .map(|pid| kilobytes(*pid, "RssAnon"))
                    .sum::<f64>()
                    / 1024.0,
            ),
            (
                "queue:work: anonymous memory, MB",
                kilobytes(php, "RssAnon") / 1024.0,
            ),
            (
                "Redis: memory, MB",
                of_redis("used_memory") / f64::from(1 << 20),
            ),
            ("Redis: connections", of_redis("connected_clients")),
            ("Redis: keys", float(keys.len())),
            ("notify lists: elements", float(notified)),
            ("waiting jobs", float(self.waiting())),
        ])
    }
}

type Sample = BTreeMap<&'static str, f64>;

/// What may not grow, and by how much it may differ anyway.
const FLAT: [(&str, f64); 7] = [
    ("artisand: anonymous memory, MB", 1.0),
    ("artisand: open files", 2.0),
    ("artisand: threads", 0.0),
    ("Redis: memory, MB", 2.0),
    ("Redis: connections", 2.0),
    ("Redis: keys", 20.0),
    ("notify lists: elements", 100.0),
];

fn median(samples: &[Sample], name: &str) -> f64 {
    let mut values: Vec<f64> = samples.iter().map(|sample| sample[name]).collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// A line for each name, as SVG that is readable on light and dark pages.
fn chart(samples: &[Sample], minutes: f64) -> String {
    const WIDTH: f64 = 420.0;
    const ROW: f64 = 48.0;
    let names: Vec<_> = samples[0].keys().collect();
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"860\" height=\"{}\" font-family=\"sans-serif\" \
         font-size=\"12\" fill=\"#888\">\n<title>{minutes:.0} minutes of steady load</title>\n",
        ROW * (float(names.len()) + 0.5)
    );
    for (row, name) in names.into_iter().enumerate() {
        let values = samples.iter().map(|sample| sample[name]);
        let (least, most) = values
            .clone()
            .fold((f64::MAX, f64::MIN), |(least, most), value| {
                (least.min(value), most.max(value))
            });
        let bottom = ROW * (float(row) + 1.0);
        // From 0, so that a line that looks flat is flat.
        let scale = (ROW - 12.0) / most.max(1.0);
        let step = WIDTH / float(samples.len().max(2) - 1);
        let points = values.enumerate().map(|(at, value)| {
            format!(
                "{:.1},{:.1}",
                240.0 + step * float(at),
                bottom - scale * value
            )
        });
        let points: Vec<_> = points.collect();
        writeln!(
            svg,
            "<text x=\"230\" y=\"{y}\" text-anchor=\"end\">{name}</text>\
             <polyline points=\"{}\" fill=\"none\" stroke=\"#c0562f\"/>\
             <text x=\"670\" y=\"{y}\">{least:.1} to {most:.1}</text>",
            points.join(" "),
            y = bottom - 4.0,
        )
        .unwrap();
    }
    svg + "</svg>\n"
}

fn float(number: usize) -> f64 {
    f64::from(u32::try_from(number).expect("a small number"))
}

fn setting<T: std::str::FromStr>(name: &str) -> Option<T> {
    std::env::var(name).ok()?.parse().ok()
}

/// Writes the samples and their chart.
fn write(directory: &Path, samples: &[Sample], minutes: f64) {
    let names: Vec<_> = samples[0].keys().copied().collect();
    let mut table = format!("\"{}\"\n", names.join("\",\""));
    for sample in samples {
        let values: Vec<_> = sample.values().map(|value| format!("{value:.2}")).collect();
        writeln!(table, "{}", values.join(",")).unwrap();
    }
    std::fs::write(directory.join("soak.csv"), table).unwrap();
    std::fs::write(directory.join("soak.svg"), chart(samples, minutes)).unwrap();
}

#[test]
#[ignore = "needs php and the Laravel roots (make test)"]
fn nothing_grows_under_steady_load() {
    let minutes: f64 = setting("SOAK_MINUTES").unwrap_or(0.3);
    let (in_rust, in_php) = (
        setting("SOAK_RUST").unwrap_or(500),
        setting("SOAK_PHP").unwrap_or(50),
    );
    let between = Duration::from_secs_f64((minutes / 12.0).clamp(1.0, 10.0));
    let mut soak = Soak::new();
    let mut artisand = soak.worker(&["--queue=rust", "--concurrency=64", "-q"]);
    let mut php = soak.php_worker(&["--queue=default", "--sleep=0.5", "--quiet"]);
    let start = Instant::now();
    let length = Duration::from_secs_f64(minutes * 60.0);
    let (mut samples, mut next_sample, mut next_wave) = (Vec::new(), between, Duration::ZERO);
    let mut left_out = 0_u32;
    for second in 1_u32.. {
        let now = start.elapsed();
        if now > length {
            break;
        }
        if now >= next_sample {
            samples.push(soak.sample(artisand.id(), php.id()));
            next_sample = now + between;
        }
        if soak.waiting() > BACKLOG {
            left_out += 1;
        } else {
            soak.push("rust", in_rust);
            soak.push("default", in_php);
        }
        if now >= next_wave {
            soak.push_others();
            next_wave = now + Duration::from_secs(30);
        }
        soak.collect();
        for worker in [&mut artisand, &mut php] {
            assert!(worker.is_running(), "{}", worker.describe());
        }
        // Time itself is the subject: the load is a fixed number of jobs per second.
        let due = Duration::from_secs(1) * second;
        std::thread::sleep(due.saturating_sub(start.elapsed()));
    }
    eventually("all jobs are done", LONG, || {
        soak.collect();
        (soak.waiting() == 0).then_some(())
    });
    soak.collect();
    let wrong = soak
        .ran
        .iter()
        .enumerate()
        .filter(|(_, times)| **times != 1);
    let wrong: Vec<_> = wrong.take(20).collect();
    assert!(wrong.is_empty(), "number, and how often it ran: {wrong:?}");
    // In a short form all is in motion.
    if minutes >= 5.0 {
        if let Some(directory) = setting::<PathBuf>("SOAK_OUT") {
            write(&directory, &samples, minutes);
        }
        report(&soak, &samples, left_out);
        // What is loaded and learned at first is not growth.
        let quarter = samples.len() / 4;
        let (early, late) = (
            &samples[quarter..quarter * 2],
            &samples[samples.len() - quarter..],
        );
        for (name, slack) in FLAT {
            let (early, late) = (median(early, name), median(late, name));
            assert!(
                late <= early * 1.05 + slack,
                "{name} has grown from {early} to {late}"
            );
        }
    }
    for worker in [&mut artisand, &mut php] {
        worker.signal(Signal::TERM);
        worker.succeeds_within(LONG);
    }
}

#[expect(
    clippy::print_stdout,
    reason = "who runs it for hours wants the figures"
)]
fn report(soak: &Soak, samples: &[Sample], left_out: u32) {
    println!(
        "{} jobs, each once; {} waves of other jobs; {left_out} seconds left out",
        soak.pushed, soak.waves
    );
    let quarter = samples.len() / 4;
    for name in samples[0].keys() {
        let (early, late) = (
            &samples[quarter..quarter * 2],
            &samples[samples.len() - quarter..],
        );
        println!(
            "{name}: {:.1}, then {:.1}",
            median(early, name),
            median(late, name)
        );
    }
}
