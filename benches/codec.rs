//! Compares the codec with `serde_php` and with PHP's own `unserialize`, in one run.
//!
//! `cargo bench --bench codec`. Criterion times this codec and `serde_php`. Then, if
//! `php` is installed, `php-interop/codec/bench.php` times PHP on the same captured
//! payloads, and the benchmark prints the ratios.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a benchmark prints and may stop"
)]

use std::collections::BTreeMap;
use std::hint::black_box;
use std::process::Command;
use std::time::Instant;

use artisand::payload::{Command as JobCommand, Payload};
use artisand::php::{self, Value};
use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use serde::Deserialize;

/// Captured payloads of plain commands, of at most some kilobytes.
fn payloads() -> Vec<String> {
    let text = std::fs::read_to_string(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/fixtures/payloads/laravel-13.jsonl"
    ));
    let elements = text.unwrap();
    let elements = elements.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["element"].as_str().unwrap().to_owned()
    });
    let is_plain = |element: &String| {
        let payload = Payload::parse(element.as_bytes()).unwrap();
        element.len() < 3000 && matches!(JobCommand::of(&payload), Ok(Some(_)))
    };
    elements.filter(is_plain).collect()
}

/// The job `plain` of the interop app.
#[derive(Debug, Deserialize)]
#[expect(dead_code, reason = "reading is what is timed")]
struct Plain {
    number: i64,
    title: String,
    flag: bool,
    tags: Vec<String>,
}

fn plain(payloads: &[String]) -> String {
    let is_plain = |element: &&String| element.contains(r#""displayName":"App\\Jobs\\Plain""#);
    payloads.iter().find(is_plain).unwrap().clone()
}

fn codec(criterion: &mut Criterion) {
    let payloads = payloads();
    let plain = plain(&payloads);
    let payload = Payload::parse(plain.as_bytes()).unwrap();
    let command = JobCommand::of(&payload).unwrap().unwrap();

    let mut group = criterion.benchmark_group("payload");
    group.bench_function("parse (JSON only)", |b| {
        b.iter(|| Payload::parse(black_box(plain.as_bytes())).unwrap());
    });
    group.bench_function("parse and decode to a struct", |b| {
        b.iter(|| {
            let payload = Payload::parse(black_box(plain.as_bytes())).unwrap();
            JobCommand::of(&payload)
                .unwrap()
                .unwrap()
                .deserialize::<Plain>()
                .unwrap()
        });
    });
    group.finish();

    let mut group = criterion.benchmark_group("command");
    group.bench_function("from_slice to a struct", |b| {
        b.iter(|| php::from_slice::<Plain>(black_box(command.as_bytes())).unwrap());
    });
    group.bench_function("Value::from_bytes", |b| {
        b.iter(|| Value::from_bytes(black_box(command.as_bytes())).unwrap());
    });
    let value = command.to_value().unwrap();
    group.bench_function("Value::to_bytes", |b| {
        b.iter(|| black_box(&value).to_bytes());
    });
    group.bench_function("Value::to_json", |b| b.iter(|| black_box(&value).to_json()));
    group.finish();

    // serde_php reads no objects, so both read a nested array.
    let map: BTreeMap<String, Vec<i64>> = (0..50)
        .map(|i| (format!("key{i}"), (0..20).collect()))
        .collect();
    let bytes = php::to_vec(&map).unwrap();
    assert_eq!(bytes, serde_php::to_vec(&map).unwrap());
    let mut group = criterion.benchmark_group("array of 1,000 ints");
    group.bench_function("ours", |b| {
        b.iter(|| php::from_slice::<BTreeMap<String, Vec<i64>>>(black_box(&bytes)).unwrap());
    });
    group.bench_function("serde_php", |b| {
        b.iter(|| serde_php::from_bytes::<BTreeMap<String, Vec<i64>>>(black_box(&bytes)).unwrap());
    });
    group.bench_function("ours, writing", |b| {
        b.iter_batched(
            || &map,
            |map| php::to_vec(map).unwrap(),
            BatchSize::SmallInput,
        );
    });
    group.bench_function("serde_php, writing", |b| {
        b.iter_batched(
            || &map,
            |map| serde_php::to_vec(map).unwrap(),
            BatchSize::SmallInput,
        );
    });
    group.finish();

    against_php(&plain);
}

fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures[figures.len() / 2]
}

/// Median nanoseconds of `run`, over several rounds.
fn median_ns<T>(mut run: impl FnMut() -> T) -> f64 {
    const TIMES: u32 = 5_000;
    let round = |_| {
        let began = Instant::now();
        (0..TIMES).for_each(|_| drop(black_box(run())));
        began.elapsed().as_secs_f64() * 1e9 / f64::from(TIMES)
    };
    median((0..9).map(round).collect())
}

/// Times PHP and this codec in turns, so that both meet the same load of the machine.
fn against_php(element: &str) {
    const TURNS: usize = 7;
    let file =
        std::env::temp_dir().join(format!("artisand-codec-bench-{}.jsonl", std::process::id()));
    std::fs::write(&file, format!("{element}\n")).unwrap();
    let script = concat!(env!("CARGO_MANIFEST_DIR"), "/php-interop/codec/bench.php");
    let bytes = element.as_bytes();
    let payload = Payload::parse(bytes).unwrap();
    let command = JobCommand::of(&payload).unwrap().unwrap();
    let mut figures: [Vec<f64>; 6] = Default::default();
    let mut version = String::new();
    for _ in 0..TURNS {
        let output = Command::new("php")
            .arg(script)
            .arg(&file)
            .arg("5000")
            .output();
        let Ok(output) = output else { break };
        let theirs: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        theirs["php"].as_str().unwrap().clone_into(&mut version);
        let json = theirs["json_decode_ns"].as_f64().unwrap();
        let object = theirs["unserialize_ns"].as_f64().unwrap();
        let ours = [
            median_ns(|| Payload::parse(black_box(bytes)).unwrap()),
            median_ns(|| php::from_slice::<Plain>(black_box(command.as_bytes())).unwrap()),
            median_ns(|| {
                let payload = Payload::parse(black_box(bytes)).unwrap();
                let command = JobCommand::of(&payload).unwrap().unwrap();
                command.deserialize::<Plain>().unwrap()
            }),
        ];
        let theirs = [json, object, json + object];
        for (figures, figure) in figures.iter_mut().zip(theirs.into_iter().chain(ours)) {
            figures.push(figure);
        }
    }
    std::fs::remove_file(&file).unwrap();
    if version.is_empty() {
        return println!("php is not installed: no comparison with PHP");
    }
    let medians = figures.map(median);
    println!(
        "\none payload of {} bytes, medians of {TURNS} turns, in ns",
        element.len()
    );
    println!("{:<36} PHP {version:<8} artisand   ratio", "");
    let rows = [
        "json_decode / Payload::parse",
        "unserialize / from_slice to a struct",
        "both (asked: 4)",
    ];
    for (index, row) in rows.into_iter().enumerate() {
        let (theirs, ours) = (medians[index], medians[index + rows.len()]);
        println!(
            "{row:<36} {theirs:>12.0} {ours:>8.0} {:>7.2}",
            theirs / ours
        );
    }
}

criterion_group!(benches, codec);
criterion_main!(benches);
