//! Imports point down only: the table of docs/architecture.md, checked on every `use crate::..`; no files use each
//! other in a circle; and only `php` knows the bytes of PHP's `serialize`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

use regex::Regex;

mod paths;

use self::paths::{Tree, circles};
use crate::harness::fixtures::project;

/// Modules by row, the lowest first.
const ROWS: [&[&str]; 14] = [
    &["php", "time", "new_file", "shown"],
    &["payload", "app", "task"],
    &["connection"],
    &["queue", "cache", "failed", "batch"],
    &["handler"],
    &["middleware", "process", "outbox"],
    &["routing"],
    &["worker"],
    &["listeners"],
    &["horizon", "pulse", "telemetry"],
    &["config"],
    &["dispatch"],
    &["testing"],
    &["cli"],
];

fn row(module: &str) -> Option<usize> {
    ROWS.iter().position(|row| row.contains(&module))
}

/// Row 1 may look sideways once: `app` may use `payload`.
fn is_allowed(from: &str, to: &str) -> bool {
    from == to || row(to) < row(from) || (from == "app" && to == "payload")
}

fn check(module: &str, path: &Path, wrong: &mut Vec<String>) {
    let text = std::fs::read_to_string(path).unwrap();
    for (index, line) in text.lines().enumerate() {
        for rest in line.split("crate::").skip(1) {
            let used: String = rest
                .chars()
                .take_while(|c| c.is_alphanumeric() || *c == '_')
                .collect();
            if row(&used).is_some() && !is_allowed(module, &used) {
                wrong.push(format!(
                    "{}:{}: `{module}` uses `{used}`",
                    path.display(),
                    index + 1
                ));
            }
        }
    }
}

fn walk(module: &str, directory: &Path, wrong: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(module, &path, wrong);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            check(module, &path, wrong);
        }
    }
}

#[test]
fn imports_point_down_only() {
    let mut wrong = Vec::new();
    for entry in std::fs::read_dir(project().join("src")).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if matches!(name.as_str(), "lib" | "main") {
            continue;
        }
        assert!(row(&name).is_some(), "module `{name}` has no row");
        if path.is_dir() {
            walk(&name, &path, &mut wrong);
        } else {
            check(&name, &path, &mut wrong);
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let uses = Tree::read(&project().join("src")).uses();
    let graph: BTreeMap<&str, BTreeSet<&str>> = uses
        .iter()
        .map(|(from, used)| (&**from, used.keys().map(String::as_str).collect()))
        .collect();
    let mut wrong = String::new();
    for circle in circles(&graph) {
        wrong += "a circle:\n";
        for from in &circle {
            for to in graph[from].intersection(&circle) {
                let names: Vec<&str> = uses[*from][*to].iter().map(String::as_str).collect();
                let names = names.join(", ");
                writeln!(wrong, "  {from} uses {names} of {to}").unwrap();
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}

#[test]
fn only_php_knows_the_bytes_of_serialized_values() {
    // A value at the start of a string, behind another value or a quote, or as the first one in braces.
    let value = Regex::new(r#"(^|[;"}]|:\{)(N;|[abdisSOCErR]:(\d|\{|$))"#).unwrap();
    let mut wrong = String::new();
    for (file, string) in Tree::read(&project().join("src")).strings() {
        let string = string.replace('\\', "").replace("{{", "{");
        // The payloads of the benchmark are recorded as a whole.
        let is_allowed = file.starts_with("php/") || file == "cli/bench/payload.rs";
        if !is_allowed && value.is_match(&string) {
            writeln!(wrong, "{file}: {string}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
}
