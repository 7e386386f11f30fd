//! Ends of jobs, noted in a ledger before the server deletes them.

use artisand::queue::{ConnectionName, Effect, InOrder, MemoryQueue, Spool};

use super::*;

fn put_off(_: &ConnectionName, push: &Push) -> Effect {
    Effect::Append(Spool::FollowUps, push.payload.clone())
}

pub(super) fn in_order(queue: SqsQueue, ledger: &Arc<MemoryQueue>) -> InOrder {
    let ledger = Arc::clone(ledger) as Arc<dyn artisand::queue::Driver>;
    InOrder::new(
        "sqs".into(),
        Arc::new(queue),
        ledger,
        put_off,
        Clock::System,
    )
}

pub(super) fn chain() -> Settlement {
    let step = Push {
        queue: name("next"),
        payload: b"step".to_vec(),
        due: None,
        claim: None,
    };
    Settlement::Finish(vec![Effect::Push(step)])
}

#[tokio::test]
async fn a_job_whose_deletion_is_lost_is_deleted_and_not_run_again() {
    let server = Sqs::start();
    let ledger = Arc::new(MemoryQueue::new(None));
    let queue = in_order(queue_of(&server, None), &ledger);
    push(&queue_of(&server, None), "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    server.deny("DeleteMessageBatch");
    let unsettled = queue
        .settle(&[(Arc::clone(&job), chain())])
        .await
        .unwrap_err();
    assert_eq!(unsettled.settled, [None]);
    assert_eq!(ledger.spool(Spool::FollowUps), [b"step".to_vec()]);
    // It is delivered again, to another worker, which deletes it.
    server.allow("DeleteMessageBatch");
    server.deliver_again("q");
    let other = in_order(queue_of(&server, None), &ledger);
    assert!(take(&other, "q", 1).await.is_empty());
    assert_eq!(ledger.spool(Spool::FollowUps).len(), 1);
    // The first worker tries again: its job is not lost, it has ended.
    assert_eq!(
        queue.settle(&[(job, chain())]).await.unwrap(),
        [Settled::Done]
    );
    assert_eq!(ledger.spool(Spool::FollowUps).len(), 1);
}

/// The server takes a late deletion and does nothing: the other delivery is deleted and not run.
#[tokio::test]
async fn a_job_that_ended_after_its_reservation_is_not_run_again() {
    let server = Sqs::start();
    let ledger = Arc::new(MemoryQueue::new(None));
    let queue = in_order(queue_of(&server, Some(1)), &ledger);
    push(&queue_of(&server, None), "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    // Time itself is the subject: the reservation ends.
    sleep(Duration::from_millis(1100)).await;
    let thief = queue_of(&server, Some(4));
    assert_eq!(take(&thief, "q", 1).await.len(), 1);
    let settled = queue.settle(&[(job, Settlement::Delete)]).await.unwrap();
    assert_eq!(settled, [Settled::Gone]);
    assert_eq!(sizes(&thief, "q").await.reserved, 1, "the server kept it");
    // Time itself is the subject: the reservation ends.
    sleep(Duration::from_millis(4100)).await;
    let third = in_order(queue_of(&server, None), &ledger);
    assert!(take(&third, "q", 1).await.is_empty());
    assert_eq!(sizes(&thief, "q").await, Sizes::default());
}

/// What another worker has is its to end.
#[tokio::test]
async fn nothing_follows_from_a_job_whose_reservation_is_gone() {
    let server = Sqs::start();
    let ledger = Arc::new(MemoryQueue::new(None));
    let queue = in_order(queue_of(&server, Some(1)), &ledger);
    push(&queue_of(&server, None), "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    // Time itself is the subject: the reservation ends.
    sleep(Duration::from_millis(1100)).await;
    let settled = queue.settle(&[(job, chain())]).await.unwrap();
    assert_eq!(settled, [Settled::Gone]);
    assert_eq!(ledger.spool(Spool::FollowUps), Vec::<Vec<u8>>::new());
}

#[tokio::test]
async fn a_job_that_did_not_get_to_its_quarantine_is_not_deleted_when_it_comes_again() {
    let server = Sqs::start();
    let ledger = Arc::new(MemoryQueue::new(None));
    let queue = in_order(queue_of(&server, None), &ledger);
    push(&queue_of(&server, None), "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    let unlock = Effect::Append(Spool::FollowUps, b"unlock".to_vec());
    let quarantine = Settlement::Finish(vec![Effect::Quarantine, unlock]);
    server.deny("ChangeMessageVisibilityBatch");
    let unsettled = queue
        .settle(&[(job, quarantine.clone())])
        .await
        .unwrap_err();
    assert_eq!(unsettled.settled, [None]);
    server.allow("ChangeMessageVisibilityBatch");
    server.deliver_again("q");
    let other = in_order(queue_of(&server, None), &ledger);
    let again = take(&other, "q", 1).await.remove(0);
    let settled = other.settle(&[(again, quarantine)]).await.unwrap();
    assert_eq!(settled, [Settled::Done]);
    assert_eq!(server.messages("q").len(), 1);
    // Its lock is freed once.
    assert_eq!(ledger.spool(Spool::FollowUps), [b"unlock".to_vec()]);
}
