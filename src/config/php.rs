//! The app's own PHP, asked for what only it can say.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Command, ExitStatus, Output, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

use crate::app::{Manifest, between_marks};

/// The exporter, fed to PHP on its standard input.
const EXPORTER: &str = include_str!("../../php-interop/manifest.php");

/// Name of the program that is PHP, unless said otherwise.
pub const PHP: &str = "php";
/// Where PHP is named.
const NAMED_BY: &str = "`binary` under [php]";

/// How long an app may take to boot and be described.
const BOOT: Duration = Duration::from_secs(120);
/// How long an app may take to load its configuration.
const LOAD: Duration = Duration::from_secs(20);
/// How long PHP may take to say that it runs.
const START: Duration = Duration::from_secs(20);
/// How long a command of `artisan` may take.
pub const PATIENCE: Duration = Duration::from_secs(300);
/// How long output is waited for after the program has ended: what it started may hold the pipes open.
const LINGER: Duration = Duration::from_secs(3);

/// Why there is no answer: in words, for the person who asked.
#[derive(Debug)]
pub(super) struct NoAnswer {
    /// What failed.
    pub(super) why: String,
    /// Whether there is no such program.
    pub(super) is_missing: bool,
}

/// Boots the app and returns its manifest, as JSON text on one line.
///
/// # Errors
///
/// PHP is not there, or the app cannot be booted: in words, for the person who asked.
pub fn manifest(
    php: &[String],
    base: &Path,
    environment: Option<&str>,
    with_secrets: bool,
) -> Result<String, String> {
    let options = with_secrets.then_some("--with-secrets");
    let args = arguments(base, environment, options);
    ask(command(php), base, &args, BOOT, "--php").map_err(|error| error.why)
}

/// Loads the app's configuration, boots nothing, and returns it with its secrets, in the form of a manifest.
///
/// # Errors
///
/// PHP is not there, or the configuration cannot be loaded.
pub(super) fn settings(
    php: &[String],
    base: &Path,
    environment: Option<&str>,
    variables: &BTreeMap<String, String>,
) -> Result<Manifest, NoAnswer> {
    let args = arguments(base, environment, ["--config-only", "--with-secrets"]);
    told(php, base, &args, variables, LOAD)
}

/// Boots the app and returns its manifest.
///
/// # Errors
///
/// PHP is not there, or the app cannot be booted.
pub(super) fn classes(
    php: &[String],
    base: &Path,
    environment: Option<&str>,
    variables: &BTreeMap<String, String>,
) -> Result<Manifest, NoAnswer> {
    let args = arguments(base, environment, None);
    told(php, base, &args, variables, BOOT)
}

/// What the exporter tells, run by the worker's own PHP.
fn told(
    php: &[String],
    base: &Path,
    args: &[OsString],
    variables: &BTreeMap<String, String>,
    limit: Duration,
) -> Result<Manifest, NoAnswer> {
    let mut command = command(php);
    command.env_clear().envs(variables);
    let answer = ask(command, base, args, limit, NAMED_BY)?;
    Manifest::parse(Path::new("PHP's answer"), answer.as_bytes()).map_err(|error| NoAnswer {
        why: crate::shown::with_causes(&error),
        is_missing: false,
    })
}

/// A program with its first arguments.
fn command(php: &[String]) -> Command {
    let (program, own) = match php {
        [program, own @ ..] => (program.as_str(), own),
        [] => (PHP, &[][..]),
    };
    let mut command = Command::new(program);
    command.args(own);
    command
}

/// Version of PHP; `None` if it cannot be run.
pub fn version(php: &[String]) -> Option<String> {
    let output = command(php)
        .args(["-r", "echo PHP_VERSION;"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Whether PHP runs.
pub async fn runs(php: &[String]) -> bool {
    let mut command = command(php);
    command.args(["-r", "echo PHP_VERSION;"]);
    let output = output(command, START).await;
    output.is_ok_and(|output| output.status.success())
}

/// Runs a command of `artisan`, the app's own program at this path. PHP is killed if it takes longer than [`PATIENCE`],
/// or if the future is dropped; signals of the terminal do not reach it.
///
/// # Errors
///
/// It cannot be run, took too long, or ended with an error: in words.
pub async fn artisan(
    php: &[String],
    artisan: &Path,
    name: &str,
    args: &[String],
) -> Result<(), String> {
    let mut command = command(php);
    let program = command.get_program().to_string_lossy().into_owned();
    // PHP in a container has the app elsewhere.
    let here = std::path::absolute(artisan)
        .ok()
        .filter(|here| here.is_file());
    if let Some(app) = here.as_ref().and_then(|here| here.parent()) {
        command.current_dir(app);
    }
    let artisan = here.as_deref().unwrap_or(artisan);
    command.arg(artisan).arg(name).args(args);
    let output = output(command, PATIENCE)
        .await
        .map_err(|error| match error.kind() {
            std::io::ErrorKind::TimedOut => format!(
                "`php artisan {name}` took more than {} s and was killed: what it was at may be done or not",
                PATIENCE.as_secs()
            ),
            _ => not_run(&program, &error, NAMED_BY).why,
        })?;
    if !output.status.success() {
        return Err(format!(
            "`php artisan {name}` ended with {}: {}",
            output.status,
            last_lines(&output.stdout, &output.stderr)
        ));
    }
    Ok(())
}

/// Runs a program without input, in a process group of its own, which is killed if that takes too long: the program may
/// be a script that waits for PHP.
async fn output(command: Command, limit: Duration) -> std::io::Result<Output> {
    let mut command = tokio::process::Command::from(command);
    command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .kill_on_drop(true);
    let child = command.spawn()?;
    let leader = child.id().and_then(|id| Pid::from_raw(id.try_into().ok()?));
    let mut ended = Box::pin(child.wait_with_output());
    // Dropped first: while the leader is not waited for, the number of its group is not free.
    let mut group = KilledGroup(leader);
    let output = tokio::time::timeout(limit, &mut ended).await?;
    group.0 = None;
    output
}

/// Kills a process group when it is dropped.
struct KilledGroup(Option<Pid>);

impl Drop for KilledGroup {
    fn drop(&mut self) {
        if let Some(leader) = self.0 {
            // It may have ended just now.
            let _ = kill_process_group(leader, Signal::KILL);
        }
    }
}

/// Arguments of the exporter.
fn arguments<'o>(
    base: &Path,
    environment: Option<&str>,
    options: impl IntoIterator<Item = &'o str>,
) -> Vec<OsString> {
    let mut args = vec![base.as_os_str().to_owned()];
    args.extend(environment.map(|name| OsString::from(format!("--env={name}"))));
    args.extend(options.into_iter().map(OsString::from));
    args
}

fn not_run(php: &str, error: &std::io::Error, place: &str) -> NoAnswer {
    NoAnswer {
        why: format!("could not run `{php}`: {error}; name the app's PHP with {place}"),
        is_missing: error.kind() == std::io::ErrorKind::NotFound,
    }
}

/// Runs the exporter; `place` is where PHP can be named.
fn ask(
    mut command: Command,
    base: &Path,
    args: &[OsString],
    limit: Duration,
    place: &str,
) -> Result<String, NoAnswer> {
    let program = command.get_program().to_string_lossy().into_owned();
    command
        // Warnings of an old app under a new PHP must not look like answers.
        .args(["-d", "display_errors=stderr", "--"])
        .args(args);
    if base.is_dir() {
        command.current_dir(base);
    }
    let ended = run(&mut command, limit).map_err(|error| not_run(&program, &error, place))?;
    let (status, output) = match ended {
        ProgramEnd::Exited(output) => (output.status.to_string(), output),
        ProgramEnd::Killed(output) => (format!("it took more than {} s", limit.as_secs()), output),
    };
    let stdout = String::from_utf8_lossy(&output.stdout);
    match between_marks(&stdout) {
        Some(answer) if output.status.success() => Ok(answer.to_owned()),
        _ => Err(NoAnswer {
            why: format!(
                "PHP could not describe the app in {} ({status}): {}",
                base.display(),
                last_lines(&output.stdout, &output.stderr)
            ),
            is_missing: false,
        }),
    }
}

/// How a program ended.
enum ProgramEnd {
    Exited(Output),
    /// It took too long.
    Killed(Output),
}

/// Runs a program with the exporter as its input; one that takes too long is killed, and its output ends there.
fn run(command: &mut Command, limit: Duration) -> std::io::Result<ProgramEnd> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let stdin = child.stdin.take();
    let (stdout, stderr) = (
        Reader::start(child.stdout.take()),
        Reader::start(child.stderr.take()),
    );
    std::thread::spawn(move || {
        // A program that does not read it does not answer either.
        stdin.map(|mut stdin| stdin.write_all(EXPORTER.as_bytes()))
    });
    let deadline = Instant::now() + limit;
    let ended = |status: ExitStatus| {
        let until = Instant::now() + LINGER;
        Output {
            status,
            stdout: stdout.finish(until),
            stderr: stderr.finish(until),
        }
    };
    loop {
        if let Some(status) = child.try_wait()? {
            return Ok(ProgramEnd::Exited(ended(status)));
        }
        if Instant::now() >= deadline {
            child.kill()?;
            return Ok(ProgramEnd::Killed(ended(child.wait()?)));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Reads a pipe in a thread of its own.
struct Reader {
    bytes: Arc<Mutex<Vec<u8>>>,
    thread: JoinHandle<()>,
}

impl Reader {
    fn start(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let into = Arc::clone(&bytes);
        let thread = std::thread::spawn(move || {
            let mut buffer = vec![0; 64 * 1024];
            let Some(mut pipe) = pipe else { return };
            while let Ok(read @ 1..) = pipe.read(&mut buffer) {
                let mut bytes = into.lock().unwrap_or_else(PoisonError::into_inner);
                bytes.extend_from_slice(&buffer[..read]);
            }
        });
        Self { bytes, thread }
    }

    /// What was read, until the pipe is closed or this instant.
    fn finish(self, until: Instant) -> Vec<u8> {
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The end of what a program said about its failure.
fn last_lines(stdout: &[u8], stderr: &[u8]) -> String {
    let stderr = String::from_utf8_lossy(stderr);
    let said = if stderr.trim().is_empty() {
        String::from_utf8_lossy(stdout)
    } else {
        stderr
    };
    let lines: Vec<&str> = said
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    let last = lines.len().saturating_sub(5);
    lines[last..].join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const MARK: &str = "---artisand-manifest---";

    /// What is said of the program with this text, which stands in for PHP.
    fn answer(script: &str) -> Result<Manifest, NoAnswer> {
        let program = ["sh", "-c", script].map(str::to_owned);
        settings(&program, Path::new("/"), None, &BTreeMap::new())
    }

    #[test]
    fn an_answer_is_found_in_what_an_app_prints() {
        let facts = r#"{"artisand":1,"laravel":"13.0.0","generated_at":1,"paths":{"base":"/a","storage":"/a/s"},"config":{}}"#;
        let script =
            format!("cat >/dev/null; echo noise; echo noise >&2; echo '{MARK}\n{facts}\n{MARK}'");
        assert_eq!(answer(&script).unwrap().laravel, "13.0.0");
        // A process that it leaves behind may hold the pipes.
        let script = format!("{script}; sleep 12 &");
        let started = Instant::now();
        assert_eq!(answer(&script).unwrap().laravel, "13.0.0");
        assert!(started.elapsed() < Duration::from_secs(9));
        for (script, expected) in [
            (
                "echo 'Fatal error: x' >&2; exit 255",
                "(exit status: 255): Fatal error: x",
            ),
            ("echo said; exit 0", "(exit status: 0): said"),
            (
                &*format!("echo '{MARK}'; echo '[]'; echo '{MARK}'"),
                "PHP's answer is not a manifest",
            ),
        ] {
            let error = answer(script).unwrap_err();
            assert!(
                error.why.contains(expected) && !error.is_missing,
                "{}",
                error.why
            );
        }
        let missing = ["/no/such/php".to_owned()];
        let error = settings(&missing, Path::new("/"), None, &BTreeMap::new()).unwrap_err();
        assert!(
            error.is_missing && error.why.contains("could not run `/no/such/php`"),
            "{}",
            error.why
        );
    }

    #[test]
    fn a_program_that_takes_too_long_is_killed() {
        let started = Instant::now();
        // It reads nothing, and the exporter is longer than a pipe.
        let ended = run(Command::new("sleep").arg("60"), Duration::from_millis(50)).unwrap();
        assert!(matches!(ended, ProgramEnd::Killed(_)));
        assert!(started.elapsed() < Duration::from_secs(20));
    }

    #[tokio::test]
    async fn php_that_does_not_answer_is_not_waited_for() {
        let started = Instant::now();
        let mut sleeps = Command::new("sleep");
        sleeps.arg("60");
        let error = output(sleeps, Duration::from_millis(50)).await.unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::TimedOut);
        assert!(started.elapsed() < Duration::from_secs(20));
        for (script, is_run) in [("exit 0", true), ("exit 1", false)] {
            let php = ["sh", "-c", script].map(str::to_owned);
            assert_eq!(runs(&php).await, is_run, "{script}");
        }
        assert!(!runs(&["/no/such/php".to_owned()]).await);
    }
}
