//! Where the programs of mappings start, and what is said of programs and scripts that are not there.

use std::fmt::Write as _;
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::harness::process::{ManagedChild, artisand};
use crate::harness::redis::RedisServer;

const CLASSES: [&str; 2] = ["Each", "Kept"];

/// Prints where it runs: as a program for one job, and as one that stays.
const EACH: &str = "pwd >>\"$LOG\"";
const KEPT: &str = "while read -r job; do pwd >>\"$LOG\"; echo '{\"ok\":true}'; done";

struct Place {
    redis: RedisServer,
    directory: TempDir,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        for name in ["app/bootstrap", "etc/jobs"] {
            std::fs::create_dir_all(directory.path().join(name)).unwrap();
        }
        for name in ["app", "etc", "etc/jobs"] {
            for (script, text) in [("each.sh", EACH), ("kept.sh", KEPT)] {
                std::fs::write(directory.path().join(name).join(script), text).unwrap();
            }
        }
        Self {
            redis: RedisServer::start(),
            directory,
        }
    }

    /// Writes `etc/artisand.toml`, with a mapping for each class.
    fn configure(&self, app: &str, handlers: [&str; 2]) {
        let port = self.redis.port();
        let mut text = format!(
            "{app}\nsettings = 'env'\nlaravel = '13.31.0'\n[connections.redis]\nhost = '127.0.0.1'\nport = {port}\nprefix = ''\n[worker]\ncontrol_plane = false\n[unmapped]\npolicy = 'leave'\n"
        );
        for (class, handler) in CLASSES.iter().zip(handlers) {
            writeln!(
                text,
                "[[map]]\njob = 'App\\Jobs\\{class}'\nhandler = {handler}"
            )
            .unwrap();
        }
        std::fs::write(self.directory.path().join("etc/artisand.toml"), text).unwrap();
    }

    fn push(&self) {
        for class in CLASSES {
            let payload = format!(
                r#"{{"uuid":"u-{class}","displayName":"App\\Jobs\\{class}","job":"Illuminate\\Queue\\CallQueuedHandler@call","data":{{"commandName":"App\\Jobs\\{class}","command":"O:13:\"App\\Jobs\\{class}\":0:{{}}"}},"attempts":0}}"#
            );
            self.redis
                .query::<()>(&[b"RPUSH", b"queues:default", payload.as_bytes()]);
        }
    }

    /// artisand in a directory in which nothing is, as under systemd.
    fn artisand(&self, args: &[&str]) -> Command {
        let mut command = artisand(args);
        command
            .arg("--config")
            .arg(self.directory.path().join("etc/artisand.toml"))
            .env("LOG", self.directory.path().join("log"))
            .env("QUEUE_CONNECTION", "redis")
            .current_dir("/");
        command
    }

    /// Where both programs ran, below the place.
    fn run(&self) -> Vec<String> {
        self.push();
        let log = self.directory.path().join("log");
        let _ = std::fs::remove_file(&log);
        let mut worker =
            ManagedChild::spawn(self.artisand(&["queue:work", "--stop-when-empty", "--tries=1"]));
        worker.succeeds_within(Duration::from_secs(60));
        let lines =
            std::fs::read_to_string(log).unwrap_or_else(|_| panic!("{}", worker.describe()));
        let root = self.directory.path().canonicalize().unwrap();
        let below = |line: &str| {
            let path = std::path::Path::new(line).strip_prefix(&root);
            path.map_or(line.to_owned(), |path| path.display().to_string())
        };
        lines.lines().map(below).collect()
    }
}

#[test]
fn programs_start_in_the_apps_directory_or_that_of_the_settings_or_where_it_is_said() {
    let place = Place::new();
    let each = "{ exec = ['sh', 'each.sh'] }";
    let kept = "{ exec = ['sh', 'kept.sh'], persistent = true }";
    place.configure("app = '../app'", [each, kept]);
    assert_eq!(place.run(), ["app", "app"]);
    place.configure("", [each, kept]);
    assert_eq!(place.run(), ["etc", "etc"]);
    let elsewhere = [each, kept].map(|handler| handler.replace(" }", ", cwd = 'jobs' }"));
    place.configure("app = '../app'", [&elsewhere[0], &elsewhere[1]]);
    assert_eq!(place.run(), ["etc/jobs", "etc/jobs"]);
}

#[test]
fn a_worker_whose_program_is_not_there_does_not_start() {
    let place = Place::new();
    place.push();
    let there = "{ exec = ['sh', 'each.sh'] }";
    let rows = [
        (
            "{ exec = ['pyhton3', 'x'] }",
            "no program `pyhton3` in the search path (PATH)",
        ),
        ("{ exec = ['sh'], cwd = 'nowhere' }", "no directory "),
        (
            "{ exec = ['./each'], persistent = true }",
            "No such file or directory",
        ),
    ];
    for (handler, said) in rows {
        place.configure("", [there, handler]);
        let output = place
            .artisand(&["queue:work", "--stop-when-empty"])
            .output();
        let output = output.unwrap();
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{handler}: {text}");
        assert!(text.contains("artisand.toml:17: "), "{handler}: {text}");
        assert!(text.contains(said), "{handler}: {text}");
        assert_eq!(place.redis.length("queues:default"), 2);
    }
    // A script may come later, or be none.
    place.configure("", [there, "{ exec = ['sh', 'nothing.sh'] }"]);
    for args in [
        &["config:check"][..],
        &["doctor"],
        &["queue:work", "--stop-when-empty"],
    ] {
        let output = place.artisand(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text);
        assert!(
            text.contains("artisand.toml:17: no script `nothing.sh` in "),
            "{text}"
        );
    }
}
