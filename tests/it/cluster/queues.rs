//! What several queues of a cluster have to do with each other.

use std::time::Duration;

use artisand::connection::RedisAddress;
use artisand::queue::{Effect, Ledger as _, Queue as _, QueueName, Spool};
use artisand::time::UnixSeconds;

use super::{PATIENCE, payload};
use crate::contract::{at, name};
use crate::harness::cluster::Cluster;
use crate::harness::process::{artisand, eventually, until};

/// More queues than connections wait for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_push_to_any_of_many_queues_wakes_a_waiting_worker() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let (queue, producer) = (cluster.queue(&prefix), cluster.queue(&prefix));
    let names: Vec<QueueName> = (0..11).map(|number| name(&format!("q{number}"))).collect();
    let begun = std::time::Instant::now();
    let mut pushes = names.iter().enumerate();
    let mut next = pushes.next();
    while let Some((number, pushed)) = next {
        let push = async {
            // Time itself is the subject: the push comes while the worker waits. The nodes tell how many clients wait,
            // but not for which keys, and other tests wait on this cluster, too.
            tokio::time::sleep(Duration::from_millis(100)).await;
            producer.push(pushed, &[payload(number)]).await.unwrap();
        };
        let wait = queue.wait_for_push(&names, Duration::from_secs(3));
        let (woken, ()) = tokio::join!(wait, push);
        if let Some(woken) = woken.unwrap() {
            assert_eq!(woken, *pushed);
            next = pushes.next();
            continue;
        }
        // A connection of the last wait that was not closed yet has taken it: a hint that is lost. Or the push came
        // after the wait, and the next wait is not to find it.
        assert!(begun.elapsed() < PATIENCE, "pushes wake no worker");
        let key = producer.keys().notify(pushed);
        cluster.query::<u64>(&[b"DEL", key.as_bytes()]);
    }
    // The connections of a wait that is over are closed, and take no notification away.
    let key = producer.keys().notify(&names[0]);
    until("a notification is left", PATIENCE, async || {
        producer.push(&names[0], &[payload(99)]).await.unwrap();
        cluster.query::<u64>(&[b"LLEN", key.as_bytes()]) > 0
    })
    .await;
}

#[tokio::test]
async fn queues_and_quarantines_of_all_masters_are_found_by_their_own_names() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let queue = cluster.queue(&prefix);
    let names = ["a", "b", "c", "{tagged}"].map(name);
    for queue_name in &names {
        let payloads = [payload(1), b"broken".to_vec()];
        queue.push(queue_name, &payloads).await.unwrap();
        assert_eq!(
            crate::contract::pop(&queue, &[queue_name.as_str()], 9, 0)
                .await
                .jobs
                .len(),
            1
        );
    }
    // The braces of the last one are those that Laravel gives the name without them.
    let expected = ["a", "b", "c", "tagged"].map(name);
    assert_eq!(queue.queues().await.unwrap(), expected);
    assert_eq!(queue.quarantines().await.unwrap(), expected);
}

#[tokio::test]
async fn a_queue_that_old_laravel_spreads_over_slots_is_refused_with_a_remedy() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let options = artisand::queue::RedisQueueOptions {
        tagging: Some(artisand::queue::Tagging::AsNamed),
        ..artisand::queue::RedisQueueOptions::default()
    };
    let queue = artisand::queue::RedisQueue::new(cluster.redis(&prefix), options);
    let (plain, tagged) = (name("mail"), name("{mail}"));
    let pushed = queue.push(&plain, &[payload(1)]).await.unwrap_err();
    let cleared = queue.clear(&plain, at(0)).await.unwrap_err();
    for error in [pushed, cleared] {
        let said = std::error::Error::source(&error).unwrap().to_string();
        assert!(said.contains("call the queue `{mail}`"), "{said}");
        assert!(!error.is_of_unknown_outcome() && !error.is_lost_connection());
    }
    assert_eq!(cluster.keys(&format!("{prefix}*")), [""; 0]);
    queue.push(&tagged, &[payload(1)]).await.unwrap();
    assert_eq!(queue.clear(&tagged, at(0)).await.unwrap(), 1);
    // Records lie with the queues: their own names, which have no tags, are in no key.
    let outbox = queue.at_home(tagged.clone());
    let (lives, records) = (Duration::from_secs(60), [b"a record".to_vec()]);
    for spool in [Spool::FollowUps, Spool::FailedJobs] {
        let kept = [Effect::Append(spool, records[0].clone())];
        let end = format!("{spool:?}");
        outbox.note_end(&end, UnixSeconds(1), &kept).await.unwrap();
        assert_eq!(
            outbox.ends(std::slice::from_ref(&end)).await.unwrap(),
            [Some(UnixSeconds(1))]
        );
        assert!(outbox.lease(spool, "me", lives).await.unwrap());
        assert!(outbox.keep(spool, "me", lives).await.unwrap());
        assert_eq!(outbox.read(spool, 0, 10).await.unwrap(), records);
        assert_eq!(outbox.ack(spool, "me", &records, &[]).await.unwrap(), 1);
        assert_eq!(outbox.length(spool).await.unwrap(), 0);
        outbox.unlease(spool, "me").await.unwrap();
    }
}

#[tokio::test]
async fn records_of_each_queue_are_counted_and_found() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let options = artisand::queue::RedisQueueOptions::default();
    let whole = artisand::queue::RedisQueue::new(cluster.redis(&prefix), options);
    let spool = artisand::queue::Spool::FollowUps;
    for (queue, records) in [("a", 1), ("b", 3)] {
        let key = whole.keys().spool(spool, &name(queue));
        for record in 0..records {
            let record = format!("{queue}{record}");
            cluster.query::<i64>(&[b"RPUSH", key.as_bytes(), record.as_bytes()]);
        }
    }
    assert_eq!(whole.length(spool).await.unwrap(), 0);
    let mut found = whole.find_parts().await.unwrap();
    found.sort();
    assert_eq!(found, [name("a"), name("b")]);
    let mut noted = whole.note_parts(&found).await.unwrap();
    noted.sort();
    assert_eq!(noted, found);
    assert_eq!(whole.length(spool).await.unwrap(), 4);
    let mut all = Vec::new();
    for from in 0..4 {
        all.extend(whole.read(spool, from, 1).await.unwrap());
    }
    all.sort();
    assert_eq!(
        all,
        ["a0", "b0", "b1", "b2"].map(|record| record.as_bytes().to_vec())
    );
    assert_eq!(whole.read(spool, 0, 9).await.unwrap().len(), 4);
    let part = whole.part(&name("b")).unwrap();
    assert_eq!(part.length(spool).await.unwrap(), 3);
}

/// All keys are in one slot then. The lease of the records is no list of a queue.
#[tokio::test]
async fn a_prefix_with_a_tag_has_one_list_of_records() {
    let cluster = Cluster::shared();
    let prefix = format!("{{{}}}", Cluster::own_prefix());
    let options = artisand::queue::RedisQueueOptions::default();
    let whole = artisand::queue::RedisQueue::new(cluster.redis(&prefix), options);
    let key = whole.keys().spool(Spool::FollowUps, &name("a"));
    cluster.query::<i64>(&[b"RPUSH", key.as_bytes(), b"record"]);
    assert!(whole.lease(Spool::FollowUps, "me", PATIENCE).await.unwrap());
    assert_eq!(whole.find_parts().await.unwrap(), []);
    assert_eq!(whole.note_parts(&[name("lease")]).await.unwrap(), []);
    assert_eq!(whole.length(Spool::FollowUps).await.unwrap(), 1);
    assert_eq!(whole.read(Spool::FollowUps, 0, 9).await.unwrap().len(), 1);
}

/// A directory with an `artisand.toml` for queues on the shared cluster.
fn settings(prefix: &str, laravel: &str, rest: &str) -> tempfile::TempDir {
    let directory = tempfile::tempdir().unwrap();
    let RedisAddress::Cluster { seeds, .. } = Cluster::shared().options(prefix).address else {
        unreachable!();
    };
    let seeds: Vec<_> = seeds
        .iter()
        .map(|seed| format!("{:?}", seed.to_string()))
        .collect();
    let text = format!(
        "laravel = {laravel:?}\n[connections.redis]\ncluster = [{}]\nprefix = \"{prefix}\"\n{rest}",
        seeds.join(", ")
    );
    std::fs::write(directory.path().join("artisand.toml"), text).unwrap();
    directory
}

/// In one step the job leaves its queue and a record is left; then it is pushed where it goes.
#[test]
fn jobs_are_forwarded_to_a_queue_in_another_slot() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let directory = settings(
        &prefix,
        "13.5",
        "[unmapped]\npolicy = \"forward\"\nqueue = \"b\"\n",
    );
    let keys = ["a", "b"].map(|queue| format!("{prefix}queues:{{{queue}}}"));
    assert_ne!(cluster.slot(&keys[0]), cluster.slot(&keys[1]));
    for number in 0..50 {
        let payload = payload(number);
        cluster.query::<i64>(&[b"RPUSH", keys[0].as_bytes(), &payload]);
    }
    let mut command = artisand(&[
        "queue:work",
        "--queue=a",
        "--stop-when-empty",
        "--concurrency=8",
    ]);
    let output = command.current_dir(directory.path()).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    eventually("all jobs are there", PATIENCE, || {
        let there: usize = cluster.query(&[b"LLEN", keys[1].as_bytes()]);
        (there == 50).then_some(())
    });
    let mut there: Vec<Vec<u8>> = cluster.query(&[b"LRANGE", keys[1].as_bytes(), b"0", b"-1"]);
    there.sort();
    let mut expected: Vec<_> = (0..50).map(payload).collect();
    expected.sort();
    assert_eq!(there, expected);
    let left = cluster.keys(&format!("{prefix}*"));
    let is_work = |key: &&String| key.contains("follow-ups") || key.contains("reserved");
    assert_eq!(left.iter().find(is_work), None);
}

#[test]
fn queues_without_a_tag_are_refused_where_laravel_gives_them_none() {
    let directory = settings(&Cluster::own_prefix(), "10.48", "");
    let run = |queue: &str| {
        let queue = format!("--queue={queue}");
        let mut command = artisand(&["queue:work", &queue, "--stop-when-empty"]);
        command.current_dir(directory.path()).output().unwrap()
    };
    let refused = run("mail");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success(), "{said}");
    assert!(
        said.contains("call the queue `{mail}` in the app and here"),
        "{said}"
    );
    let works = run("{mail}");
    assert!(works.status.success(), "{works:?}");
}

#[tokio::test]
async fn queues_are_apart_if_no_pop_of_one_touches_the_other() {
    let (cluster, prefix) = (Cluster::shared(), Cluster::own_prefix());
    let queue = cluster.queue(&prefix);
    assert!(queue.are_apart(&name("mail"), &name("feed")));
    assert!(!queue.are_apart(&name("mail"), &name("mail")));
    // Two names of the same keys.
    assert!(!queue.are_apart(&name("mail"), &name("{mail}")));
}
