//! The ends of jobs, noted in a ledger before the server deletes them.

use artisand::connection::{Redis, RedisOptions};
use artisand::queue::{ConnectionName, InOrder, RedisQueue, RedisQueueOptions};

use super::*;
use crate::harness::jobs_table::JobsTable;
use crate::harness::redis::RedisServer;
use crate::harness::stores::Kind;

/// Puts a push off as the outbox does, in a form that is easy to compare.
fn put_off(connection: &ConnectionName, push: &Push) -> Effect {
    let record = [connection.as_str().as_bytes(), b" ", &push.payload].concat();
    Effect::Append(Spool::FollowUps, record)
}

fn on_redis(server: &RedisServer) -> Arc<RedisQueue> {
    let mut options = RedisOptions::default();
    options.apply_url(&server.url()).unwrap();
    let redis = Redis::new(&options).unwrap();
    Arc::new(RedisQueue::new(redis, RedisQueueOptions::default()))
}

/// Queues at a beanstalkd with this ledger.
fn in_order(server: &Beanstalkd, ledger: Arc<dyn artisand::queue::Driver>) -> InOrder {
    let queue = Arc::new(queue_of(server, 90));
    InOrder::new("tubes".into(), queue, ledger, put_off, Clock::System)
}

async fn push_to(server: &Beanstalkd, numbers: &[u32]) {
    push(&queue_of(server, 90), "q", numbers).await;
}

async fn pop_one(queue: &InOrder) -> Option<Arc<ReservedJob>> {
    let mut jobs = pop(queue, &["q"], 1, now().0 - at(0).0).await.jobs;
    jobs.pop().map(Arc::new)
}

/// A job that its server delivers again, as after the loss of a connection; some time may pass until then.
async fn pop_soon(queue: &InOrder) -> Arc<ReservedJob> {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(job) = pop_one(queue).await {
            return job;
        }
        assert!(Instant::now() < deadline, "no job");
        // The server tells nothing of it: it has to be asked.
        sleep(Duration::from_millis(10)).await;
    }
}

/// Waits until the tube has no job.
async fn is_emptied(queue: &InOrder, server: &Beanstalkd) {
    let deadline = Instant::now() + PATIENCE;
    // With one look: a job that becomes ready between two would be in neither.
    let has_job = || {
        let told = server.query("stats-tube q");
        told.contains("jobs-ready: 1") || told.contains("jobs-reserved: 1")
    };
    while has_job() {
        assert!(pop_one(queue).await.is_none(), "an ended job is run again");
        assert!(Instant::now() < deadline, "the job is not deleted");
        // The server tells nothing of it: it has to be asked.
        sleep(Duration::from_millis(10)).await;
    }
}

fn chain() -> Settlement {
    let step = Push {
        queue: name("next"),
        payload: b"step".to_vec(),
        due: None,
        claim: None,
    };
    let count = Effect::Append(Spool::FollowUps, b"count".to_vec());
    Settlement::Finish(vec![Effect::Push(step), count])
}

async fn records(ledger: &dyn Ledger) -> Vec<String> {
    let records = ledger.read(Spool::FollowUps, 0, 100).await.unwrap();
    let text = |record: Vec<u8>| String::from_utf8(record).unwrap();
    records.into_iter().map(text).collect()
}

async fn notes_the_end(ledger: Arc<dyn artisand::queue::Driver>) {
    let server = Beanstalkd::start();
    let queue = in_order(&server, Arc::clone(&ledger));
    push_to(&server, &[1, 2]).await;
    let jobs = pop(&queue, &["q"], 2, now().0 - at(0).0).await.jobs;
    let jobs: Vec<_> = jobs.into_iter().map(Arc::new).collect();
    let id = jobs[0].delivery.clone().unwrap().id;
    assert_eq!(id, "1");
    let rows = [
        (Arc::clone(&jobs[0]), chain()),
        (Arc::clone(&jobs[1]), Settlement::Delete),
    ];
    let settled = queue.settle(&rows).await.unwrap();
    assert_eq!(settled, [Settled::Done, Settled::Done]);
    assert_eq!(sizes(&queue, "q").await, Sizes::default());
    assert_eq!(records(&*ledger).await, ["tubes step", "count"]);
    // A lost reply: the caller settles again what is settled.
    assert_eq!(queue.settle(&rows).await.unwrap(), [Settled::Gone; 2]);
    assert_eq!(records(&*ledger).await.len(), 2);
}

#[tokio::test]
async fn what_an_end_brings_about_is_noted_once_on_redis() {
    let redis = RedisServer::start();
    notes_the_end(on_redis(&redis)).await;
    let keys: Vec<String> = redis.query(&[b"KEYS", b"artisand:ended:*"]);
    // That of the job whose deletion was asked for a second time.
    assert_eq!(keys.len(), 1, "notes of deleted jobs are removed: {keys:?}");
}

#[tokio::test]
#[ignore = "needs servers (make test)"]
async fn what_an_end_brings_about_is_noted_once_in_databases() {
    for kind in [Kind::Sqlite, Kind::Postgres, Kind::MariaDb] {
        let table = JobsTable::create(kind).await;
        notes_the_end(Arc::new(table.queue(Clock::System))).await;
        comes_again(Arc::new(table.queue(Clock::System))).await;
    }
}

#[tokio::test]
async fn a_job_that_has_ended_is_not_run_when_its_server_delivers_it_again() {
    let redis = RedisServer::start();
    comes_again(on_redis(&redis)).await;
}

async fn comes_again(ledger: Arc<dyn artisand::queue::Driver>) {
    let server = Beanstalkd::start();
    let first = in_order(&server, Arc::clone(&ledger));
    push_to(&server, &[1]).await;
    let job = pop_one(&first).await.unwrap();
    // The process dies between note and deletion, and its connection is closed.
    let effects = [Effect::Append(Spool::FollowUps, b"count".to_vec())];
    let before = records(&*ledger).await.len();
    for _ in 0..2 {
        let id = identity(&job);
        ledger.note_end(&id, now(), &effects).await.unwrap();
    }
    drop(first);
    drop(job);
    let second = in_order(&server, Arc::clone(&ledger));
    is_emptied(&second, &server).await;
    assert_eq!(records(&*ledger).await.len(), before + 1);
}

#[tokio::test]
async fn a_job_without_effects_whose_deletion_is_not_certain_is_not_run_again() {
    let (redis, server) = (RedisServer::start(), Beanstalkd::start());
    let queue = in_order(&server, on_redis(&redis));
    push_to(&server, &[1]).await;
    let job = pop_one(&queue).await.unwrap();
    // The reservation is lost before the end: another worker would get the job.
    let other = in_order(&server, on_redis(&redis));
    let lost = Arc::new(abandoned(ReservedJob::clone(&job)));
    drop(job);
    drop(queue);
    let again = pop_soon(&other).await;
    let settled = other.settle(&[(lost, Settlement::Delete)]).await;
    assert_eq!(settled.unwrap(), [Settled::Gone]);
    // It fails there, and would be tried again.
    let release = Settlement::Release(now());
    let settled = other.settle(&[(again, release)]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    is_emptied(&other, &server).await;
}

#[tokio::test]
async fn a_later_job_that_a_new_server_calls_the_same_is_run() {
    let (redis, mut server) = (RedisServer::start(), Beanstalkd::start());
    let queue = in_order(&server, on_redis(&redis));
    push_to(&server, &[1]).await;
    let job = pop_one(&queue).await.unwrap();
    let id = job.delivery.clone().unwrap().id;
    // The server loses its jobs; the job ended long ago.
    let ledger = on_redis(&redis);
    let settled = queue.settle(&[(job, Settlement::Delete)]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    server.kill();
    server.restart();
    let keys: Vec<String> = redis.query(&[b"KEYS", b"artisand:ended:*"]);
    assert!(keys.is_empty(), "{keys:?}");
    push_to(&server, &[1]).await;
    let same = pop_soon(&queue).await;
    assert_eq!(same.delivery.clone().unwrap().id, id);
    // As if it had ended a minute before it was pushed.
    let minute_ago = UnixSeconds(now().0 - 60);
    let identity = identity(&same);
    ledger.note_end(&identity, minute_ago, &[]).await.unwrap();
    let settled = queue.settle(&[(same, Settlement::PutBack)]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    let same = pop_soon(&queue).await;
    assert_eq!(same.attempts, 2);
    // And as if it had ended just now.
    ledger
        .forget_ends(std::slice::from_ref(&identity))
        .await
        .unwrap();
    ledger.note_end(&identity, now(), &[]).await.unwrap();
    let settled = queue.settle(&[(same, Settlement::PutBack)]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    is_emptied(&queue, &server).await;
}

#[tokio::test]
async fn the_end_of_a_later_job_that_is_called_the_same_is_noted() {
    let (redis, server) = (RedisServer::start(), Beanstalkd::start());
    let ledger = on_redis(&redis);
    let queue = in_order(
        &server,
        Arc::clone(&ledger) as Arc<dyn artisand::queue::Driver>,
    );
    push_to(&server, &[1]).await;
    let job = pop_one(&queue).await.unwrap();
    // As if a job of a server that lost its jobs had ended a minute ago, and its note had stayed.
    let minute_ago = UnixSeconds(now().0 - 60);
    ledger
        .note_end(&identity(&job), minute_ago, &[])
        .await
        .unwrap();
    let settled = queue.settle(&[(job, Settlement::PutBack)]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    let job = pop_soon(&queue).await;
    let settled = queue.settle(&[(job, chain())]).await;
    assert_eq!(settled.unwrap(), [Settled::Done]);
    assert_eq!(records(&*ledger).await, ["tubes step", "count"]);
}

/// How a ledger names a job.
fn identity(job: &ReservedJob) -> String {
    use sha2::Digest as _;
    let digest = sha2::Sha256::digest(&job.payload);
    let digest = u128::from_be_bytes(digest[..16].try_into().unwrap());
    format!("tubes:{}:{digest:032x}", job.delivery.as_ref().unwrap().id)
}

#[tokio::test]
async fn without_its_ledger_a_worker_takes_no_job() {
    let (mut redis, server) = (RedisServer::start(), Beanstalkd::start());
    let queue = in_order(&server, on_redis(&redis));
    push_to(&server, &[1]).await;
    redis.stop();
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
        assert!(error.is_lost_connection(), "{error}");
    }
    redis.restart();
    // Only the first look has cost an attempt.
    assert_eq!(pop_soon(&queue).await.attempts, 2);
}

#[tokio::test]
async fn an_end_that_cannot_be_noted_keeps_the_job() {
    let (mut redis, server) = (RedisServer::start(), Beanstalkd::start());
    let ledger = on_redis(&redis);
    let queue = in_order(
        &server,
        Arc::clone(&ledger) as Arc<dyn artisand::queue::Driver>,
    );
    push_to(&server, &[1, 2]).await;
    let jobs = pop(&queue, &["q"], 2, now().0 - at(0).0).await.jobs;
    let jobs: Vec<_> = jobs.into_iter().map(Arc::new).collect();
    redis.stop();
    let rows = [
        (Arc::clone(&jobs[0]), chain()),
        (Arc::clone(&jobs[1]), Settlement::Delete),
    ];
    let unsettled = queue.settle(&rows).await.unwrap_err();
    assert_eq!(unsettled.settled, [None, Some(Settled::Done)]);
    assert_eq!(sizes(&queue, "q").await, reserved(1));
    redis.restart();
    let settled = queue.settle(&rows[..1]).await.unwrap();
    assert_eq!(settled, [Settled::Done]);
    assert_eq!(records(&*ledger).await, ["tubes step", "count"]);
}
