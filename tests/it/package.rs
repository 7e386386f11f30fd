//! The Debian package.

use std::process::Command;

use crate::harness::fixtures::project;

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
