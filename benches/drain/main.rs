//! Compares artisand, real `queue:work` processes and a bare pop-and-delete loop, which drain a queue of real
//! payloads.
//!
//! `make bench`, or `cargo build --release --examples && cargo bench --bench drain -- [options]`:
//!
//! * `--jobs N`, `--rounds N`; `--jobs 0` measures only PHP, `--php 0` only the others.
//! * `--only TEXT`: only rows whose name holds the text; `--only "of them"` for several workers.
//! * `--short`: 20,000 jobs, one round, artisand and the bare loop; prints their ratio.
//! * `--write`: writes the tables and charts of `docs/benchmarks.md` and `docs/scaling.md`.
//!
//! Every round starts a private redis-server and fills it with payloads as Laravel 13 writes them. artisand is the
//! real binary, a process of its own with an app's manifest. Handlers in Rust are those of
//! `examples/bench_worker.rs`, which count, so that every job is known to have run exactly once; PHP appends each
//! job's number to a list, and so do the contenders that work queues in databases. Contenders take turns. Raw rounds go
//! to `bench-results/drain.jsonl`.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints and may stop"
)]

mod bare;
mod payload;
mod php;
mod push;
mod report;
mod scaling;
mod server;
mod tables;
mod worker;

/// Servers and apps of the tests.
#[expect(
    dead_code,
    unused_imports,
    unused_macros,
    reason = "a benchmark needs a part of them"
)]
#[path = "../../tests/it/harness/mod.rs"]
mod harness;

use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use report::{Round, Rounds};

fn has(name: &str) -> bool {
    std::env::args().any(|arg| arg == name)
}

fn number(name: &str, default: usize) -> usize {
    let value = std::env::args().skip_while(|arg| arg != name).nth(1);
    value.map_or(default, |value| value.parse().expect("a number"))
}

#[expect(clippy::cast_precision_loss, reason = "far below 2^52")]
fn float(count: usize) -> f64 {
    count as f64
}

fn main() {
    let is_short = has("--short");
    let (jobs, rounds) = if is_short {
        (20_000, 1)
    } else {
        (number("--jobs", 100_000), number("--rounds", 3))
    };
    let php_jobs = if is_short { 0 } else { number("--php", 5_000) };
    let only = std::env::args().skip_while(|arg| arg != "--only").nth(1);
    let is_wanted = |name: &str| {
        let is_main =
            ["no-op, 64 slots", "no-op, 256 slots"].contains(&name) || name.starts_with("bare");
        only.as_deref().is_none_or(|only| name.contains(only)) && (!is_short || is_main)
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .unwrap();
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    std::fs::create_dir_all(root.join("bench-results")).unwrap();
    let mut raw = std::fs::File::create(root.join("bench-results/drain.jsonl")).unwrap();
    let mut all = Vec::new();
    let mut note = |round: Round| {
        writeln!(raw, "{}", round.to_json()).unwrap();
        all.push(round);
    };
    for _ in 0..if jobs == 0 { 0 } else { rounds } {
        for contender in worker::CONTENDERS.iter().filter(|row| is_wanted(row.name)) {
            note(runtime.block_on(contender.run(jobs)));
        }
        for (name, batch) in bare::BARE.into_iter().filter(|row| is_wanted(row.0)) {
            note(runtime.block_on(bare::run(name, batch, jobs)));
        }
        for contender in &scaling::CONTENDERS {
            for processes in scaling::PROCESSES {
                if is_wanted(&scaling::name(contender, processes)) {
                    note(runtime.block_on(contender.run(processes, jobs)));
                }
            }
        }
        for (name, way) in push::CONTENDERS.into_iter().filter(|row| is_wanted(row.0)) {
            note(runtime.block_on(push::run(name, way, jobs)));
        }
        for version in php::VERSIONS {
            if is_wanted(&push::name_in_php(version)) {
                push::run_php(version, jobs).map(&mut note);
            }
        }
    }
    // Started when they are needed first.
    let databases = Arc::default();
    for _ in 0..if php_jobs == 0 { 0 } else { rounds } {
        for place in tables::PLACES {
            for by in tables::CONTENDERS {
                if is_wanted(&tables::name(place, by)) {
                    note(tables::run(&databases, place, by, php_jobs));
                }
            }
        }
        for version in php::VERSIONS {
            for processes in php::PROCESSES {
                let [pool, work] = php::names(version, processes);
                if is_wanted(&pool) {
                    runtime
                        .block_on(php::pool(version, php_jobs, processes))
                        .map(&mut note);
                }
                if is_wanted(&work) {
                    runtime
                        .block_on(php::queue_work(version, php_jobs, processes))
                        .map(&mut note);
                }
            }
        }
    }
    let all = Rounds(all);
    println!(
        "{jobs} jobs, medians of {rounds} rounds; no job was left, and all that a handler counts ran exactly once\n\n{}",
        all.table()
    );
    println!("several workers\n\n{}", all.table_of_scaling());
    println!("pushes\n\n{}", all.table_of_pushes());
    if php_jobs > 0 {
        println!("{php_jobs} jobs in PHP\n\n{}", all.table_of_php());
        println!("queues in databases\n\n{}", all.table_of_tables());
    }
    for (name, ratio) in all.ratios() {
        println!("{name}: {ratio:.2} of the bare loop");
    }
    if has("--write") {
        write(root, &all, jobs, rounds, php_jobs);
    }
}

/// Writes tables, charts, date and commit into the page.
fn write(root: &Path, all: &Rounds, jobs: usize, rounds: usize, php_jobs: usize) {
    let output = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).current_dir(root).output();
        String::from_utf8(output.unwrap().stdout)
            .unwrap()
            .trim()
            .to_owned()
    };
    let run = format!(
        "Measured on {} at commit {}: {jobs} jobs ({php_jobs} in PHP), medians of {rounds} rounds, {} processors, Redis {}.\n",
        output("date", &["+%F"]),
        output("git", &["rev-parse", "--short", "HEAD"]),
        std::thread::available_parallelism().unwrap(),
        output(
            "sh",
            &[
                "-c",
                "redis-server --version | sed 's/.* v=\\([^ ]*\\).*/\\1/'"
            ]
        ),
    );
    // Tables without rows stay as they were.
    let pages: [(&str, &[(&str, String)]); 2] = [
        (
            "docs/benchmarks.md",
            &[
                ("workers", all.table()),
                ("pushes", all.table_of_pushes()),
                ("php", all.table_of_php()),
                ("tables", all.table_of_tables()),
            ],
        ),
        ("docs/scaling.md", &[("scaling", all.table_of_scaling())]),
    ];
    for (page, tables) in pages {
        let page = root.join(page);
        let mut text = std::fs::read_to_string(&page).unwrap();
        for (name, table) in tables.iter().filter(|(_, table)| table.lines().count() > 2) {
            text = report::replace(&text, "run", &run);
            text = report::replace(&text, name, table);
        }
        std::fs::write(&page, text).unwrap();
    }
    if all.table().lines().count() <= 2 {
        return;
    }
    let charts = root.join("docs/charts");
    std::fs::create_dir_all(&charts).unwrap();
    std::fs::write(charts.join("workers.svg"), all.chart()).unwrap();
    std::fs::write(charts.join("php.svg"), all.chart_of_php()).unwrap();
}
