//! The files of an app, which no command changes: what the app has is read, and what it writes is PHP's.

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use rustix::process::Signal;
use tempfile::TempDir;

use super::settings::settings_of_php;
use crate::harness::apps::{App, Apps};
use crate::harness::jobs_table::JobsTable;
use crate::harness::process::{ManagedChild, artisand, eventually};
use crate::harness::redis::RedisServer;
use crate::harness::stores::Kind;
use crate::top::Terminal;

const SOON: Duration = Duration::from_secs(60);

/// No file at all.
const NOTHING: &[&str] = &[];
/// What Laravel remembers of its packages and providers when it boots.
const BOOTED: &[&str] = &[
    "bootstrap/cache/packages.php",
    "bootstrap/cache/services.php",
];
/// The app's own log, where Laravel reports a job that threw.
const LOG: &[&str] = &["storage/logs/laravel.log"];
/// Both.
const RAN: &[&str] = &[
    "bootstrap/cache/packages.php",
    "bootstrap/cache/services.php",
    "storage/logs/laravel.log",
];

/// `Fails` goes to a handler, and whatever is not named to PHP.
const MAPPINGS: &str = r#"
processes = 1
[unmapped]
policy = "php"
[[map]]
job = 'App\Jobs\Fails'
handler = { exec = ["false"] }
"#;

/// What a file is: its mode, and where a link leads or what a file contains.
type Tree = BTreeMap<String, (u32, Vec<u8>)>;

/// Everything below a directory; names are relative to it.
fn tree(directory: &Path) -> Tree {
    let mut tree = Tree::new();
    let mut left = vec![directory.to_owned()];
    while let Some(path) = left.pop() {
        let metadata = path.symlink_metadata().unwrap();
        let content = if metadata.is_symlink() {
            let target = std::fs::read_link(&path).unwrap();
            target.into_os_string().into_encoded_bytes()
        } else if metadata.is_dir() {
            let entries = std::fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
            Vec::new()
        } else {
            std::fs::read(&path).unwrap()
        };
        let name = path.strip_prefix(directory).unwrap().to_str().unwrap();
        tree.insert(name.to_owned(), (metadata.permissions().mode(), content));
    }
    tree
}

/// Names of what is new, gone or different.
fn changes<'a>(before: &'a Tree, after: &'a Tree) -> BTreeSet<&'a str> {
    let names = before.keys().chain(after.keys());
    let changed = names.filter(|name| before.get(*name) != after.get(*name));
    changed.map(String::as_str).collect()
}

/// An app as a deployment leaves it, and artisand, which works elsewhere.
struct Untouched<'a> {
    app: &'a App,
    home: TempDir,
    env: Vec<(String, String)>,
    name: String,
    tree: Tree,
    /// Names of commands that were run.
    run: BTreeSet<String>,
    /// All that was not as expected.
    wrong: Vec<String>,
}

impl Untouched<'_> {
    fn command(&mut self, args: &[&str]) -> Command {
        self.run.insert(args[0].to_owned());
        let mut command = artisand(args);
        command
            .arg("--config")
            .arg(self.home.path().join("settings.toml"))
            .current_dir(self.home.path())
            .envs(self.env.iter().map(|(name, value)| (name, value)));
        command
    }

    /// Checks that nothing of the app has changed since the last look, but what PHP may have written.
    fn look(&mut self, what: &str, of_php: &[&str]) {
        let now = tree(&self.app.here);
        let mut changed = changes(&self.tree, &now);
        changed.retain(|name| !of_php.contains(name));
        if !changed.is_empty() {
            self.wrong.push(format!("{what} changed {changed:?}"));
        }
        self.tree = now;
    }

    /// Runs a command, which ends with this exit code; returns what it prints.
    fn run(&mut self, args: &[&str], code: i32, of_php: &[&str]) -> String {
        let output = self.command(args).output().unwrap();
        let text = [output.stdout, output.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        if output.status.code() != Some(code) {
            self.wrong
                .push(format!("{args:?}: {}: {text}", output.status));
        }
        self.look(args[0], of_php);
        text
    }
}

/// Jobs that throw, for the app.
fn write_jobs(app: &App) {
    for class in ["Fails", "Throws"] {
        let code = format!(
            "<?php\n\nnamespace App\\Jobs;\n\nclass {class} implements \\Illuminate\\Contracts\\Queue\\ShouldQueue\n{{\n    \
             use \\Illuminate\\Bus\\Queueable;\n\n    public function handle()\n    {{\n        \
             throw new \\RuntimeException('nothing of the app was changed');\n    }}\n}}\n"
        );
        std::fs::write(app.here.join(format!("app/Jobs/{class}.php")), code).unwrap();
    }
}

/// Runs the commands that start neither a worker nor a process of the pool.
fn run_what_needs_no_worker(scene: &mut Untouched<'_>) {
    for args in [
        &["config:check"][..],
        &["init"],
        &["manifest", "--output=artisand.json"],
        &["manifest", "--output=-"],
        &["list"],
        &["help"],
        &["completions", "bash"],
        &["man"],
        &["demo"],
        &["bench", "--jobs=100", "--concurrency=1"],
    ] {
        scene.run(args, 0, NOTHING);
    }
    for class in ["Typed", "Fails", "Throws"] {
        let class = format!("App\\Jobs\\{class}");
        scene.run(&["dispatch", &class], 0, NOTHING);
    }
    for args in [
        &["queue:peek"][..],
        &["queue:monitor", "default"],
        &["queue:migrate"],
        &["queue:quarantine"],
        &["queue:pause", "default"],
        &["queue:resume", "default"],
        &["canary:resume"],
        &["make:handler", "App\\Jobs\\Typed"],
    ] {
        scene.run(args, 0, NOTHING);
    }
    let mut top = Terminal::run(&scene.command(&["top"]));
    top.shows("[Queues]");
    top.press("q");
    top.ends();
    scene.look("top", NOTHING);
}

fn no_command_changes_a_file_of_the_app(version: u8) {
    let redis = RedisServer::start();
    let apps = Apps::make_these(version, &[&format!("skeleton-{version}")]);
    let app = &apps.list[0];
    write_jobs(app);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let table = runtime.block_on(async {
        let table = JobsTable::create(Kind::Postgres).await;
        let batches = "create table job_batches (id varchar(255) primary key, name varchar(255) not null, \
                       total_jobs integer not null, pending_jobs integer not null, failed_jobs integer not null, \
                       failed_job_ids text not null, options text null, cancelled_at integer null, \
                       created_at integer not null, finished_at integer null)";
        table.database().execute(batches, &[]).await.unwrap();
        table
    });
    let mut env = table.settings.clone();
    env.extend([
        ("REDIS_PORT", redis.port().to_string()),
        ("REDIS_USERNAME", "null".to_owned()),
        ("REDIS_PASSWORD", "null".to_owned()),
        ("QUEUE_CONNECTION", "redis".to_owned()),
        ("CACHE_STORE", "redis".to_owned()),
        ("CACHE_DRIVER", "redis".to_owned()),
    ]);
    let home = tempfile::tempdir().unwrap();
    let settings = settings_of_php(version, app) + MAPPINGS;
    std::fs::write(home.path().join("settings.toml"), settings).unwrap();
    let own = |(name, value): (&str, String)| (name.to_owned(), value);
    let mut scene = Untouched {
        app,
        env: env.into_iter().map(own).collect(),
        name: format!("Laravel {version}"),
        tree: tree(&app.here),
        run: BTreeSet::new(),
        wrong: Vec::new(),
        home,
    };

    run_what_needs_no_worker(&mut scene);
    // `doctor` starts a process of the pool.
    scene.run(&["doctor"], 0, BOOTED);
    scene.run(&["queue:work", "--once"], 0, BOOTED);
    scene.run(&["queue:work", "--stop-when-empty", "--tries=1"], 0, RAN);
    let failed = scene.run(&["queue:failed"], 0, NOTHING);
    for class in ["Fails", "Throws"] {
        assert!(failed.contains(class), "{}: {failed}", scene.name);
    }
    let of_handler = failed.lines().find(|line| line.contains("Fails"));
    let uuid = regex::Regex::new("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}").unwrap();
    let uuid = uuid.find(of_handler.unwrap()).unwrap().as_str();
    scene.run(&["queue:forget", uuid], 0, NOTHING);

    let mut tail = ManagedChild::spawn(scene.command(&["tail"]));
    let mut listening = ManagedChild::spawn(scene.command(&["queue:listen", "--tries=1"]));
    eventually("the tail of a worker", SOON, || {
        assert!(listening.is_running(), "{}", listening.describe());
        scene.run(&["queue:retry", "all"], 0, LOG);
        tail.stdout().contains("Throws").then_some(())
    });
    listening.signal(Signal::TERM);
    listening.succeeds_within(SOON);
    scene.look("queue:listen", LOG);
    // `tail` has no handler for it.
    tail.signal(Signal::TERM);
    tail.wait_timeout(SOON);
    scene.look("tail", NOTHING);

    for args in [
        &["queue:clear", "--force"][..],
        &["queue:prune-failed"],
        &["queue:prune-batches"],
        &["queue:flush"],
        &["queue:restart"],
    ] {
        scene.run(args, 0, NOTHING);
    }
    scene.run(&["queue:retry-batch", "no-such-batch"], 1, NOTHING);

    let listed = scene.run(&["list", "--raw"], 0, NOTHING);
    let listed = listed.lines().filter_map(|line| line.split(' ').next());
    let listed: BTreeSet<String> = listed.map(str::to_owned).collect();
    assert_eq!(scene.run, listed);
    let wrong = scene.wrong.join("\n");
    assert!(wrong.is_empty(), "{}:\n{wrong}", scene.name);
}

on_every_laravel!(no_command_changes_a_file_of_the_app);
