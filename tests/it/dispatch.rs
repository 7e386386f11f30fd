//! Dispatching when things go wrong: an answer that is lost, a server that refuses, values that do not fit.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use artisand::app::Manifest;
use artisand::cache::{Cache, DatabaseStore, DatabaseStoreOptions, Stores};
use artisand::connection::{Redis, RedisOptions};
use artisand::dispatch::{Dispatch, DispatchError, Dispatched};
use artisand::handler::Services;
use artisand::payload::Payload;
use artisand::queue::{Connections, Destination, RedisQueue, RedisQueueOptions};
use artisand::time::Clock;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::follow::{file_stores, sqlite};
use crate::harness::redis::RedisServer;

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Receipt", rename_all = "camelCase")]
struct Receipt {
    order_id: u64,
}

const RECEIPT: Receipt = Receipt { order_id: 7 };

/// A proxy that carries scripts to the server, and loses some of their answers.
struct Proxy {
    port: u16,
    /// How many answers pass before some are lost.
    passes: AtomicUsize,
    loses: AtomicUsize,
}

impl Proxy {
    async fn start(server: u16) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            passes: AtomicUsize::new(0),
            loses: AtomicUsize::new(0),
        });
        let passing = Arc::clone(&proxy);
        tokio::spawn(async move {
            while let Ok((client, _)) = listener.accept().await {
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)).await else {
                    continue;
                };
                tokio::spawn(Arc::clone(&passing).pass(client, server));
            }
        });
        proxy
    }

    /// Ends with the connection; the answer that was to come is lost then.
    async fn pass(self: Arc<Self>, mut client: TcpStream, mut server: TcpStream) {
        let (mut asked, mut answered) = (vec![0; 1 << 20], vec![0; 1 << 20]);
        let mut is_script = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let Ok(length @ 1..) = read else { return };
                    // A script with many arguments comes in several parts.
                    is_script |= memchr::memmem::find(&asked[..length], b"EVALSHA").is_some();
                    if server.write_all(&asked[..length]).await.is_err() {
                        return;
                    }
                }
                read = server.read(&mut answered) => {
                    let Ok(length @ 1..) = read else { return };
                    let less = |left: usize| left.checked_sub(1);
                    let order = Ordering::Relaxed;
                    if std::mem::take(&mut is_script)
                        && self.passes.fetch_update(order, order, less).is_err()
                        && self.loses.fetch_update(order, order, less).is_ok()
                    {
                        return;
                    }
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }

    fn lose(&self, answers: usize) {
        self.loses.store(answers, Ordering::Relaxed);
    }
}

fn manifest(asks_tries: bool) -> Manifest {
    manifest_of(asks_tries, false)
}

fn manifest_of(asks_tries: bool, is_unique: bool) -> Manifest {
    let json = json!({
        "artisand": 1, "laravel": "13.31.0", "generated_at": 0, "config": {},
        "paths": {"base": "/app", "storage": "/app/storage"},
        "classes": {"App\\Jobs\\Receipt": {
            "kind": "job", "file": "A.php", "flags": {"queued": true, "unique": is_unique},
            "uses": ["Illuminate\\Bus\\Queueable", "Illuminate\\Queue\\SerializesModels"],
            "interfaces": ["Illuminate\\Contracts\\Queue\\ShouldQueue"],
            "limits": if asks_tries { json!({"tries": {"$method": true}}) } else { json!({}) },
            "properties": [
                {"name": "orderId", "visibility": "private", "class": "App\\Jobs\\Receipt", "type": "int"},
                {"name": "queue", "visibility": "public", "class": "App\\Jobs\\Receipt", "default": "Tjs="},
                {"name": "messageGroup", "visibility": "public", "class": "App\\Jobs\\Receipt", "default": "Tjs="},
            ],
        }},
    });
    Manifest::parse(Path::new("artisand.json"), json.to_string().as_bytes()).unwrap()
}

fn dispatch_to(url: &str) -> Dispatch {
    dispatch_with(url, true)
}

/// `asks_tries` says whether the class has a method `tries()`.
fn dispatch_with(url: &str, asks_tries: bool) -> Dispatch {
    Dispatch::of_services(services(url, manifest(asks_tries)))
}

fn services(url: &str, manifest: Manifest) -> Services {
    let mut redis = RedisOptions::default();
    redis.apply_url(url).unwrap();
    let queues = RedisQueue::new(Redis::new(&redis).unwrap(), RedisQueueOptions::default());
    let mut services = Services::default();
    services.version = "13.31.0".parse().unwrap();
    services.manifest = Some(Arc::new(manifest));
    let here = Destination {
        default_queue: "usual".into(),
        queues: Ok(Arc::new(queues)),
    };
    services.connections = Some(Connections::new("redis", [("redis".to_owned(), here)]));
    services
}

fn uuid_of(dispatched: Dispatched) -> String {
    match dispatched {
        Dispatched::Queued { uuid, .. } => uuid.to_string(),
        other => panic!("the class is not unique: {other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_job_whose_answer_is_lost_is_unknown_and_never_twice_with_once() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let dispatch = dispatch_to(&format!("redis://127.0.0.1:{}", proxy.port));
    let job = || dispatch.job(&RECEIPT).tries(3);
    let length = || server.length("queues:usual");
    // The server knows the scripts from here on.
    job().await.unwrap();
    job().once("first").await.unwrap();
    assert_eq!(length(), 2);

    proxy.lose(1);
    let error = job().await.unwrap_err();
    assert!(matches!(error, DispatchError::Unknown(_)), "{error:?}");
    assert_eq!(length(), 3);

    proxy.lose(1);
    let uuid = uuid_of(job().once("second").await.unwrap());
    let last = server.list("queues:usual").pop().unwrap();
    assert_eq!(Payload::parse(&last).unwrap().uuid.unwrap().as_str(), uuid);
    assert_eq!(length(), 4);

    proxy.lose(100);
    let error = job().once("third").await.unwrap_err();
    assert!(error.may_be_pushed(), "{error:?}");
    proxy.lose(0);
    let uuid = uuid_of(job().once("third").await.unwrap());
    let last = server.list("queues:usual").pop().unwrap();
    assert_eq!(Payload::parse(&last).unwrap().uuid.unwrap().as_str(), uuid);
    assert_eq!(length(), 5);

    // Both at once: one job, and both callers learn its uuid.
    let (one, other) = tokio::join!(job().once("race"), job().once("race"));
    assert_eq!(uuid_of(one.unwrap()), uuid_of(other.unwrap()));
    assert_eq!(length(), 6);

    // A bulk says how many of its jobs are pushed, and how many may be.
    let other = dispatch_with(&format!("redis://127.0.0.1:{}", proxy.port), false);
    let many = || (0..2500).map(|order_id| Receipt { order_id });
    assert_eq!(other.bulk(many()).on_queue("many").await.unwrap(), 2500);
    proxy.passes.store(1, Ordering::Relaxed);
    proxy.lose(1);
    let error = other.bulk(many()).on_queue("many").await.unwrap_err();
    assert_eq!((error.queued, error.unknown), (1000, 1000), "{error:?}");
    assert!(error.source.may_be_pushed(), "{error:?}");
    let there = 2500 + error.queued + error.unknown;
    assert_eq!(server.length("queues:many"), there);
    assert_eq!(server.length("queues:many:notify"), there);
    let later = other
        .bulk(many())
        .on_queue("many")
        .delay(Duration::from_secs(60));
    assert_eq!(later.await.unwrap(), 2500);
    assert_eq!(server.scores("queues:many:delayed").len(), 2500);
}

/// The lock of a unique job is in another place than its queue.
#[tokio::test(flavor = "multi_thread")]
async fn a_unique_job_that_is_dispatched_again_with_once_leaves_no_lock() {
    let server = RedisServer::start();
    let proxy = Proxy::start(server.port()).await;
    let locks = tempfile::tempdir().unwrap();
    let stores = file_stores(locks.path());
    let url = format!("redis://127.0.0.1:{}", proxy.port);
    let mut services = services(&url, manifest_of(false, true));
    services.stores = Some(stores.clone());
    let dispatch = Dispatch::of_services(services);
    let job = || dispatch.job(&RECEIPT);
    let length = || server.length("queues:usual");
    let lock = stores.get("file").unwrap();
    let lock = lock.lock("laravel_unique_job:App\\Jobs\\Receipt:", "", Duration::ZERO);

    let uuid = uuid_of(job().once("first").await.unwrap());
    let owner = lock.current_owner().await.unwrap().expect("it is taken");
    // While it waits, others are dropped, and so is this one.
    assert_eq!(job().await.unwrap(), Dispatched::Unique);
    assert_eq!(job().once("first").await.unwrap(), Dispatched::Unique);
    assert_eq!(lock.current_owner().await.unwrap(), Some(owner));
    // It runs and frees its lock: nothing would free another one.
    lock.force_release().await.unwrap();
    assert_eq!(uuid_of(job().once("first").await.unwrap()), uuid);
    assert_eq!(lock.current_owner().await.unwrap(), None);
    assert_eq!(length(), 1);
    // The reply to its push is lost, and it is recognized: the lock is its own.
    proxy.lose(1);
    uuid_of(job().once("second").await.unwrap());
    assert!(lock.current_owner().await.unwrap().is_some());
    assert_eq!(length(), 2);
}

/// The trigger fails without taking the row back, as if only the answer was lost.
#[tokio::test(flavor = "multi_thread")]
async fn a_lock_that_is_taken_although_its_store_reports_an_error_does_not_stay() {
    let server = RedisServer::start();
    let directory = tempfile::tempdir().unwrap();
    let database = sqlite(
        directory.path(),
        &[
            "create table locks (key varchar primary key, owner varchar, expiration integer)",
            "create trigger lost after insert on locks begin select raise(fail, 'lost'); end",
        ],
    )
    .await;
    let options = DatabaseStoreOptions {
        prefix: String::new(),
        table: "cache".into(),
        lock_table: "locks".into(),
        sqlite_base64: false,
        lock_timeout: Duration::from_secs(60),
        lock_lottery: None,
    };
    let store = DatabaseStore::new(database.clone(), database.clone(), options, Clock::System);
    let cache = Cache::database(store);
    let taken = cache.lock("other", "me", Duration::ZERO).acquire().await;
    assert!(taken.is_err());
    let mut services = services(&server.url(), manifest_of(false, true));
    let of_stores = cache.clone();
    services.stores = Some(Stores::new("database", move |_: &str| {
        Ok::<_, std::convert::Infallible>(of_stores.clone())
    }));
    let error = Dispatch::of_services(services).job(&RECEIPT).await;
    assert!(matches!(error, Err(DispatchError::Refused(_))), "{error:?}");
    // Only that of the test is left.
    let rows = database
        .rows("select \"key\" from locks", &[])
        .await
        .unwrap();
    assert_eq!(rows.len(), 1);
    assert_eq!(server.length("queues:usual"), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_refuses_has_pushed_nothing() {
    let server = RedisServer::start();
    let dispatch = dispatch_to(&server.url());
    let job = || dispatch.job(&RECEIPT).tries(3);
    job().await.unwrap();
    server.query::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"1"]);
    for pending in [job(), job().once("key"), job().delay(Duration::ZERO)] {
        let error = pending.await.unwrap_err();
        assert!(matches!(error, DispatchError::Refused(_)), "{error:?}");
    }
    server.query::<()>(&[b"CONFIG", b"SET", b"maxmemory", b"0"]);
    assert_eq!(server.length("queues:usual"), 1);
    drop(server);
    let error = job().await.unwrap_err();
    assert!(matches!(
        error,
        DispatchError::Refused(_) | DispatchError::Unknown(_)
    ));
    let error = job().await.unwrap_err();
    assert!(matches!(error, DispatchError::Refused(_)), "{error:?}");
}

#[derive(Debug, Serialize, Deserialize)]
struct Nameless {
    id: u64,
}

#[derive(Debug, Serialize, Deserialize)]
#[serde(rename = "App\\Jobs\\Receipt")]
struct Misspelt {
    orderid: u64,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_fit_is_said_before_the_push() {
    let server = RedisServer::start();
    let dispatch = dispatch_to(&server.url());
    dispatch.check::<Receipt>().unwrap();
    let nearest = "App\\Jobs\\Receipt has no property `orderid`; did you mean `orderId`?";
    let error = dispatch.check::<Misspelt>().unwrap_err();
    assert!(error.to_string().ends_with(nearest), "{error}");
    let error = dispatch.job(&Misspelt { orderid: 1 }).await.unwrap_err();
    assert!(error.to_string().ends_with(nearest), "{error}");
    let nameless = "`Nameless` names no PHP class: #[serde(rename = \"App\\\\Jobs\\\\..\")]";
    let error = dispatch.check::<Nameless>().unwrap_err();
    assert!(error.to_string().ends_with(nameless), "{error}");
    let error = dispatch.job(&Nameless { id: 1 }).await.unwrap_err();
    assert!(error.to_string().ends_with(nameless), "{error}");
    let error = dispatch.job(&RECEIPT).await.unwrap_err();
    let expected = "App\\Jobs\\Receipt: its method `tries()` must be asked";
    assert!(error.to_string().contains(expected), "{error}");
    let prepared = dispatch.job(&RECEIPT).tries(3).on_queue("mail").prepare();
    let prepared = prepared.await.unwrap();
    let payload = String::from_utf8_lossy(prepared.payload());
    assert!(payload.contains("\"maxTries\":3"), "{payload}");
    let command = r#"O:16:\"App\\Jobs\\Receipt\":2:{s:25:\"\u0000App\\Jobs\\Receipt\u0000orderId\";i:7;s:5:\"queue\";s:4:\"mail\";}"#;
    assert!(payload.contains(command), "{payload}");
    let prepared = dispatch.job(&RECEIPT).tries(3).group("user-7").prepare();
    let prepared = prepared.await.unwrap();
    let payload = String::from_utf8_lossy(prepared.payload());
    let group = r#"s:12:\"messageGroup\";s:6:\"user-7\";"#;
    assert!(payload.contains(group), "{payload}");
    assert_eq!(server.length("queues:usual"), 0);
}
