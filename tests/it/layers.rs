//! Imports point down only: the table of the style guide, checked on every `use crate::..`; and no files use each other
//! in a circle.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;

mod paths;

use self::paths::{Tree, circles};
use crate::harness::fixtures::project;

/// Modules by row, the lowest first.
const ROWS: [&[&str]; 8] = [
    &["php", "time", "new_file", "shown"],
    &["payload", "app"],
    &["connection"],
    &["queue", "cache", "failed", "batch", "horizon"],
    &["handler", "dispatch"],
    &["worker"],
    &["config", "observer"],
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

/// Uses that close a circle of files and are still to be mended: `(file, file that it uses)`.
const CIRCLES_LEFT: [(&str, &str); 8] = [
    ("handler/batch.rs", "handler/context.rs"),
    ("handler/child/supervisor.rs", "handler/child/notes.rs"),
    ("handler/mod.rs", "handler/context.rs"),
    ("handler/mod.rs", "handler/middleware/mod.rs"),
    ("handler/mod.rs", "handler/shadow.rs"),
    ("handler/model.rs", "handler/context.rs"),
    ("handler/pool/mod.rs", "handler/pool/member.rs"),
    ("handler/services.rs", "handler/middleware/limited.rs"),
];

/// Each file with the files that it uses, but for some uses.
fn graph_without<'a>(
    uses: &'a BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
    left_out: &[(&str, &str)],
) -> BTreeMap<&'a str, BTreeSet<&'a str>> {
    let kept = |from: &str, to: &'a BTreeMap<String, BTreeSet<String>>| {
        let all = to.keys().map(String::as_str);
        all.filter(|to| !left_out.contains(&(from, to))).collect()
    };
    uses.iter()
        .map(|(from, to)| (&**from, kept(from, to)))
        .collect()
}

#[test]
fn no_files_use_each_other_in_a_circle() {
    let uses = Tree::read(&project().join("src")).uses();
    let graph = graph_without(&uses, &CIRCLES_LEFT);
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
    for (from, to) in CIRCLES_LEFT {
        let others: Vec<_> = CIRCLES_LEFT
            .into_iter()
            .filter(|left| *left != (from, to))
            .collect();
        let is_needed = circles(&graph_without(&uses, &others))
            .iter()
            .any(|circle| circle.contains(from) && circle.contains(to));
        assert!(
            is_needed,
            "{from} and {to} are in no circle any more: take them out of the list"
        );
    }
}
