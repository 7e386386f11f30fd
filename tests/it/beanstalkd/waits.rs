//! Idle workers wait for jobs on the server.

use std::time::{Duration, Instant};

use artisand::queue::{BeanstalkdQueue, Queue as _, QueueName, Settled, Settlement, Sizes};

use super::{connections_wait, in_seconds, pending, push, queue_of, take, take_one};
use crate::contract::{ids, name, payload, pop, settle, sizes};
use crate::harness::beanstalkd::Beanstalkd;

/// Waits until no connection waits for a job; a wait that began then would have gone on for ten seconds.
pub(super) async fn wait_ends_early(server: &Beanstalkd, began: Instant) {
    connections_wait(server, 0).await;
    assert!(
        began.elapsed() < Duration::from_secs(8),
        "it ended by itself"
    );
}

async fn wait(queue: &BeanstalkdQueue, queues: &[&str], seconds: u64) -> Option<QueueName> {
    let queues: Vec<QueueName> = queues.iter().map(|queue| name(queue)).collect();
    let timeout = Duration::from_secs(seconds);
    queue.wait_for_push(&queues, timeout).await.unwrap()
}

#[tokio::test]
async fn a_job_that_was_waited_for_comes_with_the_next_pop_and_its_attempt_is_the_first() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    assert!(take(&queue, "q", 1).await.is_empty());
    // Delayed jobs end the wait, too.
    let q = name("q");
    queue.later(&q, in_seconds(1), &payload(1)).await.unwrap();
    assert_eq!(wait(&queue, &["q"], 10).await, Some(name("q")));
    // It waits for the pop: another wait says so at once, and reserves nothing.
    push(&queue, "q", &[2]).await;
    assert_eq!(wait(&queue, &["q"], 10).await, Some(name("q")));
    assert_eq!(sizes(&queue, "q").await.reserved, 1);
    let popped = pop(&queue, &["q"], 9, 0).await;
    assert_eq!(ids(&popped), ["i1", "i2"]);
    assert!(popped.jobs.iter().all(|job| job.attempts == 1));
    for job in &popped.jobs {
        assert_eq!(settle(&queue, job, Settlement::Delete).await, Settled::Done);
    }
    // The connection that waited holds nothing now, and waits again.
    assert_eq!(wait(&queue, &["q"], 1).await, None);
    push(&queue, "q", &[3]).await;
    assert_eq!(wait(&queue, &["q"], 10).await, Some(name("q")));
}

#[tokio::test]
async fn a_worker_that_is_full_or_pauses_a_queue_takes_no_job_by_waiting() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    push(&queue, "q", &[1, 2]).await;
    let job = take_one(&queue, "q").await;
    // The pop had room for one job, and found it.
    assert_eq!(wait(&queue, &["q"], 1).await, None);
    // A pop without room for the paused queue.
    assert!(pop(&queue, &["other"], 1, 0).await.jobs.is_empty());
    assert_eq!(wait(&queue, &["q", "other"], 1).await, None);
    let left = Sizes {
        pending: 1,
        reserved: 1,
        ..Sizes::default()
    };
    assert_eq!(sizes(&queue, "q").await, left);
    // A wait that is under way stops when a pop finds enough.
    settle(&queue, &job, Settlement::Delete).await;
    settle(&queue, &take_one(&queue, "q").await, Settlement::Delete).await;
    assert!(take(&queue, "q", 1).await.is_empty());
    let began = Instant::now();
    let waiting = async {
        let waited = wait(&queue, &["q"], 10).await;
        (waited, sizes(&queue, "p").await)
    };
    let full = async {
        connections_wait(&server, 1).await;
        push(&queue, "p", &[3, 4]).await;
        assert_eq!(take(&queue, "p", 1).await.len(), 1);
        wait_ends_early(&server, began).await;
        push(&queue, "q", &[5]).await;
    };
    let ((waited, _), ()) = tokio::join!(waiting, full);
    assert_eq!(waited, None);
    assert_eq!(sizes(&queue, "q").await, pending(1));
}

#[tokio::test]
async fn a_wait_that_was_given_up_takes_nothing() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let began = Instant::now();
    tokio::select! {
        found = wait(&queue, &["q"], 10) => panic!("there is no job: {found:?}"),
        () = connections_wait(&server, 1) => {}
    }
    wait_ends_early(&server, began).await;
    push(&queue, "q", &[1]).await;
    assert_eq!(sizes(&queue, "q").await, pending(1));
    assert_eq!(take_one(&queue, "q").await.attempts, 1);
}

/// Each job that was waited for keeps its connection from waiting again.
#[tokio::test]
async fn a_worker_with_many_long_jobs_still_waits_for_the_next() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let mut held = Vec::new();
    for number in 0..40 {
        // Room for more.
        assert!(take(&queue, "q", 50).await.is_empty());
        push(&queue, "q", &[number]).await;
        assert_eq!(wait(&queue, &["q"], 10).await, Some(name("q")));
        held.extend(take(&queue, "q", 50).await);
    }
    assert_eq!(sizes(&queue, "q").await.reserved, 40);
    assert!(held.iter().all(|job| job.attempts == 1));
    for job in &held {
        let settled = settle(&queue, job, Settlement::Delete).await;
        assert_eq!(settled, Settled::Done);
    }
}

/// A job that a stopping worker took would have spent an attempt: by default its only one.
#[tokio::test]
async fn a_wait_ends_with_the_worker() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    assert!(take(&queue, "q", 1).await.is_empty());
    let began = Instant::now();
    let ending = async {
        connections_wait(&server, 1).await;
        assert!(!queue.end_waits().await.unwrap());
        wait_ends_early(&server, began).await;
        push(&queue, "q", &[1]).await;
    };
    let (waited, ()) = tokio::join!(wait(&queue, &["q"], 10), ending);
    assert_eq!(waited, None);
    assert!(take(&queue, "q", 1).await.is_empty(), "it takes no more");
    assert_eq!(sizes(&queue, "q").await, pending(1));
    // What a wait took before is there for a last pop.
    let queue = queue_of(&server, 90);
    assert!(take(&queue, "p", 1).await.is_empty());
    push(&queue, "p", &[2, 3]).await;
    assert_eq!(wait(&queue, &["p"], 10).await, Some(name("p")));
    assert!(queue.end_waits().await.unwrap());
    assert_eq!(take_one(&queue, "p").await.attempts, 1);
    assert!(!queue.end_waits().await.unwrap());
    assert!(take(&queue, "p", 1).await.is_empty());
}
