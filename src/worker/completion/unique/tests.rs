use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::cache::Lock;
use crate::handler::Pipeline;
use crate::routing::UnmappedPolicy;
use crate::worker::test_support::{
    app, does, info, manifest, nothing, object, payload_of, router, services, stores,
};

const A: &str = "App\\Jobs\\A";

/// Fields of a payload with these entries in its hidden context.
fn hidden(entries: &[(&str, &str)]) -> serde_json::Value {
    let mut hidden = json!({});
    for (key, text) in entries {
        hidden[key] = format!("s:{}:\"{text}\";", text.len()).into();
    }
    json!({"illuminate:log:context": {"data": {}, "hidden": hidden}})
}

fn in_context(name: &str) -> serde_json::Value {
    hidden(&[("laravel_unique_job_key", name)])
}

/// An app whose locks are in this directory, and that knows these classes.
fn with(directory: &Path, version: &str, classes: Option<serde_json::Value>) -> Services {
    Services {
        stores: Some(stores(directory)),
        manifest: classes.map(|classes| manifest(version, &classes)),
        ..services(version)
    }
}

fn unique(name: &str, owner: Option<&str>) -> Unique {
    Unique {
        store: "files".to_owned(),
        name: name.to_owned(),
        owner: owner.map(str::to_owned),
        until_processing: false,
    }
}

/// A lock that this owner holds.
async fn held(directory: &Path, name: &str, owner: &str) -> Lock {
    let store = stores(directory).get("files").unwrap();
    let lock = store.lock(name, owner, Duration::from_secs(60));
    assert!(lock.acquire().await.unwrap());
    lock
}

#[test]
fn a_lock_belongs_to_the_class_or_the_name_that_it_begins_with() {
    let hashed = format!("laravel_unique_job:{}:7", name::xxh128("Invoice 7"));
    #[rustfmt::skip]
    let rows = [
        // name of the lock, class, displayed name => whether it is of such a job
        ("laravel_unique_job:A:7",         "A",   "A", true),
        ("laravel_unique_job:A:",          "A",   "A", true),
        ("laravel_unique_job:Invoice 7:7", "A",   "Invoice 7", true),
        (hashed.as_str(),                  "A",   "Invoice 7", true),
        ("laravel_unique_job:AB:7",        "A",   "A", false),
        ("laravel_unique_job:B:A:7",       "A",   "A", false),
        ("laravel-queue-overlap:A:7",      "A",   "A", false),
        ("laravel_unique_job::7",          "",    "",  false),
    ];
    for (name, class, display_name, expected) in rows {
        assert_eq!(is_lock_of(name, class, display_name), expected, "{name}");
    }
}

#[test]
fn the_lock_of_a_job_is_found_in_its_context_its_object_and_the_manifest() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let plain = object(A, 0, "");
    let seven = object(A, 1, "s:8:\"uniqueId\";i:7;");
    let owned = object(A, 1, "s:15:\"uniqueLockOwner\";s:2:\"me\";");
    let known = |facts: serde_json::Value| Some(json!({A: facts}));
    let is_unique = || known(json!({"flags": {"queued": true, "unique": true}}));
    let not = || known(json!({}));
    let via = || known(json!({"flags": {"queued": true, "unique": true}, "unique_via": true}));
    let until = || {
        known(json!({"flags": {
            "queued": true, "unique": true, "unique_until_processing": true,
        }}))
    };
    let none = || json!({});
    let of_a = || in_context("laravel_unique_job:App\\Jobs\\A:7");
    let of_b = || in_context("laravel_unique_job:App\\Jobs\\B:7");
    let of_nine = || in_context("laravel_unique_job:App\\Jobs\\A:9");
    let whole = || {
        hidden(&[
            (
                "laravel_unique_job_key",
                "laravel_unique_job:App\\Jobs\\A:7",
            ),
            ("laravel_unique_job_cache_store", "array"),
            ("laravel_unique_job_lock_owner", "you"),
        ])
    };
    let elsewhere = || {
        hidden(&[
            (
                "laravel_unique_job_key",
                "laravel_unique_job:App\\Jobs\\A:7",
            ),
            ("laravel_unique_job_cache_store", "memcached"),
        ])
    };
    let lock = |id: &str, store: &str, owner: &str| {
        Ok(Some(format!(
            "laravel_unique_job:App\\Jobs\\A:{id} {store} {owner}"
        )))
    };
    #[rustfmt::skip]
    let rows = [
        // version, manifest, command, context => lock, store, owner; or why it is not known
        ("13.31.0", None,        &plain, none(),      Ok(None)),
        // Only the class says whether the lock is freed before the job runs.
        ("13.31.0", None,        &plain, of_a(),      Err("only its class says")),
        ("11.39.0", None,        &plain, of_a(),      Err("only its class says")),
        ("13.31.0", is_unique(), &seven, of_a(),      lock("7", "files", "-")),
        ("13.31.0", is_unique(), &owned, of_a(),      lock("", "files", "me")),
        ("13.31.0", is_unique(), &seven, whole(),     lock("7", "array", "you")),
        // The scheduler notes no lock; since 13.24 the object has its owner.
        ("13.31.0", None,        &owned, none(),      Err("it is unique, and nothing is known")),
        ("13.31.0", is_unique(), &owned, none(),      lock("", "files", "me")),
        // The context of the job that dispatched this one is passed on.
        ("13.31.0", None,        &plain, of_b(),      Ok(None)),
        ("13.31.0", is_unique(), &seven, of_nine(),   lock("7", "files", "-")),
        ("13.31.0", not(),       &plain, of_a(),      Ok(None)),
        ("13.31.0", is_unique(), &plain, none(),      lock("", "files", "-")),
        ("13.31.0", until(),     &seven, of_a(),      lock("7", "files", "- until")),
        ("13.31.0", via(),       &plain, of_a(),      lock("7", "files", "-")),
        ("13.31.0", via(),       &plain, none(),      Err("its method `uniqueVia()` chooses a cache store")),
        ("13.31.0", is_unique(), &seven, elsewhere(), Err("its lock cannot be freed")),
        // Before 13.24 nothing in a job may say that it has a lock.
        ("10.48.0", None,        &plain, none(),      Err("nothing is known of its class")),
        ("10.48.0", not(),       &plain, none(),      Ok(None)),
        ("11.38.0", is_unique(), &seven, none(),      lock("7", "files", "-")),
        ("13.23.0", None,        &plain, none(),      Err("nothing is known of its class")),
        ("13.24.0", None,        &plain, none(),      Ok(None)),
        ("8.13.0",  None,        &plain, none(),      Ok(None)),
    ];
    for (version, classes, command, context, expected) in rows {
        let row = format!("{version} {classes:?} {command} {context}");
        let services = with(path, version, classes);
        let payload = Payload::parse(&payload_of(A, command, 1, &context)).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        let found = Unique::of(&services, &payload, &command, false);
        let found = found.map(|lock| {
            let lock = lock?;
            let holder = lock.owner.as_deref().unwrap_or("-");
            let until = if lock.until_processing { " until" } else { "" };
            Some(format!("{} {} {holder}{until}", lock.name, lock.store))
        });
        match expected {
            Ok(expected) => assert_eq!(found, Ok(expected), "{row}"),
            Err(text) => {
                let why = found.expect_err(&row);
                assert!(why.contains(text), "{row}: {why}");
            }
        }
    }
}

#[test]
fn a_mapping_may_say_that_unknown_classes_are_not_unique_but_not_that_known_ones_are_not() {
    let directory = tempfile::tempdir().unwrap();
    let is_unique = json!({A: {"flags": {"queued": true, "unique": true}}});
    for (classes, is_locked) in [(None, false), (Some(is_unique), true)] {
        let services = with(directory.path(), "10.48.0", classes);
        let payload = payload_of(A, &object(A, 0, ""), 1, &json!({}));
        let payload = Payload::parse(&payload).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        let found = Unique::of(&services, &payload, &command, true).unwrap();
        assert_eq!(found.is_some(), is_locked);
    }
    let services = with(directory.path(), "13.31.0", None);
    let owned = object(A, 1, "s:15:\"uniqueLockOwner\";s:2:\"me\";");
    for (command, context) in [
        (&owned, json!({})),
        (
            &object(A, 0, ""),
            in_context("laravel_unique_job:App\\Jobs\\A:7"),
        ),
    ] {
        let payload = Payload::parse(&payload_of(A, command, 1, &context)).unwrap();
        let command = Command::of(&payload).unwrap().unwrap();
        assert!(Unique::of(&services, &payload, &command, true).is_err());
    }
}

#[test]
fn a_unique_job_is_not_run_where_the_apps_cache_is_not_known() {
    let classes = json!({A: {"flags": {"queued": true, "unique": true}}});
    let services = Services {
        manifest: Some(manifest("13.31.0", &classes)),
        ..services("13.31.0")
    };
    let payload = payload_of(A, &object(A, 0, ""), 1, &json!({}));
    let payload = Payload::parse(&payload).unwrap();
    let command = Command::of(&payload).unwrap().unwrap();
    let why = Unique::of(&services, &payload, &command, false).unwrap_err();
    assert!(why.contains("nothing is known of the app's cache"), "{why}");
}

#[test]
fn the_lock_of_a_payload_that_cannot_be_decoded_is_read_from_its_context() {
    let directory = tempfile::tempdir().unwrap();
    let services = with(directory.path(), "13.31.0", None);
    let own = "laravel_unique_job:App\\Jobs\\A:7";
    let name_in = |payload: &[u8]| Unique::from_raw_json(&services, payload).map(|lock| lock.name);
    let fields = |context: serde_json::Value| payload_of(A, "not an object", 1, &context);
    assert_eq!(name_in(&fields(in_context(own))).as_deref(), Some(own));
    let of_b = in_context("laravel_unique_job:App\\Jobs\\B:7");
    assert_eq!(name_in(&fields(of_b)), None);
    assert_eq!(name_in(&fields(json!({}))), None);
    assert_eq!(name_in(b"not JSON"), None);
    // Without a class outside, the displayed name has to do.
    let mut payload = in_context(own);
    payload["displayName"] = A.into();
    assert_eq!(
        name_in(payload.to_string().as_bytes()).as_deref(),
        Some(own)
    );
}

#[tokio::test]
async fn the_end_of_a_job_frees_its_own_lock_and_no_later_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let router = || router(Vec::new(), UnmappedPolicy::Leave, nothing());
    let app = app(router(), with(path, "13.31.0", None));
    let _held = held(path, "taken", "you").await;
    let array = Unique {
        store: "array".to_owned(),
        ..unique("taken", None)
    };
    let unknown = Unique {
        store: "memcached".to_owned(),
        ..unique("taken", None)
    };
    #[rustfmt::skip]
    let rows = [
        // lock => owner in the record that frees it later, if there is one
        (unique("taken", Some("me")), Some(Some("me"))),
        // Older versions record no owner: by the time it is freed, another job may have the lock.
        (unique("taken", None),       Some(Some("you"))),
        (unique("free", None),        None),
        (array,                       None),
        (unknown,                     None),
    ];
    for (lock, expected) in rows {
        let effect = lock.free(&app, &"default".into()).await;
        let owner = effect.map(|effect| {
            let Effect::Append(_, record) = effect else {
                panic!("{effect:?}");
            };
            match serde_json::from_slice(&record).unwrap() {
                FollowUp::Unlock { owner, .. } => owner,
                other => panic!("{other:?}"),
            }
        });
        let expected = expected.map(|owner: Option<&str>| owner.map(str::to_owned));
        assert_eq!(owner, expected, "{lock:?}");
    }
}

#[tokio::test]
async fn a_lock_of_another_owner_stays_when_a_job_begins() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let services = with(path, "13.31.0", None);
    let lock = held(path, "taken", "you").await;
    unique("taken", Some("me"))
        .free_now(&services)
        .await
        .unwrap();
    let owner = lock.current_owner().await.unwrap();
    assert_eq!(owner.as_deref(), Some("you"));
    unique("taken", Some("you"))
        .free_now(&services)
        .await
        .unwrap();
    assert_eq!(lock.current_owner().await.unwrap(), None);
    assert!(lock.acquire().await.unwrap());
    unique("taken", None).free_now(&services).await.unwrap();
    assert_eq!(lock.current_owner().await.unwrap(), None);
}

#[tokio::test]
async fn a_job_that_is_unique_until_it_runs_has_no_lock_while_it_runs() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let services = Arc::new(with(path, "13.31.0", None));
    let lock = held(path, "taken", "me").await;
    let runs = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&runs);
    let handler = does(move |_| {
        count.fetch_add(1, Ordering::Relaxed);
        Err("the job fails".into())
    });
    let context = || {
        let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
        JobContext::new(
            info,
            tokio_util::sync::CancellationToken::new(),
            Arc::clone(&services),
        )
    };
    let until = Arc::new(UntilProcessing::new(unique("taken", Some("me"))));
    let pipeline: Pipeline = std::iter::once(Arc::clone(&until) as Arc<dyn Middleware>).collect();
    assert!(pipeline.run(&context(), &handler).await.is_err());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
    assert_eq!(lock.current_owner().await.unwrap(), None);
    // A job that was dispatched meanwhile has the lock now, and keeps it.
    let later = held(path, "taken", "me").await;
    until.free_at_the_end(&services).await;
    assert!(later.current_owner().await.unwrap().is_some());
    // A lock that cannot be freed keeps the job from running.
    let broken = Unique {
        store: "memcached".to_owned(),
        ..unique("taken", None)
    };
    let broken: Arc<dyn Middleware> = Arc::new(UntilProcessing::new(broken));
    let pipeline: Pipeline = std::iter::once(broken).collect();
    assert!(pipeline.run(&context(), &handler).await.is_err());
    assert_eq!(runs.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_job_that_its_middleware_ended_keeps_its_lock_before_laravel_12_21() {
    for (version, is_freed) in [("12.20.0", false), ("12.21.0", true)] {
        let directory = tempfile::tempdir().unwrap();
        let services = with(directory.path(), version, None);
        let lock = held(directory.path(), "taken", "me").await;
        let until = UntilProcessing::new(unique("taken", Some("me")));
        until.free_at_the_end(&services).await;
        let owner = lock.current_owner().await.unwrap();
        assert_eq!(owner.is_none(), is_freed, "{version}");
    }
}
