//! Which program this is: a custom worker has handlers that the stock program lacks.

use crate::cli::program::Program;
use crate::cli::report::Report;
use crate::routing::Registry;

/// Reports which program this is: a custom worker has handlers that the stock program lacks.
pub(super) fn check(program: &Program, registry: &Registry) -> Report {
    let mut report = Report::default();
    let (name, version) = (&program.name, &program.version);
    let built_in = Registry::new();
    let built_in = built_in.names();
    let mut own = registry.names();
    own.retain(|name| !built_in.contains(name));
    let handlers = if own.is_empty() {
        "no handlers of its own".to_owned()
    } else {
        format!("with the handlers {}", own.join(", "))
    };
    report.ok("program", format!("{name} {version}, {handlers}"));
    report
}
