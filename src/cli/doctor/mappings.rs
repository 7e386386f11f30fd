//! Mappings that never match, that overlap, or that name a class of another kind.

use super::waiting::Waiting;
use crate::cli::report::Report;
use crate::config::Config;
use crate::payload::Kind;
use crate::payload::Pattern;
use crate::routing::{MappingError, Registry, Router, UnmappedPolicy};

/// Reports mappings that an earlier one covers completely, and mappings that overlap with an earlier one.
pub(super) fn check(router: &Router) -> Report {
    let mut report = Report::default();
    let mappings: Vec<_> = router.mappings().collect();
    let mut shadowed = 0;
    for (position, mapping) in mappings.iter().enumerate() {
        let earlier = &mappings[..position];
        let covering = earlier
            .iter()
            .position(|earlier| earlier.target.covers(&mapping.target));
        if let Some(earlier) = covering {
            shadowed += 1;
            report.warn(
                "mappings",
                format!(
                    "mapping {} (`{}`) never matches: mapping {} takes its jobs first",
                    position + 1,
                    mapping.target,
                    earlier + 1
                ),
                "put the more special mapping first, or delete it",
            );
            continue;
        }
        let overlapping = earlier
            .iter()
            .position(|earlier| earlier.target.overlaps(&mapping.target));
        if let Some(earlier) = overlapping {
            report.ok(
                "mappings",
                format!(
                    "mapping {} (`{}`) and mapping {} (`{}`) name some jobs in common: the first takes them",
                    earlier + 1,
                    mappings[earlier].target,
                    position + 1,
                    mapping.target
                ),
            );
        }
    }
    report.extend(check_policy(router, shadowed));
    report
}

/// Reports how many mappings there are, and what becomes of other jobs.
fn check_policy(router: &Router, shadowed: usize) -> Report {
    let mut report = Report::default();
    let mappings = router.mappings().len();
    let policy = match router.unmapped() {
        UnmappedPolicy::Php => "run in PHP processes that artisand starts".to_owned(),
        UnmappedPolicy::Leave => "left in their queue".to_owned(),
        UnmappedPolicy::Fail => "failed".to_owned(),
        UnmappedPolicy::Forward(queue) => format!("forwarded to `{queue}`"),
    };
    if mappings == 0 && *router.unmapped() == UnmappedPolicy::Php {
        report.ok("mappings", format!("there are none: all jobs are {policy}"));
    } else if mappings == 0 {
        report.warn(
            "mappings",
            format!("there are none: all jobs are {policy}"),
            "add [[map]] tables to artisand.toml",
        );
    } else if shadowed == 0 {
        report.ok("mappings", format!("{mappings}; other jobs are {policy}"));
    }
    report
}

/// The remedy for mappings that cannot be used.
pub(super) fn remedy_of_mappings(
    error: &crate::config::Error,
    registry: &Registry,
) -> &'static str {
    let is_unknown = matches!(
        error,
        crate::config::Error::Mapping {
            source: MappingError::UnknownHandler { .. },
            ..
        }
    );
    if is_unknown && registry.names() == Registry::new().names() {
        "run your worker's own doctor: this program has no handlers in Rust, `my-worker doctor` has"
    } else {
        "correct this line: queue:work does not start with it"
    }
}

/// A problem with the file and line of its mapping in front.
pub(super) fn at_mapping(config: &Config, position: usize, problem: &str) -> String {
    match config.place_of_mapping(position) {
        Some(place) => format!("{place}: {problem}"),
        None => problem.to_owned(),
    }
}

/// Reports mappings of a class whose waiting jobs are of another kind.
pub(super) fn check_kinds(config: &Config, router: &Router, waiting: &Waiting) -> Report {
    let mut report = Report::default();
    for (position, mapping) in router.mappings().enumerate() {
        let Pattern::Exact(class) = mapping.target.name() else {
            continue;
        };
        let Some((kind, queue)) = waiting.kinds.get(&class.to_lowercase()) else {
            continue;
        };
        let is_named = |kind: Kind| {
            router.mappings().any(|mapping| {
                mapping.target.kind() == kind && mapping.target.name().matches(class)
            })
        };
        let mapped = mapping.target.kind();
        if mapped != *kind && !is_named(*kind) {
            let problem = format!(
                "`{mapped} = ..` names `{class}`, and what waits in `{queue}` is a {kind} of it"
            );
            report.error(
                "mappings",
                at_mapping(config, position, &problem),
                format!("write `{kind} = '..'`: this mapping takes no such job"),
            );
        }
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config;

    #[test]
    fn a_mapping_that_never_matches_is_a_warning() {
        #[rustfmt::skip]
        let rows: [(&[&str], &str); 4] = [
            (&[], "warning"),
            (&["job = 'A'", "job = 'B'"], "ok"),
            (&[r"job = 'App\*'", r"job = 'App\Jobs\A'"], "warning"),
            (&["listener = 'L'\nevent = 'E'", "listener = 'L@handle'"], "ok ok"),
        ];
        for (targets, expected) in rows {
            let tables = targets
                .iter()
                .map(|target| format!("[[map]]\n{target}\nhandler = \"log\"\n"));
            let toml = tables.collect::<String>() + "[unmapped]\npolicy = \"leave\"\n";
            let mut config = Config::default();
            config.file = toml::from_str(&toml).unwrap();
            let router = config::router(&config, &Registry::new()).unwrap();
            assert_eq!(check(&router).levels(), expected, "{targets:?}");
        }
    }
}
