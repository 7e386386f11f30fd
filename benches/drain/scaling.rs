//! Several workers of artisand on one Redis, or on a cluster of three masters.

use std::path::Path;
use std::process::{Child, Command};
use std::time::Instant;

use artisand::queue::{Queue as _, QueueName, RedisQueue};
use serde_json::{Value, json};

use crate::harness::cluster::Cluster;
use crate::payload;
use crate::report::Round;
use crate::server::{PREFIX, Server};
use crate::worker::{manifest, own};

/// Numbers of workers.
pub(crate) const PROCESSES: [usize; 4] = [1, 2, 4, 8];

/// Workers of one kind.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// A handler of `examples/bench_worker.rs`.
    handler: &'static str,
    /// Slots of each worker.
    slots: usize,
    has_cluster: bool,
}

pub(crate) const CONTENDERS: [Contender; 3] = [
    Contender {
        name: "typed, 64 slots",
        handler: "typed",
        slots: 64,
        has_cluster: false,
    },
    Contender {
        name: "sleeps 1 ms, 16 slots",
        handler: "sleeps",
        slots: 16,
        has_cluster: false,
    },
    Contender {
        name: "sleeps 1 ms, 16 slots, cluster",
        handler: "sleeps",
        slots: 16,
        has_cluster: true,
    },
];

pub(crate) fn name(contender: &Contender, processes: usize) -> String {
    format!("{}, {processes} of them", contender.name)
}

/// The servers that hold the queues.
enum Servers {
    One(Server),
    Cluster(Cluster),
}

impl Servers {
    fn queue(&self) -> RedisQueue {
        match self {
            Self::One(server) => server.queue(),
            Self::Cluster(cluster) => cluster.queue(PREFIX),
        }
    }

    /// Names of the queues. Those of a cluster are in different slots, and on all of its masters.
    fn queues(&self) -> Vec<String> {
        match self {
            Self::One(_) => vec!["default".to_owned()],
            Self::Cluster(_) => (0..8).map(|number| format!("{{q{number}}}")).collect(),
        }
    }

    fn connections(&self) -> Value {
        match self {
            Self::One(server) => json!({
                "options": {"prefix": PREFIX},
                "default": {"host": "127.0.0.1", "port": server.port},
            }),
            Self::Cluster(cluster) => {
                let nodes = cluster.seeds();
                let nodes = nodes.split(',').map(|node| {
                    let (host, port) = node.split_once(':').unwrap();
                    json!({"host": host, "port": port})
                });
                json!({
                    "client": "phpredis",
                    "options": {"prefix": PREFIX},
                    "clusters": {"default": nodes.collect::<Vec<_>>()},
                })
            }
        }
    }

    /// Calls of scripts, and seconds of processor time, of all servers.
    fn used(&self) -> (u64, f64) {
        match self {
            Self::One(server) => (server.client_commands(), server.processor_seconds()),
            Self::Cluster(cluster) => (0..3).fold((0, 0.0), |(calls, seconds), node| {
                let info: String = cluster.node(node).query(&[b"INFO", b"all"]);
                (
                    calls + crate::server::calls(&info),
                    seconds + crate::server::seconds(&info),
                )
            }),
        }
    }
}

impl Contender {
    /// Drains the queues with this number of workers.
    pub(crate) async fn run(&self, processes: usize, jobs: usize) -> Round {
        let servers = if self.has_cluster {
            Servers::Cluster(Cluster::start())
        } else {
            Servers::One(Server::start())
        };
        let (queue, names) = (servers.queue(), servers.queues());
        for (place, chunk) in payload::of_size(jobs, 710).chunks(1000).enumerate() {
            let name = QueueName::from(names[place % names.len()].as_str());
            queue.push(&name, chunk).await.unwrap();
        }
        let directory = tempfile::tempdir().unwrap();
        let connections = servers.connections();
        std::fs::write(
            directory.path().join("artisand.json"),
            manifest(&connections, false, directory.path()),
        )
        .unwrap();
        let toml = format!(
            "app = '.'\nsettings = 'manifest'\nmanifest = 'artisand.json'\n\
             [[map]]\njob = 'App\\Jobs\\Counted'\nhandler = '{}'\n",
            self.handler
        );
        std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
        let (before, own_before) = (servers.used(), own());
        let began = Instant::now();
        let workers: Vec<Child> = (0..processes)
            .map(|number| self.start(number, processes, &names, directory.path()))
            .collect();
        for mut worker in workers {
            assert!(worker.wait().unwrap().success(), "{} failed", self.name);
        }
        let seconds = began.elapsed().as_secs_f64();
        let (after, own) = (servers.used(), own() - own_before);
        self.each_ran_once(processes, jobs, directory.path());
        for name in &names {
            let sizes = queue.sizes(&QueueName::from(name.as_str())).await.unwrap();
            assert_eq!((sizes.pending, sizes.reserved), (0, 0), "{}", self.name);
        }
        let per_job = |count: f64| count / crate::float(jobs);
        Round {
            name: name(self, processes),
            jobs,
            seconds,
            commands_per_job: per_job(crate::float(usize::try_from(after.0 - before.0).unwrap())),
            micros: Some((per_job((after.1 - before.1) * 1e6), per_job(own * 1e6))),
            longest_script: None,
            memory: None,
        }
    }

    /// Starts one of the workers. On a cluster each has its share of the queues.
    fn start(&self, number: usize, of: usize, names: &[String], directory: &Path) -> Child {
        let own = names.iter().skip(if names.len() > 1 { number } else { 0 });
        let own: Vec<&str> = own.step_by(of).map(String::as_str).collect();
        let binary = Path::new(env!("CARGO_BIN_EXE_artisand"));
        Command::new(binary.with_file_name("examples/bench_worker"))
            .args("queue:work redis --stop-when-empty -q --memory=0".split(' '))
            .arg(format!("--concurrency={}", self.slots))
            .arg(format!("--queue={}", own.join(",")))
            .env("BENCH_COUNTS", directory.join(format!("counts-{number}")))
            .current_dir(directory)
            .spawn()
            .expect("build the examples with --release")
    }

    fn each_ran_once(&self, processes: usize, jobs: usize, directory: &Path) {
        let ran = (0..processes).map(|number| {
            let counts = directory.join(format!("counts-{number}"));
            let counts = std::fs::read_to_string(counts).unwrap();
            let once = counts.strip_suffix(" 0").expect("no job ran twice");
            once.parse::<usize>().unwrap()
        });
        assert_eq!(ran.sum::<usize>(), jobs, "{}", self.name);
    }
}
