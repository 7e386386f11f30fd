//! The app's own PHP, asked for what only it can say.

use std::ffi::OsString;
use std::io::{Read, Write as _};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;

/// The exporter, fed to PHP on its standard input.
const EXPORTER: &str = include_str!("../../php-interop/manifest.php");
/// Stands before and after the answer: an app may print while it boots.
const MARK: &str = "---artisand-manifest---";

/// Name of the program that is PHP, unless said otherwise.
pub const PHP: &str = "php";

/// Boots the app and returns its manifest, as JSON text on one line.
///
/// # Errors
///
/// PHP is not there, or the app cannot be booted: in words, for the person who asked.
pub fn manifest(
    php: &str,
    base: &Path,
    environment: Option<&str>,
    with_secrets: bool,
) -> Result<String, String> {
    let mut args = vec![base.as_os_str().to_owned()];
    args.extend(environment.map(|name| OsString::from(format!("--env={name}"))));
    args.extend(with_secrets.then(|| OsString::from("--with-secrets")));
    ask(php, base, &args)
}

/// Reads a cached configuration with PHP.
///
/// # Errors
///
/// PHP is not there, or cannot read it: in words, for the person who asked.
pub fn cached_config(base: &Path, path: &Path) -> Result<Value, String> {
    let args = [
        base.as_os_str().to_owned(),
        "--config-only".into(),
        path.as_os_str().to_owned(),
    ];
    let answer = ask(PHP, base, &args)?;
    let mut answer: Value = serde_json::from_str(&answer)
        .map_err(|error| format!("PHP's answer about {} is not JSON: {error}", path.display()))?;
    Ok(answer["config"].take())
}

/// Version of PHP; `None` if it cannot be run.
pub fn version(php: &str) -> Option<String> {
    let output = Command::new(php)
        .args(["-r", "echo PHP_VERSION;"])
        .stdin(Stdio::null())
        .output()
        .ok()?;
    output
        .status
        .success()
        .then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// `php artisan` in the app's directory.
///
/// # Errors
///
/// It cannot be run, or ended with an error: in words.
pub fn artisan(php: &str, base: &Path, args: &[&str]) -> Result<String, String> {
    let output = Command::new(php)
        .arg("artisan")
        .args(args)
        .current_dir(base)
        .stdin(Stdio::null())
        .output()
        .map_err(|error| not_run(php, &error))?;
    if !output.status.success() {
        return Err(format!(
            "`{php} artisan {}` ended with {}: {}",
            args.join(" "),
            output.status,
            last_lines(&output)
        ));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

fn not_run(php: &str, error: &std::io::Error) -> String {
    format!("could not run `{php}`: {error}; name the app's PHP with --php")
}

fn ask(php: &str, base: &Path, args: &[OsString]) -> Result<String, String> {
    let mut child = Command::new(php)
        // Warnings of an old app under a new PHP must not look like answers.
        .args(["-d", "display_errors=stderr", "--"])
        .args(args)
        .current_dir(base)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| not_run(php, &error))?;
    let mut stdin = child.stdin.take();
    let fed = match &mut stdin {
        Some(stdin) => stdin.write_all(EXPORTER.as_bytes()),
        None => Ok(()),
    };
    drop(stdin);
    let output = wait(child, BOOT).map_err(|error| not_run(php, &error))?;
    let stdout = String::from_utf8_lossy(&output.stdout);
    let answer = stdout
        .split(MARK)
        .nth(1)
        .map(str::trim)
        .filter(|answer| !answer.is_empty());
    match answer {
        Some(answer) if output.status.success() => Ok(answer.to_owned()),
        _ => {
            let why = match fed {
                Err(error) => format!("{error}; "),
                Ok(()) => String::new(),
            };
            let said = last_lines(&output);
            Err(format!(
                "PHP could not describe the app in {} ({}): {why}{said}",
                base.display(),
                output.status
            ))
        }
    }
}

/// How long an app may take to boot and be described.
const BOOT: Duration = Duration::from_secs(120);

/// Waits for a program; one that takes too long is killed, and its output ends there.
fn wait(mut child: Child, limit: Duration) -> std::io::Result<Output> {
    fn read(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
        std::thread::spawn(move || {
            let mut bytes = Vec::new();
            if let Some(mut pipe) = pipe {
                // What was read until then counts.
                let _ = pipe.read_to_end(&mut bytes);
            }
            bytes
        })
    }
    let (stdout, stderr) = (read(child.stdout.take()), read(child.stderr.take()));
    let deadline = Instant::now() + limit;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= deadline {
            child.kill()?;
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    Ok(Output {
        status,
        stdout: stdout.join().unwrap_or_default(),
        stderr: stderr.join().unwrap_or_default(),
    })
}

/// The end of what a program said about its failure.
fn last_lines(output: &Output) -> String {
    let stderr = String::from_utf8_lossy(&output.stderr);
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = if stderr.trim().is_empty() {
        stdout
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
