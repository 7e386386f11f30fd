//! Answers of Horizon's API, made from Redis as its controllers make them (docs/protocol/horizon.md 3).
//!
//! CI has no Horizon. That these functions do what Horizon does is shown by the recordings, which hold both what
//! Horizon had in Redis and what its API answered.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::recorded::payload;
use super::{LISTS, P, Scene};

/// The fields of a record that Horizon 5.29 reads.
const FIELDS: [&str; 12] = [
    "id",
    "connection",
    "queue",
    "name",
    "status",
    "payload",
    "exception",
    "context",
    "failed_at",
    "completed_at",
    "retried_by",
    "reserved_at",
];

/// Each page shows of a recorded job what it showed of Horizon's own.
pub(super) fn assert_like_recorded(scene: &Scene, job: &Value) {
    let id = job["id"].as_str().unwrap();
    let recorded: BTreeMap<String, String> = serde_json::from_value(job["after"].clone()).unwrap();
    let answers = job["answers"].as_object().unwrap();
    assert!(!answers.is_empty(), "{id} is on no page");
    for (page, theirs) in answers {
        assert_eq!(of_record(page, &recorded), *theirs, "{page}");
        let ours = of_page(scene, page);
        let ours = ours.get(id).unwrap_or_else(|| panic!("{id} on {page}"));
        assert_equal(ours, theirs);
    }
}

/// Horizon counts as many jobs and measures the same names.
pub(super) fn assert_counts_like_recorded(scene: &Scene, recorded: &Value, jobs: &[Value]) {
    for kind in ["jobs", "queues"] {
        let theirs = serde_json::from_value(recorded["measured"][kind].clone());
        assert_eq!(measured(scene, kind), theirs.unwrap(), "{kind}");
    }
    for list in LISTS {
        let in_list = |job: &&Value| job["lists"].as_array().unwrap().contains(&json!(list));
        let theirs = jobs.iter().filter(in_list).count();
        assert_eq!(count(scene, list), theirs, "{list}");
    }
}

/// What a page shows of a job, without its place on the page.
fn of_record(page: &str, record: &BTreeMap<String, String>) -> Value {
    let text = |name: &str| record.get(name).map(String::as_str);
    // PHP reads an empty text as null.
    let parsed = |name: &str| match text(name) {
        None | Some("") => Value::Null,
        Some(text) => serde_json::from_str(text).unwrap(),
    };
    // phpredis has `false` for what is not there.
    let plain = |name: &str| text(name).map_or(json!(false), Value::from);
    let is_failed = page.starts_with("jobs/failed");
    let fields = FIELDS.into_iter().map(|name| {
        let value = match name {
            "payload" => payload(&record[name]),
            "context" if is_failed => parsed(name),
            "retried_by" if is_failed && text(name).is_none() => json!([]),
            name => plain(name),
        };
        (name.to_owned(), value)
    });
    Value::Object(fields.collect::<Map<_, _>>())
}

/// The jobs of a page, by id.
fn of_page(scene: &Scene, page: &str) -> BTreeMap<String, Value> {
    let with_tag = |tag: &str| {
        let tag = tag.replace("%3A", ":").replace("%5C", "\\");
        let members = scene.redis.scores(&format!("{P}{tag}")).into_iter();
        let ids = members.map(|(id, _)| String::from_utf8(id).unwrap());
        ids.collect()
    };
    let ids = match page.split_once("tag=") {
        Some((path, tag)) if path.starts_with("jobs/") => with_tag(&format!("failed:{tag}")),
        Some((_, tag)) => with_tag(tag),
        None => {
            if let Some(id) = page.strip_prefix("jobs/failed/") {
                vec![id.to_owned()]
            } else {
                let list = page.replace("jobs/", "") + "_jobs";
                scene.jobs(&list).into_iter().collect()
            }
        }
    };
    let shown = ids.into_iter().map(|id| {
        let job = of_record(page, &scene.hash(&id));
        (id, job)
    });
    shown.collect()
}

/// How many jobs of a list Horizon counts, by their scores; an hour back is enough for the jobs of a test.
fn count(scene: &Scene, list: &str) -> usize {
    let key = format!("{P}{list}");
    let most = (-super::now_plus(-3600.0)).to_string();
    scene
        .redis
        .query(&[b"ZCOUNT", key.as_bytes(), b"-inf", most.as_bytes()])
}

/// The names of a page of metrics: `jobs` or `queues`.
fn measured(scene: &Scene, kind: &str) -> BTreeSet<String> {
    let key = format!("{P}measured_{kind}");
    let names: Vec<String> = scene.redis.query(&[b"SMEMBERS", key.as_bytes()]);
    let prefix = format!("{P}{}:", kind.trim_end_matches('s'));
    let bare = names.iter().map(|name| {
        let bare = name.strip_prefix(&prefix);
        bare.unwrap_or_else(|| panic!("{name}")).to_owned()
    });
    bare.collect()
}

/// Compares what a page shows of a job with what it showed of Horizon's own.
fn assert_equal(ours: &Value, theirs: &Value) {
    let (ours, theirs) = (ours.as_object().unwrap(), theirs.as_object().unwrap());
    for (name, theirs) in theirs {
        let ours = &ours[name];
        match &**name {
            "payload" => assert_eq!(payload(&ours.to_string()), payload(&theirs.to_string())),
            "exception" if theirs.is_string() => {
                assert!(ours.as_str().unwrap().contains("Stack trace:"), "{ours}");
            }
            name if name.ends_with("_at") => {
                assert_eq!(
                    ours.is_string(),
                    theirs.is_string(),
                    "{name}: {ours} {theirs}"
                );
            }
            _ => assert_eq!(ours, theirs, "{name}"),
        }
    }
}
