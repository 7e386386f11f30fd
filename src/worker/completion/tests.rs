use std::sync::Arc;

use serde_json::json;

use super::*;
use crate::handler::Services;
use crate::outbox::follow_up::FollowUp;
use crate::queue::Spool;
use crate::routing::UnmappedPolicy;
use crate::worker::test_support::{
    app, info, manifest, mapping, nothing, object, payload_of, router, services, stores,
};

const A: &str = "App\\Jobs\\A";

fn quoted(text: &str) -> String {
    format!("s:{}:\"{text}\";", text.len())
}

/// The property with the chain.
fn chain_property(commands: &[String]) -> String {
    let jobs: Vec<_> = (commands.iter().enumerate())
        .map(|(n, command)| format!("i:{n};{}", quoted(command)))
        .collect();
    format!(
        "{}a:{}:{{{}}}",
        quoted("chained"),
        jobs.len(),
        jobs.concat()
    )
}

/// A command of class A with these jobs in its chain.
fn chained(commands: &[String]) -> String {
    object(A, 1, &chain_property(commands))
}

/// A command with one job in its chain, and a catch callback.
fn caught() -> String {
    let chain = chain_property(&[next()]);
    let callbacks = format!(
        "{}a:1:{{i:0;{}}}",
        quoted("chainCatchCallbacks"),
        quoted("report")
    );
    object(A, 2, &format!("{chain}{callbacks}"))
}

fn next() -> String {
    object("App\\Jobs\\Next", 0, "")
}

fn to_php() -> UnmappedPolicy {
    UnmappedPolicy::Forward("php".into())
}

fn app_of(services: Services, unmapped: UnmappedPolicy) -> Arc<AppContext> {
    app(router(vec![mapping(A)], unmapped, nothing()), services)
}

/// An app that knows the classes of the chain.
fn knowing(classes: &serde_json::Value) -> Services {
    Services {
        manifest: Some(manifest("13.31.0", classes)),
        ..services("13.31.0")
    }
}

/// What effects do, one text each.
fn shown(effects: &[Effect]) -> Vec<String> {
    let class = |payload: &[u8]| {
        let payload = Payload::parse(payload).unwrap();
        match payload.command_name() {
            Some("Illuminate\\Queue\\CallQueuedClosure") => "a closure".to_owned(),
            name => name.unwrap_or_default().to_owned(),
        }
    };
    let show = |effect: &Effect| match effect {
        Effect::Push(push) => format!("push {} to {}", class(&push.payload), push.queue),
        Effect::Append(Spool::FollowUps, record) => match serde_json::from_slice(record).unwrap() {
            FollowUp::Count(count) => {
                let message = count.message.map_or(String::new(), |it| format!(": {it}"));
                format!("count {} {:?}{message}", count.batch, count.ended.outcome)
            }
            FollowUp::Unlock { name, owner, .. } => format!("unlock {name} of {owner:?}"),
            FollowUp::Push(push) => {
                let to = format!("{}/{}", push.connection, push.queue);
                let lock = push
                    .lock
                    .map_or(String::new(), |it| format!(" with {}", it.name));
                format!(
                    "later push {} to {to}{lock}",
                    class(push.payload.as_bytes())
                )
            }
            other @ FollowUp::Forget { .. } => format!("{other:?}"),
        },
        other => format!("{other:?}"),
    };
    effects.iter().map(show).collect()
}

fn lock(until_processing: bool) -> Unique {
    Unique {
        store: "files".to_owned(),
        name: "lock".to_owned(),
        owner: Some("me".to_owned()),
        until_processing,
    }
}

fn chain_of(command: &str) -> Box<Chain> {
    let chain = Chain::read(command.as_bytes(), "13.31.0".parse().unwrap());
    Box::new(chain.unwrap())
}

/// A batch of which artisand knows the table.
#[cfg(feature = "sqlite")]
fn batches(version: &str) -> crate::batch::Batches {
    use crate::connection::{Database, DatabaseKind, DatabaseOptions};
    let options = DatabaseOptions {
        database: "/nowhere/database.sqlite".into(),
        ..DatabaseOptions::new("main", DatabaseKind::Sqlite)
    };
    let database = Database::new(&options).unwrap();
    let (version, clock) = (version.parse().unwrap(), crate::time::Clock::System);
    crate::batch::Batches::new(database, "job_batches", version, clock)
}

#[test]
fn a_command_without_a_chain_is_known_without_parsing_it() {
    let escaped = object(A, 1, "S:7:\"\\63hained\";a:0:{}");
    let catch = |value: &str| object(A, 1, &format!("{}{value}", quoted("chainCatchCallbacks")));
    #[rustfmt::skip]
    let rows = [
        (object(A, 0, ""),                     false),
        // Up to Laravel 9.3 every job has the property.
        (chained(&[]),                     false),
        (catch("N;"),                          false),
        (object(A, 1, "s:1:\"n\";s:5:\"chain\";"), false),
        (chained(&[next()]),               true),
        (catch("a:1:{i:0;s:1:\"f\";}"),        true),
        // PHP also reads names that are escaped.
        (escaped,                              true),
        // An empty one outside does not speak for the one of the job inside.
        (object(A, 2, &format!("s:7:\"chained\";a:0:{{}}s:3:\"job\";{}", quoted(&chained(&[next()])))), true),
    ];
    for (command, expected) in rows {
        assert_eq!(has_chain(command.as_bytes()), expected, "{command}");
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_success_frees_the_lock_takes_the_step_and_counts_in_laravels_order() {
    let directory = tempfile::tempdir().unwrap();
    let services = Services {
        stores: Some(stores(directory.path())),
        batches: Some(batches("13.31.0")),
        ..knowing(&json!({"App\\Jobs\\Next": {}}))
    };
    let app = app_of(services, to_php());
    let command = chained(&[next(), next()]);
    let info = info(&payload_of(A, &command, 1, &json!({})));
    let completion = Completion {
        unique: Some(lock(false)),
        batch: Some("b".into()),
        chain: Some(chain_of(&command)),
        ..Completion::default()
    };
    let effects = completion.on_success(&app, &info, Vec::new(), Vec::new());
    let expected = [
        "unlock lock of Some(\"me\")",
        "push App\\Jobs\\Next to usual",
        "count b Succeeded",
    ];
    assert_eq!(shown(&effects.await.unwrap()), expected);
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_failure_ends_the_chain_and_says_why_where_php_has_to_know() {
    let directory = tempfile::tempdir().unwrap();
    let services = Services {
        stores: Some(stores(directory.path())),
        batches: Some(batches("13.31.0")),
        ..knowing(&json!({"App\\Jobs\\Next": {}}))
    };
    let app = app_of(services, to_php());
    let command = caught();
    let info = info(&payload_of(A, &command, 1, &json!({})));
    let completion = Completion {
        unique: Some(lock(false)),
        batch: Some("b".into()),
        chain: Some(chain_of(&command)),
        php_queue: Some("php".into()),
        telling: Telling {
            raises_event: true,
            ..Telling::default()
        },
        ..Completion::default()
    };
    let failure = FailureText::new("E", "disk full");
    let brought = completion.on_failure(&app, &info, &failure).await;
    let expected = [
        "unlock lock of Some(\"me\")",
        "count b Failed: disk full",
        // The catch callbacks of the chain, then Laravel's event.
        "push a closure to php",
        "push a closure to php",
    ];
    assert_eq!(shown(&brought.effects), expected);
    assert!(brought.is_event_raised);
    let Effect::Push(catches) = &brought.effects[2] else {
        panic!("{:?}", brought.effects);
    };
    let text = String::from_utf8_lossy(&catches.payload);
    assert!(
        text.contains("disk full") && text.contains("report"),
        "{text}"
    );
}

#[tokio::test]
async fn a_lock_until_processing_is_freed_at_the_end_only_if_it_was_not_freed_before() {
    let directory = tempfile::tempdir().unwrap();
    let services = Services {
        stores: Some(stores(directory.path())),
        ..services("13.31.0")
    };
    let app = app_of(services, to_php());
    let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
    let failure = FailureText::new("E", "m");
    for until_processing in [false, true] {
        let completion = Completion {
            unique: Some(lock(until_processing)),
            ..Completion::default()
        };
        let at_an_end = usize::from(!until_processing);
        let succeeded = completion.on_success(&app, &info, Vec::new(), Vec::new());
        assert_eq!(succeeded.await.unwrap().len(), at_an_end);
        let failed = completion.on_failure(&app, &info, &failure).await;
        assert_eq!(failed.effects.len(), at_an_end);
        let unlocked = ["unlock lock of Some(\"me\")"];
        let until = completion.lock_until_processing().cloned();
        assert_eq!(until.is_some(), until_processing);
        let until = until.map(UntilProcessing::new);
        let missing = completion.on_missing_model(&app, &info, until.as_ref());
        assert_eq!(shown(&missing.await), unlocked);
        let deleted = completion.on_deletion(&app, &info.queue, until.as_ref());
        assert_eq!(shown(&deleted.await), unlocked);
        // A lock that a later attempt leaves alone, as it may be that of another job.
        let deleted = completion.on_deletion(&app, &info.queue, None).await;
        assert_eq!(deleted.len(), at_an_end);
        let Some(until) = until else {
            continue;
        };
        until.free_at_the_end(&app.services).await;
        let until = Some(&until);
        let missing = completion.on_missing_model(&app, &info, until).await;
        let deleted = completion.on_deletion(&app, &info.queue, until).await;
        assert!(missing.is_empty() && deleted.is_empty());
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_batch_counts_a_job_whose_model_is_gone_since_laravel_12_51() {
    for (version, expected) in [("12.50.0", None), ("12.51.0", Some("count b Succeeded"))] {
        let services = Services {
            batches: Some(batches(version)),
            ..services(version)
        };
        let app = app_of(services, to_php());
        let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
        let completion = Completion {
            batch: Some("b".into()),
            ..Completion::default()
        };
        let effects = completion.on_missing_model(&app, &info, None).await;
        let expected: Vec<&str> = expected.into_iter().collect();
        assert_eq!(shown(&effects), expected, "{version}");
        // A job that deleted itself is not done, and the batch waits for it.
        let deleted = completion.on_deletion(&app, &info.queue, None).await;
        assert!(deleted.is_empty(), "{version}");
    }
}

/// A class may have a `batchId` of its own.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn a_batch_counts_only_jobs_of_classes_that_laravel_counts() {
    let flags = |batchable: bool, interacts: bool| {
        let flags = json!({"batchable": batchable, "interacts_with_queue": interacts});
        json!({A: {"flags": flags}})
    };
    let command = object(A, 1, &format!("{}{}", quoted("batchId"), quoted("b")));
    let info = info(&payload_of(A, &command, 1, &json!({})));
    #[rustfmt::skip]
    let rows = [
        // what is known of the class => counted after a success, after a failure
        (flags(true, true),   true,  true),
        (flags(true, false),  false, true),
        (flags(false, true),  false, false),
        // Nothing is known of the class, or a manifest of an earlier version does not say it.
        (json!({}),           true,  true),
        (json!({A: {}}),      true,  true),
    ];
    for (classes, after_success, after_failure) in rows {
        let known = || Some(manifest("13.31.0", &classes));
        // What PHP has told goes before the manifest.
        let other = || Some(manifest("13.31.0", &flags(true, true)));
        for (told, manifest) in [(known(), None), (None, known()), (known(), other())] {
            let services = Services {
                batches: Some(batches("13.31.0")),
                told,
                manifest,
                ..services("13.31.0")
            };
            let app = app_of(services, to_php());
            let completion = Completion::of(&app, &info.payload, &info.queue, Some(0)).unwrap();
            let succeeded = completion.on_success(&app, &info, Vec::new(), Vec::new());
            let counted =
                |is: bool, how: &str| Vec::from_iter(is.then(|| format!("count b {how}")));
            let expected = counted(after_success, "Succeeded");
            assert_eq!(shown(&succeeded.await.unwrap()), expected, "{classes}");
            let missing = completion.on_missing_model(&app, &info, None).await;
            let expected = counted(after_failure, "Succeeded");
            assert_eq!(shown(&missing), expected, "{classes}");
            let failure = FailureText::new("E", "m");
            let refused = Completion::of_refused(&app, &info);
            for completion in [completion, refused] {
                let failed = completion.on_failure(&app, &info, &failure).await;
                let expected = counted(after_failure, "Failed: m");
                assert_eq!(shown(&failed.effects), expected, "{classes}");
            }
            // As handlers and `SkipIfBatchCancelled` see it.
            let batch = app.services.batch_id(&info.payload);
            assert_eq!(batch.is_some(), after_failure, "{classes}");
        }
    }
}

/// Such a job fails under the policy `fail`.
#[tokio::test]
async fn a_refused_job_of_a_batch_is_counted_where_php_can_go_on() {
    let named = || Services {
        php_queue: Some("closures".into()),
        ..services("13.31.0")
    };
    let batch_id = format!("{}{}", quoted("batchId"), quoted("b-17"));
    let readable = payload_of(A, &object(A, 1, &batch_id), 1, &json!({}));
    // Of an encrypted one the batch stands beside the command.
    let mut encrypted: serde_json::Value =
        serde_json::from_slice(&payload_of(A, "eyJpdiI6", 1, &json!({}))).unwrap();
    encrypted["data"]["batchId"] = json!("b-17");
    for payload in [readable, encrypted.to_string().into_bytes()] {
        let info = info(&payload);
        let failure = FailureText::new("E", "m");
        let app = app_of(named(), UnmappedPolicy::Fail);
        let completion = Completion::of_refused(&app, &info);
        let failed = completion.on_failure(&app, &info, &failure).await;
        assert_eq!(shown(&failed.effects), ["push a closure to closures"]);
        let Effect::Push(push) = &failed.effects[0] else {
            panic!("{:?}", failed.effects);
        };
        let text = String::from_utf8_lossy(&push.payload);
        assert!(
            text.contains("recordFailedJob") && text.contains("b-17"),
            "{text}"
        );
    }
}

#[tokio::test]
async fn where_only_php_knows_the_batches_php_counts() {
    let app = app_of(services("13.31.0"), to_php());
    let info = info(&payload_of(A, &object(A, 0, ""), 1, &of_a_tenant()));
    let completion = Completion {
        batch: Some("b-17".into()),
        php_queue: Some("php".into()),
        ..Completion::default()
    };
    let succeeded = completion.on_success(&app, &info, Vec::new(), Vec::new());
    let full = FailureText::new("E", "disk full");
    let failed = completion.on_failure(&app, &info, &full);
    for (effects, method) in [
        (succeeded.await.unwrap(), "recordSuccessfulJob"),
        (failed.await.effects, "recordFailedJob"),
    ] {
        assert_eq!(shown(&effects), ["push a closure to php"]);
        let Effect::Push(push) = &effects[0] else {
            panic!("{effects:?}");
        };
        let text = String::from_utf8_lossy(&push.payload);
        assert!(text.contains(method) && text.contains("b-17"), "{text}");
        let found: serde_json::Value = serde_json::from_slice(&push.payload).unwrap();
        for (name, value) in of_a_tenant().as_object().unwrap() {
            assert_eq!(found[name], *value, "{name}");
        }
    }
}

/// What a job has that its closures have too.
fn of_a_tenant() -> serde_json::Value {
    json!({
        "timeout": 900, "tenantId": 7,
        "illuminate:log:context": {"data": {"tenantId": "i:7;"}, "hidden": []},
    })
}

/// The worker that counts may be another one, and knows the job from the record only.
#[cfg(feature = "sqlite")]
#[tokio::test]
async fn the_record_of_a_count_has_what_its_closure_inherits_from_the_job() {
    let services = Services {
        batches: Some(batches("13.31.0")),
        ..services("13.31.0")
    };
    let app = app_of(services, to_php());
    let completion = Completion {
        batch: Some("b".into()),
        ..Completion::default()
    };
    for (fields, timeout) in [(of_a_tenant(), Some(900)), (json!({}), None)] {
        let info = info(&payload_of(A, &object(A, 0, ""), 1, &fields));
        let effects = completion.on_success(&app, &info, Vec::new(), Vec::new());
        let effects = effects.await.unwrap();
        let Effect::Append(Spool::FollowUps, record) = &effects[0] else {
            panic!("{effects:?}");
        };
        let FollowUp::Count(count) = serde_json::from_slice(record).unwrap() else {
            panic!("no count");
        };
        assert_eq!(count.timeout, timeout);
        let inherited = count.inherited.unwrap_or_default();
        for name in ["tenantId", "illuminate:log:context"] {
            assert_eq!(inherited.get(name), fields.get(name), "{name}");
        }
    }
}

#[test]
fn a_job_whose_end_could_not_be_carried_out_is_not_taken() {
    let in_batch = || object(A, 1, &format!("{}{}", quoted("batchId"), quoted("b")));
    let closure = || object("Illuminate\\Queue\\CallQueuedClosure", 0, "");
    let odd = || object(A, 1, &format!("{}{}", quoted("chained"), quoted("text")));
    let keyless = |services: Services| Services {
        encrypter: None,
        ..services
    };
    let known = || knowing(&json!({"App\\Jobs\\Next": {}}));
    let unqueued = || knowing(&json!({"App\\Jobs\\Next": {"interfaces": ["Other"]}}));
    let at = services;
    let newer = || Services {
        manifest: Some(manifest("12.45.0", &json!({A: {}}))),
        ..at("12.45.0")
    };
    let fail = || UnmappedPolicy::Fail;
    #[rustfmt::skip]
    let rows = [
        // services, policy, command => refusal
        (at("13.31.0"),          to_php(), in_batch(),                    None),
        (at("13.31.0"),          fail(),   in_batch(),                    Some("in a batch")),
        (at("13.31.0"),          fail(),   in_batch(),                    Some("set `queue` under [php]")),
        (keyless(at("13.31.0")), to_php(), in_batch(),                    Some("signed with the app's key")),
        (keyless(known()),       to_php(), chained(&[next()]),         None),
        (keyless(known()),       to_php(), caught(),                Some("catch callbacks")),
        (keyless(known()),       to_php(), chained(&[closure()]),      Some("needs PHP (it is a closure)")),
        (known(),                to_php(), chained(&[closure()]),      None),
        (keyless(unqueued()),    to_php(), chained(&[next()]),         Some("it is a job that is not queued")),
        (keyless(at("13.31.0")), to_php(), chained(&[next()]),         Some("the next step of its chain needs PHP")),
        // PHP itself would fail on it, up to 12.44.
        (at("12.44.0"),          to_php(), odd(),                         Some("is a string, not an array")),
        (newer(),                to_php(), odd(),                         None),
    ];
    for (services, policy, command, expected) in rows {
        let version = services.version;
        let app = app_of(services, policy);
        let payload = Payload::parse(&payload_of(A, &command, 1, &json!({}))).unwrap();
        let found = Completion::of(&app, &payload, &"default".into(), Some(0));
        let found = found.err().map(|refusal| refusal.to_string());
        let row = format!("{version} {command}: {found:?}");
        match expected {
            None => assert_eq!(found, None, "{row}"),
            Some(text) => assert!(found.is_some_and(|found| found.contains(text)), "{row}"),
        }
    }
    let app = app_of(services("13.31.0"), to_php());
    let nameless = payload_of(A, &in_batch(), 1, &json!({"uuid": null}));
    let payload = Payload::parse(&nameless).unwrap();
    let found = Completion::of(&app, &payload, &"default".into(), Some(0)).unwrap_err();
    assert_eq!(found.to_string(), "a job of a batch has no uuid");
}

#[test]
fn a_string_job_and_an_unreadable_one_bring_nothing_about() {
    let app = app_of(services("13.31.0"), to_php());
    let of = |payload: &[u8]| {
        let payload = Payload::parse(payload).unwrap();
        Completion::of(&app, &payload, &"default".into(), Some(0)).unwrap()
    };
    let string = of(br#"{"job":"Mailer@send","data":[],"attempts":0}"#);
    let broken = of(&payload_of(A, "O:3:\"A", 1, &json!({})));
    for found in [string, broken] {
        assert!(found.unique.is_none() && found.batch.is_none() && found.chain.is_none());
    }
}

#[test]
fn what_is_known_of_a_refused_job_is_kept_for_its_failure() {
    let directory = tempfile::tempdir().unwrap();
    let services = Services {
        stores: Some(stores(directory.path())),
        ..services("13.31.0")
    };
    let app = app_of(services, UnmappedPolicy::Fail);
    let command = object(A, 1, &format!("{}{}", quoted("batchId"), quoted("b")));
    let key = "laravel_unique_job:App\\Jobs\\A:";
    let context = json!({"illuminate:log:context": {
        "data": {}, "hidden": {"laravel_unique_job_key": quoted(key)},
    }});
    let found = Completion::of_refused(&app, &info(&payload_of(A, &command, 1, &context)));
    assert_eq!(found.batch.as_deref(), Some("b"));
    assert_eq!(found.unique.unwrap().name, key);
    // A command that cannot be read still has its lock outside.
    let found = Completion::of_refused(&app, &info(&payload_of(A, "eyJpdiI6", 1, &context)));
    assert_eq!(
        (found.batch, found.unique.unwrap().name),
        (None, key.to_owned())
    );
}

#[tokio::test]
async fn the_next_step_is_pushed_where_its_class_says() {
    let directory = tempfile::tempdir().unwrap();
    let on = |connection: &str| {
        let property = format!("{}{}", quoted("connection"), quoted(connection));
        object("App\\Jobs\\Next", 1, &property)
    };
    let unique = json!({"flags": {"queued": true, "unique": true}});
    let batch = object("Illuminate\\Bus\\ChainedBatch", 0, "");
    #[rustfmt::skip]
    let rows = [
        // facts of the next class, its command => what happens in the step that ends the job
        (json!({}), next(),      "push App\\Jobs\\Next to usual".to_owned()),
        (json!({}), on("other"), "later push App\\Jobs\\Next to other/elsewhere".to_owned()),
        // Its lock is in another store, so it has to be taken first.
        (unique,    next(),      "later push App\\Jobs\\Next to redis/usual with laravel_unique_job:App\\Jobs\\Next:".to_owned()),
        (json!({}), on("none"),  "push a closure to php".to_owned()),
        (json!({}), batch,       "push a closure to php".to_owned()),
    ];
    for (facts, command, expected) in rows {
        let services = Services {
            stores: Some(stores(directory.path())),
            ..knowing(&json!({"App\\Jobs\\Next": facts}))
        };
        let app = app_of(services, to_php());
        let command = chained(&[command]);
        let info = info(&payload_of(A, &command, 1, &json!({})));
        let completion = Completion {
            chain: Some(chain_of(&command)),
            php_queue: Some("php".into()),
            ..Completion::default()
        };
        let effects = completion.on_success(&app, &info, Vec::new(), Vec::new());
        assert_eq!(shown(&effects.await.unwrap()), [expected], "{command}");
    }
}

#[tokio::test]
async fn a_step_that_neither_side_can_take_fails_the_job_and_loses_no_chain() {
    let services = Services {
        encrypter: None,
        encrypter_missing: Some("APP_KEY is empty".into()),
        ..services("13.31.0")
    };
    let app = app_of(services, to_php());
    let command = chained(&[next()]);
    let info = info(&payload_of(A, &command, 1, &json!({})));
    let completion = Completion {
        chain: Some(chain_of(&command)),
        php_queue: Some("php".into()),
        ..Completion::default()
    };
    let ended = completion.on_success(&app, &info, Vec::new(), Vec::new());
    let why = ended.await.unwrap_err();
    assert!(
        why.starts_with("the next step of its chain needs PHP"),
        "{why}"
    );
    assert!(why.ends_with("APP_KEY is empty"), "{why}");
}

#[tokio::test]
async fn jobs_that_a_handler_adds_come_before_and_behind_the_chain() {
    let classes = json!({"App\\Jobs\\Next": {}, "App\\Jobs\\First": {}, "App\\Jobs\\Last": {}});
    let app = app_of(knowing(&classes), to_php());
    let of = |class: &str| object(&format!("App\\Jobs\\{class}"), 0, "").into_bytes();
    let edits = vec![
        ChainEdit::Append(of("Last")),
        ChainEdit::Prepend(of("Next")),
        // Each call puts its job in front.
        ChainEdit::Prepend(of("First")),
    ];
    for command in [object(A, 0, ""), chained(&[next()])] {
        let info = info(&payload_of(A, &command, 1, &json!({})));
        let payload = Payload::parse(&info.body).unwrap();
        let completion = Completion::of(&app, &payload, &info.queue, Some(0)).unwrap();
        completion.check_edits(&app, &info, &edits).unwrap();
        let effects = completion.on_success(&app, &info, edits.clone(), Vec::new());
        let effects = effects.await.unwrap();
        assert_eq!(shown(&effects), ["push App\\Jobs\\First to usual"]);
        let Effect::Push(push) = &effects[0] else {
            panic!("{effects:?}");
        };
        let text = String::from_utf8_lossy(&push.payload);
        let (next, last) = (text.find("Jobs\\\\Next"), text.find("Jobs\\\\Last"));
        assert!(next.is_some() && next < last, "{text}");
    }
}

#[test]
fn a_job_that_could_not_follow_is_said_before_anything_is_settled() {
    let keyless = Services {
        encrypter: None,
        ..services("13.31.0")
    };
    let app = app_of(keyless, to_php());
    let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
    let completion = Completion::default();
    let edit = |command: String| [ChainEdit::Append(command.into_bytes())];
    assert_eq!(completion.check_edits(&app, &info, &[]), Ok(()));
    let why = completion
        .check_edits(&app, &info, &edit(next()))
        .unwrap_err();
    assert!(
        why.starts_with("the job added to the chain needs PHP"),
        "{why}"
    );
    let why = completion.check_edits(&app, &info, &edit("i:5;".to_owned()));
    assert!(why.is_err(), "no object");
}

#[tokio::test]
async fn php_is_told_of_a_failure_only_if_there_is_something_for_it_to_do() {
    let with =
        |has_failed: bool| knowing(&json!({A: {"flags": {"queued": true, "failed": has_failed}}}));
    #[rustfmt::skip]
    let rows = [
        // services, calls `failed()`, raises the event => told
        (with(true),          true,  false, true),
        (with(false),         true,  false, false),
        (with(true),          false, false, false),
        (with(false),         false, true,  true),
        // Nothing is known of the class: PHP finds out, if it is told anyway.
        (services("13.31.0"), true,  false, false),
        (services("13.31.0"), true,  true,  true),
    ];
    for (services, calls_failed, raises_event, expected) in rows {
        let row = (services.manifest.is_some(), calls_failed, raises_event);
        let app = app_of(services, to_php());
        let completion = Completion {
            telling: Telling {
                calls_failed,
                raises_event,
                raises_all: false,
            },
            ..Completion::default()
        };
        let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
        let text = FailureText::new("E", "m");
        let brought = completion.on_failure(&app, &info, &text).await;
        assert_eq!(!brought.effects.is_empty(), expected, "{row:?}");
        assert_eq!(brought.is_event_raised, expected && raises_event, "{row:?}");
    }
}

#[tokio::test]
async fn a_secret_does_not_reach_php_in_the_clear() {
    let app = app_of(services("13.31.0"), to_php());
    let encrypter = app.services.encrypter.as_ref().unwrap();
    let secret = object(A, 1, &format!("s:4:\"card\";{}", quoted("4242")));
    let command = encrypter.encrypt_command(secret.as_bytes());
    let bytes = payload_of(A, &command, 1, &json!({}));
    let mut payload = Payload::parse(&bytes).unwrap();
    payload.decrypt(encrypter).unwrap();
    let info = JobInfo {
        payload: Arc::new(payload),
        ..(*info(&bytes)).clone()
    };
    let completion = Completion {
        telling: Telling {
            raises_event: true,
            ..Telling::default()
        },
        ..Completion::default()
    };
    let failure = FailureText::new("E", "card 4242 refused");
    let brought = completion.on_failure(&app, &info, &failure).await;
    let [Effect::Push(push)] = &brought.effects[..] else {
        panic!("{:?}", brought.effects);
    };
    let text = String::from_utf8_lossy(&push.payload);
    assert!(!text.contains("4242"), "{text}");
}

#[tokio::test]
async fn a_failure_without_the_apps_key_is_kept_from_php_and_still_recorded() {
    let services = Services {
        encrypter: None,
        ..services("13.31.0")
    };
    let app = app_of(services, to_php());
    let info = info(&payload_of(A, &object(A, 0, ""), 1, &json!({})));
    let completion = Completion {
        telling: Telling {
            raises_event: true,
            ..Telling::default()
        },
        ..Completion::default()
    };
    let text = FailureText::new("E", "m");
    let brought = completion.on_failure(&app, &info, &text).await;
    assert!(brought.effects.is_empty() && !brought.is_event_raised);
}

#[test]
fn a_queue_for_php_is_the_configured_one_or_where_unmapped_jobs_go() {
    let of = |services: Services, policy| app_of(services, policy).php_queue(&"default".into());
    let named = || Services {
        php_queue: Some("closures".into()),
        ..services("13.31.0")
    };
    #[rustfmt::skip]
    let rows = [
        (named(),             UnmappedPolicy::Fail,  Some("closures")),
        (services("13.31.0"), UnmappedPolicy::Fail,  None),
        (services("13.31.0"), UnmappedPolicy::Leave, Some("default")),
        (services("13.31.0"), UnmappedPolicy::Php,   Some("default")),
        (services("13.31.0"), to_php(),              Some("php")),
    ];
    for (services, policy, expected) in rows {
        let row = format!("{policy:?}");
        let found = of(services, policy);
        assert_eq!(found, expected.map(QueueName::from), "{row}");
    }
}
