//! What an idle worker costs, and that no message is received in vain.

use super::*;

/// Waits as a worker does, and pops what a wait has found.
async fn wait_and_take(queue: &SqsQueue, of: &[&str], max: usize) -> Vec<ReservedJob> {
    let queues: Vec<QueueName> = of.iter().copied().map(name).collect();
    let deadline = Instant::now() + PATIENCE;
    while queue
        .wait_for_push(&queues, Duration::from_secs(1))
        .await
        .unwrap()
        .is_none()
    {
        assert!(Instant::now() < deadline, "no job");
    }
    pop(queue, of, max, 0).await.jobs
}

#[tokio::test]
async fn a_caller_that_goes_away_has_a_queue_looked_at_thoroughly() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    server.lie(2);
    // Others look again.
    assert!(take(&queue, "q", 1).await.is_empty());
    let queues = [name("q")];
    let request = || PopRequest {
        queues: &queues,
        max: NonZeroUsize::MIN,
        now: now(),
        woken: &[],
        selection: None,
        thorough: true,
    };
    let popped = queue.pop(request()).await.unwrap();
    assert_eq!(server.requests("ReceiveMessage"), 3);
    assert_eq!(popped.jobs.len(), 1);
    // Empty for sure.
    assert!(queue.pop(request()).await.unwrap().jobs.is_empty());
}

#[tokio::test]
async fn an_idle_worker_asks_once_per_poll() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    assert!(take(&queue, "q", 4).await.is_empty());
    let before = server.requests("ReceiveMessage");
    let queues = [name("q")];
    let waited = queue.wait_for_push(&queues, Duration::from_secs(11)).await;
    assert_eq!(waited.unwrap(), None);
    // Pops beside a poll find what the poll would.
    assert!(take(&queue, "q", 4).await.is_empty());
    let polls = server.requests("ReceiveMessage") - before;
    assert!((2..=3).contains(&polls), "{polls} requests in 11 s");
}

#[tokio::test]
async fn what_a_poll_has_found_is_run_and_takes_no_more_than_there_is_room_for() {
    let server = Sqs::start();
    let queue = Arc::new(queue_of(&server, None));
    assert!(take(&*queue, "a", 1).await.is_empty());
    let of = ["a", "b", "c"];
    assert!(pop(&*queue, &of, 2, 0).await.jobs.is_empty());
    let waiting = {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { wait_and_take(&queue, &of, 2).await })
    };
    for queue in ["a", "b"] {
        server.is_polled(queue).await;
    }
    let producer = queue_of(&server, None);
    for queue in of {
        push(&producer, queue, 0..5).await;
    }
    let jobs = waiting.await.unwrap();
    assert!((1..=2).contains(&jobs.len()), "{}", jobs.len());
    assert!(jobs.iter().all(|job| job.attempts == 1));
    let hidden = async {
        let mut hidden = 0;
        for queue in of {
            hidden += sizes(&producer, queue).await.reserved;
        }
        hidden
    };
    assert!(hidden.await <= 2, "no more are reserved than can run");
}

/// The worker stops while its polls wait: what they bring is there for a last pop, and nothing comes after that.
#[tokio::test]
async fn polls_end_with_the_worker() {
    let server = Sqs::start();
    let queue = Arc::new(queue_of(&server, None));
    assert!(take(&*queue, "q", 1).await.is_empty());
    let queues = [name("q")];
    assert_eq!(
        queue
            .wait_for_push(&queues, Duration::from_millis(100))
            .await
            .unwrap(),
        None
    );
    let ends = {
        let queue = Arc::clone(&queue);
        tokio::spawn(async move { queue.end_waits().await.unwrap() })
    };
    let producer = queue_of(&server, None);
    push(&producer, "q", [1, 2]).await;
    assert!(ends.await.unwrap());
    let jobs = take(&*queue, "q", 1).await;
    assert_eq!((jobs.len(), jobs[0].attempts), (1, 1));
    assert!(take(&*queue, "q", 1).await.is_empty(), "it takes no more");
    assert!(!queue.end_waits().await.unwrap());
    assert_eq!(sizes(&producer, "q").await.pending, 1);
}

/// A worker that is paused does not pop what its poll has found.
#[tokio::test]
async fn what_is_found_stays_reserved_until_it_is_popped() {
    let server = Sqs::start();
    let queue = queue_of(&server, Some(5));
    assert!(take(&queue, "q", 1).await.is_empty());
    let queues = [name("q")];
    let producer = queue_of(&server, None);
    push(&producer, "q", [1]).await;
    let found = queue.wait_for_push(&queues, PATIENCE).await.unwrap();
    assert_eq!(found, Some(name("q")));
    // Time itself is the subject: the reservation would have ended.
    sleep(Duration::from_secs(11)).await;
    assert!(take(&producer, "q", 1).await.is_empty());
    let jobs = take(&queue, "q", 1).await;
    assert_eq!((jobs.len(), jobs[0].attempts), (1, 1));
    assert_eq!(
        settle_all(&queue, &jobs, &Settlement::Delete).await,
        [Settled::Done]
    );
}
