//! Queues whose server sentinels name: every failover is noticed, nothing is lost that a replica had, and nothing is
//! done twice by artisand itself.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::{Duration, Instant};

use artisand::connection::{Redis, RedisAddress, RedisOptions, SentinelServer, Sentinels};
use artisand::queue::{Queue as _, QueueName, RedisQueue, RedisQueueOptions};
use rustix::process::Signal;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

use crate::harness::process::{ManagedChild, Workplace, eventually, is_thorough, poll};
use crate::harness::redis::{RedisServer, free_port};
use crate::harness::sentinel::{SERVICE, Watched};
use crate::tls::patiently;

/// Many times longer than needed: the machine may be busy with other tests.
const LONG: Duration = Duration::from_secs(60);

fn options(service: &str, ports: &[u16]) -> RedisOptions {
    let servers = ports.iter();
    let servers = servers.map(|port| SentinelServer::new("127.0.0.1", *port));
    RedisOptions {
        address: RedisAddress::Sentinel(Sentinels {
            service: service.to_owned(),
            servers: servers.collect(),
            has_tls: false,
        }),
        ..RedisOptions::default()
    }
}

fn queue(service: &str, ports: &[u16]) -> RedisQueue {
    let redis = Redis::new(&options(service, ports)).unwrap();
    RedisQueue::new(redis, RedisQueueOptions::default())
}

fn ports(watched: &Watched) -> Vec<u16> {
    watched.sentinels.iter().map(RedisServer::port).collect()
}

fn with_causes(error: &dyn std::error::Error) -> String {
    let cause = error.source().map(with_causes);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}

#[tokio::test]
async fn what_sentinels_do_not_lead_to_is_named() {
    let watched = Watched::start(1);
    let (sentinel, dead) = (watched.sentinels[0].port(), free_port());
    let ping = async |service: &str, ports: &[u16]| {
        let queue = queue(service, ports);
        patiently(async || queue.ping().await).await
    };
    ping(SERVICE, &[sentinel]).await.unwrap();
    // A dead sentinel is skipped.
    ping(SERVICE, &[dead, sentinel]).await.unwrap();
    let error = async |service: &str, ports: &[u16]| {
        let error = ping(service, ports).await.unwrap_err();
        assert!(error.is_lost_connection() && !error.is_of_unknown_outcome());
        with_causes(&error)
    };
    assert_eq!(
        error("other", &[sentinel]).await,
        format!(
            "no master of `other` was found: no sentinel knows this service (127.0.0.1:{sentinel} knows `{SERVICE}`)"
        )
    );
    let silent = error(SERVICE, &[dead]).await;
    let expected = format!(
        "no master of `{SERVICE}` was found: no sentinel answers (127.0.0.1:{dead}: Connection refused"
    );
    assert!(silent.starts_with(&expected), "{silent}");
    let replica = watched.servers[1].port();
    let monitor: [&[u8]; 6] = [
        b"SENTINEL",
        b"MONITOR",
        b"misled",
        b"127.0.0.1",
        &replica.to_string().into_bytes(),
        b"9",
    ];
    watched.sentinels[0].query::<()>(&monitor);
    let misled = error("misled", &[sentinel]).await;
    let expected = format!("what the sentinels name is a replica (127.0.0.1:{replica}, named by");
    assert!(misled.contains(&expected), "{misled}");
}

/// A sentinel that names the server at a port which the test chooses.
async fn answer_as_sentinel(mut stream: TcpStream, named: Arc<AtomicU16>) {
    let mut read = Vec::new();
    let mut buffer = [0; 4096];
    while let Ok(count @ 1..) = stream.read(&mut buffer).await {
        read.extend_from_slice(&buffer[..count]);
        let text = String::from_utf8_lossy(&read).into_owned();
        // The client sends whole commands, each an array.
        for command in text.split('*').filter(|command| !command.is_empty()) {
            let reply = if command.contains("get-master-addr-by-name") {
                let port = named.load(Ordering::SeqCst).to_string();
                format!("*2\r\n$9\r\n127.0.0.1\r\n${}\r\n{port}\r\n", port.len())
            } else {
                "+OK\r\n".to_owned()
            };
            if stream.write_all(reply.as_bytes()).await.is_err() {
                return;
            }
        }
        read.clear();
    }
}

#[tokio::test]
async fn a_server_that_refuses_has_done_nothing_and_its_successor_gets_the_call() {
    let (old, new) = (RedisServer::start(), RedisServer::start());
    let named = Arc::new(AtomicU16::new(old.port()));
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let sentinel = Arc::clone(&named);
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(answer_as_sentinel(stream, Arc::clone(&sentinel)));
        }
    });
    let queue = queue(SERVICE, &[port]);
    let name = QueueName::from("q");
    queue.push(&name, &[b"1".to_vec()]).await.unwrap();
    assert_eq!(old.length("queues:q"), 1);
    // Demoted by hand: connections stay, and the sentinel has not noticed yet.
    let port = new.port().to_string();
    let demote: [&[u8]; 3] = [b"REPLICAOF", b"127.0.0.1", port.as_bytes()];
    old.query::<()>(&demote);
    let (renamed, port) = (Arc::clone(&named), new.port());
    tokio::spawn(async move {
        // Time is the subject: the sentinel names the new master a moment after the calls below have begun.
        tokio::time::sleep(Duration::from_millis(300)).await;
        renamed.store(port, Ordering::SeqCst);
    });
    // A script that the old server knows, one that it does not, and a plain command.
    queue.push(&name, &[b"2".to_vec()]).await.unwrap();
    queue
        .later(&name, artisand::time::UnixSeconds(9), b"3")
        .await
        .unwrap();
    assert_eq!(new.list("queues:q"), [b"2"]);
    assert_eq!(new.scores("queues:q:delayed").len(), 1);
    // As long as no successor is known, the error says that the call can be made again.
    let demote: [&[u8]; 3] = [b"REPLICAOF", b"127.0.0.1", b"1"];
    new.query::<()>(&demote);
    let error = queue.push(&name, &[b"4".to_vec()]).await.unwrap_err();
    assert!(
        error.is_lost_connection() && !error.is_of_unknown_outcome(),
        "{error:?}"
    );
}

/// An old master goes on taking writes; none of its replies shows that it was replaced.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_old_master_that_lives_on_is_left_and_a_push_wakes_the_waiting_worker() {
    let watched = Watched::start(1);
    let old = watched.master();
    let queue = Arc::new(queue(SERVICE, &ports(&watched)));
    let q = [QueueName::from("q")];
    patiently(async || queue.ping().await).await.unwrap();
    let (waiting, name) = (Arc::clone(&queue), q.clone());
    let waits = tokio::spawn(async move {
        let begun = Instant::now();
        // The failover may take three times as long.
        while begun.elapsed() < 5 * LONG {
            if let Ok(Some(queue)) = waiting.wait_for_push(&name, Duration::from_secs(10)).await {
                return Some(queue);
            }
        }
        None
    });
    eventually("it waits at the old master", LONG, || {
        let clients: String = watched.servers[old].query(&[b"CLIENT", b"LIST"]);
        clients.contains("cmd=blpop").then_some(())
    });
    watched.fail_over();
    eventually("it waits at the new master", LONG, || {
        let clients: String = watched.servers[1 - old].query(&[b"CLIENT", b"LIST"]);
        clients.contains("cmd=blpop").then_some(())
    });
    patiently(async || queue.push(&q[0], &[b"1".to_vec()]).await)
        .await
        .unwrap();
    assert_eq!(waits.await.unwrap(), Some(q[0].clone()));
    assert_eq!(watched.servers[1 - old].length("queues:q"), 1);
    // As a replica, the old master has the job from the new one.
    watched.eventually_follows(old);
    eventually("the old master has it, too", LONG, || {
        (watched.servers[old].length("queues:q") == 1).then_some(())
    });
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_answer_of_a_master_that_hangs_is_not_waited_for_once_another_is_named() {
    let watched = Watched::start(3);
    let queue = queue(SERVICE, &ports(&watched));
    let q = QueueName::from("q");
    queue.push(&q, &[b"1".to_vec()]).await.unwrap();
    let old = watched.master();
    watched.be_strict();
    watched.servers[old].signal(Signal::STOP);
    let error = queue.push(&q, &[b"2".to_vec()]).await.unwrap_err();
    assert!(error.is_of_unknown_outcome(), "{error:?}");
    let why = with_causes(&error);
    assert!(
        why.contains("another server has become the master"),
        "{why}"
    );
    queue.push(&q, &[b"3".to_vec()]).await.unwrap();
    let new = &watched.servers[1 - old];
    assert_eq!(new.list("queues:q").last().unwrap(), b"3");
    watched.servers[old].signal(Signal::CONT);
}

/// A job of `App\\Jobs\\Counted`, whose handler writes the number to another server.
fn counted(number: usize) -> String {
    let command = format!(r#"O:16:"App\Jobs\Counted":1:{{s:1:"n";i:{number};}}"#);
    serde_json::json!({
        "uuid": format!("u-{number}"), "displayName": "App\\Jobs\\Counted",
        "job": artisand::payload::CALL_QUEUED_HANDLER,
        "data": {"commandName": "App\\Jobs\\Counted", "command": command},
        "id": format!("i-{number}"), "attempts": 0,
    })
    .to_string()
}

const MAPPING: &str = "[[map]]\njob = 'App\\Jobs\\Counted'\nhandler = 'counted'\nunique = false\n";

fn workplace(watched: &Watched, journal: &RedisServer, retry_after: u64) -> Workplace {
    let connection = format!("[connections.redis]\nprefix = 'p_'\nretry_after = {retry_after}\n");
    let settings = format!("{connection}{}{MAPPING}", watched.settings());
    Workplace::with_settings(journal, &settings)
}

/// A worker whose server these sentinels find.
fn at_work(sentinels: usize) -> (Watched, RedisServer, Workplace, ManagedChild) {
    let watched = Watched::start(sentinels);
    let journal = RedisServer::start();
    let workplace = workplace(&watched, &journal, 90);
    let worker = workplace.worker(&["--sleep=1"]);
    (watched, journal, workplace, worker)
}

/// Jobs that are pushed at once.
const ROW: usize = 20;

/// Pushes rows of jobs, each to the server that is the master then, until a replica has it.
struct Producer {
    connection: Option<redis::Connection>,
    /// How often each job was pushed: more than once if it is not known whether a push has arrived.
    pushes: Vec<usize>,
}

impl Producer {
    fn push(&mut self, watched: &Watched) {
        let first = self.pushes.len();
        self.pushes.resize(first + ROW, 0);
        let row: Vec<String> = (first..first + ROW).map(counted).collect();
        eventually("jobs are pushed", LONG, || {
            let connection = match self.connection.take() {
                Some(connection) => connection,
                None => watched.connection().ok()?,
            };
            for pushes in &mut self.pushes[first..] {
                *pushes += 1;
            }
            let connection = self.connection.insert(connection);
            let pushed = redis::pipe()
                .cmd("RPUSH")
                .arg("p_queues:default")
                .arg(&row)
                .cmd("RPUSH")
                .arg("p_queues:default:notify")
                .arg(1)
                .cmd("WAIT")
                .arg(1)
                .arg(500)
                .query::<(i64, i64, i64)>(connection);
            let is_kept = matches!(pushed, Ok((_, _, 1)));
            if !is_kept {
                self.connection = None;
            }
            is_kept.then_some(())
        });
    }
}

/// The numbers of the jobs that were done, each with the moment at which that was seen.
struct Seen(Vec<(usize, Instant)>);

impl Seen {
    fn look(&mut self, journal: &RedisServer) {
        let from = self.0.len().to_string();
        let new: Vec<usize> = journal.query(&[b"LRANGE", b"interop:done", from.as_bytes(), b"-1"]);
        let now = Instant::now();
        self.0.extend(new.into_iter().map(|number| (number, now)));
    }
}

/// Ends what waits for the end of a test, also if the test fails.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Jobs that a replica had are not lost, whatever the moment of a failover. Some run twice: replication is
/// asynchronous, and an old master lives on for a while without knowing that it is none, so what it is told then (a
/// job popped, a job deleted) the new one does not know. `queue:work` of PHP runs them again as well. How many these
/// are depends on how fast the workers are: each of them has to have run while a failover was under way.
#[test]
#[ignore = "needs the examples"]
fn failovers_under_load_lose_no_job_and_double_only_those_of_that_moment() {
    let (jobs, failovers) = if is_thorough() {
        (20_000, 20)
    } else {
        (600, 3)
    };
    let watched = Watched::start(3);
    let journal = RedisServer::start();
    // Longer than a worker stands still: it would double what it has.
    let workplace = workplace(&watched, &journal, 6);
    let work = ["--concurrency=8", "--sleep=0.5"];
    let mut workers = [workplace.worker(&work), workplace.worker(&work)];
    let is_over = AtomicBool::new(false);
    let seen = std::sync::Mutex::new(Seen(Vec::new()));
    let mut windows = Vec::new();
    let mut producer = Producer {
        connection: None,
        pushes: Vec::new(),
    };
    std::thread::scope(|scope| {
        let _over = Over(&is_over);
        scope.spawn(|| {
            while !is_over.load(Ordering::SeqCst) {
                seen.lock().unwrap().look(&journal);
                // Time is the subject: when each job ran is known to this precision.
                std::thread::sleep(Duration::from_millis(20));
            }
        });
        let failing = scope.spawn(|| {
            let mut windows = Vec::new();
            for _ in 0..failovers {
                // Time is the subject: jobs run between two failovers, too.
                std::thread::sleep(Duration::from_millis(700));
                let (old, begun) = (watched.master(), Instant::now());
                watched.fail_over();
                watched.eventually_follows(old);
                windows.push(begun..Instant::now());
            }
            windows
        });
        while producer.pushes.len() < jobs || !failing.is_finished() {
            producer.push(&watched);
            // Only so that there are jobs at every failover.
            std::thread::sleep(Duration::from_millis(10));
        }
        windows = failing.join().unwrap();
        let master = &watched.servers[watched.master()];
        master.eventually("all jobs are done", LONG, || {
            (master.jobs("p_queues:default") == 0).then_some(())
        });
    });
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        worker.succeeds_within(LONG);
    }
    let mut seen = seen.into_inner().unwrap();
    seen.look(&journal);
    let mut runs: BTreeMap<usize, Vec<Instant>> = BTreeMap::new();
    for (number, moment) in seen.0 {
        runs.entry(number).or_default().push(moment);
    }
    let lost: Vec<usize> = (0..producer.pushes.len())
        .filter(|number| !runs.contains_key(number))
        .collect();
    assert!(lost.is_empty(), "{lost:?}: {}", workers[0].describe());
    // What happened shortly before, the replica may not have heard of; what was seen, happened a look before.
    let slack = Duration::from_millis(500);
    let is_of_failover = |moment: &Instant| {
        let mut windows = windows.iter();
        windows.any(|window| window.start < *moment + slack && *moment < window.end + slack)
    };
    let doubled = runs
        .iter()
        .filter(|(number, moments)| moments.len() > producer.pushes[**number]);
    let doubled: Vec<_> = doubled.collect();
    for (number, moments) in &doubled {
        let first = &moments[..moments.len() - 1];
        let is_explained = first.iter().any(is_of_failover);
        assert!(
            is_explained,
            "{number} ran at {moments:?}, failovers at {windows:?}"
        );
    }
}

#[test]
#[ignore = "needs the examples"]
fn a_worker_goes_on_when_its_master_is_killed_and_comes_back_as_a_replica() {
    let (mut watched, journal, _workplace, mut worker) = at_work(3);
    let done = |number: usize| {
        eventually("a job is done", LONG, || {
            let done: Vec<usize> = journal.query(&[b"LRANGE", b"interop:done", b"0", b"-1"]);
            done.contains(&number).then_some(())
        });
    };
    let mut producer = Producer {
        connection: None,
        pushes: Vec::new(),
    };
    producer.push(&watched);
    done(ROW - 1);
    // The one that was asked first goes with the master.
    let old = watched.master();
    let replica = &watched.servers[1 - old];
    replica.eventually("the replica knows that they are done", LONG, || {
        (replica.jobs("p_queues:default") == 0).then_some(())
    });
    watched.sentinels[0].kill();
    watched.be_strict();
    watched.servers[old].kill();
    eventually("another master is named", LONG, || {
        (watched.master() != old).then_some(())
    });
    watched.eventually_settled();
    watched.be_patient();
    // There is no replica whose answer `WAIT` could wait for.
    let mut connection = watched.connection().unwrap();
    let push = |connection: &mut redis::Connection, number: usize| {
        let mut command = redis::cmd("RPUSH");
        command.arg("p_queues:default").arg(counted(number));
        command.exec(connection).unwrap();
    };
    push(&mut connection, ROW);
    done(ROW);
    watched.servers[old].restart();
    watched.eventually_follows(old);
    push(&mut connection, ROW + 1);
    done(ROW + 1);
    worker.signal(Signal::TERM);
    worker.succeeds_within(LONG);
    let log = worker.stderr();
    assert_eq!(
        log.matches("the sentinels name another master").count(),
        1,
        "{log}"
    );
    let mut done: Vec<usize> = journal.query(&[b"LRANGE", b"interop:done", b"0", b"-1"]);
    done.sort_unstable();
    // What the replica had, no kill can double. A row is pushed again if the replica was slow to say that it has it.
    let pushes = producer.pushes.iter().enumerate();
    let rows = pushes.flat_map(|(number, times)| std::iter::repeat_n(number, *times));
    let expected: Vec<usize> = rows.chain([ROW, ROW + 1]).collect();
    assert_eq!(done, expected);
}

#[test]
fn doctor_says_what_the_sentinels_say_and_peek_finds_the_master() {
    let watched = Watched::start(2);
    let journal = RedisServer::start();
    let workplace = workplace(&watched, &journal, 90);
    watched.servers[watched.master()].query::<()>(&[b"RPUSH", b"p_queues:default", b"{}"]);
    // A sentinel that gets no processor for half a second counts as silent.
    let says = |command: &str, expected: &[String]| {
        let mut text = String::new();
        let said = poll(LONG, || {
            let output = workplace.artisand(&[command]).output().unwrap();
            text = String::from_utf8_lossy(&output.stdout).into_owned();
            let is_said = expected.iter().all(|expected| text.contains(expected));
            is_said.then_some(())
        });
        assert!(said.is_some(), "{expected:?}: {text}");
    };
    says("queue:peek", &["default: 1 pending".to_owned()]);
    let mut watched = watched;
    watched.sentinels[1].kill();
    let port = watched.servers[0].port();
    let expected = [
        format!("service `{SERVICE}`, master 127.0.0.1:{port}; 1 of 2 sentinels know it"),
        format!("names no master of `{SERVICE}`: Connection refused"),
        "min-replicas-to-write is 0".to_owned(),
    ];
    says("doctor", &expected);
}

#[test]
#[ignore = "needs Valkey"]
fn doctor_names_the_version_of_valkey() {
    let server = RedisServer::start_valkey();
    let workplace = Workplace::new(&server, "p_", 90, "");
    let output = workplace.artisand(&["doctor"]).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(
        text.contains(&format!("127.0.0.1:{}, Valkey ", server.port())),
        "{text}"
    );
}

#[test]
#[ignore = "needs the examples"]
fn a_worker_stops_while_no_master_is_known() {
    let (mut watched, _journal, _workplace, mut worker) = at_work(1);
    eventually("it works", LONG, || {
        let clients: String = watched.servers[0].query(&[b"CLIENT", b"LIST"]);
        clients.contains("cmd=blpop").then_some(())
    });
    watched.sentinels[0].kill();
    for server in &mut watched.servers {
        server.kill();
    }
    eventually("it is said", LONG, || {
        worker.stderr().contains("Redis is away").then_some(())
    });
    worker.signal(Signal::TERM);
    worker.succeeds_within(LONG);
}
