//! Real Laravel, installed by `php-interop/`.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use serde_json::{Value, json};

use super::fixtures::project;
use super::process::{ManagedChild, without_settings};
use super::redis::RedisServer;

/// The versions that `php-interop/setup.sh` installs.
pub(crate) const VERSIONS: [u8; 3] = [8, 10, 13];

/// The app on one version of Laravel, with private files.
pub(crate) struct Laravel {
    /// Major version.
    pub(crate) version: u8,
    /// Environment of its processes.
    pub(crate) env: Vec<(String, String)>,
    /// Key prefix of this version's skeleton.
    pub(crate) prefix: String,
    /// The output of `interop:config`.
    pub(crate) config: Value,
    storage: PathBuf,
}

/// What is the same for all scenes of a version with the same variables.
type Known<T> = Mutex<BTreeMap<(u8, Vec<(String, String)>), Arc<OnceLock<T>>>>;

/// Where the root of this version has the app, so that not every process has to find out.
fn copy_of_the_app(version: u8) -> &'static str {
    static COPIES: [OnceLock<String>; VERSIONS.len()] = [const { OnceLock::new() }; VERSIONS.len()];
    let index = VERSIONS.iter().position(|known| *known == version);
    COPIES[index.unwrap()].get_or_init(|| {
        let mut command = Command::new(project().join("php-interop").join("laravel"));
        let output = without_settings(&mut command)
            .args([&version.to_string(), "--copy"])
            .output()
            .unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap().trim().to_owned()
    })
}

impl Laravel {
    /// The app on this server.
    pub(crate) fn new(version: u8, redis: &RedisServer) -> Self {
        Self::with_env::<&str>(version, redis, &[])
    }

    /// The app on this server, with reservations of this many seconds.
    pub(crate) fn with_retry_after(version: u8, redis: &RedisServer, retry_after: u64) -> Self {
        let retry_after = retry_after.to_string();
        Self::with_env(version, redis, &[("REDIS_QUEUE_RETRY_AFTER", retry_after)])
    }

    /// The app on this server, with these variables set (`php-interop/README.md` lists all).
    pub(crate) fn with_env<V: AsRef<str>>(
        version: u8,
        redis: &RedisServer,
        env: &[(&str, V)],
    ) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        assert!(VERSIONS.contains(&version), "no Laravel {version}");
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let key = format!("it-{}-{number}", std::process::id());
        let variable = |name: &str, value: String| (name.to_owned(), value);
        let mut laravel = Self {
            version,
            env: vec![
                variable("INTEROP_KEY", key),
                variable("INTEROP_COPY", copy_of_the_app(version).to_owned()),
                variable("REDIS_HOST", "127.0.0.1".to_owned()),
                variable("REDIS_PORT", redis.port().to_string()),
                // The width that it has without a terminal. Laravel 8 would start five processes to find that out.
                variable("COLUMNS", "80".to_owned()),
            ],
            prefix: String::new(),
            config: Value::Null,
            storage: PathBuf::new(),
        };
        let more = env
            .iter()
            .map(|(name, value)| variable(name, value.as_ref().to_owned()));
        laravel.env.extend(more);
        let config = laravel.known_config();
        config["redis"]["prefix"]
            .as_str()
            .unwrap()
            .clone_into(&mut laravel.prefix);
        laravel.storage = config["storage"].as_str().unwrap().into();
        laravel.config = config;
        laravel
    }

    /// The output of `interop:config`.
    ///
    /// The command runs once for all scenes of a version with the same environment: what differs between them are the
    /// name of their storage and the port of their Redis.
    fn known_config(&self) -> Value {
        /// No port: it is too long to be one, or to be a part of a process id.
        const PORT: &str = "1091310913";
        static KNOWN: Known<String> = Mutex::new(BTreeMap::new());
        let own = |name: &str| {
            let found = self.env.iter().find(|(known, _)| known == name);
            found.unwrap().1.clone()
        };
        let key = format!("it-{}-config", std::process::id());
        let counts = |name: &str| !matches!(name, "INTEROP_KEY" | "REDIS_PORT");
        let text = self.known(&KNOWN, counts, || {
            let mut model = Self {
                version: self.version,
                env: self.env.clone(),
                prefix: String::new(),
                config: Value::Null,
                storage: PathBuf::new(),
            };
            model.env.extend([
                ("INTEROP_KEY".to_owned(), key.clone()),
                ("REDIS_PORT".to_owned(), PORT.to_owned()),
            ]);
            let config = model.run(&["interop:config"]).remove(0);
            // Deleted when it is dropped.
            model.storage = config["storage"].as_str().unwrap().into();
            config.to_string()
        });
        let text = text.replace(&key, &own("INTEROP_KEY"));
        serde_json::from_str(&text.replace(PORT, &own("REDIS_PORT"))).unwrap()
    }

    /// What the first scene of this version found whose variables that count are the same.
    fn known<T: Clone>(
        &self,
        known: &Known<T>,
        counts: impl Fn(&str) -> bool,
        find: impl FnOnce() -> T,
    ) -> T {
        let mut env = self.env.clone();
        env.retain(|(name, _)| counts(name));
        let cell = {
            let mut known = known.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(known.entry((self.version, env)).or_default())
        };
        cell.get_or_init(find).clone()
    }

    /// The path of the app's copy in the root of this version, relative to that root; empty for a version without a
    /// root.
    pub(crate) fn copy(&self) -> &'static str {
        copy_of_the_app(self.version)
    }

    /// The manifest of this app, with paths as this machine sees them.
    pub(crate) fn manifest(&self) -> Value {
        json!({
            "artisand": 1,
            "laravel": self.config["version"],
            "generated_at": 0,
            "paths": {"base": self.config["app_path"], "storage": self.config["storage"]},
            "config": self.config["config"],
            "cache_prefixes": {},
        })
    }

    /// The same, with what the exporter tells about the app's classes.
    pub(crate) fn manifest_with_classes(&self) -> Value {
        let mut manifest = self.manifest();
        for (key, value) in self.exported_classes().as_object().unwrap() {
            manifest[key] = value.clone();
        }
        manifest
    }

    /// The output of `manifest.php` for this app, with the framework's files as this machine sees them.
    fn exported_text(&self) -> String {
        const MARKER: &str = "---artisand-manifest---\n";
        let directory = project().join("php-interop");
        let mut command = Command::new(directory.join("laravel"));
        without_settings(&mut command)
            .args([&self.version.to_string(), "--", "."])
            .envs(self.env.iter().map(|(name, value)| (name, value)))
            .stdin(std::fs::File::open(directory.join("manifest.php")).unwrap());
        let output = command.output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        let json = text.split(MARKER).nth(1);
        let json = json.unwrap_or_else(|| panic!("no manifest: {output:?}"));
        let copy = copy_of_the_app(self.version);
        let app = self.config["app_path"].as_str().unwrap();
        let root = app.strip_suffix(copy).filter(|_| !copy.is_empty());
        let framework = format!("\"{}usr/share/php/", root.unwrap_or("/"));
        json.replace("\"/usr/share/php/", &framework)
    }

    /// The manifest of this app with its classes, as the program reads it.
    pub(crate) fn exported(&self) -> artisand::app::Manifest {
        let path = std::path::Path::new("artisand.json");
        let text = self.manifest_with_classes().to_string();
        artisand::app::Manifest::parse(path, text.as_bytes()).unwrap()
    }

    /// The keys of the manifest about the app's classes.
    ///
    /// The exporter, which takes as long as ten other commands, runs once for all scenes of a version whose app has the
    /// same code: classes do not depend on where its servers and its storage are.
    fn exported_classes(&self) -> Value {
        static KNOWN: Known<Value> = Mutex::new(BTreeMap::new());
        let is_of_the_code = |name: &str| {
            name.starts_with("INTEROP_")
                && !matches!(name, "INTEROP_KEY" | "INTEROP_COPY" | "INTEROP_CLUSTER")
        };
        self.known(&KNOWN, is_of_the_code, || self.classes_of_the_exporter())
    }

    fn classes_of_the_exporter(&self) -> Value {
        let exported: Value = serde_json::from_str(&self.exported_text()).unwrap();
        let keys = [
            "wrappers",
            "classes",
            "models",
            "queue_routes",
            "queue_forwards",
            "payload_hooks",
            "code",
        ];
        let part = |key: &str| (key.to_owned(), exported[key].clone());
        keys.map(part)
            .into_iter()
            .filter(|(_, value)| !value.is_null())
            .collect()
    }

    /// The app's settings as this program reads them.
    pub(crate) fn settings(&self) -> artisand::config::Laravel {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), self.manifest().to_string()).unwrap();
        let path = file.path().to_str().unwrap().to_owned();
        let env = [
            ("ARTISAND_MANIFEST", &*path),
            ("ARTISAND_SETTINGS", "manifest"),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        let config = artisand::config::Config::load(None, None, env).unwrap();
        config.known_laravel().unwrap().clone()
    }

    /// `php artisan` with these arguments.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(project().join("php-interop").join("laravel"));
        without_settings(&mut command)
            .arg(self.version.to_string())
            .arg("artisan")
            .args(args)
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Runs a command that prints JSON lines.
    pub(crate) fn run(&self, args: &[&str]) -> Vec<Value> {
        let output = self.output(args);
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success(),
            "Laravel {} {args:?}: {}\n{stdout}\n{}",
            self.version,
            output.status,
            String::from_utf8_lossy(&output.stderr)
        );
        let read = |line: &str| -> Value {
            serde_json::from_str(line)
                .unwrap_or_else(|e| panic!("Laravel {} {args:?}: {e}: {line}", self.version))
        };
        stdout.lines().map(read).collect()
    }

    /// Runs a command that prints for people: standard output and exit code.
    pub(crate) fn text(&self, args: &[&str]) -> (String, i32) {
        let output = self.output(args);
        let code = output
            .status
            .code()
            .unwrap_or_else(|| panic!("Laravel {} {args:?}: {}", self.version, output.status));
        (String::from_utf8_lossy(&output.stdout).into_owned(), code)
    }

    fn output(&self, args: &[&str]) -> Output {
        self.command(args)
            .output()
            .unwrap_or_else(|e| panic!("Laravel {} {args:?}: {e}", self.version))
    }

    /// One process that runs many commands: much faster, for independent commands.
    pub(crate) fn serve(&self) -> Served {
        let mut command = self.command(&["interop:serve"]);
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|e| panic!("{command:?}: {e}"));
        let pipes = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Served {
            child,
            pipes: Mutex::new((pipes.0, BufReader::new(pipes.1))),
        }
    }

    /// `queue:work redis` with these arguments, running.
    pub(crate) fn worker(&self, args: &[&str]) -> ManagedChild {
        ManagedChild::spawn(self.command(&[&["queue:work", "redis"][..], args].concat()))
    }

    /// Queues many jobs of `interop:journal` at once, named `job-000` and so on; returns their uuids in order.
    ///
    /// PHP makes the first of them, the others are copies with other names.
    pub(crate) fn journals(
        &self,
        redis: &RedisServer,
        count: usize,
        options: &[&str],
    ) -> Vec<String> {
        let args = [&["interop:journal", "job-000"][..], options].concat();
        let line = self.run(&args).remove(0);
        let uuid = line["uuid"].as_str().unwrap();
        let queue = self.key("queues:default");
        let first = redis.list(&queue).pop().unwrap();
        let first = String::from_utf8(first).unwrap();
        assert!(count <= 1000 && first.contains("job-000"), "{first}");
        let mut uuids = vec![uuid.to_owned()];
        for number in 1..count {
            // As long as the first name, or lengths in the serialized text would be wrong.
            let own = format!("{number:08x}{}", &uuid[8..]);
            let job = first
                .replace(uuid, &own)
                .replace("job-000", &format!("job-{number:03}"));
            redis.query::<()>(&[b"RPUSH", queue.as_bytes(), job.as_bytes()]);
            uuids.push(own);
        }
        uuids
    }

    /// The app's own log.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(self.storage.join("logs/laravel.log")).unwrap_or_default()
    }

    /// A key as it is in Redis.
    pub(crate) fn key(&self, name: &str) -> String {
        format!("{}{name}", self.prefix)
    }
}

impl Drop for Laravel {
    fn drop(&mut self) {
        // Nothing else removes the files. Without a name the app made none.
        if !self.storage.as_os_str().is_empty() {
            let _ = std::fs::remove_dir_all(&self.storage);
        }
    }
}

/// A process of the app that runs commands until it is dropped.
pub(crate) struct Served {
    child: Child,
    pipes: Mutex<(ChildStdin, BufReader<ChildStdout>)>,
}

impl Served {
    /// Runs a command that prints a JSON line.
    pub(crate) fn run(&self, args: &[&str]) -> Value {
        let (input, output) = &mut *self.pipes.lock().unwrap();
        writeln!(input, "{}", json!(args)).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let read = |text: &str| -> Value {
            serde_json::from_str(text).unwrap_or_else(|e| panic!("{args:?}: {e}: {text}"))
        };
        let answer = read(&line);
        let text = answer["text"].as_str().unwrap();
        assert_eq!(answer["code"], 0, "{args:?}: {text}");
        read(text)
    }
}

impl Served {
    /// Runs a command that prints for people.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        let (input, output) = &mut *self.pipes.lock().unwrap();
        writeln!(input, "{}", json!(args)).unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        let answer: Value =
            serde_json::from_str(&line).unwrap_or_else(|e| panic!("{args:?}: {e}: {line}"));
        let text = answer["text"].as_str().unwrap().to_owned();
        assert_eq!(answer["code"], 0, "{args:?}: {text}");
        text
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
