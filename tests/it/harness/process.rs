//! Child processes that end with their test.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use tempfile::{NamedTempFile, TempDir};

use super::fixtures::project;
use super::laravel::Laravel;
use super::redis::RedisServer;

/// Many times longer than needed: the machine may be busy with other tests.
const PATIENCE: Duration = Duration::from_secs(60);

/// A process whose output goes to files, killed on drop.
pub(crate) struct ManagedChild {
    child: Child,
    name: String,
    stdout: NamedTempFile,
    stderr: NamedTempFile,
}

impl ManagedChild {
    /// Starts it.
    pub(crate) fn spawn(command: Command) -> Self {
        Self::start(command, Stdio::null())
    }

    /// Starts it; the caller writes its standard input.
    pub(crate) fn spawn_fed(command: Command) -> (Self, ChildStdin) {
        let mut started = Self::start(command, Stdio::piped());
        let input = started.child.stdin.take().unwrap();
        (started, input)
    }

    fn start(mut command: Command, input: Stdio) -> Self {
        let name = format!("{command:?}");
        let (stdout, stderr) = (NamedTempFile::new().unwrap(), NamedTempFile::new().unwrap());
        let child = command
            .stdin(input)
            .stdout(stdout.reopen().unwrap())
            .stderr(stderr.reopen().unwrap())
            .spawn()
            .unwrap_or_else(|e| panic!("{name}: {e}"));
        Self {
            child,
            name,
            stdout,
            stderr,
        }
    }

    /// Its process id.
    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends a signal, unless the process has ended.
    pub(crate) fn signal(&mut self, signal: Signal) {
        // Check this first: the id of a process that was waited for may belong to another process.
        if self.child.try_wait().unwrap().is_none() {
            kill_process(Pid::from_child(&self.child), signal).unwrap();
        }
    }

    /// True as long as it has not ended.
    pub(crate) fn is_running(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }

    /// Waits for its end, for at most this time.
    pub(crate) fn wait_timeout(&mut self, timeout: Duration) -> ExitStatus {
        let deadline = Instant::now() + timeout;
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(
                Instant::now() < deadline,
                "not ended within {timeout:?}: {}",
                self.describe()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Waits for its end, which must be exit code 0.
    pub(crate) fn succeeds_within(&mut self, timeout: Duration) {
        let status = self.wait_timeout(timeout);
        assert!(status.success(), "{status}: {}", self.describe());
    }

    /// Its standard output so far.
    pub(crate) fn stdout(&self) -> String {
        read_lossy(self.stdout.path())
    }

    /// Its standard error so far.
    pub(crate) fn stderr(&self) -> String {
        read_lossy(self.stderr.path())
    }

    /// Where a worker with `-vv` serves its page and its metrics, once it does: it was told `127.0.0.1:0`, so that no
    /// other process can have taken the port.
    pub(crate) fn serves_at(&self) -> SocketAddr {
        let found = poll(PATIENCE, || {
            let log = self.stderr();
            let mut lines = log.lines();
            let line = lines.find(|line| line.contains("serving metrics and probes"))?;
            let (_, address) = line.split_once("address=")?;
            address.split_whitespace().next()?.parse().ok()
        });
        found.unwrap_or_else(|| panic!("it serves nowhere: {}", self.describe()))
    }

    /// Command and output, for messages.
    pub(crate) fn describe(&self) -> String {
        format!(
            "{}\n--- stdout\n{}\n--- stderr\n{}",
            self.name,
            self.stdout(),
            self.stderr()
        )
    }
}

impl Drop for ManagedChild {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn read_lossy(path: &Path) -> String {
    String::from_utf8_lossy(&std::fs::read(path).unwrap()).into_owned()
}

/// State and parent of a process.
fn stat(pid: u32) -> Option<(char, u32)> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before it may contain anything.
    let mut rest = text.rsplit_once(") ")?.1.split(' ');
    Some((rest.next()?.chars().next()?, rest.next()?.parse().ok()?))
}

/// Whether a process of this id has not ended.
pub(crate) fn is_alive(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state != 'Z')
}

/// Whether a process of this id waits for something.
pub(crate) fn is_asleep(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'S')
}

/// Whether a process of this id was stopped by a signal.
pub(crate) fn is_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// Living processes whose command line matches; its words end with NUL.
pub(crate) fn processes(is_it: impl Fn(&str) -> bool) -> Vec<u32> {
    let entries = std::fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let pids = entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let is_it = |pid: &u32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        is_it(&String::from_utf8_lossy(&command))
    };
    pids.filter(is_it).filter(|pid| is_alive(*pid)).collect()
}

const SUPERVISOR: &str = "jobs-supervisor\0";

/// Living PHP processes of a worker's pool, not the one that it asks for the app's configuration before.
pub(crate) fn children(parent: u32) -> Vec<u32> {
    let is_member =
        |command: &str| command.contains("php://fd/3") || command.starts_with("artisand: php");
    let mut children = processes(is_member);
    children.retain(|pid| stat(*pid).is_some_and(|(_, of)| of == parent));
    children
}

/// The process that ends the children of a worker that was killed, once it listens to signals.
pub(crate) fn supervisor_of(worker: u32) -> Option<u32> {
    let supervisors = processes(|command| command.starts_with(SUPERVISOR));
    supervisors.into_iter().find(|pid| {
        // It takes its name once it listens.
        let name = std::fs::read_to_string(format!("/proc/{pid}/comm"));
        let is_ready = name.is_ok_and(|name| SUPERVISOR.starts_with(name.trim_end()));
        is_ready && stat(*pid).is_some_and(|(_, of)| of == worker)
    })
}

/// Asks a process to end.
pub(super) fn terminate(child: &mut Child) {
    if child.try_wait().unwrap().is_none() {
        kill_process(Pid::from_child(child), Signal::TERM).unwrap();
    }
}

/// Whether tests with random faults and floods of jobs are to take their time: `make thorough`.
pub(crate) fn is_thorough() -> bool {
    std::env::var_os("ARTISAND_THOROUGH").is_some()
}

/// Kills in a test that kills workers at random moments; on three versions of Laravel, 210 of each kind if asked.
pub(crate) fn kills() -> usize {
    if is_thorough() { 70 } else { 20 }
}

/// Jobs in a test of many workers that share a queue: as many as asked, or three tenths of them.
pub(crate) fn flood(jobs: usize) -> usize {
    if is_thorough() { jobs } else { jobs * 3 / 10 }
}

/// Polls until there is a value, for places where no event can be awaited.
pub(crate) fn poll<T>(timeout: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + timeout;
    loop {
        let found = look();
        if found.is_some() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Like [`poll`].
///
/// # Panics
///
/// If there is nothing within `timeout`; `what` describes the expected event.
pub(crate) fn eventually<T>(what: &str, timeout: Duration, look: impl FnMut() -> Option<T>) -> T {
    poll(timeout, look).unwrap_or_else(|| panic!("waited {timeout:?} in vain: {what}"))
}

/// Like [`eventually`], in a runtime: between two looks it rests, because what is looked at tells no event.
pub(crate) async fn until(what: &str, timeout: Duration, mut look: impl AsyncFnMut() -> bool) {
    let looks = async {
        while !look().await {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(timeout, looks).await;
    assert!(found.is_ok(), "waited {timeout:?} in vain: {what}");
}

/// The same command, in a process that ignores SIGHUP, as below `nohup`, or in which it has its usual effect, whatever
/// it does to the tests. `env` becomes its program.
pub(crate) fn with_hangups(command: &Command, are_ignored: bool) -> Command {
    let does = if are_ignored { "ignore" } else { "default" };
    let mut applied = Command::new("/usr/bin/env");
    applied
        .arg(format!("--{does}-signal=HUP"))
        .arg(command.get_program())
        .args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => applied.env(name, value),
            None => applied.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        applied.current_dir(directory);
    }
    applied
}

/// The `artisand` binary.
pub(crate) fn artisand(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_artisand"));
    without_settings(&mut command).args(args);
    command
}

/// Copies a file to where it can be run at once, by a process of its own.
///
/// If this process had the file open for writing, a process that another test starts at that moment would inherit the
/// open file, and the system would refuse to run it ("text file busy").
pub(crate) fn install_program(from: &Path, to: &Path) {
    let mut install = Command::new("install");
    let status = install.arg("--mode=755").args([from, to]).status();
    assert!(status.unwrap().success());
}

/// Says what a test has done or not, past the harness, which shows nothing of tests that pass.
pub(crate) fn say(text: &str) {
    // Not `eprintln`, which the harness keeps for itself.
    let mut shown = std::io::stderr();
    writeln!(shown, "\n{text}").unwrap();
}

/// `examples/interop_worker.rs`, which runs the jobs of `php-interop/app`.
pub(crate) fn interop_worker() -> Command {
    example("interop_worker")
}

/// The program of an example, of the test's own build or in `ARTISAND_EXAMPLES`.
pub(crate) fn example(name: &str) -> Command {
    let own = || Path::new(env!("CARGO_BIN_EXE_artisand")).with_file_name("examples");
    let path = std::env::var_os("ARTISAND_EXAMPLES").map_or_else(own, PathBuf::from);
    let path = path.join(name);
    assert!(
        path.is_file(),
        "{} is not there: build it with `cargo build --example {name}`",
        path.display()
    );
    let mut command = Command::new(path);
    without_settings(&mut command);
    command
}

/// The cargo that built this test.
///
/// Without what it tells a test of its own package: build scripts that look at that would run again, and much would
/// be built anew, here and then by the next cargo.
pub(crate) fn cargo() -> Command {
    let mut command = Command::new(env!("CARGO"));
    for (name, _) in std::env::vars_os() {
        let is_told = name.to_str().is_some_and(|name| {
            name.starts_with("CARGO_MANIFEST_") || name.starts_with("CARGO_PKG_")
        });
        if is_told {
            command.env_remove(name);
        }
    }
    command
}

/// Hides settings in the environment of the person who runs the tests.
pub(crate) fn without_settings(command: &mut Command) -> &mut Command {
    for (name, _) in std::env::vars_os() {
        let is_setting = name.to_str().is_some_and(|name| {
            [
                "REDIS_",
                "QUEUE_",
                "CACHE_",
                "APP_",
                "DB_",
                "ARTISAND_",
                "INTEROP_",
            ]
            .iter()
            .any(|prefix| name.starts_with(prefix))
        });
        // This variable names the directory of the Laravel versions.
        if is_setting && name != "ARTISAND_ROOTS" {
            command.env_remove(name);
        }
    }
    command.env_remove("RUST_LOG")
}

/// A directory with an `artisand.toml`, and maybe a manifest, and workers that read them.
pub(crate) struct Workplace {
    directory: TempDir,
    port: u16,
    /// Additional environment of its processes.
    env: Vec<(String, String)>,
}

/// Mappings for all jobs that [`interop_worker`] can run.
pub(crate) const INTEROP_MAPPINGS: &str = r#"
[[map]]
job = 'App\Jobs\Counted'
handler = "counted"

[[map]]
job = 'App\Jobs\Journal'
handler = "journal"
"#;

/// The mappings, where nothing else tells which classes are unique: jobs of older versions do not say it.
fn not_unique(rest: &str) -> String {
    rest.replace("[[map]]\n", "[[map]]\nunique = false\n")
}

impl Workplace {
    /// What a program has that dispatches with the settings and the manifest here; inside of a runtime.
    pub(crate) fn dispatch(&self) -> artisand::dispatch::Dispatch {
        let settings = self.path().join("artisand.toml");
        let text = std::fs::read_to_string(&settings).unwrap();
        std::fs::write(&settings, format!("manifest = 'artisand.json'\n{text}")).unwrap();
        artisand::dispatch::Dispatch::from_settings(settings).unwrap()
    }

    /// Writes the settings of a connection, and `rest` below them.
    pub(crate) fn new(redis: &RedisServer, prefix: &str, retry_after: u64, rest: &str) -> Self {
        let port = redis.port();
        let connection = format!(
            "[connections.redis]\nhost = \"127.0.0.1\"\nport = {port}\nprefix = \"{prefix}\"\nretry_after = {retry_after}\n"
        );
        Self::with_settings(redis, &(connection + &not_unique(rest)))
    }

    /// With this text as `artisand.toml`; handlers of `interop_worker` write to this server.
    pub(crate) fn with_settings(journal: &RedisServer, settings: &str) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("artisand-work-")
            .tempdir()
            .unwrap();
        std::fs::write(directory.path().join("artisand.toml"), settings).unwrap();
        Self {
            directory,
            port: journal.port(),
            env: Vec::new(),
        }
    }

    /// Takes everything from the app's manifest, and `rest` from `artisand.toml`.
    pub(crate) fn for_app(laravel: &Laravel, rest: &str) -> Self {
        Self::with_manifest(laravel, &laravel.manifest(), rest)
    }

    /// The same, with another manifest.
    pub(crate) fn with_manifest(
        laravel: &Laravel,
        manifest: &serde_json::Value,
        rest: &str,
    ) -> Self {
        let directory = tempfile::Builder::new()
            .prefix("artisand-work-")
            .tempdir()
            .unwrap();
        let write = |name, text: &str| std::fs::write(directory.path().join(name), text).unwrap();
        // The app is here and PHP runs: by default, PHP would run unmapped jobs.
        let is_said = rest.contains("[unmapped]");
        let unmapped = if is_said {
            ""
        } else {
            "\n[unmapped]\npolicy = \"leave\"\n"
        };
        // PHP sees other paths than this machine.
        let settings = "settings = \"manifest\"\n";
        let rest = match manifest.get("classes") {
            Some(_) => rest.to_owned(),
            None => not_unique(rest),
        };
        write("artisand.toml", &format!("{settings}{rest}{unmapped}"));
        write("artisand.json", &manifest.to_string());
        let port = laravel.config["redis"]["port"].as_u64().unwrap();
        let port = u16::try_from(port).unwrap();
        Self {
            directory,
            port,
            env: Vec::new(),
        }
    }

    /// With this many PHP processes of the app, for all jobs that `rest` does not map; ends with an open `[php]`.
    pub(crate) fn with_pool(laravel: &Laravel, processes: usize, rest: &str) -> Self {
        Self::with_manifest_and_pool(laravel, &laravel.manifest(), processes, rest)
    }

    /// The same, with another manifest.
    pub(crate) fn with_manifest_and_pool(
        laravel: &Laravel,
        manifest: &serde_json::Value,
        processes: usize,
        rest: &str,
    ) -> Self {
        let php = project().join("php-interop").join("laravel");
        let php = php.to_str().unwrap();
        let pool = format!(
            "{rest}\n[unmapped]\npolicy = \"php\"\n[php]\nbinary = [{php:?}, \"{}\"]\napp = \".\"\nprocesses = {processes}\n",
            laravel.version
        );
        let mut workplace = Self::with_manifest(laravel, manifest, &pool);
        // PHP has the worker's environment.
        workplace.env.clone_from(&laravel.env);
        workplace
    }

    /// With a line below `[php]`, after [`with_pool`](Self::with_pool).
    pub(crate) fn php(self, line: &str) -> Self {
        let text = std::fs::read_to_string(self.settings()).unwrap();
        std::fs::write(self.settings(), format!("{text}{line}\n")).unwrap();
        self
    }

    /// Its directory.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    fn settings(&self) -> PathBuf {
        self.directory.path().join("artisand.toml")
    }

    fn at_home(&self, mut command: Command, args: &[&str]) -> Command {
        let mut config = std::ffi::OsString::from("--config=");
        config.push(self.settings());
        command
            .args(args)
            .arg(config)
            .current_dir(self.directory.path())
            // The handlers of `interop_worker` use this server.
            .env("REDIS_HOST", "127.0.0.1")
            .env("REDIS_PORT", self.port.to_string())
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// `artisand` with these arguments.
    pub(crate) fn artisand(&self, args: &[&str]) -> Command {
        self.at_home(artisand(&[]), args)
    }

    /// `interop_worker` with these arguments, running.
    pub(crate) fn worker_of(&self, args: &[&str]) -> ManagedChild {
        ManagedChild::spawn(self.command_of(args))
    }

    /// The same, to be started.
    pub(crate) fn command_of(&self, args: &[&str]) -> Command {
        self.at_home(interop_worker(), args)
    }

    /// `interop_worker queue:work redis` with these arguments, running.
    pub(crate) fn worker(&self, args: &[&str]) -> ManagedChild {
        ManagedChild::spawn(self.worker_command(args))
    }

    /// The same, to be started.
    pub(crate) fn worker_command(&self, args: &[&str]) -> Command {
        let args = [&["queue:work", "redis"][..], args].concat();
        self.command_of(&args)
    }
}
