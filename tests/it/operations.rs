//! What the pages for operators tell people to run and to write: it is there, and other programs can read it.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use artisand::queue::Keys;
use regex::Regex;
use serde_json::Value;

use crate::harness::fixtures::project;
use crate::harness::process::{artisand, cargo, eventually};
use crate::harness::redis::RedisServer;
use crate::telemetry::{Served, names};

const SOON: Duration = Duration::from_secs(60);

fn read(path: &str) -> String {
    let path = project().join(path);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The code blocks of a page in this language.
fn blocks(page: &str, language: &str) -> Vec<String> {
    let fence = Regex::new(r"(?ms)^```(\w+)\n(.*?)^```$").unwrap();
    let text = read(page);
    let blocks = fence.captures_iter(&text);
    blocks
        .filter(|block| &block[1] == language)
        .map(|block| block[2].to_owned())
        .collect()
}

fn run(command: &mut Command, input: &str) -> Output {
    let program = command.get_program().to_string_lossy().into_owned();
    let child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn();
    let mut child = child
        .unwrap_or_else(|error| panic!("{program}: {error}; php-interop/setup.sh installs it"));
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input.as_bytes()).unwrap();
    drop(stdin);
    child.wait_with_output().unwrap()
}

fn documents(yaml: &str) -> Vec<Value> {
    let script = "import json, sys, yaml; print(json.dumps(list(yaml.safe_load_all(sys.stdin))))";
    let output = run(Command::new("/usr/bin/python3").args(["-c", script]), yaml);
    assert!(output.status.success(), "{output:?}\n{yaml}");
    serde_json::from_slice(&output.stdout).unwrap()
}

/// All values with this key, at any depth.
fn values<'a>(document: &'a Value, key: &str) -> Vec<&'a Value> {
    let inside: Vec<_> = match document {
        Value::Array(items) => items.iter().collect(),
        Value::Object(fields) => fields.values().collect(),
        _ => Vec::new(),
    };
    let own = document.get(key).into_iter();
    own.chain(inside.into_iter().flat_map(|value| values(value, key)))
        .collect()
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_else(|| panic!("{value}"))
}

/// The options of each command.
struct Options(BTreeMap<String, BTreeSet<String>>);

impl Options {
    fn new() -> Self {
        let said = |args: &[&str]| {
            let output = artisand(args).output().unwrap();
            assert!(output.status.success(), "{output:?}");
            String::from_utf8(output.stdout).unwrap()
        };
        let option = Regex::new(r"--[a-z][a-z-]*").unwrap();
        let list = said(&["list", "--raw"]);
        let commands = list.lines().filter_map(|line| line.split(' ').next());
        let options = commands.map(|command| {
            let help = said(&[command, "--help"]);
            let options = option
                .find_iter(&help)
                .map(|found| found.as_str().to_owned());
            (command.to_owned(), options.collect())
        });
        let mut options: BTreeMap<_, BTreeSet<_>> = options.collect();
        let resume = options["queue:resume"].clone();
        options.insert("queue:continue".to_owned(), resume);
        Self(options)
    }

    /// Wants a command to exist and to have these options.
    fn check(&self, words: &[&str], place: &str) {
        let Some((command, rest)) = words.split_first() else {
            panic!("no command in {place}");
        };
        let known = self.0.get(*command);
        let known = known.unwrap_or_else(|| panic!("no command {command}: {place}"));
        for word in rest.iter().take_while(|word| **word != "--") {
            let name = word.split('=').next().unwrap_or_default();
            assert!(
                !name.starts_with("--") || known.contains(name),
                "{command} has no {name}: {place}"
            );
        }
    }
}

/// Pages for people.
fn pages() -> Vec<PathBuf> {
    let of = |directory: &str| {
        let entries = std::fs::read_dir(project().join(directory)).unwrap();
        entries.map(|entry| entry.unwrap().path())
    };
    let pages = of("docs")
        .chain(of("docs/operations"))
        .chain(of("packaging"));
    let mut pages: Vec<_> = pages.filter(|page| page.is_file()).collect();
    pages.retain(|page| page.extension().is_none_or(|name| name != "png"));
    pages.push(project().join("README.md"));
    pages
}

#[test]
fn commands_and_options_that_pages_name_exist() {
    let options = Options::new();
    // A command begins a line of a shell or stands in backticks, maybe behind variables; what ends it is not part of
    // it.
    let shell = Regex::new(r"(?m)(?:^|[`$] |`|[A-Z_]+=\S+ |-u www-data |bin/)artisand ((?:--\w+ \S+ )?)([a-z][a-z:-]*)([^`\n#|&;)]*)").unwrap();
    let mut checked = 0;
    for page in pages() {
        let text = std::fs::read_to_string(&page).unwrap();
        for found in shell.captures_iter(&text) {
            let place = format!("{}: {}", page.display(), &found[0]);
            let words: Vec<_> = std::iter::once(&found[2])
                .chain(found[3].split_whitespace())
                .collect();
            if options.0.contains_key(words[0]) || words[0].contains(':') {
                options.check(&words, &place);
                checked += 1;
            }
        }
    }
    assert!(checked > 60, "{checked}");
}

/// The snippets of the page on containers, parsed.
fn containers() -> Vec<Value> {
    let snippets = blocks("docs/operations/containers.md", "yaml");
    let parsed: Vec<_> = snippets.iter().flat_map(|yaml| documents(yaml)).collect();
    assert!(parsed.len() >= 7, "{parsed:?}");
    parsed
}

#[test]
fn what_kubernetes_and_keda_are_told_exists() {
    let options = Options::new();
    let redis = RedisServer::start();
    let served = Served::start(&redis, &[]);
    served.shows("/readyz", &["\"status\":\"ok\""]);
    let (_, status) = served.json("/api/status");
    let mut kinds = BTreeSet::new();
    let mut probed = BTreeSet::new();
    for document in containers() {
        if let Some(kind) = document.get("kind") {
            let version = text(&document["apiVersion"]);
            kinds.insert(format!("{version} {}", text(kind)));
        }
        for command in values(&document, "command") {
            // Compose takes a line, too.
            let Some(words) = command.as_array() else {
                continue;
            };
            let words: Vec<_> = words.iter().map(text).collect();
            assert_eq!(words[0], "artisand");
            options.check(&words[1..], &command.to_string());
        }
        for get in values(&document, "httpGet") {
            let path = text(&get["path"]);
            // A server that takes two seconds to answer counts as away.
            eventually(path, SOON, || (served.get(path).0 == 200).then_some(()));
            assert_eq!(get["port"], "metrics");
            probed.insert(path.to_owned());
        }
        for location in values(&document, "valueLocation") {
            let pointer = format!("/{}", text(location).replace('.', "/"));
            assert!(
                status.pointer(&pointer).is_some_and(Value::is_u64),
                "{location}: {status}"
            );
        }
        for url in values(&document, "url") {
            let path = text(url).split(":9464").nth(1).unwrap();
            assert_eq!(served.get(path).0, 200, "{url}");
        }
    }
    let expected = [
        "apps/v1 Deployment",
        "batch/v1 CronJob",
        "keda.sh/v1alpha1 ScaledObject",
        "v1 Service",
    ];
    assert!(kinds.iter().eq(expected), "{kinds:?}");
    assert!(
        probed.iter().eq(["/livez", "/readyz", "/startupz"]),
        "{probed:?}"
    );
}

#[test]
fn the_pieces_for_kubernetes_fit_each_other() {
    let all = containers();
    let of = |kind: &str| {
        all.iter()
            .filter(|one| one["kind"] == *kind)
            .collect::<Vec<_>>()
    };
    let deployment = of("Deployment")[0];
    let template = &deployment["spec"]["template"];
    let labels = &template["metadata"]["labels"];
    assert_eq!(&deployment["spec"]["selector"]["matchLabels"], labels);
    assert_eq!(&of("Service")[0]["spec"]["selector"], labels);
    let container = &template["spec"]["containers"][0];
    let port = &container["ports"][0];
    let listens = format!("--metrics=0.0.0.0:{}", port["containerPort"]);
    let command = container["command"].as_array().unwrap();
    assert!(command.contains(&listens.into()), "{command:?}");
    assert_eq!(
        port["name"],
        of("Service")[0]["spec"]["ports"][0]["targetPort"]
    );
    for scaled in of("ScaledObject") {
        let target = &scaled["spec"]["scaleTargetRef"]["name"];
        assert_eq!(target, &deployment["metadata"]["name"]);
    }
    // The lists that KEDA looks at are those that workers use.
    let keys = Keys::new("laravel-database-");
    let known = [
        keys.list(&"default".into()),
        keys.reserved(&"default".into()),
    ];
    let lists = all.iter().flat_map(|one| values(one, "listName"));
    assert!(lists.eq(known.iter()), "{known:?}");
}

#[test]
fn prometheus_takes_the_queries_of_the_pages() {
    let scaling = containers();
    let asked = scaling.iter().flat_map(|one| values(one, "query"));
    let mut queries: Vec<String> = asked.map(|query| text(query).to_owned()).collect();
    for block in blocks("docs/operations/containers.md", "promql") {
        queries.extend(block.lines().map(str::to_owned));
    }
    assert!(queries.len() >= 3, "{queries:?}");
    let documented = names(&read("docs/operations/metrics.md"));
    let unknown: Vec<_> = names(&queries.join("\n"))
        .difference(&documented)
        .cloned()
        .collect();
    assert!(unknown.is_empty(), "{unknown:?}");
    let rules: Vec<_> = queries
        .iter()
        .map(|query| serde_json::json!({"record": "a:b", "expr": query}))
        .collect();
    let file = tempfile::NamedTempFile::new().unwrap();
    // JSON is YAML.
    let groups = serde_json::json!({"groups": [{"name": "pages", "rules": rules}]});
    std::fs::write(file.path(), groups.to_string()).unwrap();
    let checked = run(
        Command::new("promtool")
            .args(["check", "rules"])
            .arg(file.path()),
        "",
    );
    let said = String::from_utf8_lossy(&checked.stderr);
    // The names of the rules are all the same, which it says as well.
    assert!(
        checked.status.success() && !said.contains("could not parse"),
        "{said}"
    );
}

#[test]
fn systemd_takes_the_packaged_unit_with_the_drop_in_of_the_page() {
    let snippets = blocks("docs/deployment.md", "ini");
    let drop_in = snippets
        .iter()
        .find(|text| text.starts_with("[Service]"))
        .unwrap();
    let home = tempfile::tempdir().unwrap();
    let unit = home.path().join("artisand@shop.service");
    let program = env!("CARGO_BIN_EXE_artisand");
    let here = |text: &str| {
        text.replace("/usr/bin/artisand", program)
            .replace("/srv/shop/worker", program)
    };
    std::fs::write(&unit, here(&read("packaging/artisand@.service"))).unwrap();
    let directory = home.path().join("artisand@shop.service.d");
    std::fs::create_dir(&directory).unwrap();
    for (name, text) in [("none", ""), ("page", drop_in)] {
        std::fs::write(directory.join("override.conf"), here(text)).unwrap();
        let checked = run(
            Command::new("systemd-analyze")
                .args(["verify", "--man=no"])
                .arg(&unit),
            "",
        );
        let said = String::from_utf8_lossy(&checked.stderr);
        assert!(
            checked.status.success() && said.is_empty(),
            "{name}: {said}"
        );
    }
    // It was read.
    std::fs::write(
        directory.join("override.conf"),
        here(drop_in).replace("User=", "Usr="),
    )
    .unwrap();
    let checked = run(
        Command::new("systemd-analyze")
            .args(["verify", "--man=no"])
            .arg(&unit),
        "",
    );
    assert!(
        String::from_utf8_lossy(&checked.stderr).contains("Usr"),
        "{checked:?}"
    );
}

/// Copies what the build of the image may read.
fn context() -> tempfile::TempDir {
    let context = tempfile::tempdir().unwrap();
    let ignored = read("packaging/Dockerfile.dockerignore");
    let mut lines = ignored.lines().filter(|line| !line.starts_with('#'));
    assert_eq!(lines.next(), Some("*"));
    for line in lines {
        let path = line.strip_prefix('!').unwrap();
        let (path, only) = match path.split_once("/*.") {
            Some((path, ending)) => (path, Some(ending)),
            None => (path, None),
        };
        copy(&project().join(path), &context.path().join(path), only);
    }
    context
}

fn copy(from: &Path, to: &Path, only: Option<&str>) {
    if from.is_file() {
        let is_wanted = only.is_none_or(|ending| from.extension().is_some_and(|own| own == ending));
        if is_wanted {
            std::fs::create_dir_all(to.parent().unwrap()).unwrap();
            std::fs::copy(from, to).unwrap();
        }
        return;
    }
    for entry in std::fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        if only.is_none() || path.is_file() {
            copy(&path, &to.join(path.file_name().unwrap()), only);
        }
    }
}

#[test]
fn the_image_is_built_from_what_the_build_may_read() {
    let context = context();
    // All targets are there.
    let manifest = context.path().join("Cargo.toml");
    let mut metadata = cargo();
    metadata.args([
        "metadata",
        "--locked",
        "--offline",
        "--no-deps",
        "--format-version=1",
    ]);
    let read_by_cargo = run(metadata.arg("--manifest-path").arg(&manifest), "");
    assert!(read_by_cargo.status.success(), "{read_by_cargo:?}");
    // So is what sources include, but for pages that are only tested.
    let included = Regex::new(r#"include_(?:str|bytes)!\(\s*"([^"]+)""#).unwrap();
    let mut checked = 0;
    let mut directories = vec![context.path().join("src")];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(&directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            for found in included.captures_iter(&text) {
                if Path::new(&found[1])
                    .extension()
                    .is_some_and(|own| own == "md")
                {
                    continue;
                }
                let file = directory.join(&found[1]);
                assert!(file.is_file(), "{}: {}", path.display(), &found[1]);
                checked += 1;
            }
        }
    }
    assert!(checked > 3, "{checked}");
}

#[test]
fn dockerfiles_start_artisand_and_copy_it_from_where_it_was_built() {
    const INSTRUCTIONS: [&str; 9] = [
        "FROM",
        "RUN",
        "COPY",
        "WORKDIR",
        "ENV",
        "USER",
        "CMD",
        "STOPSIGNAL",
        "ARG",
    ];
    let options = Options::new();
    let own = read("packaging/Dockerfile");
    assert!(own.contains("install -D target/release/artisand /out/artisand"));
    assert!(own.contains("COPY --from=build /out/artisand /usr/local/bin/artisand"));
    let page = blocks("docs/operations/containers.md", "dockerfile");
    assert!(page[0].contains("/usr/local/bin/artisand"));
    for text in [&own, &page[0]] {
        let mut last = "";
        let lines = text
            .lines()
            .filter(|line| !line.is_empty() && !line.starts_with(['#', ' ']));
        for line in lines {
            let instruction = line.split(' ').next().unwrap();
            assert!(INSTRUCTIONS.contains(&instruction), "{line}");
            last = line;
        }
        let command: Vec<String> =
            serde_json::from_str(last.strip_prefix("CMD ").unwrap()).unwrap();
        let words: Vec<_> = command.iter().map(String::as_str).collect();
        assert_eq!(words[0], "artisand");
        options.check(&words[1..], text);
    }
}
