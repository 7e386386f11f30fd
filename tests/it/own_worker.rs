//! `init`, and a custom worker's name and its checks of waiting jobs.

use std::path::Path;
use std::process::Command;

use artisand::payload::CALL_QUEUED_HANDLER;
use serde_json::{Value, json};

use crate::harness::fixtures::{lines, project};
use crate::harness::process::{artisand, cargo, example};
use crate::harness::redis::RedisServer;

fn init(directory: &Path, args: &[&str]) -> (bool, String) {
    let output = artisand(&[&["init"], args].concat())
        .current_dir(directory)
        .output()
        .unwrap();
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8(text).unwrap())
}

#[test]
fn init_writes_settings_and_overwrites_none() {
    let directory = tempfile::tempdir().unwrap();
    let here = directory.path();
    let settings = || std::fs::read_to_string(here.join("artisand.toml")).unwrap();
    assert!(init(here, &[]).0);
    let text = settings();
    assert!(
        text.starts_with("# The app: its configuration says"),
        "{text}"
    );
    assert!(
        text.parse::<toml::Table>().unwrap()["worker"]
            .as_table()
            .unwrap()
            .is_empty(),
        "{text}"
    );
    // The text of every comment is TOML, too.
    let is_toml = |line: &&str| line.contains(" = ") || line.starts_with('[');
    let open = text
        .lines()
        .filter_map(|line| line.strip_prefix("# ").filter(is_toml));
    let open = open.collect::<Vec<_>>().join("\n");
    let open = open
        .parse::<toml::Table>()
        .unwrap_or_else(|error| panic!("{error}: {open}"));
    assert_eq!(open["map"].as_array().unwrap().len(), 3, "{open}");

    std::fs::write(here.join("artisand.toml"), "# mine\n").unwrap();
    // No registry has the crate.
    let (is_done, said) = init(here, &["--worker", "my-worker"]);
    assert!(
        !is_done && said.contains("`--worker` needs `--source`"),
        "{said}"
    );
    let with = |source: &str| init(here, &["--worker", "my-worker", "--source", source]);
    let (is_done, said) = with("nowhere");
    assert!(!is_done && said.contains("no Cargo.toml in"), "{said}");
    assert!(!here.join("my-worker").exists());
    let (is_done, said) = init(here, &[]);
    assert!(
        !is_done && said.contains("artisand.toml is there already"),
        "{said}"
    );
    // As in the README: the settings first, the crate later.
    let (is_done, said) = with("https://git.example/artisand");
    assert!(
        is_done && said.contains("is there already, and stays"),
        "{said}"
    );
    assert!(here.join("my-worker/Cargo.toml").exists());
    assert_eq!(settings(), "# mine\n");
    std::fs::remove_dir_all(here.join("my-worker")).unwrap();

    // In the app's directory, and with a named app.
    let app = tempfile::tempdir().unwrap();
    std::fs::create_dir(app.path().join("bootstrap")).unwrap();
    for file in ["artisan", "bootstrap/app.php"] {
        std::fs::write(app.path().join(file), "").unwrap();
    }
    // The PHP of the file describes the app, as it runs the jobs.
    let text = "[php]\nbinary = ['/nowhere/php13']\n";
    std::fs::write(app.path().join("artisand.toml"), text).unwrap();
    let output = artisand(&["manifest", "-o", "-"])
        .current_dir(app.path())
        .output()
        .unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("/nowhere/php13"), "{said}");
    std::fs::remove_file(app.path().join("artisand.toml")).unwrap();
    std::fs::remove_file(here.join("artisand.toml")).unwrap();
    assert!(init(here, &["--app", app.path().to_str().unwrap()]).0);
    let named = settings().parse::<toml::Table>().unwrap();
    assert_eq!(named["app"].as_str(), app.path().to_str());
    assert!(init(app.path(), &[]).0);
    let text = std::fs::read_to_string(app.path().join("artisand.toml")).unwrap();
    assert!(
        text.starts_with("# The app is the directory in which"),
        "{text}"
    );

    std::fs::remove_file(here.join("artisand.toml")).unwrap();
    let (is_done, said) = with("https://git.example/artisand");
    assert!(is_done, "{said}");
    let manifest = std::fs::read_to_string(here.join("my-worker/Cargo.toml")).unwrap();
    let manifest = manifest.parse::<toml::Table>().unwrap();
    assert_eq!(
        manifest["dependencies"]["artisand"]["git"].as_str(),
        Some("https://git.example/artisand")
    );

    let (is_done, said) = init(here, &["--worker", "my worker"]);
    assert!(
        !is_done && said.contains("expected the name of a new crate"),
        "{said}"
    );
}

#[test]
#[ignore = "compiles a crate (make test)"]
fn the_crate_that_init_writes_compiles() {
    let directory = tempfile::tempdir().unwrap();
    let source = project();
    let args = [
        "--worker",
        "my-worker",
        "--source",
        source.to_str().unwrap(),
    ];
    let (is_done, said) = init(directory.path(), &args);
    assert!(is_done, "{said}");
    let made = directory.path().join("my-worker");
    assert!(said.contains("`cargo build --release"), "{said}");
    let ignored = std::fs::read_to_string(made.join(".gitignore")).unwrap();
    assert_eq!(ignored, "/target\n");
    // It has the local versions, so nothing is downloaded.
    // With the features and the profile of this project's own checks, all that both depend on is checked already.
    let ours = std::fs::read_to_string(source.join("Cargo.toml")).unwrap();
    let ours = ours.parse::<toml::Table>().unwrap();
    let manifest = std::fs::read_to_string(made.join("Cargo.toml")).unwrap();
    let mut parts =
        ["dev-dependencies", "profile"].map(|part| (part.to_owned(), ours[part].clone()));
    // Such a crate sees the public part alone.
    parts[0].1.as_table_mut().unwrap().remove("artisand");
    let parts = toml::to_string(&toml::Table::from_iter(parts)).unwrap();
    std::fs::write(made.join("Cargo.toml"), format!("{manifest}\n{parts}")).unwrap();
    let target = Path::new(env!("CARGO_BIN_EXE_artisand"))
        .ancestors()
        .nth(2)
        .unwrap();
    let output = cargo()
        .args(["check", "--offline", "--all-targets"])
        .env("CARGO_TARGET_DIR", target)
        .current_dir(&made)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    let is_clean = output.status.success() && !said.contains("warning");
    assert!(is_clean, "{said}");
}

fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn a_worker_of_ones_own_carries_its_own_name() {
    let version = said(example("worker").arg("--version"));
    assert_eq!(version, "worker (artisand 0.1.0)\n");
    assert_eq!(said(&mut artisand(&["--version"])), "artisand 0.1.0\n");
    assert!(said(example("worker").arg("list")).starts_with("worker (artisand 0.1.0)\n"));
    let man = said(example("worker").arg("man"));
    assert!(
        man.contains(".TH worker 1") && !man.contains(".TH artisand"),
        "{man}"
    );
    let completions = said(example("worker").args(["completions", "bash"]));
    assert!(completions.contains("-o default worker\n"), "{completions}");
}

#[test]
fn doctor_reads_waiting_jobs_as_their_handlers_would() {
    let redis = RedisServer::start();
    let payloads = lines("payloads/laravel-13.jsonl");
    let (_, model) = payloads
        .iter()
        .find(|(_, line)| line["kind"] == "model")
        .unwrap();
    let command = "O:18:\"App\\Jobs\\WithModel\":1:{s:4:\"user\";i:5;}";
    let unfit = json!({
        "uuid": "uuid-1", "displayName": "App\\Jobs\\WithModel", "job": CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\WithModel", "command": command},
        "id": "id-1", "attempts": 0,
    });
    let directory = tempfile::tempdir().unwrap();
    let toml = std::fs::read_to_string(project().join("examples/worker/artisand.toml")).unwrap();
    let toml = toml.replace("redis://127.0.0.1:6379", &redis.url());
    std::fs::write(directory.path().join("artisand.toml"), toml).unwrap();
    let findings = |mut command: Command, check: &str| -> Vec<Value> {
        let text = said(
            command
                .args(["doctor", "--json"])
                .current_dir(directory.path()),
        );
        let report: Value = serde_json::from_str(&text).unwrap();
        let findings = report["findings"].as_array().unwrap().iter();
        findings
            .filter(|finding| finding["check"] == check)
            .cloned()
            .collect()
    };
    let push =
        |payload: &str| redis.query::<()>(&[b"RPUSH", b"queues:default", payload.as_bytes()]);

    push(model["element"].as_str().unwrap());
    let input = findings(example("worker"), "input");
    assert_eq!(input.len(), 1, "{input:?}");
    assert_eq!(
        input[0]["found"],
        "`default`: 1 of App\\Jobs\\WithModel can be read by their handler"
    );
    push(&unfit.to_string());
    let input = findings(example("worker"), "input");
    assert_eq!(input[0]["level"], "error", "{input:?}");
    let found = input[0]["found"].as_str().unwrap();
    assert!(
        found.starts_with(
            "`default`: 1 of 2 of App\\Jobs\\WithModel cannot be read by their handler: "
        ),
        "{found}"
    );
    let program = findings(example("worker"), "program");
    assert_eq!(
        program[0]["found"],
        "worker (artisand 0.1.0), with the handlers greet, invoice_paid, shipped"
    );

    // The standard program has none of these handlers.
    let mappings = findings(artisand(&[]), "mappings");
    assert!(
        mappings[0]["remedy"]
            .as_str()
            .unwrap()
            .starts_with("run your worker's own doctor"),
        "{mappings:?}"
    );
}
