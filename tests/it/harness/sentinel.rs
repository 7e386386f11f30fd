//! A master, a replica and sentinels that watch them.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use redis::{Client, Connection, RedisResult};

use super::process::{eventually, poll};
use super::redis::RedisServer;

/// The name by which the sentinels know the master.
pub(crate) const SERVICE: &str = "mymaster";
/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(60);

/// How long a server may be silent, for sentinels that are to replace none on their own.
const PATIENT: Duration = Duration::from_secs(60);

/// A master, a replica and sentinels that watch them.
pub(crate) struct Watched {
    pub(crate) servers: [RedisServer; 2],
    pub(crate) sentinels: Vec<RedisServer>,
}

/// Replication that begins at once.
const REPLICATION: [&str; 8] = [
    "--save",
    "",
    "--repl-diskless-sync-delay",
    "0",
    "--repl-ping-replica-period",
    "1",
    "--repl-timeout",
    "10",
];

/// The port of the server that this sentinel names.
fn named_by(sentinel: &RedisServer) -> RedisResult<u16> {
    let client = Client::open(sentinel.url())?;
    let mut connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
    let mut command = redis::cmd("SENTINEL");
    command.arg("get-master-addr-by-name").arg(SERVICE);
    let (_, port): (String, u16) = command.query(&mut connection)?;
    Ok(port)
}

impl Watched {
    /// Starts them, with this many sentinels. For a minute of silence they call no server down, because one that the
    /// machine keeps waiting is not to count as down.
    pub(crate) fn start(sentinels: usize) -> Self {
        let silence = PATIENT.as_millis();
        let master = RedisServer::start_with(&REPLICATION);
        let port = master.port().to_string();
        let of_master = ["--replicaof", "127.0.0.1", &port];
        let replica = RedisServer::start_with(&[&REPLICATION[..], &of_master].concat());
        eventually("the replica follows", LONG, || {
            let info: String = replica.query(&[b"INFO", b"replication"]);
            info.contains("master_link_status:up").then_some(())
        });
        let config = format!(
            "sentinel monitor {SERVICE} 127.0.0.1 {port} 1\n\
             sentinel down-after-milliseconds {SERVICE} {silence}\n\
             sentinel failover-timeout {SERVICE} 3000\n"
        );
        let start = |_| RedisServer::start_configured(&["--sentinel"], &config);
        let watched = Self {
            servers: [master, replica],
            sentinels: (0..sentinels).map(start).collect(),
        };
        for sentinel in &watched.sentinels {
            // By default they look at a replica every ten seconds, and tell an old master after eight that it is none.
            // That takes four times the second period, within which all have to hear of the new master; and what they
            // know of the new master must not be older than two times the first.
            let periods: [&[u8]; 6] = [
                b"SENTINEL",
                b"DEBUG",
                b"info-period",
                b"500",
                b"publish-period",
                b"500",
            ];
            sentinel.query::<()>(&periods);
            eventually("a sentinel knows the others", LONG, || {
                let others: Vec<redis::Value> =
                    sentinel.query(&[b"SENTINEL", b"sentinels", SERVICE.as_bytes()]);
                let replicas: Vec<redis::Value> =
                    sentinel.query(&[b"SENTINEL", b"replicas", SERVICE.as_bytes()]);
                (others.len() + 1 == sentinels && replicas.len() == 1).then_some(())
            });
        }
        watched
    }

    /// From now on, each sentinel that lives calls a server down that is silent for a second. This is only for a
    /// failover that a test wants: a server that gets no processor for a second is replaced, too.
    pub(crate) fn be_strict(&self) {
        self.call_down_after(Duration::from_secs(1));
    }

    /// As at the start.
    pub(crate) fn be_patient(&self) {
        self.call_down_after(PATIENT);
    }

    fn call_down_after(&self, silence: Duration) {
        for sentinel in self.living() {
            let silence = silence.as_millis().to_string();
            let set: [&[u8]; 5] = [
                b"SENTINEL",
                b"SET",
                SERVICE.as_bytes(),
                b"down-after-milliseconds",
                silence.as_bytes(),
            ];
            sentinel.query::<()>(&set);
        }
    }

    /// `[redis]` of `artisand.toml`.
    pub(crate) fn settings(&self) -> String {
        let mut list = String::new();
        for sentinel in &self.sentinels {
            write!(list, "'127.0.0.1:{}', ", sentinel.port()).unwrap();
        }
        format!("[redis]\nsentinels = [{list}]\nservice = '{SERVICE}'\n")
    }

    /// The sentinels that the test has not killed.
    fn living(&self) -> impl Iterator<Item = &RedisServer> {
        self.sentinels
            .iter()
            .filter(|sentinel| sentinel.is_running())
    }

    /// The port of the server that a living sentinel names.
    pub(crate) fn named(&self) -> u16 {
        let found = poll(LONG, || self.living().find_map(|s| named_by(s).ok()));
        found.expect("a sentinel answers")
    }

    /// Waits until no sentinel finds anything wrong with the master, and all name the same: until then, one may begin a
    /// second failover.
    pub(crate) fn eventually_settled(&self) {
        eventually("the failover is over", LONG, || {
            let named = self.named();
            let is_settled = |sentinel: &RedisServer| {
                let info: String = sentinel.query(&[b"INFO", b"sentinel"]);
                info.contains("status=ok") && named_by(sentinel).is_ok_and(|port| port == named)
            };
            self.living().all(is_settled).then_some(())
        });
    }

    /// Position of the server that the sentinels name.
    pub(crate) fn master(&self) -> usize {
        let port = self.named();
        let found = self.servers.iter().position(|server| server.port() == port);
        found.expect("the sentinels name one of the two servers")
    }

    /// A connection to the server that the sentinels name, for queries of the test itself.
    pub(crate) fn connection(&self) -> RedisResult<Connection> {
        let client = Client::open(format!("redis://127.0.0.1:{}", self.named()))?;
        let connection = client.get_connection_with_timeout(Duration::from_secs(1))?;
        connection.set_read_timeout(Some(Duration::from_secs(2)))?;
        Ok(connection)
    }

    /// Orders a failover, and waits until the sentinels name the other server.
    pub(crate) fn fail_over(&self) {
        let before = self.named();
        let mut ordered: Option<Instant> = None;
        // A sentinel that got no processor for two seconds does nothing for half a minute.
        eventually("the sentinels name another master", 3 * LONG, || {
            // A sentinel may not know yet that the replica is fit, or may give up a failover that it has begun.
            if ordered.is_none_or(|moment| moment.elapsed() > Duration::from_secs(4)) {
                let client = Client::open(self.sentinels[0].url()).unwrap();
                let mut command = redis::cmd("SENTINEL");
                command.arg("FAILOVER").arg(SERVICE);
                let is_taken = command.exec(&mut client.get_connection().unwrap());
                ordered = is_taken.ok().map(|()| Instant::now());
            }
            (self.named() != before).then_some(())
        });
    }

    /// Waits until a server follows the other one.
    pub(crate) fn eventually_follows(&self, position: usize) {
        // A sentinel that got no processor for two seconds does nothing for half a minute.
        let is_one = || {
            // A sentinel that tells it cuts its connections.
            let client = Client::open(self.servers[position].url()).unwrap();
            let mut connection = client.get_connection().ok()?;
            let mut command = redis::cmd("INFO");
            let info: String = command.arg("replication").query(&mut connection).ok()?;
            let is_one = info.contains("role:slave") && info.contains("master_link_status:up");
            is_one.then_some(())
        };
        if poll(3 * LONG, is_one).is_none() {
            let logs: Vec<_> = self.sentinels.iter().map(RedisServer::log).collect();
            panic!(
                "an old master, port {}, does not become a replica; the sentinels say: {}",
                self.servers[position].port(),
                logs.concat()
            );
        }
    }
}
