//! The beanstalkd driver: what the contract says where a server keeps the time, and what only this driver can meet.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use artisand::connection::LockPlace;
use artisand::queue::{
    Ability, BeanstalkdOptions, BeanstalkdQueue, Effect, Error, Fate, Heads, Held, Ledger, Once,
    Place, PopRequest, Popped, Push, PushedOnce, Queue, QueueName, QueueRefusal, ReservedJob,
    Selection, Settled, Settlement, Sizes, Spool,
};
use artisand::time::{Clock, UnixSeconds};
use tokio::time::{Instant, sleep};

use crate::contract::{Subject, at, ids, name, payload, pop, settle, sizes};
use crate::harness::beanstalkd::Beanstalkd;
use crate::harness::process::until;

mod clauses;
mod ends;
mod lost;
mod waits;
mod worker;

/// Tests do not wait for longer than this.
const PATIENCE: Duration = Duration::from_secs(60);

impl Subject for BeanstalkdQueue {
    fn lock(&self, _queue: &str, key: &str) -> LockPlace {
        LockPlace::Memory { key: key.into() }
    }

    fn ledger(&self) -> &dyn Ledger {
        unreachable!("beanstalkd keeps no lists of artisand's own")
    }
}

fn queue_at(port: u16, retry_after: u64) -> BeanstalkdQueue {
    BeanstalkdQueue::new(BeanstalkdOptions {
        port,
        retry_after: Duration::from_secs(retry_after),
        ..BeanstalkdOptions::default()
    })
}

fn queue_of(server: &Beanstalkd, retry_after: u64) -> BeanstalkdQueue {
    queue_at(server.port(), retry_after)
}

fn now() -> UnixSeconds {
    Clock::System.now()
}

fn in_seconds(seconds: u64) -> UnixSeconds {
    now().plus(Duration::from_secs(seconds))
}

async fn take(queue: &BeanstalkdQueue, of: &str, max: usize) -> Vec<ReservedJob> {
    pop(queue, &[of], max, 0).await.jobs
}

async fn take_one(queue: &BeanstalkdQueue, of: &str) -> ReservedJob {
    let mut jobs = take(queue, of, 1).await;
    assert_eq!(jobs.len(), 1, "there is a job in `{of}`");
    jobs.remove(0)
}

/// Waits until there is a job.
async fn take_soon(queue: &BeanstalkdQueue, of: &str) -> ReservedJob {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(job) = take(queue, of, 1).await.pop() {
            return job;
        }
        assert!(Instant::now() < deadline, "no job in `{of}`");
        // A server that is asked again and again may not see that a reservation ends (beanstalkd#380).
        let queues = [name(of)];
        let wait = queue.wait_for_push(&queues, Duration::from_secs(10));
        wait.await.unwrap();
    }
}

/// Waits until the server knows of this many connections that wait for a job.
async fn connections_wait(server: &Beanstalkd, count: u32) {
    let line = format!("\ncurrent-waiting: {count}\n");
    let has = async || server.query("stats").contains(&line);
    until("as many connections wait", PATIENCE, has).await;
}

async fn push(queue: &BeanstalkdQueue, to: &str, numbers: &[u32]) {
    let payloads: Vec<Vec<u8>> = numbers.iter().copied().map(payload).collect();
    queue.push(&name(to), &payloads).await.unwrap();
}

/// The job as a worker remembers it that has given it up: nothing keeps its reservation alive.
fn abandoned(job: ReservedJob) -> ReservedJob {
    ReservedJob {
        ticket: job.ticket.to_vec().into(),
        ..job
    }
}

fn pending(count: u64) -> Sizes {
    Sizes {
        pending: count,
        ..Sizes::default()
    }
}

fn reserved(count: u64) -> Sizes {
    Sizes {
        reserved: count,
        ..Sizes::default()
    }
}

#[tokio::test]
async fn a_pop_counts_an_attempt_and_tells_when_the_reservation_ends() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    push(&queue, "q", &[1]).await;
    let popped = pop(&queue, &["q"], 1, 1000).await;
    let job = &popped.jobs[0];
    assert_eq!(*job.payload, *payload(1));
    assert_eq!((job.attempts, job.choice), (1, None));
    // Whole seconds, rounded down by the server.
    let lease = job.lease.unwrap().0 - at(1000).0;
    assert!((80..=90).contains(&lease), "{lease}");
    assert_eq!(sizes(&queue, "q").await, reserved(1));
    assert!(take(&queue, "q", 1).await.is_empty());
    // As Laravel pushes: priority and time to run.
    assert_eq!(server.job(1, "pri").unwrap(), "1024");
    assert_eq!(server.job(1, "ttr").unwrap(), "90");
    // Another producer gives its jobs another time to run.
    server.query("use q\nput 1024 0 30 2\nhi");
    let other = take_one(&queue, "q").await;
    let lease = other.lease.unwrap().0 - at(0).0;
    assert!((20..=30).contains(&lease), "{lease}");
}

#[tokio::test]
async fn jobs_that_are_due_later_come_when_they_are() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let delayed = Sizes {
        delayed: 1,
        ..Sizes::default()
    };
    let q = name("q");
    queue.later(&q, in_seconds(4), &payload(1)).await.unwrap();
    assert_eq!(sizes(&queue, "q").await, delayed);
    assert!(take(&queue, "q", 1).await.is_empty());
    let mut job = take_soon(&queue, "q").await;
    let ends: [fn() -> Settlement; 3] = [
        || Settlement::Release(in_seconds(4)),
        || Settlement::LeaveUntil(in_seconds(4)),
        || Settlement::ReleaseUncounted(in_seconds(4)),
    ];
    for (attempts, end) in (1..).zip(ends) {
        assert_eq!(job.attempts, attempts);
        assert_eq!(settle(&queue, &job, end()).await, Settled::Done);
        assert_eq!(settle(&queue, &job, end()).await, Settled::Gone);
        assert_eq!(sizes(&queue, "q").await, delayed);
        job = take_soon(&queue, "q").await;
    }
    // What should have been long ago is there at once; what no clock reaches is no error.
    let past = Settlement::Release(UnixSeconds(5));
    settle(&queue, &job, past).await;
    let job = take_one(&queue, "q").await;
    assert_eq!(job.attempts, 5);
    let far = Settlement::Release(UnixSeconds(i64::MAX));
    assert_eq!(settle(&queue, &job, far).await, Settled::Done);
    assert_eq!(sizes(&queue, "q").await, delayed);
    let due = queue.due(&q, UnixSeconds(i64::MAX)).await.unwrap();
    assert_eq!((due.delayed, due.reserved), (0, 0));
}

#[tokio::test]
async fn a_job_put_back_is_first_again_with_its_attempt_counted() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    push(&queue, "q", &[1, 2]).await;
    let job = take_one(&queue, "q").await;
    let put_back = settle(&queue, &job, Settlement::PutBack).await;
    assert_eq!(put_back, Settled::Done);
    let jobs = take(&queue, "q", 9).await;
    let seen: Vec<_> = jobs
        .iter()
        .map(|job| (job.payload.to_vec(), job.attempts))
        .collect();
    assert_eq!(seen, [(payload(1), 2), (payload(2), 1)]);
}

#[tokio::test]
async fn a_forwarded_job_is_in_the_other_tube_only() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 4);
    push(&queue, "q", &[1, 2]).await;
    let mut jobs = take(&queue, "q", 9).await;
    let forward = || Settlement::Forward(name("php"));
    assert_eq!(settle(&queue, &jobs[0], forward()).await, Settled::Done);
    assert_eq!(settle(&queue, &jobs[0], forward()).await, Settled::Gone);
    // A reservation that has ended doubles nothing.
    let late = abandoned(jobs.remove(1));
    let again = take_soon(&queue_of(&server, 90), "q").await;
    assert_eq!(settle(&queue, &late, forward()).await, Settled::Gone);
    drop(again);
    assert_eq!(sizes(&queue, "php").await, pending(1));
    assert_eq!(*take_one(&queue, "php").await.payload, *payload(1));
    // A tube that cannot be keeps the job where it was.
    push(&queue, "q", &[3]).await;
    let job = Arc::new(take_soon(&queue, "q").await);
    let nowhere = [(Arc::clone(&job), Settlement::Forward(name("no tube")))];
    let error = queue.settle(&nowhere).await.unwrap_err();
    assert_eq!(error.settled, [None]);
    assert!(error.source.is_wrong_kind() && !error.source.is_of_unknown_outcome());
    assert_eq!(
        settle(&queue, &job, Settlement::Delete).await,
        Settled::Done
    );
}

#[tokio::test]
async fn a_reservation_that_has_ended_is_told_from_the_next_one_of_the_same_job() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 4);
    push(&queue, "q", &[1]).await;
    // The same connection gets it again.
    let late = abandoned(take_one(&queue, "q").await);
    let again = take_soon(&queue, "q").await;
    assert_eq!((late.attempts, again.attempts), (1, 2));
    let renewed = queue.renew(&[Arc::new(late.clone())], now()).await;
    assert_eq!(renewed.unwrap(), [Held::Lost]);
    for end in [
        Settlement::Release(in_seconds(0)),
        Settlement::PutBack,
        Settlement::Quarantine,
        Settlement::Delete,
    ] {
        assert_eq!(settle(&queue, &late, end).await, Settled::Gone);
    }
    assert_eq!(
        settle(&queue, &again, Settlement::Delete).await,
        Settled::Done
    );
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
}

#[tokio::test]
async fn a_release_does_not_double_a_job_that_another_worker_has() {
    let server = Beanstalkd::start();
    let [one, other] = [4, 90].map(|retry_after| queue_of(&server, retry_after));
    push(&one, "q", &[1]).await;
    let late = abandoned(take_one(&one, "q").await);
    let again = take_soon(&other, "q").await;
    assert_eq!(again.attempts, 2);
    for end in [Settlement::Release(in_seconds(0)), Settlement::Delete] {
        assert_eq!(settle(&one, &late, end).await, Settled::Gone);
    }
    assert_eq!(sizes(&one, "q").await, reserved(1));
    // A ticket of another connection is none here.
    assert_eq!(
        settle(&one, &again, Settlement::Delete).await,
        Settled::Gone
    );
    assert_eq!(
        settle(&other, &again, Settlement::Delete).await,
        Settled::Done
    );
}

#[tokio::test]
async fn renewed_reservations_end_later_by_the_jobs_own_time_to_run() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    server.query("use q\nput 1024 0 30 2\nhi");
    push(&queue, "q", &[2]).await;
    let jobs = take(&queue, "q", 9).await;
    let jobs: Vec<_> = jobs.into_iter().map(Arc::new).collect();
    let held = queue.renew(&jobs, UnixSeconds(1000)).await.unwrap();
    let ends = held.iter().map(|held| match held {
        Held::Until(end) => end.0,
        Held::Lost => 0,
    });
    let ends: Vec<i64> = ends.collect();
    assert!(
        (1020..=1030).contains(&ends[0]) && (1080..=1090).contains(&ends[1]),
        "{ends:?}"
    );
    settle(&queue, &jobs[0], Settlement::Delete).await;
    let held = queue.renew(&jobs, UnixSeconds(1000)).await.unwrap();
    assert!(matches!(held[..], [Held::Lost, Held::Until(_)]), "{held:?}");
}

/// The producer's time to run may be shorter than the worker's rhythm of renewals.
#[tokio::test]
async fn a_job_with_a_short_time_to_run_stays_reserved_while_it_is_in_use() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    // It is renewed when a third of its time is left.
    server.query("use q\nput 1024 0 9 2\nhi");
    let job = take_one(&queue, "q").await;
    let other = queue_of(&server, 90);
    // Time itself is the subject: the job stays reserved for longer than its time to run.
    let until = Instant::now() + Duration::from_secs(11);
    while Instant::now() < until {
        assert!(take(&other, "q", 1).await.is_empty());
        sleep(Duration::from_millis(100)).await;
    }
    // Once it is dropped, its reservation ends.
    drop(job);
    assert_eq!(take_soon(&other, "q").await.attempts, 2);
}

/// In the last second of a reservation, no reserve command of its connection is made to wait.
#[tokio::test]
async fn jobs_are_popped_while_reservations_of_the_same_connection_end_soon() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    // All its time is the last second.
    server.query("use q\nput 1024 0 1 2\nhi");
    let job = Arc::new(take_one(&queue, "q").await);
    assert!(take(&queue, "q", 5).await.is_empty());
    push(&queue, "q", &[2, 3]).await;
    assert_eq!(take(&queue, "q", 5).await.len(), 2);
    for _ in 0..30 {
        assert!(take(&queue, "q", 5).await.is_empty());
        sleep(Duration::from_millis(50)).await;
    }
    let held = queue
        .renew(std::slice::from_ref(&job), now())
        .await
        .unwrap();
    assert!(matches!(held[..], [Held::Until(_)]), "{held:?}");
    assert_eq!(
        settle(&queue, &job, Settlement::Delete).await,
        Settled::Done
    );
}

#[tokio::test]
async fn a_thousand_jobs_are_pushed_popped_renewed_and_settled_at_once() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let numbers: Vec<u32> = (0..1000).collect();
    push(&queue, "q", &numbers).await;
    let popped = pop(&queue, &["q"], 1000, 0).await;
    let expected: Vec<String> = numbers.iter().map(|id| format!("i{id}")).collect();
    assert_eq!(ids(&popped), expected);
    let jobs: Vec<_> = popped.jobs.into_iter().map(Arc::new).collect();
    let held = queue.renew(&jobs, now()).await.unwrap();
    assert!(held.iter().all(|held| matches!(held, Held::Until(_))));
    let rows: Vec<_> = jobs
        .into_iter()
        .map(|job| (job, Settlement::Delete))
        .collect();
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Done; 1000]);
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
}

#[tokio::test]
async fn any_bytes_come_back_as_they_were_pushed() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let all: Vec<u8> = (0..=255).cycle().take(65_535).collect();
    let payloads = [
        Vec::new(),
        b"\r\n".to_vec(),
        b"RESERVED 1 1\r\n".to_vec(),
        all,
    ];
    // So much that it is sent in several pieces.
    let payloads: Vec<Vec<u8>> = payloads.iter().cycle().take(100).cloned().collect();
    queue.push(&name("q"), &payloads).await.unwrap();
    let jobs = take(&queue, "q", 100).await;
    let came: Vec<Vec<u8>> = jobs.iter().map(|job| job.payload.to_vec()).collect();
    assert!(came == payloads);
}

fn refusal(error: &Error) -> &QueueRefusal {
    match error {
        Error::Refused { source, .. } => source,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn what_the_server_does_not_take_is_said_with_tube_and_size() {
    let server = Beanstalkd::start_with(&["-z", "1000"]);
    let queue = queue_of(&server, 90);
    let payloads = [payload(1), vec![b'x'; 1001], payload(2)];
    let error = queue.push(&name("q"), &payloads).await.unwrap_err();
    // A caller that repeats all would double the others.
    let Error::Doubtful { source } = error else {
        panic!("{error:?}");
    };
    let error = *source;
    let said = refusal(&error).to_string();
    let expected = "tube `q` does not take a payload of 1001 bytes (option -z of beanstalkd)";
    assert_eq!(said, expected);
    assert!(error.is_wrong_kind() && !error.is_lost_connection());
    // Each of the others is a command of its own.
    assert_eq!(sizes(&queue, "q").await, pending(2));
    server.drain();
    let error = queue.push(&name("q"), &[payload(3)]).await.unwrap_err();
    assert!(
        matches!(refusal(&error), QueueRefusal::Draining { tube, size } if tube == "q" && *size == payload(3).len())
    );
    assert!(!error.is_wrong_kind());
    // It gives the jobs that it has.
    assert_eq!(take(&queue, "q", 9).await.len(), 2);
}

#[tokio::test]
async fn names_that_cannot_be_tubes_send_nothing() {
    // No server is needed for that.
    let queue = queue_at(1, 90);
    for text in [
        "",
        "-q",
        "a b",
        "q\r\ndelete 1",
        "q:high",
        "ä",
        &"x".repeat(201),
    ] {
        let text = name(text);
        let error = queue.push(&text, &[payload(1)]).await.unwrap_err();
        assert!(
            matches!(refusal(&error), QueueRefusal::TubeName { .. }),
            "{error:?}"
        );
        let queues = [name("q"), text.clone()];
        let request = PopRequest {
            queues: &queues,
            max: NonZeroUsize::MIN,
            now: now(),
            woken: &[],
            selection: None,
            thorough: false,
        };
        assert!(refusal(&queue.pop(request).await.unwrap_err()).is_final());
        assert!(queue.sizes(&text).await.is_err());
        let wait = queue.wait_for_push(&queues, Duration::from_secs(1)).await;
        assert!(wait.is_err());
    }
}

#[tokio::test]
async fn tubes_that_are_not_there_are_empty() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    queue.ping().await.unwrap();
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
    for place in [
        Place::Pending,
        Place::Delayed,
        Place::Reserved,
        Place::Quarantine,
    ] {
        let none = queue.look(&name("q"), place, 0, 9).await.unwrap();
        assert!(none.is_empty());
    }
    assert!(queue.quarantines().await.unwrap().is_empty());
    assert!(queue.queues().await.unwrap().is_empty());
    let (q, unknown) = (name("q"), [payload(1)]);
    let taken = queue.dequarantine(&q, &unknown, Fate::Requeue);
    assert_eq!(taken.await.unwrap(), 0);
    assert!(take(&queue, "q", 9).await.is_empty());
}

#[tokio::test]
async fn a_look_shows_the_first_job_of_each_place_and_the_quarantine_opens_at_its_head() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let q = name("q");
    push(&queue, "q", &[1, 2, 3, 4, 5]).await;
    queue.later(&q, in_seconds(90), &payload(6)).await.unwrap();
    let jobs = take(&queue, "q", 3).await;
    for job in &jobs[..2] {
        let end = Settlement::Quarantine;
        assert_eq!(settle(&queue, job, end.clone()).await, Settled::Done);
        assert_eq!(settle(&queue, job, end).await, Settled::Gone);
    }
    // The only effect that comes in one step.
    let end = Settlement::Finish(vec![Effect::Quarantine]);
    assert_eq!(settle(&queue, &jobs[2], end).await, Settled::Done);
    let expected = Sizes {
        pending: 2,
        delayed: 1,
        quarantined: 3,
        reserved: 0,
    };
    assert_eq!(sizes(&queue, "q").await, expected);
    let look = async |place, from, limit| queue.look(&q, place, from, limit).await.unwrap();
    assert_eq!(look(Place::Pending, 0, 9).await, [payload(4)]);
    assert_eq!(look(Place::Delayed, 0, 9).await, [payload(6)]);
    assert_eq!(look(Place::Quarantine, 0, 9).await, [payload(1)]);
    assert_eq!(look(Place::Quarantine, 1, 9).await, [[0; 0]; 0]);
    assert_eq!(look(Place::Quarantine, 0, 0).await, [[0; 0]; 0]);
    assert_eq!(sizes(&queue, "q").await, expected);
    assert_eq!(queue.quarantines().await.unwrap(), [name("q")]);
    push(&queue, "p", &[9]).await;
    assert_eq!(queue.queues().await.unwrap(), [name("p"), name("q")]);
    // The third one stands behind the second, which is not asked for.
    let asked = [payload(1), payload(3)];
    let requeued = queue.dequarantine(&q, &asked, Fate::Requeue).await;
    assert_eq!(requeued.unwrap(), 1);
    let both = [payload(3), payload(2)];
    let deleted = queue.dequarantine(&q, &both, Fate::Delete).await;
    assert_eq!(deleted.unwrap(), 2);
    assert!(queue.quarantines().await.unwrap().is_empty());
    let popped = pop(&queue, &["q"], 9, 0).await;
    assert_eq!(ids(&popped), ["i1", "i4", "i5"]);
    assert_eq!(popped.jobs[0].attempts, 2);
}

#[tokio::test]
async fn what_the_protocol_cannot_is_refused_and_changes_nothing() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    let q = name("q");
    push(&queue, "q", &[1]).await;
    for ability in [
        Ability::Chooses,
        Ability::PutsBack,
        Ability::FinishesInOneStep,
        Ability::Clears,
    ] {
        assert!(!queue.abilities().has(ability));
    }
    let error = queue.clear(&q, in_seconds(0)).await.unwrap_err();
    assert_eq!(
        refusal(&error).to_string(),
        "its server cannot clear a tube"
    );
    let mut choose = |_: &QueueName, _: &[u8]| artisand::queue::Choice::Take(0);
    let request = PopRequest {
        queues: std::slice::from_ref(&q),
        max: NonZeroUsize::MIN,
        now: now(),
        woken: &[],
        selection: Some(Selection {
            needles: &[],
            choose: &mut choose,
            heads: &mut Heads::default(),
        }),
        thorough: false,
    };
    assert!(refusal(&queue.pop(request).await.unwrap_err()).is_final());
    let job = Arc::new(take_one(&queue, "q").await);
    let record = Effect::Append(Spool::FailedJobs, b"x".to_vec());
    for effects in [vec![record.clone()], vec![Effect::Quarantine, record]] {
        let rows = [(Arc::clone(&job), Settlement::Finish(effects))];
        let error = queue.settle(&rows).await.unwrap_err();
        assert_eq!(error.settled, [None]);
        assert!(refusal(&error.source).is_final());
        assert_eq!(sizes(&queue, "q").await, reserved(1));
    }
    let nothing = Settlement::Finish(Vec::new());
    assert_eq!(settle(&queue, &job, nothing).await, Settled::Done);
    let once = Once {
        id: "x",
        remembered: PATIENCE,
        note: "",
    };
    let push = Push {
        queue: name("q"),
        payload: payload(2),
        due: None,
        claim: None,
    };
    // Nothing is remembered of pushes.
    for _ in 0..2 {
        let pushed = queue.push_once(std::slice::from_ref(&push), once).await;
        assert_eq!(pushed.unwrap(), PushedOnce::Now { locked: 0 });
        assert!(!queue.was_pushed(&name("q"), "x").await.unwrap());
    }
    assert_eq!(sizes(&queue, "q").await, pending(2));
    let place = queue.lock("q", "lock");
    assert!(!queue.can_claim(&name("q"), &place));
    let claim = Some(artisand::queue::Claim {
        place,
        owner: "me".into(),
        ttl: PATIENCE,
    });
    let locked = Push { claim, ..push };
    let error = queue.push_once(&[locked], once).await.unwrap_err();
    assert!(refusal(&error).is_final());
    assert_eq!(sizes(&queue, "q").await, pending(2));
}

#[tokio::test]
async fn jobs_of_a_pop_that_was_given_up_go_back() {
    let server = Beanstalkd::start();
    let queue = queue_of(&server, 90);
    push(&queue, "q", &[1, 2, 3]).await;
    let queues = [name("q")];
    let request = PopRequest {
        queues: &queues,
        max: NonZeroUsize::new(2).unwrap(),
        now: now(),
        woken: &[],
        selection: None,
        thorough: false,
    };
    let mut popping = queue.pop(request);
    // Sent with the first poll.
    assert!(futures_util::poll!(popping.as_mut()).is_pending());
    drop(popping);
    let other = queue_of(&server, 90);
    let deadline = Instant::now() + PATIENCE;
    while server.job(1, "releases").as_deref() != Some("1") {
        assert!(Instant::now() < deadline);
        sleep(Duration::from_millis(10)).await;
    }
    let first = take_soon(&other, "q").await;
    assert_eq!((first.payload.to_vec(), first.attempts), (payload(1), 2));
}

#[tokio::test]
async fn forwarded_queues_are_in_the_other_tube() {
    let server = Beanstalkd::start();
    let queue = BeanstalkdQueue::new(BeanstalkdOptions {
        port: server.port(),
        forwards: [(name("a"), name("b"))].into(),
        waits: false,
        ..BeanstalkdOptions::default()
    });
    assert!(!queue.abilities().has(Ability::AnnouncesPushes));
    push(&queue, "a", &[1]).await;
    assert_eq!(server.job(1, "tube").unwrap(), "b");
    assert_eq!(sizes(&queue, "a").await, pending(1));
    let popped: Popped = pop(&queue, &["a"], 1, 0).await;
    assert_eq!(popped.jobs[0].queue, name("a"));
}
