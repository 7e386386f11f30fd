//! Whether the jobs that handlers dispatch fit their classes.

use super::context::Context;
use crate::cli::report::Report;
use crate::config;
use crate::routing::Registry;

pub(super) fn check(context: &Context<'_>, registry: &Registry) -> Report {
    let mut report = Report::default();
    let types = registry.dispatched_types();
    let Some(services) = (!types.is_empty())
        .then(|| config::services(context.config).ok())
        .flatten()
    else {
        return report;
    };
    let manifest = services.manifest.as_deref().or(services.told.as_deref());
    let Some(manifest) = manifest else {
        report.warn(
            "dispatched",
            "nothing is known of the classes of the jobs that handlers dispatch",
            "write a manifest (`artisand manifest`)",
        );
        return report;
    };
    let mut fitting = Vec::new();
    for dispatched in types {
        match dispatched.check(manifest) {
            Ok(notes) => {
                fitting.push(dispatched.name);
                for note in notes {
                    report.warn("dispatched", note, "set it where the job is dispatched");
                }
            }
            Err(error) => report.error(
                "dispatched",
                format!("`{}`: {error}", dispatched.name),
                "correct the struct: queue:work does not start like this",
            ),
        }
    }
    if !fitting.is_empty() {
        report.ok("dispatched", fitting.join(", "));
    }
    report
}
