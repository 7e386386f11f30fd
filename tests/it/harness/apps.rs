//! Realistic apps, made by `php-interop/apps/make`, and real Laravel's reading of them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::Value;

use super::fixtures::project;
use super::redis::RedisServer;

/// An app that `php-interop/apps/make` made.
pub(crate) struct App {
    /// Name of its variant.
    pub(crate) name: String,
    /// Its directory as its PHP sees it.
    pub(crate) inside: String,
    /// The same directory as this machine sees it.
    pub(crate) here: PathBuf,
}

/// All apps on one version; deleted on drop.
pub(crate) struct Apps {
    version: String,
    /// The apps.
    pub(crate) list: Vec<App>,
}

impl Apps {
    /// Makes the apps.
    pub(crate) fn make(version: u8) -> Self {
        let apps = Self::make_these(version, &[]);
        assert!(apps.list.len() >= 20, "{}", apps.list.len());
        apps
    }

    /// Makes those of these names, or all if none is named.
    pub(crate) fn make_these(version: u8, names: &[&str]) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let directory = format!(
            "/tmp/artisand-apps-{}-{number}-{version}",
            std::process::id()
        );
        let version = version.to_string();
        let args = [&[&*version, &directory][..], names].concat();
        let made = php("apps/make", &args, &[], None);
        let read = |line: &str| {
            let mut parts = line.split('\t');
            let mut next = || parts.next().unwrap().to_owned();
            App {
                name: next(),
                inside: next(),
                here: next().into(),
            }
        };
        let list = made.lines().map(read).collect();
        Self { version, list }
    }

    /// Laravel's reading of the app under this environment.
    pub(crate) fn truth(&self, app: &App, env: Env<'_>, redis: &RedisServer) -> Value {
        let server = format!("127.0.0.1:{}", redis.port());
        let env = [env, &[("TRUTH_REDIS", server.as_str())]].concat();
        let text = php("apps/truth", &[&self.version, &app.inside], &env, None);
        // An app may print while it boots.
        let json = text.trim_end().rsplit('\n').next().unwrap();
        serde_json::from_str(json).unwrap_or_else(|e| panic!("{}: {e}: {text}", app.name))
    }

    /// The output of `manifest.php` between its markers.
    pub(crate) fn manifest(&self, app: &App, env: Env<'_>, options: &[&str]) -> String {
        const MARKER: &str = "---artisand-manifest---\n";
        let args = [
            &[&*self.version, "--at", &app.inside, "--", "."][..],
            options,
        ];
        let program = project().join("php-interop").join("manifest.php");
        let text = php("laravel", &args.concat(), env, Some(&program));
        let mut parts = text.split(MARKER).skip(1);
        let line = parts.next().unwrap_or_else(|| panic!("no marker: {text}"));
        assert!(parts.next().is_some(), "no second marker: {text}");
        line.trim_end().to_owned()
    }
}

impl Drop for Apps {
    fn drop(&mut self) {
        if let Some(directory) = self.list.first().and_then(|app| app.here.parent()) {
            let _ = std::fs::remove_dir_all(directory);
        }
    }
}

/// Environment of a process.
pub(crate) type Env<'a> = &'a [(&'a str, &'a str)];

/// Runs a program of `php-interop/` with only this environment, and returns its output.
fn php(program: &str, args: &[&str], env: Env<'_>, stdin: Option<&Path>) -> String {
    let mut command = Command::new(project().join("php-interop").join(program));
    command.args(args).env_clear().envs(env.iter().copied());
    for name in ["PATH", "ARTISAND_ROOTS"] {
        if let Some(value) = std::env::var_os(name) {
            command.env(name, value);
        }
    }
    let stdin = stdin.map(|path| std::fs::File::open(path).unwrap());
    command.stdin(stdin.map_or_else(Stdio::null, Stdio::from));
    let output = command
        .output()
        .unwrap_or_else(|e| panic!("{command:?}: {e}"));
    let stdout = String::from_utf8_lossy(&output.stdout).into_owned();
    let stderr = String::from_utf8_lossy(&output.stderr);
    let status = output.status;
    assert!(
        status.success(),
        "{command:?}: {status}\n{stdout}\n{stderr}"
    );
    stdout
}
