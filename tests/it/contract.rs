//! What every queue must do, written once; one test per clause and driver.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use artisand::connection::{DatabaseLock, LockPlace};
use artisand::queue::{
    Ability, Choice, Claim, DatabaseQueue, Effect, Fate, Heads, Held, Ledger, MemoryQueue, Once,
    Place, PopRequest, Popped, Push, PushedOnce, Queue, QueueName, RedisQueue, RedisQueueOptions,
    ReservedJob, Selection, Settled, Settlement, Sizes, Spool, Tagging, Unlock,
};
use artisand::time::{Clock, UnixSeconds};

use crate::harness::cluster::Cluster;
use crate::harness::jobs_table::JobsTable;
use crate::harness::process::until;
use crate::harness::redis::RedisServer;
use crate::harness::stores::Kind;

const RETRY_AFTER: i64 = 90;

/// The second 0 of all clauses: columns without a sign hold no time before 1970.
const BEGIN: i64 = 1_000_000;

pub(crate) fn at(second: i64) -> UnixSeconds {
    UnixSeconds(BEGIN + second)
}

/// A driver under test.
pub(crate) trait Subject: Queue {
    /// A lock that is taken and freed in one step with the end of a job of this queue, and with pushes to it.
    fn lock(&self, queue: &str, key: &str) -> LockPlace;

    /// Its own lists.
    fn ledger(&self) -> &dyn Ledger;
}

impl Subject for MemoryQueue {
    fn ledger(&self) -> &dyn Ledger {
        self
    }

    fn lock(&self, _queue: &str, key: &str) -> LockPlace {
        LockPlace::Memory { key: key.into() }
    }
}

impl Subject for RedisQueue {
    fn ledger(&self) -> &dyn Ledger {
        self
    }

    fn lock(&self, queue: &str, key: &str) -> LockPlace {
        let key = if self.keys().are_tagged() {
            format!("{}:{key}", self.keys().list(&name(queue)))
        } else {
            key.into()
        };
        LockPlace::Redis {
            server: self.redis().clone(),
            key,
        }
    }
}

impl Subject for DatabaseQueue {
    fn ledger(&self) -> &dyn Ledger {
        self
    }

    fn lock(&self, _queue: &str, key: &str) -> LockPlace {
        LockPlace::Database(DatabaseLock {
            database: self.database().clone(),
            table: self.database().table("cache_locks"),
            key: key.into(),
            forever: Duration::from_secs(86400),
        })
    }
}

pub(crate) fn name(text: &str) -> QueueName {
    text.into()
}

/// A payload of a job, the shape Laravel writes.
pub(crate) fn payload(id: u32) -> Vec<u8> {
    format!(r#"{{"uuid":"u{id}","displayName":"A","job":"A@run","data":"","id":"i{id}","attempts":0,"delay":null}}"#)
        .into_bytes()
}

pub(crate) async fn pop(queue: &dyn Queue, queues: &[&str], max: usize, now: i64) -> Popped {
    let queues: Vec<QueueName> = queues.iter().map(|queue| name(queue)).collect();
    let mut all = Popped::default();
    // As a worker, which pops again at once if a pop has not looked at all queues.
    while let Some(max) = NonZeroUsize::new(max - all.jobs.len()) {
        let request = PopRequest {
            queues: &queues,
            max,
            now: at(now),
            woken: &[],
            selection: None,
            thorough: false,
        };
        let popped = queue.pop(request).await.unwrap();
        all.jobs.extend(popped.jobs);
        all.quarantined.extend(popped.quarantined);
        all.next_due = popped.next_due;
        all.migrated += popped.migrated;
        if !popped.is_cut {
            break;
        }
    }
    all
}

pub(crate) async fn settle(
    queue: &dyn Queue,
    job: &ReservedJob,
    settlement: Settlement,
) -> Settled {
    queue
        .settle(&[(Arc::new(job.clone()), settlement)])
        .await
        .unwrap()[0]
}

/// A job's payload as it comes back when its attempt counts.
fn counted(queue: &dyn Queue, job: &ReservedJob) -> Vec<u8> {
    if queue.abilities().has(Ability::CountsInPayload) {
        let payload: serde_json::Value = serde_json::from_slice(&job.ticket).unwrap();
        assert_eq!(payload["attempts"], job.attempts);
        job.ticket.to_vec()
    } else {
        job.payload.to_vec()
    }
}

pub(crate) fn ids(popped: &Popped) -> Vec<String> {
    let id = |job: &ReservedJob| {
        serde_json::from_slice::<serde_json::Value>(&job.payload).unwrap()["id"]
            .as_str()
            .unwrap()
            .to_owned()
    };
    popped.jobs.iter().map(id).collect()
}

pub(crate) async fn sizes(queue: &dyn Queue, queue_name: &str) -> Sizes {
    queue.sizes(&name(queue_name)).await.unwrap()
}

pub(crate) async fn jobs_come_in_the_order_they_were_pushed(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2), payload(3)])
        .await
        .unwrap();
    assert_eq!(ids(&pop(&queue, &["q"], 2, 0).await), ["i1", "i2"]);
    assert_eq!(ids(&pop(&queue, &["q"], 2, 0).await), ["i3"]);
    assert_eq!(ids(&pop(&queue, &["q"], 2, 0).await), [""; 0]);
}

async fn popping_counts_an_attempt_and_reserves_until_retry_after(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    // Room for more: a pop that comes short says when the next job is due.
    let popped = pop(&queue, &["q"], 2, 1000).await;
    assert_eq!(*popped.jobs[0].payload, *payload(1));
    assert_eq!(popped.jobs[0].attempts, 1);
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            reserved: 1,
            ..Sizes::default()
        }
    );
    assert_eq!(popped.next_due, Some(at(1000 + RETRY_AFTER)));
    assert!(
        pop(&queue, &["q"], 1, 1000 + RETRY_AFTER - 1)
            .await
            .jobs
            .is_empty()
    );
    let again = pop(&queue, &["q"], 1, 1000 + RETRY_AFTER).await;
    assert_eq!(*again.jobs[0].payload, counted(&queue, &popped.jobs[0]));
    assert_eq!(again.jobs[0].attempts, 2);
}

pub(crate) async fn earlier_queues_are_drained_before_later_ones(queue: impl Subject) {
    queue
        .push(&name("b"), &[payload(3), payload(4)])
        .await
        .unwrap();
    queue
        .push(&name("a"), &[payload(1), payload(2)])
        .await
        .unwrap();
    assert_eq!(ids(&pop(&queue, &["a", "b"], 1, 0).await), ["i1"]);
    assert_eq!(ids(&pop(&queue, &["a", "b"], 2, 0).await), ["i2", "i3"]);
    assert_eq!(ids(&pop(&queue, &["a", "b"], 9, 0).await), ["i4"]);
}

pub(crate) async fn deleted_jobs_are_gone_and_deleting_twice_says_so(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    assert_eq!(
        settle(&queue, &job, Settlement::Delete).await,
        Settled::Done
    );
    assert_eq!(
        settle(&queue, &job, Settlement::Delete).await,
        Settled::Gone
    );
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
}

async fn released_jobs_come_back_when_due(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 100).await.jobs.remove(0);
    assert_eq!(
        settle(&queue, &job, Settlement::Release(at(105))).await,
        Settled::Done
    );
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            delayed: 1,
            ..Sizes::default()
        }
    );
    let early = pop(&queue, &["q"], 1, 104).await;
    assert!(early.jobs.is_empty());
    assert_eq!(early.next_due, Some(at(105)));
    let due = pop(&queue, &["q"], 1, 105).await;
    assert_eq!(*due.jobs[0].payload, counted(&queue, &job));
}

async fn due_jobs_are_counted_before_they_move(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    pop(&queue, &["q"], 1, 100).await;
    for (id, due) in [(2, 100), (3, 150), (4, 200)] {
        let due = at(due);
        queue.later(&name("q"), due, &payload(id)).await.unwrap();
    }
    // The reservation ends at 190.
    for (now, delayed, reserved) in [
        (99, 0, 0),
        (150, 2, 0),
        (189, 2, 0),
        (190, 2, 1),
        (200, 3, 1),
    ] {
        let due = queue.due(&name("q"), at(now)).await.unwrap();
        assert_eq!((due.delayed, due.reserved), (delayed, reserved), "at {now}");
    }
    let none = queue.due(&name("other"), at(200)).await.unwrap();
    assert_eq!((none.delayed, none.reserved), (0, 0));
    assert_eq!(sizes(&queue, "q").await.delayed, 3);
}

async fn due_jobs_move_without_being_reserved(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    pop(&queue, &["q"], 1, 100).await;
    for (id, due) in [(3, 150), (4, 100), (5, 200)] {
        let due = at(due);
        queue.later(&name("q"), due, &payload(id)).await.unwrap();
    }
    let migrate = async |now| {
        let moved = queue.migrate(&name("q"), at(now)).await.unwrap();
        (moved.delayed, moved.reserved)
    };
    assert_eq!(migrate(99).await, (0, 0));
    assert_eq!(migrate(150).await, (2, 0));
    assert_eq!(migrate(190).await, (0, 1));
    assert_eq!(migrate(190).await, (0, 0));
    let left = Sizes {
        pending: 4,
        delayed: 1,
        ..Sizes::default()
    };
    assert_eq!(sizes(&queue, "q").await, left);
    // Behind those that wait, in the order of their time; the one that was reserved with its attempt counted.
    let popped = pop(&queue, &["q"], 9, 190).await;
    assert_eq!(ids(&popped), ["i2", "i4", "i3", "i1"]);
    assert_eq!(popped.jobs[3].attempts, 2);
    let none = queue.migrate(&name("other"), at(200)).await.unwrap();
    assert_eq!((none.delayed, none.reserved), (0, 0));
}

async fn a_release_may_leave_the_attempt_uncounted(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 100).await.jobs.remove(0);
    let uncounted = Settlement::ReleaseUncounted(at(105));
    assert_eq!(settle(&queue, &job, uncounted.clone()).await, Settled::Done);
    let delayed = Sizes {
        delayed: 1,
        ..Sizes::default()
    };
    assert_eq!(sizes(&queue, "q").await, delayed);
    assert_eq!(settle(&queue, &job, uncounted.clone()).await, Settled::Gone);
    assert_eq!(sizes(&queue, "q").await, delayed);
    assert!(pop(&queue, &["q"], 1, 104).await.jobs.is_empty());
    let again = pop(&queue, &["q"], 1, 105).await.jobs.remove(0);
    assert_eq!(*again.payload, *payload(1));
    assert_eq!(again.attempts, 1);
    // Together with a release whose attempt counts: each gets its own result.
    queue.push(&name("q"), &[payload(2)]).await.unwrap();
    let other = pop(&queue, &["q"], 1, 106).await.jobs.remove(0);
    let both = [
        (Arc::new(again), uncounted),
        (Arc::new(other.clone()), Settlement::Release(at(105))),
    ];
    queue.settle(&both).await.unwrap();
    let popped = pop(&queue, &["q"], 2, 107).await.jobs;
    let has = |element: &[u8]| popped.iter().any(|job| *job.payload == *element);
    assert!(popped.len() == 2 && has(&payload(1)) && has(&counted(&queue, &other)));
}

async fn a_release_does_not_double_a_job_that_another_worker_has(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let first = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    let second = pop(&queue, &["q"], 1, RETRY_AFTER).await.jobs.remove(0);
    assert_eq!(
        settle(&queue, &first, Settlement::Release(at(0))).await,
        Settled::Gone
    );
    assert_eq!(
        settle(
            &queue,
            &first,
            Settlement::Finish(vec![Effect::Append(Spool::FailedJobs, b"x".to_vec())])
        )
        .await,
        Settled::Gone
    );
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            reserved: 1,
            ..Sizes::default()
        }
    );
    assert_eq!(
        settle(&queue, &second, Settlement::Delete).await,
        Settled::Done
    );
}

async fn a_job_put_back_is_first_again_and_as_it_was(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    assert_eq!(
        settle(&queue, &job, Settlement::PutBack).await,
        Settled::Done
    );
    let popped = pop(&queue, &["q"], 2, 0).await;
    assert_eq!(*popped.jobs[0].payload, *payload(1));
    assert_eq!(ids(&popped), ["i1", "i2"]);
}

async fn forwarded_and_quarantined_jobs_are_as_they_were(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    let popped = pop(&queue, &["q"], 2, 0).await;
    assert_eq!(
        settle(&queue, &popped.jobs[0], Settlement::Forward(name("php"))).await,
        Settled::Done
    );
    assert_eq!(
        settle(&queue, &popped.jobs[1], Settlement::Quarantine).await,
        Settled::Done
    );
    assert_eq!(
        *pop(&queue, &["php"], 1, 0).await.jobs[0].payload,
        *payload(1)
    );
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            quarantined: 1,
            ..Sizes::default()
        }
    );
}

async fn a_job_left_reserved_comes_back_when_its_reservation_ends(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    assert_eq!(
        settle(&queue, &job, Settlement::LeaveUntil(at(7))).await,
        Settled::Done
    );
    assert!(pop(&queue, &["q"], 1, 6).await.jobs.is_empty());
    let again = pop(&queue, &["q"], 1, 7).await.jobs.remove(0);
    assert_eq!(*again.payload, counted(&queue, &job));
}

async fn renewed_reservations_end_later_and_lost_ones_stay_lost(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    let popped = pop(&queue, &["q"], 2, 0).await;
    let jobs: Vec<Arc<ReservedJob>> = popped.jobs.into_iter().map(Arc::new).collect();
    settle(&queue, &jobs[0], Settlement::Delete).await;
    let held = queue.renew(&jobs, at(50)).await.unwrap();
    assert_eq!(held, [Held::Lost, Held::Until(at(50 + RETRY_AFTER))]);
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            reserved: 1,
            ..Sizes::default()
        }
    );
    assert!(pop(&queue, &["q"], 1, RETRY_AFTER).await.jobs.is_empty());
    assert_eq!(ids(&pop(&queue, &["q"], 1, 50 + RETRY_AFTER).await), ["i2"]);
}

async fn delayed_jobs_come_when_due_in_order_of_their_time(queue: impl Subject) {
    queue.later(&name("q"), at(20), &payload(2)).await.unwrap();
    queue.later(&name("q"), at(10), &payload(1)).await.unwrap();
    queue.later(&name("q"), at(30), &payload(3)).await.unwrap();
    assert!(pop(&queue, &["q"], 9, 9).await.jobs.is_empty());
    assert_eq!(ids(&pop(&queue, &["q"], 9, 20).await), ["i1", "i2"]);
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            delayed: 1,
            reserved: 2,
            ..Sizes::default()
        }
    );
}

async fn what_cannot_be_decoded_goes_to_quarantine_and_not_into_the_way(queue: impl Subject) {
    let bad: [&[u8]; 6] = [
        b"",
        b"not json",
        b"[]",
        b"{}",
        br#"{"attempts":null}"#,
        br#"{"attempts":"x"}"#,
    ];
    let mut payloads: Vec<Vec<u8>> = bad.iter().map(|bytes| bytes.to_vec()).collect();
    payloads.push(payload(1));
    queue.push(&name("q"), &payloads).await.unwrap();
    let popped = pop(&queue, &["q"], 9, 0).await;
    assert_eq!(ids(&popped), ["i1"]);
    assert_eq!(popped.quarantined, [(name("q"), bad.len())]);
    assert_eq!(
        sizes(&queue, "q").await,
        Sizes {
            reserved: 1,
            quarantined: 6,
            ..Sizes::default()
        }
    );
}

async fn chosen_jobs_are_taken_and_the_others_keep_their_order(queue: impl Subject) {
    for (round, mut worker) in Picky::both(&[2, 4, 6, 8]).into_iter().enumerate() {
        let q = &*format!("q{round}");
        push_ids(&queue, q, &[1, 2, 3, 4, 5, 6, 7, 8]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 2, 0).await), ["i2", "i4"]);
        // Another worker has not learnt what this one knows.
        worker.heads = Heads::default();
        assert_eq!(ids(&worker.pop(&queue, q, 2, 0).await), ["i6", "i8"]);
        assert_eq!(pending(&queue, q).await, [1, 3, 5, 7]);
    }
}

/// A worker that takes only some jobs: those of `needles` in any case, of the others those of `own`.
#[derive(Default)]
struct Picky {
    needles: Vec<Vec<u8>>,
    own: Vec<u32>,
    /// Jobs that have to wait.
    full: Vec<u32>,
    heads: Heads,
    /// All jobs that it was asked about.
    asked: Vec<u32>,
}

impl Picky {
    /// Twice the same taste: chosen from all jobs, and recognized by Redis.
    fn both(own: &[u32]) -> [Self; 2] {
        let needle = |id| format!("\"id\":\"i{id}\"").into_bytes();
        let chooses = Self {
            own: own.to_vec(),
            ..Self::default()
        };
        let recognizes = Self {
            needles: own.iter().map(needle).collect(),
            own: own.to_vec(),
            ..Self::default()
        };
        [chooses, recognizes]
    }

    async fn pop(&mut self, queue: &dyn Queue, of: &str, max: usize, now: i64) -> Popped {
        let mut choose = |_: &QueueName, element: &[u8]| {
            let id = id(element);
            self.asked.push(id);
            match (self.own.contains(&id), self.full.contains(&id)) {
                (false, _) => Choice::Never,
                (true, true) => Choice::NotNow,
                (true, false) => Choice::Take(0),
            }
        };
        let selection = Selection {
            needles: &self.needles,
            choose: &mut choose,
            heads: &mut self.heads,
        };
        let request = PopRequest {
            queues: &[name(of)],
            max: NonZeroUsize::new(max).unwrap(),
            now: at(now),
            woken: &[],
            selection: Some(selection),
            thorough: false,
        };
        queue.pop(request).await.unwrap()
    }
}

fn id(element: &[u8]) -> u32 {
    let text = std::str::from_utf8(element).unwrap();
    let id = text.split("\"id\":\"i").nth(1).unwrap();
    id.split('"').next().unwrap().parse().unwrap()
}

async fn push_ids(queue: &dyn Queue, to: &str, ids: &[u32]) {
    let payloads: Vec<Vec<u8>> = ids.iter().copied().map(payload).collect();
    queue.push(&name(to), &payloads).await.unwrap();
}

async fn pending(queue: &dyn Queue, of: &str) -> Vec<u32> {
    let all = queue.look(&name(of), Place::Pending, 0, 1000).await;
    all.unwrap().iter().map(|element| id(element)).collect()
}

async fn jobs_for_others_may_be_taken_between_two_selecting_pops(queue: impl Subject) {
    for (round, mut worker) in Picky::both(&[2, 4, 6, 8]).into_iter().enumerate() {
        let q = &*format!("q{round}");
        push_ids(&queue, q, &[1, 3, 5, 7, 2, 4]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 1, 0).await), ["i2"]);
        assert_eq!(ids(&pop(&queue, &[q], 1, 0).await), ["i1"]);
        assert_eq!(ids(&worker.pop(&queue, q, 1, 0).await), ["i4"]);
        // From the middle, as another worker that selects does; then all that were there.
        let mut other = Picky::both(&[5]).into_iter().next().unwrap();
        assert_eq!(ids(&other.pop(&queue, q, 1, 0).await), ["i5"]);
        push_ids(&queue, q, &[6]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 9, 0).await), ["i6"]);
        assert_eq!(ids(&pop(&queue, &[q], 9, 0).await), ["i3", "i7"]);
        push_ids(&queue, q, &[8, 9]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 9, 0).await), ["i8"]);
        assert_eq!(pending(&queue, q).await, [9]);
        queue.clear(&name(q), at(0)).await.unwrap();
        push_ids(&queue, q, &[2, 9]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 9, 0).await), ["i2"]);
    }
}

async fn jobs_that_come_back_to_the_head_are_chosen_first(queue: impl Subject) {
    for (round, mut worker) in Picky::both(&[2, 4, 6]).into_iter().enumerate() {
        let q = &*format!("q{round}");
        push_ids(&queue, q, &[1, 2, 3, 4, 6]).await;
        let own = worker.pop(&queue, q, 1, 0).await.jobs.remove(0);
        assert_eq!(id(&own.payload), 2);
        let others = pop(&queue, &[q], 1, 0).await.jobs.remove(0);
        settle(&queue, &own, Settlement::PutBack).await;
        settle(&queue, &others, Settlement::PutBack).await;
        assert_eq!(pending(&queue, q).await, [1, 2, 3, 4, 6]);
        assert_eq!(ids(&worker.pop(&queue, q, 2, 0).await), ["i2", "i4"]);
        settle(&queue, &own, Settlement::PutBack).await;
        assert_eq!(ids(&worker.pop(&queue, q, 2, 0).await), ["i2", "i6"]);
        assert_eq!(pending(&queue, q).await, [1, 3]);
    }
}

async fn jobs_of_the_same_bytes_are_jobs_of_their_own(queue: impl Subject) {
    for (round, mut worker) in Picky::both(&[2, 4]).into_iter().enumerate() {
        let q = &*format!("q{round}");
        push_ids(&queue, q, &[1, 1, 3, 1, 2]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 1, 0).await), ["i2"]);
        push_ids(&queue, q, &[2, 1, 4]).await;
        // One of the same bytes stands behind the known ones.
        pop(&queue, &[q], 1, 0).await;
        assert_eq!(ids(&worker.pop(&queue, q, 9, 0).await), ["i2", "i4"]);
        assert_eq!(pending(&queue, q).await, [1, 3, 1, 1]);
    }
}

async fn jobs_for_others_that_stand_between_stay_in_order(queue: impl Subject) {
    for (round, mut worker) in Picky::both(&[2, 4, 6, 8, 10]).into_iter().enumerate() {
        let q = &*format!("q{round}");
        push_ids(&queue, q, &[1, 2, 3, 4, 5, 6, 7]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 2, 0).await), ["i2", "i4"]);
        let due = at(5);
        queue.later(&name(q), due, &payload(8)).await.unwrap();
        queue.later(&name(q), due, &payload(9)).await.unwrap();
        assert_eq!(ids(&worker.pop(&queue, q, 1, 4).await), ["i6"]);
        assert_eq!(ids(&worker.pop(&queue, q, 9, 5).await), ["i8"]);
        push_ids(&queue, q, &[10]).await;
        assert_eq!(ids(&worker.pop(&queue, q, 9, 5).await), ["i10"]);
        assert_eq!(pending(&queue, q).await, [1, 3, 5, 7, 9]);
    }
}

async fn a_job_that_has_to_wait_is_chosen_before_later_ones(queue: impl Subject) {
    let mut worker = Picky {
        own: vec![2, 3, 4],
        full: vec![2, 3],
        ..Picky::default()
    };
    push_ids(&queue, "q", &[1, 2, 3, 4]).await;
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 0).await), ["i4"]);
    assert!(worker.pop(&queue, "q", 1, 0).await.jobs.is_empty());
    worker.full = vec![2];
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 0).await), ["i3"]);
    worker.full.clear();
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 0).await), ["i2"]);
    // What was for others a second ago may be for this worker now.
    worker.own.push(1);
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 1).await), ["i1"]);
}

pub(crate) async fn a_push_wakes_a_waiting_worker(queue: impl Subject) {
    let queue = Arc::new(queue);
    assert_eq!(
        queue
            .wait_for_push(&[name("a"), name("b")], Duration::from_secs(1))
            .await
            .unwrap(),
        None
    );
    let waiting = tokio::spawn({
        let queue = Arc::clone(&queue);
        async move {
            queue
                .wait_for_push(&[name("a"), name("b")], Duration::from_secs(10))
                .await
                .unwrap()
        }
    });
    queue.push(&name("b"), &[payload(1)]).await.unwrap();
    let woken = waiting.await.unwrap();
    // A table says that something was pushed, and not where.
    let is_named = queue.abilities().has(Ability::CountsInPayload);
    assert!(
        woken == Some(name("b")) || (!is_named && woken.is_some()),
        "{woken:?}"
    );
}

async fn clearing_leaves_reserved_jobs_and_the_quarantine(queue: impl Subject) {
    queue
        .push(&name("q"), &[payload(1), payload(2), b"bad".to_vec()])
        .await
        .unwrap();
    queue.later(&name("q"), at(99), &payload(3)).await.unwrap();
    let running = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    for job in pop(&queue, &["q"], 2, 0).await.jobs {
        if *job.payload == *b"bad" {
            settle(&queue, &job, Settlement::Quarantine).await;
        }
    }
    queue.push(&name("q"), &[payload(4)]).await.unwrap();
    let left = |reserved| Sizes {
        reserved,
        quarantined: 1,
        ..Sizes::default()
    };
    let before_end = at(RETRY_AFTER - 1);
    assert_eq!(queue.clear(&name("q"), before_end).await.unwrap(), 2);
    assert_eq!(sizes(&queue, "q").await, left(2));
    // What follows its end happens.
    let settled = settle(&queue, &running, Settlement::Delete).await;
    assert_eq!(settled, Settled::Done);
    assert_eq!(queue.clear(&name("q"), at(RETRY_AFTER)).await.unwrap(), 1);
    assert_eq!(sizes(&queue, "q").await, left(0));
}

/// A job to push; it takes the lock first, if there is one.
fn job_to_push(queue: &str, id: u32, due: Option<i64>, lock: Option<LockPlace>) -> Push {
    let claim = lock.map(|place| Claim {
        place,
        owner: format!("owner-{id}"),
        ttl: Duration::from_secs(60),
    });
    Push {
        queue: name(queue),
        payload: payload(id),
        due: due.map(at),
        claim,
    }
}

fn push(queue: &str, id: u32, due: Option<i64>) -> Effect {
    Effect::Push(job_to_push(queue, id, due, None))
}

fn push_locked(queue: &str, id: u32, due: Option<i64>, lock: &LockPlace) -> Effect {
    Effect::Push(job_to_push(queue, id, due, Some(lock.clone())))
}

fn unlock(lock: &LockPlace, owner: Option<&str>) -> Effect {
    Effect::Unlock(Unlock {
        place: lock.clone(),
        owner: owner.map(Into::into),
    })
}

async fn what_the_end_of_a_job_brings_about_happens_with_it_or_not_at_all(queue: impl Subject) {
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    let effects = || {
        vec![
            push("next", 2, None),
            push("next", 3, Some(50)),
            push("q", 4, None),
            Effect::Append(Spool::FollowUps, b"record".to_vec()),
            Effect::Quarantine,
        ]
    };
    for expected in [Settled::Done, Settled::Gone] {
        let settled = settle(&queue, &job, Settlement::Finish(effects())).await;
        assert_eq!(settled, expected);
        let next = Sizes {
            pending: 1,
            delayed: 1,
            ..Sizes::default()
        };
        assert_eq!(sizes(&queue, "next").await, next);
        let own = Sizes {
            pending: 1,
            quarantined: 1,
            ..Sizes::default()
        };
        assert_eq!(sizes(&queue, "q").await, own);
        let records = queue.ledger().read(Spool::FollowUps, 0, 9).await.unwrap();
        assert_eq!(records, [b"record"]);
    }
    assert_eq!(ids(&pop(&queue, &["next"], 9, 49).await), ["i2"]);
    assert_eq!(ids(&pop(&queue, &["next"], 9, 50).await), ["i3"]);
    assert_eq!(ids(&pop(&queue, &["q"], 9, 50).await), ["i4"]);
}

async fn a_job_whose_lock_is_taken_is_not_pushed(queue: impl Subject) {
    queue
        .push(
            &name("q"),
            &[payload(1), payload(2), payload(3), payload(4)],
        )
        .await
        .unwrap();
    let jobs = pop(&queue, &["q"], 9, 0).await.jobs;
    let lock = &queue.lock("a", "lock");
    assert!(queue.ledger().holds(&name("q"), lock));
    let rows = [
        // The lock is free, then taken; another owner fails to free it, its owner frees it, and in the end a call
        // without an owner does.
        (vec![push_locked("a", 11, None, lock)], 1),
        (vec![push_locked("a", 12, Some(5), lock)], 1),
        (
            vec![
                unlock(lock, Some("owner-12")),
                push_locked("a", 13, None, lock),
            ],
            1,
        ),
        (
            vec![
                unlock(lock, Some("owner-11")),
                push_locked("a", 14, None, lock),
                unlock(lock, None),
                push_locked("a", 15, None, lock),
            ],
            3,
        ),
    ];
    for (job, (effects, expected)) in jobs.iter().zip(rows) {
        let text = format!("{effects:?}");
        settle(&queue, job, Settlement::Finish(effects)).await;
        let found = sizes(&queue, "a").await;
        assert_eq!((found.pending, found.delayed), (expected, 0), "{text}");
    }
    assert_eq!(ids(&pop(&queue, &["a"], 9, 0).await), ["i11", "i14", "i15"]);
}

async fn an_end_of_another_server_is_noted_once_with_what_follows(queue: impl Subject) {
    let (ledger, lock) = (queue.ledger(), queue.lock("q", "lock"));
    let [one, other] = ["tubes:1:aa", "tubes:2:aa"].map(str::to_owned);
    let effects = [
        Effect::Append(Spool::FollowUps, b"count".to_vec()),
        Effect::Unlock(Unlock {
            place: lock,
            owner: None,
        }),
    ];
    for second in [5, 6] {
        let noted = ledger.note_end(&one, at(second), &effects);
        noted.await.unwrap();
    }
    let ids = [one, other];
    assert_eq!(ledger.ends(&ids).await.unwrap(), [Some(at(5)), None]);
    let records = ledger.read(Spool::FollowUps, 0, 10).await.unwrap();
    assert_eq!(records, [b"count"]);
    ledger.forget_ends(&ids).await.unwrap();
    assert_eq!(ledger.ends(&ids).await.unwrap(), [None, None]);
    assert_eq!(ledger.ends(&[]).await.unwrap(), []);
    ledger.forget_ends(&[]).await.unwrap();
}

async fn records_are_taken_once_and_what_follows_happens_once(queue: impl Subject) {
    let ledger = queue.ledger();
    let effects = ["a", "b", "c"].map(|record| Effect::Append(Spool::FollowUps, record.into()));
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    settle(&queue, &job, Settlement::Finish(effects.to_vec())).await;
    let follow = [
        push("q", 2, None),
        Effect::Append(Spool::FollowUps, b"d".to_vec()),
    ];
    let spool = Spool::FollowUps;
    let lives = Duration::from_secs(60);
    let records = [b"a".to_vec(), b"c".to_vec()];
    // Only for the owner of the lease.
    assert_eq!(ledger.ack(spool, "x", &records, &follow).await.unwrap(), 0);
    assert!(ledger.lease(spool, "y", lives).await.unwrap());
    assert!(!ledger.lease(spool, "x", lives).await.unwrap());
    assert_eq!(ledger.ack(spool, "x", &records, &follow).await.unwrap(), 0);
    assert_eq!(ledger.read(spool, 0, 9).await.unwrap().len(), 3);
    for expected in [2, 0] {
        let taken = ledger.ack(spool, "y", &records, &follow).await;
        assert_eq!(taken.unwrap(), expected);
        assert_eq!(sizes(&queue, "q").await.pending, 1);
        let left = ledger.read(Spool::FollowUps, 0, 9).await.unwrap();
        assert_eq!(left, [b"b", b"d"]);
    }
    assert_eq!(ledger.read(Spool::FollowUps, 1, 9).await.unwrap(), [b"d"]);
    // Only the owner can keep it, as long as it was not lost.
    for (owner, is_kept) in [("y", true), ("x", false)] {
        assert_eq!(ledger.keep(spool, owner, lives).await.unwrap(), is_kept);
        ledger.unlease(spool, "x").await.unwrap();
    }
    ledger.unlease(spool, "y").await.unwrap();
    assert!(!ledger.keep(spool, "y", lives).await.unwrap());
    assert!(ledger.lease(spool, "x", lives).await.unwrap());
    assert!(
        ledger
            .read(Spool::FailedJobs, 0, 9)
            .await
            .unwrap()
            .is_empty()
    );
}

async fn heartbeats_are_kept_until_they_end_or_not_at_all(queue: impl Subject) {
    let (ledger, lives) = (queue.ledger(), Duration::from_secs(60));
    for (worker, record) in [("a", b"1"), ("b", b"2"), ("a", b"3")] {
        ledger.beat(worker, record, lives).await.unwrap();
    }
    let mut kept = ledger.beats(9).await.unwrap();
    kept.sort();
    if !ledger.keeps_heartbeats() {
        assert_eq!(kept, Vec::<Vec<u8>>::new());
        return;
    }
    assert_eq!(kept, [b"2", b"3"]);
    assert_eq!(ledger.beats(1).await.unwrap().len(), 1);
    assert_eq!(ledger.beats(0).await.unwrap().len(), 0);
    ledger.end_beats("a").await.unwrap();
    ledger.end_beats("unknown").await.unwrap();
    assert_eq!(ledger.beats(9).await.unwrap(), [b"2"]);
}

async fn jobs_of_one_identity_are_pushed_once(queue: impl Subject) {
    let pushes = [
        job_to_push("a", 1, None, None),
        job_to_push("b", 2, Some(50), None),
    ];
    let once = |id| Once {
        id,
        remembered: Duration::from_secs(60),
        note: "a note",
    };
    let now = |locked| PushedOnce::Now { locked };
    let before = |note: &str| PushedOnce::Before { note: note.into() };
    let push = async |pushes, id| queue.push_once(pushes, once(id)).await.unwrap();
    assert!(!queue.was_pushed(&name("a"), "x").await.unwrap());
    assert_eq!(push(&pushes, "x").await, now(0));
    assert_eq!(push(&pushes, "x").await, before("a note"));
    assert!(queue.was_pushed(&name("a"), "x").await.unwrap());
    assert_eq!(sizes(&queue, "a").await.pending, 1);
    assert_eq!(sizes(&queue, "b").await.delayed, 1);
    assert_eq!(push(&pushes, "y").await, now(0));
    assert_eq!(sizes(&queue, "a").await.pending, 2);

    // A job whose lock is taken is not pushed, and leaves nothing behind.
    let locked = [job_to_push("c", 3, None, Some(queue.lock("c", "lock")))];
    assert_eq!(push(&locked, "z").await, now(0));
    assert_eq!(push(&locked, "w").await, now(1));
    assert!(!queue.was_pushed(&name("c"), "w").await.unwrap());
    assert_eq!(sizes(&queue, "c").await.pending, 1);
}

async fn a_look_shows_payloads_in_each_place_and_moves_none(queue: impl Subject) {
    let (q, due) = (name("q"), at(50));
    let three = [payload(1), payload(2), payload(3)];
    queue.push(&q, &three).await.unwrap();
    queue.later(&q, due, &payload(4)).await.unwrap();
    let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
    let before = sizes(&queue, "q").await;
    let look = async |place, from, limit| queue.look(&q, place, from, limit).await.unwrap();
    assert_eq!(look(Place::Pending, 0, 9).await, three[1..]);
    assert_eq!(look(Place::Pending, 1, 9).await, three[2..]);
    assert_eq!(look(Place::Pending, 0, 1).await, three[1..2]);
    assert_eq!(look(Place::Delayed, 0, 9).await, [payload(4)]);
    assert_eq!(look(Place::Reserved, 0, 9).await, [counted(&queue, &job)]);
    assert_eq!(look(Place::Quarantine, 0, 9).await, [[0; 0]; 0]);
    assert_eq!(sizes(&queue, "q").await, before);
}

pub(crate) async fn payloads_leave_the_quarantine_for_their_queue_or_for_good(queue: impl Subject) {
    let q = name("q");
    let broken = [b"1".to_vec(), b"2".to_vec(), b"3".to_vec()];
    queue.push(&q, &broken).await.unwrap();
    for job in pop(&queue, &["q"], 9, 0).await.jobs {
        settle(&queue, &job, Settlement::Quarantine).await;
    }
    assert_eq!(queue.quarantines().await.unwrap(), [name("q")]);
    let unknown = [b"9".to_vec(), b"1".to_vec()];
    for expected in [1, 0] {
        let requeued = queue.dequarantine(&q, &unknown, Fate::Requeue).await;
        assert_eq!(requeued.unwrap(), expected);
    }
    let deleted = queue.dequarantine(&q, &broken[1..2], Fate::Delete).await;
    assert_eq!(deleted.unwrap(), 1);
    let left = queue.look(&q, Place::Quarantine, 0, 9).await.unwrap();
    assert_eq!(left, [b"3"]);
    let pending = queue.look(&q, Place::Pending, 0, 9).await.unwrap();
    assert_eq!(pending, [b"1"]);
}

/// Leaves out the test of a clause that a driver cannot keep: one of the words in brackets, which are the clause's name
/// and what it needs, tells that.
macro_rules! unless_left_out {
    (by_tables [CountsInPayload $($rest:ident)*] $($test:tt)*) => {};
    (by_tables [Migrates $($rest:ident)*] $($test:tt)*) => {};
    (without_notify [AnnouncesPushes $($rest:ident)*] $($test:tt)*) => {};
    // Clauses about several queues whose keys have to be in one place. Where they are not, `cluster/queues.rs` forwards
    // jobs to another slot, and `live/ends_killed.rs` has chains and batches over three.
    (in_slots [forwarded_and_quarantined_jobs_are_as_they_were $($rest:ident)*] $($test:tt)*) => {};
    (in_slots [what_the_end_of_a_job_brings_about_happens_with_it_or_not_at_all $($rest:ident)*] $($test:tt)*) => {};
    (in_slots [a_job_whose_lock_is_taken_is_not_pushed $($rest:ident)*] $($test:tt)*) => {};
    ($driver:ident [] $($test:tt)*) => { $($test)* };
    ($driver:ident [$word:ident $($rest:ident)*] $($test:tt)*) => {
        unless_left_out! { $driver [$($rest)*] $($test)* }
    };
}

/// One test per clause and driver: `memory::clause`, `redis::clause`, `redis_without_notify::clause`.
///
/// A clause names what a driver must be able to do; to a driver that cannot, it does not apply.
macro_rules! contract {
    ($module:ident $kind:ident $($clause:ident [$($needs:ident),*])*) => {
        mod $module {
            use super::*;

            $(unless_left_out! { by_tables [$clause $($needs)*]
                #[tokio::test]
                async fn $clause() {
                    let table = JobsTable::create(Kind::$kind).await;
                    super::$clause(table.queue(Clock::Fixed(at(0)))).await;
                }
            })*
        }
    };
    ($($clause:ident [$($needs:ident),*])*) => {
        mod memory {
            use super::*;

            $(#[tokio::test]
            async fn $clause() {
                let retry_after = Some(Duration::from_secs(90));
                super::$clause(MemoryQueue::new(retry_after)).await;
            })*
        }

        mod redis {
            use super::*;

            $(#[tokio::test]
            async fn $clause() {
                let server = RedisServer::start();
                super::$clause(redis_queue(&server, true)).await;
            })*
        }

        mod valkey {
            use super::*;

            $(#[tokio::test]
            #[ignore = "needs Valkey"]
            async fn $clause() {
                let server = RedisServer::start_valkey();
                super::$clause(redis_queue(&server, true)).await;
            })*
        }

        mod redis_without_notify {
            use super::*;

            $(unless_left_out! { without_notify [$clause $($needs)*]
                #[tokio::test]
                async fn $clause() {
                    let server = RedisServer::start();
                    super::$clause(redis_queue(&server, false)).await;
                }
            })*
        }

        mod cluster {
            use super::*;

            $(unless_left_out! { in_slots [$clause $($needs)*]
                #[tokio::test]
                async fn $clause() {
                    let queue = Cluster::shared().queue(&Cluster::own_prefix());
                    super::$clause(queue).await;
                }
            })*
        }

        mod cluster_with_a_tag_for_all {
            use super::*;

            $(#[tokio::test]
            async fn $clause() {
                let prefix = format!("{{{}}}", Cluster::own_prefix());
                super::$clause(Cluster::shared().queue(&prefix)).await;
            })*
        }

        mod redis_as_a_cluster {
            use super::*;

            $(unless_left_out! { in_slots [$clause $($needs)*]
                #[tokio::test]
                async fn $clause() {
                    let server = RedisServer::start();
                    super::$clause(tagged_queue(&server)).await;
                }
            })*
        }

        contract! { sqlite Sqlite $($clause [$($needs),*])* }
        contract! { mariadb MariaDb $($clause [$($needs),*])* }
        contract! { mysql MySql $($clause [$($needs),*])* }
        contract! { postgres Postgres $($clause [$($needs),*])* }

        /// What each clause needs.
        pub(crate) const NEEDS: &[(&str, &[Ability])] = &[$((stringify!($clause), &[$(Ability::$needs),*])),*];
    };
}

contract! {
    jobs_come_in_the_order_they_were_pushed []
    popping_counts_an_attempt_and_reserves_until_retry_after []
    earlier_queues_are_drained_before_later_ones []
    deleted_jobs_are_gone_and_deleting_twice_says_so [TellsGone]
    released_jobs_come_back_when_due []
    due_jobs_are_counted_before_they_move [Migrates]
    due_jobs_move_without_being_reserved [Migrates]
    a_release_may_leave_the_attempt_uncounted [PutsBack]
    a_release_does_not_double_a_job_that_another_worker_has [TellsGone]
    a_job_put_back_is_first_again_and_as_it_was [PutsBack]
    forwarded_and_quarantined_jobs_are_as_they_were [PutsBack, Quarantines]
    a_job_left_reserved_comes_back_when_its_reservation_ends []
    renewed_reservations_end_later_and_lost_ones_stay_lost [Renews, TellsGone]
    delayed_jobs_come_when_due_in_order_of_their_time [Migrates]
    what_cannot_be_decoded_goes_to_quarantine_and_not_into_the_way [Quarantines, CountsInPayload]
    chosen_jobs_are_taken_and_the_others_keep_their_order [Chooses]
    jobs_for_others_may_be_taken_between_two_selecting_pops [Chooses, Clears]
    jobs_that_come_back_to_the_head_are_chosen_first [Chooses, PutsBack]
    jobs_of_the_same_bytes_are_jobs_of_their_own [Chooses]
    jobs_for_others_that_stand_between_stay_in_order [Chooses, Migrates]
    a_job_that_has_to_wait_is_chosen_before_later_ones [Chooses]
    a_push_wakes_a_waiting_worker [AnnouncesPushes]
    clearing_leaves_reserved_jobs_and_the_quarantine [Clears, Quarantines]
    what_the_end_of_a_job_brings_about_happens_with_it_or_not_at_all [FinishesInOneStep, Quarantines]
    a_job_whose_lock_is_taken_is_not_pushed [FinishesInOneStep]
    records_are_taken_once_and_what_follows_happens_once [FinishesInOneStep]
    an_end_of_another_server_is_noted_once_with_what_follows [FinishesInOneStep]
    heartbeats_are_kept_until_they_end_or_not_at_all []
    jobs_of_one_identity_are_pushed_once [RemembersPushes]
    a_look_shows_payloads_in_each_place_and_moves_none [Shows]
    payloads_leave_the_quarantine_for_their_queue_or_for_good [Quarantines]
}

#[test]
fn every_ability_has_a_clause() {
    let all = MemoryQueue::new(Some(Duration::from_secs(90)));
    for ability in &all.abilities().can {
        let has = |(_, needs): &(&str, &[Ability])| needs.contains(ability);
        assert!(NEEDS.iter().any(has), "{ability:?}");
    }
}

#[tokio::test]
async fn tables_lack_what_the_clauses_need_that_are_left_out_for_them() {
    let table = JobsTable::create(Kind::Sqlite).await;
    let queue = table.queue(Clock::System);
    let mut lacked = MemoryQueue::new(None).abilities().can.clone();
    lacked.retain(|ability| !queue.abilities().has(*ability));
    assert_eq!(lacked, [Ability::CountsInPayload, Ability::Migrates]);
}

pub(crate) fn redis_queue(server: &RedisServer, notify: bool) -> RedisQueue {
    let mut options = artisand::connection::RedisOptions {
        prefix: "p_".into(),
        ..Default::default()
    };
    options.apply_url(&server.url()).unwrap();
    let redis = artisand::connection::Redis::new(&options).unwrap();
    let retry_after = Some(Duration::from_secs(90));
    RedisQueue::new(
        redis,
        RedisQueueOptions {
            retry_after,
            notify,
            ..RedisQueueOptions::default()
        },
    )
}

/// A single server whose keys are those of a cluster.
fn tagged_queue(server: &RedisServer) -> RedisQueue {
    let options = RedisQueueOptions {
        retry_after: Some(Duration::from_secs(90)),
        tagging: Some(Tagging::Braces),
        ..RedisQueueOptions::default()
    };
    let redis = redis_queue(server, true).redis().clone();
    RedisQueue::new(redis, options).at_home(name("q"))
}

/// The four keys, as Laravel's own commands would see them.
fn dump(server: &RedisServer) -> serde_json::Value {
    let mut connection = server.connection();
    let mut list = |key: &str| -> Vec<String> {
        redis_crate::cmd("LRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .query(&mut connection)
            .unwrap()
    };
    let (pending, notify) = (list("p_queues:q"), list("p_queues:q:notify"));
    let mut zset = |key: &str| -> Vec<(String, i64)> {
        redis_crate::cmd("ZRANGE")
            .arg(key)
            .arg(0)
            .arg(-1)
            .arg("WITHSCORES")
            .query(&mut connection)
            .unwrap()
    };
    let (delayed, reserved) = (zset("p_queues:q:delayed"), zset("p_queues:q:reserved"));
    serde_json::json!({ "pending": pending, "notify": notify, "delayed": delayed, "reserved": reserved })
}

use ::redis as redis_crate;

#[tokio::test]
async fn the_keys_are_those_of_laravel_with_and_without_a_notify_list() {
    for notify in [true, false] {
        let server = RedisServer::start();
        let queue = redis_queue(&server, notify);
        let ones = |count: usize| vec!["1"; if notify { count } else { 0 }];
        queue
            .push(&name("q"), &[payload(1), payload(2), payload(3)])
            .await
            .unwrap();
        queue.later(&name("q"), at(10), &payload(4)).await.unwrap();
        let text = |id: u32, attempts: u32| {
            let payload = String::from_utf8(payload(id)).unwrap();
            payload.replace("\"attempts\":0", &format!("\"attempts\":{attempts}"))
        };
        let expected = serde_json::json!({
            "pending": [text(1, 0), text(2, 0), text(3, 0)], "notify": ones(3),
            "delayed": [[text(4, 0), BEGIN + 10]], "reserved": [],
        });
        assert_eq!(dump(&server), expected);
        let popped = pop(&queue, &["q"], 2, 5).await;
        let expected = serde_json::json!({
            "pending": [text(3, 0)], "notify": ones(1),
            "delayed": [[text(4, 0), BEGIN + 10]], "reserved": [[text(1, 1), BEGIN + 95], [text(2, 1), BEGIN + 95]],
        });
        assert_eq!(dump(&server), expected);
        settle(&queue, &popped.jobs[0], Settlement::Release(at(12))).await;
        settle(&queue, &popped.jobs[1], Settlement::Delete).await;
        let expected = serde_json::json!({
            "pending": [text(3, 0)], "notify": ones(1), "delayed": [[text(4, 0), BEGIN + 10], [text(1, 1), BEGIN + 12]], "reserved": [],
        });
        assert_eq!(dump(&server), expected);
        // Both are due: they move behind the one that waits, each with a notification.
        assert_eq!(ids(&pop(&queue, &["q"], 1, 12).await), ["i3"]);
        let expected = serde_json::json!({
            "pending": [text(4, 0), text(1, 1)], "notify": ones(2), "delayed": [], "reserved": [[text(3, 1), BEGIN + 102]],
        });
        assert_eq!(dump(&server), expected);
    }
}

/// A job that is put back looks the same once another worker has popped it: it must not be put back again.
#[tokio::test]
async fn what_was_settled_beside_what_could_not_be_is_known() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    let payloads = [payload(1), payload(2), payload(3)];
    queue.push(&name("q"), &payloads).await.unwrap();
    let jobs = pop(&queue, &["q"], 3, 0).await.jobs;
    settle(&queue, &jobs[2], Settlement::Delete).await;
    server.query::<()>(&[b"SET", b"p_queues:broken", b"text"]);
    let ends = [
        Settlement::Forward(name("broken")),
        Settlement::PutBack,
        Settlement::PutBack,
    ];
    let jobs = jobs.into_iter().map(Arc::new);
    let rows: Vec<_> = jobs.zip(ends).collect();
    let error = queue.settle(&rows).await.unwrap_err();
    let done = [None, Some(Settled::Done), Some(Settled::Gone)];
    assert_eq!(error.settled, done);
    assert_eq!(error.to_string(), "1 of 3 jobs could not be settled");
    let found = sizes(&queue, "q").await;
    assert_eq!((found.pending, found.reserved), (1, 1));
}

/// Only a command that the server surely has not carried out may be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn a_lost_reply_is_told_from_a_server_that_is_away() {
    let mut server = RedisServer::start();
    let queue = redis_queue(&server, true);
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let job = Arc::new(pop(&queue, &["q"], 1, 0).await.jobs.remove(0));
    let rows = [(job, Settlement::PutBack)];
    server.query::<()>(&[b"CLIENT", b"PAUSE", b"60000", b"WRITE"]);
    let cut = async {
        // The server has taken the command, and does not carry it out.
        let waits = async || {
            let clients: String = server.query(&[b"CLIENT", b"LIST"]);
            clients.contains(" flags=b ")
        };
        until("it waits", Duration::from_secs(60), waits).await;
        server.query::<i64>(&[b"CLIENT", b"KILL", b"TYPE", b"normal", b"SKIPME", b"yes"])
    };
    let (settled, _) = tokio::join!(queue.settle(&rows), cut);
    let error = settled.unwrap_err().source;
    assert!(error.is_of_unknown_outcome(), "{error:?}");
    server.stop();
    // A wakeup that is still on its way may arrive first.
    let mut last = None;
    for _ in 0..3 {
        last = queue.settle(&rows).await.err().map(|error| error.source);
    }
    let error = last.unwrap();
    assert!(!error.is_of_unknown_outcome(), "{error:?}");
}

#[tokio::test]
async fn nothing_of_an_end_happens_if_part_of_it_cannot() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    let jobs = pop(&queue, &["q"], 2, 0).await.jobs;
    server.query::<()>(&[b"SET", b"p_queues:broken", b"text"]);
    let effects = vec![push("q", 3, None), push("broken", 4, None)];
    let rows = [
        (Arc::new(jobs[0].clone()), Settlement::Finish(effects)),
        (
            Arc::new(jobs[1].clone()),
            Settlement::Finish(vec![push("q", 5, None)]),
        ),
    ];
    let error = queue.settle(&rows).await.unwrap_err();
    let error = format!("{error:?}");
    assert!(
        error.contains("a key is a string and should be a list: p_queues:broken"),
        "{error}"
    );
    let found = sizes(&queue, "q").await;
    assert_eq!((found.pending, found.reserved), (0, 2));
    // A lock that lives forever, one that ends, and notifications for each push.
    server.query::<()>(&[b"DEL", b"p_queues:broken"]);
    let with = |ttl| {
        let claim = Claim {
            place: queue.lock("q", &format!("lock-{ttl}")),
            owner: "me".into(),
            ttl: Duration::from_secs(ttl),
        };
        Effect::Push(Push {
            claim: Some(claim),
            ..job_to_push("q", 6, None, None)
        })
    };
    // Longer than Redis takes.
    let all = Settlement::Finish(vec![with(0), with(30), with(u64::MAX)]);
    settle(&queue, &jobs[0], all).await;
    assert_eq!(server.query::<i64>(&[b"TTL", b"lock-0"]), -1);
    assert!((20..=30).contains(&server.query::<i64>(&[b"TTL", b"lock-30"])));
    assert_eq!(server.query::<String>(&[b"GET", b"lock-30"]), "me");
    assert_eq!(server.query::<i64>(&[b"LLEN", b"p_queues:q:notify"]), 3);
}

#[tokio::test]
async fn a_notification_that_was_waited_for_is_counted_once_and_surplus_ones_go() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    queue
        .push(&name("q"), &[payload(1), payload(2)])
        .await
        .unwrap();
    let woken = queue
        .wait_for_push(&[name("q")], Duration::from_secs(1))
        .await
        .unwrap()
        .unwrap();
    let request = |woken| PopRequest {
        queues: std::slice::from_ref(woken),
        max: NonZeroUsize::MIN,
        now: at(0),
        woken: std::slice::from_ref(woken),
        selection: None,
        thorough: false,
    };
    queue.pop(request(&woken)).await.unwrap();
    assert_eq!(dump(&server)["notify"], serde_json::json!(["1"]));
    let _: () = redis_crate::cmd("RPUSH")
        .arg("p_queues:q:notify")
        .arg(&["1"; 50])
        .query(&mut server.connection())
        .unwrap();
    pop(&queue, &["q"], 1, 0).await;
    assert_eq!(dump(&server)["notify"], serde_json::json!([]));
}

#[tokio::test]
async fn known_jobs_are_looked_at_once_a_second_and_their_notifications_passed_on() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    let mut worker = Picky::both(&[901, 902, 903, 904])
        .into_iter()
        .nth(1)
        .unwrap();
    let others: Vec<u32> = (1..=400).collect();
    push_ids(&queue, "q", &others).await;
    push_ids(&queue, "q", &[901, 902, 903]).await;
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 0).await), ["i901"]);
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 0).await), ["i902"]);
    assert_eq!(worker.asked, others);
    assert_eq!(ids(&worker.pop(&queue, "q", 1, 1).await), ["i903"]);
    assert_eq!(worker.asked.len(), 800);
    let notifications = || dump(&server)["notify"].as_array().unwrap().len();
    assert_eq!(notifications(), 400);
    for (own, expected) in [(None, 400), (Some(904), 400)] {
        push_ids(&queue, "q", own.as_slice()).await;
        let woken = [name("q")];
        let timeout = Duration::from_secs(1);
        queue.wait_for_push(&woken, timeout).await.unwrap();
        let mut choose = |_: &QueueName, _: &[u8]| Choice::Never;
        let selection = Selection {
            needles: &worker.needles,
            choose: &mut choose,
            heads: &mut worker.heads,
        };
        let request = PopRequest {
            queues: &woken,
            max: NonZeroUsize::MIN,
            now: at(1),
            woken: &woken,
            selection: Some(selection),
            thorough: false,
        };
        let popped = queue.pop(request).await.unwrap();
        assert_eq!(popped.jobs.len(), own.iter().count());
        assert_eq!(notifications(), expected, "{own:?}");
    }
}

/// The memory queue asks about every job at every pop.
#[tokio::test]
async fn selecting_pops_take_what_they_would_without_knowing_anything() {
    let server = RedisServer::start();
    for seed in 0..60 {
        let random = &mut fastrand::Rng::with_seed(seed);
        let redis = redis_queue(&server, seed % 2 == 0);
        let memory = MemoryQueue::new(Some(Duration::from_secs(90)));
        let both: [&dyn Queue; 2] = [&redis, &memory];
        let q = name(&format!("q{seed}"));
        let mut workers = [(); 2].map(|()| Picky {
            needles: (0..90)
                .step_by(3)
                .map(|id| format!("\"id\":\"i{id}\"").into_bytes())
                .collect(),
            own: (0..90).filter(|id| id % 3 < 2).collect(),
            ..Picky::default()
        });
        let mut held: [Vec<ReservedJob>; 2] = Default::default();
        let mut now = 0;
        for step in 0..120 {
            let told = format!("seed {seed}, step {step}");
            let (id, max) = (random.u32(0..90), random.usize(1..12));
            match random.u32(0..10) {
                0..=2 => {
                    // Not twice the same own job: a reservation is found by its bytes.
                    let is_there = held
                        .iter()
                        .flatten()
                        .any(|job| self::id(&job.payload) == id);
                    let known = pending(both[1], q.as_str()).await;
                    if id % 3 == 2 || !(is_there || known.contains(&id)) {
                        for queue in both {
                            push_ids(queue, q.as_str(), &[id]).await;
                        }
                    }
                }
                3..=6 => {
                    let full: Vec<u32> = (0..90).filter(|id| id % 6 == 1 && max % 2 == 0).collect();
                    let mut taken = Vec::new();
                    for (i, worker) in workers.iter_mut().enumerate() {
                        worker.full.clone_from(&full);
                        let jobs = worker.pop(both[i], q.as_str(), max, now).await.jobs;
                        let mut of: Vec<u32> =
                            jobs.iter().map(|job| self::id(&job.payload)).collect();
                        of.sort_unstable();
                        taken.push(of);
                        held[i].extend(jobs);
                        held[i].sort_by_key(|job| self::id(&job.payload));
                    }
                    assert_eq!(taken[0], taken[1], "{told}");
                }
                7 => {
                    // Another worker takes the first jobs, and may put them back.
                    let is_back = random.bool();
                    for queue in both {
                        let jobs = pop(queue, &[q.as_str()], max.min(2), now).await.jobs;
                        for job in jobs.iter().rev() {
                            let end = if is_back {
                                Settlement::PutBack
                            } else {
                                Settlement::Delete
                            };
                            settle(queue, job, end).await;
                        }
                    }
                }
                8 => {
                    for (queue, held) in both.iter().zip(&mut held) {
                        for job in held.drain(..max.min(held.len())).rev() {
                            settle(*queue, &job, Settlement::PutBack).await;
                        }
                    }
                }
                _ => now += i64::from(id % 4 == 0),
            }
            let [of_redis, of_memory] = [
                pending(both[0], q.as_str()).await,
                pending(both[1], q.as_str()).await,
            ];
            assert_eq!(of_redis, of_memory, "{told}");
        }
    }
}

#[tokio::test]
async fn attempts_are_counted_in_every_spelling_and_all_other_bytes_stay_where_that_can_be_proven()
{
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    // Element, and the member if every other byte stays.
    let rows = [
        (
            r#"{"job":"A","attempts":9}"#,
            Some(r#"{"job":"A","attempts":10}"#),
        ),
        (
            r#"{"job":"A","attempts":0,"delay":60}"#,
            Some(r#"{"job":"A","attempts":1,"delay":60}"#),
        ),
        (
            r#"{"attempts":0,"job":"A","big":12345678901234567890}"#,
            Some(r#"{"attempts":1,"job":"A","big":12345678901234567890}"#),
        ),
        (r#"{"job":"A","data":{"x":[]},"attempts" : 1}"#, None),
        (r#"{"job":"A","attempts":"2"}"#, None),
        (
            r#"{"job":"A","data":{"attempts":7},"attempts":1}"#,
            Some(r#"{"job":"A","data":{"attempts":7},"attempts":2}"#),
        ),
        (r#"{"job":"A","attempts":1,"data":{"attempts":7}}"#, None),
        (
            r#"{"job":"A","data":{"attempts":7,"x":1},"\u0061ttempts":1}"#,
            None,
        ),
        (
            r#"{"job":"A","data":",\"attempts\":5}","attempts":1}"#,
            Some(r#"{"job":"A","data":",\"attempts\":5}","attempts":2}"#),
        ),
        // With Horizon's fields.
        (
            r#"{"job":"A","data":{"attempts":7},"attempts":1,"type":"job","tags":["M\\A:1","b"],"silenced":false,"pushedAt":"1795207352.2461"}"#,
            Some(
                r#"{"job":"A","data":{"attempts":7},"attempts":2,"type":"job","tags":["M\\A:1","b"],"silenced":false,"pushedAt":"1795207352.2461"}"#,
            ),
        ),
        (
            r#"{"job":"A","data":{"attempts":7},"attempts":1,"delay":null,"type":"job","tags":{},"silenced":true,"pushedAt":"1795207352"}"#,
            Some(
                r#"{"job":"A","data":{"attempts":7},"attempts":2,"delay":null,"type":"job","tags":{},"silenced":true,"pushedAt":"1795207352"}"#,
            ),
        ),
        (
            r#"{"job":"A","attempts":1,"data":{"x":1,"attempts":7,"type":"job","tags":[],"silenced":false,"pushedAt":"1795207352.2461"}}"#,
            None,
        ),
        (
            r#"{"job":"A","data":{"attempts":7},"attempts":1,"type":"job","tags":["]"],"silenced":false,"pushedAt":"1795207352.2461"}"#,
            None,
        ),
    ];
    for (element, member) in rows {
        queue
            .push(&name("q"), &[element.as_bytes().to_vec()])
            .await
            .unwrap();
        let job = pop(&queue, &["q"], 1, 0).await.jobs.remove(0);
        assert_eq!(String::from_utf8_lossy(&job.payload), element);
        let before: serde_json::Value = serde_json::from_str(element).unwrap();
        let before = before["attempts"]
            .as_i64()
            .or_else(|| before["attempts"].as_str()?.parse().ok())
            .unwrap();
        let reserved: serde_json::Value = serde_json::from_slice(&job.ticket).unwrap();
        assert_eq!(reserved["attempts"], before + 1, "{element}");
        if let Some(member) = member {
            assert_eq!(String::from_utf8_lossy(&job.ticket), member);
        }
        assert_eq!(
            settle(&queue, &job, Settlement::Delete).await,
            Settled::Done,
            "{element}"
        );
    }
}

#[tokio::test]
async fn a_pop_migrates_about_as_many_due_jobs_as_it_can_take() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    let due = at(5);
    for id in 1..=200 {
        queue.later(&name("q"), due, &payload(id)).await.unwrap();
    }
    let mut taken = Vec::new();
    for (max, migrated, delayed) in [(1, 32, 168), (64, 64, 104), (104, 104, 0), (104, 0, 0)] {
        let popped = pop(&queue, &["q"], max, 5).await;
        assert_eq!(
            (popped.jobs.len(), popped.migrated),
            (max.min(200 - taken.len()), migrated)
        );
        assert_eq!(sizes(&queue, "q").await.delayed, delayed);
        taken.extend(popped.jobs.iter().map(|job| id(&job.payload)));
    }
    taken.sort_unstable();
    assert_eq!(taken, (1..=200).collect::<Vec<_>>());
}

#[tokio::test]
async fn a_server_without_memory_takes_no_jobs_and_gives_those_that_it_has() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    let q = name("q");
    queue.push(&q, &[payload(1), payload(2)]).await.unwrap();
    queue.later(&q, at(0), &payload(3)).await.unwrap();
    let config = |memory: &str| {
        let _: () = redis_crate::cmd("CONFIG")
            .arg("SET")
            .arg("maxmemory")
            .arg(memory)
            .query(&mut server.connection())
            .unwrap();
    };
    config("1");
    queue.push(&q, &[payload(4)]).await.unwrap_err();
    let popped = pop(&queue, &["q"], 9, 5).await;
    assert_eq!(ids(&popped), ["i1", "i2", "i3"]);
    let [first, second, third] = &popped.jobs[..] else {
        panic!("{popped:?}");
    };
    let all: Vec<_> = popped.jobs.iter().cloned().map(Arc::new).collect();
    let held = queue.renew(&all, at(500)).await.unwrap();
    assert_eq!(held, [Held::Until(at(500 + RETRY_AFTER)); 3]);
    let record = Effect::Append(Spool::FailedJobs, b"x".to_vec());
    for (job, settlement) in [
        (first, Settlement::Release(at(7))),
        (second, Settlement::Finish(vec![record])),
        (third, Settlement::Delete),
    ] {
        assert_eq!(settle(&queue, job, settlement).await, Settled::Done);
    }
    assert_eq!(ids(&pop(&queue, &["q"], 9, 8).await), ["i1"]);
    config("0");
    assert_eq!(sizes(&queue, "q").await.pending, 0);
}

#[tokio::test]
async fn an_empty_member_costs_no_other_job() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    let q = name("q");
    server.query::<()>(&[b"ZADD", b"p_queues:q:delayed", b"1", b""]);
    queue.later(&q, at(2), &payload(1)).await.unwrap();
    queue.later(&q, at(50), &payload(2)).await.unwrap();
    assert_eq!(ids(&pop(&queue, &["q"], 9, 5).await), ["i1"]);
    assert_eq!(ids(&pop(&queue, &["q"], 9, 50).await), ["i2"]);
}

#[tokio::test]
async fn a_queue_that_cannot_be_read_costs_the_others_nothing() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    queue
        .push(&name("a"), &[payload(1), payload(2)])
        .await
        .unwrap();
    server.query::<String>(&[b"SET", b"p_queues:b:delayed", b"no sorted set"]);
    assert_eq!(ids(&pop(&queue, &["a", "b"], 9, 0).await), ["i1", "i2"]);
    let max = NonZeroUsize::new(9).unwrap();
    let queues = [name("b")];
    let request = PopRequest {
        queues: &queues,
        max,
        now: at(0),
        woken: &[],
        selection: None,
        thorough: false,
    };
    assert!(queue.pop(request).await.is_err());
}

#[tokio::test]
async fn scores_that_no_clock_reaches_are_no_error() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    for (score, id) in [("9.2233720385641E+18", 8), ("inf", 9)] {
        server.query::<i64>(&[
            b"ZADD",
            b"p_queues:q:delayed",
            score.as_bytes(),
            &payload(id),
        ]);
    }
    queue.push(&name("q"), &[payload(1)]).await.unwrap();
    let popped = pop(&queue, &["q"], 9, 0).await;
    assert_eq!(ids(&popped), ["i1"]);
    let job = &popped.jobs[0];
    let far = at(0).plus(Duration::MAX);
    assert_eq!(
        settle(&queue, job, Settlement::Release(far)).await,
        Settled::Done
    );
    assert!(pop(&queue, &["q"], 9, 0).await.jobs.is_empty());
}

#[tokio::test]
async fn jobs_put_back_together_keep_their_order() {
    let server = RedisServer::start();
    let queue = redis_queue(&server, true);
    queue
        .push(
            &name("q"),
            &[payload(1), payload(2), payload(3), payload(4)],
        )
        .await
        .unwrap();
    let popped = pop(&queue, &["q"], 3, 0).await;
    let all: Vec<_> = popped
        .jobs
        .into_iter()
        .map(|job| (Arc::new(job), Settlement::PutBack))
        .collect();
    assert_eq!(queue.settle(&all).await.unwrap(), [Settled::Done; 3]);
    assert_eq!(
        ids(&pop(&queue, &["q"], 9, 0).await),
        ["i1", "i2", "i3", "i4"]
    );
}
