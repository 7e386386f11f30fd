//! Payloads that are too long for a message.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use artisand::queue::{Answer, MemoryQueue, Overflow, PayloadStore, StoreProblem};

use super::ends::{chain, in_order};
use super::*;

/// A cache store in memory.
#[derive(Debug, Default)]
struct Store {
    payloads: Mutex<BTreeMap<String, String>>,
    is_away: AtomicBool,
    /// How long it takes to read a payload.
    takes: Duration,
}

impl Store {
    fn look(&self) -> Result<std::sync::MutexGuard<'_, BTreeMap<String, String>>, StoreProblem> {
        if self.is_away.load(Ordering::Relaxed) {
            return Err("the store is away".into());
        }
        Ok(self.payloads.lock().unwrap())
    }
}

impl PayloadStore for Store {
    fn get<'a>(&'a self, key: &'a str) -> Answer<'a, Option<String>, StoreProblem> {
        Box::pin(async move {
            sleep(self.takes).await;
            Ok(self.look()?.get(key).cloned())
        })
    }

    fn put<'a>(&'a self, key: &'a str, payload: &'a str) -> Answer<'a, (), StoreProblem> {
        Box::pin(async move {
            self.look()?.insert(key.to_owned(), payload.to_owned());
            Ok(())
        })
    }

    fn forget<'a>(&'a self, key: &'a str) -> Answer<'a, (), StoreProblem> {
        Box::pin(async move {
            self.look()?.remove(key);
            Ok(())
        })
    }
}

fn with_store(server: &Sqs, store: &Arc<Store>, always: bool) -> SqsQueue {
    SqsQueue::new(SqsOptions {
        overflow: Some(Overflow {
            name: "store".into(),
            store: Arc::clone(store) as Arc<dyn PayloadStore>,
            always,
            deletes: true,
        }),
        ..options(server)
    })
}

#[tokio::test]
async fn long_payloads_are_kept_in_the_cache_store_and_leave_with_their_message() {
    let server = Sqs::start();
    let store = Arc::<Store>::default();
    let queue = with_store(&server, &store, false);
    let long = json!({"uuid": "u1", "job": "A@run", "data": "x".repeat(1 << 20)});
    let long = long.to_string().into_bytes();
    queue
        .push(&name("q"), &[long.clone(), payload(1)])
        .await
        .unwrap();
    let bodies: Vec<String> = server
        .messages("q")
        .into_iter()
        .map(|(body, _)| body)
        .collect();
    let pointer = r#"{"@pointer":"laravel:sqs-payloads:"#;
    assert!(bodies[0].starts_with(pointer), "{}", bodies[0]);
    assert_eq!(bodies[1].as_bytes(), payload(1));
    let jobs = take(&queue, "q", 2).await;
    assert!(*jobs[0].payload == *long && *jobs[1].payload == *payload(1));
    settle_all(&queue, &jobs, &Settlement::Delete).await;
    assert!(store.payloads.lock().unwrap().is_empty());
    // An app that keeps all payloads there.
    let always = with_store(&server, &store, true);
    always.push(&name("q"), &[payload(2)]).await.unwrap();
    assert!(server.messages("q")[0].0.starts_with(pointer));
    assert_eq!(*take(&always, "q", 1).await[0].payload, *payload(2));
}

#[tokio::test]
async fn a_reservation_counts_from_before_its_payload_is_read() {
    let server = Sqs::start();
    let store = Arc::new(Store {
        // Time itself is the subject: it passes while each of the payloads is read.
        takes: Duration::from_secs(3),
        ..Store::default()
    });
    let queue = with_store(&server, &store, true);
    push(&queue, "q", [1, 2]).await;
    let began = now();
    let jobs = take(&queue, "q", 2).await;
    let leases: Vec<i64> = jobs.iter().map(|job| job.lease.unwrap().0).collect();
    assert_eq!(leases[0], leases[1], "one receipt has reserved both");
    assert!(leases[0] <= began.0 + 34, "{leases:?} after {began:?}");
}

/// A job that is forwarded or retried has a message of the same uuid twice.
#[tokio::test]
async fn a_payload_stays_when_an_earlier_message_of_its_job_is_deleted() {
    let server = Sqs::start();
    let store = Arc::<Store>::default();
    let queue = with_store(&server, &store, true);
    push(&queue, "q", [1]).await;
    let jobs = take(&queue, "q", 1).await;
    settle_all(&queue, &jobs, &Settlement::Forward(name("other"))).await;
    assert_eq!(store.payloads.lock().unwrap().len(), 1);
    let forwarded = take(&queue, "other", 1).await;
    assert_eq!(*forwarded[0].payload, *payload(1));
    push(&queue, "q", [1]).await;
    settle_all(&queue, &forwarded, &Settlement::Delete).await;
    let jobs = take(&queue, "q", 1).await;
    assert_eq!(*jobs[0].payload, *payload(1));
    settle_all(&queue, &jobs, &Settlement::Delete).await;
    assert!(store.payloads.lock().unwrap().is_empty());
}

/// PHP names a payload by the uuid of its job, and stores it anew when the job, which has failed, is retried.
#[tokio::test]
async fn a_payload_stays_when_the_deletion_of_its_message_is_repeated() {
    let server = Sqs::start();
    let store = Arc::<Store>::default();
    let queue = with_store(&server, &store, true);
    push(&queue, "q", [1]).await;
    let rows = [(take(&queue, "q", 1).await.remove(0), Settlement::Delete)];
    server.deny("DeleteMessageBatch");
    let unsettled = queue.settle(&rows).await.unwrap_err();
    assert_eq!(unsettled.settled, [None]);
    server.allow("DeleteMessageBatch");
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Done]);
    assert_eq!(store.payloads.lock().unwrap().len(), 1);
    // The same by another worker, which finds the note of the end.
    push(&queue, "q", [2]).await;
    let ledger = Arc::new(MemoryQueue::new(None));
    let first = in_order(with_store(&server, &store, true), &ledger);
    let rows = [(take(&first, "q", 1).await.remove(0), chain())];
    server.deny("DeleteMessageBatch");
    let unsettled = first.settle(&rows).await.unwrap_err();
    assert_eq!(unsettled.settled, [None]);
    server.allow("DeleteMessageBatch");
    server.deliver_again("q");
    let other = in_order(with_store(&server, &store, true), &ledger);
    assert!(take(&other, "q", 1).await.is_empty());
    assert!(server.messages("q").is_empty());
    assert_eq!(store.payloads.lock().unwrap().len(), 2);
}

#[tokio::test]
async fn a_store_that_is_away_costs_one_attempt_and_loses_nothing() {
    let server = Sqs::start();
    server.set_visibility(1);
    let store = Arc::<Store>::default();
    let queue = SqsQueue::new(SqsOptions {
        retry_after: Some(Duration::from_secs(1)),
        overflow: Some(Overflow {
            name: "store".into(),
            store: Arc::clone(&store) as Arc<dyn PayloadStore>,
            always: true,
            deletes: true,
        }),
        ..options(&server)
    });
    push(&queue, "q", [1]).await;
    store.is_away.store(true, Ordering::Relaxed);
    let queues = [name("q")];
    for _ in 0..3 {
        let request = PopRequest {
            queues: &queues,
            max: NonZeroUsize::MIN,
            now: now(),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let error = queue.pop(request).await.unwrap_err();
        assert!(matches!(error, Error::Overflow { .. }), "{error:?}");
    }
    assert_eq!(server.requests("ReceiveMessage"), 1);
    let error = queue.push(&name("q"), &[payload(2)]).await.unwrap_err();
    assert!(!error.is_of_unknown_outcome(), "nothing is sent: {error:?}");
    store.is_away.store(false, Ordering::Relaxed);
    // Time itself is the subject: the reservation ends.
    sleep(Duration::from_millis(1100)).await;
    let jobs = take(&queue, "q", 1).await;
    assert_eq!((&*jobs[0].payload, jobs[0].attempts), (&*payload(1), 2));
}
