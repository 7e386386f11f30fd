//! The Debian package, and what the program is made of.

use std::collections::BTreeSet;
use std::process::Command;

use serde_json::Value;
use spdx::{Expression, LicenseReq, ParseMode};

use crate::harness::fixtures::project;

/// The packages that a build for Linux may take in, as Cargo knows them.
fn packages() -> Vec<Value> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let output = Command::new(cargo)
        .args(["metadata", "--format-version=1", "--locked", "--offline"])
        .arg("--all-features")
        .arg("--filter-platform=x86_64-unknown-linux-gnu")
        .current_dir(project())
        .output()
        .unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{errors}");
    let metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

#[test]
fn licences_and_sources_are_those_that_are_allowed() {
    let rules = std::fs::read_to_string(project().join("deny.toml")).unwrap();
    let rules: toml::Table = rules.parse().unwrap();
    let allowed = rules["licenses"]["allow"].as_array().unwrap().iter();
    let allowed: BTreeSet<&str> = allowed.map(|name| name.as_str().unwrap()).collect();
    let denied = rules["bans"]["deny"].as_array().unwrap().iter();
    let denied: BTreeSet<&str> = denied.map(|rule| rule["crate"].as_str().unwrap()).collect();
    let is_allowed = |wanted: &LicenseReq| allowed.contains(&*wanted.to_string());
    let mut needed = BTreeSet::new();
    for package in packages() {
        let name = package["name"].as_str().unwrap();
        assert!(!denied.contains(name), "{name} is denied");
        let source = package["source"].as_str();
        let is_known = source == Some("registry+https://github.com/rust-lang/crates.io-index");
        assert!(is_known || name == "artisand", "{name} is from {source:?}");
        let licence = package["license"].as_str().expect(name);
        let parsed = Expression::parse_mode(licence, ParseMode::LAX).expect(licence);
        assert!(parsed.evaluate(is_allowed), "{name} is under {licence}");
        needed.extend(parsed.requirements().map(|wanted| wanted.req.to_string()));
    }
    let idle: Vec<_> = allowed
        .iter()
        .filter(|name| !needed.contains(**name))
        .collect();
    assert!(idle.is_empty(), "nothing is under {idle:?}");
}

/// `packaging/test-deb` lists the checks.
#[test]
#[ignore = "needs root, cargo-deb and the Laravel roots (make test)"]
fn the_debian_package_can_be_installed_run_and_purged() {
    let output = Command::new(project().join("packaging/test-deb"))
        .arg(env!("CARGO_BIN_EXE_artisand"))
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}{errors}");
    assert!(text.contains("\npurged "), "{text}{errors}");
}
