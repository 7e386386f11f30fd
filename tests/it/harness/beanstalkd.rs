//! A private `beanstalkd`: free port, nothing on disk, killed on drop.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::{Ipv4Addr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::redis::free_port;

/// A running server. No test ever talks to a server that another program started.
pub(crate) struct Beanstalkd {
    child: Option<Child>,
    port: u16,
    options: Vec<String>,
}

/// How long a server may take to answer.
const START: Duration = Duration::from_secs(60);

impl Beanstalkd {
    /// Starts a server.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// Starts a server with these options, in addition to its address.
    pub(crate) fn start_with(options: &[&str]) -> Self {
        let mut server = Self {
            child: None,
            port: 0,
            options: options.iter().map(ToString::to_string).collect(),
        };
        // Another test program may have chosen the same port.
        for _ in 0..5 {
            server.port = free_port();
            if server.launch() {
                return server;
            }
        }
        panic!("no beanstalkd came up");
    }

    /// Starts the process; true once it answers, false if it ended or another server has the port.
    fn launch(&mut self) -> bool {
        let child = Command::new("beanstalkd")
            .args(["-l", "127.0.0.1", "-p", &self.port.to_string()])
            .args(&self.options)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap_or_else(|e| panic!("beanstalkd: {e} (php-interop/setup.sh installs it)"));
        let pid = child.id().to_string();
        self.child = Some(child);
        let deadline = Instant::now() + START;
        while Instant::now() < deadline {
            if self.child.as_mut().unwrap().try_wait().unwrap().is_some() {
                self.child = None;
                return false;
            }
            if TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).is_ok() {
                if self.query("stats").contains(&format!("\npid: {pid}\n")) {
                    return true;
                }
                self.kill();
                return false;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("beanstalkd did not answer in {START:?}");
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    /// Kills the server, which forgets everything but its log, if it has one.
    pub(crate) fn kill(&mut self) {
        if let Some(mut child) = self.child.take() {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }

    /// Starts the server again on the same port: empty, unless its options give it a log (`-b`).
    pub(crate) fn restart(&mut self) {
        self.kill();
        assert!(self.launch(), "beanstalkd did not come back");
    }

    /// Tells the server to take no more jobs, and waits until it heard of it.
    pub(crate) fn drain(&self) {
        let child = self.child.as_ref().unwrap();
        kill_process(Pid::from_child(child), Signal::USR1).unwrap();
        super::process::eventually("beanstalkd drains", START, || {
            (self.query("stats").contains("\ndraining: true\n")).then_some(())
        });
    }

    /// Sends commands, one a line, over a connection of its own; the last one's reply, with its body if it has one.
    pub(crate) fn query(&self, commands: &str) -> String {
        let stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
        let mut replies = BufReader::new(stream.try_clone().unwrap());
        let mut last = String::new();
        for command in commands.split('\n') {
            write!(&stream, "{command}\r\n").unwrap();
            last.clear();
            // A body follows its `put`, and has no reply of its own.
            if command.starts_with("put ") {
                continue;
            }
            replies.read_line(&mut last).unwrap();
            let mut words = last.split_whitespace();
            if let Some("OK" | "FOUND" | "RESERVED") = words.next() {
                let length: usize = words.next_back().unwrap().parse().unwrap();
                let mut body = vec![0; length + 2];
                replies.read_exact(&mut body).unwrap();
                last += std::str::from_utf8(&body).unwrap();
            }
        }
        last
    }

    /// A field of a job, as the server tells it.
    pub(crate) fn job(&self, id: u64, field: &str) -> Option<String> {
        let told = self.query(&format!("stats-job {id}"));
        let mut lines = told.lines();
        lines.find_map(|line| Some(line.strip_prefix(field)?.strip_prefix(": ")?.to_owned()))
    }
}

impl Drop for Beanstalkd {
    fn drop(&mut self) {
        self.kill();
    }
}
