//! Every kind of job that real Laravel queued, through a worker to a handler mapped to its kind.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::app::Manifest;
use artisand::handler::view::{
    ArtisanCommand, Broadcast, Listener, Mailable, Notification, StringJob,
};
use artisand::handler::{self, BoxError, JobContext, Services};
use artisand::payload::TargetPattern;
use artisand::payload::{Encrypter, Kind, Version};
use artisand::queue::{MemoryQueue, Queue, QueueName};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::time::{Clock, UnixSeconds};
use artisand::worker::{Control, StopRules, Worker, WorkerOptions};
use serde_json::{Value, json};

use crate::harness::fixtures;

const NOW: UnixSeconds = UnixSeconds(1_767_323_045 + 1_000_000);

const VERSIONS: [(&str, &str); 3] = [
    ("payloads/laravel-8.jsonl", "8.83.0"),
    ("payloads/laravel-10.jsonl", "10.48.0"),
    ("payloads/laravel-13.jsonl", "13.31.0"),
];

/// The input of handlers: the mapped kind, the document, and the view's own facts.
type Seen = Arc<Mutex<Vec<(Kind, Value, Value)>>>;

fn note(seen: &Seen, kind: Kind, context: &JobContext, facts: Value) -> Result<(), BoxError> {
    let document = serde_json::from_str(&context.document()?)?;
    seen.lock().unwrap().push((kind, document, facts));
    Ok(())
}

/// A handler for each kind, each with the view of its kind; all targets of the kind go to it.
fn router(seen: &Seen, unmapped: UnmappedPolicy) -> Router {
    let all = || Arc::clone(seen);
    let (of_listeners, of_notifications, of_mailables) = (all(), all(), all());
    let (of_broadcasts, of_commands, of_strings) = (all(), all(), all());
    let listener = handler::blocking(move |job: Listener<Value>, context: JobContext| {
        let facts = json!({"event": job.event, "method": job.method, "more": job.arguments});
        note(&of_listeners, Kind::Listener, &context, facts)
    });
    let notification = handler::blocking(move |job: Notification<Value>, context: JobContext| {
        let facts = json!({
            "id": job.id, "channel": job.channel(), "route": job.route("mail"),
            "keys": job.notifiables.model_keys().len(),
        });
        note(&of_notifications, Kind::Notification, &context, facts)
    });
    let mailable = handler::blocking(move |job: Mailable<Value>, context: JobContext| {
        let facts = json!({"to": job.envelope.to.iter().map(|to| &to.address).collect::<Vec<_>>()});
        note(&of_mailables, Kind::Mailable, &context, facts)
    });
    let broadcast = handler::blocking(move |job: Broadcast<Value>, context: JobContext| {
        note(
            &of_broadcasts,
            Kind::Broadcast,
            &context,
            json!({"event": job.event}),
        )
    });
    let command = handler::blocking(move |job: ArtisanCommand, context: JobContext| {
        note(
            &of_commands,
            Kind::Command,
            &context,
            json!({"parameters": job.parameters}),
        )
    });
    let string = handler::blocking(move |job: StringJob<Value>, context: JobContext| {
        note(
            &of_strings,
            Kind::String,
            &context,
            json!({"data": job.data}),
        )
    });
    let registry = Registry::new()
        .with("listener", listener)
        .with("notification", notification)
        .with("mailable", mailable)
        .with("broadcast", broadcast)
        .with("command", command)
        .with("string", string);
    let mapping = |target: TargetPattern, handler: &str| {
        Mapping::new(target, HandlerChoice::Named(handler.into()))
    };
    let mappings = vec![
        mapping(TargetPattern::listener("*", None).unwrap(), "listener"),
        mapping(
            TargetPattern::notification("*", None).unwrap(),
            "notification",
        ),
        mapping(TargetPattern::mailable("*").unwrap(), "mailable"),
        mapping(TargetPattern::broadcast("*").unwrap(), "broadcast"),
        mapping(TargetPattern::command("*").unwrap(), "command"),
        mapping(TargetPattern::string("*@*").unwrap(), "string"),
    ];
    Router::new(mappings, unmapped, &registry).unwrap()
}

async fn drain(queue: &Arc<MemoryQueue>, router: Router, services: Services) {
    let options = WorkerOptions {
        concurrency: NonZeroUsize::MIN,
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        clock: Clock::Fixed(NOW),
        ..WorkerOptions::default()
    };
    let worker = Worker::new(Arc::clone(queue), router, options).with_services(services);
    worker.run(&Control::new()).await;
}

fn services(version: &str) -> Services {
    // The key of the app in php-interop/.
    let key = "artisand interop key, 32 bytes!!";
    let mut services = Services::default();
    services.version = version.parse().unwrap();
    let encrypter = Encrypter::new(services.version, key, "AES-256-CBC");
    services.encrypter = Some(Arc::new(encrypter.unwrap()));
    services
}

/// The payload with its command encrypted, as Laravel encrypts jobs of any kind.
fn encrypted(element: &str, version: Version, services: &Services) -> String {
    let mut payload: Value = serde_json::from_str(element).unwrap();
    let command = payload["data"]["command"].as_str().unwrap().to_owned();
    let encrypter = services.encrypter.as_ref().unwrap();
    assert_eq!(services.version, version);
    payload["data"]["command"] = encrypter.encrypt_command(command.as_bytes()).into();
    payload.to_string()
}

fn queue() -> Arc<MemoryQueue> {
    Arc::new(MemoryQueue::new(Some(Duration::from_secs(90))))
}

fn name() -> QueueName {
    "default".into()
}

#[tokio::test]
async fn every_kind_reaches_the_handler_that_is_mapped_to_it_plain_and_encrypted() {
    for (file, version) in VERSIONS {
        let services = services(version);
        let queue = queue();
        let mut expected = Vec::new();
        let mut left = 0;
        for (place, line) in fixtures::lines(file) {
            let element = line["element"].as_str().unwrap();
            let category = line["category"].as_str().unwrap();
            let mut elements = vec![element.to_owned()];
            if !matches!(category, "job" | "closure" | "string") {
                elements.push(encrypted(element, services.version, &services));
            }
            for element in elements {
                queue.push(&name(), &[element.into_bytes()]).await.unwrap();
                if matches!(category, "job" | "closure") {
                    left += 1;
                } else {
                    expected.push((format!("{place} {}", line["kind"]), line.clone()));
                }
            }
        }
        let seen = Seen::default();
        drain(&queue, router(&seen, UnmappedPolicy::Leave), services).await;
        let sizes = queue.sizes(&name()).await.unwrap();
        assert_eq!((sizes.pending, sizes.reserved), (left, 0), "{file}");
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), expected.len(), "{file}");
        for ((kind, document, facts), (place, line)) in seen.iter().zip(&expected) {
            assert_eq!(kind.to_string(), line["category"], "{place}");
            assert_eq!(document["target"]["kind"], line["category"], "{place}");
            let defaults = line["defaults"].as_array().cloned().unwrap_or_default();
            let (data, told) = (&document["data"], &line["document"]);
            crate::payloads::assert_same_document(place, data, told, &defaults);
            match kind {
                Kind::Listener | Kind::Broadcast => {
                    for (name, value) in data.as_object().unwrap() {
                        assert_eq!(facts["event"][name], *value, "{place} {name}");
                    }
                }
                Kind::Notification => {
                    assert_eq!(facts["id"], data["id"], "{place}");
                    assert_eq!(facts["channel"], document["target"]["channel"], "{place}");
                    let is_anonymous = line["kind"] == "notification-anonymous";
                    assert_eq!(facts["route"].is_null(), !is_anonymous, "{place}");
                    assert_eq!(facts["keys"], i32::from(!is_anonymous), "{place}");
                }
                Kind::Mailable => {
                    let to = data["to"].as_array().unwrap();
                    let to: Vec<_> = to.iter().map(|to| &to["address"]).collect();
                    assert_eq!(facts["to"], json!(to), "{place}");
                }
                Kind::Command => {
                    let parameters = facts["parameters"].as_array().unwrap();
                    let pairs = parameters.iter().map(|pair| {
                        let name = pair[0].as_str().unwrap().to_owned();
                        (name, pair[1].clone())
                    });
                    let pairs: serde_json::Map<_, _> = pairs.collect();
                    if pairs.is_empty() {
                        assert_eq!(*data, json!([]), "{place}");
                    } else {
                        assert_eq!(*data, Value::Object(pairs), "{place}");
                    }
                }
                Kind::String => assert_eq!(facts["data"], *data, "{place}"),
                _ => panic!("{place}: {kind}"),
            }
        }
    }
}

#[tokio::test]
async fn wrappers_that_cannot_be_decrypted_follow_the_policy_for_unmapped_jobs() {
    let (file, version) = VERSIONS[2];
    let services = services(version);
    let queue = queue();
    let mut pushed = 0;
    for (_, line) in fixtures::lines(file) {
        if line["category"] == "listener" {
            let element = line["element"].as_str().unwrap();
            let element = encrypted(element, services.version, &services);
            queue.push(&name(), &[element.into_bytes()]).await.unwrap();
            pushed += 1;
        }
    }
    let seen = Seen::default();
    let mut keyless = Services::default();
    keyless.version = services.version;
    drain(&queue, router(&seen, UnmappedPolicy::Leave), keyless).await;
    assert!(seen.lock().unwrap().is_empty());
    assert_eq!(queue.sizes(&name()).await.unwrap().pending, pushed);
    drain(&queue, router(&seen, UnmappedPolicy::Leave), services).await;
    assert_eq!(seen.lock().unwrap().len() as u64, pushed);
}

/// A unique broadcast and a unique listener, as Laravel 13 writes them.
fn unique(is_listener: bool, is_unique: bool) -> Vec<u8> {
    let (class, command) = if is_listener {
        let flag = u8::from(is_unique);
        (
            "Illuminate\\Events\\CallQueuedListener",
            format!(
                r#"O:36:"Illuminate\Events\CallQueuedListener":5:{{s:5:"class";s:1:"L";s:6:"method";s:6:"handle";s:4:"data";a:1:{{i:0;O:1:"E":0:{{}}}}s:14:"shouldBeUnique";b:{flag};s:8:"uniqueId";s:1:"7";}}"#
            ),
        )
    } else {
        (
            "Illuminate\\Broadcasting\\UniqueBroadcastEvent",
            r#"O:44:"Illuminate\Broadcasting\UniqueBroadcastEvent":2:{s:5:"event";O:1:"E":0:{}s:8:"uniqueId";s:1:"7";}"#.to_owned(),
        )
    };
    let payload = json!({
        "uuid": "u", "displayName": "L", "job": artisand::payload::CALL_QUEUED_HANDLER, "id": "i",
        "attempts": 0, "data": {"commandName": class, "command": command},
    });
    payload.to_string().into_bytes()
}

fn manifest_of_wrappers(version: &str) -> Manifest {
    let class = |unique: bool| {
        json!({
            "kind": "job", "file": "x.php",
            "flags": {"queued": true, "unique": unique, "package": true},
        })
    };
    let manifest = json!({
        "artisand": 1, "laravel": version, "generated_at": 1, "config": {},
        "paths": {"base": "/nonexistent", "storage": "/nonexistent"},
        "classes": {
            "Illuminate\\Events\\CallQueuedListener": class(false),
            "Illuminate\\Broadcasting\\UniqueBroadcastEvent": class(true),
        },
    });
    let path = std::path::Path::new("artisand.json");
    Manifest::parse(path, manifest.to_string().as_bytes()).unwrap()
}

#[tokio::test]
async fn a_unique_wrapper_is_not_run_where_nothing_says_in_which_store_its_lock_is() {
    #[rustfmt::skip]
    let rows = [
        // version, listener, unique => left in the queue
        ("13.31.0", false, true,  1),
        ("13.31.0", true,  true,  1),
        ("13.31.0", true,  false, 0),
        // Before that version a listener is never unique.
        ("12.49.0", true,  true,  0),
    ];
    let with_manifests = rows
        .iter()
        .flat_map(|row| [false, true].map(|known| (*row, known)));
    for ((version, is_listener, is_unique, left), has_manifest) in with_manifests {
        let queue = queue();
        let payload = unique(is_listener, is_unique);
        queue.push(&name(), &[payload]).await.unwrap();
        let seen = Seen::default();
        let router = router(&seen, UnmappedPolicy::Leave);
        let mut services = services(version);
        if has_manifest {
            // It has Laravel's own classes, but not the listener and the event.
            services.manifest = Some(Arc::new(manifest_of_wrappers(version)));
        }
        drain(&queue, router, services).await;
        let sizes = queue.sizes(&name()).await.unwrap();
        let place = format!("{version} {is_listener} {is_unique} {has_manifest}");
        assert_eq!((sizes.pending, sizes.reserved), (left, 0), "{place}");
        assert_eq!(seen.lock().unwrap().len() as u64, 1 - left, "{place}");
    }
}
