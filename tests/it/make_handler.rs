//! `make:handler`: its output compiles, and reads the jobs from which it was made.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use artisand::payload::{Payload, Target};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde_json::{Value, json};

use crate::harness::fixtures::{lines, path, project};
use crate::harness::process::{artisand, cargo, example};
use crate::harness::redis::RedisServer;

/// The key of the app in `php-interop/app`.
const APP_KEY: &str = "artisand interop key, 32 bytes!!";

/// `make:handler` with these arguments and the key of the fixtures' app.
fn make(args: &[&str]) -> Output {
    let mut command = artisand(&["make:handler"]);
    command.env("APP_KEY", APP_KEY).args(args).output().unwrap()
}

fn made(args: &[&str]) -> String {
    let output = make(args);
    assert!(output.status.success(), "{args:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A crate of generated handlers, and a program that reads the jobs they were made from.
struct Crate {
    directory: tempfile::TempDir,
    modules: Vec<String>,
}

impl Crate {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(directory.path().join("src")).unwrap();
        std::fs::create_dir_all(directory.path().join("jobs")).unwrap();
        Self {
            directory,
            modules: Vec::new(),
        }
    }

    /// Adds a generated file, and the payloads that it must read.
    fn add(&mut self, name: &str, code: &str, payloads: &[String]) {
        assert!(payloads.len() < 1000 && !payloads.is_empty(), "{name}");
        let argument = code.split("job: ").nth(1).unwrap();
        let argument = argument.split(" context: JobContext").next().unwrap();
        let argument = argument.trim_end().trim_end_matches(',');
        let read = match code.split("let parameters: ").nth(1) {
            None => "drop(job);".to_owned(),
            Some(rest) => {
                let ty = rest.split(" =").next().unwrap();
                format!("job.parameters::<{ty}>()?;")
            }
        };
        let code = format!(
            "{code}\n/// Reads a job.\npub fn read(context: &JobContext) -> Result<(), BoxError> {{\n    let job = handler::input::<{argument}>(context)?;\n    {read}\n    Ok(())\n}}\n"
        );
        let directory = self.directory.path();
        std::fs::write(directory.join("src").join(format!("{name}.rs")), code).unwrap();
        let jobs = directory.join("jobs").join(format!("{name}.jsonl"));
        std::fs::write(jobs, payloads.join("\n")).unwrap();
        self.modules.push(name.to_owned());
    }

    /// Compiles without a warning and reads every job.
    fn check(&self) {
        let directory = self.directory.path();
        let source = directory.join("src");
        let mut library = "//! Handlers.\n#![deny(warnings, missing_docs)]\n".to_owned();
        let mut main = MAIN.to_owned();
        for module in &self.modules {
            writeln!(library, "pub mod {module};").unwrap();
            writeln!(
                main,
                "    wrong += all({module:?}, include_str!(\"../jobs/{module}.jsonl\"), made::{module}::read);"
            )
            .unwrap();
        }
        main.push_str("    std::process::exit(i32::from(wrong > 0));\n}\n");
        std::fs::write(source.join("lib.rs"), library).unwrap();
        std::fs::write(source.join("main.rs"), main).unwrap();
        let libraries = libraries();
        let rustc = |args: &[&str]| {
            let mut command = tool("rustc");
            command
                .args(["--edition", "2024"])
                .args(args)
                .args(&libraries);
            self.run(&mut command);
        };
        rustc(&[
            "--crate-type",
            "lib",
            "--crate-name",
            "made",
            "src/lib.rs",
            "-o",
            "libmade.rlib",
        ]);
        rustc(&["src/main.rs", "--extern", "made=libmade.rlib", "-o", "main"]);
        let seen = self.run(&mut Command::new(directory.join("main")));
        assert_eq!(seen.lines().count(), self.modules.len(), "{seen}");
    }

    /// Runs a program where the files are; it must succeed.
    fn run(&self, command: &mut Command) -> String {
        let output = command.current_dir(self.directory.path()).output().unwrap();
        let said = [output.stderr, output.stdout.clone()].concat();
        let said: String = String::from_utf8_lossy(&said)
            .chars()
            .take(20_000)
            .collect();
        assert!(output.status.success(), "{}\n{said}", self.kept());
        String::from_utf8(output.stdout).unwrap()
    }

    /// Directory where the files stay for the analysis of a failure.
    fn kept(&self) -> String {
        let kept = std::env::temp_dir().join("artisand-made");
        let _ = std::fs::remove_dir_all(&kept);
        let copied = Command::new("cp")
            .arg("-r")
            .args([self.directory.path(), &kept])
            .status();
        format!("{} ({copied:?})", kept.display())
    }
}

/// A program of the toolchain that built this test.
fn tool(name: &str) -> Command {
    Command::new(Path::new(env!("CARGO")).with_file_name(name))
}

/// The crates that this test itself uses, for rustc: a separate crate would build all of them again.
fn libraries() -> Vec<String> {
    let output = cargo()
        .args([
            "test",
            "--no-run",
            "--offline",
            "--test",
            "it",
            "--message-format=json",
        ])
        .current_dir(project())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let mut args = Vec::new();
    for line in String::from_utf8(output.stdout).unwrap().lines() {
        let message: Value = serde_json::from_str(line).unwrap();
        let name = message["target"]["name"].as_str().unwrap_or_default();
        let wanted = [
            "artisand",
            "serde",
            "serde_bytes",
            "serde_json",
            "tokio_util",
        ];
        let files = message["filenames"].as_array().into_iter().flatten();
        let library = files
            .filter_map(Value::as_str)
            .find(|file| Path::new(file).extension() == Some("rlib".as_ref()));
        if let (true, Some(file)) = (wanted.contains(&name), library) {
            args.extend(["--extern".to_owned(), format!("{name}={file}")]);
            let directory = Path::new(file).parent().unwrap().display();
            args.extend(["-L".to_owned(), format!("dependency={directory}")]);
        }
    }
    assert_eq!(args.len(), 5 * 4, "{args:?}");
    args
}

/// Reads all jobs of a module, and says which cannot be read.
const MAIN: &str = r#"
use std::sync::Arc;

use artisand::handler::{BoxError, JobContext, JobInfo, Services};
use artisand::payload::{Encrypter, Payload};

fn context(line: &str) -> Result<JobContext, BoxError> {
    let mut payload = Payload::parse(line.as_bytes())?;
    if payload.is_encrypted() {
        let version = artisand::payload::Version::NEWEST;
        let key = "artisand interop key, 32 bytes!!";
        payload.decrypt(&Encrypter::new(version, key, "AES-256-CBC")?)?;
    }
    let info = JobInfo {
        connection: "redis".into(),
        queue: "default".into(),
        attempts: 1,
        payload: Arc::new(payload),
        body: line.as_bytes().into(),
        reserved: Arc::default(),
        trace: None,
    };
    let cancelled = tokio_util::sync::CancellationToken::new();
    Ok(JobContext::new(Arc::new(info), cancelled, Arc::new(Services::default())))
}

fn all(name: &str, jobs: &str, read: fn(&JobContext) -> Result<(), BoxError>) -> usize {
    let mut wrong = 0;
    for (index, line) in jobs.lines().enumerate() {
        let result = context(line).and_then(|context| read(&context));
        if let Err(error) = result {
            let mut text = error.to_string();
            let mut cause = error.source();
            while let Some(error) = cause {
                text = format!("{text}: {error}");
                cause = error.source();
            }
            eprintln!("{name}, job {}: {text}", index + 1);
            wrong += 1;
        }
    }
    println!("{name}");
    wrong
}

fn main() {
    let mut wrong = 0;
"#;

/// The argument of `make:handler` for a payload; `None` for closures.
fn wanted(payload: &str) -> Option<String> {
    let payload = Payload::parse(payload.as_bytes()).unwrap();
    let target = Target::of(&payload).unwrap();
    Some(match &target {
        Target::Closure | Target::Batch => return None,
        Target::Listener { class, method, .. } => format!("{class}@{method}"),
        Target::String { class, method } => format!("{class}@{method}"),
        target => target.name().to_owned(),
    })
}

/// A module's name.
fn module(version: &str, wanted: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let name: String = wanted.chars().map(plain).collect();
    format!("{version}_{}", name.to_lowercase())
}

/// Files of payloads, by name.
type Files = BTreeMap<&'static str, Vec<PathBuf>>;

fn add_fixtures(made_crate: &mut Crate) {
    let file = |version: u8| format!("payloads/laravel-{version}.jsonl");
    let mut versions = Files::new();
    versions.insert("v13", vec![path(&file(13))]);
    for version in [8, 10, 13] {
        versions
            .entry("all")
            .or_default()
            .push(path(&file(version)));
    }
    for (name, files) in &versions {
        let mut payloads: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for file in files {
            let file = file.file_name().unwrap().to_str().unwrap();
            for (_, line) in lines(&format!("payloads/{file}")) {
                let element = line["element"].as_str().unwrap();
                // A reference behind a `C:` body, which only PHP can follow.
                if line["kind"] != "custom"
                    && let Some(wanted) = wanted(element)
                {
                    payloads.entry(wanted).or_default().push(element.to_owned());
                }
            }
        }
        assert!(payloads.len() > 50, "{} classes", payloads.len());
        for (wanted, payloads) in payloads {
            let mut args = vec![wanted.as_str()];
            for file in files {
                args.extend(["--fixture", file.to_str().unwrap()]);
            }
            let code = made(&args);
            assert_eq!(code, made(&args), "{wanted} twice");
            made_crate.add(&module(name, &wanted), &code, &payloads);
        }
    }
}

/// A serialized string.
fn string(text: &[u8]) -> Vec<u8> {
    let mut out = format!("s:{}:\"", text.len()).into_bytes();
    out.extend_from_slice(text);
    out.extend_from_slice(b"\";");
    out
}

/// A serialized object.
fn object(class: &str, properties: &[(&[u8], &[u8])]) -> Vec<u8> {
    let mut out = format!("O:{}:\"{class}\":{}:{{", class.len(), properties.len()).into_bytes();
    for (name, value) in properties {
        out.extend(string(name));
        out.extend_from_slice(value);
    }
    out.push(b'}');
    out
}

/// The payload of a job; bytes that are no UTF-8 come as PHP's base64 of an encrypted one would not, so they are
/// escaped.
fn payload(class: &str, command: &[u8]) -> String {
    let command = String::from_utf8(command.to_vec()).unwrap();
    json!({
        "uuid": "3de51a7a-8699-4296-a24d-c4657f1bd6ca", "displayName": class,
        "job": "Illuminate\\Queue\\CallQueuedHandler@call", "maxTries": null,
        "data": {"commandName": class, "command": command}, "id": "x", "attempts": 0,
    })
    .to_string()
}

/// Names that try to be code, to hide, or to be the same as others.
fn hostile_names() -> Vec<String> {
    let mut names: Vec<String> = [
        "type",
        "self",
        "Self",
        "crate",
        "super",
        "async",
        "gen",
        "union",
        "_",
        "__",
        "",
        " ",
        "0",
        "2fast",
        "fooBar",
        "foo_bar",
        "FooBar",
        "foo-bar",
        "foo bar",
        "\"; fn evil() {} //",
        "\"\n} pub fn evil() {} /*",
        "*/ evil /*",
        "`] evil [`",
        "\\",
        "\\\"",
        "{evil}",
        "\u{202e}evil\u{202c}",
        "\u{2028}evil",
        "\r\nevil",
        "\0evil",
        "zażółć",
        "名前",
        "🚀",
        "é",
        "e\u{301}",
        "job",
        "context",
        "registry",
        "App\\Jobs\\Other::name",
    ]
    .map(str::to_owned)
    .to_vec();
    names.push("long".repeat(100));
    names.push("長い".repeat(100));
    // `job`, `context` and similar properties are Laravel's own; they need no field.
    let different: BTreeSet<&String> = names.iter().collect();
    assert_eq!(different.len(), names.len());
    names
}

/// Jobs whose names and values try to break the generated code.
#[expect(clippy::too_many_lines, reason = "it is a table")]
fn hostile_jobs() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let int: &[u8] = b"i:1;";
    let names = hostile_names();
    let properties: Vec<(&[u8], &[u8])> = names.iter().map(|name| (name.as_bytes(), int)).collect();
    let mut jobs = Vec::new();
    let class = "App\\Jobs\\HostileNames";
    jobs.push((
        "names",
        class,
        vec![payload(class, &object(class, &properties))],
    ));

    // The same as keys of an array, of different types, and of nested records.
    let values: [&[u8]; 4] = [b"i:1;", b"d:0.5;", b"a:0:{}", b"N;"];
    let mut pairs = Vec::new();
    for (index, name) in names.iter().enumerate() {
        pairs.extend(string(name.as_bytes()));
        pairs.extend_from_slice(values[index % 4]);
    }
    let array = [
        format!("a:{}:{{", names.len()).into_bytes(),
        pairs,
        b"}".to_vec(),
    ]
    .concat();
    let nested =
        b"a:2:{s:4:\"type\";a:2:{s:4:\"self\";i:1;s:5:\"match\";s:1:\"x\";}s:1:\"b\";b:1;}";
    let class = "App\\Jobs\\HostileKeys";
    let command = object(class, &[(b"keys", &array), (b"records", nested)]);
    jobs.push(("keys", class, vec![payload(class, &command)]));

    // Classes with names that the file uses, or with the same base name.
    let classes = [
        "App\\Option",
        "App\\String",
        "Vec",
        "App\\Registry",
        "App\\A\\Point",
        "App\\B\\Point",
        "App\\a\\point",
        "Point",
        "App\\JobContext",
        "App\\Deserialize",
        "App\\serde",
        "App\\artisand",
        "App\\std",
        "App\\self",
        "App\\Self",
        "App\\1",
        "App\\名前",
        "App\\HostileClasses",
    ];
    let objects: Vec<Vec<u8>> = classes
        .iter()
        .map(|name| object(name, &[(b"x", int)]))
        .collect();
    let places: Vec<String> = (0..classes.len())
        .map(|index| format!("p{index}"))
        .collect();
    let mut properties: Vec<(&[u8], &[u8])> = Vec::new();
    for (place, object) in places.iter().zip(&objects) {
        properties.push((place.as_bytes(), object));
    }
    let class = "App\\Jobs\\HostileClasses";
    jobs.push((
        "classes",
        class,
        vec![payload(class, &object(class, &properties))],
    ));

    let cases = [
        "Self",
        "IN_PROGRESS",
        "InProgress",
        "_",
        "éclair",
        "type",
        "None",
        "A1",
    ];
    let mut list = format!("a:{}:{{", cases.len());
    for (index, case) in cases.iter().enumerate() {
        let text = format!("App\\Enums\\Default:{case}");
        write!(list, "i:{index};E:{}:\"{text}\";", text.len()).unwrap();
    }
    list.push('}');
    let class = "App\\Jobs\\HostileCases";
    let command = object(class, &[(b"cases", list.as_bytes())]);
    jobs.push(("cases", class, vec![payload(class, &command)]));

    // Lists of lists of lists, objects in objects of the same class, without end and with one.
    let deep = [b"a:1:{i:0;".repeat(300), b"i:1;".to_vec(), b"}".repeat(300)].concat();
    let node = |next: &[u8]| object("App\\Node", &[(b"next", next), (b"twin", b"N;")]);
    let chain = node(&node(&node(b"N;")));
    let pair = object(
        "App\\Left",
        &[(b"right", &object("App\\Right", &[(b"left", b"N;")]))],
    );
    let other = object(
        "App\\Right",
        &[(b"left", &object("App\\Left", &[(b"right", b"N;")]))],
    );
    let class = "App\\Jobs\\HostileDepth";
    let command = object(
        class,
        &[
            (b"deep", &deep),
            (b"chain", &chain),
            (b"pair", &pair),
            (b"other", &other),
            (b"me", b"r:1;"),
        ],
    );
    jobs.push(("depth", class, vec![payload(class, &command)]));

    // One name twice, and invalid ids, dates and models.
    let model = object(
        "Illuminate\\Contracts\\Database\\ModelIdentifier",
        &[(b"class", int), (b"id", b"b:1;")],
    );
    let date = object(
        "DateTime",
        &[
            (b"date", b"s:5:\"never\";"),
            (b"timezone_type", b"i:3;"),
            (b"timezone", b"s:3:\"UTC\";"),
        ],
    );
    let twice = b"a:2:{s:1:\"a\";i:1;s:1:\"a\";s:1:\"x\";}";
    let class = "App\\Jobs\\HostileValues";
    let command = object(
        class,
        &[
            (b"name", int),
            (b"\0*\0name", b"s:1:\"x\";"),
            (b"\0App\\Jobs\\Parent\0name", b"N;"),
            (b"model", &model),
            (b"date", &date),
            (b"twice", twice),
            (b"nan", b"d:NAN;"),
            (b"custom", b"C:5:\"App\\C\":1:{x}"),
        ],
    );
    jobs.push(("values", class, vec![payload(class, &command)]));

    // Samples with different properties.
    let class = "App\\Jobs\\Changing";
    let samples: [&[(&[u8], &[u8])]; 4] = [
        &[
            (b"a", b"i:1;"),
            (b"b", b"a:0:{}"),
            (b"c", b"a:1:{s:1:\"k\";i:1;}"),
            (b"d", b"N;"),
        ],
        &[
            (b"a", b"d:0.5;"),
            (b"b", b"a:1:{s:1:\"k\";i:1;}"),
            (b"c", b"a:0:{}"),
            (b"d", b"b:1;"),
        ],
        &[
            (b"a", b"N;"),
            (b"b", b"a:1:{i:0;i:1;}"),
            (b"c", b"a:2:{s:1:\"k\";i:1;s:1:\"l\";s:1:\"x\";}"),
        ],
        &[],
    ];
    let samples = samples.map(|properties| payload(class, &object(class, properties)));
    jobs.push(("changing", class, samples.to_vec()));

    // More properties than become fields.
    let many: Vec<String> = (0..500).map(|index| format!("p{index}")).collect();
    let properties: Vec<(&[u8], &[u8])> = many.iter().map(|name| (name.as_bytes(), int)).collect();
    let class = "App\\Jobs\\Wide";
    jobs.push((
        "wide",
        class,
        vec![payload(class, &object(class, &properties))],
    ));

    let class = "App\\Jobs\\Ünï\\Çöde";
    jobs.push((
        "unicode",
        class,
        vec![payload(class, &object(class, &[(b"\xc3\xbc", int)]))],
    ));
    jobs
}

fn string_job(job: &str, data: &Value) -> String {
    json!({"uuid": "u", "displayName": job, "job": job, "maxTries": null, "data": data, "id": "x", "attempts": 0})
        .to_string()
}

/// String jobs: their data is any JSON, their names are any text.
fn hostile_string_jobs() -> Vec<(&'static str, &'static str, Vec<String>)> {
    let row = |name: &'static str, job: &'static str, data: &[Value]| {
        let payloads = data.iter().map(|data| string_job(job, data));
        (name, job, payloads.collect())
    };
    vec![
        row(
            "s_record",
            "Rec@fire",
            &[
                json!({"id": 7, "list": [], "map": {}}),
                json!([]),
                json!({"id": null}),
            ],
        ),
        row("s_list", "List@fire", &[json!([1, 2]), json!([])]),
        row("s_scalar", "Scalar@fire", &[json!(1), json!(2.5)]),
        row("s_null", "Null@fire", &[json!(null)]),
        row("s_map", "Map@fire", &[json!({"a b": 1, "c": 2}), json!([])]),
        row(
            "s_mixed",
            "Mixed@fire",
            &[json!({"a": 1}), json!("x"), json!(null)],
        ),
        row(
            "s_big",
            "Big@fire",
            &[json!({"n": 18_446_744_073_709_551_615_u64, "é": {"x": [[], {}]}})],
        ),
        row(
            "s_name",
            "it's \"a\"\n*/ name@me thod",
            &[json!({"a": 1, "b": "x"})],
        ),
    ]
}

/// Handlers made from the manifest alone read the jobs that real Laravel made of such classes.
fn add_kinds(made_crate: &mut Crate) {
    let (directory, config) = place_of(&kinds_manifest());
    let none = directory.path().join("jobs.jsonl");
    for kind in ["listener", "notification", "mailable", "plain"] {
        let payload = fixture(kind);
        let wanted = wanted(&payload).unwrap();
        let class = wanted.split('@').next().unwrap();
        let code = made(&[class, "--fixture", none.to_str().unwrap(), &config]);
        assert!(code.contains("the manifest alone"), "{code}");
        made_crate.add(&format!("kind_{kind}"), &code, &[payload]);
    }
}

#[test]
fn what_is_made_compiles_and_reads_the_jobs_it_was_made_from() {
    let mut made_crate = Crate::new();
    add_fixtures(&mut made_crate);
    let directory = tempfile::tempdir().unwrap();
    for (name, wanted, payloads) in hostile_jobs().into_iter().chain(hostile_string_jobs()) {
        let file = directory.path().join(name);
        std::fs::write(&file, payloads.join("\n")).unwrap();
        let code = made(&[wanted, "--fixture", file.to_str().unwrap()]);
        let is_evil = |line: &str| {
            let line = line.trim().trim_start_matches("pub ");
            line.starts_with("fn evil") || line.starts_with("evil ")
        };
        assert!(!code.lines().any(is_evil), "{code}");
        made_crate.add(&format!("hostile_{name}"), &code, &payloads);
    }
    add_kinds(&mut made_crate);
    made_crate.check();
}

/// The payload of a fixture.
fn fixture(kind: &str) -> String {
    let lines = lines("payloads/laravel-13.jsonl");
    let (_, line) = lines.iter().find(|(_, line)| line["kind"] == kind).unwrap();
    line["element"].as_str().unwrap().to_owned()
}

/// Puts the payload of a fixture into a queue.
fn push(redis: &RedisServer, kind: &str, key: &str) {
    let element = fixture(kind);
    redis.query::<i64>(&[b"RPUSH", key.as_bytes(), element.as_bytes()]);
}

#[test]
fn the_worker_of_the_examples_runs_what_it_maps_and_leaves_the_rest() {
    let redis = RedisServer::start();
    for kind in ["model", "plain", "listener", "notification"] {
        push(&redis, kind, "queues:default");
    }
    let directory = tempfile::tempdir().unwrap();
    let toml = project().join("examples/worker/artisand.toml");
    let toml = std::fs::read_to_string(toml).unwrap();
    let at_home = toml.replace("redis://127.0.0.1:6379", &redis.url());
    assert_ne!(at_home, toml, "the example names the usual Redis");
    std::fs::write(directory.path().join("artisand.toml"), at_home).unwrap();
    let output = example("worker")
        .args(["queue:work", "--stop-when-empty", "--quiet"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    let said: BTreeSet<&str> = said.lines().collect();
    let expected = [
        "greet App\\Models\\User Single(Int(1)), attempt 1",
        "invoice 17 over 12.50 by mail",
        "shipped by post at 2026-01-02T03:04:05.000000+00:00",
    ];
    assert_eq!(said, BTreeSet::from(expected));
    assert_eq!(redis.length("queues:default"), 1, "{}", redis.state());

    // What handlers print is no record: it goes to standard error.
    push(&redis, "model", "queues:default");
    let output = example("worker")
        .args(["queue:work", "--stop-when-empty", "--json"])
        .current_dir(directory.path())
        .output()
        .unwrap();
    let (out, log) = (
        String::from_utf8(output.stdout).unwrap(),
        String::from_utf8(output.stderr).unwrap(),
    );
    for line in out.lines() {
        assert!(
            serde_json::from_str::<serde_json::Value>(line).is_ok(),
            "{out}"
        );
    }
    assert!(out.contains("\"success\""), "{out}{log}");
    assert!(log.lines().any(|line| line == expected[0]), "{log}");
}

/// A job with a property of every kind, twice: once with optional values, once without.
fn order_jobs() -> String {
    let model = object(
        "Illuminate\\Contracts\\Database\\ModelIdentifier",
        &[
            (b"class", b"s:15:\"App\\Models\\User\";"),
            (b"id", b"i:7;"),
            (b"relations", b"a:0:{}"),
            (b"connection", b"N;"),
        ],
    );
    let date = object(
        "Carbon\\CarbonImmutable",
        &[
            (b"date", b"s:26:\"2026-01-02 03:04:05.000000\";"),
            (b"timezone_type", b"i:3;"),
            (b"timezone", b"s:3:\"UTC\";"),
        ],
    );
    let line = |sku: &[u8], price: &[u8]| {
        object(
            "App\\Values\\Line",
            &[(b"sku", sku), (b"\0App\\Values\\Line\0unitPrice", price)],
        )
    };
    let lines_of = [
        b"a:2:{i:0;".to_vec(),
        line(b"s:1:\"a\";", b"i:5;"),
        b"i:1;".to_vec(),
        line(b"N;", b"d:2.5;"),
        b"}".to_vec(),
    ]
    .concat();
    let class = "App\\Jobs\\SendOrder";
    let status = b"E:25:\"App\\Enums\\Status:IN_PLACE\";";
    let whole: &[(&[u8], &[u8])] = &[
        (b"\0*\0customer", &model),
        (b"placedAt", &date),
        (b"status", status),
        (b"lines", &lines_of),
        (b"totals", b"a:1:{s:3:\"net\";d:7.5;}"),
        (b"type", b"s:1:\"x\";"),
        (b"note", b"N;"),
        (b"gift", b"b:1;"),
        (b"queue", b"s:4:\"high\";"),
        (b"tries", b"i:3;"),
    ];
    let short = &whole[..6];
    [whole, short]
        .map(|properties| payload(class, &object(class, properties)))
        .join("\n")
}

/// The manifest of the class, as the app's PHP would write it.
fn order_manifest() -> Value {
    let property = |name: &str, ty: Option<&str>, default: Option<&[u8]>| {
        json!({
            "name": name, "visibility": "public", "class": "App\\Jobs\\SendOrder", "type": ty,
            "default": default.map(|default| BASE64.encode(default)),
        })
    };
    json!({
        "artisand": 1, "laravel": "13.0.0", "generated_at": 0,
        "paths": {"base": "/nowhere", "storage": "/nowhere/storage"},
        "config": {"app": {}, "queue": {}, "cache": {}, "database": {}},
        "models": {"App\\Models\\User": {"table": "users"}},
        "classes": {"App\\Jobs\\SendOrder": {
            "kind": "job", "file": "app/Jobs/SendOrder.php",
            "uses": ["Illuminate\\Queue\\SerializesModels"],
            "properties": [
                property("placedAt", Some("Carbon\\CarbonImmutable"), None),
                property("note", Some("?string"), Some(b"N;")),
                property("gift", Some("bool"), Some(b"b:1;")),
                property("copies", Some("int"), Some(b"i:2;")),
                property("tags", Some("array"), Some(b"a:0:{}")),
                property("seller", Some("?App\\Models\\User"), None),
                property("tries", None, Some(b"i:3;")),
            ],
        }},
    })
}

#[test]
fn types_come_from_samples_and_the_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    std::fs::write(place("jobs.jsonl"), order_jobs()).unwrap();
    std::fs::write(place("artisand.json"), order_manifest().to_string()).unwrap();
    let toml = format!("manifest = {:?}\n", place("artisand.json"));
    std::fs::write(place("artisand.toml"), toml).unwrap();
    let config = format!("--config={}", place("artisand.toml"));
    let fixture = place("jobs.jsonl");
    let args = ["app\\jobs\\sendorder", "--fixture", &fixture];
    insta::assert_snapshot!("samples", made(&args));
    insta::assert_snapshot!(
        "samples_and_manifest",
        made(&[&args[..], &[&config]].concat())
    );
    std::fs::write(place("jobs.jsonl"), "").unwrap();
    insta::assert_snapshot!("manifest_alone", made(&[&args[..], &[&config]].concat()));
}

/// The manifest of a listener with its event, a notification, a mailable and a job, as PHP would write it.
fn kinds_manifest() -> Value {
    let class = |kind: &str, file: &str, more: Value| {
        let mut class = json!({
            "kind": kind, "file": file, "uses": ["Illuminate\\Queue\\SerializesModels"],
            "flags": {"queued": true},
        });
        let class_facts = class.as_object_mut().unwrap();
        class_facts.extend(more.as_object().unwrap().clone());
        class
    };
    let property = |class: &str, visibility: &str, name: &str, ty: Value| json!({"name": name, "visibility": visibility, "class": class, "type": ty});
    let event = "App\\Events\\OrderShipped";
    let with_default = json!({
        "name": "carrier", "visibility": "public", "class": event, "type": null,
        "default": BASE64.encode(b"s:4:\"post\";"),
    });
    let mut manifest = order_manifest();
    manifest["classes"] = json!({
        "App\\Listeners\\SendShipmentNotification": class("listener", "a.php", json!({
            "listens": [{"event": event, "method": "handle"}, {"event": "App\\Events\\Other", "method": "onOther"}],
            "handle": [format!("{event}|App\\Events\\Unknown")],
            "flags": {"queued": true, "failed": true, "unique": true},
            "middleware": {"method": true, "named": [], "property": []},
        })),
        event: class("event", "b.php", json!({"properties": [
            with_default,
            property(event, "public", "user", json!("App\\Models\\User")),
            property(event, "public", "at", json!("Illuminate\\Support\\Carbon")),
            property(event, "protected", "items", json!("array")),
            property(event, "public", "socket", Value::Null),
        ]})),
        "App\\Events\\Other": class("event", "c.php", json!({"uses": [], "properties": [
            property("App\\Events\\Other", "public", "user", json!("?App\\Models\\User")),
        ]})),
        "App\\Notifications\\InvoicePaid": class("notification", "d.php", json!({
            "flags": {"queued": true, "encrypted": true},
        })),
        "App\\Mail\\OrderConfirmation": class("mailable", "e.php", json!({})),
        "App\\Jobs\\Plain": class("job", "f.php", json!({
            "flags": {"queued": true, "failed": true, "batchable": true, "unique": true, "encrypted": true},
            "unique_via": true,
            "limits": {"debounceFor": 5},
            "middleware": {"method": true, "property": [], "named": [
                "WithoutOverlapping",
                "RateLimited",
                "ThrottlesExceptionsWithRedis",
                "SkipIfBatchCancelled",
                "Skip",
                "FailOnException",
            ]},
        })),
    });
    manifest
}

/// A directory with a configuration of this manifest, and the option that names it.
fn place_of(manifest: &Value) -> (tempfile::TempDir, String) {
    let directory = tempfile::tempdir().unwrap();
    let place = |name: &str| directory.path().join(name);
    std::fs::write(place("artisand.json"), manifest.to_string()).unwrap();
    std::fs::write(place("jobs.jsonl"), "").unwrap();
    std::fs::write(place("artisand.toml"), "manifest = \"artisand.json\"\n").unwrap();
    let config = format!("--config={}", place("artisand.toml").display());
    (directory, config)
}

#[test]
fn kinds_events_and_what_is_around_a_class_come_from_the_manifest() {
    let (directory, config) = place_of(&kinds_manifest());
    let fixture = directory.path().join("jobs.jsonl");
    let args = |class| [class, "--fixture", fixture.to_str().unwrap(), &config];
    let listener = "App\\Listeners\\SendShipmentNotification";
    insta::assert_snapshot!("listener_of_manifest", made(&args(listener)));
    let job = made(&args("App\\Jobs\\Plain"));
    insta::assert_snapshot!("surroundings", job);
    let mapping = job.split("```").nth(1).unwrap().replace("//! ", "\n");
    let mapping = mapping
        .trim_start_matches("toml")
        .replace("\n# middleware", "\nmiddleware")
        .replace("\n#  ", "\n")
        .replace("\n# ]", "\n]");
    let mapping: toml::Table = mapping
        .replace("\n# debounce", "\ndebounce")
        .parse()
        .unwrap();
    assert_eq!(mapping["map"][0]["middleware"].as_array().unwrap().len(), 6);
    assert_eq!(mapping["map"][0]["debounce"].as_str(), Some("{PROPERTY}"));

    // A named method has its own event; a model that is no reference is read as an object.
    let other = format!("{listener}@onOther");
    let other = made(&args(&other));
    for part in [
        "SendShipmentNotification@onOther'",
        "event = 'App\\Events\\Other'",
        "job: Listener<Other>",
        "pub user: Option<serde_json::Value>,",
        "fn send_shipment_notification_on_other(",
    ] {
        assert!(other.contains(part), "{part} in {other}");
    }
    let notification = made(&args("App\\Notifications\\InvoicePaid"));
    assert!(
        notification.contains("notification = 'App\\Notifications\\InvoicePaid'\n"),
        "{notification}"
    );
    assert!(notification.contains("* Encryption"), "{notification}");
    let output = make(&args("App\\Events\\OrderShipped"));
    let error = String::from_utf8(output.stderr).unwrap();
    assert!(
        error.contains("It is an event: name a listener of it"),
        "{error}"
    );
}

#[test]
fn what_cannot_be_made_is_said_with_what_to_do() {
    let redis = RedisServer::start();
    push(&redis, "plain", "queues:default");
    push(&redis, "encrypted", "queues:high");
    let toml = format!(
        "[connections.redis]\nurl = \"{}\"\nprefix = \"\"\n",
        redis.url()
    );
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("artisand.toml");
    std::fs::write(&file, toml).unwrap();
    let config = format!("--config={}", file.display());
    let said = |args: &[&str]| {
        let output = artisand(&["make:handler", &config])
            .args(args)
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert!(output.stdout.is_empty(), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    };
    let error = said(&["App\\Jobs\\Nowhere"]);
    for part in [
        "no job of `App\\Jobs\\Nowhere` was found",
        "queue `default` of connection `redis` (1 job)",
        "queue `high` of connection `redis` (1 job)",
        "Could not look at failed jobs",
        "1 of App\\Jobs\\Plain",
        "--fixture",
        "artisand manifest",
    ] {
        assert!(error.contains(part), "{part} in {error}");
    }
    let error = said(&["App\\Jobs\\Encrypted"]);
    assert!(error.contains("1 cannot: encrypted, "), "{error}");
    let error = said(&["App\\Jobs\\Plain", "--queue=low"]);
    assert!(
        error.contains("queue `low` of connection `redis` (empty)"),
        "{error}"
    );
    let error = said(&["App\\Jobs\\Plain", "--fixture=/nowhere/x"]);
    assert!(error.contains("could not read /nowhere/x"), "{error}");

    // In all lists of a queue, and no job moves.
    let found = |class: &str| {
        let args = ["make:handler", &config, class, "redis"];
        let output = artisand(&args).env("APP_KEY", APP_KEY).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    assert!(found("App\\Jobs\\Encrypted").contains("pub secret: String"));
    let element = redis.list("queues:default").remove(0);
    redis.query::<i64>(&[b"ZADD", b"queues:default:delayed", b"1", &element]);
    redis.query::<i64>(&[b"ZADD", b"queues:low:reserved", b"1", &element]);
    let before = redis.state();
    assert!(found("\\App\\Jobs\\Plain").contains("(3 waiting)"));
    assert_eq!(redis.state(), before);

    // An existing file is not overwritten.
    let out = directory.path().join("handler.rs");
    let args = [
        "App\\Jobs\\Plain",
        "redis",
        "--output",
        out.to_str().unwrap(),
    ];
    let output = artisand(&["make:handler", &config])
        .args(args)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stdout.is_empty(),
        "{output:?}"
    );
    let text = std::fs::read_to_string(&out).unwrap();
    assert!(said(&args).contains("could not write"));
    assert_eq!(std::fs::read_to_string(&out).unwrap(), text);
}
