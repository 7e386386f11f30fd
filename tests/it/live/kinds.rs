//! Wrapped jobs reach Rust handlers with the data that PHP sees in them.

use std::collections::HashMap;
use std::fmt::Write as _;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use artisand::cache::Stores;
use artisand::connection::{Redis, RedisAddress, RedisOptions};
use artisand::failed::FailedJob;
use artisand::handler::view::{
    ArtisanCommand, Broadcast, Listener, Mailable, Notification, StringJob,
};
use artisand::handler::{self, BoxError, Handler, JobContext, Services};
use artisand::payload::Target;
use artisand::payload::TargetPattern;
use artisand::queue::{RedisQueue, RedisQueueOptions};
use artisand::routing::{HandlerChoice, Mapping, Registry, Router, UnmappedPolicy};
use artisand::worker::{Control, StopReason, StopRules, Worker, WorkerOptions};
use serde_json::{Value, json};

use crate::harness::laravel::Laravel;
use crate::harness::process::Workplace;
use crate::harness::redis::RedisServer;
use crate::payloads::assert_same_document;

/// A handler's view of its job.
struct Seen {
    /// `None` where the mapping's handler took the plain type.
    facts: Option<Value>,
    document: Value,
    /// Locks of jobs that were held.
    locks: Vec<String>,
}

type All = Arc<Mutex<Vec<Seen>>>;

/// Keys of locks, sorted; the app keeps them on its connection `default`.
fn locks(redis: &RedisServer, of: &str) -> Vec<String> {
    locks_at(&redis.url(), of)
}

fn locks_at(url: &str, of: &str) -> Vec<String> {
    let client = redis::Client::open(url).unwrap();
    let mut connection = client.get_connection().unwrap();
    let mut keys: Vec<String> = redis::cmd("KEYS").arg(of).query(&mut connection).unwrap();
    keys.sort();
    keys
}

const OVERLAP: &str = "*laravel-queue-overlap*";
const UNIQUE: &str = "*laravel_unique_job*";

/// Makes handlers that take a view, convert it to the form of `interop:kinds`, and keep that.
struct Handlers {
    all: All,
    url: String,
}

impl Handlers {
    fn taking<J, F>(&self, facts: F) -> impl Handler
    where
        J: serde::de::DeserializeOwned + Send + 'static,
        F: Fn(J, &Target) -> Option<Value> + Send + Sync + 'static,
    {
        let (all, url) = (Arc::clone(&self.all), self.url.clone());
        handler::blocking(move |job: J, context: JobContext| -> Result<(), BoxError> {
            let document = serde_json::from_str(&context.document()?)?;
            let facts = facts(job, &context.target()?);
            let locks = locks_at(&url, OVERLAP);
            all.lock().unwrap().push(Seen {
                facts,
                document,
                locks,
            });
            Ok(())
        })
    }

    fn registry(&self) -> Registry {
        let class = |target: &Target| target.name().to_owned();
        let listener = self.taking(|job: Listener<Value>, target: &Target| {
            let Target::Listener { event, .. } = target else {
                panic!("{target:?}");
            };
            let event = event.as_ref().map(ToString::to_string);
            Some(json!({
                "class": job.class, "method": job.method, "event": event, "arguments": job.arguments,
            }))
        });
        let notification = self.taking(move |job: Notification<Value>, target: &Target| {
            let keys = job.notifiables.model_keys().iter();
            let keys: Vec<i64> = keys.map(|key| key.to_string().parse().unwrap()).collect();
            let routes = ["mail", "App\\Channels\\Sms"].map(|channel| {
                let route = job.route(channel).cloned();
                (channel.to_owned(), route.unwrap_or_default())
            });
            let routes: serde_json::Map<_, _> = routes.into_iter().collect();
            Some(json!({
                "class": class(target), "channels": job.channels, "id": job.id, "locale": job.locale,
                "keys": keys, "routes": if keys.is_empty() { json!(routes) } else { Value::Null },
            }))
        });
        let mailable = self.taking(move |job: Mailable<Value>, target: &Target| {
            let addresses = |list: &[handler::view::Address]| {
                let addresses = list.iter();
                let addresses = addresses.map(|a| json!({"name": a.name, "address": a.address}));
                addresses.collect::<Vec<_>>()
            };
            let map = |map: &serde_json::Map<String, Value>| {
                // PHP's form of an empty array.
                if map.is_empty() {
                    json!([])
                } else {
                    json!(map)
                }
            };
            let attachments = job.attachments.files.iter();
            let attachments =
                attachments.map(|file| json!({"file": file.file, "options": map(&file.options)}));
            let raw = job.attachments.raw.iter().map(|raw| {
                let data = String::from_utf8(raw.data.clone()).unwrap();
                json!({"data": data, "name": raw.name, "options": map(&raw.options)})
            });
            let on_disk = job.attachments.on_disks.iter().map(|file| {
                json!({
                    "disk": file.disk, "path": file.path, "name": file.name,
                    "options": map(&file.options),
                })
            });
            Some(json!({
                "class": target.name(), "to": addresses(&job.envelope.to), "cc": addresses(&job.envelope.cc),
                "bcc": addresses(&job.envelope.bcc), "replyTo": addresses(&job.envelope.reply_to),
                "from": addresses(&job.envelope.from), "subject": job.envelope.subject, "locale": job.content.locale,
                "mailer": job.envelope.mailer, "view": job.content.view, "textView": job.content.text_view,
                "markdown": job.content.markdown, "html": job.content.html, "theme": job.content.theme,
                "viewData": map(&job.content.view_data), "attachments": attachments.collect::<Vec<_>>(),
                "diskAttachments": on_disk.collect::<Vec<_>>(), "tags": job.envelope.tags,
                "metadata": map(&job.envelope.metadata), "rawAttachments": raw.collect::<Vec<_>>(),
            }))
        });
        let broadcast = self.taking(move |job: Broadcast<Value>, target: &Target| {
            Some(json!({
                "class": target.name(), "socket": job.socket, "unique": job.unique_id,
            }))
        });
        let command = self.taking(|job: ArtisanCommand, _: &Target| {
            let data = match job.line {
                Some(line) => json!([format!("{} {line}", job.name)]),
                None if job.parameters.is_empty() => json!([job.name]),
                None => {
                    let parameters: serde_json::Map<_, _> = job.parameters.into_iter().collect();
                    json!([job.name, parameters])
                }
            };
            Some(json!({"data": data}))
        });
        let string = self.taking(|job: StringJob<Value>, _: &Target| {
            Some(json!({"class": job.class, "method": job.method}))
        });
        // Takes the event alone.
        let plain = self.taking(|job: Value, _: &Target| {
            assert!(job["user"]["$model"].is_string(), "{job}");
            None
        });
        let failing = handler::function(|job: Mailable<Value>, _: JobContext| async move {
            Err::<(), BoxError>(format!("letter {} is lost", job.mailable["order"]).into())
        });
        Registry::new()
            .with("listener", listener)
            .with("notification", notification)
            .with("mailable", mailable)
            .with("broadcast", broadcast)
            .with("command", command)
            .with("string", string)
            .with("plain", plain)
            .with("failing", failing)
    }
}

/// A mapping for every job of `interop:kinds`, the special ones first.
fn mappings() -> Vec<Mapping> {
    use TargetPattern as P;
    let mapping = |target: Result<P, artisand::payload::TargetPatternError>, handler: &str| {
        Mapping::new(target.unwrap(), HandlerChoice::Named(handler.into()))
    };
    vec![
        mapping(
            P::listener(r"App\Wrapped\OnPaid@other", Some(r"App\Wrapped\Paid")),
            "plain",
        ),
        mapping(P::listener(r"App\Wrapped\*", None), "listener"),
        mapping(
            P::notification(r"App\Wrapped\Invoice", Some("mail")),
            "notification",
        ),
        mapping(
            P::notification(r"/Invoice$/", Some(r"app\channels\SMS")),
            "notification",
        ),
        mapping(
            P::notification(r"App\Wrapped\SecretInvoice", None),
            "notification",
        ),
        mapping(P::mailable(r"App\Wrapped\Letter"), "mailable"),
        mapping(P::broadcast(r"App\Wrapped\*Score"), "broadcast"),
        mapping(P::command("interop:*"), "command"),
        mapping(P::string(r"App\Jobs\Legacy@run"), "string"),
        mapping(P::string(r"App\Jobs\Legacy"), "string"),
    ]
}

async fn drain(redis: &RedisServer, laravel: &Laravel, router: Router) {
    let options = RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), redis.port()),
        prefix: laravel.prefix.clone(),
        ..RedisOptions::default()
    };
    let connection = Redis::new(&options).unwrap();
    let queue = Arc::new(RedisQueue::new(connection, RedisQueueOptions::default()));
    let options = WorkerOptions {
        stop: StopRules {
            when_empty: true,
            memory: None,
            ..StopRules::default()
        },
        ..WorkerOptions::default()
    };
    let settings = laravel.settings();
    let mut services = Services::default();
    services.version = settings.known_version();
    services.manifest = Some(Arc::new(laravel.exported()));
    services.middleware.cache = Some(settings.cache("redis").unwrap());
    services.encrypter = Some(Arc::new(settings.encrypter().unwrap()));
    let of_app = laravel.settings();
    services.stores = Some(Stores::new("redis", move |name| of_app.cache(name)));
    let worker = Worker::new(queue, router, options).with_services(services);
    let report = tokio::time::timeout(Duration::from_secs(60), worker.run(&Control::new()))
        .await
        .unwrap_or_else(|_| panic!("the worker does not stop; {}", redis.state()));
    assert_eq!(report.reason, StopReason::QueueEmpty);
    assert_eq!((report.released, report.unsettled), (0, 0));
}

fn block_on(future: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread();
    let mut runtime = runtime;
    runtime.enable_all().build().unwrap().block_on(future);
}

/// Which of the jobs are unique, by version.
fn unique_locks(version: u8) -> usize {
    match version {
        8 => 0,
        10 => 1,
        _ => 2,
    }
}

fn every_kind_reaches_rust_with_the_data_that_php_sees(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let told = laravel.run(&["interop:kinds"]);
    assert_eq!(locks(&redis, UNIQUE).len(), unique_locks(version));

    let all = All::default();
    let handlers = Handlers {
        all: Arc::clone(&all),
        url: redis.url(),
    };
    let registry = handlers.registry();
    let router = Router::new(mappings(), UnmappedPolicy::Leave, &registry).unwrap();
    block_on(drain(&redis, &laravel, router));

    let all = std::mem::take(&mut *all.lock().unwrap());
    let found: HashMap<&str, &Seen> = all
        .iter()
        .map(|seen| (seen.document["uuid"].as_str().unwrap(), seen))
        .collect();
    assert_eq!(found.len(), all.len(), "a job was run twice");
    let (mut compared, mut guarded) = (0, Vec::new());
    for line in &told {
        let place = format!(
            "Laravel {version} {} {}",
            line["kind"], line["facts"]["class"]
        );
        let Some(seen) = found.get(line["uuid"].as_str().unwrap()) else {
            assert_eq!(line["category"], "closure", "{place} was not run");
            continue;
        };
        compared += 1;
        let document = &seen.document;
        assert_eq!(document["target"]["kind"], line["category"], "{place}");
        if let Some(facts) = &seen.facts {
            assert_eq!(*facts, line["facts"], "{place}");
        } else {
            assert_eq!(line["facts"]["method"], "other", "{place}");
        }
        if line["kind"] == "command-line" {
            assert_eq!(document["data"], "\"a b\" --times=3", "{place}");
        } else {
            let defaults = line["defaults"].as_array().cloned().unwrap_or_default();
            assert_same_document(&place, &document["data"], &line["document"], &defaults);
        }
        let is_secret = line["facts"]["class"]
            .as_str()
            .is_some_and(|class| class.contains("Secret"));
        assert_eq!(document["encrypted"] == true, is_secret, "{place}");
        let is_guarded = line["facts"]["class"] == "App\\Wrapped\\Guarded";
        assert_eq!(seen.locks.len(), usize::from(is_guarded), "{place}");
        guarded.extend(seen.locks.iter().cloned());
    }
    assert!(compared >= 25, "only {compared}");
    // Only the closure listener stays for PHP.
    assert_eq!(redis.length(&laravel.key("queues:default")), 1);
    let reserved = redis.scores(&laravel.key("queues:default:reserved"));
    assert!(reserved.is_empty(), "{}", redis.state());
    assert_eq!(locks(&redis, UNIQUE), [] as [&str; 0]);
    assert_eq!(locks(&redis, OVERLAP), [] as [&str; 0]);
    locks_are_named_as_php_names_them(&redis, &laravel, &guarded);
}

/// Lets PHP run the listener with middleware, which writes the held locks.
fn locks_are_named_as_php_names_them(redis: &RedisServer, laravel: &Laravel, ours: &[String]) {
    let list = laravel.key("queues:default");
    redis.query::<()>(&[b"DEL", list.as_bytes()]);
    let told = laravel.run(&["interop:kinds"]);
    let guarded = told
        .iter()
        .find(|line| line["facts"]["class"] == "App\\Wrapped\\Guarded")
        .unwrap();
    let uuid = guarded["uuid"].as_str().unwrap().as_bytes();
    let elements = redis.list(&list);
    let element = elements
        .iter()
        .find(|element| memchr::memmem::find(element, uuid).is_some());
    redis.query::<()>(&[b"DEL", list.as_bytes()]);
    redis.query::<()>(&[b"DEL", b"interop:seen"]);
    redis.query::<()>(&[b"RPUSH", list.as_bytes(), element.unwrap()]);
    let mut worker = laravel.worker(&["--stop-when-empty", "--sleep=0"]);
    worker.succeeds_within(Duration::from_secs(60));
    let seen = redis.list("interop:seen");
    let seen: Value = serde_json::from_slice(&seen[0]).unwrap();
    assert_eq!(seen["locks"], json!(ours), "Laravel {}", laravel.version);
    assert_eq!(ours.len(), 1);
}

on_every_laravel!(every_kind_reaches_rust_with_the_data_that_php_sees);

fn a_wrapper_that_fails_is_recorded_and_frees_its_lock(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    laravel.run(&["interop:kinds"]);
    let list = laravel.key("queues:default");
    let elements = redis.list(&list);
    let handlers = Handlers {
        all: All::default(),
        url: redis.url(),
    };
    let failing = handler::function(|_: Broadcast<Value>, context: JobContext| async move {
        context.fail("no");
        Ok::<(), BoxError>(())
    });
    let registry = handlers.registry().with("failing_broadcast", failing);
    let to = |name: &str| HandlerChoice::Named(name.into());
    let mappings = vec![
        Mapping::new(TargetPattern::mailable("*").unwrap(), to("failing")),
        Mapping::new(
            TargetPattern::broadcast("*").unwrap(),
            to("failing_broadcast"),
        ),
        // Taken by a handler of another kind: an exception that names both.
        Mapping::new(TargetPattern::command("*").unwrap(), to("mailable")),
    ];
    let router = Router::new(mappings, UnmappedPolicy::Leave, &registry).unwrap();
    block_on(drain(&redis, &laravel, router));

    let spool = redis.list(&laravel.key("artisand:failed-spool"));
    let spool = spool.iter();
    let failed: Vec<FailedJob> = spool
        .map(|record| serde_json::from_slice(record).unwrap())
        .collect();
    let of = |text: &str| {
        let mut failed = failed.iter();
        failed
            .find(|job| job.exception.contains(text))
            .unwrap_or_else(|| panic!("no {text}"))
    };
    assert_eq!(failed.len(), 2 + 2 + 3, "{}", redis.state());
    let letter = of("letter 6 is lost");
    let is_there = elements
        .iter()
        .any(|element| element == letter.payload.as_bytes());
    assert!(is_there, "{}", letter.payload);
    of("the handler takes a `Mailable`");
    // The lock of the listener, which artisand does not run.
    let left = usize::from(version >= 13);
    assert_eq!(locks(&redis, UNIQUE).len(), left);
    assert_eq!(redis.length(&list), elements.len() - failed.len());
}

on_every_laravel!(a_wrapper_that_fails_is_recorded_and_frees_its_lock);

fn programs_run_every_kind(version: u8) {
    let redis = RedisServer::start();
    let laravel = Laravel::new(version, &redis);
    let told = laravel.run(&["interop:kinds"]);
    let output = tempfile::NamedTempFile::new().unwrap();
    let mut toml = String::new();
    for key in [
        r"listener = 'App\Wrapped\*'",
        r"notification = '*'",
        r"mailable = 'App\Wrapped\Letter'",
        r"broadcast = '/Score$/'",
        r"command = 'interop:note'",
        r"string = '*@*'",
    ] {
        let path = output.path().display();
        writeln!(
            toml,
            "[[map]]\n{key}\nhandler = {{ exec = [\"sh\", \"-c\", 'printf \"%s \" \"$ARTISAND_JOB_KIND\" >> {path}; cat >> {path}'] }}\n"
        )
        .unwrap();
    }
    let manifest = laravel.manifest_with_classes();
    let workplace = Workplace::with_manifest(&laravel, &manifest, &toml);
    let mut worker = crate::harness::process::ManagedChild::spawn(workplace.artisand(&[
        "queue:work",
        "redis",
        "--stop-when-empty",
    ]));
    worker.succeeds_within(Duration::from_secs(120));
    let text = std::fs::read_to_string(output.path()).unwrap();
    let mut documents: HashMap<String, (String, Value)> = HashMap::new();
    for line in text.lines() {
        let (kind, document) = line.split_once(' ').unwrap();
        let document: Value = serde_json::from_str(document).unwrap();
        let uuid = document["uuid"].as_str().unwrap().to_owned();
        let before = documents.insert(uuid, (kind.to_owned(), document));
        assert!(before.is_none(), "a job was run twice: {line}");
    }
    for line in told.iter().filter(|line| line["category"] != "closure") {
        let place = format!("Laravel {version} {}", line["kind"]);
        let found = documents.remove(line["uuid"].as_str().unwrap());
        let (kind, document) = found.unwrap_or_else(|| panic!("{place}: {}", worker.describe()));
        assert_eq!(line["category"], *kind, "{place}");
        assert_eq!(document["target"]["kind"], *kind, "{place}");
    }
    assert!(documents.is_empty(), "{documents:?}");
    assert_eq!(redis.length(&laravel.key("queues:default")), 1);
    assert_eq!(locks(&redis, UNIQUE), [] as [&str; 0]);
}

on_every_laravel!(programs_run_every_kind);
