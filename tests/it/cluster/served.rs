//! Slots that move to other nodes, and masters that are replaced, while jobs are pushed and worked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use artisand::queue::{Queue as _, RedisQueue};

use super::{PATIENCE, number_of, payload, push, three, work};
use crate::harness::cluster::Cluster;
use crate::harness::process::{eventually, flood, until};

/// The queues of two workers and a producer, each with connections of its own.
fn clients(cluster: &Cluster, prefix: &str) -> [Arc<RedisQueue>; 3] {
    [(); 3].map(|()| Arc::new(cluster.queue(prefix)))
}

/// Works the queues while `disturb` runs on a thread, and pushes at least `jobs` jobs meanwhile; then each must
/// have come once.
async fn nothing_is_lost_or_doubled(
    cluster: &Cluster,
    jobs: usize,
    disturb: impl FnOnce(&Cluster) + Send,
) {
    let [producer, workers @ ..] = clients(cluster, "p_");
    let is_over = Arc::new(AtomicBool::new(false));
    let workers = workers.map(|queue| tokio::spawn(work(queue, three(), Arc::clone(&is_over))));
    let jobs = std::thread::scope(|scope| {
        let disturbing = scope.spawn(|| disturb(cluster));
        let pushing = async {
            let mut number = 0;
            while number < jobs || !disturbing.is_finished() {
                let times = push(&producer, &three()[number % 3], number).await;
                assert_eq!(times, 1, "no reply was lost");
                number += 1;
            }
            number
        };
        let handle = tokio::runtime::Handle::current();
        let pushed = tokio::task::block_in_place(|| handle.block_on(pushing));
        disturbing.join().unwrap();
        pushed
    });
    is_over.store(true, Ordering::SeqCst);
    let mut ran = std::collections::BTreeMap::new();
    for worker in workers {
        let done = tokio::time::timeout(PATIENCE, worker).await;
        for (number, times) in done.expect("all jobs are worked").unwrap() {
            *ran.entry(number).or_insert(0) += times;
        }
    }
    let lost: Vec<_> = (0..jobs)
        .filter(|number| !ran.contains_key(number))
        .collect();
    assert_eq!(lost, [0; 0], "lost");
    let doubled: Vec<_> = ran.iter().filter(|(_, times)| **times > 1).collect();
    assert!(doubled.is_empty(), "{doubled:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_that_move_under_load_cost_no_job_and_double_none() {
    let cluster = Cluster::start();
    nothing_is_lost_or_doubled(&cluster, flood(4_000), |cluster| {
        for round in 0..3 {
            for queue in ["a", "b", "c"] {
                let key = format!("p_queues:{{{queue}}}");
                let first = cluster.first_master_of(&key);
                let [from, to] = [round, round + 1].map(|step| (first + step) % 3);
                cluster.move_slot(&key, from, to, Duration::from_millis(20));
            }
        }
    })
    .await;
    for code in ["MOVED", "ASK", "TRYAGAIN"] {
        assert!(cluster.errors(code) > 0, "{code} was never answered");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_takes_over_when_told_costs_no_job_and_doubles_none() {
    let cluster = Cluster::with_replicas();
    nothing_is_lost_or_doubled(&cluster, flood(2_000), |cluster| {
        for replica in [3, 4] {
            cluster
                .node(replica)
                .query::<()>(&[b"CLUSTER", b"FAILOVER"]);
            eventually("the replica has become a master", PATIENCE, || {
                let info: String = cluster.node(replica).query(&[b"INFO", b"replication"]);
                info.contains("role:master").then_some(())
            });
        }
    })
    .await;
}

/// A node whose memory is full takes no jobs, and gives those that it has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_without_memory_is_worked_as_the_others() {
    const JOBS: usize = 90;
    let cluster = Cluster::start();
    let [producer, workers @ ..] = clients(&cluster, "p_");
    for number in 0..JOBS {
        push(&producer, &three()[number % 3], number).await;
    }
    let full = cluster.node(cluster.first_master_of("p_queues:{a}"));
    let allow = |memory: &str| {
        full.query::<()>(&[b"CONFIG", b"SET", b"maxmemory", memory.as_bytes()]);
    };
    allow("1");
    let is_over = Arc::new(AtomicBool::new(false));
    let workers = workers.map(|queue| tokio::spawn(work(queue, three(), Arc::clone(&is_over))));
    let pending = async |queue: usize| producer.sizes(&three()[queue]).await.unwrap().pending;
    until("all are worked", PATIENCE, async || {
        pending(0).await + pending(1).await + pending(2).await == 0
    })
    .await;
    let error = producer
        .push(&three()[0], &[payload(JOBS)])
        .await
        .unwrap_err();
    assert!(
        !error.is_lost_connection() && !error.is_of_unknown_outcome(),
        "{error:?}"
    );
    allow("0");
    is_over.store(true, Ordering::SeqCst);
    let mut ran = std::collections::BTreeMap::new();
    for worker in workers {
        let done = tokio::time::timeout(PATIENCE, worker).await;
        for (number, times) in done.expect("all jobs are worked").unwrap() {
            *ran.entry(number).or_insert(0) += times;
        }
    }
    assert_eq!(ran, (0..JOBS).map(|number| (number, 1)).collect());
}

/// What is known of queues and nodes, for the message of a test that fails.
async fn state(cluster: &Cluster, queue: &RedisQueue) -> Vec<String> {
    let mut all = Vec::new();
    for name in three() {
        all.push(format!("{name}: {:?}", queue.sizes(&name).await));
    }
    all.extend(cluster.roles());
    all
}

/// What was not written to the replica is gone, as with Laravel: so all jobs are there before the kill.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_master_that_is_killed_costs_no_job_that_its_replica_has() {
    let mut cluster = Cluster::with_replicas();
    let jobs = flood(2_000);
    let [producer, workers @ ..] = clients(&cluster, "p_");
    for queue in 0..3 {
        let numbers = (0..jobs).filter(|number| number % 3 == queue);
        let payloads: Vec<_> = numbers.map(payload).collect();
        producer.push(&three()[queue], &payloads).await.unwrap();
    }
    let victim = cluster.first_master_of("p_queues:{a}");
    // A new replica gets nothing for up to a second. The server waits for writes of this connection and all before.
    let mut connection = cluster.node(victim).connection();
    let mut commands = redis::pipe();
    commands.cmd("SET").arg("p_{a}").arg(1).ignore();
    commands.cmd("WAIT").arg(&["1", "30000"]);
    let acknowledged: (i64,) = commands.query(&mut connection).unwrap();
    assert_eq!(acknowledged, (1,));
    let is_over = Arc::new(AtomicBool::new(false));
    let workers = workers.map(|queue| tokio::spawn(work(queue, three(), Arc::clone(&is_over))));
    until("some jobs are worked", PATIENCE, async || {
        producer
            .sizes(&three()[0])
            .await
            .is_ok_and(|sizes| sizes.pending < jobs as u64 / 4)
    })
    .await;
    // The replica takes over, and the jobs whose deletion it missed come back.
    cluster.replace_first_master_of("p_queues:{a}");
    until("the slot is served again", PATIENCE, async || {
        producer.sizes(&three()[0]).await.is_ok()
    })
    .await;
    is_over.store(true, Ordering::SeqCst);
    let mut ran = std::collections::BTreeMap::new();
    for worker in workers {
        let done = tokio::time::timeout(PATIENCE, worker).await;
        for (number, times) in done.expect("all jobs are worked").unwrap() {
            *ran.entry(number).or_insert(0) += times;
        }
    }
    // Jobs that were reserved by a pop whose reply was lost stay reserved for 90 s.
    let mut here: std::collections::BTreeSet<usize> = ran.keys().copied().collect();
    for queue in three() {
        let key = producer.keys().reserved(&queue);
        let reserved: Vec<Vec<u8>> = cluster.query(&[b"ZRANGE", key.as_bytes(), b"0", b"-1"]);
        here.extend(reserved.iter().map(|payload| number_of(payload)));
    }
    let lost: Vec<usize> = (0..jobs).filter(|number| !here.contains(number)).collect();
    assert!(
        lost.is_empty(),
        "{lost:?}; victim {victim}; {:?}",
        state(&cluster, &producer).await
    );
    // How many ran twice is a matter of how far the replica was behind: it brings back what it had not heard of.
}
