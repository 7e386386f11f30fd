//! What ended jobs have left to do: failed jobs on their way to their store, and follow-ups.

use std::collections::BTreeMap;

use crate::cli::report::Report;
use crate::queue::{Ledger, Spool};
use crate::shown::with_causes;

/// Most follow-ups that are looked at.
const MOST: usize = 10_000;

pub(super) async fn check_failed_jobs(ledger: &dyn Ledger) -> Report {
    let mut report = Report::default();
    match ledger.length(Spool::FailedJobs).await {
        Ok(0) => {}
        Ok(count) => report.warn(
            "spool",
            format!("{count} failed jobs wait in artisand:failed-spool for their store"),
            "a running worker brings them there once the store can be written; see failed jobs below",
        ),
        Err(error) => report.error("spool", with_causes(&error), "the key artisand:failed-spool must be a list"),
    }
    report
}

/// Looks for records of ended jobs in lists of queues that the set of such queues lacks, and adds these queues to it.
pub(super) async fn check_parts(ledger: &dyn Ledger) -> Report {
    let mut report = Report::default();
    let looked = async {
        let found = ledger.find_parts().await?;
        let known = ledger.note_parts(&[]).await?;
        let lost: Vec<_> = (found.into_iter())
            .filter(|queue| !known.contains(queue))
            .collect();
        if !lost.is_empty() {
            ledger.note_parts(&lost).await?;
        }
        Ok::<_, crate::queue::Error>(lost)
    };
    match looked.await {
        Ok(lost) if lost.is_empty() => {}
        Ok(lost) => {
            let names: Vec<_> = lost.iter().map(|queue| format!("`{queue}`")).collect();
            report.warn(
                CHECK,
                format!(
                    "the set `artisand:queues` lacked these queues, which have records of ended jobs: {}; it has them now",
                    names.join(", ")
                ),
                "nothing: workers of this connection look at them within half a minute",
            );
        }
        Err(error) => report.warn(
            CHECK,
            with_causes(&error),
            "allow this user SCAN, so that records of queues without workers are found",
        ),
    }
    report
}

/// Looks at the follow-ups; also answers whether jobs are to be counted in batches.
pub(super) async fn check_follow_ups(ledger: &dyn Ledger) -> (Report, bool) {
    match ledger.read(Spool::FollowUps, 0, MOST).await {
        Ok(records) => {
            let kinds = kinds(&records);
            let is_cut = records.len() == MOST;
            (follow_ups(&kinds, is_cut), kinds.contains_key(COUNTS))
        }
        Err(error) => {
            let mut report = Report::default();
            report.error(
                CHECK,
                with_causes(&error),
                "the key artisand:follow-ups must be a list",
            );
            (report, false)
        }
    }
}

const CHECK: &str = "follow-ups";
const COUNTS: &str = "jobs to be counted in batches";

/// How many follow-ups of each kind there are.
fn kinds(records: &[Vec<u8>]) -> BTreeMap<&'static str, usize> {
    let mut kinds = BTreeMap::new();
    for record in records {
        let json: serde_json::Value = serde_json::from_slice(record).unwrap_or_default();
        let kind = match json["do"].as_str() {
            Some("count") => COUNTS,
            Some("forget") => "marks to be taken out of batches",
            Some("unlock") => "locks to be freed",
            Some("push") => "jobs to be pushed to other connections or slots",
            _ => "records that cannot be read",
        };
        *kinds.entry(kind).or_insert(0) += 1;
    }
    kinds
}

fn follow_ups(kinds: &BTreeMap<&str, usize>, is_cut: bool) -> Report {
    let mut report = Report::default();
    if !kinds.is_empty() {
        let kinds: Vec<String> = kinds
            .iter()
            .map(|(kind, count)| format!("{kind}: {count}"))
            .collect();
        report.warn(
            CHECK,
            format!(
                "left to do in artisand:follow-ups for jobs that have ended{}: {}",
                if is_cut { ", at least" } else { "" },
                kinds.join(", ")
            ),
            "a running worker sees to it in a moment; if it stays, the worker's log says why",
        );
    }
    report
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::MemoryQueue;

    #[test]
    fn follow_ups_are_counted_by_kind() {
        let records = [
            r#"{"do":"count"}"#,
            r#"{"do":"unlock"}"#,
            "{",
            r#"{"do":"count"}"#,
        ];
        let kinds = kinds(&records.map(|record| record.as_bytes().to_vec()));
        let counted: Vec<_> = kinds.iter().map(|(kind, count)| (*kind, *count)).collect();
        assert_eq!(
            counted,
            [
                ("jobs to be counted in batches", 2),
                ("locks to be freed", 1),
                ("records that cannot be read", 1)
            ]
        );
        for (is_cut, expected) in [(false, "ended: jobs"), (true, "ended, at least: jobs")] {
            let report = follow_ups(&kinds, is_cut);
            assert_eq!(report.levels(), "warning");
            let text = report.text(false);
            assert!(text.contains(expected), "{text}");
        }
        assert_eq!(follow_ups(&BTreeMap::new(), false).levels(), "");
    }

    #[tokio::test]
    async fn failed_jobs_on_their_way_are_counted_beyond_any_page() {
        let ledger = MemoryQueue::new(None);
        for _ in 0..=MOST {
            ledger.spool_record(Spool::FailedJobs, b"{}".to_vec());
        }
        let text = check_failed_jobs(&ledger).await.text(false);
        assert!(text.contains("10001 failed jobs wait"), "{text}");
        ledger.spool_record(Spool::FollowUps, br#"{"do":"count"}"#.to_vec());
        let (report, has_counts) = check_follow_ups(&ledger).await;
        assert!(has_counts && !report.text(false).contains("at least"));
    }
}
