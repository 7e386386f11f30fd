//! The SQS driver, beside a server that does what the real one may do.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use artisand::connection::LockPlace;
use artisand::queue::{
    Ability, Error, Held, Ledger, Once, PopRequest, Push, PushedOnce, Queue, QueueName,
    QueueRefusal, ReservedJob, Settled, Settlement, Sizes, SqsKey, SqsOptions, SqsQueue,
};
use artisand::time::{Clock, UnixSeconds};
use serde_json::json;
use tokio::time::{Instant, sleep};

use crate::contract::{self, Subject, name, payload, pop, sizes};
use crate::harness::sqs::Sqs;

mod ends;
mod overflow;
mod polls;
mod renewals;
mod worker;

/// Tests do not wait for longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

impl Subject for SqsQueue {
    fn lock(&self, _queue: &str, key: &str) -> LockPlace {
        LockPlace::Memory { key: key.into() }
    }

    fn ledger(&self) -> &dyn Ledger {
        unreachable!("SQS keeps no lists of artisand's own")
    }
}

fn options(server: &Sqs) -> SqsOptions {
    SqsOptions {
        key: Some(SqsKey {
            id: "test".into(),
            secret: "test".into(),
            token: None,
        }),
        region: Some("us-east-1".into()),
        prefix: server.prefix(),
        ..SqsOptions::default()
    }
}

fn queue_of(server: &Sqs, retry_after: Option<u64>) -> SqsQueue {
    SqsQueue::new(SqsOptions {
        retry_after: retry_after.map(Duration::from_secs),
        ..options(server)
    })
}

fn now() -> UnixSeconds {
    Clock::System.now()
}

fn in_seconds(seconds: u64) -> UnixSeconds {
    now().plus(Duration::from_secs(seconds))
}

async fn take(queue: &dyn Queue, of: &str, max: usize) -> Vec<Arc<ReservedJob>> {
    let jobs = pop(queue, &[of], max, 0).await.jobs;
    jobs.into_iter().map(Arc::new).collect()
}

async fn push(queue: &SqsQueue, to: &str, numbers: impl IntoIterator<Item = u32>) {
    let payloads: Vec<Vec<u8>> = numbers.into_iter().map(payload).collect();
    queue.push(&name(to), &payloads).await.unwrap();
}

async fn settle_all(
    queue: &dyn Queue,
    jobs: &[Arc<ReservedJob>],
    way: &Settlement,
) -> Vec<Settled> {
    let rows: Vec<_> = jobs
        .iter()
        .map(|job| (Arc::clone(job), way.clone()))
        .collect();
    queue.settle(&rows).await.unwrap()
}

fn refusal(error: &Error) -> &QueueRefusal {
    match error {
        Error::Refused { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

macro_rules! clauses {
    ($($clause:ident)*) => {
        $(#[tokio::test]
        async fn $clause() {
            let server = Sqs::start();
            contract::$clause(queue_of(&server, None)).await;
        })*

        /// Clauses of the contract that hold as they are.
        const KEPT: &[&str] = &[$(stringify!($clause)),*];
    };
}

clauses! {
    jobs_come_in_the_order_they_were_pushed
    earlier_queues_are_drained_before_later_ones
    a_push_wakes_a_waiting_worker
}

/// Other clauses that need nothing that this driver lacks, and why they cannot hold word for word. Tests here with
/// names of their own say what holds instead.
const OTHERWISE: &[&str] = &[
    // The server has the clock, and counts attempts.
    "popping_counts_an_attempt_and_reserves_until_retry_after",
    "released_jobs_come_back_when_due",
    "a_job_left_reserved_comes_back_when_its_reservation_ends",
    // They are kept in the ledger of the ends of jobs, on another server.
    "heartbeats_are_kept_until_they_end_or_not_at_all",
];

#[test]
fn every_clause_of_the_contract_is_kept_or_its_reason_is_said() {
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let _inside = runtime.enter();
    let queue = SqsQueue::new(SqsOptions::default());
    for (clause, needs) in contract::NEEDS {
        let can = needs.iter().all(|ability| queue.abilities().has(*ability));
        let is_otherwise = OTHERWISE.contains(clause);
        let is_kept = KEPT.contains(clause);
        assert_eq!(can, is_kept || is_otherwise, "{clause}");
        assert!(!(is_kept && is_otherwise), "{clause}");
    }
}

#[tokio::test]
async fn requests_carry_ten_jobs_and_a_megabyte() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", 0..25).await;
    assert_eq!(server.requests("SendMessageBatch"), 3);
    let jobs = take(&queue, "q", 25).await;
    assert_eq!(jobs.len(), 25);
    // The first receipt is full; then two at once, of ten and five.
    assert_eq!(server.requests("ReceiveMessage"), 3);
    assert_eq!(
        settle_all(&queue, &jobs, &Settlement::Delete).await,
        vec![Settled::Done; 25]
    );
    assert_eq!(server.requests("DeleteMessageBatch"), 3);
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
    // A batch has a megabyte, whatever it is made of.
    let long = |count: usize| vec![b'x'; count];
    let payloads = [long(600_000), long(600_000), long(400_000)];
    queue.push(&name("q"), &payloads).await.unwrap();
    assert_eq!(server.requests("SendMessageBatch"), 5);
    let error = queue
        .push(&name("q"), &[long((1 << 20) + 1)])
        .await
        .unwrap_err();
    assert!(error.is_wrong_kind(), "it is never taken: {error:?}");
    let text = refusal(&error).to_string();
    assert!(text.contains("BatchRequestTooLong"), "{text}");
    // Of several, some are there by then.
    assert!(!error.is_of_unknown_outcome());
    let mut payloads = vec![payload(1); 10];
    payloads.push(long((1 << 20) + 1));
    let error = queue.push(&name("q"), &payloads).await.unwrap_err();
    assert!(error.is_of_unknown_outcome(), "{error:?}");
}

#[tokio::test]
async fn attempts_are_those_of_the_server_and_reservations_end() {
    let server = Sqs::start();
    let queue = queue_of(&server, Some(3));
    push(&queue, "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    assert_eq!((job.attempts, &*job.payload), (1, &*payload(1)));
    let delivery = job.delivery.clone().unwrap();
    assert_eq!(delivery.id, "message-1");
    assert!(take(&queue, "q", 1).await.is_empty());
    assert_eq!(sizes(&queue, "q").await.reserved, 1);
    // Time itself is the subject: the reservation ends.
    sleep(Duration::from_millis(3100)).await;
    let other = queue_of(&server, Some(30));
    let again = take(&other, "q", 1).await.remove(0);
    assert_eq!(again.attempts, 2);
    // Nothing of the first worker reaches the job.
    let held = queue
        .renew(std::slice::from_ref(&job), now())
        .await
        .unwrap();
    assert_eq!(held, [Held::Lost]);
    let release = Settlement::Release(in_seconds(0));
    let first = std::slice::from_ref(&job);
    assert_eq!(settle_all(&queue, first, &release).await, [Settled::Gone]);
    assert_eq!(
        settle_all(&queue, first, &Settlement::Delete).await,
        [Settled::Gone]
    );
    let second = std::slice::from_ref(&again);
    assert_eq!(
        settle_all(&other, second, &Settlement::PutBack).await,
        [Settled::Done]
    );
    let third = take(&other, "q", 1).await.remove(0);
    assert_eq!(third.attempts, 3, "the server counts");
    let until = Settlement::Release(in_seconds(4));
    settle_all(&other, std::slice::from_ref(&third), &until).await;
    assert!(take(&other, "q", 1).await.is_empty());
    // Time itself is the subject: the job becomes due.
    sleep(Duration::from_millis(4100)).await;
    assert_eq!(take(&other, "q", 1).await[0].attempts, 4);
}

#[tokio::test]
async fn a_reservation_is_the_queues_own_and_no_shorter_than_renewals_need() {
    for (own, told, expected) in [(900, None, 900), (5, None, 30), (900, Some(20), 20)] {
        let server = Sqs::start();
        server.set_visibility(own);
        let queue = queue_of(&server, told);
        push(&queue, "q", [1]).await;
        let job = take(&queue, "q", 1).await.remove(0);
        let left = job.lease.unwrap().0 - now().0;
        assert!(
            (expected - 3..=expected).contains(&left),
            "{own} {told:?}: {left}"
        );
        // Of a long one, little has passed: nothing is asked.
        let held = queue.renew(&[job], now()).await.unwrap();
        assert!(matches!(held[..], [Held::Until(_)]));
        assert_eq!(server.requests("ChangeMessageVisibilityBatch"), 0);
    }
}

#[tokio::test]
async fn a_key_that_may_not_ask_reserves_for_half_a_minute() {
    let server = Sqs::start();
    server.set_visibility(900);
    server.deny("GetQueueAttributes");
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    assert!((27..=30).contains(&(job.lease.unwrap().0 - now().0)));
    let error = queue.sizes(&name("q")).await.unwrap_err();
    let text = refusal(&error).to_string();
    assert_eq!(
        text,
        "SQS answered GetQueueAttributes with AccessDenied: the key is not allowed to do this"
    );
    assert!(!error.is_wrong_kind(), "it may be allowed later");
}

#[tokio::test]
async fn a_renewed_reservation_outlives_its_first_time() {
    let server = Sqs::start();
    let queue = queue_of(&server, Some(6));
    push(&queue, "q", [1]).await;
    let jobs = take(&queue, "q", 1).await;
    for _ in 0..4 {
        // Time itself is the subject: a part of the reservation passes.
        sleep(Duration::from_millis(2400)).await;
        let held = queue.renew(&jobs, now()).await.unwrap();
        assert!(matches!(held[..], [Held::Until(_)]), "{held:?}");
    }
    let renewals = server.requests("ChangeMessageVisibilityBatch");
    assert!((2..=4).contains(&renewals), "{renewals}");
    assert_eq!(
        settle_all(&queue, &jobs, &Settlement::Delete).await,
        [Settled::Done]
    );
}

#[tokio::test]
async fn messages_of_a_group_keep_their_order_and_come_one_at_a_time() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    let of = |n: u32, group: &str| {
        let command = format!(
            "O:5:\"A\\Job\":1:{{s:12:\"messageGroup\";s:{}:\"{group}\";}}",
            group.len()
        );
        json!({"uuid": n.to_string(), "job": "Illuminate\\Queue\\CallQueuedHandler@call",
            "data": {"commandName": "A\\Job", "command": command}, "n": n})
        .to_string()
        .into_bytes()
    };
    let payloads = [of(1, "a"), of(2, "a"), of(3, "b"), payload(4)];
    queue.push(&name("q.fifo"), &payloads).await.unwrap();
    let groups: Vec<_> = server
        .messages("q.fifo")
        .into_iter()
        .map(|(_, group)| group.unwrap())
        .collect();
    assert_eq!(groups, ["a", "a", "b", "q.fifo"]);
    let jobs = take(&queue, "q.fifo", 10).await;
    let numbers = |jobs: &[Arc<ReservedJob>]| -> Vec<u64> {
        let number = |job: &Arc<ReservedJob>| {
            let payload: serde_json::Value = serde_json::from_slice(&job.payload).unwrap();
            payload["n"].as_u64().unwrap_or(4)
        };
        let mut numbers: Vec<u64> = jobs.iter().map(number).collect();
        numbers.sort_unstable();
        numbers
    };
    assert_eq!(numbers(&jobs), [1, 3, 4]);
    // A delay is left out, as Laravel does; the group of a forwarded job stays.
    let first = jobs
        .iter()
        .find(|job| job.payload.ends_with(b"\"uuid\":\"1\"}"))
        .unwrap();
    let to = Settlement::Forward(name("other.fifo"));
    settle_all(&queue, std::slice::from_ref(first), &to).await;
    assert_eq!(server.messages("other.fifo")[0].1.as_deref(), Some("a"));
    assert_eq!(numbers(&take(&queue, "q.fifo", 10).await), [2]);
    let due = in_seconds(60);
    queue
        .later(&name("late.fifo"), due, &payload(5))
        .await
        .unwrap();
    assert_eq!(take(&queue, "late.fifo", 1).await.len(), 1);
}

#[tokio::test]
async fn pushes_are_repeated_only_where_the_server_knows_them_again() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    let push_to = |queue: &str| Push {
        queue: name(queue),
        payload: payload(1),
        due: None,
        claim: None,
    };
    let once = Once {
        id: "identity",
        remembered: Duration::from_secs(60),
        note: "",
    };
    for (of, expected) in [("q", 2), ("q.fifo", 1)] {
        server.lose_replies("SendMessageBatch", 1);
        let pushes = [push_to(of)];
        let error = queue.push_once(&pushes, once).await.unwrap_err();
        assert!(
            error.is_of_unknown_outcome() && error.is_lost_connection(),
            "{error:?}"
        );
        let again = queue.push_once(&pushes, once).await.unwrap();
        assert_eq!(again, PushedOnce::Now { locked: 0 });
        assert_eq!(server.messages(of).len(), expected, "{of}");
    }
    assert!(!queue.abilities().has(Ability::RemembersPushes));
}

#[tokio::test]
async fn what_the_server_never_does_is_refused_by_name() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    let q = name("q");
    let error = queue
        .later(&q, in_seconds(1000), &payload(1))
        .await
        .unwrap_err();
    assert!(error.is_wrong_kind());
    let text = refusal(&error).to_string();
    assert!(
        text.starts_with("SQS delays a message by at most 900 s, and the job is to wait for "),
        "{text}"
    );
    queue.later(&q, in_seconds(800), &payload(1)).await.unwrap();
    assert_eq!(sizes(&queue, "q").await.delayed, 1);
    let error = queue.push(&q, &[vec![0xff]]).await.unwrap_err();
    assert!(matches!(refusal(&error), QueueRefusal::NotText));
    let error = queue
        .look(&q, artisand::queue::Place::Pending, 0, 1)
        .await
        .unwrap_err();
    assert_eq!(
        refusal(&error).to_string(),
        "its server cannot show a message without delivering it"
    );
    let nowhere = SqsQueue::new(SqsOptions {
        prefix: String::new(),
        ..options(&server)
    });
    let error = nowhere.push(&q, &[payload(1)]).await.unwrap_err();
    assert!(
        refusal(&error)
            .to_string()
            .starts_with("the queue's URL would be `/q`: SQS needs a `prefix`")
    );
    let mut choose = |_: &QueueName, _: &[u8]| artisand::queue::Choice::Take(0);
    let mut heads = artisand::queue::Heads::default();
    let request = PopRequest {
        queues: std::slice::from_ref(&q),
        max: NonZeroUsize::MIN,
        now: now(),
        woken: &[],
        selection: Some(artisand::queue::Selection {
            needles: &[],
            choose: &mut choose,
            heads: &mut heads,
        }),
        thorough: false,
    };
    let error = queue.pop(request).await.unwrap_err();
    assert_eq!(
        refusal(&error).to_string(),
        "its server cannot take some jobs and leave the others"
    );
    assert_eq!(queue.clear(&q, now()).await.unwrap(), 1);
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
}

#[tokio::test]
async fn a_queue_that_is_missing_costs_the_others_nothing() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    let popped = pop(&queue, &["missing", "q"], 2, 0).await;
    assert_eq!(popped.jobs.len(), 1);
    let queues = [name("missing"), name("q")];
    let request = PopRequest {
        queues: &queues,
        max: NonZeroUsize::MIN,
        now: now(),
        woken: &[],
        selection: None,
        thorough: false,
    };
    let error = queue.pop(request).await.unwrap_err();
    assert!(refusal(&error).to_string().contains("QueueDoesNotExist"));
}

#[tokio::test]
async fn a_lost_reply_to_a_deletion_is_asked_for_again() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    let jobs = take(&queue, "q", 1).await;
    server.lose_replies("DeleteMessageBatch", 1);
    let rows = [(Arc::clone(&jobs[0]), Settlement::Delete)];
    let unsettled = queue.settle(&rows).await.unwrap_err();
    assert_eq!(unsettled.settled, [None]);
    assert!(unsettled.source.is_of_unknown_outcome());
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Done]);
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Gone]);
}

#[tokio::test]
async fn a_job_whose_deletion_fails_is_forwarded_once() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    let rows = [(job, Settlement::Forward(name("other")))];
    server.deny("DeleteMessageBatch");
    for _ in 0..3 {
        let unsettled = queue.settle(&rows).await.unwrap_err();
        assert_eq!(unsettled.settled, [None]);
    }
    server.allow("DeleteMessageBatch");
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Done]);
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
    assert_eq!(server.messages("other").len(), 1);
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Gone]);
}

#[tokio::test]
async fn a_fifo_queue_takes_a_forwarded_job_once() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    push(&queue, "q", [1]).await;
    let job = take(&queue, "q", 1).await.remove(0);
    let rows = [(job, Settlement::Forward(name("other.fifo")))];
    server.lose_replies("SendMessageBatch", 1);
    let unsettled = queue.settle(&rows).await.unwrap_err();
    assert!(unsettled.source.is_of_unknown_outcome());
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Done]);
    assert_eq!(server.messages("other.fifo").len(), 1);
}

#[tokio::test]
async fn a_payload_that_cannot_be_decoded_is_out_of_the_way_and_not_lost() {
    let server = Sqs::start();
    let queue = queue_of(&server, None);
    queue
        .push(&name("q"), &[b"no json".to_vec()])
        .await
        .unwrap();
    let jobs = take(&queue, "q", 1).await;
    assert_eq!(
        settle_all(&queue, &jobs, &Settlement::Quarantine).await,
        [Settled::Done]
    );
    assert!(take(&queue, "q", 1).await.is_empty());
    assert_eq!(sizes(&queue, "q").await.reserved, 1);
    assert_eq!(
        queue.recorded(&name("q")).as_str(),
        format!("{}/q", server.prefix())
    );
}

#[tokio::test]
async fn a_server_that_is_away_is_said_to_be() {
    let server = Sqs::start();
    let queue = SqsQueue::new(SqsOptions {
        prefix: "http://127.0.0.1:1/0".to_owned(),
        ..options(&server)
    });
    let error = queue.push(&name("q"), &[payload(1)]).await.unwrap_err();
    assert!(
        error.is_lost_connection() && !error.is_of_unknown_outcome(),
        "{error:?}"
    );
}
