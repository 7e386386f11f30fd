//! The column `failed_job_ids`: uuids of failed jobs, with artisand's marks between them.
//!
//! A mark records that the counters include the ending of a job. It is an entry
//! of the same list, because that column is written in the same statement as the
//! counters and exists in every version's table, and Laravel only adds and
//! removes its own uuids.

use std::borrow::Cow;

use serde_json::Value;
use sha1::Digest as _;

use super::{Ended, JobOutcome};
use crate::payload::write_json_text;
use crate::shown::hex;

/// Prefix of every mark, which no uuid has.
const MARK: &str = "artisand:";
/// Prefix of the mark of an ending that PHP counts.
const MARK_FOR_PHP: &str = "artisand:php:";
/// Longest uuid that is written into a mark unchanged.
const PLAIN_UUID: usize = 64;
/// Longest token that is written unchanged; shorter than a hash, so that no token looks like one.
const PLAIN_TOKEN: usize = 32;

/// The list, in order.
#[derive(Debug, Clone, Default, PartialEq)]
pub(super) struct JobIds(Vec<Value>);

impl JobIds {
    /// Reads the column; a value that is not a list becomes one as by PHP's array cast.
    ///
    /// # Source
    ///
    /// `Illuminate\Bus\DatabaseBatchRepository::decrementPendingJobs`.
    pub(super) fn parse(text: &str) -> Self {
        Self(match serde_json::from_str(text) {
            Ok(Value::Array(values)) => values,
            Ok(Value::Object(values)) => values.into_iter().map(|(_, value)| value).collect(),
            Ok(Value::Null) | Err(_) => Vec::new(),
            Ok(scalar) => vec![scalar],
        })
    }

    /// The column as PHP's `json_encode` writes it.
    pub(super) fn to_json(&self) -> String {
        let mut out = String::from("[");
        for (index, value) in self.0.iter().enumerate() {
            if index > 0 {
                out.push(',');
            }
            match value {
                Value::String(text) => write_json_text(&mut out, text),
                // No known program writes other values here: keep them unchanged.
                other => out.push_str(&other.to_string()),
            }
        }
        out.push(']');
        out
    }

    fn has(&self, wanted: &str) -> bool {
        self.0.iter().any(|value| value.as_str() == Some(wanted))
    }

    fn remove(&mut self, unwanted: &str) {
        self.0.retain(|value| value.as_str() != Some(unwanted));
    }

    /// Adds a text unless the list has it.
    fn add(&mut self, text: String) {
        if !self.has(&text) {
            self.0.push(Value::String(text));
        }
    }

    pub(super) fn is_marked(&self, ended: &Ended) -> bool {
        self.has(&mark(ended))
    }

    pub(super) fn mark(&mut self, ended: &Ended) {
        self.add(mark(ended));
    }

    pub(super) fn unmark(&mut self, ended: &Ended) {
        self.remove(&mark(ended));
    }

    pub(super) fn unmark_all(&mut self, endings: &[Ended]) {
        for ended in endings {
            self.unmark(ended);
        }
    }

    /// Adds the mark of an ending that PHP will count and then remove; `None` if the list is full, or for a
    /// failure.
    ///
    /// A failed job needs no mark: its uuid is not in the list until its failure is counted.
    pub(super) fn mark_for_php(&mut self, ended: &Ended) -> Option<String> {
        /// The column of Laravel 8 holds 64 KiB: half of that is for failed jobs and the marks of artisand's own
        /// counts.
        const FULL: usize = 32 * 1024;
        self.remove(&ended.uuid);
        if ended.outcome == JobOutcome::Failed {
            return None;
        }
        let mark = mark(ended).replacen(MARK, MARK_FOR_PHP, 1);
        if !self.has(&mark) {
            let length = |value: &Value| value.as_str().map_or(0, |text| text.len() + 3);
            let full = self.0.iter().map(length).sum::<usize>() > FULL;
            if full {
                return None;
            }
            self.add(mark.clone());
        }
        Some(mark)
    }

    pub(super) fn succeeded(&mut self, uuid: &str) {
        self.remove(uuid);
    }

    pub(super) fn failed(&mut self, uuid: &str) {
        self.add(uuid.to_owned());
    }

    /// The uuids without marks, for display.
    pub(super) fn uuids(&self) -> Vec<String> {
        let texts = self.0.iter().map(|value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        });
        texts.filter(|text| !text.starts_with(MARK)).collect()
    }
}

/// The mark of an ending.
///
/// The uuid comes from a payload, and the token from a list in Redis: neither may
/// fill the column or look like another mark.
fn mark(ended: &Ended) -> String {
    let outcome = match ended.outcome {
        JobOutcome::Succeeded => "succeeded",
        JobOutcome::Failed => "failed",
    };
    let uuid = plain(&ended.uuid, PLAIN_UUID);
    let mut mark = format!("{MARK}{outcome}:{uuid}");
    if !ended.token.is_empty() {
        mark.push(':');
        mark.push_str(&plain(&ended.token, PLAIN_TOKEN));
    }
    mark
}

/// A text that is safe in a mark: the text itself, or its hash.
fn plain(text: &str, longest: usize) -> Cow<'_, str> {
    let is_plain = text.len() <= longest
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_');
    if is_plain {
        text.into()
    } else {
        let hash = sha1::Sha1::digest(text.as_bytes());
        format!("sha1:{}", hex(&hash)).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(uuid: &str, outcome: JobOutcome) -> Ended {
        Ended {
            uuid: uuid.into(),
            outcome,
            token: String::new(),
        }
    }

    #[test]
    fn the_list_is_read_as_php_casts_it_and_written_as_php_writes_it() {
        #[rustfmt::skip]
        let rows = [
            ("[]", "[]"),
            (r#"["a","b\/c","\u017c"]"#, r#"["a","b\/c","\u017c"]"#),
            (r#"{"1":"a","3":"b"}"#, r#"["a","b"]"#),
            (r#"["a",7]"#, r#"["a",7]"#),
            (r#""a""#, r#"["a"]"#),
            ("null", "[]"),
            ("", "[]"),
            ("[broken", "[]"),
        ];
        for (text, expected) in rows {
            assert_eq!(JobIds::parse(text).to_json(), expected, "{text}");
        }
    }

    #[test]
    fn marks_are_kept_apart_from_uuids_and_from_each_other() {
        let mut ids = JobIds::parse(r#"["u"]"#);
        let (succeeded, failed) = (
            ended("u", JobOutcome::Succeeded),
            ended("u", JobOutcome::Failed),
        );
        ids.mark(&succeeded);
        assert!(ids.is_marked(&succeeded) && !ids.is_marked(&failed));
        ids.mark(&succeeded);
        ids.failed("u");
        assert_eq!(ids.to_json(), r#"["u","artisand:succeeded:u"]"#);
        assert_eq!(ids.uuids(), ["u"]);
        ids.unmark(&failed);
        ids.succeeded("u");
        assert_eq!(ids.to_json(), r#"["artisand:succeeded:u"]"#);
        ids.unmark(&succeeded);
        assert_eq!(ids.to_json(), "[]");
    }

    #[test]
    fn what_php_counts_has_a_mark_until_the_list_is_full() {
        let mut ids = JobIds::parse(r#"["u","v"]"#);
        let mark = ids.mark_for_php(&ended("u", JobOutcome::Succeeded));
        assert_eq!(mark.as_deref(), Some("artisand:php:succeeded:u"));
        let again = ids.mark_for_php(&ended("u", JobOutcome::Succeeded));
        assert_eq!(again, mark);
        assert_eq!(ids.mark_for_php(&ended("v", JobOutcome::Failed)), None);
        assert_eq!(ids.to_json(), r#"["artisand:php:succeeded:u"]"#);
        assert_eq!(ids.uuids(), [""; 0]);
        let more = |ids: &mut JobIds, number| {
            let uuid = format!("{number:036}");
            ids.mark_for_php(&ended(&uuid, JobOutcome::Succeeded))
        };
        let taken = (0..2000).filter(|number| more(&mut ids, *number).is_some());
        let taken = taken.count();
        assert!((300..700).contains(&taken), "{taken}");
        assert!(ids.to_json().len() < 33 * 1024);
    }

    #[test]
    fn every_end_has_a_mark_of_its_own_and_of_bounded_length() {
        let hash = hex(&sha1::Sha1::digest(b"a:b"));
        let long = "x".repeat(100_000);
        let long_uuid = "u".repeat(PLAIN_UUID);
        #[rustfmt::skip]
        let rows = [
            // uuid, token
            ("u", ""), ("u", "1"), ("u", "2"), ("u:1", ""), ("u", "1:2"), ("u:1", "2"),
            ("artisand:failed:u", ""), ("", ""), ("", "u"), (&*long, ""), (&*long, "1"), ("u", &*long),
            ("a:b", ""), ("sha1", &*hash), ("sha1", &hash[..32]), (&*hash, ""), ("a:b", "a:b"),
            (&*long_uuid, "0123456789abcdef"),
        ];
        let mut marks = std::collections::HashSet::new();
        for (uuid, token) in rows {
            let ended = Ended {
                token: token.into(),
                ..ended(uuid, JobOutcome::Failed)
            };
            let mark = mark(&ended);
            assert!(mark.len() < 120 && mark.is_ascii(), "{mark}");
            assert!(marks.insert(mark.clone()), "{mark}");
        }
        assert!(marks.contains("artisand:failed:u") && marks.contains("artisand:failed:u:1"));
    }
}
