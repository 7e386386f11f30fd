//! A private `redis-server`: free port, temporary directory, stopped and deleted on drop.

use std::ffi::OsString;
use std::fs::File;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use redis::{Client, Connection};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use super::process::{eventually, poll, terminate};

/// A running server. No test ever talks to a server that another program started.
pub(crate) struct RedisServer {
    child: Option<Child>,
    port: u16,
    directory: TempDir,
    options: Vec<String>,
    /// Whether it reads, and writes, the file `server.conf` of its directory.
    has_config: bool,
    /// The program, with its first arguments.
    program: Vec<OsString>,
}

/// Stands in options for a port that no program has.
pub(crate) const FREE_PORT: &str = "(a free port)";

/// A port on which nothing listens, and which no other call of this process returns soon.
///
/// The system itself gives programs that ask for any free port a higher one. So no other program takes this port before
/// the server of this test listens on it.
pub(crate) fn free_port() -> u16 {
    const FIRST: u32 = 10_000;
    const PORTS: u32 = 22_000;
    static NEXT: AtomicU32 = AtomicU32::new(0);
    // Test programs that run side by side begin at different places.
    let start = std::process::id().wrapping_mul(1009);
    loop {
        let offset = start.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)) % PORTS;
        let port = u16::try_from(FIRST + offset).unwrap();
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return port;
        }
    }
}

/// How long a server may take to answer.
const START: Duration = Duration::from_secs(60);

/// Whether a key of artisand's own only remembers something for a while: errors of jobs that were tried again, closures
/// that PHP has begun, pushes that a lost connection may repeat, heartbeats, names of queues.
pub(crate) fn is_memory(key: &str) -> bool {
    [
        "artisand:last-error:",
        "artisand:called:",
        "artisand:ended:",
        "artisand:pushed:",
        "artisand:queues",
        "artisand:worker",
    ]
    .iter()
    .any(|own| key.contains(own))
}

impl RedisServer {
    /// Starts a server without persistence.
    pub(crate) fn start() -> Self {
        Self::start_with(&["--save", "", "--appendonly", "no"])
    }

    /// Starts a server that writes to disk before it answers.
    pub(crate) fn start_durable() -> Self {
        Self::start_durable_with(&[])
    }

    /// The same, with more options.
    pub(crate) fn start_durable_with(more: &[&str]) -> Self {
        let durable = [
            "--save",
            "",
            "--appendonly",
            "yes",
            "--appendfsync",
            "always",
        ];
        Self::start_with(&[&durable, more].concat())
    }

    /// Starts a server with these options, in addition to address and directory.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        Self::launched(options, None, vec!["redis-server".into()])
    }

    /// Starts a server with these options and a file of settings, which it may change.
    pub(crate) fn start_configured(options: &[&str], config: &str) -> Self {
        Self::launched(options, Some(config), vec!["redis-server".into()])
    }

    /// Starts a server of Valkey without persistence.
    pub(crate) fn start_valkey() -> Self {
        let roots = std::env::var_os("ARTISAND_ROOTS");
        let roots = roots.unwrap_or_else(|| "/var/lib/artisand/roots".into());
        let root = Path::new(&roots).join("valkey");
        let libraries = root.join("usr/lib/x86_64-linux-gnu");
        let program = vec![
            libraries.join("ld-linux-x86-64.so.2").into(),
            "--library-path".into(),
            libraries.into(),
            root.join("usr/bin/valkey-server").into(),
        ];
        Self::launched(&["--save", ""], None, program)
    }

    fn launched(options: &[&str], config: Option<&str>, program: Vec<OsString>) -> Self {
        let mut server = Self {
            child: None,
            port: 0,
            directory: tempfile::Builder::new()
                .prefix("artisand-redis-")
                .tempdir()
                .unwrap(),
            options: Vec::new(),
            has_config: config.is_some(),
            program,
        };
        if let Some(config) = config {
            std::fs::write(server.directory.path().join("server.conf"), config).unwrap();
        }
        // Another program may take the port between this check and the server's start.
        for _ in 0..5 {
            server.port = free_port();
            let option = |option: &&str| match *option {
                FREE_PORT => free_port().to_string(),
                option => option.to_owned(),
            };
            server.options = options.iter().map(option).collect();
            if server.launch() {
                return server;
            }
        }
        panic!("no redis-server came up: {}", server.log());
    }

    /// Starts the process; true once it answers, false if it ended or another server has the port.
    fn launch(&mut self) -> bool {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.directory.path().join("log"))
            .unwrap();
        let config = self.directory.path().join("server.conf");
        let (program, first) = self.program.split_first().unwrap();
        let child = Command::new(program)
            .args(first)
            .args(self.has_config.then_some(config))
            .args(["--bind", "127.0.0.1", "--port"])
            .arg(self.port.to_string())
            .arg("--dir")
            .arg(self.directory.path())
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(log.try_clone().unwrap())
            .stderr(log)
            .spawn()
            .unwrap_or_else(|e| panic!("{}: {e}", self.program.last().unwrap().display()));
        let pid = child.id();
        self.child = Some(child);
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            if let Some(answering) = self.answering_pid() {
                if answering == pid {
                    return true;
                }
                self.kill();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("redis-server did not answer in {START:?}: {}", self.log());
    }

    /// Process id of the server that answers on this port and is ready to serve.
    fn answering_pid(&self) -> Option<u32> {
        let client = Client::open(self.url()).unwrap();
        let mut connection = client
            .get_connection_with_timeout(Duration::from_secs(1))
            .ok()?;
        redis::cmd("PING").exec(&mut connection).ok()?;
        let info: String = redis::cmd("INFO")
            .arg("server")
            .query(&mut connection)
            .ok()?;
        info.lines()
            .find_map(|line| line.strip_prefix("process_id:")?.trim().parse().ok())
    }

    /// Stops the server as an administrator would: it first writes the data that it has to keep.
    pub(crate) fn stop(&mut self) {
        if let Some(child) = &mut self.child {
            terminate(child);
            eventually("redis-server ends", START, || child.try_wait().unwrap());
            self.child = None;
        }
    }

    /// Starts the server again on the same port, with its saved data.
    pub(crate) fn restart(&mut self) {
        self.stop();
        assert!(
            self.launch(),
            "redis-server did not come back: {}",
            self.log()
        );
    }

    /// Stops it without ending it, or lets it go on.
    pub(crate) fn signal(&self, signal: Signal) {
        let child = self.child.as_ref().expect("it runs");
        kill_process(Pid::from_child(child), signal).unwrap();
    }

    /// Kills the server, which cannot save anything.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Process id of the server.
    pub(crate) fn pid(&self) -> u32 {
        self.child.as_ref().unwrap().id()
    }

    /// The server's own files.
    pub(crate) fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// Whether the test has not stopped or killed it.
    pub(crate) fn is_running(&self) -> bool {
        self.child.is_some()
    }

    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap_or_default()
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// The port for TLS, if it was started with one.
    pub(crate) fn tls_port(&self) -> Option<u16> {
        let mut options = self.options.iter();
        options.find(|option| *option == "--tls-port")?;
        options.next()?.parse().ok()
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}/0", self.port)
    }

    /// A connection for queries of the test itself.
    pub(crate) fn connection(&self) -> Connection {
        Client::open(self.url()).unwrap().get_connection().unwrap()
    }

    /// The same, if the server is there.
    pub(crate) fn try_connection(&self) -> Option<Connection> {
        Client::open(self.url()).unwrap().get_connection().ok()
    }

    /// Runs one command.
    pub(crate) fn query<T: redis::FromRedisValue>(&self, command: &[&[u8]]) -> T {
        let (name, args) = command.split_first().unwrap();
        let mut cmd = redis::cmd(std::str::from_utf8(name).unwrap());
        for arg in args {
            cmd.arg(*arg);
        }
        cmd.query(&mut self.connection()).unwrap_or_else(|e| {
            let text = command.concat();
            panic!("{}: {e}", String::from_utf8_lossy(&text))
        })
    }

    /// All elements of a list.
    pub(crate) fn list(&self, key: &str) -> Vec<Vec<u8>> {
        self.query(&[b"LRANGE", key.as_bytes(), b"0", b"-1"])
    }

    /// All members of a sorted set with their scores.
    pub(crate) fn scores(&self, key: &str) -> Vec<(Vec<u8>, f64)> {
        self.query(&[b"ZRANGE", key.as_bytes(), b"0", b"-1", b"WITHSCORES"])
    }

    /// All jobs of a queue, counted in one step, because they move between its lists.
    pub(crate) fn jobs(&self, queue_key: &str) -> usize {
        let script = "return redis.call('llen', KEYS[1]) + redis.call('zcard', KEYS[1] .. ':delayed') \
                      + redis.call('zcard', KEYS[1] .. ':reserved')";
        self.query(&[b"EVAL", script.as_bytes(), b"1", queue_key.as_bytes()])
    }

    /// Number of elements of a list.
    pub(crate) fn length(&self, key: &str) -> usize {
        self.query(&[b"LLEN", key.as_bytes()])
    }

    /// Waits until the keys show a state; on a timeout, the panic shows their contents.
    pub(crate) fn eventually<T>(
        &self,
        what: &str,
        timeout: Duration,
        look: impl FnMut() -> Option<T>,
    ) -> T {
        poll(timeout, look)
            .unwrap_or_else(|| panic!("waited {timeout:?} in vain: {what}; {}", self.state()))
    }

    /// Every key with its size, for the message of a test that timed out.
    pub(crate) fn state(&self) -> String {
        let mut keys: Vec<String> = self.query(&[b"KEYS", b"*"]);
        keys.sort();
        let size = |key: &String| {
            let kind: String = self.query(&[b"TYPE", key.as_bytes()]);
            let command: &[u8] = match &*kind {
                "list" => b"LLEN",
                "zset" => b"ZCARD",
                "string" => b"STRLEN",
                _ => return format!("{key} ({kind})"),
            };
            let size: u64 = self.query(&[command, key.as_bytes()]);
            format!("{key} ({kind} of {size})")
        };
        format!(
            "keys: [{}]",
            keys.iter().map(size).collect::<Vec<_>>().join(", ")
        )
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        self.kill();
    }
}
