//! What the fuzz targets check, over the inputs that `fuzz/run` begins with: so they compile, and what was found once
//! stays fixed.

#[expect(
    unreachable_pub,
    reason = "it is the library of another package as well"
)]
#[path = "../../fuzz/src/lib.rs"]
mod checks;

use self::checks::{beanstalkd, config, env, http, manifest, payload, php, pool};
use crate::harness::fixtures;

type Check = fn(&[u8]);

/// Each target, and what it checks.
#[rustfmt::skip]
const TARGETS: [(&str, Check); 8] = [
    ("beanstalkd", beanstalkd::check),
    ("config", config::check),
    ("env", env::check),
    ("http", http::check),
    ("manifest", manifest::check),
    ("payload", payload::check),
    ("php", php::check),
    ("pool", pool::check),
];

/// Inputs changed at random, for each input.
const CHANGES: u64 = 20;

/// The files of `fuzz/seeds`, and what the fixtures and the docs have.
fn inputs(target: &str) -> Vec<(String, Vec<u8>)> {
    let mut inputs = Vec::new();
    let seeds = fixtures::project().join("fuzz/seeds").join(target);
    for entry in std::fs::read_dir(seeds).into_iter().flatten() {
        let path = entry.unwrap().path();
        inputs.push((path.display().to_string(), std::fs::read(path).unwrap()));
    }
    match target {
        "php" => inputs.extend(
            fixtures::lines("php/vectors.jsonl")
                .into_iter()
                .map(|(place, line)| (place, fixtures::php_bytes(&line)))
                // Some are as long as a test of their own.
                .filter(|(_, bytes)| bytes.len() < 10_000),
        ),
        "payload" => inputs.extend(
            fixtures::lines("payloads/laravel-13.jsonl")
                .into_iter()
                .map(|(place, line)| {
                    (place, line["element"].as_str().unwrap().as_bytes().to_vec())
                }),
        ),
        "config" => {
            let page = fixtures::project().join("docs/configuration.md");
            let page = std::fs::read_to_string(page).unwrap();
            let blocks = page.split("```toml\n").skip(1);
            let blocks = blocks.map(|block| block.split("```").next().unwrap().as_bytes().to_vec());
            inputs.extend(blocks.map(|block| ("docs/configuration.md".to_owned(), block)));
        }
        _ => {}
    }
    inputs
}

#[test]
fn what_each_target_checks_holds_for_its_seeds_and_for_what_is_near_them() {
    for (target, check) in TARGETS {
        let inputs = inputs(target);
        assert!(!inputs.is_empty(), "{target}");
        for (name, bytes) in inputs {
            let all = std::iter::once(bytes.clone())
                .chain((0..CHANGES).map(|seed| changed(&bytes, seed)));
            for (seed, bytes) in all.enumerate() {
                let found = std::panic::catch_unwind(|| check(&bytes));
                assert!(found.is_ok(), "{target}: {name}, change {seed}");
            }
        }
    }
}

/// The input with a byte changed, removed or doubled, or cut.
fn changed(bytes: &[u8], seed: u64) -> Vec<u8> {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut bytes = bytes.to_vec();
    for _ in 0..=random.usize(0..3) {
        if bytes.is_empty() {
            break;
        }
        let at = random.usize(0..bytes.len());
        match random.u8(0..4) {
            0 => bytes[at] = random.u8(..),
            1 => drop(bytes.remove(at)),
            2 => bytes.insert(at, bytes[at]),
            _ => bytes.truncate(at),
        }
    }
    bytes
}
