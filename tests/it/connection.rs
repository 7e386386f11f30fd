//! Every way to reach a Redis server, and what happens when it goes away.

use std::num::NonZeroUsize;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use artisand::config::Laravel;
use artisand::connection::{Database, DatabaseOptions, Redis, RedisAddress, RedisOptions};
use artisand::queue::{PopRequest, Queue as _, QueueName, RedisQueue, RedisQueueOptions, Sizes};
use artisand::time::UnixSeconds;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

use crate::harness::redis::{RedisServer, free_port};
use crate::harness::sql::{Engine, MariaDbServer, PostgresServer, SqlServer};

fn queue(options: &RedisOptions) -> RedisQueue {
    RedisQueue::new(Redis::new(options).unwrap(), RedisQueueOptions::default())
}

fn tcp(server: &RedisServer) -> RedisOptions {
    let address = RedisAddress::Tcp("127.0.0.1".into(), server.port());
    RedisOptions {
        address,
        ..RedisOptions::default()
    }
}

/// A handler may block the only thread, on which replies are read, for longer than a reply may take.
#[test]
fn a_reply_that_came_while_the_thread_was_blocked_counts() {
    // Long enough that a slow machine has pushed the job before.
    const LIMIT: Duration = Duration::from_secs(4);
    let server = RedisServer::start();
    let waits = async move {
        let redis = Redis::new(&tcp(&server)).unwrap().another(LIMIT);
        redis.ping().await.unwrap();
        let mut command = redis::cmd("BLPOP");
        command.arg("list").arg(0);
        let block = async {
            let is_sent = || {
                let clients: String = server.query(&[b"INFO", b"clients"]);
                clients.contains("blocked_clients:1")
            };
            while !is_sent() {
                tokio::task::yield_now().await;
            }
            server.query::<()>(&[b"RPUSH", b"list", b"job"]);
            // Time itself is the subject: the reply has come, and the thread is blocked until it is late.
            std::thread::sleep(LIMIT + LIMIT / 4);
        };
        tokio::join!(redis.command::<Vec<String>>(&command), block).0
    };
    let mut runtime = tokio::runtime::Builder::new_multi_thread();
    let runtime = runtime.worker_threads(1).enable_all().build().unwrap();
    let reply = runtime.block_on(async { tokio::spawn(waits).await.unwrap() });
    assert_eq!(reply.unwrap(), ["list", "job"]);
}

/// Pops up to one job.
async fn pop(queue: &RedisQueue) -> usize {
    let request = PopRequest {
        queues: &[QueueName::from("default")],
        max: NonZeroUsize::MIN,
        now: UnixSeconds(1_700_000_000),
        woken: &[],
        selection: None,
        thorough: false,
    };
    queue.pop(request).await.unwrap().jobs.len()
}

#[test]
fn a_new_connection_is_read_by_the_workers_runtime_also_if_a_busy_thread_needs_it_first() {
    const SOON: Duration = Duration::from_secs(20);
    let server = RedisServer::start();
    let queue = Arc::new(queue(&tcp(&server)));
    let runtime = |threads| {
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        runtime
            .worker_threads(threads)
            .enable_all()
            .build()
            .unwrap()
    };
    let (own, busy) = (runtime(1), runtime(1));
    queue.open_on(own.handle());
    assert_eq!(own.block_on(pop(&queue)), 0);
    server.query::<u64>(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    let (tell, pushed) = tokio::sync::oneshot::channel();
    let (release, blocks) = std::sync::mpsc::channel::<()>();
    let busy_queue = Arc::clone(&queue);
    busy.spawn(async move {
        let payload = br#"{"uuid":"1","job":"A","data":[],"attempts":0}"#.to_vec();
        let (name, payloads) = (QueueName::from("default"), [payload]);
        let push = async {
            // The first one may find out that the connection is gone.
            while busy_queue.push(&name, &payloads).await.is_err() {}
        };
        let opened = tokio::time::timeout(SOON, push).await;
        tell.send(opened).unwrap();
        let _ = blocks.recv();
    });
    let popped = own.block_on(async {
        pushed.await.unwrap().expect("it is opened");
        tokio::time::timeout(SOON, pop(&queue)).await
    });
    assert_eq!(popped.expect("the reply is read"), 1);
    drop(release);
    // Without that runtime, the others open their own connection.
    drop(own);
    server.query::<u64>(&[b"CLIENT", b"KILL", b"TYPE", b"normal"]);
    let sizes = busy.block_on(async {
        let name = QueueName::from("default");
        let asks = async {
            while queue.sizes(&name).await.is_err() {}
            queue.sizes(&name).await.unwrap()
        };
        tokio::time::timeout(SOON, asks).await
    });
    assert_eq!(sizes.expect("it is opened again").reserved, 1);
}

#[tokio::test]
async fn a_unix_socket_a_user_with_a_password_and_a_database_are_used() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("redis.sock");
    let server = RedisServer::start_with(&["--save", "", "--unixsocket", socket.to_str().unwrap()]);
    let user: [&[u8]; 7] = [
        b"ACL", b"SETUSER", b"worker", b"on", b">secret", b"~*", b"+@all",
    ];
    server.query::<String>(&user);
    let options = RedisOptions {
        address: RedisAddress::Unix(socket),
        username: Some("worker".into()),
        password: Some("secret".into()),
        database: 3,
        prefix: "app_".into(),
        ..RedisOptions::default()
    };
    queue(&options)
        .push(&QueueName::from("q"), &[b"{}".to_vec()])
        .await
        .unwrap();
    let mut connection = server.connection();
    let _: () = redis::cmd("SELECT").arg(3).query(&mut connection).unwrap();
    let length: i64 = redis::cmd("LLEN")
        .arg("app_queues:q")
        .query(&mut connection)
        .unwrap();
    assert_eq!(length, 1);
    let wrong = RedisOptions {
        password: Some("guess".into()),
        ..options
    };
    let error = queue(&wrong).ping().await.unwrap_err();
    let text = with_cause(&error);
    assert!(
        text.starts_with("could not connect to Redis at ")
            && text.contains("authentication failed"),
        "{text}"
    );
    assert!(!text.contains("guess"), "{text}");
}

fn with_cause(error: &dyn std::error::Error) -> String {
    let cause = error
        .source()
        .map_or_else(String::new, |cause| format!(": {cause}"));
    format!("{error}{cause}")
}

#[tokio::test]
async fn a_server_that_comes_back_is_used_again() {
    let mut server = RedisServer::start();
    let queue = queue(&tcp(&server));
    let name = QueueName::from("q");
    assert_eq!(queue.sizes(&name).await.unwrap(), Sizes::default());
    server.stop();
    let error = queue.sizes(&name).await.unwrap_err();
    assert!(error.is_lost_connection(), "{error:?}");
    assert!(queue.sizes(&name).await.unwrap_err().is_lost_connection());
    server.restart();
    // Scripts are not known to the new server, and the old connection is gone.
    queue.push(&name, &[b"{}".to_vec()]).await.unwrap();
    assert_eq!(queue.sizes(&name).await.unwrap().pending, 1);
}

#[tokio::test]
async fn a_connection_that_never_was_says_where() {
    let port = free_port();
    let address = RedisAddress::Tcp("127.0.0.1".into(), port);
    let error = queue(&RedisOptions {
        address,
        ..RedisOptions::default()
    });
    let error = tokio::time::timeout(Duration::from_secs(10), error.ping())
        .await
        .unwrap()
        .unwrap_err();
    assert_eq!(
        error.to_string(),
        format!("could not connect to Redis at 127.0.0.1:{port}")
    );
}

/// Fields of the app's connection to a server, and these in addition.
fn fields<E: Engine>(server: &SqlServer<E>, more: &Value) -> Value {
    let env = server.env();
    let of = |name: &str| env.iter().find(|(key, _)| *key == name).unwrap().1.clone();
    let mut fields = json!({
        "driver": if E::SCHEME == "postgres" { "pgsql" } else { "mysql" },
        "host": of("DB_HOST"), "port": of("DB_PORT"), "database": of("DB_DATABASE"),
        "username": of("DB_USERNAME"), "password": of("DB_PASSWORD"),
    });
    fields
        .as_object_mut()
        .unwrap()
        .extend(more.as_object().unwrap().clone());
    fields
}

/// Whether a connection with these fields is encrypted, plain or refused in PHP, as Laravel's connectors open it.
const PDO: &str = r#"
$f = json_decode($argv[1], true);
$mysql = $f['driver'] === 'mysql';
$dsn = "{$f['driver']}:host={$f['host']};port={$f['port']};dbname={$f['database']}";
foreach (['sslmode', 'sslcert', 'sslkey', 'sslrootcert'] as $option) {
    $dsn .= isset($f[$option]) ? ";$option=$f[$option]" : '';
}
try {
    $pdo = @new PDO($dsn, $f['username'], $f['password'], $f['options'] ?? []);
    $row = $pdo->query($mysql ? "show status like 'Ssl_cipher'" : "select 1, case when ssl then 'tls' else '' end from pg_stat_ssl where pid = pg_backend_pid()");
    echo $row->fetch(PDO::FETCH_NUM)[1] ? 'tls' : 'plain';
} catch (PDOException) {
    echo 'refused';
}"#;

/// The database connection of an app with these fields.
fn database_of(fields: &Value) -> DatabaseOptions {
    let laravel = Laravel {
        version: Some("13.0".into()),
        config: json!({"database": {"connections": {"a": fields}}}),
        base: "/".into(),
        storage: "/".into(),
        cache_prefixes: std::collections::BTreeMap::default(),
        origin: artisand::config::Origin::Php { cached: None },
        env: Arc::new(|_| None),
        redis: artisand::config::RedisTable::default(),
    };
    laravel.database(Some("a")).unwrap()
}

async fn check_tls<E: Engine>(server: &SqlServer<E>, more: &Value) {
    let fields = fields(server, more);
    let output = Command::new("php")
        .args(["-r", PDO, "--", &fields.to_string()])
        .output()
        .unwrap();
    let by_pdo = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(!by_pdo.is_empty(), "{output:?}");
    let options = database_of(&fields);
    let sql = match E::SCHEME {
        "postgres" => {
            "select '', case when ssl then 'tls' else '' end from pg_stat_ssl where pid = pg_backend_pid()"
        }
        _ => "show status like 'Ssl_cipher'",
    };
    let rows = match Database::new(&options) {
        Ok(database) => database.rows(sql, &[]).await,
        Err(error) => Err(error),
    };
    let by_us = match &rows {
        Ok(rows) if rows[0].text(1).is_some_and(|cipher| !cipher.is_empty()) => "tls",
        Ok(_) => "plain",
        Err(_) => "refused",
    };
    assert_eq!(by_us, by_pdo, "{more}: {rows:?}");
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs php and MariaDB (make test)"]
async fn mysql_is_reached_over_tls_where_pdo_reaches_it() {
    let mut server = MariaDbServer::start();
    check_tls(&server, &json!({})).await;
    check_tls(&server, &json!({"options": {"1009": "/ca.pem"}})).await;
    for name in ["IP:127.0.0.1", "DNS:elsewhere.test"] {
        let tls = server.speak_tls(name);
        let file = |name: &str| tls.join(name).display().to_string();
        let (ca, other) = (file("ca.pem"), file("other.pem"));
        for options in [
            json!({"1002": "set @x = 1"}),
            json!({"1014": true}),
            json!({"1009": ca}),
            json!({"1009": ca, "1014": true}),
            json!({"1009": ca, "1014": false}),
            json!({"1009": other}),
            json!({"1009": other, "1014": false}),
            json!({"1009": ""}),
            json!({"1009": null, "1014": null}),
        ] {
            check_tls(&server, &json!({"options": options})).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs php and PostgreSQL (make test)"]
async fn postgres_is_reached_over_tls_where_pdo_reaches_it() {
    let mut server = PostgresServer::start();
    check_tls(&server, &json!({})).await;
    check_tls(&server, &json!({"sslmode": "require"})).await;
    for name in ["IP:127.0.0.1", "DNS:elsewhere.test"] {
        let tls = server.speak_tls(name);
        let file = |name: &str| tls.join(name).display().to_string();
        let (ca, other) = (file("ca.pem"), file("other.pem"));
        for more in [
            json!({}),
            json!({"sslmode": "disable"}),
            json!({"sslmode": "prefer"}),
            json!({"sslmode": "require"}),
            json!({"sslmode": "require", "sslrootcert": ca}),
            json!({"sslmode": "require", "sslrootcert": other}),
            json!({"sslmode": "verify-ca"}),
            json!({"sslmode": "verify-ca", "sslrootcert": ca}),
            json!({"sslmode": "verify-ca", "sslrootcert": other}),
            json!({"sslmode": "verify-full", "sslrootcert": ca}),
            json!({"sslmode": "verify-full", "sslrootcert": "/nonexistent.pem"}),
            json!({"sslmode": "secret"}),
        ] {
            check_tls(&server, &more).await;
        }
    }
}

/// A proxy between clients and a server, which can hold back the answer to the next `BEGIN`.
struct Proxy {
    port: u16,
    /// Whether the answer to the next `BEGIN` is held back.
    holds_next: AtomicBool,
    /// Notified when that `BEGIN` went to the server.
    begun: Notify,
    /// Lets the answer continue.
    go_on: Semaphore,
}

impl Proxy {
    async fn start(server: u16) -> Arc<Self> {
        let listener = TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
        let proxy = Arc::new(Self {
            port: listener.local_addr().unwrap().port(),
            holds_next: AtomicBool::new(false),
            begun: Notify::new(),
            go_on: Semaphore::new(0),
        });
        tokio::spawn({
            let proxy = Arc::clone(&proxy);
            async move {
                while let Ok((client, _)) = listener.accept().await {
                    let server = TcpStream::connect(("127.0.0.1", server)).await.unwrap();
                    tokio::spawn(Arc::clone(&proxy).pass(client, server));
                }
            }
        });
        proxy
    }

    async fn pass(self: Arc<Self>, mut client: TcpStream, mut server: TcpStream) {
        let (mut asked, mut answered) = (vec![0; 1 << 16], vec![0; 1 << 16]);
        let mut is_held = false;
        loop {
            tokio::select! {
                read = client.read(&mut asked) => {
                    let Ok(length @ 1..) = read else { return };
                    let asks = asked[..length].to_ascii_uppercase();
                    let is_begin = memchr::memmem::find(&asks, b"BEGIN").is_some();
                    if is_begin && self.holds_next.swap(false, Ordering::Relaxed) {
                        is_held = true;
                    }
                    server.write_all(&asked[..length]).await.unwrap();
                }
                read = server.read(&mut answered) => {
                    let Ok(length @ 1..) = read else { return };
                    if std::mem::take(&mut is_held) {
                        self.begun.notify_one();
                        self.go_on.acquire().await.unwrap().forget();
                    }
                    if client.write_all(&answered[..length]).await.is_err() {
                        return;
                    }
                }
            }
        }
    }
}

/// transact-rs/sqlx#4385: the connection went back to the pool inside the transaction that was to begin.
async fn check_dropped_begin<E: Engine>(server: &SqlServer<E>) {
    let direct = fields(server, &json!({}));
    let proxy = Proxy::start(direct["port"].as_str().unwrap().parse().unwrap()).await;
    let fields = fields(server, &json!({"host": "127.0.0.1", "port": proxy.port}));
    let database = Database::new(&database_of(&fields)).unwrap();
    database
        .execute("create table written (number int)", &[])
        .await
        .unwrap();
    proxy.holds_next.store(true, Ordering::Relaxed);
    tokio::select! {
        _ = database.begin() => panic!("its answer is held back"),
        () = proxy.begun.notified() => {}
    }
    proxy.go_on.add_permits(1);
    // More at a time than the pool has connections, so that all of them are used.
    for _ in 0..10 {
        let insert = || database.execute("insert into written values (1)", &[]);
        let inserts = std::iter::repeat_with(insert).take(10);
        futures_util::future::try_join_all(inserts).await.unwrap();
    }
    // Another connection sees only committed data.
    let rows = server.query("select count(*) from written");
    assert_eq!(rows, [[Some("100".to_owned())]], "{}", E::SCHEME);
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs MariaDB (make test)"]
async fn a_transaction_that_is_dropped_while_it_begins_keeps_nothing_open_in_mariadb() {
    check_dropped_begin(&MariaDbServer::start()).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "needs PostgreSQL (make test)"]
async fn a_transaction_that_is_dropped_while_it_begins_keeps_nothing_open_in_postgres() {
    check_dropped_begin(&PostgresServer::start()).await;
}

/// One that accepts and never answers costs several seconds: each caller waits for that once, not one after the other.
#[tokio::test]
async fn callers_that_wait_for_a_connection_share_its_failure() {
    let silent = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = silent.local_addr().unwrap().port();
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    tokio::spawn(async move {
        let mut kept = Vec::new();
        while let Ok((stream, _)) = silent.accept().await {
            count.fetch_add(1, Ordering::SeqCst);
            kept.push(stream);
        }
    });
    let redis = Redis::new(&RedisOptions {
        address: RedisAddress::Tcp("127.0.0.1".into(), port),
        ..RedisOptions::default()
    })
    .unwrap();
    let errors = futures_util::future::join_all((0..20).map(|_| redis.ping())).await;
    assert!(errors.iter().all(Result::is_err), "{errors:?}");
    assert_eq!(accepted.load(Ordering::SeqCst), 1);
}
