//! Payloads of jobs that are dispatched, on queues in memory.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde_json::value::RawValue;
use serde_json::{Value as Json, json};

use super::pending::Pushable;
use super::{Dispatch, DispatchError, Pending};
use crate::app::Manifest;
use crate::cache::{Cache, FileStore, FileStoreOptions, Stores};
use crate::handler::{BoxError, BoxFuture, Fields, Hooks, RunsHooks, Services};
use crate::payload::Encrypter;
use crate::php::{ClassName, Object};
use crate::queue::faulty::{Fault, Server};
use crate::queue::{Connections, Destination, MemoryQueue, QueueName};
#[cfg(feature = "sqs")]
use crate::queue::{SqsOptions, SqsQueue};
use crate::time::Clock;

/// An app of this version, with these fields in its manifest.
fn services(version: &str, fields: &Json) -> Services {
    let mut manifest = json!({
        "artisand": 1, "laravel": version, "generated_at": 0, "config": {},
        "paths": {"base": "/app", "storage": "/app/storage"}, "classes": {},
    });
    let fields = fields.as_object().unwrap().clone();
    manifest.as_object_mut().unwrap().extend(fields);
    let manifest = Manifest::parse(Path::new("a.json"), manifest.to_string().as_bytes());
    let here = Destination {
        default_queue: "usual".into(),
        queues: Ok(Arc::new(MemoryQueue::new(None))),
    };
    Services {
        version: version.parse().unwrap(),
        manifest: Some(Arc::new(manifest.unwrap())),
        connections: Some(Connections::new("redis", [("redis".to_owned(), here)])),
        ..Services::default()
    }
}

/// A property that is null at first.
fn property(name: &str) -> Json {
    json!({"name": name, "visibility": "public", "class": "App\\Any", "default": "Tjs="})
}

/// A queued class with these properties.
fn queued(kind: &str, properties: &[&str]) -> Json {
    let properties: Vec<Json> = properties.iter().map(|name| property(name)).collect();
    json!({
        "kind": kind, "file": "A.php", "flags": {"queued": true}, "properties": properties,
        "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
        "uses": ["Illuminate\\Bus\\Queueable"],
    })
}

fn object(class: &str) -> Object {
    Object::new(ClassName::new(class).unwrap())
}

/// The payload that is pushed.
async fn payload(pending: Pending) -> Result<Json, DispatchError> {
    let prepared = pending.prepare().await?;
    Ok(serde_json::from_slice(prepared.payload()).unwrap())
}

#[derive(Serialize)]
#[serde(rename = "App\\Event")]
struct Event {}

/// PHP, where a hook adds the queue.
#[derive(Debug)]
struct Php;

impl RunsHooks for Php {
    fn fields<'a>(
        &'a self,
        _: &'a str,
        _: &'a str,
        queue: &'a QueueName,
    ) -> BoxFuture<'a, Result<Fields, String>> {
        let json = RawValue::from_string(json!(queue.as_str()).to_string());
        Box::pin(async move { Ok(vec![("tenant".into(), json.unwrap())]) })
    }
}

#[tokio::test]
async fn payload_hooks_are_asked_for_string_jobs_too() {
    let services = services("13.31.0", &json!({"payload_hooks": ["App\\Tenancy"]}));
    let string = |hooks: Hooks| {
        let mut services = services.clone();
        services.hooks = hooks;
        Dispatch::of_services(services).string("App\\Legacy@run", &1)
    };
    let error = payload(string(Hooks::OnlyPhp)).await.unwrap_err();
    assert!(matches!(error, DispatchError::OnlyPhp(_)), "{error:?}");
    let skipped = payload(string(Hooks::Skip)).await.unwrap();
    assert_eq!(skipped.get("tenant"), None);
    let asked = payload(string(Hooks::Ask(Arc::new(Php)))).await.unwrap();
    assert_eq!(asked["tenant"], "usual");
    let by_php = payload(string(Hooks::Skip).by_php()).await.unwrap_err();
    assert!(matches!(by_php, DispatchError::Unfit(_)), "{by_php:?}");
}

#[tokio::test]
async fn a_wrapper_has_the_group_of_what_is_in_it() {
    #[rustfmt::skip]
    let wrapper = queued("job", &[
        "class", "method", "data", "notifiables", "notification", "channels", "connection", "queue", "delay",
        "afterCommit", "middleware", "tries", "timeout", "maxExceptions", "shouldBeEncrypted", "messageGroup",
    ]);
    let fields = json!({
        "classes": {
            "App\\Paid": queued("notification", &["id", "messageGroup"]),
            "App\\Send": queued("listener", &["messageGroup"]),
        },
        "wrappers": {
            "Illuminate\\Notifications\\SendQueuedNotifications": wrapper,
            "Illuminate\\Events\\CallQueuedListener": wrapper,
        },
    });
    let dispatch = Dispatch::of_services(services("13.31.0", &fields));
    let paid = Pushable::Notification(object("App\\Paid"));
    let paid = Pending::of(dispatch.app(), Ok(paid)).to("7").via("sms");
    let send = dispatch.listener("App\\Send", &Event {});
    for (pending, groups) in [(paid, 2), (send, 1)] {
        let payload = payload(pending.group("user-7")).await.unwrap();
        let command = payload["data"]["command"].as_str().unwrap();
        let group = r#"s:12:"messageGroup";s:6:"user-7";"#;
        assert_eq!(command.matches(group).count(), groups, "{command}");
    }
}

#[tokio::test]
async fn a_group_that_the_wrapper_cannot_have_is_refused() {
    let fields = json!({
        "classes": {"App\\Send": queued("listener", &[])},
        "wrappers": {"Illuminate\\Events\\CallQueuedListener": queued("job", &["class", "method", "data"])},
    });
    let dispatch = Dispatch::of_services(services("10.48.0", &fields));
    let listener = dispatch.listener("App\\Send", &Event {});
    let error = payload(listener.group("user-7")).await.unwrap_err();
    assert!(matches!(error, DispatchError::Unfit(_)), "{error:?}");
}

#[tokio::test]
async fn a_listener_without_handle_is_invoked() {
    let mut invokable = queued("listener", &[]);
    invokable["flags"]["invokable"] = true.into();
    let wrapper = queued("job", &["class", "method", "data"]);
    let fields = json!({
        "classes": {"App\\Handles": queued("listener", &[]), "App\\Invoked": invokable},
        "wrappers": {"Illuminate\\Events\\CallQueuedListener": wrapper},
    });
    let dispatch = Dispatch::of_services(services("13.31.0", &fields));
    for (listener, method) in [
        ("App\\Handles", "handle"),
        ("App\\Invoked", "__invoke"),
        ("App\\Invoked@other", "other"),
    ] {
        let payload = payload(dispatch.listener(listener, &Event {}))
            .await
            .unwrap();
        let command = payload["data"]["command"].as_str().unwrap();
        let method = format!(r#"s:6:"method";s:{}:"{method}";"#, method.len());
        assert!(command.contains(&method), "{command}");
    }
}

#[tokio::test]
async fn a_listener_is_asked_for_its_tries_since_laravel_12_29() {
    let mut listener = queued("listener", &[]);
    listener["limits"] = json!({"tries": {"$method": true}});
    listener["methods"] = json!({"tries": {"text": false, "parts": [{"literal": 9}]}});
    let wrapper = queued("job", &["class", "method", "data", "tries"]);
    let fields = json!({
        "classes": {"App\\Send": listener},
        "wrappers": {"Illuminate\\Events\\CallQueuedListener": wrapper},
    });
    for (version, tries) in [
        ("12.28.1", json!(null)),
        ("12.29.0", json!(9)),
        ("13.31.0", json!(9)),
    ] {
        let dispatch = Dispatch::of_services(services(version, &fields));
        let payload = payload(dispatch.listener("App\\Send", &Event {}))
            .await
            .unwrap();
        assert_eq!(payload["maxTries"], tries, "{version}");
    }
}

#[cfg(feature = "sqs")]
#[tokio::test]
async fn only_php_asks_a_class_for_its_group_on_a_queue_that_keeps_order() {
    let mut class = queued("job", &[]);
    class["flags"]["groups_itself"] = true.into();
    let mut services = services("13.31.0", &json!({"classes": {"App\\Job": class}}));
    let queues = SqsQueue::new(SqsOptions::default());
    let sqs = Destination {
        default_queue: "usual".into(),
        queues: Ok(Arc::new(queues)),
    };
    services.connections = Some(Connections::new("sqs", [("sqs".to_owned(), sqs)]));
    let dispatch = Dispatch::of_services(services);
    let job = || dispatch.object(object("App\\Job"));
    payload(job()).await.unwrap();
    let error = payload(job().on_queue("usual.fifo")).await.unwrap_err();
    assert!(matches!(error, DispatchError::OnlyPhp(_)), "{error:?}");
}

#[tokio::test]
async fn string_jobs_are_silenced_by_their_text_and_have_no_options_of_a_class() {
    let horizon = json!({"silenced": ["App\\Legacy@quiet"]});
    let mut services = services("13.31.0", &json!({"config": {"horizon": horizon}}));
    services.has_horizon = true;
    let dispatch = Dispatch::of_services(services);
    for (method, silenced) in [("quiet", true), ("loud", false)] {
        let job = dispatch.string(&format!("App\\Legacy@{method}"), &1);
        assert_eq!(
            payload(job).await.unwrap()["silenced"],
            silenced,
            "{method}"
        );
    }
    let job = || dispatch.string("App\\Legacy", &1);
    for refused in [
        job().tries(3),
        job().timeout(Duration::from_secs(1)),
        job().tags(["a"]),
        job().to("a@example.com"),
        job().via("mail"),
    ] {
        let error = payload(refused).await.unwrap_err();
        assert!(matches!(error, DispatchError::Unfit(_)), "{error:?}");
    }
}

/// The app of a chain's first job, which has these properties.
fn chained(version: &str, properties: &[&str]) -> Dispatch {
    let classes = json!({"App\\Job": queued("job", properties)});
    Dispatch::of_services(services(version, &json!({"classes": classes})))
}

#[tokio::test]
async fn chains_of_old_versions_have_no_callbacks() {
    let before = chained("7.30.4", &["delay", "chained"]);
    let chain = || before.chain().then_object(object("App\\Job"));
    let prepared = chain().prepare().await.unwrap();
    let payload = String::from_utf8_lossy(prepared.payload());
    assert!(!payload.contains("chainCatchCallbacks"), "{payload}");
    let error = chain().catch(&Event {}).prepare().await.unwrap_err();
    assert!(error.to_string().contains("App\\Event"), "{error}");

    let since = chained("8.0.0", &["delay", "chained", "chainCatchCallbacks"]);
    let chain = since.chain().then_object(object("App\\Job"));
    let prepared = chain.prepare().await.unwrap();
    let payload = String::from_utf8_lossy(prepared.payload());
    assert!(
        payload.contains("chainCatchCallbacks\\\";a:0:{}"),
        "{payload}"
    );
}

#[tokio::test]
async fn the_delay_of_a_chain_is_that_of_a_first_job_without_one() {
    let dispatch = chained("13.31.0", &["delay", "chained", "chainCatchCallbacks"]);
    #[rustfmt::skip]
    let rows = [
        // of the job, of the chain => of the payload
        (None,    60, json!(60)),
        (Some(0), 60, json!(0)),
        (Some(5), 60, json!(5)),
        (None,    0,  json!(null)),
    ];
    for (own, of_chain, expected) in rows {
        let mut job = object("App\\Job");
        if let Some(own) = own {
            job.set("delay", own);
        }
        let chain = dispatch.chain().then_object(job);
        let chain = chain.delay(Duration::from_secs(of_chain));
        let prepared = chain.prepare().await.unwrap();
        let payload: Json = serde_json::from_slice(prepared.payload()).unwrap();
        assert_eq!(payload["delay"], expected, "{own:?} {of_chain}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_push_that_is_given_up_leaves_no_lock_without_its_job() {
    let locks = tempfile::tempdir().unwrap();
    let options = FileStoreOptions {
        directory: locks.path().to_owned(),
        lock_directory: locks.path().to_owned(),
        permission: None,
        separate_locks: true,
    };
    let store = Cache::file(FileStore::new(options, Clock::System));
    let mut class = queued("job", &[]);
    class["flags"]["unique"] = true.into();
    let mut services = services("13.31.0", &json!({"classes": {"App\\Job": class}}));
    services.stores = Some(Stores::new("file", move |_: &str| {
        Ok::<_, BoxError>(store.clone())
    }));
    let server = Server::new();
    let here = Destination {
        default_queue: "default".into(),
        queues: Ok(Arc::<Server>::clone(&server)),
    };
    services.connections = Some(Connections::new("redis", [("redis".to_owned(), here)]));
    let dispatch = Dispatch::of_services(services);
    // It waits a moment before it tries again.
    server.next("push_once", [Some(Fault::Away)]);
    let job = dispatch.object(object("App\\Job")).once("key");
    let pushed = tokio::spawn(job.into_future());
    while server.calls("push_once").is_empty() {
        tokio::task::yield_now().await;
    }
    pushed.abort();
    // Passes once all tasks wait.
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.sizes().await.pending, 1);
}

#[tokio::test]
async fn a_closure_that_dispatches_a_job_is_on_the_queue_of_the_job() {
    let mut class = queued("job", &["queue"]);
    class["limits"]["queue"] = "mail".into();
    class["flags"]["queues_itself"] = true.into();
    let mut services = services("13.31.0", &json!({"classes": {"App\\Job": class}}));
    let key = "k".repeat(32);
    let encrypter = Encrypter::new(services.version, &key, "AES-256-CBC");
    services.encrypter = Some(Arc::new(encrypter.unwrap()));
    let dispatch = Dispatch::of_services(services);
    let job = |queue: Option<&str>| {
        let mut job = object("App\\Job");
        if let Some(queue) = queue {
            job.set("queue", queue);
        }
        dispatch.object(job).by_php()
    };
    for (job, queue) in [
        (job(None), "mail"),
        (job(Some("own")), "own"),
        (job(Some("own")).on_queue("other"), "other"),
    ] {
        assert_eq!(job.prepare().await.unwrap().queue().as_str(), queue);
    }
}
