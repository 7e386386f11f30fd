//! Replies of a node that are lost: what was sent is never sent again.

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use artisand::queue::{
    Effect, Ledger as _, Once, Push, PushedOnce, Queue as _, Settled, Settlement, Spool,
};
use rustix::process::Signal;

use super::{payload, push, request, work};
use crate::contract::{at, name};
use crate::harness::cluster::Cluster;
use crate::harness::process::until;

/// Carries connections to a node. When armed, the next command with a certain text goes to the node, and its reply
/// nowhere: the connection is cut.
struct Proxy {
    port: u16,
    is_armed: Arc<AtomicBool>,
    cuts: Arc<AtomicUsize>,
    /// For how many milliseconds each reply is held up.
    delay: Arc<AtomicU64>,
}

impl Proxy {
    fn start(node: u16, text: &'static str) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (is_armed, cuts) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
        let proxy = Self {
            port,
            is_armed: Arc::clone(&is_armed),
            cuts: Arc::clone(&cuts),
            delay: Arc::default(),
        };
        let delay = Arc::clone(&proxy.delay);
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let client = client.unwrap();
                let server = TcpStream::connect((Ipv4Addr::LOCALHOST, node)).unwrap();
                let (is_armed, cuts) = (Arc::clone(&is_armed), Arc::clone(&cuts));
                let is_cut = Arc::<AtomicBool>::default();
                let (to, from) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let (was_cut, delay) = (Arc::clone(&is_cut), Arc::clone(&delay));
                std::thread::spawn(move || answer(from, to, &was_cut, &delay));
                std::thread::spawn(move || ask(client, server, text, &is_armed, &is_cut, &cuts));
            }
        });
        proxy
    }
}

/// Passes commands on, until the one whose reply is to be lost.
fn ask(
    mut client: TcpStream,
    mut server: TcpStream,
    text: &str,
    is_armed: &AtomicBool,
    is_cut: &AtomicBool,
    cuts: &AtomicUsize,
) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = client.read(&mut bytes) {
        let is_it = memchr::memmem::find(&bytes[..length], text.as_bytes()).is_some();
        if is_it && is_armed.swap(false, Ordering::SeqCst) {
            is_cut.store(true, Ordering::SeqCst);
            cuts.fetch_add(1, Ordering::SeqCst);
        }
        if server.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = server.shutdown(Shutdown::Both);
}

/// Passes replies on, until one is to be lost.
fn answer(mut server: TcpStream, mut client: TcpStream, is_cut: &AtomicBool, delay: &AtomicU64) {
    let mut bytes = vec![0; 1 << 16];
    while let Ok(length @ 1..) = server.read(&mut bytes) {
        // Time is the subject: the connection is slow.
        std::thread::sleep(Duration::from_millis(delay.load(Ordering::SeqCst)));
        if is_cut.load(Ordering::SeqCst) || client.write_all(&bytes[..length]).is_err() {
            break;
        }
    }
    let _ = client.shutdown(Shutdown::Both);
}

/// A cluster whose clients reach the node with the queue `q` by the proxy.
fn behind_a_proxy(text: &'static str) -> (Cluster, Proxy) {
    let cluster = Cluster::start();
    let node = cluster.first_master_of("p_queues:{q}");
    let proxy = Proxy::start(cluster.node(node).port(), text);
    // Nodes tell clients this port.
    let port = proxy.port.to_string();
    cluster
        .node(node)
        .query::<()>(&[b"CONFIG", b"SET", b"cluster-announce-port", port.as_bytes()]);
    let told = || {
        cluster
            .query_all(&[b"CLUSTER", b"SLOTS"])
            .iter()
            .all(|reply| reply.contains(&port))
    };
    crate::harness::process::eventually("all nodes tell the proxy's port", super::PATIENCE, || {
        told().then_some(())
    });
    (cluster, proxy)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_whose_reply_is_lost_is_of_unknown_outcome_and_never_sent_again() {
    let (cluster, proxy) = behind_a_proxy("\"u1\"");
    let queue = cluster.queue("p_");
    queue.push(&name("q"), &[payload(0)]).await.unwrap();
    proxy.is_armed.store(true, Ordering::SeqCst);
    let error = queue.push(&name("q"), &[payload(1)]).await.unwrap_err();
    assert!(error.is_of_unknown_outcome(), "{error:?}");
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 1);
    // The next command finds the node again.
    queue.push(&name("q"), &[payload(2)]).await.unwrap();
    assert_eq!(queue.sizes(&name("q")).await.unwrap().pending, 3);
}

/// A worker repeats a settlement, which finds that the job is gone: no job runs twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deletion_whose_reply_is_lost_doubles_no_job() {
    let (cluster, proxy) = behind_a_proxy("ZREM");
    let queue = Arc::new(cluster.queue("p_"));
    for number in 0..20 {
        assert_eq!(push(&queue, &name("q"), number).await, 1);
    }
    proxy.is_armed.store(true, Ordering::SeqCst);
    let is_over = Arc::new(AtomicBool::new(true));
    let ran = work(Arc::clone(&queue), vec![name("q")], is_over);
    let ran = tokio::time::timeout(super::PATIENCE, ran).await.unwrap();
    assert_eq!(proxy.cuts.load(Ordering::SeqCst), 1);
    assert_eq!(ran.len(), 20);
    assert!(ran.values().all(|times| *times == 1), "{ran:?}");
    assert_eq!(
        queue.sizes(&name("q")).await.unwrap(),
        artisand::queue::Sizes::default()
    );
}

/// The end of a job, what a record leaves to do, and the push of a handler: each is asked for again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ends_and_pushes_whose_replies_are_lost_are_done_once() {
    let (cluster, proxy) = behind_a_proxy("\"u7\"");
    let queue = cluster.queue("p_");
    let (names, spool) = ([name("q")], Spool::FollowUps);
    let pushes = [Push {
        queue: name("q"),
        payload: payload(7),
        due: None,
        claim: None,
    }];
    let follow = [Effect::Push(pushes[0].clone())];
    let pending = async || queue.sizes(&names[0]).await.unwrap().pending;
    let lives = Duration::from_secs(60);
    assert!(queue.lease(spool, "me", lives).await.unwrap());
    // The first time the node does not have the scripts yet, and carries out nothing.
    for (round, is_lost) in [(0, false), (3, true)] {
        let lose = || proxy.is_armed.store(is_lost, Ordering::SeqCst);
        queue.push(&names[0], &[payload(1)]).await.unwrap();
        let job = Arc::new(
            queue
                .pop(request(&names, 9))
                .await
                .unwrap()
                .jobs
                .pop()
                .unwrap(),
        );
        let record = Effect::Append(spool, b"record".to_vec());
        let effects = [&follow[..], &[record]].concat();
        let ends = [(job, Settlement::Finish(effects))];
        lose();
        if is_lost {
            let unsettled = queue.settle(&ends).await.unwrap_err();
            assert!(unsettled.source.is_of_unknown_outcome(), "{unsettled:?}");
        }
        let settled = queue.settle(&ends).await.unwrap();
        assert_eq!(
            settled,
            [if is_lost {
                Settled::Gone
            } else {
                Settled::Done
            }]
        );
        assert_eq!(pending().await, 1);

        let records = queue.read(spool, 0, 9).await.unwrap();
        assert_eq!(records, [b"record"]);
        lose();
        if is_lost {
            let error = queue.ack(spool, "me", &records, &follow).await;
            assert!(error.unwrap_err().is_of_unknown_outcome());
        }
        let taken = queue.ack(spool, "me", &records, &follow).await;
        assert_eq!(taken.unwrap(), u64::from(!is_lost));
        assert_eq!(pending().await, 2);

        let id = format!("once-{round}");
        let once = Once {
            id: &id,
            remembered: lives,
            note: "a note",
        };
        lose();
        if is_lost {
            let error = queue.push_once(&pushes, once).await;
            assert!(error.unwrap_err().is_of_unknown_outcome());
        }
        let note = "a note".to_owned();
        let expected = if is_lost {
            PushedOnce::Before { note }
        } else {
            PushedOnce::Now { locked: 0 }
        };
        assert_eq!(queue.push_once(&pushes, once).await.unwrap(), expected);
        assert_eq!(pending().await, 3);
        assert_eq!(proxy.cuts.load(Ordering::SeqCst), round);
        queue.clear(&names[0], at(0)).await.unwrap();
    }
}

/// A connection that takes longer than commands wait for it is opened once, and not begun anew with each command.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_behind_a_slow_connection_is_served_again() {
    let (cluster, proxy) = behind_a_proxy("\"u1\"");
    let queue = cluster.queue("p_");
    queue.push(&name("q"), &[payload(0)]).await.unwrap();
    proxy.is_armed.store(true, Ordering::SeqCst);
    let error = queue.push(&name("q"), &[payload(1)]).await.unwrap_err();
    assert!(error.is_of_unknown_outcome(), "{error:?}");
    proxy.delay.store(6000, Ordering::SeqCst);
    let error = queue.push(&name("q"), &[payload(2)]).await.unwrap_err();
    assert!(error.is_lost_connection() && !error.is_of_unknown_outcome());
    proxy.delay.store(600, Ordering::SeqCst);
    until("the master is served again", super::PATIENCE, async || {
        queue.push(&name("q"), &[payload(3)]).await.is_ok()
    })
    .await;
}

/// A node that hangs takes connections and never answers: the queues of the other nodes are worked meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_hangs_holds_up_other_queues_once() {
    const JOBS: usize = 20;
    let cluster = Cluster::start();
    // Without it, the nodes refuse all slots once they have noticed.
    cluster.query_all(&[b"CONFIG", b"SET", b"cluster-require-full-coverage", b"no"]);
    let queue = cluster.queue("p_");
    let names = super::three();
    let jobs: Vec<_> = (0..=JOBS).map(payload).collect();
    queue.push(&names[2], &jobs).await.unwrap();
    let key = format!("p_queues:{{{}}}", names[0].as_str());
    let hung = cluster.node(cluster.first_master_of(&key));
    let pop = async || queue.pop(request(&names, 1)).await.unwrap().jobs.len();
    hung.signal(Signal::STOP);
    assert_eq!(pop().await, 1);
    let begun = Instant::now();
    for _ in 0..JOBS {
        assert_eq!(pop().await, 1);
    }
    // Each connection to the node would take five seconds.
    assert!(begun.elapsed() < Duration::from_secs(20));
    let pushed = queue.push(&names[0], &[payload(0)]).await;
    assert!(pushed.unwrap_err().is_lost_connection());
    hung.signal(Signal::CONT);
    until("the node takes jobs again", super::PATIENCE, async || {
        queue.push(&names[0], &[payload(0)]).await.is_ok()
    })
    .await;
    assert_eq!(pop().await, 1);
}
