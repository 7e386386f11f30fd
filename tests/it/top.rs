//! `artisand top` in a pseudo terminal; its screens and keys have unit tests.

use std::io::Write as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::commands::{App, payload};
use crate::harness::process::{ManagedChild, artisand, eventually};
use crate::harness::redis::RedisServer;

const SOON: Duration = Duration::from_secs(60);
/// Gives back the screen that was there before.
const LEAVES: &str = "\u{1b}[?1049l";

/// `top` in a terminal of 80 columns and 24 lines.
pub(crate) struct Terminal {
    child: Child,
    keys: ChildStdin,
    home: TempDir,
}

impl Terminal {
    fn start(app: &App) -> Self {
        Self::run(&app.command(&["top"]))
    }

    /// Runs this command in it.
    pub(crate) fn run(program: &Command) -> Self {
        let home = tempfile::tempdir().unwrap();
        let args: Vec<_> = program
            .get_args()
            .map(|arg| arg.to_str().unwrap())
            .collect();
        let script = format!(
            "/bin/stty rows 24 cols 80; echo $$ > {}; exec {} {}",
            home.path().join("pid").display(),
            program.get_program().to_str().unwrap(),
            args.join(" ")
        );
        let mut command = Command::new("/usr/bin/script");
        command
            .args(["-qefc", &script])
            .arg(home.path().join("screen"));
        for (name, value) in program.get_envs() {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let mut child = command
            .env("SHELL", "/bin/sh")
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        let keys = child.stdin.take().unwrap();
        Self { child, keys, home }
    }

    fn screen(&self) -> String {
        let screen = std::fs::read(self.home.path().join("screen")).unwrap_or_default();
        String::from_utf8_lossy(&screen).into_owned()
    }

    /// Waits for a word where nothing stood before: of a line that changes, only what is new is written.
    pub(crate) fn shows(&self, word: &str) {
        eventually(&format!("{word} on the screen"), SOON, || {
            self.screen().contains(word).then_some(())
        });
    }

    pub(crate) fn press(&mut self, keys: &str) {
        self.keys.write_all(keys.as_bytes()).unwrap();
        self.keys.flush().unwrap();
    }

    fn process(&self) -> Pid {
        let pid = std::fs::read_to_string(self.home.path().join("pid")).unwrap();
        Pid::from_raw(pid.trim().parse().unwrap()).unwrap()
    }

    fn signal(&self, signal: Signal) {
        kill_process(self.process(), signal).unwrap();
    }

    /// Waits for its end: with code 0, and the terminal as it was.
    pub(crate) fn ends(mut self) {
        let status = eventually("the end", SOON, || self.child.try_wait().unwrap());
        let screen = self.screen();
        assert!(
            status.success() && screen.contains(LEAVES),
            "{status}: {screen:?}"
        );
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
fn keys_pause_a_queue_and_retry_failed_jobs() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    app.fail(&[
        ("one", "redis", &payload(None), 1),
        ("two", "redis", &payload(None), 2),
    ]);
    let mut worker = ManagedChild::spawn(app.command(&["queue:work", "--sleep=0.1"]));
    let says = |worker: &ManagedChild, text: &str| {
        eventually(text, SOON, || worker.stdout().contains(text).then_some(()));
    };
    let mut top = Terminal::start(&app);
    top.shows("default");
    top.press("jp");
    says(&worker, "PAUSED");
    top.press("r");
    says(&worker, "RESUMED");
    // Two lists further, the only group.
    top.press("\t\tjR");
    top.shows("Push");
    assert_eq!(app.failed().len(), 2);
    top.press("y");
    eventually("retried jobs", SOON, || {
        app.failed().is_empty().then_some(())
    });
    assert_eq!(redis.length("app-queues:default"), 2);
    top.press("q");
    top.ends();

    for signal in [Signal::TERM, Signal::HUP] {
        let top = Terminal::start(&app);
        top.shows("default");
        top.signal(signal);
        top.ends();
    }
    let mut top = Terminal::start(&app);
    top.shows("default");
    // Ctrl-C is a key.
    top.press("\u{3}");
    top.ends();
    worker.signal(Signal::TERM);
    worker.succeeds_within(SOON);
}

#[test]
fn it_ends_once_its_terminal_has_gone() {
    let redis = RedisServer::start();
    let app = App::new(redis.port(), "13.31.0");
    let top = Terminal::start(&app);
    top.shows("[Queues]");
    let process = top.process();
    drop(top);
    eventually("the end", SOON, || {
        rustix::process::test_kill_process(process).err()
    });
}

#[test]
fn without_a_terminal_it_says_what_is_for_scripts() {
    let output = artisand(&["top"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    for other in ["artisand tail", "queue:monitor", "artisand doctor"] {
        assert!(said.contains(other), "{said}");
    }
}
