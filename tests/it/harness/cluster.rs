//! A private Redis Cluster: masters that share all slots, and a replica of each if that is wanted.

use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use artisand::connection::{Address, Redis, RedisAddress, RedisOptions};
use artisand::queue::{QueueName, RedisQueue, RedisQueueOptions};

use super::process::{eventually, poll};
use super::redis::{FREE_PORT, RedisServer};

/// A running cluster. The first three nodes are its masters in the beginning.
pub(crate) struct Cluster {
    nodes: Vec<RedisServer>,
    buses: Vec<u16>,
}

/// Number of masters, between which the slots are shared.
const MASTERS: u16 = 3;
const SLOTS: u16 = 16_384;
/// How long the nodes may take to agree.
const AGREE: Duration = Duration::from_secs(60);
/// After how long a silence a node counts as dead: the machine keeps none waiting for as long as that.
const PATIENCE: Duration = Duration::from_secs(10);

impl Cluster {
    /// Three masters.
    pub(crate) fn start() -> Self {
        Self::of(usize::from(MASTERS), &[])
    }

    /// Three masters that speak TLS with each other, by these options. Clients may do without.
    pub(crate) fn secured(options: &[String]) -> Self {
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let more = [&options[..], &["--tls-cluster", "yes"]].concat();
        Self::of(usize::from(MASTERS), &more)
    }

    /// Three masters, each with a replica that takes over when it is told to, or when its master is killed.
    pub(crate) fn with_replicas() -> Self {
        let cluster = Self::of(2 * usize::from(MASTERS), &[]);
        let masters: Vec<String> = (0..3).map(|node| cluster.id(node)).collect();
        for (replica, master) in (3..).zip(&masters) {
            let node = &cluster.nodes[replica];
            node.query::<()>(&[b"CLUSTER", b"REPLICATE", master.as_bytes()]);
        }
        for master in 0..3 {
            // The replica says so earlier, but gets no writes before that.
            eventually("a replica is in step", AGREE, || {
                let info: String = cluster.nodes[master].query(&[b"INFO", b"replication"]);
                info.contains("state=online").then_some(())
            });
        }
        // A master that has not heard of its replica takes no notice of its order to step back.
        eventually("all nodes know the replicas", AGREE, || {
            let nodes = cluster.query_all(&[b"CLUSTER", b"NODES"]);
            let count = |nodes: &String| nodes.matches("slave").count();
            nodes.iter().all(|nodes| count(nodes) == 3).then_some(())
        });
        cluster
    }

    /// The cluster that all tests of this process share which break nothing; it ends with the process.
    pub(crate) fn shared() -> &'static Self {
        static SHARED: OnceLock<(Cluster, Child)> = OnceLock::new();
        let (cluster, _) = SHARED.get_or_init(|| {
            let cluster = Self::start();
            let nodes = cluster.nodes.iter();
            let words = nodes.map(|node| format!("{} {}", node.pid(), node.directory().display()));
            // Its standard input ends when this process does, however it ends.
            let guard = Command::new("sh")
                .args([
                    "-c",
                    "cat; for word; do kill -9 ${word%% *}; rm -rf \"${word#* }\"; done",
                    "sh",
                ])
                .args(words)
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn();
            (cluster, guard.unwrap())
        });
        cluster
    }

    fn of(nodes: usize, more: &[&str]) -> Self {
        let timeout = PATIENCE.as_millis().to_string();
        let (mut servers, mut buses) = (Vec::new(), Vec::new());
        for _ in 0..nodes {
            let options = [
                "--save",
                "",
                "--appendonly",
                "no",
                "--cluster-enabled",
                "yes",
                "--cluster-config-file",
                "nodes.conf",
                "--cluster-node-timeout",
                &timeout,
                "--cluster-port",
                FREE_PORT,
                "--repl-diskless-sync-delay",
                "0",
            ];
            let server = RedisServer::start_with(&[&options[..], more].concat());
            let (_, bus): (String, u16) = server.query(&[b"CONFIG", b"GET", b"cluster-port"]);
            servers.push(server);
            buses.push(bus);
        }
        let cluster = Self {
            nodes: servers,
            buses,
        };
        cluster.join();
        cluster
    }

    fn join(&self) {
        for (number, node) in (0..).zip(&self.nodes) {
            let epoch = (number + 1).to_string();
            node.query::<()>(&[b"CLUSTER", b"SET-CONFIG-EPOCH", epoch.as_bytes()]);
            if number < MASTERS {
                let first = SLOTS / MASTERS * number;
                let is_last = number + 1 == MASTERS;
                let last = if is_last {
                    SLOTS
                } else {
                    first + SLOTS / MASTERS
                } - 1;
                let [first, last] = [first, last].map(|slot| slot.to_string());
                node.query::<()>(&[
                    b"CLUSTER",
                    b"ADDSLOTSRANGE",
                    first.as_bytes(),
                    last.as_bytes(),
                ]);
            }
        }
        // A node that is slow to answer is forgotten, and has to be named again.
        eventually("all nodes know each other", AGREE, || {
            self.meet();
            let is_done = || self.nodes.iter().all(|node| self.is_up(node)).then_some(());
            poll(Duration::from_secs(3), is_done)
        });
    }

    /// Tells the first node of all others.
    fn meet(&self) {
        for (node, bus) in self.nodes.iter().zip(&self.buses).skip(1) {
            let port = node.tls_port().unwrap_or_else(|| node.port());
            let [port, bus] = [port, *bus].map(|port| port.to_string());
            let meet: [&[u8]; 5] = [
                b"CLUSTER",
                b"MEET",
                b"127.0.0.1",
                port.as_bytes(),
                bus.as_bytes(),
            ];
            self.nodes[0].query::<()>(&meet);
        }
    }

    /// Whether a node knows all others, and who serves each slot.
    fn is_up(&self, node: &RedisServer) -> bool {
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let info: String = node.query(&[b"CLUSTER", b"INFO"]);
        info.contains("cluster_state:ok") && info.contains(&known)
    }

    /// A node.
    pub(crate) fn node(&self, number: usize) -> &RedisServer {
        &self.nodes[number]
    }

    /// Kills the node that serves a key in the beginning, and waits until its replica serves the key.
    ///
    /// Only meanwhile a node counts as dead after a second of silence: the machine may keep one waiting for as long.
    pub(crate) fn replace_first_master_of(&mut self, key: &str) {
        let victim = self.first_master_of(key);
        self.set_timeout(Duration::from_secs(1));
        self.nodes[victim].kill();
        self.query::<i64>(&[b"EXISTS", key.as_bytes()]);
        self.set_timeout(PATIENCE);
    }

    /// Sets after how long a silence a node counts as dead, on all nodes that live.
    fn set_timeout(&self, timeout: Duration) {
        let timeout = timeout.as_millis().to_string();
        let set: [&[u8]; 4] = [
            b"CONFIG",
            b"SET",
            b"cluster-node-timeout",
            timeout.as_bytes(),
        ];
        for node in self.nodes.iter().filter(|node| node.is_running()) {
            node.query::<()>(&set);
        }
    }

    /// How the nodes call this one.
    pub(crate) fn id(&self, node: usize) -> String {
        self.nodes[node].query(&[b"CLUSTER", b"MYID"])
    }

    /// The slot of a key.
    pub(crate) fn slot(&self, key: &str) -> u16 {
        let lives = |node: &&RedisServer| node.is_running();
        let node = self.nodes.iter().find(lives).expect("a node lives");
        node.query(&[b"CLUSTER", b"KEYSLOT", key.as_bytes()])
    }

    /// The number of the node that serves a slot in the beginning.
    pub(crate) fn first_master_of(&self, key: &str) -> usize {
        usize::from(self.slot(key) / (SLOTS / MASTERS)).min(usize::from(MASTERS) - 1)
    }

    /// How a client reaches the cluster: by two of its nodes.
    pub(crate) fn options(&self, prefix: &str) -> RedisOptions {
        let seeds = self.nodes[..2].iter();
        RedisOptions {
            address: RedisAddress::Cluster {
                seeds: seeds
                    .map(|node| Address::new("127.0.0.1", node.port()))
                    .collect(),
                tls: false,
            },
            prefix: prefix.into(),
            ..RedisOptions::default()
        }
    }

    /// A prefix of keys that no other test has.
    pub(crate) fn own_prefix() -> String {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        format!("t{}_", NUMBER.fetch_add(1, Ordering::Relaxed))
    }

    pub(crate) fn redis(&self, prefix: &str) -> Redis {
        Redis::new(&self.options(prefix)).unwrap()
    }

    /// The queues under this prefix, with the lists of queue `q` as their ledger.
    pub(crate) fn queue(&self, prefix: &str) -> RedisQueue {
        let options = RedisQueueOptions {
            retry_after: Some(Duration::from_secs(90)),
            ..RedisQueueOptions::default()
        };
        RedisQueue::new(self.redis(prefix), options).at_home(QueueName::from("q"))
    }

    /// The nodes that clients are told, as `host:port` with commas.
    pub(crate) fn seeds(&self) -> String {
        let seeds = self.nodes[..2].iter();
        let seeds: Vec<_> = seeds
            .map(|node| format!("127.0.0.1:{}", node.port()))
            .collect();
        seeds.join(",")
    }

    /// Names of the keys of all masters that live.
    pub(crate) fn keys(&self, pattern: &str) -> Vec<String> {
        let mut all = Vec::new();
        for node in &self.nodes {
            let Some(mut connection) = node.try_connection() else {
                continue;
            };
            let role: redis::Value = redis::cmd("ROLE").query(&mut connection).unwrap();
            if format!("{role:?}").contains("master") {
                let mut keys = redis::cmd("KEYS");
                let keys: Vec<String> = keys.arg(pattern).query(&mut connection).unwrap();
                all.extend(keys);
            }
        }
        all
    }

    /// What each node replies to a command, as text.
    pub(crate) fn query_all(&self, command: &[&[u8]]) -> Vec<String> {
        let reply = |node: &RedisServer| format!("{:?}", node.query::<redis::Value>(command));
        self.nodes.iter().map(reply).collect()
    }

    /// How each node that lives sees the others.
    pub(crate) fn roles(&self) -> Vec<String> {
        let see = |node: &RedisServer| {
            let mut connection = node.try_connection()?;
            let nodes = redis::cmd("CLUSTER").arg("NODES").query(&mut connection);
            nodes.ok()
        };
        self.nodes.iter().filter_map(see).collect()
    }

    /// How often nodes have answered with this error.
    pub(crate) fn errors(&self, code: &str) -> u64 {
        let field = format!("errorstat_{code}:count=");
        let of_node = |node: &RedisServer| {
            let mut connection = node.try_connection()?;
            let info: String = redis::cmd("INFO")
                .arg("errorstats")
                .query(&mut connection)
                .ok()?;
            let count = info.lines().find_map(|line| line.strip_prefix(&field))?;
            count.trim().parse::<u64>().ok()
        };
        self.nodes.iter().filter_map(of_node).sum()
    }

    /// Moves the slot of a key to another node, key by key, with `pause` between them.
    pub(crate) fn move_slot(&self, key: &str, from: usize, to: usize, pause: Duration) {
        let slot = self.slot(key).to_string();
        let slot = slot.as_bytes();
        let ids = [from, to].map(|node| self.id(node));
        let [source, target] = [&self.nodes[from], &self.nodes[to]];
        let set = |node: &RedisServer, state: &[u8], id: &str| {
            node.query::<()>(&[b"CLUSTER", b"SETSLOT", slot, state, id.as_bytes()]);
        };
        set(target, b"IMPORTING", &ids[0]);
        set(source, b"MIGRATING", &ids[1]);
        let port = target.port().to_string();
        loop {
            let keys: Vec<String> = source.query(&[b"CLUSTER", b"GETKEYSINSLOT", slot, b"1"]);
            let Some(key) = keys.first() else {
                break;
            };
            source.query::<()>(&[
                b"MIGRATE",
                b"127.0.0.1",
                port.as_bytes(),
                key.as_bytes(),
                b"0",
                b"5000",
            ]);
            // Time is the subject: a slot is half moved for a while.
            std::thread::sleep(pause);
        }
        // News of an earlier move that is still under way may undo this one.
        eventually("all nodes know that the slot has moved", AGREE, || {
            for node in [target, source].into_iter().chain(&self.nodes) {
                set(node, b"NODE", &ids[1]);
            }
            // Time is the subject: news of the earlier move arrives meanwhile, if there is some.
            std::thread::sleep(Duration::from_millis(20));
            let is_told = |node: &RedisServer| {
                let asked = redis::cmd("EXISTS").arg(key).query(&mut node.connection());
                match asked {
                    Ok(0 | 1) => node.port() == target.port(),
                    Ok(_) => false,
                    Err(error) => error
                        .redirect_node()
                        .is_some_and(|(to, _)| to.ends_with(&format!(":{port}"))),
                }
            };
            self.nodes.iter().all(is_told).then_some(())
        });
    }

    /// Runs a command on the node that serves its key now; while none does, it waits for a replica to take over.
    pub(crate) fn query<T: redis::FromRedisValue>(&self, command: &[&[u8]]) -> T {
        let key = std::str::from_utf8(command[1]).unwrap();
        let mut node = &self.nodes[self.first_master_of(key)];
        let mut cmd = redis::Cmd::new();
        cmd.arg(command);
        eventually(&format!("a node serves {key}"), AGREE, || {
            let connection = node.try_connection();
            let asked = connection.map(|mut connection| cmd.query::<T>(&mut connection));
            node = match asked {
                Some(Ok(reply)) => return Some(reply),
                Some(Err(error)) if error.code() != Some("CLUSTERDOWN") => {
                    let (to, _) = error.redirect_node().unwrap_or_else(|| panic!("{error}"));
                    let port: u16 = to.rsplit_once(':').unwrap().1.parse().unwrap();
                    let is_it = |node: &&RedisServer| node.port() == port;
                    self.nodes.iter().find(is_it).unwrap()
                }
                // It is dead, or knows of none that serves the key: another may know.
                _ => &self.nodes[fastrand::usize(..self.nodes.len())],
            };
            None
        })
    }
}
