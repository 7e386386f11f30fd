//! Whether the manifest matches the app as it is now.

use std::path::Path;

use crate::app::Manifest;
use crate::cli::report::Report;
use crate::config::{Config, Laravel};

/// Reports whether the manifest matches the app as it is now.
pub(super) fn check(
    config: &Config,
    laravel: &Laravel,
    path: &Path,
    manifest: &Manifest,
) -> Report {
    let mut report = Report::default();
    let reasons = config.stale_manifest();
    for reason in &reasons {
        report.warn(
            "manifest",
            format!("{} may be out of date: {reason}", path.display()),
            "write it again: `artisand manifest`",
        );
    }
    let taken = config.settings_of_variables().iter();
    let taken: Vec<String> = taken
        .map(|(setting, variable)| format!("{setting} ({variable})"))
        .collect();
    if !taken.is_empty() {
        report.ok(
            "manifest",
            format!("the environment says otherwise: {}", taken.join(", ")),
        );
    }
    if !manifest.complete {
        report.warn(
            "manifest",
            "PHP ended before it had seen all classes",
            "see its notes, and write it again",
        );
    }
    if reasons.is_empty() {
        let queued = manifest
            .classes
            .values()
            .filter(|class| class.is_queued())
            .count();
        let state = if laravel.base.is_dir() {
            "is fresh"
        } else {
            "cannot be compared with the app, which is not here"
        };
        report.ok(
            "manifest",
            format!("{} {state}; {queued} queued classes", path.display()),
        );
    }
    report
}
