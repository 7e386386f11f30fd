//! `artisand demo`: captured jobs of a real app, drained from a queue in a file, without a server and without PHP.

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::Context as _;
use serde::Deserialize;
use serde_json::json;

use super::output;
use crate::config::{DEFAULT_FILE, MANIFEST_FILE};
use crate::connection::{Database, DatabaseKind, DatabaseOptions};
use crate::queue::{DatabaseQueue, DatabaseQueueOptions, Queue as _, QueueName};

/// Arguments of `demo`.
#[derive(Debug, clap::Args)]
pub(super) struct DemoArgs {
    /// Do it in this new directory, and keep it
    #[arg(long, value_name = "DIR")]
    keep: Option<PathBuf>,
}

/// What Laravel 13 pushed: one object per line.
const CAPTURED: &str = include_str!("../../fixtures/payloads/laravel-13.jsonl");

/// Version of the Laravel that pushed it.
const LARAVEL: &str = "13.31.0";

/// The key of that app, which encrypted some of them. It guards nothing.
const KEY: &str = "base64:YXJ0aXNhbmQgaW50ZXJvcCBrZXksIDMyIGJ5dGVzISE=";

/// The statements of Laravel's own migrations.
const TABLES: [&str; 3] = [
    DatabaseQueue::TABLE_OF_JOBS[0],
    DatabaseQueue::TABLE_OF_JOBS[1],
    "create table \"failed_jobs\" (\"id\" integer primary key autoincrement not null, \"uuid\" varchar not null unique, \
     \"connection\" text not null, \"queue\" text not null, \"payload\" text not null, \"exception\" text not null, \
     \"failed_at\" datetime not null default current_timestamp)",
];

const SETTINGS: &str = r#"settings = "manifest"                     # what the app says stands in artisand.json

[worker]
concurrency = 4

[unmapped]
policy = "leave"                          # what no mapping names stays for PHP

[[map]]                                   # a class of its own: a program gets the job as JSON
job = 'App\Jobs\Plain'
handler = { exec = ["sh", "-c", "cat >> plain.jsonl"] }

[[map]]                                   # a program may ask for another try
job = 'App\Jobs\Retrying'
handler = { exec = ["sh", "-c", "echo 'podcast service is down' >&2; exit 1"] }

[[map]]                                   # a pattern: nothing to do but say so
job = 'App\Jobs\*'
handler = "discard"
"#;

/// How the names of variables begin that say settings of an app: they would win over those of the demo.
const OF_APPS: [&str; 7] = [
    "APP_",
    "ARTISAND_",
    "CACHE_",
    "DB_",
    "OTEL_",
    "QUEUE_",
    "REDIS_",
];

/// The fields of a captured job that are needed.
#[derive(Deserialize)]
struct Captured {
    /// Where the payload was: `list` or `delayed`.
    key: String,
    element: String,
}

pub(super) async fn run(args: DemoArgs) -> anyhow::Result<ExitCode> {
    let scratch = match &args.keep {
        Some(kept) => {
            std::fs::create_dir(kept)
                .with_context(|| format!("cannot create {}", kept.display()))?;
            None
        }
        None => Some(
            tempfile::Builder::new()
                .prefix("artisand-demo-")
                .tempdir()?,
        ),
    };
    let home = match (&scratch, &args.keep) {
        (Some(scratch), _) => scratch.path().to_owned(),
        (None, Some(kept)) => kept.canonicalize()?,
        (None, None) => unreachable!("one of them is the directory"),
    };
    let pushed = prepare(&home).await?;
    output::data(&format!(
        "{pushed} jobs that Laravel {LARAVEL} wrote are in the table `jobs` of a SQLite file.\n"
    ))?;
    let demo = Demo { home: &home };
    demo.command(&["queue:peek", "--limit=2"])?;
    let done = demo.work(&["queue:work", "--stop-when-empty"])?;
    let got = std::fs::read_to_string(home.join("plain.jsonl")).unwrap_or_default();
    output::data(&format!("\nThe program of App\\Jobs\\Plain got\n{got}"))?;
    demo.command(&["queue:failed"])?;
    demo.command(&["queue:monitor", "database:default"])?;
    output::data(&format!(
        "\n{done} jobs are done. What is pending is for PHP: no mapping names it, or only PHP can run it.\n"
    ))?;
    if args.keep.is_some() {
        let kept = home.display();
        output::data(&format!(
            "Everything is in {kept}: artisand.toml, artisand.json, database.sqlite.\n"
        ))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Writes settings, tables and jobs; returns the number of jobs.
async fn prepare(home: &Path) -> anyhow::Result<usize> {
    let file = home.join("database.sqlite");
    std::fs::write(&file, "")?;
    std::fs::write(home.join(DEFAULT_FILE), SETTINGS)?;
    std::fs::write(home.join(MANIFEST_FILE), manifest(home, &file).to_string())?;
    let options = DatabaseOptions {
        database: file.display().to_string(),
        ..DatabaseOptions::new("sqlite", DatabaseKind::Sqlite)
    };
    let database = Database::new(&options)?;
    for statement in TABLES {
        database.execute(statement, &[]).await?;
    }
    let mut payloads = Vec::new();
    for line in CAPTURED.lines() {
        let captured: Captured = serde_json::from_str(line)?;
        if captured.key == "list" {
            payloads.push(captured.element.into_bytes());
        }
    }
    let queue = DatabaseQueue::new(&options, DatabaseQueueOptions::default())?;
    queue.push(&QueueName::from("default"), &payloads).await?;
    Ok(payloads.len())
}

/// What `artisand manifest` would write for the app, as far as a worker needs it.
fn manifest(home: &Path, file: &Path) -> serde_json::Value {
    json!({
        "artisand": 1,
        "laravel": LARAVEL,
        "generated_at": 0,
        "paths": {"base": home, "storage": home},
        "cache_prefixes": {},
        "config": {
            "app": {
                "key": KEY, "cipher": "AES-256-CBC", "timezone": "UTC", "maintenance": {"driver": "file"},
            },
            "cache": {"default": "file", "stores": {"file": {"driver": "file", "path": home.join("cache")}}, "prefix": ""},
            "database": {
                "default": "sqlite",
                "connections": {"sqlite": {"driver": "sqlite", "database": file, "prefix": ""}},
            },
            "queue": {
                "default": "database",
                "connections": {"database": {
                    "driver": "database", "table": "jobs", "queue": "default", "retry_after": 90,
                }},
                "batching": {"database": "sqlite", "table": "job_batches"},
                "failed": {"driver": "database-uuids", "database": "sqlite", "table": "failed_jobs"},
            },
        },
    })
}

/// Commands in the directory of the demo.
struct Demo<'a> {
    home: &'a Path,
}

impl Demo<'_> {
    /// A command whose settings are those of the demo alone, whatever app the environment names.
    fn of(&self, args: &[&str]) -> anyhow::Result<Command> {
        output::data(&format!("\n$ artisand {}\n", args.join(" ")))?;
        let mut command = Command::new(std::env::current_exe()?);
        for (name, _) in std::env::vars_os() {
            let shown = name.to_string_lossy();
            if OF_APPS.iter().any(|prefix| shown.starts_with(prefix)) {
                command.env_remove(&name);
            }
        }
        command
            .args(args)
            .arg("--config")
            .arg(self.home.join(DEFAULT_FILE))
            .current_dir(self.home)
            .stdin(Stdio::null());
        Ok(command)
    }

    /// Shows a command, runs it and waits for its end.
    fn command(&self, args: &[&str]) -> anyhow::Result<()> {
        let status = self.of(args)?.status()?;
        anyhow::ensure!(
            status.success(),
            "artisand {} ended with {status}",
            args.join(" ")
        );
        Ok(())
    }

    /// Runs a worker and shows some of its lines; returns how many jobs it has done.
    fn work(&self, args: &[&str]) -> anyhow::Result<usize> {
        const SHOWN: usize = 12;
        let worked = self.of(args)?.output()?;
        let log = String::from_utf8_lossy(&worked.stderr);
        anyhow::ensure!(
            worked.status.success(),
            "the worker ended with {}: {log}",
            worked.status
        );
        let lines = String::from_utf8_lossy(&worked.stdout);
        let lines: Vec<&str> = lines.lines().collect();
        let ended = |how| lines.iter().filter(move |line| line.ends_with(how));
        let mut shown: Vec<&str> = lines.iter().copied().take(SHOWN).collect();
        let more = format!("  (and {} more lines)", lines.len().saturating_sub(SHOWN));
        shown.push(&more);
        shown.extend(ended("FAIL"));
        output::data(&format!("{}\n", shown.join("\n")))?;
        Ok(ended("DONE").count())
    }
}
