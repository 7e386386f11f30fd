//! Whether the key prefix is that of the queues on the server.

use crate::cli::report::Report;
use crate::queue::QueuesByPrefix as Found;

pub(super) fn check(prefix: &str, found: &Found) -> Report {
    let mut report = Report::default();
    let others: Vec<String> = found
        .keys()
        .filter(|other| *other != prefix)
        .map(|other| format!("`{other}`"))
        .collect();
    if found.contains_key(prefix) {
        report.ok(
            "prefix",
            format!("`{prefix}`, as the keys in Redis have it"),
        );
    } else if others.is_empty() {
        report.ok(
            "prefix",
            format!("`{prefix}`; no queue has a key now that could tell"),
        );
    } else {
        report.error(
            "prefix",
            format!(
                "`{prefix}`, but the queues in this database have {}",
                others.join(", ")
            ),
            "check database and prefix: with the wrong ones no job is ever found",
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_that_only_other_queues_have_is_wrong() {
        let found = |prefixes: &[&str]| -> Found {
            let prefixes = prefixes.iter().map(|prefix| (*prefix).to_owned());
            prefixes
                .map(|prefix| (prefix, ["default".to_owned()].into()))
                .collect()
        };
        #[rustfmt::skip]
        let rows: [(&[&str], &str); 4] = [
            (&[], "ok"),
            (&["a_"], "ok"),
            (&["a_", "b_"], "ok"),
            (&["b_"], "error"),
        ];
        for (prefixes, expected) in rows {
            let report = check("a_", &found(prefixes));
            assert_eq!(report.levels(), expected, "{prefixes:?}");
        }
    }
}
